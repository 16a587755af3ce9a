"""Passes of a cut plan on GPUs: parts of tables come in, are contracted and go out, on several streams at once.

One thread of the host hands everything in, well ahead of what the devices do, and waits for nothing: a group of tasks
has a *slot* (its memory and stream), and events tell which slot waits for what. While one computes, another one brings
its parts in and a third one takes its results out (Bistaffa et al., figures 8 and 9; their `max_s` is the number of
slots), also across the end of a pass.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from junctor_kernels import entries_gpu
from junctor_kernels.entries_gpu import Runs, bits_of, gathered, moved, record, relayed, shift_of

from junctor.chunk_places import spreads, task_places
from junctor.chunk_slots import ChunkGpu, InPlace, Lying, Mark, OneGpu, Slot, can_lie
from junctor.planning.chunks import Pass, configurations, part

if TYPE_CHECKING:
    from junctor.chunk_store import ChunkStore
    from junctor.chunk_tasks import Extremes, Step
    from junctor.chunked import Known

Array = npt.NDArray[Any]
States = Mapping[int, int]
# settle(pass, extremes of what its steps made, powers of two that readers in the pass multiplied with)
Settle = Callable[[int, Mapping[int, "Extremes"], Mapping[int, int]], None]

# Runs of bytes from this size on are copied one by one, from where they are.
RUN_BYTES = 1 << 16


@dataclass(frozen=True, eq=False, slots=True)
class _Call:
    """A launch of a step. in_slot: fields of its record that hold a place in a slot; elsewhere: fields that a state of
    a chunk variable moves by so many bytes. ends: whether it makes the result of the step."""

    kernel: Any
    blocks: int
    words: Array
    in_slot: list[int]
    elsewhere: list[tuple[int, int, int]]
    ends: bool


@dataclass(eq=False, slots=True)
class _Underway:
    """A pass that has been handed in, until all is known of what it made.

    outer: the chunk variables that its groups differ in. places: of parts in a slot. there: tables that tasks on a
    device read or make where they are. computed, saved: the last marks of every slot behind its
    kernels, and behind its copies. parts: configurations of `outer`, and marks behind what they stored. followed:
    events behind the steps of the first task. terms: results that are added up on the host. late: what goes where once
    copies are done.
    """

    number: int
    each: Pass
    tasks: Sequence[Step]
    spreads: bool
    outer: list[int]
    places: Mapping[int, int]
    there: dict[OneGpu, dict[int, InPlace]] = field(default_factory=dict)
    calls: dict[OneGpu, list[list[_Call]]] = field(default_factory=dict)
    leader: OneGpu | None = None
    followed: list[Any] = field(default_factory=list)
    is_followed: bool = False
    computed: dict[int, Mark] = field(default_factory=dict)
    saved: dict[int, Mark] = field(default_factory=dict)
    parts: list[tuple[States, Mark]] = field(default_factory=list)
    reported: list[Any] = field(default_factory=list)
    terms: dict[tuple[int, ...], Array] = field(default_factory=dict)
    late: list[tuple[Array, Array]] = field(default_factory=list)
    held: list[Array] = field(default_factory=list)

    def is_done(self) -> bool:
        """Tell whether the devices are through with it."""
        return all(mark.event.done for mark in self.saved.values()) and all(event.done for event in self.reported)

    def wait(self) -> None:
        """Wait until they are."""
        for event in (*(mark.event for mark in self.saved.values()), *self.reported):
            event.synchronize()


class GpuRun:
    """One propagation: passes are handed in one after the other, and closed when the devices are through with them.

    Results are stored as they are summed. Readers bring what they read near one by its largest entry: inside a pass by
    that of the first task, the *lead*, so that all tasks do it alike, and in later passes by that of the whole table.
    Devices find both in memory, so the host need not know them.
    """

    def __init__(
        self,
        gpu: ChunkGpu,
        steps: Sequence[Sequence[Step]],
        store: ChunkStore,
        known: Mapping[int, Known],
        settle: Settle,
    ) -> None:
        self.gpu, self.chunks, self._steps, self.store = gpu, gpu.chunks, steps, store
        self._known, self._settle = known, settle
        self._sizes = gpu.chunks.plan.shape.cardinalities
        self._pending: deque[_Underway] = deque()
        # The pass that made a table, while it is there, and the place of the step in it.
        self._origins: dict[int, tuple[_Underway, int]] = {}
        # For each pass the last marks of all slots then.
        self._ends: list[list[Mark]] = []
        self._turns = itertools.cycle(gpu.slots)
        self._gathered: dict[tuple[int, OneGpu], Any] = {}

    def run(self, dead: Sequence[Iterable[int]]) -> None:
        """Do all passes; dead: for each the tables that nobody reads after it."""
        try:
            self.gpu.begin()
            self.gpu.bring_leaves(self.store)
            for n in range(len(self.chunks.passes)):
                self._hand_in(n)
                for table in dead[n]:
                    self.store.drop(table)
                    self._origins.pop(table, None)
                while self._pending and self._pending[0].is_done():
                    self._close()
            self._close_through(len(self.chunks.passes))
        finally:
            # After an error too: what is under way uses memory that is not ours from here on.
            self.gpu.synchronize()
            self.gpu.staging.clear()

    def _hand_in(self, n: int) -> None:
        each = self.chunks.passes[n]
        for table in each.stores:
            self.store.make(table)
        for table in each.loads:
            # What the host makes, or reads, has to be there.
            if table in self._origins and self._needs_host(each, table):
                self._close_through(self._origins[table][0].number)
        added_up = spreads(self.chunks, each, self.gpu.dtype.itemsize)
        outer = [v for v in each.fixed if added_up or v not in each.summed]
        places, _ = task_places(self.chunks, each, self.gpu.dtype.itemsize)
        work = _Underway(n, each, self._steps[n], added_up, outer, places)
        work.is_followed = self.chunks.plan.shape.entries(outer) > 1
        self._pending.append(work)
        for one in self.gpu.each:
            one.make_room(self._close_through)
        waits = {table: self._marks_of(work, table) for table in each.loads if table in self._origins}
        for values in configurations([self._sizes[v] for v in outer]):
            self._group(work, waits, dict(zip(outer, values, strict=True)))
        for one in work.calls:
            work.reported.append(one.report(work.computed.values(), self.gpu.first_step(n), len(work.tasks)))
        for m, task in enumerate(work.tasks):
            if task.out in each.stores:
                self._origins[task.out] = work, m
        self._ends.append([slot.last for slot in self.gpu.slots if slot.last is not None])

    def _needs_host(self, each: Pass, table: int) -> bool:
        """Tell whether the host has a hand in a table where it was made, or where a pass reads it."""
        origin, _ = self._origins[table]
        return self._is_added_up(table) or not all(self._goes_by_itself(table, at) for at in (origin.each, each))

    def _goes_by_itself(self, table: int, each: Pass) -> bool:
        return table in self.gpu.resident or _large_runs(self.store.part(table, dict.fromkeys(each.fixed, 0)))

    def _marks_of(self, work: _Underway, table: int) -> tuple[list[int], dict[tuple[int, ...], dict[int, Mark]]]:
        """Return the chunk variables that a pass shares with the one that made a table, and for each of their
        configurations the marks behind what was made of it."""
        origin, _ = self._origins[table]
        shared = [v for v in origin.outer if v in work.each.fixed]
        marks: dict[tuple[int, ...], dict[int, Mark]] = {}
        for states, mark in origin.parts:
            # Those of a slot are in order.
            marks.setdefault(tuple(states[v] for v in shared), {})[mark.slot] = mark
        return shared, marks

    def _group(self, work: _Underway, waits: Mapping[int, Any], states: dict[int, int]) -> None:
        """Hand in the tasks whose results are added up; all but the first task of a pass follow that step by step."""
        slot = next(self._turns)
        with slot.on.cupy.cuda.Device(slot.on.number), slot.stream:
            if slot.on not in work.calls:
                work.there[slot.on] = self._in_place(work, slot.on)
                work.calls[slot.on] = self._calls(work, slot)
            slot.stream.wait_event(slot.on.uploaded)
            inner = [v for v in work.each.fixed if v not in work.outer]
            for n, values in enumerate(configurations([self._sizes[v] for v in inner])):
                self._task(work, waits, slot, states | dict(zip(inner, values, strict=True)), adds=n > 0)
            work.computed[slot.number] = slot.mark()
            if work.spreads:
                self._take_term(work, slot, states)
            elif work.each.out in work.each.stores:
                self._save(work, slot, work.each.out, states)
            work.saved[slot.number] = slot.mark()
            work.parts.append((states, work.saved[slot.number]))

    def _calls(self, work: _Underway, slot: Slot) -> list[list[_Call]]:
        """Return the launches of every step on a device."""
        made = {task.out: n for n, task in enumerate(work.tasks)}
        calls = [self._calls_of(work, slot, task, made) for task in work.tasks]
        slot.on.uploaded.record(slot.on.upload)
        return calls

    def _in_place(self, work: _Underway, one: OneGpu) -> dict[int, InPlace]:
        """Return the tables of a pass that all of its steps can use where they are."""
        uses: dict[int, list[tuple[Step, int]]] = {}
        for task in work.tasks:
            for k, table in enumerate((*task.operands, task.out)):
                uses.setdefault(table, []).append((task, k))
        there: dict[int, InPlace] = {}
        for table, steps in uses.items():
            found = self.gpu.in_place(one, table, work.each.fixed)
            if found is not None and all(can_lie(_lying(task, {k: found.runs})) for task, k in steps):
                there[table] = found
        return there

    def _calls_of(self, work: _Underway, slot: Slot, task: Step, made: Mapping[int, int]) -> list[_Call]:
        one, there = slot.on, work.there[slot.on]
        tables = (*task.operands, task.out)
        lying = _lying(task, {k: there[table].runs for k, table in enumerate(tables) if table in there})
        prepared = one.prepared(lying, work.number, partial(self._staged, work))
        # Sums of terms are made in turns in either half of the room for them.
        half = entries_gpu.PARTIAL_ENTRIES * self.gpu.dtype.itemsize
        places: list[InPlace | int] = [there.get(table, work.places[table]) for table in tables]
        scales = [self._scale(work, slot, table, made) for table in task.operands]
        calls = []
        for m, (launch, offsets) in enumerate(zip(prepared.launches, prepared.at, strict=True)):
            ends = m == len(prepared.launches) - 1
            out = places[-1] if ends else one.partial + (m % 2) * half
            fields = dict(zip((*entries_gpu.TABLES[: len(offsets)], entries_gpu.OUT), (*places[:-1], out), strict=True))
            at = [each.at if isinstance(each, InPlace) else each for each in fields.values()]
            each = zip(at, offsets, scales, strict=False)
            words = record(launch, at[-1], 0, False, [(table, *lies, *scale) for table, lies, scale in each])
            words[entries_gpu.OUT_PANELS] = prepared.out_panels if ends else 0
            in_slot = [n for n, each in fields.items() if not isinstance(each, InPlace)]
            moves = [(n, *by) for n, each in fields.items() if isinstance(each, InPlace) for by in each.by]
            calls.append(_Call(one.kernel(launch.name), launch.blocks, words, in_slot, moves, ends))
            places, scales = [out, places[-1]], [(bits_of(1.0), 0, 0)]
        return calls

    def _scale(self, work: _Underway, slot: Slot, table: int, made: Mapping[int, int]) -> tuple[int, int, int]:
        """Return what an operand is multiplied with: bits, address of the words that tell it, whether of all tasks."""
        if table in made:
            return bits_of(1.0), slot.on.words_at(self.gpu.first_step(work.number) + made[table]), False
        if table not in self._origins or self._is_added_up(table):
            return bits_of(2.0 ** self._known[table].shift), 0, False
        origin, n = self._origins[table]
        step = self.gpu.first_step(origin.number) + n
        if len(self.gpu.each) == 1:
            return bits_of(1.0), slot.on.words_at(step), True
        return bits_of(1.0), slot.on.gathered_at(step), False

    def _is_added_up(self, table: int) -> bool:
        origin, _ = self._origins[table]
        return origin.spreads and table == origin.each.out

    def _task(self, work: _Underway, waits: Mapping[int, Any], slot: Slot, states: States, adds: bool) -> None:
        leads = not any(states.values())
        if leads:
            work.leader = slot.on
        made = {task.out: n for n, task in enumerate(work.tasks)}
        there: set[int] = set()
        for n, task in enumerate(work.tasks):
            for table in task.operands:
                if table not in there and table not in made:
                    self._load(work, waits, slot, table, states)
            there.update(task.operands)
            if not leads:
                self._follow(work, slot, [made[table] for table in task.operands if table in made])
            is_last = task.out == work.each.out
            if task.out in work.there[slot.on]:
                self._wait_before(slot, task.out)
            self._launch(work, slot, n, states, leads, adds and is_last)
            if leads and work.is_followed:
                self._lead(work, slot, n)
            if task.out in work.each.stores and not is_last:
                self._save(work, slot, task.out, states)

    def _launch(self, work: _Underway, slot: Slot, n: int, states: States, leads: bool, adds: bool) -> None:
        step = self.gpu.first_step(work.number) + n
        for call in work.calls[slot.on][n]:
            words = moved(call.words, call.in_slot, slot.at)
            for place, v, by in call.elsewhere:
                words[place] += states[v] * by
            if call.ends:
                words[entries_gpu.EXTREMES], words[entries_gpu.ADDS] = slot.on.words_at(step, of_lead=leads), adds
            slot.launch(call.kernel, call.blocks, words)

    def _lead(self, work: _Underway, slot: Slot, n: int) -> None:
        """Note that the first task has been sent one step further."""
        if len(self.gpu.each) > 1:
            step = self.gpu.first_step(work.number) + n
            slot.launch(slot.on.kernel("relay"), 1, relayed(slot.on.report_at(step), slot.on.words_at(step)))
        event = slot.on.event()
        event.record(slot.stream)
        work.followed.append(event)

    def _follow(self, work: _Underway, slot: Slot, steps: Sequence[int]) -> None:
        """Let a slot wait until the first task is through with some steps, and bring what it found to the device."""
        if not steps or not work.is_followed:
            return
        slot.stream.wait_event(work.followed[max(steps)])
        if work.leader is not None and slot.on is not work.leader:
            for step in (self.gpu.first_step(work.number) + n for n in steps):
                words = relayed(slot.on.words_at(step), work.leader.report_at(step))
                slot.launch(slot.on.kernel("relay"), 1, words)

    def _load(self, work: _Underway, waits: Mapping[int, Any], slot: Slot, table: int, states: States) -> None:
        if table in waits:
            shared, marks = waits[table]
            slot.wait(marks[tuple(states[v] for v in shared)].values())
        if table not in work.there[slot.on]:
            self._bring(work, slot, table, states)
        if table in waits:
            self._wait_for_largest(slot, table)

    def _bring(self, work: _Underway, slot: Slot, table: int, states: States) -> None:
        part_ = self.store.part(table, states)
        slot.loaded += part_.nbytes
        if not (table in self.gpu.resident or _large_runs(part_)):
            staged = self._staged(work, part_.nbytes).view(part_.dtype).reshape(part_.shape)
            staged[...] = part_
            part_ = staged
        self._copy(slot, part_, slot.at + work.places[table], to_slot=True)

    def _wait_for_largest(self, slot: Slot, table: int) -> None:
        """Let a slot wait until the largest entry of a whole table is known, and bring it to the device."""
        if self._is_added_up(table):
            return
        origin, _ = self._origins[table]
        if len(self.gpu.each) == 1:
            slot.wait(origin.computed.values())
            return
        key = origin.number, slot.on
        if key not in self._gathered:
            for event in origin.reported:
                slot.stream.wait_event(event)
            first = self.gpu.first_step(origin.number)
            reports = [one.report_at(first) for one in origin.calls]
            words = gathered(slot.on.gathered_at(first), reports, len(origin.tasks))
            slot.launch(slot.on.kernel("gather"), 1, words)
            self._gathered[key] = slot.on.event()
            self._gathered[key].record(slot.stream)
        slot.stream.wait_event(self._gathered[key])

    def _wait_before(self, slot: Slot, table: int) -> None:
        """Let a slot wait until nobody needs what lay where a table goes."""
        before = self.gpu.before.get(table, -1)
        if before >= 0:
            slot.wait(self._ends[before])

    def _save(self, work: _Underway, slot: Slot, table: int, states: States) -> None:
        if table in work.there[slot.on]:
            return
        self._wait_before(slot, table)
        part_ = self.store.part(table, states)
        slot.stored += part_.nbytes
        target = part_
        if not (table in self.gpu.resident or _large_runs(part_)):
            target = self._staged(work, part_.nbytes).view(part_.dtype).reshape(part_.shape)
            work.late.append((target, part_))
        self._copy(slot, target, slot.at + work.places[table], to_slot=False)

    def _take_term(self, work: _Underway, slot: Slot, states: States) -> None:
        entries = part(self.chunks.plan, work.each.out, work.each.fixed)
        term = self._staged(work, entries * self.gpu.dtype.itemsize).view(self.gpu.dtype)
        slot.stored += term.nbytes
        work.terms[tuple(states[v] for v in work.each.fixed)] = term
        self._copy(slot, term, slot.at + work.places[work.each.out], to_slot=False)

    def _staged(self, work: _Underway, size: int) -> Array:
        """Return bytes of the host that copies under way may use until the pass is closed."""
        staging = self.gpu.staging
        while (staged := staging.take(size, work.number)) is None:
            oldest = staging.oldest
            if oldest is None or oldest == work.number:
                break
            self._close_through(oldest)
        if staged is None:
            # Slow: such copies go through memory of the driver.
            staged = np.empty(size, np.uint8)
            work.held.append(staged)
        return staged

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

    def _close_through(self, number: int) -> None:
        """Close the passes up to a number."""
        while self._pending and self._pending[0].number <= number:
            self._close()

    def _close(self) -> None:
        """Find out what is known of the tables of the pass that is under way longest."""
        work = self._pending[0]
        work.wait()
        for source, target in work.late:
            target[...] = source
        of_sums = self._add_up(work)
        words = self.gpu.reports(work.calls, self.gpu.first_step(work.number), len(work.tasks))
        largest, least = self._numbers(words.max(axis=(0, 2)))
        leads, _ = self._numbers(words[:, :, 0].max(axis=0))
        # What is not a number counts as beyond the format.
        largest = np.where(np.isnan(largest), np.inf, largest)
        largest[-1] = max(largest[-1], of_sums)
        extremes = {task.out: (float(largest[n]), float(least[n])) for n, task in enumerate(work.tasks)}
        self._settle(work.number, extremes, {task.out: shift_of(leads[n]) for n, task in enumerate(work.tasks)})
        self._pending.popleft()
        self.gpu.staging.release(work.number)
        work.late.clear()
        work.held.clear()

    def _add_up(self, work: _Underway) -> float:
        """Add up the results that came to the host, in order of configurations; returns the largest entry."""
        each, totals, largest = work.each, dict[tuple[int, ...], Array](), 0.0
        kept = len(each.fixed) - len(each.summed)
        for states, term in sorted(work.terms.items(), key=lambda each: each[0]):
            if states[:kept] in totals:
                totals[states[:kept]] += term
            else:
                totals[states[:kept]] = term
        for states, total in totals.items():
            largest = max(largest, float(total.max()))
            if each.out in each.stores:
                target = self.store.part(each.out, dict(zip(each.fixed, states, strict=False)))
                target[...] = total.reshape(target.shape)
        work.terms.clear()
        return largest

    def _numbers(self, words: Array) -> tuple[Array, Array]:
        """Return the largest entries of the steps, and the smallest above zero (1 where there is none)."""
        floats = self.gpu.dtype
        least = np.where(words[:, 1] > 0, np.ascontiguousarray(~words[:, 1]).view(floats), 1)
        return np.ascontiguousarray(words[:, 0]).view(floats), least


def _lying(task: Step, runs: Mapping[int, Runs]) -> Lying:
    """Return the contraction of a step whose k-th operand (behind all of them the result) lies in some runs."""
    count = len(task.operands)
    return task.what, tuple(runs.get(k) for k in range(count)), runs.get(count)


def _large_runs(host: Array) -> bool:
    """Tell whether an array is best copied from where it is."""
    if host.flags.c_contiguous:
        return True
    return host.shape[-1] * host.itemsize >= RUN_BYTES and host.strides[-1] == host.itemsize
