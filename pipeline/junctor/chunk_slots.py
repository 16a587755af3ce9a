"""Memory of GPUs for the tasks of a cut plan: slots and stored tables on the devices, and pinned memory for others.

A *slot* is a piece of device memory with a stream of its own, for one group of tasks at a time. Stored tables that find
room beside the slots stay on the device; with several devices all of them reach it, so what one made another reads.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from junctor_kernels import entries_gpu
from junctor_kernels.axes import Contraction
from junctor_kernels.entries_gpu import Launch, launches_of

from junctor.chunk_places import aligned, pinned_places, resident_places, slot_bytes
from junctor.machine import usable_cores
from junctor.planning.chunks import MOST_STEPS, ChunkPlan
from junctor.threads import in_threads

if TYPE_CHECKING:
    from junctor_kernels.gpu import CudaDevice

Array = npt.NDArray[Any]

# Groups of tasks under way at once where nobody says how many.
SLOTS = 3
# For all devices (cudaHostRegisterPortable).
PORTABLE = 1
# Bytes that a thread touches at a time.
TOUCHED_BYTES = 1 << 28
# What offsets of launches may take beside the slots.
OFFSET_BYTES = 1 << 26


@dataclass(eq=False, slots=True)
class Slot:
    """Memory and stream of a group of tasks under way on a device.

    loaded, stored: bytes that came in and went out. held: host arrays that copies under way need. late: what goes where
    once copies are done.
    """

    on: OneGpu
    at: int
    stream: Any
    loaded: int = 0
    stored: int = 0
    held: list[Array] = field(default_factory=list)
    late: list[tuple[Array, Array]] = field(default_factory=list)


class OneGpu:
    """Slots on one device, and launches that are prepared there. Raises MemoryError where not even one slot fits."""

    def __init__(self, algebra: str, device: CudaDevice, slot: int, slots: int) -> None:
        import cupy

        self.cupy, self.number, self.queue, self.algebra = cupy, device.number, device.queue, algebra
        self.words = np.uint64 if algebra == "double" else np.uint32
        count = min(slots, (device.room - OFFSET_BYTES) // slot)
        if count < 1:
            raise MemoryError(f"a task takes {slot + OFFSET_BYTES:,} bytes of the GPU, {device.room:,} are allowed")
        self._prepared: dict[Contraction, tuple[tuple[Launch, ...], list[list[tuple[int, ...]]]]] = {}
        self._offsets: list[Any] = []
        self._offset_bytes = 0
        self._kernels: dict[str, Any] = {}
        # Where in a slot sums of terms lie.
        self.partial = slot - 2 * entries_gpu.PARTIAL_ENTRIES * np.dtype(self.words).itemsize
        # What is left for stored tables.
        self.room = device.room - OFFSET_BYTES - slot * count
        with cupy.cuda.Device(self.number):
            self._memory = device.place(0, (device.room - OFFSET_BYTES,), np.uint8)
            self.tables = int(self._memory.data.ptr) + slot * count
            starts = [int(self._memory.data.ptr) + n * slot for n in range(count)]
            self.slots = [Slot(self, at, cupy.cuda.Stream(non_blocking=True)) for at in starts]

    def prepared(self, what: Contraction) -> tuple[tuple[Launch, ...], list[list[tuple[int, ...]]]]:
        """Return the launches of a contraction, and for each where the offsets of its operands lie on the device."""
        if what not in self._prepared:
            launches = launches_of(what)
            # In one copy: there are thousands of them.
            parts = [
                part for launch in launches for o in launch.offsets for part in (o.panels, o.places, o.far, o.near)
            ]
            starts = list(accumulate((aligned(part.nbytes) for part in parts), initial=0))
            whole = np.zeros(starts.pop(), np.uint8)
            for start, part in zip(starts, parts, strict=True):
                whole[start : start + part.nbytes] = part.view(np.uint8)
            self._offsets.append(self.cupy.asarray(whole))
            self._offset_bytes += whole.nbytes
            at = (int(self._offsets[-1].data.ptr) + start for start in starts)
            self._prepared[what] = launches, [[tuple(islice(at, 4)) for _ in launch.offsets] for launch in launches]
        return self._prepared[what]

    def make_room(self) -> None:
        """Forget offsets where they take too much; between passes, because launches under way need theirs."""
        if self._offset_bytes > OFFSET_BYTES // 2:
            self._prepared.clear()
            self._offsets.clear()
            self._offset_bytes = 0

    def kernel(self, name: str) -> Any:
        """Return a kernel, compiled when first needed."""
        if name not in self._kernels:
            self._kernels[name] = _module(self.number, self.algebra).get_function(name)
        return self._kernels[name]


class ChunkGpu:
    """GPUs of one machine for the tasks of a cut plan in single or double precision.

    Tasks have the room that all work on a device shares, and so have the stored tables that stay there; others lie in
    pinned memory that all devices reach. slots: of each device, at most. Raises MemoryError where not even one fits.
    """

    def __init__(self, chunks: ChunkPlan, algebra: str, *devices: CudaDevice, slots: int = SLOTS) -> None:
        self.algebra, self.chunks = algebra, chunks
        self.dtype = np.dtype(np.float64 if algebra == "double" else np.float32)
        slot = slot_bytes(chunks, self.dtype.itemsize)
        self.each = [OneGpu(algebra, device, slot, slots) for device in devices]
        # In turns, so that few groups are spread over all devices.
        turns = itertools.zip_longest(*(one.slots for one in self.each))
        self.slots: list[Slot] = [slot for turn in turns for slot in turn if slot is not None]
        room = [one.room for one in self.each] if _reach_each_other(self.each) else []
        self.resident = resident_places(chunks, self.dtype.itemsize, room)
        self._pinned, size = pinned_places(chunks, self.dtype.itemsize, self.resident)
        # What one device tells another of the steps of a pass goes behind the tables.
        self._host = pinned(size + MOST_STEPS * 2 * self.dtype.itemsize)
        self.relay = self._host.ctypes.data + size

    @property
    def loaded(self) -> int:
        """Bytes that came in so far."""
        return sum(slot.loaded for slot in self.slots)

    @property
    def stored(self) -> int:
        """Bytes that went out so far."""
        return sum(slot.stored for slot in self.slots)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have the devices for oneself: nothing else is in the room that all work shares."""
        with ExitStack() as stack:
            for one in self.each:
                stack.enter_context(one.queue)
                one.cupy.cuda.runtime.deviceSynchronize()
            yield

    def allocate(self, table: int, entries: int) -> Array:
        """Return the array of a stored table, not cleared: of pinned memory or, for copies only, of a device."""
        if table in self.resident:
            gpu, start = self.resident[table]
            whole: Any = (ctypes.c_char * (entries * self.dtype.itemsize)).from_address(self.each[gpu].tables + start)
            return np.frombuffer(whole, self.dtype)
        start = self._pinned[table]
        return self._host[start : start + entries * self.dtype.itemsize].view(self.dtype)


def _reach_each_other(devices: Sequence[OneGpu]) -> bool:
    """Let all devices use the memory of all others; tells whether they can."""
    for one, other in itertools.permutations(devices, 2):
        runtime = one.cupy.cuda.runtime
        if not runtime.deviceCanAccessPeer(one.number, other.number):
            return False
        with one.cupy.cuda.Device(one.number), suppress(runtime.CUDARuntimeError):
            # An error where that has been done before.
            runtime.deviceEnablePeerAccess(other.number)
    return True


def pinned(size: int) -> Array:
    """Return bytes of the host that the device reaches by itself, not cleared.

    Pages are touched by several threads before they are pinned, huge ones where the system has them: that takes a
    fraction of the time that pinning untouched memory does.
    """
    if not size:
        return np.empty(0, np.uint8)
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.uint8)
    parts = [array[start : start + TOUCHED_BYTES] for start in range(0, size, TOUCHED_BYTES)]
    in_threads(lambda part, _: part.fill(0), parts, usable_cores())
    _register(array)
    return array


def _register(array: Array) -> None:
    import cupy

    runtime, at = cupy.cuda.runtime, array.ctypes.data
    try:
        runtime.hostRegister(at, array.nbytes, PORTABLE)
    except runtime.CUDARuntimeError as error:
        raise MemoryError(f"{array.nbytes:,} bytes of pinned memory: {error}") from error
    weakref.finalize(array, runtime.hostUnregister, at)


@cache
def _module(number: int, algebra: str) -> Any:
    import cupy

    with cupy.cuda.Device(number):
        return cupy.RawModule(code=entries_gpu.source(algebra), options=("-std=c++17",))
