"""Tasks of a cut plan on the GPU of a Dask worker: what it makes stays on the device while there is room.

The steps, kernels and powers of two are those of `chunked_gpu`, so the numbers are those of one process on a GPU. Parts
go into gaps of the room beside the slots, in the order in which they are made; without a gap, into pinned memory of the
worker. Nothing waits for them there: a task has done all of its copies when it ends.
"""

from __future__ import annotations

import bisect
import ctypes
import itertools
import math
import queue
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels import entries_gpu
from junctor_kernels.axes import Contraction, Strides
from junctor_kernels.gpu import CudaDevice

from junctor.chunk_places import aligned
from junctor.chunk_slots import OneGpu, Slot
from junctor.chunk_tasks import Given, Made, Record, Slices, Source, Step, arrived, laid_out, largest_of
from junctor.chunked_gpu import RUN_BYTES, OnDevice, numbers_of
from junctor.errors import DeviceError
from junctor.planning.arena import first_gap

Array = npt.NDArray[Any]

# Seconds that a run waits for the parts of another one to leave the device.
PATIENCE = 30.0
# Bytes that rows of a copy may be apart.
MOST_PITCH = (1 << 31) - 1

_opening = threading.Lock()
_opened: tuple[OnGpu, WorkerGpu] | None = None


@dataclass(frozen=True, slots=True)
class OnGpu:
    """Where tasks of a plan are done: in slots of so many bytes, on the GPU that a worker sees first.

    algebra: "single" or "double". room: bytes of the device, None for a share of what is free.
    """

    algebra: str
    slot: int
    room: int | None = None


class DevicePart:
    """A part of a table on the device of this process; pickled for another one, an ordinary array [entries]."""

    def __init__(self, gpu: WorkerGpu, start: int, entries: int) -> None:
        self._gpu = gpu
        # Its address is on the device: good for copies only.
        self.lies = _lying_at(gpu.one.tables + start, entries, gpu.dtype)
        self.nbytes = self.lies.nbytes

    def host(self, slice_: Array) -> Array:
        """Return a copy of a slice of `lies` in this machine's memory."""
        return self._gpu.downloaded(slice_)

    def __reduce__(self) -> Any:
        return np.asarray, (self.host(self.lies),)


class WorkerGpu:
    """The device of a worker during a run: slots, parts that stay, and the launches of the pass that is under way."""

    def __init__(self, on: OnGpu, device: Any) -> None:
        self.one, self.dtype = OneGpu(on.algebra, device, on.slot), np.dtype(on.algebra)
        self._slots: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        for slot in self.one.slots:
            self._slots.put(slot)
        self._way_out = self.one.cupy.cuda.Stream(non_blocking=True)
        self._taken: list[tuple[int, int]] = []
        self._changed, self._busy = threading.Condition(), 0
        self._pass: _PassOnDevice | None = None

    @contextmanager
    def task(self, given: Given, powers: Mapping[int, float]) -> Iterator[tuple[Slot, _PassOnDevice]]:
        """Have a slot, with its stream, and the launches of a pass."""
        with self._changed:
            if self._pass is None or self._pass.given is not given:
                # Others need their offsets. They are of a pass that is computed again, and few.
                self._changed.wait_for(lambda: self._busy == 0)
                self._pass = _PassOnDevice(self.one, given)
            on = self._pass
            on.settle(powers)
            self._busy += 1
        slot = self._slots.get()
        try:
            with self.one.cupy.cuda.Device(self.one.number), slot.stream:
                yield slot, on
                slot.stream.synchronize()
        finally:
            slot.held.clear()
            self._slots.put(slot)
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def keep(self, slot: Slot, at: int, entries: int) -> Any:
        """Return a part for good, of what the stream of a slot will have made at an address."""
        size = aligned(entries * self.dtype.itemsize)
        with self._changed:
            start = first_gap(self._taken, size)
            fits = start + size <= self.one.room
            if fits:
                bisect.insort(self._taken, (start, start + size))
        if not fits:
            part = self.pinned(entries)
            self.copy(slot.stream, part, _lying_at(at, entries, self.dtype))
            return part
        on_device = DevicePart(self, start, entries)
        weakref.finalize(on_device, self._give_back, (start, start + size))
        self.copy(slot.stream, on_device.lies, _lying_at(at, entries, self.dtype))
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
        memory = self.one.cupy.cuda.alloc_pinned_memory(entries * self.dtype.itemsize)
        return np.frombuffer(memory, self.dtype, entries)

    def downloaded(self, slice_: Array) -> Array:
        """Return a copy of what lies on the device in this machine's memory."""
        host = np.empty(slice_.shape, self.dtype)
        with self.one.cupy.cuda.Device(self.one.number):
            self.copy(self._way_out, host, slice_)
            self._way_out.synchronize()
        return host

    def copy(self, stream: Any, target: Array, source: Array) -> None:
        """Enqueue copies between arrays of one shape, wherever they lie."""
        runtime = self.one.cupy.cuda.runtime
        for to, pitch, of, other_pitch, width, rows in copies(target, source):
            if rows == 1:
                runtime.memcpyAsync(to, of, width, runtime.memcpyDefault, stream.ptr)
            else:
                runtime.memcpy2DAsync(to, pitch, of, other_pitch, width, rows, runtime.memcpyDefault, stream.ptr)


class _PassOnDevice:
    """The launches of a pass on the device, and one that adds a part to another."""

    def __init__(self, one: OneGpu, given: Given) -> None:
        steps = given.body.steps
        self.given, self._one = given, one
        self._on = OnDevice(one, steps, given.places, given.shifts)
        self._numbers = {step.out: n for n, step in enumerate(steps)}
        entries = steps[-1].what.kept_entries
        same = Contraction((entries,), (), (Strides((1,), ()),))
        self._sum = OnDevice(one, [Step(0, (1,), same)], {0: 0, 1: 0}, {})
        self._settled = False

    def settle(self, powers: Mapping[int, float]) -> None:
        """Tell the device what the first task found, the largest entry of each step."""
        if not powers or self._settled:
            return
        largest = np.array([powers[out] for out in self._numbers], np.dtype(self._one.algebra))
        with self._one.cupy.cuda.Device(self._one.number):
            self._on.words[0, :, 0] = self._one.cupy.asarray(largest.view(self._one.words))
            self._one.cupy.cuda.runtime.deviceSynchronize()
        self._settled = True

    def launch(self, n: int, slot: Slot, leads: bool) -> None:
        """Enqueue a step."""
        for call in self._on.calls[n]:
            words = entries_gpu.moved(call.words, slot.at)
            if call.ends:
                words[entries_gpu.EXTREMES] = self._on.word(leads, n)
            call.kernel((call.blocks,), (entries_gpu.THREADS,), (words.view(f"V{words.nbytes}"),))

    def add(self, slot: Slot, at: int) -> None:
        """Enqueue the sum of what lies in a slot and what lies at an address, into the slot."""
        (call,) = self._sum.calls[0]
        words = call.words.copy()
        words[list(entries_gpu.TABLES[:2])] = slot.at, at
        words[entries_gpu.EXTREMES], words[entries_gpu.ADDS] = self._sum.word(False, 0), True
        call.kernel((call.blocks,), (entries_gpu.THREADS,), (words.view(f"V{words.nbytes}"),))

    def record(self, powers: Mapping[int, float]) -> Record:
        """Return what is known of all that tasks of the pass have made here so far; powers: of the first task."""
        words, dtype = self._on.words.get(), np.dtype(self._one.algebra)
        first, _ = numbers_of(words[0], dtype)
        largest, least = numbers_of(words.max(axis=0), dtype)
        extremes = {out: (largest_of(largest[n]), float(least[n])) for out, n in self._numbers.items()}
        return Record(extremes, dict(powers) or {out: float(first[n]) for out, n in self._numbers.items()}, {})

    def largest_sum(self) -> float:
        """Return the largest entry of all sums so far."""
        largest, _ = numbers_of(self._sum.words.get()[1], np.dtype(self._one.algebra))
        return largest_of(largest)


def made_by_task(
    given: Given,
    states: Mapping[int, int],
    powers: Mapping[int, float],
    here: Sequence[Source],
    elsewhere: Sequence[Source],
    *of: Any,
) -> Made:
    """Do a task, as `chunk_tasks.made_by_task` does. powers: the largest entries that the first task found."""
    assert given.gpu is not None
    gpu, slices, there = worker_gpu(given.gpu), arrived(states, here, elsewhere, of), set[int]()
    parts: dict[int, Any] = {}
    small: dict[int, Array] = {}
    with gpu.task(given, powers) as (slot, on):
        for n, step in enumerate(given.body.steps):
            for table in step.operands:
                if table not in there:
                    _load(gpu, slot, given, table, states, slices)
            there.update((*step.operands, step.out))
            on.launch(n, slot, leads=not powers)
            at, entries = slot.at + given.places[step.out], step.what.kept_entries
            if step.out in given.leaving:
                parts[step.out] = gpu.keep(slot, at, entries)
            elif step.out in given.small:
                small[step.out] = np.empty(entries, gpu.dtype)
                gpu.copy(slot.stream, small[step.out], _lying_at(at, entries, gpu.dtype))
        slot.stream.synchronize()
        record = on.record(powers)
    record.small.update(small)
    return Made(parts, record)


def _load(
    gpu: WorkerGpu, slot: Slot, given: Given, table: int, states: Mapping[int, int], slices: Mapping[int, Slices]
) -> None:
    """Enqueue the way of what agrees with `states` of a table into its place in a slot."""
    leaf = given.leaves.get(table)
    parts = [leaf.part(states)] if leaf else [each for _, each in slices[table]]
    shape, places = (parts[0].shape, [()]) if leaf else laid_out(slices[table], states)
    whole = _lying_at(slot.at + given.places[table], math.prod(shape), gpu.dtype).reshape(shape)
    for place, part in zip(places, parts, strict=True):
        if not isinstance(part, _Lying) and part.shape[-1] * part.itemsize < RUN_BYTES:
            part = np.ascontiguousarray(part)
        slot.held.append(part)
        gpu.copy(slot.stream, whole[place], part)


def worker_gpu(on: OnGpu) -> WorkerGpu:
    """Return the device of this process as tasks of a plan find it, opened by the first of them.

    Raises DeviceError where another run has its parts there.
    """
    global _opened
    with _opening:
        if _opened is None or _opened[0] != on:
            if _opened is not None and not _opened[1].is_empty(PATIENCE):
                raise DeviceError("the GPU of a worker holds tables of another run: let that one end first")
            _opened = None
            _opened = on, WorkerGpu(on, open_device(on.room))
        return _opened[1]


def room_of_worker(room: int | None) -> int:
    """Return the bytes of the GPU that tasks in this process may take, of `room` allowed; raises DeviceError."""
    return int(open_device(room).room)


@lru_cache(maxsize=1)
def open_device(room: int | None) -> CudaDevice:
    """Return the first GPU that this process sees, with at most `room` bytes; raises DeviceError.

    What earlier partitions left there is given back: rows in chunks need all of it.
    """
    from junctor import devices, partition

    partition.engine_for.cache_clear()
    devices.open_gpu.cache_clear()
    return devices.open_one(0, room)


def copies(target: Array, source: Array) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yield the fewest copies of rows between two arrays of one shape whose last axes are contiguous.

    Each is where rows begin, in bytes, and how far apart they are, in the target and in the source; their width in
    bytes, and their number.
    """
    axes = [(1, target.itemsize, source.itemsize)]
    for size, one, other in reversed(list(zip(target.shape, target.strides, source.strides, strict=True))):
        faster, *strides = axes[-1]
        if size > 1 and (one, other) == (faster * strides[0], faster * strides[1]):
            axes[-1] = (faster * size, *strides)
        elif size > 1:
            axes.append((size, one, other))
    width = axes[0][0] * target.itemsize
    rows, *pitches = axes[1] if len(axes) > 1 else (1, width, width)
    outer = axes[2:]
    if max(pitches) > MOST_PITCH:
        rows, outer = 1, axes[1:]
    for index in itertools.product(*(range(size) for size, _, _ in outer)):
        to, of = (sum(n * each[k] for n, each in zip(index, outer, strict=True)) for k in (1, 2))
        yield target.ctypes.data + to, pitches[0], source.ctypes.data + of, pitches[1], width, rows


class _Lying(np.ndarray[Any, Any]):
    """An array whose address is on the device."""


def _lying_at(address: int, entries: int, dtype: np.dtype[Any]) -> Any:
    memory: Any = (ctypes.c_char * (entries * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype).view(_Lying)


def made_by_sum(given: Given, *parts: Any) -> Made:
    """Add up what tasks made of the last table of a pass, in their order, as `chunk_tasks.made_by_sum` does."""
    assert given.gpu is not None
    gpu, last = worker_gpu(given.gpu), given.body.steps[-1]
    entries = last.what.kept_entries
    with gpu.task(given, {}) as (slot, on):
        for n, part in enumerate(parts):
            lies = part.lies if isinstance(part, DevicePart) else gpu.pinned(entries)
            if not isinstance(part, DevicePart):
                lies[...] = part
                slot.held.append(lies)
            if n == 0:
                gpu.copy(slot.stream, _lying_at(slot.at, entries, gpu.dtype), lies)
            else:
                on.add(slot, lies.ctypes.data)
        total = gpu.keep(slot, slot.at, entries)
        slot.stream.synchronize()
        # What is smallest was found in the parts: of a sum the terms tell what is lost.
        record = Record({last.out: (on.largest_sum(), np.inf)}, {}, {})
    return Made({last.out: total}, record)
