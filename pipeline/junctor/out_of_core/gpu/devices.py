"""The GPUs of one machine for a cut plan: which of them does what, and where stored tables lie.

What a device makes stays there where there is room beside its slots (`slots.py`): of a table each device has the part
that its tasks make. Others copy from there, since all devices reach each other's memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu.entries import VECTOR, PartRuns
from numpy.lib.stride_tricks import as_strided

from junctor.cost.constants import GPU
from junctor.out_of_core.gpu.copies import lying_at
from junctor.out_of_core.gpu.slots import SLOTS, STAGING_BYTES, DeviceSlots, GroupSlot
from junctor.out_of_core.gpu.staging import Staging, pinned
from junctor.placement.placement import (
    aligned,
    crosses,
    leaf_places,
    outer_variables,
    passes_before,
    pinned_places,
    slot_bytes,
)
from junctor.placement.residency import resident_places
from junctor.placement.sharding import Sharding, agreement, deals
from junctor.planning.chunks import ChunkPlan, configurations

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import CudaBlockDevice

    from junctor.out_of_core.store import ChunkStore

Array = npt.NDArray[Any]


class TableView(NamedTuple):
    """A table that tasks read or write where it is: its address, by how many bytes a state of each chunk variable of
    the pass moves that, and how what agrees with them lies."""

    at: int
    by: tuple[tuple[int, int], ...]
    runs: PartRuns


class DeviceGroup:
    """GPUs of one machine for the tasks of a cut plan in single or double precision.

    Tasks have the room that all work on a device shares, and so have the stored tables that stay there; others lie in
    pinned memory that all devices reach. slots: of each device, at most. deals: which device does what. before: the
    last pass that needs what lies where a table goes. Raises MemoryError where not even one slot fits.
    """

    def __init__(self, chunks: ChunkPlan, algebra: str, *devices: CudaBlockDevice, slots: int = SLOTS) -> None:
        self.algebra, self.chunks, self._sizes = algebra, chunks, chunks.plan.shape.cardinalities
        self.dtype = np.dtype(np.float64 if algebra == "double" else np.float32)
        slot = slot_bytes(chunks, self.dtype.itemsize)
        self.each = [DeviceSlots(algebra, device, slot, slots) for device in devices]
        places = [(one, n) for one in self.each for n in range(one.count)]
        self.slots = [GroupSlot(number, one, one.slots_at[n], one.streams[n]) for number, (one, n) in enumerate(places)]
        self.leaves, size = leaf_places(chunks, self.dtype.itemsize, min(one.room for one in self.each))
        self._leaves = pinned(size).view(self.dtype)
        for one in self.each:
            one.tables, one.room = one.leaves + size, one.room - size
        outer = [outer_variables(chunks, each, self.dtype.itemsize) for each in chunks.passes]
        self.deals = deals(chunks, outer, len(self.each))
        room = min(one.room for one in self.each) if _reach_each_other(self.each) else 0
        self.resident = resident_places(
            chunks, self.dtype.itemsize, room, self.deals, bus=GPU.bus_rate, device=GPU.copy_rate
        )
        self._pinned, size = pinned_places(chunks, self.dtype.itemsize, self.resident)
        self.before = passes_before(chunks, self.dtype.itemsize, self.resident, self._pinned)
        self._first = list(accumulate((len(each.steps) for each in chunks.passes), initial=0))
        # What devices tell of the steps goes behind the tables.
        self._report = aligned(4 * self._first[-1] * self.dtype.itemsize)
        staging = size + self._report * len(self.each)
        self._host = pinned(staging + STAGING_BYTES)
        self._reported = self._host[size:staging].view(np.uint64 if algebra == "double" else np.uint32)
        self.staging = Staging(self._host[staging:])
        for n, one in enumerate(self.each):
            one.allot_words(self._first[-1], self._reported.ctypes.data + n * self._report)

    @property
    def loaded(self) -> int:
        """Bytes that came in so far."""
        return sum(slot.loaded for slot in self.slots)

    @property
    def stored(self) -> int:
        """Bytes that went out so far."""
        return sum(slot.stored for slot in self.slots)

    @property
    def exchanged(self) -> int:
        """Bytes of both that were copied from a device or to one."""
        return sum(slot.exchanged for slot in self.slots)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have the devices for oneself: nothing else is in the room that all work shares."""
        with ExitStack() as stack:
            for one in self.each:
                stack.enter_context(one.queue)
                one.cupy.cuda.runtime.deviceSynchronize()
            yield

    def begin(self) -> None:
        """Begin a propagation."""
        for one in self.each:
            one.begin()

    def bring_leaves(self, store: ChunkStore) -> None:
        """Bring the tables that are there at the beginning to all devices, as far as they have room for them."""
        for table, (start, apart) in self.leaves.items():
            pieces = store.tables[table].entries.reshape(-1, self.chunks.piece(table))
            begin = start // self.dtype.itemsize
            self._leaves[begin : begin + len(pieces) * apart].reshape(-1, apart)[:, : pieces.shape[1]] = pieces
        for one in self.each if self.leaves else []:
            one.bring_leaves(self._leaves)

    def stays(self, table: int, number: int) -> bool:
        """Tell whether tasks of a pass find a table on devices, make it there, or bring it for others."""
        return table in self.resident and number >= self.resident[table].since

    def crosses(self, table: int, number: int) -> bool:
        """Tell whether a pass moves a table between host and devices."""
        return crosses(self.resident, table, number)

    def in_place(self, one: DeviceSlots, table: int, number: int) -> TableView | None:
        """Return where tasks of a pass on a device find a table there; None if not all of what they need of it is."""
        fixed, deal = self.chunks.passes[number].fixed, Sharding()
        if table in self.leaves:
            start, apart = self.leaves[table]
            start += one.leaves
        elif self.stays(table, number) and self.chunks.piece(table) % VECTOR == 0:
            apart, deal = self.chunks.piece(table), self.resident[table].deal
            if not set(deal.by) <= set(fixed) or agreement(deal, self.deals.passes[number]) < 1:
                return None
            start = self._origin(table, self.each.index(one))
        else:
            return None
        strides = self._strides(table, apart, deal)
        free = np.zeros(1, np.int64)
        for v in self.chunks.cuts.get(table, ()):
            if v not in fixed:
                free = np.add.outer(free, np.arange(self._sizes[v]) * strides[v]).reshape(-1)
        moves = tuple((v, stride * self.dtype.itemsize) for v, stride in strides.items() if v in fixed)
        return TableView(start, moves, PartRuns(self.chunks.piece(table), tuple(free.tolist())))

    def _strides(self, table: int, apart: int, deal: Sharding) -> dict[int, int]:
        """Return the entries from one state to the next of every chunk variable of a table, pieces `apart`.

        Those that it is dealt by are in front.
        """
        cuts, strides = self.chunks.cuts.get(table, ()), dict[int, int]()
        for v in reversed((*deal.by, *(v for v in cuts if v not in deal.by))):
            strides[v] = apart
            apart *= self._sizes[v]
        return strides

    def _origin(self, table: int, gpu: int) -> int:
        """Return where a table that stays on devices would begin on one if that had the first configuration too."""
        start, deal, *_ = self.resident[table]
        block = self.chunks.plan.tables[table].entries // deal.count
        return self.each[gpu].tables + start - deal.begin(gpu) * block * self.dtype.itemsize

    def pieces(self, table: int, states: Mapping[int, int]) -> Iterator[tuple[tuple[int | slice, ...], Array]]:
        """Yield what agrees with `states` of a table that stays on devices, device by device.

        Each where it belongs in the part [free chunk variables..., entries of a piece], and as it lies there, good for
        copies only.
        """
        deal, piece, cuts = self.resident[table].deal, self.chunks.piece(table), self.chunks.cuts.get(table, ())
        strides = self._strides(table, piece, deal)
        free = [v for v in cuts if v not in states and v not in deal.by]
        shape = (*(self._sizes[v] for v in free), piece)
        apart = tuple(self.dtype.itemsize * stride for stride in (*(strides[v] for v in free), 1))
        open_ = [v for v in deal.by if v not in states]
        for values in configurations([self._sizes[v] for v in open_]):
            here = dict(states) | dict(zip(open_, values, strict=True))
            entries = sum(here[v] * stride for v, stride in strides.items() if v not in free)
            at = self._origin(table, deal.gpu(here)) + entries * self.dtype.itemsize
            place = tuple(slice(None) if v in free else here[v] for v in cuts if v not in states)
            yield place, as_strided(lying_at(at, piece, self.dtype), shape, apart)

    def synchronize(self) -> None:
        """Wait until the devices are through with everything."""
        for one in self.each:
            with one.cupy.cuda.Device(one.number):
                one.cupy.cuda.runtime.deviceSynchronize()

    def first_step(self, number: int) -> int:
        """Return the place of the first step of a pass among those of all passes."""
        return self._first[number]

    def reports(self, devices: Iterable[DeviceSlots], first: int, steps: int) -> Array:
        """Return what devices have reported of some steps [devices, steps, first task or others, largest or least]."""
        whole = self._reported.reshape(len(self.each), -1)[:, 4 * first : 4 * (first + steps)]
        return whole[[self.each.index(one) for one in devices]].reshape(-1, steps, 2, 2)

    def reaches(self, array: Array) -> bool:
        """Tell whether kernels reach an array of the host."""
        begin = array.ctypes.data - self._host.ctypes.data
        return begin >= 0 and begin + array.nbytes <= self._host.nbytes

    def allocate(self, table: int, entries: int) -> Array:
        """Return the array of a table that does not stay on devices, in pinned memory, not cleared."""
        if table not in self._pinned:
            # No task comes near it.
            return np.empty(entries, self.dtype)
        start = self._pinned[table]
        return self._host[start : start + entries * self.dtype.itemsize].view(self.dtype)


def _reach_each_other(devices: Sequence[DeviceSlots]) -> bool:
    """Let all devices use the memory of all others; tells whether they can."""
    for one, other in itertools.permutations(devices, 2):
        runtime = one.cupy.cuda.runtime
        if not runtime.deviceCanAccessPeer(one.number, other.number):
            return False
        with one.cupy.cuda.Device(one.number), suppress(runtime.CUDARuntimeError):
            # An error where that has been done before.
            runtime.deviceEnablePeerAccess(other.number)
    return True
