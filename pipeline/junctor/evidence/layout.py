"""The columns of an evidence table: case id, states of a variable, its likelihood, or one entry of it.

Main function: `read_layout`; called by `junctor.evidence.read` and `junctor.evidence.encode`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn

import pyarrow as pa

from junctor.evidence.columns import is_list, is_number, is_text
from junctor.evidence.mapping import EvidenceMapping
from junctor.evidence.plain_cells import CASE_ID
from junctor.evidence.states import StateCells
from junctor.model.errors import EvidenceError, Place, nearest
from junctor.model.network import Network
from junctor.model.query import hidden_name

logger = logging.getLogger(__name__)

# - The column named by `case_id=` is carried through; without that option a column called `case_id`, or `IDnum` as
#   Netica has it, is, unless the network has a variable of that name.
# - A column with the name of a variable holds its states, or, where its cells are lists, its likelihood.
# - A column `variable=state` (the state by name or index) holds one entry of a likelihood. A variable that has one such
#   column must have one for each of its states.
# - A column from the name of a folder is no evidence; it may be the case id, or kept.
# - The index of a pandas data frame, `__index_level_0__` or as the metadata of pandas name it, is left out, unless it
#   has the name of a variable.
# - A column that is kept is carried through as it is, and may be any of these, or a column that is no evidence.
# - Anything else is refused, or left out with `ignore_extra`.
Role = Literal["case_id", "states", "likelihood", "entry"]
NO_COLUMNS = pa.schema([])
# Names that case ids have where none is given.
CASE_IDS = (CASE_ID, "IDnum")
_INDEX = re.compile(r"__index_level_\d+__")


@dataclass(frozen=True, slots=True)
class Column:
    """A column that is read.

    position: index in the table.
    name: name in the table.
    role: what its cells are.
    variable: index of the variable; -1 for the role `case_id`.
    state: index of the state; -1 for all roles but `entry`.
    """

    position: int
    name: str
    role: Role
    variable: int = -1
    state: int = -1


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """The columns of a table that are read, in the order of the table, and the type of its case ids.

    kept: positions in the table of the columns that are carried through, in the order asked.
    kept_schema: their names and types.
    """

    columns: tuple[Column, ...]
    case_id_type: pa.DataType
    kept: tuple[int, ...] = ()
    kept_schema: pa.Schema = NO_COLUMNS

    @property
    def variables(self) -> list[int]:
        """The variables that the table has evidence on, ascending."""
        return sorted({column.variable for column in self.columns if column.role != "case_id"})

    @property
    def positions(self) -> list[int]:
        """The positions in the table of all columns that are read, those of `columns` first."""
        return list(dict.fromkeys([*(column.position for column in self.columns), *self.kept]))


def read_layout(
    schema: pa.Schema,
    network: Network,
    *,
    case_id: str | None = None,
    ignore_extra: bool = False,
    keep: Sequence[str] = (),
    file: str | None,
    partition: int = 0,
    mapping: EvidenceMapping | None = None,
) -> ColumnLayout:
    """Return the columns that are evidence, and those that are carried through.

    schema: Arrow schema of the table.
    network: the network that names refer to.
    case_id: name of the column of case ids, None for `case_id` where there is one.
    ignore_extra: whether unknown columns are left out.
    keep: names of columns to carry through, which need not be of the network.
    file: name for errors.
    partition: number of the last columns that are names of folders; they may be case ids or kept, and are no evidence.
    mapping: names that columns are read under, None for their own.
    Raises EvidenceError for unknown columns unless `ignore_extra`, two columns of the same content, cells of a wrong
    type, a likelihood without columns for all states, a missing case-id or kept column, and a file without a column to
    read whose names look like another separator.
    """
    place = Place(file) if file else None
    own, indices = schema.names, _indices(schema)
    reader = _LayoutReader(network, case_id, ignore_extra, frozenset(keep), place, own, partition, mapping, indices)
    # First: a misspelt name is not to be told as an unknown column.
    kept = tuple(reader.position_of(name) for name in keep)
    # Checks of whole tables come after the roles of all columns: files list them in any order.
    columns = tuple(reader.columns(schema.types))
    reader.refuse_doubles(columns)
    reader.refuse_partial_likelihoods(columns)
    ids = [schema.types[column.position] for column in columns if column.role == "case_id"]
    reader.refuse_missing_ids()
    # A column that is found shows that the separator is the right one.
    if ignore_extra and not columns and not kept:
        reader.refuse_separator(own[: len(own) - partition])
    hidden = frozenset() if mapping is None else mapping.hidden
    names = [hidden_name(name) if network.index.get(name) in hidden else name for name in keep]
    fields = [schema.field(at).with_name(name).with_nullable(True) for name, at in zip(names, kept, strict=True)]
    return ColumnLayout(columns, _case_id_type(ids[0], reader) if ids else pa.int64(), kept, pa.schema(fields))


def warn_of_no_evidence(layout: ColumnLayout, schema: pa.Schema, file: str | None) -> None:
    """Tell that no column of a table is evidence, where that is so.

    layout, schema: of the table, whose extra columns are left out.
    file: name for the message.
    """
    if not layout.variables and schema.names:
        shown = ", ".join(map(repr, schema.names[:5])) + ", ..." * (len(schema.names) > 5)
        where = f"{file}: " if file else ""
        logger.warning("%sno column is evidence, so all rows have the same answers; columns are %s", where, shown)


@dataclass(frozen=True, slots=True)
class _LayoutReader:
    """Assigns roles to columns; `cells` caches the readers of state names in `variable=state`."""

    network: Network
    case_id: str | None
    ignore_extra: bool
    keep: frozenset[str]
    place: Place | None
    names: Sequence[str]
    partition: int
    mapping: EvidenceMapping | None
    indices: frozenset[str]
    cells: dict[int, StateCells] = field(default_factory=dict)

    def fail(self, message: str) -> NoReturn:
        raise EvidenceError(message, self.place)

    def columns(self, types: Sequence[pa.DataType]) -> Iterator[Column]:
        for position, (raw, kind) in enumerate(zip(self.names, types, strict=True)):
            if position >= len(self.names) - self.partition:
                yield from self._folder_column(position, raw)
                continue
            read = self._read(raw)
            if read is None:
                continue
            name = self._name(read)
            column = self._column(position, name, kind) or self._entry(position, read, kind)
            if column is not None:
                if self.mapping is None or column.variable not in self.mapping.hidden:
                    yield column
            # Some writers have the columns of folders in the files as well.
            elif not self.ignore_extra and not (self.keep | self.indices) & {raw, name} and name not in self._folders:
                self._refuse_unknown(position, name)

    def _read(self, raw: str) -> str | None:
        return raw if self.mapping is None else self.mapping.name_of(raw)

    def _name(self, read: str) -> str:
        # White space around a name is dropped unless the name with it is a variable's.
        return read if read in self.network.index else read.strip()

    def refuse_missing_ids(self) -> None:
        """Raise EvidenceError if there is no column of the name that was given for case ids."""
        own = map(self._read, self.names[: len(self.names) - self.partition])
        names = {*self._folders, *(self._name(read) for read in own if read is not None)}
        if self.case_id is not None and self.case_id not in names:
            if self.mapping is not None and self.case_id in {*self.names, *(raw.strip() for raw in self.names)}:
                read = self.mapping.name_of(self.case_id)
                how = "ignores it" if read is None else f"reads it as {read!r}"
                self.fail(f"no column {self.case_id!r} for the case ids: the mapping {how} (remove that line)")
            self.fail(f"no column {self.case_id!r} for the case ids{nearest(self.case_id, self.names)}")

    def refuse_separator(self, own: Sequence[str]) -> None:
        """Raise EvidenceError if names of columns of a file look like several of them."""
        if self.place is not None and any(sign in name for name in own for sign in ",;\t|"):
            found = f"one column, {own[0]!r}" if len(own) == 1 else f"columns such as {own[0]!r}"
            self.fail(f"found {found}: is another separator meant? (.csv has commas, .tsv tabs)")

    @property
    def _folders(self) -> Sequence[str]:
        return self.names[len(self.names) - self.partition :]

    def _folder_column(self, position: int, name: str) -> Iterator[Column]:
        if name == (CASE_ID if self.case_id is None else self.case_id):
            yield Column(position, name, "case_id")
        elif name in self.network.index and not self.ignore_extra and name not in self.keep:
            self.fail(
                f"folder {name!r} has the name of a variable, but folders are never evidence: rename it, or leave it "
                "out with --ignore-extra"
            )

    def position_of(self, name: str) -> int:
        """Return the position of a column that was asked for; raises EvidenceError unless there is exactly one."""
        found = [i for i, raw in enumerate(self.names) if raw == name]
        found = found or [i for i, raw in enumerate(self.names) if raw.strip() == name]
        if found and found[-1] >= len(self.names) - self.partition:
            return found[-1]
        if len(found) != 1:
            if not found:
                self.fail(f"there is no column {name!r}{nearest(name, self.names)}")
            self.fail(f"there are {len(found)} columns {name!r}, expected one")
        return found[0]

    def _column(self, position: int, name: str, kind: pa.DataType) -> Column | None:
        if name == self.case_id or (self.case_id is None and name in CASE_IDS and name not in self.network.index):
            return Column(position, name, "case_id")
        if name in self.network.index:
            variable = self.network.index[name]
            return Column(position, name, self._role(variable, name, kind), variable)
        return None

    def _role(self, variable: int, name: str, kind: pa.DataType) -> Role:
        if not is_list(kind):
            if not (is_text(kind) or is_number(kind)):
                self.fail(f"column {name!r}: found cells of type {kind}, expected text or numbers for states")
            return "states"
        if not is_number(kind.value_type):
            self.fail(f"column {name!r}: found lists of {kind.value_type}, expected lists of numbers for likelihoods")
        cardinality = self.network.cardinalities[variable]
        if pa.types.is_fixed_size_list(kind) and kind.list_size != cardinality:
            self.fail(
                f"column {name!r}: found lists of {kind.list_size} numbers, expected {cardinality}, one for each state"
            )
        return "likelihood"

    def _entry(self, position: int, name: str, kind: pa.DataType) -> Column | None:
        # Variables and states may hold "=" themselves, so every "=" is tried.
        splits = [(name[:i], name[i + 1 :]) for i, sign in enumerate(name) if sign == "="]
        entries, unknown = [], []
        for owner, state in splits:
            variable = self.network.index.get(owner, self.network.index.get(owner.strip()))
            if variable is not None:
                cells = self._cells_of(variable)
                code = cells.code(state)
                entries += [(variable, code)] if code >= 0 else []
                unknown += [cells.reason(state)] if code < 0 else []
        if len(entries) > 1:
            self.fail(f"column {name!r} can be read in {len(entries)} ways: use a list column of likelihoods")
        if entries:
            if not (is_text(kind) or is_number(kind)):
                self.fail(f"column {name!r}: found cells of type {kind}, expected numbers for likelihoods")
            return Column(position, name, "entry", *entries[0])
        if unknown:
            # Never left out as an extra column: a misspelt state would lose what was observed.
            self.fail(
                f"column {name!r}: {unknown[0]} (correct the name; a column that is no likelihood has to be renamed, "
                "or to stand under ignore in a mapping file)"
            )
        return None

    def _cells_of(self, variable: int) -> StateCells:
        if variable not in self.cells:
            self.cells[variable] = StateCells(self.network.variables[variable])
        return self.cells[variable]

    def _refuse_unknown(self, position: int, name: str) -> NoReturn:
        if not name:
            self.fail(
                f"column {position + 1} has no name, expected a variable of the network (pandas writes its index so: "
                "write it with index=False; --ignore-extra, in Python ignore_extra=True, leaves such columns out)"
            )
        if len(self.names) == 1:
            self.refuse_separator([name])
        # The column that was meant is unknown then.
        self.refuse_missing_ids()
        hint = nearest(name, self.network.index)
        self.fail(
            f"unknown column {name!r}{hint or ': no variable of the network has such a name'} "
            "(--ignore-extra, in Python ignore_extra=True, leaves such columns out)"
        )

    def refuse_doubles(self, columns: Sequence[Column]) -> None:
        """Raise EvidenceError for two columns of the same content; states and likelihoods of a variable may coexist."""
        seen: dict[tuple[str, int, int], Column] = {}
        lists = {column.variable: column for column in columns if column.role == "likelihood"}
        for column in columns:
            # A state column and a list column bear the same name, the variable's, so one key finds both.
            role = "states" if column.role == "likelihood" else column.role
            first = seen.setdefault((role, column.variable, column.state), column)
            if column.role == "entry":
                first = lists.get(column.variable, first)
            if first is not column:
                self.fail(f"{self._in_table(column)} says again what {self._in_table(first)} says")

    def _in_table(self, column: Column) -> str:
        """Return a column in words, by its name in the table: those that a mapping gives are equal here."""
        return f"column {self.names[column.position].strip()!r} (number {column.position + 1})"

    def refuse_partial_likelihoods(self, columns: Sequence[Column]) -> None:
        """Raise EvidenceError for `variable=state` columns that omit a state: 0 and 1 are both plausible guesses."""
        entries: dict[int, set[int]] = {}
        for column in columns:
            if column.role == "entry":
                entries.setdefault(column.variable, set()).add(column.state)
        for variable, states in entries.items():
            known = self.network.variables[variable]
            missing = [name for state, name in enumerate(known.states) if state not in states]
            if missing:
                wanted = ", ".join(repr(f"{known.name}={name}") for name in missing[:5])
                self.fail(
                    f"the likelihood of {known.name!r} needs a column for each of its {known.cardinality} states, "
                    f"missing: {wanted}{', ...' if len(missing) > 5 else ''}"
                )


def _indices(schema: pa.Schema) -> frozenset[str]:
    """Return the names of the columns that are the index of a pandas data frame."""
    names = {name for name in schema.names if _INDEX.fullmatch(name)}
    try:
        described = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
        # A range is described by a record, and has no column.
        names.update(name for name in described["index_columns"] if isinstance(name, str))
    except (ValueError, LookupError, TypeError, RecursionError):
        # Metadata decide nothing else: a column is then told as unknown.
        pass
    return frozenset(names)


def _case_id_type(kind: pa.DataType, reader: _LayoutReader) -> pa.DataType:
    """Return the type of the case ids: the column's own, without a dictionary."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    carried = is_text(kind) or is_number(kind) or pa.types.is_temporal(kind) or pa.types.is_fixed_size_binary(kind)
    carried = carried or isinstance(kind, pa.UuidType)
    # Parquet has no calendar intervals.
    if not carried or pa.types.is_interval(kind):
        reader.fail(f"case ids of type {kind} cannot be carried through, expected text, numbers, times or UUIDs")
    return kind
