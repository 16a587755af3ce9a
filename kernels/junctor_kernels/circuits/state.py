"""State of a search for a circuit: what is possible, on the way to the branch in hand, and decisions under way (Numba).

Main class: SearchState; main functions: `narrow` and `undo`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.circuits.tables import MOST_STATES, NUMBER, Floats, Ints, ShortInts, Words, is_several
from junctor_kernels.cpu.jit import inlined

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
# next component of its branch, whether there is a branch, and states in all; components that were done and nogoods that
# had acted before the branch, and those that had before the frame.
(
    VARIABLE,
    FROM,
    TO,
    TRAIL_AT,
    MEMBERS_AT,
    COMPONENTS_AT,
    PARTS_AT,
    TERMS_AT,
    NEXT,
    OPEN,
    TOTAL,
    LOGGED_AT,
    FIRED_AT,
    FIRED_BEFORE,
    COLUMNS,
) = range(15)
# Columns of `SearchState.components`.
START, END, BEST, COMPONENT = range(4)


class SearchState(NamedTuple):
    """A search under way.

    factors_at, factors: int64 [n + 1] and int32: the factors of each variable.
    ranks: int32 [n], the variable of the largest one is decided first.
    positions: int32 [n], places in which products are shared.
    indicators: int32 [n], node of the first state of each variable; -1 for those without.
    states: uint64 [n], that are possible.
    tables: int32 [m], the reduced table of each factor; NUMBER for none.
    trail, trail_states: int64 and uint64, what changes on the way to the branch in hand, and what it was before.
    trail_left, trail_reasons, trail_before: of variables: states since, why, and the change of the same one before.
    latest: int64 [n], last change of a variable, -1 for none.
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
    trail_left: Words
    trail_reasons: Ints
    trail_before: Ints
    latest: Ints
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
        trail_left=np.zeros(steps, dtype=np.uint64),
        trail_reasons=np.zeros(steps, dtype=np.int64),
        trail_before=np.zeros(steps, dtype=np.int64),
        latest=np.full(n, -1, dtype=np.int64),
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


@inlined
def narrow(state: Any, variable: int, states: Any, reason: int) -> Any:
    """Leave a variable some states; return False, with all as it was, where none of its own are among them.

    reason: DECIDED, a factor or a nogood (`junctor_kernels.circuits.nogoods`).
    """
    left = state.states[variable] & states
    if left == state.states[variable]:
        return True
    at = state.counts[TRAIL]
    if left == np.uint64(0):
        return False
    state.trail[at], state.trail_states[at] = variable, state.states[variable]
    state.trail_left[at], state.trail_reasons[at], state.trail_before[at] = left, reason, state.latest[variable]
    state.latest[variable] = at
    state.counts[TRAIL] = at + 1
    state.states[variable] = left
    if not is_several(left):
        state.fixed[state.counts[FIXED]] = variable
        state.counts[FIXED] += 1
    if not state.queued[variable]:
        state.queued[variable] = True
        state.queue[state.counts[QUEUE]] = variable
        state.counts[QUEUE] += 1
    return True


@inlined
def forget_queue(state: Any) -> None:
    """Take all variables out of the queue."""
    for i in range(state.counts[QUEUE]):
        state.queued[state.queue[i]] = False
    state.counts[QUEUE] = 0


@inlined
def undo(state: Any, until: int) -> None:
    """Take back what changed since the trail had a length."""
    counts, n = state.counts, np.uint64(state.ranks.size)
    for left in range(counts[TRAIL] - until):
        at = np.uint64(counts[TRAIL] - 1 - left)
        what = np.uint64(state.trail[at])
        if what < n:
            state.states[what] = state.trail_states[at]
            state.latest[what] = state.trail_before[at]
        else:
            state.tables[what - n] = np.int64(state.trail_states[at]) - 1
    counts[TRAIL] = until
    forget_queue(state)
