"""Memory of GPUs for the tasks of a cut plan: slots and stored tables on the devices, and pinned memory for others.

A *slot* is a piece of device memory with a stream of its own, for one group of tasks at a time. Stored tables that find
room beside the slots stay on the device; with several devices all of them reach it, so what one made another reads.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from junctor_kernels import entries_gpu
from junctor_kernels.axes import Contraction
from junctor_kernels.entries_gpu import Launch, Runs, in_place, launches_of, out_panels

from junctor.chunks.places import (
    VECTOR,
    aligned,
    leaf_places,
    passes_before,
    pinned_places,
    resident_places,
    slot_bytes,
)
from junctor.chunks.staging import Staging, addresses_of, packed, pinned
from junctor.planning.chunks import ChunkPlan

if TYPE_CHECKING:
    from junctor_kernels.gpu import CudaDevice

    from junctor.chunks.store import ChunkStore

Array = npt.NDArray[Any]

# Groups of tasks under way at once where nobody says how many.
SLOTS = 3
# What offsets of launches may take beside the slots.
OFFSET_BYTES = 1 << 26
# Pinned memory for offsets and small parts on their way.
STAGING_BYTES = 1 << 25
# Launches that are kept for the next case.
MOST_KEPT = 1 << 15


class Mark(NamedTuple):
    """A point of a slot's stream: the how many-th, and the event there."""

    slot: int
    number: int
    event: Any


@dataclass(eq=False, slots=True)
class Slot:
    """Memory and stream of the groups of tasks that a device does one after the other.

    loaded, stored: bytes that came in and went out. waited: the last mark of every other slot that this one has waited
    for.
    """

    number: int
    on: OneGpu
    at: int
    stream: Any
    loaded: int = 0
    stored: int = 0
    last: Mark | None = None
    waited: dict[int, int] = field(default_factory=dict)

    def mark(self) -> Mark:
        """Mark what has been handed in so far."""
        event = self.on.event()
        event.record(self.stream)
        self.last = Mark(self.number, self.last.number + 1 if self.last else 0, event)
        return self.last

    def wait(self, marks: Iterable[Mark]) -> None:
        """Let what is handed in from now on wait for marks of any slots."""
        for mark in marks:
            if mark.slot != self.number and self.waited.get(mark.slot, -1) < mark.number:
                self.stream.wait_event(mark.event)
                self.waited[mark.slot] = mark.number

    def launch(self, kernel: Any, blocks: int, words: Array) -> None:
        """Hand in a kernel of `entries.cu`."""
        kernel((blocks,), (entries_gpu.THREADS,), (words.view(f"V{words.nbytes}"),))


@dataclass(eq=False, slots=True)
class Prepared:
    """Launches of a contraction, and where on a device their offsets lie: of operands, of panels of the result (or 0).

    used: the last pass that needed them.
    """

    launches: tuple[Launch, ...]
    at: list[list[tuple[int, ...]]]
    out_panels: int
    memory: Any
    used: int


class InPlace(NamedTuple):
    """A table that tasks read or write where it is: its address, by how many bytes a state of each chunk variable of
    the pass moves that, and how what agrees with them lies."""

    at: int
    by: tuple[tuple[int, int], ...]
    runs: Runs


# A contraction, and how each operand and the result lie, None for one piece.
Lying = tuple[Contraction, tuple[Runs | None, ...], Runs | None]


class OneGpu:
    """Slots on one device, and launches that are prepared there. Raises MemoryError where not even one slot fits."""

    def __init__(self, algebra: str, device: CudaDevice, slot: int, slots: int) -> None:
        import cupy

        self.cupy, self.number, self.queue, self.algebra = cupy, device.number, device.queue, algebra
        self._word = np.dtype(np.uint64 if algebra == "double" else np.uint32)
        self.count = min(slots, (device.room - OFFSET_BYTES) // slot)
        if self.count < 1:
            raise MemoryError(f"a task takes {slot + OFFSET_BYTES:,} bytes of the GPU, {device.room:,} are allowed")
        self._prepared: dict[Lying, Prepared] = {}
        self._kernels: dict[str, Any] = {}
        # Which offsets are there: another number, other addresses.
        self.generation = 0
        # Where in a slot sums of terms lie.
        self.partial = slot - 2 * entries_gpu.PARTIAL_ENTRIES * self._word.itemsize
        # What is left for stored tables.
        self.room = device.room - OFFSET_BYTES - slot * self.count
        with cupy.cuda.Device(self.number):
            self._memory = device.place(0, (device.room - OFFSET_BYTES,), np.uint8)
            self.slots_at = [int(self._memory.data.ptr) + n * slot for n in range(self.count)]
            # Behind the slots: what is there at the beginning, then stored tables.
            self.leaves = self.tables = int(self._memory.data.ptr) + slot * self.count
            self.streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(self.count)]
            self.upload, self._reporter = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
            self.uploaded = self.event()
            self.uploaded.record(self.upload)

    def event(self) -> Any:
        """Return a new event."""
        return self.cupy.cuda.Event(disable_timing=True)

    def allot_words(self, steps: int, reports: int) -> None:
        """Make room for the words of so many steps, which are reported to an address of the host."""
        with self.cupy.cuda.Device(self.number):
            # Of the first task and of all others, bits of the largest entry and the complement of those of the
            # smallest; and what several devices have found together.
            self._words = self.cupy.empty((2, steps, 2, 2), dtype=self._word)
        self._reports = reports

    def begin(self) -> None:
        """Begin a propagation: nothing has been found, and whatever needed offsets before is done."""
        for each in self._prepared.values():
            each.used = -1
        with self.cupy.cuda.Device(self.number):
            self._words[...] = 0
            self.cupy.cuda.runtime.deviceSynchronize()

    def words_at(self, step: int, of_lead: bool = True) -> int:
        """Return the address of the words of a step, of the first task or of all others."""
        return int(self._words.data.ptr) + (4 * step + (0 if of_lead else 2)) * self._word.itemsize

    def gathered_at(self, step: int) -> int:
        """Return the address of the words of a step that several devices have found together."""
        return self.words_at(int(self._words.shape[1]) + step)

    def report_at(self, step: int) -> int:
        """Return the address on the host that the words of a step are reported to."""
        return self._reports + 4 * step * self._word.itemsize

    def report(self, marks: Iterable[Mark], first: int, steps: int) -> Any:
        """Bring the words of some steps to the host once slots are through; returns the event behind that."""
        with self.cupy.cuda.Device(self.number), self._reporter:
            for mark in marks:
                self._reporter.wait_event(mark.event)
            runtime, size = self.cupy.cuda.runtime, 4 * steps * self._word.itemsize
            to, of = self.report_at(first), self.words_at(first)
            runtime.memcpyAsync(to, of, size, runtime.memcpyDefault, self._reporter.ptr)
            event = self.event()
            event.record(self._reporter)
        return event

    def prepared(self, lying: Lying, number: int, take: Callable[[int], Array]) -> Prepared:
        """Return the launches of a contraction, with their offsets on the device.

        number: of the pass. take: for memory that copies may come from. Who launches has to wait for `uploaded`.
        """
        if lying not in self._prepared:
            launches, panels = launches_in_place(lying)
            whole, starts = packed(launches, [] if panels is None else [panels], take)
            memory = self._uploaded(whole)
            places, (out_panels,) = addresses_of(launches, int(memory.data.ptr), starts, 1)
            self._prepared[lying] = Prepared(launches, places, out_panels, memory, number)
        self._prepared[lying].used = number
        return self._prepared[lying]

    def _uploaded(self, whole: Array) -> Any:
        with self.upload:
            memory = self.cupy.empty(whole.nbytes, dtype=np.uint8)
        runtime, to = self.cupy.cuda.runtime, int(memory.data.ptr)
        runtime.memcpyAsync(to, whole.ctypes.data, whole.nbytes, runtime.memcpyDefault, self.upload.ptr)
        return memory

    def bring_leaves(self, whole: Array) -> None:
        """Bring the tables that are there at the beginning; whoever reads them has to wait for `uploaded`."""
        runtime = self.cupy.cuda.runtime
        with self.cupy.cuda.Device(self.number):
            runtime.memcpyAsync(self.leaves, whole.ctypes.data, whole.nbytes, runtime.memcpyDefault, self.upload.ptr)
            self.uploaded.record(self.upload)

    def make_room(self, close_through: Callable[[int], None]) -> None:
        """Forget offsets that have not been needed for long where all take too much, when their passes are closed."""
        taken = sum(each.memory.nbytes for each in self._prepared.values())
        if taken <= OFFSET_BYTES * 3 // 4:
            return
        for what, each in sorted(self._prepared.items(), key=lambda item: item[1].used):
            if taken > OFFSET_BYTES // 2:
                close_through(each.used)
                taken -= each.memory.nbytes
                del self._prepared[what]
        self.generation += 1

    def kernel(self, name: str) -> Any:
        """Return a kernel, compiled when first needed."""
        if name not in self._kernels:
            self._kernels[name] = _module(self.number, self.algebra).get_function(name)
        return self._kernels[name]


class ChunkGpu:
    """GPUs of one machine for the tasks of a cut plan in single or double precision.

    Tasks have the room that all work on a device shares, and so have the stored tables that stay there; others lie in
    pinned memory that all devices reach. slots: of each device, at most. before: the last pass that needs what lies
    where a table goes. Raises MemoryError where not even one slot fits.
    """

    def __init__(self, chunks: ChunkPlan, algebra: str, *devices: CudaDevice, slots: int = SLOTS) -> None:
        self.algebra, self.chunks = algebra, chunks
        self.dtype = np.dtype(np.float64 if algebra == "double" else np.float32)
        slot = slot_bytes(chunks, self.dtype.itemsize)
        self.each = [OneGpu(algebra, device, slot, slots) for device in devices]
        # In turns, so that few groups are spread over all devices.
        turns = sorted((n, gpu) for gpu, one in enumerate(self.each) for n in range(one.count))
        self.slots = [
            Slot(number, self.each[gpu], self.each[gpu].slots_at[n], self.each[gpu].streams[n])
            for number, (n, gpu) in enumerate(turns)
        ]
        self.leaves, size = leaf_places(chunks, self.dtype.itemsize, min(one.room for one in self.each))
        self._leaves = pinned(size).view(self.dtype)
        for one in self.each:
            one.tables, one.room = one.leaves + size, one.room - size
        room = [one.room for one in self.each] if _reach_each_other(self.each) else []
        self.resident = resident_places(chunks, self.dtype.itemsize, room)
        self._pinned, size = pinned_places(chunks, self.dtype.itemsize, self.resident)
        self.before = passes_before(chunks, self.dtype.itemsize, self.resident, self._pinned)
        self._first = list(accumulate((len(each.steps) for each in chunks.passes), initial=0))
        # What devices tell of the steps goes behind the tables.
        self._report = aligned(4 * self._first[-1] * self.dtype.itemsize)
        staging = size + self._report * len(self.each)
        self._host = pinned(staging + STAGING_BYTES)
        self._reported = self._host[size:staging].view(np.uint64 if algebra == "double" else np.uint32)
        self.staging = Staging(self._host[staging:])
        for n, one in enumerate(self.each):
            one.allot_words(self._first[-1], self._reported.ctypes.data + n * self._report)

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

    def begin(self) -> None:
        """Begin a propagation."""
        for one in self.each:
            one.begin()

    def bring_leaves(self, store: ChunkStore) -> None:
        """Bring the tables that are there at the beginning to all devices, as far as they have room for them."""
        for table, (start, apart) in self.leaves.items():
            pieces = store.tables[table].entries.reshape(-1, self.chunks.piece(table))
            begin = start // self.dtype.itemsize
            self._leaves[begin : begin + len(pieces) * apart].reshape(-1, apart)[:, : pieces.shape[1]] = pieces
        for one in self.each if self.leaves else []:
            one.bring_leaves(self._leaves)

    def in_place(self, one: OneGpu, table: int, fixed: Sequence[int]) -> InPlace | None:
        """Return where tasks of a pass with chunk variables `fixed` find a table on a device; None if nowhere."""
        piece = self.chunks.piece(table)
        if table in self.leaves:
            start, apart = self.leaves[table]
            start += one.leaves
        elif table in self.resident and self.each[self.resident[table][0]] is one and piece % VECTOR == 0:
            start, apart = one.tables + self.resident[table][1], piece
        else:
            return None
        strides, free = [], np.zeros(1, np.int64)
        stride = apart
        for v in reversed(self.chunks.cuts.get(table, ())):
            size = self.chunks.plan.shape.cardinalities[v]
            if v in fixed:
                strides.append((v, stride * self.dtype.itemsize))
            else:
                free = np.add.outer(np.arange(size) * stride, free).reshape(-1)
            stride *= size
        return InPlace(start, tuple(strides), Runs(piece, tuple(free.tolist())))

    def synchronize(self) -> None:
        """Wait until the devices are through with everything."""
        for one in self.each:
            with one.cupy.cuda.Device(one.number):
                one.cupy.cuda.runtime.deviceSynchronize()

    def first_step(self, number: int) -> int:
        """Return the place of the first step of a pass among those of all passes."""
        return self._first[number]

    def reports(self, devices: Iterable[OneGpu], first: int, steps: int) -> Array:
        """Return what devices have reported of some steps [devices, steps, first task or others, largest or least]."""
        whole = self._reported.reshape(len(self.each), -1)[:, 4 * first : 4 * (first + steps)]
        return whole[[self.each.index(one) for one in devices]].reshape(-1, steps, 2, 2)

    def allocate(self, table: int, entries: int) -> Array:
        """Return the array of a stored table, not cleared: of pinned memory or, for copies only, of a device."""
        if table in self.resident:
            gpu, start = self.resident[table]
            whole: Any = (ctypes.c_char * (entries * self.dtype.itemsize)).from_address(self.each[gpu].tables + start)
            return np.frombuffer(whole, self.dtype)
        if table not in self._pinned:
            # No task comes near it.
            return np.empty(entries, self.dtype)
        start = self._pinned[table]
        return self._host[start : start + entries * self.dtype.itemsize].view(self.dtype)


def launches_in_place(lying: Lying) -> tuple[tuple[Launch, ...], Array | None]:
    """Return the launches of a contraction and where the panels of its result begin, if not one after the other.

    Raises ValueError where an operand or the result cannot lie so.
    """
    what, operands, out = lying
    first, *rest = launches_of(what)
    for k, runs in enumerate(operands):
        if runs is not None:
            found = in_place(first, k, runs)
            if found is None:
                raise ValueError(f"operand {k} cannot be read where it is")
            first = found
    launches = (first, *rest)
    if out is None:
        return launches, None
    panels = out_panels(launches[-1], out)
    if panels is None:
        raise ValueError("the result cannot be made where it is to be")
    return launches, panels


@lru_cache(maxsize=1 << 14)
def can_lie(lying: Lying) -> bool:
    """Tell whether operands and result can."""
    try:
        launches_in_place(lying)
    except (ValueError, OverflowError):
        return False
    return True


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


@cache
def _module(number: int, algebra: str) -> Any:
    import cupy

    with cupy.cuda.Device(number):
        return cupy.RawModule(code=entries_gpu.source(algebra), options=("-std=c++17",))
