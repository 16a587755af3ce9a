"""Log-likelihoods and posteriors on a GPU: the backward pass turns forward rows into posteriors in place.

Main classes: GpuSmoother, for `Smoother`, and SequencePass. Blocks of rows go to the host and its disk as in decoding;
posteriors are copied in pieces through page-locked memory.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu.device import address_of
from junctor_kernels.hmm import forward_backward_gpu
from junctor_kernels.hmm.device import SequenceLaunch
from junctor_kernels.hmm.forward_backward_cpu import LN2
from junctor_kernels.hmm.forward_backward_gpu import PROGRAM, panels_of, runs_of
from junctor_kernels.hmm.products_cpu import Matrix, dense

from junctor.hmm.blocks import TickBlock, TrellisMemory, fitting
from junctor.hmm.decode import sweep
from junctor.hmm.decode_gpu import BESIDE, COMPANY, RESULTS, TOGETHER, DeviceRows, open_device, sparse_arrays, too_large
from junctor.hmm.emissions import emissions_of, offsets_of
from junctor.hmm.model import HiddenMarkovModel
from junctor.hmm.numbers import SumNumbers
from junctor.hmm.packing import Lockstep, SequenceBatch

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
# Sums of posteriors before normalisation below which a term may have vanished, by the bytes of a number; as on the
# CPU.
_LEAST_TOTAL = {4: 1e-30, 8: 1e-290}
# Bytes of posteriors copied to the host at a time, through page-locked memory.
PIECE = 1 << 26


class GpuSmoother(DeviceRows):
    """A model in one number format on a GPU.

    needed: bytes of the model.
    allowed: bytes for rows.
    beside: bytes of a sequence in addition to its rows.
    Raises BudgetError if the model does not fit.
    """

    # memory: bytes of the device, None for a share of the free ones. taken: of these, used by other formats.
    def __init__(
        self, model: HiddenMarkovModel, dtype: npt.DTypeLike, memory: int | None, taken: int = 0, device: Any = None
    ) -> None:
        super().__init__(open_device(dtype) if device is None else device, model.states, dtype)
        self.sparse = model.sparse
        matrix = self.stride * self.row_bytes
        if model.sparse:
            matrix = len(model.entries) * (4 + self.dtype.itemsize) + 8 * self.stride
        # The matrix and its transpose.
        self.needed = 2 * matrix + (model.symbols + 2) * self.row_bytes
        free = self.allowed_of(memory, taken)
        self.allowed = free - self.needed
        # Sums of two ticks in both passes, a row with emissions, and partial sums.
        self.beside = (5 + (0 if self.sparse else runs_of(self.states))) * self.row_bytes
        if self.allowed < self.beside + 4 * (self.row_bytes + BESIDE):
            raise too_large(self.needed, max(0, free))
        self.numbers = SumNumbers(model, dtype, False, self.stride, lambda matrix, _: dense(panels_of(matrix)))
        self._model = self._put_model(self.numbers)

    def answer(
        self,
        batch: SequenceBatch,
        pending: Integers,
        room: TrellisMemory,
        folder: Path,
        posteriors: Array,
        log_value: Array,
    ) -> Integers:
        """Answer sequences; return those that lost a number, ascending.

        batch: of the sequences.
        pending: int64, sequences to answer.
        room: for rows in addition to the GPU.
        folder: for files.
        posteriors, log_value: written.
        """
        if not self.numbers.fits:
            return pending
        # Half of the memory at the most for what comes with each sequence, the rest for rows.
        most = max(1, min(len(pending), max(TOGETHER, RESULTS // self.states), self.allowed // 2 // self.beside))
        # Emissions from log-likelihoods take as much as the rows.
        share = 1 if batch.likelihoods is None else 2
        here = (self.allowed - most * self.beside) * self.row_bytes // (self.row_bytes + BESIDE) // share
        room = TrellisMemory(here, max(0, room.host - PIECE), room.disk)
        lost = [pending[:0]]
        for steps in fitting(batch, pending, most, COMPANY, self.row_bytes, room):
            passing = SequencePass(self, batch, steps, posteriors)
            sweep(passing, batch, steps, room, folder, passing.visit)
            lost.append(steps.sequences[passing.finish(log_value)])
        return np.sort(np.concatenate(lost))

    def _put_model(self, numbers: SumNumbers) -> dict[str, Any]:
        put = self.device.put
        kept = {"start": put(numbers.start), "emissions": put(numbers.emissions.reshape(-1))}
        kept |= {"leasts": put(numbers.leasts), "least": put(np.array([numbers.least], self.dtype))}
        for name in ("forward", "backward"):
            matrix: Matrix = getattr(numbers, name)
            arrays = sparse_arrays(matrix) if self.sparse else {"panels": matrix.numbers}
            kept[name] = {name: put(array) for name, array in arrays.items()}
        # The copies on the device are enough; host memory is for rows.
        del numbers.forward, numbers.backward
        return kept

    def fields(self, back: bool) -> dict[str, int]:
        """Return the fields of the kernels' struct that describe the model."""
        fields: dict[str, int] = dict.fromkeys(("panels", "begins", "froms", "numbers"), 0)
        model = {**self._model, **self._model["backward" if back else "forward"]}
        fields |= {name: address_of(array) for name, array in model.items() if name not in ("forward", "backward")}
        return fields | {"states": self.states, "stride": self.stride}


class SequencePass(DeviceRows):
    """Forward and backward pass of sequences in lockstep: their rows, and the state of each sequence."""

    def __init__(self, owner: GpuSmoother, batch: SequenceBatch, steps: Lockstep, posteriors: Array) -> None:
        super().__init__(owner.device, owner.states, owner.dtype)
        self.owner = owner
        self.batch = batch
        self.steps = steps
        self.posteriors = posteriors
        count = len(steps.sequences)
        runs = 0 if owner.sparse else runs_of(owner.states)
        self._arrays = {"scaled": self.room(count), "parts": self.room(runs * count)}
        # Levels of sums, of the forward and the backward pass; the latter stay while a block is computed again.
        self._levels = 2, 2
        self._sums = self.room(2 * count), self.room(2 * count)
        self._arrays |= {"powers": self.device.put(np.zeros(count, np.int64))}
        self._arrays |= {"lost": self.device.put(np.zeros(count, np.int32))}
        # Results of the forward pass, copied before the backward pass begins.
        self._powers: Array | None = None
        self._lost: Array = np.zeros(count, np.bool_)
        self._totals: Array = np.zeros(count)
        self._vanished: Array = np.zeros(count, np.bool_)

    def advance(self, memory: Any, batch: SequenceBatch, steps: Lockstep, block: TickBlock) -> None:
        """Compute the forward rows of a block."""
        fields, kept = self._fields(memory, block, back=False)
        if block.first == 0:
            self.device.launch(PROGRAM, SequenceLaunch("begin", 0, 0), fields, int(steps.counts[0]))
        for launch in self._launches(block):
            self.device.launch(PROGRAM, launch._replace(kernel=f"forward_{launch.kernel}"), fields, 0)
        self.device.synchronize()
        del kept

    def visit(self, memory: Any, block: TickBlock) -> None:
        """Compute the posteriors of a block from its forward rows, and copy them to the host."""
        self._note(self.go_back(memory, block), block)
        steps, stride = self.steps, self.stride
        where = steps.steps(self.batch.starts, block.first, block.last)
        piece = max(1, PIECE // self.row_bytes)
        held = self.device.host(min(piece, len(where)) * stride, self.dtype)
        for begin in range(self._known(block), len(where), piece):
            end = min(begin + piece, len(where))
            copied = self.device.get(memory[begin * stride : end * stride], held[: (end - begin) * stride])
            self.posteriors[where[begin:end]] = copied.reshape(-1, stride)[:, : self.states]

    def go_back(self, memory: Any, block: TickBlock) -> Array:
        """Turn the forward rows of a block into posteriors; return the divisor of each row."""
        device, steps = self.device, self.steps
        fields, kept = self._launch_back(memory, block)
        rows = int(steps.starts[block.last + 1] - steps.starts[block.first])
        kept.append(device.empty(rows, np.float64))
        fields["totals"] = address_of(kept[-1])
        # A warp normalises a row.
        warps = forward_backward_gpu.THREADS // 32
        device.launch(PROGRAM, SequenceLaunch("normalise", 0, 0), fields, min(1 << 16, -(-rows // warps)))
        totals: Array = device.get(kept[-1], np.empty(rows, np.float64))
        return totals

    def _launch_back(self, memory: Any, block: TickBlock) -> tuple[dict[str, int], list[Any]]:
        """Enqueue the backward pass of a block; return what `_fields` does."""
        device = self.device
        if self._powers is None:
            # Before any block is computed again: that would count its powers a second time.
            self._powers = device.get(self._arrays["powers"], np.empty(len(self._lost), np.int64))
            self._lost = device.get(self._arrays["lost"], np.empty(len(self._lost), np.int32)) > 0
        fields, kept = self._fields(memory, block, back=True)
        for launch in reversed(list(self._launches(block))):
            device.launch(PROGRAM, launch._replace(kernel=f"backward_{launch.kernel}"), fields, 0)
        return fields, kept

    def finish(self, log_value: Array) -> npt.NDArray[np.bool_]:
        """Write log P of each sequence; return which of them lost a number, bool [sequences]."""
        assert self._powers is not None
        # math.log, as in the kernels of the CPU: NumPy's may differ in the last bit.
        logs = np.array([math.log(total) if total > 0 else -np.inf for total in self._totals.tolist()])
        steps = self.steps
        where = steps.steps(self.batch.starts, 0, steps.ticks - 1)
        totals = self._powers * LN2 + logs
        log_value[steps.sequences] = totals + offsets_of(self.owner.numbers, self.batch, steps, where)
        back = self.device.get(self._arrays["lost"], np.empty(len(logs), np.int32)) > 0
        # A sequence without loss in the forward pass has an exact zero: no wider format makes it possible.
        lost: npt.NDArray[np.bool_] = self._lost | ((back | self._vanished) & (logs > -np.inf))
        return lost

    def _launches(self, block: TickBlock) -> Any:
        counts, size = self.steps.counts[block.first : block.last + 1], self.dtype.itemsize
        return forward_backward_gpu.launches(counts, self.states, self.owner.sparse, size, self.device.chip)

    def _known(self, block: TickBlock) -> int:
        """Return the number of rows that a block shares with the one before: those of its first tick."""
        return int(self.steps.counts[block.first]) if block.first else 0

    def _note(self, totals: Array, block: TickBlock) -> None:
        """Record the likelihoods of sequences that end in a block, and rows whose total nearly vanished."""
        steps, first = self.steps, self._known(block)
        base = int(steps.starts[block.first])
        ticks = np.repeat(np.arange(block.first, block.last + 1), steps.counts[block.first : block.last + 1])
        slots = np.arange(base, base + len(totals)) - steps.starts[ticks]
        ticks, slots, totals = ticks[first:], slots[first:], totals[first:]
        ends = steps.lengths[slots] == ticks + 1
        self._totals[slots[ends]] = totals[ends]
        self._vanished[slots[totals <= _LEAST_TOTAL[self.dtype.itemsize]]] = True

    def _fields(self, memory: Any, block: TickBlock, back: bool) -> tuple[dict[str, int], list[Any]]:
        """Return the kernels' fields, and the arrays that have to live as long as the kernels run."""
        put, steps = self.device.put, self.steps
        which, emissions, leasts = emissions_of(
            self.owner.numbers, self.batch, steps.steps(self.batch.starts, block.first, block.last)
        )
        starts = steps.starts_in(block.first, block.last)
        kept = {"which": put(which), "starts": put(starts)}
        if self.batch.symbols is None:
            kept |= {"emissions": put(emissions.reshape(-1)), "leasts": put(leasts)}
        arrays = {**self._arrays, **kept, "trellis": memory, "sums": self._sums[back]}
        fields = self.owner.fields(back) | {name: address_of(array) for name, array in arrays.items()}
        fields |= {"ticks": len(starts) - 1, "before": block.first, "going_on": steps.going_on(block.last), "totals": 0}
        return fields | {"most": len(steps.sequences), "levels": self._levels[back]}, list(kept.values())
