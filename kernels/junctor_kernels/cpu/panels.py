"""Contractions over entries in compiled code: vectors of neighbouring kept entries, sums in registers (Numba).

Main function: `reduce_panels`, called by `entries`, which chooses how each operand is read (`PanelWalk`). A panel is a
run of at most some thousand kept entries; four of its vectors at a time go through all terms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from junctor_kernels.cpu.jit import inlined, jit, part
from junctor_kernels.cpu.logarithms import exponential
from junctor_kernels.cpu.semirings import finite, log_sum, plus, times
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

# Positions of the lanes of a vector in an operand: one entry (broadcast), neighbouring entries (load), any (gather).
SAME, NEIGHBOURS, ANYWHERE = 0, 1, 2
# Columns of `PanelWalk.operands`: positions of its lanes, whether it is copied first, positions of the lanes in what is
# read (the copy if there is one), number of distinct vectors.
MODE, COPIED, READ, DIFFERENT = 0, 1, 2, 3


class PanelWalk(NamedTuple):
    """Offsets of the terms of a contraction, in bytes.

    sizes: int64 [outer kept axes].
    strides: int64 [operands, outer kept axes].
    line: int64 [4], of the axis along which panels are cut: its size, the part of a panel, panels along it, entries
        within one step.
    along: int64 [operands], strides of that axis.
    starts: int64 [vectors], first entry of each vector of a panel; vectors may overlap.
    operands: int64 [operands, 4], see the columns above.
    lanes: int64 [operands, vectors, lanes], entries of a panel; a single lane where no operand needs ANYWHERE.
    far, near: int64 [operands, terms], slow and fast part of a term.
    vectors, far_read, near_read: the same as lanes, far and near for reading: in the copy where there is one.
    samples: int64 [operands, vectors], the distinct vectors.
    copies: int64 [operands], bytes of the copies.
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
    walk: PanelWalk,
    first: int,
    last: int,
    tables: Any,
    copies: Any,
    out: Any,
    logs: bool | None,
    maxima: bool | None,
    again: bool,
) -> None:
    """Contract panels [first, last) into `out`, flat.

    walk: offsets of all terms.
    first, last: range of panels.
    tables: int64 [operands], addresses.
    copies: int64 [operands], addresses for copies of them, multiples of BYTES.
    out: flat, all kept entries.
    logs: None for sums of products, True for logarithms of sums of exponentials of sums (resolved at compile time).
    maxima: None for sums, True for maxima in their place (likewise).
    again: whether results are added to `out`.
    """
    count, width = tables.size, BYTES // out.itemsize
    size, part, panels, within = walk.line[0], walk.line[1], walk.line[2], walk.line[3]
    vectors = walk.starts.size
    sums, before = np.empty(vectors * width, out.dtype), np.zeros(vectors * width, out.dtype)
    base, copied = np.empty(count, np.int64), np.full(count, -1, np.int64)
    at, held_terms = np.empty((count, 6), np.int64), np.empty(4 * width * walk.near.shape[1], out.dtype)
    for k in range(count):
        at[k, 4] = walk.operands[k, READ]
    for panel in range(first, last):
        # The last panel overlaps the one before it, so that all have the same shape.
        begin = min(panel % panels * part, size - part)
        _find_operands(walk, panel // panels, begin, tables, base)
        for k in range(count):
            # Neighbouring panels often read the same part of an operand: it is copied once.
            if walk.operands[k, COPIED] and copied[k] != base[k]:
                copied[k] = base[k]
                _copy(walk, k, base[k], copies[k], out.dtype.type(0))
            if walk.operands[k, COPIED]:
                base[k] = copies[k]
        for v in range(0, vectors, 4):
            _find_vectors(walk, v, base, at)
            if logs is None or maxima is not None:
                total = _sum(at, walk.far_read, walk.near_read, out.dtype.type(0), logs, maxima)
            else:
                total = _log_sum(at, walk.far_read, walk.near_read, held_terms.ctypes.data, out.dtype.type(0))
            # With fewer than four vectors left, the last one is repeated.
            store(sums, walk.starts[v], total[0])
            store(sums, walk.starts[min(v + 1, vectors - 1)], total[1])
            store(sums, walk.starts[min(v + 2, vectors - 1)], total[2])
            store(sums, walk.starts[min(v + 3, vectors - 1)], total[3])
        # Entries in the overlap of panels are computed twice and written once.
        skipped = (panel % panels * part - begin) * within
        place = (panel // panels * size + begin) * within
        if again:
            # Not a slice: the text of its error would be compiled, too, for seconds.
            for e in range(skipped, part * within):
                before[e] = out[place + e]
            _join(sums, before, logs, maxima)
        for e in range(skipped, part * within):
            out[place + e] = sums[e]


@part
def _find_operands(walk: PanelWalk, outer: int, begin: int, tables: Any, base: Any) -> None:
    for k in range(base.size):
        base[k] = tables[k] + begin * walk.along[k]
    for axis in range(walk.sizes.size - 1, -1, -1):
        at = outer % walk.sizes[axis]
        outer //= walk.sizes[axis]
        for k in range(base.size):
            base[k] += at * walk.strides[k, axis]


@inlined
def _find_vectors(walk: PanelWalk, first: int, base: Any, at: Any) -> None:
    """Write the addresses of four vectors in each operand, or those of the offsets of their lanes."""
    for k in range(base.size):
        at[k, 5] = base[k] if at[k, 4] == ANYWHERE else 0
        for n in range(4):
            vector = min(first + n, walk.vectors.shape[1] - 1)
            offsets = walk.lanes.ctypes.data + (k * walk.lanes.shape[1] + vector) * walk.lanes.shape[2] * 8
            at[k, n] = offsets if at[k, 4] == ANYWHERE else base[k] + walk.vectors[k, vector]


@part
def _copy(walk: PanelWalk, k: int, base: int, to: int, number: Any) -> None:
    """Pack the part of an operand that a panel reads: the terms of a vector become contiguous."""
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
                    # A whole vector is stored for one number; the next store overwrites the rest.
                    store_at(place, spread_at(number, step + walk.lanes[k, v, 0]))
                else:
                    store_at(place, pick_at(number, step, offsets))


@inlined
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


@inlined
def _term(at: Any, far: Any, near: Any, h: int, i: int, number: Any, logs: bool | None) -> Any:
    """Return four vectors of a term: products of operands, or sums of their logarithms."""
    x0, x1, x2, x3 = _read(number, at, 0, far[0, h] + near[0, i])
    for k in range(1, at.shape[0]):
        y0, y1, y2, y3 = _read(number, at, k, far[k, h] + near[k, i])
        x0, x1, x2, x3 = times(x0, y0, logs), times(x1, y1, logs), times(x2, y2, logs), times(x3, y3, logs)
    return x0, x1, x2, x3


@inlined
def _sum(at: Any, far: Any, near: Any, number: Any, logs: bool | None, maxima: bool | None) -> Any:
    if logs is None:
        t0 = t1 = t2 = t3 = nothing = spread(number)
    else:
        t0 = t1 = t2 = t3 = nothing = spread(-np.inf)
    for h in range(far.shape[1]):
        # Partial sums of the fast part, so that rounding errors do not grow with the number of terms.
        p0 = p1 = p2 = p3 = nothing
        for i in range(near.shape[1]):
            x0, x1, x2, x3 = _term(at, far, near, h, i, number, logs)
            p0, p1, p2, p3 = plus(p0, x0, maxima), plus(p1, x1, maxima), plus(p2, x2, maxima), plus(p3, x3, maxima)
        t0, t1, t2, t3 = plus(t0, p0, maxima), plus(t1, p1, maxima), plus(t2, p2, maxima), plus(t3, p3, maxima)
    return t0, t1, t2, t3


@inlined
def _log_sum(at: Any, far: Any, near: Any, held: int, number: Any) -> Any:
    """Return four vectors of logarithms of sums; held: address of a buffer for the fast part, four vectors a term."""
    m0 = m1 = m2 = m3 = spread(-np.inf)
    t0 = t1 = t2 = t3 = spread(number)
    for h in range(far.shape[1]):
        # First pass over the fast part: its terms are held, and their maximum is found.
        l0, l1, l2, l3 = m0, m1, m2, m3
        for i in range(near.shape[1]):
            x0, x1, x2, x3 = _term(at, far, near, h, i, number, True)
            _hold(held + i * 4 * BYTES, x0, x1, x2, x3)
            l0, l1, l2, l3 = larger(x0, l0), larger(x1, l1), larger(x2, l2), larger(x3, l3)
        b0, b1, b2, b3 = finite(l0), finite(l1), finite(l2), finite(l3)
        if h > 0:
            # Earlier sums are rescaled to the largest term so far (streaming log-sum-exp).
            t0, t1 = multiply(t0, exponential(subtract(m0, b0))), multiply(t1, exponential(subtract(m1, b1)))
            t2, t3 = multiply(t2, exponential(subtract(m2, b2))), multiply(t3, exponential(subtract(m3, b3)))
        m0, m1, m2, m3 = l0, l1, l2, l3
        # Second pass: exponentials relative to the maximum.
        p0 = p1 = p2 = p3 = spread(number)
        for i in range(near.shape[1]):
            x = held + i * 4 * BYTES
            p0 = add(p0, exponential(subtract(load_at(number, x), b0)))
            p1 = add(p1, exponential(subtract(load_at(number, x + BYTES), b1)))
            p2 = add(p2, exponential(subtract(load_at(number, x + 2 * BYTES), b2)))
            p3 = add(p3, exponential(subtract(load_at(number, x + 3 * BYTES), b3)))
        t0, t1, t2, t3 = add(t0, p0), add(t1, p1), add(t2, p2), add(t3, p3)
    return log_sum(t0, m0), log_sum(t1, m1), log_sum(t2, m2), log_sum(t3, m3)


@inlined
def _hold(place: int, x0: Any, x1: Any, x2: Any, x3: Any) -> None:
    store_at(place, x0)
    store_at(place + BYTES, x1)
    store_at(place + 2 * BYTES, x2)
    store_at(place + 3 * BYTES, x3)


@part
def _join(sums: Any, before: Any, logs: bool | None, maxima: bool | None) -> None:
    width = BYTES // sums.itemsize
    for first in range(0, sums.size, width):
        one, other = load(sums, first), load(before, first)
        if logs is None or maxima is not None:
            store(sums, first, plus(one, other, maxima))
        else:
            # Log-sum-exp of the old and the new result.
            largest = larger(one, other)
            shift = finite(largest)
            total = add(exponential(subtract(one, shift)), exponential(subtract(other, shift)))
            store(sums, first, log_sum(total, largest))
