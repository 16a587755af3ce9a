"""Grids whose tables exceed the memory, one case, all marginals: chunks in one process and over worker processes.

    python benchmarks/chunks.py --rows 20 --columns 20 --working 4MiB --workers 2

The bound is what the counts of the plan take at the rates that these machines reach when all workers are busy: entry
operations of a contraction whose operands are in the cache, bytes of a copy (read and written) that is not. Whichever
takes longer: one hides behind the other at best. Loads and stores are those between the stored tables and a task.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from junctor.chunk_cluster import IN_FLIGHT, ClusterRun
from junctor.chunk_tasks import OnCpu
from junctor.chunked import ChunkedProgram
from junctor.distribution import local_client, silent_dask
from junctor.engine import shape_of
from junctor.generate import grid
from junctor.machine import available_memory
from junctor.planning.budget import format_bytes, parse_bytes
from junctor.planning.chunks import ChunkPlan
from junctor.planning.compile import Problem
from junctor.planning.oversize import Pricing, Room, cheapest_chunks, operations_of
from junctor.planning.shape import Pattern
from junctor.propagation import Block, Outcome
from junctor_kernels.axes import contraction
from junctor_kernels.reference import DOUBLE, LOG, SINGLE, Algebra

ALGEBRAS = {algebra.name: algebra for algebra in (DOUBLE, SINGLE, LOG)}
# The plan with fewest operations and least that is moved.
PRICING = Pricing(operations_of, lambda chunks, _: operations_of(chunks.plan) + chunks.loaded + chunks.stored)
# A contraction like those of a grid, small enough for a cache, and a copy that is not.
VARIABLES, COPIED_BYTES, MEASURED_SECONDS = 15, 1 << 26, 0.5


def rates(algebra: Algebra, threads: int) -> tuple[float, float]:
    """Return entry operations and copied bytes of a second of this process."""
    sizes = dict.fromkeys(range(VARIABLES), 2)
    scopes = [(0, 1), tuple(range(VARIABLES))]
    what = contraction(tuple(range(1, VARIABLES)), (0,), scopes, sizes)
    operands = [np.full((2 ** len(scope), 1), 0.5, algebra.dtype) for scope in scopes]
    contract = OnCpu(algebra, threads=threads)
    source, target = np.ones(COPIED_BYTES, np.uint8), np.empty(COPIED_BYTES, np.uint8)
    operations = 2**VARIABLES * len(scopes)
    return (
        operations * repeats(lambda: contract(what, operands)),
        2 * source.nbytes * repeats(lambda: np.copyto(target, source)),
    )


def warm(algebra: Algebra, threads: int) -> None:
    """Load compiled code, so that its memory does not count."""
    what = contraction((0,), (1,), [(0, 1)], {0: 1 << 10, 1: 1 << 6})
    OnCpu(algebra, threads=threads)(what, [np.ones((1 << 16, 1), algebra.dtype)])


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
    return max(operations_of(chunks.plan) / operations, (chunks.loaded + chunks.stored) * itemsize / copied)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def timed(function: Callable[[], Outcome], times: int) -> tuple[list[float], Outcome]:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        outcome = function()
        seconds.append(time.perf_counter() - start)
    return seconds, outcome


def show(name: str, seconds: list[float], least: float, more: str = "") -> None:
    median = statistics.median(seconds)
    each = ", ".join(f"{s:.2f}" for s in seconds)
    print(f"{name}: {median:.2f} s ({each}), {least / median:.0%} of the bound of {least:.2f} s{more}", flush=True)


def same(one: Outcome, other: Outcome) -> bool:
    tables = [(one.log_value, other.log_value), *((p, other.posteriors[v]) for v, p in one.posteriors.items())]
    return all(a.tobytes() == b.tobytes() for a, b in tables)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=18)
    parser.add_argument("--columns", type=int, default=18)
    parser.add_argument("--working", type=parse_bytes, default=parse_bytes("4MiB"), help="bytes of a task")
    parser.add_argument("--memory", type=parse_bytes, help="bytes of stored tables on all workers together")
    parser.add_argument("--precision", choices=sorted(ALGEBRAS), default="double")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT)
    parser.add_argument("--threads", type=int, default=1, help="of compiled contractions in a task; 0: NumPy")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    algebra = ALGEBRAS[options.precision]
    network = grid(options.rows, options.columns, seed=1)
    itemsize = algebra.dtype.itemsize
    start = time.perf_counter()
    room = Room(options.working, options.memory or available_memory() // 2, 0)
    problem = Problem(shape_of(network), Pattern(frozenset(), frozenset()))
    chunks, _ = cheapest_chunks(problem, itemsize, lambda _: [room], PRICING)
    describe(chunks, itemsize, time.perf_counter() - start)
    program = ChunkedProgram(chunks, network, algebra, entry_threads=options.threads)
    with silent_dask(), local_client(options.workers, False) as client:
        one, expected = timed(lambda: program.run(Block(1, {}, {})), options.repeats)
        client.run(warm, algebra, options.threads)
        before = client.run(peak_bytes)
        runs: list[ClusterRun] = []

        def run() -> Outcome:
            runs.append(ClusterRun(client, program, OnCpu(algebra, threads=options.threads), options.in_flight))
            return runs[-1].outcome(Block(1, {}, {}))

        many, found = timed(run, options.repeats)
        after = client.run(peak_bytes)
        # Measured last: what is copied takes memory too.
        everywhere = list(client.run(rates, algebra, options.threads).values())
        show("one process", one, bound(chunks, itemsize, [rates(algebra, options.threads)]))
        more = f", {statistics.median(one) / statistics.median(many):.2f} times as fast as one"
        show(f"{options.workers} workers", many, bound(chunks, itemsize, everywhere), more)
        used = ", ".join(format_bytes(after[worker] - before[worker]) for worker in before)
        print(f"read from other workers: {format_bytes(runs[-1].stock.crossed)}; memory of the workers grew by {used}")
    print(f"log Z {found.log_value[0]:.6f}; {'the same bytes' if same(found, expected) else 'DIFFERENT bytes'}")
    if not same(found, expected):
        raise SystemExit(1)


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
        f"{operations_of(plan):.3e} operations, "
        f"largest table {largest}\n{len(chunks.passes)} passes, {chunks.tasks} tasks of at most {working}; "
        f"loaded {loaded}, stored {stored}, at most {peak} at once",
        flush=True,
    )


if __name__ == "__main__":
    main()
