"""Expected counts of hidden Markov models against enumeration of all paths, and what they must not depend on."""

from __future__ import annotations

import math
import re
import tracemalloc
from typing import Any

import numpy as np
import pytest
from helpers.hmm_models import as_table, batch_of, enumerated, paths, random_batch, random_model, small_cases, sparse_of
from hypothesis import example, given
from hypothesis import strategies as st
from junctor.hmm import build_model, counts
from junctor.hmm.counts import SequenceCounter, SequenceCounts
from junctor.hmm.model import HiddenMarkovModel, SparseMatrix
from junctor.hmm.numbers import SumNumbers, logarithms
from junctor.hmm.packing import SequenceBatch
from junctor.model.errors import BudgetError
from junctor.model.options import ComputeOptions
from junctor_kernels.hmm.counts import counts_of
from junctor_kernels.hmm.counts_cpu import RUN


def counted(model: HiddenMarkovModel, batch: SequenceBatch, weights: Any = None, **options: Any) -> SequenceCounts:
    weights = np.ones(len(batch)) if weights is None else np.array(weights, float)
    return SequenceCounter(batch, weights, ComputeOptions(**{"threads": 1, "device": "cpu", **options})).count(model)


def agree(one: SequenceCounts, other: SequenceCounts, rtol: float = 0.0, atol: float = 0.0) -> None:
    for name in ("start", "transition", "emission", "log_value"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=rtol, atol=atol, err_msg=name)


@pytest.fixture
def only_logarithms(monkeypatch: pytest.MonkeyPatch) -> None:
    class Numbers(SumNumbers):
        def __init__(self, model: HiddenMarkovModel, dtype: Any, logs: bool) -> None:
            super().__init__(model, dtype, True)

    monkeypatch.setattr(counts, "SumNumbers", Numbers)


# Products with weights below the normal numbers are rounded to nothing in any order but one.
@given(small_cases(), st.lists(st.floats(0, 5, allow_subnormal=False), min_size=5, max_size=5))
def test_counts_of_enumeration(case: tuple[HiddenMarkovModel, list[list[int]]], weights: list[float]) -> None:
    model, sequences = case
    found = counted(model, batch_of(sequences), weights[: len(sequences)])
    start, transition, emission = enumerated(model, sequences, weights[: len(sequences)])
    np.testing.assert_allclose(found.start, start, rtol=1e-12)
    np.testing.assert_allclose(as_table(model, found.transition), transition, rtol=1e-12)
    np.testing.assert_allclose(found.emission, emission, rtol=1e-12)  # type: ignore[arg-type]
    for symbols, weight, value in zip(sequences, weights, found.log_value, strict=False):
        total = math.fsum(p for p, _ in paths(model, symbols))
        wanted = (math.log(total) if total else -math.inf) if weight else 0.0
        assert value == wanted or value == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.usefixtures("only_logarithms")
def test_logarithms_of_enumeration(sparse: bool) -> None:
    for seed in range(5):
        model = random_model(3, 2, seed, 0.4, sparse)
        sequences = [[0, 1, -1, 0, 1], [1, 1], [0]]
        found = counted(model, batch_of(sequences), [1.0, 2.0, 0.5])
        start, transition, emission = enumerated(model, sequences, [1.0, 2.0, 0.5])
        np.testing.assert_allclose(found.start, start, rtol=1e-12)
        np.testing.assert_allclose(as_table(model, found.transition), transition, rtol=1e-12)
        np.testing.assert_allclose(found.emission, emission, rtol=1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize(("states", "zeros"), [(5, 0.3), (70, 0.0), (130, 0.8)])
@pytest.mark.parametrize("sparse", [False, True])
def test_counts_of_the_reference(states: int, zeros: float, sparse: bool) -> None:
    # Sums longer than a run, more sequences than a group, ragged lengths.
    model = random_model(states, 4, 1, zeros, sparse)
    batch = random_batch(model, [RUN + 9, 40, 40, 1, *[12] * 40])
    found = counted(model, batch)
    dense = model.transition.dense() if isinstance(model.transition, SparseMatrix) else model.transition
    rows = np.concatenate([logarithms(model.emission.T), np.zeros((1, states))])[batch.symbols]  # type: ignore[union-attr]
    start, transition, emission = np.zeros(states), np.zeros((states, states)), np.zeros((5, states))
    for n in range(len(batch)):
        where = slice(batch.starts[n], batch.starts[n + 1])
        total, posteriors, pairs = counts_of(logarithms(model.start), logarithms(dense), rows[where])
        assert found.log_value[n] == total or found.log_value[n] == pytest.approx(total, rel=1e-12)
        if total > -np.inf:
            start += posteriors[0]
            transition += pairs
            np.add.at(emission, batch.symbols[where], posteriors)  # type: ignore[index]
    np.testing.assert_allclose(found.start, start, rtol=1e-10)
    np.testing.assert_allclose(as_table(model, found.transition), transition, rtol=1e-10)
    np.testing.assert_allclose(found.emission, emission[:4].T, rtol=1e-10)  # type: ignore[arg-type]


@pytest.mark.parametrize("sparse", [False, True])
def test_threads_and_memory_change_nothing(sparse: bool) -> None:
    model = random_model(40, 4, 2, 0.5, sparse)
    batch = random_batch(model, np.random.default_rng(0).integers(1, 60, 300))
    wanted = counted(model, batch)
    for threads in (2, 3, 16):
        agree(counted(model, batch, threads=threads), wanted)
    agree(counted(model, batch, threads=16, memory=4 << 20), wanted)


def test_the_memory_that_is_needed() -> None:
    model = random_model(40, 4, 2)
    batch = random_batch(model, [50] * 40)
    wanted = counted(model, batch)
    message = r"sequences of 50 steps need .* \((.*) bytes\), allowed are 1000 B \(1,000 bytes\): raise --memory"
    with pytest.raises(BudgetError, match=message) as refused:
        counted(model, batch, memory=1000)
    # What it names is enough, to the byte.
    named = re.search(message, str(refused.value))
    assert named is not None
    needed = int(named[1].replace(",", ""))
    agree(counted(model, batch, memory=needed), wanted)
    with pytest.raises(BudgetError):
        counted(model, batch, memory=needed - 1)
    tracemalloc.start()
    found = counted(model, batch, memory=1_500_000, threads=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    agree(found, wanted)
    assert peak <= 1_500_000


def test_weights_are_repetitions() -> None:
    model = random_model(9, 4, 3, 0.2)
    batch = random_batch(model, [8, 5, 5, 1])
    twice = SequenceBatch(
        np.concatenate([batch.starts, batch.starts[-1] + batch.starts[1:]]),
        np.tile(batch.symbols, 2),  # type: ignore[arg-type]
    )
    one, two = counted(model, batch, [2, 2, 2, 2]), counted(model, twice)
    for name in ("start", "transition", "emission"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-13)
    none = counted(model, batch, [0, 1, 0, 0])
    alone = counted(model, batch_of([batch.symbols[8:13].tolist()]))  # type: ignore[index]
    np.testing.assert_array_equal(none.transition, alone.transition)
    assert none.log_value[[0, 2, 3]].tolist() == [0, 0, 0]


def test_impossible_sequences_add_nothing() -> None:
    model = build_model([1, 0], [[1, 0], [0.5, 0.5]], [[1, 0], [0.5, 0.5]])
    found = counted(model, batch_of([[0, 0], [0, 1], [1], [0]]))
    assert (found.log_value == -np.inf).tolist() == [False, True, True, False]
    assert found.start.tolist() == [2, 0]
    assert found.transition.tolist() == [[1, 0], [0, 0]]
    assert found.emission.tolist() == [[3, 0], [0, 0]]  # type: ignore[union-attr]


@pytest.mark.parametrize("sparse", [False, True])
def test_what_is_lost_climbs(sparse: bool) -> None:
    # As in the tests of posteriors: entries of the first sequence leave the range of double precision on the way, one
    # of the others shares its group.
    transition: Any = [[1, 0], [0, 1]]
    transition = sparse_of(np.array(transition, float)) if sparse else transition
    model = build_model([0.5, 0.5], transition, [[1e-5, 1e-5, 1 - 2e-5], [0.5, 0.5, 0]])
    found = counted(model, batch_of([[0, 1] * 40 + [2], [0, 1], [2, 0]]))
    np.testing.assert_allclose(found.start, [2 + 2e-5**2 / (2e-5**2 + 1), 1 / (1 + 2e-5**2)], rtol=1e-9)
    table = as_table(model, found.transition)
    np.testing.assert_allclose(np.diag(table), [81 + (2e-5) ** 2, 1], rtol=1e-9)
    assert np.isfinite(found.log_value).all()


def test_log_likelihoods_of_the_states() -> None:
    model = random_model(20, 4, 4, 0.3)
    batch = random_batch(model, [12, 30, 1])
    logs = np.concatenate([logarithms(model.emission.T), np.zeros((1, 20))])[batch.symbols]  # type: ignore[union-attr]
    silent = build_model(model.start, model.transition)
    found, wanted = counted(silent, SequenceBatch(batch.starts, None, logs)), counted(model, batch)
    assert found.emission is None
    np.testing.assert_allclose(found.start, wanted.start, rtol=1e-12)
    np.testing.assert_allclose(found.transition, wanted.transition, rtol=1e-12)
    np.testing.assert_allclose(found.log_value, wanted.log_value, rtol=1e-12)


@given(small_cases())
@example((random_model(1, 1, 0), [[0], [-1, 0]]))
def test_sums_of_counts(case: tuple[HiddenMarkovModel, list[list[int]]]) -> None:
    model, sequences = case
    found = counted(model, batch_of(sequences))
    possible = [n for n in range(len(sequences)) if found.log_value[n] > -np.inf]
    assert found.start.sum() == pytest.approx(len(possible), rel=1e-13, abs=0)
    assert found.transition.sum() == pytest.approx(sum(len(sequences[n]) - 1 for n in possible), rel=1e-13)
    observed = sum(s >= 0 for n in possible for s in sequences[n])
    assert found.emission.sum() == pytest.approx(observed, rel=1e-13)  # type: ignore[union-attr]
