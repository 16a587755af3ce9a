"""Plans for what exceeds a memory: several orders are laid out and cut, and the one that takes least is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Generic, NamedTuple, Protocol, TypeVar

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
from junctor.planning.recompute import Drop, Waiting, with_drops

# Entries of all cliques together from which on no plan is cut: years on a core, days on a GPU.
HOPELESS_ENTRIES = 1e17
# A plan is not cut where tables that have to wait take so many times the memory.
FAR_MORE = 2
# Orders and memory splits that a search for a plan cuts, about.
SEARCHED_CUTS = 10
# Times that a plan is cut with more of its messages made again, how many these are, and how many times the operations
# that may take: beyond, slices take less.
MOST_SHRUNK, MOST_DROPS, MOST_AGAIN = 3, 40, 2.0
# Orders at hand are left out from so many times the entries of the best one on.
FAR_SLOWER = 8.0
# Steps of all cuts of a search from which on its choice is kept: a tenth of a second.
KEPT_STEPS = 1000


@dataclass(frozen=True, slots=True)
class ChunkPrices:
    """What plans take, in seconds.

    least: of a plan, about, however it is cut; what takes longer than another one that is cut already is left out.
    seconds: of a cut plan in the memory split that it was cut for.
    cutting: of a step, to cut a plan for a split and to count its work.
    beyond: bytes by which the stored tables of a cut plan exceed the memory, as they lie; other tables have to go.
    aside: bytes of its stored tables that lie in the slower of two memories, or in files.
    most: that a plan may take.
    room: bytes that tables may take anywhere.
    entry: of an entry of a clique, at the least.
    """

    least: Callable[[Plan], float]
    seconds: Callable[[ChunkPlan, MemorySplit], float]
    cutting: float
    beyond: Callable[[ChunkPlan, MemorySplit], int] = lambda *_: 0
    aside: Callable[[ChunkPlan, MemorySplit], int] = lambda *_: 0
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
    drops: messages that are made again.
    """

    variables: tuple[int, ...]
    criterion: str
    lean: bool
    split: int
    passes: tuple[PassRecord, ...]
    drops: tuple[Drop, ...] = ()


class KeptChoice(Protocol):
    """Where another process finds what the search for one problem chose."""

    def find(self, members: frozenset[int]) -> ChunkChoice | None:
        """Return the choice for the elimination of `members`, None where there is none."""

    def keep(self, choice: ChunkChoice) -> None:
        """Keep what a search chose."""


class Candidate(NamedTuple):
    """A plan to choose from, the order and leanness that it is laid out by, and its messages that are made again."""

    plan: Plan
    order: EliminationOrder
    lean: bool
    drops: tuple[Drop, ...] = ()


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
    further: bool = True,
) -> tuple[ChunkPlan, Split]:
    """Return the cut plan that takes least time among orders of several kinds, and the memory split that it is cut for.

    The plan that takes least at best is cut for each split, others for the best one, those next to it, and on from
    there while that gains, all if that may save as much as it takes. Where tables do not fit, or lie in slower memory,
    messages are made again in place of waiting, more and more of them. Deterministic.
    problem: what to plan.
    itemsize: bytes of an entry.
    splits: ways to divide the memory that a plan leaves, at least one, the likeliest first.
    pricing: of plans.
    rows: cases to come, which bound the search.
    kept: what an earlier search for the same arguments chose, or where this one leaves it.
    further: whether orders are searched for beside those at hand, and all of these are cut.
    Raises TooSmallError, in bytes, of what misses least where nothing fits, and TooLongError.
    """
    choice = kept.find(problem.free()) if kept is not None else None
    if choice is not None:
        # What was kept may have been made by anybody: then the search decides.
        with suppress(ValueError, IndexError):
            return _chosen(problem, itemsize, splits, choice, pricing)
    search = _Search(itemsize, splits, pricing, rows)
    # The first one that fits bounds the time of all others.
    plans = _candidates(problem, rows, pricing, search.is_within_reach, search.pays, further)
    for least, candidate in _priced(plans, pricing.least):
        search.look_at(least, candidate)
    if search.best is None and search.farther:
        _, candidate = min(search.farther, key=lambda each: each[0])
        search.look_at(pricing.least(candidate.plan), candidate)
    if search.best is None:
        raise search.refusal()
    _, number, chunks, split, (_, order, lean, drops) = search.best
    if kept is not None and search.cut_steps >= KEPT_STEPS:
        kept.keep(ChunkChoice(order.variables, order.criterion, lean, number, records_of(chunks), drops))
    return chunks, split


class _Search(Generic[Split]):
    """A search, and what it has found; arguments as of `cheapest_chunks`.

    best: seconds, number of the split, cut plan, split and plan of what takes least.
    farther: entries that wait, and the plan, of those that are not cut as they are.
    cut_steps: steps of all cuts.
    """

    def __init__(
        self, itemsize: int, splits: Callable[[Plan], Sequence[Split]], pricing: ChunkPrices, rows: int
    ) -> None:
        self._itemsize, self._splits, self._pricing, self._rows = itemsize, splits, pricing, rows
        self.best: tuple[float, int, ChunkPlan, Split, Candidate] | None = None
        self.farther: list[tuple[int, Candidate]] = []
        self.cut_steps = 0
        self._missed: list[TooSmallError] = []
        self._late: list[float] = []

    def is_within_reach(self, candidate: Candidate) -> bool:
        """Return True if a plan may be cut as it is; told before it is priced, which takes as long as to lay it out."""
        waiting = waiting_entries(candidate.plan) * self._itemsize
        if waiting > FAR_MORE * self._pricing.room:
            self.farther.append((waiting, candidate))
        return waiting <= FAR_MORE * self._pricing.room

    def pays(self, least: float, cuts: float) -> bool:
        """Return True if so many seconds of cuts may save what they take, of plans that take `least` at best."""
        return self.best is None or self._rows * (self.best[0] - least) > cuts

    def look_at(self, least: float, candidate: Candidate) -> None:
        """Cut a plan, and those in which more and more of its messages are made again, as long as that may pay."""
        found: tuple[float, Candidate, set[int]] | None = None
        for _ in range(MOST_SHRUNK):
            if least > self._pricing.most:
                self._late.append(least)
                break
            if not self._may_pay(least, candidate):
                break
            missing, fits, tried = self._cut(candidate)
            found = (least, candidate, tried) if fits or found is None else found
            if not missing or not self._may_pay(least, candidate):
                break
            shrunk = _with_fewer(candidate, -(-missing // self._itemsize), whole=not fits)
            if shrunk is None:
                break
            candidate, least = shrunk, self._pricing.least(shrunk.plan)
        if found is not None:
            self._cut_for_others(*found)

    def _may_pay(self, least: float, candidate: Candidate) -> bool:
        return self.pays(least, len(candidate.plan.steps) * self._pricing.cutting)

    def _cut(self, candidate: Candidate) -> tuple[int, bool, set[int]]:
        """Cut a plan for the split that is the best so far, or the first one whose tasks are large enough.

        Returns the bytes that are missing for stored tables, or lie in slower memory; whether it fits; splits tried.
        """
        ways, tried = self._splits(candidate.plan), set[int]()
        # Plans may have fewer ways than others.
        first = 0 if self.best is None else min(self.best[1], len(ways) - 1)
        for number in range(first, len(ways)):
            found = self._cut_for(candidate, number, ways[number])
            tried.add(number)
            if isinstance(found, ChunkPlan):
                return self._pricing.aside(found, ways[number]), True, tried
            if found.where != "working":
                return found.needed - found.allowed, False, tried
        return 0, False, tried

    def _cut_for_others(self, least: float, candidate: Candidate, tried: set[int]) -> None:
        """Cut a plan for other splits: those next to the best one, on from there while that gains.

        Where nothing fits, for those that leave more to stored tables.
        """
        ways = self._splits(candidate.plan)
        most = max(ways[number].memory + ways[number].disk for number in tried)
        while self._may_pay(least, candidate):
            if self.best is None:
                near = [n for n, split in enumerate(ways) if split.memory + split.disk > most]
            else:
                near = [self.best[1] - 1, self.best[1] + 1]
            number = next((n for n in near if 0 <= n < len(ways) and n not in tried), None)
            if number is None:
                return
            tried.add(number)
            self._cut_for(candidate, number, ways[number])

    def _cut_for(self, candidate: Candidate, number: int, split: Split) -> ChunkPlan | TooSmallError:
        """Return a plan cut for a split, or why it does not fit."""
        plan, pricing = candidate.plan, self._pricing
        waiting = waiting_entries(plan) * self._itemsize
        if waiting > FAR_MORE * (split.working + split.memory + split.disk):
            self._missed.append(_far(waiting, split))
            return self._missed[-1]
        self.cut_steps += len(plan.steps)
        try:
            chunks = _stored(chunk_plan(plan, *_entries(split, self._itemsize)), split, self._itemsize, pricing)
        except TooSmallError as error:
            self._missed.append(_in_bytes(error, self._itemsize, split))
            return self._missed[-1]
        seconds = pricing.seconds(chunks, split)
        if self.best is None or seconds < self.best[0]:
            self.best = seconds, number, chunks, split, candidate
        return chunks

    def refusal(self) -> TooSmallError | TooLongError:
        """Return why nothing was found: what is missing in the best case, or what takes too long."""
        if self._late and not self._missed:
            return TooLongError("longer than allowed", min(self._late))
        # Other ways to divide the memory leave more to a task.
        missed = [error for error in self._missed if error.where != "working"] or self._missed
        return min(missed, key=lambda error: error.needed - error.allowed)


def _with_fewer(candidate: Candidate, entries: int, whole: bool) -> Candidate | None:
    """Return a plan in which so many fewer entries wait, because messages are made again.

    whole: whether fewer are of no use.
    """
    waiting, drops, found = Waiting(candidate.plan), list(candidate.drops), candidate
    first = lowest = max(waiting.profile())
    most = MOST_AGAIN * candidate.plan.operations
    while lowest > first - entries and len(drops) < MOST_DROPS and (drop := waiting.best_drop()) is not None:
        waiting = Waiting(waiting.without(drop))
        drops.append(drop)
        if waiting.plan.operations > most:
            break
        # What is made again may wait as well, until it is dropped, too.
        if (peak := max(waiting.profile())) < lowest:
            lowest, found = peak, candidate._replace(plan=waiting.plan, drops=tuple(drops))
    gained = first - lowest
    return None if not gained or (whole and gained < entries) else found


def _stored(chunks: ChunkPlan, split: MemorySplit, itemsize: int, pricing: ChunkPrices) -> ChunkPlan:
    """Return a cut plan with more of its tables on disk, until the others lie in the memory; raises TooSmallError."""
    records, memory = None, split.memory
    while beyond := pricing.beyond(chunks, split):
        memory = min(memory, chunks.peak(on_disk=False) * itemsize) - beyond
        if memory <= 0 or not split.disk:
            raise TooSmallError("memory", (split.memory + beyond) // itemsize, split.memory // itemsize)
        records = records or records_of(chunks)
        entries = _entries(replace(split, memory=memory), itemsize)
        chunks = chunk_plan(chunks.plan, *entries, recorded=records)
    return chunks


def _far(needed: int, split: MemorySplit) -> TooSmallError:
    """Return the error for a plan whose tables that have to wait take so many bytes."""
    return TooSmallError("disk", needed, split.disk) if split.disk else TooSmallError("memory", needed, split.memory)


def _chosen(
    problem: Problem,
    itemsize: int,
    splits: Callable[[Plan], Sequence[Split]],
    choice: ChunkChoice,
    pricing: ChunkPrices,
) -> tuple[ChunkPlan, Split]:
    """Return what a search chose; raises ValueError or IndexError where that cannot be."""
    order = order_of(problem.graph(), choice.variables, Sizes(problem.shape.cardinalities), choice.criterion)
    plan = with_drops(lay_out(replace(problem, lean=choice.lean), order), choice.drops)
    split = splits(plan)[choice.split]
    chunks = chunk_plan(plan, *_entries(split, itemsize), recorded=choice.passes)
    return _stored(chunks, split, itemsize, pricing), split


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
    return chain.from_iterable(_candidates(problem, rows, prices, lambda _: True, lambda *_: True, True))


def _candidates(
    problem: Problem,
    rows: int,
    pricing: ChunkPrices,
    taken: Callable[[Candidate], bool],
    pays: Callable[[float, float], bool],
    further: bool,
) -> Iterator[list[Candidate]]:
    """Yield those that are taken in lists, those last that need a search, if that pays."""
    shape, entries, steps = problem.shape, math.inf, 0

    def worth(least: float) -> bool:
        # All that comes of a search has to be cut, too.
        return further and rows * least * pricing.entry > SEARCHED_CUTS * len(shape.scopes) * pricing.cutting

    whole = problem.graph(sliced=True)
    for orders in varied_orders(problem.graph(), problem.free(), shape.cardinalities, rows, whole, worth):
        entries = min([entries, *(order.entries for order in orders)])
        some: list[Candidate] = []
        for order in orders if further else [each for each in orders if each.entries <= FAR_SLOWER * entries]:
            for lean in (True, False) if order.entries <= pricing.most_entries else ():
                candidate = Candidate(lay_out(replace(problem, lean=lean), order), order, lean)
                # More messages wait in the plan that is not lean.
                if not taken(candidate):
                    break
                some.append(candidate)
                steps = max(steps, len(candidate.plan.steps))
        yield some
        if not (further and pays(0.0, SEARCHED_CUTS * steps * pricing.cutting)):
            break
    if entries > HOPELESS_ENTRIES:
        raise TooLongError(f"{entries:.1e} entries of cliques")
    if entries > pricing.most_entries:
        raise TooLongError("longer than allowed", entries * pricing.entry)
