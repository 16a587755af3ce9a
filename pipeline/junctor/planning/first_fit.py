"""Where the per-case tables of a plan lie in one piece of memory: lifetimes are known, so places are reused."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from junctor.planning.plan import Free, Plan, Step


def arena(plan: Plan, steps: Iterable[Step] | None = None) -> tuple[dict[int, int], int]:
    """Return the first row of every per-case table and the rows in all; first fit, tables never overlap while alive.

    steps: those of the plan in another order, if not its own.
    """
    place: dict[int, int] = {}
    alive: list[tuple[int, int]] = []
    rows = 0
    for step in plan.steps if steps is None else steps:
        if isinstance(step, Free):
            at = place[step.table]
            alive.remove((at, at + plan.tables[step.table].entries))
        elif plan.tables[step.out].per_case:
            entries = plan.tables[step.out].entries
            place[step.out] = first_gap(alive, entries)
            bisect.insort(alive, (place[step.out], place[step.out] + entries))
            rows = max(rows, place[step.out] + entries)
    return place, rows


def first_gap(alive: Iterable[tuple[int, int]], entries: int) -> int:
    """Return where so many entries fit first; alive: begins and ends, in order."""
    start = 0
    for begin, end in alive:
        if begin - start >= entries:
            return start
        start = max(start, end)
    return start
