"""What a case in chunks takes of a GPU, in counts whose prices a cost model learns; from a cut plan alone.

While a task computes, another one comes in and a third one goes out: of copies in, copies out, the device and the host
that enqueues all of it, the busiest counts, and what the others take is hidden behind it as far as there are slots.
"""

from __future__ import annotations

from collections.abc import Mapping

from junctor_kernels.entries_gpu import MANY_ENTRIES, MOST_IN_QUADS, NEAR, TERMS_WORTH_THREADS

from junctor.chunk_places import RESIDENT_PIECE, resident_places, spreads
from junctor.chunk_work import scatters
from junctor.planning.chunks import ChunkPlan, Pass, part
from junctor.planning.plan import Plan, Reduce

# About the rates of a GPU and its bus, by which it is settled what is busiest in a pass: bytes of copies either way,
# bytes on the device, loads of its kernels; seconds of a launch or copy on the host. What all of it takes is measured.
BUS, DEVICE, LOADS, ENQUEUED = 55e9, 2.5e12, 2e12, 4e-5
GPU_CHUNK_WORK = (
    # Of the case: one; passes, and the steps of all of them.
    *("cases", "passes", "steps"),
    # Of each task: one, launches, copies, bytes that the host brings in order.
    *("tasks", "launches", "copies", "scattered"),
    # Bytes over the bus, bytes that kernels read and write.
    *("loaded", "stored", "touched"),
    # Loads of kernels: few terms of few operands, a thread for each entry, a block for each entry.
    *("quads", "entries", "terms"),
    # Seconds of the busiest way, and what is not hidden behind it.
    *("busiest", "alone"),
    # Tables on disk, and their bytes.
    *("files", "spilled"),
)


def gpu_chunk_work(chunks: ChunkPlan, itemsize: int, slots: int, room: int) -> tuple[float, ...]:
    """Return what a case takes, in the order of GPU_CHUNK_WORK.

    slots: groups of tasks under way at once. room: bytes beside them, where stored tables may stay.
    """
    resident = resident_places(chunks, itemsize, [room])
    found = dict.fromkeys(GPU_CHUNK_WORK, 0.0)
    found["cases"], found["files"] = 1, len(chunks.on_disk)
    found["spilled"] = itemsize * sum(chunks.plan.tables[table].entries for table in chunks.on_disk)
    for each in chunks.passes:
        task = _task_work(chunks, each, itemsize, resident)
        tasks = chunks.plan.shape.entries(each.fixed)
        groups = tasks if spreads(chunks, each, itemsize) else tasks // chunks.plan.shape.entries(each.summed)
        for name, count in task.items():
            found[name] += tasks * count
        found["passes"] += 1
        found["steps"] += len(each.steps)
        busiest, alone = _overlapped(task, tasks, min(slots, groups))
        found["busiest"] += busiest
        found["alone"] += alone
    return tuple(map(float, found.values()))


def _overlapped(task: Mapping[str, float], tasks: int, slots: int) -> tuple[float, float]:
    """Return the seconds of what is busiest in a pass, and what comes before and after it or has no slot to hide in."""
    loads = task["quads"] + task["entries"] + task["terms"]
    ways = (
        task["loaded"] / BUS,
        task["stored"] / BUS,
        task["touched"] / DEVICE + loads / LOADS,
        (task["launches"] + task["copies"]) * ENQUEUED,
    )
    busiest, one = max(ways), sum(ways)
    whole = max(tasks * busiest, tasks * sum(ways[:3]) / slots) + one - busiest
    return tasks * busiest, whole - tasks * busiest


def _task_work(chunks: ChunkPlan, each: Pass, itemsize: int, resident: Mapping[int, object]) -> dict[str, float]:
    """Return what one task of a pass takes, the mean over them."""
    plan, fixed = chunks.plan, frozenset(each.fixed)
    parts = {table: part(plan, table, fixed) for step in each.steps for table in (*step.operands, step.out)}
    added = plan.shape.entries(each.summed) if each.summed and not spreads(chunks, each, itemsize) else 1
    out = {table: parts[table] / (added if table == each.out else 1) for table in each.stores}
    task = dict.fromkeys(("tasks", "launches", "copies", "scattered", "loaded", "stored", "touched"), 0.0)
    task |= {"quads": 0.0, "entries": 0.0, "terms": 0.0, "tasks": 1.0, "copies": float(len(each.loads) + len(out))}
    for way, tables in (("loaded", {table: parts[table] for table in each.loads}), ("stored", out)):
        for table, entries in tables.items():
            stays = table in resident
            task["touched" if stays else way] += itemsize * entries * (2 if stays else 1)
            pieces = chunks.piece(table) * itemsize
            if not stays and pieces < RESIDENT_PIECE and scatters(chunks.cuts.get(table, ()), fixed):
                task["scattered"] += itemsize * entries
    for step in each.steps:
        terms = plan.shape.entries(v for v in step.eliminated if v not in fixed)
        kind, launches = kind_of(parts[step.out], terms, len(step.operands))
        task["launches"] += launches
        task[kind] += parts[step.out] * terms * len(step.operands)
        task["touched"] += itemsize * sum(parts[table] for table in (*step.operands, step.out))
    return task


def kind_of(entries: int, terms: int, operands: int) -> tuple[str, int]:
    """Return which loop a contraction has, as far as its sizes tell, and its launches (`entries_gpu.launches_of`)."""
    if entries >= MANY_ENTRIES or terms <= max(NEAR, entries // TERMS_WORTH_THREADS):
        return "quads" if terms <= NEAR and operands <= MOST_IN_QUADS else "entries", 1
    return "terms", 1


def least_gpu_work(plan: Plan, itemsize: int) -> tuple[float, ...]:
    """Return what a case takes at the least, however its plan is cut: every contraction once, nothing over the bus."""
    steps = tuple(step for step in plan.steps if isinstance(step, Reduce))
    whole = ChunkPlan(plan, (Pass(steps, (), (), (), ()),) if steps else (), {}, frozenset(), 0)
    found = dict(zip(GPU_CHUNK_WORK, gpu_chunk_work(whole, itemsize, 1, 0), strict=True))
    return tuple((found | {"alone": 0.0}).values())
