"""Contractions of two tables of one row: out[kept] = sum over the rest of one[..] * other[..] (Numba).

Main function: `contract`, called by `propagate` for every message. Vectors hold neighbouring entries of the innermost
axis where it is long enough to fill them, else of several axes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from junctor_kernels.cpu.vectors import (
    add,
    load8,
    multiply,
    multiply_add,
    permuted,
    spread8,
    store,
)
from junctor_kernels.row_trees import tiles
from junctor_kernels.row_trees.inner_loops import (
    WIDTH,
    along,
    constant,
    dots,
    inlined,
    part,
    swapped,
)
from junctor_kernels.row_trees.tiles import LONG, multiply_tiled
from junctor_kernels.row_trees.walk import COLUMNS, MOST, ONE, OTHER, OUT, SIZE, UNIT, ZERO, next_entry

# Rows of axes and counters: those of a contraction, which has at most the axes of its three tables, and behind them the
# axes of results.
LINES = MOST
ROWS = max(2 * LINES, tiles.LINES)
# Multiply-adds up to which loops over the innermost axis are faster than vectors over several axes, whose lanes have to
# be found first; measured on andes, diabetes and munin2.
FEW = np.uint64(64)
# Axes and multiply-adds up to which the order of axes is left alone, and multiply-adds that are worth a call of a loop.
FEW_AXES, IN_CACHE, CALL_WORK = 3, np.uint64(1 << 13), np.uint64(512)
# Lanes of a vector as bytes of a word: ones.
EACH = np.uint64(0x0101010101010101)
BYTE = np.uint64(8)


@inlined
def contract(work: Any, groups: int, one: Any, other: Any, out: Any) -> None:
    """Write the contraction of two tables to a third; up to 7 entries behind that one are overwritten.

    work: RowWorkspace; up to 7 entries of its arena behind an operand are read, and the first `groups` axes count, and
        may be overwritten.
    one, other, out: offsets of the tables.
    """
    entries = UNIT
    for g in range(groups):
        entries *= work.axes[g, SIZE]
    # Arrays that only large tables need are left out of other calls, which copy all that they are given.
    if entries < tiles.LEAST or not multiply_tiled(work, groups, one, other, out, False):
        _contract(work.arena, work.axes, work.counters, groups, entries, one, other, out)


@part
def _contract(arena: Any, axes: Any, counters: Any, groups: int, entries: Any, one: Any, other: Any, out: Any) -> None:
    """Contract two tables without tiles."""
    if axes[0, SIZE] < LONG and (entries <= WIDTH or entries > FEW):
        _contract_packed(arena, axes, counters, groups, one, other, out)
    else:
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
        for column in range(COLUMNS):
            axes[to, column] = axes[g, column]
    return inner, lines


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
        a1, b1, c1, _ = next_entry(axes, counters, LINES, lines, a0, b0, c0)
        a2, b2, c2, _ = next_entry(axes, counters, LINES, lines, a1, b1, c1)
        a3, b3, c3, _ = next_entry(axes, counters, LINES, lines, a2, b2, c2)
        a, b, c, _ = next_entry(axes, counters, LINES, lines, a3, b3, c3)
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
            u, v, _, g = next_entry(axes, counters, first + 1, inner, u, v, ZERO)
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
    # results in registers. The first axis that is left is a loop around it.
    sums_inner = axes[0, OUT] == zero and axes[0, SIZE] > unit
    more = unit, zero, zero, zero
    if sums_inner:
        # Another axis is summed out in registers, too.
        more, groups = _taken(axes, groups)
        terms, around = _axis(axes, groups, 1), 2
    else:
        terms, groups = _taken(axes, groups)
        around = 1
    lines = _axis(axes, groups, around)
    # Sums over further axes are added to what is there.
    adds = sums_inner and terms[OUT] == zero and terms[SIZE] > unit
    for g in range(around, groups):
        counters[g] = zero
        adds |= axes[g, OUT] == zero
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
        if sums_inner:
            dots(arena, (a, b, c), (size, sa, sb), more, terms, lines, adds)
        elif sa != zero and sb != zero:
            along(arena, a, b, c, size, terms, lines, adds, True)
        elif sa != zero:
            along(arena, a, b, c, size, terms, lines, adds, None)
        elif sb != zero:
            along(arena, b, a, c, size, swapped(terms), swapped(lines), adds, None)
        else:
            constant(arena, a, b, c, size, terms, lines, adds)
        a, b, c, g = next_entry(axes, counters, around + 1, groups, a, b, c)
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
                for column in range(COLUMNS):
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
                for column in range(COLUMNS):
                    axes[to, column] = axes[to + 1, column]
            return found, groups - 1
    return (UNIT, ZERO, ZERO, ZERO), groups


@inlined
def _axis(axes: Any, groups: int, axis: int) -> Any:
    """Return the entries and strides of an axis, one entry where there is none."""
    if axis < groups:
        return axes[axis, SIZE], axes[axis, ONE], axes[axis, OTHER], axes[axis, OUT]
    return np.uint64(1), np.uint64(0), np.uint64(0), np.uint64(0)
