"""The GPU kernels, compiled for the CPU, against the NumPy reference: formats, networks, few cases and many."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from emulated import EmulatedDevice
from hypothesis import given, settings
from junctor import gpu_items
from junctor.engine import shape_of
from junctor.evidence.batch import EvidenceBatch
from junctor.generate import layered
from junctor.gpu import GpuProgram
from junctor.model import Network
from junctor.planning.compile import compile_plan
from junctor.planning.shape import Pattern
from junctor.propagation import Block, Program
from junctor_kernels import gpu
from junctor_kernels.reference import DOUBLE, SINGLE, Algebra
from test_compiled import blocks_of, compare, questions

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to compile the GPU kernels for the CPU")
FORMATS = pytest.mark.parametrize("algebra", [DOUBLE, SINGLE], ids=lambda algebra: algebra.name)


@pytest.fixture(autouse=True, scope="module")
def _few_threads() -> None:
    """Threads of a block that wait for each other are the CPU's own: have few of them."""
    patch = pytest.MonkeyPatch()
    patch.setattr(gpu, "FEW_THREADS", 32)
    patch.setattr(gpu, "MANY_THREADS", 64)
    patch.setattr(gpu, "RUN", 4)
    patch.setattr(gpu_items, "SHARED_TERMS", 20)
    patch.setattr(gpu_items, "MAKE_ROWS", 3)
    patch.setattr(gpu_items, "BUSY_THREADS", 256)
    yield
    patch.undo()


def check(network: Network, pattern: Pattern, block: Block, algebra: Algebra, cases: int) -> None:
    program = Program(compile_plan(shape_of(network), pattern, None, False, rows=1), network, algebra)
    on_gpu = GpuProgram(program, cases, EmulatedDevice())
    for place in (0, 1, 0):
        # Again, because memory keeps what the first run left.
        compare(on_gpu.run(block, place), program.run(block), algebra)


@FORMATS
@pytest.mark.parametrize("many", [True, False])
@settings(max_examples=40)
@given(question=questions())
def test_any_network_and_evidence(algebra: Algebra, many: bool, question: tuple[Network, EvidenceBatch, bool]) -> None:
    network, batch, likelihoods = question
    pattern, block = blocks_of(network, batch, likelihoods)
    check(network, pattern, block, algebra, 64 if many else batch.rows)


@FORMATS
@pytest.mark.parametrize("states", [2, 3, 5])
@pytest.mark.parametrize("zeros", [0.0, 0.6])
@pytest.mark.parametrize("cases", [1, 3, 200])
def test_networks_with_cliques_of_every_shape(algebra: Algebra, states: int, zeros: float, cases: int) -> None:
    network = layered(layers=5, width=4, states=states, parents=3, seed=states, zeros=zeros)
    rng = np.random.default_rng(7)
    weights = {v: rng.random((states, cases)) for v in (9, 13)}
    observed = {v: rng.integers(0, states, cases) for v in (3, 6, 17)}
    check(network, Pattern(frozenset(observed), frozenset(weights)), Block(cases, observed, weights), algebra, cases)
