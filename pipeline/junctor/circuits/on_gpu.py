"""Rows of a circuit on a GPU, block by block: while one block is computed the next comes in and the last goes out.

Main class: GpuCircuit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from junctor_kernels.circuits.evaluate import CircuitEvidence, Parents
from junctor_kernels.circuits.gpu import FIELDS, KERNELS, WRITERS, Layers, record
from junctor_kernels.circuits.nodes import FlatCircuit
from junctor_kernels.gpu.blocks import LANE_BYTES, WARP, WRITE_BLOCKS, BlockDevice, LaunchList
from junctor_kernels.gpu.device import DeviceArray

from junctor.evidence.batch import Rows
from junctor.model.answers import Answers
from junctor.planning.first_fit import ALIGNED, aligned

# Blocks on their way at once, and cases of one: more gain nothing.
IN_FLIGHT = 2
MOST_CASES = 1 << 14
# Blocks of a batch, which overlap, as long as each has so many cases: fewer leave multiprocessors idle.
BLOCKS, FULL_CASES = 4, 1 << 12

Array = npt.NDArray[Any]
# Lines of cases, and the format of their numbers.
Shapes = Mapping[str, tuple[int, npt.DTypeLike]]


class GpuTargets(NamedTuple):
    """Which posteriors a GPU writes.

    columns: int32 [asked, TARGET_COLUMNS].
    sources: int32 [states of these], the leaf of each, -1 for impossible states.
    """

    columns: npt.NDArray[np.int32]
    sources: npt.NDArray[np.int32]


class GpuCircuit:
    """Answers blocks of at most `cases` cases on a device, up to IN_FLIGHT of them at once, each at a place below that.

    circuit, parents, layers: nodes, their weights in float64 or float32, as all numbers are then.
    targets: which posteriors are written.
    evidence: columns of states, and of likelihoods, that rows have.
    rows: how many cases there are in all.
    device: that does it.
    Raises MemoryError where its room holds no chunk of cases.
    """

    def __init__(
        self,
        circuit: FlatCircuit,
        parents: Parents,
        layers: Layers,
        targets: GpuTargets,
        evidence: tuple[int, int],
        rows: int,
        device: BlockDevice,
    ) -> None:
        dtype = circuit.weights.dtype
        self.device, self.dtype, self.rows = device, dtype, rows
        nodes, leaves = len(circuit.is_sum), len(circuit.indicators)
        self.counts = {"nodes": nodes, "leaves": leaves, "asked": len(targets.columns)}
        self.stages = [[launch] for launch in (*layers.up, *(layers.down if len(targets.columns) else ()))]
        shared: Shapes = {"values": (nodes, dtype), "slopes": (nodes - leaves, dtype)}
        self.incoming: Shapes = {
            "states": (evidence[0], np.int16),
            "likelihoods": (evidence[1], dtype),
            "rows": (1, np.int64),
        }
        outgoing: Shapes = {"posteriors": (leaves, dtype), "found": (1, np.float64)}
        self.chunk = WARP * LANE_BYTES // dtype.itemsize
        self.cases = self._cases(rows, _line_bytes(shared) + IN_FLIGHT * _line_bytes({**self.incoming, **outgoing}))
        arrays: dict[str, Array] = {
            "items": layers.items,
            "edges_at": circuit.edges_at.astype(np.int32),
            "children": circuit.children,
            "is_sum": circuit.is_sum.view(np.uint8),
            "weights": circuit.weights,
            "parents_at": parents.at.astype(np.int32),
            "products_at": parents.products_at.astype(np.int32),
            "parents": parents.nodes,
            "shares": parents.shares,
            "targets": targets.columns,
            "sources": targets.sources,
        }
        self.arrays = {name: device.put(array if array.size else np.zeros(1)) for name, array in arrays.items()}
        self._start = 0
        self.arrays |= self._place(shared)
        places = [self._place({**self.incoming, **outgoing}) for _ in range(IN_FLIGHT)]
        self._places = [_Place(self, arrays, leaves) for arrays in places]

    def answer(self, evidence: CircuitEvidence, rows: Rows, answers: Answers, place: int) -> npt.NDArray[np.float64]:
        """Return the roots of cases; the device writes their posteriors to `rows` of the answers.

        evidence: its states in the memory of the place. Answers lie in memory that the device's `host` gave.
        """
        return self._places[place].answer(evidence, rows, answers)

    def states(self, place: int, cases: int) -> npt.NDArray[np.int16]:
        """Return the memory for states of so many cases at a place."""
        return self._places[place].states[:, :cases]

    def _cases(self, rows: int, line: int) -> int:
        """Return the cases of a block; line: bytes of one."""
        wanted = max(1, min(MOST_CASES, max(FULL_CASES, -(-rows // BLOCKS)), rows))
        # Beside what aligns arrays.
        most = (self.device.room - 32 * ALIGNED) // line // self.chunk * self.chunk
        if most < self.chunk:
            raise MemoryError(
                f"{self.chunk * line:,} bytes for {self.chunk} cases of a circuit, a GPU has room for "
                f"{self.device.room:,}"
            )
        return min(most, -(-wanted // self.chunk) * self.chunk)

    def _place(self, shapes: Shapes) -> dict[str, DeviceArray]:
        """Give arrays their places in the room of the device."""
        arrays = {}
        for name, (lines, dtype) in shapes.items():
            arrays[name] = self.device.place(self._start, (max(1, lines) * self.cases,), dtype)
            self._start += aligned(max(1, lines) * self.cases * np.dtype(dtype).itemsize)
        return arrays


class _Place:
    """Memory of one block on its way, on both sides, and its launches."""

    def __init__(self, owner: GpuCircuit, arrays: Mapping[str, DeviceArray], leaves: int) -> None:
        self._owner, self._device, self._arrays = owner, owner.device, dict(arrays)
        kinds: Shapes = {**owner.incoming, "found": (1, np.float64)}
        self._host = {
            name: self._device.host(max(1, lines) * owner.cases * np.dtype(dtype).itemsize).view(dtype)
            for name, (lines, dtype) in kinds.items()
        }
        self.states = self._host["states"].reshape(-1, owner.cases)
        # What tells of indicators differs with the evidence of a block.
        for name in ("variables", "numbers", "soft"):
            self._host[name] = self._device.host(4 * max(1, leaves)).view(np.int32)
            self._arrays[name] = self._device.put(self._host[name])
        every = {**owner.arrays, **self._arrays}
        fields = dict.fromkeys(FIELDS, 0) | {name: self._device.address(array) for name, array in every.items()}
        words = record({**fields, **owner.counts, "cases": owner.cases})
        self._record = self._device.host(words.nbytes).view(np.int64)
        self._record[:] = words
        self._run = self._device.put(self._record.view(np.uint8))
        algebra = "double" if owner.dtype.itemsize == 8 else "single"
        self._work = LaunchList(algebra, self._run, None, owner.stages, owner.cases // owner.chunk, KERNELS)
        self._replay = self._device.replay(self._work)

    def answer(self, evidence: CircuitEvidence, rows: Rows, answers: Answers) -> npt.NDArray[np.float64]:
        """Do what `GpuCircuit.answer` does."""
        assert answers.memory is not None
        device = self._device
        copies = list(self._taken(evidence, rows))
        with device.queue:
            for name, value in (
                ("filled", len(rows)),
                ("answers", answers.memory.ctypes.data),
                ("answered", len(answers.status)),
            ):
                self._record[FIELDS.index(name)] = value
            # In pinned memory, so that the upload does not wait for the host.
            device.upload(
                (self._record.view(np.uint8), self._run),
                *((self._host[name][:size], self._arrays[name]) for name, size in copies),
            )
            self._replay.start()
            writer = WRITERS[answers.memory.itemsize]
            device.write_answers(self._work, writer, WRITE_BLOCKS, self._arrays["found"], self._host["found"])
            mark = device.mark()
        device.wait(mark)
        return self._host["found"][: len(rows)].copy()

    def _taken(self, evidence: CircuitEvidence, rows: Rows) -> Iterator[tuple[str, int]]:
        """Bring the evidence of cases into the memory that is copied; yield arrays, and how much of each is."""
        cases, host = self._owner.cases, self._host
        host["rows"][: len(rows)] = rows
        yield "rows", len(rows)
        # Cases beyond the last one are computed as well, and nobody looks at them.
        yield "states", host["states"].size
        if (evidence.soft >= 0).any():
            count = evidence.likelihoods.shape[0]
            host["likelihoods"][: count * cases].reshape(-1, cases)[:, : len(rows)] = evidence.likelihoods
            yield "likelihoods", count * cases
        for name in ("variables", "numbers", "soft"):
            host[name][:] = getattr(evidence, name)
            yield name, host[name].size


def gpu_host_bytes(columns: int, rows: int) -> int:
    """Return the bytes of the host for evidence on its way, of rows that observe so many columns as states."""
    return IN_FLIGHT * min(MOST_CASES, rows) * (2 * columns + 16)


def _line_bytes(shapes: Shapes) -> int:
    """Return the bytes of a case in some arrays."""
    return sum(max(1, lines) * np.dtype(dtype).itemsize for lines, dtype in shapes.values())
