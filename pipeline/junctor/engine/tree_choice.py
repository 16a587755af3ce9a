"""Which rows share a tree made in compiled code, where rows of a batch differ in what they observe.

Rows on one tree are computed together in vectors; what only some of them observe stays in the tree, and is cut out
table by table. Rows that agree in more columns have a smaller tree, but are fewer. Main class: TreeChoice, called by
the router for batches on CPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from junctor.backends.row_trees import RowEngine, RowWork, alone_seconds, block_rows
from junctor.cost.constants import CPU
from junctor.engine.patterns import Mask, PatternGroup, Patterns, Rows, distinct, rows_that_observe, spread
from junctor.evidence.batch import EvidenceBatch

# Rows of a vector: fewer are computed with lanes left empty.
LANES = 8
# Share of the work of a batch that trees tried for the choice may take.
CHOICE_SHARE = 0.04
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


def shared_seconds(work: RowWork, rows: npt.ArrayLike, mixed: bool, above_zero: float) -> npt.NDArray[np.float64]:
    """Return the seconds of groups of so many rows on one tree each.

    work: of a row of such a group.
    mixed: whether its rows differ in what they observe.
    above_zero: share of the entries of the network's factors.
    """
    counts = np.asarray(rows, dtype=np.float64)
    block = block_rows(work.entries, work.tables, mixed)
    # Fewer rows than a vector has lanes do not go together.
    if block < LANES:
        return np.full(counts.shape, np.inf)
    lanes = np.ceil(counts / LANES) * LANES
    operations = work.operations * above_zero
    row = operations * CPU.lane_operation + work.entries * CPU.lane_entry
    start = operations * CPU.lane_start + work.tables * (CPU.lane_table + CPU.tree_plan)
    return lanes * row * (CPU.lane_mixed if mixed else 1) + np.ceil(counts / block) * start


class TreeChoice:
    """The cheapest groups of the rows of a batch that share trees.

    batch: evidence.
    patterns: of the batch.
    engine: that plans trees.
    """

    def __init__(self, batch: EvidenceBatch, patterns: Patterns, engine: RowEngine) -> None:
        self._batch = batch
        self._patterns = patterns
        self._engine = engine
        rows = int(patterns.counts.sum())
        share = rows_that_observe(patterns.marks, patterns.counts) / rows
        hard = np.arange(len(patterns.variables)) < patterns.hard
        self._always = hard & (share == 1)
        self._sometimes = np.flatnonzero(hard & (share > 0) & (share < 1))
        self._soft = frozenset(patterns.variables[i] for i in np.flatnonzero(~hard))
        alone, tables = self._alone(np.ones(len(patterns.counts), dtype=np.bool_), SAMPLED)
        # By counts and not by time: equal batches get equal groups.
        trees = CHOICE_SHARE * rows * min(alone, 1e3) / (tables * CPU.tree_plan + CPU.tree_forecast)
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
        group_of_row = best.numbers[patterns.numbers]
        for number in np.flatnonzero(best.together):
            members = best.numbers == number
            pattern = patterns.serving(patterns.marks[members])
            result.append(PatternGroup(pattern, patterns.rows[group_of_row == number], int(members.sum()), tree=True))
        alone = ~best.together[best.numbers]
        if alone.any():
            rows = patterns.rows[alone[patterns.numbers]]
            result.append(PatternGroup(patterns.serving(patterns.marks[alone]), rows, int(alone.sum()), per_row=True))
        return result

    def _best_of(self, counts: list[int]) -> _Trial:
        """Return the cheapest trial, until several in a row are no cheaper: that many threads would wait for."""
        best, before = self._trial(counts[0]), 0
        for count in counts[1:]:
            trial = self._trial(count)
            before = 0 if trial.seconds < best.seconds else before + 1
            best = min(best, trial, key=lambda each: each.seconds)
            if before == PATIENCE:
                break
        return best

    def _trial(self, columns: int) -> _Trial:
        """Group the patterns by the first so many columns of the order."""
        patterns = self._patterns
        marks = patterns.marks[:, self._order[:columns]]
        _, counts, numbers = distinct(marks, patterns.counts)
        mixed = columns < len(self._order)
        # The largest groups come first: some at fixed places among the rows stand for their neighbours.
        ends = np.cumsum(counts)
        chosen = sorted({int(np.searchsorted(ends, place * ends[-1])) for place in PLACES})
        bounds = [*chosen[1:], len(counts)]
        seconds, alone = np.zeros(len(counts)), np.zeros(len(counts))
        first = 0
        for group, last in zip(chosen, bounds, strict=True):
            members = numbers == group
            work = self._work(members, int(counts[group]))
            seconds[first:last] = shared_seconds(work, counts[first:last], mixed, self._engine.above_zero)
            # Of the same rows: those of large groups often have smaller trees than others.
            alone[first:last] = counts[first:last] * self._alone(members, SAMPLED_OF_GROUP)[0]
            first = last
        # Rows that fill no vector have trees of their own: sampled groups say little about the trees of rare ones.
        together = (seconds < alone) & (counts >= LANES)
        return _Trial(numbers, counts, together, float(np.where(together, seconds, alone).sum()))

    def _alone(self, members: Mask, most: int) -> tuple[float, float]:
        """Return the mean seconds and tables of rows of some patterns with trees of their own, by some of them."""
        rows = self._patterns.rows[members[self._patterns.numbers]]
        works = self._engine.works_alone(self._batch, spread(rows, most))
        seconds, tables = np.mean([(alone_seconds(work), work.tables) for work in works], axis=0).tolist()
        return seconds, tables

    def _work(self, members: Mask, rows: int) -> RowWork:
        """Return the work of a row on a tree for some patterns."""
        observed, shares = self._evidence(members)
        return self._engine.work(observed, self._soft, shares, rows)

    def _evidence(self, members: Mask) -> tuple[frozenset[int], dict[int, float]]:
        """Return what all rows of some patterns observe, and the share of them that observe what only some do."""
        patterns = self._patterns
        counts = patterns.counts[members]
        # Column by column, as they lie in memory: a quarter of the time.
        marks = patterns.marks.T[: patterns.hard].compress(members, axis=1).T
        share = rows_that_observe(marks, counts) / counts.sum()
        observed = frozenset(patterns.variables[i] for i in np.flatnonzero(share == 1))
        return observed, {patterns.variables[i]: float(share[i]) for i in np.flatnonzero((share > 0) & (share < 1))}

    def _by_gain(self, share: npt.NDArray[np.float64]) -> Rows:
        """Return the columns that only some rows observe, first those that gain most for the groups they make."""
        patterns = self._patterns
        observed = [patterns.variables[i] for i in np.flatnonzero(self._always)]
        shares = {patterns.variables[i]: float(share[i]) for i in self._sometimes}
        savings = self._engine.savings(observed, shares)
        gain = np.array([savings[patterns.variables[i]] for i in self._sometimes])
        split = np.minimum(share[self._sometimes], 1 - share[self._sometimes])
        return self._sometimes[np.argsort(-gain / split, kind="stable")]
