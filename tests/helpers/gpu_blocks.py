"""Devices for the tests of GPU kernels over blocks: an emulated one everywhere, and the GPU with `--gpu`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from emulation.blocks import EmulatedDevice, small_items
from junctor.backends import gpu_items
from junctor.cost.model import CostModel
from junctor_kernels.gpu import blocks as gpu

DEVICES = [
    pytest.param(
        EmulatedDevice,
        marks=pytest.mark.skipif(
            shutil.which("g++") is None, reason="needs g++ to compile the GPU kernels for the CPU"
        ),
        id="emulated",
    ),
    pytest.param(gpu.CudaBlockDevice, marks=pytest.mark.gpu, id="cuda"),
]
ON = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture(autouse=True, scope="module")
def few_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Threads of a block are fibers where the CPU stands for a GPU: have few of them, and small items."""
    patch = pytest.MonkeyPatch()
    if request.config.getoption("--gpu"):
        yield
        return
    patch.setattr(gpu, "FEW_THREADS", 32)
    patch.setattr(gpu, "MANY_THREADS", 64)
    patch.setattr(gpu, "WRITE_THREADS", 32)
    patch.setattr(gpu, "WRITE_BLOCKS", 3)
    patch.setattr(gpu, "WRITE_CASES", 17)
    patch.setattr(gpu, "RUN", 4)
    patch.setattr(gpu_items, "MAKE_ROWS", 3)
    patch.setattr(CostModel, "launch_tuner", lambda costs, algebra: small_items())
    yield
    patch.undo()


def several(device: Callable[..., gpu.BlockDevice]) -> int:
    """Cases of more than two warps; fewer where each thread of them is a fiber of the CPU."""
    return 70 if device is EmulatedDevice else 300


@cache
def opened(device: Callable[[], gpu.BlockDevice]) -> gpu.BlockDevice:
    return device()
