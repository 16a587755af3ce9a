"""What `junctor learn` and `junctor learn-chain` share: options, lines of progress, lines of what was found."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import typer

from junctor.cli.deployed import conclude
from junctor.cli.lines import say
from junctor.model.errors import counted

if TYPE_CHECKING:
    from junctor.learning.checkpoint import Checkpoint, Restart
    from junctor.learning.em import Iteration
    from junctor.learning.holdout import HoldoutResult

# Seconds between two lines of progress.
LINE_SECONDS = 2.0
# Rows that are left out and shown with their reasons.
SHOWN = 5


def check_places(start: str, inputs: Iterable[str | None], output: str, errors: bool, report: str | None) -> None:
    """Raise InputError for a file of a fit in place of one that it reads, or of another one of its own.

    start: network or model; the output may take its place, as another fit of the same one.
    inputs: what is read besides; None for what was not given.
    output, errors, report: as they were given.
    """
    from junctor.evidence.files import refuse_target
    from junctor.learning.checkpoint import checkpoint_path
    from junctor.learning.parameter_table import parameters_path
    from junctor.runs.closing import refuse_no_page
    from junctor.runtime.remote import location

    inputs = tuple(inputs)
    refuse_target(output, "--output", inputs)
    files = {"--output, whose checkpoint is": checkpoint_path(location(output))}
    if errors:
        files["--errors, whose table is"] = parameters_path(location(output))
    for option, file in files.items():
        refuse_target(file, option, (start, *inputs))
    if report is not None:
        refuse_target(report, "--report", (start, *inputs, output, *files.values()))
        refuse_no_page(report, "--report")


def say_resumed(checkpoint: Checkpoint, quiet: bool) -> None:
    """Say that an interrupted fit goes on, if there was one."""
    if checkpoint.state is not None and not quiet:
        say("resumed", f"going on with the fit in {checkpoint.path}")


class FitLines:
    """A line for the first iterations of each start, then one every few seconds; calls `begin` before all of them.

    restarts: number of starts.
    quiet: whether nothing is said.
    begin: ends a display of progress, which lines would get into.
    """

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
            self._text(number, iteration),
            start=number,
            iteration=iteration.number,
            log_likelihood=iteration.log_likelihood,
            log_posterior=iteration.log_posterior,
            seconds=iteration.seconds,
        )

    def _text(self, number: int, iteration: Iteration) -> str:
        which = f"start {number + 1} of {self._restarts}, " if self._restarts > 1 else ""
        # The start is no change of anything.
        change = f", change {iteration.change:.2g}" if iteration.number else ""
        return f"{which}iteration {iteration.number}: log-likelihood {iteration.log_likelihood:.9g}{change}"

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


def conclude_fit(statuses: Mapping[str, int], trace: Sequence[Iteration], converged: bool) -> None:
    """Say in a line what came of a fit, for whoever shows the end of a command.

    statuses: rows of each status.
    trace, converged: of the fit.
    """
    from junctor.cli.display import show_statuses

    last = trace[-1]
    end = f"log-likelihood {last.log_likelihood:.9g}, {_end(converged)} at {last.number:,}"
    conclude(f"{show_statuses(statuses)}; {end}")


def _end(converged: bool) -> str:
    return "converged" if converged else "not converged"


def show_loop(
    trace: Sequence[Iteration],
    converged: bool,
    reason: str,
    weight: float,
    restarts: Sequence[Restart],
    row: str = "row",
) -> None:
    """Print how a fit ended.

    trace, converged, reason, restarts: of the fit.
    weight: of the rows; row: what they are called.
    """
    last = trace[-1]
    each = f"{last.log_likelihood:.9g}, {last.log_likelihood / weight:.6g} a {row}"
    typer.echo(f"log-likelihood {each}; {_end(converged)} at {last.number:,} ({reason})")
    if len(restarts) > 1:
        typer.echo(f"objectives of the starts: {', '.join(f'{each.log_posterior:.9g}' for each in restarts)}")


def show_holdout(check: HoldoutResult | None, row: str = "row", model: str = "network") -> None:
    """Print how probable the rows are that were held out, if there are any; row, model: what these are called."""
    if check is None:
        return
    share = f", {check.log_likelihood / check.weight:.6g} a {row}" if check.weight else ""
    typer.echo(f"held out: {counted(check.rows, row)}, log-likelihood {check.log_likelihood:.9g}{share}")
    if check.impossible:
        typer.echo(
            f"held out: {check.impossible:,} more {row}s are impossible under the fitted {model} (a prior helps)"
        )


def show_reasons(reasons: Mapping[int, str], row: str = "row") -> None:
    """Print why the first rows, or what they are called, are left out."""
    for number, reason in list(reasons.items())[:SHOWN]:
        typer.echo(f"left out: {row} {number + 1:,}: {reason}", err=True)
