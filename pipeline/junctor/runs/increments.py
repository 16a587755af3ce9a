"""Increments: runs that answer what is new of evidence that grows, and commit it with one new manifest.

Main functions: `ingest`, `merge` and `IncrementDirectory.sweep`, called by the steps of `junctor.runs.run`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from junctor.evidence.files import InputFiles, format_of, input_files, partition_of
from junctor.evidence.files import explained as unreadable
from junctor.model.errors import EvidenceError, Place
from junctor.model.options import OutputFormat
from junctor.runs.inputs import Backfill, Change, Changes, Input, Listed, Why, compare, selects
from junctor.runs.partition import Part, PartTask
from junctor.runs.storage import AnySpec, Ingested, RunDirectory, RunSpec, spec_record
from junctor.runtime.files import explained, read_json, write_json
from junctor.runtime.machine import usable_cores
from junctor.runtime.progress import Progress
from junctor.runtime.threads import ahead

if TYPE_CHECKING:
    from junctor.evidence.encode import EncodedPartition
    from junctor.evidence.read import EvidenceSource
    from junctor.model.network import Network

#   DIR/evidence/date=2026-11-22/KEY-00000.arrow        encoded evidence of the increment in progress
#   DIR/evidence/done.json                              its inputs; removed last, after the commit
#   DIR/posteriors/date=2026-11-22/KEY-00000.parquet    answers, under the partition of their input
#   DIR/manifest.json                                   the commit: names all inputs and parts; nothing else counts
#
# Keys are digests of question and content: an interrupted increment finds its finished parts by their names, whatever
# has arrived meanwhile, and a part is never written over.

# A file may be written again within the resolution of its time, so that a younger time tells nothing.
_YOUNG_SECONDS = 2.0
# Bytes of encoded evidence that waits to be written.
_AHEAD = 2**28
# Of a digest that names parts.
_KEY_DIGITS = 24
# Most inputs that a message names.
_NAMED = 5

logger = logging.getLogger("junctor")


@dataclass(frozen=True, slots=True)
class Growth:
    """Evidence that grows, and what of it is asked for.

    evidence: folder or glob.
    format: of its files, None for the formats by name or content.
    backfill: ranges of partitions to answer again, as texts.
    drop_removed: whether answers to inputs that are gone leave as well.
    """

    evidence: str
    format: str | None = None
    backfill: tuple[str, ...] = ()
    drop_removed: bool = False


@dataclass(frozen=True, slots=True)
class EvidenceColumns:
    """Columns of the inputs so far.

    evidence: names of observed variables, of all inputs together.
    case_id: type of the case ids.
    kept: names and types of the columns that are carried through.
    """

    evidence: tuple[str, ...]
    case_id: str
    kept: dict[str, str]

    @classmethod
    def of(cls, record: dict[str, Any] | None) -> EvidenceColumns | None:
        """Return them from a record of `asdict`, None for None; raises TypeError for another record."""
        return None if record is None else cls(**{**record, "evidence": tuple(record["evidence"])})


@dataclass(frozen=True, slots=True)
class Increment:
    """A commit, and the paths of the inputs that made it.

    number: from 1.
    finished_at: date and time, in UTC.
    seconds: of its last call.
    junctor_version: that answered.
    rows, statuses: of the inputs that it answered.
    new: number of new inputs.
    late: those of partitions older than the newest one answered before.
    changed, backfilled: answered again.
    renamed: new path -> old path; not answered again.
    removed: not there any more; their answers stay.
    dropped: removed inputs whose answers left.
    """

    number: int
    finished_at: str
    seconds: float
    junctor_version: str
    rows: int
    statuses: dict[str, int]
    new: int
    late: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    backfilled: tuple[str, ...] = ()
    renamed: dict[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: dict[str, Any]) -> Increment:
        """Return it from a record of `asdict`; raises KeyError or TypeError for another record."""
        paths = {name: tuple(record[name]) for name in ("late", "changed", "backfilled", "removed", "dropped")}
        return cls(**{**record, **paths})


@dataclass(frozen=True, slots=True)
class Encoded:
    """An input whose evidence is encoded.

    rows: of each of its partitions.
    """

    path: str
    digest: str
    bytes: int
    modified: float | None
    key: str
    why: Why
    rows: tuple[int, ...]

    @property
    def names(self) -> list[str]:
        """Names of its partitions, without their endings."""
        return [_name(self.path, self.key, i) for i in range(len(self.rows))]


@dataclass(frozen=True, slots=True)
class Pending:
    """An increment in progress.

    number: of the increment.
    inputs: to answer.
    changes: everything else that differs from the manifest.
    dropped: removed inputs whose answers leave.
    columns: of all inputs; None without any.
    is_clean: whether no interrupted increment left files.
    """

    number: int
    inputs: tuple[Encoded, ...]
    renamed: dict[str, str]
    touched: tuple[Listed, ...]
    removed: tuple[str, ...]
    dropped: tuple[str, ...]
    broken: dict[str, str]
    columns: EvidenceColumns | None
    is_clean: bool

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to commit."""
        return not (self.inputs or self.renamed or self.removed or self.dropped)

    @classmethod
    def of(cls, record: dict[str, Any]) -> Pending:
        """Return it from a record of `asdict`; raises KeyError or TypeError for another record."""
        inputs = tuple(Encoded(**{**each, "rows": tuple(each["rows"])}) for each in record["inputs"])
        touched = tuple(Listed(**each) for each in record["touched"])
        paths = {name: tuple(record[name]) for name in ("removed", "dropped")}
        columns = EvidenceColumns.of(record["columns"])
        return cls(**{**record, **paths, "inputs": inputs, "touched": touched, "columns": columns})


@dataclass(frozen=True)
class IncrementDirectory(RunDirectory):
    """The files of a run of evidence that grows; its partitions are those of the increment in progress.

    names: of some partitions, without their endings; None for all of the increment.
    """

    names: Mapping[int, str] | None = field(default=None, compare=False, repr=False)

    @cached_property
    def pending(self) -> Pending:
        """The increment in progress."""
        record = read_json(self.ingested)
        return Pending.of(record) if record is not None else Pending(0, (), {}, (), (), (), {}, None, True)

    @cached_property
    def _named(self) -> Mapping[int, str]:
        if self.names is not None:
            return self.names
        return dict(enumerate(name for each in self.pending.inputs for name in each.names))

    def name_of(self, part: int) -> str:
        """Return the name of a partition, without its ending."""
        return self._named[part]

    def evidence_part(self, part: int) -> Path:
        """The encoded evidence of one partition."""
        return self.path / self.inputs / f"{self.name_of(part)}.arrow"

    def answers_part(self, kind: str, part: int, format: OutputFormat = "parquet") -> Path:
        """The answers to one partition."""
        return self.path / kind / f"{self.name_of(part)}.{format}"

    def read_ingested(self) -> Ingested | None:
        """Return the amount of evidence of the increment, None while it is not encoded."""
        if not self.ingested.exists():
            return None
        rows = [rows for each in self.pending.inputs for rows in each.rows]
        return Ingested(sum(rows), len(rows))

    def rows_in(self, parts: Sequence[int]) -> int:
        """Return the rows of some partitions."""
        rows = [rows for each in self.pending.inputs for rows in each.rows]
        return sum(rows[part] for part in parts)

    def unanswered(self, spec: AnySpec) -> list[int]:
        """Return the numbers of the partitions without answers."""
        parts = {i: self.answers_part(spec.folder, i, spec.output_format) for i in range(self.counts().partitions)}
        # One listing of each folder: a store would take a request for each part.
        there = {path for folder in {part.parent for part in parts.values()} for path in folder.glob("*")}
        return [i for i, part in parts.items() if part not in there]

    def expected(self, spec: AnySpec) -> Ingested:
        """Return the rows and partitions that plans are made for, whatever the increment."""
        # An input gets the same answers, bit for bit, with whichever others it comes.
        return Ingested(spec.partition_rows, 2)

    def sweep(self, spec: RunSpec, parts: Sequence[Part]) -> None:
        """Remove the evidence of the increment, and all parts but those of the manifest."""
        with explained(self.path):
            self._clear_folder(spec.folder, {self.path / part.file for part in parts})
        self.forget()

    def forget(self) -> None:
        """Remove the evidence of the increment."""
        with explained(self.path):
            self._clear_folder(self.inputs)

    def _is_continued_by(self, there: RunSpec, spec: RunSpec) -> bool:
        # Nightly runs outlive versions; each increment tells its own.
        return replace(there, junctor_version=spec.junctor_version) == spec


@dataclass(frozen=True, slots=True)
class IncrementTask(PartTask):
    """Rows of a new input to answer.

    name: of the partition.
    """

    name: str

    @property
    def home(self) -> IncrementDirectory:
        """The run directory."""
        return IncrementDirectory(Path(self.directory), {self.part: self.name})


def ingest(
    directory: IncrementDirectory,
    growth: Growth,
    known: Sequence[Input],
    columns: EvidenceColumns | None,
    number: int,
    progress: Progress,
) -> Ingested:
    """Encode the inputs that are to be answered; returns their amount.

    directory: of the run, with its network.
    growth: the evidence.
    known, columns: inputs of the manifest, and their columns.
    number: of the increment.
    progress: shows the stages.
    Raises EvidenceError for a listing without files, for a backfill of nothing and, if the run is strict, for the first
    input that cannot be read; otherwise those are named in `Pending`.
    """
    spec = directory.read_spec()
    progress.stage("listing the evidence")
    is_clean = not directory.ingested.parent.exists()
    files = _Files.of(growth)
    backfills = [Backfill.parse(text) for text in growth.backfill]
    if backfills and not any(selects(backfills, each.path) for each in files.listed):
        raise EvidenceError(f"no input is in {' '.join(growth.backfill)}", Place(growth.evidence))
    changes = compare(files.listed, known, files.digest, lambda path: selects(backfills, path), files.found.covers)
    if spec.strict and changes.broken:
        raise EvidenceError(next(iter(changes.broken.values())))
    progress.stage("reading the evidence")
    encoding = _Encoding(directory, spec, files, columns, dict(changes.broken))
    threads = usable_cores()
    for rows in ahead(_write, encoding.partitions(changes, known, threads), threads, _Write.size, _AHEAD):
        progress.advance(rows)
    encoding.tell()
    # Before this call, or found by it.
    gone = {each.path for each in known if each.removed and each.path not in files.paths} - {*changes.renamed.values()}
    pending = Pending(
        number=number,
        inputs=tuple(encoding.encoded),
        renamed=changes.renamed,
        touched=changes.touched,
        removed=changes.removed,
        dropped=tuple(sorted({*gone, *changes.removed})) if growth.drop_removed else (),
        broken=encoding.broken,
        columns=encoding.columns,
        is_clean=is_clean,
    )
    # Last: the mark that all of it is there.
    write_json(directory.ingested, asdict(pending))
    return Ingested(sum(sum(each.rows) for each in pending.inputs), sum(len(each.rows) for each in pending.inputs))


def merge(pending: Pending, known: Sequence[Input], parts: Sequence[Part]) -> tuple[Input, ...]:
    """Return the inputs after an increment, in the order of their paths.

    known: before it.
    parts: of the inputs that it answered, in their order.
    """
    inputs = {each.path: each for each in known}
    for path in pending.removed:
        inputs[path] = replace(inputs[path], removed=True)
    for new, old in pending.renamed.items():
        inputs[new] = replace(inputs.pop(old), path=new)
    for path in pending.dropped:
        del inputs[path]
    for listed in pending.touched:
        its = {"bytes": listed.bytes, "modified": listed.modified}
        inputs[listed.path] = replace(inputs[listed.path], **its, removed=False)  # type: ignore[arg-type]
    written = iter(parts)
    for each in pending.inputs:
        its_parts = [next(written) for _ in each.rows]
        inputs[each.path] = Input(
            path=each.path,
            partition=partition_of(each.path),
            digest=each.digest,
            bytes=each.bytes,
            modified=each.modified,
            key=each.key,
            increment=pending.number,
            rows=sum(each.rows),
            statuses=total_of(part.statuses for part in its_parts),
            parts=tuple(part.file for part in its_parts),
        )
    return tuple(sorted(inputs.values(), key=lambda each: each.path.split("/")))


def increment_of(pending: Pending, parts: Sequence[Part], version: str, seconds: float, finished_at: str) -> Increment:
    """Return the record of an increment.

    parts: of the inputs that it answered.
    version: of Junctor.
    seconds: of the last call.
    finished_at: date and time.
    """
    paths = {why: tuple(each.path for each in pending.inputs if each.why == why) for why in get_args(Why)}
    return Increment(
        number=pending.number,
        finished_at=finished_at,
        seconds=seconds,
        junctor_version=version,
        rows=sum(part.rows for part in parts),
        statuses=total_of(part.statuses for part in parts),
        new=len(paths["new"]) + len(paths["late"]),
        late=paths["late"],
        changed=paths["changed"],
        backfilled=paths["backfilled"],
        renamed=pending.renamed,
        removed=tuple(path for path in pending.removed if path not in pending.dropped),
        dropped=pending.dropped,
    )


def lines_of(increment: Increment, inputs: Sequence[Input]) -> list[str]:
    """Return a line for each input that an increment is about; what nobody expects comes first.

    inputs: after it.
    """
    reasons = {**dict.fromkeys(increment.late, "late"), **dict.fromkeys(increment.changed, "changed")}
    reasons |= dict.fromkeys(increment.backfilled, "backfilled")
    lines = [f"renamed: {new}, before {old}" for new, old in increment.renamed.items()]
    lines += [f"removed: {path}, its answers stay" for path in increment.removed]
    lines += [f"removed: {path}, and its answers" for path in increment.dropped]
    answered = (each for each in inputs if each.increment == increment.number)
    for each in sorted(answered, key=lambda each: each.path not in reasons):
        lines.append(f"{reasons.get(each.path, 'new')}: {each.path}, {each.rows:,} rows")
    return lines


def total_of(statuses: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of counts by name."""
    total: dict[str, int] = {}
    for counts in statuses:
        for name, rows in counts.items():
            total[name] = total.get(name, 0) + rows
    return total


def refuse_broken(pending: Pending) -> None:
    """Raise EvidenceError that names the inputs that could not be read, if there are any."""
    if not pending.broken:
        return
    reasons = list(pending.broken.values())
    more = f" (and {len(reasons) - _NAMED} more)" if len(reasons) > _NAMED else ""
    raise EvidenceError(
        f"inputs: {len(reasons)} could not be read, {len(pending.inputs)} answered and committed; the next run tries "
        f"again: {'; '.join(reasons[:_NAMED])}{more}"
    )


@dataclass(frozen=True, slots=True)
class _Files:
    """Evidence as it was listed."""

    found: InputFiles
    format: str | None
    paths: dict[str, Path]
    listed: list[Listed]
    # Size and time of each, however young.
    stamps: dict[str, tuple[int, float]]

    @classmethod
    def of(cls, growth: Growth) -> _Files:
        """List the files; raises EvidenceError if there are none."""
        found = input_files(growth.evidence)
        paths = {found.name_of(path): path for path in found.paths}
        stamps = {name: _stamp(path) for name, path in paths.items()}
        now = time.time()
        listed = [Listed(name, size, at if now - at > _YOUNG_SECONDS else None) for name, (size, at) in stamps.items()]
        return cls(found, growth.format, paths, listed, stamps)

    def digest(self, listed: Listed) -> str:
        """Return the SHA-256 of a file."""
        path = self.paths[listed.path]
        with unreadable(path), path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def refuse_moving(self, listed: Listed) -> None:
        """Raise EvidenceError if a file is not as it was listed."""
        path = self.paths[listed.path]
        if _stamp(path) != self.stamps[listed.path]:
            raise EvidenceError("was written to while it was read", Place(str(path)))


def _stamp(path: Path) -> tuple[int, float]:
    with unreadable(path):
        found = path.stat()
        return found.st_size, found.st_mtime


@dataclass(frozen=True, slots=True)
class _Write:
    """A partition to write."""

    partition: EncodedPartition
    path: Path

    def size(self) -> int:
        """Return the bytes in memory, about: states take four bytes each, case ids some more."""
        kept = 0 if self.partition.kept is None else self.partition.kept.nbytes
        return 4 * self.partition.batch.rows * (2 + len(self.partition.batch.states)) + int(kept)


def _write(task: _Write) -> int:
    from junctor.evidence.encoded import write_partition

    write_partition(task.partition, task.path)
    return task.partition.batch.rows


@dataclass(slots=True)
class _Encoding:
    """The inputs of an increment while they are encoded, one after the other.

    columns: of the inputs so far.
    broken: path -> reason of inputs that cannot be read.
    encoded: the others.
    lacking: path -> columns that other inputs have.
    """

    directory: IncrementDirectory
    spec: RunSpec
    files: _Files
    columns: EvidenceColumns | None
    broken: dict[str, str]
    encoded: list[Encoded] = field(default_factory=list)
    lacking: dict[str, list[str]] = field(default_factory=dict)

    def partitions(self, changes: Changes, known: Sequence[Input], threads: int) -> Iterator[_Write]:
        """Yield the partitions of all inputs; none of them has rows of two inputs."""
        if not changes.answer:
            return
        from junctor.formats import read_network

        network = read_network(self.directory.network)
        taken = {(each.partition, each.key) for each in known}
        for change in changes.answer:
            listed = change.listed
            try:
                source = self._open(listed, network)
                columns = self._columns(listed, source, network)
                key = self._free_key(change, taken)
                rows = []
                for number, partition in enumerate(_partitions(source, self.spec.partition_rows, threads)):
                    name = f"{_name(listed.path, key, number)}.arrow"
                    yield _Write(partition, self.directory.ingested.parent / name)
                    rows.append(partition.batch.rows)
                self.files.refuse_moving(listed)
            except EvidenceError as error:
                if self.spec.strict:
                    raise
                self.broken[listed.path] = str(error)
                continue
            self.columns = columns
            its = listed.path, change.digest, listed.bytes, listed.modified
            self.encoded.append(Encoded(*its, key, change.why, tuple(rows)))

    def tell(self) -> None:
        """Warn of inputs that lack columns."""
        if self.lacking:
            path, names = next(iter(self.lacking.items()))
            logger.warning(
                "%d inputs lack columns that others have, and their rows do not observe these variables: %s lacks %s",
                len(self.lacking),
                path,
                ", ".join(names[:_NAMED]) + ", ..." * (len(names) > _NAMED),
            )

    def _open(self, listed: Listed, network: Network) -> EvidenceSource:
        from junctor.evidence.read import open_evidence
        from junctor.runs.answer_files import refuse_other_types

        source = open_evidence(
            self.files.paths[listed.path],
            network,
            case_id=self.spec.case_id,
            ignore_extra=self.spec.ignore_extra,
            strict=self.spec.strict,
            keep=self.spec.keep,
            format=self.files.format,
            folder=self.files.found.folder,
        )
        refuse_other_types(source.kept_schema, self.spec.as_files())
        return source

    def _columns(self, listed: Listed, source: EvidenceSource, network: Network) -> EvidenceColumns:
        """Return the columns so far, with those of an input; raises EvidenceError for other types than before."""
        place = Place(str(self.files.paths[listed.path]))
        names = tuple(network.variables[i].name for i in source.columns)
        kept = {field.name: str(field.type) for field in source.kept_schema}
        here = EvidenceColumns(names, str(source.case_id_type), kept)
        before = self.columns or here
        if here.case_id != before.case_id:
            raise EvidenceError(
                f"case ids of type {here.case_id}, but those of other inputs are {before.case_id}", place
            )
        for name, kind in kept.items():
            if kind != before.kept[name]:
                raise EvidenceError(
                    f"column {name!r} of type {kind}, but in other inputs it is {before.kept[name]}", place
                )
        missing = [name for name in before.evidence if name not in names]
        if missing and self.spec.strict:
            raise EvidenceError(f"no column {missing[0]!r}, but other inputs have one", place)
        if missing:
            self.lacking[listed.path] = missing
        return replace(before, evidence=tuple(dict.fromkeys([*before.evidence, *names])))

    def _free_key(self, change: Change, taken: set[tuple[str, str]]) -> str:
        """Return the key of an input; one of equal content in its partition has another."""
        path = change.listed.path
        format = self.files.format or format_of(self.files.paths[path])
        for copy in count():
            told = [spec_record(self.spec), change.digest, format, copy]
            key = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:_KEY_DIGITS]
            if (partition_of(path), key) not in taken:
                taken.add((partition_of(path), key))
                break
        return key


def _partitions(source: EvidenceSource, rows: int, threads: int) -> Iterator[EncodedPartition]:
    """Yield the partitions of an input; of one without rows, a partition without any: its answers have the columns."""
    from junctor.evidence.encode import concatenate

    has_rows = False
    for partition in source.partitions(rows, threads):
        has_rows = True
        yield partition
    if not has_rows:
        yield concatenate([], source.case_id_type, 0, source.kept_schema)


def _name(path: str, key: str, number: int) -> str:
    """Return the name of a partition of an input, without its ending."""
    partition = partition_of(path)
    return f"{partition}/{key}-{number:05d}" if partition else f"{key}-{number:05d}"
