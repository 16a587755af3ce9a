"""Standard errors of hidden Markov models against the curvature of the likelihood, which enumeration gives."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers.hmm_models import batch_of, paths, random_model
from hypothesis import given, settings
from hypothesis import strategies as st
from junctor.hmm import build_model, learn
from junctor.hmm.counts import SequenceCounter
from junctor.hmm.model import HiddenMarkovModel, SparseMatrix
from junctor.hmm.parameter_table import Estimates
from junctor.hmm.parameters import ChainFit, ChainParameters
from junctor.learning.errors import ObservedInformation, Shared
from junctor.model.errors import BudgetError

Floats = npt.NDArray[np.float64]


@settings(max_examples=12)
@given(st.integers(0, 999), st.booleans(), st.booleans(), st.sampled_from([0.0, 0.5]))
def test_information_is_the_curvature_of_the_objective(seed: int, sparse: bool, is_tied: bool, pseudo: float) -> None:
    rng = np.random.default_rng(seed)
    model = random_model(3, 2, seed, 0.2, sparse)
    sequences = [rng.integers(-1, 2, 4).tolist() for _ in range(6)]
    parameters = ChainParameters(model, frozenset({"start"}) if seed % 3 == 0 else frozenset(), ((0, 2),) * is_tied)
    parameters = ChainParameters(parameters.model_of(parameters.values), parameters.fixed, parameters.tied)
    prior: Any = {"emission": pseudo, "transition": pseudo}
    possible = [each for each in sequences if any(p for p, _ in paths(parameters.model, each))]
    fit = ChainFit(parameters, SequenceCounter(batch_of(possible), np.ones(len(possible))), prior)
    shared = Shared(fit, np.unique(parameters.sources, return_inverse=True)[1])
    values, fixed = parameters.values[shared.first], parameters.is_fixed[shared.first]
    information = ObservedInformation(shared, values, shared.summed(fit.pseudo_counts), fixed)

    def objective(at: Floats) -> float:
        every = at[shared.places]
        found = parameters.model_of(every)
        logs = [math.log(math.fsum(p for p, _ in paths(found, symbols))) for symbols in possible]
        return math.fsum(logs) + fit.log_prior(every)

    for _ in range(2 if len(information.entries) else 0):
        direction = rng.normal(size=len(information.entries)) * values[information.entries]
        moves = np.zeros(len(values))
        moves[information.entries] = direction
        moves -= np.bincount(information.references, direction, len(values))
        step = 1e-3 * (values[moves != 0] / np.abs(moves[moves != 0])).min()
        here, ahead, behind = (objective(values + sign * step * moves) for sign in (0, 1, -1))
        expected = (2 * here - ahead - behind) / step**2
        assert float(direction @ information.times(direction)) == pytest.approx(expected, rel=2e-3, abs=2e-4)


def sequences_of(model: HiddenMarkovModel, count: int) -> list[list[int]]:
    rng, found = np.random.default_rng(1), []
    for _ in range(count):
        state, symbols = rng.choice(2, p=model.start), []
        for _ in range(20):
            symbols.append(int(rng.choice(2, p=model.emission[state])))  # type: ignore[index]
            state = rng.choice(2, p=model.transition[state])  # type: ignore[index]
        found.append(symbols)
    return found


def test_true_parameters_are_within_some_errors() -> None:
    model = build_model([0.7, 0.3], [[0.9, 0.1], [0.2, 0.8]], [[0.9, 0.1], [0.2, 0.8]], ["u", "v"], ["a", "b"])
    sequences = [[("a", "b")[symbol] for symbol in symbols] for symbols in sequences_of(model, 300)]
    once = learn(model, sequences, errors=True, tolerance=1e-9)
    four = learn(model, sequences, errors=True, tolerance=1e-9, weights=[4.0] * 300)
    assert once.parameters is not None
    assert four.parameters is not None
    rows = once.parameters.to_pylist()
    for row in rows:
        assert 0 < abs(row["after"] - row["before"]) < 4 * row["error"] < 0.5
    np.testing.assert_allclose(four.parameters["error"].to_numpy() * 2, [row["error"] for row in rows], rtol=1e-4)
    assert sum(row["count"] for row in rows if row["variable"] == "start") == pytest.approx(300)
    assert sum(row["count"] for row in rows if row["variable"] == "emission") == pytest.approx(6000)
    fixed = learn(model, sequences, errors=True, fix=["transition", "start"]).parameters
    assert fixed is not None
    errors = fixed["error"].to_numpy()
    assert not errors[:6].any()
    assert (errors[6:] < once.parameters["error"].to_numpy()[6:]).all()


def test_what_sequences_do_not_tell_has_no_finite_error() -> None:
    # The second state is never reached.
    model = build_model([1, 0], [[1, 0], [0.5, 0.5]], [[0.5, 0.5], [0.3, 0.7]])
    found = learn(model, [[0, 1, 0]], errors=True).parameters
    assert found is not None
    errors = found["error"].to_numpy()
    assert errors[:4].tolist() == [0, 0, 0, 0]
    assert errors[6] == pytest.approx(math.sqrt(2 / 27), rel=1e-6)
    assert np.isinf(errors[[4, 5, 8, 9]]).all()


def test_too_many_errors_are_refused_before_the_fit() -> None:
    told: list[Any] = []
    with pytest.raises(BudgetError, match="standard errors of 1,679 free parameters take"):
        learn(random_model(40, 3, 1), [[0, 1, 2]], errors=True, memory="16MiB", watch=lambda *at: told.append(at))
    assert not told


@pytest.mark.parametrize("sparse", [False, True])
def test_a_row_for_each_parameter(sparse: bool) -> None:
    bare = random_model(3, 2, 4, 0.4, sparse)
    model = build_model(bare.start, bare.transition, bare.emission, ["u", "v", "w"], ["a", "b"])
    parameters = ChainParameters(model)
    values = parameters.values
    rows = Estimates(parameters, values, values, values).table().to_pylist()
    table = model.transition.dense() if isinstance(model.transition, SparseMatrix) else model.transition
    wanted = [("start", None, state, model.start[n]) for n, state in enumerate("uvw")]
    wanted += [
        ("transition", "uvw"[i], "uvw"[j], table[i, j])
        for i, j in product(range(3), range(3))
        if table[i, j] > 0 or not sparse
    ]
    assert model.emission is not None
    wanted += [("emission", "uvw"[i], "ab"[j], model.emission[i, j]) for i, j in product(range(3), range(2))]
    found = [
        (row["variable"], row["parents"][0]["state"] if row["parents"] else None, row["state"], row["after"])
        for row in rows
    ]
    assert found == wanted
    assert {row["error"] for row in rows} == {None}
