"""A device in plain memory for sampling: its GPU kernels compiled for the CPU."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.sampling import gpu as sampling_gpu
from junctor_kernels.sampling import loopy_gpu as beliefs_gpu

from emulation.blocks import aligned
from emulation.build import built

HERE = Path(__file__).parent


class EmulatedSampling:
    """Arrays are NumPy's, every launch is done at once."""

    processors = 1
    most_shared = 1 << 18
    # Threads of the emulation share what CUDA gives each block.
    _lock = Lock()

    def put(self, array: npt.NDArray[Any]) -> Any:
        return aligned(array)

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Any:
        # As a device leaves it: anything.
        array = aligned(np.zeros(shape, dtype))
        array.reshape(-1).view(np.uint8)[:] = 0xA5
        return array

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)

    def copy(self, source: Any, target: Any) -> None:
        target.reshape(-1)[:] = source.reshape(-1)

    def clear(self, array: Any) -> None:
        array[...] = 0

    def get(self, array: Any) -> npt.NDArray[Any]:
        return np.array(array)

    def launch(self, kernel: str, blocks: tuple[int, int], threads: int, job: Any, shared: int = 0) -> None:
        assert shared <= self.most_shared
        with self._lock:
            library().launch(kernel.encode(), ctypes.c_void_p(job.ctypes.data), *blocks, threads)

    def propagate(self, blocks: int, threads: int, job: Any) -> None:
        assert blocks == 1
        with self._lock:
            messages().launch(ctypes.c_void_p(job.ctypes.data), threads)


@cache
def messages() -> ctypes.CDLL:
    """Compile the kernel of messages."""
    types, launch = (HERE / "loopy.h").read_text().split("// ---\n")
    return built(types, beliefs_gpu.source(), launch)


@cache
def library() -> ctypes.CDLL:
    """Compile the kernels."""
    source = sampling_gpu.source().replace(
        "extern __shared__ unsigned shared[];", "unsigned *const shared = dynamic_shared;"
    )
    types, launches = (HERE / "sampling.h").read_text().split("// ---\n")
    return built(types, source, launches, flags=("-O1", "-ffp-contract=off"))
