"""Expected counts: P(family | e) of every component, times its weight, added up in compiled code (Numba).

Main function: `count`, called by `junctor.learning.observations`. The E-step of Lauritzen (1995), for components
(`components`) instead of rows. A small component is enumerated: all its states, one after the other. A larger one gets
a join tree (`plan`), where the message down to the leaf of a factor, times the factor, is the posterior of its family.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import gradual, jit, loops, part, part_with_arrays
from junctor_kernels.orders.greedy import UNITS_PER_BIT
from junctor_kernels.orders.sparse import NOT_LISTED, SparseGraph, moral_graph
from junctor_kernels.row_trees.components import add_to
from junctor_kernels.row_trees.plan import (
    ARENA,
    DOWN,
    ENTRIES,
    FACTOR,
    LEFT,
    PARENT,
    TABLES,
    UP,
    WANTED,
    Factors,
    Nodes,
    Tree,
    place_tables,
    plan_rows,
    tree,
)
from junctor_kernels.row_trees.propagate import (
    ANSWERED,
    DOUBTFUL,
    DOWNWARD,
    IMPOSSIBLE,
    LEAST,
    LOSS_TOLERANCE,
    LOST,
    TINY,
    TOO_LARGE,
    RowWorkspace,
    collect,
    distribute,
    load_leaves,
    work,
)
from junctor_kernels.row_trees.walk import ZERO, next_entry, write_factor_axes

Ints = npt.NDArray[np.int64]

# States of a component that may be enumerated: with more, a tree takes less time.
MOST_STATES = 128
# Below this, products of probabilities may have lost digits to underflow.
LEAST_TOTAL = 1e-270
# Columns of `Local.numbers`: number of states, and its logarithm, of a variable.
CARDS, WEIGHTS = 0, 1


class Local(NamedTuple):
    """The factors of a pattern, its variables numbered from 0.

    numbers: int64 [2, variables].
    means: float64 [variables].
    starts, places: int64 [factors + 1].
    scopes, strides: int64, over the variables of the pattern.
    of: int32, number of each variable of the network in the pattern, -1 for others.
    unobserved: int64 [variables], -1 throughout.
    nothing: bool [variables], False throughout.
    firsts: int64 [variables], 0 throughout: the first possible state of each variable in `every`.
    every: int64 [states of a variable at most], 0, 1, 2, ...: all states are possible.
    offsets: int64 [entries], of the entries of each factor for every state of an enumerated component.
    products: float64 [MOST_STATES].
    """

    numbers: Ints
    means: npt.NDArray[np.float64]
    starts: Ints
    places: Ints
    scopes: Ints
    strides: Ints
    of: npt.NDArray[np.int32]
    unobserved: Ints
    nothing: npt.NDArray[np.bool_]
    firsts: Ints
    every: Ints
    offsets: Ints
    products: npt.NDArray[np.float64]


class CountRoom(NamedTuple):
    """Memory of a thread: a pattern, its tree and the messages of a component."""

    local: Local
    tree: Tree
    work: RowWorkspace


def room(network: int, states: int, variables: int, factors: int, scopes: int, links: int, entries: int) -> CountRoom:
    """Return memory for components.

    network: variables of the network.
    states: of one of them at most.
    variables, factors: of the largest component.
    scopes: entries of the scopes of its factors; links: the sum of the squares of their lengths.
    entries: of its messages.
    """

    def ints(*shape: int) -> Ints:
        return np.zeros(shape, dtype=np.int64)

    local = Local(
        numbers=ints(2, variables),
        means=np.zeros(variables),
        starts=ints(factors + 1),
        places=ints(factors + 1),
        scopes=ints(scopes),
        strides=ints(scopes),
        of=np.full(network, -1, dtype=np.int32),
        unobserved=np.full(variables, -1, dtype=np.int64),
        nothing=np.zeros(variables, dtype=np.bool_),
        firsts=ints(variables),
        every=np.arange(states),
        offsets=ints(MOST_STATES * factors),
        products=np.zeros(MOST_STATES),
    )
    # Its size alone counts.
    graph = SparseGraph(ints(variables + 1), np.zeros(min(variables * variables, links), dtype=np.int32), NOT_LISTED)
    planned = tree(graph, factors)
    return CountRoom(local, planned, work(entries, len(planned.nodes.tables)))


def needed(room: CountRoom) -> int:
    """Return the entries of messages that the component needs at which `count` has stopped."""
    return int(room.tree.nodes.counts[ARENA])


@gradual
@jit
def count(
    families: Any,
    store: Any,
    order: Any,
    begin: int,
    end: int,
    values: Any,
    enumerated: int,
    room: Any,
    sums: Any,
    results: Any,
) -> int:
    """Add up expected counts of components; return that for which the arena is too small, or `end`.

    families, store: of `components`.
    order: int64, numbers of components, those of a pattern together.
    begin, end: the part of `order`.
    values: float64, entries of all tables, then likelihoods.
    enumerated: states that are enumerated at most, up to MOST_STATES.
    room: CountRoom.
    sums: float64 [entries, 2], added to; no entries where log P alone is wanted.
    results: log P float64 and status uint8 of each component, written.
    """
    before, planned, states = -1, False, 0
    log_values, status = results
    given = families.starts.size - 1
    counted = given if sums.shape[0] else 0
    graph = SparseGraph(room.local.starts, store.variables, np.empty((0, 3), np.int32))
    factors = _factors(room.local, 0, 0, graph, values)
    planted = room.tree
    for at in range(begin, end):
        component = order[at]
        pattern = store.pattern[component]
        first, last = store.factor_starts[pattern], store.factor_starts[pattern + 1]
        start = store.base_starts[component]
        if pattern != before:
            before, planned = pattern, False
            states = _listed(families, store, pattern, given, enumerated, room.local)
        if states and _enumerate(store, component, counted, states, values, room.local, sums, results):
            continue
        if not planned:
            planned = True
            size = store.variable_starts[pattern + 1] - store.variable_starts[pattern]
            members = last - first
            starts = room.local.starts[: members + 1]
            graph = moral_graph(size, starts, room.local.scopes[: starts[members]])
            factors = _factors(room.local, size, members, graph, values)
            planted = _sized(room.tree, size)
            alike = 1
            while at + alike < end and store.pattern[order[at + alike]] == pattern:
                alike += 1
            nothing, unobserved = room.local.nothing[:size], room.local.unobserved[:size]
            fits = plan_rows(factors, unobserved, room.local.unobserved[:1], nothing, alike, planted)
            if fits:
                _read_leaves(store, first, counted, planted, alike)
        if not fits:
            status[component] = TOO_LARGE
            continue
        if planted.nodes.counts[ARENA] > room.work.arena.size:
            # The caller enlarges the arena and calls again: compiled code cannot replace an array of a tuple.
            return at
        for i in range(last - first):
            room.local.places[i] = store.bases[start + i]
        status[component] = _propagate(factors, planted, room.work, room.local, store, component, log_values, sums)
    return end


@gradual
@loops
def enumerate_components(
    families: Any,
    store: Any,
    order: Any,
    begin: int,
    end: int,
    values: Any,
    enumerated: int,
    room: Any,
    sums: Any,
    results: Any,
) -> int:
    """Do what `count` does as far as no component needs a tree; return the first that does, or `end`.

    Code of trees takes ten times as long to compile as this. Arguments as of `count`.
    """
    before, states = -1, 0
    given = families.starts.size - 1
    counted = given if sums.shape[0] else 0
    for at in range(begin, end):
        component = order[at]
        pattern = store.pattern[component]
        if pattern != before:
            before, states = pattern, _listed(families, store, pattern, given, enumerated, room.local)
        if not states or not _enumerate(store, component, counted, states, values, room.local, sums, results):
            return at
    return end


@part
def _listed(families: Any, store: Any, pattern: int, given: int, enumerated: int, local: Any) -> int:
    """Number the variables of a pattern, and list its states if they are few enough; return their number, or 0."""
    size = _number(families, store, pattern, given, local)
    members = store.factor_starts[pattern + 1] - store.factor_starts[pattern]
    return int(_states(local, size, members, enumerated, MOST_STATES, local.offsets))


@part
def _number(families: Any, store: Any, pattern: int, given: int, local: Any) -> int:
    """Number the variables of a pattern, and write its factors over them; return the number of variables."""
    begin, size = store.variable_starts[pattern], 0
    for place in range(begin, store.variable_starts[pattern + 1]):
        v = store.variables[place]
        local.of[v] = size
        local.numbers[CARDS, size] = families.cards[v]
        local.numbers[WEIGHTS, size] = _weight(families.cards[v])
        local.means[size] = families.cards[v]
        size += 1
    count, members = 0, 0
    for place in range(store.factor_starts[pattern], store.factor_starts[pattern + 1]):
        factor = store.factors[place]
        local.starts[members] = count
        members += 1
        if factor >= given:
            local.scopes[count], local.strides[count] = local.of[factor - given], 1
            count += 1
            continue
        for at in range(families.starts[factor], families.starts[factor + 1]):
            v = local.of[families.scopes[at]]
            if v >= 0:
                local.scopes[count], local.strides[count] = v, families.strides[at]
                count += 1
    local.starts[members] = count
    for place in range(begin, begin + size):
        local.of[store.variables[place]] = -1
    return int(size)


@part
def _weight(states: int) -> int:
    """Return log2 of a number of states in the units of `orders.greedy`."""
    return int(np.rint(np.log2(states) * UNITS_PER_BIT))


@part
def _states(local: Any, size: int, members: int, most: int, length: int, offsets: Any) -> int:
    """List the entry of each factor for every state of a component; return their number, 0 for too many.

    size, members: variables and factors.
    most: states at most.
    length: of the line that each factor has in `offsets`, which are written.
    """
    states = 1
    for v in range(size):
        states *= local.numbers[CARDS, v]
        if states > most:
            return 0
    for i in range(members):
        line = offsets[i * length : i * length + states]
        line[:] = 0
        for at in range(local.starts[i], local.starts[i + 1]):
            # The last variable changes fastest.
            behind = 1
            for v in range(local.scopes[at] + 1, size):
                behind *= local.numbers[CARDS, v]
            cards = local.numbers[CARDS, local.scopes[at]]
            for s in range(states):
                line[s] += s // behind % cards * local.strides[at]
    return int(states)


@loops
def list_offsets(
    families: Any, store: Any, pattern: int, given: int, states: int, length: int, local: Any, offsets: Any
) -> None:
    """List the entry of each factor of a pattern for every state, from its base on.

    families, store: of `components`.
    given: factors from this on are likelihoods.
    states: of the pattern.
    length: of the line of each factor.
    local: memory for the pattern.
    offsets: int32 [factors * length], written.
    """
    size = _number(families, store, pattern, given, local)
    _states(local, size, store.factor_starts[pattern + 1] - store.factor_starts[pattern], states, length, offsets)


@loops
def take_totals(totals: Any, order: Any, begin: int, end: int, results: Any) -> None:
    """Write the logarithms of what components have in total, computed elsewhere, unless digits may be lost.

    totals: float64, parallel to `order`.
    order, begin, end, results: of `count`; the status of a component that is left is not written.
    """
    log_values, status = results
    for at in range(begin, end):
        if totals[at] >= LEAST_TOTAL:
            log_values[order[at]], status[order[at]] = np.log(totals[at]), ANSWERED


@part
def _enumerate(
    store: Any, component: int, counted: int, states: int, values: Any, local: Any, sums: Any, results: Any
) -> bool:
    """Answer a component, and add its counts, state by state; return False where digits may be lost: a tree has to.

    counted: factors from this on are likelihoods, or none is counted.
    states: number of its states.
    values: entries of all tables.
    local: with the offsets of the pattern.
    sums: added to.
    results: as of `count`; log P is -inf where digits may be lost.
    """
    pattern, start, weight = store.pattern[component], store.base_starts[component], store.weights[component]
    first, last = store.factor_starts[pattern], store.factor_starts[pattern + 1]
    log_values, status = results
    products = local.products
    for s in range(states):
        products[s] = 1.0
    for i in range(last - first):
        base, line = store.bases[start + i], i * MOST_STATES
        for s in range(states):
            products[s] *= values[base + local.offsets[line + s]]
    total = 0.0
    for s in range(states):
        total += products[s]
    if not total >= LEAST_TOTAL:
        log_values[component] = -np.inf
        return False
    share = (weight[0] + weight[1]) / total
    for s in range(states):
        products[s] *= share
    for i in range(last - first):
        if store.factors[first + i] < counted:
            base, line = store.bases[start + i], i * MOST_STATES
            for s in range(states):
                if products[s] > 0.0:
                    add_to(sums, base + local.offsets[line + s], products[s])
    log_values[component], status[component] = np.log(total), ANSWERED
    return True


@part_with_arrays
def _factors(local: Any, size: int, members: int, graph: Any, values: Any) -> Any:
    """Return the factors of a pattern."""
    return Factors(
        local.numbers[CARDS, :size],
        local.starts[: members + 1],
        local.scopes,
        local.strides,
        local.places,
        values,
        0,
        graph,
        local.numbers[WEIGHTS, :size],
        local.means[:size],
    )


@part_with_arrays
def _sized(planned: Any, size: int) -> Any:
    """Return a tree's memory for so many variables."""
    nodes = planned.nodes
    return Tree(
        Nodes(
            nodes.tables,
            nodes.scopes,
            nodes.sizes[:size],
            nodes.counts,
            nodes.heads[:size],
            nodes.nexts,
            nodes.means[:size],
            nodes.expected,
            nodes.work,
        ),
        planned.order[:size],
        planned.position[:size],
        planned.bucket,
        planned.eliminated[:size],
        planned.host[:size],
        planned.members[:size],
        planned.work,
        planned.random,
    )


@part
def _read_leaves(store: Any, first: int, counted: int, planned: Any, rows: int) -> None:
    """Mark the messages down to the factors that are counted, and on the way there; likelihoods are not counted."""
    nodes = planned.nodes
    for number in range(nodes.counts[TABLES]):
        table = nodes.tables[number]
        if table[LEFT] < 0 and store.factors[first + table[FACTOR]] < counted:
            table[WANTED] = 1
        if table[WANTED] and table[PARENT] >= 0:
            nodes.tables[table[PARENT], WANTED] = 1
    place_tables(planned.host, nodes, rows)


@part
def _propagate(
    factors: Any,
    planned: Any,
    work: Any,
    local: Any,
    store: Any,
    component: int,
    log_values: Any,
    sums: Any,
) -> int:
    """Pass messages of a component up and down, and add its counts; return its status."""
    nodes, arena = planned.nodes, work.arena
    load_leaves(factors, local.unobserved, local.firsts, local.every, planned.position, nodes, work)
    status = collect(nodes, work, (1.0, 0.0), log_values, component, False)
    if status == IMPOSSIBLE:
        log_values[component] = -np.inf
    if status != ANSWERED:
        return int(status)
    distribute(nodes, work)
    # All families are checked before one of them is counted.
    for number in range(nodes.counts[TABLES]):
        is_read = nodes.tables[number, LEFT] < 0 and nodes.tables[number, WANTED]
        if is_read and not _multiply(nodes.tables[number], work.facts[number], arena):
            return DOUBTFUL
    weight = store.weights[component, 0] + store.weights[component, 1]
    for number in range(nodes.counts[TABLES]):
        if nodes.tables[number, LEFT] < 0 and nodes.tables[number, WANTED]:
            _add_family(factors, planned, number, weight, work, sums)
    return ANSWERED


@part
def _multiply(table: Any, facts: Any, arena: Any) -> bool:
    """Replace the message down to a leaf by the posterior of its family; return False if that may have lost digits."""
    up, down, entries = table[UP], table[DOWN], table[ENTRIES]
    total = 0.0
    for e in range(entries):
        arena[down + e] *= arena[up + e]
        total += arena[down + e]
    for e in range(entries):
        arena[down + e] /= total
    lost = facts[DOWNWARD + LOST]
    if facts[LEAST] * facts[DOWNWARD + LEAST] < TINY:
        lost += TINY
    return bool(total > 0.0 and (lost == 0 or lost * entries <= LOSS_TOLERANCE * total))


@part
def _add_family(factors: Any, planned: Any, number: int, weight: float, work: Any, sums: Any) -> None:
    """Add the posterior of a family to the counts, times a weight."""
    nodes, arena = planned.nodes, work.arena
    factor, source = nodes.tables[number, FACTOR], nodes.tables[number, DOWN]
    axes = write_factor_axes(factors, factor, nodes, nodes.sizes, planned.order, number, work.axes)
    work.counters[:axes] = ZERO
    target = np.uint64(factors.places[factor])
    for e in range(nodes.tables[number, ENTRIES]):
        x = arena[source + e]
        if x > 0.0:
            add_to(sums, target, weight * x)
        target, _, _, _ = next_entry(work.axes, work.counters, 0, axes, target, ZERO, ZERO)
