"""How many rows that share a join tree are computed together: by Python where calls are planned, and by compiled code.

Main function: `block_rows`.
"""

from __future__ import annotations

import math

from junctor_kernels.row_trees.lane_layout import WIDTH
from junctor_kernels.row_trees.plan import MOST_TOGETHER

# Bytes of the messages of rows that are computed together: more rows share the work on a table, but not the cache.
BLOCK_BYTES = 1 << 27
# Rows with equal tables that are computed together, times the root of the numbers of a table: the start of a table is
# shared by all of them, and its numbers leave the cache sooner. Measured on thirteen networks; 2026-11-24.
BALANCED_ROWS = 1400
# Tables whose rows are so many bytes apart, or a multiple, share few places of the cache.
ALIASED_BYTES = 512
# Rows of tables that have fewer numbers, with which they are together nevertheless.
FEW_NUMBERS, FEW_NUMBERS_ROWS = 512, 32


def block_rows(entries: float, tables: float, mixed: bool) -> int:
    """Return how many rows are computed together at most.

    entries, tables: of the messages of a row.
    mixed: whether the rows differ in what they observe; then tables have rows of their own.
    """
    rows = balanced_rows(entries, tables, mixed)
    return rows if mixed or rows < WIDTH else unaliased(rows)


def balanced_rows(entries: float, tables: float, mixed: bool) -> int:
    """Return the same, whatever places of the cache the rows of a table share."""
    entries, tables = max(1.0, entries), max(1.0, tables)
    cached = BLOCK_BYTES // (8 * entries)
    # The start of a table takes as long as some numbers of it, whether they are in the cache or not.
    worthy = min(FEW_NUMBERS_ROWS, FEW_NUMBERS * tables // entries)
    rows = int(min(MOST_TOGETHER, max(cached, worthy)))
    if mixed or rows < WIDTH:
        return rows
    return max(WIDTH, min(rows, int(BALANCED_ROWS / math.sqrt(entries / tables))) // WIDTH * WIDTH)


def unaliased(rows: int) -> int:
    """Return so many rows, or one vector fewer where these would share few places of the cache."""
    return rows - WIDTH if 8 * rows % ALIASED_BYTES == 0 else rows


def is_worth_it(rows: int, size: int) -> bool:
    """Return True if so many rows are better off with a common tree; size: rows of a block at most."""
    # Fewer rows than a vector has lanes are faster one by one.
    return rows > 1 and size >= min(rows, WIDTH)
