"""Most probable paths in compiled code on a CPU (Numba); the same rows and paths as `junctor_kernels.viterbi`.

A trellis lies in flat memory, `stride` numbers a row. What a kernel is called for are the ticks from `first` to `last`
of a batch, whose rows of the tick `first` are there already and come first in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from junctor_kernels.cpu.jit import jit
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
    """Write the rows of the ticks behind `first`, or from tick 0 on, up to `last`.

    start: [stride], -inf beyond the states.
    starts: int64 [ticks + 1], where the rows of each tick begin in the whole trellis. which: int [rows], row of
    `emissions` (flat, `stride` numbers each) for every row from tick `first` on.
    """
    scratch = np.empty(BYTES // trellis.itemsize, trellis.dtype)
    parts = parts_of(matrix, size, trellis)
    for t in range(first + 1 if first else 0, last + 1):
        after, count = starts[t] - starts[first], starts[t + 1] - starts[t]
        if t == 0:
            for r in range(count):
                trellis[r * stride : (r + 1) * stride] = start
        else:
            before = starts[t - 1] - starts[first]
            product(matrix, size, trellis, before * stride, after * stride, count, 0, parts, True)
        settle(trellis, stride, after, count, which, emissions, scratch)


@jit
def settle(trellis: Any, stride: int, after: int, count: int, which: Any, emissions: Any, scratch: Any) -> None:
    """Make rows, `count` from `after` on, of the maxima that lie there. scratch: as many numbers as a vector has."""
    for r in range(after, after + count):
        _settle(trellis, r * stride, stride, emissions, which[r] * stride, scratch)


@jit
def _settle(trellis: Any, at: int, stride: int, emissions: Any, e: int, scratch: Any) -> None:
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
    if largest > lowest:
        for k in range(0, stride, lanes):
            store(trellis, at + k, subtract(load(trellis, at + k), spread(largest)))


@jit
def trace(
    matrix: Any, size: int, trellis: Any, stride: int, starts: Any, first: int, last: int, path: Any, slots: Any
) -> None:
    """Write the states of the ticks from `first` to `last` on the most probable paths of some sequences of a batch.

    matrix: dense as [states, stride] by columns, flat, or sparse. path: int32 [rows], of all ticks; has the states of
    tick `last` already for the sequences that go on behind it. slots: first and last of the sequences.
    """
    scratch = np.empty(BYTES // trellis.itemsize, trellis.dtype)
    ticks = len(starts) - 1
    for n in range(slots[0], slots[1]):
        for t in range(last, first - 1, -1):
            if n >= starts[t + 1] - starts[t]:
                continue
            at = (starts[t] - starts[first] + n) * stride
            ends = t + 1 == ticks or n >= starts[t + 2] - starts[t + 1]
            if ends:
                path[starts[t] + n] = _first_largest(trellis, at, size)
            elif t < last:
                state = path[starts[t + 1] + n]
                path[starts[t] + n] = _predecessor(matrix, size, trellis, at, stride, state, scratch)


@jit
def _first_largest(trellis: Any, at: int, size: int) -> int:
    found = 0
    for i in range(1, size):
        if trellis[at + i] > trellis[at + found]:
            found = i
    return found


@jit
def _predecessor(matrix: Any, size: int, trellis: Any, at: int, stride: int, state: int, scratch: Any) -> Any:
    if len(matrix.starts) == 0:
        return _dense_predecessor(matrix.numbers, size, trellis, at, stride, state * stride, scratch)
    found, largest = 0, trellis.dtype.type(-np.inf)
    for k in range(matrix.starts[state], matrix.starts[state + 1]):
        total = trellis[at + matrix.states[k]] + matrix.numbers[k]
        if total > largest:
            found, largest = matrix.states[k], total
    return found


@jit
def _dense_predecessor(columns: Any, size: int, trellis: Any, at: int, stride: int, column: int, scratch: Any) -> int:
    lanes, largest = BYTES // trellis.itemsize, trellis.dtype.type(-np.inf)
    top = spread(largest)
    for k in range(0, stride, lanes):
        top = larger(add(load(trellis, at + k), load(columns, column + k)), top)
    store(scratch, 0, top)
    for lane in range(lanes):
        largest = max(largest, scratch[lane])
    for i in range(size):
        if trellis[at + i] + columns[column + i] == largest:
            return i
    return 0
