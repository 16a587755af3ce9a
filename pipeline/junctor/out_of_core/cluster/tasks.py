"""What a worker of a Dask cluster does on its CPU: tasks of a pass, sums of their results, slices for other workers.

Plain functions of parts and of small records, so that Dask can do again what a lost worker held. `gpu_tasks` has the
same two for GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables.reference import Algebra

from junctor.out_of_core.pass_program import Contract, MaxMin, PassProgram, add_to, largest_of, shifted
from junctor.out_of_core.store import CutTable

Array = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class GpuTasks:
    """The GPU of each worker: the first one that it sees, divided into slots.

    algebra: of the tables.
    slot: bytes of a slot.
    room: bytes of the device, None for a share of what is free.
    """

    algebra: Algebra
    slot: int
    room: int | None = None


@dataclass(frozen=True, eq=False, slots=True)
class PassContext:
    """What all tasks of a pass get: small records, and the factors and evidence that it reads, as a whole.

    program: its steps.
    stored: tables whose parts stay on workers.
    small: tables whose parts go to the client with the report.
    shifts: table -> shift of what is read (`TableStats`).
    leaves: factors and evidence.
    contract: the contraction of parts, on a CPU.
    gpu: where tasks go on a GPU instead.
    offsets: table -> offset in a slot there, in bytes.
    sums_on_host: whether results are added up in the memory of the machine all the same.
    """

    program: PassProgram
    stored: frozenset[int]
    small: frozenset[int]
    shifts: Mapping[int, float]
    leaves: Mapping[int, CutTable]
    contract: Contract
    gpu: GpuTasks | None = None
    offsets: Mapping[int, int] = field(default_factory=dict)
    sums_on_host: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class PartOrigin:
    """The task that made a part of a table.

    states: of the chunk variables of the table that the task held constant.
    sizes: of all chunk variables of the table, in their order.
    """

    table: int
    states: Mapping[int, int]
    sizes: Mapping[int, int]

    def slice_of(self, entries: Array, states: Mapping[int, int]) -> Array:
        """Return what agrees with `states` of the part: [free chunk variables..., entries]."""
        free = {v: size for v, size in self.sizes.items() if v not in self.states}
        return CutTable(entries, tuple(free), tuple(free.values())).part(states)


# What agrees with a task of the parts of a table, and where each comes from.
Slices = Sequence[tuple[PartOrigin, Array]]


def laid_out(slices: Slices, states: Mapping[int, int]) -> tuple[tuple[int, ...], list[tuple[int | slice, ...]]]:
    """Return the shape of the slice of a table that agrees with `states`, and in it the index of each given slice."""
    source, first = slices[0]
    if len(slices) == 1:
        return first.shape, [()]
    free = {v: size for v, size in source.sizes.items() if v not in states}
    # A variable that a part holds constant is a single index there, all others are free.
    indices = [tuple(source.states.get(v, slice(None)) for v in free) for source, _ in slices]
    return (*free.values(), first.shape[-1]), indices


def join(slices: Slices, states: Mapping[int, int]) -> Array:
    """Return the slice of a table that agrees with `states`; slices: those of all parts in which something does."""
    if len(slices) == 1:
        return slices[0][1]
    shape, indices = laid_out(slices, states)
    table = np.empty(shape, slices[0][1].dtype)
    for index, (_, values) in zip(indices, slices, strict=True):
        table[index] = values
    return table


def arrived(
    states: Mapping[int, int], here: Sequence[PartOrigin], elsewhere: Sequence[PartOrigin], of: Sequence[Any]
) -> dict[int, list[tuple[PartOrigin, Array]]]:
    """Return the slices that a task reads, by table.

    states: of the task.
    here: origins of the first arrays of `of`: whole parts on this worker.
    elsewhere: origins of the arrays in the lists that follow: slices of `slices_of` from other workers.
    of: those arrays and lists.
    """
    slices: dict[int, list[tuple[PartOrigin, Array]]] = {}
    for source, part in zip(here, of[: len(here)], strict=True):
        # A part on a device (`DevicePart`) has an array that is good for copies only.
        slices.setdefault(source.table, []).append((source, source.slice_of(getattr(part, "array", part), states)))
    for source, values in zip(elsewhere, chain.from_iterable(of[len(here) :]), strict=True):
        slices.setdefault(source.table, []).append((source, values))
    return slices


@dataclass(frozen=True, eq=False, slots=True)
class TaskReport:
    """What a task reports: largest and smallest entries of its tables, scale factors, and parts of small tables."""

    max_min: dict[int, MaxMin]
    factors: dict[int, float]
    small: dict[int, Array]


@dataclass(frozen=True, eq=False, slots=True)
class TaskOutput:
    """What a task made, parts of tables [entries]."""

    parts: dict[int, Array]
    report: TaskReport


def shared_context(context: PassContext) -> PassContext:
    """Return what tasks of a pass share: as a Dask task itself, it can be done again wherever it is needed."""
    return context


def run_task(
    context: PassContext,
    states: Mapping[int, int],
    factors: Mapping[int, float],
    here: Sequence[PartOrigin],
    elsewhere: Sequence[PartOrigin],
    *of: Any,
) -> TaskOutput:
    """Do a task.

    context: of its pass.
    states: of the chunk variables.
    factors: scale factors, empty for the pilot task.
    here, elsewhere, of: as for `arrived`.
    """
    slices = arrived(states, here, elsewhere, of)

    def load(table: int) -> Array:
        leaf = context.leaves.get(table)
        # Taken out of `slices`, so that its memory is free after its last use.
        part = leaf.part(states) if leaf else join(slices.pop(table), states)
        return shifted(part, context.shifts[table], context.program.algebra)

    report, parts = TaskReport({}, dict(factors), {}), {}
    for table, made, least in context.program.run(load, context.contract, report.factors):
        report.max_min[table] = largest_of(made), least
        if table in context.stored:
            parts[table] = made.reshape(-1)
        elif table in context.small:
            report.small[table] = made.reshape(-1)
    return TaskOutput(parts, report)


def machine() -> object:
    """Return what workers of one machine have in common, None where they cannot read each other's memory files."""
    try:
        from junctor.out_of_core.cluster import shared_memory
    except ImportError:
        return None
    return shared_memory.machine()


def forget_shared() -> None:
    """Give back what is kept on this worker for slices that others read."""
    with suppress(ImportError):
        from junctor.out_of_core.cluster import shared_memory

        shared_memory.forget()


def slices_of(
    states: Mapping[int, int], sources: Sequence[PartOrigin], kept: int | None, *parts: Any
) -> Iterable[Array]:
    """Return the slices that a task on another worker reads of parts on this one.

    states: of that task.
    sources: origins of the parts.
    kept: None where that worker is on another machine, else the bytes of memory files that wait here for the next
    slices, at most.
    """
    slices = [s.slice_of(getattr(part, "array", part), states) for s, part in zip(sources, parts, strict=True)]
    if kept is not None:
        from junctor.out_of_core.cluster import shared_memory

        # Without memory for a file they go as bytes.
        with suppress(OSError):
            sent = shared_memory.room_for([slice_.shape for slice_ in slices], slices[0].dtype, kept)
            for part, slice_, target in zip(parts, slices, sent.arrays, strict=True):
                if isinstance(part, np.ndarray):
                    target[...] = slice_
                else:
                    part.copy_to(target, slice_)
            sent.show()
            return sent
    return [
        np.ascontiguousarray(slice_) if isinstance(part, np.ndarray) else part.host(slice_)
        for part, slice_ in zip(parts, slices, strict=True)
    ]


def sum_parts(context: PassContext, here: Sequence[int], elsewhere: Sequence[int], *of: Any) -> TaskOutput:
    """Add up what tasks made of the last table of a pass, in the order that `in_order` finds."""
    first, *others = in_order(here, elsewhere, of)
    # A copy: Dask may hand the same part to a task that is done again.
    total, table = first.reshape(-1).copy(), context.program.steps[-1].out
    for part in others:
        add_to(total, part.reshape(-1), context.program.algebra)
    # What is smallest was found in the parts: of a sum the terms tell what is lost.
    return TaskOutput({table: total}, TaskReport({table: (largest_of(total), math.inf)}, {}, {}))


def in_order(here: Sequence[int], elsewhere: Sequence[int], of: Sequence[Any]) -> list[Any]:
    """Return parts by their numbers: those of the first, here, and of those in the lists that follow, as `arrived`."""
    parts = dict(zip(here, of, strict=False)) | dict(zip(elsewhere, chain.from_iterable(of[len(here) :]), strict=True))
    return [parts[number] for number in sorted(parts)]


def report_of(output: TaskOutput) -> TaskReport:
    """Return the small part of what a task made."""
    return output.report


def part_of(output: TaskOutput, table: int) -> Array:
    """Return what a task made of a table."""
    return output.parts[table]
