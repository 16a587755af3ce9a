"""`junctor learn-chain`: a hidden Markov model and sequences in, the fitted model out."""

from __future__ import annotations

from contextlib import ExitStack
from json import dumps
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from junctor.cli import fits
from junctor.cli import options as cli
from junctor.cli.deployed import is_check, is_recorded
from junctor.learning.choices import ChainStart
from junctor.learning.extras import Extras
from junctor.model import option_table as table
from junctor.model.errors import counted

if TYPE_CHECKING:
    from junctor.hmm.learned import LearnedModel


class ChainCommandOptions(
    table.FailOptions,
    cli.StepOptions,
    cli.LabelOptions,
    cli.SequenceFileOptions,
    table.FitResources,
    cli.JsonOptions,
    cli.MessageOptions,
    total=False,
):
    """Options that `junctor learn-chain` shares with other commands."""


@cli.takes_options(
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
            rich_help_panel=fits.RESULT,
        ),
    ],
    prior: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART=COUNT",
            help="Pseudo count of each probability above zero, such as emission=0.5; parts are start, transition and "
            "emission; repeatable.",
            rich_help_panel=fits.MODEL,
        ),
    ] = None,
    fix: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...", help="Parts that stay as they are, such as start,emission.", rich_help_panel=fits.MODEL
        ),
    ] = None,
    tie: Annotated[
        list[str] | None,
        typer.Option(
            "--tie", metavar="A=B", help="States that share their emissions; repeatable.", rich_help_panel=fits.MODEL
        ),
    ] = None,
    impossible: fits.ImpossibleOption = "refuse",
    start: Annotated[
        ChainStart,
        typer.Option(help="First probabilities: those of MODEL, random or uniform ones.", rich_help_panel=fits.LOOP),
    ] = "model",
    restarts: fits.Restarts = 1,
    tolerance: fits.Tolerance = 1e-6,
    max_iterations: fits.MaxIterations = 200,
    acceleration: fits.AccelerationOption = "squarem",
    seed: fits.FitSeed = 0,
    holdout: fits.Holdout = None,
    errors: fits.Errors = False,
    report: fits.FitReport = None,
    overwrite: fits.FitOverwrite = False,
    weight: Annotated[str | None, typer.Option(help="Column of weights of the sequences.")] = None,
    **options: Unpack[ChainCommandOptions],
) -> None:
    """Fit MODEL to SEQUENCES by expectation maximisation (Baum-Welch).

    Zeros of MODEL stay. An interrupted fit goes on where it stopped when the same command is given again.
    """
    from junctor.cli.display import progress_display
    from junctor.cli.failures import told_if_interrupted
    from junctor.cli.signals import GO_ON
    from junctor.hmm.columns import SequenceColumns
    from junctor.hmm.learning import ChainOptions
    from junctor.hmm.learning_files import ChainJob
    from junctor.learning.em import FitOptions
    from junctor.learning.thresholds import fit_thresholds, refuse_crossed_fit
    from junctor.runs.workload import refuse_places
    from junctor.runtime.remote import shown
    from junctor.runtime.settings import compute_of, load_settings

    fit = ChainOptions(
        _pseudo_counts(prior or []),  # type: ignore[arg-type]
        cli.names_in(fix) if fix is not None else (),  # type: ignore[arg-type]
        tuple(tie or ()),
        start,
        restarts,
        seed,
        fits.share_of(holdout),
        impossible,
        FitOptions(tolerance, max_iterations, acceleration),
    )
    job = ChainJob(
        model=model,
        sequences=sequences,
        output=output,
        options=fit,
        columns=SequenceColumns(
            options["column"], options["case_id"], options["step"], options["labels"], weight, options["gaps"]
        ),
        strict=options["strict"],
        overwrite=overwrite,
        model_format=options["model_format"],
        sequences_format=options["sequences_format"],
    )
    compute = compute_of(load_settings(), options)
    refuse_places(filter(None, (model, sequences, output, report)), recorded=is_recorded())
    fits.check_places(model, (sequences,), output, errors, report)
    thresholds = fit_thresholds(tuple(options["fail_if"]), ())
    if is_check():
        return
    files = {"model file": model, "sequences": sequences, "fitted model": output}
    facts = {name: shown(file) for name, file in files.items()}
    if options["labels"] is not None:
        facts["labels"] = options["labels"]
    with told_if_interrupted(GO_ON), ExitStack() as beginning:
        beginning.enter_context(progress_display(options["quiet"]))
        lines = fits.FitLines(restarts, options["quiet"], beginning.close)
        extras = Extras(errors, report, facts, lines.tell_extra)

        def judge(learned: LearnedModel) -> None:
            refuse_crossed_fit(thresholds, learned.statuses, learned.log_likelihood / learned.weight, report)

        learned = job.run(
            compute, lines.tell, extras, lambda checkpoint: fits.say_resumed(checkpoint, options["quiet"]), judge
        )
    fits.conclude_fit(learned.statuses, learned.fit.trace, learned.fit.converged)
    if options["json"]:
        typer.echo(dumps({"output": shown(output), **learned.to_record()}, indent=2))
    else:
        _show(learned, shown(output))


def _pseudo_counts(texts: list[str]) -> dict[str, float]:
    counts: dict[str, float] = {}
    for text in texts:
        part, equals, number = text.partition("=")
        try:
            count = float(number) if equals else None
        except ValueError:
            count = None
        if count is None:
            raise typer.BadParameter(f"found {text!r}, expected PART=COUNT, such as emission=0.5", param_hint="--prior")
        if part.strip() in counts:
            raise typer.BadParameter(f"{part.strip()} is given twice", param_hint="--prior")
        counts[part.strip()] = count
    return counts


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
