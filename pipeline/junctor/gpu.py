"""Programs on a GPU: a plan as launches over a block of cases, with copies in and out beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu import FIELDS, LANE_BYTES, MOST_OPERANDS, PARTS, WARP, Array, Device, Work, run_record
from junctor_kernels.layout import Code
from junctor_kernels.reference import LOG

from junctor.answers import Answers, sources_of
from junctor.gpu_items import Schedule, closing_of, items_of, too_many_operands
from junctor.lowering import Lowering
from junctor.measurements import Device as MeasuredDevice
from junctor.planning.arena import arena
from junctor.planning.stages import Stages, stages_of
from junctor.propagation import Block, Outcome, Program, doubtful_rows
from junctor.speeds import DeviceSpeeds, plan_work, speeds_here

# Lines that a tile may have, and entries of a line.
TILE_SHAPES = (*((1, n) for n in range(2, 9)), (2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (4, 2))
# Blocks on their way at once: one is brought in, one is computed, one is taken out.
IN_FLIGHT = 3
# Cases of a block: more gain nothing, fewer leave multiprocessors idle. In log space all threads go over entries.
MOST_CASES, FEWEST_CASES, LOG_CASES = 1 << 16, 1 << 12, 256
# Between the two, a quarter of a batch and so many bytes of answers at the most: they go out beside the next block.
BLOCKS, BLOCK_BYTES = 4, 350_000_000
# Numbers of states, as the kernels read them.
STATES = np.int16
# Arrays begin at multiples of so many bytes.
ALIGNED = 256

Shapes = dict[str, tuple[tuple[int, ...], npt.DTypeLike]]


class GpuProgram:
    """Runs blocks of cases of a program on a device: sum-product in single or double precision, or in log space.

    rows: how many cases there are in all. host: bytes that evidence and answers on their way may take in this process.
    Blocks have `cases` cases at the most, as many as both memories allow. Few cases spread over the threads of entries
    and terms, many over threads of their own. Up to `threads` threads may have blocks answered at once, each at a
    `place` below that: while one block is computed the next is brought in and the last is taken out. Raises MemoryError
    where a single case does not fit, and OverflowError where a table has more entries than the kernels count.
    """

    def __init__(
        self, program: Program, rows: int, device: Device, host: int, speeds: DeviceSpeeds | None = None
    ) -> None:
        self._program, self._plan, self.device = program, program.plan, device
        dtype = program.algebra.dtype
        if max(self._plan.shape.cardinalities) > np.iinfo(STATES).max:
            raise OverflowError(f"a variable of {max(self._plan.shape.cardinalities):,} states is too many for the GPU")
        stages = stages_of(self._plan)
        places = arena(self._plan, stages.in_order(self._plan))
        chunk = WARP * LANE_BYTES // dtype.itemsize
        apiece = _bytes({"posteriors": self._way_shapes(1)["posteriors"]})
        overlapping = max(FEWEST_CASES, min(-(-rows // BLOCKS), BLOCK_BYTES // apiece))
        most = min(self._most_cases(host, places[1]), LOG_CASES if program.algebra is LOG else overlapping)
        self._speeds = speeds
        self.many = most >= chunk and program.algebra is not LOG and not self._is_few(rows, stages.count, chunk)
        self.cases = _in_chunks(rows, most, chunk) if self.many else min(rows, most)
        self.chunk = chunk if self.many else 1
        self._rows = {variable: row for row, variable in enumerate(sorted(self._plan.pattern.sliced))}
        lowering, code = self._lower(places)
        self._likelihoods, self._posteriors = lowering.likelihoods, lowering.posteriors
        if not self.many and too_many_operands(code):
            raise OverflowError(f"a product of more than {MOST_OPERANDS} tables is more than the GPU kernels take")
        items, self.stages, self.work = self._schedule(lowering, code, stages)
        self._arrays = self._put(code, items) | {"fixed": device.put(self._constant_bounds(lowering))}
        self._settled, self._arrays["settled"] = self._settled_posteriors()
        self._targets: Array | None = None
        self.threads = IN_FLIGHT
        self._places = self._lay_out(lowering, dtype)

    def answer(self, block: Block, rows: npt.NDArray[np.int64], answers: Answers, place: int = 0) -> Outcome:
        """Propagate a block of cases; the device writes its posteriors to `rows` of the answers.

        Those lie in memory that the device's `host` gave.
        """
        under_way = self._places[place].begin(block, rows, answers)
        # While the device is at work.
        constants = self._program.constants(block)
        found = under_way()[:, : block.cases]
        log_value = found[0] + constants
        return Outcome(log_value, {}, {}, doubtful_rows(found[1] + found[2], log_value, self._program.algebra))

    def targets(self, answers: Answers) -> Array:
        """Return where the posterior of each target comes from; `queue` of the device has to be held."""
        if self._targets is None:
            sizes = self._plan.shape.cardinalities
            sources = sources_of(answers.targets, sizes, self._posteriors, self._rows, self._settled)
            self._targets = self.device.put(_narrowed(sources))
        return self._targets

    @cached_property
    def speeds(self) -> DeviceSpeeds:
        """What is known of the device, or of the one that is most like it."""
        return self._speeds or speeds_here().gpu(MeasuredDevice(self.device.name, self.device.figures))

    def _lower(self, places: tuple[dict[int, int], int]) -> tuple[Lowering, Code]:
        """Return the arrays of the plan."""
        lowering = Lowering(self._program, 1, self._rows, TILE_SHAPES if self.many else (), places)
        return lowering, lowering.code()

    def _schedule(self, lowering: Lowering, code: Code, stages: Stages) -> Schedule:
        """Return the items of a block and its launches."""
        cases, chunks = (0, self.cases // self.chunk) if self.many else (self.cases, 0)
        return items_of(lowering, code, stages, cases, chunks, self.speeds.launching(self._program.algebra))

    def _is_few(self, rows: int, stages: int, chunk: int) -> bool:
        """Tell whether threads over entries are faster for so many rows than a warp's worth of cases."""
        if rows > chunk:
            return False
        few, many = (plan_work(self._plan, stages, cases, rows) for cases in (rows, chunk))
        prices, name = self.speeds.prices, self._program.algebra.name
        return prices[f"few-{name}"].of_plan(few) < prices[f"many-{name}"].of_plan(many)

    def _most_cases(self, host: int, arena_rows: int) -> int:
        """Return how many cases a block may have."""
        work, ways = self._shapes(arena_rows, 1), self._way_shapes(1)
        on_device = _bytes(work) + IN_FLIGHT * _bytes(ways)
        slack = ALIGNED * (len(work) + IN_FLIGHT * (len(ways) + 1))
        del ways["posteriors"]
        there, here = (self.device.room - slack) // on_device, host // (IN_FLIGHT * _bytes(ways))
        if there < 1:
            raise MemoryError(f"a case takes {on_device:,} bytes of the GPU, which has {self.device.room:,} for it")
        if here < 1:
            raise MemoryError(f"evidence on its way to the GPU does not fit {host:,} bytes")
        return min(there, here, MOST_CASES)

    def _shapes(self, arena_rows: int, cases: int) -> Shapes:
        """Return the arrays of a block that stay on the device."""
        dtype, slots = self._program.algebra.dtype, max(1, len(self._plan.tables))
        words = np.dtype(f"u{dtype.itemsize}")
        return {
            "arena": ((max(1, arena_rows), cases), dtype),
            **dict.fromkeys(("lost", "open", "least"), ((slots, cases), dtype)),
            "scale": ((slots, cases), np.float64),
            # The largest entries, the smallest, and who lost something, side by side: they are cleared at once.
            "extremes": ((2 * slots + 1, cases), words),
            "parts": ((PARTS, 3, cases), np.float64),
        }

    def _way_shapes(self, cases: int) -> Shapes:
        """Return the arrays of a block on its way; its posteriors go out by themselves, the others have a copy here."""
        sizes, pattern = self._plan.shape.cardinalities, self._plan.pattern
        likelihoods = sum(sizes[v] for v in pattern.weighted)
        posteriors = sum(sizes[v] for v, _ in self._plan.marginals)
        return {
            "states": ((max(1, len(pattern.sliced)), cases), STATES),
            "likelihoods": ((max(1, likelihoods), cases), np.float64),
            "rows": ((1, cases), np.int64),
            "found": ((3, cases), np.float64),
            "posteriors": ((max(1, posteriors), cases), self._program.algebra.dtype),
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

    def _settled_posteriors(self) -> tuple[dict[int, int], Array]:
        """Return the posteriors that no case changes, one after the other, and variable -> where its own begins."""
        tables = {v: self._program.shared[t].table for v, t in self._plan.marginals if t in self._program.shared}
        rows = dict(zip(tables, accumulate((len(table) for table in tables.values()), initial=0), strict=False))
        flat = [self._program.normalised(table).reshape(-1) for table in tables.values()]
        return rows, self.device.put(np.concatenate([*flat, np.zeros(1)]).astype(self._program.algebra.dtype))

    def _constant_bounds(self, lowering: Lowering) -> npt.NDArray[np.float64]:
        """Return scale, lost, open and least of the tables that no case changes, in the order of their slots."""
        rows = [self._program.bounds_of(table) for table in lowering.slots if table in self._program.shared]
        return np.array(rows or [np.ones(4)])


class _Place:
    """Memory of one block on its way: evidence and what is found on both sides, and the launches between."""

    def __init__(
        self, program: GpuProgram, likelihoods: dict[int, int], shapes: Shapes, arrays: dict[str, Array]
    ) -> None:
        self._program, self._device, self._chunk = program, program.device, program.chunk
        self._dtype = program._program.algebra.dtype
        self._rows, self._likelihoods = program._rows, likelihoods
        self._shapes = {name: shape for name, shape in shapes.items() if name != "posteriors"}
        self._arrays = arrays
        self._host = {name: self._device.host(_bytes({name: shape})) for name, shape in self._shapes.items()}
        record = run_record(self._fields())
        self._record = self._device.host(record.nbytes)
        self._record[:] = record.view(np.uint8)
        self.run = self._device.put(self._record)
        chunks = program.cases // program.chunk if program.many else 1
        self.work = Work(program._program.algebra.name, self.run, program._arrays["extremes"], program.stages, chunks)
        self.replay = self._device.replay(self.work)

    def _fields(self) -> dict[str, int]:
        """Return what the struct `Run` says; what differs between blocks is still 0."""
        program = self._program
        every = {**program._arrays, **self._arrays}
        fields = {name: self._device.address(array) for name, array in every.items()}
        extremes, rows = fields["extremes"], program._arrays["lost"].shape[0]
        size = rows * program.cases * self._dtype.itemsize
        fields |= {"largest": extremes, "smallest": extremes + size, "lossy": extremes + 2 * size}
        fields |= dict.fromkeys(("targets", "answers", "filled", "asked", "answered"), 0)
        return fields | {"cases": program.cases, "totals": program.totals, "closings": program.closings}

    def begin(
        self, block: Block, rows: npt.NDArray[np.int64], answers: Answers
    ) -> Callable[[], npt.NDArray[np.float64]]:
        """Set the device to work on a block.

        Returns what waits for its end and then has what was found beside posteriors, float64 [3, lanes].
        """
        assert answers.memory is not None
        host = self._take(block, rows)
        names = ["states"] * bool(self._rows) + ["likelihoods"] * bool(self._likelihoods) + ["rows"]
        device = self._device
        with device.queue:
            self._tell(block.cases, host["found"].shape[1], answers, answers.memory.ctypes.data)
            device.upload(self._record, self.run)
            for name in names:
                device.upload(host[name], self._arrays[name])
            self.replay.start()
            device.write_posteriors(self.work, answers.memory.dtype)
            device.download(self._arrays["found"], host["found"])
            mark = device.mark()

        def found() -> npt.NDArray[np.float64]:
            device.wait(mark)
            return host["found"]

        return found

    def _tell(self, cases: int, lanes: int, answers: Answers, address: int) -> None:
        """Write what differs between blocks into the record of this one."""
        targets = self._program.targets(answers)
        record = self._record.view(np.int64)
        fields = {
            "cases": lanes,
            "filled": cases,
            "targets": self._device.address(targets),
            "asked": len(targets),
            "answers": address,
            "answered": len(answers.status),
        }
        for name, value in fields.items():
            record[FIELDS.index(name)] = value

    def _take(self, block: Block, rows: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
        """Bring the evidence of a block into the memory that is copied; returns that memory, as wide as the block.

        Lanes beyond the last case repeat it.
        """
        lanes = -(-block.cases // self._chunk) * self._chunk
        host: dict[str, npt.NDArray[Any]] = {}
        for name, ((*lines, _), dtype) in self._shapes.items():
            size = math.prod(lines) * lanes * np.dtype(dtype).itemsize
            host[name] = self._host[name][:size].view(dtype).reshape(*lines, lanes)
        block.copy_to(host["states"], self._rows, host["likelihoods"], self._likelihoods)
        host["rows"][0, : block.cases] = rows
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
