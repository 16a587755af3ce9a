"""The encoded form of evidence: state numbers and likelihoods, without names. Main class: EvidenceBatch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

# -1 exactly: keys of rows in `deduplicate` are states plus 1.
UNOBSERVED = -1
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class SoftEvidence:
    """Soft evidence on one variable, for the rows that have it.

    rows: int64 [n], ascending.
    values: float64 [n, cardinality], the likelihood of each state; finite, not negative, at least one entry above 0.
    """

    rows: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]

    def among(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return the positions in `rows` (all different) that have this evidence, and its values there."""
        _, here, there = np.intersect1d(rows, self.rows, assume_unique=True, return_indices=True)
        return here, self.values[there]


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class EvidenceBatch:
    """Evidence of consecutive rows (cases).

    rows: number of rows.
    states: variable index -> int32 [rows], the observed state or UNOBSERVED; only variables that the table has.
    likelihoods: variable index -> soft evidence; a cell is either observed or has a likelihood, never both.
    invalid: row -> reason; such rows are not propagated, whatever their cells say.
    complete: variables of `states` that every row observes, where they are known; None where nobody has looked.
    """

    rows: int
    states: dict[int, npt.NDArray[np.int32]] = field(default_factory=dict)
    likelihoods: dict[int, SoftEvidence] = field(default_factory=dict)
    invalid: dict[int, str] = field(default_factory=dict)
    complete: frozenset[int] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of states and likelihoods."""
        soft = sum(each.rows.nbytes + each.values.nbytes for each in self.likelihoods.values())
        return soft + sum(states.nbytes for states in self.states.values())


def span_of(rows: Rows) -> Rows | slice:
    """Return ascending rows as a slice where they have no gaps: NumPy indexes several times faster with a slice."""
    if rows.size and rows[-1] - rows[0] == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
