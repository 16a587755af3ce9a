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

from junctor_kernels.cpu import bytecode as layout
from junctor_kernels.gpu.early_launch import OVERLAP_CAPABILITY, launch_early

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
# Columns of `targets`: where a posterior comes from (the block, the state that is observed, what no case changes), its
# row there, its states, and those of all targets before.
TARGET_COLUMNS = 4
FOUND, OBSERVED_STATE, SETTLED = range(3)
# Kernels that write answers, by the bytes of a number.
WRITERS = {4: "write_single", 8: "write_double"}
# Parts in which the results of many cases are found.
PARTS = 16
# Terms that are added up before they join the sum: rounding grows with this plus R over this, not with R.
RUN = 32
# Threads of a block for many cases and for few, and blocks of the former that a multiprocessor shall have room for:
# contractions need registers, the rest needs many warps at once.
MANY_THREADS, FEW_THREADS = 128, 256
MANY_BLOCKS, REST_BLOCKS = 4, 8
# Blocks and threads that write answers to the host: as few as go at three quarters of what the bus does, because from
# there on whatever is computed beside them waits as well. How many would fill a multiprocessor, so that one takes the
# room of one that contracts; cases of a target that it writes at a time.
WRITE_BLOCKS, WRITE_THREADS, WRITE_SHARE, WRITE_CASES = 16, 512, 4, 2048
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
    *("columns", "shared", "scales", "leasts", "growth", "states", "likelihoods", "rows", "targets", "settled"),
    *("arena", "lost", "open", "least", "scale", "largest", "smallest", "lossy"),
    *("posteriors", "parts", "found", "fixed", "answers"),
    *("cases", "totals", "closings", "filled", "asked", "answered"),
)
_NAMES = (
    *("SLICE", "LIKELIHOOD", "REDUCE", "FIXED", "CLOSED", "OPEN", "CONSTANT", "LINES", "PAIRS", "PRODUCTS"),
    *("KIND", "SLOT", "ROW", "ENTRIES", "TERMS", "FIRST_PARENT", "PARENTS", "FIRST", "COUNT", "HOW", "TILES", "OUT"),
    *("SPAN", "STRIDE", "SIZE", "LINES_OF_TILE", "COLUMNS", "OBSERVED", "VARIABLES", "PLACE", "FACTS", "STEP_COLUMNS"),
)
_HERE = (
    *("MAKE", "CONTRACT", "BOUND", "MARGINAL", "FIND", "FINISH", "FIXED_TABLE", "NOTHING"),
    *("ITEM_COLUMNS", "CLOSING_COLUMNS", "TARGET_COLUMNS", "FOUND", "OBSERVED_STATE", "SETTLED"),
    *("PARTS", "RUN", "MOST_OPERANDS", "MANY_THREADS", "FEW_THREADS", "MANY_BLOCKS", "REST_BLOCKS"),
    *("WRITE_THREADS", "WRITE_SHARE", "WRITE_CASES"),
)
# What comes first in the source for each algebra, and the files of the source in their order; log space has no warps
# over cases.
_DEFINED = {"single": "", "double": "#define DOUBLE\n", "log": "#define DOUBLE\n#define LOGS\n"}
_FILES = ("numbers.cu", "common.cu", "algebra.cu", "tables.cu", "many.cu", "few.cu", "answers.cu")

Array = Any


def source(algebra: str) -> str:
    """Return the CUDA C++ source of all kernels in an algebra: "single", "double", or "log" (in double precision)."""
    values = {name: getattr(layout, name) for name in _NAMES}
    values |= {name: globals()[name] for name in _HERE}
    constants = ", ".join(f"{name} = {value}" for name, value in values.items())
    files = [file for file in _FILES if algebra != "log" or file != "many.cu"]
    texts = [(Path(__file__).parent / "cuda" / file).read_text() for file in files]
    return "\n".join([f"{_DEFINED[algebra]}enum {{ {constants} }};", *texts])


def run_record(fields: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """Return the struct `Run`: addresses of its arrays, then its numbers; raises KeyError where one is missing."""
    return np.array([fields[name] for name in FIELDS], dtype=np.int64)


class BlockLaunch(NamedTuple):
    """A kernel over so many items from the `first` on."""

    kernel: str
    first: int
    items: int


Stage = Sequence[BlockLaunch]


class LaunchList(NamedTuple):
    """The work of a plan on a block of cases, as often as wanted.

    run: bytes of the struct `Run`. cleared: an array that is set to zero first. stages: one after the other. chunks: of
    cases, as many as a warp takes at once.
    """

    algebra: str
    run: Array
    cleared: Array
    stages: Sequence[Stage]
    chunks: int


class Replay(Protocol):
    """Work on a device that is ready to be started, as often as wanted."""

    def start(self) -> None:
        """Enqueue the work."""


class BlockDevice(Protocol):
    """Memory and launches of a device; arrays are its own, and work is done in the order in which it is enqueued.

    queue: who enqueues things that belong together holds it. room: bytes that all work shares, one after the other.
    name, figures: what it is, and numbers by which it is like other devices or not.
    """

    room: int
    name: str
    figures: dict[str, float]

    @property
    def queue(self) -> AbstractContextManager[Any]:
        """A lock."""

    def place(self, start: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Return an array in the room that all work shares, from a byte on."""

    def put(self, array: npt.NDArray[Any]) -> Array:
        """Return a copy of a NumPy array on the device."""

    def host(self, size: int) -> npt.NDArray[np.uint8]:
        """Return bytes of the host, not cleared, that the device finds at the same address; raises MemoryError."""

    def address(self, array: Array) -> int:
        """Return where an array of the device begins."""

    def replay(self, work: LaunchList) -> Replay:
        """Return the work of a plan, ready to be started."""

    def upload(self, host: npt.NDArray[Any], array: Array) -> None:
        """Enqueue a copy to the beginning of an array."""

    def download(self, array: Array, host: npt.NDArray[Any]) -> None:
        """Enqueue a copy of the beginning of an array."""

    def write_posteriors(self, work: LaunchList, answers: np.dtype[Any]) -> None:
        """Enqueue the way of a block's posteriors to the answers of that format that its struct `Run` names."""

    def mark(self) -> Any:
        """Return a mark behind everything that is enqueued so far."""

    def wait(self, mark: Any) -> None:
        """Wait until the device has come to a mark."""

    def seconds(self, replay: Replay, repeats: int) -> float:
        """Do some work so often, after a first time, and return the fewest seconds that it took."""


def grid(launch: BlockLaunch, chunks: int) -> tuple[tuple[int, int], int]:
    """Return blocks in x and y, and threads of a block, for a launch."""
    if launch.kernel == "propagate_few":
        return (launch.items, 1), FEW_THREADS
    return (launch.items * WARP // MANY_THREADS, chunks), MANY_THREADS


class CudaBlockDevice:
    """A CUDA device. What comes in, kernels and what goes out have a stream each, so that they overlap.

    number: of the device. allowed: bytes for blocks under way; None for a share of what is free. Raises
    ImportError without CuPy, and what CuPy raises without such a device.
    """

    def __init__(self, number: int = 0, allowed: int | None = None) -> None:
        import cupy

        self.cupy = cupy
        self.number = number
        self.queue = _Queue(cupy.cuda.Device(number))
        with cupy.cuda.Device(number) as device:
            self._in, self._work, self._beside = (cupy.cuda.Stream(non_blocking=True) for _ in range(3))
            # Its few blocks come before those that compute: the bus is the narrowest way.
            self._out = cupy.cuda.Stream(non_blocking=True, priority=-1)
            self._overlaps = int(device.compute_capability) >= OVERLAP_CAPABILITY
            self.name, self.figures = _figures(cupy.cuda.runtime, number, int(device.compute_capability))
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

    def host(self, size: int) -> npt.NDArray[np.uint8]:
        """Return bytes of pinned memory, not cleared, which have the same address on the device."""
        cuda = self.cupy.cuda
        try:
            with cuda.Device(self.number):
                # Not from CuPy's pool, which keeps what was ever used.
                memory = cuda.PinnedMemoryPointer(cuda.PinnedMemory(max(1, size)), 0)
        except cuda.runtime.CUDARuntimeError as error:
            raise MemoryError(f"{size:,} bytes of pinned memory: {error}") from error
        return np.ndarray((size,), np.uint8, memory)

    def address(self, array: Array) -> int:
        """Return where an array of the device begins."""
        return int(array.data.ptr)

    def replay(self, work: LaunchList) -> Replay:
        """Return the work of a plan as a CUDA graph."""
        with self.cupy.cuda.Device(self.number):
            self.cupy.cuda.runtime.deviceSynchronize()
            self._work.begin_capture()
            self.enqueue(work)
            return _Graph(self._work.end_capture(), self._work)

    def enqueue(self, work: LaunchList) -> None:
        """Enqueue the work of a plan; launches of a stage beside each other."""
        module = _module(self.number, work.algebra)
        module.get_global("run").copy_from_device_async(work.run.data, work.run.nbytes, self._work)
        work.cleared.data.memset_async(0, work.cleared.nbytes, self._work)
        for number, stage in enumerate(work.stages):
            if len(stage) > 1:
                self._beside.wait_event(self._work.record())
            for launch, stream in zip(stage, (self._work, self._beside), strict=False):
                early = self._overlaps and number > 0 and launch.kernel == "propagate_few"
                self._launch(module.get_function(launch.kernel), launch, work.chunks, stream, early)
            if len(stage) > 1:
                self._work.wait_event(self._beside.record())

    def _launch(self, kernel: Any, launch: BlockLaunch, chunks: int, stream: Any, early: bool) -> None:
        blocks, threads = grid(launch, chunks)
        if early:
            launch_early(kernel.kernel.ptr, blocks, threads, launch.first, stream.ptr)
            return
        with stream:
            kernel(blocks, (threads,), (np.int32(launch.first),))

    def upload(self, host: npt.NDArray[Any], array: Array) -> None:
        """Enqueue a copy to the beginning of an array; kernels enqueued later wait for it."""
        array.data.copy_from_host_async(host.ctypes.data, host.nbytes, self._in)
        self._work.wait_event(self._in.record(self._event()))

    def download(self, array: Array, host: npt.NDArray[Any]) -> None:
        """Enqueue a copy of the beginning of an array behind the kernels enqueued so far."""
        self._out.wait_event(self._work.record(self._event()))
        array.data.copy_to_host_async(host.ctypes.data, host.nbytes, self._out)

    def write_posteriors(self, work: LaunchList, answers: np.dtype[Any]) -> None:
        """Enqueue the way of a block's posteriors to the answers, behind the kernels enqueued so far."""
        self._out.wait_event(self._work.record(self._event()))
        kernel = _module(self.number, work.algebra).get_function(WRITERS[answers.itemsize])
        with self._out:
            kernel((WRITE_BLOCKS,), (WRITE_THREADS,), (work.run,))

    def mark(self) -> Any:
        """Return a mark behind what is enqueued to go out so far."""
        # Whoever waits for it sleeps: the cores have answers to write.
        return self._out.record(self._event(block=True))

    def wait(self, mark: Any) -> None:
        """Wait until the device has come to a mark."""
        mark.synchronize()

    def seconds(self, replay: Replay, repeats: int) -> float:
        """Do some work so often, after a first time, and return the fewest seconds that it took the device."""
        cuda, fewest = self.cupy.cuda, float("inf")
        with self.queue:
            replay.start()
            for _ in range(repeats):
                begin, end = cuda.Event(), cuda.Event()
                begin.record(self._work)
                replay.start()
                end.record(self._work)
                end.synchronize()
                fewest = min(fewest, cuda.get_elapsed_time(begin, end) / 1e3)
        return fewest

    def _event(self, block: bool = False) -> Any:
        return self.cupy.cuda.Event(block=block, disable_timing=True)


def _figures(runtime: Any, number: int, capability: int) -> tuple[str, dict[str, float]]:
    """Return the name of a device, and its multiprocessors, bytes of memory and compute capability."""
    found = runtime.getDeviceProperties(number)
    figures = {"multiprocessors": found["multiProcessorCount"], "memory": found["totalGlobalMem"]}
    return found["name"].decode(), {**{name: float(n) for name, n in figures.items()}, "capability": float(capability)}


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
def _module(number: int, algebra: str) -> Any:
    import cupy

    # A module belongs to the device on which it was loaded.
    with cupy.cuda.Device(number):
        return cupy.RawModule(code=source(algebra), options=("-std=c++17",))
