"""Elimination orders: several greedy criteria, then randomised restarts of the best one, within a budget of steps.

The budget counts scores, not seconds, so that the same question gives the same plan on every machine and in every
resumed run. Graphs are lists of neighbour sets as integers (bit i: variable i).
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from junctor.planning.shape import bits, mask_of

Score = Callable[[Sequence[int], Sequence[float], int], float]


@dataclass(frozen=True, slots=True)
class Order:
    """An elimination order and the clique (as a bit set) that each elimination makes, with their total table size."""

    variables: tuple[int, ...]
    cliques: tuple[int, ...]
    entries: float
    criterion: str


def min_neighbours(graph: Sequence[int], _log_sizes: Sequence[float], v: int) -> float:
    """Score by the number of neighbours."""
    return graph[v].bit_count()


def min_weight(graph: Sequence[int], log_sizes: Sequence[float], v: int) -> float:
    """Score by the logarithm of the size of the clique that eliminating `v` makes."""
    return sum(log_sizes[u] for u in bits(graph[v])) + log_sizes[v]


def min_fill(graph: Sequence[int], _log_sizes: Sequence[float], v: int) -> float:
    """Score by the number of edges that eliminating `v` adds."""
    around = graph[v]
    # Each missing edge is seen from both ends, and every neighbour misses itself.
    missing = sum((around & ~graph[u]).bit_count() for u in bits(around))
    return (missing - around.bit_count()) / 2


def weighted_min_fill(graph: Sequence[int], log_sizes: Sequence[float], v: int) -> float:
    """Score by the added edges, each weighted with the product of the logarithms of its ends' sizes."""
    around = graph[v]
    total = 0.0
    for u in bits(around):
        missing = around & ~graph[u] & ~(1 << u)
        if missing:
            total += log_sizes[u] * sum(log_sizes[w] for w in bits(missing))
    return total / 2


CRITERIA: dict[str, Score] = {
    "min-fill": min_fill,
    "min-weight": min_weight,
    "weighted-min-fill": weighted_min_fill,
    "min-neighbours": min_neighbours,
}


# Restarts of a greedy criterion that a small graph gets at most.
MOST_RESTARTS = 200


def moral_graph(variables: int, scopes: Sequence[Sequence[int]]) -> list[int]:
    """Return the neighbour sets of the graph in which the variables of each scope are all connected."""
    graph = [0] * variables
    for scope in scopes:
        members = mask_of(scope)
        for v in scope:
            graph[v] |= members
    return [around & ~(1 << v) for v, around in enumerate(graph)]


def best_order(graph: Sequence[int], members: int, cardinalities: Sequence[int], effort: int, seed: int = 0) -> Order:
    """Return the order of the variables in `members` with the smallest total table size that `effort` scores can find.

    Every criterion runs once whatever the effort; then the two best ones are restarted with random ties.
    """
    log_sizes = [math.log2(size) for size in cardinalities]
    spent = [0]
    found = [eliminate(graph, members, log_sizes, name, None, spent) for name in CRITERIA]
    found.sort(key=lambda order: order.entries)
    best = found[0]
    rng = random.Random(seed)
    favourites = [order.criterion for order in found[:2]]
    # No graph is worth more than so many restarts; an empty one is worth none.
    effort = min(effort, MOST_RESTARTS * members.bit_count())
    attempt = 0
    while spent[0] < effort:
        order = eliminate(graph, members, log_sizes, favourites[attempt % 2], rng, spent, best.entries)
        attempt += 1
        if order.entries < best.entries:
            best = order
    return best


def eliminate(
    graph: Sequence[int],
    members: int,
    log_sizes: Sequence[float],
    criterion: str,
    rng: random.Random | None,
    spent: list[int],
    give_up_at: float = math.inf,
) -> Order:
    """Eliminate greedily by `criterion`; ties go to the smaller clique, then to `rng` or the lower number.

    Adds the number of scores computed to `spent[0]`. Stops early, with infinite entries, once the total table size
    reaches `give_up_at`.
    """
    graph = list(graph)
    score = CRITERIA[criterion]
    current: dict[int, tuple[float, float, int]] = {}
    heap: list[tuple[float, float, int]] = []

    def rescore(v: int) -> None:
        spent[0] += 1
        tie = rng.random() if rng else min_weight(graph, log_sizes, v)
        current[v] = (score(graph, log_sizes, v), tie, v)
        heapq.heappush(heap, current[v])

    for v in bits(members):
        rescore(v)
    order: list[int] = []
    cliques: list[int] = []
    separators: set[int] = set()
    total = 0.0
    while heap:
        entry = heapq.heappop(heap)
        v = entry[2]
        if current.get(v) is not entry:
            continue
        del current[v]
        around = graph[v]
        order.append(v)
        cliques.append(around | (1 << v))
        # What an earlier elimination left behind whole lies inside that clique and is no clique of the tree.
        if cliques[-1] not in separators:
            total += 2.0 ** min(1000.0, sum(log_sizes[u] for u in bits(cliques[-1])))
        separators.add(around)
        if total >= give_up_at:
            return Order(tuple(order), tuple(cliques), math.inf, criterion)
        for u in _connect(graph, v, around):
            rescore(u)
    return Order(tuple(order), tuple(cliques), total, criterion)


def _connect(graph: list[int], v: int, around: int) -> list[int]:
    """Remove `v`, make its neighbours a clique, and return the variables whose scores may have changed."""
    changed = around
    for u in bits(around):
        added = around & ~graph[u] & ~(1 << u)
        graph[u] = (graph[u] | around) & ~(1 << u) & ~(1 << v)
        for w in bits(added >> (u + 1) << (u + 1)):
            # Whoever sees both ends of a new edge has one fill edge less.
            changed |= graph[u] & (graph[w] | around)
    changed &= ~(1 << v)
    return list(bits(changed))
