"""What the GPU kernels of hidden Markov models have in common: their sources, launches, and the device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.gpu.early_launch import launch_together

# Blocks that keep a product in registers have SIDE x SIDE threads, each with up to 8 x 8 of it.
SIDE = 16
# Terms of both operands that are in shared memory at a time, by the bytes of a number.
DEPTH = {4: 16, 8: 8}
# Sequences that share one reading of the matrix, and rows of a thread where there are more of them.
FEW, MANY = (1, 2, 4, 8), {4: (2, 4, 8), 8: (2, 4)}
# Of the cache of the device, what parts of a matrix shall take; the rest passes through.
CACHE_SHARE = 0.6
# Rows in memory are as long as whole lines of it.
LINE = 32
_SHARED = """#ifndef SHARED
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define DYNAMIC(type, name) \\
    extern __shared__ __align__(16) unsigned char name##_bytes[]; type *name = (type *)name##_bytes
#endif
"""


def stride_of(states: int) -> int:
    """Return the entries of a row in memory."""
    return -(-states // LINE) * LINE


def joined_source(files: tuple[str, ...], constants: Mapping[str, int], dtype: npt.DTypeLike) -> str:
    """Return CUDA C++ source files as one, for a number format."""
    size = np.dtype(dtype).itemsize
    values = ", ".join(f"{name} = {value}" for name, value in {**constants, "DEPTH": DEPTH[size]}.items())
    texts = [(Path(__file__).parents[1] / "gpu" / "cuda" / name).read_text() for name in files]
    return "\n".join(["#define DOUBLE" if size == 8 else "", _SHARED, f"enum {{ {values} }};", *texts])


class SequenceLaunch(NamedTuple):
    """A kernel, for the ticks behind `first` up to `last` of a block.

    rows: that it keeps in shared memory. kept, cached: parts of the matrix that each block of the grid keeps there, and
    in the cache of the device.
    """

    kernel: str
    first: int
    last: int
    rows: int = 0
    kept: int = 0
    cached: int = 0


class Chip(NamedTuple):
    """Blocks of a grid that is on the device together, bytes of shared memory that each may have, bytes of cache."""

    blocks: int
    shared: int
    cache: int


def near(parts: int, kept_bytes: int, part_bytes: int, used: int, chip: Chip) -> tuple[int, int]:
    """Return how many of a block's parts of a matrix it keeps in shared memory, and how many in the cache.

    kept_bytes: of a part in shared memory, of which `used` bytes are taken; part_bytes: elsewhere.
    """
    kept = max(0, min(parts, (chip.shared - used) // kept_bytes))
    return kept, min(parts - kept, int(CACHE_SHARE * chip.cache) // (chip.blocks * part_bytes))


class SequenceKernels(NamedTuple):
    """Kernels that are compiled together.

    source: of a number format. fields: of the struct `Work`, in its order. threads: of a block that keeps no product in
    registers. shared: bytes that a block of a launch asks for, of states, blocks and the bytes of a number.
    """

    source: Callable[[npt.DTypeLike], str]
    fields: tuple[str, ...]
    threads: int
    shared: Callable[[SequenceLaunch, int, int, int], int]

    def record(self, fields: Mapping[str, int]) -> npt.NDArray[np.int64]:
        """Return the struct `Work`: addresses and numbers; raises KeyError where one is missing."""
        return np.array([fields[name] for name in self.fields], dtype=np.int64)


class KernelChoice(NamedTuple):
    """A kernel for some rows, how many it keeps in shared memory, and the fewest rows that it is for."""

    kernel: str
    rows: int
    least: int


def choice_for(count: int, itemsize: int, fits: Callable[[int], bool]) -> KernelChoice:
    """Return the kernel for so many rows of a dense product. fits: whether so many have room in shared memory."""
    below = 0
    for rows in FEW:
        if not fits(rows):
            break
        if count <= rows:
            return KernelChoice(f"few_{rows}", rows, below + 1)
        below = rows
    for each in MANY[itemsize]:
        if count <= SIDE * each or each == MANY[itemsize][-1]:
            return KernelChoice(f"many_{each}", 0, below + 1)
        below = SIDE * each
    raise AssertionError("unreachable")


def spans(counts: npt.NDArray[np.int64], choose: Callable[[int], KernelChoice]) -> Iterator[SequenceLaunch]:
    """Yield launches for the ticks behind the first one, each as long as its kernel suits. counts: descending."""
    first, end = 0, len(counts) - 1
    while first < end:
        choice = choose(int(counts[first + 1]))
        # As far as there are more rows than the next smaller kernel takes.
        last = min(int(np.searchsorted(-counts, -choice.least, side="right")) - 1, end)
        yield SequenceLaunch(choice.kernel, first, last, choice.rows)
        first = last


class ChainDevice:
    """A CUDA device that computes rows; raises ImportError without CuPy, and what CuPy raises."""

    def __init__(self, dtype: npt.DTypeLike, number: int = 0) -> None:
        import cupy

        self.cupy, self.number, self.dtype = cupy, number, np.dtype(dtype)
        self.device = cupy.cuda.Device(number)
        with self.device:
            self.stream = cupy.cuda.Stream(non_blocking=True)
            attributes = self.device.attributes
            names = ("MultiProcessorCount", "MaxSharedMemoryPerBlockOptin", "L2CacheSize")
            self.chip = Chip(*(int(attributes[name]) for name in names))
            self._barrier = cupy.zeros(1, np.uint64)

    def free(self) -> int:
        """Return the bytes that nobody uses."""
        with self.device:
            pool = self.cupy.get_default_memory_pool()
            return int(self.cupy.cuda.runtime.memGetInfo()[0]) + int(pool.free_bytes())

    def put(self, array: npt.NDArray[Any]) -> Any:
        """Return a copy of an array on the device."""
        with self.device, self.stream:
            return self.cupy.asarray(array)

    def empty(self, entries: int, dtype: npt.DTypeLike) -> Any:
        """Return memory of the device."""
        with self.device, self.stream:
            return self.cupy.empty(entries, dtype)

    def host(self, entries: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return memory of the host that the device writes to directly."""
        with self.device:
            size = max(1, entries * np.dtype(dtype).itemsize)
            return np.frombuffer(self.cupy.cuda.alloc_pinned_memory(size), dtype, entries)

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

    def launch(self, program: SequenceKernels, launch: SequenceLaunch, fields: Mapping[str, int], blocks: int) -> None:
        """Enqueue a launch; `blocks` of 0: as many as are on the device together."""
        fixed = "many" in launch.kernel
        threads = SIDE * SIDE if fixed else program.threads
        with self.device:
            kernel = _kernel_of(self.number, program, self.dtype.str, launch.kernel)
            size = program.shared(launch, fields["states"], blocks or self.chip.blocks, self.dtype.itemsize)
            if size:
                kernel.max_dynamic_shared_size_bytes = size
            together = blocks == 0
            if together:
                blocks = self.chip.blocks * (_blocks_at_once(kernel.kernel.ptr, threads) if fixed else 1)
            self.cupy.cuda.runtime.memsetAsync(self._barrier.data.ptr, 0, 8, self.stream.ptr)
            told = {name: getattr(launch, name) for name in ("first", "last", "kept", "cached")}
            words = program.record({**fields, **told, "barrier": self._barrier.data.ptr})
            launch_together(kernel.kernel.ptr, blocks, threads, size, words, self.stream.ptr, together)

    def synchronize(self) -> None:
        """Wait for all that is enqueued."""
        self.stream.synchronize()


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
def _kernel_of(number: int, program: SequenceKernels, dtype: str, name: str) -> Any:
    return _module(number, program, dtype).get_function(name)


@cache
def _module(number: int, program: SequenceKernels, dtype: str) -> Any:
    import cupy

    with cupy.cuda.Device(number):
        return cupy.RawModule(code=program.source(np.dtype(dtype)), options=("-std=c++17",))
