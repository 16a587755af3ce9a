"""`junctor learn-chain`: a hidden Markov model and sequences in, the fitted model out."""

from __future__ import annotations

from contextlib import ExitStack
from json import dumps
from typing import TYPE_CHECKING, Annotated

import typer

from junctor.cli import fits
from junctor.cli import options as cli
from junctor.cli.deployed import is_check, is_recorded
from junctor.learning.choices import ChainStart
from junctor.learning.extras import Extras
from junctor.model.errors import counted

if TYPE_CHECKING:
    from junctor.hmm.learned import LearnedModel


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
    fail_if: cli.FailIfWithoutDrift = None,
    overwrite: fits.FitOverwrite = False,
    weight: Annotated[str | None, typer.Option(help="Column of weights of the sequences.")] = None,
    column: cli.SequenceColumn = None,
    case_id: cli.SequenceId = None,
    step: cli.StepColumn = None,
    gaps: cli.StepGaps = "invalid",
    labels: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of states that are known, null for others.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse the file at its first invalid sequence.")] = False,
    model_format: Annotated[
        str | None, typer.Option("--format", help="Format of MODEL, if its name does not say: parquet, json, bif, ...")
    ] = None,
    sequences_format: cli.SequencesFormat = None,
    threads: cli.Threads = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="What sums and rows may take, such as 4GiB; by default 60 % of what is free.",
            rich_help_panel=cli.RESOURCES,
        ),
    ] = None,
    device: cli.LearningDevice = "cpu",
    device_memory: cli.DeviceMemory = None,
    time_limit: cli.TimeLimit = None,
    json: cli.AsJson = False,
    quiet: cli.Quiet = False,
    log_format: cli.LogFormatOption = "text",
) -> None:
    """Fit MODEL to SEQUENCES by expectation maximisation (Baum-Welch).

    Zeros of MODEL stay. An interrupted fit goes on where it stopped when the same command is given again.
    """
    from junctor.cli.display import progress_display
    from junctor.cli.failures import told_if_interrupted
    from junctor.cli.run import names_in
    from junctor.cli.signals import GO_ON
    from junctor.hmm.columns import SequenceColumns
    from junctor.hmm.learning import ChainOptions
    from junctor.hmm.learning_files import ChainJob
    from junctor.learning.em import FitOptions
    from junctor.learning.thresholds import fit_thresholds, refuse_crossed_fit
    from junctor.runs.workload import refuse_places
    from junctor.runtime.remote import shown
    from junctor.runtime.settings import load_settings

    options = ChainOptions(
        _pseudo_counts(prior or []),  # type: ignore[arg-type]
        names_in(fix) if fix is not None else (),  # type: ignore[arg-type]
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
        options=options,
        columns=SequenceColumns(column, case_id, step, labels, weight, gaps),
        strict=strict,
        overwrite=overwrite,
        model_format=model_format,
        sequences_format=sequences_format,
    )
    given = memory, threads, device, device_memory
    compute = cli.compute_options(*given, defaults=load_settings().compute, time_limit=time_limit)
    refuse_places(filter(None, (model, sequences, output, report)), recorded=is_recorded())
    fits.check_places(model, (sequences,), output, errors, report)
    thresholds = fit_thresholds(cli.thresholds(fail_if), ())
    if is_check():
        return
    files = {"model file": model, "sequences": sequences, "fitted model": output}
    facts = {name: shown(file) for name, file in files.items()}
    if labels is not None:
        facts["labels"] = labels
    with told_if_interrupted(GO_ON), ExitStack() as beginning:
        beginning.enter_context(progress_display(quiet))
        lines = fits.FitLines(restarts, quiet, beginning.close)
        extras = Extras(errors, report, facts, lines.tell_extra)

        def judge(learned: LearnedModel) -> None:
            refuse_crossed_fit(thresholds, learned.statuses, learned.log_likelihood / learned.weight, report)

        learned = job.run(compute, lines.tell, extras, lambda checkpoint: fits.say_resumed(checkpoint, quiet), judge)
    fits.conclude_fit(learned.statuses, learned.fit.trace, learned.fit.converged)
    if json:
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
