"""`junctor ingest`: tables of evidence in, a dataset out that runs read without encoding it again."""

from __future__ import annotations

from typing import Annotated, Unpack

import typer

from junctor.cli import options as cli
from junctor.cli.deployed import is_check
from junctor.cli.run import do_and_show, refuse_misplaced
from junctor.model import option_table as table


class IngestCommandOptions(table.IngestOptions, table.PrefectOptions, cli.JsonOptions, cli.MessageOptions, total=False):
    """Options of `junctor ingest`."""


@cli.takes_options(
    incremental={"help": "Encode only files that are new or changed since the last time, and commit them."},
    backfill={"help": "With --incremental: encode these partitions again; repeatable."},
    drop_removed={"help": "With --incremental: remove the rows of files that are gone."},
    partition_rows={"help": "Rows in one part; by default 524,288, or 33 million cells, at most."},
    overwrite={"help": "Replace a different dataset that lies there."},
)
def ingest(
    network: cli.NetworkFile,
    evidence: Annotated[
        list[str],
        typer.Argument(
            metavar="EVIDENCE...",
            help="Evidence as of `junctor run`: files, folders or globs in quotes, URLs, or -; several are one table.",
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="DATASET",
            help="Directory for the dataset, or its URL: s3://bucket/folder, gs://, abfs://.",
            rich_help_panel=table.OUTPUT,
        ),
    ],
    **options: Unpack[IngestCommandOptions],
) -> None:
    """Encode EVIDENCE for NETWORK into DATASET, a folder of Parquet that `junctor run DATASET` reads as it is.

    An interrupted command goes on where it stopped when it is given again.
    """
    cli.refuse_empty(output)
    refuse_misplaced(options)
    from junctor.runs.dataset import IngestJob, ingest_dataset
    from junctor.runtime.settings import load_settings

    places = tuple(evidence)
    told = table.options_for(table.IngestOptions, options)
    job = IngestJob(network, places[0] if len(places) == 1 else places, output, report=False, **told)
    do_and_show(job, ingest_dataset, load_settings(), options)
    if not is_check() and not options["json"]:
        typer.echo(f"rows that are invalid, with reasons: {job.directory.rejects}")
