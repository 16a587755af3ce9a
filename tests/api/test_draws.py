"""Drawn rows: against enumeration, the same on every machine, and what has no draws."""

from __future__ import annotations

import hashlib
import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from circuit_networks import gates
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from helpers.noisy_max import noisy_network
from helpers.oracle import ZERO_POWER, joint_table
from helpers.strategies import evidence_batches, networks, row_evidence
from hypothesis import assume, given
from hypothesis import strategies as st
from junctor import (
    BudgetError,
    EvidenceError,
    InputError,
    ModelError,
    Network,
    draws,
    generate,
    posteriors,
    read_network,
)
from junctor.cliques.tree import StoredTree
from junctor.evidence.batch import EvidenceBatch
from junctor.model.network import DraftTable, DraftVariable, Place, build_network
from junctor_kernels.tables.reference import LOG
from pyarrow import csv, parquet

ROWS = 4000
EVIDENCE = [
    {"case_id": "a", "smoke": "yes", "xray": "no"},
    {"case_id": "b", "smoke": "maybe"},
    {"case_id": "c", "dysp": [0.2, 0.9]},
    {"case_id": "d", "lung": "yes", "either": "no"},
]


def codes_of(table: pa.Table, network: Network) -> npt.NDArray[np.int64]:
    """The states of drawn rows, [rows, variables], -1 where there is none."""
    columns = [
        [variable.states.index(cell) if cell is not None else -1 for cell in table[variable.name].to_pylist()]
        for variable in network.public
    ]
    return np.array(columns).T


def check_fit(codes: npt.NDArray[np.int64], shares: npt.NDArray[np.float64]) -> None:
    """Every assignment is drawn as often as six standard deviations of its share allow, one without a share never.

    Few draws have longer tails: five more.
    """
    counts, total = np.zeros(shares.shape), len(codes)
    np.add.at(counts, tuple(codes.T), 1)
    assert not counts[shares == 0].any()
    assert (np.abs(counts - total * shares) <= 6 * np.sqrt(total * shares * (1 - shares)) + 5).all()


@st.composite
def cases(draw: st.DrawFn) -> tuple[Network, Any]:
    network = draw(networks(max_variables=5, max_joint=200))
    return network, draw(evidence_batches(network, max_rows=1, min_rows=1, invalid=False))


def through(patch: pytest.MonkeyPatch, way: str) -> None:
    """Let networks of any size be drawn from clique tables, a circuit, or circuits of rows."""
    if way == "cliques":
        return
    for name, value in (("MANY_ENTRIES", 0), ("DECISION_ENTRIES", 1), ("EDGE_ENTRIES", 0), ("DENSE", 2)):
        patch.setattr(draws, name, value)
    if way == "circuits of rows":
        patch.setattr(draws, "MOST_DECISIONS", 0)
        patch.setattr(draws, "StoredTree", partial(raises, BudgetError("too large")))
    else:
        patch.setattr(draws, "StoredTree", partial(raises, BudgetError("circuits alone")))


def raises(error: Exception, *_: Any, **__: Any) -> None:
    raise error


@pytest.mark.parametrize("way", ["cliques", "circuit", "circuits of rows"])
@given(case=cases())
def test_draws_are_as_frequent_as_enumeration_says(way: str, case: tuple[Network, Any]) -> None:
    network, batch = case
    with pytest.MonkeyPatch.context() as patch:
        through(patch, way)
        check_draws(network, batch)


def check_draws(network: Network, batch: EvidenceBatch) -> None:
    hard, soft = row_evidence(batch, 0)
    columns = {network.variables[v].name: [network.variables[v].states[state]] for v, state in hard.items()}
    columns |= {network.variables[v].name: [list(values)] for v, values in soft.items()}
    columns["case_id"] = ["one"]
    joint = joint_table(network, hard, soft)
    top = joint.power.max()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            table = network.sample(ROWS, columns, seed=3)
        except BudgetError as error:
            # Entries of 1e-300 multiply to what no circuit holds.
            assume("too small for a number" not in str(error))
            raise
    if top <= ZERO_POWER // 2:
        assert [str(each.message)[:31] for each in told] == ["evidence without draws: row 1: "]
        assert table.num_rows == 0
        return
    weights = np.ldexp(joint.mantissa, np.maximum(joint.power - top, -5000).astype(np.int32))
    assert set(table["case_id"].to_pylist()) == {"one"}
    check_fit(codes_of(table, network), weights / weights.sum())


@pytest.mark.parametrize("way", ["cliques", "circuit", "circuits of rows"])
def test_without_evidence_a_markov_network_is_drawn_whole(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    through(monkeypatch, way)
    network = generate.grid(2, 3, states=(2, 3), seed=4)
    joint = joint_table(network, {}, {})
    weights = np.ldexp(joint.mantissa, joint.power.astype(np.int32))
    table = network.sample(50_000, seed=2)
    assert table["case_id"].to_pylist() == list(range(50_000))
    check_fit(codes_of(table, network), weights / weights.sum())


def test_draws_lose_nothing_to_underflow() -> None:
    """Products of doubles would leave nothing of a state: what loses digits is drawn from logarithms."""
    place = Place("made")
    tables = [DraftTable(["x", "y"], [[1, 2], [3, 0]], place)]
    tables += [DraftTable(["x"], entries, place) for entries in ([1, 1e-300], [1, 1e-300], [3e-300, 1], [1e-300, 1])]
    network = build_network("deep", "markov", [DraftVariable(name, "ab", place) for name in "xy"], tables)
    assert StoredTree(network).propagate({}).algebra is LOG
    shares = np.array([[3, 6], [3, 0]]) / 12
    check_fit(codes_of(network.sample(20_000, seed=5), network), shares)


def test_forward_rows_are_those_of_the_generator() -> None:
    network = read_network(ASIA)
    table = network.sample(300, observed=0.6, seed=7)
    samples = generate.sample(network, 300, seed=7)
    assert table.equals(generate.evidence_table(network, samples, 1.0, "missing", 7, 1 - 0.6))
    whole, kept = codes_of(network.sample(300, seed=7), network), codes_of(table, network)
    np.testing.assert_array_equal(whole, samples)
    assert ((kept == whole) | (kept == -1)).all()
    assert (kept >= 0).mean() == pytest.approx(0.6, abs=0.05)


def test_rows_of_evidence_are_drawn_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a row draws does not depend on other rows, on blocks, or on how many draws are asked for."""
    network = read_network(ASIA)
    with pytest.warns(UserWarning, match="without draws") as told:
        table = network.sample(30, EVIDENCE, seed=1)
    assert [str(each.message) for each in told] == [
        "evidence without draws: row 2: column 'smoke': unknown state 'maybe'; states are yes, no",
        "evidence without draws: row 4: impossible: lung = yes with either = no",
    ]
    assert table["case_id"].to_pylist() == ["a"] * 30 + ["c"] * 30
    assert set(table["smoke"].to_pylist()[:30]) == {"yes"}
    assert set(table["xray"].to_pylist()[:30]) == {"no"}
    alone = network.sample(10, EVIDENCE[:1], seed=1)
    assert alone.equals(table.slice(0, 10))
    assert not network.sample(10, EVIDENCE[:1], seed=2).equals(alone)
    monkeypatch.setattr(draws, "BLOCK_ROWS", 7)
    with pytest.warns(UserWarning, match="without draws"):
        cut = network.sample(30, EVIDENCE, seed=1)
    assert cut.combine_chunks().equals(table.combine_chunks())


def test_networks_whose_tables_are_too_large_are_drawn_from_circuits() -> None:
    """Rows keep what they observe, the network rules nothing out that is drawn, and shares are those of posteriors."""
    network = gates(18)
    evidence = [{"case_id": "a", "v0": "on", "v323": "off"}, {"case_id": "b", "v20": "on", "v1": "off"}]
    with pytest.warns(UserWarning, match="^evidence without draws: row 2: impossible: v1 = off with v20 = on$"):
        table = network.sample(ROWS, evidence, seed=1, memory="512MiB")
    assert set(table["case_id"].to_pylist()) == {"a"}
    codes = codes_of(table, network)
    assert (codes[:, 0] == 1).all()
    assert not codes[:, 323].any()
    for factor in network.factors:
        assert factor.table[tuple(codes[:, v] for v in factor.scope)].all()
    answers = posteriors(network, evidence[:1])
    shares = np.array([answers[f"v{v}"].to_pylist()[0][1] for v in range(324)])
    assert (abs(codes.mean(axis=0) - shares) <= 6 * np.sqrt(shares * (1 - shares) / ROWS) + 1 / ROWS).all()
    fewer = network.sample(7, evidence[:1], seed=1)
    assert fewer.equals(table.slice(0, 7))


def test_rows_that_nothing_draws_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    through(monkeypatch, "circuits of rows")
    monkeypatch.setattr(draws, "ROW_DECISIONS", 0)
    network = generate.grid(2, 3, seed=1)
    why = "too large; no circuit after 0 decisions .* for this row no circuit"
    # What all of them observe leaves nothing to decide.
    whole = {variable.name: "0" for variable in network.variables}
    with pytest.warns(UserWarning, match=f"row 2: {why}"):
        assert network.sample(5, [whole, {"x_0_0": "0"}]).num_rows == 5
    for evidence in (None, [{"x_0_0": "0"}]):
        with pytest.raises(BudgetError, match=why):
            network.sample(5, evidence)


@pytest.mark.parametrize("way", ["cliques", "circuit", "circuits of rows"])
def test_auxiliary_variables_of_noisy_nodes_are_not_shown(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    through(monkeypatch, way)
    network = noisy_network(strongest_last=True)
    assert network.hidden
    joint = joint_table(network.expanded, {network.index["y"]: 1}, {})
    weights = np.ldexp(joint.mantissa, np.maximum(joint.power, -1000).astype(np.int32))
    table = network.sample(20_000, {"y": ["yes"]}, seed=1)
    assert table.column_names == ["case_id", *(variable.name for variable in network.public)]
    check_fit(codes_of(table, network), weights / weights.sum())


def test_a_file_of_rows_is_the_same_everywhere(tmp_path: Path) -> None:
    """Its bytes are fixed here, for any machine and number of threads."""
    evidence = tmp_path / "evidence.csv"
    evidence.write_text("case_id,smoke,xray,bronc\n17,yes,,no\n18,,yes,\n")
    digests = []
    for more in ([], ["--evidence", str(evidence)]):
        out = tmp_path / "rows.csv"
        made = junctor_cli("sample", ASIA, "-n", "500", "--observed", "0.6", "--seed", "9", "-o", str(out), *more)
        assert made.exit_code == 0, made.output
        digests.append(hashlib.sha256(out.read_bytes()).hexdigest()[:16])
    assert digests == ["05edf763fcdf9715", "6f839e08c54436f1"]


def test_rows_are_written_as_csv_and_parquet_with_what_has_no_draws_on_stderr(tmp_path: Path) -> None:
    evidence = tmp_path / "evidence.csv"
    evidence.write_text("patient,asia,smoke,lung,either\n7,no,yes,,\n8,,maybe,,\n9,,,yes,no\n")
    for name, read in (("rows.csv", csv.read_csv), ("rows.parquet", parquet.read_table)):
        out = tmp_path / name
        how = ["--evidence", str(evidence), "--case-id", "patient", "-o", str(out), "--json"]
        made = junctor_cli("sample", ASIA, "-n", "5", *how)
        assert made.exit_code == 0, made.output
        assert json.loads(made.stdout) == {"output": str(out), "rows": 5, "undrawn": 2}
        assert made.stderr.splitlines() == [
            "warning: no draws: row 2: column 'smoke': unknown state 'maybe'; states are yes, no",
            "warning: no draws: row 3: impossible: lung = yes with either = no",
        ]
        table = read(out)
        assert list(map(str, table["case_id"].to_pylist())) == ["7"] * 5
        assert table["smoke"].to_pylist() == ["yes"] * 5
    assert {path.name for path in tmp_path.iterdir()} == {"evidence.csv", "rows.csv", "rows.parquet"}


def test_many_rows_without_draws_are_counted(tmp_path: Path) -> None:
    evidence, out = tmp_path / "evidence.csv", tmp_path / "rows.csv"
    evidence.write_text("case_id,smoke\n" + "".join(f"{row},maybe\n" for row in range(14)))
    made = junctor_cli("sample", ASIA, "-n", "5", "--evidence", str(evidence), "-o", str(out))
    assert made.exit_code == 4
    assert made.stderr.count("unknown state 'maybe'") == draws.MOST_TOLD
    assert "warning: no draws: 4 more rows\nerror: all 14 rows are invalid" in made.stderr
    assert len(out.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"seed": -1}, EvidenceError, "found seed=-1, expected at least 0 and at most 18446744073709551615"),
        ({"seed": 2**64}, EvidenceError, "found seed=18446744073709551616, expected"),
        ({"observed": 1.1}, EvidenceError, "found observed=1.1, expected at least 0 and at most 1"),
        ({"observed": float("nan")}, EvidenceError, "found observed=nan"),
        ({"observed": "all"}, EvidenceError, "found observed 'all', expected a number"),
        ({"case_id": "id"}, InputError, r"case_id \(--case-id\) says how evidence is read, and there is none"),
        ({"evidence": [{"smokes": "yes"}]}, EvidenceError, "smokes"),
        ({"evidence": EVIDENCE, "strict": True}, EvidenceError, "row 2: column 'smoke': unknown state 'maybe'"),
        ({"evidence": [{"smoke": "yes"}], "memory": 100}, BudgetError, "storing 6 cliques needs .*allowed are 100"),
        ({"rows": -1}, EvidenceError, "found rows=-1, expected at least 0"),
        ({"color": 1}, TypeError, "unexpected keyword argument 'color'"),
    ],
)
def test_refusals(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        read_network(ASIA).sample(**{"rows": 5, **options})


def test_a_network_that_rules_everything_out_has_no_rows() -> None:
    place = Place("made")
    tables = [DraftTable(["x"], entries, place) for entries in ([1, 0], [0, 1])]
    network = build_network("none", "markov", [DraftVariable("x", "ab", place)], tables)
    with pytest.raises(ModelError, match="'none' has nothing to draw: its tables rule out all states together"):
        network.sample(5)
    with pytest.warns(UserWarning, match="evidence without draws: row 1: "):
        assert network.sample(5, [{"x": "a"}]).num_rows == 0


def test_refusals_of_the_command_line(tmp_path: Path) -> None:
    evidence = tmp_path / "evidence.csv"
    evidence.write_text("smoke\nyes\n")
    for args, code, said in (
        (["-o", str(tmp_path / "rows.txt")], 3, "expected a file .parquet or .csv"),
        (["-o", str(evidence), "--evidence", str(evidence)], 3, "of the same command"),
        (["-o", str(tmp_path / "rows.csv"), "-n", "0"], 2, "0 is not in the range x>=1"),
        (["-o", str(tmp_path / "rows.csv"), "--evidence", str(evidence), "--memory", "100B"], 5, "(--memory)"),
    ):
        made = junctor_cli("sample", ASIA, *args)
        assert (made.exit_code, said in made.stderr) == (code, True), made.output
    assert {path.name for path in tmp_path.iterdir()} == {"evidence.csv"}
