"""Which rows circuits answer: those whose trees take long or do not fit, of networks with zeros."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import pytest
from circuit_networks import gates
from helpers.gpu_blocks import ON, few_threads, opened  # noqa: F401
from junctor.circuits import kept, parts
from junctor.engine import choose, circuit_choice
from junctor.engine.engine import Engine
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.generate import random_network, sample
from junctor.model.answers import OK
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Precision, Query
from junctor.model.strategies import Strategy
from junctor.strategies import circuit
from junctor_kernels.gpu.blocks import BlockDevice


def rows_of(network: Network, rows: int, share: float = 0.1) -> EvidenceBatch:
    states = sample(network, rows, seed=1)
    states[np.random.default_rng(1).random(states.shape) > share] = UNOBSERVED
    return EvidenceBatch(rows, {v: np.ascontiguousarray(states[:, v]) for v in range(len(network.variables))})


def options(memory: int, strategy: Strategy | None = None) -> ComputeOptions:
    return ComputeOptions(memory, 1, "cpu", strategy=strategy)


@pytest.fixture(scope="module")
def network() -> Network:
    return gates(10)


def test_rows_whose_trees_do_not_fit_go_to_a_circuit(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = rows_of(network, 5)
    monkeypatch.setattr(circuit_choice, "_seconds", lambda work, facts: np.inf)
    found = Engine(network, Query(), options(1 << 30)).answer(batch)
    assert found.ways == {"circuit": 5}
    expected = Engine(network, Query(), options(1 << 30, Strategy.ROW_TREES)).answer(batch)
    assert (found.status == OK).all()
    np.testing.assert_allclose(found.log_value, expected.log_value, rtol=1e-12)
    for v in expected.targets:
        np.testing.assert_allclose(found.posteriors[v], expected.posteriors[v], rtol=0, atol=1e-12)


def test_each_row_has_a_circuit_where_there_is_none_for_all(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = rows_of(network, 4, share=0.6)
    monkeypatch.setattr(circuit_choice, "_seconds", lambda work, facts: np.inf)
    searched, search = [], circuit._searched

    def few_only(fixed: dict[int, int], *what: object) -> object:
        searched.append(len(fixed))
        return search(fixed, *what) if len(fixed) > 20 else "no circuit"  # type: ignore[arg-type]

    monkeypatch.setattr(circuit, "_searched", few_only)
    found = Engine(network, Query(), options(1 << 30)).answer(batch)
    assert found.ways == {"circuit": 4}
    assert sum(fixed > 20 for fixed in searched) == 4
    expected = Engine(network, Query(), options(1 << 30, Strategy.ROW_TREES)).answer(batch)
    np.testing.assert_allclose(found.log_value, expected.log_value, rtol=1e-12)


def test_rows_without_any_circuit_get_a_plan(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = rows_of(network, 2)
    monkeypatch.setattr(circuit_choice, "_seconds", lambda work, facts: np.inf)
    monkeypatch.setattr(circuit, "_searched", lambda *what: "no circuit")
    found = Engine(network, Query(), options(1 << 30)).answer(batch)
    expected = Engine(network, Query(), options(1 << 30, Strategy.ROW_TREES)).answer(batch)
    np.testing.assert_allclose(found.log_value, expected.log_value, rtol=1e-12)


@pytest.mark.parametrize("dense", [False, True])
def test_nobody_searches_where_trees_take_little(
    network: Network, dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables without zeros, or trees that are done in less time than a search."""

    def fail(*what: object) -> None:
        raise AssertionError("a search for a circuit")

    monkeypatch.setattr(circuit, "_searched", fail)
    if dense:
        monkeypatch.setattr(circuit_choice, "_seconds", lambda work, facts: 1e6)
    batch = rows_of(random_network(12, seed=1) if dense else network, 200)
    found = Engine(random_network(12, seed=1) if dense else network, Query(), options(1 << 30)).answer(batch)
    assert "circuit" not in found.ways


def test_a_slower_circuit_is_left_to_trees(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_choice, "_seconds", lambda work, facts: 1.0)
    batch = rows_of(network, 8)
    assert Engine(network, Query(), options(1 << 30)).answer(batch).ways == {"circuit": 8}
    monkeypatch.setattr(circuit_choice, "row_seconds", lambda program, facts: 0.9)
    assert "circuit" not in Engine(network, Query(), options(1 << 30)).answer(batch).ways


def test_few_rows_of_which_zeros_leave_little_wait_for_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = gates(24)
    states = np.zeros((3, 24 * 24), dtype=np.int32)
    # Patterns of their own, whose trees would be 24 variables wide; gates that are off leave nothing of them.
    states[np.arange(24 * 24)[None, :] % 24 > np.array([[0], [1], [2]])] = UNOBSERVED
    batch = EvidenceBatch(3, {v: np.ascontiguousarray(states[:, v]) for v in range(24 * 24)})
    monkeypatch.setattr(choose, "by_plan", None)
    engine = Engine(wide, Query(), options(1 << 30), expected_rows=3)
    assert {route.strategy for route in engine.routes(batch)} == {Strategy.ROW_TREES}
    assert (engine.answer(batch).status == OK).all()


def test_few_rows_whose_trees_fit_do_not_wait_for_those_that_do_not() -> None:
    fit = np.array([True, True, False, True])
    assert circuit_choice._quick(np.array([0.1, 0.2, 0.1, 5.0]), fit).tolist() == [True, True, False, False]
    # More than a few seconds are for plans.
    assert not circuit_choice._quick(np.full(20, 0.6), np.arange(20) > 0).any()
    everyone = np.ones(4, dtype=bool)
    assert circuit_choice._quick(np.full(4, 0.2), everyone).all()
    assert not circuit_choice._quick(np.full(4, 0.3), everyone).any()


def test_a_row_whose_tree_does_not_fit_gets_a_circuit_and_others_their_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = gates(24)
    states = np.zeros((3, 24 * 24), dtype=np.int32)
    states[np.arange(24 * 24)[None, :] % 24 > np.array([[0], [1], [2]])] = UNOBSERVED
    states[2] = UNOBSERVED
    states[2, ::25] = 0
    batch = EvidenceBatch(3, {v: np.ascontiguousarray(states[:, v]) for v in range(24 * 24)})
    monkeypatch.setattr(circuit_choice, "_fit", lambda works, batch, facts: np.array([True, True, False]))
    engine = Engine(wide, Query(), options(1 << 30), expected_rows=3)
    found = engine.answer(batch)
    assert found.ways == {"row-trees": 2, "circuit": 1}
    assert (found.status == OK).all()


def test_more_decisions_are_allowed_to_longer_trees() -> None:
    found = [circuit_choice._decisions(seconds, 1e-4) for seconds in (0.1, 0.4, 1.0, 2.0, 20.0, 1e9, np.inf)]
    assert found == [0, 1000, 1000, 4000, 16000, 400_000, 400_000]


@pytest.mark.parametrize("rows", [1, 3])
def test_parts_of_the_targets_have_circuits_where_there_is_none_for_all(
    network: Network, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A circuit of many variables is not found; those of a few and of the evidence are."""
    batch = rows_of(network, rows, share=0.3)
    for states in batch.states.values():
        states[:] = states[0]
    batch.states[99][:] = [0, 1, UNOBSERVED][:rows]
    searched, search = [], kept.kept_circuit

    def few_only(network: Network, fixed: dict[int, int], needed: set[int], *what: object) -> object:
        searched.append(len(needed))
        return search(network, fixed, needed, *what) if len(needed) < 30 else "no circuit"  # type: ignore[arg-type]

    monkeypatch.setattr(kept, "kept_circuit", few_only)
    found = Engine(network, Query(), options(1 << 30, Strategy.CIRCUIT)).answer(batch)
    assert found.ways == {"circuit": rows}
    assert sum(each < 30 for each in searched) > 2
    expected = Engine(network, Query(), options(1 << 30, Strategy.ROW_TREES)).answer(batch)
    np.testing.assert_array_equal(found.status, expected.status)
    fine = expected.status == OK
    np.testing.assert_allclose(found.log_value[fine], expected.log_value[fine], rtol=1e-12)
    for v in expected.targets:
        np.testing.assert_allclose(found.posteriors[v][fine], expected.posteriors[v][fine], rtol=0, atol=1e-12)


def test_there_are_no_parts_without_a_circuit_of_the_evidence() -> None:
    asked = []

    def search(targets: Collection[int]) -> str:
        asked.append(tuple(targets))
        return "no circuit"

    assert parts.in_parts(range(8), search) == "no circuit"
    assert asked == [()]


def test_parts_are_halves_of_halves_in_their_order() -> None:
    small = parts.in_parts(range(8), lambda targets: tuple(targets) if len(targets) <= 3 else "no circuit")
    assert small == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert parts.in_parts((), len) == [0]
    assert parts.in_parts(range(4), lambda targets: 0 if 2 not in targets else "not with 2") == "not with 2"
    many = parts.in_parts(range(1 << 10), lambda targets: 0 if len(targets) < 2 else "too many")
    assert many == "no circuits of parts of the targets after 64 searches"


def test_parents_come_first_and_those_of_the_evidence_before_others() -> None:
    network = random_network(30, seed=3)
    found = parts.parents_first(network, {17})
    assert sorted(found) == list(range(30))
    place = {v: i for i, v in enumerate(found)}
    assert all(place[parent] < place[v] for v, factor in enumerate(network.factors) for parent in factor.scope[:-1])
    ancestors, waiting = {17}, [17]
    while waiting:
        new = set(network.factors[waiting.pop()].scope) - ancestors
        ancestors |= new
        waiting += new
    assert set(found[: len(ancestors)]) == ancestors


@ON
@pytest.mark.parametrize("precision", ["single", "double"])
def test_a_gpu_answers_rows_by_a_circuit(
    network: Network, device: Callable[[], BlockDevice], precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows at once; cores take those with likelihoods that are hardly numbers."""
    monkeypatch.setattr(circuit_choice, "_seconds", lambda work, facts: np.inf)
    batch, query = rows_of(network, 200), Query(precision=precision)
    states = batch.states.pop(7)
    chance = np.where(states[:, None] == 0, [1.0, 1e-270], [0.5, 0.25])
    batch.likelihoods[7] = SoftEvidence(np.arange(200), chance)
    engine = Engine(network, query, gpu=opened(device))
    assert [route.on_gpu for route in engine.routes(batch)] == [True]
    found = engine.answer(batch)
    assert found.ways == {"circuit": 200}
    expected = Engine(network, Query(), options(1 << 30, Strategy.ROW_TREES)).answer(batch)
    assert (found.status == OK).all()
    tolerance = 1e-12 if precision == "double" else 1e-5
    np.testing.assert_allclose(found.log_value, expected.log_value, rtol=0, atol=10 * tolerance)
    for v in expected.targets:
        np.testing.assert_allclose(found.posteriors[v], expected.posteriors[v], rtol=0, atol=tolerance)
