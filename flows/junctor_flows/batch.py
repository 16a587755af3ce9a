"""Rows of evidence as a Prefect flow: the same steps as `junctor.runs.run.run`, seen, retried and scheduled by Prefect.

Deploy it with `prefect deploy junctor_flows/batch.py:score_batch`, or `score_batch.serve(cron=...)`; schedules need a
Prefect server (`prefect server start`).
"""

from __future__ import annotations

from typing import Any

from junctor.runs.run import Manifest
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.progress import Progress
from prefect import flow

from junctor_flows.frame import FlowSteps, run_flow

_STEPS = FlowSteps("ingest network", "ingest evidence", "propagate")


@flow(name="junctor-score-batch", persist_result=False, result_serializer="json")  # type: ignore[untyped-decorator]
def score_batch(job: Job, resources: Resources | None = None) -> Any:
    """Answer every row of an evidence file; returns the manifest as a JSON-able record.

    job, resources: records of what `junctor run` is told; sizes in bytes. A run that was interrupted goes on where it
    stopped.
    """
    return _STEPS.run(job, resources)


def score_as_flow(job: Job, resources: Resources, progress: Progress) -> Manifest:
    """Run the flow for the command line; arguments and errors as of `run_flow`."""
    return run_flow(score_batch, job, resources, progress)
