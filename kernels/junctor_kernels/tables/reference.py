"""The NumPy backend: the specification that every other backend has to agree with, and fast enough to use.

A table is an array [entries, cases]; a table that all cases share is [entries, 1]. The case axis is innermost, so every
index computation is done once for all cases of a block and the inner loops are contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor_kernels.tables.axes import Contraction, Strides

Array = npt.NDArray[np.floating[Any]]

# Entries (over clique and cases) of a contraction in flight at once: 512 KiB of doubles stay in a core's cache.
SCRATCH_ENTRIES = 1 << 16
# Arrays of that size that a contraction may hold at its peak: two partial products, a reduction and its exponentials.
SCRATCH_ARRAYS = 4


@dataclass(frozen=True)
class Algebra:
    """A commutative semiring on tables: how entries combine, how terms are gathered, and their neutral elements."""

    name: str
    dtype: np.dtype[Any]
    combine: np.ufunc
    gather: Callable[[Array, Array | None], Array]
    one: float
    zero: float
    repeat: Callable[[Array, int], Array]

    @property
    def tiny(self) -> float:
        """The smallest number with all its digits; 0 on logarithms, where nothing underflows."""
        return 0.0 if self.combine is np.add else float(np.finfo(self.dtype).tiny)


def _sum(block: Array, into: Array | None) -> Array:
    # Halves are added to each other, so that rounding grows with the logarithm of the number of terms, not with it.
    terms = len(block)
    while terms > 4:
        half = terms // 2
        upper = block[half : 2 * half]
        odd = block[2 * half : terms]
        block = np.add(block[:half], upper) if terms == len(block) else np.add(block[:half], upper, out=block[:half])
        if len(odd):
            block[0] += odd[0]
        terms = half
    total = np.add.reduce(block[:terms], axis=0)
    return total if into is None else np.add(into, total, out=into)


def _log_sum(block: Array, into: Array | None) -> Array:
    largest = block.max(axis=0)
    base = np.where(np.isneginf(largest), 0.0, largest)
    with np.errstate(divide="ignore"):
        total: Array = np.log(np.add.reduce(np.exp(block - base), axis=0)) + base
    return total if into is None else np.logaddexp(into, total, out=into)


def _maximum(block: Array, into: Array | None) -> Array:
    largest: Array = block.max(axis=0)
    return largest if into is None else np.maximum(into, largest, out=into)


def _times(table: Array, count: int) -> Array:
    return np.multiply(table, count, out=table)


def _plus_log(table: Array, count: int) -> Array:
    return np.add(table, math.log(count), out=table)


def _unchanged(table: Array, _count: int) -> Array:
    return table


DOUBLE = Algebra("double", np.dtype(np.float64), np.multiply, _sum, 1.0, 0.0, _times)
SINGLE = Algebra("single", np.dtype(np.float32), np.multiply, _sum, 1.0, 0.0, _times)
LOG = Algebra("log", np.dtype(np.float64), np.add, _log_sum, 0.0, -np.inf, _plus_log)
MAX_LOG = Algebra("max", np.dtype(np.float64), np.add, _maximum, 0.0, -np.inf, _unchanged)


def reduce(
    what: Contraction, operands: Sequence[Array], algebra: Algebra, scratch_entries: int = SCRATCH_ENTRIES
) -> Array:
    """Contract `operands` to a table [kept entries, cases].

    operands: arrays [entries, cases] or [entries, 1] in the order of `what.operands`, the small ones first for speed;
    they are combined in that order, so that ties of maxima break alike everywhere. cases is the largest of them.
    The product over the clique is made in blocks of about `scratch_entries` entries and never exists as a whole.
    """
    cases = max((operand.shape[1] for operand in operands), default=1)
    out = np.empty((what.kept_entries, cases), dtype=algebra.dtype)
    if not operands:
        out.fill(algebra.one)
        return algebra.repeat(out, what.eliminated_entries)
    shape, absent = _present(what)
    grid = out.reshape(*what.kept, cases)
    for kept_at, kept_sizes in _blocks(what.kept, max(1, scratch_entries // cases)):
        inner = max(1, scratch_entries // max(1, cases * math.prod(kept_sizes)))
        gathered: Array | None = None
        for eliminated_at, eliminated_sizes in _blocks(shape, inner):
            views = [
                _view(table, strides, what, shape, (kept_at, kept_sizes), (eliminated_at, eliminated_sizes))
                for table, strides in zip(operands, what.operands, strict=True)
            ]
            terms = math.prod(eliminated_sizes)
            full = (*eliminated_sizes, *kept_sizes, cases)
            block = np.broadcast_to(combined(views, algebra), full).reshape(terms, *kept_sizes, cases)
            gathered = algebra.gather(block, gathered)
        grid[kept_at] = gathered
    return algebra.repeat(out, absent) if absent > 1 else out


def argmax(
    what: Contraction,
    operands: Sequence[Array],
    kept_states: Sequence[npt.NDArray[np.int64]],
    cases: int,
    scratch_entries: int = SCRATCH_ENTRIES,
) -> npt.NDArray[np.int64]:
    """Return, for each case, the first eliminated index (C order) at which the sum of the operands is largest.

    operands: log tables [entries, cases] or [entries, 1]. kept_states: one int64 [cases] for each kept axis of the
    unmerged contraction. Ties go to the lowest index, on every backend.
    """
    here = np.arange(cases)
    bases = [_dot(kept_states, strides.kept, cases) for strides in what.operands]
    best = np.full(cases, -np.inf)
    found = np.zeros(cases, dtype=np.int64)
    # Beside sums and places of all cases there is an index for every eliminated axis.
    step = max(1, SCRATCH_ARRAYS * scratch_entries // (4 * cases + len(what.eliminated) + 2))
    for start in range(0, what.eliminated_entries, step):
        terms = np.arange(start, min(start + step, what.eliminated_entries))
        at_terms = np.unravel_index(terms, what.eliminated) if what.eliminated else ()
        total = np.zeros((len(terms), cases))
        for table, base, strides in zip(operands, bases, what.operands, strict=True):
            at = _dot(at_terms, strides.eliminated, len(terms))[:, None] + base[None, :]
            total += table[at, 0] if table.shape[1] == 1 else table[at, here[None, :]]
        first = total.argmax(axis=0)
        value = total[first, here]
        better = value > best
        best[better] = value[better]
        found[better] = first[better] + start
    return found


def _dot(indices: Sequence[npt.NDArray[np.int64]], strides: Sequence[int], length: int) -> npt.NDArray[np.int64]:
    offset = np.zeros(length, dtype=np.int64)
    for index, stride in zip(indices, strides, strict=True):
        offset += index * stride
    return offset


@dataclass(eq=False, slots=True)
class Rescaled:
    """A table whose largest entry in each case is near the neutral element, and what was done to it.

    log_scale: the logarithm of what each case was divided by. largest: the largest entry before. least: the smallest
    entry above zero after (both 1 on logarithms, where nothing can be lost). All float64 [cases].
    """

    table: Array
    log_scale: npt.NDArray[np.float64]
    largest: npt.NDArray[np.float64]
    least: npt.NDArray[np.float64]


def rescale(table: Array, algebra: Algebra) -> Rescaled:
    """Scale every case so that its largest entry is near the neutral element, in place.

    Linear tables are divided by a power of two, which rounds nothing, so their largest entry ends in [0.5, 1). A case
    that is all zero is left as it is.
    """
    largest = table.max(axis=0)
    if algebra.combine is np.add:
        shift = np.where(np.isneginf(largest), 0, largest)
        table -= shift
        return Rescaled(table, shift.astype(np.float64), np.ones(1), np.ones(1))
    _, exponent = np.frexp(largest)
    # 2 ** -exponent has to stay finite; whatever is smaller than that is beyond the format anyway.
    exponent = np.maximum(exponent, np.finfo(algebra.dtype).minexp)
    # Taken before, because what the division takes below the format would pass for a zero.
    least = np.ldexp(least_above_zero(table), -exponent)
    table *= np.ldexp(algebra.dtype.type(1), -exponent)
    return Rescaled(table, exponent * math.log(2), largest.astype(np.float64), np.minimum(least, 1))


def least_above_zero(table: Array) -> npt.NDArray[np.float64]:
    """Return the smallest entry above zero of every case, 1 where there is none, float64 [cases]."""
    least = table.min(axis=0)
    if not least.all():
        least.fill(np.inf)
        rows = max(1, SCRATCH_ENTRIES // table.shape[1])
        for start in range(0, len(table), rows):
            part = table[start : start + rows]
            np.minimum(least, part.min(axis=0, where=part > 0, initial=np.inf), out=least)
        least[np.isinf(least)] = 1
    wide: npt.NDArray[np.float64] = least.astype(np.float64)
    return wide


def take_cases(columns: Array, at: npt.NDArray[np.integer[Any]]) -> Array:
    """Return columns[:, at] as a table [entries, cases]: the slice of a factor at each case's observed states."""
    return np.take(columns, at, axis=1)


def _present(what: Contraction) -> tuple[tuple[int, ...], int]:
    """Sizes of the eliminated axes, 1 for those that no operand has, and how many terms those would repeat."""
    used = [any(strides.eliminated[axis] for strides in what.operands) for axis in range(len(what.eliminated))]
    shape = tuple(size if use else 1 for size, use in zip(what.eliminated, used, strict=True))
    return shape, math.prod(size for size, use in zip(what.eliminated, used, strict=True) if not use)


def _blocks(sizes: Sequence[int], limit: int) -> Iterator[tuple[tuple[slice, ...], tuple[int, ...]]]:
    """Cut an index space into boxes of at most `limit` entries: slices along every axis, and the box's sizes."""
    inner = 1
    axis = len(sizes)
    while axis > 0 and inner * sizes[axis - 1] <= limit:
        axis -= 1
        inner *= sizes[axis]
    whole = tuple(slice(0, size) for size in sizes[axis:])
    if axis == 0:
        yield whole, tuple(sizes)
        return
    step = max(1, limit // inner)
    for lead in product(*(range(size) for size in sizes[: axis - 1])):
        fixed = tuple(slice(i, i + 1) for i in lead)
        for start in range(0, sizes[axis - 1], step):
            stop = min(start + step, sizes[axis - 1])
            box = (*fixed, slice(start, stop), *whole)
            yield box, tuple(part.stop - part.start for part in box)


def _view(
    table: Array,
    strides: Strides,
    what: Contraction,
    eliminated_shape: tuple[int, ...],
    kept: tuple[tuple[slice, ...], tuple[int, ...]],
    eliminated: tuple[tuple[slice, ...], tuple[int, ...]],
) -> Array:
    """One operand's part of a block as a view [eliminated..., kept..., cases]; length 1 along axes it does not have."""
    (eliminated_at, eliminated_sizes), (kept_at, kept_sizes) = eliminated, kept
    walk = (*strides.eliminated, *strides.kept)
    base = sum(stride * part.start for stride, part in zip(walk, (*eliminated_at, *kept_at), strict=True))
    shape = tuple(size if stride else 1 for size, stride in zip((*eliminated_sizes, *kept_sizes), walk, strict=True))
    row, cell = table.strides
    view_strides = (*(stride * row for stride in walk), cell)
    # Ten times cheaper than stride_tricks.as_strided, and bounds-checked against the buffer.
    return np.ndarray((*shape, table.shape[1]), table.dtype, table, base * row, view_strides)


def combined(views: Sequence[Array], algebra: Algebra) -> Array:
    """Combine views in their order; where the small come first, products of small operands are made at their size."""
    result = views[0]
    owned = False
    for view in views[1:]:
        shape = np.broadcast_shapes(result.shape, view.shape)
        if owned and shape == result.shape:
            algebra.combine(result, view, out=result)
        else:
            result = algebra.combine(result, view)
            owned = True
    return result
