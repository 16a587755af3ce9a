"""Encoded partitions come back from disk as they were."""

from __future__ import annotations

import base64
import datetime
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.encoding import encode_table
from helpers.evidence_reference import DrawnTable, assert_same, drawn_tables, small_network
from hypothesis import given
from junctor.evidence.batch import EvidenceBatch, SoftEvidence
from junctor.evidence.encode import EncodedPartition, as_arrow
from junctor.evidence.encoded import read_partition, write_partition
from junctor.model.errors import RunError

NETWORK = small_network()


def round_trip(path: Path, partition: EncodedPartition) -> EncodedPartition:
    write_partition(partition, path)
    return read_partition(path)


@given(drawn_tables())
def test_any_partition_comes_back(tmp_path: Path, table: DrawnTable) -> None:
    partition = encode_table(table.arrow(), NETWORK, first_row=12_345_678_901)
    back = round_trip(tmp_path / "part.parquet", partition)
    assert_same(back, partition)
    assert list(back.batch.states) == list(partition.batch.states)
    assert [path.name for path in tmp_path.iterdir()] == ["part.parquet"]


def test_all_numbers_of_states_and_likelihoods(tmp_path: Path) -> None:
    states = {most: np.array([-1, 0, most], np.int32) for most in (0, 1, 255, 256, 65_535, 65_536, 2**31 - 1)}
    likelihoods = {
        9: SoftEvidence(np.array([0, 2]), np.array([[5e-324, 1.7e308], [-0.0, 0.1]])),
        10: SoftEvidence(np.zeros(0, np.int64), np.zeros((0, 3))),
    }
    batch = EvidenceBatch(3, states, likelihoods, {1: "why, 'é'\n"})
    partition = EncodedPartition(batch, pa.array([1, 2, 3]), 0)
    assert_same(round_trip(tmp_path / "part.parquet", partition), partition)
    assert np.signbit(read_partition(tmp_path / "part.parquet").batch.likelihoods[9].values[1, 0])


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        ([1, None], pa.int8()),
        ([2**64 - 1, 0], pa.uint64()),
        ([1.5, float("inf")], pa.float16()),
        (["é", None], pa.string()),
        (["", None], pa.large_string()),
        (["a longer text than fits", None], pa.string_view()),
        ([b"\x00\xff", None], pa.binary()),
        ([b"\x00\xff", None], pa.binary_view()),
        ([b"ab", None], pa.binary(2)),
        ([uuid.UUID(int=1).bytes, None], pa.uuid()),
        ([True, None], pa.bool_()),
        ([None, None], pa.null()),
        ([Decimal("1.5"), None], pa.decimal32(4, 1)),
        ([Decimal("1.5"), None], pa.decimal256(40, 1)),
        ([datetime.date(2026, 1, 1), None], pa.date32()),
        ([datetime.date(2026, 1, 1), None], pa.date64()),
        ([datetime.time(1, 2, 3), None], pa.time32("s")),
        ([datetime.datetime(2026, 1, 1, 1), None], pa.timestamp("s")),
        ([datetime.datetime(2026, 1, 1, 1), None], pa.timestamp("ns", "Europe/Berlin")),
        ([datetime.timedelta(seconds=3), None], pa.duration("s")),
    ],
    ids=str,
)
def test_case_ids_keep_their_type(tmp_path: Path, cells: list[Any], kind: pa.DataType) -> None:
    table = pa.table({"case_id": pa.array(cells, kind)})
    partition = encode_table(table, NETWORK)
    assert partition.case_ids.type == kind
    assert_same(round_trip(tmp_path / "part.parquet", partition), partition)


def test_equal_partitions_are_equal_files(tmp_path: Path) -> None:
    partition = encode_table(as_arrow({"smoke": ["yes", "x"], "grade": [[1, 2, 3], None]}), NETWORK)
    write_partition(partition, tmp_path / "a")
    write_partition(partition, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_states_are_small_on_disk(tmp_path: Path) -> None:
    write_partition(encode_table(as_arrow({"grade": [0, 1, 2, None] * 10_000}), NETWORK), tmp_path / "a")
    with pa.ipc.open_file(tmp_path / "a") as file:
        assert file.schema.field("states").type == pa.list_(pa.int8(), 1)


def test_partitions_of_earlier_versions_are_read(tmp_path: Path) -> None:
    metadata = {
        "format_version": 1,
        "first_row": 7,
        "case_id": base64.b64encode(pa.schema([("case_id", pa.timestamp("s"))]).serialize()).decode(),
    }
    columns = {
        "case_id": pa.array([1, 2, 3], pa.timestamp("s")),
        "s4": pa.array([0, None, 255], pa.uint8()),
        "l2": pa.array([None, [0.5, 1.0], None], pa.list_(pa.float64(), 2)),
        "reason": [None, None, "why"],
    }
    path = tmp_path / "part.parquet"
    pq.write_table(pa.table(columns).replace_schema_metadata({"junctor": json.dumps(metadata)}), path)
    likelihood = SoftEvidence(np.array([1]), np.array([[0.5, 1.0]]))
    batch = EvidenceBatch(3, {4: np.array([0, -1, 255], np.int32)}, {2: likelihood}, {2: "why"})
    assert_same(read_partition(path), EncodedPartition(batch, columns["case_id"], 7))


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "part.parquet"
    with pytest.raises(RunError, match=r"part.parquet: cannot be read as encoded evidence .*: start the run anew"):
        read_partition(path)
    path.write_bytes(b"PAR1")
    with pytest.raises(RunError, match="cannot be read as encoded evidence"):
        read_partition(path)
    table = pa.table({"case_id": [1]})
    pq.write_table(table, path)
    with pytest.raises(RunError, match="found encoded evidence of format version None, expected 1"):
        read_partition(path)
    pq.write_table(table.replace_schema_metadata({"junctor": '{"format_version": 2}'}), path)
    with pytest.raises(RunError, match="found encoded evidence of format version 2, expected 1"):
        read_partition(path)
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)
    with pytest.raises(RunError, match="found encoded evidence of format version None, expected 2"):
        read_partition(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RunError, match="cannot be read as encoded evidence"):
        read_partition(path)


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    broken = EncodedPartition(EvidenceBatch(2, {0: np.zeros(3, np.int32)}), pa.array([1, 2]), 0)
    with pytest.raises(pa.ArrowInvalid):
        write_partition(broken, tmp_path / "part.parquet")
    assert not list(tmp_path.iterdir())
