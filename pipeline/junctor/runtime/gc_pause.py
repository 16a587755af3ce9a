"""A pause of Python's garbage collector during planning. Main function: `collector_paused`."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Context manager, or decorator: no search for cycles of objects."""
    # A plan and its program are hundreds of thousands of small objects that stay, without cycles; but after a number of
    # new ones the collector searches all of them, which can take a third of the time of planning.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
