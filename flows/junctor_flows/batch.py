"""Rows of evidence as a Prefect flow: the steps of `junctor.runs.run.run`, shown, retried and scheduled by Prefect.

Main functions: `score_batch`, the flow, and `score_as_flow`, called by the command line.
"""

from __future__ import annotations

from typing import Any

from junctor.runs.run import Manifest
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.progress import Progress
from prefect import flow

from junctor_flows.frame import FlowSteps, run_flow

# Deployment: `prefect deploy junctor_flows/batch.py:score_batch`, or `score_batch.serve(cron=...)`; schedules need a
# Prefect server (`prefect server start`).
_STEPS = FlowSteps("ingest network", "ingest evidence", "propagate")


@flow(name="junctor-score-batch", persist_result=False, result_serializer="json")  # type: ignore[untyped-decorator]
def score_batch(job: Job, resources: Resources | None = None) -> Any:
    """Answer every row of an evidence file; returns the manifest as a JSON record.

    job, resources: records of the options of `junctor run`; sizes in bytes.
    """
    # An interrupted run continues where it stopped, as in the command line.
    return _STEPS.run(job, resources)


def score_as_flow(job: Job, resources: Resources, progress: Progress) -> Manifest:
    """Run the flow for the command line; arguments and errors as of `run_flow`."""
    return run_flow(score_batch, job, resources, progress)
