"""Sequences from tables with a list column: symbols by name or index, or log-likelihoods of the states.

Main functions: `open_sequences` for files, called by runs, and `encode_sequences` for tables in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from junctor.evidence.column_tables import ColumnTable
from junctor.evidence.columns import encode_numbers, encode_states, is_list, is_string
from junctor.evidence.encode import numbered, numbered_in_files, row_numbers
from junctor.evidence.files import checked_format, format_of, input_files, reading_errors_for
from junctor.evidence.read import open_table
from junctor.evidence.states import StateCells
from junctor.hmm.columns import CASE_ID, NO_NAMES, SequenceColumns, columns_of_sensors
from junctor.hmm.layouts import cut, groups_of, refuse_unclear, warn_of_shapes
from junctor.hmm.model import HiddenMarkovModel
from junctor.hmm.packing import EMPTY, SequenceBatch
from junctor.hmm.sensors import SensorStates, SymbolCells, records_of
from junctor.hmm.step_tables import StepRows, StepTable, are_steps, lists_of_steps
from junctor.learning.expectation import A_WEIGHT, wrong_weights
from junctor.model.errors import EvidenceError, Place, nearest
from junctor.model.network import Variable
from junctor.runtime.arrow import cast, in_one_piece, plain_words, with_plain_words
from junctor.runtime.remote import AnyPath, RemotePath, location

# A row is a sequence. Its list holds symbols (strings or integers; null for unobserved), or for each step a list of
# natural log-likelihoods, one for each state, or a record of the states of sensors. `case_id` names the sequences;
# without it they are numbered. A table with a row for each step becomes such lists.
# Log-likelihoods beyond are none: sums stay finite in single precision, too. Below, people write the lowest number of a
# format for log 0.
LARGEST = 1e30
# Of the sum of probabilities from 1.
SHARES_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False, slots=True)
class EncodedSequences:
    """Consecutive sequences of a table.

    batch: the sequences.
    case_ids: Arrow array [sequences].
    first_row: number of the first row in the table, from 0.
    """

    batch: SequenceBatch
    case_ids: pa.Array
    first_row: int


class SequenceEncoder:
    """Encodes lists of symbols, or of log-likelihoods, for one model."""

    def __init__(self, model: HiddenMarkovModel) -> None:
        self.model = model
        names = model.symbol_names or tuple(map(str, range(model.symbols)))
        self._cells = SymbolCells(names, SensorStates(model.sensors)) if names else None

    def encode(
        self,
        columns: Sequence[pa.Array],
        place: Place | None = None,
        labels: pa.Array | None = None,
        steps: StepTable | None = None,
    ) -> SequenceBatch:
        """Return the sequences of a list column; raises EvidenceError if the model has no use for such lists.

        columns: lists of symbols or log-likelihoods; or of the states of each sensor.
        place: the file, for errors.
        labels: lists of the states of the steps, null for unknown; None for no labels.
        steps: the table whose rows the steps were, None for a table of lists.
        """
        column, unequal = records_of(columns, [name for name, _ in self.model.sensors])
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        invalid = {
            int(n): "there is no sequence" for n in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
        }
        invalid |= unequal if steps is None else steps.reasons
        values = plain_words(column.flatten())
        if is_list(values.type):
            likelihoods, bad = _likelihoods(values, self.model.states, place)
            batch = SequenceBatch(starts, None, likelihoods, invalid)
        else:
            if self._cells is None:
                said = "the model has no emissions: its sequences have to bring lists of log-likelihoods"
                raise EvidenceError(said, place)
            if pa.types.is_struct(values.type):
                symbols, bad = self._cells.sensors.symbols(values, place)
            else:
                symbols, bad = encode_states(values, self._cells)
            batch = SequenceBatch(starts, symbols, None, invalid, self._cells.sensors.partial)
        # The first bad step of a sequence is its reason.
        for step, reason in sorted(bad):
            sequence = int(np.searchsorted(starts, step, side="right")) - 1
            at = f"step {step - starts[sequence]}" if steps is None else steps.source.name(int(steps.rows[step]))
            invalid.setdefault(sequence, f"{at}: {reason}")
        # A null sequence is empty as well, and keeps its reason.
        for sequence in np.flatnonzero(lengths == 0).tolist():
            invalid.setdefault(sequence, EMPTY)
        return batch if labels is None else replace(batch, labels=self._labels(labels, batch, place, steps))

    def _labels(
        self, column: pa.Array, batch: SequenceBatch, place: Place | None, steps: StepTable | None
    ) -> npt.NDArray[np.int32]:
        """Return the label of each step; sequences with labels of other steps or states are invalid."""
        assert batch.invalid is not None
        if len(column) != len(batch):
            raise EvidenceError(f"found labels of {len(column):,} sequences, expected {len(batch):,}", place)
        lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False).astype(np.int64)
        fits = lengths == batch.lengths
        for sequence in np.flatnonzero(~fits & (lengths >= 0)).tolist():
            said = f"found {lengths[sequence]:,} labels, expected {batch.lengths[sequence]:,}, one for each step"
            batch.invalid.setdefault(sequence, said)
        names = self.model.state_names or tuple(map(str, range(self.model.states)))
        codes, bad = encode_states(
            plain_words(column.filter(pa.array(fits)).flatten()), StateCells(Variable("state", names), "state")
        )
        places = np.flatnonzero(np.repeat(fits, batch.lengths))
        for at, reason in sorted(bad):
            step = int(places[at])
            sequence = int(np.searchsorted(batch.starts, step, side="right")) - 1
            where = (
                f"step {step - batch.starts[sequence]}" if steps is None else steps.source.name(int(steps.rows[step]))
            )
            batch.invalid.setdefault(sequence, f"{where}: label: {reason}")
        labels = np.full(int(batch.starts[-1]), -1, np.int32)
        labels[places] = codes
        return labels


def _likelihoods(
    values: pa.Array, states: int, place: Place | None
) -> tuple[npt.NDArray[np.float64], list[tuple[int, str]]]:
    """Return log-likelihoods [steps, states], and the bad steps with reasons."""
    # Steps that are null are unobserved: zeros favour no state.
    lengths = pc.fill_null(pc.list_value_length(values), -1).to_numpy(zero_copy_only=False)
    fits = lengths == states
    wrong = np.flatnonzero(~fits & (lengths >= 0)).tolist()
    bad = [(step, f"found {lengths[step]} log-likelihoods, expected {states}, one for each state") for step in wrong]
    logs = np.zeros((len(values), states))
    try:
        flat = values.filter(pa.array(fits)).flatten().cast(pa.float64(), safe=False)
    except pa.ArrowException:
        said = f"found lists of {values.type.value_type} for the steps, expected symbols, or lists of log-likelihoods"
        raise EvidenceError(said, place) from None
    logs[fits] = pc.fill_null(flat, np.nan).to_numpy(zero_copy_only=False).reshape(-1, states)
    broken = np.flatnonzero((np.isnan(logs) | (logs > LARGEST)).any(axis=1))
    if states > 1 and len(logs[fits]) and not len(broken) and _are_shares(logs[fits]):
        hint = "np.log makes log-likelihoods of probabilities, argmax(axis=-1) symbols of one-hot rows"
        raise EvidenceError(
            f"the numbers of every step are shares, from 0 to 1 with the sum 1, no logarithms: {hint}", place
        )
    logs[broken] = 0.0
    logs[logs < -LARGEST] = -np.inf
    return logs, bad + [(step, f"a log-likelihood is missing, or above {LARGEST:g}") for step in broken.tolist()]


class _Positions(NamedTuple):
    """Columns of a table: of the lists, one or of each sensor; of the case ids, None for numbers; of the labels."""

    lists: tuple[int, ...]
    case_ids: int | None
    labels: int | None

    @property
    def read(self) -> list[int]:
        """Those that are there, in this order."""
        return [*self.lists, *(at for at in self[1:] if at is not None)]


def _are_shares(rows: npt.NDArray[np.float64]) -> bool:
    return bool((rows >= 0).all() and (np.abs(rows.sum(axis=1) - 1) < SHARES_TOLERANCE).all())


@dataclass(frozen=True, eq=False, slots=True)
class SequenceSource:
    """Open files of sequences; `steps`: the table that was made of rows for steps."""

    tables: tuple[ColumnTable, ...]
    positions: _Positions
    encoder: SequenceEncoder
    strict: bool
    steps: StepTable | None = None

    @property
    def no_case_ids(self) -> pa.Array:
        """The case ids of no sequences."""
        at = self.positions.case_ids
        return pa.nulls(0, pa.int64() if at is None else self.tables[0].schema.field(at).type)

    def partitions(self, rows: int, steps: int) -> Iterator[EncodedSequences]:
        """Yield partitions of at most `rows` sequences and `steps` steps, or of one longer sequence, in order.

        Raises EvidenceError for damaged files and, if the source is strict, for the first invalid sequence.
        """
        # Batches of files and partitions have different sizes: pieces are held until they fill a partition.
        held: list[EncodedSequences] = []
        for piece in self._pieces():
            first = 0
            for last, full in _cuts(piece.batch.lengths, rows, steps, held):
                held.append(_slice(piece, first, last))
                first = last
                if full:
                    yield _together(held)
                    held = []
        if held:
            yield _together(held)

    def whole(self) -> SequenceBatch | None:
        """Return all sequences, None where there are none; errors as of `partitions`."""
        pieces = list(self._pieces())
        return _together(pieces).batch if pieces else None

    def names_of(self, rows: Sequence[int]) -> list[str]:
        """Return what people find sequences by: their numbers from 1, of several files that in one and its path.

        rows: ascending, from 0. Of several files, all sequences before these are read again.
        """
        if self.steps is not None and self.positions.case_ids is not None:
            return [repr(cell.as_py()) for cell in self.steps.table.column(self.positions.case_ids).take(list(rows))]
        if len(self.tables) == 1:
            return numbered(rows)
        return numbered_in_files(rows, self._files())

    def _files(self) -> Iterator[tuple[AnyPath, int, int]]:
        """Yield the path of each file, its first sequence, and the one behind it; reads all of them."""
        first = 0
        for table in self.tables:
            end = first + sum(batch.num_rows for batch in table.batches(self.positions.lists))
            yield table.path, first, end
            first = end

    def weights(self, column: str) -> npt.NDArray[np.float64]:
        """Return the weights of all sequences, float64 [sequences].

        Raises EvidenceError without such a column, and for a weight that is no number of 0 or more.
        """
        found = [np.zeros(0)]
        for table in self.tables:
            place, row = Place(str(table.path)), 0
            if column not in table.schema.names:
                raise EvidenceError(f"no column {column!r} of weights{nearest(column, table.schema.names)}", place)
            at = _position(table.schema, column, place)
            if is_list(table.schema.field(at).type):
                raise EvidenceError(f"column {column!r}: found lists, expected weights", place)
            with reading_errors_for(table.path):
                for batch in table.batches([at]):
                    numbers, _ = encode_numbers(batch.column(0))
                    wrong = wrong_weights(numbers)
                    if len(wrong):
                        first = int(wrong[0])
                        raise EvidenceError(
                            f"row {row + first + 1}: column {column!r}: found {batch.column(0)[first].as_py()!r}, "
                            f"expected {A_WEIGHT}",
                            place,
                        )
                    found.append(numbers)
                    row += batch.num_rows
        return np.concatenate(found)

    def _pieces(self) -> Iterator[EncodedSequences]:
        first_row = 0
        at, read, lists = self.positions.case_ids, self.positions.read, len(self.positions.lists)
        for table in self.tables:
            first_of_file = first_row
            with reading_errors_for(table.path):
                for batch in table.batches(read, () if at is None else (at,)):
                    labels = None if self.positions.labels is None else batch.column(len(read) - 1)
                    columns = batch.columns[:lists]
                    encoded = self.encoder.encode(columns, Place(str(table.path)), labels, self.steps)
                    if self.strict and encoded.invalid:
                        row, reason = min(encoded.invalid.items())
                        if self.steps is not None:
                            raise EvidenceError(f"sequence {self.names_of([row])[0]}: {reason}", Place(str(table.path)))
                        number = first_row - first_of_file + row + 1
                        raise EvidenceError(f"row {number}: {reason}", Place(str(table.path)))
                    ids = row_numbers(first_row, batch.num_rows)
                    if at is not None:
                        # Text comes as a dictionary.
                        ids = cast(batch.column(lists), self.tables[0].schema.field(at).type)
                    yield EncodedSequences(encoded, ids, first_row)
                    first_row += batch.num_rows


def open_sequences(
    path: str | os.PathLike[str] | RemotePath,
    model: HiddenMarkovModel,
    names: SequenceColumns = NO_NAMES,
    *,
    strict: bool = False,
    format: str | None = None,
) -> SequenceSource:
    """Open a file, or a folder of them, with a list column, of which no rows are read yet, or with a row for each step.

    path: file or folder.
    model: of the sequences.
    names: of the columns.
    strict: whether invalid sequences are refused instead of marked.
    format: parquet, arrow, csv or tsv, None for the format by name or first bytes.
    Raises EvidenceError.
    """
    source = location(path)
    with reading_errors_for(source):
        tables = tuple(_open(file, checked_format(format)) for file in input_files(source).paths)
        if are_steps(tables[0].schema, names, Place(str(tables[0].path))):
            made = _rows_of(tables, names, model)
            return SequenceSource((made,), _made(made, names), SequenceEncoder(model), strict, made)
        positions = [_positions(table.schema, names, model, Place(str(table.path))) for table in tables]
    # A folder is one table: lists and case ids stand at the same positions in all files.
    for table in tables[1:]:
        if (schema := _with_one_text(table.schema)) != (first := _with_one_text(tables[0].schema)):
            found, expected = _differing(schema, first)
            raise EvidenceError(f"found {found}, but in {tables[0].path} {expected}", Place(str(table.path)))
    return SequenceSource(tables, positions[0], SequenceEncoder(model), strict)


def _rows_of(tables: Sequence[ColumnTable], names: SequenceColumns, model: HiddenMarkovModel) -> StepTable:
    """Return the sequences of files with a row for each step; all of them are read."""
    parts, files, first = [], [], 0
    sensors = [name for name, _ in model.sensors]
    for table in tables:
        if table.schema.names != tables[0].schema.names:
            found, expected = _differing(table.schema, tables[0].schema)
            raise EvidenceError(f"found {found}, but in {tables[0].path} {expected}", Place(str(table.path)))
        place = Place(str(table.path))
        read = names.read(table.schema.names, sensors, place)
        positions = [_position(table.schema, name, place) for name in read]
        with reading_errors_for(table.path):
            batches = list(table.batches(positions))
            none = pa.schema([table.schema.field(at) for at in positions]).empty_table()
            part = pa.Table.from_batches(batches) if batches else none
            parts.append(pa.table([_plain_cells(column) for column in part.columns], read))
        files.append((str(table.path), first))
        first += part.num_rows
    with reading_errors_for(tables[0].path):
        whole = pa.concat_tables(parts, promote_options="permissive")
    return lists_of_steps(StepRows(whole, tuple(files)), names, sensors, tables[0].path)


def _plain_cells(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _made(table: StepTable, names: SequenceColumns) -> _Positions:
    """Return the positions of the columns of a table that was made of rows for steps."""
    columns = table.schema.names
    ids = columns.index(names.case_id or CASE_ID) if (names.case_id or CASE_ID) in columns else None
    return _Positions((0,), ids, None if names.labels is None else columns.index(names.labels))


def encode_sequences(
    sequences: Any,
    model: HiddenMarkovModel,
    labels: Any = None,
    lengths: Any = None,
    names: SequenceColumns = NO_NAMES,
) -> EncodedSequences:
    """Encode sequences in memory: a list of lists, or an Arrow array, or a table. Raises EvidenceError.

    labels: of the steps, lists as well, or the name of a column of the table; None for none.
    lengths: of sequences that stand one after the other, a row for each step, and so do labels; None for lists.
    names: of the columns of a table.
    """
    steps: StepTable | None = None
    lists: list[pa.Array] = []
    ids, shape = None, () if hasattr(sequences, "columns") else getattr(sequences, "shape", ())
    try:
        if lengths is not None:
            sequences = cut(sequences, lengths, model)
            labels = None if labels is None else cut(labels, lengths, None, "labels")
        elif hasattr(sequences, "ngroups"):
            ids, sequences = groups_of(sequences)
        elif len(shape) == 2:
            refuse_unclear(sequences, model)
        # A mapping of columns, or a data frame of pandas, whose series have items as well.
        if hasattr(sequences, "items") and getattr(sequences, "ndim", 2) == 2:
            sequences = pa.table({str(name): _cells(cells) for name, cells in sequences.items()})
        elif hasattr(sequences, "columns"):
            sequences = pa.table(sequences)
        if isinstance(sequences, pa.Table):
            sequences = with_plain_words(sequences)
            names = replace(names, labels=labels) if isinstance(labels, str) else names
            if are_steps(sequences.schema, names, None):
                steps = lists_of_steps(StepRows(sequences), names, [name for name, _ in model.sensors])
                sequences = steps.table
            positions = _positions(sequences.schema, names, model) if steps is None else _made(steps, names)
            ids = None if positions.case_ids is None else in_one_piece(sequences.column(positions.case_ids))
            if positions.labels is not None:
                labels = sequences.column(positions.labels)
            lists = [_lists(sequences.column(at), model) for at in positions.lists]
        elif isinstance(labels, str):
            raise EvidenceError(f"labels: found the text {labels!r}, which names a column of a table alone")
        if not lists:
            lists = [_lists(_arrow(sequences), model)]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise EvidenceError(f"sequences cannot be read: {error}") from None
    known = None if labels is None else _lists(_arrow(labels, "labels"), model, "labels")
    batch = SequenceEncoder(model).encode(lists, None, known, steps)
    if lengths is None and ids is None and steps is None:
        warn_of_shapes(batch, shape)
    return EncodedSequences(batch, row_numbers(0, len(batch)) if ids is None else ids, 0)


def _lists(array: pa.Array | pa.ChunkedArray, model: HiddenMarkovModel, what: str = "sequences") -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        array = in_one_piece(array)
    # A list of None alone has no type yet.
    if pa.types.is_null(array.type):
        array = array.cast(pa.large_list(pa.int64() if model.symbols else pa.list_(pa.float64())))
    if not is_list(array.type):
        hint = "a single sequence is a list in a list, and the letters of a text are list(text)"
        raise EvidenceError(f"found {what} of type {array.type}, expected lists of steps: {hint}")
    return array


def _cells(cells: Any) -> pa.Array | pa.ChunkedArray:
    """Return a column of a table: of lists, or of the cells of steps."""
    first = None if isinstance(cells, pa.ChunkedArray) else next((cell for cell in cells if cell is not None), None)
    are_lists = first is None or isinstance(cells, pa.Array) or _kind(first) == "lists"
    return _arrow(cells) if are_lists else pa.array(cells, from_pandas=True)


def _arrow(cells: Any, what: str = "sequences") -> pa.Array | pa.ChunkedArray:
    if isinstance(cells, pa.Array | pa.ChunkedArray):
        return cells
    try:
        sequences = list(map(_steps, cells))
    except (pa.ArrowException, TypeError) as error:
        raise EvidenceError(f"{what} cannot be read: {error}") from None
    try:
        return pa.array(sequences)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise EvidenceError(f"{what} cannot be read: {_mixture(sequences) or error}") from None


def _steps(sequence: Any) -> Any:
    """Return a sequence as Arrow takes it among others."""
    if hasattr(sequence, "mask") and getattr(sequence, "ndim", 1) == 1:
        # Arrow does not look at masks there, and takes no series.
        return pa.array(sequence, from_pandas=True).to_pylist()
    # Arrow takes arrays of one axis only: of log-likelihoods it is given steps.
    return list(map(_steps, sequence)) if getattr(sequence, "ndim", 1) > 1 else sequence


def _mixture(sequences: Sequence[Any]) -> str | None:
    """Return where a step is of another kind than the first one, and what it is; None for nowhere."""
    expected = None
    for number, sequence in enumerate(sequences):
        if sequence is None:
            continue
        if _kind(sequence) != "lists":
            return f"sequence {number}: found {_shown(sequence)}, expected a list of steps"
        for step, cell in enumerate(sequence):
            kind = expected if cell is None else _kind(cell)
            expected = expected or kind
            if kind != expected:
                return (
                    f"sequence {number}, step {step}: found {_shown(cell)}, expected {expected} as before (None where "
                    "nothing is observed)"
                )
    return None


def _kind(cell: Any) -> str:
    if isinstance(cell, str | bytes):
        return "text"
    if isinstance(cell, bool | np.bool_):
        return "booleans"
    if isinstance(cell, Number):
        return "numbers"
    return "lists" if isinstance(cell, Iterable) else type(cell).__name__


def _shown(cell: Any) -> str:
    text = repr(cell)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _open(path: AnyPath, format: str | None) -> ColumnTable:
    with reading_errors_for(path):
        format = format or format_of(path)
        if format == "evid":
            raise EvidenceError("found evid, expected sequences as Parquet, Arrow, CSV or TSV", Place(str(path)))
        return open_table(path, format)


def _positions(
    schema: pa.Schema, names: SequenceColumns, model: HiddenMarkovModel, place: Place | None = None
) -> _Positions:
    """Return the positions of the columns that are read."""
    column, case_id, labels = names.column, names.case_id, names.labels
    lists = [field.name for field in schema if is_list(field.type)]
    if not lists:
        raise EvidenceError(
            "found no column of lists; where rows are steps, --case-id names the column of their sequence, --step that "
            "of their order",
            place,
        )
    if labels is not None and labels not in lists:
        raise EvidenceError(f"no list column {labels!r} of labels{nearest(labels, lists)}; found {lists}", place)
    if column is None and labels is not None:
        lists.remove(labels)
    if column is None:
        sensors = columns_of_sensors([name for name, _ in model.sensors], lists, place)
        if not sensors and len(set(lists)) != 1:
            raise EvidenceError(f"found the list columns {lists}, expected one; --column names it", place)
        columns = sensors or lists[:1]
    elif column not in lists:
        raise EvidenceError(f"no list column {column!r}{nearest(column, lists)}; found {lists}", place)
    else:
        columns = [column]
    if case_id is not None and case_id not in schema.names:
        raise EvidenceError(f"no column {case_id!r} for the case ids{nearest(case_id, schema.names)}", place)
    name = case_id or CASE_ID
    at = _position(schema, name, place) if name in schema.names and name not in columns else None
    known = None if labels is None else _position(schema, labels, place)
    return _Positions(tuple(_position(schema, column, place) for column in columns), at, known)


def _position(schema: pa.Schema, name: str, place: Place | None) -> int:
    """Return the position of a column that is there; raises EvidenceError where several have its name."""
    names: list[str] = schema.names
    count = names.count(name)
    if count > 1:
        raise EvidenceError(f"found {count} columns {name!r}, expected one: rename the others", place)
    return names.index(name)


def _with_one_text(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the shortest type of Arrow for text, and for lists: writers of tables differ in them."""
    return pa.schema([field.with_type(_one_text(field.type)) for field in schema])


def _one_text(kind: pa.DataType) -> pa.DataType:
    if is_string(kind):
        return pa.string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        # Names of what is in a list differ, too.
        return pa.list_(_one_text(kind.value_type))
    return kind


def _differing(schema: pa.Schema, first: pa.Schema) -> tuple[str, str]:
    """Return in words what is different in two schemas, in each of them: names, or else the first type."""
    if schema.names != first.names:
        return f"the columns {schema.names}", f"{first.names}"
    found, expected = next(pair for pair in zip(schema, first, strict=True) if pair[0] != pair[1])
    kinds = [f"{field.type}{'' if field.nullable else ' not null'}" for field in (found, expected)]
    return f"column {found.name!r} of type {kinds[0]}", kinds[1]


def _cuts(
    lengths: npt.NDArray[np.int64], rows: int, steps: int, held: Iterable[EncodedSequences]
) -> Iterator[tuple[int, bool]]:
    """Yield the ends of slices of a piece, and whether the partition, with `held`, is full there."""
    have_rows = sum(len(piece.batch) for piece in held)
    have_steps = sum(int(piece.batch.starts[-1]) for piece in held)
    for n, length in enumerate(lengths.tolist()):
        if have_rows == rows or (have_rows and have_steps + length > steps):
            yield n, True
            have_rows = have_steps = 0
        have_rows, have_steps = have_rows + 1, have_steps + length
    yield len(lengths), False


def _slice(piece: EncodedSequences, first: int, last: int) -> EncodedSequences:
    batch = piece.batch
    # Views, not copies: a partition is copied once, in `_together`.
    begin, end = int(batch.starts[first]), int(batch.starts[last])
    part = SequenceBatch(
        batch.starts[first : last + 1] - begin,
        None if batch.symbols is None else batch.symbols[begin:end],
        None if batch.likelihoods is None else batch.likelihoods[begin:end],
        {n - first: reason for n, reason in (batch.invalid or {}).items() if first <= n < last},
        batch.partial,
        None if batch.labels is None else batch.labels[begin:end],
    )
    return EncodedSequences(part, piece.case_ids.slice(first, last - first), piece.first_row + first)


def _together(pieces: Sequence[EncodedSequences]) -> EncodedSequences:
    batches = [piece.batch for piece in pieces]
    lengths = np.concatenate([batch.lengths for batch in batches])
    invalid: dict[int, str] = {}
    for first, batch in zip(np.cumsum([0, *map(len, batches)]).tolist(), batches, strict=False):
        invalid |= {n + first: reason for n, reason in (batch.invalid or {}).items()}
    symbols = [batch.symbols for batch in batches if batch.symbols is not None]
    likelihoods = [batch.likelihoods for batch in batches if batch.likelihoods is not None]
    labels = [batch.labels for batch in batches if batch.labels is not None]
    whole = SequenceBatch(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.concatenate(symbols) if symbols else None,
        np.concatenate(likelihoods) if likelihoods else None,
        invalid,
        # Those of the last piece are those of all before, and more.
        batches[-1].partial,
        np.concatenate(labels) if labels else None,
    )
    return EncodedSequences(whole, pa.concat_arrays([piece.case_ids for piece in pieces]), pieces[0].first_row)
