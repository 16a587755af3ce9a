"""Runs from files to files, of rows or of sequences: one frame, whose steps begin and end with files on disk.

Main function: `run`, called by the command line. `Workload` is the difference between rows and sequences.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from junctor.cost.constants import CPU, GPU
from junctor.model.errors import RunError
from junctor.model.options import ComputeOptions, DeviceChoice
from junctor.planning.budget import format_bytes
from junctor.runs.partition import (
    Part,
    PartitionTask,
    StageTimings,
    propagate_here,
    propagate_over,
    propagate_partition,
    read_part,
)
from junctor.runs.storage import FORMAT_VERSION, AnySpec, Directory, Ingested, spec_record
from junctor.runs.workload import InputPart, RunEstimate, Workload
from junctor.runtime.dask_cluster import Resources, check_scheduler, distribute, threads_for
from junctor.runtime.devices import check_device, count_gpus, has_gpu
from junctor.runtime.files import explained, read_json, refused, write_json
from junctor.runtime.gc_pause import collector_paused
from junctor.runtime.machine import allowed_disk, allowed_memory, spill_folder, usable_cores
from junctor.runtime.progress import Progress, Silence, shows_passes
from junctor.runtime.threads import ahead

# The steps of a run, which the Prefect flows call as their tasks:
#   ingest_model -> ingest_inputs -> plan -> propagate (propagate_partition for each partition) -> finalise

# Cores that one process keeps busy with its threads; only machines with more cores get several processes by default.
WORKER_CORES = 4
# Bytes of inputs that wait to be written, encoded.
INPUTS_AHEAD = 2**28

logger = logging.getLogger("junctor")


@dataclass(frozen=True, slots=True)
class RunStats:
    """Statistics of one call.

    reused: partitions with answers of earlier calls.
    stages: seconds of the others.
    """

    reused: int
    stages: StageTimings


@dataclass(frozen=True, slots=True)
class Manifest:
    """A finished run.

    spec: specification of the run.
    rows: of all parts.
    statuses: rows of each status.
    parts: in the order of their rows.
    reused_parts: number of parts from calls before the last one.
    seconds: of the last call.
    stages: seconds of its own parts.
    finished_at: date and time, in UTC.
    """

    spec: AnySpec
    rows: int
    statuses: dict[str, int]
    parts: tuple[Part, ...]
    reused_parts: int
    seconds: float
    stages: StageTimings
    finished_at: str

    def to_record(self) -> dict[str, Any]:
        """Return a record for JSON."""
        return {**asdict(self), "spec": spec_record(self.spec)}


def run(job: Workload, resources: Resources | None = None, progress: Progress | None = None) -> Manifest:
    """Answer all rows or sequences; continues an earlier call of the same job.

    job: query and paths.
    resources: None for those of this machine.
    progress: None for silence.
    Raises InputError for errors in model, inputs or targets, BudgetError if a plan does not fit, and RunError for the
    directory: another run in it, no space, in use.
    """
    progress = progress or Silence()
    resources = resources or Resources()
    started = time.monotonic()
    check_resources(resources)
    with job.directory.locked():
        # Modules, networks and plans stay: the collector would search all of them again and again.
        with collector_paused():
            ingest_model(job, progress)
        ingest_inputs(job, progress)
        with collector_paused():
            estimate = plan(job, resources, progress)
        work = propagate(job, resources, estimate, progress)
        return finalise(job, work, time.monotonic() - started, progress)


def check_resources(resources: Resources) -> None:
    """Raise RunError for an insecure scheduler, DeviceError for a missing GPU, before any work is done."""
    if resources.scheduler is not None:
        check_scheduler(resources.scheduler, resources.insecure_scheduler)
    else:
        check_device(resources.compute.device)


def ingest_model(job: Workload, progress: Progress) -> AnySpec:
    """Read and check the model, claim the run directory for this job, and write the model there as Parquet."""
    progress.stage(f"reading the {job.words.model}")
    model = job.read_model()
    spec = job.spec_of(model)
    # Before anything is written: another run in the directory must stay whole.
    job.directory.claim(spec, job.overwrite)
    if not job.directory.network.exists():
        job.keep_model(model)
    return spec


def ingest_inputs(job: Workload, progress: Progress) -> Ingested:
    """Encode the inputs, one file a partition; existing files are kept."""
    directory = job.directory
    known = directory.read_ingested()
    if known is not None:
        return known
    progress.stage(f"reading the {job.words.inputs}")
    rows = partitions = 0
    threads = usable_cores()
    numbered = enumerate(_with_rows(job.input_parts(threads)))
    for written in ahead(partial(_written, directory), numbered, threads, lambda part: part[1].bytes, INPUTS_AHEAD):
        rows += written
        partitions += 1
        progress.advance(written)
    counts = Ingested(rows, partitions)
    # Last: the mark that all partitions are there.
    write_json(directory.ingested, asdict(counts))
    return counts


def _with_rows(parts: Iterator[InputPart]) -> Iterator[InputPart]:
    """Yield the partitions with rows; of inputs without any, one without rows: its answers have the columns."""
    for number, part in enumerate(parts):
        if part.rows or not number:
            yield part


def _written(directory: Directory[Any], numbered: tuple[int, InputPart]) -> int:
    """Write a partition unless it is there; return its rows."""
    number, part = numbered
    path = directory.evidence_part(number)
    # Written by an interrupted call: equal specs give equal partitions.
    if not path.exists():
        part.write(path)
    return part.rows


def plan(job: Workload, resources: Resources, progress: Progress) -> RunEstimate:
    """Return the estimate of the remaining partitions; raises BudgetError if they do not fit."""
    pending = job.directory.unanswered(job.directory.read_spec())
    return job.estimate(resources, pending, progress) if pending else RunEstimate()


def propagate(job: Workload, resources: Resources, estimate: RunEstimate, progress: Progress) -> RunStats:
    """Answer all partitions without a part.

    job: its inputs are encoded.
    resources: of the user.
    estimate: decides which of them are used.
    progress: counts rows of finished parts.
    """
    directory, counts = job.directory, job.directory.counts()
    pending = directory.unanswered(directory.read_spec())
    if pending:
        # A manifest of an earlier call would list parts that were deleted since.
        with explained(directory.manifest):
            directory.manifest.unlink(missing_ok=True)
    progress.stage(job.words.work, counts.rows, counts.rows - job.rows_in(pending))
    resources = resources.with_compute(device=device_for(resources, estimate))
    # GPUs of one machine reach each other's memory: one process does far better with them than workers do.
    if estimate.spreads and (resources.scheduler is not None or resources.compute.device == "cpu"):
        results = _spread(job, resources, pending)
    else:
        results = _distribute(job, replace(resources, workers=workers_for(resources, estimate)), pending)
    total = StageTimings()
    with shows_passes(progress):
        for part, stages in results:
            progress.advance(part.rows)
            total += stages
    return RunStats(counts.partitions - len(pending), total.rounded())


def _distribute(job: Workload, resources: Resources, pending: Sequence[int]) -> Iterator[tuple[Part, StageTimings]]:
    """Answer whole partitions in workers, or in this process."""
    workers = min(resources.workers or 1, len(pending))
    threads, disk = threads_for(resources, workers), disk_for(resources, workers)
    tasks = _tasks(job, replace(resources.compute, threads=threads, spill_bytes=disk), pending)
    return distribute(propagate_partition, tasks, resources, propagate_here)


def _spread(job: Workload, resources: Resources, pending: Sequence[int]) -> Iterator[tuple[Part, StageTimings]]:
    """Answer partitions in this process, out-of-core rows on all workers."""
    # This process leads, and is no worker of the scheduler.
    threads = threads_for(replace(resources, scheduler=None), 1)
    tasks = _tasks(job, replace(resources.compute, device="cpu", threads=threads), pending)
    return propagate_over(tasks, resources, threads_for(resources, resources.workers or 1))


def _tasks(job: Workload, compute: ComputeOptions, pending: Sequence[int]) -> list[PartitionTask[Any]]:
    spec, counts = job.directory.read_spec(), job.directory.counts()
    return [job.task(i, spec, counts, compute) for i in pending]


def device_for(resources: Resources, estimate: RunEstimate) -> DeviceChoice:
    """Return the device to use; workers of a scheduler choose for themselves."""
    device = resources.compute.device
    if device != "auto" or resources.scheduler is not None:
        return device
    # A GPU without measurements counts as far faster than a core.
    there = estimate.gpu_seconds or 0.0
    return "gpu" if there + GPU.start < estimate.seconds / usable_cores() and has_gpu() else "cpu"


def disk_for(resources: Resources, workers: int) -> int | None:
    """Return the bytes of files for each of `workers` processes; None if each has to ask its own machine."""
    allowed = resources.compute.spill_bytes
    if resources.scheduler is not None or workers < 2:
        return allowed
    return (allowed_disk(spill_folder(resources.compute.spill_dir)) if allowed is None else allowed) // workers


def workers_for(resources: Resources, estimate: RunEstimate) -> int:
    """Return the number of processes: that of the user, or by the estimate; fewer if memory is short."""
    if resources.workers is not None:
        workers = resources.workers
    elif resources.compute.device == "gpu":
        workers = count_gpus()
    else:
        workers = int(min(usable_cores() // WORKER_CORES, estimate.seconds / CPU.process))
    # Fewer workers rather than smaller shares: a plan that does not fit would end the run.
    allowed = allowed_memory(resources.compute)
    if workers * estimate.least <= allowed:
        return workers
    fitting = allowed // estimate.least
    sizes = format_bytes(allowed), format_bytes(estimate.least)
    logger.warning("memory for %d of %d workers: %s are allowed, a plan needs %s", fitting, workers, *sizes)
    return fitting


def finalise(job: Workload, work: RunStats, seconds: float, progress: Progress) -> Manifest:
    """Return the manifest of a complete run; written unless it exists.

    job: all its parts should exist.
    work: statistics of this call.
    seconds: of this call until now.
    progress: shows the stage.
    Raises RunError with all missing parts.
    """
    directory = job.directory
    if directory.manifest.exists():
        # The file stays as it is; only the caller sees that this call found everything done.
        manifest = read_manifest(directory)
        manifest = replace(manifest, reused_parts=work.reused, seconds=round(seconds, 3), stages=work.stages)
    else:
        progress.stage("finishing")
        manifest = _written_manifest(directory, work, seconds)
    job.export([directory.path / part.file for part in manifest.parts], progress)
    return manifest


def _written_manifest(directory: Directory[Any], work: RunStats, seconds: float) -> Manifest:
    spec = directory.read_spec()
    # Parts may have been deleted since, or written to another disk.
    missing = directory.unanswered(spec)
    if missing:
        raise RunError(f"{directory.path}: missing parts {missing}: run the same command again")
    parts = tuple(read_part(directory, spec, i) for i in range(directory.counts().partitions))
    statuses = {name: sum(part.statuses[name] for part in parts) for name in parts[0].statuses}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    rows = sum(part.rows for part in parts)
    manifest = Manifest(spec, rows, statuses, parts, work.reused, round(seconds, 3), work.stages, now)
    write_json(directory.manifest, {"format_version": FORMAT_VERSION, **manifest.to_record()})
    return manifest


def read_manifest(directory: Directory[Any]) -> Manifest:
    """Return the manifest of a finished run; raises RunError if it is missing or unreadable."""
    record = read_json(directory.manifest)
    if record is None:
        raise RunError(f"{directory.path}: not finished (manifest.json is missing)")
    with refused(lambda said: RunError(f"{directory.manifest}: not a manifest ({said}): delete it and run again")):
        return manifest_of(record, directory.parse)


def manifest_of(record: dict[str, Any], parse: Callable[[dict[str, Any]], Any]) -> Manifest:
    """Return the manifest of a record of `Manifest.to_record`; raises KeyError or TypeError for another record.

    parse: makes the spec of its record.
    """
    fields = {name: record[name] for name in ("rows", "statuses", "reused_parts", "seconds", "finished_at")}
    parts = tuple(Part(**part) for part in record["parts"])
    amounts = fields["rows"], fields["reused_parts"], *fields["statuses"].values()
    amounts += tuple(count for part in parts for count in (part.rows, part.bytes, *part.statuses.values()))
    if not all(type(count) is int for count in amounts) or not all(isinstance(part.file, str) for part in parts):
        raise TypeError("a number or a name of another type")
    return Manifest(spec=parse(record["spec"]), parts=parts, stages=StageTimings(**record["stages"]), **fields)
