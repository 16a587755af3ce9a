"""A cluster of this machine: Dask workers, forked from a process that has their imports; with GPUs one for each.

Main functions: `local_client`, and `cluster_ahead`, which starts one while its caller goes on.
"""

from __future__ import annotations

import concurrent.futures
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from junctor.model.errors import DeviceError, RunError
from junctor.runtime.devices import count_gpus
from junctor.runtime.machine import peak_memory, usable_cores

if TYPE_CHECKING:
    from distributed import Client

# Least threads of a worker with a GPU: it reads and propagates a partition each, and writes others at the same time.
GPU_WORKER_THREADS = 4
# Packages whose loggers are Dask's.
_NOISY = ("distributed", "tornado")
# For the workers of this machine to end; more than Dask gives each of them.
CLOSING_SECONDS = 15.0
# Seconds without a sign of life after which a worker counts as stopped. Its loop of events gives one every half second,
# whatever its tasks are at, since compiled code lets other threads run. Dask looks as rarely, so that twice as many may
# pass.
SILENT_SECONDS = 60
# One thread a worker. Dask would also have the allocator give back all memory at once (MALLOC_TRIM_THRESHOLD_), only
# to fault it in again for the next block: that took a third more time.
_WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "DASK_LOGGING__DISTRIBUTED": "critical",
}
# What tasks import, by name: it lies above this layer. Workers are forked from a process that has it.
_WORKER_IMPORTS = (
    "distributed",
    "junctor.engine.engine",
    "junctor.evidence.encoded",
    "junctor.learning.pieces",
    "junctor.out_of_core.cluster.workers",
    "junctor.runs.partition",
    "junctor.runs.results",
)
# The same of workers with a GPU. None of it opens one: CUDA does not survive a fork.
_GPU_IMPORTS = (
    "cupy",
    "dask_cuda.initialize",
    "junctor.backends.gpu",
    "junctor.engine.scores",
    "junctor.out_of_core.gpu.run",
    "junctor_kernels.gpu.device",
)
# Settings of processes of Dask that nobody looks at, which otherwise take 4 to 6 % of a core each without any work.
UNWATCHED = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.admin.tick.interval": "1s",
}

# Bytes, see `largest_worker`.
_largest_worker = 0

logger = logging.getLogger("junctor")


@contextmanager
def local_client(workers: int, gpus: bool) -> Iterator[Client]:
    """Context manager: a cluster of processes on this machine, each of one thread, or of one GPU.

    The one of `cluster_ahead` if it has as many.
    """
    from distributed import Client

    ahead = _ahead.get()
    taken = None if ahead is None else ahead.take(workers, gpus)
    with ExitStack() as until_left:
        if taken is None:
            cluster = until_left.enter_context(_local_cluster(workers, gpus))
        else:
            cluster = taken[0]
            until_left.push(taken[1])
        client = until_left.enter_context(Client(cluster, set_as_default=False))
        tell_stopped_workers(client)
        yield client


def tell_stopped_workers(client: Client) -> None:
    """Log a warning for each worker that is replaced because its heartbeats stopped."""

    def tell(event: tuple[float, Any]) -> None:
        _, said = event
        if said.get("action") == "worker-ttl-timed-out":
            for worker in said["workers"]:
                logger.warning("worker %s gives no sign of life: its tasks go to other workers", worker)

    client.subscribe_topic("scheduler", tell)


@contextmanager
def _local_cluster(workers: int, gpus: bool) -> Iterator[Any]:
    """Context manager: a cluster of this machine without clients; arguments as of `local_client`.

    Others who work on the machine reach its ports, too, and whoever can connect can run code: both sides of a
    connection have to show a certificate that is made here and that only these processes have.
    """
    forked = start_fork_server(gpus)
    with silent_dask():
        import dask
        from distributed import Security, utils

        # Dask would import pandas here, only to name it among the imports of a fork server that runs.
        utils._forkserver_preload_set = True
        # Junctor plans and divides the memory itself: Dask's own limit would pause workers that keep to the plan.
        settings = {
            **UNWATCHED,
            "distributed.scheduler.worker-ttl": f"{SILENT_SECONDS}s",
            "distributed.nanny.pre-spawn-environ": _WORKER_ENVIRONMENT,
            "distributed.worker.multiprocessing-method": "forkserver" if forked else "spawn",
        }
        # For as long as the cluster is there: workers that replace dead ones are started as the first ones are.
        with dask.config.set(settings):
            make = _cluster_class(gpus)
            with _keyboard_is_ours(), told_where_none_start():
                cluster = make(
                    n_workers=workers,
                    threads_per_worker=worker_threads(workers, gpus),
                    host="127.0.0.1",
                    memory_limit=0,
                    dashboard_address="127.0.0.1:0",
                    protocol="tls",
                    security=Security.temporary(),
                    # A fork has the environment that the fork server was started in.
                    **({} if gpus else {"processes": True, "env": dict(os.environ)}),
                )
            try:
                yield cluster
            finally:
                _close(cluster)


@contextmanager
def told_where_none_start() -> Iterator[None]:
    """Context manager: RunError where the workers of this machine do not start, which Dask tells in several ways."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        why, *_ = (str(error) or type(error).__name__).splitlines()
        raise RunError(
            f"the worker processes of this machine did not start ({why}): --workers 0 does without; a script that "
            'starts some begins with `if __name__ == "__main__":`'
        ) from error


@contextmanager
def cluster_ahead(workers: int, gpus: bool) -> Iterator[Callable[[int], None]]:
    """Context manager: what starts a cluster while the caller goes on; arguments as of `local_client`.

    It is called with the number of tasks so far, and starts the workers once there is one for each. What they are
    forked from starts at once: it imports meanwhile. `local_client` takes them; those that nobody took end with the
    context.
    """
    start_fork_server(gpus)
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="junctor-workers") as thread:
        ahead = _WorkersAhead(workers, gpus, thread)
        token = _ahead.set(ahead)
        try:
            yield ahead.start
        finally:
            _ahead.reset(token)
            ahead.end()


class _WorkersAhead:
    """A cluster of this machine that another thread starts before it is needed; arguments as of `local_client`."""

    def __init__(self, workers: int, gpus: bool, thread: concurrent.futures.ThreadPoolExecutor) -> None:
        self._made_for = workers, gpus
        self._thread = thread
        self._until_left = ExitStack()
        self._cluster: concurrent.futures.Future[Any] | None = None
        self._was_started = False

    def start(self, tasks: int) -> None:
        """Start the cluster, once, if there are tasks for all workers."""
        if not self._was_started and tasks >= self._made_for[0]:
            self._was_started = True
            opened = _local_cluster(*self._made_for)
            self._cluster = self._thread.submit(self._until_left.enter_context, opened)

    def take(self, workers: int, gpus: bool) -> tuple[Any, ExitStack] | None:
        """Return the cluster, which is the caller's then, and what ends it; None if there is none like that."""
        if self._cluster is None or self._made_for != (workers, gpus) or self._cluster.exception() is not None:
            # Others would be in the way of those that are needed; what went wrong is told where it goes wrong again.
            self.end()
            return None
        cluster, self._cluster = self._cluster.result(), None
        return cluster, self._until_left.pop_all()

    def end(self) -> None:
        """End the cluster if nobody took it."""
        if self._cluster is not None:
            concurrent.futures.wait([self._cluster])
            self._cluster = None
            self._until_left.close()


# Of the run in this thread.
_ahead: ContextVar[_WorkersAhead | None] = ContextVar("workers that are started ahead", default=None)


def start_fork_server(gpus: bool) -> bool:
    """Start the process that workers are forked from, if it does not run; it imports while this process goes on.

    gpus: whether workers have one each, which their imports are chosen by. Returns False where workers are no forks.
    """
    # Frameworks of macOS do not survive a fork.
    if sys.platform != "linux":
        return False
    forkserver.set_forkserver_preload([*_WORKER_IMPORTS, *(_GPU_IMPORTS if gpus else ())])
    # Libraries read these when they are imported.
    before = {name: os.environ.get(name) for name in _WORKER_ENVIRONMENT}
    os.environ.update({name: value for name, value in _WORKER_ENVIRONMENT.items() if before[name] is None})
    try:
        with _keyboard_is_ours():
            forkserver.ensure_running()
    except OSError as error:
        # Its socket lies in the folder of temporary files, whose path may be too long for one.
        logger.debug("workers are not forked: %s", error)
        return False
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
    return True


def largest_worker() -> int:
    """Return the most bytes of memory of a worker of this machine that was there at the end of its cluster."""
    return _largest_worker


def _worker_processes() -> list[BaseProcess]:
    return [child for child in multiprocessing.active_children() if child.name.startswith("Dask Worker")]


def _close(cluster: Any) -> None:
    """Close a cluster of this machine; workers that do not end are killed."""
    global _largest_worker
    # Forks are no children of this process, whose statistics the system adds up.
    _largest_worker = max([_largest_worker, *(peak_memory(worker.pid) for worker in _worker_processes())])
    # Dask may wait for ever for a worker that was started anew at this moment, because the one before it had died.
    try:
        cluster.close(timeout=CLOSING_SECONDS)
    except TimeoutError:
        # Nor again when this process ends.
        cluster.shutdown_on_close = False
        for worker in _worker_processes():
            worker.kill()


def at_most(workers: int, gpus: bool) -> int:
    """Return how many of `workers` there are on this machine: with GPUs one for each."""
    return min(workers, count_gpus()) if gpus else workers


def worker_threads(workers: int, gpus: bool) -> int:
    """Return the threads of each worker: with GPUs, all cores write."""
    return max(GPU_WORKER_THREADS, 2 + usable_cores() // workers) if gpus else 1


def _cluster_class(gpus: bool) -> Any:
    """Return the class of a cluster on this machine; with GPUs each worker sees its own one first."""
    if not gpus:
        from distributed import LocalCluster

        return LocalCluster
    try:
        from dask_cuda import LocalCUDACluster
    except ImportError as error:
        raise DeviceError(
            f"several GPUs need dask-cuda ({error}): install junctor[cuda12] or junctor[cuda13], or use --workers 0"
        ) from error

    class Cluster(LocalCUDACluster):  # type: ignore[misc]
        def new_worker_spec(self) -> Any:
            # A fork has the environment that the fork server was started in.
            specs = super().new_worker_spec()
            for spec in specs.values():
                spec["options"]["env"] = {**os.environ, **spec["options"]["env"]}
            return specs

    return Cluster


@contextmanager
def silent_dask() -> Iterator[None]:
    """Context manager: Dask without messages of its own."""
    # Lost workers are handled here, and errors return as exceptions. Imported first, since the import sets levels.
    import distributed  # noqa: F401

    # Each logger that has a level of its own: what another one says does not reach it. An interrupt in the middle of a
    # call of Dask makes Tornado print a traceback of Dask's clean-up.
    # A copy: other threads may import what has loggers of its own.
    names = [name for name in list(logging.root.manager.loggerDict) if name.split(".")[0] in _NOISY]
    levels = {logger: logger.level for logger in map(logging.getLogger, names) if logger.level != logging.NOTSET}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


@contextmanager
def _keyboard_is_ours() -> Iterator[None]:
    # A terminal interrupts workers too, each of which would print its own traceback. Threads and processes inherit
    # blocked signals, also those that replace dead workers later; in this process the signal only waits until the block
    # ends. The tracker of multiprocessing unblocks it when it starts, so it is started before.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
