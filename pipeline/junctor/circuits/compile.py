"""A network and what all rows observe alike become a circuit, or words why not.

Main function: `compile_circuit`; main class: Circuit. All bounds are counts, so that the same network gets the same
circuit on any machine, however busy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from junctor_kernels.circuits import search
from junctor_kernels.circuits.nodes import (
    EDGES,
    FIRST_INDICATOR,
    NODES,
    NOTHING,
    FlatCircuit,
    NodeStore,
    flattened,
    node_store,
)
from junctor_kernels.circuits.nogoods import Nogoods, no_nogoods
from junctor_kernels.circuits.state import DECISIONS, LOG, ROOT, SearchState, progress, search_state
from junctor_kernels.circuits.tables import TableStore, table_store, with_table_room

from junctor.circuits.limits import SearchLimits, refused
from junctor.circuits.orders import Order, orders_of
from junctor.model.network import Factor, Network
from junctor.runtime.threads import in_threads

# Decisions after which orders are compared, twice as many in each round, and how many of them go on after it; the last
# number is that of all further rounds.
FIRST_ROUND, GOING_ON = 250, (12, 8, 5, 3, 2, 1)


@dataclass(frozen=True, eq=False, slots=True)
class Circuit:
    """A sum of products whose value is P(e), whatever the evidence is on.

    flat: nodes; its indicators are numbered state after state, variable after variable.
    log: natural logarithm of a number by which its value is multiplied; -inf where no row is possible.
    fixed: states that all rows have to observe.
    order: which one it came from, for people.
    decisions: that the search took.
    """

    flat: FlatCircuit
    log: float
    fixed: tuple[tuple[int, int], ...]
    order: str
    decisions: int

    @property
    def edges(self) -> int:
        """Edges: multiply-adds of a row."""
        return len(self.flat.children)


@dataclass(eq=False, slots=True)
class _Search:
    """A search by one order."""

    order: Order
    tables: TableStore
    state: SearchState
    nodes: NodeStore
    nogoods: Nogoods
    progress: float = 0.0

    def gained(self) -> tuple[float, float]:
        """Return what was done since this was asked last, and in all: some come far at once, and no further."""
        before, self.progress = self.progress, progress(self.state)
        return self.progress - before, self.progress

    def go_on(self, decisions: int) -> int:
        """Search until a circuit is there, or a number of decisions is reached; return how it ended."""
        while True:
            found = int(search.search(self.tables, self.state, self.nodes, self.nogoods, decisions))
            if found != search.FULL:
                return found
            self.tables, self.state, self.nodes, self.nogoods = search.with_room(
                self.tables, self.state, self.nodes, self.nogoods
            )

    @property
    def edges(self) -> int:
        """Edges so far."""
        return int(self.nodes.counts[EDGES] + 2 * self.nodes.counts[NODES])

    @property
    def bytes(self) -> int:
        """Bytes so far."""
        return sum(array.nbytes for part in (self.tables, self.state, self.nodes, self.nogoods) for array in part)

    @property
    def decisions(self) -> int:
        """Decisions so far."""
        return int(self.state.counts[DECISIONS])


def compile_circuit(
    network: Network,
    fixed: Mapping[int, int],
    needed: AbstractSet[int],
    limits: SearchLimits,
    threads: int = 1,
) -> Circuit | str:
    """Return the circuit of a network, or why there is none.

    fixed: variable -> state that all rows observe.
    needed: variables that rows may observe, or whose posteriors are asked for, besides; all others are summed out.
    threads: that search side by side; the circuit is the same on any number.
    """
    factors = _relevant(network, set(fixed) | set(needed))
    if (why := refused(network, factors)) is not None:
        return why
    begun = _begun(network, factors, fixed, needed)
    if isinstance(begun, Circuit):
        return begun
    searches = [_Search(order, *_copies(*begun, order)) for order in orders_of(*begun[:2], threads)]
    return _best(searches, tuple(sorted(fixed.items())), limits, threads)


def first_indicators(network: Network) -> npt.NDArray[np.int64]:
    """Return the number of the indicator of the first state of each variable, and of all of them: int64 [n + 1]."""
    return np.concatenate([[0], np.cumsum(network.cardinalities)]).astype(np.int64)


def _relevant(network: Network, needed: AbstractSet[int]) -> list[Factor]:
    """Return the factors of a network without barren variables: of a Bayesian one, ancestors of those needed."""
    if network.kind != "bayes":
        return list(network.factors)
    relevant, waiting = set(needed), list(needed)
    while waiting:
        for parent in network.factors[waiting.pop()].scope:
            if parent not in relevant:
                relevant.add(parent)
                waiting.append(parent)
    return [network.factors[v] for v in sorted(relevant)]


def _begun(
    network: Network, factors: Sequence[Factor], fixed: Mapping[int, int], needed: AbstractSet[int]
) -> tuple[TableStore, SearchState, NodeStore] | Circuit:
    """Return tables and states after what the network and fixed states rule out; a circuit where nothing is left."""
    starts = first_indicators(network)
    indicators = [int(starts[v]) + FIRST_INDICATOR if v in needed else -1 for v in range(len(network.variables))]
    sorted_axes = [np.argsort(factor.scope) for factor in factors]
    scopes = [np.array(factor.scope, dtype=np.int64)[axes] for factor, axes in zip(factors, sorted_axes, strict=True)]
    values = [factor.table.transpose(axes).reshape(-1) for factor, axes in zip(factors, sorted_axes, strict=True)]
    state = search_state(network.cardinalities, scopes, indicators)
    if network.kind == "bayes":
        # Barren variables sum to one.
        state.states[sorted(set(range(len(indicators))) - {factor.scope[-1] for factor in factors})] = 1
    tables = table_store(max((len(each) for each in values), default=1))
    packed = _packed(scopes), np.array(network.cardinalities, dtype=np.int64), _packed(values)
    (scopes_at, variables), sizes, (values_at, numbers) = packed
    done = 0
    while (done := search.load_factors(tables, state, scopes_at, variables, sizes, values_at, numbers, done)) < len(
        factors
    ):
        tables = with_table_room(tables)
    for variable, observed in fixed.items():
        search.observe(state, variable, observed)
    while not search.propagate_root(tables, state, no_nogoods(state)):
        tables = with_table_room(tables)
    nodes = node_store(int(starts[-1]))
    if state.numbers[LOG] == -math.inf:
        return Circuit(flattened(nodes, NOTHING), -math.inf, tuple(sorted(fixed.items())), "none", 0)
    return tables, state, nodes


def _packed(arrays: Sequence[npt.NDArray[np.generic]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.generic]]:
    """Return where arrays start, one after the other, and all of them."""
    starts = np.concatenate([[0], np.cumsum([len(each) for each in arrays])]).astype(np.int64)
    return starts, np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)


def _copies(
    tables: TableStore, state: SearchState, nodes: NodeStore, order: Order
) -> tuple[TableStore, SearchState, NodeStore, Nogoods]:
    """Return a search of its own, which has begun by an order."""
    tables, state, nodes = deepcopy((tables, state, nodes))
    state.ranks[:], state.positions[:] = order.ranks, order.positions
    tables, state, nodes, nogoods = search.with_room(tables, state, nodes, no_nogoods(state))
    search.begin(tables, state, nodes)
    return tables, state, nodes, nogoods


def _best(
    searches: list[_Search], fixed: tuple[tuple[int, int], ...], limits: SearchLimits, threads: int
) -> Circuit | str:
    """Return the smallest circuit of the first round that has any; of others those go on that have come furthest."""
    why = ""
    for decisions, going_on in _rounds(limits.decisions):
        done, left = [], []
        ends = in_threads(partial(_go_on, decisions), searches, threads)
        for each, found in zip(searches, ends, strict=True):
            if found == search.DONE:
                done.append(each)
            elif found == search.UNDERFLOW:
                why = "products of its entries are too small for a number"
            elif each.edges > limits.edges:
                why = f"it has more than {limits.edges:,} edges by order {each.order.name}"
            elif each.bytes > limits.bytes:
                why = f"its search takes more than {limits.bytes:,} bytes by order {each.order.name}"
            else:
                left.append(each)
        if done:
            return min((_circuit(each, fixed) for each in done), key=lambda circuit: circuit.edges)
        if not left:
            break
        # An order of small cliques comes far late.
        smallest = min(left, key=lambda each: each.order.size)
        first = sorted(left, key=_Search.gained, reverse=True)[:going_on]
        searches = first if smallest in first else [*first, smallest]
    return why or f"no circuit after {limits.decisions:,} decisions by any of several orders"


def _go_on(decisions: int, one: _Search, _: int) -> int:
    return one.go_on(decisions)


def _rounds(most: int) -> Iterator[tuple[int, int]]:
    """Yield the decisions of each round, and how many searches go on after it."""
    decisions, number = FIRST_ROUND, 0
    while decisions < most:
        yield decisions, GOING_ON[min(number, len(GOING_ON) - 1)]
        decisions, number = 2 * decisions, number + 1
    yield most, 0


def _circuit(found: _Search, fixed: tuple[tuple[int, int], ...]) -> Circuit:
    root, log = int(found.state.counts[ROOT]), float(found.state.numbers[LOG])
    if root == NOTHING:
        # Tables may contradict each other although each has support for all states.
        log = -math.inf
    return Circuit(flattened(found.nodes, root), log, fixed, found.order.name, found.decisions)
