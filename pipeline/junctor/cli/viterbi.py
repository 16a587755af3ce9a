"""`junctor viterbi`: sequences in, most probable paths of a hidden Markov model out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from junctor.cli import options as cli
from junctor.cli.run import do_as_told
from junctor.model import option_table as table

if TYPE_CHECKING:
    from junctor.hmm.engine import SequenceKind


class ViterbiOptions(
    table.SequenceJobOptions,
    table.WorkerOptions,
    table.ResourceOptions,
    table.ShareOptions,
    table.SchedulerOptions,
    table.PrefectOptions,
    cli.JsonOptions,
    cli.MessageOptions,
    total=False,
):
    """Options of `junctor viterbi`."""


@cli.takes_options(
    fail_if={"help": cli.FAIL_IF},
    memory={
        "help": "What trellises may take in all workers, such as 4GiB; by default 60 % of what is free.",
        "panel": None,
    },
    partition_rows={"help": "Sequences in one part.", "panel": None},
)
def viterbi(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Hidden Markov model: Parquet or JSON; or a two-slice network.")
    ],
    sequences: cli.SequencesFile,
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Directory for the answers, or its URL: s3://bucket/folder."
        ),
    ],
    posteriors: Annotated[
        bool, typer.Option("--posteriors", help="Log-likelihoods and posteriors of the states instead of paths.")
    ] = False,
    **options: Unpack[ViterbiOptions],
) -> None:
    """Find the most probable path of every sequence in SEQUENCES through MODEL, into Parquet files.

    An interrupted run goes on where it stopped when the same command is given again.
    """
    cli.refuse_empty(output)
    from junctor.hmm.run import SequenceJob
    from junctor.runtime.settings import load_settings

    # One command for both questions: they share model, sequences and all ways to run.
    query: SequenceKind = "posteriors" if posteriors else "viterbi"
    job = SequenceJob(model, sequences, output, query, **table.options_for(table.SequenceJobOptions, options))
    do_as_told(job, load_settings(), options)
