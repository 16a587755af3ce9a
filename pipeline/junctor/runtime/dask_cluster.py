"""Tasks over processes and clusters, by Dask: a bounded number in flight, and none lost when a worker dies.

Main functions: `distribute`, called by runs, and `distribute_in_order`, by learning; main class: Resources.
"""

from __future__ import annotations

import ipaddress
import logging
import queue
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

from junctor.model.errors import JunctorError, RunError
from junctor.model.options import ComputeOptions
from junctor.runtime.devices import check_device
from junctor.runtime.installed import require_extra
from junctor.runtime.local_cluster import (
    at_most,
    cluster_ahead,
    local_client,
    silent_dask,
    start_fork_server,
    tell_stopped_workers,
    told_where_none_start,
    worker_threads,
)
from junctor.runtime.machine import DEFAULT_SHARE, allowed_memory, usable_cores

if TYPE_CHECKING:
    from distributed import Client, Future

Task = TypeVar("Task")
Result = TypeVar("Result")

# Tasks in flight for each worker: enough that none waits for its next one, few enough that a scheduler with ten
# thousand remaining partitions stays small.
WINDOW = 4
# The same where results are wanted in order: what is large in tasks or results waits for its turn.
ORDERED_WINDOW = 3
# Retries of a task after an unexpected exception, such as one of a network drive.
RETRIES = 2
# New local clusters after the death of all workers.
REBUILDS = 2
# Seconds without a single worker before the cluster counts as lost; a worker takes some seconds to come back.
PATIENCE = 60.0
# Seconds for a scheduler to answer.
CONNECT_SECONDS = 30

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
    workers = at_most(min(asked, len(tasks)), gpus)
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
    """Raise RunError for an insecure scheduler or missing certificates, DeviceError for a GPU, before any work.

    Raises InputError for workers without Dask.
    """
    if resources.scheduler is not None or (resources.workers or 0) > 1:
        require_extra("cluster", "work in other processes", "use --workers 0 without a scheduler")
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
                yield from _windowed(client, function, remaining, memory, workers * worker_threads(workers, gpus))
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
        tell_stopped_workers(client)
        yield client


@contextmanager
def cluster_client(resources: Resources) -> Iterator[Client]:
    """Context manager: a client of the workers of a scheduler or of this machine; raises RunError without any."""
    if resources.scheduler is not None:
        with silent_dask(), _scheduler_client(resources, resources.scheduler) as client:
            yield client
        return
    workers, gpus = resources.workers or 1, resources.compute.device == "gpu"
    with local_client(at_most(workers, gpus), gpus) as client:
        with told_where_none_start():
            client.wait_for_workers(1, timeout=PATIENCE)
        yield client


def _lost(suspect: object, who: str) -> str:
    at = f" at {suspect}" if suspect is not None else ""
    return (
        f"{who} died{at}, more than once: it may need more memory than there is; try a lower --memory, fewer "
        "--workers or fewer --partition-rows, or --workers 0 to see what happens. Finished parts are kept"
    )


def prepare_workers(resources: Resources) -> None:
    """Start what workers without GPUs are forked from, if the user wants some: it imports while this one reads."""
    if resources.scheduler is None and (resources.workers or 0) > 1:
        start_fork_server(gpus=False)


@contextmanager
def workers_ahead(resources: Resources) -> Iterator[Callable[[int], None]]:
    """Context manager: what starts workers of this machine, if the user wants some, see `cluster_ahead`."""
    gpus = resources.compute.device == "gpu"
    workers = at_most(resources.workers or 0, gpus) if resources.scheduler is None else 0
    if workers < 2:
        yield lambda tasks: None
        return
    with cluster_ahead(workers, gpus) as start:
        yield start


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
    except (CancelledError, OSError) as error:
        # Of the task itself.
        if future.status == "error":
            raise
        raise _gone(future.client) from error


def _gone(client: Client) -> RunError:
    address = getattr(client.scheduler, "address", None)
    at = f" at {address}" if address else ""
    return RunError(f"the Dask scheduler{at} went away; run the same command again to go on")


def next_finished(client: Client, finished: queue.SimpleQueue[Future]) -> Future:
    """Return the next finished future; raises WorkersLostError after `PATIENCE` seconds without a worker."""
    # In short waits: no callback tells of a cluster without workers.
    seen = time.monotonic()
    while True:
        try:
            return finished.get(timeout=min(5.0, PATIENCE))
        except queue.Empty:
            if client.status != "running":
                raise _gone(client) from None
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
