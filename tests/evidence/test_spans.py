"""Parts of evidence that are read apart, as workers do: together they are the whole, to the last number and word."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from helpers.evidence_reference import DrawnTable, assert_same, drawn_tables, small_network
from hypothesis import assume, example, given
from hypothesis import strategies as st
from junctor.evidence.delimited import DelimitedTable
from junctor.evidence.encode import EncodedPartition
from junctor.evidence.read import MOST_PARTITIONS, SPAN_LOSS, TableSource, open_evidence, spans_of
from junctor.model.errors import EvidenceError
from pyarrow import csv, parquet

NETWORK = small_network()


def write_arrow(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table, max_chunksize=3)


WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    "parquet": lambda table, path: parquet.write_table(table, path, row_group_size=3),
    "arrow": write_arrow,
    "csv": csv.write_csv,
}


def opened(path: Path, **options: Any) -> TableSource:
    source = open_evidence(path, NETWORK, **options)
    assert isinstance(source, TableSource)
    return source


def in_parts(source: TableSource, spans: list[range], rows: int) -> Iterator[EncodedPartition]:
    """Yield the partitions of all parts, each of which another process has opened."""
    return chain.from_iterable(pickle.loads(pickle.dumps(source.part(span))).partitions(rows) for span in spans)


def error_of(partitions: Iterator[EncodedPartition]) -> str | None:
    try:
        for _ in partitions:
            pass
    except EvidenceError as error:
        return str(error)
    return None


@given(
    drawn_tables(lists=False, min_rows=1),
    st.sampled_from(list(WRITERS)),
    st.lists(st.integers(0, 12), max_size=3),
    st.integers(1, 4),
    st.integers(1, 6),
    st.booleans(),
)
def test_parts_are_the_whole(
    drawn: DrawnTable, form: str, cuts: list[int], rows: int, least: int, is_partitioned: bool
) -> None:
    assume(drawn.columns)
    table = drawn.arrow()
    if form == "csv":
        table = pa.table({name: pa.array(column) for name, *column in zip(*drawn.texts(), strict=True)})
    # Three times, so that there are more parts than one.
    table = pa.concat_tables([table] * 3)
    ends = sorted({0, *(min(cut, table.num_rows) for cut in cuts), table.num_rows})
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(DelimitedTable, "_bytes_at_once", lambda self: 40)
        for number, (first, end) in enumerate(pairwise(ends)):
            path = Path(folder, f"smoke={'yes' if number else 'no'}" if is_partitioned else "", f"{number}.{form}")
            path.parent.mkdir(exist_ok=True)
            WRITERS[form](table.slice(first, end - first), path)
        options = {"ignore_extra": True}
        try:
            source = opened(Path(folder), **options)
        except EvidenceError:
            # Two columns for one variable.
            assume(False)
        spans = source.spans(rows, least)
        assume(spans is not None)
        assert spans is not None
        whole = list(source.partitions(rows))
        parts = list(in_parts(source, spans, rows))
        assert [part.first_row for part in parts] == [part.first_row for part in whole]
        for part, expected in zip(parts, whole, strict=True):
            assert_same(part, expected)
        # Numbers of rows and lines are those of the file.
        strict = opened(Path(folder), strict=True, **options)
        assert error_of(in_parts(strict, spans, rows)) == error_of(strict.partitions(rows))


def test_parts_know_their_mapping(tmp_path: Path) -> None:
    table = pa.table({"Smoker?": ["ja", "nein", "x"] * 20, "age": [1.0, 9.5, None] * 20})
    WRITERS["parquet"](table, tmp_path / "t.parquet")
    bins = {"edges": [0, 5, 10], "labels": ["low", "high"], "outside_is_missing": True}
    mapping = {
        "columns": {"Smoker?": "smoke", "age": "grade"},
        "variables": {"smoke": {"states": {"ja": "yes", "nein": "no"}}, "grade": bins},
    }
    source = opened(tmp_path / "t.parquet", mapping=mapping)
    spans = source.spans(7, 4)
    assert spans is not None
    for part, expected in zip(in_parts(source, spans, 7), source.partitions(7), strict=True):
        assert_same(part, expected)
        assert part.batch.invalid


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 9), st.integers(1, 8))
@example([1000], 10, 4)
@example([80, 80, 80], 10, 64)
def test_spans_are_whole_partitions_with_few_rows_in_vain(groups: list[int], rows: int, least: int) -> None:
    total, spans = sum(groups), spans_of(groups, rows, least)
    starts = [sum(groups[:i]) for i in range(len(groups))]
    if spans is None:
        # A partition begins near the start of its group where groups are small.
        assert max(groups) > SPAN_LOSS * rows
        return
    assert [row for span in spans for row in (span.start, span.stop)][1:-1:2] == [span.start for span in spans[1:]]
    assert all(span.start % rows == 0 and (span.stop % rows == 0 or span.stop == total) for span in spans)
    assert all(0 < len(span) <= MOST_PARTITIONS * rows for span in spans)
    assert (spans[0].start, spans[-1].stop) == (0, total) if spans else total == 0
    lost = sum(span.start - max(start for start in starts if start <= span.start) for span in spans)
    assert lost <= SPAN_LOSS * total


def test_large_groups_are_not_cut_where_it_costs_more_than_it_gains() -> None:
    assert spans_of([10_000], 10, 8) is None
    # A row group of a million rows, in partitions of 262,144: two workers have something to do.
    assert spans_of([1_000_000], 1 << 18, 4) == [range(524_288), range(524_288, 1_000_000)]
    assert spans_of([1 << 20] * 4, 1 << 18, 4) == [range(at << 20, at + 1 << 20) for at in range(4)]
    # Many small groups are no reason for many tasks.
    assert spans_of([100] * 80, 1000, 4) == [range(at, at + 2000) for at in range(0, 8000, 2000)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv.gz", b""),
        ("t.arrows", b""),
        ("line breaks in cells.csv", b'smoke,grade\nyes,"lo\nw"\nno,high\n'),
        ("quotes in cells.csv", b'smoke,grade\nyes,5" 6",\nno,high\n'),
        ("old ends of lines.csv", b"smoke,grade\ryes,low\rno,high\r"),
    ],
)
def test_what_is_read_from_its_start(tmp_path: Path, name: str, text: bytes) -> None:
    path, table = tmp_path / name, pa.table({"smoke": ["yes", "no"]})
    if name.endswith(".gz"):
        with pa.CompressedOutputStream(str(path), "gzip") as stream:
            csv.write_csv(table, stream)
    elif name.endswith(".arrows"):
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    else:
        path.write_bytes(text)
    assert opened(path, ignore_extra=True).spans(1, 1) is None


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"t.{form}"
    WRITERS[form](pa.table({"smoke": ["yes", "no"] * 10}), path)
    source = opened(path)
    spans = source.spans(5, 4)
    assert spans is not None
    parts = [source.part(span) for span in spans]
    WRITERS[form](pa.table({"smoke": ["yes"] * 19}), path)
    assert "changed while it was read" in str(error_of(chain.from_iterable(part.partitions(5) for part in parts)))
