"""Symbols that are a state of each of several sensors: in one text, or each of them in a column or field of its own.

Main classes: SensorStates and SymbolCells, for the encoder of sequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from junctor.evidence.batch import UNOBSERVED
from junctor.evidence.columns import encode_states
from junctor.evidence.states import UNKNOWN, Cell, StateCells
from junctor.hmm.columns import columns_of_sensors
from junctor.model.errors import EvidenceError, Place
from junctor.model.network import Variable
from junctor.runtime.arrow import number_array, plain_words


class SensorStates:
    """Symbols that are a state of each sensor, and observations of some of them, in the order of their appearance."""

    # They are numbered as long as a source is read: numbers in one of its batches are those in all later ones.
    def __init__(self, sensors: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        self.cells = [StateCells(Variable(name, states), f"{name} state") for name, states in sensors]
        self._names = [name for name, _ in sensors]
        self._sizes = tuple(len(states) for _, states in sensors)
        self._partial: dict[tuple[int, ...], int] = {}

    @property
    def partial(self) -> npt.NDArray[np.int32] | None:
        """The observations so far, as in `SequenceBatch`."""
        return np.array([*self._partial], np.int32).reshape(-1, len(self.cells)) if self.cells else None

    def symbols(
        self, steps: pa.StructArray, place: Place | None
    ) -> tuple[npt.NDArray[np.int32], list[tuple[int, str]]]:
        """Return the symbols of records of states, and the bad steps with reasons."""
        fields = [steps.type.field(at).name for at in range(steps.type.num_fields)]
        apart = columns_of_sensors(self._names, fields, place)
        if not apart or len(fields) != len(apart):
            raise EvidenceError(f"found records of {fields} for the steps, expected {self._names or 'symbols'}", place)
        found = [encode_states(column, cells) for column, cells in zip(_fields(steps, apart), self.cells, strict=True)]
        codes = np.stack([states for states, _ in found], axis=1)
        keys = np.ravel_multi_index(tuple(codes.T + 1), tuple(size + 1 for size in self._sizes))
        _, firsts, which = np.unique(keys, return_index=True, return_inverse=True)
        symbols = np.array([self.symbol(states) for states in codes[firsts].tolist()], np.int32)
        return symbols[which], [each for _, bad in found for each in bad]

    def symbol(self, states: Sequence[int]) -> int:
        """Return the symbol of a state of each sensor, some of them UNOBSERVED."""
        if UNOBSERVED not in states:
            return int(np.ravel_multi_index(tuple(states), self._sizes))
        if all(state == UNOBSERVED for state in states):
            return UNOBSERVED
        return math.prod(self._sizes) + self._partial.setdefault(tuple(states), len(self._partial))


class SymbolCells(StateCells):
    """Reads symbols by name or index, and the states of sensors in one text ("loud,", where the second is missing)."""

    def __init__(self, names: tuple[str, ...], sensors: SensorStates) -> None:
        super().__init__(Variable("symbol", names), "symbol")
        self.sensors = sensors

    def code(self, cell: Cell) -> int:
        """Return the symbol, UNOBSERVED, or UNKNOWN."""
        code = super().code(cell)
        parts = self._parts(cell) if code == UNKNOWN else None
        if parts is None:
            return code
        states = [cells.code(part) for cells, part in zip(self.sensors.cells, parts, strict=True)]
        return UNKNOWN if UNKNOWN in states else self.sensors.symbol(states)

    def reason(self, cell: Cell) -> str:
        """Say which sensor has no such state."""
        for cells, part in zip(self.sensors.cells, self._parts(cell) or (), strict=False):
            if cells.code(part) == UNKNOWN:
                return cells.reason(part)
        return super().reason(cell)

    def _parts(self, cell: Cell) -> list[str] | None:
        # Names of states may have commas: with as few as join the parts, each of them does.
        parts = cell.split(",") if isinstance(cell, str) else []
        return parts if len(parts) == len(self.sensors.cells) > 1 else None


def records_of(columns: Sequence[pa.Array], sensors: Sequence[str]) -> tuple[pa.Array, dict[int, str]]:
    """Return lists of records of the states of sensors from a list column of each, and the rows that differ in length.

    columns: the lists; a single column is returned.
    """
    if len(columns) == 1:
        return columns[0], {}
    lengths = np.stack([pc.fill_null(pc.list_value_length(c), -1).to_numpy(zero_copy_only=False) for c in columns])
    fits = (lengths == lengths[0]).all(axis=0)
    states = [plain_words(column.filter(pa.array(fits)).flatten()) for column in columns]
    counts = np.where(fits, np.maximum(lengths[0], 0), 0)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    records = pa.StructArray.from_arrays(states, names=list(sensors))
    lists = pa.LargeListArray.from_arrays(number_array(starts), records, mask=pa.array(fits & (lengths[0] < 0)))
    said = "found lists of {} steps in the columns of the sensors, expected one number"
    found = {
        n: said.format(" and ".join(map(str, np.maximum(lengths[:, n], 0)))) for n in np.flatnonzero(~fits).tolist()
    }
    return lists, found


def _fields(steps: pa.StructArray, names: Sequence[str]) -> list[pa.Array]:
    """Return the cells of some fields, null where their record is."""
    return [pc.struct_field(steps, steps.type.get_field_index(name)) for name in names]
