"""Samples from weighted mini-buckets, and their weights as shares of the upper bound.

Main class: BoundedProposal; called by `sampling.bounded`. Variables are drawn from the last eliminated to the first,
each from the mixture of what its mini-buckets say, by their weights w: q = sum of w b. The weight of a sample is the
product of its factors over its chance; with U the bound it is U times, for each variable, the product of b^w over the
sum of w b, which is at most 1 (Liu, Fisher and Ihler, Probabilistic variational bounds for graphical models, 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from junctor_kernels.sampling.layout import Sums

from junctor.sampling.mini_buckets import BucketPlan, Scope
from junctor.sampling.wmb import BoundedElimination, Floats

States = npt.NDArray[np.unsignedinteger]

# Variables whose samples are counted at a time: their numbers stay in the cache.
COUNTED = 64


@dataclass(frozen=True, eq=False, slots=True)
class Conditional:
    """What a mini-bucket says of its variable.

    given: variables drawn before, the slowest first.
    table: float64 [states, rows], probability of each state; where there are several mini-buckets, their logarithms.
    weight: of the mini-bucket.
    """

    given: Scope
    table: Floats
    weight: float


@dataclass(frozen=True, eq=False, slots=True)
class BoundedProposal:
    """A distribution to draw from.

    variables: in the order in which they are drawn; samples have a row for each.
    cards: number of their states.
    conditionals: of each of them.
    """

    variables: Scope
    cards: tuple[int, ...]
    conditionals: Sequence[Sequence[Conditional]]

    def draw(self, count: int, uniforms: Callable[[], Floats]) -> tuple[States, Floats]:
        """Return samples, [variables, count], and the logs of their weights as shares of the bound, at most 0.

        count: number of samples.
        uniforms: returns numbers from 0 on and below 1, float64 [count], for the next variable.
        """
        row = {v: n for n, v in enumerate(self.variables)}
        # Few bytes, since networks may have many variables.
        kind = np.min_scalar_type(max(self.cards, default=1) - 1)
        states, logs = np.empty((len(self.variables), count), dtype=kind), np.zeros(count)
        for n, parts in enumerate(self.conditionals):
            said = [self._said(part, states, row) for part in parts]
            mixed = said[0] if len(parts) == 1 else _mixed(parts, said)
            states[n] = _chosen(mixed, uniforms())
            if len(parts) > 1:
                logs += _share(parts, said, mixed, states[n])
        # Above 0 by rounding alone.
        return states, np.minimum(logs, 0.0)

    def _said(self, part: Conditional, states: States, row: Mapping[int, int]) -> list[Floats]:
        """Return what a mini-bucket says of each state, for all samples."""
        if not part.given:
            return [np.full(states.shape[1], number) for number in part.table[:, 0].tolist()]
        first, *others = part.given
        at = states[row[first]].astype(np.int64)
        for v in others:
            at *= self.cards[row[v]]
            at += states[row[v]]
        return [numbers.take(at) for numbers in part.table]


def proposal_of(plan: BucketPlan, found: BoundedElimination, cards: Sequence[int]) -> BoundedProposal:
    """Return the distribution that goes with a bound.

    plan, found: the mini-buckets.
    cards: number of states of every variable.
    """
    buckets = list(reversed(plan.buckets))
    variables = tuple(plan.minis[bucket[0]].scope[0] for bucket in buckets)
    conditionals = [[_conditional(plan, found, r, len(bucket) > 1) for r in bucket] for bucket in buckets]
    return BoundedProposal(variables, tuple(cards[v] for v in variables), conditionals)


def _conditional(plan: BucketPlan, found: BoundedElimination, r: int, logs: bool) -> Conditional:
    scope, table = plan.minis[r].scope, found.conditionals[r]
    table = table.reshape(len(table), -1).copy()
    # Where those before are impossible anything may be drawn: the weight is 0 already.
    table[:, (table == -np.inf).all(axis=0)] = -np.log(len(table))
    return Conditional(scope[1:], table if logs else np.exp(table), found.weighted.weights[r])


def _mixed(parts: Sequence[Conditional], said: Sequence[Sequence[Floats]]) -> list[Floats]:
    """Return the mixture of what mini-buckets say, for each state."""
    mixed: list[Floats] = [np.zeros_like(numbers) for numbers in said[0]]
    for part, states in zip(parts, said, strict=True):
        for total, numbers in zip(mixed, states, strict=True):
            total += part.weight * np.exp(numbers)
    return mixed


def _chosen(chances: Sequence[Floats], uniforms: Floats) -> npt.NDArray[np.int64]:
    """Return the state that each uniform number chooses; chances: of each state, summing to 1 but for rounding."""
    # Of the sum as it is: a state without a chance must not be left over for the largest numbers.
    below = uniforms * sum(chances[1:], start=chances[0])
    chosen = np.zeros(len(uniforms), dtype=np.int64)
    reached = np.zeros_like(uniforms)
    for numbers in chances[:-1]:
        reached += numbers
        chosen += below >= reached
    return chosen


def _share(
    parts: Sequence[Conditional],
    said: Sequence[Sequence[Floats]],
    mixed: Sequence[Floats],
    chosen: npt.NDArray[np.unsignedinteger],
) -> Floats:
    """Return the log of the product of b^w over the sum of w b, of the states that were chosen."""
    share: Floats = sum(
        (part.weight * _of(states, chosen) for part, states in zip(parts, said, strict=True)),
        start=np.zeros(len(chosen)),
    )
    chances = _of(mixed, chosen)
    # A state without a chance, which no number chooses, weighs nothing.
    return np.where(chances > 0.0, share - np.log(np.where(chances > 0.0, chances, 1.0)), -np.inf)


def _of(numbers: Sequence[Floats], chosen: States) -> Floats:
    """Return the number of the state that was chosen, for each sample."""
    found = numbers[0]
    for state in range(1, len(numbers)):
        found = np.where(chosen == state, numbers[state], found)
    return found


def sums_of(states: States, logs: Floats, cards: Sequence[int]) -> Sums:
    """Return the sums over samples, in shares of the bound; slots are the states of the variables, one after another.

    states, logs: of `BoundedProposal.draw`.
    cards: number of states of each variable.
    """
    top, count = float(logs.max()), logs.size
    starts = np.cumsum([0, *cards])
    slots = np.zeros((int(starts[-1]), 2))
    if top == -np.inf:
        return Sums(top, slots, np.zeros(2), count, 0, 0.0)
    weights = np.exp(logs - top)
    squares, sizes = weights * weights, np.array(cards)
    for first in range(0, len(cards), COUNTED):
        for state in range(max(cards[first : first + COUNTED])):
            # For all variables that have the state at once.
            has = first + np.flatnonzero(sizes[first : first + COUNTED] > state)
            here = (states[has] == state).astype(np.float64)
            for column, numbers in enumerate((weights, squares)):
                # Not by a product of matrices, whose digits may depend on threads.
                slots[starts[has] + state, column] = np.einsum("vn,n->v", here, numbers)
    total = np.array([weights.sum(), squares.sum()])
    return Sums(top, slots, total, count, int(np.count_nonzero(weights)), 1.0)
