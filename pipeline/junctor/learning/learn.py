"""Parameters of a network from rows of evidence with gaps. Main function: `learn`, which users call `junctor.learn`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Unpack

import numpy as np
import pyarrow as pa

from junctor.evidence.files import Stamps, refuse_changes
from junctor.evidence.mapping import read_mapping
from junctor.evidence.read import EvidenceSource, digest_of
from junctor.formats import read_network
from junctor.learning.check import check_holdout, row_logs
from junctor.learning.checkpoint import Checkpoint
from junctor.learning.choices import (
    SMOOTHING,
    check_choices,
    refuse_impossible,
)
from junctor.learning.em import FitOptions, Iteration, fit_options
from junctor.learning.errors import parameter_errors, refuse_errors
from junctor.learning.expectation import Floats
from junctor.learning.extras import Extras
from junctor.learning.holdout import HoldoutResult
from junctor.learning.learned import Learned, LearnedCells
from junctor.learning.network_fit import NetworkFit
from junctor.learning.observations import Observations
from junctor.learning.parameter_table import parameter_table
from junctor.learning.parameters import NetworkParameters, named_variables, tied_variables
from junctor.learning.pieces import HeldOut, RowReading, read_rows
from junctor.learning.priors import prior_file, pseudo_counts
from junctor.learning.restarts import best_of_starts
from junctor.learning.rows import fit_compute, open_rows, row_options, stamps_of_rows, with_new_states
from junctor.model.arguments import texts, whole
from junctor.model.errors import EvidenceError, InputError
from junctor.model.network import Network
from junctor.model.option_table import (
    FIT_KEYWORDS,
    NetworkFitOptions,
    NetworkLearningOptions,
    RowOptions,
    takes_keywords,
)
from junctor.model.options import ComputeOptions, Impossible, Start
from junctor.model.query import one_of
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.devices import check_device
from junctor.runtime.machine import allowed_memory
from junctor.runtime.progress import Progress
from junctor.runtime.remote import AnyPath, RemotePath, location, shown

logger = logging.getLogger("junctor")


@dataclass(frozen=True, slots=True)
class LearnOptions:
    """What is fitted, and how; raises InputError for values that make no sense.

    prior: as in `junctor.learning.priors`.
    fix: names, or patterns of names, of variables whose tables stay.
    tie: texts `A=B` for variables that share a table.
    start: tables of the network, random ones (uniform over distributions), or uniform ones.
    restarts: random starts, of which the best fit is kept.
    seed: of random starts and of the rows held out.
    holdout: share of the rows whose likelihood is only looked at in the end.
    impossible: what becomes of rows that the zeros of the network rule out. `smooth` lifts the zeros.
    new_states: whether states that the network lacks are added.
    fit: when the loop ends.
    """

    prior: str = "none"
    fix: tuple[str, ...] = ()
    tie: tuple[str, ...] = ()
    start: Start = "network"
    restarts: int = 1
    seed: int = 0
    holdout: float = 0.0
    impossible: Impossible = "refuse"
    new_states: bool = False
    fit: FitOptions = field(default_factory=FitOptions)

    def __post_init__(self) -> None:
        one_of("start", self.start, Start)
        check_choices(self.restarts, self.start, self.holdout, self.seed, self.impossible)


@takes_keywords(**FIT_KEYWORDS)
def learn(
    network: Network | str | os.PathLike[str] | RemotePath,
    table: Any,
    *,
    watch: Callable[[int, Iteration], None] | None = None,
    **options: Unpack[NetworkLearningOptions],
) -> Learned:
    """Fit the tables of a Bayesian network to rows of evidence with gaps, by expectation maximisation.

    network: a Network, or the path of a network file; its zeros are structural and stay.
    table: evidence, as for `junctor.posteriors`, or the path of a file or folder; what has no column is latent.
    watch: told of each iteration, with the number of its start.
    options: of the table.

    Invalid rows are left out.

    Raises ModelError, EvidenceError, InputError and DeviceError, and BudgetError for standard errors of too many
    parameters. What is returned does not depend on threads; counts of a GPU differ from those of a CPU by rounding.
    """
    fit = learn_options(options)
    rows = row_options(options)
    report = None if options["report"] is None else location(options["report"], "report")
    extras = Extras(
        options["errors"], report, {} if isinstance(network, Network) else {"network file": shown(str(network))}
    )
    network = network if isinstance(network, Network) else read_network(network)
    resources = Resources(workers=0, compute=fit_compute(options))
    return learn_rows(network, table, fit, rows, resources, watch, extras=extras)


def learn_options(options: NetworkFitOptions) -> LearnOptions:
    """Return the record of how users want a network to be fitted; raises InputError and EvidenceError for others."""
    if not isinstance(options["prior"], str):
        raise InputError(f"found the prior {options['prior']!r}, expected none, bdeu:N or dirichlet:FILE")
    return LearnOptions(
        options["prior"],
        texts("fix", options["fix"]),
        texts("tie", options["tie"]),
        options["start"],
        whole("restarts", options["restarts"], InputError),
        whole("seed", options["seed"], InputError),
        options["holdout"],
        options["impossible"],
        options["new_states"],
        fit_options(options),
    )


def learn_rows(
    network: Network,
    table: Any,
    options: LearnOptions,
    rows: RowOptions,
    resources: Resources,
    watch: Callable[[int, Iteration], None] | None = None,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
    extras: Extras | None = None,
    stamps: Stamps | None = None,
) -> Learned:
    """Fit a network; errors as of `learn`.

    network: Bayesian.
    table: a path, or a table in memory.
    options: what is fitted, and how.
    rows: how they are read.
    resources: threads, memory, the device of expected counts, and workers that read and prepare the rows, if there are
        any.
    watch: told of each iteration, with the number of its start.
    progress: told of the rows while they are read.
    checkpoint: where the state is kept after each iteration, and taken from.
    extras: what is found out besides.
    stamps: of the files of rows, which must have the same ones when they are read; None for those that they have now.
    """
    extras, stamps = extras or Extras(), stamps_of_rows(table) if stamps is None else stamps
    check_device(resources.compute.device)
    fixed = named_variables(network, options.fix, "--fix")
    # Before rows are read: what cannot be fitted needs no minutes to be seen.
    parameters = NetworkParameters(network, fixed, tied_variables(network, options.tie))
    if options.new_states:
        network = with_new_states(network, open_rows(table, network, rows, resources), fixed, resources)
        parameters = replace(parameters, network=network)
    parameters = _smoothed(parameters, options)
    given, network, pseudo = network, parameters.network, pseudo_counts(options.prior, parameters)
    source = open_rows(table, network, rows, resources)
    observations, reading = read_rows(source, network, resources, options.holdout, options.seed, progress)
    refuse_changes(stamps, stamps_of_rows(table))
    _refuse(source, observations, reading, options)
    compute, allowed = resources.compute, allowed_memory(resources.compute)
    if extras.errors and observations.components:
        refuse_errors(parameters, allowed)
    latent = tuple(v.name for i, v in enumerate(network.public) if i not in source.columns)
    if latent and options.start == "uniform":
        logger.warning("EM cannot tell the states of %s apart from a uniform start: use --start random", latent[0])
    model = NetworkFit(parameters, pseudo, observations)
    is_complete = reading.is_complete and not network.hidden
    if is_complete:
        # Counts do not depend on the parameters.
        options = replace(options, restarts=1, fit=replace(options.fit, max_iterations=1))
    begin = partial(start_parameters, parameters, options.start, options.seed)
    best, restarts = best_of_starts(model, options.restarts, begin, options.fit, watch, checkpoint)
    if is_complete:
        best = replace(best, converged=True, reason="complete rows take one step")
    fitted = parameters.network_of(best.parameters)
    held_out = sum(each.batch.rows for each in reading.held_out)
    # A few rows, which need no device.
    answering = replace(compute, device="cpu")
    skipped = {"impossible": len(observations.impossible), "invalid": reading.invalid, "held_out": held_out}
    cells = {
        v.name: LearnedCells(reading.observed[i], reading.soft[i], reading.read - reading.observed[i] - reading.soft[i])
        for i, v in enumerate(network.public)
    }
    learned = Learned(
        fitted,
        best.trace,
        restarts,
        best.converged,
        best.reason,
        {"ok": observations.rows, **skipped},
        observations.weight,
        latent,
        reading.reasons,
        _holdout(fitted, reading.held_out, answering) if options.holdout else None,
        cells,
    )
    if extras.errors or extras.page is not None:
        learned = replace(learned, parameters=_table(model, given, best.parameters, extras, allowed))
    if extras.page is not None:
        # Imported here: pictures take a second to import.
        from junctor.learning.report.page import write_fit_page

        if held_out:
            watch_rows = partial(extras.watch, "rows for held-out cells")
            check = check_holdout(given, fitted, reading.held_out, answering, options.seed, watch_rows)
            learned = replace(learned, check=check)
        settings = asdict(options)
        loop = settings.pop("fit")
        facts = {**extras.facts, **settings, **loop}
        write_fit_page(learned, options.fit.tolerance, facts, location(extras.page))
    return learned


def _table(model: NetworkFit, given: Network, values: Floats, extras: Extras, allowed: int) -> pa.Table:
    """Return the table of the parameters, with their errors where they are asked for."""
    # Tied variables have tables of their own before.
    before = replace(model.parameters, network=given, tied=()).values
    errors = None
    if extras.errors:
        errors = parameter_errors(model, values, allowed, partial(extras.watch, "standard errors of free parameters"))
    return parameter_table(model.parameters, before, values, model.expect(values).counts, errors)


def identity_of(network: Network, table: AnyPath, options: LearnOptions, rows: RowOptions) -> dict[str, Any]:
    """Return what a fit depends on, for its checkpoint: digests of files, and options.

    network: as it was read.
    table: path of the rows.
    options, rows: as of `learn_rows`.
    """
    file = prior_file(options.prior)
    prior = None if file is None else location(file)
    mapping = read_mapping(rows["mapping"], network)
    return {
        "network": network.digest,
        "rows": digest_of(table),
        "prior file": digest_of(prior) if prior is not None and prior.exists() else None,
        "mapping": None if mapping is None else mapping.digest,
        "options": asdict(options),
        "reading": {**rows, "mapping": None},
    }


def start_parameters(parameters: NetworkParameters, start: Start, seed: int, number: int) -> Floats:
    """Return the parameters that a fit begins with; structural zeros and fixed tables are kept.

    parameters: which there are.
    start: of the network, random or uniform.
    seed, number: of the random start.
    """
    if start == "network":
        return parameters.values
    values = np.ones(parameters.size)
    if start == "random":
        # Exponential numbers, divided by their sum, are uniform over distributions: Dirichlet with parameters 1.
        values = np.random.default_rng([seed, number]).exponential(size=parameters.size)
    values = np.where(parameters.support, values, 0.0)
    for first, *others in parameters.tied:
        for other in others:
            values[parameters.blocks[other].span] = values[parameters.blocks[first].span]
    values /= np.repeat(np.add.reduceat(values, parameters.distributions), parameters.lengths)
    return np.where(parameters.is_fixed, parameters.values, values)


def _smoothed(parameters: NetworkParameters, options: LearnOptions) -> NetworkParameters:
    """Return the parameters with tied tables equal, and without zeros where these are to be lifted."""
    values = parameters.values
    if options.impossible == "smooth":
        lifted = np.zeros(parameters.size, dtype=np.bool_)
        for block in parameters.blocks:
            # Zeros of contributions say which state of a parent has no effect.
            lifted[block.span] = not (block.is_fixed or block.is_contribution)
        uniform = SMOOTHING / np.repeat(parameters.lengths, parameters.lengths)
        values = np.where(lifted, (1.0 - SMOOTHING) * values + uniform, values)
    return replace(parameters, network=parameters.network_of(values))


def _refuse(source: EvidenceSource, observations: Observations, reading: RowReading, options: LearnOptions) -> None:
    """Raise EvidenceError for impossible rows that are not to be skipped, and where no row is left."""
    refuse_impossible(observations.impossible, options.impossible, source.names_of)
    if not observations.rows:
        held_out = sum(len(each.weights) for each in reading.held_out)
        counts = {"impossible": len(observations.impossible), "invalid": reading.invalid, "held out": held_out}
        why = [f"{count:,} of {reading.rows:,} rows are {what}" for what, count in counts.items() if count]
        why += [] if reading.first_reason is None else [reading.first_reason]
        raise EvidenceError(f"found no row to learn from{': ' if why else ''}{'; '.join(why)}")


def _holdout(network: Network, held_out: Sequence[HeldOut], compute: ComputeOptions) -> HoldoutResult:
    logs = row_logs(network, held_out, compute)
    weights = np.concatenate([np.zeros(0), *(each.weights for each in held_out)])
    return HoldoutResult.of(logs, weights)
