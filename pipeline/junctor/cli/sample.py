"""`junctor sample`: rows drawn from a network."""

from __future__ import annotations

from typing import Annotated, Unpack

import typer

from junctor.cli import options as cli
from junctor.cli.lines import print_document
from junctor.model import option_table as table
from junctor.model.errors import InputError, counted


class SampleOptions(table.DrawOptions, table.NetworkOptions, cli.JsonOptions, total=False):
    """Options that `junctor sample` shares with other commands."""


@cli.takes_options(memory={"help": "What tables or circuits may take, such as 4GiB; by default 60 % of what is free."})
def sample(
    network: cli.NetworkFile,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="File for the rows: .parquet or .csv; or its URL.")
    ],
    rows: Annotated[
        int, typer.Option("--rows", "-n", help="Rows to draw; with --evidence for each row of it.", min=1)
    ] = 1000,
    evidence: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Evidence, as of `junctor run`: draw from P(variables | row) for each row."),
    ] = None,
    **options: Unpack[SampleOptions],
) -> None:
    """Draw rows from NETWORK: forward, or exactly from what each row of evidence leaves possible.

    junctor sample asia.bif -n 1000 --observed 0.6 --seed 1 -o rows.csv
    """
    from junctor.runtime.remote import location, shown

    path = location(output)
    if path.suffix.lower() not in (".parquet", ".csv"):
        raise InputError(f"{shown(output)}: expected a file .parquet or .csv")
    from junctor.evidence.files import refuse_target

    refuse_target(output, "--output", (network, evidence, cli.mapping_of(options)))
    from junctor.cli.failures import all_invalid
    from junctor.draws import Draws, write_draws
    from junctor.runtime.settings import load_settings, resources_of

    told = table.options_for(table.DrawOptions, options)
    told["memory"] = resources_of(load_settings(), options).compute.memory
    draws = Draws(cli.network_of(network, options), rows, evidence, **told)
    drawn = write_draws(draws, path)
    for words in draws.words():
        typer.echo(f"warning: no draws: {words}", err=True)
    if options["json"]:
        print_document({"output": shown(output), "rows": drawn, "undrawn": draws.undrawn})
    else:
        typer.echo(f"{shown(output)}: {counted(drawn, 'row')}, {counted(len(draws.network.public), 'variable')}")
    if 0 < draws.invalid == draws.answered:
        raise all_invalid(draws.invalid)
