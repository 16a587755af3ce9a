"""Search for a circuit: decide a variable, propagate supports, split into components, remember each of them (Numba).

Main functions: `load_factors`, `begin` and `search`; exhaustive search with component caching (Darwiche, New advances
in compiling CNF to decomposable negation normal form, 2004; Sang and others, Combining component caching and clause
learning for effective model counting, 2004) over tables instead of clauses. A component is the set of its reduced
tables. A step either comes to its end or, for want of room, leaves all as it was: then arrays grow, and it is tried
again. Indices of inner loops have no sign: Numba would ask of each whether it is negative, a quarter of a search.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from junctor_kernels.circuits.nodes import (
    EDGES,
    NODES,
    NOTHING,
    UNITY,
    NodeStore,
    free_states,
    product,
    total,
    with_node_room,
)
from junctor_kernels.circuits.nogoods import (
    BRANCHES,
    DECIDED,
    FIRED,
    LITERALS,
    LOGGED,
    NOGOODS,
    PENDING,
    Nogoods,
    learn,
    pending,
    visited,
    with_nogood_room,
)
from junctor_kernels.circuits.state import (
    BEST,
    CACHED,
    COMPONENTS,
    COMPONENTS_AT,
    DEAD_ENDS,
    DECISIONS,
    END,
    FACTOR,
    FIRED_AT,
    FIRED_BEFORE,
    FIXED,
    FRAMES,
    FROM,
    GROWING,
    HITS,
    LOG,
    LOGGED_AT,
    MEMBERS,
    MEMBERS_AT,
    NEXT,
    OPEN,
    PARTS,
    PARTS_AT,
    QUEUE,
    ROOT,
    STAMP,
    START,
    TAKEN,
    TERMS,
    TERMS_AT,
    TO,
    TOTAL,
    TRAIL,
    TRAIL_AT,
    VARIABLE,
    SearchState,
    forget_queue,
    narrow,
    undo,
)
from junctor_kernels.circuits.tables import (
    MOST_STATES,
    NO_ROOM,
    NUMBER,
    ONE,
    ZEROS,
    TableStore,
    grown,
    is_several,
    restricted,
    states_of,
    whole,
    with_table_room,
)
from junctor_kernels.cpu.jit import inlined, loops, lowest_bit, part

# How a search ends: with a circuit, for want of room, at its limit, or with numbers too small for a double.
DONE, FULL, PAUSED, UNDERFLOW = range(4)
# What comes of a decision.
ALIVE, DEAD = 0, 4
# Factors outside of this range are taken out of a product.
SMALL, LARGE, SMALLEST = 1e-100, 1e100, 1e-250
# The node of a component whose sum is not known any more.
FORGOTTEN = -1
# Components up to so many are sorted, the smallest first: dead ends are found sooner.
SORTED = 64


def with_room(
    tables: TableStore, state: SearchState, nodes: NodeStore, nogoods: Nogoods
) -> tuple[TableStore, SearchState, NodeStore, Nogoods]:
    """Return all four with room for what a step may need; what is full has twice of it."""
    state = state._replace(**grown(state, GROWING, len(state.ranks) + MOST_STATES + 2))
    if 2 * (int(state.counts[CACHED]) + 1) > len(state.cache_nodes):
        size = 2 * len(state.cache_nodes)
        keys, found, weights = np.zeros((size, 2), dtype=np.uint64), np.zeros(size, dtype=np.int32), np.zeros(size)
        refill_cache(state, keys, found, weights)
        state = state._replace(cache_keys=keys, cache_nodes=found, cache_weights=weights)
    return with_table_room(tables), state, with_node_room(nodes, *node_needs(state)), with_nogood_room(nogoods)


def node_needs(state: SearchState) -> Any:
    """Return how many nodes and edges a step may make."""
    n = len(state.ranks) + MOST_STATES + 2
    return 2 * n, len(state.trail) + n


@loops
def refill_cache(state: Any, keys: Any, nodes: Any, weights: Any) -> None:
    """Write components that are done into larger empty arrays."""
    for i in range(state.cache_nodes.size):
        one, two = state.cache_keys[i, 0], state.cache_keys[i, 1]
        if one != np.uint64(0) or two != np.uint64(0):
            at = _place(keys, one, two)
            keys[at, 0], keys[at, 1] = one, two
            nodes[at], weights[at] = state.cache_nodes[i], state.cache_weights[i]


@inlined
def _place(keys: Any, one: Any, two: Any) -> Any:
    """Return the place of a key, or the free one where it belongs."""
    last = np.int64(keys.shape[0] - 1)
    at = np.int64(one ^ (two >> np.uint64(7))) & last
    while (keys[at, 0] != one or keys[at, 1] != two) and (keys[at, 0] != np.uint64(0) or keys[at, 1] != np.uint64(0)):
        at = (at + 1) & last
    return at


@loops
def load_factors(
    tables: Any, state: Any, scopes_at: Any, scopes: Any, sizes: Any, values_at: Any, values: Any, first: int
) -> Any:
    """Give factors their reduced tables; return the number of those that have one, or less for want of room.

    scopes_at, scopes: int64, the variables of factor f are scopes[scopes_at[f]:scopes_at[f + 1]], different ones.
    sizes: int64, number of states of each variable.
    values_at, values: int64 and float64, entries of each factor.
    first: factor to go on with.
    The log of the root is -inf where nothing is possible.
    """
    for factor in range(first, state.tables.size):
        axes, size = scopes_at[factor + 1] - scopes_at[factor], values_at[factor + 1] - values_at[factor]
        for a in range(axes):
            v = scopes[scopes_at[factor] + a]
            tables.axis_variables[a] = v
            tables.axis_supports[a] = ~np.uint64(0) >> np.uint64(64 - sizes[v])
        for i in range(size):
            tables.work[i] = values[values_at[factor] + i]
        step = whole(tables, axes, size)
        if step == NO_ROOM:
            return factor
        state.numbers[FACTOR], state.numbers[TAKEN] = 1.0, 0.0
        if _take_step(tables, state, factor, step):
            state.numbers[LOG] += math.log(state.numbers[FACTOR]) + state.numbers[TAKEN]
        else:
            state.numbers[LOG] = -math.inf
        state.counts[TRAIL] = 0
    return np.int64(state.tables.size)


@loops
def observe(state: Any, variable: int, observed: int) -> None:
    """Leave a variable one of its states, before the search."""
    if not narrow(state, variable, ONE << np.uint64(observed), DECIDED):
        state.numbers[LOG] = -math.inf
    state.counts[TRAIL] = 0


@loops
def propagate_root(tables: Any, state: Any, nogoods: Any) -> Any:
    """Propagate what factors and evidence rule out; return False where it has to be called again, with more room.

    The log of the root is -inf where nothing is possible.
    """
    state.numbers[FACTOR], state.numbers[TAKEN] = 1.0, 0.0
    found = _propagate(tables, state, nogoods)
    state.counts[TRAIL] = 0
    if found == DEAD:
        state.numbers[LOG] = -math.inf
    else:
        state.numbers[LOG] += math.log(state.numbers[FACTOR]) + state.numbers[TAKEN]
    return found != FULL


@loops
def begin(tables: Any, state: Any, nodes: Any) -> None:
    """Make the first frame, of all variables; it decides none."""
    frame = state.frames[0]
    frame[VARIABLE], frame[FROM], frame[TO], frame[OPEN], frame[NEXT] = -1, 0, state.ranks.size, 1, 0
    frame[TRAIL_AT] = frame[PARTS_AT] = frame[TERMS_AT] = frame[COMPONENTS_AT] = 0
    for v in range(state.ranks.size):
        state.members[v], state.latest[v] = v, -1
    state.counts[MEMBERS] = frame[MEMBERS_AT] = state.ranks.size
    state.counts[FRAMES], state.weights[0], state.left[0] = 1, 1.0, np.uint64(0)
    # States that were left before are one by one, whatever happened on the way.
    state.counts[FIXED] = 0
    for v in range(state.ranks.size):
        if not is_several(state.states[v]):
            state.fixed[state.counts[FIXED]] = v
            state.counts[FIXED] += 1
    _open(tables, state, nodes, 0)


@loops
def search(tables: Any, state: Any, nodes: Any, nogoods: Any, most: int) -> Any:
    """Search until the circuit is there: DONE, or FULL, PAUSED at a number of decisions, UNDERFLOW."""
    counts = state.counts
    while True:
        if not _has_room(tables, state, nodes, nogoods):
            return FULL
        top = counts[FRAMES] - 1
        frame = state.frames[top]
        if frame[OPEN] and frame[NEXT] < counts[COMPONENTS]:
            c = frame[NEXT]
            one, two = state.component_keys[c, 0], state.component_keys[c, 1]
            place = _place(state.cache_keys, one, two)
            known = state.cache_keys[place, 0] == one and state.cache_keys[place, 1] == two
            if known and state.cache_nodes[place] != FORGOTTEN:
                counts[HITS] += 1
                _add(state, nogoods, state.components[c, BEST], state.cache_nodes[place], state.cache_weights[place])
            elif counts[DECISIONS] >= most:
                return PAUSED
            else:
                _decide(state, nogoods, c)
        elif frame[OPEN]:
            if top == 0:
                counts[ROOT] = product(nodes, state.parts, state.levels, counts[PARTS])
                state.numbers[LOG] += math.log(state.weights[0])
                return DONE
            if not SMALLEST < state.weights[top] < 1 / SMALLEST:
                return UNDERFLOW
            parts = state.parts[frame[PARTS_AT] :]
            node = product(nodes, parts, state.levels, counts[PARTS] - frame[PARTS_AT])
            state.terms[counts[TERMS]], state.term_weights[counts[TERMS]] = node, state.weights[top]
            counts[TERMS] += 1
            _close(state, frame)
        elif top == 0:
            counts[ROOT] = NOTHING
            return DONE
        elif state.left[top] != np.uint64(0):
            if not _branch(tables, state, nodes, nogoods, top):
                return FULL
        else:
            _finish(state, nodes, nogoods, top)


@inlined
def _has_room(tables: Any, state: Any, nodes: Any, nogoods: Any) -> Any:
    """Return True if there is room for a step, but for tables."""
    n, counts = state.ranks.size + MOST_STATES + 2, state.counts
    return (
        counts[MEMBERS] + n <= state.members.size
        and counts[COMPONENTS] + n <= state.components.shape[0]
        and counts[PARTS] + n <= state.parts.shape[0]
        and counts[TERMS] + n <= state.terms.size
        and 2 * (counts[CACHED] + 1) <= state.cache_nodes.size
        and nodes.counts[NODES] + 2 * n <= nodes.kinds.size
        and 2 * (nodes.counts[NODES] + 2 * n) <= nodes.slots.size
        and nodes.counts[EDGES] + state.trail.size + n <= nodes.children.size
        and nogoods.counts[LITERALS] + state.ranks.size + 2 <= nogoods.variables.size
        and nogoods.counts[NOGOODS] + 2 <= nogoods.starts.size
        and nogoods.counts[PENDING] + 2 <= nogoods.waiting.size
        and nogoods.counts[LOGGED] + 2 <= nogoods.log.shape[0]
    )


@part
def _decide(state: Any, nogoods: Any, component: int) -> None:
    """Make a frame that decides the first variable of a component of the top frame."""
    counts = state.counts
    top = counts[FRAMES]
    frame, found = state.frames[top], state.components[component]
    frame[VARIABLE], frame[FROM], frame[TO], frame[OPEN] = found[BEST], found[START], found[END], 0
    frame[TRAIL_AT], frame[MEMBERS_AT], frame[COMPONENTS_AT] = counts[TRAIL], counts[MEMBERS], counts[COMPONENTS]
    frame[PARTS_AT], frame[TERMS_AT] = counts[PARTS], counts[TERMS]
    state.keys[top, 0], state.keys[top, 1] = state.component_keys[component, 0], state.component_keys[component, 1]
    state.left[top] = state.states[found[BEST]]
    frame[TOTAL] = states_of(state.left[top])
    counts[FRAMES] = top + 1
    counts[DECISIONS] += 1
    frame[FIRED_BEFORE] = nogoods.counts[FIRED]


@part
def _branch(tables: Any, state: Any, nodes: Any, nogoods: Any, top: int) -> Any:
    """Try the next state of the top frame's variable; return False, with all as it was, where there is no room."""
    counts, frame = state.counts, state.frames[top]
    bit = state.left[top] & (~state.left[top] + ONE)
    state.numbers[FACTOR], state.numbers[TAKEN] = 1.0, 0.0
    counts[FIXED] = 0
    narrow(state, frame[VARIABLE], bit, DECIDED)
    frame[LOGGED_AT], frame[FIRED_AT] = nogoods.counts[LOGGED], nogoods.counts[FIRED]
    conflict = np.int64(DECIDED)
    if nogoods.counts[NOGOODS] > 0:
        nogoods.counts[BRANCHES] += 1
        for i in range(np.uint64(frame[FROM]), np.uint64(frame[TO])):
            nogoods.owners[np.uint64(state.members[i])] = nogoods.counts[BRANCHES]
        conflict = pending(state, nogoods)
    if conflict == DECIDED:
        found = np.int64(_propagate(tables, state, nogoods))
    else:
        found = np.int64(_dead_end(tables, state, nogoods, conflict))
    if found == FULL:
        undo(state, frame[TRAIL_AT])
        return False
    state.left[top] ^= bit
    if found == DEAD:
        counts[DEAD_ENDS] += 1
        undo(state, frame[TRAIL_AT])
        return True
    factor = state.numbers[FACTOR]
    if state.numbers[TAKEN] != 0:
        factor *= math.exp(state.numbers[TAKEN])
    state.weights[top], frame[OPEN], frame[NEXT] = factor, 1, counts[COMPONENTS]
    _open(tables, state, nodes, top)
    return True


@part
def _open(tables: Any, state: Any, nodes: Any, top: int) -> None:
    """Begin the product of a branch: indicators of fixed variables, free variables, and components to come."""
    counts, frame = state.counts, state.frames[top]
    for i in range(counts[FIXED]):
        v = state.fixed[i]
        if state.indicators[v] >= 0:
            _put(state, v, state.indicators[v] + lowest_bit(state.states[v]))
    counts[STAMP] += 1
    stamp, first = counts[STAMP], counts[COMPONENTS]
    for i in range(np.uint64(frame[FROM]), np.uint64(frame[TO])):
        v = np.uint64(state.members[i])
        if state.marks[v] == stamp or not is_several(state.states[v]):
            continue
        state.marks[v] = stamp
        start = counts[MEMBERS]
        _reach(tables, state, v, stamp)
        if counts[MEMBERS] - start == 1 and state.component_keys[counts[COMPONENTS], 0] == np.uint64(0):
            counts[MEMBERS] = start
            _put_free(state, nodes, np.int64(v), top)
        else:
            counts[COMPONENTS] += 1
    if counts[COMPONENTS] - first <= SORTED:
        _sort_components(state, first)


@inlined
def _put(state: Any, variable: int, node: int) -> None:
    """Multiply a node into the branch in hand."""
    at = state.counts[PARTS]
    state.parts[at, 0], state.parts[at, 1] = state.positions[variable], node
    state.counts[PARTS] = at + 1


@inlined
def _put_free(state: Any, nodes: Any, variable: int, top: int) -> None:
    """Multiply the sum over the states of a variable without tables into the branch in hand."""
    states, indicator = state.states[variable], state.indicators[variable]
    if indicator < 0:
        state.weights[top] *= states_of(states)
        return
    at = state.counts[TERMS]
    node = free_states(nodes, indicator, states, state.terms[at:], state.term_weights[at:])
    _put(state, variable, node)


@part
def _reach(tables: Any, state: Any, variable: Any, stamp: int) -> None:
    """Write the component of a variable behind the others: members, key and the variable to decide."""
    counts, members = state.counts, state.members
    start, best, rank = counts[MEMBERS], np.int64(variable), np.int64(-1)
    members[start] = variable
    at, end, one, two = np.uint64(start), np.uint64(start + 1), np.uint64(0), np.uint64(0)
    while at < end:
        v = np.uint64(members[at])
        at += ONE
        if state.ranks[v] > rank:
            best, rank = np.int64(v), np.int64(state.ranks[v])
        for place in range(np.uint64(state.factors_at[v]), np.uint64(state.factors_at[v + ONE])):
            f = np.uint64(state.factors[place])
            found = state.tables[f]
            if found < 0 or state.factor_marks[f] == stamp:
                continue
            table = np.uint64(found)
            first, last, has = np.uint64(tables.axes_at[table]), np.uint64(tables.axes_at[table + ONE]), False
            for axis in range(first, last):
                has |= np.uint64(tables.variables[axis]) == v
            if not has:
                continue
            state.factor_marks[f] = stamp
            one += tables.keys[table, 0]
            two += tables.keys[table, 1]
            for axis in range(first, last):
                u = np.uint64(tables.variables[axis])
                if state.marks[u] != stamp:
                    state.marks[u] = stamp
                    members[end] = u
                    end += ONE
    counts[MEMBERS] = np.int64(end)
    c = counts[COMPONENTS]
    state.components[c, START], state.components[c, END], state.components[c, BEST] = start, end, best
    state.component_keys[c, 0], state.component_keys[c, 1] = one, two


@part
def _sort_components(state: Any, first: int) -> None:
    """Sort the components of the branch in hand, the smallest first."""
    rows, keys = state.components, state.component_keys
    for i in range(first + 1, state.counts[COMPONENTS]):
        start, end, best, one, two = rows[i, START], rows[i, END], rows[i, BEST], keys[i, 0], keys[i, 1]
        j = i
        while j > first and rows[j - 1, END] - rows[j - 1, START] > end - start:
            rows[j, START], rows[j, END], rows[j, BEST] = rows[j - 1, START], rows[j - 1, END], rows[j - 1, BEST]
            keys[j, 0], keys[j, 1] = keys[j - 1, 0], keys[j - 1, 1]
            j -= 1
        rows[j, START], rows[j, END], rows[j, BEST], keys[j, 0], keys[j, 1] = start, end, best, one, two


@inlined
def _add(state: Any, nogoods: Any, variable: int, node: int, weight: float) -> None:
    """Multiply what came of the next component into the top frame's branch, which ends where that is nothing."""
    top = state.counts[FRAMES] - 1
    frame = state.frames[top]
    if node == NOTHING:
        state.counts[DEAD_ENDS] += 1
        if nogoods.counts[FIRED] > frame[FIRED_AT]:
            _forget(state, nogoods, frame[LOGGED_AT])
        _close(state, frame)
        return
    frame[NEXT] += 1
    state.weights[top] *= weight
    if node != UNITY:
        _put(state, variable, node)


@inlined
def _close(state: Any, frame: Any) -> None:
    """End the branch of a frame."""
    counts = state.counts
    undo(state, frame[TRAIL_AT])
    counts[PARTS], counts[MEMBERS], counts[COMPONENTS] = frame[PARTS_AT], frame[MEMBERS_AT], frame[COMPONENTS_AT]
    frame[OPEN] = 0


@part
def _finish(state: Any, nodes: Any, nogoods: Any, top: int) -> None:
    """Take the top frame, all states of whose variable are done, off; its sum goes to the frame below."""
    counts, frame = state.counts, state.frames[top]
    first = frame[TERMS_AT]
    count, node, weight = counts[TERMS] - first, np.int64(NOTHING), 1.0
    if count == 1:
        node, weight = np.int64(state.terms[first]), state.term_weights[first]
    elif count > 1:
        node = total(nodes, state.terms[first:], state.term_weights[first:], count)
    counts[TERMS] = first
    if node != NOTHING or nogoods.counts[FIRED] == frame[FIRED_BEFORE]:
        one, two = state.keys[top, 0], state.keys[top, 1]
        place = _place(state.cache_keys, one, two)
        if state.cache_keys[place, 0] == np.uint64(0) and state.cache_keys[place, 1] == np.uint64(0):
            counts[CACHED] += 1
        state.cache_keys[place, 0], state.cache_keys[place, 1] = one, two
        state.cache_nodes[place], state.cache_weights[place] = node, weight
        at = nogoods.counts[LOGGED]
        nogoods.log[at, 0], nogoods.log[at, 1] = one, two
        nogoods.counts[LOGGED] = at + 1
    counts[FRAMES] = top
    _add(state, nogoods, frame[VARIABLE], node, weight)


@part
def _forget(state: Any, nogoods: Any, first: int) -> None:
    """Forget components that are done since the log had a length: their sums may lack terms."""
    for i in range(first, nogoods.counts[LOGGED]):
        place = _place(state.cache_keys, nogoods.log[i, 0], nogoods.log[i, 1])
        if state.cache_nodes[place] != NOTHING:
            state.cache_nodes[place] = FORGOTTEN
    nogoods.counts[LOGGED] = first


@inlined
def _take_step(tables: Any, state: Any, factor: int, step: int) -> Any:
    """Give a factor the table of a transition, and variables what it leaves them; return False at a dead end."""
    table = tables.results[step]
    if table == ZEROS:
        return False
    at = state.counts[TRAIL]
    state.trail[at], state.trail_states[at] = state.ranks.size + factor, np.uint64(state.tables[factor] + 1)
    state.counts[TRAIL] = at + 1
    state.tables[factor] = table
    if table == NUMBER:
        numbers = state.numbers
        numbers[FACTOR] *= tables.numbers[step]
        if not SMALL < numbers[FACTOR] < LARGE:
            numbers[TAKEN] += math.log(numbers[FACTOR])
            numbers[FACTOR] = 1.0
    for i in range(tables.narrowed_at[step], tables.narrowed_at[step + 1]):
        if not narrow(state, tables.narrowed[i], tables.narrowed_to[i], factor):
            return False
    return True


@inlined
def _dead_end(tables: Any, state: Any, nogoods: Any, conflict: int) -> Any:
    """Propagate no further, learn why, and return DEAD; conflict: as in `learn`."""
    forget_queue(state)
    learn(tables, state, nogoods, conflict)
    return DEAD


@part
def _propagate(tables: Any, state: Any, nogoods: Any) -> Any:
    """Narrow tables to the states of queued variables, until none is left: ALIVE, DEAD, or FULL for want of room."""
    counts = state.counts
    while counts[QUEUE] > 0:
        counts[QUEUE] -= 1
        v = np.int64(state.queue[counts[QUEUE]])
        state.queued[v] = False
        first_place, last_place = np.uint64(state.factors_at[v]), np.uint64(state.factors_at[v + 1])
        for place in range(first_place, last_place):
            factor = np.int64(state.factors[place])
            table = np.int64(state.tables[np.uint64(factor)])
            if table < 0:
                continue
            first, last = np.uint64(tables.axes_at[np.uint64(table)]), np.uint64(tables.axes_at[np.uint64(table + 1)])
            axis = np.int64(-1)
            for a in range(first, last):
                if tables.variables[a] == v:
                    axis = np.int64(a - first)
            if axis < 0:
                continue
            support = tables.supports[first + np.uint64(axis)]
            left = state.states[np.uint64(v)] & support
            if left == support:
                continue
            step = np.int64(NO_ROOM)
            if left != np.uint64(0):
                step = restricted(tables, table, axis, left)
                if step == NO_ROOM:
                    # The root's variables are propagated once more; a branch is undone.
                    state.queued[v] = True
                    state.queue[counts[QUEUE]] = v
                    counts[QUEUE] += 1
                    return FULL
            if left == np.uint64(0) or not _take_step(tables, state, factor, step):
                return _dead_end(tables, state, nogoods, factor)
        if nogoods.counts[NOGOODS] > 0:
            conflict = visited(state, nogoods, v)
            if conflict != DECIDED:
                return _dead_end(tables, state, nogoods, conflict)
    return ALIVE
