"""Most probable paths on a GPU: a trellis in its memory, in blocks that go to the host and its disk where they have to.

The host hands in symbols and takes out states; rows stay where they are computed unless the trellis is larger than the
device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu.device import address_of
from junctor_kernels.hmm import device as hmm_gpu
from junctor_kernels.hmm import viterbi_gpu
from junctor_kernels.hmm.device import SequenceLaunch, stride_of

from junctor.hmm.blocks import TickBlock
from junctor.hmm.decode import emissions_of
from junctor.hmm.model import HiddenMarkovModel, SparseMatrix
from junctor.hmm.numbers import by_columns, emission_rows, in_format, log_transitions, logarithms, padded_rows
from junctor.hmm.packing import Lockstep, SequenceBatch
from junctor.model.errors import BudgetError
from junctor.planning.budget import format_bytes
from junctor.runtime.devices import check_device, gpu_errors

Array = npt.NDArray[Any]
PROGRAM = viterbi_gpu.PROGRAM
# Results of a tick from which on all multiprocessors have enough to do, and sequences side by side at the least;
# those that rather stay together, though their trellis goes in blocks, than be fewer.
RESULTS, TOGETHER, COMPANY = 1 << 21, 256, 64
# Share of the free memory of the device that a trellis may take when nobody says how much.
DEVICE_SHARE = 0.7
# Bytes beside each row: where its tick begins, its symbol, its state.
BESIDE = 16


def open_device(dtype: npt.DTypeLike) -> Any:
    """Return this process's GPU for sequences, the first that it sees; raises DeviceError, in words for users."""
    check_device("gpu")
    with gpu_errors():
        return hmm_gpu.ChainDevice(dtype)


class GpuDecoder:
    """The kernels of `cuda/viterbi.cu`. allowed: bytes for rows; together: sequences that are worth it side by side.

    memory: bytes of the device that may be taken, None for a share of what is free. Raises BudgetError where the model
    does not fit.
    """

    def __init__(
        self, model: HiddenMarkovModel, dtype: npt.DTypeLike, memory: int | None = None, device: Any = None
    ) -> None:
        self.device = open_device(dtype) if device is None else device
        self.states, self.dtype, self.stride = model.states, np.dtype(dtype), stride_of(model.states)
        self.row_bytes = self.stride * self.dtype.itemsize
        self.together, self.company = max(TOGETHER, RESULTS // model.states), COMPANY
        self._held: dict[str, Any] = {}
        self._model: dict[str, Any] = {}
        transition = model.transition
        sparse = isinstance(transition, SparseMatrix)
        self._transitions = len(transition.values) if isinstance(transition, SparseMatrix) else None
        allowed = int(DEVICE_SHARE * self.device.free()) if memory is None else memory
        needed = 12 * (self._transitions or 0) if sparse else self.row_bytes * self.states
        needed += (model.symbols + 2 + 2 * max(hmm_gpu.FEW)) * self.row_bytes
        if needed + 2 * self.row_bytes > allowed:
            raise BudgetError(
                f"the model needs {format_bytes(needed)} of the GPU, allowed are {format_bytes(allowed)}: raise "
                "--device-memory, or use --device cpu"
            )
        self.allowed = (allowed - needed) * self.row_bytes // (self.row_bytes + BESIDE)
        self._put_model(model)

    def room(self, rows: int) -> Any:
        """Return memory for so many rows."""
        held = self._held.get("memory")
        if held is None or len(held) < rows * self.stride:
            self._held["memory"] = None
            held = self._held["memory"] = self.device.empty(rows * self.stride, self.dtype)
        return held

    def advance(self, memory: Any, batch: SequenceBatch, steps: Lockstep, block: TickBlock) -> None:
        """Compute the rows of a block."""
        device, counts = self.device, steps.counts[block.first : block.last + 1]
        unobserved = len(self._model["emissions"]) // self.stride - 1
        which, rows = emissions_of(batch, steps, block, unobserved, self.stride, self.dtype)
        fields, kept = self._fields(memory, steps, block), [device.put(which)]
        fields["which"] = address_of(kept[0])
        if rows is not None:
            kept.append(device.put(rows.reshape(-1)))
            fields["emissions"] = address_of(kept[1])
        given = int(counts[0])
        device.forget(memory[given * self.stride : len(which) * self.stride])
        if block.first == 0:
            device.launch(PROGRAM, SequenceLaunch("begin", 0, 0), fields, -(-given // (viterbi_gpu.THREADS // 32)))
        for launch in viterbi_gpu.launches(counts, self.states, self._transitions, self.dtype.itemsize, device.chip):
            device.launch(PROGRAM, launch, fields, 0)
        device.synchronize()

    def trace(self, memory: Any, steps: Lockstep, block: TickBlock, path: npt.NDArray[np.int32]) -> None:
        """Write the states of a block to `path`."""
        device, first = self.device, int(steps.starts[block.first])
        part = path[first : int(steps.starts[block.last + 1])]
        states = device.put(part)
        fields = self._fields(memory, steps, block)
        fields["path"] = address_of(states)
        fields["going_on"] = int(steps.counts[block.last + 1]) if block.last + 1 < steps.ticks else 0
        device.launch(PROGRAM, SequenceLaunch("trace", 0, 0), fields, int(steps.counts[block.first]))
        device.get(states, part)

    def save(self, memory: Any, first: int, rows: int, out: Array | None = None) -> Array:
        """Copy rows to the host."""
        part = memory[first * self.stride : (first + rows) * self.stride]
        found = np.empty((rows, self.stride), self.dtype) if out is None else out
        self.device.get(part, found.reshape(-1))
        return found

    def load(self, rows: Array, memory: Any) -> None:
        """Copy rows of the host to the front of the memory."""
        self.device.set(memory, np.ascontiguousarray(rows).reshape(-1))

    def _put_model(self, model: HiddenMarkovModel) -> None:
        put, logs = self.device.put, log_transitions(model, self.dtype)
        self._model |= {"columns": None, "begins": None, "froms": None, "numbers": None}
        if isinstance(model.transition, SparseMatrix):
            columns = by_columns(model.transition, logs)
            self._model |= {
                "begins": put(columns.starts),
                "froms": put(columns.states),
                "numbers": put(columns.numbers),
            }
        else:
            self._model["columns"] = put(padded_rows(logs.T, self.stride, -np.inf, self.dtype).reshape(-1))
        start = in_format(logarithms(model.start), self.dtype)[None]
        self._model["start"] = put(padded_rows(start, self.stride, -np.inf, self.dtype)[0])
        self._model["emissions"] = put(emission_rows(model, self.stride, self.dtype).reshape(-1))
        self._model["maxima"] = self.device.empty(2 * max(hmm_gpu.FEW) * self.stride, self.dtype)

    def _fields(self, memory: Any, steps: Lockstep, block: TickBlock) -> dict[str, int]:
        starts = steps.starts[block.first : block.last + 2] - steps.starts[block.first]
        # Kept until the next block: kernels may still read it.
        self._held["starts"] = self.device.put(starts)
        fields = {name: 0 if array is None else address_of(array) for name, array in self._model.items()}
        fields |= {"starts": address_of(self._held["starts"]), "trellis": address_of(memory), "path": 0, "which": 0}
        return fields | {"states": self.states, "stride": self.stride, "ticks": len(starts) - 1, "going_on": 0}
