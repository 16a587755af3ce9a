"""Passes that are under way at once: each after those that it needs, and no more stored than in the plan."""

from __future__ import annotations

import random

from helpers.chunk_plans import cut_grid
from hypothesis import given
from hypothesis import strategies as st
from junctor.placement.pass_order import PassOrder
from junctor.planning.chunks import ChunkPlan


def follow(chunks: ChunkPlan, most_open: int, seed: int) -> tuple[list[int], int, int]:
    """Return the order in which passes begin, how many were under way at once, and the most entries stored."""
    passes, rng, order = chunks.passes, random.Random(seed), PassOrder(chunks)
    made = {table: n for n, each in enumerate(passes) for table in each.stores}
    there = {table for table, (first, _) in chunks.lifetimes().items() if first < 0}
    begun: list[int] = []
    under_way: list[int] = []
    done: set[int] = set()
    together, most = 0, 0
    while order:
        while len(under_way) < most_open and (n := order.begin(lambda n: True)) is not None:
            assert {made[table] for table in passes[n].loads if table in made} <= done
            assert all(table in there for table in passes[n].loads)
            begun.append(n)
            under_way.append(n)
            there.update(passes[n].stores)
            together = max(together, len(under_way))
            most = max(most, sum(chunks.plan.tables[table].entries for table in there))
        n = under_way.pop(rng.randrange(len(under_way)))
        there.difference_update(order.end(n))
        done.add(n)
    assert not there
    return begun, together, most


@given(st.integers(3, 6), st.integers(3, 6), st.integers(40, 400), st.integers(1, 3), st.integers(0, 9))
def test_every_pass_once_and_no_more_than_in_the_plan(
    rows: int, columns: int, working: int, most_open: int, seed: int
) -> None:
    chunks = cut_grid(rows, columns, working)
    begun, together, most = follow(chunks, most_open, seed)
    assert sorted(begun) == list(range(len(chunks.passes)))
    assert together <= most_open
    assert most <= chunks.peak(on_disk=False)
    if most_open == 1:
        assert begun == sorted(begun)


def test_passes_overlap() -> None:
    begun, together, _ = follow(cut_grid(6, 6, 60), 2, 0)
    assert together == 2
    assert begun != sorted(begun)


def test_a_pass_that_may_not_begin_waits() -> None:
    order = PassOrder(cut_grid(6, 6, 60))
    assert order.begin(lambda n: n > 0) == 1
    assert order.begin(lambda n: True) == 0
