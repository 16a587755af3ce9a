"""Contractions of one case on a GPU against the NumPy reference; without a GPU, the kernels compiled for the CPU."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from emulation.entries import ALGEBRAS, emulated, library, ranks_of, reduced
from hypothesis import example, given, settings
from hypothesis import strategies as st
from junctor_kernels.gpu import entries as entries_gpu
from junctor_kernels.gpu.device import CudaDevice, address_of, as_struct
from junctor_kernels.gpu.entries import launches_of
from junctor_kernels.tables import reference
from junctor_kernels.tables.axes import Contraction, Strides, contraction

ROUNDING = {name: 1e-5 if algebra.dtype == np.float32 else 1e-13 for name, algebra in ALGEBRAS.items()}


@st.composite
def contractions(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    sizes = dict(enumerate(draw(st.lists(st.integers(1, 4), min_size=1, max_size=7))))
    labels = list(sizes)
    kept = draw(st.lists(st.sampled_from(labels), unique=True))
    eliminated = [label for label in labels if label not in kept]
    scopes = [draw(st.lists(st.sampled_from(labels), unique=True)) for _ in range(draw(st.integers(0, 5)))]
    # Every axis that is summed over belongs to some operand.
    scopes.append([*eliminated, *draw(st.lists(st.sampled_from(kept), unique=True))] if kept else eliminated)
    rng, zeros = np.random.default_rng(draw(st.integers(0, 99))), draw(st.sampled_from([0.0, 0.3, 1.0]))
    tables = [rng.random(int(np.prod([sizes[v] for v in scope]))) for scope in scopes]
    for table in tables:
        table[rng.random(table.size) < zeros] = 0
    return contraction(kept, eliminated, scopes, sizes), tables


@pytest.mark.parametrize("algebra", ALGEBRAS)
@given(drawn=contractions())
def test_agrees_with_the_reference(algebra: str, drawn: tuple[Any, list[Any]]) -> None:
    what, numbers = drawn
    tables = entries_of(numbers, algebra)
    wanted = reference.reduce(what, [table[:, None] for table in tables], ALGEBRAS[algebra])[:, 0]
    found, extremes = reduced(what, tables, algebra)
    np.testing.assert_allclose(found, wanted, rtol=ROUNDING[algebra], atol=ROUNDING[algebra])
    largest, least = entries_gpu.extremes_of(extremes, ALGEBRAS[algebra])
    assert largest == found.max()
    above = found[found > 0] if not ALGEBRAS[algebra].logs else np.ones(1)
    assert least == above.min(initial=np.inf if above.size else 1)


def entries_of(numbers: list[Any], algebra: str) -> list[Any]:
    """The entries of tables for some numbers."""
    with np.errstate(divide="ignore"):
        return [
            (np.log(table) if ALGEBRAS[algebra].logs else table).astype(ALGEBRAS[algebra].dtype) for table in numbers
        ]


@pytest.mark.parametrize("algebra", ALGEBRAS)
def test_words_are_in_the_order_of_entries(algebra: str) -> None:
    what = ALGEBRAS[algebra]
    entries = np.array([0, 1e-30, 0.5, 1, 3e7, np.inf], what.dtype)
    if what.logs:
        entries = np.array([-np.inf, -1e300, -3.5, -0.0, 1e-300, 2, 1e300, np.inf])
    words = ranks_of(entries, what)
    assert (np.diff(words.astype(object)) > 0).all()
    found, least = entries_gpu.extremes_of(np.stack([words, ~words], axis=-1), what)
    np.testing.assert_array_equal(found, entries)
    np.testing.assert_array_equal(least, np.ones(len(entries)) if what.logs else np.where(entries > 0, entries, 0))


@pytest.mark.parametrize("algebra", ["double", "log", "max"])
@pytest.mark.parametrize(("kept", "eliminated"), [(0, 17), (2, 16), (14, 6), (16, 1), (3, 4), (17, 0)])
def test_every_kind_of_launch(kept: int, eliminated: int, algebra: str) -> None:
    labels = list(range(kept + eliminated))
    rng = np.random.default_rng(1)
    order = rng.permutation(labels).tolist()
    scopes = [order, order[: len(order) // 2]]
    what = contraction(labels[:kept], labels[kept:], scopes, dict.fromkeys(labels, 2))
    tables = entries_of([rng.random(2 ** len(scope)) for scope in scopes], algebra)
    wanted = reference.reduce(what, [table[:, None] for table in tables], ALGEBRAS[algebra])[:, 0]
    np.testing.assert_allclose(reduced(what, tables, algebra)[0], wanted, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("algebra", ["single", "log"])
@pytest.mark.parametrize("eliminated", [0, 1])
@given(data=st.data())
def test_panels_that_read_the_same_lines_follow_each_other(eliminated: int, algebra: str, data: st.DataObject) -> None:
    axes = 14 + eliminated
    order = data.draw(st.permutations(range(axes)))
    rng = np.random.default_rng(1)
    scopes = [list(order[:3]), list(order)]
    what = contraction(range(14), range(14, axes), scopes, dict.fromkeys(range(axes), 2))
    tables = entries_of([rng.random(2 ** len(scope)) for scope in scopes], algebra)
    wanted = reduced(what, tables, algebra)
    launches_of.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries_gpu, "LARGE_ENTRIES", 1 << 14)
        patch.setattr(entries_gpu, "LARGE_PANEL", 1 << 11)
        patch.setattr(entries_gpu, "FAR_PANEL", 1 << 11)
        (launch,) = launches_of(what)
        found = reduced(what, tables, algebra)
    launches_of.cache_clear()
    for part, other in zip(found, wanted, strict=True):
        assert part.tobytes() == other.tobytes()
    # The innermost axes of the large table are behind all others, if they are not inside of a panel: two of them are
    # those of the four entries of a thread.
    far = [v for v in order[-3:] if v < 3]
    assert launch.is_apart == (len(far) > 1)
    assert (launch.begins is not None) == (len(far) == 1)
    if launch.is_apart:
        places = launch.offsets[1].places.reshape(-1, 4)
        assert (places < places[:, :1] + 8).all()
        assert len(launch.offsets) == 3
    if launch.begins is not None:
        assert sorted(launch.begins.tolist()) == list(range(0, 1 << 14, launch.panel))
        lines = launch.offsets[1].panels.reshape(-1, 1 << len(far)) // 32
        assert (lines == lines[:, :1]).all()


@pytest.fixture
def far_launches() -> Iterator[None]:
    """Tables of a few thousand entries are cut as those of millions are."""
    launches_of.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries_gpu, "LARGE_ENTRIES", 1 << 12)
        patch.setattr(entries_gpu, "LARGE_PANEL", 1 << 9)
        patch.setattr(entries_gpu, "FAR_PANEL", 1 << 9)
        yield
    launches_of.cache_clear()


@pytest.mark.usefixtures("far_launches")
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("k", [None, 0, 1, 2])
def test_entries_of_a_thread_lie_apart_in_the_result(k: int | None, adds: bool) -> None:
    # The result has the innermost axes of the large table outermost.
    table = [*range(2, 13), 0, 1]
    what = contraction(range(12), [12], [[0, 3, 12], table], dict.fromkeys(range(13), 2))
    tables = [np.random.default_rng(k or 0).random(2 ** len(scope)) for scope in ([0, 3, 12], table)]
    wanted = reference.reduce(what, [each[:, None] for each in tables], reference.DOUBLE)[:, 0] + adds
    (launch,) = launches_of(what)
    assert launch.name == "reduce_apart_2_2"
    if k is None:
        result = np.full(4096, float(adds))
        extremes = emulated(launch, tables, result, "double", adds=adds)
        np.testing.assert_allclose(result, wanted, rtol=1e-14)
        assert entries_gpu.extremes_of(extremes, reference.DOUBLE)[0] == result.max()
        return
    # In runs with gaps between them.
    size, gap = (4, 4) if k == 0 else (2048, 64)
    starts = tuple(n * (size + gap) for n in range([8, 8192, 4096][k] // size))
    where = np.concatenate([np.arange(start, start + size) for start in starts])
    lying = np.full(where[-1] + 1, float(adds) if k == 2 else np.nan)
    found = entries_gpu.in_place(launch, k, entries_gpu.PartRuns(size, starts))
    assert found is not None
    if k == 2:
        emulated(found, tables, lying, "double", adds=adds)
        np.testing.assert_allclose(lying[where], wanted, rtol=1e-14)
        return
    lying[where] = tables[k]
    tables[k] = lying
    result = np.full(4096, float(adds))
    emulated(found, tables, result, "double", adds=adds)
    np.testing.assert_allclose(result, wanted, rtol=1e-14)


@pytest.mark.usefixtures("far_launches")
def test_axes_that_are_no_four_neighbours_stay_in_their_panels() -> None:
    sizes = dict.fromkeys(range(8), 3)
    (launch,) = launches_of(contraction(range(8), [], [[*range(1, 8), 0]], sizes))
    assert not launch.is_apart
    assert launch.begins is not None
    # A table of a variable with four states does.
    (launch,) = launches_of(contraction(range(8), [], [[*range(1, 8), 0]], sizes | {0: 4}))
    assert launch.is_apart
    table, result = np.random.default_rng(0).random(4 * 3**7), np.empty(4 * 3**7)
    emulated(launch, [table], result, "double")
    np.testing.assert_array_equal(result, table.reshape(-1, 4).T.reshape(-1))


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[list[int], list[int], int, int]:
    """Sizes of axes of runs, their order in the table, vectors of a run, and shares."""
    sizes = draw(st.lists(st.integers(1, 4), max_size=4))
    order = draw(st.permutations(range(len(sizes))))
    return sizes, list(order), draw(st.integers(1, 600) | st.integers(500, 2000)), draw(st.integers(1, 5))


@given(exchanges(), st.booleans(), st.booleans())
@example(([], [], 1, 1), True, True)
@example(([2, 3], [1, 0], 257, 3), False, True)
@example(([2, 3], [1, 0], 1025, 3), False, True)
def test_an_exchange_is_a_copy(drawn: tuple[list[int], list[int], int, int], to_table: bool, bulk: bool) -> None:
    sizes, order, vectors, shares = drawn
    rng, bytes_ = np.random.default_rng(len(sizes)), 16 * vectors
    # Of each share a table whose axes lie in another order, in memory that is larger.
    whole = [np.full((*(sizes[k] for k in order), bytes_ + 16), 255, np.uint8) for _ in range(shares)]
    tables = [table[..., :bytes_].transpose(*np.argsort(order), len(order)) for table in whole]
    slot = np.full((shares, *sizes, bytes_), 255, np.uint8)
    pairs = list(zip(tables, slot, strict=True) if to_table else zip(slot, tables, strict=True))
    for _, source in pairs:
        source[...] = rng.integers(0, 255, source.shape)
    axes = [*zip(sizes, pairs[0][0].strides, pairs[0][1].strides, strict=False), (bytes_, 1, 1)]
    launch = entries_gpu.exchanged(axes, [(target.ctypes.data, source.ctypes.data) for target, source in pairs], bulk)
    assert launch is not None
    compiled = library("single")
    assert (launch.kernel == "exchange_runs") == (bulk and vectors >= entries_gpu.BULK_VECTORS)
    compiled.launch(launch.kernel.encode(), ctypes.c_void_p(launch.words.ctypes.data), launch.blocks, launch.threads)
    for target, source in pairs:
        np.testing.assert_array_equal(target, source)
    assert all((table[..., bytes_:] == 255).all() for table in whole)


@pytest.mark.gpu
@pytest.mark.parametrize("vectors", [1, 511, 512, 513, 2500, 5000])
@pytest.mark.parametrize(("runs", "shares"), [(1, 1), (3, 4), (700, 2)])
def test_an_exchange_on_a_gpu_is_a_copy(runs: int, shares: int, vectors: int) -> None:
    device = CudaDevice(0)
    # Of each share every other run, to places that lie together.
    source = np.arange(shares * runs * 4 * vectors, dtype=np.float64).reshape(shares, runs, 2, 2 * vectors)
    here, there = device.put(source), device.zeros((shares, runs, 2 * vectors), np.float64)
    width = 16 * vectors
    ends = [(address_of(there) + n * runs * width, address_of(here) + 2 * n * runs * width) for n in range(shares)]
    launch = entries_gpu.exchanged([(runs, width, 2 * width), (width, 1, 1)], ends, device.copies_in_bulk)
    assert launch is not None
    kernel = entries_gpu.KERNELS.function(device, launch.kernel, "single")
    with device.current():
        device.launch_kernel(kernel, (launch.blocks,), launch.threads, (as_struct(launch.words),))
    np.testing.assert_array_equal(device.get(there), source[:, :, 0])


@pytest.mark.parametrize(
    ("axes", "shares"),
    [
        ([(24, 1, 1)], [(0, 0)]),
        ([(2, 24, 32), (16, 1, 1)], [(0, 0)]),
        ([(16, 1, 1)], [(8, 0)]),
        ([(16, 1, 1)], [(0, 0)] * 17),
        ([(2, 16, 16)] * 13 + [(16, 1, 1)], [(0, 0)]),
        ([(1 << 29, 16, 16), (1 << 15, 1, 1)], [(0, 0)]),
    ],
)
def test_what_no_launch_exchanges(axes: Any, shares: Any) -> None:
    assert entries_gpu.exchanged(axes, shares) is None


@given(st.integers(1, 1 << 16), st.integers(1, 1 << 18), st.booleans())
@settings(max_examples=50)
@example(64, 18432, False)
@example(32, 1 << 15, True)
def test_every_launch_leaves_fewer_terms(kept: int, eliminated: int, near: bool) -> None:
    strides = Strides((1,), (kept,)) if near else Strides((eliminated,), (1,))
    launches = launches_of(Contraction((kept,), (eliminated,), (strides,)))
    terms = [eliminated * kept, *(launch.entries for launch in launches)]
    assert launches[-1].entries == kept
    # Partial sums have room for so many.
    assert all(launch.entries <= entries_gpu.PARTIAL_ENTRIES for launch in launches[:-1])
    assert math.prod(launch.near_terms * launch.far_terms for launch in launches) == eliminated
    # A single one may be a copy, where there is nothing to sum.
    assert len(launches) == 1 or all(one > other for one, other in itertools.pairwise(terms))


def test_some_terms_are_kept_where_entries_and_terms_are_of_middling_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries_gpu, "SCATTERED_WORK", 1 << 12)
    table = np.random.default_rng(7).random(96 * 441)
    what = Contraction((441,), (96,), (Strides((1,), (441,)),))
    assert [launch.entries for launch in launches_of(what)] == [441 * 12, 441]
    np.testing.assert_allclose(reduced(what, [table], "double")[0], table.reshape(96, 441).sum(axis=0), rtol=1e-13)


@pytest.mark.parametrize("algebra", ALGEBRAS)
def test_results_are_scaled_and_added_up(algebra: str) -> None:
    what = contraction([0], [1], [[0, 1]], {0: 3, 1: 5})
    (launch,) = launches_of(what)
    semiring = ALGEBRAS[algebra]
    table, out = np.arange(15, dtype=semiring.dtype), np.ones(3, semiring.dtype)
    extremes = emulated(launch, [table], out, algebra, scale=0.5, adds=True)
    sums = semiring.gather(semiring.combine(table, semiring.dtype.type(0.5)).reshape(3, 5).T, None)
    np.testing.assert_allclose(out, semiring.join(np.ones(3, semiring.dtype), sums), rtol=1e-15)
    assert entries_gpu.extremes_of(extremes, semiring)[0] == out.max()


def test_sums_of_two_logarithms() -> None:
    apart = np.concatenate([np.linspace(0, 45, 4000), [0, 1e-300, 1e-17, 39.9999, 40, 41, 745, 1e300, np.inf, np.inf]])
    one = np.random.default_rng(3).normal(size=apart.size)
    one[-1] = -np.inf
    with np.errstate(invalid="ignore"):
        table, out = np.where(np.isneginf(one), one, one - apart), one.copy()
    (launch,) = launches_of(contraction([0], [], [[0]], {0: apart.size}))
    for adds, to in ((table, out), (one, table.copy())):
        emulated(launch, [adds], to, "log", adds=True)
        np.testing.assert_allclose(to, np.logaddexp(one, table), rtol=0, atol=1e-15)


@pytest.mark.parametrize("algebra", ["single", "double"])
@pytest.mark.parametrize("entries", [3, 4])
def test_tables_are_read_by_the_power_of_two_of_their_lead(algebra: str, entries: int) -> None:
    dtype = ALGEBRAS[algebra].dtype
    (launch,) = launches_of(contraction([0], [], [[0]], {0: entries}))
    table, out = np.arange(1, 1 + entries, dtype=dtype), np.empty(entries, dtype)
    limits = np.finfo(dtype)
    for lead in (0, limits.tiny, 1e-9, 0.5, 0.75, 1, 3e7, limits.max, np.inf, np.nan):
        word = np.array([lead], dtype)
        emulated(launch, [table], out, algebra, lead=word)
        assert not np.isinf(out).any()
        np.testing.assert_array_equal(out, np.ldexp(table, entries_gpu.shift_of(word[0], ALGEBRAS[algebra])))
        if 1e-30 < lead < 1e30:
            assert 0.5 <= lead * 2.0 ** entries_gpu.shift_of(word[0], ALGEBRAS[algebra]) < 1


@pytest.mark.parametrize("algebra", ["log", "max"])
@pytest.mark.parametrize("entries", [3, 4])
def test_logarithms_are_read_less_their_lead(algebra: str, entries: int) -> None:
    (launch,) = launches_of(contraction([0], [], [[0]], {0: entries}))
    table, out = np.append(np.arange(1.0, entries), -np.inf), np.empty(entries)
    for lead in (-np.inf, -1e300, -700.5, -0.0, 3.0, 1e300, np.inf, np.nan):
        word = ranks_of(np.array([lead]), ALGEBRAS[algebra])
        emulated(launch, [table], out, algebra, lead=word)
        np.testing.assert_array_equal(out, table + entries_gpu.shift_of(lead, ALGEBRAS[algebra]))
    emulated(launch, [table], out, algebra, lead=np.zeros(1, np.uint64))
    np.testing.assert_array_equal(out, table)


# Sizes of kept axes, of eliminated ones, and their strides in the operands.
QUADS = {
    "run and pairs": ((64, 2, 2), (2,), [((0, 2, 1), (4,)), ((2, 1, 0), (128,))], ("RUN", "PAIRS")),
    "run": ((8, 16), (3,), [((16, 1), (128,)), ((0, 0), (1,))], ("RUN", "SAME")),
    "run that is not aligned": ((8, 16), (3,), [((16, 1), (129,)), ((1, 0), (8,))], ("APART", "SAME")),
    "three operands": ((4, 32, 4), (2,), [((128, 4, 1), (512,)), ((0, 1, 0), (32,)), ((0, 0, 1), (4,))], None),
    "panels": ((16, 4096), (2,), [((4096, 1), (65536,))], ("RUN",)),
    "no terms": ((32, 4), (), [((1, 0), ()), ((0, 1), ())], ("SAME", "RUN")),
}


@pytest.mark.parametrize("algebra", ALGEBRAS)
@pytest.mark.parametrize("name", QUADS)
def test_four_neighbouring_entries_at_once(name: str, algebra: str) -> None:
    kept, eliminated, strides, kinds = QUADS[name]
    what = Contraction(kept, eliminated, tuple(Strides(*each) for each in strides))
    (launch,) = launches_of(what)
    assert launch.name.startswith("reduce_quads")
    if kinds:
        assert [each[0] for each in launch.quads] == [getattr(entries_gpu, kind) for kind in kinds]
    rng = np.random.default_rng(2)
    tables = entries_of([rng.random(1 << 18) for _ in strides], algebra)
    wanted = reference.reduce(what, [table[:, None] for table in tables], ALGEBRAS[algebra])[:, 0]
    found, extremes = reduced(what, tables, algebra)
    np.testing.assert_allclose(found, wanted, rtol=ROUNDING[algebra], atol=ROUNDING[algebra])
    largest, least = entries_gpu.extremes_of(extremes, ALGEBRAS[algebra])
    assert largest == found.max()
    assert least == (1 if ALGEBRAS[algebra].logs else found.min())


def test_threads_take_what_lies_side_by_side() -> None:
    # Few entries of many terms: neighbouring threads take entries, or terms, whichever lie nearer to each other.
    sizes = dict.fromkeys(range(26), 2)
    first, _ = launches_of(contraction(range(13, 26), range(13), [range(26)], sizes))
    assert first.over_entries
    assert list(first.offsets[0].places[:4]) == [0, 1, 2, 3]
    (only,) = launches_of(contraction(range(13), range(13, 26), [range(26)], sizes))
    assert not only.over_entries
    # Or both, where the fastest axes are some of each.
    first, _ = launches_of(contraction([*range(9), 25], range(9, 25), [range(26), [3, 25]], sizes))
    assert list(first.offsets[0].places[:256]) == list(range(256))
    # Four entries that lie far apart for neighbouring threads are left to those that take them one by one.
    (scattered,) = launches_of(contraction(range(19, -1, -1), [], [range(20)], sizes))
    assert scattered.name == "reduce_entries_1"


def test_offsets_do_not_grow_with_the_tables() -> None:
    what = contraction(range(28), [28], [range(29), [3, 28]], dict.fromkeys(range(29), 2))
    (launch,) = launches_of(what)
    assert launch.entries == 1 << 28
    assert launch.nbytes < 2**21
    total = launches_of(contraction([], range(28), [range(28)], dict.fromkeys(range(28), 2)))
    assert [each.over_entries for each in total] == [True, True, False]
    assert sum(each.nbytes for each in total) < 2**22


@pytest.mark.parametrize("algebra", ALGEBRAS)
def test_no_operands_are_a_product_of_none(algebra: str) -> None:
    what = Contraction((5,), (3,), ())
    wanted = reference.reduce(what, [], ALGEBRAS[algebra])[:, 0]
    np.testing.assert_allclose(reduced(what, [], algebra)[0], wanted, rtol=ROUNDING[algebra])


def test_too_many_operands_are_an_error() -> None:
    with pytest.raises(OverflowError, match="takes 16"):
        launches_of(contraction([0], [], [[0]] * 17, {0: 2}))
