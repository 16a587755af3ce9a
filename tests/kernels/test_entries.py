"""Contractions over entries, and exponentials and logarithms of vectors, against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from junctor_kernels.cpu import entries
from junctor_kernels.cpu.entries import reduce_entries
from junctor_kernels.cpu.jit import jit
from junctor_kernels.cpu.logarithms import exponential, logarithm
from junctor_kernels.cpu.vectors import BYTES, load, store
from junctor_kernels.tables import reference
from junctor_kernels.tables.axes import Contraction, Strides
from junctor_kernels.tables.reference import ALGEBRAS

TOLERANCE = {name: 1e-5 if algebra.dtype == np.float32 else 1e-13 for name, algebra in ALGEBRAS.items()}
WIDTH = BYTES // 8


def problem(sizes: list[int], scopes: list[list[int]], algebra: str, zeros: float, seed: int = 0) -> list[Any]:
    """Return an operand for each scope: its table and its strides along all axes."""
    rng = np.random.default_rng(seed)
    operands = []
    for scope in scopes:
        table = rng.random([sizes[axis] for axis in scope])
        table[rng.random(table.shape) < zeros] = 0
        with np.errstate(divide="ignore"):
            table = np.log(table) if ALGEBRAS[algebra].logs else table
        strides, stride = [0] * len(sizes), 1
        for axis in reversed(scope):
            strides[axis] = stride
            stride *= sizes[axis]
        operands.append((table.astype(ALGEBRAS[algebra].dtype), tuple(strides)))
    return operands


def expected(sizes: list[int], kept: int, operands: list[Any], algebra: str) -> np.ndarray:
    strides = tuple(Strides(each[:kept], each[kept:]) for _, each in operands)
    what = Contraction(tuple(sizes[:kept]), tuple(sizes[kept:]), strides)
    return reference.reduce(what, [table.reshape(-1, 1) for table, _ in operands], ALGEBRAS[algebra])[:, 0]


def check(sizes: list[int], kept: int, operands: list[Any], algebra: str, threads: int = 1) -> None:
    """Compare with the reference, written and added to what is there; -inf and 0 must be where they are there."""
    right = expected(sizes, kept, operands, algebra)
    out = np.full(right.shape, np.nan, right.dtype)
    reduce_entries(sizes, kept, operands, out, algebra, threads)
    np.testing.assert_allclose(out, right, rtol=TOLERANCE[algebra], atol=TOLERANCE[algebra])
    assert (np.isneginf(out) == np.isneginf(right)).all()
    before = problem(sizes, [list(range(kept))], algebra, 0.3, seed=9)[0][0].reshape(-1)
    both = ALGEBRAS[algebra].join(before, right)
    reduce_entries(sizes, kept, operands, before, algebra, threads, accumulate=True)
    np.testing.assert_allclose(before, both, rtol=TOLERANCE[algebra], atol=TOLERANCE[algebra])


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], int, list[list[int]], float]:
    axes = draw(st.integers(0, 12))
    sizes = draw(st.lists(st.sampled_from((2, 2, 2, 3, 1, 5, 17)), min_size=axes, max_size=axes))
    while math.prod(sizes) > 50_000:
        sizes[sizes.index(max(sizes))] = 1
    scopes = [
        list(draw(st.permutations(range(axes))))[: draw(st.integers(0, axes))] for _ in range(draw(st.integers(0, 5)))
    ]
    return sizes, draw(st.integers(0, axes)), scopes, draw(st.sampled_from((0.0, 0.3, 0.95)))


@pytest.mark.parametrize("algebra", ALGEBRAS)
@given(drawn=problems(), small=st.booleans())
@example(drawn=([2] * 14, 10, [[*range(5), *range(10, 14)], [*range(3, 14)]], 0.3), small=False)
@example(drawn=([700, 3, 2, 2], 2, [[1, 0, 2], [3, 1], [2]], 0.3), small=True)
def test_entries_equal_the_reference(algebra: str, drawn: tuple[Any, ...], small: bool) -> None:
    sizes, kept, scopes, zeros = drawn
    with pytest.MonkeyPatch.context() as patch:
        if small:
            # Many panels, copies and parts of terms in a problem of any size.
            for name, value in (("PANEL", 40), ("LEAST_PANEL", 32), ("NEAR", 4), ("FAR", 3), ("LEAST_KEPT", 20)):
                patch.setattr(entries, name, value)
            entries.forget()
        check(sizes, kept, problem(sizes, scopes, algebra, zeros), algebra)
    entries.forget()


@pytest.mark.parametrize("algebra", ALGEBRAS)
@pytest.mark.parametrize(
    ("sizes", "kept"), [([1000, 7, 5], 2), ([9000, 3], 1), ([3, 3, 3, 3, 3, 3, 3, 3, 2], 8), ([2] * 13, 0)]
)
def test_panels_that_do_not_divide_an_axis(algebra: str, sizes: list[int], kept: int) -> None:
    everything = list(range(len(sizes)))
    check(sizes, kept, problem(sizes, [everything, everything[::-1], everything[-1:]], algebra, 0.3), algebra)


@pytest.mark.parametrize("algebra", ALGEBRAS)
def test_threads_change_nothing(algebra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "THREADED", 1)
    sizes, kept = [2] * 17, 13
    operands = problem(sizes, [[*range(8), *range(13, 17)], [*range(5, 17)]], algebra, 0.1)
    outs = []
    for threads in (1, 2, 5):
        outs.append(
            reduce_entries(sizes, kept, operands, np.empty([2] * 13, ALGEBRAS[algebra].dtype), algebra, threads)
        )
        check(sizes, kept, operands, algebra, threads)
    assert all((out == outs[0]).all() for out in outs)


def test_sums_of_numbers_far_apart_stay_exact_in_log_space() -> None:
    tables = np.array([[-1e300, 0.0, -800.0, -np.inf], [-1e4, -1e4, -1e4 - 1, -np.inf]])
    wide = np.ascontiguousarray(np.tile(tables.T, (4, 1)))
    out = np.empty(16)
    reduce_entries([16, 2], 1, [(wide, (2, 1))], out, "log")
    np.testing.assert_allclose(out, np.logaddexp(wide[:, 0], wide[:, 1]), rtol=1e-15)
    assert np.isneginf(out[3])


@pytest.mark.parametrize("rows", [[[0, 8], [0, 16], [0, 8]], [[243, 0], [0, 1], [243, 0]]])
def test_equal_rows_are_found_also_where_sums_are_equal(rows: list[list[int]]) -> None:
    samples, slots = entries.equal_rows(np.array(rows), alike=False)
    assert len(samples) == 2
    assert np.array(rows)[samples[slots]].tolist() == rows


@pytest.mark.parametrize("cases", [1, 3])
def test_one_case_is_no_axis_and_several_are(cases: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []
    real = entries.reduce_entries
    monkeypatch.setattr(entries, "reduce_entries", lambda *given: asked.append(tuple(given[0])) or real(*given))
    what = Contraction((27, 81), (9,), (Strides((0, 9), (1,)), Strides((81, 1), (0,))))
    rng = np.random.default_rng(0)
    operands = [rng.random((9 * 81, cases)), rng.random((27 * 81, 1))]
    found = entries.reduce(what, operands, reference.DOUBLE)
    np.testing.assert_allclose(found, reference.reduce(what, operands, reference.DOUBLE), rtol=1e-13)
    assert asked == [(27, 81, 9) if cases == 1 else (27, 81, 3, 9)]


def test_tables_of_another_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="contiguous tables of float64"):
        reduce_entries([16], 1, [(np.zeros(16, np.float32), (1,))], np.empty(16), "double")
    with pytest.raises(ValueError, match="contiguous"):
        reduce_entries([16], 1, [(np.zeros(32)[::2], (1,))], np.empty(16), "log")


@jit
def _exponentials(numbers: Any, out: Any) -> None:
    for n in range(0, numbers.size, WIDTH):
        store(out, n, exponential(load(numbers, n)))


@jit
def _logarithms(numbers: Any, out: Any) -> None:
    for n in range(0, numbers.size, WIDTH):
        store(out, n, logarithm(load(numbers, n)))


def test_exponentials_and_logarithms_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    numbers = np.concatenate([-rng.random(8000) * 700, -rng.random(8000), np.zeros(8)])
    out = np.empty_like(numbers)
    _exponentials(numbers, out)
    np.testing.assert_allclose(out, np.exp(numbers), rtol=5e-16)
    assert (out[-8:] == 1).all()
    far = np.full(8, -np.inf)
    _exponentials(far, out[:8])
    assert (out[:8] < 1e-307).all()
    numbers = np.concatenate([1 + rng.random(8000) * 1e-3, np.exp(rng.random(8000) * 100 - 50), np.ones(8)])
    _logarithms(numbers, out)
    np.testing.assert_allclose(out, np.log(numbers), rtol=5e-16, atol=0)
    assert (out[-8:] == 0).all()
