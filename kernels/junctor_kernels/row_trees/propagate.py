"""The row engine: every row of evidence is planned and propagated on its own in compiled code (Numba).

Main function: `answer_rows`, called by `queue`. Rows that observe different variables share nothing, but each row's
evidence, and every state that it makes impossible, is cut out of the factors, and the rest is small. The tree of a row
is a binary join tree (Shenoy 1997, `plan`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import as_bits, inverse_power
from junctor_kernels.cpu.scaled import log_of, multiplied
from junctor_kernels.cpu.vectors import first_lanes, highest, larger, least_above_zero, load8, lowest, spread8
from junctor_kernels.row_trees import tiles
from junctor_kernels.row_trees.contract import ROWS, contract
from junctor_kernels.row_trees.domains import FIRST_STATE, KNOWN, STATES, WEIGHT, narrow
from junctor_kernels.row_trees.inner_loops import inlined, part
from junctor_kernels.row_trees.maxima import maximise, trace
from junctor_kernels.row_trees.plan import (
    ARENA,
    BEHIND,
    DOWN,
    ENTRIES,
    FACTOR,
    FIRST,
    LEFT,
    LENGTH,
    ONES,
    PARENT,
    RIGHT,
    SCOPES,
    TABLES,
    UP,
    WANTED,
    Factors,
    find_relevant,
    plan_relevant,
)
from junctor_kernels.row_trees.walk import COLUMNS, ONE, OTHER, OUT, SIZE, scope_of, write_axes

# Every message is a contraction of two tables, out[kept] = sum over the rest of one[..] * other[..]. Messages go up
# (from both children of a table) and down (to a child from its parent and its sibling), and a posterior is read off one
# table by the product of both. Numbers are doubles. A message whose largest entry is far from 1 is divided by the power
# of two that brings it into [0.5, 1), exactly. Each message carries a bound on the loss of each entry to underflow: 0
# unless the smallest entries of its operands could have met.

# Status of a row: DOUBTFUL rows need a wider number format, TOO_LARGE ones another backend.
ANSWERED, IMPOSSIBLE, DOUBTFUL, TOO_LARGE = 0, 1, 2, 3
# Binary exponent of the largest entry from which a message is scaled.
FAR = 32
# Columns of `facts`, for the message up and (offset DOWNWARD) down: exponent of its scale, bound, smallest entry.
EXPONENT, LOST, LEAST = 0, 1, 2
DOWNWARD = 3
# Largest share of a probability that may be lost to underflow, as in `junctor.backends.numpy`.
LOSS_TOLERANCE = 1e-14
TINY = float(np.finfo(np.float64).tiny)


class RowWorkspace(NamedTuple):
    """Memory for the numbers of a row.

    arena: all messages.
    axes: [ROWS, COLUMNS] of `contract`.
    counters: [ROWS], index along each axis.
    panel, places: of `tiles`.
    facts: [tables, 6], scale and bounds of messages.
    """

    arena: npt.NDArray[np.float64]
    axes: npt.NDArray[np.uint64]
    counters: npt.NDArray[np.uint64]
    panel: npt.NDArray[np.float64]
    places: npt.NDArray[np.uint64]
    facts: npt.NDArray[np.float64]


def work(entries: int, tables: int) -> RowWorkspace:
    """Return memory for rows whose messages have so many entries, in so many tables."""
    return RowWorkspace(
        np.zeros(entries),
        np.zeros((ROWS, COLUMNS), dtype=np.uint64),
        np.zeros(ROWS, dtype=np.uint64),
        np.zeros(tiles.PANEL),
        np.zeros(tiles.PLACES, dtype=np.uint64),
        np.zeros((tables, 6)),
    )


# A call copies every array of a tree and its numbers: a message has none.
@inlined
def _message(
    nodes: Any,
    work: Any,
    one: int,
    one_column: int,
    other: int,
    other_column: int,
    out: int,
    out_column: int,
    explains: bool,
) -> None:
    """Contract two messages into a third, rescale it and bound its losses.

    nodes, work: tables and numbers of the row.
    one, other, out: tables; -1 is the number 1.
    one_column, other_column, out_column: UP or DOWN.
    explains: whether the largest products are kept instead of their sums.
    """
    tables, facts = nodes.tables, work.facts
    scope_one, place_one, lost_one, least_one = _operand(tables, facts, one, one_column)
    scope_other, place_other, lost_other, least_other = _operand(tables, facts, other, other_column)
    place, entries = tables[out, out_column], tables[out, ENTRIES]
    scope = scope_of(tables, out)
    groups = write_axes(nodes.scopes, nodes.sizes, work.axes, scope_one, scope_other, scope)
    # (1 + one) (1 + other) - 1, without cancellation.
    lost = lost_one + lost_other + lost_one * lost_other
    if lost > 0 or least_one * least_other < TINY:
        # A largest product has lost no more than each of them.
        terms = 1.0 if explains else _terms(work.axes, groups)
        lost = terms * (lost + TINY * (1 + lost))
    if explains:
        maximise(work, groups, place_one, place_other, np.uint64(place))
    else:
        contract(work, groups, place_one, place_other, np.uint64(place))
    side = DOWNWARD * (out_column == DOWN)
    facts[out, LOST + side] = lost
    _rescale(work, place, entries, out, side)


@inlined
def _operand(tables: Any, facts: Any, number: int, column: int) -> Any:
    """Return (first, length) of the scope, offset, bound and smallest entry of a message; -1: the number 1."""
    scope = scope_of(tables, number)
    if number < 0:
        return scope, np.uint64(0), 0.0, 1.0
    side = DOWNWARD * (column == DOWN)
    return scope, np.uint64(tables[number, column]), facts[number, LOST + side], facts[number, LEAST + side]


@part
def _terms(axes: Any, groups: int) -> float:
    terms = 1.0
    for g in range(groups):
        if axes[g, OUT] == np.uint64(0):
            terms *= float(axes[g, SIZE])
    return terms


@inlined
def _rescale(work: Any, place: int, entries: int, number: int, side: int) -> None:
    """Write the facts of a message; one number, or largest entries far from 1, are first brought into [0.5, 1)."""
    arena, facts = work.arena, work.facts
    high, low = spread8(0.0), spread8(np.inf)
    # Two vectors at a time: every comparison waits for the one before.
    high_too, low_too = high, low
    at, end = np.uint64(place), np.uint64(place + entries)
    eight, sixteen = np.uint64(8), np.uint64(16)
    while at + sixteen <= end:
        line, next_line = load8(arena, at), load8(arena, at + eight)
        high, low = larger(line, high), least_above_zero(low, line)
        high_too, low_too = larger(next_line, high_too), least_above_zero(low_too, next_line)
        at += sixteen
    while at < end:
        line = first_lanes(load8(arena, at), end - at)
        high, low = larger(line, high), least_above_zero(low, line)
        at += eight
    high, low = larger(high_too, high), least_above_zero(low, low_too)
    largest, least = as_bits(highest(high)), lowest(low)
    facts[number, EXPONENT + side], facts[number, LEAST + side] = 0.0, 1.0
    if largest == np.uint64(0):
        return
    exponent = np.int64(largest >> np.uint64(52)) - 1022
    if exponent < -1021:
        # Below the normal numbers even the largest entry has lost digits.
        facts[number, LOST + side] = np.inf
    facts[number, LEAST + side] = least
    # Most tables need no pass of scaling. Numbers of a root are always scaled: they are multiplied to P(e).
    if entries > 1 and -FAR < exponent < FAR:
        return
    factor = inverse_power(exponent)
    facts[number, LEAST + side] = least * factor
    facts[number, EXPONENT + side] = float(exponent)
    facts[number, LOST + side] *= factor
    if facts[number, LEAST + side] < TINY:
        facts[number, LOST + side] += TINY
    for e in range(np.uint64(place), np.uint64(place + entries)):
        arena[e] *= factor


@part
def load_leaves(factors: Any, known: Any, firsts: Any, possible: Any, positions: Any, nodes: Any, work: Any) -> None:
    """Copy the entries of factors at the possible states of their variables into the tables of leaves.

    factors: of the network.
    known: int64 [variables], the only possible state of a variable, for those without a position.
    firsts, possible: int64, possible states of each variable, from its first place on.
    positions: int64 [variables].
    nodes, work: tables and numbers of the row.
    """
    given, tables, axes, arena = factors.starts.size - 1, nodes.tables, work.axes, work.arena
    for number in range(nodes.counts[TABLES]):
        table = tables[number]
        factor, length, target = table[FACTOR], table[LENGTH], np.uint64(table[UP])
        if table[LEFT] >= 0 or factor >= given:
            continue
        if factor == ONES:
            for e in range(table[ENTRIES]):
                arena[table[UP] + e] = 1.0
            continue
        place = factors.places[factor]
        for at in range(factors.starts[factor], factors.starts[factor + 1]):
            v = factors.scopes[at]
            position = positions[v]
            if position < 0:
                place += known[v] * factors.strides[at]
                continue
            for i in range(length):
                if nodes.scopes[table[FIRST] + i] == position:
                    axes[i, SIZE], axes[i, ONE] = np.uint64(nodes.sizes[position]), np.uint64(factors.strides[at])
                    axes[i, OTHER] = np.uint64(firsts[v])
        _gather(factors.values, possible, work, length, np.uint64(place), target)


@inlined
def _gather(values: Any, possible: Any, work: Any, length: int, source: Any, target: Any) -> None:
    """Copy the possible states of a strided array of `length` axes (outermost first) into the arena."""
    axes, counters, arena = work.axes, work.counters, work.arena
    u1 = np.uint64(1)
    if length == 0:
        arena[target] = values[source]
        return
    last = length - 1
    for i in range(length):
        counters[i] = np.uint64(0)
        source += axes[i, ONE] * np.uint64(possible[axes[i, OTHER]])
    size, stride, first = axes[last, SIZE], axes[last, ONE], axes[last, OTHER]
    source -= stride * np.uint64(possible[first])
    while True:
        for j in range(size):
            arena[target] = values[source + stride * np.uint64(possible[first + j])]
            target += u1
        i = last - 1
        while i >= 0:
            at = axes[i, OTHER] + counters[i]
            source -= axes[i, ONE] * np.uint64(possible[at])
            counters[i] += u1
            if counters[i] < axes[i, SIZE]:
                source += axes[i, ONE] * np.uint64(possible[at + u1])
                break
            source += axes[i, ONE] * np.uint64(possible[axes[i, OTHER]])
            counters[i] = np.uint64(0)
            i -= 1
        if i < 0:
            return


@part
def answer_rows(
    factors: Any, zeros: Any, evidence: Any, wanted: Any, starts: Any, first: int, room: Any, results: Any
) -> int:
    """Answer rows from `first` on; return the row that the arena is too small for, or the number of rows.

    Where it returns a row, its tree is planned.

    factors, zeros: of the network.
    evidence: states int64 [rows, variables] (-1: unobserved), soft int64 [rows, kinds] (variables with likelihoods, or
        -1), likelihoods float64 [rows, entries], places int64 [kinds], first column of each kind.
    wanted: bool [variables], whose posteriors are computed.
    starts: int64 [variables], offset of each posterior in a row of the results.
    room: Tree, Domains and RowWorkspace.
    results: posteriors float64 [rows, entries], log P(e) float64 [rows], status int64 [rows], explanations int32 [rows,
        variables], in place of posteriors where there are columns for them; log P(e) is that of the explanation then.
    """
    states, soft, likelihoods, places = evidence
    tree, domains, work = room
    posteriors, log_values, status, explanations = results
    explains = explanations.shape[1] > 0
    variables = domains.variables
    narrowed = Factors(
        variables[STATES],
        factors.starts,
        factors.scopes,
        factors.strides,
        factors.places,
        factors.values,
        factors.directed,
        factors.graph,
        variables[WEIGHT],
        domains.means,
    )
    for row in range(first, states.shape[0]):
        find_relevant(factors, states[row], soft[row], wanted, tree)
        if not narrow(factors, zeros, states[row], soft[row], likelihoods[row], places, tree.position, domains):
            status[row] = IMPOSSIBLE
            continue
        for v in range(states.shape[1]):
            if variables[KNOWN, v] >= 0 and tree.position[v] >= 0:
                tree.position[v] = -2
        if not plan_relevant(narrowed, soft[row], wanted, 1, tree):
            status[row] = TOO_LARGE
            continue
        if tree.nodes.counts[ARENA] > work.arena.size:
            # The caller enlarges the arena and calls again: compiled code cannot replace an array of a tuple.
            return row
        known = _load_likelihoods(factors.starts.size - 1, soft[row], likelihoods[row], places, tree, domains, work)
        load_leaves(factors, variables[KNOWN], variables[FIRST_STATE], domains.states, tree.position, tree.nodes, work)
        status[row] = collect(tree.nodes, work, known, log_values, row, explains)
        if status[row] != ANSWERED:
            continue
        if explains:
            trace(tree, domains, work.arena, explanations[row])
        else:
            status[row] = _read_all(factors, wanted, starts, tree, domains, work, posteriors[row])
    return int(states.shape[0])


@part
def _load_likelihoods(given: int, soft: Any, likelihoods: Any, places: Any, tree: Any, domains: Any, work: Any) -> Any:
    """Write the likelihoods of a row; return those of variables with one possible state as a scaled number."""
    nodes, states = tree.nodes, domains.states
    for number in range(nodes.counts[TABLES]):
        kind = nodes.tables[number, FACTOR] - given
        if kind >= 0:
            place, first = nodes.tables[number, UP], domains.variables[FIRST_STATE, soft[kind]]
            for e in range(nodes.tables[number, ENTRIES]):
                work.arena[place + e] = likelihoods[places[kind] + states[first + e]]
    known, exponent = 1.0, 0.0
    for kind in range(soft.size):
        if soft[kind] >= 0 and tree.position[soft[kind]] == -2:
            by, power = math.frexp(likelihoods[places[kind] + domains.variables[KNOWN, soft[kind]]])
            known, exponent = multiplied(known, exponent, by, float(power), None)
    return known, exponent


@part
def _read_all(factors: Any, wanted: Any, starts: Any, tree: Any, domains: Any, work: Any, posteriors: Any) -> int:
    """Pass messages down the tree of a row, behind those up, write its posteriors, and return its status."""
    nodes, variables = tree.nodes, domains.variables
    distribute(nodes, work)
    for v in range(wanted.size):
        if not wanted[v]:
            continue
        for e in range(factors.cards[v]):
            posteriors[starts[v] + e] = 0.0
        # Certain, whatever the tables say.
        if variables[KNOWN, v] >= 0:
            posteriors[starts[v] + variables[KNOWN, v]] = 1.0
            continue
        position = tree.position[v]
        possible = domains.states[variables[FIRST_STATE, v] : variables[FIRST_STATE, v] + variables[STATES, v]]
        if not _read(nodes, work, tree.host[position], position, starts[v], possible, posteriors):
            return DOUBTFUL
    return ANSWERED


@part
def collect(nodes: Any, work: Any, known: Any, log_values: Any, row: int, explains: bool) -> int:
    """Compute all messages up from those of the leaves, and log P(e) of the row from the roots; return its status.

    known: a factor of P(e), number and exponent.
    explains: whether the largest products are kept instead of their sums.
    """
    tables, facts, arena = nodes.tables, work.facts, work.arena
    # The number 1, the operand of tables with one child.
    arena[0] = 1.0
    total, exponent = known
    for number in range(nodes.counts[TABLES]):
        if tables[number, LEFT] >= 0:
            _message(nodes, work, tables[number, LEFT], UP, tables[number, RIGHT], UP, number, UP, explains)
        else:
            facts[number, LOST] = 0.0
            _rescale(work, tables[number, UP], tables[number, ENTRIES], number, 0)
        # Exponents are integers: their sum is exact, and there is one logarithm in the end.
        exponent += facts[number, EXPONENT]
        if tables[number, PARENT] < 0:
            value = arena[tables[number, UP]]
            # Not `lost > tolerance`: a bound of nan must be doubtful too.
            if not facts[number, LOST] <= LOSS_TOLERANCE * value:
                return DOUBTFUL
            if value == 0.0:
                return IMPOSSIBLE
            total, exponent = multiplied(total, exponent, value, 0.0, None)
    log_values[row] = log_of(total, exponent)
    return ANSWERED


@part
def distribute(nodes: Any, work: Any) -> None:
    """Compute the wanted messages down."""
    tables, facts = nodes.tables, work.facts
    for parent in range(nodes.counts[TABLES] - 1, -1, -1):
        if not tables[parent, WANTED]:
            continue
        if tables[parent, PARENT] < 0:
            work.arena[tables[parent, DOWN]] = 1.0
            facts[parent, DOWNWARD + LOST], facts[parent, DOWNWARD + LEAST] = 0.0, 1.0
        child, sibling = tables[parent, LEFT], tables[parent, RIGHT]
        # Last the one whose message takes the place of its message up, which the other one needs.
        if child >= 0 and tables[child, WANTED] and tables[child, DOWN] == tables[child, UP]:
            child, sibling = sibling, child
        for _ in range(2):
            # A sibling of -1 is the number 1.
            if child >= 0 and tables[child, WANTED]:
                _message(nodes, work, parent, DOWN, sibling, UP, child, DOWN, False)
            child, sibling = sibling, child


@inlined
def _read(nodes: Any, work: Any, host: int, position: int, start: int, possible: Any, posteriors: Any) -> bool:
    """Write the posterior of a position; return False if underflow may have moved too much of it.

    nodes, work: tables and numbers of the row.
    host: table to read from.
    position: to read.
    start: offset in `posteriors`.
    possible: int64, states of the position; the others have been written.
    """
    arena, facts = work.arena, work.facts
    size = nodes.sizes[position]
    # The end of the arena is for posteriors.
    place = nodes.counts[ARENA] - size - BEHIND
    nodes.scopes[nodes.counts[SCOPES]] = position
    scope, up, lost_up, least_up = _operand(nodes.tables, facts, host, UP)
    _, down, lost_down, least_down = _operand(nodes.tables, facts, host, DOWN)
    out = nodes.counts[SCOPES], np.int64(1)
    groups = write_axes(nodes.scopes, nodes.sizes, work.axes, scope, scope, out)
    contract(work, groups, up, down, np.uint64(place))
    total = 0.0
    for e in range(size):
        total += arena[place + e]
    for e in range(size):
        posteriors[start + possible[e]] = arena[place + e] / total
    lost = lost_up + lost_down + lost_up * lost_down
    if least_up * least_down < TINY:
        lost += TINY
    return bool(lost == 0 or lost * nodes.tables[host, ENTRIES] <= LOSS_TOLERANCE * total)
