"""Passes over stored tables on a GPU as tasks: integers that its kernels read (`cuda/stored.cu`).

Addresses are final, and tasks are packed into one array for any number of launches, so that what runs is settled before
anything is copied to a device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.tables.permutation import swap_array
from junctor_kernels.tables.swaps import Swap, backwards
from junctor_kernels.tables.views import Axis, View

# Threads of a block, and entries of a table that it keeps in shared memory (a multiple of 16 bytes for each thread).
THREADS, TILE = 256, 4096
# Blocks that a table or a separator is cut into, if it is large enough: several for each multiprocessor.
BLOCKS = 2048
# Entries of a table that neighbouring threads should read at neighbouring addresses: two sectors of 32 bytes.
NEAR = 16
# What kernels can count: larger tables come in chunks.
MOST_ENTRIES = 1 << 30


class RunSums(NamedTuple):
    """How the runs of a chunk are summed.

    run: entries of one.
    span: entries that a block takes.
    lanes: threads that share a run in shared memory, 0 where a block goes through long runs one by one.
    pieces: the most spans that a run touches.
    """

    run: int
    span: int
    lanes: int
    pieces: int


def runs(run: int, entries: int, width: int) -> RunSums:
    """Return how runs are summed.

    run: entries of one.
    entries: of the chunk.
    width: entries of 16 bytes.
    """
    # Where a tile has room for that, a block takes whole runs and whole vectors of 16 bytes.
    unit = math.lcm(run, width)
    if run < TILE:
        span = TILE // unit * unit or TILE
        return RunSums(run, span, min(1 << run.bit_length() - 1, THREADS), 1 if span % run == 0 else 2)
    span = max(1, -(-entries // (BLOCKS * TILE))) * TILE
    return RunSums(run, span, 0, run // span if run % span == 0 else (run - 2) // span + 2)


class GatherSums(NamedTuple):
    """How entries that lie apart are summed.

    width: separator entries of a block.
    near_terms: whether its neighbouring threads have neighbouring terms.
    pieces: parts that the terms of an entry are cut into.
    """

    width: int
    near_terms: bool
    pieces: int


def gathering(view: View) -> GatherSums:
    """Return how a chunk is summed for a separator whose variables are anywhere."""
    terms = math.prod(axis.size for axis in view.eliminated())
    entries = view.entries // terms
    near = view.axes[0].step == 0 and view.axes[0].size >= min(NEAR, terms)
    # Where entries are neighbours, a warp goes over them, or as many threads as there are entries.
    lanes = min(_power_below(terms), THREADS if near else max(1, THREADS // min(32, _power_below(entries))))
    width = THREADS // lanes
    blocks = -(-entries // width)
    pieces = max(1, min(terms // (lanes * NEAR), BLOCKS // blocks))
    return GatherSums(width, near, pieces)


def _power_below(number: int) -> int:
    return 1 << number.bit_length() - 1


class CliqueLaunch(NamedTuple):
    """A kernel over some tasks of a batch.

    tasks, starts: bytes of the batch where they begin, and where the first block of each does.
    number: of tasks.
    blocks: of all tasks together.
    summed: share of reductions: the entries that it sums, in those that it sums and multiplies.
    """

    kernel: str
    tasks: int
    starts: int
    number: int
    blocks: int
    summed: float


class SeparatorTable(NamedTuple):
    """A separator table on the device: addresses of its numbers, and of the bits of the largest of them."""

    values: int
    largest: int


class TaskBatch:
    """Tasks of any number of launches, to be packed into one array; addresses in them are final."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.itemsize = np.dtype(dtype).itemsize
        self._width = 16 // self.itemsize
        self._axes: list[Axis] = []
        self._axes_at: dict[tuple[Axis, ...], int] = {}
        self._factors: list[tuple[int, ...]] = []
        self._tasks: dict[str, list[tuple[int, ...]]] = {}
        self._blocks: dict[str, list[int]] = {}
        # Of the tasks of each kernel: entries that are summed, and those that are multiplied.
        self._work: dict[str, tuple[int, int]] = {}
        self._launched: list[tuple[str, list[tuple[int, ...]], list[int], float]] = []

    def scatter(
        self,
        table: tuple[int, int],
        entries: int,
        factors: Sequence[tuple[View, SeparatorTable]],
        summed: tuple[View, int] | None,
        adds: bool,
        parts: int,
    ) -> int:
        """Multiply a chunk by factors, and sum it for a separator whose runs lie in it; returns the parts of sums.

        table: addresses read and written (0: nothing).
        entries: of the chunk.
        factors: how the chunk walks through each, and where that is.
        summed: how the chunk walks through the separator, and the address of that.
        adds: whether sums are added to what is there.
        parts: address for parts of sums.
        """
        source, target = table
        first = len(self._factors)
        for view, message in factors:
            at = message.values + view.base * self.itemsize
            self._factors.append((at, message.largest, self._axes_of(view.axes), len(view.axes)))
        run = summed[0].run() if summed else entries
        how = runs(run, entries, self._width)
        sums, count = 0, 0
        if summed:
            sums = summed[1] + summed[0].base * self.itemsize
            count = entries // run
            if how.pieces > 1:
                out = ((Axis(count, 1),), sums, count)
                self._finish(parts, out, (run, how.span), how.pieces, adds)
                sums, count = parts, count * how.pieces
            else:
                count = 0
        task = (source, target, sums, first, len(factors), entries, run, how.span, how.lanes if summed else 0)
        # Parts are written; what they make together is added.
        work = entries if summed else 0, entries * len(factors)
        self._add("scatter_reduce", (*task, how.pieces, adds and how.pieces == 1), -(-entries // how.span), work)
        return count

    def gather(self, table: int, view: View, sums: int, adds: bool, parts: int) -> int:
        """Sum a chunk for a separator of any order; arguments and result as for `scatter`.

        table: address of the chunk.
        view: how the chunk walks through the separator.
        sums: address of the separator.
        """
        kept, out = view.kept()
        eliminated = view.eliminated()
        how = gathering(view)
        terms = math.prod(axis.size for axis in eliminated)
        entries = view.entries // terms
        sums += view.base * self.itemsize
        axes = (self._axes_of(kept), self._axes_of(out), len(kept), self._axes_of(eliminated), len(eliminated))
        split = how.pieces > 1
        task = (table, parts if split else sums, *axes, entries, terms, how.width, how.near_terms, how.pieces, adds)
        self._add("gather_reduce", task, -(-entries // how.width) * how.pieces)
        if split:
            self._finish(parts, (out, sums, entries), (0, 1), how.pieces, adds)
        return entries * how.pieces if split else 0

    def settle(self, message: SeparatorTable, entries: int, before: SeparatorTable | None = None) -> None:
        """Find the largest entry of a message. before: the message the other way, which it is divided by first."""
        old = (before.values, before.largest) if before else (0, 0)
        self._add("settle", (message.values, *old, message.largest, entries), -(-entries // THREADS))

    def permute(self, source: int, target: int, entries: int, swaps: int, count: int) -> None:
        """Bring a table into another order.

        source, target: addresses of the table as it is and as it shall be.
        entries: of it.
        swaps: address of the swaps that lead back, `count` of them.
        """
        self._add("permute", (source, target, swaps, count, entries), -(-entries // THREADS))

    def close(self) -> int:
        """End a stage: what was added is launched kernel by kernel, in the order in which one needs the other.

        Returns how many launches there are by now.
        """
        for kernel in ("permute", "scatter_reduce", "gather_reduce", "finish", "settle"):
            if kernel in self._tasks:
                summed, multiplied = self._work.pop(kernel)
                share = summed / (summed + multiplied) if summed else 0.0
                self._launched.append((kernel, self._tasks.pop(kernel), self._blocks.pop(kernel), share))
        return len(self._launched)

    def size(self) -> int:
        """Return the bytes of all that is closed."""
        return self.packed()[0].nbytes

    def packed(self) -> tuple[npt.NDArray[np.int64], list[CliqueLaunch], int, int]:
        """Return everything in one array, the launches, and where factors and axes begin in it, in bytes."""
        pieces: list[npt.NDArray[np.int64]] = []
        size = 0

        def append(array: Any, dtype: Any) -> int:
            nonlocal size
            raw = np.ascontiguousarray(np.array(array, dtype=dtype)).reshape(-1).view(np.uint8)
            words = np.zeros(-(-len(raw) // 8), dtype=np.int64)
            words.view(np.uint8)[: len(raw)] = raw
            pieces.append(words)
            size += 8 * len(words)
            return size - 8 * len(words)

        # One array, because every copy to the device has a price of its own.
        factors = append(self._factors, np.int64)
        axes = append(self._axes, np.uint32)
        launches = []
        for kernel, tasks, blocks, share in self._launched:
            starts = np.concatenate([[0], np.cumsum(blocks)])
            if starts[-1] > np.iinfo(np.int32).max:
                raise OverflowError(f"found {starts[-1]:,} blocks in a launch, a GPU takes 2^31 - 1")
            at = append(tasks, np.int64), append(starts[:-1], np.int32)
            launches.append(CliqueLaunch(kernel, *at, len(tasks), int(starts[-1]), share))
        return np.concatenate(pieces), launches, factors, axes

    def _finish(
        self, parts: int, out: tuple[tuple[Axis, ...], int, int], run: tuple[int, int], pieces: int, adds: bool
    ) -> None:
        axes, sums, entries = out
        lanes = min(32, _power_below(pieces))
        task = (parts, sums, self._axes_of(axes), len(axes), entries, *run, lanes, pieces, adds)
        self._add("finish", task, -(-entries // (THREADS // lanes)))

    def _axes_of(self, axes: tuple[Axis, ...]) -> int:
        if axes not in self._axes_at:
            self._axes_at[axes] = len(self._axes)
            self._axes += axes
        return self._axes_at[axes]

    def _add(self, kernel: str, task: tuple[int, ...], blocks: int, work: tuple[int, int] = (1, 0)) -> None:
        self._tasks.setdefault(kernel, []).append(task)
        self._blocks.setdefault(kernel, []).append(blocks)
        summed, multiplied = self._work.get(kernel, (0, 0))
        self._work[kernel] = summed + work[0], multiplied + work[1]


def swaps_back(swaps: Sequence[Swap]) -> npt.NDArray[np.int64]:
    """Return the swaps that lead back, flat, as the kernel reads them."""
    return swap_array(backwards(swaps)).reshape(-1)
