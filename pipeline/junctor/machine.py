"""What this machine has."""

from __future__ import annotations

import os
from pathlib import Path

# Share of the memory that is free now which Junctor allows itself when nobody says how much.
DEFAULT_SHARE = 0.6


def available_memory() -> int:
    """Return the bytes that can be had without swapping: what is free, or less where a control group sets a limit."""
    import psutil

    free = int(psutil.virtual_memory().available)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
    except OSError:
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - int(used)))


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
