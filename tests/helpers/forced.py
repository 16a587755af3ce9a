"""Every way to answer rows, asked for by its name."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from emulation.blocks import EmulatedDevice
from junctor.engine.engine import Engine
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.model.strategies import Strategy

COMPILES = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to compile the GPU kernels for the CPU")
# Those that a user can ask for: rows that are impossible are found by themselves.
FORCED = [
    pytest.param(each, id=each.value, marks=[COMPILES] * (each is Strategy.GPU_BLOCKS))
    for each in Strategy
    if each is not Strategy.IMPOSSIBLE
]
# Those that explain rows.
EXPLAINING = [each for each in FORCED if each.values != (Strategy.JOINT_TABLE,)]


def engine_by(strategy: Strategy, network: Network, query: Query, **options: Any) -> Engine:
    """Return an engine that answers in one way; a GPU is emulated."""
    gpu = EmulatedDevice() if strategy is Strategy.GPU_BLOCKS else None
    asked = ComputeOptions(**{"threads": 1, "device": "cpu", **options, "strategy": strategy})
    return Engine(network, query, asked, gpu=gpu)
