"""An order that sweeps over a graph from one end to the other, for graphs that are long and narrow: `sweep`.

Chains side by side, as those of noisy nodes that share parents, have narrow cuts all along, of which greedy elimination
sees few and dissection none but the middle ones, whose parts then have two ends each.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from junctor_kernels.orders.sparse import SparseGraph

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Rounds in which each variable moves half of the way to the middle of its neighbours.
ROUNDS = 20


def sweep(graph: SparseGraph, live: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Return all variables from one end of each part of a graph to the other, and back; those without neighbours first.

    A variable lies between the two ends as its distances from them tell, and then amid its neighbours. The same on any
    machine: sums are made in the order of edges.
    """
    n = len(live)
    counts = np.diff(graph.starts)
    owners, ends = np.repeat(np.arange(n), counts), graph.neighbours.astype(np.int64)
    parts, places = np.full(n, -1, dtype=np.int64), np.zeros(n)
    for start in np.flatnonzero(live).tolist():
        if parts[start] < 0:
            here, between = _between_ends(graph, start)
            parts[here], places[here] = start, between
    for _ in range(ROUNDS):
        middle = np.bincount(owners, weights=places[ends], minlength=n) / np.maximum(1, counts)
        places = np.where(live, (places + middle) / 2, 0.0)
    order = np.lexsort((np.arange(n), places, parts))
    idle = n - int(live.sum())
    return order, np.concatenate([order[:idle], order[idle:][::-1]])


def _between_ends(graph: SparseGraph, start: int) -> tuple[list[int], Floats]:
    """Return the variables that are linked with one, and how much farther each is from one end than from the other."""
    (*_, middle) = _distances(graph, start)
    (*_, first) = _distances(graph, middle)
    from_first = _distances(graph, first)
    (*_, last) = from_first
    from_last = _distances(graph, last)
    return list(from_first), np.array([distance - from_last[v] for v, distance in from_first.items()], dtype=float)


def _distances(graph: SparseGraph, start: int) -> dict[int, int]:
    """Return how many edges each variable is away from one, the nearest first."""
    found, waiting = {start: 0}, [start]
    for v in waiting:
        for neighbour in graph.neighbours[graph.starts[v] : graph.starts[v + 1]].tolist():
            if neighbour not in found:
                found[neighbour] = found[v] + 1
                waiting.append(neighbour)
    return found
