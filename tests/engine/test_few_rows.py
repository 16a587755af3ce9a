"""Rows that are few: who answers them, and that runs and calls give the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import strategies
from helpers.engine_cases import assert_same, check_posteriors
from helpers.figures import set_figures
from helpers.options import on_cpu
from hypothesis import given
from hypothesis import strategies as st
from junctor.engine.engine import Engine
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.generate import chain, grid, random_network, sample
from junctor.model.answers import Answers
from junctor.model.network import Network
from junctor.model.query import Query
from junctor.model.strategies import Strategy
from junctor.strategies import facts as facts_module
from junctor.strategies.facts import FEW_ROWS

OPTIONS = on_cpu(1 << 28)
SMALL, LARGE = random_network(6, seed=2), random_network(40, seed=3)


def random_batch(network: Network, rows: int, seed: int = 1) -> EvidenceBatch:
    states = sample(network, rows, seed).astype(np.int32)
    states[np.random.default_rng(seed).random(states.shape) < 0.6] = UNOBSERVED
    return EvidenceBatch(rows, {v: np.ascontiguousarray(states[:, v]) for v in range(states.shape[1])})


def only(batch: EvidenceBatch, row: int) -> EvidenceBatch:
    return EvidenceBatch(1, {v: column[row : row + 1] for v, column in batch.states.items()})


@given(data=st.data())
def test_answers_equal_enumeration(data: st.DataObject) -> None:
    network = data.draw(strategies.networks(max_variables=6, max_joint=1024))
    batch = data.draw(strategies.evidence_batches(network, min_rows=1, max_rows=5))
    query = Query(precision=data.draw(st.sampled_from(["double", "single", "log"])))
    engine = Engine(network, query, OPTIONS, expected_rows=batch.rows)
    answers = engine.answer(batch)
    check_posteriors(network, batch, answers, 1e-5 if query.precision == "single" else 1e-12)
    assert {route.strategy for route in engine.routes(batch)} <= {Strategy.JOINT_TABLE, Strategy.ROW_TREES}
    # The next call gets what a new engine would give.
    assert_same(engine.answer(batch), answers)


@pytest.mark.parametrize(("network", "way"), [(SMALL, "joint-table"), (LARGE, "row-trees")])
def test_a_row_has_the_same_bytes_among_others_and_alone(network: Network, way: str) -> None:
    batch = random_batch(network, 12)
    together = Engine(network, Query(), OPTIONS, expected_rows=12).answer(batch)
    assert together.ways == {way: 12}
    for row in range(12):
        alone = Engine(network, Query(), OPTIONS, expected_rows=1).answer(only(batch, row))
        assert alone.ways == {way: 1}
        assert alone.log_value[0].tobytes() == together.log_value[row].tobytes()
        for v in together.targets:
            assert alone.posteriors[v][0].tobytes() == together.posteriors[v][row].tobytes()


def taken(network: Network, batch: EvidenceBatch, rows: int, query: Query | None = None) -> Strategy:
    """Return what answers a batch; rows: to come."""
    (route,) = Engine(network, query or Query(), OPTIONS, expected_rows=rows).routes(batch)
    return route.strategy


def test_few_rows_that_are_known_to_be_few_go_one_by_one() -> None:
    one = EvidenceBatch(1, {0: np.zeros(1, np.int32)})
    # Of one pattern, too.
    same = EvidenceBatch(FEW_ROWS, {0: np.zeros(FEW_ROWS, np.int32)})
    for batch in (one, random_batch(LARGE, FEW_ROWS), same):
        assert taken(LARGE, batch, FEW_ROWS) is Strategy.ROW_TREES
    # More rows are to come, or nobody knows.
    for rows in (0, FEW_ROWS + 1):
        assert taken(LARGE, one, rows) is Strategy.ENTRIES
    # In double precision whatever was asked for.
    for precision in ("double", "single", "log"):
        assert taken(SMALL, one, 1, Query(precision=precision)) is Strategy.JOINT_TABLE
        assert taken(LARGE, one, 1, Query(precision=precision)) is Strategy.ROW_TREES
    # Explanations of small networks load no compiled code.
    assert taken(SMALL, one, 1, Query("mpe")) is Strategy.ENTRIES
    assert taken(LARGE, one, 1, Query("mpe")) is Strategy.ROW_TREES


def test_rows_of_small_networks_are_answered_on_the_joint_table_before_compiled_code_is_loaded() -> None:
    rows = 5000
    states = sample(SMALL, rows, 1).astype(np.int32)
    few = EvidenceBatch(rows, {0: states[:, 0].copy(), 1: states[:, 1].copy()}, {}, {7: "bad"})
    engine = Engine(SMALL, Query(), OPTIONS, expected_rows=rows)
    (route,) = engine.routes(few)
    assert (route.strategy, route.group.patterns) == (Strategy.JOINT_TABLE, 0)
    assert 1 < len(route.group.rows) <= FEW_ROWS
    assert "differ" in route.reason
    answers = engine.answer(few)
    # Row by row the same bytes as in calls.
    for row in (0, 1, rows - 1):
        one = Engine(SMALL, Query(), OPTIONS, expected_rows=1).answer(only(few, row))
        assert one.log_value[0].tobytes() == answers.log_value[row].tobytes()
    assert np.isnan(answers.posteriors[0][7]).all()
    first = EvidenceBatch(40, {v: column[:40] for v, column in few.states.items()}, {}, {7: "bad"})
    check_posteriors(SMALL, first, answers, 1e-12)
    # Of many rows to come, and for explanations, which are maxima.
    every = EvidenceBatch(rows, {0: states[:, 0]}, {0: SoftEvidence(np.arange(rows), np.ones((rows, 2)))})
    for batch, query, to_come in ((every, Query(), 10**7), (few, Query("mpe"), rows)):
        routes = Engine(SMALL, query, OPTIONS, expected_rows=to_come).routes(batch)
        assert Strategy.JOINT_TABLE not in {each.strategy for each in routes}


def test_rows_with_large_trees_go_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    network = grid(4, 4, 3, seed=1)
    nothing, most = EvidenceBatch(2), EvidenceBatch(2, {v: np.zeros(2, np.int32) for v in range(12)})
    assert taken(network, nothing, 2) is Strategy.ROW_TREES
    engine = Engine(network, Query(), OPTIONS, expected_rows=2)
    light, heavy = (2 * engine.facts.row_engine.work(seen).operations for seen in (range(12), ()))
    assert light < heavy
    # At the limit, and one operation below it.
    for limit, expected in ((heavy, True), (heavy - 1, False)):
        set_figures(monkeypatch, loading={"trees": float(limit)}, trees={"operation": 1.0})
        assert (taken(network, nothing, 2) is Strategy.ROW_TREES) == expected
        assert taken(network, most, 2) is Strategy.ROW_TREES


def test_memory_is_kept_to() -> None:
    """A limit of the user's counts for the joint table as well."""
    batch = random_batch(SMALL, 3)
    table = Engine(SMALL, Query(), OPTIONS).facts.joint_table
    assert table is not None
    needed = table.nbytes + Engine(SMALL, Query(), OPTIONS, expected_rows=3).answer(batch).nbytes
    for memory, expected in ((needed, True), (needed - 1, False)):
        groups = Engine(SMALL, Query(), on_cpu(memory), expected_rows=3).choice(batch).groups
        assert ({group.strategy for group in groups} == {Strategy.JOINT_TABLE}) == expected


def test_memory_of_large_trees_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("junctor.engine.engine.KEPT_ENTRIES", 1000)
    engine = Engine(grid(7, 7, 3, seed=1), Query(), OPTIONS, expected_rows=1)
    assert engine.answer(EvidenceBatch(1)).ways == {"row-trees": 1}
    (trees,) = engine.facts.store.row_engines.values()
    assert trees.held > 1000
    engine.keep(1 << 28)
    assert trees.held == 1


def test_invalid_rows_are_nobodys() -> None:
    batch = EvidenceBatch(3, {0: np.zeros(3, np.int32)}, {}, {1: "bad"})
    answers = Engine(SMALL, Query(), OPTIONS, expected_rows=3).answer(batch)
    check_posteriors(SMALL, batch, answers, 1e-12)
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
        assert not route.group.by_trees


@pytest.fixture
def not_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """A machine that keeps compiled code and has none; how often it is asked for it, and an item to say it is there."""
    asked: list[int] = []
    monkeypatch.setenv("JUNCTOR_CACHE", "1MiB")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(facts_module, "_is_compiled", lambda: bool(asked.append(1)) or -1 in asked)
    return asked


@pytest.mark.parametrize("query", [Query(), Query("mpe"), Query(precision="log"), Query(answers="scores")])
@pytest.mark.parametrize("rows", [3, 300])
def test_numpy_answers_what_takes_it_less_than_compiling_takes(
    query: Query, rows: int, not_compiled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = random_batch(LARGE, rows)
    engine = Engine(LARGE, query, OPTIONS, expected_rows=rows)
    routes = engine.routes(batch)
    assert not_compiled
    assert {route.strategy for route in routes} == {Strategy.ENTRIES}
    assert "once on a machine" in routes[0].reason
    assert all({"its code is not compiled yet"} == {each.reason for each in route.group.rejected} for route in routes)
    found = engine.answer(batch)
    monkeypatch.setattr(facts_module, "_is_compiled", lambda: True)
    other = Engine(LARGE, query, OPTIONS, expected_rows=rows)
    assert rows > 3 or {route.strategy for route in other.routes(batch)} == {Strategy.ROW_TREES}
    assert_close(found, other.answer(batch))


def assert_close(one: Answers, other: Answers) -> None:
    np.testing.assert_array_equal(one.status, other.status)
    np.testing.assert_allclose(one.log_value, other.log_value, atol=1e-12)
    for v, posterior in (one.posteriors or {}).items():
        np.testing.assert_allclose(posterior, other.posteriors[v], atol=1e-12)


def test_many_rows_are_worth_compiling_and_nobody_asks(not_compiled: list[int]) -> None:
    routes = Engine(LARGE, Query(), OPTIONS, expected_rows=1 << 22).routes(random_batch(LARGE, 300))
    assert Strategy.ENTRIES not in {route.strategy for route in routes}
    assert not not_compiled


def test_batches_of_a_run_are_told_the_same_and_calls_what_is_there(not_compiled: list[int]) -> None:
    batch, engine = random_batch(LARGE, 3), Engine(LARGE, Query(), OPTIONS, expected_rows=3)
    assert engine.routes(batch)[0].strategy is Strategy.ENTRIES
    not_compiled.append(-1)
    assert engine.routes(batch)[0].strategy is Strategy.ENTRIES
    engine.facts.is_lasting = True
    assert engine.routes(batch)[0].strategy is Strategy.ROW_TREES
    asked = len(not_compiled)
    assert engine.routes(random_batch(LARGE, 3, seed=2))[0].strategy is Strategy.ROW_TREES
    assert len(not_compiled) == asked


def test_without_a_cache_nothing_that_is_kept_changes_who_answers(
    not_compiled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUNCTOR_CACHE", "off")
    assert taken(LARGE, random_batch(LARGE, 3), 3) is Strategy.ROW_TREES
    assert not not_compiled


def test_the_first_answers_and_fits_on_a_machine_compile_nothing(tmp_path: Path) -> None:
    code = """
import junctor
from junctor.model.pumping_station import plant
from junctor_kernels.cpu.compilation import compilation
names = [v.name for v in plant().variables]
rows = {names[3]: [plant().variables[3].states[0]] * 3, names[9]: [None, None, plant().variables[9].states[1]]}
assert junctor.posteriors(plant(), rows)["status"].to_pylist() == ["ok"] * 3
assert junctor.most_probable(plant(), rows).num_rows == 3
asia = junctor.read_network("data/asia.bif")
impossible = junctor.posteriors(asia, {"lung": ["yes"], "either": ["no"]})
assert impossible["reason"].to_pylist() == ["impossible: lung = yes with either = no"]
assert junctor.learn(asia, {"smoke": ["yes", "no"], "lung": [None, "no"]}, prior="bdeu:1").network.variables
print(compilation.functions)
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "JUNCTOR_CACHE": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == (["0"], "")
