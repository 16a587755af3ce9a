"""The batch engine: rows are grouped by evidence pattern, a group gets a plan, blocks of cases run through it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu.blocks import DEVICE_SHARE, CudaBlockDevice
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra

from junctor.backends.blocks import answer_rows
from junctor.backends.plan_memory import OPERATION_SECONDS, PlanMemory, ProgramCache
from junctor.engine.chunking_choice import CHUNK_FORMATS, beats_one_piece, chosen_chunking
from junctor.engine.pattern_prices import Work, alone_seconds, compiled_prices, plain_prices, plain_seconds
from junctor.engine.patterns import PatternChoice, PatternGroup, Patterns, patterns_of
from junctor.evidence.batch import EvidenceBatch
from junctor.evidence.deduplicate import UniqueRows, distinct_rows
from junctor.model.answers import INVALID, UNANSWERED, Answers, posteriors_in
from junctor.model.errors import BudgetError
from junctor.model.network import Network
from junctor.model.options import DeviceChoice
from junctor.model.query import Query, target_names
from junctor.out_of_core.memory_splits import ChunkRoute, MemoryLimits
from junctor.out_of_core.programs import SingleCaseProgram, answer_case_by_case, cut, program_of
from junctor.planning.budget import Budget
from junctor.planning.compile import Problem, compile_plan
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern, Shape
from junctor.runtime.buffer_pool import BufferPool, fresh
from junctor.runtime.devices import count_gpus, gpu_at_hand, has_gpu, open_gpu, open_other_gpus
from junctor.runtime.gc_pause import collector_paused
from junctor.runtime.machine import DEFAULT_SHARE, allowed_disk, available_memory, spill_folder

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import BlockDevice

    from junctor.backends.row_trees import RowEngine
    from junctor.cost.model import CostModel, CostModels
    from junctor.out_of_core.cluster.workers import WorkerPool

Rows = npt.NDArray[np.int64]

# Rows whose numbers leave the range of a format are computed again in the next one.
LADDERS: dict[str, tuple[Algebra, ...]] = {
    "double": (reference.DOUBLE, reference.LOG),
    "single": (reference.SINGLE, reference.DOUBLE, reference.LOG),
    "log": (reference.LOG,),
}
# Plans, and programs (plans with their numbers), that an engine keeps for the next batch.
KEPT_PLANS = 1024
KEPT_PROGRAMS = 256
KEPT_CHUNKINGS = 16
# Patterns whose trees it need not make again; a batch asks for some hundreds.
KEPT_WORK = 512
# The share of the memory beyond what a plan needs at the least that answers to the different rows of a group may take.
DISTINCT_SHARE = 0.25
# Seconds of work in NumPy from which compiled code, ten times faster, pays for being loaded (half a second; some more
# the first time on a machine).
COMPILED_SECONDS = 1.0
# How much longer NumPy takes in log space.
LOG_SECONDS = 4.0
# Rows that a GPU answers in the time of one on a core.
DEVICE_GAIN = 64

logger = logging.getLogger("junctor")


class Engine:
    """Answers batches of evidence on one network with one query; keeps its programs from batch to batch.

    memory: bytes that propagation may use (None: a share of what is free now). rows: how many are to come in all
    batches together, if that is known; it decides what is worth preparing. threads: that rows are answered on; answers
    do not depend on how many. device: for posteriors in single or double precision; "auto" is a GPU where there is one
    and the rows to come are worth it. device_memory: bytes that blocks may take of it, None for a share of what is
    free; on a CPU, what the tables of a block or a task may take, None for no limit beside `memory`. spill, disk:
    folder and bytes of files for tables that exceed the memory, None for the system's temporary folder and for half of
    what is free there. all_gpus: whether rows in chunks take all GPUs that this process sees, not only the first.
    Raises EvidenceError for unknown targets, BudgetError where rows do not fit even in chunks, DiskError where there is
    less room than there seemed, and DeviceError for a GPU that cannot be used.
    """

    def __init__(
        self,
        network: Network,
        query: Query,
        memory: int | None = None,
        rows: int = 0,
        threads: int = 1,
        device: DeviceChoice | BlockDevice = "cpu",
        device_memory: int | None = None,
        spill: str | Path | None = None,
        disk: int | None = None,
        all_gpus: bool = False,
        speeds: Callable[[], CostModels] | None = None,
    ) -> None:
        self.network = network
        self.query = query
        self.rows = rows
        self.threads = threads
        self.device = device
        self.all_gpus = all_gpus
        # Workers that share the tasks of rows in chunks, if there are any.
        self.crew: WorkerPool | None = None
        self._speeds = speeds
        self.device_memory = device_memory
        self.spill = spill_folder(spill)
        self.disk = disk
        self.allowed = memory if memory is not None else int(available_memory() * DEFAULT_SHARE)
        self.targets = tuple(network.index[name] for name in target_names(network, query))
        self.shape = shape_of(network)
        self.ladder = (reference.MAX_LOG,) if query.kind == "mpe" else LADDERS[query.precision]
        self._plans: dict[tuple[Pattern, int], Plan] = {}
        self._prepared: dict[tuple[Pattern, int], ProgramCache] = {}
        self._chunkings: dict[tuple[object, ...], ChunkRoute] = {}
        self._using: BlockDevice | None = None
        self._lender = BufferPool()

    def plan(self, pattern: Pattern, rows: int = 1) -> Plan:
        """Return the plan for `pattern`; the search for its order is longer the more rows will use it.

        What was planned before changes nothing: a run that goes on after an interruption makes the same plans.
        """
        # A search pays in proportion to what a row takes.
        worth = rounded(max(1, rows // DEVICE_GAIN) if self.has_device else rows)
        key = pattern, worth
        if key not in self._plans:
            if len(self._plans) >= KEPT_PLANS:
                self._plans.pop(next(iter(self._plans)))
            targets = None if self.query.targets is None else self.targets
            with collector_paused():
                self._plans[key] = compile_plan(self.shape, pattern, targets, self.query.kind == "mpe", worth)
        return self._plans[key]

    def groups(self, batch: EvidenceBatch) -> list[PatternGroup]:
        """Return the rows that share a plan, and those that are answered one by one; invalid rows are in none."""
        found = patterns_of(batch)
        if len(found.counts) > 1:
            choice = PatternChoice(found, plain_prices(self.plan, len(self.network.variables), self._fits))
            if choice.seconds * self.to_come(batch, batch.rows) > COMPILED_SECONDS * batch.rows:
                # Enough work for better prices, and the row engine, to pay for being loaded.
                alone = alone_seconds(self.row_engine, found) if self._has_row_engine else math.inf
                prices = compiled_prices(self.work, self.allowed, alone, self.row_price)
                choice = PatternChoice(found, prices, search=True)
            return self._fitting(self._told_apart(choice.groups(), batch), found, batch)
        whole = [PatternGroup(Pattern(found.observed(0), found.soft(0)), found.rows)] if len(found.counts) else []
        return self._told_apart(whole, batch)

    def _told_apart(self, groups: list[PatternGroup], batch: EvidenceBatch) -> list[PatternGroup]:
        """Return the groups with the different ones of their rows where that saves answers."""
        sizes = self.network.cardinalities
        return [replace(group, few=distinct_rows(batch, group.rows, group.pattern, sizes)) for group in groups]

    def _fitting(self, groups: list[PatternGroup], found: Patterns, batch: EvidenceBatch) -> list[PatternGroup]:
        """Return the groups with those replaced whose common plan does not fit the memory, where something else may."""
        result: list[PatternGroup] = []
        for group in groups:
            if group.alone or group.patterns == 1 or self._fits(group.pattern, self.uses(group, batch)):
                result.append(group)
            elif self._has_row_engine:
                result.append(replace(group, alone=True))
            else:
                result.extend(self._told_apart(found.exact(group.rows), batch))
        return result

    def answer(self, batch: EvidenceBatch, held: int = 0) -> Answers:
        """Return the answers to all rows of `batch`, in its order; `held` bytes are taken by earlier answers.

        Raises BudgetError where rows that would have to go in chunks beside these may do without once they are gone.
        """
        groups = self.groups(batch)
        compiled = self.loads_compiled(groups, batch)
        # A GPU takes about as long to come into play as compiled code.
        self._using = self._gpu if self.has_device and (self.device != "auto" or compiled) else None
        answers = self._blank(batch, self._memory(self._size(batch), held))
        budget = Budget(self.allowed, answers.nbytes + held, held)
        for group in groups:
            uses = self.uses(group, batch)
            few = group.few
            if few is not None and (left := self._left_beside(few, group, uses, budget, answers)):
                found = self._blank(few.batch, self._allocate(self._size(few.batch)))
                different = replace(group, rows=np.arange(few.batch.rows))
                self._answer_group(different, few.batch, found, left, compiled, uses)
                few.spread(found, answers)
            else:
                self._answer_group(group, batch, answers, budget, compiled, uses)
        left_out = np.flatnonzero(answers.status == UNANSWERED)
        if left_out.size:
            raise AssertionError(f"row {left_out[0]} and {left_out.size - 1} others were not answered")
        return answers

    def _left_beside(
        self, few: UniqueRows, group: PatternGroup, uses: int, budget: Budget, answers: Answers
    ) -> Budget | None:
        """Return the budget beside answers to the different rows of a group, None where they take too much of it."""
        taken = few.nbytes + few.batch.rows * (answers.nbytes // len(answers.status))
        least = 0
        if not group.alone and not self.in_chunks(group.pattern, uses, budget.free):
            least = PlanMemory(self.plan(group.pattern, uses), len(self.ladder)).least
        small = taken <= DISTINCT_SHARE * (budget.free - least)
        return replace(budget, reserved=budget.reserved + taken) if small else None

    def _answer_group(
        self, group: PatternGroup, batch: EvidenceBatch, answers: Answers, budget: Budget, compiled: bool, uses: int
    ) -> None:
        """Write the answers to the rows of a group, whose plan is made for so many `uses`."""
        if not group.alone:
            if self.in_chunks(group.pattern, uses, budget.free):
                self._answer_in_chunks(group, batch, answers, budget, uses)
                return
            prepared = self._prepare(group.pattern, len(group.rows), uses, budget, compiled)
            answer_rows(prepared, batch, group.rows, answers)
            return
        self.row_engine.allow(budget.free - sum(each.memory.fixed for each in self._prepared.values()), self.working)
        left = self.row_engine.answer(batch, group.rows, answers)
        for each in patterns_of(batch).exact(left) if left.size else []:
            self._answer_group(each, batch, answers, budget, compiled, self.uses(each, batch))

    def in_chunks(self, pattern: Pattern, uses: int, free: int) -> bool:
        """Tell whether rows go one by one in chunks, because a plan for them exceeds `free` bytes or its device."""
        if self.query.kind == "mpe":
            return False
        memory = PlanMemory(self.plan(pattern, uses), len(self.ladder))
        if not memory.fits(free, self.device_memory):
            return True
        on_gpu = self._using is not None and memory.working > self._using.room
        return on_gpu and beats_one_piece(self, pattern, uses, free)

    def chunking(self, pattern: Pattern, uses: int, algebra: Algebra, free: int, on_gpu: bool = False) -> ChunkRoute:
        """Return how rows of a pattern go through `free` bytes in chunks; raises BudgetError where they cannot."""
        key = pattern, rounded(uses), algebra.name, free, on_gpu, self.device_memory, self.spill, self.disk, self.crew
        if key not in self._chunkings:
            if len(self._chunkings) >= KEPT_CHUNKINGS:
                self._chunkings.pop(next(iter(self._chunkings)))
            targets = None if self.query.targets is None else frozenset(self.targets)
            problem = Problem(self.shape, pattern, targets)
            chunking = self._cut_for_crew(problem, rounded(uses), algebra.dtype.itemsize, free, on_gpu)
            if chunking is None:
                on_gpu = on_gpu and self.crew is None
                disk = self.disk if self.disk is not None else allowed_disk(self.spill)
                task = self._device_room if on_gpu else self.device_memory
                limits = MemoryLimits(free, task, disk, self.spill, self.threads, on_gpu)
                prices = (self.speeds if on_gpu else self.cpu_speeds).prices
                gpus = count_gpus() if on_gpu and self.all_gpus else 1
                chunking = cut(problem, algebra, limits, prices, rounded(uses), gpus)
            self._chunkings[key] = chunking
        return self._chunkings[key]

    def _cut_for_crew(self, problem: Problem, rows: int, itemsize: int, free: int, on_gpu: bool) -> ChunkRoute | None:
        """Return how rows go over all workers, if there are any; None where these have too little memory for it."""
        if self.crew is None:
            return None
        try:
            return self.crew.cut(
                problem, itemsize, MemoryLimits(free, self.device_memory, 0, self.spill, 1, on_gpu), rows
            )
        except BudgetError as error:
            logger.warning("workers do not share rows in chunks, one process answers them on its CPU: %s", error)
            return None

    def chunks_on_gpu(self, algebra: Algebra) -> bool:
        """Tell whether tasks of rows in chunks are done on a GPU, here or by workers."""
        if algebra.name not in CHUNK_FORMATS:
            return False
        return isinstance(self._using, CudaBlockDevice) if self.crew is None else self.crew.room is not None

    def _answer_in_chunks(
        self, group: PatternGroup, batch: EvidenceBatch, answers: Answers, budget: Budget, uses: int
    ) -> None:
        """Write the answers to rows whose plan exceeds the memory, all of which is theirs."""
        free = budget.free
        if budget.passing:
            # In one piece, once that memory is there again, or in larger chunks.
            raise budget.refuse(free + 1, "propagation beside earlier answers", "wait until they are written")
        self._prepared.clear()
        if "row_engine" in self.__dict__:
            self.row_engine.allow(0)
        rows = group.rows
        for algebra in self.ladder:
            chunking = chosen_chunking(self, group.pattern, uses, algebra, free, self.chunks_on_gpu(algebra))
            logger.info("%d rows in chunks, about %.2g s each", len(rows), chunking.seconds)
            rows = answer_case_by_case(self._in_chunks(chunking, algebra), chunking.chunks.plan, batch, rows, answers)
            if not rows.size:
                return

    def _in_chunks(self, chunking: ChunkRoute, algebra: Algebra) -> SingleCaseProgram:
        """Return what answers rows in chunks: all workers, all GPUs or this process."""
        if self.crew is not None and chunking.workers:
            return self.crew.program(chunking, self.network, algebra)
        device = self._using if isinstance(self._using, CudaBlockDevice) and chunking.limits.on_gpu else None
        others = open_other_gpus(self.device_memory) if device and self.all_gpus else ()
        return program_of(chunking, self.network, algebra, *([device, *others] if device else ()))

    def loads_compiled(self, groups: Sequence[PatternGroup], batch: EvidenceBatch) -> bool:
        """Tell whether the rows to come are worth loading the compiled backend for."""
        if any(group.alone for group in groups):
            return True
        seconds = 0.0
        for group in groups:
            row, once = self._plain_seconds(group.pattern, self.uses(group, batch))
            seconds += once + self.to_come(batch, group.answered) * row
        return seconds * (LOG_SECONDS if self.ladder[0] is reference.LOG else 1) > COMPILED_SECONDS

    def to_come(self, batch: EvidenceBatch, rows: int) -> int:
        """Return how many rows like these `rows` of a batch are to come in all batches."""
        return max(rows, rows * self.rows // batch.rows)

    def uses(self, group: PatternGroup, batch: EvidenceBatch) -> int:
        """Return for how many rows the plan of a group is made.

        Rows of one pattern come again with the next batches. A group of several is made of what this batch happens to
        hold, and the next one may well choose other loose columns.
        """
        return self.to_come(batch, group.answered) if group.patterns == 1 else group.answered

    @cached_property
    def _plain_seconds(self) -> Callable[[Pattern, int], tuple[float, float]]:
        """What a row of a plan takes in NumPy, and what all rows share; kept, because the next batch asks again."""

        def seconds(pattern: Pattern, uses: int) -> tuple[float, float]:
            plan = self.plan(pattern, uses)
            return plain_seconds(plan), min(plan.shared_operations, 10**30) * OPERATION_SECONDS

        return lru_cache(KEPT_PLANS)(seconds)

    @property
    def speeds(self) -> CostModel:
        """The speeds of the device, or of the one that is most like it."""
        from junctor.cost.dataset import MeasuredDevice as Measured

        if not self.has_device:
            return self.cpu_speeds
        at_hand = gpu_at_hand() if isinstance(self.device, str) else (self.device.name, self.device.figures)
        return self.known_speeds.gpu(Measured(*at_hand))

    @property
    def cpu_speeds(self) -> CostModel:
        """The speeds of this machine's CPU, or of another one."""
        from junctor.cost.model import cpu_name

        return self.known_speeds.cpu(cpu_name())

    @cached_property
    def known_speeds(self) -> CostModels:
        """What is known of devices."""
        from junctor.cost.model import speeds_here

        return self._speeds() if self._speeds is not None else speeds_here()

    @property
    def row_price(self) -> tuple[float, float]:
        """Seconds of an entry operation and of a table of the row engine's tree, for a row of a plan."""
        backend = f"many-{'single' if self.query.precision == 'single' else 'double'}" if self.has_device else "cpu"
        return self.speeds.prices[backend].row

    @property
    def _has_row_engine(self) -> bool:
        return self.query.kind == "posteriors" and self.query.precision != "log"

    @property
    def has_device(self) -> bool:
        """Whether there is a GPU for what is asked."""
        if self.device == "cpu" or self.query.kind != "posteriors":
            return False
        return self.device != "auto" or has_gpu()

    @property
    def working(self) -> int | None:
        """Bytes that tables of a block or a task may take, where these are in this machine's memory."""
        return None if self.has_device else self.device_memory

    @cached_property
    def _gpu(self) -> BlockDevice:
        return open_gpu(self.device_memory) if isinstance(self.device, str) else self.device

    @property
    def _device_room(self) -> int:
        """The bytes of a GPU that tasks may take, which need not be here."""
        if self._using is not None:
            return self._using.room
        return self.device_memory or int(DEVICE_SHARE * self.speeds.device.figures["memory"])

    @cached_property
    def row_engine(self) -> RowEngine:
        """The engine for rows that are answered one by one."""
        from junctor.backends.row_trees import RowEngine

        return RowEngine(self.network, self.targets, self.allowed, self.threads)

    @cached_property
    def work(self) -> Callable[[Pattern], Work]:
        """What the row engine makes of a pattern; kept, because the next batch asks for much the same."""
        return lru_cache(KEPT_WORK)(lambda pattern: self.row_engine.work(pattern.sliced, pattern.weighted))

    def _fits(self, pattern: Pattern, rows: int = 1) -> bool:
        return PlanMemory(self.plan(pattern, rows), len(self.ladder)).fits(self.allowed, self.working)

    def _size(self, batch: EvidenceBatch) -> int:
        """Return the bytes of the posteriors of a batch."""
        if self.query.kind == "mpe":
            return 0
        each = 4 if self.query.precision == "single" else 8
        return each * batch.rows * sum(self.network.cardinalities[v] for v in self.targets)

    def _memory(self, size: int, held: int) -> npt.NDArray[Any]:
        """Return memory for posteriors; what `held` bytes of earlier answers were in may wait for the next batch."""
        if self._using is not None:
            try:
                return self._lender.lend(size, self._using.host, held)
            except MemoryError as error:
                logger.warning("the CPU takes over a batch: %s", error)
                self._using = None
        return self._lender.lend(size, fresh, held)

    def _allocate(self, size: int) -> npt.NDArray[Any]:
        return fresh(size) if self._using is None else self._using.host(size)

    def _blank(self, batch: EvidenceBatch, memory: npt.NDArray[Any] | None = None) -> Answers:
        """Return answers to be written, their posteriors in one piece of memory, so that compiled code finds them.

        That is not cleared: whoever answers a row writes all of it, and `answer` sees that none was left out.
        """
        status, invalid = np.full(batch.rows, UNANSWERED, dtype=np.int8), list(batch.invalid)
        status[invalid] = INVALID
        explain = self.query.kind == "mpe"
        memory = fresh(self._size(batch)) if memory is None else memory
        memory = memory.view(np.float32 if self.query.precision == "single" else np.float64)
        tables = {} if explain else posteriors_in(memory, self.targets, self.network.cardinalities, batch.rows)
        for table in tables.values() if invalid else ():
            table[invalid] = np.nan
        return Answers(
            self.targets,
            status,
            np.full(batch.rows, np.nan),
            tables,
            {v: np.full(batch.rows, -1, dtype=np.int32) for v in self.targets} if explain else {},
            dict(batch.invalid),
            None if explain else memory,
        )

    def _prepare(self, pattern: Pattern, rows: int, to_come: int, budget: Budget, compiled: bool) -> ProgramCache:
        """Return the plan ready to run; older programs give way until it fits."""
        key = pattern, rounded(to_come)
        prepared = self._prepared.pop(key, None)
        if prepared is None:
            prepared = ProgramCache(self.network, self.plan(pattern, to_come), self.ladder)
        prepared.device, prepared.speeds = self._using, self.speeds if self._using else None
        held = sum(other.memory.fixed for other in self._prepared.values())
        while self._prepared and (held + prepared.memory.least > budget.free or len(self._prepared) >= KEPT_PROGRAMS):
            held -= self._prepared.pop(next(iter(self._prepared))).memory.fixed
        prepared.memory.fit(budget, budget.free - held, rows, to_come if compiled else 0, self.threads, self.working)
        self._prepared[key] = prepared
        return prepared


def rounded(rows: int) -> int:
    """Return a count of rows in steps of four times, so that similar counts make the same plan."""
    return 1 << 2 * ((rows - 1).bit_length() // 2)


def shape_of(network: Network) -> Shape:
    """Return what planning needs to know of a network."""
    return Shape(network.cardinalities, tuple(factor.scope for factor in network.factors), network.kind == "bayes")
