"""Rows of equal evidence: one of them is answered, the others get copies of its answers.

Main functions: `find_equal_rows` before a batch is answered, `copy_answers` after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.evidence.batch import EqualRows, EvidenceBatch, Rows
from junctor.model.answers import OK, Answers
from junctor.runtime.threads import in_threads, stretches

Array = npt.NDArray[Any]

# With fewer rows the search for equal ones costs more than it saves.
LEAST_ROWS = 64
# Largest share of rows that are answered for which copies pay. A GPU answers consecutive rows faster than others.
MOST_ANSWERED, MOST_ANSWERED_GPU = 0.9, 0.5
# Keys of rows are counted in a table of all possible keys where it has at most so many entries for each row.
TABLE_SHARE = 4
# Keys that compiled code looks up, and cells that it reads; it has to be loaded for that.
COMPILED_KEYS, COMPILED_CELLS = 1 << 15, 1 << 20
# Cells that are worth a thread.
PART_CELLS = 1 << 18
# Largest range of keys that are numbers in a mixed radix: within int64.
MOST_KEYS = 1 << 62
# Bytes of answers from which on threads copy them, in so many pieces for each; most bytes that a thread holds of them.
THREAD_BYTES, PIECES, PIECE_BYTES = 1 << 21, 2, 1 << 20


def find_equal_rows(
    batch: EvidenceBatch, cardinalities: Sequence[int], most: float = MOST_ANSWERED, threads: int = 1
) -> EvidenceBatch:
    """Return the batch with its equal rows, or as it is if it has them, or too few are equal.

    Rows with likelihoods are equal to none.

    batch: evidence.
    cardinalities: number of states of every variable.
    most: largest share of rows that are answered.
    threads: number of threads.
    """
    if batch.equal is not None or batch.rows < LEAST_ROWS:
        return batch
    rows = batch.valid
    valid = len(rows)
    if batch.likelihoods:
        rows = np.setdiff1d(rows, np.concatenate([soft.rows for soft in batch.likelihoods.values()]))
    if len(rows) < LEAST_ROWS:
        return batch
    radixes = [cardinalities[v] + 1 for v in batch.states]
    size = math.prod(radixes)
    is_exact = size <= MOST_KEYS
    if is_exact:
        # A key is a number in a mixed radix, one digit a variable; one more digit value stands for unobserved.
        words = np.array([1, *accumulate(radixes, mul)][:-1], dtype=np.int64)
    else:
        # Equal rows have equal sums, and others hardly ever do.
        words = np.random.default_rng(0).integers(1 << 62, size=len(radixes))
    keys = _keys(batch, words, threads)
    keys = keys if len(rows) == batch.rows else keys[rows]
    numbers, first = _counted(keys, size) if size <= TABLE_SHARE * len(rows) else numbered(keys.view(np.uint64))
    if len(first) + valid - len(rows) > most * valid:
        return batch
    alone = np.setdiff1d(np.arange(batch.rows), rows) if len(rows) < batch.rows else rows[:0]
    if not is_exact:
        alone = np.append(alone, _that_differ(batch, rows, rows[first[numbers]], threads))
    distinct = rows[first]
    if alone.size:
        placed = np.empty(batch.rows, dtype=np.int64)
        placed[rows] = numbers
        placed[alone] = len(first) + np.arange(len(alone))
        distinct, numbers = np.append(distinct, alone), placed
    return replace(batch, equal=EqualRows(distinct, numbers))


def copy_answers(equal: EqualRows, answers: Answers, threads: int = 1) -> None:
    """Write the answers to the rows that are not answered themselves.

    equal: of the batch.
    answers: to those that are answered; the others are written here.
    threads: number of threads.
    """
    distinct, numbers = equal.distinct, equal.numbers
    # Table by table: row by row, a copy would take longer than an answer.
    tables = [table for table in answers.by_row() if table.size]
    widest = max(table.nbytes // len(table) for table in tables)
    # NumPy copies whole tables several times as fast as scattered rows, of a copy of those that are answered.
    is_dense = 2 * len(distinct) < len(numbers) and len(distinct) * widest <= PIECE_BYTES
    rows = distinct[:0] if is_dense else np.flatnonzero(equal.copied)
    sources = distinct[numbers[rows]]

    def copy(piece: tuple[Array, slice], _: int) -> None:
        table, part = piece
        if is_dense:
            # Those that are answered are written again as they are; mode="raise" would buffer the output.
            answered = table.take(distinct, axis=0)
            np.take(answered, numbers[part], axis=0, out=table[part], mode="clip")
            return
        if table.ndim == 2:
            # A row as one item: number by number takes NumPy ten times as long.
            table = table.view(np.dtype((np.void, table.itemsize * table.shape[1])))[:, 0]
        table[rows[part]] = table.take(sources[part])

    threads = threads if sum(table.nbytes for table in tables) > THREAD_BYTES else 1
    least = -(-PIECES * threads // len(tables))
    parts = stretches(len(numbers), least) if is_dense else stretches(len(rows), least, PIECE_BYTES // widest)
    in_threads(copy, [(table, part) for table in tables for part in parts], threads)
    # Few rows, if any.
    bad = np.flatnonzero(answers.status != OK)
    for row in bad[equal.copied[bad]].tolist() if bad.size else ():
        answers.reasons[row] = answers.reasons[int(distinct[numbers[row]])]


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


def _counted(keys: Rows, size: int) -> tuple[Rows, Rows]:
    """Return what `numbered` does of keys below `size`."""
    places = np.full(size, -1, dtype=np.int64)
    # Backwards, so that of equal keys the first one stays.
    places[keys[::-1]] = np.arange(len(keys) - 1, -1, -1)
    present = places >= 0
    return (np.cumsum(present) - 1)[keys], places[present]


def _keys(batch: EvidenceBatch, words: Rows, threads: int) -> Rows:
    """Return int64 [rows]: the sum of state plus 1 times the word of its column; it may overflow."""
    keys = np.zeros(batch.rows, dtype=np.int64)
    cells = batch.rows * len(words)
    if cells < COMPILED_CELLS:
        term = np.empty_like(keys)
        for word, states in zip(words, batch.states.values(), strict=True):
            np.add(states, 1, out=term)
            term *= word
            keys += term
        return keys
    # Imported here, as below: loaded where there are many cells.
    from junctor_kernels.cpu.columns import add_keys

    from junctor.evidence.compiled_cells import evidence_cells

    columns = evidence_cells(batch).addresses([*batch.states])

    def add(part: slice, _: int) -> None:
        add_keys(columns, words, part.start, keys[part])

    in_threads(add, stretches(batch.rows, min(threads, cells // PART_CELLS)), threads)
    return keys


def _that_differ(batch: EvidenceBatch, rows: Rows, like: Rows, threads: int) -> Rows:
    """Return those of `rows` that differ from the rows `like` that have the same keys."""
    differs = np.zeros(len(rows), dtype=np.bool_)
    cells = len(rows) * len(batch.states)
    if cells < COMPILED_CELLS:
        for states in batch.states.values():
            differs |= states[rows] != states[like]
        return rows[differs]
    from junctor_kernels.cpu.columns import mark_different

    from junctor.evidence.compiled_cells import evidence_cells

    columns = evidence_cells(batch).addresses([*batch.states])

    def mark(part: slice, _: int) -> None:
        mark_different(columns, rows[part], like[part], differs[part])

    in_threads(mark, stretches(len(rows), min(threads, cells // PART_CELLS)), threads)
    return rows[differs]
