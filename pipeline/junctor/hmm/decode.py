"""Sequences side by side: forwards block by block, and back through the same blocks; for most probable paths."""

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
from junctor.hmm.numbers import PathNumbers, in_format, padded_rows
from junctor.hmm.packing import Lockstep, SequenceBatch
from junctor.runtime.threads import in_threads

Array = npt.NDArray[Any]
# Terms of a tick from which on several threads share it.
SHARED_TERMS = 1 << 24


class RowStore(Protocol):
    """Who computes rows, and the memory that they are in while it does."""

    dtype: np.dtype[Any]
    row_bytes: int

    def room(self, rows: int) -> Any:
        """Return memory for so many rows."""

    def advance(self, memory: Any, batch: SequenceBatch, steps: Lockstep, block: TickBlock) -> None:
        """Compute the rows of a block, whose first tick lies at the front of `memory`; tick 0 as well."""

    def save(self, memory: Any, first: int, rows: int, out: Array | None = None) -> Array:
        """Copy rows to `out`, or to an array of the host, [rows, numbers]."""

    def load(self, rows: Array, memory: Any) -> None:
        """Copy rows of the host to the front of `memory`."""


class Decoder(RowStore, Protocol):
    """Who finds most probable paths."""

    def trace(self, memory: Any, steps: Lockstep, block: TickBlock, path: npt.NDArray[np.int32]) -> None:
        """Write the states of a block to `path` [rows], from what is there of later blocks."""


def decode(
    machine: Decoder, batch: SequenceBatch, steps: Lockstep, room: TrellisMemory, folder: Path
) -> npt.NDArray[np.int32]:
    """Return the states on the most probable paths, int32 [rows] as `steps` orders them; others as for `sweep`."""
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
    """Compute all rows, and visit the blocks that they lie in from the last one back.

    room: for the rows; BudgetError where it is too small. folder: for files. visit: is given the memory with the rows
    of a block, and the block.
    """
    blocks = plan_blocks(steps.starts, machine.row_bytes, room)
    memory = machine.room(max(_rows(steps, block) for block in blocks))
    firsts: dict[int, Array] = {}
    store = BlockStore(folder)
    for number, block in enumerate(blocks):
        if number:
            given = _last_tick(machine, memory, steps, blocks[number - 1])
            machine.load(given, memory)
            if block.place == "again":
                firsts[number] = given
        machine.advance(memory, batch, steps, block)
        if block.place in ("host", "disk"):
            rows = _rows(steps, block)
            shape = rows, machine.row_bytes // machine.dtype.itemsize
            machine.save(memory, 0, rows, store.room(number, shape, machine.dtype, block.place))
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
    """Return the emission row of each row of a block, and those rows where the sequences bring them themselves."""
    where = steps.steps(batch.starts, block.first, block.last)
    if batch.symbols is not None:
        symbols = batch.symbols[where]
        return np.where(symbols < 0, unobserved, symbols).astype(np.int32), None
    assert batch.likelihoods is not None
    rows = padded_rows(in_format(batch.likelihoods[where], dtype), stride, 0.0, dtype)
    return np.arange(len(where), dtype=np.int32), rows


class CpuDecoder:
    """Compiled kernels on some threads of this process."""

    def __init__(self, numbers: PathNumbers, threads: int = 1) -> None:
        self.numbers, self.threads, self.dtype = numbers, threads, numbers.dtype
        self.row_bytes = numbers.stride * numbers.dtype.itemsize

    def room(self, rows: int) -> Array:
        """Return memory for so many rows."""
        return np.empty(rows * self.numbers.stride, self.numbers.dtype)

    def advance(self, memory: Array, batch: SequenceBatch, steps: Lockstep, block: TickBlock) -> None:
        """Compute the rows of a block."""
        own, stride = self.numbers, self.numbers.stride
        which, rows = emissions_of(batch, steps, block, len(own.emissions) - 1, stride, own.dtype)
        emissions = (own.emissions if rows is None else rows).reshape(-1)
        together = self.threads > 1 and steps.counts[block.first] * self._entries() >= SHARED_TERMS
        last = 0 if together else block.last
        if last or block.first == 0:
            shared = memory, stride, steps.starts, block.first, last, which, emissions
            viterbi_cpu.advance(own.start, own.matrix, own.states, *shared)
        if together:
            self._advance_together(memory, steps, block, which, emissions)

    def trace(self, memory: Array, steps: Lockstep, block: TickBlock, path: npt.NDArray[np.int32]) -> None:
        """Write the states of a block to `path`."""
        own, count = self.numbers, int(steps.counts[block.first])
        parts = min(self.threads, count)
        ends = [count * n // parts for n in range(parts + 1)]
        in_threads(
            lambda slots, _: viterbi_cpu.trace(
                own.columns, own.states, memory, own.stride, steps.starts, block.first, block.last, path, slots
            ),
            list(pairwise(ends)),
            parts,
        )

    def save(self, memory: Array, first: int, rows: int, out: Array | None = None) -> Array:
        """Copy rows."""
        found = memory.reshape(-1, self.numbers.stride)[first : first + rows]
        if out is None:
            return found.copy()
        out[:] = found
        return out

    def load(self, rows: Array, memory: Array) -> None:
        """Copy rows to the front of the memory."""
        memory[: rows.size] = rows.reshape(-1)

    def _entries(self) -> int:
        return len(self.numbers.matrix.numbers)

    def _advance_together(self, memory: Array, steps: Lockstep, block: TickBlock, which: Any, emissions: Array) -> None:
        """Share the columns of each tick among threads."""
        own, stride = self.numbers, self.numbers.stride
        parts = hmm_cpu.parts_of(own.matrix, own.states, memory)
        ends = [parts * n // self.threads for n in range(self.threads + 1)]
        tasks = list(pairwise(ends))
        scratch = np.empty(64, own.dtype)
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
            viterbi_cpu.add_emissions(memory, stride, after // stride, count, which, emissions, scratch)
