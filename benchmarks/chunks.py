"""Grids whose tables exceed the memory, one case, all marginals: chunks in one process and over worker processes.

    python benchmarks/chunks.py --rows 20 --columns 20 --working 4MiB --workers 2
    python benchmarks/chunks.py --rows 25 --columns 25 --device gpu --precision single --workers 1 2 4

The bound is what the counts of the plan take at the rates that these machines reach when all workers are busy: entry
operations of a contraction whose operands are in the cache, bytes of a copy (read and written) that is not. Whichever
takes longer: one hides behind the other at best. Loads and stores are those between the stored tables and a task.
"""

from __future__ import annotations

import argparse
import math
import pickle
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.generate import grid
from junctor.model.network import Network
from junctor.out_of_core.bound_plan import BoundPlan
from junctor.out_of_core.cluster.run import IN_FLIGHT, ClusterRun
from junctor.out_of_core.cluster.tasks import GpuTasks
from junctor.out_of_core.cluster.workers import WorkerPool, transferred_entries
from junctor.out_of_core.gpu.devices import DeviceGroup
from junctor.out_of_core.gpu.run import ChunkedGpuProgram
from junctor.out_of_core.memory_splits import MemoryLimits
from junctor.out_of_core.pass_program import CpuTasks
from junctor.out_of_core.program import ChunkedProgram
from junctor.out_of_core.programs import SingleCaseProgram
from junctor.placement.fusion import single_steps
from junctor.placement.placement import slot_bytes
from junctor.planning.budget import format_bytes, parse_bytes
from junctor.planning.chunks import ChunkPlan
from junctor.planning.compile import Problem
from junctor.planning.shape import Pattern, shape_of
from junctor.runtime.devices import open_gpu
from junctor.runtime.local_cluster import local_client
from junctor.runtime.machine import available_memory
from junctor_kernels.tables.axes import contraction
from junctor_kernels.tables.reference import DOUBLE, LOG, SINGLE, Algebra

ALGEBRAS = {algebra.name: algebra for algebra in (DOUBLE, SINGLE, LOG)}
# A contraction like those of a grid, small enough for a cache, and a copy that is not.
VARIABLES, COPIED_BYTES, MEASURED_SECONDS = 15, 1 << 26, 0.5


def rates(algebra: Algebra, threads: int) -> tuple[float, float]:
    """Return entry operations and copied bytes of a second of this process."""
    sizes = dict.fromkeys(range(VARIABLES), 2)
    scopes = [(0, 1), tuple(range(VARIABLES))]
    what = contraction(tuple(range(1, VARIABLES)), (0,), scopes, sizes)
    operands = [np.full((2 ** len(scope), 1), 0.5, algebra.dtype) for scope in scopes]
    contract = CpuTasks(algebra, threads=threads)
    source, target = np.ones(COPIED_BYTES, np.uint8), np.empty(COPIED_BYTES, np.uint8)
    operations = 2**VARIABLES * len(scopes)
    return (
        operations * repeats(lambda: contract(what, operands)),
        2 * source.nbytes * repeats(lambda: np.copyto(target, source)),
    )


def warm(algebra: Algebra, threads: int) -> None:
    """Load compiled code, so that its memory does not count."""
    what = contraction((0,), (1,), [(0, 1)], {0: 1 << 10, 1: 1 << 6})
    CpuTasks(algebra, threads=threads)(what, [np.ones((1 << 16, 1), algebra.dtype)])


def repeats(function: Callable[[], Any]) -> float:
    """Return how often a second can do something."""
    function()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < MEASURED_SECONDS:
        function()
        count += 1
    return count / (time.perf_counter() - start)


def bound(chunks: ChunkPlan, itemsize: int, measured: list[tuple[float, float]]) -> float:
    """Return the seconds that operations or bytes take, whichever takes longer, on all processes together."""
    operations, copied = (sum(column) for column in zip(*measured, strict=True))
    return max(chunks.plan.operations / operations, (chunks.loaded + chunks.stored) * itemsize / copied)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def timed(function: Callable[[], BlockOutcome], times: int) -> tuple[list[float], BlockOutcome]:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        outcome = function()
        seconds.append(time.perf_counter() - start)
    return seconds, outcome


def show(name: str, seconds: list[float], least: float, more: str = "") -> None:
    median = statistics.median(seconds)
    each = ", ".join(f"{s:.2f}" for s in seconds)
    of_bound = "" if math.isnan(least) else f", {least / median:.0%} of the bound of {least:.2f} s"
    print(f"{name}: {median:.2f} s ({each}){of_bound}{more}", flush=True)


def same(one: BlockOutcome, other: BlockOutcome) -> bool:
    tables = [(one.log_value, other.log_value), *((p, other.posteriors[v]) for v, p in one.posteriors.items())]
    return all(a.tobytes() == b.tobytes() for a, b in tables)


def main() -> None:
    options = parsed()
    algebra, itemsize = ALGEBRAS[options.precision], ALGEBRAS[options.precision].dtype.itemsize
    network, on_gpu = grid(options.rows, options.columns, seed=1), options.device == "gpu"
    start = time.perf_counter()
    memory = options.memory or available_memory() // 2
    crew = WorkerPool(max(options.workers), memory // max(options.workers), options.device_memory if on_gpu else None)
    problem = Problem(shape_of(network), Pattern(frozenset(), frozenset()))
    limits = MemoryLimits(memory, options.device_memory if on_gpu else options.working, 0, Path(), 1, on_gpu)
    chunks = kept(options.plan, lambda: crew.cut(problem, itemsize, limits, 1).chunks)
    if not options.repeats:
        return
    describe(chunks, itemsize, time.perf_counter() - start)
    bound_plan = BoundPlan(chunks, network, algebra, as_summed=on_gpu)
    one, expected = timed(
        lambda: alone(chunks, network, algebra, options).run(EvidenceBlock(1, {}, {})), options.repeats
    )
    least = math.nan if on_gpu else bound(chunks, itemsize, [rates(algebra, options.threads)])
    show("one process", one, least)
    gpu = GpuTasks(algebra, slot_bytes(chunks, itemsize, single_steps), options.device_memory) if on_gpu else None
    found = [over(workers, bound_plan, gpu, options, one) for workers in options.workers]
    print(f"log Z {expected.log_value[0]:.6f}")
    # Small passes are done by the client, on its CPU.
    close = np.isclose(found[0].log_value, expected.log_value, rtol=1e-6 if algebra is SINGLE else 1e-12).all()
    if not close or not all(same(each, found[0] if on_gpu else expected) for each in found):
        raise SystemExit("DIFFERENT answers")
    print("the same bytes with any number of workers" + ("" if on_gpu else ", and in one process"))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=18)
    parser.add_argument("--columns", type=int, default=18)
    parser.add_argument("--working", type=parse_bytes, default=parse_bytes("4MiB"), help="bytes of a task on a CPU")
    parser.add_argument("--memory", type=parse_bytes, help="bytes of stored tables on all workers together")
    parser.add_argument("--precision", choices=sorted(ALGEBRAS), default="double")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--device-memory", type=parse_bytes, default=parse_bytes("16GiB"), help="bytes of each GPU")
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT)
    parser.add_argument("--threads", type=int, default=1, help="of compiled contractions in a task; 0: NumPy")
    parser.add_argument("--plan", type=Path, help="file that keeps the plan from call to call: planning takes long")
    parser.add_argument("--repeats", type=int, default=3, help="0: only make the plan")
    return parser.parse_args()


def kept(file: Path | None, make: Callable[[], ChunkPlan]) -> ChunkPlan:
    """Return the plan that lies in a file; it is made, and put there, where there is none."""
    if file is None or not file.exists():
        made = make()
        if file is not None:
            file.write_bytes(pickle.dumps(made))
        return made
    found: ChunkPlan = pickle.loads(file.read_bytes())
    return found


def alone(chunks: ChunkPlan, network: Network, algebra: Algebra, options: argparse.Namespace) -> SingleCaseProgram:
    """Return what runs a plan in this process, on its first GPU or on the CPU."""
    if options.device == "cpu":
        return ChunkedProgram(chunks, network, algebra, entry_threads=options.threads)
    return ChunkedGpuProgram(chunks, network, algebra, DeviceGroup(chunks, algebra, open_gpu(options.device_memory)))


def over(
    workers: int, bound_plan: BoundPlan, gpu: GpuTasks | None, options: argparse.Namespace, one: list[float]
) -> BlockOutcome:
    """Time a plan over so many workers; returns what the last run found."""
    algebra, contract = bound_plan.algebra, CpuTasks(bound_plan.algebra, threads=options.threads)
    runs: list[ClusterRun] = []

    def run() -> BlockOutcome:
        runs.append(ClusterRun(client, bound_plan, contract, options.in_flight, gpu))
        return runs[-1].outcome(EvidenceBlock(1, {}, {}))

    with local_client(workers, gpu is not None) as client:
        client.wait_for_workers(workers)
        if gpu is None:
            client.run(warm, algebra, options.threads)
        else:
            # The first run loads kernels.
            run()
        before = client.run(peak_bytes)
        many, found = timed(run, options.repeats)
        after = client.run(peak_bytes)
        # Measured last: what is copied takes memory too.
        everywhere = [] if gpu else list(client.run(rates, algebra, options.threads).values())
    itemsize = algebra.dtype.itemsize
    least = math.nan if gpu else bound(bound_plan.chunks, itemsize, everywhere)
    more = f", {statistics.median(one) / statistics.median(many):.2f} times as fast as one process"
    show(f"{workers} workers", many, least, more)
    used = ", ".join(format_bytes(after[worker] - before[worker]) for worker in before)
    transferred = runs[-1].tables.transferred
    forecast = format_bytes(int(transferred_entries(bound_plan.chunks, workers) * itemsize))
    shared = len(set(runs[-1].tables.machines.values()) | {None}) == 2
    way = "through memory files" if shared else "as bytes"
    print(
        f"  read from other workers {way}: {format_bytes(transferred)}, {forecast} expected; memory grew by {used}",
        flush=True,
    )
    return found


def describe(chunks: ChunkPlan, itemsize: int, seconds: float) -> None:
    plan = chunks.plan
    counts = (
        max(table.entries for table in plan.tables),
        chunks.working,
        chunks.loaded,
        chunks.stored,
        chunks.peak(on_disk=False),
    )
    largest, working, loaded, stored, peak = (format_bytes(entries * itemsize) for entries in counts)
    print(
        f"planned in {seconds:.1f} s ({plan.criterion}): "
        f"{plan.operations:.3e} operations, "
        f"largest table {largest}\n{len(chunks.passes)} passes, {chunks.tasks} tasks of at most {working}; "
        f"loaded {loaded}, stored {stored}, at most {peak} at once",
        flush=True,
    )


if __name__ == "__main__":
    main()
