"""Most probable paths of hidden Markov models: the NumPy reference that all other backends have to match bit by bit.

Sequences of a batch go side by side, longest first, so that those that are under way at a tick come first. Rows of a
trellis are ordered by tick, then by sequence: tick t has `counts[t]` rows and they begin at row `starts[t]`.

    row[t, j] = max over i of (row[t - 1, i] + transition[i, j]) + emission[j], minus its largest entry

All numbers are natural logarithms, -inf for what is impossible, none above 0 but emissions. Two operands are added at a
time, and maxima do not depend on an order, so every backend has the same rows in one precision. The way back finds the
predecessor again instead of keeping it: the first state whose sum is the largest. So a tie goes to the smaller state,
at the end of a sequence as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]


def settle(rows: Array, emissions: Array) -> Array:
    """Return the rows [n, states] of a tick from its maxima: emissions added, the largest entry subtracted."""
    sums = rows + emissions
    largest = sums.max(axis=1, keepdims=True)
    settled: Array = sums - np.where(largest == -np.inf, rows.dtype.type(0), largest)
    return settled


def advance(rows: Array, transition: Array) -> Array:
    """Return the maxima [n, states] of the next tick: the (max, +) product of rows and matrix."""
    return np.stack([(row[:, None] + transition).max(axis=0) for row in rows])


def trellis_of(start: Array, transition: Array, emissions: Array, counts: Integers) -> Array:
    """Return all rows [rows, states] of a batch. emissions: [rows, states], as the rows are ordered."""
    starts = np.cumsum([0, *counts])
    rows = settle(np.repeat(start[None], counts[0], axis=0), emissions[: counts[0]])
    ticks = [rows]
    for t in range(1, len(counts)):
        rows = settle(advance(rows[: counts[t]], transition), emissions[starts[t] : starts[t + 1]])
        ticks.append(rows)
    return np.concatenate(ticks)


def trace(trellis: Array, transition: Array, counts: Integers) -> npt.NDArray[np.int32]:
    """Return the state of each row [rows] on the most probable path of its sequence."""
    starts = np.cumsum([0, *counts])
    states = np.zeros(len(trellis), np.int32)
    for t in reversed(range(len(counts))):
        going_on = counts[t + 1] if t + 1 < len(counts) else 0
        for n in range(counts[t]):
            sums = trellis[starts[t] + n]
            if n < going_on:
                sums = sums + transition[:, states[starts[t + 1] + n]]
            states[starts[t] + n] = sums.argmax()
    return states
