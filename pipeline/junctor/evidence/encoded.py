"""Encoded partitions on disk: Parquet with numbers instead of names, and an Arrow file of the columns to keep.

Columns: `case_id`; `s7`, states of variable 7 (smallest unsigned type, null where unobserved); `l7`, its likelihoods
(fixed-size lists of doubles, null where there are none); `reason`, null where the row is valid. Metadata: `junctor`,
JSON with `format_version`, `first_row` and the Arrow type of the case ids.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.evidence.encode import EncodedPartition
from junctor.model.errors import RunError
from junctor.runtime.arrow import in_one_piece, list_array, number_array, numbers_of, reason_array
from junctor.runtime.files import aside

FORMAT_VERSION = 1
_METADATA = b"junctor"
_REASON = "reason"
_CASE_ID = "case_id"


def write_partition(partition: EncodedPartition, path: str | os.PathLike[str]) -> None:
    """Write a partition to a temporary file that is renamed to `path`, so that a file of that name is complete.

    Kept columns go to a file of their own (`kept_file`), which is there before.
    """
    if partition.kept is not None:
        _write_kept(partition.kept, kept_file(path))
    columns = dict(_columns(partition))
    metadata = {
        "format_version": FORMAT_VERSION,
        "first_row": partition.first_row,
        # Parquet lacks some Arrow types (timestamps in seconds, for one); the recorded type restores them.
        "case_id": base64.b64encode(pa.schema([(_CASE_ID, partition.case_ids.type)]).serialize()).decode(),
    }
    if partition.kept is not None:
        metadata["kept"] = partition.kept.column_names
    table = pa.Table.from_arrays(list(columns.values()), list(columns), metadata={_METADATA: json.dumps(metadata)})
    with aside(Path(path)) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_statistics=False)


def kept_file(path: str | os.PathLike[str]) -> Path:
    """Return the file of the kept columns of a partition at `path`."""
    return Path(path).with_suffix(".arrow")


def _write_kept(kept: pa.Table, path: Path) -> None:
    # Not as columns of the Parquet file: that has neither all types of Arrow nor the order of a dictionary's values.
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with aside(path) as temporary, pa.ipc.new_file(str(temporary), kept.schema, options=options) as file:
        file.write_table(kept)


def _read_kept(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as file, pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(use_threads=False)) as read:
        return read.read_all()


def read_partition(path: str | os.PathLike[str], kept: bool = False) -> EncodedPartition:
    """Read what `write_partition` wrote, equal in every bit; raises RunError for anything else.

    path: of the partition.
    kept: whether the kept columns are read as well.
    """
    try:
        with pq.ParquetFile(path) as file:
            metadata = json.loads((file.schema_arrow.metadata or {}).get(_METADATA, b"{}"))
            _refuse_other_versions(metadata, path)
            # Workers read partitions concurrently; threads in each of them would only compete.
            table = file.read(use_threads=False)
        kind = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(metadata["case_id"]))).field(0).type
        columns = {name: in_one_piece(column) for name, column in zip(table.column_names, table.columns, strict=True)}
        batch = _batch(columns, table.num_rows)
        carried = _read_kept(kept_file(path)) if kept and "kept" in metadata else None
        return EncodedPartition(batch, columns[_CASE_ID].cast(kind), metadata["first_row"], carried)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: cannot be read as encoded evidence ({error}): start the run anew") from error


def _refuse_other_versions(metadata: dict[str, Any], path: str | os.PathLike[str]) -> None:
    version = metadata.get("format_version")
    if version != FORMAT_VERSION:
        raise RunError(
            f"{path}: found encoded evidence of format version {version}, expected {FORMAT_VERSION}: start the run anew"
        )


def _columns(partition: EncodedPartition) -> Iterator[tuple[str, pa.Array]]:
    batch = partition.batch
    yield _CASE_ID, partition.case_ids
    for variable, states in batch.states.items():
        yield f"s{variable}", _packed(states)
    for variable, likelihood in batch.likelihoods.items():
        yield f"l{variable}", _spread(likelihood, batch.rows)
    yield _REASON, reason_array(batch.invalid, batch.rows)


def _packed(states: npt.NDArray[np.int32]) -> pa.Array:
    # Most variables have fewer than 256 states: one byte a cell. UNOBSERVED is null, so that the type can be unsigned.
    small = np.min_scalar_type(max(0, int(states.max(initial=0))))
    return number_array(states.astype(small), states == UNOBSERVED)


def _spread(likelihood: SoftEvidence, rows: int) -> pa.Array:
    """Return likelihoods as lists for all rows, null in rows without one."""
    values = np.zeros((rows, likelihood.values.shape[1]))
    values[likelihood.rows] = likelihood.values
    missing = np.ones(rows, dtype=np.bool_)
    missing[likelihood.rows] = False
    return list_array(values, missing)


def _batch(columns: dict[str, pa.Array], rows: int) -> EvidenceBatch:
    # Names of columns are a letter and the index of a variable, except the two others.
    states, likelihoods = {}, {}
    for name, column in columns.items():
        if name in (_CASE_ID, _REASON):
            continue
        variable = int(name[1:])
        if name.startswith("s"):
            states[variable] = numbers_of(column.cast(pa.int32()), UNOBSERVED)
        else:
            likelihoods[variable] = _gathered(column)
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
