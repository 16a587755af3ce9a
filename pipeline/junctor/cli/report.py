"""`junctor report`: the page of a finished run, or of two runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from junctor.cli import options as cli
from junctor.cli.verify import directory_of
from junctor.model.option_table import FailOptions

if TYPE_CHECKING:
    from junctor.runs.outcome import Outcome


@cli.takes_options()
def report(
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="Directory of a finished run.")],
    other: Annotated[
        str | None, typer.Argument(metavar="OTHER", help="Of another one: what drifted from OUTPUT to it.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The page; report.html or comparison.html in the directory."
        ),
    ] = None,
    **options: Unpack[FailOptions],
) -> None:
    """Write a page on the run in OUTPUT: one HTML file that needs no network. With OTHER, compare two runs."""
    thresholds = options["fail_if"]
    if other is not None and thresholds:
        raise typer.BadParameter("thresholds are of one run: leave OTHER out", param_hint="--fail-if")
    cli.refuse_empty(output, "OUTPUT")
    if other is not None:
        cli.refuse_empty(other, "OTHER")
    from junctor.runtime.installed import require_extra

    require_extra("report", "junctor report")
    from junctor.runs.report.comparison import write_comparison
    from junctor.runs.report.page import write_page
    from junctor.runs.thresholds import refuse_crossed
    from junctor.runtime.remote import location

    one = _outcome(output)
    if other is not None:
        two = _outcome(other)
        _refuse_place(file, one, two)
        path = location(file).absolute() if file is not None else two.directory.path / "comparison.html"
        write_comparison(one, two, path)
        typer.echo(path)
        return
    _refuse_place(file, one)
    path = location(file).absolute() if file is not None else one.directory.report
    one.refuse_unknown(thresholds)
    found = one.verdicts(thresholds)
    write_page(one, found, path)
    typer.echo(path)
    rows = f"status and reason of all rows: {one.directory.path / one.manifest.spec.folder}"
    refuse_crossed(found, rows, str(path))


def _refuse_place(file: str | None, *runs: Outcome) -> None:
    """Raise InputError for a page in place of a file of a run, or of a file that is no page."""
    from junctor.evidence.files import refuse_target
    from junctor.runs.closing import refuse_no_page

    if file is None:
        return
    refuse_target(file, "--output", ())
    for each in runs:
        each.directory.refuse_target(file, "--output")
    refuse_no_page(file, "--output")


def _outcome(output: str) -> Outcome:
    """Return the outcome of the run of either kind in a directory; raises RunError without one."""
    from junctor.runs.manifest import read_manifest
    from junctor.runs.outcome import outcome_of

    directory = directory_of(output)
    directory.read_spec()
    return outcome_of(directory, read_manifest(directory))
