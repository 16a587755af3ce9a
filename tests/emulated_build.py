"""Kernels of a CUDA source, compiled for the CPU."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from tempfile import mkdtemp

HERE = Path(__file__).parent


def built(*parts: str, flags: tuple[str, ...] = ("-O1",)) -> ctypes.CDLL:
    """Return a library of some parts of a source, behind as much of CUDA as `emulated.h` has."""
    folder = Path(mkdtemp(prefix="junctor-emulated-"))
    source, library = folder / "kernels.cpp", folder / "kernels.so"
    source.write_text("\n".join([(HERE / "emulated.h").read_text(), *parts]))
    command = ["g++", "-std=c++20", *flags, "-fPIC", "-shared", "-pthread", "-Wno-unknown-pragmas"]
    subprocess.run([*command, "-o", str(library), str(source)], check=True)
    return ctypes.CDLL(str(library))
