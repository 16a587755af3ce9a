"""Tasks over processes and clusters, by Dask: a bounded number in flight, and none lost when a worker dies.

Main functions: `distribute`, called by runs, and `distribute_in_order`, by learning; main class: Resources.
"""

from __future__ import annotations

import concurrent.futures
import ipaddress
import logging
import multiprocessing
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from itertools import islice
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

from junctor.model.errors import DeviceError, JunctorError, RunError
from junctor.model.options import ComputeOptions
from junctor.runtime.devices import check_device, count_gpus
from junctor.runtime.machine import DEFAULT_SHARE, allowed_memory, peak_memory, usable_cores

if TYPE_CHECKING:
    from distributed import Client, Future

Task = TypeVar("Task")
Result = TypeVar("Result")

# Tasks in flight for each worker: enough that none waits for its next one, few enough that a scheduler with ten
# thousand remaining partitions stays small.
WINDOW = 4
# The same where results are wanted in order: what is large in tasks or results waits for its turn.
ORDERED_WINDOW = 3
# Least threads of a worker with a GPU: it reads and propagates a partition each, and writes others at the same time.
GPU_WORKER_THREADS = 4
# Retries of a task after an unexpected exception, such as one of a network drive.
RETRIES = 2
# Packages whose loggers are Dask's.
_NOISY = ("distributed", "tornado")
# New local clusters after the death of all workers.
REBUILDS = 2
# Seconds without a single worker before the cluster counts as lost; a worker takes some seconds to come back.
PATIENCE = 60.0
# For the workers of this machine to end; more than Dask gives each of them.
CLOSING_SECONDS = 15.0
# Seconds for a scheduler to answer.
CONNECT_SECONDS = 30

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


@dataclass(frozen=True, slots=True)
class Resources:
    """Processes and workers of a run.

    workers: processes on this machine; None for a number by the estimate, 0 or 1 for this process, without Dask.
    scheduler: address of a Dask scheduler whose workers are used instead.
    insecure_scheduler: whether a remote one may be used without TLS.
    compute: `memory` of all workers together; `threads` of each process, None for its share of the cores, on a
        scheduler's worker for those that it was started with; `device_memory` of each GPU, one for each worker process
        where there are several; `spill_bytes` of all processes of this machine together, of each worker of a scheduler.
    """

    workers: int | None = None
    scheduler: str | None = None
    insecure_scheduler: bool = False
    compute: ComputeOptions = field(default_factory=ComputeOptions)

    def with_compute(self, **changes: Any) -> Resources:
        """Return the resources with changed compute options."""
        return replace(self, compute=replace(self.compute, **changes))


class WorkersLostError(Exception):
    """The workers of a cluster died; `task`: the probable cause, if known."""

    def __init__(self, task: object = None) -> None:
        self.task = task
        super().__init__(f"workers lost at {task}")


def distribute(
    function: Callable[[Task, int], Result],
    tasks: Sequence[Task],
    resources: Resources,
    here: Callable[[Sequence[Task], int], Iterator[Result]] | None = None,
) -> Iterator[Result]:
    """Yield `function(task, memory)` for every task, in the order in which they finish.

    function: answers a task with at most `memory` bytes; function, tasks and results are small and picklable.
    tasks: any number of them.
    resources: this process, workers of this machine or of a scheduler.
    here: answers all tasks in this process; by default one after the other.
    Raises RunError if no worker survives, and the first JunctorError of a task.
    """
    # Other exceptions of a task are tried again `RETRIES` times; the task of a worker that dies goes to another one.
    if not tasks:
        return
    remaining = _Remaining(tasks)
    if resources.scheduler is not None:
        yield from _on_scheduler(function, remaining, resources, resources.scheduler)
        return
    allowed, gpus = allowed_memory(resources.compute), resources.compute.device == "gpu"
    asked = usable_cores() if resources.workers is None else resources.workers
    workers = _at_most(min(asked, len(tasks)), gpus)
    if workers > 1:
        yield from _on_this_machine(function, remaining, workers, allowed // workers, gpus)
    elif here is not None:
        yield from here(tasks, allowed)
    else:
        yield from (function(task, allowed) for task in tasks)


def distribute_in_order(
    function: Callable[[Task, int], Result], tasks: Iterable[Task], resources: Resources
) -> Generator[Result, None, None]:
    """Yield `function(task, memory)` for every task, in their order, by workers.

    function: answers a task with at most `memory` bytes; picklable, as tasks and results are.
    tasks: made as they are needed, `ORDERED_WINDOW` a worker ahead of the next result.
    resources: `workers` of this machine, or a scheduler.
    Raises RunError if no worker survives, the first JunctorError of a task, and what making the tasks raises, after the
    results before it.
    """
    remaining = _Remaining(tasks, in_order=True)
    if resources.scheduler is not None:
        yield from _on_scheduler(function, remaining, resources, resources.scheduler)
    else:
        workers = resources.workers or 1
        yield from _on_this_machine(function, remaining, workers, allowed_memory(resources.compute) // workers, False)


class _Remaining(Generic[Task]):
    """Tasks without a result that was yielded.

    tasks: all of them.
    in_order: whether results are yielded in their order, otherwise as they come.
    begun: number -> task, of those that were handed out.
    failure: what making the next task raised, to be raised after the results of those before it.
    """

    def __init__(self, tasks: Iterable[Task], in_order: bool = False) -> None:
        self.in_order = in_order
        self.begun: dict[int, Task] = {}
        self.failure: Exception | None = None
        self._others = enumerate(tasks)

    @property
    def window(self) -> int:
        """Tasks handed out at a time, for each worker."""
        return ORDERED_WINDOW if self.in_order else WINDOW

    def handed_out(self) -> Iterator[tuple[int, Task]]:
        """Yield numbers and tasks: those begun, which another cluster lost, then the others."""
        yield from list(self.begun.items())
        while self.failure is None:
            try:
                number, task = next(self._others)
            except StopIteration:
                return
            except Exception as error:
                self.failure = error
                return
            self.begun[number] = task
            yield number, task


def refuse_other_version(needed: str) -> None:
    """Raise RunError if this process, a worker, has another version of Junctor than its client."""
    here = _loaded_version()
    if here != needed:
        raise RunError(f"a worker has junctor {here}, this run needs {needed}: install the same on all")


@cache
def _loaded_version() -> str:
    # Asked for each partition, and it takes milliseconds to find; what is loaded does not change.
    return version("junctor")


def threads_for(resources: Resources, workers: int) -> int | None:
    """Return the threads of each of `workers` processes; None if each has to ask its own machine."""
    if resources.compute.threads is not None or resources.scheduler is not None:
        return resources.compute.threads
    return max(1, usable_cores() // max(1, workers))


def threads_here() -> int:
    """Return the threads of this Dask worker, 1 for another process."""
    from distributed import get_worker

    try:
        return int(get_worker().state.nthreads)
    except ValueError:
        return 1


def check_resources(resources: Resources) -> None:
    """Raise RunError for an insecure scheduler or missing certificates, DeviceError for a GPU, before any work."""
    if resources.scheduler is not None:
        check_scheduler(resources.scheduler, resources.insecure_scheduler)
        check_certificates(resources.scheduler)
    else:
        check_device(resources.compute.device)


def check_scheduler(address: str, insecure: bool = False) -> None:
    """Raise RunError for an address whose traffic others could read or forge."""
    # Whoever can connect to a scheduler can run code on it.
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    if not parts.hostname:
        raise RunError(f"found the scheduler address {address!r}, expected something like tls://host:8786")
    if parts.scheme in ("tls", "wss") or _is_loopback(parts.hostname) or insecure:
        return
    raise RunError(
        f"refused to use the scheduler {address}: its connection is not encrypted, and whoever can reach it can run "
        "code here and there; use tls:// (certificates come from Dask's configuration), or --insecure-scheduler on "
        "a network that you trust"
    )


def check_certificates(address: str) -> None:
    """Raise RunError for an address with TLS if Dask's configuration has no certificates, or unreadable ones."""
    if urlsplit(address).scheme not in ("tls", "wss"):
        return
    import dask
    from distributed import Security

    files = [dask.config.get(f"distributed.comm.tls.{name}") for name in ("ca-file", "client.cert", "client.key")]
    try:
        why = "there are none" if Security().get_connection_args("client").get("ssl_context") is None else ""
    except OSError as error:
        # Those of the ssl module, too, which do not name the file.
        why = f"{', '.join(filter(None, files))}: {error}"
    if why:
        raise RunError(
            f"the scheduler {address} needs certificates, which come from Dask's configuration ({why}): set "
            "DASK_DISTRIBUTED__COMM__TLS__CA_FILE, DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT and "
            "DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY to files in PEM, or distributed.comm.tls in Dask's YAML"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _on_this_machine(
    function: Callable[[Task, int], Result], remaining: _Remaining[Task], workers: int, memory: int, gpus: bool
) -> Iterator[Result]:
    lost_at: object = None
    for attempt in range(1 + REBUILDS):
        if attempt:
            logger.warning("the workers died at %s; starting new ones (%d of %d)", lost_at, attempt, REBUILDS)
        try:
            with local_client(workers, gpus) as client:
                yield from _windowed(client, function, remaining, memory, workers * _worker_threads(workers, gpus))
                return
        except WorkersLostError as lost:
            lost_at = lost.task
    raise RunError(_lost(lost_at, "every worker process"))


def _on_scheduler(
    function: Callable[[Task, int], Result], remaining: _Remaining[Task], resources: Resources, address: str
) -> Iterator[Result]:
    with silent_dask(), _scheduler_client(resources, address) as client:
        workers = workers_of(client)
        memory = memory_of_each(workers.values(), resources)
        try:
            yield from _windowed(client, function, remaining, memory, len(workers))
        except WorkersLostError as lost:
            raise RunError(_lost(lost.task, f"every worker of {address}")) from lost


@contextmanager
def _scheduler_client(resources: Resources, address: str) -> Iterator[Client]:
    from distributed import Client

    check_scheduler(address, resources.insecure_scheduler)
    check_certificates(address)
    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise RunError(f"no Dask scheduler answers at {address}: {error}") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
        except TimeoutError:
            raise RunError(f"the scheduler {address} has no workers: start some with `dask worker {address}`") from None
        yield client


@contextmanager
def cluster_client(resources: Resources) -> Iterator[Client]:
    """Context manager: a client of the workers of a scheduler or of this machine; raises RunError without any."""
    if resources.scheduler is not None:
        with silent_dask(), _scheduler_client(resources, resources.scheduler) as client:
            yield client
        return
    workers, gpus = resources.workers or 1, resources.compute.device == "gpu"
    with local_client(_at_most(workers, gpus), gpus) as client:
        client.wait_for_workers(1, timeout=PATIENCE)
        yield client


def _lost(suspect: object, who: str) -> str:
    at = f" at {suspect}" if suspect is not None else ""
    return (
        f"{who} died{at}, more than once: it may need more memory than there is; try a lower --memory, fewer "
        "--workers or fewer --partition-rows, or --workers 0 to see what happens. Finished parts are kept"
    )


@contextmanager
def local_client(workers: int, gpus: bool) -> Iterator[Client]:
    """Context manager: a cluster of processes on this machine, each of one thread, or of one GPU.

    The one of `workers_ahead` if it has as many.
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
        yield until_left.enter_context(Client(cluster, set_as_default=False))


@contextmanager
def _local_cluster(workers: int, gpus: bool) -> Iterator[Any]:
    """Context manager: a cluster of this machine without clients; arguments as of `local_client`.

    Others who work on the machine reach its ports, too, and whoever can connect can run code: both sides of a
    connection have to show a certificate that is made here and that only these processes have.
    """
    forked = _start_fork_server(gpus)
    with silent_dask():
        import dask
        from distributed import Security, utils

        # Dask would import pandas here, only to name it among the imports of a fork server that runs.
        utils._forkserver_preload_set = True
        # Junctor plans and divides the memory itself: Dask's own limit would pause workers that keep to the plan.
        settings = {
            **UNWATCHED,
            "distributed.nanny.pre-spawn-environ": _WORKER_ENVIRONMENT,
            "distributed.worker.multiprocessing-method": "forkserver" if forked else "spawn",
        }
        # For as long as the cluster is there: workers that replace dead ones are started as the first ones are.
        with dask.config.set(settings):
            with _keyboard_is_ours():
                cluster = _cluster_class(gpus)(
                    n_workers=workers,
                    threads_per_worker=_worker_threads(workers, gpus),
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


def prepare_workers(resources: Resources, gpus: bool = False) -> None:
    """Start what workers of this machine are forked from, if the user wants some: it imports while this one reads.

    gpus: whether they have one each.
    """
    if resources.scheduler is None and (resources.workers or 0) > 1:
        _start_fork_server(gpus)


@contextmanager
def workers_ahead(resources: Resources) -> Iterator[Callable[[int], None]]:
    """Context manager: what starts workers of this machine, if the user wants some, while the caller goes on.

    It is called with the number of tasks so far, and starts the workers once there is one for each. What they are
    forked from starts at once: it imports meanwhile. `local_client` takes the workers; those that nobody took end with
    the context.
    """
    gpus = resources.compute.device == "gpu"
    workers = _at_most(resources.workers or 0, gpus)
    prepare_workers(resources, gpus)
    if resources.scheduler is not None or workers < 2:
        yield lambda tasks: None
        return
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


def _start_fork_server(gpus: bool) -> bool:
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


def _at_most(workers: int, gpus: bool) -> int:
    """Return how many of `workers` there are on this machine: with GPUs one for each."""
    return min(workers, count_gpus()) if gpus else workers


def _worker_threads(workers: int, gpus: bool) -> int:
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


def _windowed(
    client: Client, function: Callable[[Task, int], Result], remaining: _Remaining[Task], memory: int, workers: int
) -> Iterator[Result]:
    waiting = remaining.handed_out()
    finished: queue.SimpleQueue[Future] = queue.SimpleQueue()
    under_way: dict[str, int] = {}

    def submit(count: int) -> None:
        for i, task in islice(waiting, count):
            future = client.submit(_guarded, function, task, memory, pure=False, retries=RETRIES)
            under_way[future.key] = i
            future.add_done_callback(finished.put)

    submit(remaining.window * workers)
    found: dict[int, Result | JunctorError] = {}
    while under_way:
        future = next_finished(client, finished)
        i = under_way.pop(future.key)
        found[i] = _outcome_of(future, remaining.begun[i])
        future.release()
        while found:
            turn = next(iter(remaining.begun)) if remaining.in_order else i
            if turn not in found:
                break
            outcome = found.pop(turn)
            if isinstance(outcome, JunctorError):
                raise outcome
            del remaining.begun[turn]
            # Not before: a slow task would let the results behind it pile up.
            submit(1)
            yield outcome
    if remaining.failure is not None:
        raise remaining.failure


def _guarded(function: Callable[[Task, int], Result], task: Task, memory: int) -> Result | JunctorError:
    # As a value, because Dask would retry an exception, and a user's error occurs every time.
    try:
        return function(task, memory)
    except JunctorError as error:
        return error


def result_of(future: Future, task: object) -> Any:
    """Return the result of a future; raises WorkersLostError if `task` killed its workers, RunError without Dask."""
    outcome = _outcome_of(future, task)
    if isinstance(outcome, JunctorError):
        raise outcome
    return outcome


def _outcome_of(future: Future, task: object) -> Any:
    """Return the result of a future, or its error if that is a user's; raises what `result_of` does otherwise."""
    from distributed import CancelledError
    from distributed.scheduler import KilledWorker, NoValidWorkerError

    try:
        return future.result()
    except (KilledWorker, NoValidWorkerError) as error:
        raise WorkersLostError(task) from error
    except CancelledError as error:
        raise RunError("the Dask scheduler went away; run the same command again to go on") from error


def next_finished(client: Client, finished: queue.SimpleQueue[Future]) -> Future:
    """Return the next finished future; raises WorkersLostError after `PATIENCE` seconds without a worker."""
    # In short waits: no callback tells of a cluster without workers.
    seen = time.monotonic()
    while True:
        try:
            return finished.get(timeout=min(5.0, PATIENCE))
        except queue.Empty:
            if client.status != "running":
                raise RunError("the Dask scheduler went away; run the same command again to go on") from None
            if workers_of(client):
                seen = time.monotonic()
            elif time.monotonic() - seen > PATIENCE:
                raise WorkersLostError from None


def workers_of(client: Client) -> dict[str, Any]:
    """Return worker address -> the scheduler's record of it."""
    workers: dict[str, Any] = client.scheduler_info(n_workers=-1)["workers"]
    return workers


def memory_of_each(workers: Collection[dict[str, Any]], resources: Resources) -> int:
    """Return the bytes for propagation in each worker of a scheduler."""
    # The same number for all workers, so that all make the same plan.
    limits = [worker["memory_limit"] for worker in workers if worker.get("memory_limit")]
    if resources.compute.memory is None and limits:
        return int(DEFAULT_SHARE * min(limits))
    return allowed_memory(resources.compute) // len(workers)
