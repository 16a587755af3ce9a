"""The GPU kernels compile for every architecture that is supported, without a GPU; grids and counts are right."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest
from junctor_kernels.gpu import blocks as gpu
from junctor_kernels.gpu import early_launch
from junctor_kernels.gpu import entries as entries_gpu
from junctor_kernels.gpu.blocks import BlockLaunch, grid

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


@pytest.mark.parametrize(
    ("architecture", "algebra"),
    [*((architecture, "single") for architecture in ARCHITECTURES), ("sm_90", "double"), ("sm_90", "log")],
)
def test_kernels_compile(architecture: str, algebra: str) -> None:
    compiles(gpu.source(algebra), architecture)


@pytest.mark.parametrize(
    ("architecture", "algebra"), [*((architecture, "single") for architecture in ARCHITECTURES), ("sm_90", "double")]
)
def test_kernels_over_entries_compile(architecture: str, algebra: str) -> None:
    compiles(entries_gpu.source(algebra), architecture)


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


def test_the_source_has_every_field_in_order() -> None:
    text = gpu.source("single")
    body = text[text.index("struct Run {") : text.index("};", text.index("struct Run {"))]
    # Names before "," or ";", whatever their types are.
    names = re.findall(r"(\w+)\s*[,;]", body)
    assert tuple(names) == gpu.FIELDS


def test_grids_cover_all_items_and_cases() -> None:
    warps = gpu.MANY_THREADS // gpu.WARP
    (x, y), threads = grid(BlockLaunch("contract_many", 0, 5 * warps), chunks=7)
    assert (x, y, threads) == (5, 7, gpu.MANY_THREADS)
    (x, y), threads = grid(BlockLaunch("propagate_few", 3, 11), chunks=1)
    assert (x, y, threads) == (11, 1, gpu.FEW_THREADS)


def test_structures_for_the_driver_are_as_large_as_in_its_header() -> None:
    assert (ctypes.sizeof(early_launch._Attribute), early_launch._Attribute.value.offset) == (72, 8)
    config = early_launch._Config
    assert ctypes.sizeof(config) == 56
    assert (config.stream.offset, config.attributes.offset, config.count.offset) == (32, 40, 48)


def test_what_a_record_lacks_is_an_error() -> None:
    fields = dict.fromkeys(gpu.FIELDS, 8)
    assert gpu.run_record(fields).nbytes == 8 * len(gpu.FIELDS)
    del fields["arena"]
    with pytest.raises(KeyError):
        gpu.run_record(fields)
