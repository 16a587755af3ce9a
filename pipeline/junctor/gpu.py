"""Programs on a GPU: a plan as launches over a block of cases, with copies in and out beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu import FIELDS, LANE_BYTES, MOST_OPERANDS, PARTS, WARP, Array, Device, run_record
from junctor_kernels.layout import Code

from junctor.gpu_items import closing_of, items_of, too_many_operands
from junctor.lowering import Lowering
from junctor.planning.arena import arena
from junctor.planning.stages import stages_of
from junctor.propagation import Block, Outcome, Program, doubtful_rows

# Lines that a tile may have, and entries of a line.
TILE_SHAPES = (*((1, n) for n in range(2, 9)), (2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (4, 2))
# Blocks on their way at once: one is brought in, one is computed, one is taken out.
IN_FLIGHT = 3
# Entry operations a second with threads over entries and with threads over cases, and what a stage takes of the latter
# however few cases there are (measured on an H100); coarse, to choose between the two.
FEW_RATE, MANY_RATE = 2e11, 1.5e12
STAGE_SECONDS = 6e-5
# Cases of a block: more gain nothing.
MOST_CASES = 1 << 16
# Numbers of states, as the kernels read them.
STATES = np.int16
# Arrays begin at multiples of so many bytes.
ALIGNED = 256

Shapes = dict[str, tuple[tuple[int, ...], npt.DTypeLike]]


class GpuProgram:
    """Runs blocks of cases of a program on a device, sum-product in single or double precision.

    rows: how many cases there are in all. host: bytes that evidence and answers on their way may take in this process.
    Blocks have `cases` cases at the most, as many as both memories allow. Few cases spread over the threads of entries
    and terms, many over threads of their own. Up to `threads` threads may run blocks at once, each at a `place` below
    that: while one block is computed the next is brought in and the last is taken out. An outcome lies in the memory of
    its place until the next block there. Raises MemoryError where a single case does not fit, and OverflowError where a
    table has more entries than the kernels count.
    """

    def __init__(self, program: Program, rows: int, device: Device, host: int) -> None:
        self._program, self._plan, self.device = program, program.plan, device
        dtype = program.algebra.dtype
        if max(self._plan.shape.cardinalities) > np.iinfo(STATES).max:
            raise OverflowError(f"a variable of {max(self._plan.shape.cardinalities):,} states is too many for the GPU")
        stages = stages_of(self._plan)
        places = arena(self._plan, stages.in_order(self._plan))
        chunk = WARP * LANE_BYTES // dtype.itemsize
        most = self._most_cases(host, places[1])
        self.many = most >= chunk and not self._is_few(rows, stages.count, chunk)
        self.cases = _in_chunks(rows, most, chunk) if self.many else min(rows, most)
        self.chunk = chunk if self.many else 1
        self._rows = {variable: row for row, variable in enumerate(sorted(self._plan.pattern.sliced))}
        lowering = Lowering(program, 1, self._rows, TILE_SHAPES if self.many else (), places)
        self._likelihoods, self._posteriors = lowering.likelihoods, lowering.posteriors
        self._fixed = {
            variable: program.normalised(program.shared[table].table)
            for variable, table in program.plan.marginals
            if table in program.shared
        }
        code = lowering.code()
        if not self.many and too_many_operands(code):
            raise OverflowError(f"a product of more than {MOST_OPERANDS} tables is more than the GPU kernels take")
        items, self.stages = items_of(lowering, code, stages, 0 if self.many else self.cases)
        self._arrays = self._put(code, items) | {"fixed": device.put(self._constant_bounds(lowering))}
        self.threads = IN_FLIGHT
        self._places = self._lay_out(lowering, dtype)

    def run(self, block: Block, place: int = 0) -> Outcome:
        """Propagate a block of cases and return its posteriors and log P(e)."""
        found, flat = self._places[place].answer(block)
        cases, width = block.cases, found.shape[1]
        log_value = found[0, :cases] + self._program.constants(block)
        posteriors: dict[int, npt.NDArray[Any]] = {
            variable: np.broadcast_to(table, (len(table), cases)) for variable, table in self._fixed.items()
        }
        for variable, row in self._posteriors.items():
            size = self._plan.shape.cardinalities[variable]
            posteriors[variable] = flat[row * width : (row + size) * width].reshape(width, size)[:cases].T
        doubtful = doubtful_rows(found[1, :cases] + found[2, :cases], log_value, self._program.algebra)
        return Outcome(log_value, posteriors, {}, doubtful)

    def _is_few(self, rows: int, stages: int, chunk: int) -> bool:
        """Tell whether threads over entries are faster for so many rows than a warp's worth of cases."""
        operations = self._plan.case_operations
        few, many = rows * operations / FEW_RATE, stages * STAGE_SECONDS + chunk * operations / MANY_RATE
        return rows <= chunk and few < many

    def _most_cases(self, host: int, arena_rows: int) -> int:
        """Return how many cases a block may have."""
        work, ways = self._shapes(arena_rows, 1), self._way_shapes(1)
        on_device = _bytes(work) + IN_FLIGHT * _bytes(ways)
        slack = ALIGNED * (len(work) + IN_FLIGHT * (len(ways) + 1))
        there, here = (self.device.room - slack) // on_device, host // (IN_FLIGHT * _bytes(ways))
        if there < 1:
            raise MemoryError(f"a case takes {on_device:,} bytes of the GPU, which has {self.device.room:,} for it")
        if here < 1:
            raise MemoryError(f"evidence and answers on their way to the GPU do not fit {host:,} bytes")
        return min(there, here, MOST_CASES)

    def _shapes(self, arena_rows: int, cases: int) -> Shapes:
        """Return the arrays of a block that stay on the device."""
        dtype, slots = self._program.algebra.dtype, max(1, len(self._plan.tables))
        words = np.dtype(f"u{dtype.itemsize}")
        return {
            "arena": ((max(1, arena_rows), cases), dtype),
            **dict.fromkeys(("lost", "open", "least"), ((slots, cases), dtype)),
            "scale": ((slots, cases), np.float64),
            "largest": ((slots, cases), words),
            "smallest": ((slots, cases), words),
            "lossy": ((cases,), words),
            "parts": ((PARTS, 3, cases), np.float64),
        }

    def _way_shapes(self, cases: int) -> Shapes:
        """Return the arrays of a block that come and go."""
        sizes, pattern = self._plan.shape.cardinalities, self._plan.pattern
        likelihoods = sum(sizes[v] for v in pattern.weighted)
        posteriors = sum(sizes[v] for v, _ in self._plan.marginals)
        return {
            "states": ((max(1, len(pattern.sliced)), cases), STATES),
            "likelihoods": ((max(1, likelihoods), cases), np.float64),
            "posteriors": ((max(1, posteriors), cases), self._program.algebra.dtype),
            "found": ((3, cases), np.float64),
        }

    def _lay_out(self, lowering: Lowering, dtype: np.dtype[Any]) -> list[_Place]:
        """Give every array its place in the room of the device."""
        start = 0

        def place(shapes: Shapes) -> dict[str, Array]:
            nonlocal start
            arrays = {}
            for name, (shape, kind) in shapes.items():
                arrays[name] = self.device.place(start, shape, kind)
                start += -(-_bytes({name: (shape, kind)}) // ALIGNED) * ALIGNED
            return arrays

        self._arrays |= place(self._shapes(max(1, lowering.arena_rows), self.cases))
        shapes = self._way_shapes(self.cases)
        return [_Place(self, lowering.likelihoods, shapes, place(shapes)) for _ in range(IN_FLIGHT)]

    def _put(self, code: Code, items: Sequence[tuple[int, ...]]) -> dict[str, Array]:
        """Bring what does not change from block to block to the device."""
        put = self.device.put
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

    def _constant_bounds(self, lowering: Lowering) -> npt.NDArray[np.float64]:
        """Return scale, lost, open and least of the tables that no case changes, in the order of their slots."""
        rows = [self._program.bounds_of(table) for table in lowering.slots if table in self._program.shared]
        return np.array(rows or [np.ones(4)])


class _Place:
    """Memory of one block on its way: evidence and answers on both sides, and the launches between."""

    def __init__(
        self, program: GpuProgram, likelihoods: dict[int, int], shapes: Shapes, arrays: dict[str, Array]
    ) -> None:
        self._device, self._chunk = program.device, program.chunk
        self._rows, self._likelihoods, self._shapes = program._rows, likelihoods, shapes
        self._arrays = arrays
        self._host = {name: self._device.host((_bytes({name: shape}),), np.uint8) for name, shape in shapes.items()}
        every = {**program._arrays, **arrays}
        fields = {name: self._device.address(array) for name, array in every.items()}
        fields |= {"cases": program.cases, "totals": program.totals, "closings": program.closings}
        record = run_record(fields)
        self._record = self._device.host((record.nbytes,), np.uint8)
        self._record[:] = record.view(np.uint8)
        self.run = self._device.put(self._record)
        chunks = program.cases // program.chunk if program.many else 1
        clears = [(program._arrays[name], byte) for name, byte in (("largest", 0), ("smallest", 0xFF), ("lossy", 0))]
        dtype = program._program.algebra.dtype
        self.replay = self._device.replay(dtype, self.run, program.stages, chunks, clears)

    def answer(self, block: Block) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any]]:
        """Run a block; returns what was found, float64 [3, lanes], and its posteriors, flat."""
        host = self._take(block)
        device, names = self._device, ["states"] * bool(self._rows) + ["likelihoods"] * bool(self._likelihoods)
        with device.queue:
            device.upload(self._record, self.run)
            for name in names:
                device.upload(host[name], self._arrays[name])
            self.replay.start()
            for name in ("posteriors", "found"):
                device.download(self._arrays[name], host[name])
            mark = device.mark()
        device.wait(mark)
        return host["found"], host["posteriors"].reshape(-1)

    def _take(self, block: Block) -> dict[str, npt.NDArray[Any]]:
        """Bring the evidence of a block into the memory that is copied; returns that memory, as wide as the block.

        Lanes beyond the last case repeat it.
        """
        lanes = -(-block.cases // self._chunk) * self._chunk
        self._record.view(np.int64)[FIELDS.index("cases")] = lanes
        host: dict[str, npt.NDArray[Any]] = {}
        for name, ((*rows, _), dtype) in self._shapes.items():
            size = math.prod(rows) * lanes * np.dtype(dtype).itemsize
            host[name] = self._host[name][:size].view(dtype).reshape(*rows, lanes)
        block.copy_to(host["states"], self._rows, host["likelihoods"], self._likelihoods)
        return host


def _in_chunks(rows: int, most: int, chunk: int) -> int:
    """Return the cases of blocks of much the same size, rather than of a small one at the end."""
    blocks = -(-rows // (most // chunk * chunk))
    return -(-rows // (blocks * chunk)) * chunk


def _bytes(shapes: Shapes) -> int:
    return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shapes.values())


def _narrowed(array: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    if array.size and max(int(array.max()), -int(array.min())) > np.iinfo(np.int32).max:
        raise OverflowError(f"found an index of {int(array.max()):,}, the GPU kernels count to 2^31")
    return np.ascontiguousarray(array, dtype=np.int32)
