"""Rows that are few: who answers them, and that runs and calls give the same bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import strategies
from helpers.engine_cases import assert_same, check_posteriors
from helpers.options import on_cpu
from hypothesis import given
from hypothesis import strategies as st
from junctor.engine.engine import Engine
from junctor.engine.few_rows import FEW_ROWS, FewRows
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.generate import chain, grid, random_network, sample
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.model.strategies import Strategy

ROOM = 1 << 28
OPTIONS = on_cpu(ROOM)


def random_batch(network: Network, rows: int, seed: int = 1) -> EvidenceBatch:
    states = sample(network, rows, seed).astype(np.int32)
    states[np.random.default_rng(seed).random(states.shape) < 0.6] = UNOBSERVED
    return EvidenceBatch(rows, {v: np.ascontiguousarray(states[:, v]) for v in range(states.shape[1])})


def only(batch: EvidenceBatch, row: int) -> EvidenceBatch:
    return EvidenceBatch(1, {v: column[row : row + 1] for v, column in batch.states.items()})


@given(data=st.data())
def test_answers_equal_enumeration_and_those_of_the_engine(data: st.DataObject) -> None:
    network = data.draw(strategies.networks(max_variables=6, max_joint=1024))
    batch = data.draw(strategies.evidence_batches(network, min_rows=1, max_rows=5))
    query = Query(precision=data.draw(st.sampled_from(["double", "single", "log"])))
    answers = FewRows(network, query, OPTIONS).answer(batch, batch.rows, lambda: ROOM)
    engine = Engine(network, query, OPTIONS, expected_rows=batch.rows)
    if answers is not None:
        check_posteriors(network, batch, answers, 1e-6 if query.precision == "single" else 1e-12)
        assert_same(engine.answer(batch), answers)
        assert {route.strategy for route in engine.routes(batch)} <= {Strategy.JOINT_TABLE, Strategy.ROW_TREES}
    else:
        # Rows that others have to answer are answered all the same.
        check_posteriors(network, batch, engine.answer(batch), 1e-5 if query.precision == "single" else 1e-12)


@pytest.mark.parametrize("network", [random_network(6, seed=2), random_network(40, seed=3)], ids=["joint", "trees"])
def test_a_row_has_the_same_bytes_among_others_and_alone(network: Network) -> None:
    batch = random_batch(network, 12)
    few = FewRows(network, Query(), OPTIONS)
    together = few.answer(batch, 12, lambda: ROOM)
    assert together is not None
    for row in range(12):
        alone = few.answer(only(batch, row), 1, lambda: ROOM)
        assert alone is not None
        assert alone.log_value[0].tobytes() == together.log_value[row].tobytes()
        for v in together.targets:
            assert alone.posteriors[v][0].tobytes() == together.posteriors[v][row].tobytes()


def backend(network: Network, batch: EvidenceBatch, rows: int, query: Query | None = None, **more: object) -> Any:
    """How the rows go if they go one by one, all of them; None otherwise."""
    engine = Engine(network, query or Query(), ComputeOptions(ROOM, 1, **{"device": "cpu", **more}), None, rows)
    (route,) = engine.routes(batch)
    return route.strategy if route.group.alone else None


def test_few_rows_that_are_known_to_be_few_go_one_by_one() -> None:
    small, large = random_network(6, seed=2), random_network(40, seed=3)
    one = EvidenceBatch(1, {0: np.zeros(1, np.int32)})
    assert backend(small, one, 1) is Strategy.JOINT_TABLE
    assert backend(large, one, FEW_ROWS) is Strategy.ROW_TREES
    assert backend(large, random_batch(large, FEW_ROWS), FEW_ROWS) is Strategy.ROW_TREES
    # Of one pattern, too.
    same = EvidenceBatch(FEW_ROWS, {0: np.zeros(FEW_ROWS, np.int32)})
    assert backend(large, same, FEW_ROWS) is Strategy.ROW_TREES
    assert FewRows(large, Query(), OPTIONS).answer(same, FEW_ROWS, lambda: ROOM) is not None
    assert backend(small, same, FEW_ROWS) is Strategy.JOINT_TABLE
    # More rows are to come, nobody knows, or there is no such way.
    for rows in (0, FEW_ROWS + 1):
        assert backend(small, one, rows) is backend(large, one, rows) is None
    for query in (Query("mpe"), Query(method="auto")):
        assert backend(small, one, 1, query) is None
    # In double precision whatever was asked for.
    for precision in ("single", "log"):
        assert backend(small, one, 1, Query(precision=precision)) is Strategy.JOINT_TABLE
        assert backend(large, one, 1, Query(precision=precision)) is Strategy.ROW_TREES
    # Explanations of small networks load no compiled code.
    assert backend(large, one, 1, Query("mpe")) is Strategy.ROW_TREES


def test_few_rows_that_differ_are_answered_on_the_joint_table() -> None:
    network, rows = random_network(6, seed=2), 5000
    states = sample(network, rows, 1).astype(np.int32)
    few = EvidenceBatch(rows, {0: states[:, 0].copy(), 1: states[:, 1].copy()}, {}, {7: "bad"})
    engine = Engine(network, Query(), OPTIONS, expected_rows=10**6)
    (route,) = engine.routes(few)
    assert (route.strategy, route.group.patterns) == (Strategy.JOINT_TABLE, 1)
    assert 1 < len(route.group.rows) <= FEW_ROWS
    assert "differ" in route.reason
    answers = engine.answer(few)
    # Row by row the same bytes as in calls.
    alone = FewRows(network, Query(), OPTIONS)
    for row in (0, 1, rows - 1):
        one = alone.answer(only(few, row), 1, lambda: ROOM)
        assert one is not None
        assert one.log_value[0].tobytes() == answers.log_value[row].tobytes()
    assert np.isnan(answers.posteriors[0][7]).all()
    first = EvidenceBatch(40, {v: column[:40] for v, column in few.states.items()}, {}, {7: "bad"})
    check_posteriors(network, first, answers, 1e-12)
    # Many that differ, which the first rows do not tell, likelihoods, or other numbers.
    states[: rows - 500] = 0
    many = EvidenceBatch(rows, {v: np.ascontiguousarray(states[:, v]) for v in range(6)})
    assert len(np.unique(states[rows - 500 :], axis=0)) > FEW_ROWS
    soft = EvidenceBatch(rows, {}, {0: SoftEvidence(np.arange(rows), np.ones((rows, network.cardinalities[0])))})
    for batch, query in ((many, Query()), (soft, Query()), (few, Query("mpe"))):
        routes = Engine(network, query, OPTIONS, expected_rows=10**6).routes(batch)
        assert Strategy.JOINT_TABLE not in {each.strategy for each in routes}


def test_rows_with_large_trees_go_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    network = grid(4, 4, 3, seed=1)
    nothing, most = EvidenceBatch(2), EvidenceBatch(2, {v: np.zeros(2, np.int32) for v in range(12)})
    assert backend(network, nothing, 2) is Strategy.ROW_TREES
    engine = Engine(network, Query(), OPTIONS, expected_rows=2)
    light, heavy = (2 * engine.facts.row_engine.work(seen).operations for seen in (range(12), ()))
    assert light < heavy
    # At the limit, and one operation below it.
    for limit, expected in ((heavy, True), (heavy - 1, False)):
        monkeypatch.setattr("junctor.engine.few_rows.FEW_OPERATIONS", limit)
        assert (backend(network, nothing, 2) is Strategy.ROW_TREES) == expected
        assert (FewRows(network, Query(), OPTIONS).answer(nothing, 2, lambda: ROOM) is not None) == expected
        assert backend(network, most, 2) is Strategy.ROW_TREES


def test_memory_is_kept_to() -> None:
    network = random_network(40, seed=3)
    batch = random_batch(network, 3)
    few = FewRows(network, Query(), OPTIONS)
    assert few.answer(batch, 3, lambda: 1000) is None
    assert few.answer(batch, 3, lambda: ROOM) is not None
    # A limit of the user's counts for the joint table as well.
    small = random_network(6, seed=2)
    assert FewRows(small, Query(), on_cpu(1000)).answer(random_batch(small, 3), 3, lambda: 1000) is None


def test_memory_of_large_trees_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    network = grid(7, 7, 3, seed=1)
    few = FewRows(network, Query(), OPTIONS)
    assert few.held == 0
    assert few.answer(EvidenceBatch(1), 1, lambda: ROOM) is not None
    kept = few.held
    monkeypatch.setattr("junctor.engine.few_rows.KEPT_ENTRIES", 10)
    assert few.answer(EvidenceBatch(1), 1, lambda: ROOM) is not None
    assert few.held < kept


def test_invalid_rows_are_nobodys() -> None:
    network = random_network(6, seed=2)
    batch = EvidenceBatch(3, {0: np.zeros(3, np.int32)}, {}, {1: "bad"})
    answers = FewRows(network, Query(), OPTIONS).answer(batch, 3, lambda: ROOM)
    assert answers is not None
    check_posteriors(network, batch, answers, 1e-12)
    assert np.isnan(answers.posteriors[0][1]).all()


def test_rows_of_long_networks_never_wait_for_a_plan() -> None:
    network = chain(length=40_000, states=2, seed=1)
    batch = EvidenceBatch(70, {v: np.arange(70, dtype=np.int32) % 2 for v in range(0, 40_000, 5)})
    (route,) = Engine(network, Query(), on_cpu(1 << 32, threads=1), expected_rows=10**6).routes(batch)
    assert route.strategy is Strategy.ROW_TREES
    assert route.plan is None


def test_rows_whose_tables_no_tree_can_hold_get_a_route() -> None:
    network = grid(40, 40, seed=1)
    for rows in (1, FEW_ROWS + 1, 5000):
        batch = EvidenceBatch(rows, {0: np.zeros(rows, np.int32)})
        (route,) = Engine(network, Query(), OPTIONS, expected_rows=rows).routes(batch)
        assert route.group.by_plan
