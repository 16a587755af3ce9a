"""Estimates from sums over samples: posteriors, their standard errors, P(e), and stopping rules.

Main class: Estimate; called by `sampling.engine`. Effective sample sizes after Kish (1965).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from junctor_kernels.sampling.layout import BLOCK, Floats, Sums, add

# Samples before the first test of the errors; their number doubles from test to test.
FIRST_SAMPLES = 1 << 14
# Samples after which a row ends whatever its errors.
MOST_SAMPLES = 1 << 27
# Samples without any hit after which a row ends: evidence so unlikely is out of reach.
MISSED_SAMPLES = 1 << 20
# Exponents beyond leave the doubles.
MOST_LOG = 700.0
# Samples of the largest weight, still to come, that errors allow for: the rule of three (Hanley and Lippman-Hand 1983),
# by which a rate whose events have not been seen in n trials is below 3 / n.
UNSEEN = 3.0
# With fewer effective samples a standard error cannot be trusted.
LEAST_EFFECTIVE = 100.0


@dataclass(frozen=True, eq=False, slots=True)
class Intervals:
    """Intervals of the numbers of an estimate, each of which holds with the probability that was asked for.

    lower, upper: float64 [slots], of the posteriors.
    log_evidence: lower and upper end of that of log P(e), and the bound above which it is not.
    """

    lower: Floats
    upper: Floats
    log_evidence: tuple[float, float, float]

    @property
    def half(self) -> Floats:
        """Half of their widths."""
        half: Floats = (self.upper - self.lower) / 2
        return half


@dataclass(frozen=True, eq=False, slots=True)
class Estimate:
    """Estimate of a row.

    posteriors, errors: float64 [slots], and their standard errors; a slot is a state of a node.
    log_evidence: log P(e).
    log_error: standard error of log P(e).
    effective: effective sample size (Kish).
    samples: number of samples drawn, learning included.
    reached: whether the requested error was reached.
    intervals: of samplers whose weights have a bound.
    """

    posteriors: Floats
    errors: Floats
    log_evidence: float
    log_error: float
    effective: float
    samples: int
    reached: bool = True
    intervals: Intervals | None = None


def estimate_of(
    stages: Sequence[Sums], slot_nodes: Sequence[int], certain: float, samples: int = 0, exact: bool = False
) -> Estimate | None:
    """Return the estimate of sums over samples, None where all weights are zero.

    stages: sums over the samples of each stage, in their order.
    slot_nodes: the first slot of each node.
    certain: logarithm of the factors that all samples share.
    samples: number of samples drawn.
    exact: whether all samples have the same weight, whatever is drawn.
    """
    sums, even = weighted(stages)
    # A posterior is a ratio of two sums; its error is that of the delta method, the root of the sum of
    # w^2 (1[x = s] - p)^2 over the sum of w, and what samples of the largest weight still to come would change: for
    # states with hardly any or nearly all samples, and where few samples weigh much, the method underestimates it.
    weight, square = (float(total) for total in sums.total)
    if not sums.hits:
        return None
    posteriors = sums.slots[:, 0] / weight
    # Sums of w^2 over the samples in a state and over the others, so that nothing cancels.
    sizes = np.diff([*slot_nodes, len(sums.slots)])
    inside, whole = sums.slots[:, 1], np.repeat(_sums_by_node(sums.slots[:, 1], slot_nodes), sizes)
    outside = np.maximum(whole - inside, 0.0)
    variance = inside * (1.0 - posteriors) ** 2 + outside * posteriors**2
    effective = weight * weight / square
    unseen = UNSEEN * sums.largest / weight
    errors = np.hypot(np.sqrt(variance) / weight, unseen)
    # The posterior of a variable with one state is certain.
    errors[np.repeat(sizes, sizes) == 1] = 0.0
    # Relative variance of the mean weight, by the delta method the variance of its logarithm, and what samples to come
    # are above the mean. Few samples may all have the same weight, though others have another one: a floor.
    above = max(unseen - UNSEEN / even, 1.0 / effective)
    log_error = 0.0 if exact else math.hypot(math.sqrt(max(0.0, 1.0 / effective - 1.0 / even)), above)
    log_evidence = certain + sums.shift + math.log(weight / sums.drawn)
    return Estimate(posteriors, errors, log_evidence, log_error, effective, samples)


def until(
    error: float,
    draw: Callable[[int, int], Sums],
    read: Callable[[Sums], tuple[float, float]],
    most: int | None = None,
) -> tuple[Sums, bool]:
    """Return sums over enough samples for an error, and whether it was reached.

    error: largest standard error of a posterior.
    draw: function of (first sample, number of samples), returns their sums.
    read: function of sums, returns their largest error and the effective sample size.
    most: samples after which a row ends, None for MOST_SAMPLES.
    """
    most = MOST_SAMPLES if most is None else most
    sums, drawn = draw(0, FIRST_SAMPLES), FIRST_SAMPLES
    while True:
        largest, effective = read(sums)
        if largest <= error and effective >= LEAST_EFFECTIVE:
            return sums, True
        # Without a hit there is no error estimate to wait for.
        if drawn >= (most if sums.hits else min(MISSED_SAMPLES, most)):
            return sums, False
        # Doubling: at most half of the samples were drawn after an earlier test would have sufficed.
        sums, drawn = add(sums, draw(drawn, drawn)), 2 * drawn


def weighted(stages: Sequence[Sums]) -> tuple[Sums, float]:
    """Return the sums over all stages, each weighted by the stage before it, and what their samples are worth as one.

    A sample counts by the `worth` of the stage before its own; those of the first of several stages do not count. The
    worth as one: number of samples, were the weights within each stage equal, that tell as much if all count the same.
    """
    # Cheng and Druzdzel weight stages by the variance of their own estimates of P(e) (section 3.3.3), which is small
    # for a stage that misses a part of the distribution. The stage before knows nothing of the samples that it weighs.
    shares = [0.0, *map(worth, stages[:-1])] if len(stages) > 1 else [1.0]
    counting = [stage for stage, share in zip(stages, shares, strict=True) if share]
    if not any(stage.hits for stage in counting):
        return stages[-1], stages[-1].drawn
    top = max(stage.shift for stage in counting)
    best, scaled, squares = max(shares), [], 0.0
    for stage, share in zip(stages, (each / best for each in shares), strict=True):
        if share:
            scale = math.exp(stage.shift - top) * share
            factors = np.array([scale, scale * scale])
            squares += share * share * stage.drawn
            sums = stage.slots * factors, stage.total * factors, stage.drawn * share
            scaled.append(Sums(top, *sums, stage.hits, stage.largest * scale))
    # P(e) is the mean weight, so numbers of samples are scaled as their weights are. The largest weight is that of all
    # stages: what one of them has seen is there, however little it counts.
    together = reduce(add, scaled)
    largest = max(stage.largest * math.exp(min(stage.shift - together.shift, MOST_LOG)) for stage in stages)
    return together._replace(largest=largest), together.drawn * together.drawn / squares


def worth(stage: Sums) -> float:
    """Return effective samples for each sample: squared mean of the weights over the mean of their squares."""
    weight, square = (float(total) for total in stage.total)
    return weight * weight / square / stage.drawn if stage.hits else 0.0


def pieces_of(first: int, count: int, size: int) -> list[tuple[int, int]]:
    """Return (first, count) of pieces of samples.

    first: number of the first sample.
    count: number of samples.
    size: samples of a piece, a multiple of BLOCK; the last piece may be smaller.
    """
    assert size % BLOCK == 0
    return [(first + start, min(size, count - start)) for start in range(0, count, size)]


def _sums_by_node(values: Floats, slot_nodes: Sequence[int]) -> Floats:
    return np.add.reduceat(values, slot_nodes) if len(slot_nodes) else np.zeros(0)
