"""Elimination orders in compiled code: greedy elimination, and the total table size of an order (Numba).

Main functions: `greedy` and `evaluate`; called by `annealing` and by the row trees. A set of variables is a row of
64-bit words; a graph has one row of neighbours for each variable, uint64 [n, words] with words = (n + 63) // 64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import loops, lowest_bit, part
from junctor_kernels.cpu.mixing import STEP, mixed

# Criteria of `greedy`, and their number.
MIN_FILL, WEIGHTED_MIN_FILL, MIN_WEIGHT, MIN_NEIGHBOURS, CRITERIA = 0, 1, 2, 3, 4
# Sizes of cliques are products of cardinalities in float64, at most this, so that sums of sizes stay finite.
LARGEST = 2.0**1000
# Logarithms of cardinalities are integers in this unit: sums that are updated step by step must not drift.
UNITS_PER_BIT = 1024
# Rows of `numbers` in `greedy` and in `evaluate`; NUMBERS is their count.
FILL, WEIGHT, DEGREE, ENDS, NOISE, QUEUED, STACK, AROUND, CHOICE, NUMBERS = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
POSITION, FULLEST = 0, 1
# The degree of eliminated variables.
GONE = -1
# Factor of a score over the clique's weight, which only breaks ties.
OUTWEIGHS = 2.0**24

Words = npt.NDArray[np.uint64]


def pack(sets: Sequence[int], variables: int) -> Words:
    """Return sets of variables, given as integers (bit i: variable i), as uint64 [sets, words]."""
    length = words_for(variables) * 8
    data = b"".join(members.to_bytes(length, "little") for members in sets)
    return np.frombuffer(data, dtype="<u8").astype(np.uint64).reshape(len(sets), -1)


def words_for(variables: int) -> int:
    """Return the number of words of a set of variables, at least one."""
    return max(1, (variables + 63) // 64)


def weights_of(cardinalities: Sequence[int] | npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return log2 of cardinalities for `greedy`, int64 [n] in units of 1 / UNITS_PER_BIT."""
    bits: npt.NDArray[np.float64] = np.log2(np.asarray(cardinalities, dtype=np.float64))
    return np.rint(bits * UNITS_PER_BIT).astype(np.int64)


def work_for(variables: int) -> tuple[Words, npt.NDArray[np.int64]]:
    """Return the work arrays for graphs of so many variables: rows uint64 [n, words], numbers int64 [NUMBERS, n]."""
    # Allocated by the caller once for many calls.
    return np.zeros((variables, words_for(variables)), dtype=np.uint64), np.zeros((NUMBERS, variables), dtype=np.int64)


@part
def random(state: Any) -> Any:
    """Return 31 random bits; `state`: uint64 [1], any initial value (SplitMix64)."""
    state[0] += STEP
    return np.int64(mixed(state[0]) >> np.uint64(33))


@part
def has(row: Any, v: int) -> Any:
    """Return True if a set contains `v`."""
    return (row[v >> 6] >> np.uint64(v & 63)) & np.uint64(1) != 0


@part
def add(row: Any, v: int) -> None:
    """Add `v` to a set."""
    row[v >> 6] |= np.uint64(1) << np.uint64(v & 63)


@part
def discard(row: Any, v: int) -> None:
    """Remove `v` from a set."""
    row[v >> 6] &= ~(np.uint64(1) << np.uint64(v & 63))


@part
def members_of(row: Any, out: Any) -> int:
    """Write the members of a set into `out`, lowest first, and return their number."""
    count = 0
    for i in range(row.shape[0]):
        word = row[i]
        while word != 0:
            out[count] = (i << 6) + lowest_bit(word)
            count += 1
            word &= word - np.uint64(1)
    return count


@loops
def greedy(
    graph: Any,
    members: Any,
    weights: Any,
    criterion: int,
    noise: float,
    state: Any,
    rows: Any,
    numbers: Any,
    order: Any,
) -> int:
    """Eliminate the variables of a set greedily, simplicial ones first; return their number.

    graph: uint64 [n, words], not changed.
    members: uint64 [words]; all other variables count as removed from the graph.
    weights: int64 [n], of `weights_of`.
    criterion: one of the four above; ties go to the smaller clique, then to the lower number.
    noise: the score of each variable is multiplied by a number from [1, 1 + noise), drawn once for the call.
    state: of `random`.
    rows, numbers: work arrays.
    order: int64 [n], its front is written.
    """
    count: int = _load(graph, members, weights, criterion, rows, numbers)
    choice, stack, queued = numbers[CHOICE], numbers[STACK], numbers[QUEUED]
    for i in range(count):
        numbers[NOISE, choice[i]] = random(state) if noise > 0 else 0
    waiting = 0
    for i in range(count - 1, -1, -1):
        waiting = _queue(choice[i], numbers, waiting)
    open_choices = count
    for done in range(count):
        v = -1
        while waiting > 0 and v < 0:
            waiting -= 1
            v = stack[waiting]
            queued[v] = 0
            if numbers[FILL, v] != 0 or numbers[DEGREE, v] == GONE:
                # Not simplicial any more because of new neighbours, or eliminated by score meanwhile.
                v = -1
        if v < 0:
            open_choices = _still_open(choice, numbers[DEGREE], open_choices)
            v = _cheapest(choice, open_choices, numbers, criterion, noise)
            waiting = _complete(v, rows, weights, numbers, waiting)
        waiting = _remove(v, rows, weights, numbers, waiting)
        order[done] = v
    return count


@part
def _load(graph: Any, members: Any, weights: Any, criterion: int, rows: Any, numbers: Any) -> int:
    """Copy the subgraph of `members` and score every variable; return their number."""
    numbers[DEGREE] = GONE
    count: int = members_of(members, numbers[CHOICE])
    for i in range(count):
        v = numbers[CHOICE, i]
        for word in range(rows.shape[1]):
            rows[v, word] = graph[v, word] & members[word]
        discard(rows[v], v)
        numbers[QUEUED, v] = 0
        # At least 1, also for variables with one state: a fill of 0 must mean no missing edge.
        numbers[ENDS, v] = max(1, weights[v]) if criterion == WEIGHTED_MIN_FILL else 1
    around, ends = numbers[AROUND], numbers[ENDS]
    for i in range(count):
        v = numbers[CHOICE, i]
        degree = members_of(rows[v], around)
        numbers[DEGREE, v] = degree
        weight, fill = weights[v], 0
        for j in range(degree):
            u = around[j]
            weight += weights[u]
            for k in range(j):
                if not has(rows[u], around[k]):
                    fill += ends[u] * ends[around[k]]
        numbers[WEIGHT, v], numbers[FILL, v] = weight, fill
    return count


@part
def _queue(v: int, numbers: Any, waiting: int) -> int:
    """Push `v` on the stack of simplicial variables if it is one and not there yet; return the height of the stack."""
    if numbers[FILL, v] == 0 and numbers[QUEUED, v] == 0:
        numbers[QUEUED, v] = 1
        numbers[STACK, waiting] = v
        return waiting + 1
    return waiting


@part
def _still_open(choice: Any, degree: Any, count: int) -> int:
    """Remove eliminated variables from the first `count` choices, in place; return the number left."""
    left = 0
    for i in range(count):
        if degree[choice[i]] != GONE:
            choice[left] = choice[i]
            left += 1
    return left


@part
def _cheapest(choice: Any, count: int, numbers: Any, criterion: int, noise: float) -> int:
    best, cheapest = np.inf, -1
    score = numbers[FILL]
    if criterion == MIN_WEIGHT:
        score = numbers[WEIGHT]
    elif criterion == MIN_NEIGHBOURS:
        score = numbers[DEGREE]
    for i in range(count):
        v = choice[i]
        cost = score[v] * OUTWEIGHS + numbers[WEIGHT, v]
        cost *= 1 + noise * numbers[NOISE, v] / 2.0**31
        if cost < best:
            best, cheapest = cost, v
    return cheapest


@part
def _complete(v: int, rows: Any, weights: Any, numbers: Any, waiting: int) -> int:
    """Connect all neighbours of `v` and update the scores; return the height of the stack."""
    around = numbers[AROUND]
    degree = members_of(rows[v], around)
    for i in range(degree):
        for j in range(i):
            if not has(rows[around[i]], around[j]):
                waiting = _connect(around[i], around[j], rows, weights, numbers, waiting)
    return waiting


@part
def _connect(a: int, b: int, rows: Any, weights: Any, numbers: Any, waiting: int) -> int:
    fill, ends = numbers[FILL], numbers[ENDS]
    edge = ends[a] * ends[b]
    beside_a, beside_b = 0, 0
    for i in range(rows.shape[1]):
        in_a, in_b = rows[a, i], rows[b, i]
        word = in_a & in_b
        while word != 0:
            u = (i << 6) + lowest_bit(word)
            word &= word - np.uint64(1)
            # A neighbour of both ends has one missing edge less.
            fill[u] -= edge
            waiting = _queue(u, numbers, waiting)
        beside_a += _sum(in_a & ~in_b, i, ends)
        beside_b += _sum(in_b & ~in_a, i, ends)
    fill[a] += ends[b] * beside_a
    fill[b] += ends[a] * beside_b
    numbers[WEIGHT, a] += weights[b]
    numbers[WEIGHT, b] += weights[a]
    numbers[DEGREE, a] += 1
    numbers[DEGREE, b] += 1
    add(rows[a], b)
    add(rows[b], a)
    return waiting


@part
def _remove(v: int, rows: Any, weights: Any, numbers: Any, waiting: int) -> int:
    """Remove `v`, whose neighbours are all connected, from the graph; return the height of the stack."""
    fill, ends, around = numbers[FILL], numbers[ENDS], numbers[AROUND]
    degree = members_of(rows[v], around)
    numbers[DEGREE, v] = GONE
    for i in range(degree):
        u = around[i]
        discard(rows[u], v)
        numbers[WEIGHT, u] -= weights[v]
        numbers[DEGREE, u] -= 1
        # Edges from `v` to neighbours of `u` that `v` lacks no longer count as missing.
        if fill[u] > 0:
            beside = 0
            for j in range(rows.shape[1]):
                beside += _sum(rows[u, j] & ~rows[v, j], j, ends)
            fill[u] -= ends[v] * beside
        waiting = _queue(u, numbers, waiting)
    return waiting


@part
def _sum(word: Any, i: int, ends: Any) -> int:
    """Sum `ends` over the members in the i-th word of a set."""
    total = 0
    while word != 0:
        total += ends[(i << 6) + lowest_bit(word)]
        word &= word - np.uint64(1)
    return total


@loops
def evaluate(graph: Any, members: Any, sizes: Any, order: Any, count: int, rows: Any, numbers: Any) -> float:
    """Return the entries of all maximal cliques of an elimination order, and leave the later neighbours in `rows`.

    graph: uint64 [n, words], not changed.
    members: uint64 [words], variables of the order.
    sizes: float64 [n], cardinalities.
    order: int64, its first `count` entries.
    rows, numbers: work arrays.
    """
    # Nothing is eliminated: the later neighbours of a variable are its own and those of its children in the elimination
    # tree (symbolic factorisation, Gilbert, Ng and Peyton 1994, section 2).
    position, fullest = numbers[POSITION], numbers[FULLEST]
    for i in range(count):
        v = order[i]
        position[v], fullest[v] = i, -1
        for word in range(rows.shape[1]):
            rows[v, word] = graph[v, word] & members[word]
    total = 0.0
    for i in range(count):
        v = order[i]
        discard(rows[v], v)
        degree, parent, size = 0, -1, sizes[v]
        for k in range(rows.shape[1]):
            word = rows[v, k]
            while word != 0:
                u = (k << 6) + lowest_bit(word)
                word &= word - np.uint64(1)
                if position[u] < i:
                    discard(rows[v], u)
                    continue
                degree += 1
                size *= sizes[u]
                if parent < 0 or position[u] < position[parent]:
                    parent = u
        # A clique is not maximal if a child has all of its members as later neighbours.
        if fullest[v] <= degree:
            total += min(size, LARGEST)
        if parent >= 0:
            fullest[parent] = max(fullest[parent], degree)
            for k in range(rows.shape[1]):
                rows[parent, k] |= rows[v, k]
    return total
