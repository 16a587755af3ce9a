"""The emissions of time steps as smoothing reads them, on a CPU or a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.hmm.numbers import SumNumbers, largest_of
from junctor.hmm.packing import Lockstep, SequenceBatch

Array = npt.NDArray[Any]


def emissions_of(
    numbers: SumNumbers, batch: SequenceBatch, where: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int32], Array, Array]:
    """Return the emission row of each of some steps, those rows, and the smallest number above zero in each of them."""
    if batch.symbols is not None:
        symbols = batch.symbols[where]
        which = np.where(symbols < 0, len(numbers.emissions) - 1, symbols).astype(np.int32)
        return which, numbers.emissions, numbers.leasts
    assert batch.likelihoods is not None
    emissions, leasts = numbers.scaled(batch.likelihoods[where])
    return np.arange(len(where), dtype=np.int32), emissions, leasts


def offsets_of(numbers: SumNumbers, batch: SequenceBatch, steps: Lockstep, where: npt.NDArray[np.int64]) -> Array:
    """Return the logarithm of what the emissions of each sequence were divided by. where: of the steps of all rows."""
    if batch.likelihoods is None or numbers.logs:
        return np.zeros(len(steps.sequences))
    slots = np.arange(len(where)) - np.repeat(steps.starts[:-1], steps.counts)
    found: Array = np.bincount(slots, largest_of(batch.likelihoods)[where], len(steps.sequences))
    return found
