"""Which stored tables of a cut plan stay on GPUs, from when on, and where: whatever takes most off the bus.

Pure arithmetic, known before anything runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.placement.fusion import touched_entries
from junctor.placement.placement import Residency, results, share_bytes, spreads, stored
from junctor.placement.sharding import Sharding, Shardings
from junctor.planning.chunks import ChunkPlan, loaded_entries
from junctor.planning.first_fit import first_gap

# Tables whose pieces are at least so large may stay on a GPU: smaller ones take long to copy one by one.
RESIDENT_PIECE = 1 << 12
# Tables that are considered for that, the largest.
MOST_RESIDENT = 256
# Times that tables are placed anew, together with one that finds no room.
MOST_PLACED_ANEW = 16

# A pass, and what it moves of a table, in entries over the bus: in, out, and on the device (none).
_Crossing = tuple[int, tuple[float, ...]]


def resident_places(
    chunks: ChunkPlan, itemsize: int, room: int, dealt: Shardings, *, bus: float, device: float
) -> dict[int, Residency]:
    """Return the stored tables that stay on GPUs.

    room: bytes on each GPU. bus, device: bytes a second over the bus, one way, and on a GPU, read and written; only
    their ratio counts. First come those that bring down most what the busiest way of every pass takes: bytes into
    the GPUs, out of them, or read and written there. A table that finds no room while it waits for its readers may
    still stay from the first of them to the last. What the host reads or makes is left to it.
    """
    sizes, lives = stored(chunks, itemsize)
    on_host = results(chunks) | {each.out for each in chunks.passes if spreads(chunks, each, itemsize)}
    free = [t for t in lives if t not in on_host | chunks.on_disk and chunks.piece(t) * itemsize >= RESIDENT_PIECE]
    # The others are small against these.
    largest = sorted(free, key=lambda table: (-sizes[table], table))[:MOST_RESIDENT] if room else []
    traffic = _Traffic(chunks, largest, bus, device)
    candidates = [
        each
        for table in largest
        for each in _candidates(chunks, table, lives[table], itemsize, dealt, traffic.crossings[table])
    ]
    memory = _Memory(room, len(chunks.passes) + 1)
    while candidates:
        gains = [traffic.gain(each.crossings) for each in candidates]
        n = max(range(len(gains)), key=lambda n: (gains[n], candidates[n].preference))
        best, gain = candidates.pop(n), gains[n]
        if memory.add(best, moving=gain > 0):
            traffic.keep(best.crossings)
            candidates = [each for each in candidates if each.table != best.table]
    return {each.table: Residency(at, each.deal, each.since, each.brought) for each, at in memory.places.items()}


@dataclass(frozen=True, eq=False, slots=True)
class _Candidate:
    """A way for a table to stay on GPUs, for some passes.

    brought: whether the first of them brings it. used: the GPUs that have shares of it, of so many bytes each.
    crossings: those that it saves.
    """

    table: int
    deal: Sharding
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
    dealt: Shardings,
    crossings: Sequence[_Crossing],
) -> Iterator[_Candidate]:
    """Yield the whole life of a table and, where several passes read it, the time from the first of them on."""
    first, last = life

    def candidate(since: int, deal: Sharding, saved: Sequence[_Crossing]) -> _Candidate:
        share = share_bytes(chunks, table, deal, itemsize)
        return _Candidate(table, deal, since, last, since > first, deal.used, share, saved)

    yield candidate(first, dealt.tables[table], crossings)
    reads = [crossing for crossing in crossings if crossing[0] > first]
    if len(reads) > 1:
        (reader, _), *later = reads
        if set(chunks.passes[reader].fixed) <= set(chunks.plan.tables[table].scope):
            # No two tasks of the reader bring the same part.
            yield candidate(reader, dealt.passes[reader], later)


class _Memory:
    """Memory that every GPU has as much of; tables alive at the same time on a GPU do not overlap."""

    def __init__(self, size: int, passes: int) -> None:
        self._size = size
        self.places: dict[_Candidate, int] = {}
        # Of each GPU the bytes that are taken in every pass.
        self._taken: defaultdict[int, npt.NDArray[np.int64]] = defaultdict(lambda: np.zeros(passes, np.int64))
        self._anew = MOST_PLACED_ANEW

    def add(self, new: _Candidate, moving: bool) -> bool:
        """Find a place for a table, if need be with others in other places; tells whether there is one."""
        if any(self._taken[gpu][new.since : new.last + 1].max() + new.share > self._size for gpu in new.used):
            return False
        found = self._with(self.places, new)
        if found is None and moving and self._anew:
            self._anew -= 1
            found = next(filter(None, (self._all([*self.places, new], order) for order in _ORDERS)), None)
        if found is None:
            return False
        self.places = found
        for gpu in new.used:
            self._taken[gpu][new.since : new.last + 1] += new.share
        return True

    def _with(self, places: dict[_Candidate, int], new: _Candidate) -> dict[_Candidate, int] | None:
        others = [each for each in places if each.since <= new.last and each.last >= new.since]
        others = [each for each in others if each.used & new.used]
        start = first_gap(sorted((places[each], places[each] + each.share) for each in others), new.share)
        return {**places, new: start} if start + new.share <= self._size else None

    def _all(self, tables: Iterable[_Candidate], order: Callable[[_Candidate], Any]) -> dict[_Candidate, int] | None:
        places: dict[_Candidate, int] | None = {}
        for each in sorted(tables, key=order):
            if places is None:
                break
            places = self._with(places, each)
        return places


# Orders in which tables are placed anew: the largest first, the longest first, those with most of both, as they come.
_ORDERS: tuple[Callable[[_Candidate], Any], ...] = (
    lambda each: (-each.share, each.since, each.table),
    lambda each: (each.since - each.last, -each.share, each.table),
    lambda each: (-each.share * (each.last - each.since + 1), each.table),
    lambda each: (each.since, -each.share, each.table),
)


class _Traffic:
    """What every pass moves, in entries over the bus: in, out, and what takes as long on a device.

    crossings: for each table the passes that it crosses the bus for, and what then.
    """

    def __init__(self, chunks: ChunkPlan, tables: Iterable[int], bus: float, device: float) -> None:
        plan = chunks.plan
        self._passes: list[tuple[float, ...]] = []
        self.crossings: dict[int, list[_Crossing]] = {table: [] for table in tables}
        for n, each in enumerate(chunks.passes):
            loads = {table: float(loaded_entries(plan, each, [table])) for table in each.loads}
            stores = {table: float(plan.tables[table].entries) for table in each.stores}
            touched = plan.shape.entries(each.fixed) * touched_entries(chunks, each)
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
