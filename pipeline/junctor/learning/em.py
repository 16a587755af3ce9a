"""The loop of expectation maximisation [Dempster, Laird and Rubin 1977], with SQUAREM [Varadhan and Roland 2008].

Main function: fit. What is fitted, a network or a hidden Markov model, is a `Fitted`; parameters are one flat array.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from junctor.learning.expectation import Expectation, Floats
from junctor.model.arguments import real, whole
from junctor.model.errors import InputError
from junctor.model.option_table import LoopOptions
from junctor.model.options import Acceleration
from junctor.model.query import one_of

__all__ = ["Fit", "FitOptions", "FitState", "Fitted", "Iteration", "fit"]

# Least share of a plain step's value that an extrapolation leaves: it never makes a zero, which EM could not leave.
KEPT_SHARE = 0.1
# The bound of step lengths grows and shrinks by this factor, as in the authors' program.
BOUND_FACTOR = 4.0
# What a step may lose, relative as the tolerance is, and count as a rounding.
ROUNDING = 1e-10


class Fitted(Protocol):
    """What is fitted: its parameters are distributions, one after the other in a flat array, none of them empty."""

    @property
    def distributions(self) -> npt.NDArray[np.int64]:
        """Where each distribution begins, int64; its entries, up to where the next one begins, sum to 1."""
        ...

    @property
    def weight(self) -> float:
        """Sum of the weights of the rows."""
        ...

    def expect(self, parameters: Floats) -> Expectation:
        """E-step: the expected counts, float64 of any length, and the log-likelihood."""
        ...

    def maximise(self, counts: Floats, parameters: Floats) -> Floats:
        """M-step: what has the largest sum of counts * log(it) + log prior; `parameters` where nothing was counted."""
        ...

    def log_prior(self, parameters: Floats) -> float:
        """Return the log density of the prior, up to a constant; 0 without a prior."""
        ...


@dataclass(frozen=True, slots=True)
class FitOptions:
    """When the loop ends, and how it goes on; raises InputError for values that make no sense.

    tolerance: the loop ends at a plain step of no larger change (see `Iteration`).
    max_iterations: steps at most.
    acceleration: "squarem" extrapolates after every two steps.
    """

    tolerance: float = 1e-6
    max_iterations: int = 200
    acceleration: Acceleration = "squarem"

    def __post_init__(self) -> None:
        one_of("acceleration", self.acceleration, Acceleration)
        if not (self.tolerance >= 0 and math.isfinite(self.tolerance)):
            raise InputError(f"a tolerance of {self.tolerance!r}, expected a number of at least 0")
        if self.max_iterations < 1:
            raise InputError(f"at most {self.max_iterations!r} iterations, expected at least 1")


def fit_options(options: LoopOptions) -> FitOptions:
    """Return the record of when users want a fit to end; raises InputError."""
    tolerance = real("tolerance", options["tolerance"], InputError)
    return FitOptions(
        tolerance, whole("max_iterations", options["max_iterations"], InputError), options["acceleration"]
    )


@dataclass(frozen=True, slots=True)
class Iteration:
    """One step, and the likelihood of the parameters that it led to; number 0 is the start.

    log_posterior: log-likelihood + log prior, the objective.
    change: gain of the objective, divided by its absolute value or by the weight of the rows, whichever is larger.
    step: length: 1 for a plain step, more for an extrapolation, 0 for the start.
    seconds: of wall clock.
    """

    number: int
    log_likelihood: float
    log_posterior: float
    change: float
    step: float
    seconds: float


@dataclass(frozen=True, eq=False, slots=True)
class FitState:
    """The loop between two iterations: it goes on from here as if it had not been interrupted.

    parameters: of the last iteration; plain: what their M-step gives.
    steps: parameters that plain steps went through since the last extrapolation, at most two, the last one included.
    bound: largest step length.
    """

    parameters: Floats
    plain: Floats
    steps: tuple[Floats, ...]
    bound: float
    trace: tuple[Iteration, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Fit:
    """Fitted parameters, the iterations that led to them, whether these converged, and why they ended."""

    parameters: Floats
    trace: tuple[Iteration, ...]
    converged: bool
    reason: str

    @property
    def log_likelihood(self) -> float:
        """Log-likelihood of the parameters."""
        return self.trace[-1].log_likelihood

    @property
    def log_posterior(self) -> float:
        """Log-likelihood + log prior of the parameters."""
        return self.trace[-1].log_posterior


def trace_record(trace: Sequence[Iteration]) -> list[dict[str, Any]]:
    """Return the iterations of a fit for JSON, which has no infinity: the start has no change."""
    records = [asdict(iteration) for iteration in trace]
    records[0]["change"] = None
    return records


def log_dirichlet(pseudo_counts: Floats, parameters: Floats) -> float:
    """Return the sum of pseudo count * log(parameter)."""
    counted = pseudo_counts > 0
    with np.errstate(divide="ignore"):
        return float((pseudo_counts[counted] * np.log(parameters[counted])).sum())


def fit(
    model: Fitted,
    start: Floats | FitState,
    options: FitOptions | None = None,
    watch: Callable[[Iteration], None] | None = None,
    keep: Callable[[FitState], None] | None = None,
) -> Fit:
    """Return the parameters that expectation maximisation ends at; log-likelihood + log prior never falls.

    model: what is fitted.
    start: the first parameters, or the state of an interrupted loop.
    options: None for the usual ones.
    watch: told of each iteration, the start included.
    keep: given the state after each iteration; it is kept before `watch` is told.
    Raises InputError where the start gives the rows no probability.
    """
    options = options or FitOptions()
    loop = _Loop(model, options, watch or (lambda _: None), keep or (lambda _: None))
    state = start if isinstance(start, FitState) else loop.begin(start)
    while True:
        last = state.trace[-1]
        if last.step == 1.0 and last.change <= options.tolerance:
            return Fit(state.parameters, state.trace, True, f"a change of {last.change:.2g}")
        if last.number >= options.max_iterations:
            return Fit(state.parameters, state.trace, False, f"{last.number:,} iterations")
        following = loop.step(state)
        if isinstance(following, Fit):
            return following
        state = following


@dataclass(frozen=True, eq=False, slots=True)
class _Point:
    """Parameters, their likelihood, and the M-step from there."""

    parameters: Floats
    log_likelihood: float
    log_posterior: float
    plain: Floats = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True, eq=False, slots=True)
class _Loop:
    model: Fitted
    options: FitOptions
    watch: Callable[[Iteration], None]
    keep: Callable[[FitState], None]

    def begin(self, start: Floats) -> FitState:
        began = time.perf_counter()
        point = self._evaluate(start)
        if not math.isfinite(point.log_posterior):
            raise InputError(
                f"the start has a log-likelihood of {point.log_likelihood} with a log prior of "
                f"{point.log_posterior - point.log_likelihood}: EM cannot leave it, try another start"
            )
        first = Iteration(0, point.log_likelihood, point.log_posterior, math.inf, 0.0, time.perf_counter() - began)
        return self._kept(FitState(point.parameters, point.plain, (point.parameters,), 1.0, (first,)))

    def step(self, state: FitState) -> FitState | Fit:
        """Return the state after one more iteration, or the end where no step gains anything."""
        began = time.perf_counter()
        bound = state.bound
        if self.options.acceleration == "squarem" and len(state.steps) == 2:
            length = min(_step_length(*state.steps, state.plain), bound)
            if length > 1.0:
                point = self._evaluate(self._extrapolated(*state.steps, state.plain, length))
                # A longer step may be tried next time where the bound was reached; a vain one was too long.
                if point.log_posterior >= state.trace[-1].log_posterior:
                    bound = bound * BOUND_FACTOR if length == bound else bound
                    return self._after(state, point, (), bound, length, began)
                bound = max(1.0, length / BOUND_FACTOR)
            else:
                # SQUAREM begins with a bound of 1: the step is plain, and the next one may be longer.
                bound = bound * BOUND_FACTOR if length == bound else bound
        point = self._evaluate(state.plain)
        gain = self._change(state.trace[-1].log_posterior, point.log_posterior)
        if not gain >= 0.0:
            is_rounding = gain >= -ROUNDING
            reason = "no further gain" if is_rounding else f"a step that loses {-gain:.2g}: the M-step is no maximum"
            return Fit(state.parameters, state.trace, is_rounding, reason)
        steps = (*state.steps, point.parameters) if len(state.steps) < 2 else (point.parameters,)
        return self._after(state, point, steps, bound, 1.0, began)

    def _after(
        self, state: FitState, point: _Point, steps: tuple[Floats, ...], bound: float, length: float, began: float
    ) -> FitState:
        last = state.trace[-1]
        change = self._change(last.log_posterior, point.log_posterior)
        seconds = time.perf_counter() - began
        iteration = Iteration(last.number + 1, point.log_likelihood, point.log_posterior, change, length, seconds)
        return self._kept(FitState(point.parameters, point.plain, steps, bound, (*state.trace, iteration)))

    def _kept(self, state: FitState) -> FitState:
        self.keep(state)
        self.watch(state.trace[-1])
        return state

    def _evaluate(self, parameters: Floats) -> _Point:
        expected = self.model.expect(parameters)
        log_posterior = expected.log_likelihood + self.model.log_prior(parameters)
        point = _Point(parameters, expected.log_likelihood, log_posterior)
        if not math.isfinite(log_posterior):
            # Its counts mean nothing.
            return point
        return replace(point, plain=self.model.maximise(expected.counts, parameters))

    def _change(self, before: float, after: float) -> float:
        return (after - before) / (max(abs(after), self.model.weight) or 1.0)

    def _extrapolated(self, first: Floats, second: Floats, third: Floats, length: float) -> Floats:
        """Return first + 2 length r + length^2 v (page 342), as distributions without new zeros."""
        change = second - first
        values = first + 2.0 * length * change + length * length * (third - second - change)
        np.maximum(values, KEPT_SHARE * third, out=values)
        # Long steps multiply roundings of the sums. Distributions that stay, as fixed ones do, keep their last bit.
        starts = self.model.distributions
        moved = np.logical_or.reduceat(values != third, starts)
        sums = np.where(moved, np.add.reduceat(values, starts), 1.0)
        values /= np.repeat(sums, np.diff(starts, append=len(values)))
        return values


def _step_length(first: Floats, second: Floats, third: Floats) -> float:
    """Return SqS3, |r| / |v|: the third of the steplengths, which is never undefined where EM still moves."""
    change = second - first
    curve = third - second - change
    norm = float(np.linalg.norm(curve))
    return float(np.linalg.norm(change)) / norm if norm else 1.0
