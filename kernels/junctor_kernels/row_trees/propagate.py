"""The row engine: every row of evidence is planned and propagated on its own in compiled code (Numba).

Main function: `answer_rows`, called by `junctor.backends.row_trees`. Rows that observe different variables share
nothing, but each row's evidence is cut out of the factors, and the rest is small. The tree of a row is a binary join
tree (Shenoy 1997, `plan`).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import as_bits, as_float
from junctor_kernels.cpu.jit import loops as _loops
from junctor_kernels.cpu.jit import part as _part
from junctor_kernels.row_trees.plan import (
    ARENA,
    DOWN,
    ENTRIES,
    FACTOR,
    FIRST,
    LEFT,
    LENGTH,
    MOST_AXES,
    ONES,
    PARENT,
    RIGHT,
    SCOPES,
    TABLES,
    UP,
    WANTED,
    plan_rows,
)

# Every message is a contraction of two tables, out[kept] = sum over the rest of one[..] * other[..]. Messages go up
# (from both children of a table) and down (to a child from its parent and its sibling), and a posterior is read off one
# table by the product of both. Numbers are doubles. Every message is divided by a power of two, exactly, so that its
# largest entry lies in [0.5, 1), and carries a bound on the loss of each entry to underflow: 0 unless the smallest
# entries of its operands could have met.

# Fused multiply-add is the only liberty taken with IEEE arithmetic.
loops, part = partial(_loops, fastmath={"contract"}), partial(_part, fastmath={"contract"})

# Status of a row: DOUBTFUL rows need a wider number format, TOO_LARGE ones another backend.
ANSWERED, IMPOSSIBLE, DOUBTFUL, TOO_LARGE = 0, 1, 2, 3
# Columns of `facts`, for the message up and (offset DOWNWARD) down: exponent of its scale, bound, smallest entry.
EXPONENT, LOST, LEAST = 0, 1, 2
DOWNWARD = 3
# Largest share of a probability that may be lost to underflow, as in `junctor.backends.numpy`.
LOSS_TOLERANCE = 1e-14
TINY = float(np.finfo(np.float64).tiny)
LOG_2 = float(np.log(2.0))
# Axes of a contraction: entries, then the stride in each operand and in the result; innermost first.
SIZE, ONE, OTHER, OUT = 0, 1, 2, 3


class RowWorkspace(NamedTuple):
    """Memory for the numbers of a row.

    arena: all messages.
    axes: [axes, 4] of a contraction; unsigned, so that Numba omits the test for negative indices.
    counters: index along each axis.
    facts: [tables, 6], scale and bounds of messages.
    """

    arena: npt.NDArray[np.float64]
    axes: npt.NDArray[np.uint64]
    counters: npt.NDArray[np.uint64]
    facts: npt.NDArray[np.float64]


def work(entries: int, tables: int) -> RowWorkspace:
    """Return memory for rows whose messages have so many entries, in so many tables."""
    # A contraction has at most the axes of its three tables.
    return RowWorkspace(
        np.zeros(entries),
        np.zeros((3 * MOST_AXES, 4), dtype=np.uint64),
        np.zeros(3 * MOST_AXES, dtype=np.uint64),
        np.zeros((tables, 6)),
    )


@loops
def contract(arena: Any, axes: Any, counters: Any, groups: int, one: Any, other: Any, out: Any) -> None:
    """Add the contraction of two tables to a third.

    arena: of all tables.
    axes, counters: of a RowWorkspace; the first `groups` axes count.
    one, other, out: offsets of the tables.
    """
    zero = np.uint64(0)
    a, b, c = one, other, out
    # Dot products where the innermost axis is eliminated; else the first eliminated axis becomes the inner loop, with
    # results in registers.
    dots = axes[0, OUT] == zero and axes[0, SIZE] > np.uint64(1)
    loop = 1
    while not dots and loop < groups and axes[loop, OUT] != zero:
        loop += 1
    terms, step_a, step_b, step_c = np.uint64(1), zero, zero, zero
    if loop < groups:
        terms, step_a, step_b, step_c = axes[loop, SIZE], axes[loop, ONE], axes[loop, OTHER], axes[loop, OUT]
    for g in range(1, groups):
        counters[g] = zero
    size, sa, sb = axes[0, SIZE], axes[0, ONE], axes[0, OTHER]
    while True:
        if dots:
            _dots(arena, a, b, c, size, sa, sb, terms, step_a, step_b, step_c)
        elif sa != zero and sb != zero:
            _products(arena, a, b, c, size, terms, step_a, step_b)
        elif sa != zero:
            _multiples(arena, a, b, c, size, terms, step_a, step_b)
        elif sb != zero:
            _multiples(arena, b, a, c, size, terms, step_b, step_a)
        else:
            _constant(arena, a, b, c, size, terms, step_a, step_b)
        g = 1
        while g < groups:
            if g != loop:
                counters[g] += np.uint64(1)
                a += axes[g, ONE]
                b += axes[g, OTHER]
                c += axes[g, OUT]
                if counters[g] < axes[g, SIZE]:
                    break
                a -= axes[g, SIZE] * axes[g, ONE]
                b -= axes[g, SIZE] * axes[g, OTHER]
                c -= axes[g, SIZE] * axes[g, OUT]
                counters[g] = zero
            g += 1
        if g >= groups:
            return


@part
def _products(arena: Any, a: Any, b: Any, c: Any, size: Any, terms: Any, step_a: Any, step_b: Any) -> None:
    """out[j] += sum over t of one[t, j] * other[t, j]."""
    j = np.uint64(0)
    # Unsigned constants: mixed with signed integers, Numba would compute indices in doubles.
    u1, u2, u3, u4 = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    u5, u6, u7, u8 = np.uint64(5), np.uint64(6), np.uint64(7), np.uint64(8)
    while j + u8 <= size:
        x0 = x1 = x2 = x3 = x4 = x5 = x6 = x7 = 0.0
        p, q = a + j, b + j
        for _ in range(terms):
            x0 += arena[p] * arena[q]
            x1 += arena[p + u1] * arena[q + u1]
            x2 += arena[p + u2] * arena[q + u2]
            x3 += arena[p + u3] * arena[q + u3]
            x4 += arena[p + u4] * arena[q + u4]
            x5 += arena[p + u5] * arena[q + u5]
            x6 += arena[p + u6] * arena[q + u6]
            x7 += arena[p + u7] * arena[q + u7]
            p += step_a
            q += step_b
        _add_tile(arena, c + j, x0, x1, x2, x3, x4, x5, x6, x7)
        j += u8
    while j < size:
        x0 = 0.0
        p, q = a + j, b + j
        for _ in range(terms):
            x0 += arena[p] * arena[q]
            p += step_a
            q += step_b
        arena[c + j] += x0
        j += u1


@part
def _multiples(arena: Any, a: Any, b: Any, c: Any, size: Any, terms: Any, step_a: Any, step_b: Any) -> None:
    """out[j] += sum over t of one[t, j] * other[t]; terms whose factor is zero are skipped."""
    j = np.uint64(0)
    u1, u2, u3, u4 = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    u5, u6, u7, u8 = np.uint64(5), np.uint64(6), np.uint64(7), np.uint64(8)
    while j + u8 <= size:
        x0 = x1 = x2 = x3 = x4 = x5 = x6 = x7 = 0.0
        p, q = a + j, b
        for _ in range(terms):
            # Zeros are frequent, and one test saves eight multiply-adds.
            f = arena[q]
            if f != 0.0:
                x0 += arena[p] * f
                x1 += arena[p + u1] * f
                x2 += arena[p + u2] * f
                x3 += arena[p + u3] * f
                x4 += arena[p + u4] * f
                x5 += arena[p + u5] * f
                x6 += arena[p + u6] * f
                x7 += arena[p + u7] * f
            p += step_a
            q += step_b
        _add_tile(arena, c + j, x0, x1, x2, x3, x4, x5, x6, x7)
        j += u8
    while j < size:
        x0 = 0.0
        p, q = a + j, b
        for _ in range(terms):
            x0 += arena[p] * arena[q]
            p += step_a
            q += step_b
        arena[c + j] += x0
        j += u1


@part
def _add_tile(
    arena: Any, at: Any, x0: float, x1: float, x2: float, x3: float, x4: float, x5: float, x6: float, x7: float
) -> None:
    arena[at] += x0
    arena[at + np.uint64(1)] += x1
    arena[at + np.uint64(2)] += x2
    arena[at + np.uint64(3)] += x3
    arena[at + np.uint64(4)] += x4
    arena[at + np.uint64(5)] += x5
    arena[at + np.uint64(6)] += x6
    arena[at + np.uint64(7)] += x7


@part
def _constant(arena: Any, a: Any, b: Any, c: Any, size: Any, terms: Any, step_a: Any, step_b: Any) -> None:
    """out[j] += sum over t of one[t] * other[t]."""
    x = 0.0
    for _ in range(terms):
        x += arena[a] * arena[b]
        a += step_a
        b += step_b
    for j in range(size):
        arena[c + j] += x


@part
def _dots(
    arena: Any, a: Any, b: Any, c: Any, size: Any, sa: Any, sb: Any, terms: Any, step_a: Any, step_b: Any, step_c: Any
) -> None:
    """out[t] += sum over j of one[t, j] * other[t, j], where an operand may not have j."""
    zero, u1, u2, u3, u4 = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    for _ in range(terms):
        # Four sums: one alone would wait for every addition.
        x0 = x1 = x2 = x3 = 0.0
        j = zero
        if sa != zero and sb != zero:
            while j + u4 <= size:
                p, q = a + j, b + j
                x0 += arena[p] * arena[q]
                x1 += arena[p + u1] * arena[q + u1]
                x2 += arena[p + u2] * arena[q + u2]
                x3 += arena[p + u3] * arena[q + u3]
                j += u4
            while j < size:
                x0 += arena[a + j] * arena[b + j]
                j += u1
            arena[c] += (x0 + x1) + (x2 + x3)
        else:
            p, q = a, b
            if sa == zero:
                p, q = b, a
            if arena[q] != 0.0:
                while j + u4 <= size:
                    x0 += arena[p + j]
                    x1 += arena[p + j + u1]
                    x2 += arena[p + j + u2]
                    x3 += arena[p + j + u3]
                    j += u4
                while j < size:
                    x0 += arena[p + j]
                    j += u1
                arena[c] += ((x0 + x1) + (x2 + x3)) * arena[q]
        a += step_a
        b += step_b
        c += step_c


@part
def _write_axes(scopes: Any, sizes: Any, axes: Any, one: Any, other: Any, out: Any) -> int:
    """Write the axes of a contraction, innermost first, neighbours in the same tables merged; return their number.

    scopes, sizes: of the tree.
    axes: written.
    one, other, out: (first, length) of the scope of each table.
    """
    i, j, k = one[0] + one[1] - 1, other[0] + other[1] - 1, out[0] + out[1] - 1
    stride_i = stride_j = stride_k = np.uint64(1)
    zero = np.uint64(0)
    groups, before = 0, 0
    while i >= one[0] or j >= other[0] or k >= out[0]:
        position = np.int64(-1)
        if i >= one[0]:
            position = scopes[i]
        if j >= other[0]:
            position = max(position, scopes[j])
        if k >= out[0]:
            position = max(position, scopes[k])
        size = np.uint64(sizes[position])
        sa = sb = sc = zero
        kind = 0
        if i >= one[0] and scopes[i] == position:
            sa, stride_i, kind, i = stride_i, stride_i * size, kind + 1, i - 1
        if j >= other[0] and scopes[j] == position:
            sb, stride_j, kind, j = stride_j, stride_j * size, kind + 2, j - 1
        if k >= out[0] and scopes[k] == position:
            sc, stride_k, kind, k = stride_k, stride_k * size, kind + 4, k - 1
        # `kind` is the set of tables with this axis; equal neighbours are contiguous in all of them.
        if kind == before:
            axes[groups - 1, SIZE] *= size
        else:
            axes[groups, SIZE], axes[groups, ONE], axes[groups, OTHER], axes[groups, OUT] = size, sa, sb, sc
            groups += 1
            before = kind
    if groups == 0:
        axes[0, SIZE], axes[0, ONE], axes[0, OTHER], axes[0, OUT] = np.uint64(1), zero, zero, zero
        groups = 1
    return groups


@part
def _message(
    nodes: Any, work: Any, one: int, one_column: int, other: int, other_column: int, out: int, out_column: int
) -> None:
    """Contract two messages into a third, rescale it and bound its losses.

    nodes, work: tables and numbers of the row.
    one, other, out: tables; -1 is the number 1.
    one_column, other_column, out_column: UP or DOWN.
    """
    tables, facts, arena = nodes.tables, work.facts, work.arena
    scope_one, place_one, lost_one, least_one = _operand(tables, facts, one, one_column)
    scope_other, place_other, lost_other, least_other = _operand(tables, facts, other, other_column)
    place, entries = tables[out, out_column], tables[out, ENTRIES]
    for e in range(np.uint64(place), np.uint64(place + entries)):
        # Contractions add to their result.
        arena[e] = 0.0
    scope = (tables[out, FIRST], tables[out, LENGTH])
    groups = _write_axes(nodes.scopes, nodes.sizes, work.axes, scope_one, scope_other, scope)
    contract(arena, work.axes, work.counters, groups, place_one, place_other, np.uint64(place))
    # (1 + one) (1 + other) - 1, without cancellation.
    lost = lost_one + lost_other + lost_one * lost_other
    if lost > 0 or least_one * least_other < TINY:
        lost = _terms(work.axes, groups) * (lost + TINY * (1 + lost))
    side = DOWNWARD * (out_column == DOWN)
    facts[out, LOST + side] = lost
    _rescale(work, place, entries, out, side)


@part
def _operand(tables: Any, facts: Any, number: int, column: int) -> Any:
    """Return (first, length) of the scope, offset, bound and smallest entry of a message; -1: the number 1."""
    if number < 0:
        return (np.int64(0), np.int64(0)), np.uint64(0), 0.0, 1.0
    side = DOWNWARD * (column == DOWN)
    scope = (tables[number, FIRST], tables[number, LENGTH])
    return scope, np.uint64(tables[number, column]), facts[number, LOST + side], facts[number, LEAST + side]


@part
def _terms(axes: Any, groups: int) -> float:
    terms = 1.0
    for g in range(groups):
        if axes[g, OUT] == np.uint64(0):
            terms *= float(axes[g, SIZE])
    return terms


@part
def _rescale(work: Any, place: int, entries: int, number: int, side: int) -> None:
    """Divide a message by the power of two that brings its largest entry into [0.5, 1), and write its facts."""
    arena, facts = work.arena, work.facts
    first, end = np.uint64(place), np.uint64(place + entries)
    # Bits of positive doubles are ordered as the numbers are, and integers have faster comparisons.
    largest = np.uint64(0)
    # Bits less 1: zeros wrap around to the largest integer and are never the minimum.
    least = np.uint64(0xFFFFFFFFFFFFFFFF)
    for e in range(first, end):
        bits = as_bits(arena[e])
        largest = max(largest, bits)
        least = min(least, bits - np.uint64(1))
    facts[number, EXPONENT + side], facts[number, LEAST + side] = 0.0, 1.0
    if largest == np.uint64(0):
        return
    exponent = np.int64(largest >> np.uint64(52)) - 1022
    if exponent < -1021:
        # Below the normal numbers even the largest entry has lost digits.
        facts[number, LOST + side] = np.inf
    factor = as_float(np.uint64(1023 - exponent) << np.uint64(52))
    facts[number, LEAST + side] = as_float(least + np.uint64(1)) * factor
    facts[number, EXPONENT + side] = float(exponent)
    facts[number, LOST + side] *= factor
    if facts[number, LEAST + side] < TINY:
        facts[number, LOST + side] += TINY
    if exponent != 0:
        for e in range(first, end):
            arena[e] *= factor


@part
def _load(factors: Any, states: Any, positions: Any, nodes: Any, work: Any, number: int) -> None:
    """Copy the entries of a factor at the observed states into the table of a leaf."""
    table = nodes.tables[number]
    factor = table[FACTOR]
    place = factors.places[factor]
    axes = work.axes
    length = table[LENGTH]
    for at in range(factors.starts[factor], factors.starts[factor + 1]):
        v = factors.scopes[at]
        position = positions[v]
        if position < 0:
            place += states[v] * factors.strides[at]
        else:
            for i in range(length):
                if nodes.scopes[table[FIRST] + i] == position:
                    axes[i, SIZE], axes[i, ONE] = np.uint64(nodes.sizes[position]), np.uint64(factors.strides[at])
    source, target = np.uint64(place), np.uint64(table[UP])
    _gather(factors.values, work, length, source, target)


@part
def _gather(values: Any, work: Any, length: int, source: Any, target: Any) -> None:
    """Copy a strided array of `length` axes (outermost first) into the arena."""
    axes, counters, arena = work.axes, work.counters, work.arena
    u1 = np.uint64(1)
    if length == 0:
        arena[target] = values[source]
        return
    last = length - 1
    for i in range(length):
        counters[i] = np.uint64(0)
    size, stride = axes[last, SIZE], axes[last, ONE]
    while True:
        p = source
        for _ in range(size):
            arena[target] = values[p]
            target += u1
            p += stride
        i = last - 1
        while i >= 0:
            counters[i] += u1
            source += axes[i, ONE]
            if counters[i] < axes[i, SIZE]:
                break
            source -= axes[i, SIZE] * axes[i, ONE]
            counters[i] = np.uint64(0)
            i -= 1
        if i < 0:
            return


@loops
def answer_rows(factors: Any, evidence: Any, wanted: Any, starts: Any, first: int, room: Any, results: Any) -> int:
    """Answer rows from `first` on; return the row that the arena is too small for, or the number of rows.

    factors: of the network.
    evidence: states int64 [rows, variables] (-1: unobserved), soft int64 [rows, kinds] (variables with likelihoods, or
        -1), likelihoods float64 [rows, entries], places int64 [kinds], first column of each kind.
    wanted: bool [variables], whose posteriors are computed.
    starts: int64 [variables], offset of each posterior in a row of the results.
    room: Tree and RowWorkspace.
    results: posteriors float64 [rows, entries], log P(e) float64 [rows], status int64 [rows].
    """
    states, soft, likelihoods, places = evidence
    tree, work = room
    posteriors, log_values, status = results
    for row in range(first, states.shape[0]):
        if not plan_rows(factors, states[row], soft[row], wanted, 1, tree):
            status[row] = TOO_LARGE
            continue
        if tree.nodes.counts[ARENA] > work.arena.size:
            # The caller enlarges the arena and calls again: compiled code cannot replace an array of a tuple.
            return row
        _load_likelihoods(factors.starts.size - 1, likelihoods[row], places, tree.nodes, work.arena)
        status[row] = _propagate(factors, states[row], wanted, starts, tree, work, posteriors[row], log_values, row)
    return int(states.shape[0])


@part
def _load_likelihoods(given: int, likelihoods: Any, places: Any, nodes: Any, arena: Any) -> None:
    for number in range(nodes.counts[TABLES]):
        kind = nodes.tables[number, FACTOR] - given
        if kind >= 0:
            place, entries = nodes.tables[number, UP], nodes.tables[number, ENTRIES]
            for e in range(entries):
                arena[place + e] = likelihoods[places[kind] + e]


@part
def _propagate(
    factors: Any,
    states: Any,
    wanted: Any,
    starts: Any,
    tree: Any,
    work: Any,
    posteriors: Any,
    log_values: Any,
    row: int,
) -> int:
    """Pass messages up and down the tree of a row, write its posteriors, and return its status."""
    nodes = tree.nodes
    # Entry 0 is the number 1, the operand of tables with one child.
    work.arena[0] = 1.0
    status = _collect(factors, states, tree.position, nodes, work, log_values, row)
    if status != ANSWERED:
        return int(status)
    _distribute(nodes, work)
    for v in range(wanted.size):
        if not wanted[v]:
            continue
        # Observed: certain, whatever the tables say.
        if states[v] >= 0:
            for e in range(factors.cards[v]):
                posteriors[starts[v] + e] = 0.0
            posteriors[starts[v] + states[v]] = 1.0
        elif not _read(nodes, work, tree.host[tree.position[v]], tree.position[v], starts[v], posteriors):
            return DOUBTFUL
    return ANSWERED


@part
def _collect(factors: Any, states: Any, positions: Any, nodes: Any, work: Any, log_values: Any, row: int) -> int:
    """Compute all messages up, and log P(e) of the row from the roots; return its status."""
    tables, facts, arena = nodes.tables, work.facts, work.arena
    given = factors.starts.size - 1
    exponents, logarithms = 0.0, 0.0
    for number in range(nodes.counts[TABLES]):
        factor = tables[number, FACTOR]
        if tables[number, LEFT] >= 0:
            _message(nodes, work, tables[number, LEFT], UP, tables[number, RIGHT], UP, number, UP)
        else:
            if factor == ONES:
                for e in range(tables[number, ENTRIES]):
                    arena[tables[number, UP] + e] = 1.0
            elif factor < given:
                _load(factors, states, positions, nodes, work, number)
            facts[number, LOST] = 0.0
            _rescale(work, tables[number, UP], tables[number, ENTRIES], number, 0)
        # Exponents are integers: their sum is exact.
        exponents += facts[number, EXPONENT]
        if tables[number, PARENT] < 0:
            value = arena[tables[number, UP]]
            # Not `lost > tolerance`: a bound of nan must be doubtful too.
            if not facts[number, LOST] <= LOSS_TOLERANCE * value:
                return DOUBTFUL
            if value == 0.0:
                return IMPOSSIBLE
            logarithms += np.log(value)
    log_values[row] = logarithms + exponents * LOG_2
    return ANSWERED


@part
def _distribute(nodes: Any, work: Any) -> None:
    """Compute the wanted messages down."""
    tables, facts = nodes.tables, work.facts
    for number in range(nodes.counts[TABLES] - 1, -1, -1):
        if not tables[number, WANTED]:
            continue
        parent = tables[number, PARENT]
        if parent < 0:
            work.arena[tables[number, DOWN]] = 1.0
            facts[number, DOWNWARD + LOST], facts[number, DOWNWARD + LEAST] = 0.0, 1.0
        else:
            # -1 for an only child, whose RIGHT is -1: the number 1.
            sibling = tables[parent, LEFT] + tables[parent, RIGHT] - number
            _message(nodes, work, parent, DOWN, sibling, UP, number, DOWN)


@part
def _read(nodes: Any, work: Any, host: int, position: int, start: int, posteriors: Any) -> bool:
    """Write the posterior of a position; return False if underflow may have moved too much of it.

    nodes, work: tables and numbers of the row.
    host: table to read from.
    position: to read.
    start: offset in `posteriors`.
    """
    arena, facts = work.arena, work.facts
    size = nodes.sizes[position]
    # The end of the arena is for posteriors.
    place = nodes.counts[ARENA] - size
    nodes.scopes[nodes.counts[SCOPES]] = position
    scope, up, lost_up, least_up = _operand(nodes.tables, facts, host, UP)
    _, down, lost_down, least_down = _operand(nodes.tables, facts, host, DOWN)
    arena[place : place + size] = 0.0
    groups = _write_axes(nodes.scopes, nodes.sizes, work.axes, scope, scope, (nodes.counts[SCOPES], np.int64(1)))
    contract(arena, work.axes, work.counters, groups, up, down, np.uint64(place))
    total = 0.0
    for e in range(size):
        total += arena[place + e]
    for e in range(size):
        posteriors[start + e] = arena[place + e] / total
    lost = lost_up + lost_down + lost_up * lost_down
    if least_up * least_down < TINY:
        lost += TINY
    return bool(lost == 0 or lost * nodes.tables[host, ENTRIES] <= LOSS_TOLERANCE * total)
