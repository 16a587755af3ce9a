"""The choice of a `Route` for every group of rows of a batch: one decision, in one place.

Main class: `Router`, called by the engine. Nothing here propagates, allocates or opens a device. The same batch and
options get the same routes: an interrupted run has to repeat itself.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from junctor_kernels.gpu.blocks import DEVICE_SHARE
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra

from junctor.backends.joint_table import JointTable, has_joint_table
from junctor.backends.number_formats import GPU_CHUNK_FORMATS, chunk_ladder_of, ladder_of
from junctor.backends.plan_memory import BlockSizes, PlanMemory
from junctor.backends.row_trees import alone_seconds
from junctor.cost.constants import CPU, GPU
from junctor.cost.dataset import MeasuredDevice
from junctor.cost.features.plans import plan_counts
from junctor.cost.model import CostModel, CostModels, cpu_name, local_cost_models
from junctor.engine.few_rows import FEW_ROWS, are_few, take_own_trees
from junctor.engine.kept_orders import KeptOrders
from junctor.engine.kept_plans import KeptPlans
from junctor.engine.pattern_prices import Work, compiled_prices, plain_prices, plain_seconds, row_tree_seconds
from junctor.engine.patterns import (
    PatternChoice,
    PatternGroup,
    PatternPricer,
    Patterns,
    patterns_of,
    rows_that_observe,
    sampled_patterns,
    serving_all,
    spread,
    valid_rows,
)
from junctor.engine.routes import Backend, GpuRoom, MemoryUse, Route
from junctor.engine.smaller_plans import (
    SmallerPlan,
    SmallerPlanCosts,
    rounded_shares,
    rows_by_plan,
    smaller_plans,
)
from junctor.engine.tree_choice import LANES, SAMPLED, TreeChoice, shared_seconds
from junctor.evidence.batch import EvidenceBatch
from junctor.evidence.deduplicate import UniqueRows, distinct_rows
from junctor.model.answers import answer_bytes, answer_width
from junctor.model.errors import BudgetError
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query, answered_names
from junctor.out_of_core.memory_splits import ChunkRoute, CpuSplits, GpuGroup, MemoryLimits
from junctor.out_of_core.programs import cut, cut_for_gpus
from junctor.planning.budget import Budget
from junctor.planning.chunk_search import operations_of
from junctor.planning.compile import Problem, compile_plan
from junctor.planning.elimination import keep_orders_in
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern, Shape, shape_of
from junctor.runtime.cache import user_cache
from junctor.runtime.devices import count_gpus, gpu_at_hand, has_gpu
from junctor.runtime.gc_pause import collector_paused
from junctor.runtime.machine import DEFAULT_SHARE, allowed_disk, available_memory, spill_folder, usable_cores

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import BlockDevice

    from junctor.backends.row_trees import RowEngine, RowWork
    from junctor.out_of_core.cluster.workers import WorkerPool

# Plans, and programs (plans with their numbers), that are kept for the next batch.
KEPT_PLANS = 1024
KEPT_PROGRAMS = 256
KEPT_CHUNK_ROUTES = 16
KEPT_CHOICES = 64
# Patterns whose row trees are kept; a batch asks for some hundreds.
KEPT_WORK = 512
# The share of the memory beyond what a plan needs at the least that answers to the unique rows of a group may take.
UNIQUE_SHARE = 0.25
# The share of the rows that stands for no more than "some", where a tree is asked for by shares.
LEAST_SHARE = 1e-9
# Seconds of work in NumPy from which compiled code is loaded; tests replace it.
COMPILED_SECONDS = CPU.compiled_work
# Seconds that NumPy takes at least, from which rows of one pattern may go to trees, and rows of several patterns that
# are few enough for plans.
TREE_SECONDS = 0.01
# Tables of a tree from which on rows never get a plan: those are made in Python, and lowered in more than linear time.
MOST_PLANNED_TABLES = 50_000

Key = TypeVar("Key")
Value = TypeVar("Value")
# A plan is made for a pattern and a rounded count of rows.
PlanKey = tuple[Pattern, int]

logger = logging.getLogger("junctor")


@dataclass(eq=False, slots=True)
class PlanStore:
    """What routers of one network and query share: plans, their memory, and what is known of patterns."""

    plans: dict[PlanKey, Plan] = field(default_factory=dict)
    memories: dict[PlanKey, PlanMemory] = field(default_factory=dict)
    chunk_routes: dict[tuple[object, ...], ChunkRoute | BudgetError] = field(default_factory=dict)
    searched: dict[tuple[object, ...], ChunkRoute] = field(default_factory=dict)
    row_engines: dict[tuple[int, int], RowEngine] = field(default_factory=dict)
    works: dict[Pattern, RowWork] = field(default_factory=dict)
    smaller_plans: dict[tuple[object, ...], tuple[SmallerPlan, ...]] = field(default_factory=dict)


class Router:
    """Chooses how rows are answered.

    network, query: what is asked.
    options: what the process may use.
    costs: returns the cost models of devices; asked at first need.
    expected_rows: rows of all batches together, 0 where that is not known; it decides what is worth preparing.
    workers: that answer rows in chunks, alone or together.
    gpu: an opened GPU to use instead of the first that the process sees.
    store: plans of another router of the same network and query.
    """

    def __init__(
        self,
        network: Network,
        query: Query,
        options: ComputeOptions,
        costs: Callable[[], CostModels] | None = None,
        expected_rows: int = 0,
        workers: WorkerPool | None = None,
        gpu: BlockDevice | None = None,
        store: PlanStore | None = None,
    ) -> None:
        self.network = network
        self.query = query
        self.options = options
        self.expected_rows = expected_rows
        self.workers = workers
        self.gpu = gpu
        self.store = store or PlanStore()
        self._costs = costs
        self.allowed = options.memory if options.memory is not None else int(available_memory() * DEFAULT_SHARE)
        self.threads = options.threads or usable_cores()
        self.spill_dir: Path = spill_folder(options.spill_dir)
        self.targets = tuple(network.index[name] for name in answered_names(network, query))
        self.shape: Shape = shape_of(network)
        self.ladder = ladder_of(query)
        self.chunk_ladder = chunk_ladder_of(query)
        cache = user_cache()
        keep_orders_in(KeptOrders(cache) if cache.limit else None)
        self._kept_plans = KeptPlans(cache)

    def plan(self, pattern: Pattern, rows: int = 1) -> Plan:
        """Return the plan for `pattern`; the search for its order is longer the more rows will use it.

        What was planned before changes nothing: a run that goes on after an interruption makes the same plans.
        """
        key = self.key(pattern, rows)

        def compiled() -> Plan:
            targets = None if self.query.targets is None else self.targets
            # A search makes millions of small objects, none of which is garbage before its end.
            what = pattern, targets, self.query.kind == "mpe", key[1]
            with collector_paused():
                return self._kept_plans.plan(self.network, *what, lambda: compile_plan(self.shape, *what))

        return _cached(self.store.plans, key, KEPT_PLANS, compiled)

    def key(self, pattern: Pattern, rows: int) -> PlanKey:
        """Return the key of the plan for a pattern that so many rows will use."""
        # A search pays in proportion to what a row takes.
        return pattern, rounded(max(1, rows // GPU.gain) if self.takes_gpu else rows)

    def plan_memory(self, pattern: Pattern, rows: int = 1) -> PlanMemory:
        """Return the memory of the plan for `pattern`."""
        formats, compiles = len(self.ladder), self.ladder[0] is not reference.LOG
        key, memories = self.key(pattern, rows), self.store.memories
        return _cached(memories, key, KEPT_PLANS, lambda: PlanMemory(self.plan(pattern, rows), formats, compiles))

    def groups(self, batch: EvidenceBatch) -> list[PatternGroup]:
        """Return the rows that share a plan, and those with a tree of their own; invalid rows are in none."""
        if self.takes_gpu and (together := self._together(batch)) is not None:
            return together
        patterns = patterns_of(batch, self.threads)
        if self._goes_row_by_row(patterns, batch):
            return [patterns.together()] if patterns.rows.size else []
        if self._shares_trees(patterns, batch):
            return self._tree_groups(patterns, batch)
        if len(patterns.counts) > 1:
            groups = self._choice(patterns, batch, patterns.rows.size).groups()
            return self._fitting(self._deduplicated(groups, batch), patterns, batch)
        if not len(patterns.counts):
            return []
        whole = PatternGroup(Pattern(patterns.observed(0), patterns.soft(0)), patterns.rows)
        return self._deduplicated([whole], batch)

    def _together(self, batch: EvidenceBatch) -> list[PatternGroup] | None:
        """Return all rows as one group where hardly two observe the same and no pattern is worth a plan of its own.

        Rows that a smaller plan serves, if there is one, are groups of their own. Some of the rows tell, because to
        tell all of them apart takes as long as a GPU takes to answer them.
        """
        some = None if self._are_few(batch) else sampled_patterns(batch, self.threads)
        if some is None:
            return None
        rows = valid_rows(batch)
        groups = self._choice(some, batch, rows.size).groups()
        pattern = serving_all(batch, some, self.threads)
        group = PatternGroup(pattern, rows, rows.size, groups[0].per_row)
        if len(groups) > 1 or not self._fits(pattern, self.uses(group, batch)):
            return None
        (group,) = self._deduplicated([group], batch)
        return [group] if group.by_trees or group.unique is not None else self._split(group, some, batch)

    def _split(self, group: PatternGroup, some: Patterns, batch: EvidenceBatch) -> list[PatternGroup]:
        """Return a group of rows that differ in what they observe, less those that smaller plans serve, and these."""
        whole, uses = group.pattern, self.uses(group, batch)
        if not self._has_row_trees:
            return [group]
        prices, batches = self._compiled_prices(math.inf), max(1, round(uses / group.rows.size))
        costs = SmallerPlanCosts(prices, self._savings, GPU.group, rounded(uses), batches)
        if not costs.may_pay(whole):
            return [group]
        columns = sorted(whole.weighted)
        often = rows_that_observe(some.marks, some.counts)[np.searchsorted(some.variables, columns)]
        shares = rounded_shares(often / some.rows.size)
        key = whole, shares.tobytes(), costs.rows, costs.batches
        plans = _cached(
            self.store.smaller_plans, key, KEPT_CHOICES, lambda: smaller_plans(whole, columns, shares, costs)
        )
        patterns = [*(plan.pattern for plan in plans), whole]
        parts = zip(patterns, rows_by_plan(batch, group.rows, plans, GPU.group), strict=True)
        groups = [PatternGroup(pattern, rows, rows.size, comes_again=True) for pattern, rows in parts if rows.size]
        return groups if all(self._fits(each.pattern, uses) for each in groups) else [group]

    def _compiled_prices(self, per_row: float) -> PatternPricer:
        """Return prices from trees; per_row: seconds of a row with a tree of its own."""
        cell, table = (GPU.likelihood, GPU.plan_table) if self.takes_gpu else (CPU.likelihood, None)
        return compiled_prices(self.work, self.allowed, per_row, self.row_price, cell, table)

    def _savings(self, pattern: Pattern) -> dict[int, float]:
        """Return what a row of a plan would save, in multiply-adds, without one of the weighted variables."""
        # On a plan all their states count, however many rows observe one.
        return self.row_engine.savings(pattern.sliced, dict.fromkeys(sorted(pattern.weighted), LEAST_SHARE))

    def _choice(self, patterns: Patterns, batch: EvidenceBatch, valid: int) -> PatternChoice:
        """Return the cheapest answers to rows of several patterns; valid: rows of the batch that are not invalid."""
        rows, choice = self.to_come(batch, valid), None
        if not self._has_row_trees or not self._is_heavy(rows):
            # Without compiled code.
            prices = plain_prices(self.plan, len(self.network.variables), self._fits)
            choice = PatternChoice(patterns, prices, rows=valid)
        if choice is None or choice.seconds * rows > COMPILED_SECONDS * valid:
            # Enough work for better prices, and the row engine, to pay for being loaded.
            per_row = row_tree_seconds(self.row_engine, patterns, batch) if self._has_row_trees else math.inf
            prices = self._compiled_prices(per_row)
            choice = PatternChoice(patterns, prices, search=True, rows=valid)
        return choice

    def _shares_trees(self, patterns: Patterns, batch: EvidenceBatch) -> bool:
        """Return True if rows may share trees made in compiled code: sums on CPUs, with enough work and memory."""
        if not self._has_row_trees or self.takes_gpu or not patterns.rows.size:
            return False
        rows = self.to_come(batch, patterns.rows.size)
        if not self._is_heavy(rows) and (len(patterns.counts) == 1 or rows <= FEW_ROWS):
            return False
        from junctor.backends.row_trees import BLOCK_BYTES

        answers = self.answer_bytes(batch.rows)
        # Twice: posteriors of a call, cells of evidence, and maps of rows come with the messages.
        needed = 2 * self.threads * (BLOCK_BYTES + self._room)
        return needed <= self.allowed - answers and (self.working is None or needed <= self.working)

    def _is_heavy(self, rows: int) -> bool:
        """Return True if so many rows take NumPy longer than the loading of trees; without a plan, which takes time."""
        # Each entry of a factor counts once.
        return rows * self._entries * CPU.numpy_entry > TREE_SECONDS

    def _tree_groups(self, patterns: Patterns, batch: EvidenceBatch) -> list[PatternGroup]:
        """Return groups of rows with trees, and with plans where these are worth it."""
        if self.threads > 1:
            from junctor_kernels.row_trees import ahead

            ahead.start("float32" if self.query.precision == "single" else "float64")
        if len(patterns.counts) > 1:
            groups = TreeChoice(batch, patterns, self.row_engine).groups()
        else:
            groups = [PatternGroup(Pattern(patterns.observed(0), patterns.soft(0)), patterns.rows, tree=True)]
        chosen = [self._with_plan(group, batch) for group in self._deduplicated(groups, batch)]
        return self._fitting(chosen, patterns, batch)

    def _with_plan(self, group: PatternGroup, batch: EvidenceBatch) -> PatternGroup:
        """Return a group with a plan instead of a tree where its rows are worth one."""
        if not group.tree or group.patterns > 1:
            return group
        whole = len(group.rows) == batch.rows - len(batch.invalid)
        if whole and group.unique is not None and not self._is_heavy(self.uses(group, batch)):
            # Without compiled code, which several patterns have loaded already.
            return replace(group, tree=False, per_row=False)
        work = self.work(group.pattern)
        above_zero = self.row_engine.above_zero
        row = float(shared_seconds(work, group.answered, False, above_zero)) / group.answered
        alone = alone_seconds(work)
        if whole:
            # Of rows whose states are known: those that evidence leaves impossible are in no tree of a row.
            sample = spread(group.rows, SAMPLED)
            alone = self.row_engine.seconds_alone(self.row_engine.works_alone(batch, sample))
        # Too few do not fill the lanes of a vector.
        if group.answered < LANES or alone < row:
            group, row = replace(group, tree=False, per_row=True), alone
        if math.isinf(work.operations):
            return group if alone < math.inf else replace(group, tree=False, per_row=False)
        if work.tables > MOST_PLANNED_TABLES:
            return group
        rows = self.uses(group, batch)
        once = work.tables * CPU.compiling_table + work.entries * CPU.compiling_entry + CPU.compiled_saving
        operation, table = self.row_price
        plan = rows * (work.operations * operation + work.tables * table) + once
        return replace(group, tree=False, per_row=False) if plan < rows * row else group

    def _are_few(self, batch: EvidenceBatch) -> bool:
        """Return True if all rows to come are known to be few."""
        few = are_few(self.query, self.options.device, self.expected_rows)
        return few and self.gpu is None and batch.rows <= self.expected_rows

    def _goes_row_by_row(self, patterns: Patterns, batch: EvidenceBatch) -> bool:
        """Return True if rows of a batch are few and their trees, or the joint table, are small."""
        if not self._are_few(batch):
            return False
        if self.joint_table_for(batch) is not None:
            return True
        allowed, fixed = self._beside_answers(batch), self._room
        if self.working is not None:
            allowed = min(allowed, self.working + fixed)
        return take_own_trees(lambda: patterns, self.expected_rows, self._whole, self.work, (allowed - fixed) // 8)

    def joint_table_for(self, batch: EvidenceBatch) -> JointTable | None:
        """Return the joint table where it answers the rows of a batch."""
        table = self.joint_table if self._are_few(batch) else None
        return table if table is not None and table.nbytes <= self._beside_answers(batch) else None

    def _beside_answers(self, batch: EvidenceBatch) -> int:
        return self.allowed - self.answer_bytes(batch.rows)

    def _deduplicated(self, groups: list[PatternGroup], batch: EvidenceBatch) -> list[PatternGroup]:
        """Return the groups with their unique rows where that saves answers."""
        sizes = self.network.cardinalities
        return [replace(group, unique=distinct_rows(batch, group.rows, group.pattern, sizes)) for group in groups]

    def _fitting(self, groups: list[PatternGroup], patterns: Patterns, batch: EvidenceBatch) -> list[PatternGroup]:
        """Return the groups with those replaced whose common plan does not fit the memory, where something else may."""
        result: list[PatternGroup] = []
        for group in groups:
            # A group of one pattern has no coarser plan to replace: it goes in chunks, or is refused.
            if group.by_trees or group.patterns == 1 or self._fits(group.pattern, self.uses(group, batch)):
                result.append(group)
            elif self._has_row_trees:
                result.append(replace(group, per_row=True))
            else:
                result.extend(self._deduplicated(patterns.exact(group.rows), batch))
        return result

    def _fits(self, pattern: Pattern, rows: int = 1) -> bool:
        return self.plan_memory(pattern, rows).fits(self.allowed, self.working)

    def to_come(self, batch: EvidenceBatch, rows: int) -> int:
        """Return how many rows like these `rows` of a batch are to come in all batches."""
        return max(rows, rows * self.expected_rows // batch.rows)

    def uses(self, group: PatternGroup, batch: EvidenceBatch) -> int:
        """Return for how many rows the plan of a group is made.

        Rows of one pattern come again with the next batches, and so does a group of all rows, whatever they observe.
        Another group of several is made of what this batch happens to hold, and the next one may well choose other
        loose columns, unless it is known that such a group comes again.
        """
        valid = batch.rows - len(batch.invalid)
        if group.comes_again:
            # How many rows it has differs from batch to batch, and the plan must not.
            return self.to_come(batch, valid)
        again = group.patterns == 1 or len(group.rows) == valid
        return self.to_come(batch, group.answered) if again else group.answered

    def loads_compiled(self, groups: Sequence[PatternGroup], batch: EvidenceBatch) -> bool:
        """Return True if the rows to come are worth loading the compiled backend for."""
        if any(group.by_trees for group in groups):
            # A few rows load what they need by themselves, and no GPU.
            return not (self._are_few(batch) and all(group.per_row for group in groups))
        seconds = 0.0
        for group in groups:
            row, once = self._plain_seconds(group.pattern, self.uses(group, batch))
            seconds += once + self.to_come(batch, group.answered) * row
        return seconds * (CPU.numpy_log if self.ladder[0] is reference.LOG else 1) > COMPILED_SECONDS

    @cached_property
    def _plain_seconds(self) -> Callable[[Pattern, int], tuple[float, float]]:
        """What a row of a plan takes in NumPy, and what all rows share; kept, because the next batch asks again."""

        def seconds(pattern: Pattern, uses: int) -> tuple[float, float]:
            plan = self.plan(pattern, uses)
            return plain_seconds(plan), min(plan.shared_operations, 10**30) * CPU.numpy_operation

        return lru_cache(KEPT_PLANS)(seconds)

    def uses_gpu(self, compiled: bool) -> bool:
        """Return True if a GPU answers rows, which takes about as long to come into play as compiled code."""
        return self.takes_gpu and (self.options.device != "auto" or self.gpu is not None or compiled)

    def routes(
        self, batch: EvidenceBatch, reserved: int = 0, kept: Mapping[PlanKey, int] | None = None
    ) -> Iterator[Route]:
        """Yield the routes of a batch; those that are refused say so.

        reserved: bytes of earlier answers.
        kept: fixed bytes of the programs that are there already, the oldest first.
        """
        groups = self.groups(batch)
        compiled = self.loads_compiled(groups, batch)
        # Not opened: a GPU may only be asked about.
        gpu = self.gpu_room() if self.uses_gpu(compiled) else None
        budget = Budget(self.allowed, self.answer_bytes(batch.rows) + reserved, reserved)
        programs = dict(kept or {})
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
        """Return how a group of rows of a batch is answered.

        budget: in addition to all answers to the batch.
        compiled: whether compiled code is loaded.
        gpu: that answers rows, if one does.
        kept: fixed bytes of the programs in memory, the oldest first; changed to those that the route leaves there.
        uses: rows that the plan is made for, if not those of the run that are like these.
        """
        uses = self.uses(group, batch) if uses is None else uses
        whole = budget
        if group.unique is not None:
            left = self._left_by_unique(group.unique, group, uses, budget, gpu)
            # All rows instead: their answers have memory already.
            group, budget = (replace(group, unique=None), budget) if left is None else (group, left)
        if group.by_trees:
            return self._row_by_row(group, batch, budget, kept)
        plan, memory = self.plan(group.pattern, uses), self.plan_memory(group.pattern, uses)
        operations = plan.shared_operations + group.answered * plan.case_operations
        needed = memory.least + whole.reserved
        use = MemoryUse(self.allowed, budget.reserved, needed, needed)
        refused = Route(group, Backend.NUMPY, "refused", use, uses, plan, operations=operations)
        try:
            if self.in_chunks(group.pattern, uses, budget.free, gpu):
                return self._chunked_route(group, uses, budget, gpu, kept)
            free = budget.free - _give_way(kept, self.key(group.pattern, uses), memory, budget.free)
            sizes = memory.fit(budget, free, group.answered, uses if compiled else 0, self.threads, self.working)
        except BudgetError as error:
            return replace(refused, refused=error)
        projected = sizes.projected(self.ladder[0].dtype.itemsize) + budget.reserved
        use = replace(use, projected=min(self.allowed, projected))
        backend, reason = self._backend(sizes, gpu)
        return replace(refused, backend=backend, reason=reason, memory=use, sizes=sizes)

    def _backend(self, sizes: BlockSizes, gpu: GpuRoom | None) -> tuple[Backend, str]:
        if gpu is not None:
            asked = self.options.device == "gpu" or self.gpu is not None
            return Backend.GPU, "asked for" if asked else "one is here, and the rows are worth it"
        # Blocks before entries: they take many rows at once, entries one.
        if sizes.lanes:
            return Backend.CPU, f"compiled, blocks of {sizes.lanes:,} cases: worth the loading and lowering"
        if sizes.entry_threads:
            return Backend.ENTRIES, "compiled where tables are large, over entries: too few rows for blocks"
        return Backend.NUMPY, "NumPy: too little work for compiled code"

    def _left_by_unique(
        self, unique: UniqueRows, group: PatternGroup, uses: int, budget: Budget, gpu: GpuRoom | None
    ) -> Budget | None:
        """Return what answers to the unique rows of a group leave of a budget, None where they take too much of it."""
        taken = unique.nbytes + unique.batch.rows * answer_width(self.network, self.query)
        # In chunks any memory that is left will do.
        least = 0
        if not group.by_trees and not self.in_chunks(group.pattern, uses, budget.free, gpu):
            least = self.plan_memory(group.pattern, uses).least
        small = taken <= UNIQUE_SHARE * (budget.free - least)
        return replace(budget, reserved=budget.reserved + taken) if small else None

    def _row_by_row(
        self, group: PatternGroup, batch: EvidenceBatch, budget: Budget, kept: Mapping[PlanKey, int]
    ) -> Route:
        table = self.joint_table_for(batch)
        if table is not None:
            size = budget.reserved + table.nbytes
            reason = "row by row: few rows, and few states of all variables together"
            return Route(group, Backend.JOINT_TABLE, reason, MemoryUse(self.allowed, budget.reserved, size, size))
        memory = MemoryUse(self.allowed, budget.reserved, budget.reserved, self.allowed - sum(kept.values()))
        why = "too few rows for a plan" if self._are_few(batch) else "their patterns have too little in common"
        reason = f"row by row, a tree for each: {why}"
        if group.tree:
            reason = "together on a tree made in compiled code: a plan would take longer than they do"
        return Route(group, Backend.ROW_TREES, reason, memory)

    def in_chunks(self, pattern: Pattern, uses: int, free: int, gpu: GpuRoom | None = None) -> bool:
        """Return True if rows go through in chunks, because a plan for them exceeds `free` bytes or its device."""
        memory = self.plan_memory(pattern, uses)
        if not memory.fits(free, self.options.device_memory):
            return True
        gpu = gpu or self._gpu_of_workers
        on_gpu = gpu is not None and memory.working > gpu.bytes
        return on_gpu and self.beats_one_piece(pattern, uses, free, gpu)

    def _chunked_route(
        self, group: PatternGroup, uses: int, budget: Budget, gpu: GpuRoom | None, kept: MutableMapping[PlanKey, int]
    ) -> Route:
        """Return how rows go through in chunks, with all memory to themselves; raises BudgetError."""
        if budget.passing:
            # In one piece, once that memory is free again, or in larger chunks.
            where = "propagation beside earlier answers"
            raise budget.refuse(budget.free + 1, where, "wait until they are written")
        # Chunks get all memory: the plan exceeds it already.
        kept.clear()
        algebra = self.chunk_ladder[0]
        chunks = self.chosen_chunks(group.pattern, uses, algebra, budget.free, gpu)
        plan, size = chunks.chunks.plan, chunks.memory + budget.reserved
        way = "slots of a GPU" if chunks.limits.on_gpu else "compiled" if chunks.entry_threads else "NumPy"
        backend = Backend.CHUNKED_GPU if chunks.limits.on_gpu else Backend.CHUNKED_CPU
        return Route(
            group,
            Backend.CHUNKED_WORKERS if chunks.workers else backend,
            f"in chunks, {way}: the plan exceeds the memory",
            MemoryUse(self.allowed, budget.reserved, size, size),
            uses,
            plan,
            chunks=chunks,
            operations=group.answered * operations_of(plan),
        )

    def _chunk_gpu(self, algebra: Algebra, gpu: GpuRoom | None) -> GpuRoom | None:
        """Return the GPU that tasks of rows in chunks may be done on, here or by workers; None for CPUs."""
        if algebra.name not in GPU_CHUNK_FORMATS:
            return None
        if self.workers is not None:
            return self._gpu_of_workers
        if gpu is None and self.explains_on_gpu:
            gpu = self.gpu_room()
        return gpu if gpu is not None and gpu.chunks else None

    @property
    def _gpu_of_workers(self) -> GpuRoom | None:
        """The GPU of each worker that answers rows in chunks, if there are workers and they have some."""
        room = None if self.workers is None else self.workers.room
        return None if room is None else GpuRoom(room, True)

    def chosen_chunks(
        self, pattern: Pattern, uses: int, algebra: Algebra, free: int, gpu: GpuRoom | None
    ) -> ChunkRoute:
        """Return how rows go through `free` bytes in chunks, where that takes least; raises BudgetError.

        Costs decide, for one thread of the CPU, so that the number of threads changes no answer.
        """
        gpu = self._chunk_gpu(algebra, gpu)
        if gpu is None or self.workers is not None or self.options.device != "auto" or self.gpu is not None:
            return self.chunk_route(pattern, uses, algebra, free, gpu)
        try:
            on_gpu = self.chunk_route(pattern, uses, algebra, free, gpu)
        except BudgetError:
            return self.chunk_route(pattern, uses, algebra, free)
        # Cutting takes seconds, so not where the operations take longer in any case.
        least = CpuSplits(on_gpu.limits, algebra, self.cpu_costs, uses).least(on_gpu.chunks.plan)
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
        algebra = self.ladder[0]
        if algebra.name not in GPU_CHUNK_FORMATS:
            return False
        try:
            chunks = self.chunk_route(pattern, uses, algebra, free, gpu)
        except BudgetError:
            return False
        return on_gpu_seconds(chunks, uses) < one_piece_seconds(self.plan(pattern, uses), self.cpu_costs, uses)

    def chunk_route(
        self, pattern: Pattern, uses: int, algebra: Algebra, free: int, gpu: GpuRoom | None = None
    ) -> ChunkRoute:
        """Return how rows of a pattern go through `free` bytes in chunks; raises BudgetError where they cannot.

        gpu: that does the tasks; None for the CPU.
        """
        key = pattern, rounded(uses), algebra.name, free, gpu, self.options, self.workers

        def cut_or_refusal() -> ChunkRoute | BudgetError:
            try:
                return self._cut(pattern, rounded(uses), algebra, free, gpu)
            except BudgetError as error:
                if self.options.spill_bytes is None:
                    # What is free on the disk may change.
                    raise
                # A refusal takes as long as a plan.
                return error

        route = _cached(self.store.chunk_routes, key, KEPT_CHUNK_ROUTES, cut_or_refusal)
        if isinstance(route, BudgetError):
            raise route
        return route

    def _cut(self, pattern: Pattern, rows: int, algebra: Algebra, free: int, gpu: GpuRoom | None) -> ChunkRoute:
        targets = None if self.query.targets is None else frozenset(self.targets)
        # An explanation needs the states of all variables: those of the targets depend on them.
        problem = Problem(self.shape, pattern, None if self.query.kind == "mpe" else targets)
        # Workers first: they have the memory and the cores of all machines.
        shared = self._cut_for_workers(problem, rows, algebra, free, gpu is not None)
        if shared is not None:
            return shared
        # Where workers were to answer the rows and cannot, this process answers them on its CPU.
        on_gpu = gpu is not None and self.workers is None
        disk = self.options.spill_bytes
        # Asked anew for every cut: other programs fill the disk as well.
        disk = disk if disk is not None else allowed_disk(self.spill_dir)
        task = gpu.bytes if gpu is not None and on_gpu else self.options.device_memory
        limits = MemoryLimits(free, task, disk, self.spill_dir, self.threads, on_gpu, self.allowed)
        costs = self.gpu_costs if on_gpu else self.cpu_costs
        gpus = GpuGroup(count_gpus() if on_gpu and self.options.all_gpus else 1)
        if gpus.count > 1:
            return cut_for_gpus(problem, algebra, limits, costs, rows, gpus, self._searched)
        return self._searched(problem, algebra, limits, costs, rows, 1)

    def _cut_for_workers(
        self, problem: Problem, rows: int, algebra: Algebra, free: int, on_gpu: bool
    ) -> ChunkRoute | None:
        """Return how rows go over workers, if there are any; None where these have too little memory for it."""
        if self.workers is None:
            return None
        # On GPUs as those of this process, so that a plan is searched once for either.
        threads = self.threads if on_gpu else 1
        limits = MemoryLimits(free, self.options.device_memory, 0, self.spill_dir, threads, on_gpu, self.allowed)
        device = self.workers.device
        costs = self.gpu_costs if device is None else self.cost_models.gpu(device)
        try:
            return self.workers.cut(problem, algebra, limits, rows, costs, self._searched)
        except BudgetError as error:
            logger.warning("workers do not share rows in chunks, one process answers them on its CPU: %s", error)
            return None

    def _searched(
        self, problem: Problem, algebra: Algebra, limits: MemoryLimits, costs: CostModel, rows: int, gpus: int
    ) -> ChunkRoute:
        """Return what `cut` finds, which takes up to half a minute; kept for GPUs of this process and of workers."""
        if not limits.on_gpu:
            return cut(problem, algebra, limits, costs, rows)
        key = problem.pattern, algebra.name, limits, costs.device.name, rows, gpus
        return _cached(
            self.store.searched, key, KEPT_CHUNK_ROUTES, lambda: cut(problem, algebra, limits, costs, rows, gpus)
        )

    @property
    def costs(self) -> CostModel:
        """The cost model of the device that answers, or of the one that is most like it."""
        return self.gpu_costs if self.takes_gpu else self.cpu_costs

    @property
    def gpu_costs(self) -> CostModel:
        """The cost model of the GPU at hand, or of the one that is most like it."""
        at_hand = gpu_at_hand() if self.gpu is None else (self.gpu.name, self.gpu.figures)
        return self.cost_models.gpu(MeasuredDevice(*at_hand))

    @property
    def cpu_costs(self) -> CostModel:
        """The cost model of this machine's CPU, or of another one."""
        return self.cost_models.cpu(cpu_name())

    @cached_property
    def cost_models(self) -> CostModels:
        """The cost models of all devices that were measured."""
        return self._costs() if self._costs is not None else local_cost_models()

    @property
    def row_price(self) -> tuple[float, float]:
        """Seconds of an entry operation and of a table of the row engine's tree, for a row of a plan."""
        return self.costs.coefficients[self.gpu_backend if self.takes_gpu else "cpu"].row

    @property
    def gpu_backend(self) -> str:
        """The name in cost models of what answers many rows on a GPU."""
        return f"many-{'single' if self.query.precision == 'single' else 'double'}"

    @property
    def takes_gpu(self) -> bool:
        """True if there is a GPU for blocks of rows."""
        # There are no kernels for blocks of explanations.
        return self.query.kind == "posteriors" and self.sees_gpu

    @property
    def explains_on_gpu(self) -> bool:
        """True if there is a GPU for explanations, which only rows in chunks use."""
        return self.query.kind == "mpe" and self.sees_gpu

    @property
    def sees_gpu(self) -> bool:
        """True if there is a GPU that this process may use."""
        if self.gpu is not None or self.options.device == "gpu":
            return True
        return self.options.device == "auto" and has_gpu()

    def gpu_room(self) -> GpuRoom:
        """Return the room of the GPU to use, which need not be here."""
        if self.gpu is not None:
            return GpuRoom.of(self.gpu)
        # By the figures of its kind: opening it to ask would take seconds, and `inspect` runs without one.
        room = self.options.device_memory or int(DEVICE_SHARE * self.gpu_costs.device.figures["memory"])
        return GpuRoom(room, True)

    @property
    def working(self) -> int | None:
        """Bytes that tables of a block or a task may take, where these are in this machine's memory."""
        return None if self.takes_gpu else self.options.device_memory

    @property
    def _has_row_trees(self) -> bool:
        return self.query.kind == "posteriors" and self.query.precision != "log"

    @property
    def row_engine(self) -> RowEngine:
        """The engine for rows with a tree of their own."""
        # Shared by variants of an engine that differ in other options: it keeps trees of many patterns.
        key = self.allowed, self.threads
        if key not in self.store.row_engines:
            from junctor.backends.row_trees import RowEngine

            self.store.row_engines[key] = RowEngine(self.network, self.targets, *key)
        return self.store.row_engines[key]

    @cached_property
    def joint_table(self) -> JointTable | None:
        """The table of all states together, of a network that is small enough for one."""
        return JointTable(self.network, self.targets) if has_joint_table(self.network) else None

    # Kept, because every batch asks, and networks may have a hundred thousand variables.
    @cached_property
    def answer_bytes(self) -> Callable[[int], int]:
        """Bytes of the answers to so many rows while they are made."""
        return answer_bytes(self.network, self.query)

    @cached_property
    def _entries(self) -> int:
        return sum(factor.table.size for factor in self.network.factors)

    @cached_property
    def _room(self) -> int:
        from junctor.backends.row_trees import room_bytes

        return room_bytes(self.network, 0)

    @cached_property
    def _whole(self) -> Work:
        return self.row_engine.work((), range(len(self.network.variables)))

    def work(self, pattern: Pattern) -> RowWork:
        """Return the work of a pattern's row tree; kept, because forecast, run and next batch ask for much the same."""
        works = self.store.works
        return _cached(works, pattern, KEPT_WORK, lambda: self.row_engine.work(pattern.sliced, pattern.weighted))


def _cached(cache: dict[Key, Value], key: Key, most: int, make: Callable[[], Value]) -> Value:
    """Return what a cache has for a key, or make it; the oldest entry of a full cache is dropped."""
    if key not in cache:
        if len(cache) >= most:
            cache.pop(next(iter(cache)))
        cache[key] = make()
    return cache[key]


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


def on_gpu_seconds(chunks: ChunkRoute, rows: int) -> float:
    """Return what rows in chunks take on a GPU, with the memory that is pinned for them."""
    return rows * chunks.seconds + chunks.memory * GPU.pinned_byte


def one_piece_seconds(plan: Plan, costs: CostModel, rows: int) -> float:
    """Return the forecast of rows of a plan on one thread of a CPU whose memory it fits."""
    steps, entries = len(plan.steps), sum(table.entries for table in plan.tables)
    operations = plan.shared_operations + rows * plan.case_operations
    counts = plan_counts(1, steps, operations, entries, rows * sum(plan.shape.cardinalities))
    return costs.seconds("entries-double", counts)


def rounded(rows: int) -> int:
    """Return a count of rows in steps of four times, so that similar counts make the same plan."""
    return 1 << 2 * ((rows - 1).bit_length() // 2)
