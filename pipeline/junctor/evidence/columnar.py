"""Evidence tables in Parquet and Arrow IPC files (file and stream), read batch by batch.

Main classes: ParquetTable and ArrowTable, opened by `junctor.evidence.read`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from junctor.evidence.columns import is_text
from junctor.model.errors import Place
from junctor.runtime.remote import AnyPath, arrow_file, parquet_source

# Rows of a batch, and its cells: dictionary indices of four bytes.
_BATCH_ROWS, _BATCH_CELLS = 2**16, 2**24
# Bytes read ahead of each column.
_BUFFER_BYTES = 2**20


def _rows_of_batch(columns: int) -> int:
    return min(_BATCH_ROWS, max(1, _BATCH_CELLS // max(1, columns)))


class BinaryTable:
    """A file whose rows have no lines."""

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

    def batches(
        self, positions: Sequence[int], plain: Sequence[int] = (), threads: int = 1
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns at `positions`, in that order, never more than 65,536 rows at once.

        positions: of the columns.
        plain: positions of those whose texts are mostly different, which do not come as dictionaries.
        threads: more than 1 for those of Arrow.
        """
        names = [self.schema.names[position] for position in positions]
        alike = [self.schema.names[position] for position in positions if position not in plain]
        rows = _rows_of_batch(len(names))
        with self._open([name for name in alike if is_text(self.schema.field(name).type)]) as file:
            for batch in file.iter_batches(rows, columns=names, use_threads=threads > 1):
                # Selected again: a name with a dot may have matched nested columns as well.
                # Damaged files may decode to offsets out of range, which later crash the process.
                picked = batch.select(names)
                picked.validate(full=True)
                yield picked

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
            self.schema: pa.Schema = reader.schema

    def batches(
        self, positions: Sequence[int], plain: Sequence[int] = (), threads: int = 1
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns at `positions`, in that order, as they are, in pieces of at most 65,536 rows."""
        with arrow_file(self.path) as file, self._open(file) as reader:
            if isinstance(reader, pa.ipc.RecordBatchFileReader):
                batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                batches = iter(reader)
            rows = _rows_of_batch(len(positions))
            for batch in batches:
                picked = batch.select(list(positions))
                picked.validate(full=True)
                yield from (picked.slice(start, rows) for start in range(0, picked.num_rows, rows))

    def _open(self, file: pa.NativeFile) -> pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader:
        import pyarrow.ipc

        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        return pyarrow.ipc.open_file(file) if is_file else pyarrow.ipc.open_stream(file)
