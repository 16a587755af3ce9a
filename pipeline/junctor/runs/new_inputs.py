"""Encoding of the inputs that an increment answers: those that are new or changed, each with partitions of its own.

Main function: `ingest`, a step of `junctor.runs.run`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING

from junctor.evidence.files import (
    InputFiles,
    Places,
    Stamp,
    format_of,
    input_files,
    partition_of,
    reading_errors_for,
    refuse_changes,
    stamp_of,
)
from junctor.model.errors import EvidenceError, Place, counted
from junctor.model.option_table import JobOptions
from junctor.runs.increments import Encoded, EvidenceColumns, IncrementDirectory, Pending, stem_of
from junctor.runs.inputs import Backfill, Change, Changes, Input, Listed, compare, selects
from junctor.runs.partition import network_for
from junctor.runs.storage import Ingested, RunSpec, spec_record
from junctor.runtime.files import write_json
from junctor.runtime.machine import usable_cores
from junctor.runtime.progress import Progress
from junctor.runtime.remote import AnyPath, RemoteFile, RemotePath, location, names_below, shown
from junctor.runtime.threads import ahead

if TYPE_CHECKING:
    import pyarrow as pa

    from junctor.evidence.encode import EncodedPartition
    from junctor.evidence.read import EvidenceSource
    from junctor.model.network import Network

# A file may be written again within the resolution of its time, so that a younger time tells nothing.
_YOUNG_SECONDS = 2.0
# Bytes of encoded evidence that waits to be written.
_AHEAD = 2**28
# Of a digest that names parts.
_KEY_DIGITS = 24
# Most columns that a warning names.
_NAMED = 5

# Type of a column all of whose cells are missing, as pandas writes it.
_UNTYPED = "null"

logger = logging.getLogger("junctor")


@dataclass(frozen=True, slots=True)
class Growth:
    """Evidence that grows.

    evidence: folder or glob.
    options: of the run.
    """

    evidence: str
    options: JobOptions


def ingest(
    directory: IncrementDirectory,
    growth: Growth,
    known: Sequence[Input],
    columns: EvidenceColumns | None,
    root: str | None,
    number: int,
    progress: Progress,
) -> Ingested:
    """Encode the inputs that are to be answered; returns their amount.

    directory: of the run, with its network.
    growth: the evidence.
    known, columns, root: inputs of the manifest, their columns, and the folder in which their names begin.
    number: of the increment.
    progress: shows the stages.
    Raises EvidenceError for a listing without files, for files that have other names than before, for a backfill of
    nothing and, if the run is strict, for the first input that cannot be read; otherwise those are named in `Pending`.
    """
    spec = directory.read_spec()
    progress.stage("listing the evidence")
    is_clean = not directory.ingested.parent.exists()
    folder_before = None if root is None else location(root)
    files = _Files.of(growth, folder_before)
    if folder_before is not None:
        _refuse_another_folder(files.found, folder_before, known)
    wanted = growth.options["backfill"]
    backfills = [Backfill.parse(text) for text in wanted]
    if backfills and not any(selects(backfills, each.path) for each in files.listed):
        raise EvidenceError(f"no input is in {' '.join(wanted)}", Place(shown(growth.evidence)))
    changes = compare(
        files.listed,
        known,
        files.digest,
        lambda path: selects(backfills, path),
        files.found.covers,
        files.is_there,
    )
    if spec.strict and changes.broken:
        raise EvidenceError(next(iter(changes.broken.values())))
    missed = {each.path for each in known if each.removed}
    # Before this call, or found by it.
    gone = {path for path in missed - files.paths.keys() if files.found.covers(path)}
    # A dataset is what its record says: parts of files that changed have other names.
    drops = growth.options["drop_removed"] or bool(files.found.recorded)
    dropped = tuple(sorted({*gone, *changes.removed})) if drops else ()
    progress.stage("reading the evidence")
    # Answers that leave say nothing about the columns of others.
    leaving = {*dropped, *(changes.renamed.get(each.listed.path, each.listed.path) for each in changes.answer)}
    before = columns if any(each.path not in leaving for each in known) else None
    encoding = _Encoding(directory, spec, files, before, growth.options, dict(changes.broken))
    threads = usable_cores()
    for rows in ahead(
        _write, encoding.partitions(changes, known, number, threads), threads, lambda task: task.partition.bytes, _AHEAD
    ):
        progress.advance(rows)
    encoding.tell()
    if before is None and columns is not None:
        encoding.columns = _with_staying(columns, encoding, [each.path for each in known if each.path not in dropped])
    pending = Pending(
        number=number,
        inputs=tuple(encoding.encoded),
        renamed=changes.renamed,
        touched=changes.touched,
        removed=changes.removed,
        dropped=dropped,
        returned=tuple(each.path for each in changes.touched if each.path in missed),
        broken=encoding.broken,
        columns=encoding.columns,
        is_clean=is_clean,
        root=_recorded(files.found.root.absolute()),
    )
    folder = directory.ingested.parent
    directory.sync_names([folder / f"{name}.parquet" for each in encoding.encoded for name in each.names])
    # Last: the mark that all of it is there.
    write_json(directory.ingested, asdict(pending))
    return Ingested(sum(sum(each.rows) for each in pending.inputs), sum(len(each.rows) for each in pending.inputs))


def open_inputs(
    path: Places,
    network: Network,
    spec: RunSpec,
    options: JobOptions,
    folder: AnyPath | None = None,
    kept_types: Mapping[str, pa.DataType] | None = None,
    case_id_type: pa.DataType | None = None,
) -> EvidenceSource:
    """Open evidence as a run reads it.

    path: of the evidence.
    network: that it is for.
    spec: of the run, with the options of reading.
    options: of the run, for the format of the evidence and its mapping.
    folder: of which the names of folders below are columns.
    kept_types, case_id_type: of columns that are carried through, as of `open_evidence`.
    Raises EvidenceError, also for kept columns of types that the answers cannot have.
    """
    from junctor.evidence.mapping import hiding, read_mapping
    from junctor.evidence.read import open_evidence
    from junctor.runs.answer_files import refuse_other_types

    read = read_mapping(options["mapping"], network)
    if read is not None and read.digest != spec.mapping_digest:
        raise EvidenceError("was written to while it was read", read.place)
    source = open_evidence(
        path,
        network,
        case_id=spec.case_id,
        ignore_extra=spec.ignore_extra,
        strict=spec.strict,
        keep=spec.keep,
        missing=spec.missing,
        evidence_format=options["evidence_format"],
        separator=spec.separator,
        folder=folder,
        mapping=hiding(read, network, spec.as_query()),
        kept_types=kept_types or {},
        case_id_type=case_id_type,
    )
    refuse_other_types(source.kept_schema, spec.as_files())
    return source


@dataclass(frozen=True, slots=True)
class _Files:
    """Evidence as it was listed.

    stamps: of each file, however young, but of the `unreadable` ones, which have the reason instead.
    tags: ETags of the objects whose digest was made, of those that have one.
    """

    found: InputFiles
    paths: dict[str, AnyPath]
    listed: list[Listed]
    stamps: dict[str, Stamp]
    unreadable: dict[str, EvidenceError]
    tags: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, growth: Growth, root: AnyPath | None) -> _Files:
        """List the files, by their names in a `root` that they lie below; raises EvidenceError if there are none."""
        found = input_files(growth.evidence, check=False)
        if root is not None:
            found = found.named_in(root)
        paths = {found.name_of(path): path for path in found.paths}
        listed, stamps, unreadable = list[Listed](), dict[str, Stamp](), dict[str, EvidenceError]()
        now = time.time()
        for name, path in paths.items():
            try:
                stamps[name] = size, at, _ = stamp_of(path)
                listed.append(Listed(name, size, at if now - at > _YOUNG_SECONDS else None))
            except EvidenceError as error:
                # Listed nevertheless: it is not removed.
                unreadable[name] = error
                listed.append(Listed(name, 0, None))
        return cls(found, paths, listed, stamps, unreadable)

    def digest(self, listed: Listed) -> str:
        """Return the SHA-256 of a file; raises EvidenceError."""
        if listed.path in self.unreadable:
            raise self.unreadable[listed.path]
        path = self.paths[listed.path]
        with reading_errors_for(path), path.open("rb") as file:
            if isinstance(file.raw, RemoteFile) and (tag := file.raw.etag()) is not None:
                self.tags[listed.path] = tag
            return self.found.refuse_damaged(path, hashlib.file_digest(file, "sha256").hexdigest())

    def is_there(self, name: str) -> bool:
        """Return True if a file of this name, listed or not, is there; also where that cannot be found out."""
        try:
            return (self.found.root / name).exists()
        except OSError:
            # Rows that are answered twice are seen; those that never are would not be.
            return True

    def refuse_moving(self, listed: Listed) -> None:
        """Raise EvidenceError if a file is not as it was listed."""
        path = self.paths[listed.path]
        # Another path of that name: of a store, one that was listed stays as it was.
        now = path.parent / path.name
        if isinstance(now, RemotePath) and listed.path in self.tags:
            with reading_errors_for(path), now.open_raw() as file:
                is_same = (file.size(), file.etag()) == (listed.bytes, self.tags[listed.path])
            if not is_same:
                raise EvidenceError("was written to while it was read", Place(str(path)))
            return
        # Of a store without ETags, a change that keeps size and second is missed.
        refuse_changes({path: self.stamps[listed.path]}, {path: stamp_of(now)})


@dataclass(frozen=True, slots=True)
class _Write:
    """A partition to write."""

    partition: EncodedPartition
    path: AnyPath
    network: Network
    group_cells: int | None


def _write(task: _Write) -> int:
    from junctor.evidence.encoded import write_partition

    write_partition(task.partition, task.network, task.path, task.group_cells)
    return task.partition.batch.rows


@dataclass(slots=True)
class _Types:
    """Types of columns that are carried through, of those that have one; kept: by name."""

    case_id: pa.DataType | None = None
    kept: dict[str, pa.DataType] = field(default_factory=dict)

    def add(self, source: EvidenceSource) -> None:
        """Add those of an input that are not known."""
        if self.case_id is None and str(source.case_id_type) != _UNTYPED:
            self.case_id = source.case_id_type
        for each in source.kept_schema:
            if str(each.type) != _UNTYPED:
                self.kept.setdefault(each.name, each.type)


@dataclass(slots=True)
class _Encoding:
    """The inputs of an increment while they are encoded, one after the other.

    columns: of the inputs so far.
    options: of the run.
    broken: path -> reason of inputs that cannot be read.
    encoded: the others.
    lacking: path -> columns that other inputs have.
    first: the first input that was read.
    """

    directory: IncrementDirectory
    spec: RunSpec
    files: _Files
    columns: EvidenceColumns | None
    options: JobOptions
    broken: dict[str, str]
    encoded: list[Encoded] = field(default_factory=list)
    lacking: dict[str, list[str]] = field(default_factory=dict)
    first: EvidenceSource | None = None
    _types: _Types | None = None

    def partitions(self, changes: Changes, known: Sequence[Input], increment: int, threads: int) -> Iterator[_Write]:
        """Yield the partitions of all inputs of an increment; none of them has rows of two inputs."""
        if not changes.answer:
            return
        network = network_for(self.directory.network, self.spec.network_digest)
        taken = {(each.partition, each.key) for each in known}
        taken |= self.directory.leftovers(self.spec, known, increment)
        for change in changes.answer:
            listed = change.listed
            try:
                source = self._open(listed, network)
                if self._is_unlike(source):
                    if self._types is None:
                        self._types = self._types_of(changes, known, network)
                    source = self._open(listed, network, self._types)
                columns = self._columns(listed, source, network)
                key = self._free_key(change, source, taken)
                rows = []
                for number, partition in enumerate(_partitions(source, self.spec.partition_rows, threads)):
                    target = self.directory.ingested.parent / f"{stem_of(listed.path, key, number)}.parquet"
                    self.directory.make_folder_of(target)
                    yield _Write(partition, target, network, self.directory.group_cells)
                    rows.append(partition.batch.rows)
                self.files.refuse_moving(listed)
            except EvidenceError as error:
                if self.spec.strict:
                    raise
                self.broken[listed.path] = str(error)
                continue
            self.columns = columns
            self.first = self.first or source
            its = listed.path, change.digest, listed.bytes, listed.modified
            self.encoded.append(Encoded(*its, key, change.why, tuple(rows)))

    def _open(self, listed: Listed, network: Network, types: _Types | None = None) -> EvidenceSource:
        path, folder = self.files.paths[listed.path], self.files.found.folder
        known = () if types is None else (types.kept, types.case_id)
        return open_inputs(path, network, self.spec, self.options, folder, *known)

    def _is_unlike(self, source: EvidenceSource) -> bool:
        """Return True if columns that are carried through have no type, or another one than in the inputs so far."""
        from junctor.evidence.read import untyped

        types = str(source.case_id_type), {field.name: str(field.type) for field in source.kept_schema}
        return untyped(source) or (self.columns is not None and types != (self.columns.case_id, self.columns.kept))

    def _types_of(self, changes: Changes, known: Sequence[Input], network: Network) -> _Types:
        """Return the types in the inputs so far: those answered, or read before; without any, in those to be answered.

        Raises EvidenceError for answers that cannot be read.
        """
        types = _Types()
        if self.first is not None:
            types.add(self.first)
            return types
        if self.columns is not None:
            return self._types_of_answers(known, self.columns)
        for change in changes.answer:
            # It is told when its turn comes.
            with suppress(EvidenceError):
                types.add(self._open(change.listed, network))
            if types.case_id is not None and len(types.kept) == len(self.spec.keep):
                break
        return types

    def _types_of_answers(self, known: Sequence[Input], columns: EvidenceColumns) -> _Types:
        from junctor.runs.answer_files import schema_of_part

        types = _Types()
        parts = (self.directory.path / part for each in known for part in each.parts)
        part = next((part for part in parts if part.exists()), None)
        if part is not None:
            with reading_errors_for(part):
                schema = schema_of_part(part)
            # Parquet has not all types of Arrow. Case ids are the first column of answers, whatever its name.
            if str(schema.field(0).type) == columns.case_id != _UNTYPED:
                types.case_id = schema.field(0).type
            for name, kind in columns.kept.items():
                if str(schema.field(name).type) == kind != _UNTYPED:
                    types.kept[name] = schema.field(name).type
        return types

    def tell(self) -> None:
        """Warn of inputs that lack columns."""
        if self.lacking:
            path, names = next(iter(self.lacking.items()))
            logger.warning(
                "%s without columns that others have: their rows do not observe these variables; %s lacks %s",
                counted(len(self.lacking), "input"),
                path,
                ", ".join(names[:_NAMED]) + ", ..." * (len(names) > _NAMED),
            )

    def _columns(self, listed: Listed, source: EvidenceSource, network: Network) -> EvidenceColumns:
        """Return the columns so far, with those of an input; raises EvidenceError for other types than before."""
        place = Place(str(self.files.paths[listed.path]))
        names = tuple(network.variables[i].name for i in source.columns)
        kept = {field.name: str(field.type) for field in source.kept_schema}
        here = EvidenceColumns(names, str(source.case_id_type), kept)
        before = self.columns or here
        if here.case_id != before.case_id:
            raise EvidenceError(_other_type("case ids", here.case_id, before.case_id), place)
        for name, kind in kept.items():
            if kind != before.kept[name]:
                raise EvidenceError(_other_type(f"column {name!r}", kind, before.kept[name]), place)
        missing = [name for name in before.evidence if name not in names]
        if missing and self.spec.strict:
            raise EvidenceError(f"no column {missing[0]!r}, but other inputs have one", place)
        if missing:
            self.lacking[listed.path] = missing
        return replace(before, evidence=tuple(dict.fromkeys([*before.evidence, *names])))

    def _free_key(self, change: Change, source: EvidenceSource, taken: set[tuple[str, str]]) -> str:
        """Return the key of an input, which is not among those that are taken in its partition."""
        path = change.listed.path
        format = self.options["evidence_format"] or format_of(self.files.paths[path])
        # Other files may have given them, and when an interrupted increment goes on others may be there.
        types = [str(source.case_id_type), {field.name: str(field.type) for field in source.kept_schema}]
        for copy in count():
            told = [spec_record(self.spec), change.digest, format, types, copy]
            key = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:_KEY_DIGITS]
            if (partition_of(path), key) not in taken:
                taken.add((partition_of(path), key))
                break
        return key


def _with_staying(columns: EvidenceColumns, encoding: _Encoding, known: Sequence[str]) -> EvidenceColumns:
    """Return the columns where all inputs before were to be answered again, and some could not be read.

    columns: before.
    known: paths of those inputs.
    Raises EvidenceError where answers that stay for that reason have other types than the new ones.
    """
    found = encoding.columns
    staying = [path for path in known if path in encoding.broken]
    if found is None or not staying:
        return columns if found is None else found
    if (found.case_id, found.kept) != (columns.case_id, columns.kept):
        raise EvidenceError(
            "case ids or kept columns of other inputs have other types now, but the answers to this one stay, because "
            f"it cannot be read ({encoding.broken[staying[0]]}): mend or remove it",
            Place(str(encoding.files.paths[staying[0]])),
        )
    return replace(found, evidence=tuple(dict.fromkeys([*columns.evidence, *found.evidence])))


def _refuse_another_folder(found: InputFiles, root: AnyPath, known: Sequence[Input]) -> None:
    """Raise EvidenceError for files that have their names in another folder than the inputs before, unless those moved.

    found: the files.
    root, known: the folder and the inputs before.
    """
    now = found.root.absolute()
    # Another store, or a disk in place of one, is not looked into: it may be out of reach.
    if names_below(now, root) is not None or now.parts[0] != root.parts[0]:
        return
    if isinstance(root, RemotePath) and isinstance(now, RemotePath):
        root = root.opened_as(now)
    # The same files would have other names and be answered twice, or others the same names and replace their answers.
    # Inputs that were moved are the same in another folder; they are at their old place no more.
    try:
        before = input_files(root, check=False)
    except EvidenceError:
        return
    there = {before.name_of(path) for path in before.paths}
    if any(each.path in there for each in known):
        raise EvidenceError(
            f"the inputs so far are in {root}, and still there: give that folder, or a folder or glob in it; for other "
            "evidence name another --output",
            Place(str(found.root)),
        )


def _recorded(root: AnyPath) -> str:
    return root.url if isinstance(root, RemotePath) else str(root)


def _other_type(what: str, kind: str, before: str) -> str:
    """Return why an input cannot join others of which a column has another type, and what helps."""
    if before == _UNTYPED:
        return (
            f"{what} of type {kind}, but in all inputs answered so far they are missing and have no type: "
            "answer those anew, together with this one, into another --output or after deleting this one"
        )
    return f"{what} of type {kind}, but of type {before} in other inputs: write the file with that type"


def _partitions(source: EvidenceSource, rows: int, threads: int) -> Iterator[EncodedPartition]:
    """Yield the partitions of an input; of one without rows, a partition without any: its answers have the columns."""
    from junctor.evidence.encode import concatenate

    has_rows = False
    for partition in source.partitions(rows, threads):
        has_rows = True
        yield partition
    if not has_rows:
        yield concatenate([], source.case_id_type, 0, source.kept_schema)
