"""Record batches of many columns from memory, all columns at once. Main class: BatchMaker, called by tables of answers.

By Arrow's C data interface (https://arrow.apache.org/docs/format/CDataInterface.html): a column costs a third of a
microsecond in place of five.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Collection, Mapping, Sequence
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
    address: int, held: dict[int, object] = _held, words: Any = ctypes.c_int64 * 2, release: int = 8 * _RELEASE
) -> None:
    # Without names of the module, which may be gone at the end of the interpreter.
    found = words.from_address(address + release)
    found[0] = 0
    held.pop(found[1], None)


_Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_callback = _Release(_release)
_release_address = ctypes.cast(_callback, ctypes.c_void_p).value or 0


class ArrayStruct:
    """An array of Arrow as a struct of the interface, for any number of batches.

    address: of the struct, which is there for as long as this is.
    """

    def __init__(self, array: pa.Array) -> None:
        self._words = (ctypes.c_int64 * _WORDS)()
        self.address = ctypes.addressof(self._words)
        array._export_to_c(self.address)

    def __del__(self, function: Any = _Release, release: int = _RELEASE) -> None:
        # As above, without names of the module. There is nothing to release where the export has failed.
        if self._words[release]:
            function(self._words[release])(self.address)


class BatchMaker:
    """Makes record batches of much the same columns.

    schema: columns of numbers, of fixed-size lists of numbers, and of names (dictionaries of strings, by integers).
    names: number of a column -> its names, an array of strings.
    arrays: numbers of other columns, which may be of any type and come as arrays.
    """

    def __init__(
        self, schema: pa.Schema, names: Mapping[int, pa.Array] | None = None, arrays: Collection[int] = ()
    ) -> None:
        given = frozenset(arrays)
        own = [column for column in range(len(schema)) if column not in given]
        fields, columns = [schema.field(column) for column in own], len(own)
        sizes = [field.type.list_size if pa.types.is_fixed_size_list(field.type) else 0 for field in fields]
        self._sizes = np.array(sizes, np.int64)
        self._nullable = np.array([field.nullable for field in fields], np.bool_)
        is_list = self._sizes > 0
        # Columns, then the numbers of those that are lists, then the batch itself. Arrow reads the structs while it
        # imports a batch, and keeps a copy of the last one alone: they serve all batches, one after the other.
        self._words = np.zeros((2 * columns + 1, _WORDS), np.int64)
        self._buffers = np.zeros((2 * columns + 1, 2), np.int64)
        self._addresses = starts_of(self._words)
        self._address = int(self._addresses[-1])
        self._words[:, _RELEASE] = _release_address
        self._words[:, _BUFFERS] = starts_of(self._buffers)
        self._words[:, _BUFFER_COUNT] = 2
        self._words[:columns, _BUFFER_COUNT] -= is_list
        self._words[:columns, _CHILD_COUNT] = is_list
        self._words[:columns, _CHILDREN] = is_list * starts_of(self._addresses[columns:-1])
        self._structs = np.zeros(len(schema), np.int64)
        self._structs[own] = self._addresses[:columns]
        self._words[-1, [_BUFFER_COUNT, _CHILD_COUNT, _CHILDREN]] = 1, len(schema), address_of(self._structs)
        self._names = {column: ArrayStruct(array) for column, array in (names or {}).items()}
        places = {column: place for place, column in enumerate(own)}
        for column, struct in self._names.items():
            self._words[places[column], _DICTIONARY] = struct.address
        self._arrays = tuple(sorted(given))
        # What the structs say of the last batch, which is often true of the next one.
        self._rows, self._has_nulls = -1, False
        self._lock = threading.Lock()

    def batch(
        self,
        schema: pa.Schema,
        rows: int,
        starts: Integers,
        memory: object,
        null: npt.NDArray[np.bool_] | None = None,
        arrays: Sequence[ArrayStruct] = (),
    ) -> pa.RecordBatch:
        """Return a batch that shares the memory of its numbers.

        schema: as before, but for metadata and for names and types of columns that come as arrays.
        rows: of every column.
        starts: int64, the address of the first number of each other column; its others follow without a gap.
        memory: what has these numbers, kept for as long as the batch is there.
        null: bool [rows], rows that are null in all other columns that can be; None for none.
        arrays: columns that come as such, in the order of the schema.
        """
        columns, owner = len(self._sizes), next(_keys)
        bits = None if null is None or not null.any() else np.packbits(~null, bitorder="little")
        with self._lock:
            if rows != self._rows:
                self._words[:columns, _LENGTH] = self._words[-1, _LENGTH] = rows
                self._words[columns:-1, _LENGTH] = rows * self._sizes
                self._rows = rows
            if bits is not None or self._has_nulls:
                self._words[:columns, _NULLS] = 0 if bits is None else -1 * self._nullable
                # Those of lists are their child's.
                self._buffers[:columns, 0] = 0 if bits is None else address_of(bits) * self._nullable
                self._has_nulls = bits is not None
            self._buffers[:columns, 1] = self._buffers[columns:-1, 1] = starts
            for column, struct in zip(self._arrays, arrays, strict=True):
                self._structs[column] = struct.address
            self._words[-1, _OWNER] = owner
            self._words[-1, _RELEASE] = _release_address
            _held[owner] = memory, bits, arrays, self._names
            return pa.RecordBatch._import_from_c(self._address, schema)


def address_of(values: npt.NDArray[Any]) -> int:
    """Return the address of a contiguous array."""
    # A sixth of the time of `values.ctypes.data`.
    return int(pa.py_buffer(values).address)


def starts_of(values: npt.NDArray[Any]) -> Integers:
    """Return the addresses of the rows of a contiguous array [columns, n], int64."""
    return address_of(values) + values.strides[0] * np.arange(len(values), dtype=np.int64)
