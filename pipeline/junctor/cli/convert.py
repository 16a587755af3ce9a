"""`junctor convert`: a network file in another format."""

from __future__ import annotations

from typing import Annotated, Unpack

import typer

from junctor.cli import options as cli
from junctor.model import option_table as table
from junctor.model.errors import counted


@cli.takes_options(
    network_format={"flag": "--from --format", "help": "Format of SOURCE, if its name does not say."},
    normalize={"help": "Divide the rows of SOURCE's tables, such as counts or percentages, by their sums."},
)
def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Network file to read.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="Network file to write: .bif, .xml, .net, .xdsl, .dne, .uai or .parquet."
        ),
    ],
    target_format: Annotated[
        str | None, typer.Option("--to", help="Format of TARGET, if its name does not say.")
    ] = None,
    **options: Unpack[table.NetworkOptions],
) -> None:
    """Write a network file in another format."""
    from junctor.formats import write_network
    from junctor.runtime.remote import shown

    network = cli.network_of(source, options)
    # What a format cannot hold, such as names, is lost: said here, on stderr, and no error.
    for warning in write_network(network, target, target_format):
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"{shown(target)}: {counted(len(network.public), 'variable')}, {counted(len(network.factors), 'table')}")
