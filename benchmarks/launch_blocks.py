"""Tiles, sizes of blocks and blocks under way on a GPU: what we have against what else there is.

    python benchmarks/launch_blocks.py tiles cases.pickle [--rows 2048]               on a GPU, plans of `costs.py`
    python benchmarks/launch_blocks.py blocks cases.pickle [--rows 16384 65536]

`tiles`: microseconds of a block of many cases with all kinds of tiles, with those of a single line, with small ones,
with none, and by the rule that we had before (of tiles with one line and of those with several only the best for dense
tables). `blocks`: milliseconds of whole batches, evidence brought in and posteriors taken out, in so many blocks, and
with so many under way.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import costs
import numpy as np
from common import need_gpu
from junctor.backends import gpu
from junctor.backends import gpu_plan as gpu_blocks
from junctor.backends import register_tiles as tiles
from junctor.backends.evidence_blocks import block_of
from junctor.backends.gpu_items import Schedule
from junctor.backends.lowering import LoweredPlan
from junctor.backends.numpy import Program
from junctor.backends.register_tiles import Shapes
from junctor.calibration import blocks as tuning
from junctor.calibration.blocks import CalibrationCase, KeptProgram, unwritten
from junctor.calibration.harness import save
from junctor.cost.dataset import Measured, MeasuredDevice
from junctor.evidence.batch import EvidenceBatch
from junctor.planning.levels import LaunchLevels
from junctor.runtime.threads import in_threads
from junctor_kernels.gpu.blocks import TILE_SHAPES, many_source
from junctor_kernels.gpu.device import KernelModule
from junctor_kernels.tables.reference import DOUBLE, SINGLE

# Bytes of evidence and answers on their way.
HOST_BYTES = 1 << 34
BLOCKS, UNDER_WAY = (1, 2, 3, 4, 6, 8, 12), (1, 2, 3, 4)
ROUNDS = 3
ALL_SHAPES = (*((1, n) for n in range(2, 9)), (2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (4, 2))
KERNELS = KernelModule(partial(many_source, shapes=ALL_SHAPES))
# The same tiles, told apart by their order.
BEFORE = ALL_SHAPES[::-1]
WAYS: dict[str, Shapes] = {
    "rule before": BEFORE,
    "fewest rows": ALL_SHAPES,
    "one line": tuple(shape for shape in ALL_SHAPES if shape[0] == 1),
    "small": TILE_SHAPES,
    "none": (),
}

_all_that_pay = tiles.tiles_that_pay


def rule_before(what: Any, rows: Any, factor: bool, shapes: Shapes) -> list[tuple[int, tuple[int, int]]]:
    if shapes != BEFORE:
        return _all_that_pay(what, rows, factor, shapes)
    found = _all_that_pay(what, rows, factor, ALL_SHAPES)
    several, one = ([each for each in found if (each[1][0] > 1) == more][:1] for more in (True, False))
    return several + one


class InTiles(KeptProgram):
    """A program for many cases with such tiles."""

    def __init__(self, program: Program, rows: int, device: Any, way: str) -> None:
        self._way = way
        super().__init__(program, rows, device, False, {})

    def _overlapping(self, rows: int) -> int:
        return rows

    def tile_shapes(self) -> Shapes:
        return WAYS[self._way]

    def _schedule(self, plan: LoweredPlan, stages: LaunchLevels) -> Schedule:
        self.kernels = KERNELS
        return super()._schedule(plan, stages)


def measure_tiles(task: tuple[CalibrationCase, int]) -> tuple[MeasuredDevice, list[Measured] | str]:
    case, rows = task
    device, found = MeasuredDevice(costs.opened.name, costs.opened.figures), []
    try:
        for algebra in (SINGLE, DOUBLE):
            program = Program(case.plan, case.network, algebra)
            for way in WAYS:
                named = replace(case, label=f"{case.label}, tiles: {way}")
                found += tuning.measure_block(named, InTiles(program, rows, costs.opened, way), algebra)
        return device, found
    except Exception as error:
        return device, f"{case.name} {case.label}: {type(error).__name__}: {error}"


def compare_tiles(cases: Sequence[CalibrationCase], rows: int, processes: int, output: Path | None) -> None:
    tiles.tiles_that_pay, tuning.MANY_TRIED = rule_before, tuning.MANY_TRIED[:1]
    tasks = [(case, rows) for case in sorted(cases, key=lambda case: -case.plan.case_operations)]
    kept: list[Measured] = []
    fork = multiprocessing.get_context("fork")
    with fork.Pool(processes, costs.begin, (fork.Lock(), time.time() + 600)) as pool:
        for device, found in pool.imap_unordered(measure_tiles, tasks):
            if isinstance(found, str):
                print(found, flush=True)
                continue
            kept += found
            if output is not None:
                save(device, kept, output)
    for backend in ("many-single", "many-double"):
        show_tiles([row for row in kept if row.backend == backend])


def show_tiles(measured: Sequence[Measured]) -> None:
    times: dict[str, dict[str, float]] = {}
    for row in measured:
        label, _, way = row.label.rpartition(", CaseParallel")[0].partition(", tiles: ")
        times.setdefault(f"{row.network} {label}", {})[way] = row.seconds
    ways = list(next(iter(times.values())))
    print(f"\n{measured[0].backend}, us\nplan | {' | '.join(ways)}\n{'|'.join(['---'] * (1 + len(ways)))}")
    for name in sorted(times):
        print(f"{name} | {' | '.join(f'{1e6 * times[name][way]:.1f}' for way in ways)}")
    table = np.array([[each[way] for way in ways] for each in times.values()])
    table /= table[:, [ways.index("rule before")]]
    print(f"geometric mean over the rule | {' | '.join(f'{n:.3f}' for n in np.exp(np.log(table).mean(axis=0)))}")
    print(f"at the best | {' | '.join(f'{n:.3f}' for n in table.min(axis=0))}")
    print(f"at the worst | {' | '.join(f'{n:.3f}' for n in table.max(axis=0))}")
    print(f"the best of each plan: {np.exp(np.log(table.min(axis=1)).mean()):.3f}")


class InBlocks(gpu.GpuProgram):
    """A program with so many blocks, lowered once."""

    def __init__(self, program: Program, rows: int, device: Any, blocks: int, known: list[LoweredPlan]) -> None:
        self._wanted, self._known = blocks, known
        super().__init__(program, rows, device, HOST_BYTES)

    def _overlapping(self, rows: int) -> int:
        return -(-rows // self._wanted)

    def tile_shapes(self) -> Shapes:
        return TILE_SHAPES

    def _lower(self, places: Any) -> LoweredPlan:
        if not self._known:
            self._known.append(super()._lower(places))
        return self._known[0]


def seconds_of_batch(program: InBlocks, case: CalibrationCase, rows: int, answers: Any) -> float:
    """Return the median seconds of all rows through the device, as a run has them answered."""
    parts = [np.arange(start, min(start + program.cases, rows)) for start in range(0, rows, program.cases)]

    def answer(part: Any, place: int) -> None:
        block = block_of(case.batch, part, case.plan.pattern, case.network.cardinalities)
        program.answer(block, part, answers, place)

    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        in_threads(answer, parts, program.threads)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def compare_blocks(cases: Sequence[CalibrationCase], sizes: Sequence[int]) -> None:
    from junctor_kernels.gpu.blocks import CudaBlockDevice

    device, table = CudaBlockDevice(), []
    names = [*(f"{n} blocks" for n in BLOCKS), *(f"{n} under way" for n in UNDER_WAY)]
    ways = [*((blocks, gpu_blocks.IN_FLIGHT) for blocks in BLOCKS), *((gpu_blocks.BLOCKS, n) for n in UNDER_WAY)]
    print(f"plan | rows | {' | '.join(names)}\n{'|'.join(['---'] * (2 + len(names)))}")
    for case in cases:
        for rows in sizes:
            try:
                table.append(_seconds_of_ways(case, rows, device, ways))
                print(
                    f"{case.name} {case.label} | {rows} | {' | '.join(f'{1e3 * n:.2f}' for n in table[-1])}", flush=True
                )
            except MemoryError as error:
                print(f"{case.name} {case.label} | {rows} | {error}", flush=True)
    times = np.array(table) / np.array(table)[:, [BLOCKS.index(gpu_blocks.BLOCKS)]]
    print(
        f"geometric mean over {gpu_blocks.BLOCKS} | | {' | '.join(f'{n:.3f}' for n in np.exp(np.log(times).mean(0)))}"
    )


def _seconds_of_ways(case: CalibrationCase, rows: int, device: Any, ways: Sequence[tuple[int, int]]) -> list[float]:
    program, lowered = Program(case.plan, case.network, SINGLE), list[LoweredPlan]()
    wide = replace(case, batch=_repeated(case.batch, rows))
    answers = unwritten(case.network, rows, SINGLE, device)
    ours, found = gpu_blocks.IN_FLIGHT, []
    try:
        for blocks, under_way in ways:
            gpu.IN_FLIGHT = gpu_blocks.IN_FLIGHT = under_way
            found.append(seconds_of_batch(InBlocks(program, rows, device, blocks, lowered), wide, rows, answers))
    finally:
        gpu.IN_FLIGHT = gpu_blocks.IN_FLIGHT = ours
    return found


def _repeated(batch: EvidenceBatch, rows: int) -> EvidenceBatch:
    return EvidenceBatch(rows, {v: np.resize(states, rows) for v, states in batch.states.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["tiles", "blocks"])
    parser.add_argument("cases", type=Path)
    parser.add_argument("--output", type=Path, help="measurements of tiles")
    parser.add_argument("--networks", nargs="+", help="only these")
    parser.add_argument("--kinds", nargs="+", default=["cut 0.2", "entering 0.2"], help="beginnings of labels")
    parser.add_argument("--rows", nargs="+", type=int, help="cases of a block (2048), or of a batch (16384 65536)")
    parser.add_argument("--most", type=float, default=1e9, help="entry operations of a case")
    parser.add_argument("--processes", type=int, default=12)
    options = parser.parse_args()
    need_gpu(f"launch_blocks.py {options.action}")
    cases = [
        case
        for case in pickle.loads(options.cases.read_bytes())
        if any(case.label.startswith(kind) for kind in options.kinds)
        and case.plan.case_operations <= options.most
        and (not options.networks or case.name in options.networks)
    ]
    if options.action == "tiles":
        return compare_tiles(cases, (options.rows or [2048])[0], options.processes, options.output)
    return compare_blocks(cases, options.rows or (16384, 65536))


if __name__ == "__main__":
    main()
