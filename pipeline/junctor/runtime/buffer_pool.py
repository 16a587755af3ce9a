"""A pool of buffers that are reused once no array refers to them. Main class: BufferPool."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

# Fresh pages cost more than the numbers written to them: the system clears each page at its first use.
Allocate = Callable[[int], npt.NDArray[np.uint8]]


def fresh(size: int) -> npt.NDArray[np.uint8]:
    """Return bytes, not cleared."""
    return np.empty(size, dtype=np.uint8)


class BufferPool:
    """Lends buffers of one size, or most of one; a buffer returns when the last array on it is gone."""

    def __init__(self) -> None:
        self._size = 0
        self._allocate: Allocate | None = None
        self._idle: deque[memoryview] = deque()
        # A buffer that another thread makes.
        self._thread: ThreadPoolExecutor | None = None
        self._coming: Future[npt.NDArray[np.uint8]] | None = None

    def lend(self, size: int, allocate: Allocate, spare: int, ahead: bool = False) -> npt.NDArray[Any]:
        """Return `size` bytes, not cleared; at most `spare` bytes stay idle beside them.

        allocate: makes a buffer. Buffers that are too small or of another `allocate` are released, and those of more
            than twice the size.
        ahead: whether another thread makes the next buffer once no idle one was left.
        """
        if not size:
            return fresh(0)
        # The last batch of a run is shorter than the others.
        if self._allocate != allocate or not size <= self._size <= 2 * size:
            # Buffers still lent return to the old deque, and are freed with it.
            self._size, self._allocate, self._idle, self._coming = size, allocate, deque(), None
        memory = self._idle.pop() if self._idle else self._made(allocate, ahead and self._size <= spare)
        while len(self._idle) * self._size > spare:
            self._idle.popleft()
        # An array on a memoryview, because arrays on arrays refer to the innermost one: this one lives as long as any.
        lent = np.frombuffer(memory, dtype=np.uint8, count=size)
        weakref.finalize(lent, self._idle.append, memory).atexit = False
        return lent

    def _made(self, allocate: Allocate, ahead: bool) -> memoryview:
        """Return a buffer that nobody had before."""
        coming, self._coming = self._coming, None
        # One that could not be made is not missed: whoever needs it is told here.
        made = coming.result() if coming is not None and coming.exception() is None else allocate(self._size)
        if ahead:
            self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="junctor-buffer")
            self._coming = self._thread.submit(allocate, self._size)
        return memoryview(made)  # type: ignore[arg-type]
