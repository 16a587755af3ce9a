"""What several benchmarks share: network files of folders, a process of its own for each measurement, the machine, and
what `papers.py` asks for."""

from __future__ import annotations

import datetime
import os
import platform
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).parents[1] / "data"
# Most seconds until a process has loaded everything, compiling included.
LOADING = 900.0


def network_files(paths: Iterable[Path]) -> list[Path]:
    """Return the network files: those named, and all BIF files in the folders named."""
    return [each for path in paths for each in (sorted(path.glob("*.bif*")) if path.is_dir() else (path,))]


class Asked(NamedTuple):
    """What `papers.py` asks a function for.

    networks: network files or folders that were named, or none.
    small: whether sizes that take seconds will do.
    gpu: whether there is a GPU; without one a function does what a CPU can show.
    folder: where files go that it draws, or keeps for another item.
    """

    networks: tuple[Path, ...] = ()
    small: bool = False
    gpu: bool = False
    folder: Path = Path()

    def files(self, names: Collection[str]) -> list[Path]:
        """Return the network files named; else those of a paper, by their names without suffixes, of the folder
        BENCHMARK_NETWORKS; else, and where small ones will do, networks that come with this project."""
        if self.networks:
            return network_files(self.networks)
        there = {} if self.small else {name: path for name, path in benchmark_networks().items() if name in names}
        if not there:
            known = "" if self.small else ": name files, or a folder of them in BENCHMARK_NETWORKS"
            print(f"networks of data/, not the paper's{known}")
            return [DATA / "asia.bif", DATA / "student.bif"]
        if missing := [name for name in names if name not in there]:
            print(f"not found in BENCHMARK_NETWORKS: {', '.join(missing)}")
        return [there[name] for name in names if name in there]


def benchmark_networks() -> dict[str, Path]:
    """Return the network files of the folder BENCHMARK_NETWORKS by their names without suffixes, BIF before UAI."""
    folder = os.environ.get("BENCHMARK_NETWORKS")
    files = [path for suffix in ("uai*", "bif*") for path in Path(folder).rglob(f"*.{suffix}")] if folder else []
    files = [path for path in files if path.suffixes[0] in (".bif", ".uai") and ".evid" not in path.suffixes]
    return {path.name.split(".")[0]: path for path in files}


def gpu_here() -> bool:
    """Return whether there are an NVIDIA GPU and CuPy."""
    from junctor.runtime.devices import count_gpus

    return bool(count_gpus()) and find_spec("cupy") is not None


def need_gpu(what: str) -> None:
    """End with one line and exit code 2 where there is no GPU.

    what: what needs one.
    """
    if not gpu_here():
        print(f"{what} needs an NVIDIA GPU and CuPy (junctor[cuda12] or junctor[cuda13]): none here", file=sys.stderr)
        sys.exit(2)


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
