"""The part of a network that planning needs: cardinalities and scopes, no numbers. Main classes: Shape, Pattern.

Sets of variables are integers (bit i: variable i): unions and tests of subsets of thousands are single operations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from junctor.model.network import Network


@dataclass(frozen=True, slots=True)
class Shape:
    """Cardinalities and scopes of a network.

    cardinalities: number of states of every variable.
    scopes: variable indices of every factor.
    directed: whether the network is Bayesian, factor i the table of variable i.
    """

    cardinalities: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]
    directed: bool

    def entries(self, scope: Iterable[int]) -> int:
        """Entries of a table over `scope`."""
        # Without a generator: planning spends much of its time here.
        return math.prod(map(self.cardinalities.__getitem__, scope))


@dataclass(frozen=True, slots=True)
class Pattern:
    """The variables that a group of cases has evidence on, and how it enters.

    sliced: observed in every case of the group; cut out of the factors before triangulation.
    weighted: observed in some cases only, or soft; evidence enters as a likelihood.
    """

    sliced: frozenset[int]
    weighted: frozenset[int]


def shape_of(network: Network) -> Shape:
    """Return what planning needs to know of a network."""
    return Shape(network.cardinalities, tuple(factor.scope for factor in network.factors), network.kind == "bayes")


def bits(mask: int) -> Iterator[int]:
    """Yield the positions of the set bits of `mask`, lowest first."""
    while mask:
        # The lowest set bit alone.
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def mask_of(members: Iterable[int]) -> int:
    """Return the integer whose set bits are `members`."""
    mask = 0
    for member in members:
        mask |= 1 << member
    return mask
