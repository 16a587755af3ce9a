"""Findings of impossible cases that are impossible together: on a factor, or below a message that is all zeros (Numba).

Main functions: `accuse_factors`, and for the cases that it leaves `accuse`, called by `possible` once the messages of a
block are there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from junctor_kernels.cpu.jit import gradual, loops, lowest_bit, part
from junctor_kernels.row_trees.case_words import ALL, BIT, BITS, IMPOSSIBLE, NOTHING, block_words
from junctor_kernels.row_trees.plan import ENTRIES, FACTOR, LEFT, ONES, PARENT, RIGHT, TABLES, UP

# Entries of a factor that are looked at for each case, rather than those of the case.
ENTRIES_A_CASE = 4


@gradual
@loops
def accuse_factors(
    supports: Any, findings: Any, begin: int, end: int, work: Any, some: Any, found: Any, culprits: Any
) -> None:
    """Mark the states of each case that leave zeros alone in a factor: of that with the fewest, of these the first.

    supports: of the network.
    findings: of all cases.
    begin, end: cases.
    work: int64 [3, cases], work array: the factor of each case, its states, and a set of axes of a factor.
    some: uint8, work array, entries of the largest factor.
    found: uint8 [cases], IMPOSSIBLE is written where there is such a factor.
    culprits: uint8 [cases, columns], written there.
    """
    factors, best, axes = supports.factors, work[0], work[2]
    best[begin:end], work[1, begin:end] = -1, factors.cards.size + 1
    for factor in range(factors.starts.size - 1):
        above = 0
        for place in range(factors.places[factor], factors.places[factor + 1]):
            above += supports.above[place]
        if above == factors.places[factor + 1] - factors.places[factor]:
            continue
        same = _write_axes(factors, findings, factor, begin, end, axes)
        # Of most factors all cases observe the same, and no states leave zeros alone.
        if same > 0 and _is_for_all(factors, factor, end - begin) and not _write_some(supports, factor, same, some):
            continue
        # Without a state it has zeros alone in every case or in none.
        if same != 0 or above == 0:
            for case in range(begin, end):
                if axes[case] > 0 or (axes[case] == 0 and above == 0):
                    _blame(supports, findings, factor, case, end, work, some)
    for case in range(begin, end):
        factor = best[case]
        if factor >= 0:
            found[case] = IMPOSSIBLE
            for at in range(factors.starts[factor], factors.starts[factor + 1]):
                v = factors.scopes[at]
                column = findings.column[v]
                if column >= 0 and findings.codes[column, case] < factors.cards[v]:
                    culprits[case, column] = 1


@part
def _write_axes(factors: Any, findings: Any, factor: int, begin: int, end: int, axes: Any) -> int:
    """Write the axes of a factor whose state each case observes, as bits; return them, -1 where cases differ."""
    first = factors.starts[factor]
    axes[begin:end] = 0
    for at in range(first, factors.starts[factor + 1]):
        column, size = findings.column[factors.scopes[at]], factors.cards[factors.scopes[at]]
        if column < 0:
            continue
        for case in range(begin, end):
            # Likelihoods are not looked at.
            axes[case] |= np.int64(findings.codes[column, case] < size) << (at - first)
    both, either = axes[begin], axes[begin]
    for case in range(begin, end):
        both &= axes[case]
        either |= axes[case]
    return int(both) if both == either else -1


@part
def _is_for_all(factors: Any, factor: int, cases: int) -> bool:
    """Return True if a look at all entries of a factor is worth it for so many cases."""
    return bool(factors.places[factor + 1] - factors.places[factor] <= ENTRIES_A_CASE * cases)


@part
def _blame(supports: Any, findings: Any, factor: int, first: int, end: int, work: Any, some: Any) -> None:
    """Blame a factor for the cases from the first one on that observe the same of its axes, as far as it has zeros.

    They have the axes -1 then.
    """
    factors, best, least, axes = supports.factors, work[0], work[1], work[2]
    same, start, cases, observed = axes[first], factors.starts[factor], 0, 0
    for at in range(start, factors.starts[factor + 1]):
        observed += same >> (at - start) & 1
    for case in range(first, end):
        cases += axes[case] == same
    place, is_for_all = factors.places[factor], _is_for_all(factors, factor, cases)
    if is_for_all and not _write_some(supports, factor, same, some):
        cases = 0
    for case in range(first, end):
        if axes[case] != same:
            continue
        axes[case] = -1
        if cases == 0 or observed >= least[case]:
            continue
        number, offset, others = 0, place, 1
        for at in range(start, factors.starts[factor + 1]):
            v = factors.scopes[at]
            if same >> (at - start) & 1:
                code = np.int64(findings.codes[findings.column[v], case])
                number, offset = number * factors.cards[v] + code, offset + code * factors.strides[at]
            else:
                others *= factors.cards[v]
        if not (some[number] if is_for_all else _has_some(supports, factor, same, offset, others)):
            best[case], least[case] = factor, observed


@part
def _write_some(supports: Any, factor: int, same: int, some: Any) -> bool:
    """Write for all states of some axes of a factor whether any entry is above zero; return whether there is none."""
    factors = supports.factors
    start, place, size = factors.starts[factor], factors.places[factor], 1
    for at in range(start, factors.starts[factor + 1]):
        if same >> (at - start) & 1:
            size *= factors.cards[factors.scopes[at]]
    some[:size] = 0
    for entry in range(factors.places[factor + 1] - place):
        if supports.above[place + entry]:
            number = 0
            for at in range(start, factors.starts[factor + 1]):
                if same >> (at - start) & 1:
                    card = factors.cards[factors.scopes[at]]
                    number = number * card + entry // factors.strides[at] % card
            some[number] = 1
    count = 0
    for number in range(size):
        count += some[number]
    return bool(count < size)


@part
def _has_some(supports: Any, factor: int, same: int, place: int, others: int) -> bool:
    """Return True if an entry of a factor with any states of other axes is above zero."""
    factors = supports.factors
    start = factors.starts[factor]
    for number in range(others):
        entry, rest = place, number
        for at in range(start, factors.starts[factor + 1]):
            if not same >> (at - start) & 1:
                card = factors.cards[factors.scopes[at]]
                entry += rest % card * factors.strides[at]
                rest //= card
        if supports.above[entry]:
            return True
    return False


@part
def accuse(factors: Any, findings: Any, begin: int, end: int, room: Any, found: Any, culprits: Any) -> None:
    """Mark the findings of each impossible case below a table whose message is all zeros, the one with the fewest."""
    tables, count, words = room.tree.nodes.tables, room.tree.nodes.counts[TABLES], block_words(end - begin)
    alive, weights, best = room.alive, room.weights, room.bases
    best[: end - begin] = ALL
    for number in range(count):
        _weigh(factors, room, number)
    for number in range(count - 1, -1, -1):
        _look(tables, room, words, number)
    # Few messages are all zeros in any case.
    for number in range(count):
        for w in range(words):
            dead = ~(alive[number, w] | room.beyond[w])
            while dead:
                case = w * BITS + lowest_bit(dead)
                dead &= dead - BIT
                if best[case] == ALL or weights[number] < weights[np.int64(best[case])]:
                    best[case] = number
    for case in range(begin, end):
        if found[case] == IMPOSSIBLE:
            _mark(factors, findings, case, np.int64(best[case - begin]), room, culprits[case])


@part
def _look(tables: Any, room: Any, words: int, number: int) -> None:
    """Write in which cases a message is not all zeros: in all in which that of its parent is not, and maybe more."""
    alive, arena, parent = room.alive, room.arena, tables[number, PARENT]
    for w in range(words):
        alive[number, w] = NOTHING if parent < 0 else alive[parent, w]
    place = tables[number, UP] * words
    for _ in range(tables[number, ENTRIES]):
        together = ALL
        for w in range(words):
            together &= alive[number, w]
        if together == ALL:
            return
        for w in range(words):
            alive[number, w] |= arena[place + w]
        place += words


@part
def _weigh(factors: Any, room: Any, number: int) -> None:
    """Count the columns of findings below a table; children have theirs."""
    tables, weights = room.tree.nodes.tables, room.weights
    factor, given = tables[number, FACTOR], factors.starts.size - 1
    weights[number] = 0
    if tables[number, LEFT] >= 0:
        weights[number] = weights[tables[number, LEFT]]
        if tables[number, RIGHT] >= 0:
            weights[number] += weights[tables[number, RIGHT]]
    elif factor >= given:
        weights[number] = 1
    elif factor != ONES:
        for at in range(factors.starts[factor], factors.starts[factor + 1]):
            weights[number] += room.tree.position[factors.scopes[at]] < 0


@part
def _mark(factors: Any, findings: Any, case: int, root: int, room: Any, culprits: Any) -> None:
    """Mark the findings of a case below a table."""
    # The bucket is the stack: it has room for all tables, and is empty after planning.
    tables, stack, given = room.tree.nodes.tables, room.tree.bucket, factors.starts.size - 1
    stack[0], count = root, 1
    while count:
        count -= 1
        number = stack[count]
        factor = tables[number, FACTOR]
        if tables[number, LEFT] >= 0:
            for child in (tables[number, LEFT], tables[number, RIGHT]):
                if child >= 0:
                    stack[count] = child
                    count += 1
        elif factor >= given:
            column = factor - given
            # A likelihood of the block, of which this case may have none.
            if findings.codes[column, case] != factors.cards[findings.variables[column]]:
                culprits[column] = 1
        elif factor != ONES:
            for at in range(factors.starts[factor], factors.starts[factor + 1]):
                if room.tree.position[factors.scopes[at]] < 0:
                    culprits[findings.column[factors.scopes[at]]] = 1
