"""ProbModelXML, the files of OpenMarkov (`.pgmx`): Bayesian networks with tables, uniform and noisy (ICI) potentials.

Main function: `read`. Source: Arias, Diez and others, ProbModelXML: a format for encoding probabilistic graphical
models, 2011. The first variable of a potential is the child and the fastest, then the parents, the first fastest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from junctor.formats.decisions import DecisionNode, leave_out
from junctor.formats.files import title_of
from junctor.formats.noisy import NoisyMax, distributions, tables_of
from junctor.formats.numbers import shown
from junctor.formats.text import Shapes, note_findings, shortened
from junctor.formats.xml import Element, parse_xml
from junctor.model.errors import ModelError, Place
from junctor.model.network import DraftTable, DraftVariable, Network, Reading, build_network

_States = Mapping[str, Sequence[str]]

# Names of the noisy models in versions of OpenMarkov, and whether the last state is the strongest.
_MODELS = {"or / max": True, "generalizedmax": True, "causalmax": True, "or": True, "max": True}
_MODELS |= {"and / min": False, "generalizedmin": False, "causalmin": False, "and": False, "min": False}
# Types of networks that hold decisions at most.
_NETWORKS = ("bayesiannetwork", "influencediagram", "decisionanalysisnetwork")


def read(data: bytes, file: str | None = None, reading: Reading | None = None) -> Network:
    """Return the network of a PGMX file; raises ModelError, with line and column, for whatever is wrong with it."""
    root = parse_xml(data, file, reading)
    if root.tag != "probmodelxml":
        raise ModelError(f"found <{root.tag}>, expected <ProbModelXML>: is this an OpenMarkov file?", root.place)
    net = root.only("probnet")
    kind = net.attributes.get("type", "BayesianNetwork")
    if kind.lower() not in _NETWORKS:
        raise ModelError(f"the network is of type {shown(kind)}, expected a BayesianNetwork", net.place)
    listed = list(net.only("variables").all("variable"))
    chance = [element for element in listed if _role(element) == "chance"]
    variables = [_variable(element) for element in chance]
    # Of two variables of one name the first counts here; build_network refuses the second.
    states = {variable.name: variable.states for variable in reversed(variables)}
    decisions = [_decision(element) for element in listed if _role(element) != "chance"]
    names = {node.name for node in decisions}
    potentials = [
        element
        for element in net.only("potentials").all("potential")
        # Potentials of decisions are policies, those of utilities their values.
        if element.optional("utilityvariable") is None and not names.intersection(_scope(element)[:1])
    ]
    leave_out(decisions, ((_scope(element)[0], _scope(element)[1:]) for element in potentials), reading)
    cases = [case for listed in root.all("evidence") for case in listed.all("evidencecase")]
    note_findings([_finding(finding) for case in cases for finding in case.all("finding")], reading)
    shapes = Shapes(states)
    tables, noisy = [], []
    for element in potentials:
        # The name first: it is the cause of all other errors.
        shape = shapes.of([*reversed(_scope(element)[1:]), _scope(element)[0]], "a potential", element.place)
        if element.attributes.get("type", "").lower() == "icimodel":
            noisy.append(_noisy(element, states))
        else:
            tables.append(_table(element, shapes, shape))
    hidden, noisy_tables = tables_of(noisy, states)
    name = root.attributes.get("name") or net.attributes.get("name") or title_of(file)
    return build_network(name, "bayes", variables + hidden, tables + noisy_tables, Place(file), reading, len(hidden))


def _role(element: Element) -> str:
    return element.attributes.get("role", "chance").lower()


def _decision(element: Element) -> DecisionNode:
    name = element.attributes.get("name", "")
    refusal = f"variable {name!r} is a {_role(element)} of an influence diagram, expected chance variables"
    return DecisionNode(name, refusal, element.place)


def _named(element: Element) -> str:
    """Return the name of a variable, with its time slice where it has one."""
    time = element.attributes.get("timeslice", "")
    return element.attribute("name") + (f" [{time}]" if time else "")


def _finding(element: Element) -> str:
    return element.attributes.get("variable", "")


def _variable(element: Element) -> DraftVariable:
    kind, name = element.attributes.get("type", "finiteStates"), _named(element)
    if kind.lower() not in ("finitestates", "discretized"):
        raise ModelError(f"variable {name!r} is of type {shown(kind)}, expected finiteStates", element.place)
    listed = element.optional("states")
    states = [] if listed is None else [state.attribute("name") for state in listed.all("state")]
    return DraftVariable(name, states, element.place)


def _scope(potential: Element) -> list[str]:
    """Return the variables of a potential, the child first."""
    listed = potential.optional("variables")
    names = [] if listed is None else [_named(variable) for variable in listed.all("variable")]
    if not names:
        raise ModelError("the potential has no variables, expected the child and its parents", potential.place)
    return names


def _table(element: Element, shapes: Shapes, shape: Sequence[int]) -> DraftTable:
    child, *parents = _scope(element)
    scope = [*reversed(parents), child]
    what, kind = f"table of {child!r}", element.attributes.get("type", "")
    if kind.lower() == "uniform":
        return DraftTable(scope, shapes.fill(shape, what, element.place) / shape[-1], element.place)
    if kind.lower() not in ("table", "probtable"):
        raise ModelError(
            f"{what} is a potential of type {shown(kind)}, expected Table, Uniform or ICIModel: make it a table in "
            "OpenMarkov",
            element.place,
        )
    values = element.only("values")
    return DraftTable(scope, values.numbers(), values.place)


def _noisy(element: Element, states: _States) -> NoisyMax:
    child, *parents = _scope(element)
    what = f"table of {child!r}"
    model = element.only("model")
    strongest_last = _MODELS.get(model.text.lower())
    if strongest_last is None:
        known = "OR / MAX or AND / MIN"
        raise ModelError(f"{what} is the noisy model {shown(model.text)}, expected {known}", model.place)
    found = {}
    for part in element.only("subpotentials").all("potential"):
        of = _scope(part)
        if of[0] != child or len(of) > 2 or (len(of) == 2 and of[1] not in parents) or of[-1] in found:
            raise ModelError(
                f"{what}: found a part over {shortened(', '.join(of))}, expected one of each parent and one of the "
                "leak",
                part.place,
            )
        values = part.only("values")
        numbers, size = values.numbers(), math.prod(len(states[name]) for name in of)
        if numbers.size != size:
            raise ModelError(f"{what}: found {numbers.size} entries of a part, expected {size}", values.place)
        found[of[-1]] = distributions(numbers, len(states[child]), what, values.place)
    missing = next((name for name in (child, *parents) if name not in found), None)
    if missing is not None:
        part_of = "leak" if missing == child else f"part of {missing!r}"
        raise ModelError(f"{what} has no {part_of}, expected one", element.place)
    # OpenMarkov lists states from the weakest on: the maximum is the last of them.
    return NoisyMax(
        [*parents, child], [found[name] for name in parents], found[child][0], strongest_last, element.place
    )
