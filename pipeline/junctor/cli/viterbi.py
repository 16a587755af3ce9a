"""`junctor viterbi`: sequences in, most probable paths of a hidden Markov model out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from junctor.cli.options import AsJson, DeviceMemory, Disk, Spill
from junctor.cli.run import resources_of, score
from junctor.model.options import DeviceChoice
from junctor.model.query import Precision

if TYPE_CHECKING:
    from junctor.hmm.engine import SequenceKind
    from junctor.runs.run import Manifest


def viterbi(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="Hidden Markov model: Parquet or JSON; or a two-slice network."),
    ],
    sequences: Annotated[
        str,
        typer.Argument(metavar="SEQUENCES", help="Parquet (file or folder) or Arrow with a list column, one row each."),
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="Directory for the answers.")],
    posteriors: Annotated[
        bool, typer.Option("--posteriors", help="Log-likelihoods and posteriors of the states instead of paths.")
    ] = False,
    precision: Annotated[Precision, typer.Option(help="Numbers to compute with.")] = "double",
    column: Annotated[str | None, typer.Option(help="List column, where there are several.")] = None,
    case_id: Annotated[str | None, typer.Option(help="Column that names the sequences; case_id if there.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse the file at its first invalid sequence.")] = False,
    model_format: Annotated[
        str | None, typer.Option("--format", help="Format of MODEL, if its name does not say: parquet, json, bif, ...")
    ] = None,
    sequences_format: Annotated[
        str | None, typer.Option(help="Format of SEQUENCES, if its name does not say: parquet, arrow.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a different run that lies in the output directory.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes, as many as the work is worth; 0: this process itself.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each process; its share of the cores if not given.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="What trellises may take in all workers, such as 4GiB; 60 % of what is free.")
    ] = None,
    device: Annotated[
        DeviceChoice | None, typer.Option(help="CPU or GPU; auto: a GPU where there is one and the work is worth it.")
    ] = None,
    device_memory: DeviceMemory = None,
    spill: Spill = None,
    disk: Disk = None,
    partition_rows: Annotated[int | None, typer.Option(min=1, help="Sequences in one part.")] = None,
    scheduler: Annotated[str | None, typer.Option(help="Dask scheduler whose workers do the work.")] = None,
    insecure_scheduler: Annotated[
        bool, typer.Option("--insecure-scheduler", help="Allow a scheduler elsewhere without TLS.")
    ] = False,
    prefect: Annotated[
        bool | None, typer.Option("--prefect/--no-prefect", help="As a Prefect flow; yes if a server is configured.")
    ] = None,
    json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Find the most probable path of every sequence in SEQUENCES through MODEL, into Parquet files.

    An interrupted run goes on where it stopped when the same command is given again.
    """
    from junctor.cli.display import progress_display, show_manifest
    from junctor.hmm.run import SequenceJob
    from junctor.runtime.settings import load_settings

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
        strict=strict,
        overwrite=overwrite,
        model_format=model_format,
        sequences_format=sequences_format,
    )
    settings = load_settings()
    resources = resources_of(
        settings,
        workers=workers,
        memory=memory,
        scheduler=scheduler,
        insecure_scheduler=insecure_scheduler,
        threads=threads,
        device=device,
        device_memory=device_memory,
        spill=spill,
        disk=disk,
    )
    with progress_display(quiet) as progress:
        manifest = score(job, resources, settings.prefect if prefect is None else prefect, progress, _plain, _flow)
    show_manifest(job.directory, manifest, json)


def _plain() -> Callable[..., Manifest]:
    from junctor.hmm.run import run

    return run


def _flow() -> Callable[..., Manifest]:
    from junctor_flows.sequences import decode_as_flow

    return decode_as_flow
