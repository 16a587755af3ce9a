"""Mutants of bytes, of text, of JSON, and of tables with their metadata. Main function: `mutated`."""

from __future__ import annotations

import gzip
import io
import json
import tomllib
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
from helpers.mutation import mutated as mutated_text

# Numbers at which conversions and sizes break, and values of other types than expected.
ODD = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    10**30,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\0",
    [],
    {},
    [[]],
    {"a": 1},
)
WORDS = (b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\xff\xff\xff\x7f", b"\x00" * 8, b"\xff" * 8)


def mutated(name: str, data: bytes, random: Random) -> bytes:
    """Return the content of a file, damaged in its bytes, or in what its name says it is made of."""
    if random.random() < 0.4:
        return mutated_bytes(data, random)
    endings = name.lower().split(".")[1:]
    # What cannot be taken apart, such as a file that is damaged on purpose, is damaged in its bytes.
    with suppress(pa.ArrowException, OSError, ValueError, TypeError, KeyError, RecursionError):
        if endings[-1:] == ["gz"]:
            return gzip.compress(mutated(name[:-3], gzip.decompress(data), random), 1)
        if endings[-1:] == ["json"]:
            return mutated_json(data, random)
        if endings[-1:] == ["toml"] and random.random() < 0.6:
            return toml_of(_mutated_value(tomllib.loads(data.decode()), random)).encode()
        if endings[-1:] == ["npy"]:
            return mutated_array(data, random)
        if endings[-1:] in (["parquet"], ["arrow"], ["arrows"]):
            return mutated_table(endings[-1], data, random)
        if endings[-1:] == ["kept"]:
            return mutated_bytes(data, random)
        return mutated_text(data.decode(), random).encode(errors="replace")
    return mutated_bytes(data, random)


def mutated_bytes(data: bytes, random: Random) -> bytes:
    """Return bytes of which some are changed, removed, repeated or cut off."""
    if random.random() < 0.15:
        return data[: random.randrange(len(data) + 1)]
    for _ in range(random.choice((1, 1, 1, 2, 4, 16))):
        at, length = random.randrange(len(data) + 1), random.choice((1, 1, 2, 4, 8, 100))
        piece = data[at : at + length]
        new = random.choice((bytes([random.randrange(256)]), random.choice(WORDS), b"", piece * 2, piece[::-1]))
        data = data[:at] + new + data[at + random.choice((0, len(new), len(new), length)) :]
    return data


def mutated_json(data: bytes, random: Random) -> bytes:
    """Return JSON in which some values are of another type or size, missing, repeated or deeply nested."""
    if random.random() < 0.03:
        # Deeper than Python may recurse.
        return b"[" * 200_000 + data + b"]" * random.choice((0, 200_000))
    return json.dumps(_mutated_value(json.loads(data), random)).encode()


def _mutated_value(value: Any, random: Random) -> Any:
    holder: dict[str, Any] = {"": value}
    for _ in range(random.choice((1, 1, 2, 4))):
        places = list(_places(holder))
        parent, key = random.choice(places)
        old, kind = parent[key], random.random()
        if kind < 0.5:
            parent[key] = random.choice(ODD)
        elif kind < 0.65 and parent is not holder:
            del parent[key]
        elif kind < 0.8 and isinstance(old, list):
            parent[key] = old * 2 if random.random() < 0.5 else old[: random.randrange(len(old) + 1)]
        elif kind < 0.9 and isinstance(old, dict):
            parent[key] = {**old, random.choice(("x", "")): random.choice(ODD)}
        elif isinstance(old, (int, float)):
            parent[key] = random.choice((-old, old + 1, old * 10**9, float(old), str(old)))
        else:
            other, at = random.choice(places)
            parent[key] = other[at] if other is not holder else None
    return holder[""]


def _places(value: Any) -> Any:
    keys = value if isinstance(value, dict) else range(len(value))
    for key in list(keys)[:200]:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def toml_of(value: Any) -> str:
    """Return a table of TOML, with what it holds in one line each; None is a date."""
    if not isinstance(value, dict):
        return "x"
    return "".join(f"{json.dumps(key)} = {_toml_value(each)}\n" for key, each in value.items())


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if value is None:
        return "2026-11-22"
    if isinstance(value, int) and value > 2**70:
        # In base 16, where there is no limit of digits.
        return hex(value)
    return str(value) if isinstance(value, float) else json.dumps(value)


def mutated_array(data: bytes, random: Random) -> bytes:
    """Return a file of NumPy with another header, another type or another shape."""
    if random.random() < 0.5:
        end = data.index(b"\n")
        return mutated_bytes(data[:end], random) + data[end:]
    array, out = np.load(io.BytesIO(data)), io.BytesIO()
    kind = random.choice((np.float32, np.float64, np.int64, np.complex128, "U3", bool, object))
    changed = random.choice((array[:-1], array.reshape(1, -1), array[:0], array.astype(kind), np.tile(array, 2)))
    np.save(out, changed, allow_pickle=True)
    return out.getvalue()


def mutated_table(ending: str, data: bytes, random: Random) -> bytes:
    """Return a table with other columns, other types, nulls, other rows or damaged metadata."""
    if ending == "parquet":
        table = pq.ParquetFile(pa.BufferReader(data)).read()
    else:
        table = (pa.ipc.open_file if ending == "arrow" else pa.ipc.open_stream)(pa.BufferReader(data)).read_all()
    for _ in range(random.choice((1, 1, 2))):
        table = _mutated_table(table, random)
    out = pa.BufferOutputStream()
    if ending == "parquet":
        pq.write_table(table, out)
    else:
        with (pa.ipc.new_file if ending == "arrow" else pa.ipc.new_stream)(out, table.schema) as writer:
            writer.write_table(table)
    return out.getvalue().to_pybytes()


def _mutated_table(table: pa.Table, random: Random) -> pa.Table:
    at, kind = random.randrange(max(1, table.num_columns)), random.random()
    if kind < 0.35 and table.schema.metadata:
        metadata = dict(table.schema.metadata)
        key = random.choice(sorted(metadata))
        if random.random() < 0.1:
            del metadata[key]
        else:
            try:
                metadata[key] = mutated_json(metadata[key], random)
            except ValueError:
                metadata[key] = mutated_bytes(metadata[key], random)
        return table.replace_schema_metadata(metadata)
    if kind < 0.45:
        return table.drop_columns([table.column_names[at]]) if random.random() < 0.5 else table.slice(at, 1)
    if kind < 0.55:
        names = table.column_names
        names[at] = random.choice((*names, "", "x", "case_id", names[at] + "0"))
        return table.rename_columns(names)
    field, column = table.schema.field(at), table.column(at)
    return table.set_column(at, field.name, pa.array(_mutated_cells(column, random)))


def _mutated_cells(column: pa.ChunkedArray, random: Random) -> list[Any]:
    cells = column.to_pylist()
    if random.random() < 0.3 or not cells:
        # A column of another type.
        return [random.choice((None, 1.5, "x", b"\xff", [], [1], [[1.0]], True))] * len(cells)
    row = random.randrange(len(cells))
    if isinstance(cells[row], list):
        items = list(cells[row])
        changes = (items[:-1], items * 2, [None] * len(items), [-1] * len(items), [10**9] * len(items), None, [])
        cells[row] = random.choice(changes)
    elif isinstance(cells[row], (int, float)):
        cells[row] = random.choice((None, -1, 2**31 - 1, 2**62)) if isinstance(cells[row], int) else -1.0
    else:
        cells[row] = random.choice((None, "", "x", "\ud800"[:0]))
    return cells
