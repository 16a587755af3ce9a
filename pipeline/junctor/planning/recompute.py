"""Messages that are made again in place of waiting: checkpoints of a sweep, for plans whose messages exceed a memory.

A message up waits from the collection to the distribution for the marginals that are read off it. Where that takes
too much, it is dropped, and its steps are repeated from what is still there right before it is read again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from junctor.planning.plan import Free, Plan, Reduce, Step

# Steps that a message waits for at the least, to be dropped; as a pass of a cut plan has.
LEAST_WAIT = 48
# Share of the peak that a message takes at the least, to be dropped.
LEAST_SHARE = 1 / 32


class Drop(NamedTuple):
    """A message that is made again.

    table: its number in the plan that the drop is made in.
    step: number of the reduction that reads it next; from there on a new table stands for it.
    """

    table: int
    step: int


class MadeAgain(NamedTuple):
    """Messages of a plan that are made again.

    messages: how many.
    operations: that they take.
    """

    messages: int
    operations: int


class Waiting:
    """Messages of a plan that wait. least: reductions that they wait for at the least."""

    def __init__(self, plan: Plan, least: int = LEAST_WAIT) -> None:
        self.plan, self._least = plan, least
        self._steps = [step for step in plan.steps if isinstance(step, Reduce)]
        self._made = {step.out: n for n, step in enumerate(self._steps)}
        self._reads: dict[int, list[int]] = {table: [] for table in self._made}
        for n, step in enumerate(self._steps):
            for table in dict.fromkeys(step.operands):
                if table in self._reads:
                    self._reads[table].append(n)

    def profile(self) -> list[int]:
        """Return the entries of messages that wait, at each reduction."""
        change = [0] * (len(self._steps) + 1)
        for table, begin, end in self.gaps():
            change[begin + 1] += self.plan.tables[table].entries
            change[end] -= self.plan.tables[table].entries
        return list(itertools.accumulate(change))

    def gaps(self) -> Iterator[tuple[int, int, int]]:
        """Yield the messages that wait, with the reductions that use them before and after."""
        for table, reads in self._reads.items():
            uses = [self._made[table], *reads]
            for begin, end in itertools.pairwise(uses):
                if end - begin > self._least:
                    yield table, begin, end

    def best_drop(self) -> Drop | None:
        """Return the message that is made again with the fewest operations for the entries that the peak loses."""
        profile = self.profile()
        peak, least = profile.index(max(profile)), LEAST_SHARE * max(profile)
        found: list[tuple[float, Drop]] = []
        for table, begin, end in self.gaps():
            entries = self.plan.tables[table].entries
            if begin < peak < end and entries > least:
                found.append((sum(map(self.plan.work, self.again(Drop(table, end)))) / entries, Drop(table, end)))
        return min(found, default=(0.0, None))[1]

    def again(self, drop: Drop) -> list[Reduce]:
        """Return the reductions that make a dropped message again, in order: from what is there at that time."""
        found: dict[int, Reduce] = {}
        # Not by recursion: a sweep may have more steps than Python has frames.
        waiting = [drop.table]
        while waiting:
            step = self._steps[self._made[waiting[-1]]]
            missing = [
                table
                for table in step.operands
                if table in self._made and table not in found and not self._is_there(table, drop)
            ]
            if missing:
                waiting += missing
            else:
                found.setdefault(waiting.pop(), step)
        return list(found.values())

    def may_have(self, drop: Drop) -> bool:
        """Return True if a drop is of a message that waits."""
        return any((table, end) == drop for table, _, end in self.gaps())

    def _is_there(self, table: int, drop: Drop) -> bool:
        """Return True if a table has been made and is read later than a dropped one."""
        reads = self._reads[table]
        return table != drop.table and self._made[table] < drop.step and bool(reads) and reads[-1] >= drop.step

    def without(self, drop: Drop) -> Plan:
        """Return the plan in which a message is made again."""
        plan, tables = self.plan, list(self.plan.tables)
        names: dict[int, int] = {}
        repeated: list[Step] = []
        for again in self.again(drop):
            names[again.out] = len(tables)
            tables.append(tables[again.out])
            operands = tuple(names.get(table, table) for table in again.operands)
            repeated.append(replace(again, out=names[again.out], operands=operands))
        steps, count = list[Step](), 0
        for step in plan.steps:
            if isinstance(step, Reduce):
                steps += repeated if count == drop.step else []
                steps.append(self._renamed(step, drop.table, names[drop.table]) if count >= drop.step else step)
                count += 1
            elif not isinstance(step, Free):
                steps.append(step)
        return replace(plan, tables=tuple(tables), steps=tuple(steps))

    def _renamed(self, step: Reduce, table: int, name: int) -> Reduce:
        if table not in step.operands:
            return step
        return replace(step, operands=tuple(name if operand == table else operand for operand in step.operands))


def with_drops(plan: Plan, drops: Sequence[Drop], least: int = LEAST_WAIT) -> Plan:
    """Return a plan with some drops, one after the other; raises ValueError for those that it cannot have.

    least: as of `Waiting`.
    """
    for drop in drops:
        waiting = Waiting(plan, least)
        if not waiting.may_have(drop):
            raise ValueError("not a message that waits")
        plan = waiting.without(drop)
    return plan


def made_again(plan: Plan) -> MadeAgain:
    """Return what a plan makes again."""
    again = originals(plan)
    operations = (plan.work(step) for step in plan.steps if isinstance(step, Reduce) and step.out in again)
    return MadeAgain(len(again), sum(operations))


def originals(plan: Plan) -> dict[int, int]:
    """Return for each table that a plan makes again the one that was made first."""
    first: dict[tuple[object, ...], int] = {}
    names: dict[int, int] = {}
    for step in plan.steps:
        if isinstance(step, Reduce):
            operands = tuple(names.get(table, table) for table in step.operands)
            name = first.setdefault((plan.tables[step.out].scope, step.eliminated, operands), step.out)
            if name != step.out:
                names[step.out] = name
    return names
