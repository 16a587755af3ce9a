"""The table of parameters: which rows it has, and what it says of them."""

from __future__ import annotations

import math
from pathlib import Path

import junctor
import numpy as np
import pytest
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from helpers.noisy_max import noisy_network
from junctor.generate import random_network
from junctor.learning.learn import learn
from junctor.learning.observations import values_of
from junctor.learning.parameter_table import PARAMETERS_SCHEMA
from junctor.learning.parameters import NetworkParameters
from junctor.model.errors import BudgetError
from pyarrow import csv, parquet

ROWS = {
    "smoke": ["yes", "no", "no", "yes", None, "no"] * 30,
    "bronc": ["yes", "yes", None, "no", "no", "no"] * 30,
    "lung": ["no"] * 179 + ["yes"],
}


def test_every_entry_has_a_row() -> None:
    found = learn(ASIA, ROWS, prior="bdeu:1", fix=["asia"], errors=True)
    table, network = found.parameters, junctor.read_network(ASIA)
    assert table.schema.equals(PARAMETERS_SCHEMA)
    np.testing.assert_array_equal(table["before"].to_numpy(), values_of(network))
    np.testing.assert_array_equal(table["after"].to_numpy(), values_of(found.network))
    rows = table.to_pylist()
    tub = [row for row in rows if row["variable"] == "tub"]
    assert [row["state"] for row in tub] == ["yes", "no"] * 2
    assert [row["parents"] for row in tub[1:3]] == [[{"variable": "asia", "state": state}] for state in ("yes", "no")]
    # What is fixed has no error; what is observed has about that of a share.
    assert rows[0]["error"] == 0.0
    smoke = next(row for row in rows if row["variable"] == "smoke")
    share = smoke["after"]
    assert math.sqrt(share * (1 - share) / 180) < smoke["error"] < 1.2 * math.sqrt(share * (1 - share) / 150)
    assert math.isclose(smoke["count"] + rows[rows.index(smoke) + 1]["count"], 180)
    assert learn(ASIA, ROWS).parameters is None


def test_noisy_nodes_have_a_row_for_each_contribution() -> None:
    network = noisy_network(True)
    names = network.public[0].states
    rows = {"p0": [names[0], names[1], None] * 10, "x": ["high", "none", "low"] * 10}
    table = learn(network, rows, errors=True, prior="bdeu:5", fix=["p1"]).parameters
    of_node = [row for row in table.to_pylist() if row["variable"] == "x"]
    parents = [row["parents"][0]["variable"] for row in of_node]
    assert all(len(row["parents"]) == 1 for row in of_node)
    assert sorted(parents) == [v.name for v in network.public[:7] for _ in range(3 * v.cardinality)]
    assert len([n for n in range(1, table.num_rows) if table["variable"][n] != table["variable"][n - 1]]) == 8
    assert {row["state"] for row in of_node} == {"high", "low", "none"}
    assert table.num_rows == NetworkParameters(network).size
    fixed = learn(network, rows, errors=True, fix=["x"], max_iterations=2).parameters
    assert "x" not in fixed["variable"].to_pylist()
    assert np.isfinite(fixed["before"].to_numpy()).all()


def test_tied_variables_have_their_own_before_and_the_same_error() -> None:
    table = learn(ASIA, ROWS, tie=["smoke=asia"], errors=True, impossible="smooth").parameters
    rows = table.to_pylist()
    asia, smoke = (next(row for row in rows if row["variable"] == name) for name in ("asia", "smoke"))
    assert (asia["before"], smoke["before"]) == (0.01, 0.5)
    assert (asia["after"], asia["error"]) == (smoke["after"], smoke["error"])


def test_the_command_writes_the_table_beside_the_network(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    names = list(ROWS)
    cells = zip(*ROWS.values(), strict=True)
    rows.write_text("\n".join([",".join(names), *(",".join(cell or "" for cell in row) for row in cells)]) + "\n")
    assert csv.read_csv(rows).num_rows == 180
    out = tmp_path / "new.fit.bif"
    done = junctor_cli("learn", ASIA, str(rows), "-o", str(out), "--errors", "--prior", "bdeu:1")
    assert done.exit_code == 0, done.output
    written = parquet.read_table(tmp_path / "new.fit.parameters.parquet")
    assert written.equals(learn(ASIA, str(rows), prior="bdeu:1", errors=True).parameters)
    assert "standard errors of free parameters: 1" in done.stderr
    quiet = junctor_cli("learn", ASIA, str(rows), "-o", str(out), "--errors", "--prior", "bdeu:1", "--quiet")
    assert quiet.stderr == ""
    none = tmp_path / "none"
    none.mkdir()
    assert junctor_cli("learn", ASIA, str(rows), "-o", str(none / "f.bif")).exit_code == 0
    assert [each.name for each in none.iterdir()] == ["f.bif"]


def test_errors_that_take_too_much_are_refused_before_the_fit() -> None:
    network = random_network(12, states=4, seed=1)
    rows = {v.name: [None, v.states[0]] for v in network.variables}
    seen: list[object] = []
    learn(network, rows, memory=2**21, watch=lambda *at: seen.append(at))
    assert seen
    seen.clear()
    with pytest.raises(BudgetError, match="free parameters take"):
        learn(network, rows, memory=2**21, errors=True, watch=lambda *at: seen.append(at))
    assert not seen
