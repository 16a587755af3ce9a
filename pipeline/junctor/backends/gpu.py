"""Programs on a GPU: a plan as launches over a block of cases, with copies in and out beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.cpu.bytecode import LEFT, MOVED, NUMBER, POWER, Bytecode
from junctor_kernels.cpu.columns import multiply_constants
from junctor_kernels.gpu.blocks import (
    FIELDS,
    SCORE_BLOCKS,
    SCORERS,
    WRITE_BLOCKS,
    WRITE_STATES,
    WRITERS,
    BlockDevice,
    LaunchList,
    run_record,
)
from junctor_kernels.gpu.device import DeviceArray
from junctor_kernels.tables.reference import multiplied

from junctor.backends.gpu_items import closing_of
from junctor.backends.gpu_plan import ANSWERS, IN_FLIGHT, GpuBlocks, Shapes, bytes_of
from junctor.backends.lowering import LoweredPlan, constants_of
from junctor.backends.numpy import BlockOutcome, EvidenceBlock, Program, doubtful_rows
from junctor.cost.dataset import MeasuredDevice
from junctor.cost.model import CostModel, local_cost_models
from junctor.model.answers import Answers, Scores, sources_of
from junctor.planning.first_fit import aligned

# Of each case: the constant factors as numbers and exponents, float64 [2, cases], and [SUMS, cases] beside posteriors.
_Found = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]


class GpuProgram(GpuBlocks):
    """Runs blocks of cases of a program on a device: sum-product, also in log space, or max-sum for explanations.

    rows: how many cases there are in all. Arguments and errors as for `GpuBlocks`; speeds: None for what this machine
    knows of the device. Up to `threads` threads may have blocks answered at once, each at a `place` below that: while
    one block is computed the next is brought in and the last is taken out.
    """

    def __init__(
        self, program: Program, rows: int, device: BlockDevice, host: int, speeds: CostModel | None = None
    ) -> None:
        # Measured on this machine where it was calibrated, else what is built in.
        known = speeds or local_cost_models().gpu(MeasuredDevice(device.name, device.figures))
        super().__init__(program, rows, device.room, host, known)
        self.device = device
        lowering = self._lowered
        self._constants = constants_of(program, self._rows)
        self._likelihoods, self._posteriors = lowering.likelihoods, lowering.posteriors
        self._arrays = self._put(lowering.code, self._items) | {"fixed": device.put(self._constant_bounds(lowering))}
        self._shared_rows, self._arrays["settled"] = self._shared_posteriors()
        # Made with the first block, since the order of targets comes with the answers.
        self._targets: DeviceArray | None = None
        self._choices: DeviceArray | None = None
        self.threads = IN_FLIGHT
        self._places = self._lay_out(lowering, program.algebra.dtype)
        # Only what is on the device stays.
        del self._lowered, self._items

    def answer(
        self, block: EvidenceBlock, rows: npt.NDArray[np.int64], answers: Answers, place: int = 0
    ) -> BlockOutcome:
        """Propagate a block of cases; the device writes posteriors, scores or states to `rows` of the answers.

        Those lie in memory that the device's `host` gave.
        """
        return self.prepare(block, rows, answers, place)()

    def cases_at_once(self, rows: int) -> int:
        """Return the cases of a block."""
        return self.cases

    def prepare(
        self, block: EvidenceBlock, rows: npt.NDArray[np.int64], answers: Answers, place: int
    ) -> Callable[[], BlockOutcome]:
        """Bring the evidence of a block into the memory that is copied, and return what answers it, as `answer`."""
        run = self._places[place].take(block, rows, answers)

        def answer() -> BlockOutcome:
            constants, found = run()
            algebra = self._program.algebra
            product = multiplied(constants[0], constants[1], found[NUMBER], found[POWER], algebra)
            log_value = self._program.log_of(*product)
            return BlockOutcome(log_value, {}, {}, doubtful_rows(found[MOVED] + found[LEFT], log_value, algebra))

        return answer

    @property
    def held(self) -> int:
        """Bytes of pinned memory of the host, for evidence on its way."""
        return sum(place.held for place in self._places)

    def targets(self, answers: Answers) -> DeviceArray:
        """Return where the posterior or state of each target comes from; `queue` of the device has to be held."""
        if self._targets is None:
            sources = np.array(answers.targets) if self.explains else self._sources(answers.targets)
            self._targets = self.device.put(_narrowed(sources))
        return self._targets

    def choices(self, scores: Scores) -> DeviceArray:
        """Return where the posterior of each chosen state comes from, as `targets`, and the state."""
        if self._choices is None:
            sources = self._sources([v for v, _ in scores.choices])
            sources[:, -1] = [state for _, state in scores.choices]
            self._choices = self.device.put(_narrowed(sources))
        return self._choices

    @property
    def _sliced_rows(self) -> list[tuple[int, int]]:
        """The observed variables that the plan leaves out, and their rows of the states."""
        return [(v, row) for v, row in self._rows.items() if v in self._plan.pattern.sliced]

    def _sources(self, variables: Sequence[int]) -> npt.NDArray[np.int64]:
        sizes = self._plan.shape.cardinalities
        return sources_of(variables, sizes, self._posteriors, dict(self._sliced_rows), self._shared_rows)

    def _lay_out(self, lowering: LoweredPlan, dtype: np.dtype[Any]) -> list[_Place]:
        """Give every array its place in the room of the device."""
        start = 0

        def place(shapes: Shapes) -> dict[str, DeviceArray]:
            nonlocal start
            arrays = {}
            for name, (shape, kind) in shapes.items():
                arrays[name] = self.device.place(start, shape, kind)
                start += aligned(bytes_of({name: (shape, kind)}))
            return arrays

        self._arrays |= place(self._shapes(max(1, lowering.arena_rows), self.cases))
        shapes = self._way_shapes(self.cases)
        return [_Place(self, lowering.likelihoods, shapes, place(shapes)) for _ in range(IN_FLIGHT)]

    def _put(self, code: Bytecode, items: npt.NDArray[np.int32]) -> dict[str, DeviceArray]:
        """Bring what does not change from block to block to the device."""
        put = self.device.put
        closing, self.totals = closing_of(code)
        self.closings, self.traced_steps = len(closing), len(code.trace)
        integers = {
            name: _narrowed(getattr(code, name))
            for name in ("steps", "parents", "operands", "offsets", "span", "terms", "observed")
        }
        if self.explains:
            integers |= {name: _narrowed(getattr(code, name)) for name in ("trace", "traced", "variables")}
            integers["seen"] = _narrowed(np.array(self._sliced_rows, dtype=np.int64))
        return {name: put(array) for name, array in integers.items()} | {
            "items": put(items),
            "closing": put(closing),
            "columns": put(code.columns),
            "shared": put(code.shared),
            "scales": put(np.ascontiguousarray(code.facts[0])),
            "leasts": put(np.ascontiguousarray(code.facts[1])),
            "growth": put(code.growth),
        }

    def _shared_posteriors(self) -> tuple[dict[int, int], DeviceArray]:
        """Return the posteriors that no case changes, one after the other, and variable -> where its own begins."""
        tables = {v: self._program.shared[t].table for v, t in self._plan.marginals if t in self._program.shared}
        rows = dict(zip(tables, accumulate((len(table) for table in tables.values()), initial=0), strict=False))
        flat = [self._program.normalised(table).reshape(-1) for table in tables.values()]
        return rows, self.device.put(np.concatenate([*flat, np.zeros(1)]).astype(self._program.algebra.dtype))

    def _constant_bounds(self, lowering: LoweredPlan) -> npt.NDArray[np.float64]:
        """Return exponent, lost, open and least of the tables that no case changes, in the order of their slots."""
        rows = [self._program.bounds_of(table) for table in lowering.slots if table in self._program.shared]
        return np.array(rows or [np.ones(4)])


class _Place:
    """Memory of one block on its way: evidence and what is found on both sides, and the launches between."""

    def __init__(
        self, program: GpuProgram, likelihoods: dict[int, int], shapes: Shapes, arrays: dict[str, DeviceArray]
    ) -> None:
        self._program, self._device, self._chunk = program, program.device, program.chunk
        self._dtype = program._program.algebra.dtype
        self._rows, self._likelihoods = program._rows, likelihoods
        self._shapes = {name: shape for name, shape in shapes.items() if name not in ANSWERS}
        self._arrays = arrays
        self._host = {name: self._device.host(bytes_of({name: shape})) for name, shape in self._shapes.items()}
        record = run_record(self._fields())
        self._record = self._device.host(record.nbytes)
        self._record[:] = record.view(np.uint8)
        self.run = self._device.put(self._record)
        chunks = program.cases // program.chunk if program.many else 1
        self.work = LaunchList(
            program._program.algebra.name,
            self.run,
            program._arrays["extremes"],
            program.stages,
            chunks,
            program.kernels,
        )
        self.replay = self._device.replay(self.work)

    @property
    def held(self) -> int:
        """Bytes of pinned memory of the host."""
        return sum(memory.nbytes for memory in self._host.values())

    def _fields(self) -> dict[str, int]:
        """Return what the struct `Run` says; what differs between blocks is still 0."""
        program = self._program
        every = {**program._arrays, **self._arrays}
        fields = {name: self._device.address(array) for name, array in every.items()}
        extremes, rows = fields["extremes"], program._arrays["lost"].shape[0]
        # Three parts of one array, which a launch clears at once.
        size = rows * program.cases * self._dtype.itemsize
        fields |= {"largest": extremes, "smallest": extremes + size, "lossy": extremes + 2 * size}
        fields |= {"cases": program.cases, "totals": program.totals, "closings": program.closings}
        fields["arena_rows"] = program._arrays["arena"].shape[0]
        fields |= {"trace_count": program.traced_steps, "seen_count": len(program._sliced_rows)}
        return dict.fromkeys(FIELDS, 0) | fields

    def take(self, block: EvidenceBlock, rows: npt.NDArray[np.int64], answers: Answers) -> Callable[[], _Found]:
        """Bring the evidence of a block into the memory that is copied; returns what has the device answer it."""
        host, given = self._take(block, rows)
        # Only what the kernels read: small copies cost as much as kernels.
        names = ["states"] * bool(self._rows) + ["likelihoods"] * given + ["rows"]
        return lambda: self._run(host, names, block.cases, answers)

    def _run(self, host: dict[str, npt.NDArray[Any]], evidence: Sequence[str], cases: int, answers: Answers) -> _Found:
        """Answer so many cases on the device; returns once they are answered."""
        device, found = self._device, host["found"]
        with device.queue:
            fields = {"cases": found.shape[1], "filled": cases} | self._places_of(answers)
            # In pinned memory, so that the upload does not wait for the host.
            record = self._record.view(np.int64)
            for name, value in fields.items():
                record[FIELDS.index(name)] = value
            copies = ((host[name], self._arrays[name]) for name in evidence)
            device.upload((self._record, self.run), *copies)
            self.replay.start()
            if isinstance(answers, Scores):
                writer, blocks = SCORERS[answers.entropies.itemsize], SCORE_BLOCKS
            elif answers.memory is None:
                writer, blocks = WRITE_STATES, WRITE_BLOCKS
            else:
                writer, blocks = WRITERS[answers.memory.itemsize], WRITE_BLOCKS
            device.write_answers(self.work, writer, blocks, self._arrays["found"], found)
            mark = device.mark()
        # While the device is at work.
        logs = not self._program.explains if self._program._program.algebra.logs else None
        constants = np.empty((2, cases))
        multiply_constants(host["states"], *self._program._constants, logs, *constants)
        device.wait(mark)
        return constants, found[:, :cases]

    def _places_of(self, answers: Answers) -> dict[str, int]:
        """Return the fields that say where the answers to a batch lie, and where they come from."""
        program, device, rows = self._program, self._device, len(answers.status)
        fields = {"targets": device.address(program.targets(answers)), "asked": len(answers.targets), "answered": rows}
        if not isinstance(answers, Scores):
            written = answers.explained if self._program.explains else answers.memory
            assert written is not None
            return fields | {"answers": written.ctypes.data}
        arrays = {name: getattr(answers, name) for name in ("best", "probabilities", "entropies", "chosen")}
        fields |= {name: array.ctypes.data for name, array in arrays.items()}
        choices = device.address(program.choices(answers))
        return fields | {"choices": choices, "choosing": len(answers.choices), "top": answers.best.shape[2]}

    def _take(self, block: EvidenceBlock, rows: npt.NDArray[np.int64]) -> tuple[dict[str, npt.NDArray[Any]], bool]:
        """Bring the evidence of a block into the memory that is copied.

        Returns that memory, as wide as the block, and whether there are likelihoods. Lanes beyond the last case repeat
        it.
        """
        lanes = -(-block.cases // self._chunk) * self._chunk
        host: dict[str, npt.NDArray[Any]] = {}
        for name, ((*lines, _), dtype) in self._shapes.items():
            size = math.prod(lines) * lanes * np.dtype(dtype).itemsize
            host[name] = self._host[name][:size].view(dtype).reshape(*lines, lanes)
        threads = self._program._program.threads
        given = block.copy_to(host["states"], self._rows, host["likelihoods"], self._likelihoods, threads)
        host["rows"][0, : block.cases] = rows
        return host, given


def _narrowed(array: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    if array.size and max(int(array.max()), -int(array.min())) > np.iinfo(np.int32).max:
        raise OverflowError(f"found an index of {int(array.max()):,}, the GPU kernels count to 2^31")
    return np.ascontiguousarray(array, dtype=np.int32)
