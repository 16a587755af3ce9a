from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any

import dask
import psutil
import pytest
from junctor.model.errors import BudgetError, EvidenceError, RunError
from junctor.model.options import ComputeOptions
from junctor.runtime import dask_cluster as distribution
from junctor.runtime.dask_cluster import (
    Resources,
    check_certificates,
    check_scheduler,
    distribute,
    distribute_in_order,
    largest_worker,
    local_client,
    silent_dask,
    workers_ahead,
    workers_of,
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


@pytest.mark.parametrize("name", ["distributed.client", "distributed.scheduler", "tornado.application"])
def test_dask_is_silent_whatever_levels_its_loggers_have(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger(name)
    # Loaded first: its import gives its loggers handlers and levels.
    with silent_dask():
        pass
    monkeypatch.setattr(logging.getLogger(name), "propagate", False)
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    with silent_dask():
        logger.error("a traceback of its clean-up")
    assert not caplog.messages
    logger.error("as before")
    assert caplog.messages == ["as before"]


def give_code() -> str:
    return "run"


def test_strangers_on_this_machine_are_refused() -> None:
    from distributed import Client, Security

    with local_client(2, False) as client:
        addresses = [client.scheduler.address, *workers_of(client)]
        assert all(address.startswith("tls://127.0.0.1:") for address in addresses)
        assert client.submit(give_code).result() == "run"
        port = addresses[0].rpartition(":")[2]
        # Without TLS, and with a certificate of one's own; the workers listen too.
        with pytest.raises(OSError):
            Client(f"tcp://127.0.0.1:{port}", timeout=3, set_as_default=False)
        for address in addresses:
            with pytest.raises(OSError):
                Client(address, timeout=3, set_as_default=False, security=Security.temporary())
        assert client.submit(give_code, pure=False).result() == "run"


def worker_of_now() -> tuple[int, int, str | None]:
    return os.getpid(), os.getppid(), os.environ.get("JUNCTOR_TEST")


def test_workers_are_forked_with_the_environment_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for text in ("one", "other"):
        monkeypatch.setenv("JUNCTOR_TEST", text)
        with local_client(1, gpus=False) as client:
            killed, server, _ = client.submit(worker_of_now).result()
            os.kill(killed, signal.SIGKILL)
            # The one that takes its place is forked, too.
            worker, *found_there = client.submit(worker_of_now, pure=False).result()
            assert worker != killed
            assert found_there == [server, text]
            found.add(server)
    assert len(found) == 1
    assert found != {os.getpid()}
    assert largest_worker() > 64 << 20


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Workers and GPUs of the clusters of this machine that were started."""
    started, real = list[tuple[int, bool]](), distribution._local_cluster

    def local_cluster(workers: int, gpus: bool) -> AbstractContextManager[Any]:
        started.append((workers, gpus))
        return real(workers, gpus)

    monkeypatch.setattr(distribution, "_local_cluster", local_cluster)
    return started


def test_workers_are_started_ahead_once_there_is_a_task_for_each(clusters: list[tuple[int, bool]]) -> None:
    with workers_ahead(Resources(workers=2)) as start:
        start(1)
        assert not clusters
        start(2)
        start(3)
        with local_client(2, gpus=False) as client:
            there = [psutil.Process(pid) for pid in client.run(os.getpid).values()]
            assert len(there) == 2
            # Another one, while these are taken.
            with local_client(2, gpus=False) as other:
                assert {*other.run(os.getpid).values()}.isdisjoint(each.pid for each in there)
        _, alive = psutil.wait_procs(there, 10)
        assert not alive
    assert clusters == [(2, False)] * 2


def test_workers_that_nobody_takes_are_ended(clusters: list[tuple[int, bool]]) -> None:
    with pytest.raises(ZeroDivisionError), workers_ahead(Resources(workers=2)) as start:
        start(2 // len(clusters))
    assert not clusters
    with workers_ahead(Resources(workers=2)) as start:
        start(2)
    assert clusters == [(2, False)]
    assert not distribution._worker_processes()


def test_fewer_workers_than_were_started_ahead(clusters: list[tuple[int, bool]]) -> None:
    with workers_ahead(Resources(workers=2)) as start:
        start(2)
        with local_client(1, gpus=False) as client:
            assert len(workers_of(client)) == 1
            assert len(distribution._worker_processes()) == 1
    assert clusters == [(2, False), (1, False)]


@pytest.mark.parametrize("resources", [Resources(workers=1), Resources(), Resources(workers=4, scheduler="tls://x:1")])
def test_no_workers_ahead_that_nobody_asked_for(clusters: list[tuple[int, bool]], resources: Resources) -> None:
    with workers_ahead(resources) as start:
        start(100)
    assert not clusters


def test_what_went_wrong_ahead_is_told_where_workers_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(workers: int, gpus: bool) -> AbstractContextManager[Any]:
        raise RunError("no port is free")

    with workers_ahead(Resources(workers=2)) as start:
        with monkeypatch.context() as broken:
            broken.setattr(distribution, "_cluster_class", refused)
            start(2)
            concurrent.futures.wait([distribution._ahead.get()._cluster])  # type: ignore[list-item, union-attr]
        with local_client(2, gpus=False) as client:
            assert len(workers_of(client)) == 2


def test_a_worker_for_each_gpu_and_the_environment_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for Dask-CUDA, which cannot be imported everywhere."""

    class Cluster:
        def new_worker_spec(self) -> dict[int, dict[str, Any]]:
            return {3: {"options": {"env": {"CUDA_VISIBLE_DEVICES": "3,0"}}}}

    module = types.ModuleType("dask_cuda")
    module.LocalCUDACluster = Cluster  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dask_cuda", module)
    monkeypatch.setenv("JUNCTOR_TEST", "now")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    (spec,) = distribution._cluster_class(True)().new_worker_spec().values()
    environment = spec["options"]["env"]
    assert (environment["JUNCTOR_TEST"], environment["CUDA_VISIBLE_DEVICES"]) == ("now", "3,0")


@pytest.mark.gpu
def test_what_workers_with_gpus_are_forked_from_opens_none() -> None:
    code = (
        "import ctypes, importlib; from junctor.runtime import dask_cluster as d\n"
        "for name in (*d._WORKER_IMPORTS, *d._GPU_IMPORTS): importlib.import_module(name)\n"
        "print(ctypes.CDLL('libcuda.so.1').cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p())))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # CUDA_ERROR_NOT_INITIALIZED
    assert done.stdout.strip() == "3"


def test_without_a_socket_workers_are_no_forks(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    code = (
        "from junctor.runtime.dask_cluster import _start_fork_server as start\n"
        "import os; before = dict(os.environ); print(start(True), start(False), os.environ == before)"
    )
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("False False True", "")


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


def test_workers_that_never_end_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed.nanny import WorkerProcess

    async def kill(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(distribution, "CLOSING_SECONDS", 1.0)
    monkeypatch.setattr(WorkerProcess, "kill", kill)
    with local_client(1, gpus=False) as client:
        worker = client.submit(os.getpid).result()
        started = time.monotonic()
    assert time.monotonic() - started < 30
    _, alive = psutil.wait_procs([psutil.Process(worker)] if psutil.pid_exists(worker) else [], 10)
    assert not alive
