"""Evidence tables in Parquet and Arrow IPC files (file and stream), read batch by batch.

Main classes: ParquetTable and ArrowTable, opened by `junctor.evidence.read`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa

from junctor.evidence.column_tables import RowPlaces, spread_over
from junctor.evidence.columns import is_text
from junctor.model.errors import EvidenceError, Place
from junctor.runtime.arrow import numbers_of, parquet_batches, plain_words_schema, with_plain_words
from junctor.runtime.footers import Chunk, chunks_of
from junctor.runtime.remote import AnyPath, arrow_file, parquet_source

# Rows of a batch, and its cells: dictionary indices of four bytes.
_BATCH_ROWS, _BATCH_CELLS = 2**16, 2**24
# Bytes read ahead of each column.
_BUFFER_BYTES = 2**20
# Bytes of a batch as it is read, and with long texts written out; of such texts in a part of the table, and in all of
# it: as many, and a thousand times the size of the file.
_BATCH_BYTES, _TEXT_BYTES, _PART_BYTES, _SPARE_BYTES, _MAX_EXPANSION = 2**28, 2**26, 2**28, 3 * 2**30, 1000
# Texts that are as long as that in the mean are not written out before the batch is cut.
_LONG_TEXT = 1024


def _rows_of_batch(columns: int) -> int:
    return min(_BATCH_ROWS, max(1, _BATCH_CELLS // max(1, columns)))


class BinaryTable:
    """A file whose rows have no lines, in groups that can be read apart."""

    path: AnyPath
    partition = 0

    def place_of(self, row: int) -> Place:
        """Return the place of a row: the file."""
        return Place(str(self.path))


class ParquetTable(BinaryTable):
    """A Parquet file. Text columns come as dictionaries: stored that way, and decoded once for each distinct cell."""

    def __init__(self, path: AnyPath) -> None:
        self.path = path
        with self._open([]) as file:
            self.schema: pa.Schema = file.schema_arrow

    @cached_property
    def groups(self) -> list[int]:
        """Rows of each row group."""
        with self._open([]) as file:
            return [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]

    @cached_property
    def _chunks(self) -> list[list[Chunk]]:
        with self.path.open("rb") as file:
            return chunks_of(file)

    def spread(self, count: int) -> RowPlaces:
        """Return about so many row groups over the file, and the number of its rows."""
        return spread_over(self, self.groups, count)

    def batches(
        self, positions: Sequence[int], plain: Sequence[int] = (), threads: int = 1, groups: range | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns at `positions`, in that order, never more than 65,536 rows at once.

        positions: of the columns.
        plain: positions of those whose texts are mostly different, which do not come as dictionaries.
        threads: more than 1 for those of Arrow.
        groups: row groups that are read, None for all.
        """
        names = [self.schema.names[position] for position in positions]
        alike = {self.schema.names[position] for position in positions if position not in plain}
        some = list(range(len(self._chunks)) if groups is None else groups)
        read = [self._chunks_of(group, names) for group in some]
        self._refuse_bomb(read, alike)
        # Long texts that are told by words: written out, a batch of them may be of any size.
        long = {name for chunks in read for name, chunk in chunks if name not in alike and _is_long(chunk)}
        # Arrow makes no dictionaries of differences.
        others = {name for chunks in read for name, chunk in chunks if chunk.has_differences}
        words = [name for name in names if name in alike | long and is_text(self.schema.field(name).type)]
        words = [name for name in words if name not in others]
        rows = min([_rows_of_batch(len(names)), *map(self._rows_of_batch, some, read, [{*words}] * len(read))])
        cut = [at for at, name in enumerate(names) if name in long and name in words]
        with self._open(words) as file:
            for batch in parquet_batches(file, rows, None if groups is None else some, names, use_threads=threads > 1):
                # Selected again: a name with a dot may have matched nested columns as well.
                # Damaged files may decode to offsets out of range, which later crash the process.
                picked = batch.select(names)
                picked.validate(full=True)
                yield from _written_out(picked, cut) if cut else (picked,)

    def rows_of_part(self, rows: int, names: Collection[str]) -> int:
        """Return how many of `rows` rows a part may have, a power of two, where texts are long.

        names: of columns that are carried through.
        """
        chunks = [chunk for group in self._chunks for chunk in group if chunk.column in names]
        width = max((chunk.bytes // max(1, chunk.values) for chunk in chunks), default=0)
        return rows if width * rows <= _PART_BYTES else 1 << max(0, (_PART_BYTES // width).bit_length() - 1)

    def _chunks_of(self, group: int, names: Sequence[str]) -> list[tuple[str, Chunk]]:
        """Return the column chunks of some columns, with the names of these."""
        wanted, found = {*names}, []
        for chunk in self._chunks[group]:
            # Of a list the path goes on: `name.list.element`, in older files `name.bag.array`.
            name = chunk.column if chunk.column in wanted else chunk.column.rsplit(".", 2)[0]
            if name in wanted:
                found.append((name, chunk))
        return found

    def _refuse_bomb(self, groups: Sequence[Sequence[tuple[str, Chunk]]], alike: Collection[str]) -> None:
        """Raise EvidenceError for a small file whose texts and lists are far more bytes: what repeats is almost free.

        groups: column chunks that are read.
        alike: names of columns whose texts stay words.
        """
        decoded = Counter[str]()
        for name, chunk in (pair for chunks in groups for pair in chunks):
            is_cell = chunk.column == name
            if not (is_cell and (name in alike or not is_text(self.schema.field(name).type))):
                decoded[name] += chunk.bytes
        allowed = _SPARE_BYTES + _MAX_EXPANSION * self.path.stat().st_size
        for name, size in decoded.most_common(1):
            if size > allowed:
                raise EvidenceError(
                    f"column {name!r} would become {size:,} bytes, allowed are {allowed:,} for a file of this size: "
                    "leave the column out, or write shorter texts",
                    Place(str(self.path)),
                )

    def _rows_of_batch(self, group: int, chunks: Sequence[tuple[str, Chunk]], words: Collection[str]) -> int:
        """Return the rows of a row group whose texts and lists are of the bytes of a batch.

        words: names of columns whose texts come as words.
        """
        size = sum(8 * chunk.values if name in words else chunk.bytes for name, chunk in chunks)
        return max(1, _BATCH_BYTES * max(1, self.groups[group]) // max(1, size)) if size > _BATCH_BYTES else _BATCH_ROWS

    def _open(self, dictionaries: list[str]) -> pa.parquet.ParquetFile:
        import pyarrow.parquet as pq

        # Buffered reads: a row group of gigabytes is not loaded whole.
        return pq.ParquetFile(
            parquet_source(self.path), read_dictionary=dictionaries or None, buffer_size=_BUFFER_BYTES, pre_buffer=False
        )


def _is_long(chunk: Chunk) -> bool:
    """Return True for words that may become much longer than they are stored."""
    return chunk.has_words and (chunk.text is None or chunk.text > _LONG_TEXT * chunk.values)


def _written_out(batch: pa.RecordBatch, columns: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield a batch in pieces of bounded bytes, with the texts of some columns in place of their words."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for at in columns:
        words = batch.column(at)
        lengths = np.array([*map(len, words.dictionary.cast(pa.large_binary()).to_pylist()), 0], np.int64)
        sizes += lengths[numbers_of(words.indices, len(lengths) - 1)]
    ends = np.flatnonzero(np.diff(np.cumsum(sizes) // _TEXT_BYTES, append=-1)) + 1
    for start, end in pairwise([0, *ends.tolist()]):
        piece = batch.slice(start, end - start)
        for at in columns:
            piece = piece.set_column(at, piece.schema.names[at], piece.column(at).dictionary_decode())
        yield piece


class ArrowTable(BinaryTable):
    """An Arrow IPC file (also Feather version 2) or stream, distinguished by its first bytes."""

    def __init__(self, path: AnyPath) -> None:
        self.path = path
        with arrow_file(path) as file, self._open(file) as reader:
            self.schema: pa.Schema = plain_words_schema(reader.schema)

    @cached_property
    def groups(self) -> list[int] | None:
        """Rows of each record batch; None for a stream."""
        # A column is enough, and columns may be compressed.
        with arrow_file(self.path) as file, self._open(file, [0] if len(self.schema) else None) as reader:
            if not isinstance(reader, pa.ipc.RecordBatchFileReader):
                return None
            return [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]

    def spread(self, count: int) -> RowPlaces:
        """Return about so many record batches over the file, none of a stream, and the number of its rows."""
        if self.groups is not None:
            return spread_over(self, self.groups, count)
        with arrow_file(self.path) as file, self._open(file, [0] if len(self.schema) else None) as reader:
            return RowPlaces(self, (), sum(batch.num_rows for batch in reader))

    def batches(
        self, positions: Sequence[int], plain: Sequence[int] = (), threads: int = 1, groups: range | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns at `positions`, in that order, with plain words, in pieces of at most 65,536 rows.

        positions: of the columns.
        plain, threads: make no difference.
        groups: record batches that are read, None for all; a stream is read to its end.
        """
        with arrow_file(self.path) as file, self._open(file) as reader:
            if isinstance(reader, pa.ipc.RecordBatchFileReader):
                some = range(reader.num_record_batches) if groups is None else groups
                batches = (reader.get_batch(i) for i in some)
            else:
                batches = iter(reader)
            rows = _rows_of_batch(len(positions))
            for batch in batches:
                picked = batch.select(list(positions))
                picked.validate(full=True)
                picked = with_plain_words(picked)
                yield from (picked.slice(start, rows) for start in range(0, picked.num_rows, rows))

    def _open(
        self, file: pa.NativeFile, columns: list[int] | None = None
    ) -> pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader:
        import pyarrow.ipc

        options = pyarrow.ipc.IpcReadOptions(included_fields=columns)
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        return (pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(file, options=options)
