"""Resources of this machine, and this process's share of them: cores, memory, disk.

Main functions: `allowed_memory`, `usable_cores`, `allowed_disk`; called by the API, runs and engines.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Unpack

from junctor.model.arguments import whole
from junctor.model.errors import BudgetError, InputError
from junctor.model.option_table import RowResources
from junctor.model.options import ComputeOptions
from junctor.model.query import one_of
from junctor.model.strategies import Strategy, StrategyName
from junctor.planning.budget import parse_bytes, parse_time_limit
from junctor.runtime.remote import local_path

# Share of the free memory that Junctor uses by default: the rest is for the caller's tables and for other programs.
DEFAULT_SHARE = 0.6

# Share of the free space on a disk for tables by default.
DISK_SHARE = 0.5

# Limits of containers; version 2 of the kernel's interface.
_CONTROL_GROUP = "/sys/fs/cgroup"
# Caches of the first core, the nearest first, as Linux numbers them.
_CACHES, _MOST_CACHES = "/sys/devices/system/cpu/cpu0/cache", 8
# What Linux says of its memory.
_MEMORY = "/proc/meminfo"
# Bytes of such files that are read, more than any has.
_MOST_TEXT = 1 << 16


def available_memory() -> int:
    """Return the bytes available without swapping, within the limit of the control group."""
    free = _free_memory()
    limit = _control("memory.max")
    if limit in (None, "max"):
        return free
    # Cached files count as used there, though the kernel drops them on demand.
    cached = dict(line.split() for line in (_control("memory.stat") or "").splitlines()).get("inactive_file", "0")
    used = int(_control("memory.current") or "0") - int(cached)
    return max(0, min(free, int(limit or free) - used))


def _free_memory() -> int:
    # One line of it: to parse all takes as long as to answer rows of a small network, and every engine asks.
    _, found, rest = (_text(_MEMORY) or "").partition("MemAvailable:")
    if found:
        return int(rest.split(maxsplit=1)[0]) << 10
    import psutil

    return int(psutil.virtual_memory().available)


def peak_memory(process: int | None = None) -> int:
    """Return the most bytes of memory that a process has had, all that it is made of included.

    process: number of a child, None for this process; where the system does not tell, children that have ended count.
    """
    try:
        status = Path(f"/proc/{process or 'self'}/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_CHILDREN if process else resource.RUSAGE_SELF).ru_maxrss
        # KiB, but bytes on macOS.
        return peak << (0 if sys.platform == "darwin" else 10)


def compute_options(**options: Unpack[RowResources]) -> ComputeOptions:
    """Return the record of options; sizes in bytes, or as text such as "4GiB", times in seconds or as "90s".

    Raises BudgetError for texts that are no sizes or times, and for threads that are no number of at least one;
    InputError for what is no path.
    """
    threads, spill, strategy = options.get("threads"), options.get("spill"), options.get("strategy")
    if strategy is not None:
        one_of("strategy", strategy, StrategyName)
    threads = None if threads is None else whole("threads", threads, BudgetError)
    if threads is not None and threads < 1:
        raise BudgetError(f"found {threads} threads, expected at least one, or None for all usable cores")
    return ComputeOptions(
        memory=_size(options.get("memory")),
        threads=threads,
        device=options.get("device", "auto"),
        device_memory=_size(options.get("device_memory")),
        spill_dir=None if spill is None else local_path(spill, "spill"),
        spill_bytes=_size(options.get("disk")),
        time_limit=_seconds(options.get("time_limit")),
        strategy=None if strategy is None else Strategy(strategy),
    )


def _size(size: int | str | None) -> int | None:
    return None if size is None else parse_bytes(str(size))


def _seconds(limit: float | str | None) -> float | None:
    # A number is one of seconds.
    text = f"{limit}s" if isinstance(limit, int | float) and not isinstance(limit, bool) else limit
    return None if text is None else parse_time_limit(str(text))


def allowed_memory(options: ComputeOptions) -> int:
    """Return the bytes for propagation: those of the options, or about a share of the free ones."""
    return options.memory if options.memory is not None else _coarse(int(DEFAULT_SHARE * available_memory()))


def spill_folder(named: str | os.PathLike[str] | None) -> Path:
    """Return the folder for tables that exceed the memory: `named`, or the system's temporary one."""
    return Path(named if named is not None else tempfile.gettempdir())


def allowed_disk(folder: Path) -> int:
    """Return the default bytes of files in `folder`; raises OSError if it does not exist."""
    return _coarse(int(DISK_SHARE * shutil.disk_usage(folder).free))


def _coarse(size: int) -> int:
    """Return a size made less by at most a 32nd, so that plans for what is free now are those of the last run."""
    step = 1 << max(0, size.bit_length() - 6)
    return size // step * step


def own_measurements() -> Path:
    """Return the folder of the measurements of `junctor tune`, in the user's cache directory."""
    return user_folder() / "measured"


def user_folder() -> Path:
    """Return Junctor's folder in the user's cache directory."""
    return _folder(os.environ.get("XDG_CACHE_HOME") or "~/.cache", os.environ.get("HOME"))


# Kept, since every engine asks, and paths take longer than some answers.
@lru_cache(maxsize=8)
def _folder(caches: str, _home: str | None) -> Path:
    return expanded(caches) / "junctor"


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path, `~` expanded; raises InputError where the user has no home directory."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        # As in a container, of a user whom nobody knows.
        raise InputError(f"{path}: there is no home directory of this user: let HOME name a folder") from None


def measured_files() -> list[Path]:
    """Return the files of `junctor tune`, sorted; a folder that is missing, or may not be read, has none."""
    try:
        return sorted(own_measurements().glob("*.parquet"))
    except OSError:
        return []


def has_own_measurements() -> bool:
    """Return True if `junctor tune` has measured this machine."""
    return bool(measured_files())


def usable_cores() -> int:
    """Return the number of cores for this process: its affinity, within the quota of the control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = (_control("cpu.max") or "max").partition(" ")
    return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))


def last_cache_bytes() -> int | None:
    """Return the bytes of the last cache of a core, None where the system does not tell."""
    sizes = [_text(f"{_CACHES}/index{number}/size") for number in range(_MOST_CACHES)]
    known = [size.strip() for size in sizes if size]
    return int(known[-1].removesuffix("K")) << 10 if known and known[-1].endswith("K") else None


def _control(name: str) -> str | None:
    text = _text(f"{_CONTROL_GROUP}/{name}")
    return None if text is None else text.strip()


def _text(path: str) -> str | None:
    """Return what the system says in a file, None where there is none."""
    # By its descriptor: paths and layers of files take ten times as long as the system.
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            return os.read(file, _MOST_TEXT).decode()
        finally:
            os.close(file)
    except OSError:
        return None
