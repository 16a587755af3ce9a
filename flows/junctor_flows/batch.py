"""The batch as a Prefect flow: the same steps as `junctor.run.run`, seen, retried and scheduled by Prefect.

Deploy it with `prefect deploy junctor_flows/batch.py:score_batch`, or `score_batch.serve(cron=...)`; schedules need a
Prefect server (`prefect server start`). Dask works inside one task: a Prefect task for each partition would cost more
than the partition.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import asdict
from itertools import count
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from junctor import run as steps
from junctor.distribution import Resources
from junctor.errors import JunctorError, RunError
from junctor.progress import Progress, Silence
from junctor.query import Precision, Query, QueryKind
from prefect import State, flow, task
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL
from prefect.states import Failed

P = ParamSpec("P")
R = TypeVar("R")

# Times that the embedded server may be started: Prefect chooses another port where one was taken meanwhile, but takes
# every failure for that, and would try for ever.
SERVER_STARTS = 3

# Who shows progress beside Prefect: set by `score_as_flow`. A flow's own arguments have to be JSON.
_display: ContextVar[Progress] = ContextVar("display", default=Silence())  # noqa: B039


def _step(function: Callable[P, R]) -> Any:
    """Make a task of a step. What the user has to mend fails it in one line; other errors are tried again."""

    def attempt(*args: P.args, **kwargs: P.kwargs) -> R | State[Any]:
        try:
            return function(*args, **kwargs)
        except JunctorError as error:
            return _failed(error)

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


def _failed(error: JunctorError) -> State[Any]:
    return Failed(message=str(error), data=error)


@_step
def ingest_network(job: steps.Job) -> None:
    """Read, check and keep the network."""
    steps.ingest_network(job, _display.get())


@_step
def ingest_evidence(job: steps.Job) -> None:
    """Encode the evidence, one file a partition."""
    steps.ingest_evidence(job, _display.get())


@_step
def plan(job: steps.Job, resources: Resources) -> steps.Outlook:
    """Refuse what does not fit before anything runs."""
    return steps.plan(job, resources, _display.get())


@_step
def propagate(job: steps.Job, resources: Resources, outlook: steps.Outlook) -> steps.Work:
    """Answer all partitions; Dask works inside this task."""
    return steps.propagate(job, resources, outlook, _Artifact(_display.get()))


@_step
def finalise(job: steps.Job, work: steps.Work, seconds: float) -> steps.Manifest:
    """Write the manifest."""
    return steps.finalise(job, work, seconds, _display.get())


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
) -> Any:
    """Answer every row of an evidence file into `output`; returns the manifest as a JSON-able record.

    The arguments are those of `junctor run`; memory in bytes. A run that was interrupted goes on where it stopped.
    """
    job = steps.Job(
        network=network,
        evidence=evidence,
        output=output,
        query=Query(query, None if targets is None else tuple(targets), precision),
        partition_rows=partition_rows,
        case_id=case_id,
        ignore_extra=ignore_extra,
        strict=strict,
        overwrite=overwrite,
        csv=csv,
        network_format=network_format,
        evidence_format=evidence_format,
    )
    resources = Resources(workers, memory, scheduler, insecure_scheduler)
    started = time.monotonic()
    try:
        steps.check_resources(resources)
        with job.directory.locked():
            return _all_steps(job, resources, started)
    except JunctorError as error:
        return _failed(error)


def score_as_flow(job: steps.Job, resources: Resources, progress: Progress) -> steps.Manifest:
    """Run the flow for the command line: its progress there too, its errors as they are; RunError without a server."""
    token = _display.set(progress)
    try:
        _start_embedded_server()
        state = score_batch(
            job.network,
            job.evidence,
            job.output,
            job.query.kind,
            None if job.query.targets is None else list(job.query.targets),
            job.query.precision,
            job.partition_rows,
            job.case_id,
            job.ignore_extra,
            job.strict,
            job.overwrite,
            job.csv,
            resources.workers,
            resources.memory,
            resources.scheduler,
            resources.insecure_scheduler,
            job.network_format,
            job.evidence_format,
            return_state=True,
        )
    except Exception as error:
        # The state holds what goes wrong inside the flow; this went wrong around it.
        raise RunError(f"Prefect could not run the flow ({error}): see to its server, or use --no-prefect") from error
    finally:
        _display.reset(token)
    return steps.manifest_of(state.result())  # or raises what made it fail


def _start_embedded_server() -> None:
    """Start the server that Prefect would start by itself, where none is configured.

    A terminal interrupts all processes of a command; the server has to live on, to hear how the flow ended. It
    inherits blocked signals from the thread that starts it, while this one can still be interrupted.
    """
    failures: list[Exception] = []

    def start() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            if not PREFECT_API_URL.value():
                _limit_server_starts()
            get_client(sync_client=True)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def _limit_server_starts() -> None:
    from prefect.server.api.server import SubprocessASGIServer

    server = SubprocessASGIServer()  # the only one, which Prefect will start
    launch, tries = server._run_uvicorn_command, count(1)

    def limited() -> Any:
        if next(tries) > SERVER_STARTS:
            raise RuntimeError(f"its server ended {SERVER_STARTS} times while it started")
        return launch()

    server._run_uvicorn_command = limited


def _all_steps(job: steps.Job, resources: Resources, started: float) -> dict[str, Any]:
    ingest_network(job)
    ingest_evidence(job)
    outlook = plan(job, resources)
    work = propagate(job, resources, outlook)
    manifest = finalise(job, work, time.monotonic() - started)
    create_markdown_artifact(_summary(job, manifest), key="junctor-summary", description="What the run did")
    return asdict(manifest)


class _Artifact:
    """Progress as a Prefect artifact, at most once a second, beside another display."""

    def __init__(self, beside: Progress) -> None:
        self.beside = beside
        self.artifact: UUID | None = None
        self.rows, self.done, self.shown = 0, 0, 0.0

    def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
        self.beside.stage(name, rows, done)
        self.rows, self.done, self.shown = rows or 0, done, time.monotonic()
        self.artifact = create_progress_artifact(self._percent(), key="junctor-progress", description=name)

    def advance(self, rows: int) -> None:
        self.beside.advance(rows)
        self.done += rows
        now = time.monotonic()
        if self.artifact is not None and (now - self.shown >= 1.0 or self.done >= self.rows):
            self.shown = now
            update_progress_artifact(self.artifact, self._percent())

    def _percent(self) -> float:
        return 100.0 * self.done / self.rows if self.rows else 0.0


def _summary(job: steps.Job, manifest: steps.Manifest) -> str:
    statuses = "\n".join(f"| {name} | {count:,} |" for name, count in manifest.statuses.items())
    return (
        f"# {manifest.rows:,} rows in {manifest.seconds:.1f} s\n\n"
        f"`{job.evidence}` on `{job.network}`, {manifest.spec.query} in {manifest.spec.precision} precision\n\n"
        f"| status | rows |\n|---|---:|\n{statuses}\n\n"
        f"{len(manifest.parts)} parts ({manifest.reused_parts} were there already) in "
        f"`{job.directory.path / manifest.spec.query}`\n"
    )
