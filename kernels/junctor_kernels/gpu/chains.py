"""Several eliminations of a large table in one launch: what they read and write, and which of them fit together.

Each elimination of a *chain* sums a binary axis out of what the one before made, times a small table, and brings in
another binary axis. A thread keeps what belongs to all states of these axes in registers, where every elimination turns
pairs of entries into pairs, as a stage of a fast Fourier transform does. So a chain reads the large table once and
writes one, however many eliminations it has. A thread takes four entries, a warp apart, for all of these states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from junctor_kernels.gpu.entries import (
    APART,
    EACH,
    LARGE_ENTRIES,
    LARGE_PANEL,
    LINE,
    MOST_ROWS,
    PANEL,
    RUN,
    SAME,
    TILE_LAST_FIRST,
    TILE_RUN,
    VECTOR,
    WARP,
    EntryLaunch,
    Integers,
    Offsets,
    PartRuns,
    cut_axes,
    in_runs,
    narrow,
    walk,
)
from junctor_kernels.tables.axes import row_major

# Eliminations of a chain, by the bytes of an entry: with more, a thread would need more registers than there are for
# enough of them.
MOST_STAGES = {4: 4, 8: 3}
# Lines of memory that a warp may touch, as a multiple of those that its numbers fill.
MOST_LINES = 2


class Elimination(NamedTuple):
    """An elimination: axis labels of the small table, of the large one and of the result, each in C order."""

    factor: tuple[int, ...]
    table: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def leaves(self) -> tuple[int, ...]:
        """Axes that are summed out."""
        return tuple(v for v in self.table if v not in self.out)

    @property
    def comes(self) -> tuple[int, ...]:
        """Axes that only the result has."""
        return tuple(v for v in self.out if v not in self.table)


@dataclass(frozen=True, slots=True)
class Chain:
    """Eliminations that are done together.

    rest: sizes of the axes that are there throughout.
    strides: of the large table, of every small one and of the result along these.
    tiles: along the axes that come and go, of each the offsets for all their states: of the large table and of the
    result [states], of a small one [states behind its stage, state that is summed out].
    """

    rest: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    tiles: tuple[tuple[int, ...], ...]

    @property
    def stages(self) -> int:
        """Number of eliminations."""
        return len(self.tiles) - 2


def is_stage(stage: Elimination, sizes: Mapping[int, int]) -> bool:
    """Return True if an elimination can be one of a chain."""
    axes = (*stage.leaves, *stage.comes)
    return len(stage.leaves) == len(stage.comes) == 1 and all(sizes[v] == 2 for v in axes)


def chain_of(stages: Sequence[Elimination], sizes: Mapping[int, int]) -> Chain | None:
    """Return eliminations as a chain, None where one launch would not do them as fast as memory allows."""
    # By other labels: what a sweep does with one column of a grid it does with all.
    names: dict[int, int] = {}
    named = [Elimination(*(tuple(names.setdefault(v, len(names)) for v in axes) for axes in stage)) for stage in stages]
    return _chain_of(tuple(named), tuple(sizes[v] for v in names))


@lru_cache(maxsize=1024)
def _chain_of(stages: tuple[Elimination, ...], of: tuple[int, ...]) -> Chain | None:
    first, last = stages[0].table, stages[-1].out
    sizes = dict(enumerate(of))
    leave, come = [stage.leaves[0] for stage in stages], [stage.comes[0] for stage in stages]
    if not set(leave) <= set(first) or not set(come) <= set(last):
        return None
    scopes = [first, *(stage.factor for stage in stages), last]
    at = [row_major(scope, sizes) for scope in scopes]
    states = [tuple(number >> n & 1 for n in range(len(stages))) for number in range(1 << len(stages))]

    def offsets(k: int, axes: Sequence[int]) -> list[int]:
        return [sum(at[k].get(v, 0) * state for v, state in zip(axes, setting, strict=True)) for setting in states]

    tiles = [offsets(0, leave)]
    for i in range(len(stages)):
        behind = offsets(i + 1, [*come[: i + 1], *leave[i + 1 :]])
        tiles.append([offset + state * at[i + 1].get(leave[i], 0) for offset in behind for state in (0, 1)])
    tiles.append(offsets(len(scopes) - 1, come))
    # Neighbours lie side by side in the result, or where it has these axes there, in the large table.
    by = at[0] if sorted(tiles[-1]) == list(range(len(states))) else at[-1]
    rest = sorted((v for v in first if v not in leave), key=lambda v: -by[v])
    strides = tuple(tuple(of_table.get(v, 0) for v in rest) for of_table in at)
    # Small tables are kept in shared memory, so few of their entries may belong to the axes that stay.
    if any(
        sum(stride * (sizes[v] - 1) for v, stride in zip(rest, of_factor, strict=True)) >= MOST_ROWS
        for of_factor in strides[1:-1]
    ):
        return None
    chain = Chain(tuple(sizes[v] for v in rest), strides, tuple(map(tuple, tiles)))
    return chain if _is_near(chain) else None


def _is_near(chain: Chain) -> bool:
    """Return True if what a warp reads and writes at once fills lines of memory."""
    _, places = cut_axes(list(zip(chain.rest, *chain.strides, strict=True)), WARP * EACH)
    if math.prod(axis[0] for axis in places) < WARP * EACH:
        return False
    for k in (0, len(chain.tiles) - 1):
        there = np.add.outer(walk(places, k + 1), chain.tiles[k])
        if len(np.unique(there // LINE)) > MOST_LINES * there.size // LINE:
            return False
    return all(_apart(walk(places, k + 1)) is not None for k in range(len(chain.tiles)))


def _apart(places: Integers) -> Integers | None:
    """Return how far the entries of a thread are from the first, None where that is not the same for all threads."""
    of_threads = places.reshape(-1, EACH, WARP)
    lies = of_threads - of_threads[:, :1]
    first: Integers = lies[0, :, 0]
    return first if (lies == first[:, None]).all() else None


@lru_cache(maxsize=1024)
def launch_of(chain: Chain) -> EntryLaunch:
    """Return the launch of a chain: its operands are the large table, the small ones, and the result."""
    axes = list(zip(chain.rest, *chain.strides, strict=True))
    entries = int(np.prod(chain.rest, dtype=np.int64))
    panels, places = cut_axes(axes, PANEL if entries < LARGE_ENTRIES else LARGE_PANEL)
    none = np.zeros(1, np.int64)
    offsets = tuple(
        Offsets(walk(panels, k + 1), narrow(walk(places, k + 1)), none, narrow(np.array(tile)))
        for k, tile in enumerate(chain.tiles)
    )
    kinds = [_kind(lying, is_side=k in (0, len(offsets) - 1)) for k, lying in enumerate(offsets)]
    quads = tuple(kind for kind in kinds if kind is not None)
    # `chain_of` has refused what lies otherwise.
    assert len(quads) == len(offsets)
    inside = len(offsets[0].places)
    return EntryLaunch(True, entries, inside, 1 << chain.stages, 1, offsets, quads, chain.stages)


def in_place(launch: EntryLaunch, k: int, runs: PartRuns) -> EntryLaunch | None:
    """Return the launch of a chain for a table that lies in runs; None where threads do not find it side by side."""
    offsets = in_runs(launch.offsets[k], runs)
    if offsets is None:
        return None
    is_side = k in (0, len(launch.offsets) - 1)
    kind = _kind(offsets, is_side)
    if kind is None or (is_side and kind[0] == APART):
        return None
    return launch.with_operand(k, offsets, kind)


def _kind(offsets: Offsets, is_side: bool) -> tuple[int, ...] | None:
    """Return how a table lies; None where there is no kernel for that.

    That is what is side by side, how far the entries of a thread are from the first, and of a small table the number of
    places where entries may be.
    """
    lies = _apart(offsets.places)
    if lies is None:
        return None
    if not is_side:
        rows = int(offsets.panels.max()) + int(offsets.places.max()) + 1
        return (SAME if not lies.any() else APART, *lies[1:].tolist(), rows) if rows <= MOST_ROWS else None
    tile, kind = offsets.near.tolist(), APART
    last_first = [int(f"{n:0{len(tile).bit_length() - 1}b}"[::-1], 2) for n in range(len(tile))]
    is_aligned = not any((part % VECTOR).any() for part in (offsets.panels, offsets.places, offsets.far))
    if tile in (list(range(len(tile))), last_first) and is_aligned:
        kind = TILE_LAST_FIRST if tile == last_first else TILE_RUN
    elif (np.diff(offsets.places.reshape(-1, WARP)) == 1).all():
        kind = RUN
    return kind, *lies[1:].tolist(), 0
