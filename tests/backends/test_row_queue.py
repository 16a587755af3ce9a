"""Tasks of rows with trees: all pieces once, whoever takes them."""

from __future__ import annotations

import time
from threading import Barrier, Lock, Thread
from typing import Any

import numpy as np
import pytest
from helpers.engine_cases import blank
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends import row_queue
from junctor.backends.row_queue import (
    LEAST_PIECES,
    MORE_PIECES,
    PIECES,
    Pace,
    RowTask,
    RowTasks,
    pieces_alone,
    pieces_shared,
)
from junctor.backends.row_trees import RowEngine, TreeRows
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.generate import random_network, sample
from junctor_kernels.cpu.jit import loops
from junctor_kernels.row_trees import queue
from junctor_kernels.row_trees.lane_layout import WIDTH
from junctor_kernels.row_trees.together import is_worth_it


@loops
def take(waiting: Any, at: Any) -> bool:
    return bool(queue._take(waiting, at))


def queue_of(task: RowTask) -> queue.Queue:
    """Return the queue of a task without evidence."""
    none = np.zeros(0, dtype=np.int64)
    begun = task.begun.__array_interface__["data"][0]
    ends = none if task.ends is None else task.ends
    soft = np.zeros((len(task.rows), 0), dtype=np.int64), np.zeros((len(task.rows), 0)), np.zeros(1, dtype=np.int64)
    return queue.Queue(task.rows, ends, task.piece, begun, none, none, *soft)


sizes_of_tasks = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 9), st.lists(st.integers(1, 20), max_size=6)), max_size=6
)


@given(sizes_of_tasks, st.integers(1, 4))
def test_threads_take_every_piece_once(sizes: list[tuple[int, int, list[int]]], threads: int) -> None:
    tasks = []
    for count, piece, groups in sizes:
        ends = np.cumsum(groups) if groups else None
        tasks.append(RowTask(np.arange(sum(groups) if groups else count) * 7, max([piece, *groups]), ends))
    waiting, lock = RowTasks(tasks), Lock()
    taken: dict[int, list[tuple[int, int]]] = {id(task): [] for task in tasks}

    def work() -> None:
        at = np.zeros(queue.NUMBERS, dtype=np.int64)
        while (task := waiting.next()) is not None:
            some = waiting.queue_of(task, queue_of)
            while take(some, at):
                with lock:
                    taken[id(task)].append((int(at[queue.FIRST]), int(at[queue.END])))
            waiting.leave(task)

    workers = [Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for task in tasks:
        found = sorted(taken[id(task)])
        assert len(found) == task.pieces
        assert [first for first, _ in found] == [0, *(end for _, end in found[:-1])]
        assert found[-1][1] == len(task.rows)
        assert task.ends is None or [end for _, end in found] == task.ends.tolist()
        assert all(end - first <= task.piece for first, end in found)
        # Nobody holds copies of likelihoods any more.
        assert (task.waiting, task.threads, task.queue) == (0, 0, None)


def test_threads_join_where_pieces_are_left() -> None:
    large, small = RowTask(np.arange(100), 10), RowTask(np.arange(30), 10)
    waiting = RowTasks([large, small])
    joined = [waiting.next() for _ in range(9)]
    # Enough pieces for each, in order; then where most are left.
    assert joined[: 10 // LEAST_PIECES] == [large] * 5
    assert joined[5:7] == [small] * 2
    assert set(joined[7:]) == {large}
    for _ in range(2):
        waiting.leave(large)
    large.begun[0] = 10
    assert waiting.next() is small
    small.begun[0] = 5
    assert waiting.next() is None


def test_no_piece_begins_once_they_are_closed() -> None:
    tasks = [RowTask(np.arange(100), 1), RowTask(np.arange(10), 5, np.array([5, 10]))]
    waiting, at = RowTasks(tasks), np.zeros(queue.NUMBERS, dtype=np.int64)
    under_way = waiting.next()
    assert under_way is tasks[0]
    some = waiting.queue_of(under_way, queue_of)
    assert take(some, at)
    waiting.close()
    assert waiting.next() is None
    assert not take(some, at)
    assert not take(queue_of(tasks[1]), at)


def test_calls_take_about_as_long_as_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    pace = Pace()
    # A millisecond for each piece: more and more of them, then as many as fit.
    for expected in (PIECES, PIECES * MORE_PIECES, 50, 50):
        assert pace.pieces == expected
        now[0] += 0.001 * pace.pieces
        pace.go_on()
    now[0] += 10
    pace.go_on()
    assert pace.pieces == 1
    now[0] += 10
    pace.go_on()
    assert pace.pieces == 1


@pytest.mark.parametrize("shared", [False, True])
def test_a_call_for_each_piece_gives_the_same_bytes(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network(20, seed=4)
    states = sample(network, 150, 1).astype(np.int32)
    states[np.random.default_rng(2).random(states.shape) < 0.6] = UNOBSERVED
    batch = EvidenceBatch(150, {v: np.ascontiguousarray(states[:, v]) for v in range(20)})
    groups = [TreeRows(part, shared) for part in np.split(np.arange(150), [9, 20, 100])]
    found, calls = [], []
    name = "answer_shared" if shared else "answer_alone"
    real = getattr(queue, name)
    monkeypatch.setattr(queue, name, lambda *args: calls.append(name) or real(*args))
    for seconds in (1e9, 0.0):
        monkeypatch.setattr(row_queue, "CALL_SECONDS", seconds)
        monkeypatch.setattr(row_queue, "PIECES", 1)
        calls.clear()
        answers = blank(network, batch)
        assert not RowEngine(network, range(20), 1 << 28).answer_groups(batch, groups, answers).size
        found.append((answers.log_value.tobytes(), [table.tobytes() for table in answers.posteriors.values()]))
        found.append(len(calls))
    assert found[0] == found[2]
    assert found[3] > found[1]


def test_a_queue_is_made_once() -> None:
    (task,) = tasks = [RowTask(np.arange(100), 1)]
    waiting, barrier, made = RowTasks(tasks), Barrier(4), []

    def make(task: RowTask) -> queue.Queue:
        made.append(task)
        time.sleep(0.01)
        return queue_of(task)

    def work() -> None:
        waiting.next()
        barrier.wait()
        waiting.queue_of(task, make)

    workers = [Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert made == [task]


@pytest.mark.parametrize("pieces", [pieces_alone, pieces_shared])
@given(st.integers(1, 1 << 20), st.integers(0, 1 << 24), st.integers(1, 64))
def test_rows_of_pieces(pieces: Any, rows: int, row_bytes: int, threads: int) -> None:
    most = pieces(rows, row_bytes, 1)
    size = pieces(rows, row_bytes, threads)
    assert 1 <= size <= most
    # Every thread finds some, where there are rows enough.
    assert size <= -(-rows // (PIECES * threads)) or threads == 1
    assert most * row_bytes <= 1 << 19 or most <= 4


@given(st.integers(1, 1000), st.integers(0, 256))
def test_few_rows_share_no_tree(rows: int, size: int) -> None:
    assert is_worth_it(rows, size) == (rows > 1 and (size >= rows or size >= WIDTH))
