"""States that evidence leaves possible: against a slow search, enumeration, and what trees save by them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from helpers import oracle, strategies
from helpers.engine_cases import blank, check_posteriors
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends.row_trees import RowEngine, room_bytes
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch, SoftEvidence
from junctor.evidence.compiled_cells import EvidenceCells
from junctor.generate import layered, sample
from junctor.model.answers import IMPOSSIBLE
from junctor.model.network import Factor, Kind, Network, Variable
from junctor.model.query import Query
from junctor_kernels.row_trees import domains

ROOM = 1 << 28


def possible_states(network: Network, batch: EvidenceBatch, row: int) -> list[npt.NDArray[np.bool_]]:
    """Return the states that are left when nothing more follows from any one factor."""
    hard, soft = strategies.row_evidence(batch, row)
    left = [np.ones(size, dtype=np.bool_) for size in network.cardinalities]
    for v, state in hard.items():
        left[v] &= np.arange(len(left[v])) == state
    for v, likelihood in soft.items():
        left[v] &= likelihood > 0
    before = -1
    while (now := sum(int(states.sum()) for states in left)) != before:
        before = now
        for factor in network.factors:
            if factor.scope:
                above = factor.table > 0
                for axis, v in enumerate(factor.scope):
                    above = above & np.expand_dims(left[v], [a for a in range(above.ndim) if a != axis])
                for axis, v in enumerate(factor.scope):
                    left[v] &= above.any(axis=tuple(a for a in range(above.ndim) if a != axis))
    return left


def found_states(engine: RowEngine, batch: EvidenceBatch, row: int) -> list[npt.NDArray[np.bool_]]:
    engine.works_alone(EvidenceCells(batch), np.array([row]))
    memory, cards = engine._pricing.domains, engine._factors.cards
    found = []
    for v, size in enumerate(cards.tolist()):
        first, count = memory.variables[domains.FIRST_STATE, v], memory.variables[domains.STATES, v]
        states = memory.states[first : first + count].tolist()
        assert states == sorted(states)
        assert memory.variables[domains.KNOWN, v] == (states[0] if count == 1 else -1)
        found.append(np.isin(np.arange(size), states))
    return found


@given(data=st.data())
def test_states_left_are_those_of_a_slow_search(data: st.DataObject) -> None:
    network = data.draw(strategies.networks(max_variables=7, max_joint=1024))
    batch = data.draw(strategies.evidence_batches(network, max_rows=6, invalid=False))
    # Rows follow each other in the same memory.
    engine = RowEngine(network, range(len(network.variables)), ROOM)
    for row in range(batch.rows):
        expected, found = possible_states(network, batch, row), found_states(engine, batch, row)
        if all(states.any() for states in expected):
            assert [states.tolist() for states in found] == [states.tolist() for states in expected]
        else:
            # Given up where a variable has no state left.
            assert not engine.works_alone(EvidenceCells(batch), np.array([row]))[0].tables
            hard, soft = strategies.row_evidence(batch, row)
            assert np.isneginf(oracle.enumerate_posteriors(network, hard, soft)[0])


def wheel(states: int, kind: Kind) -> Network:
    """A variable of many states, one that is the next state, and one that tells even from odd ones."""
    names = tuple(f"s{state}" for state in range(states))
    following, parity = np.roll(np.eye(states), 1, axis=1), np.zeros((states, 2))
    parity[np.arange(states), np.arange(states) % 2] = 1.0
    variables = (Variable("now", names), Variable("next", names), Variable("parity", ("even", "odd")))
    prior = np.random.default_rng(1).dirichlet(np.ones(states))
    factors = (Factor((0,), prior), Factor((0, 1), following), Factor((0, 2), parity))
    return Network("wheel", variables, factors, kind)


@pytest.mark.parametrize("kind", ["bayes", "markov"])
@pytest.mark.parametrize("states", [63, 64, 65, 130])
def test_more_states_than_a_word_has_bits(states: int, kind: Kind) -> None:
    network = wheel(states, kind)
    seen = np.array([0, states - 1, 63 % states, -1, 5], dtype=np.int32)
    batch = EvidenceBatch(5, {1: seen, 2: np.array([-1, -1, -1, 1, 1], dtype=np.int32)})
    engine = RowEngine(network, range(3), ROOM)
    for row in range(4):
        left = possible_states(network, batch, row)
        assert [found.tolist() for found in found_states(engine, batch, row)] == [states.tolist() for states in left]
    answers = blank(network, batch)
    assert not engine.answer(batch, np.arange(5), answers).size
    # The state after an even one is odd.
    assert answers.status[4] == IMPOSSIBLE
    for row in range(4):
        log_evidence, expected = oracle.enumerate_posteriors(network, *strategies.row_evidence(batch, row))
        assert answers.log_value[row] == pytest.approx(log_evidence)
        for v in range(3):
            np.testing.assert_allclose(answers.posteriors[v][row], expected[v], atol=1e-14)


def test_likelihoods_count_where_one_state_is_left() -> None:
    network = wheel(5, "bayes")
    # Its own zeros leave one state, those of another variable do, and no state at all.
    values = np.array([[0, 0, 0.25, 0, 0], [0.5, 0.25, 0.125, 1, 2], [0.5, 0, 0, 0, 0]])
    batch = EvidenceBatch(
        3,
        {1: np.array([-1, 3, 3], dtype=np.int32)},
        {0: SoftEvidence(np.arange(3), values)},
    )
    check_posteriors(network, batch, Engine(network, Query()).answer(batch), 1e-12)
    answers = blank(network, batch)
    assert not RowEngine(network, range(3), ROOM).answer(batch, np.arange(3), answers).size
    prior = network.factors[0].table[2]
    np.testing.assert_allclose(answers.log_value, [np.log(0.25 * prior), np.log(0.125 * prior), -np.inf])


def test_rows_whose_evidence_rules_out_states_get_trees_of_their_own() -> None:
    network = layered(layers=8, width=8, states=4, parents=3, seed=1, zeros=0.8)
    rows, seen = 400, range(0, 64, 3)
    states = sample(network, rows, seed=2).astype(np.int32)
    batch = EvidenceBatch(rows, {v: np.ascontiguousarray(states[:, v]) for v in seen})
    engine = Engine(network, Query())
    trees = engine.facts.row_engine
    works = trees.works_alone(EvidenceCells(batch), np.arange(0, rows, 40))
    whole = trees.work(frozenset(seen))
    assert 20 * np.mean([work.operations for work in works]) < whole.operations
    (group,) = engine.choice(batch).groups
    assert group.alone
    # As few as are possible come out, each of them certain.
    answers, alone = engine.answer(batch), blank(network, batch)
    assert not trees.answer(batch, np.arange(rows), alone).size
    np.testing.assert_allclose(answers.log_value, alone.log_value, rtol=1e-12)


def test_memory_counts_what_domains_take() -> None:
    network = wheel(130, "bayes")
    engine = RowEngine(network, range(3), ROOM)
    parts = (*engine._zeros, *engine._pricing.domains)
    assert sum(part.nbytes for part in parts) <= room_bytes(network, 0)
