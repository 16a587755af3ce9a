"""A device in plain memory: the GPU kernels compiled for the CPU, so that their tests run everywhere."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels import gpu

HERE = Path(__file__).parent


class EmulatedDevice:
    """Runs the kernels with NumPy arrays as device memory, every launch at once."""

    def __init__(self, room: int = 1 << 26) -> None:
        self.queue = Lock()
        self.room = room
        self._memory = aligned(np.zeros(room, dtype=np.uint8))

    def place(self, start: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Any:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self._memory[start : start + size].view(dtype).reshape(shape)

    def put(self, array: npt.NDArray[Any]) -> Any:
        return aligned(array)

    def host(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.zeros(shape, dtype=dtype)

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)

    def replay(
        self,
        dtype: np.dtype[Any],
        run: Any,
        stages: Sequence[gpu.Stage],
        chunks: int,
        clears: Sequence[tuple[Any, int]],
    ) -> Launches:
        return Launches(dtype, run, stages, chunks, clears)

    def upload(self, host: npt.NDArray[Any], array: Any) -> None:
        array.reshape(-1).view(np.uint8)[: host.nbytes] = host.reshape(-1).view(np.uint8)

    def download(self, array: Any, host: npt.NDArray[Any]) -> None:
        host.reshape(-1).view(np.uint8)[...] = array.reshape(-1).view(np.uint8)[: host.nbytes]

    def mark(self) -> None:
        return None

    def wait(self, mark: None) -> None:
        del mark


class Launches:
    def __init__(self, dtype: Any, run: Any, stages: Any, chunks: int, clears: Any) -> None:
        self._library = library(dtype.str)
        self._run, self._stages, self._chunks, self._clears = run, stages, chunks, clears

    def start(self) -> None:
        for array, byte in self._clears:
            array.reshape(-1).view(np.uint8)[...] = byte
        for launch in [launch for stage in self._stages for launch in stage]:
            (x, y), threads = gpu.grid(launch, self._chunks)
            run = ctypes.c_void_p(self._run.ctypes.data)
            self._library.launch(launch.kernel.encode(), run, launch.first, x, y, threads)


def aligned(array: npt.NDArray[Any]) -> Any:
    """Return a copy that begins at 16 bytes, as device memory does."""
    array = np.ascontiguousarray(array)
    memory = np.zeros(array.nbytes + 16, dtype=np.uint8)
    start = -memory.ctypes.data % 16
    result = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    result[...] = array
    return result


@cache
def library(dtype: str) -> ctypes.CDLL:
    """Compile the kernels for a number format."""
    folder = Path(mkdtemp(prefix="junctor-emulated-"))
    code = "\n".join(
        [(HERE / "emulated.h").read_text(), gpu.source(np.dtype(dtype)), (HERE / "emulated_launch.h").read_text()]
    )
    (folder / "kernels.cpp").write_text(code)
    command = ["g++", "-std=c++20", "-O2", "-fPIC", "-shared", "-pthread", "-Wno-unknown-pragmas", "-o"]
    subprocess.run([*command, str(folder / "kernels.so"), str(folder / "kernels.cpp")], check=True)
    return ctypes.CDLL(str(folder / "kernels.so"))
