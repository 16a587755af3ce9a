"""Contractions in NumPy: the specification of every other backend, and fast enough to use.

Main functions: `reduce`, `argmax`, `rescale` and `logarithms`; called by `junctor.backends.numpy`. A table is an array
[entries, cases], or [entries, 1] where all cases share it: indices are computed once for all cases of a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor_kernels.tables.axes import REMEMBERED, Contraction, Strides
from junctor_kernels.tables.views import boxes

Array = npt.NDArray[np.floating[Any]]

# Entries (over clique and cases) of a contraction computed at a time: 512 KiB of doubles stay in a core's cache.
SCRATCH_ENTRIES = 1 << 16
# Arrays of that size that a contraction may hold at its peak: two partial products, a reduction and its exponentials.
SCRATCH_ARRAYS = 4
# Axes that an array may have for all of NumPy to take it.
MOST_AXES = 32


@dataclass(frozen=True)
class Algebra:
    """A commutative semiring on tables, in one number format.

    name: "double", "single", "log", "max" (of logarithms) or "max-single" (of numbers).
    dtype: of the tables.
    combine: product of entries.
    join: sum of two entries.
    gather: sum of terms over the first axis, into an array where one is given.
    one, zero: neutral elements of product and sum.
    repeat: sum of so many equal terms.
    """

    name: str
    dtype: np.dtype[Any]
    combine: np.ufunc
    join: np.ufunc
    gather: Callable[[Array, Array | None], Array]
    one: float
    zero: float
    repeat: Callable[[Array, int], Array]

    # Kept: plans of long networks ask ten thousand times.
    @cached_property
    def logs(self) -> bool:
        """Whether entries are logarithms, which lose nothing to underflow."""
        return self.combine is np.add

    @cached_property
    def maximises(self) -> bool:
        """Whether terms are maximised in place of added up."""
        return self.join is np.maximum

    @cached_property
    def tiny(self) -> float:
        """The smallest normal number; 0 on logarithms, where nothing underflows."""
        return 0.0 if self.logs else TINY[self.dtype]


LOG_2, HALF_ROOT = math.log(2), math.sqrt(0.5)
# Looked up by type: NumPy's own record takes longer to find than a small table to scale.
TINY = {np.dtype(kind): float(np.finfo(kind).tiny) for kind in (np.float32, np.float64)}
# The largest power of two by which a table is multiplied, which is that for the smallest normal numbers: compiled code
# reads it off the bits of the largest entry, and both have to doubt the same rows.
MOST_POWER = {np.dtype(kind): -int(np.finfo(kind).minexp) - 1 for kind in (np.float32, np.float64)}


def _sum(block: Array, into: Array | None) -> Array:
    # Pairwise summation: rounding errors grow with the logarithm of the number of terms.
    terms = len(block)
    while terms > 4:
        half = terms // 2
        upper = block[half : 2 * half]
        odd = block[2 * half : terms]
        block = np.add(block[:half], upper) if terms == len(block) else np.add(block[:half], upper, out=block[:half])
        # Of an odd number of terms the last one joins the first sum.
        if len(odd):
            block[0] += odd[0]
        terms = half
    total = np.add.reduce(block[:terms], axis=0)
    return total if into is None else np.add(into, total, out=into)


def _log_sum(block: Array, into: Array | None) -> Array:
    # Where all terms are -inf, subtracting the largest would give nan.
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


DOUBLE = Algebra("double", np.dtype(np.float64), np.multiply, np.add, _sum, 1.0, 0.0, _times)
SINGLE = Algebra("single", np.dtype(np.float32), np.multiply, np.add, _sum, 1.0, 0.0, _times)
LOG = Algebra("log", np.dtype(np.float64), np.add, np.logaddexp, _log_sum, 0.0, -np.inf, _plus_log)
MAX_LOG = Algebra("max", np.dtype(np.float64), np.add, np.maximum, _maximum, 0.0, -np.inf, _unchanged)
MAX_SINGLE = Algebra("max-single", np.dtype(np.float32), np.multiply, np.maximum, _maximum, 1.0, 0.0, _unchanged)
# Names of formats of numbers, by the bytes of one.
NUMBERS = {algebra.dtype.itemsize: algebra.name for algebra in (DOUBLE, SINGLE)}
# The same in double precision, of algebras in single precision.
WIDER = {"single": DOUBLE, "max-single": replace(MAX_SINGLE, name="max-double", dtype=np.dtype(np.float64))}
ALGEBRAS = {algebra.name: algebra for algebra in (DOUBLE, SINGLE, LOG, MAX_LOG, MAX_SINGLE)}


def reduce(
    what: Contraction, operands: Sequence[Array], algebra: Algebra, scratch_entries: int = SCRATCH_ENTRIES
) -> Array:
    """Contract operands to a table [kept entries, cases].

    what: the contraction.
    operands: arrays [entries, cases] or [entries, 1] in the order of `what.operands`, the small ones first for speed.
    algebra: semiring and number format.
    scratch_entries: entries of the product computed at a time; it never exists as a whole.
    """
    # Operands are combined in their order, so that rounding and ties of maxima are the same on every backend.
    cases = max([operand.shape[1] for operand in operands], default=1)
    # The empty product is one, summed once for each term.
    if not operands:
        ones = np.full((what.kept_entries, cases), algebra.one, dtype=algebra.dtype)
        return algebra.repeat(ones, what.eliminated_entries)
    shape, absent, walks = _walks(what)
    terms = math.prod(shape)
    if what.kept_entries * terms * cases <= scratch_entries and len(shape) + len(what.kept) < MOST_AXES:
        # In one block, as all tables of small networks: boxes and views of them would take longer than the numbers.
        views = [_whole_view(table, *walk) for table, walk in zip(operands, walks, strict=True)]
        block, full = combined(views, algebra), (*shape, *what.kept, cases)
        block = block if block.shape == full else np.broadcast_to(block, full)
        sums = algebra.gather(block.reshape(terms, *what.kept, cases), None)
        whole = np.ascontiguousarray(sums, dtype=algebra.dtype).reshape(what.kept_entries, cases)
        return _repeated(whole, algebra, absent)
    out, done = np.empty((what.kept_entries, cases), dtype=algebra.dtype), 0
    # Boxes come in the order of memory.
    for kept_at, kept_sizes in _blocks(what.kept, max(1, scratch_entries // cases)):
        entries = math.prod(kept_sizes)
        inner = max(1, scratch_entries // max(1, cases * entries))
        gathered: Array | None = None
        for eliminated_at, eliminated_sizes in _blocks(shape, inner):
            views = [
                _view(table, strides, what, shape, (kept_at, kept_sizes), (eliminated_at, eliminated_sizes))
                for table, strides in zip(operands, what.operands, strict=True)
            ]
            kept_axes = _several(kept_sizes)
            full = (*_several(eliminated_sizes), *kept_axes, cases)
            block = np.broadcast_to(combined(views, algebra), full)
            block = block.reshape(math.prod(eliminated_sizes), *kept_axes, cases)
            gathered = algebra.gather(block, gathered)
        assert gathered is not None
        out[done : done + entries] = gathered.reshape(entries, cases)
        done += entries
    return _repeated(out, algebra, absent)


def _repeated(table: Array, algebra: Algebra, absent: int) -> Array:
    # Axes that no operand has only repeat each term; multiplied once instead of summed.
    return algebra.repeat(table, absent) if absent > 1 else table


def argmax(
    what: Contraction,
    operands: Sequence[Array],
    kept_states: Sequence[npt.NDArray[np.int64]],
    cases: int,
    scratch_entries: int = SCRATCH_ENTRIES,
) -> npt.NDArray[np.int64]:
    """Return the first eliminated index (C order) with the largest sum of operands, int64 [cases].

    what: the unmerged contraction.
    operands: log tables [entries, cases] or [entries, 1].
    kept_states: one int64 [cases] for each kept axis.
    cases: number of cases.
    scratch_entries: bounds the memory, as in `reduce`.
    """
    # Ties go to the lowest index, on every backend.
    here = np.arange(cases)
    bases = [_dot(kept_states, strides.kept, cases) for strides in what.operands]
    best = np.full(cases, -np.inf)
    index = np.zeros(cases, dtype=np.int64)
    # In addition to sums and offsets of all cases there is an index for every eliminated axis.
    step = max(1, SCRATCH_ARRAYS * scratch_entries // (4 * cases + len(what.eliminated) + 2))
    for start in range(0, what.eliminated_entries, step):
        terms = np.arange(start, min(start + step, what.eliminated_entries))
        at_terms = unraveled(terms, what.eliminated)
        total = np.zeros((len(terms), cases))
        for table, base, strides in zip(operands, bases, what.operands, strict=True):
            at = _dot(at_terms, strides.eliminated, len(terms))[:, None] + base[None, :]
            total += table[at, 0] if table.shape[1] == 1 else table[at, here[None, :]]
        first = total.argmax(axis=0)
        value = total[first, here]
        # Strictly larger: ties stay with earlier terms.
        better = value > best
        best[better] = value[better]
        index[better] = first[better] + start
    return index


def unraveled(index: npt.NDArray[np.int64], shape: Sequence[int]) -> list[npt.NDArray[np.int64]]:
    """Return the index along every axis of indices in C order, as `np.unravel_index` does for up to 64 axes."""
    along, stride = list[npt.NDArray[np.int64]](), 1
    for size in reversed(shape):
        # In place: an array for each axis, as there, and no other.
        at = index // stride
        at %= size
        along.append(at)
        stride *= size
    return along[::-1]


def _dot(indices: Sequence[npt.NDArray[np.int64]], strides: Sequence[int], length: int) -> npt.NDArray[np.int64]:
    offset = np.zeros(length, dtype=np.int64)
    for index, stride in zip(indices, strides, strict=True):
        offset += index * stride
    return offset


@dataclass(eq=False, slots=True)
class Rescaled:
    """A table whose largest entry in each case is near the neutral element.

    table: [entries, cases].
    exponent: float64 [cases], as of `exponents_of`: it was divided by that power of two, without lifts; logarithms are
        so much smaller.
    largest: float64 [cases], largest entry before, without lifts; 1 on logarithms.
    least: float64 [cases], smallest entry above zero after, 1 where it is larger; 1 on logarithms, where nothing can be
        lost.
    """

    table: Array
    exponent: npt.NDArray[np.float64]
    largest: npt.NDArray[np.float64]
    least: npt.NDArray[np.float64]


def rescale(table: Array, algebra: Algebra, lift: int = 0, lifted: int = 0) -> Rescaled:
    """Scale every case so that its largest entry is in [0.5, 1), or logarithms about 0, in place; zeros stay zeros.

    lift: power of two by which the result is stored larger.
    lifted: that of the product it was summed from.
    """
    # Divided by a power of two, numbers are not rounded, nor logarithms of which a whole number is taken.
    largest = np.maximum.reduce(table, axis=0)
    exponent = exponents_of(largest, algebra)
    if algebra.logs:
        table -= exponent
        return Rescaled(table, exponent.astype(np.float64, copy=False), np.ones(1), np.ones(1))
    # 2 ** power has to stay finite: lifts end there, and anything smaller is below the normal numbers anyway.
    most = MOST_POWER[algebra.dtype]
    power = np.minimum(lift - exponent, most)
    # Taken before: entries that the scaling underflows would pass for zeros.
    least = least_above_zero(table)
    # Products of scaled tables often need no other scale.
    if np.count_nonzero(power):
        least = np.ldexp(least, power)
        table *= np.ldexp(algebra.dtype.type(1), power)
    divisor = (lift - lifted - power).astype(np.float64)
    wide = largest.astype(np.float64, copy=False)
    return Rescaled(table, divisor, np.ldexp(wide, -lifted) if lifted else wide, np.minimum(least, 1))


def exponents_of(largest: Array, algebra: Algebra) -> npt.NDArray[Any]:
    """Return the powers of two that bring numbers into [0.5, 1), or what brings logarithms about 0: whole numbers.

    Maxima of logarithms are taken as they are, to 0: ties of explanations are those of equal ratios of entries.
    """
    if not algebra.logs:
        return np.frexp(largest)[1]
    most = np.where(np.isneginf(largest), 0, largest)
    return most if algebra.gather is _maximum else np.rint(most)


def multiplied(
    numbers: npt.NDArray[np.float64],
    exponents: npt.NDArray[np.float64],
    by: npt.NDArray[np.float64],
    by_exponents: npt.NDArray[np.float64],
    algebra: Algebra,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return products of scaled numbers as numbers and exponents, scaled: any number of them neither leave the format
    nor add up more than a rounding each.

    numbers, by: plain numbers, or logarithms.
    exponents, by_exponents: as of `Rescaled`.
    algebra: of the numbers.
    """
    product = algebra.combine(numbers, by)
    more = exponents_of(product, algebra)
    product = product - more if algebra.logs else np.ldexp(product, -more)
    return product, exponents + by_exponents + more


def logarithms(
    numbers: npt.NDArray[np.float64], exponents: npt.NDArray[np.float64], algebra: Algebra
) -> npt.NDArray[np.float64]:
    """Return the natural logarithms of scaled numbers, float64 of their shape; -inf for 0.

    numbers: plain numbers, or logarithms.
    exponents: as of `Rescaled`.
    algebra: of the numbers.
    """
    if algebra.logs:
        return numbers + exponents
    # Between the roots of 1/2 and 2 no exponent is left: the logarithm of a number near 1 would cancel with it.
    numbers, more = np.frexp(numbers)
    is_low = numbers < HALF_ROOT
    with np.errstate(divide="ignore"):
        logs: npt.NDArray[np.float64] = np.log(np.ldexp(numbers, is_low.astype(np.int32)))
    return logs + (exponents + more - is_low) * LOG_2


def least_above_zero(table: Array) -> npt.NDArray[np.float64]:
    """Return the smallest entry above zero of every case, 1 where there is none, float64 [cases]."""
    least = np.minimum.reduce(table, axis=0)
    # Usually no entry is zero, and one minimum suffices.
    if np.count_nonzero(least) < least.size:
        least.fill(np.inf)
        rows = max(1, SCRATCH_ENTRIES // table.shape[1])
        for start in range(0, len(table), rows):
            part = table[start : start + rows]
            np.minimum(least, np.minimum.reduce(part, axis=0, where=part > 0, initial=np.inf), out=least)
        least[np.isinf(least)] = 1
    wide: npt.NDArray[np.float64] = least.astype(np.float64, copy=False)
    return wide


def take_cases(columns: Array, at: npt.NDArray[np.integer[Any]]) -> Array:
    """Return columns[:, at] as a table [entries, cases]: the slice of a factor at each case's observed states."""
    return columns.take(at, axis=1)


# Sizes of an operand along the eliminated and the kept axes, 1 along those that it lacks, and its strides.
_Walk = tuple[tuple[int, ...], tuple[int, ...]]


# Remembered, as contractions are: the plans of a network have most of them in common.
@lru_cache(REMEMBERED)
def _walks(what: Contraction) -> tuple[tuple[int, ...], int, tuple[_Walk, ...]]:
    """Return the sizes of the eliminated axes, 1 for those of no operand, how often a term repeats, and all walks."""
    # Without generators: there are as many contractions as steps in a plan, and few are asked for again in a run.
    used = [any(axis) for axis in zip(*[strides.eliminated for strides in what.operands], strict=True)]
    shape = tuple([size if use else 1 for size, use in zip(what.eliminated, used, strict=True)])
    sizes, walks = (*shape, *what.kept), []
    for strides in what.operands:
        walk = (*strides.eliminated, *strides.kept)
        walks.append((tuple([size if stride else 1 for size, stride in zip(sizes, walk, strict=True)]), walk))
    return shape, what.eliminated_entries // math.prod(shape), tuple(walks)


def _several(sizes: Sequence[int]) -> list[int]:
    """Return the sizes of the axes along which a box has several entries; arrays have no more than MOST_AXES."""
    return [size for size in sizes if size > 1]


def _blocks(sizes: Sequence[int], limit: int) -> Iterator[tuple[tuple[slice, ...], tuple[int, ...]]]:
    """Yield boxes of at most `limit` entries of an index space: slices along every axis, and the box's sizes."""
    for box in boxes(sizes, limit):
        yield tuple(slice(*span) for span in box), tuple(last - first for first, last in box)


def _view(
    table: Array,
    strides: Strides,
    what: Contraction,
    eliminated_shape: tuple[int, ...],
    kept: tuple[tuple[slice, ...], tuple[int, ...]],
    eliminated: tuple[tuple[slice, ...], tuple[int, ...]],
) -> Array:
    """Return an operand's part of a block as a view [eliminated..., kept..., cases]; length 1 along axes it lacks.

    Axes along which the block has one entry are left out: any number of them, of a block of so few entries.
    """
    (eliminated_at, eliminated_sizes), (kept_at, kept_sizes) = eliminated, kept
    walk = (*strides.eliminated, *strides.kept)
    base = sum(stride * part.start for stride, part in zip(walk, (*eliminated_at, *kept_at), strict=True))
    axes = [(size, stride) for size, stride in zip((*eliminated_sizes, *kept_sizes), walk, strict=True) if size > 1]
    shape = [size if stride else 1 for size, stride in axes]
    row, cell = table.strides
    view_strides = (*(stride * row for _, stride in axes), cell)
    # Ten times cheaper than stride_tricks.as_strided, and bounds-checked against the buffer.
    return np.ndarray((*shape, table.shape[1]), table.dtype, table, base * row, view_strides)


def _whole_view(table: Array, sizes: tuple[int, ...], walk: tuple[int, ...]) -> Array:
    """Return an operand as `_view` does, all of it."""
    row, cell = table.strides
    return np.ndarray((*sizes, table.shape[1]), table.dtype, table, 0, (*[stride * row for stride in walk], cell))


def combined(views: Sequence[Array], algebra: Algebra) -> Array:
    """Return the product of views in their order; small ones first give small intermediate products."""
    result = views[0]
    owned = False
    for view in views[1:]:
        # The first product may be written over, an operand never.
        if owned and np.broadcast_shapes(result.shape, view.shape) == result.shape:
            algebra.combine(result, view, out=result)
        else:
            result = algebra.combine(result, view)
            owned = True
    return result
