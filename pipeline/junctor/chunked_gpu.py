"""Tasks of a cut plan on a GPU: parts of tables come in, are contracted and go out, on several streams at once.

A host thread does one group of tasks after the other in a slot. While one slot computes, another one brings its parts
in and a third one takes its results out (Bistaffa et al., figures 8 and 9; their `max_s` is the number of slots).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from junctor_kernels import entries_gpu
from junctor_kernels.entries_gpu import bits_of, moved, record, relayed, shift_of

from junctor.chunk_places import spreads, task_places
from junctor.chunk_slots import ChunkGpu, OneGpu, Slot
from junctor.planning.chunks import Pass, configurations, part

if TYPE_CHECKING:
    from junctor.chunk_store import ChunkStore
    from junctor.chunk_tasks import Step

Array = npt.NDArray[Any]

# Runs of bytes from this size on are copied one by one, from where they are.
RUN_BYTES = 1 << 16


@dataclass(frozen=True, eq=False, slots=True)
class _Call:
    """A launch of a step, with places in a slot for addresses; ends: whether it makes the result of the step."""

    kernel: Any
    blocks: int
    words: Array
    ends: bool


class _OnDevice:
    """The launches of a pass on a device, and what they find.

    words: of the first task and of all others [2, steps, 2], bits of the largest entry and the complement of those of
    the smallest; both are only raised.
    """

    def __init__(
        self, one: OneGpu, tasks: Sequence[Step], places: Mapping[int, int], shifts: Mapping[int, int]
    ) -> None:
        self.one, self._places, self._shifts = one, places, shifts
        self._made = {task.out: n for n, task in enumerate(tasks)}
        with one.cupy.cuda.Device(one.number):
            one.make_room()
            self.words = one.cupy.zeros((2, len(tasks), 2), dtype=one.words)
            self.calls = [self._calls(task) for task in tasks]
            one.cupy.cuda.runtime.deviceSynchronize()

    def word(self, leads: bool, n: int) -> int:
        """Return the address of the words of a step."""
        steps = self.words.shape[1]
        return int(self.words.data.ptr) + ((0 if leads else steps) + n) * 2 * int(self.words.itemsize)

    def _calls(self, task: Step) -> list[_Call]:
        launches, offsets = self.one.prepared(task.what)
        # Sums of terms are made in turns in either half of the room for them.
        half = entries_gpu.PARTIAL_ENTRIES * int(self.words.itemsize)
        tables = [self._places[table] for table in task.operands]
        scales = [(bits_of(2.0 ** self._shifts.get(t, 0)), self._lead(t)) for t in task.operands]
        calls = []
        for m, launch in enumerate(launches):
            ends = m == len(launches) - 1
            out = self._places[task.out] if ends else self.one.partial + (m % 2) * half
            each = zip(tables, offsets[m], scales, strict=True)
            words = record(launch, out, 0, False, [(table, *lies, *scale) for table, lies, scale in each])
            calls.append(_Call(self.one.kernel(launch.name), launch.blocks, words, ends))
            tables, scales = [out], [(bits_of(1.0), 0)]
        return calls

    def _lead(self, table: int) -> int:
        return self.word(True, self._made[table]) if table in self._made else 0


class GpuWork:
    """The tasks of one pass on a GPU; the same methods as the work of a pass on the CPU.

    Results are stored as they are summed. Readers bring what the pass makes near one by its largest entry in the first
    task, the *lead*, so that all tasks do it alike.
    """

    first_alone = False

    def __init__(
        self, gpu: ChunkGpu, each: Pass, tasks: Sequence[Step], store: ChunkStore, shifts: Mapping[int, int]
    ) -> None:
        self.gpu, self.each, self.tasks, self.store = gpu, each, tasks, store
        self.powers = {task.out: 1.0 for task in tasks}
        self._made = {task.out: n for n, task in enumerate(tasks)}
        self._settled, self._failed = threading.Condition(), False
        self._places, _ = task_places(gpu.chunks, each, gpu.dtype.itemsize)
        self._sizes = gpu.chunks.plan.shape.cardinalities
        self._spreads = spreads(gpu.chunks, each, gpu.dtype.itemsize)
        self.outer = [v for v in each.fixed if self._spreads or v not in each.summed]
        self._terms: dict[tuple[int, ...], Array] = {}
        self._largest = 0.0
        groups = gpu.chunks.plan.shape.entries(self.outer)
        # Devices that get something to do.
        ones = dict.fromkeys(slot.on for slot in gpu.slots[:groups])
        self._on = {one: _OnDevice(one, tasks, self._places, shifts) for one in ones}
        # Where the first task is done, and for each of its steps when it is through, if anybody waits for that.
        self._leader, self._events, self._is_followed = gpu.slots[0].on, list[Any](), groups > 1
        self._word_bytes = 2 * gpu.dtype.itemsize

    def group(self, states: dict[int, int], place: int = 0) -> None:
        """Do the tasks whose results are added up, in a slot; all but the first task follow that step by step."""
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
        self._copy(slot, term, slot.at + self._places[self.each.out], to_slot=False)

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
        largest, least = self._numbers(np.maximum.reduce([on.words.get() for on in self._on.values()]).max(axis=0))
        # What is not a number counts as beyond the format.
        largest = np.where(np.isnan(largest), np.inf, largest)
        largest[-1] = max(largest[-1], self._largest)
        return {task.out: (float(largest[n]), float(least[n])) for n, task in enumerate(self.tasks)}

    def leads(self) -> dict[int, int]:
        """Return the powers of two that readers in the pass multiply results with."""
        largest, _ = self._numbers(self._on[self._leader].words.get()[0])
        return {task.out: shift_of(largest[n]) for n, task in enumerate(self.tasks)}

    def _numbers(self, words: Array) -> tuple[Array, Array]:
        """Return the largest entries of the steps, and the smallest above zero (1 where there is none)."""
        floats = self.gpu.dtype
        least = np.where(words[:, 1] > 0, (~words[:, 1]).view(floats), 1)
        return np.ascontiguousarray(words[:, 0]).view(floats), least

    def _task(self, slot: Slot, states: Mapping[int, int], adds: bool) -> None:
        leads = not any(states.values())
        if leads:
            self._leader = slot.on
        there: set[int] = set()
        for n, task in enumerate(self.tasks):
            for table in task.operands:
                if table not in there:
                    self._load(slot, table, states)
            there.update((*task.operands, task.out))
            if not leads:
                self._follow(slot, [self._made[table] for table in task.operands if table in self._made])
            is_last = task.out == self.each.out
            self._launch(slot, n, leads, adds and is_last)
            if leads and self._is_followed:
                self._lead(slot)
            if task.out in self.each.stores and not is_last:
                self._save(slot, task.out, states)

    def _launch(self, slot: Slot, n: int, leads: bool, adds: bool) -> None:
        on = self._on[slot.on]
        for call in on.calls[n]:
            words = moved(call.words, slot.at)
            if call.ends:
                words[entries_gpu.EXTREMES], words[entries_gpu.ADDS] = on.word(leads, n), adds
            call.kernel((call.blocks,), (entries_gpu.THREADS,), (words.view(f"V{words.nbytes}"),))

    def _lead(self, slot: Slot) -> None:
        """Tell the others that the first task has been sent one step further."""
        if len(self._on) > 1:
            n = len(self._events)
            self._relay(slot, self.gpu.relay + n * self._word_bytes, self._on[slot.on].word(True, n))
        event = slot.on.cupy.cuda.Event(disable_timing=True)
        event.record(slot.stream)
        with self._settled:
            self._events.append(event)
            self._settled.notify_all()

    def _follow(self, slot: Slot, steps: Sequence[int]) -> None:
        """Let a slot wait until the first task is through with some steps, and bring what it found to the device."""
        if not steps or not self._is_followed:
            return
        with self._settled:
            self._settled.wait_for(lambda: len(self._events) > max(steps) or self._failed)
            if self._failed:
                raise RuntimeError("another task of the pass failed")
        slot.stream.wait_event(self._events[max(steps)])
        if slot.on is not self._leader:
            for n in steps:
                self._relay(slot, self._on[slot.on].word(True, n), self.gpu.relay + n * self._word_bytes)

    def _relay(self, slot: Slot, to: int, of: int) -> None:
        words = relayed(to, of)
        slot.on.kernel("relay")((1,), (entries_gpu.THREADS,), (words.view(f"V{words.nbytes}"),))

    def _load(self, slot: Slot, table: int, states: Mapping[int, int]) -> None:
        part_ = self.store.part(table, states)
        slot.loaded += part_.nbytes
        if not (table in self.gpu.resident or _large_runs(part_)):
            part_ = np.ascontiguousarray(part_)
            slot.held.append(part_)
        self._copy(slot, part_, slot.at + self._places[table], to_slot=True)

    def _save(self, slot: Slot, table: int, states: Mapping[int, int]) -> None:
        part_ = self.store.part(table, states)
        slot.stored += part_.nbytes
        target = part_
        if not (table in self.gpu.resident or _large_runs(part_)):
            target = np.empty(part_.shape, part_.dtype)
            slot.late.append((target, part_))
        self._copy(slot, target, slot.at + self._places[table], to_slot=False)

    def _copy(self, slot: Slot, table: Array, at: int, to_slot: bool) -> None:
        """Enqueue the copies of an array whose last axis is contiguous, rows of equal distance at once.

        Where it lies, on the host or on a device, its address tells.
        """
        runtime = slot.on.cupy.cuda.runtime
        kind = runtime.memcpyDefault
        if table.flags.c_contiguous:
            ends = (at, table.ctypes.data) if to_slot else (table.ctypes.data, at)
            runtime.memcpyAsync(*ends, table.nbytes, kind, slot.stream.ptr)
            return
        *outer, rows, _ = table.shape
        width = table.shape[-1] * table.itemsize
        for index in itertools.product(*map(range, outer)):
            block = table[index]
            here, there = (block.ctypes.data, block.strides[0]), (at, width)
            target, source = (there, here) if to_slot else (here, there)
            runtime.memcpy2DAsync(*target, *source, width, rows, kind, slot.stream.ptr)
            at += width * rows


def _large_runs(host: Array) -> bool:
    """Tell whether an array is best copied from where it is."""
    if host.flags.c_contiguous:
        return True
    return host.shape[-1] * host.itemsize >= RUN_BYTES and host.strides[-1] == host.itemsize
