"""Features of a case in chunks on a GPU, counted from a cut plan alone.

While a task computes, the next one is copied to the device and the one before to the host: in every pass the busiest of
both copies and the device counts, and hides the others as far as there are slots. The host submits all of it ahead, so
only the seconds that it takes longer than everything else count. Rates say which is busiest; coefficients correct them.
Counts go by the rates of the package on any device: coefficients were fitted to these counts.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from junctor_kernels.gpu.entries import MANY_ENTRIES, MOST_IN_QUADS, NEAR, TERMS_WORTH_THREADS

from junctor.cost.features.names import GPU_CHUNK_WORK
from junctor.cost.figures import shipped_figures
from junctor.placement.fusion import fused_steps
from junctor.placement.placement import Resident, crosses_bus, sums_on_host
from junctor.placement.residency import placed
from junctor.placement.sharding import Sharding, agreement
from junctor.planning.chunks import ChunkPass, ChunkPlan, loaded_entries, part
from junctor.planning.plan import Plan, Reduce

# Loads for an entry of what a chain of eliminations makes.
CHAIN_LOADS = 4


def gpu_chunk_work(chunks: ChunkPlan, itemsize: int, slots: int, room: int, gpus: int = 1) -> dict[str, float]:
    """Return GPU_CHUNK_WORK of a case; arguments as of `gpu_counts`."""
    counts = gpu_counts(chunks, itemsize, slots, room, gpus)
    return {name: counts[name] for name in GPU_CHUNK_WORK}


def gpu_counts(chunks: ChunkPlan, itemsize: int, slots: int, room: int, gpus: int = 1) -> dict[str, float]:
    """Return all counts of a case, of several GPUs those of the busiest one.

    chunks: its cut plan.
    itemsize: bytes of an entry.
    slots: groups of tasks in flight.
    room: bytes of the device in addition to the slots, where stored tables may stay.
    gpus: devices that share the tasks.
    """
    counts = defaultdict[str, float](float, cases=1.0)
    passes = _pass_work(chunks, itemsize, slots, room, gpus)
    for work in passes:
        for name, count in work.task.items():
            counts[name] += work.tasks * count
        counts["host"] += work.host
    counts["busiest"] = sum(_overlapped(works) for works in _at_once(chunks, passes))
    counts["behind"] = max(0.0, counts["host"] - counts["busiest"])
    return counts


def pass_seconds(chunks: ChunkPlan, itemsize: int, slots: int, room: int, gpus: int = 1) -> list[float]:
    """Return about what the devices, or the host, take for each pass alone; arguments as of `gpu_counts`."""
    return [max(_overlapped([work]), work.host) for work in _pass_work(chunks, itemsize, slots, room, gpus)]


@dataclass(frozen=True, eq=False, slots=True)
class _PassWork:
    """What the busiest device does for a pass, or for a part of it.

    tasks: number of its tasks.
    task: what one of them takes.
    slots: that its tasks are spread over.
    host: seconds of the host for the tasks of all devices.
    share: of the pass.
    """

    tasks: float
    task: Mapping[str, float]
    slots: float
    host: float
    share: float = 1.0

    @property
    def ways(self) -> tuple[float, ...]:
        """Seconds of a task: into the device, out of it, and there."""
        task = self.task
        loads = task["quads"] + task["entries"] + task["terms"]
        rates = shipped_figures().gpu_rates
        there = max(task["touched"] / rates.kernel, loads / rates.loads)
        return task["loaded"] / rates.bus, task["stored"] / rates.bus, there

    def part(self, share: float) -> _PassWork:
        """Return a part of the pass."""
        return replace(self, tasks=self.tasks * share, share=share)


def _pass_work(chunks: ChunkPlan, itemsize: int, slots: int, room: int, gpus: int) -> list[_PassWork]:
    plan, of_host, rates = chunks.plan, shipped_figures().gpu_host, shipped_figures().gpu_rates
    places = placed(chunks, itemsize, room, gpus, bus=rates.bus, device=rates.copy)
    leaves, resident = places.leaves, places.resident
    found = list[_PassWork]()
    for n, (pass_, deal) in enumerate(zip(chunks.passes, places.shardings.passes, strict=True)):
        there = leaves.keys() | {table for table in resident if not crosses_bus(resident, table, n)}
        whole = plan.shape.entries(pass_.fixed)
        tasks = whole * deal.most / deal.count
        task = _task_work(chunks, pass_, itemsize, there)
        host = whole * (task["launches"] * of_host.chunk_launch + task["copies"] * of_host.chunk_copy)
        host += of_host.chunk_pass
        # As much as the bus would bring while others send that.
        exchanged = _exchanged(chunks, n, deal, resident)
        task["loaded"] += exchanged * itemsize / whole * rates.bus / rates.link
        groups = tasks if sums_on_host(chunks, pass_, itemsize) else tasks // plan.shape.entries(pass_.summed)
        # Kernels copy what others send, so two slots do both at the same time: one more keeps the links busy.
        found.append(_PassWork(tasks, task, max(1, min(slots - (exchanged > 0), groups)), host))
    return found


def _at_once(chunks: ChunkPlan, passes: Sequence[_PassWork]) -> Iterator[list[_PassWork]]:
    """Yield what is done at once, one after the other: a pass, or parts of those that go side by side."""
    if not chunks.spans:
        yield from ([work] for work in passes)
        return
    moments = sorted({moment for span in chunks.spans for moment in span})
    under_way, coming = dict[_PassWork, tuple[float, float]](), deque(zip(passes, chunks.spans, strict=True))
    for begin, end in pairwise(moments):
        while coming and coming[0][1][0] <= begin:
            under_way.update([coming.popleft()])
        under_way = {work: span for work, span in under_way.items() if span[1] > begin}
        yield [work.part((end - begin) / (span[1] - span[0])) for work, span in under_way.items()]


def _exchanged(chunks: ChunkPlan, number: int, deal: Sharding, resident: Resident) -> float:
    """Return the entries that the tasks of a pass copy from other devices."""
    pass_ = chunks.passes[number]
    return sum(
        loaded_entries(chunks.plan, pass_, [table]) * (1 - agreement(resident[table].sharding, deal))
        for table in pass_.loads
        if not crosses_bus(resident, table, number) and deal.gpus > 1
    )


def _overlapped(works: Sequence[_PassWork]) -> float:
    """Return the seconds of passes, or parts of them, whose tasks overlap."""
    ways = [(work, work.ways) for work in works]
    in_slots = sum(work.tasks * sum(way) / work.slots for work, way in ways)
    busiest = max(sum(work.tasks * way[n] for work, way in ways) for n in range(3))
    # The first task comes in and the last one goes out alone.
    alone = sum(work.share * (sum(way) - max(way)) for work, way in ways)
    return max(busiest, in_slots) + alone


def _task_work(chunks: ChunkPlan, pass_: ChunkPass, itemsize: int, there: Container[int]) -> dict[str, float]:
    """Return what one task of a pass takes, the mean over them; there: tables that are used where they are."""
    plan, fixed = chunks.plan, frozenset(pass_.fixed)
    parts = {table: part(plan, table, fixed) for step in pass_.steps for table in (*step.operands, step.out)}
    task = dict.fromkeys(("launches", "copies", "loaded", "stored", "touched", "quads", "entries", "terms"), 0.0)
    # Results that are added up on the device go out once.
    added = plan.shape.entries(pass_.summed) if pass_.summed and not sums_on_host(chunks, pass_, itemsize) else 1
    for way, tables in (("loaded", pass_.loads), ("stored", pass_.stores)):
        for table in tables:
            times = 1 / added if way == "stored" and table == pass_.out else 1.0
            if table not in there:
                task["copies"] += times
                task[way] += itemsize * parts[table] * times
    for group in fused_steps(chunks, pass_, itemsize):
        task["launches"] += 1
        task["touched"] += itemsize * sum(parts[table] for table in (*group.operands, group.out))
        if group.chain is not None:
            task["quads"] += parts[group.out] * CHAIN_LOADS
            continue
        step = pass_.steps[group.steps.start]
        terms = plan.shape.entries(v for v in step.eliminated if v not in fixed)
        task[kind_of(parts[step.out], terms, len(step.operands))] += parts[step.out] * terms * len(step.operands)
    return task


def kind_of(entries: int, terms: int, operands: int) -> str:
    """Return the loop of a contraction, as far as its sizes tell (`junctor_kernels.gpu.entries.launches_of`)."""
    if entries < MANY_ENTRIES and terms > max(NEAR, entries // TERMS_WORTH_THREADS):
        return "terms"
    return "quads" if terms <= NEAR and operands <= MOST_IN_QUADS else "entries"


def least_gpu_work(plan: Plan, itemsize: int) -> dict[str, float]:
    """Return a lower bound of GPU_CHUNK_WORK, however a plan is cut: every contraction once, nothing over the bus."""
    steps = tuple(step for step in plan.steps if isinstance(step, Reduce))
    whole = ChunkPlan(plan, (ChunkPass(steps, (), (), (), ()),) if steps else (), {}, frozenset(), 0)
    return gpu_chunk_work(whole, itemsize, 1, 0)
