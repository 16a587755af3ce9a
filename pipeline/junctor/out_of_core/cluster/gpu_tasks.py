"""What a task of a cut plan does on the GPU of a Dask worker: `cluster.tasks` with the kernels of `gpu.run`.

Results are stored as they are summed. Readers scale what the pass makes by its largest entry in the pilot task, which
comes with every other task as its `factors`: the numbers are those of one process on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.out_of_core.cluster import tasks
from junctor.out_of_core.cluster.gpu_worker import DevicePart, LoweredPass, WorkerGpu, worker_gpu
from junctor.out_of_core.gpu.copies import DeviceView, device_view, enqueue
from junctor.out_of_core.gpu.run import RUN_BYTES
from junctor.out_of_core.gpu.slots import Slot
from junctor.out_of_core.pass_program import largest_of

Array = npt.NDArray[Any]


def run_task(
    context: tasks.PassContext,
    states: Mapping[int, int],
    pilot: Mapping[int, float],
    here: Sequence[tasks.PartOrigin],
    elsewhere: Sequence[tasks.PartOrigin],
    *of: Any,
) -> tasks.TaskOutput:
    """Do a task, as `tasks.run_task` does; pilot: table -> largest entry that the pilot task found."""
    assert context.gpu is not None
    gpu, slices, there = worker_gpu(context.gpu), tasks.arrived(states, here, elsewhere, of), set[int]()
    parts: dict[int, Any] = {}
    small: dict[int, Array] = {}
    with gpu.task(context, pilot) as (slot, lowered):
        for n, step in enumerate(context.program.steps):
            for table in step.operands:
                if table not in there:
                    _load(gpu, slot, context, table, states, slices)
            there.update((*step.operands, step.out))
            lowered.launch(n, slot, pilot=not pilot)
            # Copied out at once on the same stream: the next step may overwrite the place in the slot.
            address, entries = slot.address + context.offsets[step.out], step.what.kept_entries
            if step.out in context.stored:
                parts[step.out] = gpu.keep(slot, address, entries)
            elif step.out in context.small:
                small[step.out] = np.empty(entries, gpu.dtype)
                enqueue(gpu.cuda, slot.stream, small[step.out], device_view(address, entries, gpu.dtype))
        slot.stream.synchronize()
        return tasks.TaskOutput(parts, _report(lowered, pilot, small))


def sum_parts(context: tasks.PassContext, here: Sequence[int], elsewhere: Sequence[int], *of: Any) -> tasks.TaskOutput:
    """Add up what tasks made of the last table of a pass, in their order, as `tasks.sum_parts` does."""
    assert context.gpu is not None
    if context.sums_on_host:
        # As one process does it: logarithms of sums differ in the last digit between a device and its host.
        fetched = [part.host(part.array) if isinstance(part, DevicePart) else part for part in of]
        return tasks.sum_parts(context, here, elsewhere, *fetched)
    gpu, last = worker_gpu(context.gpu), context.program.steps[-1]
    entries = last.what.kept_entries
    with gpu.task(context, {}) as (slot, lowered):
        for n, part in enumerate(tasks.in_order(here, elsewhere, of)):
            view = part.array if isinstance(part, DevicePart) else _reached(gpu, slot, part)
            if n == 0:
                enqueue(gpu.cuda, slot.stream, device_view(slot.address, entries, gpu.dtype), view)
            else:
                # Read where it is, on the device or in pinned memory: no second slot is needed.
                lowered.add(slot, view.ctypes.data)
        total = gpu.keep(slot, slot.address, entries)
        slot.stream.synchronize()
        _, largest, _ = lowered.max_min()
        # What is smallest was found in the parts: of a sum the terms tell what is lost.
        report = tasks.TaskReport({last.out: (largest_of(largest[-1:]), math.inf)}, {}, {})
        return tasks.TaskOutput({last.out: total}, report)


def _reached(gpu: WorkerGpu, slot: Slot, part: Array) -> Array:
    """Return a copy of a part where the device reaches it."""
    copy = gpu.pinned(part.size)
    # Kernels reach pinned memory only; what came over the network is not.
    copy[...] = part.reshape(-1)
    slot.kept.append(copy)
    return copy


def _load(
    gpu: WorkerGpu,
    slot: Slot,
    context: tasks.PassContext,
    table: int,
    states: Mapping[int, int],
    slices: Mapping[int, tasks.Slices],
) -> None:
    """Enqueue the copy of the table slice for this chunk assignment into the slot buffer."""
    leaf = context.leaves.get(table)
    parts = [leaf.part(states)] if leaf else [part for _, part in slices[table]]
    shape, indices = (parts[0].shape, [()]) if leaf else tasks.laid_out(slices[table], states)
    target = device_view(slot.address + context.offsets[table], math.prod(shape), gpu.dtype).reshape(shape)
    for index, part in zip(indices, parts, strict=True):
        # Many short rows are slower than one copy of the host.
        if not isinstance(part, DeviceView) and part.shape[-1] * part.itemsize < RUN_BYTES:
            part = np.ascontiguousarray(part)
        slot.kept.append(part)
        enqueue(gpu.cuda, slot.stream, target[index], part)


def _report(lowered: LoweredPass, pilot: Mapping[int, float], small: dict[int, Array]) -> tasks.TaskReport:
    """Return the report of a task: largest and smallest entries of all that tasks of the pass made here so far."""
    first, largest, least = lowered.max_min()
    max_min = {out: (largest_of(largest[n : n + 1]), float(least[n])) for out, n in lowered.made.items()}
    return tasks.TaskReport(max_min, dict(pilot) or {out: float(first[n]) for out, n in lowered.made.items()}, small)
