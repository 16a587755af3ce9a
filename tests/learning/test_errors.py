"""Standard errors against the curvature of the likelihood, and against formulas where there are any."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from helpers.noisy_max import noisy_network
from hypothesis import given, settings
from hypothesis import strategies as st
from junctor import generate
from junctor.evidence.batch import EvidenceBatch
from junctor.learning.errors import (
    ObservedInformation,
    parameter_errors,
    refuse_errors,
    shared_parameters,
    standard_errors,
)
from junctor.learning.network_fit import NetworkFit
from junctor.learning.observations import Observations, observe, values_of
from junctor.learning.parameters import NetworkParameters
from junctor.model.errors import BudgetError
from junctor.model.network import Factor, Network, Variable

Floats = npt.NDArray[np.float64]


def gaps(network: Network, rows: int, missing: float, seed: int) -> EvidenceBatch:
    """Return samples without some cells."""
    cells = generate.sample(network, rows, seed)
    cells[np.random.default_rng(seed).random(cells.shape) < missing] = -1
    return EvidenceBatch(rows, {v: cells[:, v].copy() for v in range(cells.shape[1])})


def fitted(found: Observations, values: Floats, iterations: int) -> Floats:
    """Return tables after some iterations of EM."""
    for _ in range(iterations):
        counts, place, tables = found.expect(values).counts, 0, []
        for factor in found.network.factors:
            table = counts[place : place + factor.table.size].reshape(factor.table.shape)
            tables.append((table / table.sum(axis=-1, keepdims=True)).ravel())
            place += factor.table.size
        values = np.concatenate(tables)
    return values


def curvature(found: Observations, values: Floats) -> Floats:
    """Return standard errors from second differences of the log-likelihood."""
    pairs, place = [], 0
    for factor in found.network.factors:
        states = factor.table.shape[-1]
        for first in range(place, place + factor.table.size, states):
            pairs += [(first + s, first + states - 1) for s in range(states - 1)]
        place += factor.table.size
    step = 1e-3 * values.min()

    def at(*moves: tuple[tuple[int, int], int]) -> float:
        moved = values.copy()
        for (entry, last), sign in moves:
            moved[entry] += sign * step
            moved[last] -= sign * step
        return found.expect(moved).log_likelihood

    hessian = np.array(
        [
            [sum(s * t * at((one, s), (other, t)) for s in (1, -1) for t in (1, -1)) / (4 * step**2) for other in pairs]
            for one in pairs
        ]
    )
    covariance = np.linalg.inv(-hessian)
    errors = np.zeros(len(values))
    for i, (entry, last) in enumerate(pairs):
        errors[entry] = math.sqrt(covariance[i, i])
        here = [j for j, (_, other) in enumerate(pairs) if other == last]
        errors[last] = math.sqrt(covariance[np.ix_(here, here)].sum())
    return errors


@given(st.integers(0, 1000))
@settings(max_examples=8)
def test_errors_are_the_curvature_of_the_likelihood(seed: int) -> None:
    network = generate.random_network(3, states=2, seed=seed)
    found = observe(network, [gaps(network, 400, 0.2, seed)])
    values = fitted(found, values_of(network), 200)
    if values.min() < 0.02:
        return
    np.testing.assert_allclose(standard_errors(found, values), curvature(found, values), rtol=2e-3)


def test_complete_rows_have_the_errors_of_multinomial_counts() -> None:
    network = generate.random_network(5, states=3, seed=2)
    found = observe(network, [gaps(network, 3000, 0.0, 1)])
    counts = found.expect(values_of(network)).counts
    values, place, expected = np.zeros(0), 0, np.zeros(0)
    for factor in network.factors:
        table = counts[place : place + factor.table.size].reshape(factor.table.shape)
        totals = table.sum(axis=-1, keepdims=True)
        shares = table / totals
        values = np.concatenate([values, shares.ravel()])
        expected = np.concatenate([expected, np.sqrt(shares * (1 - shares) / totals).ravel()])
        place += factor.table.size
    np.testing.assert_allclose(standard_errors(found, values), expected, rtol=1e-6)


def test_gaps_make_errors_larger_and_a_prior_smaller() -> None:
    network = generate.random_network(4, states=2, seed=5)
    values = values_of(network)
    complete = standard_errors(observe(network, [gaps(network, 1000, 0.0, 1)]), values)
    found = observe(network, [gaps(network, 1000, 0.3, 1)])
    with_gaps = standard_errors(found, values)
    assert with_gaps.mean() > 1.1 * complete.mean()
    assert (standard_errors(found, values, pseudo_counts=100 * values) <= with_gaps).all()


def test_what_is_fixed_or_certain_has_no_error() -> None:
    network = generate.random_network(4, states=2, seed=5)
    found = observe(network, [gaps(network, 500, 0.3, 1)])
    values = values_of(network)
    fixed = np.zeros(len(values), dtype=np.bool_)
    fixed[: network.factors[0].table.size] = True
    errors = standard_errors(found, values, fixed=fixed)
    assert not errors[fixed].any()
    assert (errors[~fixed] > 0).all()
    # What others vary with is known better where one of them is.
    assert (errors[~fixed] <= standard_errors(found, values)[~fixed] * (1 + 1e-9)).all()
    certain = values.copy()
    certain[:2] = 1.0, 0.0
    assert not standard_errors(observe(network, [EvidenceBatch(1)]), certain)[:2].any()


def test_a_variable_that_nobody_observed_has_no_finite_error() -> None:
    network = generate.random_network(3, states=2, seed=7)
    batch = gaps(network, 300, 0.0, 1)
    child = next(v for v, factor in enumerate(network.factors) if not any(v in f.scope[:-1] for f in network.factors))
    found = observe(network, [EvidenceBatch(300, {v: c for v, c in batch.states.items() if v != child})])
    errors = standard_errors(found, values_of(network))
    place = sum(factor.table.size for factor in network.factors[:child])
    assert np.isinf(errors[place : place + network.factors[child].table.size]).all()


def half_observed(latent: float) -> Observations:
    """Return 10,000 rows that observe the second of two variables alone, and each state as often as it is likely.

    latent: probability of the first state of the first variable.
    """
    tables = (Factor((0,), np.array([latent, 1 - latent])), Factor((0, 1), np.array([[0.9, 0.1], [0.3, 0.7]])))
    network = Network("", tuple(Variable(name, ("a", "b")) for name in "xy"), tables)
    share = 0.3 + 0.6 * latent
    return observe(network, [EvidenceBatch(2, {1: np.arange(2, dtype=np.int32)})], [1e4 * np.array([share, 1 - share])])


@pytest.mark.parametrize("latent", [0.5, 0.9, 0.9999])
@pytest.mark.parametrize("pseudo", [1.0, 1e-2, 2e-4])
def test_directions_that_are_nearly_flat_count(latent: float, pseudo: float) -> None:
    # The rows tell one number, and a prior the others, hardly.
    found = half_observed(latent)
    values, share = values_of(found.network), 0.3 + 0.6 * latent
    slope = np.array([0.6, latent, 1 - latent])
    information = 10000 / (share * (1 - share)) * np.outer(slope, slope)
    information += pseudo * np.diag(1 / values[::2] ** 2 + 1 / values[1::2] ** 2)
    expected = np.repeat(np.sqrt(np.diag(np.linalg.inv(information))), 2)
    errors = standard_errors(found, values, pseudo_counts=np.full(6, pseudo))
    # The information of a flat direction is known up to 1e-9 of that of complete rows.
    np.testing.assert_allclose(errors, expected, rtol=1e-6 + 1e-9 * 1e4 / (2 * pseudo))


@pytest.mark.parametrize("latent", [0.5, 1 - 1e-4, 1 - 1e-7])
def test_parameters_that_others_can_stand_in_for_have_no_finite_error(latent: float) -> None:
    found = half_observed(latent)
    assert np.isinf(standard_errors(found, values_of(found.network))).all()


def test_too_many_parameters_are_refused() -> None:
    network = generate.random_network(4, seed=1)
    with pytest.raises(BudgetError, match=r"free parameters take .* bytes\), allowed are .*--memory"):
        standard_errors(observe(network, []), values_of(network), allowed=100)


def without_prior(parameters: NetworkParameters, found: Observations) -> NetworkFit:
    return NetworkFit(parameters, np.zeros(parameters.size), found)


def check_information(parameters: NetworkParameters, found: Observations, seed: int) -> None:
    """Compare d' I d with the second difference of the log-likelihood along random directions d."""
    shared = shared_parameters(without_prior(parameters, found))
    first = shared.first
    values, fixed = parameters.values[first], parameters.is_fixed[first]
    information = ObservedInformation(shared, values, fixed=fixed)
    rng = np.random.default_rng(seed)
    for _ in range(5):
        direction = rng.normal(size=len(information.entries)) * values[information.entries]
        moves = np.zeros(len(values))
        moves[information.entries] = direction
        moves -= np.bincount(information.references, direction, len(values))
        step = 1e-3 * (values[moves != 0] / np.abs(moves[moves != 0])).min()
        here, ahead, behind = (shared.expect(values + sign * step * moves).log_likelihood for sign in (0, 1, -1))
        expected = (2 * here - ahead - behind) / step**2
        assert float(direction @ information.times(direction)) == pytest.approx(expected, rel=2e-3, abs=1e-3 / step)


def test_information_of_noisy_nodes_is_the_curvature_of_the_likelihood() -> None:
    network = noisy_network(True, seed=3)
    parameters = NetworkParameters(network, fixed=frozenset([network.index["p0"]]))
    check_information(parameters, observe(network, [gaps_in_public(network, 300, 0.2)]), 1)


def gaps_in_public(network: Network, rows: int, missing: float) -> EvidenceBatch:
    """Return evidence that observes the variables of a file only, its states drawn evenly."""
    rng = np.random.default_rng(5)
    states = {v: rng.integers(each.cardinality, size=rows) for v, each in enumerate(network.public)}
    return EvidenceBatch(
        rows, {v: np.where(rng.random(rows) < missing, -1, column).astype(np.int32) for v, column in states.items()}
    )


def tied(seed: int) -> tuple[NetworkParameters, tuple[int, int]]:
    network = generate.random_network(5, states=2, seed=seed)
    sizes = [factor.table.shape for factor in network.factors]
    pair = next((a, b) for a in range(5) for b in range(a + 1, 5) if sizes[a] == sizes[b])
    parameters = NetworkParameters(network, tied=(pair,))
    return NetworkParameters(parameters.network_of(parameters.values), tied=(pair,)), pair


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_information_of_ties_is_the_curvature_of_the_likelihood(seed: int) -> None:
    parameters, _ = tied(seed)
    network = parameters.network
    check_information(parameters, observe(network, [gaps(network, 300, 0.3, seed)]), seed)


def test_ties_share_their_rows() -> None:
    parameters, (one, other) = tied(4)
    network = parameters.network
    found = observe(network, [gaps(network, 2000, 0.0, 1)])
    # Where the values are the shares of the counts, the variance is that of a share.
    counts = parameters.pooled(parameters.counts(found.expect(parameters.values).counts, parameters.values))
    starts, lengths = parameters.distributions, parameters.lengths
    sums = np.repeat(np.add.reduceat(counts, starts), lengths)
    seen = sums > 0
    values = np.where(seen, counts / np.where(seen, sums, 1.0), parameters.values)
    with np.errstate(divide="ignore"):
        expected = np.sqrt(values * (1 - values) / sums)
    found_errors = parameter_errors(without_prior(parameters, found), values)
    np.testing.assert_allclose(found_errors, expected, rtol=1e-9)
    spans = [parameters.blocks[v].span for v in (one, other)]
    np.testing.assert_array_equal(found_errors[spans[0]], found_errors[spans[1]])


@given(st.integers(0, 1000), st.sampled_from([0.5, 3.0]))
@settings(max_examples=10)
def test_complete_rows_need_no_derivatives(seed: int, prior: float) -> None:
    network = generate.random_network(4, states=3, seed=seed)
    parameters = NetworkParameters(network, fixed=frozenset([1]))
    found = observe(network, [gaps(network, 200, 0.0, seed)])
    pseudo = np.where(parameters.is_fixed, 0.0, prior)
    quick = parameter_errors(NetworkFit(parameters, pseudo, found), parameters.values)
    slow = standard_errors(found, parameters.values, pseudo, parameters.is_fixed)
    np.testing.assert_allclose(quick, slow, rtol=1e-6)


def test_errors_of_parameters_are_those_of_entries_and_tell_how_long_they_take() -> None:
    network = generate.random_network(4, states=2, seed=5)
    parameters = NetworkParameters(network)
    found = observe(network, [gaps(network, 500, 0.3, 1)])
    told: list[tuple[int, int, float]] = []
    model = without_prior(parameters, found)
    quick = parameter_errors(model, parameters.values, watch=lambda *at: told.append(at))
    np.testing.assert_array_equal(quick, standard_errors(found, parameters.values))
    free = len(ObservedInformation(found, parameters.values).entries)
    assert [done for done, _, _ in told] == list(range(free + 1))
    assert {of for _, of, _ in told} == {free}
    assert told[0][2] > 0
    assert told[-1][2] == 0


def test_errors_that_take_too_much_are_refused_before_the_fit() -> None:
    parameters, _ = tied(1)
    shared = shared_parameters(without_prior(parameters, observe(parameters.network, [])))
    first = shared.first
    free = len(ObservedInformation(shared, parameters.values[first]).entries)
    needed = 4 * 8 * free**2
    refuse_errors(parameters, needed)
    with pytest.raises(BudgetError, match=f"errors of {free} free parameters"):
        refuse_errors(parameters, needed - 1)
