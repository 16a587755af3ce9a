"""Swaps of variables of a table that bring some of them to the front: integers only.

Bistaffa, Farinelli and Bombieri (2014), Algorithm 3; `permutation` moves the entries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Swap(NamedTuple):
    """A swap of two positions of a mixed-radix index: what one step at either is worth before it, and their sizes.

    above: what a step is worth at the position above the upper one.
    """

    lower: int
    lower_size: int
    upper: int
    upper_size: int
    above: int

    def reversed(self) -> Swap:
        """Return the swap that takes every entry back."""
        upper = self.upper // self.lower_size * self.upper_size
        return Swap(self.lower, self.upper_size, upper, self.lower_size, self.above)


def swaps_to_front(layout: Sequence[int], front: Sequence[int], sizes: Sequence[int]) -> tuple[list[Swap], list[int]]:
    """Return the swaps that bring the variables `front` to the most significant positions, and the layout they lead to.

    layout: variables of a table, the most significant first. front: those wanted first, in that order. sizes: by
    variable. At most one swap for each variable of `front` (Algorithm 3).
    """
    now, swaps = list(layout), []
    for place, wanted in enumerate(front):
        found = now.index(wanted)
        if found != place:
            upper, lower = (math.prod(sizes[v] for v in now[at + 1 :]) for at in (place, found))
            swaps.append(Swap(lower, sizes[wanted], upper, sizes[now[place]], upper * sizes[now[place]]))
            now[place], now[found] = now[found], now[place]
    return swaps, now


def backwards(swaps: Sequence[Swap]) -> list[Swap]:
    """Return the swaps that undo a sequence."""
    return [swap.reversed() for swap in reversed(swaps)]
