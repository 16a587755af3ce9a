"""Parameters of networks and of hidden Markov models as Prefect flows: `junctor learn` and `junctor learn-chain`."""

from __future__ import annotations

from typing import Any

from junctor.cli.learn import learn
from junctor.cli.learn_chain import learn_chain as fit_chain

from junctor_flows.frame import flow_of, run_command


@flow_of(learn, "junctor-learn-network", "evidence", "network")
def learn_network(**given: Any) -> Any:
    """Fit the tables of NETWORK to the rows of EVIDENCE, as `junctor learn` does."""
    return run_command(learn, given)


@flow_of(fit_chain, "junctor-learn-chain", "sequences", "model")
def learn_chain(**given: Any) -> Any:
    """Fit MODEL to SEQUENCES, as `junctor learn-chain` does."""
    return run_command(fit_chain, given)
