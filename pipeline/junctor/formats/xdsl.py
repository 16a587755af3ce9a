"""XDSL, the files of GeNIe and SMILE: nodes of type cpt, deterministic and noisymax.

Main function: `read`. Noisy-MAX nodes are expanded to full tables (Diez, Parameter adjustment in Bayes networks: the
generalized noisy OR-gate, UAI 1993).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from junctor.formats.decisions import DecisionNode, leave_out
from junctor.formats.files import title_of
from junctor.formats.numbers import shown
from junctor.formats.xml import Element, parse_xml
from junctor.model.errors import ModelError, Place, nearest
from junctor.model.network import (
    ROW_SUM_TOLERANCE,
    DraftTable,
    DraftVariable,
    Network,
    Reading,
    build_network,
    table_size,
)

_Array = npt.NDArray[np.float64]
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
    root = parse_xml(data, file)
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
    # Of two variables of one name the first counts here; build_network refuses the second.
    states = {variable.name: variable.states for variable in reversed(variables)}
    _refuse_huge_expansions(nodes, states)
    # All other tools list configurations with the last parent fastest. aGrUM writes the first one fastest, and signs
    # its files.
    first_parent_fastest = _is_by_agrum(root)
    tables = [_table(node, states, first_parent_fastest) for node in nodes]
    name = root.attributes.get("id") or title_of(file)
    return build_network(name, "bayes", variables, tables, root.place, reading)


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
        if node.tag != "cpt":
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
    shape = _shape(node, states)
    if node.tag == "deterministic":
        results = node.only("resultingstates")
        return DraftTable(scope, _from_results(results, scope[-1], shape, states[scope[-1]]), results.place)
    return DraftTable(scope, _from_noisy_max(node, shape), node.place)


def _from_results(element: Element, child: str, shape: tuple[int, ...], states: Sequence[str]) -> _Array:
    """Return the table [configurations, states] with a 1 at the resulting state of each configuration."""
    # Deterministic nodes list the resulting state of each configuration, the last parent fastest.
    results = element.text.split()
    rows = math.prod(shape[:-1])
    if len(results) != rows:
        raise ModelError(f"node {child!r}: found {len(results)} resulting states, expected {rows}", element.place)
    index = {state: i for i, state in enumerate(states)}
    for state in results:
        if state not in index:
            raise ModelError(f"node {child!r} has no state {shown(state)}{nearest(state, index)}", element.place)
    table = np.zeros((rows, shape[-1]))
    table[np.arange(rows), [index[state] for state in results]] = 1.0
    return table


def _from_noisy_max(node: Element, shape: tuple[int, ...]) -> _Array:
    """Return the table [configurations, states] of a noisy-MAX node."""
    # With states from the strongest effect to its absence, the node is the maximum over one independent contribution
    # of each parent and one of the leak:
    # P(Y at or below k | x) = leak(at or below k) * product over parents i of c_i(at or below k | x_i).
    *parents, states = shape
    columns = _columns(node, sum(parents) + 1, states)
    orders = _orders(node, parents)
    table: _Array = columns[-1:]
    for (start, end), order in zip(pairwise(np.cumsum([0, *parents]).tolist()), orders, strict=True):
        contribution = columns[start:end]
        if contribution[-1, :-1].any():
            raise ModelError(
                f"node {node.attribute('id')!r}: found {contribution[-1].tolist()} for the state of a parent that has "
                "no effect, expected 0 everywhere but in the last place",
                node.only("parameters").place,
            )
        table = _maximum(table, contribution[order])
    return table


def _columns(node: Element, number: int, states: int) -> _Array:
    """Return the distributions of the contributions, float64 [number, states], the leak last."""
    # SMILE keeps one distribution for each state of each parent and one for the leak.
    parameters = node.only("parameters")
    values = parameters.numbers()
    what = f"node {node.attribute('id')!r}"
    if values.size != number * states:
        raise ModelError(
            f"{what}: found {values.size} parameters, expected {number * states} ({number} distributions, the last one "
            f"for the leak, over {states} states)",
            parameters.place,
        )
    columns = values.reshape(number, states)
    off = np.abs(columns.sum(axis=1) - 1.0)
    if not (columns >= 0).all() or not (off <= ROW_SUM_TOLERANCE).all():
        at = int(np.argmax(~(off <= ROW_SUM_TOLERANCE) | ~(columns >= 0).all(axis=1)))
        raise ModelError(
            f"{what}: found {columns[at].tolist()} as distribution {at + 1} of the parameters, expected numbers that "
            "are not negative and sum to 1",
            parameters.place,
        )
    normalised: _Array = columns / columns.sum(axis=1, keepdims=True)
    return normalised


def _orders(node: Element, parents: list[int]) -> list[list[int]]:
    """Return, for each parent, the number of each of its states among the parent's distributions.

    They are in the order of `strengths`; the last one is the state without effect.
    """
    element = node.optional("strengths")
    if element is None:
        return [list(range(size)) for size in parents]
    strengths = element.numbers().tolist()
    if len(strengths) != sum(parents):
        raise ModelError(f"found {len(strengths)} strengths, expected {sum(parents)}", element.place)
    orders = []
    for start, end in pairwise(np.cumsum([0, *parents]).tolist()):
        orders.append(_order(strengths[start:end], element.place))
    return orders


def _order(strengths: list[float], place: Place) -> list[int]:
    size = len(strengths)
    if sorted(strengths) != list(range(size)):
        raise ModelError(f"found the strengths {strengths}, expected the numbers 0 to {size - 1} in some order", place)
    order = [int(strength) for strength in strengths]
    # Ranks of the states, or states by rank? A permutation that is its own inverse means the same either way.
    if any(order[order[i]] != i for i in range(size)):
        raise ModelError(
            f"found the strengths {order}, whose meaning is not certain; order the parent's states by their strength "
            "or change the node's type to 'Chance - General' in GeNIe",
            place,
        )
    return order


def _maximum(table: _Array, contribution: _Array) -> _Array:
    """Return the distribution of the stronger of two effects, [configurations * parent's states, states].

    Distributions go from the strongest state to the weakest.
    """
    # Sums of products without differences: nothing cancels, zeros stay zeros and small numbers exact.
    table = table[:, None, :]
    stronger: _Array = table * _at_or_below(contribution) + _below(table) * contribution
    return stronger.reshape(-1, contribution.shape[-1])


def _at_or_below(distribution: _Array) -> _Array:
    return np.cumsum(distribution[..., ::-1], axis=-1)[..., ::-1]


def _below(distribution: _Array) -> _Array:
    weaker = np.zeros_like(distribution)
    weaker[..., :-1] = _at_or_below(distribution)[..., 1:]
    return weaker
