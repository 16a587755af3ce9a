"""Proposed mappings: names of intervals, messy data, and what is covered."""

from __future__ import annotations

import tomllib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from helpers.evidence_reference import small_network
from hypothesis import given
from hypothesis import strategies as st
from junctor.evidence.propose import intervals, propose
from junctor.evidence.read import open_evidence
from junctor.model.errors import EvidenceError
from pyarrow import parquet

NETWORK = small_network(
    {
        "Smoker": ["yes", "no"],
        "age": ["0-17", "18-64", "65+"],
        "pressure": ["<5", "[5,10)", ">=10"],
        "Visit_Asia": ["visit", "no visit"],
        "unseen": ["a", "b"],
    }
)
INF = float("inf")


@pytest.mark.parametrize(
    ("states", "edges", "labels"),
    [
        (["0-10", "10-20"], [0, 10, 20], ["0-10", "10-20"]),
        (["10-19", "0-9", "20+"], [0, 10, 20, INF], ["0-9", "10-19", "20+"]),
        (["<5", "[5,10)", ">=10"], [-INF, 5, 10, INF], ["<5", "[5,10)", ">=10"]),
        (["0", "1", "2-5", ">=6"], [0, 1, 2, 6, INF], ["0", "1", "2-5", ">=6"]),
        (["-5 to 0", "0 to 2.5"], [-5, 0, 2.5], ["-5 to 0", "0 to 2.5"]),
        (["(-inf,0)", "[0,inf)", "unknown"], [-INF, 0, INF], ["(-inf,0)", "[0,inf)"]),
        (["<=5", ">5"], [-INF, np.nextafter(5, 6), INF], ["<=5", ">5"]),
        (["(0,1]", "(1,2]"], [np.nextafter(0, 1), np.nextafter(1, 2), np.nextafter(2, 3)], ["(0,1]", "(1,2]"]),
    ],
)
def test_names_of_intervals(states: list[str], edges: list[float], labels: list[str]) -> None:
    assert intervals(states) == (edges, labels)


@pytest.mark.parametrize(
    "states", [["yes", "no"], ["0", "1", "2"], ["0-10", "5-20"], ["0-10", "12-20"], ["<5"], ["10-0", "0-10"], ["a-b"]]
)
def test_names_that_are_no_bins(states: list[str]) -> None:
    assert intervals(states) is None


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=8, unique=True).map(sorted))
def test_bounds_in_brackets_are_read_as_written(bounds: list[float]) -> None:
    names = [f"[{left!r},{right!r})" for left, right in pairwise(bounds)]
    found = intervals([*names, f">={bounds[-1]!r}"])
    assert found == ([*bounds, INF], [*names, f">={bounds[-1]!r}"])


def messy(folder: Path) -> Path:
    rows = 400
    table = {
        "SMOKER ": ["Yes", "NO", "y", "unknown", "nope!"] * 80,
        "Age": [str(i % 90) if i % 10 else "n/a" for i in range(rows)],
        "presure": [str(i / 20) for i in range(rows)],
        "visit asia": ["Visit", "novisit", "visitt", ""] * 100,
        "comment": ["x"] * rows,
        "case_id": [f"c{i}" for i in range(rows)],
    }
    lines = [",".join(table), *(",".join(row) for row in zip(*table.values(), strict=True))]
    (folder / "messy.csv").write_text("\n".join(lines) + "\n")
    return folder / "messy.csv"


def test_a_messy_table(tmp_path: Path) -> None:
    path = messy(tmp_path)
    proposal = propose(NETWORK, str(path))
    assert proposal.content["ignore"] == ["comment"]
    assert {name.strip(): to for name, to in proposal.content["columns"].items()} == {
        "SMOKER": "Smoker",
        "Age": "age",
        "presure": "pressure",
        "visit asia": "Visit_Asia",
    }
    variables = proposal.content["variables"]
    assert variables["Smoker"] == {"missing": ["unknown"], "states": {"Yes": "yes", "NO": "no", "y": "yes"}}
    # "n/a" is missing without a word.
    assert variables["age"] == {"edges": [0, 18, 65, INF], "labels": ["0-17", "18-64", "65+"]}
    assert variables["Visit_Asia"]["states"] == {"Visit": "visit", "novisit": "no visit", "visitt": "visit"}
    assert proposal.unobserved == ("unseen",)
    told = {each.column.strip(): each for each in proposal.columns}
    assert (told["SMOKER"].rows, told["SMOKER"].known, told["SMOKER"].missing) == (400, 240, 80)
    assert told["SMOKER"].unknown == (("nope!", 80),)
    assert told["SMOKER"].covered == 0.8
    assert told["presure"].how == "nearest"
    assert told["Age"].how == "case"
    assert told["case_id"].how == "case id"
    # The text says the same, and guesses are marked.
    text = proposal.to_toml()
    assert tomllib.loads(text) == proposal.content
    assert '"y" = "yes"  # guess' in text or 'y = "yes"  # guess' in text
    assert 'Yes = "yes"\n' in text
    (tmp_path / "map.toml").write_text(text)
    parts = list(open_evidence(path, NETWORK, mapping=tmp_path / "map.toml").partitions(1000))
    assert len(parts[0].batch.invalid) == 80
    ages = parts[0].batch.states[NETWORK.index["age"]]
    expected = [np.searchsorted([0, 18, 65], i % 90, side="right") - 1 if i % 10 else -1 for i in range(400)]
    assert ages.tolist() == expected


def test_a_table_that_fits_needs_no_mapping(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"Smoker": ["yes", None], "age": ["65+", "0-17"]}), tmp_path / "e.parquet")
    proposal = propose(NETWORK, str(tmp_path / "e.parquet"))
    assert proposal.content == {}
    assert [each.covered for each in proposal.columns] == [1, 1]
    assert tomllib.loads(proposal.to_toml()) == {}


def test_words_for_true_are_guessed_to_be_the_state_that_is(tmp_path: Path) -> None:
    network = small_network({"leak": ["0", "1"], "pest": ["absent", "present"], "both": ["on", "yes", "no"]})
    columns = {"leak": ["Yes", "NO", "TRUE"], "pest": ["TRUE", "FALSE", "+"], "both": ["positive", "off", "no"]}
    parquet.write_table(pa.table(columns), tmp_path / "e.parquet")
    proposal = propose(network, str(tmp_path / "e.parquet"))
    assert proposal.content["variables"] == {
        "leak": {"states": {"Yes": "1", "NO": "0"}},
        "pest": {"states": {"TRUE": "present", "FALSE": "absent", "+": "present"}},
        "both": {"states": {"off": "no"}},
    }
    assert proposal.guesses == {("leak", "Yes"), ("leak", "NO"), ("both", "off")} | {
        ("pest", text) for text in ("TRUE", "FALSE", "+")
    }


def test_numbers_of_parquet_go_into_bins(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"age": pa.array([3, None, 70, -1], pa.int16())}), tmp_path / "e.parquet")
    proposal = propose(NETWORK, str(tmp_path / "e.parquet"))
    assert proposal.content["variables"]["age"]["edges"] == [0, 18, 65, INF]
    (told,) = proposal.columns
    assert (told.known, told.missing, told.unknown) == (2, 1, (("-1", 1),))


def test_infinite_numbers_go_into_bins_and_are_like_no_state(tmp_path: Path) -> None:
    network = small_network({"v": ["(-inf,0]", "(0,inf)"]})
    path = tmp_path / "e.csv"
    path.write_text("v\n-inf\ninf\n-1\n1\n2\n")
    content = tomllib.loads(propose(network, str(path)).to_toml())
    assert content["variables"] == {"v": {"edges": [-INF, 5e-324, INF], "labels": ["(-inf,0]", "(0,inf)"]}}


def test_names_that_need_quotes(tmp_path: Path) -> None:
    network = small_network({'a "b".c': ["x\\y", "é ü"]})
    parquet.write_table(pa.table({'A "B".C': ["X\\Y", "É ü", 'q"\t']}), tmp_path / "e.parquet")
    proposal = propose(network, str(tmp_path / "e.parquet"))
    assert tomllib.loads(proposal.to_toml()) == proposal.content
    assert proposal.content["columns"] == {'A "B".C': 'a "b".c'}


def test_uai_evidence_has_nothing_to_map(tmp_path: Path) -> None:
    (tmp_path / "e.evid").write_text("1\n1 0 0\n")
    with pytest.raises(EvidenceError, match="no columns"):
        propose(NETWORK, str(tmp_path / "e.evid"))
