"""States that the evidence of a row leaves possible, by arc consistency over the zeros of the network (Numba).

Main function: `narrow`, called by `propagate` for every row before its tree is planned. A state is dropped when some
factor has no entry above zero for it and possible states of the factor's other variables (Mackworth 1977, his third
algorithm, for factors of any length). What is dropped has probability 0, so nothing is lost; tables of what is left are
smaller, and a variable with one possible state is cut out as an observed one is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import inlined, lowest_bit, part
from junctor_kernels.orders.greedy import weights_of
from junctor_kernels.row_trees.plan import MOST_AXES, Factors

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

BITS, LOG_BITS = 64, 6
# A factor without zeros, or with more variables than trees have axes: nothing follows from it.
NO_ZEROS = -1
# Columns of `Domains.variables`: first state in `states`, number of possible ones, the only one (-1: several), log2 of
# their number for `orders.greedy`, whether the variable is in `Domains.changed`.
FIRST_STATE, STATES, KNOWN, WEIGHT, IS_CHANGED, COLUMNS = range(6)
# Rows of `Domains.axes`.
STEP, STATE, VARIABLE = range(3)
# Entries of `Domains.counts`: variables that have changed, place of the first factor in the queue, factors in it, and
# what is known without evidence.
CHANGED, HEAD, WAITING, BEFORE, COUNTS = range(5)
# What is known without evidence: nothing yet, all of it, that some variable has no state.
UNKNOWN, FOUND, CONTRADICTION = range(3)
# Typed: mixed with signed integers, Numba would compute in doubles.
NOTHING, BIT, ALL = np.uint64(0), np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF)
# Unsigned indices, for which Numba omits the test for negative ones, a fourth of the time of a look at a factor.
index = np.uint64


class ZeroMasks(NamedTuple):
    """Where the tables of a network are above zero.

    places: int64 [factors], offset of a factor in `above`, or NO_ZEROS.
    widest: int64 [factors], the place in `Factors.scopes` of a factor's variable with most states.
    steps: int64, parallel to `Factors.scopes`, words of `above` to the next state; 0 for the variable with most states.
    above: uint64, for each configuration of a factor's other variables, the states of that one above zero.
    words: int64 [variables + 1], words of the states of all variables before.
    starts: int64 [variables + 1]; variable v is in the factors lists[starts[v]:starts[v + 1]], of those with zeros.
    lists: int64.
    weights: int64, of `orders.greedy.weights_of`, for each number of states.
    """

    places: Ints
    widest: Ints
    steps: Ints
    above: Words
    words: Ints
    starts: Ints
    lists: Ints
    weights: Ints


class Domains(NamedTuple):
    """Possible states of the variables of a row; memory of a thread.

    possible: uint64 [words], states as bits.
    before: uint64 [words], the same without evidence.
    supported: uint64 [words], of the variables of one factor.
    states: int64, possible states of each variable, ascending.
    variables: int64 [COLUMNS, variables].
    means: float64 [variables], number of possible states.
    changed: int64 [variables], those with fewer states than without evidence, or not listed since a row that had fewer.
    queue: int64 [factors], those to be looked at.
    queued: bool [factors].
    axes: int64 [3, MOST_AXES], of one factor: words to the next state, state, variable.
    counts: int64 [COUNTS].
    """

    possible: Words
    before: Words
    supported: Words
    states: Ints
    variables: Ints
    means: npt.NDArray[np.float64]
    changed: Ints
    queue: Ints
    queued: npt.NDArray[np.bool_]
    axes: Ints
    counts: Ints


def zero_masks_of(factors: Factors) -> ZeroMasks:
    """Return memory for the masks of a network, which `narrow` fills at its first row.

    factors: with tables in C order, one after the other.
    """
    lengths, entries = np.diff(factors.starts), np.diff(factors.places)
    words = np.cumsum([0, *-(-factors.cards // BITS)], dtype=np.int64)
    count = len(lengths)
    chosen = np.zeros(count, dtype=np.bool_)
    if count:
        has_zeros = np.minimum.reduceat(factors.values, factors.places[:-1]) == 0
        chosen = has_zeros & (lengths > 0) & (lengths <= MOST_AXES)
    # The last of those with as many states: its entries lie closest.
    widest, order = np.zeros(count, dtype=np.int64), np.arange(len(factors.scopes))
    if chosen.any():
        keys = factors.cards[factors.scopes] * len(order) + order
        widest[lengths > 0] = np.maximum.reduceat(keys, factors.starts[:-1][lengths > 0]) % len(order)
    wide = factors.scopes[widest[chosen]]
    sizes = entries[chosen] // factors.cards[wide] * np.diff(words)[wide]
    places = np.full(count, NO_ZEROS, dtype=np.int64)
    places[chosen] = np.cumsum(sizes) - sizes
    # In the order of variables, then of factors.
    kept = np.repeat(chosen, lengths)
    scopes, members = factors.scopes[kept], np.repeat(np.arange(count), lengths)[kept]
    return ZeroMasks(
        places=places,
        widest=widest,
        steps=_steps_of(factors, widest, words),
        above=np.zeros(int(sizes.sum()), dtype=np.uint64),
        words=words,
        starts=np.cumsum([0, *np.bincount(scopes, minlength=len(factors.cards))], dtype=np.int64),
        lists=members[np.argsort(scopes, kind="stable")],
        weights=np.append(0, weights_of(np.arange(1, factors.cards.max(initial=1) + 1, dtype=np.float64))),
    )


def _steps_of(factors: Factors, widest: Ints, words: Ints) -> Ints:
    """Return the words to the next state of each variable of each factor; `words`: of all variables before."""
    owners = np.repeat(np.arange(len(widest)), np.diff(factors.starts))
    wide = factors.scopes[widest[owners]] if len(factors.scopes) else owners
    place = np.arange(len(owners))
    # In C order: what comes before the widest has its states within.
    inside = np.where(place < widest[owners], factors.strides // factors.cards[wide], factors.strides)
    return np.where(place == widest[owners], 0, inside * np.diff(words)[wide])


def domains_for(factors: Factors, zeros: ZeroMasks) -> Domains:
    """Return memory for the possible states of a row."""
    variables, words, count = len(factors.cards), int(zeros.words[-1]), len(zeros.places)

    def ints(*shape: int) -> Ints:
        return np.zeros(shape, dtype=np.int64)

    domains = Domains(
        possible=np.zeros(words, dtype=np.uint64),
        before=np.zeros(words, dtype=np.uint64),
        supported=np.zeros(words, dtype=np.uint64),
        states=ints(int(factors.cards.sum())),
        variables=ints(COLUMNS, variables),
        means=np.zeros(variables),
        changed=ints(variables),
        queue=ints(count),
        queued=np.zeros(count, dtype=np.bool_),
        axes=ints(3, MOST_AXES),
        counts=ints(COUNTS),
    )
    domains.variables[FIRST_STATE] = np.cumsum(factors.cards) - factors.cards
    return domains


def room_bytes(cards: Sequence[int], factors: int) -> int:
    """Return the bytes of `Domains`, and of `ZeroMasks` but for the masks, which are no more than entries of tables."""
    words, variables = sum(-(-states // BITS) for states in cards), len(cards)
    domains = 3 * words + sum(cards) + (COLUMNS + 2) * variables + 2 * factors + 3 * MOST_AXES + COUNTS
    return 8 * (domains + 2 * factors + 2 * variables + max(cards, default=0) + 3)


@part
def narrow(
    factors: Any, zeros: Any, states: Any, soft: Any, likelihoods: Any, places: Any, position: Any, domains: Any
) -> bool:
    """Find the states that the evidence of a row leaves possible; return False if a variable has none: P(e) = 0.

    factors, zeros: of the network.
    states: int64 [variables], -1 for unobserved.
    soft: int64 [kinds], variables with likelihoods, or -1.
    likelihoods: float64 of the row, those of a kind from `places` on.
    position: int64 [variables], of a Tree: -1 for irrelevant ones.
    domains: written.
    """
    if domains.counts[BEFORE] == UNKNOWN:
        domains.counts[BEFORE] = FOUND if _without_evidence(factors, zeros, position, domains) else CONTRADICTION
    if domains.counts[BEFORE] == CONTRADICTION:
        return False
    for i in range(domains.counts[CHANGED]):
        v = domains.changed[i]
        for word in range(zeros.words[v], zeros.words[v + 1]):
            domains.possible[word] = domains.before[word]
    while domains.counts[WAITING]:
        # Left by a row that is impossible.
        _next(domains)
    supported = domains.supported
    for v in range(states.size):
        if states[v] < 0:
            continue
        for word in range(zeros.words[v], zeros.words[v + 1]):
            supported[word] = NOTHING
        _add(zeros, supported, v, states[v])
        if not _is_possible(zeros, domains.possible, v, states[v]):
            return False
        _keep(zeros, domains, v, -1)
    for kind in range(soft.size):
        v = soft[kind]
        if v < 0:
            continue
        for word in range(zeros.words[v], zeros.words[v + 1]):
            supported[word] = NOTHING
        for state in range(factors.cards[v]):
            if likelihoods[places[kind] + state] > 0.0 and _is_possible(zeros, domains.possible, v, state):
                _add(zeros, supported, v, state)
        if not _keep(zeros, domains, v, -1):
            return False
    if not _narrowed(factors, zeros, position, domains, False):
        return False
    _list_changed(zeros, domains)
    return True


@part
def _without_evidence(factors: Any, zeros: Any, position: Any, domains: Any) -> bool:
    """Find the zeros, and the states that are possible without evidence; return False if a variable has none."""
    for factor in range(zeros.places.size):
        if zeros.places[factor] != NO_ZEROS:
            _find_zeros(factors, zeros, factor)
    for v in range(factors.cards.size):
        for state in range(factors.cards[v]):
            _add(zeros, domains.possible, v, state)
    for factor in range(zeros.places.size):
        if zeros.places[factor] != NO_ZEROS:
            _queue(domains, factor)
    is_possible = _narrowed(factors, zeros, position, domains, True)
    for word in range(domains.possible.size):
        domains.before[word] = domains.possible[word]
    for v in range(factors.cards.size):
        _list_states(zeros, domains, v)
        domains.variables[IS_CHANGED, v] = 0
    domains.counts[CHANGED] = 0
    return bool(is_possible)


@part
def _find_zeros(factors: Any, zeros: Any, factor: int) -> None:
    """Write the states above zero of a factor's variable with most states."""
    first, end, widest = factors.starts[factor], factors.starts[factor + 1], zeros.widest[factor]
    states, stride, line = factors.cards[factors.scopes[widest]], factors.strides[widest], zeros.places[factor]
    for configuration in range((factors.places[factor + 1] - factors.places[factor]) // states):
        at, rest = factors.places[factor], configuration
        for place in range(end - 1, first - 1, -1):
            if place != widest:
                cards = factors.cards[factors.scopes[place]]
                at += rest % cards * factors.strides[place]
                rest //= cards
        for start in range(0, states, BITS):
            word = NOTHING
            for state in range(start, min(states, start + BITS)):
                if factors.values[at + state * stride] > 0.0:
                    word |= BIT << np.uint64(state - start)
            # Once: other threads write the same.
            zeros.above[line] = word
            line += 1


@part
def _add(zeros: Any, words: Any, v: int, state: int) -> None:
    words[index(zeros.words[index(v)] + (state >> LOG_BITS))] |= BIT << np.uint64(state & (BITS - 1))


@part
def _is_possible(zeros: Any, words: Any, v: int, state: int) -> bool:
    return bool((words[zeros.words[v] + (state >> LOG_BITS)] >> np.uint64(state & (BITS - 1))) & BIT != NOTHING)


@part
def _list_states(zeros: Any, domains: Any, v: int) -> None:
    """List the possible states of a variable."""
    first, count = domains.variables[FIRST_STATE, v], 0
    for number in range(zeros.words[v + 1] - zeros.words[v]):
        word = domains.possible[index(zeros.words[v] + number)]
        while word != NOTHING:
            domains.states[index(first + count)] = number * BITS + lowest_bit(word)
            count += 1
            word &= word - BIT
    domains.variables[STATES, v] = count
    domains.variables[KNOWN, v] = domains.states[first] if count == 1 else -1
    domains.variables[WEIGHT, v], domains.means[v] = zeros.weights[count], float(count)


@part
def _list_changed(zeros: Any, domains: Any) -> None:
    """List the states of variables that this row or an earlier one has changed; forget those as without evidence."""
    count = domains.counts[CHANGED]
    domains.counts[CHANGED] = 0
    for i in range(count):
        v = domains.changed[i]
        _list_states(zeros, domains, v)
        same = True
        for word in range(zeros.words[v], zeros.words[v + 1]):
            same &= domains.possible[word] == domains.before[word]
        domains.variables[IS_CHANGED, v] = not same
        domains.changed[domains.counts[CHANGED]] = v
        domains.counts[CHANGED] += not same


@part
def _queue(domains: Any, factor: int) -> None:
    """Append a factor to the queue, a ring, if it is not there."""
    if not domains.queued[index(factor)]:
        place = domains.counts[HEAD] + domains.counts[WAITING]
        domains.queue[index(place if place < domains.queue.size else place - domains.queue.size)] = factor
        domains.queued[index(factor)] = True
        domains.counts[WAITING] += 1


@part
def _next(domains: Any) -> int:
    """Take the first factor of the queue."""
    head = domains.counts[HEAD]
    factor = domains.queue[index(head)]
    domains.counts[HEAD] = head + 1 if head + 1 < domains.queue.size else 0
    domains.counts[WAITING] -= 1
    domains.queued[index(factor)] = False
    return int(factor)


@part
def _keep(zeros: Any, domains: Any, v: int, source: int) -> bool:
    """Keep the supported states of a variable only, and queue its factors but `source` if these are fewer.

    Returns False if there are none.
    """
    if _is_complete(zeros, domains, v):
        return True
    left = NOTHING
    for word in range(index(zeros.words[index(v)]), index(zeros.words[index(v + 1)])):
        domains.possible[word] = domains.supported[word]
        left |= domains.supported[word]
    if domains.variables[IS_CHANGED, index(v)] == 0:
        domains.variables[IS_CHANGED, index(v)] = 1
        domains.changed[index(domains.counts[CHANGED])] = v
        domains.counts[CHANGED] += 1
    for at in range(index(zeros.starts[index(v)]), index(zeros.starts[index(v + 1)])):
        if zeros.lists[at] != source:
            _queue(domains, zeros.lists[at])
    return bool(left != NOTHING)


@part
def _narrowed(factors: Any, zeros: Any, position: Any, domains: Any, every: bool) -> bool:
    """Look at queued factors until all are consistent; return False if a variable has no state left.

    every: whether factors count that are irrelevant to the row.
    """
    while domains.counts[WAITING]:
        factor = _next(domains)
        # A factor of an irrelevant variable is 1 in total, whatever its parents are.
        if not every and factors.directed == 1 and position[factor] == -1:
            continue
        if _find_supported(factors, zeros, domains, factor):
            continue
        for at in range(index(factors.starts[index(factor)]), index(factors.starts[index(factor + 1)])):
            if not _keep(zeros, domains, factors.scopes[at], factor):
                return False
    return True


@inlined
def _find_supported(factors: Any, zeros: Any, domains: Any, factor: int) -> bool:
    """Find the states that a factor supports; return True if these are all possible ones of its variables."""
    # Inlined, as what only one place calls: a call copies every array of every tuple.
    first, end = factors.starts[index(factor)], factors.starts[index(factor + 1)]
    possible, supported, axes = domains.possible, domains.supported, domains.axes
    widest = factors.scopes[index(zeros.widest[index(factor)])]
    count, line = 0, zeros.places[index(factor)]
    # Axes from the innermost on, of variables with several states; each starts at its first possible one.
    for at in range(end - 1, first - 1, -1):
        v, step, axis = factors.scopes[index(at)], zeros.steps[index(at)], index(count)
        state, is_known = _start(zeros, possible, supported, v, step)
        axes[STEP, axis], axes[STATE, axis], axes[VARIABLE, axis] = step, state, v
        line += step * state
        # Without a branch: which variables have one state is hard to predict.
        count += (step > 0) & (not is_known)
    if not count:
        _add_line(zeros, possible, supported, line, widest)
        return bool(_is_complete(zeros, domains, widest))
    # All states of the innermost axis are met in a line.
    inner, step = axes[VARIABLE, 0], axes[STEP, 0]
    line -= step * axes[STATE, 0]
    complete = first
    while True:
        if _add_lines(zeros, possible, supported, line, step, inner, widest):
            for i in range(BIT, index(count)):
                _add(zeros, supported, axes[VARIABLE, i], axes[STATE, i])
            # What is supported only grows.
            while complete < end and _is_complete(zeros, domains, factors.scopes[index(complete)]):
                complete += 1
            if complete == end:
                return True
        i = 1
        while i < count:
            axis = index(i)
            v, state = axes[VARIABLE, axis], axes[STATE, axis]
            following = _next_state(zeros, possible, v, state + 1)
            is_last = following < 0
            if is_last:
                following = _next_state(zeros, possible, v, 0)
            axes[STATE, axis] = following
            line += axes[STEP, axis] * (following - state)
            if not is_last:
                break
            i += 1
        if i == count:
            return False


@part
def _start(zeros: Any, possible: Any, supported: Any, v: int, step: int) -> tuple[int, bool]:
    """Return the first state of a variable of a factor, and whether it is the only one.

    With an only state the widest variable has support, or nothing has; of any other variable, nothing has it yet.
    """
    first, count = zeros.words[index(v)], zeros.words[index(v + 1)] - zeros.words[index(v)]
    word = possible[index(first)]
    is_known = (word & (word - BIT)) == NOTHING
    supported[index(first)] = word if is_known & (step > 0) else NOTHING
    if count == 1:
        return lowest_bit(word), is_known
    state = _next_state(zeros, possible, v, 0)
    is_known = _next_state(zeros, possible, v, state + 1) < 0
    for place in range(first, first + count):
        supported[place] = possible[place] if is_known & (step > 0) else NOTHING
    return state, is_known


@part
def _next_state(zeros: Any, words: Any, v: int, state: int) -> int:
    """Return the first state of a variable from `state` on, or -1."""
    number, mask = state >> LOG_BITS, ALL << np.uint64(state & (BITS - 1))
    first, count = zeros.words[index(v)], zeros.words[index(v + 1)] - zeros.words[index(v)]
    while number < count:
        word = words[index(first + number)] & mask
        if word != NOTHING:
            return int(number * BITS + lowest_bit(word))
        number, mask = number + 1, ALL
    return -1


@part
def _add_line(zeros: Any, possible: Any, supported: Any, line: int, widest: int) -> None:
    """Add the states of the widest variable that one configuration of the others supports."""
    for word in range(index(zeros.words[index(widest)]), index(zeros.words[index(widest + 1)])):
        supported[word] = zeros.above[index(line)] & possible[word]
        line += 1


@part
def _add_lines(zeros: Any, possible: Any, supported: Any, line: int, step: int, inner: int, widest: int) -> bool:
    """Add the states of the widest and of another variable that support each other; return False without any.

    line, step: words of the other one's first state, and to the next one.
    """
    ever = NOTHING
    for place in range(index(zeros.words[index(inner)]), index(zeros.words[index(inner + 1)])):
        at = line
        for word in range(index(zeros.words[index(widest)]), index(zeros.words[index(widest + 1)])):
            states, left, found, other = possible[word], possible[place], NOTHING, NOTHING
            while left != NOTHING:
                bit = left & (NOTHING - left)
                above = zeros.above[index(at + step * lowest_bit(left))] & states
                found |= above
                other |= bit if above != NOTHING else NOTHING
                left ^= bit
            supported[word] |= found
            supported[place] |= other
            ever |= found
            at += 1
        line += step << LOG_BITS
    return bool(ever != NOTHING)


@part
def _is_complete(zeros: Any, domains: Any, v: int) -> bool:
    """Return True if all possible states of a variable are supported."""
    same = True
    for word in range(index(zeros.words[index(v)]), index(zeros.words[index(v + 1)])):
        same &= domains.possible[word] == domains.supported[word]
    return same
