"""What several benchmarks share: network files of folders, a process of its own for each measurement, the machine."""

from __future__ import annotations

import datetime
import platform
import traceback
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# Most seconds until a process has loaded everything, compiling included.
LOADING = 900.0


def network_files(paths: Iterable[Path]) -> list[Path]:
    """Return the network files: those named, and all BIF files in the folders named."""
    return [each for path in paths for each in (sorted(path.glob("*.bif*")) if path.is_dir() else (path,))]


def in_a_child(work: Callable[..., Iterator[Any]], *arguments: Any, silence: float) -> Iterator[Any]:
    """Yield what the generator `work` yields in a process of its own, which may run out of memory or die.

    Raises TimeoutError where it says nothing for `silence` seconds after its first word, which may take longer, and
    RuntimeError where it fails or dies.
    """
    # Spawned: threads and GPUs do not survive a fork, and nothing that another measurement kept may help this one.
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, work, arguments), daemon=True)
    process.start()
    sender.close()
    patience = LOADING
    try:
        while True:
            if not receiver.poll(patience):
                raise TimeoutError(f"nothing for {patience:.0f} s")
            patience = silence
            word, content = receiver.recv()
            if word == "end":
                return
            if word == "error":
                raise RuntimeError(content)
            yield content
    except EOFError:
        process.join()
        raise RuntimeError(f"the process ended with {process.exitcode}") from None
    finally:
        process.kill()
        process.join()


def _send(sender: Connection, work: Callable[..., Iterator[Any]], arguments: tuple[Any, ...]) -> None:
    try:
        for content in work(*arguments):
            sender.send(("content", content))
        sender.send(("end", None))
    except Exception:
        sender.send(("error", traceback.format_exc()))


def machine_record() -> dict[str, Any]:
    """Return the date, the processor and the versions, for the record of a measurement."""
    versions = {name: found for name in ("junctor", "pyagrum", "numpy", "numba") if (found := _version(name))}
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": _processor(),
        "versions": versions | {"python": platform.python_version()},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    """Return the name of the processor, or of its kind where the system does not tell."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
