"""Register tiles: groups of kept entries that compiled kernels compute together, and the terms of each group.

Main class: TileWalk; called by `lowering` for the CPU and the GPU. A tile reads each operand once for several entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
from junctor_kernels.cpu.bytecode import LINES, PAIRS, PRODUCTS
from junctor_kernels.cpu.contract import TILE
from junctor_kernels.tables.axes import Contraction

from junctor.backends.sparsity import (
    LISTING_ENTRIES,
    REMEMBERED,
    SMALL_CONTRACTION,
    Mask,
    NonzeroSupport,
    nonzero_terms,
)

Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]
Shapes = tuple[tuple[int, int], ...]

# Terms are listed explicitly where more than this share of them is zero.
LISTED_FROM = 0.25
# Tile shapes of the CPU kernels: (lines, entries of a line).
CPU_SHAPES = ((1, TILE),)
# Largest ratio of entries with padding to entries without.
MOST_PADDING = 4 / 3


@dataclass(frozen=True, eq=False)
class TileWalk:
    """The order of kept entries, in tiles or one by one.

    how: LINES, PAIRS or PRODUCTS.
    rows: indices of the per-case operands; in a tile, first the one that the entries of a line share.
    shape: (lines of a tile, entries of a line).
    """

    how: int
    rows: tuple[int, ...]
    shape: tuple[int, int]
    _walk: Callable[[], Ints] = field(repr=False)

    @cached_property
    def order(self) -> Ints:
        """Int64, kept entries, tile by tile and line by line; the last ones repeat where a tile is not full."""
        # Made where it is asked for: of a dozen walks one is taken, and most of the others are not looked at.
        return self._walk()

    @property
    def size(self) -> int:
        """Kept entries of a tile."""
        return self.shape[0] * self.shape[1]

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return self.order.size // self.size

    @property
    def term_cost(self) -> float:
        """Cost of a term of a tile relative to a term of a single entry: the ratio of numbers read."""
        # Measured on a CPU for four entries: 5.5e10 against 3.5e10 multiply-adds a second, so that a tile has to
        # replace two and a half single entries.
        return sum(self.shape) / 2


@dataclass(frozen=True, eq=False)
class Terms:
    """Lists of terms: tile t has listed[begins[t]] to listed[begins[t + 1]]."""

    begins: Ints
    listed: npt.NDArray[np.int32]


def walks(
    what: Contraction, rows: tuple[int, ...], factor: bool, shapes: Shapes = CPU_SHAPES, every: bool = True
) -> tuple[TileWalk, ...]:
    """Return walks in tiles, the best for dense tables first, then the walk entry by entry; small ones are cached.

    what: the contraction.
    rows: indices of the per-case operands.
    factor: whether there is a shared operand as well.
    shapes: tile shapes of the backend.
    every: False for the best walk only.
    """
    find = _small_walks if what.kept_entries <= SMALL_CONTRACTION else _walks
    return find(what, rows, factor, shapes, every)


def _walks(what: Contraction, rows: tuple[int, ...], factor: bool, shapes: Shapes, every: bool) -> tuple[TileWalk, ...]:
    pay = tiles_that_pay(what, rows, factor, shapes)
    if not every and pay:
        return (tiled(what, rows, factor, *pay[0]),)
    return *(tiled(what, rows, factor, *choice) for choice in pay), plain(what, rows)


_small_walks = lru_cache(maxsize=REMEMBERED)(_walks)


def tiles_that_pay(
    what: Contraction, rows: Sequence[int], factor: bool, shapes: Shapes
) -> list[tuple[int, tuple[int, int]]]:
    """Return (operand shared by the entries of a line, shape) of tiles with little padding, fewest reads first.

    The parameters are those of `walks`.
    """
    # Kernels for tiles exist for two operands only.
    if len(rows) + factor != 2:
        return []
    choices = []
    for row in rows:
        # Of tiles of a single line, and of several.
        sizes = [_sizes(what, _split(what, row, lines)) for lines in (1, 2)]
        choices += [(_padding(sizes[shape[0] > 1], shape), row, shape) for shape in shapes]
    choices = [choice for choice in choices if choice[0] <= MOST_PADDING]
    choices.sort(key=lambda choice: choice[0] * (1 / choice[2][0] + 1 / choice[2][1]))
    # For each shape, the operand with less padding.
    first: dict[tuple[int, int], int] = {}
    for _, row, shape in choices:
        first.setdefault(shape, row)
    return [(row, shape) for shape, row in first.items()]


def plain(what: Contraction, rows: Sequence[int]) -> TileWalk:
    """Return the walk entry by entry, for any number of operands."""
    return TileWalk(PRODUCTS, tuple(rows), (1, 1), lambda: np.arange(what.kept_entries, dtype=np.int64))


def tiled(what: Contraction, rows: Sequence[int], factor: bool, first: int, shape: tuple[int, int]) -> TileWalk:
    """Return the walk in tiles of a shape.

    what, rows, factor: see `walks`.
    first: operand that the entries of a line share; the lines of a tile share the other one.
    shape: (lines, entries of a line).
    """
    how = LINES if factor else PAIRS
    others = (row for row in rows if row != first)
    return TileWalk(how, (first, *others), shape, lambda: _tiled_order(what, first, shape))


def _tiled_order(what: Contraction, first: int, shape: tuple[int, int]) -> Ints:
    lines, width = shape
    parts = common, down, along = _split(what, first, lines)
    grid = np.arange(what.kept_entries, dtype=np.int64).reshape(what.kept).transpose(*common, *down, *along)
    grid = grid.reshape(_sizes(what, parts))
    # Repeated entries are computed twice and written twice with the same value.
    for axis, size in ((1, lines), (2, width)):
        if (there := grid.shape[axis]) % size:
            grid = grid.take(np.minimum(np.arange(-(-there // size) * size), there - 1), axis=axis)
    return grid.reshape(len(grid), grid.shape[1] // lines, lines, -1, width).transpose(0, 1, 3, 2, 4).ravel()


def _sizes(what: Contraction, parts: tuple[list[int], ...]) -> list[int]:
    """Return the entries along some groups of kept axes."""
    return [math.prod(what.kept[axis] for axis in axes) for axes in parts]


def _split(what: Contraction, first: int, lines: int) -> tuple[list[int], list[int], list[int]]:
    """Return the kept axes common to all operands, those of operand `first` alone, and those of the others alone.

    For tiles of a single line the second list is empty and part of the first.
    """
    walked = [axis for axis, stride in enumerate(what.operands[first].kept) if stride]
    others = [operand.kept for k, operand in enumerate(what.operands) if k != first]
    down = [axis for axis in walked if lines > 1 and not any(strides[axis] for strides in others)]
    along = [axis for axis in range(len(what.kept)) if axis not in walked]
    return [axis for axis in walked if axis not in down], down, along


def _padding(sizes: Sequence[int], shape: tuple[int, int]) -> float:
    """Return the ratio of entries with padding to entries without; sizes: as of `_split`."""
    _, lines, entries = sizes
    return -(-lines // shape[0]) * shape[0] / lines * (-(-entries // shape[1]) * shape[1] / entries)


def cheapest(
    what: Contraction, walks: tuple[TileWalk, ...], support: NonzeroSupport, operands: Sequence[int]
) -> tuple[TileWalk, Terms]:
    """Return the walk with the cheapest terms, and the lists of terms that can differ from zero.

    what: the contraction.
    walks: to choose from.
    support: entries that can differ from zero.
    operands: tables of the contraction.
    """
    if what.kept_entries * what.eliminated_entries <= SMALL_CONTRACTION:
        return _small_cheapest(what, walks, tuple(map(support.name, operands)))
    return _cheapest(what, walks, [support.tables[operand] for operand in operands])


@lru_cache(maxsize=REMEMBERED)
def _small_cheapest(what: Contraction, walks: tuple[TileWalk, ...], masks: tuple[bytes, ...]) -> tuple[TileWalk, Terms]:
    return _cheapest(what, walks, masks)


def _cheapest(what: Contraction, walks: tuple[TileWalk, ...], masks: Sequence[Mask | bytes]) -> tuple[TileWalk, Terms]:
    bits = _possible(what, masks)
    # Bits instead of bools: an eighth of the memory, and a union is one operation for eight terms.
    nonzero = _count(bits)
    best, of_best, least = walks[-1], None, math.inf
    for walk in walks:
        # Lower bound of the cost: each term of a tile replaces at most one term of each of its entries.
        if nonzero / walk.size * walk.term_cost < least:
            tiles = _of_tiles(bits, walk)
            cost = _count(tiles) * walk.term_cost
            if cost < least:
                best, of_best, least = walk, tiles, cost
    return best, _listed(_of_tiles(bits, best) if of_best is None else of_best, what.eliminated_entries)


def _count(bits: Bits) -> int:
    return int(np.add.reduce(np.bitwise_count(bits), axis=None, dtype=np.int64))


def _possible(what: Contraction, masks: Sequence[Mask | bytes]) -> Bits:
    """Return the terms that can differ from zero as bits, uint8 [kept entries, bytes]."""
    if what.kept_entries * what.eliminated_entries <= LISTING_ENTRIES:
        return np.packbits(nonzero_terms(what, masks), axis=1)
    entries = [np.frombuffer(mask, dtype=np.bool_) for mask in masks]
    kept = [offsets(what.kept, strides.kept) for strides in what.operands]
    eliminated = [offsets(what.eliminated, strides.eliminated) for strides in what.operands]
    step = max(1, LISTING_ENTRIES // what.eliminated_entries)
    parts = []
    for start in range(0, what.kept_entries, step):
        part = np.True_
        for mask, s, r in zip(entries, kept, eliminated, strict=True):
            part = part & mask[s[start : start + step, None] + r]
        parts.append(np.packbits(part, axis=1))
    return np.concatenate(parts)


def _of_tiles(bits: Bits, walk: TileWalk) -> Bits:
    """Return the terms of any entry of a tile as bits, uint8 [tiles, bytes]."""
    if walk.size == 1:
        return bits[walk.order]
    union: Bits = np.bitwise_or.reduce(bits[walk.order].reshape(-1, walk.size, bits.shape[1]), axis=1)
    return union


def _listed(bits: Bits, terms: int) -> Terms:
    step, parts = max(1, LISTING_ENTRIES // terms), []
    begins = np.zeros(len(bits) + 1, np.int64)
    np.cumsum(np.add.reduce(np.bitwise_count(bits), axis=1, dtype=np.int64), out=begins[1:])
    for start in range(0, len(bits), step):
        part = np.unpackbits(bits[start : start + step], axis=1, count=terms)
        parts.append(part.nonzero()[1].astype(np.int32))
    return Terms(begins, np.concatenate(parts) if len(parts) > 1 else parts[0])


def walked(walk: TileWalk, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Ints:
    """Return the offset of every kept entry in the order of a walk, int64, read-only.

    walk: order of the entries.
    sizes, strides: of the kept axes.
    """
    find = _small_walked if walk.order.size <= SMALL_CONTRACTION else _walked
    return find(walk, sizes, strides)


def _walked(walk: TileWalk, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Ints:
    return offsets(sizes, strides)[walk.order]


_small_walked = lru_cache(maxsize=REMEMBERED)(_walked)


def offsets(sizes: tuple[int, ...], strides: tuple[int, ...]) -> Ints:
    """Return the offset of every index over `sizes` (C order), int64: A_k or R_k of a contraction, read-only."""
    # Short ones are cached and shared: most of them occur many times.
    return _small_offsets(sizes, strides) if math.prod(sizes) <= SMALL_CONTRACTION else _offsets(sizes, strides)


def _offsets(sizes: tuple[int, ...], strides: tuple[int, ...]) -> Ints:
    result = np.zeros(1, dtype=np.int64)
    for size, stride in zip(sizes, strides, strict=True):
        result = (result[:, None] + np.arange(size, dtype=np.int64) * stride).ravel()
    return result


_small_offsets = lru_cache(maxsize=REMEMBERED)(_offsets)
