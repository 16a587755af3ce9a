"""`junctor compare`: what differs between two networks."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated, Any, Unpack

import typer

from junctor.cli import options as cli
from junctor.cli.lines import print_document
from junctor.model import option_table as table


class CompareOptions(table.NetworkOptions, cli.JsonOptions, total=False):
    """Options of `junctor compare`."""


@cli.takes_options()
def compare(
    network: cli.NetworkFile,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="What to compare it with, in any of these formats.")],
    **options: Unpack[CompareOptions],
) -> None:
    """Show what differs between two networks: structure, states, tables, and how far their distributions are apart."""
    from junctor.cliques.divergence import divergence
    from junctor.model.errors import BudgetError

    first, second = cli.network_of(network, options), cli.network_of(other, options)
    difference = first.diff(second)
    apart, why = None, "they are about other variables or states"
    if difference.same_variables:
        try:
            apart, why = divergence(first, second), ""
        except BudgetError as error:
            why = str(error)
    if apart is not None and math.isinf(apart):
        apart, why = None, "infinite: the second rules out what the first does not"
    if options["json"]:
        found: dict[str, Any] = {"equal": not difference, **asdict(difference)}
        print_document({**found, "divergence": apart, "no_divergence": why or None})
        return
    typer.echo(str(difference))
    told = why if apart is None else f"{apart:.6g} nats"
    typer.echo(f"Kullback-Leibler divergence of OTHER from NETWORK: {told}")
