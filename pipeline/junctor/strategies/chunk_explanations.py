"""Explanations of rows whose plan exceeds the memory: max-marginals in chunks, and ties in one piece.

Main class: ChunkExplainer, made by the engine. Unambiguous variables become evidence, which cuts the network: the rest
usually fits the memory, and the backends for plans in one piece explain it. Where it does not, variables are decided,
one of each component, and the rest is propagated again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from junctor_kernels.tables.reference import Algebra

from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.evidence.batch import EvidenceBatch, SoftEvidence
from junctor.model.network import Network
from junctor.out_of_core.explanations import (
    MaxMarginals,
    decisions,
    log_probability,
    read_max_marginals,
    rounding_of,
    traced,
)
from junctor.planning.plan import Plan
from junctor.strategies.strategy import Route

# All states of a variable are as good as the best, as far as that is known.
EVERYTHING = 1.0


@dataclass(frozen=True, slots=True)
class ChunkExplainer:
    """Finds explanations of cases that were propagated in chunks.

    network: of all of them.
    route: returns how a row is answered; raises BudgetError.
    propagate: propagates a row in chunks, in an algebra; returns its evidence and what was found.
    in_one_piece: returns the states of all variables in an explanation of a row that fits the memory.
    plan: returns the plan for explanations of a row.
    """

    network: Network
    route: Callable[[EvidenceBatch], Route]
    propagate: Callable[[Route, EvidenceBatch, Algebra], tuple[EvidenceBlock, BlockOutcome]]
    in_one_piece: Callable[[Route, EvidenceBatch], dict[int, int]]
    plan: Callable[[Route], Plan]

    def explain(
        self, plan: Plan, block: EvidenceBlock, outcome: BlockOutcome, algebra: Algebra
    ) -> tuple[dict[int, int], float] | None:
        """Return a most probable explanation of a case and its log probability; None if a wider format has to find it.

        plan: of its propagation.
        block: its evidence.
        outcome: of a propagation in an algebra of maxima, not doubtful and not impossible.
        algebra: of that; only logarithms decide between states that are as probable up to rounding.
        """
        rounding = rounding_of(plan, self.network, block, float(outcome.log_value[0]), algebra)
        found = read_max_marginals(outcome, block, rounding)
        states = self._completed(found, block, algebra, cautious=False)
        if states is None:
            return None
        value = log_probability(self.network, states, block)
        if value >= found.log_value - rounding:
            return states, value
        if not algebra.logs:
            return None
        # More rounding than there can be: nothing counts as unambiguous then but what is decided.
        found = read_max_marginals(outcome, block, EVERYTHING)
        states = self._completed(found, block, algebra, cautious=True)
        assert states is not None
        return states, log_probability(self.network, states, block)

    def _completed(
        self, found: MaxMarginals, block: EvidenceBlock, algebra: Algebra, cautious: bool
    ) -> dict[int, int] | None:
        """Return the states of all variables; None where numbers that are not logarithms would have to decide."""
        known, ambiguous, is_decided = found.unambiguous, found.ambiguous, False
        while ambiguous:
            batch = _batch_of(known, ambiguous, block)
            route = self.route(batch)
            if route.chunks is None:
                return known | self.in_one_piece(route, batch)
            if not algebra.logs:
                return None
            if is_decided:
                here, outcome = self.propagate(route, batch, algebra)
                rounding = EVERYTHING if cautious else found.rounding
                more = read_max_marginals(outcome, here, rounding)
                known, ambiguous = more.unambiguous, more.ambiguous
            else:
                plan = self.plan(route)
                decided = decisions(plan, ambiguous, traced(plan))
                known = known | decided
                ambiguous = {v: state for v, state in ambiguous.items() if v not in decided}
            is_decided = not is_decided
        return known


def _batch_of(known: Mapping[int, int], ambiguous: Mapping[int, int], block: EvidenceBlock) -> EvidenceBatch:
    """Return a row of evidence: what is known, and the likelihoods of ambiguous variables."""
    states = {v: np.array([state], np.int32) for v, state in known.items()}
    likelihoods = {v: block.likelihoods[v] for v in block.likelihoods if v in ambiguous}
    row = np.zeros(1, np.int64)
    soft = {v: SoftEvidence(row, values.T.copy()) for v, values in likelihoods.items() if (values != 1).any()}
    return EvidenceBatch(1, states, soft)
