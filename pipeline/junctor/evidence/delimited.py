"""Evidence tables in CSV and TSV files, also gzipped: UTF-8, a header, quotes as in RFC 4180.

Main class: DelimitedTable, used by `junctor.evidence.read`. Arrow parses; only after an error is the file read again
with Python's csv module, for what Arrow does not report (the line of an error, an unclosed quote).
"""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import IO, Any

import numpy as np
import pyarrow as pa

from junctor.evidence.files import open_bytes
from junctor.model.errors import EvidenceError, Place
from junctor.runtime.remote import AnyPath
from junctor.runtime.threads import ahead

# Bytes of a block of a stream: Arrow reads up to 32 of them ahead, and a row may be about as long as one.
_BLOCK_BYTES = 2**20
# So many of them at a time for a thread; bytes of those that wait to be parsed.
_BLOCKS, _AHEAD = 4, 2**27
# Line ends that are looked at for one outside of all cells.
_LINE_ENDS = 100
_QUOTE = ord('"')
# Bytes of text that are looked at together.
_CACHED = 2**17
# Longest line: a file without line ends would otherwise be loaded whole.
_LINE_CHARACTERS = 2**24
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


class DelimitedTable:
    """A CSV (`delimiter` ",") or TSV file; opening it reads the header only."""

    partition = 0

    def __init__(self, path: AnyPath, delimiter: str) -> None:
        self.path = path
        self.delimiter = delimiter
        with closing(self._records(strict_text=True)) as records:
            header = next(((line, names) for line, names in records if names), None)
            if header is None:
                raise self._error("the file is empty, expected a header with names of variables")
            self._header_line, names = header
            self._has_rows = _any_row(records, len(names) == 1)
        # What a cell is to others; batches have it as a dictionary.
        self.schema: pa.Schema = pa.schema([(name, pa.string()) for name in names])
        self._block_bytes = max(_BLOCK_BYTES, 8 * sum(map(len, names)))

    def batches(
        self, positions: Sequence[int], plain: Sequence[int] = (), threads: int = 1
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns at `positions`, in that order, in blocks of about 4 MiB of text.

        positions: of the columns.
        plain: positions of those whose texts are mostly different, which do not come as dictionaries.
        threads: that parse.
        """
        if not self._has_rows:
            return
        names = [str(position) for position in range(len(self.schema))]
        columns = _Columns(names, [names[i] for i in positions], [names[i] for i in plain])
        # Blocks of whole lines are parsed in threads. Arrow reads all from the first one that may not be whole on, as a
        # stream, and says what is wrong.
        done = 0
        with closing(ahead(partial(self._parsed, columns), self._blocks(), threads, _Block.size, _AHEAD)) as blocks:
            for block, batches in blocks:
                if batches is None:
                    break
                yield from batches
                done += block.size()
            else:
                return
        with self._open() as raw:
            raw.seek(done)
            counted = _CountedQuotes(raw)
            yield from self._streamed(columns, counted, done == 0)
            if counted.quotes % 2:
                self._refuse_open_quote()

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
        """Return a block with its rows, None where they have to be read as part of a stream."""
        import pyarrow.csv

        lines_end = block.is_whole and _lines_are_short(block.data, self._block_bytes)
        if not lines_end or not _quotes_are_pairs(block.data, self.delimiter):
            return block, None
        options = self._read_options(columns, block.is_start, block.size() + 1)
        try:
            table = pyarrow.csv.read_csv(pa.BufferReader(block.data), *options)
        except pa.ArrowInvalid:
            return block, None
        return block, table.select(columns.wanted).to_batches() if columns.wanted else table.to_batches()

    def place_of(self, row: int) -> Place:
        """Return the file, and the line on which a row (from 0, the header not counted) starts unless it is unclear."""
        line = None
        with closing(self._rows()) as rows, suppress(EvidenceError):
            line = next((line for i, (line, _) in enumerate(rows) if i == row), None)
        return Place(str(self.path), line)

    def _streamed(self, columns: _Columns, source: _CountedQuotes, is_start: bool) -> Iterator[pa.RecordBatch]:
        import pyarrow.csv

        try:
            for batch in pyarrow.csv.open_csv(source, *self._read_options(columns, is_start, self._block_bytes)):
                yield batch.select(columns.wanted)
        except pa.ArrowInvalid as error:
            self._explain(error)

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

    def _explain(self, error: pa.ArrowInvalid) -> None:
        """Raise EvidenceError with the line, what was found there and what was expected."""
        expected = len(self.schema)
        # Bytes that are not UTF-8 come first: they explain odd numbers of cells as well.
        for _ in self._lines(strict_text=True):
            pass
        for line, cells in self._rows():
            if len(cells) != expected:
                raise self._error(f"found {len(cells)} cells, expected {expected} as in the header", line)
        raise self._error(f"cannot be read as CSV ({error}); a row may have up to 1 MiB, and quotes must be closed")

    def _refuse_open_quote(self) -> None:
        """Raise EvidenceError where a quote is never closed: it swallows a line that is appended to the file."""
        *_, (line, cells) = deque(self._records(end=[_SENTINEL]), maxlen=1)
        if cells != [_SENTINEL]:
            raise self._error('a cell starts with a quote (") that is not closed before the file ends', line)

    def _rows(self) -> _Records:
        """Yield line number and cells of each row, without the header."""
        for line, cells in self._records():
            if line > self._header_line and (cells or len(self.schema) == 1):
                yield line, cells or [""]

    def _records(self, strict_text: bool = False, end: Sequence[str] = ()) -> _Records:
        """Yield the line on which each record starts, and its cells; empty lines are records.

        strict_text: whether bytes that are not UTF-8 raise EvidenceError.
        end: lines to append to the file.
        Raises EvidenceError for cells that are too long.
        """
        with closing(self._lines(strict_text)) as lines:
            records = csv.reader(chain(lines, end), delimiter=self.delimiter)
            start = 1
            try:
                for cells in records:
                    yield start, cells
                    start = records.line_num + 1
            except csv.Error as error:
                raise self._error(f"{error} in the row that starts here: is a quote not closed?", start) from error

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
        for column, character in enumerate(line, 1):
            # surrogateescape keeps a bad byte as a lone surrogate of this range.
            if "\udc80" <= character <= "\udcff":
                byte = ord(character) - 0xDC00
                raise EvidenceError(
                    f"found the byte 0x{byte:02x}, which is not UTF-8 text: convert the file to UTF-8",
                    Place(str(self.path), number, column),
                )

    def _open(self) -> IO[bytes]:
        return open_bytes(self.path)

    def _error(self, message: str, line: int | None = None) -> EvidenceError:
        return EvidenceError(message, Place(str(self.path), line))


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


def _any_row(records: _Records, empty_counts: bool) -> bool:
    with suppress(EvidenceError):
        return next((True for _, cells in records if cells or empty_counts), False)
    # Something is there; reading it raises the error.
    return True


class _CountedQuotes(io.RawIOBase):
    """Passes a file on and counts its quotes: an odd number means that one is not closed."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.quotes = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> Any:
        data = self._raw.read(size)
        self.quotes += data.count(b'"')
        return data
