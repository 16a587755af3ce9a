"""`junctor run`: a table of evidence in, a table of answers out."""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated

import typer

from junctor.cli import options as cli
from junctor.cli.deployed import deployed, is_check
from junctor.model.errors import ThresholdError, counted
from junctor.model.query import Method, QueryKind

if TYPE_CHECKING:
    from junctor.model.query import Sampling
    from junctor.runs.run import Manifest
    from junctor.runs.watch import Watcher
    from junctor.runs.workload import Workload
    from junctor.runtime.dask_cluster import Resources
    from junctor.runtime.progress import Progress

logger = logging.getLogger("junctor")


def run(
    network: cli.NetworkFile,
    evidence: cli.EvidenceFile,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Directory for the answers, or its URL: s3://bucket/folder, gs://, abfs://.",
            rich_help_panel=cli.OUTPUT,
        ),
    ],
    targets: cli.Targets = None,
    hide_targets: cli.HideTargets = False,
    query: Annotated[
        QueryKind, typer.Option(help="Posterior marginals or most probable explanations.", rich_help_panel=cli.QUESTION)
    ] = "posteriors",
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
    mapping: cli.MappingFile = None,
    missing: cli.Missing = None,
    network_format: cli.NetworkFormat = None,
    normalize: cli.Normalize = False,
    ignore_decisions: cli.IgnoreDecisions = False,
    evidence_format: cli.EvidenceFormat = None,
    separator: cli.Separator = None,
    output_format: cli.OutputFormatOption = "parquet",
    layout: cli.LayoutOption = "lists",
    compression: cli.CompressionOption = None,
    csv: Annotated[
        bool, typer.Option("--csv", help="Also write the answers as one CSV file.", rich_help_panel=cli.OUTPUT)
    ] = False,
    report: cli.Report = None,
    fail_if: cli.FailIf = None,
    rejects: cli.Rejects = None,
    overwrite: cli.Overwrite = False,
    incremental: cli.Incremental = False,
    backfill: cli.Backfill = None,
    drop_removed: cli.DropRemoved = False,
    workers: cli.Workers = None,
    threads: cli.Threads = None,
    memory: cli.Memory = None,
    device: cli.Device = None,
    device_memory: cli.DeviceMemory = None,
    spill: cli.Spill = None,
    disk: cli.Disk = None,
    time_limit: cli.TimeLimit = None,
    strategy: cli.StrategyName = None,
    partition_rows: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rows in one part; by default 524,288, or 20 s of work, at most.", rich_help_panel=cli.OUTPUT
        ),
    ] = None,
    part_size: cli.PartSize = None,
    part: cli.PartOfRun = None,
    scheduler: cli.Scheduler = None,
    insecure_scheduler: cli.InsecureScheduler = False,
    prefect: cli.UsePrefect = None,
    json: cli.AsJson = False,
    quiet: cli.Quiet = False,
    log_format: cli.LogFormatOption = "text",
) -> None:
    """Answer every row of EVIDENCE from NETWORK, into Parquet or Arrow files.

    An interrupted run goes on where it stopped when the same command is given again.
    """
    from junctor.runtime.devices import count_gpus_ahead

    if device != "cpu":
        count_gpus_ahead()
    from junctor.model.query import Query, Sampling
    from junctor.runs.workload import Job
    from junctor.runtime.settings import load_settings

    settings = load_settings()
    # Before anything is read: a contradiction on the command line needs no minutes of work to be seen.
    sampling = Sampling(sampler, samples, error, seed, stages)
    _refuse_idle(method, sampling)
    if partition_rows is not None and part_size is not None:
        raise typer.BadParameter("give it or --partition-rows, not both", param_hint="--part-size")
    cli.refuse_empty(output)
    _refuse_misplaced(incremental, tuple(backfill or ()), drop_removed, csv)
    shown = answers, top, tuple(probability or ()), hide_targets
    job = Job(
        network=network,
        evidence=evidence,
        output=output,
        query=Query(query, split_names(targets), precision, method, sampling, *shown),
        partition_rows=partition_rows,
        case_id=case_id,
        ignore_extra=ignore_extra,
        strict=strict,
        overwrite=overwrite,
        csv=csv,
        network_format=network_format,
        normalize=normalize,
        ignore_decisions=ignore_decisions,
        evidence_format=evidence_format,
        separator=separator,
        part_bytes=cli.memory_size(part_size, "--part-size"),
        keep=tuple(keep or ()),
        missing=tuple(missing or ()),
        output_format=output_format,
        layout=layout,
        compression=compression,
        incremental=incremental,
        backfill=tuple(backfill or ()),
        drop_removed=drop_removed,
        report=report,
        fail_if=cli.thresholds(fail_if),
        rejects=rejects,
        mapping=mapping,
    )
    if strategy is not None and method not in (None, "exact"):
        raise typer.BadParameter("it is about exact answers: leave out --method", param_hint="--strategy")
    sizes = memory, threads, device, device_memory, spill, disk
    options = cli.compute_options(*sizes, settings.compute, time_limit, strategy)
    # The command line before settings, and those before defaults.
    resources = settings.resources_with(options, workers, scheduler, insecure_scheduler)
    if part is not None:
        run_share_and_show(job, part, resources, prefect, quiet, json)
        return
    run_and_show(job, resources, settings.prefect if prefect is None else prefect, quiet, json)


def run_and_show(job: Workload, resources: Resources, prefect: bool | None, quiet: bool, as_json: bool) -> None:
    """Do `job` and print what it did; arguments as of `score`."""
    from junctor.cli.display import progress_display, show_what_is_done

    if is_check():
        # Prefect's server would keep what is in a URL.
        job.check_places(recorded=True)
        job.refuse_checks()
        return

    def work() -> Manifest:
        with progress_display(quiet) as progress:
            return score(job, resources, prefect, progress)

    show_what_is_done(job.directory, work, as_json)


def run_share_and_show(
    job: Workload, part: str, resources: Resources, prefect: bool | None, quiet: bool, as_json: bool
) -> None:
    """Do a share of `job`, without Prefect, and print what it did.

    part: text such as 3/16.
    prefect: as the user gave it.
    Other arguments as of `run_and_show`.
    """
    import json

    from junctor.cli.display import progress_display
    from junctor.cli.failures import told_if_interrupted
    from junctor.cli.signals import GO_ON
    from junctor.runs.share import Share, run_share

    if prefect:
        raise typer.BadParameter("tasks of an array are scheduled elsewhere: leave it out", param_hint="--prefect")
    _refuse_of_all_answers(job)
    share = Share.parse(part)
    with told_if_interrupted(GO_ON), progress_display(quiet) as progress:
        done = run_share(job, share, resources, progress)
    if as_json:
        typer.echo(json.dumps({"directory": str(job.directory.path), **done.to_record()}, indent=2))
        return
    there = f", {done.reused:,} of them there already" if done.reused else ""
    typer.echo(f"part {share}: {done.partitions:,} of {done.all_partitions:,} partitions{there}")
    typer.echo(
        f"{counted(done.rows, 'row')} in {done.seconds:.1f} s; when all are done: junctor finalise {job.directory.path}"
    )


def _refuse_of_all_answers(job: Workload) -> None:
    """Raise BadParameter for what is made of all answers of a run, of which a share has some."""
    given = {"--csv": getattr(job, "csv", False), "--report": job.report, "--fail-if": job.fail_if}
    for option, value in (given | {"--rejects": job.rejects is not None}).items():
        if value:
            raise typer.BadParameter("give it to `junctor finalise`, which has all answers", param_hint=option)


def score(job: Workload, resources: Resources, prefect: bool | None, progress: Progress) -> Manifest:
    """Do `job`, and report it to a Prefect server and as metrics.

    job: rows or sequences.
    resources: where the work is done.
    prefect: None for a report where a Prefect server is configured.
    progress: shown in addition.
    """
    from junctor.cli.failures import told_if_interrupted
    from junctor.cli.prefect_server import is_configured
    from junctor.cli.signals import GO_ON
    from junctor.runs.run import read_manifest
    from junctor.runs.run import run as run_plainly
    from junctor.runs.watch import watched

    configured = is_configured()
    recorded = deployed.get() is not None or _is_recorded(prefect, configured)
    job.check_places(recorded=recorded)
    with told_if_interrupted(GO_ON), watched(job, progress, _watchers(job, recorded, configured)) as watch:
        # A run that is shown elsewhere has nobody who looks at it here: it leaves a page.
        reported = replace(job, report=recorded) if job.report is None else job  # type: ignore[type-var]
        try:
            watch.manifest = run_plainly(reported, resources, watch)
        except ThresholdError:
            watch.manifest = read_manifest(job.directory)
            raise
        return watch.manifest


def _is_recorded(prefect: bool | None, configured: bool) -> bool:
    """Return True if a server of Prefect's is to be told of a run; arguments as of `score` and `_watchers`.

    Raises InputError where one is asked for without Prefect.
    """
    from junctor.runtime.installed import has_extra, require_extra

    if prefect:
        require_extra("flow", "--prefect", "use --no-prefect")
    if prefect is None and configured and not has_extra("flow"):
        advice = 'pip install "junctor[flow]", or use --no-prefect'
        logger.warning("a Prefect server is configured, which hears nothing of this run: %s", advice)
        return False
    return configured if prefect is None else prefect


def _watchers(job: Workload, recorded: bool, configured: bool) -> list[Watcher]:
    """Return who is told of a run.

    recorded: whether a server of Prefect's is; one is started where none is `configured`.
    """
    from junctor.cli.prefect_server import EmbeddedServer, embed
    from junctor.runs.metrics import metrics

    found = metrics()
    if (reporter := deployed.get()) is not None:
        return [*found, reporter]
    if not recorded:
        return found
    server = None if configured else EmbeddedServer(embed(job.directory.path))
    from junctor_flows.reporter import Reporter

    return [*found, Reporter(job.flow_name, ready=None if server is None else server.wait)]


def _refuse_idle(method: Method, sampling: Sampling) -> None:
    """Raise BadParameter for options that say how to sample where nothing is."""
    idle = [option.name for option in fields(sampling) if getattr(sampling, option.name) != option.default]
    if method == "exact" and idle:
        raise typer.BadParameter("exact answers take no samples: add --method sampling", param_hint=f"--{idle[0]}")


def _refuse_misplaced(incremental: bool, backfill: tuple[str, ...], drop_removed: bool, csv: bool) -> None:
    """Raise BadParameter for options of incremental runs at others, and the other way round."""
    from junctor.model.errors import EvidenceError
    from junctor.runs.inputs import Backfill

    if incremental and csv:
        raise typer.BadParameter("one file of all answers does not grow: leave it out", param_hint="--csv")
    if not incremental and (backfill or drop_removed):
        hint = "--backfill" if backfill else "--drop-removed"
        raise typer.BadParameter("it belongs to --incremental: add that", param_hint=hint)
    try:
        for text in backfill:
            Backfill.parse(text)
    except EvidenceError as error:
        raise typer.BadParameter(str(error), param_hint="--backfill") from None


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
