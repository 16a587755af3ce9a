"""Greedy elimination of a few hundred variables, in compiled code: rows of bits, and a scan instead of a heap (Numba).

Main function: `eliminate`, by which `orders.sparse` ends every elimination: what simplicial variables leave of a sparse
network is small, and each of its variables changes the scores of several others. Variables are numbered as they are
among those left.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import as_bits, as_float, lowest_bit, part
from junctor_kernels.orders.greedy import MIN_NEIGHBOURS, MIN_WEIGHT, OUTWEIGHS, words_for

# More variables than this are not eliminated here.
MOST = 512
# Rows of `numbers`, for each variable: as in `orders.sparse`; log2 of its cardinality; the bits of its cost and of the
# factor of its noise, which are in the order of the numbers since none is negative.
FILL, WEIGHT, DEGREE, ENDS, SUM, OWN, QUEUED, STACK, COST, NOISE, ROWS = range(11)
# The cost of eliminated variables.
NEVER = np.int64(2**63 - 1)
# Typed: mixed with signed integers, Numba would compute in doubles.
NOTHING, BIT, LOG_BITS, LAST = np.uint64(0), np.uint64(1), np.uint64(6), np.uint64(63)
# Unsigned indices, for which Numba omits the test for negative ones. Variables are unsigned but where -1 may be one.
index = np.uint64


def dense_work(variables: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Return memory for graphs of at most so many variables, and MOST: rows of neighbours, and `numbers`.

    The last row of neighbours is the set of variables whose scores have changed.
    """
    most = min(variables, MOST)
    return np.zeros((most + 1, words_for(most)), dtype=np.uint64), np.zeros((ROWS, most), dtype=np.int64)


def entries_for(variables: int) -> int:
    """Return the entries of `dense_work`, of 8 bytes."""
    most = min(variables, MOST)
    return (most + 1) * words_for(most) + ROWS * most


@part
def eliminate(count: int, criterion: int, rows: Any, numbers: Any, order: Any) -> None:
    """Eliminate all variables, none of them simplicial, in the order of `orders.greedy.greedy`.

    count: their number.
    criterion: of `orders.greedy`.
    rows: uint64 [variables + 1, words], the neighbours of each; changed.
    numbers: int64 [ROWS, variables], whose FILL, WEIGHT, DEGREE, ENDS, SUM, OWN and NOISE are given; changed.
    order: int64, its front is written.
    """
    words = index((count + 63) >> 6)
    changed = rows[rows.shape[0] - 1]
    for word in range(words):
        changed[word] = NOTHING
    for u in range(index(count)):
        numbers[QUEUED, u] = 0
        _add(changed, u)
    waiting = 0
    for done in range(count):
        v = -1
        while waiting > 0 and v < 0:
            waiting -= 1
            v = numbers[STACK, index(waiting)]
            numbers[QUEUED, index(v)] = 0
            if numbers[FILL, index(v)] != 0 or numbers[COST, index(v)] == NEVER:
                # Not simplicial any more because of new neighbours, or eliminated by score meanwhile.
                v = -1
        if v < 0:
            _update_costs(words, criterion, changed, numbers)
            v = _cheapest(numbers[COST], count)
            waiting = _complete(index(v), words, rows, numbers, waiting)
        waiting = _remove(index(v), words, rows, numbers, waiting)
        order[done] = v


@part
def _add(row: Any, v: Any) -> None:
    row[v >> LOG_BITS] |= BIT << (v & LAST)


@part
def _queue(v: Any, numbers: Any, waiting: int) -> int:
    """Push `v` on the stack of simplicial variables if it is one and not there yet; return the height of the stack."""
    if numbers[FILL, v] == 0 and numbers[QUEUED, v] == 0:
        numbers[QUEUED, v] = 1
        numbers[STACK, index(waiting)] = v
        return waiting + 1
    return waiting


@part
def _update_costs(words: Any, criterion: int, changed: Any, numbers: Any) -> None:
    """Compute the costs of variables whose scores have changed."""
    score = numbers[FILL]
    if criterion == MIN_WEIGHT:
        score = numbers[WEIGHT]
    elif criterion == MIN_NEIGHBOURS:
        score = numbers[DEGREE]
    for i in range(words):
        word = changed[i]
        while word != NOTHING:
            v = (i << LOG_BITS) + index(lowest_bit(word))
            word &= word - BIT
            cost = (score[v] * OUTWEIGHS + numbers[WEIGHT, v]) * as_float(np.uint64(numbers[NOISE, v]))
            numbers[COST, v] = np.int64(as_bits(cost))
        changed[i] = NOTHING


@part
def _cheapest(cost: Any, count: int) -> int:
    """Return the variable of least cost, the lowest among equals."""
    # In two passes: the first one is vectors, a minimum with its place is not.
    least = NEVER
    for v in range(count):
        least = min(least, cost[v])
    v = 0
    while cost[v] != least:
        v += 1
    return v


@part
def _complete(v: Any, words: Any, rows: Any, numbers: Any, waiting: int) -> int:
    """Connect all neighbours of `v` and update the scores; return the height of the stack."""
    for i in range(words):
        others = rows[v, i]
        while others != NOTHING:
            low = others & (NOTHING - others)
            a = (i << LOG_BITS) + index(lowest_bit(others))
            others ^= low
            # With those before it, so that each pair is met once.
            for j in range(i + BIT):
                missing = rows[v, j] & ~rows[a, j]
                if j == i:
                    missing &= low - BIT
                while missing != NOTHING:
                    b = (j << LOG_BITS) + index(lowest_bit(missing))
                    missing &= missing - BIT
                    waiting = _connect(a, b, words, rows, numbers, waiting)
    return waiting


@part
def _connect(a: Any, b: Any, words: Any, rows: Any, numbers: Any, waiting: int) -> int:
    fill, ends, total, weight = numbers[FILL], numbers[ENDS], numbers[SUM], numbers[WEIGHT]
    changed = rows[rows.shape[0] - 1]
    edge, common = ends[a] * ends[b], 0
    for i in range(words):
        both = rows[a, i] & rows[b, i]
        changed[i] |= both
        while both != NOTHING:
            u = (i << LOG_BITS) + index(lowest_bit(both))
            both &= both - BIT
            # A neighbour of both ends has one missing edge less.
            common += ends[u]
            fill[u] -= edge
            waiting = _queue(u, numbers, waiting)
    fill[a] += ends[b] * (total[a] - common)
    fill[b] += ends[a] * (total[b] - common)
    total[a] += ends[b]
    total[b] += ends[a]
    weight[a] += numbers[OWN, b]
    weight[b] += numbers[OWN, a]
    numbers[DEGREE, a] += 1
    numbers[DEGREE, b] += 1
    _add(rows[a], b)
    _add(rows[b], a)
    # Both are neighbours of the variable that is eliminated, and so among those whose scores change.
    return waiting


@part
def _remove(v: Any, words: Any, rows: Any, numbers: Any, waiting: int) -> int:
    """Remove `v`, whose neighbours are all connected, from the graph; return the height of the stack."""
    fill, ends, total = numbers[FILL], numbers[ENDS], numbers[SUM]
    changed = rows[rows.shape[0] - 1]
    place, only = v >> LOG_BITS, ~(BIT << (v & LAST))
    numbers[COST, v] = NEVER
    changed[place] &= only
    for i in range(words):
        around = rows[v, i]
        changed[i] |= around
        while around != NOTHING:
            u = (i << LOG_BITS) + index(lowest_bit(around))
            around &= around - BIT
            rows[u, place] &= only
            numbers[DEGREE, u] -= 1
            numbers[WEIGHT, u] -= numbers[OWN, v]
            total[u] -= ends[v]
            # Edges from `v` to neighbours of `u` that `v` lacks no longer count as missing.
            fill[u] -= ends[v] * (total[u] - (total[v] - ends[u]))
            waiting = _queue(u, numbers, waiting)
    return waiting
