"""Orders by nested dissection: a small set of variables that cuts a graph in two goes last, and so on (Numba).

Main functions: `dissection`, and `places` of any order, in which products are shared. After George, Nested dissection
of a regular finite element mesh (1973); cuts grow from a vertex in breadth-first order and are improved by moves of
Fiduccia and Mattheyses, A linear-time heuristic for improving network partitions (1982), of vertices, not edges.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from junctor_kernels.circuits.tables import ONE
from junctor_kernels.cpu.jit import jit, part
from junctor_kernels.orders.greedy import random

# Sides of a cut, and no side: outside of what is cut.
LEFT, RIGHT, CUT, OUTSIDE = 0, 1, 2, 3
# Share of the weight that a side may have; cuts that are tried, and of ranges of more than so many variables; passes
# over each, and moves without a gain that end one.
MOST_SHARE, TRIALS, FEW_TRIALS, LARGE, PASSES, PATIENCE = 0.65, 8, 2, 1000, 6, 64
# Rows of the work array.
SIDE, REGION, LIST, LOCKED, MOVED, BEST, ROWS = range(7)


@jit
def dissection(starts: Any, neighbours: Any, weights: Any, first: Any, few: int, seed: int) -> Any:
    """Return an elimination order of a graph, int64 [n].

    starts, neighbours: of `orders.sparse.SparseGraph`.
    weights: int64 [n], above zero.
    first: int64 [n], another order, in which variables go that are not cut, and those of one cut.
    few: variables that are not cut.
    seed: of random numbers.
    """
    n = starts.size - 1
    order, work, state = first.copy(), np.zeros((ROWS, max(1, n)), np.int64), np.zeros(1, np.uint64)
    state[0] = np.uint64(seed)
    work[SIDE, :] = OUTSIDE
    stack = np.zeros((2 * n + 2, 2), np.int64)
    stack[0, 0], stack[0, 1], waiting = 0, n, 1
    while waiting > 0:
        waiting -= 1
        low, high = stack[waiting, 0], stack[waiting, 1]
        if high - low <= few:
            continue
        middle, end = _parted(starts, neighbours, weights, order, low, high, work, state)
        for start, last in ((low, middle), (middle, end)):
            if start < last < high or (start > low and start < last):
                stack[waiting, 0], stack[waiting, 1] = start, last
                waiting += 1
    return order


@part
def _parted(starts: Any, neighbours: Any, weights: Any, order: Any, low: int, high: int, work: Any, state: Any) -> Any:
    """Sort a range of the order into left, right and cut, and return where right and the cut begin."""
    side = work[SIDE]
    for i in range(low, high):
        side[order[i]] = RIGHT
    reached = _grow(starts, neighbours, order[low], work[LIST], work[REGION], side)
    if reached < high - low:
        for i in range(reached):
            side[work[LIST, i]] = LEFT
    else:
        _best_cut(starts, neighbours, weights, order, low, high, work, state)
    middle, end = _arrange(order, low, high, side, work[LIST])
    for i in range(low, high):
        side[order[i]] = OUTSIDE
    return middle, end


@part
def _grow(starts: Any, neighbours: Any, start: int, found: Any, region: Any, side: Any) -> Any:
    """List the vertices that a start reaches in what is cut, in breadth-first order; return their number.

    region: memory; it is marked while they are listed.
    """
    found[0], count, at = start, 1, 0
    region[start] = -1
    while at < count:
        v = found[at]
        at += 1
        for place in range(starts[v], starts[v + 1]):
            u = neighbours[place]
            if side[u] != OUTSIDE and region[u] != -1:
                region[u] = -1
                found[count] = u
                count += 1
    for i in range(count):
        region[found[i]] = 0
    return count


@part
def _arrange(order: Any, low: int, high: int, side: Any, kept: Any) -> Any:
    """Sort a range of the order by sides, which keep their order; return where right and the cut begin."""
    for i in range(low, high):
        kept[i - low] = order[i]
    at, middle, end = low, low, low
    for which in range(CUT + 1):
        for i in range(high - low):
            if side[kept[i]] == which:
                order[at] = kept[i]
                at += 1
        if which == LEFT:
            middle = at
        elif which == RIGHT:
            end = at
    return middle, end


@part
def _best_cut(
    starts: Any, neighbours: Any, weights: Any, order: Any, low: int, high: int, work: Any, state: Any
) -> None:
    """Give the vertices of a connected range their sides, by the best of several cuts."""
    side, best, found = work[SIDE], work[BEST], work[LIST]
    total, least = 0, np.inf
    for i in range(low, high):
        total += weights[order[i]]
    for trial in range(TRIALS if high - low <= LARGE else FEW_TRIALS):
        start = order[low + random(state) % (high - low)]
        if trial % 2 == 0:
            # From one end to the other.
            start = found[_grow(starts, neighbours, start, found, work[REGION], side) - 1]
        count = _grow(starts, neighbours, start, found, work[REGION], side)
        _begin_cut(starts, neighbours, weights, found, count, total, side)
        for _ in range(PASSES):
            if not _improve(starts, neighbours, weights, order, low, high, total, work):
                break
        cost = _cost(weights, order, low, high, side, total)
        if cost < least:
            least = cost
            for i in range(low, high):
                best[order[i]] = side[order[i]]
        for i in range(low, high):
            side[order[i]] = RIGHT
    for i in range(low, high):
        side[order[i]] = best[order[i]]


@part
def _begin_cut(starts: Any, neighbours: Any, weights: Any, found: Any, count: int, total: int, side: Any) -> None:
    """Put half of the weight, as found, on the left, and what touches it into the cut."""
    weight = 0
    for i in range(count):
        v = found[i]
        side[v] = LEFT if 2 * weight < total else RIGHT
        weight += weights[v]
    for i in range(count):
        v = found[i]
        if side[v] == RIGHT:
            for place in range(starts[v], starts[v + 1]):
                if side[neighbours[place]] == LEFT:
                    side[v] = CUT
                    break


@part
def _cost(weights: Any, order: Any, low: int, high: int, side: Any, total: int) -> float:
    """Return the weight of a cut, more where its sides differ."""
    left, right, cut = 0.0, 0.0, 0.0
    for i in range(low, high):
        v = order[i]
        if side[v] == LEFT:
            left += weights[v]
        elif side[v] == RIGHT:
            right += weights[v]
        else:
            cut += weights[v]
    uneven = abs(left - right) / total
    return cut * (1 + uneven * uneven) + (total if min(left, right) == 0 else 0)


@part
def _improve(starts: Any, neighbours: Any, weights: Any, order: Any, low: int, high: int, total: int, work: Any) -> Any:
    """Move vertices out of the cut, the best first, and keep the best state on the way; return whether it is better."""
    side, locked, moved, cut = work[SIDE], work[LOCKED], work[MOVED], work[REGION]
    count, left, right = 0, 0, 0
    for i in range(low, high):
        v = order[i]
        locked[v] = 0
        if side[v] == CUT:
            cut[count] = v
            count += 1
        elif side[v] == LEFT:
            left += weights[v]
        else:
            right += weights[v]
    gain, best, kept, idle = 0, 0, 0, 0
    log = work[LIST]
    records = 0
    most = MOST_SHARE * total
    while count > 0 and idle < PATIENCE:
        # The best move of all; ties go to the lighter side.
        choice, to, value = -1, 0, -(1 << 60)
        for i in range(count):
            # No sign, for speed, as in `circuits.search`.
            w = np.uint64(cut[i])
            if locked[w]:
                continue
            pulled_left, pulled_right = 0, 0
            for place in range(np.uint64(starts[w]), np.uint64(starts[w + ONE])):
                u = np.uint64(neighbours[place])
                if side[u] == LEFT:
                    pulled_left += weights[u]
                elif side[u] == RIGHT:
                    pulled_right += weights[u]
            own = weights[w]
            if left + own <= most:
                score = 2 * (own - pulled_right) + (left < right)
                if score > value:
                    choice, to, value = i, LEFT, score
            if right + own <= most:
                score = 2 * (own - pulled_left) + (right < left)
                if score > value:
                    choice, to, value = i, RIGHT, score
        if choice < 0 or records + 1 >= log.size:
            break
        v = cut[choice]
        count -= 1
        cut[choice] = cut[count]
        locked[v], side[v] = 1, to
        log[records], moved[records] = v, CUT
        records += 1
        gain += weights[v]
        if to == LEFT:
            left += weights[v]
        else:
            right += weights[v]
        is_full = False
        for place in range(starts[v], starts[v + 1]):
            u = neighbours[place]
            if side[u] == 1 - to:
                if records >= log.size:
                    is_full = True
                    break
                log[records], moved[records] = u, 1 - to
                records += 1
                side[u] = CUT
                cut[count] = u
                count += 1
                gain -= weights[u]
                if to == LEFT:
                    right -= weights[u]
                else:
                    left -= weights[u]
        idle += 1
        if is_full:
            break
        if gain > best:
            best, kept, idle = gain, records, 0
    for i in range(records - 1, kept - 1, -1):
        side[log[i]] = moved[i]
    for i in range(low, high):
        locked[order[i]] = 0
        cut[order[i]] = 0
    for i in range(count):
        cut[i] = 0
    return best > 0


@jit
def places(starts: Any, neighbours: Any, order: Any) -> Any:
    """Return the place of each variable in the elimination tree of an order, from its roots down, depth first.

    Liu, The role of elimination trees in sparse factorization (1990): without the cliques of the order.
    """
    n = order.size
    rank, ancestor, parent = np.zeros(n, np.int64), np.arange(n), np.full(n, -1, np.int64)
    for i in range(n):
        rank[order[i]] = i
    for i in range(n):
        v = order[i]
        for place in range(starts[v], starts[v + 1]):
            u = np.int64(neighbours[place])
            if rank[u] >= i:
                continue
            while ancestor[u] != u and ancestor[u] != v:
                above = ancestor[u]
                ancestor[u] = v
                u = above
            if u != v and ancestor[u] == u:
                ancestor[u], parent[u] = v, v
    # The last variable comes first, and children before their siblings' children: lists by next sibling.
    first, following, stack, found = (
        np.full(n, -1, np.int64),
        np.full(n, -1, np.int64),
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
    )
    root = np.int64(-1)
    for i in range(n):
        v = order[i]
        if parent[v] < 0:
            following[v], root = root, v
        else:
            following[v], first[parent[v]] = first[parent[v]], v
    at, top = 0, 0
    v = root
    while v >= 0 or top > 0:
        if v < 0:
            top -= 1
            v = following[stack[top]]
            continue
        found[v] = at
        at += 1
        stack[top] = v
        top += 1
        v = first[v]
    return found
