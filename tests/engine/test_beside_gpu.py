"""Rows that are not worth a GPU that is there: they go as on a machine without one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import junctor
import numpy as np
import pyarrow as pa
import pytest
from helpers.forced import forcing
from junctor import api
from junctor.engine import choose as choosing
from junctor.engine import engine as engine_module
from junctor.engine.choose import choose
from junctor.engine.engine import Engine
from junctor.engine.forecast import forecast
from junctor.engine.plan_groups import PatternChoice
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.evidence.patterns import MOST_PATTERNS
from junctor.generate import random_network, sample
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.model.strategies import Strategy
from junctor.strategies import facts as planner
from junctor.strategies.circuit import CircuitRows
from junctor.strategies.cpu_blocks import BlocksRows
from junctor.strategies.facts import Facts
from junctor.strategies.gpu_blocks import GpuRows
from junctor.strategies.row_trees import RowTrees

ROWS, COLUMNS = 3000, 12
# Of all rows to come: work for trees, and too little for compiled plans.
EXPECTED = 10 * ROWS
AUTO, CPU = (ComputeOptions(memory=1 << 32, threads=2, device=device) for device in ("auto", "cpu"))


@pytest.fixture(scope="module")
def network() -> Network:
    return random_network(40, (2, 3), 3, 8, seed=1, zeros=0.3)


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that nobody may open."""

    def open_gpu(memory: int | None) -> None:
        raise AssertionError("opened for rows that are not worth it")

    for module in (planner, api):
        monkeypatch.setattr(module, "has_gpu", lambda: True)
    monkeypatch.setattr(planner, "gpu_at_hand", lambda: ("NVIDIA H100 80GB HBM3", {"memory": float(1 << 36)}))
    monkeypatch.setattr(engine_module, "open_gpu", open_gpu)


def states_of(network: Network, gaps: float) -> np.ndarray:
    states = sample(network, ROWS, seed=1)[:, :COLUMNS].astype(np.int32)
    return np.where(np.random.default_rng(2).random(states.shape) < gaps, UNOBSERVED, states)


def batch_of(network: Network, gaps: float) -> EvidenceBatch:
    return EvidenceBatch(ROWS, dict(enumerate(np.ascontiguousarray(states_of(network, gaps).T))))


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize("gaps", [0.0, 0.05])
@pytest.mark.parametrize("query", [Query(), Query(precision="single", answers="scores"), Query("mpe")])
def test_the_same_ways_and_bytes_as_without_a_gpu(network: Network, query: Query, gaps: float) -> None:
    batch = batch_of(network, gaps)
    beside, without = (Engine(network, query, options, expected_rows=EXPECTED) for options in (AUTO, CPU))
    assert beside.facts.takes_gpu
    assert not beside.choice(batch).facts.takes_gpu
    assert not beside.uses_gpu(batch)
    found, expected = beside.answer(batch), without.answer(batch)
    assert found.ways == expected.ways
    assert np.array_equal(found.log_value, expected.log_value)
    assert [(r.strategy, r.reason) for r in beside.routes(batch)] == [
        (r.strategy, r.reason) for r in without.routes(batch)
    ]
    assert [r.seconds for r in forecast(beside, batch)] == [r.seconds for r in forecast(without, batch)]


@pytest.mark.usefixtures("a_gpu")
def test_more_rows_to_come_are_worth_it(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(network, 0.05)
    engine = Engine(network, Query(), AUTO, expected_rows=EXPECTED)
    assert not engine.choice(batch).facts.takes_gpu
    engine.facts.expected_rows = 10**9
    assert engine.uses_gpu(batch)
    assert [route.circuit_on_gpu for route in engine.routes(batch)] == [True]
    # Without a circuit by blocks of a plan.
    monkeypatch.setattr(CircuitRows, "refuses", lambda *_: "there is none")
    assert engine.uses_gpu(batch)
    assert {route.strategy for route in engine.routes(batch)} == {Strategy.GPU_BLOCKS}
    # The cores alone are told.
    monkeypatch.setattr(GpuRows, "offer", lambda *_: "too dear")
    choice = engine.choice(batch)
    assert not choice.facts.takes_gpu
    assert choice.facts.expected_rows == 10**9


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize("gaps", [0.0, 0.05])
@pytest.mark.parametrize("query", [Query(), Query(precision="log"), Query("mpe")])
def test_what_the_cores_answer_before_a_plan_is_made_is_left_to_them(
    network: Network, query: Query, gaps: float
) -> None:
    batch = batch_of(network, gaps)
    few, many = (Engine(network, query, AUTO, expected_rows=rows) for rows in (ROWS, 10**9))
    assert not few.uses_gpu(batch)
    assert many.uses_gpu(batch)
    # Whoever asks for one gets it.
    asked = Engine(network, query, replace(AUTO, device="gpu"), expected_rows=ROWS)
    assert asked.uses_gpu(batch)


@pytest.mark.usefixtures("a_gpu")
def test_rows_that_only_trees_answer_need_no_gpu(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, asked = batch_of(network, 0.05), replace(AUTO, device="gpu")
    facts = Facts(network, Query(), AUTO, expected_rows=10**9)
    groups = choose(batch, Facts(network, Query(), asked, expected_rows=10**9)).groups
    monkeypatch.setattr(PatternChoice, "groups", lambda _: groups)
    assert choose(batch, facts).facts.takes_gpu
    # Where the cores have none, a plan is all there is, however large.
    monkeypatch.setattr(RowTrees, "offer", lambda *_: "its tables are too large")
    monkeypatch.setattr(BlocksRows, "offer", lambda *_: "its tables are too large")
    facts.expected_rows = ROWS
    assert choose(batch, facts).facts.takes_gpu
    monkeypatch.setattr(
        PatternChoice, "groups", lambda _: [replace(each, strategy=Strategy.ROW_TREES) for each in groups]
    )
    assert not choose(batch, facts).facts.takes_gpu


@pytest.mark.usefixtures("a_gpu")
def test_no_plan_is_searched_for_rows_with_trees(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*_: Any) -> None:
        raise AssertionError("planned")

    monkeypatch.setattr(Facts, "plan", plan)
    # Trees that take next to nothing.
    monkeypatch.setattr(choosing, "row_tree_seconds", lambda *_: 1e-12)
    # No two rows observe the same.
    rows = 16 * MOST_PATTERNS
    states = sample(network, rows, seed=1).astype(np.int32)
    states[np.random.default_rng(2).random(states.shape) < 0.5] = UNOBSERVED
    batch = EvidenceBatch(rows, dict(enumerate(np.ascontiguousarray(states.T))))
    (group,) = Engine(network, Query("mpe"), AUTO, expected_rows=10**9).choice(batch).groups
    assert group.by_trees


@pytest.mark.usefixtures("a_gpu")
def test_what_is_kept_is_in_one_place(network: Network) -> None:
    batch = EvidenceBatch(2, {0: np.zeros(2, np.int32)})
    engine = Engine(network, Query(), AUTO, expected_rows=100)
    with forcing(Strategy.ENTRIES):
        engine.answer(batch)
        assert len(engine.programs) == 1
        engine.keep(0)
        assert engine.programs == ()
        assert np.isfinite(engine.answer(batch).log_value).all()


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize("how", [{}, {"answers": "scores"}, {"threads": 1}])
def test_tables_of_several_pieces(network: Network, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("junctor.runs.results.PARTITION_ROWS", 700)
    states = states_of(network, 0.05)
    columns = {}
    for v in range(COLUMNS):
        names = [*network.variables[v].states, None]
        columns[network.variables[v].name] = [names[state] for state in states[:, v]]
    table = pa.table(columns)
    beside = junctor.posteriors(network, table, **how)
    assert beside.equals(junctor.posteriors(network, table, device="cpu", **how))
