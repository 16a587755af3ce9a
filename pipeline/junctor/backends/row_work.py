"""What rows take on trees made in compiled code: their work and seconds."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from junctor_kernels.row_trees import plan as rowplan
from junctor_kernels.row_trees.together import block_rows

from junctor.cost.constants import CPU

# Rows of a vector: fewer are computed with lanes left empty.
LANES = 8
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


def shared_seconds(work: RowWork, rows: npt.ArrayLike, mixed: bool, above_zero: float) -> npt.NDArray[np.float64]:
    """Return the seconds of groups of so many rows on one tree each.

    work: of a row of such a group.
    mixed: whether its rows differ in what they observe.
    above_zero: share of the entries of the network's factors.
    """
    counts = np.asarray(rows, dtype=np.float64)
    # Tables that are too large go nowhere, and fewer rows than a vector has lanes not together.
    block = block_rows(work.entries, work.tables, mixed) if math.isfinite(work.entries) else 0
    if block < LANES:
        return np.full(counts.shape, np.inf)
    lanes = np.ceil(counts / LANES) * LANES
    operations = work.operations * above_zero
    row = operations * CPU.lane_operation + work.entries * CPU.lane_entry
    start = operations * CPU.lane_start + work.tables * (CPU.lane_table + CPU.tree_plan)
    return lanes * row * (CPU.lane_mixed if mixed else 1) + np.ceil(counts / block) * start
