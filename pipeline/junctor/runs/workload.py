"""Workloads of runs: rows of evidence through a network (`Job`), or sequences through a model (`junctor.hmm.run`).

Main class: Workload, the difference between the two; `junctor.runs.run` is the frame.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from junctor.model.errors import BudgetError, EvidenceError
from junctor.model.options import AnswerFiles, Compression, ComputeOptions, DeviceChoice, Layout, OutputFormat
from junctor.model.query import Query
from junctor.runs.partition import PartitionTask, PartTask, engine_for, network_for, sampler_for
from junctor.runs.storage import AnySpec, Directory, Ingested, RunDirectory, RunSpec
from junctor.runtime.dask_cluster import Resources, cluster_client, memory_of_each, threads_for, workers_of
from junctor.runtime.devices import gpu_at_hand, has_gpu
from junctor.runtime.files import aside, write_json
from junctor.runtime.machine import allowed_memory, has_own_measurements
from junctor.runtime.progress import Progress

if TYPE_CHECKING:
    from junctor.engine.engine import Engine
    from junctor.engine.forecast import RunForecast
    from junctor.evidence.batch import EvidenceBatch
    from junctor.model.network import Network


@dataclass(frozen=True, slots=True)
class Words:
    """Words for the stages of a run: nouns for its model and its inputs, a verb for the work."""

    model: str
    inputs: str
    work: str


@dataclass(frozen=True, slots=True)
class InputPart:
    """One partition of encoded inputs.

    rows: number of rows.
    bytes: in memory, about.
    write: writes them to a file that is whole as soon as it has its name.
    """

    rows: int
    bytes: int
    write: Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """Estimate of the remaining partitions.

    least: bytes for each worker.
    seconds: of one core.
    gpu_seconds: of a GPU, None if unknown.
    in_chunks: seconds of one core for out-of-core rows, part of `seconds`.
    spreads: whether all workers share the tasks of such rows.
    """

    least: int = 0
    seconds: float = 0.0
    gpu_seconds: float | None = None
    in_chunks: float = 0.0
    spreads: bool = False

    @classmethod
    def of(cls, forecast: RunForecast) -> RunEstimate:
        """Return the estimate of exact answers."""
        return cls(forecast.needed, forecast.seconds, forecast.gpu_seconds, forecast.chunked_seconds)

    @property
    def is_mostly_in_chunks(self) -> bool:
        """True if out-of-core rows take more than half of the time."""
        return self.in_chunks > self.seconds / 2


class Workload(ABC):
    """The user's request, and the difference between runs of rows and of sequences."""

    __slots__ = ()
    words: ClassVar[Words]
    task_class: ClassVar[type[PartitionTask[Any]]]
    overwrite: bool

    @property
    @abstractmethod
    def directory(self) -> Directory[Any]:
        """The run directory."""

    @property
    @abstractmethod
    def title(self) -> str:
        """The inputs and the model, in Markdown."""

    @abstractmethod
    def read_model(self) -> Any:
        """Return the network or model; raises InputError."""

    @abstractmethod
    def spec_of(self, model: Any) -> AnySpec:
        """Return all that the answers depend on."""

    @abstractmethod
    def keep_model(self, model: Any) -> None:
        """Write the model to the run directory."""

    @abstractmethod
    def input_parts(self, threads: int) -> Iterator[InputPart]:
        """Yield the inputs, encoded by so many threads, in partitions; at the end one without rows."""

    @abstractmethod
    def estimate(self, resources: Resources, pending: Sequence[int], progress: Progress) -> RunEstimate:
        """Return the estimate of the `pending` partitions; raises BudgetError if they do not fit."""

    @abstractmethod
    def rows_in(self, parts: Sequence[int]) -> int:
        """Return the rows of some partitions."""

    def task(self, part: int, spec: Any, counts: Ingested, compute: ComputeOptions) -> PartitionTask[Any]:
        """Return the task of a worker for one partition."""
        return self.task_class(str(self.directory.path), part, spec, counts, compute)

    def export(self, parts: Sequence[Path], progress: Progress) -> None:  # noqa: B027 - few have one
        """Write the answers in another form as well, if requested."""


@dataclass(frozen=True, slots=True)
class Job(Workload):
    """A run of rows of evidence; paths as they were given.

    network: file of it.
    evidence: file or folder of it.
    output: run directory.
    query: for every row.
    partition_rows: cases in one part; None for a number by the width of the answers.
    part_bytes: bytes of the answers in one part before compression, in place of a number of cases.
    keep: evidence columns that are carried through to the answers.
    output_format, layout, compression: of the answers, as in `AnswerFiles`.
    case_id: evidence column with the names of the cases.
    ignore_extra: whether columns that are not in the network are left out.
    strict: whether the first invalid row ends the run.
    overwrite: whether a different run in `output` is replaced.
    csv: whether one CSV file is written as well.
    network_format, evidence_format: None for the formats by name or content of the files.
    """

    network: str
    evidence: str
    output: str
    query: Query = field(default_factory=Query)
    partition_rows: int | None = None
    case_id: str | None = None
    ignore_extra: bool = False
    strict: bool = False
    overwrite: bool = False
    csv: bool = False
    network_format: str | None = None
    evidence_format: str | None = None
    part_bytes: int | None = None
    keep: tuple[str, ...] = ()
    output_format: OutputFormat = "parquet"
    layout: Layout = "lists"
    compression: Compression = "zstd"

    words = Words("network", "evidence", "propagating")
    task_class = PartTask

    @property
    def directory(self) -> RunDirectory:
        """The run directory."""
        return RunDirectory(Path(self.output).absolute())

    @property
    def title(self) -> str:
        """The evidence and the network, in Markdown."""
        return f"`{self.evidence}` on `{self.network}`"

    def read_model(self) -> Network:
        """Return the network; raises InputError, also if it does not suit the query."""
        from junctor.formats import read_network
        from junctor.model.query import answered_names

        files = AnswerFiles(self.output_format, self.layout, self.compression, self.keep)
        if self.part_bytes is not None and self.partition_rows is not None:
            raise EvidenceError("found both a number of rows and a size of a part, expected one of them")
        network = read_network(self.network, self.network_format)
        # Unknown names are refused now, before hours of work.
        answered_names(network, self.query)
        if self.keep:
            from junctor.runs.answer_files import refuse_taken_names

            refuse_taken_names(network, self.query, files)
        if self.query.method == "sampling":
            from junctor.sampling.tables import refuse

            refuse(network)
        return network

    def spec_of(self, model: Network) -> RunSpec:
        """Return all that the answers depend on."""
        # Options of sampling are left out of exact runs: they change no answer, and must not make another run of it.
        from junctor.evidence.read import digest_of
        from junctor.runs.results import default_partition_rows

        sampling: dict[str, Any] = asdict(self.query.sampling) if self.query.method != "exact" else {}
        return RunSpec(
            network_digest=model.digest,
            evidence_digest=digest_of(self.evidence),
            query=self.query.kind,
            targets=self.query.targets,
            precision=self.query.precision,
            partition_rows=self.partition_rows or default_partition_rows(model, self.query, self.part_bytes),
            case_id=self.case_id,
            ignore_extra=self.ignore_extra,
            strict=self.strict,
            junctor_version=version("junctor"),
            method=self.query.method,
            keep=self.keep,
            output_format=self.output_format,
            layout=self.layout,
            compression=self.compression,
            **sampling,
            answers=self.query.answers,
            top=self.query.top,
            probabilities=self.query.probabilities,
        )

    def keep_model(self, model: Network) -> None:
        """Write the network to the run directory, and the measurements of this machine's devices."""
        from junctor.formats import store

        if has_own_measurements():
            from junctor.cost.model import local_cost_models

            # Later measurements must not change the choices of this run.
            write_json(self.directory.speeds, local_cost_models().to_record())
        with aside(self.directory.network) as temporary:
            temporary.write_bytes(store.to_bytes(model))

    def input_parts(self, threads: int) -> Iterator[InputPart]:
        """Yield the evidence, encoded by so many threads, in partitions; at the end one without rows."""
        from junctor.evidence.encode import concatenate
        from junctor.evidence.encoded import write_partition
        from junctor.evidence.read import open_evidence
        from junctor.formats import read_network
        from junctor.runs.answer_files import refuse_other_types

        # The network of the directory, not of the job: an earlier call may have begun with it.
        spec = self.directory.read_spec()
        source = open_evidence(
            self.evidence,
            read_network(self.directory.network),
            case_id=spec.case_id,
            ignore_extra=spec.ignore_extra,
            strict=spec.strict,
            keep=spec.keep,
            format=self.evidence_format,
        )
        refuse_other_types(source.kept_schema, spec.as_files())
        nothing = concatenate([], source.case_id_type, 0, source.kept_schema)
        for partition in chain(source.partitions(spec.partition_rows, threads), [nothing]):
            # States take four bytes each, case ids some more.
            size = 4 * partition.batch.rows * (2 + len(source.columns))
            size += 0 if partition.kept is None else partition.kept.nbytes
            yield InputPart(partition.batch.rows, size, partial(write_partition, partition))

    def estimate(self, resources: Resources, pending: Sequence[int], progress: Progress) -> RunEstimate:
        """Return the estimate of the remaining partitions.

        resources: of the run.
        pending: partitions without answers.
        progress: shows the stage.
        Raises BudgetError, before anything runs, if a plan does not fit the memory of all workers together.
        """
        # Workers of a scheduler plan for themselves: only the sharing of out-of-core rows is decided here.
        progress.stage("planning")
        run = _PlannedRun(self.directory, self.directory.read_spec(), resources, pending)
        if run.spec.method != "exact":
            return run.by_sampling()
        return run.exact() if resources.scheduler is None else run.on_scheduler()

    def rows_in(self, parts: Sequence[int]) -> int:
        """Return the rows of some partitions."""
        # All but the last one are of one size, so that no file has to be opened.
        counts, size = self.directory.counts(), self.directory.read_spec().partition_rows
        return sum(min(size, counts.rows - i * size) for i in parts)

    def export(self, parts: Sequence[Path], progress: Progress) -> None:
        """Write one CSV file, if requested."""
        path = self.directory.csv(self.directory.read_spec().folder)
        if self.csv and not path.exists():
            from junctor.runs.export import write_csv

            progress.stage("writing CSV")
            with aside(path) as temporary:
                write_csv(parts, temporary)


@dataclass(frozen=True, slots=True)
class _PlannedRun:
    """A run of rows before propagation, for its estimate."""

    directory: RunDirectory
    spec: RunSpec
    resources: Resources
    pending: Sequence[int]

    def exact(self) -> RunEstimate:
        """Return the estimate of exact answers on this machine."""
        from junctor.cost.dataset import MeasuredDevice
        from junctor.engine.forecast import survey

        compute = self.resources.compute
        engine = self._engine(allowed_memory(compute), "cpu" if compute.device == "auto" else compute.device)
        asks_gpu = compute.device == "auto" and has_gpu()
        gpu = engine.router.cost_models.gpu(MeasuredDevice(*gpu_at_hand())) if asks_gpu else None
        estimate = RunEstimate.of(survey(engine, self._batches(), len(self.pending), gpu))
        # Without sharing one process answers such rows, as each takes all the memory.
        workers = self.resources.workers or 1
        spreads = workers > 1 and estimate.is_mostly_in_chunks and self._pays(engine, workers)
        return replace(estimate, spreads=spreads)

    def on_scheduler(self) -> RunEstimate:
        """Return whether workers share out-of-core rows: fewer partitions than workers, or too large for one."""
        from junctor.engine.forecast import survey

        with cluster_client(self.resources) as client:
            workers = workers_of(client)
        memory, count = memory_of_each(workers.values(), self.resources), len(self.pending)
        engine = self._engine(memory, "cpu")
        try:
            estimate = RunEstimate.of(survey(engine, self._batches(), count))
        except BudgetError:
            return RunEstimate(spreads=len(workers) > 1)
        spreads = count < len(workers) and estimate.is_mostly_in_chunks
        return RunEstimate(spreads=spreads and self._pays(engine, len(workers), memory))

    def by_sampling(self) -> RunEstimate:
        """Return the estimate of sampling; with `auto`, write the budget of exact answers and explain it."""
        from junctor.sampling.auto import AutoEngine, explain

        rows, options = self.directory.counts().rows, self._options(allowed_memory(self.resources.compute), "cpu")
        engine = sampler_for(self.directory, self.spec, rows, options)
        if isinstance(engine, AutoEngine):
            explain(engine, next(self._batches()))
        return RunEstimate(engine.least, engine.seconds(rows))

    def _options(self, memory: int, device: DeviceChoice) -> ComputeOptions:
        """Return the options of this process for all of the work."""
        threads = threads_for(self.resources, 1) or 1
        return replace(self.resources.compute, memory=memory, threads=threads, device=device)

    def _engine(self, memory: int, device: DeviceChoice) -> Engine:
        """Return an engine that shares its plans with the one that later answers in this process."""
        engine = engine_for(self.directory, self.spec, self.directory.counts().rows)
        return engine.with_options(self._options(memory, device))

    def _batches(self) -> Iterator[EvidenceBatch]:
        from junctor.evidence.encoded import read_partition

        sizes = network_for(str(self.directory.network), self.spec.network_digest).cardinalities
        parts = (self.directory.evidence_part(i) for i in self.pending)
        return (read_partition(part, cardinalities=sizes).batch for part in parts)

    def _pays(self, engine: Engine, workers: int, memory: int | None = None) -> bool:
        """Return True if the forecast of out-of-core rows is lower on all workers than in one process.

        engine: of one process.
        workers: their number.
        memory: of each worker, None for an equal share.
        """
        from junctor.engine.forecast import forecast
        from junctor.out_of_core.cluster.workers import WorkerPool

        if self.resources.compute.device != "cpu":
            # Devices of workers are unknown here.
            return True
        batch, shared = next(self._batches()), engine.with_options(engine.options, WorkerPool(workers, memory))

        def seconds(engine: Engine) -> float:
            return sum(route.seconds for route in forecast(engine, batch) if route.chunks is not None)

        return seconds(shared) < seconds(engine)
