"""First-fit placement: where tables with known lifetimes lie in one piece of memory, entries or bytes."""

from __future__ import annotations

import bisect
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
    alive: list[tuple[int, int]] = []
    ends: list[tuple[int, int, int]] = []
    offsets: dict[Key, int] = {}
    total = taken = 0
    for key, (first, last) in sorted(lifetimes.items(), key=lambda item: item[1][0]):
        # Pieces whose last moment is `first` are still read then.
        while ends and ends[0][0] < first:
            _, start, end = ends.pop(0)
            alive.remove((start, end))
            taken -= end - start
        size = aligned(sizes[key], align)
        # Without a gap the search would pass over all pieces, of which there may be thousands.
        start = alive[-1][1] if alive and alive[-1][1] == taken else first_gap(alive, size)
        offsets[key] = start
        bisect.insort(alive, (start, start + size))
        bisect.insort(ends, (last, start, start + size))
        taken += size
        total = max(total, start + size)
    return offsets, total


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
