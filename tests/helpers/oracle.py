"""Answers by summing over the full joint distribution: slow, obvious, and sharing no code with what it checks.

Only `Network` is read (`variables`, and `scope` and `table` of each factor). Two independent versions:

- `enumerate_posteriors` and `enumerate_mpe` lay all factors over one NumPy array with an axis for each variable,
  up to about 2^18 joint states. Every number is a mantissa and an integer power of two, so a product cannot
  underflow, as in log space; unlike there, it keeps all its digits (the logarithm of 1e-2000 has spent four of its
  sixteen before the decimal point).
- `exact_posteriors` walks over the joint states in plain Python with fractions, for tiny networks; it checks the first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from junctor.model.network import Network

Hard = Mapping[int, int]
Soft = Mapping[int, Sequence[float] | npt.NDArray[np.float64]]

IMPOSSIBLE = -math.inf
# Power of two of a zero: far below any that products of doubles can reach, and far above the end of int64.
ZERO_POWER = -(2**40)


class Scaled(NamedTuple):
    """The numbers `mantissa * 2**power`; a zero has the mantissa 0 and a power of at most ZERO_POWER / 2."""

    mantissa: npt.NDArray[np.float64]
    power: npt.NDArray[np.int64]


def enumerate_posteriors(network: Network, hard: Hard, soft: Soft) -> tuple[float, dict[int, npt.NDArray[np.float64]]]:
    """Return the natural log of P(e) and the posterior of every variable; (-inf, {}) for impossible evidence.

    hard: variable -> observed state. soft: variable -> likelihood of each of its states, not normalised.
    In a Markov network P(e) is the unnormalised sum, as in UAI's PR task.
    """
    joint = joint_table(network, hard, soft)
    top = joint.power.max()
    if top <= ZERO_POWER // 2:
        return IMPOSSIBLE, {}
    weights = np.ldexp(joint.mantissa, np.maximum(joint.power - top, -5000).astype(np.int32))
    total = weights.sum()
    posteriors = {}
    for variable in range(len(network.variables)):
        others = tuple(axis for axis in range(weights.ndim) if axis != variable)
        masses = weights.sum(axis=others)
        posteriors[variable] = masses / masses.sum()
    return math.log(total) + int(top) * math.log(2.0), posteriors


def log_joint_table(network: Network) -> npt.NDArray[np.float64]:
    """Return the log of the product of all factors, an axis for each variable; -inf where it is 0."""
    joint = joint_table(network, {}, {})
    with np.errstate(divide="ignore"):
        return np.log(joint.mantissa) + np.where(joint.mantissa > 0, joint.power, 0) * math.log(2.0)


def enumerate_mpe(network: Network, hard: Hard, soft: Soft) -> tuple[float, set[tuple[int, ...]]]:
    """Return the largest log of P(x, e) and all assignments within 1e-9 of it; (-inf, set()) where P(e) = 0."""
    joint = joint_table(network, hard, soft)
    with np.errstate(divide="ignore"):
        logs = np.log(joint.mantissa) + joint.power * math.log(2.0)
    best = float(logs.max())
    if best == IMPOSSIBLE:
        return IMPOSSIBLE, set()
    return best, {tuple(int(state) for state in states) for states in np.argwhere(logs >= best - 1e-9)}


def log_joint(network: Network, assignment: Sequence[int], soft: Soft) -> float:
    """Return the natural log of the joint value of a full assignment times its likelihoods, -inf for zero."""
    terms = [float(factor.table[tuple(assignment[i] for i in factor.scope)]) for factor in network.factors]
    terms += [float(values[assignment[variable]]) for variable, values in soft.items()]
    return math.fsum(map(math.log, terms)) if all(terms) else IMPOSSIBLE


def joint_table(network: Network, hard: Hard, soft: Soft) -> Scaled:
    """Return the product of all factors, likelihoods and observations, with one axis for each variable."""
    cardinalities = [len(variable.states) for variable in network.variables]
    product = Scaled(np.ones(cardinalities), np.zeros(cardinalities, dtype=np.int64))
    for factor in network.factors:
        product = _times(product, _spread(factor.table, factor.scope, len(cardinalities)))
    for variable, values in soft.items():
        product = _times(product, _spread(np.asarray(values, dtype=np.float64), (variable,), len(cardinalities)))
    for variable, state in hard.items():
        indicator = np.zeros(cardinalities[variable])
        indicator[state] = 1.0
        product = _times(product, _spread(indicator, (variable,), len(cardinalities)))
    return product


def _spread(table: npt.NDArray[np.float64], scope: Sequence[int], axes: int) -> npt.NDArray[np.float64]:
    """Bring the axes of `table` into the order of the variables, with length 1 where it has no axis."""
    order = sorted(range(len(scope)), key=lambda axis: scope[axis])
    shape = [1] * axes
    for axis, variable in enumerate(scope):
        shape[variable] = table.shape[axis]
    return table.transpose(order).reshape(shape)


def _times(product: Scaled, table: npt.NDArray[np.float64]) -> Scaled:
    mantissa, power = np.frexp(table)
    mantissa, carry = np.frexp(product.mantissa * mantissa)
    total = product.power + power + carry
    return Scaled(mantissa, np.where(mantissa == 0.0, ZERO_POWER, total))


def exact_posteriors(network: Network, hard: Hard, soft: Soft) -> tuple[Fraction, dict[int, list[Fraction]]]:
    """Return P(e) and the posteriors as fractions of the doubles in the tables; (0, {}) where P(e) = 0."""
    masses = {v: [Fraction(0)] * len(variable.states) for v, variable in enumerate(network.variables)}
    total = Fraction(0)
    for assignment, value in exact_joint(network, hard, soft):
        total += value
        for variable, state in enumerate(assignment):
            masses[variable][state] += value
    if total == 0:
        return total, {}
    return total, {variable: [mass / total for mass in states] for variable, states in masses.items()}


def exact_mpe(network: Network, hard: Hard, soft: Soft) -> tuple[Fraction, set[tuple[int, ...]]]:
    """Return the largest joint value and the assignments that reach it exactly; (0, set()) for P(e) = 0."""
    values = dict(exact_joint(network, hard, soft))
    best = max(values.values(), default=Fraction(0))
    return best, {assignment for assignment, value in values.items() if value == best}


def exact_joint(network: Network, hard: Hard, soft: Soft) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    """Yield the assignments that agree with `hard` and whose value is not zero, with that value."""
    choices = [
        [hard[v]] if v in hard else list(range(len(variable.states))) for v, variable in enumerate(network.variables)
    ]
    for assignment in itertools.product(*choices):
        terms = [float(factor.table[tuple(assignment[v] for v in factor.scope)]) for factor in network.factors]
        terms += [float(values[assignment[v]]) for v, values in soft.items()]
        if all(terms):
            yield assignment, math.prod(map(Fraction, terms), start=Fraction(1))


def log_fraction(value: Fraction) -> float:
    """Return the natural log of a fraction of any size, -inf for zero."""
    return math.log(value.numerator) - math.log(value.denominator) if value else IMPOSSIBLE
