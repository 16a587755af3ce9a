"""Which stored tables of a cut plan stay on GPUs, from when on, and where: those that take most off the bus.

Pure arithmetic, known before anything runs. `gpu.devices`, memory splits and the cost model call `placed`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from junctor.placement.fusion import touched_entries
from junctor.placement.placement import (
    Residency,
    leaf_offsets,
    outer_variables,
    pinned_offsets,
    results,
    share_bytes,
    stored,
    sums_on_host,
)
from junctor.placement.sharding import Sharding, Shardings, shard_passes
from junctor.planning.chunks import ChunkPlan, loaded_entries
from junctor.planning.first_fit import first_gap

# Bytes of a piece from which on its table may stay on a GPU: many small copies take long.
RESIDENT_PIECE = 1 << 12
# Tables that are considered for that, the largest.
MOST_RESIDENT = 256
# Times that tables are placed anew, together with one that finds no room.
MOST_PLACED_ANEW = 16

# A pass, and what it moves of a table, in entries over the bus: in, out, and on the device (none).
_Crossing = tuple[int, tuple[float, ...]]


class Places(NamedTuple):
    """Where the tables of a cut plan lie on GPUs and in pinned memory.

    leaves: of factors and evidence on every GPU, as of `leaf_offsets`, and `leaf_bytes` in all.
    shardings: which GPU does which tasks, and has which parts.
    resident: stored tables that stay on GPUs.
    pinned: offsets of the others in pinned memory, and `pinned_bytes` in all.
    """

    leaves: Mapping[int, tuple[int, int]]
    leaf_bytes: int
    shardings: Shardings
    resident: Mapping[int, Residency]
    pinned: Mapping[int, int]
    pinned_bytes: int

    def resident_bytes(self, chunks: ChunkPlan, itemsize: int) -> int:
        """Return the bytes that tables of a plan take of each GPU at the most."""
        ends = (each.offset + share_bytes(chunks, t, each.sharding, itemsize) for t, each in self.resident.items())
        return self.leaf_bytes + max(ends, default=0)


# Of the plans that are alive: to place all tables takes as long as half of a cut.
_PLACED: WeakKeyDictionary[ChunkPlan, dict[object, Places]] = WeakKeyDictionary()


def placed(
    chunks: ChunkPlan, itemsize: int, room: int, gpus: int, *, bus: float, device: float, apart: bool = False
) -> Places:
    """Return where all tables lie; kept with the plan.

    room: bytes of each GPU beside its slots.
    apart: whether GPUs do not reach each other's memory: then no stored table stays there.
    All others: as of `choose_residency`.
    """
    of_plan, key = _PLACED.setdefault(chunks, {}), (itemsize, room, gpus, bus, device, apart)
    if key not in of_plan:
        leaves, size = leaf_offsets(chunks, itemsize, room)
        outer = [outer_variables(chunks, pass_, itemsize) for pass_ in chunks.passes]
        shardings = shard_passes(chunks, outer, gpus)
        left = 0 if apart else room - size
        resident = choose_residency(chunks, itemsize, left, shardings, bus=bus, device=device)
        pinned = pinned_offsets(chunks, itemsize, resident)
        of_plan[key] = Places(leaves, size, shardings, resident, *pinned)
    return of_plan[key]


def choose_residency(
    chunks: ChunkPlan, itemsize: int, room: int, shardings: Shardings, *, bus: float, device: float
) -> dict[int, Residency]:
    """Return the stored tables that stay on GPUs.

    First come those that relieve most the busiest of three of every pass: bytes into the GPUs, out of them, or read and
    written there. A table that finds no room while it waits for its readers may still stay from the first of them to
    the last. What the host reads or makes is left to it.
    chunks: the plan.
    itemsize: bytes of an entry.
    room: bytes on each GPU.
    shardings: of passes and tables.
    bus: bytes a second over the bus, one way; only its ratio to `device` counts.
    device: bytes a second on a GPU, read and written.
    """
    sizes, lives = stored(chunks, itemsize)
    on_host = results(chunks) | {pass_.out for pass_ in chunks.passes if sums_on_host(chunks, pass_, itemsize)}
    free = [t for t in lives if t not in on_host | chunks.on_disk and chunks.piece(t) * itemsize >= RESIDENT_PIECE]
    # The others are small against these.
    largest = sorted(free, key=lambda table: (-sizes[table], table))[:MOST_RESIDENT] if room else []
    traffic = _Traffic(chunks, largest, itemsize, bus, device)
    candidates = [
        candidate
        for table in largest
        for candidate in _candidates(chunks, table, lives[table], itemsize, shardings, traffic.crossings[table])
    ]
    memory = _Memory(room, len(chunks.passes) + 1)
    while candidates:
        gains = [traffic.gain(candidate.crossings) for candidate in candidates]
        n = max(range(len(gains)), key=lambda n: (gains[n], candidates[n].preference))
        # Gains change with every choice, so the best is looked for anew.
        best, gain = candidates.pop(n), gains[n]
        if memory.add(best, moving=gain > 0):
            traffic.keep(best.crossings)
            candidates = [candidate for candidate in candidates if candidate.table != best.table]
    return {
        candidate.table: Residency(offset, candidate.sharding, candidate.since, candidate.brought)
        for candidate, offset in memory.offsets.items()
    }


@dataclass(frozen=True, eq=False, slots=True)
class _Candidate:
    """A way for a table to stay on GPUs.

    since, last: the passes that it is there for.
    brought: whether the first of them brings it.
    used: the GPUs that have shares of it.
    share: bytes of each.
    crossings: transfers over the bus that it saves.
    """

    table: int
    sharding: Sharding
    since: int
    last: int
    brought: bool
    used: frozenset[int]
    share: int
    crossings: Sequence[_Crossing]

    @property
    def preference(self) -> tuple[int, int, int, bool]:
        """What is greater for the better of two that gain as much."""
        return self.since - self.last, self.share, -self.table, self.brought


def _candidates(
    chunks: ChunkPlan,
    table: int,
    life: tuple[int, int],
    itemsize: int,
    shardings: Shardings,
    crossings: Sequence[_Crossing],
) -> Iterator[_Candidate]:
    """Yield the whole life of a table and, where several passes read it, the time from the first of them on."""
    first, last = life

    def candidate(since: int, sharding: Sharding, saved: Sequence[_Crossing]) -> _Candidate:
        share = share_bytes(chunks, table, sharding, itemsize)
        return _Candidate(table, sharding, since, last, since > first, sharding.used, share, saved)

    yield candidate(first, shardings.tables[table], crossings)
    reads = [crossing for crossing in crossings if crossing[0] > first]
    if len(reads) > 1:
        (reader, _), *later = reads
        fixed = set(chunks.passes[reader].fixed)
        # No two tasks of the reader bring the same part, and it has brought all of them before another pass reads one.
        if fixed <= set(chunks.plan.tables[table].scope) and later[0][0] > chunks.beside[reader]:
            yield candidate(reader, shardings.passes[reader], later)


class _Memory:
    """Memory of the same size on every GPU; tables alive at the same time on a GPU do not overlap.

    Tables come in the order of their gains and not of their lives, so each is fitted among those that are there.
    """

    def __init__(self, size: int, passes: int) -> None:
        self._size = size
        self.offsets: dict[_Candidate, int] = {}
        # Of each GPU the bytes that are taken in every pass.
        self._taken: defaultdict[int, npt.NDArray[np.int64]] = defaultdict(lambda: np.zeros(passes, np.int64))
        self._anew = MOST_PLACED_ANEW

    def add(self, new: _Candidate, moving: bool) -> bool:
        """Place a table, if need be with others at other offsets; returns False where there is no room."""
        if any(self._taken[gpu][new.since : new.last + 1].max() + new.share > self._size for gpu in new.used):
            return False
        # First at its place among the others: moving them takes long.
        offsets = self._with(self.offsets, new)
        if offsets is None and moving and self._anew:
            self._anew -= 1
            offsets = next(filter(None, (self._all([*self.offsets, new], order) for order in _ORDERS)), None)
        if offsets is None:
            return False
        self.offsets = offsets
        for gpu in new.used:
            self._taken[gpu][new.since : new.last + 1] += new.share
        return True

    def _with(self, offsets: dict[_Candidate, int], new: _Candidate) -> dict[_Candidate, int] | None:
        others = [other for other in offsets if other.since <= new.last and other.last >= new.since]
        others = [other for other in others if other.used & new.used]
        start = first_gap(sorted((offsets[other], offsets[other] + other.share) for other in others), new.share)
        return {**offsets, new: start} if start + new.share <= self._size else None

    def _all(self, tables: Iterable[_Candidate], order: Callable[[_Candidate], Any]) -> dict[_Candidate, int] | None:
        offsets: dict[_Candidate, int] | None = {}
        for table in sorted(tables, key=order):
            if offsets is None:
                break
            offsets = self._with(offsets, table)
        return offsets


# Orders in which tables are placed anew: the largest first, the longest first, those with most of both, as they come.
_ORDERS: tuple[Callable[[_Candidate], Any], ...] = (
    lambda table: (-table.share, table.since, table.table),
    lambda table: (table.since - table.last, -table.share, table.table),
    lambda table: (-table.share * (table.last - table.since + 1), table.table),
    lambda table: (table.since, -table.share, table.table),
)


class _Traffic:
    """What every pass moves, in entries over the bus: in, out, and what takes as long on a device.

    crossings: table -> the passes that transfer it over the bus, and what they transfer.
    """

    def __init__(self, chunks: ChunkPlan, tables: Iterable[int], itemsize: int, bus: float, device: float) -> None:
        plan = chunks.plan
        self._passes: list[tuple[float, ...]] = []
        self.crossings: dict[int, list[_Crossing]] = {table: [] for table in tables}
        for n, pass_ in enumerate(chunks.passes):
            loads = {table: float(loaded_entries(plan, pass_, [table])) for table in pass_.loads}
            stores = {table: float(plan.tables[table].entries) for table in pass_.stores}
            touched = plan.shape.entries(pass_.fixed) * touched_entries(chunks, pass_, itemsize)
            # As long as that many entries over the bus would take.
            there = touched * bus / device
            self._passes.append((sum(loads.values()), sum(stores.values()), there))
            for table in self.crossings.keys() & (loads.keys() | stores.keys()):
                self.crossings[table].append((n, (loads.get(table, 0.0), stores.get(table, 0.0), 0.0)))

    def gain(self, crossings: Iterable[_Crossing]) -> float:
        """Return what passes would take less without some crossings."""
        return sum(max(self._passes[n]) - max(self._less(n, moved)) for n, moved in crossings)

    def keep(self, crossings: Iterable[_Crossing]) -> None:
        """Do without some crossings."""
        for n, moved in crossings:
            self._passes[n] = self._less(n, moved)

    def _less(self, n: int, moved: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(whole - part for whole, part in zip(self._passes[n], moved, strict=True))
