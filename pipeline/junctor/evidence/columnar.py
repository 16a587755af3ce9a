"""Evidence tables in Parquet and Arrow IPC files (file and stream), read batch by batch.

Main classes: ParquetTable and ArrowTable, opened by `junctor.evidence.read`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import pyarrow as pa

from junctor.evidence.columns import is_text
from junctor.model.errors import Place
from junctor.runtime.arrow import parquet_batches, plain_words_schema, with_plain_words
from junctor.runtime.footers import Chunk, chunks_of
from junctor.runtime.remote import AnyPath, arrow_file, parquet_source

# Rows of a batch, and its cells: dictionary indices of four bytes.
_BATCH_ROWS, _BATCH_CELLS = 2**16, 2**24
# Bytes read ahead of each column.
_BUFFER_BYTES = 2**20


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
        alike = [self.schema.names[position] for position in positions if position not in plain]
        rows = _rows_of_batch(len(names))
        some = None if groups is None else list(groups)
        with self._with_dictionaries([name for name in alike if is_text(self.schema.field(name).type)], some) as file:
            for batch in parquet_batches(file, rows, some, names, use_threads=threads > 1):
                # Selected again: a name with a dot may have matched nested columns as well.
                # Damaged files may decode to offsets out of range, which later crash the process.
                picked = batch.select(names)
                picked.validate(full=True)
                yield picked

    @contextmanager
    def _with_dictionaries(self, names: list[str], groups: list[int] | None) -> Iterator[pa.parquet.ParquetFile]:
        """Open the file with dictionaries of the columns in `names`, but for those that Arrow makes none of."""
        some = range(len(self._chunks)) if groups is None else groups
        others = {chunk.column for group in some for chunk in self._chunks[group] if chunk.has_differences}
        with self._open([name for name in names if name not in others]) as file:
            yield file

    def _open(self, dictionaries: list[str]) -> pa.parquet.ParquetFile:
        import pyarrow.parquet as pq

        # Buffered reads: a row group of gigabytes is not loaded whole.
        return pq.ParquetFile(
            parquet_source(self.path), read_dictionary=dictionaries or None, buffer_size=_BUFFER_BYTES, pre_buffer=False
        )


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
