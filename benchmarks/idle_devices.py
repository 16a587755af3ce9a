"""Devices that do nothing, in place of CuPy: what the host does to enqueue a propagation in chunks, without a GPU."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from junctor_kernels.gpu.device import CudaDevice

# Where the memory of devices lies: nobody looks there.
FIRST_ADDRESS, APART = 1 << 46, 1 << 32


class Memory:
    """An array on a device."""

    addresses = itertools.count(FIRST_ADDRESS, APART)

    def __init__(self, shape: Any, dtype: Any) -> None:
        self.shape = (shape,) if isinstance(shape, int) else shape
        self.nbytes = int(np.prod(self.shape, dtype=object)) * np.dtype(dtype).itemsize
        self.data = SimpleNamespace(ptr=next(self.addresses))
        for _ in range(self.nbytes // APART):
            next(self.addresses)

    def __setitem__(self, *_: Any) -> None: ...


class Current(nullcontext[None]):
    def use(self) -> None: ...


@contextmanager
def idle_devices() -> Iterator[Counter[str]]:
    """Context manager: devices that do nothing; the counts of what they are asked for."""
    calls: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., None]:
        def call(*_: Any, **__: Any) -> None:
            calls[name] += 1

        return call

    class Stream(nullcontext[None]):
        ptr = 1
        wait_event = counted("waits")

        def __init__(self, **_: Any) -> None:
            super().__init__()

    class Event:
        done = True
        record = counted("events")

        def __init__(self, **_: Any) -> None: ...

        def synchronize(self) -> None: ...

    def nothing(*_: Any) -> None: ...

    kernel = counted("launches")
    runtime = SimpleNamespace(
        getDevice=lambda: 0,
        deviceCanAccessPeer=lambda *_: 1,
        deviceEnablePeerAccess=nothing,
        memcpyAsync=counted("copies"),
        memcpy2DAsync=counted("copies of rows"),
        deviceSynchronize=nothing,
        hostRegister=nothing,
        hostUnregister=nothing,
        CUDARuntimeError=RuntimeError,
    )
    module = SimpleNamespace(get_function=lambda name: kernel)
    # A module, because look-ups of kernels are remembered for each.
    stand_in: Any = ModuleType("cupy")
    driver = SimpleNamespace(CUDADriverError=RuntimeError)
    stand_in.cuda = SimpleNamespace(Device=Current, Stream=Stream, Event=Event, runtime=runtime, driver=driver)
    stand_in.empty = Memory
    stand_in.RawModule = lambda **_: module
    with (
        patch.dict(sys.modules, cupy=stand_in),
        # Pages that nobody touches take no memory.
        patch("junctor.out_of_core.gpu.devices.pinned", lambda size: np.empty(size, np.uint8)),
    ):
        yield calls


class IdleDevice(CudaDevice):
    """A device with a room, as `CudaBlockDevice` has one."""

    name = "no device"
    capability = 90

    def __init__(self, number: int, room: int) -> None:
        super().__init__(number)
        self.room = room

    def place(self, start: int, shape: tuple[int, ...], dtype: Any) -> Memory:
        return Memory(shape, dtype)
