"""Mapping files: how the columns and cells of a table are meant where they are not those of the network.

Main class: EvidenceMapping, read by `read_mapping`; called by `read`, `encode` and `layout`, which apply it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from junctor.evidence.batch import UNOBSERVED
from junctor.evidence.states import ANY_NUMBER, UNKNOWN, Cell, StateCells, Value, comma_hint, value_of, with_point
from junctor.model.errors import EvidenceError, Place, nearest
from junctor.model.network import Network, Variable
from junctor.model.query import Query, named_variables
from junctor.runtime.remote import RemotePath, location

# ignore = ["comment"]
# hide_targets = true
# [columns]
# "Smoker?" = "smoke"
# [variables.smoke]
# states = { ja = "yes", nein = "no" }
# missing = ["-9"]
# [variables.age]
# factor = 0.0833
# edges = [0, 18, 65, inf]
# labels = ["child", "adult", "old"]
# values = { child = 9, adult = 41.5, old = 78 }
# outside_is_missing = true
_CASE_ID = "case_id"
_TOP = ("ignore", "columns", "variables", "hide_targets")
_KEYS = (
    *("states", "missing", "factor", "offset", "edges", "labels"),
    *("values", "outside", "outside_is_missing", "other", "other_is_missing"),
)
_OF_BINS = ("labels", "factor", "offset", "outside", "outside_is_missing")

# What is read: a path of a file, or what stands in one.
MappingSource = str | os.PathLike[str] | RemotePath | Mapping[str, Any]


@dataclass(frozen=True, eq=False, slots=True)
class Bins:
    """Intervals of numbers, closed on the left: an edge belongs to the bin that it begins, inf to the one that it ends.

    edges: float64 [n + 1], ascending.
    codes: int32 [n + 2], the state of each bin, between what lies below and above all: a state, UNOBSERVED or UNKNOWN.
    factor, offset: a cell x counts as `factor * x + offset`.
    exact: cells, before factor and offset, that mean something else.
    """

    edges: npt.NDArray[np.float64]
    codes: npt.NDArray[np.int32]
    factor: float = 1.0
    offset: float = 0.0
    exact: Mapping[float, int] = field(default_factory=dict)

    def states(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.int32]:
        """Return the state of each number, int32 [rows]; NaN is UNOBSERVED."""
        with np.errstate(over="ignore", invalid="ignore"):
            values = numbers * self.factor + self.offset
        # Nothing lies above inf.
        edges = self.edges[:-1] if self.edges[-1] == np.inf else self.edges
        states: npt.NDArray[np.int32] = self.codes[np.searchsorted(edges, values, side="right")]
        states[np.isnan(numbers)] = UNOBSERVED
        for number, code in self.exact.items():
            states[numbers == number] = code
        return states


@dataclass(frozen=True, eq=False, slots=True)
class VariableMapping:
    """How the cells of one variable are meant.

    meant: text of a cell -> its state, or UNOBSERVED; goes before the names of states.
    bins: for numbers, None for the rules without a mapping.
    other: meaning of a cell that is none of these: a state, UNOBSERVED or UNKNOWN.
    values: state -> the number that it stands for, where that is said.
    """

    meant: Mapping[str, int]
    bins: Bins | None
    other: int
    values: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, slots=True)
class EvidenceMapping:
    """A mapping file that fits a network.

    columns: name of a column -> name that it is read under: of a variable, `variable=state` or `case_id`.
    ignored: names of columns that are left out.
    variables: index of a variable -> how its cells are meant.
    digest: SHA-256 of the content; comments, order and layout of the file do not change it; empty without a file.
    place: of the file, for errors.
    hides_targets: whether the variables that a question names count as unobserved.
    hidden: these variables; their columns are no evidence.
    """

    columns: Mapping[str, str]
    ignored: frozenset[str]
    variables: Mapping[int, VariableMapping]
    digest: str
    place: Place
    hides_targets: bool = False
    hidden: frozenset[int] = frozenset()

    def name_of(self, column: str) -> str | None:
        """Return the name under which a column is read, None if it is left out."""
        for name in (column, column.strip()):
            if name in self.ignored:
                return None
            if name in self.columns:
                return self.columns[name]
        return column

    def refuse_absent(self, names: Sequence[str], file: str | None) -> None:
        """Raise EvidenceError if nothing in a table stands for a name that columns are mapped to.

        names: of the columns of the table.
        file: name for errors.
        """
        there = {*names, *(name.strip() for name in names)}
        wanted: dict[str, list[str]] = {}
        # Several spellings of one column may be listed, for files that differ; one of them has to be there.
        for column, target in self.columns.items():
            wanted.setdefault(target, []).append(column)
        for target, spellings in wanted.items():
            if there.isdisjoint([target, *spellings]):
                raise EvidenceError(
                    f"columns: found {spellings[0]!r} for {target!r}, but {file or 'the evidence'} has no such column"
                    f"{nearest(spellings[0], names)} (correct the name, or remove the line)",
                    self.place,
                )


class MappedCells(StateCells):
    """Reads the cells of one variable: texts of the mapping, then its bins, then the rules without it, then other."""

    def __init__(self, variable: Variable, mapping: VariableMapping, missing: Sequence[str] = ()) -> None:
        super().__init__(variable, missing=missing)
        self.bins = None if mapping.bins is None else _with_missing(mapping.bins, missing)
        self._meant = mapping.meant
        self._other = mapping.other

    @cached_property
    def _by_value(self) -> dict[Value, dict[int, str]]:
        """What the texts of the mapping that are a number, true or false mean, with the last text of each meaning."""
        found: dict[Value, dict[int, str]] = {}
        for text, code in self._meant.items():
            value = value_of(text)
            # States that are one number are told apart by their names.
            if value is not None and len(self.equal_states(text)) < 2:
                found.setdefault(value, {})[code] = text
        return found

    def _meanings(self, cell: Cell) -> dict[int, str]:
        return self._by_value.get(value_of(cell), {}) if self._by_value else {}

    def code(self, cell: Cell) -> int:
        """Return the state that `cell` means, UNOBSERVED, or UNKNOWN."""
        for text in _spellings(cell):
            if text in self._meant:
                return self._meant[text]
        number = None if self.bins is None else _number_in(cell)
        if self.bins is not None and number is not None:
            return int(self.bins.states(np.array([number]))[0])
        meanings = self._meanings(cell)
        if meanings:
            return next(iter(meanings)) if len(meanings) == 1 else UNKNOWN
        code = super().code(cell)
        # What may be two states is not other than all of them.
        return self._other if code == UNKNOWN and len(self.equal_states(cell)) < 2 else code

    def reason(self, cell: Cell) -> str:
        """Say what is wrong with a cell that is UNKNOWN, and what was expected."""
        if self.bins is None or _number_in(cell) is None:
            texts = [*self._meanings(cell).values()]
            if len(texts) < 2:
                return super().reason(cell) + comma_hint(cell) * (self.bins is not None)
            return f"{str(cell)[:40]!r} may mean {texts[0]!r} or {texts[1]!r} of the mapping: give it as one of them"
        edges, scaled = self.bins.edges, (self.bins.factor, self.bins.offset) != (1.0, 0.0)
        how = " after factor and offset" * scaled
        below = "below " * bool(edges[-1] < math.inf)
        return f"found {str(cell)[:40]}, expected a number from {_digits(edges[0])} to {below}{_digits(edges[-1])}{how}"


def cells_of(
    network: Network, variable: int, mapping: EvidenceMapping | None, missing: Sequence[str] = ()
) -> StateCells:
    """Return the reader of the cells of a variable.

    network: of the variable.
    variable: its index.
    mapping: what cells mean, None for the network's names.
    missing: texts that stand for no observation, beside the usual ones.
    """
    mapped = None if mapping is None else mapping.variables.get(variable)
    known = network.variables[variable]
    return StateCells(known, missing=missing) if mapped is None else MappedCells(known, mapped, missing)


def read_mapping(source: MappingSource | None, network: Network) -> EvidenceMapping | None:
    """Return the mapping of a TOML file, or of a dictionary of the same content; None for None.

    source: path, URL or dictionary.
    network: that its names refer to.
    Raises EvidenceError, with file and key, for a file that cannot be read and for all that does not fit;
    InputError for what is no path.
    """
    if source is None:
        return None
    if isinstance(source, Mapping):
        return _Reader(network, Place("mapping")).read(source)
    path = location(source, "mapping")
    place = Place(str(path))
    try:
        content = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise EvidenceError(f"cannot read the mapping: {error.strerror or error}", place) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EvidenceError(f"the mapping is not TOML: {error}", place) from None
    except ValueError as error:
        # The path has a NUL character.
        raise EvidenceError(f"cannot read the mapping: {error}", Place(repr(str(path)))) from None
    return _Reader(network, place).read(content)


def hiding(mapping: EvidenceMapping | None, network: Network, query: Query) -> EvidenceMapping | None:
    """Return a mapping by which the variables that a query names are not read, where query or mapping says so.

    mapping: None for the names of the network.
    Raises EvidenceError where the query names none.
    """
    if not query.hide_targets and (mapping is None or not mapping.hides_targets):
        return mapping
    names = named_variables(network, query)
    if not names:
        raise EvidenceError(
            "targets are to be hidden, but none is named, and without the evidence of all variables there is none: "
            "name them with --targets",
            mapping.place if mapping is not None and mapping.hides_targets else None,
        )
    if mapping is None:
        mapping = EvidenceMapping({}, frozenset(), {}, "", Place("evidence"))
    return replace(mapping, hidden=frozenset(network.index[name] for name in names))


@dataclass(frozen=True, slots=True)
class _Reader:
    """Checks the content of a mapping; every error names the file and the key."""

    network: Network
    place: Place

    def read(self, content: Mapping[str, Any]) -> EvidenceMapping:
        self.known_keys("", content, _TOP)
        ignored = frozenset(self.texts("ignore", content.get("ignore", [])))
        columns = self.table("columns", content.get("columns", {}))
        for column, target in columns.items():
            self.target(f"columns.{toml_key(column)}", target)
            if column in ignored:
                self.fail(f"columns.{toml_key(column)}", f"found {column!r} in ignore as well", "it in one of them")
        variables = {}
        for name, entry in self.table("variables", content.get("variables", {})).items():
            key = f"variables.{toml_key(name)}"
            if name not in self.network.index:
                self.fail(key, f"found {name!r}{nearest(name, self.network.index)}", "a variable of the network")
            at = self.network.index[name]
            variables[at] = self.variable(key, self.network.variables[at], self.table(key, entry))
        hides = content.get("hide_targets", False)
        if not isinstance(hides, bool):
            self.fail("hide_targets", f"found {hides!r}", "true or false")
        # Only now, of what is known to be of these types.
        told = json.dumps(content, sort_keys=True, default=_plain)
        digest = hashlib.sha256(told.encode()).hexdigest()
        return EvidenceMapping(columns, ignored, variables, digest, self.place, hides)

    def variable(self, key: str, variable: Variable, entry: Mapping[str, Any]) -> VariableMapping:
        self.known_keys(f"{key}.", entry, _KEYS)
        meant: dict[str, int] = {}
        for text, state in self.table(f"{key}.states", entry.get("states", {})).items():
            code = self.state(f"{key}.states.{toml_key(text)}", variable, state)
            if meant.setdefault(text.strip(), code) != code:
                self.fail(
                    f"{key}.states", f"found two meanings of {text.strip()!r}", "one: white space around it is left out"
                )
        for text in self.texts(f"{key}.missing", entry.get("missing", []), numbers=True):
            if text.strip() in meant:
                self.fail(f"{key}.missing", f"found {text!r}, which is a state in {key}.states", "it in one of them")
            meant[text.strip()] = UNOBSERVED
        other = self.choice(key, "other", variable, entry, UNKNOWN)
        values = {
            self.state(f"{key}.values.{toml_key(state)}", variable, state): self.number(
                f"{key}.values.{toml_key(state)}", number
            )
            for state, number in self.table(f"{key}.values", entry.get("values", {})).items()
        }
        return VariableMapping(meant, self.bins(key, variable, entry, meant, other), other, values)

    def bins(
        self, key: str, variable: Variable, entry: Mapping[str, Any], meant: Mapping[str, int], other: int
    ) -> Bins | None:
        if "edges" not in entry:
            for name in _OF_BINS:
                if name in entry:
                    self.fail(f"{key}.{name}", "found no edges", f"edges as well, to which {name} belongs")
            return None
        edges = [self.number(f"{key}.edges", edge, infinite=True) for edge in self.list(f"{key}.edges", entry["edges"])]
        if len(edges) < 2:
            self.fail(f"{key}.edges", f"found {len(edges)}", "at least two: a bin lies between each two of them")
        for left, right in pairwise(edges):
            if not left < right:
                self.fail(
                    f"{key}.edges",
                    f"found {_digits(right)} after {_digits(left)}",
                    "ascending numbers, or bins would overlap",
                )
        labels = self.texts(f"{key}.labels", entry.get("labels", []))
        if len(labels) != len(edges) - 1:
            self.fail(
                f"{key}.labels", f"found {len(labels)} labels", f"{len(edges) - 1}, one less than there are edges"
            )
        codes = [self.state(f"{key}.labels", variable, label) for label in labels]
        factor = self.number(f"{key}.factor", entry.get("factor", 1.0))
        if factor == 0:
            self.fail(f"{key}.factor", "found 0", "another number, which cells are multiplied by")
        offset = self.number(f"{key}.offset", entry.get("offset", 0.0))
        outside = self.choice(key, "outside", variable, entry, other)
        lookup = np.array([outside, *codes, outside], dtype=np.int32)
        return Bins(np.array(edges), lookup, factor, offset, self.exact(key, meant))

    def exact(self, key: str, meant: Mapping[str, int]) -> dict[float, int]:
        """Return the meaning of each number, of a variable whose numbers are put into bins."""
        exact: dict[float, int] = {}
        for text, code in meant.items():
            if ANY_NUMBER.fullmatch(text) and exact.setdefault(float(text), code) != code:
                self.fail(f"{key}.states", f"found two meanings of the number {text}", "one, where there are edges")
        return exact

    def choice(self, key: str, name: str, variable: Variable, entry: Mapping[str, Any], default: int) -> int:
        """Return the state of `name`, or UNOBSERVED for `name_is_missing`."""
        missing = entry.get(f"{name}_is_missing", False)
        if not isinstance(missing, bool):
            self.fail(f"{key}.{name}_is_missing", f"found {missing!r}", "true or false")
        if missing and name in entry:
            self.fail(f"{key}.{name}", f"found {entry[name]!r} beside {name}_is_missing", "one of them")
        if name in entry:
            return self.state(f"{key}.{name}", variable, entry[name])
        return UNOBSERVED if missing else default

    def state(self, key: str, variable: Variable, name: Any) -> int:
        if name not in variable.states:
            hint = nearest(name, variable.states) if isinstance(name, str) else ""
            shown = ", ".join(variable.states[:8]) + ", ..." * (variable.cardinality > 8)
            self.fail(key, f"found {name!r}{hint}", f"a state of {variable.name!r}: {shown}")
        return variable.states.index(name)

    def target(self, key: str, name: Any) -> None:
        index = self.network.index
        if not isinstance(name, str):
            self.fail(key, f"found {name!r}", "the name of a variable")
        owners = [name, *(name[:i].strip() for i, sign in enumerate(name) if sign == "=")]
        if name != _CASE_ID and index.keys().isdisjoint(owners):
            expected = "a variable of the network, 'variable=state' or 'case_id' (columns of no use go into ignore)"
            self.fail(key, f"found {name!r}{nearest(name, index)}", expected)

    def known_keys(self, prefix: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
        for name in table:
            if name not in known:
                self.fail(
                    f"{prefix}{toml_key(name)}", f"found an unknown key{nearest(name, known)}", f"{', '.join(known)}"
                )

    def table(self, key: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            self.fail(key, f"found {_shown(value)}", "a table of names, as [...] or { ... } in TOML")
        return value

    def list(self, key: str, value: Any) -> Sequence[Any]:
        if isinstance(value, str) or not isinstance(value, Sequence):
            self.fail(key, f"found {_shown(value)}", "a list")
        return value

    def texts(self, key: str, value: Any, numbers: bool = False) -> Sequence[str]:
        found = []
        for each in self.list(key, value):
            if isinstance(each, bool) or not isinstance(each, str | int | float if numbers else str):
                self.fail(key, f"found {_shown(each)}", "text in quotes" + " or a number" * numbers)
            if not isinstance(each, str):
                self.number(key, each, infinite=True)
            found.append(each if isinstance(each, str) else _spellings(each)[-1])
        return found

    def number(self, key: str, value: Any, infinite: bool = False) -> float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        try:
            number = float(value) if fits else math.nan
        except OverflowError:
            # TOML has whole numbers of any size.
            self.fail(key, f"found {_shown(value)}", "a number of double precision, up to 1.8e308")
        if math.isnan(number) or (math.isinf(number) and not infinite):
            self.fail(key, f"found {_shown(value)}", "a number" + ", inf or -inf" * infinite)
        return number

    def fail(self, key: str, found: str, expected: str) -> NoReturn:
        raise EvidenceError(f"{key}: {found}, expected {expected}", self.place)


def _with_missing(bins: Bins, missing: Sequence[str]) -> Bins:
    """Return the bins without the numbers that stand for no observation, but for those that the mapping names."""
    numbers = {float(text): UNOBSERVED for text in missing if ANY_NUMBER.fullmatch(text.strip())}
    return replace(bins, exact={**numbers, **bins.exact}) if numbers else bins


def _digits(number: float) -> str:
    # All of them: a rounded edge may lie on the other side of a cell.
    return repr(float(number)).removesuffix(".0")


def _spellings(cell: Cell) -> list[str]:
    """Return the texts that a cell is compared by: itself, and a whole number (3.0) without a point."""
    if cell is None or cell != cell:
        return []
    if isinstance(cell, bool):
        return ["true" if cell else "false", str(cell)]
    if isinstance(cell, str):
        return [cell.strip()]
    whole = isinstance(cell, float | Decimal) and math.isfinite(cell) and cell == int(cell)
    return [str(cell), str(int(cell))] if whole else [str(cell)]


def _number_in(cell: Cell) -> float | None:
    if isinstance(cell, str):
        text = with_point(cell.strip())
        return float(text) if ANY_NUMBER.fullmatch(text) else None
    # NaN is no number that could be outside of bins.
    return None if cell is None or isinstance(cell, bool) or cell != cell else float(cell)


def toml_key(name: object) -> str:
    """Return a key as TOML writes it, in quotes where it needs them."""
    # Keys of dictionaries may be anything.
    name = str(name)
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _shown(value: Any) -> str:
    # Python writes no number of more than 4,300 digits.
    text = hex(value) if type(value) is int and value.bit_length() > 10_000 else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, Iterable) else str(value)
