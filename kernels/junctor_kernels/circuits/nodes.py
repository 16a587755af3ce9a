"""Nodes of a circuit while it is made: products of two, sums with weights, equal ones kept once (Numba).

Main functions: `product`, `total` and `flattened`, which makes the circuit of what the root needs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.circuits.tables import ONE, Floats, Ints, ShortInts, is_several, larger, states_of
from junctor_kernels.cpu.jit import as_bits, jit, loops, lowest_bit, part
from junctor_kernels.cpu.mixing import STEP, mixed

# Entries of `NodeStore.counts`.
NODES, EDGES, NODE_COUNTS = range(3)
# Kinds of nodes; an indicator has the value of the evidence on a state.
INDICATOR, PRODUCT, SUM = range(3)
# The first nodes: numbers.
NOTHING, UNITY, FIRST_INDICATOR = range(3)


class NodeStore(NamedTuple):
    """Nodes in the order in which they are made, so that children come first.

    kinds: uint8.
    ones, others: int32, the children of a product; the first edge of a sum, and their number.
    children, weights: int32 and float64, of each edge of a sum.
    slots: int32, a node + 1 by its hash; 0: free.
    counts: int64 [NODE_COUNTS].
    """

    kinds: npt.NDArray[np.uint8]
    ones: ShortInts
    others: ShortInts
    children: ShortInts
    weights: Floats
    slots: ShortInts
    counts: Ints


class FlatCircuit(NamedTuple):
    """What the root needs, children first; indicators first of all.

    indicators: int32, number of the indicator that each of the first nodes stands for.
    edges_at: int64 [nodes + 1], the first edge of each node.
    children: int32 of each edge.
    weights: float64 of each edge, 1 in products.
    is_sum: bool of each node.
    """

    indicators: ShortInts
    edges_at: Ints
    children: ShortInts
    weights: Floats
    is_sum: npt.NDArray[np.bool_]


def node_store(indicators: int) -> NodeStore:
    """Return a store that has indicators, and two numbers before them, alone."""
    room = 1 << max(12, (2 * indicators).bit_length() + 1)
    store = NodeStore(
        kinds=np.zeros(room, dtype=np.uint8),
        ones=np.zeros(room, dtype=np.int32),
        others=np.zeros(room, dtype=np.int32),
        children=np.zeros(room, dtype=np.int32),
        weights=np.zeros(room),
        slots=np.zeros(4 * room, dtype=np.int32),
        counts=np.zeros(NODE_COUNTS, dtype=np.int64),
    )
    store.counts[NODES] = FIRST_INDICATOR + indicators
    return store


def with_node_room(store: NodeStore, nodes: int, edges: int) -> NodeStore:
    """Return a store with room for so many more nodes and edges."""
    made: dict[str, npt.NDArray[Any]] = {}
    count, used = store.counts.tolist()
    for name, needed in (
        *((name, count + nodes) for name in ("kinds", "ones", "others")),
        *((name, used + edges) for name in ("children", "weights")),
    ):
        array = getattr(store, name)
        while needed > len(array):
            array = larger(array)
        made[name] = array
    size = len(store.slots)
    while 2 * (count + nodes) > size:
        size *= 2
    store = store._replace(**made)
    if size > len(store.slots):
        store = store._replace(slots=np.zeros(size, dtype=np.int32))
        refill(store)
    return store


@loops
def refill(store: Any) -> None:
    """Write all products and sums into empty slots."""
    last = np.int64(store.slots.size - 1)
    for node in range(store.counts[NODES]):
        if store.kinds[node] == INDICATOR:
            continue
        if store.kinds[node] == PRODUCT:
            at = _product_hash(store.ones[node], store.others[node]) & last
        else:
            at = _sum_hash(store, store.ones[node], store.others[node]) & last
        while store.slots[at] > 0:
            at = (at + 1) & last
        store.slots[at] = node + 1


@part
def _product_hash(one: int, other: int) -> Any:
    return np.int64(mixed((np.uint64(one) << np.uint64(32)) + np.uint64(other)))


@part
def _sum_hash(store: Any, first: int, count: int) -> Any:
    found = STEP
    for edge in range(first, first + count):
        found = mixed(found ^ np.uint64(store.children[edge])) + np.uint64(as_bits(store.weights[edge]))
    return np.int64(mixed(found))


@part
def _pair(store: Any, one: int, other: int) -> Any:
    """Return the product of two nodes."""
    last = np.uint64(store.slots.size - 1)
    at = np.uint64(_product_hash(one, other)) & last
    while store.slots[at] > 0:
        found = np.uint64(store.slots[at] - 1)
        if store.kinds[found] == PRODUCT and store.ones[found] == one and store.others[found] == other:
            return np.int64(found)
        at = (at + ONE) & last
    node = store.counts[NODES]
    store.kinds[node], store.ones[node], store.others[node] = PRODUCT, one, other
    store.counts[NODES] = node + 1
    store.slots[at] = node + 1
    return node


@part
def product(store: Any, parts: Any, levels: Any, count: int) -> Any:
    """Return the product of nodes, shared by halves: those of one aligned range of positions are multiplied first.

    parts: int64 [n, 2], position and node of each; changed. Positions differ.
    levels: int64 [n], memory.
    """
    if count == 0:
        return UNITY
    _sort(parts, count)
    top, before = 0, parts[0, 0]
    for i in range(count):
        position, node = parts[i, 0], parts[i, 1]
        # The bit at which a part's range divides from that of the one before tells how soon they meet.
        level, before = position ^ before, position
        while top > 1 and _is_lower(levels[top - 1], level):
            parts[top - 2, 1] = _pair(store, parts[top - 2, 1], parts[top - 1, 1])
            top -= 1
        # Positions stay where they are, for those that come.
        parts[top, 1], levels[top] = node, level
        top += 1
    while top > 1:
        parts[top - 2, 1] = _pair(store, parts[top - 2, 1], parts[top - 1, 1])
        top -= 1
    return np.int64(parts[0, 1])


@part
def _is_lower(one: int, other: int) -> Any:
    """Return True if the highest set bit of a number is lower than that of another one."""
    return one < other and one < (one ^ other)


@part
def _sort(parts: Any, count: int) -> None:
    """Sort parts by position (Shell's sort, as in `orders.sparse`)."""
    step = 1
    while 9 * step < count:
        step = 3 * step + 1
    while step > 0:
        for i in range(step, count):
            position, node, j = parts[i, 0], parts[i, 1], i
            while j >= step and parts[j - step, 0] > position:
                parts[j, 0], parts[j, 1] = parts[j - step, 0], parts[j - step, 1]
                j -= step
            parts[j, 0], parts[j, 1] = position, node
        step //= 3


@part
def total(store: Any, nodes: Any, weights: Any, count: int) -> Any:
    """Return the sum of nodes with weights; the terms are sorted in place."""
    for i in range(1, count):
        node, weight, j = nodes[i], weights[i], i
        while j > 0 and nodes[j - 1] > node:
            nodes[j], weights[j] = nodes[j - 1], weights[j - 1]
            j -= 1
        nodes[j], weights[j] = node, weight
    first, node = store.counts[EDGES], store.counts[NODES]
    for i in range(count):
        store.children[first + i], store.weights[first + i] = nodes[i], weights[i]
    last = np.int64(store.slots.size - 1)
    at = _sum_hash(store, first, count) & last
    while store.slots[at] > 0:
        other = np.int64(store.slots[at]) - 1
        if (
            store.kinds[other] == SUM
            and store.others[other] == count
            and _is_same(store, store.ones[other], first, count)
        ):
            return other
        at = (at + 1) & last
    store.kinds[node], store.ones[node], store.others[node] = SUM, first, count
    store.counts[EDGES], store.counts[NODES] = first + count, node + 1
    store.slots[at] = node + 1
    return node


@part
def _is_same(store: Any, one: int, other: int, count: int) -> Any:
    for i in range(count):
        if store.children[one + i] != store.children[other + i] or store.weights[one + i] != store.weights[other + i]:
            return False
    return True


@part
def free_states(store: Any, indicator: int, states: Any, nodes: Any, weights: Any) -> Any:
    """Return the sum of the indicators of some states of a variable.

    indicator: node of its first state.
    nodes, weights: memory.
    """
    if not is_several(states):
        return np.int64(indicator + lowest_bit(states))
    count, left = 0, states
    while left != np.uint64(0):
        nodes[count], weights[count] = indicator + lowest_bit(left), 1.0
        count += 1
        left &= left - ONE
    return total(store, nodes, weights, states_of(states))


@jit
def flattened(store: Any, root: int) -> Any:
    """Return the circuit of a root as a FlatCircuit; products whose edges would be no fewer are multiplied out."""
    count = root + 1
    kinds, ones, others, children = store.kinds, store.ones, store.others, store.children
    uses = np.zeros(count, np.int64)
    uses[root] = 2**62
    for node in range(root, -1, -1):
        if uses[node] == 0:
            continue
        if kinds[node] == PRODUCT:
            uses[ones[node]] += 1
            uses[others[node]] += 1
        elif kinds[node] == SUM:
            for edge in range(ones[node], ones[node] + others[node]):
                uses[children[edge]] += 1
    # Of products: factors, 0 for a node that stays; children come first.
    factors = np.zeros(count, np.int64)
    in_products = np.zeros(count, np.int64)
    for node in range(count):
        if uses[node] > 0 and kinds[node] == PRODUCT:
            in_products[ones[node]] += 1
            in_products[others[node]] += 1
    number = np.full(count, -1, np.int64)
    made, edges = 0, 0
    for node in range(count):
        if uses[node] == 0:
            continue
        if kinds[node] == PRODUCT:
            size = max(1, factors[ones[node]]) + max(1, factors[others[node]])
            # Sums take a product as one.
            if in_products[node] == uses[node] and uses[node] * size <= size + uses[node]:
                factors[node] = size
                continue
            edges += size
        elif kinds[node] == SUM:
            edges += others[node]
        made += 1
    indicators = np.zeros(made, np.int32)
    edges_at = np.zeros(made + 1, np.int64)
    new_children, new_weights = np.zeros(edges, np.int32), np.ones(edges, np.float64)
    is_sum = np.zeros(made, np.bool_)
    leaves, at, edge = 0, 0, 0
    waiting = np.zeros(count if count < 4096 else 4096, np.int64)
    for node in range(count):
        if uses[node] == 0 or factors[node] > 0:
            continue
        number[node] = at
        if kinds[node] == INDICATOR:
            indicators[leaves] = node - FIRST_INDICATOR
            leaves += 1
        elif kinds[node] == SUM:
            is_sum[at] = True
            for old in range(ones[node], ones[node] + others[node]):
                new_children[edge], new_weights[edge] = number[children[old]], store.weights[old]
                edge += 1
        else:
            waiting[0], waiting[1], open_nodes = others[node], ones[node], 2
            while open_nodes > 0:
                open_nodes -= 1
                child = waiting[open_nodes]
                if factors[child] > 0:
                    waiting[open_nodes], waiting[open_nodes + 1] = others[child], ones[child]
                    open_nodes += 2
                else:
                    new_children[edge] = number[child]
                    edge += 1
        at += 1
        edges_at[at] = edge
    return FlatCircuit(indicators[:leaves].copy(), edges_at, new_children, new_weights, is_sum)
