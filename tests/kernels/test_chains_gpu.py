"""Chains of eliminations on a GPU against the same eliminations one by one; the kernels compiled for the CPU."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from emulation.entries import ALGEBRAS, library, ranks_of, reduced
from hypothesis import given, settings
from hypothesis import strategies as st
from junctor_kernels.gpu import chains as chains_gpu
from junctor_kernels.gpu import entries as entries_gpu
from junctor_kernels.gpu.chains import Elimination, chain_of, is_stage, launch_of
from junctor_kernels.gpu.entries import EntryLaunch, PartRuns, record
from junctor_kernels.tables import reference
from junctor_kernels.tables.axes import contraction

# Axes of the large table, of the result, and the pairs (leaves, comes): as sweeps over grids have them, and others.
ROWS = tuple(range(10))
SHAPES = {
    "last leave, first come": (ROWS, (12, 11, 10, *ROWS[:-3]), ((9, 10), (8, 11), (7, 12))),
    "last leave, last come": (ROWS, (*ROWS[:-3], 10, 11, 12), ((9, 10), (8, 11), (7, 12))),
    "first leave, last come": (ROWS, (*ROWS[3:], 10, 11, 12), ((0, 10), (1, 11), (2, 12))),
    "first leave, first come": (ROWS, (10, 11, 12, *ROWS[3:]), ((0, 10), (1, 11), (2, 12))),
    "two": (ROWS, (11, 10, *ROWS[:-2]), ((9, 10), (8, 11))),
    "two in another order": (ROWS, (10, 11, *ROWS[:-2]), ((8, 10), (9, 11))),
}
SIZES = dict.fromkeys(range(13), 2)


def stages_of(shape: str, rng: np.random.Generator) -> list[Elimination]:
    """Return the eliminations of a shape, each with a factor over its axes and others of the large table."""
    table, out, pairs = SHAPES[shape]
    come = [c for _, c in pairs]
    found = []
    for n, (leaves, comes) in enumerate(pairs):
        after = [v for v in table if v != leaves]
        # Those that come lie as they do in the end, behind the last stage.
        front = out[0] in come
        after = [comes, *after] if front else [*after, comes]
        if n == len(pairs) - 1:
            after = list(out)
        others = rng.choice([v for v in after if v != comes], rng.integers(0, 4), replace=False).tolist()
        found.append(Elimination(tuple(rng.permutation([leaves, comes, *others]).tolist()), tuple(table), tuple(after)))
        table = tuple(after)
    return found


def one_by_one(stages: list[Elimination], tables: list[Any], algebra: str) -> tuple[Any, list[Any]]:
    """Return the result, and the extremes of every stage, of launches for one elimination each."""
    large, extremes = tables[0], []
    for stage, factor in zip(stages, tables[1:], strict=True):
        what = contraction(stage.out, stage.leaves, [stage.factor, stage.table], SIZES)
        large, found = reduced(what, [factor, large], algebra)
        extremes.append(found)
    return large, extremes


def together(launch: EntryLaunch, tables: list[Any], algebra: str, lead: Any = None) -> tuple[Any, Any]:
    """Run a chain; returns the result and the extremes of its stages. lead: largest entry that the large table had."""
    out = np.full_like(tables[0], np.nan)
    extremes = np.zeros((launch.stages, 4), dtype=f"u{ALGEBRAS[algebra].dtype.itemsize}")
    operands = [
        (
            *(each.ctypes.data for each in (table, o.panels, o.places, o.far, o.near)),
            entries_gpu.bits_of(ALGEBRAS[algebra].one),
            lead.ctypes.data if lead is not None and k == 0 else 0,
            False,
        )
        for k, (table, o) in enumerate(zip([*tables, out], launch.offsets, strict=True))
    ]
    words = record(launch, 0, extremes.ctypes.data, False, operands)
    name = launch.name.encode()
    library(algebra).launch(name, ctypes.c_void_p(words.ctypes.data), launch.blocks, entries_gpu.THREADS)
    return out, extremes


@pytest.mark.parametrize("algebra", ALGEBRAS)
@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=3)
@given(seed=st.integers(0, 999))
def test_a_chain_is_its_eliminations(shape: str, algebra: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    stages = stages_of(shape, rng)
    assert all(is_stage(stage, SIZES) for stage in stages)
    chain = chain_of(stages, SIZES)
    assert chain is not None
    launch, semiring = launch_of(chain), ALGEBRAS[algebra]
    numbers = [rng.random(1 << len(scope)) for scope in (ROWS, *(each.factor for each in stages))]
    numbers[0][rng.random(1024) < seed / 999] = 0
    with np.errstate(divide="ignore"):
        tables = [(np.log(each) if semiring.logs else each).astype(semiring.dtype) for each in numbers]
    wanted, wanted_extremes = one_by_one(stages, tables, algebra)
    found, extremes = together(launch, tables, algebra)
    rounding = {"rtol": 8 * np.finfo(semiring.dtype).eps, "atol": 1e-14 if semiring.logs else 0}
    np.testing.assert_allclose(found, wanted, **rounding)
    for these, those in zip(extremes[:, :2], wanted_extremes, strict=True):
        found_here, wanted_here = (entries_gpu.extremes_of(each, semiring) for each in (these, those))
        np.testing.assert_allclose(found_here, wanted_here, **rounding)
    assert entries_gpu.extremes_of(extremes[-1, :2], semiring)[0] == found.max()
    lead = np.array([37.0], semiring.dtype)
    shift = semiring.dtype.type(-37.0 if semiring.logs else 1 / 64)
    less = together(launch, tables, algebra, ranks_of(lead, semiring))[0]
    np.testing.assert_allclose(less, semiring.combine(found, shift), rtol=1e-6, atol=1e-12 if semiring.logs else 0)


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=4)
@given(data=st.data())
def test_logarithms_of_any_range(shape: str, data: st.DataObject) -> None:
    # Plain numbers inside of a chain would lose most of these.
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    stages = stages_of(shape, rng)
    spread, factors = data.draw(st.sampled_from([1.0, 300.0, 700.0, 1e5])), data.draw(st.sampled_from([1.0, 25, 800]))
    tables = [spread * rng.standard_normal(1024)]
    tables += [factors * rng.standard_normal(1 << len(each.factor)) for each in stages]
    for table in tables:
        table[rng.random(len(table)) < data.draw(st.sampled_from([0.0, 0.3]))] = -np.inf
    if data.draw(st.booleans()):
        # A large number only meets a factor of zero.
        tables[0][:512] += 1e4
    chain = chain_of(stages, SIZES)
    assert chain is not None
    found, extremes = together(launch_of(chain), tables, "log")
    wanted, wanted_extremes = one_by_one(stages, tables, "log")
    np.testing.assert_allclose(found, wanted, rtol=1e-14, atol=1e-13)
    for these, those in zip(extremes[:, :2], wanted_extremes, strict=True):
        largest, wanted_largest = (entries_gpu.extremes_of(each, ALGEBRAS["log"])[0] for each in (these, those))
        np.testing.assert_allclose(largest, wanted_largest, rtol=1e-14, atol=1e-13)


@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_the_reference(shape: str) -> None:
    rng = np.random.default_rng(1)
    stages = stages_of(shape, rng)
    tables = [rng.random(1 << len(scope)) for scope in (ROWS, *(each.factor for each in stages))]
    scopes = [ROWS, *(each.factor for each in stages)]
    leave = [stage.leaves[0] for stage in stages]
    what = contraction(stages[-1].out, leave, scopes, SIZES)
    wanted = reference.reduce(what, [table[:, None] for table in tables], reference.DOUBLE)[:, 0]
    chain = chain_of(stages, SIZES)
    assert chain is not None
    np.testing.assert_allclose(together(launch_of(chain), tables, "double")[0], wanted, rtol=1e-13)


def test_how_numbers_lie() -> None:
    """What is side by side: entries of neighbouring threads, or the states of the axes that come and go."""
    kinds = {}
    for shape in SHAPES:
        chain = chain_of(stages_of(shape, np.random.default_rng(0)), SIZES)
        assert chain is not None
        launch = launch_of(chain)
        kinds[shape] = launch.quads[0][0], launch.quads[-1][0]
    first, last, run = entries_gpu.TILE_RUN, entries_gpu.TILE_LAST_FIRST, entries_gpu.RUN
    assert kinds == {
        "last leave, first come": (first, run),
        "last leave, last come": (first, last),
        "first leave, last come": (run, last),
        "first leave, first come": (run, run),
        "two": (first, run),
        "two in another order": (last, run),
    }


@pytest.mark.parametrize("k", [0, 4])
def test_tables_in_runs(k: int) -> None:
    rng = np.random.default_rng(2)
    stages = stages_of("last leave, first come", rng)
    chain = chain_of(stages, SIZES)
    assert chain is not None
    launch = launch_of(chain)
    tables = [rng.random(1 << len(scope)) for scope in (ROWS, *(each.factor for each in stages))]
    wanted, _ = together(launch, tables, "double")
    # Two runs with a gap between them.
    starts = (0, 512 + 64)
    found = chains_gpu.in_place(launch, k, PartRuns(512, starts))
    assert found is not None
    where = np.concatenate([np.arange(start, start + 512) for start in starts])
    apart = np.full(1024 + 64, np.nan)
    if k == 0:
        apart[where] = tables[0]
        result, _ = together(found, [apart, *tables[1:]], "double")
        np.testing.assert_array_equal(result[:1024], wanted)
    else:
        large = np.concatenate([tables[0], np.zeros(64)])
        result, _ = together(found, [large, *tables[1:]], "double")
        np.testing.assert_array_equal(result[where], wanted)
    # Where numbers that a thread takes at once are apart, a copy comes first.
    assert chains_gpu.in_place(launch, k, PartRuns(2, tuple(range(0, 4096, 4)))) is None


def test_what_is_no_chain() -> None:
    stages = stages_of("last leave, first come", np.random.default_rng(0))
    sizes = SIZES | {9: 3}
    assert not is_stage(stages[0], sizes)
    # What comes and leaves again.
    back = Elimination((10, 13), stages[0].out, tuple(v if v != 10 else 13 for v in stages[0].out))
    assert chain_of([stages[0], back], SIZES | {13: 2}) is None
    # Results whose neighbours lie far apart in the table.
    table, sizes = tuple(range(20)), dict.fromkeys(range(40), 2)
    one = Elimination((19, 30), table, (30, *table[:-1]))
    assert chain_of([one, Elimination((18, 31), one.out, (31, *one.out[:-1]))], sizes) is not None
    assert chain_of([one, Elimination((18, 31), one.out, (31, *one.out[-2::-1]))], sizes) is None
