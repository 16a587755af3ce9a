"""Sequences through a hidden Markov model as a Prefect flow: the same steps as `junctor.hmm.run.run`."""

from __future__ import annotations

import time
from dataclasses import asdict, fields
from typing import Any

from junctor.hmm import run as steps
from junctor.hmm.engine import SequenceKind
from junctor.model.errors import JunctorError
from junctor.model.options import DeviceChoice
from junctor.model.query import Precision
from junctor.runs.run import Manifest, RunEstimate, RunStats, check_resources
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.progress import Progress
from prefect import flow

from junctor_flows.batch import ProgressArtifact, display, failed, in_task, manifest_of, show_summary


@in_task
def ingest_model(job: steps.SequenceJob) -> None:
    """Read, check and keep the model."""
    steps.ingest_model(job, display.get())


@in_task
def ingest_sequences(job: steps.SequenceJob) -> None:
    """Encode the sequences, one file a partition."""
    steps.ingest_sequences(job, display.get())


@in_task
def plan(job: steps.SequenceJob, resources: Resources) -> RunEstimate:
    """See what the work will take."""
    return steps.plan(job, resources)


@in_task
def decode(job: steps.SequenceJob, resources: Resources, outlook: RunEstimate) -> RunStats:
    """Answer all partitions; Dask works inside this task."""
    return steps.decode(job, resources, outlook, ProgressArtifact(display.get()))


@in_task
def finalise(job: steps.SequenceJob, work: RunStats, seconds: float) -> Manifest:
    """Write the manifest."""
    return steps.finalise(job, work, seconds, display.get())


@flow(name="junctor-decode-sequences", persist_result=False, result_serializer="json")  # type: ignore[untyped-decorator]
def decode_sequences(
    model: str,
    sequences: str,
    output: str,
    query: SequenceKind = "viterbi",
    precision: Precision = "double",
    partition_rows: int | None = None,
    column: str | None = None,
    case_id: str | None = None,
    strict: bool = False,
    overwrite: bool = False,
    model_format: str | None = None,
    sequences_format: str | None = None,
    workers: int | None = None,
    memory: int | None = None,
    scheduler: str | None = None,
    insecure_scheduler: bool = False,
    threads: int | None = None,
    device: DeviceChoice = "auto",
    device_memory: int | None = None,
    spill: str | None = None,
    disk: int | None = None,
) -> Any:
    """Answer every sequence of a file into `output`; returns the manifest as a JSON-able record.

    The arguments are those of `junctor viterbi`; sizes in bytes. A run that was interrupted goes on where it stopped.
    """
    job = steps.SequenceJob(
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
    resources = Resources(workers, memory, scheduler, insecure_scheduler, threads, device, device_memory, spill, disk)
    started = time.monotonic()
    try:
        check_resources(resources)
        with job.directory.locked():
            return _all_steps(job, resources, started)
    except JunctorError as error:
        return failed(error)


def decode_as_flow(job: steps.SequenceJob, resources: Resources, progress: Progress) -> Manifest:
    """Run the flow for the command line: its progress there too, its errors as they are; RunError without a server."""
    arguments = {**{each.name: getattr(job, each.name) for each in fields(job)}, **asdict(resources)}
    return manifest_of(decode_sequences, arguments, progress, steps.SequenceDirectory.parse)


def _all_steps(job: steps.SequenceJob, resources: Resources, started: float) -> dict[str, Any]:
    ingest_model(job)
    ingest_sequences(job)
    outlook = plan(job, resources)
    work = decode(job, resources, outlook)
    manifest = finalise(job, work, time.monotonic() - started)
    show_summary(job, f"`{job.sequences}` on `{job.model}`", manifest)
    return asdict(manifest)
