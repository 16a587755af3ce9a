"""Evidence of a few rows, cell by cell: a call for one row is over before Arrow has loaded its functions for columns.

Main class: PlainCells; called by the API, which leaves to `encode` whatever is not plain here, errors among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.evidence.states import UNKNOWN, StateCells
from junctor.model.network import Network
from junctor.runtime.arrow import number_array, string_array

CASE_ID = "case_id"
# Rows that are taken. What columns cost beside their cells is less than the cells of more rows.
MOST_ROWS = 64
# Cells whose meaning does not depend on the column's type in Arrow.
_PLAIN = frozenset([str, int, float, bool])
# Types of Arrow whose cells are those in Python, by their numbers: extension types of users have no hash.
_ARROW_TYPES = frozenset(
    kind.id for kind in (pa.string(), pa.large_string(), pa.int64(), pa.float64(), pa.bool_(), pa.null())
)
_PANDAS_TYPES = frozenset(["object", "str", "string", "int64", "float64", "bool"])

# Names and cells of columns.
_Columns = tuple[Sequence[Any], Sequence[Sequence[Any]]]


class PlainCells:
    """Encodes a few rows of plain cells on one network; keeps the readers of states, and no cell."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._readers: dict[int, StateCells] = {}

    def encode(self, evidence: Any, case_id: str | None = None) -> tuple[EvidenceBatch, pa.Array] | None:
        """Return the batch and its case ids, as `encode_table` does; None for anything but a few good rows.

        evidence: as for `junctor.evidence.tables.as_arrow`.
        case_id: name of the column of case ids, None for `case_id` where there is one.
        """
        rows, columns = _plain_columns(evidence)
        if columns is None or len(set(columns[0])) < len(columns[0]):
            return None
        index = self._network.index
        wanted = CASE_ID if case_id is None and CASE_ID not in index else case_id
        states: list[tuple[int, list[int]]] = []
        case_ids = None if case_id is not None else _row_numbers(rows)
        for name, cells in zip(*columns, strict=True):
            if type(name) is not str:
                return None
            if name == wanted:
                case_ids = _ids(cells)
            elif name in index:
                codes = self._codes(index[name], cells)
                if codes is None:
                    return None
                states.append((index[name], codes))
            else:
                return None
        if case_ids is None:
            return None
        # In the order of the network, as `encode` has them, whatever the order of columns.
        states.sort()
        table = np.array([codes for _, codes in states], dtype=np.int32)
        return EvidenceBatch(rows, {v: table[i] for i, (v, _) in enumerate(states)}), case_ids

    def _codes(self, variable: int, cells: Sequence[Any]) -> list[int] | None:
        """Return the state of each cell; None where one is no state, or cells are of several types."""
        reader = self._readers.get(variable)
        if reader is None:
            reader = self._readers[variable] = StateCells(self._network.variables[variable])
        codes, kind = [], None
        for cell in cells:
            if cell is None or (type(cell) is float and cell != cell):
                codes.append(UNOBSERVED)
                continue
            # Arrow makes one type of all cells of a column: 1 beside 0.5 is 1.0.
            if type(cell) is not kind:
                if kind is not None or type(cell) not in _PLAIN:
                    return None
                kind = type(cell)
            # Python does not write any integer, and Arrow's have 64 bits.
            if kind is int and not -(2**63) <= cell < 2**63:
                return None
            code = reader.code(cell)
            if code == UNKNOWN:
                return None
            codes.append(code)
        return codes


@lru_cache(maxsize=MOST_ROWS)
def _row_numbers(rows: int) -> pa.Array:
    return number_array(np.arange(rows, dtype=np.int64))


def _ids(cells: Sequence[Any]) -> pa.Array | None:
    """Return case ids that are all texts or all integers of 64 bits, as Arrow would take them."""
    kinds = set(map(type, cells))
    if kinds == {str}:
        return string_array(cells, escaping=True)
    if kinds == {int} and all(-(2**63) <= cell < 2**63 for cell in cells):
        return number_array(np.array(cells, dtype=np.int64))
    return None


def _plain_columns(evidence: Any) -> tuple[int, _Columns | None]:
    """Return the number of rows, and names and cells of the columns, None for what is not plain or not few."""
    if type(evidence) is list:
        return len(evidence), _of_rows(evidence)
    if type(evidence) is dict:
        cells = list(evidence.values())
        if not cells or any(type(column) not in (list, tuple) for column in cells):
            return 0, None
        rows = len(cells[0])
        same = 0 < rows <= MOST_ROWS and all(len(column) == rows for column in cells)
        return rows, (list(evidence), cells) if same else None
    if isinstance(evidence, pa.Table | pa.RecordBatch):
        rows = evidence.num_rows
        plain = 0 < rows <= MOST_ROWS and _ARROW_TYPES.issuperset(kind.id for kind in evidence.schema.types)
        return rows, (evidence.schema.names, [column.to_pylist() for column in evidence.columns]) if plain else None
    if type(evidence).__module__.partition(".")[0] == "pandas" and type(evidence).__name__ == "DataFrame":
        plain = 0 < len(evidence) <= MOST_ROWS and all(str(kind) in _PANDAS_TYPES for kind in evidence.dtypes)
        return len(evidence), (list(evidence), list(_of_frame(evidence))) if plain else None
    return 0, None


def _of_rows(rows: list[Any]) -> _Columns | None:
    if len(rows) == 1 and type(rows[0]) is dict:
        return list(rows[0]), [(cell,) for cell in rows[0].values()]
    if not 0 < len(rows) <= MOST_ROWS or any(type(row) is not dict for row in rows):
        return None
    # Rows may have different keys; a dictionary keeps the order of first appearance.
    names = list(dict.fromkeys(name for row in rows for name in row))
    return names, [[row.get(name) for row in rows] for name in names]


def _of_frame(frame: Any) -> Iterator[list[Any]]:
    for _, column in frame.items():
        yield column.tolist()
