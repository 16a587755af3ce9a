"""Record batches of many columns from memory, all columns at once. Main class: BatchMaker, called by tables of answers.

By Arrow's C data interface (https://arrow.apache.org/docs/format/CDataInterface.html): a column costs a third of a
microsecond in place of five.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers = npt.NDArray[np.int64]

# Words of the struct ArrowArray: offset (word 2) is always 0.
_LENGTH, _NULLS, _BUFFER_COUNT, _CHILD_COUNT, _BUFFERS = 0, 1, 3, 4, 5
_CHILDREN, _DICTIONARY, _RELEASE, _OWNER = 6, 7, 8, 9
_WORDS = 10

# What batches are made of, until Arrow releases them.
_held: dict[int, object] = {}
_keys = count(1)


def _release(
    address: int,
    held: dict[int, object] = _held,
    word: Any = ctypes.c_int64,
    release: int = 8 * _RELEASE,
    owner: int = 8 * _OWNER,
) -> None:
    # Without names of the module, which may be gone at the end of the interpreter.
    key = word.from_address(address + owner).value
    word.from_address(address + release).value = 0
    held.pop(key, None)


_callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_release)
_release_address = ctypes.cast(_callback, ctypes.c_void_p).value or 0


class BatchMaker:
    """Makes record batches of one schema.

    schema: columns of numbers, of fixed-size lists of numbers, and of names (dictionaries of strings, by int32).
    names: number of a column -> its names, an array of strings.
    """

    def __init__(self, schema: pa.Schema, names: Mapping[int, pa.Array] | None = None) -> None:
        self.schema = schema
        columns = len(schema)
        sizes = [field.type.list_size if pa.types.is_fixed_size_list(field.type) else 0 for field in schema]
        self._sizes = np.array(sizes, np.int64)
        is_list = self._sizes > 0
        # Columns, then the numbers of those that are lists, then the batch itself. Arrow reads the structs while it
        # imports a batch, and keeps a copy of the last one alone: they serve all batches, one after the other.
        self._words = np.zeros((2 * columns + 1, _WORDS), np.int64)
        self._buffers = np.zeros((2 * columns + 1, 2), np.int64)
        self._addresses = starts_of(self._words)
        self._words[:, _RELEASE] = _release_address
        self._words[:, _BUFFERS] = starts_of(self._buffers)
        self._words[:, _BUFFER_COUNT] = 2
        self._words[:columns, _BUFFER_COUNT] -= is_list
        self._words[:columns, _CHILD_COUNT] = is_list
        self._words[:columns, _CHILDREN] = is_list * starts_of(self._addresses[columns:-1])
        self._words[-1, [_BUFFER_COUNT, _CHILD_COUNT, _CHILDREN]] = 1, columns, self._addresses.ctypes.data
        dictionaries = [(column, _dictionary(array)) for column, array in (names or {}).items()]
        for column, (words, _) in dictionaries:
            self._words[column, _DICTIONARY] = words.ctypes.data
        self._names, self._rows = (dictionaries, names), -1
        self._lock = threading.Lock()

    def batch(
        self, rows: int, starts: Integers, memory: object, null: npt.NDArray[np.bool_] | None = None
    ) -> pa.RecordBatch:
        """Return a batch that shares the memory of its numbers.

        rows: of every column.
        starts: int64 [columns], the address of the first number of each; its others follow without a gap.
        memory: what has these numbers, kept for as long as the batch is there.
        null: bool [rows], rows that are null in all columns; None for none.
        """
        columns, owner = len(self._sizes), next(_keys)
        bits = None if null is None or not null.any() else np.packbits(~null, bitorder="little")
        with self._lock:
            if rows != self._rows:
                self._words[:columns, _LENGTH] = self._words[-1, _LENGTH] = rows
                self._words[columns:-1, _LENGTH] = rows * self._sizes
                self._rows = rows
            self._words[:columns, _NULLS] = 0 if bits is None else -1
            # Those of lists are their child's.
            self._buffers[:columns, 0] = 0 if bits is None else bits.ctypes.data
            self._buffers[:columns, 1] = self._buffers[columns:-1, 1] = starts
            self._words[-1, _OWNER] = owner
            self._words[-1, _RELEASE] = _release_address
            _held[owner] = memory, bits, self._names
            return pa.RecordBatch._import_from_c(int(self._addresses[-1]), self.schema)


def table_around(
    batch: pa.RecordBatch, before: Sequence[pa.Array], after: Sequence[pa.Array], schema: pa.Schema
) -> pa.Table:
    """Return a table of some columns, those of a batch, and others, by a schema of all of them."""
    middle = batch.num_columns
    for number, column in enumerate(before):
        batch = batch.add_column(number, schema.field(number), column)
    for number, column in enumerate(after, len(before) + middle):
        batch = batch.add_column(number, schema.field(number), column)
    return pa.Table.from_batches([batch.replace_schema_metadata(schema.metadata)])


def starts_of(values: npt.NDArray[Any]) -> Integers:
    """Return the addresses of the rows of a contiguous array [columns, n], int64."""
    return values.ctypes.data + values.strides[0] * np.arange(len(values), dtype=np.int64)


def _dictionary(names: pa.Array) -> tuple[Integers, Integers]:
    """Return the struct of an array of strings, and its buffers."""
    buffers = np.array([0, *(buffer.address for buffer in names.buffers()[1:])], np.int64)
    words = np.zeros(_WORDS, np.int64)
    words[[_LENGTH, _BUFFER_COUNT, _BUFFERS, _RELEASE]] = len(names), 3, buffers.ctypes.data, _release_address
    return words, buffers
