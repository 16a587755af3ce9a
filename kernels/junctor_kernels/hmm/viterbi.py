"""Most probable paths of hidden Markov models: the NumPy reference that all other backends match bit by bit.

    row[t, j] = max over i of (row[t - 1, i] + transition[i, j]) + emission[j], minus its largest entry

Main functions: `trellis_of` and `trace` (Viterbi 1967). All numbers are natural logarithms, -inf for impossible states.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]


# Sequences of a batch are ordered by length, longest first, so that those that go on at a tick come first. Rows of a
# trellis are ordered by tick, then by sequence: tick t has `counts[t]` rows, from row `starts[t]` on. Only two numbers
# are added at a time, and maxima do not depend on an order, so every backend has the same rows in one precision.


def add_emissions(rows: Array, emissions: Array) -> Array:
    """Return the rows [n, states] of a tick from its maxima: emissions added, the largest entry subtracted."""
    sums = rows + emissions
    # Subtracted, so that logarithms of long sequences keep their digits; -inf - -inf would be nan.
    largest = sums.max(axis=1, keepdims=True)
    scaled: Array = sums - np.where(largest == -np.inf, rows.dtype.type(0), largest)
    return scaled


def advance(rows: Array, transition: Array) -> Array:
    """Return the maxima [n, states] of the next tick: the (max, +) product of rows and matrix."""
    return np.stack([(row[:, None] + transition).max(axis=0) for row in rows])


def trellis_of(start: Array, transition: Array, emissions: Array, counts: Integers) -> Array:
    """Return all rows [rows, states] of a batch.

    start: [states].
    transition: [states, states].
    emissions: [rows, states], in the order of the rows.
    counts: int64 [ticks], sequences at each tick.
    """
    starts = np.cumsum([0, *counts])
    rows = add_emissions(np.repeat(start[None], counts[0], axis=0), emissions[: counts[0]])
    ticks = [rows]
    for t in range(1, len(counts)):
        rows = add_emissions(advance(rows[: counts[t]], transition), emissions[starts[t] : starts[t + 1]])
        ticks.append(rows)
    return np.concatenate(ticks)


def trace(trellis: Array, transition: Array, counts: Integers) -> npt.NDArray[np.int32]:
    """Return the state of each row, int32 [rows], on the most probable path of its sequence.

    trellis: of `trellis_of`.
    transition: [states, states].
    counts: int64 [ticks], sequences at each tick.
    """
    # Predecessors are computed again instead of stored: the first state with the largest sum, so that ties go to the
    # smaller state, at the end of a sequence as well.
    starts = np.cumsum([0, *counts])
    states = np.zeros(len(trellis), np.int32)
    for t in reversed(range(len(counts))):
        # Sequences that end at this tick choose freely, others by the state that follows.
        going_on = counts[t + 1] if t + 1 < len(counts) else 0
        for n in range(counts[t]):
            sums = trellis[starts[t] + n]
            if n < going_on:
                sums = sums + transition[:, states[starts[t + 1] + n]]
            states[starts[t] + n] = sums.argmax()
    return states
