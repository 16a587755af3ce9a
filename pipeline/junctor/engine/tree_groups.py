"""Which rows share a tree made in compiled code, where rows of a batch differ in what they observe.

Rows on one tree are computed together in vectors; what only some of them observe stays in the tree, and is cut out
table by table. Rows that agree in more columns have a smaller tree, but are fewer. Main class: TreeChoice, called by
the choice for batches on CPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from junctor.backends.row_trees import RowEngine
from junctor.backends.row_work import LANES, RowWork, alone_seconds, shared_seconds
from junctor.cost.figures import Figures
from junctor.cost.policy import PLANNING_SHARE
from junctor.evidence.batch import EvidenceBatch
from junctor.evidence.compiled_cells import evidence_cells
from junctor.evidence.deduplicate import numbered
from junctor.evidence.patterns import (
    EvidenceCounts,
    Mask,
    PatternGroup,
    Patterns,
    Rows,
    keys_of,
    ranked,
    spread,
    words_of,
)
from junctor.model.strategies import Strategy
from junctor.planning.shape import Pattern

# Counts of columns that tell groups apart, in the order in which they are tried.
TRIED = (0, 10**9, 8, 2, 32, 4, 16, 1, 64, 12, 6, 3, 24, 48, 128)
# Trials in a row that are no cheaper than the best, after which none follows.
PATIENCE = 4
# Groups whose trees stand for all groups of a trial, by their places among the rows.
PLACES = (0.1, 0.5, 0.9)
# Rows of a batch, and of a group, that stand for others with trees of their own.
SAMPLED = 8
SAMPLED_OF_GROUP = 3


@dataclass(frozen=True, eq=False, slots=True)
class _Trial:
    """Groups of patterns that agree in some columns: the number of each pattern, rows of each group, and seconds.

    together: bool [groups], those that share a tree; rows of the others have trees of their own.
    """

    numbers: Rows
    counts: Rows
    together: Mask
    seconds: float


class TreeChoice:
    """The cheapest groups of the rows of a batch that share trees.

    batch: evidence.
    patterns: of the batch.
    engine: that plans trees.
    figures: of the CPU.
    """

    def __init__(self, batch: EvidenceBatch, patterns: Patterns, engine: RowEngine, figures: Figures) -> None:
        self._figures = figures
        self._cells = evidence_cells(batch)
        self._patterns = patterns
        self._engine = engine
        self._evidence = EvidenceCounts(patterns.marks, patterns.counts)
        self._variables = np.array(patterns.variables, dtype=np.int64)
        rows = int(patterns.counts.sum())
        share = self._evidence.of(np.ones(len(patterns.counts), dtype=np.bool_)) / rows
        hard = np.arange(len(patterns.variables)) < patterns.hard
        self._always = hard & (share == 1)
        self._sometimes = np.flatnonzero(hard & (share > 0) & (share < 1))
        self._soft = frozenset(patterns.variables[i] for i in np.flatnonzero(~hard))
        alone, tables = self._alone(np.ones(len(patterns.counts), dtype=np.bool_), SAMPLED)
        # By counts and not by time: equal batches get equal groups.
        trees = PLANNING_SHARE * rows * min(alone, 1e3) / (tables * figures.trees.plan + figures.trees.asked)
        trial = len(PLACES) * (1 + SAMPLED_OF_GROUP)
        self._order = self._by_gain(share) if trees > 2 * trial else self._sometimes
        tried = dict.fromkeys(min(count, len(self._order)) for count in TRIED[: max(2, int(trees / trial))])
        self._best = self._best_of(list(tried))

    @property
    def seconds(self) -> float:
        """Forecast of all rows, on one core."""
        return self._best.seconds

    def groups(self) -> list[PatternGroup]:
        """Return the groups that share a tree, then the rows with a tree of their own."""
        patterns, best = self._patterns, self._best
        result = []
        groups = np.arange(len(best.counts) + 1)
        # All groups at once: there may be hundreds, and thousands of rows.
        # Numbers of two bytes are sorted by their digits, several times as fast.
        short = best.numbers.astype(np.min_scalar_type(len(best.counts)))
        by_group, of_row = np.argsort(short, kind="stable"), short[patterns.numbers]
        members, rows = np.searchsorted(best.numbers[by_group], groups), np.argsort(of_row, kind="stable")
        lines = np.searchsorted(of_row[rows], groups)
        for number in np.flatnonzero(best.together):
            chosen = np.zeros(len(best.numbers), dtype=np.bool_)
            chosen[by_group[members[number] : members[number + 1]]] = True
            its_rows = patterns.rows[rows[lines[number] : lines[number + 1]]]
            result.append(
                PatternGroup(self._pattern(chosen), its_rows, int(chosen.sum()), Strategy.ROW_TREES, shared=True)
            )
        alone = ~best.together[best.numbers]
        if alone.any():
            rows = patterns.rows[alone[patterns.numbers]]
            result.append(PatternGroup(self._pattern(alone), rows, int(alone.sum()), Strategy.ROW_TREES))
        return result

    def _best_of(self, counts: list[int]) -> _Trial:
        """Return the cheapest trial, until several in a row are no cheaper."""
        # One after the other: half of each is Python, so that in threads they take as long, and more of them run.
        best, before = self._trial(counts[0]), 0
        for columns in counts[1:]:
            trial = self._trial(columns)
            best, before = (trial, 0) if trial.seconds < best.seconds else (best, before + 1)
            if before == PATIENCE:
                break
        return best

    def _trial(self, columns: int) -> _Trial:
        """Group the patterns by the first so many columns of the order."""
        counts, numbers = self._grouped(self._order[:columns])
        mixed = columns < len(self._order)
        # The largest groups come first: some at fixed places among the rows stand for their neighbours.
        ends = np.cumsum(counts)
        chosen = sorted({int(np.searchsorted(ends, place * ends[-1])) for place in PLACES})
        bounds = [*chosen[1:], len(counts)]
        seconds, alone = np.zeros(len(counts)), np.zeros(len(counts))
        first = 0
        for group, last in zip(chosen, bounds, strict=True):
            members = numbers == group
            # Rows that fill no vector have trees of their own: sampled groups say little about the trees of rare ones.
            if counts[first] >= LANES:
                work = self._work(members, int(counts[group]))
                share = self._engine.above_zero
                seconds[first:last] = shared_seconds(work, counts[first:last], mixed, share, self._figures)
            # Of the same rows: those of large groups often have smaller trees than others.
            alone[first:last] = counts[first:last] * self._alone(members, SAMPLED_OF_GROUP)[0]
            first = last
        together = (seconds < alone) & (counts >= LANES)
        return _Trial(numbers, counts, together, float(np.where(together, seconds, alone).sum()))

    def _alone(self, members: Mask, most: int) -> tuple[float, float]:
        """Return the mean seconds and tables of rows of some patterns with trees of their own, by some of them."""
        rows = self._patterns.rows[spread(np.flatnonzero(members.take(self._patterns.numbers)), most)]
        works = self._engine.works_alone(self._cells, rows)
        seconds, tables = np.mean(
            [(alone_seconds(work, self._figures), work.tables) for work in works], axis=0
        ).tolist()
        return seconds, tables

    def _grouped(self, columns: Rows) -> tuple[Rows, Rows]:
        """Return the rows of each group of patterns that agree in some columns, and the number of each pattern's."""
        patterns = self._patterns
        if len(columns) == len(self._sometimes) and not self._soft:
            # All columns tell all patterns apart.
            return patterns.counts, np.arange(len(patterns.counts))
        # Equal by chance with probability 1e-12, and then they only share a tree.
        keys = keys_of(patterns.marks, words_of(patterns.marks.shape[1]), columns)
        numbers, first = numbered(keys)
        _, counts, numbers = ranked(first, numbers, patterns.counts)
        return counts, numbers

    def _work(self, members: Mask, rows: int) -> RowWork:
        """Return the work of a row on a tree for some patterns."""
        hard = self._patterns.hard
        share = np.zeros(self._engine.variables)
        share[self._variables[:hard]] = self._evidence.of(members)[:hard] / rows
        return self._engine.work_of(share, self._soft, rows)

    def _pattern(self, members: Mask) -> Pattern:
        """Return the pattern that serves some patterns, as `Patterns.serving`."""
        rows = self._evidence.of(members)
        sliced = (rows == self._patterns.counts[members].sum()) & (np.arange(len(rows)) < self._patterns.hard)
        return self._patterns.pattern(sliced, (rows > 0) & ~sliced)

    def _by_gain(self, share: npt.NDArray[np.float64]) -> Rows:
        """Return the columns that only some rows observe, first those that gain most for the groups they make."""
        patterns = self._patterns
        observed = [patterns.variables[i] for i in np.flatnonzero(self._always)]
        shares = {patterns.variables[i]: float(share[i]) for i in self._sometimes}
        savings = self._engine.savings(observed, shares)
        gain = np.array([savings[patterns.variables[i]] for i in self._sometimes])
        split = np.minimum(share[self._sometimes], 1 - share[self._sometimes])
        return self._sometimes[np.argsort(-gain / split, kind="stable")]
