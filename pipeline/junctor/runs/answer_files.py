"""Files of answers: Parquet or Arrow IPC, posteriors as lists or as a column for each state.

Main class: AnswerWriter, kept by runs from part to part. `read_facts` and `batches_of` read such files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from junctor.model.errors import EvidenceError
from junctor.model.network import Network
from junctor.model.options import AnswerFiles, Compression
from junctor.model.query import Query, hidden_name, named_variables
from junctor.runs.results import (
    METADATA_KEY,
    facts_of,
    list_states_of,
    lists_of_scores,
    numbers_of_scores,
    run_of,
    states_of,
    statuses_of,
    tables_for,
)
from junctor.runtime.arrow import columns_of_lists, free_names, in_one_piece, no_rows, numbers_of, parquet_batches
from junctor.runtime.remote import AnyPath, arrow_file, parquet_source

# Rows of a part that tell whether its rows repeat, and the most of them that may differ then.
SAMPLED_ROWS, MOST_DIFFERENT = 4096, 1 / 4
# Rows of a record batch in Arrow files: whoever reads batch by batch holds no whole part.
BATCH_ROWS = 65_536


class AnswerWriter:
    """Writes tables of answers with the same columns; keeps what follows from their names and types.

    files: format, layout and compression.
    """

    # Thousands of columns of a wide network take as long to look through as a small part to write, and one thread at a
    # time does it.

    def __init__(self, files: AnswerFiles) -> None:
        self._files = files
        self._columns: _Columns | None = None

    def write(self, table: pa.Table, path: Path) -> None:
        """Write a table of answers, kept columns included, of the columns of the first one."""
        # Several threads may come first; they find the same.
        columns = self._columns = self._columns or _Columns.of(table.schema, self._files)
        if self._files.layout == "columns":
            table = in_columns(table, columns.lists)
        if self._files.format == "arrow":
            _write_arrow(table, path, self._files.compression)
        else:
            _write_parquet(table, path, self._files, columns)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of a table of answers by what is written of them.

    lists: list column -> names of the columns of its places.
    words: columns of few different values.
    scores: leaves of columns of numbers of scores.
    log: column of logarithms.
    others: columns of no posteriors or scores, whose minima are of use.
    """

    lists: dict[str, list[str]]
    words: list[str]
    scores: list[str]
    log: str
    others: list[str]

    @classmethod
    def of(cls, schema: pa.Schema, files: AnswerFiles) -> _Columns:
        lists, targets = column_names(schema), states_of(schema)
        numbers, scores = {*lists, *numbers_of_scores(schema)}, {*numbers_of_scores(schema)}
        if files.layout == "columns":
            numbers.update(column for columns in lists.values() for column in columns)
            scores = {column for name in scores for column in lists.get(name, [name])}
            schema = schema_in_columns(schema, lists)
        # By measurement, see docs/decisions/0011-columns-of-answers.md: dictionaries are for the few different words of
        # a column, to try them on posteriors can take four times as long as all the rest. Minima of posteriors serve no
        # query either. Nor do those of scores, their states included, which would take a third of their time.
        words = [_leaf(field) for field in schema if _has_words(field)]
        floats = [field.name for field in schema if field.type == pa.float64() and field.name not in numbers]
        others = [name for name in schema.names if name not in numbers and name not in targets]
        leaves = [_leaf(field) for field in schema if field.name in scores]
        return cls(lists, [*words, *files.keep], leaves, floats[-1], others)

    def repeat_in(self, table: pa.Table) -> bool:
        """Return True if few of the rows of a table of scores differ, by the logarithms of its first rows."""
        if not self.scores:
            return False
        # By NumPy: Arrow's own functions take 50 ms to load.
        some = numbers_of(in_one_piece(table.column(self.log).slice(0, SAMPLED_ROWS)), 0)
        return len(np.unique(some)) <= MOST_DIFFERENT * len(some)


def _has_words(field: pa.Field) -> bool:
    kind = field.type.value_type if pa.types.is_fixed_size_list(field.type) else field.type
    return bool(pa.types.is_dictionary(kind) or field.name == "reason")


def _leaf(field: pa.Field) -> str:
    """Return the name by which Parquet knows the cells of a column."""
    return f"{field.name}.list.element" if pa.types.is_fixed_size_list(field.type) else field.name


def _write_arrow(table: pa.Table, path: Path, compression: Compression) -> None:
    # Buffers of a batch are compressed side by side; their bytes do not depend on it.
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    with pa.ipc.new_file(str(path), table.schema, options=options) as file:
        file.write_table(table, max_chunksize=BATCH_ROWS)


def _write_parquet(table: pa.Table, path: Path, files: AnswerFiles, columns: _Columns) -> None:
    from pyarrow import parquet

    # Where rows repeat, dictionaries take half the space of numbers, in the same time; elsewhere half as much again.
    repeated = columns.scores if columns.repeat_in(table) else []
    parquet.write_table(
        table,
        path,
        compression=files.compression,
        compression_level=1 if files.compression == "zstd" else None,
        use_dictionary=[*columns.words, *repeated],
        write_statistics=columns.others,
    )


def in_columns(table: pa.Table, names: dict[str, list[str]] | None = None) -> pa.Table:
    """Return answers with a column of numbers for each state in place of each list; a copy of all numbers.

    table: of answers.
    names: of the columns of each list, None for those of `column_names`.
    """
    from pyarrow import compute as pc

    names, ranked = names or column_names(table.schema), lists_of_scores(table.schema)
    columns: list[pa.Array | pa.ChunkedArray] = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name in ranked:
            # Null inside of a list as well, beyond the last state.
            columns += [pc.list_element(column, place) for place in range(column.type.list_size)]
        else:
            columns += columns_of_lists(in_one_piece(column)) if name in names else [column]
    return pa.Table.from_arrays(columns, schema=schema_in_columns(table.schema, names))


def schema_in_columns(schema: pa.Schema, names: dict[str, list[str]]) -> pa.Schema:
    """Return the schema of `in_columns`; its metadata has the columns of each list under `columns`."""
    fields: list[pa.Field] = []
    for field in schema:
        number = field.type.value_type if field.name in names else None
        fields += [pa.field(column, number) for column in names[field.name]] if number is not None else [field]
    facts = facts_of(schema) | {"columns": names}
    return pa.schema(fields, {**schema.metadata, METADATA_KEY: json.dumps(facts).encode()})


def column_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return list column -> names of the columns of its places, for all lists of answers.

    `variable=state` for each state, `variable.1` for the first place of scores; a name that is taken gets a trailing
    underscore.
    """
    states, ranked = list_states_of(schema), lists_of_scores(schema)
    labels = {name: [f"{name}={state}" for state in names] for name, names in states.items()}
    labels |= {
        name: [f"{name}.{place + 1}" for place in range(schema.field(name).type.list_size)]
        for name in ranked
        if name in schema.names
    }
    lists = [field.name for field in schema if field.name in labels and pa.types.is_fixed_size_list(field.type)]
    free = free_names(set(schema.names) - set(lists))
    return {name: [free(label) for label in labels[name]] for name in lists}


def refuse_taken_names(network: Network, query: Query, files: AnswerFiles) -> None:
    """Raise EvidenceError for a kept column with the name of a column of answers; a hidden one gets another name."""
    if not files.keep:
        return
    schema = tables_for(network, query).schema(pa.int64())
    names = column_names(schema) if files.layout == "columns" else {}
    taken = set(schema_in_columns(schema, names).names)
    hidden = named_variables(network, query) if query.hide_targets else ()
    for name in files.keep:
        if name in hidden:
            if hidden_name(name) in taken or hidden_name(name) in files.keep:
                raise EvidenceError(
                    f"cannot keep column {name!r} as {hidden_name(name)!r}, since there is another column of that name"
                )
            continue
        if name in taken and name in network.index:
            raise EvidenceError(
                f"cannot keep column {name!r}: the answers have a column of that name for the target {name!r}; name "
                "the targets without it, or rename the column"
            )
        if name in taken:
            raise EvidenceError(
                f"cannot keep column {name!r}: the answers have a column of that name; "
                + ("case ids are in them anyway" if name == "case_id" else "rename it in the evidence")
            )


def refuse_other_types(kept: pa.Schema, files: AnswerFiles) -> None:
    """Raise EvidenceError for a kept column whose type the format of the answers has not."""
    for field in kept if files.format == "parquet" else ():
        if not is_in_parquet(field):
            raise EvidenceError(
                f"cannot keep column {field.name!r}: Parquet has no cells of type {field.type}; write the answers with "
                "--output-format arrow"
            )


def is_in_parquet(field: pa.Field) -> bool:
    """Return True if Parquet has cells of the type of a column."""
    from pyarrow import parquet

    try:
        parquet.write_table(no_rows(pa.schema([field])), pa.BufferOutputStream())
    # Cells of no bytes are an OSError.
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, OSError):
        return False
    try:
        # Words of dictionaries are looked at where there are rows.
        parquet.write_table(pa.table({field.name: pa.nulls(1, field.type)}), pa.BufferOutputStream())
    except pa.ArrowNotImplementedError:
        return False
    except pa.ArrowInvalid:
        # A field of a record that may not be null.
        return True
    return True


def read_facts(path: AnyPath) -> tuple[int, dict[str, int], str | None]:
    """Return the rows of a part, those of each status, and the run that it names, without reading its rows.

    Raises ArrowInvalid, KeyError or TypeError for a damaged file.
    """
    schema = schema_of_part(path)
    statuses = statuses_of(schema)
    return sum(statuses.values()), statuses, run_of(schema)


def batches_of(path: AnyPath, rows: int) -> Iterator[pa.Table]:
    """Yield the rows of a part in tables of at most `rows`, with the metadata of the part."""
    from pyarrow import parquet

    if path.suffix == ".arrow":
        with arrow_file(path) as source, pa.ipc.open_file(source) as file:
            for i in range(file.num_record_batches):
                table = pa.Table.from_batches([file.get_batch(i)])
                # Damaged files may have offsets out of range, which crash the process.
                table.validate(full=True)
                for first in range(0, table.num_rows, rows):
                    yield table.slice(first, rows)
    else:
        with parquet.ParquetFile(parquet_source(path)) as file:
            for batch in parquet_batches(file, rows):
                batch.validate(full=True)
                yield pa.Table.from_batches([batch], file.schema_arrow)


def columns_in_batches(path: AnyPath, names: Sequence[str], rows: int) -> Iterator[pa.Table]:
    """Yield some columns of a part in tables of at most `rows`; other columns are not read. One table at least."""
    from pyarrow import parquet

    if path.suffix == ".arrow":
        schema = schema_of_part(path)
        options = pa.ipc.IpcReadOptions(included_fields=[schema.names.index(name) for name in names])
        with arrow_file(path) as source, pa.ipc.open_file(source, options=options) as file:
            yield pa.Table.from_batches([], file.schema).select(list(names))
            for i in range(file.num_record_batches):
                yield pa.Table.from_batches([file.get_batch(i)]).select(list(names))
    else:
        with parquet.ParquetFile(parquet_source(path)) as file:
            yield file.schema_arrow.empty_table().select(list(names))
            for batch in parquet_batches(file, rows, columns=list(names)):
                yield pa.Table.from_batches([batch]).select(list(names))


def empty_answers(parts: Sequence[AnyPath]) -> pa.Table:
    """Return a table without rows, of the columns of some parts."""
    return no_rows(schema_of_part(parts[0]))


def schema_of_part(path: AnyPath) -> pa.Schema:
    """Return the schema of a part, without reading its rows."""
    from pyarrow import parquet

    if path.suffix == ".arrow":
        with arrow_file(path) as source, pa.ipc.open_file(source) as file:
            return file.schema
    with parquet.ParquetFile(parquet_source(path)) as file:
        return file.schema_arrow
