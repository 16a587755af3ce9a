"""What batches of evidence will take, known before any of them is propagated."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from junctor_kernels.gpu.blocks import DEVICE_SHARE
from junctor_kernels.tables.reference import LOG, Algebra

from junctor.backends.numpy import Program
from junctor.backends.plan_memory import PlanMemory, ProgramCache
from junctor.cost.constants import CPU
from junctor.engine.chunking_choice import chosen_chunking
from junctor.engine.engine import Engine
from junctor.engine.pattern_prices import plain_seconds
from junctor.engine.patterns import PatternGroup, patterns_of
from junctor.evidence.batch import EvidenceBatch
from junctor.model.answers import answer_width
from junctor.model.errors import BudgetError
from junctor.out_of_core.memory_splits import ChunkRoute
from junctor.planning.budget import Budget
from junctor.planning.chunk_search import operations_of
from junctor.planning.elimination import best_order, moral_graph
from junctor.planning.junction_tree import JunctionTree, junction_tree
from junctor.planning.levels import stages_of
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern, Shape, mask_of

if TYPE_CHECKING:
    from junctor.cost.model import CostModel

# Capped, because integers of any size do not fit a float: from there on it is forever anyway.
MOST_OPERATIONS = 10**30
# What looking for patterns in the batches after the first may take: so many seconds, or this share of the whole run.
SURVEY_SECONDS = CPU.survey
SURVEY_SHARE = 0.1
# Rows that the order of the tree that is shown is searched for: a fraction of a second.
TREE_ROWS = 100
# Rows that are looked at where each has a tree of its own.
SAMPLED_ROWS = 16
# Patterns of a batch that are looked at, those with the fewest observed variables: they need the most memory.
SURVEYED_PATTERNS = 16


@dataclass(frozen=True, slots=True)
class Forecast:
    """One group of rows: how it is answered, entry operations, bytes that it needs at least and will take, seconds.

    plan: None where each row has a tree of its own. operations: of the rows that are answered, not copied. seconds: of
    one core, or of a GPU, where one is used; infinite where no number holds them. chunking: how rows whose plan exceeds
    the memory or the device go in chunks. refused: why they cannot be answered. on_gpu: seconds of a GPU that was asked
    about, None where the CPU would answer them all the same. loops: what answers the rows, for people.
    """

    group: PatternGroup
    plan: Plan | None
    operations: int
    least: int
    projected: int
    seconds: float
    chunking: ChunkRoute | None = None
    refused: str | None = None
    on_gpu: float | None = None
    loops: str = ""

    @property
    def rows(self) -> int:
        """Rows of the group."""
        return len(self.group.rows)


def survey(
    engine: Engine, batches: Iterable[EvidenceBatch], count: int, gpu: CostModel | None = None
) -> tuple[int, float, float, float]:
    """Return what `count` batches need: bytes at the least, seconds of one core, and of a GPU with such speeds.

    Without `gpu` the latter are infinite. At the end, the seconds of one core that are those of rows in chunks. The
    first batch is forecast, and each one with patterns that may need more memory than those seen; the others are taken
    to be alike. Stops looking, and reading, where that becomes a cost of its own. Raises BudgetError.
    """
    least, limit, on_gpu, in_chunks = 0, math.inf, 0.0 if gpu else math.inf, 0.0
    seconds: list[float] = []
    seen: list[Pattern] = []
    started = time.monotonic()
    for batch in batches:
        if time.monotonic() - started > limit:
            break
        if seconds and not _has_new_patterns(engine, batch, seen):
            continue
        found = forecast(engine, batch, gpu=gpu)
        least = max((least, *(each.least for each in found)))
        seen = sorted([*seen, *(each.group.pattern for each in found)], key=lambda each: len(each.sliced))
        seconds.append(sum(each.seconds for each in found))
        on_gpu += sum(each.seconds if each.on_gpu is None else each.on_gpu for each in found)
        in_chunks += sum(each.seconds for each in found if each.chunking is not None)
        if len(seconds) == 1:
            started, limit = time.monotonic(), max(SURVEY_SECONDS, SURVEY_SHARE * count * seconds[0])
    share = count / max(1, len(seconds))
    return least, share * sum(seconds), share * on_gpu, share * in_chunks


def _has_new_patterns(engine: Engine, batch: EvidenceBatch, seen: Sequence[Pattern]) -> bool:
    found = patterns_of(batch)
    fewest = np.argsort(found.marks[:, : found.hard].sum(axis=1), kind="stable")[:SURVEYED_PATTERNS].tolist()
    each = [(found.observed(p), found.soft(p)) for p in fewest]
    return any(not any(_covers(engine, pattern, *marks) for pattern in seen) for marks in each)


def _covers(engine: Engine, pattern: Pattern, observed: frozenset[int], soft: frozenset[int]) -> bool:
    # Whatever is observed too makes tables smaller, but with targets it can also make more of the network matter.
    evidence = pattern.sliced | pattern.weighted
    grows = engine.query.targets is not None and not (observed | soft) <= evidence
    return pattern.sliced <= observed and not grows


def forecast(
    engine: Engine, batch: EvidenceBatch, refuse: bool = True, bound: int = 0, gpu: CostModel | None = None
) -> list[Forecast]:
    """Return a forecast for each group of rows, most work first.

    bound: entry operations of a case up to which a plan is bound to its numbers and lowered, because zeros and kinds of
    loops make a forecast better. gpu: speeds of a GPU that is asked about as well. Raises BudgetError where a group
    does not fit; without `refuse` it only says what that one would need.
    """
    groups = engine.groups(batch)
    compiled = engine.loads_compiled(groups, batch)
    found = [
        _row_by_row(engine, batch, group) if group.alone else _planned(engine, batch, group, compiled, refuse, bound)
        for group in groups
    ]
    if gpu is not None:
        found = [replace(each, on_gpu=_elsewhere(engine, each, gpu)) for each in found]
    return sorted(found, key=lambda each: -each.operations)


def _planned(
    engine: Engine, batch: EvidenceBatch, group: PatternGroup, compiled: bool, refuse: bool, bound: int
) -> Forecast:
    width = answer_width(engine.network, engine.query)
    budget = Budget(engine.allowed, batch.rows * width)
    rows, to_come = group.answered, engine.uses(group, batch)
    plan = engine.plan(group.pattern, to_come)
    memory = PlanMemory(plan, len(engine.ladder), compiles=engine.ladder[0] is not LOG)
    operations = plan.shared_operations + rows * plan.case_operations
    try:
        if engine.in_chunks(group.pattern, to_come, budget.free):
            return _chunked(engine, group, to_come, budget)
        memory.fit(budget, budget.free, rows, to_come if compiled else 0, engine.threads, engine.working)
    except BudgetError as error:
        if refuse:
            raise
        least = memory.least + budget.reserved
        seconds = min(operations, MOST_OPERATIONS) * CPU.numpy_operation
        return Forecast(group, plan, operations, least, least, seconds, None, str(error))
    copied = 0 if group.few is None else group.few.nbytes + rows * width
    projected = min(engine.allowed, memory.projected(engine.ladder[0].dtype.itemsize) + budget.reserved + copied)
    once = min(plan.shared_operations, MOST_OPERATIONS) * CPU.numpy_operation + len(group.rows) * CPU.row
    seconds = once + _seconds(engine, memory, rows, bool(plan.case_operations <= bound), compiled)
    least, loops = memory.least + budget.reserved, _loops(engine, memory, rows, compiled)
    return Forecast(group, plan, operations, least, projected, seconds, loops=loops)


def _loops(engine: Engine, memory: PlanMemory, rows: int, compiled: bool) -> str:
    """Say what answers rows of a plan, and why."""
    if _is_on_gpu(engine, compiled):
        return _kernels(engine, memory.plan, rows)
    if memory.lanes:
        return f"compiled, blocks of {memory.lanes:,} cases: worth the loading and lowering"
    if memory.entry_threads:
        return "compiled where tables are large, over entries: too few rows for blocks"
    return "NumPy: too little work for compiled code"


def _kernels(engine: Engine, plan: Plan, rows: int) -> str:
    """Say which kernels answer rows of a plan on a GPU, and why."""
    from junctor.backends.gpu_plan import chunk_of, few_are_faster

    algebra = engine.ladder[0]
    if algebra is LOG:
        return "kernels for few cases: all that log space has"
    if rows > (chunk := chunk_of(algebra)):
        return f"kernels for many cases: more rows than the {chunk} of a warp"
    few = few_are_faster(plan, algebra, engine.speeds, rows, stages_of(plan).count)
    return f"kernels for {'few' if few else 'many'} cases: less seconds by the prices of the device"


def _is_on_gpu(engine: Engine, compiled: bool) -> bool:
    """Tell whether a GPU answers rows, which takes about as long to come into play as compiled code."""
    return engine.has_device and (engine.device != "auto" or compiled)


def _seconds(engine: Engine, memory: PlanMemory, rows: int, bind: bool, compiled: bool) -> float:
    """Return what rows of a plan take on the backend that will answer them."""
    plan, first = memory.plan, engine.ladder[0]
    if not bind and rows * plain_seconds(plan) < CPU.fitted_forecast:
        return rows * plain_seconds(plan)
    from junctor.cost.features.plans import plan_work

    if _is_on_gpu(engine, compiled):
        return _on_gpu(engine, memory, rows, bind)
    if not memory.lanes:
        backend = f"{'entries' if memory.entry_threads else 'plain'}-{'log' if first is LOG else 'double'}"
        work = plan_work(plan, len(plan.steps), memory.cases(first.dtype.itemsize), rows)
        return engine.speeds.seconds(backend, work)
    if engine.query.kind == "mpe":
        return min(rows * plan.case_operations, MOST_OPERATIONS) * CPU.compiled_operation
    if not bind:
        return engine.speeds.seconds("cpu", plan_work(plan, len(plan.steps), memory.lanes, rows))
    prepared = ProgramCache(engine.network, plan, engine.ladder)
    prepared.memory = memory
    program = prepared.compiled()
    assert program is not None
    return engine.speeds.seconds("cpu", program.work(rows))


def _on_gpu(engine: Engine, memory: PlanMemory, rows: int, bind: bool) -> float:
    """Return what rows of a plan take on a GPU, which need not be here."""
    from junctor.backends.gpu_plan import GpuBlocks

    plan, algebra, speeds = memory.plan, engine.ladder[0], engine.speeds
    if not bind:
        return _plan_on_gpu(plan, algebra, rows, speeds)
    room = engine.device_memory or int(DEVICE_SHARE * speeds.device.figures["memory"])
    return GpuBlocks(Program(plan, engine.network, algebra), rows, room, memory.room, speeds).seconds(rows)


def _plan_on_gpu(plan: Plan, algebra: Algebra, rows: int, speeds: CostModel) -> float:
    from junctor.backends.gpu_plan import FEWEST_CASES
    from junctor.cost.features.plans import plan_work

    backend = f"few-{algebra.name}" if algebra is LOG else f"many-{algebra.name}"
    return speeds.seconds(backend, plan_work(plan, stages_of(plan).count, min(rows, FEWEST_CASES), rows))


def _elsewhere(engine: Engine, each: Forecast, gpu: CostModel) -> float | None:
    """Return what a GPU would take for a group of rows, None where it would not answer them."""
    if each.plan is None or each.chunking is not None or engine.query.kind == "mpe":
        return None
    seconds = _plan_on_gpu(each.plan, engine.ladder[0], each.group.answered, gpu)
    return seconds + each.rows * CPU.row


def _chunked(engine: Engine, group: PatternGroup, uses: int, budget: Budget) -> Forecast:
    """Return the forecast of rows that go in chunks, in the first number format; raises BudgetError."""
    algebra = engine.ladder[0]
    on_gpu = engine.has_device if engine.crew is None else engine.chunks_on_gpu(algebra)
    chunking = chosen_chunking(engine, group.pattern, uses, algebra, budget.free, on_gpu)
    plan, bytes_ = chunking.chunks.plan, chunking.memory + budget.reserved
    seconds = group.answered * chunking.seconds + len(group.rows) * CPU.row
    way = "slots of a GPU" if chunking.limits.on_gpu else "compiled" if chunking.entry_threads else "NumPy"
    loops, operations = f"in chunks, {way}: the plan exceeds the memory", group.answered * operations_of(plan)
    return Forecast(group, plan, operations, bytes_, bytes_, seconds, chunking, loops=loops)


def _row_by_row(engine: Engine, batch: EvidenceBatch, group: PatternGroup) -> Forecast:
    """Return the forecast of rows that are answered one by one, from the trees of some of them."""
    from junctor.backends.row_trees import room_bytes

    sample = patterns_of(batch).exact(group.rows[:: -(-len(group.rows) // SAMPLED_ROWS)])
    trees = [engine.row_engine.work(each.pattern.sliced, each.pattern.weighted) for each in sample]
    seconds = [engine.row_engine.seconds(each.pattern.sliced, each.pattern.weighted) for each in sample]
    share = group.answered / len(sample)
    entries = max((entries for _, entries, _ in trees if entries <= engine.row_engine.entries), default=0)
    bytes_ = room_bytes(engine.network, int(entries)) + batch.rows * answer_width(engine.network, engine.query)
    operations = sum(operations for operations, _, _ in trees if math.isfinite(operations))
    loops = "row by row, a tree for each: their patterns have too little in common"
    return Forecast(group, None, int(share * operations), bytes_, bytes_, share * sum(seconds), loops=loops)


def tree_of(shape: Shape) -> JunctionTree:
    """Return the junction tree of all variables, as it is without evidence."""
    everything = range(len(shape.cardinalities))
    graph = moral_graph(len(everything), shape.scopes)
    return junction_tree(best_order(graph, mask_of(everything), shape.cardinalities, TREE_ROWS), shape)
