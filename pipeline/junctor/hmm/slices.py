"""Two-slice Bayesian networks as hidden Markov models. Main function: `from_slices`, called by `read_model`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.formats.text import shortened
from junctor.hmm.model import HiddenMarkovModel, build_model, symbol_names_of
from junctor.model.errors import ModelError, Place
from junctor.model.network import Network, table_size

Doubles = npt.NDArray[np.float64]


# Variables of the two slices have the same name but for a 0 and a 1 at the end (`Rain_0`, `Rain_1`), or an apostrophe
# after the second. Those of the first slice with a child in the second are together the state; the rest of the second
# slice is together the observation. It may depend on its own slice only, and an observation of the first slice has to
# depend on the state in the same way.


def from_slices(network: Network, place: Place | None = None) -> HiddenMarkovModel:
    """Return the hidden Markov model of a two-slice network; several variables make states such as "a,b".

    network: Bayesian network.
    place: the file, for errors.
    Raises ModelError if the network is no hidden Markov model.
    """
    if network.kind != "bayes":
        raise ModelError("a Markov network cannot be read as a hidden Markov model", place)
    network = network.expanded
    later = _pairs(network)
    firsts = [v for v in later if any(v in network.factors[w].scope[:-1] for w in later.values())]
    if not firsts:
        cause = _other_states(network, range(len(network.variables))) or (
            "expected variables with the same name but for a 0 and a 1 at the end, and an arrow from one slice to the "
            "next"
        )
        raise ModelError(f"not a two-slice network: {cause}", place)
    seconds = [later[v] for v in firsts]
    doubled = [v for v in later if v not in firsts]
    observed = [v for v in range(len(network.variables)) if v not in (*firsts, *seconds, *doubled)]
    for children, parents in ((firsts, firsts), (seconds, firsts + seconds), (observed, seconds + observed)):
        _refuse_other_parents(network, children, parents, place)
    for v in doubled:
        _refuse_other_emission(network, v, later, place)
    parts = {network.variables[v].name: network.variables[v].states for v in observed}
    return build_model(
        _joint(network, firsts, [], place).reshape(-1),
        _joint(network, seconds, firsts, place),
        _joint(network, observed, seconds, place) if observed else None,
        _names(network, firsts),
        _names(network, observed) if observed else None,
        place,
        # Parts of a step may be observed without the others.
        parts if len(parts) > 1 else None,
    )


def _pairs(network: Network) -> dict[int, int]:
    """Return first variable -> second variable, for those of both slices."""
    states = [variable.states for variable in network.variables]
    return {v: w for v, w in _named_pairs(network).items() if states[v] == states[w]}


def _named_pairs(network: Network) -> dict[int, int]:
    """Return first variable -> second variable by their names alone."""
    others = {v: name[:-1] + "1" if name.endswith("0") else name + "'" for name, v in network.index.items()}
    return {v: network.index[other] for v, other in others.items() if other in network.index}


def _other_states(network: Network, variables: Collection[int]) -> str:
    """Return, for errors, that one of some variables has other states than its namesake; empty if none has."""
    for pair in _named_pairs(network).items():
        one, other = (network.variables[v] for v in pair)
        if one.states != other.states and not set(variables).isdisjoint(pair):
            is_order = sorted(one.states) == sorted(other.states)
            listed = " and ".join(shortened(", ".join(variable.states)) for variable in (one, other))
            return (
                f"the states of {one.name!r} and {other.name!r} differ{' in their order' if is_order else ''} "
                f"({listed}), expected the same in the same order"
            )
    return ""


def _refuse_other_parents(
    network: Network, children: Sequence[int], parents: Sequence[int], place: Place | None
) -> None:
    for child in children:
        for parent in network.factors[child].scope[:-1]:
            if parent not in parents:
                names = network.variables[child].name, network.variables[parent].name
                cause = _other_states(network, (child, parent))
                depends = f"{names[0]!r} depends on {names[1]!r}" + (f"; {cause}" if cause else "")
                raise ModelError(f"no hidden Markov model: {depends}", place)


def _refuse_other_emission(network: Network, v: int, later: dict[int, int], place: Place | None) -> None:
    one, other = network.factors[v], network.factors[later[v]]
    if tuple(later.get(w, w) for w in one.scope) != other.scope or not np.allclose(one.table, other.table, rtol=1e-12):
        names = network.variables[v].name, network.variables[later[v]].name
        raise ModelError(f"no hidden Markov model: {names[0]!r} and {names[1]!r} have different tables", place)


def _joint(network: Network, children: Sequence[int], given: Sequence[int], place: Place | None) -> Doubles:
    """Return P(children | given) [states of given, states of children]."""
    sizes = [network.cardinalities[v] for v in (*given, *children)]
    table_size(sizes, "the joint table of " + ", ".join(network.variables[v].name for v in children), place)
    scopes = [[*given, *children], *(list(network.factors[child].scope) for child in children)]
    axes = {v: i for i, v in enumerate(dict.fromkeys(v for scope in scopes for v in scope))}
    # A first operand of ones has all axes, including those of no table.
    tables = [np.ones(sizes), *(network.factors[child].table for child in children)]
    operands: list[Any] = [x for table, scope in zip(tables, scopes, strict=True) for x in (table, _at(axes, scope))]
    joint: Doubles = np.einsum(*operands, _at(axes, scopes[0]))
    return joint.reshape(int(np.prod(sizes[: len(given)])), -1)


def _at(axes: dict[int, int], scope: Sequence[int]) -> list[int]:
    return [axes[v] for v in scope]


def _names(network: Network, variables: Sequence[int]) -> tuple[str, ...]:
    return symbol_names_of([(network.variables[v].name, network.variables[v].states) for v in variables])
