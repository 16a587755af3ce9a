"""Hugin's NET language, as Hugin, GeNIe, SamIam, UnBBayes and others write it.

    net { }
    node smoke { states = ("yes" "no"); }
    potential (smoke) { data = (0.5 0.5); }
    potential (lung | smoke) { data = ((0.1 0.9) (0.01 0.99)); }

Main functions: `read` and `write`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from junctor.formats.decisions import DecisionNode, leave_out
from junctor.formats.text import (
    VALUES_IN_BRACES,
    Shapes,
    SourceText,
    TextBlock,
    Token,
    assembled,
    nests_as,
    numbers_in,
    parse,
    scope_of,
    shortened,
    unquoted,
    without_comments,
)
from junctor.formats.writing import identifier, refuse_markov
from junctor.model.errors import ModelError
from junctor.model.network import DraftTable, DraftVariable, Network, Reading

# Read are `node` (or `discrete node`), `potential`, and the same inside of one `class { }`; `net` and all other
# attributes are ignored. Utility, decision, continuous, function and instance nodes are matched in order to be refused.
# Keywords have priority (.1) but not before `=`: attributes may bear their names.
_GRAMMAR = r"""
start: (net | class | node | potential)*

net: _NET _LBRACE attribute* _RBRACE
class: CLASS NAME? _LBRACE (attribute | node | potential)* _RBRACE
node: KIND NAME _LBRACE attribute* _RBRACE
potential: _POTENTIAL SCOPE _LBRACE attribute* _RBRACE
attribute: KEY _EQUALS VALUE? _END

_NET.1: /net\b(?!\s*=)/
CLASS.1: /class\b(?!\s*=)/
KIND.1: /(?:[A-Za-z]++\s++)?(?:node|utility|decision|function|instance)\b(?!\s*=)/
_POTENTIAL.1: /potential\b(?!\s*=)/

NAME: /"[^"]*+"|[^\s{}"][^\n{}"]*+/
SCOPE: /\((?:[^(){}"]++|"[^"]*+"|\([^(){}"]*+\))*+\)/
KEY: /[^\s={}();"]++/
"""

# Names of the terminals in errors, in the order in which alternatives are listed.
_WORDS = {
    "_NET": "'net'",
    "CLASS": "'class'",
    "KIND": "'node'",
    "_POTENTIAL": "'potential'",
    "$END": "the end of the file",
    "NAME": "a name",
    "SCOPE": "the variables: (child | parents)",
    "KEY": "an attribute",
    "_EQUALS": "'='",
    "VALUE": "a value",
    "_LBRACE": "'{'",
    "_RBRACE": "'}'",
    "_END": "';'",
}

# Nodes of influence diagrams.
_DECISIONS = ("decision", "decision node", "discrete decision", "utility", "utility node")

_STRING = r'"(?:[^"\\]++|\\.)*+"'


def read(text: str, file: str, reading: Reading | None = None) -> Network:
    """Read a Bayesian network from the text of a NET file; raises ModelError with line and column."""
    source = without_comments(text, file, r"%[^\n]*+", _STRING, {'"': "quote"}, reading)
    blocks = list(_flat(source, parse(_GRAMMAR + VALUES_IN_BRACES, source, _WORDS)))
    # Files have the title in `net`, or none at all.
    titles = [title for block in blocks if block.kind == "net" if (title := _title(source, block))]
    nodes = [block for block in blocks if block.kind == "node"]
    variables = [_variable(source, block) for block in nodes if _spelt(block) not in _DECISIONS]
    potentials = [block for block in blocks if block.kind == "potential"]
    decisions = [_decision(source, block) for block in nodes if _spelt(block) in _DECISIONS]
    if decisions:
        names = {node.name for node in decisions}
        known = names | {variable.name for variable in variables}
        scopes = [scope_of(source, block.tokens[0], known) for block in potentials]
        families = [scope for scope in scopes if scope[0] not in names]
        leave_out(decisions, families, reading)
        potentials = [block for block, scope in zip(potentials, scopes, strict=True) if scope[0] not in names]
    return assembled(
        file, titles, variables, lambda shapes: [_table(source, block, shapes) for block in potentials], reading
    )


def _flat(source: SourceText, file: TextBlock) -> Iterator[TextBlock]:
    """Yield the blocks of the file and those inside of its class."""
    classes = file.all("class")
    if len(classes) > 1:
        place = source.place_of(classes[1].tokens[0])
        raise ModelError("found a second class, expected one network: flatten the classes into one first", place)
    for block in file.blocks:
        yield from block.blocks if block.kind == "class" else [block]


def _attribute(source: SourceText, block: TextBlock, key: str) -> Token | None:
    """Return the value of an attribute, None where it is missing; raises ModelError if it is empty or stands twice."""
    matches = [attribute.tokens for attribute in block.all("attribute") if attribute.tokens[0] == key]
    if len(matches) > 1:
        raise ModelError(f"found a second {key!r}, expected one", source.place_of(matches[1][0]))
    if matches and len(matches[0]) < 2:
        raise ModelError(f"found no value of {key!r}, expected one after '='", source.place_of(matches[0][0]))
    return matches[0][1] if matches else None


def _title(source: SourceText, net: TextBlock) -> str:
    value = (_attribute(source, net, "name") or "").strip()
    return _unescaped(value[1:-1]) if value.startswith('"') else value


def _unescaped(text: str) -> str:
    return re.sub(r'\\(["\\])', r"\1", text)


def _spelt(block: TextBlock) -> str:
    return " ".join(block.tokens[0].split())


def _refusal(block: TextBlock) -> str:
    kind = _spelt(block).removesuffix(" node")
    return (
        f"{unquoted(block.tokens[1])!r} is {'an' if kind[0] in 'aeio' else 'a'} {kind} node, expected nothing but "
        "discrete chance nodes: this is no discrete Bayesian network"
    )


def _decision(source: SourceText, block: TextBlock) -> DecisionNode:
    kind, token = block.tokens
    return DecisionNode(unquoted(token), _refusal(block), source.place_of(kind))


def _variable(source: SourceText, block: TextBlock) -> DraftVariable:
    kind, token = block.tokens
    name, place = unquoted(token), source.place_of(token)
    if _spelt(block) not in ("node", "discrete node"):
        raise ModelError(_refusal(block), source.place_of(kind))
    listed = _attribute(source, block, "states")
    if listed is None:
        raise ModelError(f'node {name!r} has no states, expected an attribute: states = ("no" "yes");', place)
    return DraftVariable(name, _states(source, name, listed), place)


def _states(source: SourceText, name: str, listed: Token) -> list[str]:
    text = listed.strip()
    words = re.findall(_STRING + r'|[^\s,"]++', text[1:-1], re.DOTALL)
    if text[:1] != "(" or text[-1:] != ")" or any(word[0] != '"' and set(word) & set("()") for word in words):
        raise ModelError(
            f"the states of {name!r}: found {shortened(text)}, expected names in one pair of brackets",
            source.place_of(listed),
        )
    return [_unescaped(word[1:-1]) if word[0] == '"' else word for word in words]


def _table(source: SourceText, block: TextBlock, shapes: Shapes) -> DraftTable:
    (token,) = block.tokens
    place = source.place_of(token)
    child, parents = scope_of(source, token, shapes.states)
    what = f"table of {child!r}"
    shape = shapes.of([*parents, child], what, place)
    data = _attribute(source, block, "data")
    if data is not None:
        return DraftTable([*parents, child], _data(source, data, what, shape), place)
    if _attribute(source, block, "model_data") is not None:
        raise ModelError(
            f"{what} is given by an expression (model_data), expected its entries: compile the network in Hugin and "
            "save it with its tables (data)",
            place,
        )
    # Hugin takes a table without `data` as uniform.
    return DraftTable([*parents, child], shapes.fill(shape, what, place) / shape[-1], place)


def _data(source: SourceText, data: Token, what: str, shape: Sequence[int]) -> npt.NDArray[np.float64]:
    values = numbers_in(source, data)
    expected = math.prod(shape)
    sizes = " x ".join(map(str, shape))
    if values.size != expected:
        raise ModelError(f"{what}: found {values.size} entries, expected {expected} ({sizes})", source.place_of(data))
    # The entries follow the parents as listed, the child fastest; nested brackets must say the same. One pair around
    # all entries says nothing and is accepted.
    if not nests_as(data, shape):
        raise ModelError(
            f"{what}: the brackets of its data do not nest as {sizes}: expected one pair around the entries of each "
            "row, and one around the rows of each state of a parent",
            source.place_of(data),
        )
    return values


# Names of variables; those that start as a block does are none.
_PLAIN = re.compile(
    r"(?!(?:net|class|node|utility|decision|function|instance|potential|discrete)\b)[A-Za-z_][A-Za-z0-9_]*"
)
# Control characters are lost in editors and in conversions of line ends.
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def write(network: Network) -> str:
    """Return a Bayesian network as NET text; `read` restores its numbers to the last bit.

    Raises ModelError for a Markov network, for names of variables that are none in Hugin, and for states
    with control characters.
    """
    refuse_markov(network, "NET")
    names = [_name(variable.name) for variable in network.variables]
    lines = [f"net {{ name = {_quoted(_UNWRITABLE.sub('_', network.name))}; }}"]
    for name, variable in zip(names, network.variables, strict=True):
        lines.append(f"node {name} {{ states = ({' '.join(map(_quoted, variable.states))}); }}")
    for factor in network.factors:
        *parents, child = factor.scope
        bar = f" | {' '.join(names[i] for i in parents)}" if parents else ""
        lines.append(f"potential ({names[child]}{bar}) {{ data = {_bracketed(factor.table)}; }}")
    return "\n".join(lines) + "\n"


def _name(name: str) -> str:
    return identifier(name, _PLAIN, "Hugin", "letters, digits and underscores, no digit first")


def _quoted(text: str) -> str:
    if bad := _UNWRITABLE.search(text):
        raise ModelError(f"the name {text!r} has {bad[0]!r} in it, which NET cannot express: write UAI or Parquet")
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _bracketed(table: npt.NDArray[np.float64]) -> str:
    if table.ndim == 1:
        # repr gives the shortest digits that read back as the same double.
        return f"({' '.join(map(repr, table.tolist()))})"
    return f"({chr(10).join(map(_bracketed, table))})"
