"""Rows out of core over the workers of a cluster: how they are cut for it, and the programs that do them.

With GPUs a worker answers a row whole, as one process does: alone, or with several GPUs of its machine (`rows`). Where
no machine has memory enough, and on CPUs, all workers share the tasks of a row (`run`). Such a task is small, so that
there are several for each worker: on a CPU `TASK_BYTES`, or less where workers have little memory, on a GPU a share of
the device. Workers with memory enough cut a row alike whatever their number, so its answer is the same to the last bit;
where they have less, or all of them together too little for that plan, another is taken.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from junctor_kernels.cpu.bytecode import ENTRIES_BYTES, ENTRIES_THREAD_BYTES
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra

from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.cost.dataset import MeasuredDevice
from junctor.cost.figures import shipped_figures
from junctor.cost.model import CostModel
from junctor.model.errors import BudgetError, JunctorError
from junctor.model.network import Network
from junctor.out_of_core import memory_splits
from junctor.out_of_core.bound_plan import BoundPlan
from junctor.out_of_core.cluster.gpu_worker import MOST_SLOTS, close
from junctor.out_of_core.cluster.machine_gpus import MachineGpus, WorkerGpus, gpus_here, machines_of
from junctor.out_of_core.cluster.rows import ROWS_AHEAD, RowProgram, SentPlan, forget_program, same
from junctor.out_of_core.cluster.run import IN_FLIGHT, ClusterRun
from junctor.out_of_core.cluster.tasks import GpuTasks, forget_shared
from junctor.out_of_core.memory_splits import ChunkRoute, GpuGroup, MemoryLimits, gpu_room
from junctor.out_of_core.pass_program import CpuTasks
from junctor.out_of_core.programs import Rows, Search, SingleCaseProgram, cut, cut_for_gpus
from junctor.placement.fusion import single_steps
from junctor.placement.placement import slot_bytes
from junctor.planning import chunk_search
from junctor.planning.budget import exact_bytes, format_bytes
from junctor.planning.chunk_search import ChunkPrices, KeptChoice, MemorySplit, cheapest_chunks
from junctor.planning.chunks import ChunkPass, ChunkPlan, TooSmallError, loaded_entries, part
from junctor.planning.compile import Problem
from junctor.planning.plan import Plan
from junctor.runtime.dask_cluster import Resources, cluster_client, memory_of_each, workers_of
from junctor.runtime.machine import allowed_memory

if TYPE_CHECKING:
    from distributed import Client, Future

# What a task takes on a CPU. A worker keeps so many times as much for those in flight, for what they read from
# elsewhere, there and here, and for what waits to be added up.
TASK_BYTES, RESERVED = 1 << 26, 16
# The same on a GPU: shares of the device, and what is kept in the memory of the machine.
GPU_SHARES, GPU_RESERVED = (1 / 8, 1 / 16, 1 / 32), 8
# Workers that plans are chosen for, however many there are.
CHOSEN_FOR = 4


@dataclass(frozen=True, slots=True)
class WorkerSplit(MemorySplit):
    """Tables of a task, and stored tables of all workers together; task: bytes with the scratch of contractions."""

    task: int


@dataclass(frozen=True)
class WorkerPool:
    """Workers that answer rows: one each, or all of them together.

    workers: how many there are.
    memory: bytes of each, None for an equal share of what rows may take.
    room: bytes of the GPU of each, None for CPUs.
    threads: of a task on a CPU.
    gpus: how those of workers can share rows; None where workers answer none by themselves.
    device: the GPU of a worker, None for that of this machine.
    client: of their cluster; none where only plans are made.
    machines: which GPUs those are, and whose.
    sent: plans on their way to workers or there, and what keeps them there.
    """

    workers: int
    memory: int | None = None
    room: int | None = None
    threads: int = 1
    gpus: GpuGroup | None = None
    device: MeasuredDevice | None = field(default=None, compare=False)
    client: Client | None = field(default=None, compare=False)
    machines: tuple[MachineGpus, ...] = field(default=(), compare=False)
    sent: dict[tuple[ChunkRoute, str], tuple[SentPlan, Future]] = field(default_factory=dict, compare=False, repr=False)

    def cut(
        self,
        problem: Problem,
        algebra: Algebra,
        limits: MemoryLimits,
        rows: int,
        costs: CostModel | None = None,
        search: Search = cut,
        kept: KeptChoice | None = None,
    ) -> ChunkRoute:
        """Return the plan in chunks that takes least time; raises BudgetError where none fits.

        limits: `memory` of all workers together where they have none of their own, `task` of each on CPUs; no files.
        costs: of the GPU of a worker, None on CPUs.
        search: as of `cut_for_gpus`.
        kept: as of `cut`, where all workers share a row.
        """
        if self.gpus is not None and limits.on_gpu and costs is not None:
            with suppress(BudgetError):
                return self._cut_for_machines(problem, algebra, limits, rows, costs, search)
        return self._cut_into_parts(problem, algebra.dtype.itemsize, limits, rows, kept)

    def _cut_for_machines(
        self, problem: Problem, algebra: Algebra, limits: MemoryLimits, rows: int, costs: CostModel, search: Search
    ) -> ChunkRoute:
        """Return the plan for rows that workers answer whole; raises BudgetError where no machine has the memory."""
        assert self.gpus is not None
        each, machines = self.gpus.each, self.gpus.machines
        memory = limits.memory // machines if self.memory is None else self.memory * each
        there = replace(limits, memory=memory, task=self.room, disk=0)
        route = cut_for_gpus(problem, algebra, there, costs, rows, self.gpus, search)
        return replace(route, workers=self.workers, seconds=route.seconds + shipped_figures().workers.task)

    def _cut_into_parts(
        self, problem: Problem, itemsize: int, limits: MemoryLimits, rows: int, kept: KeptChoice | None
    ) -> ChunkRoute:
        """Return the plan for rows whose tasks all workers share; raises BudgetError where they have too little."""
        figures = shipped_figures()
        operation = figures.workers.gpu_operation if limits.on_gpu else figures.workers.operation
        prices = ChunkPrices(
            # A lower bound: multiply-adds alone, spread evenly over the workers.
            least=lambda plan: plan.operations * operation / CHOSEN_FOR,
            seconds=lambda chunks, _: _seconds(chunks, itemsize, limits.on_gpu, CHOSEN_FOR),
            cutting=0.0,
        )
        try:
            chunks, split = cheapest_chunks(
                problem, itemsize, lambda plan: self._splits(plan, itemsize, limits), prices, rows, kept
            )
        except TooSmallError as error:
            working = error.where == "working"
            where = "for the tables of a task" if working else "in their memory"
            there = "allowed for it" if working else "there beside their tasks"
            raise BudgetError(
                f"propagation in chunks over {self.workers} workers needs about {exact_bytes(error.needed)} "
                f"{where}, {format_bytes(max(0, error.allowed))} are {there}; "
                f"allow more memory (--memory){'' if working else ', or more workers'}"
            ) from None
        except chunk_search.TooLongError as error:
            raise BudgetError(f"propagation in chunks takes years ({error}); ask for fewer targets") from None
        task = split.task
        _, scratch, compiled = _contracts(task)
        # Loading compiled code takes a second on every worker.
        worth = chunks.plan.operations * rows * figures.workers.operation > figures.loading.compiled
        reserved = (GPU_RESERVED if limits.on_gpu else RESERVED) * task
        task_bytes = task
        if limits.on_gpu:
            task_bytes = memory_splits.OFFSET_BYTES + MOST_SLOTS * slot_bytes(chunks, itemsize, single_steps)
        return ChunkRoute(
            chunks=chunks,
            limits=limits,
            itemsize=itemsize,
            working=task_bytes,
            overhead=self.workers * reserved,
            seconds=_seconds(chunks, itemsize, limits.on_gpu, self.workers),
            scratch=scratch,
            entry_threads=self.threads if compiled and worth and not limits.on_gpu else 0,
            workers=self.workers,
        )

    def _splits(self, plan: Plan, itemsize: int, limits: MemoryLimits) -> list[WorkerSplit]:
        """Return the ways to divide the memory of all workers together."""
        memory = self._memory(limits) - memory_splits.fixed_bytes(plan)
        if limits.on_gpu:
            device = (self.room or limits.task or memory) - memory_splits.OFFSET_BYTES
            tasks = [int(device * share) for share in GPU_SHARES]
            tables = [task - memory_splits.PARTIAL_BYTES for task in tasks]
            # What slots leave of the device keeps parts of tables, as the memory of the machine does.
            stored = [memory - GPU_RESERVED * task + device - MOST_SLOTS * task for task in tasks]
        else:
            # Half of the memory at the most is reserved for tasks in flight.
            tasks = [min(limits.task or TASK_BYTES, memory // (2 * RESERVED))]
            tables = [(tasks[0] - _contracts(tasks[0])[0]) * itemsize // (itemsize + memory_splits.MASK_BYTES)]
            stored = [memory - RESERVED * tasks[0]]
        return [
            WorkerSplit(working, max(0, self.workers * left), 0, task)
            for task, working, left in zip(tasks, tables, stored, strict=True)
        ]

    def _memory(self, limits: MemoryLimits) -> int:
        """Return the bytes of memory of a worker."""
        return limits.memory // self.workers if self.memory is None else self.memory

    def room_for_tables(self, chunking: ChunkRoute, itemsize: int) -> int:
        """Return the bytes of stored tables that each worker has room for, on its GPU and in its memory."""
        limits = chunking.limits
        memory = self._memory(limits) - memory_splits.fixed_bytes(chunking.chunks.plan)
        if not limits.on_gpu:
            return memory - RESERVED * chunking.working
        slot = slot_bytes(chunking.chunks, itemsize, single_steps)
        return memory - GPU_RESERVED * slot + max(0, (self.room or limits.task or memory) - chunking.working)

    def rounds_of(
        self, chunking: ChunkRoute, network: Network, algebra: Algebra, rows: Rows
    ) -> Iterator[tuple[Rows, list[SingleCaseProgram]]]:
        """Yield rows, and what answers so many of them at a time by a plan that was cut for these workers."""
        if chunking.side is None:
            yield rows, [WorkerProgram(self, chunking, network, algebra)]
            return
        assert self.client is not None
        key = chunking, algebra.name
        if key not in self.sent:
            sent_plan = SentPlan(uuid.uuid4().hex, chunking, network, algebra)
            self.sent[key] = sent_plan, self.client.submit(same, sent_plan, pure=False)
        _, plan = self.sent[key]
        first = 0
        for count, abreast in chunking.side.rounds(len(rows)):
            share = chunking.side.share(abreast)
            programs: list[SingleCaseProgram] = [
                RowProgram(self.client, plan, *self._leader(n, share)) for n in range(abreast)
            ]
            yield rows[first : first + count], programs * (ROWS_AHEAD if share == 1 else 1)
            first += count

    def _leader(self, number: int, share: int) -> tuple[str, tuple[str, ...]]:
        """Return the worker that leads one of several rows at a time, and the GPUs that it uses; machines by turns."""
        there, begin = self.machines[number % len(self.machines)], number // len(self.machines) * share
        return there.workers[begin], there.gpus[begin : begin + share]


class WorkerProgram:
    """A cut plan bound to the numbers of a network, whose tasks workers do; answers one case at a time."""

    def __init__(self, workers: WorkerPool, chunking: ChunkRoute, network: Network, algebra: Algebra) -> None:
        assert workers.client is not None
        on_gpu, chunks = chunking.limits.on_gpu, chunking.chunks
        self._client = workers.client
        self._bound = BoundPlan(chunks, network, algebra, as_summed=on_gpu)
        self._contract = CpuTasks(algebra, chunking.scratch, chunking.entry_threads)
        slot = slot_bytes(chunks, algebra.dtype.itemsize, single_steps)
        self._gpu = GpuTasks(algebra, slot, chunking.limits.task) if on_gpu else None
        self._room = workers.room_for_tables(chunking, algebra.dtype.itemsize)

    def run(self, block: EvidenceBlock) -> BlockOutcome:
        """Propagate one case and return its posteriors and log P(e); raises RunError where workers die of it."""
        # On a GPU one task copies in, one computes, one copies out.
        in_flight = MOST_SLOTS if self._gpu else IN_FLIGHT
        run = ClusterRun(self._client, self._bound, self._contract, in_flight, self._gpu, self._room)
        return run.outcome(block)


def _seconds(chunks: ChunkPlan, itemsize: int, on_gpu: bool, workers: int) -> float:
    """Return about what a row takes: the pilot task of a pass, then the others side by side."""
    figures = shipped_figures().workers
    operation, byte = (figures.gpu_operation, figures.gpu_byte) if on_gpu else (figures.operation, figures.byte)
    plan, seconds = chunks.plan, chunks.tasks * figures.task
    for pass_ in chunks.passes:
        tasks = plan.shape.entries(pass_.fixed)
        moved = loaded_entries(plan, pass_) + sum(plan.tables[table].entries for table in pass_.stores)
        work = sum(plan.work(step) for step in pass_.steps) * operation
        work += moved * itemsize * byte
        # The pilot task alone, then the others in rounds over the workers.
        seconds += work / tasks * (1 + math.ceil((tasks - 1) / workers))
    return seconds + transferred_entries(chunks, workers) * itemsize * figures.transfer / workers


def transferred_entries(chunks: ChunkPlan, workers: int) -> float:
    """Return about how many entries are read on other workers than the one where they were made.

    A part stays in place as far as the passes that make and read it hold the same of its variables constant; every
    task that reads it counts, also where tasks differ in nothing that it depends on.
    """
    made: dict[int, ChunkPass] = {}
    transferred = 0.0
    for pass_ in chunks.passes:
        for table in pass_.loads:
            if table in made:
                shared = set(made[table].fixed).intersection(pass_.fixed, chunks.plan.tables[table].scope)
                read = chunks.plan.shape.entries(pass_.fixed) * part(chunks.plan, table, pass_.fixed)
                transferred += read * max(0.0, 1 - chunks.plan.shape.entries(shared) / workers)
        made.update(dict.fromkeys(pass_.stores, pass_))
    return transferred


def _contracts(task: int) -> tuple[int, int, bool]:
    """Return the bytes that contractions of a task take, scratch in NumPy in entries, and whether code is compiled."""
    compiled = ENTRIES_BYTES + ENTRIES_THREAD_BYTES
    # With less, the scratch of compiled code would leave the tables too little.
    if compiled <= task // 2:
        return compiled, reference.SCRATCH_ENTRIES, True
    entry = reference.SCRATCH_ARRAYS * 8
    entries = min(reference.SCRATCH_ENTRIES, max(1, task // 4 // entry))
    return entries * entry, entries, False


def pool_of(client: Client, resources: Resources, threads: int | None) -> WorkerPool:
    """Return the workers that are there, and their GPUs; raises DeviceError where they have none and should.

    client: of their cluster.
    resources: what is asked for.
    threads: of a task; None for those of the workers.
    """
    workers = workers_of(client)
    memory = memory_of_each(workers.values(), resources) if resources.scheduler is not None else None
    # Two tasks of a worker run side by side and share its threads.
    shared = min(int(worker["nthreads"]) for worker in workers.values()) // IN_FLIGHT
    pool = WorkerPool(len(workers), memory, threads=threads or max(1, shared), client=client)
    found: dict[str, WorkerGpus | None] = client.run(gpus_here, resources.compute.device, version("junctor"))
    with_gpu = {address: gpus for address, gpus in found.items() if gpus is not None}
    if not found or len(with_gpu) < len(found):
        return pool
    bounded = resources.compute.memory is None and any(worker.get("memory_limit") for worker in workers.values())
    machines = machines_of(with_gpu)
    # One plan for all: the smallest device decides.
    least = min(with_gpu.values(), key=lambda gpus: gpus.figures["memory"])
    device = MeasuredDevice(least.name, dict(least.figures))
    # Nannies end workers that take more than their own memory.
    group = GpuGroup(len(machines[0].gpus), len(machines), processes=True, most=memory if bounded else None)
    room = gpu_room(device, resources.compute.device_memory)
    return replace(pool, room=room, gpus=group, device=device, machines=machines)


def pool_here(workers: int, room: int) -> WorkerPool:
    """Return workers as a run on this machine would start them, each with a GPU; they only plan."""
    return WorkerPool(workers, None, room, gpus=GpuGroup(workers, processes=True))


@contextmanager
def open_workers(resources: Resources, threads: int | None) -> Iterator[WorkerPool]:
    """Context manager: the workers that are asked for; arguments as of `pool_of`."""
    with cluster_client(resources) as client:
        pool = pool_of(client, resources, threads)
        try:
            yield pool
        finally:
            # Workers of a scheduler go on with other work; what cannot leave now does for the next run.
            with suppress(OSError, RuntimeError, JunctorError):
                if pool.room is not None:
                    client.run(forget_program, [plan.key for plan, _ in pool.sent.values()])
                    client.run(close)
                client.run(forget_shared)


def memory_here(workers: WorkerPool, resources: Resources) -> int:
    """Return the bytes that this process may take for rows in one piece, while workers do those out of core."""
    allowed = allowed_memory(resources.compute)
    return allowed if workers.memory is None else min(allowed, workers.memory)
