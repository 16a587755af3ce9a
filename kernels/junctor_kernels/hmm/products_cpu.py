"""Products of the rows of a tick with the transition matrix of a hidden Markov model, in compiled code (Numba).

    out[r, j] = max over i of (rows[r, i] + matrix[i, j])        (max, +), on logarithms
    out[r, j] = sum over i of  rows[r, i] * matrix[i, j]         (+, *)

Main function: `product`; panels as in Goto and van de Geijn, ACM TOMS 34(3), 2008. No row depends on another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import loops, part
from junctor_kernels.cpu.vectors import BYTES, add, larger, load, multiply_add, spread, store

# Vectors of columns of a panel. Four rows at a time meet a panel: sixteen vectors of results stay in registers while
# four vectors of the matrix and four numbers of the rows are loaded.
VECTORS = 4
# Terms of a partial sum: that part of a panel stays in the second-level cache, and rounding errors grow with DEPTH plus
# states / DEPTH.
DEPTH = 512

Array = npt.NDArray[Any]


class Matrix(NamedTuple):
    """A square matrix, dense in panels or sparse by columns.

    starts: int64 [states + 1], first number of each column; empty if dense.
    states: int32, row of each number; empty if dense.
    numbers: the numbers, flat.
    """

    starts: npt.NDArray[np.int64]
    states: npt.NDArray[np.int32]
    numbers: Array


def dense(numbers: Array) -> Matrix:
    """Return a dense matrix of numbers in the order of the kernels."""
    return Matrix(np.zeros(0, np.int64), np.zeros(0, np.int32), numbers.reshape(-1))


def padded(size: int, dtype: npt.DTypeLike) -> int:
    """Return the numbers of a row in memory, a multiple of the panel width."""
    width = panel_width(dtype)
    return -(-size // width) * width


def panel_width(dtype: npt.DTypeLike) -> int:
    """Return the columns of a panel."""
    return VECTORS * BYTES // np.dtype(dtype).itemsize


def packed(matrix: Array, nothing: float) -> Matrix:
    """Return a dense matrix [states, states] in panels, the last one padded with `nothing`."""
    size, width = len(matrix), panel_width(matrix.dtype)
    stride = padded(size, matrix.dtype)
    # A panel is read from front to back: [states i, columns of the panel].
    panels = np.full((stride // width, size, width), nothing, matrix.dtype)
    for p in range(len(panels)):
        columns = matrix[:, p * width : (p + 1) * width]
        panels[p, :, : columns.shape[1]] = columns
    return dense(panels)


@loops
def product(
    matrix: Any, size: int, rows: Any, before: int, after: int, count: int, first: int, last: int, adds: Any
) -> None:
    """Write the products of rows with a range of the matrix.

    matrix, size: the matrix, and its number of states.
    rows: flat; operands from `before` on and results from `after` on, one padded row after the other.
    count: number of rows.
    first, last: range of panels, or of columns of a sparse matrix.
    adds: True for (max, +), None for (+, *); types, so that the loops are compiled without the branch.
    """
    if len(matrix.starts):
        _sparse(matrix, size, rows, before, after, count, first, last, adds)
    else:
        _dense(matrix.numbers, size, rows, before, after, count, first, last, adds)


@loops
def parts_of(matrix: Any, size: int, rows: Any) -> int:
    """Return the number of panels, or of columns of a sparse matrix."""
    width = VECTORS * BYTES // rows.itemsize
    return size if len(matrix.starts) else (size + width - 1) // width


@part
def _fold(total: Any, one: Any, other: Any, adds: Any) -> Any:
    if adds is None:
        return multiply_add(one, other, total)
    return larger(add(one, other), total)


@part
def _join(total: Any, part: Any, adds: Any) -> Any:
    if adds is None:
        return add(total, part)
    return larger(part, total)


@part
def _nothing(rows: Any, adds: Any) -> Any:
    if adds is None:
        return rows.dtype.type(0.0)
    return rows.dtype.type(-np.inf)


@part
def _dense(
    panels: Any, size: int, rows: Any, before: int, after: int, count: int, first: int, last: int, adds: Any
) -> None:
    width = VECTORS * BYTES // rows.itemsize
    stride = (size + width - 1) // width * width
    for p in range(first, last):
        out = after + p * width
        for start in range(0, size, DEPTH):
            panel, terms = p * size * width + start * width, min(DEPTH, size - start)
            for r in range(0, count, 4):
                at, to = before + r * stride + start, out + r * stride
                left = count - r
                if left == 1:
                    _one_row(panels, panel, terms, rows, at, to, start == 0, adds)
                else:
                    # With fewer than four rows left, the last one is repeated.
                    n1, n2, n3 = stride, min(2, left - 1) * stride, min(3, left - 1) * stride
                    _four_rows(panels, panel, terms, rows, at, to, n1, n2, n3, start == 0, adds)


@part
def _one_row(panels: Any, panel: int, terms: int, rows: Any, at: int, to: int, fresh: bool, adds: Any) -> None:
    lanes = BYTES // rows.itemsize
    t0 = t1 = t2 = t3 = spread(_nothing(rows, adds))
    for i in range(terms):
        x, y = panel + i * VECTORS * lanes, spread(rows[at + i])
        t0, t1 = _fold(t0, load(panels, x), y, adds), _fold(t1, load(panels, x + lanes), y, adds)
        t2, t3 = _fold(t2, load(panels, x + 2 * lanes), y, adds), _fold(t3, load(panels, x + 3 * lanes), y, adds)
    _put_four(rows, to, t0, t1, t2, t3, lanes, fresh, adds)


@part
def _put_four(rows: Any, to: int, t0: Any, t1: Any, t2: Any, t3: Any, lanes: int, fresh: bool, adds: Any) -> None:
    if fresh:
        store(rows, to, t0)
        store(rows, to + lanes, t1)
        store(rows, to + 2 * lanes, t2)
        store(rows, to + 3 * lanes, t3)
    else:
        store(rows, to, _join(load(rows, to), t0, adds))
        store(rows, to + lanes, _join(load(rows, to + lanes), t1, adds))
        store(rows, to + 2 * lanes, _join(load(rows, to + 2 * lanes), t2, adds))
        store(rows, to + 3 * lanes, _join(load(rows, to + 3 * lanes), t3, adds))


@part
def _four_rows(
    panels: Any, panel: int, terms: int, rows: Any, at: int, to: int, n1: int, n2: int, n3: int, fresh: bool, adds: Any
) -> None:
    lanes = BYTES // rows.itemsize
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = spread(_nothing(rows, adds))
    c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = spread(_nothing(rows, adds))
    for i in range(terms):
        x = panel + i * VECTORS * lanes
        x0, x1 = load(panels, x), load(panels, x + lanes)
        x2, x3 = load(panels, x + 2 * lanes), load(panels, x + 3 * lanes)
        y = spread(rows[at + i])
        a0, a1, a2, a3 = _fold(a0, x0, y, adds), _fold(a1, x1, y, adds), _fold(a2, x2, y, adds), _fold(a3, x3, y, adds)
        y = spread(rows[at + n1 + i])
        b0, b1, b2, b3 = _fold(b0, x0, y, adds), _fold(b1, x1, y, adds), _fold(b2, x2, y, adds), _fold(b3, x3, y, adds)
        y = spread(rows[at + n2 + i])
        c0, c1, c2, c3 = _fold(c0, x0, y, adds), _fold(c1, x1, y, adds), _fold(c2, x2, y, adds), _fold(c3, x3, y, adds)
        y = spread(rows[at + n3 + i])
        d0, d1, d2, d3 = _fold(d0, x0, y, adds), _fold(d1, x1, y, adds), _fold(d2, x2, y, adds), _fold(d3, x3, y, adds)
    # From the last row on: a repeated row must be added to what was there before, and only once.
    if n3 > n2:
        _put_four(rows, to + n3, d0, d1, d2, d3, lanes, fresh, adds)
    if n2 > n1:
        _put_four(rows, to + n2, c0, c1, c2, c3, lanes, fresh, adds)
    _put_four(rows, to + n1, b0, b1, b2, b3, lanes, fresh, adds)
    _put_four(rows, to, a0, a1, a2, a3, lanes, fresh, adds)


@part
def _sparse(
    matrix: Any, size: int, rows: Any, before: int, after: int, count: int, first: int, last: int, adds: Any
) -> None:
    starts, states, numbers = matrix.starts, matrix.states, matrix.numbers
    width = VECTORS * BYTES // rows.itemsize
    stride = (size + width - 1) // width * width
    for j in range(first, last):
        # Scalars: the rows i of a column are scattered, and vectors would have to gather them.
        for r in range(count):
            at, total = before + r * stride, _nothing(rows, adds)
            for k in range(starts[j], starts[j + 1]):
                if adds is None:
                    total += rows[at + states[k]] * numbers[k]
                else:
                    total = max(total, rows[at + states[k]] + numbers[k])
            # One column at a time for all rows, so that its entries stay in the cache.
            rows[after + r * stride + j] = total
    # Lanes beyond the last state stay neutral: later vectors read them.
    if last == size:
        for r in range(count):
            rows[after + r * stride + size : after + (r + 1) * stride] = _nothing(rows, adds)
