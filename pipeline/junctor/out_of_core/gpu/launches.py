"""What is settled about passes of a cut plan on GPUs before a case comes: where tables lie, launches, exchanges.

It stays from case to case, as far as it does not take too much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
from junctor_kernels.gpu import entries as entries_gpu
from junctor_kernels.gpu.entries import PartRuns, bits_of, record

from junctor.out_of_core.gpu.copies import Copy, copies, lying_at
from junctor.out_of_core.gpu.devices import DeviceGroup, TableView
from junctor.out_of_core.gpu.slots import MOST_KEPT, DeviceSlots, Lying, PreparedLaunches, can_lie
from junctor.placement.fusion import FusedSteps, groups_of
from junctor.placement.placement import outer_variables, spreads, task_places
from junctor.planning.chunks import ChunkPass, ChunkPlan
from junctor.planning.first_fit import ALIGNED

if TYPE_CHECKING:
    from junctor.out_of_core.pass_program import PartStep

Array = npt.NDArray[Any]

# Where a slot begins as long as it is any of them: NumPy has no arrays at 0.
ORIGIN = ALIGNED
# What an operand is multiplied with that is not: bits of one, and nothing that tells a power of two.
_AS_IT_IS = bits_of(1.0), 0, False
# Exchanges that are kept for the next case, of some hundred bytes each.
MOST_EXCHANGES = 1 << 13


@dataclass(frozen=True, eq=False, slots=True)
class PassLaunch:
    """A launch of a step, or of a chain of them.

    words: its record. in_slot: fields of it that hold a place in a slot. elsewhere: fields that a state of a chunk
    variable moves by so many bytes. scaled: fields for the bits of what a table that the host makes is multiplied with.
    ends: whether the launch makes the result of the step.
    """

    kernel: Any
    blocks: int
    words: Array
    in_slot: list[int]
    elsewhere: list[tuple[int, int, int]]
    scaled: list[tuple[int, int]]
    ends: bool


@dataclass(frozen=True, eq=False, slots=True)
class PassLaunches:
    """All launches of a pass on a device, group by group; there: tables that they use where these are."""

    groups: list[list[PassLaunch]]
    there: Mapping[int, TableView]
    prepared: list[PreparedLaunches]
    generation: int


class PassFacts:
    """What a pass is. spreads: its results are added up on the host. outer: chunk variables that its groups differ in,
    inner: those of the tasks of a group. groups: its launches. made: table -> place of its step. places: of parts in a
    slot. inside: steps whose results no memory holds."""

    def __init__(self, chunks: ChunkPlan, each: ChunkPass, tasks: Sequence[PartStep], itemsize: int) -> None:
        self.each, self.tasks = each, tasks
        self.spreads = spreads(chunks, each, itemsize)
        self.outer = outer_variables(chunks, each, itemsize)
        self.inner = [v for v in each.fixed if v not in self.outer]
        self.is_followed = chunks.plan.shape.entries(self.outer) > 1
        self.groups = groups_of(chunks, each)
        self.inside = frozenset(n for group in self.groups for n in group.inside)
        self.made = {task.out: n for n, task in enumerate(tasks)}
        self.places, _ = task_places(chunks, each, itemsize)

    @property
    def added_up(self) -> int | None:
        """The table that the host makes."""
        return self.each.out if self.spreads else None

    @cached_property
    def uses(self) -> dict[int, list[tuple[FusedSteps, int]]]:
        """For each table its launches and the place among their operands (behind all of them that of the result)."""
        uses: dict[int, list[tuple[FusedSteps, int]]] = {}
        for group in self.groups:
            for k, table in enumerate((*group.operands, group.out)):
                uses.setdefault(table, []).append((group, k))
        return uses

    def lying(self, group: FusedSteps, runs: Mapping[int, PartRuns]) -> Lying:
        """Return what a group does when its k-th operand (behind all of them the result) lies in some runs."""
        count = len(group.operands)
        what = group.chain or self.tasks[group.steps.start].what
        return what, tuple(runs.get(k) for k in range(count)), runs.get(count)


class Launches:
    """The passes of a program on the GPUs that it has."""

    def __init__(self, gpu: DeviceGroup, steps: Sequence[Sequence[PartStep]]) -> None:
        self.gpu, size = gpu, gpu.dtype.itemsize
        self.facts = [
            PassFacts(gpu.chunks, each, tasks, size) for each, tasks in zip(gpu.chunks.passes, steps, strict=True)
        ]
        # The pass that makes a table.
        self.makers = {table: n for n, facts in enumerate(self.facts) for table in facts.made}
        self._kept: dict[tuple[int, int], PassLaunches] = {}
        self._exchanges: dict[tuple[Any, ...], list[Copy]] = {}
        self._is_kept = len(gpu.each) * sum(map(len, steps)) <= MOST_KEPT

    def of(self, n: int, one: DeviceSlots, take: Callable[[int], Array]) -> PassLaunches:
        """Return the launches of a pass on a device; take: for memory that copies may come from.

        Who launches has to wait for `one.uploaded`.
        """
        found = self._kept.get((n, one.number))
        if found is None or found.generation != one.generation:
            found = self._made(n, one, take)
            if self._is_kept:
                self._kept[n, one.number] = found
        for prepared in found.prepared:
            prepared.used = n
        return found

    def exchange(self, n: int, table: int, states: Mapping[int, int], to_slot: bool) -> list[Copy]:
        """Return the copies of what a task of a pass reads, or makes, of a table that stays on devices.

        Addresses are those of a slot that begins at ORIGIN.
        """
        key = n, table, to_slot, *states.values()
        if key in self._exchanges:
            return self._exchanges[key]
        gpu, found = self.gpu, list[Copy]()
        sizes = [gpu.chunks.plan.shape.cardinalities[v] for v in gpu.chunks.cuts.get(table, ()) if v not in states]
        entries = math.prod(sizes) * gpu.chunks.piece(table)
        in_slot = lying_at(ORIGIN + self.facts[n].places[table], entries, gpu.dtype).reshape(*sizes, -1)
        for place, piece in gpu.pieces(table, states):
            found += copies(in_slot[place], piece) if to_slot else copies(piece, in_slot[place])
        if len(self._exchanges) < MOST_EXCHANGES:
            self._exchanges[key] = found
        return found

    def _made(self, n: int, one: DeviceSlots, take: Callable[[int], Array]) -> PassLaunches:
        facts, prepared = self.facts[n], list[PreparedLaunches]()
        there = self._there(n, one)
        groups: list[list[PassLaunch]] = []
        for group in facts.groups:
            tables = (*group.operands, group.out)
            lying = facts.lying(group, {k: there[table].runs for k, table in enumerate(tables) if table in there})
            prepared.append(one.prepared(lying, n, take))
            groups.append(self._calls_of(n, one, group, there, prepared[-1]))
        one.uploaded.record(one.upload)
        return PassLaunches(groups, there, prepared, one.generation)

    def _there(self, n: int, one: DeviceSlots) -> dict[int, TableView]:
        """Return the tables of a pass that all of its steps can use where they are."""
        there, facts = dict[int, TableView](), self.facts[n]
        for table, groups in facts.uses.items():
            found = self.gpu.in_place(one, table, n)
            if found is not None and all(can_lie(facts.lying(group, {k: found.runs})) for group, k in groups):
                there[table] = found
        return there

    def _calls_of(
        self, n: int, one: DeviceSlots, group: FusedSteps, there: Mapping[int, TableView], prepared: PreparedLaunches
    ) -> list[PassLaunch]:
        # Sums of terms are made in turns in either half of the room for them.
        half = entries_gpu.PARTIAL_ENTRIES * self.gpu.dtype.itemsize
        tables = (*group.operands, group.out)
        places: list[TableView | int] = [there.get(table, self.facts[n].places[table]) for table in tables]
        scales = [self._scale(n, one, table) for table in group.operands]
        scaled = [
            (entries_gpu.TABLES[k] + entries_gpu.SCALE, table)
            for k, table in enumerate(group.operands)
            if self._is_added_up(table, n)
        ]
        calls = []
        for m, (launch, offsets) in enumerate(zip(prepared.launches, prepared.at, strict=True)):
            ends = m == len(prepared.launches) - 1
            out = places[-1] if ends else one.partial + (m % 2) * half
            # Addresses, operands first; the result of a chain is one more.
            read = (*places[:-1], out) if launch.stages else places[:-1]
            scales += [_AS_IT_IS] * (len(read) - len(scales))
            fields = dict(zip((*entries_gpu.TABLES[: len(offsets)], entries_gpu.OUT), (*read, out), strict=True))
            at = [each.at if isinstance(each, TableView) else each for each in fields.values()]
            each = zip(at[:-1], offsets, scales, strict=True)
            words = record(launch, at[-1], 0, False, [(table, *lies, *scale) for table, lies, scale in each])
            words[entries_gpu.OUT_PANELS] = prepared.out_panels if ends else 0
            in_slot = [field for field, each in fields.items() if not isinstance(each, TableView)]
            moves = [(field, *by) for field, each in fields.items() if isinstance(each, TableView) for by in each.by]
            calls.append(PassLaunch(one.kernel(launch.name), launch.blocks, words, in_slot, moves, scaled, ends))
            places, scales, scaled = [out, places[-1]], [_AS_IT_IS], []
        return calls

    def _is_added_up(self, table: int, reader: int) -> bool:
        maker = self.makers.get(table, reader)
        return maker != reader and self.facts[maker].added_up == table

    def _scale(self, n: int, one: DeviceSlots, table: int) -> tuple[int, int, bool]:
        """Return what an operand is multiplied with: bits, address of the words that tell it, whether of all tasks."""
        if table not in self.makers or self._is_added_up(table, n):
            return _AS_IT_IS
        maker = self.makers[table]
        step = self.gpu.first_step(maker) + self.facts[maker].made[table]
        if maker == n:
            return bits_of(1.0), one.words_at(step), False
        if len(self.gpu.each) == 1:
            return bits_of(1.0), one.words_at(step), True
        return bits_of(1.0), one.gathered_at(step), False
