"""Most probable paths in compiled code on a CPU (Numba); the same rows and paths as `junctor_kernels.hmm.viterbi`.

Main functions: `advance` and `trace`, called by `junctor.hmm.decode`. A trellis is flat, `stride` numbers a row; a call
covers the ticks `first` to `last` of a batch, with the rows of tick `first` given and first in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from junctor_kernels.cpu.jit import jit, loops, part
from junctor_kernels.cpu.vectors import BYTES, add, larger, load, spread, store, subtract
from junctor_kernels.hmm.products_cpu import parts_of, product


@jit
def advance(
    start: Any,
    matrix: Any,
    size: int,
    trellis: Any,
    stride: int,
    starts: Any,
    first: int,
    last: int,
    which: Any,
    emissions: Any,
) -> None:
    """Write the rows of the ticks after `first` (from tick 0 on if that is 0) up to `last`.

    start: [stride], -inf beyond the states.
    matrix, size: transitions, and number of states.
    trellis: flat, written.
    starts: int64 [ticks + 1], first row of each tick in the whole trellis.
    which: int [rows], row of `emissions` for every row from tick `first` on.
    emissions: flat, `stride` numbers a row.
    """
    # Receives the lanes of a vector, for the maximum over them.
    scratch = np.empty(BYTES // trellis.itemsize, trellis.dtype)
    parts = parts_of(matrix, size, trellis)
    for t in range(first + 1 if first else 0, last + 1):
        # Rows in this memory are counted from the first tick of the call on.
        after, count = starts[t] - starts[first], starts[t + 1] - starts[t]
        if t == 0:
            for r in range(count):
                # Not a slice: the text of its error would be compiled, too, for seconds.
                for k in range(stride):
                    trellis[r * stride + k] = start[k]
        else:
            before = starts[t - 1] - starts[first]
            product(matrix, size, trellis, before * stride, after * stride, count, 0, parts, True)
        add_emissions(trellis, stride, after, count, which, emissions, scratch)


@loops
def add_emissions(trellis: Any, stride: int, after: int, count: int, which: Any, emissions: Any, scratch: Any) -> None:
    """Add emissions to `count` rows of maxima from row `after` on, and subtract the largest entry of each.

    which, emissions: as in `advance`.
    scratch: as many numbers as a vector has.
    """
    for r in range(after, after + count):
        _add_row_emissions(trellis, r * stride, stride, emissions, which[r] * stride, scratch)


@part
def _add_row_emissions(trellis: Any, at: int, stride: int, emissions: Any, e: int, scratch: Any) -> None:
    lanes, lowest = BYTES // trellis.itemsize, trellis.dtype.type(-np.inf)
    top = spread(lowest)
    for k in range(0, stride, lanes):
        total = add(load(trellis, at + k), load(emissions, e + k))
        store(trellis, at + k, total)
        top = larger(total, top)
    store(scratch, 0, top)
    largest = lowest
    for lane in range(lanes):
        largest = max(largest, scratch[lane])
    # A row of -inf stays: the sequence is impossible.
    if largest > lowest:
        for k in range(0, stride, lanes):
            store(trellis, at + k, subtract(load(trellis, at + k), spread(largest)))


@jit
def trace(
    matrix: Any, size: int, trellis: Any, stride: int, starts: Any, first: int, last: int, path: Any, slots: Any
) -> None:
    """Write the states of the ticks from `first` to `last` on the most probable paths of some sequences of a batch.

    matrix, size: transitions, dense as [states, stride] by columns or sparse, and number of states.
    trellis, stride, starts: as in `advance`.
    path: int32 [rows], of all ticks; given at tick `last` for the sequences that go on after it.
    slots: range of sequences, (first, last + 1).
    """
    scratch = np.empty(BYTES // trellis.itemsize, trellis.dtype)
    ticks = len(starts) - 1
    for n in range(slots[0], slots[1]):
        for t in range(last, first - 1, -1):
            if n >= starts[t + 1] - starts[t]:
                continue
            at = (starts[t] - starts[first] + n) * stride
            # Sequences are ordered by length: number n ends where the next tick has fewer rows.
            ends = t + 1 == ticks or n >= starts[t + 2] - starts[t + 1]
            if ends:
                path[starts[t] + n] = _first_largest(trellis, at, size)
            elif t < last:
                state = path[starts[t + 1] + n]
                path[starts[t] + n] = _predecessor(matrix, size, trellis, at, stride, state, scratch)


@part
def _first_largest(trellis: Any, at: int, size: int) -> int:
    best = 0
    for i in range(1, size):
        if trellis[at + i] > trellis[at + best]:
            best = i
    return best


@part
def _predecessor(matrix: Any, size: int, trellis: Any, at: int, stride: int, state: int, scratch: Any) -> Any:
    if len(matrix.starts) == 0:
        return _dense_predecessor(matrix.numbers, size, trellis, at, stride, state * stride, scratch)
    best, largest = 0, trellis.dtype.type(-np.inf)
    for k in range(matrix.starts[state], matrix.starts[state + 1]):
        total = trellis[at + matrix.states[k]] + matrix.numbers[k]
        if total > largest:
            best, largest = matrix.states[k], total
    return best


@part
def _dense_predecessor(columns: Any, size: int, trellis: Any, at: int, stride: int, column: int, scratch: Any) -> int:
    # Two passes: the maximum in vectors, then the first state that reaches it. Both add the same two numbers.
    lanes, largest = BYTES // trellis.itemsize, trellis.dtype.type(-np.inf)
    top = spread(largest)
    for k in range(0, stride, lanes):
        top = larger(add(load(trellis, at + k), load(columns, column + k)), top)
    store(scratch, 0, top)
    for lane in range(lanes):
        largest = max(largest, scratch[lane])
    # Exact comparison is right: the sums are those of the maximum.
    for i in range(size):
        if trellis[at + i] + columns[column + i] == largest:
            return i
    return 0
