"""Circuits against enumeration: networks with zeros, equal and extreme entries, any evidence, fixed states."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from circuit_networks import diagnosis, noisy_findings
from helpers.circuit_cases import compiled, rare, switched
from helpers.engine_cases import blank, check_explanations, check_posteriors
from helpers.noisy_max import noisy_network
from helpers.oracle import enumerate_posteriors, log_fraction
from helpers.quickscore import quickscore
from helpers.strategies import evidence_batches, networks, row_evidence
from hypothesis import given
from hypothesis import strategies as st
from junctor.circuits.compile import Circuit, compile_circuit
from junctor.circuits.evaluate import CircuitProgram
from junctor.circuits.limits import SearchLimits
from junctor.circuits.sweeps import sweep
from junctor.engine.engine import Engine
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.generate import grid, random_network, sample
from junctor.model.answers import IMPOSSIBLE, OK, Answers, table_bytes, unanswered
from junctor.model.network import Factor, Network, Variable
from junctor.model.query import Precision, Query
from junctor.strategies.circuit import fixed_states
from junctor_kernels.orders.sparse import moral_graph


def answers_of(
    network: Network,
    batch: EvidenceBatch,
    fixed: Mapping[int, int],
    precision: Precision = "double",
    threads: int = 1,
) -> Answers:
    targets, sizes = tuple(range(len(network.public))), network.cardinalities
    query = Query(precision=precision)
    memory = np.zeros(table_bytes(query, targets, sizes, batch.rows), dtype=np.uint8)
    answers = unanswered(query, targets, sizes, batch.rows, {}, memory)
    CircuitProgram(network, compiled(network, fixed)).answer(batch, np.arange(batch.rows), answers, threads)
    return answers


@given(networks(max_variables=6, max_joint=512), st.data())
def test_posteriors_equal_enumeration(network: Network, data: st.DataObject) -> None:
    batch = data.draw(evidence_batches(network, max_rows=6, invalid=False))
    check_posteriors(network, batch, answers_of(network, batch, {}), 1e-12)


@pytest.mark.parametrize(("precision", "tolerance"), [("double", 1e-12), ("single", 1e-5)])
@given(seed=st.integers(0, 10_000), data=st.data())
def test_zeros_and_equal_entries(precision: Precision, tolerance: float, seed: int, data: st.DataObject) -> None:
    network = switched(7, seed)
    batch = data.draw(evidence_batches(network, min_rows=1, invalid=False))
    check_posteriors(network, batch, answers_of(network, batch, {}, precision), tolerance)


@pytest.mark.parametrize("seed", [4565, *range(20)])
def test_tables_that_differ_in_variables_and_states_are_not_the_same(seed: int) -> None:
    """Equal values over other variables: of 4565 keys were equal that added small numbers without mixing them."""
    network = switched(7, seed)
    batch = EvidenceBatch(1)
    check_posteriors(network, batch, answers_of(network, batch, {}), 1e-12)


@given(networks(max_variables=6, max_joint=512), st.data())
def test_columns_that_all_rows_observe_alike(network: Network, data: st.DataObject) -> None:
    batch = data.draw(evidence_batches(network, min_rows=1, soft=False, invalid=False))
    column = data.draw(st.integers(0, len(network.variables) - 1))
    state = data.draw(st.integers(0, network.cardinalities[column] - 1))
    batch.states[column] = np.full(batch.rows, state, dtype=np.int32)
    fixed = fixed_states(np.arange(batch.rows), batch)
    assert fixed[column] == state
    check_posteriors(network, batch, answers_of(network, batch, fixed), 1e-12)


@given(st.integers(0, 10_000), st.data())
def test_explanations(seed: int, data: st.DataObject) -> None:
    network = switched(6, seed)
    batch = data.draw(evidence_batches(network, min_rows=1, invalid=False))
    fixed = fixed_states(np.arange(batch.rows), batch)
    query = Query(kind="mpe")
    memory = np.zeros(4 * 6 * batch.rows, dtype=np.uint8)
    answers = unanswered(query, tuple(range(6)), network.cardinalities, batch.rows, {}, memory)
    CircuitProgram(network, compiled(network, fixed)).explain(batch, np.arange(batch.rows), answers, 1)
    check_explanations(network, batch, answers, 1e-9)


@pytest.mark.parametrize("strongest_last", [False, True])
def test_noisy_nodes_are_chains(strongest_last: bool) -> None:
    network = noisy_network(strongest_last)
    states = {7: np.array([0, 2, UNOBSERVED], np.int32), 8: np.array([1, UNOBSERVED, 0], np.int32)}
    batch = EvidenceBatch(3, states)
    found, expected = answers_of(network, batch, {}), Engine(network, Query()).answer(batch)
    np.testing.assert_allclose(found.log_value, expected.log_value, rtol=1e-12)
    for v in expected.targets:
        np.testing.assert_allclose(found.posteriors[v], expected.posteriors[v], rtol=0, atol=1e-12)


@given(st.integers(0, 10_000), st.data())
def test_rows_without_their_evidence_on_one_variable(seed: int, data: st.DataObject) -> None:
    """Of observed and unobserved variables, of rows that are possible only without it, and of impossible ones."""
    network = switched(6, seed)
    batch = data.draw(evidence_batches(network, min_rows=1, max_rows=3, invalid=False))
    found = CircuitProgram(network, compiled(network, {})).retracted(batch, np.arange(batch.rows), range(6))
    for row in range(batch.rows):
        hard, soft = row_evidence(batch, row)
        for v in range(6):
            others = [{u: of for u, of in evidence.items() if u != v} for evidence in (hard, soft)]
            expected = [enumerate_posteriors(network, others[0] | {v: state}, others[1])[0] for state in range(3)]
            np.testing.assert_allclose(found[v][row], expected, rtol=1e-12, atol=1e-12)


def test_what_is_fixed_is_not_retracted() -> None:
    network = random_network(6, seed=1)
    program = CircuitProgram(network, compiled(network, {0: 0}))
    with pytest.raises(ValueError, match=f"nothing of {network.variables[0].name!r}"):
        program.retracted(EvidenceBatch(1, {0: np.zeros(1, np.int32)}), np.arange(1), [0])


@pytest.mark.parametrize("states", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fixed", [False, True])
def test_noisy_nodes_of_sixty_parents(states: int, fixed: bool) -> None:
    """By one circuit for every evidence on causes and effects, and by one of what a row observes."""
    network, nodes = diagnosis(64, 3, 60, states=states), noisy_findings(64, 3, 60, states=states)
    rows = [{64: 1, 65: 0, 66: states - 1}, {64: states - 1, 65: 1, 5: 1}, {66: 0}, {64: 1, 65: 1, 66: 1, 8: 0, 9: 1}]
    columns = np.full((67, len(rows)), UNOBSERVED, dtype=np.int32)
    for place, row in enumerate(rows):
        columns[list(row), place] = list(row.values())
    for place, row in enumerate(rows):
        batch = EvidenceBatch(1, {v: columns[v, place : place + 1] for v in range(67)})
        found = answers_of(network, batch, row if fixed else {})
        names = {network.variables[v].name: state for v, state in row.items()}
        priors = {f"d{d}": network.factors[d].table.tolist() for d in range(64)}
        total, posteriors = quickscore(priors, nodes, names)
        assert found.log_value[0] == pytest.approx(log_fraction(total), rel=1e-12)
        for name, expected in posteriors.items():
            got = found.posteriors[network.index[name]][0]
            np.testing.assert_allclose(got, np.array(expected, dtype=float), rtol=0, atol=1e-12)


def test_chains_side_by_side_are_swept() -> None:
    """Six findings that are there: greedy orders and dissections give ten times as many edges."""
    network = diagnosis(64, 6, 60)
    found = compile_circuit(network, dict.fromkeys(range(64, 70), 1), set(range(64)), SearchLimits(40_000))
    assert isinstance(found, Circuit)
    assert found.order.startswith("sweep")
    assert found.edges < 80_000


def test_sweeps_go_either_way_behind_variables_without_neighbours() -> None:
    pairs = np.array([3, 1, 1, 5, 5, 2])
    graph = moral_graph(7, np.arange(0, 7, 2), pairs)
    there, back = sweep(graph, np.diff(graph.starts) > 0)
    assert there[:3].tolist() == back[:3].tolist() == [0, 4, 6]
    assert {tuple(there[3:].tolist()), tuple(back[3:].tolist())} == {(3, 1, 5, 2), (2, 5, 1, 3)}


def test_no_root_is_below_the_smallest() -> None:
    network = switched(6, 3)
    program = CircuitProgram(network, compiled(network, {}))
    every = np.indices([3] * 6).reshape(6, -1).astype(np.int32)
    batch = EvidenceBatch(3**6, dict(enumerate(np.ascontiguousarray(every))))
    answers = answers_of(network, batch, {})
    least = answers.log_value[answers.status == OK].min()
    assert least - 3 < program.smallest + program.circuit.log <= least + 1e-12


def test_variables_that_nobody_needs_have_no_indicators() -> None:
    network = random_network(12, seed=4)
    whole, few = compiled(network, {}), compile_circuit(network, {}, {0, 3}, SearchLimits())
    assert isinstance(few, Circuit)
    assert few.edges < whole.edges / 4
    answers, batch = blank(network, EvidenceBatch(1), (0, 3)), EvidenceBatch(1)
    CircuitProgram(network, few).answer(batch, np.arange(1), answers, 1)
    expected = Engine(network, Query()).answer(batch)
    for v in (0, 3):
        np.testing.assert_allclose(answers.posteriors[v], expected.posteriors[v], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("precision", "tolerance"), [("double", 1e-12), ("single", 1e-5)])
def test_rows_of_several_tasks_and_threads(
    precision: Precision, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Impossible rows need no logarithms: no possible one has so small a root."""
    monkeypatch.setattr(CircuitProgram, "_answer_in_logs", None)
    network = switched(12, 5)
    states = sample(network, 2100, seed=1)
    states[np.random.default_rng(1).random(states.shape) < 0.6] = UNOBSERVED
    states[::7, 0] = 2
    batch = EvidenceBatch(2100, {v: np.ascontiguousarray(states[:, v]) for v in range(12)})
    answers = answers_of(network, batch, {}, precision, threads=3)
    expected = Engine(network, Query()).answer(batch)
    assert (answers.status == expected.status).all()
    assert {OK, IMPOSSIBLE} == set(answers.status.tolist())
    good = answers.status == OK
    for v in range(12):
        np.testing.assert_allclose(answers.posteriors[v][good], expected.posteriors[v][good], rtol=0, atol=tolerance)


def test_contradictions_that_only_a_search_finds() -> None:
    """Three variables of two states that all differ."""
    other = np.array([[0.0, 1.0], [1.0, 0.0]])
    variables = tuple(Variable(name, ("0", "1")) for name in "abc")
    network = Network("odd", variables, tuple(Factor(pair, other) for pair in ((0, 1), (1, 2), (0, 2))), "markov")
    batch = EvidenceBatch(2, {0: np.array([0, UNOBSERVED], np.int32)})
    check_posteriors(network, batch, answers_of(network, batch, {}), 1e-12)
    assert compiled(network, {}).log == -np.inf


@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize("observed", [30, 150])
def test_probabilities_below_all_numbers_of_a_format(observed: int, precision: Precision) -> None:
    """1e-120 is nothing in single precision, 1e-600 nothing in double precision either."""
    network = rare()
    # More than the rows that tell whether a format will do, and one of another kind.
    states = np.zeros(100, np.int32)
    states[70] = UNOBSERVED
    batch = EvidenceBatch(100, dict.fromkeys(range(observed), states))
    answers = answers_of(network, batch, {}, precision)
    expected = np.where(states == 0, observed * np.log(1e-4), 0)
    np.testing.assert_allclose(answers.log_value, expected, rtol=1e-6 if precision == "single" else 1e-12, atol=1e-5)
    np.testing.assert_array_equal(answers.posteriors[7][0], [1, 0])
    np.testing.assert_allclose(answers.posteriors[7][70], [1e-4, 1 - 1e-4], rtol=1e-6)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (SearchLimits(decisions=50), "no circuit after 50 decisions"),
        (SearchLimits(decisions=5000, edges=100), "more than 100 edges"),
        (SearchLimits(decisions=5000, bytes=1000), "more than 1,000 bytes"),
    ],
)
def test_a_search_ends_at_its_limits(limits: SearchLimits, words: str) -> None:
    network = grid(9, 9, seed=1)
    found = compile_circuit(network, {}, set(range(81)), limits)
    assert isinstance(found, str)
    assert words in found


def test_the_same_circuit_every_time() -> None:
    network = switched(14, 3)
    one, other = compiled(network, {}), compiled(network, {})
    assert one.order == other.order
    for name in one.flat._fields:
        np.testing.assert_array_equal(getattr(one.flat, name), getattr(other.flat, name))
