"""A run of sequences through a hidden Markov model, from files to files: the steps of `junctor.run`, one for one.

ingest_model -> ingest_sequences -> plan -> decode (decode_partition for each) -> finalise
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from junctor.cost.constants import CPU
from junctor.hmm.engine import SequenceEngine, SequenceKind
from junctor.hmm.model import HiddenMarkovModel, SparseMatrix
from junctor.model.errors import BudgetError, RunError
from junctor.model.query import Precision
from junctor.runs import run as steps
from junctor.runs.partition import Part, StageTimings, read_part, refuse_strange_worker
from junctor.runs.storage import FORMAT_VERSION, Directory, Ingested
from junctor.runtime.dask_cluster import Resources, distribute, threads_for, threads_here
from junctor.runtime.files import aside, explained, write_json
from junctor.runtime.progress import Progress, Silence

# A partition has at most this many sequences, and this many bytes of answers, or one longer sequence.
PARTITION_ROWS = 65_536
PARTITION_BYTES = 256 * 2**20

logger = logging.getLogger("junctor")


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """All that the answers of a run depend on. Two runs with equal specs write equal parts."""

    model_digest: str
    sequences_digest: str
    query: SequenceKind
    precision: Precision
    partition_rows: int
    column: str | None
    case_id: str | None
    strict: bool
    junctor_version: str
    format_version: int = FORMAT_VERSION


class SequenceDirectory(Directory[SequenceSpec]):
    """The files of a run."""

    model_file, inputs = "model.parquet", "sequences"

    @staticmethod
    def parse(record: dict[str, Any]) -> SequenceSpec:
        """Return the spec that a record is."""
        return SequenceSpec(**record)


@dataclass(frozen=True, slots=True)
class SequenceJob:
    """What the user asks of a run; paths as they were given.

    partition_rows: sequences in one part at the most. column, case_id: of the table of sequences. overwrite: replace a
    different run that lies in `output`. model_format, sequences_format: where names do not say it.
    """

    model: str
    sequences: str
    output: str
    query: SequenceKind = "viterbi"
    precision: Precision = "double"
    partition_rows: int | None = None
    column: str | None = None
    case_id: str | None = None
    strict: bool = False
    overwrite: bool = False
    model_format: str | None = None
    sequences_format: str | None = None

    @property
    def directory(self) -> SequenceDirectory:
        """Where the run lies."""
        return SequenceDirectory(Path(self.output).absolute())


@dataclass(frozen=True, slots=True)
class SequenceTask:
    """One partition to answer: all that a worker has to be told. Others as for `SequenceEngine`."""

    directory: str
    part: int
    spec: SequenceSpec
    threads: int | None
    device: str
    device_memory: int | None
    spill: str | None
    disk: int | None

    def __str__(self) -> str:
        return f"partition {self.part}"


def run(job: SequenceJob, resources: Resources | None = None, progress: Progress | None = None) -> steps.Manifest:
    """Answer a whole file of sequences; goes on where an earlier call of the same job stopped.

    Raises InputError for what is wrong with model or sequences, BudgetError where something does not fit, and RunError
    for the directory: another run in it, no space, in use.
    """
    progress = progress or Silence()
    resources = resources or Resources()
    started = time.monotonic()
    steps.check_resources(resources)
    with job.directory.locked():
        ingest_model(job, progress)
        ingest_sequences(job, progress)
        outlook = plan(job, resources)
        work = decode(job, resources, outlook, progress)
        return finalise(job, work, time.monotonic() - started, progress)


def ingest_model(job: SequenceJob, progress: Progress) -> SequenceSpec:
    """Read and check the model, claim the run directory for this job, and put the model there as Parquet."""
    from junctor.evidence.read import digest_of
    from junctor.hmm.formats import read_model, write_model

    progress.stage("reading the model")
    model = read_model(job.model, job.model_format)
    spec = SequenceSpec(
        model_digest=model.digest,
        sequences_digest=digest_of(job.sequences),
        query=job.query,
        precision=job.precision,
        partition_rows=job.partition_rows or PARTITION_ROWS,
        column=job.column,
        case_id=job.case_id,
        strict=job.strict,
        junctor_version=version("junctor"),
    )
    job.directory.claim(spec, job.overwrite)
    if not job.directory.network.exists():
        write_model(model, job.directory.network)
    return spec


def ingest_sequences(job: SequenceJob, progress: Progress) -> Ingested:
    """Encode the sequences, one file a partition; files that are there already are kept."""
    from junctor.hmm.results import write_sequences
    from junctor.hmm.sequences import encode_sequences, open_sequences

    directory = job.directory
    known = directory.read_ingested()
    if known is not None:
        return known
    spec = directory.read_spec()
    progress.stage("reading the sequences")
    model = _model(str(directory.network), spec.model_digest)
    source = open_sequences(
        job.sequences,
        model,
        column=spec.column,
        case_id=spec.case_id,
        strict=spec.strict,
        format=job.sequences_format,
    )
    rows = partitions = 0
    # A file without rows is one partition without rows: readers of the answers find their columns.
    nothing = [replace(encode_sequences([], model), case_ids=source.no_case_ids)]
    for partition in chain(source.partitions(spec.partition_rows, _partition_steps(model, spec.query)), nothing):
        if not len(partition.batch) and partitions:
            continue
        path = directory.evidence_part(partitions)
        if not path.exists():
            write_sequences(partition, path)
        rows, partitions = rows + len(partition.batch), partitions + 1
        progress.advance(len(partition.batch))
    done = Ingested(rows, partitions)
    write_json(directory.ingested, asdict(done))
    return done


def plan(job: SequenceJob, resources: Resources) -> steps.RunEstimate:
    """Return what the partitions that are left will take; a scheduler's workers see for themselves."""
    directory, spec = job.directory, job.directory.read_spec()
    pending = steps.unanswered(directory, spec.query, steps.ingested(directory).partitions)
    if not pending or resources.scheduler is not None:
        return steps.RunEstimate()
    model = _model(str(directory.network), spec.model_digest)
    transition = model.transition
    entries = len(transition.values) if isinstance(transition, SparseMatrix) else transition.size
    total = sum(_steps_of(directory.evidence_part(i), model.states) for i in pending)
    # The matrix in both forms that kernels read; rows go in blocks where they have to.
    return steps.RunEstimate(2 * 8 * entries, entries * total / CPU.transition_rate)


def decode(job: SequenceJob, resources: Resources, outlook: steps.RunEstimate, progress: Progress) -> steps.RunStats:
    """Answer all partitions that have no part yet."""
    directory, spec = job.directory, job.directory.read_spec()
    there = steps.ingested(directory)
    pending = steps.unanswered(directory, spec.query, there.partitions)
    if pending:
        # It would list parts that are gone.
        with explained(directory.manifest):
            directory.manifest.unlink(missing_ok=True)
    rows = {i: read_rows(directory.evidence_part(i)) for i in pending}
    progress.stage("decoding", there.rows, there.rows - sum(rows.values()))
    if (spec.query, spec.precision, resources.device) == ("posteriors", "log", "gpu"):
        logger.warning("posteriors in logarithms stay on the CPU")
    resources = replace(resources, device=steps.device_for(resources, outlook))
    resources = replace(resources, workers=steps.workers_for(resources, outlook))
    workers = min(resources.workers or 1, len(pending))
    limits = (resources.device_memory, resources.spill, steps.disk_for(resources, workers))
    threads = threads_for(resources, workers)
    tasks = [SequenceTask(str(directory.path), i, spec, threads, resources.device, *limits) for i in pending]
    total = StageTimings()
    for part, stages in distribute(decode_partition, tasks, resources):
        progress.advance(part.rows)
        total += stages
    return steps.RunStats(there.partitions - len(pending), total.rounded())


def decode_partition(task: SequenceTask, memory: int) -> tuple[Part, StageTimings]:
    """Answer one partition with at most `memory` bytes for rows and posteriors; the part is whole or not there.

    Raises BudgetError where something does not fit, RunError where files cannot be read or written.
    """
    from junctor.hmm.results import answers_table, read_sequences, write_table

    directory, stages, spec = SequenceDirectory(Path(task.directory)), StageTimings(), task.spec
    refuse_strange_worker(spec.junctor_version, directory)
    with stages.time("reading"):
        encoded = read_sequences(directory.evidence_part(task.part))
    threads = task.threads or threads_here()
    limits = (task.device_memory, task.spill, task.disk)
    try:
        # Threads of a worker with a GPU share it; they read and write beside each other.
        with _one_at_a_time, stages.time("propagating"):
            engine = _engine(str(directory.network), spec, memory, threads, task.device, *limits)
            answers = engine.answer(encoded.batch)
        table = answers_table(answers, encoded.case_ids, engine.model)
    except MemoryError as error:
        raise BudgetError(f"{task} ran out of memory ({error}): lower --memory or --partition-rows") from error
    with stages.time("writing"):
        with aside(directory.answers_part(spec.query, task.part)) as temporary:
            write_table(table, temporary)
        return read_part(directory, spec.query, task.part), stages


def finalise(job: SequenceJob, work: steps.RunStats, seconds: float, progress: Progress) -> steps.Manifest:
    """Check that all parts are there and write the manifest; raises RunError with all that is missing."""
    directory, spec = job.directory, job.directory.read_spec()
    return steps.finished(directory, spec, spec.query, work, seconds, progress)


def read_rows(path: Path) -> int:
    """Return the sequences of an encoded partition."""
    from pyarrow import parquet

    with explained(path), parquet.ParquetFile(path) as file:
        rows: int = file.metadata.num_rows
        return rows


def _steps_of(path: Path, states: int) -> int:
    """Return the steps of an encoded partition, from what the file says of its columns."""
    from pyarrow import parquet

    with explained(path), parquet.ParquetFile(path) as file:
        columns = [file.metadata.row_group(g).column(1) for g in range(file.metadata.num_row_groups)]
        values: int = sum(column.num_values for column in columns)
        return values // states if "likelihoods" in file.schema_arrow.names else values


def _partition_steps(model: HiddenMarkovModel, kind: SequenceKind) -> int:
    width = np.min_scalar_type(model.states - 1).itemsize if kind == "viterbi" else 8 * model.states
    return max(1, PARTITION_BYTES // max(width, 8 if model.emission is not None else 8 * model.states))


_one_at_a_time = Lock()


@lru_cache(maxsize=1)
def _model(path: str, digest: str) -> HiddenMarkovModel:
    from junctor.hmm.formats import read_model

    model = read_model(path)
    if model.digest != digest:
        raise RunError(f"{path} is not the model that this run began with: start afresh with --overwrite")
    return model


@lru_cache(maxsize=1)
def _engine(
    path: str,
    spec: SequenceSpec,
    memory: int,
    threads: int,
    device: Any,
    device_memory: int | None,
    spill: str | None,
    disk: int | None,
) -> SequenceEngine:
    """Return an engine, kept for the next partition of the same run in this process."""
    model = _model(path, spec.model_digest)
    return SequenceEngine(model, spec.query, spec.precision, memory, threads, device, device_memory, spill, disk)
