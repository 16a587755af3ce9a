"""CUDA sources through the compiler of CUDA, which needs no GPU."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest

from emulation.build import kept, once

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")


@cache
def compiler() -> ctypes.CDLL:
    try:
        found = [
            str(path.locate()) for path in files("nvidia-cuda-nvrtc") or () if re.match(r"libnvrtc\.so", path.name)
        ]
    except PackageNotFoundError:
        found = []
    found += [str(path) for path in Path("/usr/local").glob("cuda*/lib64/libnvrtc.so")]
    if not found:
        pytest.skip("needs the compiler of CUDA: pip install nvidia-cuda-nvrtc")
    return ctypes.CDLL(found[0])


def compiles(source: str, architecture: str) -> None:
    """Check that a source compiles without warnings; what did so once is not compiled again."""
    nvrtc = compiler()
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    options = [f"-arch={architecture}".encode(), b"-std=c++17", b"-ftz=true"]
    mark = kept(".compiled", source, repr(options), f"{major.value}.{minor.value}")
    with once(mark) as is_first:
        if is_first:
            _compile(nvrtc, source, options)
            mark.touch()


def _compile(nvrtc: ctypes.CDLL, source: str, options: list[bytes]) -> None:
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
    failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    assert not failed, log.value.decode()
    assert b"warning" not in log.value, log.value.decode()
