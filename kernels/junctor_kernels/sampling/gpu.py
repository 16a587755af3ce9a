"""Samples on a GPU: the source of its kernels, the struct that they read, and the device that runs them (CuPy)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from junctor_kernels.gpu.early_launch import launch_together
from junctor_kernels.sampling import loopy_gpu as beliefs_gpu
from junctor_kernels.sampling import philox
from junctor_kernels.sampling.layout import FULL, SCORE_UNIT

# The fields of the struct `SamplingJob`, in its order: addresses, then numbers, then a double.
FIELDS = (
    *("nodes", "parents", "factors", "freed", "levels", "weighed", "slots", "own", "own_order"),
    *("tables", "values", "soft", "said", "smallest", "thresholds", "order", "ratios", "chances", "scores"),
    *("words", "weights", "largest", "pieces", "sums"),
    *("node_count", "factor_count", "level_count", "slot_count", "weighed_count", "planes"),
    *("first", "count", "group", "piece_count", "least"),
    *("key0", "key1", "stage", "high", "row"),
)
LAST_FIELD = "rate"
_PLACES = {name: place for place, name in enumerate(FIELDS)}
# Samples of a piece, whose weights lie in shared memory while they are summed; threads of a block of each kernel.
SUMMED = 1024
THREADS = 256
# Samples of a thread of the kernels `several`.
SEVERAL = 4
# Threads of a block that takes a group of samples through the levels.
WAVE_THREADS = 256
# Shared memory of a block without asking for more, and with.
SHARED_BYTES = 48 << 10

Array = Any


def source() -> str:
    """Return the CUDA C++ source of all kernels."""
    numbers = {"ROUNDS": philox.ROUNDS, "SUMMED": SUMMED, "SEVERAL": SEVERAL}
    words = {"MULTIPLIER0": philox.MULTIPLIERS[0], "MULTIPLIER1": philox.MULTIPLIERS[1]}
    words |= {"KEY_STEP0": philox.KEY_STEPS[0], "KEY_STEP1": philox.KEY_STEPS[1]}
    lines = [f"enum {{ {', '.join(f'{name} = {value}' for name, value in numbers.items())} }};"]
    lines += [f"#define {name} {value}u" for name, value in words.items()]
    lines += [f"#define FULL {FULL}ll", f"#define SCORE_UNIT {SCORE_UNIT}.0"]
    return "\n".join([*lines, (Path(__file__).parents[1] / "gpu" / "cuda" / "sampling.cu").read_text()])


class SamplingJob:
    """The struct `SamplingJob`, filled in field by field; what a kernel does not read may be anything.

    words: int64, the last of them the bits of `rate`. Raises KeyError for what is no field.
    """

    def __init__(self, **fields: int) -> None:
        self.words: npt.NDArray[np.int64] = np.zeros(len(FIELDS) + 1, dtype=np.int64)
        self._rate = self.words[-1:].view(np.float64)
        self.set(**fields)

    def set(self, **fields: int) -> None:
        """Set some fields."""
        for name, value in fields.items():
            self.words[_PLACES[name]] = value

    def set_rate(self, rate: float) -> None:
        """Set the learning rate."""
        self._rate[0] = rate


class SamplingDevice(Protocol):
    """Memory and launches of a device, in the order in which they are asked for.

    processors: multiprocessors. most_shared: bytes of shared memory that a block may have.
    """

    processors: int
    most_shared: int

    def put(self, array: npt.NDArray[Any]) -> Array:
        """Return a copy of a NumPy array on the device."""

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Return an array on the device; raises MemoryError."""

    def address(self, array: Array) -> int:
        """Return where an array begins."""

    def copy(self, source: Array, target: Array) -> None:
        """Copy an array on the device."""

    def clear(self, array: Array) -> None:
        """Set an array to zeros."""

    def get(self, array: Array) -> npt.NDArray[Any]:
        """Return a copy of an array, once everything before is done."""

    def launch(
        self, kernel: str, blocks: tuple[int, int], threads: int, job: npt.NDArray[np.int64], shared: int = 0
    ) -> None:
        """Run a kernel over blocks in x and y, with bytes of shared memory."""

    def propagate(self, blocks: int, threads: int, job: npt.NDArray[np.int64]) -> None:
        """Send all messages of a row; blocks are on the device together."""


class CudaSampling:
    """A CUDA device and a stream of it. Raises ImportError without CuPy, and what CuPy raises without such a device."""

    def __init__(self, number: int = 0) -> None:
        import cupy

        self.cupy, self.number = cupy, number
        with cupy.cuda.Device(number) as device:
            self.processors = int(device.attributes["MultiProcessorCount"])
            self.most_shared = int(device.attributes["MaxSharedMemoryPerBlockOptin"])
            self.stream = cupy.cuda.Stream(non_blocking=True)

    def free(self) -> int:
        """Return the bytes that can be had."""
        with self.cupy.cuda.Device(self.number), self.stream:
            return int(self.cupy.cuda.runtime.memGetInfo()[0])

    def put(self, array: npt.NDArray[Any]) -> Array:
        """Return a copy of a NumPy array on the device."""
        with self.cupy.cuda.Device(self.number), self.stream:
            return self.cupy.asarray(array)

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Return an array on the device; raises MemoryError."""
        with self.cupy.cuda.Device(self.number), self.stream:
            return self.cupy.empty(shape, dtype)

    def address(self, array: Array) -> int:
        """Return where an array begins."""
        return int(array.data.ptr)

    def copy(self, source: Array, target: Array) -> None:
        """Copy an array on the device."""
        with self.cupy.cuda.Device(self.number), self.stream:
            target.data.copy_from_device_async(source.data, source.nbytes)

    def clear(self, array: Array) -> None:
        """Set an array to zeros."""
        with self.cupy.cuda.Device(self.number), self.stream:
            array.data.memset_async(0, array.nbytes)

    def get(self, array: Array) -> npt.NDArray[Any]:
        """Return a copy of an array, once everything before is done."""
        with self.cupy.cuda.Device(self.number), self.stream:
            found: npt.NDArray[Any] = array.get()
            return found

    def launch(
        self, kernel: str, blocks: tuple[int, int], threads: int, job: npt.NDArray[np.int64], shared: int = 0
    ) -> None:
        """Run a kernel over blocks in x and y, with bytes of shared memory."""
        with self.cupy.cuda.Device(self.number), self.stream:
            function = _function(self.number, kernel)
            if shared > SHARED_BYTES and function.max_dynamic_shared_size_bytes < shared:
                function.max_dynamic_shared_size_bytes = shared
            # As one value: CuPy passes nothing longer.
            function(blocks, (threads,), (job.view(np.dtype((np.void, job.nbytes))),), shared_mem=shared)

    def propagate(self, blocks: int, threads: int, job: npt.NDArray[np.int64]) -> None:
        """Send all messages of a row; blocks are on the device together."""
        with self.cupy.cuda.Device(self.number), self.stream:
            kernel = _messages(self.number).get_function(beliefs_gpu.KERNEL)
            launch_together(kernel.kernel.ptr, blocks, threads, 0, job, self.stream.ptr, True)


@cache
def _function(number: int, kernel: str) -> Any:
    return _module(number).get_function(kernel)


@cache
def _messages(number: int) -> Any:
    import cupy

    with cupy.cuda.Device(number):
        return cupy.RawModule(code=beliefs_gpu.source(), options=("-std=c++17",))


@cache
def _module(number: int) -> Any:
    import cupy

    # No fused multiply-adds: where weights are plain numbers, what is learned is that of the CPU, bit by bit.
    with cupy.cuda.Device(number):
        return cupy.RawModule(code=source(), options=("-std=c++17", "-fmad=false"))
