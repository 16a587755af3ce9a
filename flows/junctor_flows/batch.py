"""Rows of evidence as a Prefect flow: `junctor run`, scheduled, tried again and shown by Prefect.

Main function: `score_batch`, the flow of `junctor deploy`.
"""

from __future__ import annotations

from typing import Any

from junctor.cli.run import run
from prefect import flow

from junctor_flows.frame import run_command, run_name, takes_parameters_of, try_again


@flow(  # type: ignore[untyped-decorator]
    name="junctor-score-batch",
    flow_run_name=lambda: run_name("evidence", "network"),
    persist_result=False,
    on_crashed=[try_again],
)
@takes_parameters_of(run)
def score_batch(**given: Any) -> Any:
    """Answer every row of EVIDENCE from NETWORK, as `junctor run` does."""
    return run_command(run, given)
