from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from helpers.format_helpers import assert_same, error_of, fuzz, odd_networks
from hypothesis import given
from junctor.formats import read_network, uai
from junctor.formats.files import decode
from junctor.model.network import Network

MARKOV = """MARKOV
3
2 2 3
2
2 0 1
2 1 2
4
0.128 0.872
0.920 0.080
6
0.210 0.333 0.457
0.811 0.000 0.189
"""
BAYES = "BAYES 2 2 2 2 1 0 2 0 1 2 0.4 0.6 4 0.1 0.9 0.8 0.2"


def test_the_last_variable_of_a_scope_varies_fastest() -> None:
    network = uai.read(MARKOV, "m.uai")
    assert network.kind == "markov"
    assert network.name == "m"
    assert [variable.name for variable in network.variables] == ["0", "1", "2"]
    assert network.variables[2].states == ("0", "1", "2")
    assert network.factors[1].scope == (1, 2)
    np.testing.assert_array_equal(network.factors[1].table, [[0.210, 0.333, 0.457], [0.811, 0.0, 0.189]])


def test_in_bayes_the_child_is_the_last_of_a_scope() -> None:
    network = uai.read(BAYES, "b.uai")
    assert network.kind == "bayes"
    assert network.factors[1].scope == (0, 1)
    np.testing.assert_array_equal(network.factors[1].table, [[0.1, 0.9], [0.8, 0.2]])


def test_bayes_tables_may_come_in_any_order() -> None:
    network = uai.read("BAYES 2 2 2 2 2 1 0 1 1 4 .1 .9 .8 .2 2 .5 .5", "b.uai")
    assert [factor.scope for factor in network.factors] == [(1, 0), (1,)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (MARKOV.replace("\n", " "), "all on one line"),
        (MARKOV.replace("\n", "\r\n"), "Windows line ends, as the dispatch leaves them to be"),
        (MARKOV.replace(" ", "\n\n\t  "), "one word a line"),
        ("# by a tool\n\n" + MARKOV.replace("\n2 0 1", "  # tables\n2 0 1 # A"), "comments"),
        (MARKOV.replace("MARKOV", "\n markov"), "lower case and space before it"),
        (MARKOV.replace("0.128", "1.28e-1").replace("0.872", "+8.72E-01").replace("0.210", ".21"), "other numbers"),
        (MARKOV.rstrip(), "no line end at the end"),
        ("\ufeff" + MARKOV, "a byte order mark"),
    ],
)
def test_layout_does_not_matter(text: str, why: str) -> None:
    assert_same(uai.read(decode(text.encode(), "x"), "m.uai"), uai.read(MARKOV, "m.uai"))


def test_markov_takes_empty_repeated_and_missing_scopes() -> None:
    network = uai.read("MARKOV 3 2 1 2  4  0  1 0  1 0  1 1   1 2.5  2 1 0  2 0.5 0.5  1 1e-300", "m.uai")
    assert [factor.scope for factor in network.factors] == [(), (0,), (0,), (1,)]
    assert network.factors[0].table == 2.5
    assert uai.read("MARKOV 1 2 0", "m.uai").factors == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.uai: found nothing but space and comments, expected BAYES or MARKOV"),
        ("# only\n", "f.uai: found nothing but space and comments, expected BAYES or MARKOV"),
        ("BAYES", "f.uai:1:6: found the end of the file, expected the number of variables"),
        ("\n LIMID 2", "f.uai:2:2: found 'LIMID', expected BAYES or MARKOV"),
        ("MARKOV 2\n2", "f.uai:1:8: the number of variables is 2, but only 1 more numbers follow"),
        ("MARKOV 1\n  x", "f.uai:2:3: found 'x', expected a number"),
        ("MARKOV 1\n2 1_0", "f.uai:2:3: found '1_0', expected a number"),
        ("MARKOV 1\n2 é", "f.uai:2:3: found the character 'é', expected numbers"),
        ("MARKOV 1.5", "f.uai:1:8: found '1.5', expected the number of variables, a whole number"),
        ("MARKOV 1e300", "f.uai:1:8: found '1e300', expected the number of variables, a whole number"),
        ("MARKOV nan", "f.uai:1:8: found 'nan', expected the number of variables, a whole number"),
        ("MARKOV 1\n0 0", "f.uai:2:1: variable 0 has 0 states, expected at least one"),
        ("MARKOV 1\n2 1\n2 0", "f.uai:3:1: the number of variables of a table is 2, but only 1 more numbers follow"),
        ("MARKOV 1\n2 1\n1 1\n2 1 1", "f.uai:3:3: found variable 1, expected one from 0 to 0"),
        ("MARKOV 1\n2 1\n1 -1\n2 1 1", "f.uai:3:3: found '-1', expected a variable of a table, a whole number"),
        (
            "MARKOV 1\n2 1\n1 0\n3 1 1 1",
            "f.uai:4:1: the table over variables 0 is said to have 3 entries, expected 2 (2)",
        ),
        ("MARKOV 1\n2 1\n1 0\n2 1", "f.uai:4:4: found 1 of the 2 entries of the table over variables 0 before the end"),
        ("MARKOV 1\n2 1\n1 0\n2 1 1\n 7 8", "f.uai:5:2: found '7' and 1 more numbers after the last table"),
        ("MARKOV 1\n2 1\n1 0\n2 1 -1", "f.uai:4:1: table over ['0']: found"),
        ("MARKOV 1\n2 1\n1 0\n2 1 inf", "f.uai:4:1: table over ['0']: found"),
        ("MARKOV 1\n2 1\n1 0\n2 0 0", "f.uai:4:1: table over ['0']: all its entries are 0"),
        ("MARKOV 1\n2 1\n2 0 0\n4 1 1 1 1", "f.uai:4:1: table over ['0', '0']: a variable stands twice"),
        ("BAYES 1\n2 1\n1 0\n2 .5 .6", "f.uai:4:1: table of '0': the row sums to 1.1"),
        ("BAYES 1\n2 0", "f.uai:2:1: variable '0' has no table"),
        ("BAYES 1\n2 2\n1 0 1 0\n2 .5 .5\n2 .5 .5", "f.uai:5:1: variable '0' has a second table (first at f.uai:4:1)"),
        ("BAYES 2 2 2\n2 2 0 1 2 1 0\n4 .5 .5 .5 .5 4 .5 .5 .5 .5", "f.uai:1:9: the parents form a cycle: 0 <- 1 <- 0"),
    ],
)
def test_errors_say_what_and_where(text: str, message: str) -> None:
    assert error_of(lambda: uai.read(text, "f.uai")).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("MARKOV 1 1000000000 0", "has 1,000,000,000 states, far more than the file has numbers"),
        ("MARKOV 40 " + "2 " * 40 + "1 40 " + " ".join(map(str, range(40))) + " 1", "allowed are 134,217,728"),
        ("MARKOV 30000 " + "2 " * 30000 + "1 30000 " + " ".join(map(str, range(30000))), "allowed are 64"),
        ("MARKOV 70 " + "1 " * 70 + "1 70 " + " ".join(map(str, range(70))) + " 1 1", "allowed are 64"),
        ("MARKOV 99999999999 2", "only 1 more numbers follow"),
    ],
)
def test_a_short_file_cannot_ask_for_much(text: str, message: str) -> None:
    assert message in error_of(lambda: uai.read(text, "f.uai"))


def test_a_bad_number_far_into_a_large_file_is_found_with_its_place() -> None:
    rows = ["0.5 0.5"] * 300_000
    rows[250_000] = "0.5 O.5"
    text = f"MARKOV\n20\n{'2 ' * 20}\n1\n20 {' '.join(map(str, range(20)))}\n1048576\n" + "\n".join(rows)
    assert error_of(lambda: uai.read(text, "f.uai")) == "f.uai:250007:5: found 'O.5', expected a number"


@given(odd_networks())
def test_numbers_survive_writing(network: Network) -> None:
    again = uai.read(uai.write(network), "x.uai")
    assert_same(again, network, names=False)
    assert [variable.name for variable in again.variables] == [str(i) for i in range(len(network.variables))]


def test_what_is_written_is_plain() -> None:
    assert uai.write(uai.read(BAYES)) == "BAYES\n2\n2 2\n2\n1 0\n2 0 1\n\n2\n0.4 0.6\n\n4\n0.1 0.9\n0.8 0.2\n"


def test_mutated_files_give_a_network_or_our_error() -> None:
    seeds = [MARKOV.encode(), BAYES.encode(), b"# c\n" + MARKOV.encode() * 2]
    read_well, refused = fuzz(lambda data: uai.read(decode(data, "f"), "f"), seeds, 300)
    assert read_well > 10
    assert refused > 100


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_the_networks_of_the_inference_competition_read(shared: Path, step: int) -> None:
    paths = sorted((shared / "networks" / "uai2014").glob("*/*.uai")) + sorted(
        (shared / "networks" / "uai2014").glob("*/*.uai.gz")
    )
    assert len(paths) > 50
    for path in paths[::step]:
        network = read_network(path)
        answer = path.parent / f"{path.name.removesuffix('.gz')}.MAR"
        if answer.exists():
            # "MAR", the number of variables, then for each its number of states and so many numbers.
            words = answer.read_text().split()[1:]
            assert int(words[0]) == len(network.variables)
            at = 1
            for cardinality in network.cardinalities:
                assert int(words[at]) == cardinality
                at += 1 + cardinality


@pytest.mark.parametrize("name", ["cpcs54", "cpcs179", "cpcs360b", "cpcs422b"])
def test_cpcs_has_the_variables_and_states_of_the_reference(shared: Path, name: str) -> None:
    folder = shared / "networks" / "cpcs"
    network = read_network(next(path for path in folder.iterdir() if path.name.startswith(f"{name}.uai")))
    reference = json.loads(gzip.decompress((shared / "oracle" / f"{name}.json.gz").read_bytes()))
    assert {variable.name: list(variable.states) for variable in network.variables} == reference["states"]
    assert network.kind == "bayes"


# Judged by hand: the first has nothing but its first word; the last copies a table whose rows do not sum to 1.
ZOO_ERRORS = {
    "BNUAIReader_file1.uai": ":1:6: found the end of the file, expected the number of variables",
    "BNUAIReader_file3.uai": ":35:1: table of '5': the row at 4=1, 1=0 sums to 0.5",
}


def test_the_zoo_reads_or_is_refused_for_a_reason(shared: Path) -> None:
    paths = sorted((shared / "formats" / "uai").rglob("*.uai"))
    assert paths
    for path in paths:
        if path.name in ZOO_ERRORS:
            assert ZOO_ERRORS[path.name] in error_of(lambda path=path: read_network(path))
        else:
            assert read_network(path).factors
