"""Mutants of Parquet footers: their bytes, and what they say. Main function: `mutated_footer`."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

MAGIC = b"PAR1"
# Thrift's compact protocol: types of fields, and of elements of lists.
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
NUMBERS = (-1, 0, 1, 2, 3, 7, 100, 2**16, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**31), -(2**63))


def mutated_footer(name: str, data: bytes, random: Random) -> bytes:
    """Return a Parquet file whose footer is damaged; its length is told as it is, but for now and then."""
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[start:-8]
    if random.random() < 0.4:
        at = random.randrange(len(footer))
        size = random.choice((1, 1, 1, 2, 4))
        footer = footer[:at] + random.randbytes(size) + footer[at + random.choice((size, size, 0)) :]
    else:
        with suppress(OverflowError):
            footer = _restated(footer, random)
    size = len(footer) if random.random() < 0.98 else random.choice((0, 2**31, 2**32 - 1, len(data)))
    return data[:start] + footer + size.to_bytes(4, "little") + MAGIC


def read_footer(data: bytes) -> list[Any]:
    """Return the fields [type, value, number] of the footer of a file; elements of lists are [type, value]."""
    return _Reader(data[len(data) - 8 - int.from_bytes(data[-8:-4], "little") : -8]).struct()


def with_footer(data: bytes, footer: list[Any]) -> bytes:
    """Return a file with another footer."""
    start, new = len(data) - 8 - int.from_bytes(data[-8:-4], "little"), _struct_of(footer)
    return data[:start] + new + len(new).to_bytes(4, "little") + MAGIC


def _restated(footer: bytes, random: Random) -> bytes:
    root, most = _Reader(footer).struct(), 1000
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        values = random.choice(list(_lists(root)))
        at = random.randrange(len(values))
        kind = random.random()
        if kind < 0.1:
            del values[at]
        elif kind < 0.2:
            # A thousand once only: a thousand of a thousand of them would fill the memory before anything reads them.
            copies = min(random.choice((1, 1, 2, 1000)), most)
            values[at:at] = [values[at]] * copies
            most = 2 if copies > 2 else most
        elif kind < 0.3:
            values[at] = random.choice(values)
        else:
            _restate(values[at], random)
        if not values:
            break
    return _struct_of(root)


def _restate(value: list[Any], random: Random) -> None:
    """Change a value, which is a list of its type, its content and, of a field, its number."""
    kind, content = value[0], value[1]
    if len(value) > 2 and random.random() < 0.15:
        value[2] = random.choice((1, 2, value[2] + 1, 30000))
    elif kind == _BINARY:
        at = random.randrange(len(content) + 1)
        value[1] = random.choice((b"", b"\xff", content * 2, content[:at] + random.randbytes(1) + content[at:]))
    elif kind in (_TRUE, _FALSE):
        value[0] = _TRUE + _FALSE - kind
    elif isinstance(content, int):
        value[1] = random.choice((*NUMBERS, content + 1, content - 1, -content))


def _lists(values: list[Any]) -> Any:
    """Yield all lists of values that are not empty: the fields of structures, and the elements of lists."""
    if values:
        yield values
    for value in values:
        if isinstance(value[1], list):
            yield from _lists(value[1])


class _Reader:
    """Structures as lists of fields [type, value, number], lists as lists of [type, value]."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def number(self) -> int:
        value = self.varint()
        return value >> 1 ^ -(value & 1)

    def struct(self) -> list[list[Any]]:
        fields: list[list[Any]] = []
        number = 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.number()
            fields.append([head & 15, self.value(head & 15), number])
        return fields

    def value(self, kind: int, in_list: bool = False) -> Any:
        if kind in (_TRUE, _FALSE):
            return self.byte() if in_list else None
        if kind == _STRUCT:
            return self.struct()
        if kind in (_LIST, _SET):
            head = self.byte()
            count = head >> 4 if head >> 4 < 15 else self.varint()
            return [[head & 15, self.value(head & 15, True)] for _ in range(count)]
        if kind in (_BINARY, _DOUBLE, _BYTE):
            size = self.varint() if kind == _BINARY else 8 if kind == _DOUBLE else 1
            self._at += size
            return self._data[self._at - size : self._at]
        return self.number()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(value: int) -> bytes:
    return _varint((value << 1 ^ value >> 63) & (2**64 - 1))


def _struct_of(fields: list[list[Any]]) -> bytes:
    # The long form of numbers, which may be any.
    return b"".join(bytes([kind]) + _number(number) + _value(kind, value) for kind, value, number in fields) + b"\0"


def _value(kind: int, value: Any, in_list: bool = False) -> bytes:
    if kind in (_TRUE, _FALSE):
        return bytes([value]) if in_list and value is not None else b""
    if kind == _STRUCT:
        return _struct_of(value)
    if kind in (_LIST, _SET):
        of = value[0][0] if value else _STRUCT
        return bytes([0xF0 | of]) + _varint(len(value)) + b"".join(_value(of, each[1], True) for each in value)
    if kind == _BINARY:
        return _varint(len(value)) + value
    return value if isinstance(value, bytes) else _number(value)
