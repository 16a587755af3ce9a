"""Files of costs: .wcsp and .cfn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import junctor
import numpy as np
import pytest
from helpers.format_helpers import CFN, WCSP, assert_same, error_of, fuzz
from hypothesis import example, given
from hypothesis import strategies as st
from junctor.formats import cfn, read_network, wcsp
from junctor.formats.costs import MAX_COST
from junctor.formats.files import decode
from junctor.model.network import Network, Reading

# Numbers of states, cost functions (variables, and costs with the last one fastest), and the bound.
Problem = tuple[list[int], list[tuple[list[int], list[int]]], int]
# The example of toulbar2's manual: two solutions, of costs 0 and 2.
QUEENS = "2 {a} {b} 0 {n}\n{tuples}"
COSTS = ("", "1 0 0 2\n1 1\n3 1\n", "1 1 0 2\n1 1\n2 1\n", "1 2 0 2\n1 1\n2 1\n", "1 3 0 2\n0 1\n2 1\n")


def queens() -> str:
    """Four queens, with costs of some of their places."""
    functions = []
    for one, other in itertools.combinations(range(4), 2):
        attacks = [(i, j) for i in range(4) for j in range(4) if i == j or abs(i - j) == other - one]
        tuples = "".join(f"{i} {j} 5\n" for i, j in attacks)
        functions.append(QUEENS.format(a=one, b=other, n=len(attacks), tuples=tuples))
    return "4-WQUEENS 4 4 10 5\n4 4 4 4\n" + "".join([*functions, *COSTS])


def test_queens_have_the_solutions_and_costs_of_the_manual() -> None:
    network = wcsp.read(queens(), "queens.wcsp")
    assert (network.kind, network.name) == ("markov", "4-WQUEENS")
    (best,) = junctor.most_probable(network, [{}]).to_pylist()
    assert ([best[str(i)] for i in range(4)], best["log_probability"]) == (["2", "0", "3", "1"], 0)
    (row,) = junctor.posteriors(network, [{}]).to_pylist()
    assert math.exp(row["log_evidence"]) == pytest.approx(1 + math.exp(-2), rel=1e-12)


def test_the_largest_total_of_the_manual_is_found() -> None:
    text = """{ problem: { name: "maximization_example", mustbe: ">-5.0"},
      variables: { "v1": ["a", "b"], "v2": ["c", "d"] },
      functions: { "c0": {scope: [], costs: [-6.0]}, "c1": {scope: ["v1"], costs: [1.0, 0.5]},
        "c2": {scope: ["v2"], costs: [1.0, 0.5]}, "c12": {scope: ["v1", "v2"], costs: [-1.0, 0.5, -2.0, 5.5]} } }"""
    (best,) = junctor.most_probable(cfn.read(text, "x.cfn"), [{}]).to_pylist()
    assert (best["v1"], best["v2"], best["log_probability"]) == ("b", "d", 0.5)
    hard = cfn.read(text.replace(">-5.0", ">-2.0"), "x.cfn")
    np.testing.assert_array_equal(hard.factors[3].table == 0, [[False, False], [True, False]])
    assert hard.factors[0].table > 0, "a constant is no constraint"


@pytest.mark.parametrize("unit", [1, 300, 30_000])
def test_large_costs_stay_whole(unit: int) -> None:
    # exp(-746) is 0, and so it would be hard.
    text = (
        f"x 3 2 2 {10 * unit}\n2 2 2\n2 0 1 {2 * unit} 2\n0 0 {unit}\n1 1 {10 * unit}\n2 1 2 {unit} 1\n0 1 {2 * unit}\n"
    )
    network = wcsp.read(text, "x.wcsp")
    (best, other) = junctor.most_probable(network, [{}, {"0": "1"}]).to_pylist()
    assert [best[name] for name in "012"] == ["0", "0", "0"]
    assert best["log_probability"] == pytest.approx(-2 * unit, abs=1e-9)
    assert other["log_probability"] == pytest.approx(-3 * unit, abs=1e-9)
    rows = junctor.posteriors(network, [{"0": "1", "1": "1"}, {"0": "0", "1": "0"}]).to_pylist()
    assert [row["status"] for row in rows] == ["impossible", "ok"]


_COST = st.integers(-3, 3) | st.sampled_from([900, -900, 1000])


@st.composite
def _problems(draw: st.DrawFn) -> Problem:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    functions = []
    for _ in range(draw(st.integers(1, 4))):
        scope = draw(st.lists(st.sampled_from(range(len(sizes))), max_size=3, unique=True))
        entries = math.prod(sizes[v] for v in scope)
        functions.append((scope, draw(st.lists(_COST, min_size=entries, max_size=entries))))
    return sizes, functions, draw(st.sampled_from([3, 900, 2000]))


def _totals(problem: Problem) -> dict[tuple[int, ...], float]:
    """The total of each assignment without a hard cost."""
    sizes, functions, bound = problem
    totals = {}
    for states in itertools.product(*map(range, sizes)):
        costs = []
        for scope, table in functions:
            index = 0
            for variable in scope:
                index = index * sizes[variable] + states[variable]
            costs.append((table[index], bool(scope)))
        if not any(cost >= bound and counts for cost, counts in costs):
            totals[states] = sum(cost for cost, _ in costs)
    return totals


def _as_cfn(problem: Problem, sign: int) -> str:
    sizes, functions, bound = problem
    variables = " ".join(f"v{i}: [{' '.join(f's{s}' for s in range(size))}]" for i, size in enumerate(sizes))
    texts = []
    for number, (scope, table) in enumerate(functions):
        shape = [sizes[v] for v in scope]
        if number % 2:
            tuples = [(*states, sign * cost) for states, cost in zip(np.ndindex(*shape), table, strict=True)]
            words = [" ".join([*(f"s{s}" for s in row[:-1]), str(row[-1])]) for row in tuples if row[-1] != sign]
            costs = f"defaultcost: {sign} costs: [{', '.join(words)}]"
        else:
            costs = f"costs: {[sign * cost for cost in table]}"
        texts.append(f'"f{number}": {{"scope": [{", ".join(f"v{v}" for v in scope)}], {costs}}}')
    problem_text = f'{{name: x, mustbe: "{"<" if sign > 0 else ">"}{sign * bound}"}}'
    return f"{{problem: {problem_text} variables: {{{variables}}} functions: {{{' '.join(texts)}}}}}"


@given(_problems(), st.sampled_from([1, -1]))
@example(([1, 2], [([0, 1], [900, -900]), ([], [1000])], 900), 1)
def test_best_totals_and_sums_are_those_of_enumeration(problem: Problem, sign: int) -> None:
    totals = _totals(problem)
    text = _as_cfn(problem, sign)
    if any(scope and min(table) >= problem[2] for scope, table in problem[1]):
        assert "all its entries are 0, so nothing is possible" in error_of(lambda: cfn.read(text, "x.cfn"))
        return
    network = cfn.read(text, "x.cfn")
    (best,) = junctor.most_probable(network, [{}]).to_pylist()
    (row,) = junctor.posteriors(network, [{}]).to_pylist()
    if not totals:
        assert (best["status"], row["status"]) == ("impossible", "impossible")
        return
    least = min(totals.values())
    assert best["log_probability"] == pytest.approx(-least, abs=1e-9)
    assert totals[tuple(int(best[f"v{i}"][1:]) for i in range(len(problem[0])))] == least
    total = -least + math.log(math.fsum(math.exp(least - cost) for cost in totals.values()))
    assert row["log_evidence"] == pytest.approx(total, abs=1e-9)


def test_shared_tables_are_the_same(tmp_path: Path) -> None:
    text = "x 3 2 3 1\n2 2 2\n-2 0 1 0 2\n0 0 1\n1 1 1\n2 1 2 0 -1\n2 2 0 0 -1\n"
    network = wcsp.read(text, "x.wcsp")
    for factor in network.factors:
        np.testing.assert_array_equal(factor.table, [[0, 1], [1, 0]])
    assert [factor.scope for factor in network.factors] == [(0, 1), (1, 2), (2, 0)]
    json = """{ problem: {name: x mustbe: <1} variables: {a: 2 b: 2 c: 2}
      functions: { f: {scope: [b c] costs: g} g: {scope: [0 1] costs: [1 0 0 1]} h: {scope: [c "a"] costs: "f"} } }"""
    named = cfn.read(json, "x.cfn")
    assert [factor.scope for factor in named.factors] == [(1, 2), (0, 1), (2, 0)]
    for factor in named.factors:
        np.testing.assert_array_equal(factor.table, [[0, 1], [1, 0]])


@pytest.mark.parametrize(
    "text",
    [
        '{{"x" "<10.0"} {a ["no" "yes"] b 2} {{[a] [1 3]} {[a, b] 2 [no 1 10 yes 0 0]}}}',
        '# by hand\n{problem: {name: x, mustbe: "<10.0"}\nvariables: [a: [no yes] b: 2]\n# two\n'
        'functions: [{"scope:" [0] costs: ["1.0" 3]}{scope: [0 1] "defaultcost": "2" costs: {no, 1, 10, yes, 0, 0}}]}',
        # As in files of toulbar2's tutorials: without the last bracket, with a colon within quotes.
        "{problem: {name: x, mustbe: <10.0}, variables: {a: [no, yes], b: 2},\n  # three\nfunctions: {"
        '{"scope:" [a], costs: [1, 3]},\n{scope: [0, 1], "costs": [2, 10.0, 0, 2]}\n}\n',
        '{"problem":{"name":"x","mustbe":"< 10.0"},"variables":{"a":["no","yes"],"b":2},'
        '"functions":{"f":{"scope":["a"],"costs":[1.04,3]},"f":{"scope":["a","b"],"costs":[2,10.0,0,2]}}}',
    ],
)
def test_quotes_commas_colons_and_keys_may_lack(text: str) -> None:
    network = cfn.read(text, "x.cfn")
    assert [variable.name for variable in network.variables] == ["a", "b"]
    assert [variable.states for variable in network.variables] == [("no", "yes"), ("0", "1")]
    np.testing.assert_array_equal(network.factors[0].table, np.exp([-1, -3]))
    np.testing.assert_array_equal(network.factors[1].table, [[np.exp(-2), 0], [1, np.exp(-2)]])


def test_names_may_have_the_mark_of_a_comment() -> None:
    text = '# v2\n{problem: {name: x, mustbe: <5},\n variables: { "v1#": ["a", "b"], v2#: 2 }, {f {[v2#] [1 2]}}}'
    assert [variable.name for variable in cfn.read(text, "x.cfn").variables] == ["v1#", "v2#"]


def test_costs_have_the_decimals_of_the_bound_and_what_is_cut_is_noted() -> None:
    text = "{{x <10.00} {a 4} {f: {[a] [0.29 0.299 -0.299 1.1]} g: {[a] [0.001 0 0 0]}}}"
    reading = Reading()
    network = cfn.read(text, "x.cfn", reading)
    np.testing.assert_array_equal(network.factors[0].table, np.exp([-0.29, -0.29, 0.29, -1.1]))
    assert reading.notes == [
        "costs have 2 decimals ('mustbe'), and were cut to them: in the cost function 'f' and 1 more"
    ]


def test_hard_costs_that_others_could_make_up_are_noted() -> None:
    text = "{{x <10} {a 2 b 2} {f: {[a] [10 1]} g: {[b] [-1 0]}}}"
    reading = Reading()
    assert cfn.read(text, "x.cfn", reading).factors[0].table[0] == 0
    assert reading.notes == ["costs beyond the bound ('mustbe') are taken as hard, though others could make them up"]
    for sound in (text.replace("-1", "1"), text.replace("[10 1]", "[9 1]"), text.replace("[10 1]", "[11 1]")):
        reading = Reading()
        cfn.read(sound, "x.cfn", reading)
        assert not reading.notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" ", "x: found nothing but space, expected the name of a problem"),
        ("x 1 2 0\n", "x:1:8: found the end of the file, expected the bound"),
        ("x 1 2 1 10\n3\n1 0 0 0\n", "x:2:1: variable 0 has 3 states, expected 1 to 2, the most in the header"),
        ("x 1 2 1 10\n-2\n1 0 0 0\n", "x:2:1: found '-2', expected the number of states of variable 0, a whole numb"),
        ("x 1 2 1 10\n2\n1 1 0 0\n", "x:3:3: found variable 1, expected one from 0 to 0"),
        ("x 1 2 1 10\n2\n1 0 -1 salldiff var 1\n", "x:3:8: found the cost function 'salldiff', which is given by a"),
        ("x 2 2 1 10\n2 2\n2 0 1 -1 >= 1 2\n", "x:3:10: found the cost function '>=', which is given by a formula;"),
        ("x 1 2 1 10\n2\n1 0 -1 0\n", "x:3:5: found '-1', expected the cost of what the cost function over 0 does"),
        ("x 1 2 1 10\n2\n1 0 0 2\n1 1\n1 2\n", "x:5:1: the cost function over 0: found a tuple a second time, expec"),
        ("x 1 2 1 10\n2\n1 0 0 1\n2 1\n", "x:4:1: the cost function over 0: found 2, expected a state from 0 to 1"),
        ("x 1 2 1 10\n2\n1 0 0 1\n1 1.5\n", "x:4:3: the cost function over 0: found 1.5, expected a cost, a whole"),
        ("x 1 2 1 10\n2\n1 0 0 1\n1 -4\n", "x:4:3: the cost function over 0: found -4, expected a cost, a whole num"),
        ("x 1 2 1 10\n2\n1 0 0 2\n1 1\n", "x:4:4: found 2 of the 4 entries of the cost function over 0, each with"),
        ("x 1 2 1 10\n2\n1 0 0 -1\n", "x:3:7: found -1, but 0 functions before this one are shared"),
        (
            "x 2 3 2 9\n2 3\n-1 0 0 1\n1 1\n1 1 0 -1",
            "x:5:7: the cost function over 1 has 3 entries, and the shared fun",
        ),
        ("x 1 2 1 10\n2\n1 0 0 0\n7", "x:4:1: '7' after the last table, expected the end of the file"),
        ("x 1 2 1 10\n2\n1 0 10 0\n", "x:3:1: table over ['0']: all its entries are 0, so nothing is possible"),
        ("x 1 2 1 99999999\n2\n1 0 0 1\n1 88888\n", "x:3:1: the cost function over 0: found the cost 88888, below the"),
        ("x 2 2 1 10\n2 2\n2 0 0 0 0\n", "x:3:1: table over ['0', '0']: a variable stands twice in its scope"),
        ("x 1 9999999 1 10\n9999999\n0 0 0", "x:2:1: variable 0 has 9,999,999 states, far more than the file has"),
    ],
)
def test_errors_of_wcsp_say_what_and_where(text: str, message: str) -> None:
    assert error_of(lambda: wcsp.read(text, "x")).startswith(message)


_HEAD = "{{x <10} {a 2 b [r s]}\n{"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x:1:1: found 0 values in all, expected one object in brackets"),
        ("{{x <10} {a 2} {", "x:1:16: the bracket that opens here is never closed"),
        ("{{x <10} {a 2} {f {[a] [1 2]}", "x:1:16: the bracket that opens here is never closed"),
        ("{{x <10} {a 2}", "x:1:15: found the end of a list, expected 'functions'"),
        ("{} {{x <10} {a 2} {}", "x:1:4: the bracket that opens here is never closed"),
        ("{{x <10} {a 2} {}}}", "x:1:19: found '}' without an opening bracket before it"),
        ('{{x "<10} {a 2} {}}', "x:1:5: the string that opens here is never closed"),
        ("{{x 10} {a 2} {}}", "x:1:5: found '10' as 'mustbe', expected < or > and a number, as <10.00"),
        ("{{x <10} {a -100} {}}", "x:1:13: found '-100' as the states of 'a', expected a list of them or how many the"),
        ("{{x <10} {a b} {}}", "x:1:13: found 'b' as the states of 'a', expected a list of them or how many there are"),
        ("{{x <10} {a} {}}", "x:1:12: found the end of a list, expected the states of 'a'"),
        ("{{x <10} {a 999999999} {}}", "x:1:13: found '999999999' as the states of 'a', expected a list of them or"),
        ("{{x <10} {a 2 a 2} {}}", "x:1:15: variable 'a' is defined twice (first at x:1:11)"),
        ("{{x <10} {a 2}}", "x:1:15: found the end of a list, expected 'functions'"),
        ("{{x <10} {a 2} f}", "x:1:16: found 'f', expected 'functions', a list in brackets"),
        ("{{x <10} {a 2} {} {}}", "x:1:19: found a list, expected the end of the list"),
        ("{{x <10 more} {a 2} {}}", "x:1:9: found 'more', expected the end of the list"),
        (_HEAD + "f {[a b] type: salldiff params: {metric: var cost: 1}}}}", "x:2:17: found the cost function 'salldi"),
        (_HEAD + "f {[a c] [1 2 3 4]}}}", "x:2:8: the cost function 'f': unknown variable 'c'"),
        (_HEAD + "f {[a 2] [1 2 3 4]}}}", "x:2:8: the cost function 'f': unknown variable '2'"),
        (_HEAD + "f {[a a] [1 2 3 4]}}}", "x:2:4: table over ['a', 'a']: a variable stands twice in its scope"),
        (_HEAD + "f {[a b] [1 2 3]}}}", "x:2:11: the cost function 'f': found 3 costs, expected 4 (2 x 2)"),
        (_HEAD + "f {[a] [1 x]}}}", "x:2:12: found 'x', expected a number"),
        (_HEAD + "f {[b] 0 [t 1]}}}", "x:2:12: the cost function 'f': unknown state 't'"),
        (
            _HEAD + "f {[b] 0 [r 1 0 2]}}}",
            "x:2:16: the cost function 'f': found a tuple a second time, expected one co",
        ),
        (_HEAD + "f {[b] 0 [r 1 0]}}}", "x:2:11: the cost function 'f': found 3 words, expected for each tuple 1 sta"),
        (_HEAD + "f {[b] g}}}", "x:2:9: the cost function 'f': 0 functions are named 'g', expected one with its costs"),
        (_HEAD + "f {[b] f}}}", "x:2:9: the cost function 'f': its costs are its own, expected a table"),
        (_HEAD + "f {[b] g} g {[a b] [1 2 3 4]}}}", "x:2:4: the cost function 'f' has 2 entries, and that of its cost"),
        (_HEAD + "f {[b] [nan 1]}}}", "x:2:4: the cost function 'f': found the cost nan, below the bound from which"),
        (_HEAD + "f {[b] [-99999 1]}}}", "x:2:4: the cost function 'f': found the cost -99999, below the bound from"),
    ],
)
def test_errors_of_cfn_say_what_and_where(text: str, message: str) -> None:
    assert error_of(lambda: cfn.read(text, "x")).startswith(message)


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (wcsp.read, f"x 26 2 1 9\n{'2 ' * 26}\n26 {' '.join(map(str, range(26)))} 1 0\n", "but only 0 are written out"),
        (wcsp.read, f"x 40 2 1 9\n{'2 ' * 40}\n40 {' '.join(map(str, range(40)))} 1 0\n", "allowed are 134,217,728"),
        (wcsp.read, f"x 18 2 1 {2**50}\n{'2 ' * 18}\n18 {' '.join(map(str, range(18)))} {MAX_COST:.0f} 0\n",
         "has large costs, and would be 328 factors"),
        (cfn.read, "{{x <1} {" + " ".join(f"v{i} 2" for i in range(26)) + "} {{["
         + " ".join(f"v{i}" for i in range(26)) + "] 0 []}}}", "but only 0 are written out"),
        (cfn.read, "{" * 100_000, "is never closed"),
        (cfn.read, "{" * 50_000 + "}" * 50_000, "found a list, expected 'name', a word"),
    ],
)  # fmt: skip
def test_a_short_file_cannot_ask_for_much(read: Callable[..., Network], text: str, message: str) -> None:
    assert message in error_of(lambda: read(text, "x"))


@pytest.mark.parametrize(("module", "text"), [(wcsp, WCSP), (wcsp, queens()), (cfn, CFN)])
def test_mutated_files_give_a_network_or_our_error(module: object, text: str) -> None:
    read = module.read  # type: ignore[attr-defined]
    read_well, refused = fuzz(lambda data: read(decode(data, "f"), "f"), [text.encode()], 200)
    assert read_well > 10
    assert refused > 50


def test_costs_are_converted(tmp_path: Path) -> None:
    (tmp_path / "x.cfn").write_text(CFN)
    junctor.write_network(read_network(tmp_path / "x.cfn"), tmp_path / "x.parquet")
    assert_same(read_network(tmp_path / "x.parquet"), cfn.read(CFN, "x.cfn"))
