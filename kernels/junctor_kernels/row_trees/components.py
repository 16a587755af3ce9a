"""Rows of evidence split into components: unobserved variables that are connected, with their factors (Numba).

Main functions: `split`, `mark_rows` and `merge`, called by `junctor.learning.observations`. P(family | e) depends on
the family's component alone: on its factors, with the states of observed variables cut out. Different rows share most
of their components, so each different one is listed once, with the sum of the weights of its rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import gradual, inlined, loops, part
from junctor_kernels.orders.sparse import sort

Ints = npt.NDArray[np.int64]
Shorts = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

# Entries of `counts`: patterns, components, and the entries of the lists below that are in use.
PATTERNS, COMPONENTS, VARIABLES, FACTORS, BASES, COUNTS = range(6)
# Columns of sums: the sum, and what rounding lost (Neumaier 1974).
SUM, LOST = 0, 1
# Marks of an empty slot, and of a row that takes part.
FREE = -1
POSSIBLE, EXCLUDED = 0, 1
# Returned by `split` instead of a row.
DONE = -1


class Families(NamedTuple):
    """What the splitting of rows needs of a network.

    cards: int64 [variables].
    starts: int64 [factors + 1]; factor f has the scope scopes[starts[f]:starts[f + 1]].
    scopes: int32, variables of all factors.
    strides: int64, in entries, parallel to `scopes`.
    places: int64 [factors + 1], offset of each table among all entries.
    of_starts, of_factors: factors of variable v are of_factors[of_starts[v]:of_starts[v + 1]], ascending.
    """

    cards: Ints
    starts: Ints
    scopes: Shorts
    strides: Ints
    places: Ints
    of_starts: Ints
    of_factors: Shorts


class Store(NamedTuple):
    """Different components of some rows.

    A pattern is a set of variables with the factors that they are in; a likelihood of variable v is factor F + v.

    counts: int64 [COUNTS].
    variable_starts: int64 [patterns + 1], of each pattern in `variables`.
    variables: int32, ascending for each pattern.
    factor_starts, factors: the same for factors.
    pattern: int32 [components].
    base_starts: int64 [components + 1].
    bases: int32, for each factor of the pattern the entry where all unobserved variables are in state 0.
    weights: float64 [components, 2], sums of the weights of their rows.
    pattern_slots, slots: int32, hash tables of patterns and of components, lengths powers of two.
    """

    counts: Ints
    variable_starts: Ints
    variables: Shorts
    factor_starts: Ints
    factors: Shorts
    pattern: Shorts
    base_starts: Ints
    bases: Shorts
    weights: Floats
    pattern_slots: Shorts
    slots: Shorts


class Splitting(NamedTuple):
    """Work arrays of `split`.

    seen: int32 [variables], the last component that a variable was found in.
    taken: int32 [factors], the same of factors.
    variables: int32 [variables], of the component at hand.
    factors: int32 [factors + variables].
    bases: int32 [factors + variables].
    marks: int64 [1], number of the component at hand.
    """

    seen: Shorts
    taken: Shorts
    variables: Shorts
    factors: Shorts
    bases: Shorts
    marks: Ints


def store(patterns: int, components: int, variables: int, factors: int, bases: int) -> Store:
    """Return an empty store with room for so many patterns, components, and entries of their lists."""
    return Store(
        counts=np.zeros(COUNTS, dtype=np.int64),
        variable_starts=np.zeros(patterns + 1, dtype=np.int64),
        variables=np.empty(variables, dtype=np.int32),
        factor_starts=np.zeros(patterns + 1, dtype=np.int64),
        factors=np.empty(factors, dtype=np.int32),
        pattern=np.empty(components, dtype=np.int32),
        base_starts=np.zeros(components + 1, dtype=np.int64),
        bases=np.empty(bases, dtype=np.int32),
        weights=np.zeros((components, 2)),
        pattern_slots=np.full(1 << (2 * patterns).bit_length(), FREE, dtype=np.int32),
        slots=np.full(1 << (2 * components).bit_length(), FREE, dtype=np.int32),
    )


def splitting(variables: int, factors: int) -> Splitting:
    """Return work arrays for rows of a network."""

    def shorts(count: int) -> Shorts:
        return np.zeros(count, dtype=np.int32)

    both = factors + variables
    return Splitting(
        shorts(variables), shorts(factors), shorts(variables), shorts(both), shorts(both), np.zeros(1, np.int64)
    )


@inlined
def add_to(sums: Any, at: Any, value: Any) -> None:
    """Add a number to a sum, and what rounding lost to its second column."""
    before = sums[at, SUM]
    total = before + value
    # The smaller of both has lost digits.
    if abs(before) >= abs(value):
        sums[at, LOST] += (before - total) + value
    else:
        sums[at, LOST] += (value - total) + before
    sums[at, SUM] = total


@gradual
@loops
def split(families: Any, states: Any, soft: Any, weights: Any, first: int, work: Any, complete: Any, into: Any) -> int:
    """Split rows from `first` on; return the row for which there was no room, or DONE.

    families: of the network.
    states: int32 [rows, variables], -1 for unobserved.
    soft: int32 [rows, variables], first entry of a variable's likelihood, -1 for none; no rows where nobody has one.
    weights: float64 [rows]; rows of weight 0 are left out.
    work: Splitting.
    complete: float64 [entries, 2], counts of families that are observed in full, added to.
    into: Store.
    """
    variables, given = families.cards.size, families.starts.size - 1
    for row in range(first, states.shape[0]):
        if weights[row] == 0.0:
            continue
        # What one row may add at most.
        if not _has_room(into, variables, variables, variables, given + variables, given + variables):
            return row
        line = states[row]
        for factor in range(given):
            entry = _entry(families, line, factor)
            if entry >= 0:
                add_to(complete, entry, weights[row])
        mark = work.marks[0]
        for v in range(variables):
            if line[v] < 0 and work.seen[v] <= mark:
                component = _component(families, line, soft, row, v, mark, work, into)
                add_to(into.weights, component, weights[row])
        work.marks[0] = mark + 1
    return DONE


@gradual
@loops
def mark_rows(
    families: Any, states: Any, soft: Any, weights: Any, work: Any, support: Any, impossible: Any, into: Any, marks: Any
) -> None:
    """Mark the rows of probability zero as EXCLUDED.

    families, states, soft, weights, work: of `split`.
    support: bool [entries], False where a table is zero.
    impossible: bool [components], of `into`, which has the components of all rows.
    marks: uint8 [rows], written.
    """
    given = families.starts.size - 1
    for row in range(states.shape[0]):
        marks[row] = POSSIBLE
        if weights[row] == 0.0:
            continue
        line = states[row]
        for factor in range(given):
            entry = _entry(families, line, factor)
            if entry >= 0 and not support[entry]:
                marks[row] = EXCLUDED
        mark = work.marks[0]
        for v in range(families.cards.size):
            if line[v] < 0 and work.seen[v] <= mark:
                component = _component(families, line, soft, row, v, mark, work, into)
                marks[row] = max(marks[row], np.uint8(impossible[component]))
        work.marks[0] = mark + 1


@gradual
@loops
def merge(source: Any, first: int, into: Any) -> int:
    """Add the components of a store from `first` on to another one; return that for which it has no room, or DONE."""
    for component in range(first, source.counts[COMPONENTS]):
        pattern = source.pattern[component]
        variables = source.variables[source.variable_starts[pattern] : source.variable_starts[pattern + 1]]
        factors = source.factors[source.factor_starts[pattern] : source.factor_starts[pattern + 1]]
        bases = source.bases[source.base_starts[component] : source.base_starts[component + 1]]
        if not _has_room(into, 1, 1, variables.size, factors.size, bases.size):
            return component
        found = _listed(into, variables, variables.size, factors, factors.size, bases)
        add_to(into.weights, found, source.weights[component, SUM])
        add_to(into.weights, found, source.weights[component, LOST])
    return DONE


@part
def _has_room(into: Any, patterns: int, components: int, variables: int, factors: int, bases: int) -> bool:
    counts = into.counts
    return bool(
        counts[PATTERNS] + patterns < into.variable_starts.size
        and counts[COMPONENTS] + components < into.base_starts.size
        and counts[VARIABLES] + variables <= into.variables.size
        and counts[FACTORS] + factors <= into.factors.size
        and counts[BASES] + bases <= into.bases.size
    )


@inlined
def _entry(families: Any, line: Any, factor: int) -> int:
    """Return the entry of a family that is observed in full, -1 for others."""
    entry = families.places[factor]
    for at in range(families.starts[factor], families.starts[factor + 1]):
        state = line[families.scopes[at]]
        if state < 0:
            return -1
        entry += state * families.strides[at]
    return int(entry)


@part
def _component(families: Any, line: Any, soft: Any, row: int, start: int, mark: int, work: Any, into: Any) -> int:
    """Find the component of a variable of a row, and return its number in a store, where it is listed if it is new.

    mark: variables and factors of this row have greater ones.
    """
    given = families.starts.size - 1
    work.variables[0], work.seen[start] = start, mark + 1
    count, factors, at = 1, 0, 0
    while at < count:
        v = work.variables[at]
        at += 1
        for place in range(families.of_starts[v], families.of_starts[v + 1]):
            factor = families.of_factors[place]
            if work.taken[factor] > mark:
                continue
            work.taken[factor] = mark + 1
            work.factors[factors] = factor
            factors += 1
            for other in range(families.starts[factor], families.starts[factor + 1]):
                u = families.scopes[other]
                if line[u] < 0 and work.seen[u] <= mark:
                    work.seen[u] = mark + 1
                    work.variables[count] = u
                    count += 1
    sort(work.variables[:count])
    sort(work.factors[:factors])
    for i in range(factors):
        factor = work.factors[i]
        base = families.places[factor]
        for place in range(families.starts[factor], families.starts[factor + 1]):
            base += max(0, line[families.scopes[place]]) * families.strides[place]
        work.bases[i] = base
    if soft.shape[0]:
        for i in range(count):
            v = work.variables[i]
            if soft[row, v] >= 0:
                work.factors[factors], work.bases[factors] = given + v, soft[row, v]
                factors += 1
    return int(_listed(into, work.variables, count, work.factors, factors, work.bases[:factors]))


@part
def _hash(row: Any, count: int, seed: Any) -> Any:
    """Return a hash of some numbers (Fowler, Noll and Vo's 1a on words, with a last mix)."""
    value = np.uint64(seed) ^ np.uint64(0xCBF29CE484222325)
    for i in range(count):
        value = (value ^ np.uint64(row[i])) * np.uint64(0x100000001B3)
    value ^= value >> np.uint64(32)
    value *= np.uint64(0x9E3779B97F4A7C15)
    return value ^ (value >> np.uint64(29))


@inlined
def _equal(one: Any, start: int, end: int, other: Any, count: int) -> bool:
    if end - start != count:
        return False
    for i in range(count):  # noqa: SIM110
        if one[start + i] != other[i]:
            return False
    return True


@part
def _listed(into: Any, variables: Any, count: int, factors: Any, members: int, bases: Any) -> int:
    """Return the number of a component in a store, where it is listed if it is new."""
    pattern = _pattern(into, variables, count, factors, members)
    mask = np.uint64(into.slots.size - 1)
    slot = _hash(bases, members, pattern)
    while True:
        at = np.int64(slot & mask)
        found = into.slots[at]
        if found < 0:
            break
        start, end = into.base_starts[found], into.base_starts[found + 1]
        if into.pattern[found] == pattern and _equal(into.bases, start, end, bases, members):
            return int(found)
        slot += np.uint64(1)
    number = into.counts[COMPONENTS]
    start = into.counts[BASES]
    for i in range(members):
        into.bases[start + i] = bases[i]
    into.slots[at], into.pattern[number] = number, pattern
    into.weights[number, SUM], into.weights[number, LOST] = 0.0, 0.0
    into.counts[COMPONENTS], into.counts[BASES] = number + 1, start + members
    into.base_starts[number + 1] = start + members
    return int(number)


@part
def _pattern(into: Any, variables: Any, count: int, factors: Any, members: int) -> int:
    """Return the number of a pattern in a store, where it is listed if it is new."""
    mask = np.uint64(into.pattern_slots.size - 1)
    # Factors beyond those of the variables are likelihoods: these are the last.
    slot = _hash(variables, count, members)
    while True:
        at = np.int64(slot & mask)
        found = into.pattern_slots[at]
        if found < 0:
            break
        first, last = into.variable_starts[found], into.variable_starts[found + 1]
        start, end = into.factor_starts[found], into.factor_starts[found + 1]
        if _equal(into.variables, first, last, variables, count) and _equal(into.factors, start, end, factors, members):
            return int(found)
        slot += np.uint64(1)
    number = into.counts[PATTERNS]
    first, start = into.counts[VARIABLES], into.counts[FACTORS]
    for i in range(count):
        into.variables[first + i] = variables[i]
    for i in range(members):
        into.factors[start + i] = factors[i]
    into.pattern_slots[at] = number
    into.counts[PATTERNS], into.counts[VARIABLES], into.counts[FACTORS] = number + 1, first + count, start + members
    into.variable_starts[number + 1], into.factor_starts[number + 1] = first + count, start + members
    return int(number)
