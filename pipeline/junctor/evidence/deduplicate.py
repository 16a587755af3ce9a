"""Rows with the same evidence have the same answer, which is found once and copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.evidence.batch import EvidenceBatch, Rows, span_of
from junctor.model.answers import OK, Answers
from junctor.planning.shape import Pattern

Array = npt.NDArray[Any]

# Fewer rows are not worth looking at.
LEAST_ROWS = 64
# The share of rows that may be different for copying answers to pay: a copy takes up to half as long as an answer.
MOST_DISTINCT = 0.5
# Rows are told apart by a table of all that evidence can be where it has at most so many entries for each row ...
TABLE_SHARE = 4
# ... and by sorting where it has more, up to what a number holds.
MOST_KEYS = 1 << 62


@dataclass(frozen=True, eq=False, slots=True)
class UniqueRows:
    """The different rows among some of a batch.

    rows: int64 [n], ascending. batch: evidence of the different ones only. numbers: int64 [n], which of them each is.
    """

    rows: Rows
    batch: EvidenceBatch
    numbers: Rows

    @property
    def nbytes(self) -> int:
        """Bytes of the evidence and of the numbers."""
        return self.numbers.nbytes + sum(column.nbytes for column in self.batch.states.values())

    def spread(self, found: Answers, answers: Answers) -> None:
        """Copy the answers `found` to the different rows to all rows of theirs in `answers`."""
        at, numbers = span_of(self.rows), self.numbers
        pairs: list[tuple[Array, Array]] = [(found.status, answers.status), (found.log_value, answers.log_value)]
        pairs += [(found.posteriors[v], array) for v, array in answers.posteriors.items()]
        pairs += [(found.states[v], array) for v, array in answers.states.items()]
        for there, here in pairs:
            _copy(there, here, at, numbers)
        bad = np.flatnonzero(found.status[numbers] != OK)
        for row, number in zip(self.rows[bad].tolist(), numbers[bad].tolist(), strict=True):
            answers.reasons[row] = found.reasons[number]


def distinct_rows(
    batch: EvidenceBatch, rows: Rows, pattern: Pattern, cardinalities: Sequence[int]
) -> UniqueRows | None:
    """Return the different ones among `rows` (ascending, their evidence within `pattern`), or None where most differ.

    None as well where some may have likelihoods: those are rarely equal.
    """
    variables = sorted(pattern.sliced | pattern.weighted)
    if len(rows) < LEAST_ROWS or not batch.likelihoods.keys().isdisjoint(variables):
        return None
    at = span_of(rows)
    keys, size, first = np.zeros(len(rows), dtype=np.int64), 1, rows[:1]
    for variable in variables:
        radix = cardinalities[variable] + 1
        if size * radix > MOST_KEYS:
            keys, first = _numbered(keys, size)
            size = len(first)
            if size > MOST_DISTINCT * len(rows):
                return None
        keys *= radix
        keys += batch.states[variable][at]
        # UNOBSERVED is -1.
        keys += 1
        size *= radix
    numbers, first = _numbered(keys, size)
    if len(first) > MOST_DISTINCT * len(rows):
        return None
    chosen = rows[first]
    return UniqueRows(rows, EvidenceBatch(len(chosen), {v: batch.states[v][chosen] for v in variables}), numbers)


def _numbered(keys: Rows, size: int) -> tuple[Rows, Rows]:
    """Return the number of each key, from 0 in ascending order of keys below `size`, and a place of each number."""
    if size <= TABLE_SHARE * len(keys):
        places = np.full(size, -1, dtype=np.int64)
        places[keys] = np.arange(len(keys))
        present = places >= 0
        return (np.cumsum(present) - 1)[keys], places[present]
    order = np.argsort(keys)
    ascending = keys[order]
    begins = np.append(True, ascending[1:] != ascending[:-1])
    numbers = np.empty(len(keys), dtype=np.int64)
    numbers[order] = np.cumsum(begins) - 1
    return numbers, order[begins]


def _copy(found: Array, array: Array, at: Rows | slice, numbers: Rows) -> None:
    if isinstance(at, slice):
        # In place, which needs a mode that cannot fail halfway.
        np.take(found, numbers, axis=0, out=array[at], mode="clip")
    else:
        array[at] = found[numbers]
