"""The engine against full-joint enumeration: any network, any evidence, every precision, any block size."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from junctor.answers import IMPOSSIBLE, INVALID, OK, Answers
from junctor.engine import Engine
from junctor.evidence.batch import EvidenceBatch
from junctor.model import Network
from junctor.query import Query

TOLERANCE = {"double": 1e-12, "log": 1e-12, "single": 1e-5}


@st.composite
def questions(draw: st.DrawFn) -> tuple[Network, EvidenceBatch]:
    network = draw(strategies.networks(max_variables=6, max_joint=512))
    return network, draw(strategies.evidence_batches(network, max_rows=8))


def check_posteriors(network: Network, batch: EvidenceBatch, answers: Answers, tolerance: float) -> None:
    for row in range(batch.rows):
        if row in batch.invalid:
            assert answers.status[row] == INVALID
            assert answers.reasons[row] == batch.invalid[row]
            continue
        hard, soft = strategies.row_evidence(batch, row)
        log_evidence, expected = oracle.enumerate_posteriors(network, hard, soft)
        if np.isneginf(log_evidence):
            assert answers.status[row] == IMPOSSIBLE
            continue
        assert answers.status[row] == OK
        assert answers.log_value[row] == pytest.approx(log_evidence, rel=tolerance, abs=10 * tolerance)
        for variable in answers.targets:
            np.testing.assert_allclose(answers.posteriors[variable][row], expected[variable], rtol=0, atol=tolerance)


@pytest.mark.parametrize("precision", ["double", "single", "log"])
@given(question=questions())
def test_posteriors_equal_enumeration(precision: str, question: tuple[Network, EvidenceBatch]) -> None:
    network, batch = question
    answers = Engine(network, Query(precision=precision)).answer(batch)
    check_posteriors(network, batch, answers, TOLERANCE[precision])


@given(question=questions(), data=st.data())
def test_targets_leave_out_nothing_that_matters(question: tuple[Network, EvidenceBatch], data: st.DataObject) -> None:
    network, batch = question
    names = [variable.name for variable in network.variables]
    targets = tuple(data.draw(st.lists(st.sampled_from(names), unique=True)))
    answers = Engine(network, Query(targets=targets)).answer(batch)
    assert answers.targets == tuple(network.index[name] for name in targets)
    # Dropped tables may miss a row sum of 1 by what the model allows as written.
    check_posteriors(network, batch, answers, 1e-12)


@given(question=questions())
def test_explanations_equal_enumeration(question: tuple[Network, EvidenceBatch]) -> None:
    network, batch = question
    answers = Engine(network, Query(kind="mpe")).answer(batch)
    for row in range(batch.rows):
        if row in batch.invalid:
            assert answers.status[row] == INVALID
            continue
        hard, soft = strategies.row_evidence(batch, row)
        log_value, _ = oracle.enumerate_mpe(network, hard, soft)
        if np.isneginf(log_value):
            assert answers.status[row] == IMPOSSIBLE
            continue
        assert answers.status[row] == OK
        assert answers.log_value[row] == pytest.approx(log_value, rel=1e-12, abs=1e-9)
        found = {v: int(answers.states[v][row]) for v in range(len(network.variables))}
        assert all(found[v] == state for v, state in hard.items())
        assert oracle.log_joint(network, found, soft) == pytest.approx(log_value, rel=1e-12, abs=1e-9)
