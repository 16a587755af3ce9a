"""`junctor run`: a table of evidence in, a table of answers out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Unpack, get_args

import typer

from junctor.cli import options as cli
from junctor.cli.deployed import deployed, is_check
from junctor.cli.lines import print_document
from junctor.model import option_table as table
from junctor.model.errors import ThresholdError, counted

if TYPE_CHECKING:
    from junctor.runs.manifest import Manifest
    from junctor.runs.watch import Watcher
    from junctor.runs.workload import Workload
    from junctor.runtime.dask_cluster import Resources
    from junctor.runtime.progress import Progress
    from junctor.runtime.settings import Settings

    # Does a job, and tells of it.
    Work = Callable[[Workload, Progress], Manifest]

# Further attempts of a deployed flow at parts that failed.
PART_RETRIES = 2

logger = logging.getLogger("junctor")


class RunOptions(
    table.QuestionOptions,
    table.JobOptions,
    table.WorkerOptions,
    table.RowResources,
    table.ShareOptions,
    table.SchedulerOptions,
    table.PrefectOptions,
    cli.JsonOptions,
    cli.ExplainOptions,
    cli.MessageOptions,
    total=False,
):
    """Options of `junctor run`."""


@cli.takes_options()
def run(
    network: cli.NetworkFile,
    evidence: Annotated[str | None, *get_args(cli.EvidenceFile)[1:]] = None,
    *,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Directory for the answers, or its URL: s3://bucket/folder, gs://, abfs://.",
            rich_help_panel=table.OUTPUT,
        ),
    ],
    **options: Unpack[RunOptions],
) -> None:
    """Answer every row of EVIDENCE from NETWORK, into Parquet or Arrow files.

    A dataset of `junctor ingest` is both: `junctor run DATASET -o answers`. An interrupted run goes on where it stopped
    when the same command is given again.
    """
    from junctor.runtime.devices import count_gpus_ahead

    if options.get("device") != "cpu":
        count_gpus_ahead()
    from junctor.runtime.settings import load_settings

    settings = load_settings()
    # Before anything is read: a contradiction on the command line needs no minutes of work to be seen.
    query = table.query_of(options)
    cli.refuse_idle(query, options)
    if options["partition_rows"] is not None and options["part_size"] is not None:
        raise typer.BadParameter("give it or --partition-rows, not both", param_hint="--part-size")
    cli.refuse_empty(output)
    refuse_misplaced(options)
    from junctor.runs.workload import Job

    if evidence is None:
        network, evidence = _in_dataset(network), network
    job = Job(network, evidence, output, query, **table.options_for(table.JobOptions, options))
    do_as_told(job, settings, options)


def _in_dataset(place: str) -> str:
    """Return the network of a dataset; raises BadParameter for a place of something else."""
    from junctor.evidence.files import DATASET_SPEC
    from junctor.runtime.remote import location

    # A deployment's is on the machine that does the work.
    if location(place).is_file() if is_check() else not (location(place) / DATASET_SPEC).exists():
        raise typer.BadParameter(
            f"give it after the network; without it {place} would have to be a dataset of `junctor ingest`",
            param_hint="EVIDENCE",
        )
    folder, mark, opens = place.partition("?") if "://" in place else (place, "", "")
    return f"{folder.rstrip('/')}/network.parquet{mark}{opens}"


def do_as_told(job: Workload, settings: Settings, options: Mapping[str, Any]) -> None:
    """Do `job`, or a share of it, and print what it did.

    options: of the command line, which go before settings, and those before defaults.
    """
    from junctor.runtime.settings import resources_of

    resources = resources_of(settings, options)
    if options["part"] is not None:
        run_share_and_show(job, options["part"], resources, options.get("prefect"), options["quiet"], options["json"])
        return
    from junctor.runs.run import run as run_plainly

    def work(job: Workload, progress: Progress) -> Manifest:
        # Nobody waits at a flow run to begin it anew.
        return run_plainly(job, resources, progress, retries=0 if deployed.get() is None else PART_RETRIES)

    do_and_show(job, work, settings, options)
    if options.get("explain") and not options["json"] and not is_check():
        from junctor.cli.choices import show_run_choices
        from junctor.runs.manifest import read_manifest

        show_run_choices(read_manifest(job.directory))


def do_and_show(job: Workload, work: Work, settings: Settings, options: Mapping[str, Any]) -> None:
    """Do `job` and print what it did; work: does it, others as of `do_as_told`."""
    from junctor.cli.display import progress_display, show_what_is_done

    if is_check():
        # Prefect's server would keep what is in a URL.
        job.check_places(recorded=True)
        job.refuse_checks()
        return

    prefect = options.get("prefect")
    asked = settings.get("prefect") if prefect is None else prefect

    def watched_here() -> Manifest:
        with progress_display(options["quiet"]) as progress:
            return watched_work(job, work, asked, progress)

    show_what_is_done(job.directory, watched_here, options["json"])


def run_share_and_show(
    job: Workload, part: str, resources: Resources, prefect: bool | None, quiet: bool, as_json: bool
) -> None:
    """Do a share of `job`, without Prefect, and print what it did.

    part: text such as 3/16.
    prefect, quiet, as_json: options of the command line, as the user gave them.
    """

    from junctor.cli.display import progress_display
    from junctor.cli.failures import interrupt_message
    from junctor.cli.signals import GO_ON
    from junctor.runs.share import Share, run_share

    if prefect:
        raise typer.BadParameter("tasks of an array are scheduled elsewhere: leave it out", param_hint="--prefect")
    _refuse_of_all_answers(job)
    share = Share.parse(part)
    with interrupt_message(GO_ON), progress_display(quiet) as progress:
        done = run_share(job, share, resources, progress)
    if as_json:
        print_document({"directory": str(job.directory.path), **asdict(done)})
        return
    there = f", {done.reused:,} of them there already" if done.reused else ""
    typer.echo(f"part {share}: {done.partitions:,} of {done.all_partitions:,} partitions{there}")
    typer.echo(
        f"{counted(done.rows, 'row')} in {done.seconds:.1f} s; when all are done: junctor finalise {job.directory.path}"
    )


def _refuse_of_all_answers(job: Workload) -> None:
    """Raise BadParameter for what is made of all answers of a run, of which a share has some."""
    given = job.told
    for name in ("csv", "report", "fail_if", "rejects"):
        if given.get(name):
            hint = f"--{name.replace('_', '-')}"
            raise typer.BadParameter("give it to `junctor finalise`, which has all answers", param_hint=hint)


def watched_work(job: Workload, work: Work, prefect: bool | None, progress: Progress) -> Manifest:
    """Do `job`, and report it to a Prefect server and as metrics.

    job: rows or sequences.
    work: does it.
    prefect: None for a report where a Prefect server is configured.
    progress: shown in addition.
    """
    from junctor.cli.failures import interrupt_message
    from junctor.cli.prefect_server import is_configured
    from junctor.cli.signals import GO_ON
    from junctor.runs.manifest import read_manifest
    from junctor.runs.watch import watched

    configured = is_configured()
    recorded = deployed.get() is not None or _is_recorded(prefect, configured)
    job.check_places(recorded=recorded)
    with interrupt_message(GO_ON), watched(job, progress, _watchers(job, recorded, configured)) as watch:
        # A run that is shown elsewhere has nobody who looks at it here: it leaves a page.
        reported = job.but(report=recorded) if job.options["report"] is None else job
        try:
            watch.manifest = work(reported, watch)
        except ThresholdError:
            watch.manifest = read_manifest(job.directory)
            raise
        return watch.manifest


def _is_recorded(prefect: bool | None, configured: bool) -> bool:
    """Return True if a server of Prefect's is to be told of a run; arguments as of `watched_work` and `_watchers`.

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


def refuse_misplaced(options: Mapping[str, Any]) -> None:
    """Raise BadParameter for options of incremental runs at others, and the other way round."""
    from junctor.model.errors import EvidenceError
    from junctor.runs.inputs import Backfill

    if options["incremental"] and options.get("csv"):
        raise typer.BadParameter("one file of all answers does not grow: leave it out", param_hint="--csv")
    if not options["incremental"] and (options["backfill"] or options["drop_removed"]):
        hint = "--backfill" if options["backfill"] else "--drop-removed"
        raise typer.BadParameter("it belongs to --incremental: add that", param_hint=hint)
    try:
        for text in options["backfill"]:
            Backfill.parse(text)
    except EvidenceError as error:
        raise typer.BadParameter(str(error), param_hint="--backfill") from None
