from __future__ import annotations

import operator
import os
import signal
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import dask
import pytest
from helpers.signals import dask_cluster
from junctor.model.errors import BudgetError, EvidenceError, RunError
from junctor.model.options import ComputeOptions
from junctor.runtime import dask_cluster as distribution
from junctor.runtime.dask_cluster import (
    Resources,
    check_certificates,
    check_scheduler,
    distribute,
    distribute_in_order,
)

HUNDRED = ComputeOptions(memory=100)


@pytest.fixture(autouse=True, scope="module")
def settings_of_dask() -> None:
    """Those that come with this import, before tests set some: else they would be taken out with what was set."""
    import distributed  # noqa: F401


def square(task: int, memory: int) -> tuple[int, int, int]:
    return task * task, memory, os.getpid()


def refuse(task: int, memory: int) -> int:
    raise BudgetError(f"partition {task} does not fit {memory} bytes")


def die_once(task: tuple[str, int], memory: int) -> int:
    """Kill the worker that runs task 3, the first time; other tasks take a moment."""
    mark, number = task
    if number == 3 and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return number


def die(task: int, memory: int) -> int:
    if task == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def stumble(task: tuple[str, int], memory: int) -> int:
    """Fail with an unexpected error, the first time."""
    mark, number = task
    if number == 1 and not Path(mark).exists():
        Path(mark).touch()
        raise OSError("the network drive stumbled")
    return number


@pytest.mark.parametrize("workers", [0, 1])
def test_few_workers_are_this_process(workers: int) -> None:
    results = list(distribute(square, range(4), Resources(workers=workers, compute=HUNDRED)))
    assert results == [(i * i, 100, os.getpid()) for i in range(4)]


def test_one_task_is_done_here_and_none_is_nothing() -> None:
    assert list(distribute(square, [5], Resources(workers=8, compute=HUNDRED))) == [(25, 100, os.getpid())]
    assert list(distribute(square, [], Resources(workers=8, compute=HUNDRED))) == []


def test_workers_share_the_memory_and_more_tasks_than_the_window() -> None:
    results = list(distribute(square, range(30), Resources(workers=2, compute=HUNDRED)))
    assert sorted(result for result, _, _ in results) == [i * i for i in range(30)]
    assert {memory for _, memory, _ in results} == {50}
    assert os.getpid() not in {process for _, _, process in results}


def test_the_task_of_a_worker_that_dies_goes_to_another(tmp_path: Path) -> None:
    tasks = [(str(tmp_path / "died"), i) for i in range(12)]
    assert sorted(distribute(die_once, tasks, Resources(workers=2, compute=HUNDRED))) == list(range(12))
    assert (tmp_path / "died").exists()


def test_a_task_that_always_kills_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "REBUILDS", 1)
    monkeypatch.setattr(distribution, "WINDOW", 1)
    results = distribute(die, [0, 1], Resources(workers=2, compute=HUNDRED))
    named = pytest.raises(RunError, match=r"every worker process died at 1, more than once.*--memory")
    with dask.config.set({"distributed.scheduler.allowed-failures": 1}), named:
        # A worker that had both may take the result of the first one with it.
        assert list(results) == [0]


def test_a_users_error_ends_it() -> None:
    with pytest.raises(BudgetError, match="does not fit 50 bytes"):
        list(distribute(refuse, range(2), Resources(workers=2, compute=HUNDRED)))


def test_a_scheduler_by_its_address_and_errors_that_are_tried_again(tmp_path: Path) -> None:
    from distributed import LocalCluster

    tasks = [(str(tmp_path / "mark"), i) for i in range(3)]

    options = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "protocol": "tcp", "host": "127.0.0.1"}
    with LocalCluster(**options, dashboard_address="127.0.0.1:0") as cluster:
        resources = Resources(scheduler=cluster.scheduler_address, compute=HUNDRED)
        results = list(distribute(square, range(9), resources))
        assert sorted(distribute(stumble, tasks, resources)) == [0, 1, 2]
    assert (tmp_path / "mark").exists()
    assert sorted(result for result, _, _ in results) == [i * i for i in range(9)]


def fail(task: int, memory: int) -> int:
    raise OSError(f"disk of {task}")


def test_an_error_of_the_system_in_a_task_is_told_as_it_is() -> None:
    from distributed import LocalCluster

    options = {"n_workers": 1, "processes": False, "protocol": "tcp", "host": "127.0.0.1"}
    with LocalCluster(**options, dashboard_address="127.0.0.1:0") as cluster:
        resources = Resources(scheduler=cluster.scheduler_address, compute=HUNDRED)
        with pytest.raises(OSError, match="disk of 0"):
            list(distribute(fail, range(1), resources))


def test_a_scheduler_that_goes_away_is_named() -> None:
    with dask_cluster() as (process, address):
        # A function that workers have without the path of the tests.
        results = distribute(operator.add, range(500), Resources(scheduler=address, compute=HUNDRED))
        assert next(results) >= 50
        process.kill()
        with pytest.raises(RunError, match=rf"the Dask scheduler at {address} went away; run the same command again"):
            list(results)


class LostFuture:
    """A future whose result is on the other side of a connection that breaks."""

    status = "finished"

    def __init__(self) -> None:
        self.client = SimpleNamespace(scheduler=SimpleNamespace(address="tcp://host:8786"))

    def result(self) -> object:
        from distributed.comm import CommClosedError

        raise CommClosedError("in <TCP (closed) ConnectionPool.gather>: ConnectionResetError")


def test_a_result_that_is_lost_on_its_way_is_the_schedulers_fault() -> None:
    with pytest.raises(RunError, match=r"^the Dask scheduler at tcp://host:8786 went away; run the same command again"):
        distribution.result_of(LostFuture(), None)  # type: ignore[arg-type]


def late(task: int, memory: int) -> int:
    """Take longer the sooner it is among four; refuse task 9."""
    time.sleep(0.02 * (3 - task % 4))
    if task == 9:
        raise BudgetError("nine does not fit")
    return task


def test_results_in_order_and_no_task_made_long_before_its_turn() -> None:
    from distributed import LocalCluster

    made, most = 0, 2 * distribution.ORDERED_WINDOW

    def tasks(end: int, error: Exception | None = None) -> Iterator[int]:
        nonlocal made
        for task in range(end):
            made = task
            yield task
        if error is not None:
            raise error

    options = {"n_workers": 2, "threads_per_worker": 2, "processes": False, "protocol": "tcp", "host": "127.0.0.1"}
    with LocalCluster(**options, dashboard_address="127.0.0.1:0") as cluster:
        resources = Resources(scheduler=cluster.scheduler_address, compute=HUNDRED)
        # What goes wrong in a task or in making one is told after all results before it.
        results = distribute_in_order(late, tasks(40), resources)
        for expected in range(9):
            assert next(results) == expected
            assert made - expected <= most
        with pytest.raises(BudgetError, match="nine"):
            next(results)
        results = distribute_in_order(late, tasks(7, EvidenceError("a damaged file")), resources)
        assert list(islice(results, 7)) == list(range(7))
        with pytest.raises(EvidenceError, match="damaged"):
            next(results)
        assert list(distribute_in_order(late, [], resources)) == []


@pytest.mark.slow
def test_order_holds_through_the_death_of_workers(tmp_path: Path) -> None:
    tasks = [(str(tmp_path / "died"), i) for i in range(12)]
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        # The whole cluster is given up and made anew.
        assert list(distribute_in_order(die_once, tasks, Resources(workers=2, compute=HUNDRED))) == [*range(12)]
    assert (tmp_path / "died").exists()


def test_no_scheduler_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "CONNECT_SECONDS", 1)
    with pytest.raises(RunError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        list(distribute(square, range(3), Resources(scheduler="tcp://127.0.0.1:9")))


@pytest.mark.parametrize(
    "address", ["tls://cluster:8786", "wss://x:1", "tcp://127.0.0.1:8786", "localhost:8786", "tcp://[::1]:8786"]
)
def test_safe_schedulers(address: str) -> None:
    check_scheduler(address)


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:8786", "cluster:8786", "ws://cluster:1", "ucx://cluster:1"])
def test_unsafe_schedulers_are_refused_unless_allowed(address: str) -> None:
    with pytest.raises(RunError, match=r"not encrypted.*--insecure-scheduler"):
        check_scheduler(address)
    check_scheduler(address, insecure=True)


@pytest.mark.parametrize("address", ["", "tcp://", ":8786"])
def test_no_address_at_all(address: str) -> None:
    with pytest.raises(RunError, match="expected something like tls"):
        check_scheduler(address)


@pytest.mark.parametrize("given", ["nothing", "no file", "no certificate"])
def test_tls_without_certificates_is_a_message(tmp_path: Path, given: str) -> None:
    (tmp_path / "ca.pem").write_text("not in PEM")
    path = {"nothing": None, "no file": str(tmp_path / "none.pem"), "no certificate": str(tmp_path / "ca.pem")}[given]
    with (
        dask.config.set({f"distributed.comm.tls.{name}": path for name in ("ca-file", "client.key", "client.cert")}),
        pytest.raises(RunError, match=r"needs certificates.*CA_FILE") as refused,
    ):
        check_certificates("tls://127.0.0.1:8786")
    assert {"nothing": "none", "no file": "none.pem", "no certificate": "PEM"}[given] in str(refused.value)


def test_tls_with_certificates(tmp_path: Path) -> None:
    from distributed import LocalCluster, Security

    made = Security.temporary()
    files = {"ca.pem": made.tls_ca_file, "cert.pem": made.tls_client_cert, "key.pem": made.tls_client_key}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    names = {"ca-file": "ca.pem", "client.key": "key.pem", "client.cert": "cert.pem"}
    ours = {f"distributed.comm.tls.{name}": str(tmp_path / file) for name, file in names.items()}
    cluster = LocalCluster(1, threads_per_worker=1, processes=False, dashboard_address=None, security=made)
    with dask.config.set(ours), cluster:
        address = cluster.scheduler_address
        results = list(distribute(square, [1, 2], Resources(scheduler=address, compute=HUNDRED)))
    assert sorted(result for result, _, _ in results) == [1, 4]
