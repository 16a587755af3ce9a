"""Python's garbage collector, out of the way while plans are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the search for cycles of objects; a decorator as well.

    A plan and its program are hundreds of thousands of small objects that stay, and no cycles; but every so many new
    ones the collector looks through all that there are, which can take a third of the time of planning.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
