"""Rows with trees that wait for threads: tasks, which several threads share.

Main classes: RowTask and RowTasks, set up by `RowEngine` for the rows of a batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock

import numpy as np
import numpy.typing as npt
from junctor_kernels.row_trees.queue import CLOSED, Queue, Results

from junctor.backends.shared_trees import SharedTree

Rows = npt.NDArray[np.int64]

# Bytes of the answers to the rows of a piece, and its rows: they stay in the cache until they are written, and Ctrl-C
# does not wait long for rows that take milliseconds each. Rows that are next to each other are written together.
ALONE_BYTES, LEAST_ROWS, MOST_ROWS = 1 << 18, 4, 32
# The same of rows that share a tree, or the bytes of their states where these are more.
SHARED_BYTES = 1 << 19
# Pieces that each thread finds, and takes at least of a task that it joins: pieces are not all of the same work, and a
# thread needs a tenth of a millisecond of Python's lock to begin.
PIECES, LEAST_PIECES = 4, 2
# What a call takes, about, since Ctrl-C in a single thread waits for it; how many times the pieces of the one before it
# takes at most.
CALL_SECONDS, MORE_PIECES = 0.05, 8
# Likelihoods of the rows of a task at most, in bytes: they are copies.
LIKELIHOOD_BYTES = 1 << 24


class RowTask:
    """Rows of a batch that threads answer together, a piece at a time.

    rows: int64.
    piece: rows of a piece; of the largest one where these are groups.
    ends: int64 [groups], where groups end among the rows that share a tree each, planned by the thread that takes them.
    tree: of all rows, planned before. Without groups and tree, each row has its own.
    block: rows on the tree that are computed together at most.
    """

    __slots__ = ("begun", "block", "ends", "piece", "pieces", "queue", "results", "rows", "threads", "tree")

    def __init__(
        self, rows: Rows, piece: int, ends: Rows | None = None, tree: SharedTree | None = None, block: int = 0
    ) -> None:
        self.rows, self.piece, self.ends, self.tree, self.block = rows, piece, ends, tree, block
        self.pieces = -(-len(rows) // piece) if ends is None else len(ends)
        # Counted in compiled code: pieces that have begun, and more once there are no others.
        self.begun: Rows = np.zeros(1, dtype=np.int64)
        self.threads = 0
        # Made by the first thread, dropped by the last one: it has copies of likelihoods.
        self.queue: Queue | None = None
        self.results: Results

    @property
    def is_shared(self) -> bool:
        """Whether rows share trees."""
        return self.tree is not None or self.ends is not None

    @property
    def waiting(self) -> int:
        """Number of pieces that no thread has begun."""
        return max(0, self.pieces - int(self.begun[0]))

    def close(self) -> None:
        """Let no other piece begin."""
        self.begun[0] = CLOSED


class Pace:
    """How many pieces a call of compiled code takes."""

    def __init__(self) -> None:
        self.pieces = PIECES
        self._begun = time.perf_counter()

    def go_on(self) -> None:
        """Set the pieces of the next call, which begins now, by the time of the last one."""
        now = time.perf_counter()
        rate = self.pieces / max(1e-9, now - self._begun)
        self.pieces, self._begun = max(1, min(MORE_PIECES * self.pieces, int(rate * CALL_SECONDS))), now


class RowTasks:
    """Tasks that threads join; those that come first are begun first."""

    def __init__(self, tasks: Sequence[RowTask]) -> None:
        self._tasks = list(tasks)
        self._lock = Lock()

    def next(self) -> RowTask | None:
        """Return the task that a thread is to join, None where none is left."""
        with self._lock:
            self._tasks = [task for task in self._tasks if task.waiting]
            if not self._tasks:
                return None
            # Enough pieces for each thread; at the end whoever is free helps where most is left.
            few = (task for task in self._tasks if task.threads * LEAST_PIECES < task.waiting)
            task = next(few, None) or max(self._tasks, key=lambda task: task.waiting)
            task.threads += 1
            return task

    def queue_of(self, task: RowTask, make: Callable[[RowTask], Queue]) -> Queue:
        """Return the queue of a task that this thread has joined, made at the first call."""
        with self._lock:
            queue = task.queue = task.queue or make(task)
        return queue

    def leave(self, task: RowTask) -> None:
        """Note that a thread has left a task."""
        with self._lock:
            task.threads -= 1
            if not task.threads:
                task.queue = None

    def close(self) -> None:
        """Let no other piece begin."""
        with self._lock:
            for task in self._tasks:
                task.close()
            self._tasks = []


def pieces_alone(rows: int, row_bytes: int, threads: int) -> int:
    """Return the rows of a piece of rows with trees of their own.

    rows: of all.
    row_bytes: bytes of the answers of a row.
    threads: that answer them.
    """
    most = min(MOST_ROWS, max(LEAST_ROWS, ALONE_BYTES // max(1, row_bytes)))
    return most if threads == 1 else max(1, min(most, -(-rows // (PIECES * threads))))


def pieces_shared(rows: int, row_bytes: int, threads: int) -> int:
    """Return the rows of a piece of rows that share trees, about; row_bytes: of the answers, or of its states."""
    most = max(1, SHARED_BYTES // max(1, row_bytes))
    return most if threads == 1 else max(1, min(most, -(-rows // (PIECES * threads))))
