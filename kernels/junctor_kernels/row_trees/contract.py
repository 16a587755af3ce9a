"""Contractions of two tables of one row: out[kept] = sum over the rest of one[..] * other[..] (Numba).

Main function: `contract`, called by `propagate` for every message. Vectors hold neighbouring entries of the innermost
axis where it is long enough to fill them, else of several axes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from junctor_kernels.cpu.jit import jit
from junctor_kernels.cpu.jit import loops as _loops
from junctor_kernels.cpu.jit import part as _part
from junctor_kernels.cpu.vectors import (
    add,
    first_lanes,
    halves_sum,
    lane,
    load4,
    load8,
    multiply,
    multiply_add,
    pair_sums,
    permuted,
    spread4,
    spread8,
    store,
    store_apart,
    store_first,
)
from junctor_kernels.row_trees.plan import MOST_AXES

# Fused multiply-add is the only liberty taken with IEEE arithmetic.
loops, part = partial(_loops, fastmath={"contract"}), partial(_part, fastmath={"contract"})
inlined = partial(jit, fastmath={"contract"}, inline=True, arrays=False, part=True)

# Axes of a contraction: entries, then the stride in each operand and in the result; innermost first.
SIZE, ONE, OTHER, OUT = 0, 1, 2, 3
# Rows of axes and counters: those of a contraction, which has at most the axes of its three tables, and behind them the
# axes of results.
LINES = 3 * MOST_AXES
ROWS = 2 * LINES
# Lanes of a vector. An innermost axis of so many entries or more fills vectors by itself.
WIDTH, LONG = np.uint64(8), np.uint64(5)
# Multiply-adds up to which loops over the innermost axis are faster than vectors over several axes, whose lanes have to
# be found first; measured on andes, diabetes and munin2.
FEW = np.uint64(64)
# Axes and multiply-adds up to which the order of axes is left alone, and multiply-adds that are worth a call of a loop.
FEW_AXES, IN_CACHE, CALL_WORK = 3, np.uint64(1 << 13), np.uint64(512)
# Lanes of a vector as bytes of a word: ones.
EACH = np.uint64(0x0101010101010101)
ZERO, UNIT, BYTE = np.uint64(0), np.uint64(1), np.uint64(8)


@inlined
def write_axes(scopes: Any, sizes: Any, axes: Any, one: Any, other: Any, out: Any) -> int:
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


@loops
def contract(arena: Any, axes: Any, counters: Any, groups: int, one: Any, other: Any, out: Any) -> None:
    """Write the contraction of two tables to a third; up to 7 entries behind that one are overwritten.

    arena: of all tables; up to 7 entries behind an operand are read.
    axes, counters: of a RowWorkspace; the first `groups` axes count, and may be overwritten.
    one, other, out: offsets of the tables.
    """
    if axes[0, SIZE] < LONG:
        entries = UNIT
        for g in range(groups):
            entries *= axes[g, SIZE]
        if entries <= WIDTH or entries > FEW:
            _contract_packed(arena, axes, counters, groups, one, other, out)
            return
    _contract_inner(arena, axes, counters, groups, one, other, out)


# Vectors of eight entries over several axes.


@part
def _contract_packed(arena: Any, axes: Any, counters: Any, groups: int, one: Any, other: Any, out: Any) -> None:
    """Contract two tables by vectors over as many inner axes as fit.

    Tables of a tree have their axes in one order, so these axes are neighbouring entries in each table: a vector is a
    permutation of what an operand has of them.
    """
    # The source of each lane in both operands; the lane of each result, and the distances of the lanes that are added
    # up for it.
    packed, lanes, kept, summed = 0, UNIT, UNIT, UNIT
    from_one = from_other = results = terms = ZERO
    while packed < groups and lanes * axes[packed, SIZE] <= WIDTH:
        size = axes[packed, SIZE]
        from_one = _widened(from_one, lanes, size, axes[packed, ONE])
        from_other = _widened(from_other, lanes, size, axes[packed, OTHER])
        if axes[packed, OUT] != ZERO:
            results = _widened(results, kept, size, lanes)
            kept *= size
        else:
            terms = _widened(terms, summed, size, lanes)
            summed *= size
        lanes *= size
        packed += 1
    if packed == groups:
        x = multiply(permuted(load8(arena, one), from_one), permuted(load8(arena, other), from_other))
        _put_sums(arena, out, x, results, terms, summed)
        return
    share = WIDTH // lanes
    if share > UNIT and axes[packed, OUT] != ZERO:
        # Some entries of the next axis. Its last vector may have lanes of no result, which the next one overwrites.
        from_one = _widened(from_one, lanes, share, axes[packed, ONE])
        from_other = _widened(from_other, lanes, share, axes[packed, OTHER])
        results = _widened(results, kept, share, lanes)
        axes[packed, SIZE] = (axes[packed, SIZE] + share - UNIT) // share
        for table in range(ONE, OUT + 1):
            axes[packed, table] *= share
    inner, lines = _sorted(axes, counters, packed, groups)
    places, sources, sums = (one, other, out), (from_one, from_other), (results, terms, summed)
    _tiles(arena, axes, counters, (packed, inner, lines), places, sources, sums)


@inlined
def _widened(word: Any, lanes: Any, size: Any, step: Any) -> Any:
    """Return the places of lanes with one more axis outside of the others: `size` times as many, `step` apart."""
    shift = BYTE * lanes
    step *= EACH >> (BYTE * (WIDTH - lanes))
    block, at = word, shift
    for _ in range(size - UNIT):
        block += step
        word |= block << at
        at += shift
    return word


@inlined
def _put_sums(arena: Any, at: Any, x: Any, results: Any, terms: Any, summed: Any) -> None:
    """Write the results of a vector of products, and anything in the lanes that are left.

    results: lane of each.
    terms: distances of the lanes that are added up, the first of them 0.
    summed: their number; 1: each lane is a result.
    """
    if summed != UNIT:
        total = permuted(x, results)
        for _ in range(summed - UNIT):
            terms >>= BYTE
            total = add(total, permuted(x, results + (terms & np.uint64(7)) * EACH))
        x = total
    store(arena, at, x)


@part
def _sorted(axes: Any, counters: Any, first: int, groups: int) -> Any:
    """Bring eliminated axes from `first` on together, and kept ones from LINES on; return where both end."""
    inner, lines = first, LINES
    for g in range(first, groups):
        to = lines
        if axes[g, OUT] == ZERO:
            to = inner
            inner += 1
        else:
            lines += 1
        counters[to] = ZERO
        for column in range(4):
            axes[to, column] = axes[g, column]
    return inner, lines


@inlined
def _next(axes: Any, counters: Any, first: int, end: int, a: Any, b: Any, c: Any) -> Any:
    """Step along some axes, from the last entry to the first one; return offsets in all three tables.

    Also the axis that went on, `end` behind the last entry. Eliminated axes have no stride in the result.
    """
    g = first
    while g < end:
        counters[g] += UNIT
        a += axes[g, ONE]
        b += axes[g, OTHER]
        c += axes[g, OUT]
        if counters[g] < axes[g, SIZE]:
            break
        a -= axes[g, SIZE] * axes[g, ONE]
        b -= axes[g, SIZE] * axes[g, OTHER]
        c -= axes[g, SIZE] * axes[g, OUT]
        counters[g] = ZERO
        g += 1
    return a, b, c, g


@inlined
def _product(arena: Any, at: Any, places: Any, sources: Any, total: Any) -> Any:
    """Return the products of two vectors, added to a total."""
    one = permuted(load8(arena, places[0] + at[0]), sources[0])
    return multiply_add(one, permuted(load8(arena, places[1] + at[1]), sources[1]), total)


@part
def _tiles(arena: Any, axes: Any, counters: Any, ranges: Any, places: Any, sources: Any, sums: Any) -> None:
    """Write all vectors of results, four at a time: one alone would wait for every addition.

    ranges: first eliminated axis, ends of the eliminated and of the kept ones.
    places: offsets of the tables.
    sources, sums: lanes of operands and results.
    """
    first, inner, lines = ranges
    count = step_a = step_b = left = UNIT
    if first < inner:
        count, step_a, step_b = axes[first, SIZE], axes[first, ONE], axes[first, OTHER]
    for g in range(LINES, lines):
        left *= axes[g, SIZE]
    a, b, c = places
    while True:
        a0, b0, c0 = a, b, c
        a1, b1, c1, _ = _next(axes, counters, LINES, lines, a0, b0, c0)
        a2, b2, c2, _ = _next(axes, counters, LINES, lines, a1, b1, c1)
        a3, b3, c3, _ = _next(axes, counters, LINES, lines, a2, b2, c2)
        a, b, c, _ = _next(axes, counters, LINES, lines, a3, b3, c3)
        x0 = x1 = x2 = x3 = spread8(0.0)
        u = v = ZERO
        while True:
            p, q = u, v
            for _ in range(count):
                x0 = _product(arena, (p, q), (a0, b0), sources, x0)
                x1 = _product(arena, (p, q), (a1, b1), sources, x1)
                x2 = _product(arena, (p, q), (a2, b2), sources, x2)
                x3 = _product(arena, (p, q), (a3, b3), sources, x3)
                p += step_a
                q += step_b
            u, v, _, g = _next(axes, counters, first + 1, inner, u, v, ZERO)
            if g >= inner:
                break
        # In this order, since each may write lanes of the next one. Lines behind the last are those from the first on.
        for i in range(min(left, np.uint64(4))):
            _put_sums(arena, (c0, c1, c2, c3)[i], x0, *sums)
            x0, x1, x2 = x1, x2, x3
        if left <= np.uint64(4):
            return
        left -= np.uint64(4)


# Loops over the innermost axis.


@inlined
def _contract_inner(arena: Any, axes: Any, counters: Any, groups: int, one: Any, other: Any, out: Any) -> None:
    """Contract two tables by vectors along their innermost axis."""
    zero, unit = np.uint64(0), np.uint64(1)
    if groups > FEW_AXES:
        entries = unit
        for g in range(groups):
            entries *= axes[g, SIZE]
        if entries > IN_CACHE:
            _shared_last(axes, groups)
    # Dot products where the innermost axis is eliminated; else the first eliminated axis becomes the inner loop, with
    # results in registers.
    dots = axes[0, OUT] == zero and axes[0, SIZE] > unit
    more = unit, zero, zero, zero
    if dots:
        # Another axis is summed out in registers, too.
        more, groups = _taken(axes, groups)
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
            _dots(arena, (a, b, c), (size, sa, sb), more, terms, lines, adds)
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


@part
def _shared_last(axes: Any, groups: int) -> None:
    """Bring axes that all tables have behind the others: nothing is read again along them.

    So what is read again along the others is still in the cache. Sums keep their order.
    """
    work = axes[0, SIZE]
    for g in range(1, groups):
        if not _is_shared(axes, g):
            work *= axes[g, SIZE]
    # The next axis is a loop in one call: not for a few multiply-adds.
    g = 1 if work >= CALL_WORK else 2
    left = groups
    while g < left:
        if _is_shared(axes, g):
            left -= 1
            shared = axes[g, SIZE], axes[g, ONE], axes[g, OTHER], axes[g, OUT]
            for to in range(g, groups - 1):
                for column in range(4):
                    axes[to, column] = axes[to + 1, column]
            axes[groups - 1, SIZE], axes[groups - 1, ONE], axes[groups - 1, OTHER], axes[groups - 1, OUT] = shared
        else:
            g += 1


@inlined
def _is_shared(axes: Any, g: int) -> bool:
    return bool(axes[g, ONE] != ZERO and axes[g, OTHER] != ZERO and axes[g, OUT] != ZERO)


@inlined
def _taken(axes: Any, groups: int) -> Any:
    """Return the next axis that is summed out, and how many axes are left without it."""
    for g in range(1, groups):
        if axes[g, OUT] == ZERO:
            found = axes[g, SIZE], axes[g, ONE], axes[g, OTHER], ZERO
            for to in range(g, groups - 1):
                for column in range(4):
                    axes[to, column] = axes[to + 1, column]
            return found, groups - 1
    return (UNIT, ZERO, ZERO, ZERO), groups


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
    """Write the first `left` of four sums, or add them to what is there."""
    if adds:
        store(arena, at, add(load4(arena, at), first_lanes(sums, left)))
    else:
        # Lines come in any order: what lies behind one may have been written.
        store_first(arena, at, sums, left)


@inlined
def _put8(arena: Any, at: Any, sums: Any, left: Any, adds: Any) -> None:
    """Write the first `left` of eight sums, or add them to what is there."""
    if adds:
        store(arena, at, add(load8(arena, at), first_lanes(sums, left)))
    else:
        store_first(arena, at, sums, left)


# Loops over vectors of eight or four neighbouring entries.


@part
def _products(arena: Any, a: Any, b: Any, c: Any, size: Any, terms: Any, lines: Any, adds: Any) -> None:
    """out[l, j] = sum over t of one[l, t, j] * other[l, t, j]."""
    count, step_a, step_b = terms[SIZE], terms[ONE], terms[OTHER]
    four, eight = np.uint64(4), np.uint64(8)
    for _ in range(lines[SIZE]):
        j = np.uint64(0)
        # Two sums at a time: one alone would wait for every addition.
        while j + eight < size:
            x = y = spread8(0.0)
            p, q = a + j, b + j
            for _ in range(count):
                x = multiply_add(load8(arena, p), load8(arena, q), x)
                y = multiply_add(load8(arena, p + eight), load8(arena, q + eight), y)
                p += step_a
                q += step_b
            _put8(arena, c + j, x, eight, adds)
            _put8(arena, c + j + eight, y, size - j - eight, adds)
            j += eight + eight
        if j + four < size:
            x = spread8(0.0)
            p, q = a + j, b + j
            for _ in range(count):
                x = multiply_add(load8(arena, p), load8(arena, q), x)
                p += step_a
                q += step_b
            _put8(arena, c + j, x, size - j, adds)
        elif j < size:
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
        while j + eight < size:
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
            _put8(arena, c + j + eight, y, size - j - eight, adds)
            j += eight + eight
        if j + four < size:
            x = spread8(0.0)
            p, q = a + j, b
            for _ in range(count):
                f = arena[q]
                if f != 0.0:
                    x = multiply_add(load8(arena, p), spread8(f), x)
                p += step_a
                q += step_b
            _put8(arena, c + j, x, size - j, adds)
        elif j < size:
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
def _dots(arena: Any, places: Any, inner: Any, more: Any, terms: Any, lines: Any, adds: Any) -> None:
    """out[l, t] = sum over m and j of one[l, t, m, j] * other[l, t, m, j], where an operand may not have j.

    places: offsets of the tables.
    inner: entries and strides of j.
    more: of m.
    """
    a, b, c = places
    size, sa, sb = inner
    unit, four = np.uint64(1), np.uint64(4)
    count, step_a, step_b, step_c = terms
    if sa != ZERO and sb != ZERO and step_a == ZERO:
        # A row that all share is the second one.
        a, b, step_a, step_b = b, a, step_b, step_a
        lines, more = _swapped(lines), _swapped(more)
    for _ in range(lines[SIZE]):
        p, q, r, t = a, b, c, ZERO
        if sa != ZERO and sb != ZERO:
            while t + four <= count:
                if step_b == ZERO:
                    x = _four_dots_of_one(arena, p, q, size, step_a, more)
                else:
                    x = _four_dots(arena, p, q, size, step_a, step_b, more)
                if step_c == unit:
                    _put4(arena, r, x, four, adds)
                elif adds:
                    for number in range(4):
                        arena[r + np.uint64(number) * step_c] += lane(x, number)
                else:
                    store_apart(arena, r, step_c, x)
                p, q, r, t = p + four * step_a, q + four * step_b, r + four * step_c, t + four
            while t < count:
                x = _dot(arena, p, q, size, more)
                arena[r] = arena[r] + x if adds else x
                p, q, r, t = p + step_a, q + step_b, r + step_c, t + unit
        else:
            while t < count:
                x, u, v = 0.0, p, q
                for _ in range(more[SIZE]):
                    x += _total(arena, u, size) * arena[v] if sa != ZERO else _total(arena, v, size) * arena[u]
                    u, v = u + more[ONE], v + more[OTHER]
                arena[r] = arena[r] + x if adds else x
                p, q, r, t = p + step_a, q + step_b, r + step_c, t + unit
        a += lines[ONE]
        b += lines[OTHER]
        c += lines[OUT]


# A dot product is eight sums, of every eighth term of its rows, the last terms of a row among the first of them: one
# alone would wait for every addition.


@inlined
def _four_dots(arena: Any, p: Any, q: Any, size: Any, step_a: Any, step_b: Any, more: Any) -> Any:
    """Return the dot products of four pairs of rows, `step_a` and `step_b` entries apart."""
    p1, p2, p3 = p + step_a, p + step_a + step_a, p + step_a + step_a + step_a
    q1, q2, q3 = q + step_b, q + step_b + step_b, q + step_b + step_b + step_b
    x0 = x1 = x2 = x3 = spread8(0.0)
    i = k = ZERO
    for _ in range(more[SIZE]):
        j = ZERO
        while j + WIDTH <= size:
            u, v = i + j, k + j
            x0 = multiply_add(load8(arena, p + u), load8(arena, q + v), x0)
            x1 = multiply_add(load8(arena, p1 + u), load8(arena, q1 + v), x1)
            x2 = multiply_add(load8(arena, p2 + u), load8(arena, q2 + v), x2)
            x3 = multiply_add(load8(arena, p3 + u), load8(arena, q3 + v), x3)
            j += WIDTH
        if j < size:
            u, v, rest = i + j, k + j, size - j
            x0 = multiply_add(_rest(arena, p + u, rest), _rest(arena, q + v, rest), x0)
            x1 = multiply_add(_rest(arena, p1 + u, rest), _rest(arena, q1 + v, rest), x1)
            x2 = multiply_add(_rest(arena, p2 + u, rest), _rest(arena, q2 + v, rest), x2)
            x3 = multiply_add(_rest(arena, p3 + u, rest), _rest(arena, q3 + v, rest), x3)
        i += more[ONE]
        k += more[OTHER]
    return pair_sums(halves_sum(x0), halves_sum(x1), halves_sum(x2), halves_sum(x3))


@inlined
def _four_dots_of_one(arena: Any, p: Any, q: Any, size: Any, step: Any, more: Any) -> Any:
    """Return the dot products of four rows, `step` entries apart, with one."""
    p1, p2, p3 = p + step, p + step + step, p + step + step + step
    x0 = x1 = x2 = x3 = spread8(0.0)
    i = k = ZERO
    for _ in range(more[SIZE]):
        j = ZERO
        while j + WIDTH <= size:
            u, y = i + j, load8(arena, q + k + j)
            x0 = multiply_add(load8(arena, p + u), y, x0)
            x1 = multiply_add(load8(arena, p1 + u), y, x1)
            x2 = multiply_add(load8(arena, p2 + u), y, x2)
            x3 = multiply_add(load8(arena, p3 + u), y, x3)
            j += WIDTH
        if j < size:
            u, rest = i + j, size - j
            y = _rest(arena, q + k + j, rest)
            x0 = multiply_add(_rest(arena, p + u, rest), y, x0)
            x1 = multiply_add(_rest(arena, p1 + u, rest), y, x1)
            x2 = multiply_add(_rest(arena, p2 + u, rest), y, x2)
            x3 = multiply_add(_rest(arena, p3 + u, rest), y, x3)
        i += more[ONE]
        k += more[OTHER]
    return pair_sums(halves_sum(x0), halves_sum(x1), halves_sum(x2), halves_sum(x3))


@inlined
def _rest(arena: Any, at: Any, count: Any) -> Any:
    """Return `count` entries, and zeros behind them."""
    return first_lanes(load8(arena, at), count)


@inlined
def _dot(arena: Any, p: Any, q: Any, size: Any, more: Any) -> float:
    """Return the dot product of two rows."""
    x, i, k = spread8(0.0), ZERO, ZERO
    for _ in range(more[SIZE]):
        j = ZERO
        while j + WIDTH <= size:
            x = multiply_add(load8(arena, p + i + j), load8(arena, q + k + j), x)
            j += WIDTH
        if j < size:
            x = multiply_add(_rest(arena, p + i + j, size - j), _rest(arena, q + k + j, size - j), x)
        i += more[ONE]
        k += more[OTHER]
    # As `pair_sums` adds them.
    y = halves_sum(x)
    return float(lane(pair_sums(y, y, y, y), 0))


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
