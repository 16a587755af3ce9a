"""Results as CSV, part by part. Main function: `write_csv`, called when a run with `--csv` ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

from junctor.runs.answer_files import batches_of, column_names, empty_answers, in_columns
from junctor.runtime.arrow import texts_of_bytes
from junctor.runtime.files import written_atomically
from junctor.runtime.progress import Progress
from junctor.runtime.remote import AnyPath

BATCH_ROWS = 8192


def export_csv(path: AnyPath, parts: Sequence[AnyPath], progress: Progress) -> None:
    """Write the answers in `parts` to the CSV file `path` of a run, unless it is there."""
    if not path.is_file():
        progress.stage("writing CSV")
        with written_atomically(path) as temporary:
            write_csv(parts, temporary)


def write_csv(parts: Sequence[AnyPath], path: Path) -> None:
    """Write the answers in `parts`, in that order, to one CSV file with a column `variable=state` for each number.

    Explanations have one column a variable with the name of the state. Lists of scores (`--top`) have a column for each
    place, `X.1` the most probable one. Lists and records among kept columns are JSON.
    """
    # Batch by batch: all parts together may exceed the memory.
    with csv.CSVWriter(path, _flat(empty_answers(parts)).schema) as writer:
        for part in parts:
            for table in batches_of(part, BATCH_ROWS):
                writer.write_table(_flat(table))


def _flat(table: pa.Table) -> pa.Table:
    table = in_columns(table) if column_names(table.schema) else table
    return pa.table([plain_column(column) for column in table.columns], table.column_names)


def plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of a type that the writer of Arrow takes: it has neither dictionaries nor nested cells."""
    kind = column.type
    if pa.types.is_dictionary(kind) and not _is_json(kind.value_type):
        return plain_column(column.cast(kind.value_type))
    if pa.types.is_string_view(kind):
        return column.cast(pa.string())
    of_bytes = pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view
    if any(is_kind(kind) for is_kind in of_bytes):
        # Text as a rule, which old tools do not declare.
        return pa.chunked_array([pa.array(texts_of_bytes(column), pa.string())])
    if isinstance(kind, pa.UuidType):
        texts = [None if cell is None else str(cell) for cell in column.to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.string())])
    if pa.types.is_dictionary(kind) or _is_json(kind):
        cells = [None if cell is None else json.dumps(cell, default=str) for cell in column.to_pylist()]
        return pa.chunked_array([pa.array(cells, pa.string())])
    return column


def _is_json(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType) or pa.types.is_interval(kind))
