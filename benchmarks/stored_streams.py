"""The part of `stored.py` about one table that is streamed through a GPU; run that one."""

from __future__ import annotations

import argparse
import math
import mmap
import time
from collections.abc import Sequence
from datetime import date
from typing import Any

import numpy as np
from junctor.cliques.host import Initial
from junctor.cliques.parts import Trace
from junctor.cliques.streamed import StreamedExecutor, lay_out
from junctor.model.options import PIPELINES
from junctor.planning.budget import format_bytes, parse_bytes
from junctor.planning.cliques import DOWN, CliqueOperand, CliquePass, StoredClique, StoredPlan
from junctor_kernels.gpu.device import register_host
from junctor_kernels.gpu.stored import CudaCliqueDevice
from junctor_kernels.tables.reference import SINGLE

# Linux; Python has a name for it from 3.13 on.
NO_RESERVE = 0x4000


class Streamed:
    """A table [separator entries, run] in pinned memory, row s `base` times `weights[s]`; and a small root clique."""

    def __init__(self, size: int, run: int, device: CudaCliqueDevice) -> None:
        self.device = device
        rows = max(1, size // 4 // run)
        self.sizes, rng = (rows, run, 2), np.random.default_rng(1)
        self.base = rng.uniform(0.5, 1, run).astype(np.float32)
        self.weights = rng.uniform(0.5, 1, rows).astype(np.float32)
        self.root = rng.uniform(0.5, 1, (rows, 2)).astype(np.float32)
        start = time.perf_counter()
        self.table = pinned(rows * run)
        self.allocation = time.perf_counter() - start
        self.plan = StoredPlan(
            self.sizes,
            (
                StoredClique((0, 1), (), (0, 1), (0,), 1, (), (), ()),
                StoredClique((0, 2), (), (0, 2), (), None, (0,), (), ()),
            ),
        )

    def fill(self) -> None:
        """Write the table from the device, some rows at a time."""
        import cupy

        rows, run, _ = self.sizes
        step = max(1, (1 << 28) // run)
        base, stream = cupy.asarray(self.base), cupy.cuda.Stream.null
        for first in range(0, rows, step):
            made = cupy.asarray(self.weights[first : first + step])[:, None] * base[None, :]
            self.device.download(made.data.ptr, self.table[first * run : first * run + made.size], stream)
            stream.synchronize()

    def open(self, options: argparse.Namespace, pipeline: Any, trace: Trace | None = None) -> StreamedExecutor:
        initial = [Initial(self.table, 0.0, False), Initial(self.device.host(self.root.size, np.float32), 0.0, False)]
        initial[1].table[:] = self.root.reshape(-1)
        chunk = parse_bytes(options.chunk) // 4
        allowed = options.in_flight * chunk * 4 + (1 << 30)
        layout = lay_out(self.plan, SINGLE, allowed, options.in_flight, chunk)
        return StreamedExecutor(self.plan, initial, SINGLE, self.device, layout, pipeline, True, trace)

    def check(self, executor: StreamedExecutor) -> tuple[float, float]:
        """Calibrate both tables; return the relative errors of the sums of all rows, and of some rows of the result.

        From here on the table is no longer `base` times `weights`.
        """
        executor.propagate({})
        rows, run, _ = self.sizes
        up = self.download(executor, CliqueOperand("up", 0))
        exact = self.weights.astype(np.float64) * self.base.sum(dtype=np.float64)
        sums = float(np.abs(up / exact - 1).max())
        change = self.root.astype(np.float64).sum(axis=1)
        worst, norm = 0.0, None
        for s in np.unique(np.linspace(0, rows - 1, 64).astype(int)):
            expected = self.weights[s] * change[s] * self.base.astype(np.float64)
            factor = self.table[s * run : (s + 1) * run] / expected
            norm = factor[0] if norm is None else norm
            worst = max(worst, float(np.abs(factor / norm - 1).max()))
        return sums, worst

    def download(self, executor: StreamedExecutor, operand: CliqueOperand) -> Any:
        message = executor.layout.separators.message(operand)
        host, stream = self.device.host(self.sizes[0], np.float32), self.device.stream()
        self.device.download(message.values, host, stream)
        stream.synchronize()
        return host.astype(np.float64)


def pinned(entries: int) -> Any:
    """Pinned memory: mapped, touched piece by piece, then registered, which is faster than to ask for it as such.

    Mapped without a reservation, because virtual machines may have more memory than they know of before it is used.
    """
    size = 4 * entries
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.float32, entries)
    for first in range(0, entries, 1 << 26):
        array[first : first + (1 << 26)] = 0
    register_host(array)
    return array


def ceilings(table: Any, device: CudaCliqueDevice, chunk: int) -> tuple[float, float, float]:
    """Bytes a second that copies of chunks reach: to the device, from it, and both ways at once (the sum)."""
    blocks, streams = [device.allocate(chunk * 4) for _ in range(2)], [device.stream() for _ in range(2)]
    pieces = [table[first : first + chunk] for first in range(0, min(len(table), 1 << 32) // 2, chunk)]
    back = [table[first : first + chunk] for first in range(len(table) // 2, len(table) - chunk + 1, chunk)]

    def rate(ways: Sequence[bool]) -> float:
        start, moved = time.perf_counter(), 0
        for there, here in zip(pieces, back, strict=False):
            if ways[0]:
                device.upload(there, blocks[0].ptr, streams[0])
            if ways[1]:
                device.download(blocks[1].ptr, here, streams[1])
            moved += sum(ways) * there.nbytes
        for stream in streams:
            stream.synchronize()
        return moved / (time.perf_counter() - start)

    return tuple(max(rate(ways) for _ in range(3)) for ways in ((True, False), (False, True), (True, True)))  # type: ignore[return-value]


def stream(options: argparse.Namespace) -> None:
    device = CudaCliqueDevice()
    print(f"{device.name}, {date.today()}")
    memory = int(device.figures["memory"])
    streamed = Streamed(parse_bytes(options.size), options.run, device)
    rows, run, _ = streamed.sizes
    size = streamed.table.nbytes
    print(
        f"table of {rows:,} separator entries, runs of {run:,}: {format_bytes(size)} in pinned memory (held whole; "
        f"{streamed.allocation:.0f} s to get), device memory {format_bytes(memory)}; chunks of {options.chunk}, "
        f"{options.in_flight} under way at most"
    )
    to, back, both = ceilings(streamed.table, device, parse_bytes(options.chunk) // 4)
    print(f"copies alone: {to / 1e9:.1f} GB/s in, {back / 1e9:.1f} GB/s out, {both / 1e9:.1f} GB/s both ways at once")
    streamed.fill()
    checked = streamed.check(streamed.open(options, "two"))
    print(f"relative errors: sums {checked[0]:.1e} (all rows), products {checked[1]:.1e} (64 rows)", flush=True)
    down = (CliqueOperand(DOWN, 0),)
    kinds = {
        "reduce": (CliquePass(0, True, (), (0,)), 1, to),
        "scatter": (CliquePass(0, False, down, ()), 2, both),
        "both in one pass": (CliquePass(0, False, down, (0,)), 2, both),
    }
    print("pass | pipeline | s | GB/s | of ceiling | over synchronous | copies in, kernels, copies out: s")
    print("|".join(["---"] * 7), flush=True)
    for kind, (work, ways, ceiling) in kinds.items():
        slowest = math.nan
        for pipeline in PIPELINES:
            executor = streamed.open(options, pipeline)
            seconds = min(timed(executor, work) for _ in range(options.repeats))
            slowest = seconds if pipeline == "none" else slowest
            rate = ways * size / seconds
            del executor
            parts = traced(streamed, options, pipeline, work)
            print(
                f"{kind} | {pipeline} | {seconds:.3f} | {rate / 1e9:.1f} | {rate / ceiling:.1%} | "
                f"{slowest / seconds - 1:+.0%} | {parts}",
                flush=True,
            )


def timed(executor: StreamedExecutor, work: CliquePass) -> float:
    start = time.perf_counter()
    executor.run([work])
    return time.perf_counter() - start


def traced(streamed: Streamed, options: argparse.Namespace, pipeline: Any, work: CliquePass) -> str:
    """Seconds in each stage of the pipeline, by events."""
    trace: Trace = []
    streamed.open(options, pipeline, trace).run([work])
    spent = dict.fromkeys(("in", "work", "out"), 0.0)
    for what, before, behind in trace:
        if what in spent:
            spent[what] += streamed.device.elapsed(before, behind)
    return ", ".join(f"{seconds:.2f}" for seconds in spent.values())
