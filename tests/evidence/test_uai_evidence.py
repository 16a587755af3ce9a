"""UAI evidence files: both forms, and what is neither."""

from __future__ import annotations

import gzip
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from helpers.evidence_reference import assert_same, small_network
from hypothesis import given
from hypothesis import strategies as st
from junctor.evidence.batch import UNOBSERVED
from junctor.evidence.encode import EncodedPartition, concatenate
from junctor.evidence.read import open_evidence
from junctor.model.errors import EvidenceError
from junctor.model.network import Network

NETWORK = small_network({f"v{i}": ["a", "b", "c"][: 2 + i % 2] for i in range(6)})


def read(path: Path, text: str | bytes, network: Network = NETWORK, **options: Any) -> EncodedPartition:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    source = open_evidence(path, network, **options)
    return concatenate(list(source.partitions(1000)), source.case_id_type, 0)


def cases(encoded: EncodedPartition) -> list[dict[int, int]]:
    columns = {variable: codes.tolist() for variable, codes in encoded.batch.states.items()}
    return [
        {variable: codes[row] for variable, codes in columns.items() if codes[row] != UNOBSERVED}
        for row in range(encoded.batch.rows)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", [{}]),
        ("0\n", [{}]),
        (" 0 \n\n", [{}]),
        ("1\n0", [{}]),
        ("3\n0\n0 0\n", [{}, {}, {}]),
        ("2 0 1 3 2", [{0: 1, 3: 2}]),
        ("2\n0 1\n3 2\n", [{0: 1, 3: 2}]),
        ("\ufeff2 0 1 3 2\r\n", [{0: 1, 3: 2}]),
        ("1 2 0 1 3 2", [{0: 1, 3: 2}]),
        ("1\n2 0 1 3 2\n", [{0: 1, 3: 2}]),
        ("2\n1 0 1\n2 3 2 1 0", [{0: 1}, {3: 2, 1: 0}]),
        # Both forms use up all numbers:
        ("2 0 1 1 0", [{0: 1, 1: 0}]),
        ("2\n0\n1 1 0", [{}, {1: 0}]),
        ("2 0 1 0 1", [{}, {0: 1}]),  # as one case it would observe variable 0 twice
        ("2\n0\n1 5 2", [{}, {5: 2}]),
        ("2 0 1 3 2\n", [{0: 1, 3: 2}]),
        ("2 0 9 1 0", [{0: 9, 1: 0}]),  # neither is right, and this says so in the row
    ],
)
def test_both_forms(tmp_path: Path, text: str, expected: list[dict[int, int]]) -> None:
    encoded = read(tmp_path / "t.evid", text)
    assert cases(encoded) == ([{}] if encoded.batch.invalid else expected)
    assert encoded.case_ids.to_pylist() == list(range(len(expected)))
    assert open_evidence(tmp_path / "t.evid", NETWORK).columns == sorted({v for case in expected for v in case})


@given(st.lists(st.dictionaries(st.integers(0, 5), st.integers(0, 1)), max_size=6), st.integers(1, 7), st.booleans())
def test_several_cases_in_partitions_of_any_size(
    tmp_path: Path, drawn: list[dict[int, int]], rows: int, gzipped: bool
) -> None:
    lines = [" ".join(map(str, [len(case), *(n for pair in case.items() for n in pair)])) for case in drawn]
    text = "\n".join([str(len(drawn)), *lines]).encode()
    path = tmp_path / ("t.uai.evid.gz" if gzipped else "t.uai.evid")
    path.write_bytes(gzip.compress(text) if gzipped else text)
    source = open_evidence(path, NETWORK)
    parts = list(source.partitions(rows))
    expected = drawn or [{}]  # "0" is one case, not no cases
    assert [part.batch.rows for part in parts] == [
        min(rows, len(expected) - first) for first in range(0, len(expected), rows)
    ]
    whole = concatenate(parts, source.case_id_type, 0)
    assert cases(whole) == expected
    assert_same(whole, read(path.with_suffix(".evid"), text))


def test_rows_that_cannot_be(tmp_path: Path) -> None:
    text = "4\n1 0 2\n1 1 2\n3 2 0 3 7 2 1\n0\n"
    encoded = read(tmp_path / "t.evid", text)
    assert encoded.batch.invalid == {
        0: "variable 0 ('v0'): unknown state 2, expected 0 to 1",
        2: "variable 3 ('v3'): unknown state 7, expected 0 to 2; variable 2 ('v2') is observed twice",
    }
    assert cases(encoded) == [{}, {1: 2}, {}, {}]
    with pytest.raises(EvidenceError, match=r"t\.evid:2:1: row 1: variable 0 \('v0'\): unknown state 2, expected 0"):
        read(tmp_path / "t.evid", text, strict=True)
    with pytest.raises(EvidenceError, match=r"t\.evid:4:1: row 3: variable 3"):
        read(tmp_path / "t.evid", text.replace("1 0 2", "1 0 1"), strict=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.evid: the file is empty, expected numbers (0 is a case without evidence)"),
        (" \n", "t.evid: the file is empty"),
        ("1 v0 1", "t.evid:1:3: found 'v0', expected numbers of variables and states"),
        ("2\n0 1\n 1 1.0", "t.evid:3:4: found '1.0', expected numbers"),
        ("1 0 -1", "t.evid:1:5: found '-1', expected numbers"),
        ("1 0 12345678901234567890", "t.evid:1:5: found '12345678901234567890', expected numbers"),
        ("1 0 \xff", "t.evid:1:5: found"),
        ("2 0 1 1", "t.evid:1:1: found 3 numbers after the first, 2: expected either 4 (one case: a variable and its"),
        ("\n 999999999 1 0 1", "t.evid:2:2: found 3 numbers after the first, 999999999: expected either"),
        ("1\n", "t.evid:1:1: found 0 numbers after the first, 1"),
        ("1 6 0", "t.evid:1:3: found variable 6, expected 0 to 5"),
        ("2\n0\n2 1 0\n 7 0\n", "t.evid:4:2: found variable 7, expected 0 to 5"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EvidenceError) as raised:
        read(Path("t.evid"), text)
    assert str(raised.value).startswith(message)


def test_it_has_no_case_ids(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="UAI evidence has no columns, so none for the case ids"):
        read(tmp_path / "t.evid", "0", case_id="id")
    with pytest.raises(EvidenceError, match="UAI evidence has no folders"):
        open_evidence(tmp_path, NETWORK, evidence_format="evid")


@given(st.text("0123456789 \n-x\x00é", max_size=30) | st.lists(st.integers(0, 4)).map(lambda n: " ".join(map(str, n))))
def test_any_text_is_cases_or_an_error(tmp_path: Path, text: str) -> None:
    for strict in (False, True):
        with suppress(EvidenceError):
            encoded = read(tmp_path / "t.evid", text, strict=strict)
            assert len(encoded.case_ids) == encoded.batch.rows
            for variable, codes in encoded.batch.states.items():
                assert codes.min() >= UNOBSERVED
                assert codes.max() < NETWORK.cardinalities[variable]


def test_the_files_of_the_competition(shared: Path) -> None:
    files = [*shared.glob("networks/uai2014/**/*.evid"), *shared.glob("hmm/casino/*.evid")]
    assert files
    for path in files:
        numbers = list(map(int, path.read_text().split()))
        # Some files name the number of samples first.
        numbers = numbers[1 - len(numbers) % 2 :]
        expected = dict(zip(numbers[1::2], numbers[2::2], strict=True))
        assert len(expected) == numbers[0]
        most = max([0, *expected])
        network = small_network({f"v{i}": [f"s{j}" for j in range(20)] for i in range(most + 1)})
        source = open_evidence(path, network)
        (part,) = source.partitions(10)
        assert cases(part) == [expected]
        assert not part.batch.invalid


@pytest.mark.parametrize("name", ["t.evid", "t.evid.gz"])
def test_files_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    # A small compressed file may hold a gigabyte of zeros.
    monkeypatch.setattr("junctor.runtime.files.MAX_BYTES", 2**21)
    text = b"0 " * 2**21
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    with pytest.raises(EvidenceError, match="the file holds more than the 2,097,152 bytes that are allowed"):
        open_evidence(tmp_path / name, NETWORK)
