"""Log-likelihoods and posteriors of the states of sequences, climbing through number formats where numbers get lost."""

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
from junctor.planning.budget import format_bytes
from junctor.runtime.threads import in_threads

Array = npt.NDArray[Any]
# Number format, and whether numbers are logarithms.
_LADDER: dict[Precision, tuple[tuple[Any, bool], ...]] = {
    "single": ((np.float32, False), (np.float64, False), (np.float64, True)),
    "double": ((np.float64, False), (np.float64, True)),
    "log": ((np.float64, True),),
}
# Sequences side by side.
TOGETHER = 16
# Rows that a thread takes beside those of its sequences.
SPARE_ROWS = 3


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """Bytes of a GPU that may be taken (None for a share of what is free), and folder and bytes of files for rows."""

    memory: int | None
    folder: Path
    files: int

    def room(self, host: int) -> TrellisMemory:
        """Return where rows may go beside the GPU."""
        return TrellisMemory(0, host, self.files)


class Smoother:
    """Answers batches of one model; what kernels take of the model is made once for each number format."""

    def __init__(self, model: HiddenMarkovModel, precision: Precision) -> None:
        self.model, self.precision = model, precision
        self._numbers: dict[int, SumNumbers] = {}
        self._gpus: dict[int, Any] = {}

    def answer(
        self,
        batch: SequenceBatch,
        found: npt.NDArray[np.int64],
        memory: int,
        threads: int,
        log_value: Array,
        gpu: GpuLimits | None = None,
    ) -> Array:
        """Return the posteriors [steps, states] of the sequences `found`, and put log P into `log_value` [sequences].

        memory: bytes for posteriors and rows; raises BudgetError where that is too small. gpu: where a GPU does it,
        but for logarithms, and for a second format that has no room there.
        """
        dtype = np.dtype(np.float32 if self.precision == "single" else np.float64)
        steps = int(batch.starts[-1])
        answers = steps * self.model.states * dtype.itemsize
        left = memory - answers
        longest = int(batch.lengths[found].max(initial=0))
        if left < 0:
            rows = self.numbers_of(0).row_bytes * (longest + SPARE_ROWS) if gpu is None else 0
            raise _too_little(memory, steps, answers + rows)
        posteriors = np.zeros((steps, self.model.states), dtype)
        for rung in range(len(_LADDER[self.precision])):
            if not len(found):
                break
            machine = self._gpu(rung, gpu) if gpu is not None else None
            if machine is not None:
                assert gpu is not None
                found = machine.answer(batch, found, gpu.room(left), gpu.folder, posteriors, log_value)
                continue
            numbers = self.numbers_of(rung)
            # All rows of a sequence are there at once, in each thread those of one.
            each = numbers.row_bytes * (int(batch.lengths[found].max()) + SPARE_ROWS)
            if each > left:
                raise _too_little(memory, steps, answers + each)
            side_by_side = min(threads, len(found), left // each)
            allowed = left // side_by_side // numbers.row_bytes - SPARE_ROWS
            found = self.smooth(numbers, batch, found, posteriors, log_value, side_by_side, allowed)
        return posteriors

    def on_gpu(self, gpu: GpuLimits) -> bool:
        """Tell whether a GPU has a place for the model; raises BudgetError or DeviceError where not."""
        return self._gpu(0, gpu) is not None

    def numbers_of(self, rung: int) -> SumNumbers:
        """Return the model in the format of a rung of the ladder, 0 the narrowest."""
        if rung not in self._numbers:
            dtype, logs = _LADDER[self.precision][rung]
            self._numbers[rung] = SumNumbers(self.model, dtype, logs)
        return self._numbers[rung]

    def _gpu(self, rung: int, gpu: GpuLimits) -> Any:
        """Return what answers on a GPU in a format; None where nothing does. Raises BudgetError for the first one."""
        dtype, logs = _LADDER[self.precision][rung]
        if logs:
            return None
        if rung not in self._gpus:
            from junctor.hmm.smooth_gpu import GpuSmoother

            taken = sum(each.needed for each in self._gpus.values() if each is not None)
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
        found: npt.NDArray[np.int64],
        posteriors: Array,
        log_value: Array,
        threads: int,
        allowed: int,
    ) -> npt.NDArray[np.int64]:
        """Answer sequences in one format; return those that lost something, in order."""
        if not numbers.fits:
            return found
        together = min(TOGETHER, -(-len(found) // threads))
        tasks = [part for steps in locksteps(batch.lengths, found, together) for part in parts_of(steps, allowed)]
        lost = in_threads(lambda steps, _: _smooth(numbers, batch, steps, posteriors, log_value), tasks, threads)
        return np.sort(np.concatenate(lost)) if lost else found[:0]


def _too_little(memory: int, steps: int, needed: int) -> BudgetError:
    return BudgetError(
        f"posteriors of {steps:,} steps need {format_bytes(needed)}, allowed are {format_bytes(memory)} (the share of "
        "a process): raise --memory, or have fewer sequences in a part (--partition-rows)"
    )


def parts_of(steps: Lockstep, rows: int) -> Sequence[Lockstep]:
    """Return sequences in groups of at most so many rows, or of one."""
    count = len(steps.sequences)
    if steps.rows <= rows or count == 1:
        return [steps]
    half = -(-count // 2)
    return [
        each
        for part in (slice(0, half), slice(half, count))
        for each in parts_of(Lockstep(steps.sequences[part], steps.lengths[part]), rows)
    ]


def _smooth(
    numbers: SumNumbers, batch: SequenceBatch, steps: Lockstep, posteriors: Array, log_value: Array
) -> npt.NDArray[np.int64]:
    """Answer some sequences; return those that lost something."""
    where = steps.steps(batch.starts, 0, steps.ticks - 1)
    which, emissions, leasts = emissions_of(numbers, batch, where)
    trellis = np.empty(len(where) * numbers.stride, numbers.dtype)
    logs = True if numbers.logs else None
    shared = trellis, numbers.stride, steps.starts, which, emissions.reshape(-1), leasts, logs
    size, least = numbers.states, numbers.least
    totals, lost = forward_backward_cpu.forward(numbers.forward, size, least, numbers.start, *shared)
    # A sequence that lost nothing on the way forward and is impossible is so for certain.
    lost |= forward_backward_cpu.backward(numbers.backward, size, least, *shared) & (totals > -np.inf)
    log_value[steps.sequences] = totals + offsets_of(numbers, batch, steps, where)
    posteriors[where] = trellis.reshape(-1, numbers.stride)[:, :size]
    found: npt.NDArray[np.int64] = steps.sequences[lost]
    return found
