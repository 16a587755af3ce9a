"""Rows that are not ok, in a file of their own: number, case id, kept columns, status and reason.

Main functions: `write_rejects`, called when a run with `--rejects` ends, and `write_rejected_evidence`, of a dataset.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from junctor.model.errors import InputError
from junctor.runs.answer_files import columns_in_batches, is_in_parquet, schema_of_part
from junctor.runs.export import plain_column
from junctor.runtime.arrow import free_names, number_array
from junctor.runtime.files import is_refusal, written_atomically
from junctor.runtime.remote import AnyPath, location, parquet_source, shown

if TYPE_CHECKING:
    from junctor.runs.partition import Part

# Rows that are read at a time.
BATCH_ROWS = 65_536
# Of the line of names of a file that is there.
HEADER_BYTES = 2**20
ENDINGS = (".csv", ".parquet")


def refuse_ending(name: str) -> None:
    """Raise InputError for a file name without an ending that says its format."""
    # Of a URL, whose options follow the name.
    if not location(name).name.endswith(ENDINGS):
        raise InputError(f"--rejects {shown(name)}: expected a name that ends in {' or '.join(ENDINGS)}")


def refuse_others(name: str) -> None:
    """Raise InputError for a file that is there and was not written by `write_rejects`; an empty one is nobody's."""
    path = location(name)
    if not path.exists() or path.stat().st_size == 0:
        return
    names = _names_in(path)
    # The first name is `row`, with underscores where the answers have such a column; so are those of the status.
    if len(names) < 4 or [each.rstrip("_") for each in (names[0], *names[-2:])] != ["row", "status", "reason"]:
        raise InputError(
            f"--rejects {shown(name)}: a file is there that has no rejected rows, and may be the evidence: name "
            "another file, or remove that one"
        )


def _names_in(path: AnyPath) -> list[str]:
    """Return the names of the columns of a file, by its ending; none of a file that is not of that format."""
    from pyarrow import parquet

    try:
        if path.suffix == ".parquet":
            return list(parquet.read_schema(parquet_source(path)).names)
        with path.open("rb") as file:
            header = file.readline(HEADER_BYTES).decode()
        return next(csv.reader([header]), [])
    except (pa.ArrowException, OSError, ValueError, csv.Error) as error:
        if is_refusal(path, error):
            raise
        return []


def write_rejects(folder: AnyPath, parts: Sequence[Part], kept: int, path: AnyPath) -> None:
    """Write the rows of finished parts that are not ok; without any, the columns alone.

    folder: run directory.
    parts: of it, in the order of their rows.
    kept: how many columns of the evidence are among the answers.
    path: of the file, `.csv` or `.parquet`.
    """
    # Answers begin with case ids and kept columns, and end with status and reason.
    schema = schema_of_part(folder / parts[0].file)
    names = [*schema.names[: 1 + kept], *schema.names[-2:]]
    # Cells that Arrow files alone have, or that Arrow does not pick; few functions of it take them.
    fields = [schema.field(name) for name in names[:-2]]
    texts = [each.name for each in fields if not (_can_be_picked(each.type) and is_in_parquet(each))]
    number = free_names(names)("row")
    first = next(columns_in_batches(folder / parts[0].file, names, BATCH_ROWS)).slice(0, 0)
    empty = _numbered(_with_texts(first, texts), 0, number)
    with written_atomically(path) as temporary:
        if path.suffix == ".csv":
            _write_csv(_rejected(folder, parts, names, texts, number), empty, temporary)
        else:
            _write_parquet(_rejected(folder, parts, names, texts, number), empty, temporary)


def _rejected(
    folder: AnyPath, parts: Sequence[Part], names: Sequence[str], texts: Sequence[str], number: str
) -> Iterator[pa.Table]:
    """Yield the rows that are not ok, batch by batch: all of them together may exceed the memory.

    names: of columns.
    texts: names of those whose cells become texts.
    number: name of the column of row numbers.
    """
    first = 0
    for part in parts:
        row = first
        # Of most parts the metadata says all.
        if part.rows > part.statuses["ok"]:
            for table in columns_in_batches(folder / part.file, names, BATCH_ROWS):
                status = table.column(names[-2]).cast(pa.string())
                yield _numbered(_with_texts(table, texts), row, number).filter(pc.not_equal(status, "ok"))
                row += table.num_rows
        first += part.rows


def write_rejected_evidence(parts: Sequence[AnyPath], path: AnyPath) -> None:
    """Write the invalid rows of encoded evidence: number, case id, kept columns and reason; without any the columns.

    parts: files of the evidence, in the order of their rows.
    path: of the file, `.parquet`.
    """
    from junctor.evidence.encoded import EncodedColumns

    columns = EncodedColumns.of(schema_of_part(parts[0]), parts[0])
    names = [columns.names[0], *columns.carried, columns.reason]
    number = free_names(names)("row")
    first = next(columns_in_batches(parts[0], names, BATCH_ROWS)).slice(0, 0)
    with written_atomically(path) as temporary:
        _write_parquet(_rejected_evidence(parts, names, number), _numbered(first, 0, number), temporary)


def _rejected_evidence(parts: Sequence[AnyPath], names: Sequence[str], number: str) -> Iterator[pa.Table]:
    """Yield the invalid rows, batch by batch; arguments as of `_rejected`."""
    from junctor.evidence.encoded import counts_of

    row = 0
    for part in parts:
        rows, invalid = counts_of(part)
        first = row
        if invalid:
            for table in columns_in_batches(part, names, BATCH_ROWS):
                yield _numbered(table, first, number).filter(pc.is_valid(table.column(names[-1])))
                first += table.num_rows
        row += rows


def _can_be_picked(kind: pa.DataType) -> bool:
    """Return True if Arrow can filter cells of a type: views, also within records and lists, it cannot."""
    try:
        pa.nulls(1, kind).filter(pa.array([True]))
    except pa.ArrowNotImplementedError:
        return False
    return True


def _with_texts(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return a table with texts for the cells of some columns."""
    for name in names:
        table = table.set_column(table.column_names.index(name), name, plain_column(table.column(name)))
    return table


def _numbered(table: pa.Table, first: int, number: str) -> pa.Table:
    """Return a table with the numbers of its rows in the evidence, from 1; first: rows before it."""
    numbers = number_array(np.arange(first + 1, first + 1 + table.num_rows, dtype=np.int64))
    return table.replace_schema_metadata(None).add_column(0, number, numbers)


def _write_csv(tables: Iterator[pa.Table], empty: pa.Table, path: Path) -> None:
    from pyarrow.csv import CSVWriter

    def plain(table: pa.Table) -> pa.Table:
        return pa.table([plain_column(column) for column in table.columns], table.column_names)

    with CSVWriter(path, plain(empty).schema) as writer:
        for table in tables:
            writer.write_table(plain(table))


def _write_parquet(tables: Iterator[pa.Table], empty: pa.Table, path: Path) -> None:
    from pyarrow import parquet

    with parquet.ParquetWriter(path, empty.schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)
