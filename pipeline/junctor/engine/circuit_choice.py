"""Which rows go to circuits: those whose trees take long, of networks with zeros. Main function: `circuit_groups`.

A search for a circuit may take a share of what the trees would, so that rows that trees answer in little time never
wait for one. Of many rows a few are looked at: their trees stand for those of the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from junctor.backends.row_work import RowWork, alone_seconds
from junctor.circuits.limits import DENSE, MOST_DECISIONS
from junctor.evidence.batch import EvidenceBatch, Rows
from junctor.evidence.compiled_cells import evidence_cells
from junctor.evidence.patterns import NOBODY_LOOKED, PatternGroup, spread
from junctor.model.strategies import Rejected, Strategy
from junctor.strategies.circuit import CircuitRows, gpu_row_seconds, is_for_gpu, program_of, row_seconds
from junctor.strategies.facts import FEW_ROWS, SAMPLED, Facts

Seconds = npt.NDArray[np.float64]

# Seconds of trees up to which nobody searches for a circuit, and of a row that are as good as none at all; and of few
# rows together, where trees of others do not fit and a plan for each pattern would be searched for.
LEAST_SECONDS, LONG_ROW, FEW_SECONDS = 1.0, 60.0, 10.0
# How many times faster than trees of rows alone a circuit has to be: plans and shared trees take less.
GAIN = 4.0
# Share of the seconds of trees that a search may take; fewer decisions are not worth a search.
SEARCH_SHARE, LEAST_DECISIONS = 0.25, 1000


def circuit_groups(batch: EvidenceBatch, facts: Facts) -> list[PatternGroup]:
    """Return groups of rows that circuits answer, none where trees and plans take less; the others are chosen for.

    Few rows of which the zeros leave little get trees of their own at once: no plan knows what states rule out.
    """
    if facts.query.question.needs not in CircuitRows.supports or not batch.answered_count:
        return []
    if CircuitRows().refuses(facts) is not None or facts.network.above_zero > DENSE:
        return []
    rows, groups = batch.answered, list[PatternGroup]()
    # Of few rows all are looked at: some may have trees that never end, and others next to none.
    works = _works(rows if len(rows) <= FEW_ROWS else spread(rows, SAMPLED), batch, facts)
    sampled = _tree_seconds(works, facts)
    if facts.are_few(batch) and not facts.has_joint_table:
        fit = _fit(works, batch, facts)
        quick = _quick(sampled, fit)
        if quick.any():
            price = float(sampled[quick].sum())
            groups.append(PatternGroup(NOBODY_LOOKED, rows[quick], 0, Strategy.ROW_TREES, price=price))
        rows, sampled = rows[~quick], np.where(fit, sampled, math.inf)[~quick]
        if not rows.size:
            return groups
    return groups + _circuits(rows, sampled, batch, facts)


def _circuits(rows: Rows, sampled: Seconds, batch: EvidenceBatch, facts: Facts) -> list[PatternGroup]:
    """Return groups of rows that circuits answer; sampled: seconds of the trees of some of them, or of all."""
    trees = float(sampled.mean()) * facts.to_come(batch, len(rows))
    are_long = bool((sampled >= LONG_ROW).any())
    if facts.takes_gpu and not are_long:
        # Plans on a GPU are as much faster; whether they fit is not asked.
        trees /= facts.gpu_host.gain
    if trees < LEAST_SECONDS:
        return []
    decisions = _decisions(trees, facts.figures.circuits.decision)
    found = program_of(rows, batch, facts, decisions) if decisions else "a search takes longer than trees"
    if not isinstance(found, str):
        price = found.decisions * facts.figures.circuits.decision
        to_come = facts.to_come(batch, len(rows))
        price += to_come * (gpu_row_seconds if is_for_gpu(found, to_come, facts) else row_seconds)(found, facts)
        return [_group(rows, price, trees)] if GAIN * price < trees else []
    if not are_long or facts.asks_gpu:
        return []
    # Rows whose trees take too long get circuits of their own.
    every = sampled if len(sampled) == len(rows) else _tree_seconds(_works(rows, batch, facts), facts)
    wide = rows[every >= LONG_ROW]
    return [_group(wide, len(wide) * facts.figures.circuits.row, trees)] if wide.size else []


def _quick(seconds: Seconds, fit: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which of few rows get trees of their own at once: bool [rows]; fit: whether trees fit the memory."""
    if fit.all():
        return np.full(len(fit), seconds.sum() < LEAST_SECONDS)
    quick = fit & (seconds < LEAST_SECONDS)
    # Rows that are left to a plan for each pattern wait far longer.
    return quick if seconds[quick].sum() < FEW_SECONDS else np.zeros(len(fit), dtype=bool)


def gpu_answers(groups: Sequence[PatternGroup], batch: EvidenceBatch, facts: Facts) -> bool:
    """Return True if a GPU answers all rows of a batch by circuits."""
    if not facts.takes_gpu or len(groups) != 1 or len(groups[0].rows) != batch.answered_count:
        return False
    found = program_of(groups[0].rows, batch, facts, MOST_DECISIONS)
    if isinstance(found, str):
        return facts.asks_gpu
    return is_for_gpu(found, facts.to_come(batch, len(groups[0].rows)), facts)


def _works(rows: Rows, batch: EvidenceBatch, facts: Facts) -> list[RowWork]:
    """Return the work of rows with trees of their own."""
    return facts.row_engine.works_alone(evidence_cells(batch), rows)


def _tree_seconds(works: Sequence[RowWork], facts: Facts) -> Seconds:
    """Return the seconds of rows with trees of their own, whatever memory these take: float64 [rows]."""
    return np.array([_seconds(work, facts) for work in works])


def _fit(works: Sequence[RowWork], batch: EvidenceBatch, facts: Facts) -> npt.NDArray[np.bool_]:
    """Return which trees fit the memory beside the answers to a batch: bool [rows]."""
    most = min(facts.row_engine.entries, facts.tree_entries(batch))
    return np.array([work.room <= most for work in works])


def _seconds(work: RowWork, facts: Facts) -> float:
    # Not by what fits: memory would change who answers.
    return alone_seconds(work, facts.figures)


def _decisions(trees: float, decision: float) -> int:
    """Return the decisions of a search where trees take so many seconds, in steps of four times as many.

    decision: seconds of one.
    """
    most = min(MOST_DECISIONS, SEARCH_SHARE * trees / decision)
    if most < LEAST_DECISIONS:
        return 0
    if most == MOST_DECISIONS:
        return MOST_DECISIONS
    return LEAST_DECISIONS << 2 * int(math.log(most / LEAST_DECISIONS, 4))


def _group(rows: Rows, price: float, trees: float) -> PatternGroup:
    told = Rejected(Strategy.ROW_TREES, "its trees take longer than a circuit", trees)
    return PatternGroup(NOBODY_LOOKED, rows, 0, Strategy.CIRCUIT, price=price, rejected=(told,))


def without(rows: Rows, groups: Sequence[PatternGroup]) -> Rows:
    """Return rows that are in none of some groups."""
    return np.setdiff1d(rows, np.concatenate([group.rows for group in groups]))
