"""Orders in which a search decides variables: several, since none is the best for all networks.

Main function: `orders_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt
from junctor_kernels.circuits.orders import dissection, places
from junctor_kernels.circuits.state import SearchState
from junctor_kernels.circuits.tables import TableStore
from junctor_kernels.orders.greedy import MIN_FILL, MIN_WEIGHT, UNITS_PER_BIT, evaluate, weights_of, words_for, work_for
from junctor_kernels.orders.sparse import SparseGraph, greedy, moral_graph, sparse_work

from junctor.circuits.sweeps import sweep
from junctor.runtime.threads import in_threads

Ints = npt.NDArray[np.int64]

# Criteria of greedy elimination with the noise of each, which breaks ties at least: these alone make circuits a few
# times larger or smaller. So many of them are searched, those with the smallest cliques.
GREEDY = ((MIN_FILL, 0.0), (MIN_WEIGHT, 0.0), *(((MIN_FILL, 1e-6), (MIN_FILL, 0.1)) * 6))
MOST_GREEDY = 4
# Dissections of the graph that is left beyond tables of so many bits, since what hangs on a graph hides its cuts, and
# how many are made of each and searched; fewer of graphs with more ends of edges. What they leave whole goes as the
# first greedy order has it.
CORES = ((0, 6, 6), (6, 4, 2), (9, 4, 2), (12, 4, 2))
LARGE_CORES, LARGE = ((0, 1, 1), (6, 1, 1), (9, 1, 1), (12, 1, 1), (16, 2, 2)), 10_000
LEFT_WHOLE = 20
# Bits of a clique at which greedy elimination ends, so that fill stays below 2**63.
MOST_BITS = 1 << 30


@dataclass(frozen=True, eq=False, slots=True)
class Order:
    """An order of a search.

    name: for people.
    ranks: int32 [n], the variable of the largest one is decided first.
    positions: int32 [n], places of variables in its elimination tree.
    size: entries of all its cliques.
    """

    name: str
    ranks: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    size: float


def orders_of(tables: TableStore, state: SearchState, threads: int = 1) -> Iterator[Order]:
    """Yield elimination orders of the graph of the reduced tables, the last variable to be decided first.

    threads: that dissect side by side.
    """
    graph, live = _graph(tables, state)
    cards = np.array([int(word).bit_count() for word in state.states])
    weights, size = np.maximum(1, weights_of(cards)), _sizes(graph, live, cards)
    greedy_ones = [(f"greedy {i + 1}", _greedy(graph, live, weights, *how, i + 1)) for i, how in enumerate(GREEDY)]
    first = greedy_ones[0][1]
    yield from _smallest(greedy_ones, size, MOST_GREEDY, graph)
    kinds = CORES if len(graph.neighbours) <= LARGE else LARGE_CORES
    # From which end a sweep goes makes a difference of two times.
    sweeps = list(zip(("sweep", "sweep back"), sweep(graph, live), strict=True))
    yield from _smallest(sweeps, size, 2 if kinds is CORES else 1, graph)
    cores = _cores(graph, live, weights, [bits for bits, _, _ in kinds])
    for (bits, seeds, most), (done, core) in zip(kinds, cores, strict=True):
        names = [f"dissection {seed} beyond {bits} bits" for seed in range(1, seeds + 1)]
        orders = _dissected(done, core, weights, first, seeds, threads)
        yield from _smallest([*zip(names, orders, strict=True)], size, most, graph)


def _smallest(
    orders: Sequence[tuple[str, Ints]], size: Callable[[Ints], float], most: int, graph: SparseGraph
) -> Iterator[Order]:
    """Yield those of some orders with the fewest entries of cliques, different ones."""
    sizes = {order.tobytes(): (size(order), name, order) for name, order in reversed(orders)}
    for entries, name, order in sorted(sizes.values(), key=lambda each: each[:2])[:most]:
        yield _order(name, graph, order, entries)


def _sizes(graph: SparseGraph, live: npt.NDArray[np.bool_], cards: Ints) -> Callable[[Ints], float]:
    """Return what tells the entries of all cliques of an order."""
    n = len(live)
    bits, numbers = work_for(n)
    rows, members = np.zeros_like(bits), np.zeros(words_for(n), dtype=np.uint64)
    owners, ends = np.repeat(np.arange(n), np.diff(graph.starts)), graph.neighbours.astype(np.uint64)
    np.bitwise_or.at(bits, (owners, ends >> np.uint64(6)), np.uint64(1) << (ends & np.uint64(63)))
    every = np.flatnonzero(live).astype(np.uint64)
    np.bitwise_or.at(members, every >> np.uint64(6), np.uint64(1) << (every & np.uint64(63)))
    gone, counts = n - len(every), cards.astype(np.float64)
    return lambda order: float(evaluate(bits, members, counts, order[gone:], len(every), rows, numbers))


def _cores(
    graph: SparseGraph, live: npt.NDArray[np.bool_], weights: Ints, steps: Iterable[int]
) -> Iterator[tuple[Ints, dict[int, set[int]]]]:
    """Yield variables to eliminate first, those that make tables of so many bits at most, and the graph they leave.

    steps: log2 of the entries of a table, more and more; 0 leaves all. What one yields is valid until the next.
    """
    starts, ends, own = graph.starts.tolist(), graph.neighbours.tolist(), weights.tolist()
    around = {v: set(ends[starts[v] : starts[v + 1]]) for v in np.flatnonzero(live).tolist()}
    weight = {v: own[v] + sum(own[u] for u in others) for v, others in around.items()}
    heap, done = [(size, v) for v, size in weight.items()], np.flatnonzero(~live).tolist()
    heapify(heap)
    for bits in steps:
        while heap and heap[0][0] <= bits * UNITS_PER_BIT:
            size, v = heappop(heap)
            if v not in around or size != weight[v]:
                continue
            done.append(v)
            others = around.pop(v)
            for u in others:
                added = others - around[u]
                added.discard(u)
                around[u] |= added
                around[u].discard(v)
                weight[u] += sum(map(own.__getitem__, added)) - own[v]
                heappush(heap, (weight[u], u))
        yield np.array(done, dtype=np.int64), around


def _dissected(
    done: Ints, core: dict[int, set[int]], weights: Ints, first: Ints, seeds: int, threads: int
) -> list[Ints]:
    """Return orders that begin as greedy elimination did, and dissect what that left: one of each of some seeds."""
    members = [v for v in first.tolist() if v in core]
    number = {v: i for i, v in enumerate(members)}
    rows = [sorted(map(number.__getitem__, core[v])) for v in members]
    starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    ends = np.array([u for row in rows for u in row], dtype=np.int32)
    own, every = weights[members], np.array(members, dtype=np.int64)

    def order(seed: int, _: int) -> Ints:
        return np.concatenate([done, every[dissection(starts, ends, own, np.arange(len(members)), LEFT_WHOLE, seed)]])

    return in_threads(order, range(1, seeds + 1), threads)


def _graph(tables: TableStore, state: SearchState) -> tuple[SparseGraph, npt.NDArray[np.bool_]]:
    """Return the graph of the reduced tables, and which variables have neighbours."""
    kept = state.tables[state.tables >= 0]
    lengths = tables.axes_at[kept + 1] - tables.axes_at[kept]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    scopes = [tables.variables[tables.axes_at[table] : tables.axes_at[table + 1]] for table in kept]
    variables = np.concatenate([np.zeros(0, dtype=np.int32), *scopes]).astype(np.int64)
    graph = moral_graph(len(state.ranks), starts, variables)
    return graph, np.diff(graph.starts) > 0


def _greedy(
    graph: SparseGraph, live: npt.NDArray[np.bool_], weights: Ints, criterion: int, noise: float, seed: int
) -> Ints:
    """Return a greedy order of all variables, those without neighbours first."""
    order, random = np.empty(len(live), dtype=np.int64), np.full(1, seed, dtype=np.uint64)
    count = greedy(graph, live, weights, criterion, noise, random, sparse_work(graph), order, MOST_BITS)
    return np.concatenate([np.flatnonzero(~live), order[:count]])


def _order(name: str, graph: SparseGraph, order: Ints, entries: float) -> Order:
    ranks = np.empty(len(order), dtype=np.int32)
    ranks[order] = np.arange(len(order), dtype=np.int32)
    return Order(name, ranks, places(graph.starts, graph.neighbours, order).astype(np.int32), entries)
