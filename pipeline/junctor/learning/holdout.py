"""Rows that are held out of a fit, and how probable they are. Main functions: `is_held_out` and `compared`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from junctor.learning.expectation import Floats

_WORD = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True, slots=True)
class HoldoutResult:
    """Likelihood of the rows that were held out.

    rows: with a probability; impossible: without one, under the fitted model.
    weight: of the former.
    log_likelihood: of the former, the sum of weight * log P(evidence).
    """

    rows: int
    impossible: int
    weight: float
    log_likelihood: float

    @classmethod
    def of(cls, logs: Floats, weights: Floats) -> HoldoutResult:
        """Return the result of rows by their log P(evidence), -inf where it is 0; weights of 0 do not count."""
        possible, impossible = (weights > 0) & np.isfinite(logs), (weights > 0) & ~np.isfinite(logs)
        terms = (weights[possible] * logs[possible]).tolist()
        weight = math.fsum(weights[possible].tolist())
        return cls(int(possible.sum()), int(impossible.sum()), weight, math.fsum(terms))


@dataclass(frozen=True, slots=True)
class HoldoutComparison:
    """Held-out rows under a model before and after it was fitted.

    rows: possible under both.
    impossible: under the model before, and after.
    log_likelihoods: means of a row that is possible under both, before and after; nan without any.
    gain: their difference; error: its standard error.
    """

    rows: int
    impossible: tuple[int, int]
    log_likelihoods: tuple[float, float]
    gain: float
    error: float


def is_held_out(rows: npt.NDArray[np.int64], share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Return which rows are held out, by SplitMix64 [Steele, Lea and Flood 2014] of their number and the seed."""
    if not share:
        return np.zeros(len(rows), dtype=np.bool_)
    start = mixed(np.array([seed & int(_WORD)], dtype=np.uint64))
    chosen: npt.NDArray[np.bool_] = mixed(rows.astype(np.uint64) ^ start) < np.uint64(share * 2.0**64)
    return chosen


def mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return a hash of each number, the finaliser of SplitMix64."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def compared(before: Floats, after: Floats, weights: Floats) -> HoldoutComparison:
    """Return what rows say of a model before and after.

    before, after: float64 [rows], log P(evidence) under each, -inf where it is 0.
    weights: float64 [rows]; rows of weight 0 do not count.
    """
    both = (weights > 0) & np.isfinite(before) & np.isfinite(after)
    impossible = [int(((weights > 0) & ~np.isfinite(each)).sum()) for each in (before, after)]
    means = [mean(each[both], weights[both]) for each in (before, after)]
    gains = after[both] - before[both]
    gain = mean(gains, weights[both])
    error = math.nan
    if both.any():
        error = math.sqrt(((weights[both] * (gains - gain)) ** 2).sum()) / float(weights[both].sum())
    return HoldoutComparison(int(both.sum()), (impossible[0], impossible[1]), (means[0], means[1]), gain, error)


def mean(values: Floats, weights: Floats) -> float:
    """Return the weighted mean, nan of no values."""
    return float((values * weights).sum() / weights.sum()) if weights.size else math.nan
