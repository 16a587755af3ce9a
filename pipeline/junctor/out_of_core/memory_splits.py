"""Memory splits: ways to divide the memory for rows out of core, and the seconds of a plan that is cut for one.

On a CPU a task has its tables and the scratch of its contractions, the rest is for stored tables. On a GPU memory is
divided into slots for tasks in flight; what is left keeps stored tables. `programs.cut` compares the splits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

from junctor_kernels.cpu.bytecode import ENTRIES_BYTES, ENTRIES_THREAD_BYTES
from junctor_kernels.gpu.blocks import room_of
from junctor_kernels.gpu.entries import PARTIAL_ENTRIES
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra

from junctor.backends.plan_memory import STEP_BYTES
from junctor.cost.dataset import MeasuredDevice
from junctor.cost.features.chunked_cpu import Arithmetic, chunk_work, least_work
from junctor.cost.features.chunked_gpu import gpu_counts, least_gpu_work, pass_seconds
from junctor.cost.features.names import GPU_CHUNK_WORK
from junctor.cost.features.registry import BACKENDS
from junctor.cost.figures import shipped_figures
from junctor.cost.fit import Coefficients
from junctor.cost.model import CostModel
from junctor.cost.policy import DISK_BYTE
from junctor.placement.pass_spans import side_by_side
from junctor.placement.placement import slot_bytes
from junctor.placement.residency import Places, placed
from junctor.planning.chunk_search import KEPT_STEPS, KeptChoice, MemorySplit
from junctor.planning.chunks import ChunkPlan
from junctor.planning.first_fit import aligned
from junctor.planning.plan import Likelihood, Plan, Potential, Slice
from junctor.planning.recompute import MadeAgain, made_again
from junctor.planning.shape import Pattern

# Shares of the memory that a task may take, and bytes of one whose tables stay in a cache; on a GPU, the smaller a
# task, the sooner copies and kernels overlap.
SHARES, CACHED_BYTES = (3 / 4, 1 / 2, 1 / 4, 1 / 8), 1 << 25
GPU_SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 3 / 4)
# Groups of tasks in flight at once on a GPU, of which the number is chosen: more where that takes so much less.
SLOTS, USUAL_SLOTS, SLOT_GAIN = (1, 2, 3, 4, 6), 3, 0.995
# Most that sums of terms take on a GPU.
PARTIAL_BYTES = 2 * PARTIAL_ENTRIES * 8
# Share of a task's memory that scratch may take: of NumPy, and of compiled contractions for more than one thread.
SCRATCH_SHARE = 1 / 4
# Threads of compiled contractions that memory is kept for: a plan must not depend on how many there are.
MOST_THREADS = 64
# Bytes of a device that offsets of launches may take beside the slots.
OFFSET_BYTES = 1 << 26
# Bytes of pinned memory for offsets and small parts in transit.
STAGING_BYTES = 1 << 25
# Launches that are kept for the next case.
MOST_KEPT = 1 << 15
# Bytes that NumPy takes for each entry of a block. With each entry of a table there may be a byte of a mask.
NUMPY_ENTRY, MASK_BYTES = reference.SCRATCH_ARRAYS * 8, 1
# What NumPy and Python take for themselves while tasks are done: buffers, views that wait for the collector, frames.
INTERPRETER_BYTES = 1 << 19
# A launch that is kept for the next case, with what Python takes for it.
LAUNCH_BYTES = 3072

# A GPU of which nothing was measured in chunks: what is busiest of a pass takes as long as its rates say.
_NOMINAL = Coefficients(tuple(float(name in ("busiest", "behind")) for name in GPU_CHUNK_WORK), (0.0,) * 5, (0.0, 0.0))
NOMINAL = CostModel(MeasuredDevice("rates"), {name: _NOMINAL for name in BACKENDS if name.startswith("chunks-gpu")})


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """What rows out of core may take, in bytes.

    memory: of everything in this machine's memory.
    task: of the tables and the scratch of a task, None where only `memory` bounds it.
    disk: of files.
    folder: where files lie.
    threads: of contractions.
    on_gpu: whether tasks have the memory of a GPU, `task` of it, and none of `memory`.
    asked: with what evidence and answers take, as the user knows it; 0 where it is not known.
    seconds: that a row may take, of a core or a GPU.
    """

    memory: int
    task: int | None
    disk: int
    folder: Path
    threads: int = 1
    on_gpu: bool = False
    asked: int = 0
    seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class CpuSplit(MemorySplit):
    """A memory split on a CPU.

    scratch: bytes of the contractions of a task.
    arithmetic: how these are done.
    threads: of compiled ones, else 0.
    """

    scratch: int = 0
    arithmetic: Arithmetic = field(default_factory=lambda: Arithmetic(8, reference.SCRATCH_ENTRIES, False))
    threads: int = 0


class Overlap(NamedTuple):
    """How the tasks of a cut plan overlap on a GPU.

    one: slots with one pass at a time.
    two: slots with two of them side by side, 0 where that takes longer.
    """

    one: int
    two: int = 0


class KeptSearch(KeptChoice, Protocol):
    """Where another process finds what a search chose, and how the tasks of the plan overlap, which takes a second."""

    def find_overlap(self) -> Overlap | None:
        """Return how they do, None where it is not known."""

    def keep_overlap(self, overlap: Overlap) -> None:
        """Keep how they do."""

    def find_slices(self) -> tuple[tuple[int, ...], int] | None:
        """Return the variables that are held constant and the operations without that; None where it is not known."""

    def keep_slices(self, variables: tuple[int, ...], whole: int) -> None:
        """Keep which variables are held constant, and the operations of a row by the plan without that."""

    def of_slices(self, variables: tuple[int, ...]) -> KeptSearch:
        """Return where the choice for the slices of a row is kept."""


class CpuSplits:
    """Ways to divide the memory of this machine. costs: of its CPU. rows: cases to come."""

    def __init__(self, limits: MemoryLimits, algebra: Algebra, costs: CostModel, rows: int) -> None:
        self._limits, self._rows, self._itemsize = limits, rows, algebra.dtype.itemsize
        self._costs, self._algebra = costs, algebra
        # To count the work of a plan takes as long as to lay it out, and each is asked about several times.
        self._known: dict[tuple[int, bool], tuple[Plan, float]] = {}

    @property
    def room(self) -> int:
        """Bytes that tables may take anywhere."""
        return self._limits.memory + self._limits.disk

    def fixed(self, plan: Plan) -> int:
        """Return what a plan takes of the memory however it is divided."""
        return fixed_bytes(plan)

    def splits(self, plan: Plan) -> list[CpuSplit]:
        """Return the ways to divide the memory that a plan leaves, the largest task first."""
        free, most = self._limits.memory - fixed_bytes(plan), self._limits.task
        saved = self._rows * (self._least(plan, False) - self._least(plan, True))
        # Large tasks move less, small ones leave more memory to stored tables: the cost model decides.
        shares = [int(free * share) for share in SHARES]
        sizes = [*shares, min(CACHED_BYTES, shares[-1])]
        # Under a small `task` limit several sizes become one.
        sizes = list(dict.fromkeys(min(free if most is None else most, size) for size in sizes))
        splits: list[CpuSplit] = []
        for task in sizes:
            kept = compiled_bytes(task) if saved > self._costs.figures.loading.blocks else task
            if kept < task:
                threads = min(self._limits.threads, (kept - ENTRIES_BYTES) // ENTRIES_THREAD_BYTES)
                splits.append(self._split(free, task, kept, reference.SCRATCH_ENTRIES, threads))
            # Where compiled contractions leave the tables little room, NumPy may need fewer chunks.
            if kept >= task or kept > SCRATCH_SHARE * task:
                entries = min(reference.SCRATCH_ENTRIES, max(1, int(task * SCRATCH_SHARE) // NUMPY_ENTRY))
                splits.append(self._split(free, task, entries * NUMPY_ENTRY, entries, 0))
        return splits

    def _split(self, free: int, task: int, scratch: int, entries: int, threads: int) -> CpuSplit:
        # NumPy masks zeros of an operand with a byte for each entry.
        tables = (task - scratch) * self._itemsize // (self._itemsize + MASK_BYTES)
        arithmetic = Arithmetic(self._itemsize, entries, threads > 0)
        return CpuSplit(tables, free - task, self._limits.disk, scratch, arithmetic, threads)

    def beyond(self, chunks: ChunkPlan, split: MemorySplit) -> int:
        """Return 0: stored tables have the memory of a split as it is."""
        return 0

    def aside(self, chunks: ChunkPlan, split: MemorySplit) -> int:
        """Return the bytes of stored tables in files."""
        return chunks.peak(on_disk=True) * self._itemsize

    def least(self, plan: Plan) -> float:
        """Return about what a case of a plan takes at the least."""
        return min(self._least(plan, compiled) for compiled in (True, False))

    def _least(self, plan: Plan, compiled: bool) -> float:
        key = id(plan), compiled
        if key not in self._known:
            how = Arithmetic(self._itemsize, reference.SCRATCH_ENTRIES, compiled)
            seconds = self._costs.seconds(backend_of(self._algebra, compiled), least_work(plan, how))
            # With the plan, whose number stays its own while it lives.
            self._known[key] = plan, seconds
        return self._known[key][1]

    def seconds(self, chunks: ChunkPlan, split: MemorySplit) -> float:
        """Return about what a case takes on one thread."""
        assert isinstance(split, CpuSplit)
        backend = backend_of(self._algebra, split.arithmetic.compiled)
        work = self._costs.seconds(backend, chunk_work(chunks, split.arithmetic))
        return work + disk_seconds(chunks, self._itemsize)

    def chunking(self, chunks: ChunkPlan, split: MemorySplit, kept: KeptSearch | None = None) -> ChunkRoute:
        """Return the route of a plan that was cut for a split; there is nothing to choose."""
        assert isinstance(split, CpuSplit)
        working = split.scratch + chunks.working * (self._itemsize + MASK_BYTES)
        seconds, scratch = self.seconds(chunks, split), split.arithmetic.scratch
        return ChunkRoute(chunks, self._limits, self._itemsize, working, working, seconds, scratch, split.threads)


class GpuSplits:
    """Ways to divide the memory of GPUs that share the tasks. costs: of one of them. rows: cases to come."""

    def __init__(self, limits: MemoryLimits, algebra: Algebra, costs: CostModel, gpus: int, rows: int = 1) -> None:
        self._limits, self._itemsize, self._gpus, self._rows = limits, algebra.dtype.itemsize, gpus, rows
        (self._backend,) = priced_backends(algebra, on_gpu=True)
        self._step = costs.figures.planning.cutting_step
        # A GPU that has never been measured in chunks still gets a plan.
        self._costs = costs if self._backend in costs.coefficients else NOMINAL
        self._whole = (limits.task if limits.task is not None else limits.memory) - OFFSET_BYTES
        # Of the plans that are alive: to find it takes as long as the counts of a number of slots.
        self._slot: WeakKeyDictionary[ChunkPlan, int] = WeakKeyDictionary()
        # With the plan, whose number stays its own while it lives.
        self._leasts: dict[int, tuple[Plan, float]] = {}

    def fixed(self, plan: Plan) -> int:
        """Return what a plan takes of the memory however it is divided."""
        return fixed_bytes(plan) + launch_bytes(plan)

    @property
    def room(self) -> int:
        """Bytes that tables may take anywhere."""
        return self._limits.memory + self._limits.disk + self._gpus * self._whole

    def _slot_bytes(self, chunks: ChunkPlan) -> int:
        if chunks not in self._slot:
            self._slot[chunks] = slot_bytes(chunks, self._itemsize)
        return self._slot[chunks]

    def splits(self, plan: Plan) -> list[MemorySplit]:
        """Return the ways to divide the memory, the smallest task first; tables are stored on GPUs and on the host."""
        # More tasks, where there are several to do them.
        smaller = [GPU_SHARES[0] / 2**n for n in range(self._gpus.bit_length() - 1, 0, -1)]
        tasks = [int(self._whole * share) for share in (*smaller, *GPU_SHARES)]
        free = self._limits.memory - self.fixed(plan)
        left = [self._gpus * max(0, self._whole - task) for task in tasks]
        disk = self._limits.disk
        return [MemorySplit(task - PARTIAL_BYTES, free + more, disk) for task, more in zip(tasks, left, strict=True)]

    def beyond(self, chunks: ChunkPlan, split: MemorySplit) -> int:
        """Return the bytes by which stored tables exceed the host: those that have no room on GPUs beside one slot."""
        return self._beyond(chunks, 1)

    def aside(self, chunks: ChunkPlan, split: MemorySplit) -> int:
        """Return the bytes of stored tables on the host and in files."""
        return self._places(chunks, self._usual(chunks)).pinned_bytes + chunks.peak(on_disk=True) * self._itemsize

    def _beyond(self, chunks: ChunkPlan, slots: int) -> int:
        free = self._limits.memory - self.fixed(chunks.plan)
        # To place them takes a while.
        if chunks.peak(on_disk=False) * self._itemsize <= free:
            return 0
        return max(0, self._places(chunks, slots).pinned_bytes - free)

    def _places(self, chunks: ChunkPlan, slots: int) -> Places:
        rates = shipped_figures().gpu_rates
        left = self._left(chunks, slots)
        return placed(chunks, self._itemsize, left, self._gpus, bus=rates.bus, device=rates.copy)

    def least(self, plan: Plan) -> float:
        """Return about what a case of a plan takes at the least."""
        if id(plan) not in self._leasts:
            seconds = self._costs.seconds(self._backend, least_gpu_work(plan, self._itemsize))
            self._leasts[id(plan)] = plan, seconds
        return self._leasts[id(plan)][1]

    def seconds(self, chunks: ChunkPlan, split: MemorySplit) -> float:
        """Return about what a case takes, with as many slots as are usually best, and its share of pinning memory."""
        slots = self._usual(chunks)
        pinning = self._places(chunks, slots).pinned_bytes * self._costs.figures.gpu_host.pinned_byte
        return self.seconds_with(chunks, slots) + pinning / self._rows

    def _usual(self, chunks: ChunkPlan) -> int:
        """Return the number of slots that is usually best, or the next one below that fits."""
        numbers = range(min(USUAL_SLOTS, self.most_slots(chunks)), 1, -1)
        return next((slots for slots in numbers if not self._beyond(chunks, slots)), 1)

    def most_slots(self, chunks: ChunkPlan) -> int:
        """Return the number of slots that there is room for; one has to fit."""
        return max(1, self._whole // self._slot_bytes(chunks))

    def seconds_with(self, chunks: ChunkPlan, slots: int) -> float:
        """Return about what a case takes with so many slots."""
        counts = self._counts(chunks, slots)
        work = self._costs.seconds(self._backend, {name: counts[name] for name in GPU_CHUNK_WORK})
        return work + disk_seconds(chunks, self._itemsize)

    def host_seconds(self, chunks: ChunkPlan, slots: int) -> float:
        """Return about what the host takes to enqueue a case."""
        return self._counts(chunks, slots)["host"]

    def _counts(self, chunks: ChunkPlan, slots: int) -> Mapping[str, float]:
        return gpu_counts(chunks, self._itemsize, slots, self._left(chunks, slots), self._gpus)

    def _left(self, chunks: ChunkPlan, slots: int) -> int:
        # What slots leave keeps resident tables, so more slots mean more traffic over the bus.
        return max(0, self._whole - slots * self._slot_bytes(chunks))

    def chunking(self, chunks: ChunkPlan, split: MemorySplit, kept: KeptSearch | None = None) -> ChunkRoute:
        """Return the route of a plan that was cut for a split, with the slots and the order that take least.

        kept: what an earlier call for the same plan chose, or where this one leaves it.
        """
        fitting = [slots for slots in SLOTS if slots <= self.most_slots(chunks)]
        found = kept.find_overlap() if kept is not None else None
        if found is not None and {found.one, found.two or found.one} <= set(fitting):
            slots = found.two or found.one
            there = self._side_by_side(chunks, found.one) if found.two else chunks
            if self._fits(there, slots):
                return self._route(there, self.seconds_with(there, slots), slots)
        seconds, slots = self._best_slots(chunks, fitting)
        overlap = Overlap(slots)
        if self._pays(chunks, seconds):
            beside = self._side_by_side(chunks, slots)
            # Two passes have as many slots, or some more.
            first = fitting.index(slots)
            if not chunks.on_disk and self._fits(beside, slots):
                less, more = self._best_slots(beside, fitting[first : first + 2])
                if less < seconds:
                    overlap, seconds, slots, chunks = Overlap(slots, more), less, more, beside
        if kept is not None and len(chunks.plan.steps) * len(fitting) >= KEPT_STEPS:
            kept.keep_overlap(overlap)
        return self._route(chunks, seconds, slots)

    def _fits(self, chunks: ChunkPlan, slots: int) -> bool:
        return not self._beyond(chunks, slots)

    def _pays(self, chunks: ChunkPlan, seconds: float) -> bool:
        """Return True if cases that take so long may take less by as much as looking further takes."""
        return self._rows * (seconds - self.least(chunks.plan)) > self._step * len(chunks.plan.steps)

    def _route(self, chunks: ChunkPlan, seconds: float, slots: int) -> ChunkRoute:
        working, overhead = OFFSET_BYTES + slots * self._slot_bytes(chunks), launch_bytes(chunks.plan)
        places = self._places(chunks, slots)
        return ChunkRoute(
            chunks,
            self._limits,
            self._itemsize,
            working,
            overhead,
            seconds,
            slots=slots,
            pinned=places.pinned_bytes,
            resident=places.resident_bytes(chunks, self._itemsize),
        )

    def _best_slots(self, chunks: ChunkPlan, numbers: Sequence[int]) -> tuple[float, int]:
        """Return the seconds of a case with the best number of slots, of some in ascending order, and that number."""
        # The first one fits.
        best = max(numbers[0], min(self._usual(chunks), numbers[-1]))
        seconds = self.seconds_with(chunks, best)
        if not self._pays(chunks, seconds):
            return seconds, best
        seconds, best = math.inf, numbers[0]
        for slots in numbers:
            if slots > numbers[0] and not self._fits(chunks, slots):
                break
            # Of about equals the fewest slots.
            if (this := self.seconds_with(chunks, slots)) < SLOT_GAIN * seconds:
                seconds, best = this, slots
        return seconds, best

    def _side_by_side(self, chunks: ChunkPlan, slots: int) -> ChunkPlan:
        """Return a plan with passes side by side."""
        return side_by_side(chunks, pass_seconds(chunks, self._itemsize, slots, self._left(chunks, slots), self._gpus))


def gpu_room(device: MeasuredDevice, allowed: int | None) -> int:
    """Return the bytes of a GPU that rows may take: those allowed, None for a share of all; it need not be here."""
    return room_of(device.figures["memory"], allowed)


def device_bytes(task: int) -> int:
    """Return the bytes of a GPU on which the tables of a task may take so many: the inverse of `GpuSplits.splits`."""
    return aligned(math.ceil((task + PARTIAL_BYTES) / max(GPU_SHARES))) + OFFSET_BYTES


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """GPUs that answer rows in chunks: a row has one of them, or several of a machine that reach each other's memory.

    each: GPUs of a machine.
    machines: with so many GPUs each.
    processes: whether rows side by side have a process each, with GPUs of workers; else a thread of this process each.
    most: bytes of memory that one process may take, None for all that its machine has for rows.
    opening: seconds until a GPU beside the first one answers rows.
    """

    each: int
    machines: int = 1
    processes: bool = False
    most: int | None = None
    opening: float = 0.0

    @property
    def count(self) -> int:
        """GPUs of all machines."""
        return self.each * self.machines

    def share(self, limits: MemoryLimits, beside: int) -> MemoryLimits:
        """Return the limits of each of so many rows on a machine; limits: of the machine."""
        memory = limits.memory // beside
        if self.most is not None:
            memory = min(memory, self.most)
        # No files beside others: what is that large had better have all GPUs.
        return replace(limits, memory=memory, disk=limits.disk if beside == 1 else 0)


@dataclass(frozen=True, slots=True)
class SideBySide:
    """How GPUs, or workers, answer rows of one plan: several at a time, each on a share of the GPUs of a machine.

    gpus: how many a machine has, 1 for a CPU.
    rows: at a time, at the most, on all machines.
    seconds: GPUs that share a row -> about what it takes.
    host: seconds of a row in which its thread keeps all others from running; 0 where rows have processes.
    again: seconds to prepare a row's share of the GPUs anew.
    machines: how many there are.
    """

    gpus: int
    rows: int
    seconds: Mapping[int, float]
    host: float
    again: float
    machines: int = 1

    def share(self, abreast: int) -> int:
        """Return the GPUs that each of so many rows at a time has."""
        return self.gpus // -(-abreast // self.machines)

    def rounds(self, rows: int) -> list[tuple[int, int]]:
        """Return which rows go how many at a time: (rows, at a time), first those of full rounds, then what is left."""
        if not rows:
            return []
        return min((self._rounds(rows, abreast) for abreast in range(min(self.rows, rows), 0, -1)), key=self.total)

    def _rounds(self, rows: int, abreast: int) -> list[tuple[int, int]]:
        left = rows % abreast
        # Few rows that are left take more GPUs each, where that pays for preparing them.
        spread = [(rows - left, abreast), (left, left)]
        same = [(rows, abreast)]
        return spread if left and self.total(spread) < self.total(same) else same

    def total(self, rounds: Sequence[tuple[int, int]]) -> float:
        """Return about what all rows take."""
        seconds = 0.0
        for rows, abreast in rounds:
            seconds += -(-rows // abreast) * max(self.seconds[self.share(abreast)], abreast * self.host)
        return seconds + self.again * sum(abreast for _, abreast in rounds[1:])


@dataclass(frozen=True, eq=False)
class ChunkRoute:
    """A plan cut for some limits.

    itemsize: bytes of an entry.
    working: bytes of the tables and the scratch of a task or, on a GPU, of all slots and offsets.
    overhead: bytes of tasks and launches in the memory of stored tables.
    seconds: of a row.
    scratch: entries of a block in NumPy.
    entry_threads: of compiled contractions, 0 where there are none.
    slots: groups of tasks in flight at once on a GPU.
    workers: that answer rows, 0 where this process does; then `memory` is that of all.
    side: how GPUs, or workers, answer several rows at a time, or slices of them. None where those of this process share
        each row.
    pinned: bytes of stored tables in the memory of the host, None for all that are in no file.
    resident: bytes of a GPU that stored tables and factors take.
    slices: variables held constant, one propagation for each of their configurations; evidence of the plan.
    whole: operations of a row by the plan without slices; 0 where there are none.
    """

    chunks: ChunkPlan
    limits: MemoryLimits
    itemsize: int
    working: int
    overhead: int
    seconds: float
    scratch: int = reference.SCRATCH_ENTRIES
    entry_threads: int = 0
    slots: int = 0
    workers: int = 0
    side: SideBySide | None = None
    pinned: int | None = None
    resident: int = 0
    slices: tuple[int, ...] = ()
    whole: int = 0

    @property
    def pattern(self) -> Pattern:
        """The evidence of a row."""
        found = self.chunks.plan.pattern
        return Pattern(found.sliced.difference(self.slices), found.weighted)

    @property
    def propagations(self) -> int:
        """Propagations of a row."""
        return self.chunks.plan.shape.entries(self.slices)

    def rounds(self, rows: int) -> list[tuple[int, int]]:
        """Return which rows go how many at a time, as of `SideBySide.rounds`; slices of a row, where there are some."""
        if self.side is None or not rows:
            return [(rows, 1)]
        rounds = self.side.rounds(rows * self.propagations)
        return [(rows, rounds[0][1])] if self.slices else rounds

    def total(self, rows: int) -> float:
        """Return about what so many rows take."""
        if self.side is None:
            return rows * self.seconds
        propagations = rows * self.propagations
        task = shipped_figures().workers.task if self.workers else 0.0
        return self.side.total(self.side.rounds(propagations)) + propagations * task

    @property
    def operations(self) -> int:
        """Multiply-adds of a row."""
        return self.propagations * self.chunks.plan.operations

    @cached_property
    def again(self) -> MadeAgain:
        """Messages that each propagation makes again."""
        return made_again(self.chunks.plan)

    @property
    def slower(self) -> float:
        """How many times the operations of a plan without slices and without messages that are made again."""
        once = self.chunks.plan.operations - self.again.operations
        return self.operations / max(1, self.whole if self.slices else once)

    @property
    def option(self) -> str:
        """The budget that binds: of which more would help first."""
        tables, left = self.chunks.plan.tables, self.limits.disk - self.disk
        largest = max((tables[table].entries for table in self.chunks.cuts), default=0) * self.itemsize
        if self.disk and left < largest and (self.slices or self.again.messages):
            return "--disk"
        return "--memory" if self.disk or self.limits.task is None else "--device-memory"

    @cached_property
    def memory(self) -> int:
        """The peak bytes of everything that is not on a disk or a GPU."""
        stored = self.chunks.peak(on_disk=False) * self.itemsize if self.pinned is None else self.pinned
        of_row = fixed_bytes(self.chunks.plan) + stored + self.overhead
        return of_row * (self.side.rows if self.side else 1)

    @cached_property
    def disk(self) -> int:
        """The peak bytes of files."""
        return self.chunks.peak(on_disk=True) * self.itemsize

    @property
    def loaded(self) -> int:
        """Bytes of a propagation that come into the memory of tasks."""
        return self.chunks.loaded * self.itemsize

    @property
    def stored(self) -> int:
        """Bytes that go out of it."""
        return self.chunks.stored * self.itemsize


def disk_seconds(chunks: ChunkPlan, itemsize: int) -> float:
    """Return about what a disk takes to write and read the tables that go there."""
    # Written once and read once; most tables have one reader.
    return 2 * itemsize * DISK_BYTE * sum(chunks.plan.tables[table].entries for table in chunks.on_disk)


def compiled_bytes(task: int) -> int:
    """Return what compiled contractions of a task take, however many threads there are in the end."""
    # However few cores there are: plans must not depend on the machine.
    threads = max(1, min(MOST_THREADS, (int(task * SCRATCH_SHARE) - ENTRIES_BYTES) // ENTRIES_THREAD_BYTES))
    return ENTRIES_BYTES + threads * ENTRIES_THREAD_BYTES


def backend_of(algebra: Algebra, compiled: bool) -> str:
    """Return the name in the registry of rows in chunks on a CPU, by compiled contractions or NumPy's."""
    # Maxima take about as long as sums of numbers as wide.
    name = algebra.name if algebra is reference.LOG else reference.NUMBERS[algebra.dtype.itemsize]
    return f"chunks-{'' if compiled else 'plain-'}{name}"


def priced_backends(algebra: Algebra, on_gpu: bool) -> tuple[str, ...]:
    """Return the names in the registry that plans in chunks are priced by."""
    if on_gpu:
        return (f"chunks-gpu-{reference.NUMBERS[algebra.dtype.itemsize]}",)
    return backend_of(algebra, True), backend_of(algebra, False)


def launch_bytes(plan: Plan) -> int:
    """Return what passes on a GPU take in the memory of the machine: records of their launches, and staging."""
    return STAGING_BYTES + min(len(plan.steps), MOST_KEPT) * LAUNCH_BYTES


def fixed_bytes(plan: Plan) -> int:
    """Return the bytes of the program of a cut plan without tasks and stored tables."""
    made = [plan.tables[step.out].entries for step in plan.steps if isinstance(step, Potential | Slice | Likelihood)]
    sliced = [plan.shape.entries(plan.shape.scopes[factor]) for factor in plan.sliced_factors()]
    # While a table is bound there are copies of it; results are there with their posteriors.
    binding = 5 * max((*made, *sliced), default=0)
    results = 2 * sum(plan.tables[table].entries for _, table in plan.marginals)
    tables = 2 * sum(made) + 3 * sum(sliced) + binding + results
    return 8 * tables + len(plan.steps) * STEP_BYTES + INTERPRETER_BYTES
