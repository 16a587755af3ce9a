"""From sums over samples to posteriors, their standard errors, P(e), and when it is enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from junctor_kernels.sampling.layout import BLOCK, Floats, Sums, add

# Samples that are drawn before the errors are looked at for the first time; then twice as many, and so on.
FIRST_SAMPLES = 1 << 14
# Samples of a row after which it ends whatever the errors are.
MOST_SAMPLES = 1 << 27
# Samples without a single hit after which it ends: evidence that is so unlikely will not be reached with more.
MISSED_SAMPLES = 1 << 20
# Effective samples without which an error is not to be trusted.
LEAST_EFFECTIVE = 100.0


@dataclass(frozen=True, eq=False, slots=True)
class Estimate:
    """What samples say of a row: posteriors of all slots and their standard errors, and the logarithm of P(e).

    effective: samples that as many independent ones of the posterior would be worth (Kish). samples: all that were
    drawn, learning included. reached: whether the error that was asked for is.
    """

    posteriors: Floats
    errors: Floats
    log_evidence: float
    log_error: float
    effective: float
    samples: int
    reached: bool = True


def estimate_of(sums: Sums, slot_nodes: Sequence[int], certain: float, samples: int = 0) -> Estimate | None:
    """Return the estimate that sums make, None where no sample has a weight.

    slot_nodes: the first slot of each node. samples: that were drawn. A posterior is a ratio of two sums; its error is
    that of the delta method, the root of sum of w^2 (1[x = s] - p)^2 over the sum of w, and at least what one effective
    sample is worth: of states that hardly any sample was in, or nearly all, the method says too little.
    """
    weight, square = (float(each) for each in sums.total)
    if not sums.hits:
        return None
    posteriors = sums.slots[:, 0] / weight
    # Of w^2 over the samples in a state and over the others, so that nothing cancels.
    sizes = np.diff([*slot_nodes, len(sums.slots)])
    inside, whole = sums.slots[:, 1], np.repeat(_sums_by_node(sums.slots[:, 1], slot_nodes), sizes)
    outside = np.maximum(whole - inside, 0.0)
    variance = inside * (1.0 - posteriors) ** 2 + outside * posteriors**2
    effective = weight * weight / square
    errors = np.maximum(np.sqrt(variance) / weight, 1.0 / effective)
    errors[np.repeat(sizes, sizes) == 1] = 0.0
    mean_variance = max(0.0, 1.0 / effective - 1.0 / sums.drawn)
    log_evidence = certain + sums.shift + math.log(weight / sums.drawn)
    return Estimate(
        posteriors,
        errors,
        log_evidence,
        math.sqrt(mean_variance),
        effective,
        samples,
    )


def until(
    error: float,
    draw: Callable[[int, int], Sums],
    read: Callable[[Sums], tuple[float, float]],
    already: Sums | None = None,
) -> tuple[Sums, bool]:
    """Return sums over as many samples as an error takes, and whether it was reached.

    draw: sums over so many samples from a number on. read: largest error of what sums say, and effective samples.
    """
    sums, drawn, count = already, 0, FIRST_SAMPLES
    while True:
        more = draw(drawn, count)
        sums = more if sums is None else add(sums, more)
        drawn += count
        largest, effective = read(sums)
        if largest <= error and effective >= LEAST_EFFECTIVE:
            return sums, True
        if drawn >= (MOST_SAMPLES if sums.hits else min(MISSED_SAMPLES, MOST_SAMPLES)):
            return sums, False
        count = drawn


def weighted(stages: Sequence[Sums]) -> Sums:
    """Return all stages together, each weighted with what one of its samples is worth (`worth`).

    Cheng and Druzdzel weigh stages by the variance of their estimates of P(e) (section 3.3.3); where that is tiny, as
    with evidence that says little, other stages would count for nothing in the posteriors as well.
    """
    top = max(stage.shift for stage in stages)
    best = max(map(worth, stages))
    if not best:
        return stages[-1]
    scaled = []
    for stage in stages:
        share = worth(stage) / best
        if share:
            scale = math.exp(stage.shift - top) * share
            factors = np.array([scale, scale * scale])
            scaled.append(Sums(top, stage.slots * factors, stage.total * factors, stage.drawn * share, stage.hits))
    # P(e) is the mean weight: samples count as their weights do.
    return reduce(add, scaled)


def worth(stage: Sums) -> float:
    """Return what a sample is worth, 1 where all weights are the same: their squared mean over the mean of squares."""
    weight, square = (float(each) for each in stage.total)
    return weight * weight / square / stage.drawn if stage.hits else 0.0


def pieces_of(first: int, count: int, size: int) -> list[tuple[int, int]]:
    """Return (first, count) of pieces of `size` samples, a multiple of BLOCK, the last of which may be smaller."""
    assert size % BLOCK == 0
    return [(first + start, min(size, count - start)) for start in range(0, count, size)]


def _sums_by_node(values: Floats, slot_nodes: Sequence[int]) -> Floats:
    return np.add.reduceat(values, slot_nodes) if len(slot_nodes) else np.zeros(0)
