"""Log-likelihoods and posteriors on a GPU: forward rows in its memory, which on the way back become posteriors.

Rows go in blocks to the host and its disk where they have to, as those of most probable paths. Posteriors come to the
host in pieces through memory that the device writes to directly.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu.device import address_of
from junctor_kernels.hmm import forward_backward_gpu
from junctor_kernels.hmm.device import SequenceLaunch, stride_of
from junctor_kernels.hmm.forward_backward_cpu import LN2
from junctor_kernels.hmm.forward_backward_gpu import PROGRAM, panels_of, runs_of
from junctor_kernels.hmm.products_cpu import Matrix, dense

from junctor.hmm.blocks import TickBlock, TrellisMemory, fitting
from junctor.hmm.decode import sweep
from junctor.hmm.decode_gpu import BESIDE, COMPANY, DEVICE_SHARE, RESULTS, TOGETHER, open_device
from junctor.hmm.emissions import emissions_of, offsets_of
from junctor.hmm.model import HiddenMarkovModel, SparseMatrix
from junctor.hmm.numbers import SumNumbers
from junctor.hmm.packing import Lockstep, SequenceBatch
from junctor.model.errors import BudgetError
from junctor.planning.budget import format_bytes

Array = npt.NDArray[Any]
# Totals of posteriors, before they are normalised, from which on nothing vanishes, by the bytes of a number.
_LEAST_TOTAL = {4: 1e-30, 8: 1e-290}
# Bytes of posteriors that come to the host at a time.
PIECE = 1 << 26


class GpuSmoother:
    """A model in one number format on a GPU. memory: bytes that may be taken, None for a share of what is free; taken:
    bytes of other formats. needed: bytes of the model. Raises BudgetError where it does not fit.
    """

    def __init__(
        self, model: HiddenMarkovModel, dtype: npt.DTypeLike, memory: int | None, taken: int = 0, device: Any = None
    ) -> None:
        self.device = open_device(dtype) if device is None else device
        self.states, self.dtype, self.stride = model.states, np.dtype(dtype), stride_of(model.states)
        self.row_bytes = self.stride * self.dtype.itemsize
        self.sparse = isinstance(model.transition, SparseMatrix)
        entries = len(model.transition.values) if isinstance(model.transition, SparseMatrix) else 0
        matrix = entries * (4 + self.dtype.itemsize) + 8 * self.stride if self.sparse else self.stride * self.row_bytes
        self.needed = 2 * matrix + (model.symbols + 2) * self.row_bytes
        free = int(DEVICE_SHARE * self.device.free()) if memory is None else memory - taken
        self.allowed = free - self.needed
        # Sums of two ticks, there and back, rows with emissions, and the runs of sums, for each sequence.
        self.beside = (5 + (0 if self.sparse else runs_of(self.states))) * self.row_bytes
        if self.allowed < self.beside + 4 * (self.row_bytes + BESIDE):
            raise BudgetError(
                f"the model needs {format_bytes(self.needed)} of the GPU, allowed are {format_bytes(max(0, free))}: "
                "raise --device-memory, or use --device cpu"
            )
        numbers = SumNumbers(model, dtype, False, self.stride, lambda matrix, _: dense(panels_of(matrix)))
        self.numbers, self._model = numbers, self._put_model(numbers)

    def answer(
        self,
        batch: SequenceBatch,
        found: npt.NDArray[np.int64],
        room: TrellisMemory,
        folder: Path,
        posteriors: Array,
        log_value: Array,
    ) -> npt.NDArray[np.int64]:
        """Answer sequences; return those that lost something, in order. room: beside the GPU; others as `Smoother`."""
        if not self.numbers.fits:
            return found
        most = max(1, min(len(found), max(TOGETHER, RESULTS // self.states), self.allowed // 2 // self.beside))
        share = 1 if batch.likelihoods is None else 2
        here = (self.allowed - most * self.beside) * self.row_bytes // (self.row_bytes + BESIDE) // share
        room = TrellisMemory(here, max(0, room.host - PIECE), room.disk)
        lost = [found[:0]]
        for steps in fitting(batch, found, most, COMPANY, self.row_bytes, room):
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
            kept[name] = {name: put(array) for name, array in self._arrays(matrix).items()}
        # They are on the device.
        del numbers.forward, numbers.backward
        return kept

    def _arrays(self, matrix: Matrix) -> dict[str, Array]:
        if not self.sparse:
            return {"panels": matrix.numbers}
        return {"begins": matrix.starts, "froms": matrix.states, "numbers": matrix.numbers}

    def fields(self, back: bool) -> dict[str, int]:
        """Return what kernels are told of the model."""
        found: dict[str, int] = dict.fromkeys(("panels", "begins", "froms", "numbers"), 0)
        model = {**self._model, **self._model["backward" if back else "forward"]}
        found |= {name: address_of(array) for name, array in model.items() if name not in ("forward", "backward")}
        return found | {"states": self.states, "stride": self.stride}


class SequencePass:
    """Sequences that go side by side, there and back: the rows and what is known of each sequence."""

    def __init__(self, owner: GpuSmoother, batch: SequenceBatch, steps: Lockstep, posteriors: Array) -> None:
        self.owner, self.batch, self.steps, self.posteriors = owner, batch, steps, posteriors
        self.dtype, self.row_bytes, self.device = owner.dtype, owner.row_bytes, owner.device
        count = len(steps.sequences)
        runs = 0 if owner.sparse else runs_of(owner.states)

        def room(rows: int) -> Any:
            return self.device.empty(rows * owner.stride, self.dtype)

        self._arrays = {"scaled": room(count), "parts": room(runs * count)}
        # Those of the way back stay while a block is computed again.
        self._sums = room(2 * count), room(2 * count)
        self._arrays |= {"powers": self.device.put(np.zeros(count, np.int64))}
        self._arrays |= {"lost": self.device.put(np.zeros(count, np.int32))}
        # What the way forward found, kept when the way back begins.
        self._powers: Array | None = None
        self._lost: Array = np.zeros(count, np.bool_)
        self._totals: Array = np.zeros(count)
        self._vanished: Array = np.zeros(count, np.bool_)

    def room(self, rows: int) -> Any:
        """Return memory for so many rows."""
        return self.device.empty(rows * self.owner.stride, self.dtype)

    def save(self, memory: Any, first: int, rows: int, out: Array | None = None) -> Array:
        """Copy rows to the host."""
        found = np.empty((rows, self.owner.stride), self.dtype) if out is None else out
        self.device.get(memory[first * self.owner.stride : (first + rows) * self.owner.stride], found.reshape(-1))
        return found

    def load(self, rows: Array, memory: Any) -> None:
        """Copy rows of the host to the front of the memory."""
        self.device.set(memory, np.ascontiguousarray(rows).reshape(-1))

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
        """Make the posteriors of a block, whose forward rows are in the memory, and bring them to the host."""
        self._note(self.go_back(memory, block), block)
        steps, stride = self.steps, self.owner.stride
        where = steps.steps(self.batch.starts, block.first, block.last)
        piece = max(1, PIECE // self.row_bytes)
        held = self.device.host(min(piece, len(where)) * stride, self.dtype)
        for begin in range(self._known(block), len(where), piece):
            end = min(begin + piece, len(where))
            found = self.device.get(memory[begin * stride : end * stride], held[: (end - begin) * stride])
            self.posteriors[where[begin:end]] = found.reshape(-1, stride)[:, : self.owner.states]

    def go_back(self, memory: Any, block: TickBlock) -> Array:
        """Make the posteriors of a block where its forward rows are; return the totals that rows were divided by."""
        device, steps = self.device, self.steps
        if self._powers is None:
            # A block that is computed again counts again.
            self._powers = device.get(self._arrays["powers"], np.empty(len(self._lost), np.int64))
            self._lost = device.get(self._arrays["lost"], np.empty(len(self._lost), np.int32)) > 0
        fields, kept = self._fields(memory, block, back=True)
        for launch in reversed(list(self._launches(block))):
            device.launch(PROGRAM, launch._replace(kernel=f"backward_{launch.kernel}"), fields, 0)
        rows = int(steps.starts[block.last + 1] - steps.starts[block.first])
        kept.append(device.empty(rows, np.float64))
        fields["totals"] = address_of(kept[-1])
        warps = forward_backward_gpu.THREADS // 32
        device.launch(PROGRAM, SequenceLaunch("normalise", 0, 0), fields, min(1 << 16, -(-rows // warps)))
        found: Array = device.get(kept[-1], np.empty(rows, np.float64))
        return found

    def finish(self, log_value: Array) -> npt.NDArray[np.bool_]:
        """Write log P of each sequence; return which of them lost something."""
        assert self._powers is not None
        logs = np.array([math.log(total) if total > 0 else -np.inf for total in self._totals.tolist()])
        steps = self.steps
        where = steps.steps(self.batch.starts, 0, steps.ticks - 1)
        totals = self._powers * LN2 + logs
        log_value[steps.sequences] = totals + offsets_of(self.owner.numbers, self.batch, steps, where)
        back = self.device.get(self._arrays["lost"], np.empty(len(logs), np.int32)) > 0
        # A sequence that lost nothing on the way forward and is impossible is so for certain.
        found: npt.NDArray[np.bool_] = self._lost | ((back | self._vanished) & (logs > -np.inf))
        return found

    def _launches(self, block: TickBlock) -> Any:
        counts, owner = self.steps.counts[block.first : block.last + 1], self.owner
        chip = self.device.chip
        return forward_backward_gpu.launches(counts, owner.states, owner.sparse, self.dtype.itemsize, chip)

    def _known(self, block: TickBlock) -> int:
        """Return the rows of a block that the block before has as well: those of its first tick."""
        return int(self.steps.counts[block.first]) if block.first else 0

    def _note(self, totals: Array, block: TickBlock) -> None:
        """Keep what the totals of rows say: the likelihood of a sequence that ends, and whether one nearly vanished."""
        steps, first = self.steps, self._known(block)
        base = int(steps.starts[block.first])
        ticks = np.repeat(np.arange(block.first, block.last + 1), steps.counts[block.first : block.last + 1])
        slots = np.arange(base, base + len(totals)) - steps.starts[ticks]
        ticks, slots, totals = ticks[first:], slots[first:], totals[first:]
        ends = steps.lengths[slots] == ticks + 1
        self._totals[slots[ends]] = totals[ends]
        self._vanished[slots[totals <= _LEAST_TOTAL[self.dtype.itemsize]]] = True

    def _fields(self, memory: Any, block: TickBlock, back: bool) -> tuple[dict[str, int], list[Any]]:
        """Return what kernels are told, and arrays that have to live as long as they run."""
        put, steps = self.device.put, self.steps
        which, emissions, leasts = emissions_of(
            self.owner.numbers, self.batch, steps.steps(self.batch.starts, block.first, block.last)
        )
        starts = steps.starts[block.first : block.last + 2] - steps.starts[block.first]
        kept = {"which": put(which), "starts": put(starts)}
        if self.batch.symbols is None:
            kept |= {"emissions": put(emissions.reshape(-1)), "leasts": put(leasts)}
        arrays = {**self._arrays, **kept, "trellis": memory, "sums": self._sums[back]}
        fields = self.owner.fields(back) | {name: address_of(array) for name, array in arrays.items()}
        going_on = int(steps.counts[block.last + 1]) if block.last + 1 < steps.ticks else 0
        fields |= {"ticks": len(starts) - 1, "before": block.first, "going_on": going_on, "totals": 0}
        return fields | {"most": len(steps.sequences)}, list(kept.values())
