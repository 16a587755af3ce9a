"""The row engine: every row of evidence is planned and propagated on its own in compiled code (Numba).

Main function: `answer_rows`, called by `junctor.backends.row_trees`. Rows that observe different variables share
nothing, but each row's evidence, and every state that it makes impossible, is cut out of the factors, and the rest is
small. The tree of a row is a binary join tree (Shenoy 1997, `plan`).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import as_bits, as_float, jit
from junctor_kernels.cpu.jit import loops as _loops
from junctor_kernels.cpu.jit import part as _part
from junctor_kernels.cpu.vectors import (
    add,
    first_lanes,
    highest,
    larger,
    least_above_zero,
    load4,
    load8,
    lowest,
    multiply_add,
    pair_sums,
    spread4,
    spread8,
    store,
)
from junctor_kernels.row_trees.domains import FIRST_STATE, KNOWN, STATES, WEIGHT, narrow
from junctor_kernels.row_trees.plan import (
    ARENA,
    BEHIND,
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
    Factors,
    find_relevant,
    plan_relevant,
)

# Every message is a contraction of two tables, out[kept] = sum over the rest of one[..] * other[..]. Messages go up
# (from both children of a table) and down (to a child from its parent and its sibling), and a posterior is read off one
# table by the product of both. Numbers are doubles. A message whose largest entry is far from 1 is divided by the power
# of two that brings it into [0.5, 1), exactly. Each message carries a bound on the loss of each entry to underflow: 0
# unless the smallest entries of its operands could have met.

# Fused multiply-add is the only liberty taken with IEEE arithmetic.
loops, part = partial(_loops, fastmath={"contract"}), partial(_part, fastmath={"contract"})
inlined = partial(jit, fastmath={"contract"}, inline=True, arrays=False, part=True)

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
    """Write the contraction of two tables to a third; up to 7 entries behind that one are overwritten.

    arena: of all tables.
    axes, counters: of a RowWorkspace; the first `groups` axes count.
    one, other, out: offsets of the tables.
    """
    zero, unit = np.uint64(0), np.uint64(1)
    # Dot products where the innermost axis is eliminated; else the first eliminated axis becomes the inner loop, with
    # results in registers.
    dots = axes[0, OUT] == zero and axes[0, SIZE] > unit
    loop = 1
    while not dots and loop < groups and axes[loop, OUT] != zero:
        loop += 1
    # The first axis that is left is a loop around it.
    around = 2 if loop == 1 else 1
    terms = _axis(axes, groups, loop)
    lines = _axis(axes, groups, around)
    # Sums over further axes are added to what is there.
    adds = dots and terms[OUT] == zero and terms[SIZE] > unit
    for g in range(1, groups):
        counters[g] = zero
        adds |= g != loop and axes[g, OUT] == zero
    if adds:
        entries = unit
        for g in range(groups):
            if axes[g, OUT] != zero:
                entries *= axes[g, SIZE]
        for e in range(out, out + entries):
            arena[e] = 0.0
    a, b, c = one, other, out
    size, sa, sb = axes[0, SIZE], axes[0, ONE], axes[0, OTHER]
    while True:
        if dots:
            _dots(arena, a, b, c, size, sa, sb, terms, lines, adds)
        elif sa != zero and sb != zero:
            _products(arena, a, b, c, size, terms, lines, adds)
        elif sa != zero:
            _multiples(arena, a, b, c, size, terms, lines, adds)
        elif sb != zero:
            _multiples(arena, b, a, c, size, _swapped(terms), _swapped(lines), adds)
        else:
            _constant(arena, a, b, c, size, terms, lines, adds)
        g = around + 1
        while g < groups:
            if g != loop:
                counters[g] += unit
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


@inlined
def _axis(axes: Any, groups: int, axis: int) -> Any:
    """Return the entries and strides of an axis, one entry where there is none."""
    if axis < groups:
        return axes[axis, SIZE], axes[axis, ONE], axes[axis, OTHER], axes[axis, OUT]
    return np.uint64(1), np.uint64(0), np.uint64(0), np.uint64(0)


@inlined
def _swapped(axis: Any) -> Any:
    """Return an axis with the operands exchanged."""
    return axis[SIZE], axis[OTHER], axis[ONE], axis[OUT]


@inlined
def _put4(arena: Any, at: Any, sums: Any, left: Any, adds: Any) -> None:
    """Write the first `left` of four sums, and anything behind them, or add them to what is there."""
    if adds:
        sums = add(load4(arena, at), first_lanes(sums, left))
    store(arena, at, sums)


@inlined
def _put8(arena: Any, at: Any, sums: Any, left: Any, adds: Any) -> None:
    """Write the first `left` of eight sums, and anything behind them, or add them to what is there."""
    if adds:
        sums = add(load8(arena, at), first_lanes(sums, left))
    store(arena, at, sums)


# Loops over vectors of eight or four neighbouring entries; the last one has entries that do not belong to the table.


@part
def _products(arena: Any, a: Any, b: Any, c: Any, size: Any, terms: Any, lines: Any, adds: Any) -> None:
    """out[l, j] = sum over t of one[l, t, j] * other[l, t, j]."""
    count, step_a, step_b = terms[SIZE], terms[ONE], terms[OTHER]
    four, eight = np.uint64(4), np.uint64(8)
    for _ in range(lines[SIZE]):
        j = np.uint64(0)
        # Two sums at a time: one alone would wait for every addition.
        while j + eight + eight <= size:
            x = y = spread8(0.0)
            p, q = a + j, b + j
            for _ in range(count):
                x = multiply_add(load8(arena, p), load8(arena, q), x)
                y = multiply_add(load8(arena, p + eight), load8(arena, q + eight), y)
                p += step_a
                q += step_b
            _put8(arena, c + j, x, eight, adds)
            _put8(arena, c + j + eight, y, eight, adds)
            j += eight + eight
        while j + four < size:
            x = spread8(0.0)
            p, q = a + j, b + j
            for _ in range(count):
                x = multiply_add(load8(arena, p), load8(arena, q), x)
                p += step_a
                q += step_b
            _put8(arena, c + j, x, size - j, adds)
            j += eight
        if j < size:
            z = spread4(0.0)
            p, q = a + j, b + j
            for _ in range(count):
                z = multiply_add(load4(arena, p), load4(arena, q), z)
                p += step_a
                q += step_b
            _put4(arena, c + j, z, size - j, adds)
        a += lines[ONE]
        b += lines[OTHER]
        c += lines[OUT]


@part
def _multiples(arena: Any, a: Any, b: Any, c: Any, size: Any, terms: Any, lines: Any, adds: Any) -> None:
    """out[l, j] = sum over t of one[l, t, j] * other[l, t]; terms whose factor is zero are skipped."""
    count, step_a, step_b = terms[SIZE], terms[ONE], terms[OTHER]
    four, eight = np.uint64(4), np.uint64(8)
    for _ in range(lines[SIZE]):
        j = np.uint64(0)
        while j + eight + eight <= size:
            x = y = spread8(0.0)
            p, q = a + j, b
            for _ in range(count):
                f = arena[q]
                if f != 0.0:
                    x = multiply_add(load8(arena, p), spread8(f), x)
                    y = multiply_add(load8(arena, p + eight), spread8(f), y)
                p += step_a
                q += step_b
            _put8(arena, c + j, x, eight, adds)
            _put8(arena, c + j + eight, y, eight, adds)
            j += eight + eight
        while j + four < size:
            x = spread8(0.0)
            p, q = a + j, b
            for _ in range(count):
                f = arena[q]
                if f != 0.0:
                    x = multiply_add(load8(arena, p), spread8(f), x)
                p += step_a
                q += step_b
            _put8(arena, c + j, x, size - j, adds)
            j += eight
        if j < size:
            z = spread4(0.0)
            p, q = a + j, b
            for _ in range(count):
                f = arena[q]
                if f != 0.0:
                    z = multiply_add(load4(arena, p), spread4(f), z)
                p += step_a
                q += step_b
            _put4(arena, c + j, z, size - j, adds)
        a += lines[ONE]
        b += lines[OTHER]
        c += lines[OUT]


@part
def _constant(arena: Any, a: Any, b: Any, c: Any, size: Any, terms: Any, lines: Any, adds: Any) -> None:
    """out[l, j] = sum over t of one[l, t] * other[l, t]."""
    for _ in range(lines[SIZE]):
        x = 0.0
        p, q = a, b
        for _ in range(terms[SIZE]):
            x += arena[p] * arena[q]
            p += terms[ONE]
            q += terms[OTHER]
        for j in range(size):
            arena[c + j] = arena[c + j] + x if adds else x
        a += lines[ONE]
        b += lines[OTHER]
        c += lines[OUT]


@part
def _dots(arena: Any, a: Any, b: Any, c: Any, size: Any, sa: Any, sb: Any, terms: Any, lines: Any, adds: Any) -> None:
    """out[l, t] = sum over j of one[l, t, j] * other[l, t, j], where an operand may not have j."""
    zero, unit, four = np.uint64(0), np.uint64(1), np.uint64(4)
    count, step_a, step_b, step_c = terms
    for _ in range(lines[SIZE]):
        p, q, r, t = a, b, c, zero
        if sa != zero and sb != zero:
            # Neighbouring results, so that four of them are a vector.
            while step_c == unit and t + four <= count:
                x = _four_dots(arena, p, q, size, step_a, step_b)
                _put4(arena, r, x, four, adds)
                p, q, r, t = p + four * step_a, q + four * step_b, r + four, t + four
            while t < count:
                x = _dot(arena, p, q, size)
                arena[r] = arena[r] + x if adds else x
                p, q, r, t = p + step_a, q + step_b, r + step_c, t + unit
        else:
            while t < count:
                x = _total(arena, p, size) * arena[q] if sa != zero else _total(arena, q, size) * arena[p]
                arena[r] = arena[r] + x if adds else x
                p, q, r, t = p + step_a, q + step_b, r + step_c, t + unit
        a += lines[ONE]
        b += lines[OTHER]
        c += lines[OUT]


# A dot product is four sums, of every fourth term, the last terms among the first of them: one alone would wait for
# every addition.


@inlined
def _four_dots(arena: Any, p: Any, q: Any, size: Any, step_a: Any, step_b: Any) -> Any:
    """Return the dot products of four rows, `step_a` and `step_b` entries apart."""
    unit, four = np.uint64(1), np.uint64(4)
    p1, p2, p3 = p + step_a, p + step_a + step_a, p + step_a + step_a + step_a
    q1, q2, q3 = q + step_b, q + step_b + step_b, q + step_b + step_b + step_b
    x0 = x1 = x2 = x3 = spread4(0.0)
    j = np.uint64(0)
    while j + four <= size:
        x0 = multiply_add(load4(arena, p + j), load4(arena, q + j), x0)
        x1 = multiply_add(load4(arena, p1 + j), load4(arena, q1 + j), x1)
        x2 = multiply_add(load4(arena, p2 + j), load4(arena, q2 + j), x2)
        x3 = multiply_add(load4(arena, p3 + j), load4(arena, q3 + j), x3)
        j += four
    while j < size:
        x0 = multiply_add(first_lanes(load4(arena, p + j), unit), first_lanes(load4(arena, q + j), unit), x0)
        x1 = multiply_add(first_lanes(load4(arena, p1 + j), unit), first_lanes(load4(arena, q1 + j), unit), x1)
        x2 = multiply_add(first_lanes(load4(arena, p2 + j), unit), first_lanes(load4(arena, q2 + j), unit), x2)
        x3 = multiply_add(first_lanes(load4(arena, p3 + j), unit), first_lanes(load4(arena, q3 + j), unit), x3)
        j += unit
    return pair_sums(x0, x1, x2, x3)


@inlined
def _dot(arena: Any, p: Any, q: Any, size: Any) -> float:
    """Return the dot product of two rows."""
    unit, u2, u3, four = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    x0 = x1 = x2 = x3 = 0.0
    j = np.uint64(0)
    while j + four <= size:
        x0 += arena[p + j] * arena[q + j]
        x1 += arena[p + j + unit] * arena[q + j + unit]
        x2 += arena[p + j + u2] * arena[q + j + u2]
        x3 += arena[p + j + u3] * arena[q + j + u3]
        j += four
    while j < size:
        x0 += arena[p + j] * arena[q + j]
        j += unit
    return (x0 + x1) + (x2 + x3)


@inlined
def _total(arena: Any, p: Any, size: Any) -> float:
    """Return the sum of a row."""
    unit, u2, u3, four = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    x0 = x1 = x2 = x3 = 0.0
    j = np.uint64(0)
    while j + four <= size:
        x0 += arena[p + j]
        x1 += arena[p + j + unit]
        x2 += arena[p + j + u2]
        x3 += arena[p + j + u3]
        j += four
    while j < size:
        x0 += arena[p + j]
        j += unit
    return (x0 + x1) + (x2 + x3)


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
    """Write the facts of a message; one number, or largest entries far from 1, are first brought into [0.5, 1)."""
    arena, facts = work.arena, work.facts
    high, low = spread8(0.0), spread8(np.inf)
    for e in range(place, place + entries - 7, 8):
        line = load8(arena, e)
        high, low = larger(line, high), least_above_zero(low, line)
    rest = entries % 8
    line = first_lanes(load8(arena, place + entries - rest), rest)
    high, low = larger(line, high), least_above_zero(low, line)
    largest, least = as_bits(highest(high)), lowest(low)
    facts[number, EXPONENT + side], facts[number, LEAST + side] = 0.0, 1.0
    if largest == np.uint64(0):
        return
    exponent = np.int64(largest >> np.uint64(52)) - 1022
    if exponent < -1021:
        # Below the normal numbers even the largest entry has lost digits.
        facts[number, LOST + side] = np.inf
    facts[number, LEAST + side] = least
    # Most tables need no pass of scaling. Numbers of a root are always scaled: the logarithm has the same digits then.
    if entries > 1 and -FAR < exponent < FAR:
        return
    factor = as_float(np.uint64(1023 - exponent) << np.uint64(52))
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


@part
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


@loops
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
    results: posteriors float64 [rows, entries], log P(e) float64 [rows], status int64 [rows].
    """
    states, soft, likelihoods, places = evidence
    tree, domains, work = room
    posteriors, log_values, status = results
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
        status[row] = _propagate(factors, wanted, starts, tree, domains, work, posteriors[row], log_values, row)
        log_values[row] += known
    return int(states.shape[0])


@part
def _load_likelihoods(
    given: int, soft: Any, likelihoods: Any, places: Any, tree: Any, domains: Any, work: Any
) -> float:
    """Write the likelihoods of a row; return the logarithm of those of variables with one possible state."""
    nodes, states = tree.nodes, domains.states
    for number in range(nodes.counts[TABLES]):
        kind = nodes.tables[number, FACTOR] - given
        if kind >= 0:
            place, first = nodes.tables[number, UP], domains.variables[FIRST_STATE, soft[kind]]
            for e in range(nodes.tables[number, ENTRIES]):
                work.arena[place + e] = likelihoods[places[kind] + states[first + e]]
    known = 0.0
    for kind in range(soft.size):
        if soft[kind] >= 0 and tree.position[soft[kind]] == -2:
            known += np.log(likelihoods[places[kind] + domains.variables[KNOWN, soft[kind]]])
    return known


@part
def _propagate(
    factors: Any,
    wanted: Any,
    starts: Any,
    tree: Any,
    domains: Any,
    work: Any,
    posteriors: Any,
    log_values: Any,
    row: int,
) -> int:
    """Pass messages up and down the tree of a row, write its posteriors, and return its status."""
    nodes, variables = tree.nodes, domains.variables
    # Entry 0 is the number 1, the operand of tables with one child.
    work.arena[0] = 1.0
    load_leaves(factors, variables[KNOWN], variables[FIRST_STATE], domains.states, tree.position, nodes, work)
    status = collect(nodes, work, log_values, row)
    if status != ANSWERED:
        return int(status)
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
def collect(nodes: Any, work: Any, log_values: Any, row: int) -> int:
    """Compute all messages up from those of the leaves, and log P(e) of the row from the roots; return its status."""
    tables, facts, arena = nodes.tables, work.facts, work.arena
    exponents, logarithms = 0.0, 0.0
    for number in range(nodes.counts[TABLES]):
        if tables[number, LEFT] >= 0:
            _message(nodes, work, tables[number, LEFT], UP, tables[number, RIGHT], UP, number, UP)
        else:
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
def distribute(nodes: Any, work: Any) -> None:
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
    groups = _write_axes(nodes.scopes, nodes.sizes, work.axes, scope, scope, (nodes.counts[SCOPES], np.int64(1)))
    contract(arena, work.axes, work.counters, groups, up, down, np.uint64(place))
    total = 0.0
    for e in range(size):
        total += arena[place + e]
    for e in range(size):
        posteriors[start + possible[e]] = arena[place + e] / total
    lost = lost_up + lost_down + lost_up * lost_down
    if least_up * least_down < TINY:
        lost += TINY
    return bool(lost == 0 or lost * nodes.tables[host, ENTRIES] <= LOSS_TOLERANCE * total)
