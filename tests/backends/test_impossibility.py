"""Which rows are impossible: against enumeration, against log space, in blocks and memories of any size."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from helpers import oracle, strategies
from helpers.engine_cases import in_log_space
from helpers.forced import engine_by
from hypothesis import example, given
from hypothesis import strategies as st
from junctor.backends import impossibility
from junctor.backends.impossibility import (
    FindingColumns,
    Limits,
    Rooms,
    answer_impossible,
    decide,
    impossible_rows,
    operations_of,
    zeros_of,
)
from junctor.engine.engine import Engine
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, Rows, SoftEvidence
from junctor.generate import random_network, sample
from junctor.model.answers import IMPOSSIBLE, NO_PROBABILITY, OK, UNANSWERED, Answers
from junctor.model.errors import Place
from junctor.model.network import DraftTable, DraftVariable, Kind, Network, build_network
from junctor.model.query import Query
from junctor.model.strategies import Strategy
from junctor.strategies import number_ladder as blocks
from junctor_kernels.orders.sparse import moral_graph
from junctor_kernels.row_trees import case_words as words
from junctor_kernels.row_trees import contradictions as searching
from junctor_kernels.row_trees import possible

LIMITS = Limits(1 << 28)
Mask = npt.NDArray[np.bool_]


def built(kind: Kind, cards: dict[str, int], *tables: tuple[tuple[str, ...], object]) -> Network:
    variables = [DraftVariable(name, [str(s) for s in range(card)], Place()) for name, card in cards.items()]
    return build_network("built", kind, variables, [DraftTable(scope, values, Place()) for scope, values in tables])


def expected(network: Network, batch: EvidenceBatch) -> Mask:
    """Which rows enumeration finds impossible."""
    rows = [oracle.enumerate_posteriors(network, *strategies.row_evidence(batch, row))[0] for row in range(batch.rows)]
    return np.isneginf(rows)


@st.composite
def questions(draw: st.DrawFn) -> tuple[Network, EvidenceBatch]:
    network = draw(strategies.networks(max_variables=7, max_joint=1024))
    return network, draw(strategies.evidence_batches(network, max_rows=10, invalid=False))


# Factors over no variable before others, which have strides.
CONSTANT_FIRST = (
    built("markov", {"a": 2, "b": 2}, ((), 1.0), (("a", "b"), [[0.0, 1.0], [1.0, 1.0]])),
    EvidenceBatch(2, {0: np.array([0, 0], np.int32), 1: np.array([0, 1], np.int32)}),
)


@given(question=questions(), threads=st.integers(1, 3))
@example(question=CONSTANT_FIRST, threads=1)
def test_impossible_rows_equal_enumeration(question: tuple[Network, EvidenceBatch], threads: int) -> None:
    network, batch = question
    found = impossible_rows(network, batch, np.arange(batch.rows), Limits(1 << 28, threads))
    np.testing.assert_array_equal(found, expected(network, batch))


@given(question=questions(), data=st.data())
def test_blocks_of_any_cut_find_the_same(question: tuple[Network, EvidenceBatch], data: st.DataObject) -> None:
    network, batch = question
    zeros = zeros_of(network)
    rows = np.array(data.draw(st.permutations(range(batch.rows))), dtype=np.int64)
    edges = data.draw(st.sets(st.integers(1, batch.rows - 1))) if batch.rows > 1 else set()
    starts = np.array([0, *sorted(edges), batch.rows] if batch.rows else [0], dtype=np.int64)
    findings = FindingColumns(zeros, batch).of_rows(rows)
    found, columns = np.zeros(batch.rows, dtype=np.uint8), len(findings.variables)
    states = int(zeros.supports.factors.cards[findings.variables].sum())
    room = words.room(zeros.supports.factors.graph, len(network.factors), columns, states, 1 << 14)
    culprits = np.zeros((0, columns), dtype=np.uint8)
    begun, asked = np.zeros(1, dtype=np.int64), (zeros.supports, findings, starts)
    assert possible.decide(*asked, begun.ctypes.data, -1, np.inf, room, found, culprits) == -1
    np.testing.assert_array_equal(found == words.IMPOSSIBLE, expected(network, batch)[rows])


@given(question=questions())
def test_rows_that_have_a_finding(question: tuple[Network, EvidenceBatch]) -> None:
    network, batch = question
    columns, rows = FindingColumns(zeros_of(network), batch), np.arange(batch.rows)[::-1]
    for column, codes in enumerate(columns.of_rows(rows).codes):
        for code in set(codes.tolist()) - {int(columns.sizes[column])}:
            having = np.empty((1, 1), dtype=np.uint64)
            finding = np.array([column]), np.array([code])
            searching.write_having(columns.addresses, rows.copy(), *finding, having)
            assert int(having[0, 0]) == sum(1 << i for i in np.flatnonzero(codes == code).tolist())


@given(sizes=st.lists(st.integers(1, 200), min_size=1, max_size=8), most=st.integers(1, 70))
def test_blocks_keep_within_a_pattern(sizes: list[int], most: int) -> None:
    patterns = np.cumsum([0, *sizes])
    expected = [start for begin, end in pairwise(patterns.tolist()) for start in range(begin, end, most)]
    assert impossibility._cut(patterns, most).tolist() == [*expected, sum(sizes)]


def zeros_and_gaps(network: Network, rows: int, seed: int) -> EvidenceBatch:
    """Sampled rows with empty cells and wrong ones, in patterns of their own."""
    rng = np.random.default_rng(seed)
    states = sample(network, rows, seed).astype(np.int32)
    wrong = (rng.random(states.shape) * network.cardinalities).astype(np.int32)
    states = np.where(rng.random(states.shape) < 0.1, wrong, states)
    states[rng.random(states.shape) < 0.5] = UNOBSERVED
    return EvidenceBatch(rows, {v: np.ascontiguousarray(states[:, v]) for v in range(0, states.shape[1], 2)})


SPARSE = random_network(8, states=(2, 3), seed=3, zeros=0.5)


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 512, 513, 1000])
def test_any_number_of_rows(rows: int) -> None:
    batch = zeros_and_gaps(SPARSE, rows, seed=5)
    found = impossible_rows(SPARSE, batch, np.arange(rows), LIMITS)
    np.testing.assert_array_equal(found, expected(SPARSE, batch))


# Blocks of 512 and of 64 cases, and of exact patterns.
@pytest.mark.parametrize("starts", [3, 12, None])
def test_any_way_to_cut_rows_into_blocks(starts: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = zeros_and_gaps(SPARSE, 700, seed=6)
    seen = set[int]()

    def choose(_: object, cuts: list[Rows], __: int) -> tuple[int, list[float]]:
        counts = [len(cut) for cut in cuts]
        seen.update(counts)
        return next(n for n, count in enumerate(counts) if count == (starts or max(counts))), [0.0, 0.0, 0.0]

    monkeypatch.setattr(impossibility._Blocks, "_choose", choose)
    found = impossible_rows(SPARSE, batch, np.arange(700), LIMITS)
    np.testing.assert_array_equal(found, expected(SPARSE, batch))
    assert {3, 12} < seen


def test_threads_and_memory_change_nothing_that_is_decided() -> None:
    batch = zeros_and_gaps(SPARSE, 700, seed=7)
    rows, all_of_them = np.arange(700), expected(SPARSE, batch)
    assert all_of_them.any()
    decided = []
    for memory in (0, 1 << 16, 1 << 18, 1 << 20, 1 << 26):
        one = impossible_rows(SPARSE, batch, rows, Limits(memory, 1))
        for threads in (2, 7):
            np.testing.assert_array_equal(impossible_rows(SPARSE, batch, rows, Limits(memory, threads)), one)
        # What is not decided stays in doubt; nothing possible is called impossible.
        assert not (one & ~all_of_them).any()
        decided.append(int(one.sum()))
    assert decided[0] == 0
    assert decided[-1] == all_of_them.sum()


def test_memory_is_what_it_says() -> None:
    for variables, factors, columns, states in ((1, 1, 0, 0), (40, 40, 7, 30), (700, 900, 300, 900)):
        scopes = [(v, v + 1) for v in range(variables - 1)] or [(0,)]
        starts = np.cumsum([0, *map(len, scopes)], dtype=np.int64)
        graph = moral_graph(variables, starts, np.array([v for scope in scopes for v in scope], dtype=np.int64))
        projected = words.room_bytes(graph, factors, columns, states)
        taken = bytes_of(words.room(graph, factors, columns, states, 0))
        assert taken <= projected <= 1.2 * taken


@pytest.mark.parametrize("memory", [1 << 20, 1 << 22, 1 << 26])
@pytest.mark.parametrize("threads", [1, 3])
def test_no_more_memory_is_taken(memory: int, threads: int) -> None:
    network = random_network(60, states=3, seed=4, zeros=0.4)
    batch = zeros_and_gaps(network, 3000, seed=4)
    rows = np.arange(3000)
    # Compiled code and the zeros of the network are there before.
    impossible_rows(network, batch, rows[:100], LIMITS)
    tracemalloc.start()
    found = impossible_rows(network, batch, rows, Limits(memory, threads))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= memory
    assert found.any() or memory == 1 << 20


def bytes_of(record: object) -> int:
    return record.nbytes if isinstance(record, np.ndarray) else sum(map(bytes_of, record))  # type: ignore[call-overload]


@pytest.mark.parametrize("kind", ["bayes", "markov"])
def test_tiny_is_not_impossible(kind: Kind) -> None:
    """A product of 300 numbers of 1e-300 is possible, and one structural zero far away is not."""
    length, least = 300, 1e-300
    cards = {f"v{i}": 2 for i in range(length)}
    link = [[1.0, least], [least, 1.0]]
    tables = [((f"v{i}", f"v{i + 1}"), link) for i in range(length - 1)]
    network = built(kind, cards, (("v0",), [1.0, 0.0]), *tables)
    states = np.arange(length)[:, None] % 2 + np.array([0, 0, 1])
    columns = {v: (states[v] % 2).astype(np.int32) for v in range(length)}
    # Nobody observes the first variable of the second row; the third one begins with the impossible state.
    columns[0][1] = UNOBSERVED
    batch = EvidenceBatch(3, columns)
    assert impossible_rows(network, batch, np.arange(3), LIMITS).tolist() == [False, False, True]
    answers = Engine(network, Query(precision="single")).answer(batch)
    assert answers.status.tolist() == [OK, OK, IMPOSSIBLE]


def test_a_row_of_zeros_in_a_table() -> None:
    network = built("markov", {"a": 2, "b": 2}, (("a", "b"), [[0.0, 0.0], [0.0, 1.0]]))
    a = np.array([0, 1, UNOBSERVED, UNOBSERVED], np.int32)
    b = np.array([UNOBSERVED, UNOBSERVED, 0, 1], np.int32)
    batch = EvidenceBatch(4, {0: a, 1: b})
    assert impossible_rows(network, batch, np.arange(4), LIMITS).tolist() == [True, False, True, False]


def test_likelihoods_count_by_their_zeros() -> None:
    network = built("bayes", {"a": 3, "b": 3}, (("a",), [0.5, 0.5, 0.0]), (("a", "b"), np.eye(3)))
    first = SoftEvidence(np.array([0, 1, 2]), np.array([[0.0, 0.0, 3.0], [1e-300, 0.0, 1.0], [1.0, 2.0, 3.0]]))
    second = SoftEvidence(np.array([1, 3]), np.array([[0.0, 1.0, 1.0], [0.0, 1e-300, 0.0]]))
    batch = EvidenceBatch(4, {}, {0: first, 1: second})
    assert impossible_rows(network, batch, np.arange(4), LIMITS).tolist() == [True, True, False, False]


def test_a_network_without_zeros_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network(8, seed=1)
    monkeypatch.setattr(impossibility, "decide", None)
    batch = zeros_and_gaps(network, 100, seed=2)
    assert not impossible_rows(network, batch, np.arange(100), LIMITS).any()


def test_zeros_are_kept_as_long_as_the_network() -> None:
    network = random_network(5, seed=2, zeros=0.5)
    before = len(impossibility._ZEROS)
    assert zeros_of(network) is zeros_of(network)
    assert len(impossibility._ZEROS) == before + 1
    del network
    assert len(impossibility._ZEROS) == before


def test_tables_keep_the_variables_that_their_zeros_depend_on() -> None:
    # The zeros of the table over (a, b, c) depend on a and c alone; there are none in the others.
    table = np.array([[[1.0, 0.0], [1.0, 0.0]], [[0.3, 0.7], [0.6, 0.4]]])
    network = built(
        "bayes", {"a": 2, "b": 2, "c": 2}, (("a",), [0.5, 0.5]), (("b",), [0.5, 0.5]), (("a", "b", "c"), table)
    )
    factors = zeros_of(network).supports.factors
    assert factors.starts.tolist() == [0, 1, 2, 4]
    assert factors.scopes.tolist() == [0, 1, 0, 2]
    assert zeros_of(network).constrained.tolist() == [True, False, True]


def test_too_many_operations_are_not_begun() -> None:
    zeros, states = zeros_of(SPARSE), sample(SPARSE, 70, seed=8)
    batch = EvidenceBatch(70, {7: np.ascontiguousarray(states[:, 7], dtype=np.int32)})
    findings = FindingColumns(zeros, batch).of_rows(np.arange(70))
    rooms = Rooms(zeros.supports.factors, findings.variables)
    whole = decide(zeros.supports, findings, LIMITS, rooms, accuse=True)
    assert (whole.found != words.TOO_LARGE).all()
    needed = operations_of(zeros.supports, findings._replace(codes=findings.codes[:, :1].copy()), rooms)
    same = decide(zeros.supports, findings, Limits(1 << 28, operations=needed), rooms, accuse=True)
    assert same.found.tobytes() == whole.found.tobytes()
    none = decide(zeros.supports, findings, Limits(1 << 28, operations=needed - 1), rooms, accuse=True)
    assert (none.found == words.TOO_LARGE).all()


def test_settled_rows_are_written() -> None:
    network = built("bayes", {"a": 2, "b": 2}, (("a",), [1.0, 0.0]), (("a", "b"), [[0.5, 0.5], [0.1, 0.9]]))
    batch = EvidenceBatch(4, {0: np.array([0, 1, 1, 0], np.int32)})
    posteriors = {v: np.ones((4, 2)) for v in range(2)}
    answers = Answers((0, 1), np.full(4, UNANSWERED, np.int8), np.zeros(4), posteriors)
    left = answer_impossible(network, batch, np.array([0, 2, 3]), answers, 1 << 28, 1)
    assert left.tolist() == [0, 3]
    assert answers.status.tolist() == [UNANSWERED, UNANSWERED, IMPOSSIBLE, UNANSWERED]
    assert answers.log_value.tolist() == [0, 0, -np.inf, 0]
    assert answers.reasons == {2: NO_PROBABILITY}
    for table in posteriors.values():
        assert np.isnan(table).all(axis=1).tolist() == [False, False, True, False]


@pytest.mark.parametrize("strategy", [Strategy.CPU_BLOCKS, Strategy.ENTRIES])
@pytest.mark.parametrize("precision", ["single", "double"])
def test_impossible_rows_do_not_climb(precision: str, strategy: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    # In NumPy those of large plans.
    monkeypatch.setattr(blocks, "MANY_STEPS", np.inf if strategy is Strategy.CPU_BLOCKS else 1)
    batch = zeros_and_gaps(SPARSE, 200, seed=9)
    complete = EvidenceBatch(200, {v: np.maximum(column, 0) for v, column in batch.states.items()})
    answers = engine_by(strategy, SPARSE, Query(precision=precision)).answer(complete)  # type: ignore[arg-type]
    log = in_log_space(SPARSE, complete)
    assert (log.status == IMPOSSIBLE).any()
    assert answers.ways == {strategy.value: 200}
    assert not answers.climbed
    assert answers.status.tobytes() == log.status.tobytes()
    assert answers.reasons == log.reasons
    for table in answers.posteriors.values():
        assert np.isnan(table[answers.status == IMPOSSIBLE]).all()
