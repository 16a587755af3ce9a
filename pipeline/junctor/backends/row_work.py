"""What rows take on trees made in compiled code: their work and seconds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from junctor_kernels.row_trees import plan as rowplan
from junctor_kernels.row_trees.together import block_rows

from junctor.cost.figures import Figures

if TYPE_CHECKING:
    from junctor.cost.model import CostModel

Floats = npt.NDArray[np.float64]

# Rows of a vector: fewer are computed with lanes left empty.
LANES = 8


class RowWork(NamedTuple):
    """Work of one row: multiply-adds, entries of its messages, number of its tables."""

    operations: float
    entries: float
    tables: float

    @property
    def room(self) -> float:
        """Entries that its messages take in memory at most, with what vectors reach behind each."""
        return self.entries + 2 * rowplan.BEHIND * self.tables


def alone_seconds(work: RowWork, figures: Figures, explains: bool = False) -> float:
    """Return the seconds of a row with a tree of its own, to explain it or not; infinite where it is too large."""
    trees = figures.trees
    numbers = work.operations * (trees.maximum if explains else trees.operation) + work.entries * trees.entry
    seconds = numbers + work.tables * (trees.table + trees.plan)
    return seconds if math.isfinite(seconds) else math.inf


def run_seconds(work: RowWork, costs: CostModel, has_zeros: bool) -> float:
    """Return the same for the forecast of a run: with what trees have in common that are chosen from.

    costs: of the CPU.
    has_zeros: whether the network has some, so that possible states are looked for.
    """
    trees, far = costs.figures.trees, max(0.0, work.entries - costs.cache / 8)
    return alone_seconds(work, costs.figures) + has_zeros * work.tables * trees.start + far * trees.far_entry


def shared_seconds(work: RowWork, rows: npt.ArrayLike, mixed: bool, above_zero: float, figures: Figures) -> Floats:
    """Return the seconds of groups of so many rows on one tree each.

    work: of a row of such a group.
    mixed: whether its rows differ in what they observe.
    above_zero: share of the entries of the network's factors.
    figures: of the CPU.
    """
    lanes, blocks = lanes_and_blocks(work, rows, mixed)
    operations, shared = work.operations * above_zero, figures.shared_trees
    operation, entry = shared.operation, shared.entry
    if mixed:
        operation, entry = shared.mixed_operation, shared.mixed_entry
    row = operations * operation + work.entries * entry
    start = operations * shared.start + work.tables * shared.table
    return np.where(np.isfinite(blocks), lanes * row + blocks * start, np.inf)


def lanes_and_blocks(work: RowWork, rows: npt.ArrayLike, mixed: bool) -> tuple[Floats, Floats]:
    """Return the lanes that groups of so many rows take and the blocks that they are computed in, infinite for none."""
    counts = np.asarray(rows, dtype=np.float64)
    # Tables that are too large go nowhere, and fewer rows than a vector has lanes not together.
    block = block_rows(work.entries, work.tables, mixed) if math.isfinite(work.entries) else 0
    blocks = np.ceil(counts / block) if block >= LANES else np.full(counts.shape, np.inf)
    return np.ceil(counts / LANES) * LANES, blocks
