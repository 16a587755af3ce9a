"""A device in plain memory for most probable paths: their GPU kernels compiled for the CPU, with small blocks."""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.hmm.device import Chip, SequenceKernels, SequenceLaunch

from emulation.build import built

HERE = Path(__file__).parent
THREADS, SIDE = 64, 8


class DeviceArray(np.ndarray[Any, Any]):
    """An array that pretends to lie on a device."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


class EmulatedViterbi:
    """The interface of `ViterbiDevice`."""

    def __init__(self, dtype: npt.DTypeLike, processors: int = 2, shared: int = 1 << 17) -> None:
        self.dtype, self.chip = np.dtype(dtype), Chip(processors, shared, 1 << 12)
        self.kernels: list[str] = []
        # Bytes that are in use, and the most that ever were.
        self.used = self.peak = 0

    def free(self) -> int:
        return 1 << 26

    def put(self, array: npt.NDArray[Any]) -> DeviceArray:
        memory = self.empty(array.size, array.dtype)
        memory[:] = array.reshape(-1)
        return memory

    def empty(self, entries: int, dtype: npt.DTypeLike) -> DeviceArray:
        dtype = np.dtype(dtype)
        memory = np.full(entries * dtype.itemsize + 64, 0x7F, np.uint8)
        self._count(entries * dtype.itemsize)
        weakref.finalize(memory, self._count, -entries * dtype.itemsize)
        start = -memory.ctypes.data % 64
        return memory[start : start + entries * dtype.itemsize].view(dtype).view(DeviceArray)

    def host(self, entries: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.empty(entries, dtype)

    def _count(self, size: int) -> None:
        self.used += size
        self.peak = max(self.peak, self.used)

    def get(self, array: Any, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        out[:] = array
        return out

    def set(self, array: Any, values: npt.NDArray[Any]) -> None:
        array[: values.size] = values

    def forget(self, array: Any) -> None:
        array.view(np.uint8)[:] = 0xFF

    def launch(self, program: SequenceKernels, launch: SequenceLaunch, fields: dict[str, int], blocks: int) -> None:
        self.kernels.append(launch.kernel)
        barrier = np.zeros(1, np.uint64)
        told = {name: getattr(launch, name) for name in ("first", "last", "kept", "cached")}
        words = program.record({**fields, **told, "barrier": barrier.ctypes.data})
        threads = SIDE * SIDE if "many" in launch.kernel else THREADS
        name = launch.kernel.encode()
        library(program, self.dtype.str).launch(
            name, blocks or self.chip.blocks, threads, ctypes.c_void_p(words.ctypes.data)
        )

    def synchronize(self) -> None: ...


@cache
def library(program: SequenceKernels, dtype: str) -> ctypes.CDLL:
    """Compile the kernels."""
    before, after = (HERE / "chains.h").read_text().split("// ---\n")
    source = program.module.source(dtype, THREADS, SIDE)
    return built(before, source, after)
