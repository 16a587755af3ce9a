"""Evidence files: all formats say the same, in partitions of any size, and damage is an EvidenceError."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.encoding import encode_table
from helpers.evidence_reference import DrawnTable, assert_same, drawn_tables, small_network
from helpers.files import ASIA
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from junctor.evidence import columnar
from junctor.evidence import read as reading
from junctor.evidence.batch import UNOBSERVED
from junctor.evidence.columnar import ParquetTable
from junctor.evidence.delimited import DelimitedTable
from junctor.evidence.encode import EncodedPartition, as_arrow, concatenate
from junctor.evidence.files import input_files
from junctor.evidence.read import digest_of, open_evidence, rows_of_part, sample_rows
from junctor.model.errors import EvidenceError

NETWORK = small_network()


def read(path: Path, rows: int = 1000, **options: Any) -> list[EncodedPartition]:
    return list(open_evidence(path, NETWORK, **options).partitions(rows))


def read_text(tmp_path: Path, text: str | bytes, name: str = "t.csv", **options: Any) -> list[EncodedPartition]:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read(path, **options)


def write_csv(path: Path, table: DrawnTable, delimiter: str = ",") -> None:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter).writerows(table.texts())
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.suffix.lower() == ".gz" else data)


def write_ipc_file(path: Path, table: pa.Table, chunk: int = 3) -> None:
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=chunk)


def write_ipc_stream(path: Path, table: pa.Table, chunk: int = 3) -> None:
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=chunk)


def write_differences(path: Path, table: pa.Table, encoding: str) -> None:
    texts = {field.name: encoding for field in table.schema if pa.types.is_string(field.type)}
    pq.write_table(table, path, row_group_size=3, use_dictionary=False, column_encoding=texts)


WRITERS: dict[str, Callable[[Path, pa.Table], None]] = {
    "t.parquet": lambda path, table: pq.write_table(table, path, row_group_size=3),
    "t.pq": lambda path, table: pq.write_table(table, path, use_dictionary=False, store_schema=False),
    # As writers of Parquet's second version do: Arrow makes no dictionaries of such texts.
    "lengths.parquet": lambda path, table: write_differences(path, table, "DELTA_LENGTH_BYTE_ARRAY"),
    "words.parquet": lambda path, table: write_differences(path, table, "DELTA_BYTE_ARRAY"),
    "t.arrow": write_ipc_file,
    "t.arrows": write_ipc_stream,
    "t.feather": write_ipc_file,
    "no ending": write_ipc_stream,
}


@given(drawn_tables(min_rows=1), st.integers(1, 9))
def test_every_columnar_format_equals_the_table(tmp_path: Path, table: DrawnTable, rows: int) -> None:
    assume(table.columns)
    expected = encode_table(table.arrow(), NETWORK)
    for name, write in WRITERS.items():
        write(tmp_path / name, table.arrow())
        source = open_evidence(tmp_path / name, NETWORK)
        parts = list(source.partitions(rows))
        _assert_partitions(parts, expected, rows)
        assert source.case_id_type == expected.case_ids.type
        assert set(source.columns) >= {*expected.batch.states, *expected.batch.likelihoods}


@given(drawn_tables(lists=False, min_rows=1), st.integers(1, 9))
def test_delimited_text_equals_the_table(tmp_path: Path, table: DrawnTable, rows: int) -> None:
    assume(table.columns)
    expected = encode_table(table.arrow(), NETWORK)
    for name, delimiter in (("t.csv", ","), ("t.CSV.GZ", ","), ("t.tsv", "\t"), ("t.tsv.gz", "\t")):
        write_csv(tmp_path / name, table, delimiter)
        parts = list(open_evidence(tmp_path / name, NETWORK).partitions(rows))
        # A number is shown without quotes where it is one, so the words of the reasons can differ.
        _assert_partitions(parts, expected, rows, reasons=False)


def _assert_partitions(parts: list[EncodedPartition], expected: EncodedPartition, rows: int, **options: Any) -> None:
    total = expected.batch.rows
    assert [part.first_row for part in parts] == list(range(0, total, rows))
    assert [part.batch.rows for part in parts] == [min(rows, total - first) for first in range(0, total, rows)]
    assert_same(concatenate(parts, expected.case_ids.type, 0), expected, **options)


@pytest.mark.parametrize(
    "text",
    [
        "smoke,grade\nyes,2\nno,\n",
        "smoke,grade\r\nyes,2\r\nno,",
        "smoke,grade\ryes,2\rno,?\r",
        "\ufeffsmoke,grade\nyes,2\nno,NA\n",
        '\n\n"smoke",grade\nyes,2\nno,\n',
        ' smoke , grade \n yes , 2\n"no ",\n',
        "smoke,grade\n\nyes,2\n\n\nno,\n\n",
        "smoke,grade\nyes,high\nno,null\n",
        '"smoke","grade"\n"yes","high"\n"no",""\n',
    ],
)
def test_spellings_of_the_same_table(tmp_path: Path, text: str) -> None:
    (part,) = read_text(tmp_path, text)
    assert part.batch.states[0].tolist() == [0, 1]
    assert part.batch.states[1].tolist() == [2, UNOBSERVED]
    assert not part.batch.invalid


def test_cells_are_text(tmp_path: Path) -> None:
    (part,) = read_text(tmp_path, 'x=y,case_id\n"01",007\n0.5," 1e3"\n1,\n')
    assert part.case_ids.to_pylist() == ["007", " 1e3", ""]
    assert part.batch.states[NETWORK.index["x=y"]].tolist() == [1, 0, UNOBSERVED]
    assert list(part.batch.invalid) == [2]


def test_quoted_cells(tmp_path: Path) -> None:
    (part,) = read_text(tmp_path, 'case_id,smoke\n"a,b",yes\n"c ""d""",no\n"e\nf",yes\n5" pipe,no\n')
    assert part.case_ids.to_pylist() == ["a,b", 'c "d"', "e\nf", '5" pipe']
    assert part.batch.states[0].tolist() == [0, 1, 0, 1]


def test_an_empty_line_is_a_row_where_there_is_one_column(tmp_path: Path) -> None:
    (part,) = read_text(tmp_path, "\nsmoke\nyes\n\nno\n")
    assert part.batch.states[0].tolist() == [0, UNOBSERVED, 1]
    (part,) = read_text(tmp_path, "smoke\n\n")
    assert part.batch.states[0].tolist() == [UNOBSERVED]


@pytest.mark.parametrize("text", ["smoke", "smoke\n", "smoke,grade", "smoke,grade\n", "smoke,grade\n\n\n", "case_id\n"])
def test_a_header_alone_is_a_table_without_rows(tmp_path: Path, text: str) -> None:
    assert read_text(tmp_path, text) == []
    assert open_evidence(tmp_path / "t.csv", NETWORK).columns == [
        i for i, name in enumerate(("smoke", "grade")) if name in text
    ]


def test_columnar_tables_without_rows(tmp_path: Path) -> None:
    table = as_arrow({"smoke": pa.array([], pa.string()), "case_id": pa.array([], pa.int32())})
    for name, write in WRITERS.items():
        write(tmp_path / name, table)
        source = open_evidence(tmp_path / name, NETWORK)
        assert list(source.partitions(10)) == []
        assert source.columns == [0]
        assert source.case_id_type == pa.int32()


def test_tables_without_evidence(tmp_path: Path) -> None:
    table = as_arrow({"a": [1, 2, 3, 4], "b": ["x"] * 4})
    for name, write in WRITERS.items():
        write(tmp_path / name, table)
        _assert_rows_only(read(tmp_path / name, 3, ignore_extra=True), [0, 1, 2, 3])
        _assert_rows_only(read(tmp_path / name, 3, ignore_extra=True, case_id="b"), ["x"] * 4)
    (tmp_path / "t.csv").write_text("a,b\n1,x\n2,x\n3,x\n4,x\n")
    _assert_rows_only(read(tmp_path / "t.csv", 3, ignore_extra=True), [0, 1, 2, 3])
    _assert_rows_only(read(tmp_path / "t.csv", 3, ignore_extra=True, case_id="b"), ["x"] * 4)


def _assert_rows_only(parts: list[EncodedPartition], ids: list[Any]) -> None:
    assert [part.batch.rows for part in parts] == [3, 1]
    assert [case for part in parts for case in part.case_ids.to_pylist()] == ids
    assert not any(part.batch.states or part.batch.likelihoods or part.batch.invalid for part in parts)


def test_names_that_parquet_could_take_for_paths(tmp_path: Path) -> None:
    network = small_network({"a": ["x", "y"], "a.b": ["x", "y"], "a.list": ["x", "y"], "a=": ["x"]})
    table = pa.table({"a.list": [1, 0], "a.b": ["y", "x"], "a": [[0.5, 0.5], None], "a=": ["x", None]})
    pq.write_table(table, tmp_path / "t.parquet")
    (part,) = open_evidence(tmp_path / "t.parquet", network).partitions(10)
    assert_same(part, encode_table(table, network))
    (part,) = open_evidence(
        tmp_path / "t.parquet", small_network({"a": ["x", "y"], "a=": ["x"]}), ignore_extra=True
    ).partitions(10)
    assert list(part.batch.likelihoods) == [0]


def test_a_folder_is_one_table(tmp_path: Path) -> None:
    first, second = {"smoke": ["yes", "no"], "case_id": [1, 2]}, {"case_id": [3], "smoke": pa.nulls(1)}
    for name, columns in (("b/0.parquet", second), ("a.parquet", first), ("c.parquet", first), ("_x.parquet", [])):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(as_arrow(columns), tmp_path / name)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".a.parquet.crc").write_bytes(b"crc")
    parts = read(tmp_path, 2)
    assert [part.batch.rows for part in parts] == [2, 2, 1]
    assert [case for part in parts for case in part.case_ids.to_pylist()] == [1, 2, 3, 1, 2]
    assert [state for part in parts for state in part.batch.states[0].tolist()] == [0, 1, UNOBSERVED, 0, 1]


def test_folders_that_are_columns(tmp_path: Path) -> None:
    for name, ids in (("day=1", [3]), ("day=2", [4, 5]), ("day=__HIVE_DEFAULT_PARTITION__", [1, 2])):
        (tmp_path / "t" / name).mkdir(parents=True)
        pq.write_table(as_arrow({"case_id": ids, "smoke": ["no"] * len(ids)}), tmp_path / "t" / name / "0.parquet")
    (part,) = read(tmp_path / "t", keep=["day"])
    assert part.kept is not None
    assert dict(zip(part.case_ids.to_pylist(), part.kept["day"].to_pylist(), strict=True)) == {
        1: None,
        2: None,
        3: "1",
        4: "2",
        5: "2",
    }
    assert read(tmp_path / "t", case_id="day", ignore_extra=True)[0].case_ids.to_pylist() == ["1", "2", "2", None, None]


def test_folders_are_no_evidence(tmp_path: Path) -> None:
    (tmp_path / "smoke=yes").mkdir()
    path = tmp_path / "smoke=yes" / "a.csv"
    path.write_text("grade\n1\n")
    with pytest.raises(EvidenceError, match="'smoke' has the name of a variable, but folders are never"):
        read(tmp_path)
    assert list(read(tmp_path, ignore_extra=True)[0].batch.states) == [1]
    path.write_text("smoke\nno\n")
    assert read(tmp_path, ignore_extra=True)[0].batch.states[0].tolist() == [1]


def test_a_column_may_stand_in_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "a.csv").write_text("smoke,day\nno,one\n")
    assert read(tmp_path)[0].batch.states[0].tolist() == [1]
    assert read(tmp_path, keep=["day"])[0].kept == pa.table({"day": ["1"]})


def test_a_folder_that_may_not_be_read_is_told_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("smoke\nyes\n")
    denied = tmp_path / "day=1"
    denied.mkdir()
    scan = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path) == denied:
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    # Root may read all.
    monkeypatch.setattr(os, "scandir", scandir)
    for evidence in (tmp_path, tmp_path / "day=*"):
        with pytest.raises(EvidenceError, match=f"^{denied}: cannot be read: Permission denied$"):
            input_files(evidence)


def test_globs_are_one_table(tmp_path: Path) -> None:
    for day in ("2", "1"):
        for name in ("b.csv", "a.csv", "_c.csv", "d.txt"):
            (tmp_path / f"day={day}" / ".x").mkdir(parents=True, exist_ok=True)
            (tmp_path / f"day={day}" / name).write_text(f"case_id,smoke\n{day}{name[0]},no\n")
            (tmp_path / f"day={day}" / ".x" / name).write_text("")

    def cases(glob: str) -> list[str]:
        return [case for part in read(tmp_path / glob, keep=["day"]) for case in part.case_ids.to_pylist()]

    assert cases("day=*/*.csv") == cases("**/*.csv") == ["1a", "1b", "2a", "2b"]
    assert cases("day=[2]/?.csv") == cases("day=2/*.csv") == ["2a", "2b"]
    (tmp_path / "day=1" / "d.txt").unlink()
    assert cases("day=1*") == ["1a", "1b"]
    (tmp_path / "[x]*.csv").write_text("smoke\nno\n")
    assert read(tmp_path / "[x]*.csv")[0].batch.rows == 1
    with pytest.raises(EvidenceError, match=r"day=3/\*.csv: no file has such a name"):
        read(tmp_path / "day=3/*.csv")
    assert digest_of(tmp_path / "day=1/*.csv") != digest_of(tmp_path / "day=2/*.csv")


@pytest.mark.parametrize("name", ["in", "in/**/*.csv", "in/*", "in/d=*/*.csv", "in/*/a.csv", "in/**/a.csv"])
@pytest.mark.parametrize("there", [".", ""])
def test_links_to_folders_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, there: str) -> None:
    monkeypatch.chdir(tmp_path)
    for day in ("in/d=2", "other/d=1"):
        Path(day).mkdir(parents=True)
        Path(day, "a.csv").write_text(f"case_id,smoke\n{day[-1]},no\n")
    Path("in/d=1").symlink_to("../other/d=1")
    # The same folder twice is no loop.
    Path("in/d=3").symlink_to("d=2")
    Path("in/_d=4").symlink_to("d=2")
    for link, target in (
        ("in/d=2/up", ".."),
        ("in/d=2/top", "../.."),
        ("in/self", "."),
        ("other/d=1/back", "../../in"),
    ):
        Path(link).symlink_to(target)
    source = Path(there or tmp_path, name)
    assert [case for part in read(source, keep=["d"]) for case in part.case_ids.to_pylist()] == ["1", "2", "2"]
    assert input_files(source).covers("d=1/a.csv")


@pytest.mark.parametrize(
    ("glob", "name", "covered"),
    [
        ("day=*/*.csv", "day=1/a.csv", True),
        ("day=*/*.csv", "day=1/a.parquet", False),
        ("day=*/*.csv", "a.csv", False),
        ("day=1*", "day=12/x/a.csv", True),
        ("day=1/*.csv", "day=2/a.csv", False),
        ("**/*.csv", "a.csv", True),
        ("**/*.csv", "x/y/a.csv", True),
        ("**/y/*", "x/y/a.csv", True),
        ("**/y/*", "x/a.csv", False),
    ],
)
def test_globs_cover_names(tmp_path: Path, glob: str, name: str, covered: bool) -> None:
    (tmp_path / "day=1" / "y").mkdir(parents=True)
    (tmp_path / "day=1" / "y" / "z.csv").touch()
    (tmp_path / "day=1" / "z.csv").touch()
    assert input_files(tmp_path / glob).covers(name) == covered
    assert input_files(tmp_path).covers(name)
    assert [input_files(tmp_path / "day=1" / "z.csv").covers(name) for name in ("z.csv", "a.csv")] == [True, False]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "t: the folder has no evidence files"),
        ({"_SUCCESS": ""}, "t: the folder has no evidence files"),
        (
            {"a.csv": "smoke\nyes\n", "b.csv": "grade\n1\n"},
            "t/a.csv: no column 'grade', but t/b.csv has one: the files",
        ),
        ({"a.csv": "smoke\nyes\n", "README": "hello"}, "t/README: cannot tell the format from the ending ''"),
        ({"a.evid": "0"}, "t/a.evid: UAI evidence cannot be one of several files of a folder"),
    ],
)
def test_folders_that_are_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t").mkdir()
    for name, text in files.items():
        Path("t", name).write_text(text)
    with pytest.raises(EvidenceError) as raised:
        read(Path("t"))
    assert str(raised.value).startswith(message)


def test_types_of_users_are_kept(tmp_path: Path) -> None:
    class Own(pa.ExtensionType):
        def __init__(self) -> None:
            super().__init__(pa.string(), "junctor.tests.read")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Own:
            return cls()

    # They have no hash.
    pa.register_extension_type(Own())
    try:
        own = pa.ExtensionArray.from_storage(Own(), pa.array(["a"]))
        for name in "ab":
            pq.write_table(pa.table({"k": own}), tmp_path / f"{name}.parquet")
        (found,) = read(tmp_path, keep=["k"])
        assert found.kept is not None
        assert found.kept["k"].type == own.type
    finally:
        pa.unregister_extension_type("junctor.tests.read")


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_kept_evidence_may_be_views(tmp_path: Path, format: str, kind: pa.DataType) -> None:
    cells = pa.array([b"yes", None, b"no"]).cast(kind)
    path = tmp_path / f"t.{format}"
    WRITERS[f"t.{format}"](path, pa.table({"case_id": cells, "smoke": cells}))
    (part,) = read(path, keep=["smoke"])
    assert part.kept is not None
    assert part.kept["smoke"].combine_chunks().equals(cells)
    assert part.case_ids.equals(cells)
    assert not part.batch.invalid


def test_case_ids_of_a_folder_have_one_type(tmp_path: Path) -> None:
    pq.write_table(as_arrow({"case_id": [1]}), tmp_path / "a.parquet")
    pq.write_table(as_arrow({"case_id": ["1"]}), tmp_path / "b.parquet")
    with pytest.raises(
        EvidenceError, match=r"b.parquet: case ids of type string, but .*a.parquet has int64: write them as one"
    ):
        read(tmp_path)


@pytest.mark.parametrize("first", [pa.string(), pa.large_string(), pa.string_view(), pa.null()], ids=str)
@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_text_of_a_folder_has_the_type_of_the_first_file_with_some(
    tmp_path: Path, first: pa.DataType, format: str
) -> None:
    others = [pa.string(), pa.large_string(), pa.string_view(), pa.null(), pa.dictionary(pa.int8(), pa.large_string())]
    expected: list[str | None] = []
    for number, kind in enumerate([first, *others]):
        cells = [None] * 2 if pa.types.is_null(kind) else [f"{number}", None]
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        table = pa.table({"case_id": pa.array(cells, kind), "smoke": ["yes", None], "k": pa.array(cells, plain)})
        WRITERS[f"t.{format}"](tmp_path / f"{number}.{format}", table)
        expected += cells
    source = open_evidence(tmp_path, NETWORK, keep=["k"])
    parts = list(source.partitions(2))
    kind = pa.string() if pa.types.is_null(first) else first
    assert source.case_id_type == source.kept_schema.field("k").type == kind
    ids = pa.chunked_array([part.case_ids for part in parts])
    kept = pa.concat_tables([part.kept for part in parts if part.kept is not None])["k"]
    assert ids.type == kept.type == kind
    assert ids.to_pylist() == kept.to_pylist() == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.csv: the file is empty, expected a header with names of variables"),
        ("\n\n", "t.csv: the file is empty, expected a header"),
        ("smoke,grade\nyes,1\n\nno\n", "t.csv:4: found 1 cells, expected 2 as in the header"),
        ('smoke,grade\n"yes\n",1\nno,1,2\n', "t.csv:4: found 3 cells, expected 2 as in the header"),
        ('smoke,grade\nyes,1\nno,"1\nyes,1\n', 't.csv:3: a cell starts with a quote (") that is not closed before'),
        ('smoke,grade\nyes,1\n"no,1\nyes,1\n', "t.csv:3: found 1 cells, expected 2 as in the header"),
        ('smoke\nyes\n"no""\n', 't.csv:3: a cell starts with a quote (") that is not closed before the file ends'),
        ("smoke,smoke\nyes,no\n", "t.csv: column 'smoke' (number 2) says again what column 'smoke' (number 1) says"),
        (b"smoke,grade\nyes,1\nye\xe9,1\n", "t.csv:3:3: found the byte 0xe9, which is not UTF-8 text: convert the"),
        (b"smoke,gr\xe9de\nyes,1\n", "t.csv:1:9: found the byte 0xe9, which is not UTF-8 text"),
        (
            gzip.compress(b"smoke\nyes\n", mtime=0),
            "t.csv: found a file compressed by gzip whose name does not end in .gz",
        ),
        (b"\xff\xff" + b"smoke\nyes\n", "t.csv:1:1: found the byte 0xff, which is not UTF-8 text"),
    ],
)
def test_what_is_wrong_with_a_csv_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | bytes, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EvidenceError) as raised:
        read_text(Path(), text)
    assert str(raised.value).startswith(message)


def test_stray_quotes_are_not_open_quotes(tmp_path: Path) -> None:
    (part,) = read_text(tmp_path, 'case_id,smoke\n5" pipe,yes\n')
    assert part.case_ids.to_pylist() == ['5" pipe']


@pytest.mark.parametrize("size", [200_000, 3_000_000, 20_000_000])
def test_huge_cells(tmp_path: Path, size: int) -> None:
    huge = "x" * size
    text = f"case_id,smoke\n1,yes\n{huge},{huge[:100]}\n3,no\n"
    if size > 2**20:
        with pytest.raises(EvidenceError, match=r"a quote not closed|a line has more than 16,777,216 characters"):
            read_text(tmp_path, text)
        return
    (part,) = read_text(tmp_path, text)
    assert part.case_ids.to_pylist() == ["1", huge, "3"]
    assert len(part.batch.invalid[1]) < 150
    with pytest.raises(EvidenceError, match=r"t.csv:2: found 1 cells, expected 2 as in the header: is a quote not"):
        read_text(tmp_path, 'case_id,smoke\n"1,yes\n' + "2,no\n" * size)
    with pytest.raises(EvidenceError, match=r"t.csv:2: more than 1 MiB in the row that starts here: is a quote not"):
        read_text(tmp_path, 'case_id,smoke\n"1,yes\n' + "2,no\n" * 2 * size)


def test_rows_that_straddle_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("junctor.evidence.delimited._BLOCK_BYTES", 64)
    ids = [f'{i} "quoted"\nand, broken' for i in range(50)]
    text = "case_id,smoke\n" + "".join(f'"{case.replace(chr(34), chr(34) * 2)}",yes\n' for case in ids)
    parts = read_text(tmp_path, text, rows=7)
    assert [case for part in parts for case in part.case_ids.to_pylist()] == ids


@settings(max_examples=75)
@given(
    text=st.lists(st.sampled_from([*'",\n\r5 ', "yes", "no", '"yes"', '""', "\r\n", "a,yes\n"]), max_size=60).map(
        "".join
    )
)
@example('5",yes\n"a\nb",no\n"5,yes\n1",no\n')
@example('"a\nb",yes\n"a\n""b\n",no\n')
def test_blocks_and_threads_change_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(f"case_id,smoke\n{text}".encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("junctor.evidence.delimited._end_of_lines", lambda data: 0)
        stream = outcome(path, 1)
    for size in (8, 40):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DelimitedTable, "_bytes_at_once", lambda self, size=size: size)
            for threads in (1, 3):
                assert outcome(path, threads) == stream


@pytest.mark.parametrize(("text", "rows"), [(b"smoke\nyes\n\xe9\n", None), (b'case_id,smoke\n5" pipe,yes\n', 1)])
def test_no_thread_of_arrow_reads_through_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, rows: int | None
) -> None:
    # One that still does when the process ends aborts it.
    readers = set()

    class Watched(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            readers.add(threading.get_ident())
            return super().read(size)

    path = tmp_path / "t.csv"
    path.write_bytes(text)
    monkeypatch.setattr("junctor.evidence.delimited.open_bytes", lambda path: Watched(path.read_bytes()))
    with suppress(EvidenceError) if rows is None else nullcontext():
        assert sum(part.batch.rows for part in read(path, 100)) == rows
    assert readers == {threading.get_ident()}


REFUSED = {
    "latin-1": b"smoke\n" + b"yes\n" * 3 + b"\xe9\n",
    "ragged": b"case_id,smoke\n1,2,yes\n",
    "open quote": b'case_id,smoke\n1,"yes\n',
}
# Each refused table is read by a process of its own, which then ends as Python does: a fork, since starting Python a
# thousand times takes half an hour.
LOOP = """
import collections, os, sys
from pathlib import Path
from junctor.evidence.read import open_evidence
from junctor.model.errors import EvidenceError
from junctor.formats import read_network

network = read_network(sys.argv[2])
codes = collections.Counter()
for i in range(int(sys.argv[1])):
    child = os.fork()
    if not child:
        try:
            list(open_evidence(Path(sys.argv[3 + i % (len(sys.argv) - 3)]), network).partitions(1000))
        except EvidenceError:
            sys.exit(EvidenceError.exit_code)
        sys.exit(0)
    codes[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])] += 1
print(dict(codes))
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rows", [1, 100_000])
def test_refused_tables_never_abort_the_process(tmp_path: Path, rows: int) -> None:
    paths = [tmp_path / f"{name}.csv" for name in REFUSED]
    for path, data in zip(paths, REFUSED.values(), strict=True):
        path.write_bytes(data + (b"yes\n" if path.stem == "latin-1" else b"1,yes\n") * rows)
    command = [sys.executable, "-c", LOOP, "500", ASIA, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{3: 500}", done.stderr[-300:]
    # The command line itself, and one process again and again.
    for path in paths:
        command = [str(Path(sys.executable).with_name("junctor")), "run", ASIA, str(path), "-o", str(tmp_path / "out")]
        assert subprocess.run(command, capture_output=True, check=False).returncode == EvidenceError.exit_code
    for path in paths * 10:
        with pytest.raises(EvidenceError):
            read(path, 1000)


def outcome(path: Path, threads: int) -> Any:
    """Return all rows of a file, or the error of reading it."""
    try:
        source = open_evidence(path, NETWORK)
        parts = list(source.partitions(7, threads))
    except EvidenceError as error:
        return str(error)
    whole = concatenate(parts, source.case_id_type, 0)
    states = {variable: column.tolist() for variable, column in whole.batch.states.items()}
    return states, whole.case_ids.to_pylist(), whole.batch.invalid


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.arrow"])
def test_reasons_do_not_depend_on_threads(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Suggestions are limited: those of the first rows are given, whichever thread is first.
    monkeypatch.setattr("junctor.evidence.states._HINTS", 3)
    monkeypatch.setattr(DelimitedTable, "_bytes_at_once", lambda self: 100)
    monkeypatch.setattr("junctor.evidence.columnar._BATCH_ROWS", 10)
    cells = [f"ye{i}" if i % 3 else "yes" for i in range(200)]
    if name == "t.csv":
        (tmp_path / name).write_text("\n".join(["smoke", *cells]))
    else:
        WRITERS[name](tmp_path / name, pa.table({"smoke": cells}))
    one, other = (list(open_evidence(tmp_path / name, NETWORK).partitions(9, threads)) for threads in (1, 4))
    for part, same in zip(one, other, strict=True):
        assert_same(part, same)
    assert sum("did you mean" in reason for part in one for reason in part.batch.invalid.values()) == 3
    with pytest.raises(EvidenceError, match="row 2: column 'smoke'"):
        list(open_evidence(tmp_path / name, NETWORK, strict=True).partitions(9, 4))


def test_strict_names_line_row_and_column(tmp_path: Path) -> None:
    text = 'case_id,smoke\n"1\n1",yes\n\n2,no\n3,yess\n4,x\n'
    assert read_text(tmp_path, text)[0].batch.invalid.keys() == {2, 3}
    message = "t.csv:6: row 3: column 'smoke': unknown state 'yess', did you mean 'yes'?; states are yes, no"
    for rows in (1, 2, 10):
        with pytest.raises(EvidenceError) as raised:
            read_text(tmp_path, text, strict=True, rows=rows)
        assert str(raised.value) == f"{tmp_path}/{message}"


def test_strict_counts_rows_in_their_own_file(tmp_path: Path) -> None:
    pq.write_table(as_arrow({"smoke": ["yes"] * 5}), tmp_path / "a.parquet")
    pq.write_table(as_arrow({"smoke": ["yes", "no", "x"]}), tmp_path / "b.parquet")
    with pytest.raises(EvidenceError, match=re.escape(f"{tmp_path}/b.parquet: row 3: column 'smoke': unknown state")):
        read(tmp_path, strict=True)


def test_paths_and_formats_that_cannot_be(tmp_path: Path) -> None:
    for path, options, message in (
        (tmp_path / "no.csv", {}, "no.csv: no such file or folder"),
        (tmp_path / "no", {}, "no: no such file or folder"),
        (
            tmp_path / "no.csv",
            {"evidence_format": "cvs"},
            "unknown evidence format 'cvs', did you mean 'csv'?: one of csv, tsv,",
        ),
    ):
        with pytest.raises(EvidenceError) as raised:
            read(path, **options)
        assert message in str(raised.value)
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    with pytest.raises(EvidenceError, match=r"cannot tell the format from the ending '.xlsx': expected one of .csv"):
        read(tmp_path / "t.xlsx")
    (tmp_path / "table").write_text("smoke\nno\n")
    assert read(tmp_path / "table", evidence_format="csv")[0].batch.states[0].tolist() == [1]
    with pytest.raises(EvidenceError, match="no such file or folder"):
        digest_of(tmp_path / "no.csv")


def test_digests(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("smoke\nno\n")
    alone = digest_of(tmp_path / "a.csv")
    assert alone == hashlib.sha256(b"smoke\nno\n").hexdigest()
    folder = tmp_path / "t"
    folder.mkdir()
    (folder / "a.csv").write_text("smoke\nno\n")
    first = digest_of(folder)
    assert first != alone
    (folder / "_SUCCESS").touch()
    assert digest_of(folder) == first
    (folder / "a.csv").rename(folder / "b.csv")
    second = digest_of(folder)
    (folder / "a.csv").write_text("smoke\n")
    assert len({alone, first, second, digest_of(folder)}) == 4


GOOD_CSV = b'case_id,smoke,grade,grade=low,grade=mid,grade=high\n1,yes,2,,,\n"a ""b""\nc",no,,0.1,0.2,1e-3\n?,NA,x,,,\n'


def _mutated(data: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    for at, length, new in changes:
        at %= len(data) + 1
        data = data[:at] + new + data[at + length :]
    return data


CHANGES = st.lists(
    st.tuples(
        st.integers(0, 10_000),
        st.integers(0, 40),
        st.sampled_from([b"", b'"', b",", b"\n", b"\r", b"\x00", b"\xff", b"=", b"0"]) | st.binary(max_size=8),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=75)
@given(CHANGES)
@example([(0, 40, b'"')])
def test_damaged_csv(tmp_path: Path, changes: list[tuple[int, int, bytes]]) -> None:
    _assert_partitions_or_error(tmp_path / "t.csv", _mutated(GOOD_CSV, changes))


@settings(max_examples=25)
@given(st.data())
def test_damaged_columnar_files(tmp_path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["t.parquet", "t.arrow", "t.arrows", "t.csv.gz"]))
    table = as_arrow(
        {
            "case_id": [1, None, 3],
            "smoke": pa.array(["yes", None, "no"]).dictionary_encode(),
            "grade": [[1.0, 2.0, 3.0], None, [0.0, 1.0, 0.5]],
            "odd": ["NA", "b", None],
        }
    )
    if name == "t.csv.gz":
        good = gzip.compress(GOOD_CSV)
    else:
        WRITERS[name](tmp_path / name, table)
        good = (tmp_path / name).read_bytes()
    if data.draw(st.booleans()):
        bad = good[: data.draw(st.integers(0, len(good)))]
    else:
        bad = _mutated(good, [(at, len(new), new) for at, _, new in data.draw(CHANGES)])
    _assert_partitions_or_error(tmp_path / name, bad)


def _assert_partitions_or_error(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    for options in ({}, {"ignore_extra": True}, {"strict": True}):
        with suppress(EvidenceError):
            parts = read(path, 2, **options)
            assert all(len(part.case_ids) == part.batch.rows for part in parts)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, threads: int) -> None:
    path = tmp_path / "t.csv"
    block = "yes,2,a fairly long case identifier\n" * 100_000
    with path.open("w") as file:
        file.write("smoke,grade,case_id\n")
        for _ in range(50):
            file.write(block)
    before, most = pa.total_allocated_bytes(), 0
    tracemalloc.start()
    rows = 0
    for part in open_evidence(path, NETWORK).partitions(10_000, threads):
        rows += part.batch.rows
        most = max(most, pa.total_allocated_bytes() - before + tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    assert rows == 5_000_000
    assert most < 64 * 2**20


def test_partitions_can_be_asked_for_again(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("smoke\nyes\nno\nx\n")
    source = open_evidence(tmp_path / "t.csv", NETWORK)
    for one, other in zip(source.partitions(2), source.partitions(2), strict=True):
        assert_same(one, other)
    with pytest.raises(ValueError, match="at least one row"):
        next(source.partitions(0))


def test_a_large_row_group_is_cut(tmp_path: Path) -> None:
    states = np.random.default_rng(1).integers(0, 3, 200_000)
    pq.write_table(pa.table({"grade": states}), tmp_path / "t.parquet")
    parts = read(tmp_path / "t.parquet", 70_001)
    assert [part.batch.rows for part in parts] == [70_001, 70_001, 59_998]
    np.testing.assert_array_equal(np.concatenate([part.batch.states[1] for part in parts]), states)


@pytest.mark.parametrize("options", [{"keep": ("day",)}, {"case_id": "day"}])
def test_columns_of_folders_beside_those_of_csv(tmp_path: Path, options: dict[str, Any]) -> None:
    for day in ("1", "2"):
        (tmp_path / f"day={day}").mkdir()
        (tmp_path / f"day={day}" / "rows.csv").write_text("smoke\nyes\nno\n")
    (partition,) = open_evidence(tmp_path, NETWORK, **options).partitions(10)
    days = partition.case_ids if partition.kept is None else partition.kept["day"]
    assert days.to_pylist() == ["1", "1", "2", "2"]


def test_files_without_evidence_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("x,case_id\n1,2\n")
    open_evidence(tmp_path, NETWORK, ignore_extra=True)
    (record,) = caplog.records
    assert "a.csv: no column is evidence, so all rows have the same answers; columns are 'x'" in record.getMessage()
    (tmp_path / "b.csv").write_text("smoke;grade,x\nyes;low,1\n")
    with pytest.raises(EvidenceError, match=r"b.csv: found columns such as 'smoke;grade': is another separator"):
        open_evidence(tmp_path / "b.csv", NETWORK, ignore_extra=True)


def write_words(path: Path, rows: int, length: int, **options: Any) -> list[str]:
    """Write a file of text columns of 10 words, each of which stands there once, and return the words."""
    words = [f"{n} " + "x" * (length - 2) for n in range(10)]
    ids = pa.DictionaryArray.from_arrays(pa.array(np.arange(rows) % 10, pa.int32()), pa.array(words))
    states = pa.DictionaryArray.from_arrays(pa.array(np.arange(rows) % 2, pa.int8()), pa.array(["no", "yes"]))
    table = pa.table({"case_id": ids, NETWORK.variables[0].name: states})
    pq.write_table(table, path, store_schema=False, **options)
    return words


@pytest.mark.parametrize(
    "options", [{}, {"row_group_size": 700}, {"use_dictionary": False}, {"write_statistics": False, "version": "1.0"}]
)
def test_long_texts_that_repeat_are_written_out_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(columnar, "_TEXT_BYTES", 2**18)
    monkeypatch.setattr(columnar, "_BATCH_BYTES", 2**18)
    words = write_words(tmp_path / "t.parquet", 2000, 3000, **options)
    table = ParquetTable(tmp_path / "t.parquet")
    batches = list(table.batches([1, 0], plain=[0]))
    assert [batch.schema.field(1).type for batch in batches] == [pa.string()] * len(batches)
    assert max(batch.column(1).nbytes for batch in batches) < 2**18 + 4000
    assert [cell for batch in batches for cell in batch.column(1).to_pylist()] == words * 200
    assert [cell for batch in batches for cell in batch.column(0).to_pylist()] == ["no", "yes"] * 1000
    (part,) = read(tmp_path / "t.parquet", 5000)
    assert part.case_ids.to_pylist() == words * 200
    assert part.bytes > 6_000_000


def test_nulls_among_long_texts(tmp_path: Path) -> None:
    cells = [None, "x" * 5000, None, "y" * 5000] * 3
    pq.write_table(pa.table({"case_id": cells, NETWORK.variables[0].name: ["no"] * 12}), tmp_path / "t.parquet")
    assert read(tmp_path / "t.parquet")[0].case_ids.to_pylist() == cells


def test_a_small_file_of_far_longer_texts_is_refused(tmp_path: Path) -> None:
    # Some 300 KB that would become 4 GB.
    write_words(tmp_path / "t.parquet", 4000, 2**20)
    assert (tmp_path / "t.parquet").stat().st_size < 2**20
    with pytest.raises(
        EvidenceError, match=r"t\.parquet: column 'case_id' would become 4,19\d,\d{3},\d{3} bytes, allowed"
    ):
        read(tmp_path / "t.parquet")
    # Words of evidence stay words.
    network = small_network({"case_id": ["a", "b"]})
    (part,) = open_evidence(
        tmp_path / "t.parquet", network, ignore_extra=True, case_id=NETWORK.variables[0].name
    ).partitions(5000)
    assert len(part.batch.invalid) == 4000


def test_a_part_has_fewer_rows_of_long_texts(tmp_path: Path) -> None:
    write_words(tmp_path / "t.parquet", 1000, 5000)
    assert rows_of_part(tmp_path / "t.parquet", 2**19, {"case_id"}) == 2**15
    assert rows_of_part(tmp_path / "t.parquet", 2**14, {"case_id"}) == 2**14
    assert rows_of_part(tmp_path / "t.parquet", 2**19, {NETWORK.variables[0].name}) == 2**19
    (tmp_path / "t.csv").write_text("case_id\n")
    assert rows_of_part(tmp_path / "t.csv", 2**19, {"case_id"}) == 2**19


def test_case_ids_that_are_too_much_for_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_CARRIED", 10_000)
    rows = "".join(f"{n:0500},no\n" for n in range(40))
    text = f"case_id,{NETWORK.variables[0].name}\n{rows}"
    with pytest.raises(
        EvidenceError, match=r"case ids and columns to keep of one part take 20,\d{3} bytes and more, .*rows 5\)"
    ):
        read_text(tmp_path, text, rows=100)
    assert [part.batch.rows for part in read_text(tmp_path, text, rows=5)] == [5] * 8


def write_sorted_rows(path: Path, quoted: bool = False) -> None:
    """Write 4,000 rows, the first half with another state than the second one."""
    mark = '"' if quoted else ""
    # All of one length.
    rows = [f"{1_000 + i},{mark}yes{mark}" if i < 2_000 else f"{10_000 + i},{mark}no{mark}" for i in range(4_000)]
    text = "\n".join(["case_id,smoke", *rows, ""])
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.mark.parametrize("quoted", [False, True])
def test_rows_of_a_large_csv_file_are_extrapolated_from_places_over_it(
    tmp_path: Path, quoted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DelimitedTable, "_bytes_at_once", lambda self: 2_000)
    write_sorted_rows(tmp_path / "t.csv", quoted)
    found = sample_rows(tmp_path / "t.csv", NETWORK, 400)
    assert not found.is_counted
    assert found.total == pytest.approx(4_000, rel=0.05)
    (states,) = found.rows.batch.states.values()
    # A quarter of the rows from each of four places.
    assert np.bincount(states).tolist() == [200, 200]
    assert not found.rows.batch.invalid


def test_rows_of_other_files_are_counted_or_extrapolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("t.csv", "t.csv.gz"):
        write_sorted_rows(tmp_path / name)
    whole = open_evidence(tmp_path / "t.csv", NETWORK)
    assert sample_rows(tmp_path / "t.csv", NETWORK, 5_000).total == 4_000
    table = pa.table({"smoke": ["yes"] * 2_000 + ["no"] * 2_000})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=500)
    write_ipc_file(tmp_path / "t.arrow", table, 500)
    for name in ("t.parquet", "t.arrow"):
        found = sample_rows(tmp_path / name, NETWORK, 40)
        (states,) = found.rows.batch.states.values()
        assert (found.total, found.is_counted, np.bincount(states).tolist()) == (4_000, True, [20, 20])
    # A file that fits one piece is counted, and one that is zipped has no places.
    assert (sample_rows(tmp_path / "t.csv", NETWORK, 40).total, whole.columns) == (4_000, [0])
    zipped = sample_rows(tmp_path / "t.csv.gz", NETWORK, 40)
    assert (zipped.total, zipped.rows.batch.rows) == (4_000, 40)


def test_rows_of_a_folder_are_sampled_over_its_files(tmp_path: Path) -> None:
    for number in range(8):
        state = "yes" if number < 4 else "no"
        (tmp_path / f"{number}.csv").write_text("\n".join(["smoke", *[state] * 100, ""]))
    for apart in (False, True):
        found = sample_rows(tmp_path, NETWORK, 80, apart)
        (states,) = found.rows.batch.states.values()
        assert (found.total, found.is_counted, np.bincount(states).tolist()) == (800, True, [40, 40])
