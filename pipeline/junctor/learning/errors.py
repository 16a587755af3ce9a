"""Standard errors of parameters from the observed information. Main objects: `standard_errors`, ObservedInformation."""

from __future__ import annotations

from collections.abc import Callable

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


class ObservedInformation:
    """The observed information of parameters, which are every entry above 0 but the largest of each distribution.

    It is -d2 Q(t, s) / dt dt - d2 Q(t, s) / dt ds at t = s (Oakes 1999), which equals that of Louis (1982); Q needs
    expected counts alone. Derivatives by s are central differences.

    observations: evidence.
    values: float64 [entries], the fitted tables, flat.
    pseudo_counts: float64 [entries], of a prior; none if not given.
    fixed: bool [entries], entries that were not fitted.
    """

    def __init__(
        self,
        observations: Observations,
        values: Floats,
        pseudo_counts: Floats | None = None,
        fixed: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        self._observations, self._values = observations, values
        # Entries of the parameters, and the largest entry of the distribution of each, which is 1 minus the others.
        self.entries, self.references = _parameters(observations.network, values, fixed)
        counts = observations.expect(values).counts + (0.0 if pseudo_counts is None else pseudo_counts)
        self._own = counts[self.entries] / values[self.entries] ** 2
        self._shared = counts[self.references] / values[self.references] ** 2

    @property
    def scale(self) -> Floats:
        """Roots of the diagonal for rows without gaps, float64 [parameters]."""
        return np.sqrt(np.maximum(self._own + self._shared, np.finfo(float).tiny))

    def times(self, direction: Floats) -> Floats:
        """Return the product with a vector, float64 [parameters], in two E-steps."""
        sums = np.bincount(self.references, direction, len(self._values))
        of_complete_rows = self._own * direction + self._shared * sums[self.references]
        # What gaps take away: the gradient of Q changes with the parameters of the E-step.
        moves = np.zeros(len(self._values))
        moves[self.entries] = direction
        moves -= sums
        moved = moves != 0
        step = STEP * float((self._values[moved] / np.abs(moves[moved])).min(initial=np.inf))
        if not np.isfinite(step):
            return np.zeros(len(direction))
        ahead, behind = (self._observations.expect(self._values + sign * step * moves).counts for sign in (1, -1))
        slope = (ahead - behind) / (2 * step) / np.where(self._values > 0, self._values, 1.0)
        product: Floats = of_complete_rows - (slope[self.entries] - slope[self.references])
        return product


def standard_errors(
    observations: Observations,
    values: Floats,
    pseudo_counts: Floats | None = None,
    fixed: npt.NDArray[np.bool_] | None = None,
    allowed: int | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> Floats:
    """Return the standard error of every entry, float64 [entries]: 0 where it is fixed, and where it is 0 or 1.

    Takes two E-steps a parameter. An entry that the evidence tells nothing of has an error of inf.

    observations, values, pseudo_counts, fixed: of ObservedInformation.
    allowed: bytes for its matrix.
    watch: told after each parameter: how many are done, and how many there are.
    Raises BudgetError where the matrix takes more.
    """
    information = ObservedInformation(observations, values, pseudo_counts, fixed)
    count = len(information.entries)
    # The matrix, its inverse, and the work of both.
    needed = 4 * 8 * count * count
    if allowed is not None and needed > allowed:
        raise BudgetError(
            f"standard errors of {count:,} free parameters take {approximate(needed)}, allowed are "
            f"{approximate(allowed)}: fix variables that are known, give more memory, or leave the errors out"
        )
    matrix = np.zeros((count, count))
    for number in range(count):
        direction = np.zeros(count)
        direction[number] = 1.0
        matrix[:, number] = information.times(direction)
        if watch is not None:
            watch(number + 1, count)
    # Rounding alone makes it differ from its transpose.
    variances, covariance = _inverse((matrix + matrix.T) / 2, information.scale)
    errors = np.zeros(len(values))
    errors[information.entries] = np.sqrt(variances)
    for reference in np.unique(information.references):
        here = np.flatnonzero(information.references == reference)
        unknown = np.isinf(variances[here]).any()
        errors[reference] = np.inf if unknown else np.sqrt(max(0.0, covariance[np.ix_(here, here)].sum()))
    return errors


def _parameters(
    network: Network, values: Floats, fixed: npt.NDArray[np.bool_] | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
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
    return np.concatenate([none, *entries]), np.concatenate([none, *references])


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
