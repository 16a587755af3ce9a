"""Rows of equal evidence: their answer is computed once and copied.

Main functions: `distinct_rows`, and `united` for those of several groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.evidence.batch import EvidenceBatch, Rows, span_of
from junctor.model.answers import OK, Answers, Scores
from junctor.planning.shape import Pattern
from junctor.runtime.threads import in_threads

Array = npt.NDArray[Any]

# With fewer rows the search for equal ones costs more than it saves.
LEAST_ROWS = 64
# Largest share of distinct rows for which copies pay: a copy takes up to half as long as an answer.
MOST_DISTINCT = 0.5
# Keys of rows are counted in a table of all possible keys where it has at most so many entries for each row.
TABLE_SHARE = 4
# Keys that compiled code looks up, which has to be loaded for that; fewer are sorted.
COMPILED_KEYS = 1 << 15
# Largest range of keys: within int64.
MOST_KEYS = 1 << 62
# Bytes of answers from which on threads copy them.
THREAD_BYTES = 1 << 21


@dataclass(frozen=True, eq=False, slots=True)
class UniqueRows:
    """The distinct rows among some rows of a batch.

    rows: int64 [n], ascending.
    chosen: int64 [distinct rows], the row that stands for all that are equal to it.
    batch: evidence of the distinct rows.
    numbers: int64 [n], index in `batch` of each of `rows`.
    """

    rows: Rows
    chosen: Rows
    batch: EvidenceBatch
    numbers: Rows

    @property
    def nbytes(self) -> int:
        """Bytes of the evidence and of the numbers."""
        return self.numbers.nbytes + self.chosen.nbytes + self.batch.nbytes

    def spread(self, unique: Answers, answers: Answers, threads: int = 1) -> None:
        """Copy the answers to the distinct rows to all rows that are equal to them.

        unique: answers to the distinct rows.
        answers: of the same kind, to the batch, written here.
        threads: number of threads.
        """
        at, numbers = span_of(self.rows), self.numbers
        # Whole tables: a copy of one row at a time would take longer than its answer.
        pairs = list(zip(_tables(unique), _tables(answers), strict=True))

        def copy(pair: tuple[Array, Array], _: int) -> None:
            _copy(*pair, at, numbers)

        in_threads(copy, pairs, threads if answers.nbytes > THREAD_BYTES else 1)
        bad = np.flatnonzero(unique.status[numbers] != OK)
        for row, number in zip(self.rows[bad].tolist(), numbers[bad].tolist(), strict=True):
            answers.reasons[row] = unique.reasons[number]


def repeated(batch: EvidenceBatch) -> int:
    """Return how many rows of a batch are equal to another one before them, at the least none too few.

    Likelihoods count as no evidence.
    """
    keys, term = np.zeros(batch.rows, dtype=np.int64), np.empty(batch.rows, dtype=np.int64)
    words = np.random.default_rng(0).integers(1 << 62, size=len(batch.states))
    # Sums of random numbers for all cells: equal rows have equal sums, and others hardly ever do.
    for word, states in zip(words, batch.states.values(), strict=True):
        np.multiply(states, word, out=term)
        keys += term
    return batch.rows - len(numbered(keys.view(np.uint64))[1])


def numbered(keys: npt.NDArray[np.uint64]) -> tuple[Rows, Rows]:
    """Return a number for each key, the same for equal ones, from 0, and where each distinct one comes first."""
    if len(keys) < COMPILED_KEYS:
        _, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
        return numbers.ravel(), first
    # Imported here: loaded where there are many.
    from junctor_kernels.cpu.columns import number_keys

    numbers, first = np.empty((2, len(keys)), dtype=np.int64)
    table = np.full(1 << (2 * len(keys)).bit_length(), -1, dtype=np.int32)
    return numbers, first[: number_keys(keys, table, numbers, first)]


def distinct_rows(
    batch: EvidenceBatch, rows: Rows, pattern: Pattern, cardinalities: Sequence[int]
) -> UniqueRows | None:
    """Return the distinct rows, or None where most differ or some may have likelihoods, which are rarely equal.

    batch: evidence.
    rows: int64 [n], ascending, their evidence within `pattern`.
    pattern: variables with evidence.
    cardinalities: number of states of every variable.
    """
    variables = sorted(pattern.sliced | pattern.weighted)
    if len(rows) < LEAST_ROWS or not batch.likelihoods.keys().isdisjoint(variables):
        return None
    at = span_of(rows)
    keys, size, first = np.zeros(len(rows), dtype=np.int64), 1, rows[:1]
    for variable in variables:
        # A key is a number in a mixed radix, one digit a variable; one more digit value stands for unobserved.
        radix = cardinalities[variable] + 1
        if size * radix > MOST_KEYS:
            # Keys are renumbered from 0 before they overflow, and there may be too many of them already.
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
    return UniqueRows(rows, chosen, _of_rows(batch, chosen, variables), numbers)


def united(batch: EvidenceBatch, parts: Sequence[UniqueRows]) -> UniqueRows:
    """Return the distinct rows of several parts of a batch as one; those of a part follow those of the one before."""
    numbers, count = np.full(batch.rows, -1, dtype=np.int64), 0
    for part in parts:
        numbers[part.rows] = part.numbers + count
        count += len(part.chosen)
    rows = np.flatnonzero(numbers >= 0)
    chosen = np.concatenate([part.chosen for part in parts])
    variables = {v for part in parts for v in part.batch.states}
    return UniqueRows(rows, chosen, _of_rows(batch, chosen, sorted(variables)), numbers[rows])


def _of_rows(batch: EvidenceBatch, rows: Rows, variables: Sequence[int]) -> EvidenceBatch:
    """Return the states of some rows, which have evidence on no other variables."""
    return EvidenceBatch(len(rows), {v: batch.states[v][rows] for v in variables})


def _numbered(keys: Rows, size: int) -> tuple[Rows, Rows]:
    """Return a number for each key (below `size`), the same for equal ones, and one position of each distinct key."""
    if size <= TABLE_SHARE * len(keys):
        places = np.full(size, -1, dtype=np.int64)
        places[keys] = np.arange(len(keys))
        present = places >= 0
        return (np.cumsum(present) - 1)[keys], places[present]
    return numbered(keys.view(np.uint64))


def _tables(answers: Answers) -> Iterator[Array]:
    """Yield what there is of each row, [rows] or [rows, numbers]."""
    yield answers.status
    yield answers.log_value
    yield from answers.posteriors.values()
    yield from answers.states.values()
    if isinstance(answers, Scores):
        for tables in (answers.best, answers.probabilities, answers.entropies, answers.chosen):
            yield from tables


def _copy(source: Array, target: Array, at: Rows | slice, numbers: Rows) -> None:
    if isinstance(at, slice):
        # mode="raise" would buffer the output.
        np.take(source, numbers, axis=0, out=target[at], mode="clip")
        return
    if source.ndim == 2:
        # A row as one item: number by number takes NumPy ten times as long.
        row = np.dtype((np.void, source.itemsize * source.shape[1]))
        source, target = source.view(row)[:, 0], target.view(row)[:, 0]
    target[at] = source.take(numbers)
