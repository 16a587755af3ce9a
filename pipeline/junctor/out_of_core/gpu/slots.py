"""Slots on a device for tasks of a cut plan, and the launches that are prepared there.

A *slot* is a piece of device memory with a stream of its own, for one task or group of tasks at a time: while one
computes, another one brings its parts in and a third one takes its results out. `DeviceSlots` has those of one device,
for the streams of this process (`run`) and for tasks of a Dask worker (`cluster.gpu_worker`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu import chains as chains_gpu
from junctor_kernels.gpu import entries as entries_gpu
from junctor_kernels.gpu.chains import Chain
from junctor_kernels.gpu.device import DeviceArray, Event, Kernel, Stream, address_of, as_struct
from junctor_kernels.gpu.entries import EntryLaunch, PartRuns, carried, in_place, launches_of, out_panels
from junctor_kernels.tables.axes import Contraction
from junctor_kernels.tables.reference import Algebra

from junctor.out_of_core.gpu.staging import addresses_of, packed
from junctor.out_of_core.memory_splits import OFFSET_BYTES

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import CudaBlockDevice


Array = npt.NDArray[Any]

# Slots where nobody says how many: one for copies in, one for kernels, one for copies out.
SLOTS = 3


class StreamMark(NamedTuple):
    """A position in the stream of a slot: sequence number and its CUDA event."""

    slot: int
    number: int
    event: Event


@dataclass(eq=False, slots=True)
class Slot:
    """Memory and stream of the tasks that a device does one after the other.

    number: among the slots of all devices.
    device: that it is on.
    address: of its memory.
    stream: of its tasks.
    ahead: stream for exchanges, whose blocks come before those of kernels of other slots.
    loaded, stored: bytes that came in and went out.
    last: the last mark in the stream.
    waited: slot -> number of its last mark that this one has waited for.
    kept: arrays that copies in flight need.
    """

    number: int
    device: DeviceSlots
    address: int
    stream: Stream
    ahead: Stream
    loaded: int = 0
    stored: int = 0
    last: StreamMark | None = None
    waited: dict[int, int] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)

    def mark(self) -> StreamMark:
        """Mark what has been enqueued so far."""
        # Numbers grow along the stream, so that of two marks of a slot the later one covers both.
        self.last = StreamMark(self.number, self.last.number + 1 if self.last else 0, self.device.event(self.stream))
        return self.last

    def wait(self, marks: Iterable[StreamMark]) -> None:
        """Let what is enqueued from now on wait for marks of any slots."""
        for mark in marks:
            # A stream waits for all that comes before a mark, so earlier marks of a slot need no wait of their own.
            if mark.slot != self.number and self.waited.get(mark.slot, -1) < mark.number:
                self.stream.wait_event(mark.event)
                self.waited[mark.slot] = mark.number


@dataclass(eq=False, slots=True)
class PreparedLaunches:
    """Launches of a contraction with their offsets on a device.

    launches: in order.
    offsets: for each launch and operand the addresses of its four arrays of offsets.
    out_panels: address of the panels of the result, 0 where they lie one after the other.
    memory: the array that holds all of them.
    used: the last pass that needed them.
    """

    launches: tuple[EntryLaunch, ...]
    offsets: list[list[tuple[int, ...]]]
    out_panels: int
    memory: DeviceArray
    used: int


class StepLayout(NamedTuple):
    """A contraction or a chain, and where its tables lie: runs of operands and result, None for one piece in a slot."""

    what: Contraction | Chain
    operands: tuple[PartRuns | None, ...]
    out: PartRuns | None = None


class DeviceSlots:
    """Slots on one device, prepared launches, and the words that tasks report their largest and smallest entries in.

    algebra: of the tables.
    device: whose room is taken, from its beginning to its end.
    slot: bytes of a slot.
    slots: how many there are at the most.
    Raises MemoryError where not even one slot fits.
    """

    def __init__(self, algebra: Algebra, device: CudaBlockDevice, slot: int, slots: int) -> None:
        self.cuda = device
        self.number = device.number
        self.algebra = algebra
        self.dtype = algebra.dtype
        self._word = np.dtype(f"u{self.dtype.itemsize}")
        self.count = min(slots, (device.room - OFFSET_BYTES) // slot)
        if self.count < 1:
            raise MemoryError(f"a task takes {slot + OFFSET_BYTES:,} bytes of the GPU, {device.room:,} are allowed")
        self._prepared: dict[StepLayout, PreparedLaunches] = {}
        self._offset_bytes = 0
        # Raised when offsets are released: launches that were built before have stale addresses.
        self.generation = 0
        # Partial sums of terms lie at the end of every slot.
        self.partial = slot - 2 * entries_gpu.PARTIAL_ENTRIES * self.dtype.itemsize
        # Bytes left for stored tables.
        self.room = device.room - OFFSET_BYTES - slot * self.count
        with device.current():
            # From the beginning of the room that all programs of the device share; `DeviceGroup.alone` keeps them
            # apart.
            self._memory = device.place(0, (device.room - OFFSET_BYTES,), np.uint8)
        start = address_of(self._memory)
        # Behind the slots lie factors and evidence, then stored tables.
        self.leaves = self.tables = start + slot * self.count
        self._addresses = [start + n * slot for n in range(self.count)]
        # Streams of their own: copies of offsets and reports must not queue behind tasks.
        self.upload = device.stream()
        self.download = device.stream()
        self.uploaded = self.event(self.upload)

    def new_slots(self, first: int = 0) -> list[Slot]:
        """Return the slots, each with a new stream; first: number of the first of them."""
        # Not kept here: a circle of references would hold the memory until the collector runs.
        cuda = self.cuda
        return [
            Slot(first + n, self, address, cuda.stream(), cuda.stream(priority=-1))
            for n, address in enumerate(self._addresses)
        ]

    def event(self, stream: Stream) -> Event:
        """Return a new event behind what has been enqueued in a stream."""
        event = self.cuda.event()
        event.record(stream)
        return event

    def launch(self, kernel: Kernel, blocks: int, words: Array, threads: int | None = None) -> None:
        """Enqueue a kernel of `entries.cu` in the current stream; threads: of a block, None for those of most."""
        # Directly: the host is the bound of many small tasks.
        kernel((blocks,), (threads or entries_gpu.THREADS,), (as_struct(words),))

    def kernel(self, name: str) -> Kernel:
        """Return a kernel, compiled when first needed."""
        return entries_gpu.KERNELS.function(self.cuda, name, self.algebra.name)

    def allot_words(self, steps: int, reports: int) -> None:
        """Allocate the words of steps.

        steps: of all passes.
        reports: address in pinned memory that they are reported to.
        """
        # Per step, for the pilot task and for all others: bits of the largest entry, and the complement of the bits
        # of the smallest, so that atomic maxima serve for both. Behind them: what several devices gathered.
        self._words = self.cuda.empty((2, steps, 2, 2), self._word)
        self._words_address = address_of(self._words)
        self._reports = reports

    def begin(self) -> None:
        """Begin a propagation: nothing has been found, and all launches that needed offsets are done."""
        # Passes are counted anew in every propagation.
        for prepared in self._prepared.values():
            prepared.used = -1
        with self.cuda.current():
            # Zero bits are below all others, so maxima begin there.
            self._words[...] = 0
        self.cuda.synchronize_all()

    def words_at(self, step: int, pilot: bool = True) -> int:
        """Return the address of the words of a step, of the pilot task or of all others."""
        # Two pairs of words a step: of the pilot task, then of all others.
        return self._words_address + (4 * step + (0 if pilot else 2)) * self._word.itemsize

    def gathered_at(self, step: int) -> int:
        """Return the address of the words of a step that several devices have found together."""
        return self.words_at(int(self._words.shape[1]) + step)

    def report_at(self, step: int) -> int:
        """Return the address on the host that the words of a step are reported to."""
        return self._reports + 4 * step * self._word.itemsize

    def report(self, marks: Iterable[StreamMark], first: int, steps: int) -> Event:
        """Enqueue the copy of the words of some steps to the host; returns the event behind it.

        marks: what has to be done before.
        first: the first step.
        steps: how many.
        """
        with self.cuda.current(self.download):
            for mark in marks:
                self.download.wait_event(mark.event)
            # A kernel, because a copy would wait for its turn behind those of large tables.
            self.launch(self.kernel("carry"), 1, carried(self.report_at(first), self.words_at(first), 4 * steps))
            return self.event(self.download)

    def prepared(self, layout: StepLayout, number: int, take: Callable[[int], Array]) -> PreparedLaunches:
        """Return the launches of a contraction, with their offsets on the device; who launches waits for `uploaded`.

        layout: the contraction.
        number: of the pass.
        take: returns memory of so many bytes that copies may come from.
        """
        # Equal contractions of different passes share their offsets.
        if layout not in self._prepared:
            launches, panels = launches_in_place(layout)
            piece, starts = packed(launches, [] if panels is None else [panels], take)
            with self.cuda.current(self.upload):
                memory = self.cuda.empty(piece.nbytes, np.uint8)
            self.cuda.copy_bytes(address_of(memory), piece.ctypes.data, piece.nbytes, self.upload)
            offsets, out = addresses_of(launches, address_of(memory), starts)
            self._prepared[layout] = PreparedLaunches(launches, offsets, out, memory, number)
            self._offset_bytes += memory.nbytes
        self._prepared[layout].used = number
        return self._prepared[layout]

    def reserve_leaves(self, size: int) -> None:
        """Leave bytes behind the slots to factors and evidence."""
        self.tables = self.leaves + size
        self.room -= size

    def bring_leaves(self, leaves: Array) -> None:
        """Enqueue the copy of factors and evidence; who reads them waits for `uploaded`."""
        with self.cuda.current():
            self.cuda.copy_bytes(self.leaves, leaves.ctypes.data, leaves.nbytes, self.upload)
            self.uploaded.record(self.upload)

    def make_room(self, close_through: Callable[[int], None]) -> None:
        """Release the offsets used longest ago where all take too much; close_through: waits for passes up to one."""
        if not self.is_crowded:
            return
        # Down to half, so that this does not come with every pass.
        for layout, prepared in sorted(self._prepared.items(), key=lambda item: item[1].used):
            if self._offset_bytes > OFFSET_BYTES // 2:
                # Launches in flight read the offsets until their pass is through.
                close_through(prepared.used)
                self._offset_bytes -= prepared.memory.nbytes
                del self._prepared[layout]
        self.generation += 1

    @property
    def is_crowded(self) -> bool:
        """Whether offsets leave too little of their room to those of the next pass."""
        return self._offset_bytes > OFFSET_BYTES * 3 // 4


def launches_in_place(layout: StepLayout) -> tuple[tuple[EntryLaunch, ...], Array | None]:
    """Return the launches of a contraction and where the panels of its result begin, None if in their order.

    Raises ValueError where an operand or the result cannot be used where it lies.
    """
    what, operands, out = layout
    first, *rest = _launches(what)
    tables, out = ((*operands, out), None) if first.has_result and not rest else (operands, out)
    for k, runs in enumerate(tables):
        if runs is not None:
            with _placing:
                placed = _with_table(what, k, runs)
            if placed is None:
                raise ValueError(f"table {k} cannot be used where it is")
            first = first.with_operand(k, placed.offsets[k], placed.quads[k] if placed.quads else ())
    launches = first, *rest
    if out is None:
        return launches, launches[-1].begins
    panels = out_panels(launches[-1], out)
    if panels is None:
        raise ValueError("the result cannot be made where it is to be")
    return launches, panels


# Devices ask for the same at once, from threads of their own: the others wait for what the first one finds.
_placing = threading.Lock()


# Whether a table can be used where it lies is asked before its launches are made, and by each device.
@lru_cache(maxsize=512)
def _with_table(what: Contraction | Chain, k: int, runs: PartRuns) -> EntryLaunch | None:
    """Return the first launch of a contraction with one table where it lies, None where it cannot be used there."""
    place = chains_gpu.in_place if isinstance(what, Chain) else in_place
    return place(_launches(what)[0], k, runs)


def _launches(what: Contraction | Chain) -> tuple[EntryLaunch, ...]:
    return (chains_gpu.launch_of(what),) if isinstance(what, Chain) else launches_of(what)


@lru_cache(maxsize=1 << 14)
def fits_in_place(layout: StepLayout) -> bool:
    """Return True if operands and result can be used where they lie."""
    try:
        launches_in_place(layout)
    except (ValueError, OverflowError):
        return False
    return True
