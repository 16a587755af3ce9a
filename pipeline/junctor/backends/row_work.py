"""What rows take on trees made in compiled code: their work and seconds, and how many are computed together."""

from __future__ import annotations

import math
from typing import NamedTuple

from junctor_kernels.row_trees import lane_layout as layout
from junctor_kernels.row_trees import plan as rowplan

from junctor.cost.constants import CPU

# Bytes of the messages of rows that are computed together: more rows share the work on a table, but not the cache.
BLOCK_BYTES = 1 << 27
# Rows with equal tables that are computed together, times the root of the numbers of a table: the start of a table is
# shared by all of them, and its numbers leave the cache sooner. Measured on thirteen networks; 2026-11-24.
BALANCED_ROWS = 1400
# Tables whose rows are so many bytes apart, or a multiple, share few places of the cache.
ALIASED_BYTES = 512
# Rows of tables that have fewer numbers, with which they are together nevertheless.
FEW_NUMBERS, FEW_NUMBERS_ROWS = 512, 32
# Seconds a table with its messages, to choose what is answered here; tests replace it.
TABLE_SECONDS = CPU.tree_table


class RowWork(NamedTuple):
    """Work of one row: multiply-adds, entries of its messages, number of its tables."""

    operations: float
    entries: float
    tables: float

    @property
    def room(self) -> float:
        """Entries that its messages take in memory at most, with what vectors reach behind each."""
        return self.entries + 2 * rowplan.BEHIND * self.tables


def alone_seconds(work: RowWork, explains: bool = False) -> float:
    """Return the seconds of a row with a tree of its own, to explain it or not; infinite where it is too large."""
    operations = work.operations * CPU.tree_maximum if explains else work.operations
    numbers = operations * CPU.tree_operation + work.entries * CPU.tree_entry
    seconds = numbers + work.tables * (TABLE_SECONDS + CPU.tree_plan)
    return seconds if math.isfinite(seconds) else math.inf


def block_rows(entries: float, tables: float, mixed: bool) -> int:
    """Return how many rows are computed together at most.

    entries, tables: of the messages of a row.
    mixed: whether the rows differ in what they observe; then tables have rows of their own.
    """
    entries, tables = max(1.0, entries), max(1.0, tables)
    cached = BLOCK_BYTES // (8 * entries)
    # The start of a table takes as long as some numbers of it, whether they are in the cache or not.
    worthy = min(FEW_NUMBERS_ROWS, FEW_NUMBERS * tables // entries)
    rows = int(min(rowplan.MOST_TOGETHER, max(cached, worthy)))
    if mixed or rows < layout.WIDTH:
        return rows
    balanced = int(BALANCED_ROWS / math.sqrt(entries / tables))
    return unaliased(max(layout.WIDTH, min(rows, balanced) // layout.WIDTH * layout.WIDTH))


def unaliased(rows: int) -> int:
    """Return so many rows, or one vector fewer where these would share few places of the cache."""
    return rows - layout.WIDTH if 8 * rows % ALIASED_BYTES == 0 else rows
