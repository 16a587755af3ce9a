"""Memory for answers: buffers that are reused once no array refers to them. Main class: BufferPool."""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.runtime.threads import in_threads, stretches

# Fresh pages cost more than the numbers written to them: the system clears each page at its first use.
Allocate = Callable[[int], npt.NDArray[np.uint8]]


PAGE_BYTES = 4096
# Buffers of so many bytes are made anew each time, unless they are pinned.
SMALL_BYTES = 1 << 11
# Bytes of new pages that are worth a thread.
THREAD_BYTES = 1 << 21
# Of Linux since 4.14; Python has no name for it.
MADV_WIPEONFORK = 18


def fresh(size: int) -> npt.NDArray[np.uint8]:
    """Return bytes, not cleared."""
    return np.empty(size, dtype=np.uint8)


def map_pages(memory: npt.NDArray[np.uint8], threads: int) -> None:
    """Write to each page of some memory, in as many threads as are worth it: the system clears new pages meanwhile."""

    def write(part: slice, _: int) -> None:
        memory[part][::PAGE_BYTES] = 0

    in_threads(write, stretches(memory.size, min(threads, memory.size // THREAD_BYTES)), threads)


def mapped(size: int, threads: int, in_children: bool = True) -> npt.NDArray[np.uint8]:
    """Return bytes in pages of their own, mapped by several threads, huge ones where the system has them.

    Pinning them takes a fraction of the time that pages take which nobody has written to.

    threads: how many may map them.
    in_children: False where a process that is forked finds them empty.
    Raises MemoryError.
    """
    if not size:
        return fresh(0)
    try:
        # Of this process alone: systems give huge pages to such memory, seldom to what can be shared.
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size:,} bytes: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Hints: a system may know neither.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        if not in_children:
            with suppress(OSError):
                memory.madvise(MADV_WIPEONFORK)
    array = np.frombuffer(memory, np.uint8)
    map_pages(array, threads)
    return array


class BufferPool:
    """Lends buffers of one size, or most of one; a buffer returns when the last array on it is gone."""

    def __init__(self) -> None:
        self._size = 0
        self._allocate: Allocate | None = None
        self._idle: deque[memoryview] = deque()

    def release(self) -> None:
        """Let go of what is idle; what is lent returns to nobody."""
        if self._size:
            self._size, self._idle = 0, deque()

    def lend(self, size: int, allocate: Allocate, spare: int) -> npt.NDArray[Any]:
        """Return `size` bytes, not cleared; at most `spare` bytes stay idle beside them.

        allocate: makes a buffer. Buffers that are too small or of another `allocate` are released, and those of more
            than twice the size.
        """
        if not size or (size <= SMALL_BYTES and allocate is fresh):
            # Made sooner than found.
            return fresh(size)
        # The last batch of a run is shorter than the others.
        if self._allocate != allocate or not size <= self._size <= 2 * size:
            # Buffers still lent return to the old deque, and are freed with it.
            self._size, self._allocate, self._idle = size, allocate, deque()
        memory = self._idle.pop() if self._idle else memoryview(allocate(self._size))  # type: ignore[arg-type]
        while len(self._idle) * self._size > spare:
            self._idle.popleft()
        # An array on a memoryview, because arrays on arrays refer to the innermost one: this one lives as long as any.
        lent = np.frombuffer(memory, dtype=np.uint8, count=size)
        weakref.finalize(lent, self._idle.append, memory).atexit = False
        return lent
