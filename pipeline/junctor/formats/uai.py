"""UAI files: BAYES and MARKOV networks of numbered variables, as the UAI inference competitions use them.

    MARKOV            kind
    3                 number of variables
    2 2 3             number of states of each
    2                 number of tables
    2 0 1             number of variables of a table, and which; in BAYES the child comes last
    2 1 2
    4                 number of entries of the first table, and the entries, last variable fastest
    0.1 0.9 0.9 0.1
    6
    ...

Main functions: `read` and `write`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from junctor.formats.files import place_at, title_of
from junctor.formats.numbers import BadNumber, note_lost, parse_numbers, shown
from junctor.model.errors import ModelError, Place
from junctor.model.network import (
    MAX_TABLE_ENTRIES,
    MAX_TABLE_VARIABLES,
    DraftTable,
    DraftVariable,
    Kind,
    Network,
    Reading,
    build_network,
    table_size,
)

# States allowed in total beyond one for each number in the file: a short file may claim a billion.
SPARE_STATES = 2**20

_KINDS: dict[str, Kind] = {"BAYES": "bayes", "MARKOV": "markov"}
# What `str.split` takes for white space: offsets of words must agree with those of parse_numbers.
_IS_SPACE = np.isin(np.arange(256), [*b" \t\n\r\v\f\x1c\x1d\x1e\x1f"])


def read(text: str, file: str | None = None, reading: Reading | None = None) -> Network:
    """Return the network of a UAI file; raises ModelError, with line and column, for whatever is wrong with it."""
    kind, words = _opened(text, file, reading)
    variables, sizes = _variables(words)
    scopes = [_scope(words, len(variables)) for _ in range(words.count("the number of tables"))]
    firsts, entries = [], []
    for scope in scopes:
        firsts.append(words.next)
        entries.append(_entries(words, scope, sizes))
    # More numbers than the header says point to a wrong header, and so to wrong tables.
    words.expect_end()
    names = [variable.name for variable in variables]
    tables = [
        DraftTable([names[i] for i in scope], values, place)
        for scope, values, place in zip(scopes, entries, words.places(firsts), strict=True)
    ]
    return build_network(title_of(file), kind, variables, tables, Place(file), reading)


def write(network: Network) -> str:
    """Return the network as a UAI file; numbers read back exactly, names of variables and states are lost."""
    lines = [network.kind.upper(), str(len(network.variables)), _line(network.cardinalities)]
    lines.append(str(len(network.factors)))
    lines += [_line((len(factor.scope), *factor.scope)) for factor in network.factors]
    for factor in network.factors:
        rows = factor.table.reshape(-1, factor.table.shape[-1] if factor.scope else 1)
        lines += ["", str(factor.table.size), *(_line(row) for row in rows.tolist())]
    return "\n".join(lines) + "\n"


def _line(numbers: Sequence[float]) -> str:
    # str of a double is the shortest text that reads back as the same double.
    return " ".join(map(str, numbers))


class _Words:
    """The words of a file after the first, all numbers, taken one after the other.

    Words are separated by any white space; comments (`#`) are blanked out before.
    """

    def __init__(self, text: str, start: int, file: str | None, reading: Reading | None) -> None:
        self._text = text
        self._file = file
        foreign = re.search(r"[^\x00-\x7f]", text)
        if foreign:
            place = place_at(text, foreign.start(), file)
            raise ModelError(f"found the character {foreign[0]!r}, expected numbers", place)
        lost: list[str] = []
        try:
            self._values = parse_numbers(text[start:], lost)
        except BadNumber as bad:
            place = place_at(text, start + bad.offset, file)
            raise ModelError(f"found {shown(bad.word)}, expected a number", place) from None
        if lost:
            note_lost(lost, place_at(text, text.index(lost[0], start), file), reading)
        # Offsets of words and line ends, found once: all of thousands of tables need their places.
        characters = np.frombuffer(text.encode("ascii"), dtype=np.uint8)
        space = _IS_SPACE[characters[start:]]
        self._starts = start + np.flatnonzero(~space & np.concatenate(([True], space[:-1])))
        self._newlines = np.flatnonzero(characters == ord("\n"))
        self.next = 0

    @property
    def left(self) -> int:
        """Words not taken yet."""
        return len(self._values) - self.next

    def places(self, words: Sequence[int]) -> list[Place]:
        """Places of words by their numbers; that after the last one is the end of the text."""
        ends = np.append(self._starts, len(self._text.rstrip()))
        offsets = ends[np.array(words, dtype=np.int64)]
        lines = np.searchsorted(self._newlines, offsets)
        columns = offsets - np.append(-1, self._newlines)[lines]
        return [
            Place(self._file, line + 1, column) for line, column in zip(lines.tolist(), columns.tolist(), strict=True)
        ]

    def here(self) -> Place:
        """Place of the next word."""
        return self.places([self.next])[0]

    def follow(self, number: int) -> npt.NDArray[np.float64]:
        """Return the next `number` words, or fewer at the end of the file; they are not taken."""
        return self._values[self.next : self.next + number]

    def whole(self, what: str) -> int:
        """Take a whole number; raises ModelError with `what` for the end of the file or another word."""
        if not self.left:
            raise ModelError(f"found the end of the file, expected {what}", self.here())
        value = float(self._values[self.next])
        # Above 2^53 doubles skip integers.
        if not 0 <= value <= 2**53 or not value.is_integer():
            raise ModelError(f"found {self._word()}, expected {what}, a whole number", self.here())
        self.next += 1
        return int(value)

    def count(self, what: str) -> int:
        """Take the number of following items of at least one word each, so that no small file asks for large lists."""
        first = self.next
        number = self.whole(what)
        if number > self.left:
            (place,) = self.places([first])
            raise ModelError(f"{what} is {number:,}, but only {self.left:,} more numbers follow", place)
        return number

    def entries(self, number: int, what: str) -> npt.NDArray[np.float64]:
        """Take `number` entries of the table that errors call `what`."""
        if number > self.left:
            message = f"found {self.left:,} of the {number:,} entries of {what} before the end of the file"
            self.next = len(self._values)
            raise ModelError(message, self.here())
        self.next += number
        return self._values[self.next - number : self.next]

    def expect_end(self) -> None:
        """Raise ModelError if words are left."""
        if self.left:
            more = f"found {self._word()} and {self.left - 1:,} more numbers" if self.left > 1 else self._word()
            raise ModelError(f"{more} after the last table, expected the end of the file", self.here())

    def _word(self) -> str:
        start = int(self._starts[self.next])
        return shown(self._text[start : start + 100].split()[0])


def _opened(text: str, file: str | None, reading: Reading | None) -> tuple[Kind, _Words]:
    plain = re.sub(r"#[^\n]*", lambda comment: " " * len(comment[0]), text) if "#" in text else text
    first = re.search(r"\S+", plain)
    if first is None:
        raise ModelError("found nothing but space and comments, expected BAYES or MARKOV", Place(file))
    kind = _KINDS.get(first[0].upper())
    if kind is None:
        raise ModelError(f"found {shown(first[0])}, expected BAYES or MARKOV", place_at(plain, first.start(), file))
    return kind, _Words(plain, first.end(), file, reading)


def _variables(words: _Words) -> tuple[list[DraftVariable], list[int]]:
    number = words.count("the number of variables")
    allowed = SPARE_STATES + words.left
    first = words.next
    found = words.follow(number)
    # All at once where nothing is wrong with any of them: networks may have a million variables.
    if (found >= 1).all() and (found == np.floor(found)).all() and found.sum() <= allowed:
        sizes = found.astype(np.int64).tolist()
        words.next += number
    else:
        sizes = _one_by_one(words, number, allowed)
    # Variables are named "0", "1", ..., and so are states.
    states = {size: tuple(map(str, range(size))) for size in set(sizes)}
    places = words.places(range(first, first + number))
    drafts = zip(sizes, places, strict=True)
    return [DraftVariable(str(i), states[size], place) for i, (size, place) in enumerate(drafts)], sizes


def _one_by_one(words: _Words, number: int, allowed: int) -> list[int]:
    """Return the sizes of the variables; raises ModelError for the first that is wrong.

    number: of variables.
    allowed: states of all of them together.
    """
    sizes = []
    for i in range(number):
        place = words.here()
        sizes.append(words.whole(f"the number of states of variable {i}"))
        if sizes[-1] < 1:
            raise ModelError(f"variable {i} has 0 states, expected at least one", place)
        allowed -= sizes[-1]
        if allowed < 0:
            raise ModelError(f"variable {i} has {sizes[-1]:,} states, far more than the file has numbers", place)
    return sizes


def _scope(words: _Words, variables: int) -> tuple[int, ...]:
    scope = []
    for _ in range(words.count("the number of variables of a table")):
        scope.append(words.whole("a variable of a table"))
        if scope[-1] >= variables:
            (place,) = words.places([words.next - 1])
            raise ModelError(f"found variable {scope[-1]}, expected one from 0 to {variables - 1}", place)
    return tuple(scope)


def _entries(words: _Words, scope: tuple[int, ...], sizes: Sequence[int]) -> npt.NDArray[np.float64]:
    """Take the entries of a table, after their number."""
    shape = [sizes[i] for i in scope]
    # Only errors need a name and a place; most tables have neither.
    expected = math.prod(shape)
    small = len(shape) <= MAX_TABLE_VARIABLES and expected <= MAX_TABLE_ENTRIES
    if small and expected < words.left and words.follow(1)[0] == expected:
        words.next += 1
        return words.entries(expected, "")
    what = f"the table over variables {_line(scope[:20])}" if scope else "the table over no variables"
    place = words.here()
    expected = table_size(shape, what, place)
    entries = words.whole(f"the number of entries of {what}")
    if entries != expected:
        product = " x ".join(map(str, shape)) or "1"
        raise ModelError(f"{what} is said to have {entries:,} entries, expected {expected:,} ({product})", place)
    return words.entries(entries, what)
