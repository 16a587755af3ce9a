"""The batch as a Prefect flow: the same steps as `junctor.run.run`, seen, retried and scheduled by Prefect.

Deploy it with `prefect deploy junctor_flows/batch.py:score_batch`, or `score_batch.serve(cron=...)`; schedules need a
Prefect server (`prefect server start`). Dask works inside one task: a Prefect task for each partition would cost more
than the partition.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import asdict, fields
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from junctor.model.errors import JunctorError, RunError
from junctor.model.options import DeviceChoice
from junctor.model.query import Method, Precision, Query, QueryKind, Sampler, Sampling
from junctor.model.query import Stages as SampledStages
from junctor.runs import run as steps
from junctor.runs.storage import spec_of
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.progress import Progress, Silence
from prefect import State, flow, task
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Failed

P = ParamSpec("P")
R = TypeVar("R")

# Who shows progress beside Prefect: set by `score_as_flow`. A flow's own arguments have to be JSON.
display: ContextVar[Progress] = ContextVar("display", default=Silence())  # noqa: B039


def in_task(function: Callable[P, R]) -> Any:
    """Make a task of a step. What the user has to mend fails it in one line; other errors are tried again."""

    def attempt(*args: P.args, **kwargs: P.kwargs) -> R | State[Any]:
        try:
            return function(*args, **kwargs)
        except JunctorError as error:
            return failed(error)

    as_task = task(
        name=function.__name__.replace("_", " "),
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=1,
        retry_delay_seconds=5,
        retry_condition_fn=_is_unexpected,
    )(attempt)
    # What failed is raised where the task was called.
    return lambda *args: as_task(*args, return_state=True).result()


def _is_unexpected(_task: object, _run: object, state: State[Any]) -> bool:
    return not isinstance(state.data, JunctorError)


def failed(error: JunctorError) -> State[Any]:
    """Return the state of a flow or task that an error of the user ended."""
    return Failed(message=str(error), data=error)


@in_task
def ingest_network(job: steps.Job) -> None:
    """Read, check and keep the network."""
    steps.ingest_network(job, display.get())


@in_task
def ingest_evidence(job: steps.Job) -> None:
    """Encode the evidence, one file a partition."""
    steps.ingest_evidence(job, display.get())


@in_task
def plan(job: steps.Job, resources: Resources) -> steps.RunEstimate:
    """Refuse what does not fit before anything runs."""
    return steps.plan(job, resources, display.get())


@in_task
def propagate(job: steps.Job, resources: Resources, outlook: steps.RunEstimate) -> steps.RunStats:
    """Answer all partitions; Dask works inside this task."""
    return steps.propagate(job, resources, outlook, ProgressArtifact(display.get()))


@in_task
def finalise(job: steps.Job, work: steps.RunStats, seconds: float) -> steps.Manifest:
    """Write the manifest."""
    return steps.finalise(job, work, seconds, display.get())


@flow(name="junctor-score-batch", persist_result=False, result_serializer="json")  # type: ignore[untyped-decorator]
def score_batch(
    network: str,
    evidence: str,
    output: str,
    query: QueryKind = "posteriors",
    targets: list[str] | None = None,
    precision: Precision = "double",
    partition_rows: int | None = None,
    case_id: str | None = None,
    ignore_extra: bool = False,
    strict: bool = False,
    overwrite: bool = False,
    csv: bool = False,
    workers: int | None = None,
    memory: int | None = None,
    scheduler: str | None = None,
    insecure_scheduler: bool = False,
    network_format: str | None = None,
    evidence_format: str | None = None,
    threads: int | None = None,
    device: DeviceChoice = "auto",
    device_memory: int | None = None,
    spill: str | None = None,
    disk: int | None = None,
    method: Method = "exact",
    sampler: Sampler = "epis-bn",
    samples: int | None = None,
    error: float | None = None,
    seed: int = 0,
    stages: SampledStages = "all",
) -> Any:
    """Answer every row of an evidence file into `output`; returns the manifest as a JSON-able record.

    The arguments are those of `junctor run`; sizes in bytes. A run that was interrupted goes on where it stopped.
    """
    job = steps.Job(
        network=network,
        evidence=evidence,
        output=output,
        query=Query(
            query,
            None if targets is None else tuple(targets),
            precision,
            method,
            Sampling(sampler, samples, error, seed, stages),
        ),
        partition_rows=partition_rows,
        case_id=case_id,
        ignore_extra=ignore_extra,
        strict=strict,
        overwrite=overwrite,
        csv=csv,
        network_format=network_format,
        evidence_format=evidence_format,
    )
    resources = Resources(workers, memory, scheduler, insecure_scheduler, threads, device, device_memory, spill, disk)
    started = time.monotonic()
    try:
        steps.check_resources(resources)
        with job.directory.locked():
            return _all_steps(job, resources, started)
    except JunctorError as error:
        return failed(error)


def score_as_flow(job: steps.Job, resources: Resources, progress: Progress) -> steps.Manifest:
    """Run the flow for the command line: its progress there too, its errors as they are; RunError without a server."""
    arguments = {
        **{each.name: getattr(job, each.name) for each in fields(job)},
        "query": job.query.kind,
        "targets": None if job.query.targets is None else list(job.query.targets),
        "precision": job.query.precision,
        "method": job.query.method,
        **asdict(job.query.sampling),
        **asdict(resources),
    }
    return manifest_of(score_batch, arguments, progress)


def manifest_of(
    batch_flow: Any, arguments: dict[str, Any], progress: Progress, parse: Callable[..., Any] = spec_of
) -> steps.Manifest:
    """Run a flow that returns a manifest as a record, with progress here too; parse: makes its spec of a record."""
    token = display.set(progress)
    try:
        # A flow sleeps for its heartbeats to end, half a second as a rule, and whoever sits at a terminal sees it live.
        with temporary_settings(set_defaults={PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            state = batch_flow(**arguments, return_state=True)
    except Exception as error:
        # The state holds what goes wrong inside the flow; this went wrong around it.
        raise RunError(f"Prefect could not run the flow ({error}): see to its server, or use --no-prefect") from error
    finally:
        display.reset(token)
    return steps.manifest_of(state.result(), parse)  # or raises what made it fail


def _all_steps(job: steps.Job, resources: Resources, started: float) -> dict[str, Any]:
    ingest_network(job)
    ingest_evidence(job)
    outlook = plan(job, resources)
    work = propagate(job, resources, outlook)
    manifest = finalise(job, work, time.monotonic() - started)
    show_summary(job, f"`{job.evidence}` on `{job.network}`", manifest)
    return asdict(manifest)


def show_summary(job: Any, inputs: str, manifest: steps.Manifest) -> None:
    """Leave an artifact that says what a run did."""
    text = summary(inputs, str(job.directory.path / manifest.spec.query), manifest)
    create_markdown_artifact(text, key="junctor-summary", description="What the run did")


class ProgressArtifact:
    """Progress as a Prefect artifact, at most once a second, beside another display."""

    def __init__(self, beside: Progress) -> None:
        self.beside = beside
        self.artifact: UUID | None = None
        self.rows, self.done, self.shown = 0, 0, 0.0

    def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
        """Begin an artifact."""
        self.beside.stage(name, rows, done)
        self.rows, self.done, self.shown = rows or 0, done, time.monotonic()
        self.artifact = create_progress_artifact(self._percent(), key="junctor-progress", description=name)

    def advance(self, rows: int) -> None:
        """Move it."""
        self.beside.advance(rows)
        self.done += rows
        now = time.monotonic()
        if self.artifact is not None and (now - self.shown >= 1.0 or self.done >= self.rows):
            self.shown = now
            update_progress_artifact(self.artifact, self._percent())

    def _percent(self) -> float:
        return 100.0 * self.done / self.rows if self.rows else 0.0


def summary(inputs: str, output: str, manifest: steps.Manifest) -> str:
    """Return what a run did, in Markdown. inputs: what was answered on what."""
    statuses = "\n".join(f"| {name} | {count:,} |" for name, count in manifest.statuses.items())
    return (
        f"# {manifest.rows:,} rows in {manifest.seconds:.1f} s\n\n"
        f"{inputs}, {manifest.spec.query} in {manifest.spec.precision} precision\n\n"
        f"| status | rows |\n|---|---:|\n{statuses}\n\n"
        f"{len(manifest.parts)} parts ({manifest.reused_parts} were there already) in "
        f"`{output}`\n"
    )
