"""Hidden Markov models fitted to sequences: Baum-Welch with priors, fixed parts, restarts and acceleration.

Main functions: `learn` for sequences in memory, and `fit_model` for the command line.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from numbers import Real
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from junctor.evidence.encode import numbered
from junctor.hmm.columns import SequenceColumns
from junctor.hmm.counts import SequenceCounter
from junctor.hmm.engine import NO_PROBABILITY
from junctor.hmm.learned import MOST_REASONS, LearnedModel
from junctor.hmm.model import HiddenMarkovModel
from junctor.hmm.observations import contradictions
from junctor.hmm.packing import EMPTY, SequenceBatch
from junctor.hmm.parameters import ChainFit, ChainParameters, Part
from junctor.learning.checkpoint import Checkpoint
from junctor.learning.choices import check_choices, refuse_impossible
from junctor.learning.em import FitOptions, Iteration, fit_options
from junctor.learning.errors import Shared, refuse_free
from junctor.learning.expectation import A_WEIGHT, MOST_WEIGHT, Floats, wrong_weights
from junctor.learning.extras import Extras
from junctor.learning.holdout import HoldoutResult, compared, is_held_out
from junctor.learning.parameters import tied_groups
from junctor.learning.restarts import best_of_starts
from junctor.learning.rows import fit_compute
from junctor.model.arguments import texts, whole
from junctor.model.errors import EvidenceError, InputError
from junctor.model.option_table import (
    FIT_KEYWORDS,
    ChainFitOptions,
    ChainLearningOptions,
    StepOptions,
    options_for,
    takes_keywords,
)
from junctor.model.options import ChainStart, ComputeOptions, Impossible
from junctor.model.query import one_of
from junctor.runtime.devices import check_device
from junctor.runtime.machine import allowed_memory
from junctor.runtime.remote import location, shown

logger = logging.getLogger("junctor")


@dataclass(frozen=True, slots=True)
class ChainOptions:
    """How a model is fitted; raises InputError for values that make no sense.

    prior: pseudo counts by part: of each entry above zero.
    fix: parts that stay as they are.
    tie: texts `A=B` for states that share their emissions.
    start: the model's own numbers, random ones (uniform over distributions with its zeros), or uniform ones.
    restarts: random starts, of which the best fit is kept.
    seed: of random starts and of the sequences held out.
    holdout: share of the sequences whose likelihood is only looked at in the end.
    impossible: what becomes of sequences that the zeros of the model rule out. `smooth` lifts the zeros.
    fit: when a fit ends.
    """

    prior: Mapping[Part, float] = field(default_factory=dict)
    fix: tuple[Part, ...] = ()
    tie: tuple[str, ...] = ()
    start: ChainStart = "model"
    restarts: int = 1
    seed: int = 0
    holdout: float = 0.0
    impossible: Impossible = "refuse"
    fit: FitOptions = field(default_factory=FitOptions)

    def __post_init__(self) -> None:
        one_of("start", self.start, ChainStart)
        for part in (*self.prior, *self.fix):
            one_of("part of a model", part, Part)
        for part, count in self.prior.items():
            # Sums of larger ones would leave the range of numbers.
            if not (isinstance(count, Real) and 0 <= count <= MOST_WEIGHT):
                raise InputError(f"a pseudo count of {count!r} for {part}, expected a number from 0 to {MOST_WEIGHT:g}")
        check_choices(self.restarts, self.start, self.holdout, self.seed, self.impossible)


@takes_keywords(
    **FIT_KEYWORDS,
    fix={"python": 'parts that stay: "start", "transition", "emission".'},
    tie={"python": 'texts "A=B": states, by name or number, that share their emissions.'},
)
def learn(
    model: HiddenMarkovModel | str | os.PathLike[str],
    sequences: Any,
    *,
    lengths: Any = None,
    labels: Any = None,
    weights: Any = None,
    watch: Callable[[int, Iteration], None] | None = None,
    **options: Unpack[ChainLearningOptions],
) -> LearnedModel:
    """Return the model fitted to sequences by expectation maximisation (Baum-Welch); zeros stay zeros.

    model: a model, or the path of a model file.
    sequences, lengths: as for `viterbi`.
    labels: states that are known, by name or number, None for others: lists as the sequences, or the name of a column
        of the table; with lengths an array [steps].
    weights: of the sequences, 0 or more; None for 1 each.
    watch: told of each iteration, with the number of its start.
    options: of the table.

    Invalid sequences take no part, and are reported. What is returned does not depend on threads, memory or device.

    Raises ModelError, EvidenceError, InputError, BudgetError or DeviceError.
    """
    from junctor.hmm.formats import read_model
    from junctor.hmm.sequences import encode_sequences

    fitted = chain_options(options)
    facts = {} if isinstance(model, HiddenMarkovModel) else {"model file": shown(str(model))}
    if not isinstance(model, HiddenMarkovModel):
        model = read_model(model)
    names = SequenceColumns(**options_for(StepOptions, options))
    batch = encode_sequences(sequences, model, labels, lengths, names).batch
    check_device(options["device"])
    compute = fit_compute(options)
    weights = checked_weights(weights, len(batch))
    extras = Extras(options["errors"], options["report"], facts)
    return fit_model(model, batch, weights, fitted, compute, watch, extras=extras)


def chain_options(options: ChainFitOptions) -> ChainOptions:
    """Return the record of how users want a model to be fitted; raises InputError and EvidenceError for others."""
    prior, fix = options["prior"], texts("fix", options["fix"])
    if prior is not None and not isinstance(prior, Mapping):
        raise InputError(f"found prior {prior!r}, expected pseudo counts by part, such as {{'emission': 0.5}}")
    return ChainOptions(
        dict(prior or {}),  # type: ignore[arg-type]
        fix,  # type: ignore[arg-type]
        texts("tie", options["tie"]),
        options["start"],
        whole("restarts", options["restarts"], InputError),
        whole("seed", options["seed"], InputError),
        options["holdout"],
        options["impossible"],
        fit_options(options),
    )


def fit_model(
    model: HiddenMarkovModel,
    batch: SequenceBatch,
    weights: Floats,
    options: ChainOptions,
    compute: ComputeOptions,
    watch: Callable[[int, Iteration], None] | None = None,
    checkpoint: Checkpoint | None = None,
    extras: Extras | None = None,
    names_of: Callable[[Sequence[int]], list[str]] = numbered,
) -> LearnedModel:
    """Return the model fitted to a batch.

    model: where it starts, or whose zeros others have that it starts from.
    batch: the sequences.
    weights: float64 [sequences].
    options: how it is fitted.
    compute: memory, threads and device.
    watch: told of each iteration, with the number of its start.
    checkpoint: where the state is kept after each iteration, and taken from.
    extras: what is found out besides; None for nothing.
    names_of: returns what people find some sequences by.
    Raises EvidenceError, InputError or BudgetError.
    """
    extras = extras or Extras()
    if batch.symbols is not None and model.emission is None:
        raise EvidenceError("the model has no emissions: its sequences have to bring log-likelihoods")
    # Sequences of log-likelihoods say nothing about the emissions.
    silent: tuple[Part, ...] = () if batch.symbols is not None else ("emission",)
    states = model.state_names or tuple(map(str, range(model.states)))
    tied = tied_groups({name: state for state, name in enumerate(states)}, options.tie, "state")
    parameters = ChainParameters(model, frozenset(options.fix + silent), tied)
    if options.impossible == "smooth":
        parameters = parameters.smoothed()
    is_symmetric = model.states > 1 and not parameters.fixed and (parameters.values > 0).all() and batch.labels is None
    if options.start == "uniform" and is_symmetric:
        logger.warning("EM cannot tell the states apart from a uniform start: use --start random")
    shares = _shares(parameters.model_of(parameters.values), batch, weights, options, compute, names_of)
    counter = SequenceCounter(batch, shares.fitted, compute)
    fitted = ChainFit(parameters, counter, options.prior)
    allowed = allowed_memory(compute)
    if extras.errors:
        free = (parameters.values > 0) & ~parameters.is_fixed
        refuse_free(free, parameters.distributions, parameters.sources, allowed)
    checked = SequenceCounter(batch, shares.held_out, compute)
    # Before the fit: where these take too much memory, that is not found out after it.
    before = checked.count(model).log_value
    begin = partial(_begin, parameters, options)
    best, restarts = best_of_starts(fitted, options.restarts, begin, options.fit, watch, checkpoint)
    learned = LearnedModel(
        parameters.model_of(best.parameters),
        best,
        restarts,
        shares.statuses,
        fitted.weight,
        *_steps(batch, shares.fitted > 0),
        shares.reasons,
        labelled=_labelled(batch, shares.fitted > 0),
    )
    if options.holdout:
        after = checked.count(learned.model).log_value
        learned = replace(
            learned,
            holdout=HoldoutResult.of(after, shares.held_out),
            check=compared(before, after, shares.held_out) if (shares.held_out > 0).any() else None,
        )
    if extras.errors or extras.page is not None:
        learned = _with_extras(learned, fitted, ChainParameters(model).values, options, extras, allowed)
    return learned


def _with_extras(
    learned: LearnedModel, fitted: ChainFit, before: Floats, options: ChainOptions, extras: Extras, allowed: int
) -> LearnedModel:
    """Return what was learned with the table of parameters, if it is asked for; writes the page.

    before: float64, parameters of the model that was given.
    allowed: bytes for the matrix of standard errors.
    """
    from junctor.hmm.parameter_table import Estimates

    parameters, values, errors = fitted.parameters, learned.fit.parameters, None
    if extras.errors:
        watch = partial(extras.watch, "standard errors of free parameters")
        shared = Shared(fitted, np.unique(parameters.sources, return_inverse=True)[1])
        errors = shared.errors(values, fitted.pseudo_counts, parameters.is_fixed, allowed, watch)
    estimates = Estimates(parameters, before, values, fitted.expect(values).counts, errors)
    if extras.errors:
        learned = replace(learned, parameters=estimates.table())
    if extras.page is not None:
        from junctor.hmm.report.page import write_chain_page

        settings = asdict(options)
        loop = settings.pop("fit")
        settings["prior"] = tuple(f"{part}={count:g}" for part, count in options.prior.items())
        facts = {**extras.facts, **settings, **loop}
        write_chain_page(learned, estimates, options.fit.tolerance, facts, location(extras.page))
    return learned


def _steps(batch: SequenceBatch, taken: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Return the steps of sequences, and those of them without an observation."""
    missing = 0
    if batch.symbols is not None:
        missing = int(np.count_nonzero((batch.symbols < 0) & np.repeat(taken, batch.lengths)))
    return int(batch.lengths[taken].sum()), missing


def _labelled(batch: SequenceBatch, taken: npt.NDArray[np.bool_]) -> int:
    """Return the number of steps of sequences whose states are known."""
    return 0 if batch.labels is None else int(np.count_nonzero((batch.labels >= 0) & np.repeat(taken, batch.lengths)))


def checked_weights(weights: Any, count: int) -> Floats:
    """Return the weights of sequences, float64 [count]; raises InputError unless they are weights."""
    if weights is None:
        return np.ones(count)
    try:
        numbers = np.array(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"weights: not an array of numbers ({error})") from None
    if numbers.shape != (count,):
        raise InputError(f"weights: found shape {numbers.shape}, expected {count:,}, one for each sequence")
    wrong = wrong_weights(numbers)
    if len(wrong):
        raise InputError(f"weights[{wrong[0]}]: found {numbers[wrong[0]]}, expected {A_WEIGHT}")
    return numbers


def _begin(parameters: ChainParameters, options: ChainOptions, number: int) -> Floats:
    """Return where a fit starts."""
    if options.start == "random":
        return parameters.random((options.seed, number))
    return parameters.values if options.start == "model" else parameters.uniform()


@dataclass(frozen=True, eq=False, slots=True)
class _Shares:
    """Which sequences are for what.

    fitted, held_out: float64 [sequences], their weights in the fit and in the check, 0 for all others.
    statuses: number of sequences by status.
    reasons: sequence -> why it is invalid or impossible.
    """

    fitted: Floats
    held_out: Floats
    statuses: dict[str, int]
    reasons: dict[int, str]


def _shares(
    model: HiddenMarkovModel,
    batch: SequenceBatch,
    weights: Floats,
    options: ChainOptions,
    compute: ComputeOptions,
    names_of: Callable[[Sequence[int]], list[str]],
) -> _Shares:
    """Return which sequences are for what; raises EvidenceError for impossible ones, and where none is left."""
    reasons = dict(batch.invalid or {})
    for n in np.flatnonzero(batch.lengths == 0).tolist():
        reasons.setdefault(n, EMPTY)
    is_valid = np.ones(len(batch), dtype=np.bool_)
    is_valid[list(reasons)] = False
    is_kept = is_valid & is_held_out(np.arange(len(batch)), options.holdout, options.seed)
    fitted = np.where(is_valid & ~is_kept, weights, 0.0)
    # Zeros decide, and they stay: what is impossible now is so under all numbers in place of those above zero.
    impossible = np.flatnonzero(SequenceCounter(batch, fitted, compute).count(model).log_value == -np.inf)
    causes = contradictions(model, batch, impossible[:MOST_REASONS]) if batch.labels is not None else {}
    refuse_impossible(
        impossible.tolist(), options.impossible, names_of, "sequence", "model", next(iter(causes.values()), "")
    )
    fitted[impossible] = 0.0
    for n in impossible.tolist():
        reasons[n] = f"{NO_PROBABILITY} with its labels: {causes[n]}" if n in causes else NO_PROBABILITY
    if not (fitted > 0).any():
        why = f": sequence {min(reasons) + 1:,}: {reasons[min(reasons)]}" if reasons else ""
        raise EvidenceError(f"none of {len(batch):,} sequences takes part{why}")
    invalid, held_out = int((~is_valid).sum()), int(is_kept.sum())
    ok = len(batch) - invalid - held_out - len(impossible)
    statuses = {"ok": ok, "impossible": len(impossible), "invalid": invalid, "held_out": held_out}
    return _Shares(fitted, np.where(is_kept, weights, 0.0), statuses, dict(sorted(reasons.items())))
