"""The batch engine: executes the routes of a batch, group by group, and keeps programs for the next batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from junctor.backends.plan_memory import ProgramCache
from junctor.backends.row_trees import TreeRows
from junctor.engine.router import Router
from junctor.engine.scores import ScoreMaker, clear_unanswered, rows_of, slices_of
from junctor.evidence.batch import EvidenceBatch
from junctor.evidence.deduplicate import MOST_ANSWERED_GPU, copy_answers, find_equal_rows
from junctor.evidence.patterns import PatternGroup, Rows, patterns_of
from junctor.model.answers import (
    IMPOSSIBLE,
    UNANSWERED,
    Answers,
    Scores,
    clear_states,
    slice_rows,
    table_bytes,
    unanswered,
)
from junctor.model.network import Network
from junctor.model.options import ONE_THREAD, ComputeOptions
from junctor.model.query import Query
from junctor.model.strategies import Strategy
from junctor.planning.budget import Budget
from junctor.planning.plan import Plan
from junctor.runtime.buffer_pool import BufferPool, fresh, map_pages, mapped
from junctor.runtime.devices import open_gpu
from junctor.runtime.progress import counts_rows
from junctor.runtime.threads import short_turns
from junctor.strategies.number_ladder import answer_rows
from junctor.strategies.plan_store import PlanKey, PlanStore
from junctor.strategies.strategy import GpuRoom, Route

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import BlockDevice

    from junctor.cost.model import CostModels
    from junctor.out_of_core.cluster.workers import WorkerPool
    from junctor.strategies.chunk_explanations import ChunkExplainer
    from junctor.strategies.chunks import ChunkedRows

# Bytes of a step of a plan, with its tables.
PLAN_STEP_BYTES = 300
# Share of the bytes that stay between calls for the messages of rows that share trees.
RESTING_SHARE = 0.5

logger = logging.getLogger("junctor")


@dataclass(frozen=True, slots=True)
class _Grouped:
    """A batch with its equal rows, and the groups of those that are answered.

    batch: with equal rows where so few are left that this engine copies their answers.
    found: with equal rows where any engine would.
    compiled: whether the groups load compiled code.
    is_left: whether they are left to the cores beside a GPU.
    """

    found: EvidenceBatch
    batch: EvidenceBatch
    groups: list[PatternGroup]
    compiled: bool
    is_left: bool


@dataclass(frozen=True, slots=True)
class _Resources:
    """What answers a batch: whether compiled code is loaded, and the GPU that answers rows, if one does."""

    compiled: bool
    device: BlockDevice | None

    @property
    def gpu(self) -> GpuRoom | None:
        """What the GPU has room for."""
        return None if self.device is None else GpuRoom.of(self.device)


@dataclass(frozen=True, slots=True)
class _MemoryFor:
    """Returns bytes that a GPU writes answers to; threads: how many may map their pages. Alike ones are equal."""

    device: BlockDevice
    threads: int

    def __call__(self, size: int) -> npt.NDArray[np.uint8]:
        return self.device.host(size, partial(mapped, threads=self.threads))


class Engine:
    """Answers batches of evidence on one network with one query; keeps its programs from batch to batch.

    network, query: what is asked.
    options: what the process may use; answers do not depend on its threads.
    costs: returns the cost models of devices; those of this machine if not given.
    expected_rows: how many rows are to come in all batches together, 0 where that is not known.
    workers: that answer rows in chunks, alone or together.
    gpu: an opened GPU to use instead of the first that the process sees.
    store: plans of another engine of the same network and query.
    batch_rows: rows of every batch but the last, 0 where they differ; programs of a GPU are made for so many.

    Raises EvidenceError for unknown targets, BudgetError where rows do not fit even in chunks, DiskError where there is
    less room than there seemed, and DeviceError for a GPU that cannot be used; ModelError for explanations of a network
    with noisy nodes whose whole tables are too large.
    """

    def __init__(
        self,
        network: Network,
        query: Query,
        options: ComputeOptions = ONE_THREAD,
        costs: Callable[[], CostModels] | None = None,
        expected_rows: int = 0,
        workers: WorkerPool | None = None,
        gpu: BlockDevice | None = None,
        store: PlanStore | None = None,
        batch_rows: int = 0,
    ) -> None:
        # An explanation maximises over the variables of the file alone: auxiliary ones have to be summed out before.
        network = network if query.kind == "posteriors" else network.expanded
        self.router = Router(network, query, options, costs, expected_rows, workers, gpu, store)
        self.network = network
        self.query = query
        self.options = options
        self.batch_rows = batch_rows
        self.allowed = self.router.allowed
        # The oldest first, as the router drops them.
        self._programs: dict[PlanKey, ProgramCache] = {}
        # Of all engines that share what was planned, once there are several: one that refers to itself goes late.
        self._variants: dict[tuple[ComputeOptions, WorkerPool | None], Engine] = {}
        # Groups of the batch to come, which another thread may choose while one is answered.
        self._grouped: WeakKeyDictionary[EvidenceBatch, _Grouped] = WeakKeyDictionary()
        self._pool, self._score_pool = BufferPool(), BufferPool()
        self._scores = ScoreMaker(network, query) if query.has_scores else None

    @property
    def programs(self) -> tuple[ProgramCache, ...]:
        """The programs that are kept, the oldest first."""
        return tuple(self._programs.values())

    def with_options(self, options: ComputeOptions, workers: WorkerPool | None = None) -> Engine:
        """Return an engine with other options that shares what was planned; the same at every call.

        A run plans before it is known which device its rows are worth, and must not plan twice.
        """
        router, key = self.router, (options, workers)
        self._variants.setdefault((self.options, router.workers), self)
        # Pools alike are equal, but those that only plan have no client, and a closed one is of no use.
        if key not in self._variants or self._variants[key].router.workers is not workers:
            # Models are fitted once for all variants, and only if one of them asks.
            costs, rows = lambda: router.cost_models, router.expected_rows
            shared = router.gpu, router.store, self.batch_rows
            variant = Engine(self.network, self.query, options, costs, rows, workers, *shared)
            variant._variants = self._variants
            self._variants[key] = variant
        return self._variants[key]

    def expect_batches(self, rows: int) -> None:
        """Note how many rows every batch but the last has, 0 where they differ; of all variants."""
        for engine in (self, *self._variants.values()):
            engine.batch_rows = rows

    @property
    def held(self) -> int:
        """Bytes of programs, plans and messages of rows that share trees, about."""
        programs = sum(program.held for program in self._programs.values())
        programs += sum(row_engine.resting for row_engine in self.router.store.row_engines.values())
        return programs + PLAN_STEP_BYTES * sum(len(plan.steps) for plan in self.router.store.plans.values())

    def keep(self, allowed: int) -> None:
        """Drop programs and plans, the oldest first, until they take at most so many bytes; for an engine at rest."""
        self._pool.release()
        self._score_pool.release()
        for (room, _), row_engine in self.router.store.row_engines.items():
            row_engine.rest(int(RESTING_SHARE * allowed))
            # With the limit that it was made with: routes must not depend on earlier batches.
            row_engine.allow(room)
        # Blocks first: their memory is there again in no time.
        excess = self.held - allowed
        for program in self._programs.values():
            excess -= program.rest(excess)
        plans = self.router.store.plans
        while self.held > allowed and (self._programs or plans):
            oldest = next(iter(self._programs or plans))
            self._programs.pop(oldest, None)
            self.router.store.memories.pop(oldest, None)
            plans.pop(oldest, None)

    @property
    def without_gpu(self) -> Engine:
        """The engine on CPUs alone; what the two keep between batches is in one place."""
        if not self.router.takes_gpu:
            return self
        engine = self._without_gpu
        # They may have been told since.
        engine.router.expected_rows, engine.router.is_lasting = self.router.expected_rows, self.router.is_lasting
        return engine

    @cached_property
    def _without_gpu(self) -> Engine:
        router, options = self.router, replace(self.options, device="cpu")
        # No method of this engine, which would refer to itself then, and go late.
        costs, rows = lambda: router.cost_models, router.expected_rows
        engine = Engine(self.network, self.query, options, costs, rows, router.workers, store=router.store)
        engine._programs, engine._pool, engine._score_pool = self._programs, self._pool, self._score_pool
        return engine

    def serving(self, batch: EvidenceBatch) -> Engine:
        """Return the engine that answers a batch: on CPUs alone where the rows to come are not worth a GPU."""
        self.prepare(batch)
        if not self._grouped[batch].is_left:
            return self
        self.without_gpu.prepare(batch, self._grouped.pop(batch).found)
        return self.without_gpu

    def routes(self, batch: EvidenceBatch, reserved: int = 0) -> tuple[Route, ...]:
        """Return how the rows of a batch would be answered now; nothing runs.

        reserved: bytes of earlier answers.
        """
        serving = self.serving(batch)
        if serving is not self:
            return serving.routes(batch, reserved)
        grouped = self._grouped.pop(batch)
        what = grouped.groups, grouped.batch, grouped.compiled
        return tuple(self.router.routes(*what, reserved, self._fixed()))

    def with_equal_rows(self, batch: EvidenceBatch) -> EvidenceBatch:
        """Return a batch with its equal rows, if answers to some of them may be copied to the others."""
        return find_equal_rows(batch, self.network.cardinalities, threads=self.router.threads)

    def prepare(self, batch: EvidenceBatch, found: EvidenceBatch | None = None) -> None:
        """Choose how the rows of a batch go together; another thread may answer an earlier batch meanwhile.

        found: the batch with its equal rows, if these were looked for.
        """
        if batch in self._grouped:
            return
        equal = found = self.with_equal_rows(batch) if found is None else found
        if (
            self.router.takes_gpu
            and batch.equal is None
            and found.answered_count > MOST_ANSWERED_GPU * len(batch.valid)
        ):
            equal = batch
        with self.router.store.lock:
            groups = self.router.groups(equal)
            is_left = self.router.is_left_to_cores(groups, equal)
            # The engine without a GPU asks for itself.
            compiled = not is_left and self.router.loads_compiled(groups, equal)
            # A GPU takes about as long to come into play as compiled code.
            is_left |= self.router.takes_gpu and not (compiled or self.router.asks_gpu)
            self._grouped[batch] = _Grouped(found, equal, groups, compiled, is_left)

    @short_turns()
    def answer(self, batch: EvidenceBatch, reserved: int = 0, explain: bool = True) -> Answers:
        """Return the answers to all rows of `batch`, in its order: Scores where the query asks for them.

        batch: evidence.
        reserved: bytes of earlier answers.
        explain: whether reasons of impossible rows name findings that contradict each other.
        Raises BudgetError where rows would have to go in chunks only because of earlier answers.
        """
        serving = self.serving(batch)
        if serving is not self:
            return serving.answer(batch, reserved, explain)
        grouped = self._grouped.pop(batch)
        batch, groups, compiled = grouped.batch, grouped.groups, grouped.compiled
        # Opened before memory for answers is taken: that is pinned where a GPU writes to it.
        device = self._open_gpu() if self.router.takes_gpu else None
        most = batch.rows if self._scores is None else min(batch.rows, self._slice_rows)
        memory, device = self._answer_memory(self._pool, self._size(most), reserved, device)
        if self._scores is None:
            answers = self.blank(batch, memory)
        else:
            size = self._scores.size(batch.rows)
            scored, device = self._answer_memory(self._score_pool, size, reserved, device)
            answers = self._scores.blank(batch, scored)
        if batch.equal is not None and device is None:
            # A few rows all over it would make one thread clear it.
            map_pages(memory if self._scores is None else scored, self.router.threads)
        held = answers.nbytes if self._scores is None else self.router.answer_bytes(batch.rows)
        budget = Budget(self.allowed, held + reserved, reserved)
        resources = _Resources(compiled, device)
        trees = [group for group in groups if group.by_trees]
        plans = [group for group in groups if not group.by_trees]
        with counts_rows(lambda: int(np.count_nonzero(answers.status != UNANSWERED)), _rows_for_each(batch)):
            if isinstance(answers, Scores):
                self._score(plans, trees, batch, answers, memory, budget, resources)
            else:
                for group in plans:
                    way = self._answer_group(group, batch, answers, budget, resources)
                    answers.ways[way.value] += group.served
                if trees:
                    self._answer_trees(trees, batch, answers, budget, resources)
        if trees:
            answers.ways[Strategy.ROW_TREES.value] += sum(group.served for group in trees)
        if batch.equal is not None:
            # Equal rows get equal bytes: copies, not answers of their own.
            copy_answers(batch.equal, answers, self.router.threads)
        if isinstance(answers, Scores):
            clear_unanswered(answers)
        clear_states(answers)
        if explain:
            self.explain(batch, answers, self._free(budget), self.router.threads)
        # Memory of answers is not cleared: a row that nobody wrote would pass for an answer.
        left_out = np.flatnonzero(answers.status == UNANSWERED)
        if left_out.size:
            raise AssertionError(f"row {left_out[0]} and {left_out.size - 1} others were not answered")
        return answers

    def explain(self, batch: EvidenceBatch, answers: Answers, memory: int, threads: int) -> None:
        """Write which findings of impossible rows contradict each other; another thread may answer a batch meanwhile.

        batch: evidence.
        answers: to it.
        memory: bytes that this may take.
        threads: number of threads.
        """
        if (answers.status == IMPOSSIBLE).any():
            # Imported where rows are impossible: with it comes compiled code.
            from junctor.backends.contradictions import give_reasons

            give_reasons(self.network, batch, answers, memory, threads)

    def _score(
        self,
        plans: Sequence[PatternGroup],
        trees: Sequence[PatternGroup],
        batch: EvidenceBatch,
        scores: Scores,
        memory: npt.NDArray[Any],
        budget: Budget,
        resources: _Resources,
    ) -> None:
        """Write the scores of the rows of groups; their posteriors take turns in `memory`."""
        for group in plans:
            route, left = self._route(group, batch, budget, resources)
            scores.ways[route.strategy.value] += group.served
            if route.strategy is Strategy.IMPOSSIBLE:
                self._leave_impossible(group.rows, scores)
            else:
                self._score_group(route, left, batch, scores, memory, resources)
        if trees:
            answer = partial(self._answer_trees, budget=budget, resources=resources)
            self._score_slices(trees, answer, batch, scores, memory, compiled=True)

    def _score_group(
        self,
        route: Route,
        budget: Budget,
        batch: EvidenceBatch,
        scores: Scores,
        memory: npt.NDArray[Any],
        resources: _Resources,
    ) -> None:
        """Write the scores of the rows of a route: on its device, or slice by slice."""
        rows = route.group.rows
        if route.strategy is Strategy.GPU_BLOCKS:
            rows = answer_rows(self._program(route, batch, resources.device), batch, rows, scores)
        if rows.size:
            # What few rows a joint table answers load no compiled code for their scores either.
            compiled = resources.compiled or route.strategy is Strategy.ROW_TREES
            group = replace(route.group, rows=rows)
            execute = partial(self._execute_part, route, budget=budget, resources=resources)
            self._score_slices([group], execute, batch, scores, memory, compiled)

    def _score_slices(
        self,
        groups: Sequence[PatternGroup],
        execute: Callable[[Sequence[PatternGroup], EvidenceBatch, Answers], None],
        batch: EvidenceBatch,
        scores: Scores,
        memory: npt.NDArray[Any],
        compiled: bool,
    ) -> None:
        """Write the scores of the rows of some groups.

        execute: writes the answers to groups of the rows of a slice.
        memory: for the posteriors of a slice.
        compiled: whether scores are made in compiled code.
        """
        most = memory.size // max(1, self._size(1))
        for parts in slices_of([group.rows for group in groups], most):
            rows, *others = (part for _, part in parts)
            rows = np.sort(np.concatenate([rows, *others])) if others else rows
            # Of wide batches with many small groups, copies of all columns would take longer than answers.
            patterns = [groups[number].pattern for number, _ in parts]
            evidence = {v for pattern in patterns for v in pattern.sliced | pattern.weighted}
            some = rows_of(batch, rows, evidence)
            here = [replace(groups[number], rows=np.searchsorted(rows, part)) for number, part in parts]
            answers = self.blank(some, memory[: self._size(some.rows)])
            execute(here, some, answers)
            self._score_maker.write(answers, rows, scores, self.router.threads, compiled)

    def _execute_part(
        self,
        route: Route,
        groups: Sequence[PatternGroup],
        batch: EvidenceBatch,
        answers: Answers,
        budget: Budget,
        resources: _Resources,
    ) -> None:
        for group in groups:
            part = replace(route, group=replace(route.group, rows=group.rows))
            self._execute(part, group.rows, batch, answers, budget, resources)

    @property
    def _score_maker(self) -> ScoreMaker:
        assert self._scores is not None
        return self._scores

    def _answer_group(
        self, group: PatternGroup, batch: EvidenceBatch, answers: Answers, budget: Budget, resources: _Resources
    ) -> Strategy:
        """Write the answers to the rows of a group, and return what answered them.

        budget: in addition to the answers to the batch.
        """
        route, budget = self._route(group, batch, budget, resources)
        self._execute(route, group.rows, batch, answers, budget, resources)
        return route.strategy

    def _route(
        self,
        group: PatternGroup,
        batch: EvidenceBatch,
        budget: Budget,
        resources: _Resources,
        uses: int | None = None,
    ) -> tuple[Route, Budget]:
        """Return how a group is answered, and the budget that leaves; raises BudgetError where it is refused."""
        kept = self._fixed()
        with self.router.store.lock:
            route = self.router.route(group, batch, budget, resources.compiled, resources.gpu, kept, uses)
        if route.refused is None and self.router.may_take_long(route):
            # Imported where a row may take long: cost models come with it.
            from junctor.engine.forecast import estimate

            route = estimate(self.router, route, batch)
        if route.refused is not None:
            raise route.refused
        # What the route has no room for goes before its rows are answered, or both would be in memory at once.
        for key in self._programs.keys() - kept.keys():
            del self._programs[key]
        return route, Budget(budget.allowed, route.memory.reserved, budget.passing)

    def _answer_trees(
        self,
        groups: Sequence[PatternGroup],
        batch: EvidenceBatch,
        answers: Answers,
        budget: Budget,
        resources: _Resources,
    ) -> None:
        """Write the answers to the rows of groups with trees, together: one alone may be too little for all threads."""
        if self.options.time_limit is not None:
            for group in groups:
                self._route(group, batch, budget, resources)
        row_engine = self.router.row_engine
        row_engine.allow(budget.free - sum(self._fixed().values()), self.router.working)
        left = row_engine.answer_groups(batch, [TreeRows(group.rows, group.shared) for group in groups], answers)
        left = self._answer_impossible(left, batch, answers, self._free(budget))
        self._answer_left(left, batch, answers, budget, resources)

    def _execute(
        self, route: Route, rows: Rows, batch: EvidenceBatch, answers: Answers, budget: Budget, resources: _Resources
    ) -> None:
        if route.chunks is not None:
            chunked = self._chunked_rows(budget, resources)
            if self.query.kind == "mpe":
                explainer = self._chunk_explainer(chunked, budget, resources)
                chunked.explain(explainer, route, rows, batch, answers)
            else:
                chunked.answer(route, rows, batch, answers)
        elif route.strategy is Strategy.IMPOSSIBLE:
            self._leave_impossible(rows, answers)
        elif route.strategy is Strategy.ROW_TREES:
            self._answer_trees([replace(route.group, rows=rows)], batch, answers, budget, resources)
        elif route.strategy is Strategy.JOINT_TABLE:
            assert self.router.joint_table is not None
            self._answer_left(self.router.joint_table.answer(batch, rows, answers), batch, answers, budget, resources)
        else:
            answer_rows(self._program(route, batch, resources.device), batch, rows, answers)

    def _answer_left(
        self, left: Rows, batch: EvidenceBatch, answers: Answers, budget: Budget, resources: _Resources
    ) -> None:
        """Answer rows that do not fit, or whose numbers need a wider format: they get a plan, like any group."""
        for group in patterns_of(batch).exact(left) if left.size else []:
            self._answer_group(group, batch, answers, budget, resources)

    def _program(self, route: Route, batch: EvidenceBatch, device: BlockDevice | None) -> ProgramCache:
        """Return the plan of a route ready to run on rows of a batch."""
        assert route.plan is not None
        assert route.sizes is not None
        router = self.router
        key = router.key(route.group.pattern, route.uses)
        program = self._programs.pop(key, None)
        if program is None:
            program = ProgramCache(self.network, route.plan, router.ladder, route.sizes.memory)
        # Blocks may differ from those of the last batch: fewer rows, or less memory left by the answers.
        full = max(batch.rows, self.batch_rows)
        program.use(route.sizes, device, router.costs if device is not None else None, (batch.rows, full))
        self._programs[key] = program
        return program

    def _chunked_rows(self, budget: Budget, resources: _Resources) -> ChunkedRows:
        """Return what answers rows whose plan exceeds the memory."""
        # Imported where rows go in chunks: few do, and it loads much.
        from junctor.strategies.chunks import ChunkedRows

        return ChunkedRows(self.router, resources.device, resources.gpu, budget.free, self._answer_impossible)

    def _chunk_explainer(self, chunked: ChunkedRows, budget: Budget, resources: _Resources) -> ChunkExplainer:
        """Return what finds explanations of rows in chunks."""
        from junctor.strategies.chunk_explanations import ChunkExplainer

        def route_of(batch: EvidenceBatch) -> Route:
            (group,) = patterns_of(batch).exact(np.arange(1))
            # No other row has this pattern.
            return self._route(group, batch, budget, resources, uses=1)[0]

        def in_one_piece(route: Route, batch: EvidenceBatch) -> dict[int, int]:
            # Of all variables, whatever the targets are.
            everything = tuple(range(len(self.network.variables)))
            sizes = self.network.cardinalities
            memory = fresh(table_bytes(self.query, everything, sizes, 1))
            answers = unanswered(self.query, everything, sizes, 1, {}, memory)
            # On the CPU: one row of what is left of a plan.
            self._execute(route, np.arange(1), batch, answers, budget, replace(resources, device=None))
            self._programs.pop(self.router.key(route.group.pattern, route.uses), None)
            return {v: int(states[0]) for v, states in answers.states.items()}

        def plan_of(route: Route) -> Plan:
            with self.router.store.lock:
                return self.router.plan(route.group.pattern, route.uses)

        return ChunkExplainer(self.network, route_of, chunked.propagate, in_one_piece, plan_of)

    def _answer_impossible(self, rows: Rows, batch: EvidenceBatch, answers: Answers, free: int) -> Rows:
        """Answer the impossible ones among rows in doubt, and return the others."""
        if not rows.size:
            return rows
        # Imported where rows are in doubt: with it comes compiled code.
        from junctor.backends.impossibility import answer_impossible

        return answer_impossible(self.network, batch, rows, answers, free, self.router.threads)

    def _leave_impossible(self, rows: Rows, answers: Answers) -> None:
        """Write that rows are impossible which are known to be."""
        # Imported where some are: with it comes compiled code.
        from junctor.backends.impossible_answers import leave_impossible

        sizes = np.array([self.network.cardinalities[v] for v in answers.targets], dtype=np.int64)
        leave_impossible(rows, answers, sizes, self.router.threads)

    def _open_gpu(self) -> BlockDevice:
        return self.router.gpu if self.router.gpu is not None else open_gpu(self.options.device_memory)

    def _size(self, rows: int) -> int:
        """Return the bytes of the posteriors or states of so many rows."""
        return rows * self._row_bytes

    # Kept, since each batch asks, and networks have thousands of targets.
    @cached_property
    def _row_bytes(self) -> int:
        return table_bytes(self.query, self.router.targets, self.network.cardinalities, 1)

    @cached_property
    def _slice_rows(self) -> int:
        return slice_rows(self.network, self.query)

    def _answer_memory(
        self, pool: BufferPool, size: int, reserved: int, device: BlockDevice | None
    ) -> tuple[npt.NDArray[Any], BlockDevice | None]:
        """Return memory for answers, and the GPU that can write to it.

        pool: memory of earlier answers serves again once they are written.
        size: bytes.
        reserved: bytes of earlier answers.
        device: that is to write them, if one is.
        """
        if device is not None:
            try:
                return pool.lend(size, _MemoryFor(device, self.router.threads), reserved), device
            except MemoryError as error:
                # The host may have no more memory to pin, while it has some to use.
                logger.warning("the CPU takes over a batch: %s", error)
        return pool.lend(size, fresh, reserved), None

    def blank(self, batch: EvidenceBatch, memory: npt.NDArray[Any] | None = None) -> Answers:
        """Return answers to be written, their posteriors or states in one piece of memory.

        The memory is not cleared: whoever answers a row writes all of it, and `answer` sees that none was left out.
        """
        memory = fresh(self._size(batch.rows)) if memory is None else memory
        sizes = self.network.cardinalities
        return unanswered(self.query, self.router.targets, sizes, batch.rows, batch.invalid, memory)

    def _free(self, budget: Budget) -> int:
        """Return the bytes of a budget that neither programs nor row trees hold."""
        trees = sum(8 * row_engine.held for row_engine in self.router.store.row_engines.values())
        return budget.free - sum(self._fixed().values()) - trees

    def _fixed(self) -> dict[PlanKey, int]:
        return {key: program.memory.fixed for key, program in self._programs.items()}


def _rows_for_each(batch: EvidenceBatch) -> float:
    """Return the rows of a batch for each that is answered: equal ones get copies at the end."""
    return batch.rows / max(1, batch.answered_count + len(batch.invalid))
