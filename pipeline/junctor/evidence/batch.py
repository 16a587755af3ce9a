"""The encoded form of evidence: state numbers and likelihoods, no names and no strings."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

UNOBSERVED = -1
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class SoftEvidence:
    """Soft evidence on one variable: `values[i]` is the likelihood of its states in row `rows[i]`.

    rows: int64 [n], ascending. values: float64 [n, cardinality], finite, not negative, at least one entry above 0.
    """

    rows: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]

    def among(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return the places in `rows` (all different) that have this evidence, and its values there."""
        _, here, there = np.intersect1d(rows, self.rows, assume_unique=True, return_indices=True)
        return here, self.values[there]


@dataclass(frozen=True, eq=False, slots=True)
class EvidenceBatch:
    """Evidence of `rows` cases.

    states: variable index -> int32 [rows], the observed state or UNOBSERVED; only variables that the table has.
    likelihoods: variable index -> Likelihood; a cell is either observed or has a likelihood, never both.
    invalid: row -> reason; such rows are not propagated, whatever their cells say.
    """

    rows: int
    states: dict[int, npt.NDArray[np.int32]] = field(default_factory=dict)
    likelihoods: dict[int, SoftEvidence] = field(default_factory=dict)
    invalid: dict[int, str] = field(default_factory=dict)


def span_of(rows: Rows) -> Rows | slice:
    """Return ascending rows as a slice where they have no gaps: arrays are cut several times faster along one."""
    if rows.size and rows[-1] - rows[0] == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
