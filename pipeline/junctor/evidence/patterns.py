"""Which rows share a plan: evidence patterns of a batch, and the cheapest way to answer all of them.

A plan that cuts out exactly what its rows observe is the cheapest to run, but takes time to make, and a row of a rare
pattern pays for all of that. So patterns may be made coarser: some columns are *loose*, their evidence enters as
likelihoods and no longer tells patterns apart. What is still rare then shares one plan, with everything loose that is
not common to all, or goes row by row through the row engine.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.evidence.deduplicate import numbered
from junctor.model.strategies import Rejected, Strategy
from junctor.planning.shape import Pattern
from junctor.runtime.threads import in_threads, stretches

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# Fewer cells of marks are not worth a thread.
PART_CELLS = 1 << 18
# Cells of columns that compiled code looks at, which has to be loaded for that.
COMPILED_CELLS = 1 << 20
# Patterns that a choice looks at; of more, every so many-th.
MOST_PATTERNS = 4096
# Patterns of fewer than every so many-th row take about as long as those of all.
LEAST_STEP = 4
# What stands for the pattern of rows that go one by one without one.
NOBODY_LOOKED = Pattern(frozenset(), frozenset())


@dataclass(frozen=True, eq=False, slots=True)
class Patterns:
    """The evidence patterns of the rows of a batch that are answered, most frequent first.

    variables: of the columns, those with observed states before those with likelihoods.
    hard: number of columns with observed states.
    marks: bool [patterns, columns], where there is evidence.
    counts: int64 [patterns], rows of each pattern.
    numbers: int64, the pattern of each row.
    rows: int64, these rows.
    """

    variables: tuple[int, ...]
    hard: int
    marks: Mask
    counts: Rows
    numbers: Rows
    rows: Rows

    def observed(self, pattern: int) -> frozenset[int]:
        """Return the variables that a pattern observes."""
        return frozenset(self.variables[i] for i in np.flatnonzero(self.marks[pattern, : self.hard]))

    def soft(self, pattern: int) -> frozenset[int]:
        """Return the variables on which a pattern has likelihoods."""
        return frozenset(self.variables[self.hard + i] for i in np.flatnonzero(self.marks[pattern, self.hard :]))

    def together(self) -> PatternGroup:
        """Return all rows as one group, each of them with a tree of its own."""
        return PatternGroup(self.serving(self.marks), self.rows, len(self.counts), Strategy.ROW_TREES)

    def serving(self, marks: Mask, loose: Mask | None = None) -> Pattern:
        """Return the pattern that serves all `marks`: what all observe is cut out unless loose, the others enter."""
        sliced = np.asarray(marks.all(axis=0))
        sliced[self.hard :] = False
        if loose is not None:
            sliced &= ~loose
        return self.pattern(sliced, np.asarray(marks.any(axis=0)) & ~sliced)

    def pattern(self, sliced: Mask, weighted: Mask) -> Pattern:
        """Return the pattern of some columns that are cut out and others that enter as likelihoods."""
        variables = np.array(self.variables, dtype=np.int64)
        return Pattern(frozenset(variables[sliced].tolist()), frozenset(variables[weighted].tolist()))

    def exact(self, rows: Rows) -> list[PatternGroup]:
        """Return some of the rows (ascending) in groups of one pattern each."""
        numbers = self.numbers[np.searchsorted(self.rows, rows)]
        return [
            PatternGroup(Pattern(self.observed(p), self.soft(p)), rows[numbers == p])
            for p in np.unique(numbers).tolist()
        ]


@dataclass(frozen=True, eq=False, slots=True)
class PatternGroup:
    """Rows (ascending) of so many patterns that run through one plan or tree; 0 where nobody has looked at these.

    strategy: what answers them, None before anything is chosen.
    shared: whether rows of ROW_TREES share a tree; each has its own otherwise.
    copies: how many other rows get copies of their answers.
    price: seconds of all rows to come that the choice went by, nan where nothing was compared.
    rejected: what else there was.
    """

    pattern: Pattern
    rows: Rows
    patterns: int = 1
    strategy: Strategy | None = None
    shared: bool = False
    copies: int = 0
    price: float = math.nan
    rejected: tuple[Rejected, ...] = ()

    @property
    def by_trees(self) -> bool:
        """True if trees made in compiled code answer the rows."""
        return self.strategy is Strategy.ROW_TREES

    @property
    def alone(self) -> bool:
        """True if each row goes alone, with a tree of its own or on the joint table."""
        return self.strategy is Strategy.JOINT_TABLE or (self.by_trees and not self.shared)

    @property
    def served(self) -> int:
        """How many rows get answers, copies included."""
        return len(self.rows) + self.copies


def patterns_of(batch: EvidenceBatch, threads: int = 1) -> Patterns:
    """Return the evidence patterns of a batch; `threads`: that look at columns."""
    rows = batch.answered
    soft = sorted(batch.likelihoods)
    # Often all columns are complete: to see that takes a tenth of what masks take.
    complete: Collection[int] = batch.complete if batch.complete is not None else _complete(batch)
    hard = sorted(batch.states.keys() - (complete if rows.size else ()))
    # Column by column in memory, as they are looked at.
    seen = np.empty((len(hard) + len(soft), rows.size), dtype=np.bool_)
    keys = None
    if rows.size * len(hard) >= COMPILED_CELLS:
        often, keys = _marked(batch, hard, rows, seen[: len(hard)], threads)
    else:
        for n, v in enumerate(hard):
            states = batch.states[v]
            np.not_equal(states if rows.size == batch.rows else states[rows], UNOBSERVED, out=seen[n])
        often = _true_in_rows(seen[: len(hard)])
    for n, v in enumerate(soft):
        seen[len(hard) + n] = np.isin(rows, batch.likelihoods[v].rows)
    often = np.concatenate([often, _true_in_rows(seen[len(hard) :])])
    # Columns that are the same in all rows distinguish none.
    distinguish = (often > 0) & (often < rows.size)
    columns = seen if distinguish.all() else seen[distinguish]
    known = keys if not soft else None
    marks, counts, numbers = distinct(columns.T, np.ones(rows.size, dtype=np.int64), threads, known)
    variables = sorted(batch.states)
    if len(columns) == len(variables) + len(soft):
        every = marks.T
    else:
        every = np.ones((len(variables) + len(soft), len(marks)), dtype=np.bool_)
        places = np.append(np.searchsorted(variables, hard), len(variables) + np.arange(len(soft))).astype(np.int64)
        every[places[~distinguish]] = (often > 0)[~distinguish, None]
        every[places[distinguish]] = marks.T
    return Patterns((*variables, *soft), len(variables), every.T, counts, numbers, rows)


def _marked(
    batch: EvidenceBatch, variables: Sequence[int], rows: Rows, marks: Mask, threads: int
) -> tuple[Rows, npt.NDArray[np.uint64]]:
    """Write where some columns have evidence, bool [columns, rows], in compiled code.

    Returns int64 [columns], how many rows have, and a key of each row, the same for rows that observe the same columns.
    """
    # Imported here: loaded where there are many cells.
    from junctor_kernels.cpu.columns import mark_observed

    from junctor.evidence.compiled_cells import evidence_cells

    cells = evidence_cells(batch)
    places, words = cells.addresses(variables), words_of(len(variables))
    often = np.zeros(len(variables), dtype=np.int64)

    def look(part: slice, _thread: int) -> npt.NDArray[np.uint64]:
        """Look at some of the columns, and return a key of each row."""
        keys = np.zeros(rows.size, dtype=np.uint64)
        mark_observed(places[part], rows, words[part], marks[part], keys, often[part])
        return keys

    keys = sum(in_threads(look, _parts(marks.T, threads), threads), np.zeros(rows.size, dtype=np.uint64))
    return often, keys


def _complete(batch: EvidenceBatch) -> list[int]:
    # Of columns that are not, the first row tells mostly.
    return [
        v
        for v, states in batch.states.items()
        if not states.size or (states[0] != UNOBSERVED and states.min() != UNOBSERVED)
    ]


def sampled_patterns(batch: EvidenceBatch, threads: int = 1) -> Patterns | None:
    """Return the patterns of some rows, evenly spread, of which no two have the same.

    batch: evidence.
    threads: that look at columns.
    None where all rows have to tell: of few rows, with likelihoods, or where rows share patterns or are complete.
    """
    rows = batch.answered
    step = rows.size // MOST_PATTERNS
    if step < LEAST_STEP or batch.likelihoods or batch.states.keys() <= (batch.complete or frozenset()):
        return None
    some, variables = rows[::step].copy(), sorted(batch.states)
    marks = np.empty((len(variables), some.size), dtype=np.bool_)
    _, keys = _marked(batch, variables, some, marks, threads)
    if np.unique(keys).size < some.size:
        return None
    return Patterns(tuple(variables), len(variables), marks.T, np.ones(some.size, np.int64), np.arange(some.size), some)


def spread(rows: Rows, most: int) -> Rows:
    """Return at most so many of some rows, evenly spread."""
    return rows[:: -(-len(rows) // most)]


def serving_all(batch: EvidenceBatch, some: Patterns, threads: int = 1) -> Pattern:
    """Return the pattern that serves all rows without likelihoods: what all of them observe is cut out.

    batch: evidence.
    some: patterns of some of its rows.
    threads: that look at columns.
    """
    rows = batch.answered
    often = rows_that_observe(some.marks, some.counts)
    # What some observe and others do not needs no look at all of them.
    differs = (often > 0) & (often < some.counts.sum())
    weighted = frozenset(some.variables[i] for i in np.flatnonzero(differs))
    columns = [some.variables[i] for i in np.flatnonzero(~differs)]

    def look(part: list[int], _thread: int) -> list[tuple[int, int]]:
        """Return the least state of some columns, and the greatest where that is none."""
        found = []
        for v in part:
            states = batch.states[v] if rows.size == batch.rows else batch.states[v][rows]
            least = int(states.min())
            found.append((least, least if least != UNOBSERVED else int(states.max())))
        return found

    parts = [part for first in range(threads) if (part := columns[first::threads])]
    found = [
        dict(zip(part, its, strict=True)) for part, its in zip(parts, in_threads(look, parts, threads), strict=True)
    ]
    always = frozenset(v for each in found for v, (least, _) in each.items() if least != UNOBSERVED)
    ever = frozenset(v for each in found for v, (_, most) in each.items() if most != UNOBSERVED)
    return Pattern(always, weighted | (ever - always))


def _parts(marks: Mask, threads: int) -> list[slice]:
    """Return the columns of marks in as many parts as are worth threads."""
    return stretches(marks.shape[1], min(threads, marks.size // PART_CELLS))


def rows_that_observe(marks: Mask, counts: Rows) -> Rows:
    """Return int64 [columns], the rows of some patterns that have evidence in each column."""
    return EvidenceCounts(marks, counts).of(np.ones(len(counts), dtype=np.bool_))


def _true_in_rows(marks: Mask) -> Rows:
    """Return int64 [rows], how many are True in each row."""
    # Several times as fast as the count along an axis, which makes numbers of all bits first.
    return np.array([np.count_nonzero(row) for row in marks], dtype=np.int64)


class EvidenceCounts:
    """How many rows of some patterns have evidence in each column, as `rows_that_observe`; for many questions.

    marks: bool [patterns, columns].
    counts: int64 [patterns], rows of each.
    """

    def __init__(self, marks: Mask, counts: Rows) -> None:
        self._marks, self._counts = marks, counts
        self._least = int(counts.min()) if len(counts) else 1
        self._bits = _words_of_bits(marks.T)

    def of(self, members: Mask) -> Rows:
        """Return int64 [columns]; members: bool [patterns]."""
        chosen = np.flatnonzero(members)
        if chosen.size < self._bits.shape[1]:
            few: Rows = self._counts[chosen] @ self._marks[chosen]
            return few
        # Bits are counted far faster than numbers are added up, and patterns of more rows than others are few or rare.
        often = np.flatnonzero(members & (self._counts != self._least))
        more: Rows = (self._counts[often] - self._least) @ self._marks[often]
        some = np.bitwise_count(self._bits & _words_of_bits(members[None, :]))
        same: Rows = some.sum(axis=1, dtype=np.int64)
        return self._least * same + more


def _words_of_bits(marks: Mask) -> npt.NDArray[np.uint64]:
    """Return the bits of each row of `marks`, 64 to a word."""
    words = np.zeros((len(marks), -(-marks.shape[1] // 64)), dtype=np.uint64)
    words.view(np.uint8)[:, : -(-marks.shape[1] // 8)] = np.packbits(marks, axis=1)
    return words


def distinct(
    marks: Mask, counts: Rows, threads: int = 1, keys: npt.NDArray[np.uint64] | None = None
) -> tuple[Mask, Rows, Rows]:
    """Return the distinct rows of `marks`, the most frequent first, their counts, and the number of each row's.

    marks: bool [patterns, columns], not all distinct; columns lie one after the other in memory.
    counts: int64 [patterns], rows of each.
    threads: that go through the columns.
    keys: uint64 [patterns], the same for equal ones, where they are known.
    """
    # By far the most common: all rows observe the same, and there is nothing to sort.
    if len(marks) and not marks.shape[1]:
        return marks[:1], np.array([counts.sum()]), np.zeros(len(marks), dtype=np.int64)
    words, parts = words_of(marks.shape[1]), _parts(marks, threads)
    if keys is None:
        columns, keys = range(marks.shape[1]), np.zeros(len(marks), dtype=np.uint64)
        for its in in_threads(lambda part, _: keys_of(marks, words, columns[part]), parts, threads):
            keys += its
    numbers, first = numbered(keys)
    if len(first) == len(marks) and (counts[:1] == counts).all():
        # All are distinct and as frequent, more often than not.
        return marks, counts, np.arange(len(marks))
    others = first[numbers]
    if not all(in_threads(lambda part, _: _are_equal(marks[:, part], others), parts, threads)):
        _, first, unique = np.unique(_packed(marks), return_index=True, return_inverse=True)
        numbers = unique.ravel()
    chosen, totals, numbers = ranked(first, numbers, counts)
    # All are distinct more often than not, and copies of large tables take long.
    same = len(chosen) == len(marks) and np.array_equal(chosen, np.arange(len(marks)))
    if same:
        return marks, totals, numbers
    # Column by column, as they lie in memory.
    taken = np.empty((marks.shape[1], len(chosen)), dtype=np.bool_)
    in_threads(lambda part, _: np.take(marks.T[part], chosen, axis=1, out=taken[part], mode="clip"), parts, threads)
    return taken.T, totals, numbers


def ranked(first: Rows, numbers: Rows, counts: Rows) -> tuple[Rows, Rows, Rows]:
    """Return groups of patterns, the most frequent first: first pattern, rows, and the number of each pattern's.

    first: int64 [groups], the first pattern of each.
    numbers: int64 [patterns], the group of each.
    counts: int64 [patterns], rows of each.
    """
    # Ties by their first pattern, so that the order does not depend on hashes or bits.
    totals = np.bincount(numbers, weights=counts, minlength=len(first)).astype(np.int64)
    order = np.lexsort((first, -totals))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return first[order], totals[order], place[numbers]


# Kept: to set up a generator takes longer than the columns of a small batch.
@lru_cache(maxsize=4)
def words_of(columns: int) -> npt.NDArray[np.uint64]:
    """Return a random number for each column, the same at every call."""
    words: npt.NDArray[np.uint64] = np.random.default_rng(0).integers(1 << 63, size=columns, dtype=np.uint64)
    return words


def keys_of(marks: Mask, words: npt.NDArray[np.uint64], columns: Iterable[int]) -> npt.NDArray[np.uint64]:
    """Return a number for each row of `marks`, the same for rows equal in some columns (Zobrist 1970, with sums)."""
    keys, term = np.zeros(len(marks), dtype=np.uint64), np.empty(len(marks), dtype=np.uint64)
    for column in columns:
        np.multiply(marks[:, column], words[column], out=term)
        keys += term
    return keys


def _are_equal(marks: Mask, others: Rows) -> bool:
    """Return True if each row of `marks` is equal to the one that it is compared with."""
    return all(np.array_equal(column, column.take(others)) for column in marks.T)


def _packed(marks: Mask) -> npt.NDArray[np.void]:
    """Return the bits of each row of `marks`, which are compared as they are."""
    # A leading bit keeps the key from being empty where there are no columns at all.
    packed = np.packbits(np.pad(marks, ((0, 0), (1, 0))), axis=1)
    return np.ascontiguousarray(packed).view(f"V{packed.shape[1]}").ravel()
