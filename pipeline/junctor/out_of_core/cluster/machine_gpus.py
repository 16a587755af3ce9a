"""The GPUs of a machine among its Dask workers: one process has the memory of a GPU at a time, whatever run it is for.

Every worker of Dask-CUDA sees all GPUs of its machine, its own first, so that one of them can use several for a row. It
locks a file for each; the locks go with the process. What other workers keep on these GPUs for their next task they
give back when they are asked, unless they are at it.
"""

from __future__ import annotations

import fcntl
import gc
import os
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np

from junctor.model.errors import DeviceError
from junctor.model.options import DeviceChoice
from junctor.runtime.dask_cluster import refuse_other_version, workers_of
from junctor.runtime.devices import (
    check_device,
    give_gpus_back,
    gpu_at_hand,
    gpus_reach_each_other,
    has_gpu,
    lack_of_memory,
    open_one,
    visible_gpus,
)
from junctor.runtime.files import io_errors_for

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import CudaBlockDevice

# Seconds to wait for memory that others have on a GPU: partitions of other rows, or processes that are no workers.
PATIENCE, LOOK_AGAIN = 30.0, 0.2
# The share of what is wanted that is enough: contexts of other processes take some of every GPU.
ENOUGH = 0.9


@dataclass(frozen=True, slots=True)
class WorkerGpus:
    """What a worker sees. gpus: names, its own first; name, figures: of its own, as of `CudaDevice`."""

    gpus: tuple[str, ...]
    name: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MachineGpus:
    """GPUs of one machine that reach each other's memory: their names, and the workers whose own they are."""

    gpus: tuple[str, ...]
    workers: tuple[str, ...]


def gpus_here(choice: DeviceChoice, needed: str) -> WorkerGpus | None:
    """Return the GPUs that this process, a worker, may use for a row; None without one.

    choice: DeviceError is raised for "gpu" without one.
    needed: version of Junctor.
    """
    refuse_other_version(needed)
    check_device(choice)
    if choice == "cpu" or not has_gpu():
        return None
    # Without a way from one to the other tables would go over the host: then each row has one GPU.
    gpus = visible_gpus() if gpus_reach_each_other() else visible_gpus()[:1]
    return WorkerGpus(gpus, *gpu_at_hand())


def machines_of(found: Mapping[str, WorkerGpus]) -> tuple[MachineGpus, ...]:
    """Return GPUs that can share a row, as many in every group; found: address of a worker -> what it sees.

    A worker that sees its own GPU alone is a group by itself. Of several workers of one GPU, one answers rows.
    """
    own: dict[str, str] = {}
    for address in sorted(found):
        own.setdefault(found[address].gpus[0], address)
    groups: list[list[str]] = []
    for gpu, address in own.items():
        for group in groups:
            if all(gpu in found[own[other]].gpus and other in found[address].gpus for other in group):
                group.append(gpu)
                break
        else:
            groups.append([gpu])
    # Plans are made for one number of GPUs: larger groups are as many of the smallest as there is room for.
    each = min(map(len, groups), default=1)
    parts = [group[n : n + each] for group in groups for n in range(0, len(group) - each + 1, each)]
    return tuple(MachineGpus(tuple(part), tuple(own[gpu] for gpu in part)) for part in parts)


@contextmanager
def turn_on(gpus: Collection[str]) -> Iterator[None]:
    """Context manager: no other process or thread has a turn on any of these GPUs of this machine."""
    with ExitStack() as stack:
        # In the same order for all, so that no two wait for each other.
        for name in sorted(gpus):
            path = Path(tempfile.gettempdir(), f"junctor-gpu-{os.getuid()}-{name}.lock")
            with io_errors_for(path):
                # Not a link that somebody else has put into a folder that all share.
                lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def open_gpus(gpus: Sequence[str], room: int | None) -> tuple[CudaBlockDevice, ...]:
    """Return GPUs that this process sees, with at most `room` bytes of each; raises DeviceError.

    Waits for what others keep there, and takes what there is after `PATIENCE` seconds.
    """
    give_gpus_back()
    until = time.monotonic() + PATIENCE
    while True:
        _ask_others(gpus)
        in_time = time.monotonic() < until
        try:
            devices = _with_memory(gpus, room)
        except DeviceError as error:
            # What it has no memory for may be over soon, nothing else.
            if not in_time or not isinstance(error.__cause__, MemoryError):
                raise
        else:
            if not in_time or room is None or all(device.room >= ENOUGH * room for device in devices):
                return devices
            # Before the next attempt: it needs the same memory.
            del devices
        gc.collect()
        time.sleep(LOOK_AGAIN)


def _with_memory(gpus: Sequence[str], room: int | None) -> tuple[CudaBlockDevice, ...]:
    """Return GPUs with at most `room` bytes of each, all of them taken, so that others see what is left."""
    devices = tuple(open_one(visible_gpus().index(name), room) for name in gpus)
    with lack_of_memory():
        for device in devices:
            device.place(0, (device.room,), np.uint8)
    return devices


def _ask_others(gpus: Sequence[str]) -> None:
    """Let other workers of this machine give back what they keep on GPUs."""
    from distributed import get_client, get_worker

    try:
        here = get_worker()
    except ValueError:
        # No worker, so there are no others.
        return
    client, machine = get_client(), urlsplit(here.address).hostname
    others = [
        address for address in workers_of(client) if address != here.address and urlsplit(address).hostname == machine
    ]
    if others:
        client.run(give_back, list(gpus), workers=others, on_error="ignore")


# Names of the GPUs where this process keeps memory of `open_gpus` for its next task.
held: set[str] = set()


def give_back(gpus: Collection[str]) -> None:
    """Release what this process keeps on some GPUs and does not use now."""
    # Rows in one piece have memory on its own GPU.
    if held.union(visible_gpus()[:1]).intersection(gpus):
        give_gpus_back()
