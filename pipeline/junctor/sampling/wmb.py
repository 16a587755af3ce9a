"""Weighted mini-buckets: an upper bound on a sum of products, tightened by moving factors and weights.

Main function: `tightened`, called by `sampling.bounded`. The mini-buckets of a variable have weights w > 0 that sum to
1, and each is summed as (sum of f^(1/w))^w: by Hölder's inequality the product of these is no less than the sum of the
product (Liu and Ihler, Bounding the partition function using Hölder's inequality, 2011). All tables are natural
logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from junctor.sampling.mini_buckets import BucketPlan, MiniBucket, Scope

Floats = npt.NDArray[np.float64]

# Passes over all mini-buckets at most; the first one that lowers the logarithm of the bound by less is the last.
PASSES, LEAST_GAIN = 10, 0.01
# Least weight of a mini-bucket: its tables are divided by it.
LEAST_WEIGHT = 1e-3
# Least belief, of the largest, that a shift is computed from: shifts have to be finite.
LEAST_BELIEF = 1e-12


@dataclass(frozen=True, eq=False, slots=True)
class Weighted:
    """Tables and weights of mini-buckets.

    tables: of each mini-bucket the log of the product of its factors, an axis for each variable of its scope.
    weights: of each mini-bucket; those of a bucket sum to 1.
    """

    tables: Sequence[Floats]
    weights: Sequence[float]


@dataclass(frozen=True, eq=False, slots=True)
class BoundedElimination:
    """What an elimination has found.

    weighted: its mini-buckets, as they were moved on the way.
    conditionals: of each of them the log of the distribution of its first variable, given the others; -inf where these
        are impossible.
    bound: log of the upper bound; -inf where the sum is 0.
    """

    weighted: Weighted
    conditionals: Sequence[Floats]
    bound: float


def weighted_of(plan: BucketPlan, scopes: Sequence[Scope], logs: Sequence[Floats], cards: Sequence[int]) -> Weighted:
    """Return mini-buckets of equal weights.

    plan: the mini-buckets.
    scopes, logs: variables of each factor, and its logarithms, an axis for each of them.
    cards: number of states of every variable.
    """
    tables = []
    for mini in plan.minis:
        table = np.zeros([cards[v] for v in mini.scope])
        for factor in mini.factors:
            table += _spread(logs[factor], scopes[factor], mini.scope)
        tables.append(table)
    return Weighted(tables, [1.0 / len(bucket) for bucket in plan.buckets for _ in bucket])


def tightened(plan: BucketPlan, start: Weighted, passes: int = PASSES) -> BoundedElimination:
    """Return the elimination with the least bound that some passes find; every one of them has a bound that holds."""
    best, outer, step = eliminate(plan, start), None, 1.0
    for _ in range(passes if plan.split and np.isfinite(best.bound) else 0):
        found = eliminate(plan, best.weighted, outer, step)
        gain = best.bound - found.bound
        # All buckets move at once, which may be too far.
        step = step if gain > 0 else step / 2
        if gain > 0:
            best = found
        if 0 <= gain < LEAST_GAIN or not np.isfinite(best.bound):
            break
        outer = _outer_beliefs(plan, best)
    return best


def eliminate(
    plan: BucketPlan, weighted: Weighted, outer: Sequence[Floats] | None = None, step: float = 0.0
) -> BoundedElimination:
    """Eliminate all variables.

    plan, weighted: the mini-buckets.
    outer: of `_outer_beliefs` after an earlier elimination, None for none.
    step: how far factors and weights of the mini-buckets of a variable move towards each other; 0 for not at all.
    """
    tables, weights = list(weighted.tables), list(weighted.weights)
    messages: list[Floats] = []
    conditionals: list[Floats] = []
    for bucket in plan.buckets:
        products = [_product(plan, plan.minis[r], tables[r], messages) for r in bucket]
        if step and len(bucket) > 1:
            beliefs = [None if outer is None else outer[r] for r in bucket]
            scopes = [plan.minis[r].scope for r in bucket]
            shifts, shares = _moved(scopes, products, [weights[r] for r in bucket], beliefs, step)
            for r, shift, share in zip(bucket, shifts, shares, strict=True):
                tables[r], weights[r] = tables[r] + shift, share
            products = [product + shift for product, shift in zip(products, shifts, strict=True)]
        for r, product in zip(bucket, products, strict=True):
            message, conditional = _summed(product, weights[r])
            messages.append(message)
            conditionals.append(conditional)
    bound = sum(float(messages[r]) for r, taker in enumerate(plan.takers) if taker < 0)
    return BoundedElimination(Weighted(tables, weights), conditionals, bound)


def _spread(table: Floats, scope: Scope, whole: Scope) -> Floats:
    """Return a table with an axis for each variable of a larger scope, of length 1 for those that it has not."""
    sizes = dict(zip(scope, table.shape, strict=True))
    ordered = table.transpose([scope.index(v) for v in whole if v in sizes])
    return ordered.reshape([sizes.get(v, 1) for v in whole])


def _product(plan: BucketPlan, mini: MiniBucket, table: Floats, messages: Sequence[Floats]) -> Floats:
    """Return the factors of a mini-bucket times the messages that it takes."""
    if not mini.messages:
        return table
    product = table.copy()
    for taken in mini.messages:
        product += _spread(messages[taken], plan.minis[taken].scope[1:], mini.scope)
    return product


def _summed(product: Floats, weight: float) -> tuple[Floats, Floats]:
    """Return the log of the power sum over the first axis, and that of the distribution along it."""
    scaled = product / weight
    top = scaled.max(axis=0, keepdims=True)
    # Where all is impossible: the difference of two infinities is no number.
    top[top == -np.inf] = 0.0
    with np.errstate(divide="ignore"):
        total = np.log(np.exp(scaled - top).sum(axis=0, keepdims=True)) + top
    message = weight * total[0]
    total[total == -np.inf] = 0.0
    scaled -= total
    return message, scaled


def _moved(
    scopes: Sequence[Scope],
    products: Sequence[Floats],
    weights: Sequence[float],
    outer: Sequence[Floats | None],
    step: float,
) -> tuple[list[Floats], list[float]]:
    """Return what moves between the mini-buckets of a variable, logarithms that sum to 0, and new weights.

    At the least bound all of them believe the same of the variables that they share, and the entropies of the variable
    are equal, by which the bound changes with the weights (Liu and Ihler 2011).
    """
    shared = set.intersection(*map(set, scopes))
    beliefs, entropies, impossible = [], [], []
    for scope, product, weight, belief in zip(scopes, products, weights, outer, strict=True):
        others = tuple(axis for axis, v in enumerate(scope) if v not in shared)
        joint, entropy = _belief(product, weight, belief)
        marginal = joint.sum(axis=others)
        beliefs.append(np.log(np.maximum(marginal, LEAST_BELIEF * marginal.max())))
        impossible.append(product.max(axis=others) == -np.inf)
        entropies.append(entropy)
    mean = sum(weight * belief for weight, belief in zip(weights, beliefs, strict=True))
    # What one of them rules out, all of them do: the product is 0 there.
    ruled_out = np.where(np.logical_or.reduce(impossible), -np.inf, 0.0)
    of_shared = tuple(v for v in scopes[0] if v in shared)
    shifts = [
        _spread(step * weight * (mean - belief) + ruled_out, of_shared, scope)
        for scope, weight, belief in zip(scopes, weights, beliefs, strict=True)
    ]
    return shifts, _new_weights(np.array(weights), np.array(entropies), step)


def _belief(product: Floats, weight: float, outer: Floats | None) -> tuple[Floats, float]:
    """Return the distribution of the variables of a mini-bucket, and the entropy of the first, given the others."""
    message, conditional = _summed(product, weight)
    if outer is None:
        # Before any other variable is eliminated: as if nothing else were known.
        top = message.max()
        outer = np.exp((message - (top if top > -np.inf else 0.0)) / weight)
    joint = np.exp(conditional) * outer
    total = float(joint.sum())
    if total == 0.0:
        return np.ones_like(joint), 0.0
    joint /= total
    # 0 log 0 is 0.
    entropy = -float((joint * np.where(joint > 0.0, conditional, 0.0)).sum())
    return joint, entropy


def _new_weights(weights: Floats, entropies: Floats, step: float) -> list[float]:
    """Return weights after a step of exponentiated gradient: less where the entropy is large."""
    moved = weights * np.exp(-step * (entropies - weights @ entropies))
    moved = np.maximum(moved / moved.sum(), LEAST_WEIGHT)
    shares: list[float] = (moved / moved.sum()).tolist()
    return shares


def _outer_beliefs(plan: BucketPlan, found: BoundedElimination) -> list[Floats]:
    """Return the distribution of all but the first variable of each mini-bucket, by the mini-bucket of its message."""
    joints: dict[int, Floats] = {}
    outer: list[Floats] = [np.ones(())] * len(plan.minis)
    for r in reversed(range(len(plan.minis))):
        mini, taker = plan.minis[r], plan.takers[r]
        if taker >= 0:
            inner = set(mini.scope[1:])
            others = tuple(axis for axis, v in enumerate(plan.minis[taker].scope) if v not in inner)
            outer[r] = joints[taker].sum(axis=others)
        joints[r] = np.exp(found.conditionals[r]) * outer[r]
    return outer
