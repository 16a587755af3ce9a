"""The part of a network that planning needs: sizes and scopes, no numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from junctor.model.network import Network


@dataclass(frozen=True, slots=True)
class Shape:
    """Cardinality of every variable and scope of every factor; `directed`: factor i is the table of variable i."""

    cardinalities: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]
    directed: bool

    def entries(self, scope: Iterable[int]) -> int:
        """Entries of a table over `scope`."""
        return math.prod(self.cardinalities[v] for v in scope)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Which variables a group of cases has evidence on, and how it enters.

    sliced: observed in every case of the group; cut out of the factors before triangulation.
    weighted: evidence that differs in kind between cases (observed in some, soft, or absent); enters as a likelihood.
    """

    sliced: frozenset[int]
    weighted: frozenset[int]


def shape_of(network: Network) -> Shape:
    """Return what planning needs to know of a network."""
    return Shape(network.cardinalities, tuple(factor.scope for factor in network.factors), network.kind == "bayes")


def bits(mask: int) -> Iterator[int]:
    """Yield the positions of the set bits of `mask`, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def mask_of(members: Iterable[int]) -> int:
    """Return the integer whose set bits are `members`."""
    mask = 0
    for member in members:
        mask |= 1 << member
    return mask
