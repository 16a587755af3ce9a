"""Intervals that hold with a stated probability, from sums over weights that have a bound.

Main functions: `log_bounds` of P(e) and `posterior_intervals`; called by `sampling.bounded`. Empirical Bernstein bounds
(Maurer and Pontil, theorem 4, 2009): of n independent numbers from a range r with sample variance v, the mean is no
further than root(2 v ln(2/d) / n) + 7 r ln(2/d) / (3 (n - 1)) on one side of the expectation, but with probability d.
Sums are in shares of the bound, times exp(-shift): the range of a weight is exp(-shift) there.
"""

from __future__ import annotations

import math

import numpy as np
from junctor_kernels.sampling.layout import Floats, Sums

# Exponents beyond leave the doubles.
MOST_LOG = 700.0
# Part of the probability of an error below that goes to Markov's inequality, by which a mean of weights exceeds k times
# its expectation with probability 1/k at most: it says something where the bound is far above all weights.
MARKOV_PART = 0.1


def log_bounds(sums: Sums, bound: float, doubt: float) -> tuple[float, float]:
    """Return the interval of log P(e).

    sums: over samples, one of which has a weight above 0.
    bound: log of the upper bound, which is certain.
    doubt: probability that the interval does not hold.
    """
    mean = _mean(sums.total[0], sums)
    variance = _variance(sums.total[1], mean, sums)
    above, below = doubt / 2, doubt / 2 * (1 - MARKOV_PART)
    upper = mean + _distance(variance, sums, above)
    lower = mean - _distance(variance, sums, below)
    markov = math.log(mean) + math.log(doubt / 2 * MARKOV_PART)
    lowest = max(math.log(lower), markov) if lower > 0 else markov
    return bound + sums.shift + lowest, min(bound, bound + sums.shift + math.log(upper))


def posterior_intervals(sums: Sums, doubt: float) -> tuple[Floats, Floats]:
    """Return lower and upper ends for each slot.

    sums: over samples, one of which has a weight above 0.
    doubt: probability that an interval does not hold, each by itself.

    A posterior p is the number at which w (1[x = s] - p) has the expectation 0; its range is that of w. The interval
    has all p at which the mean is within the Bernstein bound, the roots of a quadratic.
    """
    count = sums.drawn
    logs = math.log(4 / doubt)
    far, square = 7 * _range(sums) * logs / (3 * (count - 1)), 2 * logs / count
    here, whole = sums.slots[:, 0] / count, _mean(sums.total[0], sums)
    of_here = np.maximum(sums.slots[:, 1] - count * here**2, 0.0) / (count - 1)
    of_both = (sums.slots[:, 1] - count * here * whole) / (count - 1)
    # Not above 0 where the mean of the weights itself may be 0: then nothing is known.
    leading = whole**2 - square * _variance(sums.total[1], whole, sums)
    if not leading > 0 or not math.isfinite(far):
        return np.zeros(len(here)), np.ones(len(here))

    def root(edge: Floats, sign: float) -> Floats:
        middle = whole * edge - square * of_both
        discriminant = middle**2 - leading * (edge**2 - square * of_here)
        found: Floats = (middle + sign * np.sqrt(np.maximum(discriminant, 0.0))) / leading
        return np.clip(found, 0.0, 1.0)

    return root(here - far, -1.0), root(here + far, 1.0)


def _mean(total: float, sums: Sums) -> float:
    return float(total) / sums.drawn


def _variance(squares: float, mean: float, sums: Sums) -> float:
    """Return a sample variance, by the sum of squares."""
    return max(0.0, float(squares) - sums.drawn * mean**2) / (sums.drawn - 1)


def _range(sums: Sums) -> float:
    return math.exp(-sums.shift) if -sums.shift < MOST_LOG else math.inf


def _distance(variance: float, sums: Sums, doubt: float) -> float:
    """Return how far a mean is from its expectation on one side, but with probability `doubt`."""
    logs = math.log(2 / doubt)
    return math.sqrt(2 * variance * logs / sums.drawn) + 7 * _range(sums) * logs / (3 * (sums.drawn - 1))
