"""BIF, the Bayesian Network Interchange Format of JavaBayes, as its many writers write it.

    network asia { }
    variable smoke { type discrete [ 2 ] { yes, no }; }
    probability ( lung | smoke ) { (yes) 0.1, 0.9; (no) 0.01, 0.99; }

Main functions: `read` and `write`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import numpy.typing as npt

from junctor.formats.text import (
    Shapes,
    SourceText,
    TextBlock,
    Token,
    assembled,
    hinted,
    is_finding,
    names_in_list,
    note_findings,
    numbers_in,
    parse,
    scope_of,
    shortened,
    unquoted,
    without_comments,
)
from junctor.model.errors import ModelError, Place
from junctor.model.network import ROW_SUM_TOLERANCE, DraftTable, DraftVariable, Network, Reading

# Also accepted: names and states in quotes or not, separated by commas or spaces; `(child parents)` without a bar;
# `default` rows; properties (ignored); blocks in any order; C and C++ comments; a missing `;` after a type or property.
_NAME = r'"[^"]*+"|[^\s{}"][^\n{}"]*+'
_SIZE = r"[0-9]{1,9}(?![0-9])"
_STATES = r'\{(?:[^{}"]++|"[^"]*+")*+\}'
_SCOPE = r'\((?:[^(){}"]++|"[^"]*+"|\([^(){}"]*+\))*+\)'
_NUMBERS = r"[0-9.+-][0-9eE.+,\s-]*+"
_ANYTHING = r'(?:[^;{}"]++|"[^"]*+")++'

# Files are scanned block by block and item by item; a group is a token, and the last one names the rule.
_SPACE = re.compile(r"\s*+")
_PROPERTY = rf"property\b(?P<property>(?:{_ANYTHING})?+)\s*+;?+"
_BLOCKS = re.compile(
    rf"\s*+(?:network\b\s*+(?P<network>(?:{_NAME})?+)"
    rf"|variable\b\s*+(?P<variable>{_NAME})"
    rf"|probability\b\s*+(?P<probability>{_SCOPE}))\s*+\{{"
)
_ITEMS = {
    kind: re.compile(rf"\s*+(?:(?P<end>\}})|{'|'.join((_PROPERTY, *items))})")
    for kind, items in {
        "network": (),
        "variable": (rf"type\b\s*+discrete\b\s*+\[\s*+(?P<size>{_SIZE})\s*+\]\s*+(?P<type>{_STATES})\s*+;?+",),
        "probability": (
            rf"(?P<labels>{_SCOPE})\s*+(?P<row>{_NUMBERS});",
            rf"table\b\s*+(?P<table>{_NUMBERS});",
            rf"default\b\s*+(?P<default>{_NUMBERS});",
        ),
    }.items()
}
_FIRST_TOKENS = {"type": "size", "row": "labels"}

# The same as a grammar. Only files that do not scan are parsed by it, for errors that say what was expected.
_GRAMMAR = rf"""
start: (network | variable | probability)*

network: _NETWORK NAME? _LBRACE property* _RBRACE
variable: _VARIABLE NAME _LBRACE (property | type)* _RBRACE
type: _TYPE _DISCRETE _LSQUARE SIZE _RSQUARE STATES _END?
probability: _PROBABILITY SCOPE _LBRACE (property | row | default | table)* _RBRACE
row: LABELS NUMBERS _END_OF_ROW
default: _DEFAULT NUMBERS _END_OF_ROW
table: _TABLE NUMBERS _END_OF_ROW
property: _PROPERTY ANYTHING? _END?

_NETWORK: /network\b/
_VARIABLE: /variable\b/
_PROBABILITY: /probability\b/
_TYPE: /type\b/
_DISCRETE: /discrete\b/
_PROPERTY: /property\b/
_TABLE: /table\b/
_DEFAULT: /default\b/

NAME: /{_NAME}/
SIZE: /{_SIZE}/
STATES: /{_STATES}/
SCOPE: /{_SCOPE}/
LABELS: /{_SCOPE}/
NUMBERS: /{_NUMBERS}/
ANYTHING: /{_ANYTHING}/

_LBRACE: "{{"
_RBRACE: "}}"
_LSQUARE: "["
_RSQUARE: "]"
_END: ";"
_END_OF_ROW: ";"

%ignore /\s+/
"""

# Names of the terminals in errors, in the order in which alternatives are listed.
_WORDS = {
    "_NETWORK": "'network'",
    "_VARIABLE": "'variable'",
    "_PROBABILITY": "'probability'",
    "$END": "the end of the file",
    "NAME": "a name (one with brackets or braces has to be quoted)",
    "_TYPE": "'type'",
    "_DISCRETE": "'discrete': only discrete variables can be read",
    "_LSQUARE": "'['",
    "SIZE": "the number of states",
    "_RSQUARE": "']'",
    "STATES": "the states in braces (a state with brackets, braces or quotes has to be quoted)",
    "SCOPE": "the variables: (child | parents)",
    "LABELS": "the parents' states in brackets",
    "NUMBERS": "a number",
    "_END_OF_ROW": "a number or ';'",
    "_TABLE": "'table'",
    "_DEFAULT": "'default'",
    "_PROPERTY": "'property'",
    "_LBRACE": "'{'",
    "_RBRACE": "'}'",
    "_END": "';'",
}

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_KEYWORDS = frozenset({"network", "variable", "probability", "property", "type", "discrete", "default", "table"})
# BIF has no escape for a quote; control characters are lost in editors and in conversions of line ends.
_UNWRITABLE = re.compile(r'["\x00-\x1f\x7f-\x9f\ud800-\udfff]')


def read(text: str, file: str, reading: Reading | None = None) -> Network:
    """Read a Bayesian network from the text of a BIF file; raises ModelError with line and column."""
    unclosed = {'"': "quote", "/*": "comment"}
    source = without_comments(text, file, r"//[^\n]*+|/\*.*?\*/", r'"[^"]*+"', unclosed, reading)
    network = _scanned(source.text) or parse(_GRAMMAR, source, _WORDS)
    titles = [unquoted(token) for block in network.all("network") for token in block.tokens]
    listed = network.all("variable")
    variables = [_variable(source, block) for block in listed]
    observed = [variable.name for variable, block in zip(variables, listed, strict=True) if _has_finding(block)]
    note_findings(observed, reading)
    blocks = network.all("probability")
    return assembled(
        file, titles, variables, lambda shapes: [_table(source, block, shapes) for block in blocks], reading
    )


def _scanned(text: str) -> TextBlock | None:
    """Return the blocks of a text, None where something is wrong with it."""
    # Much faster than a parser in Python, which takes a minute for a hundred thousand variables.
    blocks: list[Token | TextBlock] = []
    at = 0
    while head := _BLOCKS.match(text, at):
        kind = head.lastgroup or ""
        children = _tokens(head, kind)
        at = head.end()
        while (item := _ITEMS[kind].match(text, at)) and item.lastgroup != "end":
            rule = item.lastgroup or ""
            first = _FIRST_TOKENS.get(rule)
            tokens = _tokens(item, rule)
            children.append(TextBlock(rule, tokens if first is None else [Token.of(item, first), *tokens]))
            at = item.end()
        if item is None:
            return None
        at = item.end()
        blocks.append(TextBlock(kind, children))
    end = _SPACE.match(text, at)
    return TextBlock("start", blocks) if end is not None and end.end() == len(text) else None


def _tokens(match: re.Match[str], group: str) -> list[Token | TextBlock]:
    # A network without a name has none, nor a property without a text.
    return [Token.of(match, group)] if match[group] else []


def _variable(source: SourceText, block: TextBlock) -> DraftVariable:
    (token,) = block.tokens
    name, place = unquoted(token), source.place_of(token)
    # The grammar admits any number, so that the error can name the variable.
    types = block.all("type")
    if len(types) != 1:
        found = "no type" if not types else f"{len(types)} types"
        raise ModelError(f"variable {name!r} has {found}, expected one: type discrete [ 2 ] {{ no, yes }};", place)
    size, listed = types[0].tokens
    states = names_in_list(listed[1:-1], int(size))
    if len(states) != int(size):
        raise ModelError(
            f"variable {name!r} has {len(states)} states ({shortened(', '.join(states))}), "
            f"expected {int(size)} as its type says",
            source.place_of(listed),
        )
    return DraftVariable(name, states, place)


def _has_finding(variable: TextBlock) -> bool:
    return any(is_finding(token) for prop in variable.all("property") for token in prop.tokens)


def _table(source: SourceText, block: TextBlock, shapes: Shapes) -> DraftTable:
    (token,) = block.tokens
    place = source.place_of(token)
    child, parents = scope_of(source, token, shapes.states)
    what = f"table of {child!r}"
    *rows_shape, size = shapes.of([*parents, child], what, place)
    tables, defaults, rows = (block.all(kind) for kind in ("table", "default", "row"))
    if len(tables) > 1 or len(defaults) > 1 or (tables and (rows or defaults)):
        raise ModelError(
            f"{what}: found {len(tables)} 'table', {len(defaults)} 'default' and {len(rows)} rows, "
            "expected either one 'table', or rows with at most one 'default'",
            place,
        )
    # A `table` lists all entries in BIF's own order; rows are labelled and come in any order.
    if tables:
        values = _whole_table(source, tables[0].tokens[0], what, rows_shape, size)
    else:
        states = [shapes.states[name] for name in parents]
        reader = _Rows(source, what, place, parents, states, size, _note(block))
        values = reader.table(rows, defaults[0].tokens[0] if defaults else None, shapes)
    return DraftTable([*parents, child], values, place)


def _note(block: TextBlock) -> str:
    """Return a property that may explain missing rows, for errors."""
    texts = (shortened(token) for prop in block.all("property") for token in prop.tokens)
    function = next((text for text in texts if text.startswith("function")), None)
    # GeNIe exports noisy gates this way, with the parameters of the gate in place of its rows.
    return f": 'property {function}' stands for a noisy model, which has to be written out as rows" if function else ""


def _whole_table(
    source: SourceText, token: Token, what: str, rows_shape: Sequence[int], size: int
) -> npt.NDArray[np.float64]:
    """Return all entries, float64 [rows, child]."""
    # In BIF's own order the child is the slowest variable and the last parent the fastest: `table 0.1 0.01 0.9 0.99` is
    # (yes) 0.1, 0.9; (no) 0.01, 0.99. Some writers put the child last. A table whose rows sum to 1 in that order only
    # is refused with an explanation; nothing is guessed.
    values = numbers_in(source, token)
    rows = math.prod(rows_shape)
    if values.size != rows * size:
        shape = " x ".join(map(str, [size, *rows_shape]))
        raise ModelError(
            f"{what}: found {values.size} entries, expected {rows * size} ({shape})", source.place_of(token)
        )
    table = values.reshape(size, rows)
    if not _sums_to_one(table, 0) and _sums_to_one(values.reshape(rows, size), 1):
        raise ModelError(
            f"{what}: its rows sum to 1 only if the child is the fastest variable, but in a BIF 'table' the child is "
            "the slowest and the last parent the fastest: reorder the entries, or write one row for each state of "
            "the parents, (parent states) entries;",
            source.place_of(token),
        )
    return table.T


def _sums_to_one(table: npt.NDArray[np.float64], axis: int) -> bool:
    # Counts near the largest double: their sum is none.
    with np.errstate(over="ignore"):
        return bool((np.abs(table.sum(axis=axis) - 1.0) <= ROW_SUM_TOLERANCE).all())


@dataclass(frozen=True)
class _Rows:
    """Rows of one table, each labelled by a state of every parent.

    source, what, place: text, name and place of the table, for errors.
    parents: names, and `states` their states, in the order of the labels.
    size: number of states of the child.
    note: possible explanation of missing rows.
    """

    source: SourceText
    what: str
    place: Place
    parents: Sequence[str]
    states: Sequence[Sequence[str]]
    size: int
    note: str

    @cached_property
    def positions(self) -> list[dict[str, int]]:
        """Index of each state of each parent."""
        return [{state: i for i, state in enumerate(names)} for names in self.states]

    @property
    def count(self) -> int:
        """Number of rows of a complete table."""
        return math.prod(map(len, self.states))

    def table(self, rows: Sequence[TextBlock], default: Token | None, shapes: Shapes) -> npt.NDArray[np.float64]:
        """Return the table [rows, child]; raises ModelError for missing or double rows before allocating it.

        rows: blocks of labels and numbers.
        default: numbers of the rows that are not listed.
        shapes: counts the entries that `default` fills in.
        """
        first_at: dict[int, Token] = {}
        for labels, numbers in (row.tokens for row in rows):
            at = self._row(labels)
            if at in first_at:
                first = self.source.place_of(first_at[at])
                raise ModelError(
                    f"{self.what}: second row for {shortened(labels)} (first at {first})", self.source.place_of(labels)
                )
            first_at[at] = labels
            self._check_length(numbers)
        # Lengths are checked first, so that one conversion of all rows cannot shift numbers into the next row.
        values = numbers_in(self.source, *(row.tokens[1] for row in rows)).reshape(-1, self.size)
        if default is None:
            self._refuse_missing(first_at)
            table = np.empty((self.count, self.size))
        else:
            self._check_length(default)
            table = shapes.fill((self.count, self.size), self.what, self.place).reshape(-1, self.size)
            table *= numbers_in(self.source, default)
        table[list(first_at)] = values
        return table

    def _row(self, token: Token) -> int:
        """Return the number of the row that a list of states labels, the last parent fastest."""
        inner = token[1:-1]
        labels = [label.strip() for label in inner.split(",")] if self.parents else []
        if len(labels) != len(self.parents) or '"' in inner or not self._known(labels):
            # Most rows take the fast way of a plain split; quotes, spaces and brackets need the slow one.
            labels = names_in_list(inner, len(self.parents))
        if len(labels) != len(self.parents):
            names = shortened(", ".join(self.parents)) or "no parents"
            raise ModelError(
                f"{self.what}: row {shortened(token)} names {len(labels)} states, "
                f"expected {len(self.parents)} ({names})",
                self.source.place_of(token),
            )
        row = 0
        for label, position, parent in zip(labels, self.positions, self.parents, strict=True):
            if label not in position:
                raise ModelError(
                    f"{self.what}: row {shortened(token)}: {parent!r} has no state {shortened(label)!r}"
                    f"{hinted(label, position) or f', its states are {shortened(str(list(position)))}'}",
                    self.source.place_of(token),
                )
            row = row * len(position) + position[label]
        return row

    def _known(self, labels: Iterable[str]) -> bool:
        return all(label in position for label, position in zip(labels, self.positions, strict=True))

    def _check_length(self, token: Token) -> None:
        entries = len(token.replace(",", " ").split())
        if entries != self.size:
            raise ModelError(
                f"{self.what}: found {entries} entries in a row, expected {self.size}, one for each state",
                self.source.place_of(token),
            )

    def _refuse_missing(self, rows: dict[int, Token]) -> None:
        if len(rows) == self.count:
            return
        missing = next(row for row in range(self.count) if row not in rows)
        states: list[str] = []
        for names in reversed(self.states):
            missing, state = divmod(missing, len(names))
            states.append(names[state])
        raise ModelError(
            f"{self.what}: found {len(rows)} rows, expected {self.count}; the first that is missing is "
            f"({', '.join(reversed(states))}){self.note}",
            self.place,
        )


def write(network: Network) -> str:
    """Return the network as BIF text; `read` restores the same network, doubles to the last bit.

    Raises ModelError for a Markov network, and for names with a double quote or a control character in them.
    """
    if network.kind != "bayes":
        raise ModelError("BIF holds Bayesian networks only: write a Markov network as UAI or Parquet")
    title = _UNWRITABLE.sub("_", network.name) or "unknown"
    names = [_quoted(variable.name) for variable in network.variables]
    states = [[_quoted(state) for state in variable.states] for variable in network.variables]
    lines = [f"network {_quoted(title)} {{", "}"]
    for name, listed in zip(names, states, strict=True):
        lines += [f"variable {name} {{", f"  type discrete [ {len(listed)} ] {{ {', '.join(listed)} }};", "}"]
    for factor in network.factors:
        *parents, child = factor.scope
        bar = f" | {', '.join(names[i] for i in parents)}" if parents else ""
        lines.append(f"probability ( {names[child]}{bar} ) {{")
        labels = product(*(states[i] for i in parents))
        table = factor.table.reshape(-1, network.variables[child].cardinality)
        for label, row in zip(labels, table.tolist(), strict=True):
            start = f"({', '.join(label)})" if parents else "table"
            # repr gives the shortest digits that read back as the same double.
            lines.append(f"  {start} {', '.join(map(repr, row))};")
        lines.append("}")
    return "\n".join(lines) + "\n"


def _quoted(name: str) -> str:
    if bad := _UNWRITABLE.search(name):
        raise ModelError(f"the name {name!r} has {bad[0]!r} in it, which BIF cannot express: write UAI or Parquet")
    return name if _PLAIN.fullmatch(name) and name not in _KEYWORDS else f'"{name}"'
