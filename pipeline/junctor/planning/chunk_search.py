"""Plans for what exceeds a memory: several orders are laid out and cut, and the one that takes least is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple, Protocol, TypeVar

from junctor.planning.chunks import (
    MOST_STEPS,
    ChunkPlan,
    PassRecord,
    TooSmallError,
    alive_entries,
    chunk_plan,
    records_of,
)
from junctor.planning.compile import Problem, lay_out
from junctor.planning.elimination import EliminationOrder, Sizes, order_of, varied_orders
from junctor.planning.plan import Plan, Reduce

# Entries of all cliques together from which on no plan is cut: years on a core, days on a GPU.
HOPELESS_ENTRIES = 1e17
# A plan is not cut where tables that have to wait take so many times the memory.
FAR_MORE = 2
# Steps of all cuts of a search from which on its choice is kept: a tenth of a second.
KEPT_STEPS = 1000


@dataclass(frozen=True, slots=True)
class ChunkPrices:
    """What plans take, in seconds.

    least: of a plan, about, however it is cut; what takes longer than another one that is cut already is left out.
    seconds: of a cut plan in the memory split that it was cut for.
    cutting: of a step, to cut a plan for a split and to count its work.
    most: that a plan may take.
    room: bytes that tables may take anywhere.
    entry: of an entry of a clique, at the least.
    """

    least: Callable[[Plan], float]
    seconds: Callable[[ChunkPlan, MemorySplit], float]
    cutting: float
    most: float = math.inf
    room: float = math.inf
    entry: float = 0.0

    @property
    def most_entries(self) -> float:
        """Entries of all cliques together from which on no plan is laid out."""
        return min(HOPELESS_ENTRIES, self.most / self.entry if self.entry else math.inf)


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """Bytes that tables of a task may take at once, and stored tables in memory and on disk."""

    working: int
    memory: int
    disk: int


Split = TypeVar("Split", bound=MemorySplit)


class ChunkChoice(NamedTuple):
    """What a search chooses; the cut plan follows from it.

    variables: in the order of their elimination.
    criterion: that the order was found by.
    lean: as of the problem.
    split: number of the memory split.
    passes: of the cut plan, which take as long to find as all else.
    """

    variables: tuple[int, ...]
    criterion: str
    lean: bool
    split: int
    passes: tuple[PassRecord, ...]


class KeptChoice(Protocol):
    """Where another process finds what the search for one problem chose."""

    def find(self, members: frozenset[int]) -> ChunkChoice | None:
        """Return the choice for the elimination of `members`, None where there is none."""

    def keep(self, choice: ChunkChoice) -> None:
        """Keep what a search chose."""


class Candidate(NamedTuple):
    """A plan to choose from, and the order and leanness that it is laid out by."""

    plan: Plan
    order: EliminationOrder
    lean: bool


class TooLongError(ValueError):
    """It takes longer than allowed; `seconds`: at the least, None for years of which nobody counts more."""

    def __init__(self, message: str, seconds: float | None = None) -> None:
        super().__init__(message)
        self.seconds = seconds


def cheapest_chunks(
    problem: Problem,
    itemsize: int,
    splits: Callable[[Plan], Sequence[Split]],
    pricing: ChunkPrices,
    rows: int = 1,
    kept: KeptChoice | None = None,
) -> tuple[ChunkPlan, Split]:
    """Return the cut plan that takes least time among orders of several kinds, and the memory split that it is cut for.

    The plan that takes least at best is cut for each split, others for the best one, those next to it, and on from
    there while that gains, if that may save as much as it takes. Deterministic.
    problem: what to plan.
    itemsize: bytes of an entry.
    splits: ways to divide the memory that a plan leaves, the same number for every plan.
    pricing: of plans.
    rows: cases to come, which bound the search.
    kept: what an earlier search for the same arguments chose, or where this one leaves it.
    Raises TooSmallError, in bytes, of what misses least where nothing fits, and TooLongError.
    """
    choice = kept.find(problem.free()) if kept is not None else None
    if choice is not None:
        # What was kept may have been made by anybody: then the search decides.
        with suppress(ValueError, IndexError):
            return _chosen(problem, itemsize, splits, choice)
    best: tuple[float, int, ChunkPlan, Split, Candidate] | None = None
    missed: list[TooSmallError] = []
    late: list[float] = []
    far: list[TooSmallError] = []
    farther: list[tuple[int, Plan]] = []
    cut_steps = 0

    def within_reach(candidate: Candidate) -> bool:
        # Before it is priced, which takes as long as to lay it out.
        waiting = waiting_entries(candidate.plan) * itemsize
        if waiting > FAR_MORE * pricing.room:
            farther.append((waiting, candidate.plan))
        return waiting <= FAR_MORE * pricing.room

    # The first one that fits bounds the time of all others.
    for least, candidate in _priced(_candidates(problem, rows, pricing, within_reach), pricing.least):
        if least > pricing.most:
            late.append(least)
            continue
        plan = candidate.plan
        ways = splits(plan)
        numbers = range(len(ways))
        if best is not None:
            numbers = numbers[max(0, best[1] - 1) : best[1] + 2]
            # Not where it could not save what cutting takes.
            if rows * (best[0] - least) <= len(numbers) * len(plan.steps) * pricing.cutting:
                continue
        waiting = waiting_entries(plan)
        tried: dict[int, float] = {}
        for number in _to_try(numbers, tried, len(ways)):
            split, tried[number] = ways[number], math.inf
            entries = _entries(split, itemsize)
            if waiting > FAR_MORE * sum(entries):
                far.append(_far(waiting * itemsize, split))
                continue
            cut_steps += len(plan.steps)
            try:
                chunks = chunk_plan(plan, *entries)
            except TooSmallError as error:
                missed.append(_in_bytes(error, itemsize, split))
                if error.where == "disk" and (error.needed - error.allowed) * itemsize > split.memory:
                    break  # no other split has so much more
                continue
            seconds = tried[number] = pricing.seconds(chunks, split)
            if best is None or seconds < best[0]:
                best = seconds, number, chunks, split, candidate
    if best is not None:
        _, number, chunks, split, (_, order, lean) = best
        if kept is not None and cut_steps >= KEPT_STEPS:
            kept.keep(ChunkChoice(order.variables, order.criterion, lean, number, records_of(chunks)))
        return chunks, split
    if late and not (missed or far):
        raise TooLongError("longer than allowed", min(late))
    if not (missed or far):
        needed, plan = min(farther, key=lambda each: each[0])
        raise _far(needed, splits(plan)[0])
    # The user learns what is missing in the best case.
    raise min(missed or far, key=lambda error: error.needed - error.allowed)


def _far(needed: int, split: MemorySplit) -> TooSmallError:
    """Return the error for a plan whose tables that have to wait take so many bytes."""
    return TooSmallError("disk", needed, split.disk) if split.disk else TooSmallError("memory", needed, split.memory)


def _to_try(numbers: Sequence[int], tried: Mapping[int, float], count: int) -> Iterator[int]:
    """Yield numbers of splits, then those next to the fastest one while that has any left.

    tried: what the caller found for those that it has.
    count: of splits.
    """
    while numbers:
        yield from numbers
        fastest = min(tried, key=tried.__getitem__)
        numbers = [n for n in (fastest - 1, fastest + 1) if 0 <= n < count and n not in tried]


def _chosen(
    problem: Problem, itemsize: int, splits: Callable[[Plan], Sequence[Split]], choice: ChunkChoice
) -> tuple[ChunkPlan, Split]:
    """Return what a search chose; raises ValueError or IndexError where that cannot be."""
    order = order_of(problem.graph(), choice.variables, Sizes(problem.shape.cardinalities), choice.criterion)
    plan = lay_out(replace(problem, lean=choice.lean), order)
    split = splits(plan)[choice.split]
    return chunk_plan(plan, *_entries(split, itemsize), recorded=choice.passes), split


def _entries(split: MemorySplit, itemsize: int) -> tuple[int, int, int]:
    return split.working // itemsize, split.memory // itemsize, split.disk // itemsize


def _in_bytes(error: TooSmallError, itemsize: int, split: MemorySplit) -> TooSmallError:
    """Return an error of a cut in bytes; where there are no files, what would lie in some is missing in the memory."""
    needed = error.needed * itemsize
    if error.where == "disk" and not split.disk:
        return TooSmallError("memory", split.memory + needed, split.memory)
    return TooSmallError(error.where, needed, error.allowed * itemsize)


def waiting_entries(plan: Plan) -> int:
    """Return the most entries of messages that wait for their way back longer than a pass has steps.

    Cutting a plan can spare a few of them; it takes long, so it is not tried where they exceed all memory by far.
    """
    steps = [step for step in plan.steps if isinstance(step, Reduce)]
    made = {step.out: n for n, step in enumerate(steps)}
    last = {table: n for n, step in enumerate(steps) for table in step.operands}
    # Until the step that reads it, where it does not wait any more.
    lives = {up: (made[up], last[up] - 1) for up, _, _ in plan.edges if up in made and up in last}
    waiting = {up: life for up, life in lives.items() if life[1] + 1 - life[0] > MOST_STEPS}
    return max(alive_entries(plan, waiting, len(steps)))


def _priced(candidates: Iterator[list[Candidate]], least: Callable[[Plan], float]) -> Iterator[tuple[float, Candidate]]:
    """Yield plans with what they take at best, of each list the fastest first."""
    for some in candidates:
        yield from sorted(((least(candidate.plan), candidate) for candidate in some), key=lambda each: each[0])


def candidates(problem: Problem, rows: int) -> Iterator[Candidate]:
    """Yield the plans to choose from; raises TooLongError where each would take years."""
    prices = ChunkPrices(lambda _: 0.0, lambda *_: 0.0, 0.0)
    return chain.from_iterable(_candidates(problem, rows, prices, lambda _: True))


def _candidates(
    problem: Problem, rows: int, pricing: ChunkPrices, taken: Callable[[Candidate], bool]
) -> Iterator[list[Candidate]]:
    """Yield those that are taken in lists, those last that need a search."""
    shape, entries = problem.shape, math.inf
    for orders in varied_orders(problem.graph(), problem.free(), shape.cardinalities, rows, problem.graph(sliced=True)):
        entries = min([entries, *(order.entries for order in orders)])
        some: list[Candidate] = []
        for order in orders:
            for lean in (True, False) if order.entries <= pricing.most_entries else ():
                candidate = Candidate(lay_out(replace(problem, lean=lean), order), order, lean)
                # More messages wait in the plan that is not lean.
                if not taken(candidate):
                    break
                some.append(candidate)
        yield some
    if entries > HOPELESS_ENTRIES:
        raise TooLongError(f"{entries:.1e} entries of cliques")
    if entries > pricing.most_entries:
        raise TooLongError("longer than allowed", entries * pricing.entry)
