"""Stored clique tables: what is done to a chunk of one, in NumPy; the specification of the compiled kernels.

The Hugin architecture as Bistaffa, Farinelli and Bombieri (2014) lay it out: a message sums a table over the runs of
entries that share a separator entry (`reduce`), and multiplies another table by what that sum has changed by
(`scatter`). Tables are flat; a `View` says which separator entry belongs to an entry.
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
    """Combine every entry of a chunk with its entry of `values`, in place; return whether a product lost digits.

    A product of numbers above zero that is below the smallest normal number has lost digits, or vanished.
    """
    steps = [axis.step * values.itemsize for axis in view.axes[::-1]]
    by = as_strided(values[view.base :], [axis.size for axis in view.axes[::-1]], steps, writeable=False)
    block = table.reshape([axis.size for axis in reversed(view.axes)])
    possible = (block > algebra.zero) & (by > algebra.zero)
    with np.errstate(under="ignore"):
        algebra.combine(block, by, out=block)
    return bool(algebra.tiny and (possible & (block < algebra.tiny)).any())


def reduce(table: Array, view: View, sums: Array, algebra: Algebra) -> None:
    """Add every entry of a chunk to its entry of `sums` (which begin at the zero of the algebra)."""
    axes = view.axes[::-1]
    kept = [i for i, axis in enumerate(axes) if axis.step]
    eliminated = [i for i, axis in enumerate(axes) if not axis.step]
    block = table.reshape([axis.size for axis in axes]).transpose(*eliminated, *kept)
    shape = [axes[i].size for i in kept]
    terms = block.reshape(-1, *shape)
    where = as_strided(sums[view.base :], shape, [axes[i].step * sums.itemsize for i in kept])
    algebra.gather(terms, where)


def ratio(new: Array, old: Array, algebra: Algebra) -> Array:
    """Return what each separator entry has changed by; nothing (0) where there was nothing before: 0 / 0 = 0."""
    out = np.full_like(new, algebra.zero)
    change = np.subtract if algebra.combine is np.add else np.divide
    change(new, old, out=out, where=old > algebra.zero)
    return out
