"""The choice of a `Route` for every group of rows of a batch: one decision, in one place.

Main class: `Router`, called by the engine. Nothing here propagates, allocates or opens a device. The same batch and
options get the same routes: an interrupted run has to repeat itself. Which rows are a group is decided in `grouping`,
how rows go through in chunks in `chunk_routes`; plans and devices are those of `planner`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import replace

from junctor.backends.plan_memory import BlockSizes, PlanMemory
from junctor.cost.constants import CPU
from junctor.cost.features.plans import plain_seconds
from junctor.engine.grouping import Grouping
from junctor.evidence.batch import EvidenceBatch
from junctor.evidence.patterns import PatternGroup
from junctor.model.errors import BudgetError
from junctor.model.strategies import Strategy
from junctor.planning.budget import Budget, row_seconds
from junctor.planning.shape import Pattern
from junctor.strategies.chunk_cuts import ChunkRouting
from junctor.strategies.plan_store import PlanKey
from junctor.strategies.strategy import GpuRoom, MemoryUse, Route

# Share of the time allowed up to which the coarsest forecast of a row will do.
SURE_SHARE = 0.1
# Programs (plans with their numbers) that are kept for the next batch.
KEPT_PROGRAMS = 256


class Router(Grouping, ChunkRouting):
    """Chooses how rows are answered; made as a `Planner`."""

    def routes(
        self,
        groups: Iterable[PatternGroup],
        batch: EvidenceBatch,
        compiled: bool,
        reserved: int,
        kept: Mapping[PlanKey, int],
    ) -> Iterator[Route]:
        """Yield the routes of the groups of a batch; those that are refused say so.

        compiled: whether compiled code is loaded.
        reserved: bytes of earlier answers.
        kept: fixed bytes of the programs that are there already, the oldest first.
        """
        # Not opened: a GPU may only be asked about.
        gpu = self.gpu_room() if self.takes_gpu else None
        budget = Budget(self.allowed, self.answer_bytes(batch.rows) + reserved, reserved)
        programs = dict(kept)
        for group in groups:
            yield self.route(group, batch, budget, compiled, gpu, programs)

    def route(
        self,
        group: PatternGroup,
        batch: EvidenceBatch,
        budget: Budget,
        compiled: bool,
        gpu: GpuRoom | None,
        kept: MutableMapping[PlanKey, int],
        uses: int | None = None,
    ) -> Route:
        """Return how a group of rows of a batch is answered: as asked for, or as is forecast to take least.

        budget: in addition to all answers to the batch.
        compiled: whether compiled code is loaded.
        gpu: that answers rows, if one does.
        kept: fixed bytes of the programs in memory, the oldest first; changed to those that the route leaves there.
        uses: rows that the plan is made for, if not those of the run that are like these.
        """
        uses = self.uses(group, batch) if uses is None else uses
        if not group.by_plan:
            return self._without_plan(group, batch, budget, kept)
        plan, memory = self.plan(group.pattern, uses), self.plan_memory(group.pattern, uses)
        operations = plan.shared_operations + len(group.rows) * plan.case_operations
        needed = memory.least + budget.reserved
        use = MemoryUse(self.allowed, budget.reserved, needed, needed)
        refused = Route(group, Strategy.ENTRIES, "refused", use, uses, plan, operations=operations)
        try:
            if self._takes_chunks(group.pattern, uses, budget.free, gpu):
                return self._chunked_route(group, uses, budget, gpu, kept)
            free = budget.free - _give_way(kept, self.key(group.pattern, uses), memory, budget.free)
            rows = len(group.rows), uses if compiled else 0
            sizes = memory.fit(budget, free, *rows, self.threads, self.working, self._blocks)
            if self.options.strategy is Strategy.CPU_BLOCKS and not sizes.lanes:
                raise budget.refuse(budget.free + 1, "a block of cases in compiled code", "allow more memory")
        except BudgetError as error:
            return replace(refused, refused=error)
        projected = sizes.projected(self.ladder[0].dtype.itemsize) + budget.reserved
        use = replace(use, projected=min(self.allowed, projected))
        strategy, reason = self._of_plan(sizes, gpu)
        reason = self.reason(strategy, reason)
        return replace(refused, strategy=strategy, reason=reason, memory=use, sizes=sizes)

    def _takes_chunks(self, pattern: Pattern, uses: int, free: int, gpu: GpuRoom | None) -> bool:
        """Return True if rows of a plan go in chunks: where it is asked for, or they have to and nothing is."""
        forced = self.options.strategy
        if forced in (Strategy.ENTRIES, Strategy.CPU_BLOCKS, Strategy.GPU_BLOCKS):
            return False
        return forced is Strategy.CHUNKS or self.in_chunks(pattern, uses, free, gpu)

    @property
    def _blocks(self) -> bool | None:
        """Whether plans run on blocks of cases in compiled code, None where that goes by their work."""
        forced = self.options.strategy
        return forced is Strategy.CPU_BLOCKS if forced in (Strategy.ENTRIES, Strategy.CPU_BLOCKS) else None

    def may_take_long(self, route: Route) -> bool:
        """Return True if a row may take longer than allowed, before it is forecast."""
        if route.chunks is not None:
            return True
        if route.plan is None:
            # Messages of trees fit the memory, so that none takes a day.
            return self.options.time_limit is not None
        seconds = plain_seconds(route.plan) + min(route.plan.shared_operations, 10**30) * CPU.numpy_operation
        return CPU.numpy_log * seconds > SURE_SHARE * row_seconds(self.options.time_limit)

    def _of_plan(self, sizes: BlockSizes, gpu: GpuRoom | None) -> tuple[Strategy, str]:
        if gpu is not None:
            return Strategy.GPU_BLOCKS, "asked for" if self.asks_gpu else "one is here, and the rows are worth it"
        # Blocks before entries: they take many rows at once, entries one.
        if sizes.lanes:
            return Strategy.CPU_BLOCKS, f"compiled, blocks of {sizes.lanes:,} cases: worth the loading and lowering"
        if sizes.entry_threads:
            return Strategy.ENTRIES, "compiled where tables are large, over entries: too few rows for blocks"
        return Strategy.ENTRIES, "NumPy: too little work for compiled code"

    def _without_plan(
        self, group: PatternGroup, batch: EvidenceBatch, budget: Budget, kept: Mapping[PlanKey, int]
    ) -> Route:
        if group.strategy is Strategy.IMPOSSIBLE:
            memory = MemoryUse(self.allowed, budget.reserved, budget.reserved, budget.reserved)
            return Route(group, Strategy.IMPOSSIBLE, "impossible by the zeros of the network alone", memory)
        if group.strategy is Strategy.JOINT_TABLE:
            assert self.joint_table is not None
            size = budget.reserved + self.joint_table.nbytes
            few = "few rows that differ" if group.copies else "few rows"
            reason = f"row by row: {few}, and few states of all variables together"
            reason = self.reason(Strategy.JOINT_TABLE, reason)
            return Route(group, Strategy.JOINT_TABLE, reason, MemoryUse(self.allowed, budget.reserved, size, size))
        memory = MemoryUse(self.allowed, budget.reserved, budget.reserved, self.allowed - sum(kept.values()))
        why = "too few rows for a plan" if self._are_few(batch) else "their patterns have too little in common"
        reason = f"row by row, a tree for each: {why}"
        if group.shared:
            reason = "together on a tree made in compiled code: a plan would take longer than they do"
        return Route(group, Strategy.ROW_TREES, self.reason(Strategy.ROW_TREES, reason), memory)


def _give_way(kept: MutableMapping[PlanKey, int], key: PlanKey, memory: PlanMemory, free: int) -> int:
    """Drop the oldest programs until one more fits `free` bytes; returns the fixed bytes of the others.

    kept: fixed bytes of the programs; afterwards with the new one, which is then the youngest.
    """
    kept.pop(key, None)
    others = sum(kept.values())
    while kept and (others + memory.least > free or len(kept) >= KEPT_PROGRAMS):
        others -= kept.pop(next(iter(kept)))
    kept[key] = memory.fixed
    return others
