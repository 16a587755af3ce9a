"""Plans for what exceeds a memory: several orders are laid out and cut, and the one that takes least is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

from junctor.planning.chunks import ChunkPlan, TooSmallError, chunk_plan
from junctor.planning.compile import Problem, lay_out
from junctor.planning.elimination import moral_graph, varied_orders
from junctor.planning.shape import mask_of


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds that an entry operation takes, and each byte that is moved to or from the working memory or the disk."""

    operation: float
    byte: float
    disk_byte: float


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that a task may hold at once, and that stored tables may take in memory and on disk."""

    working: int
    memory: int
    disk: int


def seconds_of(chunks: ChunkPlan, itemsize: int, speed: Speed) -> float:
    """Return about what a case takes."""
    plan = chunks.plan
    operations = plan.shared_operations + plan.case_operations
    moved = (chunks.loaded + chunks.stored) * itemsize
    spilled = 2 * sum(plan.tables[table].entries for table in chunks.on_disk) * itemsize
    return operations * speed.operation + moved * speed.byte + spilled * speed.disk_byte


def cheapest_chunks(problem: Problem, itemsize: int, room: Room, speed: Speed, rows: int = 1) -> ChunkPlan:
    """Return the cut plan that takes least time among orders of several kinds.

    rows: cases to come, which bound the search. Raises TooSmallError of the plan that needs least, in bytes, where none
    fits. Deterministic.
    """
    cardinalities = problem.shape.cardinalities
    graph = moral_graph(len(cardinalities), list(problem.remaining().values()))
    found: list[tuple[float, ChunkPlan]] = []
    refused: list[TooSmallError] = []
    for order in varied_orders(graph, mask_of(problem.free()), cardinalities, rows):
        for lean in (True, False):
            plan = lay_out(replace(problem, lean=lean), order)
            try:
                entries = (each // itemsize for each in (room.working, room.memory, room.disk))
                chunks = chunk_plan(plan, *entries)
                found.append((seconds_of(chunks, itemsize, speed), chunks))
            except TooSmallError as error:
                refused.append(TooSmallError(error.args[0], error.needed * itemsize))
    if not found:
        raise min(refused, key=lambda error: error.needed)
    return min(found, key=lambda each: each[0])[1]
