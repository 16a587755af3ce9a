"""Elimination orders: several greedy criteria, and simulated annealing where the rows to come are worth it.

Main functions: `good_orders` and `best_order`, called by `compile` and the chunk search. Graphs are lists of neighbour
sets as integers (bit i: variable i). Kjaerulff, Optimal decomposition of probabilistic networks by simulated annealing
(1992).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from junctor.planning.shape import bits, mask_of


@dataclass(frozen=True, slots=True)
class EliminationOrder:
    """An elimination order.

    variables: in the order of elimination.
    cliques: bit set of the clique that each elimination makes.
    entries: total table size of the maximal ones, infinite for an abandoned order.
    criterion: name of the search that found it.
    """

    variables: tuple[int, ...]
    cliques: tuple[int, ...]
    entries: float
    criterion: str


@dataclass(frozen=True, slots=True)
class Sizes:
    """Variables by cardinality: (bit set, log2 of the cardinality) for each cardinality that occurs."""

    classes: tuple[tuple[int, float], ...]

    def weight(self, members: int) -> float:
        """Return log2 of the table size of a set of variables."""
        # A plain loop: greedy elimination spends most of its time here.
        total = 0.0
        for mask, log_size in self.classes:
            if here := members & mask:
                total += here.bit_count() * log_size
        return total


Score = Callable[[Sequence[int], Sizes, int], float]


def sizes_of(cardinalities: Sequence[int]) -> Sizes:
    """Group variables by cardinality."""
    masks: dict[int, int] = {}
    for v, size in enumerate(cardinalities):
        masks[size] = masks.get(size, 0) | 1 << v
    return Sizes(tuple((mask, math.log2(size)) for size, mask in sorted(masks.items())))


def min_neighbours(graph: Sequence[int], _sizes: Sizes, v: int) -> float:
    """Score by the number of neighbours."""
    return graph[v].bit_count()


def min_weight(graph: Sequence[int], sizes: Sizes, v: int) -> float:
    """Score by log2 of the size of the clique that eliminating `v` makes."""
    return sizes.weight(graph[v] | 1 << v)


def min_fill(graph: Sequence[int], _sizes: Sizes, v: int) -> float:
    """Score by the number of edges that eliminating `v` adds."""
    around = graph[v]
    # Each missing edge is seen from both ends, and every neighbour misses itself.
    missing = sum((around & ~graph[u]).bit_count() for u in bits(around))
    return (missing - around.bit_count()) / 2


def weighted_min_fill(graph: Sequence[int], sizes: Sizes, v: int) -> float:
    """Score by the added edges, each weighted with the product of log2 of the cardinalities of its ends."""
    around = graph[v]
    total = 0.0
    for u in bits(around):
        missing = around & ~graph[u] & ~(1 << u)
        if missing:
            total += sizes.weight(1 << u) * sizes.weight(missing)
    return total / 2


# The cheap ones first: the others are abandoned where they get much worse.
CRITERIA: dict[str, Score] = {
    "min-weight": min_weight,
    "min-neighbours": min_neighbours,
    "min-fill": min_fill,
    "weighted-min-fill": weighted_min_fill,
}
# Criteria that ignore edges among the neighbours: only neighbours of an eliminated variable change their scores.
LOCAL = ("min-weight", "min-neighbours")
# A criterion is abandoned once its total table size is so many times that of the best one.
WORTH_ENDING = 4.0
# A greedy order with at most so many times the table size of the searched one is planned as well: operations follow
# table sizes only roughly.
NEARLY_AS_GOOD = 1.25
# Total table size at which no search can help: a petabyte of doubles is 2^47 entries.
HOPELESS = 2.0**60
# Variables with more neighbours are scored again only when they reach the top of the heap; they are rarely chosen.
BUSY = 64
# Steps of the search for each table entry and row to come. Compiled kernels take 0.1 to 1 ns for an entry of a row, and
# a step takes 3 ns, so that the search takes 3 to 30 % of the time of the rows with the order it starts from; it
# usually saves more. A bound on steps, not on seconds, gives the same plan in every resumed run.
STEPS_PER_ENTRY = 0.01
# With fewer steps the compiled search is not worth loading, which takes a second.
FEWEST_STEPS = 30_000_000
# About ten seconds.
MOST_STEPS = 3_000_000_000


def moral_graph(variables: int, scopes: Sequence[Sequence[int]]) -> list[int]:
    """Return the neighbour sets of the graph in which the variables of each scope are all connected."""
    graph = [0] * variables
    for scope in scopes:
        members = mask_of(scope)
        for v in scope:
            graph[v] |= members
    return [around & ~(1 << v) for v, around in enumerate(graph)]


def best_order(
    graph: Sequence[int], members: int, cardinalities: Sequence[int], rows: int, seed: int = 0
) -> EliminationOrder:
    """Return the order with the smallest total table size that the search finds.

    graph: neighbour sets as bit sets.
    members: bit set of the variables to eliminate.
    cardinalities: number of states of every variable.
    rows: number of cases to come.
    seed: seed of the search.
    """
    # Few cases get the best of the greedy criteria; many, a search of steps in proportion to cases and table size.
    return good_orders(graph, members, cardinalities, rows, seed)[0]


def good_orders(
    graph: Sequence[int], members: int, cardinalities: Sequence[int], rows: int, seed: int = 0
) -> list[EliminationOrder]:
    """Return `best_order` (same parameters), and the greedy order too where the search is only slightly better."""
    sizes = sizes_of(cardinalities)
    best = first = eliminate(graph, members, sizes, next(iter(CRITERIA)))
    if first.entries > HOPELESS or _adds_no_edge(graph, first):
        return [first]
    for criterion in list(CRITERIA)[1:]:
        order = eliminate(graph, members, sizes, criterion, best.entries * WORTH_ENDING)
        best = min(best, order, key=lambda order: order.entries)
    steps = min(MOST_STEPS, int(STEPS_PER_ENTRY * rows * first.entries))
    if steps < FEWEST_STEPS:
        return [best]
    searched = _searched(tuple(graph), members, tuple(cardinalities), first, steps, seed)
    orders = sorted((searched, best), key=lambda order: order.entries)
    return orders if orders[1].entries <= NEARLY_AS_GOOD * orders[0].entries else orders[:1]


def varied_orders(
    graph: Sequence[int], members: int, cardinalities: Sequence[int], rows: int
) -> list[EliminationOrder]:
    """Return orders of different strengths: few operations, small tables, or few tables at once.

    The parameters are those of `best_order`.
    """
    sizes = sizes_of(cardinalities)
    orders = [*good_orders(graph, members, cardinalities, rows), _sweep(graph, members, sizes)]
    orders += [eliminate(graph, members, sizes, criterion, HOPELESS) for criterion in CRITERIA]
    complete = (order for order in orders if len(order.variables) == members.bit_count())
    return list({order.variables: order for order in complete}.values())


def _sweep(graph: Sequence[int], members: int, sizes: Sizes) -> EliminationOrder:
    """Return a breadth-first order from a peripheral vertex (Cuthill and McKee 1969): few messages alive at once."""
    order: list[int] = []
    left = members
    while left:
        start = next(bits(left))
        # Twice, because the last vertex of a breadth-first search is far from all others (pseudo-peripheral).
        start = _breadth_first(graph, left, start)[-1]
        part = _breadth_first(graph, left, start)
        order += part
        left &= ~mask_of(part)
    cliques = cliques_of(graph, members, order)
    # Capped: larger powers of two exceed the range of doubles.
    total = sum(2.0 ** min(1000.0, sizes.weight(clique)) for clique in cliques)
    return EliminationOrder(tuple(order), cliques, total, "sweep")


def _breadth_first(graph: Sequence[int], members: int, start: int) -> list[int]:
    """Return the reachable variables by level; of each variable's neighbours, those of low degree first."""
    reached, seen = [start], 1 << start
    for v in reached:
        around = graph[v] & members & ~seen
        reached += sorted(bits(around), key=lambda u: ((graph[u] & members).bit_count(), u))
        seen |= around
    return reached


def _adds_no_edge(graph: Sequence[int], order: EliminationOrder) -> bool:
    # Then the graph is chordal, and no triangulation has smaller cliques.
    return all(not clique & ~graph[v] & ~(1 << v) for clique in order.cliques for v in bits(clique))


# Forecast and plan of the same query search once.
@lru_cache(maxsize=4)
def _searched(
    graph: tuple[int, ...], members: int, cardinalities: tuple[int, ...], start: EliminationOrder, steps: int, seed: int
) -> EliminationOrder:
    """Return the order that the compiled search finds from `start` in so many steps."""
    # Imported here: Numba takes a second to load, and small plans do not need it.
    from junctor_kernels.orders.annealing import search
    from junctor_kernels.orders.greedy import pack

    masks, members_mask = pack(graph, len(graph)), pack([members], len(graph))[0]
    variables, entries = search(masks, members_mask, cardinalities, start.variables, steps, seed)
    return EliminationOrder(tuple(variables), cliques_of(graph, members, variables), entries, "annealing")


def cliques_of(graph: Sequence[int], members: int, order: Sequence[int]) -> tuple[int, ...]:
    """Return the clique that each elimination makes, in the order of the eliminations."""
    position = {v: i for i, v in enumerate(order)}
    handed_on = dict.fromkeys(order, 0)
    cliques = []
    for v in order:
        members &= ~(1 << v)
        around = (graph[v] | handed_on[v]) & members
        cliques.append(around | 1 << v)
        if around:
            # The neighbours are all connected now; only the next of them to be eliminated needs these edges.
            handed_on[min(bits(around), key=position.__getitem__)] |= around
    return tuple(cliques)


def eliminate(
    graph: Sequence[int], members: int, sizes: Sizes, criterion: str, give_up_at: float = math.inf
) -> EliminationOrder:
    """Eliminate greedily by `criterion`; ties go to the smaller clique, then to the lower number.

    graph: neighbour sets as bit sets.
    members: bit set of the variables to eliminate.
    sizes: variables by cardinality.
    criterion: a key of CRITERIA.
    give_up_at: total table size at which the order is abandoned, with infinite entries.
    """
    graph = list(graph)
    # The heap holds outdated scores as well; `current` has the valid one of each variable, compared by identity below.
    score = CRITERIA[criterion]
    current: dict[int, tuple[float, float, int]] = {}
    heap: list[tuple[float, float, int]] = []
    stale: set[int] = set()

    def rescore(v: int) -> None:
        current[v] = (score(graph, sizes, v), min_weight(graph, sizes, v), v)
        heapq.heappush(heap, current[v])

    order: list[int] = []
    cliques: list[int] = []
    separators: set[int] = set()
    total = 0.0

    def take(v: int) -> None:
        nonlocal total
        order.append(v)
        cliques.append(graph[v] | 1 << v)
        # A clique equal to the separator of an earlier one lies inside that one and is not maximal.
        if cliques[-1] not in separators:
            total += 2.0 ** min(1000.0, sizes.weight(cliques[-1]))
        separators.add(graph[v])

    # Simplicial variables first: their clique is in every triangulation, and most variables of sparse networks need no
    # score.
    for v in _simplicial(graph, members):
        take(v)
        _connect(graph, v, graph[v], spread=False)
    for v in bits(members & ~mask_of(order)):
        rescore(v)
    while heap and total < give_up_at:
        entry = heapq.heappop(heap)
        v = entry[2]
        if current.get(v) is not entry:
            continue
        if v in stale:
            stale.discard(v)
            rescore(v)
            continue
        del current[v]
        take(v)
        for u in _connect(graph, v, graph[v], spread=criterion not in LOCAL):
            if graph[u].bit_count() > BUSY and criterion not in LOCAL:
                stale.add(u)
            else:
                rescore(u)
    entries = math.inf if heap and total >= give_up_at else total
    return EliminationOrder(tuple(order), tuple(cliques), entries, criterion)


def _simplicial(graph: list[int], members: int) -> Iterator[int]:
    """Yield variables whose neighbours are all connected; the caller must remove each from `graph` before the next."""
    waiting = list(bits(members))
    queued = set(waiting)
    waiting.reverse()
    while waiting:
        v = waiting.pop()
        queued.discard(v)
        around = graph[v]
        if all(not around & ~graph[u] & ~(1 << u) for u in bits(around)):
            members &= ~(1 << v)
            yield v
            for u in bits(around & members):
                if u not in queued:
                    queued.add(u)
                    waiting.append(u)


def _connect(graph: list[int], v: int, around: int, spread: bool) -> Iterator[int]:
    """Remove a variable, connect its neighbours, and return the variables whose scores may have changed.

    graph: neighbour sets, changed in place.
    v: variable to eliminate.
    around: its neighbours as a bit set.
    spread: whether to include neighbours of both ends of a new edge, whose missing edges became fewer.
    """
    changed = around
    for u in bits(around):
        added = around & ~graph[u] & ~(1 << u)
        graph[u] = (graph[u] | around) & ~(1 << u) & ~(1 << v)
        if spread:
            for w in bits(added >> (u + 1) << (u + 1)):
                # A neighbour of both ends of a new edge has one fill edge less.
                changed |= graph[u] & (graph[w] | around)
    graph[v] = 0
    return bits(changed & ~(1 << v))
