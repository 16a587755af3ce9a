"""Blocks of evidence for a backend, and a comparison of what two backends make of them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.model.network import Network
from junctor.planning.shape import Pattern
from junctor_kernels.cpu.bytecode import GIVEN
from junctor_kernels.tables.reference import Algebra

from helpers import strategies

TOLERANCE = {"double": 1e-12, "log": 1e-12, "single": 2e-6, "max": 1e-12}


@st.composite
def questions(draw: st.DrawFn) -> tuple[Network, EvidenceBatch, bool]:
    network = draw(strategies.networks(max_variables=6, max_joint=512))
    return (
        network,
        draw(strategies.evidence_batches(network, max_rows=8, min_rows=1, invalid=False)),
        draw(st.booleans()),
    )


def blocks_of(network: Network, batch: EvidenceBatch, likelihoods: bool) -> tuple[Pattern, EvidenceBlock]:
    """Put hard evidence of a variable that all rows observe into slices, anything else into likelihoods."""
    sizes = network.cardinalities
    hard = {v: column for v, column in batch.states.items() if batch.rows and (column >= 0).all()}
    sliced = {} if likelihoods else hard
    weighted, seen = {}, {}
    for v in sorted((set(batch.states) | set(batch.likelihoods)) - set(sliced)):
        values = np.ones((sizes[v], batch.rows))
        for row in range(batch.rows):
            states, soft = strategies.row_evidence(batch, row)
            if v in states:
                values[:, row] = np.arange(sizes[v]) == states[v]
            if v in soft:
                values[:, row] *= soft[v]
        weighted[v] = values
        # States beside likelihoods of some variables, likelihoods alone of others: a batch may have either.
        if v % 3:
            seen[v] = batch.states.get(v, np.full(batch.rows, UNOBSERVED)).copy()
            seen[v][batch.likelihoods[v].rows if v in batch.likelihoods else []] = GIVEN
    states = {v: column.astype(np.int64) for v, column in sliced.items()}
    return Pattern(frozenset(states), frozenset(weighted)), EvidenceBlock(batch.rows, states, weighted, seen)


def compare(found: BlockOutcome, expected: BlockOutcome, algebra: Algebra) -> None:
    tolerance = TOLERANCE[algebra.name]
    assert found.doubtful.tolist() == expected.doubtful.tolist()
    sure = ~found.doubtful
    np.testing.assert_allclose(found.log_value[sure], expected.log_value[sure], rtol=tolerance, atol=tolerance * 10)
    assert sorted(found.posteriors) == sorted(expected.posteriors)
    for v, posterior in expected.posteriors.items():
        # A table that no case changes may have one column for all of them.
        for_all = np.broadcast_to(posterior, found.posteriors[v].shape)
        np.testing.assert_allclose(found.posteriors[v][:, sure], for_all[:, sure], atol=tolerance)
    possible = np.isfinite(expected.log_value)
    assert sorted(found.states) == sorted(expected.states)
    for v, states in expected.states.items():
        assert found.states[v][possible].tolist() == states[possible].tolist()
