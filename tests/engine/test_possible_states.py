"""Plans of possible states alone: the same answers as by all states, from every strategy that has a plan."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from helpers.chunk_plans import cut_for
from helpers.engine_cases import TOLERANCE, check_explanations, check_posteriors
from helpers.forced import COMPILES, engine_by, few_threads  # noqa: F401
from helpers.strategies import evidence_batches, networks
from hypothesis import given, settings
from hypothesis import strategies as st
from junctor.engine.engine import Engine
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.model.answers import IMPOSSIBLE, OK
from junctor.model.network import Factor, Network, Variable
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.model.strategies import Strategy
from junctor.planning.shape import Pattern
from junctor.strategies.facts import Facts

PLANNED = [
    *(pytest.param(each, id=each.value) for each in (Strategy.ENTRIES, Strategy.CPU_BLOCKS, Strategy.CHUNKS)),
    pytest.param(Strategy.GPU_BLOCKS, id="gpu-blocks-emulated", marks=COMPILES),
]


@pytest.fixture
def always() -> Iterator[None]:
    """Plans are made of possible states wherever a state is impossible."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("junctor.model.simplify.LEAST_GONE", -1.0)
        patch.setattr("junctor.strategies.facts.MOST_POSSIBLE", math.inf)
        yield


@st.composite
def questions(draw: st.DrawFn) -> tuple[Network, EvidenceBatch]:
    """Draw a network of which one table or several rule states out, and evidence that may observe these."""
    network = draw(networks(max_variables=6, max_joint=512))
    factors = list(network.factors)
    for i, factor in enumerate(factors):
        if factor.scope and factor.table.shape[-1] > 1 and draw(st.booleans()):
            table = factor.table.copy()
            table[..., draw(st.integers(0, table.shape[-1] - 1))] = 0
            sums = table.sum(axis=-1, keepdims=True)
            # Rows of a Bayesian network sum to one.
            if network.kind == "bayes" and sums.all():
                factors[i] = Factor(factor.scope, table / sums)
            elif network.kind == "markov" and sums.any():
                factors[i] = Factor(factor.scope, table)
    network = Network("drawn", network.variables, tuple(factors), network.kind)
    return network, draw(evidence_batches(network, max_rows=8))


def layers(states: int = 4, width: int = 3, depth: int = 4) -> Network:
    """Return layers of variables with two parents in the layer before; only the first two states are possible."""
    rng = np.random.default_rng(1)
    factors = []
    for v in range(width * depth):
        layer, place = divmod(v, width)
        parents = () if layer == 0 else tuple(sorted(width * (layer - 1) + (place + n) % width for n in range(2)))
        table = rng.uniform(0.1, 1, (*(states for _ in parents), states))
        table[..., 2:] = 0
        factors.append(Factor((*parents, v), table / table.sum(axis=-1, keepdims=True)))
    variables = tuple(Variable(f"v{v}", tuple(map(str, range(states)))) for v in range(width * depth))
    return Network("layers", variables, tuple(factors))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("precision", ["double", "single", "log"])
@pytest.mark.parametrize("strategy", PLANNED)
@given(question=questions())
def test_posteriors_equal_enumeration(
    strategy: Strategy, precision: str, question: tuple[Network, EvidenceBatch]
) -> None:
    network, batch = question
    answers = engine_by(strategy, network, Query(precision=precision)).answer(batch)
    check_posteriors(network, batch, answers, TOLERANCE[precision])


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("strategy", PLANNED)
@settings(max_examples=15)
@given(question=questions(), data=st.data())
def test_targets_equal_enumeration(
    strategy: Strategy, question: tuple[Network, EvidenceBatch], data: st.DataObject
) -> None:
    network, batch = question
    names = [variable.name for variable in network.variables]
    targets = tuple(data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1)))
    check_posteriors(network, batch, engine_by(strategy, network, Query(targets=targets)).answer(batch), 1e-12)


@pytest.mark.usefixtures("always")
@settings(max_examples=40)
@given(question=questions(), held=st.lists(st.integers(0, 5), max_size=2, unique=True), again=st.integers(0, 99))
def test_rows_slice_by_slice_equal_enumeration(
    question: tuple[Network, EvidenceBatch], held: list[int], again: int
) -> None:
    network, batch = question
    inside = [v for v in held if v < len(network.variables)]
    with cut_for(3, lean=True, held=inside, again=[again]):
        answers = Engine(network, Query()).answer(batch)
    check_posteriors(network, batch, answers, 1e-12)


@pytest.mark.usefixtures("always")
@settings(max_examples=25)
@given(question=questions())
def test_explanations_and_reasons_are_those_of_all_states(question: tuple[Network, EvidenceBatch]) -> None:
    network, batch = question
    check_explanations(network, batch, engine_by(Strategy.ENTRIES, network, Query("mpe")).answer(batch), 1e-9)
    planned = engine_by(Strategy.ENTRIES, network, Query()).answer(batch)
    assert planned.reasons == engine_by(Strategy.ROW_TREES, network, Query()).answer(batch).reasons


@pytest.mark.parametrize("strategy", PLANNED)
def test_scores_name_the_states_of_the_network(strategy: Strategy) -> None:
    network = layers()
    batch = EvidenceBatch(2, {11: np.array([1, UNOBSERVED], dtype=np.int32)})
    query = Query(answers="scores", top=4, probabilities=("v3=3", "v4=1"))
    found = engine_by(strategy, network, query).answer(batch)
    expected = engine_by(Strategy.ROW_TREES, network, query).answer(batch)
    np.testing.assert_array_equal(found.best, expected.best)
    np.testing.assert_allclose(found.chosen, expected.chosen, atol=1e-12)
    assert (found.chosen[0] == 0).all()


def test_impossible_states_have_probability_zero_and_make_rows_impossible() -> None:
    network = layers()
    states = {3: np.array([UNOBSERVED, 3, 1, UNOBSERVED], dtype=np.int32)}
    # The last row's likelihood allows none but impossible states.
    soft = {7: SoftEvidence(np.array([2, 3]), np.array([[0.2, 0.0, 0.9, 1.0], [0.0, 0.0, 1.0, 1.0]]))}
    answers = engine_by(Strategy.ENTRIES, network, Query()).answer(EvidenceBatch(4, states, soft))
    assert answers.status.tolist() == [OK, IMPOSSIBLE, OK, IMPOSSIBLE]
    assert answers.reasons[1] == "impossible: v3 = 3 has probability 0"
    assert all((answers.posteriors[v][[0, 2], 2:] == 0).all() for v in answers.targets)
    np.testing.assert_array_equal(answers.posteriors[7][2], [1, 0, 0, 0])


def test_plans_are_made_of_possible_states_where_cliques_get_much_smaller() -> None:
    network = layers()
    facts = Facts(network, Query(targets=("v1", "v11")), ComputeOptions(device="cpu"))
    pattern = Pattern(frozenset([0]), frozenset([2]))
    shape, targets = facts.problem(pattern)
    # Observed, with a likelihood, and asked for: these have all states, and the last ones an auxiliary variable.
    assert shape.cardinalities == (4, 4, 4, *(2 for _ in range(8)), 4, 2, 2, 2)
    assert targets == (1, 11)
    assert facts.plan(pattern).shape == shape
    assert facts.problem(Pattern(frozenset(range(12)), frozenset()))[0].cardinalities == network.cardinalities
    for other in (layers(states=2), Network("wide", *_with_one_impossible_state())):
        facts = Facts(other, Query(), ComputeOptions(device="cpu"))
        assert facts.plan_network(pattern) is other
    facts = Facts(network, Query("mpe"), ComputeOptions(device="cpu"))
    assert facts.plan_network(pattern) is network


def _with_one_impossible_state() -> tuple[tuple[Variable, ...], tuple[Factor, ...]]:
    """Return variables and factors of four layers of which one root never has its last state."""
    network = layers(states=2)
    table = np.array([0.3, 0.7, 0.0])
    first = Variable("v0", ("0", "1", "2"))
    factors = [
        Factor(factor.scope, np.concatenate([factor.table, factor.table[:1]]) if 0 in factor.scope else factor.table)
        for factor in network.factors
    ]
    return (first, *network.variables[1:]), (Factor((0,), table), *factors[1:])
