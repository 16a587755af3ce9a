"""The frame of both flows: the steps of a run as Prefect tasks, its progress and summary as artifacts.

Main class: FlowSteps; main function: `run_flow`, called by the command line.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from junctor.model.errors import JunctorError, RunError
from junctor.runs import run as steps
from junctor.runs.increments import lines_of
from junctor.runs.workload import Workload
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.progress import Progress, Silence
from prefect import State, task
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Failed

# Inputs of an increment that a summary names.
MOST_LINES = 100
# The display of progress in addition to Prefect's, set by `run_flow`: a flow's own arguments have to be JSON.
display: ContextVar[Progress] = ContextVar("display", default=Silence())  # noqa: B039


class FlowSteps:
    """The steps of a run as Prefect tasks, under names for rows or for sequences."""

    # Dask works inside of one task: a Prefect task for each partition would cost more than the partition.

    def __init__(self, ingest_model: str, ingest_inputs: str, propagate: str) -> None:
        self._ingest_model = _in_task(ingest_model, steps.ingest_model)
        self._ingest_inputs = _in_task(ingest_inputs, steps.ingest_inputs)
        self._plan = _in_task("plan", steps.plan)
        # Only here rows take long enough for an artifact of their progress.
        self._propagate = _in_task(propagate, steps.propagate, lambda display: ProgressArtifact(display))
        self._finalise = _in_task("finalise", steps.finalise)

    def run(self, job: Workload, resources: Resources | None) -> Any:
        """Run all steps; returns the manifest as a JSON record, or the state of a failed flow."""
        resources = resources or Resources()
        started = time.monotonic()
        try:
            steps.check_resources(resources)
            job.check_places(recorded=True)
            with job.directory.locked():
                self._ingest_model(job)
                self._ingest_inputs(job)
                estimate = self._plan(job, resources)
                work = self._propagate(job, resources, estimate)
                manifest = self._finalise(job, work, time.monotonic() - started)
                text = summary(job.title, str(job.directory.path / manifest.spec.folder), manifest)
                create_markdown_artifact(text, key="junctor-summary", description="What the run did")
                return manifest.to_record()
        except JunctorError as error:
            return _failed(error)


def _in_task(
    name: str, step: Callable[..., Any], progress: Callable[[Progress], Progress] = lambda display: display
) -> Any:
    """Return a step as a Prefect task: errors of the user fail it in one line, other errors are tried again.

    name: of the task.
    step: its last argument is the progress.
    progress: made from the display.
    """

    def attempt(*args: Any) -> Any:
        try:
            return step(*args, progress(display.get()))
        except JunctorError as error:
            return _failed(error)

    as_task = task(
        name=name,
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=1,
        retry_delay_seconds=5,
        retry_condition_fn=_is_unexpected,
    )(attempt)
    # Errors of a task are raised where it was called.
    return lambda *args: as_task(*args, return_state=True).result()


def _is_unexpected(_task: object, _run: object, state: State[Any]) -> bool:
    return not isinstance(state.data, JunctorError)


def _failed(error: JunctorError) -> State[Any]:
    """Return the state of a flow or task that ended with a user's error."""
    return Failed(message=str(error), data=error)


def run_flow(batch_flow: Any, job: Workload, resources: Resources, progress: Progress) -> steps.Manifest:
    """Run a flow for the command line, with its progress and its errors there.

    batch_flow: takes a job and resources, returns a manifest as a record.
    job: rows or sequences.
    resources: of the run.
    progress: display in addition to Prefect's.
    Raises RunError without a server.
    """
    token = display.set(progress)
    try:
        # A flow sleeps for its heartbeats to end, half a second as a rule, and whoever sits at a terminal sees it live.
        with temporary_settings(set_defaults={PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            state = batch_flow(job, resources, return_state=True)
    except Exception as error:
        # Errors inside of the flow are in its state; this one is of Prefect itself.
        raise RunError(f"Prefect could not run the flow ({error}): see to its server, or use --no-prefect") from error
    finally:
        display.reset(token)
    return steps.manifest_of(state.result(), job.directory.parse)  # or raises what made it fail


class ProgressArtifact:
    """Progress as a Prefect artifact, at most once a second, in addition to another display."""

    def __init__(self, display: Progress) -> None:
        self.display = display
        self.artifact: UUID | None = None
        self.rows = 0
        self.done = 0
        self.shown = 0.0

    def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
        """Begin an artifact."""
        self.display.stage(name, rows, done)
        self.rows, self.done, self.shown = rows or 0, done, time.monotonic()
        self.artifact = create_progress_artifact(self._percent(), key="junctor-progress", description=name)

    def advance(self, rows: int) -> None:
        """Update the artifact."""
        self.display.advance(rows)
        self.done += rows
        # An update is a request to the server, which takes longer than a small partition.
        now = time.monotonic()
        if self.artifact is not None and (now - self.shown >= 1.0 or self.done >= self.rows):
            self.shown = now
            update_progress_artifact(self.artifact, self._percent())

    def passes(self, done: int, of: int) -> None:
        """Leave it to the other display."""
        self.display.passes(done, of)

    def _percent(self) -> float:
        return 100.0 * self.done / self.rows if self.rows else 0.0


def summary(inputs: str, output: str, manifest: steps.Manifest) -> str:
    """Return the summary of a run, in Markdown.

    inputs: title of the job.
    output: folder of the answers.
    manifest: of the run.
    """
    statuses = "\n".join(f"| {name} | {count:,} |" for name, count in manifest.statuses.items())
    return (
        f"# {manifest.rows:,} rows in {manifest.seconds:.1f} s\n\n"
        f"{inputs}, {manifest.spec.folder} in {manifest.spec.precision} precision\n\n"
        f"| status | rows |\n|---|---:|\n{statuses}\n\n"
        f"{len(manifest.parts)} parts ({manifest.reused_parts} were there already) in "
        f"`{output}`\n" + _news(manifest)
    )


def _news(manifest: steps.Manifest) -> str:
    """Return what is new of evidence that grows."""
    if not manifest.increments:
        return ""
    if manifest.increment is None:
        return "\nNothing is new.\n"
    last = manifest.increments[-1]
    lines = lines_of(last, manifest.inputs)
    more = [f"and {len(lines) - MOST_LINES:,} more"] if len(lines) > MOST_LINES else []
    listed = "\n".join(f"- {line}" for line in [*lines[:MOST_LINES], *more])
    return f"\nIncrement {last.number}: {last.rows:,} rows\n\n{listed}\n"
