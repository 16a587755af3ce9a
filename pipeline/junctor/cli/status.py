"""`junctor status`: what lies in an output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from junctor.cli import options as cli
from junctor.cli.lines import print_document

if TYPE_CHECKING:
    from junctor.runs.increments import Increment
    from junctor.runs.status import PartitionStatus, RunStatus

# Rows of a table, the last ones.
MOST_ROWS = 20


@cli.takes_options()
def status(
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="Directory of a run.")],
    everything: Annotated[
        bool, typer.Option("--all", help="Every increment and input, not only the last ones.")
    ] = False,
    **options: Unpack[cli.JsonOptions],
) -> None:
    """Show the runs in OUTPUT: what is answered, from which inputs, and with which statuses."""
    cli.refuse_empty(output, "OUTPUT")

    from junctor.runs.status import read_status
    from junctor.runtime.remote import location

    found = read_status(location(output))
    if options["json"]:
        print_document(found.to_record())
    else:
        _show(found, everything)


def _show(found: RunStatus, everything: bool) -> None:
    from junctor.cli.display import show_statuses
    from junctor.model.errors import counted
    from junctor.model.question import question_name
    from junctor.planning.budget import format_bytes
    from junctor.runs.statistics import observed_lines

    spec = found.spec
    name = question_name(str(spec.get("query")), spec.get("answers", "posteriors"))
    typer.echo(f"{found.directory}: {name}, {spec.get('precision')} precision, junctor {spec.get('junctor_version')}")
    size = format_bytes(found.bytes)
    if found.rows is None:
        parts = "" if found.expected_parts is None else f" of {found.expected_parts:,}"
        rows = "" if found.expected_rows is None else f" ({counted(found.expected_rows, 'row')} in all)"
        typer.echo(f"{found.state}: {found.parts:,}{parts} parts{rows}, {size}: the same command goes on")
        return
    typer.echo(f"{found.state}, {found.finished_at}, {found.seconds:.1f} s")
    typer.echo(f"{counted(found.rows, 'row')}: {show_statuses(found.statuses)}; {counted(found.parts, 'part')}, {size}")
    for line in observed_lines(found.observed_targets, found.statuses):
        typer.echo(line)
    if found.increments:
        _table("increments", _INCREMENT, [_increment(each) for each in found.increments], everything)
        _table("partitions", _PARTITION, [_partition(each) for each in found.partitions], everything)
    if found.inputs and everything:
        rows_of = [(each.path, f"{each.rows:,}", each.increment, "removed" * each.removed) for each in found.inputs]
        _table("inputs", ("path", "rows", "increment", ""), rows_of, everything)


_INCREMENT = ("number", "finished", "rows", "new", "late", "changed", "backfilled", "renamed", "removed", "junctor")
_PARTITION = ("partition", "inputs", "removed", "rows", "statuses")


def _increment(each: Increment) -> Sequence[object]:
    gone = len(each.removed) + len(each.dropped)
    again = len(each.changed), len(each.backfilled), len(each.renamed), gone
    return each.number, each.finished_at, f"{each.rows:,}", each.new, len(each.late), *again, each.junctor_version


def _partition(each: PartitionStatus) -> Sequence[object]:
    from junctor.cli.display import show_statuses

    return each.partition or "none", each.inputs, each.removed, f"{each.rows:,}", show_statuses(each.statuses)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]], everything: bool) -> None:
    shown = rows if everything else rows[-MOST_ROWS:]
    texts = [head, *([str(cell) for cell in row] for row in shown)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(head))]
    more = f", the last {len(shown)} of {len(rows):,} (--all shows all)" if len(shown) < len(rows) else ""
    typer.echo(f"\n{title}{more}")
    for row in texts:
        typer.echo("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
