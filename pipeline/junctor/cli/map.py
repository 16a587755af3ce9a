"""`junctor map`: a mapping file, proposed from the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from junctor.cli import options as cli
from junctor.cli.lines import print_document
from junctor.model import option_table as table

if TYPE_CHECKING:
    from junctor.evidence.propose import Coverage, Proposal


class MapOptions(
    table.ProposalOptions,
    table.NetworkOptions,
    cli.JsonOptions,
    total=False,
):
    """Options that `junctor map` shares with other commands."""


@cli.takes_options()
def propose_mapping(
    network: cli.NetworkFile,
    evidence: cli.EvidenceFile,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="The mapping file; printed if not given.")
    ] = None,
    **options: Unpack[MapOptions],
) -> None:
    """Propose a mapping file for EVIDENCE, and show how much of each column it covers.

    Names are matched exactly, then without case, signs and units, by words, by likeness; numbers go into bins where the
    states of NETWORK look like intervals or have an order. Check it, then give it to --mapping.
    """
    from dataclasses import asdict

    from junctor.evidence.files import refuse_target
    from junctor.evidence.propose import propose
    from junctor.model.errors import EvidenceError, Place
    from junctor.runtime.files import written_atomically
    from junctor.runtime.remote import location

    target = None if output is None else location(output)
    if output is not None:
        refuse_target(output, "--output", (evidence,))

    def refuse_existing() -> None:
        if target is not None and target.exists():
            # The path has no credentials, which the text may have.
            place = Place(str(target))
            raise EvidenceError("there is such a file, perhaps one that was edited: choose another name", place)

    refuse_existing()
    model = cli.network_of(network, options)
    proposal = propose(model, evidence, **table.options_for(table.ProposalOptions, options))
    if target is not None:
        # Asked again: somebody may have made one meanwhile, or a store may have said once that it has none.
        with written_atomically(target, check=refuse_existing) as temporary:
            temporary.write_text(proposal.to_toml(), encoding="utf-8")
    if options["json"]:
        # As TOML: JSON has no infinite edges.
        columns = [asdict(each) | {"covered": each.covered} for each in proposal.columns]
        record = {"mapping": proposal.to_toml(), "columns": columns, "unobserved": proposal.unobserved}
        print_document(record)
        return
    if target is None:
        typer.echo(proposal.to_toml(), nl=False)
    _show(proposal, to_errors=target is None)


def _show(proposal: Proposal, to_errors: bool) -> None:
    """Print the coverage; to_errors: to the standard error, where the mapping itself goes to the output."""
    lines = [("column", "variable", "match", "covered", "unknown cells")]
    lines += [
        (each.column, each.variable, each.how, f"{each.covered:.1%}" if each.rows else "", _unknown(each))
        for each in proposal.columns
    ]
    widths = [max(len(line[i]) for line in lines) for i in range(5)]
    for line in lines:
        told = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        typer.echo(told.rstrip(), err=to_errors)
    if proposal.unobserved:
        names = ", ".join(proposal.unobserved[:5]) + ", ..." * (len(proposal.unobserved) > 5)
        typer.echo(f"{len(proposal.unobserved)} variables without a column: {names}", err=to_errors)


def _unknown(each: Coverage) -> str:
    return ", ".join(f"{cell[:20]!r} ({count:,})" for cell, count in each.unknown)
