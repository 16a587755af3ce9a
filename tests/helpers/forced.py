"""Every way to answer rows, asked for by its name."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from emulation.blocks import EmulatedDevice
from junctor.engine.engine import Engine
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.model.question import EXPLANATIONS
from junctor.model.strategies import EXACT, Strategy
from junctor.runtime.devices import has_gpu
from junctor.strategies.facts import Facts
from junctor.strategies.registry import way
from junctor_kernels.gpu.blocks import CudaBlockDevice

from helpers.gpu_blocks import few_threads, opened  # noqa: F401

COMPILES = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to compile the GPU kernels for the CPU")
# Those that a user can ask for: rows that are impossible are found by themselves, and samples are not exact, so that no
# property of exact answers holds for them (tests/sampling has theirs). Modules that use them import `few_threads` as
# well.
FORCED = [
    *(pytest.param(each, id=each.value) for each in EXACT if each not in (Strategy.GPU_BLOCKS, Strategy.IMPOSSIBLE)),
    pytest.param(Strategy.GPU_BLOCKS, id="gpu-blocks-emulated", marks=COMPILES),
    pytest.param(Strategy.GPU_BLOCKS, id="gpu-blocks-cuda", marks=pytest.mark.gpu),
]


# Those that explain rows.
EXPLAINING = [each for each in FORCED if EXPLANATIONS in way(each.values[0]).supports]  # type: ignore[arg-type]


@contextmanager
def forcing(strategy: Strategy | None) -> Iterator[None]:
    """Context manager: all rows go one way, whoever answers them, but for those that have to go on to another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Facts, "forced", strategy)
        yield


def engine_by(strategy: Strategy, network: Network, query: Query, **options: Any) -> Engine:
    """Return an engine that answers in one way; a GPU is emulated where there is none."""
    kind = CudaBlockDevice if has_gpu() else EmulatedDevice
    gpu = opened(kind) if strategy is Strategy.GPU_BLOCKS else None
    asked = ComputeOptions(**{"threads": 1, "device": "cpu", **options, "strategy": strategy})
    return Engine(network, query, asked, gpu=gpu)
