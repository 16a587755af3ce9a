"""Reasons of impossible rows: true, minimal, the same for any threads, and bounded."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers import oracle, strategies
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends import contradictions, impossibility
from junctor.backends.contradictions import ContradictionSearch, give_reasons, reason_of
from junctor.backends.impossibility import Limits, impossible_rows
from junctor.engine.engine import Engine
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.generate import chain, random_network, sample
from junctor.model.answers import IMPOSSIBLE, NO_PROBABILITY, OK, Answers
from junctor.model.errors import Place
from junctor.model.network import DraftTable, DraftVariable, Network, build_network
from junctor.model.query import Query
from junctor_kernels.row_trees.contradictions import FindingSets

MEMORY = 1 << 28
GENERAL = "impossible: the network has probability 0 without any evidence"
Evidence = tuple[dict[int, int], dict[int, object]]


def reasons_of(network: Network, batch: EvidenceBatch, threads: int = 1, memory: int = MEMORY) -> dict[int, str]:
    impossible = impossible_rows(network, batch, np.arange(batch.rows), Limits(MEMORY))
    status = np.where(impossible, IMPOSSIBLE, OK).astype(np.int8)
    general = dict.fromkeys(np.flatnonzero(impossible).tolist(), NO_PROBABILITY)
    answers = Answers((), status, np.zeros(batch.rows), reasons=general)
    give_reasons(network, batch, answers, memory, threads)
    return answers.reasons


def parts_of(reason: str) -> list[str]:
    if reason == GENERAL:
        return []
    one = re.fullmatch("impossible: (.*) has probability 0", reason)
    several = re.fullmatch("impossible: (.*) with (.*)", reason)
    if one is not None:
        return [one[1]]
    assert several is not None, reason
    return [several[1], *several[2].split(", ")]


def findings_of(network: Network, batch: EvidenceBatch, row: int, reason: str) -> list[Evidence]:
    """Return the findings that a reason names, as the row has them."""
    hard, soft = strategies.row_evidence(batch, row)
    found: list[Evidence] = []
    for part in parts_of(reason):
        if part.startswith("likelihood on "):
            v = network.index[part.removeprefix("likelihood on ")]
            found.append(({}, {v: soft[v]}))
        else:
            name, state = part.split(" = ")
            v = network.index[name]
            assert network.variables[v].states[hard[v]] == state
            found.append(({v: hard[v]}, {}))
    return found


def is_possible(network: Network, findings: list[Evidence]) -> bool:
    hard = {v: state for some, _ in findings for v, state in some.items()}
    soft = {v: values for _, some in findings for v, values in some.items()}
    return bool(np.isfinite(oracle.enumerate_posteriors(network, hard, soft)[0]))  # type: ignore[arg-type]


def check(network: Network, batch: EvidenceBatch, row: int, reason: str) -> None:
    findings = findings_of(network, batch, row, reason)
    assert not is_possible(network, findings), reason
    for n in range(len(findings)):
        assert is_possible(network, findings[:n] + findings[n + 1 :]), reason


@st.composite
def questions(draw: st.DrawFn) -> tuple[Network, EvidenceBatch]:
    network = draw(strategies.networks(max_variables=7, max_joint=1024))
    return network, draw(strategies.evidence_batches(network, max_rows=10, invalid=False))


@given(question=questions())
def test_reasons_are_minimal_contradictions(question: tuple[Network, EvidenceBatch]) -> None:
    network, batch = question
    for row, reason in reasons_of(network, batch).items():
        check(network, batch, row, reason)


def search_one_by_one(network: Network, findings: list[Evidence]) -> list[Evidence]:
    """The minimal contradiction that a search finds which asks about one set at a time."""
    rest, needed = findings, list[Evidence]()
    while rest and is_possible(network, needed):
        count = next(n for n in range(1, len(rest) + 1) if not is_possible(network, rest[:n] + needed))
        rest, needed = rest[: count - 1], [rest[count - 1], *needed]
    return needed


@given(question=questions(), data=st.data())
def test_searches_side_by_side_find_what_each_finds_alone(
    question: tuple[Network, EvidenceBatch], data: st.DataObject
) -> None:
    network, batch = question
    everything = np.arange(batch.rows)
    impossible = impossible_rows(network, batch, everything, Limits(MEMORY))
    witnesses = everything[~impossible][: data.draw(st.integers(0, batch.rows))]
    search = ContradictionSearch(network, batch, witnesses, Limits(MEMORY))
    sets, numbers = search.suspicions(everything)
    np.testing.assert_array_equal(numbers >= 0, impossible)
    expected = []
    for number, some in enumerate(sets.lists()):
        names = search._text(some)
        # Each of the rows has the findings.
        places = np.flatnonzero(numbers == number).tolist()
        findings, *_ = [findings_of(network, batch, place, names) for place in places]
        # The text of a set has its findings in their order.
        needed = search_one_by_one(network, findings)
        expected.append(tuple(f for f, e in zip(some, findings, strict=True) if e in needed))
    assert search.contradictions(sets) == expected


def rows_of(batch: EvidenceBatch, rows: list[int]) -> EvidenceBatch:
    """Some rows of a batch, in another order, without columns that none of them has."""
    states = {v: column[rows] for v, column in batch.states.items()}
    soft = {}
    for v, each in batch.likelihoods.items():
        places = {row: place for place, row in enumerate(each.rows.tolist())}
        having = [(n, places[row]) for n, row in enumerate(rows) if row in places]
        if having:
            numbers, at = np.array(having).T
            soft[v] = SoftEvidence(numbers, each.values[at])
    return EvidenceBatch(len(rows), {v: c for v, c in states.items() if (c >= 0).any()}, soft)


def check_any_cut(network: Network, batch: EvidenceBatch, cuts: list[list[int]], threads: int) -> None:
    """Whatever rows are beside a row, it has the same reason."""
    together = reasons_of(network, batch)
    for rows in cuts:
        apart = reasons_of(network, rows_of(batch, rows), threads)
        assert apart == {n: together[row] for n, row in enumerate(rows) if row in together}


@given(question=questions(), data=st.data())
def test_reasons_are_the_same_however_rows_are_cut(
    question: tuple[Network, EvidenceBatch], data: st.DataObject
) -> None:
    network, batch = question
    order = data.draw(st.permutations(range(batch.rows)))
    cut = data.draw(st.integers(0, batch.rows))
    cuts = [[row] for row in range(batch.rows)] + [some for some in (order[:cut], order[cut:]) if some]
    check_any_cut(network, batch, cuts, threads=data.draw(st.integers(1, 3)))


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_many_patterns_have_their_reasons_in_any_part(seed: int) -> None:
    """More rows than a word has, which have several contradictions each, of which factors alone do not tell all."""
    network = random_network(12, states=(2, 3), seed=seed, zeros=0.5)
    batch = noisy(network, 300, seed)
    order = np.random.default_rng(seed).permutation(300)
    parts = [part.tolist() for size in (1, 7, 90, 300) for part in np.array_split(order, 300 // size)]
    check_any_cut(network, batch, parts, threads=2)


@pytest.mark.parametrize("query", [Query(), Query(precision="log"), Query("mpe")], ids=["double", "log", "mpe"])
def test_engines_for_few_and_many_rows_give_the_same_reasons(query: Query) -> None:
    network = random_network(10, states=(2, 3), seed=3, zeros=0.5)
    batch = noisy(network, 120, seed=9)
    together = Engine(network, query).answer(batch).reasons
    assert len(set(together.values())) > 5
    for size in (1, 13):
        engine = Engine(network, query)
        for start in range(0, 120, size):
            rows = list(range(start, min(120, start + size)))
            apart = engine.answer(rows_of(batch, rows)).reasons
            assert apart == {n: together[row] for n, row in enumerate(rows) if row in together}


def noisy(network: Network, rows: int, seed: int, share: float = 0.2) -> EvidenceBatch:
    rng = np.random.default_rng(seed)
    states = sample(network, rows, seed).astype(np.int32)
    wrong = (rng.random(states.shape) * network.cardinalities).astype(np.int32)
    states = np.where(rng.random(states.shape) < share, wrong, states)
    states[rng.random(states.shape) < 0.4] = UNOBSERVED
    return EvidenceBatch(rows, {v: np.ascontiguousarray(states[:, v]) for v in range(states.shape[1])})


SPARSE = random_network(9, states=(2, 3), seed=6, zeros=0.4)


@pytest.mark.parametrize("rows", [0, 1, 64, 65, 1000])
def test_any_number_of_rows(rows: int) -> None:
    batch = noisy(SPARSE, rows, seed=4)
    reasons = reasons_of(SPARSE, batch)
    checked: set[str] = set()
    for row, reason in reasons.items():
        assert reason != NO_PROBABILITY
        if reason not in checked:
            check(SPARSE, batch, row, reason)
            checked.add(reason)
        # Rows share reasons; each has the findings itself.
        assert len(findings_of(SPARSE, batch, row, reason)) == len(parts_of(reason))
    if rows == 1000:
        assert len(checked) > 5
        assert any(len(parts_of(reason)) > 1 for reason in checked)


def test_threads_and_neighbours_of_equal_rows_change_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contradictions, "SIDE_BY_SIDE", 3)
    batch = noisy(SPARSE, 400, seed=5)
    one = reasons_of(SPARSE, batch)
    monkeypatch.setattr(contradictions, "LOOKED_AT", 7)
    assert reasons_of(SPARSE, batch) == one
    assert one
    assert all(reasons_of(SPARSE, batch, threads) == one for threads in (2, 5))
    assert reasons_of(SPARSE, batch, memory=MEMORY * 4) == one


def copies(length: int) -> Network:
    """A chain of equal variables, any of which may have either state."""
    variables = [DraftVariable(f"v{i}", ("yes", "no"), Place()) for i in range(length)]
    tables = [DraftTable(("v0",), [0.5, 0.5], Place())]
    tables += [DraftTable((f"v{i}", f"v{i + 1}"), np.eye(2), Place()) for i in range(length - 1)]
    return build_network("copies", "bayes", variables, tables)


def test_many_findings_and_two_that_contradict_each_other() -> None:
    network = copies(300)
    states = np.zeros((300, 2), np.int32)
    states[200:, 1] = 1
    batch = EvidenceBatch(2, {v: states[v] for v in range(300)})
    reasons = reasons_of(network, batch)
    assert list(reasons) == [1]
    assert re.fullmatch(r"impossible: v\d+ = yes with v2\d\d = no", reasons[1])


def test_a_contradiction_across_a_long_chain_of_hidden_variables() -> None:
    network = copies(1000)
    batch = EvidenceBatch(3, {0: np.array([0, 0, 1], np.int32), 999: np.array([1, 0, UNOBSERVED], np.int32)})
    assert reasons_of(network, batch) == {0: "impossible: v0 = yes with v999 = no"}


def test_several_findings_may_be_needed() -> None:
    """The sum of four bits is even: no three of them contradict each other."""
    names = [f"b{i}" for i in range(4)]
    variables = [DraftVariable(name, ("0", "1"), Place()) for name in (*names, "odd")]
    parity = np.zeros((2,) * 5)
    for bits in np.ndindex(2, 2, 2, 2):
        parity[(*bits, sum(bits) % 2)] = 1.0
    tables = [DraftTable((name,), [0.5, 0.5], Place()) for name in names]
    network = build_network("parity", "bayes", variables, [*tables, DraftTable((*names, "odd"), parity, Place())])
    columns = {v: np.array([1, 1], np.int32) for v in range(4)} | {4: np.array([1, 0], np.int32)}
    assert reasons_of(network, EvidenceBatch(2, columns)) == {
        0: "impossible: b0 = 1 with b1 = 1, b2 = 1, b3 = 1, odd = 1"
    }


def test_likelihoods_and_what_they_allow() -> None:
    network = copies(3)
    soft = SoftEvidence(np.array([0, 1, 2]), np.array([[0.0, 3.0], [1e-300, 1.0], [0.2, 0.0]]))
    batch = EvidenceBatch(3, {2: np.array([0, 0, 1], np.int32)}, {0: soft})
    assert reasons_of(network, batch) == {
        0: "impossible: likelihood on v0 with v2 = yes",
        2: "impossible: likelihood on v0 with v2 = no",
    }


def test_a_network_that_is_impossible_itself() -> None:
    variables = [DraftVariable("a", ("0", "1"), Place())]
    tables = [DraftTable(("a",), values, Place()) for values in ([1.0, 0.0], [0.0, 1.0])]
    network = build_network("never", "markov", variables, tables)
    assert reasons_of(network, EvidenceBatch(2, {0: np.array([0, -1], np.int32)})) == {0: GENERAL, 1: GENERAL}


def test_a_network_that_is_impossible_itself_beside_findings() -> None:
    """Rows with findings in the impossible part, and rows without, whose suspicions are empty."""
    variables = [DraftVariable(name, ("0", "1"), Place()) for name in "abc"]
    tables = [DraftTable((name,), values, Place()) for name, values in (("a", [1.0, 0.0]), ("a", [0.0, 1.0]))]
    tables.append(DraftTable(("b", "c"), np.eye(2), Place()))
    network = build_network("never", "markov", variables, tables)
    columns = {0: [0, -1, 1, -1, 0], 1: [0, 0, 1, -1, 1], 2: [1, 0, 0, 1, -1]}
    batch = EvidenceBatch(5, {v: np.array(states, np.int32) for v, states in columns.items()})
    for row, reason in reasons_of(network, batch).items():
        check(network, batch, row, reason)


def test_each_contradiction_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    search = contradictions.ContradictionSearch.contradictions
    monkeypatch.setattr(impossibility, "MOST_ROWS", 10)

    def counted(self: contradictions.ContradictionSearch, suspicions: FindingSets) -> object:
        asked.append(len(suspicions.starts) - 1)
        return search(self, suspicions)

    monkeypatch.setattr(contradictions.ContradictionSearch, "contradictions", counted)
    network = copies(4)
    batch = EvidenceBatch(500, {0: np.zeros(500, np.int32), 3: np.ones(500, np.int32)})
    assert len(reasons_of(network, batch)) == 500
    assert asked == [1]


@pytest.mark.parametrize("most", [0, 10, 60, 1 << 26])
def test_trees_of_too_many_operations_leave_general_reasons(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which rows that are depends on the rows alone."""
    monkeypatch.setattr(contradictions, "MOST_OPERATIONS", most)
    batch = noisy(SPARSE, 150, seed=7)
    reasons = reasons_of(SPARSE, batch)
    general = [row for row, reason in reasons.items() if reason == NO_PROBABILITY]
    assert bool(general) == (most < 1 << 26)
    assert (len(general) == len(reasons)) == (most == 0)
    for row in sorted(reasons.keys() - set(general))[:20]:
        check(SPARSE, batch, row, reasons[row])
    check_any_cut(SPARSE, batch, [list(range(150))[::-1], list(range(70)), *([row] for row in range(20))], threads=1)


def test_too_little_memory_leaves_general_reasons() -> None:
    batch = noisy(SPARSE, 50, seed=7)
    whole = reasons_of(SPARSE, batch)
    for memory in (-5, 0):
        assert set(reasons_of(SPARSE, batch, memory=memory).values()) == {NO_PROBABILITY}
    # Where there is enough for some of them, these are the same.
    some = reasons_of(SPARSE, batch, memory=1 << 12)
    assert NO_PROBABILITY in some.values()
    assert all(reason in (NO_PROBABILITY, whole[row]) for row, reason in some.items())


QUERIES = (Query(precision="single"), Query(), Query(precision="log"), Query("mpe"))


@pytest.mark.parametrize("query", QUERIES, ids=["single", "double", "log", "mpe"])
def test_every_query_gets_reasons(query: Query) -> None:
    batch = noisy(SPARSE, 60, seed=8)
    marked = EvidenceBatch(batch.rows, batch.states, {}, {3: "bad cell"})
    answers = Engine(SPARSE, query).answer(marked)
    expected = reasons_of(SPARSE, batch) | {3: "bad cell"}
    assert answers.reasons.keys() == expected.keys()
    for row, reason in answers.reasons.items():
        if row != 3:
            check(SPARSE, batch, row, reason)
    assert answers.reasons[3] == "bad cell"


def test_possible_rows_load_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contradictions, "give_reasons", None)
    monkeypatch.setattr(impossibility, "decide", None)
    network = chain(6, seed=2)
    states = sample(network, 5, seed=1).astype(np.int32)
    batch = EvidenceBatch(5, {v: np.ascontiguousarray(states[:, v]) for v in range(3)})
    assert not Engine(network, Query()).answer(batch).reasons


def test_the_reason_of_a_single_case() -> None:
    network = copies(4)
    yes, no, either, never = np.array([0.2, 0.0]), np.array([0.0, 1.0]), np.array([0.5, 0.1]), np.zeros(2)
    assert reason_of(network, {0: yes, 1: either, 3: no}, MEMORY) == "impossible: v0 = yes with v3 = no"
    assert reason_of(network, {0: yes, 1: never}, MEMORY) == NO_PROBABILITY
    assert reason_of(network, {0: yes, 3: no}, 0) == NO_PROBABILITY
