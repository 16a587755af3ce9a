"""How far one distribution is from another, against sums over all joint states, and `junctor compare`."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from helpers import strategies
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from helpers.oracle import log_joint_table
from hypothesis import assume, given
from junctor.cliques.divergence import divergence
from junctor.formats import read_network, write_network
from junctor.generate import grid, random_network
from junctor.model.errors import ModelError
from junctor.model.network import Factor, Network


def by_enumeration(network: Network, other: Network) -> float:
    first, second = (distribution(each) for each in (network, other))
    probable = first > 0
    if (second[probable] == 0).any():
        return math.inf
    return float(first[probable] @ np.log(first[probable] / second[probable]))


def distribution(network: Network) -> npt.NDArray[np.float64]:
    logs = log_joint_table(network)
    weights: npt.NDArray[np.float64] = np.exp(logs - logs.max())
    return weights / weights.sum()


@pytest.mark.parametrize("seed", range(6))
def test_divergence_equals_the_sum_over_all_states(seed: int) -> None:
    first, second = (random_network(7, states=2, seed=seed + more) for more in (0, 100))
    markov = replace(second, kind="markov", factors=(*second.factors, Factor((), np.array(3.0))))
    fields = grid(2, 3, seed=seed), grid(2, 3, seed=seed + 1)
    for one, other in ((first, second), (first, markov), (markov, first), fields):
        assert divergence(one, other) == pytest.approx(by_enumeration(one, other), rel=1e-9)
    assert divergence(first, first) == 0


@given(strategies.networks(max_variables=5, max_joint=128))
def test_zeros_of_the_other_network_rule_states_out(network: Network) -> None:
    entries = np.concatenate([[0.0], *(factor.table.ravel() for factor in network.factors)])
    assume(((entries == 0) | ((entries > 1e-19) & (entries < 1e19))).all())
    other = replace(network, factors=tuple(turned(factor) for factor in network.factors))
    assume(distribution_exists(network) and distribution_exists(other))
    assert divergence(network, other) == pytest.approx(by_enumeration(network, other), rel=1e-6, abs=1e-12)


def turned(factor: Factor) -> Factor:
    """The states of the child the other way round."""
    return Factor(factor.scope, np.flip(factor.table, -1).copy() if factor.scope else factor.table)


def distribution_exists(network: Network) -> bool:
    return bool(log_joint_table(network).max() > -math.inf)


def test_other_variables_have_no_divergence() -> None:
    with pytest.raises(ModelError, match="other variables or states"):
        divergence(grid(2, 2), grid(2, 3))


def test_the_command_line(tmp_path: Path) -> None:
    asia = read_network(ASIA)
    factors = list(asia.factors)
    factors[asia.index["tub"]] = Factor(factors[asia.index["tub"]].scope, np.array([[0.07, 0.93], [0.01, 0.99]]))
    write_network(replace(asia, factors=tuple(factors)), tmp_path / "other.bif")
    same = junctor_cli("compare", ASIA, ASIA).stdout.splitlines()
    assert same == ["no difference", "Kullback-Leibler divergence of OTHER from NETWORK: 0 nats"]
    told = junctor_cli("compare", ASIA, str(tmp_path / "other.bif")).stdout
    assert "tub=yes given asia=yes: 0.05, 0.07" in told
    found = json.loads(junctor_cli("compare", ASIA, str(tmp_path / "other.bif"), "--json").stdout)
    # Of the rows of a table those count that the evidence above it makes probable: one in a hundred visits Asia.
    exact = 0.01 * (0.05 * math.log(0.05 / 0.07) + 0.95 * math.log(0.95 / 0.93))
    assert (found["equal"], found["divergence"]) == (False, pytest.approx(exact, rel=1e-9))
    factors[asia.index["tub"]] = Factor(factors[asia.index["tub"]].scope, np.array([[0, 1], [0.01, 0.99]]))
    write_network(replace(asia, factors=tuple(factors)), tmp_path / "never.bif")
    assert "infinite: the second rules out" in junctor_cli("compare", ASIA, str(tmp_path / "never.bif")).stdout
    missing = junctor_cli("compare", ASIA, str(tmp_path / "nothing.bif"))
    assert (missing.exit_code, "there is no such file" in missing.stderr) == (3, True)
