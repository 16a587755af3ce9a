"""Measure how long cases in chunks take: several networks and orders, cut for tasks of several sizes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from junctor_kernels import reference
from junctor_kernels.reference import DOUBLE, LOG, SINGLE, Algebra

from junctor.chunk_rooms import backend_of
from junctor.chunk_work import Arithmetic, chunk_work
from junctor.chunked import ChunkedProgram
from junctor.engine import shape_of
from junctor.generate import grid, layered
from junctor.measurements import Measured
from junctor.model import Network
from junctor.planning.chunks import ChunkPlan, TooSmallError, chunk_plan
from junctor.planning.compile import Problem
from junctor.planning.oversize import candidates, operations_of
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern
from junctor.propagation import Block

ENDLESS = 1 << 60
# Bytes of a task, and the share of the stored tables that is in memory.
CUTS = ((1 << 14, 1.0), (1 << 18, 1.0), (1 << 20, 0.3), (1 << 22, 1.0), (1 << 24, 1.0))
# What a measurement may take: entry operations, and contractions of all tasks.
MOST_OPERATIONS, MOST_CONTRACTIONS = 1e9, 20_000
# The same in NumPy, and in log space, where an operation takes longer.
PLAIN_SHARE, LOG_SHARE = 0.3, 0.2
# A measurement is the fewest seconds of so many runs, or of those that begin within some time.
MOST_REPEATS, REPEAT_SECONDS = 5, 0.5
# Orders of a network that are cut.
ORDERS = 2


@dataclass(frozen=True, eq=False)
class ChunkCase:
    """A plan without evidence in chunks. label: what it is cut for, for people."""

    name: str
    label: str
    network: Network
    algebra: Algebra
    chunks: ChunkPlan


def built_in() -> Iterator[tuple[str, Network]]:
    """Yield networks whose plans are cut, made here."""
    for rows, columns, size in ((12, 12, 2), (8, 8, 4), (16, 16, 2), (7, 20, 3), (5, 9, 8), (9, 60, 2)):
        yield f"grid {rows} x {columns}, {size} states", grid(rows, columns, size, seed=rows)
    for layers, width, states, parents in ((10, 12, 2, 3), (12, 7, (2, 6), 2), (20, 9, 3, 2)):
        name = f"layered {layers} x {width}, {states} states, {parents} parents"
        yield name, layered(layers=layers, width=width, states=states, parents=parents, seed=layers)


def plans_of(network: Network) -> list[Plan]:
    """Return plans of orders of different kinds, those with fewest operations that are not too long."""
    found: dict[str, Plan] = {}
    for plan in candidates(Problem(shape_of(network), Pattern(frozenset(), frozenset())), 1):
        other = found.get(plan.criterion)
        if other is None or operations_of(plan) < operations_of(other):
            found[plan.criterion] = plan
    short = [plan for plan in found.values() if operations_of(plan) <= MOST_OPERATIONS]
    return sorted(short, key=operations_of)[:ORDERS]


def cases_of(
    networks: Iterator[tuple[str, Network]], algebras: Sequence[Algebra] = (DOUBLE, SINGLE, LOG)
) -> Iterator[ChunkCase]:
    """Yield cut plans, none twice, and none that takes too long."""
    for name, network in networks:
        for plan, algebra in product(plans_of(network), algebras):
            known = set[object]()
            for size, share in CUTS:
                chunks = cut_to(plan, size // algebra.dtype.itemsize, share)
                key = chunks and (chunks.tasks, chunks.working, len(chunks.on_disk))
                if chunks is None or key in known or contractions_of(chunks) > MOST_CONTRACTIONS:
                    continue
                known.add(key)
                yield ChunkCase(
                    name, f"{plan.criterion}, tasks of {size:,}, {share} in memory", network, algebra, chunks
                )


def cut_to(plan: Plan, working: int, share: float) -> ChunkPlan | None:
    """Return a plan cut for tasks of so many entries, so much of its stored tables in memory; or None."""
    try:
        chunks = chunk_plan(plan, working, ENDLESS, 0)
        if share < 1:
            chunks = chunk_plan(plan, working, int(share * chunks.peak(on_disk=False)), ENDLESS)
    except TooSmallError:
        return None
    return chunks


def contractions_of(chunks: ChunkPlan) -> int:
    """Return the contractions of all tasks."""
    return sum(chunks.plan.shape.entries(each.fixed) * len(each.steps) for each in chunks.passes)


def measure_on_cpu(case: ChunkCase) -> list[Measured]:
    """Measure a case on one thread of this machine's CPU: contractions in compiled code, and in NumPy."""
    operations = operations_of(case.chunks.plan) / (LOG_SHARE if case.algebra is LOG else 1)
    found = []
    for compiled in (True, False):
        if operations > MOST_OPERATIONS * (1 if compiled else PLAIN_SHARE):
            continue
        how = Arithmetic(case.algebra.dtype.itemsize, reference.SCRATCH_ENTRIES, compiled)
        with tempfile.TemporaryDirectory() as folder:
            program = ChunkedProgram(
                case.chunks, case.network, case.algebra, how.scratch, Path(folder), entry_threads=int(compiled)
            )
            found.append(measured(case, backend_of(case.algebra, compiled), chunk_work(case.chunks, how), program))
    return found


def measured(case: ChunkCase, backend: str, work: Sequence[float], program: ChunkedProgram) -> Measured:
    """Run a case several times and return the fewest seconds, beside its counts."""
    plan = case.chunks.plan
    operations, steps = float(operations_of(plan)), float(sum(len(each.steps) for each in case.chunks.passes))
    entries, answers = float(sum(table.entries for table in plan.tables)), float(sum(plan.shape.cardinalities))
    seconds = fewest_seconds(program)
    alone = 1.0, steps, operations, entries, answers
    return Measured(backend, case.name, case.label, 1, seconds, tuple(work), alone, (operations, steps))


def fewest_seconds(program: ChunkedProgram) -> float:
    """Return the fewest seconds of several runs, of this process alone: what else runs here does not count."""
    program.run(Block(1, {}, {}))
    times: list[float] = []
    started = time.process_time()
    while not times or (len(times) < MOST_REPEATS and time.process_time() - started < REPEAT_SECONDS):
        begun = time.process_time()
        program.run(Block(1, {}, {}))
        times.append(time.process_time() - begun)
    return min(times)
