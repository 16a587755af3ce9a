"""Tasks over threads: order, places, exceptions; and engines whose answers do not depend on how many there are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import distributed
import numpy as np
import pytest
from helpers.engine_cases import assert_same
from helpers.files import ASIA
from helpers.options import on_cpu
from helpers.signals import ctrl_c_is_heard
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends import plan_memory as memory
from junctor.backends import row_queue
from junctor.backends.row_trees import RowEngine, room_bytes
from junctor.engine.engine import Engine
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.generate import layered, sample
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.model.strategies import Strategy
from junctor.runtime import dask_cluster as distribution
from junctor.runtime.dask_cluster import Resources, distribute, threads_for, threads_here
from junctor.runtime.threads import TURN_SECONDS, Turns, ahead, in_threads, short_gil_switches, stretches


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_the_order_of_the_tasks(threads: int) -> None:
    busy = [threading.Lock() for _ in range(threads)]

    def square(task: int, place: int) -> int:
        # Nobody else is at the same place.
        assert busy[place].acquire(blocking=False)
        time.sleep(0.001 * (task % 3))
        busy[place].release()
        return task * task

    assert in_threads(square, range(20), threads) == [task * task for task in range(20)]
    assert in_threads(square, [], threads) == []


def test_one_thread_is_the_calling_one() -> None:
    caller = threading.current_thread()
    assert in_threads(lambda task, place: threading.current_thread() is caller, [1, 2], 1) == [True, True]


def test_an_exception_stops_the_others() -> None:
    done: list[int] = []

    def fail(task: int, place: int) -> None:
        if task == 3:
            raise ValueError("task 3")
        time.sleep(0.005)
        done.append(task)

    with pytest.raises(ValueError, match="task 3"):
        in_threads(fail, range(1000), 2)
    assert len(done) < 20


def test_threads_serve_again_also_after_errors_and_within_each_other() -> None:
    def fail(task: int, place: int) -> int:
        raise ValueError(task)

    def nested(task: int, place: int) -> list[int]:
        return in_threads(lambda inner, _: 10 * task + inner, range(3), 3)

    before = set(threading.enumerate())
    for _ in range(20):
        with pytest.raises(ValueError, match=r"0|1|2"):
            in_threads(fail, range(9), 3)
        assert in_threads(nested, range(3), 3) == [[0, 1, 2], [10, 11, 12], [20, 21, 22]]
    # Three for the outer call, and three for each of the inner ones: others are not started.
    assert len(set(threading.enumerate()) - before) <= 3 * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_starts_threads_of_its_own() -> None:
    in_threads(lambda task, _: task, range(4), 4)
    child = os.fork()
    if not child:
        # No assertion: pytest is not in this process.
        os._exit(0 if in_threads(lambda task, _: task, range(4), 4) == [0, 1, 2, 3] else 1)
    deadline = time.monotonic() + 20
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if done == (0, 0):
        os.kill(child, signal.SIGKILL)
    assert done[1:] == (0,)


def test_ctrl_c_stops_all_threads() -> None:
    done: list[int] = []

    def interrupt(task: int, place: int) -> None:
        if task == 3:
            signal.raise_signal(signal.SIGINT)
        time.sleep(0.005)
        done.append(task)

    with ctrl_c_is_heard(), pytest.raises(KeyboardInterrupt):
        in_threads(interrupt, range(1000), 2)
    assert len(done) < 100


def random_batch(network: Network, rows: int, share: float, seed: int = 2) -> EvidenceBatch:
    states = sample(network, rows, seed).astype(np.int32)
    states[np.random.default_rng(seed).random(states.shape) > share] = UNOBSERVED
    return EvidenceBatch(rows, {v: np.ascontiguousarray(states[:, v]) for v in range(states.shape[1])})


@pytest.mark.parametrize("query", [Query(), Query(precision="single"), Query(kind="mpe")])
@pytest.mark.parametrize("spare", [1 << 20, 1 << 28])
def test_answers_do_not_depend_on_threads(query: Query, spare: int) -> None:
    network = layered(layers=4, width=5, states=3, parents=2, seed=5)
    states = sample(network, 700, seed=3)
    batch = EvidenceBatch(700, {v: np.ascontiguousarray(states[:, v]) for v in range(0, 20, 2)})
    probe = Engine(network, query)
    (group,) = probe.choice(batch).groups
    least = memory.PlanMemory(probe.facts.plan(group.pattern, 700), 3).least + probe.answer(batch).nbytes
    options = [on_cpu(least + spare, threads, strategy=Strategy.CPU_BLOCKS) for threads in (1, 2, 3)]
    engines = [Engine(network, query, each) for each in options]
    answers = [each.answer(batch) for each in engines]
    for found, each in zip(answers[1:], engines[1:], strict=True):
        assert_same(found, answers[0])
        (prepared,) = each.programs
        assert prepared.sizes.projected(8) + found.nbytes <= each.allowed
        if spare == 1 << 28:
            assert prepared.sizes.threads == each.facts.threads


def test_rows_alone_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where the share of a thread is too small for some rows: those get all of the memory."""
    monkeypatch.setattr(row_queue, "ALONE_BYTES", 0)
    network = layered(layers=5, width=6, states=3, parents=2, seed=5)
    batch = random_batch(network, 100, share=0.3)
    targets = range(30)
    one = RowEngine(network, targets, 1 << 28)
    needs = [one.work([v for v in targets if batch.states[v][row] >= 0])[1] for row in range(100)]
    allowed = 3 * room_bytes(network, int(np.quantile(needs, 0.3)))
    assert room_bytes(network, int(max(needs))) < allowed
    found = []
    for threads in (1, 3):
        answers = Engine(network, Query()).blank(batch)
        row_engine = RowEngine(network, targets, allowed, threads)
        assert not row_engine.answer(batch, np.arange(100), answers).size
        assert not row_engine.answer(batch, np.arange(100), answers).size
        assert row_engine.held <= row_engine.entries
        found.append(answers)
    assert_same(found[1], found[0])


def test_threads_are_the_share_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "usable_cores", lambda: 8)
    assert [threads_for(Resources(), workers) for workers in (0, 1, 3, 20)] == [8, 8, 2, 1]
    assert threads_for(Resources(compute=ComputeOptions(threads=5)), 3) == 5
    assert threads_for(Resources(scheduler="tls://far:8786"), 1) is None
    assert threads_for(Resources(scheduler="tls://far:8786", compute=ComputeOptions(threads=2)), 1) == 2


def threads_of(task: int, memory: int) -> int:
    return threads_here()


def test_a_worker_of_a_scheduler_uses_its_own_threads() -> None:
    options = {"n_workers": 1, "threads_per_worker": 3, "processes": False, "protocol": "tcp", "host": "127.0.0.1"}
    with distributed.LocalCluster(**options, dashboard_address="127.0.0.1:0") as cluster:
        resources = Resources(scheduler=cluster.scheduler_address, compute=ComputeOptions(memory=100))
        assert list(distribute(threads_of, range(2), resources)) == [3, 3]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_work_ahead_comes_in_order_and_within_the_bytes(threads: int) -> None:
    made: list[int] = []

    def tasks() -> Iterator[int]:
        for task in range(20):
            made.append(task)
            yield task

    def square(task: int) -> int:
        time.sleep(0.001 * (task % 3))
        return task * task

    for done, result in enumerate(ahead(square, tasks(), threads, lambda task: 10, 30)):
        assert result == done * done
        # Those within the bytes, and the next one, which does not fit yet.
        assert len(made) <= done + (4 if threads > 1 else 1)
    assert len(made) == 20


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("bad", "error", "before"), [(9, KeyError, 5), (3, ValueError, 3)])
def test_work_ahead_fails_when_its_turn_comes(threads: int, bad: int, error: type[Exception], before: int) -> None:
    def tasks() -> Iterator[int]:
        yield from range(5)
        raise KeyError("no more")

    def double(task: int) -> int:
        if task == bad:
            raise ValueError("bad")
        return 2 * task

    results: list[int] = []
    with pytest.raises(error):
        results.extend(ahead(double, tasks(), threads))
    assert results == [2 * task for task in range(before)]


def test_turns_are_short_only_inside() -> None:
    before = sys.getswitchinterval()

    @short_gil_switches()
    def fail() -> None:
        assert sys.getswitchinterval() == pytest.approx(TURN_SECONDS, rel=0.1)
        raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert sys.getswitchinterval() == before


def test_turns_stay_short_until_the_last_one_ends() -> None:
    before, first, second = sys.getswitchinterval(), short_gil_switches(), short_gil_switches()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() < before
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == before


def test_threads_have_a_lock_by_turns() -> None:
    turns, order, inside = Turns(), list[int](), list[int]()
    with turns:
        # All ask while this thread has it, one after the other.
        threads = []
        for n in range(3):

            def work(n: int = n) -> None:
                with turns:
                    for _ in range(4):
                        inside.append(n)
                        assert len(inside) == 1
                        order.append(n)
                        inside.pop()
                        turns.give_way()

            threads.append(threading.Thread(target=work))
            threads[-1].start()
            while len(turns._waiting) <= n:
                time.sleep(0.001)
        assert not order
        turns.give_way()
        # All three once, then again this one: they asked before.
        assert order == [0, 1, 2]
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2] * 4


def test_a_lock_is_free_while_its_thread_waits_and_after_an_error() -> None:
    turns, others = Turns(), list[int]()

    def work() -> None:
        with turns:
            others.append(1)

    thread = threading.Thread(target=work)
    with turns:
        thread.start()
        with turns.left():
            thread.join(10)
        assert others == [1]
    with pytest.raises(ValueError, match="in between"), turns, turns.left():
        raise ValueError("in between")
    work()
    assert others == [1, 1]
    # Without anybody who waits it goes on at once.
    with turns:
        turns.give_way()


@given(count=st.integers(0, 50), parts=st.integers(0, 60), most=st.integers(0, 60))
def test_stretches_hold_all_items_once(count: int, parts: int, most: int) -> None:
    found = stretches(count, parts, most)
    assert [n for part in found for n in range(count)[part]] == list(range(count))
    sizes = [part.stop - part.start for part in found]
    assert not sizes or (min(sizes) > 0 and max(sizes) - min(sizes) < 2 and max(sizes) <= max(1, most))
    assert len(found) >= min(parts, count)


def test_a_thread_that_outlives_the_main_one_does_the_work_itself() -> None:
    code = (
        "import junctor, threading, time, pyarrow as pa\n"
        f"network = junctor.read_network({ASIA!r})\n"
        "def work():\n"
        "    threading.main_thread().join(); time.sleep(0.1)\n"
        "    from junctor.runtime.threads import ahead, in_threads\n"
        "    print(in_threads(lambda task, place: (task, place), range(4), 3), *ahead(str, range(4), 2))\n"
        "    batches = pa.table({'smoke': ['yes', 'no'] * 3}).to_batches(max_chunksize=2)\n"
        "    print(junctor.posteriors(network, pa.Table.from_batches(batches)).num_rows)\n"
        "    try: in_threads(lambda task, place: 1 / task, [1, 0, 2], 2)\n"
        "    except ZeroDivisionError as error: print(error)\n"
        "threading.Thread(target=work).start()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["[(0, 0), (1, 0), (2, 0), (3, 0)] 0 1 2 3", "6", "division by zero"]
