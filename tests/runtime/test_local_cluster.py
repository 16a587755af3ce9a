"""Workers of this machine: forks, started ahead, ended, silent."""

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
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest
from junctor.model.errors import RunError
from junctor.runtime import local_cluster
from junctor.runtime.dask_cluster import Resources, cluster_client, workers_ahead, workers_of
from junctor.runtime.local_cluster import largest_worker, local_client, silent_dask


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


def no_workers(**_: Any) -> Any:
    raise RuntimeError("Nanny failed to start.\nand more")


def test_workers_that_do_not_start_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cluster, "_cluster_class", lambda gpus: no_workers)
    with (
        pytest.raises(RunError, match=r"did not start \(Nanny failed to start\.\): "),
        local_client(2, False),
    ):
        pass


def test_workers_that_never_come_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import Client
    from distributed.exceptions import WorkerStartTimeoutError

    def wait(*_: Any, **__: Any) -> None:
        # An error of the system by its class, whose numbers passed for a file and a reason.
        raise WorkerStartTimeoutError(0, 1, 60.0)

    monkeypatch.setattr(Client, "wait_for_workers", wait)
    with (
        pytest.raises(RunError, match="Only 0/1 workers arrived after 60"),
        cluster_client(Resources(1)),
    ):
        pass


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


def stop_once(mark: str) -> int:
    """Stop the worker, the first time, as a debugger does or a machine without memory."""
    if not os.path.exists(mark):
        Path(mark).write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    return os.getpid()


@pytest.mark.slow
def test_the_task_of_a_worker_that_stops_goes_to_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Dask never waits for less than ten signs of life, five seconds.
    monkeypatch.setattr(local_cluster, "SILENT_SECONDS", 2)
    with local_client(2, gpus=False) as client:
        mark = tmp_path / "mark"
        worker = client.submit(stop_once, str(mark)).result(timeout=60)
    assert worker != int(mark.read_text())
    assert [message for message in caplog.messages if "gives no sign of life" in message]


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Workers and GPUs of the clusters of this machine that were started."""
    started, real = list[tuple[int, bool]](), local_cluster._local_cluster

    def opened(workers: int, gpus: bool) -> AbstractContextManager[Any]:
        started.append((workers, gpus))
        return real(workers, gpus)

    monkeypatch.setattr(local_cluster, "_local_cluster", opened)
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
    assert not local_cluster._worker_processes()


def test_fewer_workers_than_were_started_ahead(clusters: list[tuple[int, bool]]) -> None:
    with workers_ahead(Resources(workers=2)) as start:
        start(2)
        with local_client(1, gpus=False) as client:
            assert len(workers_of(client)) == 1
            assert len(local_cluster._worker_processes()) == 1
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
            broken.setattr(local_cluster, "_cluster_class", refused)
            start(2)
            concurrent.futures.wait([local_cluster._ahead.get()._cluster])  # type: ignore[list-item, union-attr]
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
    (spec,) = local_cluster._cluster_class(True)().new_worker_spec().values()
    environment = spec["options"]["env"]
    assert (environment["JUNCTOR_TEST"], environment["CUDA_VISIBLE_DEVICES"]) == ("now", "3,0")


@pytest.mark.gpu
def test_what_workers_with_gpus_are_forked_from_opens_none() -> None:
    code = (
        "import ctypes, importlib; from junctor.runtime import local_cluster as d\n"
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
        "from junctor.runtime.local_cluster import start_fork_server as start\n"
        "import os; before = dict(os.environ); print(start(True), start(False), os.environ == before)"
    )
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("False False True", "")


def test_workers_that_never_end_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed.nanny import WorkerProcess

    async def kill(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(local_cluster, "CLOSING_SECONDS", 1.0)
    monkeypatch.setattr(WorkerProcess, "kill", kill)
    with local_client(1, gpus=False) as client:
        worker = client.submit(os.getpid).result()
        started = time.monotonic()
    assert time.monotonic() - started < 30
    _, alive = psutil.wait_procs([psutil.Process(worker)] if psutil.pid_exists(worker) else [], 10)
    assert not alive
