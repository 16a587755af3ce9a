"""A cost model: seconds as a sum of counts of work, each with its own price, learned from measurements.

What a plan does is counted in a handful of numbers (`cpu_work`, `gpu_work`): terms of each kind of loop, entries that
are rescaled, steps, launches. Their prices are the non-negative numbers that fit measured seconds best. So prices mean
something, a plan of a size that was never measured gets a sensible forecast, and fitting takes milliseconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Rounds of fitting: the first for relative errors, the others for those of logarithms, on which outliers weigh less.
ROUNDS = 6
# Error of a logarithm from which on a measurement weighs less.
OUTLIER = 0.25
# What keeps counts apart that are nearly multiples of each other; columns have a length of one.
RIDGE = 1e-10
# What a forecast may be off, as a factor, while prices are still being fitted.
MOST_OFF = 3.0


def fit(work: Floats, seconds: Floats, groups: npt.NDArray[Any]) -> Floats:
    """Return the prices [counts] that explain `seconds` [n] of `work` [n, counts] best; none is below zero.

    groups: [n], measurements that belong together (of one network) weigh as much as those of any other group.
    Deterministic.
    """
    _, number, members = np.unique(groups, return_inverse=True, return_counts=True)
    share = 1 / np.sqrt(members[number])
    forecast = seconds.copy()
    prices = np.zeros(work.shape[1])
    for _ in range(ROUNDS):
        off = np.log(forecast / seconds)
        weight = share * np.sqrt(np.minimum(1, OUTLIER / np.maximum(OUTLIER, np.abs(off))))
        # One step of Gauss and Newton for the logarithm of what the work takes.
        prices = non_negative(work * (weight / forecast)[:, None], (1 - off) * weight)
        forecast = np.clip(work @ prices, seconds / MOST_OFF, seconds * MOST_OFF)
    return prices


def non_negative(a: Floats, b: Floats) -> Floats:
    """Return x >= 0 that minimises |a x - b| (Lawson and Hanson, *Solving Least Squares Problems*, chapter 23)."""
    length = np.linalg.norm(a, axis=0)
    a = a / np.where(length > 0, length, 1)
    gram, wanted = a.T @ a, a.T @ b
    x = np.zeros(a.shape[1])
    free = np.zeros(a.shape[1], dtype=np.bool_)
    for _ in range(3 * a.shape[1]):
        gradient = np.where(free | (length == 0), -np.inf, wanted - gram @ x)
        if gradient.max() <= 1e-10 * np.abs(wanted).max():
            break
        free[gradient.argmax()] = True
        x = _inside(gram, wanted, x, free)
    found: Floats = x / np.where(length > 0, length, 1)
    return found


def _inside(gram: Floats, wanted: Floats, x: Floats, free: npt.NDArray[np.bool_]) -> Floats:
    """Solve for the free ones; those that would become negative are bound to zero on the way, and free no more."""
    while True:
        best = np.zeros_like(x)
        best[free] = np.linalg.solve(gram[np.ix_(free, free)] + RIDGE * np.eye(free.sum()), wanted[free])
        below = free & (best <= 0)
        if not below.any():
            return best
        step = np.min(x[below] / (x[below] - best[below]))
        x = x + step * (best - x)
        bound = free & (x <= 1e-14)
        # At least one has to give way, or the loop would not end.
        bound[np.flatnonzero(below)[np.argmin(x[below])]] = True
        free[bound] = False
        x[bound] = 0
