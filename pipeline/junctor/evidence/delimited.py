"""Evidence tables in CSV, TSV and other text, also gzipped: a header, quotes as in RFC 4180.

Main class: DelimitedTable, used by `junctor.evidence.read`; `dialect` finds how a file is written. Arrow parses; only
after an error is the file read again with Python's csv module, for what Arrow does not report (the line of an error, an
unclosed quote).
"""

from __future__ import annotations

import csv
import gzip
import io
from collections import deque
from collections.abc import Callable, Container, Generator, Iterator, Sequence
from contextlib import closing, suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn, cast

import numpy as np
import pyarrow as pa

from junctor.evidence.column_tables import RowPlaces
from junctor.evidence.dialect import Dialect, Recoded, dialect_of, encoding_of
from junctor.evidence.files import BLANKS, open_bytes
from junctor.model.errors import EvidenceError, Place
from junctor.runtime.machine import usable_cores
from junctor.runtime.remote import AnyPath
from junctor.runtime.threads import ahead

# Longest line, unless the header says more; so many of them are read at a time.
_BLOCK_BYTES = 2**20
# Of them, those that are read at a time; bytes of pieces that wait to be parsed.
_BLOCKS, _AHEAD = 4, 2**27
# Line ends that are looked at for one outside of all cells.
_LINE_ENDS = 100
_QUOTE = ord('"')
# First bytes of gzip, as text in which a byte that is not UTF-8 is a lone surrogate.
_GZIP = "\x1f\udc8b"
# Byte order mark of UTF-8.
_MARK = b"\xef\xbb\xbf"
# Bytes of text that are looked at together.
_CACHED = 2**17
# Longest line: a file without line ends would otherwise be loaded whole.
_LINE_CHARACTERS = 2**24
# Lines that say how a file is written, and their characters, but for those of the header and the next line.
_FIRST_LINES, _FIRST_CHARACTERS = 100, 2**16
# Encoding of a file that was not opened yet.
_UNKNOWN = ""
# No line of a file can be this one: text has no NUL characters.
_SENTINEL = "\x00end of file\x00"
_Records = Generator[tuple[int, list[str]], None, None]
# Every cell is text (`01` is not `1`), as a dictionary, so that only distinct cells become Python strings.
_TEXT = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True, slots=True)
class _Columns:
    """Names of the columns of a file, of those that are wanted and of those that come as they are."""

    names: list[str]
    wanted: list[str]
    plain: list[str]


@dataclass(frozen=True, slots=True)
class _Block:
    """A piece of a file: whether it has the header, and whether it is known to end with a line."""

    data: bytes
    is_start: bool
    is_whole: bool

    def size(self) -> int:
        """Return the number of bytes."""
        return len(self.data)


class _Piece(NamedTuple):
    """Whole lines of a file: where they start, their bytes, and the rows among them."""

    start: int
    bytes: int
    rows: int


class DelimitedTable:
    """A file of text with columns; opening it reads its first lines only.

    own: separator of its format, which it has if that is in the header; None where any may be.
    separator: that it has in any case, None for the one that its first lines show.
    known: names that columns may have.
    """

    partition = 0

    def __init__(
        self, path: AnyPath, own: str | None, separator: str | None = None, known: Container[str] = ()
    ) -> None:
        self.path = path
        self._encoding: str | None = _UNKNOWN
        self._dialect: Dialect | None = None
        empty, lines, is_whole = self._first_lines()
        dialect = self._found(lines, empty + 1, lambda: dialect_of(lines, is_whole, own, separator, known))
        self._header_line = empty + dialect.before + 1
        # Empty lines are passed over in any case.
        before = self._header_line - 1 if any(map(str.strip, lines[: dialect.before])) else 0
        self._dialect = replace(dialect, before=before)
        self.delimiter = "\t" if dialect.separator == BLANKS else dialect.separator
        self._width, self._first = dialect.width, dialect.first
        # An empty line is a row where there is one column.
        self._has_rows = dialect.has_rows or ((self._width == 1 or not is_whole) and self._any_row())
        # What a cell is to others; batches have it as a dictionary.
        self.schema: pa.Schema = pa.schema([(name, pa.string()) for name in dialect.names])
        self._block_bytes = max(_BLOCK_BYTES, 8 * sum(map(len, dialect.names)))

    def _found(self, lines: Sequence[str], first: int, dialect: Callable[[], Dialect | None]) -> Dialect:
        """Return the dialect of the first lines; raises EvidenceError with the place; first: number of the first."""
        if lines and "\0" in lines[0]:
            raise self._error(
                "found a NUL character, which no text has: is it UTF-16 without a byte order mark? Convert it to UTF-8",
                first,
            )
        try:
            found = dialect()
        except EvidenceError as error:
            raise self._error(str(error), first) from None
        if found is None:
            raise self._error("the file is empty, expected a header with names of variables")
        return found

    def _first_lines(self) -> tuple[int, list[str], bool]:
        """Return the number of empty lines at the start, the first lines behind them, and whether these are all."""
        empty, lines, size = 0, list[str](), 0
        with closing(self._lines(strict_text=True)) as found:
            for line in found:
                if not lines and not line.strip():
                    empty += 1
                    continue
                lines.append(line)
                size += len(line)
                if len(lines) >= _FIRST_LINES or (size > _FIRST_CHARACTERS and len(lines) > 2):
                    return empty, lines, False
        return empty, lines, True

    def batches(
        self, positions: Sequence[int], plain: Sequence[int] = (), threads: int = 1, groups: range | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns at `positions`, in that order, in blocks of about 4 MiB of text.

        positions: of the columns.
        plain: positions of those whose texts are mostly different, which do not come as dictionaries.
        threads: that parse.
        groups: pieces of whole lines that are read, None for all of the file.
        """
        if not self._has_rows:
            return
        names = [str(position) for position in range(self._width)]
        own = names[self._first :]
        columns = _Columns(names, [own[i] for i in positions], [own[i] for i in plain])
        if groups is not None:
            pieces = ahead(partial(self._parsed, columns), self._pieces(groups), threads, _Block.size, _AHEAD)
            with closing(pieces):
                for block, batches in pieces:
                    found = self._parse_or_explain(columns, block.data, block.is_start) if batches is None else batches
                    yield from found
            return
        # Blocks of whole lines are parsed in threads. From the first one on that may not be whole, rows are told apart
        # quote by quote.
        done = 0
        with closing(ahead(partial(self._parsed, columns), self._blocks(), threads, _Block.size, _AHEAD)) as blocks:
            for block, batches in blocks:
                if batches is None:
                    break
                yield from batches
                done += block.size()
            else:
                return
        yield from self._in_order(columns, done)

    @property
    def groups(self) -> list[int] | None:
        """Rows of pieces of whole lines; None where a row has to be looked for quote by quote, or from the start."""
        return None if self._lines_of_pieces is None else [piece.rows for piece in self._lines_of_pieces]

    @cached_property
    def _lines_of_pieces(self) -> list[_Piece] | None:
        # All of it is looked through, at a fifth of the cost of parsing. An object of a store would be fetched twice.
        if not isinstance(self.path, Path) or self.path.suffix.lower() == ".gz" or self._is_recoded:
            return None
        found, start = list[_Piece](), 0
        with closing(ahead(self._counted, self._blocks(), usable_cores(), _Block.size, _AHEAD)) as blocks:
            for size, rows in blocks:
                if rows is None:
                    return None
                found.append(_Piece(start, size, rows))
                start += size
        return found

    def spread(self, count: int) -> RowPlaces:
        """Return pieces of whole lines at about so many places of the file, and its number of rows by their bytes."""
        if not self._has_rows:
            return RowPlaces(self, (), 0)
        size = self.path.stat().st_size
        is_zipped = self.path.suffix.lower() == ".gz"
        # Neither has places of its own.
        from_start = is_zipped or self._is_recoded
        found, read = self._start(is_zipped) if from_start else self._pieces_over(count, size)
        counts = [self._counted(block)[1] for _, block in found]
        # Where rows end elsewhere than lines do, there are about as many.
        pairs = zip(found, counts, strict=True)
        lines = [block.data.count(b"\n") if rows is None else rows for (_, block), rows in pairs]
        rows = round(sum(lines) * size / max(1, read))
        if from_start or None in counts:
            return RowPlaces(self, (), rows, read >= size)
        table = copy(self)
        table._lines_of_pieces = [
            _Piece(start, block.size(), lines[number]) for number, (start, block) in enumerate(found)
        ]
        return RowPlaces(table, range(len(found)), rows, read >= size)

    def _pieces_over(self, count: int, size: int) -> tuple[list[tuple[int, _Block]], int]:
        """Return whole lines at so many places of a file of so many bytes, with their starts, and the bytes of all."""
        found, places = list[tuple[int, _Block]](), 1 if size <= self._bytes_at_once() else count
        most = min(self._bytes_at_once(), -(-size // places))
        with self._open() as raw:
            for number in range(places):
                raw.seek(start := size * number // places)
                data = raw.read(most)
                begin = data.find(b"\n") + 1 if number else 0
                # The last line of the file may have no end.
                end = len(data) if start + len(data) == size else begin + _end_of_lines(data[begin:])
                found.append((start + begin, _Block(data[begin:end], number == 0, end > begin)))
        return found, sum(block.size() for _, block in found)

    def _start(self, is_zipped: bool) -> tuple[list[tuple[int, _Block]], int]:
        """Return the first lines of a file as they are parsed, and about how many of its bytes they are."""
        with self.path.open("rb") as raw:
            file = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if is_zipped else cast(IO[bytes], raw)
            with self._as_parsed(file) as text:
                data = text.read(self._bytes_at_once())
                end = _end_of_lines(data)
                return [(0, _Block(data[:end], True, end > 0))], raw.tell()

    def _counted(self, block: _Block) -> tuple[int, int | None]:
        """Return the bytes and the rows of a block; None for rows that end elsewhere than lines do."""
        data = block.data
        lines_end = (
            block.is_whole and _lines_are_short(data, self._block_bytes) and _quotes_are_pairs(data, self.delimiter)
        )
        # A carriage return alone ends a row as well.
        if not lines_end or data.count(b"\r") != data.count(b"\r\n"):
            return len(data), None
        text = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(text == ord("\n"))
        if not data.endswith(b"\n"):
            ends = np.append(ends, len(data))
        starts = np.append(0, ends[:-1] + 1)
        # As bytes: as booleans it takes ten times as long.
        if b'"' in data and np.bitwise_xor.reduceat((text == _QUOTE).view(np.uint8), starts).any():
            return len(data), None
        is_row = ends > starts + (text[ends - 1] == ord("\r"))
        # As Arrow is told to.
        is_row |= self._width == 1
        is_row[: self._header_line if block.is_start else 0] = False
        return len(data), int(np.count_nonzero(is_row))

    def _pieces(self, groups: range) -> Iterator[_Block]:
        """Yield some of the pieces of whole lines."""
        pieces = self._lines_of_pieces or []
        with self._open() as raw:
            for number in groups:
                raw.seek(pieces[number].start)
                yield _Block(raw.read(pieces[number].bytes), number == 0, True)

    def _blocks(self) -> Iterator[_Block]:
        """Yield the file in pieces of whole lines, as long as that is easy to see."""
        rest, is_start = b"", True
        with self._open() as raw:
            while data := raw.read(self._bytes_at_once()):
                data = rest + data
                end = _end_of_lines(data)
                if end == 0:
                    yield _Block(data, is_start, False)
                    return
                yield _Block(data[:end], is_start, True)
                rest, is_start = data[end:], False
        if rest:
            yield _Block(rest, is_start, True)

    def _bytes_at_once(self) -> int:
        return _BLOCKS * self._block_bytes

    def _parsed(self, columns: _Columns, block: _Block) -> tuple[_Block, list[pa.RecordBatch] | None]:
        """Return a block with its rows, None where they have to be told apart quote by quote, or cannot be read."""
        lines_end = block.is_whole and _lines_are_short(block.data, self._block_bytes)
        if not lines_end or not _quotes_are_pairs(block.data, self.delimiter):
            return block, None
        try:
            return block, self._parse(columns, block.data, block.is_start)
        except pa.ArrowInvalid:
            return block, None

    def _parse(self, columns: _Columns, data: bytes, is_start: bool) -> list[pa.RecordBatch]:
        """Return the rows of some bytes; raises ArrowInvalid."""
        import pyarrow.csv

        # Bytes, never a Python file: a thread of Arrow that still reads one when the process ends aborts it.
        table = pyarrow.csv.read_csv(pa.BufferReader(data), *self._read_options(columns, is_start, len(data) + 1))
        batches: list[pa.RecordBatch] = (table.select(columns.wanted) if columns.wanted else table).to_batches()
        return batches

    def _in_order(self, columns: _Columns, done: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the file from a byte on, at which one starts; raises EvidenceError for damaged ones."""
        rest, is_open, most = b"", False, _BLOCKS * self._block_bytes
        with self._open() as raw:
            _skip(raw, done, self._is_recoded)
            while data := raw.read(self._bytes_at_once()):
                data = rest + data
                end, is_open = _end_of_rows(data, ord(self.delimiter))
                rest = data[end:]
                if len(rest) > most or not _lines_are_short(data[:end], self._block_bytes):
                    self._explain("a row is longer")
                yield from self._parse_or_explain(columns, data[:end], done == 0)
                done += end
        batches = self._parse_or_explain(columns, rest, done == 0)
        if is_open:
            self._refuse_open_quote()
        yield from batches

    def _parse_or_explain(self, columns: _Columns, data: bytes, is_start: bool) -> list[pa.RecordBatch]:
        try:
            return self._parse(columns, data, is_start) if data else []
        except pa.ArrowInvalid as error:
            self._explain(error)

    def place_of(self, row: int) -> Place:
        """Return the file, and the line on which a row (from 0, the header not counted) starts unless it is unclear."""
        line = None
        with closing(self._rows()) as rows, suppress(EvidenceError):
            line = next((line for i, (line, _) in enumerate(rows) if i == row), None)
        return Place(str(self.path), line)

    def _read_options(self, columns: _Columns, is_start: bool, block_bytes: int) -> Sequence[Any]:
        import pyarrow.csv

        names = columns.names
        return (
            # Numbers as names, since those of the file may repeat. The header is then a row to skip.
            pyarrow.csv.ReadOptions(
                use_threads=False,
                block_size=block_bytes,
                column_names=names,
                skip_rows=self._header_line - 1 if is_start else 0,
                skip_rows_after_names=1 if is_start else 0,
            ),
            # Empty lines are skipped, except in a table of one column, where they are rows without observation.
            pyarrow.csv.ParseOptions(
                delimiter=self.delimiter, newlines_in_values=True, ignore_empty_lines=len(names) > 1
            ),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, _TEXT) | dict.fromkeys(columns.plain, pa.string()),
                include_columns=columns.wanted or names[:1],
                null_values=[],
            ),
        )

    def _explain(self, error: object) -> NoReturn:
        """Raise EvidenceError with the line, what was found there and what was expected."""
        expected = self._width
        # Bytes that are not UTF-8 come first: they explain odd numbers of cells as well.
        for _ in self._lines(strict_text=True):
            pass
        for line, cells in self._rows():
            if len(cells) != expected:
                hint = ": is a quote not closed?" if any("\n" in cell for cell in cells) else ""
                raise self._error(f"found {len(cells)} cells, expected {expected} as in the header{hint}", line)
        raise self._error(f"cannot be read as CSV ({error}); a row may have up to 1 MiB, and quotes must be closed")

    def _refuse_open_quote(self) -> None:
        """Raise EvidenceError where a quote is never closed: it swallows a line that is appended to the file."""
        *_, (line, cells) = deque(self._records(end=[_SENTINEL]), maxlen=1)
        if cells != [_SENTINEL]:
            raise self._error('a cell starts with a quote (") that is not closed before the file ends', line)

    def _rows(self) -> _Records:
        """Yield line number and cells of each row, without the header."""
        for line, cells in self._records():
            if line > self._header_line and (cells or self._width == 1):
                yield line, cells or [""]

    def _any_row(self) -> bool:
        with closing(self._rows()) as rows, suppress(EvidenceError):
            return next(rows, None) is not None
        # Something is there; reading it raises the error.
        return True

    def _records(self, end: Sequence[str] = ()) -> _Records:
        """Yield the line on which each record starts, and its cells; empty lines are records.

        end: lines to append to the file.
        Raises EvidenceError for cells that are too long.
        """
        # Of the whole process: raised to what a row may have, never lowered.
        csv.field_size_limit(max(csv.field_size_limit(), _BLOCK_BYTES))
        with closing(self._lines(strict_text=False)) as lines:
            records = csv.reader(chain(lines, end), delimiter=self.delimiter)
            start = 1
            try:
                for cells in records:
                    yield start, cells
                    start = records.line_num + 1
            except csv.Error as error:
                found = "more than 1 MiB" if "field limit" in str(error) else str(error)
                raise self._error(f"{found} in the row that starts here: is a quote not closed?", start) from error

    def _lines(self, strict_text: bool) -> Generator[str, None, None]:
        with self._open() as raw:
            text = io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="")
            number = 0
            while line := text.readline(_LINE_CHARACTERS):
                number += 1
                if len(line) == _LINE_CHARACTERS:
                    raise self._error(f"a line has more than {_LINE_CHARACTERS:,} characters", number)
                if strict_text and not line.isascii():
                    self._refuse_other_encodings(line, number)
                yield line

    def _refuse_other_encodings(self, line: str, number: int) -> None:
        if number == 1 and line.startswith(_GZIP):
            raise self._error(
                "found a file compressed by gzip whose name does not end in .gz: rename it, or decompress it"
            )
        for column, character in enumerate(line, 1):
            # surrogateescape keeps a bad byte as a lone surrogate of this range.
            if "\udc80" <= character <= "\udcff":
                byte = ord(character) - 0xDC00
                raise EvidenceError(
                    f"found the byte 0x{byte:02x}, which is not UTF-8 text: convert the file to UTF-8 (of Latin-1, "
                    "iconv -f latin1 -t utf-8 does so)",
                    Place(str(self.path), number, column),
                )

    def _open(self) -> IO[bytes]:
        file = open_bytes(self.path)
        if self._encoding == _UNKNOWN:
            self._encoding = encoding_of(file.read(2))
            file.seek(0)
        return self._as_parsed(file)

    def _as_parsed(self, file: IO[bytes]) -> IO[bytes]:
        if not self._is_recoded:
            return file
        before, blanks = (0, False) if (told := self._dialect) is None else (told.before, told.separator == BLANKS)
        return cast(IO[bytes], io.BufferedReader(Recoded(file, self._encoding, before, blanks)))

    @property
    def _is_recoded(self) -> bool:
        """Whether what is parsed are other bytes than those of the file."""
        told = self._dialect
        return self._encoding is not None or (told is not None and (told.before > 0 or told.separator == BLANKS))

    def _error(self, message: str, line: int | None = None) -> EvidenceError:
        return EvidenceError(message, Place(str(self.path), line))


def _skip(file: IO[bytes], count: int, by_reading: bool) -> None:
    """Pass over so many bytes of a file that was opened."""
    if not by_reading:
        file.seek(count)
    while by_reading and count:
        count -= len(file.read(min(count, _BLOCK_BYTES)))


def _end_of_lines(data: bytes) -> int:
    """Return the end of the last line that ends behind an even number of quotes, 0 for none among the last ones."""
    end, text = len(data), np.frombuffer(data, np.uint8)
    for _ in range(_LINE_ENDS):
        end = data.rfind(b"\n", 0, end)
        if end < 0:
            break
        if np.count_nonzero(text[:end] == _QUOTE) % 2 == 0:
            return end + 1
    return 0


def _lines_are_short(data: bytes, most: int) -> bool:
    """Return True if no line has more than `most` bytes."""
    start = 0
    while len(data) - start > most:
        end = data.rfind(b"\n", start, start + most)
        if end < 0:
            return False
        start = end + 1
    return True


def _quotes_are_pairs(data: bytes, delimiter: str) -> bool:
    """Return True if every other quote, from the first on, begins a cell, or is the second one of two in a cell."""
    if b'"' not in data:
        return True
    # Only then are line ends behind an even number of quotes those of rows: `5" pipe` is a cell as well.
    text, odd = np.frombuffer(data, np.uint8), 0
    # In pieces that stay in the cache of a core.
    for start in range(0, len(text), _CACHED):
        quotes = np.flatnonzero(text[start : start + _CACHED] == _QUOTE)
        begins = quotes[odd::2] + start
        before = text[begins - 1]
        fine = (before == ord(delimiter)) | (before == _QUOTE) | (before == ord("\n")) | (before == ord("\r"))
        if not (fine | (begins == 0)).all():
            return False
        odd = (odd + len(quotes)) % 2
    return not odd


def _end_of_rows(data: bytes, delimiter: int) -> tuple[int, bool]:
    """Return where the last row ends whose end is in `data`, which begins with a row; and whether a quote is open."""
    quoted, open_at = _quoted_cells(data, delimiter)
    end = len(data) if open_at is None else open_at
    while True:
        # A carriage return alone ends a row as well, but the last byte may be half of a pair.
        line = max(data.rfind(b"\n", 0, end), data.rfind(b"\r", 0, min(end, len(data) - 1)))
        while quoted and quoted[-1][0] > line:
            quoted.pop()
        if line < 0 or not quoted or quoted[-1][1] < line:
            return line + 1, open_at is not None
        end = quoted[-1][0]


def _quoted_cells(data: bytes, delimiter: int) -> tuple[list[tuple[int, int]], int | None]:
    """Return the places of the first and last quote of each quoted cell, and of a quote that is not closed."""
    quotes = np.flatnonzero(np.frombuffer(data, np.uint8) == _QUOTE).tolist()
    cells: list[tuple[int, int]] = []
    i, begins = 0, (delimiter, ord("\n"), ord("\r"))
    start = len(_MARK) if data.startswith(_MARK) else 0
    while i < len(quotes):
        first = quotes[i]
        i += 1
        # Anywhere else a quote is a character of the cell.
        if first > start and data[first - 1] not in begins:
            continue
        # Two in a row are one character.
        while i + 1 < len(quotes) and quotes[i + 1] == quotes[i] + 1:
            i += 2
        if i == len(quotes):
            return cells, first
        cells.append((first, quotes[i]))
        i += 1
    return cells, None
