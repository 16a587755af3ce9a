"""Most probable paths on a GPU: the source of the kernels, what they are told, and which of them does what."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.early_launch import launch_together

# Threads of a block, but for those that keep a product in registers: SIDE x SIDE, each with up to 8 x 8 of it.
THREADS, SIDE = 1024, 16
# Terms of both operands that are in shared memory at a time, by the bytes of a number.
DEPTH = {4: 16, 8: 8}
# Sequences that share one reading of the matrix, and rows of a thread where there are more of them.
FEW, MANY = (1, 2, 4, 8), {4: (2, 4, 8), 8: (2, 4)}
# Parts of a column that different warps take.
SEGMENTS = 4
# Transitions to a state, on average, from which on a warp shares them.
WIDE = 12
# Rows in memory are as long as whole lines of it.
LINE = 32
# The fields of the struct `Work`, in its order.
FIELDS = (
    *("columns", "begins", "froms", "numbers", "start", "emissions", "which", "starts"),
    *("trellis", "maxima", "path", "barrier", "states", "stride", "first", "last", "ticks", "going_on"),
)


def source(dtype: npt.DTypeLike, threads: int = THREADS, side: int = SIDE) -> str:
    """Return the CUDA C++ source of all kernels in a number format."""
    size = np.dtype(dtype).itemsize
    shared = (
        "#define SHARED(type, name, count) __shared__ __align__(16) type name[count]\n"
        "#define DYNAMIC(type, name) extern __shared__ __align__(16) unsigned char name##_bytes[]; "
        "type *name = (type *)name##_bytes\n"
    )
    text = (Path(__file__).parent / "cuda" / "viterbi.cu").read_text()
    constants = f"enum {{ THREADS = {threads}, SIDE = {side}, DEPTH = {DEPTH[size]} }};\n"
    return ("#define DOUBLE\n" if size == 8 else "") + f"#ifndef SHARED\n{shared}#endif\n" + constants + text


def record(fields: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """Return the struct `Work`: addresses and numbers; raises KeyError where one is missing."""
    return np.array([fields[name] for name in FIELDS], dtype=np.int64)


def stride_of(states: int) -> int:
    """Return the entries of a row in memory."""
    return -(-states // LINE) * LINE


class Launch(NamedTuple):
    """A kernel, for the ticks behind `first` up to `last` of a block. rows: that it keeps in shared memory."""

    kernel: str
    first: int
    last: int
    rows: int = 0


def shared_bytes(launch: Launch, states: int, blocks: int, itemsize: int) -> int:
    """Return the bytes of shared memory that a block of a launch asks for."""
    if not launch.rows:
        return 0
    own = -(-states // blocks)
    return launch.rows * (stride_of(states) + own * SEGMENTS + THREADS // 32) * itemsize


def launches(
    counts: npt.NDArray[np.int64], states: int, transitions: int | None, itemsize: int, blocks: int, shared: int
) -> Iterator[Launch]:
    """Yield what computes the rows of a block from those of its first tick.

    counts: rows of each tick, descending. transitions: that are not zero, None for a dense matrix. blocks: of a grid
    that is on the device together; shared: bytes that a block may have.
    """
    first, end = 0, len(counts) - 1
    while first < end:
        kernel, rows, least = _kernel(int(counts[first + 1]), states, transitions, itemsize, blocks, shared)
        # As far as there are more rows than the next smaller kernel takes.
        last = int(np.searchsorted(-counts, -least, side="right")) - 1
        last = min(last, end)
        yield Launch(kernel, first, last, rows)
        first = last


def _kernel(
    count: int, states: int, transitions: int | None, itemsize: int, blocks: int, shared: int
) -> tuple[str, int, int]:
    """Return the kernel for so many rows, how many it keeps in shared memory, and the fewest rows that it is for."""
    if transitions is not None:
        return ("sparse_32" if transitions > WIDE * states else "sparse_1"), 0, 1
    below = 0
    for rows in FEW:
        if shared_bytes(Launch("", 0, 0, rows), states, blocks, itemsize) > shared:
            break
        if count <= rows:
            return f"few_{rows}", rows, below + 1
        below = rows
    for each in MANY[itemsize]:
        if count <= SIDE * each or each == MANY[itemsize][-1]:
            return f"many_{each}", 0, below + 1
        below = SIDE * each
    raise AssertionError("unreachable")


class ViterbiDevice:
    """A CUDA device that computes rows and paths; raises ImportError without CuPy, and what CuPy raises."""

    def __init__(self, dtype: npt.DTypeLike, number: int = 0) -> None:
        import cupy

        self.cupy, self.number, self.dtype = cupy, number, np.dtype(dtype)
        self.device = cupy.cuda.Device(number)
        with self.device:
            self.stream = cupy.cuda.Stream(non_blocking=True)
            attributes = self.device.attributes
            self.processors = int(attributes["MultiProcessorCount"])
            self.shared = int(attributes["MaxSharedMemoryPerBlockOptin"])
            self._barrier = cupy.zeros(1, np.uint64)

    def free(self) -> int:
        """Return the bytes that nobody uses."""
        with self.device:
            return int(self.cupy.cuda.runtime.memGetInfo()[0])

    def put(self, array: npt.NDArray[Any]) -> Any:
        """Return a copy of an array on the device."""
        with self.device, self.stream:
            return self.cupy.asarray(array)

    def empty(self, entries: int, dtype: npt.DTypeLike) -> Any:
        """Return memory of the device."""
        with self.device, self.stream:
            return self.cupy.empty(entries, dtype)

    def get(self, array: Any, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return a copy of an array of the device, in `out` if that is given."""
        with self.device, self.stream:
            found: npt.NDArray[Any] = array.get(out=out, blocking=True)
            return found

    def set(self, array: Any, values: npt.NDArray[Any]) -> None:
        """Copy values to the beginning of an array of the device."""
        with self.device, self.stream:
            array[: values.size].set(values)

    def forget(self, array: Any) -> None:
        """Enqueue all bits set, which is what nobody has written yet."""
        self.cupy.cuda.runtime.memsetAsync(array.data.ptr, 0xFF, array.nbytes, self.stream.ptr)

    def launch(self, launch: Launch, fields: Mapping[str, int], blocks: int) -> None:
        """Enqueue a launch; `blocks` of 0: as many as are on the device together."""
        fixed = launch.kernel.startswith("many")
        threads = SIDE * SIDE if fixed else THREADS
        with self.device:
            kernel = _kernel_of(self.number, self.dtype.str, launch.kernel)
            size = shared_bytes(launch, fields["states"], blocks or self.processors, self.dtype.itemsize)
            if size:
                kernel.max_dynamic_shared_size_bytes = size
            together = blocks == 0
            if together:
                blocks = self.processors * (self._at_once(launch.kernel, threads) if fixed else 1)
            self.cupy.cuda.runtime.memsetAsync(self._barrier.data.ptr, 0, 8, self.stream.ptr)
            words = record({**fields, "barrier": self._barrier.data.ptr, "first": launch.first, "last": launch.last})
            launch_together(kernel.kernel.ptr, blocks, threads, size, words, self.stream.ptr, together)

    def synchronize(self) -> None:
        """Wait for all that is enqueued."""
        self.stream.synchronize()

    def _at_once(self, name: str, threads: int) -> int:
        return _blocks_at_once(_kernel_of(self.number, self.dtype.str, name).kernel.ptr, threads)


@cache
def _blocks_at_once(kernel: int, threads: int) -> int:
    count = ctypes.c_int()
    failed = ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(count), ctypes.c_void_p(kernel), threads, ctypes.c_size_t(0)
    )
    if failed:
        raise RuntimeError(f"the driver does not say how many blocks fit a multiprocessor: {failed}")
    return max(1, count.value)


@cache
def _kernel_of(number: int, dtype: str, name: str) -> Any:
    return _module(number, dtype).get_function(name)


@cache
def _module(number: int, dtype: str) -> Any:
    import cupy

    with cupy.cuda.Device(number):
        return cupy.RawModule(code=source(np.dtype(dtype)), options=("-std=c++17",))
