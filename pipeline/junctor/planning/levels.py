"""Launch levels of a plan: steps of a level are independent, so that one launch on a GPU does all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from junctor.planning.plan import Free, Likelihood, Plan, Slice, Step


@dataclass(frozen=True, slots=True)
class LaunchLevels:
    """Levels of the per-case tables of a plan.

    made: table -> the level that makes it.
    read: table -> the last level that reads it.
    """

    made: dict[int, int]
    read: dict[int, int]

    @property
    def count(self) -> int:
        """Number of levels; posteriors and totals are read off a table one level after it is made."""
        return max(self.made.values(), default=-1) + 2

    def in_order(self, plan: Plan) -> Iterator[Step]:
        """Yield the steps of per-case tables level by level.

        Memory is released behind the last level that reads it; an explanation is traced back through all tables.
        """
        members: list[list[Step]] = [[] for _ in range(self.count)]
        for step in plan.steps:
            if not isinstance(step, Free) and step.out in self.made:
                members[self.made[step.out]].append(step)
        for table, level in () if plan.traceback else self.read.items():
            members[level].append(Free(table))
        for steps in members:
            yield from steps


def stages_of(plan: Plan) -> LaunchLevels:
    """Return levels: a message as early as its operands allow, evidence just before it is needed."""
    made: dict[int, int] = {}
    read: dict[int, int] = {}
    first: dict[int, int] = {}
    for step in plan.reductions(per_case=True):
        # Evidence counts as level 0 here: its own level follows below.
        made[step.out] = 1 + max((made.get(operand, 0) for operand in step.operands), default=0)
        for operand in step.operands:
            read[operand] = max(read.get(operand, 0), made[step.out])
            first[operand] = min(first.get(operand, made[step.out]), made[step.out])
    for table in (step.out for step in plan.steps if isinstance(step, Slice | Likelihood)):
        made[table] = first.get(table, 1) - 1
    for _, table in plan.marginals:
        if table in made:
            # Posteriors are read one launch later, when the table is complete.
            read[table] = max(read.get(table, 0), made[table] + 1)
    return LaunchLevels(made, {table: max(read.get(table, 0), level) for table, level in made.items()})
