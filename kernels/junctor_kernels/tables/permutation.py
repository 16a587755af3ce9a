"""Permutation of the variables of stored tables by a sequence of swaps; the specification of the GPU kernel.

Main function: `permute`. Bistaffa, Farinelli and Bombieri (2014): the new index of an entry follows in closed form from
its index alone (Proposition 1), so all entries move independently of each other. On a CPU `junctor.cliques.host`
transposes instead, which has no division in every entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor_kernels.tables.swaps import Swap

Array = npt.NDArray[Any]

# Entries whose new indices NumPy computes at a time.
PIECE = 1 << 16


def swapped(index: Any, swap: Swap) -> Any:
    """Return the index of entries after one swap (Proposition 1); `index`: an integer or an array of them."""
    # With digits a at the lower and b at the upper position: digits below and above stay, b moves to the lower
    # position, and the weights of a and of the digits between scale by the change of the lower position's size.
    lower, lower_size, upper, upper_size, above = swap
    below = index % lower
    a = index // lower % lower_size
    b = index // upper % upper_size
    between = index % upper - below - a * lower
    return index - index % above + (between + a * upper) // lower_size * upper_size + b * lower + below


def permuted(index: Any, swaps: Sequence[Swap]) -> Any:
    """Return the index of entries after a sequence of swaps."""
    for swap in swaps:
        index = swapped(index, swap)
    return index


def permute(table: Array, swaps: Sequence[Swap]) -> Array:
    """Return a flat table with its entries permuted by swaps."""
    # Piece by piece: indices take eight bytes an entry, and arithmetic on them several such arrays.
    out = np.empty_like(table)
    for first in range(0, len(table), PIECE):
        piece = table[first : first + PIECE]
        out[permuted(np.arange(first, first + len(piece)), swaps)] = piece
    return out


def swap_array(swaps: Sequence[Swap]) -> npt.NDArray[np.int64]:
    """Return swaps as compiled code reads them, int64 [swaps, 5]."""
    return np.array(swaps, dtype=np.int64).reshape(-1, 5)
