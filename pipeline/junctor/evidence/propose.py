"""Proposals of mapping files from a network and a table: near names, synonyms of states, bins from names of intervals.

Main function: `propose`; called by `junctor map`. The table is read twice, in a stream: for its cells, and for what the
proposal covers.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from junctor.evidence.batch import UNOBSERVED
from junctor.evidence.column_tables import ColumnTable
from junctor.evidence.columns import encode_binned, encode_states, is_number, plain_cells
from junctor.evidence.files import checked_format, checked_separator, format_of, input_files, reading_errors_for
from junctor.evidence.layout import CASE_IDS, Column, read_layout
from junctor.evidence.mapping import EvidenceMapping, MappedCells, cells_of, read_mapping, toml_key
from junctor.evidence.ordered import in_order, informative_edges, quantile_edges
from junctor.evidence.pipes import spooled
from junctor.evidence.read import names_of_columns, open_table
from junctor.evidence.states import ANY_NUMBER, UNKNOWN, StateCells, with_point
from junctor.model.errors import EvidenceError, Place
from junctor.model.network import Network, Variable
from junctor.model.option_table import ProposalOptions, takes_keywords
from junctor.runtime.remote import location, shown

# Distinct cells of a column that are looked at, and that are shown.
MOST_CELLS = 10_000
SHOWN = 5
# The most common ones, which are compared with the names of states.
MOST_COMPARED = 300
# Likeness of names that are taken for one, as of difflib, from 0 to 1.
LIKE_COLUMNS = 0.75
LIKE_STATES = 0.7
_MISSING = frozenset(["na", "n/a", "#n/a", "nil", "none", "missing", "unknown", "unk", "not available", "-", "--", "."])
# What people call false and true, in any case.
_TRUTHS = (
    ("false", "f", "no", "n", "0", "off", "absent", "negative"),
    ("true", "t", "yes", "y", "1", "on", "present", "positive", "+"),
)
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"([\[(])?\s*({_NUMBER}|-?inf)\s*(?:-|–|\.\.|,|;|_|to)\s*({_NUMBER}|inf)\s*([\])])?", re.ASCII)
_BOUND = re.compile(rf"(<=|>=|<|>|≤|≥)\s*({_NUMBER})", re.ASCII)
_OPEN = re.compile(rf"({_NUMBER})\s*\+", re.ASCII)
_SINGLE = re.compile(_NUMBER, re.ASCII)
# What stands behind a name: `Age (years)`, `age [a]`, `weight, kg`, `height in cm`, `age_years`.
_UNIT = re.compile(
    r"\s*(?:\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}|,\s*\S+|\s+in\s+\S+)\s*$"
    r"|[\s_.-]+(?:years?|yrs?|months?|weeks?|days?|hours?|minutes?|seconds?|kg|g|mg|cm|mm|km|m|pct|percent|%|usd|eur)\s*$",
    re.IGNORECASE,
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_BOUND_UNIT = re.compile(r"(?<=[\d.+)\]])\s*(?:[A-Za-zµ°€$%][\w/%°³²]*)$")


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a proposal does for a column.

    column: its name.
    variable: that it is read as; empty if it is left out.
    how: exact, case, unit, words, nearest, case id, likelihood or ignored.
    rows, known, missing: of all cells, those that are a state, and those that are empty or mean missing.
    unknown: the most common of the others, with their numbers.
    """

    column: str
    variable: str
    how: str
    rows: int = 0
    known: int = 0
    missing: int = 0
    unknown: tuple[tuple[str, int], ...] = ()

    @property
    def covered(self) -> float:
        """Share of the cells that are a state or missing, 1 for a column without cells."""
        return (self.known + self.missing) / self.rows if self.rows else 1.0


@dataclass(frozen=True, slots=True)
class Proposal:
    """A mapping, as the content of a mapping file.

    content: empty if the table needs none.
    columns: of the table, in its order.
    guesses: (section, key) of the lines that are likely and not certain.
    unobserved: variables without a column.
    """

    content: dict[str, Any]
    columns: tuple[Coverage, ...]
    guesses: frozenset[tuple[str, str]]
    unobserved: tuple[str, ...]

    def to_toml(self) -> str:
        """Return the text of a mapping file; guesses are marked."""
        lines = ["# Proposed by junctor map: check the lines with 'guess'. Edges are closed on the left."]
        if ignore := self.content.get("ignore"):
            lines += [f"ignore = {_toml(ignore)}"]
        if columns := self.content.get("columns"):
            lines += ["", "[columns]", *(self._line("columns", name, target) for name, target in columns.items())]
        for name, entry in self.content.get("variables", {}).items():
            told = next((each for each in self.columns if each.variable == name and each.rows), None)
            lines += ["", f"[variables.{toml_key(name)}]"]
            if told is not None:
                lines += [f"# {told.known:,} of {told.rows:,} cells are states, {told.missing:,} are missing"]
            for key, value in entry.items():
                if key != "states":
                    lines.append(f"{key} = {_toml(value)}" + "  # guess" * ((name, key) in self.guesses))
            if states := entry.get("states"):
                lines.append(f"[variables.{toml_key(name)}.states]")
                lines += [self._line(name, text, state) for text, state in states.items()]
        return "\n".join(lines) + "\n"

    def _line(self, section: str, key: str, value: str) -> str:
        return f"{toml_key(key)} = {_toml(value)}" + "  # guess" * ((section, key) in self.guesses)


@takes_keywords()
def propose(
    network: Network,
    evidence: str,
    **options: Unpack[ProposalOptions],
) -> Proposal:
    """Return a mapping for a table of evidence.

    network: that the table is meant for.
    evidence: file, or folder or glob of one table; `-` or a pipe.
    options: of the table.

    Raises EvidenceError for what cannot be read.
    """
    format, separator = checked_format(options["evidence_format"]), checked_separator(options["separator"])
    case_id = options["case_id"]
    found = input_files(spooled(evidence))
    with reading_errors_for(location(evidence)):
        formats = [format or format_of(path) for path in found.paths]
    if "evid" in formats:
        raise EvidenceError("UAI evidence has no columns, so none to map", Place(shown(evidence)))
    known = names_of_columns(network, None)
    tables = [
        open_table(path, each, found.folder, separator, known) for path, each in zip(found.paths, formats, strict=True)
    ]
    first = tables[0]
    own = first.schema.names[: len(first.schema) - first.partition]
    targets, how = _match_columns(own, network, CASE_IDS if case_id is None else [case_id])
    ignored = [name for name, target in targets.items() if target is None]
    renamed = {name: target for name, target in targets.items() if target is not None and target != name.strip()}
    content: dict[str, Any] = {}
    if ignored:
        content["ignore"] = ignored
    if renamed:
        content["columns"] = renamed
    guesses = {("columns", name) for name in renamed if how[name] in ("unit", "words", "nearest")}
    columns = _state_columns(first, network, read_mapping(content, network), case_id)
    told_about = None if options["bins_about"] is None else _target_column(options["bins_about"], network, columns)
    seen = {column.position: _Cells() for column in columns}
    for at, array in _arrays(tables, columns):
        seen[at].add(array)
    variables: dict[str, Any] = {}
    for column in columns:
        variable, cells = network.variables[column.variable], seen[column.position]
        entry, likely = _entry(variable, cells, is_number(first.schema.types[column.position]))
        if "edges" not in entry and (ordered := in_order(variable.states)) and cells.are_no_states(variable):
            if told_about is None or told_about == column:
                edges = quantile_edges(cells.numbers(), len(ordered))
            else:
                edges = informative_edges(_pairs(tables, column, told_about), len(ordered))
            if edges is not None:
                entry = {"edges": edges, "labels": ordered, **entry}
                likely.append("edges")
        if values := _means(entry, cells.numbers()):
            entry["values"] = values
        if entry:
            variables[variable.name] = entry
            guesses |= {(variable.name, text) for text in likely}
    if variables:
        content["variables"] = variables
    told = _covered(tables, columns, network, read_mapping(content, network))
    facts = []
    for position, name in enumerate(own):
        target = targets[name]
        facts.append(told.get(position) or Coverage(name, target or "", how[name]))
        facts[-1] = Coverage(name, target or "", how[name], *_counts(facts[-1]))
    there = {network.index[target] for target in targets.values() if target in network.index}
    unobserved = [each.name for v, each in enumerate(network.variables) if v not in there]
    return Proposal(content, tuple(facts), frozenset(guesses), tuple(unobserved))


def _target_column(name: str, network: Network, columns: Sequence[Column]) -> Column:
    """Return the column of the variable that bins are to tell about; raises EvidenceError where there is none."""
    v = network.find(name)
    found = next((column for column in columns if column.variable == v), None)
    if found is None:
        raise EvidenceError(f"no column is read as {name!r}, which bins were to tell about (--target)")
    return found


def intervals(states: Sequence[str]) -> tuple[list[float], list[str]] | None:
    """Return edges and labels of bins if the names of states are intervals, None if they are not or leave gaps.

    `0-10`, `[0,10)`, `(0,10]`, `<5`, `>=20` and `20+` are intervals; `0-9` and `10-19` are of whole numbers. A bound
    that belongs to the bin below it becomes the next number of double precision, since bins are closed on the left.
    """
    read = [(bounds, name) for name in states if (bounds := _interval(name)) is not None]
    if not any(_SINGLE.fullmatch(name.strip()) is None for _, name in read) or len(read) < 2:
        return None
    read.sort(key=lambda each: (each[0].low, each[0].high))
    # Whole numbers: `0-9` ends where `10-19` begins.
    whole = any(right.low - left.high == 1 and left.plain and right.plain for (left, _), (right, _) in pairwise(read))
    single = any(each.low == each.high for each, _ in read)
    edges: list[float] = []
    for bounds, _ in read:
        low, high = bounds.edges(whole or single)
        if edges and edges[-1] != low:
            return None
        edges += [high] if edges else [low, high]
    if not all(left < right for left, right in pairwise(edges)):
        return None
    return edges, [name for _, name in read]


@dataclass(frozen=True, slots=True)
class _Interval:
    """Bounds of an interval, and whether they belong to it; `plain` where the name does not say, as in `0-9`."""

    low: float
    high: float
    has_low: bool = True
    has_high: bool = False
    plain: bool = False

    def edges(self, whole: bool) -> tuple[float, float]:
        """Return the edges of the bin, the lower one in it and the upper one not."""
        low = self.low if self.has_low or math.isinf(self.low) else math.nextafter(self.low, math.inf)
        if math.isinf(self.high):
            return low, self.high
        if self.plain and whole:
            return low, self.high + 1
        return low, math.nextafter(self.high, math.inf) if self.has_high else self.high


def bounds_of(name: str) -> tuple[float, float] | None:
    """Return the bounds of the interval, or the number, that the name of a state is; None if it is neither."""
    if _SINGLE.fullmatch(name.strip()):
        return float(name), float(name)
    found = _interval(name)
    return None if found is None else (found.low, found.high)


def _interval(name: str) -> _Interval | None:
    name = name.strip()
    if match := _RANGE.fullmatch(name):
        left, low, high, right = match.groups()
        if (left is None) == (right is None):
            whole = all(float(each).is_integer() for each in (low, high) if "inf" not in each)
            return _Interval(float(low), float(high), left != "(", right == "]", left is None and whole)
    if match := _BOUND.fullmatch(name):
        bound, sign = float(match[2]), {"≤": "<=", "≥": ">="}.get(match[1], match[1])
        if sign[0] == "<":
            return _Interval(-math.inf, bound, has_high=sign == "<=")
        return _Interval(bound, math.inf, has_low=sign == ">=")
    if match := _OPEN.fullmatch(name):
        return _Interval(float(match[1]), math.inf)
    if _SINGLE.fullmatch(name) and float(name).is_integer():
        return _Interval(float(name), float(name), plain=True)
    # `18-65 years`, once it is not `1e3`.
    without = _BOUND_UNIT.sub("", name)
    return _interval(without) if without != name else None


def _match_columns(
    names: Sequence[str], network: Network, case_ids: Sequence[str]
) -> tuple[dict[str, str | None], dict[str, str]]:
    """Return the name that each column is read under, None for those without use, and how it was found."""
    targets: dict[str, str | None] = {}
    how: dict[str, str] = {}

    def take(name: str, target: str, way: str) -> None:
        targets[name], how[name] = target, way

    index = network.index
    for name in names:
        plain = name.strip()
        if plain in case_ids and plain not in index:
            take(name, name, "case id")
        elif name in index or plain in index:
            take(name, name if name in index else plain, "exact")
        elif any(plain[:i].strip() in index for i, sign in enumerate(plain) if sign == "="):
            take(name, name, "likelihood")
    free = [variable.name for variable in network.public if variable.name not in targets.values()]
    for name, target in _same_keys([name for name in names if name not in targets], free).items():
        take(name, target, "case")
    for way, parts in (("unit", _without_unit), ("words", _words)):
        free = [name for name in free if name not in targets.values()]
        for name, target in _same_parts([name for name in names if name not in targets], free, parts).items():
            take(name, target, way)
    free = [name for name in free if name not in targets.values()]
    for name, target in _nearest_pairs([name for name in names if name not in targets], free, LIKE_COLUMNS):
        take(name, target, "nearest")
    for name in names:
        if name not in targets:
            targets[name], how[name] = None, "ignored"
    return targets, how


def _same_keys(names: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """Return pairs of names that are equal but for case and signs, and are the only ones on both sides."""
    ours, theirs = Counter(map(_folded, names)), Counter(map(_folded, known))
    by_key = {_folded(name): name for name in known}
    return {n: by_key[k] for n in names if (k := _folded(n)) and ours[k] == 1 and theirs[k] == 1}


def _without_unit(name: str) -> frozenset[str]:
    """Return the name without brackets and a unit at its end, as the only part of it."""
    return frozenset([_folded(_UNIT.sub("", name))])


def _words(name: str) -> frozenset[str]:
    """Return the words of a name, of any way to write several in one."""
    return frozenset(word.casefold() for word in _WORD.findall(_UNIT.sub("", name)))


def _same_parts(names: Sequence[str], known: Sequence[str], parts: Callable[[str], frozenset[str]]) -> dict[str, str]:
    """Return pairs of names of which one has all parts of the other, and that pair with nothing else."""
    ours, theirs = ({name: parts(name) for name in some} for some in (names, known))
    with_part: dict[str, list[str]] = {}
    for name, its in theirs.items():
        for part in its:
            with_part.setdefault(part, []).append(name)
    near = {(n, k) for n, its in ours.items() for part in its for k in with_part.get(part, ())}
    pairs = sorted((n, k) for n, k in near if ours[n] <= theirs[k] or theirs[k] <= ours[n])
    alone = [Counter(pair[side] for pair in pairs) for side in (0, 1)]
    return {name: target for name, target in pairs if alone[0][name] == 1 == alone[1][target]}


def _nearest_pairs(names: Sequence[str], known: Sequence[str], cutoff: float) -> Iterator[tuple[str, str]]:
    """Yield pairs of similar names, the most similar first, none twice."""
    pairs = []
    folded = {name: _folded(name) for name in known}
    for name in names:
        matcher = difflib.SequenceMatcher(b=_folded(name), autojunk=False)
        for target, text in folded.items():
            matcher.set_seq1(text)
            # Upper bounds first: networks have thousands of names.
            if matcher.real_quick_ratio() >= cutoff and matcher.quick_ratio() >= cutoff and matcher.ratio() >= cutoff:
                pairs.append((-matcher.ratio(), name, target))
    taken: set[tuple[str, str]] = set()
    for _, name, target in sorted(pairs):
        if ("name", name) not in taken and ("target", target) not in taken:
            taken |= {("name", name), ("target", target)}
            yield name, target


def _folded(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold()) or name.strip().casefold()


def _state_columns(
    table: ColumnTable, network: Network, mapping: EvidenceMapping | None, case_id: str | None
) -> list[Column]:
    layout = read_layout(
        table.schema, network, case_id=case_id, file=str(table.path), partition=table.partition, mapping=mapping
    )
    return [column for column in layout.columns if column.role == "states"]


def _arrays(tables: Sequence[ColumnTable], columns: Sequence[Column]) -> Iterator[tuple[int, pa.Array]]:
    """Yield the position of each column in the first table, and an array of its cells, of all files."""
    names = tables[0].schema.names
    for table in tables:
        there = table.schema.names
        here = [column for column in columns if names[column.position] in there]
        with reading_errors_for(table.path):
            for batch in table.batches([there.index(names[column.position]) for column in here]):
                for at, column in enumerate(here):
                    yield column.position, batch.column(at)


def _pairs(tables: Sequence[ColumnTable], column: Column, target: Column) -> Counter[tuple[float, str]]:
    """Return how often each number of a column occurs together with each cell of another one."""
    names, found = tables[0].schema.names, Counter[tuple[float, str]]()
    for table in tables:
        there = table.schema.names
        if not {names[column.position], names[target.position]} <= set(there):
            continue
        with reading_errors_for(table.path):
            for batch in table.batches([there.index(names[each.position]) for each in (column, target)]):
                cells, targets = (plain_cells(batch.column(at)).to_pylist() for at in (0, 1))
                for cell, word in zip(cells, targets, strict=True):
                    text = "" if word is None else str(word).strip()
                    if (number := _number(cell)) is not None and text and text.casefold() not in _MISSING:
                        found[number, text] += 1
    return found


def _number(cell: Any) -> float | None:
    """Return the number that a cell is, None for text, nothing and NaN."""
    text = "" if cell is None else with_point(str(cell).strip())
    return float(text) if _SINGLE.fullmatch(text) else None


@dataclass(slots=True)
class _Cells:
    """Cells of a column: how often each occurs, of so many different ones, and how many are numbers."""

    counts: Counter[Any] = field(default_factory=Counter)

    def add(self, array: pa.Array) -> None:
        for pair in pc.value_counts(plain_cells(array)).to_pylist():
            if pair["values"] is not None and (pair["values"] in self.counts or len(self.counts) < MOST_CELLS):
                self.counts[pair["values"]] += pair["counts"]

    def numbers(self) -> Counter[float]:
        """Return how often each number occurs."""
        found = Counter[float]()
        for cell, count in self.counts.items():
            if (number := _number(cell)) is not None:
                found[number] += count
        return found

    def are_no_states(self, variable: Variable) -> bool:
        """Return True if most cells are numbers that are neither names nor indices of states."""
        reader = StateCells(variable)
        others = sum(n for cell, n in self.counts.items() if _number(cell) is not None and reader.code(cell) == UNKNOWN)
        return 2 * others > sum(n for cell, n in self.counts.items() if str(cell).strip())

    @property
    def are_numbers(self) -> bool:
        """Whether most of the cells that are not empty are numbers."""
        return 2 * self.numbers().total() > sum(n for cell, n in self.counts.items() if str(cell).strip())


def _entry(variable: Variable, cells: _Cells, numeric: bool) -> tuple[dict[str, Any], list[str]]:
    """Return the mapping of a variable, empty if it needs none, and the texts whose states are likely, not certain."""
    entry: dict[str, Any] = {}
    bins = intervals(variable.states) if numeric or cells.are_numbers else None
    if bins is not None:
        entry["edges"], entry["labels"] = bins
    reader = StateCells(variable)
    common = [cell for cell, _ in cells.counts.most_common(MOST_COMPARED)]
    unknown = [text for cell in common if (text := str(cell).strip()) and reader.code(cell) == UNKNOWN]
    if bins is not None:
        # Infinite ones too: `inf` is like `(-inf,0]`, and no part of it.
        unknown = [text for text in unknown if not ANY_NUMBER.fullmatch(with_point(text))]
    missing = [text for text in unknown if text.casefold() in _MISSING]
    rest = [text for text in unknown if text not in missing and not _SINGLE.fullmatch(text)]
    states, likely = {}, []
    by_key = Counter(map(_folded, variable.states))
    for text in rest:
        same = [state for state in variable.states if _folded(state) == _folded(text)]
        start = [state for state in variable.states if state.casefold().startswith(text.casefold())]
        if len(same) == 1 and by_key[_folded(text)] == 1:
            states[text] = same[0]
        elif len(start) == 1:
            states[text] = start[0]
            likely.append(text)
        elif alike := _of_same_truth(text, variable.states):
            states[text] = alike
            likely.append(text)
        elif near := difflib.get_close_matches(_folded(text), [*map(_folded, variable.states)], 1, LIKE_STATES):
            states[text] = next(state for state in variable.states if _folded(state) == near[0])
            likely.append(text)
    if missing:
        entry["missing"] = missing
    if states:
        entry["states"] = states
    return entry, likely


def _means(entry: Mapping[str, Any], counts: Mapping[float, int]) -> dict[str, float]:
    """Return the mean of the numbers in each bin of an entry that has some, to six digits.

    counts: how often each number occurs.
    """
    means = {}
    for label, (low, high) in zip(entry.get("labels", ()), pairwise(entry.get("edges", ())), strict=True):
        inside = {number: count for number, count in counts.items() if low <= number < high and math.isfinite(number)}
        if inside:
            total = sum(inside.values())
            # Shares first: sums of large numbers leave the range.
            mean = math.fsum(number * (count / total) for number, count in inside.items())
            means[label] = float(f"{mean:.6g}")
    return means


def _of_same_truth(text: str, states: Sequence[str]) -> str | None:
    """Return the state that is false, or true, as a text is; None unless there is just one."""
    for words in _TRUTHS:
        if text.casefold() in words:
            same = [state for state in states if state.strip().casefold() in words]
            return same[0] if len(same) == 1 else None
    return None


def _covered(
    tables: Sequence[ColumnTable], columns: Sequence[Column], network: Network, mapping: EvidenceMapping | None
) -> dict[int, Coverage]:
    """Return, for each column of states, the cells that are covered."""
    readers = {column.position: cells_of(network, column.variable, mapping) for column in columns}
    known = dict.fromkeys(readers, 0)
    rows, missing = dict(known), dict(known)
    unknown: dict[int, Counter[str]] = {at: Counter() for at in readers}
    for at, array in _arrays(tables, columns):
        reader = readers[at]
        if isinstance(reader, MappedCells) and reader.bins is not None:
            codes, bad = encode_binned(array, reader, explain=False)
        else:
            codes, bad = encode_states(array, reader, explain=False)
        wrong = np.array([row for row, _ in bad], dtype=np.int64)
        rows[at] += len(array)
        known[at] += int((codes != UNOBSERVED).sum())
        missing[at] += int((codes == UNOBSERVED).sum()) - wrong.size
        if wrong.size:
            for pair in pc.value_counts(plain_cells(array).take(pa.array(wrong))).to_pylist():
                if str(pair["values"]) in unknown[at] or len(unknown[at]) < MOST_CELLS:
                    unknown[at][str(pair["values"])] += pair["counts"]
    return {
        at: Coverage("", "", "", rows[at], known[at], missing[at], tuple(unknown[at].most_common(SHOWN)))
        for at in readers
    }


def _counts(told: Coverage) -> tuple[int, int, int, tuple[tuple[str, int], ...]]:
    return told.rows, told.known, told.missing, told.unknown


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_key(key)} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return repr(value)
