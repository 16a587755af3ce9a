"""Stored tables in another order of their variables: a sequence of swaps, and where each of them takes an entry.

Bistaffa, Farinelli and Bombieri (2014) bring the variables of a separator to the most significant positions of a clique
table by swapping positions pair by pair (their Algorithm 3). Where a swap takes an entry follows in closed form from
the entry's index alone (their Proposition 1), so all entries move independently of each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor_kernels.tables.swaps import Swap

Array = npt.NDArray[Any]

# Entries whose new places NumPy computes at a time.
PIECE = 1 << 16


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


def permute(table: Array, swaps: Sequence[Swap]) -> Array:
    """Return a flat table with every entry where the swaps take it; NumPy, which `cpu.stored` is held against."""
    out = np.empty_like(table)
    for first in range(0, len(table), PIECE):
        piece = table[first : first + PIECE]
        out[permuted(np.arange(first, first + len(piece)), swaps)] = piece
    return out


def swap_array(swaps: Sequence[Swap]) -> npt.NDArray[np.int64]:
    """Return swaps as compiled code reads them, int64 [swaps, 5]."""
    return np.array(swaps, dtype=np.int64).reshape(-1, 5)
