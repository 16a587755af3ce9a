"""Memory of GPUs for the tasks of a cut plan: slots on the devices, pinned memory for stored tables on the host.

A *slot* is a piece of device memory with a stream of its own, for one group of tasks at a time. Where stored tables
lie, and when another one takes the place of one, is known before anything runs.
"""

from __future__ import annotations

import itertools
import mmap
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from junctor_kernels import entries_gpu
from junctor_kernels.axes import Contraction
from junctor_kernels.entries_gpu import Launch, launches_of

from junctor.machine import usable_cores
from junctor.planning.arena import first_gap
from junctor.planning.chunks import MOST_STEPS, ChunkPlan, Pass, part
from junctor.threads import in_threads

if TYPE_CHECKING:
    from junctor_kernels.gpu import CudaDevice

Array = npt.NDArray[Any]

# Groups of tasks under way at once.
SLOTS = 3
# Parts begin at multiples of so many bytes.
ALIGNED = 256
# For all devices (cudaHostRegisterPortable).
PORTABLE = 1
# Bytes that a thread touches at a time.
TOUCHED_BYTES = 1 << 28
# What offsets of launches may take beside the slots.
OFFSET_BYTES = 1 << 26


def slot_bytes(chunks: ChunkPlan, itemsize: int) -> int:
    """Return the bytes that a slot takes: the parts of the task with most, and the sums of terms kept at first."""
    most = max((task_places(chunks, each, itemsize)[1] for each in chunks.passes), default=0)
    return most + 2 * entries_gpu.PARTIAL_ENTRIES * itemsize


def task_places(chunks: ChunkPlan, each: Pass, itemsize: int) -> tuple[dict[int, int], int]:
    """Return where the part of every table of a pass begins in a slot, and the bytes in all."""
    lives: dict[int, tuple[int, int]] = {}
    for n, step in enumerate(each.steps):
        for table in (*step.operands, step.out):
            lives[table] = (lives.get(table, (n, n))[0], n)
    if each.summed:
        # What tasks add to is there from the beginning of the next one.
        lives[each.out] = (0, len(each.steps))
    return _placed(lives, {table: part(chunks.plan, table, each.fixed) * itemsize for table in lives})


def _pinned_places(chunks: ChunkPlan, itemsize: int) -> tuple[dict[int, int], int]:
    """Return where every table that is stored in memory begins in pinned memory, and the bytes in all.

    Small ones too: a copy to other memory waits until the device has done all that comes before.
    """
    sizes = {table: chunks.plan.tables[table].entries * itemsize for table in chunks.lifetimes()}
    results = {*chunks.plan.totals, *(table for _, table in chunks.plan.marginals)}
    lives = {
        table: (life[0], len(chunks.passes) if table in results else life[1])
        for table, life in chunks.lifetimes().items()
        if life[0] >= 0 and table not in chunks.on_disk
    }
    return _placed(lives, sizes)


def _placed(lives: Mapping[int, tuple[int, int]], sizes: Mapping[int, int]) -> tuple[dict[int, int], int]:
    """Place pieces of memory so that those alive at the same time do not overlap; first fit, in order of beginning."""
    alive: dict[int, tuple[int, int]] = {}
    places: dict[int, int] = {}
    most = 0
    for table, (first, _) in sorted(lives.items(), key=lambda each: (each[1][0], -sizes[each[0]], each[0])):
        for other in [other for other in alive if lives[other][1] < first]:
            del alive[other]
        size = -(-sizes[table] // ALIGNED) * ALIGNED
        places[table] = start = first_gap(sorted(alive.values()), size)
        alive[table] = (start, start + size)
        most = max(most, start + size)
    return places, most


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

    def __init__(self, algebra: str, device: CudaDevice, slot: int) -> None:
        import cupy

        self.cupy, self.number, self.queue, self.algebra = cupy, device.number, device.queue, algebra
        self.words = np.uint64 if algebra == "double" else np.uint32
        count = min(SLOTS, (device.room - OFFSET_BYTES) // slot)
        if count < 1:
            raise MemoryError(f"a task takes {slot + OFFSET_BYTES:,} bytes of the GPU, {device.room:,} are allowed")
        self._prepared: dict[Contraction, tuple[tuple[Launch, ...], list[list[tuple[int, ...]]]]] = {}
        self._offsets: list[Any] = []
        self._offset_bytes = 0
        self._kernels: dict[str, Any] = {}
        # Where in a slot sums of terms lie.
        self.partial = slot - 2 * entries_gpu.PARTIAL_ENTRIES * np.dtype(self.words).itemsize
        with cupy.cuda.Device(self.number):
            self._memory = device.place(0, (slot * count,), np.uint8)
            starts = [int(self._memory.data.ptr) + n * slot for n in range(count)]
            self.slots = [Slot(self, at, cupy.cuda.Stream(non_blocking=True)) for at in starts]

    def prepared(self, what: Contraction) -> tuple[tuple[Launch, ...], list[list[tuple[int, ...]]]]:
        """Return the launches of a contraction, and for each where the offsets of its operands lie on the device."""
        if what not in self._prepared:
            launches = launches_of(what)
            places: list[list[tuple[int, ...]]] = []
            for launch in launches:
                arrays = [tuple(map(self.cupy.asarray, (o.panels, o.places, o.far, o.near))) for o in launch.offsets]
                self._offsets.append(arrays)
                self._offset_bytes += launch.nbytes
                places.append([tuple(int(array.data.ptr) for array in each) for each in arrays])
            self._prepared[what] = (launches, places)
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

    Tasks have the room that all work on a device shares. Stored tables lie in pinned memory that all devices reach.
    Raises MemoryError where not even one slot fits.
    """

    def __init__(self, chunks: ChunkPlan, algebra: str, *devices: CudaDevice) -> None:
        self.algebra, self.chunks = algebra, chunks
        self.dtype = np.dtype(np.float64 if algebra == "double" else np.float32)
        slot = slot_bytes(chunks, self.dtype.itemsize)
        self.each = [OneGpu(algebra, device, slot) for device in devices]
        # In turns, so that few groups are spread over all devices.
        turns = itertools.zip_longest(*(one.slots for one in self.each))
        self.slots: list[Slot] = [slot for turn in turns for slot in turn if slot is not None]
        self._pinned, size = _pinned_places(chunks, self.dtype.itemsize)
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
        """Return the array of the host for a stored table, pinned; not cleared."""
        start = self._pinned[table]
        return self._host[start : start + entries * self.dtype.itemsize].view(self.dtype)


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
