"""`junctor counts`: expected counts of all families of a network, as a table."""

from __future__ import annotations

from typing import Annotated, Unpack

import typer

from junctor.cli import options as cli
from junctor.cli.lines import print_document
from junctor.model.errors import InputError


@cli.takes_options(workers={"help": cli.READERS}, device=cli.ON_CPU)
def counts(
    network: cli.NetworkFile,
    evidence: cli.EvidenceFile,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", help="File for the counts: .parquet or .csv; or its URL."),
    ],
    **options: Unpack[cli.WeightedRowOptions],
) -> None:
    """Add up P(family | evidence) over the rows of EVIDENCE, for every family of NETWORK: what EM counts.

    One row for each entry of each table. Impossible and invalid rows count nothing.
    """
    from junctor.runtime.remote import location, shown

    path = location(output)
    if path.suffix.lower() not in (".parquet", ".csv"):
        raise InputError(f"{shown(output)}: expected a file .parquet or .csv")
    from junctor.evidence.files import refuse_target

    refuse_target(output, "--output", (network, evidence, cli.mapping_of(options)))
    from junctor.cli.display import progress_display, show_statuses
    from junctor.cli.failures import all_invalid
    from junctor.learning.counts import count_rows, counts_table, write_counts
    from junctor.learning.rows import row_options
    from junctor.runtime.dask_cluster import check_resources, prepare_workers
    from junctor.runtime.settings import load_settings, resources_of

    rows = row_options(options)
    resources = resources_of(load_settings(), options)
    check_resources(resources)
    prepare_workers(resources)
    model = cli.network_of(network, options)
    with progress_display(options["quiet"]) as progress:
        found, statuses, why = count_rows(model, evidence, rows, resources, progress)
    table = counts_table(model, found)
    write_counts(table, path)
    if options["json"]:
        print_document({"output": shown(output), "entries": table.num_rows, "rows": statuses})
    else:
        typer.echo(f"{shown(output)}: {table.num_rows:,} entries; rows: {show_statuses(statuses)}")
    if 0 < statuses["invalid"] == sum(statuses.values()):
        raise all_invalid(statuses["invalid"], why)
