"""A few rows, answered one by one: neither a plan nor a batch pays for them.

Main class: FewRows; called by the API. The router sends a few rows the same way, by `are_few` and `take_own_trees`, so
that runs and calls give the same answers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from junctor.backends.joint_table import JointTable, has_joint_table
from junctor.engine.scores import ScoreMaker, clear_unanswered
from junctor.evidence.batch import EvidenceBatch, Rows
from junctor.evidence.patterns import Patterns, patterns_of
from junctor.model.answers import IMPOSSIBLE, Answers, clear_states, table_bytes, unanswered
from junctor.model.network import Factor, Network, Variable
from junctor.model.options import ComputeOptions, DeviceChoice
from junctor.model.query import Query, answered_names
from junctor.planning.shape import Pattern
from junctor.runtime.kept_results import keeping

if TYPE_CHECKING:
    from junctor.backends.row_trees import RowEngine
    from junctor.engine.plan_groups import Work

# Rows that are few. A tree that all rows of a pattern share, and what chooses it, takes longer than trees of their own
# for so many rows; a plan in NumPy takes longer than to load compiled code.
FEW_ROWS = 64
# Multiply-adds of all of them together, up to which that holds for large trees too.
FEW_OPERATIONS = 5e8
# Entries of messages whose memory stays from call to call.
KEPT_ENTRIES = 1 << 21
# Patterns whose work is known at the next call.
KEPT_WORK = 512


def are_few(network: Network, query: Query, device: DeviceChoice, rows: int) -> bool:
    """Return True if so many rows in all are answered one by one, unless their trees are large."""
    # A GPU that is asked for is used.
    if query.method != "exact" or device == "gpu" or not 0 < rows <= FEW_ROWS:
        return False
    # Of small networks a plan in NumPy explains them, before compiled code is loaded.
    return query.kind != "mpe" or not has_joint_table(network)


def take_own_trees(
    patterns: Callable[[], Patterns], rows: int, whole: Work, work: Callable[[Pattern], Work], entries: float
) -> bool:
    """Return True if each of a few rows gets a tree of its own: trees are small.

    patterns: returns those of a batch.
    rows: of all batches together.
    whole: work of a row that has likelihoods everywhere.
    work: of a row of a pattern.
    entries: that fit the memory.
    """
    # Usual networks have no large trees, whatever the evidence, and nobody looks at patterns.
    if rows * whole[0] <= FEW_OPERATIONS and whole[1] <= entries:
        return True
    found = patterns()
    works = [work(Pattern(found.observed(p), found.soft(p))) for p in range(len(found.counts))]
    operations = sum(count * each[0] for count, each in zip(found.counts.tolist(), works, strict=True))
    share = found.rows.size / rows
    return operations <= share * FEW_OPERATIONS and all(each[1] <= entries for each in works)


def load_trees() -> None:
    """Load the compiled code for rows with trees of their own, which otherwise the first of them does."""
    # A row of any network needs all of it.
    network = Network("", (Variable("a", ("0",)),), (Factor((0,), np.ones(1)),))
    rows = FewRows(network, Query(), ComputeOptions())
    rows._joint = None
    rows.answer(EvidenceBatch(1, {0: np.zeros(1, dtype=np.int32)}), 1, lambda: 1 << 30)


class FewRows:
    """Answers a few rows of one query, in one thread at a time.

    network, query: what is asked; raises EvidenceError for unknown targets.
    options: what the process may use; of a CPU only.
    """

    def __init__(self, network: Network, query: Query, options: ComputeOptions) -> None:
        self._explains = query.kind == "mpe"
        # As in an engine: auxiliary variables have to be summed out before.
        self._network = network = network.expanded if self._explains else network
        self._query = query
        self._options = options
        self._targets = tuple(network.index[name] for name in answered_names(network, query))
        self._row_bytes = table_bytes(query, self._targets, network.cardinalities, 1)
        has_joint = has_joint_table(network) and not self._explains
        self._joint = JointTable(network, self._targets) if has_joint else None
        self._scores = ScoreMaker(network, query) if query.has_scores else None

    @property
    def held(self) -> int:
        """Bytes that stay between calls, about."""
        if "_trees" not in self.__dict__:
            return 0
        return self._fixed + 8 * self._trees.held

    def answer(self, batch: EvidenceBatch, rows: int, allowed: Callable[[], int]) -> Answers | None:
        """Return the answers to a batch; None where a row has too large a tree, or needs another number format.

        batch: evidence.
        rows: of all batches together.
        allowed: returns the bytes for everything, at first need.
        """
        sizes = self._network.cardinalities
        memory = np.empty(self._row_bytes * batch.rows, dtype=np.uint8)
        answers = unanswered(self._query, self._targets, sizes, batch.rows, batch.invalid, memory)
        valid = np.arange(batch.rows)
        if batch.invalid:
            valid = np.delete(valid, list(batch.invalid))
        joint, limit = self._joint, self._options.memory
        # Without a limit nobody asks: there is always as little as that.
        if joint is not None and (limit is None or joint.nbytes + answers.nbytes <= limit):
            left = joint.answer(batch, valid, answers)
        else:
            left = self._by_trees(batch, valid, answers, rows, allowed() - answers.nbytes)
        if left.size:
            return None
        clear_states(answers)
        # Each has a reason, if only a general one.
        if answers.reasons and (answers.status == IMPOSSIBLE).any():
            # As in a batch; imported where rows are impossible, with compiled code of its own.
            from junctor.backends.contradictions import give_reasons

            give_reasons(self._network, batch, answers, allowed() - answers.nbytes, 1)
        if self._scores is None:
            return answers
        # What a joint table answers loads no compiled code for its scores either.
        scores = self._scores.blank(batch)
        self._scores.write(answers, np.arange(batch.rows), scores, 1, "_trees" in self.__dict__)
        clear_unanswered(scores)
        return scores

    def _by_trees(self, batch: EvidenceBatch, valid: Rows, answers: Answers, rows: int, allowed: int) -> Rows:
        """Write the answers to the valid rows and return those that are left."""
        trees, working = self._trees, self._options.device_memory
        allowed = allowed if working is None else min(allowed, working + self._fixed)
        entries = (allowed - self._fixed) // 8
        light = take_own_trees(lambda: patterns_of(batch), rows, self._whole, self._work, entries)
        trees.allow(allowed)
        left = trees.answer(batch, valid, answers) if light else valid
        # Larger memory goes.
        trees.allow(self._fixed + 8 * KEPT_ENTRIES)
        return left

    @cached_property
    def _trees(self) -> RowEngine:
        # Imported here: it loads compiled code.
        from junctor.backends.row_trees import RowEngine

        # One thread: so few rows are one call of compiled code.
        return RowEngine(self._network, self._targets, self._fixed, explains=self._explains)

    @cached_property
    def _whole(self) -> Work:
        return self._trees.work((), range(len(self._network.variables)))

    @cached_property
    def _work(self) -> Callable[[Pattern], Work]:
        return keeping(KEPT_WORK, self._work_of)

    def _work_of(self, pattern: Pattern) -> Work:
        return self._trees.work(pattern.sliced, pattern.weighted)

    @cached_property
    def _fixed(self) -> int:
        from junctor.backends.row_trees import room_bytes

        return room_bytes(self._network, 0)
