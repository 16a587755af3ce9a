from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from helpers.format_helpers import DNE, NETWORK, assert_same, error_of, fuzz
from junctor.formats import netica, read_network
from junctor.model.network import Network, Reading

NET = """// ~->[DNET-1]->~
/* written by hand */
bnet Lawn {
comment = "a \\"quoted\\" word; with { brackets";
visual V1 {
  nodefont = font {shape= "Arial"; size= 9;};
  windowposn = (26, 26, 1002, 383);
  NodeSet Node {BuiltIn = 1; Color = 0x00e1e1e1;};
};
node rain {
  kind = NATURE; discrete = FALSE; chance = CHANCE;
  levels = (0, 0.5, 10, INFINITY);
  parents = ();
  probs = (0.7, 0.2, 0.1);
  numcases = 1;
  visual V1 { center = (84, 60); height = 1; };
};
node sprinkler {
  kind = NATURE; discrete = TRUE; numstates = 2; parents = (); probs = (0.4, 0.6); evidence = #1;
};
node grass {
  kind = NATURE; discrete = TRUE; states = (dry, wet);
  parents = (sprinkler, rain);
  probs =
  //  dry    wet       // sprinkler rain
    (((0.1,  0.9),
      (0.05, 0.95), (0, 1)), ((1, 0), (0.3, 7e-1), (0.2, .8)));
  title = "Grass (is it wet?)";
};
node picnic {
  discrete = TRUE; states = (yes, no); chance = DETERMIN; parents = (rain, grass);
  functable = (yes, #0, (yes, no), @imposs, no);
};
node year {
  kind = NATURE; discrete = TRUE; levels = (2020, 2030); chance = DETERMIN; parents = (sprinkler);
  functable = (2030, 2020);
};
node note { kind = CONSTANT; discrete = FALSE; title = "a text"; };
};
"""
NOISY = """bnet gate {
node a { kind = NATURE; discrete = TRUE; states = (yes, no); parents = (); probs = (0.5, 0.5); };
node b { kind = NATURE; discrete = TRUE; states = (absent, present); parents = (); probs = (0.5, 0.5); };
node c { kind = NATURE; discrete = TRUE; states = (false, true); inputs = (, link); parents = (a, b);
  equation = "P (c | a, b) =\\
   NoisyOrDist (c, 0.1, a, 0.3, link, 0.6)"; };
};
"""


def read(text: str) -> Network:
    return netica.read(text.encode(), "f.dne")


def test_tables_go_by_rows_of_the_parents_with_the_last_parent_fastest() -> None:
    network = read(NET)
    assert network.name == "Lawn"
    assert [v.name for v in network.variables] == ["rain", "sprinkler", "grass", "picnic", "year"]
    assert network.variables[0].states == ("0 to 0.5", "0.5 to 10", "10 to INFINITY")
    assert network.variables[1].states == ("#0", "#1")
    assert network.variables[4].states == ("2020", "2030")
    grass = network.factors[2]
    assert grass.scope == (1, 0, 2)
    np.testing.assert_array_equal(
        grass.table, [[[0.1, 0.9], [0.05, 0.95], [0.0, 1.0]], [[1.0, 0.0], [0.3, 0.7], [0.2, 0.8]]]
    )


def test_function_tables_name_states_numbers_or_levels() -> None:
    network = read(NET)
    np.testing.assert_array_equal(network.factors[3].table[..., 0], [[1, 1], [1, 0], [0.5, 0]])
    np.testing.assert_array_equal(network.factors[4].table, [[0, 1], [1, 0]])
    intervals = NET.replace("levels = (2020, 2030)", "levels = (0, 10, 20)").replace(
        "discrete = TRUE; levels", "discrete = FALSE; levels"
    )
    np.testing.assert_array_equal(
        read(intervals.replace("(2030, 2020)", "(10, 9.5)")).factors[4].table, [[0, 1], [1, 0]]
    )
    np.testing.assert_array_equal(read(intervals.replace("(2030, 2020)", "(20, 0)")).factors[4].table, [[0, 1], [1, 0]])


def test_levels_may_fall() -> None:
    falls = NET.replace("levels = (2020, 2030)", "levels = (20, 10, 0)").replace(
        "discrete = TRUE; levels", "discrete = FALSE; levels"
    )
    for results, states in [("(4, 0.5)", (1, 1)), ("(20, 10)", (0, 0)), ("(9.5, 0)", (1, 1)), ("(4, 12)", (1, 0))]:
        table = read(falls.replace("(2030, 2020)", results)).factors[4].table
        np.testing.assert_array_equal(table.argmax(axis=1), states)
    for levels, result in [("(20, 10, 0)", "(21, 0)"), ("(0, 20, 10)", "(4, 0)")]:
        text = falls.replace("(20, 10, 0)", levels).replace("(2030, 2020)", result)
        assert "node 'year' has no state" in error_of(lambda text=text: read(text))  # type: ignore[misc]


def table_of(probs: str) -> str:
    """Return a file with a node c of three states, with parents a and b of two."""
    two = "node {} {{ kind = NATURE; discrete = TRUE; states = (x, y); parents = (); probs = (0.5, 0.5); }};"
    return (
        f"bnet n {{ {two.format('a')} {two.format('b')} node c {{ kind = NATURE; discrete = TRUE; "
        f"states = (x, y, z); parents = (a, b); probs = {probs}; }}; }};"
    )


@pytest.mark.parametrize(
    "probs",
    [
        "(((1, 0, 0), (0, 1, 0)), ((0, 0, 1), (.2, .3, .5)))",
        "(1, 0, 0,  // x x\n 0, 1, 0, 0, 0, 1, .2, .3, .5)",
        "((1, 0, 0), (0, 1, 0), (0, 0, 1), (.2, .3, .5))",
        "1 0 0 0 1 0 0 0 1 .2 .3 .5",
    ],
)
def test_tables_nest_by_parents_by_rows_or_not_at_all(probs: str) -> None:
    expected = [[[1, 0, 0], [0, 1, 0]], [[0, 0, 1], [0.2, 0.3, 0.5]]]
    np.testing.assert_array_equal(read(table_of(probs)).factors[2].table, expected)


@pytest.mark.parametrize(
    "probs",
    [
        # The child first, with rows that sum to 1 in the order of the numbers as well.
        "(((1, 0), (0, 0)), ((1, 0), (0, 0)), ((1, .2), (.3, .5)))",
        "((1, 0, 0, 0, 1, 0), (0, 0, 1, .2, .3, .5))",
        "(((1, 0, 0), (0, 1, 0)), ((0, 0, 1, .2), (.3, .5)))",
        "((1, 0, 0), (0, 1, 0), (0, 0, 1, .2), (.3, .5))",
        "(((1, 0, 0)), ((0, (1), 0)), ((0, 0, 1)), .2, .3, .5)",
    ],
)
def test_tables_that_nest_as_another_shape_are_refused(probs: str) -> None:
    message = error_of(lambda: read(table_of(probs)))
    assert message.startswith("f.dne:1:")
    assert "table of 'c': the brackets of its probs do not nest as 2 x 2 x 3: expected one pair" in message


def test_findings_are_noted() -> None:
    reading = Reading()
    netica.read(NET.encode(), "f.dne", reading)
    assert reading.notes == ["findings that are stored in the file are no evidence here: sprinkler"]


def test_a_noisy_or_equation_is_a_noisy_or() -> None:
    network = read(NOISY)
    assert network.factors[2].scope == (0, 1, 2)
    for a, b in itertools.product(range(2), range(2)):
        # a is yes in its first state, b present in its second.
        expected = 0.9 * (0.7 if a == 0 else 1) * (0.4 if b == 1 else 1)
        np.testing.assert_allclose(network.factors[2].table[a, b], [expected, 1 - expected], rtol=1e-14)


def test_a_noisy_and_equation_is_a_noisy_and() -> None:
    network = read(NOISY.replace("NoisyOrDist", "NoisyAndDist"))
    for a, b in itertools.product(range(2), range(2)):
        expected = 0.9 * (0.7 if a == 1 else 1) * (0.4 if b == 0 else 1)
        np.testing.assert_allclose(network.factors[2].table[a, b], [1 - expected, expected], rtol=1e-14)


def test_a_noisy_or_of_many_parents_stays_factored() -> None:
    names = [f"p{i}" for i in range(30)]
    nodes = "".join(
        f"node {name} {{ kind = NATURE; states = (no, yes); parents = (); probs = (0.5, 0.5); }};" for name in names
    )
    pairs = ", ".join(f"{name}, 0.5" for name in names)
    network = read(
        f"bnet n {{ {nodes} node c {{ states = (no, yes); parents = ({', '.join(names)}); "
        f'equation = "p(c | {", ".join(names)}) = NoisyOrDist(c, 0, {pairs})"; }}; }};'
    )
    assert network.hidden == 29
    assert [v.name for v in network.public] == [*names, "c"]


@pytest.mark.parametrize("content", [b"\x00\x01neta", b"NETA\x02\x00\x00", b"\x89abc\x1f\x04"])
def test_a_binary_file_is_refused_by_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "n.neta"
    path.write_bytes(content)
    assert error_of(lambda: read_network(path)).startswith(
        f"{path}: this is a binary file of Netica, which only Netica"
    )


def test_a_text_in_utf_16_is_no_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "n.neta"
    path.write_bytes(DNE.encode("utf-16"))
    assert_same(read_network(path), NETWORK)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (NET, "net { }", "f.dne:1:1: found the block 'net', expected 'bnet'"),
        (NET, "bnet a { };", "f.dne: no variables found"),
        (NET, "", "f.dne:1:1: found the end of the file, expected the head of a block"),
        (
            "kind = NATURE; discrete = FALSE; chance",
            "kind = DECISION; chance",
            "f.dne:10:1: node 'rain' is a decision of an influence diagram, expected nature nodes; the chance",
        ),
        (
            "kind = NATURE; discrete = FALSE",
            "kind = NATRE; discrete = FALSE",
            "f.dne:11:10: node 'rain' has kind 'NATRE', expected NATURE",
        ),
        ("(dry, wet)", "(dry, dry)", "f.dne:21:1: variable 'grass' has the state 'dry' twice"),
        ("states = (dry, wet);", "", "f.dne:21:1: node 'grass' has no states, expected a list"),
        (
            "(sprinkler, rain)",
            "(sprinkler, ran)",
            "f.dne:23:13: node 'grass': unknown parent 'ran', did you mean 'rain'?",
        ),
        ("(0.4, 0.6)", "(0.4, 0.5)", "f.dne:19:72: table of 'sprinkler': the row sums to 0.9, expected 1"),
        ("(0.4, 0.6)", "(0.4, x)", "f.dne:19:78: found 'x', expected a number"),
        ("(0.4, 0.6)", "(0.4, 0.6", "f.dne:19:72: found (0.4, 0.6, expected a list in balanced brackets"),
        ("(0.4, 0.6)", "(0.4)", "f.dne:19:72: table of 'sprinkler': found 1 entries, expected 2 (2)"),
        ("probs = (0.4, 0.6);", "", "f.dne:18:1: node 'sprinkler' has no probs and no functable: give it a table"),
        (
            "probs = (0.4, 0.6);",
            "probs = (0.4, 0.6); probs = (0.5, 0.5);",
            "f.dne:19:84: found a second 'probs', expected one",
        ),
        ("(yes, #0,", "(yes,", "f.dne:32:15: table of 'picnic': found 5 values of its function, expected 6"),
        ("(yes, #0,", "(yes, ye,", "f.dne:32:15: node 'picnic' has no state 'ye', did you mean 'yes'?"),
        ("(2030, 2020)", "(2030, 2021)", "f.dne:36:15: node 'year' has no state '2021'"),
        ("node grass {", "node grass", "f.dne:21:1: found 'node', expected the head of a block"),
    ],
)
def test_errors_say_what_and_where(old: str, new: str, message: str) -> None:
    assert old in NET
    assert error_of(lambda: read(NET.replace(old, new, 1))).startswith(message)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("NoisyOrDist", "NoisyMaxDist", "f.dne:5:14: node 'c' has the equation"),
        ("(c, 0.1, a", "(b, 0.1, a", "f.dne:5:14: node 'c': found NoisyOrDist (b, 0.1"),
        ("a, 0.3,", "", "f.dne:5:14: node 'c': found NoisyOrDist (c, 0.1, link, 0.6), expected the node, a number"),
        ("0.3", "x", "f.dne:5:14: node 'c': found NoisyOrDist (c, 0.1, a, x"),
        ("0.3", "1.3", "f.dne:5:14: node 'c': found [0.1, 1.3, 0.6], expected probabilities from 0 to 1"),
        ("0.3", "nan", "f.dne:5:14: node 'c': found [0.1, nan, 0.6], expected probabilities from 0 to 1"),
        ("(absent, present)", "(red, blue)", "f.dne:5:14: node 'c': the equation needs 'b' to be true or false, found"),
    ],
)
def test_equations_that_are_not_read_are_refused(old: str, new: str, message: str) -> None:
    assert old in NOISY
    assert error_of(lambda: read(NOISY.replace(old, new, 1))).startswith(message)


def test_decisions_are_left_out() -> None:
    text = DNE.rstrip().removesuffix("};") + (
        "node d { kind = DECISION; states = (go, stay); parents = (a); };\n"
        "node u { kind = UTILITY; parents = (d, b); functable = (1, 2, 3, 4); };\n};\n"
    )
    assert error_of(lambda: read(text)).endswith("leaves them out and takes the rest")
    reading = Reading(ignore_decisions=True)
    assert_same(netica.read(text.encode(), "f", reading), NETWORK)
    assert reading.notes == ["2 decisions and utilities were left out: 'd', 'u'"]


def test_a_short_file_cannot_ask_for_much() -> None:
    big = "bnet n { node a { states = (x, y); numstates = 2; parents = (); probs = (1, 0); };"
    assert "would have 999,999,999 entries" in error_of(
        lambda: read("bnet n { node a { numstates = 9999999999; parents = (); probs = (1, 0); }; };")
    )
    nested = "visual V {" * 5000 + "};" * 5000
    assert read(f"{big} {nested} }};").cardinalities == (2,)


def test_mutated_files_give_a_network_or_our_error() -> None:
    seeds = [NET.encode(), NOISY.encode(), DNE.encode()]
    read_well, refused = fuzz(lambda data: netica.read(data, "f"), seeds, 300)
    assert read_well > 12
    assert refused > 75
