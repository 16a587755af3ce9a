"""What an E-step gives, and what it may be given. Main class: Expectation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
# Bounds of weights, and of the strength of priors: sums of them, and products of two, stay within the range of numbers.
LEAST_WEIGHT, MOST_WEIGHT = 1e-100, 1e100
A_WEIGHT = "a weight of 0, or from 1e-100 to 1e100"


@dataclass(frozen=True, eq=False, slots=True)
class Expectation:
    """Expected counts of all rows under some parameters.

    counts: float64 [entries], the sum over rows of weight * P(family | evidence), in the order of the parameters.
    log_likelihood: the sum over rows of weight * log P(evidence).
    """

    counts: Floats
    log_likelihood: float


def wrong_weights(numbers: Floats) -> npt.NDArray[np.int64]:
    """Return the places of numbers that are no weights, ascending."""
    return np.flatnonzero(~((numbers == 0) | ((numbers >= LEAST_WEIGHT) & (numbers <= MOST_WEIGHT))))
