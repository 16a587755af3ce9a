from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from helpers.format_helpers import by_name, error_of, fuzz
from hypothesis import given
from hypothesis import strategies as st
from junctor.formats import read_network, xdsl
from junctor.model.network import Network

XDSL = """<?xml version="1.0" encoding="ISO-8859-1"?>
<!-- This network was created in GeNIe -->
<smile version="1.0" id="Lawn" numsamples="10000" discsamples="10000">
  <nodes>
    <cpt id="rain" target="true">
      <state id="no" />
      <state id="some" color="ff0000" />
      <state id="much" />
      <property id="unit">mm</property>
      <probabilities>0.7 0.2 0.1</probabilities>
    </cpt>
    <cpt id="sprinkler"> <state id="on" /> <state id="off" /> <parents></parents>
      <probabilities>0.4 0.6</probabilities>
    </cpt>
    <cpt id="grass"> <state id="dry" /> <state id="wet" />
      <parents>sprinkler rain</parents>
      <probabilities>0.1 0.9 0.05 0.95 0 1
        1 0 0.3 7e-1 0.2 .8</probabilities>
    </cpt>
    <deterministic id="picnic"> <state id="yes" /> <state id="no" />
      <parents>rain grass</parents>
      <resultingstates>yes yes yes no no no</resultingstates>
    </deterministic>
  </nodes>
  <extensions>
    <genie version="1.0" app="GeNIe 4.0" name="Lawn"><node id="rain"><name>Rain</name></node></genie>
  </extensions>
</smile>
"""


def read(text: str) -> Network:
    return xdsl.read(text.encode(), "f.xdsl")


def test_the_last_parent_varies_fastest_but_for_the_child() -> None:
    network = read(XDSL)
    assert network.name == "Lawn"
    assert [variable.name for variable in network.variables] == ["rain", "sprinkler", "grass", "picnic"]
    grass = network.factors[2]
    assert grass.scope == (1, 0, 2)
    expected = [[[0.1, 0.9], [0.05, 0.95], [0.0, 1.0]], [[1.0, 0.0], [0.3, 0.7], [0.2, 0.8]]]
    np.testing.assert_array_equal(grass.table, expected)


def test_a_deterministic_node_has_ones_at_its_resulting_states() -> None:
    picnic = read(XDSL).factors[3]
    assert picnic.scope == (0, 2, 3)
    np.testing.assert_array_equal(picnic.table[..., 0], [[1, 1], [1, 0], [0, 0]])
    np.testing.assert_array_equal(picnic.table.sum(axis=-1), np.ones((3, 2)))


def test_agrum_writes_the_first_parent_fastest() -> None:
    text = XDSL.replace('app="GeNIe 4.0"', 'app="aGrUM 3.3.1"')
    grass = read(text).factors[2]
    assert grass.scope == (0, 1, 2)
    np.testing.assert_array_equal(grass.table[..., 0], [[0.1, 0.05], [0.0, 1.0], [0.3, 0.2]])


# Two parents of two and three states, a child of three; the strengths turn the states of the second parent round.
NOISY_MAX = """<smile version="1.0" id="gate"><nodes>
<cpt id="a"><state id="yes"/><state id="no"/><probabilities>0.5 0.5</probabilities></cpt>
<cpt id="b"><state id="low"/><state id="mid"/><state id="high"/><probabilities>0.2 0.3 0.5</probabilities></cpt>
<noisymax id="c"><state id="bad"/><state id="soso"/><state id="good"/><parents>a b</parents>
<strengths>0 1 2 1 0</strengths>
<parameters>0.3 0.5 0.2 0 0 1 0.6 0.3 0.1 0.25 0.25 0.5 0 0 1 0.01 0.04 0.95</parameters></noisymax>
</nodes></smile>"""


def _by_enumeration(columns: list[list[list[float]]], leak: list[float], at: tuple[int, ...]) -> list[float]:
    """P(child | parents' columns) by summing over every combination of contributions; the child is the strongest."""
    chosen = [column[i] for column, i in zip(columns, at, strict=True)] + [leak]
    result = [0.0] * len(leak)
    for effects in itertools.product(range(len(leak)), repeat=len(chosen)):
        result[min(effects)] += float(np.prod([column[effect] for column, effect in zip(chosen, effects, strict=True)]))
    return result


def test_noisy_max_is_the_maximum_of_independent_effects() -> None:
    network = read(NOISY_MAX)
    gate = network.factors[2]
    assert gate.scope == (0, 1, 2)
    columns = [[[0.3, 0.5, 0.2], [0, 0, 1]], [[0.6, 0.3, 0.1], [0.25, 0.25, 0.5], [0, 0, 1]]]
    for a, b in itertools.product(range(2), range(3)):
        # The strengths 2 1 0: the first state of b is the weakest, and has the last column.
        expected = _by_enumeration(columns, [0.01, 0.04, 0.95], (a, 2 - b))
        np.testing.assert_allclose(gate.table[a, b], expected, rtol=1e-14)
    # All parents without effect: only the leak is left, exactly.
    np.testing.assert_array_equal(gate.table[1, 0], [0.01, 0.04, 0.95])


def test_a_binary_noisy_max_is_a_noisy_or() -> None:
    text = """<smile><nodes>
    <cpt id="a"><state id="t"/><state id="f"/><probabilities>0.5 0.5</probabilities></cpt>
    <cpt id="b"><state id="t"/><state id="f"/><probabilities>0.5 0.5</probabilities></cpt>
    <noisymax id="c"><state id="t"/><state id="f"/><parents>a b</parents>
    <parameters>0.8 0.2 0 1 1e-300 1 0 1 0 1</parameters></noisymax></nodes></smile>"""
    table = read(text).factors[2].table
    np.testing.assert_array_equal(table[..., 0], [[0.8, 0.8], [1e-300, 0.0]])


@given(st.data())
def test_noisy_max_agrees_with_enumeration(data: st.DataObject) -> None:
    states = data.draw(st.integers(1, 3))
    sizes = data.draw(st.lists(st.integers(1, 3), max_size=3))
    weights = st.lists(st.sampled_from([0.0, 1.0, 0.3, 1e-9]), min_size=states, max_size=states)
    none = [0.0] * (states - 1) + [1.0]
    columns = [[_normal(data.draw(weights)) for _ in range(size - 1)] + [none] for size in sizes]
    leak = _normal(data.draw(weights))
    parents = "".join(
        f'<cpt id="p{i}">{"".join(f"<state id={str(j)!r}/>" for j in range(size))}'
        f"<probabilities>{' '.join(['1'] + ['0'] * (size - 1))}</probabilities></cpt>"
        for i, size in enumerate(sizes)
    )
    numbers = " ".join(repr(number) for column in [*itertools.chain(*columns), leak] for number in column)
    network = read(
        f'<smile><nodes>{parents}<noisymax id="c">{"".join(f"<state id={str(j)!r}/>" for j in range(states))}'
        f"<parents>{' '.join(f'p{i}' for i in range(len(sizes)))}</parents><parameters>{numbers}</parameters>"
        "</noisymax></nodes></smile>"
    )
    for at in itertools.product(*map(range, sizes)):
        expected = _by_enumeration(columns, leak, at)
        np.testing.assert_allclose(network.factors[-1].table[at], expected, rtol=1e-12, atol=0)


def _normal(weights: list[float]) -> list[float]:
    total = sum(weights)
    return [weight / total for weight in weights] if total else [0.0] * (len(weights) - 1) + [1.0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (XDSL, "<BIF/>", "f.xdsl:1:1: found <bif>, expected <smile>: is this a GeNIe file?"),
        (XDSL, "<smile/>", "f.xdsl:1:1: <smile> has no <nodes>, expected one"),
        (XDSL, "<smile><nodes/></smile>", "f.xdsl:1:1: no variables found"),
        ("<nodes>", "<nodes>\n<equation id='X'/>", "f.xdsl:5:1: node 'X' is <equation>, an equation over continuous"),
        ("<nodes>", "<nodes><decision id='D'/>", "f.xdsl:4:10: node 'D' is <decision>, a decision of an influence"),
        ("<nodes>", "<nodes><noisyadder id='N'/>", "f.xdsl:4:10: node 'N' is <noisyadder>, a noisy adder; change its"),
        ("<nodes>", "<nodes><spline id='N'/>", "f.xdsl:4:10: node 'N' is <spline>, of an unknown type; expected <cpt>"),
        ("<nodes>", "<dynamic/><nodes>", "f.xdsl:4:3: this is a dynamic network, which is not read; unroll it"),
        (' id="sprinkler"', "", "f.xdsl:12:5: <cpt> has no id, expected id="),
        ('<state id="on" />', "<state />", "f.xdsl:12:26: <state> has no id, expected id="),
        ('id="off"', 'id="on"', "f.xdsl:12:5: variable 'sprinkler' has the state 'on' twice"),
        ('id="sprinkler"', 'id="rain"', "f.xdsl:12:5: variable 'rain' is defined twice (first at f.xdsl:5:5)"),
        (">sprinkler rain<", ">sprinkler ran<", "f.xdsl:17:7: table of 'grass': unknown variable 'ran', did you mean"),
        (">sprinkler rain<", ">rain rain<", "f.xdsl:17:7: table of 'grass': a variable stands twice in its scope"),
        (">rain grass<", ">rain gras<", "f.xdsl:20:5: node 'picnic': unknown parent 'gras', did you mean 'grass'?"),
        ("0.4 0.6", "", "f.xdsl:13:7: table of 'sprinkler': found 0 entries, expected 2 (2)"),
        ("0.4 0.6", "0.4 x", "f.xdsl:13:26: found 'x' in <probabilities>, expected a number"),
        ("7e-1", "7e-1,", "f.xdsl:18:17: found '7e-1,' in <probabilities>, expected a number, with a decimal point"),
        ("<probabilities>0.4 0.6</probabilities>", "", "f.xdsl:12:5: <cpt> has no <probabilities>, expected one"),
        ("yes yes yes", "yes yes", "f.xdsl:22:7: node 'picnic': found 5 resulting states, expected 6"),
        ("yes yes yes", "yes yes yess", "f.xdsl:22:7: node 'picnic' has no state 'yess', did you mean 'yes'?"),
        ("</smile>", "", "f.xdsl:29:1: found the end of the line or file, expected well-formed XML"),
    ],
)
def test_errors_say_what_and_where(old: str, new: str, message: str) -> None:
    assert old in XDSL
    assert error_of(lambda: read(XDSL.replace(old, new, 1))).startswith(message)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (" 0.95</par", "</par", ":6:1: node 'c': found 17 parameters, expected 18 (6 distributions, the last one for"),
        ("0.3 0.5 0.2", "0.3 0.5 0.3", ":6:1: node 'c': found [0.3, 0.5, 0.3] as distribution 1 of the parameters"),
        ("0.3 0.5 0.2", "1.3 -0.5 0.2", ":6:1: node 'c': found [1.3, -0.5, 0.2] as distribution 1"),
        ("0.3 0.5 0.2", "nan 0.5 0.2", ":6:1: node 'c': found [nan, 0.5, 0.2] as distribution 1"),
        ("0 0 1 0.6", "0 0.1 0.9 0.6", ":6:1: node 'c': found [0.0, 0.1, 0.9] for the state of a parent that has no"),
        ("0 1 2 1 0", "0 1 2 1", ":5:1: found 4 strengths, expected 5"),
        ("0 1 2 1 0", "0 1 2 2 0", ":5:1: found the strengths [2.0, 2.0, 0.0], expected the numbers 0 to 2 in some"),
        ("0 1 2 1 0", "0 1 1 2 0", ":5:1: found the strengths [1, 2, 0], whose meaning is not certain; order"),
    ],
)
def test_noisy_max_errors(old: str, new: str, message: str) -> None:
    assert old in NOISY_MAX
    assert error_of(lambda: read(NOISY_MAX.replace(old, new, 1))).startswith("f.xdsl" + message)


def test_a_short_file_cannot_ask_for_much() -> None:
    parents = "".join(
        f'<cpt id="p{i}"><state id="a"/><state id="b"/><probabilities>1 0</probabilities></cpt>' for i in range(40)
    )
    gate = '<{0} id="{1}"><state id="a"/><state id="b"/><parents>{2}</parents><resultingstates/></{0}>'
    names = [f"p{i}" for i in range(40)]
    one = f"<smile><nodes>{parents}{gate.format('deterministic', 'n', ' '.join(names))}</nodes></smile>"
    assert "would have 2,199,023,255,552 entries, allowed are 134,217,728" in error_of(lambda: read(one))
    gates = "".join(gate.format("deterministic", f"n{i}", " ".join(names[:24])) for i in range(5))
    assert "the tables up to the table of 'n4' would have" in error_of(
        lambda: read(f"<smile><nodes>{parents}{gates}</nodes></smile>")
    )


def test_mutated_files_give_a_network_or_our_error() -> None:
    seeds = [XDSL.encode(), NOISY_MAX.encode()]
    read_well, refused = fuzz(lambda data: xdsl.read(data, "f"), seeds, 300)
    assert read_well > 10
    assert refused > 100


# Judged by hand: the files ab_* are broken on purpose, all others here are continuous networks.
ZOO_ERRORS = {
    "ab_empty_probabilities.xdsl": ":14:4: table of 'B': found 0 entries, expected 4 (2 x 2)",
    "ab_no_id.xdsl": ':5:3: <cpt> has no id, expected id="..."',
    "ab_no_probabilities.xdsl": ":10:3: <cpt> has no <probabilities>, expected one",
    "ab_no_top_level.xdsl": ":3:1: <smile> has no <nodes>, expected one",
    "ab_not_nodes.xdsl": ":3:1: <smile> has no <nodes>, expected one",
    "ab_single_state.xdsl": ":13:4: table of 'B': found 4 entries, expected 2 (1 x 2)",
    "ab_too_few_probabilities_1.xdsl": ":8:4: table of 'A': found 1 entries, expected 2 (2)",
    "ab_too_few_probabilities_2.xdsl": ":14:4: table of 'B': found 3 entries, expected 4 (2 x 2)",
    "ab_too_many_probabilities_1.xdsl": ":8:4: table of 'A': found 3 entries, expected 2 (2)",
    "ax_mixed_unsupported.xdsl": ":10:3: node 'X' is <equation>, an equation over continuous variables",
}
CONTINUOUS = ("gauss", "sachs_c", "x", "xy", "xyz", "empty_coeffs", "invalid_coeff")


def test_the_zoo_reads_or_is_refused_for_a_reason(shared: Path) -> None:
    paths = sorted((shared / "formats" / "xdsl").rglob("*.xdsl"))
    assert len(paths) > 35
    for path in paths:
        if path.name in ZOO_ERRORS:
            assert ZOO_ERRORS[path.name] in error_of(lambda path=path: read_network(path))
        elif path.stem in CONTINUOUS or path.stem.startswith("xy_"):
            assert "is <equation>, an equation over continuous variables" in error_of(
                lambda path=path: read_network(path)
            )
        else:
            assert read_network(path).kind == "bayes"


def test_asia_and_cancer_are_those_of_bif(shared: Path) -> None:
    for name in ("asia", "cancer"):
        found = by_name(read_network(shared / "formats" / "xdsl" / "causaliq" / "xdsl" / f"{name}.xdsl"))
        expected = by_name(read_network(shared / "networks" / "bnlearn" / f"{name}.bif"))
        assert found == expected
