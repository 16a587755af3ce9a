"""Rows in chunks over all workers of a cluster: how they are cut for it, and the program that does them.

A task is small, so that there are several for each worker: on a CPU `TASK_BYTES`, or less where workers have little
memory, on a GPU a share of the device. How a row is cut does not follow from the number of workers, so neither does its
answer, to the last bit; only where all of them together have too little memory for a plan, another one is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from junctor_kernels import reference
from junctor_kernels.layout import ENTRIES_BYTES, ENTRIES_THREAD_BYTES
from junctor_kernels.reference import Algebra

from junctor.chunk_cluster import IN_FLIGHT, ClusterRun
from junctor.chunk_places import slot_bytes
from junctor.chunk_slots import OFFSET_BYTES
from junctor.chunk_tasks import OnCpu
from junctor.chunked import ChunkedProgram
from junctor.devices import has_gpu
from junctor.distribution import Resources, allowed_memory, cluster_client, memory_of_each, workers_of
from junctor.errors import BudgetError
from junctor.model import Network
from junctor.oversize import MASK_BYTES, PARTIAL_BYTES, Chunking, Limits, fixed_bytes
from junctor.planning.budget import approximate, format_bytes
from junctor.planning.chunks import ChunkPlan, TooSmallError, loaded_entries
from junctor.planning.compile import Problem
from junctor.planning.oversize import Room, Speed, TooLongError, cheapest_chunks, operations_of
from junctor.planning.plan import Plan
from junctor.propagation import Block, Outcome
from junctor.worker_gpu import MOST_SLOTS, OnGpu, close, room_of

if TYPE_CHECKING:
    from distributed import Client

# What a task takes on a CPU. A worker keeps so many times as much for those in flight, for what they read from
# elsewhere, there and here, and for what waits to be added up.
TASK_BYTES, RESERVED = 1 << 26, 16
# The same on a GPU: shares of the device, and what is kept in the memory of the machine.
GPU_SHARES, GPU_RESERVED = (1 / 8, 1 / 16, 1 / 32), 8
# Coarse, for choices and forecasts: seconds of an operation and of a byte to or from a task on a worker.
CPU_SPEED, GPU_SPEED = Speed(1e-9, 1e-10, 0.0, 1e-3), Speed(1.5e-12, 1e-12, 0.0, 1e-3)
# Seconds that a task takes the client and the scheduler, and a byte that crosses; half of all bytes do.
TASK_SECONDS, CROSSING_SECONDS = 5e-3, 1e-9
# Seconds of a row from which compiled contractions are worth being loaded on every worker.
COMPILED_SECONDS = 1.0


@dataclass(frozen=True)
class Crew:
    """Workers that do the tasks of a row together.

    memory: bytes of each, None for an equal share of what rows may take. room: bytes of the GPU of each, None for CPUs.
    threads: of a task on a CPU. client: of their cluster; none where only plans are made.
    """

    workers: int
    memory: int | None = None
    room: int | None = None
    threads: int = 1
    client: Client | None = field(default=None, compare=False)

    def cut(self, problem: Problem, itemsize: int, limits: Limits, rows: int) -> Chunking:
        """Return the plan in chunks that takes least time; raises BudgetError where none fits.

        limits: `memory` of all workers together where they have none of their own, `task` of each on CPUs; no files.
        """
        rooms = {}

        def ways(plan: Plan) -> Iterator[Room]:
            for task, room in self._ways(plan, itemsize, limits):
                rooms[room] = task
                yield room

        speed = GPU_SPEED if limits.on_gpu else CPU_SPEED
        try:
            chunks, room = cheapest_chunks(problem, itemsize, ways, speed, rows)
        except TooSmallError as error:
            raise BudgetError(
                f"propagation in chunks over {self.workers} workers needs at least {format_bytes(error.needed)} "
                f"({approximate(error.needed)} bytes) in their memory, {format_bytes(max(0, error.allowed))} are there "
                "beside their tasks; allow more memory (--memory), or more workers"
            ) from None
        except TooLongError as error:
            raise BudgetError(f"propagation in chunks takes years ({error}); ask for fewer targets") from None
        task, stored = rooms[room], chunks.peak(on_disk=False) * itemsize
        _, scratch, compiled = _contracts(task)
        worth = operations_of(chunks.plan) * rows * CPU_SPEED.operation > COMPILED_SECONDS
        fixed = fixed_bytes(chunks.plan)
        kept = (GPU_RESERVED if limits.on_gpu else RESERVED) * task
        return Chunking(
            chunks=chunks,
            limits=limits,
            fixed=fixed,
            working=self._slots(chunks, itemsize) if limits.on_gpu else task,
            memory=fixed + stored + self.workers * kept,
            disk=0,
            loaded=chunks.loaded * itemsize,
            stored=chunks.stored * itemsize,
            scratch=scratch,
            entry_threads=self.threads if compiled and worth and not limits.on_gpu else 0,
            seconds=self._seconds(chunks, itemsize, speed),
            workers=self.workers,
        )

    def _ways(self, plan: Plan, itemsize: int, limits: Limits) -> Iterator[tuple[int, Room]]:
        """Yield the bytes of a task, and the room for its tables and for stored ones on all workers together."""
        each = (limits.memory // self.workers if self.memory is None else self.memory) - fixed_bytes(plan)
        if limits.on_gpu:
            device = (self.room or limits.task or each) - OFFSET_BYTES
            for share in GPU_SHARES:
                task = int(device * share)
                beside = device - MOST_SLOTS * task
                yield task, Room(task - PARTIAL_BYTES, self.workers * (each - GPU_RESERVED * task + beside), 0)
            return
        task = min(limits.task or TASK_BYTES, each // (2 * RESERVED))
        tables = (task - _contracts(task)[0]) * itemsize // (itemsize + MASK_BYTES)
        yield task, Room(tables, self.workers * (each - RESERVED * task), 0)

    def _slots(self, chunks: ChunkPlan, itemsize: int) -> int:
        return OFFSET_BYTES + MOST_SLOTS * slot_bytes(chunks, itemsize)

    def _seconds(self, chunks: ChunkPlan, itemsize: int, speed: Speed) -> float:
        """Return about what a row takes: the first task of a pass, then the others side by side."""
        plan, seconds = chunks.plan, chunks.tasks * TASK_SECONDS
        for each in chunks.passes:
            tasks = plan.shape.entries(each.fixed)
            moved = loaded_entries(plan, each) + sum(plan.tables[table].entries for table in each.stores)
            work = sum(plan.work(step) for step in each.steps) * speed.operation + moved * itemsize * speed.byte
            seconds += work / tasks * (1 + math.ceil((tasks - 1) / self.workers))
        return seconds + chunks.loaded * itemsize / 2 * CROSSING_SECONDS / self.workers

    def program(self, chunking: Chunking, network: Network, algebra: Algebra) -> CrewProgram:
        """Return what runs a plan that was cut for these workers."""
        return CrewProgram(self, chunking, network, algebra)


class CrewProgram:
    """A cut plan bound to the numbers of a network, whose tasks workers do; answers one case at a time."""

    def __init__(self, crew: Crew, chunking: Chunking, network: Network, algebra: Algebra) -> None:
        assert crew.client is not None
        on_gpu, chunks = chunking.limits.on_gpu, chunking.chunks
        self._client = crew.client
        self._program = ChunkedProgram(chunks, network, algebra, chunking.scratch, as_summed=on_gpu)
        self._contract = OnCpu(algebra, chunking.scratch, chunking.entry_threads)
        slot = slot_bytes(chunks, algebra.dtype.itemsize)
        self._gpu = OnGpu(algebra.name, slot, chunking.limits.task) if on_gpu else None

    def run(self, block: Block) -> Outcome:
        """Propagate one case and return its posteriors and log P(e); raises RunError where workers die of it."""
        in_flight = MOST_SLOTS if self._gpu else IN_FLIGHT
        return ClusterRun(self._client, self._program, self._contract, in_flight, self._gpu).outcome(block)


def _contracts(task: int) -> tuple[int, int, bool]:
    """Return the bytes that contractions of a task take, scratch in NumPy in entries, and whether code is compiled."""
    compiled = ENTRIES_BYTES + ENTRIES_THREAD_BYTES
    if compiled <= task // 2:
        return compiled, reference.SCRATCH_ENTRIES, True
    each = reference.SCRATCH_ARRAYS * 8
    entries = min(reference.SCRATCH_ENTRIES, max(1, task // 4 // each))
    return entries * each, entries, False


@contextmanager
def open_crew(resources: Resources, threads: int | None) -> Iterator[Crew]:
    """Have the workers that are asked for, and their GPUs. threads: of a task; None for those of the workers."""
    with cluster_client(resources) as client:
        workers = workers_of(client)
        memory = memory_of_each(workers.values(), resources) if resources.scheduler is not None else None
        shared = min(int(worker["nthreads"]) for worker in workers.values()) // IN_FLIGHT
        room = None
        if resources.device == "gpu" or (resources.device == "auto" and all(client.run(has_gpu).values())):
            room = min(client.run(room_of, resources.device_memory).values())
        try:
            yield Crew(len(workers), memory, room, threads or max(1, shared), client)
        finally:
            if room is not None:
                # Workers of a scheduler go on with other work.
                with suppress(OSError, RuntimeError):
                    client.run(close)


def memory_here(crew: Crew, resources: Resources) -> int:
    """Return the bytes that this process may take for rows that go in one piece, beside rows in chunks elsewhere."""
    allowed = allowed_memory(resources)
    return allowed if crew.memory is None else min(allowed, crew.memory)
