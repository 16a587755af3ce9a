"""Sequences in, tables out, in this process: neither Prefect nor Dask is imported."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from junctor.hmm.engine import SequenceEngine, SequenceKind
from junctor.hmm.model import HiddenMarkovModel
from junctor.model.options import DeviceChoice
from junctor.model.query import Precision
from junctor.planning.budget import parse_bytes
from junctor.runtime.devices import check_device
from junctor.runtime.machine import usable_cores

if TYPE_CHECKING:
    import pyarrow as pa


def viterbi(
    model: HiddenMarkovModel | str | os.PathLike[str],
    sequences: Any,
    precision: Precision = "double",
    *,
    memory: int | str | None = None,
    threads: int | None = None,
    device: DeviceChoice = "auto",
    device_memory: int | str | None = None,
    spill: str | os.PathLike[str] | None = None,
    disk: int | str | None = None,
) -> pa.Table:
    """Return the most probable path of each sequence, and log P(path, sequence).

    model: a model, or the path of a model file. sequences: a list of lists, an Arrow list array, or a table with one
    list column; symbols by name or index, null where nothing was observed, or lists of log-likelihoods of the states.
    memory: bytes for rows of the trellis, None for a share of what is free; device_memory: of them on a GPU; spill,
    disk: folder and bytes of files for rows beyond. threads: None for all cores.

    The columns are `case_id`, `path`, `log_probability` (natural logarithm), `status` and `reason`. Ties go to the
    smaller state, the same on every device. Raises ModelError, EvidenceError, BudgetError, DiskError or DeviceError.
    """
    limits = _limits(device_memory, spill, disk)
    return _answer(model, sequences, "viterbi", precision, memory, threads, device, limits)


def posteriors(
    model: HiddenMarkovModel | str | os.PathLike[str],
    sequences: Any,
    precision: Precision = "double",
    *,
    memory: int | str | None = None,
    threads: int | None = None,
    device: DeviceChoice = "auto",
    device_memory: int | str | None = None,
    spill: str | os.PathLike[str] | None = None,
    disk: int | str | None = None,
) -> pa.Table:
    """Return the posterior of the state at each step of each sequence, and log P(sequence).

    Arguments and errors as for `viterbi`. The columns are `case_id`, `posterior`, `log_likelihood`, `status`, `reason`.
    """
    limits = _limits(device_memory, spill, disk)
    return _answer(model, sequences, "posteriors", precision, memory, threads, device, limits)


def _limits(
    device_memory: int | str | None, spill: str | os.PathLike[str] | None, disk: int | str | None
) -> dict[str, Any]:
    folder = None if spill is None else str(spill)
    return {"device_memory": _size(device_memory), "disk": _size(disk), "spill": folder}


def _size(size: int | str | None) -> int | None:
    return parse_bytes(str(size)) if size is not None else None


def _answer(
    model: HiddenMarkovModel | str | os.PathLike[str],
    sequences: Any,
    kind: SequenceKind,
    precision: Precision,
    memory: int | str | None,
    threads: int | None,
    device: DeviceChoice,
    limits: dict[str, Any],
) -> pa.Table:
    from junctor.hmm.formats import read_model
    from junctor.hmm.results import answers_table
    from junctor.hmm.sequences import encode_sequences

    if not isinstance(model, HiddenMarkovModel):
        model = read_model(model)
    check_device(device)
    threads = usable_cores() if threads is None else threads
    engine = SequenceEngine(model, kind, precision, _size(memory), threads, device, **limits)
    encoded = encode_sequences(sequences, model)
    return answers_table(engine.answer(encoded.batch), encoded.case_ids, model)
