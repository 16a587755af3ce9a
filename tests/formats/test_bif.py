from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from helpers.mutation import check_damaged, error_in_time, mutated
from helpers.strategies import networks
from hypothesis import given
from hypothesis import strategies as st
from junctor.formats import bif
from junctor.formats.files import decode
from junctor.formats.text import MAX_FILLED, SourceText, TextBlock, parse
from junctor.model.errors import ModelError
from junctor.model.network import MAX_TABLE_ENTRIES, Network, Reading, Variable

VARIABLES = """\
network n {}
variable a { type discrete [ 2 ] { yes, no }; }
variable b { type discrete [ 3 ] { low, mid, high }; }
"""
A = "probability ( a ) { table 0.25, 0.75; }\n"
B = """\
probability ( b | a ) {
  (yes) 0.1, 0.2, 0.7;
  (no) 0.3, 0.3, 0.4;
}
"""
TEXT = VARIABLES + A + B
B_ROWS = [[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]]


def read(text: str) -> Network:
    return bif.read(text, "n.bif")


def error(text: str) -> str:
    with pytest.raises(ModelError) as caught:
        read(text)
    return str(caught.value)


def states(network: Network, name: str) -> tuple[str, ...]:
    return network.variables[network.find(name)].states


def table(network: Network, name: str) -> np.ndarray:
    return network.factors[network.find(name)].table


def binary(name: str) -> str:
    return f"variable {name} {{ type discrete [ 2 ] {{ yes, no }}; }}\n"


def test_counts_whose_sum_is_no_double() -> None:
    text = TEXT.replace("0.25, 0.75", "1e308, 1e308")
    assert table(bif.read(text, "n.bif", Reading(normalize=True)), "a").tolist() == [0.5, 0.5]
    message = error(text)
    assert "the row sums to inf, expected 1" in message
    assert "--normalize" in message


def test_reads_variables_states_and_tables_in_order() -> None:
    network = read(TEXT)
    assert (network.name, network.kind) == ("n", "bayes")
    assert network.variables == (Variable("a", ("yes", "no")), Variable("b", ("low", "mid", "high")))
    assert [factor.scope for factor in network.factors] == [(0,), (0, 1)]
    assert table(network, "a").tolist() == [0.25, 0.75]
    assert table(network, "b").tolist() == B_ROWS


def test_the_first_parent_listed_is_the_first_axis() -> None:
    rows = "".join(f"({a}, {b}) {p} {1 - p};" for (a, b), p in zip(PAIRS, (0.5, 0.25, 0.125, 0, 1, 0.75), strict=True))
    network = read(TEXT + binary("c") + f"probability (c | a, b) {{ {rows} }}")
    assert table(network, "c")[..., 0].tolist() == [[0.5, 0.125, 1], [0.25, 0, 0.75]]


PAIRS = [("yes", "low"), ("no", "low"), ("yes", "mid"), ("no", "mid"), ("yes", "high"), ("no", "high")]

SAME = {
    "quotes, and spaces for commas": TEXT.replace("a ", '"a" ').replace("{ yes, no }", '{ "yes" "no" }'),
    "quoted row labels": TEXT.replace("(yes)", '( "yes" )'),
    "JavaBayes comments": TEXT.replace("variable a {", "variable  a { //2 values\n"),
    "C comments": TEXT.replace("table", "/* x ; } \n */ table /**/").replace(";\n}", "; // } \n}"),
    "no space at all": TEXT.replace(", ", ",").replace(" { ", "{").replace(" | ", "|").replace("( ", "("),
    "much space": TEXT.replace(" ", " \t\n "),
    "Windows line ends": TEXT.replace("\n", "\r\n"),
    "no bar": TEXT.replace("b | a", '"b" "a"'),
    "bar without parents": TEXT.replace("( a )", "( a | )"),
    "blocks in any order": B + A + VARIABLES,
    "no network block": TEXT.split("\n", 1)[1],
    "nameless network": TEXT.replace("network n", "network"),
    "properties": TEXT.replace(
        "{ t", '{ property "position = (7, 8)" ; property x = {; property; t'.replace("{;", ";")
    ),
    "a property without its end": TEXT.replace("n {}", 'n { property Source = "x"\n property size = (1, 2); }'),
    "no end of a type": TEXT.replace("};", "}"),
    "scientific notation": TEXT.replace("0.25, 0.75", "2.5E-1 +75e-2"),
    "default for all": TEXT.replace("table 0.25", "default 0.25"),
    "default for a row": TEXT.replace("(no)", "default"),
    "table of a child": TEXT.replace(B, "probability (b | a) { table 0.1 0.3 0.2 0.3 0.7 0.4; }"),
    "rows in any order": TEXT.replace("  (yes) 0.1, 0.2, 0.7;\n", "").replace("0.4;", "0.4; (yes) 0.1, 0.2, 0.7;"),
}


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_dialects_give_the_same_network(text: str) -> None:
    assert read(text).digest == read(TEXT).digest


def test_names_without_quotes_may_hold_odd_characters() -> None:
    listed = [
        "<5",
        "5-12",
        "12+",
        ">=7.5",
        "Asy/Patch",
        "0",
        "x.y",
        "50%",
        "5 to 10",
        "f(a,b)",
        "[0;5[",
        "é",
        "a:b",
        "?",
    ]
    lines = [f"(n1?, {state}) 0.5, 0.5;" for state in listed]
    network = read(
        f"variable v.1-x? {{ type discrete[{len(listed)}] {{ {', '.join(listed)} }}; }}\n"
        f"probability (v.1-x?) {{ default {' 0.0' * (len(listed) - 1)} 1; }}\n"
        "variable one { type discrete[1] {n1?}; } probability (one) { table 1; }\n"
        "variable My node (old) { type discrete[2] {yes, no}; }\n"
        f"probability ( My  node (old) | one, v.1-x? ) {{ {' '.join(lines)} }}"
    )
    assert network.variables[0] == Variable("v.1-x?", tuple(listed))
    assert network.variables[2].name == "My node (old)"
    assert table(network, "My node (old)").shape == (1, len(listed), 2)


def test_quotes_hold_everything() -> None:
    network = read(TEXT.replace("a ", '" a,{b}|(c);//d " ').replace("yes", '"/* y,\t(e)s; } "'))
    assert network.variables[0] == Variable(" a,{b}|(c);//d ", ("/* y,\t(e)s; } ", "no"))


def test_words_are_states_where_commas_do_not_fit_the_number_of_states() -> None:
    assert states(read(TEXT.replace("low, mid, high", "low mid, high")), "b") == ("low", "mid", "high")


def test_a_nameless_network_is_named_after_its_file() -> None:
    assert bif.read(TEXT.split("\n", 1)[1], "some/where/asia.old.bif").name == "asia"


def test_table_of_a_node_with_parents_has_the_child_slowest() -> None:
    three = binary("c") + "probability (c | b, a) { table .1 .2 .3 .4 .5 .6 .9 .8 .7 .6 .5 .4; }"
    network = read(TEXT + three)
    assert table(network, "c")[..., 0].tolist() == [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]


# What is replaced by what in TEXT, and the message.
ERRORS = {
    "empty": (TEXT, "", "n.bif: no variables found, expected at least one"),
    "keyword": ("variable a", "varable a", "n.bif:2:1: found 'varable', expected 'network' or 'variable'"),
    "stray word": (A, A + "foo ", ":5:1: found 'foo', expected 'network' or 'variable' or 'probability'"),
    "cut off": ("0.4;\n}", "0.4;", ":7:22: found the end of the file, expected"),
    "end of row": ("0.7;", "0.7", ":7:3: found '(no) 0.3, 0.3, 0.4;', expected a number or ';'"),
    "word for number": ("0.7;", "x;", ":6:19: found 'x', expected a number or ';'"),
    "nan": ("0.7;", "nan;", ":6:19: found 'nan', expected a number or ';'"),
    "no number": ("0.7;", "0.7.1;", ":6:19: found '0.7.1', expected a number"),
    "infinite": ("0.7;", "1e999;", ":5:13: table of 'b': found"),
    "negative": ("0.7;", "-0.7;", ":5:13: table of 'b': found"),
    "row sum": ("0.7;", "0.5;", ":5:13: table of 'b': the row at a=yes sums to 0.8, expected 1"),
    "too many entries": ("0.2, 0.7", "0.2, 0.3, 0.4", ":6:9: table of 'b': found 4 entries in a row, expected 3"),
    "too few entries": ("0.2, 0.7", "0.9", ":6:9: table of 'b': found 2 entries in a row, expected 3"),
    "row label": ("(no)", "(nope)", ":7:3: table of 'b': row (nope): 'a' has no state 'nope', did you mean 'no'?"),
    "too many labels": ("(no)", "(no, no)", ":7:3: table of 'b': row (no, no) names 2 states, expected 1 (a)"),
    "second row": ("(no)", "(yes)", ":7:3: table of 'b': second row for (yes) (first at n.bif:6:3)"),
    "missing row": ("  (no) 0.3, 0.3, 0.4;\n", "", ":5:13: table of 'b': found 1 rows, expected 2; the first that is"),
    "unclosed label": ("(no)", "(no", ":7:3: found '(no 0.3, 0.3, 0.4;', expected the parents' states in brackets"),
    "table and default": ("table", "default .5 .5; table", "found 1 'table', 1 'default' and 0 rows, expected either"),
    "second table": (A, A + A, ":5:13: variable 'a' has a second table (first at n.bif:4:13)"),
    "no table": (A, "", ":2:10: variable 'a' has no table"),
    "unknown parent": ("| a )", "| aa )", ":5:13: table of 'b': unknown variable 'aa'"),
    "second bar": ("| a )", "| a | a )", ":5:13: found 2 '|' in ( b | a | a ), expected (child | parents)"),
    "two children": ("( b |", "( b, a |", ":5:13: found 2 variables before the '|' in ( b, a | a )"),
    "no child": ("( b |", "( |", ":5:13: found 0 variables before the '|' in ( | a )"),
    "cycle": ("( a ) { table 0.25, 0.75; }", "( a | b ) { default 1 0; }", "the parents form a cycle"),
    "number of states": ("[ 2 ]", "[ 3 ]", ":2:34: variable 'a' has 2 states (yes, no), expected 3"),
    "many states": ("[ 2 ]", "[ 999999999 ]", ":2:42: variable 'a' has 2 states (yes, no), expected 999999999"),
    "very many states": ("[ 2 ]", "[ 1000000000 ]", ":2:30: found '1000000000', expected the number of states"),
    "no states": ("{ yes, no }", "", ":2:34: found ';', expected the states in braces"),
    "same states": ("yes, no", "no, no", ":2:10: variable 'a' has the state 'no' twice"),
    "same variables": ("variable b", "variable a", ":3:10: variable 'a' is defined twice (first at n.bif:2:10)"),
    "no type": ("type discrete [ 2 ] { yes, no };", "", ":2:10: variable 'a' has no type, expected one: type discrete"),
    "zero states": ("[ 2 ] { yes, no }", "[ 0 ] { }", ":2:10: variable 'a' has no states, expected at least one"),
    "two types": ("{ type", "{ type discrete [1] {x}; type", ":2:10: variable 'a' has 2 types, expected one"),
    "continuous": ("discrete", "continuous", ":2:19: found 'continuous', expected 'discrete': only discrete"),
    "quote": ("yes, no", '"yes, no', ":2:36: the quote that opens here is never closed"),
    "comment": (A, "/* " + A, ":4:1: the comment that opens here is never closed"),
    "noisy-max": (
        "| a ) {\n  (yes) 0.1, 0.2, 0.7;",
        "| a ) { property function  max;",
        "(yes): 'property function max' stands for a noisy model, which has to be written out",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), ERRORS.values(), ids=ERRORS)
def test_errors_say_where_what_and_what_was_expected(old: str, new: str, message: str) -> None:
    assert old in TEXT
    assert message in error(TEXT.replace(old, new, 1))


def test_a_stray_quote_is_told_where_it_most_likely_stands() -> None:
    text = TEXT.replace("a ", '"a" ').replace("low,", 'low",')
    assert ":3:39: the quote that opens here is never closed" in error(text)


def test_a_table_with_the_child_fastest_is_refused_and_explained() -> None:
    message = error(TEXT.replace(B, "probability (b | a) { table 0.1 0.2 0.7 0.3 0.3 0.4; }"))
    assert "n.bif:5:29: table of 'b': its rows sum to 1 only if the child is the fastest variable" in message


def test_a_table_of_the_wrong_size_is_refused() -> None:
    message = error(TEXT.replace(B, "probability (b | a) { table 0.1 0.9; }"))
    assert message == "n.bif:5:29: table of 'b': found 2 entries, expected 6 (3 x 2)"


@pytest.mark.parametrize("body", ["{ default 1 0; }", "{ }", "{ table 1 0; }"])
def test_short_files_cannot_ask_for_huge_tables(body: str) -> None:
    names = [f"v{i}" for i in range(64)]
    variables = "".join(map(binary, names))
    message = error(f"{variables} probability (v0 | {', '.join(names[1:])}) {body}")
    assert f"table of 'v0' would have {2**64:,} entries, allowed are {MAX_TABLE_ENTRIES:,}" in message


def test_tables_over_very_many_variables_are_refused() -> None:
    names = [f"v{i}" for i in range(20_000)]
    variables = "".join(map(binary, names))
    assert "table of 'v0' has 20,000 variables" in error(f"{variables} probability (v0 | {', '.join(names[1:])}) {{ }}")


def test_many_middling_tables_count_together() -> None:
    names = [f"v{i}" for i in range(24)]
    variables = "".join(map(binary, names))
    tables = "".join(
        f"probability ({name} | {', '.join(names[:i])}) {{ default 1 0; }}" for i, name in enumerate(names)
    )
    assert f"allowed are {MAX_FILLED:,} for all such tables of a file together" in error(variables + tables)


NAMES = st.one_of(
    st.sampled_from(
        ["table", "property", "a b", "a,b", "x|y", "//", "/*", "{", "(", ")", ";", "%", "<5", "'", " ", "é"]
    ),
    st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters='"'), min_size=1, max_size=6),
)


@st.composite
def named_networks(draw: st.DrawFn) -> Network:
    network = draw(networks(kind="bayes"))
    count = len(network.variables)
    names = draw(st.lists(NAMES, min_size=count, max_size=count, unique=True))
    listed = (draw(st.lists(NAMES, min_size=size, max_size=size, unique=True)) for size in network.cardinalities)
    variables = tuple(Variable(name, tuple(states)) for name, states in zip(names, listed, strict=True))
    return replace(network, name=draw(NAMES), variables=variables)


@given(named_networks())
def test_written_networks_read_back_the_same(network: Network) -> None:
    again = read(bif.write(network))
    assert again.name == network.name
    assert again.variables == network.variables
    assert [factor.scope for factor in again.factors] == [factor.scope for factor in network.factors]
    for mine, theirs in zip(again.factors, network.factors, strict=True):
        assert mine.table.tobytes() == theirs.table.tobytes()


def test_plain_names_are_written_without_quotes() -> None:
    assert bif.write(read(TEXT)).startswith("network n {\n}\nvariable a {\n  type discrete [ 2 ] { yes, no };\n}\n")
    assert bif.write(read(TEXT)).endswith(
        "}\nprobability ( b | a ) {\n  (yes) 0.1, 0.2, 0.7;\n  (no) 0.3, 0.3, 0.4;\n}\n"
    )


def test_what_bif_cannot_hold_is_not_written() -> None:
    network = read(TEXT)
    with pytest.raises(ModelError, match="write a Markov network as UAI or Parquet"):
        bif.write(replace(network, kind="markov"))
    for name in ('5"', "a\nb"):
        with pytest.raises(ModelError, match="which BIF cannot express: write UAI or Parquet"):
            bif.write(replace(network, variables=(Variable(name, ("yes", "no")), network.variables[1])))
    assert read(bif.write(replace(network, name='"\n'))).name == "__"


def test_damaged_files_give_a_network_or_our_error() -> None:
    check_damaged(read, list(SAME.values()), "n.bif")


def tree(block: TextBlock) -> tuple[str, list[object]]:
    return block.kind, [
        tree(child) if isinstance(child, TextBlock) else (str(child), child.start_pos) for child in block.children
    ]


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_texts_scan_exactly_where_they_parse(text: str) -> None:
    random = Random(len(text))
    for damage in range(20):
        source = SourceText(mutated(text, random) if damage else text, "n.bif")
        scanned = bif._scanned(source.text)
        try:
            parsed = parse(bif._GRAMMAR, source, bif._WORDS)
        except ModelError:
            assert scanned is None
        else:
            assert scanned is not None
            assert tree(scanned) == tree(parsed)


@pytest.mark.parametrize(
    "piece",
    [
        "(",
        ")",
        "{",
        "}",
        '"',
        "/*",
        "//",
        "[",
        "|",
        ",",
        " ",
        "a",
        "0",
        "a b ",
        "(a",
        "f(x) ",
        '"" ',
        "network ",
        "{}",
        "\\",
    ],
)
def test_endless_repetition_takes_no_time(piece: str) -> None:
    for head in (
        "",
        "network n ",
        "variable ",
        "variable a { type discrete [2] {",
        "probability (",
        TEXT[:-3],
        TEXT + "/",
    ):
        error_in_time(read, head + piece * 30_000 + "\x00")


# Files of the zoo that do not read, and why.
REFUSED = {
    "agrum/BIFReader_file1.bif": "no variables found",
    "agrum/BIFReader_file3.bif": ":58:9: table of 'n6': found 10 entries, expected 12 (2 x 2 x 3)",
    "agrum/BIFReader_file4.bif": ":58:9: table of 'n6': found 10 entries, expected 12 (2 x 2 x 3)",
    # Noisy-max parameters, in the syntax of rows.
    "agrum/carpo.bif": ":503:13: table of 'N5': found 3 rows, expected 4; the first that is missing is (1, 1): 'prop",
    # Its rows have (6,4) where (6_5,4) is meant.
    "agrum/dBN.bif": ":432:1: table of 'c1t_1': second row for (6,4) (first at",
}
ZOO = 29


def test_the_zoo_reads_or_says_why_not(shared: Path) -> None:
    folder = shared / "formats" / "bif"
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() == ".bif")
    refused = {}
    for file in files:
        try:
            network = bif.read(decode(file.read_bytes()), file.name)
        except ModelError as caught:
            refused[str(file.relative_to(folder))] = str(caught)
        else:
            assert read(bif.write(network)).digest == network.digest
    assert len(files) >= ZOO
    assert refused.keys() == REFUSED.keys()
    for name, message in REFUSED.items():
        assert message in refused[name]


def test_javabayes_tables_have_the_published_numbers(shared: Path) -> None:
    text = (shared / "formats" / "bif" / "javabayes" / "dog-problem.bif").read_text()
    dog = read(text)
    assert dog.variables[2] == Variable("dog_out", ("true", "false"))
    # Charniak 1991: bowel problem and family out, only one of them, none.
    assert table(dog, "dog_out")[..., 0].tolist() == [[0.99, 0.97], [0.9, 0.3]]
    assert [dog.variables[i].name for i in dog.factors[2].scope] == ["bowel_problem", "family_out", "dog_out"]


def test_alarm_is_the_same_from_all_tools(shared: Path) -> None:
    zoo = shared / "formats" / "bif"
    files = [
        shared / "networks/bnlearn/alarm.bif",
        *(zoo / tool / "alarm.bif" for tool in ("agrum", "pyagrum", "fastpgm")),
    ]
    first, *others = (read(file.read_text()) for file in files)
    for other in others:
        assert other.variables == first.variables
        for mine, theirs in zip(first.factors, other.factors, strict=True):
            assert mine.scope == theirs.scope
            # Some keep seven digits.
            assert mine.table == pytest.approx(theirs.table, abs=1e-6)


BNLEARN = (
    "alarm andes asia barley cancer child diabetes earthquake hailfinder hepar2 insurance link mildew munin munin1 "
    "munin2 munin3 munin4 pathfinder pigs sachs survey water win95pts"
)


@pytest.mark.parametrize("name", BNLEARN.split())
def test_bnlearn_networks_agree_with_the_oracle(name: str, shared: Path) -> None:
    folder = shared / "networks" / "bnlearn"
    file = next(folder.glob(f"{name}.bif*"))
    network = read(decode(gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()))
    oracle = shared / "oracle" / f"{name}.json.gz"
    known = json.loads(gzip.decompress(oracle.read_bytes()))
    assert {variable.name: list(variable.states) for variable in network.variables} == known["states"]
    prior = known["prior"]["posteriors"]
    roots = {i for i, factor in enumerate(network.factors) if len(factor.scope) == 1}
    for factor in network.factors:
        *parents, child = factor.scope
        if roots.issuperset(parents):
            expected = factor.table
            for parent in parents:
                expected = np.tensordot(network.factors[parent].table, expected, 1)
            assert expected == pytest.approx(prior[network.variables[child].name], abs=1e-6)
