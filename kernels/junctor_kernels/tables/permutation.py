"""Stored tables in another order of their variables: a sequence of swaps, and where each of them takes an entry.

Bistaffa, Farinelli and Bombieri (2014) bring the variables of a separator to the most significant positions of a clique
table by swapping positions pair by pair (their Algorithm 3). Where a swap takes an entry follows in closed form from
the entry's index alone (their Proposition 1), so all entries move independently of each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Entries whose new places NumPy computes at a time.
PIECE = 1 << 16


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


def swapped(index: Any, swap: Swap) -> Any:
    """Return where one swap takes the entries `index` (an integer, or an array of them): Proposition 1.

    With the digits a at the lower and b at the upper position, what is below stays, b comes down to the lower position,
    what lies between and a are worth as much more as the size of the lower position has changed, what is above stays.
    """
    lower, lower_size, upper, upper_size, above = swap
    below = index % lower
    a = index // lower % lower_size
    b = index // upper % upper_size
    between = index % upper - below - a * lower
    return index - index % above + (between + a * upper) // lower_size * upper_size + b * lower + below


def permuted(index: Any, swaps: Sequence[Swap]) -> Any:
    """Return where a sequence of swaps takes the entries `index`."""
    for swap in swaps:
        index = swapped(index, swap)
    return index


def backwards(swaps: Sequence[Swap]) -> list[Swap]:
    """Return the swaps that undo a sequence."""
    return [swap.reversed() for swap in reversed(swaps)]


def permute(table: Array, swaps: Sequence[Swap]) -> Array:
    """Return a flat table with every entry where the swaps take it; the specification of `permute_parallel`."""
    out = np.empty_like(table)
    for first in range(0, len(table), PIECE):
        piece = table[first : first + PIECE]
        out[permuted(np.arange(first, first + len(piece)), swaps)] = piece
    return out


def swap_array(swaps: Sequence[Swap]) -> npt.NDArray[np.int64]:
    """Return swaps as compiled code reads them, int64 [swaps, 5]."""
    return np.array(swaps, dtype=np.int64).reshape(-1, 5)


def permute_parallel(table: Array, swaps: Sequence[Swap]) -> Array:
    """Return what `permute` returns, computed on all cores."""
    # Numba takes half a second to load, which whoever has a GPU or small tables is spared.
    from junctor_kernels.cpu.stored import permute_into

    out = np.empty_like(table)
    permute_into(table, out, swap_array(backwards(swaps)))
    return out
