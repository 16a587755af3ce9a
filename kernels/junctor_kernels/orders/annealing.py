"""Search for elimination orders of small total table size: simulated annealing by rotations of the elimination tree.

Main functions: `search` and `load`, called by `junctor.planning.elimination`. Liu, Equivalent sparse matrix
reorderings by elimination tree rotations (1988); Kjaerulff, Optimal decomposition of probabilistic networks by
simulated annealing (1992).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import loops, lowest_bit, part
from junctor_kernels.orders.greedy import (
    CRITERIA,
    LARGEST,
    STACK,
    Words,
    add,
    discard,
    evaluate,
    greedy,
    has,
    members_of,
    random,
    weights_of,
    work_for,
)

# The parent of a variable in the elimination tree of an order is the neighbour that is eliminated next. All orders with
# one tree make the same cliques, and exchanging a variable with its parent changes two cliques only. A proposed
# exchange therefore costs a few words, whatever the size of the graph, and some ten million are tried in a second.
# Arrays of all functions:
# - tree: int64 [TREE, n], parent, first child, next and previous sibling, number of later neighbours; -1 for none.
# - later: uint64 [n, words], the neighbours of each variable that are eliminated after it.
# - below: float64 [n], the product of their cardinalities, at most LARGEST.
PARENT, FIRST, NEXT, PREVIOUS, DEGREE, TREE = 0, 1, 2, 3, 4, 5
# Steps (words and links visited) of about a second on one core.
SECOND = 300_000_000
# Steps of a rotation in addition to them.
PER_TRY = 12
# Most steps that are of use for each pair of variables that can be rotated.
PER_PAIR = 100_000
# Rounds of annealing.
ROUNDS = 12
# Share of the steps for greedy restarts.
RESTARTS = 0.2
# Their noise: scores are multiplied by up to 1 + NOISE.
NOISE = 0.3
# Steps of a restart for each variable, and for each edge of the triangulated graph.
GREEDY_STEPS = 60
EDGE_STEPS = 40
# Annealing never exceeds the best total by this factor: sums stay exact, and no search returns from there.
CEILING = 4096.0


class Round(NamedTuple):
    """How a round anneals.

    hot, cold: initial and final temperature.
    maximal: whether a clique inside another one counts nothing in the acceptance (it never does in the total).
    """

    hot: float
    cold: float
    maximal: bool


SCHEDULE = (Round(0.3, 0.1, True), Round(0.5, 0.2, False), Round(0.5, 0.1, True), Round(0.5, 0.2, False))


def search(
    graph: Words, members: Words, cardinalities: Sequence[int], start: Sequence[int], steps: int, seed: int = 0
) -> tuple[list[int], float]:
    """Return the best order found and the entries of all its maximal cliques; deterministic for a seed.

    graph: uint64 [n, words].
    members: uint64 [words], variables to eliminate.
    cardinalities: number of states of every variable.
    start: an order of the members from greedy elimination, simplicial ones first; returned if nothing better is found.
    steps: bounds the work.
    seed: of the random numbers.
    """
    sizes = np.asarray(cardinalities, dtype=np.float64)
    state = np.array([seed], dtype=np.uint64)
    order = np.array(start, dtype=np.int64)
    schedule = np.array([SCHEDULE[i % len(SCHEDULE)] for i in range(ROUNDS)], dtype=np.float64)
    total = _search(
        graph, members, sizes, weights_of(cardinalities), steps, schedule, state, order, _work(*graph.shape)
    )
    return order.tolist(), total


def load() -> None:
    """Load the compiled search now; in a thread it would wait for Python's lock at every step."""
    search(np.zeros((1, 1), dtype=np.uint64), np.zeros(1, dtype=np.uint64), (1,), (), 0)


class _Work(NamedTuple):
    """Work arrays of a search: `later`, `tree` and `below` of the top of the module, those of `greedy`, and others.

    numbers: int64, of `greedy`.
    candidate, chosen, parents: int64 [n], an order, variables to rotate, the best tree of a round.
    union: uint64 [words].
    """

    later: Words
    numbers: npt.NDArray[np.int64]
    tree: npt.NDArray[np.int64]
    below: npt.NDArray[np.float64]
    candidate: npt.NDArray[np.int64]
    chosen: npt.NDArray[np.int64]
    parents: npt.NDArray[np.int64]
    union: Words


def _work(variables: int, words: int) -> _Work:
    candidate, chosen, parents = np.zeros((3, variables), dtype=np.int64)
    tree, union = np.zeros((TREE, variables), dtype=np.int64), np.zeros(words, dtype=np.uint64)
    return _Work(*work_for(variables), tree, np.ones(variables), candidate, chosen, parents, union)


# One function, because each that Python calls is loaded by itself; without arrays of its own it is loaded faster.
@loops
def _search(
    graph: Any, members: Any, sizes: Any, weights: Any, steps: int, schedule: Any, state: Any, order: Any, work: Any
) -> float:
    """Improve an order in place by greedy restarts and rounds of annealing; return its total.

    graph, members, steps: as in `search`.
    sizes, weights: float64 [n], cardinalities, and int64 [n], of `weights_of`.
    schedule: float64 [rounds, 3], the fields of Round for each.
    state: of `random`.
    order: int64 [members].
    work: of `_work`.
    """
    later, numbers, count = work.later, work.numbers, order.shape[0]
    evaluate(graph, members, sizes, order, count, later, numbers)
    first = _simplicial(graph, order, later, numbers[STACK])
    # Simplicial variables at the front add no edge: rotating them cannot help.
    choice = work.chosen[first:count]
    _copy(order[first:], choice)
    steps = min(steps, PER_PAIR * choice.shape[0] ** 2)
    candidate = work.candidate[:count]
    total: float = _restarts(
        graph, members, sizes, weights, int(RESTARTS * steps), state, later, numbers, candidate, order
    )
    for i in range(schedule.shape[0]):
        evaluate(graph, members, sizes, order, count, later, numbers)
        _build_tree(order, sizes, later, numbers[STACK], work.tree, work.below)
        _anneal(graph, sizes, choice, total, steps // schedule.shape[0], schedule[i], state, work)
        _list_order(work.parents, order, numbers[STACK], candidate)
        # Evaluated again: sums of many small changes are inexact.
        entries = evaluate(graph, members, sizes, candidate, count, later, numbers)
        if entries < total:
            total = entries
            _copy(candidate, order)
    return total


@part
def _copy(numbers: Any, to: Any) -> None:
    for i in range(to.shape[0]):
        to[i] = numbers[i]


@part
def _restarts(
    graph: Any,
    members: Any,
    sizes: Any,
    weights: Any,
    steps: int,
    state: Any,
    rows: Any,
    numbers: Any,
    candidate: Any,
    order: Any,
) -> float:
    """Run each greedy criterion once, then all in turn with noise; improve `order` in place and return its total."""
    count = order.shape[0]
    best: float = evaluate(graph, members, sizes, order, count, rows, numbers)
    spent, attempt = 0, 0
    while attempt < CRITERIA or spent < steps:
        noise = NOISE if attempt >= CRITERIA else 0.0
        greedy(graph, members, weights, attempt % CRITERIA, noise, state, rows, numbers, candidate)
        total = evaluate(graph, members, sizes, candidate, count, rows, numbers)
        attempt += 1
        spent += 1 + GREEDY_STEPS * count
        for v in candidate:
            spent += EDGE_STEPS * members_of(rows[v], numbers[0])
        if total < best:
            best = total
            _copy(candidate, order)
    return best


@part
def _build_tree(order: Any, sizes: Any, later: Any, position: Any, tree: Any, below: Any) -> None:
    """Write the elimination tree of an order whose later neighbours are known."""
    tree[:] = -1
    for i in range(order.shape[0]):
        position[order[i]] = i
    for i in range(order.shape[0]):
        v, parent = order[i], -1
        tree[DEGREE, v], size = 0, 1.0
        for k in range(later.shape[1]):
            word = later[v, k]
            while word != 0:
                u = (k << 6) + lowest_bit(word)
                word &= word - np.uint64(1)
                tree[DEGREE, v] += 1
                size *= sizes[u]
                if parent < 0 or position[u] < position[parent]:
                    parent = u
        below[v] = min(size, LARGEST)
        _adopt(tree, v, parent)


@part
def _simplicial(graph: Any, order: Any, later: Any, around: Any) -> int:
    """Return the number of variables at the front of an order that are eliminated without adding an edge."""
    for i in range(order.shape[0]):
        v = order[i]
        for j in range(members_of(later[v], around)):
            u = around[j]
            for k in range(later.shape[1]):
                word = later[v, k] & ~graph[u, k]
                if k == u >> 6:
                    word &= ~(np.uint64(1) << np.uint64(u & 63))
                if word != 0:
                    return int(i)
    return int(order.shape[0])


@part
def _list_order(parent: Any, members: Any, children: Any, order: Any) -> None:
    """Write an order with the given elimination tree: children before parents, otherwise as in `members`."""
    children[:] = 0
    for v in members:
        if parent[v] >= 0:
            children[parent[v]] += 1
    done = 0
    for v in members:
        # Up from every leaf while all children of the parent are done.
        while v >= 0 and children[v] == 0:
            children[v] = -1
            order[done] = v
            done += 1
            v = parent[v]
            if v >= 0:
                children[v] -= 1


@part
def _anneal(graph: Any, sizes: Any, choice: Any, total: float, steps: int, how: Any, state: Any, work: Any) -> None:
    """Rotate random variables upwards; write the parents in the best tree seen.

    graph, sizes: neighbours and cardinalities.
    choice: int64, variables to rotate.
    total: entries of all maximal cliques of the initial tree.
    steps: bounds the work.
    how: float64 [3], temperatures, and what counts.
    state: of `random`.
    work: its `later`, `tree` and `below` are changed, its `parents` written.
    """
    # A rotation that enlarges its two cliques by a factor f is accepted with probability f ** (-1 / temperature); the
    # temperature falls geometrically. Using the factor instead of the total lets small cliques settle as well as large
    # ones.
    hot, cold, maximal = how[0], how[1], how[2] != 0.0
    later, tree, below, union, parents = work.later, work.tree, work.below, work.union, work.parents
    best = total
    _copy(tree[PARENT], parents)
    spent, tried, temperature = 0, 0, hot
    while spent < steps and choice.shape[0] > 0:
        if tried % 256 == 0:
            temperature = hot * (cold / hot) ** (spent / steps)
        tried += 1
        u = choice[random(state) % choice.shape[0]]
        p = tree[PARENT, u]
        spent += PER_TRY
        if p < 0:
            continue
        degree, size, links = _first_of_two(u, p, graph, sizes, later, tree, union)
        spent += links
        old, new = _sizes(u, p, sizes, tree, below, later, degree, size, True)
        change = new - old
        if total + change > CEILING * best:
            continue
        if not maximal:
            old, new = _sizes(u, p, sizes, tree, below, later, degree, size, False)
        if new > old and (random(state) + 1) / 2.0**31 >= np.exp(-np.log2(new / max(1.0, old)) / temperature):
            continue
        _rotate(u, p, tree, later, below, union, degree, size)
        total += change
        if total < best:
            best = total
            _copy(tree[PARENT], parents)


@part
def _first_of_two(u: int, p: int, graph: Any, sizes: Any, later: Any, tree: Any, union: Any) -> Any:
    """Write the later neighbours of `p` if it were eliminated before its child `u` into `union`.

    Returns their number, the product of their cardinalities, and the steps taken.
    """
    words = union.shape[0]
    steps = words
    for k in range(words):
        union[k] = graph[p, k] & later[p, k]
    for parent in (p, u):
        child = tree[FIRST, parent]
        while child >= 0:
            steps += 1
            # Children of `u` with `p` among their later neighbours would become children of `p`.
            if child != u and (parent == p or has(later[child], p)):
                steps += words
                for k in range(words):
                    union[k] |= later[child, k]
            child = tree[NEXT, child]
    add(union, u)
    discard(union, p)
    degree, size = 0, 1.0
    for k in range(words):
        word = union[k]
        while word != 0:
            degree += 1
            size *= sizes[(k << 6) + lowest_bit(word)]
            word &= word - np.uint64(1)
    return degree, min(size, LARGEST), steps + degree


@part
def _sizes(
    u: int, p: int, sizes: Any, tree: Any, below: Any, later: Any, degree: int, size: float, maximal: bool
) -> Any:
    """Return the sum of the sizes of the cliques of `u` and `p` before and after the rotation.

    sizes, tree, below, later: as in `_anneal`.
    degree, size: of `_first_of_two`.
    maximal: whether only maximal cliques count.
    """
    # In either order, the second of the two has the later neighbours that `p` has now.
    first_old, second_old = below[u] * sizes[u], below[p] * sizes[p]
    first_new, second_new = size * sizes[p], below[p] * sizes[u]
    if not maximal:
        return first_old + second_old, first_new + second_new
    degrees = tree[DEGREE]
    of_p, moved, kept = -1, -1, -1
    child = tree[FIRST, p]
    while child >= 0:
        if child != u:
            of_p = max(of_p, degrees[child])
        child = tree[NEXT, child]
    child = tree[FIRST, u]
    while child >= 0:
        if has(later[child], p):
            moved = max(moved, degrees[child])
        else:
            kept = max(kept, degrees[child])
        child = tree[NEXT, child]
    # A clique lies inside another one if and only if a child has one later neighbour more.
    old = (first_old if max(moved, kept) <= degrees[u] else 0.0) + (
        second_old if max(of_p, degrees[u]) <= degrees[p] else 0.0
    )
    new = (first_new if max(of_p, moved) <= degree else 0.0) + (second_new if max(kept, degree) <= degrees[p] else 0.0)
    return old, new


@part
def _rotate(u: int, p: int, tree: Any, later: Any, below: Any, union: Any, degree: int, size: float) -> None:
    """Make `u` the parent of its parent `p`, which gets `union` as later neighbours."""
    above = tree[PARENT, p]
    _leave(tree, u)
    _leave(tree, p)
    child = tree[FIRST, u]
    while child >= 0:
        following = tree[NEXT, child]
        if has(later[child], p):
            _leave(tree, child)
            _adopt(tree, child, p)
        child = following
    _adopt(tree, p, u)
    _adopt(tree, u, above)
    for k in range(union.shape[0]):
        later[u, k], later[p, k] = later[p, k], union[k]
    tree[DEGREE, u], tree[DEGREE, p] = tree[DEGREE, p], degree
    below[u], below[p] = below[p], size


@part
def _adopt(tree: Any, v: int, parent: int) -> None:
    """Make `v`, which has no parent, the first child of `parent`, if there is one."""
    tree[PARENT, v], tree[PREVIOUS, v], tree[NEXT, v] = parent, -1, -1
    if parent >= 0:
        sibling = tree[FIRST, parent]
        tree[NEXT, v] = sibling
        tree[FIRST, parent] = v
        if sibling >= 0:
            tree[PREVIOUS, sibling] = v


@part
def _leave(tree: Any, v: int) -> None:
    """Remove `v` from the children of its parent."""
    before, after = tree[PREVIOUS, v], tree[NEXT, v]
    if before >= 0:
        tree[NEXT, before] = after
    elif tree[PARENT, v] >= 0:
        tree[FIRST, tree[PARENT, v]] = after
    if after >= 0:
        tree[PREVIOUS, after] = before
