"""Standard errors of parameters from the observed information.

Main objects: `standard_errors`, ObservedInformation, Shared; of what the fit of a network has, `parameter_errors`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from junctor.learning.expectation import Expectation, Floats
from junctor.model.errors import BudgetError
from junctor.planning.budget import exact_bytes

if TYPE_CHECKING:
    from junctor.learning.network_fit import NetworkFit
    from junctor.learning.parameters import NetworkParameters

Integers = npt.NDArray[np.int64]
# Step of a derivative, as a share of the smaller of both probabilities that it changes: squared it is the error.
STEP = 1e-4
# Share of the information of rows without gaps below which what is left may be the error of derivatives, which is some
# 1e-9, and more beside probabilities near 0.
NO_INFORMATION = 1e-8
# Share of a variance that may come from directions without information, which are known up to that error, too.
NEGLIGIBLE = 1e-2
# Probabilities below this one count as 0, to which EM only comes close.
LEAST = 1e-9


class Counted(Protocol):
    """What has expected counts: parameters that are distributions, one after the other in a flat array."""

    @property
    def distributions(self) -> Integers:
        """Where each distribution begins."""
        ...

    def expect(self, values: Floats) -> Expectation:
        """Return the expected counts of all parameters."""
        ...


class ObservedInformation:
    """The observed information of parameters, which are all entries but the largest of each distribution, and zeros.

    It is -d2 Q(t, s) / dt dt - d2 Q(t, s) / dt ds at t = s [Oakes 1999], which equals that of [Louis 1982]; Q needs
    expected counts alone. Derivatives by s are central differences.

    observations: evidence, or what else has expected counts.
    values: float64 [entries], the fitted tables, flat.
    pseudo_counts: float64 [entries], of a prior; none if not given.
    fixed: bool [entries], entries that were not fitted.
    """

    def __init__(
        self,
        observations: Counted,
        values: Floats,
        pseudo_counts: Floats | None = None,
        fixed: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        self._observations, self._values = observations, values
        # Entries of the parameters, and the largest entry of the distribution of each, which is 1 minus the others.
        self.entries, self.references = _parameters(observations.distributions, values, fixed)
        counts = observations.expect(values).counts + (0.0 if pseudo_counts is None else pseudo_counts)
        self._own = counts[self.entries] / values[self.entries] ** 2
        self._shared = counts[self.references] / values[self.references] ** 2

    @property
    def scale(self) -> Floats:
        """Roots of the diagonal for rows without gaps, float64 [parameters]."""
        # Where nothing tells of a parameter, a number whose inverse can be squared.
        return np.sqrt(np.maximum(self._own + self._shared, 1e-200))

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
    observations: Counted,
    values: Floats,
    pseudo_counts: Floats | None = None,
    fixed: npt.NDArray[np.bool_] | None = None,
    allowed: int | None = None,
    watch: Callable[[int, int, float], None] | None = None,
) -> Floats:
    """Return the standard error of every entry, float64 [entries]: 0 where it is fixed, and where it is 0 or 1.

    Takes two E-steps a parameter. An entry that the evidence tells nothing of has an error of inf.

    observations, values, pseudo_counts, fixed: of ObservedInformation.
    allowed: bytes for its matrix.
    watch: told before the first parameter and after each: how many are done, of how many, and a forecast of the
        seconds left.
    Raises BudgetError where the matrix takes more.
    """
    began = time.perf_counter()
    information = ObservedInformation(observations, values, pseudo_counts, fixed)
    count, step = len(information.entries), 2 * (time.perf_counter() - began)
    watch = watch or (lambda *_: None)
    watch(0, count, count * step)
    began = time.perf_counter()

    def tell(done: int, of: int) -> None:
        watch(done, of, (of - done) * (time.perf_counter() - began) / done)

    return _errors(information, values, allowed, tell)


def parameter_errors(
    model: NetworkFit,
    values: Floats,
    allowed: int | None = None,
    watch: Callable[[int, int, float], None] | None = None,
) -> Floats:
    """Return the standard error of every parameter of a fit, float64; values and errors as of `standard_errors`.

    model: contributions to noisy nodes are parameters, and tied variables have theirs in common.
    values: float64, the fitted parameters.
    allowed: bytes for the matrix.
    watch: as of `standard_errors`.
    """
    shared, is_fixed = shared_parameters(model), model.parameters.is_fixed
    if model.observations.components:
        return shared.errors(values, model.pseudo, is_fixed, allowed, watch)
    # Every row tells everything: distributions know nothing of each other.
    own, pseudo = values[shared.first], shared.summed(model.pseudo)
    return _of_complete_rows(shared, own, pseudo, is_fixed[shared.first])[shared.places]


def refuse_errors(parameters: NetworkParameters, allowed: int) -> None:
    """Raise BudgetError where the matrix of all parameters that may be above 0 takes more than `allowed` bytes."""
    free = parameters.support & ~parameters.is_fixed
    refuse_free(free, parameters.distributions, _places(parameters), allowed)


def refuse_free(free: npt.NDArray[np.bool_], distributions: Integers, places: Integers, allowed: int) -> None:
    """Raise BudgetError where the matrix of free parameters takes more than `allowed` bytes.

    free: bool, which may be above 0 and are fitted; those that become 0 make the matrix smaller.
    distributions: where each begins; one of its parameters is 1 minus the others.
    places: as of `Shared`.
    """
    first = np.zeros(len(free), dtype=np.int64)
    first[np.unique(places, return_index=True)[1]] = 1
    _refuse(int(np.maximum(np.add.reduceat(first * free, distributions) - 1, 0).sum()), allowed)


@dataclass(frozen=True, eq=False)
class Shared:
    """Parameters, those that are one and the same once, as what has expected counts.

    counted: what has the counts of all.
    places: which of these parameters each of all is.
    """

    counted: Counted
    places: Integers

    @cached_property
    def distributions(self) -> Integers:
        """Where each distribution begins."""
        return np.unique(self.places[self.counted.distributions])

    @cached_property
    def first(self) -> Integers:
        """The first of all parameters that each of these is."""
        return np.unique(self.places, return_index=True)[1]

    def expect(self, values: Floats) -> Expectation:
        """Return the expected counts of these parameters."""
        found = self.counted.expect(values[self.places])
        return Expectation(self.summed(found.counts), found.log_likelihood)

    def summed(self, counts: Floats) -> Floats:
        """Return counts of all parameters, those that are the same one added up."""
        sums: Floats = np.bincount(self.places, counts).astype(np.float64)
        return sums

    def errors(
        self,
        values: Floats,
        pseudo_counts: Floats,
        fixed: npt.NDArray[np.bool_],
        allowed: int | None = None,
        watch: Callable[[int, int, float], None] | None = None,
    ) -> Floats:
        """Return the standard error of all parameters; arguments as of `standard_errors`, for all parameters."""
        own, pseudo = values[self.first], self.summed(pseudo_counts)
        return standard_errors(self, own, pseudo, fixed[self.first], allowed, watch)[self.places]


def shared_parameters(model: NetworkFit) -> Shared:
    """Return the parameters of the fit of a network, those that tied variables have in common once."""
    return Shared(model, _places(model.parameters))


def _places(parameters: NetworkParameters) -> Integers:
    first = np.arange(parameters.size)
    for one, *others in parameters.tied:
        for other in others:
            first[parameters.blocks[other].span] = np.arange(parameters.size)[parameters.blocks[one].span]
    places: Integers = np.unique(first, return_inverse=True)[1]
    return places


def _of_complete_rows(counted: Counted, values: Floats, pseudo_counts: Floats, fixed: npt.NDArray[np.bool_]) -> Floats:
    """Return standard errors where the information has a block for each distribution: diag(a) + b, a = count / p^2.

    Distributions with a count of 0 that is of no zero have errors of inf.
    """
    counts = counted.expect(values).counts + pseudo_counts
    positive = values >= LEAST
    known = positive & (counts > 0)
    inverse = np.where(known, values**2 / np.where(known, counts, 1.0), np.where(positive, np.inf, 0.0))
    starts = counted.distributions
    sums = np.repeat(np.add.reduceat(inverse, starts), np.diff(starts, append=len(values)))
    shares = np.divide(inverse, sums, out=np.zeros_like(sums), where=(sums > 0) & np.isfinite(sums))
    # Sherman and Morrison: 1/a - (1/a)^2 / sum(1/a). A probability of 1 is certain.
    finite = np.where(np.isfinite(sums), inverse * (1.0 - shares), np.inf)
    alone = np.repeat(np.add.reduceat(positive.astype(np.int64), starts), np.diff(starts, append=len(values))) == 1
    errors: Floats = np.sqrt(np.where(fixed | ~positive | alone, 0.0, np.maximum(finite, 0.0)))
    return errors


def _refuse(count: int, allowed: int) -> None:
    # The matrix, its inverse, and the work of both.
    needed = 4 * 8 * count * count
    if needed > allowed:
        raise BudgetError(
            f"standard errors of {count:,} free parameters take {exact_bytes(needed)}, allowed are "
            f"{exact_bytes(allowed)}: fix variables that are known, give more memory (--memory), "
            "or leave the errors out"
        )


def _errors(
    information: ObservedInformation, values: Floats, allowed: int | None, watch: Callable[[int, int], None]
) -> Floats:
    count = len(information.entries)
    if allowed is not None:
        _refuse(count, allowed)
    matrix = np.zeros((count, count))
    for number in range(count):
        direction = np.zeros(count)
        direction[number] = 1.0
        matrix[:, number] = information.times(direction)
        watch(number + 1, count)
    # Rounding alone makes it differ from its transpose.
    known, flat = _covariances((matrix + matrix.T) / 2, information.scale)
    errors = np.zeros(len(values))
    errors[information.entries] = _roots(np.diag(known), np.diag(flat))
    order = np.argsort(information.references, kind="stable")
    references, starts = np.unique(information.references[order], return_index=True)
    groups = [np.ix_(here, here) for here in np.split(order, starts[1:])] if count else []
    # Each is 1 minus the others.
    errors[references] = _roots(*(np.array([of[here].sum() for here in groups]) for of in (known, flat)))
    return errors


def _parameters(starts: Integers, values: Floats, fixed: npt.NDArray[np.bool_] | None) -> tuple[Integers, Integers]:
    entries, references = [], []
    for first, end in zip(starts.tolist(), [*starts[1:].tolist(), len(values)], strict=False):
        row = np.arange(first, end)
        some = row[(values[row] >= LEAST) & (True if fixed is None else ~fixed[row])]
        if len(some) > 1:
            largest = some[np.argmax(values[some])]
            entries.append(some[some != largest])
            references.append(np.full(len(some) - 1, largest))
    none = np.zeros(0, dtype=np.int64)
    return np.concatenate([none, *entries]), np.concatenate([none, *references])


def _covariances(information: Floats, scale: Floats) -> tuple[Floats, Floats]:
    """Return the covariance by directions that have information, and the least one by those that have none.

    scale: roots of the information of rows without gaps.
    """
    values, vectors = np.linalg.eigh(information / scale / scale[:, None])
    vectors /= scale[:, None]
    # Directions without information: parameters that others can stand in for, and where there is no maximum.
    count = int(np.searchsorted(values, NO_INFORMATION))
    flat, known = vectors[:, :count], vectors[:, count:]
    return known / values[count:] @ known.T, flat / np.maximum(np.abs(values[:count]), NO_INFORMATION) @ flat.T


def _roots(known: Floats, flat: Floats) -> Floats:
    """Return roots of variances; inf where the part by directions without information is not negligible."""
    roots: Floats = np.sqrt(np.where(flat > NEGLIGIBLE * known, np.inf, np.maximum(known, 0.0)))
    return roots
