"""CUDA sources through the compiler of CUDA, which needs no GPU."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest

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
    nvrtc, program = compiler(), ctypes.c_void_p()
    text = source.encode()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"kernels.cu", 0, None, None) == 0
    options = [f"-arch={architecture}".encode(), b"-std=c++17", b"-ftz=true"]
    failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    assert not failed, log.value.decode()
    assert b"warning" not in log.value, log.value.decode()
