"""Tasks of a cut plan on a GPU: parts of tables come in, are contracted and go out, on several streams at once.

A host thread does one group of tasks after the other in a *slot*, a piece of device memory with a stream of its own.
While one slot computes, another one brings its parts in and a third one takes its results out (Bistaffa et al. 2016,
figures 8 and 9; their `max_s` is the number of slots). Stored tables lie in pinned memory, which the device reaches
without a copy in between.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from junctor_kernels import entries_gpu
from junctor_kernels.axes import Contraction
from junctor_kernels.entries_gpu import Launch, launches_of, record

from junctor.machine import usable_cores
from junctor.planning.chunks import ChunkPlan, Pass, configurations, part
from junctor.threads import in_threads

if TYPE_CHECKING:
    from junctor_kernels.gpu import CudaDevice

    from junctor.chunk_store import ChunkStore
    from junctor.chunk_tasks import Step

Array = npt.NDArray[Any]

# Groups of tasks under way at once.
SLOTS = 3
# Parts begin at multiples of so many bytes.
ALIGNED = 256
# Tables from this size on lie in pinned memory, and runs of bytes from this size on are copied one by one.
PINNED_BYTES, RUN_BYTES = 1 << 20, 1 << 16
# Results of the tasks of a pass are added up on the host where all of them take no more bytes.
SPREAD_BYTES = 1 << 26
# For all devices (cudaHostRegisterPortable).
PORTABLE = 1
# Bytes that a thread touches at a time.
TOUCHED_BYTES = 1 << 28
# What offsets of launches may take beside the slots.
OFFSET_BYTES = 1 << 26


def slot_bytes(chunks: ChunkPlan, itemsize: int) -> int:
    """Return the bytes that a slot takes: the parts of the task with most, and the sums of terms kept at first."""
    most = max((_places(chunks, each, itemsize)[1] for each in chunks.passes), default=0)
    return most + 2 * entries_gpu.PARTIAL_ENTRIES * itemsize


def _places(chunks: ChunkPlan, each: Pass, itemsize: int) -> tuple[dict[int, int], int]:
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
    """Return where every large stored table begins in pinned memory, and the bytes in all."""
    sizes = {table: chunks.plan.tables[table].entries * itemsize for table in chunks.lifetimes()}
    results = {*chunks.plan.totals, *(table for _, table in chunks.plan.marginals)}
    lives = {
        table: (life[0], len(chunks.passes) if table in results else life[1])
        for table, life in chunks.lifetimes().items()
        if life[0] >= 0 and table not in chunks.on_disk and sizes[table] >= PINNED_BYTES
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
        start = 0
        for begin, end in sorted(alive.values()):
            if begin - start >= size:
                break
            start = max(start, end)
        places[table] = start
        alive[table] = (start, start + size)
        most = max(most, start + size)
    return places, most


@dataclass(eq=False, slots=True)
class _Slot:
    """Memory and stream of a group of tasks under way on a device.

    loaded, stored: bytes that came in and went out. held: host arrays that copies under way need. late: what goes where
    once copies are done.
    """

    on: _OneGpu
    at: int
    partial: int
    stream: Any
    noted: Any
    loaded: int = 0
    stored: int = 0
    held: list[Array] = field(default_factory=list)
    late: list[tuple[Array, Array]] = field(default_factory=list)


class _OneGpu:
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
        partial = slot - 2 * entries_gpu.PARTIAL_ENTRIES * np.dtype(self.words).itemsize
        with cupy.cuda.Device(self.number):
            self._memory = device.place(0, (slot * count,), np.uint8)
            starts = [int(self._memory.data.ptr) + n * slot for n in range(count)]
            self.slots = [
                _Slot(self, at, at + partial, cupy.cuda.Stream(non_blocking=True), cupy.zeros(2, dtype=self.words))
                for at in starts
            ]

    def prepared(self, what: Contraction) -> tuple[tuple[Launch, ...], list[list[tuple[int, ...]]]]:
        """Return the launches of a contraction, and for each where the offsets of its operands lie on the device."""
        if what not in self._prepared:
            launches = launches_of(what)
            places: list[list[tuple[int, ...]]] = []
            for launch in launches:
                arrays = [tuple(map(self.cupy.asarray, (o.panels, o.places, o.far, o.near))) for o in launch.offsets]
                self._offsets.append(arrays)
                places.append([tuple(int(array.data.ptr) for array in each) for each in arrays])
            self._prepared[what] = (launches, places)
        return self._prepared[what]

    def make_room(self) -> None:
        """Forget offsets where they take too much; between passes, because launches under way need theirs."""
        if sum(array.nbytes for arrays in self._offsets for each in arrays for array in each) > OFFSET_BYTES // 2:
            self._prepared.clear()
            self._offsets.clear()

    def kernel(self, name: str) -> Any:
        """Return a kernel, compiled when first needed."""
        return _module(self.number, self.algebra).get_function(name)


class ChunkGpu:
    """GPUs of one machine for the tasks of a cut plan in single or double precision.

    Tasks have the room that all work on a device shares. Stored tables lie in pinned memory that all devices reach.
    Raises MemoryError where not even one slot fits.
    """

    def __init__(self, chunks: ChunkPlan, algebra: str, *devices: CudaDevice) -> None:
        self.algebra, self.chunks = algebra, chunks
        self.dtype = np.dtype(np.float64 if algebra == "double" else np.float32)
        slot = slot_bytes(chunks, self.dtype.itemsize)
        self.each = [_OneGpu(algebra, device, slot) for device in devices]
        # In turns, so that few groups are spread over all devices.
        turns = itertools.zip_longest(*(one.slots for one in self.each))
        self.slots: list[_Slot] = [slot for turn in turns for slot in turn if slot is not None]
        self._pinned, size = _pinned_places(chunks, self.dtype.itemsize)
        self._host = pinned(size)

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
        """Return the array of the host for a stored table, pinned where it is large; not cleared."""
        if table not in self._pinned:
            return np.empty(entries, self.dtype)
        start = self._pinned[table]
        return self._host[start : start + entries * self.dtype.itemsize].view(self.dtype)


def pinned(size: int) -> Array:
    """Return bytes of the host that the device reaches by itself, not cleared.

    Pages are touched by several threads before they are pinned, huge ones where the system has them: that takes a
    fraction of the time that pinning untouched memory does.
    """
    import mmap

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
    import weakref

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


class GpuWork:
    """The tasks of one pass on a GPU; the same methods as the work of a pass on the CPU."""

    first_alone = False

    def __init__(
        self, gpu: ChunkGpu, each: Pass, tasks: Sequence[Step], store: ChunkStore, shifts: Mapping[int, int]
    ) -> None:
        self.gpu, self.each, self.tasks, self.store, self.shifts = gpu, each, tasks, store, shifts
        self.powers: dict[int, float] = {}
        self._settled, self._failed, self._leads = threading.Condition(), False, 0
        self._places, _ = _places(gpu.chunks, each, gpu.dtype.itemsize)
        self._sizes = gpu.chunks.plan.shape.cardinalities
        # Small results of tasks that are added up come to the host, so that such tasks need not wait for each other.
        size = part(gpu.chunks.plan, each.out, each.fixed) * gpu.dtype.itemsize
        self._spreads = bool(each.summed) and size * gpu.chunks.plan.shape.entries(each.fixed) <= SPREAD_BYTES
        self.outer = [v for v in each.fixed if self._spreads or v not in each.summed]
        self._terms: dict[tuple[int, ...], Array] = {}
        self._largest = 0.0
        # What is known on each device: launches, and the extremes that they find.
        self._launches: dict[_OneGpu, Any] = {}
        self._extremes: dict[_OneGpu, Any] = {}
        for one in gpu.each:
            one.make_room()
            with one.cupy.cuda.Device(one.number):
                self._extremes[one] = one.cupy.zeros((len(tasks), 2), dtype=one.words)
                self._launches[one] = [one.prepared(task.what) for task in tasks]
                one.cupy.cuda.runtime.deviceSynchronize()

    def group(self, states: dict[int, int], place: int = 0) -> None:
        """Do the tasks whose results are added up, in a slot.

        The group of the first configuration settles powers; the others follow it step by step.
        """
        if not any(states.values()):
            self._leads = threading.get_ident()
        try:
            self._group(self.gpu.slots[place], states)
        except BaseException:
            with self._settled:
                self._failed = True
                self._settled.notify_all()
            raise

    def _group(self, slot: _Slot, states: dict[int, int]) -> None:
        with slot.on.cupy.cuda.Device(slot.on.number), slot.stream:
            inner = [v for v in self.each.fixed if v not in self.outer]
            for n, values in enumerate(configurations([self._sizes[v] for v in inner])):
                self._task(slot, states | dict(zip(inner, values, strict=True)), adds=n > 0)
            if self._spreads:
                self._take_term(slot, states)
            elif self.each.out in self.each.stores:
                self._save(slot, self.each.out, states)
            slot.stream.synchronize()
        for source, target in slot.late:
            target[...] = source.reshape(target.shape)
        slot.late.clear()
        slot.held.clear()

    def _take_term(self, slot: _Slot, states: Mapping[int, int]) -> None:
        term = np.empty(part(self.gpu.chunks.plan, self.each.out, self.each.fixed), self.gpu.dtype)
        slot.stored += term.nbytes
        self._terms[tuple(states[v] for v in self.each.fixed)] = term
        self._copy(slot, term, slot.at + self._places[self.each.out], to_device=False)

    def finish(self) -> None:
        """Add up the results that came to the host, in the order of their configurations."""
        totals: dict[tuple[int, ...], Array] = {}
        kept = len(self.each.fixed) - len(self.each.summed)
        for states, term in sorted(self._terms.items(), key=lambda each: each[0]):
            if states[:kept] in totals:
                totals[states[:kept]] += term
            else:
                totals[states[:kept]] = term
        for states, total in totals.items():
            self._largest = max(self._largest, float(total.max()))
            if self.each.out in self.each.stores:
                target = self.store.part(self.each.out, dict(zip(self.each.fixed, states, strict=False)))
                target[...] = total.reshape(target.shape)
        self._terms.clear()

    def extremes(self) -> dict[int, tuple[float, float]]:
        """Return the extremes of all that was made."""
        all_words = [extremes.get() for extremes in self._extremes.values()]
        # Both are raised only: the smallest as its complement.
        found = np.maximum.reduce(all_words)
        floats = found.dtype.str.replace("u", "f")
        largest, least = found[:, 0].copy().view(floats), (~found[:, 1]).view(floats)
        # What is not a number counts as beyond the format.
        largest = np.where(np.isnan(largest), np.inf, largest)
        largest[-1] = max(largest[-1], self._largest)
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
            self._reduce(slot, n, self._settled_power(slot, n), adds and is_last, self._extremes[slot.on][n])
            if out in self.each.stores and not is_last:
                self._save(slot, out, states)

    def _settled_power(self, slot: _Slot, n: int) -> float:
        """Return the power of two for a result, found here or by the group that leads."""
        out = self.tasks[n].out
        leads = self._leads == threading.get_ident()
        if leads and out not in self.powers:
            power = self._power(slot, n)
            with self._settled:
                self.powers[out] = power
                self._settled.notify_all()
        elif out not in self.powers:
            with self._settled:
                self._settled.wait_for(lambda: out in self.powers or self._failed)
            if self._failed:
                raise RuntimeError("another task of the pass failed")
        return self.powers[out]

    def _power(self, slot: _Slot, n: int) -> float:
        """Return the power of two that brings the largest entry at the beginning of a result into [0.5, 1)."""
        largest = 0.0
        for sample in (True, False):
            if largest == 0:
                slot.noted.fill(0)
                self._reduce(slot, n, 1.0, False, slot.noted, sample)
                bits = slot.noted.get(stream=slot.stream)[:1]
                largest = float(bits.view(bits.dtype.str.replace("u", "f"))[0])
        exponent = math.frexp(largest)[1] if math.isfinite(largest) else 0
        least: int = np.finfo(self.gpu.dtype.type).minexp
        return float(2.0 ** -max(exponent, least))

    def _reduce(self, slot: _Slot, n: int, power: float, adds: bool, extremes: Any, sample: bool = False) -> None:
        (launches, places), task = self._launches[slot.on][n], self.tasks[n]
        tables = [slot.at + self._places[table] for table in task.operands]
        shifts = [2.0 ** self.shifts.get(table, 0) for table in task.operands]
        # Sums of terms are made in turns in either half of the room for them.
        half = entries_gpu.PARTIAL_ENTRIES * self.gpu.dtype.itemsize
        for m, launch in enumerate(launches):
            ends = m == len(launches) - 1
            if sample and len(launches) == 1 and launch.over_entries:
                launch = launch.beginning()
            out = slot.at + self._places[task.out] if ends else slot.partial + (m % 2) * half
            operands = [
                (table, *offsets, entries_gpu.bits_of(shift))
                for table, offsets, shift in zip(tables, places[m], shifts, strict=True)
            ]
            noted = int(extremes.data.ptr) if ends else 0
            words = record(launch, out, noted, power if ends else 1.0, adds and ends, operands)
            slot.on.kernel(launch.name)((launch.blocks,), (entries_gpu.THREADS,), (words.view(f"V{words.nbytes}"),))
            tables, shifts = [out], [1.0]

    def _load(self, slot: _Slot, table: int, states: Mapping[int, int]) -> None:
        part_ = self.store.part(table, states)
        slot.loaded += part_.nbytes
        if not _large_runs(part_):
            part_ = np.ascontiguousarray(part_)
            slot.held.append(part_)
        self._copy(slot, part_, slot.at + self._places[table], to_device=True)

    def _save(self, slot: _Slot, table: int, states: Mapping[int, int]) -> None:
        part_ = self.store.part(table, states)
        slot.stored += part_.nbytes
        target = part_
        if not _large_runs(part_):
            target = np.empty(part_.shape, part_.dtype)
            slot.late.append((target, part_))
        self._copy(slot, target, slot.at + self._places[table], to_device=False)

    def _copy(self, slot: _Slot, host: Array, device: int, to_device: bool) -> None:
        """Enqueue the copies of an array whose last axis is contiguous, rows of equal distance at once."""
        runtime = slot.on.cupy.cuda.runtime
        kind = runtime.memcpyHostToDevice if to_device else runtime.memcpyDeviceToHost
        if host.flags.c_contiguous:
            ends = (device, host.ctypes.data) if to_device else (host.ctypes.data, device)
            runtime.memcpyAsync(*ends, host.nbytes, kind, slot.stream.ptr)
            return
        *outer, rows, _ = host.shape
        width = host.shape[-1] * host.itemsize
        for index in itertools.product(*map(range, outer)):
            block = host[index]
            here, there = (block.ctypes.data, block.strides[0]), (device, width)
            target, source = (there, here) if to_device else (here, there)
            runtime.memcpy2DAsync(*target, *source, width, rows, kind, slot.stream.ptr)
            device += width * rows


def _large_runs(host: Array) -> bool:
    """Tell whether an array is best copied from where it is."""
    if host.flags.c_contiguous:
        return True
    return host.shape[-1] * host.itemsize >= RUN_BYTES and host.strides[-1] == host.itemsize
