"""The run directory: its files, their order of writing, and the recognition of an interrupted run.

Main classes: Directory and RunSpec, for the steps of a run.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import IO, Any, ClassVar, Generic, Protocol, TypeVar, get_args

from junctor.evidence.files import DATASET_RECORD, DATASET_SPEC
from junctor.model.errors import BudgetError, DeviceError, InputError, RefusedError, RunError
from junctor.model.options import AnswerFiles, Compression, Layout, OutputFormat
from junctor.model.query import Method, Precision, Query, Sampler, Sampling
from junctor.model.query import Stages as SampledStages
from junctor.model.question import AnswerKind, QueryKind, question_name
from junctor.runtime.files import clear_temporaries, io_errors_for, read_json, sync_names, write_json
from junctor.runtime.records import typed
from junctor.runtime.remote import AnyPath, RemotePath, lacking, location, names_below, shown
from junctor.runtime.remote_lock import RemoteLock

#   DIR/run.json                        specification of the run; written first, and compared when the run continues
#   DIR/speeds.json                     measured speeds of devices when the run began; they hold until its end
#   DIR/network.parquet                 the network in Junctor's own format
#   DIR/evidence/part-00000.parquet     encoded evidence, one file a partition
#   DIR/evidence/checksums.json         of these files
#   DIR/evidence/done.json              written when all evidence is encoded
#   DIR/budget.json                     with `--method auto`: the bytes that decide which rows are sampled
#   DIR/statistics/part-00000.json      counts of one partition, written before its answers; earlier versions had none
#   DIR/posteriors/part-00000.parquet   answers (DIR/scores/ for scores, DIR/mpe/ for explanations), same partitions,
#                                       rows and order; `.arrow` in that format
#   DIR/manifest.json                   written last: the parts, their rows and their statuses
#   DIR/report.html                     the page of the run, made of the manifest and the statistics
#
# A run of sequences through a hidden Markov model has `model.parquet`, `sequences/` and `viterbi/` instead.
# Every file is written under another name, synced and renamed, so that a file with its name is whole. In a store an
# object is put whole, and nothing is renamed.
FORMAT_VERSION = 1
# Seconds between looks at a lock that another process has.
WAIT_SECONDS = 0.2
# Of runs of both kinds: a directory holds one run of either.
KINDS = (*dict.fromkeys((*get_args(AnswerKind), *get_args(QueryKind))), "viterbi")
INPUTS = ("evidence", "sequences")
STATISTICS = "statistics"
_FOLDERS = (*INPUTS, *KINDS, STATISTICS)
_TABLES = tuple(f"{folder}.csv" for folder in _FOLDERS)
_MODELS = ("network.parquet", "model.parquet")
_RECORDS = ("manifest.json", "budget.json", "speeds.json")
# All beside run.json that lies in no folder.
_FILES = (*_RECORDS, *_TABLES, *_MODELS, "report.html", "comparison.html")
logger = logging.getLogger("junctor")
# Of increments: a key, which is no number, in place of `part`.
_PART = re.compile(r"(part|[0-9a-f]{24})-\d{5,}\.(parquet|arrow|json)")
_UNFINISHED = re.compile(r"\..*\.tmp")
# Of digests of runs in their parts, hexadecimal.
_RUN_DIGITS = 32
# Partitions that are looked for whatever files there are, and those for each file.
PLENTY = 1000
# Of a field of a spec: left out of the record where it has its default.
OPTIONAL = {"optional": True}


@dataclass(frozen=True, slots=True)
class RunSpec:
    """All that the answers of a run depend on. Two runs with equal specs write equal parts."""

    # Names and order of the fields are those of run.json: a change makes directories of earlier versions unusable.
    network_digest: str
    evidence_digest: str
    query: QueryKind
    targets: tuple[str, ...] | None
    precision: Precision
    partition_rows: int
    case_id: str | None
    ignore_extra: bool
    strict: bool
    junctor_version: str
    format_version: int = FORMAT_VERSION
    method: Method = "exact"
    sampler: Sampler | None = None
    samples: int | None = None
    error: float | None = None
    seed: int | None = None
    stages: SampledStages | None = None
    confidence: float | None = field(default=None, metadata=OPTIONAL)
    table_entries: int | None = field(default=None, metadata=OPTIONAL)
    # Left out of the record where they are these: runs of before them go on.
    answers: AnswerKind = field(default="posteriors", metadata=OPTIONAL)
    top: int | None = field(default=None, metadata=OPTIONAL)
    probabilities: tuple[str, ...] = field(default=(), metadata=OPTIONAL)
    keep: tuple[str, ...] = field(default=(), metadata=OPTIONAL)
    output_format: OutputFormat = field(default="parquet", metadata=OPTIONAL)
    layout: Layout = field(default="lists", metadata=OPTIONAL)
    compression: Compression = field(default="zstd", metadata=OPTIONAL)
    incremental: bool = field(default=False, metadata=OPTIONAL)
    mapping_digest: str | None = field(default=None, metadata=OPTIONAL)
    missing: tuple[str, ...] = field(default=(), metadata=OPTIONAL)
    separator: str | None = field(default=None, metadata=OPTIONAL)
    hide_targets: bool = field(default=False, metadata=OPTIONAL)
    expected: tuple[tuple[str, tuple[float, ...]], ...] = field(default=(), metadata=OPTIONAL)

    @property
    def folder(self) -> str:
        """Name of the folder of the answers."""
        return question_name(self.query, self.answers)

    def as_files(self) -> AnswerFiles:
        """Return how the answers are written."""
        return AnswerFiles(self.output_format, self.layout, self.compression, self.keep)

    def as_query(self) -> Query:
        """Return the query of the run."""
        shown = self.answers, self.top, self.probabilities, self.hide_targets, self.expected
        if self.method == "exact" or self.sampler is None or self.seed is None or self.stages is None:
            return Query(self.query, self.targets, self.precision, "exact", Sampling(), *shown)
        bounded = {} if self.confidence is None else {"confidence": self.confidence}
        sampling = Sampling(
            self.sampler, self.samples, self.error, self.seed, self.stages, **bounded, table_entries=self.table_entries
        )
        return Query(self.query, self.targets, self.precision, self.method, sampling, *shown)


@dataclass(frozen=True, slots=True)
class Ingested:
    """Amount of evidence of a run.

    dataset: where it is, encoded already; None for the directory of the run.
    """

    rows: int
    partitions: int
    dataset: str | None = None

    def to_record(self) -> dict[str, Any]:
        """Return a record for JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class AnySpec(Protocol):
    """The fields of the specs of all kinds of runs."""

    @property
    def query(self) -> str:
        """The kind of answers."""

    @property
    def folder(self) -> str:
        """Name of the folder of the answers."""

    @property
    def precision(self) -> Precision:
        """Number format of the computation."""

    @property
    def partition_rows(self) -> int:
        """Rows in one part at the most."""

    @property
    def junctor_version(self) -> str:
        """Version of Junctor at the start of the run."""

    @property
    def output_format(self) -> OutputFormat:
        """Format of the answers, and the ending of their files."""


Spec = TypeVar("Spec", bound=AnySpec)


def _folders_of(file: Path, directory: Path) -> Sequence[Path]:
    """Return the folders that a file of a run lies in, the innermost first and the run's directory last."""
    return file.parents[: len(file.parents) - len(directory.parents)]


@dataclass(frozen=True)
class Directory(Generic[Spec]):
    """The files of one run of either kind; an instance touches no file before it is asked to.

    model_file: name of the file of the network or model.
    inputs: name of the folder of evidence or sequences.
    """

    path: AnyPath
    model_file: ClassVar[str]
    inputs: ClassVar[str]

    @staticmethod
    def parse(record: dict[str, Any]) -> Any:
        """Return the spec of a record of `dataclasses.asdict`; raises KeyError or TypeError for another record."""
        raise NotImplementedError

    @property
    def network(self) -> AnyPath:
        """The network, or model, in Parquet."""
        return self.path / self.model_file

    @property
    def manifest(self) -> AnyPath:
        """List of parts, written last."""
        return self.path / "manifest.json"

    @property
    def ingested(self) -> AnyPath:
        """Mark of complete evidence."""
        return self.path / self.inputs / "done.json"

    @property
    def input_checksums(self) -> AnyPath:
        """Checksums of the encoded evidence."""
        return self.path / self.inputs / "checksums.json"

    @property
    def budget(self) -> AnyPath:
        """With `--method auto`, the memory budget that decides which rows are sampled."""
        return self.path / "budget.json"

    @property
    def spec_file(self) -> AnyPath:
        """Specification of the run, written first."""
        return self.path / "run.json"

    def evidence_part(self, part: int) -> AnyPath:
        """The encoded evidence of one partition."""
        return self.path / self.inputs / f"part-{part:05d}.parquet"

    def answers_part(self, kind: str, part: int, format: OutputFormat = "parquet") -> AnyPath:
        """The answers to one partition."""
        return self.path / kind / f"part-{part:05d}.{format}"

    def statistics(self, part: AnyPath) -> AnyPath:
        """Counts of one partition, written before its answers in `part`."""
        folder, _, name = self.name_of(part).partition("/")
        # A manifest that is damaged may name a file without its folder.
        name = name or folder
        return (self.path / STATISTICS / name).with_suffix(".json")

    @property
    def report(self) -> AnyPath:
        """The page of a finished run."""
        return self.path / "report.html"

    def csv(self, kind: str) -> AnyPath:
        """The answers as one CSV file."""
        return self.path / f"{kind}.csv"

    def read_spec(self) -> Spec:
        """Return the specification; raises RunError if there is no run or it cannot be read."""
        spec = self._read_spec()
        if spec is None:
            raise RunError(no_run(self.path))
        return spec

    def read_ingested(self) -> Ingested | None:
        """Return the amount of encoded evidence, None while it is incomplete."""
        record = read_json(self.ingested)
        if record is None:
            return None
        rows, partitions, dataset = record.get("rows"), record.get("partitions"), record.get("dataset")
        # A partition has rows, unless it is the only one.
        if (
            type(rows) is int
            and type(partitions) is int
            and type(dataset) in (str, NoneType)
            and record.keys() - {"dataset"} == {"rows", "partitions"}
            and 1 <= partitions <= max(1, rows) < 2**53
            and (dataset is not None or not self._are_too_many(partitions))
        ):
            return Ingested(rows, partitions, dataset)
        raise RunError(
            f"{self.ingested}: found {str(record)[:100]}, which is not the amount of the evidence here: start "
            "afresh with --overwrite"
        )

    def _are_too_many(self, partitions: int) -> bool:
        """Return True for far more partitions than files, even if most were lost: to look for each would take hours."""
        # Some may be missing, and are made again; so few are not worth a listing.
        if partitions <= PLENTY:
            return False
        return partitions > PLENTY * max(len({*parts_in(self.path / folder)}) for folder in (*INPUTS, *KINDS))

    def counts(self) -> Ingested:
        """Return the amount of encoded evidence; raises RunError while it is incomplete."""
        ingested = self.read_ingested()
        if ingested is None:
            raise RunError(f"{self.path}: its evidence is not complete: run the same command again")
        return ingested

    def expected(self, spec: AnySpec) -> Ingested:
        """Return the rows and partitions that plans are made for."""
        return self.counts()

    def unanswered(self, spec: AnySpec) -> list[int]:
        """Return the numbers of the partitions without answers."""
        parts = self.expected_parts(spec)
        # One listing of each folder: a store would take a request for each part.
        with io_errors_for(self.path):
            there = {path for folder in {part.parent for part in parts} for path in folder.glob("*")}
        return [i for i, part in enumerate(parts) if part not in there]

    def expected_parts(self, spec: AnySpec) -> list[AnyPath]:
        """Return the answers to all partitions, there or not."""
        return [self.answers_part(spec.folder, i, spec.output_format) for i in range(self.counts().partitions)]

    def small_files(self) -> list[AnyPath]:
        """Return the files beside encoded inputs, answers and manifest, there or not."""
        return [
            self.spec_file,
            self.network,
            self.path / "speeds.json",
            self.budget,
            self.ingested,
            self.input_checksums,
        ]

    def name_of(self, path: AnyPath) -> str:
        """Return the name of a file, relative to the directory, with slashes."""
        return "/".join(path.parts[len(self.path.parts) :])

    def read_facts(self, path: AnyPath) -> tuple[int, dict[str, int], str | None]:
        """Return the rows of a part, those of each status and the run that it names, without reading its rows."""
        from junctor.runs.answer_files import read_facts

        return read_facts(path)

    def refuse_target(self, target: str, option: str) -> None:
        """Raise InputError for a file to write that would take the place of one of the run; its pages it may replace.

        target: file, as it was given.
        option: that names it.
        """
        names = names_below(location(target), self.path)
        if names and names[0] in ("run.json", *_FOLDERS, *_MODELS, *_RECORDS, *_TABLES):
            raise InputError(f"{option} {shown(target)}: a file of the run has its place there: name another file")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Context manager: exclusive use of the directory; raises RunError while another process has it."""
        if isinstance(self.path, RemotePath):
            lock = RemoteLock(self.path / ".lock")
            with io_errors_for(self.path):
                lock.acquire()
            try:
                clear_temporaries()
                yield
            finally:
                lock.release()
            return
        # The operating system drops the lock with the process, however that ends.
        there = self.path.exists()
        with self._lock(), self._unmade_if_refused(there):
            self.clear_unfinished()
            yield

    @contextmanager
    def _unmade_if_refused(self, there: bool) -> Iterator[None]:
        """Context manager: a directory that was not `there` before is removed where the run is refused."""
        # Once the inputs are encoded, which may have taken hours, another call can use them, with more memory for one.
        try:
            yield
        except (InputError, BudgetError, DeviceError):
            if not there and not self.ingested.exists() and not self.has_answers():
                with suppress(OSError):
                    self._clear()
                for path in (*self.path.glob(".*.tmp"), self.path / ".lock"):
                    path.unlink(missing_ok=True)
                # Nobody else's files.
                with suppress(OSError):
                    self.path.rmdir()
            raise

    @contextmanager
    def preparing(self, tell: Callable[[], None]) -> Iterator[None]:
        """Context manager: the only one that prepares a directory to share; `tell` is called if that takes waiting."""
        with self._lock_file(".preparing.lock") as lock:
            waited = False
            while not _taken(lock, fcntl.LOCK_EX):
                if not waited:
                    tell()
                waited = True
                # In short waits, which a signal ends.
                time.sleep(WAIT_SECONDS)
            yield

    @contextmanager
    def shared(self) -> Iterator[bool]:
        """Context manager: use of the directory beside others at the same run; to be entered while `preparing`.

        True for the first one. Raises RunError while another process has the directory alone.
        """
        with self._lock_file(".lock") as lock:
            alone = _taken(lock, fcntl.LOCK_EX)
            # Those who prepare come one at a time: only a run that shares nothing can come in between.
            if not _taken(lock, fcntl.LOCK_SH):
                raise self._in_use(lock)
            if alone:
                _sign(lock)
            yield alone

    def clear_unfinished(self) -> None:
        """Remove the unfinished files of killed processes; to be called where no other process writes."""
        if isinstance(self.path, RemotePath):
            return
        for folder in (".", *_FOLDERS):
            for stray in (self.path / folder).glob(".*.tmp"):
                stray.unlink(missing_ok=True)

    def check_there(self) -> None:
        """Raise RunError if the directory was removed; to be called before a file would make it anew, in part."""
        # A store would take a request for each file, and has no folders that are made anew.
        if isinstance(self.path, Path) and not self.spec_file.exists():
            raise RunError(f"{self.path}: removed while the run was under way: run the same command again")

    def check_ours(self, spec: AnySpec) -> None:
        """Raise RunError if the directory was removed, or is another run's than that of `spec`."""
        # Workers outlive their clients, and another run may have claimed the directory meanwhile.
        there = self._read_spec()
        if there is None:
            raise RunError(f"{self.path}: removed while the run was under way: run the same command again")
        if there != spec:
            raise RunError(f"{self.path}: another run has taken it while this one was under way: name another --output")

    def make_folder_of(self, path: AnyPath) -> None:
        """Make the folder of a file of the run; raises RunError if the directory was removed."""
        if isinstance(self.path, RemotePath) or isinstance(path, RemotePath):
            return
        self.check_there()
        with io_errors_for(self.path):
            # One by one, but never the directory itself: it may be removed at this moment.
            for folder in reversed(_folders_of(path, self.path)[:-1]):
                folder.mkdir(exist_ok=True)

    def sync_names(self, files: Iterable[AnyPath]) -> None:
        """Sync the names of some files of the run, before a mark says that all of them are there."""
        if isinstance(self.path, RemotePath):
            # Objects have no folders.
            return
        local = [file for file in files if isinstance(file, Path)]
        sync_names({folder for file in local for folder in _folders_of(file, self.path)})

    def claim(self, spec: Spec, overwrite: bool = False, alone: bool = True) -> None:
        """Start a run of `spec` here, or continue it; raises RunError for another run here, with the differences.

        overwrite: whether another run is removed.
        alone: whether no other process is at the directory.
        """
        # Another run is removed with `overwrite`, or if it has no answers: an attempt that failed before its first part
        # must not block the next one.
        with io_errors_for(self.path):
            replaced = alone and self.spec_file.exists() and self._gives_way(spec, overwrite)
            if replaced:
                self._clear()
            there = self._read_spec()
            if there is None:
                # Files of other programs: never removed, and never mixed with a run.
                if not replaced:
                    self._refuse_foreign_files()
                    self._tell_foreign_files()
                write_json(self.spec_file, spec_record(spec))
            elif not self._is_continued_by(there, spec):
                raise RunError(_difference(self.path, there, spec))
            elif there != spec:
                write_json(self.spec_file, spec_record(spec))

    def with_its_parts(self, spec: Spec) -> Spec:
        """Return a spec with parts as large as those of the run here, where it is that run otherwise."""
        # What cannot be read is refused, or replaced, when the directory is claimed.
        with suppress(RunError):
            there = self._read_spec()
            if there is not None:
                same: Spec = replace(spec, partition_rows=there.partition_rows)  # type: ignore[type-var]
                return same if self._is_continued_by(there, same) else spec
        return spec

    def loses_answers(self, spec: Spec, overwrite: bool) -> bool:
        """Return True if `claim` is to remove answers of another run."""
        with io_errors_for(self.path):
            return overwrite and self.spec_file.exists() and self._gives_way(spec, overwrite) and self.has_answers()

    def _is_continued_by(self, there: Spec, spec: Spec) -> bool:
        """Return True if a run of `spec` goes on with what is there."""
        return there == spec

    def _lock(self) -> IO[str]:
        lock = self._lock_file(".lock")
        if not _taken(lock, fcntl.LOCK_EX):
            error = self._in_use(lock)
            lock.close()
            raise error
        _sign(lock)
        return lock

    def _lock_file(self, name: str) -> IO[str]:
        if isinstance(self.path, RemotePath):
            raise RunError(f"{self.path}: a store has no locks to share: parts of an array need a disk that all share")
        with io_errors_for(self.path):
            if self.path.exists() and not self.path.is_dir():
                raise RunError(f"{self.path} is a file: name a directory with --output")
            for each in (self.path, *self.path.parents):
                if each.is_symlink() and not each.exists():
                    raise RunError(
                        f"{each} is a link to {os.readlink(each)}, which is not there: make that directory, or name "
                        "another one with --output"
                    )
            self.path.mkdir(parents=True, exist_ok=True)
            return open(self.path / name, "a+")

    def _in_use(self, lock: IO[str]) -> RunError:
        lock.seek(0)
        return RunError(f"{self.path} is in use by another junctor (process {lock.read() or '?'})")

    def _gives_way(self, spec: Spec, overwrite: bool) -> bool:
        """Return True if the run in the directory is to be removed for one of `spec`."""
        try:
            there = self._read_spec()
            is_other = there is None or not self._is_continued_by(there, spec)
            return is_other and (overwrite or not self.has_answers())
        except RefusedError:
            raise
        except RunError:
            return overwrite

    def has_answers(self) -> bool:
        """Return True if there are answers of a run, finished or not."""
        parts = (part for kind in KINDS for part in parts_in(self.path / kind))
        tables = (self.csv(kind) for kind in KINDS)
        return self.manifest.exists() or any(path.exists() for path in chain(parts, tables))

    def _refuse_foreign_files(self) -> None:
        for name in (*_MODELS, "manifest.json", *INPUTS, *KINDS):
            path = self.path / name
            # An empty folder is what remains of a directory that was removed while a run wrote to it.
            if path.exists() and not (path.is_dir() and next(path.iterdir(), None) is None):
                raise RunError(
                    f"{self.path} has {name!r} but no {self.spec_file.name}: name another directory with --output"
                )

    def _tell_foreign_files(self) -> None:
        names = sorted(path.name for path in self.path.glob("[!.]*"))
        if names:
            some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            logger.warning("%s has files of others (%s): they stay, and the answers lie beside them", self.path, some)

    def _clear(self) -> None:
        # The files of a run and nothing else: users may keep files of their own here. run.json marks the others as
        # ours, so it is removed last.
        for name in _FILES:
            (self.path / name).unlink(missing_ok=True)
        for folder in _FOLDERS:
            self._clear_folder(folder)
        self._refuse_left()
        self.spec_file.unlink(missing_ok=True)

    def _refuse_left(self) -> None:
        """Raise RunError for a file of the run, beside run.json, that is still there after its removal."""
        if not isinstance(self.path, RemotePath):
            return
        # A store may say for a moment that an object is not there, and the next run would take it for its own.
        for path in self.path.rglob("*"):
            name = self.name_of(path)
            is_part = name.split("/")[0] in _FOLDERS and _PART.fullmatch(path.name)
            if is_part or name in _FILES:
                raise RunError(f"{path}: still there after it was removed: run the same command again")

    def _clear_folder(self, folder: str, named: Collection[AnyPath] = ()) -> None:
        """Remove the parts in a folder, and the folders that are empty then; those that are `named` stay."""
        path = self.path / folder
        # By one listing, the deepest first.
        found: list[AnyPath] = sorted(path.glob("**/*"), key=lambda each: -len(each.parts))
        for each in found:
            if each not in named and (_PART.fullmatch(each.name) or _UNFINISHED.fullmatch(each.name)):
                each.unlink(missing_ok=True)
        for name in ("done.json", "checksums.json"):
            (path / name).unlink(missing_ok=True)
        for each in (*(each for each in found if "=" in each.name), path):
            # Not empty, or no folder.
            with suppress(OSError):
                each.rmdir()

    def forget(self) -> None:
        """Remove the encoded inputs."""
        with io_errors_for(self.path):
            self._clear_folder(self.inputs)

    def _read_spec(self) -> Spec | None:
        path = self.spec_file
        record = read_spec_record(path)
        if record is None:
            return None
        try:
            spec: Spec = self.parse(record)
            return spec
        except (TypeError, KeyError, ValueError) as error:
            raise RunError(
                f"{path}: not a run, or one of another kind ({error}): name another directory with --output, or start "
                "afresh with --overwrite"
            ) from error


class RunDirectory(Directory[RunSpec]):
    """The files of a run of evidence through a network."""

    model_file, inputs = "network.parquet", "evidence"
    # Of its evidence, that can be read apart; None for a part as a whole.
    group_cells: ClassVar[int | None] = None

    @property
    def speeds(self) -> AnyPath:
        """Measured speeds of devices, the basis of the run's choices."""
        return self.path / "speeds.json"

    def evidence_part(self, part: int) -> AnyPath:
        """The encoded evidence of one partition."""
        path = Directory.evidence_part(self, part)
        # Of an earlier version, on a disk: it stays with its answers.
        before = path.with_suffix(".arrow")
        return before if isinstance(before, Path) and before.exists() else path

    @staticmethod
    def parse(record: dict[str, Any]) -> RunSpec:
        """Return the spec of a record."""
        return typed(RunSpec, record)


def _taken(lock: IO[str], kind: int) -> bool:
    """Return True if the lock of a file could be taken; if not, one that was held before may be lost."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sign(lock: IO[str]) -> None:
    with io_errors_for(Path(lock.name)):
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()


def no_run(path: AnyPath) -> str:
    """Return what to say of a path that has no record of a run."""
    if (path / DATASET_SPEC).exists():
        return f"{path}: a dataset, not a run: {DATASET_RECORD} in it tells its rows and parts (`junctor verify`)"
    return f"{path}: {lacking(path, 'no run here (run.json is missing)')}"


def read_spec_record(path: AnyPath) -> dict[str, Any] | None:
    """Return the record of a `run.json`, None without one; raises RunError for another version, or no record."""
    record = read_json(path)
    if record is not None and record.get("format_version") != FORMAT_VERSION:
        raise RunError(
            f"{path}: found format_version {record.get('format_version')!r}, expected {FORMAT_VERSION}: another "
            "version of junctor wrote it; name another directory with --output, or start afresh with --overwrite"
        )
    return record


def spec_record(spec: Any) -> dict[str, Any]:
    """Return the record of a spec, without optional fields that have their defaults."""
    left_out = {each.name for each in fields(spec) if each.metadata and getattr(spec, each.name) == each.default}
    return {name: value for name, value in asdict(spec).items() if name not in left_out}


def run_digest(spec: Any) -> str:
    """Return the digest of a spec by which a part names its run; that of another version is the same."""
    return run_digest_of(spec_record(spec))


def run_digest_of(record: Mapping[str, Any]) -> str:
    """Return the same of the record of a spec, as of `spec_record` or of a manifest."""
    # Increments outlive versions, and parts stay as they are where a new version changes no answer.
    lasting = {name: value for name, value in record.items() if name != "junctor_version"}
    return hashlib.sha256(json.dumps(lasting).encode()).hexdigest()[:_RUN_DIGITS]


def parts_in(folder: AnyPath) -> Iterator[AnyPath]:
    """Yield the files of partitions, Parquet or Arrow, also those of increments."""
    return (path for path in folder.glob("**/*") if _PART.fullmatch(path.name))


def _difference(path: AnyPath, old: Any, new: Any) -> str:
    before, after = asdict(old), asdict(new)
    changed = [
        f"{name} was {_brief(before[name])}, now {_brief(after[name])}"
        for name in before
        if before[name] != after[name]
    ]
    grows = [name for name in before if before[name] != after[name]] == ["evidence_digest"]
    return (
        f"{path} holds another run: {'; '.join(changed)}. Name another directory with --output, or replace that run "
        "with --overwrite" + ("; --incremental in a new one answers only what is new from then on" if grows else "")
    )


def _brief(value: object) -> str:
    if value is None or value == ():
        return "not set"
    text = ",".join(map(str, value)) if isinstance(value, tuple) else repr(value)
    return text if len(text) <= 40 else f"{text[:36]}..."
