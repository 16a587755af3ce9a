"""A pool of buffers that are reused once no array refers to them. Main class: BufferPool."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

# Fresh pages cost more than the numbers written to them: the system clears each page at its first use.
Allocate = Callable[[int], npt.NDArray[np.uint8]]


def fresh(size: int) -> npt.NDArray[np.uint8]:
    """Return bytes, not cleared."""
    return np.empty(size, dtype=np.uint8)


class BufferPool:
    """Lends buffers of one size; a buffer returns when the last array on it is gone."""

    def __init__(self) -> None:
        self._kind: tuple[int, Allocate] | None = None
        self._idle: deque[memoryview] = deque()

    def lend(self, size: int, allocate: Allocate, spare: int, ahead: int = 0) -> npt.NDArray[Any]:
        """Return `size` bytes, not cleared; at most `spare` bytes stay idle beside them.

        allocate: makes a buffer. Buffers of another size or another `allocate` are released.
        ahead: buffers for later calls that another thread makes from the first call on.
        """
        if not size:
            return fresh(0)
        is_first = self._kind is None
        if self._kind != (size, allocate):
            # Buffers still lent return to the old deque, and are freed with it.
            self._kind, self._idle = (size, allocate), deque()
        memory = self._idle.pop() if self._idle else memoryview(allocate(size))  # type: ignore[arg-type]
        if is_first and (ahead := min(ahead, spare // size)) > 0:
            threading.Thread(target=_fill, args=(self._idle, ahead, size, allocate), name="junctor-memory").start()
        while len(self._idle) * size > spare:
            self._idle.popleft()
        # An array on a memoryview, because arrays on arrays refer to the innermost one: this one lives as long as any.
        lent = np.frombuffer(memory, dtype=np.uint8)
        weakref.finalize(lent, self._idle.append, memory).atexit = False
        return lent


def _fill(idle: deque[memoryview], count: int, size: int, allocate: Allocate) -> None:
    # Whoever needs a buffer that was not to be had is told then.
    with suppress(MemoryError):
        for _ in range(count):
            idle.append(memoryview(allocate(size)))  # type: ignore[arg-type]
