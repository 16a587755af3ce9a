"""A device in plain memory: the GPU kernels compiled for the CPU, so that their tests run everywhere."""

from __future__ import annotations

import ctypes
import time
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor.cost.features.gpu_stages import FEW_WORK, MANY_WORK, CaseParallel, EntryParallel, LaunchTuner
from junctor_kernels.circuits import gpu as circuits
from junctor_kernels.gpu import blocks as gpu
from junctor_kernels.gpu.device import KernelModule

from emulation.build import built

HERE = Path(__file__).parent


class EmulatedDevice:
    """Runs the kernels with NumPy arrays as device memory, every launch at once."""

    def __init__(self, room: int = 1 << 26) -> None:
        self.queue = Lock()
        self.room = room
        self.name, self.figures = "emulated", {"multiprocessors": 1.0}
        self._memory = aligned(np.zeros(room, dtype=np.uint8))

    def place(self, start: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Any:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self._memory[start : start + size].view(dtype).reshape(shape)

    def put(self, array: npt.NDArray[Any]) -> Any:
        return aligned(array)

    def host(self, size: int, mapped: Any = None) -> npt.NDArray[np.uint8]:
        # As a device does not clear it either; aligned as allocations of CUDA are, whole lines of the bus.
        return aligned(np.full(size, 0xA5, dtype=np.uint8))

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)

    def replay(self, work: gpu.LaunchList) -> Launches:
        return Launches(work)

    def upload(self, *copies: tuple[npt.NDArray[Any], Any]) -> None:
        for host, array in copies:
            array.reshape(-1).view(np.uint8)[: host.nbytes] = host.reshape(-1).view(np.uint8)

    def write_answers(
        self, work: gpu.LaunchList, writer: gpu.Writer, blocks: int, array: Any, host: npt.NDArray[Any]
    ) -> None:
        run, kernels = ctypes.c_void_p(work.run.ctypes.data), library(work.algebra, writer.kernels)
        kernels.launch_write(kernels[writer.name], run, blocks, gpu.WRITE_THREADS)
        host.reshape(-1).view(np.uint8)[...] = array.reshape(-1).view(np.uint8)[: host.nbytes]

    def mark(self) -> None:
        return None

    def wait(self, mark: None) -> None:
        del mark

    def seconds(self, replay: gpu.Replay, repeats: int) -> float:
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            replay.start()
            times.append(time.perf_counter() - start)
        return min(times)


class Launches:
    def __init__(self, work: gpu.LaunchList) -> None:
        self._library, self._work = library(work.algebra, work.kernels), work

    def start(self) -> None:
        if self._work.cleared is not None:
            self._work.cleared.reshape(-1).view(np.uint8)[...] = 0
        for launch in [launch for stage in self._work.stages for launch in stage]:
            (x, y), threads = gpu.grid(launch, self._work.chunks)
            run = ctypes.c_void_p(self._work.run.ctypes.data)
            self._library.launch(self._library[launch.kernel], run, launch.first, x, y, threads)


def aligned(array: npt.NDArray[Any]) -> Any:
    """Return a copy that begins at 256 bytes, as device memory does."""
    array = np.ascontiguousarray(array)
    memory = np.zeros(array.nbytes + 256, dtype=np.uint8)
    start = -memory.ctypes.data % 256
    result = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    result[...] = array
    return result


@cache
def library(algebra: str, kernels: KernelModule) -> ctypes.CDLL:
    """Compile the kernels in an algebra."""
    after = "circuits_launch.h" if kernels is circuits.KERNELS else "blocks_launch.h"
    return built((HERE / "blocks.h").read_text(), kernels.text(algebra), (HERE / after).read_text())


@cache
def small_items() -> LaunchTuner:
    """Launch parameters that differ from stage to stage, with terms that are shared."""
    prices = np.random.default_rng(1)
    few, many = (prices.random(len(counts)) for counts in (FEW_WORK, MANY_WORK))
    settings = (
        (EntryParallel(1, 1), EntryParallel(3, 2), EntryParallel(8, 1)),
        (CaseParallel(1, 5), CaseParallel(16, 20), CaseParallel(4, 1000)),
    )
    return LaunchTuner(few, many, *settings)
