"""Parameters of networks and of hidden Markov models as Prefect flows: `junctor learn` and `junctor learn-chain`."""

from __future__ import annotations

from typing import Any

from junctor.cli.learn import learn
from junctor.cli.learn_chain import learn_chain as fit_chain
from prefect import flow

from junctor_flows.frame import run_command, run_name, takes_parameters_of, try_again


@flow(  # type: ignore[untyped-decorator]
    name="junctor-learn-network",
    flow_run_name=lambda: run_name("evidence", "network"),
    persist_result=False,
    on_crashed=[try_again],
)
@takes_parameters_of(learn)
def learn_network(**given: Any) -> Any:
    """Fit the tables of NETWORK to the rows of EVIDENCE, as `junctor learn` does."""
    return run_command(learn, given)


@flow(  # type: ignore[untyped-decorator]
    name="junctor-learn-chain",
    flow_run_name=lambda: run_name("sequences", "model"),
    persist_result=False,
    on_crashed=[try_again],
)
@takes_parameters_of(fit_chain)
def learn_chain(**given: Any) -> Any:
    """Fit MODEL to SEQUENCES, as `junctor learn-chain` does."""
    return run_command(fit_chain, given)
