"""Numbers that states stand for, of which means and variances are taken.

Main function: `with_values`, called for every query that asks for expected values.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

from junctor.evidence.mapping import EvidenceMapping, VariableMapping, toml_key
from junctor.evidence.propose import bounds_of
from junctor.model.errors import EvidenceError
from junctor.model.network import Network, Variable
from junctor.model.query import Query, chosen_states


def with_values(query: Query, network: Network, mapping: EvidenceMapping | None) -> Query:
    """Return a query whose expected values have the numbers that the states of their variables stand for.

    mapping: None for the names of the network.
    Raises EvidenceError for unknown variables, and for states that stand for no number.
    """
    if not query.expected:
        return query
    # Unknown names are refused there.
    chosen_states(network, query)
    found = []
    for name, _ in query.expected:
        mapped = None if mapping is None else mapping.variables.get(network.index[name])
        found.append((name, _values(network.variables[network.index[name]], mapped)))
    return replace(query, expected=tuple(found))


def _values(variable: Variable, mapped: VariableMapping | None) -> tuple[float, ...]:
    """Return the number of each state: what the mapping says, the middle of its bin, or of what its name says."""
    stated = {} if mapped is None else dict(mapped.values)
    for state in range(variable.cardinality):
        if state not in stated:
            low, high = _bounds(variable, state, mapped)
            if not (math.isfinite(low) and math.isfinite(high)):
                raise EvidenceError(_refusal(variable, state, low, high))
            # Not of their sum, which may exceed the range of numbers.
            stated[state] = low / 2 + high / 2
    return tuple(stated[state] for state in range(variable.cardinality))


def _bounds(variable: Variable, state: int, mapped: VariableMapping | None) -> tuple[float, float]:
    """Return between which numbers a state lies, nan where nothing tells."""
    if mapped is None or mapped.bins is None:
        return bounds_of(variable.states[state]) or (math.nan, math.nan)
    edges, (outside, *codes, _) = mapped.bins.edges.tolist(), mapped.bins.codes.tolist()
    bounds = [pair for pair, code in zip(pairwise(edges), codes, strict=True) if code == state]
    # Numbers outside of all bins may have any value, and of several bins the middle is that of none.
    has_others = state == outside and (edges[0] > -math.inf or edges[-1] < math.inf)
    return bounds[0] if len(bounds) == 1 and not has_others else (math.nan, math.nan)


def _refusal(variable: Variable, state: int, low: float, high: float) -> str:
    name = variable.states[state]
    why = "stands for no number"
    if math.isinf(low) or math.isinf(high):
        why = f"lies between {low:g} and {high:g}, which has no middle"
    return (
        f"expected value of {variable.name!r}: its state {name!r} {why}; give one in a mapping file, as in "
        f"[variables.{toml_key(variable.name)}] values = {{ {toml_key(name)} = 1.5 }}"
    )
