"""`junctor learn`: tables of a network from rows with gaps."""

from __future__ import annotations

import json as json_module
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from junctor.cli import options as cli
from junctor.cli.deployed import conclude, deployed, is_check
from junctor.cli.lines import iteration_text, say
from junctor.learning.choices import Acceleration, Impossible, Start

if TYPE_CHECKING:
    from junctor.learning.em import Iteration
    from junctor.learning.learned import Learned
    from junctor.runtime.remote import AnyPath

_MODEL, _LOOP, _CHECK = "What is fitted", "Iterations", "Fitted network"
# Seconds between two lines of progress.
LINE_SECONDS = 2.0
# Invalid rows that are shown with their reasons.
SHOWN = 5


def learn(
    network: cli.NetworkFile,
    evidence: cli.EvidenceFile,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Network file to write, or its URL: .bif, .xml, .net, .xdsl, .dne, .uai or .parquet.",
            rich_help_panel=_CHECK,
        ),
    ],
    prior: Annotated[
        str,
        typer.Option(
            metavar="PRIOR",
            help="bdeu:N (equivalent sample size), dirichlet:FILE (pseudo counts, or a network) or none.",
            rich_help_panel=_MODEL,
        ),
    ] = "none",
    fix: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...", help="Variables whose tables stay, or patterns such as 'X_*'.", rich_help_panel=_MODEL
        ),
    ] = None,
    tie: Annotated[
        list[str] | None,
        typer.Option(
            "--tie", metavar="A=B", help="Variables that share one table; repeatable.", rich_help_panel=_MODEL
        ),
    ] = None,
    impossible: Annotated[
        Impossible,
        typer.Option(
            help="Rows that zeros of NETWORK rule out: refuse them, skip them, or smooth the zeros away.",
            rich_help_panel=_MODEL,
        ),
    ] = "refuse",
    new_states: Annotated[
        bool,
        typer.Option("--new-states", help="Add states that EVIDENCE names and NETWORK lacks.", rich_help_panel=_MODEL),
    ] = False,
    start: Annotated[
        Start, typer.Option(help="First tables: those of NETWORK, random or uniform ones.", rich_help_panel=_LOOP)
    ] = "network",
    restarts: Annotated[
        int, typer.Option(min=1, help="Random starts, the best of which is kept.", rich_help_panel=_LOOP)
    ] = 1,
    tolerance: Annotated[
        float,
        typer.Option(min=0.0, help="Relative change of the log-likelihood that ends it.", rich_help_panel=_LOOP),
    ] = 1e-6,
    max_iterations: Annotated[
        int, typer.Option(min=1, help="Iterations of a start at most.", rich_help_panel=_LOOP)
    ] = 200,
    acceleration: Annotated[
        Acceleration, typer.Option(help="Extrapolation of every third step.", rich_help_panel=_LOOP)
    ] = "squarem",
    seed: Annotated[
        int, typer.Option(min=0, help="Of random starts and of the rows held out.", rich_help_panel=_LOOP)
    ] = 0,
    holdout: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE", help="Rows kept for a check of the fitted network, such as 10%.", rich_help_panel=_CHECK
        ),
    ] = None,
    errors: Annotated[
        bool,
        typer.Option(
            "--errors",
            help="Standard errors of all parameters, in NAME.parameters.parquet beside NAME.bif.",
            rich_help_panel=_CHECK,
        ),
    ] = False,
    report: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A page on the fit, HTML that needs no network.", rich_help_panel=_CHECK),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Give up an interrupted fit of other input or options.", rich_help_panel=_CHECK
        ),
    ] = False,
    weight: cli.Weight = None,
    case_id: cli.CaseId = None,
    ignore_extra: cli.IgnoreExtra = False,
    strict: cli.Strict = False,
    mapping: cli.MappingFile = None,
    missing: cli.Missing = None,
    network_format: cli.NetworkFormat = None,
    normalize: cli.Normalize = False,
    ignore_decisions: cli.IgnoreDecisions = False,
    evidence_format: cli.EvidenceFormat = None,
    workers: cli.RowWorkers = None,
    threads: cli.Threads = None,
    memory: cli.LearningMemory = None,
    scheduler: cli.Scheduler = None,
    insecure_scheduler: cli.InsecureScheduler = False,
    json: cli.AsJson = False,
    quiet: cli.Quiet = False,
    log_format: cli.LogFormatOption = "text",
) -> None:
    """Fit the tables of NETWORK to the rows of EVIDENCE, whatever they leave out, by expectation maximisation.

    A variable without a column is latent. Zeros of NETWORK stay. An interrupted fit goes on where it stopped when the
    same command is given again.
    """
    from junctor.cli.display import progress_display
    from junctor.cli.failures import interrupted
    from junctor.cli.run import names_in
    from junctor.evidence.pipes import spooled
    from junctor.formats import read_network, writable_format, write_network
    from junctor.learning.checkpoint import Checkpoint
    from junctor.learning.em import FitOptions
    from junctor.learning.learn import Extras, LearnOptions, identity_of, learn_rows
    from junctor.learning.parameter_table import write_parameters
    from junctor.learning.rows import RowOptions
    from junctor.runs.workload import refuse_places
    from junctor.runtime.dask_cluster import check_resources
    from junctor.runtime.remote import location, shown
    from junctor.runtime.settings import load_settings

    options = LearnOptions(
        prior,
        names_in(fix) if fix is not None else (),
        tuple(tie or ()),
        start,
        restarts,
        seed,
        _share(holdout),
        impossible,
        new_states,
        FitOptions(tolerance, max_iterations, acceleration),
    )
    rows = RowOptions(weight, case_id, ignore_extra, strict, tuple(missing or ()), mapping, evidence_format)
    settings = load_settings()
    compute = cli.compute_options(memory, threads, "cpu", defaults=settings.compute)
    resources = settings.resources_with(compute, workers, scheduler, insecure_scheduler)
    target = location(output)
    form = writable_format(target)
    places = network, evidence, output, report, mapping, prior.removeprefix("dirichlet:")
    refuse_places(filter(None, places), recorded=is_check() or deployed.get() is not None)
    if is_check():
        return
    check_resources(resources)
    model = read_network(network, network_format, normalize=normalize, ignore_decisions=ignore_decisions)
    if form != "parquet":
        # Other formats have no noisy nodes: too large a table is better refused before the work than after it.
        _ = model.expanded
    source = spooled(evidence)
    checkpoint = Checkpoint(
        target.with_name(f"{target.name}.checkpoint"), identity_of(model, source, options, rows), overwrite
    )
    files = {"network file": network, "evidence": evidence, "fitted network": output}
    facts = {name: shown(file) for name, file in files.items()}
    if checkpoint.state is not None and not quiet:
        say("resumed", f"going on with the fit in {checkpoint.path}")
    try:
        with ExitStack() as reading:
            progress = reading.enter_context(progress_display(quiet))
            # Lines would get into a bar: its display ends before the first of them.
            lines = _Lines(options.restarts, quiet, reading.close)
            extras = Extras(errors, report, facts, lines.tell_extra)
            found = learn_rows(model, source, options, rows, resources, lines.tell, progress, checkpoint, extras)
    except KeyboardInterrupt as wish:
        raise interrupted(wish, "run the same command again to go on") from None
    for warning in write_network(found.network, target):
        typer.echo(f"warning: {warning}", err=True)
    if errors and found.parameters is not None:
        write_parameters(found.parameters, _parameters_file(target))
    # Not before: an output that cannot be written is no end.
    checkpoint.remove()
    _show(found, output, json)


def _share(text: str | None) -> float:
    """Return the number in `10%` or `0.1`."""
    if text is None:
        return 0.0
    try:
        number = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        number = math.nan
    if not 0 <= number < 1:
        raise typer.BadParameter(f"found {text!r}, expected a share such as 10%", param_hint="--holdout")
    return number


def _parameters_file(target: AnyPath) -> AnyPath:
    return target.with_name(f"{target.name.removesuffix(target.suffix)}.parameters.parquet")


class _Lines:
    """A line for the first iterations of each start, then one every few seconds; calls `begin` before all of them."""

    def __init__(self, restarts: int, quiet: bool, begin: Callable[[], None]) -> None:
        self._restarts, self._quiet, self._begin = restarts, quiet, begin
        self._said = -math.inf

    def tell(self, number: int, iteration: Iteration) -> None:
        """Say what an iteration did."""
        self._begin()
        now = time.monotonic()
        if self._quiet or (iteration.number > 1 and now - self._said < LINE_SECONDS):
            return
        self._said = now
        say(
            "iteration",
            iteration_text(number, self._restarts, iteration),
            start=number,
            iteration=iteration.number,
            log_likelihood=iteration.log_likelihood,
            log_posterior=iteration.log_posterior,
            seconds=iteration.seconds,
        )

    def tell_extra(self, what: str, done: int, of: int, seconds: float | None) -> None:
        """Say how long something takes after the iterations."""
        self._begin()
        now = time.monotonic()
        if self._quiet or (done > 0 and now - self._said < LINE_SECONDS):
            return
        self._said = now
        far = f"{done:,} of {of:,}" if done else f"{of:,}"
        left = "" if seconds is None else f", about {seconds:.2g} s{' left' if done else ''}"
        say("extra", f"{what}: {far}{left}", what=what, done=done, of=of, seconds=seconds)


def _show(found: Learned, output: str, as_json: bool) -> None:
    from junctor.cli.display import show_statuses
    from junctor.runtime.remote import shown

    last = found.trace[-1]
    end = "converged" if found.converged else "not converged"
    conclude(f"{show_statuses(found.rows)}; log-likelihood {last.log_likelihood:.9g}, {end} at {last.number:,}")
    if as_json:
        typer.echo(json_module.dumps({"output": output, **found.to_record()}, indent=2))
        return
    each = last.log_likelihood / found.weight
    typer.echo(f"{shown(output)}: {len(found.network.public):,} variables; rows: {show_statuses(found.rows)}")
    typer.echo(f"log-likelihood {last.log_likelihood:.9g}, {each:.6g} a row; {end} at {last.number:,} ({found.reason})")
    if len(found.restarts) > 1:
        best = ", ".join(f"{each.log_posterior:.9g}" for each in found.restarts)
        typer.echo(f"objectives of the starts: {best}")
    if found.latent:
        some = ", ".join(found.latent[:SHOWN])
        typer.echo(f"latent: {some}{', ...' if len(found.latent) > SHOWN else ''}")
    if (check := found.holdout) is not None:
        share = f", {check.log_likelihood / check.weight:.6g} a row" if check.weight else ""
        typer.echo(f"held out: {check.rows:,} rows, log-likelihood {check.log_likelihood:.9g}{share}")
        if check.impossible:
            typer.echo(
                f"held out: {check.impossible:,} more rows are impossible under the fitted network (a prior helps)"
            )
    for row, reason in list(found.reasons.items())[:SHOWN]:
        typer.echo(f"invalid: row {row + 1:,}: {reason}", err=True)
