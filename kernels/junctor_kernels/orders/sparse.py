"""Greedy elimination of sparse graphs in compiled code: near linear for bounded width (Numba).

Main functions: `greedy`, which makes the orders of its namesake in `orders.greedy`, and `moral_graph`; called for
networks of any length. Triangles are counted after Chiba and Nishizeki, Arboricity and subgraph listing algorithms
(1985).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import as_bits, gradual, jit, part, part_with_arrays
from junctor_kernels.orders import dense
from junctor_kernels.orders.greedy import (
    GONE,
    MIN_FILL,
    MIN_NEIGHBOURS,
    MIN_WEIGHT,
    OUTWEIGHS,
    UNITS_PER_BIT,
    WEIGHTED_MIN_FILL,
    random,
    weights_of,
)

Ints = npt.NDArray[np.int64]
ShortInts = npt.NDArray[np.int32]

# Criteria by name.
NAMES = {
    "min-fill": MIN_FILL,
    "weighted-min-fill": WEIGHTED_MIN_FILL,
    "min-weight": MIN_WEIGHT,
    "min-neighbours": MIN_NEIGHBOURS,
}
# Columns of `SparseWork.numbers`, for each variable: as in `orders.greedy`; the sum of the ENDS of all neighbours; the
# start, length and room of its row of neighbours in the pool; its place in the heap (-1: none); whether it is on the
# stack of simplicial variables, and on the list of changed scores; the last row that marked it.
FILL, WEIGHT, DEGREE, ENDS, SUM, START, LENGTH, ROOM, PLACE, QUEUED, CHANGED, MARK, COLUMNS = range(13)
# Rows of `SparseWork.lists`: members, the stack, neighbours of one variable, the heap of scores, changed scores.
CHOICE, STACK, AROUND, HEAP, CHANGES, LISTS = range(6)
# The same rows while a graph is loaded: ENDS, weight and fill of every variable, 0 for those that are no members.
LOADED_ENDS, LOADED_WEIGHT, LOADED_FILL = AROUND, HEAP, CHANGES
# Rows of `SparseWork.costs`.
COST, NOISE = 0, 1
# Entries of `SparseWork.counters`: lengths of these lists, used entries of the pool, marks given out, steps.
WAITING, HEAPED, LISTED, USED, MARKS, STEPS, COUNTERS = range(7)
# Rows longer than this, and so many times longer than another one, are searched rather than scanned.
LONG, TIMES = 64, 8
# Entries of a row beyond twice those in use, before it is moved or cleaned.
SLACK = 4
# Unsigned indices, for which Numba omits the test for negative ones.
index = np.uint64
# Pairs of neighbours that are tried for triangles, for each neighbour in a graph.
MOST_PAIRS = 4
# Of a graph without a list; compiled code, for which constants are read-only, makes its own.
NOT_LISTED = np.empty((0, 3), dtype=np.int32)


class SparseGraph(NamedTuple):
    """A graph as rows of neighbours.

    starts: int64 [n + 1]; the neighbours of v are neighbours[starts[v]:starts[v + 1]].
    neighbours: int32, ascending in each row, without v itself.
    triangles: int32 [triangles, 3], all of them, or none: not listed.
    """

    starts: Ints
    neighbours: ShortInts
    triangles: ShortInts


class SparseWork(NamedTuple):
    """Memory of `greedy`, reused from call to call.

    numbers: int64 [n, COLUMNS].
    lists: int64 [LISTS, n].
    costs: float64 [2, n], score of each variable in the heap, and the factor of its noise.
    pool: int32, rows of neighbours.
    counters: int64 [COUNTERS].
    bits, scores: of `orders.dense`, for as many of the last variables.
    """

    numbers: Ints
    lists: Ints
    costs: npt.NDArray[np.float64]
    pool: ShortInts
    counters: Ints
    bits: npt.NDArray[np.uint64]
    scores: Ints


def sparse_work(graph: SparseGraph) -> SparseWork:
    """Return memory for the elimination of a graph."""
    variables = len(graph.starts) - 1
    # Pages that no row reaches are never touched; a larger pool is allocated where fill edges need it.
    pool = np.empty(4 * len(graph.neighbours) + 16 * variables, dtype=np.int32)
    bits, scores = dense.dense_work(variables)
    return SparseWork(
        # Marks are compared with numbers above zero.
        numbers=np.zeros((variables, COLUMNS), dtype=np.int64),
        lists=np.empty((LISTS, variables), dtype=np.int64),
        costs=np.empty((2, variables)),
        pool=pool,
        counters=np.zeros(COUNTERS, dtype=np.int64),
        bits=bits,
        scores=scores,
    )


@gradual
@jit
def moral_graph(variables: int, starts: Any, scopes: Any) -> Any:
    """Return the graph in which the variables of each scope are all connected, as a SparseGraph.

    variables: their number n.
    starts: int64; scope f is scopes[starts[f]:starts[f + 1]].
    scopes: int64, variables of all scopes.
    """
    # The scopes of each variable, by counting; then their union, variable by variable.
    ends = np.zeros(variables + 1, np.int64)
    for at in range(starts[0], starts[starts.size - 1]):
        ends[scopes[at] + 1] += 1
    for v in range(variables):
        ends[v + 1] += ends[v]
    owners = np.empty(ends[variables], np.int64)
    for f in range(starts.size - 1):
        for at in range(starts[f], starts[f + 1]):
            owners[ends[scopes[at]]] = f
            ends[scopes[at]] += 1
    seen = np.full(variables, -1, np.int64)
    rows = np.zeros(variables + 1, np.int64)
    neighbours = np.empty(2 * scopes.size + 16, np.int32)
    count = 0
    for v in range(variables):
        # Each end has become the start of the next variable.
        first = ends[v - 1] if v else 0
        seen[v] = v
        for place in range(first, ends[v]):
            f = owners[place]
            if count + starts[f + 1] - starts[f] > neighbours.size:
                larger = np.empty(2 * neighbours.size + starts[f + 1] - starts[f], np.int32)
                # A loop: a slice on both sides would have Numba compile the text of an error, for three seconds.
                for i in range(count):
                    larger[i] = neighbours[i]
                neighbours = larger
            for at in range(starts[f], starts[f + 1]):
                u = scopes[at]
                if seen[u] != v:
                    seen[u] = v
                    neighbours[count] = u
                    count += 1
        rows[v + 1] = count
        sort(neighbours[rows[v] : count])
    return SparseGraph(rows, neighbours[:count].copy(), np.empty((0, 3), np.int32))


def with_triangles(graph: SparseGraph) -> SparseGraph:
    """Return a graph with its triangles, for many eliminations, unless they take more memory than its rows."""
    degrees = np.diff(graph.starts)
    variables, count = len(degrees), len(graph.neighbours)
    # Each edge from its end of fewer neighbours, from which few edges go out (Chiba and Nishizeki).
    ranks = degrees * variables + np.arange(variables)
    ends = np.repeat(np.arange(variables), degrees)
    out = ranks[ends] < ranks[graph.neighbours]
    one, other = ends[out], graph.neighbours[out]
    later = np.cumsum(np.bincount(one, minlength=variables))[one] - np.arange(len(one)) - 1
    if later.sum() > MOST_PAIRS * count:
        return graph
    first = np.repeat(np.arange(len(one)), later)
    second = np.arange(len(first)) - np.repeat(np.cumsum(later) - later, later) + first + 1
    keys = ends * variables + graph.neighbours
    wanted = other[first] * np.int64(variables) + other[second]
    found = keys[np.minimum(np.searchsorted(keys, wanted), count - 1)] == wanted
    triangles = np.stack([one[first], other[first], other[second]], axis=1)[found]
    return graph._replace(triangles=triangles.astype(np.int32)) if len(triangles) <= count else graph


@part
def sort(row: Any) -> None:
    """Sort numbers, ascending."""
    # Shell's sort with the steps of Knuth (1973, section 5.2.1): rows are short, and NumPy's takes a second to compile.
    step = 1
    while 9 * step < row.size:
        step = 3 * step + 1
    while step > 0:
        for i in range(step, row.size):
            u, j = row[i], i
            while j >= step and row[j - step] > u:
                row[j] = row[j - step]
                j -= step
            row[j] = u
        step //= 3


@jit
def greedy(
    graph: Any, members: Any, weights: Any, criterion: int, noise: float, state: Any, work: Any, order: Any, most: int
) -> int:
    """Eliminate the variables of a set greedily, simplicial ones first; return how many.

    Makes the order of `orders.greedy.greedy`. The work is linear in members, edges and fill edges, but for logarithms
    and for the square of the largest clique. A FILL, at most half the square of a SUM, must stay below 2**63.

    graph: SparseGraph, not changed.
    members: bool [n]; all other variables count as removed from the graph.
    weights: int64 [n], of `weights_of`.
    criterion: one of the four of `orders.greedy`; ties go to the smaller clique, then to the lower number.
    noise: the score of each variable is multiplied by a number from [1, 1 + noise), drawn once for the call.
    state: of `random`.
    work: SparseWork of the graph; its counter STEPS grows by the entries visited.
    order: int64 [n], its front is written.
    most: weight of a clique before which the order ends, without the rest of the members: wide graphs take long.
    """
    numbers, lists, costs, counters = work.numbers, work.lists, work.costs, work.counters
    choice, stack = lists[CHOICE], lists[STACK]
    count: int = _load(graph, members, weights, criterion, work)
    if graph.triangles.shape[0]:
        _subtract_triangles(graph.triangles, lists[LOADED_ENDS], lists[LOADED_FILL], counters)
    for i in range(count):
        numbers[choice[i], FILL] = lists[LOADED_FILL, choice[i]]
    if not graph.triangles.shape[0]:
        _count_missing(choice, count, numbers, work.pool, counters)
    for i in range(count):
        costs[NOISE, choice[i]] = 1 + noise * random(state) / 2.0**31 if noise > 0 else 1.0
    for i in range(count - 1, -1, -1):
        _queue(choice[i], numbers, stack, counters)
    pool = work.pool
    heaped = False
    for done in range(count):
        v = _next_simplicial(numbers, stack, counters)
        if v < 0:
            if count - done <= work.scores.shape[1]:
                _eliminate_rest(count, done, weights, criterion, work, pool, order)
                return count
            if heaped:
                _update_heap(numbers, criterion, costs, lists, counters)
            else:
                # Sparse networks have few variables left here.
                _fill_heap(count, numbers, criterion, costs, lists, counters)
                heaped = True
            v = _pop(numbers, costs[COST], lists[HEAP], counters)
            if numbers[v, WEIGHT] > most:
                return done
            degree = _around(v, numbers, lists[AROUND], pool, counters)
            pool = _with_room(degree, count, numbers, lists, pool, counters)
            _complete(degree, numbers, weights, lists, pool, counters)
        _remove(v, numbers, weights, lists, pool, counters)
        order[done] = v
    return count


@part
def _eliminate_rest(count: int, done: int, weights: Any, criterion: int, work: Any, pool: Any, order: Any) -> None:
    """Eliminate those that are left of `count` listed variables, `done` of which are eliminated, as bits."""
    numbers, rest, choice = work.numbers, work.lists[HEAP], work.lists[CHOICE]
    left = 0
    for i in range(count):
        v = choice[i]
        # Without a branch: which ones are left is hard to predict.
        rest[left], numbers[v, PLACE] = v, left
        left += numbers[v, DEGREE] != GONE
    for i in range(left):
        _copy(rest[i], i, (left + 63) >> 6, weights, work, pool)
    work.counters[STEPS] += count
    ahead = order[done:]
    dense.eliminate(left, criterion, work.bits, work.scores, ahead)
    for i in range(left):
        ahead[i] = rest[ahead[i]]


@part
def _copy(v: int, number: int, words: int, weights: Any, work: Any, pool: Any) -> None:
    """Copy the neighbours and the scores of a variable, that has a number among those left, for `orders.dense`."""
    numbers, bits, scores = work.numbers, work.bits, work.scores
    row = numbers[index(v)]
    scores[dense.FILL, number], scores[dense.WEIGHT, number] = row[FILL], row[WEIGHT]
    scores[dense.DEGREE, number], scores[dense.SUM, number] = row[DEGREE], row[SUM]
    scores[dense.ENDS, number], scores[dense.OWN, number] = row[ENDS], weights[v]
    scores[dense.NOISE, number] = np.int64(as_bits(work.costs[NOISE, v]))
    for word in range(words):
        bits[number, word] = np.uint64(0)
    for at in range(row[START], row[START] + row[LENGTH]):
        u = index(pool[index(at)])
        if numbers[u, DEGREE] != GONE:
            place = numbers[u, PLACE]
            bits[number, index(place >> 6)] |= np.uint64(1) << np.uint64(place & 63)
    work.counters[STEPS] += row[LENGTH]


@part
def _load(graph: Any, members: Any, weights: Any, criterion: int, work: Any) -> int:
    """Copy the subgraph of `members`, list them and return their number; their fill is as if no two were connected."""
    numbers, lists, pool, counters = work.numbers, work.lists, work.pool, work.counters
    ends, weight_of, choice = lists[LOADED_ENDS], lists[LOADED_WEIGHT], lists[CHOICE]
    count, used = 0, 0
    for v in range(index(members.size)):
        choice[index(count)] = v
        # Without a branch, here and below: which ones are members is hard to predict.
        count += members[v]
        # At least 1, also for variables with one state: a fill of 0 must mean no missing edge.
        ends[v] = (max(1, weights[v]) if criterion == WEIGHTED_MIN_FILL else 1) * members[v]
        weight_of[v] = weights[v] * members[v]
    for i in range(count):
        v = choice[index(i)]
        start, weight, total, squares = used, weights[index(v)], 0, 0
        for at in range(index(graph.starts[index(v)]), index(graph.starts[index(v + 1)])):
            u = index(graph.neighbours[at])
            pool[index(used)] = u
            used += members[u]
            weight += weight_of[u]
            total += ends[u]
            squares += ends[u] * ends[u]
        row = numbers[index(v)]
        row[START], row[LENGTH], row[ROOM], row[DEGREE] = start, used - start, used - start, used - start
        # All scores count as listed until there is a heap.
        row[ENDS], row[WEIGHT], row[SUM], row[QUEUED], row[CHANGED] = ends[index(v)], weight, total, 0, 1
        lists[LOADED_FILL, index(v)] = (total * total - squares) // 2
    counters[WAITING] = counters[HEAPED] = counters[LISTED] = 0
    counters[USED] = used
    counters[STEPS] += count + used
    return count


@part
def _subtract_triangles(triangles: Any, ends: Any, fill: Any, counters: Any) -> None:
    """Subtract the edges among the neighbours of each variable from its fill; those of no member have the end 0."""
    counters[STEPS] += triangles.shape[0]
    for i in range(triangles.shape[0]):
        a, b, c = index(triangles[i, 0]), index(triangles[i, 1]), index(triangles[i, 2])
        fill[a] -= ends[b] * ends[c]
        fill[b] -= ends[a] * ends[c]
        fill[c] -= ends[a] * ends[b]


@part
def _count_missing(choice: Any, count: int, numbers: Any, pool: Any, counters: Any) -> None:
    """Subtract the edges among the neighbours of each variable from its fill."""
    for i in range(count):
        v = choice[i]
        first, end = numbers[v, START], numbers[v, START] + numbers[v, LENGTH]
        mark = _mark(v, numbers, pool, counters)
        for at in range(first, end):
            u = pool[at]
            # Each edge once, from its end of more neighbours: the row of the other is read.
            length = numbers[u, LENGTH]
            if length > end - first or (length == end - first and u > v):
                continue
            edge = numbers[u, ENDS] * numbers[v, ENDS]
            start = numbers[u, START]
            counters[STEPS] += length
            for other in range(start, start + length):
                w = pool[other]
                if numbers[w, MARK] == mark:
                    numbers[w, FILL] -= edge


@part
def _mark(v: int, numbers: Any, pool: Any, counters: Any) -> int:
    """Mark the neighbours of `v` with a new number and return it."""
    counters[MARKS] += 1
    mark: int = counters[MARKS]
    start, end = numbers[v, START], numbers[v, START] + numbers[v, LENGTH]
    counters[STEPS] += end - start
    for at in range(start, end):
        # Eliminated ones are not read any more.
        numbers[pool[at], MARK] = mark
    return mark


@part
def _queue(v: int, numbers: Any, stack: Any, counters: Any) -> None:
    """Push `v` on the stack of simplicial variables if it is one and not there yet."""
    if numbers[index(v), FILL] == 0 and numbers[index(v), QUEUED] == 0:
        numbers[index(v), QUEUED] = 1
        stack[index(counters[WAITING])] = v
        counters[WAITING] += 1


@part
def _next_simplicial(numbers: Any, stack: Any, counters: Any) -> int:
    """Pop a variable whose neighbours are all connected, or return -1."""
    while counters[WAITING] > 0:
        counters[WAITING] -= 1
        v = stack[index(counters[WAITING])]
        numbers[index(v), QUEUED] = 0
        # Not simplicial any more because of new neighbours, or eliminated by score meanwhile.
        if numbers[index(v), FILL] == 0 and numbers[index(v), DEGREE] != GONE:
            return int(v)
    return -1


@part
def _around(v: int, numbers: Any, around: Any, pool: Any, counters: Any) -> int:
    """List the neighbours of `v`, ascending, and return their number."""
    degree = 0
    start, length = numbers[v, START], numbers[v, LENGTH]
    counters[STEPS] += length
    for at in range(start, start + length):
        u = pool[at]
        if numbers[u, DEGREE] != GONE:
            around[degree] = u
            degree += 1
    return degree


@part
def _note(v: int, numbers: Any, changes: Any, counters: Any) -> None:
    """Put `v` on the list of changed scores."""
    if numbers[index(v), CHANGED] == 0:
        numbers[index(v), CHANGED] = 1
        changes[counters[LISTED]] = v
        counters[LISTED] += 1


@part_with_arrays
def _with_room(degree: int, count: int, numbers: Any, lists: Any, pool: Any, counters: Any) -> Any:
    """Return the pool, or a larger copy if rows of the listed neighbours might outgrow it when they are connected."""
    around, choice = lists[AROUND], lists[CHOICE]
    needed = 0
    for i in range(degree):
        # A row that is moved several times takes at most twice its last room.
        needed += 4 * (numbers[around[i], LENGTH] + degree + SLACK)
    if counters[USED] + needed <= pool.size:
        return pool
    total = needed
    for i in range(count):
        if numbers[choice[i], DEGREE] != GONE:
            total += numbers[choice[i], LENGTH]
    larger = np.empty(2 * total, np.int32)
    counters[USED] = 0
    counters[STEPS] += total
    for i in range(count):
        if numbers[choice[i], DEGREE] != GONE:
            _move(choice[i], numbers, pool, larger, counters)
    return larger


@part
def _move(v: int, numbers: Any, pool: Any, into: Any, counters: Any) -> None:
    """Copy the row of `v` without eliminated variables to the end of `into`."""
    start, length, used = numbers[v, START], numbers[v, LENGTH], counters[USED]
    numbers[v, START] = used
    for at in range(start, start + length):
        u = pool[at]
        if numbers[u, DEGREE] != GONE:
            into[used] = u
            used += 1
    numbers[v, LENGTH] = numbers[v, ROOM] = used - counters[USED]
    counters[USED] = used
    counters[STEPS] += length


@part
def _complete(degree: int, numbers: Any, weights: Any, lists: Any, pool: Any, counters: Any) -> None:
    """Connect all listed neighbours and update the scores."""
    around = lists[AROUND]
    for i in range(1, degree):
        a = around[i]
        long = numbers[a, LENGTH] > max(LONG, TIMES * degree)
        mark = np.int64(0) if long else np.int64(_mark(a, numbers, pool, counters))
        counters[STEPS] += i
        for j in range(i):
            b = around[j]
            if long:
                missing = not _contains(a, b, numbers, pool)
            else:
                missing = numbers[b, MARK] != mark
            if missing:
                _connect(a, b, mark, numbers, weights, lists, pool, counters)
                # Now it is a neighbour, as a common one of the next pair.
                numbers[b, MARK] = mark


@part
def _contains(v: int, u: int, numbers: Any, pool: Any) -> bool:
    """Return True if the row of `v` contains `u`."""
    low, high = numbers[v, START], numbers[v, START] + numbers[v, LENGTH]
    while low < high:
        middle = (low + high) >> 1
        if pool[middle] < u:
            low = middle + 1
        else:
            high = middle
    return bool(low < numbers[v, START] + numbers[v, LENGTH] and pool[low] == u)


@part
def _connect(a: int, b: int, mark: int, numbers: Any, weights: Any, lists: Any, pool: Any, counters: Any) -> None:
    """Connect two variables and update the scores; `mark`: of the neighbours of `a`, 0 if these are not marked."""
    stack, changes = lists[STACK], lists[CHANGES]
    one, other = numbers[a], numbers[b]
    edge = one[ENDS] * other[ENDS]
    # The shorter row is read, and its entries looked for in the longer one, marked or searched.
    marked = mark > 0 and other[LENGTH] <= max(LONG, TIMES * one[LENGTH])
    read, search = b, a
    if not marked and one[LENGTH] < other[LENGTH]:
        read, search = a, b
    common = 0
    start, length = numbers[read, START], numbers[read, LENGTH]
    counters[STEPS] += length
    for at in range(start, start + length):
        u = pool[at]
        if numbers[u, DEGREE] == GONE:
            continue
        if (numbers[u, MARK] == mark) if marked else _contains(search, u, numbers, pool):
            # A neighbour of both ends has one missing edge less.
            common += numbers[u, ENDS]
            numbers[u, FILL] -= edge
            _queue(u, numbers, stack, counters)
            _note(u, numbers, changes, counters)
    one[FILL] += other[ENDS] * (one[SUM] - common)
    other[FILL] += one[ENDS] * (other[SUM] - common)
    one[SUM] += other[ENDS]
    other[SUM] += one[ENDS]
    one[WEIGHT] += weights[b]
    other[WEIGHT] += weights[a]
    _insert(a, b, numbers, pool, counters)
    _insert(b, a, numbers, pool, counters)
    _note(a, numbers, changes, counters)
    _note(b, numbers, changes, counters)


@part
def _insert(v: int, u: int, numbers: Any, pool: Any, counters: Any) -> None:
    """Insert `u` into the row of `v`, which is moved to the end of the pool if it is full."""
    row = numbers[v]
    if row[LENGTH] == row[ROOM]:
        room = 2 * row[LENGTH] + SLACK
        start = counters[USED]
        _move(v, numbers, pool, pool, counters)
        row[ROOM] = room
        counters[USED] = start + room
    place = row[START] + row[LENGTH]
    counters[STEPS] += 1
    while place > row[START] and pool[place - 1] > u:
        pool[place] = pool[place - 1]
        place -= 1
    pool[place] = u
    row[LENGTH] += 1
    row[DEGREE] += 1


@part
def _remove(v: int, numbers: Any, weights: Any, lists: Any, pool: Any, counters: Any) -> None:
    """Remove `v`, whose neighbours are all connected, from the graph."""
    stack, changes = lists[STACK], lists[CHANGES]
    one = numbers[index(v)]
    start, length, end_v, sum_v, weight = one[START], one[LENGTH], one[ENDS], one[SUM], weights[index(v)]
    one[DEGREE] = GONE
    counters[STEPS] += length
    for at in range(start, start + length):
        u = pool[index(at)]
        row = numbers[index(u)]
        if row[DEGREE] == GONE:
            continue
        row[DEGREE] -= 1
        row[WEIGHT] -= weight
        row[SUM] -= end_v
        # Edges from `v` to neighbours of `u` that `v` lacks no longer count as missing.
        row[FILL] -= end_v * (row[SUM] - (sum_v - row[ENDS]))
        # Its entry stays in the row of `u` until half of them are gone.
        if row[LENGTH] > 2 * row[DEGREE] + SLACK:
            _clean(row, numbers, pool, counters)
        _queue(u, numbers, stack, counters)
        _note(u, numbers, changes, counters)


@part
def _clean(row: Any, numbers: Any, pool: Any, counters: Any) -> None:
    """Drop eliminated variables from a row."""
    kept = row[START]
    counters[STEPS] += row[LENGTH]
    for at in range(row[START], row[START] + row[LENGTH]):
        u = pool[at]
        if numbers[u, DEGREE] != GONE:
            pool[kept] = u
            kept += 1
    row[LENGTH] = kept - row[START]


@part
def _cost(v: int, numbers: Any, criterion: int, noise: float) -> float:
    score = numbers[v, FILL]
    if criterion == MIN_WEIGHT:
        score = numbers[v, WEIGHT]
    elif criterion == MIN_NEIGHBOURS:
        score = numbers[v, DEGREE]
    return float((score * OUTWEIGHS + numbers[v, WEIGHT]) * noise)


@part
def _fill_heap(count: int, numbers: Any, criterion: int, costs: Any, lists: Any, counters: Any) -> None:
    """Put all variables that are left into the heap; from now on, changed scores are listed."""
    heap, choice = lists[HEAP], lists[CHOICE]
    size = 0
    for i in range(count):
        v = choice[i]
        if numbers[v, DEGREE] != GONE:
            costs[COST, v] = _cost(v, numbers, criterion, costs[NOISE, v])
            heap[size] = v
            numbers[v, PLACE], numbers[v, CHANGED] = size, 0
            size += 1
    counters[HEAPED] = size
    counters[STEPS] += count
    for place in range(size // 2 - 1, -1, -1):
        _sift_down(place, numbers, costs[COST], heap, size, counters)


@part
def _update_heap(numbers: Any, criterion: int, costs: Any, lists: Any, counters: Any) -> None:
    """Move the variables with changed scores to their new places."""
    heap, changes, cost = lists[HEAP], lists[CHANGES], costs[COST]
    for i in range(counters[LISTED]):
        v = changes[i]
        numbers[v, CHANGED] = 0
        # Eliminated ones stay until they reach the top.
        if numbers[v, DEGREE] == GONE:
            continue
        before, cost[v] = cost[v], _cost(v, numbers, criterion, costs[NOISE, v])
        if cost[v] < before:
            _sift_up(numbers[v, PLACE], numbers, cost, heap, counters)
        else:
            _sift_down(numbers[v, PLACE], numbers, cost, heap, counters[HEAPED], counters)
    counters[LISTED] = 0


@part
def _pop(numbers: Any, cost: Any, heap: Any, counters: Any) -> int:
    """Take the variable of least cost, the lowest among equals, that is not yet eliminated."""
    while True:
        v = heap[0]
        counters[HEAPED] -= 1
        size = counters[HEAPED]
        heap[0] = heap[size]
        numbers[heap[0], PLACE] = 0
        _sift_down(0, numbers, cost, heap, size, counters)
        if numbers[v, DEGREE] != GONE:
            return int(v)


@part
def _sift_up(place: int, numbers: Any, cost: Any, heap: Any, counters: Any) -> None:
    v = heap[place]
    while place > 0:
        above = (place - 1) >> 1
        u = heap[above]
        counters[STEPS] += 1
        if not (cost[v] < cost[u] or (cost[v] == cost[u] and v < u)):
            break
        heap[place] = u
        numbers[u, PLACE] = place
        place = above
    heap[place] = v
    numbers[v, PLACE] = place


@part
def _sift_down(place: int, numbers: Any, cost: Any, heap: Any, size: int, counters: Any) -> None:
    v = heap[place]
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        u = heap[below]
        counters[STEPS] += 1
        if below + 1 < size:
            w = heap[below + 1]
            if cost[w] < cost[u] or (cost[w] == cost[u] and w < u):
                u, below = w, below + 1
        if not (cost[u] < cost[v] or (cost[u] == cost[v] and u < v)):
            break
        heap[place] = u
        numbers[u, PLACE] = place
        place = below
    heap[place] = v
    numbers[v, PLACE] = place


def eliminations(rows: Sequence[Sequence[int]], cardinalities: Sequence[int]) -> Callable[[str, float], list[int]]:
    """Return the greedy elimination of a graph as a function of the name of a criterion, and of the most bits.

    The most bits are log2 of the entries of a table at which the order is abandoned: it ends there.
    rows: ascending neighbours of each variable.
    cardinalities: number of states of each variable.
    """
    starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    graph = SparseGraph(starts, np.array([u for row in rows for u in row], dtype=np.int32), NOT_LISTED)
    weights, work, state = weights_of(cardinalities), sparse_work(graph), np.zeros(1, dtype=np.uint64)
    everything = np.ones(len(rows), dtype=np.bool_)

    def order(criterion: str, most: float) -> list[int]:
        numbers = np.empty(len(rows), dtype=np.int64)
        weight = int(most * UNITS_PER_BIT)
        count = greedy(graph, everything, weights, NAMES[criterion], 0.0, state, work, numbers, weight)
        return [int(v) for v in numbers[:count]]

    return order
