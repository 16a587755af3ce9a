"""Memory that is lent, and used again once nobody reads it any more: fresh pages cost more than the numbers in them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Allocate = Callable[[int], npt.NDArray[np.uint8]]


def fresh(size: int) -> npt.NDArray[np.uint8]:
    """Return bytes, not cleared."""
    return np.empty(size, dtype=np.uint8)


class BufferPool:
    """Lends pieces of memory of one size at a time; a piece comes back when the last array on it is gone."""

    def __init__(self) -> None:
        self._kind: tuple[int, Allocate] | None = None
        self._idle: deque[memoryview] = deque()

    def lend(self, size: int, allocate: Allocate, spare: int) -> npt.NDArray[Any]:
        """Return `size` bytes, not cleared; at most `spare` bytes stay idle beside them.

        allocate: makes a piece. Pieces of another size, or made otherwise, are given up.
        """
        if not size:
            return fresh(0)
        if self._kind != (size, allocate):
            # Those that are still lent go back to the old one, and vanish with it.
            self._kind, self._idle = (size, allocate), deque()
        memory = self._idle.pop() if self._idle else memoryview(allocate(size))  # type: ignore[arg-type]
        while len(self._idle) * size > spare:
            self._idle.popleft()
        # An array on a memoryview, because arrays on arrays refer to the innermost one: this one lives as long as any.
        lent = np.frombuffer(memory, dtype=np.uint8)
        weakref.finalize(lent, self._idle.append, memory).atexit = False
        return lent
