"""Most probable paths on a GPU: a trellis in device memory, in blocks if it is larger than that.

Main class: GpuDecoder, for the engine. The host sends symbols and receives states; rows stay on the device as long as
the trellis fits there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu.device import address_of
from junctor_kernels.hmm import device as hmm_gpu
from junctor_kernels.hmm import viterbi_gpu
from junctor_kernels.hmm.device import SequenceLaunch, stride_of
from junctor_kernels.hmm.products_cpu import Matrix

from junctor.hmm.blocks import TickBlock
from junctor.hmm.decode import emissions_of
from junctor.hmm.model import HiddenMarkovModel, SparseMatrix
from junctor.hmm.numbers import by_columns, emission_rows, in_format, log_transitions, logarithms, padded_rows
from junctor.hmm.packing import Lockstep, SequenceBatch
from junctor.model.errors import BudgetError
from junctor.planning.budget import exact_bytes
from junctor.runtime.devices import check_device, gpu_errors

Array = npt.NDArray[Any]
PROGRAM = viterbi_gpu.PROGRAM
# Results of a tick that keep all multiprocessors busy; least number of sequences in lockstep; and size of groups that
# are computed in blocks rather than halved once more.
RESULTS, TOGETHER, COMPANY = 1 << 21, 256, 64
# Share of the free device memory for a trellis unless the user gives a limit.
DEVICE_SHARE = 0.7
# Bytes of a row in addition to its numbers: first row of its tick, symbol, state.
BESIDE = 16


def open_device(dtype: npt.DTypeLike) -> Any:
    """Return the first GPU that this process sees; raises DeviceError, in words for users."""
    check_device("gpu")
    with gpu_errors():
        return hmm_gpu.ChainDevice(dtype)


def too_large(needed: int, allowed: int) -> BudgetError:
    """Return the error for a model of `needed` bytes on a GPU of which `allowed` may be used."""
    return BudgetError(
        f"the model needs {exact_bytes(needed)} of the GPU, allowed are {exact_bytes(allowed)}: raise "
        "--device-memory, or use --device cpu"
    )


def sparse_arrays(matrix: Matrix) -> dict[str, Array]:
    """Return the arrays of a sparse matrix under their names in kernels."""
    return {"begins": matrix.starts, "froms": matrix.states, "numbers": matrix.numbers}


class DeviceRows:
    """Rows of a trellis in the memory of a GPU, one number for each state."""

    def __init__(self, device: Any, states: int, dtype: npt.DTypeLike) -> None:
        self.device = device
        self.states = states
        self.dtype = np.dtype(dtype)
        self.stride = stride_of(states)
        self.row_bytes = self.stride * self.dtype.itemsize

    def allowed_of(self, memory: int | None, taken: int = 0) -> int:
        """Return the bytes that may be used: `memory` less those `taken`, or a share of the free ones."""
        return int(DEVICE_SHARE * self.device.free()) if memory is None else memory - taken

    def room(self, rows: int) -> Any:
        """Return memory for a number of rows."""
        return self.device.empty(rows * self.stride, self.dtype)

    def save(self, memory: Any, first: int, rows: int, out: Array | None = None) -> Array:
        """Copy rows to the host."""
        copied = np.empty((rows, self.stride), self.dtype) if out is None else out
        self.device.get(memory[first * self.stride : (first + rows) * self.stride], copied.reshape(-1))
        return copied

    def load(self, rows: Array, memory: Any) -> None:
        """Copy rows of the host to the front of the memory."""
        self.device.set(memory, np.ascontiguousarray(rows).reshape(-1))


class GpuDecoder(DeviceRows):
    """The kernels of `cuda/viterbi.cu` on a model.

    allowed: bytes for rows.
    together: sequences in lockstep that keep the device busy.
    Raises BudgetError if the model does not fit.
    """

    # memory: bytes of the device, None for a share of the free ones.
    def __init__(
        self, model: HiddenMarkovModel, dtype: npt.DTypeLike, memory: int | None = None, device: Any = None
    ) -> None:
        super().__init__(open_device(dtype) if device is None else device, model.states, dtype)
        self.together = max(TOGETHER, RESULTS // model.states)
        self.company = COMPANY
        self._held: dict[str, Any] = {}
        self._model: dict[str, Any] = {}
        self._transitions = len(model.entries) if model.sparse else None
        allowed = self.allowed_of(memory)
        # A state and a number of up to 8 bytes for each transition.
        needed = 12 * (self._transitions or 0) if model.sparse else self.row_bytes * self.states
        needed += (model.symbols + 2 + 2 * max(hmm_gpu.FEW)) * self.row_bytes
        if needed + 2 * self.row_bytes > allowed:
            raise too_large(needed, allowed)
        self.allowed = (allowed - needed) * self.row_bytes // (self.row_bytes + BESIDE)
        self._put_model(model)

    def room(self, rows: int) -> Any:
        """Return memory for a number of rows, the same one as long as it is large enough."""
        held = self._held.get("memory")
        if held is None or len(held) < rows * self.stride:
            # Released before the larger one is allocated: both together may exceed the device.
            held = self._held["memory"] = None
            held = self._held["memory"] = super().room(rows)
        return held

    def advance(self, memory: Any, batch: SequenceBatch, steps: Lockstep, block: TickBlock) -> None:
        """Compute the rows of a block."""
        device, counts = self.device, steps.counts[block.first : block.last + 1]
        unobserved = len(self._model["emissions"]) // self.stride - 1
        which, rows = emissions_of(batch, steps, block, unobserved, self.stride, self.dtype)
        # Arrays on the device live until the launches that read them are done.
        fields, kept = self._fields(memory, steps, block), [device.put(which)]
        fields["which"] = address_of(kept[0])
        if rows is not None:
            kept.append(device.put(rows.reshape(-1)))
            fields["emissions"] = address_of(kept[1])
        given = int(counts[0])
        # Multiprocessors recognise rows of others that are not written yet by their bits.
        device.forget(memory[given * self.stride : len(which) * self.stride])
        if block.first == 0:
            device.launch(PROGRAM, SequenceLaunch("begin", 0, 0), fields, -(-given // (viterbi_gpu.THREADS // 32)))
        for launch in viterbi_gpu.launches(counts, self.states, self._transitions, self.dtype.itemsize, device.chip):
            device.launch(PROGRAM, launch, fields, 0)
        device.synchronize()

    def trace(self, memory: Any, steps: Lockstep, block: TickBlock, path: npt.NDArray[np.int32]) -> None:
        """Write the states of a block to `path`."""
        device, first = self.device, int(steps.starts[block.first])
        # Up to the last tick, whose states the traceback of the next block has written: blocks overlap.
        part = path[first : int(steps.starts[block.last + 1])]
        states = device.put(part)
        fields = self._fields(memory, steps, block)
        fields["path"] = address_of(states)
        fields["going_on"] = steps.going_on(block.last)
        device.launch(PROGRAM, SequenceLaunch("trace", 0, 0), fields, int(steps.counts[block.first]))
        device.get(states, part)

    def _put_model(self, model: HiddenMarkovModel) -> None:
        put, logs = self.device.put, log_transitions(model, self.dtype)
        self._model |= {"columns": None, "begins": None, "froms": None, "numbers": None}
        if isinstance(model.transition, SparseMatrix):
            arrays = sparse_arrays(by_columns(model.transition, logs))
            self._model |= {name: put(array) for name, array in arrays.items()}
        else:
            self._model["columns"] = put(padded_rows(logs.T, self.stride, -np.inf, self.dtype).reshape(-1))
        start = in_format(logarithms(model.start), self.dtype)[None]
        self._model["start"] = put(padded_rows(start, self.stride, -np.inf, self.dtype)[0])
        self._model["emissions"] = put(emission_rows(model, self.stride, self.dtype).reshape(-1))
        self._model["maxima"] = self.device.empty(2 * max(hmm_gpu.FEW) * self.stride, self.dtype)

    def _fields(self, memory: Any, steps: Lockstep, block: TickBlock) -> dict[str, int]:
        starts = steps.starts_in(block.first, block.last)
        # Kept until the next block: kernels may still read it.
        self._held["starts"] = self.device.put(starts)
        fields = {name: 0 if array is None else address_of(array) for name, array in self._model.items()}
        fields |= {"starts": address_of(self._held["starts"]), "trellis": address_of(memory), "path": 0, "which": 0}
        return fields | {"states": self.states, "stride": self.stride, "ticks": len(starts) - 1, "going_on": 0}
