"""Plans for what exceeds a memory: several orders are laid out and cut, and the one that takes least is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from junctor.planning.chunks import MOST_STEPS, ChunkPlan, TooSmallError, chunk_plan
from junctor.planning.compile import Problem, lay_out
from junctor.planning.elimination import moral_graph, varied_orders
from junctor.planning.plan import Plan, Reduce
from junctor.planning.shape import mask_of

# Entries of all cliques together from which on no plan is cut: years on a core, days on a GPU.
HOPELESS_ENTRIES = 1e17
# A plan is not cut where what has to wait is so many times what there is room for.
FAR_MORE = 2


@dataclass(frozen=True, slots=True)
class ChunkPrices:
    """What plans take, in seconds.

    least: of a plan, about, however it is cut; what takes longer than another one that is cut already is left out.
    seconds: of a cut plan in the room that it was cut for.
    cutting: of a step, to cut a plan for a room and to count its work.
    """

    least: Callable[[Plan], float]
    seconds: Callable[[ChunkPlan, MemorySplit], float]
    cutting: float


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """Bytes that tables of a task may take at once, and stored tables in memory and on disk."""

    working: int
    memory: int
    disk: int


class TooLongError(ValueError):
    """Nobody would wait for it."""


def operations_of(plan: Plan) -> int:
    """Return the entry operations of a case whose messages are all its own."""
    return plan.shared_operations + plan.case_operations


def cheapest_chunks(
    problem: Problem, itemsize: int, rooms: Callable[[Plan], Sequence[MemorySplit]], pricing: ChunkPrices, rows: int = 1
) -> tuple[ChunkPlan, MemorySplit]:
    """Return the cut plan that takes least time among orders of several kinds, and the room that it was cut for.

    rooms: ways to divide the memory beside what a plan takes anyway, the same number for every plan. The plan with
    fewest operations is cut for each of them, others for the best one and those next to it, if that may save as much as
    it takes. rows: cases to come, which bound the search. Raises TooSmallError, in bytes, of what misses least where
    nothing fits, and TooLongError. Deterministic.
    """
    best: tuple[float, int, ChunkPlan, MemorySplit] | None = None
    missed: list[TooSmallError] = []
    far: list[TooSmallError] = []
    for plan in sorted(candidates(problem, rows), key=operations_of):
        ways = list(enumerate(rooms(plan)))
        if best is not None:
            ways = ways[max(0, best[1] - 1) : best[1] + 2]
            # Not where it could not save what cutting takes.
            if rows * (best[0] - pricing.least(plan)) <= len(ways) * len(plan.steps) * pricing.cutting:
                continue
        waiting = waiting_entries(plan)
        for number, room in ways:
            entries = [each // itemsize for each in (room.working, room.memory, room.disk)]
            if waiting > FAR_MORE * sum(entries):
                far.append(TooSmallError("disk", waiting * itemsize, room.disk))
                continue
            try:
                chunks = chunk_plan(plan, *entries)
            except TooSmallError as error:
                missed.append(TooSmallError(error.where, error.needed * itemsize, error.allowed * itemsize))
                if error.where == "disk" and missed[-1].needed > missed[-1].allowed + room.memory:
                    break  # no other room has so much more
                continue
            seconds = pricing.seconds(chunks, room)
            if best is None or seconds < best[0]:
                best = seconds, number, chunks, room
    if best is not None:
        return best[2:]
    raise min(missed or far, key=lambda error: error.needed - error.allowed)


def waiting_entries(plan: Plan) -> int:
    """Return the most entries of messages that wait for their way back longer than a pass has steps.

    Cutting a plan can spare a few of them; it takes long, so it is not tried where they exceed all room by far.
    """
    steps = [step for step in plan.steps if isinstance(step, Reduce)]
    made = {step.out: n for n, step in enumerate(steps)}
    last = {table: n for n, step in enumerate(steps) for table in step.operands}
    change = [0] * (len(steps) + 1)
    for up, _, _ in plan.edges:
        if up in made and up in last and last[up] - made[up] > MOST_STEPS:
            change[made[up]] += plan.tables[up].entries
            change[last[up]] -= plan.tables[up].entries
    return max(accumulate(change))


def candidates(problem: Problem, rows: int) -> Iterator[Plan]:
    """Yield the plans to choose from; raises TooLongError where each would take years."""
    cardinalities = problem.shape.cardinalities
    graph = moral_graph(len(cardinalities), list(problem.remaining().values()))
    orders = varied_orders(graph, mask_of(problem.free()), cardinalities, rows)
    least = min(order.entries for order in orders)
    if least > HOPELESS_ENTRIES:
        raise TooLongError(f"{least:.1e} entries of cliques")
    for order in orders:
        if order.entries <= HOPELESS_ENTRIES:
            for lean in (True, False):
                yield lay_out(replace(problem, lean=lean), order)
