"""Record batches of many columns from memory, all columns at once. Main class: BatchMaker, called by tables of answers.

By Arrow's C data interface (https://arrow.apache.org/docs/format/CDataInterface.html): a column costs a third of a
microsecond in place of five.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Collection, Mapping, Sequence
from functools import cache, partial
from operator import call
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers = npt.NDArray[np.int64]

# Words of the struct ArrowArray: offset (word 2) is always 0.
_LENGTH, _NULLS, _BUFFER_COUNT, _CHILD_COUNT, _BUFFERS = 0, 1, 3, 4, 5
_CHILDREN, _DICTIONARY, _RELEASE = 6, 7, 8
_WORDS = 10
_NOTHING = np.zeros(_WORDS, np.int64)

_pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _Owner(np.ndarray[tuple[int], np.dtype[np.int64]]):
    """Memory that goes with a batch: addresses of its columns, then a struct of zeros, which is one that was released.

    held: what the batch is made of.
    """

    held: object = None


class ArrayStruct:
    """An array of Arrow as a struct of the interface, for any number of batches.

    address: of the struct, which is there for as long as this is.
    """

    def __init__(self, array: pa.Array) -> None:
        # The capsule releases the array when it goes.
        _, self._capsule = array.__arrow_c_array__()
        self.address: int = _pointer_in(self._capsule, b"arrow_array")


class BatchMaker:
    """Makes record batches of much the same columns.

    schema: columns of numbers, of names (dictionaries of strings, by integers), and of fixed-size lists of either.
    names: number of a column -> its names, an array of strings.
    arrays: numbers of other columns, which may be of any type and come as arrays.
    filled: number of a column of lists -> how many entries are there in each list; the others, and those of lists that
        are null, are null.
    """

    def __init__(
        self,
        schema: pa.Schema,
        names: Mapping[int, pa.Array] | None = None,
        arrays: Collection[int] = (),
        filled: Mapping[int, int] | None = None,
    ) -> None:
        given = frozenset(arrays)
        own = [column for column in range(len(schema)) if column not in given]
        fields, columns = [schema.field(column) for column in own], len(own)
        sizes = [field.type.list_size if pa.types.is_fixed_size_list(field.type) else 0 for field in fields]
        self._sizes = np.array(sizes, np.int64)
        self._nullable = np.array([field.nullable for field in fields], np.bool_)
        is_list = self._sizes > 0
        # Columns, then the numbers of those that are lists, then the batch itself. Arrow reads the structs while it
        # imports a batch, and keeps a copy of the last one alone, which has the addresses of its columns: all else
        # serves all batches, one after the other.
        self._words = np.zeros((2 * columns + 1, _WORDS), np.int64)
        self._buffers = np.zeros((2 * columns + 1, 2), np.int64)
        self._addresses = starts_of(self._words)
        self._address = int(self._addresses[-1])
        # Not called, since columns are released already when their batch is, but what is imported may not lack it.
        self._words[:, _RELEASE] = _release_of_arrow()
        self._words[:, _BUFFERS] = starts_of(self._buffers)
        self._no_bits = int(self._words[-1, _BUFFERS])
        self._words[:, _BUFFER_COUNT] = 2
        self._words[:columns, _BUFFER_COUNT] -= is_list
        self._words[:columns, _CHILD_COUNT] = is_list
        self._words[:columns, _CHILDREN] = is_list * starts_of(self._addresses[columns:-1])
        self._structs = np.zeros(len(schema), np.int64)
        self._structs[own] = self._addresses[:columns]
        self._names = {column: ArrayStruct(array) for column, array in (names or {}).items()}
        places = {column: place for place, column in enumerate(own)}
        for column, struct in self._names.items():
            # Those of a list are its child's.
            place = places[column] + columns * bool(is_list[places[column]])
            self._words[place, _DICTIONARY] = struct.address
        # Sizes of lists and how many of their entries are there -> the columns.
        self._filled: dict[tuple[int, int], list[int]] = {}
        for column, there in (filled or {}).items():
            self._filled.setdefault((sizes[places[column]], there), []).append(places[column])
        self._arrays = tuple(sorted(given))
        # What the structs say of the last batch, which is often true of the next one.
        self._rows, self._has_nulls = -1, False
        self._filled_rows, self._entries = -1, list[npt.NDArray[np.uint8]]()
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
        columns = len(self._sizes)
        bits = None if null is None or not null.any() else np.packbits(~null, bitorder="little")
        with self._lock:
            if rows != self._rows:
                self._words[:columns, _LENGTH] = rows
                self._words[columns:-1, _LENGTH] = rows * self._sizes
                self._rows = rows
            if bits is not None or self._has_nulls:
                self._words[:columns, _NULLS] = 0 if bits is None else -1 * self._nullable
                # Those of lists are their child's.
                self._buffers[:columns, 0] = 0 if bits is None else address_of(bits) * self._nullable
                self._has_nulls = bits is not None
            if self._filled and (bits is not None or rows != self._filled_rows):
                self._fill(rows, None if bits is None else null)
            self._buffers[:columns, 1] = self._buffers[columns:-1, 1] = starts
            for column, struct in zip(self._arrays, arrays, strict=True):
                self._structs[column] = struct.address
            children = len(self._structs)
            owner = np.concatenate([self._structs, _NOTHING]).view(_Owner)
            owner.held = memory, bits, arrays, self._names, self._entries
            address = self._own(owner, rows, children)
            # Arrow goes through the columns when it releases the batch. Without a step of Python between, after which a
            # signal could end the call: columns that are shared by all batches would be released.
            released = partial(owner[:children].fill, address + children * owner.itemsize)
            batch, _ = map(call, (partial(pa.RecordBatch._import_from_c, self._address, schema), released))
            return batch

    def _fill(self, rows: int, null: npt.NDArray[np.bool_] | None) -> None:
        """Write which entries of lists are there; arguments as of `batch`."""
        self._filled_rows, self._entries = rows if null is None else -1, []
        for (size, there), places in self._filled.items():
            entries = np.broadcast_to(np.arange(size) < there, (rows, size))
            if null is not None:
                entries = entries & ~null[:, None]
            lacking, children = entries.size - np.count_nonzero(entries), np.array(places) + len(self._sizes)
            if lacking:
                self._entries.append(np.packbits(entries, bitorder="little"))
            self._words[children, _NULLS] = lacking
            self._buffers[children, 0] = address_of(self._entries[-1]) if lacking else 0

    def _own(self, owner: _Owner, rows: int, children: int) -> int:
        """Write the struct of a batch, which keeps its owner until Arrow releases it; returns the address of that.

        That is Arrow's own function, and the struct has the owner of an array that Arrow made: a function in Python
        would be called wherever the last part of a batch goes, with an exception under way, a signal that waits or an
        interpreter that has ended.
        """
        buffer, word = pa.py_buffer(owner), self._words[-1]
        pa.Array.from_buffers(pa.int64(), 0, [None, buffer])._export_to_c(self._address)
        word[_LENGTH], word[_BUFFER_COUNT], word[_BUFFERS] = rows, 1, self._no_bits
        word[_CHILD_COUNT], word[_CHILDREN] = children, buffer.address
        return int(buffer.address)


@cache
def _release_of_arrow() -> int:
    """Return the address of the function by which Arrow releases arrays of its own."""
    struct = ArrayStruct(pa.nulls(0))
    return ctypes.c_int64.from_address(struct.address + 8 * _RELEASE).value


def address_of(values: npt.NDArray[Any]) -> int:
    """Return the address of a contiguous array."""
    # A sixth of the time of `values.ctypes.data`.
    return int(pa.py_buffer(values).address)


def starts_of(values: npt.NDArray[Any]) -> Integers:
    """Return the addresses of the rows of a contiguous array [columns, n], int64."""
    return address_of(values) + values.strides[0] * np.arange(len(values), dtype=np.int64)
