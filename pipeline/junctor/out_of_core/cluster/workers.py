"""Rows in chunks over all workers of a cluster: how they are cut for it, and the program that does them.

A task is small, so that there are several for each worker: on a CPU `TASK_BYTES`, or less where workers have little
memory, on a GPU a share of the device. Workers with memory enough cut a row alike whatever their number, so its answer
is the same to the last bit; where they have less, or all of them together too little for that plan, another is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from junctor_kernels.cpu.bytecode import ENTRIES_BYTES, ENTRIES_THREAD_BYTES
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra

from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.cost.constants import CPU, GPU
from junctor.model.errors import BudgetError, JunctorError
from junctor.model.network import Network
from junctor.out_of_core.cluster.gpu_worker import MOST_SLOTS, GpuTasks, close, room_of
from junctor.out_of_core.cluster.run import IN_FLIGHT, ClusterRun
from junctor.out_of_core.gpu.slots import OFFSET_BYTES
from junctor.out_of_core.memory_splits import MASK_BYTES, PARTIAL_BYTES, ChunkRoute, MemoryLimits, fixed_bytes
from junctor.out_of_core.pass_program import CpuTasks, forget_shared
from junctor.out_of_core.program import ChunkedProgram
from junctor.placement.fusion import one_by_one
from junctor.placement.placement import slot_bytes
from junctor.planning.budget import approximate, format_bytes
from junctor.planning.chunk_search import (
    FAR_MORE,
    MemorySplit,
    TooLongError,
    candidates,
    operations_of,
    waiting_entries,
)
from junctor.planning.chunks import ChunkPass, ChunkPlan, TooSmallError, chunk_plan, loaded_entries, part
from junctor.planning.compile import Problem
from junctor.planning.plan import Plan
from junctor.runtime.dask_cluster import Resources, cluster_client, memory_of_each, workers_of
from junctor.runtime.devices import has_gpu
from junctor.runtime.machine import allowed_memory

if TYPE_CHECKING:
    from distributed import Client

# What a task takes on a CPU. A worker keeps so many times as much for those in flight, for what they read from
# elsewhere, there and here, and for what waits to be added up.
TASK_BYTES, RESERVED = 1 << 26, 16
# The same on a GPU: shares of the device, and what is kept in the memory of the machine.
GPU_SHARES, GPU_RESERVED = (1 / 8, 1 / 16, 1 / 32), 8
# Seconds a task of the client and the scheduler; tests replace it.
TASK_SECONDS = CPU.task
# Workers that plans are chosen for, however many there are.
CHOSEN_FOR = 4


@dataclass(frozen=True)
class WorkerPool:
    """Workers that do the tasks of a row together.

    memory: bytes of each, None for an equal share of what rows may take. room: bytes of the GPU of each, None for CPUs.
    threads: of a task on a CPU. client: of their cluster; none where only plans are made.
    """

    workers: int
    memory: int | None = None
    room: int | None = None
    threads: int = 1
    client: Client | None = field(default=None, compare=False)

    def cut(self, problem: Problem, itemsize: int, limits: MemoryLimits, rows: int) -> ChunkRoute:
        """Return the plan in chunks that takes least time; raises BudgetError where none fits.

        limits: `memory` of all workers together where they have none of their own, `task` of each on CPUs; no files.
        """
        try:
            chunks, task = self._cheapest(problem, itemsize, limits, rows)
        except TooSmallError as error:
            working = error.where == "working"
            where = "for the tables of a task" if working else "in their memory"
            there = "allowed for it" if working else "there beside their tasks"
            raise BudgetError(
                f"propagation in chunks over {self.workers} workers needs about {format_bytes(error.needed)} "
                f"({approximate(error.needed)} bytes) {where}, {format_bytes(max(0, error.allowed))} are {there}; "
                f"allow more memory (--memory){'' if working else ', or more workers'}"
            ) from None
        except TooLongError as error:
            raise BudgetError(f"propagation in chunks takes years ({error}); ask for fewer targets") from None
        _, scratch, compiled = _contracts(task)
        worth = operations_of(chunks.plan) * rows * CPU.task_operation > CPU.compiled_work
        kept = (GPU_RESERVED if limits.on_gpu else RESERVED) * task
        return ChunkRoute(
            chunks=chunks,
            limits=limits,
            itemsize=itemsize,
            working=self._slots(chunks, itemsize) if limits.on_gpu else task,
            beside=self.workers * kept,
            seconds=_seconds(chunks, itemsize, limits.on_gpu, self.workers),
            scratch=scratch,
            entry_threads=self.threads if compiled and worth and not limits.on_gpu else 0,
            workers=self.workers,
        )

    def _cheapest(self, problem: Problem, itemsize: int, limits: MemoryLimits, rows: int) -> tuple[ChunkPlan, int]:
        """Return the cut plan that takes least time, and the bytes of its tasks; raises TooSmallError, TooLongError."""
        best: tuple[float, ChunkPlan, int] | None = None
        missed: list[TooSmallError] = []
        operation = (GPU if limits.on_gpu else CPU).task_operation
        for plan in candidates(problem, rows):
            if best is not None and operations_of(plan) * operation / CHOSEN_FOR >= best[0]:
                continue
            for task, room in self._ways(plan, itemsize, limits):
                working, stored = room.working // itemsize, max(0, room.memory // itemsize)
                if (waiting := waiting_entries(plan)) > FAR_MORE * stored:
                    missed.append(TooSmallError("memory", waiting * itemsize, room.memory))
                    continue
                try:
                    chunks = chunk_plan(plan, working, stored, 0)
                except TooSmallError as error:
                    # What would lie on a disk has to have room beside what fills the memory.
                    beside = max(0, room.memory) if error.where == "disk" else 0
                    allowed = room.working if error.where == "working" else room.memory
                    missed.append(TooSmallError(error.where, beside + error.needed * itemsize, allowed))
                    continue
                seconds = _seconds(chunks, itemsize, limits.on_gpu, CHOSEN_FOR)
                if best is None or seconds < best[0]:
                    best = seconds, chunks, task
        if best is None:
            raise min(missed, key=lambda error: error.needed - error.allowed)
        return best[1:]

    def _ways(self, plan: Plan, itemsize: int, limits: MemoryLimits) -> Iterator[tuple[int, MemorySplit]]:
        """Yield the bytes of a task, and the room for its tables and for stored ones on all workers together."""
        each = self._each(limits) - fixed_bytes(plan)
        if limits.on_gpu:
            device = (self.room or limits.task or each) - OFFSET_BYTES
            for share in GPU_SHARES:
                task = int(device * share)
                beside = device - MOST_SLOTS * task
                yield task, MemorySplit(task - PARTIAL_BYTES, self.workers * (each - GPU_RESERVED * task + beside), 0)
            return
        task = min(limits.task or TASK_BYTES, each // (2 * RESERVED))
        tables = (task - _contracts(task)[0]) * itemsize // (itemsize + MASK_BYTES)
        yield task, MemorySplit(tables, self.workers * (each - RESERVED * task), 0)

    def _each(self, limits: MemoryLimits) -> int:
        """Return the bytes of memory of a worker."""
        return limits.memory // self.workers if self.memory is None else self.memory

    def room_for_tables(self, chunking: ChunkRoute, itemsize: int) -> int:
        """Return the bytes of stored tables that each worker has room for, on its GPU and in its memory."""
        limits, each = chunking.limits, self._each(chunking.limits) - fixed_bytes(chunking.chunks.plan)
        if not limits.on_gpu:
            return each - RESERVED * chunking.working
        slot = slot_bytes(chunking.chunks, itemsize, one_by_one)
        return each - GPU_RESERVED * slot + max(0, (self.room or limits.task or each) - chunking.working)

    def _slots(self, chunks: ChunkPlan, itemsize: int) -> int:
        return OFFSET_BYTES + MOST_SLOTS * slot_bytes(chunks, itemsize, one_by_one)

    def program(self, chunking: ChunkRoute, network: Network, algebra: Algebra) -> WorkerProgram:
        """Return what runs a plan that was cut for these workers."""
        return WorkerProgram(self, chunking, network, algebra)


class WorkerProgram:
    """A cut plan bound to the numbers of a network, whose tasks workers do; answers one case at a time."""

    def __init__(self, crew: WorkerPool, chunking: ChunkRoute, network: Network, algebra: Algebra) -> None:
        assert crew.client is not None
        on_gpu, chunks = chunking.limits.on_gpu, chunking.chunks
        self._client = crew.client
        self._program = ChunkedProgram(chunks, network, algebra, chunking.scratch, as_summed=on_gpu)
        self._contract = CpuTasks(algebra, chunking.scratch, chunking.entry_threads)
        slot = slot_bytes(chunks, algebra.dtype.itemsize, one_by_one)
        self._gpu = GpuTasks(algebra.name, slot, chunking.limits.task) if on_gpu else None
        self._room = crew.room_for_tables(chunking, algebra.dtype.itemsize)

    def run(self, block: EvidenceBlock) -> BlockOutcome:
        """Propagate one case and return its posteriors and log P(e); raises RunError where workers die of it."""
        in_flight = MOST_SLOTS if self._gpu else IN_FLIGHT
        run = ClusterRun(self._client, self._program, self._contract, in_flight, self._gpu, self._room)
        return run.outcome(block)


def _seconds(chunks: ChunkPlan, itemsize: int, on_gpu: bool, workers: int) -> float:
    """Return about what a row takes: the first task of a pass, then the others side by side."""
    device = GPU if on_gpu else CPU
    plan, seconds = chunks.plan, chunks.tasks * TASK_SECONDS
    for each in chunks.passes:
        tasks = plan.shape.entries(each.fixed)
        moved = loaded_entries(plan, each) + sum(plan.tables[table].entries for table in each.stores)
        work = sum(plan.work(step) for step in each.steps) * device.task_operation
        work += moved * itemsize * device.task_byte
        seconds += work / tasks * (1 + math.ceil((tasks - 1) / workers))
    return seconds + crossing_entries(chunks, workers) * itemsize * CPU.worker_byte / workers


def crossing_entries(chunks: ChunkPlan, workers: int) -> float:
    """Return about how many entries are read on other workers than the one where they were made.

    A part stays in place as far as the passes that make and read it hold the same of its variables constant; every
    task that reads it counts, also where tasks differ in nothing that it depends on.
    """
    made: dict[int, ChunkPass] = {}
    crossing = 0.0
    for each in chunks.passes:
        for table in each.loads:
            if table in made:
                held = set(made[table].fixed).intersection(each.fixed, chunks.plan.tables[table].scope)
                read = chunks.plan.shape.entries(each.fixed) * part(chunks.plan, table, each.fixed)
                crossing += read * max(0.0, 1 - chunks.plan.shape.entries(held) / workers)
        made.update(dict.fromkeys(each.stores, each))
    return crossing


def _contracts(task: int) -> tuple[int, int, bool]:
    """Return the bytes that contractions of a task take, scratch in NumPy in entries, and whether code is compiled."""
    compiled = ENTRIES_BYTES + ENTRIES_THREAD_BYTES
    if compiled <= task // 2:
        return compiled, reference.SCRATCH_ENTRIES, True
    each = reference.SCRATCH_ARRAYS * 8
    entries = min(reference.SCRATCH_ENTRIES, max(1, task // 4 // each))
    return entries * each, entries, False


@contextmanager
def open_crew(resources: Resources, threads: int | None) -> Iterator[WorkerPool]:
    """Have the workers that are asked for, and their GPUs. threads: of a task; None for those of the workers."""
    with cluster_client(resources) as client:
        workers = workers_of(client)
        memory = memory_of_each(workers.values(), resources) if resources.scheduler is not None else None
        shared = min(int(worker["nthreads"]) for worker in workers.values()) // IN_FLIGHT
        room = None
        device = resources.compute.device
        if device == "gpu" or (device == "auto" and all(client.run(has_gpu).values())):
            room = min(client.run(room_of, resources.compute.device_memory).values())
        try:
            yield WorkerPool(len(workers), memory, room, threads or max(1, shared), client)
        finally:
            # Workers of a scheduler go on with other work; what cannot leave now does for the next run.
            with suppress(OSError, RuntimeError, JunctorError):
                if room is not None:
                    client.run(close)
                client.run(forget_shared)


def memory_here(crew: WorkerPool, resources: Resources) -> int:
    """Return the bytes that this process may take for rows that go in one piece, beside rows in chunks elsewhere."""
    allowed = allowed_memory(resources.compute)
    return allowed if crew.memory is None else min(allowed, crew.memory)
