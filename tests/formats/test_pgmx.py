from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers.format_helpers import NETWORK, PGMX, assert_same, error_of, fuzz
from junctor.formats import pgmx
from junctor.model.network import Network, Reading


def variable(name: str, states: str, role: str = "chance") -> str:
    listed = "".join(f'<State name="{state}"/>' for state in states.split())
    return f'<Variable name="{name}" type="finiteStates" role="{role}"><States>{listed}</States></Variable>\n'


def potential(scope: str, values: str, kind: str = "Table") -> str:
    listed = "".join(f'<Variable name="{name}"/>' for name in scope.split())
    numbers = f"<Values>{values}</Values>" if values else ""
    return (
        f'<Potential type="{kind}" role="conditionalProbability"><Variables>{listed}</Variables>{numbers}</Potential>\n'
    )


def file(variables: str, potentials: str) -> str:
    return (
        '<ProbModelXML formatVersion="0.2.0"><ProbNet type="BayesianNetwork">\n'
        f"<Variables>{variables}</Variables><Potentials>\n{potentials}</Potentials></ProbNet></ProbModelXML>"
    )


PARENTS = variable("a", "no yes") + variable("b", "low mid high")
PRIORS = potential("a", "0.5 0.5") + potential("b", "", "Uniform")
TABLE = file(
    PARENTS + variable("c", "x y"),
    PRIORS + potential("c a b", "0.1 0.9 0.2 0.8 0.3 0.7 0.4 0.6 0 1 1 0"),
)
PARTS = (
    potential("c a", "1 0 0 0.2 0.5 0.3")
    + potential("c b", "1 0 0 0.5 0.25 0.25 0.1 0.3 0.6")
    + potential("c", "0.9 0.06 0.04")
)
ICI = file(
    PARENTS + variable("c", "absent mild severe"),
    PRIORS
    + '<Potential type="ICIModel" role="conditionalProbability"><Variables><Variable name="c"/><Variable name="a"/>'
    + '<Variable name="b"/></Variables>\n<Model>OR / MAX</Model><Subpotentials>\n'
    + PARTS
    + "</Subpotentials></Potential>\n",
)


def read(text: str) -> Network:
    return pgmx.read(text.encode(), "f.pgmx")


def test_the_first_parent_varies_fastest_but_for_the_child() -> None:
    network = read(TABLE)
    assert network.name == "f"
    np.testing.assert_array_equal(network.factors[1].table, np.full(3, 1 / 3))
    table = network.factors[2]
    assert table.scope == (1, 0, 2)
    np.testing.assert_array_equal(table.table[..., 0], [[0.1, 0.2], [0.3, 0.4], [0, 1]])


@pytest.mark.parametrize(("model", "choose"), [("OR / MAX", max), ("GeneralizedMax", max), ("AND / MIN", min)])
def test_noisy_models_are_the_extreme_of_independent_effects(model: str, choose: object) -> None:
    network = read(ICI.replace("OR / MAX", model))
    parts = [
        [[1, 0, 0], [0.2, 0.5, 0.3]],
        [[1, 0, 0], [0.5, 0.25, 0.25], [0.1, 0.3, 0.6]],
    ]
    leak = [0.9, 0.06, 0.04]
    table = network.factors[2]
    assert table.scope == (0, 1, 2)
    for a, b in itertools.product(range(2), range(3)):
        expected = np.zeros(3)
        for effects in itertools.product(range(3), repeat=3):
            expected[choose(effects)] += parts[0][a][effects[0]] * parts[1][b][effects[1]] * leak[effects[2]]  # type: ignore[operator]
        np.testing.assert_allclose(table.table[a, b], expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (TABLE, TABLE, "<BIF/>", "f.pgmx:1:1: found <bif>, expected <ProbModelXML>"),
        (TABLE, "BayesianNetwork", "MDP", "f.pgmx:1:37: the network is of type 'MDP', expected a BayesianNetwork"),
        (TABLE, "finiteStates", "numeric", "f.pgmx:2:12: variable 'a' is of type 'numeric', expected finiteStates"),
        (TABLE, "Uniform", "Tree/ADD", "f.pgmx:7:1: table of 'b' is a potential of type 'Tree/ADD', expected Table"),
        (TABLE, '<Variable name="c"/>', '<Variable name="d"/>', "f.pgmx:8:1: a potential: unknown variable 'd'"),
        (TABLE, "0 1 1 0", "0 1", "f.pgmx:8:138: table of 'c': found 10 entries, expected 12 (3 x 2 x 2)"),
        (TABLE, "0.5 0.5", "0.5 x", "f.pgmx:6:110: found 'x' in <values>, expected a number"),
        (
            ICI,
            "OR / MAX",
            "Tuning",
            "f.pgmx:9:1: table of 'c' is the noisy model 'Tuning', expected OR / MAX or AND / MIN",
        ),
        (ICI, "0.9 0.06 0.04", "0.9 0.1", "f.pgmx:12:98: table of 'c': found 2 entries of a part, expected 3"),
        (ICI, "0.9 0.06 0.04", "0.9 0.06 0.4", "f.pgmx:12:98: table of 'c': found [0.9, 0.06, 0.4] as distribution 1"),
        (ICI, PARTS, "", "f.pgmx:8:1: table of 'c' has no leak, expected one"),
        (ICI, potential("c a", "1 0 0 0.2 0.5 0.3"), "", "f.pgmx:8:1: table of 'c' has no part of 'a', expected one"),
        (
            ICI,
            potential("c", "0.9 0.06 0.04"),
            potential("c a", "1 0 0 1 0 0"),
            "f.pgmx:12:1: table of 'c': found a part",
        ),
    ],
)
def test_errors_say_what_and_where(text: str, old: str, new: str, message: str) -> None:
    assert old in text
    assert error_of(lambda: read(text.replace(old, new, 1))).startswith(message)


def test_decisions_are_left_out() -> None:
    text = PGMX.replace(
        "</Variables><Links>",
        variable("d", "go stay", "decision") + variable("u", "", "utility") + "</Variables><Links>",
    ).replace(
        "</Potentials>",
        '<Potential type="Table" role="utility"><UtilityVariable name="u"/><Variables><Variable name="d"/>'
        "</Variables><Values>1 2</Values></Potential></Potentials>",
    )
    assert error_of(lambda: read(text)).endswith("leaves them out and takes the rest")
    assert_same(pgmx.read(text.encode(), "f", Reading(ignore_decisions=True)), NETWORK)
    depends = text.replace('<Variable name="b"/><Variable name="a"/>', '<Variable name="b"/><Variable name="d"/>')
    assert error_of(lambda: read(depends)).endswith("the chance node 'b' depends on it")


def test_mutated_files_give_a_network_or_our_error() -> None:
    seeds = [TABLE.encode(), ICI.encode(), PGMX.encode()]
    read_well, refused = fuzz(lambda data: pgmx.read(data, "f"), seeds, 300)
    assert read_well > 7
    assert refused > 75
