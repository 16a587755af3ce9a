"""A stand-in for as much of CuPy as chunks on a GPU use: device memory is memory, launches run compiled for the CPU."""

from __future__ import annotations

import ctypes
import random
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from threading import RLock, local
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from junctor_kernels.gpu import entries
from junctor_kernels.gpu.device import CudaDevice

from emulation.entries import compiled


def stand_in(patch: pytest.MonkeyPatch) -> None:
    """Put this in the place of CuPy, with small blocks: each of their threads is a fiber here."""
    patch.setitem(sys.modules, "cupy", sys.modules[__name__])
    # Where it is imported when it is first asked for anything, it would find this; Hypothesis asks every module.
    patch.delitem(sys.modules, "cupyx", raising=False)
    patch.setattr(entries, "THREADS", 32)
    patch.setattr(entries, "TILE", 32 * entries.EACH)


class DeviceArray(np.ndarray[Any, Any]):
    """An array that pretends to lie on a device."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self, **_: Any) -> Any:
        return np.array(self)


class Stream:
    """Work in order; that of all streams is done in any order that events allow, by chance, once somebody waits."""

    every: ClassVar[dict[int, Stream]] = {}

    def __init__(self, **_: Any) -> None:
        self.work: deque[Any] = deque()
        with at_work:
            self.ptr = len(self.every) + 1
            self.every[self.ptr] = self

    def __enter__(self) -> None:
        thread.current = [*getattr(thread, "current", []), self]

    def __exit__(self, *_: object) -> None:
        thread.current.pop()

    def synchronize(self) -> None:
        _work_until(lambda: not self.work)

    def wait_event(self, event: Event) -> None:
        turn = event.turn
        self.work.append(lambda: event.past >= turn)


class Event:
    """turn: how many times it has been recorded; past: which of them streams have come by; seen: when they did."""

    def __init__(self, **_: Any) -> None:
        self.turn = self.past = 0
        self.seen = 0.0

    def record(self, stream: Stream) -> None:
        self.turn += 1
        turn = self.turn

        def come_by() -> bool:
            self.past, self.seen = turn, time.perf_counter()
            return True

        # By its number, as CuPy does: any object that has one will do.
        Stream.every[stream.ptr].work.append(come_by)

    @property
    def done(self) -> bool:
        return self.past >= self.turn

    def synchronize(self) -> None:
        _work_until(lambda: self.done)


chance = random.Random(0)
# The streams that a thread is in, and which thread lets them all go on.
thread, at_work = local(), RLock()


def _work_until(done: Callable[[], bool]) -> None:
    """Let streams go on until something is done: what is ready, in any order."""
    with at_work:
        while not done():
            ready = [stream for stream in Stream.every.values() if stream.work]
            chance.shuffle(ready)
            if not any(_step(stream) for stream in ready):
                raise RuntimeError("streams wait for each other")


def _step(stream: Stream) -> bool:
    if not stream.work[0]():
        return False
    stream.work.popleft()
    return True


def _enqueue(stream: Stream | None, work: Callable[[], object]) -> None:
    if stream is None:
        work()
    else:
        stream.work.append(lambda: work() or True)


class RawModule:
    """Kernels of a source."""

    def __init__(self, code: str, **_: Any) -> None:
        self._library = compiled(code)

    def get_function(self, name: str) -> Any:
        def kernel(blocks: tuple[int], threads: tuple[int], arguments: tuple[Any], shared_mem: int = 0) -> None:
            assert not shared_mem
            # Parameters are those of the launch, whatever becomes of the array.
            record = arguments[0].copy()

            def run() -> None:
                # Fibers and shared memory of a library are there once.
                with at_work:
                    self._library.launch(name.encode(), ctypes.c_void_p(record.ctypes.data), blocks[0], threads[0])

            current = getattr(thread, "current", [])
            _enqueue(current[-1] if current else None, run)

        return kernel


def _copy(target: int, source: int, size: int, _: int, stream: int) -> None:
    _enqueue(Stream.every[stream], lambda: ctypes.memmove(target, source, size) and None)


def _copy_rows(target: int, step: int, source: int, stride: int, width: int, rows: int, _: int, stream: int) -> None:
    def run() -> None:
        for row in range(rows):
            ctypes.memmove(target + row * step, source + row * stride, width)

    _enqueue(Stream.every[stream], run)


class Current(nullcontext[None]):
    """The current device of a thread: there is one memory."""

    def use(self) -> None: ...


runtime = SimpleNamespace(
    memcpyDefault=4,
    getDevice=lambda: 0,
    deviceCanAccessPeer=lambda *_: 1,
    deviceEnablePeerAccess=lambda *_: None,
    memcpyAsync=_copy,
    memcpy2DAsync=_copy_rows,
    deviceSynchronize=lambda: _work_until(lambda: not any(stream.work for stream in Stream.every.values())),
    hostRegister=lambda *_: None,
    hostUnregister=lambda *_: None,
    CUDARuntimeError=RuntimeError,
)


def elapsed(one: Event, other: Event) -> float:
    """Return the milliseconds between two events."""
    return 1e3 * (other.seen - one.seen)


cuda = SimpleNamespace(Device=Current, Stream=Stream, Event=Event, runtime=runtime, alloc_pinned_memory=bytearray)
cuda.get_elapsed_time = elapsed
cuda.driver = SimpleNamespace(CUDADriverError=RuntimeError)


def empty(shape: Any, dtype: Any) -> DeviceArray:
    found = np.empty(shape, dtype)
    # So that it shows what nobody brought.
    found.reshape(-1).view(np.uint8)[:] = 170
    return found.view(DeviceArray)


def asarray(array: Any) -> DeviceArray:
    return np.array(array).view(DeviceArray)


def zeros(shape: Any, dtype: Any) -> DeviceArray:
    return np.zeros(shape, dtype).view(DeviceArray)


class Device(CudaDevice):
    """A device with a room of its own, as `CudaBlockDevice` has one."""

    capability = 90

    def __init__(self, room: int, number: int = 0) -> None:
        super().__init__(number)
        self.room = room
        self._memory = zeros(room, np.uint8)

    def place(self, start: int, shape: tuple[int, ...], dtype: Any) -> Any:
        return self._memory[start : start + int(np.prod(shape))]
