"""What the GPU kernels of hidden Markov models have in common: their sources, launches, and the device.

`viterbi_gpu` and `forward_backward_gpu` say what is launched; `ChainDevice` does it, for `junctor.hmm`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.gpu.device import Array, CudaDevice, DeviceArray, KernelModule, cuda_source

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


def joined_source(files: tuple[str, ...], constants: Mapping[str, int], dtype: npt.DTypeLike, before: str = "") -> str:
    """Return CUDA C++ source files as one.

    files: names in their order.
    constants: integers by name.
    dtype: float32 or float64.
    before: macros.
    """
    size = np.dtype(dtype).itemsize
    return cuda_source(files, {**constants, "DEPTH": DEPTH[size]}, double=size == 8, before=before + _SHARED)


class SequenceLaunch(NamedTuple):
    """A kernel, for the ticks behind `first` up to `last` of a block.

    rows: that it keeps in shared memory.
    kept, cached: parts of the matrix that each block of the grid keeps there, and in the cache of the device.
    """

    kernel: str
    first: int
    last: int
    rows: int = 0
    kept: int = 0
    cached: int = 0


class Chip(NamedTuple):
    """What launches depend on.

    blocks: of a grid that is on the device together, one a multiprocessor.
    shared: bytes of shared memory that each may have.
    cache: bytes.
    """

    blocks: int
    shared: int
    cache: int


class MatrixParts(NamedTuple):
    """Parts of a dense matrix that a block of the grid reads.

    number: of one block.
    kept_bytes, size: bytes of a part in shared memory (padding included), and elsewhere.
    """

    number: int
    kept_bytes: int
    size: int


class SequenceKernels(NamedTuple):
    """Kernels that are compiled together.

    module: their sources, by number format.
    fields: of the struct `Work`, in its order.
    threads: of a block that keeps no product in registers.
    shared: bytes that a block of a launch asks for, of states, blocks and the bytes of a number.
    """

    module: KernelModule
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
    """Return the kernel for the rows of a dense product.

    count: rows.
    itemsize: bytes of a number.
    fits: whether a number of rows has room in shared memory.
    """
    below = 0
    # One reading of the matrix serves all rows of a `few` kernel, as long as they have room in shared memory.
    for rows in FEW:
        if not fits(rows):
            break
        if count <= rows:
            return KernelChoice(f"few_{rows}", rows, below + 1)
        below = rows
    for rows in MANY[itemsize]:
        if count <= SIDE * rows or rows == MANY[itemsize][-1]:
            return KernelChoice(f"many_{rows}", 0, below + 1)
        below = SIDE * rows
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


def planned(
    counts: npt.NDArray[np.int64],
    sparse: str | None,
    itemsize: int,
    parts: MatrixParts,
    shared: Callable[[SequenceLaunch], int],
    chip: Chip,
) -> Iterator[SequenceLaunch]:
    """Yield the launches for the rows of a block of ticks, given those of its first tick.

    counts: rows of each tick, int64 [ticks], descending.
    sparse: name of the kernel of a sparse matrix, None for a dense one.
    itemsize: bytes of a number.
    parts: of the dense matrix.
    shared: bytes of shared memory that a launch asks for.
    """

    def choose(count: int) -> KernelChoice:
        if sparse is not None:
            return KernelChoice(sparse, 0, 1)
        return choice_for(count, itemsize, lambda rows: shared(SequenceLaunch("", 0, 0, rows)) <= chip.shared)

    for launch in spans(counts, choose):
        kept = cached = 0
        if launch.rows:
            # Shared memory first, then the cache: every tick reads the whole matrix again.
            kept = max(0, min(parts.number, (chip.shared - shared(launch)) // parts.kept_bytes))
            cached = min(parts.number - kept, int(CACHE_SHARE * chip.cache) // (chip.blocks * parts.size))
        yield launch._replace(kept=kept, cached=cached)


class ChainDevice(CudaDevice):
    """A CUDA device that computes rows, everything in one stream.

    dtype: of rows.
    Raises ImportError without CuPy, and what CuPy raises without such a device.
    """

    def __init__(self, dtype: npt.DTypeLike, number: int = 0) -> None:
        super().__init__(number)
        self.dtype = np.dtype(dtype)
        self.main = self.stream()
        names = ("MultiProcessorCount", "MaxSharedMemoryPerBlockOptin", "L2CacheSize")
        self.chip = Chip(*map(self.attribute, names))
        self._barrier = self.zeros(1, np.uint64)

    def free(self) -> int:
        """Return the bytes that can be had, those that CuPy keeps among them."""
        return super().free() + self.pooled()

    def host(self, entries: int, dtype: npt.DTypeLike) -> Array:
        """Return memory of the host that the device writes to directly."""
        return self.pinned(entries, dtype, pooled=True)

    def forget(self, array: DeviceArray) -> None:
        """Enqueue all bits set, which is what nobody has written yet."""
        self.fill(self.address(array), 0xFF, array.nbytes, self.main)

    def launch(self, program: SequenceKernels, launch: SequenceLaunch, fields: Mapping[str, int], blocks: int) -> None:
        """Enqueue a launch.

        program: the kernels that it is one of.
        fields: of the struct `Work`, but those that the launch itself says.
        blocks: 0 for as many as are on the device together, which then wait for each other.
        """
        in_registers = "many" in launch.kernel
        threads = SIDE * SIDE if in_registers else program.threads
        kernel = program.module.function(self, launch.kernel, self.dtype.str)
        shared = program.shared(launch, fields["states"], blocks or self.chip.blocks, self.dtype.itemsize)
        together = blocks == 0
        with self.current():
            if shared:
                # Beyond 48 KiB a kernel gets only what it was allowed before.
                kernel.max_dynamic_shared_size_bytes = shared
            if together:
                # A block a multiprocessor where rows lie in shared memory; others may have room for more.
                blocks = self.chip.blocks * (self.blocks_at_once(kernel, threads) if in_registers else 1)
            # Blocks that wait for each other count from zero, in the same stream behind the launch before.
            barrier = self.address(self._barrier)
            self.fill(barrier, 0, self._barrier.nbytes, self.main)
            told = {name: getattr(launch, name) for name in ("first", "last", "kept", "cached")}
            words = program.record({**fields, **told, "barrier": barrier})
            self.launch_together(kernel, blocks, threads, words, self.main, shared, together)

    def synchronize(self) -> None:
        """Wait for all that is enqueued."""
        assert self.main is not None
        self.main.synchronize()
