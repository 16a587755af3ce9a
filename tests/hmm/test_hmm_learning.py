"""Baum-Welch: an iteration against enumeration, what never changes, restarts, resumption, bad input."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from helpers.hmm_models import (
    as_table,
    batch_of,
    enumerated,
    paths,
    random_batch,
    random_model,
    small_cases,
    sparse_of,
)
from hypothesis import assume, given
from hypothesis import strategies as st
from junctor import hmm
from junctor.hmm import LearnedModel, build_model, learn
from junctor.hmm.learning import ChainOptions, checked_weights, fit_model
from junctor.hmm.model import HiddenMarkovModel, SparseMatrix
from junctor.hmm.parameters import ChainParameters
from junctor.learning.checkpoint import Checkpoint, LearnState
from junctor.learning.em import FitOptions
from junctor.learning.holdout import HoldoutResult, is_held_out
from junctor.model.errors import BudgetError, DeviceError, EvidenceError, InputError, ModelError
from junctor.model.options import ComputeOptions

HERE = ComputeOptions(threads=1, device="cpu")
PARTS: Any = ("start", "transition", "emission")


def table_of(model: HiddenMarkovModel, part: str) -> Any:
    table = getattr(model, part)
    return table.dense() if isinstance(table, SparseMatrix) else table


def sequences_of(model: HiddenMarkovModel, count: int, steps: int, seed: int = 0) -> list[list[int]]:
    """Draw sequences of a model."""
    rng, symbols = np.random.default_rng(seed), np.zeros((count, steps), int)

    def draw(rows: Any) -> Any:
        return (rows.cumsum(axis=1)[:, :-1] < rng.random(count)[:, None]).sum(axis=1)

    states = draw(np.repeat(model.start[None], count, axis=0))
    for t in range(steps):
        symbols[:, t] = draw(model.emission[states])  # type: ignore[index]
        states = draw(table_of(model, "transition")[states])
    found: list[list[int]] = symbols.tolist()
    return found


def with_gaps(sequences: list[list[int]]) -> list[list[int | None]]:
    return [[None if symbol < 0 else symbol for symbol in symbols] for symbols in sequences]


def same(one: LearnedModel, other: LearnedModel) -> None:
    np.testing.assert_array_equal(one.fit.parameters, other.fit.parameters)
    assert one.restarts == other.restarts
    trace = [each.log_posterior for each in one.fit.trace]
    assert trace == [each.log_posterior for each in other.fit.trace]


@given(small_cases(), st.sampled_from([0.0, 0.5]))
def test_an_iteration_of_enumeration(case: tuple[HiddenMarkovModel, list[list[int]]], pseudo: float) -> None:
    model, sequences = case
    possible = [symbols for symbols in sequences if any(p for p, _ in paths(model, symbols))]
    assume(possible)
    prior = dict.fromkeys(PARTS, pseudo)
    once: Any = {"max_iterations": 1, "acceleration": "none", "tolerance": 0, "impossible": "skip"}
    found = learn(model, with_gaps(sequences), prior=prior, **once)
    for part, counts in zip(PARTS, enumerated(model, possible, [1.0] * len(possible)), strict=True):
        before = table_of(model, part)
        amounts = counts + pseudo * (before > 0)
        sums = amounts.sum(axis=-1, keepdims=True)
        with np.errstate(invalid="ignore"):
            wanted = np.where(sums > 0, amounts / sums, before)
        np.testing.assert_allclose(table_of(found.model, part), wanted, atol=1e-13)
    likelihood = math.fsum(math.log(math.fsum(p for p, _ in paths(model, symbols))) for symbols in possible)
    assert found.fit.trace[0].log_likelihood == pytest.approx(likelihood, abs=1e-11)


@given(
    small_cases(),
    st.sampled_from(["model", "random", "uniform"]),
    st.sampled_from([0.0, 0.3]),
    st.sets(st.sampled_from(PARTS)),
    st.sampled_from(["squarem", "none"]),
)
def test_what_every_fit_keeps(
    case: tuple[HiddenMarkovModel, list[list[int]]], start: Any, pseudo: float, fix: Any, acceleration: Any
) -> None:
    model, sequences = case
    assume(any(p for symbols in sequences for p, _ in paths(model, symbols)))
    found = learn(
        model,
        with_gaps(sequences),
        prior={"emission": pseudo},
        fix=fix,
        start=start,
        acceleration=acceleration,
        max_iterations=12,
        impossible="skip",
    )
    objective = [each.log_posterior for each in found.fit.trace]
    assert all(after >= before - 1e-9 for before, after in pairwise(objective))
    for part in PARTS:
        before, after = table_of(model, part), table_of(found.model, part)
        assert not after[before == 0].any()
        np.testing.assert_allclose(after.sum(axis=-1), 1, atol=1e-6)
        if part in fix:
            np.testing.assert_array_equal(after, before)
    if isinstance(model.transition, SparseMatrix):
        assert isinstance(found.model.transition, SparseMatrix)
        np.testing.assert_array_equal(found.model.transition.columns, model.transition.columns)


@pytest.mark.parametrize("sparse", [False, True])
def test_threads_and_memory_change_nothing(sparse: bool) -> None:
    model = random_model(30, 6, 1, 0.5, sparse)
    batch = random_batch(model, np.random.default_rng(0).integers(1, 40, 150), 3)
    options = ChainOptions(fit=FitOptions(max_iterations=8))
    fits = [
        fit_model(model, batch, np.ones(150), options, ComputeOptions(threads=threads, memory=memory))
        for threads, memory in [(1, None), (2, None), (7, 8 << 20), (2, 4 << 20)]
    ]
    for each in fits[1:]:
        same(fits[0], each)


def test_weights_are_repetitions_and_order_is_nothing() -> None:
    model = random_model(4, 3, 1, 0.2)
    sequences = sequences_of(random_model(4, 3, 9), 12, 7)
    weights = [1, 2, 0, 3] * 3
    repeated = [symbols for symbols, times in zip(sequences, weights, strict=True) for _ in range(times)]
    wanted = learn(model, repeated, max_iterations=10)
    for found in (
        learn(model, sequences, weights=weights, max_iterations=10),
        learn(model, sequences[::-1], weights=weights[::-1], max_iterations=10),
    ):
        np.testing.assert_allclose(found.fit.parameters, wanted.fit.parameters, rtol=1e-9)
        assert found.log_likelihood == pytest.approx(wanted.log_likelihood, rel=1e-12)


def test_parameters_are_found_again() -> None:
    model = build_model([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[0.8, 0.1, 0.1], [0.1, 0.2, 0.7]])
    begin = build_model([0.5, 0.5], [[0.6, 0.4], [0.4, 0.6]], [[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]])
    found = learn(begin, sequences_of(model, 2000, 60), tolerance=1e-9)
    assert found.fit.converged
    np.testing.assert_allclose(found.model.transition, model.transition, atol=0.02)  # type: ignore[arg-type]
    np.testing.assert_allclose(found.model.emission, model.emission, atol=0.02)  # type: ignore[arg-type]
    again = learn(found.model, sequences_of(model, 2000, 60), tolerance=1e-9)
    np.testing.assert_allclose(again.fit.parameters, found.fit.parameters, atol=1e-4)


def test_states_that_nothing_reaches_stay() -> None:
    model = build_model([1, 0], [[1, 0], [0.3, 0.7]], [[0.4, 0.6], [0.9, 0.1]])
    found = learn(model, [[0, 1, 1], [1]])
    np.testing.assert_array_equal(table_of(found.model, "transition")[1], [0.3, 0.7])
    np.testing.assert_array_equal(table_of(found.model, "emission"), [[0.25, 0.75], [0.9, 0.1]])


def test_a_uniform_start_that_tells_no_states_apart_is_told(caplog: pytest.LogCaptureFixture) -> None:
    for model, options, is_told in (
        (random_model(2, 2, 1), {}, True),
        (random_model(2, 2, 1), {"fix": ["emission"]}, False),
        (build_model([1, 0], [[0.5, 0.5], [0, 1]], [[0.5, 0.5]] * 2), {}, False),
    ):
        caplog.clear()
        learn(model, [[0, 1], [0]], start="uniform", **options)  # type: ignore[arg-type]
        assert ("EM cannot tell the states apart" in caplog.text) == is_told


def test_the_best_of_several_fits_is_kept() -> None:
    sequences = sequences_of(random_model(3, 4, 5), 40, 10)
    model = random_model(3, 4, 1)

    def fits(seed: int) -> LearnedModel:
        return learn(model, sequences, start="random", restarts=4, seed=seed, max_iterations=30)

    found = fits(3)
    assert len(found.restarts) == 4
    assert found.fit.log_posterior == max(each.log_posterior for each in found.restarts)
    same(found, fits(3))
    assert fits(4).restarts[0] != found.restarts[0]


class Memory(Checkpoint):
    """Keeps every state, in memory."""

    def __init__(self, state: LearnState | None = None) -> None:
        self.state, self.kept = state, []

    def keep(self, state: LearnState) -> None:
        self.kept.append(state)


def test_an_interrupted_fit_goes_on() -> None:
    model = random_model(5, 4, 1, 0.3)
    batch = batch_of(sequences_of(random_model(5, 4, 2), 30, 9))
    options = ChainOptions(start="random", restarts=3, fit=FitOptions(max_iterations=9))
    memory = Memory()
    wanted = fit_model(model, batch, np.ones(30), options, HERE, checkpoint=memory)
    assert len(memory.kept) > 20
    for state in memory.kept:
        same(fit_model(model, batch, np.ones(30), options, HERE, checkpoint=Memory(state)), wanted)


def test_sequences_that_take_no_part_are_reported() -> None:
    model = build_model([1, 0], [[1, 0], [0, 1]], [[1, 0], [0.5, 0.5]], symbols=["a", "b"])
    found = learn(model, [["a", "a"], ["b"], [], ["c"], None, ["a"]], start="random", impossible="skip")
    assert found.statuses == {"ok": 2, "impossible": 1, "invalid": 3, "held_out": 0}
    assert list(found.reasons) == [1, 2, 3, 4]
    assert found.reasons[1] == "the sequence has probability 0"
    assert found.reasons[3].startswith("step 0: unknown symbol")
    assert found.log_likelihood == 0


def test_impossible_sequences_are_refused_skipped_or_smoothed() -> None:
    model = build_model([1, 0], [[0.5, 0.5], [0, 1]], [[1, 0], [0.5, 0.5]], ["u", "v"], ["a", "b"])
    sequences = [["a", "b"], ["b"], ["a"], ["b", "a"], ["a", "b", "b"]] * 5
    refused = r"10 sequences are impossible \(2, 4, 7, 9, 12, ...\) by zeros of the model: --impossible skip leaves"
    with pytest.raises(EvidenceError, match=refused):
        learn(model, sequences)
    with pytest.raises(EvidenceError, match="sequence 2 is impossible by zeros of the model: ") as one:
        learn(model, sequences[:3])
    assert str(one.value).endswith("--impossible skip leaves such sequences out, --impossible smooth lifts the zeros")
    possible = [each for each in sequences if each[0] == "a"]
    same(learn(model, sequences, impossible="skip"), learn(model, possible))
    smoothed = learn(model, sequences, impossible="smooth", fix=["transition"])
    assert smoothed.statuses["ok"] == 25
    assert (smoothed.model.start > 0).all()
    assert (smoothed.model.emission > 0).all()  # type: ignore[operator]
    np.testing.assert_array_equal(table_of(smoothed.model, "transition"), table_of(model, "transition"))
    # Of a sparse matrix zeros are not there to be lifted; likelihoods of 0 have nothing to do with them.
    sparse = build_model([1, 0], sparse_of(np.array([[1.0, 0.0], [0.5, 0.5]])), [[1, 0], [0, 1]])
    assert learn(sparse, [[0, 0], [1]], impossible="smooth").statuses["ok"] == 2
    logs = [[[0.0, 0.0]], [[-math.inf, -math.inf]]]
    with pytest.raises(EvidenceError, match="sequence 2 is impossible by zeros of the model: --impossible skip leaves"):
        learn(model, logs, impossible="smooth")


def test_smoothing_leaves_what_is_fixed_and_sparse() -> None:
    model = random_model(4, 3, 1, 0.6, sparse=True)
    found = ChainParameters(model, frozenset({"start"})).smoothed().model
    assert found.start.tolist() == model.start.tolist()
    assert found.entries.tolist() == model.entries.tolist()
    assert (found.emission > 0).all()  # type: ignore[operator]
    dense = ChainParameters(random_model(4, 3, 1, 0.6)).smoothed()
    assert (dense.values > 0).all()
    np.testing.assert_allclose(np.add.reduceat(dense.values, dense.distributions), 1)


@given(small_cases(), st.integers(0, 2**64 - 1), st.floats(0.1, 0.9))
def test_sequences_that_are_held_out_take_no_part(
    case: tuple[HiddenMarkovModel, list[list[int]]], seed: int, share: float
) -> None:
    model, sequences = case
    every = with_gaps(sequences * 4)
    kept = is_held_out(np.arange(len(every)), share, seed)
    rest = [each for each, out in zip(every, kept, strict=True) if not out]
    assume(any(p for symbols in sequences for p, _ in paths(model, symbols)))
    options: Any = {"impossible": "skip", "max_iterations": 5}
    try:
        wanted = learn(model, rest, **options)
    except EvidenceError:
        with pytest.raises(EvidenceError, match="takes part"):
            learn(model, every, holdout=share, seed=seed, **options)
        return
    found = learn(model, every, holdout=share, seed=seed, **options)
    np.testing.assert_array_equal(found.fit.parameters, wanted.fit.parameters)
    assert found.statuses["held_out"] == kept.sum()
    logs = [
        [math.fsum(p for p, _ in paths(of, symbols)) for symbols, out in zip(sequences * 4, kept, strict=True) if out]
        for of in (model, found.model)
    ]
    result, check = found.holdout, found.check
    assert result is not None
    possible = [p for p in logs[1] if p > 0]
    assert (result.rows, result.impossible, result.weight) == (
        len(possible),
        len(logs[1]) - len(possible),
        len(possible),
    )
    assert result.log_likelihood == pytest.approx(math.fsum(map(math.log, possible)), abs=1e-9)
    if check is None:
        assert not kept.any()
        return
    both = [(math.log(a), math.log(b)) for a, b in zip(*logs, strict=True) if a > 0 and b > 0]
    assert check.rows == len(both)
    assert check.impossible == tuple(sum(p == 0 for p in each) for each in logs)
    if both:
        assert check.gain == pytest.approx(np.mean([after - before for before, after in both]), abs=1e-9)


def test_weights_of_what_is_held_out() -> None:
    sequences, weights = [[0, 1], [1], [0, 0]] * 4, [1.0, 2.0, 0.0] * 4
    found = learn(random_model(2, 2, 1), sequences, weights=weights, holdout=0.5)
    kept = is_held_out(np.arange(12), 0.5, 0)
    assert found.holdout is not None
    assert found.holdout.weight == np.array(weights)[kept].sum()
    assert found.weight + found.holdout.weight == 12
    nothing = learn(random_model(2, 2, 1), sequences, holdout=1e-9)
    assert nothing.holdout == HoldoutResult(0, 0, 0.0, 0.0)
    assert nothing.check is None


@given(small_cases(), st.sampled_from([0.0, 0.5]))
def test_an_iteration_of_tied_states(case: tuple[HiddenMarkovModel, list[list[int]]], pseudo: float) -> None:
    model, sequences = case
    assume(model.states > 1)
    last = model.states - 1
    emission = np.array(model.emission)
    emission[last] = emission[0]
    tied = build_model(model.start, model.transition, emission)
    possible = [symbols for symbols in sequences if any(p for p, _ in paths(tied, symbols))]
    assume(possible)
    once: Any = {"max_iterations": 1, "acceleration": "none", "tolerance": 0, "impossible": "skip"}
    found = learn(model, with_gaps(sequences), tie=[f"{last}=0"], prior={"emission": pseudo}, **once)
    *_, counts = enumerated(tied, possible, [1.0] * len(possible))
    counts += pseudo * (emission > 0)
    counts[[0, last]] = counts[0] + counts[last]
    sums = counts.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        wanted = np.where(sums > 0, counts / sums, emission)
    np.testing.assert_allclose(found.model.emission, wanted, atol=1e-13)  # type: ignore[arg-type]
    again = learn(model, with_gaps(sequences), tie=[f"0={last}"], start="random", impossible="skip", max_iterations=15)
    np.testing.assert_array_equal(again.model.emission[0], again.model.emission[last])  # type: ignore[index]


def test_bad_ties_are_refused() -> None:
    model = build_model([0.5, 0.5], [[0.5, 0.5]] * 2, [[0.5, 0.5]] * 2, ["u", "v"])
    for ties, options, message in (
        (["u=w"], {}, "--tie: no state is named 'w'"),
        (["u"], {}, "--tie: found 'u', expected two states as A=B"),
        (["u=u"], {}, "two different states"),
        (["u=v"], {"fix": ["emission"]}, "--tie: states cannot share emissions: they stay as they are"),
    ):
        with pytest.raises(ModelError, match=message):
            learn(model, [[0]], tie=ties, **options)
    # One name is no sequence of letters.
    same(learn(model, [[0], [1]], tie="u=v"), learn(model, [[0], [1]], tie=["u=v"]))
    with pytest.raises(ModelError, match="the model has none"):
        learn(build_model(model.start, model.transition), [[[0.0, 0.0]]], tie=["0=1"])


def test_log_likelihoods_leave_the_emissions() -> None:
    model = random_model(3, 2, 1)
    logs = np.log(np.random.default_rng(0).random((4, 6, 3))).tolist()
    found = learn(model, logs, prior={"emission": 1.0})
    np.testing.assert_array_equal(found.model.emission, model.emission)  # type: ignore[arg-type]
    assert found.log_likelihood > found.fit.trace[0].log_likelihood
    silent = build_model(model.start, model.transition)
    assert learn(silent, logs).log_likelihood == found.log_likelihood


def test_names_and_files(tmp_path: Any) -> None:
    bare = random_model(2, 2, 1)
    model = build_model(bare.start, bare.transition, bare.emission, ["u", "v"], ["x", "y"])
    hmm.write_model(model, tmp_path / "m.json")
    found = learn(str(tmp_path / "m.json"), [["x", "y", None, "x"]]).model
    assert (found.state_names, found.symbol_names) == (("u", "v"), ("x", "y"))
    hmm.write_model(found, tmp_path / "n.parquet")
    assert hmm.read_model(tmp_path / "n.parquet").states == 2


def test_starts_of_a_fit() -> None:
    model = random_model(4, 3, 1, 0.5, sparse=True)
    parameters = ChainParameters(model, frozenset({"emission"}))
    for values in (parameters.uniform(), parameters.random((0, 1))):
        np.testing.assert_allclose(np.add.reduceat(values, parameters.distributions), 1)
        assert not values[parameters.values == 0].any()
        np.testing.assert_array_equal(values[parameters.is_fixed], model.emission.reshape(-1))  # type: ignore[union-attr]
    again = parameters.model_of(parameters.values)
    assert again.digest == model.digest
    assert as_table(model, again.entries).shape == (4, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fix": ["strat"]}, "found part of a model 'strat', expected 'start' or 'transition' or 'emission'"),
        ({"prior": {"emissions": 1}}, "found part of a model 'emissions'"),
        (
            {"prior": "emission=0.5"},
            "found prior 'emission=0.5', expected pseudo counts by part, such as {'emission': 0.5}",
        ),
        ({"prior": 0.5}, "found prior 0.5, expected pseudo counts by part"),
        ({"prior": {"emission": -1}}, r"a pseudo count of -1 for emission, expected a number from 0 to 1e\+100"),
        (
            {"prior": {"emission": 1e308}},
            r"a pseudo count of 1e\+308 for emission, expected a number from 0 to 1e\+100",
        ),
        ({"prior": {"emission": "1"}}, "a pseudo count of '1' for emission, expected a number"),
        ({"prior": {"emission": math.nan}}, "a pseudo count of nan"),
        ({"start": "network"}, "found start 'network'"),
        ({"restarts": 0}, "found 0 restarts, expected at least 1"),
        ({"restarts": 2}, "2 restarts from the same start would end alike: add --start random"),
        ({"seed": -1}, "found seed -1"),
        ({"tolerance": -1}, "a tolerance of -1"),
        ({"max_iterations": 0}, "at most 0 iterations"),
        ({"acceleration": "fast"}, "found acceleration 'fast'"),
        ({"weights": [1]}, "weights: found shape"),
        ({"weights": [1, -1]}, "found -1.0, expected a weight of 0, or from 1e-100 to 1e100"),
        ({"weights": ["a", 1]}, "weights: not an array of numbers"),
        ({"device": "tpu"}, "found device 'tpu'"),
        ({"holdout": 1.0}, "found a holdout of 1.0, expected a share from 0 to below 1"),
        ({"impossible": "ignore"}, "found impossible 'ignore'"),
        ({"weights": [0, 0]}, "none of 2 sequences takes part"),
    ],
)
def test_bad_options_are_refused(options: Any, message: str) -> None:
    with pytest.raises((InputError, DeviceError), match=message):
        learn(random_model(2, 2), [[0], [1]], **options)


def test_bad_sequences_are_refused() -> None:
    model = random_model(2, 2)
    with pytest.raises(EvidenceError, match="none of 2 sequences takes part: sequence 1: step 0: unknown symbol"):
        learn(model, [[5], []])
    with pytest.raises(EvidenceError, match="none of 0 sequences takes part"):
        learn(model, [])
    with pytest.raises(EvidenceError, match="the model has no emissions"):
        learn(build_model(model.start, model.transition), [[0]])
    with pytest.raises(BudgetError, match="raise --memory"):
        learn(model, [[0]], memory=100)
    assert checked_weights(None, 2).tolist() == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(("states", "lengths"), [(3, [30, 2, 17, 30]), (16, [40] * 20)])
def test_iterates_of_hmmlearn(states: int, lengths: list[int]) -> None:
    peer_module = pytest.importorskip("hmmlearn.hmm")
    model = random_model(states, 5, 1)
    batch = batch_of(
        [s[:n] for s, n in zip(sequences_of(random_model(states, 5, 2), len(lengths), 40), lengths, strict=True)]
    )
    peer = peer_module.CategoricalHMM(states, n_iter=10, tol=-np.inf, init_params="", n_features=5)
    peer.startprob_, peer.transmat_, peer.emissionprob_ = model.start, model.transition, model.emission
    peer.fit(batch.symbols[:, None], batch.lengths)  # type: ignore[index]
    options = ChainOptions(fit=FitOptions(tolerance=0, max_iterations=10, acceleration="none"))
    found = fit_model(model, batch, np.ones(len(batch)), options, HERE)
    wanted = np.concatenate([peer.startprob_, peer.transmat_.reshape(-1), peer.emissionprob_.reshape(-1)])
    np.testing.assert_allclose(found.fit.parameters, wanted, atol=1e-9)
    trace = [each.log_likelihood for each in found.fit.trace]
    np.testing.assert_allclose(trace[:10], list(peer.monitor_.history)[-10:], rtol=1e-11)
