"""Rows that are answered one by one, each with a junction tree of its own, in compiled code.

Main class: RowEngine; called by the engine for evidence patterns of few rows, whose plans would not pay.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from junctor_kernels.orders.greedy import WEIGHTED_MIN_FILL, pack, weights_of
from junctor_kernels.row_trees import plan as rowplan
from junctor_kernels.row_trees import propagate as rowwise

from junctor.cost.constants import CPU
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.model.answers import IMPOSSIBLE, NO_PROBABILITY, OK, Answers
from junctor.model.network import Network
from junctor.planning.elimination import moral_graph
from junctor.planning.shape import mask_of
from junctor.runtime.threads import in_threads

Rows = npt.NDArray[np.int64]
Arrays = tuple[npt.NDArray[Any], ...]

# Bytes of answers of one call of compiled code: enough that the overhead of Python does not matter on small networks,
# few enough that Ctrl-C does not wait on large ones. The number of rows of a call stays within the bounds below.
CALL_BYTES = 1 << 19
LEAST_ROWS = 64
MOST_ROWS = 1024
# Initial entries of the arena; it grows with the rows that need more.
ARENA_ENTRIES = 1 << 16
# Seconds a table with its messages, to choose what is answered here; tests replace it.
TABLE_SECONDS = CPU.tree_table


@dataclass
class _Room:
    """Memory of a thread.

    tree: the tree of the current row.
    work: arena of its messages and workspace.
    most: entries that the arena may grow to.
    """

    tree: rowplan.Tree
    work: rowwise.RowWorkspace
    most: int


class RowWork(NamedTuple):
    """Work of one row: multiply-adds, entries of its messages, number of its tables."""

    operations: float
    entries: float
    tables: float


class RowEngine:
    """Answers rows of evidence on one network, sum-product in double precision; keeps its arenas between calls.

    network: the network.
    targets: variables whose posteriors are computed.
    allowed: bytes for all threads together.
    threads: number of threads.
    """

    def __init__(self, network: Network, targets: Sequence[int], allowed: int, threads: int = 1) -> None:
        self._fixed = room_bytes(network, 0)
        self._targets = targets
        self._sizes = network.cardinalities
        self._factors = factors_of(network)
        self._wanted = np.zeros(len(self._sizes), dtype=np.bool_)
        self._wanted[list(targets)] = True
        widths = np.where(self._wanted, self._sizes, 0)
        self._starts = np.concatenate([[0], np.cumsum(widths)[:-1]]).astype(np.int64)
        # Numbers of a row of posteriors; unwanted variables take none.
        self._width = int(widths.sum())
        # At most one likelihood for each variable.
        trees = [rowplan.tree(len(self._sizes), len(network.factors) + len(self._sizes)) for _ in range(threads)]
        self._rooms = [_Room(tree, rowwise.work(1, len(tree.nodes.tables)), 0) for tree in trees]
        self.allow(allowed)

    @property
    def held(self) -> int:
        """Entries of the messages of all threads that are in memory."""
        return sum(room.work.arena.size for room in self._rooms)

    def allow(self, allowed: int, working: int | None = None) -> None:
        """Set the limit on entries of messages from bytes: `allowed` in all, at most `working` of them for messages."""
        if working is not None:
            allowed = min(allowed, working + self._fixed)
        self.entries = (allowed - self._fixed) // 8
        for room in self._rooms:
            self._resize(room, (allowed // len(self._rooms) - self._fixed) // 8)

    def _resize(self, room: _Room, most: int) -> None:
        """Set the limit of a thread's arena; a larger one is dropped."""
        room.most = most
        # Dropped rather than kept: its memory may be needed elsewhere.
        if room.work.arena.size > max(1, most):
            room.work = rowwise.work(1, len(room.tree.nodes.tables))

    def work(self, observed: Collection[int], soft: Collection[int] = ()) -> RowWork:
        """Return the work of a row that observes these variables; infinite where its tables are too large."""
        states = np.full(len(self._sizes), UNOBSERVED, dtype=np.int64)
        # Which state is observed does not change the tree.
        states[list(observed)] = 0
        tree = self._rooms[0].tree
        kinds = np.array(sorted(soft) or [UNOBSERVED], dtype=np.int64)
        if not rowplan.plan_row(self._factors, states, kinds, self._wanted, WEIGHTED_MIN_FILL, tree):
            return RowWork(math.inf, math.inf, math.inf)
        return RowWork(*map(float, tree.nodes.counts[[rowplan.OPERATIONS, rowplan.ARENA, rowplan.TABLES]]))

    def seconds(self, observed: Collection[int], soft: Collection[int] = ()) -> float:
        """Return the approximate seconds of a row; infinite where its messages are too large."""
        work = self.work(observed, soft)
        seconds = work.operations * CPU.tree_operation + work.tables * TABLE_SECONDS
        return seconds if work.entries <= self.entries else math.inf

    def answer(self, batch: EvidenceBatch, rows: Rows, answers: Answers) -> Rows:
        """Write answers and return the rows that are left: they need a wider number format or have too large a tree.

        batch: evidence.
        rows: int64, rows of the batch.
        answers: of the batch, written here.
        """
        tasks = self._calls(rows)
        shared = self._rooms[0].most
        parts = in_threads(lambda part, thread: self._answer(batch, part, answers, thread), tasks, len(self._rooms))
        status = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
        large = np.flatnonzero(status == rowwise.TOO_LARGE)
        if large.size and len(self._rooms) > 1:
            # Rows too large for the share of one thread may fit where one thread has all memory.
            for thread, room in enumerate(self._rooms):
                self._resize(room, 0 if thread else self.entries)
            status[large] = np.concatenate([self._answer(batch, part, answers, 0) for part in self._calls(rows[large])])
            for room in self._rooms:
                self._resize(room, shared)
        left: Rows = rows[(status == rowwise.TOO_LARGE) | (status == rowwise.DOUBTFUL)]
        return left

    def _calls(self, rows: Rows) -> list[Rows]:
        """Return the rows of each call."""
        # By bytes of answers, because rows of many targets take longer.
        count = min(MOST_ROWS, max(LEAST_ROWS, CALL_BYTES // (8 * max(1, self._width))))
        return [rows[start : start + count] for start in range(0, len(rows), count)]

    def _answer(self, batch: EvidenceBatch, rows: Rows, answers: Answers, thread: int) -> npt.NDArray[np.int64]:
        """Write the answers to some rows and return the status of each; rows left to other backends are not written."""
        posteriors = np.zeros((len(rows), self._width))
        log_values = np.zeros(len(rows))
        status = np.zeros(len(rows), dtype=np.int64)
        self._propagate(self._rooms[thread], self._evidence(batch, rows), (posteriors, log_values, status))
        impossible = status == rowwise.IMPOSSIBLE
        done = impossible | (status == rowwise.ANSWERED)
        at, log_values[impossible] = rows[done], -np.inf
        answers.log_value[at] = log_values[done]
        answers.status[at] = np.where(impossible[done], IMPOSSIBLE, OK)
        for v in self._targets:
            answers.posteriors[v][at] = posteriors[done, self._starts[v] : self._starts[v] + self._sizes[v]]
        for row in rows[impossible]:
            answers.reasons[int(row)] = NO_PROBABILITY
        return status

    def _propagate(self, room: _Room, evidence: Arrays, results: Arrays) -> None:
        """Run the kernel over some rows; it stops at a row that needs a larger arena, and goes on with one."""
        status = results[2]
        row = 0
        while row < len(status):
            both = (room.tree, room.work)
            row = rowwise.answer_rows(self._factors, evidence, self._wanted, self._starts, row, both, results)
            if row < len(status):
                needed = int(room.tree.nodes.counts[rowplan.ARENA])
                if needed > room.most:
                    status[row] = rowwise.TOO_LARGE
                    row += 1
                else:
                    # A quarter more than needed, so that not every following row reallocates.
                    larger = min(room.most, max(needed + needed // 4, ARENA_ENTRIES))
                    room.work = rowwise.work(larger, len(room.tree.nodes.tables))

    def _evidence(self, batch: EvidenceBatch, rows: Rows) -> Arrays:
        """Return states, soft variables, likelihoods and the first column of each soft variable's likelihoods."""
        states = np.full((len(rows), len(self._sizes)), -1, dtype=np.int64)
        for v, column in batch.states.items():
            states[:, v] = column[rows]
        kinds = sorted(batch.likelihoods)
        places = np.cumsum([0, *(self._sizes[v] for v in kinds)], dtype=np.int64)
        soft = np.full((len(rows), max(1, len(kinds))), UNOBSERVED, dtype=np.int64)
        likelihoods = np.zeros((len(rows), max(1, int(places[-1]))))
        for kind, v in enumerate(kinds):
            here, values = batch.likelihoods[v].among(rows)
            soft[here, kind] = v
            likelihoods[here, places[kind] : places[kind + 1]] = values
        return states, soft, likelihoods, places


def room_bytes(network: Network, entries: int) -> int:
    """Return the bytes of a row engine whose rows have messages of at most so many entries."""
    variables, factors = len(network.variables), len(network.factors)
    tables = 2 * (factors + variables) + 3 * variables
    fixed = sum(2 * factor.table.size + 4 * len(factor.scope) for factor in network.factors)
    return 8 * (fixed + entries + tables * (rowplan.MOST_AXES + rowplan.COLUMNS + 8) + 2 * variables * variables // 64)


def factors_of(network: Network) -> rowplan.Factors:
    """Return the factors of a network as flat arrays."""
    # Flat arrays: compiled code takes no lists of arrays.
    scopes = [factor.scope for factor in network.factors]
    tables = [np.ascontiguousarray(factor.table, dtype=np.float64) for factor in network.factors]
    # Computed, since NumPy may report any stride for an axis of one entry.
    strides = [
        math.prod(table.shape[axis + 1 :])
        for scope, table in zip(scopes, tables, strict=True)
        for axis in range(len(scope))
    ]
    graph = [*map(mask_of, moral_graph(len(network.cardinalities), scopes))]
    return rowplan.Factors(
        cards=np.array(network.cardinalities, dtype=np.int64),
        starts=np.cumsum([0, *map(len, scopes)], dtype=np.int64),
        scopes=np.array([v for scope in scopes for v in scope], dtype=np.int64),
        strides=np.array(strides, dtype=np.int64),
        places=np.cumsum([0, *(table.size for table in tables)], dtype=np.int64),
        values=np.concatenate([np.zeros(0), *(table.ravel() for table in tables)]),
        directed=int(network.kind == "bayes"),
        graph=pack(graph, len(graph)),
        weights=weights_of(network.cardinalities),
    )
