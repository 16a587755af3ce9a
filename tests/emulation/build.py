"""Kernels of a CUDA source, compiled for the CPU."""

from __future__ import annotations

import ctypes
import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
# Beside the bytecode of the tests: it stays from run to run, and all processes share it.
KEPT = HERE / "__pycache__"


def built(*parts: str, flags: tuple[str, ...] = ("-O1",)) -> ctypes.CDLL:
    """Return a library of some parts of a source, behind as much of CUDA as `cuda.h` has."""
    text = "\n".join([(HERE / "cuda.h").read_text(), *parts])
    # Shared memory is static here, and static variables of templates would be one in all libraries of the process.
    # Fibers jump from stack to stack, which is what checks of `longjmp` are there to find.
    fixed = ("-std=c++20", "-fno-gnu-unique", "-U_FORTIFY_SOURCE", "-fPIC", "-shared", "-Wno-unknown-pragmas")
    command = ["g++", *flags, *fixed]
    library = kept(".so", text, *command, _version())
    with once(library) as is_first:
        if is_first:
            with TemporaryDirectory(prefix="junctor-emulated-", dir=KEPT) as folder:
                source, made = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
                source.write_text(text)
                subprocess.run([*command, "-o", str(made), str(source)], check=True)
                os.replace(made, library)
    return ctypes.CDLL(str(library))


@contextmanager
def once(made: Path) -> Iterator[bool]:
    """Context manager: whether a file has still to be made; other processes wait for whoever makes it."""
    if made.exists():
        yield False
        return
    with made.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not made.exists()


def kept(suffix: str, *parts: str) -> Path:
    """Return the file for what is compiled of a source by a command: its name is their hash."""
    KEPT.mkdir(exist_ok=True)
    return KEPT / (sha256("\0".join(parts).encode()).hexdigest()[:32] + suffix)


@cache
def _version() -> str:
    return subprocess.run(["g++", "--version"], check=True, capture_output=True, text=True).stdout
