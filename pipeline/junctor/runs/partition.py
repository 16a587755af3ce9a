"""One partition, from its evidence file to its part file: read, answer, write.

Where one process does all partitions, the next one is read and the last ones are written while one is propagated:
compiled kernels, Parquet and the disk all work without Python's lock. In memory there are at the most one partition as
evidence, one as answers in the making and two (more where memory is plenty) as answers on their way to the disk.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from junctor.model.errors import BudgetError, RunError
from junctor.model.options import DeviceChoice
from junctor.model.query import Query
from junctor.runs.storage import Directory, RunDirectory
from junctor.runtime.dask_cluster import Resources, threads_here
from junctor.runtime.devices import when_gpu_is_needed
from junctor.runtime.files import aside, explained, read_json
from junctor.runtime.machine import spill_folder, usable_cores

if TYPE_CHECKING:
    import pyarrow as pa

    from junctor.cost.model import CostModels
    from junctor.engine.engine import Engine
    from junctor.evidence.encode import EncodedPartition
    from junctor.model.answers import Answers
    from junctor.model.network import Network
    from junctor.out_of_core.cluster.workers import WorkerPool
    from junctor.sampling.auto import AutoEngine
    from junctor.sampling.engine import SamplingEngine


# Partitions that are written at a time: to lay out and compress answers takes about as long as to compute them, and far
# longer where rows repeat, or where a GPU computes. More than two only within a share of the memory above two GiB.
# Nothing of that depends on the machine, because the memory that it takes decides what plans may take.
WRITERS, MOST_WRITERS = 2, 8
PLENTY_BYTES, WRITERS_SHARE = 1 << 31, 1 / 16


@dataclass(frozen=True, slots=True)
class PartTask:
    """One partition to answer: all that a worker has to be told.

    rows: of all partitions together. partition_rows: of a whole one. threads: to use; None for all of a Dask worker.
    device: to use, "auto" where the worker shall see for itself; device_memory: bytes of it. spill, disk: folder and
    bytes of files for tables that exceed the memory.
    """

    directory: str
    part: int
    query: Query
    network_digest: str
    junctor_version: str
    rows: int
    partition_rows: int
    threads: int | None = 1
    device: DeviceChoice = "cpu"
    device_memory: int | None = None
    spill: str | None = None
    disk: int | None = None

    def __str__(self) -> str:
        return f"partition {self.part}"


@dataclass(frozen=True, slots=True)
class Part:
    """One finished part: `file` relative to the run directory, its rows, bytes and rows of each status."""

    file: str
    rows: int
    bytes: int
    statuses: dict[str, int]


@dataclass(slots=True)
class StageTimings:
    """Seconds that partitions took, of all processes together.

    Others are read and written while one is propagated; waiting is how long propagation stood still for files.
    """

    reading: float = 0.0
    propagating: float = 0.0
    writing: float = 0.0
    waiting: float = 0.0

    def __add__(self, other: StageTimings) -> StageTimings:
        return StageTimings(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def rounded(self) -> StageTimings:
        """Return them in whole milliseconds."""
        return StageTimings(*(round(seconds, 3) for seconds in astuple(self)))

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Add to `stage` what the block takes."""
        started = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, stage, getattr(self, stage) + time.perf_counter() - started)


def propagate_partition(task: PartTask, memory: int) -> tuple[Part, StageTimings]:
    """Answer one partition with at most `memory` bytes for propagation; the part is whole or not there.

    Raises BudgetError where a plan does not fit, RunError where files cannot be read or written.
    """
    partition = _Partition(task)
    # Where a worker has several threads, others are read and written beside, as in `propagate_here`.
    with _under_way, ExitStack() as until_written:
        with partition.stages.time("waiting"):
            partition.read()
        with _one_at_a_time:
            if threads_here() > 1:
                partition.answer_beside(memory, _writing.wait_for_none)
            else:
                partition.answer(memory)
            until_written.enter_context(_writing)
        with partition.stages.time("waiting"):
            return partition.write()


def propagate_here(
    tasks: Sequence[PartTask], memory: int, crew: WorkerPool | None = None
) -> Iterator[tuple[Part, StageTimings]]:
    """Yield what `propagate_partition` returns for each task, in order; reads ahead and writes behind.

    Propagation is led by the calling thread, where Ctrl-C stops it; the part that is being written is finished then.
    crew: workers that share the tasks of rows in chunks.
    """
    partitions = [_Partition(task, crew is None, crew) for task in tasks]
    writing: deque[Future[tuple[Part, StageTimings]]] = deque()
    writers = partitions[0].writers(memory)
    at_once = max(WRITERS, min(writers, usable_cores() // 2))
    with ThreadPoolExecutor(1 + at_once, thread_name_prefix="junctor-files") as threads:
        reading = threads.submit(partitions[0].read)
        for i, partition in enumerate(partitions):
            with partition.stages.time("waiting"):
                reading.result()
            if i + 1 < len(partitions):
                reading = threads.submit(partitions[i + 1].read)
            partition.answer_beside(memory, partial(_wait_for_all, partition, writing), writers)
            if len(writing) == at_once:
                yield partition.wait_for(writing.popleft())
            writing.append(threads.submit(partition.write))
        while writing:
            yield partition.wait_for(writing.popleft())


def propagate_over(
    tasks: Sequence[PartTask], resources: Resources, threads: int | None
) -> Iterator[tuple[Part, StageTimings]]:
    """Yield the same; rows in chunks go over all workers of a cluster, with so many threads of a task, others here."""
    from junctor.out_of_core.cluster.workers import memory_here, open_workers

    with open_workers(resources, threads) as crew:
        yield from propagate_here(tasks, memory_here(crew, resources), crew)


def read_part(directory: Directory[Any], kind: str, number: int) -> Part:
    """Return what a finished part says of itself, without reading its rows."""
    import pyarrow as pa
    from pyarrow import parquet

    from junctor.runs.results import statuses_of

    path = directory.answers_part(kind, number)
    try:
        with explained(path), parquet.ParquetFile(path) as file:
            rows, statuses = file.metadata.num_rows, statuses_of(file.schema_arrow)
    except (pa.ArrowInvalid, KeyError, TypeError) as error:
        raise RunError(f"{path}: damaged ({error}): delete it and run the same command again") from error
    return Part(str(path.relative_to(directory.path)), rows, path.stat().st_size, statuses)


class _Partition:
    """A partition under way; holds its evidence until it is answered, and its answers until they are written."""

    def __init__(self, task: PartTask, all_gpus: bool = False, crew: WorkerPool | None = None) -> None:
        self.task, self._crew = task, crew
        # Nobody else has them where there are no other workers.
        self._all_gpus = all_gpus
        self.stages = StageTimings()
        self._directory = RunDirectory(Path(task.directory))
        self._evidence: EncodedPartition | None = None
        self._answers: pa.Table | None = None

    def read(self) -> None:
        from junctor.evidence.encoded import read_partition

        refuse_strange_worker(self.task.junctor_version, self._directory)
        with self.stages.time("reading"):
            self._evidence = read_partition(self._directory.evidence_part(self.task.part))

    def answer(self, memory: int, waiting: int = 0) -> None:
        """Propagate with `memory` bytes, of which answers that wait to be written take `waiting` partitions' worth."""
        from junctor.model.answers import answer_width
        from junctor.runs.results import answers_table

        task, evidence = self.task, self._evidence
        assert evidence is not None
        with self.stages.time("propagating"):
            what = str(self._directory.network), task.network_digest, task.query, memory, task.rows
            network = network_for(*what[:2])
            held = waiting * task.partition_rows * answer_width(network, task.query)
            try:
                answers = self._answer(evidence, (*what, task.threads or threads_here()), held)
                self._answers = answers_table(answers, evidence.case_ids, network, task.query)
            except MemoryError as error:
                raise BudgetError(
                    f"{task} ran out of memory ({error}): lower --memory, --workers or --partition-rows"
                ) from error
        self._evidence = None

    def _answer(self, evidence: EncodedPartition, what: tuple[str, str, Query, int, int, int], held: int) -> Answers:
        task = self.task
        if task.query.method != "exact":
            _, sampler = sampler_for(*what)
            where = task.device, task.device_memory, task.spill, task.disk, self._directory.path
            sampler.configure(*where, all_gpus=self._all_gpus)
            return sampler.answer(evidence.batch, held, evidence.first_row)
        _, engine = engine_for(*what)
        engine.device, engine.device_memory = task.device, task.device_memory
        engine.all_gpus, engine.crew = self._all_gpus, self._crew
        engine.spill, engine.disk = spill_folder(task.spill), task.disk
        return engine.answer(evidence.batch, held)

    def writers(self, memory: int) -> int:
        """Return how many partitions may be written at a time: as many as the memory has room for."""
        from junctor.model.answers import answer_width

        network = network_for(str(self._directory.network), self.task.network_digest)
        each = self.task.partition_rows * answer_width(network, self.task.query)
        return max(WRITERS, min(MOST_WRITERS, int(WRITERS_SHARE * (memory - PLENTY_BYTES) // max(1, each))))

    def answer_beside(self, memory: int, wait_for_others: Callable[[], None], writers: int = WRITERS) -> None:
        """Propagate while others are written, or after that where the memory is too short for all of them.

        wait_for_others: until no answers but these are in memory. writers: those that may be at work. What is held back
        does not depend on how far those others are: a run has to repeat itself.
        """
        alone = self.task.rows <= self.task.partition_rows
        try:
            self.answer(memory, waiting=0 if alone else writers)
        except BudgetError:
            if alone:
                raise
            wait_for_others()
            self.answer(memory)

    def wait_for(self, writing: Future[tuple[Part, StageTimings]]) -> tuple[Part, StageTimings]:
        with self.stages.time("waiting"):
            return writing.result()

    def write(self) -> tuple[Part, StageTimings]:
        from junctor.runs.results import write_answers

        task = self.task
        with self.stages.time("writing"):
            with aside(self._directory.answers_part(task.query.kind, task.part)) as temporary:
                write_answers(self._answers, temporary)
            self._answers = None
            return read_part(self._directory, task.query.kind, task.part), self.stages


class _Writing:
    """How many partitions the threads of a Dask worker write just now; each within a `with` block."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            self._count += 1

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def wait_for_none(self) -> None:
        """Wait until none is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._count == 0)


def _wait_for_all(partition: _Partition, writing: Iterable[Future[tuple[Part, StageTimings]]]) -> None:
    for each in writing:
        partition.wait_for(each)


_writing = _Writing()
_one_at_a_time = threading.Lock()
_under_way = threading.BoundedSemaphore(2 + WRITERS)


@lru_cache(maxsize=1)
def network_for(network_file: str, digest: str) -> Network:
    """Return the network of a run, kept for its next partition in this process."""
    from junctor.formats import read_network

    network = read_network(network_file)
    if network.digest != digest:
        raise RunError(f"{network_file} is not the network that this run began with: start afresh with --overwrite")
    return network


@lru_cache(maxsize=1)
def engine_for(
    network_file: str, digest: str, query: Query, memory: int, rows: int, threads: int
) -> tuple[Network, Engine]:
    """Return network and engine, kept for the next partition of the same run in this process."""
    from junctor.engine.engine import Engine

    network, speeds = network_for(network_file, digest), partial(_speeds_of, Path(network_file).parent)
    return network, Engine(network, query, memory, rows, threads, speeds=speeds)


when_gpu_is_needed(engine_for.cache_clear)


def _speeds_of(directory: Path) -> CostModels:
    """Return the speeds that a run began with: those of the package where it has none of its own."""
    from junctor.cost.model import speeds_here, speeds_of

    path = RunDirectory(directory).speeds
    record = read_json(path)
    try:
        return speeds_here(own=False) if record is None else speeds_of(record)
    except (KeyError, TypeError) as error:
        raise RunError(f"{path}: not the speeds of devices ({error}): start afresh with --overwrite") from error


@lru_cache(maxsize=1)
def sampler_for(
    network_file: str, digest: str, query: Query, memory: int, rows: int, threads: int
) -> tuple[Network, SamplingEngine | AutoEngine]:
    """Return network and engine of a run that samples rows, or those that exact answers do not fit."""
    from junctor.sampling.auto import AutoEngine
    from junctor.sampling.engine import SamplingEngine

    network = network_for(network_file, digest)
    if query.method == "auto":
        speeds = partial(_speeds_of, Path(network_file).parent)
        return network, AutoEngine(network, query, memory, rows, threads, speeds)
    return network, SamplingEngine(network, query, memory, threads)


def refuse_strange_worker(junctor_version: str, directory: Directory[Any]) -> None:
    """Raise RunError where this process has another version than the run, or does not see its directory."""
    found = version("junctor")
    if found != junctor_version:
        raise RunError(f"a worker has junctor {found}, this run needs {junctor_version}: install the same on all")
    if not directory.network.exists():
        raise RunError(
            f"{directory.network} is not there for this worker: the run directory has to be on a disk that all share"
        )
