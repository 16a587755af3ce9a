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

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from junctor.formats.files import place_at, title_of
from junctor.formats.numbers import BadNumber, parse_numbers, shown
from junctor.model.errors import ModelError, Place
from junctor.model.network import DraftTable, DraftVariable, Kind, Network, build_network, table_size

# States allowed in total beyond one for each number in the file: a short file may claim a billion.
SPARE_STATES = 2**20

_KINDS: dict[str, Kind] = {"BAYES": "bayes", "MARKOV": "markov"}
# What `str.split` takes for white space: offsets of words must agree with those of parse_numbers.
_IS_SPACE = np.isin(np.arange(256), [*b" \t\n\r\v\f\x1c\x1d\x1e\x1f"])


def read(text: str, file: str | None = None) -> Network:
    """Return the network of a UAI file; raises ModelError, with line and column, for whatever is wrong with it."""
    kind, words = _opened(text, file)
    variables, sizes = _variables(words)
    scopes = [_scope(words, len(variables)) for _ in range(words.count("the number of tables"))]
    tables = [_table(words, scope, sizes) for scope in scopes]
    # More numbers than the header says point to a wrong header, and so to wrong tables.
    words.expect_end()
    return build_network(title_of(file), kind, variables, tables, Place(file))


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

    def __init__(self, text: str, start: int, file: str | None) -> None:
        self._text = text
        self._file = file
        foreign = re.search(r"[^\x00-\x7f]", text)
        if foreign:
            place = place_at(text, foreign.start(), file)
            raise ModelError(f"found the character {foreign[0]!r}, expected numbers", place)
        try:
            self._values = parse_numbers(text[start:])
        except BadNumber as bad:
            place = place_at(text, start + bad.offset, file)
            raise ModelError(f"found {shown(bad.word)}, expected a number", place) from None
        # Offsets of words and line ends, found once: each of thousands of tables needs its place.
        characters = np.frombuffer(text.encode("ascii"), dtype=np.uint8)
        space = _IS_SPACE[characters[start:]]
        self._starts = start + np.flatnonzero(~space & np.concatenate(([True], space[:-1])))
        self._newlines = np.flatnonzero(characters == ord("\n"))
        self._next = 0

    @property
    def left(self) -> int:
        """Words not taken yet."""
        return len(self._values) - self._next

    def here(self) -> Place:
        """Place of the next word."""
        offset = int(self._starts[self._next]) if self.left else len(self._text.rstrip())
        line = int(np.searchsorted(self._newlines, offset))
        start_of_line = int(self._newlines[line - 1]) + 1 if line else 0
        return Place(self._file, line + 1, offset - start_of_line + 1)

    def whole(self, what: str) -> int:
        """Take a whole number; raises ModelError with `what` for the end of the file or another word."""
        if not self.left:
            raise ModelError(f"found the end of the file, expected {what}", self.here())
        value = float(self._values[self._next])
        # Above 2^53 doubles skip integers.
        if not 0 <= value <= 2**53 or not value.is_integer():
            raise ModelError(f"found {self._word()}, expected {what}, a whole number", self.here())
        self._next += 1
        return int(value)

    def count(self, what: str) -> int:
        """Take the number of following items of at least one word each, so that no small file asks for large lists."""
        place = self.here()
        number = self.whole(what)
        if number > self.left:
            raise ModelError(f"{what} is {number:,}, but only {self.left:,} more numbers follow", place)
        return number

    def entries(self, number: int, what: str) -> npt.NDArray[np.float64]:
        """Take `number` entries of the table that errors call `what`."""
        if number > self.left:
            message = f"found {self.left:,} of the {number:,} entries of {what} before the end of the file"
            self._next = len(self._values)
            raise ModelError(message, self.here())
        self._next += number
        return self._values[self._next - number : self._next]

    def expect_end(self) -> None:
        """Raise ModelError if words are left."""
        if self.left:
            more = f"found {self._word()} and {self.left - 1:,} more numbers" if self.left > 1 else self._word()
            raise ModelError(f"{more} after the last table, expected the end of the file", self.here())

    def _word(self) -> str:
        start = int(self._starts[self._next])
        return shown(self._text[start : start + 100].split()[0])


def _opened(text: str, file: str | None) -> tuple[Kind, _Words]:
    plain = re.sub(r"#[^\n]*", lambda comment: " " * len(comment[0]), text) if "#" in text else text
    first = re.search(r"\S+", plain)
    if first is None:
        raise ModelError("found nothing but space and comments, expected BAYES or MARKOV", Place(file))
    kind = _KINDS.get(first[0].upper())
    if kind is None:
        raise ModelError(f"found {shown(first[0])}, expected BAYES or MARKOV", place_at(plain, first.start(), file))
    return kind, _Words(plain, first.end(), file)


def _variables(words: _Words) -> tuple[list[DraftVariable], list[int]]:
    number = words.count("the number of variables")
    places, sizes = [], []
    allowed = SPARE_STATES + words.left
    for i in range(number):
        places.append(words.here())
        sizes.append(words.whole(f"the number of states of variable {i}"))
        if sizes[-1] < 1:
            raise ModelError(f"variable {i} has 0 states, expected at least one", places[-1])
        allowed -= sizes[-1]
        if allowed < 0:
            raise ModelError(f"variable {i} has {sizes[-1]:,} states, far more than the file has numbers", places[-1])
    # Variables are named "0", "1", ..., and so are states; slices of one tuple share the strings.
    names = tuple(map(str, range(max(sizes, default=0))))
    drafts = zip(sizes, places, strict=True)
    return [DraftVariable(str(i), names[:size], place) for i, (size, place) in enumerate(drafts)], sizes


def _scope(words: _Words, variables: int) -> tuple[int, ...]:
    scope = []
    for _ in range(words.count("the number of variables of a table")):
        place = words.here()
        scope.append(words.whole("a variable of a table"))
        if scope[-1] >= variables:
            raise ModelError(f"found variable {scope[-1]}, expected one from 0 to {variables - 1}", place)
    return tuple(scope)


def _table(words: _Words, scope: tuple[int, ...], sizes: Sequence[int]) -> DraftTable:
    what = f"the table over variables {_line(scope[:20])}" if scope else "the table over no variables"
    place = words.here()
    shape = [sizes[i] for i in scope]
    expected = table_size(shape, what, place)
    entries = words.whole(f"the number of entries of {what}")
    if entries != expected:
        product = " x ".join(map(str, shape)) or "1"
        raise ModelError(f"{what} is said to have {entries:,} entries, expected {expected:,} ({product})", place)
    return DraftTable([str(i) for i in scope], words.entries(entries, what), place)
