"""Calibration of cases in chunks: several networks and orders, cut for tasks of several sizes."""

from __future__ import annotations

import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

from junctor_kernels.gpu.blocks import BlockDevice, CudaBlockDevice
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import DOUBLE, LOG, SINGLE, Algebra

from junctor.backends.numpy import EvidenceBlock
from junctor.calibration import harness
from junctor.cost.dataset import Measured
from junctor.cost.features.chunked_cpu import Arithmetic, chunk_work
from junctor.cost.features.chunked_gpu import gpu_chunk_work
from junctor.cost.features.plans import plan_counts
from junctor.model.network import Network
from junctor.out_of_core.gpu.devices import DeviceGroup
from junctor.out_of_core.gpu.run import ChunkedGpuProgram
from junctor.out_of_core.memory_splits import OFFSET_BYTES, backend_of
from junctor.out_of_core.program import ChunkedProgram
from junctor.out_of_core.programs import SingleCaseProgram
from junctor.placement.placement import slot_bytes
from junctor.planning.chunk_search import candidates
from junctor.planning.chunks import ChunkPlan, TooSmallError, chunk_plan
from junctor.planning.compile import Problem
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern, shape_of

# Bytes of memory or disk that no plan takes.
ENDLESS = 1 << 60
# Bytes of a task, and the share of the stored tables that is in memory; on a GPU all of them are.
CUTS = ((1 << 14, 1.0), (1 << 18, 1.0), (1 << 20, 0.3), (1 << 22, 1.0), (1 << 24, 1.0))
GPU_CUTS = ((1 << 20, 1.0), (1 << 24, 1.0), (1 << 27, 1.0), (1 << 29, 1.0))
# Groups of tasks in flight on a GPU, and the share of the stored tables that the remaining memory holds.
GPU_SETTINGS = ((3, 0.0), (1, 0.0), (2, 0.4), (3, 1.5), (6, 0.0), (1, 1.5))
# What a measurement may take: entry operations, and contractions of all tasks.
MOST_OPERATIONS, MOST_CONTRACTIONS = 1e9, 20_000
GPU_OPERATIONS = 3e10
# The same in NumPy, and in log space, where an operation takes longer.
PLAIN_SHARE, LOG_SHARE = 0.3, 0.2
REPEATS = harness.Repeats(1, 5, 0.5)
# Orders of a network that are cut.
ORDERS = 2
# A file system in memory, on Linux.
IN_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, eq=False)
class ChunkCase:
    """A plan without evidence in chunks; label: for people, size of its tasks and share of its tables in memory."""

    name: str
    label: str
    network: Network
    algebra: Algebra
    chunks: ChunkPlan


def built_in() -> Iterator[tuple[str, Network]]:
    """Yield networks whose plans are cut, made here."""
    yield from harness.grids(((12, 12, 2), (8, 8, 4), (16, 16, 2), (7, 20, 3), (5, 9, 8), (9, 60, 2)))
    yield from harness.layered_networks(((10, 12, 2, 3), (12, 7, (2, 6), 2), (20, 9, 3, 2)))


def large() -> Iterator[tuple[str, Network]]:
    """Yield networks that take a GPU some time."""
    yield from harness.grids(((20, 20, 2), (22, 22, 2), (12, 30, 3), (14, 14, 3)))


def calibrate_chunks(device: BlockDevice | None, seconds: float) -> Iterator[tuple[str, list[Measured]]]:
    """Yield measurements of plans in chunks on a GPU, or on this machine's CPU; none begins after so many seconds."""
    pairs, cases_of = (built_in(), cpu_cases) if device is None else (large(), gpu_cases)
    networks = [cases_of([pair]) for pair in pairs]
    # In turns: where the time ends early, every network has been measured.
    for case in harness.within(seconds, _in_turns(networks)):
        rows = measure_on_gpu(case, device) if isinstance(device, CudaBlockDevice) else measure_on_cpu(case)
        yield f"{case.name}, {case.label}", rows


def _in_turns(networks: Iterable[Iterator[ChunkCase]]) -> Iterator[ChunkCase]:
    """Yield a case of every network before the next one of any."""
    waiting = deque(networks)
    while waiting:
        cases = waiting.popleft()
        for case in islice(cases, 1):
            yield case
            waiting.append(cases)


def plans_of(network: Network, most: float) -> list[Plan]:
    """Return plans of orders of different kinds, those with fewest of at most so many operations."""
    best: dict[str, Plan] = {}
    for plan, *_ in candidates(Problem(shape_of(network), Pattern(frozenset(), frozenset())), 1):
        # One plan for each criterion, so that the orders differ in kind.
        other = best.get(plan.criterion)
        if other is None or plan.operations < other.operations:
            best[plan.criterion] = plan
    short = [plan for plan in best.values() if plan.operations <= most]
    return sorted(short, key=lambda plan: plan.operations)[:ORDERS]


def cpu_cases(networks: Iterable[tuple[str, Network]]) -> Iterator[ChunkCase]:
    """Yield cut plans for a CPU, none twice, and none that takes too long."""
    return _cases(networks, (DOUBLE, SINGLE, LOG), MOST_OPERATIONS, CUTS)


def gpu_cases(networks: Iterable[tuple[str, Network]]) -> Iterator[ChunkCase]:
    """Yield cut plans for a GPU; as `cpu_cases`."""
    return _cases(networks, (SINGLE, DOUBLE), GPU_OPERATIONS, GPU_CUTS)


def _cases(
    networks: Iterable[tuple[str, Network]], algebras: Sequence[Algebra], most: float, cuts: Sequence[tuple[int, float]]
) -> Iterator[ChunkCase]:
    for name, network in networks:
        for plan, algebra in product(plans_of(network, most), algebras):
            seen = set[object]()
            for size, share in cuts:
                chunks = cut_to(plan, size // algebra.dtype.itemsize, share)
                # Cuts of a small plan for large tasks are all the same.
                key = chunks and (chunks.tasks, chunks.working, len(chunks.on_disk))
                if chunks is not None and key not in seen and contractions_of(chunks) <= MOST_CONTRACTIONS:
                    seen.add(key)
                    label = f"{plan.criterion}, tasks of {size:,}, {share} in memory"
                    yield ChunkCase(name, label, network, algebra, chunks)


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
    return sum(chunks.plan.shape.entries(pass_.fixed) * len(pass_.steps) for pass_ in chunks.passes)


def measure_on_cpu(case: ChunkCase) -> list[Measured]:
    """Measure a case on one thread of this machine's CPU: contractions in compiled code, and in NumPy.

    Files are in memory where there is a folder for that: what a disk adds depends on what else it does.
    """
    operations = case.chunks.plan.operations / (LOG_SHARE if case.algebra is LOG else 1)
    rows = []
    for compiled in (True, False):
        if operations > MOST_OPERATIONS * (1 if compiled else PLAIN_SHARE):
            continue
        how = Arithmetic(case.algebra.dtype.itemsize, reference.SCRATCH_ENTRIES, compiled)
        with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
            program = ChunkedProgram(
                case.chunks, case.network, case.algebra, how.scratch, Path(folder), entry_threads=int(compiled)
            )
            rows.append(measured(case, backend_of(case.algebra, compiled), chunk_work(case.chunks, how), program))
    return rows


def measure_on_gpu(case: ChunkCase, device: CudaBlockDevice) -> list[Measured]:
    """Measure a case with several numbers of slots and with some or all of the stored tables on a GPU."""
    itemsize, whole, rows = case.algebra.dtype.itemsize, device.room, []
    slot, stored = slot_bytes(case.chunks, itemsize), case.chunks.peak(on_disk=False) * itemsize
    for slots, share in GPU_SETTINGS:
        room = int(share * stored)
        # The program takes what the device says that it has: so one device stands for smaller ones.
        device.room = OFFSET_BYTES + slots * slot + room
        if device.room <= whole:
            gpu = DeviceGroup(case.chunks, case.algebra, device, slots=slots)
            program = ChunkedGpuProgram(case.chunks, case.network, case.algebra, gpu)
            work = gpu_chunk_work(case.chunks, itemsize, slots, room)
            setting = f"{slots} slots, {share} of the tables beside them"
            rows.append(measured(case, f"chunks-gpu-{case.algebra.name}", work, program, time.perf_counter, setting))
    device.room = whole
    return rows


def measured(
    case: ChunkCase,
    backend: str,
    work: Mapping[str, float],
    program: SingleCaseProgram,
    clock: Callable[[], float] = time.process_time,
    setting: str = "",
) -> Measured:
    """Return a measurement of several runs of a case.

    case: what is measured.
    backend: its name in the registry.
    work: its features.
    program: what is run.
    clock: of this process on a CPU, of the wall on a GPU.
    setting: of the device, for people.
    """
    plan = case.chunks.plan
    operations, steps = float(plan.operations), float(sum(len(pass_.steps) for pass_ in case.chunks.passes))
    entries, answers = sum(table.entries for table in plan.tables), sum(plan.shape.cardinalities)
    counts = plan_counts(1, steps, operations, entries, answers)
    label = f"{case.label}, {setting}" if setting else case.label
    seconds = fewest_seconds(program, clock)
    return harness.measurement(backend, case.name, label, 1, seconds, work, counts, (operations, steps))


def fewest_seconds(program: SingleCaseProgram, clock: Callable[[], float] = time.process_time) -> float:
    """Return the fewest seconds of several runs; on a CPU those of this process alone, whatever else runs there."""
    block = EvidenceBlock(1, {}, {})
    # Once without a clock: kernels are compiled, and memory is pinned, at the first run.
    program.run(block)
    return harness.fewest_seconds(lambda: program.run(block), REPEATS, clock, _forget)


def _forget() -> None:
    """Forget prepared contractions: rows before must not count."""
    if "junctor_kernels.cpu.entries" in sys.modules:
        sys.modules["junctor_kernels.cpu.entries"].forget()
