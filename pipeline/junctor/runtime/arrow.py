"""Arrow arrays from NumPy arrays and strings, by their buffers, and back; called by readers and writers of tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# Not `pyarrow.array` and `to_numpy`: both import pandas wherever it is installed, whatever they are given. That takes
# most of a second, more than ten rows take to answer.


def number_array(values: npt.NDArray[Any], null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return a column of the numbers in `values` [n], null where `null` [n] says so; shares the memory."""
    # A buffer has no strides.
    values = np.ascontiguousarray(values)
    buffers = [_validity(null), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def number_columns(values: npt.NDArray[Any], null: npt.NDArray[np.bool_] | None = None) -> list[pa.Array]:
    """Return a column of numbers for each row of `values` [columns, n], null where `null` [n] says so in all of them.

    They share the memory of `values`, which is copied unless it lies in one piece.
    """
    values = np.ascontiguousarray(values)
    validity, numbers = _validity(null), pa.py_buffer(values)
    kind, (count, rows) = pa.from_numpy_dtype(values.dtype), values.shape
    width, nulls = values.itemsize * rows, 0 if validity is None else -1
    return [pa.Array.from_buffers(kind, rows, [validity, numbers.slice(n * width, width)], nulls) for n in range(count)]


def list_array(values: npt.NDArray[Any], null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return a column of fixed-size lists, the rows of `values` [n, size], null where `null` [n] says so."""
    rows, size = values.shape
    numbers = number_array(np.ascontiguousarray(values).reshape(-1))
    return pa.Array.from_buffers(pa.list_(numbers.type, size), rows, [_validity(null)], children=[numbers])


def list_arrays(
    memory: npt.NDArray[Any], sizes: Sequence[int], rows: int, null: npt.NDArray[np.bool_] | None = None
) -> list[pa.Array]:
    """Return columns of fixed-size lists that lie one after the other in memory, which they share.

    memory: numbers of all columns, contiguous.
    sizes: numbers of a list of each column.
    rows: of a column.
    null: bool [rows], rows that are null in all columns.
    """
    validity, numbers = _validity(null), pa.py_buffer(memory)
    kind, width = pa.from_numpy_dtype(memory.dtype), memory.itemsize * rows
    columns, start = [], 0
    for size in sizes:
        # A piece of the buffer: an array with an offset would be written and sent with all of it.
        values = pa.Array.from_buffers(kind, rows * size, [None, numbers.slice(start, width * size)], 0)
        if validity is None:
            # The faster of two ways.
            columns.append(pa.FixedSizeListArray.from_arrays(values, size))
        else:
            columns.append(pa.Array.from_buffers(pa.list_(kind, size), rows, [validity], children=[values]))
        start += width * size
    return columns


def columns_of_lists(lists: pa.Array) -> list[pa.Array]:
    """Return fixed-size lists of floats as columns, one for each place in a list, null where the list is."""
    # Five to thirty times as fast as a kernel of Arrow for each place.
    rows, size, number, values = len(lists), lists.type.list_size, lists.type.value_type, lists.values
    kind = np.dtype(np.float32 if number == pa.float32() else np.float64)
    start = lists.offset * size + values.offset
    numbers = np.frombuffer(values.buffers()[1] or b"", kind, start + rows * size)[start:].reshape(rows, size)
    validity, columns = _validity(nulls_of(lists)), pa.py_buffer(np.ascontiguousarray(numbers.T))
    width = rows * kind.itemsize
    pieces = [columns.slice(place * width, width) for place in range(size)]
    return [pa.Array.from_buffers(number, rows, [validity, piece]) for piece in pieces]


class BatchTemplate:
    """The bytes in which Arrow sends a record batch without nulls: batches like it differ in their numbers alone.

    batch: columns of numbers, or of fixed-size lists of numbers.
    blocks: how many columns each array of numbers fills, one after the other.

    To read such bytes takes a fifth of the time that the columns take one by one. Raises ValueError where columns of a
    block do not follow each other without a gap.
    """

    def __init__(self, batch: pa.RecordBatch, blocks: Sequence[int]) -> None:
        self._schema = batch.schema
        self._bytes = np.frombuffer(batch.serialize(), dtype=np.uint8)
        self._starts: list[int] = []
        spans = iter(self._spans())
        for count in blocks:
            block = list(islice(spans, count))
            if any(end != start for (_, end), (start, _) in pairwise(block)):
                raise ValueError("found columns with gaps between their numbers")
            self._starts.append(block[0][0])

    def _spans(self) -> Iterator[tuple[int, int]]:
        """Yield where the numbers of each column begin and end."""
        first = self._bytes.ctypes.data
        for column in pa.ipc.read_record_batch(pa.py_buffer(self._bytes), self._schema).columns:
            numbers = column.values if pa.types.is_fixed_size_list(column.type) else column
            data = numbers.buffers()[1]
            yield data.address - first, data.address - first + data.size

    def filled(self, *blocks: npt.NDArray[Any]) -> pa.RecordBatch:
        """Return a batch of these numbers."""
        message = self._bytes.copy()
        for start, numbers in zip(self._starts, blocks, strict=True):
            message[start : start + numbers.nbytes] = numbers.view(np.uint8)
        return pa.ipc.read_record_batch(pa.py_buffer(message), self._schema)


def string_array(values: Sequence[str | None]) -> pa.Array:
    """Return a column of strings, null for None."""
    encoded = [b"" if value is None else value.encode() for value in values]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int32)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    null = np.array([value is None for value in values], dtype=np.bool_)
    buffers = [_validity(null), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def string_list_array(values: Sequence[Sequence[str] | None]) -> pa.Array:
    """Return a column of lists of strings, null for None."""
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum([len(value or ()) for value in values], out=offsets[1:])
    strings = string_array([text for value in values for text in value or ()])
    buffers = [_validity(np.array([value is None for value in values], dtype=np.bool_)), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.list_(pa.string()), len(values), buffers, children=[strings])


def ragged_array(values: pa.Array, lengths: npt.NDArray[Any], null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return a column of lists, `lengths` [n] entries of `values` each, null where `null` [n] says so."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    buffers = [_validity(null), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.large_list(values.type), len(lengths), buffers, children=[values])


def reason_array(reasons: Mapping[int, str], rows: int) -> pa.Array:
    """Return a column of the reason of each row, null where there is none."""
    # Most batches have none, and 65,536 rows of None take longer than the answers of small networks.
    return string_array([reasons.get(row) for row in range(rows)]) if reasons else pa.nulls(rows, pa.string())


def table_of(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.Table:
    """Return a table of columns in one piece each."""
    # By way of a batch: of thousands of columns in a third of the time.
    return pa.Table.from_batches([pa.RecordBatch.from_arrays(columns, schema=schema)])


def in_one_piece(column: pa.ChunkedArray) -> pa.Array:
    """Return a column of a table as one array."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])


def numbers_of(column: pa.Array, null: int) -> npt.NDArray[Any]:
    """Return the integers or doubles of a column, `null` where there is none; shares the memory where none is null."""
    # Slices share the buffers of the whole column: everything starts at the offset.
    data = column.buffers()[1]
    end = column.offset + len(column)
    values = np.frombuffer(data or b"", np.dtype(str(column.type)), end)[column.offset :]
    nulls = nulls_of(column)
    return values if nulls is None else np.where(nulls, values.dtype.type(null), values)


def nulls_of(column: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return where a column is null, bool [rows]; None for nowhere."""
    if not column.null_count:
        return None
    bits = np.frombuffer(column.buffers()[0], np.uint8)
    end = column.offset + len(column)
    return ~np.unpackbits(bits, count=end, bitorder="little")[column.offset :].view(np.bool_)


def _validity(null: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    if null is None or not null.any():
        return None
    return pa.py_buffer(np.packbits(~null, bitorder="little"))
