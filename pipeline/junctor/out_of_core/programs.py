"""Rows whose plan exceeds the memory: how it is cut and what that takes, and the program that does it.

Memory is divided between tables of a task, with the scratch of its contractions, and stored tables; what of these does
not fit goes into files. Everything is settled before anything runs, and deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables.reference import Algebra

from junctor.backends.blocks import block_of, write, write_tables
from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.cost.constants import CPU
from junctor.evidence.batch import EvidenceBatch
from junctor.model.answers import Answers
from junctor.model.errors import BudgetError
from junctor.model.network import Network
from junctor.out_of_core.gpu.devices import DeviceGroup
from junctor.out_of_core.gpu.slots import OFFSET_BYTES
from junctor.out_of_core.memory_splits import GPU_SHARES, PARTIAL_BYTES, ChunkRoute, CpuSplits, GpuSplits, MemoryLimits
from junctor.out_of_core.program import ChunkedProgram
from junctor.placement.placement import aligned
from junctor.planning.budget import approximate, format_bytes
from junctor.planning.chunk_search import ChunkPrices, MemorySplit, TooLongError, cheapest_chunks
from junctor.planning.chunks import TooSmallError
from junctor.planning.compile import Problem
from junctor.planning.plan import Plan

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import CudaBlockDevice

    from junctor.cost.model import CostModel

Rows = npt.NDArray[np.int64]


def cut(
    problem: Problem,
    algebra: Algebra,
    limits: MemoryLimits,
    costs: CostModel,
    rows: int = 1,
    gpus: int = 1,
) -> ChunkRoute:
    """Return the plan in chunks that takes least time; raises BudgetError where none fits.

    costs: of the device. rows: cases to come, which bound the search. gpus: that share the tasks.
    """
    taken: list[int] = []
    ways: GpuSplits | CpuSplits
    ways = GpuSplits(limits, algebra, costs, gpus) if limits.on_gpu else CpuSplits(limits, algebra, costs, rows)

    def rooms(plan: Plan) -> Sequence[MemorySplit]:
        taken.append(ways.fixed(plan))
        return ways.rooms(plan)

    try:
        pricing = ChunkPrices(ways.least, ways.seconds, CPU.cutting_step)
        found = cheapest_chunks(problem, algebra.dtype.itemsize, rooms, pricing, rows)
    except TooSmallError as error:
        raise _refusal(error, limits, min(taken)) from None
    except TooLongError as error:
        raise BudgetError(
            f"propagation in chunks takes years ({error}); ask for fewer targets, or give evidence on more variables"
        ) from None
    return ways.chunking(*found)


def _refusal(error: TooSmallError, limits: MemoryLimits, fixed: int) -> BudgetError:
    allowed = max(0, limits.memory)
    if fixed >= limits.memory:
        return BudgetError(
            f"propagation in chunks needs {format_bytes(fixed)} ({fixed:,} bytes) for records and factors, allowed "
            f"are {format_bytes(allowed)} ({allowed:,} bytes) beside answers; allow more memory (--memory)"
        )
    where, more = {
        "working": ("for the tables of a task", "allow a task more (--device-memory, --memory)"),
        "memory": ("for stored tables in memory", "allow more memory (--memory)"),
        "disk": (
            f"in files in {limits.folder}",
            "allow more disk (--disk, --spill names a folder with more room) or more memory (--memory)",
        ),
    }[error.where]
    needed, allowed = error.needed, max(0, error.allowed)
    if limits.on_gpu and error.where == "working":
        where = "of the GPU for the tables of a task and what goes with them"
        # Of what is allowed beside offsets, a task has the largest share at the most.
        needed = aligned(math.ceil((needed + PARTIAL_BYTES) / max(GPU_SHARES))) + OFFSET_BYTES
        allowed = limits.task if limits.task is not None else limits.memory
    return BudgetError(
        f"propagation in chunks needs at least {format_bytes(needed)} ({approximate(needed)} bytes) {where}, allowed "
        f"are {format_bytes(allowed)} ({allowed:,} bytes); {more}, ask for fewer targets, or give evidence on more "
        "variables"
    )


def program_of(chunking: ChunkRoute, network: Network, algebra: Algebra, *devices: CudaBlockDevice) -> ChunkedProgram:
    """Return what runs a cut plan, on GPUs if there are any; raises BudgetError where these have too little memory."""
    try:
        gpu = DeviceGroup(chunking.chunks, algebra.name, *devices, slots=chunking.slots) if devices else None
    except MemoryError as error:
        raise BudgetError(f"propagation in chunks on the GPU: {error}; allow more, or use --device cpu") from error
    return ChunkedProgram(
        chunking.chunks,
        network,
        algebra,
        scratch=chunking.scratch,
        folder=chunking.limits.folder,
        entry_threads=chunking.entry_threads,
        gpu=gpu,
    )


class SingleCaseProgram(Protocol):
    """What answers one case at a time."""

    def run(self, block: EvidenceBlock) -> BlockOutcome:
        """Propagate one case."""


def answer_one_by_one(
    program: SingleCaseProgram, plan: Plan, batch: EvidenceBatch, rows: Rows, answers: Answers
) -> Rows:
    """Write the answers to `rows`; returns the doubtful ones."""
    doubtful: list[Rows] = [rows[:0]]
    for n in range(len(rows)):
        part = rows[n : n + 1]
        block = block_of(batch, part, plan.pattern, plan.shape.cardinalities)
        outcome = program.run(block)
        write_tables(outcome, block, part, answers)
        write(outcome, part, answers)
        doubtful.append(part[outcome.doubtful])
    return np.concatenate(doubtful)
