"""Scores of the engine against what a plain loop makes of its posteriors, in slices of any size."""

from __future__ import annotations

import math
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from helpers import strategies
from helpers.forced import engine_by
from hypothesis import given
from hypothesis import strategies as st
from junctor.engine import scores
from junctor.engine.engine import Engine
from junctor.engine.scores import rows_of, slices_of
from junctor.evidence.batch import EvidenceBatch, SoftEvidence
from junctor.generate import random_network, sample
from junctor.model import answers as records
from junctor.model.answers import OK, Answers, SampledAnswers, Scores, answer_bytes, answer_width
from junctor.model.errors import BudgetError
from junctor.model.network import Factor, Network, Variable
from junctor.model.options import ComputeOptions
from junctor.model.query import Precision, Query, Sampling, as_posteriors, chosen_states
from junctor.model.strategies import Strategy


def check(network: Network, query: Query, found: Answers, posteriors: Answers, tolerance: float) -> None:
    """Scores are those of the posteriors, but for roundings of these."""
    assert isinstance(found, Scores)
    np.testing.assert_array_equal(found.status, posteriors.status)
    ok = np.flatnonzero(found.status == OK)
    np.testing.assert_allclose(found.log_value[ok], posteriors.log_value[ok], atol=tolerance, rtol=tolerance)
    assert found.reasons == posteriors.reasons
    for n, v in enumerate(found.targets):
        for row in ok.tolist():
            table = posteriors.posteriors[v][row].tolist()
            order = sorted(table, reverse=True) + [math.nan] * (query.top or 1)
            shown = found.best[n, row]
            there = shown >= 0
            assert there.sum() == min(query.top or 1, len(table))
            assert len(set(shown[there].tolist())) == there.sum()
            np.testing.assert_allclose(found.probabilities[n, row], order[: query.top or 1], atol=tolerance)
            # A tie that roundings decide may go either way.
            stated = [table[state] for state in shown[there]]
            np.testing.assert_allclose(found.probabilities[n, row][there], stated, atol=tolerance)
            entropy = -math.fsum(p * math.log(p) for p in table if p > 0)
            assert found.entropies[n, row] == pytest.approx(entropy, abs=100 * tolerance)
    for n, (name, state) in enumerate(chosen_states(network, query)):
        wanted = posteriors.posteriors[network.index[name]][ok, state]
        np.testing.assert_allclose(found.chosen[n, ok], wanted, atol=tolerance)
    bad = found.status != OK
    assert (found.best[:, bad] == -1).all()
    assert np.isnan(found.probabilities[:, bad]).all()
    assert np.isnan(found.entropies[:, bad]).all()
    assert np.isnan(found.chosen[:, bad]).all()


def assert_equal(found: Answers, expected: Answers) -> None:
    assert isinstance(found, Scores)
    assert isinstance(expected, Scores)
    for name in ("status", "log_value", "best", "probabilities", "entropies", "chosen"):
        assert getattr(found, name).tobytes() == getattr(expected, name).tobytes(), name
    assert found.reasons == expected.reasons


@st.composite
def questions(draw: st.DrawFn) -> tuple[Network, EvidenceBatch, Query]:
    network = draw(strategies.networks(max_variables=6, max_joint=512))
    batch = draw(strategies.evidence_batches(network, max_rows=10))
    names = [variable.name for variable in network.variables]
    targets = draw(st.none() | st.lists(st.sampled_from(names), unique=True, min_size=1).map(tuple))
    every = [f"{variable.name}={state}" for variable in network.variables for state in variable.states]
    chosen = tuple(draw(st.lists(st.sampled_from(every), unique=True, max_size=3)))
    top = draw(st.sampled_from([None, 1, 2, 7]))
    return network, batch, Query(targets=targets, answers="scores", top=top, probabilities=chosen)


@pytest.mark.parametrize(("precision", "tolerance"), [("double", 1e-12), ("single", 1e-5), ("log", 1e-12)])
@pytest.mark.parametrize("strategy", [Strategy.ENTRIES, Strategy.ROW_TREES])
@given(question=questions(), slice_bytes=st.sampled_from([1, 300, 1 << 26]))
def test_scores_are_those_of_the_posteriors(
    precision: str,
    tolerance: float,
    strategy: Strategy,
    question: tuple[Network, EvidenceBatch, Query],
    slice_bytes: int,
) -> None:
    """In NumPy, and in compiled code."""
    network, batch, query = question
    query = replace(query, precision=precision)  # type: ignore[arg-type]
    posteriors = engine_by(strategy, network, as_posteriors(network, query)).answer(batch)
    with mock.patch.object(records, "SLICE_BYTES", slice_bytes):
        found = engine_by(strategy, network, query).answer(batch)
    check(network, query, found, posteriors, tolerance)


@pytest.fixture(scope="module")
def network() -> Network:
    return random_network(12, seed=5, states=(2, 4), zeros=0.2)


def batch_of(network: Network, rows: int, patterns: int) -> EvidenceBatch:
    """Evidence of several patterns, an invalid row, likelihoods in some rows."""
    states = sample(network, rows, seed=3)
    columns = {}
    for v in range(0, 10, 2):
        columns[v] = np.where((np.arange(rows) + v) % (patterns + 1) > 0, states[:, v], -1).astype(np.int32)
    soft = SoftEvidence(np.arange(5, rows, 17), np.full((len(range(5, rows, 17)), network.cardinalities[11]), 0.5))
    return EvidenceBatch(rows, columns, {11: soft}, {3: "bad"})


@pytest.mark.parametrize("patterns", [1, 4])
@pytest.mark.parametrize("rows", [0, 6, 40, 700])
def test_bytes_do_not_depend_on_threads(
    network: Network, rows: int, patterns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(network, rows, patterns) if rows else EvidenceBatch(0)
    query = Query(answers="scores", top=2, probabilities=("x_3=0",))
    monkeypatch.setattr(records, "SLICE_BYTES", 64 * 1024)
    monkeypatch.setattr(scores, "TASK_ROWS", 5)
    monkeypatch.setattr(scores, "TASK_STATES", 1)
    found = [Engine(network, query, ComputeOptions(threads=threads)).answer(batch) for threads in (1, 3)]
    assert_equal(*found)
    check(network, query, found[0], Engine(network, as_posteriors(network, query)).answer(batch), 1e-12)


def test_equal_rows_are_copies(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(network, 12, 1)
    times = 100
    repeated = EvidenceBatch(12 * times, {v: np.tile(column, times) for v, column in batch.states.items()})
    query = Query(answers="scores")
    monkeypatch.setattr(records, "SLICE_BYTES", 2048)
    engine = engine_by(Strategy.ENTRIES, network, query)
    assert any(route.group.copies for route in engine.routes(repeated))
    found = engine.answer(repeated)
    check(network, query, found, Engine(network, Query()).answer(repeated), 1e-12)
    assert isinstance(found, Scores)
    assert (found.entropies.reshape(12, times, 12) == found.entropies[:, None, :12]).all()


@given(st.lists(st.integers(0, 20), max_size=8), st.integers(1, 9))
def test_slices_hold_all_rows_once(sizes: list[int], most: int) -> None:
    groups = [np.arange(100 * n, 100 * n + size) for n, size in enumerate(sizes)]
    slices = list(slices_of(groups, most))
    assert all(0 < sum(len(rows) for _, rows in parts) <= most for parts in slices)
    together = [(n, row) for parts in slices for n, rows in parts for row in rows.tolist()]
    assert together == [(n, row) for n, rows in enumerate(groups) for row in rows.tolist()]


def test_rows_of_a_batch_in_any_order(network: Network) -> None:
    batch = batch_of(network, 60, 3)
    rows = np.array([22, 5, 39, 7])
    part = rows_of(batch, rows, {0, 2, 4, 11})
    assert list(part.states) == [0, 2, 4]
    assert all((column == batch.states[v][rows]).all() for v, column in part.states.items())
    assert part.likelihoods[11].rows.tolist() == [0, 1, 2]
    assert part.invalid == {}


def test_memory_of_a_slice_is_planned(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(answers="scores")
    monkeypatch.setattr(records, "SLICE_BYTES", 4096)
    batch = batch_of(network, 700, 1)
    held = answer_bytes(network, query)(batch.rows)
    assert 700 * answer_width(network, query) < held <= 700 * answer_width(network, query) + 4096
    with pytest.raises(BudgetError):
        Engine(network, query, ComputeOptions(held, threads=1, device="cpu")).answer(batch)


def test_sampled_scores_have_errors_of_what_they_state() -> None:
    network = random_network(6, seed=2, states=(2, 3))
    query = Query(
        targets=("x_1", "x_4"),
        method="sampling",
        sampling=Sampling(samples=500),
        answers="scores",
        top=3,
        probabilities=("x_2=1",),
    )
    batch = EvidenceBatch(4, {0: np.array([0, 1, -1, 0], np.int32)}, {}, {3: "bad"})
    answers, found = (Engine(network, each).answer(batch) for each in (as_posteriors(network, query), query))
    assert isinstance(answers, SampledAnswers)
    assert isinstance(found, Scores)
    check(network, query, found, answers, 1e-12)
    for n, v in enumerate(found.targets):
        for row in range(3):
            best = found.best[n, row][found.best[n, row] >= 0]
            assert found.errors[n, row, : len(best)].tolist() == answers.errors[v][row, best].tolist()
    assert found.chosen_errors[0].tolist()[:3] == answers.errors[2][:3, 1].tolist()
    assert found.estimates is not None
    assert found.estimates.posteriors == {}


def test_scores_of_rows_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = random_network(10, seed=4, states=4, parents=3)
    batch = EvidenceBatch(5, {0: np.array([0, 1, 2, -1, 3], np.int32)})
    query = Query(answers="scores", top=2, probabilities=("x_5=1",))
    monkeypatch.setattr(records, "SLICE_BYTES", 1)
    # Too few bytes for the tables of a row in one piece.
    found = engine_by(Strategy.CHUNKS, wide, query, device_memory=4096).answer(batch)
    assert found.ways == {"chunks": 5}
    check(wide, query, found, Engine(wide, as_posteriors(wide, query)).answer(batch), 1e-12)


@pytest.mark.parametrize("precision", ["single", "double", "log"])
@pytest.mark.parametrize("strategy", [Strategy.ENTRIES, Strategy.ROW_TREES])
def test_states_that_are_equal_by_symmetry_are_in_the_order_of_the_network(
    precision: Precision, strategy: Strategy
) -> None:
    rng = np.random.default_rng(7)
    variables = tuple(Variable(f"v{v}", ("a", "b", "c")) for v in range(24))
    factors = []
    for v in range(24):
        scope = (*sorted(rng.choice(v, min(v, 2), replace=False).tolist()), v)
        table = rng.dirichlet(np.ones(3), (3,) * (len(scope) - 1))
        # The third state becomes the first one everywhere, and back again: both are equally probable.
        table = table + np.flip(table)
        factors.append(Factor(scope, table / table.sum(axis=-1, keepdims=True)))
    network = Network("symmetric", variables, tuple(factors))
    middle = np.ones(40, np.int32)
    batch = EvidenceBatch(40, {v: np.where(rng.random(40) < 0.5, middle, -1).astype(np.int32) for v in range(4, 20)})
    query = Query(precision=precision, answers="scores", top=3)
    found = engine_by(strategy, network, query).answer(batch)
    assert isinstance(found, Scores)
    assert (found.status == OK).all()
    free = np.stack([batch.states.get(v, -middle) for v in found.targets]) < 0
    order = found.best[free]
    places = np.argsort(order, axis=1)
    assert (places[:, 0] < places[:, 2]).all()
