"""Tasks of a cut plan on a GPU: parts of tables come in, are contracted and go out, on several streams at once.

A host thread does one group of tasks after the other in a *slot*, a piece of device memory with a stream of its own.
While one slot computes, another one brings its parts in and a third one takes its results out (Bistaffa et al. 2016,
figures 8 and 9; their `max_s` is the number of slots). Stored tables lie in pinned memory, which the device reaches
without a copy in between.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from junctor_kernels import entries_gpu
from junctor_kernels.entries_gpu import launches_of, record

from junctor.planning.chunks import ChunkPlan, Pass, configurations, part

if TYPE_CHECKING:
    from junctor.chunk_store import ChunkStore
    from junctor.chunk_tasks import Step

Array = npt.NDArray[Any]

# Groups of tasks under way at once.
SLOTS = 3
# Parts begin at multiples of so many bytes.
ALIGNED = 256
# Tables from this size on lie in pinned memory, and runs of bytes from this size on are copied one by one.
PINNED_BYTES, RUN_BYTES = 1 << 20, 1 << 16
# What offsets of launches may take beside the slots.
OFFSET_BYTES = 1 << 26


def slot_bytes(chunks: ChunkPlan, itemsize: int) -> int:
    """Return the bytes that a slot takes: the parts of the task with most, and the sums of terms kept at first."""
    most = max((_places(chunks, each, itemsize)[1] for each in chunks.passes), default=0)
    return most + 2 * entries_gpu.PARTIAL_ENTRIES * itemsize


def _places(chunks: ChunkPlan, each: Pass, itemsize: int) -> tuple[dict[int, int], int]:
    """Return where the part of every table of a pass begins in a slot, and the bytes in all; first fit."""
    last = {table: n for n, step in enumerate(each.steps) for table in (*step.operands, step.out)}
    # What tasks of a group add to stays until the last of them.
    last[each.out] = len(each.steps)
    alive: dict[int, tuple[int, int]] = {}
    places: dict[int, int] = {}
    most = 0
    for n, step in enumerate(each.steps):
        for table in (*step.operands, step.out):
            if table not in places:
                size = -(-part(chunks.plan, table, each.fixed) * itemsize // ALIGNED) * ALIGNED
                places[table] = _first_gap(sorted(alive.values()), size)
                alive[table] = (places[table], places[table] + size)
                most = max(most, places[table] + size)
        for table in [table for table in alive if last[table] == n]:
            del alive[table]
    return places, most


def _first_gap(alive: Sequence[tuple[int, int]], size: int) -> int:
    start = 0
    for begin, end in alive:
        if begin - start >= size:
            return start
        start = max(start, end)
    return start


@dataclass(eq=False)
class Traffic:
    """What was moved and done: bytes in either direction, copies, and launches."""

    loaded: int = 0
    stored: int = 0
    copies: int = 0
    launches: int = 0


@dataclass(eq=False, slots=True)
class _Slot:
    """Memory and stream of a group of tasks under way; `held`: host arrays that copies under way need."""

    at: int
    partial: int
    stream: Any
    noted: Any
    held: list[Array] = field(default_factory=list)
    late: list[tuple[Array, Array]] = field(default_factory=list)


class ChunkGpu:
    """A GPU for the tasks of a cut plan in single or double precision.

    number: of the device. room: bytes of it that slots and offsets may take. Raises MemoryError where not even one
    slot fits.
    """

    def __init__(self, chunks: ChunkPlan, algebra: str, room: int, number: int = 0) -> None:
        import cupy

        self.cupy, self.number, self.algebra, self.chunks = cupy, number, algebra, chunks
        self.dtype = np.dtype(np.float64 if algebra == "double" else np.float32)
        each = slot_bytes(chunks, self.dtype.itemsize)
        count = min(SLOTS, (room - OFFSET_BYTES) // each)
        if count < 1:
            raise MemoryError(f"a task takes {each + OFFSET_BYTES:,} bytes of the GPU, {room:,} are allowed")
        self.traffic = Traffic()
        self._offsets: dict[tuple[bytes, bytes], Any] = {}
        with cupy.cuda.Device(number):
            self._memory = cupy.cuda.alloc(each * count)
            self.slots = [self._slot(n * each, each) for n in range(count)]
        self._spare: dict[int, list[Array]] = {}
        self._pinned, self._most_pinned = 0, chunks.peak(on_disk=False) * self.dtype.itemsize

    def _slot(self, start: int, size: int) -> _Slot:
        at = int(self._memory.ptr) + start
        partial = at + size - 2 * entries_gpu.PARTIAL_ENTRIES * self.dtype.itemsize
        words = np.uint64 if self.algebra == "double" else np.uint32
        return _Slot(at, partial, self.cupy.cuda.Stream(non_blocking=True), self.cupy.zeros(2, dtype=words))

    def allocate(self, entries: int) -> Array:
        """Return an array of the host for a stored table, pinned where it is large; not cleared."""
        size = entries * self.dtype.itemsize
        if size < PINNED_BYTES:
            return np.empty(entries, self.dtype)
        if self._spare.get(size):
            return self._spare[size].pop()
        # What was kept for other sizes goes before the plan's memory is exceeded.
        if self._pinned + size > self._most_pinned:
            self._pinned -= sum(len(arrays) * each for each, arrays in self._spare.items())
            self._spare.clear()
        self._pinned += size
        with self.cupy.cuda.Device(self.number):
            memory = self.cupy.cuda.PinnedMemoryPointer(self.cupy.cuda.PinnedMemory(size), 0)
        return np.ndarray((entries,), self.dtype, memory)

    def give_back(self, array: Array) -> None:
        """Keep the memory of a stored table for the next one of its size: pinning takes longer than filling it."""
        if array.nbytes >= PINNED_BYTES and not isinstance(array, np.memmap):
            self._spare.setdefault(array.nbytes, []).append(array)

    def put(self, offsets: Array) -> int:
        """Return where offsets lie on the device; equal ones lie there once."""
        key = (offsets.dtype.str.encode(), offsets.tobytes())
        if key not in self._offsets:
            with self.cupy.cuda.Device(self.number):
                self._offsets[key] = self.cupy.asarray(offsets)
        return int(self._offsets[key].data.ptr)

    def kernel(self, name: str) -> Any:
        """Return a kernel, compiled when first needed."""
        return _module(self.number, self.algebra).get_function(name)


@cache
def _module(number: int, algebra: str) -> Any:
    import cupy

    with cupy.cuda.Device(number):
        return cupy.RawModule(code=entries_gpu.source(algebra), options=("-std=c++17",))


class GpuWork:
    """The tasks of one pass on a GPU; the same methods as the work of a pass on the CPU."""

    def __init__(
        self, gpu: ChunkGpu, each: Pass, tasks: Sequence[Step], store: ChunkStore, shifts: Mapping[int, int]
    ) -> None:
        self.gpu, self.each, self.tasks, self.store, self.shifts = gpu, each, tasks, store, shifts
        self.powers: dict[int, float] = {}
        self._places, _ = _places(gpu.chunks, each, gpu.dtype.itemsize)
        self._sizes = gpu.chunks.plan.shape.cardinalities
        self._launches = [launches_of(task.what) for task in tasks]
        self._offsets = {
            (n, m): [tuple(map(gpu.put, (o.panels, o.places, o.far, o.near))) for o in launch.offsets]
            for n, launches in enumerate(self._launches)
            for m, launch in enumerate(launches)
        }
        words = np.uint64 if gpu.algebra == "double" else np.uint32
        with gpu.cupy.cuda.Device(gpu.number):
            self._extremes = gpu.cupy.zeros((len(tasks), 2), dtype=words)
            gpu.cupy.cuda.runtime.deviceSynchronize()

    def group(self, states: dict[int, int], place: int = 0) -> None:
        """Do the tasks whose results are added up, in a slot."""
        slot = self.gpu.slots[place]
        with self.gpu.cupy.cuda.Device(self.gpu.number), slot.stream:
            for n, values in enumerate(configurations([self._sizes[v] for v in self.each.summed])):
                here = states | dict(zip(self.each.summed, values, strict=True))
                self._task(slot, here, adds=n > 0)
            if self.each.out in self.each.stores:
                self._save(slot, self.each.out, states)
            slot.stream.synchronize()
        for source, target in slot.late:
            target[...] = source.reshape(target.shape)
        slot.late.clear()
        slot.held.clear()

    def extremes(self) -> dict[int, tuple[float, float]]:
        """Return the extremes of all that was made so far."""
        found = self._extremes.get()
        floats = found.dtype.type(0).dtype.str.replace("u", "f")
        largest = found[:, 0].copy().view(floats)
        least = (~found[:, 1]).view(floats)
        return {
            task.out: (float(largest[n]), float(least[n]) if found[n, 1] else 1.0) for n, task in enumerate(self.tasks)
        }

    def _task(self, slot: _Slot, states: Mapping[int, int], adds: bool) -> None:
        there: set[int] = set()
        for n, task in enumerate(self.tasks):
            for table in task.operands:
                if table not in there:
                    self._load(slot, table, states)
                    there.add(table)
            out = task.out
            there.add(out)
            is_last = out == self.each.out
            if out not in self.powers:
                self.powers[out] = self._power(slot, n)
            self._reduce(slot, n, self.powers[out], adds and is_last, self._extremes[n])
            if out in self.each.stores and not is_last:
                self._save(slot, out, states)

    def _power(self, slot: _Slot, n: int) -> float:
        """Return the power of two that brings the largest entry of the first task's result into [0.5, 1)."""
        slot.noted.fill(0)
        # Somewhere else than the result, if that is being added to: the first task never is.
        self._reduce(slot, n, 1.0, False, slot.noted)
        bits = slot.noted.get(stream=slot.stream)[:1]
        largest = float(bits.view(bits.dtype.str.replace("u", "f"))[0])
        exponent = math.frexp(largest)[1] if math.isfinite(largest) else 0
        least: int = np.finfo(self.gpu.dtype.type).minexp
        return float(2.0 ** -max(exponent, least))

    def _reduce(self, slot: _Slot, n: int, power: float, adds: bool, extremes: Any) -> None:
        launches, task = self._launches[n], self.tasks[n]
        tables = [slot.at + self._places[table] for table in task.operands]
        shifts = [2.0 ** self.shifts.get(table, 0) for table in task.operands]
        # Sums of terms are made in turns in either half of the room for them.
        half = entries_gpu.PARTIAL_ENTRIES * self.gpu.dtype.itemsize
        for m, launch in enumerate(launches):
            ends = m == len(launches) - 1
            out = slot.at + self._places[task.out] if ends else slot.partial + (m % 2) * half
            operands = [
                (table, *offsets, entries_gpu.bits_of(shift))
                for table, offsets, shift in zip(tables, self._offsets[n, m], shifts, strict=True)
            ]
            noted = int(extremes.data.ptr) if ends else 0
            words = record(launch, out, noted, power if ends else 1.0, adds and ends, operands)
            self.gpu.kernel(launch.name)((launch.blocks,), (entries_gpu.THREADS,), (words,))
            self.gpu.traffic.launches += 1
            tables, shifts = [out], [1.0]

    def _load(self, slot: _Slot, table: int, states: Mapping[int, int]) -> None:
        part_ = self.store.part(table, states)
        self.gpu.traffic.loaded += part_.nbytes
        if not _large_runs(part_):
            part_ = np.ascontiguousarray(part_)
            slot.held.append(part_)
        self._copy(slot, part_, slot.at + self._places[table], to_device=True)

    def _save(self, slot: _Slot, table: int, states: Mapping[int, int]) -> None:
        part_ = self.store.part(table, states)
        self.gpu.traffic.stored += part_.nbytes
        target = part_
        if not _large_runs(part_):
            target = np.empty(part_.shape, part_.dtype)
            slot.late.append((target, part_))
        self._copy(slot, target, slot.at + self._places[table], to_device=False)

    def _copy(self, slot: _Slot, host: Array, device: int, to_device: bool) -> None:
        """Enqueue the copies of an array whose last axis is contiguous, rows of equal distance at once."""
        runtime = self.gpu.cupy.cuda.runtime
        kind = runtime.memcpyHostToDevice if to_device else runtime.memcpyDeviceToHost
        if host.flags.c_contiguous:
            ends = (device, host.ctypes.data) if to_device else (host.ctypes.data, device)
            runtime.memcpyAsync(*ends, host.nbytes, kind, slot.stream.ptr)
            self.gpu.traffic.copies += 1
            return
        *outer, rows, _ = host.shape
        width = host.shape[-1] * host.itemsize
        for index in itertools.product(*map(range, outer)):
            block = host[index]
            here, there = (block.ctypes.data, block.strides[0]), (device, width)
            target, source = (there, here) if to_device else (here, there)
            runtime.memcpy2DAsync(*target, *source, width, rows, kind, slot.stream.ptr)
            self.gpu.traffic.copies += 1
            device += width * rows


def _large_runs(host: Array) -> bool:
    """Tell whether an array is best copied from where it is."""
    if host.flags.c_contiguous:
        return True
    return host.shape[-1] * host.itemsize >= RUN_BYTES and host.strides[-1] == host.itemsize
