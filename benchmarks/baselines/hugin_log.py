"""Satish and Sundaram's propagation on a CPU: the Hugin architecture in log space, edge by edge (a baseline).

Graphical Model Inference using GPUs: clique tables of logarithms in one order of their variables; for each edge,
towards the centre of the tree and back, a separator's entry becomes the logarithm of a sum of exponentials (S-update,
equation 5), and its change is added to the neighbour (W-update, equation 6). Entries of one separator entry lie apart
in a table; in their experiment with consecutive access, and in that without exponentials, answers are wrong on purpose.
Nothing else uses this: our own messages multiply, sum and divide without stored tables.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from junctor.model.network import Network
from junctor.planning.cliques import StoredPlan, plan_stored
from junctor.planning.shape import Shape

Table = npt.NDArray[np.float64]
Offsets = npt.NDArray[np.int64]
# Flops of an exponential or a logarithm, as they count.
EXP_FLOPS = 8


class Side(NamedTuple):
    """Where a separator's entries lie in the table of a clique: those of entry s are first[s] + rest."""

    first: Offsets
    rest: Offsets


class Edge(NamedTuple):
    """An edge with both of its cliques, and the sides of the separator in them."""

    one: int
    other: int
    sides: tuple[Side, Side]


class Update(NamedTuple):
    """What an update of an edge in one direction took: CPU seconds of both parts, flops and memory accesses."""

    s_seconds: float
    w_seconds: float
    flops: int
    accesses: int


@dataclass
class LogTree:
    """Clique tables and separators in log space.

    edges: from the leaves to the centre.
    """

    scopes: list[tuple[int, ...]]
    tables: list[Table]
    edges: list[Edge]

    def updates(self, consecutive: bool = False, logs: bool = True) -> Iterator[Update]:
        """Propagate, and yield what each update took; the tables are calibrated then, if both arguments are as here.

        consecutive: whether updates take entries that lie side by side, in place of their own.
        logs: whether exponentials and logarithms are taken.
        """
        separators = [np.zeros(len(edge.sides[0].first)) for edge in self.edges]
        for edge, separator in zip(self.edges, separators, strict=True):
            yield self._update(edge.one, edge.other, edge.sides, separator, consecutive, logs)
        for edge, separator in zip(reversed(self.edges), reversed(separators), strict=True):
            yield self._update(edge.other, edge.one, edge.sides[::-1], separator, consecutive, logs)

    def _update(
        self, source: int, target: int, sides: Sequence[Side], old: Table, consecutive: bool, logs: bool
    ) -> Update:
        mine, its = (_side_by_side(side) for side in sides) if consecutive else sides
        new = np.empty(len(old))
        start = time.thread_time()
        s_update(self.tables[source], mine.first, mine.rest, new, logs)
        between = time.thread_time()
        w_update(self.tables[target], its.first, its.rest, new - old)
        end = time.thread_time()
        old[:] = new
        read, written = self.tables[source].size, self.tables[target].size
        # An exponential and an addition for each term, a logarithm for each sum; a difference, and its additions.
        flops = (EXP_FLOPS + 1) * read + (EXP_FLOPS + 1) * len(new) + written
        return Update(between - start, end - between, flops, read + 3 * len(new) + 2 * written)

    def posterior(self, variable: int) -> Table:
        """Return the posterior of a variable from the calibrated tables."""
        clique = next(i for i, scope in enumerate(self.scopes) if variable in scope)
        scope = self.scopes[clique]
        table = np.exp(self.tables[clique] - self.tables[clique].max()).reshape([2] * len(scope))
        summed: Table = table.sum(axis=tuple(axis for axis, v in enumerate(scope) if v != variable))
        return summed / summed.sum()


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def s_update(table: Any, first: Any, rest: Any, new: Any, logs: Any) -> None:
    """Sum a table for its separator, equation 5; without `logs` as it is."""
    for s in range(len(first)):
        total = 0.0
        for r in range(len(rest)):
            value = table[first[s] + rest[r]]
            total += math.exp(value) if logs else value
        new[s] = math.log(total) if logs else total


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def w_update(table: Any, first: Any, rest: Any, change: Any) -> None:
    """Add the change of a separator to a table, equation 6."""
    for s in range(len(first)):
        for r in range(len(rest)):
            table[first[s] + rest[r]] += change[s]


def _side_by_side(side: Side) -> Side:
    return Side(np.arange(len(side.first)) * len(side.rest), np.arange(len(side.rest)))


def log_tree(network: Network, plan: StoredPlan | None = None) -> LogTree:
    """Return the junction tree of a network with its clique tables in log space.

    network: of variables of two states, without zeros.
    plan: its cliques, planned anew if not given.
    """
    plan = plan or plan_stored(Shape(network.cardinalities, tuple(f.scope for f in network.factors), False))
    scopes = [clique.natural for clique in plan.cliques]
    tables = [np.zeros(plan.entries(i)) for i in range(len(scopes))]
    for i, clique in enumerate(plan.cliques):
        for number in clique.factors:
            factor = network.factors[number]
            here = side(scopes[i], factor.scope)
            tables[i][here.first[:, None] + here.rest] += np.log(factor.table).ravel()[:, None]
    return LogTree(scopes, tables, edges_of(plan))


def side(scope: tuple[int, ...], chosen: tuple[int, ...]) -> Side:
    """Return where the entries of some binary variables lie in a table over `scope`, the last variable fastest."""
    stride = {v: 1 << (len(scope) - 1 - axis) for axis, v in enumerate(scope)}
    return Side(_sums([stride[v] for v in chosen]), _sums([stride[v] for v in scope if v not in chosen]))


def _sums(strides: list[int]) -> Offsets:
    offsets = np.zeros(1, dtype=np.int64)
    for stride in strides:
        offsets = (offsets[:, None] + np.array([0, stride])).ravel()
    return offsets


def edges_of(plan: StoredPlan) -> list[Edge]:
    """Return the edges of a tree, far ones first, towards its centre: the clique least far from any other."""
    neighbours: dict[int, list[int]] = {i: [] for i in range(len(plan.cliques))}
    for i, clique in enumerate(plan.cliques):
        if clique.parent is not None:
            neighbours[i].append(clique.parent)
            neighbours[clique.parent].append(i)
    root = min(neighbours, key=lambda i: max(depth for _, _, depth in _walk(neighbours, i)))
    found = []
    for child, parent, _ in reversed([step for step in _walk(neighbours, root) if step[1] >= 0]):
        scopes = plan.cliques[child].natural, plan.cliques[parent].natural
        separator = tuple(v for v in scopes[0] if v in scopes[1])
        found.append(Edge(child, parent, (side(scopes[0], separator), side(scopes[1], separator))))
    return found


def _walk(neighbours: dict[int, list[int]], root: int) -> list[tuple[int, int, int]]:
    """Return clique, parent (-1 of the root) and depth, breadth first."""
    steps = [(root, -1, 0)]
    for clique, parent, depth in steps:
        steps += [(other, clique, depth + 1) for other in neighbours[clique] if other != parent]
    return steps
