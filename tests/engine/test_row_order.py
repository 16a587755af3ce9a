"""An answer depends on its own row alone: not on the order of the others, on threads, or on whether there are any."""

from __future__ import annotations

import numpy as np
import pytest
from junctor.engine.engine import Engine
from junctor.engine.scores import rows_of
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.generate import chain, layered, random_network, sample
from junctor.model.answers import Answers, Scores
from junctor.model.network import Network
from junctor.model.options import ComputeOptions, DeviceChoice
from junctor.model.query import Query


# The latter were wrong when a table without groups overwrote the groups of another.
@pytest.mark.parametrize("seed", [*range(20), 1040, 1113, 1208, 1233, 1248, 1338, 1380, 1383, 1468, 1483])
def test_answers_depend_on_their_own_row_alone(seed: int) -> None:
    check(seed)


@pytest.mark.slow
def test_answers_of_many_tables_depend_on_their_own_row_alone() -> None:
    for seed in range(1000, 2500):
        check(seed)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(30))
def test_answers_of_a_gpu_depend_on_their_own_row_alone(seed: int) -> None:
    check(seed, "gpu")


def check(seed: int, device: DeviceChoice = "cpu") -> None:
    """Compare a table with another order of its rows, and with single ones on a CPU.

    Gaps grow from some row on, as where sensors fail: blocks differ in what all of their rows observe.
    """
    rng = np.random.default_rng(seed)
    network = random_of(rng, seed)
    batch = growing_gaps(network, rng, int(rng.choice([30, 200, 900])), seed)
    precision = rng.choice(["double", "double", "single", "log"])
    kind = rng.choice(["posteriors", "posteriors", "posteriors", "mpe"])
    scored = {"answers": "scores"} if kind == "posteriors" and rng.random() < 0.3 else {}
    query, tolerance = Query(kind, precision=precision, **scored), 1e-4 if precision == "single" else 1e-9
    every = np.arange(batch.rows)
    order = every[::-1] if rng.random() < 0.5 else rng.permutation(batch.rows)

    def answered(rows: np.ndarray, threads: int, device: DeviceChoice = device) -> Answers | Scores:
        options = ComputeOptions(threads=threads, device=device)
        return Engine(network, query, options).answer(taken(batch, rows))

    found = answered(every, int(rng.choice([1, 2, 3, 16])))
    check_same(found, order, answered(order, int(rng.choice([1, 2, 5]))), every, tolerance)
    for row in rng.permutation(batch.rows)[:5]:
        check_same(found, np.array([row]), answered(np.array([row]), 1, "cpu"), np.array([0]), tolerance)


def random_of(rng: np.random.Generator, seed: int) -> Network:
    if seed % 5 < 3:
        return random_network(int(rng.integers(5, 50)), seed=seed)
    if seed % 5 == 3:
        return chain(length=int(rng.integers(5, 60)), states=int(rng.integers(2, 5)), seed=seed)
    return layered(layers=4, width=int(rng.integers(2, 6)), states=3, parents=2, seed=seed)


def growing_gaps(network: Network, rng: np.random.Generator, rows: int, seed: int) -> EvidenceBatch:
    states, variables = sample(network, rows, seed).astype(np.int32), len(network.variables)
    if rng.random() < 0.4:
        # Some cells of any state: rows may be impossible.
        other = (rng.random(states.shape) * np.array(network.cardinalities)).astype(np.int32)
        states = np.where(rng.random(states.shape) < 0.05, other, states)
    if rng.random() < 0.4:
        states = states[rng.integers(0, max(2, rows // 10), rows)]
    before, behind = rng.choice([0, 0, 0.01, 0.1]), rng.choice([0.01, 0.05, 0.3])
    share = np.where(np.arange(rows) < rng.integers(0, rows + 1), before, behind)
    gaps = rng.random(states.shape) < share[:, None]
    gaps[:, rng.random(variables) < rng.choice([0.2, 0.5, 0.9])] = True
    for _ in range(int(rng.integers(0, 3))):
        gaps[rng.integers(0, rows), rng.integers(0, variables)] ^= True
    states[gaps] = UNOBSERVED
    likelihoods = {}
    for v in rng.permutation(variables)[: int(rng.integers(1, 3)) if rng.random() < 0.3 else 0].tolist():
        some = np.flatnonzero(rng.random(rows) < rng.choice([0.02, 0.5, 1]))
        if some.size:
            likelihoods[v] = SoftEvidence(some, rng.random((len(some), network.cardinalities[v])) + 0.01)
    hard = {v: np.ascontiguousarray(states[:, v]) for v in range(variables) if v not in likelihoods}
    return EvidenceBatch(rows, hard, likelihoods)


def taken(batch: EvidenceBatch, rows: np.ndarray) -> EvidenceBatch:
    """Return some rows in any order."""
    inverse = np.argsort(np.argsort(rows))
    some = rows_of(batch, np.sort(rows), {*batch.states, *batch.likelihoods})
    likelihoods = {}
    for v, soft in some.likelihoods.items():
        here = np.argsort(inverse)[soft.rows]
        order = np.argsort(here)
        if here.size:
            likelihoods[v] = SoftEvidence(here[order], soft.values[order])
    return EvidenceBatch(len(rows), {v: column[inverse] for v, column in some.states.items()}, likelihoods)


def check_same(
    one: Answers | Scores, rows: np.ndarray, other: Answers | Scores, places: np.ndarray, tolerance: float
) -> None:
    close = {"rtol": 0, "atol": tolerance}
    assert (one.status[rows] == other.status[places]).all()
    np.testing.assert_allclose(one.log_value[rows], other.log_value[places], rtol=tolerance, atol=tolerance)
    if isinstance(one, Scores):
        assert isinstance(other, Scores)
        np.testing.assert_allclose(one.probabilities[:, rows], other.probabilities[:, places], **close)
        np.testing.assert_allclose(one.entropies[:, rows], other.entropies[:, places], rtol=0, atol=100 * tolerance)
        return
    assert isinstance(other, Answers)
    for v, table in one.posteriors.items():
        np.testing.assert_allclose(table[rows], other.posteriors[v][places], **close)
