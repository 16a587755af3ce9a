"""Sequences in memory as other libraries have them: arrays with a row for each step, groups of pandas.

Main functions: `cut` and `groups_of`, which make lists of them, and `refuse_unclear`; called by `encode_sequences`.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from junctor.hmm.model import HiddenMarkovModel
from junctor.hmm.packing import SequenceBatch
from junctor.model.errors import EvidenceError

logger = logging.getLogger("junctor")


def cut(steps: Any, lengths: Any, model: HiddenMarkovModel | None, what: str = "sequences") -> pa.Array:
    """Return the lists of steps that stand one after the other; raises EvidenceError for other lengths or shapes.

    steps: symbols [steps] or [steps, 1]; of a model also one-hot rows [steps, symbols], or log-likelihoods [steps,
        states].
    lengths: steps of each sequence.
    model: of the sequences, None for labels.
    what: the steps are called.
    """
    array = steps.to_numpy() if hasattr(steps, "to_numpy") and not isinstance(steps, pa.ChunkedArray) else steps
    if getattr(array, "ndim", 1) == 2:
        array = _one_axis(array, model, what)
    sizes = np.asarray(lengths)
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or (sizes < 0).any() or sizes.sum() != len(array):
        raise EvidenceError(
            f"lengths: found {lengths!r:.60}, expected the steps of each sequence, {len(array):,} in all ({what})"
        )
    cells = array if isinstance(array, pa.Array) else pa.array(array, from_pandas=True)
    return pa.LargeListArray.from_arrays(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), cells)


def _one_axis(array: npt.NDArray[Any], model: HiddenMarkovModel | None, what: str) -> Any:
    """Return a symbol, or a row of log-likelihoods, for each row of an array."""
    width = array.shape[1]
    if model is not None and model.symbols == width > 1 and _are_one_hot(array):
        return np.asarray(array).argmax(axis=1)
    if width == 1:
        return array[:, 0]
    if model is not None and width == model.states:
        return list(np.asarray(array, np.float64))
    expected = "one column" if model is None else "one column, one-hot rows, or a log-likelihood of each state"
    raise EvidenceError(f"found {what} of shape {array.shape} with lengths, expected {expected}")


def groups_of(grouped: Any) -> tuple[pa.Array, list[Any]]:
    """Return the case ids and the steps of groups of a column of pandas; raises EvidenceError for groups of tables."""
    pairs = list(grouped)
    if any(getattr(cells, "ndim", 1) != 1 for _, cells in pairs):
        raise EvidenceError("found groups of tables, expected those of one column: frame.groupby(...)['symbol']")
    keys = [key[0] if isinstance(key, tuple) and len(key) == 1 else key for key, _ in pairs]
    ids = pa.array([str(key) if isinstance(key, tuple) else key for key in keys])
    return ids, [cells for _, cells in pairs]


def refuse_unclear(array: Any, model: HiddenMarkovModel) -> None:
    """Raise EvidenceError for an array of two axes whose rows may be steps of one sequence as well as sequences."""
    rows, width = array.shape
    kind = "rows of one step" if width == 1 else "one-hot rows"
    if rows > 1 and (width == 1 or (width == model.symbols and _are_one_hot(array))):
        raise EvidenceError(
            f"found an array of {rows:,} {kind}, which may be one sequence, or {rows:,}: lengths=[{rows}] makes it one "
            "sequence with a step a row, .tolist() a sequence of each row"
        )


def _are_one_hot(array: Any) -> bool:
    if np.ma.is_masked(array) or np.asarray(array).dtype.kind not in "biuf":
        return False
    numbers = np.asarray(array, np.float64)
    return bool(np.isin(numbers, (0, 1)).all() and (numbers.sum(axis=1) == 1).all())


def warn_of_shapes(batch: SequenceBatch, shape: tuple[int, ...]) -> None:
    """Warn where sequences have one step each, and where rows of an array end in steps without observation.

    shape: of the array that the sequences were; empty for none.
    """
    if len(batch) > 1 and (batch.lengths == 1).all():
        logger.warning("all %d sequences have one step: a single sequence is a list in a list", len(batch))
    if len(shape) == 2 and batch.symbols is not None and len(batch.symbols):
        is_missing = batch.symbols[batch.starts[1:] - 1] < 0
        if is_missing.any() and not is_missing.all():
            logger.warning(
                "%d of %d rows of the array end without an observation, which is a step as any other: where it is "
                "padding, give a list of each length",
                is_missing.sum(),
                len(batch),
            )
