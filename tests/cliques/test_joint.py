"""Joint posteriors by messages and from stored tables, and which of both is taken."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import typer
from helpers import oracle
from helpers.command_line import junctor_cli
from helpers.engine_cases import complete
from helpers.figures import set_figures
from helpers.files import ASIA
from helpers.strategies import networks
from hypothesis import given
from hypothesis import strategies as st
from junctor import BudgetError, EvidenceError, ModelError, joint_posteriors, posteriors, read_network, write_network
from junctor.cli.options import names_in
from junctor.cliques import joint as joint_module
from junctor.cliques.joint import JointForecast, JointQuestions
from junctor.cliques.parts import PARTS
from junctor.cost.stored import StoredForecast
from junctor.generate import grid, layered
from junctor.model.errors import Place
from junctor.model.network import DraftTable, DraftVariable, Network, build_network
from junctor.model.options import ComputeOptions
from junctor.model.query import Architecture, Precision
from junctor.planning.cliques import plan_stored
from junctor.planning.shape import shape_of

BOTH: tuple[Architecture, ...] = ("messages", "stored")


def names_of(network: Network, scope: tuple[int, ...]) -> list[str]:
    return [network.variables[v].name for v in scope]


@pytest.mark.parametrize(
    "cell", [b"yes", np.bytes_(b"yes"), pa.scalar("yes"), pa.scalar(b"yes"), pa.scalar([1.0, 0.0])]
)
def test_evidence_may_be_bytes_or_scalars_of_arrow(cell: Any) -> None:
    found = joint_posteriors(ASIA, [["lung"]], {"smoke": cell})
    assert found.posteriors[0].tolist() == joint_posteriors(ASIA, [["lung"]], {"smoke": "yes"}).posteriors[0].tolist()


def test_a_network_may_be_the_path_of_a_file() -> None:
    one, other = (joint_posteriors(network, [["lung", "tub"]]) for network in (ASIA, read_network(ASIA)))
    np.testing.assert_array_equal(one.posteriors[0], other.posteriors[0])


@given(data=st.data())
def test_both_ways_equal_brute_force(data: st.DataObject) -> None:
    network = data.draw(networks())
    cliques = [clique.layout for clique in plan_stored(shape_of(network)).cliques if clique.layout]
    questions = [
        data.draw(st.permutations(data.draw(st.sampled_from(cliques))))[:3] for _ in range(data.draw(st.integers(1, 2)))
    ]
    # Also of what is asked about, and of more than one variable; the first states may be ruled out.
    seen = data.draw(st.lists(st.sampled_from(range(len(network.variables))), max_size=1))
    hard = {v: data.draw(st.integers(0, network.cardinalities[v] - 1)) for v in seen}
    able = [v for v in range(len(network.variables)) if v not in hard]
    unsure = data.draw(st.lists(st.sampled_from(able), max_size=3, unique=True)) if able else []
    soft = {v: np.linspace(0.25, 1, network.cardinalities[v]) for v in unsure}
    for v in unsure:
        soft[v][: data.draw(st.integers(0, network.cardinalities[v] - 1))] = 0.0
    scaled = oracle.joint_table(network, hard, soft)
    power = scaled.power.max()
    table = np.ldexp(scaled.mantissa, np.maximum(scaled.power - power, -2000))
    evidence = {network.variables[v].name: said for v, said in (*soft.items(), *hard.items())}
    asked = [names_of(network, tuple(question)) for question in questions]
    for architecture in BOTH:
        if not table.sum() > 0:
            with pytest.raises(EvidenceError, match="impossible"):
                joint_posteriors(network, asked, evidence, architecture=architecture)
            continue
        found = joint_posteriors(network, asked, evidence, architecture=architecture)
        assert found.architecture == architecture
        assert found.log_evidence == pytest.approx(math.log(table.sum()) + power * math.log(2), rel=1e-9, abs=1e-9)
        for question, posterior in zip(questions, found.posteriors, strict=True):
            left = np.einsum(table, list(range(table.ndim)), list(question)) / table.sum()
            np.testing.assert_allclose(posterior, left, rtol=0, atol=1e-9)


@pytest.mark.parametrize("architecture", BOTH)
@pytest.mark.parametrize("scale", [1.0, 1e-300, 1e300])
def test_questions_about_what_has_a_likelihood(architecture: Architecture, scale: float) -> None:
    likelihood = {"smoke": [0.9 * scale, 0.2 * scale], "lung": [0.5, 2.0]}
    found = joint_posteriors(ASIA, [["smoke", "lung"], ["lung"], ["smoke"]], likelihood, architecture=architecture)
    smoke, lung = np.array([0.5, 0.5]), np.array([[0.1, 0.9], [0.01, 0.99]])
    table = smoke[:, None] * lung * np.array([[0.9], [0.2]]) * np.array([0.5, 2.0])
    assert found.log_evidence == pytest.approx(math.log(table.sum()) + math.log(scale))
    for posterior, mass in zip(found.posteriors, (table, table.sum(axis=0), table.sum(axis=1)), strict=True):
        np.testing.assert_allclose(posterior, mass / mass.sum(), rtol=1e-12)


@pytest.mark.parametrize("architecture", BOTH)
@pytest.mark.parametrize("smoke", ["no", [0, 1], [0, 0.5]], ids=str)
def test_questions_about_what_is_observed(architecture: Architecture, smoke: object) -> None:
    questions = [["lung", "smoke"], ["smoke"], ["lung"]]
    found = joint_posteriors(ASIA, questions, {"smoke": smoke}, architecture=architecture)
    for posterior, expected in zip(found.posteriors, ([[0, 0.01], [0, 0.99]], [0, 1], [0.01, 0.99]), strict=True):
        np.testing.assert_allclose(posterior, expected, rtol=1e-12)


@pytest.mark.parametrize("architecture", BOTH)
@pytest.mark.parametrize("states", [("yes", "no"), ("no", "yes"), ("1", "2", "3"), ("low", "mid", "high")])
@pytest.mark.parametrize(
    "said", [True, False, 0, 1, 2, 1.0, "1", " 2 ", "YES", None, "", "na", np.int64(1), np.nan, [0]]
)
def test_evidence_means_what_it_does_in_a_table(
    states: tuple[str, ...], said: object, architecture: Architecture
) -> None:
    place = Place("x")
    variables = [DraftVariable("seen", list(states), place), DraftVariable("asked", ["a", "b"], place)]
    rows = np.linspace(0.1, 0.8, len(states))
    tables = [
        DraftTable(["seen"], np.full(len(states), 1 / len(states)), place),
        DraftTable(["seen", "asked"], np.stack([rows, 1 - rows], axis=1).ravel(), place),
    ]
    network = build_network("n", "bayes", variables, tables, place)
    (row,) = posteriors(network, {"seen": [said]}, ["asked"]).to_pylist()
    if row["status"] == "invalid":
        with pytest.raises(EvidenceError, match="evidence on 'seen'"):
            joint_posteriors(network, [["asked"]], {"seen": said}, architecture=architecture)  # type: ignore[dict-item]
        return
    found = joint_posteriors(network, [["asked"]], {"seen": said}, architecture=architecture)  # type: ignore[dict-item]
    np.testing.assert_allclose(found.posteriors[0], row["asked"], atol=1e-12)
    assert found.log_evidence == pytest.approx(row["log_evidence"], abs=1e-12)


@pytest.mark.parametrize("architecture", BOTH)
def test_what_cannot_be_asked_is_refused(architecture: Architecture) -> None:
    network = read_network(ASIA)
    for question, match in ((["lung", "lung"], "different"), ([], "different")):
        with pytest.raises(EvidenceError, match=match):
            joint_posteriors(network, [question], {"smoke": "yes"}, architecture=architecture)
    with pytest.raises(ModelError, match="lungs"):
        joint_posteriors(network, [["lungs"]], architecture=architecture)
    with pytest.raises(EvidenceError, match="unknown state"):
        joint_posteriors(network, [["lung"]], {"smoke": "maybe"}, architecture=architecture)
    with pytest.raises(EvidenceError, match=r"found .lung. as a question, expected a list of names"):
        joint_posteriors(network, ["lung", "bronc"], architecture=architecture)  # type: ignore[list-item]
    with pytest.raises(EvidenceError, match="no question"):
        joint_posteriors(network, [], architecture=architecture)
    with pytest.raises(EvidenceError, match="architecture"):
        joint_posteriors(network, [["lung"]], architecture="hugin")  # type: ignore[arg-type]
    with pytest.raises(EvidenceError, match="found precision 'quad'"):
        joint_posteriors(network, [["lung"]], None, "quad", architecture=architecture)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [31, 60])
@pytest.mark.parametrize("architecture", ["auto", "messages"])
def test_questions_of_too_many_combinations_are_refused(count: int, architecture: Architecture) -> None:
    network = grid(1, count, states=2, seed=1)
    question = names_of(network, tuple(range(count)))
    with pytest.raises(BudgetError, match=r"combinations by messages needs .* fewer variables at once"):
        joint_posteriors(network, [question], memory="1GiB", architecture=architecture)
    assert (
        JointQuestions(network, [question[:2], question], {}, options=ComputeOptions(1 << 30)).messages_seconds()
        == math.inf
    )


@pytest.mark.parametrize(("precision", "apart"), [("single", 1e-5), ("double", 1e-12), ("log", 1e-12)])
def test_formats_agree(precision: Precision, apart: float) -> None:
    network = grid(5, 5, states=3, seed=2)
    names = [variable.name for variable in network.variables]
    questions, evidence = [names[:2], names[9:10]], {names[5]: 1, names[20]: [0.2, 0.5, 1.0]}
    expected = joint_posteriors(network, questions, evidence, architecture="messages")
    for architecture in BOTH:
        found = joint_posteriors(network, questions, evidence, precision, architecture=architecture)
        assert found.log_evidence == pytest.approx(expected.log_evidence, abs=apart)
        for one, other in zip(found.posteriors, expected.posteriors, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=apart)


@pytest.mark.parametrize("architecture", BOTH)
def test_what_exceeds_the_memory_is_refused(architecture: Architecture) -> None:
    network = grid(5, 5, states=3, seed=2)
    # Chunks tell it to the byte.
    allowed = r"6[34]\.. KiB" if architecture == "stored" else "65,536 bytes; "
    with pytest.raises(BudgetError, match=f"allowed are {allowed}"):
        joint_posteriors(network, [[network.variables[0].name]], memory="64KiB", architecture=architecture)


def test_variables_of_different_cliques_are_left_to_messages() -> None:
    network = read_network(ASIA)
    found = joint_posteriors(network, [["asia", "dysp"]])
    assert found.architecture == "messages"
    assert found.posteriors[0].sum() == pytest.approx(1)
    assert (
        JointQuestions(network, [["asia", "dysp"]], {}).forecast().why
        == "variables that are asked about share no clique"
    )
    with pytest.raises(EvidenceError, match="no clique holds"):
        joint_posteriors(network, [["asia", "dysp"]], architecture="stored")


def test_the_way_that_takes_less_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert JointForecast(1.0, 2.0).chosen == "messages"
    assert JointForecast(2.0, 1.0).chosen == "stored"
    assert JointForecast(math.inf, math.inf).chosen == "messages"
    network = grid(6, 6, states=2, seed=1)
    names = [names_of(network, clique.layout[:2]) for clique in plan_stored(shape_of(network)).cliques]
    for seconds, chosen in ((1e-9, "stored"), (1e9, "messages")):
        monkeypatch.setattr(joint_module, "stored_forecast", lambda *_: StoredForecast(seconds, seconds))  # noqa: B023
        set_figures(monkeypatch, planning={"variable": 0.0})
        found = joint_posteriors(network, [pair for pair in names if len(pair) == 2])
        assert found.architecture == chosen
    assert (
        JointQuestions(network, names[:1], {}, options=ComputeOptions(1 << 10)).forecast().why
        == "clique tables exceed the memory"
    )


def test_more_questions_make_tables_worth_it() -> None:
    """The prices of the package: one question goes by messages, hundreds go to the tables."""
    network = layered(layers=10, width=12, states=2, parents=3, seed=10)
    scopes = [clique.layout for clique in plan_stored(shape_of(network)).cliques if len(clique.layout) > 1]
    few, many = (
        JointQuestions(network, [names_of(network, scopes[n % len(scopes)][:2]) for n in range(count)], {})
        for count in (1, 400)
    )
    assert few.forecast().chosen == "messages"
    assert many.forecast().messages > 10 * few.forecast().messages
    assert many.forecast().stored < 2 * few.forecast().stored < math.inf


def test_names_with_commas_are_quoted(tmp_path: Path) -> None:
    network = build_network(
        "odd", "markov", [DraftVariable("a,b", ("x,y", "z"), Place())], [DraftTable(["a,b"], [1, 3], Place())]
    )
    write_network(network, tmp_path / "odd.parquet")
    kept = str(tmp_path / "kept")
    junctor_cli("calibrate", str(tmp_path / "odd.parquet"), "--keep-cliques", kept)
    told = junctor_cli("ask", kept, "a,b").stdout
    assert list(csv.reader(told.splitlines())) == [["a,b", "probability"], ["x,y", "0.25"], ["z", "0.75"]]
    asked = junctor_cli("joint", str(tmp_path / "odd.parquet"), '"a,b"')
    assert asked.stdout == told
    assert names_in('a, "b,c",d') == ("a", "b,c", "d")
    with pytest.raises(typer.BadParameter, match="a name is empty"):
        names_in("")


def test_questions_on_the_command_line() -> None:
    told = [
        junctor_cli("joint", ASIA, "either,lung", "bronc", "--given", "smoke=no", "--architecture", each)
        for each in BOTH
    ]
    assert [each.exit_code for each in told] == [0, 0]
    assert [each.stderr.splitlines()[:2] for each in told] == [
        ["by messages"],
        ["from stored clique tables", "tables in memory:"],
    ]
    assert [line.split()[0] for line in told[1].stderr.splitlines()[2:]] == list(PARTS)
    assert told[0].stdout == told[1].stdout
    blocks = [block.splitlines() for block in told[0].stdout.split("\n\n")]
    assert [block[0] for block in blocks] == ["either,lung,probability", "bronc,probability"]
    assert [line.rsplit(",", 1)[0] for line in blocks[0][1:]] == ["yes,yes", "yes,no", "no,yes", "no,no"]
    record = json.loads(junctor_cli("joint", ASIA, "bronc", "--json").stdout)
    assert record["architecture"] == "messages"
    assert sum(each["probability"] for each in record["questions"][0]["posterior"]) == pytest.approx(1)


@pytest.mark.parametrize("architecture", ["messages", "stored"])
def test_a_question_has_as_many_variables_as_an_array_has_axes(architecture: Architecture) -> None:
    network = complete(2, 3, *[1] * 63)
    names = [variable.name for variable in network.variables]
    found = joint_posteriors(network, [names[:64]], architecture=architecture)
    expected = joint_posteriors(complete(2, 3), [names[:2]])
    np.testing.assert_allclose(found.posteriors[0].reshape(2, 3), expected.posteriors[0], rtol=1e-12)
    with pytest.raises(EvidenceError, match="found a question about 65 variables, expected 64 at most"):
        joint_posteriors(network, [names], architecture=architecture)


def test_both_ways_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    network = complete(*[2] * 31)
    with pytest.raises(BudgetError, match=r"a row is forecast to take .*, allowed are 1 s \(--time-limit\)"):
        joint_posteriors(network, [["x0", "x1"]], architecture="messages", time_limit="1s")
    monkeypatch.setattr("junctor.cliques.tree.stored_forecast", lambda *_: StoredForecast(2.0, 3.0))
    with pytest.raises(BudgetError, match="the calibration is forecast to take 5 s, allowed are 4 s"):
        joint_posteriors(ASIA, [["smoke", "lung"]], architecture="stored", time_limit=4)
    assert joint_posteriors(ASIA, [["smoke", "lung"]], architecture="stored").architecture == "stored"
