"""Elimination orders: several greedy criteria, and a compiled search where the rows to come are worth it.

The search is bounded by a count of steps, not by seconds, so that the same question gives the same plan in every
resumed run. Graphs are lists of neighbour sets as integers (bit i: variable i).
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
    """An elimination order and the clique (as a bit set) that each elimination makes, with their total table size."""

    variables: tuple[int, ...]
    cliques: tuple[int, ...]
    entries: float
    criterion: str


@dataclass(frozen=True, slots=True)
class Sizes:
    """Variables by cardinality: (bit set, logarithm of the cardinality to base 2) for each one that occurs."""

    classes: tuple[tuple[int, float], ...]

    def weight(self, members: int) -> float:
        """Return the logarithm of the table size of a set of variables."""
        # A plain loop: this is where greedy elimination spends its time.
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
    """Score by the logarithm of the size of the clique that eliminating `v` makes."""
    return sizes.weight(graph[v] | 1 << v)


def min_fill(graph: Sequence[int], _sizes: Sizes, v: int) -> float:
    """Score by the number of edges that eliminating `v` adds."""
    around = graph[v]
    # Each missing edge is seen from both ends, and every neighbour misses itself.
    missing = sum((around & ~graph[u]).bit_count() for u in bits(around))
    return (missing - around.bit_count()) / 2


def weighted_min_fill(graph: Sequence[int], sizes: Sizes, v: int) -> float:
    """Score by the added edges, each weighted with the product of the logarithms of its ends' sizes."""
    around = graph[v]
    total = 0.0
    for u in bits(around):
        missing = around & ~graph[u] & ~(1 << u)
        if missing:
            total += sizes.weight(1 << u) * sizes.weight(missing)
    return total / 2


# The cheap ones first: they tell how bad it is before the others are tried.
CRITERIA: dict[str, Score] = {
    "min-weight": min_weight,
    "min-neighbours": min_neighbours,
    "min-fill": min_fill,
    "weighted-min-fill": weighted_min_fill,
}
# Scores that do not look at edges among the neighbours, so only neighbours of what is eliminated change.
LOCAL = ("min-weight", "min-neighbours")
# A criterion is followed to its end while it is not this much worse than another one.
WORTH_ENDING = 4.0
# A plan is also made of a greedy order with at most so many times the table size of the searched one: operations follow
# table sizes only roughly.
NEARLY_AS_GOOD = 1.25
# Total table size at which no search can help any more: a petabyte of doubles is 2^47 entries.
HOPELESS = 2.0**60
# Variables with more neighbours are scored again only when their turn comes; they are seldom good candidates.
BUSY = 64
# Steps of the search for each table entry and row to come. The compiled kernels take 0.1 to 1 nanosecond of a row for
# each entry and a step takes three, so that the search takes 3 to 30 % of the time that the rows take with the order it
# starts from; what it saves is usually more.
STEPS_PER_ENTRY = 0.01
# Steps below which no compiled code is loaded (that takes a second), and which no search exceeds (ten seconds).
FEWEST_STEPS, MOST_STEPS = 30_000_000, 3_000_000_000


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
    """Return the order of the variables in `members` with the smallest total table size that is found.

    rows: how many cases will be computed with it. Few cases get the best of the greedy criteria; many, a search whose
    steps are in proportion to them and to the table size. Where even the first criterion finds nothing below
    `HOPELESS`, its order is returned.
    """
    return good_orders(graph, members, cardinalities, rows, seed)[0]


def good_orders(
    graph: Sequence[int], members: int, cardinalities: Sequence[int], rows: int, seed: int = 0
) -> list[EliminationOrder]:
    """Return `best_order`, and the greedy order behind it where the search found only little better."""
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
    found = sorted((searched, best), key=lambda order: order.entries)
    return found if found[1].entries <= NEARLY_AS_GOOD * found[0].entries else found[:1]


def varied_orders(
    graph: Sequence[int], members: int, cardinalities: Sequence[int], rows: int
) -> list[EliminationOrder]:
    """Return orders of different kinds, each good for something: few operations, small tables, few tables at once."""
    sizes = sizes_of(cardinalities)
    found = [*good_orders(graph, members, cardinalities, rows), _sweep(graph, members, sizes)]
    found += [eliminate(graph, members, sizes, criterion, HOPELESS) for criterion in CRITERIA]
    complete = (order for order in found if len(order.variables) == members.bit_count())
    return list({order.variables: order for order in complete}.values())


def _sweep(graph: Sequence[int], members: int, sizes: Sizes) -> EliminationOrder:
    """Return the order in which a front sweeps over the graph: breadth first from an end (Cuthill and McKee 1969).

    The tree of it is a path, so that few messages are alive at once.
    """
    order: list[int] = []
    left = members
    while left:
        start = next(bits(left))
        # Twice, because what is found last is far away from everything.
        start = _breadth_first(graph, left, start)[-1]
        part = _breadth_first(graph, left, start)
        order += part
        left &= ~mask_of(part)
    cliques = cliques_of(graph, members, order)
    total = sum(2.0 ** min(1000.0, sizes.weight(clique)) for clique in cliques)
    return EliminationOrder(tuple(order), cliques, total, "sweep")


def _breadth_first(graph: Sequence[int], members: int, start: int) -> list[int]:
    """Return what can be reached, level by level; of each, those with few neighbours first."""
    found, seen = [start], 1 << start
    for v in found:
        around = graph[v] & members & ~seen
        found += sorted(bits(around), key=lambda u: ((graph[u] & members).bit_count(), u))
        seen |= around
    return found


def _adds_no_edge(graph: Sequence[int], order: EliminationOrder) -> bool:
    # Then the graph is chordal, its cliques are those of any triangulation, and nothing can be better.
    return all(not clique & ~graph[v] & ~(1 << v) for clique in order.cliques for v in bits(clique))


# Who asks what a plan takes, and then for the plan, waits once.
@lru_cache(maxsize=4)
def _searched(
    graph: tuple[int, ...], members: int, cardinalities: tuple[int, ...], start: EliminationOrder, steps: int, seed: int
) -> EliminationOrder:
    """Return what the compiled search makes of an order."""
    # Lazily: Numba takes a second, and planning alone does without it.
    from junctor_kernels.orders.annealing import search
    from junctor_kernels.orders.greedy import pack

    variables, entries = search(
        pack(graph, len(graph)),
        pack([members], len(graph))[0],
        cardinalities,
        start.variables,
        steps,
        seed,
    )
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
            # The neighbours are all connected now; it is enough that the next of them to go knows.
            handed_on[min(bits(around), key=position.__getitem__)] |= around
    return tuple(cliques)


def eliminate(
    graph: Sequence[int], members: int, sizes: Sizes, criterion: str, give_up_at: float = math.inf
) -> EliminationOrder:
    """Eliminate greedily by `criterion`; ties go to the smaller clique, then to the lower number.

    Variables whose neighbours are all connected go first: they lie in one clique whatever is done (and most variables
    of a sparse network need no score at all). Stops early, with infinite entries, once the total table size reaches
    `give_up_at`.
    """
    graph = list(graph)
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
        # What an earlier elimination left behind whole lies inside that clique and is no clique of the tree.
        if cliques[-1] not in separators:
            total += 2.0 ** min(1000.0, sizes.weight(cliques[-1]))
        separators.add(graph[v])

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
    """Yield variables whose neighbours are all connected; expects the caller to remove each from `graph` at once."""
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
    """Remove `v`, make its neighbours a clique, and return the variables whose scores may have changed.

    spread: also those beside the neighbours, whose missing edges became fewer.
    """
    changed = around
    for u in bits(around):
        added = around & ~graph[u] & ~(1 << u)
        graph[u] = (graph[u] | around) & ~(1 << u) & ~(1 << v)
        if spread:
            for w in bits(added >> (u + 1) << (u + 1)):
                # Whoever sees both ends of a new edge has one fill edge less.
                changed |= graph[u] & (graph[w] | around)
    graph[v] = 0
    return bits(changed & ~(1 << v))
