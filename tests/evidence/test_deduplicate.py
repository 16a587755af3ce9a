"""Equal rows are answered once: the same answers, byte for byte, as when each is answered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import strategies
from helpers.engine_cases import assert_same
from helpers.options import on_cpu
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends import plan_memory as memory
from junctor.engine import grouping, planner
from junctor.engine.engine import Engine
from junctor.engine.patterns import PatternGroup
from junctor.evidence import deduplicate as distinct
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.evidence.deduplicate import distinct_rows, united
from junctor.generate import chain, random_network, sample
from junctor.model.answers import Answers, Scores
from junctor.model.query import Query
from junctor.planning.shape import Pattern


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "query",
    [
        *(Query(), Query(kind="mpe")),
        *(pytest.param(Query(precision=each), marks=pytest.mark.slow) for each in ("single", "log")),
    ],
)
@given(data=st.data())
def test_answers_are_those_of_every_row(query: Query, compiled: bool, data: st.DataObject) -> None:
    network = data.draw(strategies.networks(max_variables=6, max_joint=256))
    few = data.draw(strategies.evidence_batches(network, max_rows=4, min_rows=1))
    # Rows again and again, in any order; some of them are invalid, impossible or have likelihoods.
    again = np.array(data.draw(st.lists(st.integers(0, few.rows - 1), min_size=1, max_size=24)))
    batch = EvidenceBatch(
        len(again),
        {v: column[again] for v, column in few.states.items()},
        {v: repeated(soft, again) for v, soft in few.likelihoods.items()},
        {row: few.invalid[number] for row, number in enumerate(again.tolist()) if number in few.invalid},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "has_joint_table", lambda network: False)
        if compiled:
            patch.setattr(grouping, "COMPILED_SECONDS", -1)
            patch.setattr(memory, "LOWERING_SECONDS", 0)
        expected = Engine(network, query).answer(batch)
        patch.setattr(distinct, "LEAST_ROWS", 1)
        patch.setattr(distinct, "TABLE_SHARE", data.draw(st.sampled_from([0, 4])))
        found = Engine(network, query).answer(batch)
    if compiled:
        assert_same(found, expected)
    else:
        # Sums of the NumPy kernels round by the size of their blocks.
        np.testing.assert_allclose(found.log_value, expected.log_value, rtol=1e-6)
        assert found.status.tolist() == expected.status.tolist()
        assert found.reasons == expected.reasons


def repeated(soft: SoftEvidence, rows: np.ndarray) -> SoftEvidence:
    place = {row: i for i, row in enumerate(soft.rows.tolist())}
    here = [i for i, row in enumerate(rows.tolist()) if row in place]
    values = soft.values[[place[int(rows[i])] for i in here]].reshape(len(here), soft.values.shape[1])
    return SoftEvidence(np.array(here, dtype=np.int64), values)


@pytest.mark.parametrize("most_keys", [1 << 62, 30])
@pytest.mark.parametrize("table_share", [0, 4, 1000])
def test_numbers_name_equal_rows(most_keys: int, table_share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether keys are sorted or looked up, and whether or not all columns fit in one."""
    monkeypatch.setattr(distinct, "MOST_KEYS", most_keys)
    monkeypatch.setattr(distinct, "TABLE_SHARE", table_share)
    rng = np.random.default_rng(1)
    few = rng.integers(UNOBSERVED, 3, (5, 6)).astype(np.int32)
    states = few[rng.integers(0, 5, 200)]
    batch = EvidenceBatch(200, {v: np.ascontiguousarray(states[:, v]) for v in range(6)})
    rows = np.flatnonzero(rng.random(200) < 0.8)
    found = distinct_rows(batch, rows, Pattern(frozenset([0, 1]), frozenset([2, 3, 4, 5])), [3] * 6)
    assert found is not None
    assert found.batch.rows == 5
    there = np.stack([found.batch.states[v] for v in range(6)], axis=1)
    assert (there[found.numbers] == states[rows]).all()


@pytest.mark.parametrize("least", [0, 1 << 40])
@given(
    keys=st.lists(
        # Few of them, neighbours, multiples of a power of two, and any.
        st.one_of(
            st.integers(0, 3), st.integers(0, 200), st.integers(0, 8).map(lambda n: n << 60), st.integers(0, 2**64 - 1)
        )
    )
)
def test_numbers_of_keys(least: int, keys: list[int]) -> None:
    """Looked up in compiled code or sorted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distinct, "COMPILED_KEYS", least)
        numbers, first = distinct.numbered(np.array(keys, dtype=np.uint64))
    assert [keys[first[number]] for number in numbers.tolist()] == keys
    assert sorted(first.tolist()) == sorted({key: keys.index(key) for key in keys}.values())


def test_rows_that_differ_are_left_alone() -> None:
    network = chain(length=60, states=4, seed=1)
    states = sample(network, 300, seed=1)
    batch = EvidenceBatch(300, {v: np.ascontiguousarray(states[:, v]) for v in range(40)})
    pattern = Pattern(frozenset(range(40)), frozenset())
    assert distinct_rows(batch, np.arange(300), pattern, network.cardinalities) is None


def test_answers_to_different_rows_count_as_memory() -> None:
    network = chain(length=30, states=3, seed=1)
    batch = EvidenceBatch(300, {0: np.arange(300, dtype=np.int32) % 3})
    plain = Engine(network, Query(), on_cpu(1 << 40))
    answers = plain.answer(batch)
    (prepared,) = plain.programs
    assert prepared.sizes.rows == 3
    tight = Engine(
        network,
        Query(),
        on_cpu(memory.PlanMemory(prepared.plan, 2).least + answers.nbytes),
    )
    assert_all_close(tight.answer(batch).posteriors, answers.posteriors)
    (prepared,) = tight.programs
    assert prepared.sizes.rows == 300


@given(data=st.data())
def test_distinct_rows_of_several_groups_as_one(data: st.DataObject) -> None:
    """Rows of groups in any order; other rows of the batch are in none."""
    network = data.draw(strategies.networks(max_variables=5))
    batch = data.draw(strategies.evidence_batches(network, max_rows=12, min_rows=1))
    batch = EvidenceBatch(batch.rows, batch.states)
    group_of = np.array(data.draw(st.lists(st.integers(0, 3), min_size=batch.rows, max_size=batch.rows)))
    everything = Pattern(frozenset(), frozenset(batch.states))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distinct, "LEAST_ROWS", 0)
        patch.setattr(distinct, "MOST_DISTINCT", 1.0)
        rows = [np.flatnonzero(group_of == n) for n in range(3) if (group_of == n).any()]
        parts = [distinct_rows(batch, some, everything, network.cardinalities) for some in rows]
    if not parts:
        return
    found = united(batch, [part for part in parts if part is not None])
    np.testing.assert_array_equal(found.rows, np.flatnonzero(group_of < 3))
    assert found.batch.rows == len(found.chosen) == sum(len(part.chosen) for part in parts if part is not None)
    for v, states in batch.states.items():
        np.testing.assert_array_equal(found.batch.states[v][found.numbers], states[found.rows])
        np.testing.assert_array_equal(found.batch.states[v], states[found.chosen])


@pytest.mark.parametrize("query", [Query(), Query(answers="scores", top=2, probabilities=("x_3=0",))])
def test_equal_rows_of_many_trees_are_copied_at_once(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if they were copied group by group, which they are where memory is short, and as if each was answered."""
    network, rng = random_network(40, (2, 3), 3, 8, seed=1, zeros=0.1), np.random.default_rng(1)
    few = sample(network, 300, seed=2)[:, :12]
    few[rng.random(few.shape) < 0.1] = UNOBSERVED
    # Some of them are impossible.
    few[:20] = [network.cardinalities[v] - 1 for v in range(12)]
    again = rng.integers(0, 300, 20_000)
    batch = EvidenceBatch(20_000, {v: np.ascontiguousarray(few[again, v], dtype=np.int32) for v in range(12)})
    engines = [Engine(network, query, replace(on_cpu(), threads=threads)) for threads in (1, 2, 1)]
    groups = engines[0].router.groups(batch)
    assert sum(group.by_trees and group.unique is not None for group in groups) > 1
    together, in_threads = (engine.answer(batch) for engine in engines[:2])
    monkeypatch.setattr(engines[2].router, "left_by_unique", lambda unique, budget, least=0: None)
    one_by_one = engines[2].answer(batch)
    monkeypatch.setattr(distinct, "LEAST_ROWS", 1 << 40)
    expected = Engine(network, query, on_cpu()).answer(batch)
    assert 0 < np.count_nonzero(together.status) < 20_000
    assert together.ways == one_by_one.ways
    assert_same(together, in_threads)
    assert all((a.tobytes() == b.tobytes()) for a, b in zip(tables_of(together), tables_of(in_threads), strict=True))
    for found in (one_by_one, expected):
        np.testing.assert_array_equal(found.status, together.status)
        assert found.reasons == together.reasons
        np.testing.assert_allclose(found.log_value, together.log_value, rtol=1e-12)
        for one, other in zip(tables_of(found), tables_of(together), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-12)


def tables_of(answers: Answers) -> list[np.ndarray]:
    if isinstance(answers, Scores):
        return [answers.best, answers.probabilities, answers.entropies, answers.chosen]
    return list(answers.posteriors.values())


def assert_all_close(found: dict[int, np.ndarray], expected: dict[int, np.ndarray]) -> None:
    for v, posterior in expected.items():
        np.testing.assert_allclose(found[v], posterior, atol=1e-12)


def test_what_is_worth_loading_and_planning_counts_different_rows() -> None:
    network = chain(length=30, states=3, seed=1)
    engine = Engine(network, Query(), expected_rows=10**7)
    batch = EvidenceBatch(10_000, {0: np.arange(10_000, dtype=np.int32) % 3})
    (group,) = groups = engine.router.groups(batch)
    assert group.answered == 3
    assert engine.router.uses(group, batch) == 3000
    assert not engine.router.loads_compiled(groups, batch)
    assert engine.router.loads_compiled([replace(group, unique=None)], batch)


@given(data=st.data())
def test_rows_that_are_repeated(data: st.DataObject) -> None:
    network = data.draw(strategies.networks(max_variables=4))
    batch = data.draw(strategies.evidence_batches(network, max_rows=20, min_rows=1))
    rows = list(zip(*(column.tolist() for column in batch.states.values()), strict=True)) or [()] * batch.rows
    assert distinct.repeated(batch) == batch.rows - len(set(rows))


@pytest.mark.parametrize("few", [0, 100])
def test_equal_rows_among_many_groups(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To look at all rows first finds the same as each group alone."""
    network, rng = chain(40, 2, seed=1), np.random.default_rng(2)
    # Groups of rows that observe the same; those of some are alike, but for a few.
    seen, alike, groups = rng.random((12, 40)) < 0.3, np.arange(12) < 5, np.repeat(np.arange(12), 100)
    states = rng.integers(0, 2, (1200, 40))
    states[alike[groups] & (rng.random(1200) < 0.9)] = 0
    states[~seen[groups]] = UNOBSERVED
    batch = EvidenceBatch(1200, {v: np.ascontiguousarray(states[:, v], dtype=np.int32) for v in range(40)})
    monkeypatch.setattr(grouping, "FEW_GROUPS", few)
    patterns = [Pattern(frozenset(np.flatnonzero(each).tolist()), frozenset()) for each in seen]
    made = [PatternGroup(pattern, np.flatnonzero(groups == n)) for n, pattern in enumerate(patterns)]
    router = Engine(network, Query(), on_cpu(memory=1 << 30)).router
    found = [group.unique is not None for group in router._deduplicated(made, batch)]
    assert found == alike.tolist()
