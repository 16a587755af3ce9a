"""Where rows in chunks go, CPU or GPU, and whether rows whose plan fits the memory are better off in chunks.

Prices settle it, for one thread of the CPU, so that the number of threads changes no answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from junctor_kernels.tables.reference import Algebra

from junctor.cost.constants import GPU
from junctor.cost.features.plans import PLAN_WORK
from junctor.model.errors import BudgetError
from junctor.out_of_core.memory_splits import ChunkRoute, CpuSplits
from junctor.planning.plan import Plan

if TYPE_CHECKING:
    from junctor.cost.model import CostModel
    from junctor.engine.engine import Engine
    from junctor.planning.shape import Pattern

# Number formats that tasks may have on a GPU.
CHUNK_FORMATS = ("single", "double")


def chosen_chunking(engine: Engine, pattern: Pattern, uses: int, algebra: Algebra, free: int, gpu: bool) -> ChunkRoute:
    """Return how rows go through `free` bytes in chunks, where that takes least; raises BudgetError where they cannot.

    gpu: whether there is one to use; with the device "auto" the CPU may still be faster.
    """
    gpu = gpu and algebra.name in CHUNK_FORMATS
    if not gpu or engine.crew is not None or engine.device != "auto":
        return engine.chunking(pattern, uses, algebra, free, gpu)
    try:
        there = engine.chunking(pattern, uses, algebra, free, on_gpu=True)
    except BudgetError:
        return engine.chunking(pattern, uses, algebra, free)
    # Cutting takes seconds, so not where the operations alone take longer.
    least = CpuSplits(there.limits, algebra, engine.cpu_speeds, uses).least(there.chunks.plan)
    if uses * least >= on_gpu_seconds(there, uses):
        return there
    try:
        here = engine.chunking(pattern, uses, algebra, free)
    except BudgetError:
        return there
    return here if uses * here.seconds < on_gpu_seconds(there, uses) else there


def on_gpu_seconds(chunking: ChunkRoute, rows: int) -> float:
    """Return what rows in chunks take on a GPU, with the memory that is pinned for them."""
    return rows * chunking.seconds + chunking.memory * GPU.pinned_byte


def beats_one_piece(engine: Engine, pattern: Pattern, uses: int, free: int) -> bool:
    """Tell whether rows whose plan fits this machine, but not its GPU, are faster in chunks on that GPU.

    On a CPU what fits goes in one piece: chunks take about as long, and cutting takes seconds.
    """
    algebra = engine.ladder[0]
    if algebra.name not in CHUNK_FORMATS:
        return False
    try:
        chunking = engine.chunking(pattern, uses, algebra, free, on_gpu=True)
    except BudgetError:
        return False
    plan = engine.plan(pattern, uses)
    return on_gpu_seconds(chunking, uses) < one_piece_seconds(plan, engine.cpu_speeds, uses)


def one_piece_seconds(plan: Plan, costs: CostModel, rows: int) -> float:
    """Return the forecast of rows of a plan on one thread of a CPU whose memory it fits."""
    steps, entries = len(plan.steps), sum(table.entries for table in plan.tables)
    operations = plan.shared_operations + rows * plan.case_operations
    counts = (1, steps, operations, entries, rows * sum(plan.shape.cardinalities))
    return costs.seconds("entries-double", dict(zip(PLAN_WORK, map(float, counts), strict=True)))
