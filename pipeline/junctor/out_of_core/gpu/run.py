"""Passes of a cut plan on GPUs: parts of tables come in, are contracted and go out, on several streams at once.

One thread of the host hands everything in, well ahead of what the devices do, and waits for nothing: a group of tasks
has a *slot* (its memory and stream), and events tell which slot waits for what. While one computes, another one brings
its parts in and a third one takes its results out (Bistaffa et al., figures 8 and 9; their `max_s` is the number of
slots), also across the end of a pass.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu import entries as entries_gpu
from junctor_kernels.gpu.entries import bits_of, carried, gathered, moved, relayed, shift_of

from junctor.out_of_core.gpu.copies import enqueue, enqueue_all, lying_at
from junctor.out_of_core.gpu.in_flight import PassInFlight, States
from junctor.out_of_core.gpu.launches import ORIGIN, Launches, PassFacts, PassLaunch, PassLaunches
from junctor.out_of_core.gpu.slots import DeviceSlots, GroupSlot, StreamMark, enqueue_kernel
from junctor.planning.chunks import configurations, part

if TYPE_CHECKING:
    from junctor.out_of_core.pass_program import Extremes
    from junctor.out_of_core.program import TableStats
    from junctor.out_of_core.store import ChunkStore

Array = npt.NDArray[Any]
# settle(pass, extremes of what its steps made, powers of two that readers in the pass multiplied with)
Settle = Callable[[int, Mapping[int, "Extremes"], Mapping[int, int]], None]

# Bytes of the host up to which a kernel brings them: a copy would wait behind those of large tables.
CARRIED_BYTES = 1 << 17
# Runs of bytes from this size on are copied one by one, from where they are.
RUN_BYTES = 1 << 16


class GpuRun:
    """One propagation: passes are handed in one after the other, and closed when the devices are through with them.

    Results are stored as they are summed. Readers bring what they read near one by its largest entry: inside a pass by
    that of the first task, the *lead*, so that all tasks do it alike, and in later passes by that of the whole table.
    Devices find both in memory, so the host need not know them.
    """

    def __init__(self, launches: Launches, store: ChunkStore, known: Mapping[int, TableStats], settle: Settle) -> None:
        self.launches, self.gpu, self.store = launches, launches.gpu, store
        self.chunks = self.gpu.chunks
        self._known, self._settle = known, settle
        self._sizes = self.chunks.plan.shape.cardinalities
        self._pending: deque[PassInFlight] = deque()
        # The passes that made the tables that are there, and those that put them where they are read.
        self._origins: dict[int, PassInFlight] = {}
        self._sources: dict[int, PassInFlight] = {}
        # For each pass the last marks of all slots then.
        self._ends: list[list[StreamMark]] = []
        self._turns = [itertools.cycle([slot for slot in self.gpu.slots if slot.on is one]) for one in self.gpu.each]
        self._gathered: dict[tuple[int, DeviceSlots], Any] = {}

    def run(self, dead: Sequence[Iterable[int]]) -> None:
        """Do all passes; dead: for each the tables that nobody reads after it."""
        try:
            self.gpu.begin()
            self.gpu.bring_leaves(self.store)
            for n in range(len(self.chunks.passes)):
                self._hand_in(n)
                for table in dead[n]:
                    if table in self.store.tables:
                        self.store.drop(table)
                    self._origins.pop(table, None)
                    self._sources.pop(table, None)
                while self._pending and self._pending[0].is_done():
                    self._close()
            self._close_through(len(self.chunks.passes))
        finally:
            # After an error too: what is under way uses memory that is not ours from here on.
            self.gpu.synchronize()
            self.gpu.staging.clear()

    def _hand_in(self, n: int) -> None:
        facts = self.launches.facts[n]
        for table in facts.each.stores:
            if self.gpu.crosses(table, n):
                self.store.make(table)
        for table in facts.each.loads:
            # What the host makes, or reads, has to be there.
            if table in self._origins and self._needs_host(n, table):
                self._close_through(self._origins[table].number)
        work = PassInFlight(n, facts)
        self._pending.append(work)
        for one in self.gpu.each:
            one.make_room(self._close_through)
        waits = {table: self._marks_of(facts, table) for table in facts.each.loads if table in self._origins}
        for gpu, states in self._dealt(n, facts):
            self._group(work, waits, next(self._turns[gpu]), states)
        for one in work.calls:
            work.reported.append(one.report(work.computed.values(), self.gpu.first_step(n), len(facts.tasks)))
        self._origins |= dict.fromkeys(facts.each.stores, work)
        brought = [table for table in facts.each.loads if self._brings(table, n)]
        self._sources |= dict.fromkeys((*facts.each.stores, *brought), work)
        self._ends.append([slot.last for slot in self.gpu.slots if slot.last is not None])

    def _dealt(self, n: int, facts: PassFacts) -> list[tuple[int, States]]:
        """Return the groups of a pass and the device of each: the first one, which others wait for, then in turns."""
        deal, before = self.gpu.deals.passes[n], Counter[int]()
        found: list[tuple[int, int, States]] = []
        for values in configurations([self._sizes[v] for v in facts.outer]):
            states = dict(zip(facts.outer, values, strict=True))
            gpu = deal.gpu(states)
            found.append((before[gpu], gpu, states))
            before[gpu] += 1
        found[1:] = sorted(found[1:], key=lambda group: group[:2])
        return [(gpu, states) for _, gpu, states in found]

    def _needs_host(self, number: int, table: int) -> bool:
        """Tell whether the host has a hand in a table where it was made, or where a pass reads it."""
        origin = self._origins[table]
        ends = (origin.number, number)
        return origin.facts.added_up == table or not all(self._goes_by_itself(table, at) for at in ends)

    def _goes_by_itself(self, table: int, number: int) -> bool:
        fixed = self.chunks.passes[number].fixed
        return not self.gpu.crosses(table, number) or _large_runs(self.store.part(table, dict.fromkeys(fixed, 0)))

    def _brings(self, table: int, number: int) -> bool:
        """Tell whether a pass that reads a table puts it on devices, for itself and for others."""
        return self.gpu.stays(table, number) and self.gpu.crosses(table, number)

    def _marks_of(self, facts: PassFacts, table: int) -> tuple[list[int], dict[tuple[int, ...], dict[int, StreamMark]]]:
        """Return the chunk variables that a pass shares with the one that put a table where it is, and for each of
        their configurations the marks behind what that did of it."""
        source = self._sources[table]
        shared = [v for v in source.facts.outer if v in facts.each.fixed]
        marks: dict[tuple[int, ...], dict[int, StreamMark]] = {}
        for states, mark in source.parts:
            # Those of a slot are in order.
            marks.setdefault(tuple(states[v] for v in shared), {})[mark.slot] = mark
        return shared, marks

    def _group(self, work: PassInFlight, waits: Mapping[int, Any], slot: GroupSlot, states: States) -> None:
        """Hand in the tasks whose results are added up; all but the first task of a pass follow that step by step."""
        with slot.on.cupy.cuda.Device(slot.on.number), slot.stream:
            if slot.on not in work.calls:
                work.calls[slot.on] = self._calls(work, slot.on)
            slot.stream.wait_event(slot.on.uploaded)
            inner = work.facts.inner
            for n, values in enumerate(configurations([self._sizes[v] for v in inner])):
                self._task(work, waits, slot, {**states, **dict(zip(inner, values, strict=True))}, adds=n > 0)
            work.computed[slot.number] = slot.mark()
            if work.facts.spreads:
                self._take_term(work, slot, states)
            elif work.each.out in work.each.stores:
                self._save(work, slot, work.each.out, states)
            work.saved[slot.number] = slot.mark()
            work.parts.append((states, work.saved[slot.number]))

    def _calls(self, work: PassInFlight, one: DeviceSlots) -> PassLaunches:
        """Return the launches of every step on a device."""
        calls = self.launches.of(work.number, one, partial(self._staged, work))
        for call in itertools.chain.from_iterable(calls.groups):
            for place, table in call.scaled:
                call.words[place] = bits_of(2.0 ** self._known[table].shift)
        return calls

    def _task(self, work: PassInFlight, waits: Mapping[int, Any], slot: GroupSlot, states: States, adds: bool) -> None:
        leads = not any(states.values())
        if leads:
            work.leader = slot.on
        facts, calls = work.facts, work.calls[slot.on]
        made, there = facts.made, set[int]()
        for group, launches in zip(facts.groups, calls.groups, strict=True):
            for table in group.operands:
                if table not in there and table not in made:
                    self._load(work, waits, slot, table, states)
            there.update(group.operands)
            if not leads:
                self._follow(work, slot, [made[table] for table in group.operands if table in made])
            is_last = group.steps.stop == len(facts.tasks)
            if group.out in calls.there:
                self._wait_before(work, slot, group.out)
            step = self.gpu.first_step(work.number) + group.steps.start
            self._launch(launches, slot, step, states, leads, adds and is_last)
            if leads and facts.is_followed:
                self._lead(work, slot, group.steps)
            if group.out in facts.each.stores and not is_last:
                self._save(work, slot, group.out, states)

    def _launch(
        self, launches: Iterable[PassLaunch], slot: GroupSlot, step: int, states: States, leads: bool, adds: bool
    ) -> None:
        """Hand in a step, the first one of a group."""
        for call in launches:
            words = moved(call.words, call.in_slot, slot.at)
            for place, v, by in call.elsewhere:
                words[place] += states[v] * by
            if call.ends:
                words[entries_gpu.EXTREMES], words[entries_gpu.ADDS] = slot.on.words_at(step, of_lead=leads), adds
            enqueue_kernel(call.kernel, call.blocks, words)

    def _lead(self, work: PassInFlight, slot: GroupSlot, steps: range) -> None:
        """Note that the first task has been sent some steps further."""
        if len(self.gpu.each) > 1:
            step = self.gpu.first_step(work.number) + steps.start
            words = relayed(slot.on.report_at(step), slot.on.words_at(step), len(steps))
            enqueue_kernel(slot.on.kernel("relay"), 1, words)
        event = slot.on.event()
        event.record(slot.stream)
        work.followed += [event] * len(steps)

    def _follow(self, work: PassInFlight, slot: GroupSlot, steps: Sequence[int]) -> None:
        """Let a slot wait until the first task is through with some steps, and its device knows what that found."""
        last = max(steps, default=-1)
        if not work.facts.is_followed or last <= work.reached.get(slot.number, -1):
            return
        if slot.on is work.leader:
            slot.stream.wait_event(work.followed[last])
        else:
            self._tell(work, slot, last)
        work.reached[slot.number] = last

    def _tell(self, work: PassInFlight, slot: GroupSlot, last: int) -> None:
        """Bring what the first task found on another device, up to a step, unless another slot here has."""
        told = work.told.setdefault(slot.on, [])
        if told:
            slot.stream.wait_event(told[min(last, len(told) - 1)])
        assert work.leader is not None
        steps = range(len(told), last + 1)
        if steps:
            # The first task does its steps in order.
            slot.stream.wait_event(work.followed[last])
            step = self.gpu.first_step(work.number) + steps.start
            words = relayed(slot.on.words_at(step), work.leader.report_at(step), len(steps))
            enqueue_kernel(slot.on.kernel("relay"), 1, words)
            event = slot.on.event()
            event.record(slot.stream)
            told += [event] * len(steps)

    def _load(self, work: PassInFlight, waits: Mapping[int, Any], slot: GroupSlot, table: int, states: States) -> None:
        if table in waits:
            shared, marks = waits[table]
            slot.wait(marks[tuple(states[v] for v in shared)].values())
        if self._brings(table, work.number):
            self._wait_before(work, slot, table)
            part_ = self._from_host(work, slot, table, states)
            for place, piece in self.gpu.pieces(table, states):
                enqueue(slot.on.cupy.cuda.runtime, slot.stream, piece, part_[place])
        if table not in work.calls[slot.on].there:
            self._bring(work, slot, table, states)
        if table in waits:
            self._wait_for_largest(slot, table)

    def _bring(self, work: PassInFlight, slot: GroupSlot, table: int, states: States) -> None:
        """Bring a part of a table to a slot, from the devices where it stays or from the host."""
        if self.gpu.stays(table, work.number):
            slot.loaded += self._exchange(work, slot, table, states, to_slot=True)
            return
        part_ = self._from_host(work, slot, table, states)
        self._copy(slot, part_, slot.at + work.facts.places[table], to_slot=True)

    def _from_host(self, work: PassInFlight, slot: GroupSlot, table: int, states: States) -> Array:
        """Return a part of a table on the host, from where a slot copies it."""
        part_ = self.store.part(table, states)
        slot.loaded += part_.nbytes
        if _large_runs(part_):
            return part_
        staged = self._staged(work, part_.nbytes).view(part_.dtype).reshape(part_.shape)
        staged[...] = part_
        return staged

    def _wait_for_largest(self, slot: GroupSlot, table: int) -> None:
        """Let a slot wait until the largest entry of a whole table is known, and bring it to the device."""
        origin = self._origins[table]
        if origin.facts.added_up == table:
            return
        if len(self.gpu.each) == 1:
            slot.wait(origin.computed.values())
            return
        key = origin.number, slot.on
        if key not in self._gathered:
            for event in origin.reported:
                slot.stream.wait_event(event)
            first = self.gpu.first_step(origin.number)
            reports = [one.report_at(first) for one in origin.calls]
            words = gathered(slot.on.gathered_at(first), reports, len(origin.facts.tasks))
            enqueue_kernel(slot.on.kernel("gather"), 1, words)
            self._gathered[key] = slot.on.event()
            self._gathered[key].record(slot.stream)
        slot.stream.wait_event(self._gathered[key])

    def _wait_before(self, work: PassInFlight, slot: GroupSlot, table: int) -> None:
        """Let a slot wait until nobody needs what lay where a table goes in a pass."""
        found = self.gpu.before.resident if self.gpu.stays(table, work.number) else self.gpu.before.pinned
        before = found.get(table, -1)
        if before >= 0:
            slot.wait(self._ends[before])

    def _save(self, work: PassInFlight, slot: GroupSlot, table: int, states: States) -> None:
        if table in work.calls[slot.on].there:
            return
        self._wait_before(work, slot, table)
        if self.gpu.stays(table, work.number):
            slot.stored += self._exchange(work, slot, table, states, to_slot=False)
            return
        part_ = self.store.part(table, states)
        slot.stored += part_.nbytes
        target = part_
        if not _large_runs(part_):
            target = self._staged(work, part_.nbytes).view(part_.dtype).reshape(part_.shape)
            work.late.append((target, part_))
        self._copy(slot, target, slot.at + work.facts.places[table], to_slot=False)

    def _take_term(self, work: PassInFlight, slot: GroupSlot, states: States) -> None:
        entries = part(self.chunks.plan, work.each.out, work.each.fixed)
        term = self._staged(work, entries * self.gpu.dtype.itemsize).view(self.gpu.dtype)
        slot.stored += term.nbytes
        work.terms[tuple(states[v] for v in work.each.fixed)] = term
        self._copy(slot, term, slot.at + work.facts.places[work.each.out], to_slot=False)

    def _staged(self, work: PassInFlight, size: int) -> Array:
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

    def _exchange(self, work: PassInFlight, slot: GroupSlot, table: int, states: States, to_slot: bool) -> int:
        """Enqueue the copies of a part of a table that stays on devices; returns its bytes."""
        each = self.launches.exchange(work.number, table, states, to_slot)
        by = (slot.at - ORIGIN, 0) if to_slot else (0, slot.at - ORIGIN)
        enqueue_all(slot.on.cupy.cuda.runtime, slot.stream, each, *by)
        size = sum(width * rows for *_, width, rows in each)
        slot.exchanged += size
        return size

    def _copy(self, slot: GroupSlot, table: Array, at: int, to_slot: bool) -> None:
        """Enqueue the copies of an array of the host to a place in a slot or from there."""
        if table.nbytes <= CARRIED_BYTES and table.flags.c_contiguous and self.gpu.reaches(table):
            ends = (at, table.ctypes.data) if to_slot else (table.ctypes.data, at)
            blocks = -(-table.size // entries_gpu.THREADS)
            enqueue_kernel(slot.on.kernel("carry"), blocks, carried(*ends, table.size))
            return
        part_ = lying_at(at, table.size, self.gpu.dtype).reshape(table.shape)
        arrays = (part_, table) if to_slot else (table, part_)
        enqueue(slot.on.cupy.cuda.runtime, slot.stream, *arrays)

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
        of_sums, tasks = self._add_up(work), work.facts.tasks
        words = self.gpu.reports(work.calls, self.gpu.first_step(work.number), len(tasks))
        largest, least = self._numbers(words.max(axis=(0, 2)))
        leads, _ = self._numbers(words[:, :, 0].max(axis=0))
        # What is not a number counts as beyond the format.
        largest = np.where(np.isnan(largest), np.inf, largest)
        largest[-1] = max(largest[-1], of_sums)
        made = [task.out for task in tasks]
        extremes = dict(zip(made, zip(largest.tolist(), least.tolist(), strict=True), strict=True))
        # Whoever goes on with what no memory holds does not multiply.
        shifts = [0 if n in work.facts.inside else shift_of(lead) for n, lead in enumerate(leads)]
        self._settle(work.number, extremes, dict(zip(made, shifts, strict=True)))
        self._pending.popleft()
        self.gpu.staging.release(work.number)
        work.late.clear()
        work.held.clear()

    def _add_up(self, work: PassInFlight) -> float:
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


def _large_runs(host: Array) -> bool:
    """Tell whether an array is best copied from where it is."""
    if host.flags.c_contiguous:
        return True
    return host.shape[-1] * host.itemsize >= RUN_BYTES and host.strides[-1] == host.itemsize
