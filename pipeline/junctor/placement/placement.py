"""Where the tables of a cut plan lie: parts in a slot of a GPU, whole tables on the GPUs and in pinned memory.

Pure arithmetic: what lies where, and when another one takes the place of one, is known before anything runs.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from junctor_kernels.gpu.entries import PARTIAL_ENTRIES, VECTOR

from junctor.placement.fusion import fused_steps
from junctor.placement.sharding import Sharding
from junctor.planning.chunks import ChunkPass, ChunkPlan, part
from junctor.planning.first_fit import ALIGNED, aligned, first_fit, side_by_side

# Results of the tasks of a pass are added up on the host where all of them take no more bytes.
SPREAD_BYTES = 1 << 26
# Share of the memory of a GPU, beside slots, that the tables which are there at the beginning may take.
LEAF_SHARE = 1 / 8

# First and last pass (or launch) of a table.
Lives = Mapping[int, tuple[int, int]]


def slot_bytes(chunks: ChunkPlan, itemsize: int) -> int:
    """Return the bytes that a slot takes: the parts of the task with most, and the sums of terms kept at first."""
    most = max((slot_offsets(chunks, pass_, itemsize)[1] for pass_ in chunks.passes), default=0)
    return most + 2 * PARTIAL_ENTRIES * itemsize


def slot_offsets(chunks: ChunkPlan, pass_: ChunkPass, itemsize: int) -> tuple[dict[int, int], int]:
    """Return the offset of the part of every table of a pass in a slot, and the bytes in all."""
    lives: dict[int, tuple[int, int]] = {}
    for n, group in enumerate(fused_steps(chunks, pass_, itemsize)):
        for table in (*group.operands, group.out):
            # From the first launch that has the table to the last one; between them others may take gaps.
            lives[table] = (lives.get(table, (n, n))[0], n)
    if pass_.summed:
        # What tasks add to is there from the beginning of the next one.
        lives[pass_.out] = (0, len(pass_.steps))
    return _placed(lives, {table: part(chunks.plan, table, pass_.fixed) * itemsize for table in lives})


def sums_on_host(chunks: ChunkPlan, pass_: ChunkPass, itemsize: int) -> bool:
    """Return True if results of tasks are added up on the host, so that such tasks need not wait for each other."""
    size = part(chunks.plan, pass_.out, pass_.fixed) * itemsize
    # Tasks of a group would follow each other on one slot otherwise.
    return bool(pass_.summed) and size * chunks.plan.shape.entries(pass_.fixed) <= SPREAD_BYTES


def outer_variables(chunks: ChunkPlan, pass_: ChunkPass, itemsize: int) -> list[int]:
    """Return the chunk variables that groups of tasks differ in: those of a group add up their results."""
    apart = sums_on_host(chunks, pass_, itemsize)
    return [v for v in pass_.fixed if apart or v not in pass_.summed]


def leaf_offsets(chunks: ChunkPlan, itemsize: int, room: int) -> tuple[dict[int, tuple[int, int]], int]:
    """Return where factors and evidence go on every GPU, and the bytes in all.

    For each table its offset, and the entries from one of its pieces to the next: whole vectors, so that tasks read any
    piece where it is. None where all take more than LEAF_SHARE of the room.
    chunks: the plan.
    itemsize: bytes of an entry.
    room: bytes that there are on each GPU.
    """
    leaves = sorted(table for table, (first, _) in chunks.lifetimes().items() if first < 0)
    # Kernels load whole vectors from wherever a piece begins.
    apart = {table: aligned(chunks.piece(table), VECTOR) for table in leaves}
    pieces = {table: chunks.plan.tables[table].entries // chunks.piece(table) for table in leaves}
    offsets, total = side_by_side({table: pieces[table] * apart[table] * itemsize for table in leaves})
    return (
        ({table: (offsets[table], apart[table]) for table in leaves}, total) if total <= room * LEAF_SHARE else ({}, 0)
    )


class Residency(NamedTuple):
    """Where a stored table lies on GPUs, and from when on.

    offset: of its share, in bytes, the same on every GPU that has one.
    sharding: which GPU has which part of it.
    since: the pass that makes it or, where it is `brought`, the first one that reads it and brings it from the host.
    brought: whether it comes from the host.
    """

    offset: int
    sharding: Sharding
    since: int
    brought: bool


Resident = Mapping[int, Residency]


def crosses_bus(resident: Resident, table: int, number: int) -> bool:
    """Return True if a pass that makes or reads a table moves it between host and GPUs."""
    residency = resident.get(table)
    return residency is None or number < residency.since or (residency.brought and number == residency.since)


def share_bytes(chunks: ChunkPlan, table: int, sharding: Sharding, itemsize: int) -> int:
    """Return the bytes of a sharded table that a GPU has at most."""
    return aligned(chunks.plan.tables[table].entries // sharding.count * sharding.most * itemsize)


def pinned_offsets(chunks: ChunkPlan, itemsize: int, resident: Resident) -> tuple[dict[int, int], int]:
    """Return the offset in pinned memory of every other table that tasks read or store, and the bytes in all.

    Those that are brought to a GPU lie there until then. Small ones, factors and evidence too: a copy to memory that is
    not pinned waits until the device has done all that comes before.
    """
    sizes, lives = _all_stored(chunks, itemsize)
    return _placed(_pinned_lives(chunks, lives, resident), sizes)


def _pinned_lives(chunks: ChunkPlan, lives: Lives, resident: Resident) -> Lives:
    others = {t: life for t, life in lives.items() if t not in resident and t not in chunks.on_disk}
    brought = {t: residency.since for t, residency in resident.items() if residency.brought}
    return others | {t: (lives[t][0], chunks.beside[since]) for t, since in brought.items()}


@dataclass(frozen=True, slots=True)
class ReuseBarriers:
    """Table -> the last pass that needs anything of what lay where the table goes; none where nothing did.

    pinned: of tables in pinned memory.
    resident: of tables on GPUs.
    """

    pinned: Mapping[int, int]
    resident: Mapping[int, int]


def reuse_barriers(chunks: ChunkPlan, itemsize: int, resident: Resident, pinned: Mapping[int, int]) -> ReuseBarriers:
    """Return the passes that have to be done before tables take their places."""
    sizes, lives = _all_stored(chunks, itemsize)
    on_gpus: dict[int, int] = {}
    shares = {t: share_bytes(chunks, t, residency.sharding, itemsize) for t, residency in resident.items()}
    resident_lives = {table: (residency.since, lives[table][1]) for table, residency in resident.items()}
    for gpu in {gpu for residency in resident.values() for gpu in residency.sharding.used}:
        offsets = {t: residency.offset for t, residency in resident.items() if gpu in residency.sharding.used}
        for table, last in _before(offsets, shares, resident_lives).items():
            # Of a table that is spread over GPUs the last one counts.
            on_gpus[table] = max(last, on_gpus.get(table, -1))
    return ReuseBarriers(_before(pinned, sizes, _pinned_lives(chunks, lives, resident)), on_gpus)


def _before(places: Mapping[int, int], sizes: Mapping[int, int], lives: Lives) -> dict[int, int]:
    """The same for tables of one memory, where each begins."""
    # Pieces side by side: where each ends, and the last pass of what lies there.
    ends, lasts = [max((places[table] + sizes[table] for table in places), default=0)], [-1]
    barriers: dict[int, int] = {}
    for table in sorted(places, key=lambda table: (lives[table][0], table)):
        start, end, last = places[table], places[table] + sizes[table], lives[table][1]
        # An empty share takes the place of nothing.
        if start == end:
            continue
        first, behind = bisect.bisect_right(ends, start), bisect.bisect_left(ends, end)
        before = max(lasts[first : behind + 1])
        if before >= 0:
            barriers[table] = before
        begins = ends[first - 1] if first else 0
        rest = ([start], [lasts[first]]) if begins < start else ([], [])
        kept = ([], []) if ends[behind] == end else ([ends[behind]], [lasts[behind]])
        ends[first : behind + 1] = [*rest[0], end, *kept[0]]
        lasts[first : behind + 1] = [*rest[1], last, *kept[1]]
    return barriers


def stored(chunks: ChunkPlan, itemsize: int) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """Return the bytes of the tables that passes store, and their first and last passes."""
    lives = {table: life for table, life in chunks.lifetimes().items() if life[0] >= 0}
    for table in results(chunks) & lives.keys():
        # Results are read when all passes are done.
        lives[table] = (lives[table][0], len(chunks.passes))
    return {table: aligned(chunks.plan.tables[table].entries * itemsize) for table in lives}, lives


def _all_stored(chunks: ChunkPlan, itemsize: int) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """The same with the tables that are there at the beginning."""
    sizes, lives = stored(chunks, itemsize)
    there = {table: life for table, life in chunks.lifetimes().items() if table not in lives}
    return sizes | {t: aligned(chunks.plan.tables[t].entries * itemsize) for t in there}, lives | there


def results(chunks: ChunkPlan) -> set[int]:
    """Return the tables that a case answers with."""
    return {*chunks.plan.totals, *(table for _, table in chunks.plan.marginals)}


def _placed(lives: Lives, sizes: Mapping[int, int]) -> tuple[dict[int, int], int]:
    """Return offsets and the bytes in all: of tables that begin together the largest come first."""
    order = sorted(lives, key=lambda table: (-sizes[table], table))
    return first_fit({table: lives[table] for table in order}, sizes, ALIGNED)
