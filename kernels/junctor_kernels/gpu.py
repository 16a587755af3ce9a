"""GPU kernels: their source for a number format, what they read (`Run`), and the CUDA device that runs them (CuPy)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from junctor_kernels import layout

# What an item of work is: rows of a slice or a likelihood, entries of a contraction, the bounds of a step, a posterior,
# a part of log P(e) and of the bounds of the whole plan, their sum, and the bounds of a table that no case changes.
MAKE, CONTRACT, BOUND, MARGINAL, FIND, FINISH, FIXED_TABLE, NOTHING = range(8)
# Columns of `items`: what, step, first and last entry (or tile), threads (or warps) that share the terms of an entry,
# whether neighbouring threads have neighbouring terms, where the operands begin, how many there are. A BOUND has in the
# third whether the step is a total, a MARGINAL the row of its posterior, a FIND the number of its part; a FIXED_TABLE
# has its slot in the second, and where its bounds lie in the third.
ITEM_COLUMNS = 8
# Columns of `closing`, totals first: whether the table is a result, its slot and entries, and for the message down an
# edge the slots of the message up and of the total.
CLOSING_COLUMNS = 5
# Parts in which the results of many cases are found.
PARTS = 16
# Terms that are added up before they join the sum: rounding grows with this plus R over this, not with R.
RUN = 32
# Threads of a block for many cases and for few, and blocks of the former that a multiprocessor shall have room for:
# contractions need registers, the rest needs many warps at once.
MANY_THREADS, FEW_THREADS = 128, 256
MANY_BLOCKS, REST_BLOCKS = 4, 8
WARP = 32
# Operands that a contraction may have.
MOST_OPERANDS = 32
# Cases that a warp takes at once: 16 bytes for each of its lanes.
LANE_BYTES = 16
# Share of the free memory of a device that blocks under way may take; lowered plans need some beside it.
DEVICE_SHARE = 0.7
# The fields of the struct `Run`, in its order.
FIELDS = (
    *("steps", "parents", "operands", "offsets", "span", "terms", "observed", "closing", "items"),
    *("columns", "shared", "scales", "leasts", "growth", "states", "likelihoods"),
    *("arena", "lost", "open", "least", "scale", "largest", "smallest", "lossy"),
    *("posteriors", "parts", "found", "fixed"),
    *("cases", "totals", "closings"),
)
_NAMES = (
    *("SLICE", "LIKELIHOOD", "REDUCE", "FIXED", "CLOSED", "OPEN", "CONSTANT", "LINES", "PAIRS", "PRODUCTS"),
    *("KIND", "SLOT", "ROW", "ENTRIES", "TERMS", "FIRST_PARENT", "PARENTS", "FIRST", "COUNT", "HOW", "TILES", "OUT"),
    *("SPAN", "STRIDE", "SIZE", "LINES_OF_TILE", "COLUMNS", "OBSERVED", "VARIABLES", "PLACE", "FACTS", "STEP_COLUMNS"),
)
_HERE = (
    *("MAKE", "CONTRACT", "BOUND", "MARGINAL", "FIND", "FINISH", "FIXED_TABLE", "NOTHING"),
    *("ITEM_COLUMNS", "CLOSING_COLUMNS", "PARTS", "RUN", "MOST_OPERANDS"),
    *("MANY_THREADS", "FEW_THREADS", "MANY_BLOCKS", "REST_BLOCKS"),
)

Array = Any


def source(dtype: np.dtype[Any]) -> str:
    """Return the CUDA C++ source of all kernels in a number format (float32 or float64)."""
    values = {name: getattr(layout, name) for name in _NAMES}
    values |= {name: globals()[name] for name in _HERE}
    constants = ", ".join(f"{name} = {value}" for name, value in values.items())
    double = "#define DOUBLE\n" if dtype.itemsize == 8 else ""
    return f"{double}enum {{ {constants} }};\n{Path(__file__).with_name('propagate.cu').read_text()}"


def run_record(fields: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """Return the struct `Run`: addresses of its arrays, then its numbers; raises KeyError where one is missing."""
    return np.array([fields[name] for name in FIELDS], dtype=np.int64)


class Launch(NamedTuple):
    """A kernel over so many items from the `first` on."""

    kernel: str
    first: int
    items: int


Stage = Sequence[Launch]


class Replay(Protocol):
    """Work on a device that is ready to be started, as often as wanted."""

    def start(self) -> None:
        """Enqueue the work."""


class Device(Protocol):
    """Memory and launches of a device; arrays are its own, and work is done in the order in which it is enqueued.

    queue: who enqueues things that belong together holds it. room: bytes that all work shares, one after the other.
    """

    room: int

    @property
    def queue(self) -> AbstractContextManager[Any]:
        """A lock."""

    def place(self, start: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Return an array in the room that all work shares, from a byte on."""

    def put(self, array: npt.NDArray[Any]) -> Array:
        """Return a copy of a NumPy array on the device."""

    def host(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return a NumPy array of zeros that copies to and from the device are fast with."""

    def address(self, array: Array) -> int:
        """Return where an array begins."""

    def replay(
        self,
        dtype: np.dtype[Any],
        run: Array,
        stages: Sequence[Stage],
        chunks: int,
        clears: Sequence[tuple[Array, int]],
    ) -> Replay:
        """Return the work of a plan: set arrays to a byte, then stage after stage.

        run: bytes of the struct `Run`. chunks: of cases, as many as a warp takes at once.
        """

    def upload(self, host: npt.NDArray[Any], array: Array) -> None:
        """Enqueue a copy to the beginning of an array."""

    def download(self, array: Array, host: npt.NDArray[Any]) -> None:
        """Enqueue a copy of the beginning of an array."""

    def mark(self) -> Any:
        """Return a mark behind everything that is enqueued so far."""

    def wait(self, mark: Any) -> None:
        """Wait until the device has come to a mark."""


def grid(launch: Launch, chunks: int) -> tuple[tuple[int, int], int]:
    """Return blocks in x and y, and threads of a block, for a launch."""
    if launch.kernel == "propagate_few":
        return (launch.items, 1), FEW_THREADS
    return (launch.items * WARP // MANY_THREADS, chunks), MANY_THREADS


class CudaDevice:
    """A CUDA device. Copies in, kernels and copies out have a stream each, so that they overlap.

    number: of the device. allowed: bytes for blocks under way; None for a share of what is free. Raises
    ImportError without CuPy, and what CuPy raises without such a device.
    """

    def __init__(self, number: int = 0, allowed: int | None = None) -> None:
        import cupy

        self.cupy = cupy
        self.number = number
        self.queue = _Queue(cupy.cuda.Device(number))
        with cupy.cuda.Device(number):
            self._in, self._work, self._beside, self._out = (cupy.cuda.Stream(non_blocking=True) for _ in range(4))
            free, _ = cupy.cuda.runtime.memGetInfo()
            # One piece for good: a graph keeps its addresses. What is never touched costs nothing.
            self.room = min(allowed or free, int(DEVICE_SHARE * free))
            self._memory = cupy.cuda.alloc(self.room)

    def place(self, start: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Return an array in the room that all work shares, from a byte on."""
        return self.cupy.ndarray(shape, dtype, self._memory + start)

    def put(self, array: npt.NDArray[Any]) -> Array:
        """Return a copy of a NumPy array on the device."""
        with self.cupy.cuda.Device(self.number):
            return self.cupy.asarray(array)

    def host(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return a NumPy array of zeros in pinned memory."""
        import cupyx

        with self.cupy.cuda.Device(self.number):
            array: npt.NDArray[Any] = cupyx.zeros_pinned(shape, dtype=dtype)
            return array

    def address(self, array: Array) -> int:
        """Return where an array begins."""
        return int(array.data.ptr)

    def replay(
        self,
        dtype: np.dtype[Any],
        run: Array,
        stages: Sequence[Stage],
        chunks: int,
        clears: Sequence[tuple[Array, int]],
    ) -> Replay:
        """Return the work of a plan as a CUDA graph."""
        with self.cupy.cuda.Device(self.number):
            self.cupy.cuda.runtime.deviceSynchronize()
            self._work.begin_capture()
            self.enqueue(dtype, run, stages, chunks, clears)
            return _Graph(self._work.end_capture(), self._work)

    def enqueue(
        self,
        dtype: np.dtype[Any],
        run: Array,
        stages: Sequence[Stage],
        chunks: int,
        clears: Sequence[tuple[Array, int]],
    ) -> None:
        """Enqueue the work of a plan; launches of a stage beside each other."""
        module = _module(self.number, dtype.str)
        module.get_global("run").copy_from_device_async(run.data, run.nbytes, self._work)
        for array, byte in clears:
            array.data.memset_async(byte, array.nbytes, self._work)
        for stage in stages:
            if len(stage) > 1:
                self._beside.wait_event(self._work.record())
            for launch, stream in zip(stage, (self._work, self._beside), strict=False):
                blocks, threads = grid(launch, chunks)
                with stream:
                    module.get_function(launch.kernel)(blocks, (threads,), (np.int32(launch.first),))
            if len(stage) > 1:
                self._work.wait_event(self._beside.record())

    def upload(self, host: npt.NDArray[Any], array: Array) -> None:
        """Enqueue a copy to the beginning of an array; kernels enqueued later wait for it."""
        array.data.copy_from_host_async(host.ctypes.data, host.nbytes, self._in)
        self._work.wait_event(self._in.record())

    def download(self, array: Array, host: npt.NDArray[Any]) -> None:
        """Enqueue a copy of the beginning of an array behind the kernels enqueued so far."""
        self._out.wait_event(self._work.record())
        array.data.copy_to_host_async(host.ctypes.data, host.nbytes, self._out)

    def mark(self) -> Any:
        """Return a mark behind the copies from the device that are enqueued so far."""
        return self._out.record()

    def wait(self, mark: Any) -> None:
        """Wait until the device has come to a mark."""
        mark.synchronize()


class _Queue(AbstractContextManager[None]):
    """A lock, with the device as the current one of the thread that holds it."""

    def __init__(self, device: Any) -> None:
        self._lock, self._device = Lock(), device

    def __enter__(self) -> None:
        self._lock.acquire()
        self._device.use()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class _Graph:
    def __init__(self, graph: Any, stream: Any) -> None:
        self._graph, self._stream = graph, stream

    def start(self) -> None:
        self._graph.launch(self._stream)


@cache
def _module(number: int, dtype: str) -> Any:
    import cupy

    # A module belongs to the device on which it was loaded.
    with cupy.cuda.Device(number):
        return cupy.RawModule(code=source(np.dtype(dtype)), options=("-std=c++17",))
