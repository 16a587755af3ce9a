"""Rows that are sampled: because estimates are asked for, or because exact answers exceed their budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from junctor.evidence.batch import EvidenceBatch, Rows
from junctor.evidence.patterns import PatternGroup
from junctor.model.answers import Answers, SampledAnswers
from junctor.model.errors import BudgetError
from junctor.model.question import MARGINALS
from junctor.model.strategies import Strategy
from junctor.strategies.facts import Facts
from junctor.strategies.strategy import Allowance, MemoryUse, Offer, Route, Run, Way


class SampledRows(Way):
    """Estimates with errors, by the sampler that the query names; which rows they are was found by the choice."""

    name = Strategy.SAMPLES
    supports = frozenset({MARGINALS})
    together = True

    def refuses(self, facts: Facts) -> str | None:
        """Estimates are no exact answers."""
        return "its answers are not exact: --method asks for it" if facts.query.method == "exact" else None

    def offer(self, group: PatternGroup, batch: EvidenceBatch, facts: Facts) -> Offer | str:
        """Not asked: no price says what an exact answer is worth."""
        return self.refuses(facts) or "exact answers are within their budget"

    def prepare(self, group: PatternGroup, uses: int, batch: EvidenceBatch, facts: Facts, room: Allowance) -> Route:
        """Tables, and the importance function of a row; more where threads have rows of their own."""
        needed, refused = room.budget.reserved, None
        try:
            needed += facts.sampler().least
        except BudgetError as error:
            refused = error
        asked = facts.query.method == "sampling"
        reason = "samples: asked for" if asked else "samples: exact answers exceed their budget"
        memory = MemoryUse(facts.allowed, room.budget.reserved, needed, needed)
        return Route(group, self.name, reason, memory, refused=refused)

    def forecast(self, route: Route, batch: EvidenceBatch, facts: Facts, bound: int) -> Route:
        """By the samples of the rows; coarse."""
        return replace(route, seconds=facts.sampler().seconds(route.rows))

    def answer(self, work: Sequence[Route], batch: EvidenceBatch, answers: Answers, run: Run) -> Rows:
        """All rows in one call, which threads share; each has random numbers of its own."""
        assert isinstance(answers, SampledAnswers)
        rows = np.sort(np.concatenate([route.group.rows for route in work]))
        run.facts.sampler().answer(batch, rows, answers, run.first_row)
        return np.zeros(0, dtype=np.int64)


WAY = SampledRows()
