"""The GPU kernels, compiled for the CPU, against the NumPy reference: formats, networks, few cases and many."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from emulated import EmulatedDevice
from hypothesis import given, settings
from junctor import gpu_items
from junctor.engine import Engine, shape_of
from junctor.evidence.batch import EvidenceBatch
from junctor.generate import hmm, layered, sample
from junctor.gpu import GpuProgram
from junctor.model import Network
from junctor.planning.compile import compile_plan
from junctor.planning.shape import Pattern
from junctor.propagation import Block, Program
from junctor.query import Query
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
    on_gpu = GpuProgram(program, cases, EmulatedDevice(), host=1 << 24)
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


def batch_of(network: Network, rows: int, missing: float) -> EvidenceBatch:
    rng = np.random.default_rng(3)
    states = sample(network, rows, seed=5)
    columns = {v: np.where(rng.random(rows) < missing, -1, states[:, v]) for v in (1, 4, 6, 9, 14)}
    return EvidenceBatch(rows, {v: column.astype(np.int32) for v, column in columns.items()})


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("room", [1 << 24, 1 << 18])
def test_the_engine_answers_as_on_the_cpu(precision: str, missing: float, room: int) -> None:
    network = layered(layers=4, width=4, states=3, parents=2, seed=2, zeros=0.2)
    batch = batch_of(network, 300, missing)
    query = Query(precision=precision)
    expected = Engine(network, query).answer(batch)
    found = Engine(network, query, device=EmulatedDevice(room)).answer(batch)
    assert found.status.tolist() == expected.status.tolist()
    tolerance = 2e-6 if precision == "single" else 1e-12
    np.testing.assert_allclose(found.log_value, expected.log_value, atol=tolerance * 10)
    for v, posterior in expected.posteriors.items():
        np.testing.assert_allclose(found.posteriors[v], posterior, atol=tolerance)


def test_doubtful_rows_climb_to_double_on_the_device() -> None:
    # What two messages have in common is 1e-35 of either, where single precision has hardly any numbers left.
    network = hmm(2, [1, 1e-35], [[0.9, 0.1], [0.2, 0.8]], [[1, 1e-35], [0.5, 0.5]])
    batch = EvidenceBatch(40, {1: (np.arange(40) % 2).astype(np.int32)})
    engine = Engine(network, Query(precision="single"), device=EmulatedDevice())
    answers = engine.answer(batch)
    (prepared,) = engine._prepared.values()
    assert {"single", "double"} <= set(prepared._on_device)
    expected = Engine(network, Query()).answer(batch)
    np.testing.assert_allclose(answers.log_value, expected.log_value, rtol=1e-6, atol=1e-6)
    assert answers.log_value[1] < -70


def test_what_does_not_fit_goes_to_the_cpu_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    network = layered(layers=4, width=4, states=3, parents=2, seed=2)
    batch = batch_of(network, 50, 0.0)
    found = Engine(network, Query(), device=EmulatedDevice(room=4096)).answer(batch)
    expected = Engine(network, Query()).answer(batch)
    assert "the CPU takes over" in caplog.text
    np.testing.assert_array_equal(found.log_value, expected.log_value)
