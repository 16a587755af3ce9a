"""Explanations of cases in chunks: read off max-marginals where these are unambiguous, and decided where they are not.

A sweep up and down in an algebra of maxima gives every variable its max-marginals: for each state the probability of
the most probable assignment that has it. Where one state is above all others by more than rounding, every most
probable explanation has it, and the variable is *unambiguous*. All others are *ambiguous*: their states are tied
[Koller and Friedman 2009, chapter 13]. Given the unambiguous ones, ambiguous variables of different components of the
graph have nothing to do with each other, so that one of each may be decided at a time (`decisions`): it takes the best
of its states, and the others follow from what is left (`engine.explanations`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables.reference import Algebra

from junctor.backends.numpy import LOSS_TOLERANCE, BlockOutcome, EvidenceBlock
from junctor.model.network import Network
from junctor.planning.plan import Likelihood, Plan, Potential, Reduce, Slice

# Times so many roundings two states have to differ: those of both, and of what divides them.
MARGIN = 4


@dataclass(frozen=True, eq=False, slots=True)
class MaxMarginals:
    """What a propagation by maxima tells of the explanation of a case.

    log_value: natural log of the largest probability.
    unambiguous: variable -> the state that it has in every most probable explanation, evidence included.
    ambiguous: variable -> the best state of those with several that are as probable up to rounding.
    rounding: share by which the probabilities of two states differ at the most by rounding.
    """

    log_value: float
    unambiguous: dict[int, int]
    ambiguous: dict[int, int]
    rounding: float


def read_max_marginals(outcome: BlockOutcome, block: EvidenceBlock, rounding: float) -> MaxMarginals:
    """Return what the propagation of a case in an algebra of maxima tells.

    outcome: its posteriors are max-marginals times a factor.
    block: the evidence of the case.
    rounding: as of `rounding_of`.
    """
    unambiguous = {v: int(states[0]) for v, states in block.states.items()}
    ambiguous: dict[int, int] = {}
    for v, marginals in outcome.posteriors.items():
        numbers = marginals[:, 0].astype(np.float64)
        # The first of equals, as everywhere.
        best = int(numbers.argmax())
        alone = int(np.count_nonzero(numbers >= numbers[best] * (1 - rounding))) == 1
        (unambiguous if alone else ambiguous)[v] = best
    return MaxMarginals(float(outcome.log_value[0]), unambiguous, ambiguous, rounding)


def rounding_of(plan: Plan, network: Network, block: EvidenceBlock, log_value: float, algebra: Algebra) -> float:
    """Return the share by which rounding and losses may have moved max-marginals against each other.

    Each is a product of all factors and likelihoods: a rounding for each of them, and one for each multiplication.
    """
    leaves = sum(isinstance(step, Potential | Slice | Likelihood) for step in plan.steps)
    each = MARGIN * max(1, leaves) * float(np.finfo(algebra.dtype).eps)
    if not algebra.logs:
        return each + MARGIN * LOSS_TOLERANCE[algebra.name]
    # Logarithms of products are rounded as their size is: at the most that of all factors together.
    tables = (*(factor.table for factor in network.factors), *block.likelihoods.values())
    largest = sum(math.log(most) for table in tables if (most := float(table.max())) > 0)
    return each * (1 + abs(largest) + abs(largest - log_value))


def log_probability(network: Network, states: Mapping[int, int], block: EvidenceBlock) -> float:
    """Return the natural log of the probability of an assignment and the evidence, from the factors alone.

    states: of every variable.
    block: the evidence of the case.
    """
    numbers = [float(factor.table[tuple(states[v] for v in factor.scope)]) for factor in network.factors]
    numbers += [float(block.likelihoods[v][states[v], 0]) for v in block.likelihoods]
    if not all(numbers):
        return -math.inf
    return math.fsum(map(math.log, numbers))


def decisions(plan: Plan, ambiguous: Mapping[int, int], order: Iterable[int]) -> dict[int, int]:
    """Return for one ambiguous variable of each component its state: the first in an order.

    plan: its network has the components.
    ambiguous: variable -> its best state.
    order: of variables; those that it leaves out come last.
    """
    neighbours: dict[int, set[int]] = {v: set() for v in ambiguous}
    for scope in plan.shape.scopes:
        members = [v for v in scope if v in ambiguous]
        for v in members:
            neighbours[v].update(members)
    decided: dict[int, int] = {}
    left = dict.fromkeys(v for v in (*order, *sorted(ambiguous)) if v in ambiguous)
    while left:
        first = next(iter(left))
        decided[first] = ambiguous[first]
        waiting = [first]
        left.pop(first)
        while waiting:
            reached = [other for other in neighbours[waiting.pop()] if other in left]
            waiting += reached
            for other in reached:
                left.pop(other, None)
    return decided


def traced(plan: Plan) -> Sequence[int]:
    """Return the variables of a plan for explanations in the order of its traceback: the separator of the root first.

    Given that, the rest falls apart, and of equally probable explanations it is the one that this plan finds.
    """
    steps = (plan.steps[at] for at in plan.traceback)
    return [v for step in steps if isinstance(step, Reduce) for v in step.eliminated]


def as_outcome(states: Mapping[int, int], log_value: float) -> BlockOutcome:
    """Return an explanation of one case as backends return it."""
    columns: dict[int, npt.NDArray[np.int64]] = {v: np.array([state]) for v, state in states.items()}
    return BlockOutcome(np.array([log_value]), {}, columns, np.zeros(1, dtype=np.bool_))
