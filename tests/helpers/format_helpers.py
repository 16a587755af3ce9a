"""What the tests of network formats share: odd networks, comparison, mutated bytes, and how to ask for an error."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import strategies as st
from junctor.formats import store
from junctor.model.errors import ModelError, Place
from junctor.model.network import DraftTable, DraftVariable, Network, build_network

# What a small file may cost a reader; the machine may be busy, so the bound is far from the milliseconds it takes.
MAX_SECONDS = 10.0

_NAMES = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=8) | st.sampled_from(
    ["a b", "x,y", '"q"', "a|b", "{}", "<&>", "é", "#1", "%", "0", "network", "\ttab", "line\nbreak", "\\", "NUL\0"]
)
_WEIGHTS = st.sampled_from([0.0, 1.0, 0.3, 1 / 3, 1e-300, 5e-324, 1e-9, 0.1 + 0.2, 7.0])
_POTENTIALS = _WEIGHTS | st.floats(0.0, 1e300)
_ANY = Place("drawn")


@st.composite
def odd_networks(draw: st.DrawFn, names: st.SearchStrategy[str] = _NAMES) -> Network:
    """Networks with odd names, one-state variables, zeros, tiny numbers and, in Markov ones, any scopes."""
    kind = draw(st.sampled_from(["bayes", "markov"]))
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    unique = draw(st.lists(names, min_size=len(sizes), max_size=len(sizes), unique=True))
    states = [draw(st.lists(names, min_size=size, max_size=size, unique=True)) for size in sizes]
    variables = [DraftVariable(name, own, _ANY) for name, own in zip(unique, states, strict=True)]
    indices = range(len(sizes))
    if kind == "bayes":
        order = draw(st.permutations(indices))
        scopes = [[*draw(_some(order[:i])), child] for i, child in enumerate(order)]
    else:
        scopes = draw(st.lists(_some(indices), max_size=4))
    tables = [_table(draw, kind, scope, sizes, unique) for scope in scopes]
    return build_network(draw(names), kind, variables, tables)


def _some(indices: range | list[int]) -> st.SearchStrategy[list[int]]:
    return st.lists(st.sampled_from(indices), max_size=3, unique=True) if indices else st.just([])


def _table(draw: st.DrawFn, kind: str, scope: list[int], sizes: list[int], names: list[str]) -> DraftTable:
    shape = [sizes[i] for i in scope]
    count = int(np.prod(shape, dtype=int))
    numbers = _WEIGHTS if kind == "bayes" else _POTENTIALS
    values = np.array(draw(st.lists(numbers, min_size=count, max_size=count))).reshape(shape)
    if kind == "bayes":
        # Rows of zeros or of numbers too small to divide by become certain.
        values[values.sum(axis=-1) < 1e-290, 0] = 1.0
        values = values / values.sum(axis=-1, keepdims=True)
    elif not values.any():
        values = values + 1.0
    return DraftTable([names[i] for i in scope], values, _ANY)


def assert_same(found: Network, expected: Network, names: bool = True) -> None:
    """Fail unless the networks are equal to the last bit; without `names` only their numbers are."""
    assert found.kind == expected.kind
    assert found.cardinalities == expected.cardinalities
    if names:
        assert found.variables == expected.variables
    assert [factor.scope for factor in found.factors] == [factor.scope for factor in expected.factors]
    for ours, theirs in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(ours.table, theirs.table)


def by_name(network: Network) -> dict[str, dict[tuple[str, ...], float]]:
    """Return P(child state | parents' states) by names alone, whatever the order of variables, states and parents."""
    answers: dict[str, dict[tuple[str, ...], float]] = {}
    for factor in network.factors:
        scope = [network.variables[i] for i in factor.scope]
        entries = answers.setdefault(scope[-1].name, {})
        for at, value in np.ndenumerate(factor.table):
            pairs = [f"{variable.name}={variable.states[state]}" for variable, state in zip(scope, at, strict=True)]
            entries[*sorted(pairs[:-1]), pairs[-1]] = float(value)
    return answers


def error_of(read: Callable[[], object]) -> str:
    """Return the message of the ModelError that `read` has to raise."""
    with pytest.raises(ModelError) as caught:
        read()
    return str(caught.value)


_TOKENS = [
    *(b"-1", b"nan", b"inf", b"1e999", b"0", b"1", b"0.5", b"99999999999", b"4294967296", b"1_0", b"1,5", b"#", b"\0"),
    *(b"<", b">", b"</", b"<!--", b"&lt;", b"&x;", b'"', b"'", b"\xff\xfe", b"\xc3\xa9", b"\n", b" ", b"\r", b"  "),
    *(b"BAYES", b"MARKOV", b"<FOR>", b"<GIVEN>", b"PAR1", b"\x15\x80\x80\x04", b"<!DOCTYPE x [<!ENTITY y 'z'>]>"),
]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return `data` with one to four changes: bytes flipped, pieces cut, doubled or moved, tokens put in."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(changed) + 1)
        end = min(len(changed), start + rng.choice([1, 1, 2, 4, 8, 30, 200]))
        kind = rng.randrange(6)
        if kind == 0 and start < len(changed):
            changed[start] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del changed[start:end]
        elif kind == 2:
            changed[start:start] = changed[start:end]
        elif kind == 3:
            piece = bytes(changed[start:end])
            del changed[start:end]
            there = rng.randrange(len(changed) + 1)
            changed[there:there] = piece
        elif kind == 4:
            changed[start:start] = rng.choice(_TOKENS)
        elif rng.random() < 0.2:
            del changed[start:]
    return bytes(changed)


def fuzz(read: Callable[[bytes], Network], seeds: list[bytes], rounds: int, start: int = 0) -> tuple[int, int]:
    """Read mutated files: each gives a network or a ModelError, soon. Returns how many of each."""
    read_well = refused = 0
    for i in range(start, start + rounds):
        rng = random.Random(i)
        data = mutated(rng.choice(seeds), rng)
        began = time.perf_counter()
        try:
            assert isinstance(read(data), Network), i
            read_well += 1
        except ModelError:
            refused += 1
        assert time.perf_counter() - began < MAX_SECONDS, i
    return read_well, refused


UAI = "BAYES 2 2 2 2 1 0 2 0 1 2 0.4 0.6 4 0.1 0.9 0.8 0.2"
FG = "2\n\n1\n0\n2\n2\n0 0.4\n1 0.6\n\n2\n0 1\n2 2\n4\n0 0.1\n1 0.8\n2 0.9\n3 0.2\n"
WCSP = "small 2 2 2 10\n2 2\n1 0 1 1\n1 3\n2 0 1 2 2\n0 1 10\n1 0 0\n"
CFN = """{ "problem": { "name": "small", "mustbe": "<10" },
  "variables": { "a": ["no", "yes"], "b": ["no", "yes"] },
  "functions": { "f": { "scope": ["a"], "costs": [1, 3] },
                 "g": { "scope": ["a", "b"], "defaultcost": 2, "costs": ["no", "yes", 10, 1, 0, 0] } } }
"""
BIF = """network small { }
variable a { type discrete [ 2 ] { no, yes }; }
variable b { type discrete [ 2 ] { no, yes }; }
probability ( a ) { table 0.4, 0.6; }
probability ( b | a ) { (no) 0.1, 0.9; (yes) 0.8, 0.2; }
"""
NET = """net { }
node a { states = ("no" "yes"); }
node b { states = ("no" "yes"); }
potential ( a ) { data = ( 0.4 0.6 ); }
potential ( b | a ) { data = (( 0.1 0.9 )( 0.8 0.2 )); }
"""
XMLBIF = """<BIF VERSION="0.3"><NETWORK><NAME>small</NAME>
<VARIABLE><NAME>a</NAME><OUTCOME>no</OUTCOME><OUTCOME>yes</OUTCOME></VARIABLE>
<VARIABLE><NAME>b</NAME><OUTCOME>no</OUTCOME><OUTCOME>yes</OUTCOME></VARIABLE>
<DEFINITION><FOR>a</FOR><TABLE>0.4 0.6</TABLE></DEFINITION>
<DEFINITION><FOR>b</FOR><GIVEN>a</GIVEN><TABLE>0.1 0.9 0.8 0.2</TABLE></DEFINITION></NETWORK></BIF>"""
XDSL = """<smile id="small"><nodes>
<cpt id="a"><state id="no"/><state id="yes"/><probabilities>0.4 0.6</probabilities></cpt>
<cpt id="b"><state id="no"/><state id="yes"/><parents>a</parents><probabilities>0.1 0.9 0.8 0.2</probabilities></cpt>
</nodes></smile>"""
DSL = """net small
{
 HEADER = { ID = small; NAME = "small"; };
 node a
 {
  TYPE = CPT;
  HEADER = { ID = a; NAME = "a"; };
  PARENTS = ();
  DEFINITION = { NAMESTATES = (no, yes); PROBABILITIES = (0.4, 0.6); };
 };
 node b
 {
  TYPE = CPT;
  PARENTS = (a);
  DEFINITION = { NAMESTATES = (no, yes); PROBABILITIES = (0.1, 0.9, 0.8, 0.2); };
 };
};
"""
DNE = """// ~->[DNET-1]->~
bnet small {
autoupdate = TRUE;
visual V1 { nodefont = font {shape= "Arial"; size= 9;}; NodeSet Node {BuiltIn = 1; Color = 0x00e1e1e1;}; };
node a { kind = NATURE; discrete = TRUE; states = (no, yes); parents = (); probs = (0.4, 0.6); };
node b { kind = NATURE; discrete = TRUE; states = (no, yes); parents = (a); probs = ((0.1, 0.9), // no
 (0.8, 0.2)); };
};
"""
PGMX = """<?xml version="1.0" encoding="UTF-8"?>
<ProbModelXML formatVersion="0.2.0"><ProbNet type="BayesianNetwork" name="small"><Variables>
<Variable name="a" type="finiteStates" role="chance"><States><State name="no"/><State name="yes"/></States></Variable>
<Variable name="b" type="finiteStates" role="chance"><States><State name="no"/><State name="yes"/></States></Variable>
</Variables><Links><Link directed="true"><Variable name="a"/><Variable name="b"/></Link></Links><Potentials>
<Potential type="Table" role="conditionalProbability"><Variables><Variable name="a"/></Variables>
<Values>0.4 0.6</Values></Potential>
<Potential type="Table" role="conditionalProbability"><Variables><Variable name="b"/><Variable name="a"/></Variables>
<Values>0.1 0.9 0.8 0.2</Values></Potential></Potentials></ProbNet></ProbModelXML>"""
NETWORK = build_network(
    "small",
    "bayes",
    [DraftVariable(name, ["no", "yes"], Place()) for name in "ab"],
    [DraftTable("a", [0.4, 0.6], Place()), DraftTable("ab", [0.1, 0.9, 0.8, 0.2], Place())],
)
# Of the files of costs.
COSTS = build_network(
    "small",
    "markov",
    [DraftVariable(name, ["no", "yes"], Place()) for name in "ab"],
    [DraftTable("a", np.exp([-1, -3]), Place()), DraftTable("ab", [np.exp(-2), 0, 1, np.exp(-2)], Place())],
)
CONTENT = {
    "bif": BIF.encode(),
    "hugin": NET.encode(),
    "xmlbif": XMLBIF.encode(),
    "xdsl": XDSL.encode(),
    "dsl": DSL.encode(),
    "netica": DNE.encode(),
    "pgmx": PGMX.encode(),
    "uai": UAI.encode(),
    "fg": FG.encode(),
    "wcsp": WCSP.encode(),
    "cfn": CFN.encode(),
    "parquet": store.to_bytes(NETWORK),
}
