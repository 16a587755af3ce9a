"""The GPU kernels compile for every architecture that is supported, without a GPU; grids and counts are right."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable

import pytest
from emulation.nvrtc import ARCHITECTURES, compiles
from junctor_kernels.circuits import gpu as circuits_gpu
from junctor_kernels.gpu import blocks as gpu
from junctor_kernels.gpu import early_launch, reserved
from junctor_kernels.gpu import entries as entries_gpu
from junctor_kernels.gpu.blocks import BlockLaunch, grid
from junctor_kernels.gpu.device import KernelModule

# The compiler takes up to some seconds for each.
MODULES = pytest.mark.parametrize("kernels", gpu.MODULES, ids=lambda kernels: kernels.source.__name__)
SINGLE = [pytest.param(each, "single", marks=[pytest.mark.slow] if each != "sm_90" else []) for each in ARCHITECTURES]


DOUBLE, LOG = (pytest.param("sm_90", algebra, marks=pytest.mark.slow) for algebra in ("double", "log"))
MAXIMA = [pytest.param("sm_90", algebra, marks=pytest.mark.slow) for algebra in ("max", "max-single")]


@MODULES
@pytest.mark.parametrize(("architecture", "algebra"), [*SINGLE, DOUBLE, LOG, MAXIMA[0]])
def test_kernels_compile(architecture: str, algebra: str, kernels: KernelModule) -> None:
    compiles(kernels.text(algebra), architecture)


@pytest.mark.parametrize("algebra", ["single", "double", "log", "max"])
def test_every_kernel_is_in_the_module_that_launches_it(algebra: str) -> None:
    explains = algebra == "max"
    for kernels, names in (
        (gpu.FEW_CASES, ["propagate_few", *[gpu.TRACE_FEW] * explains]),
        (gpu.MANY_CASES, ["contract_many", "rest_many", *[gpu.TRACE_MANY, gpu.TRACE_SOME] * explains]),
    ):
        assert kernels_of(kernels, algebra) == names
    writers = [gpu.WRITE_STATES] if explains else [*gpu.WRITERS.values(), *gpu.SCORERS.values()]
    assert all(writer.name in kernels_of(writer.kernels, algebra) for writer in writers)


def kernels_of(kernels: KernelModule, algebra: str) -> list[str]:
    text = kernels.text(algebra)
    if algebra != "max":
        text = re.sub(r"#ifdef MAXIMA\n.*?#endif", "", text, flags=re.DOTALL)
    return re.findall(r"__global__ void __launch_bounds__\([^)]*\) (\w+)", text)


def test_contractions_are_compiled_for_the_tiles_that_there_are() -> None:
    line = gpu.MANY_CASES.text("single").split("EVERY_TILE", 1)[1].split("\n", 1)[0]
    found = [(int(lines), int(entries)) for lines, entries in re.findall(r"TILES\((\d), (\d)\)", line)]
    assert found == [*gpu.TILE_SHAPES]


@pytest.mark.parametrize(("architecture", "algebra"), [*SINGLE, DOUBLE, LOG, *MAXIMA])
def test_kernels_over_entries_compile(architecture: str, algebra: str) -> None:
    compiles(entries_gpu.source(algebra), architecture)


@pytest.mark.parametrize("numbers", ["single", "double"])
def test_kernels_of_circuits_compile(numbers: str) -> None:
    compiles(circuits_gpu.source(numbers), "sm_90")


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        *((kernels.source, gpu.FIELDS) for kernels in gpu.MODULES),
        (circuits_gpu.source, circuits_gpu.FIELDS),
    ],
)
def test_the_source_has_every_field_in_order(source: Callable[[str], str], fields: tuple[str, ...]) -> None:
    text = source("single")
    body = text[text.index("struct Run {") : text.index("};", text.index("struct Run {"))]
    # Names before "," or ";", whatever their types are.
    names = re.findall(r"(\w+)\s*[,;]", body)
    assert tuple(names) == fields


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
