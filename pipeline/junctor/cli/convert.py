"""`junctor convert`: a network file in another format."""

from __future__ import annotations

from typing import Annotated

import typer

from junctor.cli import options as cli
from junctor.model.errors import counted


def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Network file to read.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="Network file to write: .bif, .xml, .net, .xdsl, .dne, .uai or .parquet."
        ),
    ],
    source_format: Annotated[
        str | None, typer.Option("--from", "--format", help="Format of SOURCE, if its name does not say.")
    ] = None,
    target_format: Annotated[
        str | None, typer.Option("--to", help="Format of TARGET, if its name does not say.")
    ] = None,
    normalize: cli.Normalize = False,
    ignore_decisions: cli.IgnoreDecisions = False,
) -> None:
    """Write a network file in another format."""
    from junctor.formats import read_network, write_network
    from junctor.runtime.remote import shown

    network = read_network(source, source_format, normalize=normalize, ignore_decisions=ignore_decisions)
    # What a format cannot hold, such as names, is lost: said here, on stderr, and no error.
    for warning in write_network(network, target, target_format):
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"{shown(target)}: {counted(len(network.public), 'variable')}, {counted(len(network.factors), 'table')}")
