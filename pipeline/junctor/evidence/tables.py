"""Tables in memory, of whatever library, as Arrow. Main function: `as_arrow`, called by the Python API."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from junctor.evidence.states import plain_cell
from junctor.model.errors import EvidenceError
from junctor.runtime.arrow import string_array, with_plain_words

_EXPECTED = (
    "expected an Arrow table or record batch, a pandas or polars data frame, a mapping of columns "
    "({'smoke': ['yes', None]}), or a list of rows ([{'smoke': 'yes'}, {}])"
)


def as_arrow(evidence: Any) -> pa.Table:
    """Return a table of evidence as Arrow, its columns as they are but for views in dictionaries, which become text.

    evidence: an Arrow table, record batch or reader; a pandas data frame (its index is dropped, NaN is null); any
        object with Arrow's C stream, such as a polars data frame; a lazy frame of polars, which is collected; an array
        of NumPy with named fields; a mapping of columns; a list of rows, in which a missing key is an unobserved
        variable. A column of mixed plain values is read as text.
    Raises EvidenceError for what is no table.
    """
    return with_plain_words(_table_of(evidence))


def _table_of(evidence: Any) -> pa.Table:
    if isinstance(evidence, pa.Table):
        return evidence
    if isinstance(evidence, pa.RecordBatch):
        return pa.Table.from_batches([evidence])
    if isinstance(evidence, pa.RecordBatchReader):
        return evidence.read_all()
    if isinstance(evidence, Mapping):
        if not evidence:
            raise EvidenceError("evidence: found no columns, so no number of rows; [{}] is one row without evidence")
        return _from_columns([(name, _checked_cells(name, cells)) for name, cells in evidence.items()])
    if type(evidence).__module__.partition(".")[0] == "pandas" and hasattr(evidence, "items") and evidence.ndim == 2:
        # By columns: pandas' own conversion to Arrow keeps the index and fails at mixed columns.
        return _from_columns(list(evidence.items()), rows=len(evidence))
    if isinstance(evidence, np.ndarray) and evidence.dtype.names:
        return _from_columns([(name, evidence[name]) for name in evidence.dtype.names])
    if type(evidence).__module__.partition(".")[0] == "polars" and hasattr(evidence, "collect"):
        return _table_of(evidence.collect())
    # After pandas, whose data frames have this method as well.
    if hasattr(evidence, "__arrow_c_stream__"):
        try:
            reader = pa.RecordBatchReader.from_stream(evidence)
        except pa.ArrowInvalid as error:
            # A single column, such as a series.
            raise _no_table(evidence) from error
        return reader.read_all()
    if isinstance(evidence, Sequence) and all(isinstance(row, Mapping) for row in evidence):
        return _from_rows(evidence)
    raise _no_table(evidence)


def _no_table(evidence: Any) -> EvidenceError:
    """Return the error for what is no table, with how to make one of it where that is known."""
    kind, dimensions = type(evidence).__name__, getattr(evidence, "ndim", None)
    advice = ""
    if kind == "Series":
        advice = "; of a column: series.to_frame('smoke'); of a case of pandas: [series.to_dict()]"
    elif dimensions == 2:
        advice = "; its columns have no names: dict(zip(['smoke', ...], array.T))"
    elif dimensions == 1 or isinstance(evidence, pa.Array | pa.ChunkedArray):
        advice = "; of a column: {'smoke': array}"
    return EvidenceError(f"evidence: found {kind}, {_EXPECTED}{advice}")


def _checked_cells(name: Any, cells: Any) -> Any:
    # A set has no order, and an array without axes no length.
    if isinstance(cells, str | bytes | Mapping | Set) or not hasattr(cells, "__len__") or not getattr(cells, "ndim", 1):
        raise EvidenceError(
            f"evidence: column {str(name)!r} is {cells!r}, expected a list of cells (one case is a list of one row: "
            "[{'smoke': 'yes'}])"
        )
    return cells


def _from_rows(rows: Sequence[Mapping[Any, Any]]) -> pa.Table:
    # Rows may have different keys; a dictionary keeps the order of first appearance.
    names = dict.fromkeys(name for row in rows for name in row)
    return _from_columns([(name, [row.get(name) for row in rows]) for name in names], rows=len(rows))


def _from_columns(columns: Sequence[tuple[Any, Any]], rows: int = 0) -> pa.Table:
    if len({len(cells) for _, cells in columns}) > 1:
        lengths = ", ".join(f"{str(name)!r}: {len(cells):,}" for name, cells in columns)
        raise EvidenceError(f"evidence: columns of different lengths: {lengths}")
    if not columns:
        # Arrow takes the number of rows from a column only.
        return pa.table({"": pa.nulls(rows)}).select([])
    # Halves of characters, which JSON may have, become escapes, as in cells.
    names = [str(name).encode(errors="backslashreplace").decode() for name, _ in columns]
    return pa.Table.from_arrays([_column(name, cells) for name, cells in columns], names)


def _column(name: Any, cells: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(cells, pa.Array | pa.ChunkedArray):
        return cells
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "iuf":
        # Arrow has neither other orders of bytes nor longer numbers.
        cells = cells.astype(f"{cells.dtype.kind}{min(8, cells.dtype.itemsize)}", copy=False)
    if getattr(cells, "ndim", 1) == 2:
        cells = list(cells)  # a matrix of likelihoods, one row a case
    # Text and categories of pandas are of kind "O", too; to look at each of their cells takes longer than all else.
    are_objects = str(getattr(cells, "dtype", "object")) == "object"
    # Nobody has masked cells who has not imported them.
    if are_objects and "numpy.ma" in sys.modules and any(map(_can_be_masked, set(map(type, cells)))):
        cells = [_without_mask(cell) if _can_be_masked(type(cell)) else cell for cell in cells]
    try:
        found = pa.array(cells, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if all(_is_null(cell) or isinstance(cell, list | tuple | np.ndarray) for cell in cells):
            raise EvidenceError(
                f"evidence: column {str(name)!r}: found lists of other than numbers of 64 bits ({error}), expected "
                "likelihoods such as [0.2, 0.8]"
            ) from error
        return string_array([_as_text(name, cell) for cell in cells], escaping=True).cast(pa.large_string())
    if are_objects and pa.types.is_timestamp(found.type) and any(getattr(cell, "nanosecond", 0) for cell in cells):
        # Arrow takes those of pandas for those of Python, and leaves out what is below a microsecond.
        found = pa.array(cells, pa.timestamp("ns", found.type.tz), from_pandas=True)
    # Numbers of NumPy lie in the caller's memory, which may change: answers have case ids and kept columns of it.
    is_borrowed = hasattr(cells, "__array__") and pa.types.is_primitive(found.type) and isinstance(found, pa.Array)
    return found.copy_to(pa.default_cpu_memory_manager()) if is_borrowed else found


def _can_be_masked(kind: type) -> bool:
    return issubclass(kind, np.ma.MaskedArray)


def _without_mask(cell: Any) -> npt.NDArray[Any] | None:
    """Return None for a cell all of which is masked; NaN for masked numbers among others, which no likelihood has."""
    masked = np.ma.getmaskarray(cell)
    if masked.all():
        return None
    return np.ma.filled(cell.astype(np.float64), np.nan)


def _as_text(name: Any, cell: Any) -> str | None:
    cell = plain_cell(cell)
    if isinstance(cell, Mapping | set) or (isinstance(cell, Iterable) and not isinstance(cell, str)):
        raise EvidenceError(
            f"evidence: column {str(name)!r} mixes {type(cell).__name__} with other cells: put likelihoods into a "
            "column of lists or into columns 'variable=state', and states into another"
        )
    if _is_null(cell):
        return None
    try:
        return str(cell)
    except ValueError as error:
        # Python writes no integer of more than 4,300 digits.
        raise EvidenceError(f"evidence: column {str(name)!r} has a number that is too long ({error})") from error


def _is_null(cell: Any) -> bool:
    # pandas' own nulls are told by name, since pandas need not be installed.
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(cell, float) and cell != cell
