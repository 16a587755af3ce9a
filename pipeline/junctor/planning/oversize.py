"""Plans for what exceeds a memory: several orders are laid out and cut, and the one that takes least is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from junctor.planning.chunks import ChunkPlan, TooSmallError, chunk_plan
from junctor.planning.compile import Problem, lay_out
from junctor.planning.elimination import moral_graph, varied_orders
from junctor.planning.plan import Plan
from junctor.planning.shape import mask_of

# Entries of all cliques together from which on no plan is cut: years on a core, days on a GPU.
HOPELESS_ENTRIES = 1e17


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of an entry operation, of a byte to or from the working memory, to or from the disk, and of a step.

    step: what a step takes in each task beside its operations.
    """

    operation: float
    byte: float
    disk_byte: float
    step: float = 0.0


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
    moved = (chunks.loaded + chunks.stored) * itemsize
    spilled = 2 * sum(plan.tables[table].entries for table in chunks.on_disk) * itemsize
    steps = sum(plan.shape.entries(each.fixed) * len(each.steps) for each in chunks.passes)
    arithmetic = operations_of(plan) * speed.operation + steps * speed.step
    return arithmetic + moved * speed.byte + spilled * speed.disk_byte


def cheapest_chunks(
    problem: Problem, itemsize: int, rooms: Callable[[Plan], Iterable[Room]], speed: Speed, rows: int = 1
) -> tuple[ChunkPlan, Room]:
    """Return the cut plan that takes least time among orders of several kinds, and the room that it was cut for.

    rooms: ways to divide the memory beside what a plan takes anyway. rows: cases to come, which bound the search.
    Raises TooSmallError, in bytes, of what misses least where nothing fits, and TooLongError. Deterministic.
    """
    best: tuple[float, ChunkPlan, Room] | None = None
    missed: TooSmallError | None = None
    for plan in candidates(problem, rows):
        for room in rooms(plan):
            try:
                chunks = chunk_plan(plan, *(each // itemsize for each in (room.working, room.memory, room.disk)))
            except TooSmallError as error:
                least = TooSmallError(error.where, error.needed * itemsize, error.allowed * itemsize)
                if missed is None or least.needed - least.allowed < missed.needed - missed.allowed:
                    missed = least
                if error.where == "disk" and least.needed > least.allowed + room.memory:
                    break  # no other room has so much more
                continue
            seconds = seconds_of(chunks, itemsize, speed)
            if best is None or seconds < best[0]:
                best = seconds, chunks, room
    if best is not None:
        return best[1:]
    assert missed is not None, "a plan is cut for one room at least"
    raise missed


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
