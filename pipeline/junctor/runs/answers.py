"""The answers of a finished run, read back by its manifest.

Main functions: `read_answers`, `answer_batches`, `named_columns`; called by users.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import pyarrow as pa

from junctor.model.arguments import texts
from junctor.model.errors import EvidenceError, RunError, nearest
from junctor.runs.answer_files import columns_in_batches, in_columns, schema_of_part
from junctor.runs.results import METADATA_KEY, PART_KEY, run_of
from junctor.runs.storage import run_digest_of
from junctor.runtime.files import read_json
from junctor.runtime.remote import AnyPath, RemotePath, location

BATCH_ROWS = 65_536
_DAMAGED = "`junctor verify` tells which parts are damaged"


def read_answers(
    output: str | os.PathLike[str] | RemotePath, columns: Sequence[str] | None = None, *, named: bool = False
) -> pa.Table:
    """Return the answers of a finished run as one table, in the order of its evidence.

    output: run directory, or its URL; of an incremental run the inputs that its manifest names, in their order.
    columns: names of those to read, in this order, each once; None for all.
    named: whether each list is told as one column of numbers a state, as by `named_columns`.
    Raises RunError for a run that is not finished, lacks parts or is replaced meanwhile, EvidenceError for unknown
    columns and those named twice.
    """
    batches = answer_batches(output, columns)
    # There is one at the least, and with it the schema.
    table = pa.Table.from_batches(list(batches))
    return named_columns(table) if named else table


def answer_batches(
    output: str | os.PathLike[str] | RemotePath, columns: Sequence[str] | None = None, rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield the answers of a finished run in batches, with one batch of one part in memory at a time.

    Of a run without rows there is one empty batch, which has the columns.

    output, columns: as of `read_answers`.
    rows: of a batch, at the most.
    Raises what `read_answers` raises.
    """
    wanted = None if columns is None else texts("columns", columns)
    if not isinstance(rows, Integral) or rows < 1:
        raise EvidenceError(f"found batches of {rows!r} rows, expected at least 1")
    directory = location(output).absolute()
    record = read_json(directory / "manifest.json")
    parts = _parts(directory, record)
    with _explained(parts[0], directory, record):
        schema = schema_of_part(parts[0].path)
        parts[0].check(schema)
    names = schema.names if wanted is None else list(wanted)
    if not names or len(set(names)) < len(names):
        raise EvidenceError(f"found the columns {names}, expected at least one, and each once")
    for name in names:
        if name not in schema.names:
            raise EvidenceError(f"{output}: the answers have no column {name!r}{nearest(name, schema.names)}")
    # Counts of one part say nothing of all of them.
    facts = {key: value for key, value in (schema.metadata or {}).items() if key != PART_KEY}
    picked = pa.schema([schema.field(name) for name in names], facts)
    found = False
    for part in parts:
        with _explained(part, directory, record):
            for table in columns_in_batches(part.path, names, rows):
                part.check(table.schema)
                for batch in table.cast(picked).to_batches(rows):
                    if batch.num_rows:
                        found = True
                        yield batch
    if not found:
        yield pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in picked.types], schema=picked)


def named_columns(table: pa.Table | pa.RecordBatch) -> pa.Table:
    """Return answers as a table with a column `variable=state` of numbers for each state in place of each list.

    table: of `posteriors`, `most_probable` or `read_answers`, or a batch of `answer_batches`. `to_pandas()` and
        `polars.from_arrow` take the result.
    Raises EvidenceError for other tables.
    """
    # Callers of the library are not held to the type.
    if not isinstance(table, pa.Table | pa.RecordBatch):
        found = type(table).__name__
        raise EvidenceError(f"found {found}, expected answers of Junctor as an Arrow table or record batch")
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if METADATA_KEY not in (table.schema.metadata or {}):
        raise EvidenceError("the table has no names of states in its metadata: expected answers of Junctor")
    # Answers with `--layout columns` have them already.
    return in_columns(table)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the manifest.

    bytes: of the file.
    run: that the part names, unless an earlier version wrote it.
    """

    path: AnyPath
    bytes: int
    run: str

    def check(self, schema: pa.Schema) -> None:
        """Raise ValueError for another file than that of the manifest; schema: of the file."""
        # The checksum would take as long as the rest.
        if run_of(schema) not in (self.run, None) or self.path.stat().st_size != self.bytes:
            raise ValueError("it is not the file that manifest.json named")


@contextmanager
def _explained(part: _Part, directory: AnyPath, record: dict[str, Any] | None) -> Iterator[None]:
    """Context manager: errors of reading a part become a RunError that says what to do.

    record: the manifest that names the part.
    """
    try:
        yield
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        told = (str(error).splitlines() or [type(error).__name__])[0]
        # Parts that a new manifest does not name are removed.
        changed = read_json(directory / "manifest.json") != record
        what = "a run has changed the answers meanwhile: read them again" if changed else _DAMAGED
        raise RunError(f"{part.path}: cannot be read ({told}): {what}") from error


def _parts(directory: AnyPath, record: dict[str, Any] | None) -> list[_Part]:
    if record is None:
        raise RunError(f"{directory}: no finished run here (manifest.json is missing)")
    try:
        run = run_digest_of(record["spec"])
        parts = [_Part(directory / str(part["file"]), part["bytes"], run) for part in record["parts"]]
    except (AttributeError, KeyError, TypeError) as error:
        raise RunError(f"{directory}: manifest.json is not that of a run ({error})") from error
    if not parts:
        raise RunError(f"{directory}: the run has no parts")
    return parts
