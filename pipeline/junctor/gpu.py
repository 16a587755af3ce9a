"""Programs on a GPU: a plan as launches over a block of cases, with copies in and out beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu import LANE_BYTES, PARTS, WARP, Array, Device, run_record
from junctor_kernels.layout import Code

from junctor.gpu_items import closing_of, items_of
from junctor.lowering import Lowering
from junctor.planning.arena import arena
from junctor.planning.stages import stages_of
from junctor.propagation import Block, Outcome, Program, doubtful_rows

# Lines that a tile may have, and entries of a line.
TILE_SHAPES = (*((1, n) for n in range(2, 9)), (2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (4, 2))
# Blocks on their way at once: one is brought in, one is computed, one is taken out.
IN_FLIGHT = 3
# Cases from which on the case axis keeps a GPU busy by itself.
FEW_CASES = 32


class GpuProgram:
    """Runs blocks of at most `cases` cases of a program on a device, sum-product in single or double precision.

    Few cases spread over the threads of entries and terms, many over threads of their own; which of the two a program
    does is settled by `cases`. Up to `threads` threads may run blocks at once, each at a `place` below that: while one
    block is computed the next is brought in and the last is taken out. An outcome lies in the memory of its place until
    the next block there. Cases beyond the last of a block repeat it. Raises OverflowError where a table has more
    entries than the kernels count.
    """

    def __init__(self, program: Program, cases: int, device: Device) -> None:
        self._program, self._plan, self._device = program, program.plan, device
        dtype = program.algebra.dtype
        self.many = cases > FEW_CASES
        chunk = WARP * LANE_BYTES // dtype.itemsize
        self.cases = -(-cases // chunk) * chunk if self.many else cases
        self._rows = {variable: row for row, variable in enumerate(sorted(self._plan.pattern.sliced))}
        stages = stages_of(self._plan)
        places = arena(self._plan, stages.in_order(self._plan))
        lowering = Lowering(program, 1, self._rows, TILE_SHAPES if self.many else (), places)
        self._likelihoods, self._posteriors = lowering.likelihoods, lowering.posteriors
        self._fixed = {
            variable: program.normalised(program.shared[table].table)
            for variable, table in program.plan.marginals
            if table in program.shared
        }
        code = lowering.code()
        items, self._stages = items_of(lowering, code, stages, 0 if self.many else cases)
        self._arrays = self._put(code, items)
        self._arrays |= self._memory(lowering)
        self.chunks = self.cases // chunk if self.many else 1
        self._places = [_Place(self, lowering, dtype) for _ in range(IN_FLIGHT)]
        self.threads = IN_FLIGHT

    def run(self, block: Block, place: int = 0) -> Outcome:
        """Propagate a block of cases and return its posteriors and log P(e)."""
        found, flat = self._places[place].answer(block)
        cases, width = block.cases, self.cases
        log_value = found[0, :cases] + self._program.constants(block)
        posteriors: dict[int, npt.NDArray[Any]] = {
            variable: np.broadcast_to(table, (len(table), cases)) for variable, table in self._fixed.items()
        }
        for variable, row in self._posteriors.items():
            size = self._plan.shape.cardinalities[variable]
            posteriors[variable] = flat[row * width : (row + size) * width].reshape(width, size)[:cases].T
        doubtful = doubtful_rows(found[1, :cases] + found[2, :cases], log_value, self._program.algebra)
        return Outcome(log_value, posteriors, {}, doubtful)

    def _put(self, code: Code, items: list[tuple[int, ...]]) -> dict[str, Array]:
        """Bring what does not change from block to block to the device."""
        put = self._device.put
        closing, self.totals = closing_of(code)
        self.closings = len(closing)
        integers = {
            name: _narrowed(getattr(code, name))
            for name in ("steps", "parents", "operands", "offsets", "span", "terms", "observed")
        }
        return {name: put(array) for name, array in integers.items()} | {
            "items": put(np.array(items, dtype=np.int32)),
            "closing": put(closing),
            "columns": put(code.columns),
            "shared": put(code.shared),
            "scales": put(np.ascontiguousarray(code.facts[0])),
            "leasts": put(np.ascontiguousarray(code.facts[1])),
            "growth": put(code.growth),
        }

    def _memory(self, lowering: Lowering) -> dict[str, Array]:
        """Return the memory of a block that stays on the device, with the bounds of tables that no case changes."""
        dtype, slots = self._program.algebra.dtype, max(1, len(lowering.slots))
        words = np.uint32 if dtype.itemsize == 4 else np.uint64
        bounds = np.zeros((4, slots, 1))
        for table, slot in lowering.slots.items():
            if table in self._program.shared:
                value = self._program.shared[table]
                scale = self._program.log_of(value) if table in self._plan.totals else value.log_scale
                bounds[:, slot, 0] = scale[0], value.lost[0], value.open[0], value.least[0]
        memory = {
            "arena": self._device.zeros((max(1, lowering.arena_rows), self.cases), dtype),
            "largest": self._device.zeros((slots, self.cases), words),
            "smallest": self._device.zeros((slots, self.cases), words),
            "lossy": self._device.zeros(self.cases, words),
            "parts": self._device.zeros((PARTS, 3, self.cases), np.float64),
        }
        for name, values in zip(("scale", "lost", "open", "least"), bounds, strict=True):
            memory[name] = self._device.zeros((slots, self.cases), np.float64 if name == "scale" else dtype)
            memory[name][:] = self._device.put(values.astype(memory[name].dtype))
        return memory


class _Place:
    """Memory of one block on its way: evidence and answers on both sides, and the launches between."""

    def __init__(self, program: GpuProgram, lowering: Lowering, dtype: np.dtype[Any]) -> None:
        self._device, self._cases = program._device, program.cases
        self._rows, self._likelihoods = program._rows, lowering.likelihoods
        shapes: dict[str, tuple[tuple[int, ...], npt.DTypeLike]] = {
            "states": ((max(1, len(program._rows)), self._cases), np.int16),
            "likelihoods": ((max(1, lowering.likelihood_rows), self._cases), np.float64),
            "posteriors": ((max(1, lowering.posterior_rows) * self._cases,), dtype),
            "found": ((3, self._cases), np.float64),
        }
        self._host = {name: self._device.host(*shape) for name, shape in shapes.items()}
        self._arrays = {name: self._device.zeros(*shape) for name, shape in shapes.items()}
        arrays = {**program._arrays, **self._arrays}
        addresses = {name: self._device.address(array) for name, array in arrays.items()}
        counts = {"cases": self._cases, "totals": program.totals, "closings": program.closings}
        self._run = self._device.put(run_record(addresses | counts).view(np.uint8))
        clears = [(program._arrays[name], byte) for name, byte in (("largest", 0), ("smallest", 0xFF), ("lossy", 0))]
        self.replay = self._device.replay(dtype, self._run, program._stages, program.chunks, clears)

    def answer(self, block: Block) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any]]:
        """Run a block; returns what was found, float64 [3, cases], and its posteriors, flat."""
        self._take(block)
        device, names = self._device, ["states"] * bool(self._rows) + ["likelihoods"] * bool(self._likelihoods)
        with device.queue:
            for name in names:
                device.upload(self._host[name], self._arrays[name])
            self.replay.start()
            for name in ("posteriors", "found"):
                device.download(self._arrays[name], self._host[name])
            mark = device.mark()
        device.wait(mark)
        return self._host["found"], self._host["posteriors"]

    def _take(self, block: Block) -> None:
        """Bring the evidence of a block into the memory that is copied to the device."""
        cases = block.cases
        for variable, column in block.states.items():
            line = self._host["states"][self._rows[variable]]
            line[:cases] = column
            line[cases:] = column[-1]
        for variable, row in self._likelihoods.items():
            values = block.likelihoods[variable]
            lines = self._host["likelihoods"][row : row + len(values)]
            lines[:, :cases] = values
            lines[:, cases:] = values[:, -1:]


def _narrowed(array: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    if array.size and max(int(array.max()), -int(array.min())) > np.iinfo(np.int32).max:
        raise OverflowError(f"found an index of {int(array.max()):,}, the GPU kernels count to 2^31")
    return np.ascontiguousarray(array, dtype=np.int32)
