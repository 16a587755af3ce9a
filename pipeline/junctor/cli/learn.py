"""`junctor learn`: tables of a network from rows with gaps."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from junctor.cli import fits
from junctor.cli import options as cli
from junctor.cli.deployed import is_check, is_recorded
from junctor.cli.lines import print_document
from junctor.learning.extras import Extras
from junctor.model import option_table as table
from junctor.model.errors import counted

if TYPE_CHECKING:
    from junctor.learning.learned import Learned


class LearnCommandOptions(
    table.NetworkFitOptions, table.OverwriteOptions, table.FailOptions, cli.WeightedRowOptions, total=False
):
    """Options of `junctor learn`."""


@cli.takes_options(
    overwrite=cli.FIT_OVERWRITE,
    fail_if={"help": cli.FAIL_IF},
    workers={"help": cli.READERS},
    device=cli.ON_CPU,
)
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
            rich_help_panel=table.RESULT,
        ),
    ],
    **options: Unpack[LearnCommandOptions],
) -> None:
    """Fit the tables of NETWORK to the rows of EVIDENCE, whatever they leave out, by expectation maximisation.

    A variable without a column is latent. Zeros of NETWORK stay. An interrupted fit goes on where it stopped when the
    same command is given again.
    """
    from junctor.cli.display import progress_display
    from junctor.cli.failures import interrupt_message
    from junctor.cli.signals import GO_ON
    from junctor.evidence.pipes import spooled
    from junctor.evidence.read import stamps_of
    from junctor.formats import writable_format, write_network
    from junctor.learning.checkpoint import Checkpoint, checkpoint_path
    from junctor.learning.learn import identity_of, learn_options, learn_rows
    from junctor.learning.parameter_table import parameters_path, write_parameters
    from junctor.learning.priors import prior_file
    from junctor.learning.rows import row_options
    from junctor.learning.thresholds import fit_thresholds, refuse_crossed_fit
    from junctor.runs.workload import refuse_places
    from junctor.runtime.dask_cluster import check_resources, prepare_workers
    from junctor.runtime.remote import location, shown
    from junctor.runtime.settings import load_settings, resources_of

    fit = learn_options(options)
    report = None if options["report"] is None else str(options["report"])
    mapping = cli.mapping_of(options)
    rows = row_options(options)
    resources = resources_of(load_settings(), options)
    target = location(output)
    form = writable_format(target)
    places = network, evidence, output, report, mapping, prior_file(fit.prior)
    refuse_places(filter(None, places), recorded=is_recorded())
    fits.check_places(network, (evidence, mapping, prior_file(fit.prior)), output, options["errors"], report)
    conditions = tuple(options["fail_if"])
    if is_check():
        fit_thresholds(conditions, None)
        return
    check_resources(resources)
    prepare_workers(resources)
    model = cli.network_of(network, options)
    thresholds = fit_thresholds(conditions, [variable.name for variable in model.public])
    if form != "parquet":
        # Other formats have no noisy nodes: too large a table is better refused before the work than after it.
        _ = model.expanded
    source = spooled(evidence)
    # Before the digest of the rows, which names the checkpoint.
    stamps = stamps_of(source)
    checkpoint = Checkpoint(checkpoint_path(target), identity_of(model, source, fit, rows), options["overwrite"])
    files = {"network file": network, "evidence": evidence, "fitted network": output}
    facts = {name: shown(file) for name, file in files.items()}
    fits.say_resumed(checkpoint, options["quiet"])
    with interrupt_message(GO_ON), ExitStack() as reading:
        progress = reading.enter_context(progress_display(options["quiet"]))
        # Lines would get into a bar: its display ends before the first of them.
        lines = fits.FitLines(fit.restarts, options["quiet"], reading.close)
        extras = Extras(options["errors"], report, facts, lines.tell_extra)
        found = learn_rows(model, source, fit, rows, resources, lines.tell, progress, checkpoint, extras, stamps)
    mean = found.log_likelihood / found.weight
    refuse_crossed_fit(thresholds, found.rows, mean, report, found.cells, found.reasons)
    for warning in write_network(found.network, target):
        typer.echo(f"warning: {warning}", err=True)
    if options["errors"] and found.parameters is not None:
        write_parameters(found.parameters, parameters_path(target))
    # Not before: an output that cannot be written is no end.
    checkpoint.remove()
    _show(found, output, options["json"])


def _show(found: Learned, output: str, as_json: bool) -> None:
    from junctor.cli.display import show_statuses
    from junctor.runtime.remote import shown

    fits.conclude_fit(found.rows, found.trace, found.converged)
    if as_json:
        print_document({"output": shown(output), **found.to_record()})
        return
    typer.echo(f"{shown(output)}: {counted(len(found.network.public), 'variable')}; rows: {show_statuses(found.rows)}")
    fits.show_loop(found.trace, found.converged, found.reason, found.weight, found.restarts)
    if found.latent:
        some = ", ".join(found.latent[: fits.SHOWN])
        typer.echo(f"latent: {some}{', ...' if len(found.latent) > fits.SHOWN else ''}")
    fits.show_holdout(found.holdout)
    fits.show_reasons(found.reasons)
