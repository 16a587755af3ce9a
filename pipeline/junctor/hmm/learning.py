"""Hidden Markov models fitted to sequences: Baum-Welch with priors, fixed parts, restarts and acceleration.

Main functions: `learn` for sequences in memory, and `fit_model` for the command line.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from junctor.hmm.counts import SequenceCounter
from junctor.hmm.engine import NO_PROBABILITY
from junctor.hmm.model import HiddenMarkovModel
from junctor.hmm.packing import EMPTY, SequenceBatch
from junctor.hmm.parameters import ChainFit, ChainParameters, Part
from junctor.learning.checkpoint import Checkpoint, Restart
from junctor.learning.em import Acceleration, Fit, FitOptions, Iteration, trace_record
from junctor.learning.expectation import Floats
from junctor.learning.restarts import best_of_starts
from junctor.model.answers import IMPOSSIBLE, INVALID, OK, STATUS_NAMES
from junctor.model.errors import EvidenceError, InputError
from junctor.model.options import ComputeOptions, DeviceChoice
from junctor.model.query import one_of
from junctor.runtime.devices import check_device
from junctor.runtime.machine import compute_options

# Sequences without a part whose reasons are told.
MOST_REASONS = 20
StartChoice = Literal["model", "random", "uniform"]


@dataclass(frozen=True, slots=True)
class ChainOptions:
    """How a model is fitted; raises InputError for values that make no sense.

    prior: pseudo counts by part: of each entry above zero.
    fix: parts that stay as they are.
    start: the model's own numbers, random ones (uniform over distributions with its zeros), or uniform ones.
    restarts: random starts, of which the best fit is kept.
    seed: of random starts.
    fit: when a fit ends.
    """

    prior: Mapping[Part, float] = field(default_factory=dict)
    fix: tuple[Part, ...] = ()
    start: StartChoice = "model"
    restarts: int = 1
    seed: int = 0
    fit: FitOptions = field(default_factory=FitOptions)

    def __post_init__(self) -> None:
        one_of("start", self.start, StartChoice)
        for part in (*self.prior, *self.fix):
            one_of("part of a model", part, Part)
        for part, count in self.prior.items():
            if not (math.isfinite(count) and count >= 0):
                raise InputError(f"a pseudo count of {count!r} for {part}, expected a number of at least 0")
        if self.restarts < 1:
            raise InputError(f"found {self.restarts!r} restarts, expected at least 1")
        if self.restarts > 1 and self.start != "random":
            raise InputError(f"{self.restarts} restarts from the same start would end alike: add --start random")
        if not 0 <= self.seed < 2**64:
            raise InputError(f"found seed {self.seed}, expected 0 to 2^64 - 1")


@dataclass(frozen=True, eq=False, slots=True)
class LearnedModel:
    """A fitted model.

    model: with the names of the one that was given.
    fit: the loop that led to it: trace, whether it converged, and why it ended.
    restarts: what came of each start.
    statuses: number of sequences by status; only those that are `ok` took part.
    reasons: sequence -> why it took no part.
    """

    model: HiddenMarkovModel
    fit: Fit
    restarts: tuple[Restart, ...]
    statuses: dict[str, int]
    reasons: dict[int, str]

    @property
    def log_likelihood(self) -> float:
        """Sum of weight * log P over the sequences that took part."""
        return self.fit.log_likelihood

    def to_record(self) -> dict[str, Any]:
        """Return all but the parameters, for JSON."""
        return {
            "log_likelihood": self.log_likelihood,
            "log_posterior": self.fit.log_posterior,
            "iterations": self.fit.trace[-1].number,
            "converged": self.fit.converged,
            "reason": self.fit.reason,
            "sequences": self.statuses,
            "reasons": {str(n): self.reasons[n] for n in sorted(self.reasons)[:MOST_REASONS]},
            "restarts": [each.to_record() for each in self.restarts],
            "trace": trace_record(self.fit.trace),
        }


def learn(
    model: HiddenMarkovModel | str | os.PathLike[str],
    sequences: Any,
    *,
    weights: Any = None,
    prior: Mapping[Part, float] | None = None,
    fix: Iterable[Part] = (),
    start: StartChoice = "model",
    restarts: int = 1,
    seed: int = 0,
    tolerance: float = 1e-6,
    max_iterations: int = 200,
    acceleration: Acceleration = "squarem",
    memory: int | str | None = None,
    threads: int | None = None,
    device: DeviceChoice = "cpu",
    device_memory: int | str | None = None,
    watch: Callable[[int, Iteration], None] | None = None,
) -> LearnedModel:
    """Return the model fitted to sequences by expectation maximisation (Baum-Welch); zeros stay zeros.

    model: a model, or the path of a model file.
    sequences: as for `viterbi`.
    weights: of the sequences, 0 or more; None for 1 each.
    prior: pseudo counts by part, such as {"emission": 0.5}, added to the expected count of each entry above zero.
    fix: parts that stay: "start", "transition", "emission".
    start: the numbers of the model, "random" or "uniform"; zeros are kept.
    restarts: random starts, the best of which is returned.
    seed: of random starts.
    tolerance: relative change of the objective, at least a nat for each unit of weight, at which a fit has converged.
    max_iterations: of a start.
    acceleration: "squarem" or "none".
    memory: bytes (or "4GiB"), None for a share of the free memory.
    threads: None for all cores.
    device: "cpu", "gpu", or "auto" for a GPU where there is one and enough work.
    device_memory: bytes of the GPU.
    watch: told of each iteration, with the number of its start.

    Sequences that are invalid, or impossible under any numbers in place of those above zero, take no part, and are
    reported. What is returned does not depend on threads, memory or device.

    Raises ModelError, EvidenceError, InputError, BudgetError or DeviceError.
    """
    from junctor.hmm.formats import read_model
    from junctor.hmm.sequences import encode_sequences

    options = ChainOptions(
        dict(prior or {}), tuple(fix), start, restarts, seed, FitOptions(tolerance, max_iterations, acceleration)
    )
    if not isinstance(model, HiddenMarkovModel):
        model = read_model(model)
    batch = encode_sequences(sequences, model).batch
    check_device(device)
    compute = compute_options(memory, threads, device, device_memory)
    return fit_model(model, batch, checked_weights(weights, len(batch)), options, compute, watch)


def fit_model(
    model: HiddenMarkovModel,
    batch: SequenceBatch,
    weights: Floats,
    options: ChainOptions,
    compute: ComputeOptions,
    watch: Callable[[int, Iteration], None] | None = None,
    checkpoint: Checkpoint | None = None,
) -> LearnedModel:
    """Return the model fitted to a batch.

    model: where it starts, or whose zeros others have that it starts from.
    batch: the sequences.
    weights: float64 [sequences].
    options: how it is fitted.
    compute: memory, threads and device.
    watch: told of each iteration, with the number of its start.
    checkpoint: where the state is kept after each iteration, and taken from.
    Raises EvidenceError, InputError or BudgetError.
    """
    if batch.symbols is not None and model.emission is None:
        raise EvidenceError("the model has no emissions: its sequences have to bring log-likelihoods")
    # Sequences of log-likelihoods say nothing about the emissions.
    silent: tuple[Part, ...] = () if batch.symbols is not None else ("emission",)
    parameters = ChainParameters(model, frozenset(options.fix + silent))
    status, reasons = _statuses(model, batch, weights, compute)
    taking_part = np.where(status == OK, weights, 0.0)
    if not (taking_part > 0).any():
        why = f", such as number {min(reasons)}: {reasons[min(reasons)]}" if reasons else ""
        raise EvidenceError(f"none of {len(batch):,} sequences takes part{why}")
    fitted = ChainFit(parameters, SequenceCounter(batch, taking_part, compute), options.prior)
    begin = partial(_begin, parameters, options)
    best, restarts = best_of_starts(fitted, options.restarts, begin, options.fit, watch, checkpoint)
    counts = {name: int((status == n).sum()) for n, name in enumerate(STATUS_NAMES)}
    return LearnedModel(parameters.model_of(best.parameters), best, restarts, counts, reasons)


def checked_weights(weights: Any, count: int) -> Floats:
    """Return the weights of sequences, float64 [count]; raises InputError unless they are numbers of 0 or more."""
    if weights is None:
        return np.ones(count)
    try:
        numbers = np.array(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"weights: not an array of numbers ({error})") from None
    if numbers.shape != (count,):
        raise InputError(f"weights: found shape {numbers.shape}, expected {count:,}, one for each sequence")
    wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
    if len(wrong):
        raise InputError(f"weights: sequence {wrong[0]} has {numbers[wrong[0]]}, expected a number of 0 or more")
    return numbers


def _begin(parameters: ChainParameters, options: ChainOptions, number: int) -> Floats:
    """Return where a fit starts."""
    if options.start == "random":
        return parameters.random((options.seed, number))
    return parameters.values if options.start == "model" else parameters.uniform()


def _statuses(
    model: HiddenMarkovModel, batch: SequenceBatch, weights: Floats, compute: ComputeOptions
) -> tuple[npt.NDArray[np.int8], dict[int, str]]:
    """Return the status of each sequence, and why those that are not OK are not."""
    status, reasons = np.full(len(batch), OK, np.int8), dict(batch.invalid or {})
    for n in np.flatnonzero(batch.lengths == 0).tolist():
        reasons.setdefault(n, EMPTY)
    status[list(reasons)] = INVALID
    # Zeros decide, and they stay: what is impossible now is so under all numbers in place of those above zero.
    asked = np.where(status == OK, np.where(weights > 0, weights, 0.0), 0.0)
    for n in np.flatnonzero(SequenceCounter(batch, asked, compute).count(model).log_value == -np.inf).tolist():
        status[n], reasons[n] = IMPOSSIBLE, NO_PROBABILITY
    return status, reasons
