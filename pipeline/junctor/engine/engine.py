"""The batch engine: chooses how batches are answered, answers them, and keeps programs for the next batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from junctor.backends.plan_memory import ProgramCache
from junctor.engine.choose import Choice, choose, route_of
from junctor.engine.run import BatchRun, in_order
from junctor.engine.scores import ScoreMaker, rows_of, slices_of
from junctor.evidence.batch import EvidenceBatch
from junctor.evidence.deduplicate import copy_answers
from junctor.evidence.patterns import PatternGroup
from junctor.model.answers import (
    IMPOSSIBLE,
    UNANSWERED,
    Answers,
    SampledAnswers,
    Scores,
    slice_rows,
    table_bytes,
    unanswered,
    with_errors,
)
from junctor.model.network import Network
from junctor.model.options import ONE_THREAD, ComputeOptions
from junctor.model.query import Query, answering_network, as_posteriors, has_intervals
from junctor.model.strategies import Strategy
from junctor.planning.budget import Budget
from junctor.runtime.buffer_pool import BufferPool, fresh, map_pages, mapped
from junctor.runtime.devices import open_gpu
from junctor.runtime.progress import counts_rows
from junctor.runtime.threads import short_gil_switches
from junctor.strategies.facts import FEW_ROWS, Facts, PlanKey, PlanStore
from junctor.strategies.registry import way
from junctor.strategies.strategy import Allowance, Route

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import BlockDevice

    from junctor.cost.model import CostModels
    from junctor.out_of_core.cluster.workers import WorkerPool

# Bytes of a step of a plan, with its tables.
PLAN_STEP_BYTES = 300
# Share of the bytes that stay between calls for the messages of rows that share trees.
RESTING_SHARE = 0.5

# What a row has as its status that nobody has written: a search of bytes, because each call asks.
UNANSWERED_BYTE = np.int8(UNANSWERED).tobytes()
# Entries of messages whose memory stays from call to call, for rows with trees of their own.
KEPT_ENTRIES = 1 << 21

logger = logging.getLogger("junctor")


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
        query.question.refuse_taken(network.index)
        self._asked, network = network, answering_network(network, query)
        # What is sampled is made of all posteriors and their errors.
        answered = query if query.method == "exact" else as_posteriors(network, query)
        fewer = network.with_fewer_axes
        self.facts = Facts(fewer, answered, options, costs, expected_rows, workers, gpu, store)
        self.network = network
        self.query = query
        self.options = options
        self.batch_rows = batch_rows
        self.allowed = self.facts.allowed
        # The oldest first, as routes drop them.
        self._programs: dict[PlanKey, ProgramCache] = {}
        # Of all engines that share what was planned, once there are several: one that refers to itself goes late.
        self._variants: dict[tuple[ComputeOptions, WorkerPool | None], Engine] = {}
        # Of the batch to come, for which another thread may choose while one is answered.
        self._choices: WeakKeyDictionary[EvidenceBatch, Choice] = WeakKeyDictionary()
        self._pool, self._score_pool = BufferPool(), BufferPool()
        maker = query.question.maker
        self._maker: ScoreMaker | None = resolve_name(maker)(network, query) if maker else None
        # Of exact answers, which are made slice by slice.
        self._scores = self._maker if query.method == "exact" else None

    @property
    def programs(self) -> tuple[ProgramCache, ...]:
        """The programs that are kept, the oldest first."""
        return tuple(self._programs.values())

    def with_options(self, options: ComputeOptions, workers: WorkerPool | None = None) -> Engine:
        """Return an engine with other options that shares what was planned; the same at every call.

        A run plans before it is known which device its rows are worth, and must not plan twice.
        """
        facts, key = self.facts, (options, workers)
        self._variants.setdefault((self.options, facts.workers), self)
        # Pools alike are equal, but those that only plan have no client, and a closed one is of no use.
        if key not in self._variants or self._variants[key].facts.workers is not workers:
            # Models are fitted once for all variants, and only if one of them asks.
            costs, rows = lambda: facts.cost_models, facts.expected_rows
            shared = facts.gpu, facts.store, self.batch_rows
            variant = Engine(self._asked, self.query, options, costs, rows, workers, *shared)
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
        programs += sum(row_engine.resting for row_engine in self.facts.store.row_engines.values())
        return programs + PLAN_STEP_BYTES * sum(len(plan.steps) for plan in self.facts.store.plans.values())

    def keep(self, allowed: int) -> int:
        """Drop programs and plans, the oldest first, until they take at most so many bytes; for an engine at rest.

        Returns how many they take.
        """
        for pool in (self._pool, self._score_pool):
            pool.release()
        for (room, _), row_engine in self.facts.store.row_engines.items():
            if row_engine.resting or row_engine.held > KEPT_ENTRIES:
                row_engine.rest(int(RESTING_SHARE * allowed))
            # With the limit that it was made with: routes must not depend on earlier batches.
            row_engine.allow(room)
        if (held := self.held) <= allowed:
            return held
        excess = held - allowed
        # Blocks first: their memory is there again in no time.
        for program in self._programs.values():
            excess -= program.rest(excess)
        plans = self.facts.store.plans
        while self.held > allowed and (self._programs or plans):
            oldest = next(iter(self._programs or plans))
            self._programs.pop(oldest, None)
            self.facts.store.memories.pop(oldest, None)
            plans.pop(oldest, None)
        return self.held

    def choice(self, batch: EvidenceBatch) -> Choice:
        """Return which rows of a batch are answered together and by what; nothing runs."""
        found = self._choices.pop(batch, None) if self._choices else None
        if found is None:
            with self.facts.store.lock:
                found = choose(batch, self.facts)
        return found

    def routes(self, batch: EvidenceBatch, reserved: int = 0) -> tuple[Route, ...]:
        """Return how the rows of a batch would be answered now, those that are refused included; nothing runs.

        reserved: bytes of earlier answers.
        """
        return self.routes_of(self.choice(batch), reserved)

    def routes_of(self, choice: Choice, reserved: int = 0) -> tuple[Route, ...]:
        """Return the same of a choice."""
        facts, batch = choice.facts, choice.batch
        # Not opened: a GPU may only be asked about.
        gpu = facts.gpu_room() if choice.on_gpu else None
        budget = Budget(self.allowed, facts.answer_bytes(batch.rows) + reserved, reserved)
        room = Allowance(budget, gpu, {key: program.memory.fixed for key, program in self._programs.items()})
        return tuple(route_of(group, batch, facts, room) for group in choice.groups)

    def uses_gpu(self, batch: EvidenceBatch) -> bool:
        """Return True if a GPU answers rows of a batch, or may sample them."""
        self.prepare(batch)
        choice = self._choices[batch]
        return choice.on_gpu or any(group.strategy is Strategy.SAMPLES for group in choice.groups)

    def prepare(self, batch: EvidenceBatch) -> None:
        """Choose how the rows of a batch go together; another thread may answer an earlier batch meanwhile."""
        if batch not in self._choices:
            with self.facts.store.lock:
                self._choices[batch] = choose(batch, self.facts)

    def answer(self, batch: EvidenceBatch, reserved: int = 0, explain: bool = True, first_row: int = 0) -> Answers:
        """Return the answers to all rows of `batch`, in its order: Scores where the query asks for them.

        Unless its method is exact, they are SampledAnswers, or have these as their estimates.

        batch: evidence.
        reserved: bytes of earlier answers.
        explain: whether reasons of impossible rows name findings that contradict each other.
        first_row: number of the first row, which random numbers depend on.
        Raises BudgetError where rows would have to go in chunks only because of earlier answers.
        """
        # A few rows are answered before anybody else would have a turn.
        if batch.rows <= FEW_ROWS:
            return self._answer(batch, self.choice(batch), reserved, explain, first_row)
        with short_gil_switches():
            return self._answer(batch, self.choice(batch), reserved, explain, first_row)

    def _answer(self, given: EvidenceBatch, choice: Choice, reserved: int, explain: bool, first_row: int) -> Answers:
        batch, groups, facts = choice.batch, choice.groups, choice.facts
        # Opened before memory for answers is taken: that is pinned where a GPU writes to it.
        device = self._open_gpu() if choice.on_gpu else None
        most = batch.rows if self._scores is None else min(batch.rows, self._slice_rows)
        memory, device = self._answer_memory(self._pool, self._size(most), reserved, device)
        if self._scores is None:
            answers = self.blank(given, memory)
        else:
            size = self._scores.size(batch.rows)
            scored, device = self._answer_memory(self._score_pool, size, reserved, device)
            answers = self._scores.blank(batch, scored)
        if batch.equal is not None and device is None:
            # A few rows all over it would make one thread clear it.
            map_pages(memory if self._scores is None else scored, facts.threads)
        held = answers.nbytes if type(answers) is Answers else facts.answer_bytes(batch.rows)
        budget = Budget(self.allowed, held + reserved, reserved)
        full = batch.rows, max(batch.rows, self.batch_rows)
        run = BatchRun(facts, device, budget, self._programs, full, first_row)
        write = run.answer if self._scores is None else partial(self._score, memory=memory, run=run)
        if batch.rows <= FEW_ROWS:
            write(groups, batch, answers)
        else:
            with counts_rows(lambda: int(np.count_nonzero(answers.status != UNANSWERED)), _rows_for_each(batch)):
                write(groups, batch, answers)
        if batch.equal is not None:
            # Equal rows get equal bytes: copies, not answers of their own.
            copy_answers(batch.equal, answers, facts.threads)
        answers.clear_unanswered()
        # Each has a reason, if only a general one.
        if explain and answers.reasons:
            self.explain(batch, answers, run.beside_trees, facts.threads)
        # A row that nobody wrote would pass for an answer.
        if answers.status.tobytes().count(UNANSWERED_BYTE):
            left_out = np.flatnonzero(answers.status == UNANSWERED)
            raise AssertionError(f"row {left_out[0]} and {left_out.size - 1} others were not answered")
        if isinstance(answers, SampledAnswers) and self._maker is not None:
            return self._maker.sampled(answers)
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
        groups: Sequence[PatternGroup],
        batch: EvidenceBatch,
        scores: Answers,
        memory: npt.NDArray[Any],
        run: BatchRun,
    ) -> None:
        """Write the scores of the rows of groups: on their device or, slice by slice, of posteriors in `memory`."""
        for work in in_order(groups):
            routes = [run.route(group, batch) for group in work]
            for route in routes:
                scores.ways[route.strategy.value] += route.rows
            if routes[0].strategy is Strategy.IMPOSSIBLE:
                run.execute(routes, batch, scores)
                continue
            # A GPU writes scores itself, which a class of their own makes otherwise.
            if routes[0].strategy is Strategy.GPU_BLOCKS and type(self._scores) is ScoreMaker:
                left = way(Strategy.GPU_BLOCKS).answer(routes, batch, scores, run)
                routes = [replace(routes[0], group=replace(routes[0].group, rows=left))] if left.size else []
            if routes:
                self._score_slices(routes, batch, scores, memory, run)

    def _score_slices(
        self,
        routes: Sequence[Route],
        batch: EvidenceBatch,
        scores: Answers,
        memory: npt.NDArray[Any],
        run: BatchRun,
    ) -> None:
        """Write the scores of the rows of some routes of one strategy; their posteriors take turns in `memory`."""
        most = memory.size // max(1, self._size(1))
        groups = [route.group for route in routes]
        # What few rows a joint table or NumPy answers load no compiled code for their scores either.
        compiled = routes[0].runs_compiled
        assert self._scores is not None
        assert isinstance(scores, Scores)
        for parts in slices_of([group.rows for group in groups], most):
            rows, *others = (part for _, part in parts)
            rows = np.sort(np.concatenate([rows, *others])) if others else rows
            # Of wide batches with many small groups, copies of all columns would take longer than answers.
            patterns = [groups[number].pattern for number, _ in parts]
            evidence = {v for pattern in patterns for v in pattern.sliced | pattern.weighted}
            some = rows_of(batch, rows, evidence if evidence else batch.states.keys() | batch.likelihoods.keys())
            here = [
                replace(routes[number], group=replace(groups[number], rows=np.searchsorted(rows, part)))
                for number, part in parts
            ]
            answers = self.blank(some, memory[: self._size(some.rows)])
            run.execute(here, some, answers)
            self._scores.write(answers, rows, scores, run.facts.threads, compiled)

    def _open_gpu(self) -> BlockDevice:
        return self.facts.gpu if self.facts.gpu is not None else open_gpu(self.options.device_memory)

    def _size(self, rows: int) -> int:
        """Return the bytes of the posteriors or states of so many rows."""
        return rows * self._row_bytes

    # Kept, since each batch asks, and networks have thousands of targets.
    @cached_property
    def _row_bytes(self) -> int:
        return table_bytes(self.facts.query, self.facts.targets, self.network.cardinalities, 1)

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
                return pool.lend(size, _MemoryFor(device, self.facts.threads), reserved), device
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
        answers = unanswered(self.facts.query, self.facts.targets, sizes, batch.rows, batch.invalid, memory)
        if self.query.method == "exact":
            return answers
        return with_errors(answers, sizes, has_intervals(self.network, self.query))


def _rows_for_each(batch: EvidenceBatch) -> float:
    """Return the rows of a batch for each that is answered: equal ones get copies at the end."""
    return batch.rows / max(1, batch.answered_count + len(batch.invalid))
