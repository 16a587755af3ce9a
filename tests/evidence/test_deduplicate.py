"""Equal rows are answered once: the same answers, byte for byte, as when each is answered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import strategies
from helpers.engine_cases import assert_same
from helpers.forced import engine_by
from helpers.options import on_cpu
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends import plan_memory as memory
from junctor.engine.engine import Engine
from junctor.evidence import deduplicate as distinct
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.evidence.deduplicate import find_equal_rows
from junctor.generate import chain, random_network, sample
from junctor.model.answers import Answers, Scores
from junctor.model.query import Query
from junctor.model.strategies import Strategy


@pytest.mark.parametrize("strategy", [Strategy.ENTRIES, Strategy.CPU_BLOCKS, Strategy.ROW_TREES])
@pytest.mark.parametrize(
    "query",
    [
        *(Query(), Query(kind="mpe")),
        *(pytest.param(Query(precision=each), marks=pytest.mark.slow) for each in ("single", "log")),
    ],
)
@given(data=st.data())
def test_answers_are_those_of_every_row(query: Query, strategy: Strategy, data: st.DataObject) -> None:
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
        expected = engine_by(strategy, network, query).answer(batch)
        patch.setattr(distinct, "LEAST_ROWS", 1)
        patch.setattr(distinct, "TABLE_SHARE", data.draw(st.sampled_from([0, 4])))
        found = engine_by(strategy, network, query).answer(batch)
    if strategy is Strategy.CPU_BLOCKS:
        assert_same(found, expected)
    else:
        # Sums of the NumPy kernels round by the size of their blocks, trees by who shares one.
        np.testing.assert_allclose(found.log_value, expected.log_value, rtol=1e-6)
        assert found.status.tolist() == expected.status.tolist()
        assert found.reasons == expected.reasons


def repeated(soft: SoftEvidence, rows: np.ndarray) -> SoftEvidence:
    place = {row: i for i, row in enumerate(soft.rows.tolist())}
    here = [i for i, row in enumerate(rows.tolist()) if row in place]
    values = soft.values[[place[int(rows[i])] for i in here]].reshape(len(here), soft.values.shape[1])
    return SoftEvidence(np.array(here, dtype=np.int64), values)


@pytest.mark.parametrize("compiled", [False, True])
@given(data=st.data())
def test_rows_are_numbered_by_their_evidence(compiled: bool, data: st.DataObject) -> None:
    """Whether keys are exact or sums, counted, sorted or looked up; invalid rows and likelihoods are alone."""
    network = data.draw(strategies.networks(max_variables=6))
    batch = data.draw(strategies.evidence_batches(network, max_rows=16, min_rows=1))
    sizes = [data.draw(st.sampled_from([size, 1 << 31])) for size in network.cardinalities]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distinct, "LEAST_ROWS", 1)
        patch.setattr(distinct, "TABLE_SHARE", data.draw(st.sampled_from([0, 4])))
        patch.setattr(distinct, "PART_CELLS", data.draw(st.sampled_from([1, 1 << 18])))
        if compiled:
            patch.setattr(distinct, "COMPILED_CELLS", 0)
            patch.setattr(distinct, "COMPILED_KEYS", 0)
        found = find_equal_rows(batch, sizes, most=1.0, threads=data.draw(st.integers(1, 3)))
    soft = {row for each in batch.likelihoods.values() for row in each.rows.tolist()}
    cells = [column.tolist() for column in batch.states.values()]
    # Whatever tells rows apart: those that are alone by their number.
    alone = soft | set(batch.invalid)
    rows = [(None, row) if row in alone else tuple(column[row] for column in cells) for row in range(batch.rows)]
    if found.equal is None:
        assert len(alone) == batch.rows
        return
    first = [rows.index(row) for row in rows]
    assert found.equal.distinct[found.equal.numbers].tolist() == first
    answered = sorted(set(first) - set(batch.invalid))
    assert found.answered.tolist() == answered
    some = np.array(data.draw(st.lists(st.sampled_from(answered), unique=True)) if answered else [], dtype=np.int64)
    served = [row for row in range(batch.rows) if first[row] in some]
    assert found.served(np.sort(some)).tolist() == served
    assert found.equal.sharing().tolist() == [rows.count(row) for row in rows]
    assert find_equal_rows(found, sizes) is found


@pytest.mark.parametrize("compiled", [False, True])
def test_rows_with_the_same_key_by_chance_are_not_equal(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    states = rng.integers(UNOBSERVED, 2, (300, 70)).astype(np.int32)
    states[200:] = states[rng.integers(0, 100, 100)]
    batch = EvidenceBatch(300, {v: np.ascontiguousarray(states[:, v]) for v in range(70)})
    if compiled:
        monkeypatch.setattr(distinct, "COMPILED_CELLS", 0)
    # All keys the same: the first row stands for all, and differs from nearly all of them.
    monkeypatch.setattr(distinct, "_keys", lambda batch, words, threads: np.zeros(batch.rows, dtype=np.int64))
    found = find_equal_rows(batch, [2] * 70, threads=2).equal
    assert found is not None
    assert (states[found.distinct[found.numbers]] == states).all()


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
    assert find_equal_rows(batch, network.cardinalities) is batch


def test_copies_take_no_memory() -> None:
    """Where there is only room for the answers to all rows, only those that differ are answered."""
    network = chain(length=30, states=3, seed=1)
    batch = EvidenceBatch(300, {0: np.arange(300, dtype=np.int32) % 3})
    plain = Engine(network, Query(), on_cpu(1 << 40))
    answers = plain.answer(batch)
    (prepared,) = plain.programs
    least = memory.PlanMemory(prepared.plan, 2).least
    tight = Engine(network, Query(), on_cpu(least + answers.nbytes))
    assert_all_close(tight.answer(batch).posteriors, answers.posteriors)
    assert [program.sizes.rows for program in (*plain.programs, *tight.programs)] == [3, 3]


@pytest.mark.parametrize("query", [Query(), Query(answers="scores", top=2, probabilities=("x_3=0",))])
def test_equal_rows_of_many_trees_are_copied_at_once(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each was answered."""
    network, rng = random_network(80, (2, 3), 3, 10, seed=1, zeros=0.1), np.random.default_rng(1)
    few = sample(network, 9000, seed=2)[:, :30]
    few[rng.random(few.shape) < 0.02] = UNOBSERVED
    # Some of them are impossible.
    few[:20] = [network.cardinalities[v] - 1 for v in range(30)]
    again = rng.integers(0, 9000, 20_000)
    batch = EvidenceBatch(20_000, {v: np.ascontiguousarray(few[again, v], dtype=np.int32) for v in range(30)})
    engines = [Engine(network, query, replace(on_cpu(), threads=threads)) for threads in (1, 2)]
    groups = engines[0].choice(batch).groups
    assert sum(group.by_trees and group.copies > 0 for group in groups) > 1
    together, in_threads = (engine.answer(batch) for engine in engines)
    monkeypatch.setattr(distinct, "LEAST_ROWS", 1 << 40)
    expected = Engine(network, query, on_cpu()).answer(batch)
    assert 0 < np.count_nonzero(together.status) < 20_000
    assert sum(together.ways.values()) == 20_000
    assert_same(together, in_threads)
    assert all((a.tobytes() == b.tobytes()) for a, b in zip(tables_of(together), tables_of(in_threads), strict=True))
    np.testing.assert_array_equal(together.status, expected.status)
    assert together.reasons == expected.reasons
    np.testing.assert_allclose(together.log_value, expected.log_value, rtol=1e-12)
    for one, other in zip(tables_of(together), tables_of(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.parametrize(("few", "piece"), [(40, 1 << 20), (40, 64), (600, 1 << 20), (600, 8)])
@pytest.mark.parametrize("query", [Query(), Query(kind="mpe"), Query(answers="scores", top=2)])
def test_copies_of_most_rows_and_of_some(query: Query, few: int, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole tables are copied, or row by row; invalid rows, also equal ones, stay as they are."""
    network, rng = random_network(20, (2, 3), 3, 4, seed=3, zeros=0.2), np.random.default_rng(1)
    states = sample(network, few, seed=2)[np.append(np.arange(few), rng.integers(0, few, 1000 - few))]
    states[rng.integers(0, few, 10), :3] = 1
    bad = {row: f"bad {row}" for row in (0, 3, few + 5, 999)}
    batch = EvidenceBatch(1000, {v: np.ascontiguousarray(states[:, v], dtype=np.int32) for v in range(8)}, {}, bad)
    monkeypatch.setattr(distinct, "PIECE_BYTES", piece)
    found = Engine(network, query, on_cpu(threads=2)).answer(batch)
    monkeypatch.setattr(distinct, "LEAST_ROWS", 1 << 40)
    expected = Engine(network, query, on_cpu()).answer(batch)
    np.testing.assert_array_equal(found.status, expected.status)
    assert found.reasons == expected.reasons
    np.testing.assert_allclose(found.log_value, expected.log_value, rtol=1e-12)
    for one, other in zip(tables_of(found), tables_of(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


def tables_of(answers: Answers) -> list[np.ndarray]:
    if isinstance(answers, Scores):
        return [answers.best, answers.probabilities, answers.entropies, answers.chosen]
    return [*answers.posteriors.values(), *answers.states.values()]


def assert_all_close(found: dict[int, np.ndarray], expected: dict[int, np.ndarray]) -> None:
    for v, posterior in expected.items():
        np.testing.assert_allclose(found[v], posterior, atol=1e-12)


def test_what_is_worth_loading_and_planning_counts_different_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    network = chain(length=30, states=3, seed=1)
    engine = Engine(network, Query(), expected_rows=10**7)
    every = EvidenceBatch(10_000, {0: np.arange(10_000, dtype=np.int32) % 3})
    choice = engine.choice(every)
    (group,) = choice.groups
    assert (len(group.rows), group.copies, group.served) == (3, 9997, 10_000)
    assert engine.facts.uses(group, choice.batch) == 3000
    assert group.strategy is Strategy.ENTRIES
    monkeypatch.setattr(distinct, "LEAST_ROWS", 1 << 40)
    (group,) = engine.choice(replace(every)).groups
    assert group.strategy not in (Strategy.ENTRIES, Strategy.JOINT_TABLE)
