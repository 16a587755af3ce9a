"""Evidence of some rows as a plan takes it: cut out of a batch, alone or with its columns."""

from __future__ import annotations

import pickle

import cloudpickle
import numpy as np
import pytest
from junctor.backends.evidence_blocks import block_of
from junctor.backends.numpy import GIVEN, EvidenceBlock
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.evidence.compiled_cells import evidence_cells
from junctor.planning.shape import Pattern

ROWS = 20_000
PATTERN = Pattern(frozenset([0, 2]), frozenset([1, 3]))
SIZES = (2, 3, 4, 2)


def batch() -> EvidenceBatch:
    """Return evidence of four variables; of the last one it is soft in some rows."""
    rng = np.random.default_rng(1)
    states = {v: rng.integers(0, SIZES[v], ROWS).astype(np.int32) for v in (0, 1, 2)}
    states[1][5] = UNOBSERVED
    soft = {3: SoftEvidence(np.array([5, 7]), np.array([[0.5, 1.0], [1.0, 0.0]]))}
    return EvidenceBatch(ROWS, states, soft)


def test_a_block_alone_is_the_same_and_takes_nothing_of_the_batch_along() -> None:
    block = block_of(batch(), np.array([5, 6, 7]), PATTERN, SIZES)
    sent = cloudpickle.dumps(block.alone())
    assert len(sent) < 4000 < len(cloudpickle.dumps(block))
    found: EvidenceBlock = pickle.loads(sent)
    assert found.cases == 3
    for name in ("states", "likelihoods", "seen"):
        mine, its = dict(getattr(found, name)), dict(getattr(block, name))
        assert mine.keys() == its.keys()
        for v, values in mine.items():
            np.testing.assert_array_equal(values, its[v])
    assert found.seen[1][0] == UNOBSERVED
    assert found.seen[3].tolist() == [GIVEN, UNOBSERVED, GIVEN]


def test_a_batch_is_there_where_all_evidence_is_of_states() -> None:
    evidence, rows = batch(), np.arange(4)
    assert block_of(evidence, rows, PATTERN, SIZES).batch is None
    hard = Pattern(frozenset([0, 2]), frozenset([1]))
    assert block_of(evidence, rows, hard, SIZES).batch is evidence


def test_columns_in_pieces_or_of_another_type_are_copied_once() -> None:
    wide = np.arange(20, dtype=np.int64).reshape(10, 2)
    whole = np.arange(10, dtype=np.int32)
    evidence = EvidenceBatch(10, {0: wide[:, 0], 1: whole})
    first = evidence_cells(evidence).addresses([0, 1])
    assert evidence_cells(evidence).addresses([0, 1]).tolist() == first.tolist()
    assert first[0] != wide.ctypes.data
    assert first[1] == whole.ctypes.data
    with pytest.raises(KeyError):
        evidence_cells(evidence).addresses([2])
