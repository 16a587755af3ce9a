"""Results as CSV, part by part. Main function: `write_csv`, called when a run with `--csv` ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from junctor.runs.results import list_states_of


def write_csv(parts: Sequence[Path], path: Path) -> None:
    """Write the answers in `parts`, in that order, to one CSV file with a column `variable=state` for each number.

    Explanations have one column a variable with the name of the state.
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
    states = list_states_of(table.schema)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_fixed_size_list(column.type):
            for i, state in enumerate(states[name]):
                yield f"{name}={state}", pc.list_element(column, i)
        # The writer of Arrow takes no dictionaries.
        elif pa.types.is_dictionary(column.type):
            yield name, column.cast(pa.string())
        else:
            yield name, column
