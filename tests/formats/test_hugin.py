from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.mutation import check_damaged, error_in_time
from junctor.formats import hugin, read_network
from junctor.formats.files import decode
from junctor.formats.text import MAX_FILLED
from junctor.model.errors import ModelError
from junctor.model.network import MAX_TABLE_ENTRIES, Network, Variable

NODES = """\
net { }
node a { states = ("yes" "no"); }
node b { states = ("low" "mid" "high"); }
"""
A = "potential (a) { data = (0.25 0.75); }\n"
B = """\
potential (b | a) {
  data = ((0.1 0.2 0.7)
          (0.3 0.3 0.4));
}
"""
TEXT = NODES + A + B


def read(text: str) -> Network:
    return hugin.read(text, "n.net")


def error(text: str) -> str:
    with pytest.raises(ModelError) as caught:
        read(text)
    return str(caught.value)


def table(network: Network, name: str) -> np.ndarray:
    return network.factors[network.find(name)].table


def test_reads_nodes_states_and_tables_in_order() -> None:
    network = read(TEXT)
    assert (network.name, network.kind) == ("n", "bayes")
    assert network.variables == (Variable("a", ("yes", "no")), Variable("b", ("low", "mid", "high")))
    assert [factor.scope for factor in network.factors] == [(0,), (0, 1)]
    assert table(network, "a").tolist() == [0.25, 0.75]
    assert table(network, "b").tolist() == [[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]]


def test_the_first_parent_listed_is_the_first_axis() -> None:
    data = "(((.1 .9) (.2 .8)) ((.3 .7) (.4 .6)) ((.5 .5) (.6 .4)))"
    network = read(TEXT + f'node c {{ states = ("0" "1"); }} potential (c | b a) {{ data = {data}; }}')
    assert [network.variables[i].name for i in network.factors[2].scope] == ["b", "a", "c"]
    assert table(network, "c")[..., 0].tolist() == [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]


SAME = {
    "kinds spelled out": TEXT.replace("node", "discrete\tnode"),
    "attributes": TEXT.replace("{ states", '{ label = "}; %"; position = (1 2); x = ; subtype = number; states'),
    "no net": TEXT.split("\n", 1)[1],
    "comments": TEXT.replace("{ ", '{ % "; }\n ').replace(")\n", ") % a=yes\n"),
    "experience": TEXT.replace("{ data", "{ experience = (7); fading = (1); data"),
    "expression beside data": TEXT.replace("{ data", "{ model_data = (Normal (0, 1)); data"),
    "no space at all": TEXT.replace(" { ", "{").replace(" = ", "=").replace(" | ", "|").replace(" (", "("),
    "much space": TEXT.replace(" ", " \t\n "),
    "Windows line ends": TEXT.replace("\n", "\r\n"),
    "bar without parents": TEXT.replace("(a)", "( a | )"),
    "nodes in any order": B + A + NODES,
    "states without quotes": TEXT.replace('"', ""),
    "scientific notation": TEXT.replace("0.25", "2.5E-1").replace("0.75", "75e-2"),
    "one pair of brackets": TEXT.replace("((", "(").replace("))", ")").replace("7)", "7").replace("(0.3", "0.3"),
    "class": TEXT.replace("net { }", "class n { inputs = (a); node_size = (1 2);") + "}",
}


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_dialects_give_the_same_network(text: str) -> None:
    assert read(text).digest == read(TEXT).digest


def test_names_may_hold_brackets_and_strings_may_hold_quotes() -> None:
    text = TEXT.replace("node b", "node b(c1,d)").replace("(b |", "(b(c1,d) |").replace("yes", r"5\" \\ %; } (")
    network = read(text)
    assert network.variables[0].states == ('5" \\ %; } (', "no")
    assert network.variables[1].name == "b(c1,d)"


def test_the_network_takes_its_name_from_the_file_it_has_none() -> None:
    assert read(TEXT.replace("net { }", r'net { name = "New \"BN\""; }')).name == 'New "BN"'
    assert hugin.read(TEXT, "some/where/asia.old.net").name == "asia"


def test_without_data_a_table_is_uniform() -> None:
    network = read(NODES + "potential (a) { }\npotential (b | a) { experience = (1 1); }")
    assert table(network, "a").tolist() == [0.5, 0.5]
    assert table(network, "b") == pytest.approx(1 / 3)


# What is replaced by what in TEXT, and the message.
ERRORS = {
    "empty": (TEXT, "", "n.net: no variables found, expected at least one"),
    "keyword": ("node a", "nod a", "n.net:2:1: found 'nod', expected 'net' or 'class' or 'node' or 'potential'"),
    "keyword after a node": (
        "potential (a)",
        "pot (a)",
        ":4:1: found 'pot', expected 'net' or 'class' or 'node' or 'pot",
    ),
    "cut off": ("0.4));\n}", "0.4));", ":7:26: found the end of the file, expected an attribute or '}'"),
    "no end": ("0.75);", "0.75)", ":4:36: found '}', expected ';'"),
    "no name": ("node a", "node", ':2:6: found \'{ states = ("yes" "no"); }\', expected a name'),
    "quote": ('"yes"', '"yes', "the quote that opens here is never closed"),
    "no number": ("0.2 ", "x ", ":6:16: found 'x', expected a number"),
    "digits of other scripts": ("0.2 ", "1_0 ", ":6:16: found '1_0', expected a number"),
    "nan": ("0.2 ", "nan ", ":5:11: table of 'b': found"),
    "negative": ("0.2 ", "-0.2 ", ":5:11: table of 'b': found"),
    "counts": ("0.2 0.7", "2 7", ":5:11: table of 'b': the row at a=yes sums to 9.1, expected 1"),
    "too few entries": ("0.2 ", "", ":6:10: table of 'b': found 5 entries, expected 6 (2 x 3)"),
    "brackets": ("0.7)\n", "0.7\n", ":6:10: table of 'b': the brackets of its data do not nest as 2 x 3: expected one"),
    "rows of other lengths": ("0.7)\n          (", ")\n (0.7 ", ":6:10: table of 'b': the brackets of its data do not"),
    "brackets elsewhere": ("0.7)\n          (", "0.7 ", ":6:10: table of 'b': the brackets of its data do not nest"),
    "second data": ("{ data", "{ data = (1 0); data", ":4:31: found a second 'data', expected one"),
    "empty data": ("(0.25 0.75)", "", ":4:17: found no value of 'data', expected one after '='"),
    "expression": ("data", "model_data", ":4:11: table of 'a' is given by an expression (model_data), expected its"),
    "utility": ("node a", "utility a", "n.net:2:1: 'a' is a utility node, expected nothing but discrete chance nodes"),
    "instance": ("node a", "instance a", "n.net:2:1: 'a' is an instance node, expected nothing but discrete"),
    "decision": ("node a", "discrete decision a", "n.net:2:1: 'a' is a discrete decision node, expected nothing but"),
    "continuous": ("node a", "continuous node a", "n.net:2:1: 'a' is a continuous node, expected nothing but"),
    "no states": ("states", "stats", ':2:6: node \'a\' has no states, expected an attribute: states = ("no" "yes");'),
    "empty states": ('"yes" "no"', "", ":2:6: variable 'a' has no states, expected at least one"),
    "states no list": (
        '("yes" "no")',
        "2",
        ":2:19: the states of 'a': found 2, expected names in one pair of brackets",
    ),
    "same states": ("yes", "no", ":2:6: variable 'a' has the state 'no' twice"),
    "same nodes": ("node b", "node a", ":3:6: variable 'a' is defined twice (first at n.net:2:6)"),
    "no table": (A, "", ":2:6: variable 'a' has no table"),
    "second table": (A, A + A, ":5:11: variable 'a' has a second table (first at n.net:4:11)"),
    "unknown parent": ("| a)", "| aa)", ":5:11: table of 'b': unknown variable 'aa'"),
    "two children": (
        "(b |",
        "(b a |",
        ":5:11: found 2 variables before the '|' in (b a | a), expected (child | parents)",
    ),
    "no scope": ("(b | a)", "b | a", ":5:11: found 'b', expected the variables: (child | parents)"),
    "cycle": ("(a) { data = (0.25 0.75); }", "(a | b) { }", "the parents form a cycle"),
    "two classes": (B, B + "class x { }\nclass y { }", "n.net:10:1: found a second class, expected one network"),
}


@pytest.mark.parametrize(("old", "new", "message"), ERRORS.values(), ids=ERRORS)
def test_errors_say_where_what_and_what_was_expected(old: str, new: str, message: str) -> None:
    assert old in TEXT
    assert message in error(TEXT.replace(old, new, 1))


@pytest.mark.parametrize("body", ["{ }", "{ data = (0 1); }"])
def test_short_files_cannot_ask_for_huge_tables(body: str) -> None:
    names = [f"v{i}" for i in range(40)]
    nodes = "".join(f'node {name} {{ states = ("0" "1"); }}' for name in names)
    message = error(f"{nodes} potential (v0 | {' '.join(names[1:])}) {body}")
    assert f"table of 'v0' would have {2**40:,} entries, allowed are {MAX_TABLE_ENTRIES:,}" in message


def test_many_middling_tables_count_together() -> None:
    names = [f"v{i}" for i in range(24)]
    nodes = "".join(f'node {name} {{ states = ("0" "1"); }}' for name in names)
    tables = "".join(f"potential ({name} | {' '.join(names[:i])}) {{ }}" for i, name in enumerate(names))
    assert f"allowed are {MAX_FILLED:,} for all such tables of a file together" in error(nodes + tables)


def test_a_table_over_very_many_variables_is_refused() -> None:
    names = [f"v{i}" for i in range(100)]
    nodes = "".join(f'node {name} {{ states = ("0"); }} potential ({name}) {{ }}' for name in names[1:])
    text = f'{nodes}node v0 {{ states = ("0"); }} potential (v0 | {" ".join(names[1:])}) {{ }}'
    assert "100 variables" in error(text)


def test_damaged_files_give_a_network_or_our_error() -> None:
    check_damaged(read, list(SAME.values()), "n.net")


@pytest.mark.parametrize(
    "piece",
    ["(", ")", "{", "}", '"', "%", "=", ";", "|", " ", "a", "0", "a b ", "(a", "f(x) ", '"" ', "\\", '\\"', "net {} "],
)
def test_endless_repetition_takes_no_time(piece: str) -> None:
    for head in ("", "net { a = ", "node ", "potential (", "node a { states = (", TEXT[:-6], TEXT + 'node x { y = "'):
        error_in_time(read, head + piece * 30_000 + "\0")


# Files of the zoo that do not read, and why.
REFUSED = {
    "unbbayes/mildew3-2.net": "mildew3-2.net:92:1: 'A' is a decision node, expected nothing but discrete chance nodes",
}
ZOO = 24


def test_the_zoo_reads_or_says_why_not(shared: Path) -> None:
    folder = shared / "formats" / "net"
    files = sorted(folder.rglob("*.net"))
    refused = {}
    for file in files:
        try:
            hugin.read(decode(file.read_bytes()), file.name)
        except ModelError as caught:
            refused[str(file.relative_to(folder))] = str(caught)
    assert len(files) >= ZOO
    assert refused.keys() == REFUSED.keys()
    for name, message in REFUSED.items():
        assert message in refused[name]


def test_chest_clinic_has_the_published_numbers(shared: Path) -> None:
    asia = read((shared / "formats" / "net" / "gRain" / "chest_clinic.net").read_text())
    # Lauritzen and Spiegelhalter 1988.
    assert table(asia, "T").tolist() == [[0.05, 0.95], [0.01, 0.99]]
    assert table(asia, "E")[..., 0].tolist() == [[1, 1], [1, 0]]
    assert table(asia, "D")[..., 0].ravel() == pytest.approx([0.9, 0.8, 0.7, 0.1])


R_FILES = {
    "bnlearn.bif": """network unknown {
}
variable A {
  type discrete [ 2 ] { a, b };
}
variable B {
  type discrete [ 2 ] { a, b };
}
probability ( A ) {
  table 0.25, 0.75;
}
probability ( B | A ) {
  (a) 0.9, 0.1;
  (b) 0.4, 0.6;
}
""",
    "bnlearn.net": """net
{
}

node A
{
  states = ( "a" "b" );
}
node B
{
  states = ( "a" "b" );
}

potential ( A )
{
  data = ( 0.25 0.75 );
}
potential ( B | A )
{
  data = (( 0.9 0.1 )( 0.4 0.6 ));
}
""",
    "grain.net": """class anonymous
{

  node A
  {
    states = ("a" "b");
    label = "A";
    ID = "A";
  }

  node B
  {
    states = ("a" "b");
    label = "B";
    ID = "B";
  }

  potential ( A )
  {
    data = (0.25 0.75);
  }
  potential ( B | A )
  {
    data = ((0.9 0.1) (0.4 0.6));
  }
}
""",
}


@pytest.mark.parametrize("name", R_FILES)
def test_files_as_r_writes_them(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(R_FILES[name])
    network = read_network(tmp_path / name)
    assert [each.states for each in network.variables] == [("a", "b")] * 2
    assert [factor.table.tolist() for factor in network.factors] == [[0.25, 0.75], [[0.9, 0.1], [0.4, 0.6]]]
