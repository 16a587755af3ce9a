"""Encoded partitions on disk: Arrow IPC files with numbers instead of names.

Columns: `case_id`; `states`, lists with the states of all observed variables (smallest signed type, -1 where
unobserved); `l7`, likelihoods of variable 7 (fixed-size lists of doubles, null where there are none); `reason`, null
where the row is valid; `kept0`, ..., columns that are carried through. Metadata: `junctor`, JSON with `format_version`,
`first_row`, the variables of `states` and the names of the kept columns.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc

from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.evidence.encode import EncodedPartition
from junctor.model.errors import RunError
from junctor.runtime.arrow import in_one_piece, list_array, number_array, numbers_of, reason_array
from junctor.runtime.files import Checksum, checksum_of, encoded, written_atomically
from junctor.runtime.remote import AnyPath, RemotePath, arrow_file, location, parquet_source

FORMAT_VERSION = 2
# Parquet, one column a variable: directories of earlier runs have it.
_PARQUET_VERSION = 1
_METADATA = b"junctor"
_REASON = "reason"
_CASE_ID = "case_id"
_STATES = "states"
# Followed by a number.
_KEPT = "kept"


def write_partition(partition: EncodedPartition, path: str | os.PathLike[str] | RemotePath) -> Checksum:
    """Write a partition, whole or not at all, and return the checksum of its file; its name is still to be synced."""
    columns = dict(_columns(partition))
    metadata = {
        "format_version": FORMAT_VERSION,
        "first_row": partition.first_row,
        "variables": list(partition.batch.states),
    }
    if partition.kept is not None:
        metadata["kept"] = partition.kept.column_names
    table = pa.Table.from_arrays(list(columns.values()), list(columns), metadata={_METADATA: json.dumps(metadata)})
    if partition.kept is not None:
        for i, (field, column) in enumerate(zip(partition.kept.schema, partition.kept.columns, strict=True)):
            table = table.append_column(field.with_name(f"{_KEPT}{i}"), column)
    # Read once or twice and then never again: cheap to write and to read comes before small.
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with written_atomically(location(path), alone=False) as temporary:
        with pa.ipc.new_file(str(temporary), table.schema, options=options) as writer:
            writer.write_table(table)
        # Now: an object of a store would be fetched again.
        return checksum_of(temporary)


def read_partition(
    path: str | os.PathLike[str] | RemotePath, kept: bool = False, cardinalities: Sequence[int] | None = None
) -> EncodedPartition:
    """Read what `write_partition` wrote, equal in every bit; raises RunError for anything else.

    path: of the partition.
    kept: whether the kept columns are read as well.
    cardinalities: of all variables; states beyond them are refused. None for no such check.
    """
    path = location(path)
    with encoded(path, "evidence"):
        with _opened(path) as file:
            if file.read(6) != b"ARROW1":
                return _read_parquet(path)
            file.seek(0)
            metadata, table = _read_arrow(file, path, kept)
        # Damaged files may have offsets out of range, which crash the process.
        table.validate(full=True)
        names = [name for name in table.column_names if not name.startswith(_KEPT)]
        carried = table.drop_columns(names).rename_columns(metadata["kept"]) if kept and "kept" in metadata else None
        columns = {name: in_one_piece(table.column(name)) for name in names}
        variables = metadata["variables"]
        nothing = np.zeros((0, table.num_rows), np.int32)
        states = _unpacked(columns[_STATES], table.num_rows, len(variables)) if variables else nothing
        batch = _batch(dict(zip(variables, states, strict=True)), columns, table.num_rows)
        if cardinalities is not None:
            least = states.min(axis=1, initial=0).tolist()
            _check(batch, cardinalities, least, states.max(axis=1, initial=UNOBSERVED).tolist())
            complete = (v for v, state in zip(variables, least, strict=True) if state != UNOBSERVED)
            batch = replace(batch, complete=frozenset(complete))
        return EncodedPartition(batch, columns[_CASE_ID], metadata["first_row"], carried)


def _check(batch: EvidenceBatch, cardinalities: Sequence[int], least: Sequence[int], most: Sequence[int]) -> None:
    """Raise ValueError for what compiled code would look up beyond its tables; least, most: states of each column."""
    for variable in (*batch.states, *batch.likelihoods):
        if type(variable) is not int or not 0 <= variable < len(cardinalities):
            raise ValueError(f"there is no variable {variable!r}")
    if not all(isinstance(reason, str) for reason in batch.invalid.values()):
        raise ValueError("found reasons that are no text")
    for variable, smallest, largest in zip(batch.states, least, most, strict=True):
        if smallest < UNOBSERVED or largest >= cardinalities[variable]:
            raise ValueError(f"found states that variable {variable} has not")
    for variable, soft in batch.likelihoods.items():
        if soft.values.shape[1] != cardinalities[variable]:
            raise ValueError(f"found likelihoods of other states than those of variable {variable}")


def _opened(path: AnyPath) -> AbstractContextManager[pa.NativeFile]:
    # All of an object is wanted, which is one request.
    return pa.BufferReader(path.read_bytes()) if isinstance(path, RemotePath) else arrow_file(path)


def _read_arrow(file: pa.NativeFile, path: AnyPath, kept: bool) -> tuple[dict[str, Any], pa.Table]:
    # Workers read partitions concurrently; threads in each of them would only compete.
    options = pa.ipc.IpcReadOptions(use_threads=False)
    with pa.ipc.open_file(file, options=options) as reader:
        schema = reader.schema
        metadata = _metadata(schema, path, FORMAT_VERSION)
        if kept or "kept" not in metadata:
            return metadata, reader.read_all()
    options.included_fields = [i for i, name in enumerate(schema.names) if not name.startswith(_KEPT)]
    with pa.ipc.open_file(file, options=options) as reader:
        return metadata, reader.read_all()


def _read_parquet(path: AnyPath) -> EncodedPartition:
    """Read the encoded evidence of an earlier version: `s7` has the states of variable 7, null where unobserved."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(parquet_source(path)) as file:
        metadata = _metadata(file.schema_arrow, path, _PARQUET_VERSION)
        table = file.read(use_threads=False)
    table.validate(full=True)
    # Parquet lacks some Arrow types (timestamps in seconds, for one); the recorded type restores them.
    kind = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(metadata["case_id"]))).field(0).type
    columns = {name: in_one_piece(column) for name, column in zip(table.column_names, table.columns, strict=True)}
    states: dict[int, npt.NDArray[np.int32]] = {
        int(name[1:]): numbers_of(column.cast(pa.int32()), UNOBSERVED)
        for name, column in columns.items()
        if name.startswith("s")
    }
    return EncodedPartition(
        _batch(states, columns, table.num_rows), columns[_CASE_ID].cast(kind), metadata["first_row"]
    )


def _metadata(schema: pa.Schema, path: AnyPath, expected: int) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads((schema.metadata or {}).get(_METADATA, b"{}"))
    if (version := metadata.get("format_version")) != expected:
        raise RunError(
            f"{path}: found encoded evidence of format version {version}, expected {expected}: start the run anew"
        )
    return metadata


def _columns(partition: EncodedPartition) -> Iterator[tuple[str, pa.Array]]:
    batch = partition.batch
    yield _CASE_ID, partition.case_ids
    if batch.states:
        yield _STATES, _packed(batch.states)
    for variable, likelihood in batch.likelihoods.items():
        yield f"l{variable}", _spread(likelihood, batch.rows)
    yield _REASON, reason_array(batch.invalid, batch.rows)


def _packed(states: dict[int, npt.NDArray[np.int32]]) -> pa.Array:
    # One column for all variables: a column each takes longer than the few thousand cells in it. Most variables have
    # fewer than 128 states: one byte a cell.
    columns = np.stack(list(states.values()))
    small = np.min_scalar_type(-1 - int(columns.max(initial=0)))
    return list_array(columns.T.astype(small, order="C"))


def _unpacked(column: pa.Array, rows: int, variables: int) -> npt.NDArray[np.int32]:
    cells = numbers_of(column.values, UNOBSERVED).reshape(rows, variables)
    return cells.T.astype(np.int32, order="C")


def _spread(likelihood: SoftEvidence, rows: int) -> pa.Array:
    """Return likelihoods as lists for all rows, null in rows without one."""
    values = np.zeros((rows, likelihood.values.shape[1]))
    values[likelihood.rows] = likelihood.values
    missing = np.ones(rows, dtype=np.bool_)
    missing[likelihood.rows] = False
    return list_array(values, missing)


def _batch(states: dict[int, npt.NDArray[np.int32]], columns: dict[str, pa.Array], rows: int) -> EvidenceBatch:
    # Names of likelihoods are a letter and the index of a variable.
    likelihoods = {int(name[1:]): _gathered(column) for name, column in columns.items() if name.startswith("l")}
    return EvidenceBatch(rows, states, likelihoods, _invalid(columns[_REASON]))


def _invalid(reasons: pa.Array) -> dict[int, str]:
    if reasons.null_count == len(reasons):
        return {}
    bad = np.flatnonzero(reasons.is_valid().to_numpy(zero_copy_only=False))
    return dict(zip(bad.tolist(), reasons.take(number_array(bad)).to_pylist(), strict=True))


def _gathered(column: pa.Array) -> SoftEvidence:
    present = column.is_valid()
    values = column.filter(present).flatten().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(present.to_numpy(zero_copy_only=False))
    return SoftEvidence(rows, values.reshape(-1, column.type.list_size))
