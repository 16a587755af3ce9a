"""Runs of sequences through a hidden Markov model, in the frame of `junctor.runs.run`.

Main class: SequenceJob, called by the command line and by the flow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from junctor.cost.figures import shipped_figures
from junctor.hmm.engine import SequenceEngine, SequenceKind
from junctor.hmm.model import HiddenMarkovModel
from junctor.model.answers import STATUS_NAMES
from junctor.model.errors import BudgetError, RunError
from junctor.model.option_table import SequenceJobOptions, takes_keywords
from junctor.model.options import ComputeOptions, Gaps, OutputFormat
from junctor.model.query import Precision
from junctor.runs.part_sizes import shorter_part
from junctor.runs.partition import Answered, PartitionTask
from junctor.runs.placement import RunEstimate
from junctor.runs.storage import FORMAT_VERSION, OPTIONAL, Directory
from junctor.runs.workload import InputPart, Words, Workload
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.files import encoded
from junctor.runtime.footers import chunks_of
from junctor.runtime.progress import Progress
from junctor.runtime.records import typed
from junctor.runtime.remote import AnyPath, location, parquet_source

if TYPE_CHECKING:
    import pyarrow as pa

    from junctor.hmm.sequences import EncodedSequences
    from junctor.out_of_core.cluster.workers import WorkerPool

# Most sequences and most bytes of answers of a partition, unless it is one longer sequence.
PARTITION_ROWS = 65_536
PARTITION_BYTES = 256 * 2**20
# Largest share of the memory for answers that are written while the next partition is computed: beyond that, rows of
# the trellis would go to the disk, which takes longer than to wait.
WAITING_SHARE = 1 / 4

logger = logging.getLogger("junctor")


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """All that the answers of a run depend on. Two runs with equal specs write equal parts."""

    # Names and order of the fields are those of run.json.
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
    step: str | None = field(default=None, metadata=OPTIONAL)
    gaps: Gaps = field(default="invalid", metadata=OPTIONAL)

    @property
    def folder(self) -> str:
        """Name of the folder of the answers."""
        return self.query

    @property
    def output_format(self) -> OutputFormat:
        """Format of the answers."""
        return "parquet"


class SequenceDirectory(Directory[SequenceSpec]):
    """The files of a run."""

    model_file, inputs = "model.parquet", "sequences"

    @staticmethod
    def parse(record: dict[str, Any]) -> SequenceSpec:
        """Return the spec of a record."""
        return typed(SequenceSpec, record)


class SequenceTask(PartitionTask[SequenceSpec]):
    """Sequences to answer."""

    __slots__ = ()
    advice = "--memory or --partition-rows"

    @property
    def home(self) -> SequenceDirectory:
        """The run directory."""
        return SequenceDirectory(self.directory)

    def read(self) -> EncodedSequences:
        """Return the encoded sequences."""
        from junctor.hmm.results import read_sequences

        return read_sequences(self.home.evidence_part(self.part))

    def answer_bytes(self) -> int:
        """Return the bytes of the answers to a whole partition."""
        # At most, unless it is one longer sequence.
        return PARTITION_BYTES

    def answer(
        self,
        inputs: EncodedSequences,
        options: ComputeOptions,
        reserved: int,
        workers: WorkerPool | None,
        explain: bool,
    ) -> Answered:
        """Return the answers, whose reasons need no search."""
        from junctor.hmm.results import answers_table
        from junctor.runs.statistics import RowKeys, count_outcomes

        assert options.memory is not None
        # The caller then waits for the writers and tries again with all of the memory.
        if reserved > WAITING_SHARE * options.memory:
            raise BudgetError(f"{self}: little memory beside answers that are written")
        engine = engine_for(self.home.network, self.spec, replace(options, memory=options.memory - reserved))
        answers, keys = engine.answer(inputs.batch), RowKeys(inputs.case_ids, inputs.first_row)
        counted = partial(count_outcomes, answers.status, answers.reasons, answers.log_value, keys, STATUS_NAMES)
        return Answered(partial(answers_table, answers, inputs.case_ids, engine.model), counted, len(answers.status))

    def write(self, answers: pa.Table, path: Path) -> None:
        """Write the table of answers."""
        from junctor.hmm.results import write_table

        write_table(answers, path)


class SequenceJob(Workload):
    """A run of sequences.

    model, sequences, output: files, folders or URLs, as they were given; `output` is the run directory.
    query: paths or posteriors.
    options: of the table.
    """

    words = Words("model", "sequences", "decoding")
    flow_name = "junctor-decode-sequences"
    task_class = SequenceTask

    options: SequenceJobOptions

    @takes_keywords()
    def __init__(
        self,
        model: str,
        sequences: str,
        output: str,
        query: SequenceKind = "viterbi",
        **options: Unpack[SequenceJobOptions],
    ) -> None:
        self.model, self.sequences, self.output, self.query, self.options = model, sequences, output, query, options

    @property
    def directory(self) -> SequenceDirectory:
        """The run directory."""
        return SequenceDirectory(location(self.output).absolute())

    @property
    def model_source(self) -> str:
        """The model, as it was given."""
        return self.model

    @property
    def inputs(self) -> str:
        """The sequences, as they were given."""
        return self.sequences

    def read_model(self) -> HiddenMarkovModel:
        """Return the model; raises InputError."""
        from junctor.hmm.formats import read_model

        self.refuse_checks(lambda: ())
        return read_model(self.model, self.options["model_format"])

    @property
    def judged(self) -> tuple[Sequence[str], str]:
        """Statuses of the answers, and the name of their column of logarithms."""
        return STATUS_NAMES, "log_probability" if self.query == "viterbi" else "log_likelihood"

    def spec_of(self, model: HiddenMarkovModel) -> SequenceSpec:
        """Return all that the answers depend on."""
        from junctor.evidence.read import digest_of

        told = self.told | {
            "model_digest": model.digest,
            "sequences_digest": digest_of(self.sequences),
            "partition_rows": self.options["partition_rows"] or PARTITION_ROWS,
            "junctor_version": version("junctor"),
        }
        return SequenceSpec(**{each.name: told[each.name] for each in fields(SequenceSpec) if each.name in told})

    def keep_model(self, model: HiddenMarkovModel) -> None:
        """Write the model to the run directory."""
        from junctor.hmm.formats import write_model

        write_model(model, self.directory.network)

    def kept_model(self, spec: SequenceSpec) -> HiddenMarkovModel:
        """Return the model of the run directory."""
        return model_for(self.directory.network, spec.model_digest)

    def input_parts(self, model: HiddenMarkovModel, spec: SequenceSpec, threads: int) -> Iterator[InputPart]:
        """Yield the sequences, encoded by one thread, in partitions; at the end one without any."""
        from junctor.hmm.columns import SequenceColumns
        from junctor.hmm.results import write_sequences
        from junctor.hmm.sequences import encode_sequences, open_sequences

        source = open_sequences(
            self.sequences,
            model,
            SequenceColumns(spec.column, spec.case_id, spec.step, gaps=spec.gaps),
            strict=spec.strict,
            format=self.options["sequences_format"],
        )
        # A partition without rows, for runs without any: readers of the answers find their columns.
        nothing = replace(encode_sequences([], model), case_ids=source.no_case_ids)
        files = tuple(table.path for table in source.tables)
        partitions = source.partitions(spec.partition_rows, _partition_steps(model, spec.query))
        for partition in chain(partitions, [nothing]):
            yield InputPart(len(partition.batch), PARTITION_BYTES, partial(write_sequences, partition), files)

    def estimate(self, resources: Resources, pending: Sequence[int], progress: Progress) -> RunEstimate:
        """Return the estimate of the remaining partitions; workers of a scheduler make their own."""
        if (self.query, self.options["precision"], resources.compute.device) == ("posteriors", "log", "gpu"):
            logger.warning("posteriors in logarithms stay on the CPU")
        if resources.scheduler is not None:
            return RunEstimate()
        model = self.kept_model(self.directory.read_spec())
        entries = model.entries.size
        # Metadata alone tells the steps; no sequence is read.
        total = sum(_steps_of(self.directory.evidence_part(i), model.states) for i in pending)
        # The matrix in both forms of the kernels, 8 bytes a number; rows go in blocks if they have to.
        return RunEstimate(2 * 8 * entries, entries * total * shipped_figures().walks.transition)

    def rows_in(self, parts: Sequence[int]) -> int:
        """Return the sequences of some partitions."""
        return sum(_rows_of(self.directory.evidence_part(i)) for i in parts)

    @property
    def has_part_size(self) -> bool:
        """True if a number of sequences was asked for."""
        return self.options["partition_rows"] is not None

    def part_rows(self, resources: Resources, seconds: float, least: int) -> int:
        """Return how many sequences make a part."""
        size, rows = self.directory.read_spec().partition_rows, self.directory.counts().rows
        return shorter_part(min(size, rows), seconds / max(1, rows), least)


def _rows_of(path: AnyPath) -> int:
    """Return the sequences of an encoded partition."""
    from pyarrow import parquet

    with encoded(path, "sequences"), parquet.ParquetFile(parquet_source(path)) as file:
        rows: int = file.metadata.num_rows
        return rows


def _steps_of(path: AnyPath, states: int) -> int:
    """Return the steps of an encoded partition, from the metadata of its columns."""
    from pyarrow import parquet

    with encoded(path, "sequences"), parquet.ParquetFile(parquet_source(path)) as file:
        with path.open("rb") as data:
            values = sum(chunks[1].values for chunks in chunks_of(data))
        return values // states if "likelihoods" in file.schema_arrow.names else values


def _partition_steps(model: HiddenMarkovModel, kind: SequenceKind) -> int:
    # The wider of inputs and answers counts: both are in memory as whole partitions.
    width = np.min_scalar_type(model.states - 1).itemsize if kind == "viterbi" else 8 * model.states
    return max(1, PARTITION_BYTES // max(width, 8 if model.emission is not None else 8 * model.states))


@lru_cache(maxsize=1)
def model_for(path: AnyPath, digest: str) -> HiddenMarkovModel:
    """Return the model of a run, kept for its next partition in this process."""
    from junctor.hmm.formats import read_model

    model = read_model(path)
    if model.digest != digest:
        raise RunError(f"{path} is not the model that this run began with: start afresh with --overwrite")
    return model


@lru_cache(maxsize=1)
def engine_for(path: AnyPath, spec: SequenceSpec, options: ComputeOptions) -> SequenceEngine:
    """Return an engine, kept for the next partition of the same run in this process."""
    return SequenceEngine(model_for(path, spec.model_digest), spec.query, spec.precision, options)
