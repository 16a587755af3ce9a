"""Networks of pgmpy and pyAgrum, and back. Neither is imported before a network goes to it.

Names and states that are no text there - integers, booleans - have their text here, and keep what they were, as long as
they do not go through a file.

Main functions: `from_pgmpy`, `to_pgmpy`, `from_pyagrum`, `to_pyagrum`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.model.errors import InputError, ModelError, Place
from junctor.model.network import DraftTable, DraftVariable, Kind, Network, Reading, build_network

PGMPY, PYAGRUM = "pgmpy", "pyagrum"
# What a library has of a table: names of its axes, their states, and its entries.
_Table = tuple[Sequence[Any], Sequence[Sequence[Any]], npt.NDArray[np.float64]]


class Label(str):
    """The text of a name or state of another library; `value`: what it is there."""

    value: Any

    def __new__(cls, value: Any) -> Label:
        """Return the text of a value, which remembers it."""
        label = super().__new__(cls, value)
        label.value = value
        return label

    def __getnewargs__(self) -> tuple[Any]:
        return (self.value,)


def _text(value: Any) -> str:
    return value if type(value) is str else Label(value)


def _value(text: str) -> Any:
    return text.value if isinstance(text, Label) else text


def library_of(value: object) -> str | None:
    """Return the library that a network is of, which has functions from and to it here; None for other things."""
    library = type(value).__module__.partition(".")[0].lower()
    return library if library in (PGMPY, PYAGRUM) else None


def from_pgmpy(model: Any, normalize: bool = False) -> Network:
    """Return the network of a model of pgmpy, checked as that of a file.

    Variables are in the order of its nodes, states in that of a variable's own table. Names and states become text;
    `to_pgmpy` gives back what they were.
    model: a DiscreteBayesianNetwork, DiscreteMarkovNetwork or FactorGraph.
    normalize: divide every row of a conditional table by its sum, as in tables of counts or percentages.
    Raises ModelError for other models and tables, and for variables without a table.
    """
    place, kind = Place("the model of pgmpy"), _kind_of(model, "get_cpds", "get_factors", PGMPY)
    tables = list(model.get_cpds() if kind == "bayes" else model.get_factors())
    for table in tables:
        if not hasattr(table, "values") or not hasattr(table, "state_names"):
            raise ModelError(f"found a {type(table).__name__}, expected tables of probabilities", place)
    given = [_table(table.variables, table.values, table.state_names, kind) for table in tables]
    # Nodes of a graph of factors are these as well.
    taken = set(model.get_variable_nodes() if hasattr(model, "get_variable_nodes") else model.nodes())
    nodes = [node for node in model.nodes() if node in taken]
    # States are those of a variable's own table, where others may have them in another order.
    own = [(scope[-1:], states[-1:]) if kind == "bayes" else (scope, states) for scope, states, _ in reversed(given)]
    of = {name: its for scope, states in own for name, its in zip(scope, states, strict=True)}
    return _network(
        str(getattr(model, "name", "") or PGMPY),
        kind,
        place,
        {node: of.get(node) for node in nodes},
        given,
        normalize,
    )


def from_pyagrum(model: Any, normalize: bool = False) -> Network:
    """Return the network of a model of pyAgrum, checked as that of a file.

    Variables are in the order of their numbers. The states of range and integer variables are whole numbers, which
    `to_pyagrum` gives back; those of discretized ones are the texts of their intervals.
    model: a BayesNet or MarkovRandomField.
    normalize: as of `from_pgmpy`.
    Raises ModelError for other models.
    """
    place, kind = Place("the model of pyAgrum"), _kind_of(model, "cpt", "factors", PYAGRUM)
    variables = [model.variable(node) for node in sorted(model.nodes())]
    states = {variable.name(): _states_of(variable) for variable in variables}
    if kind == "bayes":
        tables = [model.cpt(node) for node in sorted(model.nodes())]
    else:
        tables = [model.factor(scope) for scope in model.factors()]
    # Axes of arrays are in the other order than names.
    given = [_table(list(table.names), table.toarray().T, states, kind) for table in tables]
    name = model.propertyWithDefault("name", PYAGRUM) if hasattr(model, "propertyWithDefault") else PYAGRUM
    return _network(name, kind, place, states, given, normalize)


def _table(names: Sequence[Any], values: Any, states: Mapping[Any, Sequence[Any]], kind: Kind) -> _Table:
    """Return a table; the variable of a conditional one comes first in both libraries, and last here."""
    if kind == "bayes":
        names, values = [*names[1:], names[0]], np.moveaxis(np.asarray(values), 0, -1)
    return names, [states[name] for name in names], np.asarray(values)


def _states_of(variable: Any) -> list[Any]:
    # A description is the name, and the kind with its states.
    kind = str(variable).removeprefix(f"{variable.name()}:").partition("(")[0]
    return [int(label) for label in variable.labels()] if kind in ("Range", "Integer") else list(variable.labels())


def _kind_of(model: object, bayes: str, markov: str, library: str) -> Kind:
    """Return the kind of a model, told by a method that it has; raises ModelError for what has neither."""
    # Influence diagrams have utilities.
    methods: dict[Kind, str] = {"bayes": bayes, "markov": markov} if not hasattr(model, "utility") else {}
    for kind, method in methods.items():
        if library_of(model) == library and hasattr(model, method):
            return kind
    raise ModelError(
        f"found a {type(model).__module__}.{type(model).__name__}, expected a Bayesian or Markov network of {library}"
    )


def _network(
    name: str,
    kind: Kind,
    place: Place,
    states: Mapping[Any, Sequence[Any] | None],
    tables: Sequence[_Table],
    normalize: bool,
) -> Network:
    """Return the network of what a library has; raises ModelError.

    states: of each variable, in the order of the network, None for one without a table.
    """
    drafts: dict[Any, DraftVariable] = {}
    for variable, its in states.items():
        if its is None:
            raise ModelError(f"variable {str(variable)!r} has no table", place)
        drafts[variable] = DraftVariable(_text(variable), tuple(map(_text, its)), place)
    found = []
    for scope, given, values in tables:
        if unknown := [each for each in scope if each not in drafts]:
            raise ModelError(f"a table has {str(unknown[0])!r}, which is no variable of the model", place)
        for axis, (variable, its) in enumerate(zip(scope, given, strict=True)):
            # Tables of pgmpy may have the same states in any order.
            values = np.take(values, _places(drafts[variable], tuple(map(_text, its)), place), axis)
        found.append(DraftTable([drafts[each].name for each in scope], values, place))
    return build_network(name, kind, list(drafts.values()), found, place, Reading(normalize))


def _places(variable: DraftVariable, given: tuple[str, ...], place: Place) -> list[int]:
    """Return where a table has the states of a variable; raises ModelError where it has others."""
    if sorted(given) != sorted(variable.states):
        raise ModelError(
            f"tables have the states {', '.join(variable.states)} and {', '.join(given)} of {variable.name!r}", place
        )
    return [given.index(state) for state in variable.states]


def to_pgmpy(network: Network) -> Any:
    """Return a network as a DiscreteBayesianNetwork or DiscreteMarkovNetwork of pgmpy.

    Noisy nodes have whole tables there. Raises InputError where pgmpy is not installed, ModelError for what it has no
    tables for.
    """
    models, discrete = _imported("pgmpy.models", "to_pgmpy"), import_module("pgmpy.factors.discrete")
    network = network.expanded
    names = [_value(variable.name) for variable in network.variables]
    states = [[_value(state) for state in variable.states] for variable in network.variables]
    # The names before pgmpy 1.0 were shorter.
    if network.kind == "markov":
        model = (getattr(models, "DiscreteMarkovNetwork", None) or models.MarkovNetwork)()
        model.add_nodes_from(names)
        for scope, table in _factors(network):
            model.add_edges_from(combinations([names[v] for v in scope], 2))
            sizes, of = [network.cardinalities[v] for v in scope], {names[v]: states[v] for v in scope}
            model.add_factors(discrete.DiscreteFactor([names[v] for v in scope], sizes, table, state_names=of))
        return model
    model = (getattr(models, "DiscreteBayesianNetwork", None) or models.BayesianNetwork)()
    model.add_nodes_from(names)
    for child, factor in enumerate(network.factors):
        parents = factor.scope[:-1]
        model.add_edges_from((names[parent], names[child]) for parent in parents)
        table = factor.table.reshape(-1, network.cardinalities[child]).T
        sizes, of = [network.cardinalities[v] for v in parents], {names[v]: states[v] for v in factor.scope}
        around = ([names[v] for v in parents], sizes) if parents else (None, None)
        model.add_cpds(discrete.TabularCPD(names[child], len(states[child]), table, *around, state_names=of))
    model.name = network.name
    return model


def to_pyagrum(network: Network) -> Any:
    """Return a network as a BayesNet or MarkovRandomField of pyAgrum.

    Names become text; whole numbers from state to state are a range, others an integer variable. Noisy nodes have whole
    tables there, factors over the same variables are one. Raises InputError where pyAgrum is not installed, ModelError
    where their product is beyond doubles.
    """
    gum, network = _imported(PYAGRUM, "to_pyagrum"), network.expanded
    model = gum.BayesNet(network.name) if network.kind == "bayes" else gum.MarkovRandomField()
    for variable in network.variables:
        model.add(_variable(gum, str(variable.name), [_value(state) for state in variable.states]))
    names = [str(variable.name) for variable in network.variables]
    if network.kind == "markov":
        together: dict[frozenset[int], tuple[tuple[int, ...], npt.NDArray[np.float64]]] = {}
        for scope, table in _factors(network):
            first, before = together.setdefault(frozenset(scope), (scope, np.ones(table.shape)))
            table = np.transpose(table, [scope.index(v) for v in first])
            product = before * table
            if not np.isfinite(product).all() or ((product == 0) & (before != 0) & (table != 0)).any():
                raise ModelError(f"the product of the factors over {[names[v] for v in first]} is beyond doubles")
            together[frozenset(scope)] = first, product
        for scope, table in together.values():
            _fill(model.addFactor([names[v] for v in scope]), [names[v] for v in scope], table)
        return model
    for child, factor in enumerate(network.factors):
        for parent in factor.scope[:-1]:
            model.addArc(parent, child)
        _fill(model.cpt(child), [names[v] for v in factor.scope], factor.table)
    return model


def _fill(tensor: Any, names: Sequence[str], table: npt.NDArray[np.float64]) -> None:
    # Arrays have their axes in the other order than names.
    axes = [names.index(name) for name in list(tensor.names)[::-1]]
    tensor[:] = np.ascontiguousarray(np.transpose(table, axes))


def _variable(gum: Any, name: str, states: Sequence[Any]) -> Any:
    if all(type(state) is int for state in states):
        if list(states) == list(range(states[0], states[0] + len(states))):
            return gum.RangeVariable(name, name, states[0], states[-1])
        if list(states) == sorted(states):
            return gum.IntegerVariable(name, name, list(states))
    return gum.LabelizedVariable(name, name, [str(state) for state in states])


def _factors(network: Network) -> Iterable[tuple[tuple[int, ...], npt.NDArray[np.float64]]]:
    """Yield the factors of a Markov network as tables that have variables, and ones where a variable has none."""
    for factor in network.factors:
        scope = factor.scope or (0,)
        yield scope, np.broadcast_to(factor.table, [network.cardinalities[v] for v in scope])
    for v in sorted(set(range(len(network.variables))).difference(*(factor.scope for factor in network.factors))):
        yield (v,), np.ones(network.cardinalities[v])


def _imported(module: str, wanted: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise InputError(f"{wanted} needs {package}, not installed here: pip install {package}") from None
