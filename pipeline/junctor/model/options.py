"""What a computation may use: the same record from the command line, flows, Python and settings down to the engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

DeviceChoice = Literal["cpu", "gpu", "auto"]
DEVICE_CHOICES: tuple[DeviceChoice, ...] = get_args(DeviceChoice)


@dataclass(frozen=True, slots=True)
class ComputeOptions:
    """Memory, threads, devices and disk of one process (or of all workers together, where a run divides them).

    memory: bytes that propagation may take; None for a share of what is free.
    threads: that rows are answered on, None for all usable cores; answers do not depend on it.
    device: "auto" is a GPU where there is one and the work is worth it.
    device_memory: bytes that blocks and chunks may take of each GPU, None for a share of what is free there; on a CPU
        bytes that the tables of a block or task may take, None for no limit beside `memory`.
    spill_dir: folder for tables that exceed the memory; None for the system's temporary folder.
    spill_bytes: of files there; None for half of what is free.
    all_gpus: whether rows in chunks take all GPUs that the process sees, not only the first.
    """

    memory: int | None = None
    threads: int | None = None
    device: DeviceChoice = "auto"
    device_memory: int | None = None
    spill_dir: Path | None = None
    spill_bytes: int | None = None
    all_gpus: bool = False


# What an engine of its own gets without options: answers need no more, and a caller's other threads stay free.
ONE_THREAD = ComputeOptions(threads=1, device="cpu")
