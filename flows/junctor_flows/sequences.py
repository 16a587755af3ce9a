"""Sequences through a hidden Markov model as a Prefect flow: `junctor viterbi`, as in `junctor_flows.batch`."""

from __future__ import annotations

from typing import Any

from junctor.cli.viterbi import viterbi

from junctor_flows.frame import flow_of, run_command


@flow_of(viterbi, "junctor-decode-sequences", "sequences", "model")
def decode_sequences(**given: Any) -> Any:
    """Find the most probable path of every sequence in SEQUENCES through MODEL, as `junctor viterbi` does."""
    return run_command(viterbi, given)
