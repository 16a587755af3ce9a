"""A device in plain memory for expected counts: their GPU kernels compiled for the CPU."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.row_trees import counts_gpu

from emulation.blocks import aligned
from emulation.build import built

HERE = Path(__file__).parent


class EmulatedCounts:
    """Arrays are NumPy's, every launch is done at once.

    size: bytes of the device.
    """

    # Threads of the emulation share what CUDA gives each block.
    _lock = Lock()

    def __init__(self, size: int = 1 << 26) -> None:
        self.size = size
        self.launches: list[str] = []
        # Bytes that are in use, and the most that ever were.
        self.used = self.peak = 0

    def room(self) -> int:
        return self.size

    def put(self, array: npt.NDArray[Any]) -> Any:
        memory = self.empty(array.size, array.dtype)
        memory[:] = array.reshape(-1)
        return memory

    def empty(self, shape: int, dtype: npt.DTypeLike) -> Any:
        # As a device leaves it: anything.
        array = aligned(np.zeros(shape, dtype))
        array.view(np.uint8)[:] = 0xA5
        self._count(array.nbytes)
        weakref.finalize(array, self._count, -array.nbytes)
        return array

    def set(self, array: Any, values: npt.NDArray[Any]) -> None:
        array[: values.size] = values

    def clear(self, array: Any) -> None:
        array[:] = 0

    def get(self, array: Any, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        out[:] = array
        return out

    def pinned(self, entries: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.empty(entries, dtype)

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)

    def launch(self, kernels: Mapping[str, int], block: npt.NDArray[np.int64]) -> None:
        self.launches += kernels
        with self._lock:
            for kernel, threads in kernels.items():
                blocks = -(-threads // counts_gpu.THREADS)
                library().launch(kernel.encode(), blocks, counts_gpu.THREADS, ctypes.c_void_p(block.ctypes.data))

    def _count(self, size: int) -> None:
        self.used += size
        self.peak = max(self.peak, self.used)


@cache
def library() -> ctypes.CDLL:
    """Compile the kernels."""
    types, launch = (HERE / "components.h").read_text().split("// ---\n")
    return built(types, counts_gpu.source(), launch)
