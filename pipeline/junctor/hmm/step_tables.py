"""Tables with a row for each step, as CSV files have them: rows in any order become a list for each sequence.

Main function: `lists_of_steps`, called by `junctor.hmm.sequences` for files and for tables in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from junctor.evidence.column_tables import RowPlaces
from junctor.evidence.columns import is_list, is_string
from junctor.evidence.states import missing_texts
from junctor.hmm.columns import CASE_ID, SequenceColumns
from junctor.model.errors import EvidenceError, Place, nearest
from junctor.model.options import Gaps
from junctor.runtime.arrow import in_one_piece, number_array, numbers_of

Integers = npt.NDArray[np.int64]
# Steps without a row for each row, and in addition, up to which they are taken for such.
UNOBSERVED_SHARE, MOST_UNOBSERVED = 100, 1_000_000
_TIMES = "2026-11-29, or 2026-11-29 10:30:00"
# What text of steps may be, the first that all of it is.
_TARGETS = (pa.int64(), pa.float64(), pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("us", "UTC"))


def are_steps(schema: pa.Schema, names: SequenceColumns, place: Place | None) -> bool:
    """Return True for a table with a row for each step: without lists, and with names of sequences, or steps."""
    if any(is_list(kind) for kind in schema.types):
        if names.step is not None:
            raise EvidenceError("--step is for a table with a row for each step, this one has a column of lists", place)
        return False
    return names.step is not None or names.case_id is not None or CASE_ID in schema.names


@dataclass(frozen=True, slots=True)
class StepRows:
    """Rows of a table, or of several files that are one.

    table: all of them.
    files: names of the files, and the number of the first row of each.
    """

    table: pa.Table
    files: tuple[tuple[str, int], ...] = ()

    def name(self, row: int) -> str:
        """Return what people find a row by."""
        if len(self.files) < 2:
            return f"row {row + 1:,}"
        file, first = [each for each in self.files if each[1] <= row][-1]
        return f"row {row - first + 1:,} of {file}"

    def column(self, name: str) -> pa.Array:
        """Return the cells of a column; raises EvidenceError where it is not there once."""
        if (count := self.table.column_names.count(name)) != 1:
            found = f"found {count} columns {name!r}, expected one" if count else f"no column {name!r}"
            raise EvidenceError(f"{found}{nearest(name, self.table.column_names)}", self.place)
        column = in_one_piece(self.table.column(name))
        return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column

    @property
    def place(self) -> Place | None:
        """The file, where there is one."""
        return Place(self.files[0][0]) if self.files else None


@dataclass(eq=False)
class StepTable:
    """A table of sequences that was made of rows for steps; as `junctor.evidence.read.ColumnTable`.

    path: of the file, or the first one.
    table: a row for each sequence: lists of symbols, and case ids, labels and weights where they are there.
    reasons: sequence -> why it is invalid.
    rows: int64, of each step, one sequence after the other; -1 for a step without a row.
    source: the rows.
    """

    path: Any
    table: pa.Table
    reasons: dict[int, str]
    rows: Integers
    source: StepRows
    schema: pa.Schema = field(init=False)
    partition: int = field(default=0, init=False)
    groups: Sequence[int] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.schema = self.table.schema

    def batches(
        self, positions: Sequence[int], plain: Sequence[int] = (), threads: int = 1, groups: range | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns at `positions`, all sequences together."""
        columns = [in_one_piece(self.table.column(at)) for at in positions]
        yield pa.RecordBatch.from_arrays(columns, [str(at) for at in positions])

    def place_of(self, row: int) -> Place:
        """Return the file."""
        return Place(str(self.path))

    def spread(self, count: int) -> RowPlaces:
        """Return no places: all sequences are there."""
        return RowPlaces(self, (), self.table.num_rows)


def lists_of_steps(rows: StepRows, names: SequenceColumns, sensors: Sequence[str], path: Any = None) -> StepTable:
    """Return the sequences of a table with a row for each step; raises EvidenceError for what leaves them unclear.

    rows: of the table.
    names: of its columns.
    sensors: names of the model's, whose columns may be apart; none where a symbol has one column.
    path: of the file.
    """
    ids, codes = _sequences(rows, names)
    steps = None if names.step is None else _Steps.of(rows, names.step)
    order = np.lexsort((codes,) if steps is None else (steps.values, codes)).astype(np.int64)
    starts = np.searchsorted(codes[order], np.arange(len(ids) + 1)).astype(np.int64)
    reasons: dict[int, str] = {}
    if steps is None:
        _refuse_scattered(rows, ids, codes)
    else:
        for row in steps.missing.tolist():
            reasons.setdefault(int(codes[row]), f"{rows.name(row)}: no step in column {names.step!r}")
        order, starts = _without_gaps(rows, names.gaps, steps, order, starts, reasons)
    symbols = [rows.column(name) for name in names.symbols(rows.table.column_names, sensors, rows.place)]
    of_steps = symbols[0] if len(symbols) == 1 else pa.StructArray.from_arrays(symbols, names=list(sensors))
    columns = {"sequence": _lists(of_steps, order, starts)}
    if names.case_id is not None or CASE_ID in rows.table.column_names:
        columns[names.case_id or CASE_ID] = ids
    if names.labels is not None:
        columns[names.labels] = _lists(rows.column(names.labels), order, starts)
    if names.weight is not None:
        columns[names.weight] = _of_sequences(rows, names.weight, codes, len(ids))
    return StepTable(path, pa.table(list(columns.values()), list(columns)), reasons, order, rows)


def _sequences(rows: StepRows, names: SequenceColumns) -> tuple[pa.Array, Integers]:
    """Return the case ids in the order of their appearance, and the number of each row's sequence."""
    count = rows.table.num_rows
    if names.case_id is None and CASE_ID not in rows.table.column_names:
        # All rows are one sequence.
        return number_array(np.arange(min(1, count), dtype=np.int64)), np.zeros(count, np.int64)
    name = names.case_id or CASE_ID
    column = rows.column(name)
    missing = np.flatnonzero(_is_missing(column, [""]))
    if len(missing):
        raise EvidenceError(f"{rows.name(int(missing[0]))}: column {name!r}: found no case id", rows.place)
    encoded = column.dictionary_encode()
    return encoded.dictionary, numbers_of(encoded.indices, -1).astype(np.int64)


def _refuse_scattered(rows: StepRows, ids: pa.Array, codes: Integers) -> None:
    """Raise EvidenceError where rows of a sequence do not follow each other, and nothing else says their order."""
    begins = np.flatnonzero(np.diff(codes, prepend=-1))
    again = (
        begins[1:][codes[begins[1:]] <= np.maximum.accumulate(codes[begins[:-1]])] if len(begins) > 1 else begins[1:]
    )
    if len(again):
        row = int(again[0])
        raise EvidenceError(
            f"{rows.name(row)}: sequence {ids[int(codes[row])].as_py()!r} goes on behind rows of others: --step names "
            "the column that orders its rows",
            rows.place,
        )


@dataclass(frozen=True, eq=False, slots=True)
class _Steps:
    """What orders rows: numbers or times.

    values: int64 or float64 [rows], 0 where there is none.
    missing: int64, rows without one.
    are_whole: whether they are whole numbers, which may have gaps.
    """

    values: npt.NDArray[Any]
    missing: Integers
    are_whole: bool

    @staticmethod
    def of(rows: StepRows, name: str) -> _Steps:
        """Return the steps in a column; raises EvidenceError for what is neither."""
        column = rows.column(name)
        missing = _is_missing(column, sorted(missing_texts()))
        column = pc.if_else(pa.array(missing), pa.scalar(None, column.type), column)
        numbers = _numbers(column) if is_string(column.type) else column
        if numbers is None or not _is_number_or_time(numbers.type):
            found = _unreadable(column)
            where = "" if found is None else f"{rows.name(found)}: "
            cell = "cells of several kinds" if found is None else repr(column[found].as_py())
            said = f"column {name!r}: found {cell}, expected whole numbers, numbers, or times ({_TIMES})"
            raise EvidenceError(f"{where}{said}", rows.place)
        values = _comparable(numbers)
        are_whole = values.dtype == np.int64 and not pa.types.is_temporal(numbers.type)
        return _Steps(values, np.flatnonzero(missing), are_whole)


def _numbers(texts: pa.Array) -> pa.Array | None:
    """Return texts as numbers or times, None where they are not all of one kind."""
    texts = pc.utf8_trim_whitespace(texts)
    for target in _TARGETS:
        try:
            return texts.cast(target)
        except pa.ArrowInvalid:
            continue
    return None


def _is_number_or_time(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_temporal, pa.types.is_null)
    return any(test(kind) for test in tests)


def _unreadable(column: pa.Array) -> int | None:
    """Return a row whose cell is neither number nor time, None where cells are of several kinds."""
    if not is_string(column.type):
        return next((row for row in range(len(column)) if column[row].is_valid), 0)
    wrong = (cell for cell in column.unique() if cell.is_valid and _numbers(pa.array([cell.as_py()])) is None)
    cell = next(wrong, None)
    return None if cell is None else pc.index(column, cell).as_py()


def _comparable(column: pa.Array) -> npt.NDArray[Any]:
    """Return numbers or times as int64, or as float64 where they are not whole; 0 for null."""
    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int32()) if kind.bit_width == 32 else column
        return numbers_of(column.cast(pa.int64()), 0)
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return numbers_of(column.cast(pa.int64()), 0)
    numbers: npt.NDArray[np.float64] = numbers_of(column.cast(pa.float64()), 0)
    # Whole numbers beside nulls are floats in pandas.
    is_whole = bool(((np.abs(numbers) < 2**53) & (numbers == np.round(numbers))).all())
    return numbers.astype(np.int64) if is_whole else numbers


def _without_gaps(
    rows: StepRows, gaps: Gaps, steps: _Steps, order: Integers, starts: Integers, reasons: dict[int, str]
) -> tuple[Integers, Integers]:
    """Return rows in their order (-1 for none) and where sequences begin; adds reasons of those that are invalid."""
    values = steps.values[order]
    sequences = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    inner = np.diff(sequences, prepend=-1) == 0
    twice = np.flatnonzero(inner[1:] & (values[1:] == values[:-1])) + 1
    for at in _firsts(twice, sequences):
        both = sorted((int(order[at - 1]), int(order[at])))
        reasons.setdefault(int(sequences[at]), f"{rows.name(both[0])} and {rows.name(both[1])} are the same step")
    if not steps.are_whole:
        if gaps == "unobserved":
            raise EvidenceError("--gaps unobserved: steps are no whole numbers, so nothing tells how many are missing")
        return order, starts
    wide = np.flatnonzero(inner[1:] & (values[1:] - values[:-1] > 1)) + 1
    if gaps == "invalid":
        for at in _firsts(wide, sequences):
            first, last = int(values[at - 1]) + 1, int(values[at]) - 1
            reasons.setdefault(
                int(sequences[at]),
                f"no row for step {first}{'' if first == last else f' to {last}'}, before {rows.name(int(order[at]))}: "
                "--gaps unobserved takes it as a step without observation, --gaps ignore the rows as neighbours",
            )
    if gaps != "unobserved" or not len(wide):
        return order, starts
    return _filled(values, order, starts, sequences, reasons)


def _filled(
    values: npt.NDArray[Any], order: Integers, starts: Integers, sequences: Integers, reasons: dict[int, str]
) -> tuple[Integers, Integers]:
    """Return rows in their order with -1 for steps that have none, but of valid sequences alone."""
    places = values - values[starts[:-1]][sequences]
    is_bad = np.zeros(len(starts) - 1, np.bool_)
    is_bad[list(reasons)] = True
    places = np.where(is_bad[sequences], np.arange(len(order)) - starts[sequences], places)
    lengths = places[starts[1:] - 1] + 1
    total = math.fsum(lengths.tolist())
    if total > UNOBSERVED_SHARE * len(order) + MOST_UNOBSERVED:
        raise EvidenceError(
            f"--gaps unobserved: {len(order):,} rows would become {total:.3g} steps: are these numbers of steps?"
        )
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    filled = np.full(ends[-1], -1, np.int64)
    filled[ends[sequences] + places] = order
    return filled, ends


def _firsts(places: Integers, sequences: Integers) -> list[int]:
    """Return the first of some places of each sequence."""
    found: list[int] = places[np.unique(sequences[places], return_index=True)[1]].tolist()
    return found


def _of_sequences(rows: StepRows, name: str, codes: Integers, count: int) -> pa.Array:
    """Return the cell of each sequence in a column whose cells are the same in all of its rows."""
    column = rows.column(name)
    firsts = np.full(count, len(codes), np.int64)
    np.minimum.at(firsts, codes, np.arange(len(codes)))
    cells = numbers_of(column.dictionary_encode().indices, -1)
    others = np.flatnonzero(cells != cells[firsts[codes]])
    if len(others):
        row, first = int(others[0]), int(firsts[codes[others[0]]])
        found, before = column[row].as_py(), column[first].as_py()
        said = f"column {name!r}: found {found!r}, but {before!r} in {rows.name(first)} of the same sequence"
        raise EvidenceError(f"{rows.name(row)}: {said}", rows.place)
    return column.take(number_array(firsts))


def _is_missing(column: pa.Array, texts: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return which cells are null, NaN, or one of some texts in any case, bool [rows]."""
    missing = column.is_null(nan_is_null=True)
    if is_string(column.type):
        lowered = pc.utf8_lower(pc.utf8_trim_whitespace(column))
        missing = pc.or_(missing, pc.is_in(lowered, pa.array(texts, lowered.type)))
    found: npt.NDArray[np.bool_] = missing.to_numpy(zero_copy_only=False)
    return found


def _lists(column: pa.Array, order: Integers, starts: Integers) -> pa.Array:
    taken = column.take(number_array(order, order < 0))
    return pa.LargeListArray.from_arrays(number_array(starts), taken)
