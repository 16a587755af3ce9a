"""Which rows share a plan: the cheapest way to plan for all patterns of a batch.

A plan that cuts out exactly what its rows observe is the cheapest to run, but takes time to make, and a row of a rare
pattern pays for all of that. So patterns may be made coarser: some columns are *loose*, their evidence enters as
likelihoods and no longer tells patterns apart. What is still rare then shares one plan, with everything loose that is
not common to all, or goes row by row through the row engine. Main class: PatternChoice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from junctor.cost.features.plans import plain_seconds
from junctor.evidence.batch import EvidenceBatch
from junctor.evidence.patterns import (
    MOST_PATTERNS,
    Mask,
    PatternGroup,
    Patterns,
    Rows,
    distinct,
    keys_of,
    rows_that_observe,
    spread,
    words_of,
)
from junctor.model.strategies import Strategy
from junctor.planning.shape import Pattern

if TYPE_CHECKING:
    from junctor.strategies.facts import Facts

# Rows that are looked at for what one with a tree of its own takes.
SAMPLED_ROWS = 6
# The share of what a search may save at the most that it finds.
FOUND_SHARE = 0.25
# Sets of loose columns that are tried.
MOST_TRIALS = 24
# The share of the rows from which on the most frequent pattern stands for all.
TYPICAL_SHARE = 0.1
# Parts of the columns that most rows observe, of which a typical pattern has some.
TYPICAL_PARTS = 16


@dataclass(frozen=True, slots=True)
class PatternPricer:
    """Prices of an engine, in seconds.

    row: a row of a plan for a pattern.
    once: to make that plan.
    fits: whether a plan for a pattern fits the memory.
    per_row: a row with a tree of its own, infinite where that cannot be.
    mark: to look at a column of a pattern, which each trial of a search does.
    """

    row: Callable[[Pattern], float]
    once: Callable[[Pattern], float]
    fits: Callable[[Pattern], bool]
    per_row: float = math.inf
    mark: float = 0.0


class PatternChoice:
    """The cheapest answers to the rows of a batch of several patterns: their `groups`, and `seconds` in all.

    search: whether sets of loose columns are tried, where they may save more than that takes.
    rows: that the patterns stand for, where they are those of some rows.
    """

    def __init__(
        self, patterns: Patterns, prices: PatternPricer, search: bool = False, rows: int | None = None
    ) -> None:
        self._patterns = patterns
        self._prices = prices
        self._is_hard = np.arange(len(patterns.variables)) < patterns.hard
        self._share = rows_that_observe(patterns.marks, patterns.counts) / patterns.counts.sum()
        always = (self._share == 1) & self._is_hard
        shared = patterns.pattern(always, (self._share > 0) & ~always)
        together = prices.row(shared) if prices.fits(shared) else math.inf
        self._shared = shared
        self._per_row = prices.per_row < together
        # Price of a row that is not worth a plan of its pattern.
        self._rest = min(prices.per_row, together)
        step = -(-len(patterns.counts) // MOST_PATTERNS)
        self._marks = patterns.marks[::step]
        self._counts = patterns.counts[::step]
        # Sampled patterns stand for all rows.
        self._rows = float(patterns.counts.sum() if rows is None else rows)
        self._scale = self._rows / self._counts.sum()
        self._loose = np.zeros(len(self._is_hard), dtype=np.bool_)
        # Nothing is loose, and all patterns are distinct.
        self.seconds = self._total(self._loose, np.arange(len(self._counts)))
        if search and self._may_pay():
            self._search()

    def _may_pay(self) -> bool:
        """Return True if a search may save more than it takes, and more than a plan does."""
        seen = self._share > 0
        # At the most, of rows of which all is cut out.
        least = self._patterns.pattern(seen & self._is_hard, seen & ~self._is_hard)
        saving = self.seconds - self._rows * self._prices.row(least)
        search = MOST_TRIALS * self._marks.size * self._prices.mark
        return FOUND_SHARE * saving > search and saving > self._prices.once(least)

    def _search(self) -> None:
        """Find columns that are better left loose: they cost little and are often missing."""
        share = self._share
        # What is observed in fewer rows than not would only split groups.
        seldom = (share < 0.5) | ~self._is_hard
        order = self._by_price(seldom, share)
        words = words_of(len(seldom))
        keys = keys_of(self._marks, words, np.flatnonzero(~seldom))
        loose, done = seldom.copy(), 0
        # Prefixes of one order instead of all sets, which are too many.
        for count in sorted({round(len(order) * i / MOST_TRIALS) for i in range(MOST_TRIALS + 1)}):
            # What no longer tells patterns apart leaves their keys.
            keys -= keys_of(self._marks, words, order[done:count])
            loose[order[done:count]] = True
            done, total = count, self._total(loose, keys)
            if total < self.seconds:
                self._loose, self.seconds = loose.copy(), total

    def groups(self) -> list[PatternGroup]:
        """Return the groups: patterns that are worth a plan, then the rest."""
        patterns, loose = self._patterns, self._loose
        marks, counts, numbers = self._united(patterns.marks, patterns.counts, loose)
        worth = self._worth(counts, self._seconds(self._typical(marks, counts, loose), loose))
        planned = [patterns.serving(patterns.marks[numbers == p], loose) for p in range(worth)]
        # Sorted by counts: those worth a plan come first, and the last group takes the rest.
        group_of_pattern = np.minimum(numbers, worth)
        group_of_row = group_of_pattern[patterns.numbers]
        rows = [patterns.rows[group_of_row == g] for g in range(worth + 1)]
        members = [np.flatnonzero(group_of_pattern == g) for g in range(worth + 1)]
        groups = [PatternGroup(pattern, rows[g], len(members[g])) for g, pattern in enumerate(planned)]
        if members[-1].size:
            shared = self._shared
            if worth:
                marks = patterns.marks[members[-1]]
                shared = patterns.serving(marks)
            alone = Strategy.ROW_TREES if self._per_row else None
            groups.append(PatternGroup(shared, rows[-1], len(members[-1]), alone))
        return groups

    def _by_price(self, seldom: Mask, share: npt.NDArray[np.float64]) -> list[int]:
        """Return the columns that are often observed but not always, the cheapest to leave loose first."""
        often = np.flatnonzero(~seldom & (share < 1))
        # Rounded, so that the next batch of the same kind gets the same order, and its plans serve again.
        missing = 2.0 ** np.round(np.log2(1 - share[often]))
        base = self._price(~seldom, seldom)
        # What a loose column adds to the price of a row, over the share of rows that it unites with others.
        added = []
        for column, rows in zip(often, missing, strict=True):
            loose = seldom.copy()
            loose[column] = True
            added.append((self._price(~loose, loose) - base) / rows)
        return [int(often[i]) for i in np.argsort(added, kind="stable")]

    def _total(self, loose: Mask, keys: npt.NDArray[np.integer]) -> float:
        """Return the seconds of all rows where some columns are loose; keys: equal for patterns equal beside them."""
        _, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
        counts = np.bincount(numbers.ravel(), weights=self._counts, minlength=len(first)).astype(np.int64)
        order = np.lexsort((first, -counts))
        counts = counts[order]
        seconds = self._seconds(self._typical(self._marks[first[order[:1]]] & ~loose, counts, loose), loose)
        worth = self._worth(counts * self._scale, seconds)
        once, row = seconds
        planned = float(counts[:worth].sum())
        return float(self._scale) * (planned * row + float(counts[worth:].sum()) * self._rest) + worth * once

    def _united(self, marks: Mask, counts: Rows, loose: Mask) -> tuple[Mask, Rows, Rows]:
        """Return patterns without loose columns, as `distinct` does; they are distinct already where none is loose."""
        return distinct(marks & ~loose, counts) if loose.any() else (marks, counts, np.arange(len(counts)))

    def _typical(self, marks: Mask, counts: Rows, loose: Mask) -> Mask:
        """Return the most frequent pattern or, where none is frequent, columns that most rows observe.

        Where all are rare, each batch would have another one first, and its price would be asked for anew.
        """
        if counts[0] >= TYPICAL_SHARE * counts.sum():
            frequent: Mask = marks[0]
            return frequent
        typical = np.zeros(len(loose), dtype=np.bool_)
        often = np.flatnonzero((self._share >= 0.5) & ~loose)
        if often.size:
            # Not more of them than a row observes: most rows observe each, and hardly one observes all. Evenly spread,
            # and about so many, so that the next batch has the same ones.
            observed = float(self._share[~loose].sum())
            parts = min(TYPICAL_PARTS, round(TYPICAL_PARTS * observed / often.size))
            typical[often[np.arange(often.size) * parts % TYPICAL_PARTS < parts]] = True
        return typical

    def _seconds(self, marks: Mask, loose: Mask) -> tuple[float, float]:
        """Return the price of a plan, once and for each row: that of a typical pattern stands for all."""
        pattern = self._patterns.serving((marks | loose)[None, :], loose)
        if not self._prices.fits(pattern):
            return math.inf, math.inf
        return self._prices.once(pattern), self._prices.row(pattern)

    def _worth(self, counts: npt.NDArray[Any], seconds: tuple[float, float]) -> int:
        """Return how many of the patterns (most frequent first) are worth a plan of their own."""
        once, row = seconds
        if math.isinf(self._rest):
            return len(counts)
        if row >= self._rest:
            return 0
        # A plan pays where what its rows save exceeds what it takes to make.
        return int(np.count_nonzero(counts * (self._rest - row) > once))

    def _price(self, sliced: Mask, loose: Mask) -> float:
        return self._prices.row(self._patterns.serving((sliced | loose)[None, :], loose))


def plain_prices(facts: Facts) -> PatternPricer:
    """Return prices from plans, for batches that are not worth loading compiled code for."""
    variables = len(facts.network.variables)
    return PatternPricer(
        row=lambda pattern: plain_seconds(facts.plan(pattern), facts.figures),
        once=lambda pattern: (variables - len(pattern.sliced)) * facts.figures.planning.variable,
        fits=facts.fits,
    )


def compiled_prices(
    facts: Facts, per_row: float, likelihood: float, planned: tuple[float, float] | None = None
) -> PatternPricer:
    """Return prices from the trees of the row engine, which take a millisecond to build.

    per_row: seconds of a row with a tree of its own, infinite where that cannot be.
    likelihood: seconds of a cell that enters as one.
    planned: seconds of a table and of an entry, to make a plan; None for one of compiled blocks.
    """
    coefficients, planning = facts.row_price, facts.figures.planning

    def row(pattern: Pattern) -> float:
        operations, _, tables = facts.work(pattern)
        likelihoods = len(pattern.weighted) * likelihood
        return operations * coefficients[0] + tables * coefficients[1] + likelihoods

    def once(pattern: Pattern) -> float:
        _, entries, tables = facts.work(pattern)
        table, entry = planned or (planning.table, planning.entry)
        return tables * table + entries * entry

    # Messages in double precision; a plan takes about as much for a single case.
    fits: Callable[[Pattern], bool] = lambda pattern: facts.work(pattern)[1] * 8 < facts.allowed  # noqa: E731
    return PatternPricer(row, once, fits, per_row, planning.mark)


def row_tree_seconds(facts: Facts, patterns: Patterns, batch: EvidenceBatch) -> float:
    """Return the seconds of a row with a tree of its own, the mean over some of the rows of a batch."""
    from junctor.evidence.compiled_cells import evidence_cells

    works = facts.row_engine.works_alone(evidence_cells(batch), spread(patterns.rows, SAMPLED_ROWS))
    return facts.row_engine.seconds_alone(works, facts.figures)
