"""Rows with junction trees made in compiled code: one for each row, or one for all rows of a group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from junctor.backends.row_work import LANES, RowWork, alone_seconds, run_seconds, shared_seconds
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, Rows
from junctor.evidence.patterns import PatternGroup, spread
from junctor.model.answers import Answers, table_bytes, unanswered
from junctor.model.network import Factor, Network, Variable
from junctor.model.query import Query
from junctor.model.strategies import Strategy
from junctor.runtime.cache import user_cache
from junctor.strategies.facts import Facts
from junctor.strategies.strategy import Allowance, MemoryUse, Offer, Price, Route, Run, Way

if TYPE_CHECKING:
    from junctor.evidence.compiled_cells import EvidenceCells

# Rows that are looked at where each has a tree of its own; more, up to a number and as long as their trees take a share
# of all rows' seconds, until the mean is known to a share of it.
SAMPLED_ROWS, MOST_SAMPLED_ROWS = 16, 1024
SAMPLED_SHARE, SAMPLED_ERROR = 0.03, 0.05


class RowTrees(Way):
    """Trees that are planned where rows are answered."""

    name = Strategy.ROW_TREES
    together = True

    def offer(self, group: PatternGroup, batch: EvidenceBatch, facts: Facts) -> Offer | str:
        """By the tree of the pattern where rows may share it, or the trees of some of the rows."""
        alone = facts.seconds_alone(group, batch)
        shared = self._shared(group, facts)
        # Too few do not fill the lanes of a vector.
        own = len(group.rows) < LANES or alone < shared
        seconds = alone if own else shared
        if math.isinf(seconds):
            return "its tables are too large"
        taken = replace(group, strategy=self.name, shared=not own)
        return Offer(taken, Price(load=facts.figures.loading.trees, row=seconds))

    def _shared(self, group: PatternGroup, facts: Facts) -> float:
        """Return the seconds of a row on a tree that all rows of one pattern share; infinite where they share none."""
        if facts.explains or group.patterns > 1 or facts.takes_gpu:
            return math.inf
        rows = len(group.rows)
        return (
            float(shared_seconds(facts.work(group.pattern), rows, False, facts.row_engine.above_zero, facts.figures))
            / rows
        )

    def prepare(self, group: PatternGroup, uses: int, batch: EvidenceBatch, facts: Facts, room: Allowance) -> Route:
        """Trees are planned where rows are answered, in all memory that programs leave."""
        memory = MemoryUse(
            facts.allowed, room.budget.reserved, room.budget.reserved, facts.allowed - sum(room.kept.values())
        )
        why = "too few rows for a plan" if facts.are_few(batch) else "their patterns have too little in common"
        reason = f"row by row, a tree for each: {why}"
        if group.shared:
            reason = "together on a tree made in compiled code: a plan would take longer than they do"
        return Route(group, self.name, facts.reason(self.name, reason), memory)

    def forecast(self, route: Route, batch: EvidenceBatch, facts: Facts, bound: int) -> Route:
        """By the tree that a group shares, or the trees of some of its rows."""
        from junctor_kernels.row_trees.together import block_rows

        from junctor.backends.row_trees import room_bytes
        from junctor.evidence.compiled_cells import evidence_cells

        group, row_engine = route.group, facts.row_engine
        if group.shared:
            shares = {v: share for v in group.pattern.weighted if 0 < (share := _share(batch, group, v)) < 1}
            soft = group.pattern.weighted - shares.keys()
            trees = [row_engine.work(group.pattern.sliced, soft, shares, len(group.rows))]
            seconds = float(
                shared_seconds(trees[0], len(group.rows), group.patterns > 1, row_engine.above_zero, facts.figures)
            )
            held = [trees[0].entries]
            seconds += len(group.rows) * trees[0].tables * facts.figures.shared_trees.row * (group.patterns > 1)
        else:
            trees, held = _sampled_trees(facts, evidence_cells(batch), group.rows)
            seconds = len(group.rows) * _mean_seconds(facts, trees)
        share = len(group.rows) / len(trees)
        # Rows with larger trees do without one: they get a plan.
        pairs = zip(held, trees, strict=True)
        fitting = [(entries, tree.tables) for entries, tree in pairs if tree.entries <= row_engine.entries]
        entries, tables = max(fitting, default=(0.0, 0.0))
        together = block_rows(entries, tables, group.patterns > 1) if group.shared else 1
        size = room_bytes(facts.network, int(entries) * together) + route.memory.reserved
        operations = int(share * sum(tree.operations for tree in trees if math.isfinite(tree.operations)))
        memory = replace(route.memory, needed=size, projected=size)
        work = {"operations": float(operations), "tables": float(share * sum(tree.tables for tree in trees))}
        return replace(route, operations=operations, memory=memory, seconds=seconds, work=work)

    def answer(self, work: Sequence[Route], batch: EvidenceBatch, answers: Answers, run: Run) -> Rows:
        """All groups in one call, which all threads share: one alone may be too little for them."""
        # Imported here: it loads compiled code.
        from junctor.backends import row_trees

        row_engine = run.facts.row_engine
        row_engine.allow(run.free, run.facts.working)
        groups = [row_trees.TreeRows(route.group.rows, route.group.shared) for route in work]
        return run.possible(row_engine.answer_groups(batch, groups, answers), batch, answers)


def _sampled_trees(facts: Facts, cells: EvidenceCells, rows: Rows) -> tuple[list[RowWork], list[float]]:
    """Return the work of some rows with trees of their own, more of them where it differs, and entries held by each.

    cells: of a batch.
    rows: of the batch.
    """
    # By counts, not by time. Few rows of many have most of the work where large tables are left to them.
    count = SAMPLED_ROWS
    while True:
        some = spread(rows, count)
        held = np.zeros(len(some), dtype=np.int64)
        trees = facts.row_engine.works_alone(cells, some, held)
        seconds = np.array([run_seconds(tree, facts.cpu_costs, facts.row_engine.above_zero < 1) for tree in trees])
        planning = facts.figures.trees.start * np.mean([tree.tables for tree in trees])
        # Of rows that are refused nothing is to be known.
        most = SAMPLED_SHARE * len(rows) * seconds.mean() / planning if np.isfinite(seconds).all() and planning else 0
        if count >= min(len(rows), most, MOST_SAMPLED_ROWS):
            return trees, held.astype(np.float64).tolist()
        if seconds.std() <= SAMPLED_ERROR * seconds.mean() * math.sqrt(count):
            return trees, held.astype(np.float64).tolist()
        count *= 4


def _mean_seconds(facts: Facts, trees: Sequence[RowWork]) -> float:
    """Return the mean seconds of rows with trees of their own; infinite where one is too large."""
    has_zeros, costs = facts.row_engine.above_zero < 1, facts.cpu_costs
    extra = [
        run_seconds(tree, costs, has_zeros) - alone_seconds(tree, costs.figures)
        for tree in trees
        if math.isfinite(tree.operations)
    ]
    return facts.row_engine.seconds_alone(trees, costs.figures) + sum(extra) / max(1, len(extra))


def _share(batch: EvidenceBatch, group: PatternGroup, variable: int) -> float:
    """Return the share of the rows of a group that observe a variable."""
    column = batch.states.get(variable)
    return 0.0 if column is None else float(np.mean(column[group.rows] != UNOBSERVED))


def load_trees() -> None:
    """Load the compiled code for rows with trees of their own, which otherwise the first of them does."""
    from junctor.backends.row_trees import RowEngine, room_bytes

    # A row of any network needs all of it.
    network, query = Network("", (Variable("a", ("0",)),), (Factor((0,), np.ones(1)),)), Query()
    memory = np.empty(table_bytes(query, (0,), network.cardinalities, 1), dtype=np.uint8)
    answers = unanswered(query, (0,), network.cardinalities, 1, {}, memory)
    batch = EvidenceBatch(1, {0: np.zeros(1, dtype=np.int32)})
    engine = RowEngine(network, (0,), room_bytes(network, 1 << 16))
    # What prices them first: who finds the code of rows finds this too.
    engine.work((), (0,))
    engine.answer(batch, np.arange(1), answers)


def begin_trees() -> None:
    """Load the compiled code for rows with trees of their own; where there is none, let another process compile it."""
    from junctor_kernels.row_trees import ahead, queue

    # Without a cache nothing that is kept may change who answers.
    if user_cache().is_off or queue.is_compiled():
        load_trees()
    else:
        ahead.begin(__name__)


WAY = RowTrees()

if __name__ == "__main__":
    from junctor_kernels.row_trees.ahead import end_with_parent

    end_with_parent()
    load_trees()
