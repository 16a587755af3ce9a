"""Model files: Parquet or JSON; a two-slice network in any format of networks.

Main functions: `read_model` and `write_model`, called by the API and by runs.
"""

from __future__ import annotations

import gzip
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from junctor.formats.files import read_bytes
from junctor.hmm.model import HiddenMarkovModel, SparseMatrix, build_model
from junctor.model.errors import ModelError, Place
from junctor.runtime.files import MAX_BYTES, is_refusal, parse_json, refused, written_atomically
from junctor.runtime.remote import AnyPath, RemotePath, location, parquet_source

if TYPE_CHECKING:
    import pyarrow as pa

# Parquet (`.parquet`), one row a state, columns:
#
#     state        string        name of the state; no column for states without names
#     start        double        P(first state)
#     transition   list<double>  P(next state), one number for each state; or, for a sparse matrix,
#     to           list<int32>   the possible next states, and
#     probability  list<double>  their probabilities
#     emission     list<double>  P(symbol); no column for sequences with log-likelihoods
#
# Metadata `junctor.hmm`: JSON with `format_version`; for symbols with names `symbols`; where a symbol is a state of
# each of several sensors, `sensors` as well, {name: [states]}.
#
# JSON (`.json`, `.json.gz`): an object with `start`, `transition`, `emission` (lists as above), `states`, `symbols`
# (names), `sensors`; the transition may be {"to": [[...]], "probability": [[...]]}.
FORMAT_VERSION = 1
_METADATA = b"junctor.hmm"
_KEYS = {"start", "transition", "emission", "states", "symbols", "sensors"}


def read_model(path: str | os.PathLike[str] | RemotePath, format: str | None = None) -> HiddenMarkovModel:
    """Read a model: Parquet or JSON by its name, anything else as a two-slice network (`junctor.hmm.slices`).

    path: file.
    format: "parquet", "json", or a format of networks; None for the format of the name.
    Raises ModelError with the place of the error.
    """
    source = location(path)
    name = source.name.lower()
    if format == "json" or (format is None and name.endswith((".json", ".json.gz"))):
        return _from_json(source)
    if format in (None, "parquet") and name.endswith(".parquet") and _is_model(source):
        return _from_parquet(source)
    # A Parquet file without our metadata may be a network, which `read_network` knows by its seal.
    from junctor.formats import read_network
    from junctor.hmm.slices import from_slices

    return from_slices(read_network(source, format), Place(str(source)))


def write_model(model: HiddenMarkovModel, path: str | os.PathLike[str] | RemotePath) -> None:
    """Write a model as Parquet or, where the name ends in `.json` or `.json.gz`, as JSON; whole or not at all."""
    target = location(path)
    with written_atomically(target) as temporary:
        if target.name.lower().endswith((".json", ".json.gz")):
            text = json.dumps(_record(model)).encode()
            temporary.write_bytes(gzip.compress(text, mtime=0) if target.suffix.lower() == ".gz" else text)
        else:
            from pyarrow import parquet

            parquet.write_table(_table(model), temporary, compression="zstd", row_group_size=256)


def _record(model: HiddenMarkovModel) -> dict[str, Any]:
    transition: Any
    if isinstance(model.transition, SparseMatrix):
        rows = model.transition.starts[1:-1]
        parts: dict[str, npt.NDArray[Any]] = {"to": model.transition.columns, "probability": model.transition.values}
        transition = {key: [row.tolist() for row in np.split(array, rows)] for key, array in parts.items()}
    else:
        transition = model.transition.tolist()
    record: dict[str, Any] = {"states": model.state_names, "symbols": model.symbol_names}
    record["sensors"] = dict(model.sensors) or None
    record |= {"start": model.start.tolist(), "transition": transition}
    if model.emission is not None:
        record["emission"] = model.emission.tolist()
    return {key: value for key, value in record.items() if value is not None}


def _from_json(source: AnyPath) -> HiddenMarkovModel:
    place = Place(str(source))
    # Compressed or not, and never more than a network may have.
    data = read_bytes(source)
    with refused(lambda said: ModelError(f"cannot be read as JSON: {said}", place)):
        return _from_record(parse_json(data), place)


def _from_record(record: Any, place: Place) -> HiddenMarkovModel:
    if not isinstance(record, dict) or not {"start", "transition"} <= record.keys() <= _KEYS:
        keys = sorted(record) if isinstance(record, dict) else type(record).__name__
        raise ModelError(
            f"found {keys}, expected an object with start, transition and maybe others of {sorted(_KEYS)}", place
        )
    transition = record["transition"]
    if isinstance(transition, dict):
        if transition.keys() != {"to", "probability"}:
            raise ModelError(f"transition: found {sorted(transition)}, expected 'to' and 'probability'", place)
        transition = _sparse_of_lists(transition["to"], transition["probability"], place)
    names = record.get("states"), record.get("symbols")
    return build_model(record["start"], transition, record.get("emission"), *names, place, record.get("sensors"))


def _sparse_of_lists(to: Any, probability: Any, place: Place) -> SparseMatrix:
    try:
        lengths = [len(row) for row in to]
        if lengths != [len(row) for row in probability]:
            raise ValueError("a state has more or fewer probabilities than next states")
        states = [state for row in to for state in row]
        if not all(type(state) is int for state in states):
            raise ValueError("next states have to be numbers, from 0")
        values = np.array([number for row in probability for number in row], np.float64)
    except (TypeError, ValueError) as error:
        raise ModelError(f"transition: {error}", place) from None
    # Numbers of any size: what is no state is refused with the other checks, and none may wrap to one until then.
    columns = np.array([state if 0 <= state < len(lengths) else -1 for state in states], np.int32)
    return SparseMatrix(np.cumsum([0, *lengths]), columns, values)


def _is_model(source: AnyPath) -> bool:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return _METADATA in (parquet.read_schema(parquet_source(source)).metadata or {})
    except OSError as error:
        if is_refusal(source, error):
            # A model that is read again with success would be called a network that is none.
            raise ModelError(f"cannot be read: {error.strerror}", Place(str(source))) from error
    except (ValueError, pa.ArrowException):
        pass
    return False  # the reader of networks reports the error


def _table(model: HiddenMarkovModel) -> pa.Table:
    import pyarrow as pa

    from junctor.runtime.arrow import number_array, ragged_array, string_array

    def lists(rows: npt.NDArray[np.float64]) -> pa.Array:
        return ragged_array(number_array(rows.reshape(-1)), np.full(len(rows), rows.shape[1]))

    columns: dict[str, pa.Array] = {}
    if model.state_names is not None:
        columns["state"] = string_array(model.state_names)
    columns["start"] = number_array(model.start)
    if isinstance(model.transition, SparseMatrix):
        lengths = np.diff(model.transition.starts)
        columns["to"] = ragged_array(number_array(model.transition.columns), lengths)
        columns["probability"] = ragged_array(number_array(model.transition.values), lengths)
    else:
        columns["transition"] = lists(model.transition)
    if model.emission is not None:
        columns["emission"] = lists(model.emission)
    facts: dict[str, Any] = {"format_version": FORMAT_VERSION}
    if model.symbol_names is not None:
        facts["symbols"] = model.symbol_names
    if model.sensors:
        facts["sensors"] = dict(model.sensors)
    return pa.table(columns, metadata={_METADATA: json.dumps(facts).encode()})


def _from_parquet(source: AnyPath) -> HiddenMarkovModel:
    from pyarrow import parquet

    from junctor.formats.store import refuse_bomb
    from junctor.runtime.footers import chunks_of

    place = Place(str(source))
    with refused(lambda said: ModelError(f"cannot be read as a hidden Markov model: {said}", place)):
        with parquet.ParquetFile(parquet_source(source)) as file:
            with source.open("rb") as data:
                # A matrix of equal numbers is a small file as well.
                refuse_bomb(chunks_of(data), source.stat().st_size, place, MAX_BYTES)
            table = file.read(use_threads=False)
        # Damaged files may have offsets out of range, which crash the process.
        table.validate(full=True)
        facts = json.loads(table.schema.metadata[_METADATA])
        if facts.get("format_version") != FORMAT_VERSION:
            raise ModelError(f"found format_version {facts.get('format_version')!r}, expected {FORMAT_VERSION}", place)
        names = table.column("state").to_pylist() if "state" in table.column_names else None
        start = table.column("start").to_numpy()
        emission = _matrix(table, "emission", place) if "emission" in table.column_names else None
        transition: Any
        if "to" in table.column_names:
            to, probability = table.column("to").combine_chunks(), table.column("probability").combine_chunks()
            lengths = to.value_lengths().to_numpy(zero_copy_only=False)
            if not np.array_equal(lengths, probability.value_lengths().to_numpy(zero_copy_only=False)):
                raise ModelError("transition: a state has more or fewer probabilities than next states", place)
            columns, values = (column.flatten().to_numpy(zero_copy_only=False) for column in (to, probability))
            transition = SparseMatrix(np.cumsum([0, *lengths]), columns, values)
        else:
            transition = _matrix(table, "transition", place)
        # Within: names and numbers of other types than they should be.
        return build_model(start, transition, emission, names, facts.get("symbols"), place, facts.get("sensors"))


def _matrix(table: pa.Table, name: str, place: Place) -> npt.NDArray[np.float64]:
    column = table.column(name).combine_chunks()
    lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
    if len(lengths) != 1:
        raise ModelError(f"{name}: found lists of lengths {lengths.tolist()[:5]}, expected one length", place)
    matrix: npt.NDArray[np.float64] = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
    return matrix
