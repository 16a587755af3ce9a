"""Arrow arrays made from their buffers, and back.

`pyarrow.array` imports pandas wherever it is installed, whatever it is given, and `to_numpy` does. That takes most of a
second, which is more than ten rows are worth; these functions take what we have, NumPy arrays and strings, straight to
Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def number_array(values: npt.NDArray[Any], null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return a column of the numbers in `values` [n], null where `null` [n] says so; shares the memory."""
    values = np.ascontiguousarray(values)
    buffers = [_validity(null), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def list_array(values: npt.NDArray[Any], null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return a column of fixed-size lists, the rows of `values` [n, size], null where `null` [n] says so."""
    rows, size = values.shape
    numbers = number_array(np.ascontiguousarray(values).reshape(-1))
    return pa.Array.from_buffers(pa.list_(numbers.type, size), rows, [_validity(null)], children=[numbers])


def string_array(values: Sequence[str | None]) -> pa.Array:
    """Return a column of strings, null for None."""
    encoded = [b"" if value is None else value.encode() for value in values]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int32)
    np.cumsum([len(each) for each in encoded], out=offsets[1:])
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


def numbers_of(column: pa.Array, null: int) -> npt.NDArray[Any]:
    """Return the integers or doubles of a column, `null` where there is none; shares the memory where none is null."""
    validity, data = column.buffers()
    end = column.offset + len(column)
    values = np.frombuffer(data or b"", np.dtype(str(column.type)), end)[column.offset :]
    if not column.null_count:
        return values
    valid = np.unpackbits(np.frombuffer(validity, np.uint8), count=end, bitorder="little")[column.offset :]
    return np.where(valid, values, values.dtype.type(null))


def _validity(null: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    if null is None or not null.any():
        return None
    return pa.py_buffer(np.packbits(~null, bitorder="little"))
