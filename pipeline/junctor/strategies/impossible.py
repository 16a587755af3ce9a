"""Rows that the zeros of the network alone make impossible: found before anything is propagated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from junctor.evidence.batch import EvidenceBatch, Rows
from junctor.evidence.patterns import PatternGroup
from junctor.model.answers import Answers
from junctor.model.strategies import Strategy
from junctor.strategies.facts import Facts
from junctor.strategies.strategy import Allowance, MemoryUse, Offer, Route, Run, Way


class ImpossibleRows(Way):
    """Only written: which rows they are was found by the choice."""

    name = Strategy.IMPOSSIBLE

    def refuses(self, facts: Facts) -> str | None:
        """Return why nobody can ask for it."""
        return "it answers nothing but rows that are impossible, which are found in any case"

    def offer(self, group: PatternGroup, batch: EvidenceBatch, facts: Facts) -> Offer | str:
        """Not asked."""
        return "which rows are impossible is found before"

    def prepare(self, group: PatternGroup, uses: int, batch: EvidenceBatch, facts: Facts, room: Allowance) -> Route:
        """Nothing is needed."""
        reserved = room.budget.reserved
        memory = MemoryUse(facts.allowed, reserved, reserved, reserved)
        return Route(group, self.name, "impossible by the zeros of the network alone", memory)

    def forecast(self, route: Route, batch: EvidenceBatch, facts: Facts, bound: int) -> Route:
        """By the rows."""
        return replace(route, seconds=route.rows * facts.figures.files.row)

    def answer(self, work: Sequence[Route], batch: EvidenceBatch, answers: Answers, run: Run) -> Rows:
        """Write that they are impossible."""
        # Imported where some are: with it comes compiled code.
        from junctor.backends.impossible_answers import leave_impossible

        sizes = np.array([run.facts.network.cardinalities[v] for v in answers.targets], dtype=np.int64)
        for route in work:
            leave_impossible(route.group.rows, answers, sizes, run.facts.threads)
        return np.zeros(0, dtype=np.int64)


WAY = ImpossibleRows()
