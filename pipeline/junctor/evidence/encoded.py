"""Encoded partitions on disk: Parquet files that read like the table that the evidence was.

Columns: the case ids; a variable each, dictionaries of the names of all its states in the order of the network, null
where unobserved; `X_likelihood`, fixed-size lists of doubles, null where there are none; `reason`, null where the row
is valid; columns that are carried through. A name that is taken gets a trailing `_`. Metadata: `junctor`, JSON with
`format_version`, `first_row`, the number of columns of states, the variables of those of likelihoods, and the types of
case ids and kept columns.
"""

from __future__ import annotations

import base64
import json
import os
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.evidence.encode import EncodedPartition
from junctor.model.errors import RunError
from junctor.model.network import Network
from junctor.runtime.arrow import (
    free_names,
    in_one_piece,
    list_array,
    number_array,
    numbers_of,
    reason_array,
    string_array,
    table_of,
)
from junctor.runtime.files import Checksum, checksum_of, encoded, written_atomically
from junctor.runtime.remote import AnyPath, RemotePath, arrow_file, location

FORMAT_VERSION = 3
_METADATA = b"junctor"
_REASON, _CASE_ID = "reason", "case_id"
# Of the page of Parquet with the words of a column: states that are not in it would lose their order.
_WORDS_BYTES = 2**30


def write_partition(
    partition: EncodedPartition, network: Network, path: str | os.PathLike[str] | RemotePath
) -> Checksum:
    """Write a partition, whole or not at all, and return the checksum of its file; its name is still to be synced.

    network: whose evidence it is.
    """
    from pyarrow import parquet

    table = _table(partition, network)
    ids, names = table.schema.field(0), table.column_names
    end = 1 + len(partition.batch.states)
    # States take a few bits each as they are.
    packed = [ids.name, *names[end:]]
    words = [each.name for each in table.schema if pa.types.is_dictionary(each.type)]
    with written_atomically(location(path), alone=False) as temporary:
        parquet.write_table(
            table,
            temporary,
            row_group_size=max(1, table.num_rows),
            compression=dict.fromkeys(packed, "lz4"),
            use_dictionary=[*words, names[end + len(partition.batch.likelihoods)]],
            dictionary_pagesize_limit=_WORDS_BYTES,
            column_encoding={ids.name: "DELTA_BINARY_PACKED"} if ids.type == pa.int64() else None,
            # Minima of states serve no query, and take as long as all the rest.
            write_statistics=[ids.name],
        )
        # Now: an object of a store would be fetched again.
        return checksum_of(temporary)


def _table(partition: EncodedPartition, network: Network) -> pa.Table:
    batch, kept = partition.batch, partition.kept
    observed = [network.variables[v] for v in batch.states]
    soft = [network.variables[v].name for v in batch.likelihoods]
    free = free_names(each.name for each in observed)
    columns = {free(_CASE_ID): _as_cells(partition.case_ids)}
    columns |= {each.name: _named(batch.states[network.index[each.name]], each.states) for each in observed}
    for name, likelihood in zip(soft, batch.likelihoods.values(), strict=True):
        columns[free(f"{name}_likelihood")] = _spread(likelihood, batch.rows)
    columns[free(_REASON)] = reason_array(batch.invalid, batch.rows)
    metadata: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "first_row": partition.first_row,
        "states": len(observed),
        "likelihoods": soft,
        "case_id": _told(pa.schema([(_CASE_ID, partition.case_ids.type)])),
    }
    if kept is not None:
        metadata["kept"] = _told(kept.schema)
        columns |= {free(name): _as_cells(in_one_piece(kept.column(name))) for name in kept.column_names}
    fields = [(name, column.type) for name, column in columns.items()]
    return table_of([*columns.values()], pa.schema(fields, {_METADATA: json.dumps(metadata)}))


def _named(states: npt.NDArray[np.int32], names: tuple[str, ...]) -> pa.DictionaryArray:
    """Return states as words of a dictionary, null where unobserved."""
    places = states.astype(np.min_scalar_type(-len(names)))
    return pa.DictionaryArray.from_arrays(number_array(places, places < 0), _words(names))


@lru_cache(maxsize=4096)
def _words(names: tuple[str, ...]) -> pa.Array:
    return string_array(names)


def _spread(likelihood: SoftEvidence, rows: int) -> pa.Array:
    """Return likelihoods as lists for all rows, null in rows without one."""
    values = np.zeros((rows, likelihood.values.shape[1]))
    values[likelihood.rows] = likelihood.values
    missing = np.ones(rows, dtype=np.bool_)
    missing[likelihood.rows] = False
    return list_array(values, missing)


def _told(schema: pa.Schema) -> str:
    """Return a schema as text."""
    return base64.b64encode(schema.serialize()).decode()


def _schema_of(told: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(told)))


def _as_cells(column: pa.Array) -> pa.Array:
    """Return a column as Parquet has it: of a type that it would not give back, all of it in the first cell."""
    if _is_given_back(column.type) or not len(column):
        return column if _is_given_back(column.type) else pa.nulls(0, pa.large_binary())
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, pa.schema([("", column.type)])) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([column], [""]))
    return pa.array([stream.getvalue().to_pybytes(), *[None] * (len(column) - 1)], pa.large_binary())


def _of_cells(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column of a type that `_as_cells` was given."""
    if _is_given_back(kind):
        return column if column.type == kind else column.cast(kind)
    if not len(column):
        return pa.nulls(0, kind)
    with pa.ipc.open_stream(column[0].as_buffer()) as reader:
        return in_one_piece(reader.read_all().column(0))


@lru_cache(maxsize=256)
def _is_given_back(kind: pa.DataType) -> bool:
    """Return True if Parquet has cells of a type, and gives them back as such or as what Arrow casts to it."""
    from pyarrow import parquet

    stream = pa.BufferOutputStream()
    try:
        # Words of dictionaries are looked at where there are rows.
        parquet.write_table(pa.table([pa.nulls(1, kind)], [""]), stream)
        back = parquet.read_schema(pa.BufferReader(stream.getvalue())).types[0]
        return bool(back == kind or pa.nulls(1, back).cast(kind).type == kind)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, OSError):
        return False


def read_partition(path: str | os.PathLike[str] | RemotePath, network: Network, kept: bool = False) -> EncodedPartition:
    """Read what `write_partition` wrote, equal in every bit; raises RunError for anything else.

    path: of the partition.
    network: that has the names in it.
    kept: whether the kept columns are read as well.
    """
    path = location(path)
    with encoded(path, "evidence"), _opened(path) as file:
        return _read(file, path, network, kept)


def _opened(path: AnyPath) -> AbstractContextManager[pa.NativeFile]:
    # All of an object is wanted, which is one request.
    return pa.BufferReader(path.read_bytes()) if isinstance(path, RemotePath) else arrow_file(path)


def _read(file: pa.NativeFile, path: AnyPath, network: Network, kept: bool) -> EncodedPartition:
    from pyarrow import parquet

    with parquet.ParquetFile(file) as opened:
        schema, footer = opened.schema_arrow, opened.metadata
    metadata = _metadata(schema, path)
    names, begin = schema.names, 1 + metadata["states"]
    end = begin + len(metadata["likelihoods"])
    # Read as words at once, a column takes half the time.
    with parquet.ParquetFile(file, metadata=footer, read_dictionary=names[1:begin]) as opened:
        # Workers read partitions concurrently; threads in each of them would only compete.
        table = opened.read(None if kept else names[: end + 1], use_threads=False)
    columns = [in_one_piece(column) for column in table.columns]
    for column in (columns[0], *columns[begin:]):
        # Damaged files may have offsets out of range, which crash the process.
        column.validate(full=True)
    observed = [network.index[name] for name in names[1:begin]]
    soft = [network.index[name] for name in metadata["likelihoods"]]
    states = np.empty((len(observed), table.num_rows), np.int32)
    for cells, variable, column in zip(states, observed, columns[1:begin], strict=True):
        cells[:] = _states_of(column, network.variables[variable].states)
    complete = (v for v, column in zip(observed, columns[1:begin], strict=True) if not column.null_count)
    likelihoods = {
        variable: _gathered(column, len(network.variables[variable].states))
        for variable, column in zip(soft, columns[begin:end], strict=True)
    }
    evidence = dict(zip(observed, states, strict=True))
    batch = EvidenceBatch(table.num_rows, evidence, likelihoods, _invalid(columns[end]), frozenset(complete))
    case_ids = _of_cells(columns[0], _schema_of(metadata["case_id"]).types[0])
    carried = _carried(columns[end + 1 :], _schema_of(metadata["kept"])) if kept and "kept" in metadata else None
    return EncodedPartition(batch, case_ids, metadata["first_row"], carried)


def _metadata(schema: pa.Schema, path: AnyPath) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads((schema.metadata or {}).get(_METADATA, b"{}"))
    if (version := metadata.get("format_version")) != FORMAT_VERSION:
        raise RunError(
            f"{path}: found encoded evidence of format version {version}, expected {FORMAT_VERSION}: start the run anew"
        )
    return metadata


def _carried(columns: list[pa.Array], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays([_of_cells(*each) for each in zip(columns, schema.types, strict=True)], schema=schema)


def _states_of(column: pa.Array, names: tuple[str, ...]) -> npt.NDArray[Any]:
    """Return the states of a column, UNOBSERVED where it is null; raises ValueError for names that are no state."""
    if not pa.types.is_dictionary(column.type):
        raise ValueError(f"found states of type {column.type}")
    words, places = column.dictionary, numbers_of(column.indices, UNOBSERVED)
    # By NumPy: Arrow's own check takes as long as reading the column.
    if not UNOBSERVED <= places.min(initial=0) <= places.max(initial=0) < max(1, len(words)):
        raise ValueError("found states beyond those of their dictionary")
    if words.equals(_words(names)):
        return places
    words.validate(full=True)
    # Of a network with the same states in another order.
    at = {name: state for state, name in enumerate(names)}
    if unknown := [word for word in words.to_pylist() if word not in at]:
        raise ValueError(f"found the state {unknown[0]!r}, states are {', '.join(names)}")
    order: npt.NDArray[np.int32] = np.array([*map(at.__getitem__, words.to_pylist()), UNOBSERVED], np.int32)
    return np.take(order, places)


def _invalid(reasons: pa.Array) -> dict[int, str]:
    if reasons.null_count == len(reasons):
        return {}
    if reasons.type != pa.string():
        raise ValueError("found reasons that are no text")
    bad = np.flatnonzero(reasons.is_valid().to_numpy(zero_copy_only=False))
    return dict(zip(bad.tolist(), reasons.take(number_array(bad)).to_pylist(), strict=True))


def _gathered(column: pa.Array, states: int) -> SoftEvidence:
    # Compiled code would look them up beyond its tables.
    if column.type != pa.list_(pa.float64(), states):
        raise ValueError(f"found likelihoods of type {column.type} for {states} states")
    present = column.is_valid()
    values = column.filter(present).flatten().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(present.to_numpy(zero_copy_only=False))
    return SoftEvidence(rows, values.reshape(-1, states))
