"""Rows with junction trees made in compiled code: one for each row, or one for all rows of a group.

Main class: RowEngine; called by the engine for groups of rows whose plans would take longer than the rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.cpu.answers import write_row_states, write_rows
from junctor_kernels.orders.greedy import WEIGHTED_MIN_FILL, weights_of
from junctor_kernels.orders.sparse import moral_graph, with_triangles
from junctor_kernels.row_trees import blocks, tiles
from junctor_kernels.row_trees import domains as possible
from junctor_kernels.row_trees import lane_layout as layout
from junctor_kernels.row_trees import plan as rowplan
from junctor_kernels.row_trees import propagate as rowwise

from junctor.backends.evidence_cells import EvidenceCells, evidence_cells
from junctor.backends.impossible_answers import leave_impossible
from junctor.backends.row_calls import RowCall, RowCalls, SharedTree, call_rows, calls_of, calls_of_groups
from junctor.backends.row_work import RowWork, alone_seconds, block_rows, unaliased
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.model.answers import OK, Answers
from junctor.model.network import Network
from junctor.runtime.threads import in_threads

Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Arrays = tuple[npt.NDArray[Any], ...]

# Rows of a group that is part of a call, which plans its tree: it is not kept for others. Of more than so many groups
# they may have as many rows as a call.
ONE_CALL_ROWS, FEW_GROUPS = 64, 8
# Fewer rows are not divided among threads: the start of each table would outweigh its rows.
FEWEST_TOGETHER = 32
# Initial entries of the arena; it grows with the rows that need more.
ARENA_ENTRIES = 1 << 16
# Bytes of trees that are kept for the next batch, and their share of all memory at the most.
KEPT_BYTES, KEPT_SHARE = 1 << 24, 1 / 64
# Status of a row that no kernel has seen.
UNTOUCHED = -1


@dataclass
class _Room:
    """Memory of a thread.

    tree: the tree of the current rows.
    domains: possible states of one row.
    work: arena of the messages of one row, and workspace.
    lanes: messages of rows that share a tree; None before the first of them.
    block: states of rows that share a tree and are computed together.
    most: entries that the arena may grow to.
    planned: what `tree` is, where rows share it.
    """

    tree: rowplan.Tree
    domains: possible.Domains
    work: rowwise.RowWorkspace
    most: int
    lanes: layout.Lanes | None = None
    block: Rows = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    planned: SharedTree | None = None


@dataclass(frozen=True, eq=False, slots=True)
class TreeRows:
    """Rows (ascending) that are answered by trees: one for all of them (`shared`), or one for each."""

    rows: Rows
    shared: bool = False


class RowEngine:
    """Answers rows of evidence on one network, products in double precision; keeps its arenas between calls.

    network: the network.
    targets: variables whose posteriors are computed, or whose states of an explanation are written.
    allowed: bytes for all threads together.
    threads: number of threads.
    explains: whether rows get explanations instead of posteriors, for which they share no trees.
    """

    def __init__(
        self, network: Network, targets: Sequence[int], allowed: int, threads: int = 1, explains: bool = False
    ) -> None:
        self._fixed = room_bytes(network, 0)
        self._targets: Rows = np.array(targets, dtype=np.int64)
        self._sizes = network.cardinalities
        self._explains = explains
        self._factors = factors_of(network)
        if explains:
            # All variables are explained: none is left out for being no ancestor of what is asked.
            self._factors = self._factors._replace(directed=0)
        self._zeros = possible.zero_masks_of(self._factors)
        self._wanted = np.zeros(len(self._sizes), dtype=np.bool_)
        # Messages down are of no use to an explanation.
        self._wanted[self._targets] = not explains
        widths = np.where(self._wanted, self._sizes, 0)
        self._starts = np.concatenate([[0], np.cumsum(widths)[:-1]]).astype(np.int64)
        # Numbers of a row of posteriors; unwanted variables take none.
        self._width = int(widths.sum())
        sizes = self._target_sizes = np.array([self._sizes[v] for v in targets], dtype=np.int64)
        self._places = np.stack([self._starts[self._targets], sizes, np.cumsum(sizes) - sizes], axis=1)
        # At most one likelihood for each variable.
        leaves = len(network.factors) + len(self._sizes)
        trees = [rowplan.tree(self._factors.graph, leaves) for _ in range(threads + 1)]
        # The last one for trees that are only priced: another thread chooses groups while rows are answered.
        *self._rooms, self._pricing = (
            _Room(tree, possible.domains_for(self._factors, self._zeros), rowwise.work(1, len(tree.nodes.tables)), 0)
            for tree in trees
        )
        self._lock = Lock()
        # The longest unused first, and the bytes of all.
        self._trees: dict[tuple[bytes, bytes, int], SharedTree] = {}
        self._tree_bytes = 0
        self.allow(allowed)
        # Prices are the same whatever was answered before, or is answered meanwhile.
        self._most = self.entries

    @property
    def variables(self) -> int:
        """Number of the network's variables."""
        return len(self._sizes)

    @cached_property
    def above_zero(self) -> float:
        """Share of the entries of all factors."""
        values = self._factors.values
        return float(np.count_nonzero(values) / max(1, values.size))

    @property
    def held(self) -> int:
        """Entries of the messages of all threads that are in memory."""
        return sum(room.work.arena.size for room in self._rooms)

    @property
    def resting(self) -> int:
        """Bytes of the messages of rows that share trees, of all threads."""
        return sum(room.lanes.nbytes for room in self._rooms if room.lanes is not None)

    def rest(self, most: int) -> None:
        """Drop the memory of messages, but for so many bytes at the most, of rows that share trees."""
        # Those take a tenth longer in new pages, which the system clears; rows with trees of their own take few.
        for room in self._rooms:
            room.work, room.block = rowwise.work(1, len(room.tree.nodes.tables)), np.empty(0, dtype=np.int64)
            size = 0 if room.lanes is None else room.lanes.nbytes
            if size <= most:
                most -= size
            else:
                room.lanes = None

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
        if room.lanes is not None and room.lanes.nbytes > 4 * most:
            room.lanes = None

    def work(
        self,
        observed: Collection[int],
        soft: Collection[int] = (),
        shares: dict[int, float] | None = None,
        rows: int = 1,
    ) -> RowWork:
        """Return the work of a row, empty lanes included; infinite where its tables are too large.

        observed: variables that all rows observe.
        soft: variables with likelihoods.
        shares: variable -> share of the rows that observe it, for those that only some do.
        rows: that share a tree.
        """
        share = np.zeros(len(self._sizes))
        share[list(observed)] = 1
        for v, part in (shares or {}).items():
            share[v] = part
        return self.work_of(share, soft, rows)

    def work_of(self, share: npt.NDArray[np.float64], soft: Collection[int] = (), rows: int = 1) -> RowWork:
        """Return the same.

        share: [variables], of the rows that observe each.
        soft, rows: of `work`.
        """
        factors, common = self._evidence_of(share)
        tree = self._pricing.tree
        kinds = np.array(sorted(soft) or [UNOBSERVED], dtype=np.int64)
        if not rowplan.plan_row(factors, common, kinds, self._wanted, WEIGHTED_MIN_FILL, rows, tree, 0.0):
            return RowWork(math.inf, math.inf, math.inf)
        operations, entries = tree.nodes.work.tolist()
        return RowWork(operations, entries, float(tree.nodes.counts[rowplan.TABLES]))

    def savings(self, observed: Collection[int], shares: dict[int, float]) -> dict[int, float]:
        """Return what a row would save, in multiply-adds, if all rows observed a variable that some of them do.

        observed, shares: of `work`.
        """
        if math.isinf(self.work(observed, (), shares).operations):
            return dict.fromkeys(shares, 0.0)
        tree = self._pricing.tree
        savings = np.zeros(len(self._sizes))
        rowplan.gains(tree.nodes, savings)
        return {v: float(savings[tree.position[v]]) for v in shares}

    def _evidence_of(self, share: npt.NDArray[np.float64]) -> tuple[rowplan.Factors, Rows]:
        """Return the factors with mean numbers of states, and the states that rows have in common.

        share: [variables], of the rows that observe each. Which state is observed does not change a tree.
        """
        cards = self._factors.cards
        common = np.where(share > 0, np.where(share < 1, rowplan.LOOSE, 0), UNOBSERVED)
        means = cards - (cards - 1) * share
        return self._factors._replace(means=means, weights=weights_of(means)), common

    def works_alone(self, cells: EvidenceCells, rows: Rows) -> list[RowWork]:
        """Return the work of rows with a tree for each; infinite where tables are too large.

        cells: of a batch.
        rows: int64, rows of the batch.
        """
        # What a row observes says little: the states that are left possible count.
        states, soft = cells.evidence(rows, self._sizes)
        evidence, count = (np.ascontiguousarray(states.T), *soft), len(rows)
        results = self._blank(count)
        works = [RowWork(0.0, 0.0, 0.0)] * count
        room, row = self._pricing, 0
        # Without memory for messages, the kernel stops at every row that it has planned.
        memory = room.tree, room.domains, room.work
        while row < count:
            row = rowwise.answer_rows(
                self._factors, self._zeros, evidence, self._wanted, self._starts, row, memory, results
            )
            if row < count:
                operations, entries = room.tree.nodes.work.tolist()
                works[row] = RowWork(operations, entries, float(room.tree.nodes.counts[rowplan.TABLES]))
                row += 1
        for row in np.flatnonzero(results[2] == rowwise.TOO_LARGE).tolist():
            works[row] = RowWork(math.inf, math.inf, math.inf)
        return works

    def seconds_alone(self, works: Sequence[RowWork]) -> float:
        """Return the approximate seconds of rows with trees of their own, the mean; infinite where one is too large."""
        seconds = sum(alone_seconds(work, self._explains) for work in works) / len(works)
        return seconds if all(work.room <= self._most for work in works) else math.inf

    def answer(self, batch: EvidenceBatch, rows: Rows, answers: Answers) -> Rows:
        """Write answers to rows with a tree for each, and return the rows that are left.

        batch: evidence.
        rows: int64, rows of the batch.
        answers: of the batch, written here.
        """
        return self.answer_groups(batch, [TreeRows(rows)], answers)

    def answer_groups(self, batch: EvidenceBatch, groups: Sequence[TreeRows], answers: Answers) -> Rows:
        """Write answers and return the rows that are left: they need a wider number format or have too large a tree.

        batch: evidence.
        groups: of rows.
        answers: of the batch, written here.
        """
        shared = [group.rows for group in groups if group.shared]
        count = sum(map(len, shared))
        block = self._block(count)
        most = call_rows(count, 8 * max(self._width, self.variables), len(self._rooms))
        # Of many groups hardly one has a tree that the next batch finds.
        one_call = min(ONE_CALL_ROWS if len(shared) <= FEW_GROUPS else max(ONE_CALL_ROWS, most), block)
        large = [rows for rows in shared if len(rows) > one_call]
        cells = evidence_cells(batch)
        trees = in_threads(lambda rows, thread: self._plan_before(cells, rows, thread), large, len(self._rooms))
        # Rows with trees of their own first: they take longest.
        alone = [group.rows for group in groups if not group.shared]
        calls = [call for rows in alone for call in self._calls(rows)]
        for rows, tree in zip(large, trees, strict=True):
            calls.extend(self._blocks(rows, tree, block, most))
        calls.extend(calls_of_groups([rows for rows in shared if len(rows) <= one_call], most))
        return np.sort(self._in_threads(cells, calls, answers)) if calls else np.zeros(0, dtype=np.int64)

    def _block(self, rows: int) -> int:
        """Return how many rows of so many that share trees are one call at most, so that all threads have some."""
        # Two calls for each thread: blocks are not all of the same work.
        return rows if len(self._rooms) == 1 else max(FEWEST_TOGETHER, -(-rows // (2 * len(self._rooms))))

    def _in_threads(self, cells: EvidenceCells, calls: Sequence[RowCall], answers: Answers) -> Rows:
        """Answer the rows of some calls and return those that are left."""
        shared, waiting = self._rooms[0].most, RowCalls(calls)
        parts = in_threads(
            lambda _, thread: waiting.answer(lambda call: self._answer(cells, call, answers, thread)),
            range(min(len(self._rooms), len(calls))),
            len(self._rooms),
            waiting.clear,
        )
        rows, status = (np.concatenate([each[n] for part in parts for each in part]) for n in range(2))
        large = rows[status == rowwise.TOO_LARGE]
        if large.size and len(self._rooms) > 1:
            # Rows too large for the share of one thread may fit where one thread has all memory.
            for thread, room in enumerate(self._rooms):
                self._resize(room, 0 if thread else self.entries)
            alone = calls_of(np.sort(large), 8 * self._width)
            again = [self._answer(cells, call, answers, 0) for call in alone]
            status[status == rowwise.TOO_LARGE] = _in_order(large, alone, again)
            for room in self._rooms:
                self._resize(room, shared)
        left: Rows = rows[(status == rowwise.TOO_LARGE) | (status == rowwise.DOUBTFUL)]
        return left

    def _plan(self, share: npt.NDArray[np.float64], kinds: Rows, rows: int, thread: int) -> SharedTree | None:
        """Return the tree of some rows; None where they are better off with trees of their own.

        share: [variables], of these rows that observe each.
        kinds: variables with likelihoods, UNOBSERVED where no row has one.
        rows: their number.
        thread: in whose memory the tree is planned.
        """
        factors, common = self._evidence_of(share)
        room = self._rooms[thread]
        room.planned = None
        if not rowplan.plan_rows(factors, common, kinds, self._wanted, rows, room.tree):
            return None
        entries, tables = room.tree.nodes.work[rowplan.MEAN_ENTRIES], room.tree.nodes.counts[rowplan.TABLES]
        tree = SharedTree(factors, (), float(entries), int(tables))
        if not self._is_worth_it(tree, rows, room):
            return None
        room.planned = tree
        return tree

    def _step(self, tree: SharedTree, room: _Room) -> int:
        """Return how many rows on a tree are a block at most."""
        # A network may have no table at all.
        most = room.most // 2 // max(1.0, tree.entries)
        return int(min(block_rows(tree.entries, tree.tables, tree.is_mixed), most))

    def _calls(self, rows: Rows) -> list[RowCall]:
        """Return calls of rows with trees of their own, for all threads."""
        return calls_of(rows, 8 * self._width, self.variables, len(self._rooms))

    def _is_worth_it(self, tree: SharedTree, rows: int, room: _Room) -> bool:
        """Return True if so many rows are better off with a common tree."""
        # Fewer rows than a vector has lanes are faster one by one.
        return rows > 1 and self._step(tree, room) >= min(rows, layout.WIDTH)

    def _blocks(self, rows: Rows, tree: SharedTree | None, block: int, most: int) -> list[RowCall]:
        """Return calls of rows that share a tree.

        rows: of a group.
        tree: planned before; None where they are better off with trees of their own.
        block: rows of a block at most, about; all blocks are of much the same size.
        most: rows of a call, about.
        """
        if tree is None:
            return self._calls(rows)
        step = min(len(rows), self._step(tree, self._rooms[0]))
        count = -(-len(rows) // min(step, block))
        size = min(step, -(-len(rows) // count // layout.WIDTH) * layout.WIDTH)
        size = size if tree.is_mixed else unaliased(size)
        several = size * max(1, most // size)
        parts = [rows[start : start + several] for start in range(0, len(rows), several)]
        return [RowCall(part, np.array([len(part)]), tree, size) for part in parts]

    def _plan_before(self, cells: EvidenceCells, rows: Rows, thread: int) -> SharedTree | None:
        """Return the tree of rows of several calls, as `_plan`."""
        share, soft = cells.share(rows, len(self._sizes)), cells.soft(rows)
        # All that a tree depends on: the next batch of the pattern finds it.
        key = share.tobytes(), soft.tobytes(), len(rows)
        with self._lock:
            tree = self._taken(key)
        if tree is None:
            tree = self._plan(share, soft, len(rows), thread)
            if tree is not None:
                tree = replace(tree, arrays=rowplan.stored(self._rooms[thread].tree))
        elif not self._is_worth_it(tree, len(rows), self._rooms[thread]):
            tree = None
        if tree is not None:
            self._keep(key, tree)
        return tree

    def _keep(self, key: tuple[bytes, bytes, int], tree: SharedTree) -> None:
        """Keep a tree for the next batch, and drop the longest unused ones that there is no room for."""
        allowed = min(KEPT_BYTES, KEPT_SHARE * 8 * self.entries)
        with self._lock:
            # Two groups of a batch may have the same key.
            self._taken(key)
            self._trees[key] = tree
            self._tree_bytes += tree.nbytes
            while self._tree_bytes > allowed:
                self._taken(next(iter(self._trees)))

    def _taken(self, key: tuple[bytes, bytes, int]) -> SharedTree | None:
        """Return a tree that was kept, and keep it no longer; the lock is held."""
        tree = self._trees.pop(key, None)
        if tree is not None:
            self._tree_bytes -= tree.nbytes
        return tree

    def _answer(self, cells: EvidenceCells, call: RowCall, answers: Answers, thread: int) -> npt.NDArray[np.int64]:
        """Write the answers to some rows and return the status of each; rows left to other backends are not written."""
        rows, room = call.rows, self._rooms[thread]
        states, soft = cells.evidence(rows, self._sizes)
        results = self._blank(len(rows), call.shared)
        posteriors, log_values, status, explanations = results
        if not call.shared:
            self._each(room, states, soft, results)
        else:
            self._in_groups(room, call, states, soft, thread, (posteriors, log_values, status))
            results = posteriors.T, log_values, status, explanations
            # Rows without a common tree, and those that may have lost digits to underflow: here each has its bounds.
            left = np.flatnonzero((status == UNTOUCHED) | (status == rowwise.DOUBTFUL))
            self._some(room, left, states, soft, results)
        self._write(rows, results, answers)
        return status

    def _blank(self, rows: int, shared: bool = False) -> tuple[Floats, Floats, Rows, npt.NDArray[np.int32]]:
        """Return posteriors, log P(e), status and explanations of some rows, to be written.

        shared: whether posteriors are of all rows for each entry instead of all entries for each row, as written.
        """
        # Whoever answers a row writes all of it.
        posteriors = np.empty((self._width, rows) if shared else (rows, self._width))
        explanations = np.empty((rows, len(self._sizes) if self._explains else 0), dtype=np.int32)
        return posteriors, np.zeros(rows), np.full(rows, UNTOUCHED, dtype=np.int64), explanations

    def _some(self, room: _Room, rows: Rows, states: Rows, soft: Arrays, results: Arrays) -> None:
        """Answer some rows of a call with a tree for each."""
        if rows.size:
            part = tuple(array[rows] for array in results)
            part = (np.ascontiguousarray(part[0]), *part[1:])
            self._each(room, np.ascontiguousarray(states[:, rows]), (soft[0][rows], soft[1][rows], soft[2]), part)
            for array, values in zip(results, part, strict=True):
                array[rows] = values

    def _write(self, rows: Rows, results: Arrays, answers: Answers) -> None:
        posteriors, log_values, status, explanations = results
        done, none = np.flatnonzero(status == rowwise.ANSWERED), rows[status == rowwise.IMPOSSIBLE]
        at = rows[done]
        answers.log_value[at], answers.status[at] = log_values[done], OK
        if none.size:
            leave_impossible(none, answers, self._target_sizes)
        if answers.explained is not None:
            write_row_states(explanations, done, rows, self._targets, answers.explained)
        elif answers.memory is not None and self._places.size:
            by_row, by_entry = (stride // posteriors.itemsize for stride in posteriors.strides)
            flat = posteriors.ravel(order="K")
            write_rows(flat, by_row, by_entry, done, rows, self._places, answers.memory)
        elif answers.memory is None:
            for v in answers.targets:
                answers.posteriors[v][at] = posteriors[done, self._starts[v] : self._starts[v] + self._sizes[v]]

    def _in_groups(self, room: _Room, call: RowCall, states: Rows, soft: Arrays, thread: int, results: Arrays) -> None:
        """Answer groups of rows that share a tree each; rows without an answer keep their status."""
        assert call.ends is not None
        first = 0
        for last in call.ends.tolist():
            tree = call.tree
            if tree is None:
                share = np.count_nonzero(states[:, first:last] != UNOBSERVED, axis=1) / (last - first)
                tree = self._plan(share, soft[0][first:last].max(axis=0), last - first, thread)
            elif room.planned is not tree:
                rowplan.restore(tree.arrays, room.tree)
                room.planned = tree
            if tree is not None:
                together = min(call.block, self._step(tree, room))
                self._together(room, tree.factors, together, (states, soft, first, last), results)
            first = last

    def _together(
        self, room: _Room, factors: rowplan.Factors, together: int, rows: tuple[Rows, Arrays, int, int], results: Arrays
    ) -> None:
        """Answer rows on the tree in memory, `together` at a time; rows: states and likelihoods, first and last one."""
        states, soft, first, last = rows
        needs = np.zeros(layout.NEEDS, dtype=np.int64)
        if room.lanes is None:
            room.lanes = layout.lanes_for(1, len(room.tree.nodes.tables), len(self._sizes))
        while first < last:
            memory, asked = (room.tree, room.lanes, room.block), (self._wanted, self._starts)
            first = blocks.answer_blocks(factors, states, soft, first, last, together, *asked, memory, needs, results)
            # The kernel stops where it needs more memory, and goes on with it.
            if first < last and not self._enlarge(room, needs):
                return

    def _enlarge(self, room: _Room, needs: Rows) -> bool:
        """Enlarge the memory for a block of rows; return False if their messages take too much."""
        assert room.lanes is not None
        tables, variables = len(room.tree.nodes.tables), len(self._sizes)
        if needs[layout.NEED_ROWS]:
            if room.lanes.rows < needs[layout.NEED_ROWS]:
                lanes = layout.lanes_for(int(needs[layout.NEED_ROWS]), tables, variables)
                room.lanes = lanes._replace(arena=room.lanes.arena)
            if room.block.size < needs[layout.NEED_BLOCK]:
                room.block = np.empty(int(needs[layout.NEED_BLOCK]), dtype=np.int64)
            return True
        if needs[layout.NEED_ARENA] > room.most // 2:
            return False
        arena, sizes = room.lanes.arena, needs + needs // 4
        # Messages stay where they have room; else they get a quarter more than needed, and later twice as much, so that
        # not every following block reallocates: the system clears new pages.
        stays = needs[layout.NEED_ARENA] <= arena.size
        if stays:
            sizes[layout.NEED_ARENA] = 1
        elif arena.size > needs[layout.NEED_ARENA] // 2:
            sizes[layout.NEED_ARENA] = 2 * needs[layout.NEED_ARENA]
        lanes = layout.lanes_for(room.lanes.rows, tables, variables, sizes)
        room.lanes = lanes._replace(arena=arena) if stays else lanes
        return True

    def _each(self, room: _Room, states: Rows, soft: Arrays, results: Arrays) -> None:
        """Answer rows with a tree for each; the kernel stops where it needs a larger arena, and goes on with one."""
        status = results[2]
        room.planned = None
        evidence = np.ascontiguousarray(states.T), *soft
        row = 0
        while row < len(status):
            memory, how = (room.tree, room.domains, room.work), (self._wanted, self._starts)
            row = rowwise.answer_rows(self._factors, self._zeros, evidence, *how, row, memory, results)
            if row < len(status):
                needed = int(room.tree.nodes.counts[rowplan.ARENA])
                if needed > room.most:
                    status[row] = rowwise.TOO_LARGE
                    row += 1
                else:
                    larger = min(room.most, max(needed + needed // 4, ARENA_ENTRIES))
                    room.work = rowwise.work(larger, len(room.tree.nodes.tables))


def _in_order(rows: Rows, calls: Sequence[RowCall], status: Sequence[Rows]) -> Rows:
    """Return the status of `rows` from that of the rows of some calls, which are the same, ascending."""
    ordered = np.concatenate([call.rows for call in calls])
    result: Rows = np.concatenate(status)[np.searchsorted(ordered, rows)]
    return result


def room_bytes(network: Network, entries: int) -> int:
    """Return the bytes of a row engine whose rows have messages of at most so many entries."""
    variables, factors = len(network.variables), len(network.factors)
    tables = 2 * (factors + variables) + 3 * variables
    fixed = sum(2 * factor.table.size + 4 * len(factor.scope) for factor in network.factors)
    # The graph, the rows of its neighbours where elimination adds edges, and its lists.
    links = sum(len(factor.scope) ** 2 for factor in network.factors)
    graph = 5 * links + 64 * variables
    tables *= rowplan.MOST_AXES + rowplan.COLUMNS + 8
    # Of rows that are answered, and of trees that are priced.
    planned = 8 * (graph + tables + tiles.PANEL + tiles.PLACES) + possible.room_bytes(network.cardinalities, factors)
    return 8 * (fixed + entries) + 2 * planned


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
    starts = np.cumsum([0, *map(len, scopes)], dtype=np.int64)
    flat = np.array([v for scope in scopes for v in scope], dtype=np.int64)
    return rowplan.Factors(
        cards=np.array(network.cardinalities, dtype=np.int64),
        starts=starts,
        scopes=flat,
        strides=np.array(strides, dtype=np.int64),
        places=np.cumsum([0, *(table.size for table in tables)], dtype=np.int64),
        values=np.concatenate([np.zeros(0), *(table.ravel() for table in tables)]),
        directed=int(network.kind == "bayes"),
        graph=with_triangles(moral_graph(len(network.cardinalities), starts, flat)),
        weights=weights_of(network.cardinalities),
        means=np.array(network.cardinalities, dtype=np.float64),
    )
