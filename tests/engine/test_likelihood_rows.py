"""Rows with likelihoods, which cut nothing out of a network: what answers them goes by the size of its tables."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.figures import set_figures
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch, SoftEvidence
from junctor.generate import grid
from junctor.model.network import Network
from junctor.model.query import Query
from junctor.model.strategies import Strategy
from junctor.strategies import cpu_blocks
from junctor.strategies.strategy import Route


def batch_of(network: Network, rows: int, soft: bool) -> EvidenceBatch:
    """Return rows that observe every third variable, by likelihoods or by states."""
    rng = np.random.default_rng(1)
    observed = range(0, len(network.variables), 3)
    if not soft:
        return EvidenceBatch(rows, {v: rng.integers(0, 2, rows).astype(np.int32) for v in observed})
    return EvidenceBatch(rows, {}, {v: SoftEvidence(np.arange(rows), rng.random((rows, 2)) + 0.1) for v in observed})


def route(network: Network, rows: int, soft: bool) -> Route:
    (found,) = Engine(network, Query(), expected_rows=rows).routes(batch_of(network, rows, soft))
    return found


@pytest.mark.parametrize(("rows", "expected"), [(70, Strategy.ENTRIES), (1000, Strategy.ROW_TREES)])
def test_numpy_answers_no_more_than_is_done_before_trees_are_loaded(rows: int, expected: Strategy) -> None:
    assert route(grid(10, 10, seed=1), rows, soft=True).strategy is expected


def test_rows_whose_messages_leave_the_cache_may_have_trees_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    large = grid(14, 14, seed=1)
    assert route(large, 1000, soft=True).strategy is Strategy.CPU_BLOCKS
    # As of messages that leave it.
    set_figures(monkeypatch, blocks={"uncached_operation": 1e-6})
    monkeypatch.setattr(cpu_blocks, "CACHE_SHARE", 2.0**-15)
    with_likelihoods = route(large, 1000, soft=True)
    assert with_likelihoods.strategy is Strategy.ROW_TREES
    assert with_likelihoods.group.alone
    assert route(large, 100_000, soft=False).strategy is Strategy.CPU_BLOCKS
