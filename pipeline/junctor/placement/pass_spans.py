"""Passes of a cut plan that go side by side on GPUs: those of branches that do not need each other.

Some passes are bound by what comes from elsewhere, others by what the devices compute; side by side they take less.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from junctor.placement.fusion import share_fused
from junctor.planning.chunks import ChunkPlan

# Passes at a time. More of them gain little, and keep more tables.
ABREAST = 2


def side_by_side(chunks: ChunkPlan, seconds: Sequence[float]) -> ChunkPlan:
    """Return the plan with up to two passes at a time, in the order in which they begin.

    A pass begins when those have ended that it needs. Among those that may, the one comes first behind which most is
    left to be done (list scheduling by the critical path: Graham 1969, Kwok and Ahmad 1999).
    chunks: the plan, one pass after the other.
    seconds: of each pass alone, in any unit, above 0.
    """
    readers: list[list[int]] = [[] for _ in chunks.needs]
    for n, needed in enumerate(chunks.needs):
        for other in needed:
            readers[other].append(n)
    left = list(seconds)
    for n in reversed(range(len(left))):
        left[n] += max((left[reader] for reader in readers[n]), default=0.0)
    ready = [(-left[n], n) for n, needed in enumerate(chunks.needs) if not needed]
    heapq.heapify(ready)
    waiting, time = [len(needed) for needed in chunks.needs], 0.0
    under_way: list[tuple[float, int]] = []
    spans: dict[int, tuple[float, float]] = {}
    while ready or under_way:
        while ready and len(under_way) < ABREAST:
            _, n = heapq.heappop(ready)
            spans[n] = time, time + seconds[n]
            heapq.heappush(under_way, (time + seconds[n], n))
        time, ended = heapq.heappop(under_way)
        for n in readers[ended]:
            waiting[n] -= 1
            if not waiting[n]:
                heapq.heappush(ready, (-left[n], n))
    # A dict keeps the order in which passes begin.
    found = replace(chunks, passes=tuple(chunks.passes[n] for n in spans), spans=tuple(spans.values()))
    share_fused(chunks, found)
    return found
