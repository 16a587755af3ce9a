"""The EM loop, on mixtures of multinomial distributions that are small enough to be written down here."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junctor.learning import em
from junctor.learning.em import FitOptions, FitState, fit
from junctor.learning.expectation import Expectation, Floats
from junctor.model.errors import InputError


@dataclass(frozen=True)
class Mixture:
    """Rows of two draws each of one hidden component: components, then draws of each component."""

    pairs: npt.NDArray[np.float64]
    components: int
    pseudo: float = 0.0
    fixed_first: bool = False

    @property
    def distributions(self) -> npt.NDArray[np.int64]:
        return np.array([0, *(self.components + len(self.pairs) * k for k in range(self.components))])

    @property
    def weight(self) -> float:
        return float(self.pairs.sum())

    def split(self, values: Floats) -> tuple[Floats, Floats]:
        return values[: self.components], values[self.components :].reshape(self.components, -1)

    def expect(self, parameters: Floats) -> Expectation:
        shares, draws = self.split(parameters)
        joint = np.einsum("k,ka,kb->kab", shares, draws, draws)
        total = joint.sum(axis=0)
        with np.errstate(all="ignore"):
            log_likelihood = float(np.sum(np.where(self.pairs > 0, self.pairs * np.log(total), 0.0)))
            expected = np.where(total > 0, joint * self.pairs / total, 0.0)
        counts = expected.sum(axis=2) + expected.sum(axis=1)
        return Expectation(np.concatenate([expected.sum(axis=(1, 2)), counts.ravel()]), log_likelihood)

    def maximise(self, counts: Floats, parameters: Floats) -> Floats:
        shares, draws = self.split(counts + self.pseudo)
        draws = draws / draws.sum(axis=1, keepdims=True)
        if self.fixed_first:
            draws[0] = 1 / draws.shape[1]
        return np.concatenate([shares / shares.sum(), draws.ravel()])

    def log_prior(self, parameters: Floats) -> float:
        moving = self.components + self.pairs.shape[0] * self.fixed_first
        free = np.concatenate([parameters[: self.components], parameters[moving:]])
        return self.pseudo * float(np.log(free).sum()) if self.pseudo else 0.0


def start_of(model: Mixture, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    draws = rng.dirichlet(np.ones(len(model.pairs)), model.components)
    if model.fixed_first:
        draws[0] = 1 / draws.shape[1]
    return np.concatenate([rng.dirichlet(np.ones(model.components)), draws.ravel()])


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    symbols = draw(st.integers(2, 5))
    drawn = draw(st.binary(min_size=symbols**2, max_size=symbols**2))
    pairs = np.frombuffer(drawn, np.uint8).reshape(symbols, symbols).astype(np.float64)
    pairs[0, 0] += 1.0
    return Mixture(pairs, draw(st.integers(1, 3)), draw(st.sampled_from((0.0, 0.5, 1.0))), draw(st.booleans()))


OPTIONS = st.builds(
    FitOptions, st.sampled_from((0.0, 1e-9, 1e-4)), st.integers(1, 60), st.sampled_from(("squarem", "none"))
)


@given(mixtures(), OPTIONS, st.integers(0, 5))
def test_the_objective_never_falls_and_parameters_stay_distributions(
    model: Mixture, options: FitOptions, seed: int
) -> None:
    start = start_of(model, seed)
    kept: list[FitState] = []
    result = fit(model, start, options, keep=kept.append)
    objective = [iteration.log_posterior for iteration in result.trace]
    assert objective == sorted(objective)
    assert [iteration.number for iteration in result.trace] == list(range(len(objective)))
    assert len(objective) <= options.max_iterations + 1
    assert all(iteration.change >= 0 for iteration in result.trace)
    for state in kept:
        np.testing.assert_allclose(np.add.reduceat(state.parameters, model.distributions), 1.0, rtol=1e-12)
        assert (state.parameters >= 0).all()
        if model.fixed_first:
            assert (model.split(state.parameters)[1][0] == model.split(start)[1][0]).all()
    found = model.expect(result.parameters)
    assert result.log_likelihood == found.log_likelihood
    assert result.log_posterior == found.log_likelihood + model.log_prior(result.parameters)


@given(mixtures(), OPTIONS, st.integers(0, 40))
def test_an_interrupted_loop_ends_as_one_that_was_not(model: Mixture, options: FitOptions, at: int) -> None:
    kept: list[FitState] = []
    whole = fit(model, start_of(model, 1), options, keep=kept.append)
    resumed = fit(model, kept[min(at, len(kept) - 1)], options)
    assert resumed.parameters.tobytes() == whole.parameters.tobytes()
    assert [i.log_posterior for i in resumed.trace] == [i.log_posterior for i in whole.trace]
    assert (resumed.converged, resumed.reason) == (whole.converged, whole.reason)


@given(mixtures(), st.integers(0, 5))
def test_zeros_stay_zeros_and_extrapolation_makes_none(model: Mixture, seed: int) -> None:
    start = start_of(model, seed)
    if not model.pseudo:
        _, draws = model.split(start)
        if model.components > 1 and not model.fixed_first:
            draws[1, -1] = 0.0
            draws[1] /= draws[1].sum()
    kept: list[FitState] = []
    fit(model, start, FitOptions(0.0, 30), keep=kept.append)
    for before, after in itertools.pairwise(kept):
        assert (after.parameters[before.parameters == 0] == 0).all()
        if after.trace[-1].step > 1.0:
            assert ((after.parameters == 0) == (before.plain == 0)).all()


def test_acceleration_takes_fewer_iterations_to_a_point_as_good() -> None:
    rng = np.random.default_rng(3)
    draws = np.array([[0.5, 0.3, 0.1, 0.1], [0.3, 0.3, 0.2, 0.2]])
    pairs = 1e5 * np.einsum("k,ka,kb->ab", [0.4, 0.6], draws, draws) + rng.random((4, 4))
    model = Mixture(pairs, 2)
    plain = fit(model, start_of(model, 1), FitOptions(1e-12, 20_000, "none"))
    fast = fit(model, start_of(model, 1), FitOptions(1e-12, 20_000))
    assert plain.converged
    assert fast.converged
    assert len(fast.trace) < len(plain.trace) / 4
    assert fast.log_posterior >= plain.log_posterior - 1e-6 * abs(plain.log_posterior)
    # Fixed point: nothing moves from where the loop ended.
    again = fit(model, fast.parameters, FitOptions(1e-9))
    assert len(again.trace) == 2
    np.testing.assert_allclose(again.parameters, fast.parameters, atol=1e-4)


def test_watchers_hear_of_each_iteration_after_its_state_is_kept() -> None:
    model = Mixture(np.array([[5.0, 1.0], [2.0, 9.0]]), 2)
    heard: list[int] = []
    result = fit(
        model,
        start_of(model, 2),
        FitOptions(0.0, 5),
        lambda i: heard.append(i.number),
        lambda s: heard.append(-len(s.trace)),
    )
    assert heard == [n for i in result.trace for n in (-i.number - 1, i.number)]


def test_a_start_without_probability_is_refused() -> None:
    model = Mixture(np.ones((2, 2)), 1)
    with pytest.raises(InputError, match="log-likelihood of -inf"):
        fit(model, np.array([1.0, 1.0, 0.0]))


def test_a_step_that_lowers_the_objective_ends_the_loop() -> None:
    class Wrong(Mixture):
        def maximise(self, counts: Floats, parameters: Floats) -> Floats:
            return np.array([1.0, 0.001, 0.999])

    model = Wrong(np.array([[5.0, 5.0], [5.0, 5.0]]), 1)
    start = np.array([1.0, 0.5, 0.5])
    result = fit(model, start)
    assert not result.converged
    assert "the M-step is no maximum" in result.reason
    assert (result.parameters == start).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tolerance": -1.0}, "tolerance of -1.0"),
        ({"tolerance": math.nan}, "tolerance of nan"),
        ({"tolerance": math.inf}, "tolerance of inf"),
        ({"max_iterations": 0}, "at most 0 iterations"),
        ({"acceleration": "fast"}, "'squarem' or 'none'"),
    ],
)
def test_bad_options_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FitOptions(**values)  # type: ignore[arg-type]


def test_the_bound_of_step_lengths_shrinks_after_a_vain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(em, "_step_length", lambda *_: 1e6)
    model = Mixture(np.array([[50.0, 10.0, 3.0], [20.0, 90.0, 5.0], [1.0, 2.0, 30.0]]), 3)
    result = fit(model, start_of(model, 2), FitOptions(0.0, 60))
    steps = [iteration.step for iteration in result.trace]
    objective = [iteration.log_posterior for iteration in result.trace]
    assert objective == sorted(objective)
    assert max(steps) > 1.0
