"""Passes of a cut plan on GPUs: parts of tables come in, are contracted and go out, on several streams at once.

One thread of the host enqueues everything, well ahead of the devices, and waits for nothing: events tell which slot
waits for what, also across the end of a pass (Bistaffa, Farinelli and Bombieri 2014, figures 8 and 9; their `max_s` is
the number of slots). So `GpuRun` has a loop of its own beside that of `ChunkedProgram`.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu import entries as entries_gpu
from junctor_kernels.gpu.device import Event
from junctor_kernels.gpu.entries import carried, extremes_of, gathered, relayed, scale_of, shift_of
from junctor_kernels.tables.reference import Algebra

from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.model.network import Network
from junctor.out_of_core.bound_plan import BoundPlan, PassReport, TableStats
from junctor.out_of_core.gpu.copies import device_view, enqueue
from junctor.out_of_core.gpu.devices import CARRIED_BYTES, DeviceGroup
from junctor.out_of_core.gpu.in_flight import BegunPass, PassInFlight, States
from junctor.out_of_core.gpu.launches import Launches, PassFacts, PassLaunches
from junctor.out_of_core.gpu.slots import DeviceSlots, Slot, StreamMark
from junctor.out_of_core.pass_program import add_to, largest_of
from junctor.out_of_core.store import ChunkStore
from junctor.planning.chunks import ChunkPlan, configurations, part
from junctor.runtime.threads import Turns

Array = npt.NDArray[Any]

# Whose turn it is to enqueue, of threads that answer a row each: a call to CUDA leaves Python's lock, and thousands of
# them would each wait for the other threads.
ENQUEUING = Turns()

# Runs of bytes from this size on are copied one case at a time, from where they are; smaller ones are staged.
RUN_BYTES = 1 << 16


def bound_for_gpus(chunks: ChunkPlan, network: Network, algebra: Algebra) -> BoundPlan:
    """Return a cut plan bound to the numbers of a network, for any number of programs on GPUs."""
    # A device that scaled what it stores would have to wait for the largest entry of the whole table first.
    return BoundPlan(chunks, network, algebra, as_summed=True)


class ChunkedGpuProgram:
    """A cut plan bound to the numbers of a network, on GPUs; answers one case at a time.

    gpu: the devices.
    folder: for tables that do not fit the memory.
    bound: the plan bound to the numbers for GPUs, where there is one already.
    """

    def __init__(
        self,
        chunks: ChunkPlan,
        network: Network,
        algebra: Algebra,
        gpu: DeviceGroup,
        folder: Path | None = None,
        bound: BoundPlan | None = None,
    ) -> None:
        self._bound = bound or bound_for_gpus(chunks, network, algebra)
        self._gpu = gpu
        self._folder = folder
        # Tables that nobody reads after a pass.
        self._dead: list[list[int]] = [[] for _ in chunks.passes]
        for table, (_, last) in chunks.lifetimes().items():
            if last >= 0 and table not in self._bound.results:
                self._dead[last].append(table)

    @cached_property
    def launches(self) -> Launches:
        """The launches of all passes, kept from case to case."""
        return Launches(self._gpu, [program.steps for program in self._bound.programs])

    def run(self, block: EvidenceBlock) -> BlockOutcome:
        """Propagate one case and return its posteriors and log P(e); raises DiskError where the disk is full."""
        bound = self._bound
        # Slots begin at the start of the room, where programs of blocks have their arrays, too.
        with self._gpu.alone():
            store = ChunkStore(bound.chunks, bound.algebra.dtype, self._folder, self._gpu.allocate)
            stats = bound.begin(block, store)
            GpuRun(self.launches, store, stats, partial(bound.update, stats)).run(self._dead)
            return bound.outcome(block, {table: store.part(table, {}) for table in bound.results}, stats)


class GpuRun:
    """One propagation: passes are enqueued one after the other, and closed when the devices are through with them.

    Results are stored as they are summed. Readers scale what they read by its largest entry: inside a pass by that of
    the pilot task, so that all tasks do it alike, and in later passes by that of the whole table. Devices find both in
    memory, so the host need not know them.
    launches: of all passes.
    store: the tables on the host.
    stats: table -> what is known of it; of tables that the host adds up it is read here.
    update: adds to `stats` what a closed pass reports.
    """

    def __init__(
        self,
        launches: Launches,
        store: ChunkStore,
        stats: Mapping[int, TableStats],
        update: Callable[[PassReport], None],
    ) -> None:
        self.launches = launches
        self.gpu = launches.gpu
        self.store = store
        self.chunks = self.gpu.chunks
        self._stats = stats
        self._update = update
        self._sizes = self.chunks.plan.shape.cardinalities
        # Passes that have begun, by the turn of their next group, and those whose tasks have all been enqueued.
        self._begun: list[tuple[float, int, BegunPass]] = []
        self._pending: dict[int, PassInFlight] = {}
        # The passes that made the tables that are there, and those that put them where they are read.
        self._origins: dict[int, PassInFlight] = {}
        self._sources: dict[int, PassInFlight] = {}
        # For each pass the last marks of all slots when the next one began.
        self._ends: list[list[StreamMark]] = []
        # Slots of a device take groups by turns, so that copies of one run beside kernels of another.
        self._turns = [
            itertools.cycle([slot for slot in self.gpu.slots if slot.device is device]) for device in self.gpu.devices
        ]
        self._gathered: dict[tuple[int, DeviceSlots], Event] = {}

    def run(self, dead: Sequence[Iterable[int]]) -> None:
        """Do all passes; dead: for each the tables that nobody reads after it."""
        try:
            for device in self.gpu.devices:
                device.begin()
            with ENQUEUING:
                self.gpu.bring_leaves(self.store)
                spans = self.chunks.spans or tuple(pairwise(range(len(self.chunks.passes) + 1)))
                untils = [*(begin for begin, _ in spans[1:]), math.inf]
                for n, (span, until) in enumerate(zip(spans, untils, strict=False)):
                    # Nothing here waits for the devices unless the host itself has to read or write a table.
                    self._begin(n, *span)
                    self._enqueue(until)
                    # Streams keep their order, so the last mark of each slot stands for all that came before.
                    self._ends.append([slot.last for slot in self.gpu.slots if slot.last is not None])
                    for table in dead[n]:
                        if table in self.store.tables:
                            self.store.drop(table)
                        self._origins.pop(table, None)
                        self._sources.pop(table, None)
                    # Closed as soon as that takes no wait: staging memory of the pass becomes free.
                    self._close_done()
                    ENQUEUING.give_way()
                self._close_through(len(self.chunks.passes))
        finally:
            # After an error too: what is in flight uses memory that belongs to others from here on.
            self.gpu.synchronize()
            self.gpu.staging.clear()

    def _begin(self, n: int, begin: float, end: float) -> None:
        """Begin a pass; its groups of tasks are enqueued from `begin` to `end`, which is above."""
        facts = self.launches.facts[n]
        if any(device.is_crowded for device in self.gpu.devices):
            # Offsets are released: of passes whose tasks have all been enqueued.
            self._enqueue(math.inf)
        for table in facts.pass_.stores:
            # Other tables have no array on the host: they lie where `choose_residency` put them.
            if self.gpu.crosses_bus(table, n):
                self.store.make(table)
        for table in facts.pass_.loads:
            # What the host makes, or reads, has to be there.
            if table in self._origins and self._needs_host(n, table):
                self._close_through(self._origins[table].number)
        work = PassInFlight(n, facts)
        for device in self.gpu.devices:
            # Before anything of the pass is built: its own offsets must not be released.
            device.make_room(self._close_through)
        # Once for the pass, not for each task: there may be many thousands.
        waits = {table: self._marks_of(facts, table) for table in facts.pass_.loads if table in self._origins}
        groups = self._sharded(n, facts)
        # Evenly, but all of them before the end, where passes begin that need the results.
        turns = [min(begin + k / len(groups) * (end - begin), math.nextafter(end, begin)) for k in range(len(groups))]
        heapq.heappush(self._begun, (begin, n, BegunPass(work, waits, deque(zip(turns, groups, strict=True)))))

    def _enqueue(self, until: float) -> None:
        """Enqueue the groups of begun passes whose turn comes before a moment."""
        while self._begun and self._begun[0][0] < until:
            _, n, begun = heapq.heappop(self._begun)
            _, (gpu, states) = begun.groups.popleft()
            self._group(begun.work, begun.waits, next(self._turns[gpu]), states)
            if begun.groups:
                heapq.heappush(self._begun, (begun.groups[0][0], n, begun))
            else:
                self._end(begun.work)

    def _end(self, work: PassInFlight) -> None:
        """Let others read what a pass makes: all of its tasks have been enqueued."""
        n, facts = work.number, work.facts
        for device in work.launches:
            work.reported.append(device.report(work.computed.values(), self.gpu.first_steps[n], len(facts.steps)))
        self._origins |= dict.fromkeys(facts.pass_.stores, work)
        brought = [table for table in facts.pass_.loads if self.gpu.brings(table, n)]
        self._sources |= dict.fromkeys((*facts.pass_.stores, *brought), work)
        self._pending[n] = work

    def _sharded(self, n: int, facts: PassFacts) -> list[tuple[int, States]]:
        """Return the device and the states of each group: first that of the pilot task, then the devices by turns."""
        sharding, before = self.gpu.shardings.passes[n], Counter[int]()
        groups: list[tuple[int, int, States]] = []
        for values in configurations([self._sizes[v] for v in facts.outer]):
            states = dict(zip(facts.outer, values, strict=True))
            gpu = sharding.gpu(states)
            groups.append((before[gpu], gpu, states))
            before[gpu] += 1
        # Within a device groups stay in C order.
        groups[1:] = sorted(groups[1:], key=lambda group: group[:2])
        return [(gpu, states) for _, gpu, states in groups]

    def _needs_host(self, number: int, table: int) -> bool:
        """Return True if producer or consumer needs the table in host memory."""
        origin = self._origins[table]
        ends = (origin.number, number)
        # Where runs are large, devices copy from the table itself; small ones the host gathers.
        return origin.facts.summed_on_host == table or not all(self._needs_no_host(table, end) for end in ends)

    def _needs_no_host(self, table: int, number: int) -> bool:
        fixed = self.chunks.passes[number].fixed
        return not self.gpu.crosses_bus(table, number) or _large_runs(self.store.part(table, dict.fromkeys(fixed, 0)))

    def _marks_of(self, facts: PassFacts, table: int) -> tuple[list[int], dict[tuple[int, ...], dict[int, StreamMark]]]:
        """Return what the tasks of a pass wait for before they read a table.

        These are the chunk variables that the pass shares with the source, the pass that put the table where it is, and
        for each of their configurations the marks behind the groups of the source.
        """
        source = self._sources[table]
        shared = [v for v in source.facts.outer if v in facts.pass_.fixed]
        marks: dict[tuple[int, ...], dict[int, StreamMark]] = {}
        for states, mark in source.parts:
            # Those of a slot are in order.
            marks.setdefault(tuple(states[v] for v in shared), {})[mark.slot] = mark
        return shared, marks

    def _group(self, work: PassInFlight, waits: Mapping[int, Any], slot: Slot, states: States) -> None:
        """Enqueue the tasks whose results are added up; all but the pilot task follow that step by step."""
        device = slot.device
        with device.cuda.current(slot.stream):
            if device not in work.launches:
                work.launches[device] = self._launches(work, device)
            # Offsets, factors and evidence come on a stream of their own.
            slot.stream.wait_event(device.uploaded)
            inner = work.facts.inner
            for n, values in enumerate(configurations([self._sizes[v] for v in inner])):
                self._task(work, waits, slot, {**states, **dict(zip(inner, values, strict=True))}, adds=n > 0)
            # Two marks: reports need the kernels alone, readers of stored parts the copies behind them as well.
            work.computed[slot.number] = slot.mark()
            if work.facts.sums_on_host:
                self._take_term(work, slot, states)
            elif work.pass_.out in work.pass_.stores:
                self._save(work, slot, work.pass_.out, states)
            work.saved[slot.number] = slot.mark()
            work.parts.append((states, work.saved[slot.number]))

    def _launches(self, work: PassInFlight, device: DeviceSlots) -> PassLaunches:
        """Return the launches of every step on a device."""
        launches = self.launches.of(work.number, device, partial(self._staged, work))
        for launch in itertools.chain.from_iterable(launches.groups):
            for place, table in launch.scaled:
                # Launches are kept from case to case, the factors of tables that the host adds up are not.
                launch.words[place] = scale_of(self._stats[table].shift, self.gpu.algebra)
        return launches

    def _task(self, work: PassInFlight, waits: Mapping[int, Any], slot: Slot, states: States, adds: bool) -> None:
        # The pilot task is the first configuration: all chunk variables in state 0.
        is_pilot = not any(states.values())
        if is_pilot:
            work.pilot = slot.device
        facts, here = work.facts, work.launches[slot.device]
        for group, loads, launches, last in zip(facts.groups, here.loads, here.groups, facts.follows, strict=True):
            for table in loads:
                self._load(work, waits, slot, table, states)
            if not is_pilot:
                self._follow(work, slot, last)
            is_last = group.steps.stop == len(facts.steps)
            # Kernels write to the table itself then, so they wait here, not the copy behind them.
            if group.out in here.in_place:
                self._wait_for_barrier(work, slot, group.out)
            step = self.gpu.first_steps[work.number] + group.steps.start
            max_min_at = slot.device.words_at(step, is_pilot)
            for launch in launches:
                launch.enqueue(slot, states, max_min_at, adds and is_last)
            if is_pilot and facts.is_followed:
                self._publish(work, slot, group.steps)
            if group.out in facts.pass_.stores and not is_last:
                self._save(work, slot, group.out, states)

    def _publish(self, work: PassInFlight, slot: Slot, steps: range) -> None:
        """Let other tasks know that the pilot task has been enqueued some steps further."""
        device = slot.device
        if len(self.gpu.devices) > 1:
            step = self.gpu.first_steps[work.number] + steps.start
            words = relayed(device.report_at(step), device.words_at(step), len(steps))
            device.launch(device.kernel("relay"), 1, words)
        work.followed += [device.event(slot.stream)] * len(steps)

    def _follow(self, work: PassInFlight, slot: Slot, last: int) -> None:
        """Let a slot wait until the pilot task is through with a step, and its device knows what that found."""
        if not work.facts.is_followed or last <= work.reached.get(slot.number, -1):
            return
        if slot.device is work.pilot:
            slot.stream.wait_event(work.followed[last])
        else:
            self._relay(work, slot, last)
        work.reached[slot.number] = last

    def _relay(self, work: PassInFlight, slot: Slot, last: int) -> None:
        """Bring what the pilot task found on another device, up to a step, unless another slot here has."""
        device, relayed_steps = slot.device, work.relayed.setdefault(slot.device, [])
        # Another slot may have relayed these steps on its own stream.
        if relayed_steps:
            slot.stream.wait_event(relayed_steps[min(last, len(relayed_steps) - 1)])
        assert work.pilot is not None
        steps = range(len(relayed_steps), last + 1)
        if steps:
            # The pilot task does its steps in order.
            slot.stream.wait_event(work.followed[last])
            step = self.gpu.first_steps[work.number] + steps.start
            words = relayed(device.words_at(step), work.pilot.report_at(step), len(steps))
            device.launch(device.kernel("relay"), 1, words)
            relayed_steps += [device.event(slot.stream)] * len(steps)

    def _load(self, work: PassInFlight, waits: Mapping[int, Any], slot: Slot, table: int, states: States) -> None:
        if table in waits:
            shared, marks = waits[table]
            slot.wait(marks[tuple(states[v] for v in shared)].values())
        here = work.launches[slot.device]
        if table in here.brings:
            self._wait_for_barrier(work, slot, table)
            part_ = self._from_host(work, slot, table, states)
            for index, piece in self.gpu.pieces(table, states):
                enqueue(slot.device.cuda, slot.stream, piece, part_[index])
        # What kernels read where it lies needs no copy.
        if table not in here.in_place:
            self._bring(work, slot, table, states)
        if table in waits:
            self._wait_for_largest(slot, table)

    def _bring(self, work: PassInFlight, slot: Slot, table: int, states: States) -> None:
        """Enqueue the copy of a part of a table to a slot, from the devices where it is resident or from the host."""
        if self.gpu.is_resident(table, work.number):
            slot.loaded += self._exchange(work, slot, table, states, to_slot=True)
            return
        part_ = self._from_host(work, slot, table, states)
        self._copy(slot, part_, slot.address + work.facts.offsets[table], to_slot=True)

    def _from_host(self, work: PassInFlight, slot: Slot, table: int, states: States) -> Array:
        """Return a part of a table on the host, from where a slot copies it."""
        part_ = self.store.part(table, states)
        slot.loaded += part_.nbytes
        if _large_runs(part_):
            return part_
        staged = self._staged(work, part_.nbytes).view(part_.dtype).reshape(part_.shape)
        staged[...] = part_
        return staged

    def _wait_for_largest(self, slot: Slot, table: int) -> None:
        """Let a slot wait until the largest entry of a whole table is known, and bring it to the device."""
        device, origin = slot.device, self._origins[table]
        if origin.facts.summed_on_host == table:
            return
        if len(self.gpu.devices) == 1:
            slot.wait(origin.computed.values())
            return
        # Once for a device: its slots share what has been gathered.
        key = origin.number, device
        if key not in self._gathered:
            for event in origin.reported:
                slot.stream.wait_event(event)
            first = self.gpu.first_steps[origin.number]
            # In pinned memory, which every device reads by itself.
            reports = [reporter.report_at(first) for reporter in origin.launches]
            words = gathered(device.gathered_at(first), reports, len(origin.facts.steps))
            device.launch(device.kernel("gather"), 1, words)
            self._gathered[key] = device.event(slot.stream)
        slot.stream.wait_event(self._gathered[key])

    def _wait_for_barrier(self, work: PassInFlight, slot: Slot, table: int) -> None:
        """Let a slot wait until nobody needs what lay where a table goes in a pass."""
        barriers = self.gpu.barriers
        lasts = barriers.resident if self.gpu.is_resident(table, work.number) else barriers.pinned
        last = lasts.get(table, -1)
        if last >= 0:
            slot.wait(self._ends[last])

    def _save(self, work: PassInFlight, slot: Slot, table: int, states: States) -> None:
        if table in work.launches[slot.device].in_place:
            if self.gpu.crosses_bus(table, work.number):
                # Whole, in the memory of the host.
                slot.stored += self.chunks.plan.tables[table].entries * self.gpu.dtype.itemsize
            return
        self._wait_for_barrier(work, slot, table)
        if self.gpu.is_resident(table, work.number):
            slot.stored += self._exchange(work, slot, table, states, to_slot=False)
            return
        part_ = self.store.part(table, states)
        slot.stored += part_.nbytes
        target = part_
        if not _large_runs(part_):
            target = self._staged(work, part_.nbytes).view(part_.dtype).reshape(part_.shape)
            work.late.append((target, part_))
        # Into pinned memory if need be: the copy to the table itself follows when the pass is closed.
        self._copy(slot, target, slot.address + work.facts.offsets[table], to_slot=False)

    def _take_term(self, work: PassInFlight, slot: Slot, states: States) -> None:
        entries = part(self.chunks.plan, work.pass_.out, work.pass_.fixed)
        term = self._staged(work, entries * self.gpu.dtype.itemsize).view(self.gpu.dtype)
        slot.stored += term.nbytes
        # By configuration, because terms are added up in that order, whenever they arrive.
        work.terms[tuple(states[v] for v in work.pass_.fixed)] = term
        self._copy(slot, term, slot.address + work.facts.offsets[work.pass_.out], to_slot=False)

    def _staged(self, work: PassInFlight, size: int) -> Array:
        """Return bytes of the host that copies may use until the pass is closed."""
        staging = self.gpu.staging
        while (staged := staging.take(size, work.number)) is None:
            oldest = staging.oldest
            if oldest not in self._pending:
                break
            # Waits for the devices: the ring is as large as it is so that this stays rare.
            self._close_through(oldest)
        if staged is None:
            # Slow: copies from memory that is not pinned go through buffers of the driver.
            staged = np.empty(size, np.uint8)
            work.kept.append(staged)
        return staged

    def _exchange(self, work: PassInFlight, slot: Slot, table: int, states: States, to_slot: bool) -> int:
        """Enqueue what brings a part of a resident table to a slot, or from there; returns its bytes."""
        exchange = self.launches.exchange(work.number, table, states, to_slot)
        exchange.enqueue(slot)
        return exchange.nbytes

    def _copy(self, slot: Slot, table: Array, address: int, to_slot: bool) -> None:
        """Enqueue the copies of an array of the host to an address in a slot or from there."""
        device = slot.device
        if table.nbytes <= CARRIED_BYTES and table.flags.c_contiguous and self.gpu.reaches(table):
            ends = (address, table.ctypes.data) if to_slot else (table.ctypes.data, address)
            blocks = -(-table.size // entries_gpu.THREADS)
            device.launch(device.kernel("carry"), blocks, carried(*ends, table.size))
            return
        part_ = device_view(address, table.size, self.gpu.dtype).reshape(table.shape)
        target, source = (part_, table) if to_slot else (table, part_)
        enqueue(device.cuda, slot.stream, target, source)

    def _close_through(self, number: int) -> None:
        """Close the enqueued passes up to a number, once the devices are through with them."""
        # In order, so that what a pass reads has been reported.
        for work in self._in_order():
            if work.number > number:
                return
            if not work.is_done():
                with ENQUEUING.left():
                    work.wait()
            self._close(work)

    def _close_done(self) -> None:
        """Close the first of the enqueued passes that the devices are through with."""
        for work in self._in_order():
            if not work.is_done():
                return
            self._close(work)

    def _in_order(self) -> list[PassInFlight]:
        """Return the enqueued passes in the order in which they began."""
        return [self._pending[n] for n in sorted(self._pending)]

    def _close(self, work: PassInFlight) -> None:
        """Report a pass that the devices are through with."""
        for source, target in work.late:
            target[...] = source
        # Of results that the host adds up the words on devices know the terms only.
        of_sums, steps = self._add_up(work), work.facts.steps
        words = self.gpu.reports(work.launches, self.gpu.first_steps[work.number], len(steps))
        algebra = self.gpu.algebra
        largest, least = extremes_of(words.max(axis=(0, 2)), algebra)
        pilot, _ = extremes_of(words[:, :, 0].max(axis=0), algebra)
        # What is not a number counts as beyond the format.
        largest = np.where(np.isnan(largest), np.inf, largest)
        largest[-1] = max(largest[-1], of_sums)
        made = [step.out for step in steps]
        max_min = dict(zip(made, zip(largest.tolist(), least.tolist(), strict=True), strict=True))
        # Inside a chain results stay in registers, where nothing scales them.
        shifts = [0 if n in work.facts.inside else shift_of(entry, algebra) for n, entry in enumerate(pilot)]
        factors = dict.fromkeys(made, algebra.one)
        self._update(PassReport(work.number, max_min, factors, dict(zip(made, shifts, strict=True))))
        del self._pending[work.number]
        self.gpu.staging.release(work.number)
        work.late.clear()
        work.kept.clear()

    def _add_up(self, work: PassInFlight) -> float:
        """Add up the results that came to the host, in order of configurations; returns the largest entry."""
        pass_, totals, largest = work.pass_, dict[tuple[int, ...], Array](), self.gpu.algebra.zero
        kept = len(pass_.fixed) - len(pass_.summed)
        # Sorted: floating-point sums depend on the order, and slots finish in any.
        for states, term in sorted(work.terms.items(), key=lambda term: term[0]):
            if states[:kept] in totals:
                add_to(totals[states[:kept]], term, self.gpu.algebra)
            else:
                totals[states[:kept]] = term
        for states, total in totals.items():
            largest = max(largest, largest_of(total))
            if pass_.out in pass_.stores:
                target = self.store.part(pass_.out, dict(zip(pass_.fixed, states, strict=False)))
                target[...] = total.reshape(target.shape)
        work.terms.clear()
        return largest


def _large_runs(host: Array) -> bool:
    """Return True if an array is best copied from where it is."""
    if host.flags.c_contiguous:
        return True
    return host.shape[-1] * host.itemsize >= RUN_BYTES and host.strides[-1] == host.itemsize
