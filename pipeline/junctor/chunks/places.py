"""Where the tables of a cut plan lie: parts in a slot of a GPU, whole tables on the GPUs and in pinned memory.

Pure arithmetic: what lies where, and when another one takes the place of one, is known before anything runs.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from dataclasses import replace

from junctor_kernels.entries_gpu import PARTIAL_ENTRIES

from junctor.chunks.dealing import Deal
from junctor.planning.arena import first_gap
from junctor.planning.chunks import ChunkPlan, Pass, loaded_entries, part

# Tables and parts begin at multiples of so many bytes.
ALIGNED = 256
# Results of the tasks of a pass are added up on the host where all of them take no more bytes.
SPREAD_BYTES = 1 << 26
# Tables whose pieces are at least so large may stay on a GPU: smaller ones take long to copy one by one.
RESIDENT_PIECE = 1 << 12
# Tables that are considered for that, the largest.
MOST_RESIDENT = 256
# Entries that a thread reads at once: pieces that tasks read where they are begin at multiples of it.
VECTOR = 4
# Share of the memory of a GPU, beside slots, that the tables which are there at the beginning may take.
LEAF_SHARE = 1 / 8
# Bytes a second over the bus, one way, and on a device, read and written: their ratio counts.
BUS_RATE, DEVICE_RATE = 55e9, 3e12

# First and last pass (or step) of a table.
Lives = Mapping[int, tuple[int, int]]


def slot_bytes(chunks: ChunkPlan, itemsize: int) -> int:
    """Return the bytes that a slot takes: the parts of the task with most, and the sums of terms kept at first."""
    most = max((task_places(chunks, each, itemsize)[1] for each in chunks.passes), default=0)
    return most + 2 * PARTIAL_ENTRIES * itemsize


def task_places(chunks: ChunkPlan, each: Pass, itemsize: int) -> tuple[dict[int, int], int]:
    """Return where the part of every table of a pass begins in a slot, and the bytes in all."""
    lives: dict[int, tuple[int, int]] = {}
    for n, step in enumerate(each.steps):
        for table in (*step.operands, step.out):
            lives[table] = (lives.get(table, (n, n))[0], n)
    if each.summed:
        # What tasks add to is there from the beginning of the next one.
        lives[each.out] = (0, len(each.steps))
    return _placed(lives, {table: part(chunks.plan, table, each.fixed) * itemsize for table in lives})


def spreads(chunks: ChunkPlan, each: Pass, itemsize: int) -> bool:
    """Tell whether results of tasks are added up on the host, so that such tasks need not wait for each other."""
    size = part(chunks.plan, each.out, each.fixed) * itemsize
    return bool(each.summed) and size * chunks.plan.shape.entries(each.fixed) <= SPREAD_BYTES


def outer_variables(chunks: ChunkPlan, each: Pass, itemsize: int) -> list[int]:
    """Return the chunk variables that groups of tasks differ in: those of a group add up their results."""
    apart = spreads(chunks, each, itemsize)
    return [v for v in each.fixed if apart or v not in each.summed]


def leaf_places(chunks: ChunkPlan, itemsize: int, room: int) -> tuple[dict[int, tuple[int, int]], int]:
    """Return where the tables that are there at the beginning go on every GPU, and the bytes in all.

    For each its first byte, and the entries from one of its pieces to the next: whole vectors, so that tasks read any
    piece where it is. None where all take more than LEAF_SHARE of the room that there is on each GPU.
    """
    places, end = dict[int, tuple[int, int]](), 0
    for table in sorted(table for table, (first, _) in chunks.lifetimes().items() if first < 0):
        apart = -(-chunks.piece(table) // VECTOR) * VECTOR
        places[table] = end, apart
        end = aligned(end + chunks.plan.tables[table].entries // chunks.piece(table) * apart * itemsize)
    return (places, end) if end <= room * LEAF_SHARE else ({}, 0)


def resident_places(
    chunks: ChunkPlan, itemsize: int, room: int, deals: Mapping[int, Deal] | None = None
) -> dict[int, int]:
    """Return the stored tables that stay on GPUs, and where each begins there, its share on every GPU that has one.

    room: bytes on each GPU. deals: of all stored tables; whole tables on one GPU if not given. First come those that
    bring down most what the busiest way of every pass takes: bytes into the GPUs, out of them, or read and written
    there. What the host reads or makes is left to it.
    """
    sizes, lives = _stored(chunks, itemsize)
    deals = deals or dict.fromkeys(lives, Deal())
    shares = shares_of(chunks, itemsize, deals)
    on_host = _results(chunks) | {each.out for each in chunks.passes if spreads(chunks, each, itemsize)}
    free = [t for t in lives if t not in on_host | chunks.on_disk and chunks.piece(t) * itemsize >= RESIDENT_PIECE]
    # The others are small against these.
    free = sorted(free, key=lambda table: (-sizes[table], table))[:MOST_RESIDENT] if room else []
    traffic = _Traffic(chunks, free)
    places: dict[int, int] = {}
    while free:
        best = max(
            free, key=lambda table: (traffic.gain(table), lives[table][0] - lives[table][1], sizes[table], -table)
        )
        free.remove(best)
        first, last = lives[best]
        others = [t for t in places if lives[t][0] <= last and lives[t][1] >= first]
        others = [t for t in others if deals[t].used & deals[best].used]
        start = first_gap(sorted((places[t], places[t] + shares[t]) for t in others), shares[best])
        if start + shares[best] <= room:
            places[best] = start
            traffic.keep(best)
    return places


def shares_of(chunks: ChunkPlan, itemsize: int, deals: Mapping[int, Deal]) -> dict[int, int]:
    """Return the bytes that the share of each table takes on a GPU."""
    entries = {table: chunks.plan.tables[table].entries // deal.count * deal.most for table, deal in deals.items()}
    return {table: aligned(size * itemsize) for table, size in entries.items()}


class _Traffic:
    """What every pass moves, in entries over the bus: in, out, and what takes as long on a device."""

    def __init__(self, chunks: ChunkPlan, tables: Iterable[int]) -> None:
        plan = chunks.plan
        self._passes: list[tuple[float, ...]] = []
        # For each table the passes that it crosses the bus for, and what then.
        self._crossings: dict[int, list[tuple[int, tuple[float, ...]]]] = {table: [] for table in tables}
        for n, each in enumerate(chunks.passes):
            parts = sum(part(plan, table, each.fixed) for step in each.steps for table in (*step.operands, step.out))
            loads = {table: float(loaded_entries(plan, replace(each, loads=(table,)))) for table in each.loads}
            stores = {table: float(plan.tables[table].entries) for table in each.stores}
            device = plan.shape.entries(each.fixed) * parts * BUS_RATE / DEVICE_RATE
            self._passes.append((sum(loads.values()), sum(stores.values()), device))
            for table in self._crossings.keys() & (loads.keys() | stores.keys()):
                self._crossings[table].append((n, (loads.get(table, 0.0), stores.get(table, 0.0), 0.0)))

    def gain(self, table: int) -> float:
        """Return what passes would take less if a table stayed on a device."""
        return sum(max(self._passes[n]) - max(self._less(n, crossing)) for n, crossing in self._crossings[table])

    def keep(self, table: int) -> None:
        """Let a table stay on a device."""
        for n, crossing in self._crossings[table]:
            self._passes[n] = self._less(n, crossing)

    def _less(self, n: int, crossing: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(whole - part for whole, part in zip(self._passes[n], crossing, strict=True))


def pinned_places(chunks: ChunkPlan, itemsize: int, resident: Mapping[int, object]) -> tuple[dict[int, int], int]:
    """Return where every other table that tasks read or store begins in pinned memory, and the bytes in all.

    Small ones too, and those that are there at the beginning: a copy to other memory waits until the device has done
    all that comes before.
    """
    sizes, lives = _all_stored(chunks, itemsize)
    return _placed({t: life for t, life in lives.items() if t not in resident and t not in chunks.on_disk}, sizes)


def passes_before(
    chunks: ChunkPlan,
    itemsize: int,
    resident: Mapping[int, int],
    pinned: Mapping[int, int],
    deals: Mapping[int, Deal] | None = None,
) -> dict[int, int]:
    """Return for a stored table the last pass that needs anything of what lay where it goes; none where nothing did."""
    sizes, lives = _all_stored(chunks, itemsize)
    deals = deals or dict.fromkeys(resident, Deal())
    found = _before(pinned, sizes, lives)
    shares = shares_of(chunks, itemsize, {table: deals[table] for table in resident})
    for gpu in {gpu for table in resident for gpu in deals[table].used}:
        there = {table: start for table, start in resident.items() if gpu in deals[table].used}
        for table, last in _before(there, shares, lives).items():
            found[table] = max(last, found.get(table, -1))
    return found


def _before(places: Mapping[int, int], sizes: Mapping[int, int], lives: Lives) -> dict[int, int]:
    """The same for tables of one memory, where each begins."""
    # Pieces side by side: where each ends, and the last pass of what lies there.
    ends, lasts = [max((places[table] + sizes[table] for table in places), default=0)], [-1]
    found: dict[int, int] = {}
    for table in sorted(places, key=lambda table: (lives[table][0], table)):
        start, end, last = places[table], places[table] + sizes[table], lives[table][1]
        if start == end:
            continue
        first, behind = bisect.bisect_right(ends, start), bisect.bisect_left(ends, end)
        before = max(lasts[first : behind + 1])
        if before >= 0:
            found[table] = before
        begins = ends[first - 1] if first else 0
        rest = ([start], [lasts[first]]) if begins < start else ([], [])
        kept = ([], []) if ends[behind] == end else ([ends[behind]], [lasts[behind]])
        ends[first : behind + 1] = [*rest[0], end, *kept[0]]
        lasts[first : behind + 1] = [*rest[1], last, *kept[1]]
    return found


def _stored(chunks: ChunkPlan, itemsize: int) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """Return the bytes of the tables that passes store, and their first and last passes."""
    lives = {table: life for table, life in chunks.lifetimes().items() if life[0] >= 0}
    for table in _results(chunks) & lives.keys():
        lives[table] = (lives[table][0], len(chunks.passes))
    return {table: aligned(chunks.plan.tables[table].entries * itemsize) for table in lives}, lives


def _all_stored(chunks: ChunkPlan, itemsize: int) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """The same with the tables that are there at the beginning."""
    sizes, lives = _stored(chunks, itemsize)
    there = {table: life for table, life in chunks.lifetimes().items() if table not in lives}
    return sizes | {t: aligned(chunks.plan.tables[t].entries * itemsize) for t in there}, lives | there


def _results(chunks: ChunkPlan) -> set[int]:
    return {*chunks.plan.totals, *(table for _, table in chunks.plan.marginals)}


def aligned(size: int) -> int:
    """Return a number of bytes, made up to a multiple of ALIGNED."""
    return -(-size // ALIGNED) * ALIGNED


def _placed(lives: Lives, sizes: Mapping[int, int]) -> tuple[dict[int, int], int]:
    """Place pieces of memory so that those alive at the same time do not overlap; first fit, in order of beginning."""
    alive: list[tuple[int, int]] = []
    ends: list[tuple[int, int, int]] = []
    places: dict[int, int] = {}
    most = 0
    for table, (first, last) in sorted(lives.items(), key=lambda each: (each[1][0], -sizes[each[0]], each[0])):
        while ends and ends[0][0] < first:
            alive.remove(ends.pop(0)[1:])
        size = aligned(sizes[table])
        places[table] = start = first_gap(alive, size)
        bisect.insort(alive, (start, start + size))
        bisect.insort(ends, (last, start, start + size))
        most = max(most, start + size)
    return places, most
