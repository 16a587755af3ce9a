"""Devices for stored clique tables: what `junctor.cliques` asks of one, and how a CUDA device does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from junctor_kernels.gpu import stored_tasks
from junctor_kernels.gpu.device import (
    TO_DEVICE,
    TO_HOST,
    Array,
    CudaDevice,
    Event,
    Graph,
    KernelModule,
    Stream,
    cuda_source,
)
from junctor_kernels.gpu.stored_tasks import CliqueLaunch, TaskBatch

# Bytes of host memory that are asked for one by one.
LARGE_HOST = 1 << 24


def source(algebra: str) -> str:
    """Return the CUDA C++ source of all kernels in an algebra: "single", "double" or "log"."""
    constants = {"THREADS": stored_tasks.THREADS, "TILE": stored_tasks.TILE}
    before = "#define LOGS" if algebra == "log" else ""
    return cuda_source(("numbers.cu", "algebra.cu", "stored.cu"), constants, algebra != "single", before)


KERNELS = KernelModule(source)


class CliqueDevice(Protocol):
    """Memory, streams and launches of a device; work of a stream is done in the order in which it is enqueued."""

    def free(self) -> int:
        """Return the bytes that nobody uses."""

    def copy_engines(self) -> int:
        """Return how many copies it does at a time: with two, one each way."""

    def allocate(self, size: int) -> Any:
        """Return so many bytes, at the address `ptr`, which live as long as the object."""

    def host(self, entries: int, dtype: npt.DTypeLike) -> Array:
        """Return an array in memory that copies to and from the device are fast with."""

    def stream(self) -> Stream:
        """Return a new stream."""

    def record(self, stream: Stream) -> Event:
        """Return an event behind all that is enqueued in a stream so far."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Let all that is enqueued in a stream later wait for an event."""

    def synchronize(self, event: Event) -> None:
        """Wait until the device has come to an event."""

    def elapsed(self, begin: Event, end: Event) -> float:
        """Return the seconds between two events that the device has come by."""

    def upload(self, array: Array, address: int, stream: Stream) -> None:
        """Enqueue a copy to the device; the array has to live, unchanged, until it is done."""

    def download(self, address: int, array: Array, stream: Stream) -> None:
        """Enqueue a copy from the device."""

    def clear(self, address: int, size: int, stream: Stream) -> None:
        """Enqueue zeros."""

    def launch(self, algebra: str, work: CliqueLaunch, batch: PlacedBatch, lost: int, stream: Stream) -> None:
        """Enqueue a launch of a batch that lies on the device.

        algebra: of the tables, by its name.
        lost: address of an integer that becomes 1 at a loss.
        """

    def graph(self, stream: Stream, enqueue: Callable[[], None]) -> Graph:
        """Return what `enqueue` puts into a stream as an object whose `launch(stream)` replays it.

        Something else was launched in the same algebra before: kernels are loaded then.
        """


class PlacedBatch(NamedTuple):
    """Where a batch lies on the device: addresses of its array, of factors and of axes."""

    base: int
    factors: int
    axes: int


def upload_batch(
    device: CliqueDevice, batch: TaskBatch, address: int, stream: Stream
) -> tuple[list[CliqueLaunch], PlacedBatch, Array]:
    """Copy a batch to an address; returns its launches, and its array, which has to live until the copy is done."""
    packed, launches, factors, axes = batch.packed()
    host = device.host(len(packed), np.int64)
    host[:] = packed
    device.upload(host, address, stream)
    return launches, PlacedBatch(address, address + factors, address + axes), host


class CudaCliqueDevice(CudaDevice):
    """A CUDA device for stored tables, the current one of the thread that opens it.

    Raises ImportError without CuPy, and what CuPy raises without such a device.
    """

    def __init__(self, number: int = 0) -> None:
        super().__init__(number)
        self.use()

    def host(self, entries: int, dtype: npt.DTypeLike) -> Array:
        """Return an array in pinned memory."""
        # The pool is fast, but rounds sizes up to powers of two.
        return self.pinned(entries, dtype, pooled=max(1, entries) * np.dtype(dtype).itemsize < LARGE_HOST)

    def record(self, stream: Stream) -> Event:
        """Return an event behind all that is enqueued in a stream so far."""
        # With a time, unlike those of `event`: a trace of a pipeline asks for it.
        return stream.record()

    def wait(self, stream: Stream, event: Event) -> None:
        """Let all that is enqueued in a stream later wait for an event."""
        stream.wait_event(event)

    def synchronize(self, event: Event) -> None:
        """Wait until the device has come to an event."""
        event.synchronize()

    def upload(self, array: Array, address: int, stream: Stream) -> None:
        """Enqueue a copy to the device."""
        self.copy_bytes(address, array.ctypes.data, array.nbytes, stream, TO_DEVICE)

    def download(self, address: int, array: Array, stream: Stream) -> None:
        """Enqueue a copy from the device."""
        self.copy_bytes(array.ctypes.data, address, array.nbytes, stream, TO_HOST)

    def clear(self, address: int, size: int, stream: Stream) -> None:
        """Enqueue zeros."""
        self.fill(address, 0, size, stream)

    def launch(self, algebra: str, work: CliqueLaunch, batch: PlacedBatch, lost: int, stream: Stream) -> None:
        """Enqueue a launch."""
        kernel = KERNELS.function(self, work.kernel, algebra)
        # As in the parameter list of the kernels in `stored.cu`: CuPy passes NumPy scalars by their width.
        tasks, starts = np.uint64(batch.base + work.tasks), np.uint64(batch.base + work.starts)
        places = np.uint64(batch.factors), np.uint64(batch.axes), np.uint64(lost)
        arguments = (tasks, starts, np.int32(work.number), *places)
        self.launch_kernel(kernel, (work.blocks,), stored_tasks.THREADS, arguments, stream)

    def graph(self, stream: Stream, enqueue: Callable[[], None]) -> Graph:
        """Return what `enqueue` puts into a stream as a graph."""
        return self.capture(stream, enqueue)
