"""Rows with junction trees made in compiled code: one for each row, or one for all rows of a group.

Main class: RowEngine; called by the engine for groups of rows whose plans would take longer than the rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.orders.greedy import WEIGHTED_MIN_FILL, weights_of
from junctor_kernels.orders.sparse import moral_graph, with_triangles
from junctor_kernels.row_trees import domains as possible
from junctor_kernels.row_trees import lane_layout as layout
from junctor_kernels.row_trees import plan as rowplan
from junctor_kernels.row_trees import propagate as rowwise
from junctor_kernels.row_trees import queue, tiles, together

from junctor.backends.impossible_answers import leave_impossible
from junctor.backends.row_queue import (
    LIKELIHOOD_BYTES,
    MOST_ROWS,
    Pace,
    RowTask,
    RowTasks,
    pieces_alone,
    pieces_shared,
)
from junctor.backends.row_work import RowWork, alone_seconds
from junctor.backends.shared_trees import KeptTrees, SharedTree
from junctor.cost.figures import Figures
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.evidence.compiled_cells import EvidenceCells, evidence_cells
from junctor.model.answers import OK, Answers
from junctor.model.network import Network
from junctor.runtime.progress import counts_rows
from junctor.runtime.threads import in_threads

Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Rows of a group that is a piece, whose tree is planned by whoever takes it: it is not kept for others. Of more than so
# many groups they may have as many rows as a piece.
ONE_PIECE_ROWS, FEW_GROUPS = 64, 8
# Fewer rows are not divided among threads: the start of each table would outweigh its rows.
FEWEST_TOGETHER = 32
# Initial entries of the arena; it grows with the rows that need more.
ARENA_ENTRIES = 1 << 16
# Status of a row that no kernel has seen.
UNTOUCHED = -1
NO_ROWS: Rows = np.zeros(0, dtype=np.int64)
NO_CELLS = EvidenceCells(EvidenceBatch(0))


@dataclass
class _Room:
    """Memory of a thread.

    tree: the tree of the current rows.
    domains: possible states of one row.
    work: arena of the messages of one row, and workspace.
    factors: of the network, with means and weights of the rows that share `tree`.
    most: entries that the arena may grow to.
    lanes: messages of rows that share a tree; None before the first of them.
    block: states of rows that share a tree and are computed together.
    piece: states and posteriors of the rows that the thread is at; None before the first of them.
    planned: what `tree` is, where rows share it and it was planned before.
    """

    tree: rowplan.Tree
    domains: possible.Domains
    work: rowwise.RowWorkspace
    factors: rowplan.Factors
    most: int = 0
    lanes: layout.Lanes | None = None
    block: Rows = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    piece: queue.PieceMemory | None = None
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
        self._network = network
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
        places = np.stack([self._starts[self._targets], sizes, np.cumsum(sizes) - sizes], axis=1)
        self._asked = queue.Asked(self._wanted, self._starts, self._width, self._targets, places)
        # At most one likelihood for each variable.
        leaves = len(network.factors) + len(self._sizes)
        # The last one for trees that are only priced: another thread chooses groups while rows are answered.
        *self._rooms, self._pricing = (self._room(leaves) for _ in range(threads + 1))
        self._trees = KeptTrees()
        self._no_lanes = layout.lanes_for(1, 1, 1)
        self.allow(allowed)
        # Prices are the same whatever was answered before, or is answered meanwhile.
        self._most = self.entries

    def _room(self, leaves: int) -> _Room:
        factors, tree = self._factors, rowplan.tree(self._factors.graph, leaves)
        domains, work = possible.domains_for(factors, self._zeros), rowwise.work(1, len(tree.nodes.tables))
        own = factors._replace(means=factors.means.copy(), weights=factors.weights.copy())
        return _Room(tree, domains, work, own)

    @property
    def variables(self) -> int:
        """Number of the network's variables."""
        return len(self._sizes)

    @property
    def above_zero(self) -> float:
        """Share of the entries of all factors."""
        return self._network.above_zero

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
            room.piece = None
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

    def works_alone(self, cells: EvidenceCells, rows: Rows, held: Rows | None = None) -> list[RowWork]:
        """Return the work of rows with a tree for each; infinite where tables are too large.

        cells: of a batch.
        rows: int64, rows of the batch.
        held: int64 [rows], written: entries of messages in memory at a time; one down may take the place of one up.
        """
        # What a row observes says little: the states that are left possible count.
        task, results = RowTask(rows, MOST_ROWS), self._blank(len(rows))
        works = [RowWork(0.0, 0.0, 0.0)] * len(rows)
        room, waiting = self._pricing, self._queue(cells, task)
        piece = self._piece(room, task, cells.kinds)
        # Without memory for messages, the kernel stops at every row that it has planned.
        memory = room.tree, room.domains, room.work
        how = self._asked, memory, piece, queue.CLOSED, results
        while not queue.answer_alone(self._factors, self._zeros, waiting, *how):
            operations, entries = room.tree.nodes.work.tolist()
            row, counts = piece.at[queue.NEXT], room.tree.nodes.counts
            works[row] = RowWork(operations, entries, float(counts[rowplan.TABLES]))
            if held is not None:
                held[row] = counts[rowplan.ARENA]
            piece.at[queue.NEXT] += 1
        for row in np.flatnonzero(results.status == rowwise.TOO_LARGE).tolist():
            works[row] = RowWork(math.inf, math.inf, math.inf)
        return works

    def seconds_alone(self, works: Sequence[RowWork], figures: Figures) -> float:
        """Return the approximate seconds of rows with trees of their own, the mean; infinite where one is too large."""
        seconds = sum(alone_seconds(work, figures, self._explains) for work in works) / len(works)
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
        cells, threads = evidence_cells(batch), len(self._rooms)
        shared = [group.rows for group in groups if group.shared]
        alone = [group.rows for group in groups if not group.shared]
        count = sum(map(len, shared))
        block = self._block(count)
        most = pieces_shared(count, 8 * max(self._width, self.variables), threads)
        # Of many groups hardly one has a tree that the next batch finds.
        one_piece = min(ONE_PIECE_ROWS if len(shared) <= FEW_GROUPS else max(ONE_PIECE_ROWS, most), block)
        large = [rows for rows in shared if len(rows) > one_piece]
        trees = in_threads(lambda rows, thread: self._plan_before(cells, rows, thread), large, threads)
        tasks: list[RowTask] = []
        for rows, tree in zip(large, trees, strict=True):
            if tree is None:
                alone.append(rows)
            else:
                tasks.extend(self._on_tree(cells, rows, tree, block, most))
        tasks.extend(self._of_groups(cells, [rows for rows in shared if len(rows) <= one_piece]))
        # Rows with trees of their own first: they take longest.
        left, again = self._run(cells, [*self._alone(cells, alone), *tasks], answers, threads)
        # Rows without a common tree, and those that may have lost digits to underflow: here each has its bounds.
        if again.size:
            more, _ = self._run(cells, self._alone(cells, [again]), answers, threads)
            left = np.concatenate([left, more])
        return np.sort(left)

    def _block(self, rows: int) -> int:
        """Return how many rows of so many that share trees are a piece at most, so that all threads have some."""
        # Two pieces for each thread: they are not all of the same work.
        return rows if len(self._rooms) == 1 else max(FEWEST_TOGETHER, -(-rows // (2 * len(self._rooms))))

    def _alone(self, cells: EvidenceCells, groups: Sequence[Rows]) -> list[RowTask]:
        """Return tasks of rows with trees of their own."""
        if not groups:
            return []
        rows = groups[0] if len(groups) == 1 else np.sort(np.concatenate(groups))
        piece = pieces_alone(len(rows), 8 * self._width, len(self._rooms))
        return [RowTask(part, piece) for part in self._parts(cells, rows)]

    def _parts(self, cells: EvidenceCells, rows: Rows) -> list[Rows]:
        """Return rows in parts, one for each task."""
        size = cells.likelihood_bytes(self._sizes)
        most = max(MOST_ROWS, LIKELIHOOD_BYTES // size) if size else max(1, len(rows))
        return [rows[start : start + most] for start in range(0, len(rows), most)]

    def _on_tree(self, cells: EvidenceCells, rows: Rows, tree: SharedTree, block: int, most: int) -> list[RowTask]:
        """Return tasks of rows that share a tree.

        rows: of a group.
        tree: planned before.
        block: rows of a block at most, about; all blocks are of much the same size.
        most: rows of a piece, about.
        """
        step = min(len(rows), self._step(tree, self._rooms[0]))
        count = -(-len(rows) // min(step, block))
        size = min(step, -(-len(rows) // count // layout.WIDTH) * layout.WIDTH)
        size = size if tree.is_mixed else together.unaliased(size)
        several = size * max(1, most // size)
        return [RowTask(part, several, tree=tree, block=size) for part in self._parts(cells, rows)]

    def _of_groups(self, cells: EvidenceCells, groups: Sequence[Rows]) -> list[RowTask]:
        """Return tasks of groups that share a tree each, which whoever takes them plans."""
        tasks, some, count = [], [NO_ROWS], 0
        size = cells.likelihood_bytes(self._sizes)
        for number, rows in enumerate(groups):
            some.append(rows)
            count += len(rows)
            if number == len(groups) - 1 or count * size > LIKELIHOOD_BYTES:
                sizes = [len(each) for each in some[1:]]
                tasks.append(RowTask(np.concatenate(some), max(sizes), np.cumsum(sizes)))
                some, count = [NO_ROWS], 0
        return tasks

    def _run(self, cells: EvidenceCells, tasks: Sequence[RowTask], answers: Answers, threads: int) -> tuple[Rows, Rows]:
        """Answer the rows of some tasks; return those that are left, and those that need trees of their own."""
        if not tasks:
            return NO_ROWS, NO_ROWS
        for task in tasks:
            task.results = self._blank(len(task.rows), answers)
        waiting, several = RowTasks(tasks), min(threads, sum(task.pieces for task in tasks))
        with counts_rows(lambda: sum(int(np.count_nonzero(task.results.status != UNTOUCHED)) for task in tasks)):
            in_threads(lambda _, thread: self._join(cells, waiting, thread), range(several), several, waiting.close)
        found = [self._note(task, answers) for task in tasks]
        none, large, left, again = found[0] if len(found) == 1 else map(np.concatenate, zip(*found, strict=True))
        if none.size:
            leave_impossible(np.sort(none), answers, self._target_sizes, threads)
        if large.size and threads > 1:
            # Rows too large for the share of one thread may fit where one thread has all memory.
            most = self._rooms[0].most
            for thread, room in enumerate(self._rooms):
                self._resize(room, 0 if thread else self.entries)
            large, _ = self._run(cells, self._alone(cells, [large]), answers, 1)
            for room in self._rooms:
                self._resize(room, most)
        return np.concatenate([large, left]), again

    def _note(self, task: RowTask, answers: Answers) -> tuple[Rows, Rows, Rows, Rows]:
        """Write log P(e) and the status of the rows of a task that have an answer.

        Returns rows that are impossible, too large for the memory of a thread, in doubt, and without a common tree.
        """
        rows, status = task.rows, task.results.status
        done = status == rowwise.ANSWERED
        if done.all():
            answers.log_value[rows], answers.status[rows] = task.results.log_values, OK
            return NO_ROWS, NO_ROWS, NO_ROWS, NO_ROWS
        at, none = rows[done], status == rowwise.IMPOSSIBLE
        answers.log_value[at], answers.status[at] = task.results.log_values[done], OK
        if task.is_shared:
            return rows[none], NO_ROWS, NO_ROWS, rows[~done & ~none]
        return rows[none], rows[status == rowwise.TOO_LARGE], rows[status == rowwise.DOUBTFUL], NO_ROWS

    def _plan(self, observed: Rows, kinds: Rows, rows: int, thread: int) -> SharedTree | None:
        """Return the tree of some rows; None where they are better off with trees of their own.

        observed: int64 [variables], how many of these rows observe each.
        kinds: int64, variables with likelihoods; UNOBSERVED for those of the batch that none of the rows has.
        rows: their number.
        thread: in whose memory the tree is planned.
        """
        room, needs, room.planned = self._rooms[thread], np.zeros(layout.NEEDS, dtype=np.int64), None
        task = RowTask(NO_ROWS, 1, np.array([rows]))
        task.close()
        waiting = self._queue(NO_CELLS, task)
        piece = queue.piece_for(0, 0, self.variables, 0, len(kinds), False)
        piece.at[:] = 0, 0, rows, queue.COUNTED
        piece.common[:], piece.kinds[:] = observed, kinds
        # Without memory for messages, the kernel stops where it has planned.
        memory = room.tree, self._no_lanes, room.block
        how = self._asked, memory, piece, queue.CLOSED, 0, room.most, needs, self._blank(0)
        if queue.answer_shared(room.factors, waiting, *how):
            return None
        entries, tables = room.tree.nodes.work[rowplan.MEAN_ENTRIES], room.tree.nodes.counts[rowplan.TABLES]
        own = room.factors._replace(means=room.factors.means.copy(), weights=room.factors.weights.copy())
        return SharedTree(own, rowplan.stored(room.tree), float(entries), int(tables))

    def _step(self, tree: SharedTree, room: _Room) -> int:
        """Return how many rows on a tree are a block at most."""
        # A network may have no table at all.
        most = room.most // 2 // max(1.0, tree.entries)
        return int(min(together.block_rows(tree.entries, tree.tables, tree.is_mixed), most))

    def _is_worth_it(self, tree: SharedTree, rows: int, room: _Room) -> bool:
        """Return True if so many rows are better off with a common tree."""
        return together.is_worth_it(rows, self._step(tree, room))

    def _plan_before(self, cells: EvidenceCells, rows: Rows, thread: int) -> SharedTree | None:
        """Return the tree of rows of several calls, as `_plan`."""
        observed, kinds = cells.observed(rows, self.variables), cells.soft(rows)
        # All that a tree depends on: the next batch of the pattern finds it.
        key = observed.tobytes(), kinds.tobytes(), len(rows)
        tree = self._trees.find(key)
        if tree is None:
            tree = self._plan(observed, kinds, len(rows), thread)
        elif not self._is_worth_it(tree, len(rows), self._rooms[thread]):
            tree = None
        if tree is not None:
            self._trees.keep(key, tree, 8 * self.entries)
        return tree

    def _blank(self, rows: int, answers: Answers | None = None) -> queue.Results:
        """Return where so many rows are answered; answers: of the batch, written too."""
        memory: npt.NDArray[Any] = np.empty(0) if answers is None or answers.memory is None else answers.memory
        explained = None if answers is None else answers.explained
        is_double = memory.dtype == np.float64
        return queue.Results(
            np.zeros(rows),
            np.full(rows, UNTOUCHED, dtype=np.int64),
            memory if is_double else np.empty(0),
            np.empty(0, dtype=np.float32) if is_double else memory,
            np.empty((0, 0), dtype=np.int32) if explained is None else explained,
        )

    def _queue(self, cells: EvidenceCells, task: RowTask) -> queue.Queue:
        ends = NO_ROWS if task.ends is None else task.ends
        begun = task.begun.__array_interface__["data"][0]
        likelihoods = cells.likelihoods(task.rows, self._sizes)
        return queue.Queue(np.ascontiguousarray(task.rows), ends, task.piece, begun, *cells.columns, *likelihoods)

    def _piece(self, room: _Room, task: RowTask, kinds: int) -> queue.PieceMemory:
        """Return memory for pieces of a task; kinds: number of variables with likelihoods."""
        piece, rows = room.piece, task.piece
        alone = 0 if task.is_shared else rows
        if (
            piece is None
            or piece.posteriors.size < rows * self._width
            or piece.states.size < alone * self.variables
            or piece.kinds.size != kinds
        ):
            piece = queue.piece_for(rows, alone, self.variables, self._width, kinds, self._explains)
            room.piece = piece
        piece.at[:] = 0
        return piece

    def _join(self, cells: EvidenceCells, tasks: RowTasks, thread: int) -> None:
        """Answer pieces of tasks in a thread until none waits."""
        room = self._rooms[thread]
        while (task := tasks.next()) is not None:
            waiting = tasks.queue_of(task, lambda task: self._queue(cells, task))
            piece = self._piece(room, task, cells.kinds)
            if task.is_shared:
                self._on_common_trees(room, task, waiting, piece)
            else:
                self._on_own_trees(room, task, waiting, piece)
            tasks.leave(task)

    def _on_common_trees(self, room: _Room, task: RowTask, waiting: queue.Queue, piece: queue.PieceMemory) -> None:
        """Answer rows that share trees; the kernel stops where it needs more memory, and goes on with it."""
        needs, tree, block = np.zeros(layout.NEEDS, dtype=np.int64), task.tree, 0
        if tree is not None:
            block = min(task.block, self._step(tree, room))
            room.factors.means[:], room.factors.weights[:] = tree.factors.means, tree.factors.weights
            if room.planned is not tree:
                rowplan.restore(tree.arrays, room.tree)
        room.planned = tree
        if room.lanes is None:
            room.lanes = layout.lanes_for(1, len(room.tree.nodes.tables), self.variables)
        pace = Pace()
        while True:
            memory = room.tree, room.lanes, room.block
            how = self._asked, memory, piece, pace.pieces, block, room.most, needs, task.results
            if queue.answer_shared(room.factors, waiting, *how):
                return
            if piece.at[queue.FIRST] == piece.at[queue.END]:
                pace.go_on()
            elif not self._enlarge(room, needs):
                piece.at[queue.NEXT] = piece.at[queue.END]

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

    def _on_own_trees(self, room: _Room, task: RowTask, waiting: queue.Queue, piece: queue.PieceMemory) -> None:
        """Answer rows with a tree each; the kernel stops where it needs a larger arena, and goes on with one."""
        room.planned, pace = None, Pace()
        while True:
            how = self._asked, (room.tree, room.domains, room.work), piece, pace.pieces, task.results
            if queue.answer_alone(self._factors, self._zeros, waiting, *how):
                return
            if piece.at[queue.FIRST] == piece.at[queue.END]:
                pace.go_on()
                continue
            needed = int(room.tree.nodes.counts[rowplan.ARENA])
            if needed > room.most:
                task.results.status[piece.at[queue.NEXT]] = rowwise.TOO_LARGE
                piece.at[queue.NEXT] += 1
            else:
                larger = min(room.most, max(needed + needed // 4, ARENA_ENTRIES))
                room.work = rowwise.work(larger, len(room.tree.nodes.tables))


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
