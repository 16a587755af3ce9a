"""Propagation in chunks on a GPU against the same plan on the CPU; needs a device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from junctor.chunked import ChunkedProgram
from junctor.devices import open_gpu
from junctor.engine import shape_of
from junctor.formats import read_network
from junctor.generate import grid
from junctor.model import Network
from junctor.planning.chunks import ChunkPlan, chunk_plan
from junctor.planning.compile import compile_plan
from junctor.planning.shape import Pattern
from junctor.propagation import Block
from junctor_kernels import reference
from junctor_kernels.reference import Algebra

ROOM = 1 << 28


def cut(network: Network, working: int) -> ChunkPlan:
    plan = compile_plan(shape_of(network), Pattern(frozenset(), frozenset()), rows=1)
    return chunk_plan(plan, working, 1 << 40, 0)


def check(network: Network, chunks: ChunkPlan, algebra: Algebra) -> None:
    from junctor.chunked_gpu import ChunkGpu

    block = Block(1, {}, {})
    wanted = ChunkedProgram(chunks, network, algebra).run(block)
    gpu = ChunkGpu(chunks, algebra.name, open_gpu(ROOM))
    found = ChunkedProgram(chunks, network, algebra, gpu=gpu).run(block)
    again = ChunkedProgram(chunks, network, algebra, gpu=gpu).run(block)
    tolerance = 1e-12 if algebra is reference.DOUBLE else 1e-5
    np.testing.assert_allclose(found.log_value, wanted.log_value, rtol=tolerance, atol=tolerance)
    assert found.doubtful == wanted.doubtful
    for variable, posterior in wanted.posteriors.items():
        np.testing.assert_allclose(found.posteriors[variable], posterior, atol=tolerance)
        # Whatever slots came first, the numbers are the same.
        np.testing.assert_array_equal(found.posteriors[variable], again.posteriors[variable])
    assert gpu.loaded >= chunks.loaded * algebra.dtype.itemsize
    assert gpu.stored == 2 * chunks.stored * algebra.dtype.itemsize


@pytest.mark.gpu
@pytest.mark.parametrize("algebra", [reference.SINGLE, reference.DOUBLE], ids=lambda each: each.name)
@pytest.mark.parametrize("working", [1 << 6, 1 << 10, 1 << 16])
def test_grids(working: int, algebra: Algebra) -> None:
    network = grid(8, 8, seed=1)
    check(network, cut(network, working), algebra)


@pytest.mark.gpu
@pytest.mark.parametrize("algebra", [reference.SINGLE, reference.DOUBLE], ids=lambda each: each.name)
@pytest.mark.parametrize("name", ["alarm", "water", "mildew", "pigs"])
def test_networks(shared: Path, name: str, algebra: Algebra) -> None:
    (path,) = (shared / "networks/bnlearn").glob(f"{name}.bif*")
    network = read_network(path)
    check(network, cut(network, 1 << 13), algebra)
