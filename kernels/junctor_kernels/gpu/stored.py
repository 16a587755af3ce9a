"""The device that works on stored tables: what it has to do, and how a CUDA device does it (CuPy)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from junctor_kernels.gpu import stored_tasks
from junctor_kernels.gpu.stored_tasks import CliqueLaunch, TaskBatch

# Bytes of host memory that are asked for one by one.
LARGE_HOST = 1 << 24

Array = npt.NDArray[Any]


def source(dtype: np.dtype[Any]) -> str:
    """Return the CUDA C++ source of all kernels in a number format (float32 or float64)."""
    double = "#define DOUBLE\n" if dtype.itemsize == 8 else ""
    texts = [(Path(__file__).parent / "cuda" / file).read_text() for file in ("numbers.cu", "stored.cu")]
    constants = f"enum {{ THREADS = {stored_tasks.THREADS}, TILE = {stored_tasks.TILE} }};"
    return "\n".join([f"{double}{constants}", *texts])


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

    def stream(self) -> Any:
        """Return a new stream."""

    def record(self, stream: Any) -> Any:
        """Return an event behind all that is enqueued in a stream so far."""

    def wait(self, stream: Any, event: Any) -> None:
        """Let all that is enqueued in a stream later wait for an event."""

    def synchronize(self, event: Any) -> None:
        """Wait until the device has come to an event."""

    def upload(self, array: Array, address: int, stream: Any) -> None:
        """Enqueue a copy to the device; the array has to live, unchanged, until it is done."""

    def download(self, address: int, array: Array, stream: Any) -> None:
        """Enqueue a copy from the device."""

    def clear(self, address: int, size: int, stream: Any) -> None:
        """Enqueue zeros."""

    def launch(self, dtype: np.dtype[Any], work: CliqueLaunch, batch: PlacedBatch, lost: int, stream: Any) -> None:
        """Enqueue a launch of a batch that lies on the device; lost: address of an integer that becomes 1 at a loss."""

    def graph(self, stream: Any, enqueue: Callable[[], None]) -> Any:
        """Return what `enqueue` puts into a stream as an object whose `launch(stream)` replays it."""


class PlacedBatch(NamedTuple):
    """Where a batch lies on the device: addresses of its array, of factors and of axes."""

    base: int
    factors: int
    axes: int


def upload_batch(
    device: CliqueDevice, batch: TaskBatch, address: int, stream: Any
) -> tuple[list[CliqueLaunch], PlacedBatch, Array]:
    """Copy a batch to an address; returns its launches, and its array, which has to live until the copy is done."""
    packed, launches, factors, axes = batch.packed()
    host = device.host(len(packed), np.int64)
    host[:] = packed
    device.upload(host, address, stream)
    return launches, PlacedBatch(address, address + factors, address + axes), host


class CudaCliqueDevice:
    """A CUDA device. Raises ImportError without CuPy, and what CuPy raises without such a device."""

    def __init__(self, number: int = 0) -> None:
        import cupy

        self.cupy, self.number = cupy, number
        cupy.cuda.Device(number).use()
        # Loaded before any launch is captured into a graph.
        for dtype in ("<f4", "<f8"):
            _module(number, dtype)

    def free(self) -> int:
        """Return the bytes that nobody uses."""
        return int(self.cupy.cuda.runtime.memGetInfo()[0])

    def copy_engines(self) -> int:
        """Return how many copies it does at a time: with two, one each way."""
        return int(self.cupy.cuda.runtime.getDeviceProperties(self.number)["asyncEngineCount"])

    def allocate(self, size: int) -> Any:
        """Return so many bytes, at the address `ptr`."""
        return self.cupy.cuda.Memory(max(1, size))

    def host(self, entries: int, dtype: npt.DTypeLike) -> Array:
        """Return an array in pinned memory."""
        cuda, size = self.cupy.cuda, max(1, entries) * np.dtype(dtype).itemsize
        # The pool is fast, but rounds sizes up to powers of two.
        pooled = size < LARGE_HOST
        memory = cuda.alloc_pinned_memory(size) if pooled else cuda.PinnedMemoryPointer(cuda.PinnedMemory(size), 0)
        return np.frombuffer(memory, dtype, entries)

    def stream(self) -> Any:
        """Return a new stream."""
        return self.cupy.cuda.Stream(non_blocking=True)

    def record(self, stream: Any) -> Any:
        """Return an event behind all that is enqueued in a stream so far."""
        return stream.record()

    def wait(self, stream: Any, event: Any) -> None:
        """Let all that is enqueued in a stream later wait for an event."""
        stream.wait_event(event)

    def synchronize(self, event: Any) -> None:
        """Wait until the device has come to an event."""
        event.synchronize()

    def upload(self, array: Array, address: int, stream: Any) -> None:
        """Enqueue a copy to the device."""
        runtime = self.cupy.cuda.runtime
        runtime.memcpyAsync(address, array.ctypes.data, array.nbytes, runtime.memcpyHostToDevice, stream.ptr)

    def download(self, address: int, array: Array, stream: Any) -> None:
        """Enqueue a copy from the device."""
        runtime = self.cupy.cuda.runtime
        runtime.memcpyAsync(array.ctypes.data, address, array.nbytes, runtime.memcpyDeviceToHost, stream.ptr)

    def clear(self, address: int, size: int, stream: Any) -> None:
        """Enqueue zeros."""
        self.cupy.cuda.runtime.memsetAsync(address, 0, size, stream.ptr)

    def launch(self, dtype: np.dtype[Any], work: CliqueLaunch, batch: PlacedBatch, lost: int, stream: Any) -> None:
        """Enqueue a launch."""
        kernel = _kernel(self.number, dtype.str, work.kernel)
        tasks, starts = np.uint64(batch.base + work.tasks), np.uint64(batch.base + work.starts)
        arguments = (
            tasks,
            starts,
            np.int32(work.number),
            np.uint64(batch.factors),
            np.uint64(batch.axes),
            np.uint64(lost),
        )
        with stream:
            kernel((work.blocks,), (stored_tasks.THREADS,), arguments)

    def graph(self, stream: Any, enqueue: Callable[[], None]) -> Any:
        """Return what `enqueue` puts into a stream as a graph."""
        stream.begin_capture()
        enqueue()
        return stream.end_capture()


@cache
def _kernel(number: int, dtype: str, name: str) -> Any:
    return _module(number, dtype).get_function(name)


@cache
def _module(number: int, dtype: str) -> Any:
    import cupy

    # A module belongs to the device on which it was loaded.
    with cupy.cuda.Device(number):
        module = cupy.RawModule(code=source(np.dtype(dtype)), options=("-std=c++17",))
        module.compile()
        return module
