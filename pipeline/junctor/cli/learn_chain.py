"""`junctor learn-chain`: a hidden Markov model and sequences in, the fitted model out."""

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
    from junctor.hmm.learned import LearnedModel


class ChainCommandOptions(
    table.ChainFitOptions,
    table.OverwriteOptions,
    table.FailOptions,
    table.SequenceColumnOptions,
    table.SequenceFileOptions,
    table.FitResources,
    cli.JsonOptions,
    cli.MessageOptions,
    total=False,
):
    """Options of `junctor learn-chain`."""


@cli.takes_options(
    fix={"help": "Parts that stay as they are, such as start,emission."},
    tie={"help": "States that share their emissions; repeatable."},
    overwrite=cli.FIT_OVERWRITE,
    weight={"help": "Column of weights of the sequences.", "panel": None},
    fail_if={"help": cli.FAIL_IF},
    memory={"help": "What sums and rows may take, such as 4GiB; by default 60 % of what is free."},
    device=cli.ON_CPU,
)
def learn_chain(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Hidden Markov model to start from: Parquet or JSON; or a two-slice network."
        ),
    ],
    sequences: cli.SequencesFile,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File for the fitted model, .parquet, .json or .json.gz; or its URL.",
            rich_help_panel=table.RESULT,
        ),
    ],
    **options: Unpack[ChainCommandOptions],
) -> None:
    """Fit MODEL to SEQUENCES by expectation maximisation (Baum-Welch).

    Zeros of MODEL stay. An interrupted fit goes on where it stopped when the same command is given again.
    """
    from junctor.cli.display import progress_display
    from junctor.cli.failures import interrupt_message
    from junctor.cli.signals import GO_ON
    from junctor.hmm.columns import SequenceColumns
    from junctor.hmm.learning import chain_options
    from junctor.hmm.learning_files import ChainJob
    from junctor.learning.thresholds import fit_thresholds, refuse_crossed_fit
    from junctor.runs.workload import refuse_places
    from junctor.runtime.remote import shown
    from junctor.runtime.settings import compute_of, load_settings

    report = None if options["report"] is None else str(options["report"])
    columns = SequenceColumns(**table.options_for(table.SequenceColumnOptions, options))
    job = ChainJob(
        model,
        sequences,
        output,
        chain_options(options),
        columns,
        overwrite=options["overwrite"],
        **table.options_for(table.SequenceFileOptions, options),
    )
    compute = compute_of(load_settings(), options)
    refuse_places(filter(None, (model, sequences, output, report)), recorded=is_recorded())
    fits.check_places(model, (sequences,), output, options["errors"], report)
    thresholds = fit_thresholds(tuple(options["fail_if"]), ())
    if is_check():
        return
    files = {"model file": model, "sequences": sequences, "fitted model": output}
    facts = {name: shown(file) for name, file in files.items()}
    if options["labels"] is not None:
        facts["labels"] = options["labels"]
    with interrupt_message(GO_ON), ExitStack() as beginning:
        beginning.enter_context(progress_display(options["quiet"]))
        lines = fits.FitLines(options["restarts"], options["quiet"], beginning.close)
        extras = Extras(options["errors"], report, facts, lines.tell_extra)

        def judge(learned: LearnedModel) -> None:
            refuse_crossed_fit(thresholds, learned.statuses, learned.log_likelihood / learned.weight, report)

        learned = job.run(
            compute, lines.tell, extras, lambda checkpoint: fits.say_resumed(checkpoint, options["quiet"]), judge
        )
    fits.conclude_fit(learned.statuses, learned.fit.trace, learned.fit.converged)
    if options["json"]:
        print_document({"output": shown(output), **learned.to_record()})
    else:
        _show(learned, shown(output))


def _show(learned: LearnedModel, output: str) -> None:
    from junctor.cli.display import show_statuses

    model, fit = learned.model, learned.fit
    sizes = f"{counted(model.states, 'state')}, {counted(model.symbols, 'symbol')}"
    typer.echo(f"{output}: {sizes}; sequences: {show_statuses(learned.statuses)}")
    if learned.labelled:
        typer.echo(f"labels: of {learned.labelled:,} of {counted(learned.steps, 'step')}")
    fits.show_loop(fit.trace, fit.converged, fit.reason, learned.weight, learned.restarts, "sequence")
    fits.show_holdout(learned.holdout, "sequence", "model")
    fits.show_reasons(learned.reasons, "sequence")
