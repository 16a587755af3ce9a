"""Shared parts of the readers of text formats: comments, parsing by a lark grammar, names, scopes and numbers.

Main function: `parse`; called by `bif` and `hugin`. Grammars have few and coarse terminals: a whole list of names or
numbers is one token, split and converted at once, so that lark sees three tokens for each row of a table.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from junctor.formats.numbers import BadNumber, note_lost, parse_numbers, shown
from junctor.model.errors import ModelError, Place, nearest
from junctor.model.network import DraftTable, DraftVariable, Network, Reading, build_network, table_size

if TYPE_CHECKING:
    from lark import Lark

# Most entries (128 MiB) of tables that a file asks for without writing them out: a short file can name huge ones.
MAX_FILLED = 2**24
# Terminals of grammars with attributes `KEY = VALUE;` in braces.
VALUES_IN_BRACES = r"""
VALUE: /(?:[^\s;{}"]|"(?:[^"\\]++|\\.)*+")(?:[^;{}"]++|"(?:[^"\\]++|\\.)*+")*+/s

_LBRACE: "{"
_RBRACE: "}"
_EQUALS: "="
_END: ";"

%ignore /\s+/
"""


class Token(str):
    """A piece of a text that starts at `start_pos`; tokens of lark are used alike."""

    __slots__ = ("start_pos",)
    start_pos: int

    @staticmethod
    def of(match: re.Match[str], group: str) -> Token:
        """Return what a group of a regular expression matched."""
        token = Token(match[group])
        token.start_pos = match.start(group)
        return token


@dataclass(frozen=True)
class SourceText:
    """The text of a file with its comments blanked out, so that offsets stay those of the file.

    text, file: content and name of the file.
    reading: takes up notes of numbers.
    """

    text: str
    file: str
    reading: Reading | None = None

    @cached_property
    def _newlines(self) -> list[int]:
        return [match.start() for match in re.finditer("\n", self.text)]

    def place(self, offset: int) -> Place:
        """Return line and column, from 1, of the character at `offset`."""
        # Line ends are found once: each of a million tables has a place.
        line = bisect_left(self._newlines, offset)
        return Place(self.file, line + 1, offset - (self._newlines[line - 1] if line else -1))

    def place_in(self, token: Token, offset: int) -> Place:
        """Return the place of the character at `offset` within a token."""
        return self.place(token.start_pos + offset)

    def place_of(self, token: Token) -> Place:
        """Return the place of a token's first character."""
        return self.place(token.start_pos)


def without_comments(
    text: str, file: str, comment: str, string: str, unclosed: Mapping[str, str], reading: Reading | None = None
) -> SourceText:
    """Return the text with all comments outside of strings turned into spaces.

    text, file: content and name of the file.
    comment, string: regular expressions of a comment and of a quoted string.
    unclosed: opening mark -> its name in errors; raises ModelError where one is never closed.
    reading: takes up notes of numbers.
    """
    marks = "|".join(map(re.escape, unclosed))
    pattern = re.compile(f"(?P<string>{string})|(?P<comment>{comment})|(?P<open>{marks})", re.DOTALL)
    over_lines: list[int] = []

    def blank(match: re.Match[str]) -> str:
        if match["comment"] is not None:
            return re.sub(r"[^\n]", " ", match[0])
        if match["open"] is not None:
            # A stray quote pairs with the next one, so the first string that runs over a line's end is probably wrong.
            at = over_lines[0] if match[0] == '"' and over_lines else match.start()
            raise ModelError(
                f"the {unclosed[match[0]]} that opens here is never closed", SourceText(text, file).place(at)
            )
        if "\n" in match[0]:
            over_lines.append(match.start())
        return match[0]

    return SourceText(pattern.sub(blank, text), file, reading)


class TextBlock:
    """A matched grammar rule: its tokens and nested rules. Replaces lark's Tree, which is slower to build."""

    __slots__ = ("children", "kind")

    def __init__(self, kind: str, children: list[Token | TextBlock]) -> None:
        self.kind = kind
        self.children = children

    @property
    def tokens(self) -> list[Token]:
        """The tokens of this rule itself, without those of nested rules."""
        return [child for child in self.children if not isinstance(child, TextBlock)]

    @property
    def blocks(self) -> list[TextBlock]:
        """The rules nested directly in this one."""
        return [child for child in self.children if isinstance(child, TextBlock)]

    def all(self, kind: str) -> list[TextBlock]:
        """Return the nested rules of one kind."""
        return [block for block in self.blocks if block.kind == kind]


@cache
def _parser(grammar: str) -> Lark:
    # Imported here: it takes 0.1 s, and most formats need no grammar.
    from lark import Lark

    # LALR takes linear time on any input; Earley, lark's default, does not.
    return Lark(grammar, parser="lalr", maybe_placeholders=False, tree_class=TextBlock)


def parse(grammar: str, source: SourceText, words: Mapping[str, str]) -> TextBlock:
    """Parse a text by a grammar; raises ModelError with what was found and what was expected.

    grammar: lark grammar with a rule `start`.
    source: text without comments.
    words: terminal -> its name in errors, in the order in which alternatives are listed.
    """
    from lark import UnexpectedCharacters, UnexpectedToken

    parser = _parser(grammar)
    try:
        return cast(TextBlock, parser.parse(source.text))
    except UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
    except UnexpectedToken as error:
        at = len(source.text.rstrip()) if error.token.type == "$END" else error.pos_in_stream or 0
    expected = _acceptable(parser, source.text)
    wanted = " or ".join(word for terminal, word in words.items() if terminal in expected)
    raise ModelError(f"found {_found(source.text, at)}, expected {wanted}", source.place(at))


def _acceptable(parser: Lark, text: str) -> set[str]:
    """Return the terminals that could follow at the position where a text does not parse."""
    from lark import UnexpectedInput

    # Parsed once more: the error lists all terminals of its LALR state, more than can really follow here.
    interactive = parser.parse_interactive(text)
    with suppress(UnexpectedInput):
        for _ in interactive.iter_parse():
            pass
    return cast(set[str], interactive.accepts())  # type: ignore[no-untyped-call]


def _found(text: str, at: int) -> str:
    match = re.compile(r"[\w.+-]{1,40}|[({\[][^\n]{0,30}|\S").match(text, at)
    return repr(match[0].rstrip()) if match else "the end of the file"


def shortened(text: str) -> str:
    """Return the text on one line and not too long for a message."""
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else flat[:57] + "..."


def is_finding(property: str) -> bool:
    """Return whether a property of a variable is JavaBayes' `observed STATE`."""
    words = property.strip().strip('"').split(maxsplit=1)
    return len(words) == 2 and words[0].lower() == "observed"


def note_findings(names: Sequence[str], reading: Reading | None) -> None:
    """Note the variables with findings that a file stores, which are no evidence of whoever reads its network."""
    if names and reading is not None:
        listed = shortened(", ".join(dict.fromkeys(names)))
        reading.notes.append(f"findings that are stored in the file are no evidence here: {listed}")


def hinted(name: str, known: Iterable[str]) -> str:
    """Return `nearest(name, known)` for the first 100 characters only: the search is quadratic in the length."""
    return nearest(name[:100], known)


# A quoted name, or a run without spaces and commas in which a pair of brackets and its content hold together.
# Repetition is possessive (`*+`, `++`) wherever a backtracking match could take something back, so no input is slow.
_WORD = re.compile(r'"[^"]*+"|(?:[^\s,|()"]++|\([^()]*+\)|[()])++')
_PART = re.compile(r'(?:"[^"]*+"|\([^()]*+\)|[^,"(]++|\()++')


def unquoted(name: str) -> str:
    """Return a name without its quotes; without quotes, runs of spaces become one space."""
    name = name.strip()
    return name[1:-1] if name[:1] == '"' else " ".join(name.split())


def names_in_list(text: str, number: int) -> list[str]:
    """Return the names in a list that is expected to have `number` of them.

    Tools separate names by commas, by spaces or by both, and some write names with spaces in them without quotes:
    commas separate where there are any, unless only spaces give the right number.
    """
    parts = [part.strip() for part in _PART.findall(text) if part.strip()]
    words = _WORD.findall(text)
    by_commas = all('"' not in part or _WORD.fullmatch(part) for part in parts)
    if by_commas and (len(parts) == number or (len(words) != number and len(parts) > 1)):
        return [unquoted(part) for part in parts]
    return [unquoted(word) for word in words]


def scope_of(source: SourceText, token: Token, known: Container[str]) -> tuple[str, list[str]]:
    """Return child and parents of `(child | parents)`; without a bar the first name is the child.

    source: text that `token` is part of, for errors.
    token: the scope with its brackets.
    known: names of variables; a known name with spaces and no quotes is one name.
    Raises ModelError for no child, more than one, or a second bar.
    """
    bars = [match.start() for match in re.finditer(r'"[^"]*+"|\|', token) if match[0] == "|"]
    if bars:
        children = _names_in_scope(token[1 : bars[0]], known)
        parents = _names_in_scope(token[bars[0] + 1 : -1], known)
    else:
        names = _names_in_scope(token[1:-1], known)
        children, parents = names[:1], names[1:]
    if len(bars) > 1 or len(children) != 1:
        count = f"{len(bars)} '|'" if len(bars) > 1 else f"{len(children)} variables before the '|'"
        raise ModelError(
            f"found {count} in {shortened(token)}, expected (child | parents) with one child", source.place_of(token)
        )
    return children[0], parents


def _names_in_scope(text: str, known: Container[str]) -> list[str]:
    names: list[str] = []
    for part in _PART.findall(text):
        whole = unquoted(part)
        names += [whole] if '"' not in part and whole in known else map(unquoted, _WORD.findall(part))
    return names


def assembled(
    file: str,
    titles: Sequence[str],
    variables: Sequence[DraftVariable],
    tables: Callable[[Shapes], list[DraftTable]],
    reading: Reading | None = None,
) -> Network:
    """Return the Bayesian network of a file; raises ModelError as `build_network` does.

    file: name of the file, which gives the title where it has none.
    titles: titles in the file, of which the first counts.
    variables: in the order of the file.
    tables: reads the tables, given the shapes of the variables.
    reading: options of `build_network`.
    """
    shapes = Shapes({variable.name: variable.states for variable in variables})
    name = titles[0] if titles else PurePath(file).name.partition(".")[0]
    # build_network refuses bad variables with a better error than their tables would give.
    read = tables(shapes) if _well_formed(variables) else []
    return build_network(name, "bayes", variables, read, Place(file), reading)


def _well_formed(variables: Sequence[DraftVariable]) -> bool:
    """Return True if all variables have states and no name stands twice."""
    names = [variable.name for variable in variables]
    lists = [names, *(variable.states for variable in variables)]
    return all(listed and len(set(listed)) == len(listed) for listed in lists)


class Shapes:
    """Shapes of tables by names of variables; limits the tables that a file asks for without writing them out."""

    def __init__(self, states: Mapping[str, Sequence[str]]) -> None:
        self.states = states
        self._filled = 0

    def of(self, scope: Sequence[str], what: str, place: Place) -> tuple[int, ...]:
        """Return the shape of a table.

        scope: names of its variables.
        what, place: the table in errors.
        Raises ModelError for an unknown variable or a table that is too large.
        """
        for name in scope:
            if name not in self.states:
                hint = hinted(name, self.states)
                raise ModelError(f"{what}: unknown variable {shortened(name)!r}{hint}", place)
        shape = tuple(len(self.states[name]) for name in scope)
        table_size(shape, what, place)
        return shape

    def fill(self, shape: Sequence[int], what: str, place: Place) -> npt.NDArray[np.float64]:
        """Return float64 ones, flat; raises ModelError if all tables filled so far exceed MAX_FILLED entries together.

        shape: sizes of the axes.
        what, place: the table in errors.
        """
        self._filled += math.prod(shape)
        if self._filled > MAX_FILLED:
            raise ModelError(
                f"{what} is not written out and would have {math.prod(shape):,} entries; allowed are {MAX_FILLED:,} "
                "for all such tables of a file together",
                place,
            )
        return np.ones(math.prod(shape))


def numbers_in(source: SourceText, *tokens: Token) -> npt.NDArray[np.float64]:
    """Return the numbers in tokens, separated by spaces, commas and brackets; raises ModelError for anything else."""
    lost: list[str] = []
    try:
        numbers = parse_numbers(_spaced(" ".join(tokens)), lost)
    except BadNumber:
        # Only now one by one: joined text has no offsets in the file.
        for token in tokens:
            try:
                parse_numbers(_spaced(token))
            except BadNumber as bad:
                raise ModelError(
                    f"found {shown(bad.word)}, expected a number", source.place_in(token, bad.offset)
                ) from None
        raise  # pragma: no cover - one of them is the bad one
    if lost:
        token = next(token for token in tokens if lost[0] in token)
        note_lost(lost, source.place_in(token, token.index(lost[0])), source.reading)
    return numbers


# By character: whether it is part of an entry of a table: neither bracket nor comma, nor space as `str.split` takes it.
_IN_ENTRY = bytes(character not in b" \t\n\r\v\f\x1c\x1d\x1e\x1f,()" for character in range(256))
_NO_BRACKET = bytes(set(range(256)) - set(b"()"))


def nests_as(text: str, shape: Sequence[int]) -> bool:
    """Return whether the brackets around the entries of a table nest as its shape says, or are one pair around all.

    text: the entries, as many as the shape has, and nothing but numbers.
    shape: sizes of the axes, the last one fastest.
    """
    outline = b"()"
    for size in reversed(shape[:-1]):
        outline = b"(%b)" % (outline * size)
    characters = b" " + text.encode()
    found = characters.translate(None, _NO_BRACKET)
    if found != outline:
        return found == b"()"
    # Entries before each bracket, by where they begin: a table may have millions of them.
    in_entry = np.frombuffer(characters.translate(_IN_ENTRY), np.bool_)
    codes = np.frombuffer(characters, np.uint8)
    brackets = np.flatnonzero((codes == ord("(")) | (codes == ord(")")))
    before = np.searchsorted(np.flatnonzero(in_entry[1:] > in_entry[:-1]), brackets)
    is_row = codes[brackets[:-1]] < codes[brackets[1:]]
    return bool((np.diff(before) == np.where(is_row, shape[-1], 0)).all())


def _spaced(text: str) -> str:
    return text.replace(",", " ").replace("(", " ").replace(")", " ")
