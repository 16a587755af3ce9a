"""Workloads of runs: rows of evidence through a network (`Job`), or sequences through a model (`junctor.hmm.run`).

Main class: Workload, the difference between the two; `junctor.runs.run` is the frame.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack

from junctor.evidence.encoded_source import EncodedSource
from junctor.evidence.files import Places, Stamps, checked_separator, input_files, lists, stamp_of
from junctor.evidence.pipes import STDIN
from junctor.model.errors import EvidenceError, InputError
from junctor.model.option_table import JobOptions, ReadingOptions, WorkloadOptions, options_for, takes_keywords
from junctor.model.options import AnswerFiles, ComputeOptions
from junctor.model.query import Query, sampler_of, sampling_record
from junctor.planning.budget import parse_bytes
from junctor.runs.closing import Closing, refuse_bytes
from junctor.runs.increments import IncrementDirectory, IncrementTask
from junctor.runs.new_inputs import Growth, open_inputs
from junctor.runs.partition import PartitionTask, PartTask, network_for
from junctor.runs.placement import RunEstimate
from junctor.runs.storage import INPUTS, KINDS, AnySpec, Directory, Ingested, RunDirectory, RunSpec
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.files import Checksum, write_json, written_atomically
from junctor.runtime.machine import has_own_measurements
from junctor.runtime.progress import Progress
from junctor.runtime.remote import AnyPath, RemotePath, location, shown

if TYPE_CHECKING:
    from junctor.model.network import Network


# Of the files in an output.
ENDINGS = (".parquet", ".arrow", ".json", ".html")


def refuse_places(places: Iterable[str], recorded: bool) -> None:
    """Raise InputError for URLs that cannot be used; arguments as of `Workload.check_places`."""
    for path in map(location, places):
        if recorded and isinstance(path, RemotePath) and path.has_credentials:
            raise InputError(
                f"{path}: the URL has credentials, and Prefect's server would keep them: leave them to the "
                "environment or a profile, or use --no-prefect"
            )


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
    write: writes them to a file that is whole as soon as it has its name, and returns its checksum.
    files: all files of the inputs, as they were opened.
    """

    rows: int
    bytes: int
    write: Callable[[AnyPath], Checksum]
    files: tuple[AnyPath, ...] = ()


class Workload(ABC):
    """The user's request, and the difference between runs of rows and of sequences.

    Attributes are the arguments of its class; places are as they were given.
    output: run directory, or its URL.
    options: of the table.
    """

    words: ClassVar[Words]
    flow_name: ClassVar[str]
    task_class: ClassVar[type[PartitionTask[Any]]]
    output: str
    options: WorkloadOptions

    @property
    def told(self) -> dict[str, Any]:
        """Its arguments, by their names."""
        return {name: value for name, value in vars(self).items() if name != "options"} | self.options

    def but(self, **changes: Any) -> Self:
        """Return the same request with other arguments."""
        return type(self)(**self.told | changes)

    @property
    @abstractmethod
    def directory(self) -> Directory[Any]:
        """The run directory."""

    @property
    @abstractmethod
    def inputs(self) -> str:
        """Evidence or sequences, as they were given."""

    @property
    def places(self) -> tuple[str, ...]:
        """Where they are."""
        return (self.inputs,)

    @property
    @abstractmethod
    def model_source(self) -> str:
        """The network or model, as it was given."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Model, inputs and what else is read, as they were given."""
        return self.model_source, self.inputs

    @property
    def endings(self) -> tuple[str, ...]:
        """Endings of the files in the output."""
        return ENDINGS

    @property
    def title(self) -> str:
        """The inputs and the model, in Markdown."""
        return f"`{shown(self.inputs)}` on `{shown(self.model_source)}`"

    def check_places(self, recorded: bool = False) -> None:
        """Raise InputError for URLs that cannot be used, and for places of something else, before any work.

        recorded: whether others keep a record of the places, in which there must be no credentials.
        Raises RunError for places that Arrow cannot write to.
        """
        # One without a name is refused below, with the option that it is of.
        refuse_places(filter(None, (*self.sources, self.output, self.options["rejects"])), recorded)
        refuse_bytes(location(self.output).absolute())
        self.closing.check_places(self.sources)
        output = self.directory.path
        if any(lists(place, output, self.endings, (*INPUTS, *KINDS)) for place in self.places):
            raise InputError(
                f"{output}: what the run writes there would be among the {self.words.inputs} ({shown(self.inputs)}): "
                "name a directory elsewhere with --output"
            )

    @property
    def closing(self) -> Closing:
        """What is asked for at the end of the run."""
        return Closing(self.directory, self.options)

    @property
    def label(self) -> str:
        """The title with the names of files alone, not Markdown."""
        return re.sub(r"`([^`]*)`", lambda match: match[1].rstrip("/").rpartition("/")[2], self.title)

    @property
    def facts(self) -> dict[str, Any]:
        """What was asked for, as far as it is not a default, for JSON."""
        unsaid = inspect.signature(type(self)).parameters
        given = {name: value for name, value in self.told.items() if value != unsaid[name].default}
        return {name: asdict(value) if is_dataclass(value) else value for name, value in given.items()}  # type: ignore[arg-type]

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
    def kept_model(self, spec: Any) -> Any:
        """Return the model of the run directory; spec: of the run."""

    @abstractmethod
    def input_parts(self, model: Any, spec: Any, threads: int) -> Iterator[InputPart]:
        """Yield the inputs, encoded by so many threads, in partitions; at the end one without rows.

        model, spec: of the run.
        """

    def encoded_elsewhere(self) -> Ingested | None:
        """Return the amount of inputs that are encoded already, and stay where they are; None for others."""
        return None

    def check_inputs(self, model: Any, spec: Any, threads: int) -> None:
        """Read the inputs as the run will, and keep nothing; arguments and errors as of `input_parts`."""
        for _ in self.input_parts(model, spec, threads):
            pass

    @abstractmethod
    def estimate(self, resources: Resources, pending: Sequence[int], progress: Progress) -> RunEstimate:
        """Return the estimate of the `pending` partitions; raises BudgetError if they do not fit."""

    @abstractmethod
    def rows_in(self, parts: Sequence[int]) -> int:
        """Return the rows of some partitions."""

    @property
    @abstractmethod
    def has_part_size(self) -> bool:
        """True if rows or bytes of a part were asked for."""

    @abstractmethod
    def part_rows(self, resources: Resources, seconds: float, least: int) -> int:
        """Return how many rows make a part whose work is not too long, those that it has if it is not.

        resources: of the run, with the device that answers.
        seconds: forecast of all rows, 0 where it is not known.
        least: rows at the least.
        """

    def stamps(self) -> Stamps:
        """Return the stamps of the files of the inputs; none of inputs that grow, where each file has its own check."""
        from junctor.evidence.read import stamps_of

        return stamps_of(self.inputs) if self.growth is None else {}

    @property
    def growth(self) -> Growth | None:
        """The inputs if they grow and only what is new is answered; None if all of them are."""
        return None

    def task(
        self, directory: Directory[Any], part: int, spec: Any, counts: Ingested, compute: ComputeOptions
    ) -> PartitionTask[Any]:
        """Return the task of a worker for one partition.

        directory: of the run.
        part: number of the partition.
        spec: of the run.
        counts: that plans are made for.
        compute: options of the worker.
        """
        if isinstance(directory, IncrementDirectory):
            return IncrementTask(directory.path, part, spec, counts, compute, directory.stem_of(part))
        return self.task_class(directory.path, part, spec, counts, compute)

    @property
    def has_engine(self) -> bool:
        """True if an `Engine` answers."""
        return False

    @property
    @abstractmethod
    def judged(self) -> tuple[Sequence[str], str]:
        """Statuses of the answers, and the name of their column of logarithms."""

    def refuse_checks(self, columns: Callable[[], Sequence[str]] | None = None) -> None:
        """Raise InputError for thresholds that are of no use, before any work.

        columns: returns the names of the evidence columns; None before it is read.
        """
        from junctor.runs.thresholds import parse_threshold, refuse_unknown

        refuse_unknown([parse_threshold(text) for text in self.options["fail_if"]], *self.judged, columns)

    def export(self, parts: Sequence[AnyPath], progress: Progress) -> None:  # noqa: B027 - few have one
        """Write the answers in another form as well, if requested."""


# Posteriors of all variables.
ALL = Query()


class Job(Workload):
    """A run of rows of evidence.

    network, evidence, output: files, folders or URLs, as they were given; `output` is the run directory.
    query: for every row.
    options: of the table.
    """

    words = Words("network", "evidence", "propagating")
    flow_name = "junctor-score-batch"
    task_class = PartTask

    options: JobOptions

    @takes_keywords()
    def __init__(
        self,
        network: str,
        evidence: str | tuple[str, ...],
        output: str,
        query: Query = ALL,
        **options: Unpack[JobOptions],
    ) -> None:
        self.network, self.evidence, self.output, self.query, self.options = network, evidence, output, query, options

    @property
    def directory(self) -> RunDirectory:
        """The run directory."""
        return (IncrementDirectory if self.grows else RunDirectory)(location(self.output).absolute())

    @property
    def grows(self) -> bool:
        """True for evidence that grows."""
        return self.options["incremental"]

    @property
    def growth(self) -> Growth | None:
        """The evidence if it grows."""
        return Growth(self.inputs, self.options) if self.grows else None

    @property
    def model_source(self) -> str:
        """The network, as it was given."""
        return self.network

    @property
    def sources(self) -> tuple[str, ...]:
        """Network, evidence and mapping, as they were given."""
        mapping = self.options["mapping"]
        return (self.network, *self.places, *((mapping,) if isinstance(mapping, str) else ()))

    @property
    def inputs(self) -> str:
        """The evidence, as it was given."""
        return " ".join(self.places)

    @property
    def places(self) -> tuple[str, ...]:
        """Where it is."""
        return self.evidence if isinstance(self.evidence, tuple) else (self.evidence,)

    def stamps(self) -> Stamps:
        """Return the stamps of its files; none of evidence that grows, where each file has its own check."""
        from junctor.evidence.read import stamps_of

        return {} if self.grows else stamps_of(self.evidence)

    @property
    def endings(self) -> tuple[str, ...]:
        """Endings of the files in the output."""
        return (*ENDINGS, ".csv") if self.options["csv"] else ENDINGS

    @property
    def files(self) -> AnswerFiles:
        """How the answers are written."""
        told, keep = self.options, tuple(self.options["keep"])
        return AnswerFiles(
            told["output_format"], told["layout"], told["compression"] or self.query.question.compression, keep
        )

    @property
    def part_bytes(self) -> int | None:
        """Bytes of the answers in one part before compression, where they were asked for."""
        size = self.options["part_size"]
        return None if size is None else parse_bytes(str(size))

    def read_model(self) -> Network:
        """Return the network; raises InputError, also if it does not suit the query."""
        from junctor.formats import read_network
        from junctor.model.query import answered_names

        files, told = self.files, self.options
        if None not in (told["part_size"], told["partition_rows"]):
            raise EvidenceError("found both a number of rows and a size of a part, expected one of them")
        if self.grows and len(self.places) > 1:
            raise EvidenceError(
                "found several places of evidence that grows, expected a folder or glob of all its files"
            )
        if self.grows and self.inputs in STDIN:
            raise EvidenceError("found standard input for an incremental run, expected files that stay")
        if self.grows and told["csv"]:
            raise EvidenceError("found a run that is incremental and one CSV file of all answers, which does not grow")
        if (told["backfill"] or told["drop_removed"]) and not self.grows:
            raise EvidenceError(
                "found partitions to answer again, or answers to drop, in a run that is not incremental"
            )
        network = read_network(
            self.network,
            told["network_format"],
            normalize=told["normalize"],
            ignore_decisions=told["ignore_decisions"],
        )
        # Unknown names are refused now, before hours of work.
        answered_names(network, self.query)
        query = self._asked(network)
        if files.keep:
            from junctor.runs.answer_files import refuse_taken_names

            refuse_taken_names(network, query, files)
        if self.query.method == "sampling" and (sampler := sampler_of(network, self.query)) != "wmb":
            from junctor.sampling.tables import refuse

            refuse(network, sampler)
        if told["fail_if"]:
            self.refuse_checks(lambda: self._evidence_columns(network))
        return network

    @property
    def judged(self) -> tuple[Sequence[str], str]:
        """Statuses of the answers, and the name of their column of logarithms."""
        from junctor.runs.results import status_names

        return status_names(self.query), self.query.question.log_column

    @property
    def has_engine(self) -> bool:
        """True for exact answers."""
        return self.query.method == "exact"

    def _evidence_columns(self, network: Network) -> list[str]:
        if not self.grows:
            return self._columns_of(self.evidence, network)
        # Each file has columns of its own; those that cannot be read are named at the end of the run.
        files = input_files(self.inputs, check=False)
        names: dict[str, None] = {}
        are_broken = True
        for path in files.paths:
            with suppress(EvidenceError):
                # Refuses a pipe, which nobody may write to.
                stamp_of(path)
                names.update(dict.fromkeys(self._columns_of(path, network, files.folder)))
                are_broken = False
        return list(network.index) if are_broken else list(names)

    def _asked(self, network: Network) -> Query:
        """Return the query with what the mapping says of it: hidden targets, and numbers that states stand for.

        Raises EvidenceError where no target is named, and where a state stands for no number.
        """
        from junctor.evidence.mapping import hiding, read_mapping

        mapping = read_mapping(self.options["mapping"], network)
        hidden = hiding(mapping, network, self.query)
        query = replace(self.query, hide_targets=hidden is not None and bool(hidden.hidden))
        if not query.expected:
            return query
        # Imported where numbers are asked for: with it come functions of Arrow.
        from junctor.evidence.values import with_values

        return with_values(query, network, mapping)

    def _columns_of(self, evidence: Places, network: Network, folder: AnyPath | None = None) -> list[str]:
        from junctor.evidence.mapping import hiding, read_mapping
        from junctor.evidence.read import open_evidence

        source = open_evidence(
            evidence,
            network,
            mapping=hiding(read_mapping(self.options["mapping"], network), network, self.query),
            folder=folder,
            **options_for(ReadingOptions, self.options),
        )
        return [network.variables[v].name for v in source.columns]

    def spec_of(self, model: Network) -> RunSpec:
        """Return all that the answers depend on."""
        # Options of sampling are left out of exact runs: they change no answer, and must not make another run of it.
        from junctor.evidence.mapping import read_mapping
        from junctor.evidence.read import digest_of
        from junctor.evidence.states import MISSING_TEXTS, missing_texts

        mapping, asked = read_mapping(self.options["mapping"], model), self._asked(model)
        sampling = sampling_record(model, self.query) if self.query.method != "exact" else {}
        told = self.told | {each.name: getattr(self.query, each.name) for each in fields(self.query)} | sampling
        told |= {
            "network_digest": model.digest,
            # Evidence that grows is no part of the question.
            "evidence_digest": "" if self.grows else digest_of(self.evidence),
            "query": self.query.kind,
            "partition_rows": self.options["partition_rows"] or self._partition_rows(model),
            "junctor_version": version("junctor"),
            "keep": self.files.keep,
            "compression": self.files.compression,
            "mapping_digest": None if mapping is None else mapping.digest,
            # In one spelling: the order and the case of what was given change no row.
            "missing": tuple(sorted(missing_texts(tuple(map(str, self.options["missing"]))) - MISSING_TEXTS)),
            "separator": checked_separator(self.options["separator"]),
            "hide_targets": asked.hide_targets,
            "expected": asked.expected,
        }
        return RunSpec(**{each.name: told[each.name] for each in fields(RunSpec) if each.name in told})

    def _partition_rows(self, model: Network) -> int:
        """Return the default rows of a part: by the width of the answers, and of long case ids and kept columns."""
        from junctor.runs.results import default_partition_rows

        return self._fewer_rows(default_partition_rows(model, self.query, self.part_bytes))

    def _fewer_rows(self, rows: int) -> int:
        """Return how many of so many rows a part of long case ids and kept columns has."""
        from junctor.evidence.read import rows_of_part

        # Of evidence that grows the files of later increments are not known.
        if self.grows:
            return rows
        names = {self.options["case_id"] or "case_id", *self.options["keep"]}
        return rows_of_part(self.evidence, rows, names, self.options["evidence_format"])

    def keep_model(self, model: Network) -> None:
        """Write the network to the run directory, and the measurements of this machine's devices."""
        from junctor.formats import store

        if has_own_measurements():
            from junctor.cost.model import local_cost_models

            # Later measurements must not change the choices of this run.
            write_json(self.directory.speeds, local_cost_models().to_record())
        with written_atomically(self.directory.network) as temporary:
            temporary.write_bytes(store.to_bytes(model))
        # Read again, it would take longer than a few rows.
        network_for(self.directory.network, model.digest, model)

    def kept_model(self, spec: RunSpec) -> Network:
        """Return the network of the run directory."""
        return network_for(self.directory.network, spec.network_digest)

    def input_parts(self, model: Network, spec: RunSpec, threads: int) -> Iterator[InputPart]:
        """Yield the evidence, encoded by so many threads, in partitions; at the end one without rows."""
        from junctor.evidence.encode import concatenate
        from junctor.evidence.encoded import write_partition
        from junctor.evidence.read import TableSource

        source = open_inputs(
            self.evidence,
            model,
            spec,
            self.options,
        )
        files, cells = source.paths if isinstance(source, TableSource) else (), self.directory.group_cells
        nothing = concatenate([], source.case_id_type, 0, source.kept_schema)
        for partition in chain(source.partitions(spec.partition_rows, threads), [nothing]):
            write = partial(write_partition, partition, model)
            if cells is not None:
                write = partial(write, group_cells=cells)
            yield InputPart(partition.batch.rows, partition.bytes, write, files)

    def encoded_elsewhere(self) -> Ingested | None:
        """Return the amount of evidence in a dataset, None for other evidence; raises EvidenceError."""
        if len(self.places) > 1 or not input_files(self.inputs).recorded:
            return None
        spec, place = self.directory.read_spec(), location(self.inputs).absolute()
        told = place.url if isinstance(place, RemotePath) else str(place)
        if location(told) != place:
            # The run's record must not have what opens it, so that the run has a copy.
            return None
        source = open_inputs(place, self.kept_model(spec), spec, self.options)
        assert isinstance(source, EncodedSource)
        if spec.strict:
            deque(source.partitions(spec.partition_rows), maxlen=0)
        return Ingested(source.rows, max(1, -(-source.rows // spec.partition_rows)), told)

    def check_inputs(self, model: Network, spec: RunSpec, threads: int) -> None:
        """Read the evidence as the run will; of evidence that grows until one file is whole, unless it is strict."""
        if not self.grows:
            Workload.check_inputs(self, model, spec, threads)
            return
        files = input_files(self.inputs, check=False)
        broken: EvidenceError | None = None
        for path in files.paths:
            try:
                # Refuses a pipe, which nobody may write to.
                stamp_of(path)
                source = open_inputs(path, model, spec, self.options, files.folder)
                for _ in source.partitions(spec.partition_rows, threads):
                    pass
            except EvidenceError as error:
                if spec.strict:
                    raise
                broken = broken or error
            else:
                # Others that cannot be read are named at the end of the run.
                if not spec.strict:
                    return
        if broken is not None:
            raise broken

    def estimate(self, resources: Resources, pending: Sequence[int], progress: Progress) -> RunEstimate:
        """Return the estimate of the remaining partitions.

        resources: of the run.
        pending: partitions without answers.
        progress: shows the stage.
        Raises BudgetError, before anything runs, if a plan does not fit the memory of all workers together.
        """
        from junctor.runs.estimate import PlannedRun

        progress.stage("planning")
        return PlannedRun(self.directory, self.directory.read_spec(), resources, pending).estimate()

    def rows_in(self, parts: Sequence[int]) -> int:
        """Return the rows of some partitions."""
        directory = self.directory
        if isinstance(directory, IncrementDirectory):
            return directory.rows_in(parts)
        # All but the last one are of one size, so that no file has to be opened.
        counts, size = directory.counts(), directory.read_spec().partition_rows
        return sum(min(size, counts.rows - i * size) for i in parts)

    @property
    def has_part_size(self) -> bool:
        """True if rows or bytes of a part were asked for."""
        return (self.options["partition_rows"], self.options["part_size"]) != (None, None)

    def part_rows(self, resources: Resources, seconds: float, least: int) -> int:
        """Return how many rows make a part; of sampled rows as many as it has."""
        from junctor.runs.estimate import PlannedRun

        spec, counts = self.directory.read_spec(), self.directory.counts()
        run = PlannedRun(self.directory, spec, resources, range(counts.partitions))
        return run.part_rows(seconds, counts.rows, least) if self.has_engine else spec.partition_rows

    def export(self, parts: Sequence[AnyPath], progress: Progress) -> None:
        """Write one CSV file, if requested."""
        if self.options["csv"]:
            from junctor.runs.export import export_csv

            export_csv(self.directory.csv(self.directory.read_spec().folder), parts, progress)
