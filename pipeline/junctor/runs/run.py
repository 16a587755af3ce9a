"""A run from files to files as plain functions, each of which begins and ends with files in the run directory.

    ingest_network -> ingest_evidence -> plan -> propagate (propagate_partition for each) -> finalise

`run` calls them one after the other; the Prefect flow calls the same ones as its tasks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from junctor.cost.constants import CPU, GPU
from junctor.model.errors import BudgetError, RunError
from junctor.model.options import ComputeOptions, DeviceChoice
from junctor.model.query import Query
from junctor.planning.budget import format_bytes
from junctor.runs.partition import (
    Part,
    PartTask,
    StageTimings,
    engine_for,
    propagate_here,
    propagate_over,
    propagate_partition,
    read_part,
    sampler_for,
)
from junctor.runs.storage import FORMAT_VERSION, Directory, Ingested, RunDirectory, RunSpec, spec_of
from junctor.runtime.dask_cluster import (
    Resources,
    allowed_memory,
    check_scheduler,
    cluster_client,
    distribute,
    memory_of_each,
    threads_for,
    workers_of,
)
from junctor.runtime.devices import check_device, count_gpus, gpu_at_hand, has_gpu
from junctor.runtime.files import aside, explained, read_json, write_json
from junctor.runtime.machine import allowed_disk, has_own_measurements, spill_folder, usable_cores
from junctor.runtime.progress import Progress, Silence

if TYPE_CHECKING:
    from junctor.cost.model import CostModel
    from junctor.engine.engine import Engine
    from junctor.engine.forecast import RunForecast
    from junctor.evidence.batch import EvidenceBatch

# Cores that one process keeps busy with its threads; only machines with more of them get more processes by themselves.
WORKER_CORES = 4

logger = logging.getLogger("junctor")


@dataclass(frozen=True, slots=True)
class Job:
    """What the user asks of a run; paths as they were given.

    partition_rows: cases in one part; None for a number that depends on the width of the answers.
    case_id: evidence column that names the cases. overwrite: replace a different run that lies in `output`.
    csv: also write one CSV file. network_format, evidence_format: where neither names nor contents of files say it.
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

    @property
    def directory(self) -> RunDirectory:
        """Where the run lies."""
        return RunDirectory(Path(self.output).absolute())


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """What partitions that are left will take: bytes for each worker at the least, seconds of one core, of a GPU.

    in_chunks: seconds of one core that are those of rows in chunks. spreads: whether all workers share their tasks.
    """

    least: int = 0
    seconds: float = 0.0
    gpu_seconds: float | None = None
    in_chunks: float = 0.0
    spreads: bool = False


@dataclass(frozen=True, slots=True)
class RunStats:
    """What a call did to the partitions: how many it found done already, and the seconds that the others took."""

    reused: int
    stages: StageTimings


@dataclass(frozen=True, slots=True)
class Manifest:
    """A finished run.

    `spec` is what the run answers. `seconds` is the time of the call that finished it, which found `reused_parts` done
    already; `stages` says what the other parts took.
    """

    spec: Any
    rows: int
    statuses: dict[str, int]
    parts: tuple[Part, ...]
    reused_parts: int
    seconds: float
    stages: StageTimings
    finished_at: str


def run(job: Job, resources: Resources | None = None, progress: Progress | None = None) -> Manifest:
    """Answer a whole evidence file; goes on where an earlier call of the same job stopped.

    Raises InputError for what is wrong with network, evidence or targets, BudgetError where a plan does not fit, and
    RunError for the directory: another run in it, no space, in use.
    """
    progress = progress or Silence()
    resources = resources or Resources()
    started = time.monotonic()
    check_resources(resources)
    with job.directory.locked():
        ingest_network(job, progress)
        ingest_evidence(job, progress)
        outlook = plan(job, resources, progress)
        work = propagate(job, resources, outlook, progress)
        return finalise(job, work, time.monotonic() - started, progress)


def check_resources(resources: Resources) -> None:
    """Raise RunError for a scheduler that must not be used, DeviceError without a GPU, before any work is done."""
    if resources.scheduler is not None:
        check_scheduler(resources.scheduler, resources.insecure_scheduler)
    else:
        check_device(resources.device)


def ingest_network(job: Job, progress: Progress) -> RunSpec:
    """Read and check the network, claim the run directory for this job, and put the network there as Parquet."""
    from junctor.evidence.read import digest_of
    from junctor.formats import read_network, store
    from junctor.model.query import target_names
    from junctor.runs.results import default_partition_rows

    progress.stage("reading the network")
    network = read_network(job.network, job.network_format)
    target_names(network, job.query)  # refuses unknown ones
    if job.query.method == "sampling":
        from junctor.sampling.tables import refuse

        refuse(network)
    spec = RunSpec(
        network_digest=network.digest,
        evidence_digest=digest_of(job.evidence),
        query=job.query.kind,
        targets=job.query.targets,
        precision=job.query.precision,
        partition_rows=job.partition_rows or default_partition_rows(network, job.query),
        case_id=job.case_id,
        ignore_extra=job.ignore_extra,
        strict=job.strict,
        junctor_version=version("junctor"),
        **_method_of(job.query),
    )
    job.directory.claim(spec, job.overwrite)
    if not job.directory.network.exists():
        if has_own_measurements():
            from junctor.cost.model import local_cost_models

            # What is measured later must not change what is left of this run.
            write_json(job.directory.speeds, local_cost_models().to_record())
        with aside(job.directory.network) as temporary:
            temporary.write_bytes(store.to_bytes(network))
    return spec


def _method_of(query: Query) -> dict[str, Any]:
    """Return what a spec says of the method; nothing of sampling where all answers are exact."""
    return {"method": query.method, **(asdict(query.sampling) if query.method != "exact" else {})}


def ingest_evidence(job: Job, progress: Progress) -> Ingested:
    """Encode the evidence, one file a partition; files that are there already are kept."""
    from junctor.evidence.encode import concatenate
    from junctor.evidence.encoded import write_partition
    from junctor.evidence.read import open_evidence
    from junctor.formats import read_network

    directory = job.directory
    known = directory.read_ingested()
    if known is not None:
        return known
    spec = directory.read_spec()
    progress.stage("reading the evidence")
    network = read_network(directory.network)
    source = open_evidence(
        job.evidence,
        network,
        case_id=spec.case_id,
        ignore_extra=spec.ignore_extra,
        strict=spec.strict,
        format=job.evidence_format,
    )
    # A file without rows is one partition without rows: readers of the answers find their columns.
    nothing = [concatenate([], source.case_id_type, 0)]
    rows = partitions = 0
    for partition in chain(source.partitions(spec.partition_rows), nothing):
        if partition.batch.rows == 0 and partitions:
            continue
        path = directory.evidence_part(partitions)
        if not path.exists():
            write_partition(partition, path)
        rows += partition.batch.rows
        partitions += 1
        progress.advance(partition.batch.rows)
    done = Ingested(rows, partitions)
    write_json(directory.ingested, asdict(done))
    return done


def plan(job: Job, resources: Resources, progress: Progress) -> RunEstimate:
    """Plan what is left, for what it will take.

    Raises BudgetError, before anything runs, where it does not fit in the memory that all workers may take together.
    A scheduler's workers plan for themselves: here it is only settled whether they share rows in chunks.
    """
    from junctor.engine.forecast import survey
    from junctor.evidence.encoded import read_partition

    directory, spec = job.directory, job.directory.read_spec()
    there = ingested(directory)
    pending = unanswered(directory, spec.query, there.partitions)
    if not pending:
        return RunEstimate()
    if spec.method != "exact":
        progress.stage("planning")
        return _plan_sampling(directory, spec, resources, allowed_memory(resources), pending)
    progress.stage("planning")
    first = read_partition(directory.evidence_part(pending[0])).batch
    batches = chain([first], (read_partition(directory.evidence_part(i)).batch for i in pending[1:]))
    if resources.scheduler is not None:
        return _plan_on_scheduler(directory, spec, resources, first, batches, len(pending))
    engine = _planning(directory, spec, resources, allowed_memory(resources))
    gpu = _gpu_speeds(engine) if resources.device == "auto" and has_gpu() else None
    outlook = _estimate_of(survey(engine, batches, len(pending), gpu))
    # One process would answer such rows: each takes all the memory.
    workers = resources.workers or 1
    spreads = workers > 1 and _is_mostly_in_chunks(outlook) and _pays(engine, first, resources, workers)
    return replace(outlook, spreads=spreads)


def _planning(directory: RunDirectory, spec: RunSpec, resources: Resources, memory: int) -> Engine:
    """Return an engine that shares its plans with the one that goes on where this process does the work itself."""
    rows = ingested(directory).rows
    engine = engine_for(str(directory.network), spec.network_digest, spec.as_query(), rows)
    return engine.with_options(_options(resources, memory))


def _options(resources: Resources, memory: int) -> ComputeOptions:
    device = resources.device if resources.device != "auto" else "cpu"
    spill = None if resources.spill is None else Path(resources.spill)
    return ComputeOptions(
        memory, threads_for(resources, 1) or 1, device, resources.device_memory, spill, resources.disk
    )


def _plan_on_scheduler(
    directory: RunDirectory,
    spec: RunSpec,
    resources: Resources,
    first: EvidenceBatch,
    batches: Iterator[EvidenceBatch],
    count: int,
) -> RunEstimate:
    """Return whether workers share rows in chunks: fewer partitions of them than workers, or too large for one."""
    from junctor.engine.forecast import survey

    with cluster_client(resources) as client:
        workers = workers_of(client)
    memory = memory_of_each(workers.values(), resources)
    engine = _planning(directory, spec, replace(resources, device="cpu"), memory)
    try:
        outlook = _estimate_of(survey(engine, batches, count))
    except BudgetError:
        return RunEstimate(spreads=len(workers) > 1)
    spreads = count < len(workers) and _is_mostly_in_chunks(outlook)
    return RunEstimate(spreads=spreads and _pays(engine, first, resources, len(workers), memory))


def _pays(engine: Engine, batch: EvidenceBatch, resources: Resources, workers: int, memory: int | None = None) -> bool:
    """Tell whether rows in chunks are forecast to take less when workers share them than when one process does them.

    memory: of each worker, None for an equal share.
    """
    from junctor.engine.forecast import forecast
    from junctor.out_of_core.cluster.workers import WorkerPool

    if resources.device != "cpu":
        # What GPUs of workers do is not known here.
        return True

    def seconds(asked: Engine) -> float:
        return sum(route.seconds for route in forecast(asked, batch) if route.chunks is not None)

    return seconds(engine.with_options(engine.options, WorkerPool(workers, memory))) < seconds(engine)


def _estimate_of(found: RunForecast) -> RunEstimate:
    return RunEstimate(found.needed, found.seconds, found.gpu_seconds, found.chunked_seconds)


def _is_mostly_in_chunks(outlook: RunEstimate) -> bool:
    return outlook.in_chunks > outlook.seconds / 2


def _gpu_speeds(engine: Engine) -> CostModel:
    from junctor.cost.dataset import MeasuredDevice

    return engine.router.cost_models.gpu(MeasuredDevice(*gpu_at_hand()))


def _plan_sampling(
    directory: RunDirectory, spec: RunSpec, resources: Resources, memory: int, pending: Sequence[int]
) -> RunEstimate:
    """Return what sampling takes; with `auto`, settle the budget of exact answers, and say why rows exceed it."""
    from junctor.evidence.encoded import read_partition
    from junctor.sampling.auto import AutoEngine, explain

    rows = ingested(directory).rows
    query, options = spec.as_query(), _options(replace(resources, device="cpu"), memory)
    engine = sampler_for(str(directory.network), spec.network_digest, query, rows, options, directory.budget)
    if isinstance(engine, AutoEngine):
        explain(engine, read_partition(directory.evidence_part(pending[0])).batch)
    return RunEstimate(engine.least, engine.seconds(rows))


def propagate(job: Job, resources: Resources, outlook: RunEstimate, progress: Progress) -> RunStats:
    """Answer all partitions that have no part yet."""
    directory, spec = job.directory, job.directory.read_spec()
    there = ingested(directory)
    pending = unanswered(directory, spec.query, there.partitions)
    if pending:
        # It would list parts that are gone.
        with explained(directory.manifest):
            directory.manifest.unlink(missing_ok=True)
    left = sum(min(spec.partition_rows, there.rows - i * spec.partition_rows) for i in pending)
    progress.stage("propagating", there.rows, there.rows - left)
    resources = replace(resources, device=device_for(resources, outlook))
    # GPUs of one machine reach each other's memory: one process does far better with them than workers do.
    spreads = outlook.spreads and (resources.scheduler is not None or resources.device == "cpu")
    results = _spread if spreads else _distribute
    total = StageTimings()
    for part, stages in results(directory, spec, resources, outlook, pending):
        progress.advance(part.rows)
        total += stages
    return RunStats(there.partitions - len(pending), total.rounded())


def _distribute(
    directory: RunDirectory, spec: RunSpec, resources: Resources, outlook: RunEstimate, pending: Sequence[int]
) -> Iterator[tuple[Part, StageTimings]]:
    """Answer whole partitions in workers, or here."""
    resources = replace(resources, workers=workers_for(resources, outlook))
    workers = min(resources.workers or 1, len(pending))
    tasks = _tasks(directory, spec, resources, pending, threads_for(resources, workers), disk_for(resources, workers))
    return distribute(propagate_partition, tasks, resources, propagate_here)


def _spread(
    directory: RunDirectory, spec: RunSpec, resources: Resources, _: RunEstimate, pending: Sequence[int]
) -> Iterator[tuple[Part, StageTimings]]:
    """Answer partitions here, rows in chunks over all workers."""
    here = replace(resources, device="cpu")
    tasks = _tasks(directory, spec, here, pending, threads_for(replace(here, scheduler=None), 1), resources.disk)
    return propagate_over(tasks, resources, threads_for(resources, resources.workers or 1))


def _tasks(
    directory: RunDirectory,
    spec: RunSpec,
    resources: Resources,
    pending: Sequence[int],
    threads: int | None,
    disk: int | None,
) -> list[PartTask]:
    rows = ingested(directory).rows
    return [
        PartTask(
            directory=str(directory.path),
            part=i,
            query=spec.as_query(),
            network_digest=spec.network_digest,
            junctor_version=spec.junctor_version,
            rows=rows,
            partition_rows=spec.partition_rows,
            threads=threads,
            device=resources.device,
            device_memory=resources.device_memory,
            spill=resources.spill,
            disk=disk,
        )
        for i in pending
    ]


def device_for(resources: Resources, outlook: RunEstimate) -> DeviceChoice:
    """Return the device to use; a scheduler's workers see for themselves."""
    if resources.device != "auto" or resources.scheduler is not None:
        return resources.device
    # Where nothing is known of a GPU, it is taken to be far faster than a core.
    there = outlook.gpu_seconds or 0.0
    return "gpu" if there + GPU.start < outlook.seconds / usable_cores() and has_gpu() else "cpu"


def disk_for(resources: Resources, workers: int) -> int | None:
    """Return the bytes of files for each of so many worker processes; None where each has to see for itself."""
    if resources.scheduler is not None or workers < 2:
        return resources.disk
    allowed = resources.disk if resources.disk is not None else allowed_disk(spill_folder(resources.spill))
    return allowed // workers


def workers_for(resources: Resources, outlook: RunEstimate) -> int:
    """Return how many processes to use: what was asked for, or what the work is worth; fewer where memory is short."""
    if resources.workers is not None:
        workers = resources.workers
    elif resources.device == "gpu":
        workers = count_gpus()
    else:
        workers = int(min(usable_cores() // WORKER_CORES, outlook.seconds / CPU.process))
    allowed = allowed_memory(resources)
    if workers * outlook.least <= allowed:
        return workers
    fitting = allowed // outlook.least
    logger.warning(
        "memory for %d of %d workers: %s are allowed, a plan needs %s",
        fitting,
        workers,
        format_bytes(allowed),
        format_bytes(outlook.least),
    )
    return fitting


def finalise(job: Job, work: RunStats, seconds: float, progress: Progress) -> Manifest:
    """Check that all parts are there and write the manifest; raises RunError with all that is missing."""
    directory, spec = job.directory, job.directory.read_spec()
    manifest = finished(directory, spec, spec.query, work, seconds, progress)
    if job.csv and not directory.csv(spec.query).exists():
        from junctor.runs.export import write_csv

        progress.stage("writing CSV")
        files = [directory.path / part.file for part in manifest.parts]
        with aside(directory.csv(spec.query)) as temporary:
            write_csv(files, temporary)
    return manifest


def finished(
    directory: Directory[Any], spec: Any, kind: str, work: RunStats, seconds: float, progress: Progress
) -> Manifest:
    """Return the manifest of a run whose parts are all there, and write it if it is not; kind: of its answers."""
    if directory.manifest.exists():
        manifest = read_manifest(directory)
        return replace(manifest, reused_parts=work.reused, seconds=round(seconds, 3), stages=work.stages)
    progress.stage("finishing")
    numbers = range(ingested(directory).partitions)
    missing = [i for i in numbers if not directory.answers_part(kind, i).exists()]
    if missing:
        raise RunError(f"{directory.path}: missing parts {missing}: run the same command again")
    parts = tuple(read_part(directory, kind, i) for i in numbers)
    statuses = {name: sum(part.statuses[name] for part in parts) for name in parts[0].statuses}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    rows = sum(part.rows for part in parts)
    manifest = Manifest(spec, rows, statuses, parts, work.reused, round(seconds, 3), work.stages, now)
    write_json(directory.manifest, {"format_version": FORMAT_VERSION, **asdict(manifest)})
    return manifest


def read_manifest(directory: Directory[Any]) -> Manifest:
    """Return the manifest of a finished run; raises RunError where there is none or it is not one."""
    found = read_json(directory.manifest)
    if found is None:
        raise RunError(f"{directory.path}: not finished (manifest.json is missing)")
    try:
        return manifest_of(found, directory.parse)
    except (KeyError, TypeError) as error:
        raise RunError(f"{directory.manifest}: not a manifest ({error}): delete it and run again") from error


def manifest_of(record: dict[str, Any], parse: Callable[[dict[str, Any]], Any] = spec_of) -> Manifest:
    """Return the manifest that `dataclasses.asdict` made a record of; raises KeyError or TypeError for another one."""
    fields = {name: record[name] for name in ("rows", "statuses", "reused_parts", "seconds", "finished_at")}
    parts = tuple(Part(**part) for part in record["parts"])
    return Manifest(spec=parse(record["spec"]), parts=parts, stages=StageTimings(**record["stages"]), **fields)


def unanswered(directory: Directory[Any], kind: str, partitions: int) -> list[int]:
    """Return the numbers of the partitions that have no answers of a kind yet."""
    return [i for i in range(partitions) if not directory.answers_part(kind, i).exists()]


def ingested(directory: Directory[Any]) -> Ingested:
    """Return how much there is to answer; raises RunError while that is not known."""
    found = directory.read_ingested()
    if found is None:
        raise RunError(f"{directory.path}: its evidence is not complete: run the same command again")
    return found
