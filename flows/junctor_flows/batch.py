"""Rows of evidence as a Prefect flow: `junctor run`, scheduled, tried again and shown by Prefect.

Main function: `score_batch`, the flow of `junctor deploy`.
"""

from __future__ import annotations

from typing import Any

from junctor.cli.run import run

from junctor_flows.frame import flow_of, run_command


@flow_of(run, "junctor-score-batch", "evidence", "network")
def score_batch(**given: Any) -> Any:
    """Answer every row of EVIDENCE from NETWORK, as `junctor run` does."""
    return run_command(run, given)
