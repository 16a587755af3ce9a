"""What rows take on trees made in compiled code: their work and seconds."""

from __future__ import annotations

import math
from typing import NamedTuple

from junctor_kernels.row_trees import plan as rowplan

from junctor.cost.constants import CPU

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


def run_seconds(work: RowWork, has_zeros: bool) -> float:
    """Return the same for the forecast of a run: with what trees have in common that are chosen from.

    has_zeros: whether the network has some, so that possible states are looked for.
    """
    far = max(0.0, work.entries - CPU.far_bytes / 8)
    return alone_seconds(work) + has_zeros * work.tables * CPU.tree_start + far * CPU.far_entry
