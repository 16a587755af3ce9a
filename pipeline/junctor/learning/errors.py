"""Standard errors of parameters from the observed information. Main function: `standard_errors`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from junctor.learning.observations import Observations
from junctor.model.errors import BudgetError
from junctor.model.network import Network
from junctor.planning.budget import approximate

Floats = npt.NDArray[np.float64]
# Step of a derivative, as a share of the smaller of both probabilities that it changes: squared it is the error.
STEP = 1e-4
# Share of the information of rows without gaps below which what is left is the error of derivatives.
NO_INFORMATION = 1e-7


@dataclass(frozen=True, slots=True)
class _Coordinates:
    """Free coordinates of distributions: every entry above 0 but the largest, which is 1 minus the others.

    entries: int64 [coordinates], in the flat tables.
    references: int64 [coordinates], the largest entry of the same distribution.
    """

    entries: npt.NDArray[np.int64]
    references: npt.NDArray[np.int64]


def standard_errors(
    observations: Observations,
    values: Floats,
    pseudo_counts: Floats | None = None,
    fixed: npt.NDArray[np.bool_] | None = None,
    allowed: int | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> Floats:
    """Return the standard error of every entry, float64 [entries]: 0 where it is fixed, and where it is 0 or 1.

    The observed information is -d2 Q(t, s) / dt dt - d2 Q(t, s) / dt ds at t = s (Oakes 1999), which equals that of
    Louis (1982); Q needs expected counts alone. Derivatives by s are central differences: two E-steps a parameter.

    observations: evidence.
    values: float64 [entries], the fitted tables, flat.
    pseudo_counts: float64 [entries], of a prior; none if not given.
    fixed: bool [entries], entries that were not fitted.
    allowed: bytes for the information matrix.
    watch: told after each parameter: how many are done, and how many there are.
    Raises BudgetError where the matrix takes more, and EvidenceError never: a singular information gives errors of inf.
    """
    free = _coordinates(observations.network, values, fixed)
    count = len(free.entries)
    # The matrix, its inverse, and the work of both.
    needed = 4 * 8 * count * count
    if allowed is not None and needed > allowed:
        raise BudgetError(
            f"standard errors of {count:,} free parameters take {approximate(needed)}, allowed are "
            f"{approximate(allowed)}: fix variables that are known, give more memory, or leave the errors out"
        )
    counts = observations.expect(values).counts + (0.0 if pseudo_counts is None else pseudo_counts)
    information = _complete_information(free, values, counts)
    scale = np.sqrt(np.maximum(np.diag(information), np.finfo(float).tiny))
    for number in range(count):
        # The information that gaps take.
        information[:, number] -= _derivative(observations, values, free, number)
        if watch is not None:
            watch(number + 1, count)
    # Rounding alone makes it differ from its transpose.
    information = (information + information.T) / 2
    errors = np.zeros(len(values))
    variances, covariance = _inverse(information, scale)
    errors[free.entries] = np.sqrt(variances)
    for reference in np.unique(free.references):
        here = np.flatnonzero(free.references == reference)
        unknown = np.isinf(variances[here]).any()
        errors[reference] = np.inf if unknown else np.sqrt(max(0.0, covariance[np.ix_(here, here)].sum()))
    return errors


def _coordinates(network: Network, values: Floats, fixed: npt.NDArray[np.bool_] | None) -> _Coordinates:
    entries, references, place = [], [], 0
    for factor in network.factors:
        states = factor.table.shape[-1]
        for first in range(place, place + factor.table.size, states):
            row = np.arange(first, first + states)
            some = row[(values[row] > 0) & (True if fixed is None else ~fixed[row])]
            if len(some) > 1:
                largest = some[np.argmax(values[some])]
                entries.append(some[some != largest])
                references.append(np.full(len(some) - 1, largest))
        place += factor.table.size
    none = np.zeros(0, dtype=np.int64)
    return _Coordinates(np.concatenate([none, *entries]), np.concatenate([none, *references]))


def _complete_information(free: _Coordinates, values: Floats, counts: Floats) -> Floats:
    """Return the information of rows without gaps that have these counts."""
    own = counts[free.entries] / values[free.entries] ** 2
    shared = counts[free.references] / values[free.references] ** 2
    same = free.references[:, None] == free.references[None, :]
    information: Floats = np.where(same, shared[:, None], 0.0) + np.diag(own)
    return information


def _derivative(observations: Observations, values: Floats, free: _Coordinates, number: int) -> Floats:
    """Return how the gradient of Q changes with a parameter of the E-step."""
    entry, reference = free.entries[number], free.references[number]
    step = STEP * min(values[entry], values[reference])
    counts = []
    for sign in (1, -1):
        moved = values.copy()
        moved[entry] += sign * step
        moved[reference] -= sign * step
        counts.append(observations.expect(moved).counts)
    slope = (counts[0] - counts[1]) / (2 * step)
    change: Floats = slope[free.entries] / values[free.entries] - slope[free.references] / values[free.references]
    return change


def _inverse(information: Floats, scale: Floats) -> tuple[Floats, Floats]:
    """Return the variances and the covariance; infinite variances where nothing tells of a parameter.

    scale: roots of the information of rows without gaps.
    """
    if not len(information):
        return np.zeros(0), np.zeros((0, 0))
    values, vectors = np.linalg.eigh(information / scale / scale[:, None])
    # Directions without information: parameters that others can stand in for.
    flat = values < NO_INFORMATION
    inverse = np.where(flat, 0.0, 1 / np.where(flat, 1.0, values))
    covariance = (vectors * inverse) @ vectors.T / scale / scale[:, None]
    variances = np.diag(covariance).copy()
    variances[(vectors[:, flat] ** 2).sum(axis=1) > 1e-6] = np.inf
    return np.maximum(variances, 0.0), covariance
