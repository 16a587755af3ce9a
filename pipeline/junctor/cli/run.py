"""`junctor run`: a table of evidence in, a table of answers out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from junctor.cli.options import (
    AsJson,
    CaseId,
    DeviceMemory,
    Disk,
    Error,
    EvidenceFile,
    EvidenceFormat,
    IgnoreExtra,
    MethodOption,
    NetworkFile,
    NetworkFormat,
    SamplerOption,
    Samples,
    Seed,
    Spill,
    StagesOption,
    Strict,
)
from junctor.model.options import DeviceChoice
from junctor.model.query import Method, Precision, QueryKind

if TYPE_CHECKING:
    from junctor.model.query import Sampling
    from junctor.runs.run import Manifest
    from junctor.runtime.dask_cluster import Resources
    from junctor.runtime.progress import Progress
    from junctor.runtime.settings import Settings


def run(
    network: NetworkFile,
    evidence: EvidenceFile,
    output: Annotated[str, typer.Option("--output", "-o", help="Directory for the answers.")],
    targets: Annotated[str | None, typer.Option(help="Variables to answer, A,B,C; all if not given.")] = None,
    query: Annotated[QueryKind, typer.Option(help="Posterior marginals or most probable explanations.")] = "posteriors",
    precision: Annotated[Precision, typer.Option(help="Numbers to compute with.")] = "double",
    method: MethodOption = "exact",
    sampler: SamplerOption = "epis-bn",
    samples: Samples = None,
    error: Error = None,
    stages: StagesOption = "all",
    seed: Seed = 0,
    case_id: CaseId = None,
    ignore_extra: IgnoreExtra = False,
    strict: Strict = False,
    network_format: NetworkFormat = None,
    evidence_format: EvidenceFormat = None,
    csv: Annotated[bool, typer.Option("--csv", help="Also write the answers as one CSV file.")] = False,
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
        str | None, typer.Option(help="What propagation may take in all workers, such as 4GiB; 60 % of what is free.")
    ] = None,
    device: Annotated[
        DeviceChoice | None, typer.Option(help="CPU or GPU; auto: a GPU where there is one and the work is worth it.")
    ] = None,
    device_memory: DeviceMemory = None,
    spill: Spill = None,
    disk: Disk = None,
    partition_rows: Annotated[int | None, typer.Option(min=1, help="Rows in one part.")] = None,
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
    """Answer every row of EVIDENCE from NETWORK, into Parquet files.

    An interrupted run goes on where it stopped when the same command is given again.
    """
    from junctor.cli.display import progress_display, show_manifest
    from junctor.model.query import Query, Sampling
    from junctor.runs.run import Job
    from junctor.runtime.settings import load_settings

    settings = load_settings()
    sampling = Sampling(sampler, samples, error, seed, stages)
    _refuse_idle(method, sampling)
    job = Job(
        network=network,
        evidence=evidence,
        output=output,
        query=Query(query, split_names(targets), precision, method, sampling),
        partition_rows=partition_rows,
        case_id=case_id,
        ignore_extra=ignore_extra,
        strict=strict,
        overwrite=overwrite,
        csv=csv,
        network_format=network_format,
        evidence_format=evidence_format,
    )
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
        manifest = score(job, resources, settings.prefect if prefect is None else prefect, progress)
    show_manifest(job.directory, manifest, json)


def resources_of(settings: Settings, insecure_scheduler: bool, **options: Any) -> Resources:
    """Return where the work is done: what the options say, or where they are None the settings.

    Raises BadParameter where a size is none.
    """
    from junctor.runtime.dask_cluster import Resources

    for name in ("memory", "device_memory", "disk"):
        if options[name] is not None:
            options[name] = memory_size(options[name], f"--{name.replace('_', '-')}")
    chosen = {name: getattr(settings, name) if value is None else value for name, value in options.items()}
    chosen["device"] = chosen["device"] or "auto"
    return Resources(insecure_scheduler=settings.insecure_scheduler or insecure_scheduler, **chosen)


def _plain() -> Callable[..., Manifest]:
    from junctor.runs.run import run as run_plainly

    return run_plainly


def _flow() -> Callable[..., Manifest]:
    from junctor_flows.batch import score_as_flow

    return score_as_flow


def score(
    job: Any,
    resources: Resources,
    prefect: bool | None,
    progress: Progress,
    plain: Callable[[], Callable[..., Manifest]] = _plain,
    flow: Callable[[], Callable[..., Manifest]] = _flow,
) -> Manifest:
    """Do `job`, as a Prefect flow or plainly; None for a flow where a Prefect server is configured.

    plain, flow: import and return who does the job without Prefect and with it.
    """
    from junctor.cli.failures import interrupted
    from junctor.cli.prefect_server import EmbeddedServer, embed, is_configured

    configured = is_configured()
    try:
        if not (configured if prefect is None else prefect):
            return plain()(job, resources, progress)
        server = None if configured else EmbeddedServer(embed(job.directory.path))
        # Imported beside the server, which takes longer to start.
        as_flow = flow()
        if server is not None:
            server.wait()
        return as_flow(job, resources, progress)
    except KeyboardInterrupt:
        raise interrupted("run the same command again to go on") from None


def memory_size(text: str, option: str = "--memory") -> int:
    """Return the bytes that an option asks for; raises BadParameter where it is not a size."""
    from junctor.model.errors import JunctorError
    from junctor.planning.budget import parse_bytes

    try:
        return parse_bytes(text)
    except JunctorError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _refuse_idle(method: Method, sampling: Sampling) -> None:
    """Raise BadParameter for options that say how to sample where nothing is."""
    idle = [each.name for each in fields(sampling) if getattr(sampling, each.name) != each.default]
    if method == "exact" and idle:
        raise typer.BadParameter("exact answers take no samples: add --method sampling", param_hint=f"--{idle[0]}")


def split_names(text: str | None) -> tuple[str, ...] | None:
    """Return the names in `A,B,C`, in quotes where they have commas themselves, None for None."""
    return None if text is None else names_in(text)


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in `A,"B, with a comma",C`; raises BadParameter for what is no such list."""
    import csv

    try:
        # A line without anything has no names, where there is one that is empty.
        names = next(csv.reader([text], skipinitialspace=True)) or [""]
    except csv.Error as error:
        raise typer.BadParameter(f"found {text!r}, expected names like A,B,C ({error})") from None
    return tuple(name.strip() for name in names)
