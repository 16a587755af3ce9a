"""Memory: what is measured stays at or below what was planned, and a budget holds to the byte."""

from __future__ import annotations

import re
import tracemalloc

import numpy as np
import pytest
from helpers import oracle, strategies
from helpers.options import on_cpu
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends import numpy as plain
from junctor.backends import plan_memory as memory
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch
from junctor.generate import grid, layered, sample
from junctor.model.answers import Answers
from junctor.model.errors import BudgetError, Place
from junctor.model.network import DraftTable, DraftVariable, Network, build_network
from junctor.model.query import Query
from junctor.model.strategies import Strategy
from junctor.strategies import entries as entries_rows
from junctor.strategies.chunk_cuts import ChunkCuts
from junctor.strategies.facts import Facts
from junctor.strategies.strategy import Route
from junctor_kernels.cpu import entries


def observed(network: Network, rows: int, every: int) -> EvidenceBatch:
    states = sample(network, rows, seed=3)
    return EvidenceBatch(rows, {v: np.ascontiguousarray(states[:, v]) for v in range(0, states.shape[1], every)})


def measured(engine: Engine, batch: EvidenceBatch) -> tuple[Answers, int]:
    """The answers, all of which have to be ok, and the most bytes that were allocated on the way."""
    tracemalloc.start()
    answers = engine.answer(batch)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (answers.status == 0).all()
    return answers, peak


def least(network: Network, query: Query, batch: EvidenceBatch) -> int:
    """The smallest budget that the engine accepts, from its own words."""
    engine = Engine(network, query, on_cpu(1 << 40))
    answers = engine.answer(batch)
    formats = 1 if query.kind == "mpe" or query.precision == "log" else 2 + (query.precision == "single")
    needs = [
        memory.PlanMemory(engine.facts.plan(group.pattern), formats).least for group in engine.choice(batch).groups
    ]
    return max(needs, default=0) + answers.nbytes


@pytest.fixture
def no_joint_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Facts, "has_joint_table", False)


@pytest.mark.usefixtures("no_joint_table")
@given(data=st.data(), kind=st.sampled_from(["posteriors", "mpe"]))
def test_budget_holds_to_the_byte(data: st.DataObject, kind: str) -> None:
    network = data.draw(strategies.networks(max_variables=5, max_joint=128))
    batch = data.draw(strategies.evidence_batches(network, max_rows=5, min_rows=1, soft=False, invalid=False))
    # One pattern only: sharing looks at the budget too.
    first = EvidenceBatch(1, {v: column[:1] for v, column in batch.states.items()})
    query = Query(kind=kind)
    enough = least(network, query, first)
    expected = Engine(network, query).answer(first)
    answers = Engine(network, query, on_cpu(enough)).answer(first)
    assert answers.status.tolist() == expected.status.tolist()
    np.testing.assert_allclose(answers.log_value, expected.log_value, rtol=1e-12)
    tight = Engine(network, query, on_cpu(enough - 1))
    # In chunks from there on.
    whole = Engine(network, query, on_cpu(enough))
    for group in tight.choice(first).groups:
        assert ChunkCuts(tight.facts).in_chunks(group.pattern, 1, enough - 1 - answers.nbytes)
        assert not ChunkCuts(whole.facts).in_chunks(group.pattern, 1, enough - answers.nbytes)
    try:
        chunked = tight.answer(first)
    except BudgetError as error:
        # Records of a program in chunks take more than the plan of a tiny network.
        assert "in chunks" in str(error)  # noqa: PT017
        return
    assert chunked.status.tolist() == expected.status.tolist()
    np.testing.assert_allclose(chunked.log_value, expected.log_value, rtol=1e-12)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "query",
    [
        *(Query(), Query(precision="log"), Query(kind="mpe")),
        pytest.param(Query(precision="single"), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("spare", [0, *(pytest.param(1 << bits, marks=pytest.mark.slow) for bits in (16, 22)), 1 << 30])
@pytest.mark.parametrize("climbing", [pytest.param(False, marks=pytest.mark.slow), True])
def test_measured_peak_is_at_most_the_planned_one(
    query: Query, spare: int, compiled: bool, climbing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if climbing:
        monkeypatch.setattr(plain, "LOSS_TOLERANCE", {"double": -1.0, "single": -1.0})
    strategy = Strategy.CPU_BLOCKS if compiled and spare >= 1 << 22 else Strategy.ENTRIES
    if compiled:
        monkeypatch.setattr(entries_rows, "_compiled_seconds", lambda *_: 0.0)
        monkeypatch.setattr(entries, "PREPARED", 0)
    network = layered(layers=5, width=6, states=3, parents=2, seed=5)
    # With no memory to spare, rows are answered one by one.
    batch = observed(network, 80 if spare else 20, every=4)
    allowed = least(network, query, batch) + spare
    options = on_cpu(allowed, 3 if compiled else 1, strategy=strategy)
    # What Numba and Python load on the way is no part of a plan.
    Engine(network, query, options).answer(batch)
    for _ in range(3):
        engine = Engine(network, query, options)
        answers, peak = measured(engine, batch)
        prepared = next(iter(engine.programs))
        projected = max(prepared.sizes.projected(itemsize) for itemsize in (4, 8)) + answers.nbytes
        # Threads that other tests left in this process allocate, too.
        if peak <= projected:
            break
    assert (prepared.sizes.lanes > 0) == (strategy is Strategy.CPU_BLOCKS)
    if climbing and query.kind != "mpe" and prepared.sizes.lowered > 1:
        assert len(prepared._compiled) == prepared.sizes.lowered == len(prepared.ladder)
    assert (prepared.sizes.entry_threads > 0) == (compiled and spare >= 1 << 30 and query.kind != "mpe")
    assert projected <= allowed
    assert peak <= projected


@pytest.mark.parametrize("query", [Query(), Query(precision="single"), Query(kind="mpe")])
@pytest.mark.parametrize("size", [3, 7])
def test_blocks_say_what_they_need(query: Query, size: int) -> None:
    network = grid(size, size, 3, seed=1)
    batch = EvidenceBatch(1, {0: np.zeros(1, np.int32)})

    def routed(memory: int) -> Route:
        (route,) = Engine(network, query, on_cpu(memory, strategy=Strategy.CPU_BLOCKS)).routes(batch)
        return route

    refused = routed(least(network, query, batch)).refused
    found = re.search(r"needs .*\((.*) bytes\), allowed", str(refused))
    assert found is not None
    needed = int(found[1].replace(",", ""))
    assert routed(needed - 1).refused is not None
    assert routed(needed).refused is None


def test_answers_to_different_rows_stay_within_the_budget() -> None:
    network = layered(layers=5, width=6, states=3, parents=2, seed=5)
    few = observed(network, 100, every=4)
    again = np.random.default_rng(1).integers(0, 100, 2000)
    batch = EvidenceBatch(2000, {v: column[again] for v, column in few.states.items()})
    engine = Engine(network, Query(), on_cpu(least(network, Query(), batch) + (1 << 22)))
    (route,) = engine.routes(batch)
    assert len(route.group.rows) <= 100
    _, peak = measured(engine, batch)
    (prepared,) = engine.programs
    assert prepared.sizes.rows == len(route.group.rows)
    assert peak <= engine.allowed


def test_grid_in_little_memory_gives_the_same_answers() -> None:
    network = grid(4, 4, states=2, seed=1)
    batch = EvidenceBatch(3, {0: np.array([0, 1, -1], np.int32)})
    tight = Engine(network, Query(), on_cpu(least(network, Query(), batch))).answer(batch)
    for row, hard in enumerate(({0: 0}, {0: 1}, {})):
        log_evidence, expected = oracle.enumerate_posteriors(network, hard, {})
        assert tight.log_value[row] == pytest.approx(log_evidence, rel=1e-12)
        for variable, posterior in expected.items():
            np.testing.assert_allclose(tight.posteriors[variable][row], posterior, atol=1e-12)


def test_plan_that_cannot_fit_says_what_is_needed_and_what_to_do() -> None:
    network, batch = grid(12, 12, states=4, seed=1), EvidenceBatch(1, {})
    message = r"slice by slice is forecast to take .* s, allowed are 20 s .*--time-limit.*--disk.*--memory.*evidence"
    with pytest.raises(BudgetError, match=message):
        Engine(network, Query(), on_cpu(1 << 26, spill_bytes=1 << 20, time_limit=20.0)).answer(batch)
    for query in (Query("mpe"), Query()):
        with pytest.raises(BudgetError, match=r"records and factors take .*; allow more memory \(--memory\)"):
            Engine(network, query, on_cpu(1 << 19, spill_bytes=1 << 20)).answer(batch)
    with pytest.raises(BudgetError, match=r"takes years \(.*fewer targets"):
        Engine(grid(20, 20, states=16), Query(), on_cpu(1 << 26)).answer(EvidenceBatch(1, {}))


@pytest.mark.parametrize("query", [Query(), Query(precision="single"), Query(precision="log"), Query(kind="mpe")])
@pytest.mark.parametrize("observed_parents", [0, 7, 14])
def test_a_large_factor_that_evidence_cuts_is_in_the_plan(query: Query, observed_parents: int) -> None:
    parents = 14
    names = [f"p{i}" for i in range(parents)]
    rng = np.random.default_rng(0)
    table = rng.random((1 << parents, 2))
    network = build_network(
        "funnel",
        "bayes",
        [DraftVariable(name, ("0", "1"), Place()) for name in (*names, "child")],
        [
            *(DraftTable((name,), [0.5, 0.5], Place()) for name in names),
            DraftTable((*names, "child"), table / table.sum(axis=1, keepdims=True), Place()),
        ],
    )
    batch = EvidenceBatch(1, {v: np.zeros(1, np.int32) for v in range(observed_parents)})
    engine = Engine(network, query, on_cpu(1 << 30))
    answers, peak = measured(engine, batch)
    prepared = next(iter(engine.programs))
    assert peak <= prepared.sizes.projected(8) + answers.nbytes
