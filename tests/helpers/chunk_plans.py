"""The least memory that a plan can be cut for."""

from __future__ import annotations

from junctor.planning.chunks import ChunkPlan, TooSmallError, chunk_plan
from junctor.planning.plan import Plan

ENDLESS = 1 << 60


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
