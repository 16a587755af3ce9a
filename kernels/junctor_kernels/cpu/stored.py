"""Stored clique tables on all cores of a CPU (Numba); agrees with the reference in `junctor_kernels.tables.stored`.

Main functions: `scatter`, `reduce`; called by `junctor.cliques.host`. A thread takes a range of the
table (or, for sums, of separator entries): no two threads write to one entry, and no sum depends on their number.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import jit, part, part_with_arrays
from junctor_kernels.tables.views import Axis, View

Array = npt.NDArray[Any]

# Entries of a table that pay for one more thread.
WORTH = 1 << 15
# Terms of a partial sum: rounding errors grow with it, not with the number of all terms.
PIECE = 1 << 10


def scatter(table: Array, view: View, values: Array) -> bool:
    """Multiply every entry of a chunk by its entry of `values`, in place; return True if a product underflowed."""
    tiny, axes, values = np.finfo(table.dtype).tiny, _array(view.axes), values[view.base :]
    return any(_spread(lambda first, last: _scatter(table, values, axes, tiny, first, last), len(table), len(table)))


def reduce(table: Array, view: View, sums: Array) -> None:
    """Add every entry of a chunk to its entry of `sums`."""
    kept, out = view.kept()
    eliminated = view.eliminated()
    terms = math.prod(axis.size for axis in eliminated)
    # Separator entries that are neighbours in the table as well are summed together, as vectors.
    together = kept[0].size if kept and kept[0].step == 1 else 1
    rows = len(table) // terms // together
    # Terms are cut into pieces: rounding hardly grows with their number, and there may be fewer rows than threads.
    pieces = -(-terms // PIECE)
    parts = np.empty((pieces, rows * together), dtype=table.dtype)
    axes = _array(kept[1:] if together > 1 else kept), _array(eliminated)
    _spread(lambda first, last: _sum(table, parts, *axes, together, terms, first, last), rows * pieces, len(table))
    _add(parts, sums[view.base :], _array(out))


def _array(axes: tuple[Axis, ...]) -> npt.NDArray[np.int64]:
    return np.array(axes or ((1, 0),), dtype=np.int64)


@cache
def shared_pool() -> tuple[ThreadPoolExecutor, int]:
    """Return the threads for stored tables and how many they are: one a core of this process."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # Plain threads: Numba's own thread pool must not be entered from several threads at once.
    return ThreadPoolExecutor(count, "junctor-stored"), count


def _spread(work: Callable[[int, int], Any], count: int, entries: int) -> list[Any]:
    """Run `work(first, last)` on parts of range(count), as many as the entries pay for, and return the results."""
    pool, threads = shared_pool()
    # Small tables are not worth the start of a thread.
    parts = min(threads, count, 1 + entries // WORTH)
    if parts <= 1:
        return [work(0, count)]
    ends = [count * n // parts for n in range(parts + 1)]
    return list(pool.map(work, ends[:-1], ends[1:]))


@part
def _walk(axes: Any, index: int) -> Any:
    """Return the offset of an index along axes (size, step), the innermost first."""
    at = 0
    for a in range(len(axes) - 1):
        rest = index // axes[a, 0]
        at += (index - rest * axes[a, 0]) * axes[a, 1]
        index = rest
    return at + index * axes[len(axes) - 1, 1]


@part_with_arrays
def _digits(axes: Any, index: int) -> Any:
    """Return the mixed-radix digits of an index along the axes from the second on."""
    digits = np.zeros(len(axes) + 1, dtype=np.int64)
    for a in range(1, len(axes)):
        digits[a] = index % axes[a, 0]
        index //= axes[a, 0]
    return digits


@part
def _step(axes: Any, digits: Any) -> Any:
    """Advance the digits by one and return the change of the offset."""
    # Divisions in every row, as in `_walk`, would take most of the time.
    moved = 0
    for a in range(1, len(axes)):
        moved += axes[a, 1]
        digits[a] += 1
        if digits[a] < axes[a, 0]:
            return moved
        moved -= axes[a, 0] * axes[a, 1]
        digits[a] = 0
    return moved


@jit
def _scatter(table: Any, values: Any, axes: Any, tiny: Any, first: int, last: int) -> Any:
    # A range may begin and end within a row of the innermost axis.
    inner, step = axes[0, 0], axes[0, 1]
    row = first // inner
    digits, at, flushed = _digits(axes, row), _walk(axes, row * inner), False
    k = first
    while k < last:
        digit = k - row * inner
        count = min(inner - digit, last - k)
        for i in range(count):
            entry, by = table[k + i], values[at + (digit + i) * step]
            result = entry * by
            # Without a branch, so that the loop becomes vectors.
            flushed |= (entry > 0) & (by > 0) & (result < tiny)
            table[k + i] = result
        k += count
        row += 1
        at += _step(axes, digits)
    return flushed


@jit
def _sum(table: Any, parts: Any, kept: Any, eliminated: Any, together: int, terms: int, first: int, last: int) -> None:
    """Write partial sums first to last: of each row of separator entries, one piece of terms after the other."""
    pieces, inner, step = len(parts), eliminated[0, 0], eliminated[0, 1]
    for n in range(first, last):
        row = n // pieces
        begin = (n - row * pieces) * PIECE
        end = min(terms, begin + PIECE)
        sums = parts[n - row * pieces, row * together : (row + 1) * together]
        sums[:] = 0
        outer = begin // inner
        digits, at = _digits(eliminated, outer), _walk(kept, row) + _walk(eliminated, outer * inner)
        r = begin
        while r < end:
            digit = r - outer * inner
            count = min(inner - digit, end - r)
            if together == 1:
                total = sums[0]
                for i in range(count):
                    total += table[at + (digit + i) * step]
                sums[0] = total
            else:
                for i in range(count):
                    line = table[at + (digit + i) * step : at + (digit + i) * step + together]
                    for s in range(together):
                        sums[s] += line[s]
            r += count
            outer += 1
            at += _step(eliminated, digits)


@jit
def _add(parts: Any, sums: Any, out: Any) -> None:
    for s in range(parts.shape[1]):
        # Pieces are added in their order, whoever computed them.
        total = parts[0, s]
        for piece in range(1, len(parts)):
            total += parts[piece, s]
        sums[_walk(out, s)] += total
