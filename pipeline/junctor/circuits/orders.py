"""Orders in which a search decides variables: several, since none is the best for all networks.

Main function: `orders_of`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from junctor_kernels.circuits.orders import dissection, places
from junctor_kernels.circuits.search import SearchState
from junctor_kernels.circuits.tables import TableStore
from junctor_kernels.orders.greedy import MIN_FILL, MIN_WEIGHT, weights_of
from junctor_kernels.orders.sparse import SparseGraph, greedy, moral_graph, sparse_work

Ints = npt.NDArray[np.int64]

# Criteria of greedy elimination with the noise of each: ties alone make circuits a few times larger or smaller.
GREEDY = ((MIN_FILL, 0.0), (MIN_FILL, 0.1), (MIN_WEIGHT, 0.0))
# Seeds of dissections, and of those of graphs with more ends of edges; variables that they leave to the first order.
DISSECTIONS, FEW_DISSECTIONS, LARGE, LEFT_WHOLE = 8, 3, 30_000, 20
# Bits of a clique at which greedy elimination ends, so that fill stays below 2**63.
MOST_BITS = 1 << 30


@dataclass(frozen=True, eq=False, slots=True)
class Order:
    """An order of a search.

    name: for people.
    ranks: int32 [n], the variable of the largest one is decided first.
    positions: int32 [n], places of variables in its elimination tree.
    """

    name: str
    ranks: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]


def orders_of(tables: TableStore, state: SearchState) -> Iterator[Order]:
    """Yield elimination orders of the graph of the reduced tables, the last variable to be decided first."""
    graph, live = _graph(tables, state)
    cards = np.array([int(word).bit_count() for word in state.states])
    weights = np.maximum(1, weights_of(cards))
    first = None
    for number, (criterion, noise) in enumerate(GREEDY):
        order = _greedy(graph, live, weights, criterion, noise)
        first = order if first is None else first
        yield _order(f"greedy {number + 1}", graph, order)
    assert first is not None
    for seed in range(1, (DISSECTIONS if len(graph.neighbours) <= LARGE else FEW_DISSECTIONS) + 1):
        yield _order(
            f"dissection {seed}", graph, dissection(graph.starts, graph.neighbours, weights, first, LEFT_WHOLE, seed)
        )


def _graph(tables: TableStore, state: SearchState) -> tuple[SparseGraph, npt.NDArray[np.bool_]]:
    """Return the graph of the reduced tables, and which variables have neighbours."""
    kept = state.tables[state.tables >= 0]
    lengths = tables.axes_at[kept + 1] - tables.axes_at[kept]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    scopes = [tables.variables[tables.axes_at[table] : tables.axes_at[table + 1]] for table in kept]
    variables = np.concatenate([np.zeros(0, dtype=np.int32), *scopes]).astype(np.int64)
    graph = moral_graph(len(state.ranks), starts, variables)
    return graph, np.diff(graph.starts) > 0


def _greedy(graph: SparseGraph, live: npt.NDArray[np.bool_], weights: Ints, criterion: int, noise: float) -> Ints:
    """Return a greedy order of all variables, those without neighbours first."""
    order, random = np.empty(len(live), dtype=np.int64), np.ones(1, dtype=np.uint64)
    count = greedy(graph, live, weights, criterion, noise, random, sparse_work(graph), order, MOST_BITS)
    return np.concatenate([np.flatnonzero(~live), order[:count]])


def _order(name: str, graph: SparseGraph, order: Ints) -> Order:
    ranks = np.empty(len(order), dtype=np.int32)
    ranks[order] = np.arange(len(order), dtype=np.int32)
    return Order(name, ranks, places(graph.starts, graph.neighbours, order).astype(np.int32))
