"""Answers to sequences as an Arrow table, one row a sequence; and encoded partitions of sequences on disk.

Main functions: `answers_table`, `write_sequences` and `read_sequences`, called by the API and by runs.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet

from junctor.hmm.engine import SequenceAnswers
from junctor.hmm.model import HiddenMarkovModel
from junctor.hmm.packing import SequenceBatch
from junctor.hmm.sequences import EncodedSequences
from junctor.model.answers import OK, STATUS_NAMES
from junctor.runs.results import METADATA_KEY, part_metadata, status_array
from junctor.runtime.arrow import (
    in_one_piece,
    list_array,
    number_array,
    numbers_of,
    ragged_array,
    reason_array,
    string_array,
)
from junctor.runtime.files import Checksum, checksum_of, encoded, written_atomically
from junctor.runtime.remote import AnyPath, parquet_source

# Columns of answers, in this order: `case_id`; `path` (a list with one state a step: its name, or its number for states
# without names), or for posteriors `posterior` (a list with one fixed-size list a step, one number a state);
# `log_probability` (of path and sequence) or `log_likelihood` (of the sequence), natural logarithms; `status`;
# `reason`. A row that is not `ok` has its reason and is null in its answers.
FORMAT_VERSION = 1
_ENCODED = b"junctor.sequences"


def answers_table(answers: SequenceAnswers, case_ids: pa.Array, model: HiddenMarkovModel) -> pa.Table:
    """Return the answers to a batch; the metadata under `junctor.part` has the number of rows of each status."""
    bad = answers.status != OK
    kept = np.repeat(~bad, np.diff(answers.starts))
    if answers.states is not None:
        names, steps = ("path", "log_probability"), _states(answers.states[kept], model)
    else:
        assert answers.posteriors is not None
        # No copy of all posteriors for a batch without bad rows.
        whole = bool(kept.all())
        names = "posterior", "log_likelihood"
        steps = list_array(answers.posteriors if whole else answers.posteriors[kept])
    columns = {
        "case_id": case_ids,
        names[0]: ragged_array(steps, np.where(bad, 0, np.diff(answers.starts)), bad),
        names[1]: number_array(answers.log_value, bad),
        "status": status_array(answers.status, STATUS_NAMES),
        "reason": reason_array(answers.reasons, len(bad)),
    }
    facts = {"format_version": FORMAT_VERSION, "model_digest": model.digest, "states": model.state_names}
    part = part_metadata(answers.status, STATUS_NAMES)
    return pa.table(columns, metadata={METADATA_KEY: json.dumps(facts).encode(), **part})


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table as Parquet."""
    parquet.write_table(table, path, compression="zstd", compression_level=1, write_statistics=False)


def write_sequences(part: EncodedSequences, path: AnyPath) -> Checksum:
    """Write a partition, whole or not at all, and return the checksum of its file."""
    batch = part.batch
    if batch.symbols is not None:
        name, width, steps = "symbols", 1, number_array(batch.symbols)
    else:
        assert batch.likelihoods is not None
        name, width, steps = "likelihoods", batch.likelihoods.shape[1], number_array(batch.likelihoods.reshape(-1))
    columns = {
        "case_id": part.case_ids,
        name: ragged_array(steps, batch.lengths * width),
        "reason": reason_array(batch.invalid or {}, len(batch)),
    }
    # Parquet lacks some Arrow types; the recorded one restores them.
    kind = base64.b64encode(pa.schema([("case_id", part.case_ids.type)]).serialize()).decode()
    facts: dict[str, Any] = {"format_version": FORMAT_VERSION, "first_row": part.first_row, "width": width}
    facts["case_id"] = kind
    if batch.partial is not None and len(batch.partial):
        facts["partial"] = batch.partial.tolist()
    with written_atomically(path, alone=False) as temporary:
        write_table(pa.table(columns, metadata={_ENCODED: json.dumps(facts).encode()}), temporary)
        return checksum_of(temporary)


def read_sequences(path: AnyPath) -> EncodedSequences:
    """Read a file of `write_sequences`; raises RunError for anything else."""
    with encoded(path, "sequences"):
        table = parquet.read_table(parquet_source(path), use_threads=False)
        # Damaged files may have offsets out of range, which crash the process.
        table.validate(full=True)
        facts: dict[str, Any] = json.loads(table.schema.metadata[_ENCODED])
        if facts["format_version"] != FORMAT_VERSION:
            raise ValueError(f"format_version {facts['format_version']}, expected {FORMAT_VERSION}")
        kind = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(facts["case_id"]))).field(0).type
        name = "symbols" if "symbols" in table.column_names else "likelihoods"
        lists = in_one_piece(table.column(name))
        if type(facts["width"]) is not int or facts["width"] < 1 or type(facts["first_row"]) is not int:
            raise ValueError(f"found {facts}")
        lengths = numbers_of(lists.value_lengths(), 0) // facts["width"]
        values = numbers_of(lists.flatten(), 0)
        reasons = table.column("reason").to_pylist()
        if not all(reason is None or isinstance(reason, str) for reason in reasons):
            raise ValueError("found reasons that are no text")
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        symbols, likelihoods = (values, None) if name == "symbols" else (None, values.reshape(-1, facts["width"]))
        invalid = {n: reason for n, reason in enumerate(reasons) if reason is not None}
        partial = np.array(facts["partial"], np.int32) if "partial" in facts else None
        batch = SequenceBatch(starts, symbols, likelihoods, invalid, partial)
        return EncodedSequences(batch, in_one_piece(table.column("case_id")).cast(kind), facts["first_row"])


def _states(states: npt.NDArray[Any], model: HiddenMarkovModel) -> pa.Array:
    if model.state_names is None:
        return number_array(states)
    return pa.DictionaryArray.from_arrays(number_array(states.astype(np.int32)), string_array(model.state_names))
