"""Memory of GPUs for the tasks of a cut plan: slots and stored tables on the devices, and pinned memory for others.

A *slot* is a piece of device memory with a stream of its own, for one group of tasks at a time. Stored tables that find
room beside the slots stay there, the parts that a device makes on that device; all devices reach each other's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu import chains as chains_gpu
from junctor_kernels.gpu import entries as entries_gpu
from junctor_kernels.gpu.chains import Chain
from junctor_kernels.gpu.entries import EntryLaunch, PartRuns, carried, in_place, launches_of, out_panels
from junctor_kernels.tables.axes import Contraction

from junctor.out_of_core.gpu.staging import addresses_of, packed

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import CudaBlockDevice


Array = npt.NDArray[Any]

# Groups of tasks under way at once where nobody says how many.
SLOTS = 3
# What offsets of launches may take beside the slots.
OFFSET_BYTES = 1 << 26
# Pinned memory for offsets and small parts on their way.
STAGING_BYTES = 1 << 25
# Launches that are kept for the next case.
MOST_KEPT = 1 << 15


class StreamMark(NamedTuple):
    """A point of a slot's stream: the how many-th, and the event there."""

    slot: int
    number: int
    event: Any


@dataclass(eq=False, slots=True)
class GroupSlot:
    """Memory and stream of the groups of tasks that a device does one after the other.

    loaded, stored: bytes that came in and went out; exchanged: those of tables on devices among them. waited: the last
    mark of every other slot that this one has waited for.
    """

    number: int
    on: DeviceSlots
    at: int
    stream: Any
    loaded: int = 0
    stored: int = 0
    exchanged: int = 0
    last: StreamMark | None = None
    waited: dict[int, int] = field(default_factory=dict)

    def mark(self) -> StreamMark:
        """Mark what has been handed in so far."""
        event = self.on.event()
        event.record(self.stream)
        self.last = StreamMark(self.number, self.last.number + 1 if self.last else 0, event)
        return self.last

    def wait(self, marks: Iterable[StreamMark]) -> None:
        """Let what is handed in from now on wait for marks of any slots."""
        for mark in marks:
            if mark.slot != self.number and self.waited.get(mark.slot, -1) < mark.number:
                self.stream.wait_event(mark.event)
                self.waited[mark.slot] = mark.number


def enqueue_kernel(kernel: Any, blocks: int, words: Array) -> None:
    """Hand in a kernel of `entries.cu` to the stream that is the current one."""
    kernel((blocks,), (entries_gpu.THREADS,), (words.view(f"V{words.nbytes}"),))


@dataclass(eq=False, slots=True)
class PreparedLaunches:
    """Launches of a contraction, and where on a device their offsets lie: of operands, of panels of the result (or 0).

    used: the last pass that needed them.
    """

    launches: tuple[EntryLaunch, ...]
    at: list[list[tuple[int, ...]]]
    out_panels: int
    memory: Any
    used: int


# A contraction or a chain, and how each operand and the result lie, None for one piece.
Lying = tuple[Contraction | Chain, tuple[PartRuns | None, ...], PartRuns | None]


class DeviceSlots:
    """Slots on one device, and launches that are prepared there. Raises MemoryError where not even one slot fits."""

    def __init__(self, algebra: str, device: CudaBlockDevice, slot: int, slots: int) -> None:
        import cupy

        self.cupy, self.number, self.queue, self.algebra = cupy, device.number, device.queue, algebra
        self._word = np.dtype(np.uint64 if algebra == "double" else np.uint32)
        self.count = min(slots, (device.room - OFFSET_BYTES) // slot)
        if self.count < 1:
            raise MemoryError(f"a task takes {slot + OFFSET_BYTES:,} bytes of the GPU, {device.room:,} are allowed")
        self._prepared: dict[Lying, PreparedLaunches] = {}
        # Bytes that their offsets take.
        self._taken = 0
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
        self._words_at, self._reports = int(self._words.data.ptr), reports

    def begin(self) -> None:
        """Begin a propagation: nothing has been found, and whatever needed offsets before is done."""
        for each in self._prepared.values():
            each.used = -1
        with self.cupy.cuda.Device(self.number):
            self._words[...] = 0
            self.cupy.cuda.runtime.deviceSynchronize()

    def words_at(self, step: int, of_lead: bool = True) -> int:
        """Return the address of the words of a step, of the first task or of all others."""
        return self._words_at + (4 * step + (0 if of_lead else 2)) * self._word.itemsize

    def gathered_at(self, step: int) -> int:
        """Return the address of the words of a step that several devices have found together."""
        return self.words_at(int(self._words.shape[1]) + step)

    def report_at(self, step: int) -> int:
        """Return the address on the host that the words of a step are reported to."""
        return self._reports + 4 * step * self._word.itemsize

    def report(self, marks: Iterable[StreamMark], first: int, steps: int) -> Any:
        """Bring the words of some steps to the host once slots are through; returns the event behind that."""
        with self.cupy.cuda.Device(self.number), self._reporter:
            for mark in marks:
                self._reporter.wait_event(mark.event)
            enqueue_kernel(self.kernel("carry"), 1, carried(self.report_at(first), self.words_at(first), 4 * steps))
            event = self.event()
            event.record(self._reporter)
        return event

    def prepared(self, lying: Lying, number: int, take: Callable[[int], Array]) -> PreparedLaunches:
        """Return the launches of a contraction, with their offsets on the device.

        number: of the pass. take: for memory that copies may come from. Who launches has to wait for `uploaded`.
        """
        if lying not in self._prepared:
            launches, panels = launches_in_place(lying)
            whole, starts = packed(launches, [] if panels is None else [panels], take)
            memory = self._uploaded(whole)
            places, (out_panels,) = addresses_of(launches, int(memory.data.ptr), starts, 1)
            self._prepared[lying] = PreparedLaunches(launches, places, out_panels, memory, number)
            self._taken += memory.nbytes
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
        if self._taken <= OFFSET_BYTES * 3 // 4:
            return
        for what, each in sorted(self._prepared.items(), key=lambda item: item[1].used):
            if self._taken > OFFSET_BYTES // 2:
                close_through(each.used)
                self._taken -= each.memory.nbytes
                del self._prepared[what]
        self.generation += 1

    def kernel(self, name: str) -> Any:
        """Return a kernel, compiled when first needed."""
        if name not in self._kernels:
            self._kernels[name] = _module(self.number, self.algebra).get_function(name)
        return self._kernels[name]


def launches_in_place(lying: Lying) -> tuple[tuple[EntryLaunch, ...], Array | None]:
    """Return the launches of a contraction and where the panels of its result begin, if not one after the other.

    Raises ValueError where an operand or the result cannot lie so.
    """
    what, operands, out = lying
    if isinstance(what, Chain):
        return (_chain_in_place(what, (*operands, out)),), None
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


def _chain_in_place(what: Chain, tables: Iterable[PartRuns | None]) -> EntryLaunch:
    launch = chains_gpu.launch_of(what)
    for k, runs in enumerate(tables):
        found = launch if runs is None else chains_gpu.in_place(launch, k, runs)
        if found is None:
            raise ValueError(f"table {k} of a chain cannot be used where it is")
        launch = found
    return launch


@lru_cache(maxsize=1 << 14)
def can_lie(lying: Lying) -> bool:
    """Tell whether operands and result can."""
    try:
        launches_in_place(lying)
    except (ValueError, OverflowError):
        return False
    return True


@cache
def _module(number: int, algebra: str) -> Any:
    import cupy

    with cupy.cuda.Device(number):
        return cupy.RawModule(code=entries_gpu.source(algebra), options=("-std=c++17",))
