from __future__ import annotations

import numpy as np
import pytest
from helpers.format_helpers import DSL, NETWORK, assert_same, error_of, fuzz
from junctor.formats import dsl, xdsl
from junctor.model.network import Network, Reading

NET = """net data\\lawn
{
 HEADER = { ID = lawn; NAME = "Lawn \\"old\\""; };
 NUMSAMPLES = 1000;
 SCREEN = { POSITION = { CENTER_X = 0; }; COLOR = 16250597; };
 node rain
 {
  TYPE = CPT;
  HEADER = { ID = rain; NAME = "Rain"; };
  PARENTS = ();
  DEFINITION = { NAMESTATES = (no, some, much); PROBABILITIES = (0.70000000, 0.20000000,
     0.10000000); };
  EXTRA_DEFINITION = { DOCUMENTATION = { }; DOCUMENTATION = { }; FAULT_NAMES = ("", "", ""); };
 };
 submodel Garden
 {
  node sprinkler
  {
   TYPE = CPT;
   PARENTS = ();
   DEFINITION = { NAMESTATES = (on, off); PROBABILITIES = (0.4, 0.6); };
  };
  node grass
  {
   TYPE = CPT;
   PARENTS = (sprinkler, rain);
   DEFINITION = { NAMESTATES = (dry, wet); PROBABILITIES = (0.1, 0.9, 0.05, 0.95, 0, 1, 1, 0, 0.3, 0.7, 0.2, 0.8); };
  };
 };
 node picnic
 {
  TYPE = TRUTHTABLE;
  PARENTS = (rain, grass);
  DEFINITION = { NAMESTATES = (yes, no); RESULTINGSTATES = (yes, yes, yes, no, no, no); };
 };
 node cold
 {
  TYPE = NOISY_MAX;
  PARENTS = (sprinkler, rain);
  DEFINITION = { NAMESTATES = (bad, good); STRENGTHS = (0, 1, 2, 1, 0);
   PROBABILITIES = (0.3, 0.7, 0, 1, 0.6, 0.4, 0.2, 0.8, 0, 1, 0.05, 0.95); };
 };
 OBSERVATION_COST = { };
};
"""
GATE = """<smile id="n"><nodes>
<cpt id="rain"><state id="no"/><state id="some"/><state id="much"/><probabilities>0.7 0.2 0.1</probabilities></cpt>
<cpt id="sprinkler"><state id="on"/><state id="off"/><probabilities>0.4 0.6</probabilities></cpt>
<noisymax id="cold"><state id="bad"/><state id="good"/><parents>sprinkler rain</parents><strengths>0 1 2 1 0</strengths>
<parameters>0.3 0.7 0 1 0.6 0.4 0.2 0.8 0 1 0.05 0.95</parameters></noisymax></nodes></smile>"""


def read(text: str) -> Network:
    return dsl.read(text, "f.dsl")


def test_the_last_parent_varies_fastest_but_for_the_child() -> None:
    network = read(NET)
    assert network.name == "data\\lawn"
    assert [v.name for v in network.variables] == ["rain", "sprinkler", "grass", "picnic", "cold"]
    grass = network.factors[2]
    assert grass.scope == (1, 0, 2)
    np.testing.assert_array_equal(
        grass.table, [[[0.1, 0.9], [0.05, 0.95], [0.0, 1.0]], [[1.0, 0.0], [0.3, 0.7], [0.2, 0.8]]]
    )
    np.testing.assert_array_equal(network.factors[3].table[..., 0], [[1, 1], [1, 0], [0, 0]])


def test_noisy_max_is_that_of_xdsl() -> None:
    np.testing.assert_array_equal(read(NET).factors[4].table, xdsl.read(GATE.encode(), "f").factors[2].table)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (NET, "bnet a { };", "f.dsl:1:1: found the block 'bnet', expected 'net'"),
        (NET, "net a { };", "f.dsl: no variables found"),
        (
            "TYPE = CPT;",
            "TYPE = EQUATION;",
            "f.dsl:8:10: node 'rain' has TYPE = EQUATION, which is not read; expected CPT",
        ),
        ("TYPE = CPT;", "TYPE = LIST;", "f.dsl:6:2: node 'rain' has TYPE = LIST, a decision of an influence diagram"),
        ("(dry, wet)", "(dry, wet, ice)", "f.dsl:34:60: node 'picnic': found 6 resulting states, expected 9"),
        (
            "(0.1, 0.9, 0.05, 0.95, 0, 1, 1, 0, 0.3, 0.7, 0.2, 0.8)",
            "((0.1, 0.9, 0.05, 0.95), (0, 1, 1, 0), (0.3, 0.7, 0.2, 0.8))",
            "f.dsl:27:60: table of 'grass': the brackets of its probabilities do not nest as 2 x 3 x 2",
        ),
        ("0.6);", "0.6, 0);", "f.dsl:21:59: table of 'sprinkler': found 3 entries, expected 2 (2)"),
        ("(no, some, much)", "()", "f.dsl:6:2: node 'rain' has no NAMESTATES, expected a list of states"),
        ("(sprinkler, rain)", "(sprinkler, ran)", "f.dsl:26:14: node 'grass': unknown parent 'ran', did you mean"),
        ("(rain, grass)", "(rain, gras)", "f.dsl:33:13: node 'picnic': unknown parent 'gras', did you mean 'grass'?"),
        ("(yes, yes, yes, no", "(yes, yes, no", "f.dsl:34:60: node 'picnic': found 5 resulting states, expected 6"),
        ("(0, 1, 2, 1, 0)", "(0, 1, 1, 2, 0)", "f.dsl:40:56: found the strengths [1, 2, 0], whose meaning is not"),
        ("0.05, 0.95)", "0.05)", "f.dsl:41:20: node 'cold': found 11 parameters, expected 12 (6 distributions"),
        (' "Rain"', ' "Rain', "f.dsl:9:32: the quote that opens here is never closed"),
    ],
)
def test_errors_say_what_and_where(old: str, new: str, message: str) -> None:
    assert old in NET
    assert error_of(lambda: read(NET.replace(old, new, 1))).startswith(message)


def test_decisions_are_left_out() -> None:
    text = DSL.rstrip().removesuffix("};") + (
        "node d { TYPE = LIST; PARENTS = (a); DEFINITION = { NAMECHOICES = (go, stay); }; };\n"
        "node u { TYPE = TABLE; PARENTS = (d, b); DEFINITION = { UTILITIES = (1, 2, 3, 4); }; };\n};\n"
    )
    assert error_of(lambda: read(text)).endswith("leaves them out and takes the rest")
    assert_same(dsl.read(text, "f", Reading(ignore_decisions=True)), NETWORK)


def test_submodels_that_are_nested_too_deep_are_refused() -> None:
    text = "net n {" + "submodel s {" * 5000 + "};" * 5000 + "};"
    assert "blocks are nested deeper than 100" in error_of(lambda: read(text))


def test_mutated_files_give_a_network_or_our_error() -> None:
    def of_bytes(data: bytes) -> Network:
        return read(data.decode("latin-1"))

    read_well, refused = fuzz(of_bytes, [NET.encode(), DSL.encode()], 300)
    assert read_well > 12
    assert refused > 75
