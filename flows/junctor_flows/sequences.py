"""Sequences through a hidden Markov model as a Prefect flow, as in `junctor_flows.batch`."""

from __future__ import annotations

from typing import Any

from junctor.hmm.run import SequenceJob
from junctor.runs.run import Manifest
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.progress import Progress
from prefect import flow

from junctor_flows.frame import FlowSteps, run_flow

# A flow of its own, because Prefect checks arguments by their annotations.
_STEPS = FlowSteps("ingest model", "ingest sequences", "decode")


@flow(name="junctor-decode-sequences", persist_result=False, result_serializer="json")  # type: ignore[untyped-decorator]
def decode_sequences(job: SequenceJob, resources: Resources | None = None) -> Any:
    """Answer every sequence of a file; returns the manifest as a JSON record.

    job, resources: records of the options of `junctor viterbi`; sizes in bytes.
    """
    return _STEPS.run(job, resources)


def decode_as_flow(job: SequenceJob, resources: Resources, progress: Progress) -> Manifest:
    """Run the flow for the command line; arguments and errors as of `run_flow`."""
    return run_flow(decode_sequences, job, resources, progress)
