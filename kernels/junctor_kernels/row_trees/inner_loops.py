"""Loops over the innermost axis of a contraction of two tables of one row (Numba): products, dot products.

Called by `contract`. Axes are (entries, stride in one operand, in the other, in the result).
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
    multiply_add,
    pair_sums,
    spread4,
    spread8,
    store,
    store_apart,
    store_first,
)
from junctor_kernels.row_trees.walk import ONE, OTHER, OUT, SIZE, ZERO

# Fused multiply-add is the only liberty taken with IEEE arithmetic.
loops = partial(_loops, fastmath={"contract"})
part = partial(_part, fastmath={"contract"})
inlined = partial(jit, fastmath={"contract"}, inline=True, arrays=False, part=True)

# Lanes of a vector.
WIDTH = np.uint64(8)


@inlined
def swapped(axis: Any) -> Any:
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


@inlined
def _with8(arena: Any, p: Any, q: Any, j: Any, x: Any, has_both: bool | None) -> Any:
    """Return eight sums with one more product."""
    factor = spread8(arena[q]) if has_both is None else load8(arena, q + j)
    return multiply_add(load8(arena, p + j), factor, x)


@inlined
def _with4(arena: Any, p: Any, q: Any, j: Any, x: Any, has_both: bool | None) -> Any:
    """Return four sums with one more product."""
    factor = spread4(arena[q]) if has_both is None else load4(arena, q + j)
    return multiply_add(load4(arena, p + j), factor, x)


@part
def along(
    arena: Any,
    a: Any,
    b: Any,
    c: Any,
    size: Any,
    terms: Any,
    lines: Any,
    adds: Any,
    has_both: bool | None,
) -> None:
    """out[l, j] = sum over t of one[l, t, j] * other[l, t, j].

    has_both: None where the second operand does not have the axis j; its zeros are skipped then.
    """
    count, step_a, step_b = terms[SIZE], terms[ONE], terms[OTHER]
    four, eight = np.uint64(4), np.uint64(8)
    for _ in range(lines[SIZE]):
        j = np.uint64(0)
        # Two sums at a time: one alone would wait for every addition.
        while j + eight < size:
            x = y = spread8(0.0)
            p, q = a, b
            for _ in range(count):
                if has_both is not None or arena[q] != 0.0:
                    x = _with8(arena, p, q, j, x, has_both)
                    y = _with8(arena, p, q, j + eight, y, has_both)
                p += step_a
                q += step_b
            _put8(arena, c + j, x, eight, adds)
            _put8(arena, c + j + eight, y, size - j - eight, adds)
            j += eight + eight
        if j + four < size:
            x = spread8(0.0)
            p, q = a, b
            for _ in range(count):
                if has_both is not None or arena[q] != 0.0:
                    x = _with8(arena, p, q, j, x, has_both)
                p += step_a
                q += step_b
            _put8(arena, c + j, x, size - j, adds)
        elif j < size:
            z = spread4(0.0)
            p, q = a, b
            for _ in range(count):
                if has_both is not None or arena[q] != 0.0:
                    z = _with4(arena, p, q, j, z, has_both)
                p += step_a
                q += step_b
            _put4(arena, c + j, z, size - j, adds)
        a += lines[ONE]
        b += lines[OTHER]
        c += lines[OUT]


@part
def constant(arena: Any, a: Any, b: Any, c: Any, size: Any, terms: Any, lines: Any, adds: Any) -> None:
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
def dots(arena: Any, places: Any, inner: Any, more: Any, terms: Any, lines: Any, adds: Any) -> None:
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
        lines, more = swapped(lines), swapped(more)
    for _ in range(lines[SIZE]):
        p, q, r, t = a, b, c, ZERO
        if sa != ZERO and sb != ZERO:
            while t + four <= count:
                if step_b == ZERO:
                    # A step that is known to be zero: one load of that row for all four.
                    x = _four_dots(arena, p, q, size, step_a, ZERO, more)
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
