"""Rows out of core over the workers of a cluster: how they are cut for it, and the programs that do them.

A worker answers a row whole, as one process does (`rows`): on its CPU, on its GPU, or with several GPUs of its machine.
Where no machine has memory enough, the row goes slice by slice, and its slices are what workers answer. Workers cut a
row for the memory of one, so its answer is the same to the last bit whatever their number.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from junctor_kernels.tables.reference import Algebra

from junctor.cost.dataset import MeasuredDevice
from junctor.cost.model import CostModel
from junctor.model.errors import JunctorError
from junctor.model.network import Network
from junctor.out_of_core.cluster.machine_gpus import MachineGpus, WorkerGpus, gpus_here, machines_of
from junctor.out_of_core.cluster.rows import ROWS_AHEAD, RowProgram, SentPlan, forget_program, same
from junctor.out_of_core.memory_splits import ChunkRoute, GpuGroup, MemoryLimits, SideBySide, gpu_room
from junctor.out_of_core.programs import Rows, Search, SingleCaseProgram, cut, cut_for_gpus
from junctor.planning.compile import Problem
from junctor.runtime.dask_cluster import Resources, cluster_client, memory_of_each, workers_of
from junctor.runtime.machine import allowed_memory

if TYPE_CHECKING:
    from distributed import Client, Future


@dataclass(frozen=True)
class WorkerPool:
    """Workers that answer rows, or slices of them, one each.

    workers: how many there are.
    memory: bytes of each, None for an equal share of what rows may take.
    room: bytes of the GPU of each, None for CPUs.
    threads: of a row on a CPU.
    gpus: how those of workers can share rows; None for CPUs.
    device: the GPU of a worker, None for that of this machine.
    client: of their cluster; none where only plans are made.
    machines: the workers of each, and their GPUs.
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
        costs: CostModel,
        search: Search = cut,
    ) -> ChunkRoute:
        """Return the plan in chunks that takes least time; raises BudgetError where none fits.

        limits: `memory` of all workers together where they have none of their own, `task` of each on CPUs; no files.
        costs: of the device of a worker.
        search: as of `cut_for_gpus`.
        """
        if self.gpus is not None and limits.on_gpu:
            each, machines = self.gpus.each, self.gpus.machines
            memory = limits.memory // machines if self.memory is None else self.memory * each
            there = replace(limits, memory=memory, asked=memory, task=self.room, disk=0)
            route = cut_for_gpus(problem, algebra, there, costs, rows, self.gpus, search)
        else:
            memory = limits.memory // self.workers if self.memory is None else self.memory
            there = replace(limits, memory=memory, asked=memory, disk=0, threads=self.threads, on_gpu=False)
            route = search(problem, algebra, there, costs, -(-rows // self.workers), 1)
            side = SideBySide(1, self.workers, {1: route.seconds / route.propagations}, 0.0, 0.0, self.workers)
            route = replace(route, side=side)
        route = replace(route, workers=self.workers)
        return replace(route, seconds=route.total(rows) / rows)

    def rounds_of(
        self, chunking: ChunkRoute, network: Network, algebra: Algebra, rows: Rows
    ) -> Iterator[tuple[Rows, list[SingleCaseProgram]]]:
        """Yield rows, and what answers so many of them at a time by a plan that was cut for these workers."""
        assert self.client is not None
        assert chunking.side is not None
        key = chunking, algebra.name
        if key not in self.sent:
            sent_plan = SentPlan(uuid.uuid4().hex, chunking, network, algebra)
            self.sent[key] = sent_plan, self.client.submit(same, sent_plan, pure=False)
        _, plan = self.sent[key]
        first = 0
        for count, abreast in chunking.rounds(len(rows)):
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


def pool_of(client: Client, resources: Resources, threads: int | None) -> WorkerPool:
    """Return the workers that are there, and their GPUs; raises DeviceError where they have none and should.

    client: of their cluster.
    resources: what is asked for.
    threads: of a row; None for those of the workers.
    """
    workers = workers_of(client)
    memory = memory_of_each(workers.values(), resources) if resources.scheduler is not None else None
    threads = threads or min(int(worker["nthreads"]) for worker in workers.values())
    each = tuple(MachineGpus((), (address,)) for address in sorted(workers))
    pool = WorkerPool(len(workers), memory, threads=threads, client=client, machines=each)
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
                client.run(forget_program, [plan.key for plan, _ in pool.sent.values()])


def memory_here(workers: WorkerPool, resources: Resources) -> int:
    """Return the bytes that this process may take for rows in one piece, while workers do those out of core."""
    allowed = allowed_memory(resources.compute)
    return allowed if workers.memory is None else min(allowed, workers.memory)
