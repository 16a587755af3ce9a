"""The NumPy kernels against loops that anybody can read."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junctor_kernels.tables import reference
from junctor_kernels.tables.axes import contraction, unmerged
from junctor_kernels.tables.reference import DOUBLE, LOG, MAX_LOG, SINGLE, Algebra

ALGEBRAS = {"double": DOUBLE, "single": SINGLE, "log": LOG, "max": MAX_LOG}


@st.composite
def problems(draw: st.DrawFn) -> tuple:
    """Kept and eliminated axes, their sizes, operand scopes, and which operands have a case axis."""
    labels = draw(st.permutations(range(draw(st.integers(0, 5)))))
    split = draw(st.integers(0, len(labels)))
    sizes = {label: draw(st.integers(1, 3)) for label in labels}
    scopes = [
        tuple(draw(st.permutations(labels)))[: draw(st.integers(0, len(labels)))]
        for _ in range(draw(st.integers(0, 4)))
    ]
    per_case = [draw(st.booleans()) for _ in scopes]
    return labels[:split], labels[split:], sizes, scopes, per_case, draw(st.integers(1, 3)), draw(st.integers(0, 99))


def tables_of(problem: tuple, algebra: Algebra) -> list[np.ndarray]:
    _, _, sizes, scopes, per_case, cases, seed = problem
    rng = np.random.default_rng(seed)
    tables = []
    for scope, case in zip(scopes, per_case, strict=True):
        table = rng.random((math.prod(sizes[v] for v in scope), cases if case else 1))
        table[rng.random(table.shape) < 0.3] = 0
        with np.errstate(divide="ignore"):
            tables.append((np.log(table) if algebra.combine is np.add else table).astype(algebra.dtype))
    return tables


def naive(problem: tuple, tables: list[np.ndarray], algebra: Algebra) -> np.ndarray:
    """One entry, one term and one case at a time, in plain numbers."""
    kept, eliminated, sizes, scopes, per_case, cases, _ = problem
    cases = cases if any(per_case) else 1
    out = np.zeros((math.prod(sizes[v] for v in kept), cases))
    for case in range(cases):
        for s, kept_at in enumerate(itertools.product(*(range(sizes[v]) for v in kept))):
            terms = []
            for eliminated_at in itertools.product(*(range(sizes[v]) for v in eliminated)):
                at = dict(zip((*kept, *eliminated), (*kept_at, *eliminated_at), strict=True))
                term = 1.0
                for scope, table in zip(scopes, tables, strict=True):
                    entry = 0
                    for v in scope:
                        entry = entry * sizes[v] + at[v]
                    number = float(table[entry, min(case, table.shape[1] - 1)])
                    term *= math.exp(number) if algebra.combine is np.add else number
                terms.append(term)
            out[s, case] = max(terms) if algebra.name == "max" else math.fsum(terms)
    return out


@pytest.mark.parametrize("name", ALGEBRAS)
@given(problem=problems(), scratch=st.sampled_from([1, 2, 7, 64, 1 << 16]))
def test_reduce_equals_loops(name: str, problem: tuple, scratch: int) -> None:
    algebra = ALGEBRAS[name]
    kept, eliminated, sizes, scopes, *_ = problem
    tables = tables_of(problem, algebra)
    lowered = contraction(kept, eliminated, scopes, sizes)
    found = reference.reduce(lowered, tables, algebra, scratch)
    assert found.dtype == algebra.dtype
    plain = np.exp(found) if algebra.combine is np.add else found
    np.testing.assert_allclose(plain, naive(problem, tables, algebra), rtol=1e-5 if name == "single" else 1e-12)


@given(problem=problems(), scratch=st.sampled_from([1, 3, 1 << 16]))
def test_argmax_finds_the_first_largest_term(problem: tuple, scratch: int) -> None:
    kept, eliminated, sizes, scopes, per_case, cases, seed = problem
    rng = np.random.default_rng(seed)
    # Few distinct values, so that ties are common.
    tables = [
        rng.integers(0, 3, (math.prod(sizes[v] for v in scope), cases if case else 1)).astype(float)
        for scope, case in zip(scopes, per_case, strict=True)
    ]
    states = [rng.integers(0, sizes[v], cases) for v in kept]
    found = reference.argmax(unmerged(kept, eliminated, scopes, sizes), tables, states, cases, scratch)
    for case in range(cases):
        at = {v: int(column[case]) for v, column in zip(kept, states, strict=True)}
        sums = []
        for eliminated_at in itertools.product(*(range(sizes[v]) for v in eliminated)):
            at.update(zip(eliminated, eliminated_at, strict=True))
            total = 0.0
            for scope, table in zip(scopes, tables, strict=True):
                entry = 0
                for v in scope:
                    entry = entry * sizes[v] + at[v]
                total += table[entry, min(case, table.shape[1] - 1)]
            sums.append(total)
        assert found[case] == sums.index(max(sums))


def test_axes_that_all_operands_walk_alike_are_merged() -> None:
    sizes = {0: 2, 1: 3, 2: 4, 3: 1}
    lowered = contraction((0, 1, 3), (2,), [(0, 1, 2), (0, 1, 3)], sizes)
    assert lowered.kept == (6,)
    assert lowered.eliminated == (4,)
    assert [strides.kept for strides in lowered.operands] == [(4,), (1,)]
    assert unmerged((0, 1, 3), (2,), [(0, 1, 2)], sizes).kept == (2, 3, 1)


@pytest.mark.parametrize(("algebra", "largest"), [(DOUBLE, 5e-324), (DOUBLE, 1e300), (SINGLE, 1e-45), (SINGLE, 3e38)])
def test_rescale_keeps_numbers_finite_at_the_ends_of_the_range(algebra: Algebra, largest: float) -> None:
    table = np.array([[largest, 0.0], [largest / 2, 0.0]], dtype=algebra.dtype)
    before = table.astype(np.float64)
    found = reference.rescale(table, algebra)
    scaled, log_scale = found.table, found.exponent * np.log(2)
    assert np.isfinite(scaled).all()
    assert scaled.max() < 1
    assert found.largest.tolist() == before.max(axis=0).tolist()
    assert found.least.tolist() == [scaled[scaled[:, 0] > 0, 0].min(), 1]
    np.testing.assert_allclose(
        scaled[:, 0] * np.exp(log_scale[0] / 2) * np.exp(log_scale[0] / 2), before[:, 0], rtol=1e-6
    )
    assert scaled[:, 1].tolist() == [0, 0]


@pytest.mark.parametrize("algebra", ALGEBRAS.values(), ids=ALGEBRAS)
@pytest.mark.parametrize("scratch", [4, 1 << 16])
def test_any_number_of_axes(algebra: Algebra, scratch: int) -> None:
    """Most of them with one entry, so that few others say the same."""
    several = {0: 2, 33: 3, 50: 2, 69: 2}
    sizes = {v: several.get(v, 1) for v in range(70)}
    scopes = [tuple(range(40)), tuple(range(69, 30, -1)), tuple(range(70))]
    tables = tables_of(([], [], sizes, scopes, [False] * 3, 1, 1), algebra)
    few = [tuple(v for v in scope if v in several) for scope in scopes]
    what, short = (unmerged(range(35), range(35, 70), scopes, sizes), contraction((0, 33), (50, 69), few, sizes))
    found = reference.reduce(what, tables, algebra, scratch)
    np.testing.assert_array_equal(found, reference.reduce(short, tables, algebra))


def test_blocks_of_many_long_axes() -> None:
    """All of their entries would take minutes: the first block has to come to its sum."""

    class ReachedError(Exception):
        pass

    def reached(block: np.ndarray, _: object) -> np.ndarray:
        raise ReachedError

    sizes = dict.fromkeys(range(70), 2)
    scopes = [tuple(range(start, 70, 7)) for start in range(7)]
    tables = [np.ones((2**10, 1)) for _ in scopes]
    what = contraction(range(10), range(10, 70), scopes, sizes)
    assert len(what.kept) + len(what.eliminated) > 64
    with pytest.raises(ReachedError):
        reference.reduce(what, tables, replace(DOUBLE, gather=reached))


def test_terms_of_any_number_of_axes() -> None:
    shape = (3, *[1] * 70, 2)
    first, *others, last = reference.unraveled(np.arange(6), shape)
    assert (first.tolist(), last.tolist()) == ([0, 0, 1, 1, 2, 2], [0, 1] * 3)
    assert len(others) == 70
    assert not np.any(others)
