"""`junctor learn-chain`: a hidden Markov model and sequences in, the fitted model out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from junctor.cli import options as cli
from junctor.learning.choices import Acceleration

if TYPE_CHECKING:
    from junctor.hmm.learning import LearnedModel
    from junctor.learning.em import Iteration

# Least seconds between two lines of progress.
LINE_SECONDS = 1.0
FIT = "Fit"


def learn_chain(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Hidden Markov model to start from: Parquet or JSON; or a two-slice network."
        ),
    ],
    sequences: Annotated[
        str,
        typer.Argument(metavar="SEQUENCES", help="Parquet (file or folder) or Arrow with a list column, one row each."),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File for the fitted model, .parquet, .json or .json.gz; or its URL."
        ),
    ],
    prior: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART=COUNT",
            help="Pseudo count of each probability above zero, such as emission=0.5; parts are start, transition and "
            "emission; repeatable.",
            rich_help_panel=FIT,
        ),
    ] = None,
    fix: Annotated[
        str | None, typer.Option(help="Parts that stay as they are, such as start,emission.", rich_help_panel=FIT)
    ] = None,
    start: Annotated[
        Literal["model", "random", "uniform"],
        typer.Option(help="Numbers of MODEL, or others in their place; zeros stay.", rich_help_panel=FIT),
    ] = "model",
    restarts: Annotated[
        int, typer.Option(min=1, help="Random starts, of which the best fit is kept.", rich_help_panel=FIT)
    ] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of random starts.", rich_help_panel=FIT)] = 0,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="Relative change at which a fit has converged.", rich_help_panel=FIT)
    ] = 1e-6,
    max_iterations: Annotated[int, typer.Option(min=1, help="Of each start.", rich_help_panel=FIT)] = 200,
    acceleration: Annotated[
        Acceleration,
        typer.Option(help="SQUAREM extrapolates after every two steps.", rich_help_panel=FIT),
    ] = "squarem",
    weight: Annotated[str | None, typer.Option(help="Column of weights of the sequences.")] = None,
    column: Annotated[str | None, typer.Option(help="List column, where there are several.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse the file at its first invalid sequence.")] = False,
    model_format: Annotated[
        str | None, typer.Option("--format", help="Format of MODEL, if its name does not say: parquet, json, bif, ...")
    ] = None,
    sequences_format: Annotated[
        str | None, typer.Option(help="Format of SEQUENCES, if its name does not say: parquet, arrow.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Give up the state of a different fit that was interrupted.")
    ] = False,
    threads: cli.Threads = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="What sums and rows may take, such as 4GiB; 60 % of what is free.", rich_help_panel=cli.RESOURCES
        ),
    ] = None,
    device: cli.LearningDevice = "cpu",
    device_memory: cli.DeviceMemory = None,
    json: cli.AsJson = False,
    quiet: cli.Quiet = False,
    log_format: cli.LogFormatOption = "text",
) -> None:
    """Fit MODEL to SEQUENCES by expectation maximisation (Baum-Welch); zeros stay zeros.

    An interrupted fit goes on where it stopped when the same command is given again.
    """
    from json import dumps

    from junctor.cli.display import progress_display
    from junctor.cli.failures import interrupted
    from junctor.hmm.learning import ChainOptions
    from junctor.hmm.learning_files import ChainJob
    from junctor.learning.em import FitOptions
    from junctor.runtime.remote import shown
    from junctor.runtime.settings import load_settings

    fit = FitOptions(tolerance, max_iterations, acceleration)
    # Names are checked with the options.
    parts = tuple(name.strip() for name in (fix or "").split(",") if name.strip())
    options = ChainOptions(_pseudo_counts(prior or []), parts, start, restarts, seed, fit)  # type: ignore[arg-type]
    job = ChainJob(model, sequences, output, options, column, weight, strict, overwrite, model_format, sequences_format)
    defaults = load_settings().compute
    compute = cli.compute_options(memory, threads, device, device_memory, defaults=defaults)
    try:
        with progress_display(quiet):
            learned = job.run(compute, None if quiet else _Lines(restarts).tell)
    except KeyboardInterrupt as wish:
        raise interrupted(wish, "run the same command again to go on") from None
    if json:
        typer.echo(dumps({"output": shown(output), **learned.to_record()}, indent=2))
    else:
        _show(learned, shown(output))


class _Lines:
    """A line for an iteration now and then."""

    def __init__(self, restarts: int) -> None:
        self._restarts = restarts
        self._last = time.monotonic()

    def tell(self, number: int, iteration: Iteration) -> None:
        """Tell of an iteration, and the number of its start."""
        from junctor.cli.lines import iteration_text, say

        now = time.monotonic()
        if now - self._last < LINE_SECONDS:
            return
        self._last = now
        say(
            "iteration",
            iteration_text(number, self._restarts, iteration),
            start=number,
            iteration=iteration.number,
            log_likelihood=iteration.log_likelihood,
        )


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
    model, fit = learned.model, learned.fit
    counts = ", ".join(f"{count:,} {name}" for name, count in learned.statuses.items() if count)
    typer.echo(f"{output}: {model.states:,} states, {model.symbols:,} symbols")
    typer.echo(f"{sum(learned.statuses.values()):,} sequences: {counts}")
    if learned.reasons:
        first = min(learned.reasons)
        typer.echo(f"first left out: row {first + 1}: {learned.reasons[first]}")
    how = "converged" if fit.converged else "not converged"
    after = f"{fit.trace[-1].number:,} iterations"
    reason = "" if fit.reason == after else f" ({fit.reason})"
    best = f", the best of {len(learned.restarts):,} starts" if len(learned.restarts) > 1 else ""
    typer.echo(f"{how} after {after}{reason}{best}")
    typer.echo(f"log-likelihood {fit.trace[0].log_likelihood:.9g} at the start, {fit.log_likelihood:.9g} at the end")
