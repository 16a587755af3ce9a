"""Contractions of a row's own tree against sums over all entries, for tables of any shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junctor_kernels.cpu.interpreted import as_python
from junctor_kernels.row_trees import tiles
from junctor_kernels.row_trees.contract import contract
from junctor_kernels.row_trees.inner_loops import loops
from junctor_kernels.row_trees.maxima import maximise
from junctor_kernels.row_trees.plan import BEHIND
from junctor_kernels.row_trees.propagate import work
from junctor_kernels.row_trees.tiles import by_tiles
from junctor_kernels.row_trees.walk import COLUMNS, MOST, ZERO, next_entry, write_axes


@loops
def _contract(memory: Any, groups: int, way: int, largest: bool, one: Any, other: Any, out: Any) -> None:
    room = memory.panel, memory.places
    if way >= 0:
        by_tiles(memory.arena, memory.axes, memory.counters, groups, (one, other, out), way, largest, *room)
    elif largest:
        maximise(memory, groups, one, other, out)
    else:
        contract(memory, groups, one, other, out)


@loops
def _walk(scopes: Any, sizes: Any, axes: Any, counters: Any, places: Any) -> int:
    """Write the offsets of all entries in three tables, whose scopes are parts of one array; return the axes."""
    lengths = sizes[-3:]
    one, other = (np.int64(0), lengths[0]), (lengths[0], lengths[1])
    groups = write_axes(scopes, sizes, axes, one, other, (lengths[0] + lengths[1], lengths[2]))
    a = b = c = ZERO
    for e in range(places.shape[0]):
        places[e, 0], places[e, 1], places[e, 2] = a, b, c
        a, b, c, _ = next_entry(axes, counters, 0, groups, a, b, c)
    return int(groups)


# Which of both operands and the result have an axis.
KINDS = [(1, 1, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1)]


@st.composite
def contractions(draw: st.DrawFn) -> list[tuple[int, tuple[int, int, int]]]:
    """Draw axes, innermost first: entries, and the tables that have them."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5))
    # Neighbours of one kind are one axis.
    kinds = [kind for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]
    return [(draw(st.integers(2, 21 if i == 0 else 9)), kind) for i, kind in enumerate(kinds)]


@given(contractions(), st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("zeros", [0.0, 0.6])
def test_any_axes_against_numpy(zeros: float, axes: list[tuple[int, tuple[int, int, int]]], seed: int) -> None:
    check(zeros, axes, seed)


@pytest.mark.parametrize("zeros", [0.0, 0.6])
@pytest.mark.parametrize("inner", range(7))
def test_large_tables_whose_axes_are_brought_into_another_order(inner: int, zeros: float) -> None:
    # Two axes that all tables have, among others, with each kind inside; more than fits the cache at once.
    for size in (9, 20):
        axes = [(size, KINDS[inner]), (7, (1, 1, 1)), (5, (1, 0, 1)), (6, (1, 1, 0)), (5, (1, 1, 1)), (3, (0, 1, 1))]
        check(zeros, axes[1:] if inner == 0 else axes, inner)


@pytest.mark.parametrize("way", range(2, 6))
def test_tiles_of_vectors_that_only_seem_to_lie_in_order(way: int) -> None:
    # Fewer than eight lanes, the first and the last seven places apart, and lanes that the operand has several times.
    check(0.0, [(7, (1, 1, 1)), (2, (1, 0, 1)), (3, (1, 1, 0)), (2, (0, 1, 1))], 1, (way,))
    check(0.0, [(7, (1, 1, 0)), (2, (1, 0, 1)), (3, (0, 1, 1))], 1, (way,))
    check(0.0, [(2, (1, 0, 1)), (2, (0, 0, 1)), (3, (1, 1, 0)), (2, (1, 0, 1)), (3, (0, 1, 1))], 1, (way,))


@pytest.mark.parametrize("way", [2, 3])
def test_more_rows_than_fit_a_panel(way: int) -> None:
    check(0.0, [(9, (1, 0, 1)), (1000, (1, 1, 0)), (71, (0, 1, 1)), (2, (1, 1, 1))], 1, (way,))


def test_python_itself_contracts_alike() -> None:
    def run(*args: Any) -> None:
        with np.errstate(all="ignore"):
            as_python(_contract.py_func)(*args)

    for inner in range(7):
        axes = [(5, KINDS[inner]), (3, (1, 1, 1)), (3, (1, 0, 1)), (2, (1, 1, 0)), (4, (0, 1, 1))]
        check(0.3, axes[1:] if inner == 0 else axes, inner, run=run)
    check(0.0, [(21, (1, 1, 1)), (3, (1, 1, 0))], 1, run=run)


def ways_of(axes: list[tuple[int, tuple[int, int, int]]]) -> list[int]:
    """Return -1 for the chosen way, and the ways with tiles that are possible."""
    in_place = [tiles.DIRECT, tiles.DIRECT + 1] if axes[0][1] == (1, 1, 1) else []
    terms = math.prod(size for size, kind in axes if not kind[2])
    return [-1, tiles.COPIED, tiles.COPIED + 1, *in_place] if terms <= tiles.MOST_TERMS else [-1]


def check(
    zeros: float,
    axes: list[tuple[int, tuple[int, int, int]]],
    seed: int,
    ways: tuple[int, ...] | None = None,
    run: Callable[..., None] = _contract,
) -> None:
    """Compare with NumPy.

    axes: innermost first, entries and the tables that have them.
    ways: those of these that are possible; all by default.
    run: `_contract`, compiled or not.
    """
    for way in ways_of(axes):
        if ways is None or way in ways:
            _check(zeros, axes, seed, way, False, run)
            # Without tiles, axes that maxima are taken over have to be the outermost ones.
            if way >= 0 or sorted(axes, key=lambda axis: not axis[1][2]) == axes:
                _check(zeros, axes, seed, way, True, run)


def _check(
    zeros: float,
    axes: list[tuple[int, tuple[int, int, int]]],
    seed: int,
    way: int,
    largest: bool,
    run: Callable[..., None],
) -> None:
    random = np.random.default_rng(seed)
    entries = [math.prod(size for size, kind in axes if kind[table]) for table in range(3)]
    places = np.cumsum([1, entries[0] + BEHIND, entries[1] + BEHIND]).tolist()
    memory = work(places[2] + entries[2] + 2 * BEHIND, 1)
    memory.arena[:] = random.random(memory.arena.size)
    memory.arena[random.random(memory.arena.size) < zeros] = 0.0
    # What lies behind a table is read, and must not count.
    for place, count in zip(places, entries, strict=True):
        memory.arena[place + count : place + count + BEHIND] = np.nan
    before = memory.arena.copy()
    strides = [1, 1, 1]
    for i, (size, kind) in enumerate(axes):
        memory.axes[i] = size, *(stride * has for stride, has in zip(strides, kind, strict=True))
        strides = [stride * (size if has else 1) for stride, has in zip(strides, kind, strict=True)]
    run(memory, len(axes), way, largest, *map(np.uint64, places))
    # With an axis of one entry where a table has none.
    full = [[size if kind[table] else 1 for size, kind in reversed(axes)] for table in range(3)]
    one, other = (before[places[t] : places[t] + entries[t]].reshape(full[t]) for t in range(2))
    summed = tuple(i for i, (_, kind) in enumerate(reversed(axes)) if not kind[2])
    products = np.multiply(one, other)
    results = products.max(summed, keepdims=True) if largest else products.sum(summed, keepdims=True)
    expected = np.broadcast_to(results, full[2]).reshape(-1)
    end = places[2] + entries[2]
    np.testing.assert_allclose(memory.arena[places[2] : end], expected, rtol=0 if largest else 1e-13, atol=0)
    # Nothing else has changed, but for what a vector reaches behind the result.
    np.testing.assert_array_equal(memory.arena[: places[2]], before[: places[2]])
    np.testing.assert_array_equal(memory.arena[end + BEHIND :], before[end + BEHIND :])


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(KINDS)), max_size=5))
def test_walks_visit_all_entries_in_order(axes: list[tuple[int, tuple[int, int, int]]]) -> None:
    # Positions are numbered from the outermost axis on.
    scopes = [[position for position, (_, kind) in enumerate(axes) if kind[table]] for table in range(3)]
    sizes = [size for size, _ in axes]
    entries = math.prod(sizes)
    found = np.full((entries, 3), -1)
    written = np.zeros((MOST, COLUMNS), dtype=np.uint64)
    joined, lengths = np.array([at for scope in scopes for at in scope], dtype=np.int64), list(map(len, scopes))
    counters = np.zeros(MOST, dtype=np.uint64)
    groups = _walk(joined, np.array([*sizes, *lengths]), written, counters, found)
    for table, scope in enumerate(scopes):
        own = np.arange(math.prod(sizes[at] for at in scope)).reshape(
            [sizes[at] if at in scope else 1 for at in range(len(sizes))]
        )
        np.testing.assert_array_equal(found[:, table], np.broadcast_to(own, sizes).reshape(-1))
    # Neighbours in the same tables are one axis, and there is always one.
    kinds = [kind for _, kind in axes]
    assert groups == max(1, sum(i == 0 or kind != kinds[i - 1] for i, kind in enumerate(kinds)))
    assert not counters.any()
