"""Forecasts of batches of evidence before any of them is propagated: the seconds of their routes, added up."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from junctor_kernels.tables.reference import LOG, Algebra

from junctor.backends.numpy import Program
from junctor.backends.plan_memory import ProgramCache
from junctor.backends.row_work import RowWork, alone_seconds, run_seconds, shared_seconds
from junctor.cost.constants import CPU
from junctor.cost.features.plans import plain_seconds, plan_work
from junctor.cost.model import gpu_prices
from junctor.engine.router import Router
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.evidence.patterns import PatternGroup, patterns_of, spread
from junctor.model.strategies import Strategy
from junctor.planning.budget import row_seconds, too_long
from junctor.planning.elimination import best_order, moral_graph
from junctor.planning.levels import stages_of
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern, Shape
from junctor.strategies.strategy import Route

if TYPE_CHECKING:
    import numpy.typing as npt

    from junctor.cost.model import CostModel
    from junctor.evidence.compiled_cells import EvidenceCells
    from junctor.planning.junction_tree import JunctionTree

# Capped, because integers of any size do not fit a float: from there on it is forever anyway.
MOST_OPERATIONS = 10**30
# What looking for patterns in the batches after the first may take: so many seconds, or this share of the whole run.
SURVEY_SECONDS = CPU.survey
SURVEY_SHARE = 0.1
# Rows that the order of the tree that is shown is searched for: a fraction of a second.
TREE_ROWS = 100
# Rows that are looked at where each has a tree of its own; more, up to a number and as long as their trees take a share
# of all rows' seconds, until the mean is known to a share of it.
SAMPLED_ROWS, MOST_SAMPLED_ROWS = 16, 1024
SAMPLED_SHARE, SAMPLED_ERROR = 0.03, 0.05
# Patterns of a batch that are looked at, those with the fewest observed variables: they need the most memory.
SURVEYED_PATTERNS = 16


class Routing(Protocol):
    """What is asked for routes: an engine."""

    @property
    def router(self) -> Router:
        """Chooses them."""

    def serving(self, batch: EvidenceBatch) -> Routing:
        """Return what answers a batch."""

    def routes(self, batch: EvidenceBatch) -> tuple[Route, ...]:
        """Return how the rows of a batch would be answered."""


@dataclass(frozen=True, slots=True)
class RunForecast:
    """Forecast of the batches of a run.

    needed: bytes at the least.
    seconds: of one core.
    gpu_seconds: of the GPU that was asked about, infinite without one.
    chunked_seconds: of one core, for rows in chunks.
    """

    needed: int
    seconds: float
    gpu_seconds: float
    chunked_seconds: float


def survey(engine: Routing, batches: Iterable[EvidenceBatch], count: int, gpu: CostModel | None = None) -> RunForecast:
    """Return what `count` batches need; raises BudgetError where rows cannot be answered.

    The first batch is forecast, and each one with patterns that may need more memory than those seen; the others are
    taken to be alike. Stops looking, and reading, where that becomes a cost of its own.

    engine: that will answer them.
    batches: the first ones of the run, read one after the other.
    count: number of all batches.
    gpu: cost model of a GPU that is asked about.
    """
    router = engine.router
    needed, limit = 0, math.inf
    on_gpu, chunked = 0.0 if gpu else math.inf, 0.0
    seconds: list[float] = []
    seen: list[Pattern] = []
    started = time.monotonic()
    for batch in batches:
        # After reading the batch, which may take longer than its forecast.
        if time.monotonic() - started > limit:
            break
        if seconds and not _has_new_patterns(router, batch, seen):
            continue
        routes = forecast(engine, batch)
        for route in routes:
            if route.refused is not None:
                raise route.refused
        needed = max((needed, *(route.memory.needed for route in routes)))
        # Those with the fewest observed variables first: they cover most others.
        seen = sorted([*seen, *(route.group.pattern for route in routes)], key=lambda pattern: len(pattern.sliced))
        seconds.append(sum(route.seconds for route in routes))
        if gpu is not None:
            on_gpu += sum(gpu_seconds(router, route, gpu) for route in routes)
        chunked += sum(route.seconds for route in routes if route.chunks is not None)
        if len(seconds) == 1:
            # The first batch does not count: its plans serve the run as well.
            started, limit = time.monotonic(), max(SURVEY_SECONDS, SURVEY_SHARE * count * seconds[0])
    share = count / max(1, len(seconds))
    return RunForecast(needed, share * sum(seconds), share * on_gpu, share * chunked)


def _has_new_patterns(router: Router, batch: EvidenceBatch, seen: Sequence[Pattern]) -> bool:
    patterns = patterns_of(batch)
    fewest = np.argsort(patterns.marks[:, : patterns.hard].sum(axis=1), kind="stable")[:SURVEYED_PATTERNS].tolist()
    evidence = [(patterns.observed(p), patterns.soft(p)) for p in fewest]
    return any(not any(_covers(router, pattern, *marks) for pattern in seen) for marks in evidence)


def _covers(router: Router, pattern: Pattern, observed: frozenset[int], soft: frozenset[int]) -> bool:
    # More evidence makes tables smaller, but with targets it can also make more of the network matter.
    evidence = pattern.sliced | pattern.weighted
    grows = router.query.targets is not None and not (observed | soft) <= evidence
    return pattern.sliced <= observed and not grows


def forecast(engine: Routing, batch: EvidenceBatch, bound: int = 0) -> list[Route]:
    """Return the routes of a batch with their seconds, most operations first; those that are refused say so.

    bound: multiply-adds of a case up to which a plan is bound to its numbers and lowered, because zeros and kinds of
        loops make a forecast better.
    """
    engine = engine.serving(batch)
    routes = [estimate(engine.router, route, batch, bound) for route in engine.routes(batch)]
    return sorted(routes, key=lambda route: -route.operations)


def estimate(router: Router, route: Route, batch: EvidenceBatch, bound: int = 0) -> Route:
    """Return a route with its forecast: seconds of one core, or of a GPU where one is used, and counts of work.

    It is refused where a row takes longer than allowed.
    """
    priced = _priced(router, route, batch, bound)
    allowed = row_seconds(router.options.time_limit)
    # Rows whose tree is too large get a plan, which is asked for then.
    is_known = priced.refused is None and math.isfinite(priced.seconds)
    if not is_known or (seconds := _row_seconds(priced)) <= allowed:
        return priced
    return replace(priced, refused=too_long(seconds, allowed, "a row", router.advice))


def _row_seconds(route: Route) -> float:
    """Return the forecast of a row, by the threads that share it; the first one does what all others share."""
    seconds, plan = route.seconds, route.plan
    once = 0.0 if plan is None or route.chunks is not None else _once(plan)
    together = route.threads if route.shares_row else 1
    return (once + (seconds - once) / max(1, len(route.group.rows))) / together


def _once(plan: Plan) -> float:
    # Shared operations are done once, in NumPy, on any backend.
    return min(plan.shared_operations, MOST_OPERATIONS) * CPU.numpy_operation


def _priced(router: Router, route: Route, batch: EvidenceBatch, bound: int) -> Route:
    # Refused rows get the seconds of NumPy: they show how far out of reach they are.
    if route.refused is not None:
        return replace(route, seconds=min(route.operations, MOST_OPERATIONS) * CPU.numpy_operation)
    if route.strategy is Strategy.IMPOSSIBLE:
        return replace(route, seconds=route.rows * CPU.row)
    if route.strategy is Strategy.JOINT_TABLE:
        assert router.joint_table is not None
        operations = len(route.group.rows) * router.joint_table.operations
        return replace(route, operations=operations, seconds=operations * CPU.numpy_operation + route.rows * CPU.row)
    if route.strategy is Strategy.ROW_TREES:
        return _row_trees(router, route, batch)
    if route.chunks is not None:
        return replace(route, seconds=len(route.group.rows) * route.chunks.seconds + route.rows * CPU.row)
    plan = route.plan
    assert plan is not None
    seconds = _once(plan) + route.rows * CPU.row + _seconds(router, route, plan, bool(plan.case_operations <= bound))
    reason = _kernels(router, plan, len(route.group.rows)) if route.strategy is Strategy.GPU_BLOCKS else route.reason
    work = {"operations": float(min(route.operations, MOST_OPERATIONS)), "steps": float(len(plan.steps))}
    return replace(route, seconds=seconds, reason=reason, work=work)


def _kernels(router: Router, plan: Plan, rows: int) -> str:
    """Return which kernels answer rows of a plan on a GPU, and why."""
    from junctor.backends.gpu_plan import chunk_of, few_are_faster

    algebra = router.ladder[0]
    if rows > (chunk := chunk_of(algebra)):
        return f"kernels for many cases: more rows than the {chunk} of a warp"
    few = few_are_faster(plan, algebra, router.costs, rows, stages_of(plan).count)
    return f"kernels for {'few' if few else 'many'} cases: less seconds by the prices of the device"


def _seconds(router: Router, route: Route, plan: Plan, bind: bool) -> float:
    """Return the seconds of a route's rows on its backend."""
    sizes, rows, first = route.sizes, len(route.group.rows), router.ladder[0]
    assert sizes is not None
    if not bind and rows * plain_seconds(plan) < CPU.fitted_forecast:
        return rows * plain_seconds(plan)
    if route.strategy is Strategy.GPU_BLOCKS:
        return _on_gpu(router, route, plan) if bind else _plan_on_gpu(plan, first, rows, router.costs)
    if route.strategy is not Strategy.CPU_BLOCKS:
        backend = f"{'entries' if sizes.entry_threads else 'plain'}-{'log' if first is LOG else 'double'}"
        work = plan_work(plan, len(plan.steps), sizes.cases(first.dtype.itemsize), rows)
        return router.costs.seconds(backend, work)
    # Blocks of explanations have other loops, which were not measured.
    if router.query.kind == "mpe":
        return min(rows * plan.case_operations, MOST_OPERATIONS) * CPU.compiled_operation
    if not bind:
        return router.costs.seconds("cpu", plan_work(plan, len(plan.steps), sizes.lanes, rows))
    programs = ProgramCache(router.network, plan, router.ladder, sizes.memory)
    programs.use(sizes)
    program = programs.compiled()
    assert program is not None
    return router.costs.seconds("cpu", program.work(rows))


def _on_gpu(router: Router, route: Route, plan: Plan) -> float:
    """Return the seconds of a plan that is bound to its numbers, on a GPU that need not be here."""
    from junctor.backends.gpu_plan import GpuBlocks

    assert route.sizes is not None
    program, rows = Program(plan, router.network, router.ladder[0]), len(route.group.rows)
    return GpuBlocks(program, rows, router.gpu_room().bytes, route.sizes.room, router.costs).seconds(rows)


def _plan_on_gpu(plan: Plan, algebra: Algebra, rows: int, costs: CostModel) -> float:
    from junctor.backends.gpu_plan import FEWEST_CASES

    # A plan alone is forecast by the kernels for many cases.
    work = plan_work(plan, stages_of(plan).count, min(rows, FEWEST_CASES), rows)
    return costs.seconds(gpu_prices(algebra, True), work)


def gpu_seconds(router: Router, route: Route, gpu: CostModel) -> float:
    """Return the seconds of a route on a GPU, or the route's own where no GPU would answer its rows.

    gpu: cost model of that GPU, which need not be the router's.
    """
    if route.strategy is Strategy.ROW_TREES:
        # There a plan answers them; its tree is about theirs, with evidence that some lack as likelihoods.
        work = router.work(route.group.pattern)
        operation, table = gpu.coefficients[router.gpu_backend].row
        return route.rows * (work.operations * operation + work.tables * table + CPU.row)
    if route.plan is None or route.chunks is not None:
        return route.seconds
    return _plan_on_gpu(route.plan, router.ladder[0], len(route.group.rows), gpu) + route.rows * CPU.row


def _row_trees(router: Router, route: Route, batch: EvidenceBatch) -> Route:
    """Return the forecast of rows with trees, from the tree that a group shares or the trees of some of its rows."""
    from junctor_kernels.row_trees.together import block_rows

    from junctor.backends.row_trees import room_bytes
    from junctor.evidence.compiled_cells import evidence_cells

    group, row_engine = route.group, router.row_engine
    if group.shared:
        shares = {v: share for v in group.pattern.weighted if 0 < (share := _share(batch, group, v)) < 1}
        trees = [row_engine.work(group.pattern.sliced, group.pattern.weighted - shares.keys(), shares, len(group.rows))]
        seconds = float(shared_seconds(trees[0], len(group.rows), group.patterns > 1, row_engine.above_zero))
        held = [trees[0].entries]
        seconds += len(group.rows) * trees[0].tables * CPU.lane_row * (group.patterns > 1)
    else:
        trees, held = _sampled_trees(router, evidence_cells(batch), group.rows)
        seconds = len(group.rows) * _mean_seconds(router, trees)
    share = len(group.rows) / len(trees)
    # Rows with larger trees do without one: they get a plan.
    pairs = zip(held, trees, strict=True)
    fitting = [(entries, tree.tables) for entries, tree in pairs if tree.entries <= row_engine.entries]
    entries, tables = max(fitting, default=(0.0, 0.0))
    together = block_rows(entries, tables, group.patterns > 1) if group.shared else 1
    size = room_bytes(router.network, int(entries) * together)
    size += route.memory.reserved
    operations = int(share * sum(tree.operations for tree in trees if math.isfinite(tree.operations)))
    memory = replace(route.memory, needed=size, projected=size)
    work = {"operations": float(operations), "tables": float(share * sum(tree.tables for tree in trees))}
    return replace(route, operations=operations, memory=memory, seconds=seconds, work=work)


def _sampled_trees(
    router: Router, cells: EvidenceCells, rows: npt.NDArray[np.int64]
) -> tuple[list[RowWork], list[float]]:
    """Return the work of some rows with trees of their own, more of them where it differs, and entries held by each.

    cells: of a batch.
    rows: of the batch.
    """
    # By counts, not by time. Few rows of many have most of the work where large tables are left to them.
    count = SAMPLED_ROWS
    while True:
        some = spread(rows, count)
        held = np.zeros(len(some), dtype=np.int64)
        trees = router.row_engine.works_alone(cells, some, held)
        seconds = np.array([run_seconds(tree, router.row_engine.above_zero < 1) for tree in trees])
        planning = CPU.tree_start * np.mean([tree.tables for tree in trees])
        # Of rows that are refused nothing is to be known.
        most = SAMPLED_SHARE * len(rows) * seconds.mean() / planning if np.isfinite(seconds).all() and planning else 0
        if count >= min(len(rows), most, MOST_SAMPLED_ROWS):
            return trees, held.astype(np.float64).tolist()
        if seconds.std() <= SAMPLED_ERROR * seconds.mean() * math.sqrt(count):
            return trees, held.astype(np.float64).tolist()
        count *= 4


def _mean_seconds(router: Router, trees: Sequence[RowWork]) -> float:
    """Return the mean seconds of rows with trees of their own; infinite where one is too large."""
    has_zeros = router.row_engine.above_zero < 1
    extra = [run_seconds(tree, has_zeros) - alone_seconds(tree) for tree in trees if math.isfinite(tree.operations)]
    return router.row_engine.seconds_alone(trees) + sum(extra) / max(1, len(extra))


def _share(batch: EvidenceBatch, group: PatternGroup, variable: int) -> float:
    """Return the share of the rows of a group that observe a variable."""
    column = batch.states.get(variable)
    return 0.0 if column is None else float(np.mean(column[group.rows] != UNOBSERVED))


def tree_of(shape: Shape) -> JunctionTree:
    """Return the junction tree of all variables, as it is without evidence."""
    # Imported where a tree is shown.
    from junctor.planning.junction_tree import junction_tree

    # Without targets nothing is left out: the tree that is shown is that of the whole network.
    everything = frozenset(range(len(shape.cardinalities)))
    graph = moral_graph(len(everything), shape.scopes)
    return junction_tree(best_order(graph, everything, shape.cardinalities, TREE_ROWS), shape)
