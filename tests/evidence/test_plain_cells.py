"""Cells of a few rows, read one by one, against the encoding of tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from helpers.encoding import encode_table
from helpers.evidence_reference import STATES, TEXTS, assert_same, drawn_tables, small_network
from hypothesis import given
from hypothesis import strategies as st
from junctor.evidence.encode import EncodedPartition, as_arrow
from junctor.evidence.plain_cells import MOST_ROWS, PlainCells
from junctor.model.errors import EvidenceError

NETWORK = small_network()
CELLS = st.sampled_from([*TEXTS, None, 0, 1, 2, 3, -1, 2**70, 1.0, 0.5, math.nan, True, False, np.int64(1), b"yes"])
NAMES = st.sampled_from([*STATES, "case_id", " smoke", "smoke=yes", "unknown", 7])


def same_or_left(evidence: Any, case_id: str | None = None) -> bool:
    """Return False where the encoder leaves the evidence; otherwise it has to say what tables say."""
    found = PlainCells(NETWORK).encode(evidence, case_id)
    if found is None:
        return False
    expected = encode_table(as_arrow(evidence), NETWORK, case_id=case_id, strict=True)
    assert_same(EncodedPartition(*found, 0), expected)
    return True


@given(rows=st.lists(st.dictionaries(NAMES, CELLS, max_size=4), max_size=4))
def test_rows_are_read_as_tables_or_left(rows: list[dict[Any, Any]]) -> None:
    same_or_left(rows)


@given(columns=st.dictionaries(NAMES, st.lists(CELLS, max_size=3), max_size=4))
def test_columns_are_read_as_tables_or_left(columns: dict[Any, list[Any]]) -> None:
    same_or_left(columns)


@given(table=drawn_tables(min_rows=1))
def test_tables_are_read_as_tables_or_left(table: Any) -> None:
    arrow = table.arrow()
    same_or_left(arrow)
    for batch in arrow.to_batches():
        same_or_left(batch)


GOOD = [
    [{"smoke": "yes"}],
    [{"smoke": " yes ", "grade": 2}, {"grade": 0}, {}],
    [{}],
    {"smoke": ["yes", None], "flag": [True, False], "number": [1, 3]},
    {"smoke": ("NA", "?"), "grade": (math.nan, 1.0)},
    [{"case_id": "a", "smoke": "no"}, {"case_id": "b"}],
    [{"case_id": 7, "smoke": "no"}],
    pa.table({"one": ["only"], "smoke": pa.nulls(1)}),
    pa.record_batch({"grade": pa.array([0, None])}),
    pd.DataFrame({"smoke": ["yes", None], "grade": [1.0, math.nan], "flag": [True, False]}),
]


@pytest.mark.parametrize("evidence", GOOD, ids=str)
def test_plain_cells_are_read(evidence: Any) -> None:
    assert same_or_left(evidence)


LEFT = [
    [{"smoke": "maybe"}],
    [{"smoke": [0.5, 2.0]}],
    [{"smoke=yes": 1.0, "smoke=no": 2.0}],
    [{"unknown": "yes"}],
    [{" smoke": "yes"}],
    [{"grade": 1}, {"grade": 2.0}],
    [{"case_id": 1}, {}],
    {"smoke": ["yes"], "grade": []},
    {"smoke": []},
    [],
    {},
    [{"smoke": "yes"}] * (MOST_ROWS + 1),
    {"smoke": np.array(["yes"])},
    pa.table([pa.array(["yes"]), pa.array(["no"])], names=["smoke", "smoke"]),
    pa.table({"grade": pa.array([1], pa.int8())}),
    pd.DataFrame({"grade": np.array([1.0], np.float32)}),
    "yes",
]


@pytest.mark.parametrize("evidence", LEFT, ids=lambda evidence: str(evidence)[:40])
def test_anything_else_is_left(evidence: Any) -> None:
    assert PlainCells(NETWORK).encode(evidence) is None


def test_a_named_column_of_case_ids() -> None:
    assert same_or_left([{"patient": "x", "smoke": "yes"}], "patient")
    assert not same_or_left([{"smoke": "yes"}], "patient")
    # As everywhere, a variable that is named so is not evidence then; without a name, `case_id` is no variable.
    assert same_or_left([{"smoke": "yes", "grade": "low"}], "smoke")
    encoder = PlainCells(small_network({"case_id": ["a", "b"]}))
    found = encoder.encode([{"case_id": "b"}])
    assert found is not None
    assert found[0].states[0].tolist() == [1]
    assert found[1].to_pylist() == [0]


def test_unknown_states_teach_the_encoder_nothing() -> None:
    encoder = PlainCells(NETWORK)
    for _ in range(3):
        assert encoder.encode([{"smoke": "yess"}]) is None
    with pytest.raises(EvidenceError, match="did you mean 'yes'"):
        encode_table(as_arrow([{"smoke": "yess"}]), NETWORK, strict=True)
