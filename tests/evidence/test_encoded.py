"""Encoded partitions come back from disk as they were."""

from __future__ import annotations

import datetime
import errno
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
from junctor.model.network import Network

NETWORK = small_network()


def round_trip(path: Path, partition: EncodedPartition, network: Network = NETWORK) -> EncodedPartition:
    write_partition(partition, network, path)
    return read_partition(path, network, kept=True)


@given(drawn_tables())
def test_any_partition_comes_back(tmp_path: Path, table: DrawnTable) -> None:
    partition = encode_table(table.arrow(), NETWORK, first_row=12_345_678_901)
    back = round_trip(tmp_path / "part.parquet", partition)
    assert_same(back, partition)
    assert list(back.batch.states) == list(partition.batch.states)
    assert [path.name for path in tmp_path.iterdir()] == ["part.parquet"]


def test_all_numbers_of_states_and_likelihoods(tmp_path: Path) -> None:
    sizes = (1, 128, 129, 32_769)
    network = small_network({f"v{size}": [str(state) for state in range(size)] for size in sizes} | {"s": ["a", "b"]})
    states = {variable: np.array([-1, 0, size - 1], np.int32) for variable, size in enumerate(sizes)}
    likelihoods = {4: SoftEvidence(np.array([0, 2]), np.array([[5e-324, 1.7e308], [-0.0, 0.1]]))}
    batch = EvidenceBatch(3, states, likelihoods, {1: "why, 'é'\n"})
    partition = EncodedPartition(batch, pa.array([1, 2, 3]), 0)
    back = round_trip(tmp_path / "part.parquet", partition, network)
    assert_same(back, partition)
    assert np.signbit(back.batch.likelihoods[4].values[1, 0])


def test_a_column_that_all_rows_observe_is_complete(tmp_path: Path) -> None:
    table = as_arrow({"smoke": ["yes", "no"], "grade": ["low", None]})
    assert round_trip(tmp_path / "part.parquet", encode_table(table, NETWORK)).batch.complete == {0}


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
    write_partition(partition, NETWORK, tmp_path / "a")
    write_partition(partition, NETWORK, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_other_readers_see_names_and_nulls(tmp_path: Path) -> None:
    network = small_network({"case_id": ["a", "b"], "smoke": ["yes", "no"], "reason": ["x", "y"]})
    columns = {
        "id": [7, 8],
        "case_id": ["b", ""],
        "smoke": [[0.5, 1.0], None],
        "reason": ["x", "z"],
        "note": ["1", "2"],
    }
    partition = encode_table(as_arrow(columns), network, case_id="id", keep=["note", "case_id"], ignore_extra=True)
    write_partition(partition, network, tmp_path / "part.parquet")
    table = pq.read_table(tmp_path / "part.parquet")
    assert pa.types.is_dictionary(table.schema.field("case_id").type)
    assert table.to_pydict() == {
        "case_id_": [7, 8],
        "case_id": ["b", None],
        "reason": ["x", None],
        "smoke_likelihood": [[0.5, 1.0], None],
        "reason_": [None, "column 'reason': unknown state 'z'; states are x, y"],
        "note": ["1", "2"],
        "case_id__": ["b", ""],
    }
    assert_same(read_partition(tmp_path / "part.parquet", network, kept=True), partition)


def test_states_take_bits_on_disk(tmp_path: Path) -> None:
    partition = encode_table(as_arrow({"grade": ["low", "mid", "high", None] * 10_000}), NETWORK)
    assert write_partition(partition, NETWORK, tmp_path / "a").bytes < 40_000


def test_a_network_with_the_states_in_another_order(tmp_path: Path) -> None:
    write_partition(encode_table(as_arrow({"grade": ["low", None, "high"]}), NETWORK), NETWORK, tmp_path / "a")
    other = small_network({"more": ["x"], "grade": ["high", "top", "mid", "low"]})
    assert read_partition(tmp_path / "a", other).batch.states[1].tolist() == [3, -1, 0]
    for without in ({"grade": ["high", "mid"]}, {"more": ["x"]}):
        with pytest.raises(RunError, match="a: cannot be read as encoded evidence"):
            read_partition(tmp_path / "a", small_network(without))


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "part.parquet"
    with pytest.raises(RunError, match=r"part.parquet: cannot be read as encoded evidence .*: start the run anew"):
        read_partition(path, NETWORK)
    path.write_bytes(b"PAR1")
    with pytest.raises(RunError, match="cannot be read as encoded evidence"):
        read_partition(path, NETWORK)
    table = pa.table({"case_id": [1]})
    pq.write_table(table, path)
    with pytest.raises(RunError, match="found encoded evidence of format version None, expected 3"):
        read_partition(path, NETWORK)
    pq.write_table(table.replace_schema_metadata({"junctor.evidence": '{"format_version": 2}'}), path)
    with pytest.raises(RunError, match="found encoded evidence of format version 2, expected 3"):
        read_partition(path, NETWORK)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RunError, match="cannot be read as encoded evidence"):
        read_partition(path, NETWORK)


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_table(table: pa.Table, path: Path, **_: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq, "write_table", write_table)
    with pytest.raises(RunError, match=r"part\.parquet: .*space"):
        write_partition(encode_table(as_arrow({"grade": ["low"]}), NETWORK), NETWORK, tmp_path / "part.parquet")
    assert not list(tmp_path.iterdir())
