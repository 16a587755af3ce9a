"""Encoding of evidence tables: names become numbers, bad cells become reasons.

Main classes: Encoder, for `junctor.evidence.read` and its files, and TableEncoder, for tables in memory. `layout`
assigns the columns, `states` reads their cells.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.evidence.columns import Bad, encode_binned, encode_entries, encode_lists, encode_states, unknown_cells
from junctor.evidence.layout import NO_COLUMNS, ColumnLayout, Role, read_layout, warn_of_no_evidence
from junctor.evidence.mapping import EvidenceMapping, MappedCells, cells_of
from junctor.evidence.tables import as_arrow
from junctor.model.errors import EvidenceError, Place
from junctor.model.network import Network
from junctor.model.option_table import TableOptions, takes_keywords
from junctor.runtime.arrow import cast, no_rows, number_array, without_null_words

__all__ = ["EncodedPartition", "Encoder", "TableEncoder", "as_arrow", "concatenate"]


@dataclass(frozen=True, eq=False, slots=True)
class EncodedPartition:
    """Consecutive rows of an evidence table.

    batch: the evidence.
    case_ids: Arrow array [rows].
    first_row: number of the first row in the table.
    kept: columns that are carried through, as they were given, but without null and views in dictionaries; None for
        none.
    """

    batch: EvidenceBatch
    case_ids: pa.Array
    first_row: int
    kept: pa.Table | None = None

    @property
    def bytes(self) -> int:
        """Of it in memory, about: states take four bytes each."""
        return 4 * self.batch.rows * len(self.batch.states) + self.carried

    @property
    def carried(self) -> int:
        """Bytes of the case ids, and of the columns that are carried through."""
        return int(self.case_ids.nbytes) + (0 if self.kept is None else int(self.kept.nbytes))

    def rows(self, start: int, rows: int) -> EncodedPartition:
        """Return `rows` rows from `start` on; shares the memory."""
        batch, end = self.batch, start + rows
        if rows == batch.rows:
            return self
        states = {variable: column[start:end] for variable, column in batch.states.items()}
        likelihoods = {}
        for variable, soft in batch.likelihoods.items():
            here = slice(*np.searchsorted(soft.rows, (start, end)))
            if here.stop > here.start:
                likelihoods[variable] = SoftEvidence(soft.rows[here] - start, soft.values[here])
        invalid = {row - start: reason for row, reason in batch.invalid.items() if start <= row < end}
        evidence = EvidenceBatch(rows, states, likelihoods, invalid)
        kept = None if self.kept is None else self.kept.slice(start, rows)
        return EncodedPartition(evidence, self.case_ids.slice(start, rows), self.first_row + start, kept)


class TableEncoder:
    """Encodes a table in memory, whole or in pieces.

    schema: its columns, as `junctor.evidence.layout` describes them.
    network: the network that names refer to.
    file: name for errors.
    mapping: what names of columns and cells mean, None for the network's.
    options: of the table.
    Raises EvidenceError.
    """

    @takes_keywords()
    def __init__(
        self,
        schema: pa.Schema,
        network: Network,
        *,
        file: str | None = None,
        mapping: EvidenceMapping | None = None,
        **options: Unpack[TableOptions],
    ) -> None:
        if mapping is not None:
            mapping.refuse_absent(schema.names, file)
        self._layout = layout = read_layout(
            schema,
            network,
            case_id=options["case_id"],
            ignore_extra=options["ignore_extra"],
            keep=options["keep"],
            file=file,
            mapping=mapping,
        )
        if options["ignore_extra"]:
            warn_of_no_evidence(layout, schema, file)
        strict, missing = options["strict"], tuple(map(str, options["missing"]))
        self._encoder = Encoder(network, layout, strict, lambda row: Place(file) if file else None, mapping, missing)

    def encode(self, table: pa.Table | pa.RecordBatch, first_row: int = 0) -> EncodedPartition:
        """Encode some rows, one call at a time; first_row: number of the first one in the table, from 0.

        Raises EvidenceError if strict and a row is invalid.
        """
        layout, parts, row = self._layout, [], first_row
        for batch in table.to_batches() if isinstance(table, pa.Table) else [table]:
            parts.append(self._encoder.encode(batch.select(layout.positions), row, row))
            row += batch.num_rows
        return concatenate(parts, layout.case_id_type, first_row, layout.kept_schema)


class Encoder:
    """Encodes the batches of one table.

    network: the network that names refer to.
    layout: the columns of the table.
    strict: whether the first invalid row is refused instead of marked.
    place: gives the place of a row of the file (from 0), for errors.
    mapping: what cells mean, None for the network's names.
    missing: texts that stand for no observation, beside the usual ones.
    """

    # A row is invalid where a cell names no state of its variable; where a likelihood has the wrong length, is missing
    # in part, negative, not finite or all zeros; or where a variable has both a state and a likelihood.

    def __init__(
        self,
        network: Network,
        layout: ColumnLayout,
        strict: bool,
        place: Callable[[int], Place | None],
        mapping: EvidenceMapping | None = None,
        missing: Sequence[str] = (),
    ) -> None:
        self._network = network
        self._missing = tuple(missing)
        self._case_id_type = layout.case_id_type
        self._strict = strict
        self._place = place
        self._case_id: int | None = None
        self._kept = [layout.positions.index(position) for position in layout.kept]
        self._kept_schema = layout.kept_schema
        # (role, variable) -> positions of its columns in a batch; entries of a likelihood in the order of the states.
        self._sources: dict[tuple[Role, int], list[int]] = {}
        for at, column in sorted(enumerate(layout.columns), key=lambda item: item[1].state):
            if column.role == "case_id":
                self._case_id = at
            else:
                self._sources.setdefault((column.role, column.variable), []).append(at)
        self._cells = {
            variable: cells_of(network, variable, mapping, self._missing)
            for role, variable in self._sources
            if role == "states"
        }

    def binned(self, layout: ColumnLayout) -> list[int]:
        """Return the positions of the columns whose numbers are put into bins: most of their cells differ."""
        cells = {v for v, each in self._cells.items() if isinstance(each, MappedCells) and each.bins is not None}
        return [column.position for column in layout.columns if column.role == "states" and column.variable in cells]

    def unknown_states(self, batch: pa.RecordBatch) -> dict[int, list[str]]:
        """Return the texts of cells that name no state of their variable, but for those that are put into bins."""
        found = {}
        for (role, variable), at in self._sources.items():
            cells = self._cells.get(variable)
            is_binned = isinstance(cells, MappedCells) and cells.bins is not None
            if role == "states" and cells is not None and not is_binned:
                found[variable] = unknown_cells(batch.column(at[0]), cells)
        return found

    def encode(self, batch: pa.RecordBatch, first_row: int, row_in_file: int) -> EncodedPartition:
        """Encode a batch with exactly the columns of the layout; raises EvidenceError if strict and a row is invalid.

        batch: columns at the positions of the layout.
        first_row: number of its first row in the table, from 0.
        row_in_file: the same in its file.
        """
        encoded = self._encoded(batch, first_row, True)
        invalid = encoded.batch.invalid
        if self._strict and invalid:
            row = min(invalid)
            raise EvidenceError(f"row {row_in_file + row + 1}: {invalid[row]}", self._place(row_in_file + row))
        return encoded

    def encode_valid(self, batch: pa.RecordBatch, first_row: int) -> EncodedPartition | None:
        """Return the same, None where a row is invalid; batches may be encoded in any order, and in threads."""
        encoded = self._encoded(batch, first_row, False)
        return None if encoded.batch.invalid else encoded

    def _encoded(self, batch: pa.RecordBatch, first_row: int, explain: bool) -> EncodedPartition:
        states: dict[int, npt.NDArray[np.int32]] = {}
        likelihoods: dict[int, SoftEvidence] = {}
        bad: dict[int, Bad] = {}
        for (role, variable), at in self._sources.items():
            columns, names = [batch.column(i) for i in at], self._network.variables[variable].states
            if role == "states":
                cells = self._cells[variable]
                if isinstance(cells, MappedCells) and cells.bins is not None:
                    states[variable], errors = encode_binned(columns[0], cells, explain)
                else:
                    states[variable], errors = encode_states(columns[0], cells, explain)
            elif role == "likelihood":
                likelihoods[variable], errors = encode_lists(columns[0], names)
            else:
                likelihoods[variable], errors = encode_entries(columns, names, self._missing)
            bad.setdefault(variable, []).extend(errors)
        # Only now: the check compares whole columns of both kinds.
        for variable in states.keys() & likelihoods.keys():
            likelihoods[variable], errors = _without_states(likelihoods[variable], states[variable])
            bad[variable] += errors
        invalid = self._joined(bad)
        soft = {variable: likelihood for variable, likelihood in likelihoods.items() if likelihood.rows.size}
        encoded = EvidenceBatch(batch.num_rows, states, soft, invalid)
        kept = [
            without_null_words(_cast(batch.column(at), kind))
            for at, kind in zip(self._kept, self._kept_schema.types, strict=True)
        ]
        carried = pa.Table.from_arrays(kept, schema=self._kept_schema) if kept else None
        return EncodedPartition(encoded, self._case_ids(batch, first_row), first_row, carried)

    def _joined(self, bad: Mapping[int, Bad]) -> dict[int, str]:
        """Return the joined reasons of each row, in the order of the network's variables."""
        reasons: dict[int, str] = {}
        for variable in sorted(bad):
            prefix = f"column {self._network.variables[variable].name!r}: "
            for row, reason in bad[variable]:
                reasons[row] = f"{reasons[row]}; {prefix}{reason}" if row in reasons else prefix + reason
        return dict(sorted(reasons.items()))

    def _case_ids(self, batch: pa.RecordBatch, first_row: int) -> pa.Array:
        if self._case_id is None:
            return row_numbers(first_row, batch.num_rows)
        return _cast(batch.column(self._case_id), self._case_id_type)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    # Arrow loads all of its functions for a cast to the same type, too.
    if column.type == kind:
        return column
    # Without a type, because all of its cells are missing. Such cells are not cast to every type.
    return pa.nulls(len(column), kind) if pa.types.is_null(column.type) else cast(column, kind)


def numbered(rows: Sequence[int]) -> list[str]:
    """Return the numbers of rows of one table, from 1, for people; `rows` are from 0."""
    return [f"{row + 1:,}" for row in rows]


def numbered_in_files(rows: Sequence[int], pieces: Iterable[tuple[object, int, int]]) -> list[str]:
    """Return the numbers of rows of several files in these, from 1, with the files, for people.

    rows: ascending, from 0, over all files.
    pieces: of the files in their order: path, the row that the file begins with, and the one behind the piece. No more
        of them are read than that takes.
    """
    names: list[str] = []
    for path, begin, end in pieces:
        here = rows[len(names) : bisect_left(rows, end)]
        names += (f"{row - begin + 1:,} of {path}" for row in here)
        if len(names) == len(rows):
            break
    return names


def row_numbers(first_row: int, rows: int) -> pa.Array:
    """Return the case ids of a table that has none: int64, from 0."""
    return number_array(np.arange(first_row, first_row + rows, dtype=np.int64))


def concatenate(
    parts: Sequence[EncodedPartition], case_id_type: pa.DataType, first_row: int, kept: pa.Schema = NO_COLUMNS
) -> EncodedPartition:
    """Return consecutive encoded pieces as one partition.

    parts: in the order of the rows; none give a partition without rows.
    case_id_type: Arrow type of the case ids, for no parts.
    first_row: number of the first row.
    kept: names and types of the columns that are carried through.
    """
    starts = np.cumsum([0, *(part.batch.rows for part in parts)]).tolist()
    batches = [part.batch for part in parts]
    # Pieces of different files may have different columns: what one lacks is unobserved there.
    variables = sorted({variable for batch in batches for variable in batch.states})
    if len(parts) == 1:
        # Without a copy, but in the order of the network.
        batch = batches[0]
        soft = {variable: batch.likelihoods[variable] for variable in sorted(batch.likelihoods)}
        ordered = EvidenceBatch(batch.rows, {v: batch.states[v] for v in variables}, soft, batch.invalid)
        return EncodedPartition(ordered, parts[0].case_ids, first_row, parts[0].kept)
    states = {variable: np.concatenate([_states(batch, variable) for batch in batches]) for variable in variables}
    pieces: dict[int, list[SoftEvidence]] = {}
    invalid: dict[int, str] = {}
    for start, batch in zip(starts, batches, strict=False):
        for variable, likelihood in batch.likelihoods.items():
            pieces.setdefault(variable, []).append(SoftEvidence(likelihood.rows + start, likelihood.values))
        invalid |= {start + row: reason for row, reason in batch.invalid.items()}
    # In the order of the network, whatever the order of columns: encoded files are compared by their bytes.
    likelihoods = {variable: _concatenated(pieces[variable]) for variable in sorted(pieces)}
    ids = [part.case_ids for part in parts]
    case_ids = pa.concat_arrays(ids) if ids else pa.nulls(0, case_id_type)
    # In one piece: files of Arrow have one dictionary a column.
    tables = [part.kept for part in parts if part.kept is not None] or [no_rows(kept)]
    carried = pa.concat_tables(tables).combine_chunks() if len(kept) else None
    return EncodedPartition(EvidenceBatch(starts[-1], states, likelihoods, invalid), case_ids, first_row, carried)


def _without_states(likelihood: SoftEvidence, states: npt.NDArray[np.int32]) -> tuple[SoftEvidence, Bad]:
    """Return the likelihoods without the rows that observe the variable, and those rows with reasons."""
    observed = states[likelihood.rows] != UNOBSERVED
    bad: Bad = [(row, "both a state and a likelihood") for row in likelihood.rows[observed].tolist()]
    return SoftEvidence(likelihood.rows[~observed], likelihood.values[~observed]), bad


def _states(batch: EvidenceBatch, variable: int) -> npt.NDArray[np.int32]:
    states = batch.states.get(variable)
    return np.full(batch.rows, UNOBSERVED, dtype=np.int32) if states is None else states


def _concatenated(pieces: Sequence[SoftEvidence]) -> SoftEvidence:
    rows = np.concatenate([piece.rows for piece in pieces])
    return SoftEvidence(rows, np.concatenate([piece.values for piece in pieces]))
