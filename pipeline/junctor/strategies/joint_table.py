"""Rows of a network that is so small that the table of all its states together is the fastest way to answer them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from junctor.evidence.batch import EvidenceBatch, Rows
from junctor.evidence.patterns import PatternGroup
from junctor.model.answers import Answers
from junctor.model.question import MARGINALS
from junctor.model.strategies import Strategy
from junctor.strategies.facts import Facts
from junctor.strategies.strategy import Allowance, MemoryUse, Offer, Price, Route, Run, Way


class JointTableRows(Way):
    """Sums over one table of all joint states."""

    name = Strategy.JOINT_TABLE
    supports = frozenset({MARGINALS})

    def refuses(self, facts: Facts) -> str | None:
        """Networks with many states have none."""
        if (table := facts.joint_table) is None:
            return "the network has too many joint states"
        if table.nbytes > facts.allowed:
            return f"the joint table takes {table.nbytes:,} bytes, allowed are {facts.allowed:,}"
        return None

    def offer(self, group: PatternGroup, batch: EvidenceBatch, facts: Facts) -> Offer | str:
        """A sum over all joint states for each state of each target."""
        if (why := self.refuses(facts)) is not None:
            return why
        assert facts.joint_table is not None
        if facts.joint_table.nbytes > facts.beside_answers(batch):
            return "the joint table does not fit beside the answers"
        return Offer(group, Price(row=facts.joint_seconds))

    def prepare(self, group: PatternGroup, uses: int, batch: EvidenceBatch, facts: Facts, room: Allowance) -> Route:
        """Nothing beside the table."""
        assert facts.joint_table is not None
        reserved = room.budget.reserved
        size = reserved + facts.joint_table.nbytes
        few = "few rows that differ" if group.copies else "few rows"
        reason = f"row by row: {few}, and few states of all variables together"
        use, operations = MemoryUse(facts.allowed, reserved, size, size), len(group.rows) * facts.joint_table.operations
        return Route(group, self.name, facts.reason(self.name, reason), use, operations=operations)

    def forecast(self, route: Route, batch: EvidenceBatch, facts: Facts, bound: int) -> Route:
        """By the entries of the table."""
        seconds = route.operations * facts.figures.numpy.operation + route.rows * facts.figures.files.row
        return replace(route, seconds=seconds)

    def answer(self, work: Sequence[Route], batch: EvidenceBatch, answers: Answers, run: Run) -> Rows:
        """Row by row."""
        table = run.facts.joint_table
        assert table is not None
        left = [table.answer(batch, route.group.rows, answers) for route in work]
        return left[0] if len(left) == 1 else np.concatenate(left)


WAY = JointTableRows()
