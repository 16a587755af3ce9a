"""Results as CSV, part by part. Main function: `write_csv`, called when a run with `--csv` ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from junctor.runs.results import list_states_of
from junctor.runs.score_tables import is_scores


def write_csv(parts: Sequence[Path], path: Path) -> None:
    """Write the answers in `parts`, in that order, to one CSV file with a column `variable=state` for each number.

    Explanations have one column a variable with the name of the state. Lists of scores (`--top`) have a column for each
    place, `X.1` the most probable one; scores without lists are as they are.
    """
    with parquet.ParquetFile(parts[0]) as first:
        schema = _flat(first.schema_arrow.empty_table()).schema
    # Batch by batch: all parts together may exceed the memory.
    with csv.CSVWriter(path, schema) as writer:
        for part in parts:
            with parquet.ParquetFile(part) as file:
                for batch in file.iter_batches(batch_size=8192):
                    writer.write_table(_flat(pa.Table.from_batches([batch], file.schema_arrow)))


def _flat(table: pa.Table) -> pa.Table:
    names, columns = zip(*_columns(table), strict=True)
    return pa.table(list(columns), list(names))


def _columns(table: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray]]:
    labels = {name: [f"={state}" for state in states] for name, states in list_states_of(table.schema).items()}
    ranked = is_scores(table.schema)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_fixed_size_list(column.type):
            for i in range(column.type.list_size):
                yield name + (f".{i + 1}" if ranked else labels[name][i]), _plain(pc.list_element(column, i))
        else:
            yield name, _plain(column)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    # The writer of Arrow takes no dictionaries.
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
