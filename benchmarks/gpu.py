"""The GPU backend on network files: checked against NumPy in double precision, timed with events, beside its ceilings.

    uv run python benchmarks/gpu.py prepare NETWORK ... --output FILE      plans and evidence, on any machine
    python benchmarks/gpu.py run FILE [--kinds pattern tree one]           on a machine with a GPU
    python benchmarks/gpu.py scale FILE [--gpus 1 2]                       on one with several, one process each
    python benchmarks/gpu.py engine NETWORK [--rows N] [--timeline]        whole batches through the engine

Kinds: `pattern`, a fifth of the variables observed and cut out; `tree`, the same evidence as likelihoods on the
network's own tree; `one`, the same with a single case. For each it prints: stages, items, cases of a block,
milliseconds of a block and cases a second (device time: evidence on the device, answers left there), cases a second
with copies in and out, entry operations a second, bytes of tables written and read at least once a second as a share
of what a copy on the same device moves, the largest difference of a posterior, and rows that need a wider format.
"""

from __future__ import annotations

import argparse
import math
import os
import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from common import need_gpu
from junctor.backends.evidence_blocks import block_of
from junctor.backends.gpu import GpuProgram
from junctor.backends.numpy import Program
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch
from junctor.formats import read_network
from junctor.generate import sample
from junctor.model.answers import Answers, posteriors_in
from junctor.model.network import Network
from junctor.model.query import Precision, Query
from junctor.planning.compile import compile_plan
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern, shape_of
from junctor_kernels.gpu.blocks import CudaBlockDevice
from junctor_kernels.tables.reference import DOUBLE, LOG, SINGLE
from timeline import TimedDevice, show

PLANNED_ROWS = 10**6
CHECKED_ROWS = 64
# Evidence and answers on their way.
HOST_BYTES = 1 << 34
ALGEBRAS = {"single": SINGLE, "double": DOUBLE, "log": LOG}


def prepare(paths: list[str], output: Path, kinds: list[str], rows: int, seed: int) -> None:
    prepared = []
    for path in paths:
        network = read_network(path)
        batch = batch_of(network, rows, seed)
        observed = frozenset(batch.states)
        patterns = {"pattern": Pattern(observed, frozenset()), "tree": Pattern(frozenset(), observed)}
        plans = {}
        for kind in kinds:
            start = time.perf_counter()
            plan = plans[kind] = compile_plan(shape_of(network), patterns[kind], None, False, rows=PLANNED_ROWS)
            seconds = time.perf_counter() - start
            print(f"{Path(path).name} {kind}: {seconds:.1f} s, {plan.case_operations:,} operations", flush=True)
        prepared.append((Path(path).name.split(".")[0], network, batch, plans))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(pickle.dumps(prepared))


def tell(line: str, output: Path | None) -> None:
    """Print a line, and keep it where a file is named."""
    print(line, flush=True)
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("a") as file:
            file.write(line + "\n")


class Timer:
    def __init__(self, device: CudaBlockDevice) -> None:
        self.device = device

    def milliseconds(self, program: GpuProgram, repeats: int) -> float:
        replay, stream = program._places[0].replay, self.device._work
        times = []
        for n in range(repeats + 2):
            begin, end = self.device.event(timing=True), self.device.event(timing=True)
            begin.record(stream)
            replay.start()
            end.record(stream)
            end.synchronize()
            if n >= 2:
                times.append(1e3 * self.device.elapsed(begin, end))
        return statistics.median(times)

    def stages(self, program: GpuProgram) -> str:
        """Return the milliseconds of every launch, one by one, with its items."""
        place, result = program._places[0], []
        for stage in program.stages:
            for launch in stage:
                replay = self.device.replay(place.work._replace(stages=[[launch]]))
                stream, begin, end = self.device._work, self.device.event(timing=True), self.device.event(timing=True)
                begin.record(stream)
                replay.start()
                end.record(stream)
                end.synchronize()
                milliseconds = 1e3 * self.device.elapsed(begin, end)
                result.append(f"{launch.kernel[0]}{milliseconds:.3f}/{launch.items}")
        return " ".join(result)

    def copy_rate(self) -> float:
        import cupy

        source = cupy.random.random(1 << 28, dtype=cupy.float32)
        target = cupy.empty_like(source)
        times = []
        for _ in range(12):
            begin, end = self.device.event(timing=True), self.device.event(timing=True)
            begin.record()
            target[...] = source
            end.record()
            end.synchronize()
            times.append(self.device.elapsed(begin, end))
        return 2 * source.nbytes / statistics.median(times)


def table_bytes(plan: Plan, itemsize: int) -> int:
    """Bytes of one case that have to be read or written once: every table as it is made, every operand of a message."""
    entries = sum(table.entries for table in plan.tables if table.per_case)
    for step in plan.reductions(per_case=True):
        entries += sum(plan.tables[operand].entries for operand in step.operands if plan.tables[operand].per_case)
    return entries * itemsize


def unwritten(program: GpuProgram, network: Network, rows: int, dtype: np.dtype[Any]) -> Answers:
    """Return answers to all variables, in memory that the device writes to."""
    targets, sizes = tuple(range(len(network.variables))), network.cardinalities
    memory = program.device.host(rows * sum(sizes) * dtype.itemsize).view(dtype)
    memory[:] = np.nan
    posteriors = posteriors_in(memory, targets, sizes, rows)
    return Answers(targets, np.zeros(rows, dtype=np.int8), np.zeros(rows), posteriors, memory=memory)


def check(
    program: GpuProgram, network: Network, batch: EvidenceBatch, plan: Plan, rows: int, dtype: np.dtype[Any]
) -> tuple[float, int]:
    rows = min(rows, program.cases)
    block = block_of(batch, np.arange(rows), plan.pattern, network.cardinalities)
    answers = unwritten(program, network, rows, dtype)
    found = program.answer(block, np.arange(rows), answers)
    expected = Program(plan, network, DOUBLE).run(block)
    sure = ~found.doubtful
    worst = 0.0
    for v, posterior in expected.posteriors.items():
        # A table that no case changes may have one column for all of them.
        worst = max(worst, float(np.abs(answers.posteriors[v].T - posterior)[:, sure].max(initial=0)))
    return worst, int(found.doubtful.sum())


def through(
    program: GpuProgram, network: Network, batch: EvidenceBatch, plan: Plan, blocks: int, dtype: np.dtype[Any]
) -> float:
    rows = np.arange(program.cases)
    block = block_of(batch, rows % batch.rows, plan.pattern, network.cardinalities)
    answers = unwritten(program, network, program.cases, dtype)
    with ThreadPoolExecutor(program.threads) as pool:

        def work(place: int) -> None:
            for _ in range(blocks):
                # All to the same rows: whoever comes later writes the same numbers.
                program.answer(block, rows, answers, place)

        list(pool.map(work, range(program.threads)))
        start = time.perf_counter()
        list(pool.map(work, range(program.threads)))
        return program.cases * blocks * program.threads / (time.perf_counter() - start)


class OneBlock(GpuProgram):
    """Blocks as large as asked for."""

    def _overlapping(self, rows: int) -> int:
        return rows


def measure(
    case: tuple[Any, ...], kind: str, options: argparse.Namespace, device: CudaBlockDevice, timer: Timer, peak: float
) -> None:
    import cupy

    name, network, batch, plans = case
    plan = plans["pattern" if kind == "pattern" else "tree"]
    stages = options.stages
    for algebra in [ALGEBRAS[name] for name in options.precision]:
        for cases in [1] if kind == "one" else options.sizes:
            cupy.get_default_memory_pool().free_all_blocks()
            try:
                start = time.perf_counter()
                bound = Program(plan, network, algebra)
                program = OneBlock(bound, cases, device, HOST_BYTES)
                ready = time.perf_counter() - start
                checked = 4 if kind == "one" else CHECKED_ROWS
                worst, doubtful = check(program, network, batch, plan, checked, algebra.dtype)
                # Whole blocks first: what is replayed afterwards is as large as the last one.
                both = through(program, network, batch, plan, 4, algebra.dtype)
                ms = timer.milliseconds(program, 10)
                rate = program.cases / ms * 1e3
                operations = rate * plan.case_operations
                moved = rate * table_bytes(plan, algebra.dtype.itemsize) / peak
                items = sum(launch.items for stage in program.stages for launch in stage)
                sizes = f"{len(program.stages)} | {items:,} | {program.cases:,}"
                speed = f"{ms:.3f} | {rate:,.0f} | {both:,.0f} | {operations:.2e} | {moved:.0%}"
                checks = f"{worst:.1e} | {doubtful} | {ready:.1f}"
                tell(f"{name} | {kind} | {algebra.name} | {sizes} | {speed} | {checks}", options.output)
                if stages:
                    print("   stages ms/items:", timer.stages(program), flush=True)
                del program
            except Exception as error:
                print(f"{name} | {kind} | {algebra.name} | {cases} | {type(error).__name__}: {error}", flush=True)


def batch_of(network: Network, rows: int, seed: int) -> EvidenceBatch:
    """Return samples of a network, a fifth of the variables observed."""
    states = sample(network, rows, seed)
    count = len(network.variables)
    chosen = np.random.default_rng(seed).choice(count, max(1, count // 5), replace=False)
    return EvidenceBatch(rows, {int(v): np.ascontiguousarray(states[:, v]) for v in sorted(chosen)})


def engine_on(device: CudaBlockDevice, network: Network, precision: Precision) -> Engine:
    """Return an engine that answers every row on its own: what is measured is the GPU."""
    engine = Engine(network, Query(precision=precision), expected_rows=10**7, gpu=device)
    engine.with_equal_rows = lambda batch: batch  # type: ignore[method-assign]
    return engine


def through_engine(options: argparse.Namespace) -> None:
    """Answer a batch again and again; print rows a second, what memory allows, and the last batch block by block."""
    network = read_network(options.network)
    batch = batch_of(network, options.rows, options.seed)
    device = TimedDevice() if options.timeline else CudaBlockDevice()
    rates(device)
    engine = engine_on(device, network, options.precision)
    times: list[float] = []
    while sum(times[2:]) < options.seconds:
        if isinstance(device, TimedDevice):
            device.take()
        start = time.perf_counter()
        size = engine.answer(batch).nbytes
        times.append(time.perf_counter() - start)
        first = times[0]
    seconds = statistics.median(times[2:])
    print(f"the first batch takes {first:.2f} s, planning included; of {len(times) - 2} later ones the median:")
    print(f"{options.rows / seconds:,.0f} rows/s, {size / options.rows:,.0f} bytes a row, {size / seconds:.2e} bytes/s")
    if isinstance(device, TimedDevice):
        show(device.take(), start, times[-1])


def rates(device: CudaBlockDevice, size: int = 1 << 29) -> None:
    """Print bytes a second of what answers could wait for."""
    times: dict[str, float] = {}
    there = device.zeros(size, np.uint8)

    def timed(name: str, work: Callable[[], Any], repeats: int = 3) -> Any:
        for _ in range(repeats):
            start = time.perf_counter()
            result = work()
            device.synchronize_all()
            times[name] = min(times.get(name, math.inf), time.perf_counter() - start)
        return result

    pinned = timed("pages pinned", lambda: device.host(size))
    timed("copied from the device to pinned pages", lambda: there.data.copy_to_host(pinned.ctypes.data, size))
    fresh = timed("copied on to fresh pages, one thread", lambda: pinned.copy())
    timed("copied on to used pages, one thread", lambda: np.copyto(fresh, pinned))
    print(", ".join(f"{name} {size / seconds:.1e}" for name, seconds in times.items()), "bytes/s", flush=True)


def answer_for(options: argparse.Namespace) -> None:
    """Answer batches on this process's GPU, after a line from the parent, and print rows a second."""
    (name,) = options.networks
    (case,) = (case for case in pickle.loads(options.file.read_bytes()) if case[0] == name)
    _, network, prepared, plans = case
    large = batch_of(network, options.rows, options.seed)
    if large.states.keys() != prepared.states.keys():
        raise SystemExit(f"{options.file} was not prepared with --seed {options.seed}")
    engine = engine_on(CudaBlockDevice(), network, "single")
    engine.facts.plan = lambda pattern, rows=1: plans["pattern"]  # type: ignore[method-assign]
    engine.answer(large)
    print("ready", flush=True)
    input()
    start, rows = time.perf_counter(), 0
    while time.perf_counter() - start < options.seconds:
        engine.answer(large)
        rows += options.rows
    print(rows / (time.perf_counter() - start), flush=True)


def scaling(options: argparse.Namespace) -> None:
    """Print the rows a second of one process a GPU, for some numbers of GPUs."""
    print("network | GPUs | rows/s | of one GPU")
    print("---|---|---|---")
    for name in options.networks:
        alone = 0.0
        for gpus in options.gpus:
            command = [sys.executable, __file__, "scale", str(options.file), "--worker", "--networks", name]
            command += ["--rows", str(options.rows), "--seconds", str(options.seconds), "--seed", str(options.seed)]
            workers = [
                subprocess.Popen(
                    command,
                    env={**os.environ, "CUDA_VISIBLE_DEVICES": str(number)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for number in range(gpus)
            ]
            for worker in workers:
                assert worker.stdout is not None
                assert worker.stdout.readline() == "ready\n"
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.write("go\n")
                worker.stdin.flush()
            total = sum(float(worker.communicate()[0]) for worker in workers)
            alone = alone or total
            print(f"{name} | {gpus} | {total:,.0f} | {total / alone:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(dest="action", required=True)
    plans = actions.add_parser("prepare")
    plans.add_argument("networks", nargs="+")
    plans.add_argument("--output", type=Path, required=True)
    plans.add_argument("--kinds", nargs="+", default=["pattern", "tree"])
    plans.add_argument("--rows", type=int, default=2048)
    plans.add_argument("--seed", type=int, default=1)
    runs = actions.add_parser("run")
    runs.add_argument("file", type=Path)
    runs.add_argument("--networks", nargs="+", default=[])
    runs.add_argument("--output", type=Path, help="file for the table as well")
    runs.add_argument("--kinds", nargs="+", default=["pattern", "tree", "one"])
    runs.add_argument("--sizes", nargs="+", type=int, default=[16384])
    runs.add_argument("--precision", nargs="+", choices=sorted(ALGEBRAS), default=["single", "double"])
    scale = actions.add_parser("scale")
    scale.add_argument("file", type=Path)
    scale.add_argument("--networks", nargs="+", default=["link", "munin2"])
    scale.add_argument("--gpus", nargs="+", type=int, default=[1, 2])
    scale.add_argument("--rows", type=int, default=32768, help="of a batch")
    scale.add_argument("--seconds", type=float, default=15.0)
    scale.add_argument("--seed", type=int, default=1, help="that the file was prepared with")
    scale.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    runs.add_argument("--stages", action="store_true", help="milliseconds of every launch as well")
    whole = actions.add_parser("engine")
    whole.add_argument("network")
    whole.add_argument("--rows", type=int, default=131072, help="of a batch")
    whole.add_argument("--seconds", type=float, default=3.0)
    whole.add_argument("--seed", type=int, default=1)
    whole.add_argument("--precision", choices=sorted(ALGEBRAS), default="single")
    whole.add_argument("--timeline", action="store_true", help="when each block of the last batch did what")
    options = parser.parse_args()
    if options.action == "prepare":
        return prepare(options.networks, options.output, options.kinds, options.rows, options.seed)
    need_gpu(f"gpu.py {options.action}")
    if options.action == "engine":
        return through_engine(options)
    if options.action == "scale":
        return answer_for(options) if options.worker else scaling(options)
    device = CudaBlockDevice()
    timer = Timer(device)
    name = device.name
    peak = timer.copy_rate()
    if options.output:
        options.output.unlink(missing_ok=True)
    tell(f"{name}, {date.today()}, a copy moves {peak / 1e12:.2f} TB/s read and written\n", options.output)
    tell(
        "network | kind | precision | stages | items | cases | ms | cases/s | with copies | operations/s | of copy | "
        "difference | wider | ready s",
        options.output,
    )
    tell("|".join(["---"] * 14), options.output)
    for case in pickle.loads(options.file.read_bytes()):
        for kind in options.kinds:
            if not options.networks or case[0] in options.networks:
                measure(case, kind, options, device, timer, peak)
    return None


if __name__ == "__main__":
    main()
