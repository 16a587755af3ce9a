"""First-fit placement: where tables with known lifetimes lie in one piece of memory, entries or bytes."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from junctor.planning.plan import Free, Plan, Step

# Bytes: tables on devices and in pinned memory begin at multiples of it, as whole vectors and copies need.
ALIGNED = 256

Key = TypeVar("Key", bound=Hashable)


def first_fit(
    lifetimes: Mapping[Key, tuple[int, int]], sizes: Mapping[Key, int], align: int = 1
) -> tuple[dict[Key, int], int]:
    """Return the offset of every piece and the size in all; pieces alive at the same time do not overlap.

    lifetimes: first and last moment of each piece. Pieces are placed in order of their first moments; those that begin
    together in the order given.
    sizes: of the pieces, in units of memory.
    align: offsets are multiples of it.
    """
    ends: list[tuple[int, int, int]] = []
    gaps = _Gaps()
    offsets: dict[Key, int] = {}
    for key, (first, last) in sorted(lifetimes.items(), key=lambda item: item[1][0]):
        # Pieces whose last moment is `first` are still read then.
        while ends and ends[0][0] < first:
            _, start, end = heapq.heappop(ends)
            gaps.free(start, end)
        size = aligned(sizes[key], align)
        start = offsets[key] = gaps.take(size)
        heapq.heappush(ends, (last, start, start + size))
    return offsets, gaps.total


class _Gaps:
    """Free memory between pieces, far fewer gaps than pieces; `total`: the end of the highest piece so far."""

    def __init__(self) -> None:
        self.total = 0
        # In ascending order; what follows the last piece is not among them.
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._top = 0

    def take(self, size: int) -> int:
        """Return the first offset where a piece fits; it is no longer free."""
        for i, (start, end) in enumerate(zip(self._starts, self._ends, strict=True)):
            if end - start >= size:
                if end - start == size:
                    del self._starts[i], self._ends[i]
                else:
                    self._starts[i] = start + size
                return start
        start = self._top
        self._top += size
        self.total = max(self.total, self._top)
        return start

    def free(self, start: int, end: int) -> None:
        """Free a piece; gaps that meet become one."""
        if start == end:
            return
        i = bisect.bisect(self._starts, start)
        if i < len(self._starts) and self._starts[i] == end:
            end = self._ends[i]
            del self._starts[i], self._ends[i]
        if i and self._ends[i - 1] == start:
            i -= 1
            start = self._starts[i]
            del self._starts[i], self._ends[i]
        if end == self._top:
            self._top = start
        else:
            self._starts.insert(i, start)
            self._ends.insert(i, end)


def side_by_side(sizes: Mapping[Key, int], align: int = ALIGNED) -> tuple[dict[Key, int], int]:
    """Return the offset of every piece and the size in all; pieces lie in the order given, all alive together."""
    return first_fit(dict.fromkeys(sizes, (0, 0)), sizes, align)


def arena(plan: Plan, steps: Iterable[Step] | None = None) -> tuple[dict[int, int], int]:
    """Return the first row of every per-case table and the rows in all.

    steps: those of the plan in another order, if not its own.
    """
    order = list(plan.steps if steps is None else steps)
    lives: dict[int, tuple[int, int]] = {}
    for n, step in enumerate(order):
        if isinstance(step, Free):
            lives[step.table] = (lives[step.table][0], n)
        elif plan.tables[step.out].per_case:
            lives[step.out] = (n, len(order))
    return first_fit(lives, {table: plan.tables[table].entries for table in lives})


def first_gap(taken: Iterable[tuple[int, int]], size: int) -> int:
    """Return the first offset where a piece fits.

    taken: begins and ends of other pieces, in order of their begins.
    size: of the piece.
    """
    start = 0
    for begin, end in taken:
        if begin - start >= size:
            return start
        start = max(start, end)
    return start


def aligned(size: int, align: int = ALIGNED) -> int:
    """Return a size made up to a multiple of `align`."""
    return -(-size // align) * align
