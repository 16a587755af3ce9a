"""Sequences through a hidden Markov model as a Prefect flow: `junctor viterbi`, as in `junctor_flows.batch`."""

from __future__ import annotations

from typing import Any

from junctor.cli.viterbi import viterbi
from prefect import flow

from junctor_flows.frame import run_command, run_name, takes_parameters_of, try_again


@flow(  # type: ignore[untyped-decorator]
    name="junctor-decode-sequences",
    flow_run_name=lambda: run_name("sequences", "model"),
    persist_result=False,
    on_crashed=[try_again],
)
@takes_parameters_of(viterbi)
def decode_sequences(**given: Any) -> Any:
    """Find the most probable path of every sequence in SEQUENCES through MODEL, as `junctor viterbi` does."""
    return run_command(viterbi, given)
