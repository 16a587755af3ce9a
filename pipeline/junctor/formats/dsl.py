"""DSL, the text files of GeNIe and SMILE before XDSL: nodes of type CPT, TRUTHTABLE and NOISY_MAX.

    net small { node a { TYPE = CPT; PARENTS = ();
        DEFINITION = { NAMESTATES = (no, yes); PROBABILITIES = (0.4, 0.6); }; }; };

Main function: `read`. The order of the numbers is that of XDSL: the last parent fastest but for the child.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from junctor.formats.blocks import Block, parse_blocks
from junctor.formats.decisions import DecisionNode, leave_out
from junctor.formats.files import title_of
from junctor.formats.noisy import NoisyMax, tables_of
from junctor.formats.numbers import shown
from junctor.formats.smile import noisy_max, table_of_results
from junctor.formats.text import MAX_FILLED, hinted, note_findings
from junctor.model.errors import ModelError, Place
from junctor.model.network import DraftTable, DraftVariable, Network, Reading, build_network, table_size

_States = Mapping[str, Sequence[str]]

_CHANCE = ("cpt", "truthtable", "noisy_max")
_DECISIONS = {
    "list": "a decision of an influence diagram",
    "table": "a utility of an influence diagram",
    "mau": "a utility of an influence diagram",
}


def read(text: str, file: str, reading: Reading | None = None) -> Network:
    """Return the network of a DSL file; raises ModelError, with line and column, for whatever is wrong with it."""
    net = parse_blocks(text, file, "net", reading)
    listed = net.blocks("node", "submodel")
    nodes = [node for node in listed if _type(node) not in _DECISIONS]
    variables = [_variable(node) for node in nodes]
    leave_out(
        [DecisionNode(node.name, _refusal(node), node.place) for node in listed if _type(node) in _DECISIONS],
        ((node.name, node.list("parents")) for node in nodes),
        reading,
    )
    note_findings([node.name for node in nodes if _has_finding(node)], reading)
    # Of two variables of one name the first counts here; build_network refuses the second.
    states = {variable.name: variable.states for variable in reversed(variables)}
    _refuse_huge_expansions(nodes, states)
    tables = [_table(node, states) for node in nodes if _type(node) != "noisy_max"]
    hidden, noisy = tables_of([_noisy_max(node, states) for node in nodes if _type(node) == "noisy_max"], states)
    place = Place(file)
    return build_network(
        net.name or title_of(file), "bayes", variables + hidden, tables + noisy, place, reading, len(hidden)
    )


def _type(node: Block) -> str:
    return node.word("type").lower()


def _has_finding(node: Block) -> bool:
    return any(evidence.value("state") is not None for evidence in node.inners("evidence"))


def _refusal(node: Block) -> str:
    what = _DECISIONS.get(_type(node), "which is not read")
    return f"node {node.name!r} has TYPE = {node.word('type')}, {what}; expected CPT, TRUTHTABLE or NOISY_MAX"


def _variable(node: Block) -> DraftVariable:
    if _type(node) not in _CHANCE:
        raise ModelError(_refusal(node), node.place_of("type"))
    states = _definition(node).list("namestates")
    if not states:
        raise ModelError(f"node {node.name!r} has no NAMESTATES, expected a list of states", node.place)
    return DraftVariable(node.name, states, node.place)


def _definition(node: Block) -> Block:
    definition = node.inner("definition")
    if definition is None:
        raise ModelError(f"node {node.name!r} has no DEFINITION, expected one", node.place)
    return definition


def _scope(node: Block) -> list[str]:
    return [*node.list("parents"), node.name]


def _shape(node: Block, states: _States) -> tuple[int, ...]:
    scope = _scope(node)
    for name in scope:
        if name not in states:
            hint = hinted(name, states)
            raise ModelError(f"node {node.name!r}: unknown parent {shown(name)}{hint}", node.place_of("parents"))
    return tuple(len(states[name]) for name in scope)


def _refuse_huge_expansions(nodes: Sequence[Block], states: _States) -> None:
    total = 0
    for node in nodes:
        if _type(node) == "truthtable":
            total += table_size(_shape(node, states), f"table of {node.name!r}", node.place)
            if total > MAX_FILLED:
                raise ModelError(
                    f"the tables up to that of {node.name!r} would have {total:,} entries, allowed are {MAX_FILLED:,} "
                    "for all truth tables of a file together",
                    node.place,
                )


def _table(node: Block, states: _States) -> DraftTable:
    definition, scope, shape = _definition(node), _scope(node), _shape(node, states)
    if _type(node) == "cpt":
        values = definition.table("probabilities", f"table of {node.name!r}", shape)
        return DraftTable(scope, values, definition.place_of("probabilities"))
    place = definition.place_of("resultingstates")
    results = definition.list("resultingstates")
    return DraftTable(scope, table_of_results(results, node.name, shape, states[node.name], place), place)


def _noisy_max(node: Block, states: _States) -> NoisyMax:
    definition = _definition(node)
    strengths = definition.value("strengths")
    return noisy_max(
        _scope(node),
        _shape(node, states),
        (definition.numbers("probabilities"), definition.place_of("probabilities")),
        None if strengths is None else (definition.numbers("strengths"), definition.place_of("strengths")),
        node.place,
    )
