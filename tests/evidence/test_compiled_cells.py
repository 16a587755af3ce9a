"""Evidence of a batch by the addresses of its columns, against NumPy."""

from __future__ import annotations

import gc
import pickle
import weakref

import numpy as np
from helpers import strategies
from hypothesis import given
from hypothesis import strategies as st
from junctor.evidence import compiled_cells as cells
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.evidence.compiled_cells import evidence_cells


@given(data=st.data())
def test_rows_that_observe(data: st.DataObject) -> None:
    network = data.draw(strategies.networks(max_variables=6))
    batch = data.draw(strategies.evidence_batches(network, max_rows=12, min_rows=1))
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, batch.rows - 1), min_size=1))))
    found, variables = evidence_cells(batch), len(network.variables)
    expected = np.zeros(variables, dtype=np.int64)
    for v, column in batch.states.items():
        expected[v] = np.count_nonzero(column[rows] != UNOBSERVED)
    np.testing.assert_array_equal(found.observed(rows, variables), expected)
    soft = [v if np.isin(rows, each.rows).any() else UNOBSERVED for v, each in sorted(batch.likelihoods.items())]
    assert found.soft(rows).tolist() == soft
    some = [v for v in sorted(batch.states) if v % 2]
    addresses = [column.__array_interface__["data"][0] for v, column in sorted(batch.states.items()) if v % 2]
    assert found.addresses(some).tolist() == addresses


def test_they_are_kept_as_long_as_the_batch() -> None:
    batch = EvidenceBatch(3, {1: np.array([0, 1, UNOBSERVED], dtype=np.int32)})
    assert evidence_cells(batch) is evidence_cells(batch)
    again = pickle.loads(pickle.dumps(batch))
    assert evidence_cells(again) is not evidence_cells(batch)
    there, count = weakref.ref(evidence_cells(batch)), len(cells._known)
    del batch
    gc.collect()
    assert there() is None
    assert len(cells._known) == count - 1
