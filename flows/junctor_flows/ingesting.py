"""Evidence into a dataset as a Prefect flow: `junctor ingest`, as in `junctor_flows.batch`."""

from __future__ import annotations

from typing import Any

from junctor.cli.ingest import ingest

from junctor_flows.frame import flow_of, run_command


@flow_of(ingest, "junctor-ingest", "evidence", "network")
def ingest_evidence(**given: Any) -> Any:
    """Encode EVIDENCE for NETWORK into a dataset, as `junctor ingest` does."""
    return run_command(ingest, given)
