"""The XMLBIF dialects of UnBBayes: version 0 (VAR, POT, DPI) and versions 0.5 and 0.6 (variable, CPT).

Main function: `read_unbbayes`, called by `junctor.formats.xmlbif`.
"""

from __future__ import annotations

from junctor.formats.numbers import shown
from junctor.formats.xml import Element
from junctor.model.errors import ModelError
from junctor.model.network import DraftTable, DraftVariable, Network, Reading, build_network

# Version -> whether the first parent varies fastest among the parents; the child is always faster than all of them.
_FIRST_PARENT_FASTEST = {"0": True, "0.5": True, "0.6": False}


def read_unbbayes(root: Element, network: Element, reading: Reading | None = None) -> Network:
    """Return the network; `root` is the file's root and `network` the element with variables and tables."""
    version = root.attributes.get("version", "").strip()
    if version not in _FIRST_PARENT_FASTEST:
        known = ", ".join(_FIRST_PARENT_FASTEST)
        raise ModelError(f"found version {version!r} of UnBBayes' XMLBIF, expected one of {known}", root.place)
    variables = [_variable(element) for element in network.only("variables").children]
    if version == "0":
        tables = [_pot(element) for element in network.only("potential").all("pot")]
    else:
        distributions = network.only("conditionaldistributionset").all("conditionaldistribution")
        tables = [_distribution(element, _FIRST_PARENT_FASTEST[version]) for element in distributions]
    header = root.optional("header")
    name = header.optional("name") if header is not None else None
    return build_network(name.text if name is not None else "", "bayes", variables, tables, root.place, reading)


def _variable(element: Element) -> DraftVariable:
    name = element.attribute("name")
    kind = element.attributes.get("type", "") if element.tag in ("var", "variable") else element.tag
    if kind.lower() not in ("discrete", "discreteprobabilistic"):
        raise ModelError(
            f"variable {name!r} is of type {kind!r}, expected a discrete chance variable: Junctor reads no decisions, "
            "utilities or continuous variables",
            element.place,
        )
    states = [state.attribute("name") for state in element.all("state")]
    # An attribute or an element, depending on the version.
    states += [state.text for state in element.all("statename")]
    return DraftVariable(name, states, element.place)


def _pot(element: Element) -> DraftTable:
    child = element.only("private").attribute("name")
    parents = [parent.attribute("name") for parent in element.only("condset").all("condlem")]
    entries = element.only("dpis")
    return DraftTable([*reversed(parents), child], _entries(entries, "dpi"), entries.place)


def _distribution(element: Element, first_parent_fastest: bool) -> DraftTable:
    child = element.only("owner").attribute("name")
    listed = element.optional("parents")
    elements = list(listed.all("parent")) if listed is not None else []
    _expect_in_order(elements)
    parents = [parent.attribute("name") for parent in elements]
    entries = element.only("cpt")
    _expect_in_order(list(entries.all("dependentparentindex")))
    values = _entries(entries, "dependentparentindex")
    return DraftTable([*(reversed(parents) if first_parent_fastest else parents), child], values, entries.place)


def _expect_in_order(elements: list[Element]) -> None:
    for i, element in enumerate(elements):
        # Tables follow the listed order; an index that differs from it would have to be guessed at.
        index = element.attributes.get("index", str(i)).strip()
        if index != str(i):
            raise ModelError(f"found index {shown(index)} of <{element.tag}>, expected {i}", element.place)


def _entries(table: Element, tag: str) -> list[float]:
    values = []
    for entry in table.all(tag):
        try:
            (value,) = entry.numbers()
        except ValueError:
            raise ModelError(f"found {shown(entry.text)} in <{tag}>, expected one number", entry.place) from None
        values.append(float(value))
    return values
