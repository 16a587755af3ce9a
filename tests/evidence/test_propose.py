"""Proposed mappings: names of intervals, messy data, and what is covered."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from helpers.evidence_reference import small_network
from hypothesis import given
from hypothesis import strategies as st
from junctor.evidence.ordered import in_order, informative_edges, quantile_edges
from junctor.evidence.propose import intervals, propose
from junctor.evidence.read import open_evidence
from junctor.model.errors import EvidenceError, ModelError
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
        (["<18 y", "18-65 years", ">=65 y"], [-INF, 18, 65, INF], ["<18 y", "18-65 years", ">=65 y"]),
        (["0-10 %", "10+ %"], [0, 10, INF], ["0-10 %", "10+ %"]),
        (["<1e3", ">=1e3"], [-INF, 1000, INF], ["<1e3", ">=1e3"]),
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
    values = variables["age"].pop("values")
    assert variables["age"] == {"edges": [0, 18, 65, INF], "labels": ["0-17", "18-64", "65+"]}
    ages = np.array([i % 90 for i in range(400) if i % 10])
    for label, inside in ("0-17", ages < 18), ("18-64", (ages >= 18) & (ages < 65)), ("65+", ages >= 65):
        assert values[label] == pytest.approx(ages[inside].mean(), rel=1e-5)
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
    # Means are those of finite numbers.
    bins = {"edges": [-INF, 5e-324, INF], "labels": ["(-inf,0]", "(0,inf)"]}
    assert content["variables"] == {"v": bins | {"values": {"(-inf,0]": -1, "(0,inf)": 1.5}}}


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


@pytest.mark.parametrize(
    ("columns", "variables", "found"),
    [
        (["Age (years)"], ["age"], {"Age (years)": ("age", "unit")}),
        (
            ["weight, kg", "HEIGHT [cm]"],
            ["Weight", "height"],
            {"weight, kg": ("Weight", "unit"), "HEIGHT [cm]": ("height", "unit")},
        ),
        (["age_years"], ["age"], {"age_years": ("age", "unit")}),
        (["Credit history"], ["history"], {"Credit history": ("history", "words")}),
        (["history"], ["CreditHistory", "amount"], {"history": ("CreditHistory", "words")}),
        # Two that it may be: neither.
        (["rate"], ["interest rate paid", "exchange rate paid"], {"rate": ("", "ignored")}),
        (["first date", "second date"], ["date"], {"first date": ("", "ignored"), "second date": ("", "ignored")}),
        # The exact one first, whatever words another has in common with it.
        (["age", "age group"], ["age"], {"age": ("age", "exact"), "age group": ("", "ignored")}),
    ],
)
def test_names_with_units_and_other_words(
    tmp_path: Path, columns: list[str], variables: list[str], found: dict[str, tuple[str, str]]
) -> None:
    network = small_network({name: ["a", "b"] for name in variables})
    parquet.write_table(pa.table({name: ["a", "b"] for name in columns}), tmp_path / "e.parquet")
    proposal = propose(network, str(tmp_path / "e.parquet"))
    assert {each.column: (each.variable, each.how) for each in proposal.columns} == found
    taken = {name for name, (target, how) in found.items() if how in ("unit", "words")}
    assert proposal.guesses == {("columns", name) for name in taken}


def test_numbers_of_ordered_states_go_into_bins_at_quantiles(tmp_path: Path) -> None:
    network = small_network(
        {"dose": ["high", "low", "normal"], "level": ["level1", "level2"], "colour": ["red", "blue"]}
    )
    numbers = [float(n * n) for n in range(300)]
    table = {"dose": numbers, "level": [n / 10 for n in numbers], "colour": numbers}
    parquet.write_table(pa.table(table), tmp_path / "e.parquet")
    proposal = propose(network, str(tmp_path / "e.parquet"))
    dose = proposal.content["variables"]["dose"]
    assert dose["labels"] == ["low", "normal", "high"]
    assert (dose["edges"][0], dose["edges"][3]) == (-INF, INF)
    counts = np.histogram(numbers, dose["edges"])[0]
    assert counts.tolist() == [100, 100, 100]
    assert proposal.content["variables"]["level"]["labels"] == ["level1", "level2"]
    assert "colour" not in proposal.content["variables"]
    assert {("dose", "edges"), ("level", "edges")} <= proposal.guesses
    assert "# guess" in next(line for line in proposal.to_toml().splitlines() if line.startswith("edges"))
    told = {each.column: each for each in proposal.columns}
    # Two of them are indices of colours.
    assert (told["dose"].covered, told["colour"].known) == (1.0, 2)


def test_bins_tell_most_about_a_target(tmp_path: Path) -> None:
    network = small_network({"dose": ["low", "high"], "ill": ["yes", "no"]})
    doses = [n % 100 for n in range(1000)]
    ill = ["yes" if dose >= 90 else "no" for dose in doses]
    parquet.write_table(pa.table({"dose": [dose + 0.5 for dose in doses], "ill": ill}), tmp_path / "e.parquet")
    (edge,) = propose(network, str(tmp_path / "e.parquet"), bins_about="ill").content["variables"]["dose"]["edges"][
        1:-1
    ]
    assert 88 < edge <= 90.5
    (half,) = propose(network, str(tmp_path / "e.parquet")).content["variables"]["dose"]["edges"][1:-1]
    assert 49.5 < half <= 50.5
    with pytest.raises(ModelError, match="no variable named 'il', did you mean 'ill'"):
        propose(network, str(tmp_path / "e.parquet"), bins_about="il")
    parquet.write_table(pa.table({"dose": doses}), tmp_path / "alone.parquet")
    with pytest.raises(EvidenceError, match="no column is read as 'ill'"):
        propose(network, str(tmp_path / "alone.parquet"), bins_about="ill")


@given(st.dictionaries(st.integers(-50, 50).map(float), st.integers(1, 20), min_size=4), st.integers(2, 4))
def test_quantile_bins_are_none_empty_and_near_equal(counts: dict[float, int], bins: int) -> None:
    edges = quantile_edges(counts, bins)
    assert edges is not None
    assert all(left < right for left, right in pairwise(edges))
    inside = np.zeros(bins)
    for number, count in counts.items():
        inside[np.searchsorted(edges, number, side="right") - 1] += count
    assert (inside > 0).all()
    # No cut between two numbers is nearer to its quantile, where others leave it free.
    if bins == 2:
        below = np.cumsum([counts[number] for number in sorted(counts)])[:-1]
        assert abs(inside[0] - sum(counts.values()) / 2) == np.abs(below - sum(counts.values()) / 2).min()


@given(
    st.lists(st.tuples(st.integers(0, 9).map(float), st.sampled_from("ab")), min_size=30, max_size=60),
    st.integers(2, 3),
)
def test_informative_bins_are_the_best_of_all(rows: list[tuple[float, str]], bins: int) -> None:
    pairs = Counter(rows)
    numbers = sorted({number for number, _ in pairs})
    edges = informative_edges(pairs, bins)
    if len(numbers) < bins:
        assert edges is None
        return
    assert edges is not None
    best = max(information(pairs, [-INF, *cuts, INF]) for cuts in combinations(numbers[1:], bins - 1))
    assert information(pairs, edges) == pytest.approx(best, abs=1e-9)


def information(pairs: dict[tuple[float, str], int], edges: Sequence[float]) -> float:
    """The mutual information of bins and letters, by its definition."""
    total = sum(pairs.values())
    joint = Counter[tuple[int, str]]()
    for (number, letter), count in pairs.items():
        joint[sum(number >= edge for edge in edges), letter] += count
    places, letters = Counter[int](), Counter[str]()
    for (place, letter), count in joint.items():
        places[place] += count
        letters[letter] += count
    return sum(n / total * math.log(n * total / (places[p] * letters[a])) for (p, a), n in joint.items())


def test_words_that_have_an_order() -> None:
    assert in_order(["High", "very-low", "LOW"]) == ["very-low", "LOW", "High"]
    assert in_order(["severe", "none", "mild"]) == ["none", "mild", "severe"]
    assert in_order(["stage 2", "stage 10", "stage 1"]) == ["stage 1", "stage 2", "stage 10"]
    for states in (["red", "blue"], ["low", "l"], ["low"], ["0", "1", "2"], ["stage1", "grade2"], ["low", "cold"]):
        assert in_order(states) is None
