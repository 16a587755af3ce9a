"""Narrower networks: the same joint distribution without states that nothing supports and axes that change nothing."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.oracle import log_joint_table
from helpers.strategies import networks
from hypothesis import given
from junctor.generate import random_network
from junctor.model.network import Factor, Network, Variable
from junctor.model.simplify import GONE, MOST_ENTRIES, simplified


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
    assert found.constants == (0, 1, 2)
    assert [factor.scope for factor in found.network.factors] == [(0,), (1,), (2,), (3,)]
    assert found.network.variables[1].states == ("yes",)
    assert found.numbers(1, 2).tolist() == [GONE, 0]


def test_idle_parents_leave() -> None:
    network = chain([[0.5, 0.5]], IDLE, NOISY)
    found = simplified(network)
    assert [factor.scope for factor in found.network.factors] == [(0,), (1,), (1, 2)]
    assert found.network.factors[2] is network.factors[2]


def test_contradictions_and_networks_without_idle_parts_are_left_as_they_are() -> None:
    a, b = Variable("a", ("0", "1")), Variable("b", ("0", "1"))
    never = Network(
        "n", (a, b), (Factor((0,), np.array([1.0, 0.0])), Factor((0, 1), np.array([[0.0, 0.0], [1, 2]]))), "markov"
    )
    assert simplified(never).network is never
    plain = random_network(variables=6, seed=3)
    assert simplified(plain).network is plain
    assert simplified(plain).constants == ()


def test_large_tables_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    network = chain(SURE, FLIP, IDLE)
    monkeypatch.setattr("junctor.model.simplify.MOST_ENTRIES", 3)
    assert simplified(network).kept == ((0,), (0, 1), (0, 1))
    assert MOST_ENTRIES > 3
