"""Footers of Parquet files: what they say of column chunks. Main function: `chunks_of`, called by readers of tables.

Arrow's own `metadata.row_group(i).column(j)` ends the process where a chunk contradicts the schema, since nothing there
catches what it throws; `write_metadata_file` does for keys that are not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

# Numbers of fields in parquet.thrift (https://github.com/apache/parquet-format).
_GROUPS, _COLUMNS, _META = 4, 1, 3
_ENCODINGS, _PATH, _VALUES, _DECODED, _STORED, _PAGES, _SIZES = 2, 3, 5, 6, 7, 13, 16
# Types of Thrift's compact protocol: booleans have their value in the type, and are bytes in lists; numbers of 16, 32
# and 64 bits are told alike.
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_NUMBERS = (4, 5, 6)
_WORDS = {2, 8}  # PLAIN_DICTIONARY, RLE_DICTIONARY
_DIFFERENCES = {5, 6, 7}  # DELTA_BINARY_PACKED, DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY
_DICTIONARY_PAGE = 2
# Bytes behind a footer: its length, and four of the format. Bytes at the end of a file that are read at once.
_BEHIND, _END = 8, 2**16


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column of a row group.

    column: its path, with dots.
    values: its cells; of lists their entries.
    stored, decoded: bytes in the file, and without compression.
    text: bytes of its texts, None where that is not told.
    has_words: whether all cells are numbers of words, each of which stands once.
    has_differences: whether cells are differences from those before.
    """

    column: str
    values: int
    stored: int
    decoded: int
    text: int | None
    has_words: bool
    has_differences: bool

    @property
    def bytes(self) -> int:
        """Of it in memory: a number, an offset or the number of a word takes eight."""
        return max(8 * self.values, self.decoded, self.text or 0)


def chunks_of(file: IO[bytes]) -> list[list[Chunk]]:
    """Return the column chunks of each row group of a Parquet file; raises ValueError for a damaged footer.

    Of a thousand columns some hundredths of a second, for each row group.
    """
    try:
        footer, _ = _struct(_footer(file), 0)
        return [[_chunk(column[_META]) for column in group[_COLUMNS]] for group in footer.get(_GROUPS, ())]
    except (IndexError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("its footer is damaged") from error


def _footer(file: IO[bytes]) -> bytes:
    size = file.seek(0, 2)
    file.seek(max(0, size - _END))
    end = file.read()
    length = int.from_bytes(end[-_BEHIND:-4], "little") + _BEHIND
    if length > len(end):
        file.seek(max(0, size - length))
        end = file.read()
    return end[-length:-_BEHIND]


def _chunk(meta: dict[int, Any]) -> Chunk:
    column = b".".join(meta[_PATH]).decode(errors="replace")
    text = meta.get(_SIZES, {}).get(1)
    sizes = meta[_VALUES], meta[_STORED], meta[_DECODED]
    if any(type(number) is not int for number in (*sizes, 0 if text is None else text)):
        raise TypeError("a number of another type")
    if (least := min(*sizes, text or 0)) < 0:
        raise ValueError(f"column {column!r}: found {least:,} values or bytes, expected 0 or more")
    encodings = {*meta[_ENCODINGS]}
    # Dictionaries are themselves plain.
    pages = {page[2] for page in meta.get(_PAGES, ()) if page[1] != _DICTIONARY_PAGE} or encodings & _WORDS
    return Chunk(column, *sizes, text, bool(pages) and pages <= _WORDS, bool(encodings & _DIFFERENCES))


def _struct(data: Sequence[int], at: int) -> tuple[dict[int, Any], int]:
    """Return the structure that begins at a byte, as numbers of fields -> values, and the byte behind it."""
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        if head > 15:
            number, at = number + (head >> 4), at + 1
        else:
            number, at = _number(data, at + 1)
        fields[number], at = _value(data, at, head & 15)
    return fields, at + 1


def _value(data: Sequence[int], at: int, kind: int) -> tuple[Any, int]:
    if kind in _NUMBERS:
        return _number(data, at)
    if kind == _STRUCT:
        return _struct(data, at)
    if kind in (_LIST, _SET):
        return _list(data, at)
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, at
    size = 8 if kind == _DOUBLE else 1
    if kind == _BINARY:
        size, at = _varint(data, at)
    return data[at : at + size], at + size


def _list(data: Sequence[int], at: int) -> tuple[list[Any], int]:
    count, kind = data[at] >> 4, data[at] & 15
    at += 1
    if count == 15:
        count, at = _varint(data, at)
    found = []
    for _ in range(count):
        value, at = _value(data, at, _BYTE if kind in (_TRUE, _FALSE) else kind)
        found.append(value)
    return found, at


def _number(data: Sequence[int], at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return value >> 1 ^ -(value & 1), at


def _varint(data: Sequence[int], at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    value, shift = 0, 0
    while byte > 127:
        value |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
        if shift > 63:
            raise ValueError("its footer is damaged: found a number of more than 64 bits")
        byte = data[at]
    return value | byte << shift, at + 1
