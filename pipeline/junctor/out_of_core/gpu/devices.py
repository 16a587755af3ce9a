"""The GPUs of one process for a cut plan: which of them does what, and where stored tables lie.

A table that a device makes stays there where there is room beside its slots (`slots.py`): of a table each device has
the part that its tasks make. Others copy from there, since all devices reach each other's memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu.entries import VECTOR, PartRuns
from junctor_kernels.tables.reference import Algebra
from numpy.lib.stride_tricks import as_strided

from junctor.cost.figures import shipped_figures
from junctor.out_of_core.gpu.copies import device_view
from junctor.out_of_core.gpu.slots import SLOTS, DeviceSlots, Slot
from junctor.out_of_core.gpu.staging import Staging, pinned
from junctor.out_of_core.memory_splits import STAGING_BYTES
from junctor.out_of_core.store import ChunkStore
from junctor.placement import placement
from junctor.placement.residency import placed
from junctor.placement.sharding import Sharding, agreement
from junctor.planning.chunks import ChunkPlan, configurations
from junctor.planning.first_fit import aligned

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import CudaBlockDevice

Array = npt.NDArray[Any]

# Bytes of the host up to which kernels write or copy them: a copy engine would do it behind copies of large tables.
CARRIED_BYTES = 1 << 17


class TableView(NamedTuple):
    """A table that tasks read or write where it lies.

    address: of the part for the first configuration.
    moves: chunk variable of the pass, and the bytes by which one of its states moves the address.
    runs: the pieces of the part.
    """

    address: int
    moves: tuple[tuple[int, int], ...]
    runs: PartRuns


class DeviceGroup:
    """GPUs of one process for the tasks of a cut plan.

    Slots and resident tables lie in the room that all work on a device shares; other tables in pinned memory that all
    devices reach.
    chunks: the plan.
    algebra: of its tables.
    slots: of each device, at most.
    most: bytes of pinned memory that stored tables may take.
    shardings: which device does which tasks.
    barriers: table -> the last pass that needs what lies where the table goes.
    first_steps: number of the first step of every pass among those of all passes, and of all steps.
    Raises MemoryError where not even one slot fits, or where stored tables do not.
    """

    def __init__(
        self,
        chunks: ChunkPlan,
        algebra: Algebra,
        *devices: CudaBlockDevice,
        slots: int = SLOTS,
        most: float = math.inf,
    ) -> None:
        self.chunks = chunks
        self._sizes = chunks.plan.shape.cardinalities
        self.algebra, self.dtype = algebra, algebra.dtype
        itemsize = self.dtype.itemsize
        slot = placement.slot_bytes(chunks, itemsize)
        self.devices = [DeviceSlots(algebra, device, slot, slots) for device in devices]
        self.slots: list[Slot] = []
        for device in self.devices:
            self.slots += device.new_slots(len(self.slots))
        apart = not all(one.enable_peer(other) for one, other in itertools.permutations(devices, 2))
        room, rates = min(device.room for device in self.devices), shipped_figures().gpu_rates
        places = placed(chunks, itemsize, room, len(devices), bus=rates.bus, device=rates.copy, apart=apart)
        self.leaves, self.shardings, self.resident = places.leaves, places.shardings, places.resident
        # Planned like the memory of devices: pinning anew for each table takes longer than many passes.
        self._pinned, size = places.pinned, places.pinned_bytes
        if size > most:
            raise MemoryError(f"stored tables take {size:,} bytes of the host, {most:,} are allowed")
        self._leaves = pinned(places.leaf_bytes).view(self.dtype)
        for device in self.devices:
            # Every device has all leaves: they are small, and all tasks read them.
            device.reserve_leaves(places.leaf_bytes)
        self.barriers = placement.reuse_barriers(chunks, itemsize, self.resident, self._pinned)
        self.first_steps = list(accumulate((len(pass_.steps) for pass_ in chunks.passes), initial=0))
        # Behind the tables: what devices report of the steps, four words each.
        self._report = aligned(4 * self.first_steps[-1] * itemsize)
        staging = size + self._report * len(self.devices)
        self._host = pinned(staging + STAGING_BYTES)
        self._reported = self._host[size:staging].view(f"u{itemsize}")
        self.staging = Staging(self._host[staging:])
        for n, device in enumerate(self.devices):
            device.allot_words(self.first_steps[-1], self._reported.ctypes.data + n * self._report)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Context manager: exclusive use of the devices' shared room."""
        with ExitStack() as stack:
            for device in self.devices:
                # In the order of the devices, the same for all, so that no two wait for each other.
                stack.enter_context(device.cuda.queue)
                device.cuda.synchronize_all()
            yield

    def bring_leaves(self, store: ChunkStore) -> None:
        """Enqueue the copies of factors and evidence to all devices, as far as they have room for them."""
        for table, (start, apart) in self.leaves.items():
            # Apart by whole vectors, since kernels load vectors wherever a piece begins.
            pieces = store.tables[table].entries.reshape(-1, self.chunks.piece(table))
            begin = start // self.dtype.itemsize
            self._leaves[begin : begin + len(pieces) * apart].reshape(-1, apart)[:, : pieces.shape[1]] = pieces
        for device in self.devices if self.leaves else []:
            device.bring_leaves(self._leaves)

    def is_resident(self, table: int, number: int) -> bool:
        """Return True if tasks of a pass find a table on devices, make it there, or bring it for others."""
        return table in self.resident and number >= self.resident[table].since

    def crosses_bus(self, table: int, number: int) -> bool:
        """Return True if a pass moves a table between host and devices."""
        return placement.crosses_bus(self.resident, table, number)

    def brings(self, table: int, number: int) -> bool:
        """Return True if a pass that reads a table puts it on devices, for itself and for others."""
        return self.is_resident(table, number) and self.crosses_bus(table, number)

    def on_host(self, table: int) -> TableView | None:
        """Return where kernels make a whole table in pinned memory; None for one that they had better copy there."""
        entries = self.chunks.plan.tables[table].entries
        if table not in self._pinned or entries * self.dtype.itemsize > CARRIED_BYTES:
            return None
        return TableView(self._host.ctypes.data + self._pinned[table], (), PartRuns(entries, (0,)))

    def in_place(self, device: DeviceSlots, table: int, number: int) -> TableView | None:
        """Return where tasks of a pass on a device find all that they need of a table there; None if they do not.

        device: that does the tasks.
        table: that they read or make.
        number: of the pass.
        """
        fixed, sharding = self.chunks.passes[number].fixed, Sharding()
        if table in self.leaves:
            start, apart = self.leaves[table]
            start += device.leaves
        elif self.is_resident(table, number) and self.chunks.piece(table) % VECTOR == 0:
            apart, sharding = self.chunks.piece(table), self.resident[table].sharding
            # A part that is spread over devices has no single address.
            if not set(sharding.by) <= set(fixed) or agreement(sharding, self.shardings.passes[number]) < 1:
                return None
            start = self._origin(table, self.devices.index(device))
        else:
            return None
        strides = self._strides(table, apart, sharding)
        free = np.zeros(1, np.int64)
        for v in self.chunks.cuts.get(table, ()):
            if v not in fixed:
                free = np.add.outer(free, np.arange(self._sizes[v]) * strides[v]).reshape(-1)
        moves = tuple((v, stride * self.dtype.itemsize) for v, stride in strides.items() if v in fixed)
        return TableView(start, moves, PartRuns(self.chunks.piece(table), tuple(free.tolist())))

    def _strides(self, table: int, apart: int, sharding: Sharding) -> dict[int, int]:
        """Return the entries from one state to the next of every chunk variable of a table, slowest last.

        apart: entries from one piece to the next.
        sharding: its variables are the slowest, so that the share of a device is contiguous.
        """
        cuts, strides = self.chunks.cuts.get(table, ()), dict[int, int]()
        # From the fastest to the slowest, so that strides are products of what comes before.
        for v in reversed((*sharding.by, *(v for v in cuts if v not in sharding.by))):
            strides[v] = apart
            apart *= self._sizes[v]
        return strides

    def _origin(self, table: int, gpu: int) -> int:
        """Return the address on a GPU of the first configuration of a resident table, if the GPU had that too."""
        residency = self.resident[table]
        block = self.chunks.plan.tables[table].entries // residency.sharding.count
        # A device has its share alone; the address counts as if the shares before it were there, too.
        before = residency.sharding.begin(gpu) * block * self.dtype.itemsize
        return self.devices[gpu].tables + residency.offset - before

    def pieces(self, table: int, states: Mapping[int, int]) -> Iterator[tuple[tuple[int | slice, ...], Array]]:
        """Yield the slice of a resident table that agrees with `states`, device by device.

        Each with its index in the part [free chunk variables..., entries of a piece], and as a view good for copies.
        """
        sharding, piece, cuts = self.resident[table].sharding, self.chunks.piece(table), self.chunks.cuts.get(table, ())
        strides = self._strides(table, piece, sharding)
        free = [v for v in cuts if v not in states and v not in sharding.by]
        shape = (*(self._sizes[v] for v in free), piece)
        apart = tuple(self.dtype.itemsize * stride for stride in (*(strides[v] for v in free), 1))
        open_ = [v for v in sharding.by if v not in states]
        for values in configurations([self._sizes[v] for v in open_]):
            # Configurations of the sharding may lie on different devices, so each has a view of its own.
            here = dict(states) | dict(zip(open_, values, strict=True))
            entries = sum(here[v] * stride for v, stride in strides.items() if v not in free)
            address = self._origin(table, sharding.gpu(here)) + entries * self.dtype.itemsize
            index = tuple(slice(None) if v in free else here[v] for v in cuts if v not in states)
            yield index, as_strided(device_view(address, piece, self.dtype), shape, apart)

    def synchronize(self) -> None:
        """Wait until the devices are through with everything."""
        for device in self.devices:
            device.cuda.synchronize_all()

    def reports(self, devices: Iterable[DeviceSlots], first: int, steps: int) -> Array:
        """Return what devices have reported of some steps [devices, steps, pilot task or others, largest or least]."""
        words = self._reported.reshape(len(self.devices), -1)[:, 4 * first : 4 * (first + steps)]
        return words[[self.devices.index(device) for device in devices]].reshape(-1, steps, 2, 2)

    def reaches(self, array: Array) -> bool:
        """Return True if kernels reach an array of the host."""
        # Inside the one pinned array of all tables and staging.
        begin = array.ctypes.data - self._host.ctypes.data
        return begin >= 0 and begin + array.nbytes <= self._host.nbytes

    def allocate(self, table: int, entries: int) -> Array:
        """Return the array of a table on the host, in pinned memory, not cleared."""
        if table not in self._pinned:
            # No task comes near it.
            return np.empty(entries, self.dtype)
        start = self._pinned[table]
        return self._host[start : start + entries * self.dtype.itemsize].view(self.dtype)
