"""CFN files: cost function networks of toulbar2, in JSON that may lack its quotes, commas, colons and keys.

    { "problem": { "name": "colours", "mustbe": "<10.0" },      least total, each cost below 10; ">": the largest
      "variables": { "a": ["red", "blue"], "b": 2 },            states, or how many
      "functions": {
        "prefer": { "scope": ["a"], "costs": [0.5, -1.2] },     all costs, the last variable fastest
        "differ": { "scope": ["a", "b"], "defaultcost": 0, "costs": ["red", 0, 10.0, "blue", 1, 10.0] },
        "again": { "scope": ["b", "a"], "costs": "differ" }     the costs of another function
      } }

Fields come in this order; variables and states may be named by their numbers, from 0. Costs have as many decimals as
the number in `mustbe`: what has more is cut. `#` at the beginning of a line begins a comment. Functions with a `type`
are given by a formula, and are not read. Source: the description of the format in toulbar2's manual. Main function:
`read`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from junctor.formats.costs import CostTables
from junctor.formats.files import title_of
from junctor.formats.numbers import BadNumber, parse_numbers
from junctor.formats.text import SourceText, Token, hinted, numbers_in, shortened, without_comments
from junctor.formats.wcsp import formula_error
from junctor.formats.words import SPARE_STATES
from junctor.model.errors import ModelError, Place
from junctor.model.network import DraftTable, DraftVariable, Network, Reading, build_network

# A double has no more digits.
MAX_DECIMALS = 15
# Brackets of both kinds are alike. A quoted word may hold anything, of a bare one only `:` and `,` end it. A list of
# nothing but numbers is one piece: tables may have millions of costs.
_PIECES = re.compile(
    r"(?P<run>(?<=[\[{])\s*+[-+.\d][-+.\deE,\s]*+(?=[\]}]))|(?P<open>[\[{])|(?P<close>[\]}])|"
    r'"(?P<quoted>[^"]*+)"|(?P<bare>[^\s\[\]{}",:]++)|"'
)
_NUMBER = re.compile(r"(?P<word>[^\s,]+)")
# At the beginning of a line alone: names may have the mark.
_COMMENT = r"(?:(?<=\n)|\A)[ \t]*#[^\n]*"
_BOUND = re.compile(r"\s*([<>])\s*([-+]?\d+(?:\.(\d*))?)\s*")


def read(text: str, file: str | None = None, reading: Reading | None = None) -> Network:
    """Return the network of a CFN file; raises ModelError, with line and column, for whatever is wrong with it."""
    source = without_comments(text, file or "network", _COMMENT, r'"[^"]*+"', {'"': "string"}, reading)
    fields = _Fields(source, _parsed(source))
    problem = fields.inner("problem")
    name = problem.word("name")
    limits = _Limits.of(source, problem.word("mustbe"))
    problem.expect_end()
    variables = _variables(fields.inner("variables"))
    functions = _functions(fields.inner("functions"))
    fields.expect_end()
    known = _Names(source, variables, functions)
    tables = [table for function in functions for table in _factors(function, known, limits)]
    limits.note(reading)
    return build_network(name or title_of(file), "markov", variables, tables, Place(file), reading)


class _Run(Token):
    """The numbers of a list, in one piece."""

    def split(self) -> list[Token]:  # type: ignore[override]
        """Return the numbers one by one."""
        words = [Token.of(match, "word") for match in _NUMBER.finditer(self)]
        for word in words:
            word.start_pos += self.start_pos
        return words


class _List(list["Token | _List"]):
    """What stands between two brackets, the first of which is at `start`."""

    start = 0
    end = 0


def _parsed(source: SourceText) -> _List:
    """Return what stands in the brackets around a file; raises ModelError for unpaired ones."""
    outer = _List()
    open_lists = [outer]
    for match in _PIECES.finditer(source.text):
        if match["open"]:
            inner = _List()
            inner.start = match.start()
            open_lists[-1].append(inner)
            open_lists.append(inner)
        elif match["close"]:
            if len(open_lists) == 1:
                raise ModelError(
                    f"found {match[0]!r} without an opening bracket before it", source.place(match.start())
                )
            open_lists.pop().end = match.start()
        elif match["run"]:
            run = _Run(match["run"])
            run.start_pos = match.start()
            open_lists[-1].append(run)
        else:
            # In files of toulbar2 a colon stands within the quotes now and then.
            open_lists[-1].append(Token.of(match, "bare" if match["bare"] else "quoted"))
    # Files of toulbar2's tutorials lack the last bracket, behind which nothing could be lost.
    if len(open_lists) > 2 or (len(open_lists) == 2 and len(outer) > 1):
        raise ModelError("the bracket that opens here is never closed", source.place(open_lists[-1].start))
    if len(open_lists) == 2:
        open_lists[-1].end = len(source.text.rstrip())
    if len(outer) != 1 or not isinstance(outer[0], _List):
        raise ModelError(f"found {len(outer)} values in all, expected one object in brackets", source.place(0))
    return outer[0]


class _Fields:
    """Takes the fields of a list in their order, with or without their keys."""

    def __init__(self, source: SourceText, items: _List) -> None:
        self.source = source
        self.items = [word for item in items for word in (item.split() if isinstance(item, _Run) else [item])]
        self.next = 0
        self.end = items.end
        self.place = source.place(items.start)

    @property
    def left(self) -> bool:
        """Whether items are left."""
        return self.next < len(self.items)

    def has(self, *keys: str) -> bool:
        """Take one of the keys, if it comes next."""
        found = self.left and isinstance(item := self.items[self.next], Token) and item.rstrip(": ") in keys
        self.next += bool(found)
        return bool(found)

    def take(self, what: str) -> Token | _List:
        """Take the next item; raises ModelError at the end."""
        if not self.left:
            raise ModelError(f"found the end of a list, expected {what}", self.source.place(self.end))
        self.next += 1
        return self.items[self.next - 1]

    def word(self, key: str) -> Token:
        """Take a field that is a word; raises ModelError."""
        self.has(key)
        item = self.take(repr(key))
        if isinstance(item, _List):
            raise ModelError(f"found a list, expected {key!r}, a word", self.source.place(item.start))
        return item

    def inner(self, key: str) -> _Fields:
        """Take a field that is a list; raises ModelError."""
        self.has(key)
        item = self.take(repr(key))
        if isinstance(item, Token):
            found = repr(shortened(item))
            raise ModelError(f"found {found}, expected {key!r}, a list in brackets", self.source.place_of(item))
        return _Fields(self.source, item)

    def words(self) -> list[Token]:
        """Take all items that are left, those of lists within as if without their brackets."""
        found = list(_flat(self.items[self.next :]))
        self.next = len(self.items)
        return found

    def expect_end(self) -> None:
        """Raise ModelError if items are left."""
        if self.left:
            item = self.items[self.next]
            found, at = ("a list", item.start) if isinstance(item, _List) else (repr(shortened(item)), item.start_pos)
            raise ModelError(f"found {found}, expected the end of the list", self.source.place(at))


def _flat(items: Sequence[Token | _List]) -> Iterator[Token]:
    waiting = list(reversed(items))
    while waiting:
        item = waiting.pop()
        if isinstance(item, _List):
            waiting += reversed(item)
        elif isinstance(item, _Run):
            yield from item.split()
        else:
            yield item


def _whole(word: str) -> int | None:
    """Return the whole number that a word is, or None."""
    return int(word) if re.fullmatch(r"[-+]?[0-9]{1,15}", word) else None


def _variables(fields: _Fields) -> list[DraftVariable]:
    source, spare = fields.source, SPARE_STATES + len(fields.source.text)
    variables: list[DraftVariable] = []
    while fields.left:
        item = fields.take("a variable")
        at, name = (item.start if isinstance(item, _List) else item.start_pos), str(len(variables))
        if isinstance(item, Token) and _whole(item) is None:
            name, item = str(item), fields.take(f"the states of {shortened(item)!r}")
        if isinstance(item, _List):
            states = tuple(map(str, _flat(item)))
        else:
            size = _whole(item)
            spare -= max(size or 0, 0)
            if size is None or size < 1 or spare < 0:
                what = f"found {shortened(item)!r} as the states of {shortened(name)!r}"
                hint = "; intervals (negative numbers) are for functions given by formulas, which are not read"
                raise ModelError(
                    f"{what}, expected a list of them or how many there are{hint if (size or 0) < 0 else ''}",
                    source.place_of(item),
                )
            states = tuple(map(str, range(size)))
        variables.append(DraftVariable(name, states, source.place(at)))
    return variables


@dataclass
class _Function:
    """A cost function: its name in errors, and its fields."""

    name: str
    fields: _Fields
    scope: list[Token] = field(default_factory=list)
    default: Token | None = None
    costs: _List | Token | None = None


def _functions(fields: _Fields) -> list[_Function]:
    functions: list[_Function] = []
    while fields.left:
        item = fields.take("a function")
        name = str(len(functions))
        if isinstance(item, Token):
            name = str(item)
            fields_of = fields.inner(name)
        else:
            fields_of = _Fields(fields.source, item)
        functions.append(_function(name, fields_of))
    return functions


def _function(name: str, fields: _Fields) -> _Function:
    """Return a function with its scope and costs as the file has them; raises ModelError."""
    function = _Function(name, fields, fields.inner("scope").words())
    if fields.has("type"):
        kind = fields.word("type")
        raise formula_error(kind, fields.source.place_of(kind))
    is_default = fields.has("defaultcost")
    if is_default or (fields.left and isinstance(item := fields.items[fields.next], Token) and _is_number(item)):
        function.default = fields.word("defaultcost")
    fields.has("costs")
    function.costs = fields.take("'costs'")
    fields.expect_end()
    return function


def _is_number(word: str) -> bool:
    try:
        return len(parse_numbers(word)) == 1
    except BadNumber:
        return False


@dataclass
class _Limits:
    """What the number in `mustbe` says of all costs.

    sign: 1 where the least total is sought, -1 where the largest is.
    tables: makes factors.
    decimals: of all costs.
    """

    sign: float
    tables: CostTables
    decimals: int
    cut: list[str] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    hard: list[tuple[float, float]] = field(default_factory=list)

    @staticmethod
    def of(source: SourceText, word: Token) -> _Limits:
        """Return the limits of a bound; raises ModelError for none."""
        bound = _BOUND.fullmatch(word)
        if bound is None:
            what = f"found {shortened(word)!r} as 'mustbe', expected < or > and a number, as <10.00"
            raise ModelError(what, source.place_of(word))
        sign = 1.0 if bound[1] == "<" else -1.0
        return _Limits(sign, CostTables(sign * float(bound[2])), len(bound[3] or ""))

    def costs(self, numbers: npt.NDArray[np.float64], what: str) -> npt.NDArray[np.float64]:
        """Return numbers of the file with the decimals that costs have, the least being the best."""
        if self.decimals > MAX_DECIMALS:
            return self.sign * numbers
        with np.errstate(over="ignore"):
            scaled = numbers * 10.0**self.decimals
        whole = np.rint(scaled)
        # The double next to a decimal is as far off as its last digit.
        is_whole = ~np.isfinite(scaled) | (np.abs(scaled - whole) <= 1e-9 + 1e-15 * np.abs(scaled))
        if not is_whole.all():
            self.cut.append(what)
        return self.sign * np.where(is_whole, numbers, np.trunc(scaled) / 10.0**self.decimals)

    def factors(
        self, scope: list[str], costs: npt.NDArray[np.float64], what: str, function: _Function
    ) -> list[DraftTable]:
        """Return the factors of a function."""
        hard = costs[costs >= self.tables.hard] if scope else costs[:0]
        least = float(costs.min(initial=0.0))
        self.least.append(least)
        if hard.size:
            self.hard.append((float(hard.min()), least))
        return self.tables.factors(scope, costs, what, function.fields.place)

    def note(self, reading: Reading | None) -> None:
        """Note what was cut, and hard costs that negative ones could make up."""
        if reading is None:
            return
        if self.cut:
            where = f"{self.cut[0]}{f' and {len(self.cut) - 1} more' if len(self.cut) > 1 else ''}"
            reading.notes.append(f"costs have {self.decimals} decimals ('mustbe'), and were cut to them: in {where}")
        total = math.fsum(self.least)
        if any(hard + total - own < self.tables.hard for hard, own in self.hard):
            reading.notes.append(
                "costs beyond the bound ('mustbe') are taken as hard, though others could make them up"
            )


class _Names:
    """Variables and functions of a file by their names."""

    def __init__(self, source: SourceText, variables: Sequence[DraftVariable], functions: Sequence[_Function]) -> None:
        self.source = source
        self.variables = variables
        self.index = {variable.name: i for i, variable in enumerate(variables)}
        self.functions: dict[str, list[_Function]] = {}
        for function in functions:
            self.functions.setdefault(function.name, []).append(function)

    def variable(self, word: Token, what: str) -> DraftVariable:
        """Return a variable by its name or number; raises ModelError."""
        at = self._found(word, self.index, len(self.variables))
        if at is None:
            message = f"{what}: unknown variable {shortened(word)!r}{hinted(word, self.index)}"
            raise ModelError(message, self.source.place_of(word))
        return self.variables[at]

    def state(self, word: Token, states: Mapping[str, int], what: str) -> int:
        """Return the number of a state by its name or number; raises ModelError."""
        at = self._found(word, states, len(states))
        if at is None:
            message = f"{what}: unknown state {shortened(word)!r}{hinted(word, states)}"
            raise ModelError(message, self.source.place_of(word))
        return at

    def shared(self, function: _Function, what: str) -> _Function:
        """Return the function whose table a function has; raises ModelError."""
        seen = {id(function)}
        while isinstance(word := function.costs, Token):
            named = self.functions.get(word, [])
            if len(named) != 1:
                found = f"{len(named)} functions are named {shortened(word)!r}{hinted(word, self.functions)}"
                raise ModelError(f"{what}: {found}, expected one with its costs", self.source.place_of(word))
            (function,) = named
            if id(function) in seen:
                raise ModelError(f"{what}: its costs are its own, expected a table", self.source.place_of(word))
            seen.add(id(function))
        return function

    @staticmethod
    def _found(word: str, index: Mapping[str, int], number: int) -> int | None:
        at = index.get(word)
        if at is None and (whole := _whole(word)) is not None and 0 <= whole < number:
            return whole
        return at


def _factors(function: _Function, known: _Names, limits: _Limits) -> list[DraftTable]:
    """Return the factors of a function; raises ModelError."""
    what = f"the cost function {shortened(function.name)!r}"
    scope = [known.variable(word, what) for word in function.scope]
    owner = known.shared(function, what)
    theirs = [known.variable(word, what) for word in owner.scope]
    shape, other = ([len(variable.states) for variable in variables] for variables in (scope, theirs))
    if shape != other:
        sizes = (" x ".join(map(str, sizes)) or "1" for sizes in (shape, other))
        raise ModelError(
            f"{what} has {next(sizes)} entries, and that of its costs {next(sizes)}", function.fields.place
        )
    costs = limits.costs(_table(owner, theirs, known, limits, what), what)
    return limits.factors([variable.name for variable in scope], costs, what, function)


def _table(
    function: _Function, scope: list[DraftVariable], known: _Names, limits: _Limits, what: str
) -> npt.NDArray[np.float64]:
    """Return the costs of a function as the file has them, the last variable fastest; raises ModelError."""
    source, costs = known.source, function.costs
    assert isinstance(costs, _List)
    shape = [len(variable.states) for variable in scope]
    if function.default is None:
        is_run = len(costs) == 1 and isinstance(costs[0], _Run)
        words = [costs[0]] if is_run else list(_flat(costs))
        numbers = numbers_in(source, *words) if words else np.empty(0)
        if len(numbers) != math.prod(shape):
            sizes = " x ".join(map(str, shape)) or "1"
            raise ModelError(
                f"{what}: found {len(numbers):,} costs, expected {math.prod(shape):,} ({sizes})",
                source.place(costs.start),
            )
        return numbers
    (default,) = numbers_in(source, function.default)
    words, row = list(_flat(costs)), len(shape) + 1
    if len(words) % row:
        found = f"found {len(words):,} words, expected for each tuple {len(shape)} states and a cost"
        raise ModelError(f"{what}: {found}", source.place(costs.start))
    table = limits.tables.filled(shape, default, len(words) // row, what, function.fields.place)
    table[_places(words, scope, known, what)] = numbers_in(source, *words[row - 1 :: row]) if words else np.empty(0)
    return table


def _places(words: list[Token], scope: list[DraftVariable], known: _Names, what: str) -> list[int]:
    """Return where the tuples of a function stand in its table; raises ModelError for a second one."""
    states = [{state: i for i, state in enumerate(variable.states)} for variable in scope]
    places: dict[int, None] = {}
    for at in range(0, len(words), len(scope) + 1):
        place = 0
        for word, index in zip(words[at : at + len(scope)], states, strict=True):
            place = place * len(index) + known.state(word, index, what)
        if place in places:
            found = f"{what}: found a tuple a second time, expected one cost of it"
            raise ModelError(found, known.source.place_of(words[at]))
        places[place] = None
    return list(places)
