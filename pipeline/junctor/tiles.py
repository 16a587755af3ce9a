"""How the compiled backend walks through one contraction: tiles of kept entries, and the terms of every tile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from junctor_kernels.axes import Contraction, Strides
from junctor_kernels.contract import TILE
from junctor_kernels.layout import LINES, PAIRS, PRODUCTS

from junctor.support import LISTING_ENTRIES, Mask

Ints = npt.NDArray[np.int64]

# Terms are listed where more than this share of them is zero.
LISTED_FROM = 0.25
# What a term of a tile of four costs against a term of a single entry (measured: 5.5e10 against 3.5e10 operations a
# second, so that a tile has to replace more than two and a half entries).
TILE_COST = 2.5


@dataclass(frozen=True, eq=False)
class Walk:
    """The order of kept entries, in tiles of four or alone.

    how: LINES, PAIRS or PRODUCTS. rows: the per-case operands (indices), the one that tiles share first. order: int64,
    kept entries; those of a tile follow each other, the last ones repeated where a tile is not full.
    """

    how: int
    rows: tuple[int, ...]
    order: Ints

    @property
    def size(self) -> int:
        """Kept entries of a tile."""
        return 1 if self.how == PRODUCTS else TILE

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return self.order.size // self.size


@dataclass(frozen=True, eq=False)
class Terms:
    """Tile t has the terms listed[begins[t]] up to listed[begins[t + 1]]."""

    begins: Ints
    listed: npt.NDArray[np.int32]


def plain(what: Contraction, rows: Sequence[int]) -> Walk:
    """Return the walk entry by entry, which serves operands of any number."""
    return Walk(PRODUCTS, tuple(rows), np.arange(what.kept_entries, dtype=np.int64))


def tiled(what: Contraction, rows: Sequence[int], factor: bool) -> Walk | None:
    """Return the walk in tiles of four, None where it does not pay or rows are too many."""
    if len(rows) + factor != 2:
        return None
    padding, common = min((_padding(what, what.operands[row]), row) for row in rows)
    if padding > 4 / 3:
        return None
    walked = [axis for axis, stride in enumerate(what.operands[common].kept) if stride]
    shared = [axis for axis, stride in enumerate(what.operands[common].kept) if not stride]
    grid = np.arange(what.kept_entries, dtype=np.int64).reshape(what.kept).transpose(*walked, *shared)
    grid = grid.reshape(-1, math.prod(what.kept[axis] for axis in shared))
    grid = np.pad(grid, ((0, 0), (0, -grid.shape[1] % TILE)), mode="edge")
    return Walk(LINES if factor else PAIRS, (common, *(row for row in rows if row != common)), grid.ravel())


def _padding(what: Contraction, strides: Strides) -> float:
    """Return how many times more entries full tiles have than there are, where they share the row of `strides`."""
    shared = math.prod(size for size, stride in zip(what.kept, strides.kept, strict=True) if not stride)
    return -(-shared // TILE) * TILE / shared


def listed(what: Contraction, walk: Walk, masks: Sequence[Mask]) -> Terms:
    """List the terms of every tile that can differ from zero; masks: for each operand, bool [entries]."""
    kept = [offsets(what.kept, strides.kept)[walk.order] for strides in what.operands]
    eliminated = [offsets(what.eliminated, strides.eliminated) for strides in what.operands]
    step = max(1, LISTING_ENTRIES // (walk.size * what.eliminated_entries)) * walk.size
    counts, found = [np.zeros(1, dtype=np.int64)], []
    for start in range(0, walk.order.size, step):
        part = np.ones((len(walk.order[start : start + step]), what.eliminated_entries), dtype=np.bool_)
        for mask, s, r in zip(masks, kept, eliminated, strict=True):
            part &= mask[s[start : start + step, None] + r]
        tiles: Mask = np.logical_or.reduce(part.reshape(-1, walk.size, what.eliminated_entries), axis=1)
        counts.append(tiles.sum(axis=1))
        found.append(np.nonzero(tiles)[1].astype(np.int32))
    return Terms(np.cumsum(np.concatenate(counts)), np.concatenate(found))


def offsets(sizes: Sequence[int], strides: Sequence[int]) -> Ints:
    """Return the offset of every index over `sizes` (C order): A_k or R_k of a contraction, spelled out."""
    result = np.zeros(1, dtype=np.int64)
    for size, stride in zip(sizes, strides, strict=True):
        result = (result[:, None] + np.arange(size, dtype=np.int64) * stride).ravel()
    return result
