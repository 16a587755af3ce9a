"""Explanations by the GPU kernels, compiled for the CPU, against the NumPy reference: few cases and many, and ties."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from helpers.blocks import blocks_of, questions
from helpers.gpu_blocks import ON, cliques_of_every_shape, few_threads, opened, several  # noqa: F401
from hypothesis import given
from junctor.backends import gpu_plan
from junctor.backends.gpu import GpuProgram
from junctor.backends.numpy import EvidenceBlock, Program
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch
from junctor.generate import layered, sample
from junctor.model.answers import IMPOSSIBLE, OK, Answers, table_bytes, unanswered
from junctor.model.network import Factor, Network, Variable
from junctor.model.query import Query
from junctor.planning.compile import compile_plan
from junctor.planning.shape import Pattern, shape_of
from junctor_kernels.gpu import blocks as gpu
from junctor_kernels.tables.reference import MAX_LOG


def check(
    network: Network,
    pattern: Pattern,
    block: EvidenceBlock,
    cases: int,
    device: Callable[[], gpu.BlockDevice],
) -> None:
    program = Program(compile_plan(shape_of(network), pattern, None, True, rows=1), network, MAX_LOG)
    expected = program.explain(block)
    on_gpu = GpuProgram(program, cases, opened(device), host=1 << 24)
    rows = np.random.default_rng(1).permutation(block.cases + 3)[: block.cases]
    for place, at in ((0, rows), (1, np.arange(block.cases) + 2), (0, np.sort(rows))):
        # Again, because memory keeps what the first run left.
        answers = unwritten(network, block.cases + 3, opened(device))
        outcome = on_gpu.answer(block, at, answers, place)
        np.testing.assert_allclose(outcome.log_value, expected.log_value, rtol=1e-12, atol=1e-12)
        assert not outcome.doubtful.any()
        found = {v: states[at] for v, states in answers.states.items()}
        # Of several that are as probable any one will do.
        np.testing.assert_allclose(log_values(network, block, found), expected.log_value, rtol=1e-12, atol=1e-9)
        assert answers.explained is not None
        untouched = np.setdiff1d(np.arange(block.cases + 3), at)
        assert (answers.explained[:, untouched] == -1).all()


def unwritten(network: Network, rows: int, device: gpu.BlockDevice) -> Answers:
    query, targets = Query("mpe"), tuple(range(len(network.variables)))
    memory = device.host(table_bytes(query, targets, (), rows))
    answers = unanswered(query, targets, network.cardinalities, rows, {}, memory)
    assert answers.explained is not None
    answers.explained[:] = -1
    return answers


def log_values(
    network: Network, block: EvidenceBlock, states: dict[int, npt.NDArray[np.int32]]
) -> npt.NDArray[np.float64]:
    """Return log P(states, e) of each case from the factors of the network, -inf where states contradict evidence."""
    with np.errstate(divide="ignore"):
        total = np.zeros(block.cases)
        for factor in network.factors:
            total += np.log(factor.table)[tuple(states[v] for v in factor.scope)]
        for v, weights in block.likelihoods.items():
            total += np.log(weights[states[v], np.arange(block.cases)])
    for v, observed in block.states.items():
        total[states[v] != observed] = -np.inf
    return total


@ON
@pytest.mark.parametrize("many", [True, False])
@given(question=questions())
def test_any_network_and_evidence(
    device: Callable[[], gpu.BlockDevice], many: bool, question: tuple[Network, EvidenceBatch, bool]
) -> None:
    network, batch, likelihoods = question
    pattern, block = blocks_of(network, batch, likelihoods)
    check(network, pattern, block, several(device) if many else batch.rows, device)


@ON
@pytest.mark.parametrize(("states", "zeros"), [(2, 0.6), (3, 0.0), (5, 0.6)])
@pytest.mark.parametrize(("cases", "together"), [(1, 1), (3, 3), (None, 1 << 15), (None, 1)])
def test_networks_with_cliques_of_every_shape(
    device: Callable[[], gpu.BlockDevice],
    states: int,
    zeros: float,
    cases: int | None,
    together: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_plan, "TRACED_TOGETHER", together)
    cases = cases or min(200, several(device))
    check(*cliques_of_every_shape(states, zeros, cases), cases, device)


@ON
@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("targets", [None, (3, 9)])
def test_the_engine_explains_as_on_the_cpu(
    device: Callable[..., gpu.BlockDevice], missing: float, targets: tuple[int, ...] | None
) -> None:
    network = layered(layers=4, width=4, states=3, parents=2, seed=2, zeros=0.2)
    names = None if targets is None else tuple(network.variables[v].name for v in targets)
    rng, states = np.random.default_rng(3), sample(network, 300, seed=5)
    columns = {v: np.where(rng.random(300) < missing, -1, states[:, v]).astype(np.int32) for v in (1, 4, 6, 9, 14)}
    # Some of them contradict the network, and one cannot be read.
    columns[14][::7] = (columns[14][::7] + 1) % 3
    batch = EvidenceBatch(300, columns, invalid={5: "no state"})
    query = Query("mpe", targets=names)
    expected = Engine(network, query).answer(batch)
    found = Engine(network, query, gpu=opened(device)).answer(batch)
    assert found.ways.keys() == {"gpu-blocks"}
    assert found.status.tolist() == expected.status.tolist()
    assert (expected.status == IMPOSSIBLE).any()
    np.testing.assert_allclose(found.log_value, expected.log_value, atol=1e-11)
    ok = found.status == OK
    assert found.explained is not None
    assert (found.explained[:, ~ok] == -1).all()
    for v, best in expected.states.items():
        assert (found.states[v][ok] == best[ok]).mean() > 0.99


@ON
@pytest.mark.parametrize(("cases", "together"), [(1, 1), (70, 1 << 15), (70, 1)])
def test_of_terms_that_are_equal_the_first_is_taken(
    device: Callable[..., gpu.BlockDevice], cases: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_plan, "TRACED_TOGETHER", together)
    # Sums of halves are exact, whatever their order; a warp looks at 8 or 32 of the terms at a time.
    size = 70
    network = Network("ties", (Variable("a", tuple(map(str, range(size)))),), (Factor((0,), np.ones(size) / 128),))
    answers = unwritten(network, cases + 3, opened(device))
    plan = compile_plan(shape_of(network), Pattern(frozenset(), frozenset({0})), None, True, 1)
    program = Program(plan, network, MAX_LOG)
    likelihoods = np.tile(np.where(np.arange(size) % 33 == 5, 1.0, 0.5), (cases, 1)).T
    block = EvidenceBlock(cases, {}, {0: np.ascontiguousarray(likelihoods)})
    outcome = GpuProgram(program, cases, opened(device), host=1 << 24).answer(block, np.arange(cases), answers)
    assert answers.states[0][:cases].tolist() == [5] * cases
    np.testing.assert_allclose(outcome.log_value, -np.log(128))


@ON
def test_products_of_too_many_tables_go_to_the_cpu(
    device: Callable[..., gpu.BlockDevice], caplog: pytest.LogCaptureFixture
) -> None:
    names = tuple(Variable(f"x{n}", ("0", "1")) for n in range(40))
    rng = np.random.default_rng(1)
    # A star: 39 tables meet in the first variable.
    factors = [Factor((0,), np.array([0.4, 0.6]))]
    factors += [Factor((0, n), rng.dirichlet(np.ones(2), 2)) for n in range(1, 40)]
    network = Network("star", names, tuple(factors))
    batch = EvidenceBatch(80, {n: rng.integers(0, 2, 80).astype(np.int32) for n in range(1, 40)})
    expected = Engine(network, Query("mpe")).answer(batch)
    found = Engine(network, Query("mpe"), gpu=opened(device)).answer(batch)
    np.testing.assert_allclose(found.log_value, expected.log_value, atol=1e-11)
    np.testing.assert_array_equal(found.states[0], expected.states[0])
    assert "more than the GPU kernels take" in caplog.text
