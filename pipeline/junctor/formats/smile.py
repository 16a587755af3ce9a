"""What the files of GeNIe, XDSL and the older DSL, say in the same way: deterministic and noisy-MAX nodes.

Main functions: `table_of_results` and `noisy_max`, called by `xdsl` and `dsl`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from junctor.formats.noisy import NoisyMax, distributions
from junctor.formats.numbers import shown
from junctor.model.errors import ModelError, Place, nearest

_Array = npt.NDArray[np.float64]


def table_of_results(
    results: Sequence[str], child: str, shape: Sequence[int], states: Sequence[str], place: Place
) -> _Array:
    """Return the table [configurations, states] with a 1 at the resulting state of each configuration.

    results: names of states, a configuration of the parents each, the last parent fastest.
    child: name of the node.
    shape: sizes of the parents and of the child.
    states: of the child.
    place: of the results.
    Raises ModelError for a wrong number of them or an unknown state.
    """
    rows = math.prod(shape[:-1])
    if len(results) != rows:
        raise ModelError(f"node {child!r}: found {len(results)} resulting states, expected {rows}", place)
    index = {state: i for i, state in enumerate(states)}
    for state in results:
        if state not in index:
            raise ModelError(f"node {child!r} has no state {shown(state)}{nearest(state, index)}", place)
    table = np.zeros((rows, shape[-1]))
    table[np.arange(rows), [index[state] for state in results]] = 1.0
    return table


def noisy_max(
    scope: Sequence[str],
    shape: Sequence[int],
    parameters: tuple[_Array, Place],
    strengths: tuple[_Array, Place] | None,
    place: Place,
) -> NoisyMax:
    """Return a noisy-MAX node, whose first state is the strongest.

    scope: names of the parents, then the node.
    shape: sizes of them.
    parameters: a distribution for each state of each parent and one for the leak, and their place.
    strengths: for each parent the number of each state among the parent's distributions, and their place; None: the
        order of the states. The last one is the state without effect.
    place: of the node.
    Raises ModelError for parameters and strengths that are none.
    """
    # With states from the strongest effect to its absence, the node is the strongest of one independent contribution
    # of each parent and one of the leak:
    # P(Y at or below k | x) = leak(at or below k) * product over parents i of c_i(at or below k | x_i).
    *parents, states = shape
    values, at = parameters
    what = f"node {scope[-1]!r}"
    number = sum(parents) + 1
    if values.size != number * states:
        raise ModelError(
            f"{what}: found {values.size} parameters, expected {number * states} ({number} distributions, the last one "
            f"for the leak, over {states} states)",
            at,
        )
    columns = distributions(values, states, what, at)
    contributions = []
    for (start, end), order in zip(_spans(parents), _orders(parents, strengths), strict=True):
        contribution = columns[start:end]
        if contribution[-1, :-1].any():
            raise ModelError(
                f"{what}: found {contribution[-1].tolist()} for the state of a parent that has no effect, expected 0 "
                "everywhere but in the last place",
                at,
            )
        contributions.append(contribution[order])
    return NoisyMax(scope, contributions, columns[-1], False, place)


def _spans(sizes: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(np.cumsum([0, *sizes]).tolist()))


def _orders(parents: Sequence[int], strengths: tuple[_Array, Place] | None) -> list[list[int]]:
    if strengths is None:
        return [list(range(size)) for size in parents]
    values, place = strengths
    if values.size != sum(parents):
        raise ModelError(f"found {values.size} strengths, expected {sum(parents)}", place)
    return [_order(values[start:end].tolist(), place) for start, end in _spans(parents)]


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
