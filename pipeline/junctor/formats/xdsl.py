"""XDSL, the files of GeNIe and SMILE: nodes of type cpt, deterministic and noisymax.

Main functions: `read` and `write`. What it shares with the older DSL files is in `smile`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from junctor.formats.decisions import DecisionNode, leave_out
from junctor.formats.files import title_of
from junctor.formats.noisy import NoisyMax, tables_of
from junctor.formats.numbers import shown
from junctor.formats.smile import noisy_max, table_of_results
from junctor.formats.text import note_findings
from junctor.formats.writing import identifier, parents_first, refuse_markov
from junctor.formats.xml import Element, parse_xml
from junctor.model.errors import ModelError, nearest
from junctor.model.network import (
    DraftTable,
    DraftVariable,
    Network,
    Reading,
    build_network,
    table_size,
)

_States = Mapping[str, Sequence[str]]

# Node types of GeNIe that hold no table, and what they are.
_DECISIONS = {
    "decision": "a decision of an influence diagram",
    "utility": "a utility of an influence diagram",
    "mau": "a utility of an influence diagram",
}
_UNREAD = {
    "equation": "an equation over continuous variables",
    "noisyadder": "a noisy adder; change its type to 'Chance - General' in GeNIe, which makes it a table",
    "demorgan": "a DeMorgan gate; change its type to 'Chance - General' in GeNIe, which makes it a table",
}


def read(data: bytes, file: str | None = None, reading: Reading | None = None) -> Network:
    """Return the network of an XDSL file; raises ModelError, with line and column, for whatever is wrong with it."""
    root = parse_xml(data, file, reading)
    if root.tag != "smile":
        raise ModelError(f"found <{root.tag}>, expected <smile>: is this a GeNIe file?", root.place)
    dynamic = root.optional("dynamic")
    if dynamic is not None:
        raise ModelError(
            "this is a dynamic network, which is not read; unroll it in GeNIe and save the result", dynamic.place
        )
    listed = root.only("nodes").children
    nodes = [node for node in listed if node.tag not in _DECISIONS]
    variables = [_variable(node) for node in nodes]
    families = ((node.attribute("id"), _scope(node)[:-1]) for node in nodes)
    leave_out([_decision(node) for node in listed if node.tag in _DECISIONS], families, reading)
    cases = [case for listed in root.all("cases") for case in listed.all("case")]
    findings = [finding.attributes.get("node", "") for case in cases for finding in case.all("evidence")]
    note_findings(findings, reading)
    # Of two variables of one name the first counts here; build_network refuses the second.
    states = {variable.name: variable.states for variable in reversed(variables)}
    _refuse_huge_expansions(nodes, states)
    noisy = [_noisy_max(node, _shape(node, states)) for node in nodes if node.tag == "noisymax"]
    hidden, noisy_tables = tables_of(noisy, states)
    # All other tools list configurations with the last parent fastest. aGrUM writes the first one fastest, and signs
    # its files.
    first_parent_fastest = _is_by_agrum(root)
    tables = [_table(node, states, first_parent_fastest) for node in nodes if node.tag != "noisymax"] + noisy_tables
    name = root.attributes.get("id") or title_of(file)
    return build_network(name, "bayes", variables + hidden, tables, root.place, reading, len(hidden))


def _is_by_agrum(root: Element) -> bool:
    applications = (genie for extensions in root.all("extensions") for genie in extensions.all("genie"))
    return any(genie.attributes.get("app", "").startswith("aGrUM") for genie in applications)


def _refusal(node: Element, what: str) -> str:
    name = node.attributes.get("id", "")
    return f"node {name!r} is <{node.tag}>, {what}; expected <cpt>, <deterministic> or <noisymax>"


def _decision(node: Element) -> DecisionNode:
    return DecisionNode(node.attributes.get("id", ""), _refusal(node, _DECISIONS[node.tag]), node.place)


def _variable(node: Element) -> DraftVariable:
    if node.tag not in ("cpt", "deterministic", "noisymax"):
        raise ModelError(_refusal(node, _UNREAD.get(node.tag, "of an unknown type")), node.place)
    return DraftVariable(node.attribute("id"), [state.attribute("id") for state in node.all("state")], node.place)


def _scope(node: Element) -> list[str]:
    parents = node.optional("parents")
    return [*(parents.text.split() if parents is not None else []), node.attribute("id")]


def _shape(node: Element, states: _States) -> tuple[int, ...]:
    scope = _scope(node)
    for name in scope:
        if name not in states:
            raise ModelError(f"node {scope[-1]!r}: unknown parent {shown(name)}{nearest(name, states)}", node.place)
    return tuple(len(states[name]) for name in scope)


def _refuse_huge_expansions(nodes: Sequence[Element], states: _States) -> None:
    """Refuse tables that are to be expanded if all of them together are too large: a few words can ask for them."""
    total = 0
    for node in nodes:
        if node.tag == "deterministic":
            what = f"table of {node.attribute('id')!r}"
            total += table_size(_shape(node, states), what, node.place)
            table_size([total], f"the tables up to the {what}", node.place)


def _table(node: Element, states: _States, first_parent_fastest: bool) -> DraftTable:
    scope = _scope(node)
    if node.tag == "cpt":
        probabilities = node.only("probabilities")
        if first_parent_fastest:
            scope = [*reversed(scope[:-1]), scope[-1]]
        return DraftTable(scope, probabilities.numbers(), probabilities.place)
    results = node.only("resultingstates")
    table = table_of_results(results.text.split(), scope[-1], _shape(node, states), states[scope[-1]], results.place)
    return DraftTable(scope, table, results.place)


def _noisy_max(node: Element, shape: tuple[int, ...]) -> NoisyMax:
    parameters = node.only("parameters")
    strengths = node.optional("strengths")
    return noisy_max(
        _scope(node),
        shape,
        (parameters.numbers(), parameters.place),
        None if strengths is None else (strengths.numbers(), strengths.place),
        node.place,
    )


# Identifiers of GeNIe.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def write(network: Network) -> str:
    """Return a Bayesian network as XDSL; `read` restores its numbers to the last bit.

    Nodes stand after their parents, as SMILE reads them. Raises ModelError for a Markov network, and for names that are
    none in GeNIe.
    """
    refuse_markov(network, "XDSL")
    title = re.sub(r"[^A-Za-z0-9_]", "_", network.name)
    title = title if _NAME.fullmatch(title) else f"N{title}"
    names = [_name(variable.name) for variable in network.variables]
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f'<smile version="1.0" id="{title}">', "<nodes>"]
    for v in parents_first(network):
        factor = network.factors[v]
        states = "".join(f'<state id="{_name(state)}"/>' for state in network.variables[v].states)
        parents = " ".join(names[i] for i in factor.scope[:-1])
        # repr gives the shortest digits that read back as the same double.
        rows = factor.table.reshape(-1, factor.table.shape[-1]).tolist()
        lines += [
            f'<cpt id="{names[v]}">{states}{f"<parents>{parents}</parents>" if parents else ""}',
            "<probabilities>" + "\n".join(" ".join(map(repr, row)) for row in rows) + "</probabilities></cpt>",
        ]
    return "\n".join([*lines, "</nodes>", "</smile>"]) + "\n"


def _name(name: str) -> str:
    return identifier(name, _NAME, "GeNIe", "letters, digits and underscores, a letter first")
