"""`junctor run`: a table of evidence in, a table of answers out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from junctor.cli import options as cli
from junctor.model.query import Method, QueryKind

if TYPE_CHECKING:
    from junctor.model.query import Sampling
    from junctor.runs.run import Manifest
    from junctor.runs.workload import Workload
    from junctor.runtime.dask_cluster import Resources
    from junctor.runtime.progress import Progress

    AsFlow = Callable[[Any, Resources, Progress], Manifest]


def run(
    network: cli.NetworkFile,
    evidence: cli.EvidenceFile,
    output: Annotated[str, typer.Option("--output", "-o", help="Directory for the answers.")],
    targets: cli.Targets = None,
    query: Annotated[QueryKind, typer.Option(help="Posterior marginals or most probable explanations.")] = "posteriors",
    answers: cli.AnswersOption = "posteriors",
    top: cli.Top = None,
    probability: cli.Probabilities = None,
    precision: cli.PrecisionOption = "double",
    method: cli.MethodOption = "exact",
    sampler: cli.SamplerOption = "epis-bn",
    samples: cli.Samples = None,
    error: cli.Error = None,
    stages: cli.StagesOption = "all",
    seed: cli.Seed = 0,
    case_id: cli.CaseId = None,
    ignore_extra: cli.IgnoreExtra = False,
    strict: cli.Strict = False,
    keep: cli.Keep = None,
    network_format: cli.NetworkFormat = None,
    evidence_format: cli.EvidenceFormat = None,
    output_format: cli.OutputFormatOption = "parquet",
    layout: cli.LayoutOption = "lists",
    compression: cli.CompressionOption = "zstd",
    csv: Annotated[bool, typer.Option("--csv", help="Also write the answers as one CSV file.")] = False,
    overwrite: cli.Overwrite = False,
    workers: cli.Workers = None,
    threads: cli.Threads = None,
    memory: Annotated[
        str | None, typer.Option(help="What propagation may take in all workers, such as 4GiB; 60 % of what is free.")
    ] = None,
    device: cli.Device = None,
    device_memory: cli.DeviceMemory = None,
    spill: cli.Spill = None,
    disk: cli.Disk = None,
    partition_rows: Annotated[int | None, typer.Option(min=1, help="Rows in one part.")] = None,
    part_size: cli.PartSize = None,
    scheduler: cli.Scheduler = None,
    insecure_scheduler: cli.InsecureScheduler = False,
    prefect: cli.UsePrefect = None,
    json: cli.AsJson = False,
    quiet: cli.Quiet = False,
) -> None:
    """Answer every row of EVIDENCE from NETWORK, into Parquet or Arrow files.

    An interrupted run goes on where it stopped when the same command is given again.
    """
    from junctor.model.query import Query, Sampling
    from junctor.runs.workload import Job
    from junctor.runtime.settings import load_settings

    settings = load_settings()
    # Before anything is read: a contradiction on the command line needs no minutes of work to be seen.
    sampling = Sampling(sampler, samples, error, seed, stages)
    _refuse_idle(method, sampling)
    if partition_rows is not None and part_size is not None:
        raise typer.BadParameter("give it or --partition-rows, not both", param_hint="--part-size")
    job = Job(
        network=network,
        evidence=evidence,
        output=output,
        query=Query(query, split_names(targets), precision, method, sampling, answers, top, tuple(probability or ())),
        partition_rows=partition_rows,
        case_id=case_id,
        ignore_extra=ignore_extra,
        strict=strict,
        overwrite=overwrite,
        csv=csv,
        network_format=network_format,
        evidence_format=evidence_format,
        part_bytes=cli.memory_size(part_size, "--part-size"),
        keep=tuple(keep or ()),
        output_format=output_format,
        layout=layout,
        compression=compression,
    )
    options = cli.compute_options(memory, threads, device, device_memory, spill, disk, settings.compute)
    # The command line before settings, and those before defaults.
    resources = settings.resources_with(options, workers, scheduler, insecure_scheduler)
    run_and_show(job, resources, settings.prefect if prefect is None else prefect, quiet, json, _flow)


def _flow() -> AsFlow:
    from junctor_flows.batch import score_as_flow

    return score_as_flow


def run_and_show(
    job: Workload, resources: Resources, prefect: bool | None, quiet: bool, as_json: bool, flow: Callable[[], AsFlow]
) -> None:
    """Do `job` and print what it did; arguments as of `score`."""
    from junctor.cli.display import progress_display, show_manifest
    from junctor.cli.failures import all_invalid

    with progress_display(quiet) as progress:
        manifest = score(job, resources, prefect, progress, flow)
    show_manifest(job.directory, manifest, as_json)
    if 0 < manifest.rows == manifest.statuses["invalid"]:
        raise all_invalid(manifest.rows)


def score(
    job: Workload, resources: Resources, prefect: bool | None, progress: Progress, flow: Callable[[], AsFlow] = _flow
) -> Manifest:
    """Do `job`, as a Prefect flow or plainly.

    job: rows or sequences.
    resources: where the work is done.
    prefect: None for a flow where a Prefect server is configured.
    progress: shown in addition to Prefect's.
    flow: imports and returns the Prefect flow.
    """
    from junctor.cli.failures import interrupted
    from junctor.cli.prefect_server import EmbeddedServer, embed, is_configured

    configured = is_configured()
    try:
        if not (configured if prefect is None else prefect):
            # Without Prefect, which takes seconds to import.
            from junctor.runs.run import run as run_plainly

            return run_plainly(job, resources, progress)
        server = None if configured else EmbeddedServer(embed(job.directory.path))
        # Imported while the server starts, which takes longer.
        as_flow = flow()
        if server is not None:
            server.wait()
        return as_flow(job, resources, progress)
    except KeyboardInterrupt:
        raise interrupted("run the same command again to go on") from None


def _refuse_idle(method: Method, sampling: Sampling) -> None:
    """Raise BadParameter for options that say how to sample where nothing is."""
    idle = [option.name for option in fields(sampling) if getattr(sampling, option.name) != option.default]
    if method == "exact" and idle:
        raise typer.BadParameter("exact answers take no samples: add --method sampling", param_hint=f"--{idle[0]}")


def split_names(text: str | None) -> tuple[str, ...] | None:
    """Return the names in `A,B,C`, in quotes where they have commas themselves, None for None."""
    return None if text is None else names_in(text)


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in `A,"B, with a comma",C`; raises BadParameter for what is no such list."""
    import csv

    # The quoting of CSV, which users know: names may contain commas.
    try:
        # A line without anything has no names, where there is one that is empty.
        names = next(csv.reader([text], skipinitialspace=True)) or [""]
    except csv.Error as error:
        raise typer.BadParameter(f"found {text!r}, expected names like A,B,C ({error})") from None
    names = [name.strip() for name in names]
    if not all(names):
        raise typer.BadParameter(f"found {text!r}, in which a name is empty; expected names like A,B,C")
    return tuple(names)
