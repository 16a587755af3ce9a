"""The oracle against published numbers, against exact fractions, and the strategies against what they promise."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from helpers import oracle, strategies
from hypothesis import given
from hypothesis import strategies as st
from junctor.model.errors import Place
from junctor.model.network import DraftTable, DraftVariable, Network, build_network

PLACE = Place("test")


def burglary() -> Network:
    """The burglar alarm of Pearl, with the numbers of Russell and Norvig: B, E, A, J, M, true first."""
    tables = {
        "B": [0.001, 0.999],
        "E": [0.002, 0.998],
        "BEA": [0.95, 0.05, 0.94, 0.06, 0.29, 0.71, 0.001, 0.999],
        "AJ": [0.90, 0.10, 0.05, 0.95],
        "AM": [0.70, 0.30, 0.01, 0.99],
    }
    return build_network(
        "burglary",
        "bayes",
        [DraftVariable(name, ("true", "false"), PLACE) for name in "BEAJM"],
        [DraftTable(tuple(scope), values, PLACE) for scope, values in tables.items()],
    )


def misconception() -> Network:
    """Koller and Friedman (2009), figure 4.1: four students in a ring, A-B, B-C, C-D, D-A."""
    tables = {"AB": [30, 5, 1, 10], "BC": [100, 1, 1, 100], "CD": [1, 100, 100, 1], "DA": [100, 1, 1, 100]}
    return build_network(
        "misconception",
        "markov",
        [DraftVariable(name, ("0", "1"), PLACE) for name in "ABCD"],
        [DraftTable(tuple(scope), values, PLACE) for scope, values in tables.items()],
    )


def coins(count: int) -> Network:
    """Independent variables whose second state has probability 1e-200."""
    return build_network(
        "coins",
        "bayes",
        [DraftVariable(f"c{i}", ("usual", "rare"), PLACE) for i in range(count)],
        [DraftTable((f"c{i}",), [1.0, 1e-200], PLACE) for i in range(count)],
    )


def test_burglary_has_the_published_posterior() -> None:
    log_evidence, posteriors = oracle.enumerate_posteriors(burglary(), {3: 0, 4: 0}, {})
    assert posteriors[0][0] == pytest.approx(0.284, abs=5e-4)
    assert log_evidence == pytest.approx(math.log(0.00059224 + 0.0014919), abs=5e-4)
    assert posteriors[3].tolist() == [1.0, 0.0]


def test_misconception_has_the_published_partition_function() -> None:
    network = misconception()
    log_evidence, _ = oracle.enumerate_posteriors(network, {}, {})
    assert log_evidence == pytest.approx(math.log(7_201_840), rel=1e-14)
    value, assignments = oracle.enumerate_mpe(network, {}, {})
    assert assignments == {(0, 1, 1, 0)}
    assert value == pytest.approx(math.log(5_000_000), rel=1e-14)
    assert oracle.log_joint(network, (0, 1, 1, 0), {}) == pytest.approx(value, rel=1e-14)


def test_soft_evidence_multiplies() -> None:
    log_evidence, posteriors = oracle.enumerate_posteriors(misconception(), {}, {0: [2.0, 0.0]})
    hard_evidence, hard_posteriors = oracle.enumerate_posteriors(misconception(), {0: 0}, {})
    assert log_evidence == pytest.approx(hard_evidence + math.log(2.0))
    for variable, posterior in posteriors.items():
        np.testing.assert_allclose(posterior, hard_posteriors[variable], rtol=1e-14)


def test_far_below_the_smallest_double() -> None:
    network = coins(9)
    log_evidence, posteriors = oracle.enumerate_posteriors(network, {}, {v: [0.0, 1e-300] for v in range(9)})
    assert log_evidence == pytest.approx(9 * math.log(1e-200) + 9 * math.log(1e-300), rel=1e-13)
    assert all(posterior.tolist() == [0.0, 1.0] for posterior in posteriors.values())
    assert oracle.enumerate_mpe(network, {}, {v: [0.0, 1.0] for v in range(9)})[1] == {(1,) * 9}


def test_impossible_evidence() -> None:
    network = misconception()
    assert oracle.enumerate_posteriors(network, {0: 1}, {0: [1.0, 0.0]}) == (-math.inf, {})
    assert oracle.enumerate_mpe(network, {0: 1}, {0: [1.0, 0.0]}) == (-math.inf, set())
    assert oracle.exact_posteriors(network, {0: 1}, {0: [1.0, 0.0]}) == (0, {})
    assert oracle.log_joint(network, (1, 0, 0, 0), {0: [1.0, 0.0]}) == -math.inf


def test_ties_are_all_reported() -> None:
    network = build_network(
        "fair",
        "bayes",
        [DraftVariable(name, ("0", "1"), PLACE) for name in "AB"],
        [DraftTable((name,), [0.5, 0.5], PLACE) for name in "AB"],
    )
    assert oracle.enumerate_mpe(network, {0: 1}, {})[1] == {(1, 0), (1, 1)}


def test_two_to_the_eighteen_joint_states() -> None:
    log_evidence, posteriors = oracle.enumerate_posteriors(coins(18), {}, {})
    assert log_evidence == pytest.approx(0.0, abs=1e-12)
    assert len(posteriors) == 18


@given(st.data())
def test_agrees_with_exact_fractions(data: st.DataObject) -> None:
    network = data.draw(strategies.networks(max_variables=6, max_joint=96))
    batch = data.draw(strategies.evidence_batches(network, max_rows=2, min_rows=1))
    for row in range(batch.rows):
        hard, soft = strategies.row_evidence(batch, row)
        _same_posteriors(network, hard, soft)
        _same_explanations(network, hard, soft)


def _same_posteriors(network: Network, hard: oracle.Hard, soft: oracle.Soft) -> None:
    log_evidence, posteriors = oracle.enumerate_posteriors(network, hard, soft)
    evidence, expected = oracle.exact_posteriors(network, hard, soft)
    assert log_evidence == pytest.approx(oracle.log_fraction(evidence), rel=1e-14, abs=1e-12)
    assert posteriors.keys() == expected.keys()
    for variable, posterior in posteriors.items():
        np.testing.assert_allclose(posterior, [float(p) for p in expected[variable]], rtol=1e-14, atol=1e-300)


def _same_explanations(network: Network, hard: oracle.Hard, soft: oracle.Soft) -> None:
    value, assignments = oracle.enumerate_mpe(network, hard, soft)
    best, expected = oracle.exact_mpe(network, hard, soft)
    assert value == pytest.approx(oracle.log_fraction(best), rel=1e-14, abs=1e-12)
    assert expected <= assignments
    for assignment in itertools.islice(assignments, 5):
        assert oracle.log_joint(network, assignment, soft) == pytest.approx(value, rel=1e-14, abs=2e-9)


def test_fractions_of_any_size_have_logarithms() -> None:
    assert oracle.log_fraction(Fraction(1, 10**2000)) == pytest.approx(-2000 * math.log(10))


@given(strategies.networks(max_variables=5, max_joint=64))
def test_drawn_networks_keep_their_bounds(network: Network) -> None:
    assert 1 <= len(network.variables) <= 5
    assert math.prod(network.cardinalities) <= 64
    for factor in network.factors:
        assert np.isfinite(factor.table).all()
        if network.kind == "bayes":
            np.testing.assert_allclose(factor.table.sum(axis=-1), 1.0, rtol=1e-14)


@given(st.data())
def test_drawn_evidence_fits_its_network(data: st.DataObject) -> None:
    network = data.draw(strategies.networks(max_variables=5, max_joint=64))
    batch = data.draw(strategies.evidence_batches(network))
    for row in range(batch.rows):
        hard, soft = strategies.row_evidence(batch, row)
        assert not hard.keys() & soft.keys()
        assert all(0 <= state < network.cardinalities[variable] for variable, state in hard.items())
        for variable, values in soft.items():
            assert values.shape == (network.cardinalities[variable],)
            assert np.isfinite(values).all()
            assert values.max() > 0
            assert values.min() >= 0
    assert all(0 <= row < batch.rows for row in batch.invalid)
