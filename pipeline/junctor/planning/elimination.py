"""Elimination orders: several greedy criteria, and simulated annealing where the rows to come are worth it.

Main functions: `good_orders` and `best_order`, called by `compile` and the chunk search. Graphs are lists of neighbour
sets. Kjaerulff, Optimal decomposition of probabilistic networks by simulated annealing (1992).
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import TypeVar

from junctor.planning.shape import bits, mask_of

Graph = Sequence[AbstractSet[int]]
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class EliminationOrder:
    """An elimination order.

    variables: in the order of elimination.
    cliques: the clique that each elimination makes.
    entries: total table size of the maximal ones, infinite for an abandoned order.
    criterion: name of the search that found it.
    """

    variables: tuple[int, ...]
    cliques: tuple[frozenset[int], ...]
    entries: float
    criterion: str


# log2 of the entries of a table up to which they are counted: no memory holds them, and larger ones take long to find.
MOST_BITS = 256.0


class Sizes:
    """Table sizes as powers of two; the logarithms of equal cardinalities are added at once, smaller ones first."""

    def __init__(self, cardinalities: Sequence[int]) -> None:
        self._cardinalities = cardinalities
        self._known: dict[tuple[int, ...], float] = {}

    def weight(self, members: Iterable[int]) -> float:
        """Return log2 of the table size of a set of variables."""
        # Few different ones, even of a long network.
        sizes = tuple(sorted(map(self._cardinalities.__getitem__, members)))
        if sizes not in self._known:
            total = 0.0
            for size in sorted(set(sizes)):
                total += sizes.count(size) * math.log2(size)
            self._known[sizes] = total
        return self._known[sizes]

    def entries(self, members: Iterable[int]) -> float:
        """Return the size of a table, capped: there is no end to larger ones."""
        return float(2.0 ** min(MOST_BITS, self.weight(members)))


# The cheap ones first: the others are abandoned where they get much worse.
CRITERIA = ("min-weight", "min-neighbours", "min-fill", "weighted-min-fill")
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
# Total table size from which on tables exceed most memories, so that a network is rather refused, which must not take
# long; and the steps of a search for it: two seconds. Six times as many rarely save half of the entries. A step looks
# at a row of the bit matrix: of more variables than these there are fewer steps.
FAR, FEW_STEPS, FEW_VARIABLES = 1e10, 500_000_000, 1 << 11
# The criterion of orders that were searched for.
SEARCHED = "annealing"
# With more variables the bit matrix of the search would take more than 128 MiB.
MOST_SEARCHED = 1 << 15
# With more variables left once none is simplicial, compiled code eliminates them: bit sets take quadratic time.
LARGE_CORE = 2048


def moral_graph(variables: int, scopes: Iterable[Sequence[int]]) -> list[set[int]]:
    """Return the neighbour sets of the graph in which the variables of each scope are all connected."""
    graph: list[set[int]] = [set() for _ in range(variables)]
    for scope in scopes:
        for v in scope:
            graph[v].update(scope)
    for v, around in enumerate(graph):
        around.discard(v)
    return graph


def best_order(
    graph: Graph, members: AbstractSet[int], cardinalities: Sequence[int], rows: int, seed: int = 0
) -> EliminationOrder:
    """Return the order with the smallest total table size that the search finds.

    graph: neighbour sets.
    members: the variables to eliminate.
    cardinalities: number of states of every variable.
    rows: number of cases to come.
    seed: seed of the search.
    """
    # Few cases get the best of the greedy criteria; many, a search of steps in proportion to cases and table size.
    return good_orders(graph, members, cardinalities, rows, seed)[0]


def good_orders(
    graph: Graph,
    members: AbstractSet[int],
    cardinalities: Sequence[int],
    rows: int,
    seed: int = 0,
    meanwhile: Callable[[EliminationOrder], object] | None = None,
) -> list[EliminationOrder]:
    """Return `best_order`, and the greedy order too where the search is only slightly better.

    meanwhile: called with the greedy order while a search runs.
    All others: as in `best_order`.
    """
    greedy = _greedy(tuple(map(frozenset, graph)), frozenset(members), tuple(cardinalities))
    best = greedy.by(CRITERIA[0])
    # A graph without further variables is chordal: no triangulation has smaller cliques.
    if best.entries > HOPELESS or not greedy.left:
        return [best]
    for criterion in CRITERIA[1:]:
        order = greedy.by(criterion, best.entries * WORTH_ENDING)
        best = min(best, order, key=lambda order: order.entries)
    # By the best of them: the first may be many times larger, and so would be the search.
    far = int(FEW_STEPS * min(1.0, FEW_VARIABLES / len(graph)))
    steps = min(MOST_STEPS if best.entries <= FAR else far, int(STEPS_PER_ENTRY * rows * best.entries))
    if steps < FEWEST_STEPS or len(graph) > MOST_SEARCHED:
        return [best]
    search = _searched(tuple(map(frozenset, graph)), frozenset(members), tuple(cardinalities), best, steps, seed)
    if meanwhile is not None and not search.done():
        meanwhile(best)
    try:
        searched = search.result()
    except BaseException:
        # It may work another time.
        _searched.cache_clear()
        raise
    orders = sorted((searched, best), key=lambda order: order.entries)
    return orders if orders[1].entries <= NEARLY_AS_GOOD * orders[0].entries else orders[:1]


def varied_orders(
    graph: Graph,
    members: AbstractSet[int],
    cardinalities: Sequence[int],
    rows: int,
    whole: Graph,
    worth: Callable[[float], bool],
) -> Iterator[list[EliminationOrder]]:
    """Yield orders of different strengths: few tables at once or small ones, then few operations.

    The last ones are searched for while the caller works with the first ones.
    whole: the graph with what is observed as well, whose levels are more regular: a grid's are its diagonals.
    worth: tells by the entries of an order whether the search begins before it is asked for.
    All others: as in `best_order`.
    """
    greedy, sizes = (
        _greedy(tuple(map(frozenset, graph)), frozenset(members), tuple(cardinalities)),
        Sizes(cardinalities),
    )
    sweeps = (_sweep(graph, members), tuple(v for v in _sweep(whole, range(len(whole))) if v in members))
    found = (order_of(graph, each, sizes, "sweep", HOPELESS) for each in sweeps)
    orders = [min(found, key=lambda order: order.entries)]
    search = partial(good_orders, graph, members, cardinalities, rows)
    good = _apart(search) if worth(orders[0].entries) else None
    orders += [greedy.by(criterion, HOPELESS) for criterion in CRITERIA]
    known = {order.variables: order for order in orders if len(order.variables) == len(members)}
    yield list(known.values())
    yield [order for order in (search() if good is None else good.result()) if order.variables not in known]


def _sweep(graph: Graph, members: Collection[int]) -> tuple[int, ...]:
    """Return a breadth-first order from a peripheral vertex (Cuthill and McKee 1969): few messages alive at once."""
    order: list[int] = []
    left = set(members)
    for start in sorted(members):
        if start in left:
            # Twice, because the last vertex of a breadth-first search is far from all others (pseudo-peripheral).
            part = _breadth_first(graph, left, _breadth_first(graph, left, start)[-1])
            order += part
            left.difference_update(part)
    return tuple(order)


def order_of(
    graph: Graph, variables: tuple[int, ...], sizes: Sizes, criterion: str, give_up_at: float = math.inf
) -> EliminationOrder:
    """Return the order that eliminates `variables` one after the other.

    give_up_at: total table size at which the order is abandoned, with infinite entries: its cliques may be as large as
        the graph.
    """
    cliques: list[frozenset[int]] = []
    entries = 0.0
    for clique in _cliques(graph, variables):
        cliques.append(clique)
        entries += sizes.entries(clique)
        if entries >= give_up_at:
            return EliminationOrder((), (), math.inf, criterion)
    return EliminationOrder(variables, tuple(cliques), entries, criterion)


def _breadth_first(graph: Graph, members: AbstractSet[int], start: int) -> list[int]:
    """Return the reachable variables by level; of each variable's neighbours, those of low degree first."""
    reached, seen = [start], {start}
    for v in reached:
        around = [u for u in graph[v] if u in members and u not in seen]
        reached += sorted(around, key=lambda u: (len(graph[u] & members), u))
        seen.update(around)
    return reached


def _apart(work: Callable[[], Found]) -> Future[Found]:
    """Begin work in a thread of its own, for which nobody waits who does not ask for its result."""
    result = Future[Found]()

    def do() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    # Threads of a pool would hold up the end of a process that is interrupted.
    threading.Thread(target=do, name="junctor-order", daemon=True).start()
    return result


# Forecast and plan of the same query, and chunks after them, eliminate once.
@lru_cache(maxsize=4)
def _greedy(
    graph: tuple[frozenset[int], ...], members: frozenset[int], cardinalities: tuple[int, ...]
) -> GreedyElimination:
    return GreedyElimination(graph, members, cardinalities)


# Forecast and plan of the same query search once.
@lru_cache(maxsize=4)
def _searched(
    graph: tuple[frozenset[int], ...],
    members: frozenset[int],
    cardinalities: tuple[int, ...],
    start: EliminationOrder,
    steps: int,
    seed: int,
) -> Future[EliminationOrder]:
    """Return the order that the compiled search finds from `start` in so many steps, once it has, or had before."""
    from junctor_kernels.orders.annealing import load

    def order() -> EliminationOrder:
        variables, entries = _search(graph, members, cardinalities, start, steps, seed)
        return EliminationOrder(variables, cliques_of(graph, variables), entries, SEARCHED)

    load()
    # The search holds no lock of the interpreter.
    return _apart(order)


def _search(
    graph: Sequence[frozenset[int]],
    members: frozenset[int],
    cardinalities: Sequence[int],
    start: EliminationOrder,
    steps: int,
    seed: int,
) -> tuple[tuple[int, ...], float]:
    # Imported here: Numba takes a second to load, and small plans do not need it.
    from junctor_kernels.orders.annealing import search
    from junctor_kernels.orders.greedy import pack

    masks, (members_mask,) = pack([*map(mask_of, graph)], len(graph)), pack([mask_of(members)], len(graph))
    variables, entries = search(masks, members_mask, cardinalities, start.variables, steps, seed)
    return tuple(variables), entries


def cliques_of(graph: Graph | Mapping[int, AbstractSet[int]], order: Sequence[int]) -> tuple[frozenset[int], ...]:
    """Return the clique that each elimination makes, in the order of the eliminations."""
    return tuple(_cliques(graph, order))


def _cliques(graph: Graph | Mapping[int, AbstractSet[int]], order: Sequence[int]) -> Iterator[frozenset[int]]:
    position = {v: i for i, v in enumerate(order)}
    handed_on: dict[int, set[int]] = {v: set() for v in order}
    for i, v in enumerate(order):
        around = {u for u in graph[v] | handed_on.pop(v) if position.get(u, -1) > i}
        yield frozenset((*around, v))
        if around:
            # The neighbours are all connected now; only the next of them to be eliminated needs these edges.
            handed_on[min(around, key=position.__getitem__)] |= around


class GreedyElimination:
    """Greedy elimination of a graph by one criterion after the other.

    graph: neighbour sets.
    members: the variables to eliminate.
    cardinalities: number of states of every variable.
    left: variables that are left once no more are simplicial, ascending.
    """

    def __init__(self, graph: Graph, members: AbstractSet[int], cardinalities: Sequence[int]) -> None:
        self._sizes = Sizes(cardinalities)
        around = {v: set(graph[v] & members) for v in sorted(members)}
        self._order: list[int] = []
        self._cliques: list[frozenset[int]] = []
        # Neighbours at the time of elimination: a clique equal to an earlier one lies inside that clique and is not
        # maximal.
        self._separators: set[frozenset[int]] = set()
        self._total = 0.0
        # Simplicial variables first, for all criteria: their cliques are in every triangulation.
        for v in _simplicial(around):
            separator = frozenset(around[v])
            self._order.append(v)
            self._cliques.append(separator | {v})
            if self._cliques[-1] not in self._separators:
                self._total += self._sizes.entries(self._cliques[-1])
            self._separators.add(separator)
            for u in around.pop(v):
                around[u].discard(v)
        self.left = list(around)
        self._around = around
        self._cardinalities = cardinalities
        self._found: dict[str, EliminationOrder] = {}

    def by(self, criterion: str, give_up_at: float = math.inf) -> EliminationOrder:
        """Eliminate greedily by `criterion`; ties go to the smaller clique, then to the lower number.

        criterion: one of CRITERIA.
        give_up_at: total table size at which the order is abandoned, with infinite entries.
        """
        found = self._found.get(criterion)
        if found is None:
            found = self._by(criterion, give_up_at)
            if math.isfinite(found.entries):
                self._found[criterion] = found
        return found if found.entries < give_up_at else EliminationOrder((), (), math.inf, criterion)

    def _by(self, criterion: str, give_up_at: float) -> EliminationOrder:
        left = self.left
        if len(left) > LARGE_CORE:
            # Beyond them those left follow as they come.
            order = self._compiled(criterion, min(MOST_BITS, math.log2(give_up_at)))
            if len(order) < len(left):
                if math.isfinite(give_up_at):
                    return EliminationOrder((), (), math.inf, criterion)
                order += sorted(set(left).difference(order))
            cliques = cliques_of(self._around, order)
            return EliminationOrder(
                (*self._order, *order), (*self._cliques, *cliques), self._total_with(order, cliques), criterion
            )
        numbers, masks, entries = self._core.eliminate(criterion, self._total, give_up_at)
        variables = (*self._order, *map(left.__getitem__, numbers))
        sets = (frozenset(map(left.__getitem__, bits(mask))) for mask in masks)
        return EliminationOrder(variables, (*self._cliques, *sets), entries, criterion)

    @cached_property
    def _core(self) -> _Core:
        return _Core(self._around, self._cardinalities, self._separators)

    @cached_property
    def _compiled(self) -> Callable[[str, float], list[int]]:
        """The elimination of what is left in compiled code, by a criterion, as far as tables have at most so many bits.

        Scores are rounded to integers there.
        """
        from junctor_kernels.orders.sparse import eliminations

        left = self.left
        number = {v: i for i, v in enumerate(left)}
        rows = [sorted(map(number.__getitem__, around)) for around in self._around.values()]
        eliminate = eliminations(rows, [self._cardinalities[v] for v in left])
        return lambda criterion, most: [left[i] for i in eliminate(criterion, most)]

    def _total_with(self, order: Sequence[int], cliques: Sequence[frozenset[int]]) -> float:
        """Return the total table size of the eliminations so far and of an order of what is left."""
        total, separators = self._total, set(self._separators)
        for v, clique in zip(order, cliques, strict=True):
            if clique not in separators:
                total += self._sizes.entries(clique)
            separators.add(clique - {v})
        return total


class _Core:
    """What is left of a graph, its variables numbered anew in ascending order: bit sets of few words.

    graph: variable -> its neighbours.
    cardinalities: number of states of every variable of the network.
    separators: of the variables that are eliminated already.
    """

    def __init__(
        self, graph: Mapping[int, AbstractSet[int]], cardinalities: Sequence[int], separators: Iterable[frozenset[int]]
    ) -> None:
        number = {v: i for i, v in enumerate(graph)}
        self._graph = [mask_of(map(number.__getitem__, around)) for around in graph.values()]
        inside = (separator for separator in separators if number and number.keys() >= separator)
        self._separators = {mask_of(map(number.__getitem__, separator)) for separator in inside}
        self._logs = [math.log2(cardinalities[v]) for v in graph]
        masks: dict[int, int] = {}
        for v, i in number.items():
            masks[cardinalities[v]] = masks.get(cardinalities[v], 0) | 1 << i
        # Variables by cardinality, the smallest first, as in `Sizes`.
        self._classes = [(mask, math.log2(size)) for size, mask in sorted(masks.items())]
        self._weights: dict[int, float] = {}

    def eliminate(self, criterion: str, total: float, give_up_at: float) -> tuple[list[int], list[int], float]:
        """Return the order, the clique of each elimination, and the total table size, infinite where abandoned.

        criterion: one of CRITERIA.
        total: table size of the eliminations before.
        give_up_at: total table size at which the order is abandoned.
        """
        graph, separators = list(self._graph), set(self._separators)
        score = self._score(criterion, graph)
        # The heap holds outdated scores as well; `current` has the valid one of each variable, compared by identity.
        current = {v: (score(v), self._weight(around | 1 << v), v) for v, around in enumerate(graph)}
        heap = list(current.values())
        heapq.heapify(heap)
        stale: set[int] = set()
        order: list[int] = []
        cliques: list[int] = []
        while heap and total < give_up_at:
            entry = heapq.heappop(heap)
            v = entry[2]
            if current.get(v) is not entry:
                continue
            if v in stale:
                stale.discard(v)
                changed: Iterable[int] = (v,)
            else:
                del current[v]
                order.append(v)
                cliques.append(graph[v] | 1 << v)
                if cliques[-1] not in separators:
                    total += 2.0 ** min(1000.0, self._weight(cliques[-1]))
                separators.add(graph[v])
                changed = _connect(graph, v, graph[v], spread=criterion not in LOCAL)
            for u in changed:
                if u != v and graph[u].bit_count() > BUSY and criterion not in LOCAL:
                    stale.add(u)
                else:
                    current[u] = (score(u), self._weight(graph[u] | 1 << u), u)
                    heapq.heappush(heap, current[u])
        return order, cliques, math.inf if heap and total >= give_up_at else total

    def _weight(self, members: int) -> float:
        """Return log2 of the table size of a set of variables."""
        if members not in self._weights:
            total = 0.0
            for mask, log_size in self._classes:
                if here := members & mask:
                    total += here.bit_count() * log_size
            self._weights[members] = total
        return self._weights[members]

    def _score(self, criterion: str, graph: Sequence[int]) -> Callable[[int], float]:
        """Return the score of a variable by a criterion, in the graph as it is then."""
        if criterion == "min-weight":
            # Log2 of the size of the clique that its elimination makes.
            return lambda v: self._weight(graph[v] | 1 << v)
        if criterion == "min-neighbours":
            return lambda v: graph[v].bit_count()
        if criterion == "min-fill":
            return lambda v: _missing_edges(graph, v)
        return lambda v: self._weighted_fill(graph, v)

    def _weighted_fill(self, graph: Sequence[int], v: int) -> float:
        """Return the added edges, each weighted with the product of log2 of the cardinalities of its ends."""
        around = graph[v]
        total = 0.0
        for u in bits(around):
            missing = around & ~graph[u] & ~(1 << u)
            if missing:
                total += self._logs[u] * self._weight(missing)
        return total / 2


def _missing_edges(graph: Sequence[int], v: int) -> float:
    """Return the number of edges that eliminating `v` adds."""
    around = graph[v]
    # Each missing edge is seen from both ends, and every neighbour misses itself.
    missing = sum((around & ~graph[u]).bit_count() for u in bits(around))
    return (missing - around.bit_count()) / 2


def _simplicial(graph: Mapping[int, AbstractSet[int]]) -> Iterator[int]:
    """Yield variables whose neighbours are all connected; the caller must remove each from `graph` before the next.

    graph: neighbours of each variable.
    """
    waiting = sorted(graph, reverse=True)
    queued = set(waiting)
    while waiting:
        v = waiting.pop()
        queued.discard(v)
        around = graph[v]
        # Every neighbour has all others as neighbours, and itself not.
        if all(len(around - graph[u]) == 1 for u in around):
            yield v
            for u in sorted(around):
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
