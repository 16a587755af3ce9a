"""Emission rows of time steps: an index for each row of a trellis, and the rows that it refers to.

Main functions: `emission_indices`, for decoding and smoothing; `emissions_of` and `offsets_of`, for smoothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.hmm.numbers import SumNumbers, largest_of
from junctor.hmm.packing import Lockstep, SequenceBatch

Array = npt.NDArray[Any]


def emission_indices(batch: SequenceBatch, where: npt.NDArray[np.int64], unobserved: int) -> npt.NDArray[np.int32]:
    """Return the emission row of each step in `where`: its symbol, or `unobserved`, or its position in `where`."""
    if batch.symbols is None:
        # Sequences with log-likelihoods have a row of their own for each step.
        return np.arange(len(where), dtype=np.int32)
    symbols = batch.symbols[where]
    return np.where(symbols < 0, unobserved, symbols).astype(np.int32)


def emissions_of(
    numbers: SumNumbers, batch: SequenceBatch, where: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int32], Array, Array]:
    """Return the emission row of each step, those rows, and the smallest number above zero in each of them."""
    rows = numbers.emissions, numbers.leasts
    if batch.likelihoods is not None:
        rows = numbers.scaled(batch.likelihoods[where])
    return emission_indices(batch, where, len(numbers.emissions) - 1), *rows


def offsets_of(numbers: SumNumbers, batch: SequenceBatch, steps: Lockstep, where: npt.NDArray[np.int64]) -> Array:
    """Return the logarithm of the divisor of the emissions of each sequence; `where`: steps of all rows."""
    # Only log-likelihoods were scaled; sums over steps put the factor back into log P.
    if batch.likelihoods is None:
        return np.zeros(len(steps.sequences))
    slots = np.arange(len(where)) - np.repeat(steps.starts[:-1], steps.counts)
    largest = largest_of(batch.likelihoods)
    whole = np.rint(largest)
    # Sums of whole numbers are exact, and those of what is left are small.
    offsets: Array = np.bincount(slots, whole[where], len(steps.sequences))
    if not numbers.logs:
        offsets = offsets + np.bincount(slots, (largest - whole)[where], len(steps.sequences))
    return offsets
