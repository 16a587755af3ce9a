"""Stored clique tables on all cores of a CPU (Numba); agrees with `junctor_kernels.stored`.

A thread takes a piece of the table (or, for separators whose variables are not the most significant ones, some of their
entries), so that no two threads write to one place and sums do not depend on their number.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from junctor_kernels.jit import jit
from junctor_kernels.views import Axis, View

# Entries of a piece of a table, and terms that one accumulator adds up before they join the sum.
PIECE = 1 << 14
RUN = 64


def scatter(table: npt.NDArray[Any], view: View, values: npt.NDArray[Any]) -> bool:
    """Multiply every entry of a chunk by its entry of `values`, in place; return whether a product lost digits."""
    tiny = np.finfo(table.dtype).tiny
    return bool(_scatter(table, values[view.base :], _array(view.axes), tiny))


def reduce(table: npt.NDArray[Any], view: View, sums: npt.NDArray[Any]) -> None:
    """Add every entry of a chunk to its entry of `sums`."""
    kept, out = view.kept()
    terms = 1
    for axis in view.eliminated():
        terms *= axis.size
    if terms * len(sums) < PIECE or view.entries // terms >= numba.get_num_threads():
        _reduce(table, sums[view.base :], _array(kept), _array(out), _array(view.eliminated()), terms)
    else:
        _reduce_few(table, sums[view.base :], _array(kept), _array(out), _array(view.eliminated()), terms)


def _array(axes: tuple[Axis, ...]) -> npt.NDArray[np.int64]:
    return np.array(axes or ((1, 0),), dtype=np.int64)


def _parallel(function: Any) -> Any:
    options = {"nogil": True, "error_model": "numpy", "parallel": True}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:
        # Nowhere to keep compiled code, as in `jit`.
        return numba.njit(**options)(function)


@jit
def _walk(axes: Any, index: int) -> int:
    """Return where an index, counted along the axes from the innermost on, leads."""
    at = 0
    for a in range(len(axes) - 1):
        rest = index // axes[a, 0]
        at += (index - rest * axes[a, 0]) * axes[a, 1]
        index = rest
    return at + index * axes[len(axes) - 1, 1]


@_parallel
def _scatter(table: Any, values: Any, axes: Any, tiny: float) -> bool:
    inner, step = axes[0, 0], axes[0, 1]
    pieces = (len(table) + PIECE - 1) // PIECE
    lost = np.zeros(pieces, dtype=np.uint8)
    for n in numba.prange(pieces):
        # An index of a parallel loop is unsigned, and would turn what it is added to into floating point.
        piece = np.int64(n)
        k, end = piece * PIECE, min(len(table), (piece + 1) * PIECE)
        flushed = False
        while k < end:
            row = k // inner
            digit = k - row * inner
            at = _walk(axes, row * inner)
            count = min(inner - digit, end - k)
            for i in range(count):
                entry, by = table[k + i], values[at + (digit + i) * step]
                result = entry * by
                flushed |= (entry > 0) & (by > 0) & (result < tiny)
                table[k + i] = result
            k += count
        lost[piece] = flushed
    return lost.any()


@jit
def _sum_terms(table: Any, base: int, axes: Any, first: int, last: int) -> Any:
    """Return the sum of the terms from `first` to `last`; short sums first, so that rounding hardly grows."""
    inner, step = axes[0, 0], axes[0, 1]
    total = table.dtype.type(0)
    r = first
    while r < last:
        digit = r % inner
        at = base + _walk(axes, r - digit)
        count = min(inner - digit, last - r, RUN)
        part = table.dtype.type(0)
        for i in range(count):
            part += table[at + (digit + i) * step]
        total += part
        r += count
    return total


@_parallel
def _reduce(table: Any, sums: Any, kept: Any, out: Any, eliminated: Any, terms: int) -> None:
    entries = len(table) // terms
    for n in numba.prange(entries):
        s = np.int64(n)
        sums[_walk(out, s)] += _sum_terms(table, _walk(kept, s), eliminated, 0, terms)


@_parallel
def _reduce_few(table: Any, sums: Any, kept: Any, out: Any, eliminated: Any, terms: int) -> None:
    """As `_reduce` where there are fewer separator entries than threads: the terms of each are cut into pieces."""
    entries, pieces = len(table) // terms, (terms + PIECE - 1) // PIECE
    parts = np.zeros((entries, pieces), dtype=table.dtype)
    for n in numba.prange(entries * pieces):
        s, piece = np.int64(n) // pieces, np.int64(n) % pieces
        last = min(terms, (piece + 1) * PIECE)
        parts[s, piece] = _sum_terms(table, _walk(kept, s), eliminated, piece * PIECE, last)
    for s in range(entries):
        total = table.dtype.type(0)
        for piece in range(pieces):
            total += parts[s, piece]
        sums[_walk(out, s)] += total


@jit
def _moved(index: int, swaps: Any) -> int:
    """Return where swaps take an entry, as `junctor_kernels.permutation.swapped` does one by one."""
    for i in range(len(swaps)):
        lower, lower_size, upper = swaps[i, 0], swaps[i, 1], swaps[i, 2]
        upper_size, above = swaps[i, 3], swaps[i, 4]
        below = index % lower
        a = index // lower % lower_size
        b = index // upper % upper_size
        between = index % upper - below - a * lower
        index += (between + a * upper) // lower_size * upper_size + b * lower + below - index % above
    return index


@_parallel
def permute_into(table: Any, out: Any, swaps: Any) -> None:
    """Fill `out` [n] from `table` [n]: the entry k from where the swaps take k (Proposition 1 of the paper).

    swaps: int64 [swaps, 5], those that lead back, as `junctor_kernels.permutation.swap_array` makes them.
    """
    for k in numba.prange(len(out)):
        out[k] = table[_moved(np.int64(k), swaps)]
