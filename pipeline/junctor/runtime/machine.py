"""What this machine has, and how much of it this process may use."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from junctor.model.options import ComputeOptions, DeviceChoice
from junctor.planning.budget import parse_bytes

# Share of the memory that is free now which Junctor allows itself when nobody says how much.
DEFAULT_SHARE = 0.6

# Share of what is free on a disk that tables may take there when nobody says how much.
DISK_SHARE = 0.5

_CONTROL_GROUP = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Return the bytes that can be had without swapping: what is free, or less where a control group sets a limit."""
    import psutil

    free = int(psutil.virtual_memory().available)
    limit = _control("memory.max")
    if limit in (None, "max"):
        return free
    # Cached files count as used there, though they give way.
    cached = dict(line.split() for line in (_control("memory.stat") or "").splitlines()).get("inactive_file", "0")
    used = int(_control("memory.current") or "0") - int(cached)
    return max(0, min(free, int(limit or free) - used))


def compute_options(
    memory: int | str | None = None,
    threads: int | None = None,
    device: DeviceChoice = "auto",
    device_memory: int | str | None = None,
    spill: str | os.PathLike[str] | None = None,
    disk: int | str | None = None,
) -> ComputeOptions:
    """Return the record of options given in Python; sizes in bytes, or as text such as "4GiB".

    spill: `spill_dir` of the record.
    disk: `spill_bytes` of the record.
    Others under their names there. Raises BudgetError for texts that are no sizes.
    """
    return ComputeOptions(
        memory=_size(memory),
        threads=threads,
        device=device,
        device_memory=_size(device_memory),
        spill_dir=None if spill is None else Path(spill),
        spill_bytes=_size(disk),
    )


def _size(size: int | str | None) -> int | None:
    return None if size is None else parse_bytes(str(size))


def allowed_memory(options: ComputeOptions) -> int:
    """Return the bytes that propagation may take: those given, or a share of what is free now."""
    return options.memory if options.memory is not None else int(DEFAULT_SHARE * available_memory())


def spill_folder(named: str | os.PathLike[str] | None) -> Path:
    """Return the folder for tables that exceed the memory: the one that is named, or the system's temporary one."""
    return Path(named if named is not None else tempfile.gettempdir())


def allowed_disk(folder: Path) -> int:
    """Return the bytes of `folder` to use when nobody says how much; raises OSError where it is not there."""
    return int(DISK_SHARE * shutil.disk_usage(folder).free)


def own_measurements() -> Path:
    """Return the folder of what `junctor tune` measured, in the user's cache directory."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "junctor" / "measured"


def has_own_measurements() -> bool:
    """Tell whether there are any."""
    return any(own_measurements().glob("*.parquet"))


def usable_cores() -> int:
    """Return the number of cores that this process may use: its affinity, or less where a quota is set."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = (_control("cpu.max") or "max").partition(" ")
    return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))


def _control(name: str) -> str | None:
    try:
        return (_CONTROL_GROUP / name).read_text().strip()
    except OSError:
        return None
