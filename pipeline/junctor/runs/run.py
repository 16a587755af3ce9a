"""Runs from files to files, of rows or of sequences: one frame, whose steps begin and end with files on disk.

Main function: `run`, called by the command line. `Workload` is the difference between rows and sequences.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from junctor.evidence.files import NO_STAMP, Stamps, refuse_changes, stamp_of
from junctor.model.errors import BudgetError, EvidenceError, InputError, JunctorError, RunError
from junctor.model.query import repeating_names
from junctor.model.strategies import Chosen
from junctor.runs.increments import (
    IncrementDirectory,
    broken_inputs,
    increment_of,
    merge,
    total_of,
)
from junctor.runs.integrity import discard_damaged, write_checksums
from junctor.runs.manifest import Manifest, read_manifest
from junctor.runs.new_inputs import ingest
from junctor.runs.partition import (
    Part,
    StageTimings,
    network_for,
    propagate_here,
    propagate_over,
    propagate_partition,
    read_part,
)
from junctor.runs.placement import Machine, Placement, RunEstimate, place
from junctor.runs.storage import FORMAT_VERSION, AnySpec, Directory, Ingested, RunSpec, spec_record
from junctor.runs.workload import InputPart, Workload
from junctor.runtime.dask_cluster import (
    Resources,
    check_resources,
    distribute,
    threads_for,
    workers_ahead,
)
from junctor.runtime.devices import open_gpu_ahead
from junctor.runtime.files import Checksum, checksum_of, io_errors_for, write_json
from junctor.runtime.gc_pause import collector_paused
from junctor.runtime.local_cluster import largest_worker
from junctor.runtime.machine import (
    allowed_disk,
    peak_memory,
    spill_folder,
    usable_cores,
)
from junctor.runtime.progress import Progress, Silence, shows_work
from junctor.runtime.remote import AnyPath, RemotePath
from junctor.runtime.remote_lock import check_lock
from junctor.runtime.threads import ahead, import_ahead, short_gil_switches

# The steps of a run, which the Prefect flows call as their tasks:
#   ingest_model -> ingest_inputs -> plan -> propagate (propagate_partition for each partition) -> finalise

# Bytes of inputs that wait to be written, encoded.
INPUTS_AHEAD = 2**28
# Parts of a store whose metadata are read at a time.
STORE_READS = 16

logger = logging.getLogger("junctor")


@dataclass(frozen=True, slots=True)
class RunStats:
    """Statistics of one call.

    reused: partitions with answers of earlier calls.
    stages: seconds of the others.
    made: the parts of the others.
    worker_bytes: the most memory of a worker process of this machine, 0 without any.
    placement: where the others were answered, and why.
    choices: how, of the first of them.
    """

    reused: int
    stages: StageTimings
    made: tuple[Part, ...] = ()
    worker_bytes: int = 0
    placement: str = ""
    choices: tuple[Chosen, ...] = ()


def run(
    job: Workload, resources: Resources | None = None, progress: Progress | None = None, retries: int = 0
) -> Manifest:
    """Answer all rows or sequences; continues an earlier call of the same job.

    job: query and paths.
    resources: None for those of this machine.
    progress: None for silence.
    retries: further attempts at parts that failed, while those that are there stay.
    Raises InputError for errors in model, inputs or targets, BudgetError if a plan does not fit, and RunError for the
    directory: another run in it, no space, in use. At its end ThresholdError where it crosses one.
    """
    progress = progress or Silence()
    resources = resources or Resources()
    started = time.monotonic()
    check_resources(resources)
    job.check_places()
    if job.has_engine:
        # While files are read.
        import_ahead("junctor.runs.estimate")
        if Machine.of(resources).is_one_gpu:
            open_gpu_ahead(resources.compute.device_memory)
    with workers_ahead(resources) as start_workers, job.directory.locked():
        # Modules, networks and plans stay: the collector would search all of them again and again.
        with collector_paused():
            _, stamps = ingest_model(job, progress)
        ingest_inputs(job, progress, start_workers, stamps)
        with collector_paused():
            estimate = plan(job, resources, progress)
            rows = part_rows(job, resources, estimate)
        cut(job, rows, progress, stamps)
        work = propagate(job, resources, estimate, progress, retries=retries)
        return finalise(job, work, time.monotonic() - started, progress)


def ingest_model(job: Workload, progress: Progress) -> tuple[AnySpec, Stamps]:
    """Read and check the model, claim the run directory for this job, and write the model there as Parquet.

    Returns the specification, and the stamps of the files of the inputs from before their digest was made.
    """
    progress.stage(f"reading the {job.words.model}")
    model = job.read_model()
    stamps = job.stamps()
    return claim(job, model, job.spec_of(model), stamps, progress), stamps


def claim(job: Workload, model: Any, spec: AnySpec, stamps: Stamps, progress: Progress, alone: bool = True) -> AnySpec:
    """Claim the run directory for a job, and write its model there as Parquet; returns the specification.

    job: equal to others at the same directory.
    model, spec: of the job.
    stamps: of the files of the inputs when their digest was made.
    progress: shows the stage.
    alone: whether no other process is at the directory.
    Raises RunError if another run is there, and EvidenceError if it would give way to inputs that cannot be read.
    """
    if not job.has_part_size:
        spec = job.directory.with_its_parts(spec)
    if alone and job.directory.loses_answers(spec, job.options["overwrite"]):
        # The answers of weeks must not go for a file with a wrong column.
        progress.stage(f"checking the {job.words.inputs}")
        job.check_inputs(model, spec, usable_cores())
        refuse_changes(stamps, job.stamps())
    # Before anything is written: another run in the directory must stay whole.
    job.directory.claim(spec, job.options["overwrite"], alone)
    with io_errors_for(job.directory.path):
        discard_damaged(job.directory)
        if not job.directory.network.exists():
            job.keep_model(model)
    return spec


@short_gil_switches()
def ingest_inputs(
    job: Workload,
    progress: Progress,
    came: Callable[[int], None] = lambda parts: None,
    stamps: Stamps | None = None,
) -> Ingested:
    """Encode the inputs, one file a partition; existing files are kept.

    came: called with the number of partitions so far.
    stamps: of the files of the inputs when their digest was made, None for those of now.
    Raises EvidenceError for files that have changed since, and removes what is encoded of them.
    """
    directory = job.directory
    if job.growth is not None and isinstance(directory, IncrementDirectory):
        there = read_manifest(directory) if _has_manifest(directory) else None
        number = len(there.increments) if there else 0
        before = (there.inputs, there.columns, there.root) if there else ((), None, None)
        return ingest(directory, job.growth, *before, number + 1, progress)
    known = directory.read_ingested()
    # A dataset may have been moved.
    if known is not None and known.dataset is None:
        return known
    progress.stage(f"reading the {job.words.inputs}")
    if (elsewhere := job.encoded_elsewhere()) is not None:
        with io_errors_for(directory.path):
            write_json(directory.ingested, elsewhere.to_record())
        return elsewhere
    rows = 0
    checksums: dict[str, Checksum] = {}
    threads = usable_cores()
    stamps = job.stamps() if stamps is None else stamps
    with _unchanged(directory, stamps):
        numbered = enumerate(_with_rows(_parts_of_files(job, stamps, threads)))
        for written in ahead(partial(_written, directory), numbered, threads, lambda part: part[1].bytes, INPUTS_AHEAD):
            name, count, checksum = written
            rows += count
            checksums[name] = checksum
            progress.advance(count)
            came(len(checksums))
    counts = Ingested(rows, len(checksums))
    directory.check_there()
    directory.sync_names(map(directory.evidence_part, range(counts.partitions)))
    write_checksums(directory, checksums)
    # Last: the mark that all partitions are there.
    write_json(directory.ingested, counts.to_record())
    return counts


def _has_manifest(directory: Directory[Any]) -> bool:
    """Return True if there is a manifest; "no" is asked twice: only it knows the inputs that are there no more."""
    name = directory.manifest.name
    return directory.manifest.exists() or any(path.name == name for path in directory.path.glob(name))


@contextmanager
def _unchanged(directory: Directory[Any], stamps: Stamps) -> Iterator[None]:
    """Context manager: files that change while they are encoded raise EvidenceError, and what is encoded goes."""

    def check() -> None:
        try:
            refuse_changes(stamps, {path: stamp_of(path) for path in stamps})
        except EvidenceError:
            # When the files are as before, a call would go on with partitions that are not of them.
            directory.forget()
            raise

    try:
        yield
    except EvidenceError:
        # Half of a file may look damaged.
        check()
        raise
    check()


def _parts_of_files(job: Workload, stamps: Stamps, threads: int) -> Iterator[InputPart]:
    """Yield the partitions of the inputs; raises EvidenceError for other files than those with the `stamps`."""
    # The model of the directory, not of the job: an earlier call may have begun with it.
    spec = job.directory.read_spec()
    for number, part in enumerate(job.input_parts(job.kept_model(spec), spec, threads)):
        # All files are open with the first partition: those that come later are not read.
        if not number:
            refuse_changes(stamps, job.stamps())
            if stamps and part.files:
                # Of a listing of their own: rows of a file that it lacks would be left out.
                refuse_changes(stamps, {path: stamps.get(path, NO_STAMP) for path in part.files})
        yield part


def _with_rows(parts: Iterator[InputPart]) -> Iterator[InputPart]:
    """Yield the partitions with rows; of inputs without any, one without rows: its answers have the columns."""
    for number, part in enumerate(parts):
        if part.rows or not number:
            yield part


def _written(directory: Directory[Any], numbered: tuple[int, InputPart]) -> tuple[str, int, Checksum]:
    """Write a partition unless it is there; return the name of its file, its rows and its checksum."""
    number, part = numbered
    path = directory.evidence_part(number)
    # Written by an interrupted call: equal specs give equal partitions.
    with io_errors_for(path):
        is_there = path.exists()
    if is_there:
        return path.name, part.rows, checksum_of(path)
    directory.make_folder_of(path)
    return path.name, part.rows, part.write(path)


def _all(partition: int) -> bool:
    return True


def plan(job: Workload, resources: Resources, progress: Progress, ours: Callable[[int], bool] = _all) -> RunEstimate:
    """Return the estimate of the remaining partitions that are `ours`; raises BudgetError if they do not fit."""
    pending = [i for i in job.directory.unanswered(job.directory.read_spec()) if ours(i)]
    return job.estimate(resources, pending, progress) if pending else RunEstimate()


def part_rows(job: Workload, resources: Resources, estimate: RunEstimate) -> int:
    """Return how many rows the parts of a run are to have: fewer than they have where their work is too long.

    estimate: of all partitions.
    """
    spec: AnySpec = job.directory.read_spec()
    # Parts of a run that has some stay as they are, and so do those that somebody wants.
    if job.has_part_size or job.directory.has_answers():
        return spec.partition_rows
    placed = place(estimate, Machine.of(resources), job.directory.counts().partitions)
    # Rows in chunks that go to workers or GPUs one by one are enough for all of them.
    return job.part_rows(resources.with_compute(device=placed.device), placed.seconds, placed.abreast)


def cut(job: Workload, rows: int, progress: Progress, stamps: Stamps) -> None:
    """Encode the inputs once more if parts are to have fewer rows; stamps: of the files of the inputs, as before.

    They are read in a fraction of the time that the rows take: only work that is too long is cut.
    """
    directory = job.directory
    spec = directory.read_spec()
    if rows >= spec.partition_rows or rows >= directory.counts().rows:
        return
    with io_errors_for(directory.path):
        # Evidence first: what is encoded must not pass for parts of another size, wherever this ends.
        directory.forget()
        write_json(directory.spec_file, spec_record(replace(spec, partition_rows=rows)))
    ingest_inputs(job, progress, stamps=stamps)


@short_gil_switches()
def propagate(
    job: Workload,
    resources: Resources,
    estimate: RunEstimate,
    progress: Progress,
    ours: Callable[[int], bool] = _all,
    retries: int = 0,
) -> RunStats:
    """Answer all partitions without a part.

    job: its inputs are encoded.
    resources: of the user.
    estimate: decides which of them are used.
    progress: counts rows of finished parts.
    ours: whether a partition is to be answered by this process.
    retries: further attempts at parts that failed.
    """
    directory, counts = job.directory, job.directory.counts()
    numbers = list(filter(ours, range(counts.partitions)))
    pending = [i for i in directory.unanswered(directory.read_spec()) if ours(i)]
    if pending and job.growth is None:
        # A manifest of an earlier call would list parts that were deleted since.
        with io_errors_for(directory.manifest):
            directory.manifest.unlink(missing_ok=True)
    rows = counts.rows if len(numbers) == counts.partitions else job.rows_in(numbers)
    progress.stage(job.words.work, rows, rows - job.rows_in(pending))
    placed = place(estimate, Machine.of(resources), len(pending))
    for warning in placed.warnings:
        logger.warning(warning)
    total, made = StageTimings(), []
    left = pending
    with shows_work(progress):
        for attempts_left in reversed(range(retries + 1)):
            try:
                for part, stages in _answered(job, resources, placed, left):
                    progress.advance(part.rows)
                    progress.part(part.file, stages.reading + stages.propagating + stages.writing)
                    total += stages
                    made.append(part)
                break
            except Exception as error:
                if not attempts_left or isinstance(error, (InputError, BudgetError, TimeoutError)):
                    raise
                left = _left(job, left, made, progress)
                logger.warning("a part failed (%s): it is tried again alone, those that are there stay", error)
    of_worker = largest_worker() if placed.workers > 1 else 0
    why = (placed.reason, estimate.choices) if made else ("", ())
    return RunStats(len(numbers) - len(pending), total.rounded(), tuple(made), of_worker, *why)


def _left(job: Workload, pending: Sequence[int], made: Sequence[Part], progress: Progress) -> list[int]:
    """Return the partitions that a failed attempt left; those that it made and did not yield are told to `progress`."""
    directory, told = job.directory, {part.file for part in made}
    spec = directory.read_spec()
    left, paths = set(directory.unanswered(spec)), directory.expected_parts(spec)
    for part in pending:
        if part not in left and (name := directory.name_of(paths[part])) not in told:
            progress.advance(job.rows_in([part]))
            progress.part(name, 0.0)
    return [part for part in pending if part in left]


def _answered(
    job: Workload, resources: Resources, placed: Placement, pending: Sequence[int]
) -> Iterator[tuple[Part, StageTimings]]:
    """Yield the results of partitions, which are answered where they are placed; resources: as of `propagate`."""
    directory, workers = job.directory, placed.workers
    resources = replace(resources, workers=workers).with_compute(device=placed.device)
    threads, compute = threads_for(resources, workers), resources.compute
    if placed.spread:
        # This process answers the other rows; it is no worker of the scheduler.
        here = replace(compute, device="cpu", threads=threads_for(replace(resources, scheduler=None), 1))
    else:
        disk = compute.spill_bytes
        if workers > 1:
            disk = (allowed_disk(spill_folder(compute.spill_dir)) if disk is None else disk) // workers
        here = replace(compute, threads=threads, spill_bytes=disk)
    spec = directory.read_spec()
    counts = directory.expected(spec)
    tasks = [job.task(directory, i, spec, counts, here) for i in pending]
    if placed.spread and tasks:
        return propagate_over(tasks, resources, threads)
    return distribute(propagate_partition, tasks, resources, propagate_here)


def finalise(job: Workload, work: RunStats, seconds: float, progress: Progress) -> Manifest:
    """Return the manifest of a complete run, written unless it exists, and make what is asked for beside the answers.

    job: all its parts should exist.
    work: statistics of this call.
    seconds: of this call until now.
    progress: shows the stages.
    Raises RunError with all missing parts; at its end EvidenceError for broken inputs of an increment, and
    ThresholdError for thresholds that are crossed.
    """
    directory = job.directory
    with io_errors_for(directory.path):
        manifest = _finished(directory, work, seconds, progress)
    with _broken_told(directory), io_errors_for(directory.path):
        job.export([directory.path / part.file for part in manifest.parts], progress)
        job.closing.write_rejects(manifest, progress)
        job.closing.judge(manifest, progress)
    return manifest


def _finished(directory: Directory[Any], work: RunStats, seconds: float, progress: Progress) -> Manifest:
    """Return the manifest of a complete run, written unless it exists; arguments as of `finalise`."""
    if isinstance(directory, IncrementDirectory):
        return _commit(directory, work, seconds, progress)
    if directory.manifest.exists():
        # The file stays as it is; only the caller sees that this call found everything done.
        return replace(
            read_manifest(directory),
            reused_parts=work.reused,
            seconds=round(seconds, 3),
            stages=work.stages,
            peak_bytes=(peak_memory(), work.worker_bytes),
        )
    return write_manifest(directory, work, seconds, progress)


@contextmanager
def _broken_told(directory: Directory[Any]) -> Iterator[None]:
    """Context manager: at its end broken inputs raise EvidenceError, which says as well what the body has raised."""
    broken = broken_inputs(directory.pending) if isinstance(directory, IncrementDirectory) else None
    try:
        yield
    except JunctorError as error:
        if broken is not None:
            raise EvidenceError(f"{broken}; and {error}") from error
        raise
    if broken is not None:
        raise EvidenceError(broken)


def _commit(directory: IncrementDirectory, work: RunStats, seconds: float, progress: Progress) -> Manifest:
    """Return the manifest after an increment, written unless nothing is new.

    Raises EvidenceError where there is none, because all inputs so far are broken.
    """
    pending, spec = directory.encoded, directory.read_spec()
    there = read_manifest(directory) if directory.manifest.exists() else None
    done = 0 if there is None else len(there.increments)
    if done + 1 < pending.number:
        # It would be replaced by one without the inputs before, and their answers would go.
        raise RunError(f"{directory.manifest}: no manifest of the increments before: run the same command again")
    if not pending.is_empty and done < pending.number:
        progress.stage("committing")
        there = _written_increment(directory, there, work, seconds)
    elif there is not None and done < pending.number:
        seconds, stages = round(seconds, 3), work.stages
        there = replace(there, increment=None, reused_parts=len(there.parts), seconds=seconds, stages=stages)
    with _leftovers_told():
        # After the commit: whoever reads the manifest does not miss them.
        if there is not None and not (pending.is_empty and pending.is_clean):
            directory.sweep(spec, there.parts)
        else:
            directory.forget()
    if there is None and (broken := broken_inputs(pending)) is not None:
        raise EvidenceError(broken)
    assert there is not None
    return there


@contextmanager
def _leftovers_told() -> Iterator[None]:
    """Context manager: what may not be removed in the body is told, and stays: no answer depends on it."""
    try:
        yield
    except RunError as error:
        denied = error.__cause__
        if not isinstance(denied, PermissionError):
            raise
        logger.warning(
            "%s: left there, because the right to delete is missing (%s); no answer depends on it, and the next run "
            "that has this right removes all that was left",
            denied.filename,
            denied.strerror,
        )


def _written_increment(
    directory: IncrementDirectory, before: Manifest | None, work: RunStats, seconds: float
) -> Manifest:
    pending, spec = directory.pending, directory.read_spec()
    fresh, known = _parts_of(directory, spec, work), before.inputs if before else ()
    inputs = merge(pending, known, fresh)
    its_parts = {part.file: part for part in (*(before.parts if before else ()), *fresh)}
    parts = tuple(its_parts[file] for each in inputs for file in each.parts)
    work = replace(work, reused=len(parts) - len(fresh) + work.reused)
    manifest = _manifest(directory, spec, parts, work, seconds)
    increment = increment_of(pending, fresh, spec.junctor_version, manifest.seconds, manifest.finished_at)
    increments = (*(before.increments if before else ()), increment)
    manifest = replace(manifest, increment=pending.number, inputs=inputs, increments=increments)
    return _kept(directory, replace(manifest, columns=pending.columns, root=pending.root))


def write_manifest(
    directory: Directory[Any],
    work: RunStats,
    seconds: float,
    progress: Progress,
    check: Callable[[Manifest], None] = lambda _: None,
) -> Manifest:
    """Write the manifest of a complete run and return it.

    progress: shows the stages.
    check: told of it before; what it raises leaves it unwritten.
    Other arguments and errors as of `finalise`.
    """
    spec = directory.read_spec()
    progress.stage("verifying the parts")
    parts = _parts_of(directory, spec, work)
    progress.stage("writing the manifest")
    manifest = _manifest(directory, spec, parts, work, seconds)
    check(manifest)
    return _kept(directory, manifest)


def _manifest(
    directory: Directory[Any], spec: AnySpec, parts: tuple[Part, ...], work: RunStats, seconds: float
) -> Manifest:
    rows, statuses = sum(part.rows for part in parts), total_of(part.statuses for part in parts)
    done = work.reused, round(seconds, 3), work.stages, _now(), (peak_memory(), work.worker_bytes)
    manifest = Manifest(spec, rows, statuses, parts, *done, _small_files(directory))
    observed = observed_targets(directory, spec, parts)
    return replace(manifest, observed_targets=observed, placement=work.placement, choices=work.choices)


def _kept(directory: Directory[Any], manifest: Manifest) -> Manifest:
    check_lock(directory.path)
    write_json(directory.manifest, {"format_version": FORMAT_VERSION, **manifest.to_record()})
    return manifest


def observed_targets(directory: Directory[Any], spec: AnySpec, parts: Sequence[Part]) -> dict[str, int]:
    """Return the variables that a query names -> valid rows that observe them, without those of no rows.

    directory: of the run.
    spec: of it.
    parts: whose rows are meant; those without statistics tell none.
    """
    if not isinstance(spec, RunSpec) or not (spec.targets or spec.probabilities or spec.expected):
        return {}
    from junctor.runs.outcome import statistics_in

    names = repeating_names(network_for(directory.network, spec.network_digest), spec.as_query())
    columns = statistics_in(directory, parts).columns
    observed = {name: sum(columns[name].states) for name in names if name in columns}
    return {name: rows for name, rows in observed.items() if rows}


def _parts_of(directory: Directory[Any], spec: AnySpec, work: RunStats) -> tuple[Part, ...]:
    """Return the parts of all partitions, whose names are synced; raises RunError with all that are missing."""
    directory.check_there()
    # Of workers that were killed: others made their parts.
    directory.clear_unfinished()
    # Parts may have been deleted since, or written to another disk.
    missing = directory.unanswered(spec)
    if missing:
        raise RunError(f"{directory.path}: missing parts {missing}: run the same command again")
    paths = directory.expected_parts(spec)
    directory.sync_names([*paths, *map(directory.statistics, paths)])
    made = {part.file: part for part in work.made}
    # A store takes its time for each, and answers many at once.
    threads = STORE_READS if isinstance(directory.path, RemotePath) else usable_cores()
    return tuple(ahead(partial(_read_again, directory, spec, made), paths, threads))


def _read_again(directory: Directory[Any], spec: AnySpec, made: Mapping[str, Part], path: AnyPath) -> Part:
    """Return the part of this run at a path; raises RunError for one of another run.

    made: parts of this call, whose checksums are known.
    """
    part = made.get(directory.name_of(path))
    if part is not None:
        # Since it was written a worker of another run may have written its own. To read what a part of a wide network
        # says of itself takes as long as its answers.
        if not _is_as_written(part, (directory.statistics(path), path)):
            read_part(directory, path, spec)
        return part
    statistics = directory.statistics(path)
    counted = checksum_of(statistics) if statistics.exists() else None
    return replace(read_part(directory, path, spec, checksum_of(path)), statistics=counted)


def _is_as_written(part: Part, paths: Sequence[AnyPath]) -> bool:
    """Return True if the files of a part are those that this call wrote, False where that cannot be told."""
    with suppress(JunctorError):
        return bool(part.stamps) and part.stamps == tuple(map(stamp_of, paths))
    return False


def _small_files(directory: Directory[Any]) -> dict[str, Checksum]:
    return {directory.name_of(path): checksum_of(path) for path in directory.small_files() if path.exists()}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
