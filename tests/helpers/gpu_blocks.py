"""Devices for the tests of GPU kernels over blocks: an emulated one everywhere, and the GPU with `--gpu`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
from emulation.blocks import EmulatedDevice, small_items
from junctor.backends import gpu_items
from junctor.backends.numpy import EvidenceBlock
from junctor.cost.model import CostModel
from junctor.generate import layered
from junctor.model.network import Network
from junctor.planning.shape import Pattern
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


def cliques_of_every_shape(states: int, zeros: float, cases: int) -> tuple[Network, Pattern, EvidenceBlock]:
    """Return a network with tables of many shapes, and a block of cases with observed states and likelihoods."""
    layers = 5 if states < 5 else 4
    network = layered(layers, width=4, states=states, parents=3, seed=states, zeros=zeros)
    rng = np.random.default_rng(7)
    weights = {v: rng.random((states, cases)) for v in (9, 13)}
    observed = {v: rng.integers(0, states, cases) for v in (3, 6, 15)}
    return network, Pattern(frozenset(observed), frozenset(weights)), EvidenceBlock(cases, observed, weights)
