"""Expected counts of enumerated components on a GPU: the source of the kernels, the struct that they read, the device.

Called by `junctor.learning.counts_gpu`; `pieces` makes the lists of a block (`cuda/components.cu`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from junctor_kernels.gpu.device import Array, CudaDevice, DeviceArray, KernelModule, as_struct, cuda_source
from junctor_kernels.row_trees import pieces
from junctor_kernels.row_trees.counts import LEAST_TOTAL

# The fields of the struct `Block`, in its order: addresses, then numbers.
FIELDS = (
    *("values", "weights"),
    *("parts", "bases", "offsets", "members", "piece_starts", "unit_starts", "piece_of"),
    *("units", "entries", "entry_starts"),
    *("rows", "totals", "unit_sums", "sums"),
    *("part_count", "task_count", "component_count", "unit_count", "entry_count", "size"),
)
# Threads of a block of a grid.
THREADS = 128


def source() -> str:
    """Return the CUDA C++ source of the kernels."""
    names = ("FIRST", "COUNT", "FACTORS", "STATES", "BASES", "OFFSETS", "ROWS", "TASKS", "PART_COLUMNS", "TOGETHER")
    constants = {name: getattr(pieces, name) for name in names}
    return cuda_source(
        ("sums.cu", "components.cu"), {**constants, "THREADS": THREADS}, before=f"#define LEAST_TOTAL {LEAST_TOTAL}"
    )


# No fused multiply-adds: products are those of the CPU, bit by bit.
KERNELS = KernelModule(source, ("-fmad=false",))


def record(fields: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """Return the struct `Block`; raises KeyError where a field is missing."""
    return np.array([fields[name] for name in FIELDS], dtype=np.int64)


class CountDevice(Protocol):
    """Memory and launches of a device, in the order in which they are asked for."""

    def room(self) -> int:
        """Return the bytes that can be had."""

    def put(self, array: Array) -> DeviceArray:
        """Return a copy of a NumPy array on the device; raises MemoryError."""

    def empty(self, shape: int, dtype: npt.DTypeLike) -> DeviceArray:
        """Return an array on the device; raises MemoryError."""

    def set(self, array: DeviceArray, values: Array) -> None:
        """Copy values to the beginning of an array."""

    def clear(self, array: DeviceArray) -> None:
        """Set an array to zeros."""

    def get(self, array: DeviceArray, out: Array) -> Array:
        """Copy an array to the host, once everything before is done; return `out`."""

    def pinned(self, entries: int, dtype: npt.DTypeLike) -> Array:
        """Return memory of the host that is copied to faster; raises MemoryError."""

    def address(self, array: DeviceArray) -> int:
        """Return where an array begins."""

    def launch(self, kernels: Mapping[str, int], block: npt.NDArray[np.int64]) -> None:
        """Enqueue kernels, each over so many threads, in their order. block: the struct `Block`."""


class CudaCounts(CudaDevice):
    """A CUDA device and a stream of it. Raises ImportError without CuPy, and what CuPy raises without such a device."""

    def __init__(self, number: int = 0) -> None:
        super().__init__(number)
        # Everything goes through one stream, so nothing has to wait for an event.
        self.main: Any = self.stream()

    def room(self) -> int:
        """Return the bytes that can be had, those that CuPy keeps among them."""
        return self.free() + self.pooled()

    def clear(self, array: DeviceArray) -> None:
        """Set an array to zeros."""
        self.fill(self.address(array), 0, array.nbytes, self.main)

    def launch(self, kernels: Mapping[str, int], block: npt.NDArray[np.int64]) -> None:
        """Enqueue kernels, each over so many threads, in their order. block: the struct `Block`."""
        arguments = (as_struct(block),)
        with self.current():
            for kernel, threads in kernels.items():
                self.launch_kernel(KERNELS.function(self, kernel), (-(-threads // THREADS),), THREADS, arguments)
