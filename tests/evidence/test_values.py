"""Expected values: means and variances of the numbers that states stand for, against sums over posteriors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import junctor
import numpy as np
import pytest
from helpers.command_line import junctor_cli
from helpers.evidence_reference import small_network
from junctor import generate
from junctor.evidence.mapping import read_mapping
from junctor.evidence.values import with_values
from junctor.model.network import Network
from junctor.model.query import Query

NETWORK = generate.random_network(9, (2, 4), zeros=0.2, seed=5)
# Rows observe some of these.
pytestmark = pytest.mark.filterwarnings("ignore:target")
NAMES, STATES = zip(*((each.name, each.states) for each in NETWORK.variables if each.cardinality > 2), strict=True)
NUMBERS = [[4.0, -2.5, 30.0, 7.0][: len(states)] for states in STATES]
MAPPING = {
    "variables": {
        name: {"values": dict(zip(states, numbers, strict=True))}
        for name, states, numbers in zip(NAMES, STATES, NUMBERS, strict=True)
    }
}


def rows_of(network: Network, count: int) -> dict[str, list[str | None]]:
    random = np.random.default_rng(1)
    rows = {
        variable.name: [str(random.choice(variable.states)) if random.random() < 0.3 else None for _ in range(count)]
        for variable in network.variables
    }
    rows[network.variables[0].name][0] = "no state"
    return rows


ROWS = rows_of(NETWORK, 60)


def check(found: Any, tolerance: float, name: str, numbers: list[float]) -> None:
    """Compare the columns of a variable with sums over its posteriors."""
    expected = junctor.posteriors(NETWORK, ROWS, [name])[name].to_pylist()
    assert None in expected
    for mean, variance, posterior in zip(found[f"{name}_mean"], found[f"{name}_variance"], expected, strict=True):
        if posterior is None:
            assert mean is variance is None
        else:
            value = sum(p * x for p, x in zip(posterior, numbers, strict=True))
            assert mean == pytest.approx(value, abs=tolerance)
            squares = sum(p * (x - value) ** 2 for p, x in zip(posterior, numbers, strict=True))
            assert variance == pytest.approx(squares, abs=10 * tolerance)


@pytest.mark.parametrize(("precision", "tolerance"), [("double", 1e-11), ("single", 1e-3), ("log", 1e-11)])
@pytest.mark.parametrize("more", [{}, {"top": 2, "probabilities": [f"{NAMES[0]}={NETWORK.variables[0].states[0]}"]}])
def test_means_and_variances_are_those_of_the_posteriors(
    precision: Any, tolerance: float, more: dict[str, Any]
) -> None:
    if more:
        state = NETWORK.variables[NETWORK.index[NAMES[0]]].states[0]
        more = more | {"probabilities": [f"{NAMES[0]}={state}"]}
    # Asked for in another order than that of the network, and of variables that are no targets.
    found = junctor.posteriors(
        NETWORK, ROWS, [NETWORK.variables[-1].name], precision, answers="scores", expected=NAMES[::-1],
        mapping=MAPPING, **more,
    ).to_pydict()  # fmt: skip
    assert "valid" in found["status"][0]
    for name, numbers in zip(NAMES, NUMBERS, strict=True):
        check(found, tolerance, name, numbers)


def test_a_run_has_the_same_columns_and_its_numbers_are_part_of_it(tmp_path: Path) -> None:
    junctor.write_network(NETWORK, tmp_path / "net.bif")
    lines = [",".join(ROWS), *(",".join(cell or "" for cell in row) for row in zip(*ROWS.values(), strict=True))]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    name, numbers = NAMES[0], NUMBERS[0]

    def write(some: list[float]) -> None:
        told = ", ".join(f'"{state}" = {number}' for state, number in zip(STATES[0], some, strict=True))
        (tmp_path / "map.toml").write_text(f'[variables."{name}"]\nvalues = {{ {told} }}\n')

    places = [str(tmp_path / each) for each in ("net.bif", "rows.csv", "out", "map.toml")]
    command = ["run", *places[:2], "-o", places[2], "--no-prefect", "--answers", "scores", "--expected", name]
    command += ["--mapping", places[3]]
    write(numbers)
    assert junctor_cli(*command).exit_code == 0
    table = junctor.read_answers(tmp_path / "out")
    check(table.to_pydict(), 1e-11, name, numbers)
    facts = junctor.posteriors(NETWORK, ROWS, answers="scores", expected=[name], mapping=MAPPING).schema.metadata
    assert table.schema.metadata[b"junctor"] == facts[b"junctor"]
    assert f'"mean_columns": {{"{name}": "{name}_mean"}}'.encode() in facts[b"junctor"]
    # The same goes on, with other numbers it is another run.
    assert junctor_cli(*command).exit_code == 0
    write([number + 1 for number in numbers])
    assert junctor_cli(*command).exit_code == 6


def values_of(states: list[str], mapping: dict[str, Any] | None = None) -> tuple[float, ...]:
    network = small_network({"v": states, "w": ["a", "b"]})
    read = None if mapping is None else read_mapping({"variables": {"v": mapping}}, network)
    return with_values(Query(answers="scores", expected=(("v", ()),)), network, read).expected[0][1]


def test_states_stand_for_what_is_said_or_for_the_middle_of_their_bins() -> None:
    assert values_of(["0-10", "10-20", "20-60"]) == (5, 15, 40)
    assert values_of(["0-9", "10-19"]) == (4.5, 14.5)
    assert values_of(["(0,10]", "[10,20)"]) == (5, 15)
    assert values_of(["0", "1", "2.5", "-3"]) == (0, 1, 2.5, -3)
    bins = {"edges": [0, 18, 65, 100], "labels": ["a", "b", "c"]}
    assert values_of(["a", "b", "c"], bins) == (9, 41.5, 82.5)
    # The mapping goes before the names.
    assert values_of(["0-10", "10-20"], {"edges": [0, 1, 2], "labels": ["0-10", "10-20"]}) == (0.5, 1.5)
    assert values_of(["0-10", "10-20"], {"values": {"0-10": 3}}) == (3, 15)
    # Units are those of the edges.
    assert values_of(["a", "b", "c"], bins | {"factor": 0.5, "values": {"b": 40}}) == (9, 40, 82.5)
    opened = {"edges": [-np.inf, 18, 65, np.inf], "labels": ["a", "b", "c"], "values": {"a": 8, "c": 78}}
    assert values_of(["a", "b", "c"], opened) == (8, 41.5, 78)
    # Text is other than all numbers, none of which lies outside.
    assert values_of(["a", "b", "c"], opened | {"other": "b"}) == (8, 41.5, 78)
    assert values_of(["a", "b"], {"edges": [-1.7e308, 1.7e308, 1.75e308], "labels": ["a", "b"]})[0] == 0


@pytest.mark.parametrize(
    ("states", "mapping", "told"),
    [
        (
            ["low", "high"],
            None,
            "its state 'low' stands for no number; give one in a mapping file, as in [variables.v]",
        ),
        (["<5", "5-10"], None, "its state '<5' lies between -inf and 5, which has no middle"),
        (["0-10", "10+"], None, "its state '10+' lies between 10 and inf"),
        (["a", "b"], {"edges": [0, 1, np.inf], "labels": ["a", "b"]}, "its state 'b' lies between 1 and inf"),
        (["a", "b"], {"edges": [0, 1, 2, 3], "labels": ["a", "b", "a"]}, "its state 'a' stands for no number"),
        # Numbers outside of all bins are in this one too.
        (["a", "b"], {"edges": [0, 1, 2], "labels": ["a", "b"], "outside": "b"}, "its state 'b' stands for no number"),
        (["a", "b"], {"edges": [0, 1], "labels": ["a"]}, "its state 'b' stands for no number"),
        (["0-10", "10-20"], {"values": {"0-1": 3}}, "variables.v.values.0-1: found '0-1', did you mean '0-10'?"),
        (["0-10", "10-20"], {"values": {"0-10": "3"}}, "variables.v.values.0-10: found '3', expected a number"),
        (["0-10", "10-20"], {"values": {"0-10": np.inf}}, "variables.v.values.0-10: found inf, expected a number"),
        (["0-10", "10-20"], {"values": [1, 2]}, "variables.v.values: found [1, 2], expected a table"),
    ],
)
def test_what_stands_for_no_number_is_refused(states: list[str], mapping: dict[str, Any] | None, told: str) -> None:
    with pytest.raises(junctor.EvidenceError) as caught:
        values_of(states, mapping)
    assert told in str(caught.value)


def test_names_that_cannot_be_asked_for_are_refused() -> None:
    name = NAMES[0]
    for asked, told in (
        ({"expected": ["nobody"]}, "expected value: unknown variable 'nobody'"),
        ({"expected": [name, name]}, f"expected value of '{name}' is asked for twice"),
    ):
        with pytest.raises(junctor.JunctorError, match=told):
            junctor.posteriors(NETWORK, ROWS, answers="scores", mapping=MAPPING, **asked)
    with pytest.raises(junctor.EvidenceError, match="leave out --expected"):
        junctor.posteriors(NETWORK, ROWS, expected=[name], mapping=MAPPING)


def test_an_expected_variable_is_hidden_as_a_target_is() -> None:
    name = NAMES[0]
    rows = [{name: STATES[0][1]}]
    asked: dict[str, Any] = {"answers": "scores", "expected": [name], "mapping": MAPPING}
    with pytest.warns(UserWarning, match="repeat the input"):
        seen = junctor.posteriors(NETWORK, rows, [NETWORK.variables[-1].name], **asked)
    assert seen[f"{name}_mean"].to_pylist() == [NUMBERS[0][1]]
    hidden = junctor.posteriors(NETWORK, rows, [NETWORK.variables[-1].name], hide_targets=True, **asked)
    assert hidden[f"{name}_variance"].to_pylist() != seen[f"{name}_variance"].to_pylist()


def test_sampled_rows_have_them_too() -> None:
    network = generate.random_network(6, (3, 4), seed=2)
    name = network.variables[0].name
    mapping = {"variables": {name: {"values": {state: n for n, state in enumerate(network.variables[0].states)}}}}
    asked: dict[str, Any] = {"answers": "scores", "expected": [name], "mapping": mapping}
    exact = junctor.posteriors(network, [{}], **asked)[f"{name}_mean"].to_pylist()
    found = junctor.posteriors(network, [{}], method="sampling", samples=20_000, **asked)
    assert found[f"{name}_mean"].to_pylist() == pytest.approx(exact, abs=0.1)
    assert f"{name}_mean_error" not in found.column_names
