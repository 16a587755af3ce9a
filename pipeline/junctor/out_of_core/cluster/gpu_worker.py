"""The GPU of a Dask worker: slots for tasks, parts of tables that stay there, and the launches of a pass.

A task has a *slot*, a piece of the device's memory with a stream of its own; while one computes, another one brings its
parts in. Parts go into gaps of the room beside the slots, in the order in which they are made, and without a gap into
pinned memory of the worker. Nobody waits for them: a task has done all of its copies when it ends.
"""

from __future__ import annotations

import asyncio
import bisect
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu import entries as entries_gpu
from junctor_kernels.gpu.entries import EntryLaunch, bits_of, launches_of, moved, record
from junctor_kernels.tables.axes import Contraction, Strides

from junctor.model.errors import BudgetError, DeviceError
from junctor.out_of_core.gpu.copies import enqueue, lying_at
from junctor.out_of_core.gpu.slots import OFFSET_BYTES, enqueue_kernel
from junctor.out_of_core.gpu.staging import addresses_of, packed, register
from junctor.planning.first_fit import aligned, first_gap

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import CudaBlockDevice

    from junctor.out_of_core.pass_program import PartStep, PassContext

Array = npt.NDArray[Any]

# Tasks that have a slot at once.
MOST_SLOTS = 3
# Passes whose launches are kept: those under way, and one that is computed again.
MOST_PASSES = 3
# Seconds that a run waits for the parts of another one to leave the device, and tenths of seconds for its own.
PATIENCE, CLOSING = 30.0, 50


@dataclass(frozen=True, slots=True)
class GpuTasks:
    """Where tasks of a plan are done: in slots of so many bytes, on the GPU that a worker sees first.

    algebra: "single" or "double". room: bytes of the device, None for a share of what is free.
    """

    algebra: str
    slot: int
    room: int | None = None


@dataclass(eq=False, slots=True)
class TaskSlot:
    """Memory and stream of a task under way; held: what copies under way need."""

    at: int
    stream: Any
    held: list[Any] = field(default_factory=list)


class DevicePart:
    """A part of a table on the device of this process; pickled for another one, an ordinary array [entries]."""

    def __init__(self, gpu: WorkerSlots, address: int, entries: int) -> None:
        self._gpu = gpu
        # Good for copies only.
        self.lies = lying_at(address, entries, gpu.dtype)
        self.nbytes = self.lies.nbytes

    def copy_to(self, host: Array, slice_: Array) -> None:
        """Copy a slice of `lies` to memory of this machine."""
        self._gpu.download(host, slice_)

    def host(self, slice_: Array) -> Array:
        """Return a copy of a slice of `lies` in this machine's memory."""
        host = self._gpu.pinned(slice_.size).reshape(slice_.shape)
        self.copy_to(host, slice_)
        return host

    def __reduce__(self) -> Any:
        return np.asarray, (self.host(self.lies),)


class WorkerSlots:
    """The device during a run. Raises BudgetError where not even one slot fits."""

    def __init__(self, on: GpuTasks, device: CudaBlockDevice) -> None:
        import cupy

        self.cupy, self.number, self.algebra, self.dtype = cupy, device.number, on.algebra, np.dtype(on.algebra)
        whole = device.room - OFFSET_BYTES
        count = min(MOST_SLOTS, whole // on.slot)
        if count < 1:
            needed = on.slot + OFFSET_BYTES
            raise BudgetError(f"a task takes {needed:,} bytes of a worker's GPU, {device.room:,} are allowed")
        self._memory = device.place(0, (whole,), np.uint8)
        start = int(self._memory.data.ptr)
        # Where in a slot sums of terms lie, and where parts of tables do, beside the slots.
        self.partial = on.slot - 2 * entries_gpu.PARTIAL_ENTRIES * self.dtype.itemsize
        self._parts, self._room = start + count * on.slot, whole - count * on.slot
        self._taken: list[tuple[int, int]] = []
        self._slots: queue.SimpleQueue[TaskSlot] = queue.SimpleQueue()
        with cupy.cuda.Device(self.number):
            for n in range(count):
                self._slots.put(TaskSlot(start + n * on.slot, cupy.cuda.Stream(non_blocking=True)))
            self._way_out = cupy.cuda.Stream(non_blocking=True)
        # Parts come and go in any thread, also while one of them has the lock: the collector calls.
        self._changed, self._busy = threading.Condition(threading.RLock()), 0
        self._passes: deque[LoweredPass] = deque(maxlen=MOST_PASSES)
        self._prepared: dict[Contraction, tuple[tuple[EntryLaunch, ...], list[list[tuple[int, ...]]]]] = {}
        self._offsets: list[Any] = []

    @contextmanager
    def task(self, given: PassContext, powers: Mapping[int, float]) -> Iterator[tuple[TaskSlot, LoweredPass]]:
        """Have a slot, with its stream, and the launches of a pass; all is done at the end."""
        with self._changed:
            on = self._lowered(given)
            on.settle(powers)
            self._busy += 1
        slot = self._slots.get()
        try:
            with self.cupy.cuda.Device(self.number), slot.stream:
                try:
                    yield slot, on
                finally:
                    slot.stream.synchronize()
        finally:
            slot.held.clear()
            self._slots.put(slot)
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def _lowered(self, given: PassContext) -> LoweredPass:
        """Return the launches of a pass, prepared by the first of its tasks."""
        for on in self._passes:
            if on.given is given:
                return on
        if self._is_full():
            # Tasks under way need their offsets; then others may have been here.
            self._changed.wait_for(lambda: self._busy == 0)
            if self._is_full():
                self._prepared.clear()
                self._offsets.clear()
                self._passes.clear()
            return self._lowered(given)
        with self.cupy.cuda.Device(self.number):
            self._passes.append(on := LoweredPass(self, given))
            self.cupy.cuda.runtime.deviceSynchronize()
        return on

    def keep(self, slot: TaskSlot, at: int, entries: int) -> Any:
        """Return a part for good, of what the stream of a slot will have made at an address."""
        size = aligned(entries * self.dtype.itemsize)
        with self._changed:
            start = first_gap(self._taken, size)
            fits = start + size <= self._room
            if fits:
                bisect.insort(self._taken, (start, start + size))
        made = lying_at(at, entries, self.dtype)
        if not fits:
            part = self.pinned(entries)
            self.copy(slot.stream, part, made)
            return part
        on_device = DevicePart(self, self._parts + start, entries)
        weakref.finalize(on_device, self._give_back, (start, start + size))
        self.copy(slot.stream, on_device.lies, made)
        return on_device

    def _give_back(self, piece: tuple[int, int]) -> None:
        with self._changed:
            self._taken.remove(piece)
            self._changed.notify_all()

    def is_empty(self, patience: float) -> bool:
        """Wait until neither parts nor tasks are on the device; tells whether that came about."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._taken and not self._busy, patience)

    def pinned(self, entries: int) -> Array:
        """Return memory of the host that the device reaches, not cleared; used again once nobody needs it."""
        memory = self.cupy.cuda.alloc_pinned_memory(entries * self.dtype.itemsize)
        return np.frombuffer(memory, self.dtype, entries)

    def download(self, host: Array, slice_: Array) -> None:
        """Copy what lies on the device to this machine's memory."""
        with self.cupy.cuda.Device(self.number):
            self.copy(self._way_out, host, slice_)
            self._way_out.synchronize()

    def copy(self, stream: Any, target: Array, source: Array) -> None:
        """Enqueue copies between arrays of one shape, wherever they lie."""
        enqueue(self.cupy.cuda.runtime, stream, target, source)

    def calls_of(
        self, step: PartStep, places: Mapping[int, int], scales: Sequence[tuple[int, int]]
    ) -> list[StepLaunch]:
        """Return the launches of a step; places of tables in a slot. scales: bits, and address of a lead or 0."""
        launches, offsets = self._prepare(step.what)
        # Sums of terms are made in turns in either half of the room for them.
        half = entries_gpu.PARTIAL_ENTRIES * self.dtype.itemsize
        tables, calls = [places[table] for table in step.operands], []
        for m, launch in enumerate(launches):
            ends = m == len(launches) - 1
            out = places[step.out] if ends else self.partial + (m % 2) * half
            operands = [
                (table, *lies, *scale, False) for table, lies, scale in zip(tables, offsets[m], scales, strict=True)
            ]
            words = record(launch, out, 0, False, operands)
            kernel = _module(self.number, self.algebra).get_function(launch.name)
            calls.append(StepLaunch(kernel, launch.blocks, words, ends))
            tables, scales = [out], [(bits_of(1.0), 0)]
        return calls

    def _prepare(self, what: Contraction) -> tuple[tuple[EntryLaunch, ...], list[list[tuple[int, ...]]]]:
        """Return the launches of a contraction, and for each where the offsets of its operands lie on the device."""
        if what not in self._prepared:
            launches = launches_of(what)
            whole, starts = packed(launches, [], partial(np.zeros, dtype=np.uint8))
            self._offsets.append(self.cupy.asarray(whole))
            places, _ = addresses_of(launches, int(self._offsets[-1].data.ptr), starts)
            self._prepared[what] = launches, places
        return self._prepared[what]

    def _is_full(self) -> bool:
        """Tell whether offsets take too much."""
        return sum(int(each.nbytes) for each in self._offsets) > OFFSET_BYTES // 2


@dataclass(frozen=True, eq=False, slots=True)
class StepLaunch:
    """A launch of a step, with places in a slot for addresses; ends: whether it makes the result of the step."""

    kernel: Any
    blocks: int
    words: Array
    ends: bool


class LoweredPass:
    """The launches of a pass on the device, and one that adds a part to another.

    words: of the first task and of all others [2, steps, 2], bits of the largest entry and the complement of those of
    the smallest; both are only raised. The last ones are of sums.
    """

    def __init__(self, gpu: WorkerSlots, given: PassContext) -> None:
        steps = given.body.steps
        self.given, self._gpu = given, gpu
        self.made = {step.out: n for n, step in enumerate(steps)}
        self._word = np.dtype(f"u{gpu.dtype.itemsize}")
        self._words = gpu.cupy.zeros((2, len(steps) + 1, 2), dtype=self._word)
        self._calls = [
            gpu.calls_of(step, given.places, [self._scale(table) for table in step.operands]) for step in steps
        ]
        entries = steps[-1].what.kept_entries
        same = Contraction((entries,), (), (Strides((1,), ()),))
        (self._sum,) = gpu.calls_of(type(steps[-1])(0, (1,), same), {0: 0, 1: 0}, [(bits_of(1.0), 0)])
        self._settled = False

    def _scale(self, table: int) -> tuple[int, int]:
        """Return what an operand is multiplied with: bits, and where the lead of what the pass makes lies."""
        if table in self.made:
            return bits_of(1.0), self._word_at(True, self.made[table])
        return bits_of(2.0 ** self.given.shifts[table]), 0

    def _word_at(self, leads: bool, n: int) -> int:
        steps = self._words.shape[1]
        return int(self._words.data.ptr) + ((0 if leads else steps) + n) * 2 * self._word.itemsize

    def settle(self, powers: Mapping[int, float]) -> None:
        """Tell the device what the first task found, the largest entry of each step."""
        if not powers or self._settled:
            return
        largest = np.array([powers[out] for out in self.made], self._gpu.dtype)
        with self._gpu.cupy.cuda.Device(self._gpu.number):
            self._words[0, :-1, 0] = self._gpu.cupy.asarray(largest.view(self._word))
            self._gpu.cupy.cuda.runtime.deviceSynchronize()
        self._settled = True

    def launch(self, n: int, slot: TaskSlot, leads: bool) -> None:
        """Enqueue a step."""
        for call in self._calls[n]:
            operands = entries_gpu.TABLES[: int(call.words[entries_gpu.OPERANDS])]
            words = moved(call.words, (entries_gpu.OUT, *operands), slot.at)
            if call.ends:
                words[entries_gpu.EXTREMES] = self._word_at(leads, n)
            enqueue_kernel(call.kernel, call.blocks, words)

    def add(self, slot: TaskSlot, at: int) -> None:
        """Enqueue the sum of what lies at the beginning of a slot and what lies at an address, into the slot."""
        words = self._sum.words.copy()
        words[entries_gpu.OUT], words[entries_gpu.TABLES[0]] = slot.at, at
        words[entries_gpu.EXTREMES], words[entries_gpu.ADDS] = self._word_at(False, len(self.made)), True
        enqueue_kernel(self._sum.kernel, self._sum.blocks, words)

    def found(self) -> tuple[Array, Array, Array]:
        """Return what tasks of the pass found here so far, once they are done.

        The largest entries of its steps in the first task; in all tasks, and of sums behind them; the smallest above
        zero, 1 where there is none.
        """
        words = self._words.get()
        first, most = np.ascontiguousarray(words[0, :-1, 0]), words.max(axis=0)
        least = np.where(most[:, 1] > 0, (~most[:, 1]).view(self._gpu.dtype), 1)
        return first.view(self._gpu.dtype), np.ascontiguousarray(most[:, 0]).view(self._gpu.dtype), least


_opening = threading.Lock()
_opened: tuple[GpuTasks, WorkerSlots] | None = None


def worker_gpu(on: GpuTasks) -> WorkerSlots:
    """Return the device of this process as tasks of a plan find it, opened by the first of them.

    Raises DeviceError where another run has its parts there, or where it cannot be used.
    """
    global _opened
    with _opening:
        if _opened is None or _opened[0] != on:
            _forget(PATIENCE)
            _opened = on, WorkerSlots(on, open_device(on.room))
            _reach_shared(_pinned)
        return _opened[1]


async def close() -> None:
    """Give the device back once the parts of a run have left it; raises DeviceError where they stay."""
    # A worker that waited here would not hear that nobody needs them.
    for _ in range(CLOSING):
        if _opened is None or _opened[1].is_empty(0):
            break
        await asyncio.sleep(0.1)
    with _opening:
        _forget(0)
        _reach_shared(None)
        open_device.cache_clear()


def _reach_shared(how: Callable[[Array], None] | None) -> None:
    """Have the device reach the memory files of the workers of this machine, or leave them."""
    try:
        from junctor.out_of_core.cluster import shared_memory as sharing
    except ImportError:
        return
    sharing.reach(how)


def _pinned(memory: Array) -> None:
    # Copies of what is not pinned take longer.
    with suppress(MemoryError):
        register(memory)


def _forget(patience: float) -> None:
    global _opened
    if _opened is not None and not _opened[1].is_empty(patience):
        raise DeviceError("the GPU of a worker holds tables of another run: let that one end first")
    _opened = None


def room_of(room: int | None) -> int:
    """Return the bytes of this process's GPU that tasks get, of `room` allowed; raises DeviceError."""
    return int(open_device(room).room)


@lru_cache(maxsize=1)
def open_device(room: int | None) -> CudaBlockDevice:
    """Return the first GPU that this process sees, with at most `room` bytes; raises DeviceError.

    What earlier partitions have there is given back: rows in chunks need all of it.
    """
    from junctor.runtime.devices import open_whole_gpu

    return open_whole_gpu(room)


@cache
def _module(number: int, algebra: str) -> Any:
    import cupy

    with cupy.cuda.Device(number):
        return cupy.RawModule(code=entries_gpu.source(algebra), options=("-std=c++17",))
