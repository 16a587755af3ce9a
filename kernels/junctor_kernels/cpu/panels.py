"""Contractions over entries in compiled code: vectors of neighbouring kept entries, sums in registers (Numba).

A *panel* is a run of at most some thousand kept entries. Its vectors walk through all terms, four of them together.
`junctor_kernels.entries` settles how each operand is read (`PanelWalk`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from junctor_kernels.cpu.jit import inside, jit
from junctor_kernels.cpu.logarithms import exponential, logarithm, where_finite
from junctor_kernels.cpu.vectors import (
    BYTES,
    add,
    larger,
    load,
    load_at,
    multiply,
    pick_at,
    spread,
    spread_at,
    store,
    store_at,
    subtract,
)

# How the lanes of a vector lie in an operand: all at one entry, at neighbouring ones, or anywhere.
SAME, NEIGHBOURS, ANYWHERE = 0, 1, 2
# Columns of `PanelWalk.operands`: how its lanes lie, whether it is copied first, how they lie in what is read (its copy
# if there is one), how many vectors differ.
MODE, COPIED, READ, DIFFERENT = 0, 1, 2, 3


class PanelWalk(NamedTuple):
    """Where a contraction finds the numbers of its terms; offsets are in bytes.

    sizes: int64 [outer kept axes], strides: int64 [operands, outer kept axes]. A panel is cut along one more axis:
    line: int64 [4], its size, the part of it that a panel has, panels along it, entries within one step of it. along:
    int64 [operands], stride of that axis. starts: int64 [vectors], the first entry in a panel of each of its vectors,
    which may overlap. operands: int64 [operands, 4], as the columns above. lanes: int64 [operands, vectors, lanes], of
    the entries of a panel; a single lane where no operand has them anywhere. far, near: int64 [operands, terms], of the
    slow and the fast part of a term. vectors: int64 [operands, vectors], where each vector of a panel is read,
    far_read, near_read: the same as far and near; these three are those of the copy where an operand is copied.
    samples: int64 [operands, vectors], the vectors that differ. copies: int64 [operands], bytes.
    """

    sizes: Any
    strides: Any
    line: Any
    along: Any
    starts: Any
    operands: Any
    lanes: Any
    far: Any
    near: Any
    vectors: Any
    far_read: Any
    near_read: Any
    samples: Any
    copies: Any


@jit
def reduce_panels(
    walk: PanelWalk, first: int, last: int, tables: Any, copies: Any, out: Any, logs: bool | None, again: bool
) -> None:
    """Contract panels [first, last) into `out`, flat.

    tables: int64 [operands], where they begin; copies: where there is room for copies of them, a multiple of BYTES.
    logs: None for sums of products, True for logarithms of sums of exponentials of sums; a type, so that the loops
    are compiled for it. again: the results are added to what is in `out`.
    """
    count, width = tables.size, BYTES // out.itemsize
    size, part, panels, within = walk.line[0], walk.line[1], walk.line[2], walk.line[3]
    vectors = walk.starts.size
    found, before = np.empty(vectors * width, out.dtype), np.zeros(vectors * width, out.dtype)
    base, copied = np.empty(count, np.int64), np.full(count, -1, np.int64)
    at, held_terms = np.empty((count, 6), np.int64), np.empty(4 * width * walk.near.shape[1], out.dtype)
    for k in range(count):
        at[k, 4] = walk.operands[k, READ]
    for panel in range(first, last):
        begin = min(panel % panels * part, size - part)
        _find_operands(walk, panel // panels, begin, tables, base)
        for k in range(count):
            if walk.operands[k, COPIED] and copied[k] != base[k]:
                copied[k] = base[k]
                _copy(walk, k, base[k], copies[k], out.dtype.type(0))
            if walk.operands[k, COPIED]:
                base[k] = copies[k]
        for v in range(0, vectors, 4):
            _find_vectors(walk, v, base, at)
            if logs is None:
                total = _sum(at, walk.far_read, walk.near_read, out.dtype.type(0))
            else:
                total = _log_sum(at, walk.far_read, walk.near_read, held_terms.ctypes.data, out.dtype.type(0))
            # Where there are fewer than four, the last one again.
            store(found, walk.starts[v], total[0])
            store(found, walk.starts[min(v + 1, vectors - 1)], total[1])
            store(found, walk.starts[min(v + 2, vectors - 1)], total[2])
            store(found, walk.starts[min(v + 3, vectors - 1)], total[3])
        # Where panels overlap entries are found twice and taken once.
        skipped = (panel % panels * part - begin) * within
        place = (panel // panels * size + begin) * within
        if again:
            before[skipped : part * within] = out[place + skipped : place + part * within]
            _join(found, before, logs)
        out[place + skipped : place + part * within] = found[skipped : part * within]


@jit
def _find_operands(walk: PanelWalk, outer: int, begin: int, tables: Any, base: Any) -> None:
    for k in range(base.size):
        base[k] = tables[k] + begin * walk.along[k]
    for axis in range(walk.sizes.size - 1, -1, -1):
        at = outer % walk.sizes[axis]
        outer //= walk.sizes[axis]
        for k in range(base.size):
            base[k] += at * walk.strides[k, axis]


@inside
def _find_vectors(walk: PanelWalk, first: int, base: Any, at: Any) -> None:
    """Find where four vectors begin in each operand, or where the offsets of their lanes do."""
    for k in range(base.size):
        at[k, 5] = base[k] if at[k, 4] == ANYWHERE else 0
        for n in range(4):
            vector = min(first + n, walk.vectors.shape[1] - 1)
            offsets = walk.lanes.ctypes.data + (k * walk.lanes.shape[1] + vector) * walk.lanes.shape[2] * 8
            at[k, n] = offsets if at[k, 4] == ANYWHERE else base[k] + walk.vectors[k, vector]


@jit
def _copy(walk: PanelWalk, k: int, base: int, to: int, number: Any) -> None:
    """Copy what a panel reads of an operand to where it reads it: the terms of a vector side by side."""
    mode = walk.operands[k, MODE]
    for n in range(walk.operands[k, DIFFERENT]):
        v = walk.samples[k, n]
        offsets = walk.lanes.ctypes.data + (k * walk.lanes.shape[1] + v) * walk.lanes.shape[2] * 8
        for h in range(walk.far.shape[1]):
            for i in range(walk.near.shape[1]):
                step = base + walk.far[k, h] + walk.near[k, i]
                place = to + walk.vectors[k, v] + walk.far_read[k, h] + walk.near_read[k, i]
                if mode == NEIGHBOURS:
                    store_at(place, load_at(number, step + walk.lanes[k, v, 0]))
                elif mode == SAME:
                    # What is written behind the number is written again.
                    store_at(place, spread_at(number, step + walk.lanes[k, v, 0]))
                else:
                    store_at(place, pick_at(number, step, offsets))


@inside
def _read(number: Any, at: Any, k: int, step: int) -> Any:
    """Return four vectors of an operand."""
    a, b, c, d, mode = at[k, 0], at[k, 1], at[k, 2], at[k, 3], at[k, 4]
    if mode == NEIGHBOURS:
        return (
            load_at(number, a + step),
            load_at(number, b + step),
            load_at(number, c + step),
            load_at(number, d + step),
        )
    if mode == SAME:
        return (
            spread_at(number, a + step),
            spread_at(number, b + step),
            spread_at(number, c + step),
            spread_at(number, d + step),
        )
    step += at[k, 5]
    return pick_at(number, step, a), pick_at(number, step, b), pick_at(number, step, c), pick_at(number, step, d)


@inside
def _term(at: Any, far: Any, near: Any, h: int, i: int, number: Any, logs: bool | None) -> Any:
    """Return four vectors of a term: products of operands, or sums of their logarithms."""
    x0, x1, x2, x3 = _read(number, at, 0, far[0, h] + near[0, i])
    for k in range(1, at.shape[0]):
        y0, y1, y2, y3 = _read(number, at, k, far[k, h] + near[k, i])
        if logs is None:
            x0, x1, x2, x3 = multiply(x0, y0), multiply(x1, y1), multiply(x2, y2), multiply(x3, y3)
        else:
            x0, x1, x2, x3 = add(x0, y0), add(x1, y1), add(x2, y2), add(x3, y3)
    return x0, x1, x2, x3


@inside
def _sum(at: Any, far: Any, near: Any, number: Any) -> Any:
    t0 = t1 = t2 = t3 = spread(number)
    for h in range(far.shape[1]):
        # In parts, so that rounding does not grow with the number of terms.
        p0 = p1 = p2 = p3 = spread(number)
        for i in range(near.shape[1]):
            x0, x1, x2, x3 = _term(at, far, near, h, i, number, None)
            p0, p1, p2, p3 = add(p0, x0), add(p1, x1), add(p2, x2), add(p3, x3)
        t0, t1, t2, t3 = add(t0, p0), add(t1, p1), add(t2, p2), add(t3, p3)
    return t0, t1, t2, t3


@inside
def _log_sum(at: Any, far: Any, near: Any, held: int, number: Any) -> Any:
    """Return four vectors of logarithms of sums; held: where four vectors of each term of the fast part have room."""
    m0 = m1 = m2 = m3 = spread(-np.inf)
    t0 = t1 = t2 = t3 = spread(number)
    for h in range(far.shape[1]):
        l0, l1, l2, l3 = m0, m1, m2, m3
        for i in range(near.shape[1]):
            x0, x1, x2, x3 = _term(at, far, near, h, i, number, True)
            _hold(held + i * 4 * BYTES, x0, x1, x2, x3)
            l0, l1, l2, l3 = larger(x0, l0), larger(x1, l1), larger(x2, l2), larger(x3, l3)
        b0, b1, b2, b3 = _finite(l0), _finite(l1), _finite(l2), _finite(l3)
        if h > 0:
            # What was summed before, beside the largest term so far.
            t0, t1 = multiply(t0, exponential(subtract(m0, b0))), multiply(t1, exponential(subtract(m1, b1)))
            t2, t3 = multiply(t2, exponential(subtract(m2, b2))), multiply(t3, exponential(subtract(m3, b3)))
        m0, m1, m2, m3 = l0, l1, l2, l3
        p0 = p1 = p2 = p3 = spread(number)
        for i in range(near.shape[1]):
            x = held + i * 4 * BYTES
            p0 = add(p0, exponential(subtract(load_at(number, x), b0)))
            p1 = add(p1, exponential(subtract(load_at(number, x + BYTES), b1)))
            p2 = add(p2, exponential(subtract(load_at(number, x + 2 * BYTES), b2)))
            p3 = add(p3, exponential(subtract(load_at(number, x + 3 * BYTES), b3)))
        t0, t1, t2, t3 = add(t0, p0), add(t1, p1), add(t2, p2), add(t3, p3)
    return _log(t0, m0), _log(t1, m1), _log(t2, m2), _log(t3, m3)


@inside
def _hold(place: int, x0: Any, x1: Any, x2: Any, x3: Any) -> None:
    store_at(place, x0)
    store_at(place + BYTES, x1)
    store_at(place + 2 * BYTES, x2)
    store_at(place + 3 * BYTES, x3)


@inside
def _finite(largest: Any) -> Any:
    return where_finite(largest, largest, spread(0.0))


@inside
def _log(total: Any, largest: Any) -> Any:
    """Return log(total) + largest; -inf where that is the largest of all terms."""
    return where_finite(largest, add(logarithm(total), largest), largest)


@jit
def _join(found: Any, before: Any, logs: bool | None) -> None:
    width = BYTES // found.itemsize
    for first in range(0, found.size, width):
        one, other = load(found, first), load(before, first)
        if logs is None:
            store(found, first, add(other, one))
        else:
            largest = larger(one, other)
            shift = _finite(largest)
            total = add(exponential(subtract(one, shift)), exponential(subtract(other, shift)))
            store(found, first, _log(total, largest))
