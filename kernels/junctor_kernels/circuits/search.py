"""Search for a circuit: decide a variable, propagate supports, split into components, remember each of them (Numba).

Main functions: `load_factors`, `begin` and `search`; exhaustive search with component caching (Darwiche, New advances
in compiling CNF to decomposable negation normal form, 2004; Sang and others, Combining component caching and clause
learning for effective model counting, 2004) over tables instead of clauses. A component is the set of its reduced
tables. A step either comes to its end or, for want of room, leaves all as it was: then arrays grow, and it is tried
again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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
from junctor_kernels.circuits.tables import (
    MOST_STATES,
    NO_ROOM,
    NUMBER,
    ONE,
    ZEROS,
    Floats,
    Ints,
    ShortInts,
    TableStore,
    Words,
    is_several,
    larger,
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
# Entries of `SearchState.counts`: lengths in use, then figures.
(
    FRAMES,
    MEMBERS,
    COMPONENTS,
    PARTS,
    TERMS,
    CACHED,
    TRAIL,
    FIXED,
    QUEUE,
    STAMP,
    DECISIONS,
    HITS,
    DEAD_ENDS,
    ROOT,
    COUNTS,
) = range(15)
# Entries of `SearchState.numbers`: of the branch in hand, its factor and what was taken out of it; log of the root's.
FACTOR, TAKEN, LOG, NUMBERS = range(4)
# Columns of `SearchState.frames`: the variable that is decided, members of the component, lengths before the frame, the
# next component of its branch, whether there is a branch, and states in all.
VARIABLE, FROM, TO, TRAIL_AT, MEMBERS_AT, COMPONENTS_AT, PARTS_AT, TERMS_AT, NEXT, OPEN, TOTAL, COLUMNS = range(12)
# Columns of `SearchState.components`.
START, END, BEST, COMPONENT = range(4)
# Factors outside of this range are taken out of a product.
SMALL, LARGE, SMALLEST = 1e-100, 1e100, 1e-250
# Components up to so many are sorted, the smallest first: dead ends are found sooner.
SORTED = 64


class SearchState(NamedTuple):
    """A search under way.

    factors_at, factors: int64 [n + 1] and int32: the factors of each variable.
    ranks: int32 [n], the variable of the largest one is decided first.
    positions: int32 [n], places in which products are shared.
    indicators: int32 [n], node of the first state of each variable; -1 for those without.
    states: uint64 [n], that are possible.
    tables: int32 [m], the reduced table of each factor; NUMBER for none.
    trail, trail_states: int64 and uint64, what changes on the way to the branch in hand.
    queue, queued: int32 [n] and bool [n], variables to propagate.
    fixed: int32 [n], variables of one state in the branch in hand.
    marks, factor_marks: int64, last component that reached them.
    frames, keys, left, weights: decisions under way: COLUMNS, key, states not tried yet, factor of the branch.
    members: int32, variables of components.
    components, component_keys: int64 [n, COMPONENT] and uint64 [n, 2], of the branches under way.
    parts: int64 [n, 2], position and node of what a branch multiplies.
    levels: int64, memory of products.
    terms, term_weights: int32 and float64, branches that are done.
    cache_keys, cache_nodes, cache_weights: components that are done.
    counts, numbers: int64 [COUNTS] and float64 [NUMBERS].
    """

    factors_at: Ints
    factors: ShortInts
    ranks: ShortInts
    positions: ShortInts
    indicators: ShortInts
    states: Words
    tables: ShortInts
    trail: Ints
    trail_states: Words
    queue: ShortInts
    queued: npt.NDArray[np.bool_]
    fixed: ShortInts
    marks: Ints
    factor_marks: Ints
    frames: Ints
    keys: Words
    left: Words
    weights: Floats
    members: ShortInts
    components: Ints
    component_keys: Words
    parts: Ints
    levels: Ints
    terms: ShortInts
    term_weights: Floats
    cache_keys: Words
    cache_nodes: ShortInts
    cache_weights: Floats
    counts: Ints
    numbers: Floats


# Arrays that grow, with the count of what they hold.
GROWING = {
    "members": MEMBERS,
    "components": COMPONENTS,
    "component_keys": COMPONENTS,
    "parts": PARTS,
    "levels": PARTS,
    "terms": TERMS,
    "term_weights": TERMS,
}


def search_state(cardinalities: Sequence[int], scopes: Sequence[Ints], indicators: Sequence[int]) -> SearchState:
    """Return a search that has not begun, without ranks and positions.

    cardinalities: number of states of each variable, at most MOST_STATES.
    scopes: variables of each factor.
    indicators: node of the first state of each variable, -1 for variables whose evidence does not matter.
    """
    n, m = len(cardinalities), len(scopes)
    owners = np.array([v for scope in scopes for v in scope], dtype=np.int64)
    numbers = np.repeat(np.arange(m, dtype=np.int32), [len(scope) for scope in scopes])
    counts = np.bincount(owners, minlength=n)
    room = 2 * n + MOST_STATES + 2
    # A state or a table changes for every state that is lost, at most.
    steps = sum(cardinalities) + sum(cardinalities[v] for scope in scopes for v in scope) + n + m + 2
    return SearchState(
        factors_at=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        factors=numbers[np.argsort(owners, kind="stable")],
        ranks=np.zeros(n, dtype=np.int32),
        positions=np.zeros(n, dtype=np.int32),
        indicators=np.array(indicators, dtype=np.int32),
        states=np.array([(1 << size) - 1 for size in cardinalities], dtype=np.uint64),
        tables=np.full(m, NUMBER, dtype=np.int32),
        trail=np.zeros(steps, dtype=np.int64),
        trail_states=np.zeros(steps, dtype=np.uint64),
        queue=np.zeros(n, dtype=np.int32),
        queued=np.zeros(n, dtype=np.bool_),
        fixed=np.zeros(n, dtype=np.int32),
        marks=np.zeros(n, dtype=np.int64),
        factor_marks=np.zeros(m, dtype=np.int64),
        frames=np.zeros((n + 2, COLUMNS), dtype=np.int64),
        keys=np.zeros((n + 2, 2), dtype=np.uint64),
        left=np.zeros(n + 2, dtype=np.uint64),
        weights=np.zeros(n + 2),
        members=np.zeros(room, dtype=np.int32),
        components=np.zeros((room, COMPONENT), dtype=np.int64),
        component_keys=np.zeros((room, 2), dtype=np.uint64),
        parts=np.zeros((room, 2), dtype=np.int64),
        levels=np.zeros(room, dtype=np.int64),
        terms=np.zeros(room, dtype=np.int32),
        term_weights=np.zeros(room),
        cache_keys=np.zeros((1 << 12, 2), dtype=np.uint64),
        cache_nodes=np.zeros(1 << 12, dtype=np.int32),
        cache_weights=np.zeros(1 << 12),
        counts=np.zeros(COUNTS, dtype=np.int64),
        numbers=np.array([1.0, 0.0, 0.0]),
    )


def progress(state: SearchState) -> float:
    """Return about which part of a search is done, as if all branches and components took the same."""
    done, share, frames = 0.0, 1.0, state.frames
    for top in range(int(state.counts[FRAMES])):
        frame = frames[top]
        if top:
            share /= float(frame[TOTAL])
            done += share * float(frame[TOTAL] - int(state.left[top]).bit_count() - frame[OPEN])
        if frame[OPEN]:
            end = frames[top + 1, COMPONENTS_AT] if top + 1 < state.counts[FRAMES] else state.counts[COMPONENTS]
            count = max(1, int(end - frame[COMPONENTS_AT]))
            done += share * float(frame[NEXT] - frame[COMPONENTS_AT]) / count
            share /= count
    return done


def with_room(tables: TableStore, state: SearchState, nodes: NodeStore) -> tuple[TableStore, SearchState, NodeStore]:
    """Return all three with room for what a step may need; what is full has twice of it."""
    n = len(state.ranks)
    made: dict[str, npt.NDArray[Any]] = {}
    for name, count in GROWING.items():
        array = getattr(state, name)
        while int(state.counts[count]) + n + MOST_STATES + 2 > len(array):
            array = larger(array)
        made[name] = array
    state = state._replace(**made)
    if 2 * (int(state.counts[CACHED]) + 1) > len(state.cache_nodes):
        size = 2 * len(state.cache_nodes)
        keys, found, weights = np.zeros((size, 2), dtype=np.uint64), np.zeros(size, dtype=np.int32), np.zeros(size)
        refill_cache(state, keys, found, weights)
        state = state._replace(cache_keys=keys, cache_nodes=found, cache_weights=weights)
    return with_table_room(tables), state, with_node_room(nodes, *node_needs(state))


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
    if not _narrow(state, variable, ONE << np.uint64(observed)):
        state.numbers[LOG] = -math.inf
    state.counts[TRAIL] = 0


@loops
def propagate_root(tables: Any, state: Any) -> Any:
    """Propagate what factors and evidence rule out; return False where it has to be called again, with more room.

    The log of the root is -inf where nothing is possible.
    """
    state.numbers[FACTOR], state.numbers[TAKEN] = 1.0, 0.0
    found = _propagate(tables, state)
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
        state.members[v] = v
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
def search(tables: Any, state: Any, nodes: Any, most: int) -> Any:
    """Search until the circuit is there: DONE, or FULL, PAUSED at a number of decisions, UNDERFLOW."""
    counts = state.counts
    while True:
        if not _has_room(tables, state, nodes):
            return FULL
        top = counts[FRAMES] - 1
        frame = state.frames[top]
        if frame[OPEN] and frame[NEXT] < counts[COMPONENTS]:
            c = frame[NEXT]
            one, two = state.component_keys[c, 0], state.component_keys[c, 1]
            place = _place(state.cache_keys, one, two)
            if state.cache_keys[place, 0] == one and state.cache_keys[place, 1] == two:
                counts[HITS] += 1
                _add(state, state.components[c, BEST], state.cache_nodes[place], state.cache_weights[place])
            elif counts[DECISIONS] >= most:
                return PAUSED
            else:
                _decide(state, c)
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
            if not _branch(tables, state, nodes, top):
                return FULL
        else:
            _finish(state, nodes, top)


@inlined
def _has_room(tables: Any, state: Any, nodes: Any) -> Any:
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
    )


@part
def _decide(state: Any, component: int) -> None:
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


@part
def _branch(tables: Any, state: Any, nodes: Any, top: int) -> Any:
    """Try the next state of the top frame's variable; return False, with all as it was, where there is no room."""
    counts, frame = state.counts, state.frames[top]
    bit = state.left[top] & (~state.left[top] + ONE)
    state.numbers[FACTOR], state.numbers[TAKEN] = 1.0, 0.0
    counts[FIXED] = 0
    _narrow(state, frame[VARIABLE], bit)
    found = _propagate(tables, state)
    if found == FULL:
        _undo(state, frame[TRAIL_AT])
        return False
    state.left[top] ^= bit
    if found == DEAD:
        counts[DEAD_ENDS] += 1
        _undo(state, frame[TRAIL_AT])
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
    for i in range(frame[FROM], frame[TO]):
        v = state.members[i]
        if state.marks[v] == stamp or not is_several(state.states[v]):
            continue
        state.marks[v] = stamp
        start = counts[MEMBERS]
        _reach(tables, state, v, stamp)
        if counts[MEMBERS] - start == 1 and state.component_keys[counts[COMPONENTS], 0] == np.uint64(0):
            counts[MEMBERS] = start
            _put_free(state, nodes, v, top)
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
def _reach(tables: Any, state: Any, variable: int, stamp: int) -> None:
    """Write the component of a variable behind the others: members, key and the variable to decide."""
    counts, members = state.counts, state.members
    start, best, rank = counts[MEMBERS], np.int64(variable), np.int64(-1)
    members[start] = variable
    at, end, one, two = start, start + 1, np.uint64(0), np.uint64(0)
    while at < end:
        v = members[at]
        at += 1
        if state.ranks[v] > rank:
            best, rank = np.int64(v), np.int64(state.ranks[v])
        for place in range(state.factors_at[v], state.factors_at[v + 1]):
            f = state.factors[place]
            table = state.tables[f]
            if table < 0 or state.factor_marks[f] == stamp:
                continue
            first, last, has = tables.axes_at[table], tables.axes_at[table + 1], False
            for axis in range(first, last):
                has |= tables.variables[axis] == v
            if not has:
                continue
            state.factor_marks[f] = stamp
            one += tables.keys[table, 0]
            two += tables.keys[table, 1]
            for axis in range(first, last):
                u = tables.variables[axis]
                if state.marks[u] != stamp:
                    state.marks[u] = stamp
                    members[end] = u
                    end += 1
    counts[MEMBERS] = end
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
def _add(state: Any, variable: int, node: int, weight: float) -> None:
    """Multiply what came of the next component into the top frame's branch, which ends where that is nothing."""
    top = state.counts[FRAMES] - 1
    frame = state.frames[top]
    if node == NOTHING:
        state.counts[DEAD_ENDS] += 1
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
    _undo(state, frame[TRAIL_AT])
    counts[PARTS], counts[MEMBERS], counts[COMPONENTS] = frame[PARTS_AT], frame[MEMBERS_AT], frame[COMPONENTS_AT]
    frame[OPEN] = 0


@part
def _finish(state: Any, nodes: Any, top: int) -> None:
    """Take the top frame, all states of whose variable are done, off; its sum goes to the frame below."""
    counts, frame = state.counts, state.frames[top]
    first = frame[TERMS_AT]
    count, node, weight = counts[TERMS] - first, np.int64(NOTHING), 1.0
    if count == 1:
        node, weight = np.int64(state.terms[first]), state.term_weights[first]
    elif count > 1:
        node = total(nodes, state.terms[first:], state.term_weights[first:], count)
    counts[TERMS] = first
    place = _place(state.cache_keys, state.keys[top, 0], state.keys[top, 1])
    state.cache_keys[place, 0], state.cache_keys[place, 1] = state.keys[top, 0], state.keys[top, 1]
    state.cache_nodes[place], state.cache_weights[place] = node, weight
    counts[CACHED] += 1
    counts[FRAMES] = top
    _add(state, frame[VARIABLE], node, weight)


@inlined
def _narrow(state: Any, variable: int, states: Any) -> Any:
    """Leave a variable some states; return False where none of its own are among them."""
    left = state.states[variable] & states
    if left == state.states[variable]:
        return True
    at = state.counts[TRAIL]
    state.trail[at], state.trail_states[at] = variable, state.states[variable]
    state.counts[TRAIL] = at + 1
    state.states[variable] = left
    if left == np.uint64(0):
        return False
    if not is_several(left):
        state.fixed[state.counts[FIXED]] = variable
        state.counts[FIXED] += 1
    if not state.queued[variable]:
        state.queued[variable] = True
        state.queue[state.counts[QUEUE]] = variable
        state.counts[QUEUE] += 1
    return True


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
        if not _narrow(state, tables.narrowed[i], tables.narrowed_to[i]):
            return False
    return True


@part
def _propagate(tables: Any, state: Any) -> Any:
    """Narrow tables to the states of queued variables, until none is left: ALIVE, DEAD, or FULL for want of room."""
    counts = state.counts
    while counts[QUEUE] > 0:
        counts[QUEUE] -= 1
        v = np.int64(state.queue[counts[QUEUE]])
        state.queued[v] = False
        for place in range(state.factors_at[v], state.factors_at[v + 1]):
            factor = np.int64(state.factors[place])
            table = np.int64(state.tables[factor])
            if table < 0:
                continue
            first, axis = tables.axes_at[table], np.int64(-1)
            for a in range(first, tables.axes_at[table + 1]):
                if tables.variables[a] == v:
                    axis = a - first
            if axis < 0:
                continue
            support = tables.supports[first + axis]
            left = state.states[v] & support
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
                _forget_queue(state)
                return DEAD
    return ALIVE


@inlined
def _forget_queue(state: Any) -> None:
    for i in range(state.counts[QUEUE]):
        state.queued[state.queue[i]] = False
    state.counts[QUEUE] = 0


@inlined
def _undo(state: Any, until: int) -> None:
    """Take back what changed since the trail had a length."""
    counts, n = state.counts, state.ranks.size
    for at in range(counts[TRAIL] - 1, until - 1, -1):
        what = state.trail[at]
        if what < n:
            state.states[what] = state.trail_states[at]
        else:
            state.tables[what - n] = np.int64(state.trail_states[at]) - 1
    counts[TRAIL] = until
    _forget_queue(state)
