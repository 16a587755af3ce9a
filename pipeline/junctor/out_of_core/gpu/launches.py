"""What is chosen about passes of a cut plan on GPUs before a case comes: offsets of tables, launches, copies.

`Launches` has them for the passes of a program; they are kept from case to case, as far as they do not take too much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy.typing as npt
from junctor_kernels.gpu import entries as entries_gpu
from junctor_kernels.gpu.device import Kernel
from junctor_kernels.gpu.entries import ExchangeLaunch, PartRuns, bits_of, exchanged, record
from junctor_kernels.tables.reference import Algebra

from junctor.cost.figures import shipped_figures
from junctor.out_of_core.gpu.copies import RowsCopy, common_axes, copies, device_view, enqueue_all
from junctor.out_of_core.gpu.devices import DeviceGroup, TableView
from junctor.out_of_core.gpu.slots import DeviceSlots, PreparedLaunches, Slot, StepLayout, fits_in_place
from junctor.out_of_core.memory_splits import MOST_KEPT
from junctor.out_of_core.pass_program import PartStep
from junctor.placement.fusion import FusedSteps, fused_steps
from junctor.placement.placement import outer_variables, slot_offsets, sums_on_host
from junctor.planning.chunks import ChunkPass, ChunkPlan
from junctor.planning.first_fit import ALIGNED

Array = npt.NDArray[Any]

# Address of a slot as long as it may be any of them: NumPy has no arrays at 0.
ORIGIN = ALIGNED
# Bytes of an exchange from which on it comes before the kernels of other slots.
AHEAD_BYTES = 1 << 22
# Exchanges that are kept for the next case, of some hundred bytes each.
MOST_EXCHANGES = 1 << 13


class Scale(NamedTuple):
    """What an operand is combined with.

    bits: of the number, where nothing is at an address.
    address: of words with the largest entry, from which kernels compute the scale exponent, or 0.
    of_all: whether these are the words of all tasks, not of the pilot task alone.
    """

    bits: int
    address: int = 0
    of_all: bool = False


def unscaled(algebra: Algebra) -> Scale:
    """Return what changes no entry."""
    return Scale(bits_of(algebra.one))


@dataclass(frozen=True, eq=False, slots=True)
class StepLaunch:
    """A launch of a step, or of a chain of them.

    kernel: of `entries.cu`.
    blocks: of threads.
    words: its record.
    in_slot: fields of the record that lie in a slot, and their offsets there.
    elsewhere: fields that lie somewhere else for each state of chunk variables.
    scaled: field for the bits of a scale factor, and the table, summed on the host, that it belongs to.
    ends: whether the launch makes the result of the step.
    """

    kernel: Kernel
    blocks: int
    words: Array
    in_slot: list[tuple[int, int]]
    elsewhere: list[tuple[int, TableView]]
    scaled: list[tuple[int, int]]
    ends: bool

    def enqueue(self, slot: Slot, states: Mapping[int, int], max_min_at: int, adds: bool) -> None:
        """Enqueue the launch for a task.

        slot: where it is done.
        states: of the chunk variables.
        max_min_at: address of the words for the largest and the smallest entry.
        adds: whether results are added to what is there.
        """
        # A copy: the launch serves all slots and tasks, on workers those of several threads.
        words, address = self.words.copy(), slot.address
        for place, offset in self.in_slot:
            words[place] = address + offset
        for place, view in self.elsewhere:
            words[place] = view.address + sum([states[v] * by for v, by in view.moves])
        # Only the last launch of a step sees its results; those before make partial sums.
        if self.ends:
            words[entries_gpu.EXTREMES], words[entries_gpu.ADDS] = max_min_at, adds
        slot.device.launch(self.kernel, self.blocks, words)


def step_launches(
    device: DeviceSlots,
    prepared: PreparedLaunches,
    tables: Sequence[TableView | int],
    scales: Sequence[Scale],
    scaled: Sequence[tuple[int, int]] = (),
) -> list[StepLaunch]:
    """Return the launches of a step.

    device: that they are for.
    prepared: the contraction.
    tables: operands and result, each where it lies or at an offset in a slot.
    scales: of the operands.
    scaled: as of the first launch.
    """
    # Partial sums of terms are made in turns in either half of the room for them.
    half, plain = entries_gpu.PARTIAL_ENTRIES * device.dtype.itemsize, unscaled(device.algebra)
    *operands, result = tables
    scales, scaled, launches = list(scales), list(scaled), []
    for m, (launch, offsets) in enumerate(zip(prepared.launches, prepared.offsets, strict=True)):
        ends = m == len(prepared.launches) - 1
        out = result if ends else device.partial + (m % 2) * half
        read = [*operands, out] if launch.has_result else operands
        scales += [plain] * (len(read) - len(scales))
        fields = dict(zip((*entries_gpu.TABLES[: len(offsets)], entries_gpu.OUT), (*read, out), strict=True))
        addresses = [table.address if isinstance(table, TableView) else table for table in fields.values()]
        given = zip(addresses[:-1], offsets, scales, strict=True)
        # What differs between tasks stays 0 here: `StepLaunch.enqueue` fills it in.
        words = record(launch, addresses[-1], 0, False, [(table, *parts, *scale) for table, parts, scale in given])
        words[entries_gpu.OUT_PANELS] = prepared.out_panels if ends else 0
        in_slot = [(field, table) for field, table in fields.items() if not isinstance(table, TableView)]
        elsewhere = [(field, view) for field, view in fields.items() if isinstance(view, TableView) and view.moves]
        kernel = device.kernel(launch.name)
        launches.append(StepLaunch(kernel, launch.blocks, words, in_slot, elsewhere, scaled, ends))
        operands, scales, scaled = [out], [plain], []
    return launches


@dataclass(frozen=True, eq=False, slots=True)
class PassLaunches:
    """All launches of a pass on a device.

    groups: launches by group of fused steps.
    loads: for each group the tables that a task waits for, or copies, before it.
    brings: tables that the pass brings from the host for all that read them.
    in_place: tables that they use where these lie.
    prepared: what they need on the device.
    generation: of the device's offsets, when they were built.
    """

    groups: list[list[StepLaunch]]
    loads: list[list[int]]
    brings: frozenset[int]
    in_place: Mapping[int, TableView]
    prepared: list[PreparedLaunches]
    generation: int


@dataclass(frozen=True, eq=False, slots=True)
class Exchange:
    """A part of a table that goes from the devices where that is resident to a slot at ORIGIN, or from there.

    nbytes: of the part.
    launch: that copies it; None where copies of rows are possible alone, or faster.
    rows: these copies.
    to_slot: direction.
    """

    nbytes: int
    launch: ExchangeLaunch | None
    rows: Sequence[RowsCopy]
    to_slot: bool

    def enqueue(self, slot: Slot) -> None:
        """Enqueue it for a slot."""
        shift, device = slot.address - ORIGIN, slot.device
        if self.launch is None:
            enqueue_all(device.cuda, slot.stream, self.rows, *((shift, 0) if self.to_slot else (0, shift)))
            return
        words = self.launch.words.copy()
        words[self.launch.to if self.to_slot else self.launch.of] += shift
        kernel, blocks, threads = device.kernel(self.launch.kernel), self.launch.blocks, self.launch.threads
        if self.nbytes < AHEAD_BYTES:
            device.launch(kernel, blocks, words, threads)
            return
        # Its blocks would begin when all blocks of a contraction of another slot have: links would idle meanwhile.
        slot.ahead.wait_event(device.event(slot.stream))
        with device.cuda.current(slot.ahead):
            device.launch(kernel, blocks, words, threads)
            slot.stream.wait_event(device.event(slot.ahead))


def is_launched(rows: Sequence[RowsCopy], nbytes: int) -> bool:
    """Return True if a launch takes less time than copies of rows: one large run is left to a copy engine."""
    is_run = len(rows) == 1 and rows[0].rows == 1
    host, rates = shipped_figures().gpu_host, shipped_figures().gpu_rates
    as_copies = len(rows) * host.copy + nbytes / (rates.link_copy if is_run else rates.link_rows)
    return host.launch + nbytes / rates.link < as_copies


class PassFacts:
    """What a pass is on GPUs.

    pass_, steps: the pass itself.
    sums_on_host: whether its results are added up on the host.
    outer: chunk variables that its groups of tasks differ in.
    inner: chunk variables of the tasks of a group.
    is_followed: whether there are groups beside that of the pilot task.
    groups: its launches, as fused steps.
    inside: steps whose results no memory holds.
    made: table -> number of its step.
    follows: for each group the last step of the pass whose result it reads, -1 for none.
    offsets: table -> offset of its part in a slot.
    """

    def __init__(self, chunks: ChunkPlan, pass_: ChunkPass, steps: Sequence[PartStep], itemsize: int) -> None:
        self.pass_ = pass_
        self.steps = steps
        self.sums_on_host = sums_on_host(chunks, pass_, itemsize)
        self.outer = outer_variables(chunks, pass_, itemsize)
        # Tasks of a group follow each other in one slot and add to one result there.
        self.inner = [v for v in pass_.fixed if v not in self.outer]
        self.is_followed = chunks.plan.shape.entries(self.outer) > 1
        # A chain makes several steps in one launch: their results stay in registers.
        self.groups = fused_steps(chunks, pass_, itemsize)
        self.inside = frozenset(n for group in self.groups for n in group.inside)
        self.made = {step.out: n for n, step in enumerate(steps)}
        # For each group the last step whose result it reads.
        self.follows = [max((self.made.get(t, -1) for t in group.operands), default=-1) for group in self.groups]
        self.offsets, _ = slot_offsets(chunks, pass_, itemsize)

    @property
    def summed_on_host(self) -> int | None:
        """The table that the host adds up."""
        return self.pass_.out if self.sums_on_host else None

    @cached_property
    def uses(self) -> dict[int, list[tuple[FusedSteps, int]]]:
        """For each table its launches and the number among their operands (behind all of them that of the result)."""
        uses: dict[int, list[tuple[FusedSteps, int]]] = {}
        for group in self.groups:
            for k, table in enumerate((*group.operands, group.out)):
                uses.setdefault(table, []).append((group, k))
        return uses

    def layout(self, group: FusedSteps, runs: Mapping[int, PartRuns]) -> StepLayout:
        """Return what a group does; runs: k -> where its k-th operand lies (behind all of them the result)."""
        count = len(group.operands)
        what = group.chain or self.steps[group.steps.start].what
        return StepLayout(what, tuple(runs.get(k) for k in range(count)), runs.get(count))


class Launches:
    """The passes of a program on the GPUs that it has; steps: of every pass."""

    def __init__(self, gpu: DeviceGroup, steps: Sequence[Sequence[PartStep]]) -> None:
        self.gpu = gpu
        self.facts = [
            PassFacts(gpu.chunks, pass_, steps_, gpu.dtype.itemsize)
            for pass_, steps_ in zip(gpu.chunks.passes, steps, strict=True)
        ]
        # The pass that makes a table.
        self.makers = {table: n for n, facts in enumerate(self.facts) for table in facts.made}
        self._kept: dict[tuple[int, DeviceSlots], PassLaunches] = {}
        self._exchanges: dict[tuple[Any, ...], Exchange] = {}
        # All or none: with some kept, the others would be built anew for every case all the same.
        self._is_kept = len(gpu.devices) * sum(map(len, steps)) <= MOST_KEPT

    def of(self, n: int, device: DeviceSlots, take: Callable[[int], Array]) -> PassLaunches:
        """Return the launches of a pass on a device; who launches waits for `device.uploaded`.

        n: number of the pass.
        device: that they are for.
        take: returns memory of so many bytes that copies may come from.
        """
        launches = self._kept.get((n, device))
        # After offsets have been released the addresses in older records are stale.
        if launches is None or launches.generation != device.generation:
            launches = self._build(n, device, take)
            if self._is_kept:
                self._kept[n, device] = launches
        # Marks the offsets as used, so that `make_room` waits for this pass before it releases them.
        for prepared in launches.prepared:
            prepared.used = n
        return launches

    def exchange(self, n: int, table: int, states: Mapping[int, int], to_slot: bool) -> Exchange:
        """Return how the part of a resident table that a task reads or makes comes to a slot, or from there.

        n: number of the pass.
        table: resident on devices.
        states: of the task.
        to_slot: direction.
        """
        key = n, table, to_slot, *states.values()
        if key in self._exchanges:
            return self._exchanges[key]
        gpu = self.gpu
        sizes = [gpu.chunks.plan.shape.cardinalities[v] for v in gpu.chunks.cuts.get(table, ()) if v not in states]
        entries = math.prod(sizes) * gpu.chunks.piece(table)
        in_slot = device_view(ORIGIN + self.facts[n].offsets[table], entries, gpu.dtype).reshape(*sizes, -1)
        pieces = [(in_slot[index], piece) for index, piece in gpu.pieces(table, states)]
        ends = pieces if to_slot else [(piece, part_) for part_, piece in pieces]
        rows = [copy for target, source in ends for copy in copies(target, source)]
        bulk = all(device.cuda.copies_in_bulk for device in gpu.devices)
        launch = _launch_of(ends, bulk) if is_launched(rows, in_slot.nbytes) else None
        exchange = Exchange(in_slot.nbytes, launch, () if launch else rows, to_slot)
        # Beyond that they are worked out anew for each case.
        if len(self._exchanges) < MOST_EXCHANGES:
            self._exchanges[key] = exchange
        return exchange

    def _build(self, n: int, device: DeviceSlots, take: Callable[[int], Array]) -> PassLaunches:
        facts, all_prepared = self.facts[n], list[PreparedLaunches]()
        views = self._in_place(n, device)
        groups: list[list[StepLaunch]] = []
        for group in facts.groups:
            tables = (*group.operands, group.out)
            layout = facts.layout(group, {k: views[table].runs for k, table in enumerate(tables) if table in views})
            prepared = device.prepared(layout, n, take)
            all_prepared.append(prepared)
            ends: list[TableView | int] = [views.get(table, facts.offsets[table]) for table in tables]
            scales = [self._scale(n, device, table) for table in group.operands]
            scaled = [
                (entries_gpu.TABLES[k] + entries_gpu.SCALE, table)
                for k, table in enumerate(group.operands)
                if self._is_summed_on_host(table, n)
            ]
            groups.append(step_launches(device, prepared, ends, scales, scaled))
        # One event behind the offsets of all steps: slots wait for it before their first launch.
        device.uploaded.record(device.upload)
        brings = frozenset(table for table in facts.pass_.loads if self.gpu.brings(table, n))
        loads, there = list[list[int]](), set(facts.made)
        for group in facts.groups:
            new = dict.fromkeys(table for table in group.operands if table not in there)
            # Leaves that are used where they lie are there from the beginning.
            loads.append([t for t in new if t in self.makers or t in brings or t not in views])
            # A part stays in the slot for later steps of the same task.
            there.update(new)
        return PassLaunches(groups, loads, brings, views, all_prepared, device.generation)

    def _in_place(self, n: int, device: DeviceSlots) -> dict[int, TableView]:
        """Return the tables of a pass that all of its steps can use where they lie."""
        views, facts = dict[int, TableView](), self.facts[n]
        for table, groups in facts.uses.items():
            view = self.gpu.in_place(device, table, n) or self._on_host(n, table)
            if view is not None and all(fits_in_place(facts.layout(group, {k: view.runs})) for group, k in groups):
                views[table] = view
        return views

    def _on_host(self, n: int, table: int) -> TableView | None:
        """Return where a small table that goes to the host, and nobody reads here, is made there at once; or None."""
        facts = self.facts[n]
        if facts.pass_.fixed or table not in facts.pass_.stores or not self.gpu.crosses_bus(table, n):
            return None
        (group, k), *more = facts.uses[table]
        return self.gpu.on_host(table) if not more and k == len(group.operands) else None

    def _is_summed_on_host(self, table: int, reader: int) -> bool:
        maker = self.makers.get(table, reader)
        return maker != reader and self.facts[maker].summed_on_host == table

    def _scale(self, n: int, device: DeviceSlots, table: int) -> Scale:
        """Return what an operand is combined with."""
        plain = unscaled(device.algebra)
        if table not in self.makers or self._is_summed_on_host(table, n):
            return plain
        maker = self.makers[table]
        step = self.gpu.first_steps[maker] + self.facts[maker].made[table]
        if maker == n:
            # Inside a pass all tasks scale alike: by what the pilot task found.
            return Scale(plain.bits, device.words_at(step))
        # One device has the words of all tasks itself; several gather theirs first.
        if len(self.gpu.devices) == 1:
            return Scale(plain.bits, device.words_at(step), of_all=True)
        return Scale(plain.bits, device.gathered_at(step))


def _launch_of(ends: Sequence[tuple[Array, Array]], bulk: bool) -> ExchangeLaunch | None:
    """Return the launch that copies sources to targets (target, source), all of one shape; None where there is none."""
    axes = [common_axes(target, source) for target, source in ends]
    if any(other != axes[0] for other in axes):
        return None
    (width, itemsize, _), *outer = axes[0]
    runs = [*reversed(outer), (width * itemsize, 1, 1)]
    return exchanged(runs, [(target.ctypes.data, source.ctypes.data) for target, source in ends], bulk)
