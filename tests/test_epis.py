"""Importance functions from loopy belief propagation: exact in trees, never without support."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from junctor.model import Network
from junctor.query import Query, Sampling
from junctor.sampling import epis
from junctor.sampling.engine import SamplingEngine
from junctor.sampling.epis import epis_function, evidence_below
from sampling_cases import Hard, Soft, case_of, network_of
from test_sampling import rows


def without_loops(joined: bool) -> tuple[Network, Hard, Soft]:
    """Seven variables; v2 has one parent, or two if `joined`, v3 and v4 hang below it, v5 and v6 stand apart."""
    rng = np.random.default_rng(2)
    cards = (2, 3, 3, 2, 4, 2, 2)
    tables = []
    for scope in ((0,), (1,) if joined else (0, 1), (0, 1, 2) if joined else (0, 2), (2, 3), (2, 4), (5,), (5, 6)):
        shape = [cards[v] for v in scope]
        values = rng.random(shape) + 0.2
        tables.append((scope, values / values.sum(axis=-1, keepdims=True)))
    return network_of(tables, cards), {3: 1, 6: 0}, {4: np.array([0.2, 1.0, 0.5, 0.1])}


def test_a_tree_is_drawn_from_its_posterior() -> None:
    network, hard, soft = without_loops(joined=False)
    engine = SamplingEngine(network, Query(method="sampling", sampling=Sampling("epis-bn", 5_000)))
    found = engine.estimate(hard, soft)[2]
    log, _ = oracle.enumerate_posteriors(network, hard, soft)
    assert found is not None
    # All weights are the same: P(e) is exact, and every sample counts in full.
    assert found.log_evidence == pytest.approx(log, abs=1e-8)
    assert found.effective == pytest.approx(5_000, rel=1e-6)
    assert found.samples == 5_000


def test_what_is_said_below_is_the_probability_of_evidence_there() -> None:
    network, hard, soft = without_loops(joined=True)
    sampled, layout, _ = case_of(network, hard, soft, True)
    below = evidence_below(sampled, sorted(layout.weighed | set(hard)), hard, soft)
    for v in (0, 1, 2):
        said = []
        for state in range(network.cardinalities[v]):
            log, _ = oracle.enumerate_posteriors(network, {**hard, v: state}, soft)
            prior, _ = oracle.enumerate_posteriors(network, {v: state}, {})
            said.append(np.exp(log - prior))
        expected = np.array(said) / sum(said)
        np.testing.assert_allclose(below[v] / below[v].sum(), expected, rtol=1e-10)


@given(rows())
@settings(max_examples=60)
def test_every_possible_state_can_be_drawn(row: tuple[Network, Hard, Soft]) -> None:
    network, hard, soft = row
    sampled, layout, _ = case_of(network, hard, soft, True)
    function = epis_function(layout, hard, soft, False)
    for v in layout.weighed:
        span = slice(sampled.entries[v], sampled.entries[v + 1])
        possible = sampled.tables.probabilities[span] > 0
        assert ((function.ratios[span] > 0) == possible).all()
        assert np.isfinite(function.ratios[span]).all()


def test_rows_that_evidence_leaves_nothing_of_stay_as_they_were() -> None:
    table = np.array([[1.0, 0.0], [0.3, 0.7]])
    np.testing.assert_allclose(epis.with_evidence(table, np.array([0.0, 1.0])), [[1.0, 0.0], [0.0, 1.0]])
