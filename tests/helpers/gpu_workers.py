"""GPUs that stand in for those of Dask workers in processes of their own: each sees them all, its own first."""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from distributed import WorkerPlugin
from junctor.model.errors import DeviceError
from junctor.out_of_core.cluster import machine_gpus, rows
from junctor.out_of_core.gpu.run import ChunkedGpuProgram
from junctor.runtime import devices
from junctor_kernels.gpu.blocks import DEVICE_SHARE

ROOM = 1 << 27
# So much that rows may take as much as a device that stands in has.
MEMORY = ROOM / DEVICE_SHARE


class StandInGpus(WorkerPlugin):
    """GPUs of a machine, of which one process has the memory at a time; also of workers that replace dead ones.

    folder: for what the processes tell each other. A worker that answers a row there dies of it if the folder has a
        file `kill`, which is gone then; the GPUs of all rows are in the file `rows`.
    gpus: how many there are. The workers have numbers for names.
    alone: whether each sees its own GPU only.
    """

    name = "stand-in-gpus"

    def __init__(self, folder: Path, gpus: int, alone: bool = False) -> None:
        self.folder, self.gpus, self.alone = folder, gpus, alone

    def setup(self, worker: Any) -> None:
        """Put the GPUs into a worker."""
        from emulation import cupy_memory as emulated_cupy

        folder = self.folder
        # Locks of GPUs of other tests are none of ours.
        tempfile.tempdir = str(folder)
        emulated_cupy.stand_in(pytest.MonkeyPatch())
        own = int(worker.name)
        seen = [n % self.gpus for n in range(own, own + (1 if self.alone else self.gpus))]

        class Device(emulated_cupy.Device):
            def __init__(self, number: int) -> None:
                self.lock = os.open(folder / f"memory-{number}", os.O_CREAT | os.O_RDWR)
                try:
                    fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    os.close(self.lock)
                    raise DeviceError("the memory belongs to another process") from MemoryError()
                super().__init__(ROOM, number)

            def __del__(self) -> None:
                if hasattr(self, "room"):
                    os.close(self.lock)

        changes = {
            "visible_gpus": lambda: tuple(f"gpu-{n}" for n in seen),
            "gpus_reach_each_other": lambda: True,
            "has_gpu": lambda: True,
            "check_device": lambda choice: None,
            "gpu_at_hand": lambda: ("g", {"memory": MEMORY}),
            "open_one": lambda number, room: Device(seen[number]),
        }
        for module in (machine_gpus, rows, devices):
            for name, change in changes.items():
                if hasattr(module, name):
                    setattr(module, name, change)
        run = getattr(ChunkedGpuProgram.run, "real", ChunkedGpuProgram.run)

        def watched(program: ChunkedGpuProgram, block: Any) -> Any:
            if (folder / "kill").exists():
                (folder / "kill").unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            with (folder / "rows").open("a") as file:
                file.write("".join(str(device.number) for device in program._gpu.devices) + "\n")
            return run(program, block)

        watched.real = run  # type: ignore[attr-defined]
        ChunkedGpuProgram.run = watched  # type: ignore[method-assign]


def rows_in(folder: Path) -> list[str]:
    """Return the numbers of the GPUs that answered each row since the last call."""
    found = (folder / "rows").read_text().split() if (folder / "rows").exists() else []
    (folder / "rows").unlink(missing_ok=True)
    return found
