"""Contractions of two large tables of one row by tiles of results in registers (Numba), as matrices are multiplied.

Main function: `multiply_tiled`, called by `contract` and `maximise`. A tile is four or three *rows* times eight *lanes*
of results: one operand, the *wide* one, gives a vector for each term of the sums, and the other, the *tall* one, the
numbers or vectors that it is multiplied by. So most operands are in registers. Tables that are not read in the order in
which they lie are copied to panels first (Goto and van de Geijn 2008; for tensors Matthews 2018).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from junctor_kernels.cpu.vectors import lane, larger, load8, multiply, multiply_add, spread8, store, store_first
from junctor_kernels.row_trees.inner_loops import WIDTH, inlined, part
from junctor_kernels.row_trees.plan import MOST_AXES
from junctor_kernels.row_trees.walk import ONE, OTHER, OUT, SIZE, UNIT, ZERO, next_entry, repeat_places

TWO, THREE, FOUR = (np.uint64(number) for number in (2, 3, 4))
# An innermost axis of so many entries or more fills vectors by itself.
LONG = np.uint64(5)
# Kinds of axes, by the tables that have them: terms of a sum, lanes (the result and the wide operand), rows (the result
# and the tall operand), and all others: for each entry of theirs two matrices are multiplied. Each kind has lines in
# `axes`, from these on.
TERMS, LANES, ROWS, OTHERS = (MOST_AXES * kind for kind in (3, 4, 5, 6))
LINES = 7 * MOST_AXES
# Entries of the axes of a kind at the most, and numbers in a panel of the tall operand, which fit a second-level cache.
MOST_TERMS, MOST_ROWS, MOST_LANES, TALL = (np.uint64(1 << bits) for bits in (10, 12, 13, 15))
# Lists of places: of each term, lane and row in an operand, and of each lane and row in the result.
TERM_WIDE, TERM_TALL = ZERO, MOST_TERMS
ROW_TALL, ROW_OUT = TWO * MOST_TERMS, TWO * MOST_TERMS + MOST_ROWS
LANE_WIDE = ROW_OUT + MOST_ROWS
LANE_OUT = LANE_WIDE + MOST_LANES + WIDTH
PLACES, PANEL = int(LANE_OUT + MOST_LANES + WIDTH), int(TALL + MOST_TERMS * WIDTH)
# Fewer multiply-adds are not worth the lists.
LEAST = np.uint64(256)
# Nanoseconds, fitted to 698 contractions of eight networks and 621 with maxima (AMD with AVX2): a contraction, each
# multiply-add and each result without tiles, where the innermost axis fills vectors and where it does not, and, in
# vectors, for maxima; a contraction by copies and one in place, a vector of multiply-adds of each, and a tile of each;
# eight lanes, a number that is copied, and one that is written apart from its neighbours.
ALONG, PACKED, MAXIMA = (45.0, 0.21, 0.16), (180.0, 0.66, 0.58), (17.0, 1.1, 5.2)
OF_COPIES, IN_PLACE = (106.0, 0.6, 12.0), (94.0, 1.0, 3.3)
LANE, NUMBER, APART = 15.0, 0.56, 0.2
# Ways: without tiles, by copies and in place, the latter two with the second operand as the wide one where odd.
PLAIN, COPIED, DIRECT = 0, 2, 4


@inlined
def multiply_tiled(work: Any, groups: int, one: Any, other: Any, out: Any, largest: bool) -> bool:
    """Write the contraction of two tables by tiles; return False where other loops are forecast to be faster.

    Arguments as for `contract`.
    largest: whether the largest products are kept instead of their sums.
    """
    way = choose(work.axes, groups, largest)
    if way != PLAIN:
        room = work.panel, work.places
        by_tiles(work.arena, work.axes, work.counters, groups, (one, other, out), way, largest, *room)
    return bool(way != PLAIN)


@part
def choose(axes: Any, groups: int, largest: bool) -> int:
    """Return the way that is forecast to take least."""
    shared = first = second = terms = UNIT
    for g in range(groups):
        size = axes[g, SIZE]
        if axes[g, OUT] == ZERO:
            terms *= size
        elif axes[g, ONE] == ZERO:
            second *= size
        elif axes[g, OTHER] == ZERO:
            first *= size
        else:
            shared *= size
    if terms > MOST_TERMS:
        return PLAIN
    inner, kept = axes[0, SIZE], float(shared * first * second)
    start, multiplied, written = PACKED if inner < LONG else ALONG
    results = kept
    if largest:
        start, multiplied, written = MAXIMA
        if axes[0, OUT] != ZERO:
            results *= float((inner + WIDTH - UNIT) // WIDTH) / float(inner)
    least, best = start + results * (float(terms) * multiplied + written), PLAIN
    for second_is_wide in range(2):
        lanes, rows, wide, tall = first, second, ONE, OTHER
        if second_is_wide:
            lanes, rows, wide, tall = second, first, OTHER, ONE
        if rows > MOST_ROWS:
            continue
        tiles = (rows + THREE) // FOUR
        work = float(terms) * float(max(rows, THREE * tiles))
        is_shared = axes[0, wide] != ZERO and axes[0, tall] != ZERO
        if is_shared and axes[0, OUT] != ZERO:
            start, vector, tile = IN_PLACE
            vectors = float(shared // inner * ((inner + WIDTH - UNIT) // WIDTH) * lanes)
            time = start + vectors * (work * vector + float(tiles) * tile)
            if time < least:
                least, best = time, DIRECT + second_is_wide
        if lanes > MOST_LANES:
            continue
        start, vector, tile = OF_COPIES
        vectors = float(shared * ((lanes + WIDTH - UNIT) // WIDTH))
        time = start + vectors * (work * vector + float(tiles) * tile + LANE)
        time += float(shared * terms) * float(lanes + rows) * NUMBER
        if is_shared or axes[0, OUT] == ZERO or axes[0, wide] == ZERO:
            time += kept * APART
        if time < least:
            least, best = time, COPIED + second_is_wide
    return best


@part
def by_tiles(
    arena: Any,
    axes: Any,
    counters: Any,
    groups: int,
    tables: Any,
    way: int,
    largest: bool,
    panel: Any,
    places: Any,
) -> None:
    """Write a contraction in some way.

    tables: places of both operands and of the result.
    largest: whether the largest products are kept instead of their sums.
    panel: float64 [PANEL].
    places: uint64 [PLACES].
    """
    wide, tall, out = tables
    in_wide, in_tall = ONE, OTHER
    if way == COPIED + 1 or way == DIRECT + 1:
        wide, tall, in_wide, in_tall = tall, wide, OTHER, ONE
    first = 1 if way >= DIRECT else 0
    terms, lanes, rows, others = _sort(axes, counters, first, groups, in_wide, in_tall)
    count = _list(axes, counters, TERMS, terms, ONE, OTHER, places, TERM_WIDE, TERM_TALL)
    some = _list(axes, counters, ROWS, rows, OTHER, OUT, places, ROW_TALL, ROW_OUT)
    if way >= DIRECT:
        sizes = axes[0, SIZE], some, count
        _direct(arena, axes, counters, (lanes, others), (wide, tall, out), sizes, largest, places)
    else:
        many = _list(axes, counters, LANES, lanes, ONE, OUT, places, LANE_WIDE, LANE_OUT)
        for i in range(many, (many + WIDTH - UNIT) // WIDTH * WIDTH):
            # Vectors behind the last lane repeat it.
            places[LANE_WIDE + i], places[LANE_OUT + i] = places[LANE_WIDE + i - UNIT], places[LANE_OUT + i - UNIT]
        _copied(arena, axes, counters, others, (wide, tall, out), (many, some, count), largest, panel, places)


@part
def _sort(axes: Any, counters: Any, first: int, groups: int, wide: int, tall: int) -> Any:
    """Copy the axes to the lines of their kinds, with the strides of the wide operand first; return the ends of these.

    first: axis.
    wide, tall: columns of the operands.
    """
    terms, lanes, rows, others = TERMS, LANES, ROWS, OTHERS
    for g in range(first, groups):
        # As they are counted by `choose`: of two tables that have not an axis, it is one of the second.
        in_one, in_other = axes[g, ONE] != ZERO, axes[g, OTHER] != ZERO
        if axes[g, OUT] == ZERO:
            to, terms = terms, terms + 1
        elif in_one and in_other:
            to, others = others, others + 1
        elif in_one == (wide == ONE):
            to, lanes = lanes, lanes + 1
        else:
            to, rows = rows, rows + 1
        axes[to, SIZE], axes[to, OUT] = axes[g, SIZE], axes[g, OUT]
        axes[to, ONE], axes[to, OTHER] = axes[g, wide], axes[g, tall]
        counters[to] = ZERO
    return terms, lanes, rows, others


@part
def _list(
    axes: Any, counters: Any, first: Any, end: Any, one: int, two: int, places: Any, to_one: Any, to_two: Any
) -> Any:
    """Write the places of the entries of some axes in two tables, those of columns `one` and `two`; return how many."""
    places[to_one] = places[to_two] = ZERO
    count = UNIT
    for g in range(first, end):
        count = repeat_places(places[to_one:], places[to_two:], count, axes[g, SIZE], axes[g, one], axes[g, two])
    return count


@inlined
def _with(one: Any, other: Any, total: Any, largest: bool) -> Any:
    """Return a sum of products with one more, or the largest of them."""
    # The same branch every time, which takes nothing beside eight vectors.
    return larger(multiply(one, other), total) if largest else multiply_add(one, other, total)


@part
def _copied(
    arena: Any, axes: Any, counters: Any, end: Any, tables: Any, sizes: Any, largest: bool, panel: Any, places: Any
) -> None:
    """Write all tiles, from panels.

    end: of the lines of other axes.
    tables: places of the wide and the tall operand and of the result.
    sizes: lanes, rows, terms.
    """
    lanes, rows, terms = sizes
    # As many rows at a time as fit their panel.
    most, first = max(FOUR, TALL // terms // FOUR * FOUR), ZERO
    while first < rows:
        some = min(most, rows - first)
        a, b, c = tables
        done = False
        while not done:
            _copy_tall(arena, b, (first, some), terms, panel, places)
            begin = ZERO
            while begin < lanes:
                _copy_wide(arena, a, begin, terms, panel, places)
                _write_tiles(arena, c, (begin, lanes), (first, some), terms, largest, panel, places)
                begin += WIDTH
            a, b, c, g = next_entry(axes, counters, OTHERS, end, a, b, c)
            done = g >= end
        first += some


@inlined
def _rows_of(row: Any, rows: Any) -> Any:
    """Return how many rows the next tile has: four or three, so that as few as can be are left empty."""
    left = rows - row
    return FOUR if left > THREE * ((left + THREE) // FOUR) else THREE


@part
def _copy_tall(arena: Any, at: Any, some: Any, terms: Any, panel: Any, places: Any) -> None:
    """Copy rows of the tall operand to a panel, those of a tile beside each other; behind the last it is repeated."""
    first, rows = some
    to, row = ZERO, ZERO
    while row < rows:
        height = _rows_of(row, rows)
        for i in range(height):
            place, put = at + places[ROW_TALL + first + min(row + i, rows - UNIT)], to + i
            for k in range(terms):
                panel[put] = arena[place + places[TERM_TALL + k]]
                put += height
        to += height * terms
        row += height


@part
def _copy_wide(arena: Any, at: Any, begin: Any, terms: Any, panel: Any, places: Any) -> None:
    """Copy eight lanes of the wide operand to a panel."""
    first, to, beside = places[LANE_WIDE + begin], TALL, True
    for i in range(WIDTH):
        beside &= places[LANE_WIDE + begin + i] == first + i
    if beside:
        at += first
        for k in range(terms):
            store(panel, to, load8(arena, at + places[TERM_WIDE + k]))
            to += WIDTH
        return
    for i in range(WIDTH):
        place, to = at + places[LANE_WIDE + begin + i], TALL + i
        for k in range(terms):
            panel[to] = arena[place + places[TERM_WIDE + k]]
            to += WIDTH


@part
def _write_tiles(
    arena: Any, at: Any, these: Any, some: Any, terms: Any, largest: bool, panel: Any, places: Any
) -> None:
    """Write the tiles of eight lanes.

    at: place of the result.
    these: first lane, number of all lanes.
    some: first row, number of rows.
    """
    begin, lanes = these
    first, rows = some
    count, lane_out = min(WIDTH, lanes - begin), LANE_OUT + begin
    beside = places[lane_out + count - UNIT] - places[lane_out] == count - UNIT
    row, tall = ZERO, ZERO
    while row < rows:
        height = _rows_of(row, rows)
        x0 = x1 = x2 = x3 = spread8(0.0)
        p = TALL
        if height == FOUR:
            for _ in range(terms):
                x = load8(panel, p)
                x0 = _with(spread8(panel[tall]), x, x0, largest)
                x1 = _with(spread8(panel[tall + UNIT]), x, x1, largest)
                x2 = _with(spread8(panel[tall + TWO]), x, x2, largest)
                x3 = _with(spread8(panel[tall + THREE]), x, x3, largest)
                tall += FOUR
                p += WIDTH
        else:
            for _ in range(terms):
                x = load8(panel, p)
                x0 = _with(spread8(panel[tall]), x, x0, largest)
                x1 = _with(spread8(panel[tall + UNIT]), x, x1, largest)
                x2 = _with(spread8(panel[tall + TWO]), x, x2, largest)
                tall += THREE
                p += WIDTH
        for i in range(min(rows - row, height)):
            to = at + places[ROW_OUT + first + row + i]
            if beside:
                store_first(arena, to + places[lane_out], x0, count)
            else:
                for j in range(count):
                    arena[to + places[lane_out + j]] = lane(x0, np.int64(j))
            x0, x1, x2 = x1, x2, x3
        row += height


@part
def _direct(
    arena: Any, axes: Any, counters: Any, ends: Any, tables: Any, sizes: Any, largest: bool, places: Any
) -> None:
    """Write all tiles, from tables whose lanes, of the innermost axis, lie beside each other everywhere.

    ends: of the lines of the axes of lanes, a loop around these, and of other axes.
    tables: places of the wide and the tall operand and of the result.
    sizes: entries of the innermost axis, rows, terms.
    """
    inner, rows, terms = sizes
    last, whole = rows - UNIT, False
    a, b, c = tables
    while not whole:
        row = ZERO
        while row < rows:
            height = _rows_of(row, rows)
            # Behind the last row it is repeated.
            r0 = b + places[ROW_TALL + row]
            r1 = b + places[ROW_TALL + min(row + UNIT, last)]
            r2 = b + places[ROW_TALL + min(row + TWO, last)]
            r3 = b + places[ROW_TALL + min(row + THREE, last)]
            p, q, r, done = a, ZERO, c, False
            while not done:
                j = ZERO
                while j < inner:
                    x0 = x1 = x2 = x3 = spread8(0.0)
                    if height == FOUR:
                        for k in range(terms):
                            x, term = load8(arena, p + j + places[TERM_WIDE + k]), j + places[TERM_TALL + k]
                            x0 = _with(load8(arena, r0 + term), x, x0, largest)
                            x1 = _with(load8(arena, r1 + term), x, x1, largest)
                            x2 = _with(load8(arena, r2 + term), x, x2, largest)
                            x3 = _with(load8(arena, r3 + term), x, x3, largest)
                    else:
                        for k in range(terms):
                            x, term = load8(arena, p + j + places[TERM_WIDE + k]), j + places[TERM_TALL + k]
                            x0 = _with(load8(arena, r0 + term), x, x0, largest)
                            x1 = _with(load8(arena, r1 + term), x, x1, largest)
                            x2 = _with(load8(arena, r2 + term), x, x2, largest)
                    for i in range(min(rows - row, height)):
                        store_first(arena, r + j + places[ROW_OUT + row + i], x0, inner - j)
                        x0, x1, x2 = x1, x2, x3
                    j += WIDTH
                p, q, r, g = next_entry(axes, counters, LANES, ends[0], p, q, r)
                done = g >= ends[0]
            row += height
        a, b, c, g = next_entry(axes, counters, OTHERS, ends[1], a, b, c)
        whole = g >= ends[1]
