"""Pinned memory of the host, for tasks of a cut plan on GPUs: whole pieces, and a ring for what is copied once."""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate, islice, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu.entries import EntryLaunch

from junctor.planning.first_fit import aligned
from junctor.runtime.machine import usable_cores
from junctor.runtime.threads import in_threads

Array = npt.NDArray[Any]

# For all devices (cudaHostRegisterPortable).
PORTABLE = 1
# Bytes that a thread touches at a time.
TOUCHED_BYTES = 1 << 28


class Staging:
    """Pinned memory for what is copied once: a ring, whose parts are given back pass by pass."""

    def __init__(self, memory: Array) -> None:
        self._memory = memory
        self.clear()

    def clear(self) -> None:
        """Take everything back."""
        self._taken, self._free = 0, 0
        self._parts: deque[tuple[int, int]] = deque()

    @property
    def oldest(self) -> int | None:
        """The pass that has taken what comes back next."""
        return self._parts[0][0] if self._parts else None

    def take(self, size: int, number: int) -> Array | None:
        """Return so many bytes for a pass; None where there is no room before others are given back, or at all."""
        whole = len(self._memory)
        start = self._taken % whole
        # Nothing goes around the end.
        begin = self._taken if start + size <= whole else self._taken + whole - start
        end = begin + aligned(size)
        if size > whole // 2 or end - self._free > whole:
            return None
        self._taken = end
        self._parts.append((number, end))
        return self._memory[begin % whole : begin % whole + size]

    def release(self, number: int) -> None:
        """Give back what passes up to a number have taken."""
        while self._parts and self._parts[0][0] <= number:
            self._free = self._parts.popleft()[1]


def packed(
    launches: Sequence[EntryLaunch], more: Sequence[Array], take: Callable[[int], Array]
) -> tuple[Array, list[int]]:
    """Return all offsets of some launches, and more arrays, in one piece, and where each array begins in it.

    There are thousands of them: one copy for each would take long. take: for the memory.
    """
    parts = [part for launch in launches for o in launch.offsets for part in (o.panels, o.places, o.far, o.near)]
    parts += more
    starts = list(accumulate((aligned(part.nbytes) for part in parts), initial=0))
    whole = take(starts.pop())
    for start, part in zip(starts, parts, strict=True):
        whole[start : start + part.nbytes] = part.view(np.uint8)
    return whole, starts


def addresses_of(
    launches: Sequence[EntryLaunch], memory: int, starts: Sequence[int], more: int = 0
) -> tuple[list[list[tuple[int, ...]]], list[int]]:
    """Return where on a device the offsets of every operand of some launches lie, and so many more arrays (0: none)."""
    at = iter([memory + start for start in starts])
    places = [[tuple(islice(at, 4)) for _ in launch.offsets] for launch in launches]
    return places, [next(at, 0) for _ in repeat(None, more)]


def pinned(size: int) -> Array:
    """Return bytes of the host that the device reaches by itself, not cleared.

    Pages are touched by several threads before they are pinned, huge ones where the system has them: that takes a
    fraction of the time that pinning untouched memory does.
    """
    if not size:
        return np.empty(0, np.uint8)
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.uint8)
    parts = [array[start : start + TOUCHED_BYTES] for start in range(0, size, TOUCHED_BYTES)]
    in_threads(lambda part, _: part.fill(0), parts, usable_cores())
    register(array)
    return array


def register(array: Array) -> None:
    """Pin the memory of an array for as long as it is there; raises MemoryError where that cannot be."""
    import cupy

    runtime, at = cupy.cuda.runtime, array.ctypes.data
    try:
        runtime.hostRegister(at, array.nbytes, PORTABLE)
    except runtime.CUDARuntimeError as error:
        raise MemoryError(f"{array.nbytes:,} bytes of pinned memory: {error}") from error
    weakref.finalize(array, runtime.hostUnregister, at)
