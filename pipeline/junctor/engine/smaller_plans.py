"""Smaller plans for some of the rows of a batch, where hardly two rows observe the same.

One plan for all rows has likelihoods for everything that only some of them observe, on a tree many times as large as
that of a row. A few of these columns make most of the difference, and most rows observe them or some of them: a second
plan, without these variables, serves those rows at a fraction of the work. Called by the router for GPUs, where a plan
takes as long to make as hundreds of thousands of rows, so that there may be few of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from junctor.engine.patterns import Mask, PatternPricer, Rows
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, span_of
from junctor.planning.shape import Pattern

# Plans in addition to the one that serves all rows.
MOST_PLANS = 3
# Columns that are tried at each step of a search, and steps without a gain after which it ends.
TRIED, PATIENCE = 6, 3
# Rows that are drawn for a search.
DRAWN = 4096
# Times what it takes that a plan has to save: prices are good to a factor of two.
SURE = 2.0

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SmallerPlan:
    """A plan for rows that observe some more columns than all rows do.

    columns: variables that it cuts out in addition.
    pattern: of its plan.
    saved: seconds of a row, in comparison with the plan for all rows.
    """

    columns: frozenset[int]
    pattern: Pattern
    saved: float


@dataclass(frozen=True, slots=True)
class SmallerPlanCosts:
    """What smaller plans are priced with.

    prices: of plans.
    savings: returns what a row of a plan would save, in multiply-adds, if a weighted variable were cut out of it.
    group: seconds of a group of rows in addition to those of its rows.
    rows, batches: that are to come.
    """

    prices: PatternPricer
    savings: Callable[[Pattern], dict[int, float]]
    group: float
    rows: int
    batches: int

    def may_pay(self, whole: Pattern) -> bool:
        """Return True if rows of a plan take so long that others may be worth making."""
        return self.rows * self.prices.row(whole) > SURE * self.prices.once(whole)


def rounded_shares(shares: Floats) -> Floats:
    """Return shares of rows that observe a column, rounded so that the next batch of the same kind has the same ones.

    The smaller part, with or without evidence, becomes a power of four.
    """
    part = np.minimum(shares, 1 - shares)
    with np.errstate(divide="ignore"):
        rounded = 4.0 ** np.round(np.log2(part) / 2)
    return np.where(shares > 0.5, 1 - rounded, rounded)


def smaller_plans(
    whole: Pattern, columns: Sequence[int], shares: Floats, costs: SmallerPlanCosts
) -> tuple[SmallerPlan, ...]:
    """Return the plans that are worth their while beside the one for all rows, those with the least work first.

    whole: pattern of the plan for all rows.
    columns: weighted variables of it.
    shares: of the rows that observe each, rounded. Rows are drawn by them, each column by itself: the choice must not
        change from batch to batch.
    """
    drawn = np.random.default_rng(0).random((len(columns), DRAWN)) < shares[:, None]
    search = _Search(whole, dict(zip(columns, drawn, strict=True)), costs)
    plans: list[SmallerPlan] = []
    while len(plans) < MOST_PLANS and (plan := search.best()) is not None:
        plans.append(plan)
    return tuple(sorted(plans, key=lambda plan: -plan.saved))


def rows_by_plan(batch: EvidenceBatch, rows: Rows, plans: Sequence[SmallerPlan], group: float) -> list[Rows]:
    """Return the rows (ascending) of each plan: those that it is the first to serve; then the rows of none of them.

    batch: evidence.
    rows: valid ones.
    plans: those with the least work first.
    group: seconds that the rows of a plan have to save, or another one serves them.
    """
    at, left, result = span_of(rows), np.ones(len(rows), dtype=np.bool_), []
    for plan in plans:
        here = left.copy()
        for v in sorted(plan.columns):
            here &= batch.states[v][at] != UNOBSERVED
        if np.count_nonzero(here) * plan.saved <= group:
            here[:] = False
        left &= ~here
        result.append(rows[here])
    return [*result, rows[left]]


class _Search:
    """Finds one plan after the other, each for the rows that are still dear."""

    def __init__(self, whole: Pattern, drawn: dict[int, Mask], costs: SmallerPlanCosts) -> None:
        self._whole = whole
        self._drawn = drawn
        self._costs = costs
        self._price = costs.prices.row(whole)
        # What each drawn row takes so far.
        self._seconds = np.full(DRAWN, self._price)

    def best(self) -> SmallerPlan | None:
        """Return the plan that saves most, found column by column; None where it saves less than it takes."""
        pattern, rows, failed = self._whole, np.ones(DRAWN, dtype=np.bool_), 0
        best, chosen, served = 0.0, None, rows
        while failed < PATIENCE and (found := self._with_one_more(pattern, rows)) is not None:
            saved, pattern, rows = found
            failed += 1
            if saved > best:
                best, chosen, served, failed = saved, pattern, rows, 0
        costs = self._costs
        taken = math.inf if chosen is None else costs.prices.once(chosen) + costs.group * costs.batches
        if chosen is None or best / DRAWN * costs.rows <= SURE * taken:
            return None
        price = costs.prices.row(chosen)
        self._seconds[served] = np.minimum(self._seconds[served], price)
        return SmallerPlan(chosen.sliced - self._whole.sliced, chosen, self._price - price)

    def _with_one_more(self, pattern: Pattern, rows: Mask) -> tuple[float, Pattern, Mask] | None:
        """Return what is saved, pattern and rows if one more column is cut out, the best of those that promise most."""
        savings = self._costs.savings(pattern)
        promised = {v: saved * np.count_nonzero(rows & self._drawn[v]) for v, saved in savings.items()}
        tried = []
        for v in sorted(promised, key=lambda v: (-promised[v], v))[:TRIED]:
            here = rows & self._drawn[v]
            cut = Pattern(pattern.sliced | {v}, pattern.weighted - {v})
            if not self._costs.prices.fits(cut):
                continue
            saved = np.maximum(self._seconds[here] - self._costs.prices.row(cut), 0).sum()
            # Of two that save as much the first one.
            tried.append((float(saved), -v, cut, here))
        if not tried:
            return None
        saved, _, cut, here = max(tried, key=lambda each: each[:2])
        return saved, cut, here
