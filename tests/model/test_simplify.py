"""Narrower networks: the same joint distribution without states that nothing supports and axes that change nothing."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.oracle import log_joint_table
from helpers.strategies import networks
from hypothesis import given
from hypothesis import strategies as st
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch
from junctor.generate import random_network
from junctor.model.answers import IMPOSSIBLE, OK
from junctor.model.network import Factor, Network, Variable
from junctor.model.query import Query
from junctor.model.simplify import MOST_ENTRIES, simplified, with_links


def chain(*tables: list[list[float]]) -> Network:
    """Return a chain of binary variables, each the child of the one before."""
    arrays = [np.array(table[0] if len(table) == 1 else table) for table in tables]
    variables = tuple(Variable(f"v{i}", ("no", "yes")) for i in range(len(arrays)))
    factors = tuple(Factor((i - 1, i) if i else (0,), array) for i, array in enumerate(arrays))
    return Network("chain", variables, factors)


SURE, FLIP, IDLE, NOISY = [[1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]], [[0.3, 0.7], [0.3, 0.7]], [[0.9, 0.1], [0.2, 0.8]]


@given(networks())
def test_joint_distribution_is_the_same(network: Network) -> None:
    found = simplified(network)
    whole = log_joint_table(network)
    left = np.ix_(*found.kept)
    np.testing.assert_allclose(log_joint_table(found.network), whole[left], rtol=1e-14, atol=1e-14)
    if found.network is not network:
        gone = np.ones(whole.shape, dtype=bool)
        gone[left] = False
        assert np.isneginf(whole[gone]).all()


@given(networks())
def test_joint_distribution_is_the_same_with_fewer_axes(network: Network) -> None:
    found = network.with_fewer_axes
    np.testing.assert_allclose(log_joint_table(found), log_joint_table(network), rtol=1e-14, atol=1e-14)
    assert found.variables == network.variables
    if network.kind == "bayes":
        scopes = [factor.scope for factor in simplified(network).network.factors]
        assert [factor.scope for factor in found.factors] == scopes
    assert found.with_fewer_axes is found


@given(networks(), st.data())
def test_joint_distribution_is_the_same_with_links(network: Network, data: st.DataObject) -> None:
    variables = range(len(network.variables))
    kept, (observed, asked) = simplified(network).kept, (data.draw(st.sets(st.sampled_from(variables))) for _ in "12")
    found, whole = with_links(network, kept, observed, asked), log_joint_table(network)
    assert found.public == found.variables[: len(whole.shape)]
    if network.kind == "bayes":
        assert [factor.scope[-1] for factor in found.factors] == list(range(len(found.variables)))
    # Each state of an auxiliary variable goes with one of the variable that it stands for.
    joint = np.exp(log_joint_table(found)).sum(axis=tuple(range(len(variables), len(found.variables))))
    is_whole = [v in observed or v in asked or len(kept[v]) == network.cardinalities[v] for v in variables]
    left = np.ix_(*(range(network.cardinalities[v]) if is_whole[v] else kept[v] for v in variables))
    # What is left out is zero; what is observed is so with others that are possible.
    np.testing.assert_allclose(joint, np.exp(whole[left]), rtol=1e-12, atol=0)


@given(networks())
def test_nothing_idle_is_left(network: Network) -> None:
    found = simplified(network).network
    assert simplified(found).network is found
    for i, factor in enumerate(found.factors):
        assert not factor.table.flags.writeable
        assert factor.table.shape == tuple(found.cardinalities[v] for v in factor.scope)
        if found.kind == "bayes":
            assert factor.scope[-1] == i
            np.testing.assert_allclose(factor.table.sum(axis=-1), 1, atol=1e-5)


def test_zeros_spread_along_a_chain() -> None:
    found = simplified(chain(SURE, FLIP, FLIP, NOISY))
    assert found.kept == ((0,), (1,), (0,), (0, 1))
    assert [factor.scope for factor in found.network.factors] == [(0,), (1,), (2,), (3,)]
    assert found.network.variables[1].states == ("yes",)


def test_idle_parents_leave() -> None:
    network = chain([[0.5, 0.5]], IDLE, NOISY)
    found = simplified(network)
    assert [factor.scope for factor in found.network.factors] == [(0,), (1,), (1, 2)]
    assert found.network.factors[2] is network.factors[2]


def test_a_state_that_a_markov_network_rules_out_once_stays_ruled_out() -> None:
    pair = (Variable("a", ("0", "1")), Variable("b", ("0", "1")))
    # The second table is the same for the one possible state of `b`, and alone rules out the other one.
    tables = Factor((0,), np.array([1.0, 2.0])), Factor((1, 0), np.array([[3.0, 3.0], [0.0, 0.0]]))
    network = Network("n", pair, tables, "markov")
    assert network.with_fewer_axes is network


def test_contradictions_and_networks_without_idle_parts_are_left_as_they_are() -> None:
    a, b = Variable("a", ("0", "1")), Variable("b", ("0", "1"))
    never = Network(
        "n", (a, b), (Factor((0,), np.array([1.0, 0.0])), Factor((0, 1), np.array([[0.0, 0.0], [1, 2]]))), "markov"
    )
    assert simplified(never).network is never
    plain = random_network(variables=6, seed=3)
    assert simplified(plain).network is plain
    assert plain.possible_states is None


def test_large_tables_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    network = chain(SURE, FLIP, IDLE)
    monkeypatch.setattr("junctor.model.simplify.MOST_ENTRIES", 3)
    assert simplified(network).kept == ((0,), (0, 1), (0, 1))
    assert MOST_ENTRIES > 3


def test_the_engine_plans_by_fewer_axes_and_answers_the_same() -> None:
    network = chain(SURE, FLIP, IDLE, NOISY)
    engine = Engine(network, Query())
    assert engine.facts.shape.scopes == ((0,), (1,), (2,), (2, 3))
    batch = EvidenceBatch(4, {0: np.array([0, 1, -1, 0], dtype=np.int32), 3: np.array([-1, 1, 1, 0], dtype=np.int32)})
    answers = engine.answer(batch)
    assert answers.status.tolist() == [OK, IMPOSSIBLE, OK, OK]
    assert "v0" in answers.reasons[1]
    expected = 0.3 * 0.1 + 0.7 * 0.8
    np.testing.assert_allclose(answers.log_value[[0, 2, 3]], np.log([1, expected, 1 - expected]), atol=1e-14)
    np.testing.assert_allclose(answers.posteriors[2][2], np.array([0.3 * 0.1, 0.7 * 0.8]) / expected)
    np.testing.assert_array_equal(answers.posteriors[0][0], [1, 0])
