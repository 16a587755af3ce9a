"""How rows whose plan exceeds the memory go through in chunks: on the CPU, on GPUs, or over workers.

Main class: ChunkCuts, made by facts. The cuts themselves are those of `junctor.out_of_core.programs`, imported
where rows go in chunks: few do, and it loads much.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from junctor_kernels.tables.reference import Algebra

from junctor.backends.number_formats import GPU_CHUNK_FORMATS
from junctor.cost.features.plans import plan_counts
from junctor.cost.figures import shipped_figures
from junctor.cost.model import CostModel
from junctor.model.errors import BudgetError
from junctor.planning.budget import row_seconds
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern
from junctor.runtime.devices import count_gpus
from junctor.runtime.machine import allowed_disk
from junctor.strategies.facts import Facts, cached, rounded
from junctor.strategies.gpu_room import GpuRoom

if TYPE_CHECKING:
    from junctor.out_of_core.memory_splits import ChunkRoute, MemoryLimits
    from junctor.planning.compile import Problem

KEPT_CHUNK_ROUTES = 16
# Offsets of a plan above which rows may go in chunks on a GPU that has room for the plan.
MOST_OFFSETS = 1 << 31

logger = logging.getLogger("junctor")


class ChunkCuts:
    """Cuts plans for the memory, on this machine, its GPUs or workers.

    facts: what is asked, and of which machine.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def in_chunks(self, pattern: Pattern, uses: int, free: int, gpu: GpuRoom | None = None) -> bool:
        """Return True if rows go through in chunks, because a plan for them exceeds `free` bytes or a device."""
        memory = self.facts.plan_memory(pattern, uses)
        if not memory.fits(free, self.facts.options.device_memory):
            return True
        gpu = gpu or self._gpu_of_workers
        # Kernels count offsets to 2^31, and to list as many takes minutes.
        on_gpu = gpu is not None and (memory.working > gpu.bytes or memory.offsets > MOST_OFFSETS)
        return on_gpu and self.beats_one_piece(pattern, uses, free, gpu)

    def _chunk_gpu(self, algebra: Algebra, gpu: GpuRoom | None) -> GpuRoom | None:
        """Return the GPU that tasks of rows in chunks may be done on, here or by workers; None for CPUs."""
        if algebra.name not in GPU_CHUNK_FORMATS:
            return None
        if self.facts.workers is not None:
            return self._gpu_of_workers
        return gpu if gpu is not None and gpu.chunks else None

    @property
    def _gpu_of_workers(self) -> GpuRoom | None:
        """The GPU of each worker that answers rows in chunks, if there are workers and they have some."""
        room = None if self.facts.workers is None else self.facts.workers.room
        return None if room is None else GpuRoom(room, True)

    def chosen_chunks(
        self, pattern: Pattern, uses: int, algebra: Algebra, free: int, gpu: GpuRoom | None
    ) -> ChunkRoute:
        """Return how rows go through `free` bytes in chunks, where that takes least; raises BudgetError.

        Costs decide, for one thread of the CPU, so that the number of threads changes no answer.
        """
        gpu = self._chunk_gpu(algebra, gpu)
        if (
            gpu is None
            or self.facts.workers is not None
            or self.facts.options.device != "auto"
            or self.facts.gpu is not None
        ):
            return self.chunk_route(pattern, uses, algebra, free, gpu)
        try:
            on_gpu = self.chunk_route(pattern, uses, algebra, free, gpu)
        except BudgetError:
            return self.chunk_route(pattern, uses, algebra, free)
        from junctor.out_of_core.memory_splits import CpuSplits

        # Cutting takes seconds, so not where the operations take longer in any case.
        least = CpuSplits(on_gpu.limits, algebra, self.facts.cpu_costs, uses).least(on_gpu.chunks.plan)
        if uses * least >= on_gpu_seconds(on_gpu, uses):
            return on_gpu
        try:
            on_cpu = self.chunk_route(pattern, uses, algebra, free)
        except BudgetError:
            return on_gpu
        return on_cpu if uses * on_cpu.seconds < on_gpu_seconds(on_gpu, uses) else on_gpu

    def beats_one_piece(self, pattern: Pattern, uses: int, free: int, gpu: GpuRoom | None) -> bool:
        """Return True if rows whose plan fits this machine, but not its GPU, are faster in chunks on that GPU.

        On a CPU what fits goes in one piece: chunks take about as long, and cutting takes seconds.
        """
        algebra = self.facts.ladder[0]
        if algebra.name not in GPU_CHUNK_FORMATS:
            return False
        try:
            chunks = self.chunk_route(pattern, uses, algebra, free, gpu)
        except BudgetError:
            return False
        return on_gpu_seconds(chunks, uses) < one_piece_seconds(
            self.facts.plan(pattern, uses), self.facts.cpu_costs, uses
        )

    def chunk_route(
        self, pattern: Pattern, uses: int, algebra: Algebra, free: int, gpu: GpuRoom | None = None
    ) -> ChunkRoute:
        """Return how rows of a pattern go through `free` bytes in chunks; raises BudgetError where they cannot.

        gpu: that does the tasks; None for the CPU.
        """
        key = pattern, rounded(uses), algebra.name, free, gpu, self.facts.options, self.facts.workers

        def cut_or_refusal() -> ChunkRoute | BudgetError:
            try:
                return self._cut(pattern, rounded(uses), algebra, free, gpu)
            except BudgetError as error:
                if self.facts.options.spill_bytes is None:
                    # What is free on the disk may change.
                    raise
                # A refusal takes as long as a plan.
                return error

        route = cached(self.facts.store.chunk_routes, key, KEPT_CHUNK_ROUTES, cut_or_refusal)
        if isinstance(route, BudgetError):
            raise route
        return route

    def _cut(self, pattern: Pattern, rows: int, algebra: Algebra, free: int, gpu: GpuRoom | None) -> ChunkRoute:
        from junctor.out_of_core.memory_splits import GpuGroup, MemoryLimits
        from junctor.out_of_core.programs import cut_for_gpus
        from junctor.planning.compile import Problem

        shape, targets = self.facts.problem(pattern)
        # An explanation needs the states of all variables: those of the targets depend on them.
        problem = Problem(shape, pattern, None if targets is None or self.facts.explains else frozenset(targets))
        # Workers first: they have the memory and the cores of all machines.
        shared = self._cut_for_workers(problem, rows, algebra, free, gpu is not None)
        if shared is not None:
            return shared
        # Where workers were to answer the rows and cannot, this process answers them on its CPU.
        on_gpu = gpu is not None and self.facts.workers is None
        disk = self.facts.options.spill_bytes
        # Asked anew for every cut: other programs fill the disk as well.
        disk = disk if disk is not None else allowed_disk(self.facts.spill_dir)
        task = gpu.bytes if gpu is not None and on_gpu else self.facts.options.device_memory
        limits = MemoryLimits(
            free, task, disk, self.facts.spill_dir, self.facts.cores, on_gpu, self.facts.allowed, self.core_seconds
        )
        costs = self.facts.gpu_costs if on_gpu else self.facts.cpu_costs
        opening = 0.0 if self.facts.is_lasting or not on_gpu else self.facts.gpu_host.opening
        gpus = GpuGroup(count_gpus() if on_gpu and self.facts.options.all_gpus else 1, opening=opening)
        if gpus.count > 1:
            return cut_for_gpus(problem, algebra, limits, costs, rows, gpus, self._searched)
        return self._searched(problem, algebra, limits, costs, rows, 1)

    @property
    def core_seconds(self) -> float:
        """Seconds of one core that a row in chunks may take, on all that it has."""
        return row_seconds(self.facts.time_limit) * (1 if self.facts.takes_gpu else self.facts.cores)

    def _cut_for_workers(
        self, problem: Problem, rows: int, algebra: Algebra, free: int, on_gpu: bool
    ) -> ChunkRoute | None:
        """Return how rows go over workers, if there are any; None where these have too little memory for it."""
        if self.facts.workers is None:
            return None
        from junctor.out_of_core.memory_splits import MemoryLimits

        # On GPUs as those of this process, so that a plan is searched once for either.
        threads = self.facts.cores if on_gpu else 1
        limits = MemoryLimits(
            free, self.facts.options.device_memory, 0, self.facts.spill_dir, threads, on_gpu, self.facts.allowed
        )
        device = self.facts.workers.device
        costs = self.facts.cpu_costs
        if on_gpu:
            costs = self.facts.gpu_costs if device is None else self.facts.cost_models.gpu(device)
        try:
            return self.facts.workers.cut(problem, algebra, limits, rows, costs, self._searched)
        except BudgetError as error:
            logger.warning("workers do not answer rows in chunks, one process answers them on its CPU: %s", error)
            return None

    def _searched(
        self, problem: Problem, algebra: Algebra, limits: MemoryLimits, costs: CostModel, rows: int, gpus: int
    ) -> ChunkRoute:
        """Return what `cut` finds, which takes up to half a minute; kept for GPUs of this process and of workers."""
        from junctor.out_of_core.kept_cuts import kept_cut
        from junctor.out_of_core.programs import cut

        def found() -> ChunkRoute:
            kept = kept_cut(problem, algebra, limits, costs, rows, gpus)
            return cut(problem, algebra, limits, costs, rows, gpus, kept)

        if not limits.on_gpu:
            return found()
        key = problem.pattern, algebra.name, limits, costs.device.name, rows, gpus
        return cached(self.facts.store.searched, key, KEPT_CHUNK_ROUTES, found)


def on_gpu_seconds(chunks: ChunkRoute, rows: int) -> float:
    """Return what rows in chunks take on a GPU, with the memory that is pinned for them."""
    return rows * chunks.seconds + chunks.memory * shipped_figures().gpu_host.pinned_byte


def one_piece_seconds(plan: Plan, costs: CostModel, rows: int) -> float:
    """Return the forecast of rows of a plan on one thread of a CPU whose memory it fits."""
    steps, entries = len(plan.steps), sum(table.entries for table in plan.tables)
    operations = plan.shared_operations + rows * plan.case_operations
    counts = plan_counts(1, steps, operations, entries, rows * sum(plan.shape.cardinalities))
    return costs.seconds("entries-double", counts)
