"""How a table of text is written (its separator, header and columns, found in its first lines), and its bytes as UTF-8.

Main class: Dialect; main function: `dialect_of`, called by `junctor.evidence.delimited`. What may be read in two ways
is refused, since a table that is read wrongly looks like any other.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, NamedTuple

from junctor.evidence.files import BLANKS
from junctor.model.errors import EvidenceError

# In the order in which they are tried.
_SEPARATORS = (",", ";", "\t", "|", BLANKS)
_IN_WORDS = {"\t": "tabs", BLANKS: "blanks"}
# What Excel takes for the separator of a file, whatever its language.
_EXCEL_SEPARATOR = re.compile(r"""(['"]?)sep=([^\w\s"']|[\t ])\1\s*""", re.I)
# Netica marks its case files so: `// ~->[CASE-1]->~`.
_COMMENT = "//"
# So many first cells that all differ are names of rows, not states.
_DIFFERENT = 3
_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_BLOCK_BYTES, _LINE_BYTES = 2**20, 2**24
_LINE_END = re.compile(rb"\r\n?|\n")
_RUN, _AT_ENDS = re.compile(rb"[\t ]+"), re.compile(rb"(?<=[\r\n])[\t ]+|[\t ]+(?=[\r\n])")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a table of text is written.

    separator: a character, or BLANKS for any number of blanks and tabs.
    before: lines before the header.
    names: of the columns, without that of names of rows.
    first: position of the first of these columns in a row: 1 behind names of rows.
    width: cells of a row.
    has_rows: whether there is a row that is not empty below the header; False where that has not been seen.
    """

    separator: str
    before: int
    names: tuple[str, ...]
    first: int
    width: int
    has_rows: bool


# Names of columns, and cells of all rows.
_Reading = tuple[tuple[str, ...], tuple[str, ...]]


class _Columns(NamedTuple):
    """What the first rows say of the columns; fields as of Dialect."""

    names: tuple[str, ...]
    first: int
    width: int
    has_rows: bool


def dialect_of(
    lines: Sequence[str], is_whole: bool, own: str | None, given: str | None, known: Container[str]
) -> Dialect | None:
    """Return how a table is written; None for lines without a header.

    lines: its first ones, with their ends.
    is_whole: whether there are no others.
    own: the separator of its format, which it has if it is in the header; None where any may be.
    given: the one that it has whatever it looks like, None for one that is found.
    known: names that columns may have.
    Raises EvidenceError where columns may be separated in two ways.
    """
    start, told = _preamble(lines)
    given = given or told
    if hashes := _comments(lines[start:]):
        above, below = lines[start + hashes - 1], lines[start + hashes :]
        separator, columns = _table(below, is_whole, own, given, known)
        # A header may begin so as well: `#id,smoke`.
        is_header = len(_cells([above], separator, True)[0]) == len(columns.names)
        is_header &= not _are_known(columns.names, known)
        start += hashes - is_header
        start += next((number for number, line in enumerate(lines[start:]) if line.strip()), 0)
    if start == len(lines):
        return None
    separator, columns = _table(lines[start:], is_whole, own, given, known)
    return Dialect(separator, start, *columns)


def _preamble(lines: Sequence[str]) -> tuple[int, str | None]:
    """Return the lines before the table that are comments or empty, and the separator that one of them names."""
    told = None
    for number, line in enumerate(lines):
        named = None if told else _EXCEL_SEPARATOR.fullmatch(line)
        if named:
            told = named[2]
        elif line.strip() and not line.startswith(_COMMENT):
            return number, told
    return len(lines), told


def _comments(lines: Sequence[str]) -> int:
    """Return the number of lines up to the last of those at the beginning that start with `#`, if others follow."""
    found = 0
    for number, line in enumerate(lines):
        if line.startswith("#"):
            found = number + 1
        elif line.strip():
            return found
    return 0


def _table(
    lines: Sequence[str], is_whole: bool, own: str | None, given: str | None, known: Container[str]
) -> tuple[str, _Columns]:
    """Return the separator and the columns of a table that begins with its header."""
    separator = given or _found(lines, is_whole, own, known)
    rows = _cells(lines, separator, is_whole)
    # Rows of several widths are an error, which reading them explains.
    return separator, _columns(rows) or _Columns(tuple(rows[0]), 0, len(rows[0]), True)


def _found(lines: Sequence[str], is_whole: bool, own: str | None, known: Container[str]) -> str:
    """Return the separator that a header and the rows below it have."""
    if own is not None and len(_cells(lines[:1], own, True)[0]) > 1:
        return own
    usual = own or _SEPARATORS[0]
    if lines[0].strip().strip('"') in known:
        return usual
    tables = {separator: _cells(lines, separator, is_whole) for separator in _SEPARATORS}
    tables = {separator: rows for separator, rows in tables.items() if len(rows[0]) > 1}
    readings = {separator: reading for separator, rows in tables.items() if (reading := _reading(rows))}
    if not readings:
        # By the header alone, whose names may have blanks in them.
        heads = {separator: rows[0] for separator, rows in tables.items()}
        readings = {each: (tuple(row), ()) for each, row in heads.items() if each != BLANKS or _are_known(row, known)}
    return _only(readings, known) or usual


def _reading(rows: Sequence[Sequence[str]]) -> _Reading | None:
    """Return the names and cells of a table, None for rows of several widths."""
    columns = _columns(rows)
    if columns is None:
        return None
    own = slice(columns.first, columns.first + len(columns.names))
    return columns.names, tuple(cell for row in rows[1:] for cell in row[own])


def _only(readings: Mapping[str, _Reading], known: Container[str]) -> str | None:
    """Return the separator of the only reading, or of the only one with known names; None without any."""
    # Two ways to the same cells are one: a tab is a blank as well.
    ways: dict[_Reading, str] = {}
    for separator, reading in readings.items():
        ways.setdefault(reading, separator)
    found = [*ways.values()]
    likely = [separator for (names, _), separator in ways.items() if _are_known(names, known)]
    if len(found) > 1 and len(likely) != 1:
        raise EvidenceError(_ambiguous(found))
    return (likely if len(found) > 1 else [*found, None])[0]


def _are_known(names: Iterable[str], known: Container[str]) -> bool:
    """Return whether all names are known, or are `variable=state` of a known one."""
    cuts = ([name, *(name[:i] for i, sign in enumerate(name) if sign == "=")] for name in names)
    return all(any(cut.strip() in known for cut in each) for each in cuts)


def _ambiguous(separators: Sequence[str]) -> str:
    several = " or by ".join(_IN_WORDS.get(each, repr(each)) for each in separators)
    return f"columns may be separated by {several}: name what separates them (--separator, in Python separator=)"


def _cells(lines: Sequence[str], separator: str, is_whole: bool) -> list[list[str]]:
    """Return the cells of the lines, one row at the least; of lines that others follow, without the last row."""
    text: Iterable[str] = lines
    if separator == BLANKS:
        tabs = _Tabs().replaced("".join(lines).encode(errors="surrogateescape"), True)
        text = io.StringIO(tabs.decode(errors="surrogateescape"), newline="")
        separator = "\t"
    rows: list[list[str]] = []
    try:
        rows += (row for row in csv.reader(text, delimiter=separator) if row)
    except csv.Error:
        # Reading all of it says what is wrong.
        is_whole = True
    return (rows if is_whole else rows[:-1]) or rows[:1] or [[""]]


def _columns(rows: Sequence[Sequence[str]]) -> _Columns | None:
    """Return the columns of a header and rows below it, None for rows of several widths."""
    header, body = tuple(rows[0]), rows[1:]
    widths = {len(row) for row in body} or {len(header)}
    width = widths.pop()
    if widths or width not in (len(header), len(header) + 1):
        return None
    are_names = _are_row_names([row[0] for row in body])
    is_empty = not any(row[-1].strip() for row in body)
    if width > len(header):
        # R leaves the names of rows out of the header; others end every row with a separator.
        return _Columns(header, int(are_names), width, True) if are_names != is_empty else None
    # R and pandas write them without a name.
    first = int(width > 1 and not header[0].strip() and are_names)
    # A separator at the end of every line.
    is_ended = width - first > 1 and not header[-1].strip() and is_empty
    return _Columns(header[first : width - is_ended], first, width, bool(body))


def _are_row_names(cells: Sequence[str]) -> bool:
    """Return whether first cells are names of rows: all different, and numbers or more than a few."""
    different = len(set(cells)) == len(cells) and all(cell.strip() for cell in cells)
    return different and (len(cells) >= _DIFFERENT or all(cell.isascii() and cell.isdecimal() for cell in cells))


def encoding_of(start: bytes) -> str | None:
    """Return the encoding that a byte order mark tells, None for UTF-8; `start`: first two bytes of a file."""
    return _MARKS.get(start)


class _Tabs:
    """Puts a tab in place of any number of blanks and tabs, but in quotes and at the ends of lines."""

    def __init__(self) -> None:
        self._in_quotes = False

    def replaced(self, lines: bytes, is_last: bool) -> bytes:
        """Return lines that follow on those before; `is_last`: whether none follow."""
        pieces = lines.split(b'"')
        outside = range(self._in_quotes, len(pieces), 2)
        if not self._in_quotes:
            pieces[0] = pieces[0].lstrip(b"\t ")
        self._in_quotes ^= len(pieces) % 2 == 0
        if is_last and not self._in_quotes:
            pieces[-1] = pieces[-1].rstrip(b"\t ")
        for number in outside:
            pieces[number] = _RUN.sub(b"\t", _AT_ENDS.sub(b"", pieces[number]))
        return b'"'.join(pieces)


class Recoded(io.RawIOBase):
    """A file as UTF-8, with empty lines in place of those before the header, and tabs in place of blanks.

    file: opened; it is closed with this one.
    encoding: of its bytes, None for UTF-8.
    before: lines before the header.
    blanks: whether blanks separate.
    """

    def __init__(self, file: IO[bytes], encoding: str | None, before: int, blanks: bool) -> None:
        self._file = file
        self._blocks = self._recoded(encoding, before, blanks)
        self._left = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a part of the buffer, none at the end."""
        while not self._left:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._left = block
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count

    def close(self) -> None:
        """Close the file as well."""
        self._file.close()
        super().close()

    def _recoded(self, encoding: str | None, before: int, blanks: bool) -> Iterator[bytes]:
        tabs = _Tabs()
        for lines, is_last in _in_lines(_in_utf8(self._file, encoding)):
            while before and lines:
                end = _LINE_END.search(lines)
                yield b"\n"
                lines = lines[end.end() :] if end else b""
                before -= 1
            yield tabs.replaced(lines, is_last) if blanks else lines


def _in_utf8(file: IO[bytes], encoding: str | None) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)() if encoding else None
    while block := file.read(_BLOCK_BYTES):
        yield block if decoder is None else decoder.decode(block).encode()
    if decoder is not None:
        decoder.decode(b"", final=True)


def _in_lines(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield blocks of whole lines, or of a part of one that is far too long, and whether it is the last."""
    rest = b""
    for block in blocks:
        data = rest + block
        # The last byte may be half of a line end.
        end = 1 + max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1))
        if not end and len(data) > _LINE_BYTES:
            end = len(data)
        if end:
            yield data[:end], False
        rest = data[end:]
    yield rest, True
