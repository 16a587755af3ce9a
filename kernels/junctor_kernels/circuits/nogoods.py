"""Nogoods of a search: states of variables that leave nothing together, learned from its dead ends (Numba).

Main functions: `learn`, `pending` and `visited`. The first unique implication point of a conflict (Marques-Silva and
Sakallah, GRASP, 1999), over sets of states (Katsirelos and Bacchus, Generalized nogoods in CSPs, 2005), explained by
the tables before the search. A literal is true where a variable has none but the states of its set. That a nogood held
says nothing about a component alone: others beside it may have been what was impossible.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.circuits.state import FRAMES, TRAIL, TRAIL_AT, SearchState, narrow
from junctor_kernels.circuits.tables import MOST_AXES, ONE, Ints, ShortInts, Words, grown, states_of
from junctor_kernels.cpu.jit import inlined, part

# Entries of `Nogoods.counts`.
NOGOODS, LITERALS, PENDING, LISTED, OPEN_LITERALS, FIRED, LOGGED, BRANCHES, NOGOOD_COUNTS = range(9)
# Why a variable has lost states: a decision, a factor by its number, or nogood g by NOGOOD - g. No conflict is DECIDED.
DECIDED, NOGOOD = -1, -2
# Literals of a nogood that is kept, and entries of a table of which fewer states are looked for that explain as much.
MOST_LITERALS, MOST_ENTRIES = 100, 4096
NO_STATES = np.uint64(0)
# Whether a literal is part of an explanation.
UNASKED, RESOLVED, ASKED = range(3)


class Nogoods(NamedTuple):
    """What was learned, one after the other, and room for an explanation.

    roots: int32 [m], the table of each factor before the search.
    initial: uint64 [n], states before the search.
    starts: int64, the first literal of each nogood.
    variables, states: int32 and uint64, of literals.
    watched, following: int64 [nogoods, 2], two literals that are not true, and who watches the same variable next.
    heads: int64 [n], 2 * nogood + watch of the last one that watches a variable, -1 for none.
    waiting: int64, nogoods with at most one literal that is not true.
    needed, asked, listed: uint64, uint8 and int32 [n], the explanation in the making.
    owners: int64 [n], the last branch of whose component a variable was.
    log: uint64 [rows, 2], keys of components in the order in which they were done.
    sets, bits: uint64, states of the axes of a table.
    counts: int64 [NOGOOD_COUNTS].
    """

    roots: ShortInts
    initial: Words
    starts: Ints
    variables: ShortInts
    states: Words
    watched: Ints
    following: Ints
    heads: Ints
    waiting: Ints
    needed: Words
    asked: npt.NDArray[np.uint8]
    listed: ShortInts
    owners: Ints
    log: Words
    sets: Words
    bits: Words
    counts: Ints


def no_nogoods(state: SearchState) -> Nogoods:
    """Return room for nogoods of a search that is about to begin."""
    n, few = len(state.ranks), 1024
    return Nogoods(
        roots=state.tables.copy(),
        initial=state.states.copy(),
        starts=np.zeros(few, dtype=np.int64),
        variables=np.zeros(few, dtype=np.int32),
        states=np.zeros(few, dtype=np.uint64),
        watched=np.zeros((few, 2), dtype=np.int64),
        following=np.zeros((few, 2), dtype=np.int64),
        heads=np.full(n, -1, dtype=np.int64),
        waiting=np.zeros(few, dtype=np.int64),
        needed=np.zeros(n, dtype=np.uint64),
        asked=np.zeros(n, dtype=np.uint8),
        listed=np.zeros(n, dtype=np.int32),
        owners=np.zeros(n, dtype=np.int64),
        log=np.zeros((few, 2), dtype=np.uint64),
        sets=np.zeros(MOST_AXES, dtype=np.uint64),
        bits=np.zeros(MOST_AXES, dtype=np.uint64),
        counts=np.zeros(NOGOOD_COUNTS, dtype=np.int64),
    )


# Arrays that grow, with the count of what they hold.
GROWING = {
    "starts": NOGOODS,
    "watched": NOGOODS,
    "following": NOGOODS,
    "waiting": NOGOODS,
    "variables": LITERALS,
    "states": LITERALS,
    "log": LOGGED,
}


def with_nogood_room(nogoods: Nogoods) -> Nogoods:
    """Return nogoods with room for one more, and for what a step may log; what is full has twice of it."""
    return nogoods._replace(**grown(nogoods, GROWING, len(nogoods.heads) + 2))


@inlined
def _before(state: Any, variable: int, position: int) -> Any:
    """Return the states that a variable had before a position of the trail."""
    at, states = state.latest[variable], state.states[variable]
    while at >= position:
        states = state.trail_states[at]
        at = state.trail_before[at]
    return states


@part
def _earliest(state: Any, variable: int, wanted: Any) -> Any:
    """Return the position of the trail since which a variable has none but some states."""
    at, found = state.latest[variable], np.int64(-1)
    while at >= 0:
        if state.trail_left[at] & ~wanted == NO_STATES:
            found = at
        elif found >= 0:
            break
        at = state.trail_before[at]
    return found


@part
def _ask(state: Any, nogoods: Any, variable: int, wanted: Any, level: int) -> None:
    """Add a literal to the explanation; level: position of the trail where the decision's branch begins."""
    if nogoods.initial[variable] & ~wanted == NO_STATES:
        return
    counts = nogoods.counts
    if nogoods.asked[variable] == ASKED:
        if _before(state, variable, level) & ~nogoods.needed[variable] != NO_STATES:
            counts[OPEN_LITERALS] -= 1
        wanted &= nogoods.needed[variable]
    elif nogoods.asked[variable] == UNASKED:
        nogoods.listed[counts[LISTED]] = variable
        counts[LISTED] += 1
    nogoods.asked[variable], nogoods.needed[variable] = ASKED, wanted
    if _before(state, variable, level) & ~wanted != NO_STATES:
        counts[OPEN_LITERALS] += 1


@part
def _is_supported(tables: Any, table: int, nogoods: Any) -> Any:
    """Return True if a table has an entry above zero for states of `sets`."""
    first, axes = tables.axes_at[table], tables.axes_at[table + 1] - tables.axes_at[table]
    for a in range(axes):
        left, bits, at = tables.supports[first + a], NO_STATES, np.uint64(0)
        while left != NO_STATES:
            bit = left & (~left + ONE)
            left ^= bit
            if bit & nogoods.sets[a] != NO_STATES:
                bits |= ONE << at
            at += ONE
        nogoods.bits[a] = bits
    start = tables.values_at[table]
    for i in range(tables.values_at[table + 1] - start):
        if tables.values[start + i] > 0:
            rest, found = i, True
            for b in range(axes):
                a = axes - 1 - b
                count = states_of(tables.supports[first + a])
                if (nogoods.bits[a] >> np.uint64(rest % count)) & ONE == NO_STATES:
                    found = False
                    break
                rest //= count
            if found:
                return True
    return False


@part
def _explain_factor(
    tables: Any, state: Any, nogoods: Any, factor: int, position: int, variable: int, removed: Any, level: int
) -> None:
    """Ask for literals by which a factor takes states of a variable; of none, by which nothing is left of it."""
    table = np.int64(nogoods.roots[factor])
    first, axes = tables.axes_at[table], tables.axes_at[table + 1] - tables.axes_at[table]
    for a in range(axes):
        u = np.int64(tables.variables[first + a])
        nogoods.sets[a] = removed if u == variable else _before(state, u, position)
    if tables.values_at[table + 1] - tables.values_at[table] <= MOST_ENTRIES:
        tried = NO_STATES
        for _ in range(axes):
            # What was lost last is left out first.
            best, latest = np.int64(-1), np.int64(-1)
            for a in range(axes):
                u = np.int64(tables.variables[first + a])
                if u == variable or (tried >> np.uint64(a)) & ONE != NO_STATES:
                    continue
                if nogoods.sets[a] == nogoods.initial[u]:
                    continue
                at = _earliest(state, u, nogoods.sets[a])
                if at > latest:
                    best, latest = np.int64(a), at
            if best < 0:
                break
            tried |= ONE << np.uint64(best)
            kept = nogoods.sets[best]
            nogoods.sets[best] = nogoods.initial[tables.variables[first + best]]
            if _is_supported(tables, table, nogoods):
                nogoods.sets[best] = kept
    for a in range(axes):
        u = np.int64(tables.variables[first + a])
        if u != variable:
            _ask(state, nogoods, u, nogoods.sets[a], level)


@part
def _explain(
    tables: Any, state: Any, nogoods: Any, reason: int, position: int, variable: int, removed: Any, level: int
) -> None:
    """Ask for literals of a reason, but for that of the variable itself."""
    if reason >= 0:
        _explain_factor(tables, state, nogoods, reason, position, variable, removed, level)
        return
    nogood = NOGOOD - reason
    for i in range(nogoods.starts[nogood], nogoods.starts[nogood + 1]):
        if nogoods.variables[i] != variable:
            _ask(state, nogoods, np.int64(nogoods.variables[i]), nogoods.states[i], level)


@part
def learn(tables: Any, state: Any, nogoods: Any, conflict: int) -> None:
    """Learn a nogood from a conflict after a decision, with all as it was then.

    conflict: the factor of which nothing is left, or NOGOOD - g.
    """
    counts = nogoods.counts
    if state.counts[FRAMES] < 2:
        return
    counts[LISTED] = 0
    _explain(tables, state, nogoods, conflict, state.counts[TRAIL], np.int64(-1), NO_STATES, np.int64(0))
    at = np.int64(-1)
    for i in range(counts[LISTED]):
        v = np.int64(nogoods.listed[i])
        at = max(at, _earliest(state, v, nogoods.needed[v]))
    if at >= 0:
        # What nogoods took may leave nothing before the last decision acts.
        top = state.counts[FRAMES] - 1
        while state.frames[top, TRAIL_AT] > at:
            top -= 1
        _keep(state, nogoods, _implication_point(tables, state, nogoods, at, state.frames[top, TRAIL_AT]))
    for i in range(counts[LISTED]):
        nogoods.asked[nogoods.listed[i]] = UNASKED


@part
def _implication_point(tables: Any, state: Any, nogoods: Any, last: int, level: int) -> Any:
    """Replace literals of the last decision's branch by their reasons until one is left, and return its variable.

    last: position of the trail since which all literals are true.
    level: the one where the branch begins.
    """
    counts, at = nogoods.counts, last
    counts[OPEN_LITERALS] = 0
    for i in range(counts[LISTED]):
        v = np.int64(nogoods.listed[i])
        if _before(state, v, level) & ~nogoods.needed[v] != NO_STATES:
            counts[OPEN_LITERALS] += 1
    while True:
        v = state.trail[at]
        if v < state.ranks.size and nogoods.asked[v] == ASKED:
            needed = nogoods.needed[v]
            removed = state.trail_states[at] & ~needed
            if state.trail_left[at] & ~needed == NO_STATES and removed != NO_STATES:
                if counts[OPEN_LITERALS] == 1:
                    return v
                nogoods.asked[v] = RESOLVED
                counts[OPEN_LITERALS] -= 1
                _ask(state, nogoods, v, needed | removed, level)
                _explain(tables, state, nogoods, state.trail_reasons[at], at, v, removed, level)
        at -= 1


@part
def _keep(state: Any, nogoods: Any, point: int) -> None:
    """Write the explanation as a nogood, the literal of the unique implication point first."""
    counts = nogoods.counts
    start, g = counts[LITERALS], counts[NOGOODS]
    nogoods.variables[start], nogoods.states[start] = point, nogoods.needed[point]
    end, latest, second = start + 1, np.int64(-1), np.int64(-1)
    for i in range(counts[LISTED]):
        v = np.int64(nogoods.listed[i])
        if nogoods.asked[v] == ASKED and v != point:
            if end - start >= MOST_LITERALS:
                return
            nogoods.variables[end], nogoods.states[end] = v, nogoods.needed[v]
            at = _earliest(state, v, nogoods.needed[v])
            if at > latest:
                latest, second = at, end
            end += 1
    counts[LITERALS], counts[NOGOODS], nogoods.starts[g + 1] = end, g + 1, end
    nogoods.watched[g, 0], nogoods.watched[g, 1] = start, second
    if second >= 0:
        for k in range(2):
            v = np.int64(nogoods.variables[nogoods.watched[g, k]])
            nogoods.following[g, k] = nogoods.heads[v]
            nogoods.heads[v] = 2 * g + k
    nogoods.waiting[counts[PENDING]] = g
    counts[PENDING] += 1


@inlined
def _is_true(state: Any, nogoods: Any, literal: int) -> Any:
    return state.states[nogoods.variables[literal]] & ~nogoods.states[literal] == NO_STATES


@part
def _fire(state: Any, nogoods: Any, nogood: int, literal: int) -> None:
    """Take its states from the variable of the only literal that is not true, if it is in the component in hand."""
    v = np.int64(nogoods.variables[literal])
    if state.states[v] & nogoods.states[literal] != NO_STATES and nogoods.owners[v] == nogoods.counts[BRANCHES]:
        nogoods.counts[FIRED] += 1
        narrow(state, v, ~nogoods.states[literal], NOGOOD - nogood)


@part
def pending(state: Any, nogoods: Any) -> Any:
    """Let nogoods act that may have at most one literal that is not true; return the conflict, or DECIDED."""
    counts, i = nogoods.counts, 0
    while i < counts[PENDING]:
        g = nogoods.waiting[i]
        found, literal = 0, np.int64(-1)
        for j in range(nogoods.starts[g], nogoods.starts[g + 1]):
            if not _is_true(state, nogoods, j):
                found, literal = found + 1, np.int64(j)
                if found == 2:
                    break
        if found == 0:
            counts[FIRED] += 1
            return NOGOOD - g
        if found == 2:
            counts[PENDING] -= 1
            nogoods.waiting[i] = nogoods.waiting[counts[PENDING]]
            continue
        _fire(state, nogoods, g, literal)
        i += 1
    return np.int64(DECIDED)


@part
def visited(state: Any, nogoods: Any, variable: int) -> Any:
    """Let nogoods act that watch a variable which has lost states; return the conflict, or DECIDED."""
    link, previous = nogoods.heads[variable], np.int64(-1)
    while link >= 0:
        g, k = link >> 1, link & 1
        following = nogoods.following[g, k]
        literal, other = nogoods.watched[g, k], nogoods.watched[g, 1 - k]
        moved = False
        if _is_true(state, nogoods, literal):
            u = nogoods.variables[other]
            if state.states[u] & nogoods.states[other] != NO_STATES:
                for j in range(nogoods.starts[g], nogoods.starts[g + 1]):
                    if j != other and j != literal and not _is_true(state, nogoods, j):
                        w = np.int64(nogoods.variables[j])
                        nogoods.watched[g, k] = j
                        nogoods.following[g, k] = nogoods.heads[w]
                        nogoods.heads[w] = link
                        if previous < 0:
                            nogoods.heads[variable] = following
                        else:
                            nogoods.following[previous >> 1, previous & 1] = following
                        moved = True
                        break
                if not moved:
                    if _is_true(state, nogoods, other):
                        nogoods.counts[FIRED] += 1
                        return NOGOOD - g
                    _fire(state, nogoods, g, other)
        if not moved:
            previous = link
        link = following
    return np.int64(DECIDED)
