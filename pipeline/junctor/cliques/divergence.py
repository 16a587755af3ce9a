"""How far the distribution of one network is from that of another. Main function: `divergence`."""

from __future__ import annotations

from typing import Unpack

import numpy as np
import numpy.typing as npt

from junctor.cliques.joint import joint_posteriors
from junctor.model.difference import aligned
from junctor.model.errors import ModelError
from junctor.model.network import Network
from junctor.model.option_table import JointOptions


def divergence(network: Network, other: Network, **options: Unpack[JointOptions]) -> float:
    """Return the Kullback-Leibler divergence of another network from one, in nats; `inf` where it rules out states.

    The mean of log P - log Q under P, table by table: over tables of either network only joint posteriors of P count.
    network, other: P and Q, over the same variables and states, in any order.
    options: as of `joint_posteriors`.
    Raises ModelError for other variables, errors of `joint_posteriors`, BudgetError among them.
    """
    network, other = network.expanded, other.expanded
    states, theirs = ({each.name: each.states for each in some.variables} for some in (network, other))
    if {name: sorted(its) for name, its in states.items()} != {name: sorted(its) for name, its in theirs.items()}:
        raise ModelError("the networks have other variables or states: no divergence of one from the other")
    tables = [(each, factor.scope, factor.table) for each in (network, other) for factor in each.factors]
    scopes = [tuple(each.variables[v].name for v in scope) for each, scope, _ in tables]
    asked = list(dict.fromkeys(tuple(sorted(scope)) for scope in scopes if scope))
    # Without any table one question still tells the sum over all states.
    asked = asked or [(network.variables[0].name,)]
    found = joint_posteriors(network, asked, **options)
    joint = dict(zip(asked, found.posteriors, strict=True))
    sums = {"P": -found.log_evidence if network.kind == "markov" else 0.0, "Q": 0.0}
    if other.kind == "markov":
        sums["Q"] = -joint_posteriors(other, asked[:1], **options).log_evidence
    for (each, _, table), scope in zip(tables, scopes, strict=True):
        names = tuple(sorted(scope))
        table = aligned(table, scope, states if each is network else theirs, names, states)
        sums["P" if each is network else "Q"] += _mean_log(joint.get(names, np.ones(())), table)
    # Roundings of equal networks.
    return max(0.0, sums["P"] - sums["Q"])


def _mean_log(shares: npt.NDArray[np.float64], table: npt.NDArray[np.float64]) -> float:
    """Return the mean logarithm of the entries of a table; -inf for a zero that has a probability."""
    probable = shares > 0
    with np.errstate(divide="ignore"):
        return float(shares[probable] @ np.log(table[probable]))
