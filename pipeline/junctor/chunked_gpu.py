"""Tasks of a cut plan on a GPU: parts of tables come in, are contracted and go out, on several streams at once.

A host thread does one group of tasks after the other in a slot. While one slot computes, another one brings its parts
in and a third one takes its results out (Bistaffa et al., figures 8 and 9; their `max_s` is the number of slots).
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from junctor_kernels import entries_gpu
from junctor_kernels.entries_gpu import record

from junctor.chunk_slots import ChunkGpu, OneGpu, Slot, task_places
from junctor.planning.chunks import Pass, configurations, part

if TYPE_CHECKING:
    from junctor.chunk_store import ChunkStore
    from junctor.chunk_tasks import Step

Array = npt.NDArray[Any]

# Runs of bytes from this size on are copied one by one, from where they are.
RUN_BYTES = 1 << 16
# Results of the tasks of a pass are added up on the host where all of them take no more bytes.
SPREAD_BYTES = 1 << 26


class GpuWork:
    """The tasks of one pass on a GPU; the same methods as the work of a pass on the CPU."""

    first_alone = False

    def __init__(
        self, gpu: ChunkGpu, each: Pass, tasks: Sequence[Step], store: ChunkStore, shifts: Mapping[int, int]
    ) -> None:
        self.gpu, self.each, self.tasks, self.store, self.shifts = gpu, each, tasks, store, shifts
        self.powers: dict[int, float] = {}
        self._settled, self._failed, self._leads = threading.Condition(), False, 0
        self._places, _ = task_places(gpu.chunks, each, gpu.dtype.itemsize)
        self._sizes = gpu.chunks.plan.shape.cardinalities
        # Small results of tasks that are added up come to the host, so that such tasks need not wait for each other.
        size = part(gpu.chunks.plan, each.out, each.fixed) * gpu.dtype.itemsize
        self._spreads = bool(each.summed) and size * gpu.chunks.plan.shape.entries(each.fixed) <= SPREAD_BYTES
        self.outer = [v for v in each.fixed if self._spreads or v not in each.summed]
        self._terms: dict[tuple[int, ...], Array] = {}
        self._largest = 0.0
        # What is known on each device: launches, and the extremes that they find.
        self._launches: dict[OneGpu, Any] = {}
        self._extremes: dict[OneGpu, Any] = {}
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

    def _group(self, slot: Slot, states: dict[int, int]) -> None:
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

    def _take_term(self, slot: Slot, states: Mapping[int, int]) -> None:
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

    def _task(self, slot: Slot, states: Mapping[int, int], adds: bool) -> None:
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

    def _settled_power(self, slot: Slot, n: int) -> float:
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

    def _power(self, slot: Slot, n: int) -> float:
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

    def _reduce(self, slot: Slot, n: int, power: float, adds: bool, extremes: Any, sample: bool = False) -> None:
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

    def _load(self, slot: Slot, table: int, states: Mapping[int, int]) -> None:
        part_ = self.store.part(table, states)
        slot.loaded += part_.nbytes
        if not _large_runs(part_):
            part_ = np.ascontiguousarray(part_)
            slot.held.append(part_)
        self._copy(slot, part_, slot.at + self._places[table], to_device=True)

    def _save(self, slot: Slot, table: int, states: Mapping[int, int]) -> None:
        part_ = self.store.part(table, states)
        slot.stored += part_.nbytes
        target = part_
        if not _large_runs(part_):
            target = np.empty(part_.shape, part_.dtype)
            slot.late.append((target, part_))
        self._copy(slot, target, slot.at + self._places[table], to_device=False)

    def _copy(self, slot: Slot, host: Array, device: int, to_device: bool) -> None:
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
