"""Junctor's own file format of networks: one Parquet file, readable by any tool, written by Junctor only.

Main functions: `read` and `write`. One row for each variable, then one for each factor, in the order of the network.
`SELECT name, states FROM 'network.parquet' WHERE record = 'variable'` lists the variables.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from junctor.formats.files import publish, read_bytes
from junctor.model.errors import ModelError, Place
from junctor.model.network import DraftTable, DraftVariable, Factor, Kind, Network, build_network
from junctor.runtime.arrow import in_one_piece, nulls_of, number_array, numbers_of, string_array, string_list_array
from junctor.runtime.footers import Chunk, chunks_of
from junctor.runtime.remote import AnyPath, location

FORMAT = "junctor-network"
# Files of networks with auxiliary variables have version 2, all others stay readable for older Junctors.
FORMAT_VERSION = 2
# Tables may be larger than in any text format.
MAX_BYTES = 2**35

# | column   | type          | variables         | factors                                                           |
# |----------|---------------|-------------------|-------------------------------------------------------------------|
# | `record` | string        | "variable"        | "factor"                                                          |
# | `name`   | string        | its name          | null                                                              |
# | `states` | list<string>  | its states        | null                                                              |
# | `scope`  | list<string>  | null              | names of its variables; in a Bayesian network the child is last   |
# | `values` | list<double>  | null              | entries, the last variable of the scope fastest                   |
_SCHEMA = pa.schema(
    [
        pa.field("record", pa.string(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("states", pa.list_(pa.string())),
        pa.field("scope", pa.list_(pa.string())),
        pa.field("values", pa.list_(pa.float64())),
    ]
)
# Entries in one row group: writing and reading hold one group at a time in addition to the network itself.
_GROUP_ENTRIES = 2**22

# The seal is the SHA-256 of the file in which its own 64 digits are zeros. It is checked before Arrow sees the file;
# a file without it is refused: Arrow may abort the whole process over damaged metadata.
_SEAL = "sha256:"
_MAGIC = b"PAR1"

# Thrift metadata may not allocate more than this, whatever the file claims.
_MAX_METADATA = 2**26
# Limits against decompression bombs: decoded bytes allowed for any file, and more for each byte of the file.
_SPARE_BYTES = 2**26
MAX_EXPANSION = 1000

# The version of Arrow decides on the bytes of a file.
WRITER = f"arrow {pa.__version__}"
# Contents that networks were read from by `read_kept`, of at most so many bytes, until they are asked for.
_MOST_HELD = 2**22
_held: WeakKeyDictionary[Network, tuple[str, bytes]] = WeakKeyDictionary()


def write(network: Network, path: str | AnyPath) -> None:
    """Write `network` to `path`, whole or not at all; raises RunError if it cannot be written."""
    publish(location(path), to_bytes(network))


def to_bytes(network: Network) -> bytes:
    """Return the content of the file; equal networks under one version of Arrow give equal bytes."""
    # Networks are equal whatever their titles are, their files are not.
    title, held = _held.pop(network, (None, b""))
    if title == network.name:
        return held
    about = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION) if network.hidden else "1",
        "name": network.name,
        "kind": network.kind,
        **({"hidden": str(network.hidden)} if network.hidden else {}),
        # Last: `_seal_digits` searches from the end, and a name could look like a seal.
        "seal": _SEAL + "0" * 64,
    }
    sink = pa.BufferOutputStream()
    # Probabilities hardly compress, and uncompressed values keep the expansion of a file small.
    compression = {field.name: "none" if field.name == "values" else "zstd" for field in _SCHEMA}
    try:
        with pq.ParquetWriter(
            sink,
            _SCHEMA.with_metadata(about),
            compression=_leaves(compression),
            use_dictionary=False,
            write_statistics=False,
        ) as writer:
            writer.write_table(_variable_rows(network))
            for factors in _groups(network):
                writer.write_table(_factor_rows(network, factors))
    except UnicodeEncodeError:
        raise ModelError("a name has characters that no file can hold (half of a surrogate pair)") from None
    return sealed(bytes(sink.getvalue()))


def sealed(data: bytes) -> bytes:
    """Return a file with the digest of its content in place of the seal."""
    digits = _seal_digits(data)
    assert digits is not None
    start, end = digits
    return data[:start] + _sha256(data, start, end).encode() + data[end:]


def _seal_digits(data: bytes) -> tuple[int, int] | None:
    """Return where the digits of the seal start and end, or None if there is no seal."""
    start = data.rfind(_SEAL.encode()) + len(_SEAL)
    # rfind gives -1 where there is no seal.
    digits = re.compile(rb"[0-9a-f]{64}").match(data, start) if start >= len(_SEAL) else None
    return digits.span() if digits else None


def _sha256(data: bytes, start: int, end: int) -> str:
    """Return the SHA-256 of `data` with zeros in place of the bytes from `start` to `end`."""
    sha = hashlib.sha256()
    view = memoryview(data)
    for piece in (view[:start], b"0" * (end - start), view[end:]):
        sha.update(piece)
    return sha.hexdigest()


def _leaves(of_column: dict[str, str]) -> dict[str, str]:
    # Parquet sets compression on leaf columns: the elements of a list, not the list.
    lists = {field.name for field in _SCHEMA if pa.types.is_list(field.type)}
    return {f"{name}.list.element" if name in lists else name: value for name, value in of_column.items()}


def _groups(network: Network) -> Iterator[list[Factor]]:
    group: list[Factor] = []
    entries = 0
    for factor in network.factors:
        if group and entries + factor.table.size > _GROUP_ENTRIES:
            yield group
            group, entries = [], 0
        group.append(factor)
        entries += factor.table.size
    if group:
        yield group


def _variable_rows(network: Network) -> pa.Table:
    count = len(network.variables)
    columns = {
        "record": string_array(["variable"] * count),
        "name": string_array([variable.name for variable in network.variables]),
        "states": string_list_array([variable.states for variable in network.variables]),
    }
    return rows_of(count, columns)


def _factor_rows(network: Network, factors: list[Factor]) -> pa.Table:
    offsets = np.cumsum([0, *(factor.table.size for factor in factors)], dtype=np.int32)
    values = np.concatenate([factor.table.ravel() for factor in factors])
    columns = {
        "record": string_array(["factor"] * len(factors)),
        "scope": string_list_array([[network.variables[i].name for i in factor.scope] for factor in factors]),
        "values": pa.ListArray.from_arrays(number_array(offsets), number_array(values)),
    }
    return rows_of(len(factors), columns)


def rows_of(count: int, columns: dict[str, pa.Array]) -> pa.Table:
    """Return `count` rows of a file; columns that are not given are null."""
    arrays = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in _SCHEMA]
    return pa.Table.from_arrays(arrays, schema=_SCHEMA)


def read(source: str | AnyPath | bytes, file: str | None = None) -> Network:
    """Read a network from a path or from the content of a file, whose name is then `file`.

    Raises ModelError if the file is no network, is damaged or was rewritten by another tool, has a newer
    `format_version`, would expand to far more memory than its size, or holds no valid network.
    """
    data = source if isinstance(source, bytes) else read_bytes(location(source), MAX_BYTES)
    place = Place(file if isinstance(source, bytes) else str(location(source)))
    # First of all: the seal keeps damaged metadata away from Arrow.
    _check_seal(data, place)
    try:
        return _read(data, place)
    except ModelError:
        raise
    except Exception as error:
        # Arrow has no common type of error for unreadable files: ArrowInvalid, OSError, ValueError and more occur.
        raise ModelError(f"the file cannot be read as Parquet ({' '.join(str(error).split())[:200]})", place) from None


def read_kept(content: bytes, file: str) -> Network:
    """Read a network as `read` does from what `to_bytes` returned for it under the same `WRITER`.

    `to_bytes` returns that again: a run writes the network that it has read to its directory.
    """
    network = read(content, file)
    if len(content) <= _MOST_HELD:
        _held[network] = network.name, content
    return network


def _check_seal(data: bytes, place: Place) -> None:
    if not (data.startswith(_MAGIC) and data.endswith(_MAGIC)):
        raise ModelError("this is no Parquet file, or it is cut short", place)
    digits = _seal_digits(data)
    if digits is None:
        raise ModelError("this Parquet file holds no network that Junctor wrote: it has no seal", place)
    start, end = digits
    if data[start:end].decode() != _sha256(data, start, end):
        raise ModelError("the file does not fit its seal: it is damaged, or another tool has written it anew", place)


def _read(data: bytes, place: Place) -> Network:
    options = {"thrift_string_size_limit": _MAX_METADATA, "thrift_container_size_limit": _MAX_METADATA // 8}
    with pq.ParquetFile(pa.BufferReader(data), pre_buffer=False, **options) as parquet:
        about = _about(parquet, place)
        refuse_bomb(chunks_of(io.BytesIO(data)), len(data), place)
        variables: list[DraftVariable] = []
        tables: list[DraftTable] = []
        for group in range(parquet.num_row_groups):
            rows = parquet.read_row_group(group, columns=_SCHEMA.names, use_threads=False)
            # One group at a time is in memory in addition to the network itself.
            _collect(rows, variables, tables, place)
    kind: Kind = "bayes" if about["kind"] == "bayes" else "markov"
    hidden = about.get("hidden", "0")
    if not hidden.isdecimal() or not int(hidden[:9]) < max(len(variables), 1):
        raise ModelError(f"found {hidden!r} hidden variables, expected fewer than the {len(variables)} in all", place)
    return build_network(about["name"], kind, variables, tables, place, hidden=int(hidden[:9]))


def _about(parquet: pq.ParquetFile, place: Place) -> dict[str, str]:
    schema = parquet.schema_arrow
    about = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items() if key != b"ARROW:schema"}
    if about.get("format") != FORMAT:
        raise ModelError(f"this Parquet file holds no network: its metadata does not say format={FORMAT!r}", place)
    version = about.get("format_version", "")
    if not version.isdecimal() or int(version[:9]) < 1:
        raise ModelError(f"found format_version {version!r}, expected a whole number", place)
    if int(version[:9]) > FORMAT_VERSION:
        raise ModelError(
            f"the file has format_version {version}, this Junctor reads up to {FORMAT_VERSION}; update Junctor", place
        )
    if about.get("kind") not in ("bayes", "markov"):
        raise ModelError(f"found kind {about.get('kind')!r}, expected 'bayes' or 'markov'", place)
    _expect_columns(schema, place)
    return {"name": "", **about}


def _expect_columns(schema: pa.Schema, place: Place) -> None:
    for field in _SCHEMA:
        if schema.names.count(field.name) != 1:
            raise ModelError(f"found the columns {', '.join(schema.names)}, expected one {field.name!r}", place)
        actual = schema.field(field.name).type
        if not _same_type(actual, field.type):
            raise ModelError(f"column {field.name!r} is of type {actual}, expected {field.type}", place)


def _same_type(actual: pa.DataType, expected: pa.DataType) -> bool:
    # Large types differ in the width of their offsets only.
    if pa.types.is_list(expected):
        is_list = pa.types.is_list(actual) or pa.types.is_large_list(actual)
        return is_list and _same_type(actual.value_type, expected.value_type)
    if pa.types.is_string(expected):
        return bool(pa.types.is_string(actual) or pa.types.is_large_string(actual))
    return bool(actual == expected)


def refuse_bomb(groups: Iterable[Iterable[Chunk]], size: int, place: Place, spare: int = _SPARE_BYTES) -> None:
    """Raise ModelError for a small file that decodes to far more bytes: repeated values are almost free in Parquet.

    groups: the column chunks of its row groups.
    size: its bytes.
    place: for the error.
    spare: decoded bytes that are allowed whatever the size.
    """
    decoded = sum(chunk.bytes for group in groups for chunk in group)
    allowed = spare + MAX_EXPANSION * size
    if decoded > allowed:
        raise ModelError(f"the file's {size:,} bytes would become {decoded:,}, allowed are {allowed:,}", place)


def _collect(rows: pa.Table, variables: list[DraftVariable], tables: list[DraftTable], place: Place) -> None:
    records = rows.column("record").to_pylist()
    names = rows.column("name").to_pylist()
    states = rows.column("states").to_pylist()
    scopes = rows.column("scope").to_pylist()
    values = in_one_piece(rows.column("values"))
    # Tables are cut out of one array: a long network has very many, and most entries of this column are null.
    entries, ends = numbers_of(values.values, 0), numbers_of(values.offsets, 0).tolist()
    # Not by `is_valid`, which loads all functions of Arrow, a twentieth of a second.
    nulls, null_entries = nulls_of(values), values.values.null_count > 0
    given = [True] * len(records) if nulls is None else (~nulls).tolist()
    for i, record in enumerate(records):
        if record == "variable":
            here = Place(f"{place.file} (variable {len(variables)})")
            variables.append(DraftVariable(_given(names[i], "name", here), _given(states[i], "states", here), here))
        elif record == "factor":
            here = Place(f"{place.file} (factor {len(tables)})")
            table = _given(entries[ends[i] : ends[i + 1]] if given[i] else None, "values", here)
            if null_entries and values[i].values.null_count:
                raise ModelError("found a null among the entries, expected numbers", here)
            tables.append(DraftTable(_given(scopes[i], "scope", here), table, here))
        else:
            raise ModelError(f"found the record {record!r}, expected 'variable' or 'factor'", place)


def _given(value: Any, column: str, place: Place) -> Any:
    if value is None or (isinstance(value, list) and None in value):
        raise ModelError(f"found null in {column!r}, expected a value", place)
    return value
