"""What an E-step gives. Main class: Expectation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Expectation:
    """Expected counts of all rows under some parameters.

    counts: float64 [entries], the sum over rows of weight * P(family | evidence), in the order of the parameters.
    log_likelihood: the sum over rows of weight * log P(evidence).
    """

    counts: Floats
    log_likelihood: float
