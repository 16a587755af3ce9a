"""What a case in chunks takes of a GPU, in counts whose prices a cost model learns; from a cut plan alone.

While a task computes, another one comes in and a third one goes out: of copies in, copies out and the device, the
busiest counts in every pass, and what the others take is hidden behind it as far as there are slots. The host hands all
of it in ahead, so only what it takes longer than everything else together counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping

from junctor_kernels.gpu.entries import MANY_ENTRIES, MOST_IN_QUADS, NEAR, TERMS_WORTH_THREADS

from junctor.placement.fusion import fused_steps
from junctor.placement.placement import Resident, crosses_bus, leaf_offsets, outer_variables, sums_on_host
from junctor.placement.residency import choose_residency
from junctor.placement.sharding import Sharding, agreement, shard_passes
from junctor.planning.chunks import ChunkPass, ChunkPlan, loaded_entries, part
from junctor.planning.plan import Plan, Reduce

# About the rates of a GPU: bytes of copies over its bus either way, from another GPU, and on it; loads of its kernels;
# seconds of the host for a launch, a copy, a pass. They settle what is busiest; prices say what that comes to.
BUS, LINK, DEVICE, LOADS = 55e9, 300e9, 2.2e12, 2e12
LAUNCH, COPY, PASS = 4e-5, 4e-5, 1.5e-4
# Loads for an entry of what a chain of eliminations makes.
CHAIN_LOADS = 4
# What has a price: a case, seconds of the busiest way of each pass, and by how much the host takes longer. More counts
# forecast what was measured no better, and other plans worse.
GPU_CHUNK_WORK = ("cases", "busiest", "behind")


def gpu_chunk_work(chunks: ChunkPlan, itemsize: int, slots: int, room: int, gpus: int = 1) -> tuple[float, ...]:
    """Return what a case takes, in the order of GPU_CHUNK_WORK; others as for `gpu_counts`."""
    found = gpu_counts(chunks, itemsize, slots, room, gpus)
    return tuple(found[name] for name in GPU_CHUNK_WORK)


def gpu_counts(chunks: ChunkPlan, itemsize: int, slots: int, room: int, gpus: int = 1) -> dict[str, float]:
    """Return the counts of a case, of several GPUs those of the one that has most.

    slots: groups of tasks under way at once. room: bytes beside them, where stored tables may stay.
    """
    plan, (leaves, size) = chunks.plan, leaf_offsets(chunks, itemsize, room)
    dealt = shard_passes(chunks, [outer_variables(chunks, each, itemsize) for each in chunks.passes], gpus)
    resident = choose_residency(chunks, itemsize, room - size, dealt)
    found = defaultdict[str, float](float, cases=1.0)
    host = 0.0
    for n, (each, deal) in enumerate(zip(chunks.passes, dealt.passes, strict=True)):
        there = leaves.keys() | {table for table in resident if not crosses_bus(resident, table, n)}
        whole = plan.shape.entries(each.fixed)
        tasks = whole * deal.most / deal.count
        task = _task_work(chunks, each, itemsize, there)
        host += whole * (task["launches"] * LAUNCH + task["copies"] * COPY) + PASS
        # As much as the bus would bring while others send that.
        task["loaded"] += _exchanged(chunks, n, deal, resident) * itemsize / whole * BUS / LINK
        for name, count in task.items():
            found[name] += tasks * count
        groups = tasks if sums_on_host(chunks, each, itemsize) else tasks // plan.shape.entries(each.summed)
        found["busiest"] += _overlapped(task, tasks, max(1, min(slots, groups)))
    found["behind"] = max(0.0, host - found["busiest"])
    return found


def _exchanged(chunks: ChunkPlan, number: int, deal: Sharding, resident: Resident) -> float:
    """Return the entries that the tasks of a pass copy from other devices."""
    each = chunks.passes[number]
    return sum(
        loaded_entries(chunks.plan, each, [table]) * (1 - agreement(resident[table].sharding, deal))
        for table in each.loads
        if not crosses_bus(resident, table, number) and deal.gpus > 1
    )


def _overlapped(task: Mapping[str, float], tasks: float, slots: float) -> float:
    """Return the seconds of a pass whose tasks overlap in so many slots."""
    loads = task["quads"] + task["entries"] + task["terms"]
    ways = task["loaded"] / BUS, task["stored"] / BUS, max(task["touched"] / DEVICE, loads / LOADS)
    busiest, one = max(ways), sum(ways)
    # The first task comes in and the last one goes out alone.
    return max(tasks * busiest, tasks * one / slots) + one - busiest


def _task_work(chunks: ChunkPlan, each: ChunkPass, itemsize: int, there: Container[int]) -> dict[str, float]:
    """Return what one task of a pass takes, the mean over them; there: tables that are used where they are."""
    plan, fixed = chunks.plan, frozenset(each.fixed)
    parts = {table: part(plan, table, fixed) for step in each.steps for table in (*step.operands, step.out)}
    task = dict.fromkeys(("launches", "copies", "loaded", "stored", "touched", "quads", "entries", "terms"), 0.0)
    # Results that are added up on the device go out once.
    added = plan.shape.entries(each.summed) if each.summed and not sums_on_host(chunks, each, itemsize) else 1
    for way, tables in (("loaded", each.loads), ("stored", each.stores)):
        for table in tables:
            times = 1 / added if way == "stored" and table == each.out else 1.0
            if table not in there:
                task["copies"] += times
                task[way] += itemsize * parts[table] * times
    for group in fused_steps(chunks, each):
        task["launches"] += 1
        task["touched"] += itemsize * sum(parts[table] for table in (*group.operands, group.out))
        if group.chain is not None:
            task["quads"] += parts[group.out] * CHAIN_LOADS
            continue
        step = each.steps[group.steps.start]
        terms = plan.shape.entries(v for v in step.eliminated if v not in fixed)
        task[kind_of(parts[step.out], terms, len(step.operands))] += parts[step.out] * terms * len(step.operands)
    return task


def kind_of(entries: int, terms: int, operands: int) -> str:
    """Return which loop a contraction has, as far as its sizes tell (`entries_gpu.launches_of`)."""
    if entries < MANY_ENTRIES and terms > max(NEAR, entries // TERMS_WORTH_THREADS):
        return "terms"
    return "quads" if terms <= NEAR and operands <= MOST_IN_QUADS else "entries"


def least_gpu_work(plan: Plan, itemsize: int) -> tuple[float, ...]:
    """Return what a case takes at the least, however its plan is cut: every contraction once, nothing over the bus."""
    steps = tuple(step for step in plan.steps if isinstance(step, Reduce))
    whole = ChunkPlan(plan, (ChunkPass(steps, (), (), (), ()),) if steps else (), {}, frozenset(), 0)
    return gpu_chunk_work(whole, itemsize, 1, 0)
