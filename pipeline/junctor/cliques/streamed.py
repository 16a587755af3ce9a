"""Stored cliques that are larger than the device: chunks of them go through it, from pinned host memory and back.

Three pipelines, after Bistaffa, Farinelli and Bombieri (2014): one chunk after the other ("none"); copies either way in
one queue beside the kernels ("one"), for devices with one copy engine (their figure 7); a queue for either way ("two"),
for devices with two (figure 8). At most so many chunks are in flight at a time, each in its own slot of the device's
memory (figure 9).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu.stored import CliqueDevice, PlacedBatch, upload_batch
from junctor_kernels.gpu.stored_tasks import MOST_ENTRIES, CliqueLaunch, TaskBatch
from junctor_kernels.tables.reference import Algebra
from junctor_kernels.tables.views import Box, boxes, place

from junctor.cliques.device import Separators, add_message_tasks, add_pass
from junctor.cliques.host import CliqueOutcome, Initial, Likelihoods, scaled_evidence
from junctor.cliques.parts import Trace, What, marked
from junctor.model.options import PipelineName
from junctor.planning.budget import Budget, format_bytes
from junctor.planning.cliques import SUM, UP, CliqueOperand, CliquePass, StoredPlan, passes, table_plan, widest
from junctor.planning.first_fit import side_by_side

Array = npt.NDArray[Any]

# Chunks whose tasks are copied to the device together.
GROUP = 64


class ChunkWriteBack(NamedTuple):
    """A chunk that has to go back: its slot, where it is copied to, the event behind its kernels, and its table."""

    slot: int
    target: Array
    ready: Any
    table: Hashable


class Pipeline:
    """Brings chunks into slots, works on them and takes them out.

    device: that the chunks go through.
    name: how copies and kernels overlap.
    slots: addresses on the device, one for each chunk that may be in flight.
    batches: addresses for tasks, used in turn.
    trace: gets the times of all copies and of the work on each chunk.
    """

    def __init__(
        self,
        device: CliqueDevice,
        name: PipelineName,
        slots: Sequence[int],
        batches: Sequence[int],
        trace: Trace | None = None,
    ) -> None:
        self._device = device
        self._slots = slots
        self._batches = batches
        self._trace = trace
        self.work = device.stream()
        self._in = self.work if name == "none" else device.stream()
        # One queue for both ways where the device has one copy engine: two would only take turns.
        self._out = device.stream() if name == "two" else self._in
        self._synchronous = name == "none"
        self._free: list[Any] = [None] * len(slots)
        self._stored: dict[Hashable, Any] = {}
        self._waiting: deque[ChunkWriteBack] = deque()
        self._chunks = 0
        self._groups = 0
        # For each address of tasks: the event behind the last kernels that read it, and the memory it was copied from.
        self._done: list[Any] = [None] * len(batches)
        self._sent: list[Any] = [None] * len(batches)

    def next_slots(self, count: int) -> list[int]:
        """Return the addresses of the slots that the next chunks go to."""
        return [self._slots[(self._chunks + n) % len(self._slots)] for n in range(count)]

    def put_tasks(self, batch: TaskBatch) -> tuple[list[CliqueLaunch], PlacedBatch]:
        """Enqueue the tasks of the next chunks in front of them; returns their launches and where they lie."""
        self._groups += 1
        turn = self._groups % len(self._batches)
        if (before := self._done[turn]) is not None:
            # Behind these kernels the memory that the tasks were copied from may be used again as well.
            self._device.synchronize(before)
        launches, placed, self._sent[turn] = upload_batch(self._device, batch, self._batches[turn], self._in)
        return launches, placed

    def read(self, table: Hashable) -> None:
        """Let the next chunks wait for all that was stored of a table: they are read from it."""
        if any(store.table == table for store in self._waiting):
            self._store_all()
        if table in self._stored:
            self._device.wait(self._in, self._stored[table])

    def put(self, source: Array, target: Array | None, table: Hashable, work: Callable[[Any], None]) -> None:
        """Enqueue a chunk: copied from `source`, worked on, and copied to `target`, a part of `table`, if there is one.

        work: enqueues the kernels in a stream.
        """
        device, slot = self._device, self._chunks % len(self._slots)
        # The slot's last chunk must be on its way out before the next one comes in.
        if any(store.slot == slot for store in self._waiting):
            self._store_all()
        # The device waits, not the host, which enqueues ahead.
        if self._free[slot] is not None:
            device.wait(self._in, self._free[slot])
        ready = self._timed("in", self._in, lambda: device.upload(source, self._slots[slot], self._in))
        device.wait(self.work, ready)
        ready = self._timed("work", self.work, lambda: work(self.work))
        self._done[self._groups % len(self._batches)] = ready
        # Copies out wait until the next chunk is on its way in: in one queue they would hold it up.
        self._store_all()
        self._free[slot] = ready
        if target is not None:
            self._waiting.append(ChunkWriteBack(slot, target, ready, table))
        self._chunks += 1
        # The baseline of the paper: nothing overlaps.
        if self._synchronous:
            self._store_all()
            device.synchronize(device.record(self.work))

    def finish(self) -> None:
        """Wait until everything is done."""
        self._store_all()
        for stream in (self._in, self.work, self._out):
            self._device.synchronize(self._device.record(stream))

    def _store_all(self) -> None:
        while self._waiting:
            slot, target, ready, table = self._waiting.popleft()
            self._device.wait(self._out, ready)
            address = self._slots[slot]

            def copy(address: int = address, target: Array = target) -> None:
                self._device.download(address, target, self._out)

            self._free[slot] = self._stored[table] = self._timed("out", self._out, copy)

    def _timed(self, what: What, stream: Any, enqueue: Callable[[], None]) -> Any:
        """Enqueue something; returns the event behind it."""
        return marked(self._trace, lambda: self._device.record(stream), what, enqueue)


class StreamLayout(NamedTuple):
    """Offsets on the device in bytes: separators, parts of sums, tasks (two buffers in turn), slots for chunks.

    size: of all of it.
    chunk: the most entries of a chunk.
    """

    size: int
    separators: Separators
    parts: int
    batches: tuple[int, ...]
    slots: tuple[int, ...]
    chunk: int


class ChunkGroup(NamedTuple):
    """Chunks of a table whose tasks are copied to the device together; the last one has those of the messages."""

    work: CliquePass
    boxes: tuple[Box, ...]
    last: bool


def groups(plan: StoredPlan, work: CliquePass, chunk: int) -> Iterator[ChunkGroup]:
    """Cut the table of a pass into chunks, and those into groups."""
    cut = boxes(plan.cliques[work.clique].shape(plan.sizes), chunk)
    here = tuple(islice(cut, GROUP))
    while here:
        following = tuple(islice(cut, GROUP))
        yield ChunkGroup(work, here, not following)
        here = following


def tasks_of(
    plan: StoredPlan, separators: Separators, group: ChunkGroup, dtype: np.dtype[Any], slots: Sequence[int], parts: int
) -> tuple[TaskBatch, list[int], int]:
    """Return the tasks of a group, how many launches there are up to each chunk, and the bytes for parts of sums.

    slots: address of each chunk. The launches that make messages count to the last chunk.
    """
    batch, ends, most = TaskBatch(dtype), [], 0
    for box, slot in zip(group.boxes, slots, strict=False):
        most = max(most, add_pass(batch, separators, plan, group.work, box, (slot, slot), parts, True))
        ends.append(batch.close())
    # Messages need the sums of all chunks.
    if group.last:
        add_message_tasks(batch, separators, plan, group.work)
        ends[-1] = batch.close()
    return batch, ends, most


def lay_out(plan: StoredPlan, algebra: Algebra, allowed: int, in_flight: int, chunk: int | None) -> StreamLayout:
    """Return the layout with the largest chunks, up to `chunk` entries, that fits the bytes allowed.

    in_flight: chunks in flight at most (the paper's max_s).
    Raises BudgetError where not even chunks of one entry fit.
    """
    work = [widest(plan, i) for i in range(len(plan.cliques))]
    largest = max(plan.entries(i) for i in range(len(plan.cliques)))
    item = algebra.dtype.itemsize
    entries, least = min(largest, MOST_ENTRIES, chunk or largest, max(1, allowed // (in_flight * item))), 1 << 62
    while True:
        layout = _laid_out(plan, algebra, work, in_flight, entries)
        if layout.size <= allowed:
            return layout
        # Small chunks have more tasks, so that the smallest need not take least.
        least = min(least, layout.size)
        if entries == 1:
            advice = "allow more device memory (--device-memory), or ask for posteriors without stored cliques"
            raise Budget(allowed).refuse(least, "streaming stored cliques through the device", advice)
        # Not the exact largest: what tasks take is known only when they are laid out.
        entries = max(1, entries * 3 // 4)


def _laid_out(
    plan: StoredPlan, algebra: Algebra, work: Sequence[CliquePass], in_flight: int, entries: int
) -> StreamLayout:
    # Laid out in full, tasks included: their bytes follow from no formula.
    separators, dtype = Separators(plan, algebra), algebra.dtype
    parts = tasks = 0
    for pass_ in work:
        # Chunks of a table are alike: the first and the last group take the most.
        cut = list(groups(plan, pass_, entries))
        for group in (cut[0], cut[-1]):
            batch, _, used = tasks_of(plan, separators, group, dtype, [0] * GROUP, 0)
            parts, tasks = max(parts, used), max(tasks, batch.size())
    batches = {("tasks", n): tasks for n in range(2)}
    slots = {("slot", n): entries * dtype.itemsize for n in range(in_flight)}
    offsets, size = side_by_side({**separators.sizes, "parts": parts, **batches, **slots})
    batch_offsets, slot_offsets = (tuple(offsets[name] for name in names) for names in (batches, slots))
    return StreamLayout(size, separators, offsets["parts"], batch_offsets, slot_offsets, entries)


class StreamedExecutor:
    """The tables in memory of this machine, streamed through a device that need not hold any of them.

    plan: of the tree.
    initial: table of every clique, in pinned memory of the device (`CliqueDevice.host`) or slow.
    layout: as `lay_out` returns it.
    pipeline: how copies and kernels overlap.
    in_place: whether initial tables become the calibrated ones.
    trace: gets the times of all copies and kernels.
    memory: of the device, of at least the size of the layout; None to allocate it.
    """

    def __init__(
        self,
        plan: StoredPlan,
        initial: Sequence[Initial],
        algebra: Algebra,
        device: CliqueDevice,
        layout: StreamLayout,
        pipeline: PipelineName = "two",
        in_place: bool = False,
        trace: Trace | None = None,
        memory: Any = None,
    ) -> None:
        self._plan = plan
        self._algebra = algebra
        self._dtype = algebra.dtype
        self._device = device
        self._pipeline = pipeline
        self._trace = trace
        self._initial = initial
        self.layout = layout
        self._tables = [table if in_place else device.host(len(table), algebra.dtype) for table, _, _ in initial]
        self._memory = memory or device.allocate(self.layout.size)
        self._base = self.layout.separators.base = self._memory.ptr

    @property
    def place(self) -> str:
        """Which way tables go through the device, in words."""
        chunk = format_bytes(self.layout.chunk * self._dtype.itemsize)
        return f"through the GPU, pipeline {self._pipeline}, {len(self.layout.slots)} chunks of {chunk} in flight"

    def table(self, clique: int) -> Array:
        """Return the calibrated table of a clique."""
        return self._tables[clique]

    def sums(self, clique: int, wanted: Sequence[int]) -> Array:
        """Return the sums of a calibrated table for some of its variables: it goes through the device once more."""
        plan = table_plan(self._plan.sizes, self._plan.cliques[clique].layout, tuple(wanted))
        size, in_flight = self.layout.size, len(self.layout.slots)
        layout, initial = lay_out(plan, self._algebra, size, in_flight, self.layout.chunk), self._initial[clique]
        given = [initial._replace(table=self._tables[clique])], self._algebra, self._device
        # In the same memory: all of it is written anew for each case.
        table = StreamedExecutor(plan, *given, layout, self._pipeline, True, self._trace, self._memory)
        return table.summed()

    def summed(self) -> Array:
        """Return the sums of the only table, of a `table_plan`."""
        stream, separators = self._device.stream(), self.layout.separators
        pinned = separators.begin(self._device, {}, stream)
        self._device.synchronize(self._device.record(stream))
        del pinned
        self.run([SUM])
        return separators.download(self._device, CliqueOperand(UP, 0), self._plan.separator_entries(0), stream)

    def propagate(self, likelihoods: Likelihoods) -> CliqueOutcome:
        """Calibrate all tables."""
        evidence, stream = scaled_evidence(likelihoods, self._algebra), self._device.stream()
        separators = self.layout.separators
        pinned = separators.begin(self._device, evidence, stream)
        # Pipelines have streams of their own, which must not start before evidence is there.
        self._device.synchronize(self._device.record(stream))
        del pinned
        self.run(list(chain.from_iterable(passes(self._plan, frozenset(likelihoods)))))
        exponents, lost = [table.exponent for table in self._initial], any(table.lost for table in self._initial)
        return separators.outcome(self._device, exponents, evidence, lost, stream)

    def run(self, work: Sequence[CliquePass]) -> None:
        """Do passes one after the other, and wait for them."""
        slots = [self._base + offset for offset in self.layout.slots]
        batches = [self._base + offset for offset in self.layout.batches]
        pipeline = Pipeline(self._device, self._pipeline, slots, batches, self._trace)
        for pass_ in work:
            pipeline.read(pass_.clique)
            for group in groups(self._plan, pass_, self.layout.chunk):
                self._go_over(group, pipeline)
        # Host code reads the tables next.
        pipeline.finish()

    def _go_over(self, group: ChunkGroup, pipeline: Pipeline) -> None:
        """Enqueue the chunks of a group."""
        plan, layout, work = self._plan, self.layout, group.work
        slots = pipeline.next_slots(len(group.boxes))
        parts = self._base + layout.parts
        batch, ends, _ = tasks_of(plan, layout.separators, group, self._dtype, slots, parts)
        launches, placed = pipeline.put_tasks(batch)
        table = self._tables[work.clique]
        source = self._initial[work.clique].table if work.first else table
        # A table that is only summed need not come back.
        changes = bool(work.factors) or source is not table
        shape = plan.cliques[work.clique].shape(plan.sizes)
        # The launches of a chunk are those between the ends of its predecessor and its own.
        for box, first, end in zip(group.boxes, [0, *ends], ends, strict=False):
            start, entries = place(shape, box)
            piece = slice(start, start + entries)

            def enqueue(stream: Any, mine: Sequence[CliqueLaunch] = launches[first:end]) -> None:
                for launch in mine:
                    self._launch(launch, placed, stream)

            pipeline.put(source[piece], table[piece] if changes else None, work.clique, enqueue)

    def _launch(self, work: CliqueLaunch, placed: PlacedBatch, stream: Any) -> None:
        lost, record = self.layout.separators.lost, self._device.record
        launch = partial(self._device.launch, self._algebra.name, work, placed, lost, stream)
        if self._trace is None:
            launch()
        else:
            marked(self._trace, lambda: record(stream), work, launch)
