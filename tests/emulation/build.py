"""Kernels of a CUDA source, compiled for the CPU."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
# Gone when the process ends.
_folders: list[TemporaryDirectory[str]] = []


def built(*parts: str, flags: tuple[str, ...] = ("-O1",)) -> ctypes.CDLL:
    """Return a library of some parts of a source, behind as much of CUDA as `cuda.h` has."""
    _folders.append(TemporaryDirectory(prefix="junctor-emulated-"))
    folder = Path(_folders[-1].name)
    source, library = folder / "kernels.cpp", folder / "kernels.so"
    source.write_text("\n".join([(HERE / "cuda.h").read_text(), *parts]))
    # Shared memory is static here, and static variables of templates would be one in all libraries of the process.
    command = ["g++", "-std=c++20", "-fno-gnu-unique", *flags, "-fPIC", "-shared", "-pthread", "-Wno-unknown-pragmas"]
    subprocess.run([*command, "-o", str(library), str(source)], check=True)
    return ctypes.CDLL(str(library))
