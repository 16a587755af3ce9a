"""Evidence files and folders as streams of encoded partitions.

Main function: `open_evidence`; called by runs, the API and the command line. `files` recognises formats, `layout`
assigns columns, `states` reads cells, `encode` marks invalid rows. A folder is one table.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, Unpack

import pyarrow as pa

from junctor.evidence.column_tables import ColumnTable, RowPlaces
from junctor.evidence.columns import is_string
from junctor.evidence.encode import EncodedPartition, Encoder, concatenate, numbered, numbered_in_files
from junctor.evidence.encoded import is_encoded
from junctor.evidence.encoded_source import EncodedSource
from junctor.evidence.files import (
    SEPARATORS,
    InputFiles,
    Places,
    Stamps,
    checked_format,
    checked_separator,
    format_of,
    input_files,
    partition_columns,
    reading_errors_for,
    stamp_of,
)
from junctor.evidence.layout import CASE_IDS, ColumnLayout, read_layout, warn_of_no_evidence
from junctor.evidence.mapping import EvidenceMapping, MappingSource, read_mapping
from junctor.evidence.pipes import spooled
from junctor.model.errors import EvidenceError, Place
from junctor.model.network import Network
from junctor.model.option_table import ReadingOptions, takes_keywords
from junctor.runtime.remote import AnyPath, RemotePath
from junctor.runtime.threads import ahead

# Bytes of blocks that wait to be encoded.
_AHEAD = 2**28
# Bytes of case ids and kept columns of a partition; those of text have at most twice as many in Arrow.
MOST_CARRIED = 2**30
NO_TYPES: Mapping[str, pa.DataType] = MappingProxyType({})
# Most partitions that are read together where workers read apart, and the most rows that are read in vain for it, as a
# share of all.
MOST_PARTITIONS, SPAN_LOSS = 8, 0.6
# Places over the files of evidence at which rows are sampled.
PLACES = 4


class EvidenceSource(Protocol):
    """An open evidence file: its columns, and its rows in partitions."""

    @property
    def columns(self) -> list[int]:
        """Indices of the variables that the file has evidence on, ascending."""
        ...

    @property
    def case_id_type(self) -> pa.DataType:
        """The Arrow type of the case ids; int64 where they are row numbers."""
        ...

    @property
    def kept_schema(self) -> pa.Schema:
        """The names and types of the columns that are carried through."""
        ...

    def partitions(self, rows: int, threads: int = 1) -> Iterator[EncodedPartition]:
        """Yield partitions of `rows` rows, the last one shorter, in the order of the input; none if it has no rows.

        rows: of a partition.
        threads: that parse and encode; what is yielded does not depend on them.
        Holds one partition, and one block of the file for each thread, 256 MiB at the most. Raises EvidenceError for
        what cannot be read and, if the source is strict, for the first invalid row.
        """
        ...

    def names_of(self, rows: Sequence[int]) -> list[str]:
        """Return what people find some rows by: their numbers from 1, of several files the number in one and its path.

        rows: ascending, from 0. Of several files, all rows before these are read again.
        """
        ...


@takes_keywords()
def open_evidence(
    path: Places,
    network: Network,
    *,
    folder: AnyPath | None = None,
    mapping: EvidenceMapping | MappingSource | None = None,
    kept_types: Mapping[str, pa.DataType] = NO_TYPES,
    case_id_type: pa.DataType | None = None,
    **options: Unpack[ReadingOptions],
) -> EvidenceSource:
    """Open an evidence file, folder or glob; its columns are checked, its rows not read yet.

    path: file, or folder or glob of files of one table, or several; `-` or a pipe is read to its end.
    network: the network that names refer to.
    folder: of which a single file is; names of its subfolders may be columns.
    mapping: what columns and cells mean, its file, or the content of one.
    kept_types, case_id_type: types of columns that are carried through: of those whose cells are all missing, and of
        text; None, or without one, for those of the first file that has some.
    options: of the table.

    Raises EvidenceError.
    """
    format, separator = checked_format(options["evidence_format"]), checked_separator(options["separator"])
    case_id, strict = options["case_id"], options["strict"]
    source = _spooled(path)
    places = source if isinstance(source, tuple) else (source,)
    if not isinstance(mapping, EvidenceMapping):
        mapping = read_mapping(mapping, network)
    with reading_errors_for(places[0]):
        files = InputFiles(folder, places) if folder or format == "evid" else input_files(source)
        if files.paths == places and len(places) == 1:
            format = format or format_of(places[0])
            if format == "evid":
                return _open_evid(places[0], network, case_id, strict, options["keep"], mapping)
        known = names_of_columns(network, mapping)
        tables = [open_table(each, format or format_of(each), files.folder, separator, known) for each in files.paths]
        if any(is_encoded(table.schema) for table in tables):
            return _open_encoded(files.paths, network, mapping, options)
        if mapping is not None and folder is None:
            # Of evidence that grows, one file may lack what others have.
            for table in tables:
                mapping.refuse_absent(table.schema.names, str(table.path))
        layouts = [
            read_layout(
                table.schema,
                network,
                case_id=case_id,
                ignore_extra=options["ignore_extra"],
                keep=options["keep"],
                file=str(table.path),
                partition=table.partition,
                mapping=mapping,
            )
            for table in tables
        ]
    if options["ignore_extra"]:
        # One for all files, whose columns are the same.
        warn_of_no_evidence(layouts[0], tables[0].schema, str(tables[0].path))
    layouts = _with_types(layouts, kept_types, case_id_type)
    # Files of a folder may differ in the order of columns, so that each has its own encoder, but not in the columns.
    for table, layout in zip(tables[1:], layouts[1:], strict=True):
        _refuse_other_columns(layouts[0], layout, str(tables[0].path), str(table.path))
    pairs = zip(tables, layouts, strict=True)
    missing = tuple(map(str, options["missing"]))
    encoders = tuple(
        (table, layout, Encoder(network, layout, strict, table.place_of, mapping, missing)) for table, layout in pairs
    )
    # The first file stands for all of them: they have equal columns and types of case ids.
    return TableSource(layouts[0].variables, layouts[0].case_id_type, layouts[0].kept_schema, encoders)


def _open_encoded(
    paths: tuple[AnyPath, ...], network: Network, mapping: EvidenceMapping | None, options: ReadingOptions
) -> EncodedSource:
    """Return the source of files that are encoded already; arguments as of `open_evidence`.

    Raises EvidenceError for options that say what cells mean: that is decided.
    """
    given = {name: options[name] for name in ("case_id", "missing", "separator") if options[name]}
    if given or (mapping is not None and mapping.digest):
        name = next((name.replace("_", "-") for name in given), "mapping")
        raise EvidenceError(
            f"is encoded already, and --{name} says how to: leave it out, or give it to `junctor ingest`",
            Place(str(paths[0])),
        )
    hidden = frozenset(network.variables[v].name for v in mapping.hidden) if mapping is not None else frozenset()
    keep = tuple(options["keep"])
    return EncodedSource(network, paths, keep, options["strict"], hidden, options["ignore_extra"])


@dataclass(frozen=True, eq=False, slots=True)
class RowSample:
    """Some rows of evidence.

    rows: from several places, or all of few.
    total: number of all rows.
    is_counted: False where `total` is extrapolated from bytes.
    """

    rows: EncodedPartition
    total: int
    is_counted: bool = True


def sample_rows(
    path: str | os.PathLike[str] | RemotePath, network: Network, rows: int, apart: bool = False, **options: Any
) -> RowSample:
    """Return all rows of evidence if they are less than `rows`, otherwise about as many, from places over its files.

    path, network, options: as of `open_evidence`, whose errors it raises.
    apart: whether each file of a folder or glob is read by itself, with the columns that it has.
    """
    files = input_files(path) if apart else None
    each = [(path, None)] if files is None else [(file, files.folder) for file in files.paths]
    sources = (open_evidence(file, network, folder=folder, **options) for file, folder in each)
    found: list[EncodedPartition] = []
    opened: list[EvidenceSource] = []
    for source in sources:
        opened.append(source)
        left = rows - sum(part.batch.rows for part in found)
        found += [_evidence_alone(part) for part in islice(source.partitions(left), 1)]
        if left == sum(part.batch.rows for part in found[-1:]):
            # As many as are wanted: there may be others.
            return _spread_rows([*opened, *sources], rows, concatenate(found, pa.null(), 0))
    first = concatenate(found, pa.null(), 0)
    return RowSample(first, first.batch.rows)


def _spread_rows(sources: Sequence[EvidenceSource], rows: int, first: EncodedPartition) -> RowSample:
    """Return about so many rows from places over the files of some sources; `first`: their first rows."""
    places: list[tuple[TableSource, int, ColumnTable, int]] = []
    total, is_counted = 0, True
    for source in sources:
        if not isinstance(source, TableSource):
            # In memory as a whole.
            total += sum(part.batch.rows for part in source.partitions(rows))
            continue
        for number, (table, _, _) in enumerate(source.files):
            with reading_errors_for(table.path):
                spread = table.spread(PLACES)
            total, is_counted = total + spread.rows, is_counted and spread.is_counted
            places += [(source, number, spread.table, group) for group in spread.groups]
    some = [places[i * len(places) // PLACES] for i in range(PLACES)] if len(places) >= PLACES else places
    found = [source.first_of(number, table, group, max(1, rows // len(some))) for source, number, table, group in some]
    taken = concatenate([part for parts in found for part in parts], pa.null(), 0)
    if not taken.batch.rows:
        return RowSample(first, max(total, first.batch.rows), is_counted)
    return RowSample(taken, max(total, taken.batch.rows), is_counted)


def _evidence_alone(part: EncodedPartition) -> EncodedPartition:
    """Return rows without what is carried through: files by themselves may have different types of it."""
    return replace(part, case_ids=pa.nulls(part.batch.rows), kept=None)


def rows_of_part(path: Places, rows: int, names: Collection[str], format: str | None = None) -> int:
    """Return how many of `rows` rows a part of evidence may have: fewer where a file of a disk tells of long texts.

    path, format: as of `open_evidence`.
    names: of columns that are carried through.
    """
    file = _spooled(path)
    # A folder would be listed once more, of an object there would be more requests.
    if not isinstance(file, Path) or not file.is_file():
        return rows
    with reading_errors_for(file):
        if (format or format_of(file)) != "parquet":
            return rows
        from junctor.evidence.columnar import ParquetTable

        return ParquetTable(file).rows_of_part(rows, names)


def digest_of(path: Places, as_recorded: bool = False) -> str:
    """Return the SHA-256 of a file's bytes; of a folder or glob, of names and contents of the files that are read.

    as_recorded: whether the files of a dataset are taken for what its record says, without reading them.
    Raises EvidenceError for files of a dataset that are not as they were written.
    """
    files = input_files(_spooled(path))
    if files.folder is None:
        return _sha_of(files.paths[0])
    sha = hashlib.sha256()
    for each in files.paths:
        sha.update(files.name_of(each).encode(errors="surrogateescape") + b"\0")
        content = files.recorded[each] if as_recorded else files.refuse_damaged(each, _sha_of(each))
        sha.update(bytes.fromhex(content))
    return sha.hexdigest()


def stamps_of(path: Places) -> Stamps:
    """Return the stamps of a file, or of the files of a folder or glob; of objects as they were listed.

    None of an object that is given alone: it must not change, and to ask for it takes a request.
    """
    files = input_files(_spooled(path))
    if files.folder is None and isinstance(files.paths[0], RemotePath):
        return {}
    return {each: stamp_of(each) for each in files.paths}


def _spooled(path: Places) -> AnyPath | tuple[AnyPath, ...]:
    return tuple(map(spooled, path)) if isinstance(path, tuple) else spooled(path)


def _sha_of(path: AnyPath) -> str:
    with reading_errors_for(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class TableSource:
    """Evidence in one or several files of columns."""

    columns: list[int]
    case_id_type: pa.DataType
    kept_schema: pa.Schema
    _files: tuple[tuple[ColumnTable, ColumnLayout, Encoder], ...] = field(repr=False)
    # Number of the first row of the files, and those that are read, where these are not all.
    _first_row: int = 0
    _within: range | None = None

    @property
    def paths(self) -> tuple[AnyPath, ...]:
        """Its files."""
        return tuple(table.path for table, _, _ in self._files)

    @property
    def files(self) -> tuple[tuple[ColumnTable, ColumnLayout, Encoder], ...]:
        """Its tables, with what reads each of them."""
        return self._files

    def first_of(self, number: int, table: ColumnTable, group: int, rows: int) -> list[EncodedPartition]:
        """Return the first rows of a group, at most so many, without what is carried through.

        number: of the file.
        table: that reads the group, by the layout of the file.
        group: of `table.spread`.
        """
        _, layout, encoder = self._files[number]
        found: list[EncodedPartition] = []
        with reading_errors_for(table.path):
            for batch in table.batches(layout.positions, _plain(layout, encoder), 1, range(group, group + 1)):
                left = rows - sum(part.batch.rows for part in found)
                piece = batch.slice(0, left)
                encoded = encoder.encode_valid(piece, 0) or encoder.encode(piece, 0, 0)
                found.append(_evidence_alone(encoded))
                if piece.num_rows == left:
                    break
        return found

    def spans(self, rows: int, least: int) -> list[range] | None:
        """Return rows that can be read apart, each of some whole partitions; None if that took much longer.

        rows: of a partition.
        least: how many there should be.
        """
        groups: list[Sequence[int]] = []
        for table, _, _ in self._files:
            with reading_errors_for(table.path):
                of_file = table.groups
            if of_file is None:
                return None
            groups.append(of_file)
        return spans_of([count for of_file in groups for count in of_file], rows, least)

    def part(self, rows: range) -> TableSource:
        """Return the source of some rows alone, with the numbers that they have here.

        rows: one of `spans`.
        """
        files: list[tuple[ColumnTable, ColumnLayout, Encoder]] = []
        first_row = here = 0
        for file in self._files:
            count = sum(file[0].groups or ())
            if here < rows.stop and here + count > rows.start:
                first_row = first_row if files else here
                files.append(file)
            here += count
        return replace(self, _files=tuple(files), _first_row=first_row, _within=rows)

    def partitions(self, rows: int, threads: int = 1) -> Iterator[EncodedPartition]:
        """Yield partitions of `rows` rows; see `EvidenceSource`."""
        if rows < 1:
            raise ValueError(f"partitions need at least one row, not {rows}")
        # Blocks of files and partitions have different sizes: slices of blocks are held until they fill a partition.
        first_row, held_rows = 0 if self._within is None else self._within.start, 0
        held: list[EncodedPartition] = []
        for piece in self._pieces(threads):
            start = 0
            while start < piece.batch.rows:
                take = min(rows - held_rows, piece.batch.rows - start)
                held.append(piece.rows(start, take))
                held_rows, start = held_rows + take, start + take
                self._refuse_bytes(held, rows)
                if held_rows == rows:
                    yield self._joined(held, first_row)
                    first_row, held_rows, held = first_row + rows, 0, []
        if held:
            yield self._joined(held, first_row)
        if self._within is not None and first_row + held_rows != self._within.stop:
            raise EvidenceError("it has changed while it was read", Place(str(self._files[-1][0].path)))

    def _refuse_bytes(self, held: Sequence[EncodedPartition], rows: int) -> None:
        """Raise EvidenceError where case ids and kept columns of a partition of `rows` rows take too many bytes."""
        if (carried := sum(piece.carried for piece in held)) > MOST_CARRIED:
            fewer = max(1, sum(piece.batch.rows for piece in held) // 8)
            raise EvidenceError(
                f"case ids and columns to keep of one part take {carried:,} bytes and more, allowed are "
                f"{MOST_CARRIED:,}: fewer rows a part, now {rows:,} (--partition-rows {fewer})",
                Place(str(self._files[-1][0].path)),
            )

    def names_of(self, rows: Sequence[int]) -> list[str]:
        """Return what people find some rows by; see `EvidenceSource`."""
        if len(self._files) == 1:
            return numbered(rows)
        blocks = self._blocks(1)
        return numbered_in_files(rows, ((each.path, each.first_row - each.row_in_file, each.end) for each in blocks))

    def unknown_states(self) -> dict[int, list[str]]:
        """Return the texts of cells that name no state of their variable, sorted; reads all rows."""
        found: dict[int, set[str]] = {}
        for block in self._blocks(1):
            with reading_errors_for(block.path):
                for variable, texts in block.encoder.unknown_states(block.batch).items():
                    found.setdefault(variable, set()).update(texts)
        return {variable: sorted(texts) for variable, texts in sorted(found.items()) if texts}

    def _joined(self, held: Sequence[EncodedPartition], first_row: int) -> EncodedPartition:
        # Kept columns may be too large for one array of their type, or their dictionaries.
        with reading_errors_for(self._files[0][0].path):
            return concatenate(held, self.case_id_type, first_row, self.kept_schema)

    def _pieces(self, threads: int) -> Iterator[EncodedPartition]:
        """Yield the batches of the files, encoded."""
        for block, encoded in ahead(_encoded, self._blocks(threads), threads, lambda block: block.batch.nbytes, _AHEAD):
            if encoded is None:
                # In the order of the rows: suggestions are limited, and the first errors are the ones people read.
                with reading_errors_for(block.path):
                    encoded = block.encoder.encode(block.batch, block.first_row, block.row_in_file)
            yield encoded

    def _blocks(self, threads: int) -> Iterator[_Block]:
        first_row = self._first_row
        for table, layout, encoder in self._files:
            groups, row_in_file = None, 0
            if self._within is not None:
                with reading_errors_for(table.path):
                    groups, row_in_file = _groups_of(table.groups or (), self._within, first_row)
                first_row += row_in_file
            batches = table.batches(layout.positions, _plain(layout, encoder), threads, groups)
            while True:
                # Only reading is explained as a damaged file; errors of the consumer between two batches must pass
                # unchanged.
                with reading_errors_for(table.path):
                    batch = next(batches, None)
                if batch is None:
                    break
                block = _Block(table.path, encoder, batch, first_row, row_in_file)
                if (here := block if self._within is None else block.within(self._within)) is not None:
                    yield here
                row_in_file += batch.num_rows
                first_row += batch.num_rows


def _plain(layout: ColumnLayout, encoder: Encoder) -> list[int]:
    """Return the positions of columns whose texts are mostly different."""
    plain = [column.position for column in layout.columns if column.role == "case_id"]
    plain += encoder.binned(layout)
    # Those of kept columns that are evidence too are not.
    plain += set(layout.kept).difference(column.position for column in layout.columns)
    return sorted(plain)


@dataclass(frozen=True, eq=False, slots=True)
class _Block:
    """A batch of a file; its first row, in the table and in the file."""

    path: AnyPath
    encoder: Encoder
    batch: pa.RecordBatch
    first_row: int
    row_in_file: int

    @property
    def end(self) -> int:
        """The row of the table behind the block."""
        return self.first_row + int(self.batch.num_rows)

    def within(self, rows: range) -> _Block | None:
        """Return the block of those of its rows that are among `rows`, None without any."""
        start = max(0, rows.start - self.first_row)
        count = min(self.batch.num_rows, rows.stop - self.first_row) - start
        if count <= 0:
            return None
        piece = self.batch.slice(start, count)
        return replace(self, batch=piece, first_row=self.first_row + start, row_in_file=self.row_in_file + start)


def spans_of(groups: Sequence[int], rows: int, least: int) -> list[range] | None:
    """Return ranges of whole partitions; None if too many rows would be read in vain.

    groups: rows of each, in the order of the table; a range is read from the start of a group.
    rows: of a partition.
    least: how many ranges there should be.
    """
    starts = [0, *accumulate(groups)]
    total = starts.pop()
    # Rows that are read in vain before each partition.
    before = [first - starts[bisect_right(starts, first) - 1] for first in range(0, total, rows)]
    count, most = len(before), max(1, min(MOST_PARTITIONS, len(before) // max(1, least)))
    while True:
        bounds = [0]
        while (at := bounds[-1]) < count:
            # At the end nothing is left to begin.
            lost = {end: 0 if end == count else before[end] for end in range(at + 1, min(at + most, count) + 1)}
            bounds.append(min(lost, key=lambda end: (lost[end] / (end - at), -end)))
        if sum(before[at] for at in bounds[:-1]) <= SPAN_LOSS * total:
            return [range(at * rows, min(total, end * rows)) for at, end in pairwise(bounds)]
        if most == MOST_PARTITIONS:
            return None
        most = min(MOST_PARTITIONS, 2 * most)


def _groups_of(groups: Sequence[int], rows: range, first_row: int) -> tuple[range, int]:
    """Return the groups of a file that have some of the rows, and the rows of the file before them.

    groups: rows of each.
    rows: of the table.
    first_row: number that the first row of the file has there.
    """
    starts = [first_row, *(first_row + count for count in accumulate(groups))]
    first = max(0, bisect_right(starts, rows.start) - 1)
    return range(first, min(len(groups), bisect_left(starts, rows.stop))), starts[first] - first_row


def _encoded(block: _Block) -> tuple[_Block, EncodedPartition | None]:
    with reading_errors_for(block.path):
        return block, block.encoder.encode_valid(block.batch, block.first_row)


def untyped(source: EvidenceSource) -> bool:
    """Return True if columns that are carried through have no type: all of their cells are missing."""
    return any(map(pa.types.is_null, [source.case_id_type, *source.kept_schema.types]))


def _with_types(
    layouts: list[ColumnLayout], kept_types: Mapping[str, pa.DataType], case_id_type: pa.DataType | None
) -> list[ColumnLayout]:
    """Return layouts whose columns that are carried through have one type, where they can."""
    ids = _alike([layout.case_id_type for layout in layouts], case_id_type)
    kept = [
        _alike([layout.kept_schema.field(at).type for layout in layouts], kept_types.get(name))
        for at, name in enumerate(layouts[0].kept_schema.names)
    ]
    schemas = [
        pa.schema([field.with_type(kinds[i]) for field, kinds in zip(layout.kept_schema, kept, strict=True)])
        for i, layout in enumerate(layouts)
    ]
    return [
        replace(layout, case_id_type=kind, kept_schema=schema)
        for layout, kind, schema in zip(layouts, ids, schemas, strict=True)
    ]


def _alike(kinds: Sequence[pa.DataType], given: pa.DataType | None) -> list[pa.DataType]:
    """Return types of a column in several files; text, and cells that are all missing, have the given or first one."""
    first = given or next((kind for kind in kinds if not pa.types.is_null(kind)), pa.null())
    return [first if pa.types.is_null(kind) or (is_string(kind) and is_string(first)) else kind for kind in kinds]


def _refuse_other_columns(first: ColumnLayout, other: ColumnLayout, first_file: str, file: str) -> None:
    names, others = ({column.name for column in layout.columns} for layout in (first, other))
    for name in sorted(names ^ others):
        has, lacks = (first_file, file) if name in names else (file, first_file)
        raise EvidenceError(f"no column {name!r}, but {has} has one: the files of a folder are one table", Place(lacks))
    if first.case_id_type != other.case_id_type:
        raise EvidenceError(
            f"case ids of type {other.case_id_type}, but {first_file} has {first.case_id_type}: write them as one",
            Place(file),
        )
    for name, kind, expected in zip(
        first.kept_schema.names, other.kept_schema.types, first.kept_schema.types, strict=True
    ):
        if kind != expected:
            raise EvidenceError(
                f"column {name!r} to keep is of type {kind}, but {first_file} has {expected}: write it as one",
                Place(file),
            )


def _open_evid(
    path: AnyPath,
    network: Network,
    case_id: str | None,
    strict: bool,
    keep: Sequence[str],
    mapping: EvidenceMapping | None,
) -> EvidenceSource:
    from junctor.evidence.uai_evid import EvidSource

    if path.is_dir() or case_id is not None or keep:
        missing = "folders, only files" if path.is_dir() else "columns, so none for the case ids and none to keep"
        raise EvidenceError(f"UAI evidence has no {missing}", Place(str(path)))
    # Without a digest it hides targets alone.
    if mapping is not None and mapping.digest:
        raise EvidenceError("UAI evidence has no columns, so none to map: leave out the mapping", Place(str(path)))
    return EvidSource.read(path, network, strict, frozenset() if mapping is None else mapping.hidden)


def names_of_columns(network: Network, mapping: EvidenceMapping | None) -> frozenset[str]:
    """Return names that columns of evidence may have."""
    return frozenset(
        [*network.index, *CASE_IDS, *(mapping.columns if mapping else ()), *(mapping.ignored if mapping else ())]
    )


def open_table(
    path: AnyPath,
    format: str,
    folder: AnyPath | None = None,
    separator: str | None = None,
    known: Container[str] = (),
) -> ColumnTable:
    """Open a file of columns.

    path, format: of the file.
    folder: whose subfolders `column=value` are columns as well.
    separator: of text, None for the one that its first lines show.
    known: names that columns may have.
    Raises EvidenceError.
    """
    with reading_errors_for(path):
        if separator is not None and format not in SEPARATORS:
            raise EvidenceError(
                f"found the separator {separator!r}, which {format} has not: leave it out", Place(str(path))
            )
        if format in SEPARATORS:
            from junctor.evidence.delimited import DelimitedTable

            table: ColumnTable = DelimitedTable(path, SEPARATORS[format], separator, known)
        elif format == "parquet":
            from junctor.evidence.columnar import ParquetTable

            table = ParquetTable(path)
        elif format == "arrow":
            from junctor.evidence.columnar import ArrowTable

            table = ArrowTable(path)
        else:
            raise EvidenceError("UAI evidence cannot be one of several files of a folder", Place(str(path)))
        constants = partition_columns("/".join(path.parts[len(folder.parts) :])) if folder else {}
        return _WithFolderColumns(table, constants) if constants else table


class _WithFolderColumns:
    """A file in folders called `column=value`, as Hive and Spark write them: each is a column, after the file's own."""

    def __init__(self, table: ColumnTable, constants: dict[str, str | None]) -> None:
        self.path = table.path
        self.partition = len(constants)
        self._table = table
        self._values = list(constants.values())
        self._width = len(table.schema)
        self.schema: pa.Schema = table.schema
        for name in constants:
            self.schema = self.schema.append(pa.field(name, pa.string()))

    @property
    def groups(self) -> Sequence[int] | None:
        return self._table.groups

    def batches(
        self, positions: Sequence[int], plain: Sequence[int] = (), threads: int = 1, groups: range | None = None
    ) -> Iterator[pa.RecordBatch]:
        inner = [position for position in positions if position < self._width]
        own = [position for position in plain if position < self._width]
        for batch in self._table.batches(inner, own, threads, groups):
            columns = dict(zip(inner, batch.columns, strict=True))
            for i, value in enumerate(self._values, self._width):
                columns[i] = pa.repeat(pa.scalar(value, pa.string()), batch.num_rows)
            picked = pa.RecordBatch.from_arrays([columns[i] for i in positions], [str(i) for i in positions])
            # A record batch without columns loses its number of rows.
            yield picked if positions else batch

    def place_of(self, row: int) -> Place:
        return self._table.place_of(row)

    def spread(self, count: int) -> RowPlaces:
        spread = self._table.spread(count)
        table = copy(self)
        table._table = spread.table
        return replace(spread, table=table)
