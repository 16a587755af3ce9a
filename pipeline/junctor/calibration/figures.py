"""Calibration of figures that choices weigh: rows in NumPy and with trees, planning, loading.

Each measurement is short, on a network made here; seconds are those of this process, whatever else the machine does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from junctor_kernels.tables.reference import DOUBLE

from junctor.backends.cpu import CompiledProgram
from junctor.backends.number_formats import LADDERS
from junctor.backends.numpy import Program
from junctor.backends.plan_memory import ProgramCache
from junctor.backends.row_trees import RowEngine, TreeRows
from junctor.backends.row_work import RowWork, lanes_and_blocks
from junctor.calibration import harness
from junctor.calibration.blocks import MEMORY, CalibrationCase, answering_seconds, case_of
from junctor.cost.dataset import Measured
from junctor.cost.features.registry import BACKENDS
from junctor.cost.figures import RECORDS
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, Rows
from junctor.evidence.compiled_cells import evidence_cells
from junctor.formats import write_network
from junctor.generate import chain, dynamic, layered, random_network
from junctor.model.answers import table_bytes, unanswered
from junctor.model.network import Network
from junctor.model.query import Query
from junctor.planning.budget import Budget
from junctor.planning.chunks import chunk_plan
from junctor.planning.compile import compile_plan
from junctor.planning.shape import shape_of
from junctor.runtime.cache import VARIABLE

# Share of the variables that is observed, and the seed of the choice.
OBSERVED = ((0.05, 1), (0.4, 2))
# Rows of a batch, and entry operations of a measurement at the most.
ROWS, MOST_OPERATIONS = (1, 32, 1024), 5e7
# Runs of a measurement, of which the fewest seconds count; of what takes long, and of processes.
REPEATS, FEW = harness.Repeats(3, 30, 0.05), harness.Repeats(2, 3, 0.1)
# Rows with a tree each.
MOST_ROWS = 256
# Networks of which a backend has measurements, at the least.
LEAST_NETWORKS = 5
# Plans with more steps take long to make.
MOST_STEPS = 3000
# Entries of a task that plans are cut for.
TASK_ENTRIES = 1 << 12
# A process that has answered a row without compiled code, and prints the seconds of its processor until it has answered
# one with some; strategies that load it.
LOAD = """
import sys, time
import junctor
from junctor.generate import chain
for strategy in ("joint-table", sys.argv[1]):
    started = time.process_time()
    junctor.posteriors(chain(3), [{}], strategy=strategy)
print(time.process_time() - started)
"""
LOADING = {"trees": "row-trees", "blocks": "cpu-blocks"}
# One that runs from files to files.
RUN = "from junctor.cli import main; main()"
PROCESSES = harness.Repeats(2, 2, 0.0)

# What was measured: a plan with evidence, or the name of something else.
Case = CalibrationCase | str


def built_in() -> Iterator[tuple[str, Network]]:
    """Yield networks of several kinds and sizes, made here."""
    yield "random 30", random_network(30, seed=1)
    yield "random 80, zeros", random_network(80, states=(2, 4), zeros=0.3, seed=2)
    yield "chain 300", chain(300, seed=3)
    yield "layered 5 x 7", layered(5, 7, states=(3, 4), parents=3, seed=4)
    yield "dynamic 30 x 4", dynamic(30, 4, seed=5)
    yield "random 400", random_network(400, states=(2, 3), seed=6)
    yield "random 14, many states", random_network(14, states=(10, 14), window=4, seed=7)
    yield "random 50, zeros, many states", random_network(50, states=(5, 9), zeros=0.2, seed=8)


def calibrate_figures(seconds: float) -> Iterator[tuple[str, list[Measured]]]:
    """Yield measurements of this machine's CPU, one thread; none begins after so many seconds.

    Kinds take turns, so that each has some where the time ends early.
    """
    for name, measure in harness.within(seconds, _steps()):
        yield name, measure()


def with_enough(rows: Sequence[Measured]) -> list[Measured]:
    """Return measurements without those of figures for which the time was over early: few networks fix no features."""
    networks = {backend: {row.network for row in rows if row.backend == backend} for backend in RECORDS}
    # Processes are of no network.
    few = {name for name, found in networks.items() if name != "loading" and len(found) < LEAST_NETWORKS}
    return [row for row in rows if row.backend not in few]


def _steps() -> Iterator[tuple[str, Callable[[], list[Measured]]]]:
    yield "loading", measure_loading
    networks = list(built_in())
    for observed, seed in OBSERVED:
        for name, network in networks:
            case = case_of(name, network, observed, True, seed, max(ROWS))
            for measure in (measure_numpy, measure_trees, measure_shared, measure_planning):
                yield f"{name}, {observed:g} observed, {measure.__name__[8:]}", partial(measure, case)


def measurement(backend: str, case: Case, label: str, rows: int, seconds: float, **counts: float) -> Measured:
    """Return a row of the dataset of a backend of figures; counts: by feature, those that are not 0."""
    work = dict.fromkeys(BACKENDS[backend].work, 0.0) | counts
    plan = dict.fromkeys(BACKENDS[backend].plan, 0.0)
    name, pattern = (case, "") if isinstance(case, str) else (case.name, f"{case.label}, ")
    return harness.measurement(backend, name, pattern + label, rows, seconds, work, plan, (0.0, 0.0))


def measure_numpy(case: CalibrationCase) -> list[Measured]:
    """Measure a plan in NumPy for several numbers of rows."""
    measured, plan = [], case.plan
    entries = sum(table.entries for table in plan.tables if table.per_case)
    for rows in ROWS:
        if rows * plan.case_operations > MOST_OPERATIONS or len(plan.steps) > MOST_STEPS:
            continue
        prepared = ProgramCache(case.network, plan, LADDERS["double"])
        prepared.use(replace(prepared.memory.fit(Budget(MEMORY), MEMORY, rows, 1), lanes=0, entry_threads=0))
        seconds = answering_seconds(prepared, case, rows, REPEATS, time.process_time)
        blocks = -(-rows // prepared.sizes.cases(8))
        counts = {"operation": rows * float(plan.case_operations), "entry": rows * float(entries)}
        step = float(blocks * len(plan.steps))
        measured.append(measurement("numpy", case, "answered", rows, seconds, **counts, step=step))
    return measured


def measure_trees(case: CalibrationCase) -> list[Measured]:
    """Measure rows with a tree of their own: asked for, answered, and explained."""
    measured = []
    for explains in (False, True):
        engine = RowEngine(case.network, range(len(case.network.variables)), MEMORY, explains=explains)
        rows, works = _works(engine, case.batch)
        operations, entries, tables = (float(sum(part)) for part in zip(*works, strict=True))
        if not explains:
            # Only one: more than one row at a time are not planned without Python in between.
            seconds = _seconds(partial(engine.work, case.batch.states))
            plan = engine.work(case.batch.states).tables
            measured.append(measurement("trees", case, "asked", 1, seconds, asked=1.0, plan=plan))
        seconds = _answered(engine, case, TreeRows(rows), explains)
        counts = {"maximum" if explains else "operation": operations, "entry": entries, "table": tables, "plan": tables}
        start = tables * (engine.above_zero < 1)
        label = "explained" if explains else "answered"
        measured.append(measurement("trees", case, label, len(rows), seconds, **counts, start=start))
    return measured


def _works(engine: RowEngine, batch: EvidenceBatch) -> tuple[Rows, list[RowWork]]:
    """Return the rows of a batch that are measured, and the work of each."""
    (first,) = engine.works_alone(evidence_cells(batch), np.arange(1))
    most = min(batch.rows, MOST_ROWS, MOST_OPERATIONS / 4 / (first.operations + 1))
    rows = np.arange(max(1, int(most)))
    return rows, engine.works_alone(evidence_cells(batch), rows)


def _answered(engine: RowEngine, case: CalibrationCase, rows: TreeRows, explains: bool = False) -> float:
    query, sizes, count = Query(kind="mpe") if explains else Query(), case.network.cardinalities, case.batch.rows
    targets = tuple(range(len(sizes)))
    memory = np.empty(table_bytes(query, targets, sizes, count), dtype=np.uint8)
    answers = unanswered(query, targets, sizes, count, {}, memory)
    return _seconds(partial(engine.answer_groups, case.batch, [rows], answers))


def _seconds(run: Callable[[], object], repeats: harness.Repeats = REPEATS) -> float:
    # Once without a clock: kernels are loaded, and memory is taken, at the first run.
    run()
    return harness.fewest_seconds(run, repeats, time.process_time)


def measure_shared(case: CalibrationCase) -> list[Measured]:
    """Measure rows that share a tree, and rows on one that differ in what they observe."""
    engine = RowEngine(case.network, range(len(case.network.variables)), MEMORY)
    measured = []
    for mixed in (False, True):
        batch = _with_gaps(case.batch) if mixed else case.batch
        shares = {v: float(np.mean(states != UNOBSERVED)) for v, states in batch.states.items()}
        work = engine.work((), (), shares, batch.rows)
        for count in (64, batch.rows):
            if count * work.operations > 4 * MOST_OPERATIONS:
                continue
            lanes, blocks = (float(part) for part in lanes_and_blocks(work, count, mixed))
            operations, kind = work.operations * engine.above_zero, "mixed_" if mixed else ""
            counts = {f"{kind}operation": lanes * operations, f"{kind}entry": lanes * work.entries}
            counts |= {"start": blocks * operations, "table": blocks * work.tables}
            counts["row"] = count * work.tables * mixed
            if np.isfinite(blocks):
                seconds = _answered(engine, replace(case, batch=batch), TreeRows(np.arange(count), shared=True))
                measured.append(measurement("shared trees", case, f"mixed {mixed}", count, seconds, **counts))
    return measured


def _with_gaps(batch: EvidenceBatch) -> EvidenceBatch:
    """Return evidence of which a third of the cells is missing."""
    gaps = np.random.default_rng(1).random((len(batch.states), batch.rows)) < 1 / 3
    states = zip(gaps, batch.states.items(), strict=True)
    return EvidenceBatch(batch.rows, {v: np.where(gap, UNOBSERVED, column) for gap, (v, column) in states})


@contextmanager
def _nothing_kept() -> Iterator[None]:
    """Context manager: what is planned and lowered is made anew."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "off"
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def measure_planning(case: CalibrationCase) -> list[Measured]:
    """Measure what a plan takes before its first row: in NumPy, for compiled blocks, cut into chunks; of a tree."""
    network, plan, steps = case.network, case.plan, float(len(case.plan.steps))
    if steps > MOST_STEPS:
        return []
    engine = RowEngine(network, range(len(network.variables)), MEMORY)
    work = engine.work(plan.pattern.sliced)
    measure = partial(measurement, "planning", case)

    def planned() -> Program:
        return Program(compile_plan(shape_of(network), plan.pattern, None, False, 1), network, DOUBLE)

    with _nothing_kept():
        program = planned()
        seconds = _seconds(planned, FEW)
        lowering = _seconds(lambda: CompiledProgram(program, 64), FEW)
    free = len(network.variables) - len(plan.pattern.sliced)
    cutting = _seconds(lambda: chunk_plan(plan, TASK_ENTRIES, 1 << 60, 0), FEW)
    return [
        measure("numpy", 1, seconds, variable=free),
        measure("lowering", 1, lowering, lowering_step=steps),
        measure("compiled", 1, seconds + lowering, table=work.tables, entry=work.entries),
        measure("cut", 1, cutting, cutting_step=steps),
    ]


def measure_loading() -> list[Measured]:
    """Measure what fresh processes load: for a run from files, and for an answer with trees or blocks."""
    with TemporaryDirectory() as folder:
        write_network(chain(3), Path(folder) / "chain.bif")
        (Path(folder) / "rows.csv").write_text("x_0\n0\n")
        run = partial(_process, folder, RUN, "run", "chain.bif", "rows.csv", "-o", "out", "--overwrite")
        found = {"process": harness.fewest_seconds(run, PROCESSES, _children)}
        for code, strategy in LOADING.items():
            found[code] = min(float(_process(folder, LOAD, strategy)) for _ in range(PROCESSES.least))
    return [measurement("loading", code, "", 1, seconds, **{code: 1.0}) for code, seconds in found.items()]


def _process(folder: str, *arguments: str) -> str:
    """Return what a process prints; arguments: its code, and what that is given."""
    command = [sys.executable, "-c", *arguments]
    return subprocess.run(command, check=True, cwd=folder, capture_output=True, text=True).stdout


def _children() -> float:
    """Return the seconds of all processes that this one has waited for."""
    times = os.times()
    return times.children_user + times.children_system
