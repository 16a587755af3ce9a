"""Rows whose plan exceeds the memory: `cut` chooses the plan, `program_of` returns what runs it.

Memory is divided between tables of a task, with the scratch of its contractions, and stored tables; of these, what does
not fit goes into files. Everything is chosen before anything runs, and deterministic. The engine calls both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables.reference import Algebra

from junctor.backends.evidence_blocks import block_of, write, write_tables
from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.cost.figures import Figures, shipped_figures
from junctor.evidence.batch import EvidenceBatch
from junctor.model.answers import Answers
from junctor.model.errors import BudgetError
from junctor.model.network import Network
from junctor.out_of_core.memory_splits import (
    ChunkRoute,
    CpuSplits,
    GpuGroup,
    GpuSplits,
    KeptSearch,
    MemoryLimits,
    SideBySide,
    device_bytes,
)
from junctor.out_of_core.program import ChunkedProgram
from junctor.planning.budget import exact_bytes, format_bytes, too_long
from junctor.planning.chunk_search import (
    KEPT_STEPS,
    SEARCHED_CUTS,
    ChunkPrices,
    MemorySplit,
    TooLongError,
    candidates,
    cheapest_chunks,
)
from junctor.planning.chunks import TooSmallError
from junctor.planning.compile import Problem
from junctor.planning.plan import Plan
from junctor.planning.recompute import made_again
from junctor.planning.shape import Pattern
from junctor.planning.slices import MOST_SLICES, best_slice
from junctor.runtime.threads import in_threads

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import CudaBlockDevice

    from junctor.cost.model import CostModel
    from junctor.out_of_core.gpu.devices import DeviceGroup

Rows = npt.NDArray[np.int64]

# Returns what `cut` does for the same arguments.
Search = Callable[[Problem, Algebra, MemoryLimits, "CostModel", int, int], ChunkRoute]

# Plans of the orders at hand.
AT_HAND = 6
# Largest tables that are there at once where a sweep turns: messages up and down, of both sides.
TURNING = 3
# What makes rows possible that take too long.
ADVICE = "ask for fewer targets, or give evidence on more variables"


def cut(
    problem: Problem,
    algebra: Algebra,
    limits: MemoryLimits,
    costs: CostModel,
    rows: int = 1,
    gpus: int = 1,
    kept: KeptSearch | None = None,
) -> ChunkRoute:
    """Return the plan in chunks that takes least time; raises BudgetError where none fits.

    Where stored tables do not fit, or lie in slower memory, rows may go slice by slice.
    costs: of the device.
    rows: cases to come, which bound the search.
    gpus: that share the tasks.
    kept: where a search for the same arguments leaves its choice.
    """
    search = _CutSearch(algebra, limits, costs, rows, gpus)
    known = kept.find_slices() if kept is not None else None
    if known is not None and is_slice(problem, known[0]):
        # What was kept may have been made by anybody: then the search decides.
        with suppress(BudgetError):
            return replace(search.cut(problem, known[0], kept), whole=known[1] if known[0] else 0)
    best, refused = None, None
    try:
        best = search.cut(problem, (), kept)
    except BudgetError as error:
        if isinstance(error.__cause__, TooLongError):
            # Slices take longer.
            raise
        refused = error
    best = search.sliced(problem, best, kept)
    if best is None:
        assert refused is not None
        raise refused
    if kept is not None and (best.slices or len(best.chunks.plan.steps) >= KEPT_STEPS):
        kept.keep_slices(best.slices, best.whole)
    return best


class _CutSearch:
    """A search for the plan of a row in chunks, and of its slices; arguments as of `cut`."""

    def __init__(self, algebra: Algebra, limits: MemoryLimits, costs: CostModel, rows: int, gpus: int) -> None:
        self._algebra, self._limits, self._costs, self._rows = algebra, limits, costs, rows
        self._ways: GpuSplits | CpuSplits
        self._ways = GpuSplits(limits, algebra, costs, gpus, rows)
        if not limits.on_gpu:
            self._ways = CpuSplits(limits, algebra, costs, rows)

    def cut(
        self, problem: Problem, slices: tuple[int, ...], kept: KeptSearch | None, most: float = math.inf
    ) -> ChunkRoute:
        """Return the plan that takes least time with some variables held constant; raises BudgetError.

        most: seconds that a row may take, if fewer than those of the limits.
        """
        ways, limits, taken = self._ways, self._limits, list[int]()
        count = problem.shape.entries(slices)
        seconds = min(limits.seconds, most) / count

        def splits(plan: Plan) -> Sequence[MemorySplit]:
            # For the message of a refusal: the least that any plan takes however it is cut.
            taken.append(ways.fixed(plan))
            return ways.splits(plan)

        kept = kept.of_slices(slices) if kept is not None and slices else kept
        try:
            least, step = least_entry(self._costs.figures, limits.on_gpu), self._costs.figures.planning.cutting_step
            prices = ChunkPrices(ways.least, ways.seconds, step, ways.beyond, ways.aside, seconds, ways.room, least)
            what = with_slices(problem, slices), self._algebra.dtype.itemsize, splits, prices, self._rows * count
            cheapest = cheapest_chunks(*what, kept, further=not slices)
        except TooSmallError as error:
            raise _refusal(error, limits, min(taken)) from None
        except TooLongError as error:
            if error.seconds is not None:
                raise self._too_long(count * error.seconds, "a row in chunks") from error
            raise BudgetError(f"propagation in chunks takes years ({error}); {ADVICE}") from error
        route = ways.chunking(*cheapest, kept)
        return replace(route, seconds=count * route.seconds, slices=slices)

    def sliced(self, problem: Problem, best: ChunkRoute | None, kept: KeptSearch | None) -> ChunkRoute | None:
        """Return what takes less than the best that is known, with more and more variables held constant.

        Raises BudgetError where nothing is known, and slices that may fit take too long.
        """
        plan = self._first(problem) if best is None else best.chunks.plan
        if plan is None or (best is not None and not self._pays(best, self._ways.least(plan), plan)):
            return best
        free, slices = problem.free() - problem.pattern.weighted, tuple[int, ...]()
        whole = plan.operations - made_again(plan).operations
        while True:
            held = None if plan is None else best_slice(plan, free.difference(slices))
            if held is None or not is_slice(problem, (*slices, held)):
                return best
            slices = (*slices, held)
            plan = self._first(with_slices(problem, slices))
            if plan is None:
                return best
            least = problem.shape.entries(slices) * self._ways.least(plan)
            if best is None and least > self._limits.seconds:
                raise self._too_long(least, "a row slice by slice", f"{more_of(self._limits)}, {ADVICE}")
            if least > self._limits.seconds or (best is not None and not self._pays(best, least, plan)):
                return best
            largest = max((table.entries for table in plan.tables), default=0) * self._algebra.dtype.itemsize
            if TURNING * largest > self._ways.room:
                continue
            try:
                found = self.cut(problem, slices, kept, math.inf if best is None else best.seconds)
            except BudgetError:
                continue
            if best is not None and found.seconds >= best.seconds:
                return best
            best, plan = replace(found, whole=whole), found.chunks.plan

    def _first(self, problem: Problem) -> Plan | None:
        """Return the first plan at hand; None where each takes years, or its records leave nothing to tables."""
        with suppress(TooLongError):
            for each in islice(candidates(problem, self._rows), AT_HAND):
                if self._has_room(each.plan):
                    return each.plan
        return None

    def _has_room(self, plan: Plan) -> bool:
        """Return True if records leave some memory, also to tasks: else slices are no remedy."""
        most = max(split.working for split in self._ways.splits(plan))
        return most > 0 and self._ways.fixed(plan) < self._limits.memory

    def _too_long(self, seconds: float, where: str, advice: str = ADVICE) -> BudgetError:
        """Return the error for rows that take so many seconds of a core or a GPU."""
        threads = 1 if self._limits.on_gpu else self._limits.threads
        return too_long(seconds / threads, self._limits.seconds / threads, where, advice)

    def _pays(self, best: ChunkRoute, least: float, plan: Plan) -> bool:
        step = self._costs.figures.planning.cutting_step
        return self._rows * (best.seconds - least) > step * len(plan.steps)


def with_slices(problem: Problem, slices: tuple[int, ...]) -> Problem:
    """Return the problem of a slice of a row."""
    pattern = problem.pattern
    return replace(problem, pattern=Pattern(pattern.sliced.union(slices), pattern.weighted)) if slices else problem


def is_slice(problem: Problem, variables: Sequence[int]) -> bool:
    """Return True if variables may be held constant: each free, without likelihoods, once, and few configurations."""
    free = problem.free() - problem.pattern.weighted
    is_each_free = free.issuperset(variables) and len(set(variables)) == len(variables)
    return is_each_free and problem.shape.entries(variables) <= MOST_SLICES


def least_entry(figures: Figures, on_gpu: bool) -> float:
    """Return the seconds of an entry of a clique, at the least."""
    return 1 / figures.gpu_rates.loads if on_gpu else figures.blocks.operation / 2


def cut_for_gpus(
    problem: Problem,
    algebra: Algebra,
    limits: MemoryLimits,
    costs: CostModel,
    rows: int,
    gpus: GpuGroup,
    search: Search = cut,
) -> ChunkRoute:
    """Return the plan that takes least time for rows on several GPUs; raises BudgetError where none fits.

    Rows go side by side, each on its share of the GPUs and of the memory, unless it is forecast that all GPUs of a
    machine had better share each row, or the memory is too small. Few rows go to one GPU where opening the others takes
    longer than they save. Arguments as of `cut`, but
    limits: of each machine.
    gpus: of this process, or of workers.
    search: finds the plan for some limits, as `cut` does; it may know it.
    """
    beside = -(-min(rows, gpus.count) // gpus.machines)
    share = gpus.share(limits, beside)
    try:
        route = search(problem, algebra, share, costs, rows, gpus.each // beside)
    except BudgetError:
        if beside == 1:
            raise
        beside, share = 1, gpus.share(limits, 1)
        route = search(problem, algebra, share, costs, rows, gpus.each)
    propagations = rows * route.propagations
    side = _side(route, algebra, share, costs, gpus, min(propagations, beside * gpus.machines))
    rounds = side.rounds(propagations)
    total = side.total(rounds)
    if beside > 1 and rounds == [(propagations, gpus.machines)]:
        # Another plan may be faster where all GPUs share each row; the search for it takes seconds, too.
        alone = gpus.share(limits, 1)
        least = GpuSplits(alone, algebra, costs, gpus.each).least(route.chunks.plan) / gpus.each
        gain = total - -(-rows // gpus.machines) * least
        if gain > search_seconds(route.chunks.plan):
            together = search(problem, algebra, alone, costs, rows, gpus.each)
            each, of_all = _side(together, algebra, alone, costs, gpus, gpus.machines), rows * together.propagations
            if each.total(each.rounds(of_all)) < total:
                route, side, total = together, each, each.total(each.rounds(of_all))
    if gpus.opening:
        first = _side(route, algebra, share, costs, GpuGroup(1), 1)
        if propagations * first.seconds[1] <= total + (gpus.count - 1) * gpus.opening:
            return replace(route, seconds=route.propagations * first.seconds[1], side=first)
    if side.rows == 1 and not gpus.processes:
        return route
    return replace(route, seconds=total / rows, side=side)


def search_seconds(plan: Plan) -> float:
    """Return about what the search for a plan in chunks takes, of the length of this one."""
    return shipped_figures().planning.cutting_step * len(plan.steps) * SEARCHED_CUTS


def _side(
    route: ChunkRoute, algebra: Algebra, limits: MemoryLimits, costs: CostModel, gpus: GpuGroup, rows: int
) -> SideBySide:
    """Return how GPUs answer so many rows at a time by a plan that was cut for the limits of each."""
    beside = -(-rows // gpus.machines)
    ways = {gpus.each // n: GpuSplits(limits, algebra, costs, gpus.each // n) for n in range(1, beside + 1)}
    seconds = {each: way.seconds_with(route.chunks, route.slots) for each, way in ways.items()}
    host, of_host = 0.0, costs.figures.gpu_host
    if not gpus.processes:
        host = of_host.held * ways[gpus.each // beside].host_seconds(route.chunks, route.slots)
    return SideBySide(gpus.each, rows, seconds, host, route.memory * of_host.pinned_byte, gpus.machines)


def _refusal(error: TooSmallError, limits: MemoryLimits, fixed: int) -> BudgetError:
    # Then no cutting helps, and the message must not speak of tasks.
    if fixed >= limits.memory:
        beside = limits.asked - limits.memory
        return BudgetError(
            f"propagation in chunks needs more than {exact_bytes(fixed + beside)}, of which "
            f"records and factors take {format_bytes(fixed)}, evidence and answers {format_bytes(beside)}; "
            f"allowed are {limits.asked:,} bytes; allow more memory (--memory)"
        )
    where, more = {
        "working": ("for the tables of a task", "allow a task more (--device-memory, --memory)"),
        "memory": ("for stored tables in memory", more_of(limits)),
        "disk": (f"in files in {limits.folder}", more_of(limits)),
    }[error.where]
    needed, allowed = error.needed, max(0, error.allowed)
    if limits.on_gpu and error.where == "working":
        where = "of the GPU for the tables of a task and what goes with them"
        # A task has at most the largest share of what offsets leave.
        needed = device_bytes(needed)
        allowed = limits.task if limits.task is not None else limits.memory
    return BudgetError(
        f"propagation in chunks needs at least {exact_bytes(needed)} {where}, allowed are "
        f"{exact_bytes(allowed)}; {more}, {ADVICE}"
    )


def more_of(limits: MemoryLimits) -> str:
    """Return the budgets of which more would help: stored tables lie anywhere."""
    memory = "--memory, --device-memory" if limits.on_gpu else "--memory"
    return f"allow more disk (--disk, --spill names a folder with more room) or memory ({memory})"


class SingleCaseProgram(Protocol):
    """What answers one case at a time."""

    def run(self, block: EvidenceBlock) -> BlockOutcome:
        """Propagate one case."""


def program_of(
    chunking: ChunkRoute, network: Network, algebra: Algebra, *devices: CudaBlockDevice
) -> SingleCaseProgram:
    """Return what runs a cut plan, on GPUs if there are any; raises BudgetError where these have too little memory."""
    chunks, folder = chunking.chunks, chunking.limits.folder
    if not devices:
        scratch, entry_threads = chunking.scratch, chunking.entry_threads
        return ChunkedProgram(chunks, network, algebra, scratch, folder, entry_threads=entry_threads)
    from junctor.out_of_core.gpu.run import ChunkedGpuProgram

    return ChunkedGpuProgram(chunks, network, algebra, _group_of(chunking, algebra, devices), folder)


def _group_of(chunking: ChunkRoute, algebra: Algebra, devices: Sequence[CudaBlockDevice]) -> DeviceGroup:
    """Return GPUs prepared for a cut plan; raises BudgetError where these have too little memory for it."""
    from junctor.out_of_core.gpu.devices import DeviceGroup

    try:
        most = chunking.limits.memory
        return DeviceGroup(chunking.chunks, algebra, *devices, slots=chunking.slots, most=most)
    # Other programs may have taken some of the device since the plan was cut.
    except MemoryError as error:
        raise BudgetError(f"propagation in chunks on the GPU: {error}; allow more, or use --device cpu") from error


def rounds_of(
    chunking: ChunkRoute, network: Network, algebra: Algebra, devices: Sequence[CudaBlockDevice], rows: Rows
) -> Iterator[tuple[Rows, list[SingleCaseProgram]]]:
    """Yield rows, and what answers so many of them at a time on GPUs.

    The list is to be cleared before the next ones are asked for: they need its memory. Raises BudgetError.
    """
    from junctor.out_of_core.gpu.run import ChunkedGpuProgram, bound_for_gpus

    chunks, folder, first = chunking.chunks, chunking.limits.folder, 0
    bound = bound_for_gpus(chunks, network, algebra)
    for count, abreast in chunking.rounds(len(rows)):
        each = len(devices) // abreast
        shares = [devices[n * each : (n + 1) * each] for n in range(abreast)]
        # Side by side, since most of it is pinning memory.
        groups = in_threads(lambda share, _: _group_of(chunking, algebra, share), shares, abreast)
        programs: list[SingleCaseProgram] = [
            ChunkedGpuProgram(chunks, network, algebra, group, folder, bound) for group in groups
        ]
        groups.clear()
        yield rows[first : first + count], programs
        first += count


def case_by_case(
    programs: Sequence[SingleCaseProgram], route: ChunkRoute, batch: EvidenceBatch, rows: Rows
) -> list[tuple[Rows, EvidenceBlock, BlockOutcome]]:
    """Return each of `rows` as a part of its own, with its evidence and what its propagation found.

    programs: of the route; each answers a row at a time, in a thread of its own if there are several.
    """
    sizes = route.chunks.plan.shape.cardinalities

    def propagate(part: Rows, place: int) -> tuple[Rows, EvidenceBlock, BlockOutcome]:
        block = block_of(batch, part, route.pattern, sizes)
        return part, block, programs[place].run(block)

    return in_threads(propagate, [rows[n : n + 1] for n in range(len(rows))], len(programs))


def answer_case_by_case(
    programs: Sequence[SingleCaseProgram], route: ChunkRoute, batch: EvidenceBatch, rows: Rows, answers: Answers
) -> Rows:
    """Write the answers to `rows`; returns the doubtful ones. Arguments as of `case_by_case`."""

    def answer(part: Rows, place: int) -> Rows:
        ((_, block, outcome),) = case_by_case(programs[place : place + 1], route, batch, part)
        # Rows of answers lie apart, so threads may write theirs at the same time.
        write_tables(outcome, block, part, answers)
        write(outcome, part, answers)
        return part[outcome.doubtful]

    parts = [rows[n : n + 1] for n in range(len(rows))]
    # An empty part, so that no rows give an empty result.
    return np.concatenate([rows[:0], *in_threads(answer, parts, len(programs))])
