"""Rows whose plan exceeds the memory: how it is cut and what that takes, and the program that does it.

Memory is divided between tables of a task, with the scratch of its contractions, and stored tables; what of these does
not fit goes into files. Everything is settled before anything runs, and deterministic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
from junctor_kernels import reference
from junctor_kernels.entries_gpu import PARTIAL_ENTRIES
from junctor_kernels.layout import ENTRIES_BYTES, ENTRIES_THREAD_BYTES
from junctor_kernels.reference import Algebra

from junctor.answers import Answers
from junctor.chunk_places import slot_bytes
from junctor.chunk_slots import OFFSET_BYTES, SLOTS, ChunkGpu
from junctor.chunked import ChunkedProgram
from junctor.errors import BudgetError
from junctor.evidence.batch import EvidenceBatch
from junctor.execution import block_of, write, write_tables
from junctor.memory import OPERATION_SECONDS, STEP_BYTES
from junctor.model import Network
from junctor.planning.budget import approximate, format_bytes
from junctor.planning.chunks import ChunkPlan, TooSmallError
from junctor.planning.compile import Problem
from junctor.planning.oversize import Room, Speed, TooLongError, cheapest_chunks, operations_of, seconds_of
from junctor.planning.plan import Likelihood, Plan, Potential, Slice
from junctor.propagation import Block, Outcome

if TYPE_CHECKING:
    from junctor_kernels.gpu import CudaDevice

Rows = npt.NDArray[np.int64]

# Shares of the memory that a task may take, the rest is for stored tables; the one that takes least time is kept.
SHARES = (1 / 2, 1 / 4, 1 / 8)
# The same for a GPU. The smaller a task, the sooner copies and kernels overlap.
GPU_SHARES = (3 / 4, 1 / 4, 1 / 8, 1 / 16, 1 / 32)
# Number formats that tasks may have on a GPU, and the most that sums of terms take there.
CHUNK_FORMATS = ("single", "double")
PARTIAL_BYTES = 2 * PARTIAL_ENTRIES * 8
# Share of a task's memory that the scratch of NumPy contractions may take.
SCRATCH_SHARE = 1 / 4
# Beside each entry of a table in NumPy there may be a byte of a mask.
MASK_BYTES = 1
# What NumPy and Python take for themselves while tasks are done: buffers, views that wait for the collector, frames.
INTERPRETER_BYTES = 1 << 19
# Coarse, for choices and forecasts. A GPU has its tasks behind a bus of 55 GB/s each way.
CPU_SPEED = Speed(operation=1e-9, byte=1e-10, disk_byte=1e-9, step=5e-5)
GPU_SPEED = Speed(operation=1.5e-12, byte=1 / 55e9, disk_byte=1e-9, step=1e-4, at_once=True)
# Seconds of work in NumPy from which on compiled contractions are worth being loaded.
COMPILED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What rows in chunks may take, in bytes.

    memory: of everything in this machine's memory. task: of the tables and the scratch of a task, None where only
    `memory` bounds it. disk: of files, which lie in `folder`. threads: of contractions. on_gpu: whether tasks have the
    memory of a GPU, `task` of it, and none of `memory`.
    """

    memory: int
    task: int | None
    disk: int
    folder: Path
    threads: int = 1
    on_gpu: bool = False

    @property
    def speed(self) -> Speed:
        """What operations and bytes take there."""
        return GPU_SPEED if self.on_gpu else CPU_SPEED


@dataclass(frozen=True, slots=True)
class Chunking:
    """A plan cut for some limits. All but `scratch` and `entry_threads` are bytes; seconds of a row.

    fixed: what a program takes beside tasks and stored tables. working: tables and scratch of a task. memory: the peak
    of everything in this machine's memory, disk: of files. loaded, stored: what comes into the memory of tasks and out.
    workers: that share its tasks, 0 where this process does them; then `memory` is that of all of them together.
    """

    chunks: ChunkPlan
    limits: Limits
    fixed: int
    working: int
    memory: int
    disk: int
    loaded: int
    stored: int
    scratch: int
    entry_threads: int
    seconds: float
    workers: int = 0


def cut(problem: Problem, itemsize: int, limits: Limits, rows: int = 1) -> Chunking:
    """Return the plan in chunks that takes least time; raises BudgetError where none fits.

    itemsize: bytes of an entry. rows: cases to come, which bound the search.
    """

    taken: list[int] = []

    def rooms(plan: Plan) -> Iterator[Room]:
        taken.append(fixed_bytes(plan))
        for task in _tasks(limits, limits.memory - fixed_bytes(plan)):
            tables = (task - _scratch(task, limits)[0]) * itemsize // (itemsize + MASK_BYTES)
            stored = limits.memory - fixed_bytes(plan) - (0 if limits.on_gpu else task)
            yield Room(tables, stored, limits.disk)

    try:
        chunks, room = cheapest_chunks(problem, itemsize, rooms, limits.speed, rows)
    except TooSmallError as error:
        raise _refusal(error, limits, min(taken)) from None
    except TooLongError as error:
        raise BudgetError(
            f"propagation in chunks takes years ({error}); ask for fewer targets, or give evidence on more variables"
        ) from None
    fixed = fixed_bytes(chunks.plan)
    task = limits.memory - fixed - room.memory
    scratch_bytes, scratch, entry_threads = _scratch(task, limits)
    working = scratch_bytes + chunks.working * (itemsize + MASK_BYTES)
    if limits.on_gpu:
        slot = slot_bytes(chunks, itemsize)
        working = OFFSET_BYTES + slot * max(1, min(SLOTS, ((limits.task or limits.memory) - OFFSET_BYTES) // slot))
    return Chunking(
        chunks=chunks,
        limits=limits,
        fixed=fixed,
        working=working,
        memory=fixed + chunks.peak(on_disk=False) * itemsize + (0 if limits.on_gpu else working),
        disk=chunks.peak(on_disk=True) * itemsize,
        loaded=chunks.loaded * itemsize,
        stored=chunks.stored * itemsize,
        scratch=scratch,
        entry_threads=entry_threads if operations_of(chunks.plan) * rows * OPERATION_SECONDS > COMPILED_SECONDS else 0,
        seconds=seconds_of(chunks, itemsize, limits.speed),
    )


def _tasks(limits: Limits, free: int) -> list[int]:
    """Return the bytes that a task may be given, the most first."""
    if limits.on_gpu:
        # Of everything on the GPU; several tasks are under way, in pieces of memory that leave gaps.
        whole = (limits.task or free) - OFFSET_BYTES
        return [int(whole * share) - PARTIAL_BYTES for share in GPU_SHARES]
    most = free if limits.task is None else limits.task
    return list(dict.fromkeys(min(most, int(free * share)) for share in SHARES))


def _scratch(task: int, limits: Limits) -> tuple[int, int, int]:
    """Return the bytes for contractions of a task, their scratch in NumPy in entries, and their threads if compiled."""
    if limits.on_gpu:
        return 0, 0, 0
    threads = min(limits.threads, (task // 2 - ENTRIES_BYTES) // ENTRIES_THREAD_BYTES)
    if threads > 0:
        return ENTRIES_BYTES + threads * ENTRIES_THREAD_BYTES, reference.SCRATCH_ENTRIES, threads
    each = reference.SCRATCH_ARRAYS * 8
    entries = min(reference.SCRATCH_ENTRIES, max(1, int(task * SCRATCH_SHARE) // each))
    return entries * each, entries, 0


def fixed_bytes(plan: Plan) -> int:
    """Return what the program of a plan in chunks takes beside tasks and stored tables."""
    made = [plan.tables[step.out].entries for step in plan.steps if isinstance(step, Potential | Slice | Likelihood)]
    sliced = [plan.shape.entries(plan.shape.scopes[factor]) for factor in plan.sliced_factors()]
    # While a table is bound there are copies of it; results stay beside their posteriors.
    binding = 5 * max((*made, *sliced), default=0)
    results = 2 * sum(plan.tables[table].entries for _, table in plan.marginals)
    tables = 2 * sum(made) + 3 * sum(sliced) + binding + results
    return 8 * tables + len(plan.steps) * STEP_BYTES + INTERPRETER_BYTES


def _refusal(error: TooSmallError, limits: Limits, fixed: int) -> BudgetError:
    if fixed >= limits.memory:
        return BudgetError(
            f"propagation in chunks needs {format_bytes(fixed)} ({fixed:,} bytes) for records and factors, allowed "
            f"are {format_bytes(limits.memory)} ({limits.memory:,} bytes) beside answers; allow more memory (--memory)"
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
    return BudgetError(
        f"propagation in chunks needs at least {format_bytes(needed)} ({approximate(needed)} bytes) {where}, allowed "
        f"are {format_bytes(allowed)} ({allowed:,} bytes); {more}, ask for fewer targets, or give evidence on more "
        "variables"
    )


def program_of(chunking: Chunking, network: Network, algebra: Algebra, *devices: CudaDevice) -> ChunkedProgram:
    """Return what runs a cut plan, on GPUs if there are any; raises BudgetError where these have too little memory."""
    try:
        gpu = ChunkGpu(chunking.chunks, algebra.name, *devices) if devices else None
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


class OneByOne(Protocol):
    """What answers one case at a time."""

    def run(self, block: Block) -> Outcome:
        """Propagate one case."""


def answer_one_by_one(program: OneByOne, plan: Plan, batch: EvidenceBatch, rows: Rows, answers: Answers) -> Rows:
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
