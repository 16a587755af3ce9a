"""Plans for what exceeds a memory: several orders are laid out and cut, and the one that takes least is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from junctor.planning.chunks import MOST_STEPS, ChunkPlan, Pass, TooSmallError, chunk_plan, loaded_entries
from junctor.planning.compile import Problem, lay_out
from junctor.planning.elimination import moral_graph, varied_orders
from junctor.planning.plan import Plan, Reduce
from junctor.planning.shape import mask_of

# Entries of all cliques together from which on no plan is cut: years on a core, days on a GPU.
HOPELESS_ENTRIES = 1e17
# A plan is not cut where what has to wait is so many times what there is room for.
FAR_MORE = 2


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of an entry operation, of a byte to or from the working memory, to or from the disk, and of a step.

    step: what a step takes in each task beside its operations. at_once: whether copies in, operations and copies out
    of different tasks of a pass overlap.
    """

    operation: float
    byte: float
    disk_byte: float
    step: float = 0.0
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that tables of a task may take at once, and stored tables in memory and on disk."""

    working: int
    memory: int
    disk: int


class TooLongError(ValueError):
    """Nobody would wait for it."""


def operations_of(plan: Plan) -> int:
    """Return the entry operations of a case whose messages are all its own."""
    return plan.shared_operations + plan.case_operations


def seconds_of(chunks: ChunkPlan, itemsize: int, speed: Speed) -> float:
    """Return about what a case takes."""
    plan = chunks.plan
    spilled = 2 * sum(plan.tables[table].entries for table in chunks.on_disk) * itemsize
    return spilled * speed.disk_byte + sum(_pass_seconds(plan, each, itemsize, speed) for each in chunks.passes)


def _pass_seconds(plan: Plan, each: Pass, itemsize: int, speed: Speed) -> float:
    tasks = plan.shape.entries(each.fixed)
    stored = sum(plan.tables[table].entries for table in each.stores)
    parts = (
        loaded_entries(plan, each) * itemsize * speed.byte,
        stored * itemsize * speed.byte,
        sum(plan.work(step) for step in each.steps) * speed.operation,
    )
    # The first task comes in and the last one goes out alone.
    together = max(parts) + (sum(parts) - max(parts)) / tasks if speed.at_once else sum(parts)
    return together + tasks * len(each.steps) * speed.step


def cheapest_chunks(
    problem: Problem, itemsize: int, rooms: Callable[[Plan], Iterable[Room]], speed: Speed, rows: int = 1
) -> tuple[ChunkPlan, Room]:
    """Return the cut plan that takes least time among orders of several kinds, and the room that it was cut for.

    rooms: ways to divide the memory beside what a plan takes anyway. rows: cases to come, which bound the search.
    Raises TooSmallError, in bytes, of what misses least where nothing fits, and TooLongError. Deterministic.
    """
    best: tuple[float, ChunkPlan, Room] | None = None
    missed: list[TooSmallError] = []
    far: list[TooSmallError] = []
    for plan in candidates(problem, rows):
        if best is not None and operations_of(plan) * speed.operation >= best[0]:
            continue
        waiting = waiting_entries(plan)
        for room in rooms(plan):
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
            seconds = seconds_of(chunks, itemsize, speed)
            if best is None or seconds < best[0]:
                best = seconds, chunks, room
    if best is not None:
        return best[1:]
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
