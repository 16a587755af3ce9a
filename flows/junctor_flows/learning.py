"""Parameters of a network as a Prefect flow: `junctor learn`, as in `junctor_flows.batch`."""

from __future__ import annotations

from typing import Any

from junctor.cli.learn import learn
from prefect import flow

from junctor_flows.frame import run_command, run_name, takes_parameters_of


@flow(  # type: ignore[untyped-decorator]
    name="junctor-learn-network", flow_run_name=lambda: run_name("evidence", "network"), persist_result=False
)
@takes_parameters_of(learn)
def learn_network(**given: Any) -> Any:
    """Fit the tables of NETWORK to the rows of EVIDENCE, as `junctor learn` does."""
    return run_command(learn, given)
