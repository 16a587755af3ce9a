"""Operations on chunks of stored clique tables in NumPy; the specification of `cpu.stored` and the GPU kernels.

The Hugin architecture of Bistaffa, Farinelli and Bombieri (2014): a message sums a table over the entries that share a
separator entry (`reduce`) and multiplies another table by the ratio of the sums (`scatter`). Tables are flat.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from junctor_kernels.tables.reference import Algebra
from junctor_kernels.tables.views import View

Array = npt.NDArray[np.floating[Any]]


def scatter(table: Array, view: View, values: Array, algebra: Algebra) -> bool:
    """Combine every entry of a chunk with its separator entry, in place; return True if a product underflowed.

    table: flat chunk.
    view: its strides in the separator.
    values: entries of the separator.
    algebra: semiring and number format.
    """
    # A product of positive numbers below the smallest normal number has lost digits, or vanished.
    steps = [axis.step * values.itemsize for axis in view.axes[::-1]]
    # Stride 0 repeats a separator entry along variables that it does not have, without a copy.
    by = as_strided(values[view.base :], [axis.size for axis in view.axes[::-1]], steps, writeable=False)
    block = table.reshape([axis.size for axis in reversed(view.axes)])
    possible = (block > algebra.zero) & (by > algebra.zero)
    with np.errstate(under="ignore"):
        algebra.combine(block, by, out=block)
    return bool(algebra.tiny and (possible & (block < algebra.tiny)).any())


def reduce(table: Array, view: View, sums: Array, algebra: Algebra) -> None:
    """Add every entry of a chunk to its separator entry.

    table: flat chunk.
    view: its strides in the separator.
    sums: entries of the separator, initially the zero of the algebra.
    algebra: semiring and number format.
    """
    axes = view.axes[::-1]
    # Eliminated axes go first: `gather` sums over the first axis.
    kept = [i for i, axis in enumerate(axes) if axis.step]
    eliminated = [i for i, axis in enumerate(axes) if not axis.step]
    block = table.reshape([axis.size for axis in axes]).transpose(*eliminated, *kept)
    shape = [axes[i].size for i in kept]
    terms = block.reshape(-1, *shape)
    where = as_strided(sums[view.base :], shape, [axes[i].step * sums.itemsize for i in kept])
    algebra.gather(terms, where)


def ratio(new: Array, old: Array, algebra: Algebra) -> Array:
    """Return new / old for each separator entry, with 0 / 0 = 0 (Jensen, Lauritzen and Olesen 1990)."""
    out = np.full_like(new, algebra.zero)
    change = np.subtract if algebra.logs else np.divide
    change(new, old, out=out, where=old > algebra.zero)
    return out
