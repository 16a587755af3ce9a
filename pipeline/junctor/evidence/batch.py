"""The encoded form of evidence: state numbers and likelihoods, without names. Main class: EvidenceBatch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

# -1 exactly: keys of equal rows are made of states plus 1.
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


@dataclass(frozen=True, eq=False, slots=True)
class EqualRows:
    """Which rows of a batch have the same evidence: one of them is answered, the others get copies.

    distinct: int64 [n], the rows that are equal to no row before them, in any order; invalid rows are equal to none.
    numbers: int64 [rows], the place in `distinct` of the row that each is equal to.
    """

    distinct: Rows
    numbers: Rows

    @property
    def copied(self) -> npt.NDArray[np.bool_]:
        """Which rows get the answers of another row, bool [rows]."""
        copied = np.ones(len(self.numbers), dtype=np.bool_)
        copied[self.distinct] = False
        return copied

    def sharing(self) -> Rows:
        """Return int64 [rows], how many rows have the same evidence as each, itself included."""
        return np.bincount(self.numbers, minlength=len(self.distinct))[self.numbers]

    def served(self, rows: Rows) -> Rows:
        """Return some of those that are answered and the rows that get copies of their answers, ascending."""
        chosen = np.zeros(len(self.distinct), dtype=np.bool_)
        chosen[self.numbers[rows]] = True
        return np.flatnonzero(chosen[self.numbers])


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class EvidenceBatch:
    """Evidence of consecutive rows (cases).

    rows: number of rows.
    states: variable index -> int32 [rows], the observed state or UNOBSERVED; only variables that the table has.
    likelihoods: variable index -> soft evidence; a cell is either observed or has a likelihood, never both.
    invalid: row -> reason; such rows are not propagated, whatever their cells say.
    complete: variables of `states` that every row observes, where they are known; None where nobody has looked.
    equal: rows with the same evidence, None where all are answered.
    """

    rows: int
    states: dict[int, npt.NDArray[np.int32]] = field(default_factory=dict)
    likelihoods: dict[int, SoftEvidence] = field(default_factory=dict)
    invalid: dict[int, str] = field(default_factory=dict)
    complete: frozenset[int] | None = None
    equal: EqualRows | None = None

    @property
    def valid(self) -> Rows:
        """The rows that are not invalid, int64."""
        return self._without_invalid(np.arange(self.rows))

    @property
    def answered(self) -> Rows:
        """The rows that are answered, int64: those that are neither invalid nor get the answer of another row."""
        return self.valid if self.equal is None else self._without_invalid(np.sort(self.equal.distinct))

    @property
    def answered_count(self) -> int:
        """How many rows are answered."""
        return (self.rows if self.equal is None else len(self.equal.distinct)) - len(self.invalid)

    def _without_invalid(self, rows: Rows) -> Rows:
        if not self.invalid:
            return rows
        valid = np.ones(self.rows, dtype=np.bool_)
        valid[list(self.invalid)] = False
        return rows[valid[rows]]

    def served(self, rows: Rows) -> Rows:
        """Return some of the rows that are answered and those that get copies of their answers, ascending."""
        return rows if self.equal is None else self.equal.served(rows)

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
