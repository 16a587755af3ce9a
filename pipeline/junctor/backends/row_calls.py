"""Calls of the compiled code for rows with trees, which threads take from a queue.

Main class: RowCalls, set up by `RowEngine` for the rows of a batch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.row_trees import plan as rowplan

Rows = npt.NDArray[np.int64]

# Bytes of answers of one call of compiled code: enough that the overhead of Python does not matter on small networks,
# few enough that Ctrl-C does not wait on large ones. USUAL_ROWS may have more of them, because a call takes half a
# millisecond of Python's lock. The number of rows stays within the other bounds.
CALL_BYTES, MOST_CALL_BYTES = 1 << 18, 1 << 21
LEAST_ROWS, USUAL_ROWS, MOST_ROWS = 16, 32, 1024
# Bytes of answers, or of states, of a call of groups: they stay in the cache until they are written.
SHARED_CALL_BYTES = 1 << 19
# Variables of the rows of a call, where rows are too few for all threads: a millisecond, more than a call takes of
# Python's lock.
LEAST_VARIABLES = 4096
# What a call takes, about, where its rows turn out to be quick and others wait.
CALL_SECONDS = 0.008


@dataclass(frozen=True, eq=False, slots=True)
class SharedTree:
    """A tree of some rows: factors with their mean numbers of states, the plan, entries of a row's messages, tables."""

    factors: rowplan.Factors
    arrays: tuple[npt.NDArray[Any], ...]
    entries: float
    tables: int

    @property
    def is_mixed(self) -> bool:
        """Whether its rows differ in what they observe."""
        means = self.factors.means
        return bool(((means != 1) & (means != self.factors.cards)).any())

    @property
    def nbytes(self) -> int:
        """Bytes of the plan and of what is the tree's own of its factors."""
        return sum(array.nbytes for array in (*self.arrays, self.factors.means, self.factors.weights))


@dataclass(frozen=True, eq=False, slots=True)
class RowCall:
    """Rows of one call: groups that share a tree each, planned before or by the call, or each row has its own.

    rows: of the batch.
    ends: int64 [groups], where groups end among the rows; None for trees of their own.
    tree: of a single group, where it was planned before.
    block: rows that are computed together at most.
    """

    rows: Rows
    ends: Rows | None = None
    tree: SharedTree | None = None
    block: int = rowplan.MOST_TOGETHER

    @property
    def shared(self) -> bool:
        """Whether rows share trees."""
        return self.ends is not None


class RowCalls:
    """Calls that wait for threads.

    calls: in the order in which they are begun.
    """

    def __init__(self, calls: Iterable[RowCall]) -> None:
        self._waiting = deque(calls)
        self._lock = Lock()

    def answer(self, answer: Callable[[RowCall], Rows]) -> list[tuple[Rows, Rows]]:
        """Answer calls in a thread until none waits; returns the rows of each, and the status of each row.

        answer: answers the rows of a call and returns their status.
        """
        done, quick = [], 0.0
        while (call := self._next(quick)) is not None:
            started = time.perf_counter()
            done.append((call.rows, answer(call)))
            seconds = max(1e-9, time.perf_counter() - started)
            # Impossible rows take a tenth of others.
            quick = 0.0 if call.shared else CALL_SECONDS * len(call.rows) / seconds
        return done

    def clear(self) -> None:
        """Let no other call begin."""
        with self._lock:
            self._waiting.clear()

    def _next(self, rows: float) -> RowCall | None:
        """Return the next call, or several in one if these are of at most `rows` rows with trees of their own."""
        with self._lock:
            call = self._waiting.popleft() if self._waiting else None
            if call is None or call.shared:
                return call
            parts, count = [call.rows], len(call.rows)
            while self._waiting and self._is_next(parts[-1], count, min(rows, MOST_ROWS)):
                parts.append(self._waiting.popleft().rows)
                count += len(parts[-1])
        return call if len(parts) == 1 else RowCall(np.concatenate(parts))

    def _is_next(self, before: Rows, count: int, most: float) -> bool:
        """Return True if the rows of the call that waits may follow those of others; rows of a call ascend."""
        waiting = self._waiting[0]
        return not waiting.shared and count + len(waiting.rows) <= most and waiting.rows[0] > before[-1]


def calls_of(rows: Rows, row_bytes: int, variables: int = 1, threads: int = 1) -> list[RowCall]:
    """Return calls of rows with trees of their own.

    rows: int64.
    row_bytes: bytes of the answers of a row.
    variables: of the network.
    threads: that answer them; where rows are few, each gets two calls.
    """
    # By bytes of answers, because rows of many targets take longer.
    row = max(1, row_bytes)
    count = min(MOST_ROWS, max(LEAST_ROWS, CALL_BYTES // row, min(USUAL_ROWS, MOST_CALL_BYTES // row)))
    if threads > 1:
        count = min(count, max(1, LEAST_VARIABLES // variables, -(-len(rows) // (2 * threads))))
    return [RowCall(rows[start : start + count]) for start in range(0, len(rows), count)]


def call_rows(rows: int, row_bytes: int, threads: int) -> int:
    """Return how many rows of groups are a call, about.

    rows: of all groups.
    row_bytes: bytes of the answers of a row, or of its states where these are more.
    threads: that answer them; each gets several calls, which are not all of the same work.
    """
    most = max(1, SHARED_CALL_BYTES // max(1, row_bytes))
    return most if threads == 1 else max(1, min(most, -(-rows // (4 * threads))))


def calls_of_groups(groups: Sequence[Rows], most: int) -> list[RowCall]:
    """Return calls of groups whose trees are not planned yet, of about `most` rows each."""
    calls: list[RowCall] = []
    some: list[Rows] = []
    count = 0
    for number, rows in enumerate(groups):
        some.append(rows)
        count += len(rows)
        if count >= most or number == len(groups) - 1:
            calls.append(RowCall(np.concatenate(some), np.cumsum([len(each) for each in some])))
            some, count = [], 0
    return calls
