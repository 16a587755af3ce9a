"""What a task of a cut plan does on the GPU of a Dask worker: `tasks` with the kernels of `program_gpu`.

Results are stored as they are summed. Readers bring what the pass makes near one by its largest entry in the first
task, the *lead*, which comes with every other task as its `powers`: the numbers are those of one process on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.out_of_core.cluster.gpu_worker import DevicePart, LoweredPass, TaskSlot, WorkerSlots, worker_gpu
from junctor.out_of_core.gpu.copies import DeviceView, lying_at
from junctor.out_of_core.gpu.run import RUN_BYTES
from junctor.out_of_core.pass_program import (
    PartOrigin,
    PassContext,
    Slices,
    TaskOutput,
    TaskReport,
    arrived,
    in_order,
    laid_out,
    largest_of,
)

Array = npt.NDArray[Any]


def made_by_task(
    given: PassContext,
    states: Mapping[int, int],
    powers: Mapping[int, float],
    here: Sequence[PartOrigin],
    elsewhere: Sequence[PartOrigin],
    *of: Any,
) -> TaskOutput:
    """Do a task, as `tasks.made_by_task` does. powers: the largest entries that the first task found."""
    assert given.gpu is not None
    gpu, slices, there = worker_gpu(given.gpu), arrived(states, here, elsewhere, of), set[int]()
    parts: dict[int, Any] = {}
    small: dict[int, Array] = {}
    with gpu.task(given, powers) as (slot, on):
        for n, step in enumerate(given.body.steps):
            for table in step.operands:
                if table not in there:
                    _load(gpu, slot, given, table, states, slices)
            there.update((*step.operands, step.out))
            on.launch(n, slot, leads=not powers)
            at, entries = slot.at + given.places[step.out], step.what.kept_entries
            if step.out in given.leaving:
                parts[step.out] = gpu.keep(slot, at, entries)
            elif step.out in given.small:
                small[step.out] = np.empty(entries, gpu.dtype)
                gpu.copy(slot.stream, small[step.out], lying_at(at, entries, gpu.dtype))
        slot.stream.synchronize()
        return TaskOutput(parts, _record(on, powers, small))


def made_by_sum(given: PassContext, here: Sequence[int], elsewhere: Sequence[int], *of: Any) -> TaskOutput:
    """Add up what tasks made of the last table of a pass, in their order, as `tasks.made_by_sum` does."""
    assert given.gpu is not None
    gpu, last = worker_gpu(given.gpu), given.body.steps[-1]
    entries = last.what.kept_entries
    with gpu.task(given, {}) as (slot, on):
        for n, part in enumerate(in_order(here, elsewhere, of)):
            lies = part.lies if isinstance(part, DevicePart) else _reached(gpu, slot, part)
            if n == 0:
                gpu.copy(slot.stream, lying_at(slot.at, entries, gpu.dtype), lies)
            else:
                on.add(slot, lies.ctypes.data)
        total = gpu.keep(slot, slot.at, entries)
        slot.stream.synchronize()
        _, largest, _ = on.found()
        # What is smallest was found in the parts: of a sum the terms tell what is lost.
        return TaskOutput({last.out: total}, TaskReport({last.out: (largest_of(largest[-1:]), math.inf)}, {}, {}))


def _reached(gpu: WorkerSlots, slot: TaskSlot, part: Array) -> Array:
    """Return a copy of a part where the device reaches it."""
    copy = gpu.pinned(part.size)
    copy[...] = part.reshape(-1)
    slot.held.append(copy)
    return copy


def _load(
    gpu: WorkerSlots,
    slot: TaskSlot,
    given: PassContext,
    table: int,
    states: Mapping[int, int],
    slices: Mapping[int, Slices],
) -> None:
    """Enqueue the way of what agrees with `states` of a table to its place in a slot."""
    leaf = given.leaves.get(table)
    parts = [leaf.part(states)] if leaf else [each for _, each in slices[table]]
    shape, places = (parts[0].shape, [()]) if leaf else laid_out(slices[table], states)
    whole = lying_at(slot.at + given.places[table], math.prod(shape), gpu.dtype).reshape(shape)
    for place, part in zip(places, parts, strict=True):
        if not isinstance(part, DeviceView) and part.shape[-1] * part.itemsize < RUN_BYTES:
            part = np.ascontiguousarray(part)
        slot.held.append(part)
        gpu.copy(slot.stream, whole[place], part)


def _record(on: LoweredPass, powers: Mapping[int, float], small: dict[int, Array]) -> TaskReport:
    """Return what is told of a task: extremes of all that tasks of the pass have made here so far."""
    first, largest, least = on.found()
    extremes = {out: (largest_of(largest[n : n + 1]), float(least[n])) for out, n in on.made.items()}
    return TaskReport(extremes, dict(powers) or {out: float(first[n]) for out, n in on.made.items()}, small)
