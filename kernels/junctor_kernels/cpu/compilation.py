"""Compilation for this machine: told while it goes on, and timed, so that rates can leave it out.

Main object: `compilation`; `cpu.jit` reports to it, the display of progress asks it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import parent_process

# Of the environment: nothing is told where it has a text, unless that is one of those that stand for no.
QUIET = "JUNCTOR_QUIET"
NO = ("false", "no", "off", "0")
# Seconds that Python runs kernels itself before they are compiled: a tenth of what that takes.
PATIENCE = 3.0
MESSAGE = "compiling for this machine, once (`junctor warmup` does it beforehand)"


def is_quiet() -> bool:
    """Return True if the environment asks for silence."""
    return os.environ.get(QUIET, "").strip().lower() not in ("", *NO)


def _tell() -> None:
    """Say on stderr that code is compiled, which takes longer than anybody waits without a word."""
    # Of many workers each would say so.
    if is_quiet() or sys.stderr is None or parent_process() is not None:
        return
    with suppress(OSError, ValueError):
        print(f"junctor: {MESSAGE}; {QUIET}=true leaves this line out", file=sys.stderr, flush=True)


class Compilation:
    """Seconds in which this process compiled functions or waited for another one to do so.

    listener: called when the first of them begins, from any thread; a line on stderr unless something else is set.
    functions: how many this process compiled.
    patience: seconds that Python may still run kernels itself before they are compiled.
    """

    def __init__(self) -> None:
        self.patience = PATIENCE
        self.listener: Callable[[], None] | None = _tell
        self.functions = 0
        self._ended = 0.0
        self._under_way = 0
        self._started = 0.0
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """Seconds until now; what several threads compile at once counts once."""
        with self._lock:
            return self._ended + (time.monotonic() - self._started if self._under_way else 0.0)

    def begin(self) -> None:
        """Count from here; functions that are compiled for another one are within it."""
        with self._lock:
            if not self._under_way:
                self._started = time.monotonic()
            self._under_way += 1
            listener, self.listener = self.listener, None
        if listener is not None:
            listener()

    def end(self, compiled: bool = True) -> None:
        """Count what began last until here; `compiled`: by this process, not by another one that it waited for."""
        with self._lock:
            self.functions += compiled
            self._under_way -= 1
            if not self._under_way:
                self._ended += time.monotonic() - self._started


compilation = Compilation()
