"""Pinned memory of the host, for tasks of a cut plan on GPUs: large pieces, and a ring for what is copied once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate, islice
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu.device import register_host
from junctor_kernels.gpu.entries import EntryLaunch

from junctor.planning.first_fit import aligned
from junctor.runtime.buffer_pool import mapped
from junctor.runtime.machine import usable_cores

Array = npt.NDArray[Any]


class Staging:
    """Pinned memory for what is copied once: a ring buffer, whose parts are released pass by pass."""

    def __init__(self, memory: Array) -> None:
        self._memory = memory
        self.clear()

    def clear(self) -> None:
        """Release everything."""
        # Both only grow: positions in an endless memory, of which the ring is the last stretch.
        self._taken = 0
        self._free = 0
        self._parts: deque[tuple[int, int]] = deque()
        self._released: set[int] = set()

    @property
    def oldest(self) -> int | None:
        """The pass whose part is released next."""
        return self._parts[0][0] if self._parts else None

    def take(self, size: int, number: int) -> Array | None:
        """Return bytes for a pass; None where there is no room before others are released, or at all.

        size: how many bytes.
        number: of the pass.
        """
        length = len(self._memory)
        start = self._taken % length
        # No part goes around the end.
        begin = self._taken if start + size <= length else self._taken + length - start
        end = begin + aligned(size)
        # A part of more than half would wait until the ring is empty.
        if size > length // 2 or end - self._free > length:
            return None
        self._taken = end
        self._parts.append((number, end))
        return self._memory[begin % length : begin % length + size]

    def release(self, number: int) -> None:
        """Release the parts of a pass."""
        self._released.add(number)
        # Parts come free in the order in which they were taken.
        while self._parts and self._parts[0][0] in self._released:
            self._free = self._parts.popleft()[1]


def packed(
    launches: Sequence[EntryLaunch], more: Sequence[Array], take: Callable[[int], Array]
) -> tuple[Array, list[int]]:
    """Return the offsets of some launches in one piece [bytes], and where each array begins in it.

    There are thousands of them: one copy for each would take long.
    launches: their operands have four arrays of offsets each.
    more: arrays that go behind them.
    take: returns memory of so many bytes.
    """
    parts = [part for launch in launches for o in launch.offsets for part in (o.panels, o.places, o.far, o.near)]
    parts += more
    starts = list(accumulate((aligned(part.nbytes) for part in parts), initial=0))
    piece = take(starts.pop())
    for start, part in zip(starts, parts, strict=True):
        piece[start : start + part.nbytes] = part.view(np.uint8)
    return piece, starts


def addresses_of(
    launches: Sequence[EntryLaunch], memory: int, starts: Sequence[int]
) -> tuple[list[list[tuple[int, ...]]], int]:
    """Return the addresses of the offsets of every operand of some launches, and of an array behind them (0: none).

    launches, starts: those of `packed`.
    memory: address of its piece on the device.
    """
    addresses = iter([memory + start for start in starts])
    offsets = [[tuple(islice(addresses, 4)) for _ in launch.offsets] for launch in launches]
    return offsets, next(addresses, 0)


def pinned(size: int) -> Array:
    """Return bytes of the host that devices reach by themselves, not cleared; raises MemoryError."""
    # Not in a child: pages that both have would be copied on the next write, and devices go on with the old ones.
    array = mapped(size, usable_cores(), in_children=False)
    if size:
        register_host(array)
    return array
