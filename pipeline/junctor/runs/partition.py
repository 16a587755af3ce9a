"""One partition, from its evidence file to its part file: read, answer, write.

Main functions: `propagate_partition`, for workers, and `propagate_here`, for one process with all partitions.
"""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from junctor.evidence.files import Stamp, stamp_of
from junctor.model.errors import BudgetError, EvidenceError, RunError
from junctor.model.options import ComputeOptions
from junctor.model.query import named_variables
from junctor.planning.budget import EXPLAINED_AT_ONCE, EXPLAINING_BYTES, PLENTY_BYTES
from junctor.runs.storage import AnySpec, Directory, Ingested, RunDirectory, RunSpec, Spec, run_digest
from junctor.runtime.dask_cluster import Resources, refuse_other_version, threads_here
from junctor.runtime.devices import when_gpu_is_needed
from junctor.runtime.files import Checksum, checksum_of, io_errors_for, read_json, written_atomically
from junctor.runtime.machine import usable_cores
from junctor.runtime.progress import counts_rows, part_begins
from junctor.runtime.remote import AnyPath, RemotePath, location
from junctor.runtime.threads import Threads, short_gil_switches

if TYPE_CHECKING:
    import pyarrow as pa

    from junctor.cost.model import CostModels
    from junctor.engine.engine import Engine
    from junctor.evidence.encode import EncodedPartition
    from junctor.evidence.encoded_source import EncodedSource
    from junctor.model.network import Network
    from junctor.out_of_core.cluster.workers import WorkerPool
    from junctor.runs.answer_files import AnswerWriter
    from junctor.runs.results import AnswerTables
    from junctor.runs.statistics import Cells, Statistics

# One process reads the next partition and writes the last ones while it propagates one: compiled kernels, Parquet and
# the disk work without Python's lock. In memory are at most one partition of evidence, one of answers in progress and
# two (more with plenty of memory) of answers to write.

# Partitions written at a time, one thread each: layout and compression of answers take about as long as their
# computation, and far longer for repeated rows or on a GPU. More than two only within a share of the memory above two
# GiB, and as many as there are cores. What is reserved for them does not depend on cores, because it limits the memory
# of plans.
WRITERS, MOST_WRITERS = 2, 64
WRITERS_SHARE = 1 / 16


@dataclass(frozen=True, eq=False, slots=True)
class Answered:
    """Answers to a partition: what makes their table and what counts them, where they are written.

    rows: how many there are.
    explain: finds what is left to be said of them, before both; None for nothing.
    """

    table: Callable[[], pa.Table]
    count: Callable[[], Statistics]
    rows: int
    explain: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class PartitionTask(ABC, Generic[Spec]):
    """The task of a worker for one partition.

    directory: of the run, on a disk that all workers share, or in a store.
    part: number of the partition.
    spec: specification of the run.
    counts: rows and partitions of the whole run.
    compute: `threads` None for all of a Dask worker, `device` "auto" for the worker's own choice; the caller gives the
        memory.
    """

    directory: AnyPath
    part: int
    spec: Spec
    counts: Ingested
    compute: ComputeOptions

    # Options to lower if the memory of the process is too small after all.
    advice = "--memory, --workers or --partition-rows"

    def __str__(self) -> str:
        return f"partition {self.part}"

    @property
    @abstractmethod
    def home(self) -> Directory[Spec]:
        """The run directory."""

    @abstractmethod
    def read(self) -> Any:
        """Return the encoded inputs; raises RunError."""

    @abstractmethod
    def answer_bytes(self) -> int:
        """Return the bytes of the answers to a whole partition."""

    def carried_bytes(self, inputs: Any) -> int:
        """Return the bytes of what goes from the inputs to the answers as it is."""
        return 0

    def explaining_bytes(self, inputs: Any) -> int:
        """Return the bytes that `Answered.explain` takes with what it looks at, 0 where it has nothing to do."""
        return 0

    def prepare(self, inputs: Any, options: ComputeOptions, workers: WorkerPool | None) -> None:
        """Do what can be done while an earlier partition is answered; arguments as of `answer`."""

    @abstractmethod
    def answer(
        self, inputs: Any, options: ComputeOptions, reserved: int, workers: WorkerPool | None, explain: bool
    ) -> Answered:
        """Return the answers.

        inputs: result of `read`.
        options: of this process, with its memory and threads.
        reserved: bytes of that memory for answers of earlier partitions that are being written.
        workers: answer out-of-core rows, if there are any.
        explain: False to leave that to `Answered.explain`.
        Raises BudgetError if they do not fit, even if they would without the reserved bytes.
        """

    @abstractmethod
    def write(self, answers: pa.Table, path: Path) -> None:
        """Write the table of answers."""


@dataclass(frozen=True, slots=True)
class CountedEvidence:
    """Encoded evidence of a partition, and the cells of its columns."""

    encoded: EncodedPartition
    cells: dict[str, Cells]


class PartTask(PartitionTask[RunSpec]):
    """Rows of evidence to answer."""

    __slots__ = ()

    @property
    def home(self) -> RunDirectory:
        """The run directory."""
        return RunDirectory(self.directory)

    def read(self) -> CountedEvidence:
        """Return the encoded evidence."""
        from junctor.runs.statistics import count_cells

        network = network_for(self.home.network, self.spec.network_digest)
        encoded = read_evidence(self.home, self.part, self.spec, self.counts, kept=True)
        # Now: evidence is not in memory while answers wait to be written, and another thread propagates.
        return CountedEvidence(encoded, count_cells(network, encoded.batch))

    def answer_bytes(self) -> int:
        """Return the bytes of the answers to a whole partition."""
        # A column for each state is a copy, made when it is written.
        return (
            self.spec.partition_rows * tables_of(self.home, self.spec)[0] * (2 if self.spec.layout == "columns" else 1)
        )

    def carried_bytes(self, inputs: CountedEvidence) -> int:
        """Return the bytes of the kept columns."""
        return 0 if inputs.encoded.kept is None else int(inputs.encoded.kept.nbytes)

    def explaining_bytes(self, inputs: CountedEvidence) -> int:
        """Return the bytes of the search for reasons and of the evidence that it looks at."""
        return EXPLAINING_BYTES + inputs.encoded.batch.nbytes if self.spec.method == "exact" else 0

    def prepare(self, inputs: CountedEvidence, options: ComputeOptions, workers: WorkerPool | None) -> None:
        """Choose how the rows go together."""
        self._engine(options, workers).prepare(inputs.encoded.batch)

    def _engine(self, options: ComputeOptions, workers: WorkerPool | None) -> Engine:
        # One for all threads of a worker.
        with _making_engine:
            return engine_for(self.home, self.spec, self.counts.rows).with_options(options, workers)

    def answer(
        self, inputs: CountedEvidence, options: ComputeOptions, reserved: int, workers: WorkerPool | None, explain: bool
    ) -> Answered:
        """Return the answers, exact or from samples."""
        from junctor.model.answers import IMPOSSIBLE
        from junctor.runs.results import status_names, with_kept
        from junctor.runs.statistics import count

        # Engines are kept for the next partition; their plans are worth more than the partition's rows.
        evidence, search = inputs.encoded, None
        engine = self._engine(options, workers)
        answers = engine.answer(evidence.batch, reserved, explain, evidence.first_row)
        if not explain and (answers.status == IMPOSSIBLE).any():
            search = partial(engine.explain, evidence.batch, answers, EXPLAINING_BYTES, threads=1)
        names = status_names(self.spec.as_query())
        case_ids, kept, tables = evidence.case_ids, evidence.kept, tables_of(self.home, self.spec)[1]
        return Answered(
            lambda: with_kept(tables.table(answers, case_ids, apart=False), kept),
            partial(count, engine.network, inputs.cells, answers, case_ids, evidence.first_row, names),
            evidence.batch.rows,
            search,
        )

    def write(self, answers: pa.Table, path: Path) -> None:
        """Write the table of answers."""
        tables_of(self.home, self.spec)[2].write(answers, path)


@dataclass(frozen=True, slots=True)
class Part:
    """One finished part.

    file: relative to the run directory.
    rows: in it.
    bytes: on disk.
    statuses: rows of each status.
    sha256: of the file; None in manifests of earlier versions.
    statistics: checksum of the statistics of the part; None where there are none.
    stamps: of its statistics and its file as this call wrote them, kept nowhere else; none of objects in a store.
    """

    file: str
    rows: int
    bytes: int
    statuses: dict[str, int]
    sha256: str | None = None
    statistics: Checksum | None = None
    stamps: tuple[Stamp, ...] = field(default=(), compare=False, repr=False)

    def to_record(self) -> dict[str, Any]:
        """Return a record for JSON."""
        record = asdict(self)
        del record["stamps"]
        return record

    def __post_init__(self) -> None:
        from junctor.model.answers import STATUS_NAMES

        if lacking := [name for name in STATUS_NAMES if name not in self.statuses]:
            raise TypeError(f"statuses of a part: found no {lacking[0]!r}")


@dataclass(slots=True)
class StageTimings:
    """Seconds of the stages of partitions, of all processes together; `waiting`: of propagation for the others."""

    # Stages overlap, so that their sum may exceed the seconds of the run: beside propagation a thread reads and chooses
    # groups, and others find reasons and write.

    reading: float = 0.0
    propagating: float = 0.0
    writing: float = 0.0
    waiting: float = 0.0

    def __add__(self, other: StageTimings) -> StageTimings:
        return StageTimings(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def rounded(self) -> StageTimings:
        """Return the timings in whole milliseconds."""
        return StageTimings(*(round(seconds, 3) for seconds in astuple(self)))

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Context manager: add the seconds of the block to `stage`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, stage, getattr(self, stage) + time.perf_counter() - started)


@short_gil_switches()
def propagate_partition(task: PartitionTask[Any], memory: int) -> tuple[Part, StageTimings]:
    """Answer one partition with at most `memory` bytes for propagation; the part is whole or does not exist.

    Raises BudgetError if a plan does not fit, RunError if files cannot be read or written.
    """
    _refuse_strange_worker(task)
    partition, threads = _Partition(task), threads_here()
    # Threads of a worker read and write other partitions at the same time, as in `propagate_here`.
    writers = partition.writers(memory) if threads > 1 else WRITERS
    at_once = max(WRITERS, min(writers, threads - 2))
    with ExitStack() as until_written:
        with _with_inputs.one_of(2):
            with partition.stages.time("waiting"):
                if threads > 1:
                    partition.read_ahead(memory)
                else:
                    partition.read()
            with _one_at_a_time:
                if threads > 1:
                    partition.answer_beside(memory, _writing.wait_for_none, writers)
                else:
                    partition.answer(memory)
                until_written.enter_context(_writing.one_of(at_once))
        with partition.stages.time("waiting"):
            return partition.write()


def propagate_here(
    tasks: Sequence[PartitionTask[Any]], memory: int, workers: WorkerPool | None = None
) -> Iterator[tuple[Part, StageTimings]]:
    """Yield the results of `propagate_partition` for all tasks, in order; reads ahead and writes behind.

    tasks: partitions of one run.
    memory: bytes for propagation, and for answers to write.
    workers: answer out-of-core rows.
    """
    # The calling thread propagates: Ctrl-C stops it, and parts that are being written are finished.
    # All GPUs are ours if there are no other workers.
    partitions = [_Partition(task, workers is None, workers) for task in tasks]
    writing: deque[Future[tuple[Part, StageTimings]]] = deque()
    writers = partitions[0].writers(memory)
    at_once = max(WRITERS, min(writers, usable_cores()))
    answered: deque[_Partition] = deque()
    with (
        Threads(1 + at_once, thread_name_prefix="junctor-files") as threads,
        counts_rows(lambda: sum(each.rows for each in tuple(answered)), 1.0),
    ):
        reading = threads.submit(partitions[0].read)
        for i, partition in enumerate(partitions):
            with partition.stages.time("waiting"):
                reading.result()
            if i + 1 < len(partitions):
                # The first one makes the engine.
                following = partitions[i + 1]
                reading = threads.submit(partial(following.read_ahead, memory) if i else following.read)
            part_begins(partition.task.home.name_of(partition.path))
            partition.answer_beside(memory, partial(_wait_for_all, partition, writing), writers, explain=False)
            if i >= EXPLAINED_AT_ONCE:
                with partition.stages.time("waiting"):
                    partitions[i - EXPLAINED_AT_ONCE].is_explained.wait()
            answered.append(partition)
            # The oldest first: results come in the order of the tasks.
            if len(writing) == at_once:
                result = partition.wait_for(writing.popleft())
                answered.popleft()
                yield result
            writing.append(threads.submit(partition.write))
        while writing:
            yield partition.wait_for(writing.popleft())


def propagate_over(
    tasks: Sequence[PartitionTask[Any]], resources: Resources, threads: int | None
) -> Iterator[tuple[Part, StageTimings]]:
    """Yield the same; out-of-core rows run on all workers of a cluster, `threads` threads a task, other rows here."""
    from junctor.out_of_core.cluster.workers import memory_here, open_workers

    with open_workers(resources, threads) as workers:
        yield from propagate_here(tasks, memory_here(workers, resources), workers)


def write_statistics(
    path: AnyPath, statistics: Statistics, run: str, check: Callable[[], None]
) -> tuple[Checksum, Stamp]:
    """Write the statistics of a part, whole or not at all, and return their checksum and the stamp of their file.

    run: that they name, as of `run_digest`.
    check: as of `written_atomically`.
    """
    record = {"run": run, **statistics.to_record()}
    with written_atomically(path, alone=False, check=check) as temporary:
        # In one line: of wide networks there are many numbers.
        temporary.write_text(json.dumps(record, separators=(",", ":")) + "\n")
        return checksum_of(temporary), stamp_of(temporary)


def read_part(directory: Directory[Any], path: AnyPath, spec: AnySpec, checksum: Checksum | None = None) -> Part:
    """Return the record of a finished part from its metadata, without reading its rows.

    directory: of the run.
    path: of the part.
    spec: of the run.
    checksum: of the part, if it is known.
    Raises RunError for a damaged part, and for one of another run or with statistics of another one.
    """
    import pyarrow as pa

    try:
        with io_errors_for(path):
            rows, statuses, run = directory.read_facts(path)
            size = path.stat().st_size
    except (pa.ArrowException, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise RunError(f"{path}: damaged ({error}): delete it and run the same command again") from error
    counted = read_json(directory.statistics(path))
    ours = run_digest(spec)
    # Those of earlier versions name no run; their workers are refused.
    if run not in (ours, None) or (counted is not None and counted.get("run", ours) != ours):
        # Such as of a worker that outlived its client.
        why = "of another run"
        raise RunError(f"{path}: {why}: run the same command again") from ValueError(why)
    return Part(directory.name_of(path), rows, size, statuses, None if checksum is None else checksum.sha256)


class _Partition:
    """A partition in progress; holds its inputs until it is answered, and its answers until they are written."""

    def __init__(self, task: PartitionTask[Any], all_gpus: bool = False, workers: WorkerPool | None = None) -> None:
        self.task = task
        self.stages = StageTimings()
        self._all_gpus = all_gpus
        self._workers = workers
        self._inputs: Any = None
        self._answered: Answered | None = None
        # Rows that are answered, before they are written.
        self.rows = 0
        # Its evidence is in memory until then.
        self.is_explained = threading.Event()

    @property
    def path(self) -> AnyPath:
        """Its answers."""
        spec = self.task.spec
        return self.task.home.answers_part(spec.folder, self.task.part, spec.output_format)

    def read(self) -> None:
        _refuse_strange_worker(self.task)
        with self.stages.time("reading"):
            self._inputs = self.task.read()
        # After them: they may have been those of the next run.
        self._check_ours()

    def read_ahead(self, memory: int) -> None:
        """Read and prepare, while an earlier partition is answered with `memory` bytes."""
        self.read()
        # What does not fit is refused when it is answered.
        with suppress(BudgetError, MemoryError), self.stages.time("reading"):
            self.task.prepare(self._inputs, self._options(memory), self._workers)

    def _options(self, memory: int) -> ComputeOptions:
        threads = self.task.compute.threads or threads_here()
        return replace(self.task.compute, memory=memory, threads=threads, all_gpus=self._all_gpus)

    def answer(self, memory: int, waiting: int = 0, explain: bool = True) -> None:
        """Propagate with `memory` bytes, less the answers of `waiting` partitions that are being written.

        explain: False to find reasons when it is written, where there is memory.
        """
        task, options = self.task, self._options(memory)
        with self.stages.time("propagating"):
            # What is carried through by those that are written is taken to be as large as this one.
            carried = task.carried_bytes(self._inputs)
            reserved = (waiting * (task.answer_bytes() + carried) if waiting else 0) + carried
            later = not explain and memory >= PLENTY_BYTES
            beside = EXPLAINED_AT_ONCE * task.explaining_bytes(self._inputs) if later else 0
            try:
                self._answered = task.answer(self._inputs, options, reserved + beside, self._workers, not beside)
            except MemoryError as error:
                raise BudgetError(f"{task} ran out of memory ({error}): lower {task.advice}") from error
        # Released now: the next partition is read while the answers are written.
        self._inputs, self.rows = None, self._answered.rows
        if self._answered.explain is None:
            self.is_explained.set()

    def writers(self, memory: int) -> int:
        """Return the number of partitions written at a time, by the memory."""
        fitting = int(WRITERS_SHARE * (memory - PLENTY_BYTES) // max(1, self.task.answer_bytes()))
        return max(WRITERS, min(MOST_WRITERS, fitting))

    def answer_beside(
        self, memory: int, wait_for_others: Callable[[], None], writers: int, explain: bool = True
    ) -> None:
        """Propagate while others are written, or afterwards if the memory is too small for both.

        memory: bytes for both.
        wait_for_others: returns when no other answers are in memory.
        writers: partitions written at a time.
        explain: as of `answer`.
        """
        # Always the memory of all writers, however far they are: a repeated run has to make the same choices.
        is_only = self.task.counts.partitions <= 1
        try:
            self.answer(memory, waiting=0 if is_only else writers, explain=explain or is_only)
        except BudgetError:
            if is_only:
                raise
            wait_for_others()
            self.answer(memory)

    def wait_for(self, writing: Future[tuple[Part, StageTimings]]) -> tuple[Part, StageTimings]:
        with self.stages.time("waiting"):
            return writing.result()

    def _check_ours(self) -> None:
        self.task.home.check_ours(self.task.spec)

    def write(self) -> tuple[Part, StageTimings]:
        from junctor.runs.results import with_run

        directory, spec = self.task.home, self.task.spec
        assert self._answered is not None
        if self._answered.explain is not None:
            try:
                with self.stages.time("writing"):
                    self._answered.explain()
                self._answered = replace(self._answered, explain=None)
            finally:
                self.is_explained.set()
        with self.stages.time("writing"):
            path = self.path
            statistics = directory.statistics(path)
            directory.make_folder_of(path)
            directory.make_folder_of(statistics)
            # First: a part with its name always has its statistics.
            found = self._answered.count()
            run = run_digest(spec)
            counted, *stamps = write_statistics(statistics, found, run, self._check_ours)
            # Their names are synced with the manifest, all at once.
            with written_atomically(path, alone=False, check=self._check_ours) as temporary:
                self.task.write(with_run(self._answered.table(), run), temporary)
                # Now, while the system still has its pages in memory.
                checksum = checksum_of(temporary)
                # Before others can replace it.
                stamps.append(stamp_of(temporary))
            self._answered = None
            name, about = directory.name_of(path), (found.rows, checksum.bytes, found.statuses, checksum.sha256)
            return Part(name, *about, counted, () if isinstance(path, RemotePath) else tuple(stamps)), self.stages


class _Count:
    """Count of the partitions that threads of a Dask worker are at."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    @contextmanager
    def one_of(self, most: int) -> Iterator[None]:
        """Context manager: one more while the body runs; waits until there are fewer than `most`."""
        with self._changed:
            self._changed.wait_for(lambda: self._count < most)
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    def wait_for_none(self) -> None:
        """Wait for a count of 0."""
        with self._changed:
            self._changed.wait_for(lambda: self._count == 0)


def _wait_for_all(partition: _Partition, writing: Iterable[Future[tuple[Part, StageTimings]]]) -> None:
    for part in writing:
        partition.wait_for(part)


# Of this worker process: one partition is propagated at a time, and as many others are read or written as
# `propagate_here` has in memory.
_with_inputs, _writing = _Count(), _Count()
_one_at_a_time = threading.Lock()
_making_engine = threading.Lock()


# The network of the latest run.
_network: Network | None = None


def network_for(network_file: AnyPath, digest: str, given: Network | None = None) -> Network:
    """Return the network of a run, kept for its next partition in this process.

    network_file: of the run directory.
    digest: of the network.
    given: the network, where it is at hand.
    """
    global _network
    from junctor.formats import read_network

    # Threads that come first at the same time read it twice.
    network = _network if given is None else given
    if network is None or network.digest != digest:
        network = read_network(network_file)
    if network.digest != digest:
        raise RunError(f"{network_file} is not the network that this run began with: start afresh with --overwrite")
    _network = network
    return network


def read_evidence(
    directory: RunDirectory, part: int, spec: RunSpec, counts: Ingested, kept: bool = False
) -> EncodedPartition:
    """Return the encoded evidence of a partition: a file of the run, or rows of a dataset; raises RunError.

    directory, part: of the run.
    spec, counts: of the run.
    kept: whether the columns that are kept are read as well.
    """
    from junctor.evidence.encoded import read_partition

    network = network_for(directory.network, spec.network_digest)
    if counts.dataset is None:
        return read_partition(directory.evidence_part(part), network, kept)
    try:
        source = _dataset_of(counts.dataset, directory, replace(spec, partition_rows=1))
        return source.part(part * spec.partition_rows, spec.partition_rows)
    except EvidenceError as error:
        # After the run has begun with it.
        raise RunError(f"{error}: make the dataset whole, and run the same command again") from error


@lru_cache(maxsize=1)
def _dataset_of(dataset: str, directory: RunDirectory, spec: RunSpec) -> EncodedSource:
    """Return the evidence of a run in a dataset, kept for the next partition in this process."""
    from junctor.evidence.encoded_source import EncodedSource
    from junctor.evidence.files import input_files
    from junctor.evidence.read import digest_of

    place = location(dataset)
    if digest_of(place, as_recorded=True) != spec.evidence_digest:
        raise RunError(f"{dataset}: another dataset than when the run began: give another --output, or --overwrite")
    network, query = network_for(directory.network, spec.network_digest), spec.as_query()
    hidden = frozenset(named_variables(network, query)) if query.hide_targets else frozenset()
    return EncodedSource(network, input_files(place).paths, spec.keep, without=hidden, ignore_extra=spec.ignore_extra)


@lru_cache(maxsize=1)
def tables_of(directory: RunDirectory, spec: RunSpec) -> tuple[int, AnswerTables, AnswerWriter]:
    """Return the bytes of the answers to one row, what makes tables of them and what writes these.

    directory: has the network.
    spec: of the run; all is kept for its next partition in this process.
    """
    from junctor.model.answers import answer_width
    from junctor.runs.answer_files import AnswerWriter
    from junctor.runs.results import tables_for

    network, query = network_for(directory.network, spec.network_digest), spec.as_query()
    return answer_width(network, query), tables_for(network, query), AnswerWriter(spec.as_files())


def engine_for(directory: RunDirectory, spec: RunSpec, rows: int) -> Engine:
    """Return an engine, kept for the next partition of a run in this process.

    directory: has the network and the costs of devices.
    spec: specification of the run.
    rows: of all partitions together.
    """
    size = spec.partition_rows
    # What was planned serves parts of any size: a run looks at its rows before it cuts them.
    engine = engine_of(directory, replace(spec, partition_rows=1), rows)
    engine.expect_batches(size if rows > size else 0)
    return engine


@lru_cache(maxsize=1)
def engine_of(directory: RunDirectory, spec: RunSpec, rows: int) -> Engine:
    """Return the engine of `engine_for`, for batches of any size."""
    # Without options: `with_options` makes engines that share its plans.
    from junctor.engine.engine import Engine
    from junctor.strategies.facts import PlanStore

    network, store = network_for(directory.network, spec.network_digest), PlanStore(budget_file=directory.budget)
    return Engine(network, spec.as_query(), ComputeOptions(), partial(costs_of, directory), rows, store=store)


when_gpu_is_needed(engine_of.cache_clear)


def costs_of(directory: RunDirectory) -> CostModels:
    """Return the cost models at the start of the run: its own, or those of the package."""
    from junctor.cost.model import cost_models_from_record, local_cost_models

    record = read_json(directory.speeds)
    try:
        return local_cost_models(own=False) if record is None else cost_models_from_record(record)
    except (KeyError, TypeError) as error:
        raise RunError(
            f"{directory.speeds}: not the speeds of devices ({error}): start afresh with --overwrite"
        ) from error


def _refuse_strange_worker(task: PartitionTask[Any]) -> None:
    """Raise RunError if this process has another version than the run, or does not see its directory."""
    refuse_other_version(task.spec.junctor_version)
    with io_errors_for(task.home.network):
        is_there = task.home.network.exists()
    if not is_there:
        raise RunError(
            f"{task.home.network} is not there for this worker: the run directory was removed (run the same command "
            "again), or it is neither on a disk that all workers share nor in a store"
        )
