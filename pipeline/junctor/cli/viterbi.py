"""`junctor viterbi`: sequences in, most probable paths of a hidden Markov model out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from junctor.cli import options as cli
from junctor.cli.run import run_and_show, run_share_and_show

if TYPE_CHECKING:
    from junctor.hmm.engine import SequenceKind


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
    precision: cli.PrecisionOption = "double",
    column: cli.SequenceColumn = None,
    case_id: cli.SequenceId = None,
    step: cli.StepColumn = None,
    gaps: cli.StepGaps = "invalid",
    strict: Annotated[bool, typer.Option("--strict", help="Refuse the file at its first invalid sequence.")] = False,
    model_format: Annotated[
        str | None, typer.Option("--format", help="Format of MODEL, if its name does not say: parquet, json, bif, ...")
    ] = None,
    sequences_format: cli.SequencesFormat = None,
    report: cli.Report = None,
    fail_if: cli.FailIfWithoutDrift = None,
    rejects: cli.Rejects = None,
    overwrite: cli.Overwrite = False,
    workers: cli.Workers = None,
    threads: cli.Threads = None,
    memory: Annotated[
        str | None,
        typer.Option(help="What trellises may take in all workers, such as 4GiB; by default 60 % of what is free."),
    ] = None,
    device: cli.Device = None,
    device_memory: cli.DeviceMemory = None,
    spill: cli.Spill = None,
    disk: cli.Disk = None,
    time_limit: cli.TimeLimit = None,
    partition_rows: Annotated[int | None, typer.Option(min=1, help="Sequences in one part.")] = None,
    part: cli.PartOfRun = None,
    scheduler: cli.Scheduler = None,
    insecure_scheduler: cli.InsecureScheduler = False,
    prefect: cli.UsePrefect = None,
    json: cli.AsJson = False,
    quiet: cli.Quiet = False,
    log_format: cli.LogFormatOption = "text",
) -> None:
    """Find the most probable path of every sequence in SEQUENCES through MODEL, into Parquet files.

    An interrupted run goes on where it stopped when the same command is given again.
    """
    cli.refuse_empty(output)
    from junctor.hmm.run import SequenceJob
    from junctor.runtime.settings import load_settings

    # One command for both questions: they share model, sequences and all ways to run.
    query: SequenceKind = "posteriors" if posteriors else "viterbi"
    job = SequenceJob(
        model=model,
        sequences=sequences,
        output=output,
        query=query,
        precision=precision,
        partition_rows=partition_rows,
        column=column,
        case_id=case_id,
        step=step,
        gaps=gaps,
        strict=strict,
        overwrite=overwrite,
        model_format=model_format,
        sequences_format=sequences_format,
        report=report,
        fail_if=cli.thresholds(fail_if),
        rejects=rejects,
    )
    settings = load_settings()
    options = cli.compute_options(memory, threads, device, device_memory, spill, disk, settings.compute, time_limit)
    resources = settings.resources_with(options, workers, scheduler, insecure_scheduler)
    if part is not None:
        run_share_and_show(job, part, resources, prefect, quiet, json)
        return
    run_and_show(job, resources, settings.prefect if prefect is None else prefect, quiet, json)
