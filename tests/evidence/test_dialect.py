"""How tables of text are written: whatever separates columns, whichever bytes they are, and what is refused."""

from __future__ import annotations

import csv
import gzip
import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.encoding import encode_table
from helpers.evidence_reference import DrawnTable, assert_same, drawn_tables, small_network
from hypothesis import assume, example, given
from hypothesis import strategies as st
from junctor.evidence import dialect
from junctor.evidence.batch import UNOBSERVED
from junctor.evidence.delimited import DelimitedTable
from junctor.evidence.encode import EncodedPartition, concatenate
from junctor.evidence.read import open_evidence
from junctor.model.errors import EvidenceError

NETWORK = small_network()
U = UNOBSERVED
MARK = "// ~->[CASE-1]->~\n"


def read(path: Path, rows: int = 1000, threads: int = 1, **options: Any) -> EncodedPartition:
    source = open_evidence(path, NETWORK, **options)
    return concatenate(list(source.partitions(rows, threads)), source.case_id_type, 0)


def read_text(folder: Path, name: str, text: str | bytes, **options: Any) -> EncodedPartition:
    data = text.encode() if isinstance(text, str) else text
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return read(folder / name, **options)


def refusal(folder: Path, name: str, text: str | bytes, **options: Any) -> str:
    with pytest.raises(EvidenceError) as raised:
        read_text(folder, name, text, **options)
    return str(raised.value).removeprefix(f"{folder}/")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "smoke;grade\nyes;\n;high\n"),
        ("t.csv", "\ufeffsmoke;grade\r\nyes;\r\n;high\r\n"),
        ("t.csv", '"smoke";"grade"\n"yes";""\n"";"high"\n'),
        ("t.csv", "smoke\tgrade\nyes\t\n\thigh\n"),
        ("t.csv", "smoke|grade\nyes|\n|high\n"),
        ("t.csv", "sep=;\nsmoke;grade\nyes;\n;high\n"),
        ("t.csv", '"sep=;"\r\nsmoke;grade\r\nyes;\r\n;high\r\n'),
        ("t.csv", "SEP=,\nsmoke,grade\nyes,\n,high\n"),
        ("t.csv", "sep=\t\nsmoke\tgrade\nyes\t\n\thigh\n"),
        ("t.csv", "sep=:\nsmoke:grade\nyes:\n:high\n"),
        ("t.tsv", "smoke,grade\nyes,\n,high\n"),
        ("t.txt", "smoke,grade\nyes,\n,high\n"),
        ("t.txt", "smoke;grade\nyes;\n;high\n"),
        ("t.tab", "smoke\tgrade\nyes\t\n\thigh\n"),
        # GeNIe.
        ("t.txt", "smoke grade\nyes *\n* high\n"),
        ("t.csv", "  smoke   grade  \n\nyes\t *\n * \t high \n\n"),
        # Netica, and what writes files for it.
        ("t.cas", f"{MARK}smoke\tgrade\nyes\t*\n*\thigh\n"),
        ("t.cas", f"{MARK}\nsmoke \t grade\n yes   *\n*\thigh\n"),
        ("t.cas", f"{MARK}\nsmoke\tgrade\t\nyes\t*\t\n*\thigh\t\n"),
        ("t.csv", f"{MARK}\nsmoke,grade\nyes,*\n*,high\n"),
        ("t.cas", f'// the "first one, of 2026\n{MARK}smoke\tgrade\nyes\t*\n*\thigh\n'),
        # R: write.table, with quotes and without, with other separators, with names of rows, and write.csv.
        ("t.txt", '"smoke" "grade"\n"1" "yes" NA\n"2" NA "high"\n'),
        ("t.txt", "smoke grade\n1 yes NA\n2 NA high\n"),
        ("t.csv", '"smoke" "grade"\n"17" "yes" NA\n"4" NA "high"\n'),
        ("t.csv", '"smoke";"grade"\n"1";"yes";NA\n"2";NA;"high"\n'),
        ("t.csv", '"smoke","grade"\n"1","yes",NA\n"2",NA,"high"\n'),
        ("t.csv", '"","smoke","grade"\n"1","yes",NA\n"2",NA,"high"\n'),
        ("t.txt", '"" "smoke" "grade"\n"1" "yes" NA\n"2" NA "high"\n'),
        # pandas.
        ("t.csv", ",smoke,grade\n0,yes,\n1,,high\n"),
        ("t.csv", ";smoke;grade\n0;yes;\n1;;high\n"),
        # A separator at the end of lines.
        ("t.csv", "smoke,grade,\nyes,,\n,high,\n"),
        ("t.csv", "smoke;grade\nyes;;\n;high;\n"),
        # Comments.
        ("t.csv", "# by hand, 2026\n#\n\nsmoke,grade\nyes,\n,high\n"),
        ("t.txt", "# it's 5\" wide\nsmoke grade\nyes NA\nNA high\n"),
        ("t.csv", "\n\n# smoke, grade\nsmoke,grade\nyes,\n,high\n"),
        # What Excel calls Unicode text, and other UTF-16.
        ("t.txt", "\ufeffsmoke\tgrade\r\nyes\t\r\n\thigh\r\n".encode("utf-16-le")),
        ("t.csv", "\ufeffsmoke,grade\r\nyes,\r\n,high\r\n".encode("utf-16-be")),
        ("t.csv", "\ufeffsep=;\r\nsmoke;grade\r\nyes;\r\n;high\r\n".encode("utf-16-le")),
        ("t.txt", "smoke grade\nyes *\n* high\n".encode("utf-16")),
        ("t.csv", "# old\rsmoke;grade\ryes;\r;high\r"),
    ],
)
def test_one_table_in_many_dialects(tmp_path: Path, name: str, text: str | bytes) -> None:
    for ending in ("", ".gz"):
        found = read_text(tmp_path, name + ending, text)
        assert {v: states.tolist() for v, states in found.batch.states.items()} == {0: [0, U], 1: [U, 2]}
        assert not found.batch.invalid
        assert found.case_ids.to_pylist() == [0, 1]


@pytest.mark.parametrize(
    ("separator", "text"),
    [
        (";", "smoke;grade|,\nyes;low\n"),
        (":", "smoke:grade|,\nyes:low\n"),
        ("\t", "smoke\tgrade|,\nyes\tlow\n"),
        ("tab", "smoke\tgrade|,\nyes\tlow\n"),
        ("\\t", "smoke\tgrade|,\nyes\tlow\n"),
        ("blanks", "smoke\t grade|,\n yes   low\n"),
        (" ", "smoke\t grade|,\n yes   low\n"),
        (";", "sep=|\nsmoke;grade|,\nyes;low\n"),
    ],
)
def test_a_separator_may_be_named(tmp_path: Path, separator: str, text: str) -> None:
    for name in ("t.csv", "t.tsv.gz", "t.txt"):
        found = read_text(tmp_path, name, text, separator=separator, mapping={"columns": {"grade|,": "grade"}})
        assert {v: states.tolist() for v, states in found.batch.states.items()} == {0: [0], 1: [0]}


@pytest.mark.parametrize("separator", ["", ";;", "semicolon", "x", "1", '"', "\n", "é"])
def test_what_separates_nothing_is_refused(tmp_path: Path, separator: str) -> None:
    expected = f"found the separator {separator!r}, expected a character such as ';', or one of tab and blanks"
    assert refusal(tmp_path, "t.csv", "smoke\n", separator=separator).startswith(expected)


def test_a_separator_is_of_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"smoke": ["yes"]}), tmp_path / "t.parquet")
    with pytest.raises(EvidenceError, match=r"t.parquet: found the separator ';', which parquet has not: leave it out"):
        read(tmp_path / "t.parquet", separator=";")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.txt", "smoke;grade|odd\nyes;low|NA\n", "t.txt:1: columns may be separated by ';' or by '|': name what"),
        (
            "t.txt",
            "\n\na b\tc\nd e\tf\n",
            "t.txt:3: columns may be separated by tabs or by blanks: name what separates",
        ),
        # Names of rows are all different, and more than two or numbers: else the last name may be missing.
        ("t.csv", "smoke,grade\nyes,low,1\nno,mid,2\n", "t.csv:2: found 3 cells, expected 2 as in the header"),
        ("t.csv", "smoke,grade\nyes,low,1\nno,mid,2\nyes,low,3\n", "t.csv:2: found 3 cells, expected 2 as in the hea"),
        # Either names of rows, or a separator at the end of lines.
        ("t.csv", "number,one\n1,only,\n2,only,\n", "t.csv:2: found 3 cells, expected 2 as in the header"),
        ("t.csv", "smoke;grade\nyes;low\nno\n", "t.csv:3: found 1 cells, expected 2 as in the header"),
        ("t.txt", "smoke grade\nyes low\nyes\n", "t.txt:3: found 1 cells, expected 2 as in the header"),
        ("t.txt", "smoke great\nyes\n", "t.txt: unknown column 'smoke great', did you mean 'smoke'?"),
        (
            "t.csv",
            ",smoke\nyes,no\nno,no\nyes,yes\n",
            "t.csv: column 1 has no name, expected a variable of the network",
        ),
        ("t.csv", "smoke,,grade\nyes,,low\n", "t.csv: column 2 has no name, expected a variable of the network"),
        ("t.csv", "smoke,grade,\nyes,low,x\n", "t.csv: column 3 has no name, expected a variable of the network"),
        ("t.csv", "#smoke,grade\nyes,low\n", "t.csv: unknown column '#smoke', did you mean 'smoke'?"),
        ("t.csv", "smoke,grade\nyes,low\n# end\n", "t.csv:3: found 1 cells, expected 2 as in the header"),
        ("t.csv", "smoke;grade;smoke\nyes;low;no\n", "t.csv: column 'smoke' (number 3) says again what column 'smoke'"),
        ("t.csv", "IDnum,case_id,smoke\n1,2,no\n", "t.csv: column 'case_id' (number 2) says again what column 'IDnum'"),
        ("t.csv", "smoke:grade\nyes:low\n", "t.csv: unknown column 'smoke:grade', did you mean 'smoke'"),
        (
            "t.csv",
            b"smoke;gr\xe4de\n",
            "t.csv:1:9: found the byte 0xe4, which is not UTF-8 text: convert the file to U",
        ),
        (
            "t.csv",
            "smoke;grade\n".encode("utf-16-le"),
            "t.csv:1: found a NUL character, which no text has: is it UTF-16",
        ),
        (
            "t.csv",
            b"\xff\xfes\0m\0o\0\0\xd8\n\0",
            "t.csv: damaged, or not of its format: 'utf-16-le' codec can't decode",
        ),
        ("t.csv", "sep=;\n", "t.csv: the file is empty, expected a header with names of variables"),
        ("t.cas", MARK, "t.cas: the file is empty, expected a header with names of variables"),
    ],
)
def test_what_may_be_wrong_is_refused(tmp_path: Path, name: str, text: str | bytes, message: str) -> None:
    assert refusal(tmp_path, name, text).startswith(message)


def test_names_of_the_network_tell_what_separates_them(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("smoke a\tb\nyes no\tno\n")
    states = ["yes", "no"]
    network = small_network({"smoke": states, "a": states, "b": states})
    (part,) = open_evidence(tmp_path / "t.txt", network).partitions(9)
    assert [part.batch.states[v].tolist() for v in range(3)] == [[0], [1], [1]]
    network = small_network({"smoke a": ["yes no"], "b": states})
    (part,) = open_evidence(tmp_path / "t.txt", network).partitions(9)
    assert [part.batch.states[v].tolist() for v in range(2)] == [[0], [1]]


@pytest.mark.parametrize("name", ["Visit to Asia", "a;b", "a|b"])
def test_a_header_that_is_a_name_is_one_column(tmp_path: Path, name: str) -> None:
    for header in (name, f'"{name}"'):
        (tmp_path / "t.csv").write_text(f"{header}\nno visit yet\n\nyes;no|1\n")
        network = small_network({name: ["no visit yet", "yes;no|1"]})
        (part,) = open_evidence(tmp_path / "t.csv", network).partitions(9)
        assert part.batch.states[0].tolist() == [0, U, 1]
        mapping = {"columns": {name: "x"}}
        (part,) = open_evidence(tmp_path / "t.csv", small_network({"x": ["no visit yet"]}), mapping=mapping).partitions(
            9
        )
        assert part.batch.states[0].tolist() == [0, U, U]


@pytest.mark.parametrize("name", ["t.cas", "t.parquet"])
def test_numbers_of_netica_are_case_ids(tmp_path: Path, name: str) -> None:
    if name == "t.cas":
        found = read_text(tmp_path, name, f"{MARK}IDnum smoke\n7 yes\n8 *\n")
        assert found.case_ids.to_pylist() == ["7", "8"]
        assert read(tmp_path / name, case_id="IDnum").case_ids.to_pylist() == ["7", "8"]
    else:
        pq.write_table(pa.table({"IDnum": [7, 8], "smoke": ["yes", "*"]}), tmp_path / name)
        found = read(tmp_path / name)
        assert found.case_ids.to_pylist() == [7, 8]
    assert found.batch.states[0].tolist() == [0, U]


def test_numbers_of_cases_are_weights_and_no_evidence(tmp_path: Path) -> None:
    text = f"{MARK}NumCases smoke\n7 yes\n"
    assert refusal(tmp_path, "t.cas", text).startswith(
        "t.cas: unknown column 'NumCases': no variable of the network has"
    )
    assert read(tmp_path / "t.cas", keep=["NumCases"]).batch.states[0].tolist() == [0]


def test_quotes_hold_blanks_together(tmp_path: Path) -> None:
    text = '"case_id" "smoke"\n" a  b " "yes"\n"c\n  d"  "no" \n\t"e ""f"""\tyes\n'
    for name in ("t.txt", "t.txt.gz"):
        found = read_text(tmp_path, name, text)
        assert found.case_ids.to_pylist() == [" a  b ", "c\n  d", 'e "f"']
        assert found.batch.states[0].tolist() == [0, 1, 0]


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    text = f"{MARK}\n# by hand\nsmoke grade\nyes low\n\nno middle\n"
    message = "t.cas:7: row 2: column 'grade': unknown state 'middle', did you mean 'mid'?"
    for data in (text, text.encode("utf-16"), text.replace(" ", ",")):
        assert refusal(tmp_path, "t.cas", data, strict=True).startswith(message)
    for separator in " ", ";", "\t":
        data = f"{text}yes\n".replace(" ", separator)
        assert refusal(tmp_path, "t.cas", data) == "t.cas:8: found 1 cells, expected 2 as in the header"
    assert refusal(tmp_path, "t.cas", f"{text}yes\n") == "t.cas:8: found 1 cells, expected 2 as in the header"


def written(table: DrawnTable, separator: str, encoding: str) -> bytes:
    text = io.StringIO(newline="")
    # Cells with blanks, and those that are empty, are in quotes where blanks separate.
    quoting = csv.QUOTE_ALL if separator == " " else csv.QUOTE_MINIMAL
    csv.writer(text, delimiter=separator, quoting=quoting, lineterminator="\n").writerows(table.texts())
    return text.getvalue().encode(encoding)


@given(
    drawn_tables(lists=False, min_rows=1),
    st.sampled_from([";", "\t", "|", " "]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    st.integers(1, 30),
)
def test_every_dialect_equals_the_table(
    tmp_path: Path, table: DrawnTable, separator: str, encoding: str, size: int
) -> None:
    assume(table.columns)
    expected = encode_table(table.arrow(), NETWORK)
    path = tmp_path / "t.txt"
    path.write_bytes(written(table, separator, encoding))
    with pytest.MonkeyPatch.context() as patch:
        for threads in (1, 2):
            assert_same(read(path, 3, threads, separator=separator), expected, reasons=False)
            # Pieces of any size.
            patch.setattr(dialect, "_BLOCK_BYTES", size)
            patch.setattr(DelimitedTable, "_bytes_at_once", lambda self: size)


@given(
    text=st.lists(st.sampled_from([*'"\n\r \t', "  ", "yes", "no", '"a b"', '""', "\r\n", "1 yes\n"]), max_size=40).map(
        "".join
    )
)
@example('a" b\nc "d yes\n')
@example('1 "yes\n2 no"\n')
def test_blocks_change_nothing_where_blanks_separate(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(f"case_id smoke\n{text}".encode())

    def outcome() -> Any:
        try:
            found = read(path, 7, separator=" ")
        except EvidenceError as error:
            return str(error)
        return (
            found.case_ids.to_pylist(),
            {v: states.tolist() for v, states in found.batch.states.items()},
            found.batch.invalid,
        )

    whole = outcome()
    with pytest.MonkeyPatch.context() as patch:
        # Lines are cut nowhere.
        patch.setattr(dialect, "_BLOCK_BYTES", 1 + max(map(len, text.split("\n"))))
        assert outcome() == whole


def test_large_files_are_read_in_pieces(tmp_path: Path) -> None:
    rows = 60_000
    text = "case_id  smoke grade\n" + "".join(f'"c {i}"   yes  *\n' for i in range(rows))
    for data in (text.encode(), text.encode("utf-16")):
        (tmp_path / "t.txt").write_bytes(data)
        parts = list(open_evidence(tmp_path / "t.txt", NETWORK).partitions(20_000, 2))
        assert [part.batch.rows for part in parts] == [20_000] * 3
        assert parts[2].case_ids[-1].as_py() == f"c {rows - 1}"
        assert all((part.batch.states[0] == 0).all() and (part.batch.states[1] == U).all() for part in parts)


def test_files_of_a_folder_may_be_in_different_dialects(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("smoke,grade\nyes,low\n")
    (tmp_path / "b.csv").write_text("grade;smoke\r\nmid;no\r\n")
    (tmp_path / "c.txt").write_bytes("smoke\tgrade\n\thigh\n".encode("utf-16"))
    (tmp_path / "d.cas").write_text(f"{MARK}smoke grade\nyes *\n")
    (tmp_path / "e.csv.gz").write_bytes(gzip.compress(b'"smoke" "grade"\n"1" "no" NA\n'))
    found = read(tmp_path)
    assert found.batch.states[0].tolist() == [0, 1, U, 0, 1]
    assert found.batch.states[1].tolist() == [0, 1, 2, U, U]


def test_files_of_a_folder_may_have_different_types(tmp_path: Path) -> None:
    network = small_network({"flag": ["0", "1"], "grade": ["low", "mid", "high"]})
    words = pa.array(["low", None]).dictionary_encode()
    columns: list[tuple[Any, Any]] = [
        (pa.array([1, 0], pa.int8()), ["low", None]),
        (pa.array([True, None]), pa.array(["high", "low"]).dictionary_encode()),
        (pa.array(["1", "F"]), words.cast(pa.dictionary(pa.int8(), pa.large_string()))),
        (pa.array([1.0, np.nan]), pa.nulls(2)),
        (pa.nulls(2), pa.array([[0.0, 1.0, 1.0], None])),
        (pa.array([Decimal(1), Decimal(0)], pa.decimal128(5, 2)), pa.array([2, 1])),
    ]
    for number, (flag, grade) in enumerate(columns):
        pq.write_table(pa.table({"flag": flag, "grade": grade}), tmp_path / f"{number}.parquet")
    (tmp_path / "6.csv").write_text("flag;grade\nTRUE;mid\n0;.\n")
    source = open_evidence(tmp_path, network)
    found = concatenate(list(source.partitions(3)), source.case_id_type, 0)
    assert found.batch.states[0].tolist() == [1, 0, 1, U, 1, 0, 1, U, U, U, 1, 0, 1, 0]
    assert found.batch.states[1].tolist() == [0, U, 2, 0, 0, U, U, U, U, U, 2, 1, 1, U]
    assert found.batch.likelihoods[1].rows.tolist() == [8]
    assert not found.batch.invalid


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0,25", 0.25),
        (" 1,5 ", 1.5),
        ("0,125", 0.125),
        (",5", 0.5),
        ("12,3456", 12.3456),
        ("2,5e-1", 0.25),
        ("1250,125", 1250.125),
    ],
)
def test_numbers_may_have_a_decimal_comma(tmp_path: Path, text: str, number: float) -> None:
    found = read_text(tmp_path, "t.csv", f"smoke=yes;smoke=no\n{text};1\n")
    assert found.batch.likelihoods[0].values.tolist() == [[number, 1.0]]
    mapping = {"variables": {"grade": {"edges": [0, number, 1e9], "labels": ["low", "high"]}}}
    for cells, expected in ((f"{text}\n0\n", [2, 0]), (f"-0,1\n{text}\n", [U, 2])):
        found = read_text(
            tmp_path,
            "t.csv",
            "case_id;grade\n" + "".join(f"a;{each}\n" for each in cells.split("\n")[:2]),
            mapping=mapping,
        )
        assert found.batch.states[1].tolist() == expected


@pytest.mark.parametrize("text", ["1,250", "-12,500", "999,999"])
def test_what_may_be_thousands_is_told(tmp_path: Path, text: str) -> None:
    found = read_text(tmp_path, "t.csv", f"smoke=yes;smoke=no\n{text};1\n")
    expected = (
        f"column 'smoke': likelihood of 'yes': found {text!r}, expected a number (its comma may be of decimals or of"
    )
    assert found.batch.invalid[0].startswith(expected)
    mapping = {"variables": {"grade": {"edges": [0, 1e9], "labels": ["low"]}}}
    found = read_text(tmp_path, "t.csv", f"case_id;grade\n1;{text}\n", mapping=mapping)
    assert found.batch.invalid[0].endswith("(its comma may be of decimals or of thousands)")


@pytest.mark.parametrize("text", ["1,2,3", "1.5,2", "a,b", ",", "1,"])
def test_other_commas_are_of_no_number(tmp_path: Path, text: str) -> None:
    found = read_text(tmp_path, "t.csv", f"smoke=yes;smoke=no\n{text};1\n")
    assert f"found {text!r}, expected a number" in found.batch.invalid[0]
