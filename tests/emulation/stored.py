"""A device in plain memory for stored tables: their GPU kernels compiled for the CPU, and streams that run late.

What is enqueued in a stream is done at the last moment and in an order drawn at random among all that events allow, so
a missing event gives a wrong answer sooner or later.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu import stored as stored_gpu
from junctor_kernels.gpu.stored import PlacedBatch
from junctor_kernels.gpu.stored_tasks import CliqueLaunch

from emulation.build import built

HERE = Path(__file__).parent
KERNELS = ("scatter_reduce", "gather_reduce", "finish", "settle", "permute")


class Event:
    done, seen = False, 0.0


class Stream:
    def __init__(self) -> None:
        self.waiting: deque[Callable[[], bool]] = deque()


class EmulatedStored:
    """A device whose addresses are those of NumPy arrays."""

    def __init__(self, seed: int = 0) -> None:
        self._random, self._streams = random.Random(seed), list[Stream]()
        self.allocated = 0

    def free(self) -> int:
        return 1 << 28

    def copy_engines(self) -> int:
        return 2

    def allocate(self, size: int) -> Any:
        self.allocated += size
        memory = np.full(size + 256, 0xFF, dtype=np.uint8)  # NaN wherever nobody wrote
        return SimpleNamespace(memory=memory, ptr=memory.ctypes.data + -memory.ctypes.data % 256)

    def host(self, entries: int, dtype: npt.DTypeLike) -> Any:
        return np.zeros(entries, dtype=dtype)

    def stream(self) -> Stream:
        self._streams.append(Stream())
        return self._streams[-1]

    def record(self, stream: Stream) -> Event:
        event = Event()

        def mark() -> bool:
            event.done, event.seen = True, time.perf_counter()
            return True

        stream.waiting.append(mark)
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        stream.waiting.append(lambda: event.done)

    def synchronize(self, event: Event) -> None:
        while not event.done:
            self._step()

    def upload(self, array: Any, address: int, stream: Stream) -> None:
        self._enqueue(stream, lambda: ctypes.memmove(address, array.ctypes.data, array.nbytes))

    def download(self, address: int, array: Any, stream: Stream) -> None:
        self._enqueue(stream, lambda: ctypes.memmove(array.ctypes.data, address, array.nbytes))

    def clear(self, address: int, size: int, stream: Stream) -> None:
        self._enqueue(stream, lambda: ctypes.memset(address, 0, size))

    def elapsed(self, begin: Event, end: Event) -> float:
        assert begin.done
        assert end.done
        return end.seen - begin.seen

    def launch(self, algebra: str, work: CliqueLaunch, batch: PlacedBatch, lost: int, stream: Stream) -> None:
        def run() -> None:
            addresses = (batch.base + work.tasks, batch.base + work.starts, batch.factors, batch.axes, lost)
            tasks, starts, factors, axes, mark = map(ctypes.c_void_p, addresses)
            launch = library(stored_gpu.source(algebra)).launch
            launch(work.kernel.encode(), work.blocks, tasks, starts, work.number, factors, axes, mark)

        self._enqueue(stream, run)

    def graph(self, stream: Stream, enqueue: Callable[[], None]) -> Any:
        del stream
        return Graph(enqueue)

    def _enqueue(self, stream: Stream, work: Callable[[], object]) -> None:
        def run() -> bool:
            work()
            return True

        stream.waiting.append(run)

    def _step(self) -> None:
        """Do what comes next in any of the streams that need not wait."""
        order = [stream for stream in self._streams if stream.waiting]
        self._random.shuffle(order)
        for stream in order:
            if stream.waiting[0]():
                stream.waiting.popleft()
                return
        raise RuntimeError("every stream waits for an event that nobody will record")


class Graph:
    def __init__(self, enqueue: Callable[[], None]) -> None:
        self._enqueue = enqueue

    def launch(self, stream: Stream) -> None:
        del stream
        self._enqueue()


@cache
def library(source: str) -> ctypes.CDLL:
    """Compile the kernels."""
    warps, launches = (HERE / "stored.h").read_text().split("// ---\n")
    return built(warps, source, launches, flags=("-O2",))
