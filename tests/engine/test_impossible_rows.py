"""Impossible rows of one pattern, which are found before the others get a plan or a tree."""

from __future__ import annotations

import numpy as np
import pytest
from junctor.backends import impossible_answers
from junctor.engine import choose
from junctor.engine.engine import Engine
from junctor.engine.forecast import forecast
from junctor.evidence.batch import EvidenceBatch
from junctor.generate import random_network, sample
from junctor.model.answers import IMPOSSIBLE, OK, Answers, Scores
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.model.strategies import Strategy

NETWORK = random_network(40, states=3, seed=4, zeros=0.3)
ROWS = 600
# To come: too much for NumPy, which would answer rows before anybody looked at them.
EXPECTED = 10**5
OBSERVED = range(0, 40, 3)


def noisy_rows(share: float, rows: int = ROWS) -> EvidenceBatch:
    """Rows of one pattern, with wrong states in a share of the rows."""
    rng = np.random.default_rng(1)
    states = sample(NETWORK, rows, 2).astype(np.int32)
    wrong = rng.integers(0, 3, states.shape)
    states = np.where(rng.random((rows, 1)) < share, wrong, states)
    return EvidenceBatch(rows, {v: np.ascontiguousarray(states[:, v], dtype=np.int32) for v in OBSERVED})


def answer(batch: EvidenceBatch, query: Query, threads: int, least: float, patch: pytest.MonkeyPatch) -> Answers:
    with patch.context() as context:
        context.setattr(choose, "LEAST_DECIDED", least)
        # One task for a row.
        context.setattr(impossible_answers, "TASK_BYTES", 1)
        return Engine(NETWORK, query, ComputeOptions(threads=threads, device="cpu"), expected_rows=EXPECTED).answer(
            batch
        )


@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize(("share", "threads"), [(0.5, 1), (1.0, 3)])
def test_answers_do_not_depend_on_what_is_decided_first(
    share: float, threads: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = noisy_rows(share)
    query = Query(precision=precision)  # type: ignore[arg-type]
    first = answer(batch, query, threads, 0, monkeypatch)
    later = answer(batch, query, threads, np.inf, monkeypatch)
    impossible = int((later.status == IMPOSSIBLE).sum())
    assert impossible > 0.3 * share * ROWS
    assert first.ways["impossible"] == impossible
    assert not later.ways["impossible"]
    assert first.ways.total() == ROWS
    assert first.status.tobytes() == later.status.tobytes()
    assert first.reasons == later.reasons
    possible = first.status == OK
    tolerance = 1e-12 if precision == "double" else 1e-5
    np.testing.assert_allclose(first.log_value, later.log_value, rtol=tolerance)
    for v, table in first.posteriors.items():
        np.testing.assert_allclose(table[possible], later.posteriors[v][possible], rtol=tolerance, atol=tolerance)
        assert np.isnan(table[~possible]).all()
        assert np.isnan(later.posteriors[v][~possible]).all()


def test_scores_do_not_depend_on_what_is_decided_first(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = noisy_rows(0.5)
    query = Query(answers="scores", top=2, probabilities=(f"x_1={NETWORK.variables[1].states[0]}",))
    first = answer(batch, query, 2, 0, monkeypatch)
    later = answer(batch, query, 2, np.inf, monkeypatch)
    assert isinstance(first, Scores)
    assert isinstance(later, Scores)
    assert first.ways["impossible"] == (first.status == IMPOSSIBLE).sum() > 0
    assert first.status.tobytes() == later.status.tobytes()
    assert first.reasons == later.reasons
    assert first.best.tobytes() == later.best.tobytes()
    for mine, other in (
        (first.probabilities, later.probabilities),
        (first.entropies, later.entropies),
        (first.chosen, later.chosen),
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-12, atol=1e-12)


def test_memory_of_earlier_answers_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(NETWORK, Query(), ComputeOptions(threads=2, device="cpu"), expected_rows=EXPECTED)
    # Of the rows alone, and one by one: by trees.
    for least in (0, np.inf):
        monkeypatch.setattr(choose, "LEAST_DECIDED", least)
        engine.answer(noisy_rows(0.0))
        answers = engine.answer(noisy_rows(1.0))
        for table in answers.posteriors.values():
            assert np.isnan(table[answers.status == IMPOSSIBLE]).all()


def test_routes_say_so() -> None:
    engine = Engine(NETWORK, Query(), ComputeOptions(device="cpu"), expected_rows=EXPECTED)
    batch = noisy_rows(0.5)
    impossible = np.flatnonzero(engine.answer(batch).status == IMPOSSIBLE)
    routes = forecast(engine, batch)
    (found,) = (route for route in routes if route.strategy is Strategy.IMPOSSIBLE)
    np.testing.assert_array_equal(found.group.rows, impossible)
    assert found.seconds < 1e-3
    assert "zeros of the network" in found.reason
    assert sorted(row for route in routes for row in route.group.rows.tolist()) == list(range(ROWS))


def test_all_rows_may_be_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = noisy_rows(1.0)
    impossible = answer(batch, Query(), 1, 0, monkeypatch).status == IMPOSSIBLE
    states = {v: column[impossible] for v, column in batch.states.items()}
    rows = int(impossible.sum())
    for query in (Query(), Query(answers="scores")):
        answers = answer(EvidenceBatch(rows, states), query, 2, 0, monkeypatch)
        assert (answers.status == IMPOSSIBLE).all()
        assert answers.ways == {"impossible": rows}
        assert len(answers.reasons) == rows


@pytest.mark.parametrize("rows", [200, ROWS])
def test_few_rows_and_possible_ones_are_not_looked_at(rows: int) -> None:
    batch = noisy_rows(1.0 if rows < choose.LEAST_DECIDED else 0.0, rows)
    answers = Engine(NETWORK, Query(), ComputeOptions(device="cpu"), expected_rows=EXPECTED).answer(batch)
    # Light ones go before anybody would look.
    assert answers.ways.keys() <= {"row-trees", "cpu-blocks"}
