"""Cut plans of grids, the least memory that a plan can be cut for, and routes that cut every plan."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import pytest
from junctor.generate import grid
from junctor.model.strategies import Strategy
from junctor.out_of_core.memory_splits import ChunkRoute, MemoryLimits
from junctor.out_of_core.programs import is_slice
from junctor.planning.chunks import ChunkPlan, TooSmallError, chunk_plan
from junctor.planning.compile import Problem, compile_plan
from junctor.planning.plan import Plan
from junctor.planning.recompute import Drop, Waiting
from junctor.planning.shape import Pattern, shape_of
from junctor.strategies.chunk_cuts import ChunkCuts
from junctor.strategies.facts import Facts
from junctor_kernels.tables import reference

ENDLESS = 1 << 60


def cut_grid(rows: int, columns: int, working: int) -> ChunkPlan:
    """Cut the plan of a grid of mixed cardinalities."""
    network = grid(rows, columns, states=(2, 3), seed=rows)
    return chunk_plan(compile_plan(shape_of(network), Pattern(frozenset(), frozenset()), rows=1), working, 1 << 40, 0)


def least_working(plan: Plan) -> int:
    """The smallest working memory that a plan can be cut for."""
    working = 1
    while True:
        try:
            chunk_plan(plan, working, ENDLESS, 0)
            return working
        except TooSmallError as error:
            refused = error
        assert (refused.where, refused.allowed) == ("working", working)
        assert refused.needed > working
        working = refused.needed


def spilling(chunks: ChunkPlan) -> int:
    """The least memory for stored tables, where there is disk enough."""
    try:
        chunk_plan(chunks.plan, chunks.working, 0, ENDLESS)
    except TooSmallError as error:
        refused = error
    else:
        return 0
    assert refused.where == "memory"
    return refused.needed


def with_some_again(plan: Plan, picks: Sequence[int]) -> Plan:
    """Return a plan in which messages are made again, however short they wait; picks: numbers among those that wait."""
    for pick in picks:
        waiting = Waiting(plan, least=0)
        gaps = list(waiting.gaps())
        if gaps:
            table, _, end = gaps[pick % len(gaps)]
            plan = waiting.without(Drop(table, end))
    return plan


@contextmanager
def cut_for(
    working: int,
    disk: bool = False,
    scratch: int = 1 << 12,
    lean: bool = False,
    held: Collection[int] = (),
    again: Sequence[int] = (),
) -> Iterator[None]:
    """Let every row go in chunks: so many entries more than a task needs at the least, most tables on disk.

    held: variables that are held constant where they may be.
    again: as of `with_some_again`.
    """

    def chunk_route(
        cuts: ChunkCuts, pattern: Pattern, uses: int, algebra: reference.Algebra, free: int, _gpu: object = None
    ) -> ChunkRoute:
        shape, targets = cuts.facts.problem(pattern)
        slices = tuple(v for v in held if is_slice(Problem(shape, pattern), (v,)))
        pattern = Pattern(pattern.sliced.union(slices), pattern.weighted)
        # Of explanations there are max-marginals in chunks, which have the plans of posteriors.
        asked = None if lean or cuts.facts.explains else targets
        plan = with_some_again(compile_plan(shape, pattern, asked, rows=uses, lean=lean), again)
        chunks = chunk_plan(plan, least_working(plan) + working, ENDLESS, 0)
        if disk:
            chunks = chunk_plan(plan, chunks.working, spilling(chunks), ENDLESS)
        limits = MemoryLimits(free, None, ENDLESS, cuts.facts.spill_dir)
        return ChunkRoute(chunks, limits, algebra.dtype.itemsize, 0, 0, 0.0, scratch, slices=slices)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Facts, "forced", Strategy.CHUNKS)
        patch.setattr(ChunkCuts, "chunk_route", chunk_route)
        yield
