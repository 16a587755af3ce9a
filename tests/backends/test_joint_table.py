"""The table of all joint states against full enumeration, and which networks have one."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import strategies
from helpers.engine_cases import check_posteriors, markov
from hypothesis import assume, given
from hypothesis import strategies as st
from junctor.backends.joint_table import KEPT_ROWS, MOST_NUMBERS, JointTable, has_joint_table
from junctor.evidence.batch import EvidenceBatch, SoftEvidence
from junctor.generate import chain, random_network
from junctor.model.answers import Answers, table_bytes, unanswered
from junctor.model.errors import Place
from junctor.model.network import DraftTable, DraftVariable, Factor, Network, Variable, build_network
from junctor.model.query import Query


def blank(network: Network, batch: EvidenceBatch, targets: tuple[int, ...], query: Query | None = None) -> Answers:
    query, sizes = query or Query(), network.cardinalities
    memory = np.full(table_bytes(query, targets, sizes, batch.rows), 255, np.uint8)
    return unanswered(query, targets, sizes, batch.rows, batch.invalid, memory)


@given(data=st.data())
def test_rows_equal_enumeration(data: st.DataObject) -> None:
    network = data.draw(strategies.networks(max_variables=6, max_joint=512))
    assume(has_joint_table(network))
    batch = data.draw(strategies.evidence_batches(network, max_rows=6, invalid=False))
    variables = range(len(network.variables))
    targets = tuple(data.draw(st.lists(st.sampled_from(variables), unique=True, min_size=1)))
    answers = blank(network, batch, targets)
    left = JointTable(network, targets).answer(batch, np.arange(batch.rows), answers)
    check_posteriors(network, batch, answers, 1e-12, left)


def test_variables_of_one_state_are_no_axes_of_arrays() -> None:
    # An array has at most 64.
    sizes = [1] * 35 + [2] + [1] * 35 + [3]
    variables = [DraftVariable(f"v{v}", tuple("012"[:size]), Place()) for v, size in enumerate(sizes)]
    table = np.arange(1.0, 7.0).reshape(2, 3, 1)
    tables = [DraftTable(("v35", "v71", "v0"), table, Place()), DraftTable(("v5",), np.array([4.0]), Place())]
    network = build_network("wide", "markov", variables, tables)
    assert has_joint_table(network)
    batch = EvidenceBatch(1, {1: np.zeros(1, np.int32), 35: np.ones(1, np.int32)})
    answers = blank(network, batch, tuple(range(72)))
    assert not JointTable(network, range(72)).answer(batch, np.arange(1), answers).size
    np.testing.assert_allclose(answers.posteriors[71][0], np.array([4, 5, 6]) / 15)
    assert answers.posteriors[35][0].tolist() == [0, 1]
    assert answers.posteriors[0][0].tolist() == [1]
    assert answers.log_value[0] == pytest.approx(np.log(4 * 15))


@given(data=st.data())
def test_a_row_has_the_same_bytes_among_others_and_alone(data: st.DataObject) -> None:
    network = data.draw(strategies.networks(max_variables=5, max_joint=256))
    assume(has_joint_table(network))
    batch = data.draw(strategies.evidence_batches(network, min_rows=1, max_rows=6, invalid=False))
    targets = tuple(range(len(network.variables)))
    together, alone = blank(network, batch, targets), blank(network, batch, targets)
    table = JointTable(network, targets)
    left = table.answer(batch, np.arange(batch.rows), together)
    assert left.tolist() == [row for row in range(batch.rows) if table.answer(batch, np.array([row]), alone).size]
    assert together.log_value.tobytes() == alone.log_value.tobytes()
    assert together.memory is not None
    assert alone.memory is not None
    assert together.memory.tobytes() == alone.memory.tobytes()


def test_single_precision_is_rounded_at_the_end() -> None:
    network = random_network(4, seed=1)
    batch = EvidenceBatch(1, {0: np.zeros(1, np.int32)})
    targets = tuple(range(4))
    double, single = blank(network, batch, targets), blank(network, batch, targets, Query(precision="single"))
    for answers in (double, single):
        assert not JointTable(network, targets).answer(batch, np.arange(1), answers).size
    for v in targets:
        assert single.posteriors[v].dtype == np.float32
        np.testing.assert_array_equal(single.posteriors[v], double.posteriors[v].astype(np.float32))


def test_likelihoods_that_leave_the_range_are_left_to_others() -> None:
    network = markov((("a", "b"), [[1.0, 2.0], [3.0, 4.0]]))
    tiny, spread = [[1e-300, 3e-300]], [[1e300, 1e-300]]
    for values, expected in ((tiny, []), (spread, [0])):
        batch = EvidenceBatch(1, {}, {0: SoftEvidence(np.arange(1), np.array(values))})
        answers = blank(network, batch, (0, 1))
        assert JointTable(network, (0, 1)).answer(batch, np.arange(1), answers).tolist() == expected
        if not expected:
            # 1 and 3 times rows of 3 and 7.
            np.testing.assert_allclose(answers.posteriors[0][0], [3 / 24, 21 / 24], rtol=1e-15)
            assert answers.log_value[0] == pytest.approx(np.log(24) + np.log(1e-300), rel=1e-15)


def test_small_networks_of_moderate_numbers_have_one() -> None:
    assert has_joint_table(chain(6, 2, 1))
    assert not has_joint_table(chain(1000, 2, 1))
    # The bound counts what a row sums up.
    states = 181
    assert states * states <= MOST_NUMBERS < (states + 1) * (states + 1)
    assert has_joint_table(chain(1, states, 1))
    assert not has_joint_table(chain(1, states + 1, 1))
    # Products of these would be subnormal, or infinite.
    assert not has_joint_table(markov((("a",), [1.0, 1e-200]), (("a",), [1.0, 1e-200])))
    assert not has_joint_table(markov((("a",), [1.0, 1e200]), (("a",), [1.0, 1e200])))


@given(data=st.data())
def test_answers_that_stay_are_those_of_new_rows(data: st.DataObject) -> None:
    network = data.draw(strategies.networks(max_variables=4, max_joint=64))
    assume(has_joint_table(network))
    targets = tuple(range(len(network.variables)))
    table = JointTable(network, targets)
    batches = data.draw(
        st.lists(strategies.evidence_batches(network, min_rows=1, max_rows=3, invalid=False), min_size=1, max_size=4)
    )
    for batch in batches * 2:
        found, expected = blank(network, batch, targets), blank(network, batch, targets)
        left = table.answer(batch, np.arange(batch.rows), found)
        assert left.tolist() == JointTable(network, targets).answer(batch, np.arange(batch.rows), expected).tolist()
        assert found.log_value.tobytes() == expected.log_value.tobytes()
        assert (found.status.tobytes(), found.reasons) == (expected.status.tobytes(), expected.reasons)
        assert found.memory is not None
        assert expected.memory is not None
        assert found.memory.tobytes() == expected.memory.tobytes()
        # Whoever has an answer may do with it as he likes.
        found.memory[:] = -1


def test_few_answers_stay() -> None:
    network = random_network(4, 8, seed=1)
    table = JointTable(network, (0,))
    for states in np.ndindex(8, 8, 8):
        batch = EvidenceBatch(1, {v: np.array([state], np.int32) for v, state in enumerate(states)})
        table.answer(batch, np.arange(1), blank(network, batch, (0,)))
    assert table._known.cache_info().currsize == KEPT_ROWS < 8**3


def test_a_factor_of_zeros_makes_every_row_impossible() -> None:
    zeros = np.zeros(2)
    zeros.setflags(write=False)
    network = Network("zeros", (Variable("a", ("x", "y")),), (Factor((0,), zeros),), "markov")
    batch = EvidenceBatch(1, {})
    answers = blank(network, batch, (0,))
    assert not JointTable(network, (0,)).answer(batch, np.arange(1), answers).size
    assert answers.log_value[0] == -np.inf
