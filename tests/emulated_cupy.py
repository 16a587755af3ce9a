"""A stand-in for as much of CuPy as chunks on a GPU use: device memory is memory, launches run compiled for the CPU."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
from test_entries_gpu import compiled


class DeviceArray(np.ndarray[Any, Any]):
    """An array that pretends to lie on a device."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self, **_: Any) -> Any:
        return np.array(self)


class Stream:
    ptr = 0

    def __init__(self, **_: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def synchronize(self) -> None: ...

    def wait_event(self, _: Any) -> None: ...


class Event:
    def __init__(self, **_: Any) -> None: ...

    def record(self, _: Any) -> None: ...


class RawModule:
    """Kernels of a source; one launch at a time, because threads of the emulation share what CUDA gives each block."""

    _lock = Lock()

    def __init__(self, code: str, **_: Any) -> None:
        self._library = compiled(code)

    def get_function(self, name: str) -> Any:
        def kernel(blocks: tuple[int], threads: tuple[int], arguments: tuple[Any]) -> None:
            (record,) = arguments
            with self._lock:
                self._library.launch(name.encode(), ctypes.c_void_p(record.ctypes.data), blocks[0], threads[0])

        return kernel


def _copy(target: int, source: int, size: int, *_: Any) -> None:
    ctypes.memmove(target, source, size)


def _copy_rows(target: int, step: int, source: int, stride: int, width: int, rows: int, *_: Any) -> None:
    for row in range(rows):
        ctypes.memmove(target + row * step, source + row * stride, width)


runtime = SimpleNamespace(
    memcpyDefault=4,
    deviceCanAccessPeer=lambda *_: 1,
    deviceEnablePeerAccess=lambda *_: None,
    memcpyAsync=_copy,
    memcpy2DAsync=_copy_rows,
    deviceSynchronize=lambda: None,
    hostRegister=lambda *_: None,
    hostUnregister=lambda *_: None,
    CUDARuntimeError=RuntimeError,
)
cuda = SimpleNamespace(
    Device=lambda _: nullcontext(), Stream=Stream, Event=Event, runtime=runtime, alloc_pinned_memory=bytearray
)


def asarray(array: Any) -> DeviceArray:
    return np.array(array).view(DeviceArray)


def zeros(shape: Any, dtype: Any) -> DeviceArray:
    return np.zeros(shape, dtype).view(DeviceArray)


class Device:
    """What `CudaDevice` shows of itself."""

    def __init__(self, room: int, number: int = 0) -> None:
        self.room, self.number, self.queue = room, number, Lock()
        self._memory = zeros(room, np.uint8)

    def place(self, start: int, shape: tuple[int, ...], dtype: Any) -> Any:
        return self._memory[start : start + int(np.prod(shape))]
