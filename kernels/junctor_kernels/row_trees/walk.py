"""Walks over the tables of a contraction: the axes that they have together, and their entries in order (Numba).

Main functions: `write_axes` and `next_entry`, called wherever messages of numbers are multiplied: those of one row
(`contract`) and of rows that share a tree (`lanes`). Bits (`possible`) have a walk of their own: along kept axes, then
along eliminated ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from junctor_kernels.cpu.jit import inlined
from junctor_kernels.row_trees.plan import FIRST, LENGTH, MOST_AXES, stride_of

# Columns of axes, innermost first: entries, then the stride in each operand and in the result, 0 where it has no such
# axis. Unsigned, so that Numba omits the test for negative indices.
SIZE, ONE, OTHER, OUT, COLUMNS = range(5)
# Axes of a contraction at most: those of its three tables.
MOST = 3 * MOST_AXES
ZERO, UNIT = np.uint64(0), np.uint64(1)


@inlined
def scope_of(tables: Any, number: int) -> Any:
    """Return (first, length) of the scope of a table; -1: the number 1, which has no axes."""
    if number < 0:
        return np.int64(0), np.int64(0)
    return tables[number, FIRST], tables[number, LENGTH]


@inlined
def write_axes(scopes: Any, sizes: Any, axes: Any, one: Any, other: Any, out: Any) -> int:
    """Write the axes of a contraction, innermost first, neighbours in the same tables merged; return their number.

    scopes, sizes: of the tree.
    axes: written.
    one, other, out: (first, length) of the scope of each table.
    """
    i, j, k = one[0] + one[1] - 1, other[0] + other[1] - 1, out[0] + out[1] - 1
    stride_i = stride_j = stride_k = UNIT
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
        sa = sb = sc = ZERO
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
        axes[0, SIZE], axes[0, ONE], axes[0, OTHER], axes[0, OUT] = UNIT, ZERO, ZERO, ZERO
        groups = 1
    return groups


@inlined
def write_factor_axes(factors: Any, factor: int, nodes: Any, sizes: Any, order: Any, number: int, axes: Any) -> int:
    """Write the axes of a leaf, innermost first, with the strides that they have in its factor; return their number.

    factors, factor: of the network, and that of the leaf.
    nodes, order, number: of the tree, and the leaf.
    sizes: int64 [positions].
    axes: written, as those of one operand and the result of none.
    """
    first, length = scope_of(nodes.tables, number)
    for g in range(length):
        position = nodes.scopes[first + length - 1 - g]
        axes[g, SIZE] = np.uint64(sizes[position])
        axes[g, ONE] = np.uint64(stride_of(factors, factor, order[position]))
        axes[g, OTHER] = axes[g, OUT] = ZERO
    return int(length)


@inlined
def next_entry(axes: Any, counters: Any, first: int, end: int, a: Any, b: Any, c: Any) -> Any:
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
def repeat_places(one: Any, other: Any, count: Any, size: Any, step_one: Any, step_other: Any) -> Any:
    """List the entries of one more axis behind those of the axes within; return how many there are.

    one, other: places in two tables, of which the first `count` are listed.
    size, step_one, step_other: entries of the axis, and its strides in both tables.
    """
    end = count * size
    for at in range(count, end):
        one[at] = one[at - count] + step_one
        other[at] = other[at - count] + step_other
    return end
