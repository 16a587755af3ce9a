"""`junctor draw`: a picture of a network with its posteriors."""

from __future__ import annotations

from typing import Annotated, Unpack

import typer

from junctor.cli import options as cli
from junctor.cli.cliques import evidence_of
from junctor.model import option_table as table
from junctor.model.errors import InputError, counted


class DrawingOptions(table.NetworkOptions, total=False):
    """Options of `junctor draw`."""


@cli.takes_options()
def draw(
    network: cli.NetworkFile,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="File for the picture, .svg.")],
    evidence: Annotated[
        list[str] | None,
        typer.Option("--evidence", "--given", metavar="VARIABLE=STATE", help="Such as smoke=yes; repeatable."),
    ] = None,
    **options: Unpack[DrawingOptions],
) -> None:
    """Draw NETWORK with a bar for the probability of each state, given what is observed.

    junctor draw asia.bif --evidence smoke=yes --evidence xray=no -o asia.svg
    """
    from junctor.drawing import drawing_of
    from junctor.evidence.files import refuse_target
    from junctor.runtime.remote import location, shown

    if location(output).suffix.lower() != ".svg":
        raise InputError(f"{shown(output)}: expected a file .svg")
    refuse_target(output, "--output", (network,))
    model = cli.network_of(network, options)
    drawing_of(model, evidence_of(evidence or [], "--evidence")).save(output)
    typer.echo(f"{shown(output)}: {counted(len(model.public), 'variable')}")
