"""The GPU kernels compile for every architecture that is supported, without a GPU; grids and counts are right."""

from __future__ import annotations

import ctypes
import re
from types import ModuleType

import pytest
from emulation.nvrtc import ARCHITECTURES, compiles
from junctor_kernels.circuits import gpu as circuits_gpu
from junctor_kernels.gpu import blocks as gpu
from junctor_kernels.gpu import early_launch, reserved
from junctor_kernels.gpu import entries as entries_gpu
from junctor_kernels.gpu.blocks import BlockLaunch, grid

# The compiler takes up to half a minute for each.
SINGLE = [pytest.param(each, "single", marks=[pytest.mark.slow] if each != "sm_90" else []) for each in ARCHITECTURES]


DOUBLE, LOG = (pytest.param("sm_90", algebra, marks=pytest.mark.slow) for algebra in ("double", "log"))
MAXIMA = [pytest.param("sm_90", algebra, marks=pytest.mark.slow) for algebra in ("max", "max-single")]


@pytest.mark.parametrize(("architecture", "algebra"), [*SINGLE, DOUBLE, LOG, MAXIMA[0]])
def test_kernels_compile(architecture: str, algebra: str) -> None:
    compiles(gpu.source(algebra), architecture)


@pytest.mark.parametrize(("architecture", "algebra"), [*SINGLE, DOUBLE, LOG, *MAXIMA])
def test_kernels_over_entries_compile(architecture: str, algebra: str) -> None:
    compiles(entries_gpu.source(algebra), architecture)


@pytest.mark.parametrize("numbers", ["single", "double"])
def test_kernels_of_circuits_compile(numbers: str) -> None:
    compiles(circuits_gpu.source(numbers), "sm_90")


@pytest.mark.parametrize("kernels", [gpu, circuits_gpu])
def test_the_source_has_every_field_in_order(kernels: ModuleType) -> None:
    text = kernels.source("single")
    body = text[text.index("struct Run {") : text.index("};", text.index("struct Run {"))]
    # Names before "," or ";", whatever their types are.
    names = re.findall(r"(\w+)\s*[,;]", body)
    assert tuple(names) == kernels.FIELDS


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
    kind, access = reserved._Kind, reserved._Access
    assert (ctypes.sizeof(kind), kind.location.offset, kind.windows.offset, kind.flags.offset) == (32, 8, 16, 24)
    assert (ctypes.sizeof(access), access.flags.offset) == (12, 8)


def test_what_a_record_lacks_is_an_error() -> None:
    fields = dict.fromkeys(gpu.FIELDS, 8)
    assert gpu.run_record(fields).nbytes == 8 * len(gpu.FIELDS)
    del fields["arena"]
    with pytest.raises(KeyError):
        gpu.run_record(fields)
