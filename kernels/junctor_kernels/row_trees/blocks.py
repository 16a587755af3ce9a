"""Rows that share a join tree, block after block in one call (Numba).

Main function: `answer_blocks`, called by `junctor.backends.row_trees`. A call of its own for each step of a block would
take as long as the rows of a small network, and leave and take Python's lock each time.
"""

from __future__ import annotations

from typing import Any

from junctor_kernels.cpu.jit import loops
from junctor_kernels.row_trees.lane_layout import NEED_BLOCK, NEED_ROWS, lay_out
from junctor_kernels.row_trees.lanes import answer_lanes


@loops
def answer_blocks(
    factors: Any,
    states: Any,
    soft: Any,
    first: int,
    last: int,
    together: int,
    wanted: Any,
    starts: Any,
    memory: Any,
    needs: Any,
    results: Any,
) -> int:
    """Answer rows from `first` until `last`; return `last`, or where a block begins that the memory is too small for.

    factors: of the network, with the means of the rows.
    states: int64 [variables, rows], -1 for unobserved.
    soft, wanted, starts, results: of `lanes.answer_lanes`, of all rows.
    together: rows of a block at most.
    memory: Tree of the rows, Lanes, and int64 [numbers] for the states of a block.
    needs: int64 [NEEDS], written where the memory is too small: lengths that it must have, those of rows and of the
        states of a block 0 where these are large enough.
    """
    tree, lanes, block = memory
    variables, all_rows = states.shape
    needs[:] = 0
    size = min(together, last - first)
    if size > lanes.every.size or (size < all_rows and variables * size > block.size):
        needs[NEED_ROWS], needs[NEED_BLOCK] = size, variables * size
        return first
    for start in range(first, last, together):
        count = min(together, last - start)
        here = states
        if count < all_rows:
            here = block[: variables * count].reshape((variables, count))
            for v in range(variables):
                for i in range(count):
                    here[v, i] = states[v, start + i]
        if not lay_out(factors, here, tree, lanes, needs):
            return start
        answer_lanes(factors, here, soft, start, wanted, starts, tree, lanes, results)
    return last
