"""XMLBIF: Bayesian networks in XML, in the dialects that tools really write.

Main functions: `read` and `write`. Version 0.3 is Cozman's interchange format (aGrUM, pgmpy, WEKA); UnBBayes uses the
name for elements of its own, which `junctor.formats.xmlbif_unbbayes` reads.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from junctor.formats.decisions import DecisionNode, leave_out
from junctor.formats.files import title_of
from junctor.formats.text import is_finding, note_findings
from junctor.formats.writing import refuse_markov
from junctor.formats.xml import Element, escaped, parse_xml, safe_title
from junctor.formats.xmlbif_unbbayes import read_unbbayes
from junctor.model.errors import ModelError, Place
from junctor.model.network import DraftTable, DraftVariable, Network, Reading, build_network

# Names of tools for a chance variable, the only kind that a discrete Bayesian network has.
_DECISIONS = ("decision", "utility")
_CHANCE = ("", "nature", "discrete", "chance", "probabilistic")


def read(data: bytes, file: str | None = None, reading: Reading | None = None) -> Network:
    """Return the network of an XMLBIF file; raises ModelError, with line and column, for whatever is wrong with it."""
    root = parse_xml(data, file, reading)
    if root.tag not in ("bif", "xmlbif"):
        hint = "; this is a GeNIe file, format xdsl" if root.tag == "smile" else ""
        raise ModelError(f"found <{root.tag}>, expected <BIF>{hint}", root.place)
    network = root.only("network")
    if network.optional("variables") is not None:
        return read_unbbayes(root, network, reading)
    name = network.optional("name")
    listed = list(network.all("variable"))
    variables = [_variable(element) for element in listed if _kind(element).lower() not in _DECISIONS]
    decisions = [_decision(element) for element in listed if _kind(element).lower() in _DECISIONS]
    definitions = list(network.all("definition", "probability"))
    if decisions:
        names = {node.name for node in decisions}
        definitions = [element for element in definitions if element.only("for").text not in names]
        families = (
            (element.only("for").text, [given.text for given in element.all("given")]) for element in definitions
        )
        leave_out(decisions, families, reading)
    observed = [element for element in listed if any(is_finding(each.text) for each in element.all("property"))]
    note_findings([element.only("name").text for element in observed], reading)
    # Sizes alone: names are checked by `build_network`.
    sizes = {variable.name: len(variable.states) for variable in variables}
    # The parser reports no DTD, so the bytes are searched.
    has_dtd = b"<!DOCTYPE" in data
    tables = [_table(element, sizes, has_dtd) for element in definitions]
    title = name.text if name is not None else ""
    return build_network(title or title_of(file), "bayes", variables, tables, Place(file), reading)


def _kind(element: Element) -> str:
    # Version 0.3 has an attribute TYPE, older files an element.
    typed = element.optional("type")
    return element.attributes.get("type", "") if typed is None else typed.text


def _refusal(element: Element) -> str:
    return (
        f"variable {element.only('name').text!r} is of type {_kind(element)!r}, expected 'nature': Junctor reads "
        "discrete chance variables, no decisions, utilities or continuous variables"
    )


def _decision(element: Element) -> DecisionNode:
    return DecisionNode(element.only("name").text, _refusal(element), element.place)


def _variable(element: Element) -> DraftVariable:
    name = element.only("name").text
    if _kind(element).lower() not in _CHANCE:
        raise ModelError(_refusal(element), element.place)
    return DraftVariable(name, [state.text for state in element.all("outcome", "value")], element.place)


def _table(element: Element, sizes: dict[str, int], has_dtd: bool) -> DraftTable:
    child = element.only("for").text
    parents = [given.text for given in element.all("given")]
    unread = next(element.all("entry", "default"), None)
    if unread is not None:
        raise ModelError(
            f"the table of {child!r} uses <{unread.tag.upper()}>, which is not read; expected one <TABLE> with all "
            "entries",
            unread.place,
        )
    table = element.only("table")
    values = table.numbers()
    # DEFINITION: the child varies fastest, then the last parent. In PROBABILITY, which is older, the child varies
    # slowest, and fastest is the last parent in files of JavaBayes (with a DTD), the first in those of Fast-PGM
    # (without).
    if element.tag == "probability":
        values = _child_last(values, sizes.get(child, 0))
        parents = parents if has_dtd else parents[::-1]
    return DraftTable([*parents, child], values, table.place)


def _child_last(values: npt.NDArray[np.float64], states: int) -> npt.NDArray[np.float64]:
    """Move the child from the first axis to the last; entries of a wrong number stay for the size check."""
    if states == 0 or values.size % states:
        return values
    return values.reshape(states, -1).T.ravel()


def write(network: Network) -> str:
    """Return a Bayesian network as XMLBIF 0.3; `read` restores its numbers to the last bit.

    Raises ModelError for a Markov network, and for names with control characters or white space at an end.
    """
    refuse_markov(network, "XMLBIF")
    names = [escaped(variable.name, "XMLBIF") for variable in network.variables]
    title = escaped(safe_title(network.name), "XMLBIF")
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', '<BIF VERSION="0.3">', "<NETWORK>", f"<NAME>{title}</NAME>"]
    for name, variable in zip(names, network.variables, strict=True):
        states = "".join(f"<OUTCOME>{escaped(state, 'XMLBIF')}</OUTCOME>" for state in variable.states)
        lines.append(f'<VARIABLE TYPE="nature"><NAME>{name}</NAME>{states}</VARIABLE>')
    for factor in network.factors:
        *parents, child = factor.scope
        given = "".join(f"<GIVEN>{names[i]}</GIVEN>" for i in parents)
        # repr gives the shortest digits that read back as the same double.
        rows = factor.table.reshape(-1, factor.table.shape[-1]).tolist()
        table = "\n".join(" ".join(map(repr, row)) for row in rows)
        lines.append(f"<DEFINITION><FOR>{names[child]}</FOR>{given}\n<TABLE>{table}</TABLE></DEFINITION>")
    return "\n".join([*lines, "</NETWORK>", "</BIF>"]) + "\n"
