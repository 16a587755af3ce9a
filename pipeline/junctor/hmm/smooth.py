"""Log-likelihoods and posteriors of the states of sequences, in wider number formats where numbers leave the range.

Main class: Smoother, for the engine; the forward-backward algorithm (Rabiner 1989).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.hmm import forward_backward_cpu

from junctor.hmm.blocks import TrellisMemory
from junctor.hmm.emissions import emissions_of, offsets_of
from junctor.hmm.model import HiddenMarkovModel
from junctor.hmm.numbers import SumNumbers
from junctor.hmm.packing import Lockstep, SequenceBatch, locksteps
from junctor.model.errors import BudgetError
from junctor.model.query import Precision
from junctor.planning.budget import exact_bytes
from junctor.runtime.threads import in_threads

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
# Number formats in the order of trial, and whether numbers are logarithms. Sequences that lose a number in one format
# are computed again in the next.
_LADDER: dict[Precision, tuple[tuple[Any, bool], ...]] = {
    "single": ((np.float32, False), (np.float64, False), (np.float64, True)),
    "double": ((np.float64, False), (np.float64, True)),
    "log": ((np.float64, True),),
}
# Sequences in lockstep.
TOGETHER = 16
# Rows of a thread in addition to those of its sequences, for the backward pass.
SPARE_ROWS = 3


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """Limits of smoothing on a GPU.

    memory: bytes of the device, None for a share of the free ones.
    folder: for files of rows.
    files: bytes of them.
    """

    memory: int | None
    folder: Path
    files: int

    def room(self, host: int) -> TrellisMemory:
        """Return the bytes for rows in addition to the GPU, given those of the host."""
        return TrellisMemory(0, host, self.files)


class Smoother:
    """Smooths batches of one model; its numbers are prepared once for each number format."""

    def __init__(self, model: HiddenMarkovModel, precision: Precision) -> None:
        self.model = model
        self.precision = precision
        self._numbers: dict[int, SumNumbers] = {}
        self._gpus: dict[int, Any] = {}

    def answer(
        self,
        batch: SequenceBatch,
        pending: Integers,
        memory: int,
        threads: int,
        log_value: Array,
        gpu: GpuLimits | None = None,
    ) -> Array:
        """Return the posteriors [steps, states] of the `pending` sequences.

        batch: of the sequences.
        pending: int64, sequences to answer.
        memory: bytes for posteriors and rows; raises BudgetError if they are too few.
        threads: of the CPU.
        log_value: float64 [sequences], log P is written there.
        gpu: limits of a GPU, None for the CPU. Logarithms, and a second format without room there, stay on the CPU.
        """
        dtype = np.dtype(np.float32 if self.precision == "single" else np.float64)
        steps = int(batch.starts[-1])
        answers = steps * self.model.states * dtype.itemsize
        left = memory - answers
        if left < 0:
            longest = int(batch.lengths[pending].max(initial=0))
            rows = self.numbers_of(0).row_bytes * (longest + SPARE_ROWS) if gpu is None else 0
            raise _too_little(memory, steps, answers + rows)
        posteriors = np.zeros((steps, self.model.states), dtype)
        for rung in range(len(_LADDER[self.precision])):
            if not len(pending):
                break
            if gpu is not None and (machine := self._gpu(rung, gpu)) is not None:
                pending = machine.answer(batch, pending, gpu.room(left), gpu.folder, posteriors, log_value)
                continue
            numbers = self.numbers_of(rung)
            # A thread holds all rows of a sequence at once.
            needed = numbers.row_bytes * (int(batch.lengths[pending].max()) + SPARE_ROWS)
            if needed > left:
                raise _too_little(memory, steps, answers + needed)
            workers = min(threads, len(pending), left // needed)
            allowed = left // workers // numbers.row_bytes - SPARE_ROWS
            pending = self.smooth(numbers, batch, pending, posteriors, log_value, workers, allowed)
        return posteriors

    def on_gpu(self, gpu: GpuLimits) -> bool:
        """Return True if a GPU has room for the model; raises BudgetError or DeviceError otherwise."""
        return self._gpu(0, gpu) is not None

    def numbers_of(self, rung: int) -> SumNumbers:
        """Return the model in the number format `rung`, 0 for the narrowest."""
        if rung not in self._numbers:
            dtype, logs = _LADDER[self.precision][rung]
            self._numbers[rung] = SumNumbers(self.model, dtype, logs)
        return self._numbers[rung]

    def _gpu(self, rung: int, gpu: GpuLimits) -> Any:
        """Return the smoother of a GPU in a format, None if it has no room; raises BudgetError for the first format."""
        dtype, logs = _LADDER[self.precision][rung]
        if logs:
            return None
        if rung not in self._gpus:
            from junctor.hmm.smooth_gpu import GpuSmoother

            # Models in narrower formats stay on the device for the next batch.
            taken = sum(smoother.needed for smoother in self._gpus.values() if smoother is not None)
            try:
                self._gpus[rung] = GpuSmoother(self.model, dtype, gpu.memory, taken)
            except BudgetError:
                if rung == 0:
                    raise
                self._gpus[rung] = None
        return self._gpus[rung]

    def smooth(
        self,
        numbers: SumNumbers,
        batch: SequenceBatch,
        pending: Integers,
        posteriors: Array,
        log_value: Array,
        threads: int,
        allowed: int,
    ) -> Integers:
        """Answer sequences in one format; return those that lost a number, ascending.

        numbers: the model in that format.
        batch: of the sequences.
        pending: int64, sequences to answer.
        posteriors, log_value: written.
        threads: of the CPU.
        allowed: rows of a thread.
        """
        if not numbers.fits:
            return pending
        together = min(TOGETHER, -(-len(pending) // threads))
        tasks = [part for steps in locksteps(batch.lengths, pending, together) for part in parts_of(steps, allowed)]
        lost = in_threads(lambda steps, _: _smooth(numbers, batch, steps, posteriors, log_value), tasks, threads)
        return np.sort(np.concatenate(lost)) if lost else pending[:0]


def _too_little(memory: int, steps: int, needed: int) -> BudgetError:
    return BudgetError(
        f"posteriors of {steps:,} steps need {exact_bytes(needed)}, allowed are {exact_bytes(memory)} (the share of "
        "a process): raise --memory, or have fewer sequences in a part (--partition-rows)"
    )


def parts_of(steps: Lockstep, rows: int) -> Sequence[Lockstep]:
    """Return the sequences in groups of at most `rows` rows, or of one sequence."""
    if steps.rows <= rows or len(steps.sequences) == 1:
        return [steps]
    return [part for half in steps.halves() for part in parts_of(half, rows)]


def _smooth(
    numbers: SumNumbers, batch: SequenceBatch, steps: Lockstep, posteriors: Array, log_value: Array
) -> Integers:
    """Answer sequences in lockstep; return those that lost a number."""
    where = steps.steps(batch.starts, 0, steps.ticks - 1)
    which, emissions, leasts = emissions_of(numbers, batch, where)
    trellis = np.empty(len(where) * numbers.stride, numbers.dtype)
    # None and True are types to Numba: the kernels are compiled without a branch.
    logs = True if numbers.logs else None
    shared = trellis, numbers.stride, steps.starts, which, emissions.reshape(-1), leasts, logs
    size, least = numbers.states, numbers.least
    totals, lost = forward_backward_cpu.forward(numbers.forward, size, least, numbers.start, *shared)
    # A sequence without loss in the forward pass has an exact zero: no wider format makes it possible.
    lost |= forward_backward_cpu.backward(numbers.backward, size, least, *shared) & (totals > -np.inf)
    log_value[steps.sequences] = totals + offsets_of(numbers, batch, steps, where)
    posteriors[where] = trellis.reshape(-1, numbers.stride)[:, :size]
    again: Integers = steps.sequences[lost]
    return again
