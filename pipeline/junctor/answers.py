"""The answers of one batch as arrays."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

OK, IMPOSSIBLE, INVALID = 0, 1, 2
# What rows are before anybody has answered them.
UNANSWERED = -1
NO_PROBABILITY = "the evidence has probability 0"
STATUS_NAMES = ("ok", "impossible", "invalid")


@dataclass(frozen=True, eq=False, slots=True)
class Answers:
    """Answers to `rows` cases in the order of the evidence; rows whose status is not OK hold no numbers to be read.

    targets: variable indices, in the order asked.
    status: int8 [rows], OK, IMPOSSIBLE (P(e) = 0) or INVALID.
    log_value: float64 [rows], natural log of P(e) for posteriors, of P(assignment, e) for explanations.
    posteriors: variable index -> float [rows, cardinality] (float32 in single precision); empty for explanations.
    states: variable index -> int32 [rows], the most probable states; empty for posteriors.
    reasons: row -> why it is not OK.
    memory: all posteriors in one flat array, in the order of the targets, where they lie in one.
    """

    targets: tuple[int, ...]
    status: npt.NDArray[np.int8]
    log_value: npt.NDArray[np.float64]
    posteriors: dict[int, npt.NDArray[np.floating]] = field(default_factory=dict)
    states: dict[int, npt.NDArray[np.int32]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    memory: npt.NDArray[np.floating] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        tables = sum(array.nbytes for array in self.posteriors.values())
        return self.status.nbytes + self.log_value.nbytes + tables + sum(array.nbytes for array in self.states.values())
