"""Captures of CUDA graphs, and waits for a device: where one thread does both at once, or two do, the capture is lost.

Main class: Captures, of a device. CUDA refuses to wait for a device on which something is captured, and gives up the
capture as well, even where it is another thread that waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock


class Captures:
    """Keeps captures and waits of a device apart."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._later: deque[Callable[[], None]] = deque()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Context manager: nobody else captures, or waits for the device."""
        try:
            with self._lock:
                yield
        finally:
            self._catch_up()

    def later(self, wait: Callable[[], None]) -> None:
        """Do what waits for the device: now, or at the end of what goes on there.

        For finalizers: a collection may come at any time, also while this thread captures.
        """
        self._later.append(wait)
        self._catch_up()

    def _catch_up(self) -> None:
        # Whoever has the lock does this behind it, so what is added now is left to nobody else.
        while self._later and self._lock.acquire(blocking=False):
            try:
                while self._later:
                    self._later.popleft()()
            finally:
                self._lock.release()


@cache
def captures_of(number: int) -> Captures:
    """Return those of a device of this process: captures belong to it, not to an object that stands for it."""
    return Captures()
