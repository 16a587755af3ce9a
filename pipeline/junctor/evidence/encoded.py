"""Encoded partitions on disk: Parquet files that read like the table that the evidence was.

Columns: the case ids; a variable each, dictionaries of the names of all its states in the order of the network, null
where unobserved; `X_likelihood`, fixed-size lists of doubles, null where there are none; `reason`, null where the row
is valid; columns that are carried through. A name that is taken gets a trailing `_`. Metadata: `junctor.evidence`, JSON
with `format_version`, `first_row`, the number of columns of states, the variables of those of likelihoods, and the
types of case ids and kept columns.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Container, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
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
from junctor.runtime.remote import AnyPath, RemotePath, arrow_file, location, parquet_source

FORMAT_VERSION = 3
_METADATA = b"junctor.evidence"
_REASON, _CASE_ID = "reason", "case_id"
# Of the page of Parquet with the words of a column: states that are not in it would lose their order.
_WORDS_BYTES = 2**30


def write_partition(
    partition: EncodedPartition,
    network: Network,
    path: str | os.PathLike[str] | RemotePath,
    group_cells: int | None = None,
) -> Checksum:
    """Write a partition, whole or not at all, and return the checksum of its file; its name is still to be synced.

    network: whose evidence it is.
    group_cells: about how many cells can be read apart, None for all of them together.
    """
    from pyarrow import parquet

    table = _table(partition, network)
    ids, names = table.schema.field(0), table.column_names
    end = 1 + len(partition.batch.states)
    reason = names[end + len(partition.batch.likelihoods)]
    # States take a few bits each as they are.
    packed = [ids.name, *names[end:]]
    words = [each.name for each in table.schema if pa.types.is_dictionary(each.type)]
    with written_atomically(location(path), alone=False) as temporary:
        parquet.write_table(
            table,
            temporary,
            row_group_size=max(1, table.num_rows if group_cells is None else group_cells // len(names)),
            compression=dict.fromkeys(packed, "lz4"),
            use_dictionary=[*words, reason],
            dictionary_pagesize_limit=_WORDS_BYTES,
            column_encoding={ids.name: "DELTA_BINARY_PACKED"} if ids.type == pa.int64() else None,
            # Minima of states serve no query, and take as long as all the rest.
            write_statistics=[ids.name, reason],
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
    # To look for states that are none takes ten times as long.
    return pa.DictionaryArray.from_arrays(number_array(places, places < 0), _words(names), safe=False)


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
        # Words of dictionaries are looked at where there are rows; records with views cannot be cut from others.
        parquet.write_table(pa.table([pa.nulls(2, kind).slice(1)], [""]), stream)
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
        return read_cells(file, path, network, kept=kept)


def _opened(path: AnyPath) -> AbstractContextManager[pa.NativeFile]:
    # All of an object is wanted, which is one request.
    return pa.BufferReader(path.read_bytes()) if isinstance(path, RemotePath) else arrow_file(path)


@dataclass(frozen=True, slots=True)
class EncodedColumns:
    """The columns of a file of encoded evidence.

    names: of all of them: case ids, states, likelihoods, reasons, kept ones.
    first_row: number of the first row in the table.
    states: names of the variables with a column of states.
    soft: name of a variable -> its column of likelihoods.
    case_id_type, kept: types of what is carried through, and the names that it was given with.
    """

    names: list[str]
    first_row: int
    states: list[str]
    soft: dict[str, str]
    case_id_type: pa.DataType
    kept: pa.Schema | None

    @classmethod
    def of(cls, schema: pa.Schema, path: AnyPath) -> EncodedColumns:
        """Return the columns of a schema; raises RunError for one of something else."""
        metadata: dict[str, Any] = json.loads((schema.metadata or {}).get(_METADATA, b"{}"))
        if (version := metadata.get("format_version")) != FORMAT_VERSION:
            raise RunError(
                f"{path}: found encoded evidence of format version {version}, expected {FORMAT_VERSION}: start the run "
                "anew"
            )
        names, begin = schema.names, 1 + metadata["states"]
        soft = dict(zip(metadata["likelihoods"], names[begin : begin + len(metadata["likelihoods"])], strict=True))
        kept = _schema_of(metadata["kept"]) if "kept" in metadata else None
        kind = _schema_of(metadata["case_id"]).types[0]
        return cls(names, metadata["first_row"], names[1:begin], soft, kind, kept)

    @property
    def reason(self) -> str:
        """The column of reasons."""
        return self.names[1 + len(self.states) + len(self.soft)]

    @property
    def carried(self) -> list[str]:
        """The columns of what is kept, in its order."""
        return self.names[2 + len(self.states) + len(self.soft) :]


def is_encoded(schema: pa.Schema) -> bool:
    """Return True for the schema of a file of encoded evidence."""
    return _METADATA in (schema.metadata or {})


def counts_of(path: AnyPath) -> tuple[int, int]:
    """Return the rows of a file of encoded evidence, and how many are invalid, without reading them."""
    from pyarrow import parquet

    with parquet.ParquetFile(parquet_source(path)) as file:
        columns, footer = EncodedColumns.of(file.schema_arrow, path), file.metadata
    # A group without rows has no statistics.
    groups = [footer.row_group(i) for i in range(footer.num_row_groups if footer.num_rows else 0)]
    at = footer.schema.names.index(columns.reason) if groups else 0
    valid = sum(group.column(at).statistics.null_count for group in groups)
    return footer.num_rows, footer.num_rows - valid


class OtherNetworkError(ValueError):
    """Names in encoded evidence that a network has not."""


def read_cells(
    file: Any,
    path: AnyPath,
    network: Network,
    groups: Sequence[int] | None = None,
    kept: bool = False,
    without: Container[str] = (),
) -> EncodedPartition:
    """Return the rows of a file of encoded evidence, whatever it raises for one that is damaged.

    file: what Arrow reads.
    path: of it, for errors.
    network: that has the names in it; raises OtherNetworkError if it lacks one.
    groups: row groups that are read, None for all.
    kept: whether the kept columns are read as well.
    without: variables whose evidence is left out.
    """
    from pyarrow import parquet

    with parquet.ParquetFile(file) as opened:
        columns, footer = EncodedColumns.of(opened.schema_arrow, path), opened.metadata
    observed = [name for name in columns.states if name not in without]
    soft = {name: column for name, column in columns.soft.items() if name not in without}
    carried = columns.carried if kept else []
    wanted = [columns.names[0], *observed, *soft.values(), columns.reason, *carried]
    # Read as words at once, a column takes half the time.
    with parquet.ParquetFile(file, metadata=footer, read_dictionary=observed) as opened:
        some = range(opened.num_row_groups) if groups is None else groups
        # Workers read partitions concurrently; threads in each of them would only compete.
        table = opened.read_row_groups(list(some), wanted, use_threads=False).select(wanted)
    found = {name: in_one_piece(column) for name, column in zip(wanted, table.columns, strict=True)}
    for name in (columns.names[0], *wanted[1 + len(observed) :]):
        # Damaged files may have offsets out of range, which crash the process.
        found[name].validate(full=True)
    batch = _batch({name: found[name] for name in observed}, {name: found[soft[name]] for name in soft}, network)
    batch = replace(batch, rows=table.num_rows, invalid=_invalid(found[columns.reason]))
    through = None
    if kept and columns.kept is not None:
        cells = [_of_cells(found[name], kind) for name, kind in zip(carried, columns.kept.types, strict=True)]
        through = pa.Table.from_arrays(cells, schema=columns.kept)
    ids = _of_cells(found[columns.names[0]], columns.case_id_type)
    return EncodedPartition(batch, ids, columns.first_row, through)


def _batch(states: dict[str, pa.Array], soft: dict[str, pa.Array], network: Network) -> EvidenceBatch:
    """Return the evidence in columns of states and of likelihoods, by the names of variables; rows: still to be set."""
    rows = max(map(len, states.values()), default=0)
    cells = np.empty((len(states), rows), np.int32)
    for column, here in zip(states.values(), cells, strict=True):
        if not pa.types.is_dictionary(column.type):
            raise ValueError(f"found states of type {column.type}")
        here[:] = numbers_of(column.indices, UNOBSERVED)
    words = np.array([max(1, len(column.dictionary)) for column in states.values()])
    # By NumPy, for all columns: Arrow's own check takes as long as reading them.
    if rows and ((cells.min(axis=1) < UNOBSERVED) | (cells.max(axis=1) >= words)).any():
        raise ValueError("found states beyond those of their dictionary")
    evidence, complete, likelihoods = {}, set(), {}
    for (name, column), here in zip(states.items(), cells, strict=True):
        variable = _variable(name, network)
        _put_in_order(here, column.dictionary, name, network.variables[variable].states)
        evidence[variable] = here
        if not column.null_count:
            complete.add(variable)
    for name, column in soft.items():
        variable = _variable(name, network)
        likelihoods[variable] = _gathered(column, len(network.variables[variable].states))
    return EvidenceBatch(rows, evidence, likelihoods, {}, frozenset(complete))


def _variable(name: str, network: Network) -> int:
    if name not in network.index:
        raise OtherNetworkError(f"found evidence on {name!r}, which the network has not")
    return network.index[name]


def _put_in_order(places: npt.NDArray[np.int32], words: pa.Array, variable: str, names: tuple[str, ...]) -> None:
    """Turn places in a dictionary into states of a network; raises OtherNetworkError for words that are none."""
    if words.equals(_words(names)):
        return
    words.validate(full=True)
    # Of a network with the same states in another order.
    at = {name: state for state, name in enumerate(names)}
    if unknown := [word for word in words.to_pylist() if word not in at]:
        raise OtherNetworkError(f"found the state {unknown[0]!r} of {variable!r}, states are {', '.join(names)}")
    order: npt.NDArray[np.int32] = np.array([*map(at.__getitem__, words.to_pylist()), UNOBSERVED], np.int32)
    places[:] = order[places]


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
