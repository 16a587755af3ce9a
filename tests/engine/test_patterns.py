"""Which rows share a plan: every row is in one group that serves it, and the cheaper way is taken."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from emulation.blocks import EmulatedDevice
from helpers import strategies
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from junctor.engine import choose as choosing
from junctor.engine.engine import Engine
from junctor.engine.plan_groups import PatternChoice, PatternPricer
from junctor.evidence import patterns
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.evidence.patterns import (
    EvidenceCounts,
    PatternGroup,
    distinct,
    patterns_of,
    rows_that_observe,
    sampled_patterns,
    serving_all,
)
from junctor.generate import random_network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.planning.shape import Pattern
from junctor.strategies import facts


def batch_of(rows: Sequence[str]) -> EvidenceBatch:
    """A batch from one string a row: the digits of the variables that it observes."""
    variables = sorted(set("".join(rows)))
    states = {int(v): np.array([0 if v in row else UNOBSERVED for row in rows], np.int32) for v in variables}
    return EvidenceBatch(len(rows), states)


def prices(once: float = 10.0, alone: float = math.inf, fits: bool = True) -> PatternPricer:
    """Each variable that is not cut out doubles the work; of four variables."""
    return PatternPricer(
        lambda p: 2.0 ** (4 - len(p.sliced)), lambda _: once, lambda p: fits or len(p.weighted) == 0, alone
    )


def summary(groups: Sequence[PatternGroup]) -> list[tuple[str, str, int, bool]]:
    def text(members: frozenset[int]) -> str:
        return "".join(map(str, sorted(members)))

    return [(text(g.pattern.sliced), text(g.pattern.weighted), len(g.rows), g.alone) for g in groups]


@given(data=st.data(), once=st.sampled_from([0.0, 3.0, 100.0]), alone=st.sampled_from([0.5, 6.0, math.inf]))
def test_every_valid_row_is_in_one_group_that_serves_it(data: st.DataObject, once: float, alone: float) -> None:
    network = data.draw(strategies.networks(max_variables=6))
    batch = data.draw(strategies.evidence_batches(network, max_rows=12))
    found = patterns_of(batch)
    if len(found.counts) < 2:
        return
    groups = PatternChoice(found, prices(once, alone), search=data.draw(st.booleans())).groups()
    rows = np.concatenate([group.rows for group in groups])
    assert sorted(rows.tolist()) == [row for row in range(batch.rows) if row not in batch.invalid]
    for group in groups:
        assert (np.diff(group.rows) > 0).all()
        for row in group.rows:
            hard, soft = strategies.row_evidence(batch, int(row))
            assert group.pattern.sliced <= set(hard)
            assert set(hard) | set(soft) <= group.pattern.sliced | group.pattern.weighted


@pytest.mark.parametrize("compiled", [False, True])
@given(data=st.data(), threads=st.integers(1, 4))
def test_threads_and_compiled_code_change_nothing(compiled: bool, data: st.DataObject, threads: int) -> None:
    network = data.draw(strategies.networks(max_variables=6))
    batch = data.draw(strategies.evidence_batches(network, max_rows=12))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patterns, "PART_CELLS", 4)
        patch.setattr(patterns, "COMPILED_CELLS", 0 if compiled else 1 << 20)
        found = patterns_of(batch, threads)
    expected = patterns_of(batch)
    for field in ("marks", "counts", "numbers", "rows"):
        np.testing.assert_array_equal(getattr(found, field), getattr(expected, field))


@pytest.mark.parametrize(
    ("rows", "alone", "groups"),
    [
        (["01"] * 50 + ["0"], math.inf, [("01", "", 50, False), ("0", "", 1, False)]),
        (["01"] * 2 + ["0"] * 2, math.inf, [("0", "1", 4, False)]),
        (["01"] * 50 + ["2", "3", "23"], 5.0, [("01", "", 50, False), ("", "23", 3, True)]),
        (["0", "1", "2", "3"], 20.0, [("", "0123", 4, False)]),
        (["0", "1", "2", "3"], 10.0, [("", "0123", 4, True)]),
    ],
)
def test_rare_patterns_share_or_go_alone(rows: list[str], alone: float, groups: list) -> None:
    choice = PatternChoice(patterns_of(batch_of(rows)), prices(alone=alone))
    assert summary(choice.groups()) == groups


def test_rare_patterns_get_plans_of_their_own_where_a_common_one_does_not_fit() -> None:
    choice = PatternChoice(patterns_of(batch_of(["0", "1", "23"])), prices(fits=False))
    assert summary(choice.groups()) == [("0", "", 1, False), ("1", "", 1, False), ("23", "", 1, False)]


def test_cheap_columns_that_are_often_missing_become_loose() -> None:
    """Of four columns with holes two cost nothing to leave loose: patterns differ only in the others."""
    rng = np.random.default_rng(1)
    held = rng.random((2000, 4)) > 0.2
    states = {v: np.where(held[:, v], 0, UNOBSERVED).astype(np.int32) for v in range(4)}
    found = patterns_of(EvidenceBatch(2000, states))

    def row(pattern: Pattern) -> float:
        return 1.0 + 100.0 * (0 not in pattern.sliced) + 100.0 * (1 not in pattern.sliced)

    offered = PatternPricer(row, lambda _: 10_000.0, lambda _: True, 50.0)
    searched, plain = PatternChoice(found, offered, search=True), PatternChoice(found, offered)
    assert searched.seconds < 0.6 * plain.seconds
    largest = searched.groups()[0]
    assert (largest.pattern.sliced, largest.pattern.weighted) == ({0, 1}, {2, 3})


@pytest.mark.parametrize("share", [0.6, 0.7, 0.8])
def test_rows_that_observe_most_columns_each_its_own_are_not_priced_as_if_they_observed_all(share: float) -> None:
    """A plan for all columns has nothing to do; one for a row takes what its open columns take."""
    rng = np.random.default_rng(2)
    held = rng.random((500, 40)) < share
    found = patterns_of(
        EvidenceBatch(500, {v: np.where(held[:, v], 0, UNOBSERVED).astype(np.int32) for v in range(40)})
    )
    offered = PatternPricer(
        lambda p: 1e-5 * (40 - len(p.sliced)), lambda p: 1e-3 * (40 - len(p.sliced)), lambda _: True, 1e-4
    )
    (group,) = PatternChoice(found, offered).groups()
    assert group.alone
    # Of which batch it is a part decides nothing.
    often = [PatternChoice(patterns_of(part), offered).seconds for part in (_slice(held, 0), _slice(held, 250))]
    assert often[0] == often[1]


def _slice(held: np.ndarray, first: int) -> EvidenceBatch:
    some = held[first : first + 250]
    return EvidenceBatch(250, {v: np.where(some[:, v], 0, UNOBSERVED).astype(np.int32) for v in range(some.shape[1])})


def test_rows_of_one_pattern_each() -> None:
    found = patterns_of(batch_of(["01", "0", "01", "2"]))
    exact = found.exact(np.array([0, 2, 3]))
    assert [(sorted(g.pattern.sliced), g.rows.tolist()) for g in exact] == [([0, 1], [0, 2]), ([2], [3])]


@given(marks=arrays(np.bool_, st.tuples(st.integers(0, 40), st.integers(0, 5))), data=st.data())
def test_patterns_are_told_apart_whatever_their_hashes(marks: np.ndarray, data: st.DataObject) -> None:
    counts = data.draw(arrays(np.int64, len(marks), elements=st.integers(1, 5)))
    seen = {tuple(row): 0 for row in marks.tolist()}
    for row, count in zip(marks.tolist(), counts.tolist(), strict=True):
        seen[tuple(row)] += count
    expected = sorted(seen.items(), key=lambda item: -item[1])
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans()):
            patch.setattr("junctor.evidence.patterns.keys_of", lambda marks, *_: np.zeros(len(marks), dtype=np.uint64))
        found, totals, numbers = distinct(marks, counts)
    assert [(tuple(row), count) for row, count in zip(found.tolist(), totals.tolist(), strict=True)] == expected
    assert (found[numbers] == marks).all()
    assert rows_that_observe(marks, counts).tolist() == (counts[:, None] * marks).sum(axis=0).tolist()
    members = data.draw(arrays(np.bool_, len(marks)))
    among = (counts[members, None] * marks[members]).sum(axis=0)
    assert EvidenceCounts(marks, counts).of(members).tolist() == among.tolist()


@given(data=st.data(), threads=st.integers(1, 3))
def test_one_pattern_for_all_rows(data: st.DataObject, threads: int) -> None:
    network = data.draw(strategies.networks(max_variables=6))
    batch = data.draw(strategies.evidence_batches(network, max_rows=12))
    hard = EvidenceBatch(batch.rows, batch.states, {}, batch.invalid)
    found = patterns_of(hard)
    if found.rows.size:
        some = patterns_of(EvidenceBatch(1, {v: states[found.rows[:1]] for v, states in hard.states.items()}))
        for part in (some, found):
            assert serving_all(hard, part, threads) == found.serving(found.marks)


def test_some_rows_tell_of_all_where_hardly_two_observe_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MOST_PATTERNS", 48)
    numbers = np.arange(200)
    states = {v: np.where(numbers >> v & 1, 0, UNOBSERVED).astype(np.int32) for v in range(8)}
    some = sampled_patterns(EvidenceBatch(200, states, invalid={3: "wrong"}))
    assert some is not None
    # Every fourth of 199 rows.
    assert len(some.rows) == len(some.counts) == 50
    assert set(some.counts.tolist()) == {1}
    assert 3 not in some.rows
    assert some.observed(int(some.numbers[1])) == frozenset(v for v in range(8) if some.rows[1] >> v & 1)
    # Fewer rows, rows that share patterns, and likelihoods.
    assert sampled_patterns(EvidenceBatch(190, {v: column[:190] for v, column in states.items()})) is None
    assert sampled_patterns(EvidenceBatch(200, {0: states[0]})) is None
    assert sampled_patterns(EvidenceBatch(200, states, complete=frozenset(states))) is None
    soft = SoftEvidence(np.array([7]), np.ones((1, 2)))
    assert sampled_patterns(EvidenceBatch(200, states, {9: soft})) is None


@pytest.mark.parametrize("missing", [0.4, 0.5])
def test_a_gpu_gets_the_same_groups_from_some_rows_as_from_all(missing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    network, rng = random_network(16, seed=2, states=3), np.random.default_rng(1)
    states = {v: np.where(rng.random(600) < missing, UNOBSERVED, 0).astype(np.int32) for v in range(2, 16)}
    states[0], states[1] = np.zeros(600, np.int32), np.full(600, UNOBSERVED, np.int32)
    batch = EvidenceBatch(600, states, invalid={5: "wrong"})
    options = ComputeOptions(device="gpu", threads=2)
    # Each row is answered.
    monkeypatch.setattr("junctor.evidence.deduplicate.LEAST_ROWS", 1 << 40)

    def groups() -> list[PatternGroup]:
        return Engine(network, Query(precision="single"), options, gpu=EmulatedDevice()).choice(batch).groups

    (whole,) = groups()
    monkeypatch.setattr(patterns, "MOST_PATTERNS", 40)
    assert sampled_patterns(batch) is not None
    (found,) = groups()
    assert (found.pattern, found.rows.tolist(), found.alone) == (whole.pattern, whole.rows.tolist(), whole.alone)
    assert found.pattern == Pattern(frozenset({0}), frozenset(range(2, 16)))
    # Of patterns that are worth plans all rows tell.
    states[2][:] = 1
    for v in range(3, 16):
        states[v][:550] = np.where(rng.random() < 0.5, UNOBSERVED, 0)
    assert len(groups()) > 1


def test_few_rows_are_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    network, asked = random_network(16, seed=2), list[int]()
    batch = EvidenceBatch(40, {v: np.zeros(40, np.int32) for v in range(8)})
    monkeypatch.setattr(choosing, "sampled_patterns", lambda batch, threads: asked.append(batch.rows))
    monkeypatch.setattr(facts, "has_gpu", lambda: True)
    for rows, expected in ((40, []), (4000, [40])):
        assert Engine(network, Query("mpe"), ComputeOptions(), expected_rows=rows).choice(batch).groups
        assert asked == expected


def test_no_rows_and_no_columns() -> None:
    assert patterns_of(EvidenceBatch(0)).counts.tolist() == []
    assert patterns_of(EvidenceBatch(3)).counts.tolist() == [3]
