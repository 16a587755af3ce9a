"""Log space in the engine, over entries and in blocks: against enumeration and against NumPy, one case and many."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import strategies
from helpers.engine_cases import check_posteriors
from helpers.options import on_cpu
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends.numpy import EvidenceBlock, Program
from junctor.engine.choose import by_plan
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch
from junctor.evidence.patterns import PatternGroup
from junctor.generate import grid, layered, sample
from junctor.model.answers import IMPOSSIBLE, OK, Answers
from junctor.model.errors import Place
from junctor.model.network import DraftTable, DraftVariable, Network, build_network
from junctor.model.query import Query
from junctor.model.strategies import Strategy
from junctor.planning.compile import compile_plan
from junctor.planning.shape import Pattern, shape_of
from junctor.strategies import entries as entries_rows
from junctor.strategies.facts import Facts
from junctor_kernels.cpu import entries
from junctor_kernels.tables.reference import DOUBLE, LOG, SINGLE, Algebra

LOG_QUERY = Query(precision="log")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are worth compiled code, in panels that are not too large for small networks."""
    settings = {"PREPARED": 0, "PANEL": 64, "LEAST_PANEL": 32, "LEAST_KEPT": 64, "THREADED": 1}
    for name, value in settings.items():
        monkeypatch.setattr(entries, name, value)
    monkeypatch.setattr(entries_rows, "_compiled_seconds", lambda *_: -1.0)
    entries.forget()


def over_entries(network: Network, batch: EvidenceBatch, threads: int = 1, allowed: int | None = None) -> Answers:
    engine = Engine(network, LOG_QUERY, on_cpu(allowed, threads, strategy=Strategy.ENTRIES))
    answers = engine.answer(batch)
    assert answers.ways.keys() <= {"entries"}
    assert all(each.sizes.entry_threads > 0 for each in engine.programs)
    return answers


@pytest.mark.usefixtures("small")
@given(data=st.data())
def test_log_space_equals_enumeration(data: st.DataObject) -> None:
    network = data.draw(strategies.networks(max_variables=6, max_joint=512))
    batch = data.draw(strategies.evidence_batches(network, max_rows=12))
    check_posteriors(network, batch, over_entries(network, batch), 1e-12)


@given(data=st.data())
def test_blocks_in_log_space_equal_enumeration(data: st.DataObject) -> None:
    network = data.draw(strategies.networks(max_variables=6, max_joint=512))
    batch = data.draw(strategies.evidence_batches(network, max_rows=12))
    engine = Engine(network, LOG_QUERY, on_cpu(strategy=Strategy.CPU_BLOCKS))
    answers = engine.answer(batch)
    assert all(each.sizes.lanes > 0 for each in engine.programs)
    assert answers.ways.keys() <= {"cpu-blocks"}
    check_posteriors(network, batch, answers, 1e-12)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize("threads", [1, 2])
def test_log_space_equals_numpy_with_zeros(rows: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network = layered(layers=5, width=5, states=(2, 4), parents=2, seed=5, zeros=0.4)
    states = sample(network, rows, seed=3)
    batch = EvidenceBatch(rows, {v: np.ascontiguousarray(states[:, v]) for v in range(0, states.shape[1], 3)})
    found = over_entries(network, batch, threads=threads)
    monkeypatch.setattr(entries_rows, "_compiled_seconds", lambda *_: np.inf)
    expected = Engine(network, LOG_QUERY, on_cpu(strategy=Strategy.ENTRIES)).answer(batch)
    np.testing.assert_allclose(found.log_value, expected.log_value, rtol=1e-13)
    for variable, posterior in expected.posteriors.items():
        np.testing.assert_allclose(found.posteriors[variable], posterior, rtol=0, atol=1e-13)
        assert ((found.posteriors[variable] == 0) == (posterior == 0)).all()


@pytest.mark.usefixtures("small")
def test_only_the_impossible_is_impossible() -> None:
    """A chain of copies: a contradiction of its ends is impossible, and what is far below any double is not."""
    length, least = 40, 1e-300
    variables = [DraftVariable(f"v{i}", ("0", "1"), Place()) for i in range(length)]
    tables = [DraftTable((f"v{i}", f"v{i + 1}"), np.eye(2), Place()) for i in range(length - 1)]
    tables += [DraftTable((f"v{i}",), [least, 1.0], Place()) for i in range(length)]
    network = build_network("copies", "markov", variables, tables)
    first, last = np.array([0, 1, 0], np.int32), np.array([0, 0, -1], np.int32)
    answers = over_entries(network, EvidenceBatch(3, {0: first, length - 1: last}))
    assert answers.status.tolist() == [OK, IMPOSSIBLE, OK]
    np.testing.assert_allclose(answers.log_value[[0, 2]], length * np.log(least), rtol=1e-13)
    np.testing.assert_array_equal(answers.posteriors[length // 2][[0, 2]], [[1, 0], [1, 0]])


@pytest.mark.parametrize(("algebra", "tolerance"), [(SINGLE, 1e-6), (DOUBLE, 1e-13), (LOG, 1e-13)])
def test_a_grid_with_large_tables_equals_numpy(algebra: Algebra, tolerance: float) -> None:
    network = grid(11, 11, seed=2)
    soft = frozenset(range(len(network.variables)))
    plan = compile_plan(shape_of(network), Pattern(frozenset([3]), soft - {3}), None, False, rows=1)
    likelihoods = {v: np.random.default_rng(v).random((2, 1)) for v in soft - {3}}
    block = EvidenceBlock(1, {3: np.array([1], np.int32)}, likelihoods)
    expected = Program(plan, network, algebra).run(block)
    for threads in (1, 2):
        found = Program(plan, network, algebra, threads).run(block)
        np.testing.assert_allclose(found.log_value, expected.log_value, rtol=tolerance / 10)
        for variable, posterior in expected.posteriors.items():
            np.testing.assert_allclose(found.posteriors[variable], posterior, rtol=0, atol=tolerance)


def test_a_single_row_of_large_tables_goes_over_entries_in_double_too() -> None:
    network = grid(14, 14, seed=2)
    batch = EvidenceBatch(1, {0: np.array([1], np.int32)})
    group = PatternGroup(Pattern(frozenset([0]), frozenset()), np.arange(1))
    for rows, strategy in ((1, Strategy.ENTRIES), (5000, Strategy.CPU_BLOCKS)):
        facts = Facts(network, Query(), on_cpu(1 << 30), expected_rows=rows)
        assert by_plan(group, batch, facts).strategy is strategy
    for larger, compiled in ((network, False), (grid(10, 10, 4, seed=2), True)):
        options = on_cpu(1 << 34, strategy=Strategy.ENTRIES)
        (route,) = Engine(larger, Query(), options, expected_rows=1).routes(batch)
        assert route.runs_compiled == compiled


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("allowed", [pytest.param(1 << 26, marks=pytest.mark.slow), 1 << 30])
def test_threads_change_no_number_of_an_answer(allowed: int) -> None:
    network = grid(6, 6, states=3, seed=4)
    rows = 300
    batch = EvidenceBatch(rows, {v: np.random.default_rng(v).integers(-1, 3, rows, np.int32) for v in (0, 7, 20)})
    found = []
    for threads in (1, 2, 7):
        found.append(over_entries(network, batch, threads, allowed))
    for answers in found[1:]:
        np.testing.assert_array_equal(answers.log_value, found[0].log_value)
        for variable, posterior in found[0].posteriors.items():
            np.testing.assert_array_equal(answers.posteriors[variable], posterior)
