"""The GPU of a Dask worker: slots for tasks, parts of tables that stay there, and the launches of a pass.

A task has a slot (`gpu.slots`); while one computes, another one brings its parts in. Parts go into gaps of the memory
beside the slots, in the order in which they are made, and without a gap into pinned memory of the worker. Nobody waits
for them: a task has done all of its copies when it ends.
"""

from __future__ import annotations

import asyncio
import bisect
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu import entries as entries_gpu
from junctor_kernels.gpu.device import address_of, register_host
from junctor_kernels.gpu.entries import extremes_of, ranks_of, scale_of
from junctor_kernels.tables.axes import Contraction, Strides

from junctor.model.errors import BudgetError, DeviceError
from junctor.out_of_core.cluster.machine_gpus import open_gpus
from junctor.out_of_core.cluster.tasks import GpuTasks, PassContext
from junctor.out_of_core.gpu.copies import device_view, enqueue
from junctor.out_of_core.gpu.launches import Scale, StepLaunch, step_launches, unscaled
from junctor.out_of_core.gpu.slots import DeviceSlots, Slot, StepLayout
from junctor.out_of_core.memory_splits import OFFSET_BYTES
from junctor.planning.first_fit import aligned, first_gap
from junctor.runtime.devices import visible_gpus, when_gpu_is_needed

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import CudaBlockDevice

Array = npt.NDArray[Any]

# Tasks that have a slot at once.
MOST_SLOTS = 3
# Passes whose launches are kept: those in flight, and one that is computed again.
MOST_PASSES = 3
# Seconds that a run waits for the parts of another one to leave the device, and tenths of seconds for its own.
PATIENCE, CLOSING = 30.0, 50


class DevicePart:
    """A part of a table on the device of this process; pickled for another one, an ordinary array [entries].

    array: the part, good for copies only.
    """

    def __init__(self, gpu: WorkerGpu, address: int, entries: int) -> None:
        self._gpu = gpu
        self.array = device_view(address, entries, gpu.dtype)
        self.nbytes = self.array.nbytes

    def copy_to(self, host: Array, slice_: Array) -> None:
        """Copy a slice of `array` to memory of this machine."""
        download = self._gpu.slots.download
        with self._gpu.cuda.current():
            enqueue(self._gpu.cuda, download, host, slice_)
            # Whoever gets the copy reads it at once, or sends it away.
            download.synchronize()

    def host(self, slice_: Array) -> Array:
        """Return a copy of a slice of `array` in this machine's memory."""
        # Pinned: a copy to pageable memory takes longer and waits for the device.
        host = self._gpu.pinned(slice_.size).reshape(slice_.shape)
        self.copy_to(host, slice_)
        return host

    def __reduce__(self) -> Any:
        # Other processes cannot use an address of this one.
        return np.asarray, (self.host(self.array),)


class WorkerGpu:
    """The device during a run: slots that tasks take by turns, and memory for parts. Raises BudgetError without a slot.

    tasks: of the plan.
    device: the GPU.
    free: the slots that no task has.
    """

    def __init__(self, tasks: GpuTasks, device: CudaBlockDevice) -> None:
        if device.room - OFFSET_BYTES < tasks.slot:
            needed = tasks.slot + OFFSET_BYTES
            raise BudgetError(f"a task takes {needed:,} bytes of a worker's GPU, {device.room:,} are allowed")
        self.cuda = device
        self.slots = DeviceSlots(tasks.algebra, device, tasks.slot, MOST_SLOTS)
        self.dtype = self.slots.dtype
        self.free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        for slot in self.slots.new_slots():
            self.free.put(slot)
        # Begins and ends of parts in the memory beside the slots, in order.
        self._taken: list[tuple[int, int]] = []
        # Parts come and go in any thread, also while one of them has the lock: the collector calls.
        self._changed = threading.Condition(threading.RLock())
        self._busy = 0
        self._passes: deque[LoweredPass] = deque(maxlen=MOST_PASSES)

    @contextmanager
    def task(self, context: PassContext, pilot: Mapping[int, float]) -> Iterator[tuple[Slot, LoweredPass]]:
        """Context manager: a slot, with its stream, and the launches of a pass; all is done at the end.

        context: of the pass.
        pilot: table -> largest entry that the pilot task found; empty for that itself.
        """
        with self._changed:
            lowered = self._lowered(context)
            lowered.scale_by(pilot)
            self._busy += 1
        # Outside the lock: tasks that end need it to give their slot back.
        slot = self.free.get()
        try:
            with self.cuda.current(slot.stream):
                try:
                    yield slot, lowered
                finally:
                    slot.stream.synchronize()
        finally:
            slot.kept.clear()
            self.free.put(slot)
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def _lowered(self, context: PassContext) -> LoweredPass:
        """Return the launches of a pass, prepared by the first of its tasks."""
        for lowered in self._passes:
            if lowered.context is context:
                return lowered
        if self.slots.is_full:
            # Tasks in flight need their offsets; then others may have been here.
            self._changed.wait_for(lambda: self._busy == 0)
            if self.slots.is_full:
                self.slots.forget_launches()
                self._passes.clear()
            return self._lowered(context)
        self._passes.append(lowered := LoweredPass(self.slots, context))
        return lowered

    def keep(self, slot: Slot, address: int, entries: int) -> Any:
        """Return a part for good, of what the stream of a slot will have made at an address [entries]."""
        size = aligned(entries * self.dtype.itemsize)
        with self._changed:
            # Parts come and go in no known order, so places cannot be planned.
            start = first_gap(self._taken, size)
            fits = start + size <= self.slots.room
            if fits:
                bisect.insort(self._taken, (start, start + size))
        made = device_view(address, entries, self.dtype)
        if not fits:
            # Without a gap nobody waits: what would leave the device may wait for this very task.
            part = self.pinned(entries)
            enqueue(self.cuda, slot.stream, part, made)
            return part
        on_device = DevicePart(self, self.slots.tables + start, entries)
        # Dask decides when a part is not needed any more: then its object goes.
        weakref.finalize(on_device, self._release, (start, start + size))
        enqueue(self.cuda, slot.stream, on_device.array, made)
        return on_device

    def _release(self, piece: tuple[int, int]) -> None:
        with self._changed:
            self._taken.remove(piece)
            self._changed.notify_all()

    def is_empty(self, patience: float) -> bool:
        """Wait for some seconds; return True if neither parts nor tasks are on the device."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._taken and not self._busy, patience)

    def pinned(self, entries: int) -> Array:
        """Return memory of the host that the device reaches, not cleared; used again once nobody needs it."""
        return self.cuda.pinned(entries, self.dtype, pooled=True)


class LoweredPass:
    """The launches of a pass on the device, and one that adds a part to another.

    slots: of the device.
    context: of the pass.
    made: table -> number of its step.
    """

    def __init__(self, slots: DeviceSlots, context: PassContext) -> None:
        steps = context.program.steps
        self.context = context
        self._slots = slots
        self.made = {step.out: n for n, step in enumerate(steps)}
        self._word = np.dtype(f"u{slots.dtype.itemsize}")
        # Of the pilot task and of all others, for each step and sums behind them: bits of the largest entry and the
        # complement of those of the smallest, so that both are only raised.
        self._words = slots.cuda.zeros((2, len(steps) + 1, 2), self._word)
        sent: list[Array] = []
        with slots.cuda.current():
            self._launches = [
                self._step(
                    step.what,
                    [context.offsets[table] for table in (*step.operands, step.out)],
                    [self._scale(table) for table in step.operands],
                    sent,
                )
                for step in steps
            ]
            entries = steps[-1].what.kept_entries
            # A contraction of one operand without sums is a copy; added to what is there, a sum.
            same = Contraction((entries,), (), (Strides((1,), ()),))
            (self._sum,) = self._step(same, [0, 0], [unscaled(slots.algebra)], sent)
        # Until then the arrays that are sent have to live.
        slots.cuda.synchronize_all()
        self._is_scaled = False

    def _step(self, what: Contraction, tables: list[int], scales: list[Scale], sent: list[Array]) -> list[StepLaunch]:
        def take(size: int) -> Array:
            sent.append(np.zeros(size, np.uint8))
            return sent[-1]

        prepared = self._slots.prepared(StepLayout(what, (None,) * len(what.operands)), 0, take)
        return step_launches(self._slots, prepared, tables, scales)

    def _scale(self, table: int) -> Scale:
        if table in self.made:
            return Scale(unscaled(self._slots.algebra).bits, self._word_at(True, self.made[table]))
        return Scale(scale_of(self.context.shifts[table], self._slots.algebra))

    def _word_at(self, pilot: bool, n: int) -> int:
        steps = self._words.shape[1]
        return address_of(self._words) + ((0 if pilot else steps) + n) * 2 * self._word.itemsize

    def scale_by(self, pilot: Mapping[int, float]) -> None:
        """Bring the largest entries that the pilot task found, unless another task has."""
        if not pilot or self._is_scaled:
            return
        largest = np.array([pilot[out] for out in self.made], self._slots.dtype)
        with self._slots.cuda.current():
            self._words[0, :-1, 0] = self._slots.cuda.put(ranks_of(largest, self._slots.algebra))
        self._slots.cuda.synchronize_all()
        self._is_scaled = True

    def launch(self, n: int, slot: Slot, pilot: bool) -> None:
        """Enqueue a step; pilot: whether for the pilot task."""
        for launch in self._launches[n]:
            launch.enqueue(slot, {}, self._word_at(pilot, n), adds=False)

    def add(self, slot: Slot, address: int) -> None:
        """Enqueue the sum of what lies at the beginning of a slot and what lies at an address, into the slot."""
        words = self._sum.words.copy()
        words[entries_gpu.OUT], words[entries_gpu.TABLES[0]] = slot.address, address
        words[entries_gpu.EXTREMES], words[entries_gpu.ADDS] = self._word_at(False, len(self.made)), True
        self._slots.launch(self._sum.kernel, self._sum.blocks, words)

    def max_min(self) -> tuple[Array, Array, Array]:
        """Return what tasks of the pass found here so far, once they are done.

        The largest entries of its steps in the pilot task; in all tasks, and of sums behind them; the smallest above
        zero, 1 where there is none.
        """
        words = self._words.get()
        first, _ = extremes_of(words[0, :-1], self._slots.algebra)
        return first, *extremes_of(words.max(axis=0), self._slots.algebra)


_opening = threading.Lock()
# The device of this process during a run, and the tasks that it was opened for.
opened: tuple[GpuTasks, WorkerGpu] | None = None


def worker_gpu(tasks: GpuTasks) -> WorkerGpu:
    """Return the device of this process as tasks of a plan find it, opened by the first of them.

    Raises DeviceError where another run has its parts there, or where it cannot be used.
    """
    global opened
    with _opening:
        # Tasks of one plan share the device; those of another one need slots of another size.
        if opened is None or opened[0] != tasks:
            _forget(PATIENCE)
            opened = tasks, WorkerGpu(tasks, open_device(tasks.room))
            # Slices from other workers of this machine are then copied to the device without a way through this
            # process.
            _reach_shared(_pinned)
        return opened[1]


async def close() -> None:
    """Give the device back once the parts of a run have left it; raises DeviceError where they stay."""
    # A worker that waited here would not hear that nobody needs them.
    for _ in range(CLOSING):
        if opened is None or opened[1].is_empty(0):
            break
        await asyncio.sleep(0.1)
    with _opening:
        _forget(0)
        _reach_shared(None)


def _reach_shared(register: Callable[[Array], None] | None) -> None:
    """Let the device reach the memory files of the workers of this machine, or leave them."""
    try:
        from junctor.out_of_core.cluster import shared_memory
    except ImportError:
        return
    shared_memory.reach(register)


def _pinned(memory: Array) -> None:
    # Copies of what is not pinned take longer.
    with suppress(MemoryError):
        register_host(memory)


def _forget(patience: float) -> None:
    global opened
    if opened is not None and not opened[1].is_empty(patience):
        raise DeviceError("the GPU of a worker holds tables of another run: let that one end first")
    opened = None


def open_device(room: int | None) -> CudaBlockDevice:
    """Return the first GPU that this process sees, with at most `room` bytes; raises DeviceError.

    What earlier partitions have there is given back: rows out of core need all of it.
    """
    (device,) = open_gpus(visible_gpus()[:1], room)
    return device


def _forget_device() -> None:
    """Release the device where no run has parts on it."""
    # Held by who opens it.
    if _opening.acquire(blocking=False):
        with suppress(DeviceError):
            _forget(0)
        _opening.release()


when_gpu_is_needed(_forget_device)
