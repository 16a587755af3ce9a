"""Samples on a GPU: the source of its kernels, the struct that they read, and the devices that run them.

Called by `junctor.sampling.gpu`; messages of loopy belief propagation are in `loopy_gpu`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from junctor_kernels.gpu.device import ON_DEVICE, CudaDevice, DeviceArray, KernelModule, as_struct, cuda_source
from junctor_kernels.sampling import loopy_gpu as beliefs_gpu
from junctor_kernels.sampling import philox
from junctor_kernels.sampling.layout import BLOCK, FULL, OWN_PART, OWN_SAMPLES, SCORE_UNIT

# The fields of the struct `SamplingJob`, in its order: addresses, then numbers, then doubles.
FIELDS = (
    *("nodes", "parents", "factors", "freed", "levels", "weighed", "slots", "own", "own_order"),
    *("tables", "values", "soft", "said", "smallest", "thresholds", "order", "ratios", "chances", "scores"),
    *("words", "weights", "largest", "pieces", "sums"),
    *("node_count", "factor_count", "level_count", "slot_count", "weighed_count", "planes"),
    *("first", "count", "group", "piece_count"),
    *("key0", "key1", "stage", "high", "row"),
)
DOUBLES = ("rate", "share")
_PLACES = {name: place for place, name in enumerate((*FIELDS, *DOUBLES))}
# Samples of a piece, whose weights lie in shared memory while they are summed; threads of a block of each kernel.
SUMMED = 1024
THREADS = 256
# Samples of a thread of the kernels `several`.
SEVERAL = 4
# Threads of a block that takes a group of samples through the levels.
WAVE_THREADS = 256
# Shared memory of a block without asking for more, and with.
SHARED_BYTES = 48 << 10


def source() -> str:
    """Return the CUDA C++ source of all kernels."""
    constants = {"ROUNDS": philox.ROUNDS, "SUMMED": SUMMED, "SEVERAL": SEVERAL}
    constants |= {"BLOCK": BLOCK, "OWN_SAMPLES": OWN_SAMPLES}
    words = {"MULTIPLIER0": philox.MULTIPLIERS[0], "MULTIPLIER1": philox.MULTIPLIERS[1]}
    words |= {"KEY_STEP0": philox.KEY_STEPS[0], "KEY_STEP1": philox.KEY_STEPS[1]}
    # Macros where the type counts: unsigned words, a 64-bit integer, a double.
    lines = [f"#define {name} {value}u" for name, value in words.items()]
    lines += [f"#define FULL {FULL}ll", f"#define SCORE_UNIT {SCORE_UNIT}.0", f"#define OWN_PART {OWN_PART}"]
    return cuda_source(("sampling.cu",), constants, before="\n".join(lines))


# No fused multiply-adds: where weights are plain numbers, what is learned is that of the CPU, bit by bit.
KERNELS = KernelModule(source, ("-fmad=false",))


class SamplingJob:
    """The struct `SamplingJob`, filled in field by field; what a kernel does not read may be anything.

    words: int64, the last of them the bits of DOUBLES. Raises KeyError for what is no field.
    """

    def __init__(self, **fields: float) -> None:
        self.words: npt.NDArray[np.int64] = np.zeros(len(FIELDS) + len(DOUBLES), dtype=np.int64)
        self._numbers = self.words.view(np.float64)
        self.set(**fields)

    def set(self, **fields: float) -> None:
        """Set some fields."""
        for name, value in fields.items():
            (self._numbers if name in DOUBLES else self.words)[_PLACES[name]] = value


class SamplingDevice(Protocol):
    """Memory and launches of a device, in the order in which they are asked for.

    processors: multiprocessors.
    most_shared: bytes of shared memory that a block may have.
    """

    processors: int
    most_shared: int

    def put(self, array: npt.NDArray[Any]) -> DeviceArray:
        """Return a copy of a NumPy array on the device."""

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Return an array on the device; raises MemoryError."""

    def address(self, array: DeviceArray) -> int:
        """Return where an array begins."""

    def copy(self, source: DeviceArray, target: DeviceArray) -> None:
        """Copy an array on the device."""

    def clear(self, array: DeviceArray) -> None:
        """Set an array to zeros."""

    def get(self, array: DeviceArray) -> npt.NDArray[Any]:
        """Return a copy of an array, once everything before is done."""

    def launch(
        self, kernel: str, blocks: tuple[int, int], threads: int, job: npt.NDArray[np.int64], shared: int = 0
    ) -> None:
        """Run a kernel.

        blocks: in x and y.
        threads: of a block.
        job: the words of a `SamplingJob`.
        shared: bytes of shared memory of a block.
        """

    def propagate(self, blocks: int, threads: int, job: npt.NDArray[np.int64]) -> None:
        """Send all messages of a row; blocks are on the device together. job: the struct `Messages`."""


class CudaSampling(CudaDevice):
    """A CUDA device and a stream of it. Raises ImportError without CuPy, and what CuPy raises without such a device."""

    def __init__(self, number: int = 0) -> None:
        super().__init__(number)
        self.processors = self.attribute("MultiProcessorCount")
        self.most_shared = self.attribute("MaxSharedMemoryPerBlockOptin")
        # Everything goes through one stream, so nothing has to wait for an event.
        self.main = self.stream()

    def copy(self, source: DeviceArray, target: DeviceArray) -> None:
        """Copy an array on the device."""
        self.copy_bytes(self.address(target), self.address(source), source.nbytes, self.main, ON_DEVICE)

    def clear(self, array: DeviceArray) -> None:
        """Set an array to zeros."""
        self.fill(self.address(array), 0, array.nbytes, self.main)

    def launch(
        self, kernel: str, blocks: tuple[int, int], threads: int, job: npt.NDArray[np.int64], shared: int = 0
    ) -> None:
        """Run a kernel over blocks in x and y, with bytes of shared memory."""
        function = KERNELS.function(self, kernel)
        with self.current():
            # A block has so much without asking, and what was once allowed to a kernel stays so.
            if shared > SHARED_BYTES and function.max_dynamic_shared_size_bytes < shared:
                function.max_dynamic_shared_size_bytes = shared
            self.launch_kernel(function, blocks, threads, (as_struct(job),), shared=shared)

    def propagate(self, blocks: int, threads: int, job: npt.NDArray[np.int64]) -> None:
        """Send all messages of a row; blocks are on the device together."""
        kernel = beliefs_gpu.KERNELS.function(self, beliefs_gpu.KERNEL)
        with self.current():
            self.launch_together(kernel, blocks, threads, job, self.main)
