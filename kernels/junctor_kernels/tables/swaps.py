"""Swaps of variables that bring some of them to the front of a table: integers only.

Main class: Swap; called by `junctor.planning.cliques`, `permutation` moves the entries. Bistaffa, Farinelli and
Bombieri (2014), Algorithm 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Swap(NamedTuple):
    """A swap of two positions of a mixed-radix index; all numbers are those before the swap.

    lower, upper: weights (entries for each step) of the two positions.
    lower_size, upper_size: their sizes.
    above: weight of the position above the upper one.
    """

    lower: int
    lower_size: int
    upper: int
    upper_size: int
    above: int

    def reversed(self) -> Swap:
        """Return the inverse swap."""
        upper = self.upper // self.lower_size * self.upper_size
        return Swap(self.lower, self.upper_size, upper, self.lower_size, self.above)


def swaps_to_front(layout: Sequence[int], front: Sequence[int], sizes: Sequence[int]) -> tuple[list[Swap], list[int]]:
    """Return the swaps that bring the variables `front` to the most significant positions, and the layout they lead to.

    layout: variables of a table, the most significant first.
    front: variables to bring to the front, in that order.
    sizes: variable -> number of states.
    """
    # At most one swap for each variable of `front` (Algorithm 3).
    now, swaps = list(layout), []
    for place, wanted in enumerate(front):
        source = now.index(wanted)
        if source != place:
            upper, lower = (math.prod(sizes[v] for v in now[at + 1 :]) for at in (place, source))
            swaps.append(Swap(lower, sizes[wanted], upper, sizes[now[place]], upper * sizes[now[place]]))
            now[place], now[source] = now[source], now[place]
    return swaps, now


def backwards(swaps: Sequence[Swap]) -> list[Swap]:
    """Return the inverse of a sequence of swaps."""
    return [swap.reversed() for swap in reversed(swaps)]
