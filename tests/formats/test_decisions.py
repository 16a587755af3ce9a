from __future__ import annotations

import logging
from pathlib import Path

import pytest
from helpers.command_line import junctor_cli
from helpers.format_helpers import error_of
from junctor.formats import read_network

NET = """net { }
node a { states = ("no" "yes"); }
node b { states = ("no" "yes"); }
decision d { states = ("go" "stay"); }
utility u { }
potential ( a ) { data = ( 0.4 0.6 ); }
potential ( b | a ) { data = (( 0.1 0.9 )( 0.8 0.2 )); }
potential ( d | a ) { }
potential ( u | d b ) { data = (( 0 1 )( 2 3 )); }
"""
XDSL = """<smile id="small"><nodes>
<cpt id="a"><state id="no"/><state id="yes"/><probabilities>0.4 0.6</probabilities></cpt>
<decision id="d"><state id="go"/><state id="stay"/><parents>a</parents></decision>
<cpt id="b"><state id="no"/><state id="yes"/><parents>a</parents><probabilities>0.1 0.9 0.8 0.2</probabilities></cpt>
<utility id="u"><parents>d b</parents><utilities>0 1 2 3</utilities></utility>
<mau id="m"><parents>u</parents><weights>1</weights></mau>
</nodes></smile>"""
XMLBIF = """<BIF VERSION="0.3"><NETWORK><NAME>small</NAME>
<VARIABLE TYPE="nature"><NAME>a</NAME><OUTCOME>no</OUTCOME><OUTCOME>yes</OUTCOME></VARIABLE>
<VARIABLE TYPE="nature"><NAME>b</NAME><OUTCOME>no</OUTCOME><OUTCOME>yes</OUTCOME></VARIABLE>
<VARIABLE TYPE="decision"><NAME>d</NAME><OUTCOME>go</OUTCOME><OUTCOME>stay</OUTCOME></VARIABLE>
<VARIABLE TYPE="utility"><NAME>u</NAME></VARIABLE>
<DEFINITION><FOR>a</FOR><TABLE>0.4 0.6</TABLE></DEFINITION>
<DEFINITION><FOR>b</FOR><GIVEN>a</GIVEN><TABLE>0.1 0.9 0.8 0.2</TABLE></DEFINITION>
<DEFINITION><FOR>u</FOR><GIVEN>d</GIVEN><GIVEN>b</GIVEN><TABLE>0 1 2 3</TABLE></DEFINITION></NETWORK></BIF>"""
# Format -> text, and the same where the chance node b depends on the decision d.
DIAGRAMS = {
    "hugin": (NET, NET.replace("( b | a )", "( b | d )")),
    "xdsl": (XDSL, XDSL.replace("<parents>a</parents><prob", "<parents>d</parents><prob")),
    "xmlbif": (XMLBIF, XMLBIF.replace("<FOR>b</FOR><GIVEN>a", "<FOR>b</FOR><GIVEN>d")),
}


@pytest.mark.parametrize("format", DIAGRAMS)
def test_an_influence_diagram_is_refused_with_the_way_to_take_the_rest(tmp_path: Path, format: str) -> None:
    path = tmp_path / "diagram"
    path.write_text(DIAGRAMS[format][0])
    message = error_of(lambda: read_network(path, format))
    assert "'d' is " in message
    assert "decision" in message
    assert message.endswith("--ignore-decisions, in Python ignore_decisions=True, leaves them out and takes the rest")


@pytest.mark.parametrize("format", DIAGRAMS)
def test_decisions_and_utilities_are_left_out(tmp_path: Path, format: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "diagram"
    path.write_text(DIAGRAMS[format][0])
    with caplog.at_level(logging.WARNING, "junctor"):
        network = read_network(path, format, ignore_decisions=True)
    assert [variable.name for variable in network.variables] == ["a", "b"]
    assert network.factors[1].table.tolist() == [[0.1, 0.9], [0.8, 0.2]]
    assert "decisions and utilities were left out: 'd', 'u'" in caplog.text


@pytest.mark.parametrize("ignore", [False, True])
@pytest.mark.parametrize("format", DIAGRAMS)
def test_a_chance_node_that_depends_on_a_decision_is_refused_always(tmp_path: Path, format: str, ignore: bool) -> None:
    path = tmp_path / "diagram"
    path.write_text(DIAGRAMS[format][1])
    message = error_of(lambda: read_network(path, format, ignore_decisions=ignore))
    assert message.endswith("; the chance node 'b' depends on it")
    assert "--ignore-decisions" not in message


def test_the_command_line_leaves_decisions_out(tmp_path: Path) -> None:
    path = tmp_path / "diagram.net"
    path.write_text(NET)
    ran = junctor_cli("convert", str(path), str(tmp_path / "rest.bif"), "--ignore-decisions")
    assert ran.exit_code == 0
    assert "2 variables, 2 tables" in ran.output


# Format -> a diagram without chance nodes.
BARE = {
    "hugin": "net { }\nutility u { }\npotential ( u ) { data = ( 10 ); }\n",
    "xdsl": '<smile id="x"><nodes><utility id="u"><utilities>10</utilities></utility></nodes></smile>',
    "xmlbif": """<BIF VERSION="0.3"><NETWORK><NAME>x</NAME><VARIABLE TYPE="utility"><NAME>u</NAME></VARIABLE>
<DEFINITION><FOR>u</FOR><TABLE>10</TABLE></DEFINITION></NETWORK></BIF>""",
    "pgmx": """<ProbModelXML formatVersion="0.2.0"><ProbNet type="InfluenceDiagram">
<Variables><Variable name="u" type="numeric" role="utility"/></Variables>
<Potentials><Potential type="Table" role="conditionalProbability"><UtilityVariable name="u"/><Values>10.0</Values>
</Potential></Potentials></ProbNet></ProbModelXML>""",
}


@pytest.mark.parametrize("ignore_decisions", [False, True])
@pytest.mark.parametrize("format", BARE)
def test_nothing_is_promised_of_a_diagram_without_chance_nodes(
    tmp_path: Path, format: str, ignore_decisions: bool
) -> None:
    path = tmp_path / "diagram"
    path.write_text(BARE[format])
    message = error_of(lambda: read_network(path, format, ignore_decisions=ignore_decisions))
    assert "'u' is " in message
    assert message.endswith("; there is no chance node with probabilities, so that nothing could be asked")
