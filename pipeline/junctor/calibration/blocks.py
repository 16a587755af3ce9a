"""Calibration of blocks: plans of several networks, patterns and numbers of cases, with their features."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu.blocks import FIELDS, BlockDevice
from junctor_kernels.tables.reference import DOUBLE, LOG, SINGLE, Algebra

from junctor.backends.evidence_blocks import block_of
from junctor.backends.gpu import GpuProgram
from junctor.backends.gpu_items import Schedule, items_of
from junctor.backends.lowering import LoweredPlan
from junctor.backends.number_formats import LADDERS
from junctor.backends.numpy import Program
from junctor.backends.plan_memory import ProgramCache
from junctor.backends.register_tiles import Shapes
from junctor.backends.row_trees import RowEngine
from junctor.calibration import harness
from junctor.cost.dataset import Measured, MeasuredDevice
from junctor.cost.features.gpu_stages import FEW_WORK, MANY_WORK, CaseParallel, EntryParallel, LaunchTuner
from junctor.cost.features.plans import plan_work
from junctor.cost.features.registry import BACKENDS
from junctor.cost.model import CostModel
from junctor.evidence.batch import EvidenceBatch
from junctor.generate import hmm, sample
from junctor.model.answers import Answers, posteriors_in
from junctor.model.network import Network
from junctor.planning.budget import Budget
from junctor.planning.compile import compile_plan
from junctor.planning.levels import LaunchLevels
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern, shape_of
from junctor.strategies.number_ladder import answer_in
from junctor.strategies.plan_rows import on_cores

Counts = Mapping[str, float]

# Share of the variables that is observed, whether cut out, and the seed of the choice.
PATTERNS = ((0.2, True, 1), (0.4, True, 2), (0.1, True, 3), (0.2, False, 4))
# Bytes that a measurement may take, and rows that plans are made for: as many as are worth a short search.
MEMORY, PLANNED_ROWS = 4 << 30, 64
# Cases that are measured on a CPU: several blocks, and less than one; their entry operations at the most.
CPU_ROWS, CPU_OPERATIONS = (4096, 48), 2e8
# Cases of the second measurement in NumPy, after one of a single case, and the most entry operations without blocks.
PLAIN_ROWS, PLAIN_OPERATIONS = 64, 1e8
# Passes over all measurements of a CPU, and the repeats of each: of equal ones the fewest seconds count.
CPU_PASSES = 4
REPEATS = harness.Repeats(3, 100, 0.15)
# Cases of blocks on a GPU, few and many, and the entry operations of a block at the most, unless it is a single case.
FEW_ROWS, MANY_ROWS, FEW_OPERATIONS, MANY_OPERATIONS = (1, 8), (128, 1024, 4096, 65536), 2.5e8, 1e11
GPU_REPEATS = 4
# Launch parameters that are measured; of blocks with more cases only the first, because they hardly matter there.
FEW_TRIED = tuple(EntryParallel(*tried) for tried in ((8, 1), (32, 1), (128, 1), (512, 1), (8, 4), (64, 2)))
MANY_TRIED = tuple(CaseParallel(*tried) for tried in ((16, 128), (8, 64), (32, 128), (64, 256), (16, 1024)))
SETTING_ROWS = 1024
# Plans with more operations a case are left out: a plan takes long to lower.
MOST_OPERATIONS = 3e7


@dataclass(frozen=True, eq=False)
class CalibrationCase:
    """A plan for evidence of one pattern, and rows of it."""

    name: str
    label: str
    network: Network
    plan: Plan
    batch: EvidenceBatch


def case_of(
    name: str, network: Network, observed: float, cut: bool, seed: int, rows: int = max(CPU_ROWS)
) -> CalibrationCase:
    """Return a plan where a share of the variables is observed, cut out or entering as likelihoods, and samples."""
    count = len(network.variables)
    states = _states(network, rows, seed)
    # Evidence is sampled: no row of a Bayesian network is impossible.
    chosen = np.random.default_rng(seed).choice(count, max(1, int(count * observed)), replace=False)
    batch = EvidenceBatch(rows, {int(v): np.ascontiguousarray(states[:, v]) for v in sorted(chosen)})
    seen, nothing = frozenset(batch.states), frozenset[int]()
    pattern = Pattern(seen, nothing) if cut else Pattern(nothing, seen)
    plan = compile_plan(shape_of(network), pattern, None, False, PLANNED_ROWS)
    return CalibrationCase(name, f"{'cut' if cut else 'entering'} {observed:g} seed {seed}", network, plan, batch)


def _states(network: Network, rows: int, seed: int) -> npt.NDArray[np.int32]:
    if network.kind == "bayes":
        return sample(network, rows, seed)
    sizes: npt.NDArray[np.int64] = np.array(network.cardinalities)
    return np.floor(np.random.default_rng(seed).random((rows, len(sizes))) * sizes).astype(np.int32)


def built_in() -> Iterator[tuple[str, Network]]:
    """Yield networks of several kinds, made here."""
    sizes = (
        *((4, 6, 2, 2), (8, 10, 2, 2), (12, 20, 2, 2), (30, 12, 3, 2), (6, 8, (2, 6), 2)),
        *((10, 10, (3, 9), 2), (40, 20, (2, 5), 1), (8, 10, 4, 3), (60, 8, (5, 12), 1)),
    )
    yield from harness.layered_networks(sizes, zeros=(0.0, 0.2, 0.1, 0.3, 0.4, 0.5, 0.3, 0.6, 0.5))
    yield from harness.grids(((8, 8, 2), (6, 20, 3), (12, 12, 2)), seeded=False)
    rng = np.random.default_rng(1)
    start, transition, emission = (rng.dirichlet(np.ones(size), rows) for rows, size in ((1, 12), (12, 12), (12, 20)))
    yield "hidden Markov model, 300 steps", hmm(300, start[0], transition, emission)


def cases_of(networks: Iterator[tuple[str, Network]]) -> Iterator[CalibrationCase]:
    """Yield the plans that are measured, one of each network before the next; none that takes too long."""
    pairs = list(networks)
    # Patterns outside: where the time is over early, all networks are measured with some.
    for observed, cut, seed in PATTERNS:
        for name, network in pairs:
            case = case_of(name, network, observed, cut, seed)
            if case.plan.case_operations <= MOST_OPERATIONS:
                yield case


def calibrate_blocks(device: BlockDevice | None, seconds: float) -> Iterator[tuple[str, list[Measured]]]:
    """Yield measurements of built-in networks on a GPU, or on this machine's CPU; none begins after so many seconds.

    On a CPU they come again while there is time, because what else runs there comes and goes.
    """
    for case in harness.within(seconds, _passes(1 if device else CPU_PASSES)):
        yield f"{case.name}, {case.label}", measure_gpu(case, device) if device else measure_cpu(case)


def _passes(number: int) -> Iterator[CalibrationCase]:
    """Yield all plans `number` times; a plan is compiled before its first measurement."""
    cases = []
    for case in cases_of(built_in()):
        cases.append(case)
        yield case
    for _ in range(number - 1):
        yield from cases


def measure_cpu(case: CalibrationCase) -> list[Measured]:
    """Measure a plan on this machine's CPU, one thread: blocks in compiled code, and rows too few for them."""
    return [*_measure_blocks(case), *_measure_without_blocks(case)]


def _measure_blocks(case: CalibrationCase) -> list[Measured]:
    measured = []
    for precision in ("double", "single"):
        for rows in CPU_ROWS:
            # Whole blocks of 64 cases, as many as the operations allow.
            rows = max(1, min(rows, int(CPU_OPERATIONS / max(1, case.plan.case_operations)) // 64 * 64 or 64))
            prepared = ProgramCache(case.network, case.plan, LADDERS[precision])
            prepared.use(prepared.memory.fit(Budget(MEMORY), MEMORY, rows, 10**9))
            compiled = prepared.compiled()
            if compiled is None:
                continue
            seconds = answering_seconds(prepared, case, rows)
            plan = plan_work(case.plan, len(case.plan.steps), compiled.cases, rows)
            label = f"{case.label}, {precision}"
            measured.append(_measured("cpu", case, label, rows, seconds, compiled.work(rows), plan))
    return measured


def _measure_without_blocks(case: CalibrationCase) -> list[Measured]:
    """Measure contractions over entries for one case, and NumPy for one case and a block."""
    measured = []
    for precision in ("double", "log"):
        for kind, rows in (("entries", 1), ("plain", 1), ("plain", PLAIN_ROWS)):
            if rows * case.plan.case_operations > PLAIN_OPERATIONS:
                continue
            prepared = ProgramCache(case.network, case.plan, LADDERS[precision])
            sizes = prepared.memory.fit(Budget(MEMORY), MEMORY, rows, 1)
            prepared.use(replace(sizes, lanes=0, entry_threads=int(kind == "entries")))
            seconds = answering_seconds(prepared, case, rows)
            plan = plan_work(case.plan, len(case.plan.steps), rows, rows)
            measured.append(_measured(f"{kind}-{precision}", case, case.label, rows, seconds, plan, plan))
    return measured


def answering_seconds(
    prepared: ProgramCache,
    case: CalibrationCase,
    rows: int,
    repeats: harness.Repeats = REPEATS,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the fewest seconds of answering so many rows of a case."""
    algebra = prepared.ladder[0]
    answers, numbers = unwritten(case.network, rows, algebra, None), np.arange(rows)
    runs = partial(on_cores, prepared)
    work = case.batch, numbers, answers, runs
    return harness.fewest_seconds(lambda: answer_in(prepared, algebra, *work), repeats, clock)


def unwritten(network: Network, rows: int, algebra: Algebra, device: BlockDevice | None) -> Answers:
    """Return answers to all variables, in memory that a device writes to, where there is one."""
    targets, sizes = tuple(range(len(network.variables))), network.cardinalities
    size = rows * sum(sizes) * algebra.dtype.itemsize
    memory = (np.zeros(size, np.uint8) if device is None else device.host(size)).view(algebra.dtype)
    posteriors = posteriors_in(memory, targets, sizes, rows)
    return Answers(targets, np.zeros(rows, dtype=np.int8), np.zeros(rows), posteriors, memory=memory)


def _measured(
    backend: str, case: CalibrationCase, label: str, rows: int, seconds: float, work: Counts, plan: Counts
) -> Measured:
    engine = RowEngine(case.network, range(len(case.network.variables)), MEMORY)
    operations, _, tables = engine.work(case.plan.pattern.sliced, case.plan.pattern.weighted)
    return harness.measurement(backend, case.name, label, rows, seconds, work, plan, (operations, tables))


class KeptProgram(GpuProgram):
    """A program for a block of few cases or many whose launch parameters can be changed.

    lowered: parts of the same program that are lowered already, by their tiles.
    """

    def __init__(self, program: Program, rows: int, device: BlockDevice, few: bool, lowered: dict[Shapes, LoweredPlan]):
        # Before the base class, which lowers and schedules.
        self._few = few
        self._known = lowered
        self._launching = fixed(FEW_TRIED[0], MANY_TRIED[0])
        super().__init__(program, rows, device, MEMORY, CostModel(MeasuredDevice(device.name), {}))

    def _is_few(self, rows: int, stages: int, chunk: int) -> bool:
        return self._few

    def _lower(self, places: tuple[dict[int, int], int]) -> LoweredPlan:
        shapes = self.tile_shapes()
        if shapes not in self._known:
            self._known[shapes] = super()._lower(places)
        return self._known[shapes]

    def _schedule(self, plan: LoweredPlan, stages: LaunchLevels) -> Schedule:
        self._all = plan, stages
        return self.scheduled(self._launching)

    def scheduled(self, tuner: LaunchTuner) -> Schedule:
        """Return the work of a block with some launch parameters."""
        cases, chunks = (0, self.cases // self.chunk) if self.many else (self.cases, 0)
        return items_of(*self._all, cases, chunks, tuner)

    def block_seconds(self, schedule: Schedule) -> float:
        """Return the seconds of a block with some launch parameters, on the evidence of the last block."""
        device, place = self.device, self._places[0]
        items = device.put(schedule.items)
        # All but the items stays: the same tables, evidence and results.
        record = place._record.copy()
        record.view(np.int64)[FIELDS.index("items")] = device.address(items)
        run = device.put(record)
        work = place.work._replace(run=run, stages=schedule.stages)
        return device.seconds(device.replay(work), GPU_REPEATS)


def fixed(few: EntryParallel, many: CaseParallel) -> LaunchTuner:
    """Return launch parameters that are the same for all stages."""
    return LaunchTuner(np.zeros(len(FEW_WORK)), np.zeros(len(MANY_WORK)), (few,), (many,))


def measure_gpu(
    case: CalibrationCase, device: BlockDevice, algebras: Sequence[Algebra] = (SINGLE, DOUBLE, LOG)
) -> list[Measured]:
    """Measure a plan on a GPU: kernels of a block, for few cases and many, with several launch parameters."""
    measured: list[Measured] = []
    for algebra in algebras:
        # Bound and lowered once for all numbers of cases: only launch parameters differ.
        program = Program(case.plan, case.network, algebra)
        lowered: dict[Shapes, LoweredPlan] = {}
        for few, sizes in ((True, FEW_ROWS), (False, MANY_ROWS)):
            most = (FEW_OPERATIONS if few else MANY_OPERATIONS) / max(1, case.plan.case_operations)
            for rows in (rows for rows in sizes if rows == 1 or rows <= most):
                # What does not fit a small device, or its kernels, is not what it will be asked for.
                with suppress(MemoryError, OverflowError):
                    measured += measure_block(case, KeptProgram(program, rows, device, few, lowered), algebra)
    return measured


def _tried(program: KeptProgram) -> list[LaunchTuner]:
    if not program.many:
        return [fixed(few, MANY_TRIED[0]) for few in FEW_TRIED]
    # Blocks of many cases fill a GPU with any of them.
    settings = MANY_TRIED if program.cases <= SETTING_ROWS else MANY_TRIED[:1]
    return [fixed(FEW_TRIED[0], many) for many in settings]


def bring(case: CalibrationCase, program: KeptProgram, algebra: Algebra) -> None:
    """Bring the evidence of a block to the device, and answer it."""
    rows = np.arange(program.cases)
    block = block_of(case.batch, rows % case.batch.rows, case.plan.pattern, case.network.cardinalities)
    program.answer(block, rows, unwritten(case.network, program.cases, algebra, program.device))


def measure_block(case: CalibrationCase, program: KeptProgram, algebra: Algebra) -> list[Measured]:
    """Measure a block with several launch parameters."""
    bring(case, program, algebra)
    name = f"{'many' if program.many else 'few'}-{algebra.name}"
    measured = []
    for tuner in _tried(program):
        schedule = program.scheduled(tuner)
        seconds = program.block_seconds(schedule)
        plan = plan_work(case.plan, len(program.stages), program.cases, program.cases)
        setting = tuner.many_settings[0] if program.many else tuner.few_settings[0]
        label = f"{case.label}, {setting}"
        work = dict(zip(BACKENDS[name].work, schedule.work.tolist(), strict=True))
        measured.append(_measured(name, case, label, program.cases, seconds, work, plan))
    return measured
