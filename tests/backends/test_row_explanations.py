"""Explanations of rows with trees of their own: against enumeration, against plans, and where digits may be lost."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from helpers import strategies
from helpers.engine_cases import check_explanations
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends.row_trees import RowEngine
from junctor.engine.engine import Engine
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.generate import grid, random_network, sample
from junctor.model.answers import IMPOSSIBLE, OK, Answers, table_bytes, unanswered
from junctor.model.errors import Place
from junctor.model.network import DraftTable, DraftVariable, Network, build_network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.model.strategies import Strategy
from junctor.strategies.facts import FEW_ROWS

MPE = Query("mpe")
OPTIONS = ComputeOptions(threads=2, device="cpu")


def explained(
    network: Network, batch: EvidenceBatch, threads: int = 1, memory: int = 1 << 28
) -> tuple[Answers, list[int]]:
    """Return the answers of row trees alone, and the rows that are left."""
    targets = tuple(range(len(network.variables)))
    states = np.zeros(table_bytes(MPE, targets, network.cardinalities, batch.rows), dtype=np.uint8)
    answers = unanswered(MPE, targets, network.cardinalities, batch.rows, batch.invalid, states)
    engine = RowEngine(network, targets, memory, threads, explains=True)
    valid = [row for row in range(batch.rows) if row not in batch.invalid]
    return answers, engine.answer(batch, np.array(valid, dtype=np.int64), answers).tolist()


@st.composite
def questions(draw: st.DrawFn) -> tuple[Network, EvidenceBatch]:
    network = draw(strategies.networks(max_variables=7, max_joint=1024))
    return network, draw(strategies.evidence_batches(network, max_rows=8))


@given(question=questions())
def test_explanations_equal_enumeration(question: tuple[Network, EvidenceBatch]) -> None:
    network, batch = question
    answers, left = explained(network, batch)
    for row in left:
        # Of entries far below the others: a plan answers it.
        answers.status[row] = -1
    kept = [row for row in range(batch.rows) if row not in left]
    whole = Engine(network, MPE, OPTIONS).answer(batch)
    check_explanations(network, batch, whole, 1e-9)
    assert (answers.status[kept] == whole.status[kept]).all()
    np.testing.assert_allclose(answers.log_value[kept], whole.log_value[kept], rtol=1e-12, atol=1e-11)
    if not left:
        check_explanations(network, batch, answers, 1e-9)


def gaps(network: Network, rows: int, seed: int, missing: float = 0.6) -> EvidenceBatch:
    """Sampled rows, each with empty cells of its own."""
    rng = np.random.default_rng(seed)
    if network.kind == "bayes":
        states = sample(network, rows, seed).astype(np.int32)
    else:
        states = (rng.random((rows, len(network.variables))) * network.cardinalities).astype(np.int32)
    states[rng.random(states.shape) < missing] = UNOBSERVED
    return EvidenceBatch(rows, {v: np.ascontiguousarray(states[:, v]) for v in range(states.shape[1])})


def by_plans(network: Network, batch: EvidenceBatch) -> Answers:
    return Engine(network, MPE, replace(OPTIONS, strategy=Strategy.ENTRIES)).answer(batch)


def log_probabilities(network: Network, answers: Answers) -> np.ndarray:
    """Of the explanations of all rows, from the factors."""
    states = [answers.states[v] for v in range(len(network.variables))]
    tables = (factor.table[tuple(states[v] for v in factor.scope)] for factor in network.factors)
    with np.errstate(divide="ignore"):
        return np.sum([np.log(table) for table in tables], axis=0)


@pytest.mark.parametrize(
    "network",
    [
        random_network(60, states=(2, 5), seed=1),
        random_network(60, states=(2, 3), seed=2, zeros=0.3),
        random_network(25, states=(1, 12), parents=2, seed=3),
        grid(5, 5, 3, seed=4),
    ],
    ids=["bayes", "zeros", "many states", "grid"],
)
def test_explanations_are_as_probable_as_those_of_plans(network: Network) -> None:
    batch = gaps(network, 60, seed=5)
    answers, left = explained(network, batch)
    expected = by_plans(network, batch)
    assert not left
    assert (answers.status == OK).all()
    np.testing.assert_allclose(answers.log_value, expected.log_value, rtol=1e-12)
    np.testing.assert_allclose(answers.log_value, log_probabilities(network, answers), rtol=1e-12)
    for v, column in batch.states.items():
        seen = column != UNOBSERVED
        np.testing.assert_array_equal(answers.states[v][seen], column[seen])


def test_likelihoods_and_impossible_rows() -> None:
    network = random_network(30, states=3, seed=6, zeros=0.3)
    rng = np.random.default_rng(1)
    batch = gaps(network, 80, seed=7)
    wrong = batch.states[29].copy()
    wrong[::2] = rng.integers(0, 3, 40)
    rows = np.arange(0, 80, 3)
    states = {v: column for v, column in batch.states.items() if v != 4} | {29: wrong}
    soft = SoftEvidence(rows, rng.random((len(rows), 3)) * (rng.random((len(rows), 3)) > 0.3) + 1e-3)
    both = EvidenceBatch(80, states, {4: soft})
    answers, left = explained(network, both)
    expected = by_plans(network, both)
    assert not left
    assert (answers.status == IMPOSSIBLE).any()
    assert answers.status.tobytes() == expected.status.tobytes()
    np.testing.assert_allclose(answers.log_value, expected.log_value, rtol=1e-12)


@pytest.mark.parametrize("threads", [2, 3])
def test_bytes_do_not_depend_on_threads(threads: int) -> None:
    network = random_network(40, seed=8)
    batch = gaps(network, 300, seed=8)
    one, many = explained(network, batch)[0], explained(network, batch, threads)[0]
    assert one.log_value.tobytes() == many.log_value.tobytes()
    for v, column in one.states.items():
        assert column.tobytes() == many.states[v].tobytes()


def chain(least: float) -> Network:
    """A chain whose links are `least` where the state stays the same; as far as it goes, nothing else is possible."""
    length, links = 300, [[least, 0.0], [0.0, least * 0.5]]
    variables = [DraftVariable(f"v{i}", ["a", "b"], Place()) for i in range(length)]
    scopes = [(f"v{i}", f"v{i + 1}") for i in range(length - 1)]
    # Two ends, each of which is all but impossible in one of the states.
    ends = [DraftTable(("v0",), [1.0, 1e-300], Place()), DraftTable((f"v{length - 1}",), [1e-300, 1.0], Place())]
    tables = [*(DraftTable(scope, links, Place()) for scope in scopes), *ends]
    return build_network("chain", "markov", variables, tables)


def test_rows_that_may_have_lost_digits_get_a_plan() -> None:
    # The state that is less probable by 0.5^299 is beyond the range of doubles together with 1e-300.
    network = chain(1e-200)
    batch = EvidenceBatch(FEW_ROWS, {5: np.zeros(FEW_ROWS, dtype=np.int32)})
    assert explained(network, EvidenceBatch(1))[1] == [0]
    for answers in (
        Engine(network, MPE, OPTIONS, expected_rows=FEW_ROWS).answer(batch),
        by_plans(network, batch),
    ):
        assert (answers.status == OK).all()
        assert all((column == 0).all() for column in answers.states.values())
        np.testing.assert_allclose(
            answers.log_value, 300 * np.log(1e-200) - np.log(1e-200) - 300 * np.log(10), rtol=1e-12
        )


def test_zeros_leave_what_is_tiny_alone() -> None:
    """The only explanation is beyond the range of doubles, but zeros cut out all that it would be lost beside."""
    variables = [DraftVariable(name, ["0", "1"], Place()) for name in "abc"]
    tables = [
        DraftTable(("a", "b"), [[1.0, 1e-200], [1e-200, 0.0]], Place()),
        DraftTable(("b", "c"), [[0.0, 1e-200], [1e-200, 0.0]], Place()),
        DraftTable(("a",), [0.0, 1.0], Place()),
    ]
    network = build_network("tiny", "markov", variables, tables)
    answers, left = explained(network, EvidenceBatch(1))
    assert not left
    assert [int(answers.states[v][0]) for v in range(3)] == [1, 0, 1]
    assert answers.log_value[0] == pytest.approx(-400 * np.log(10))


def test_a_tree_beyond_the_memory_is_left() -> None:
    network = grid(9, 9, 2, seed=9)
    batch = EvidenceBatch(2, {0: np.array([0, UNOBSERVED], dtype=np.int32)})
    small = RowEngine(network, (0,), 1 << 62, explains=True)._fixed + 8 * 1000
    assert explained(network, batch, memory=small)[1] == [0, 1]
    assert not explained(network, batch)[1]


@pytest.mark.parametrize("rows", [FEW_ROWS, pytest.param(600, marks=pytest.mark.slow)])
def test_batches_with_gaps_take_trees(rows: int) -> None:
    network = random_network(100, states=4, seed=10)
    batch = gaps(network, rows, seed=10)
    engine = Engine(network, MPE, OPTIONS, expected_rows=rows)
    answers = engine.answer(batch)
    assert answers.ways == {"row-trees": rows}
    assert "tree" in engine.routes(batch)[0].reason
    expected = by_plans(network, batch)
    assert not expected.ways["row-trees"]
    np.testing.assert_allclose(answers.log_value, expected.log_value, rtol=1e-12)
    # Of the same targets alone.
    names = tuple(network.variables[v].name for v in (7, 3))
    some = Engine(network, Query("mpe", targets=names), OPTIONS, expected_rows=rows).answer(batch)
    assert list(some.states) == [7, 3]
    for v, column in some.states.items():
        np.testing.assert_array_equal(column, answers.states[v])


def test_a_row_alone_takes_a_tree() -> None:
    network = random_network(40, states=4, seed=11)
    batch = gaps(network, 3, seed=11)
    together = Engine(network, MPE, OPTIONS, expected_rows=3).answer(batch)
    assert together.ways == {"row-trees": 3}
    for row in range(3):
        one = EvidenceBatch(1, {v: column[row : row + 1] for v, column in batch.states.items()})
        alone = Engine(network, MPE, OPTIONS, expected_rows=1).answer(one)
        assert alone.ways == {"row-trees": 1}
        assert alone.log_value[0].tobytes() == together.log_value[row].tobytes()
        assert all(alone.states[v][0] == column[row] for v, column in together.states.items())


def test_of_states_as_probable_the_first_is_taken() -> None:
    variables = [DraftVariable(name, ["0", "1", "2"], Place()) for name in "abcd"]
    pairs = itertools.combinations("abcd", 2)
    network = build_network("ties", "markov", variables, [DraftTable(pair, np.ones((3, 3)), Place()) for pair in pairs])
    answers, left = explained(network, EvidenceBatch(2, {1: np.array([2, UNOBSERVED], dtype=np.int32)}))
    assert not left
    assert [column.tolist() for column in answers.states.values()] == [[0, 0], [2, 0], [0, 0], [0, 0]]
