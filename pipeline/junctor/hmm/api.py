"""Decoding and smoothing of sequences in this process. Main functions: `viterbi` and `posteriors`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Unpack

from junctor.hmm.columns import SequenceColumns
from junctor.hmm.engine import SequenceEngine, SequenceKind
from junctor.hmm.model import HiddenMarkovModel
from junctor.model.option_table import ResourceOptions, SequenceOptions, StepOptions, options_for, takes_keywords
from junctor.model.query import Precision, one_of
from junctor.runtime.devices import check_device
from junctor.runtime.machine import compute_options

if TYPE_CHECKING:
    import pyarrow as pa


_ABOUT = {
    "memory": {"python": 'bytes (or "4GiB") for rows of the trellis, None for a share of the free memory.'},
    "device": {"python": '"auto" takes a GPU for enough work.'},
    "device_memory": {"python": "bytes for rows of the trellis on a GPU."},
    "time_limit": {"python": 'seconds (or "10min", "none") that a sequence may be forecast to take, None for a day.'},
}


@takes_keywords(**_ABOUT)
def viterbi(
    model: HiddenMarkovModel | str | os.PathLike[str],
    sequences: Any,
    precision: Precision = "double",
    *,
    lengths: Any = None,
    **options: Unpack[SequenceOptions],
) -> pa.Table:
    """Return the most probable path of each sequence, and log P(path, sequence).

    model: a model, or the path of a model file.
    sequences: a list of lists, an Arrow list array, a column of groups of pandas, or a table (of Arrow, a data frame,
        or a mapping of columns) with one list column, and `case_id`, or with a row for each step; symbols by name or
        index, null for unobserved, or lists of log-likelihoods of the states.
    precision: number format of the computation.
    lengths: steps of each sequence, where `sequences` is an array with a row for each step, of all sequences one after
        the other: symbols [steps] or [steps, 1], one-hot rows [steps, symbols], log-likelihoods [steps, states].
    options: of the table.

    The columns are `case_id`, `path`, `log_probability` (natural logarithm), `status` and `reason`. Ties go to the
    smaller state on every device. Raises ModelError, EvidenceError, BudgetError, DiskError or DeviceError.
    """
    return _answer(model, sequences, lengths, "viterbi", precision, options)


@takes_keywords(**_ABOUT)
def posteriors(
    model: HiddenMarkovModel | str | os.PathLike[str],
    sequences: Any,
    precision: Precision = "double",
    *,
    lengths: Any = None,
    **options: Unpack[SequenceOptions],
) -> pa.Table:
    """Return the posterior of the state at each step of each sequence, and log P(sequence).

    Arguments and errors as for `viterbi`. The columns are `case_id`, `posterior`, `log_likelihood`, `status`, `reason`.
    """
    return _answer(model, sequences, lengths, "posteriors", precision, options)


def _answer(
    model: HiddenMarkovModel | str | os.PathLike[str],
    sequences: Any,
    lengths: Any,
    kind: SequenceKind,
    precision: Precision,
    told: SequenceOptions,
) -> pa.Table:
    # Arrow is imported at first use, and neither Prefect nor Dask at all: a call from a script should be quick.
    from junctor.hmm.formats import read_model
    from junctor.hmm.results import answers_table
    from junctor.hmm.sequences import encode_sequences

    names = SequenceColumns(**options_for(StepOptions, told))
    options = compute_options(**options_for(ResourceOptions, told))
    if not isinstance(model, HiddenMarkovModel):
        model = read_model(model)
    check_device(options.device)
    one_of("precision", precision, Precision)
    engine = SequenceEngine(model, kind, precision, options)
    encoded = encode_sequences(sequences, model, lengths=lengths, names=names)
    return answers_table(engine.answer(encoded.batch), encoded.case_ids, model)
