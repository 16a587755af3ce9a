"""Most probable paths of sequences in lockstep: a forward pass in blocks of ticks, and a traceback through them.

Main functions: `decode`, for the engine, and `sweep`, for smoothing on a GPU as well (Viterbi 1967).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from junctor_kernels.hmm import products_cpu as hmm_cpu
from junctor_kernels.hmm import viterbi_cpu

from junctor.hmm.blocks import BlockStore, TickBlock, TrellisMemory, plan_blocks
from junctor.hmm.emissions import emission_indices
from junctor.hmm.numbers import PathNumbers, in_format, padded_rows
from junctor.hmm.packing import Lockstep, SequenceBatch
from junctor.runtime.threads import in_threads

Array = npt.NDArray[Any]
# Multiply-adds (maxima of sums) of a tick from which several threads share it: below, waking them takes longer.
SHARED_TERMS = 1 << 24


class RowStore(Protocol):
    """A device that computes rows, and its memory for them."""

    dtype: np.dtype[Any]
    row_bytes: int

    def room(self, rows: int) -> Any:
        """Return memory for a number of rows."""

    def advance(self, memory: Any, batch: SequenceBatch, steps: Lockstep, block: TickBlock) -> None:
        """Compute the rows of a block, given its first tick at the front of `memory`; tick 0 is computed as well."""

    def save(self, memory: Any, first: int, rows: int, out: Array | None = None) -> Array:
        """Return a copy of rows in host memory, [rows, numbers], in `out` if given."""

    def load(self, rows: Array, memory: Any) -> None:
        """Copy rows in host memory to the front of `memory`."""


class Decoder(RowStore, Protocol):
    """A device that computes most probable paths."""

    def trace(self, memory: Any, steps: Lockstep, block: TickBlock, path: npt.NDArray[np.int32]) -> None:
        """Write the states of a block to `path` [rows], given those of later blocks."""


def decode(
    machine: Decoder, batch: SequenceBatch, steps: Lockstep, room: TrellisMemory, folder: Path
) -> npt.NDArray[np.int32]:
    """Return the states on the most probable paths, int32 [rows], in the order of `steps`; arguments as for `sweep`."""
    path = np.zeros(steps.rows, np.int32)
    sweep(machine, batch, steps, room, folder, lambda memory, block: machine.trace(memory, steps, block, path))
    return path


def sweep(
    machine: RowStore,
    batch: SequenceBatch,
    steps: Lockstep,
    room: TrellisMemory,
    folder: Path,
    visit: Callable[[Any, TickBlock], None],
) -> None:
    """Compute all rows, and visit their blocks from the last one back.

    machine: computes and copies rows.
    batch: of the sequences.
    steps: sequences in lockstep.
    room: for the rows; raises BudgetError if it is too small.
    folder: for files.
    visit: called with the memory that holds the rows of a block, and the block.
    """
    blocks = plan_blocks(steps.starts, machine.row_bytes, room)
    memory = machine.room(max(_rows(steps, block) for block in blocks))
    firsts: dict[int, Array] = {}
    store = BlockStore(folder)
    for number, block in enumerate(blocks):
        if number:
            # Blocks overlap by one tick, so that no block needs rows outside of the memory.
            given = _last_tick(machine, memory, steps, blocks[number - 1])
            machine.load(given, memory)
            if block.place == "again":
                firsts[number] = given
        machine.advance(memory, batch, steps, block)
        if block.place in ("host", "disk"):
            rows = _rows(steps, block)
            shape = rows, machine.row_bytes // machine.dtype.itemsize
            machine.save(memory, 0, rows, store.room(number, shape, machine.dtype, block.place))
    # The last block is still in the memory.
    for number, block in reversed(list(enumerate(blocks))):
        if block.place in ("host", "disk"):
            machine.load(store.take(number), memory)
        elif block.place == "again":
            if number:
                machine.load(firsts.pop(number), memory)
            machine.advance(memory, batch, steps, block)
        visit(memory, block)


def _rows(steps: Lockstep, block: TickBlock) -> int:
    return int(steps.starts[block.last + 1] - steps.starts[block.first])


def _last_tick(machine: RowStore, memory: Any, steps: Lockstep, block: TickBlock) -> Array:
    first = int(steps.starts[block.last] - steps.starts[block.first])
    return machine.save(memory, first, int(steps.counts[block.last]))


def emissions_of(
    batch: SequenceBatch, steps: Lockstep, block: TickBlock, unobserved: int, stride: int, dtype: np.dtype[Any]
) -> tuple[npt.NDArray[np.int32], Array | None]:
    """Return the emission row of each row of a block, and those rows if the sequences have log-likelihoods."""
    where = steps.steps(batch.starts, block.first, block.last)
    which, rows = emission_indices(batch, where, unobserved), None
    if batch.likelihoods is not None:
        rows = padded_rows(in_format(batch.likelihoods[where], dtype), stride, 0.0, dtype)
    return which, rows


class CpuDecoder:
    """Compiled kernels on `threads` threads of this process."""

    def __init__(self, numbers: PathNumbers, threads: int = 1) -> None:
        self.numbers = numbers
        self.threads = threads
        self.dtype = numbers.dtype
        self.row_bytes = numbers.stride * numbers.dtype.itemsize

    def room(self, rows: int) -> Array:
        """Return memory for a number of rows."""
        return np.empty(rows * self.numbers.stride, self.numbers.dtype)

    def advance(self, memory: Array, batch: SequenceBatch, steps: Lockstep, block: TickBlock) -> None:
        """Compute the rows of a block."""
        own, stride = self.numbers, self.numbers.stride
        which, rows = emissions_of(batch, steps, block, len(own.emissions) - 1, stride, own.dtype)
        emissions = (own.emissions if rows is None else rows).reshape(-1)
        entries = len(own.matrix.numbers)
        together = self.threads > 1 and steps.counts[block.first] * entries >= SHARED_TERMS
        # Shared ticks leave only tick 0 to a single thread.
        last = 0 if together else block.last
        # `last` is 0 for a shared block: a later one has no tick 0 to begin with.
        if last or block.first == 0:
            shared = memory, stride, steps.starts, block.first, last, which, emissions
            viterbi_cpu.advance(own.start, own.matrix, own.states, *shared)
        if together:
            self._advance_together(memory, steps, block, which, emissions)

    def trace(self, memory: Array, steps: Lockstep, block: TickBlock, path: npt.NDArray[np.int32]) -> None:
        """Write the states of a block to `path`."""
        own, count = self.numbers, int(steps.counts[block.first])
        # Paths of different sequences do not depend on each other.
        parts = min(self.threads, count)
        model = own.columns, own.states, memory, own.stride
        span = steps.starts, block.first, block.last, path
        in_threads(lambda slots, _: viterbi_cpu.trace(*model, *span, slots), _ranges(count, parts), parts)

    def save(self, memory: Array, first: int, rows: int, out: Array | None = None) -> Array:
        """Copy rows."""
        copied = memory.reshape(-1, self.numbers.stride)[first : first + rows]
        if out is None:
            return copied.copy()
        out[:] = copied
        return out

    def load(self, rows: Array, memory: Array) -> None:
        """Copy rows to the front of the memory."""
        memory[: rows.size] = rows.reshape(-1)

    def _advance_together(self, memory: Array, steps: Lockstep, block: TickBlock, which: Any, emissions: Array) -> None:
        """Share the columns of each tick among threads."""
        own, stride = self.numbers, self.numbers.stride
        tasks = _ranges(hmm_cpu.parts_of(own.matrix, own.states, memory), self.threads)
        scratch = np.empty(64, own.dtype)
        # Rows in the memory are counted from the first row of the block.
        base = int(steps.starts[block.first])
        for t in range(block.first + 1, block.last + 1):
            before, after = ((int(steps.starts[tick]) - base) * stride for tick in (t - 1, t))
            count = int(steps.counts[t])
            in_threads(
                lambda part, _, at=(before, after), n=count: hmm_cpu.product(  # type: ignore[misc]
                    own.matrix, own.states, memory, *at, n, *part, True
                ),
                tasks,
                self.threads,
            )
            # After all columns: the largest entry of a row is subtracted from all of them.
            viterbi_cpu.add_emissions(memory, stride, after // stride, count, which, emissions, scratch)


def _ranges(count: int, parts: int) -> list[tuple[int, int]]:
    return list(pairwise(count * n // parts for n in range(parts + 1)))
