"""What a task of a cut plan does to parts of tables: plain functions, the same here and on other machines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables import reference
from junctor_kernels.tables.axes import Contraction
from junctor_kernels.tables.reference import Algebra

from junctor.out_of_core.store import CutTable

if TYPE_CHECKING:
    from junctor.out_of_core.cluster.gpu_worker import GpuTasks

Array = npt.NDArray[np.floating[Any]]
# Contracts parts of tables [entries, 1] to another one; what goes to other processes has to be picklable.
Contract = Callable[[Contraction, Sequence[Array]], Array]
# The largest entry of a table, and the smallest above zero (1 on logarithms, where nothing is lost).
Extremes = tuple[float, float]


@dataclass(frozen=True, slots=True)
class CpuTasks:
    """Contracts on the CPU: NumPy in blocks of `scratch` entries, or compiled code with `threads` where that pays."""

    algebra: Algebra
    scratch: int = reference.SCRATCH_ENTRIES
    threads: int = 0

    def __call__(self, what: Contraction, operands: Sequence[Array]) -> Array:
        """Return the contraction of parts of tables, [entries, 1]."""
        if self.threads:
            from junctor_kernels.cpu import entries

            return entries.reduce(what, operands, self.algebra, self.threads)
        return reference.reduce(what, operands, self.algebra, self.scratch)


@dataclass(frozen=True, slots=True)
class PartStep:
    """A reduction in terms of parts: operands in the order in which they combine, and where their parts begin."""

    out: int
    operands: tuple[int, ...]
    what: Contraction


@dataclass(frozen=True, slots=True)
class PassProgram:
    """The steps of a pass, the same for all of its tasks; last: table -> the step that uses it last."""

    steps: tuple[PartStep, ...]
    algebra: Algebra
    last: dict[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        last = {table: n for n, step in enumerate(self.steps) for table in (*step.operands, step.out)}
        object.__setattr__(self, "last", last)

    def run(
        self, load: Callable[[int], Array], contract: Contract, powers: dict[int, float]
    ) -> Iterator[tuple[int, Array, float]]:
        """Yield every table that a task makes, its part [entries, 1], and its smallest entry above zero.

        load: returns the part of a table from elsewhere, contiguous [entries, 1]; parts are let go after their last
        use. powers: what results are multiplied with (on logarithms: what is added); the first task of a pass settles
        those that are missing.
        """
        alive: dict[int, Array] = {}
        for n, step in enumerate(self.steps):
            for table in step.operands:
                if table not in alive:
                    alive[table] = load(table)
            operands = [alive[table] for table in step.operands]
            made = contract(step.what, operands)
            yield step.out, made, self._scale(step.out, made, powers)
            alive[step.out] = made
            del operands, made
            for table in [table for table in alive if self.last[table] == n]:
                del alive[table]

    def _scale(self, table: int, made: Array, powers: dict[int, float]) -> float:
        """Scale a part in place; returns its smallest entry above zero (1 on logarithms, where nothing is lost)."""
        if self.algebra.combine is np.add:
            if table not in powers:
                largest = largest_of(made)
                powers[table] = -largest if math.isfinite(largest) else 0.0
            made += powers[table]
            return 1.0
        if table not in powers:
            exponent = math.frexp(largest_of(made))[1]
            powers[table] = 2.0 ** -max(exponent, int(np.finfo(self.algebra.dtype).minexp))
        power = powers[table]
        # Taken before, because what this takes below the format would pass for a zero.
        least = float(reference.least_above_zero(made)[0]) * power if made.any() else 1.0
        if power != 1:
            made *= self.algebra.dtype.type(power)
        return least


def shifted(part: Array, shift: int) -> Array:
    """Return a part of a table as tasks read it: contiguous [entries, 1], times two to the power `shift`."""
    # What came over a network may lie anywhere.
    if shift:
        return np.ldexp(part, shift, order="C").reshape(-1, 1)
    return np.require(part, requirements=["C", "A"]).reshape(-1, 1)


def add_to(total: Array, made: Array, algebra: Algebra) -> None:
    """Add what a further task made to what others did, in place."""
    add = np.logaddexp if algebra.combine is np.add else np.add
    add(total, made, out=total)


def largest_of(made: Array) -> float:
    """Return the largest entry; what is not a number counts as beyond the format, because maxima would pass over it."""
    largest = float(made.max())
    return math.inf if math.isnan(largest) else largest


def joined(extremes: Iterable[Extremes]) -> Extremes:
    """Return the extremes of a table from those of its parts."""
    # Where a part is all zero its least entry is 1, as if there were none.
    largest, least = zip(*extremes, strict=True)
    return max(largest), min(least)


@dataclass(frozen=True, eq=False, slots=True)
class PassContext:
    """What all tasks of a pass get: small records, and the factors and evidence that it reads, as a whole.

    leaving: tables whose parts are kept. small: tables whose parts go with the record. shifts: powers of two that what
    is read is multiplied with. gpu: where tasks go on a GPU instead, `places` of their tables in a slot there.
    """

    body: PassProgram
    leaving: frozenset[int]
    small: frozenset[int]
    shifts: Mapping[int, int]
    leaves: Mapping[int, CutTable]
    contract: Contract
    gpu: GpuTasks | None = None
    places: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, slots=True)
class PartOrigin:
    """Where a part of a table comes from: what the task that made it held constant.

    sizes: of the chunk variables of the table, in their order.
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
    """Return the shape of what agrees with `states` of a table, and where in it slices of all parts that do belong."""
    source, first = slices[0]
    if len(slices) == 1:
        return first.shape, [()]
    free = {v: size for v, size in source.sizes.items() if v not in states}
    places = [tuple(source.states.get(v, slice(None)) for v in free) for source, _ in slices]
    return (*free.values(), first.shape[-1]), places


def join(slices: Slices, states: Mapping[int, int]) -> Array:
    """Return what agrees with `states` of a table that several tasks made; slices: those of all parts that do."""
    if len(slices) == 1:
        return slices[0][1]
    shape, places = laid_out(slices, states)
    whole = np.empty(shape, slices[0][1].dtype)
    for place, (_, each) in zip(places, slices, strict=True):
        whole[place] = each
    return whole


def arrived(
    states: Mapping[int, int], here: Sequence[PartOrigin], elsewhere: Sequence[PartOrigin], of: Sequence[Any]
) -> dict[int, list[tuple[PartOrigin, Array]]]:
    """Return what a task reads of each table.

    here: where the first arrays of `of` come from, parts as they were made. elsewhere: where the arrays come from in
    the lists that follow, what `slices_of` found on other workers.
    """
    slices: dict[int, list[tuple[PartOrigin, Array]]] = {}
    for source, part in zip(here, of[: len(here)], strict=True):
        # What lies on a device has a view that is good for copies.
        slices.setdefault(source.table, []).append((source, source.slice_of(getattr(part, "lies", part), states)))
    for source, each in zip(elsewhere, chain.from_iterable(of[len(here) :]), strict=True):
        slices.setdefault(source.table, []).append((source, each))
    return slices


@dataclass(frozen=True, eq=False, slots=True)
class TaskReport:
    """What is told of a task: extremes of what it made, the powers of two that it made it with, and small parts."""

    extremes: dict[int, Extremes]
    powers: dict[int, float]
    small: dict[int, Array]


@dataclass(frozen=True, eq=False, slots=True)
class TaskOutput:
    """What a task made, parts of tables [entries]."""

    parts: dict[int, Array]
    record: TaskReport


def given_to_all(given: PassContext) -> PassContext:
    """Return what tasks of a pass share: as a task itself, it can be done again wherever it is needed."""
    return given


def made_by_task(
    given: PassContext,
    states: Mapping[int, int],
    powers: Mapping[int, float],
    here: Sequence[PartOrigin],
    elsewhere: Sequence[PartOrigin],
    *of: Any,
) -> TaskOutput:
    """Do a task. states: of the chunk variables. powers: as far as they are settled. Others: those of `arrived`."""
    slices = arrived(states, here, elsewhere, of)

    def load(table: int) -> Array:
        leaf = given.leaves.get(table)
        part = leaf.part(states) if leaf else join(slices.pop(table), states)
        return shifted(part, given.shifts[table])

    record, parts = TaskReport({}, dict(powers), {}), {}
    for table, made, least in given.body.run(load, given.contract, record.powers):
        record.extremes[table] = largest_of(made), least
        if table in given.leaving:
            parts[table] = made.reshape(-1)
        elif table in given.small:
            record.small[table] = made.reshape(-1)
    return TaskOutput(parts, record)


def machine() -> object:
    """Return what workers of one machine have in common, None where they cannot read each other's memory files."""
    try:
        from junctor.out_of_core.cluster import shared_memory as sharing
    except ImportError:
        return None
    return sharing.machine()


def forget_shared() -> None:
    """Give back what is kept on this worker for slices that others read."""
    with suppress(ImportError):
        from junctor.out_of_core.cluster import shared_memory as sharing

        sharing.forget()


def slices_of(
    states: Mapping[int, int], sources: Sequence[PartOrigin], kept: int | None, *parts: Any
) -> Iterable[Array]:
    """Return what a task on another worker reads of parts on this one.

    kept: None where that worker is on another machine, else the bytes of memory files that wait here for the next
    slices, at most.
    """
    # What lies on a device has a view that is good for copies.
    slices = [s.slice_of(getattr(part, "lies", part), states) for s, part in zip(sources, parts, strict=True)]
    if kept is not None:
        from junctor.out_of_core.cluster import shared_memory as sharing

        # Without memory for a file they go as bytes.
        with suppress(OSError):
            sent = sharing.room_for([each.shape for each in slices], slices[0].dtype, kept)
            for part, each, target in zip(parts, slices, sent.arrays, strict=True):
                _bring(part, each, target)
            sent.show()
            return sent
    return [_host(part, each) for part, each in zip(parts, slices, strict=True)]


def _bring(part: Any, slice_: Array, target: Array) -> None:
    """Copy a slice of a part, wherever that lies, to memory of this process."""
    if isinstance(part, np.ndarray):
        target[...] = slice_
    else:
        part.copy_to(target, slice_)


def _host(part: Any, slice_: Array) -> Array:
    found: Array = np.ascontiguousarray(slice_) if isinstance(part, np.ndarray) else part.host(slice_)
    return found


def made_by_sum(given: PassContext, here: Sequence[int], elsewhere: Sequence[int], *of: Any) -> TaskOutput:
    """Add up what tasks made of the last table of a pass, in the order that `in_order` finds."""
    first, *others = in_order(here, elsewhere, of)
    total, table = first.reshape(-1).copy(), given.body.steps[-1].out
    for each in others:
        add_to(total, each.reshape(-1), given.body.algebra)
    # What is smallest was found in the parts: of a sum the terms tell what is lost.
    return TaskOutput({table: total}, TaskReport({table: (largest_of(total), math.inf)}, {}, {}))


def in_order(here: Sequence[int], elsewhere: Sequence[int], of: Sequence[Any]) -> list[Any]:
    """Return parts by their numbers: those of the first, here, and of those in the lists that follow, as `arrived`."""
    parts = dict(zip(here, of, strict=False)) | dict(zip(elsewhere, chain.from_iterable(of[len(here) :]), strict=True))
    return [parts[number] for number in sorted(parts)]


def record_of(made: TaskOutput) -> TaskReport:
    """Return the small part of what a task made."""
    return made.record


def part_of(made: TaskOutput, table: int) -> Array:
    """Return what a task made of a table."""
    return made.parts[table]
