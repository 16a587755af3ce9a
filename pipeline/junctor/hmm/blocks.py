"""Checkpoints of a trellis that exceeds the memory: blocks of ticks that are kept, stored, or computed a second time.

Main functions: `plan_blocks` and `fitting`, for decoding and smoothing. Recomputation from checkpoints: Griewank and
Walther, ACM TOMS 26(1), 2000.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from junctor.hmm.packing import Lockstep, SequenceBatch, locksteps
from junctor.model.errors import BudgetError
from junctor.out_of_core.store import mapped_file
from junctor.planning.budget import exact_bytes

# A block begins with the last tick of the one before, whose rows are known. The backward pass needs its rows again:
# the last block is still where it was computed ("here"); others were stored in host memory or in files; of those that
# were not stored the first tick was kept, and the rest is computed again.
Place = Literal["here", "host", "disk", "again"]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TrellisMemory:
    """Bytes for a trellis.

    here: where it is computed.
    host: in addition, in host memory.
    disk: in files.
    """

    here: int
    host: int = 0
    disk: int = 0


@dataclass(frozen=True, slots=True)
class TickBlock:
    """The ticks from `first` (rows given, except tick 0) to `last`, and their place until the backward pass."""

    first: int
    last: int
    place: Place


def plan_blocks(starts: Integers, row_bytes: int, room: TrellisMemory) -> tuple[TickBlock, ...]:
    """Return the blocks of a trellis, as few and as near as the room allows.

    starts: int64 [ticks + 1], first row of each tick.
    row_bytes: bytes of a row.
    room: for the rows.
    Raises BudgetError if blocks that are computed again, about the square root of the ticks, do not fit either.
    """
    if starts[-1] * row_bytes <= room.here:
        return (TickBlock(0, len(starts) - 2, "here"),)
    allowed = room.here // row_bytes
    # Half for the block, half for the first ticks of blocks that are computed again.
    parts = _cut(starts, int(allowed // 2))
    places = _places(starts, parts, row_bytes, room)
    blocks = tuple(TickBlock(first, last, place) for (first, last), place in zip(parts, places, strict=True))
    firsts = sum(int(starts[block.first + 1] - starts[block.first]) for block in blocks if block.place == "again")
    # One tick alone is where the cuts ended: a trellis of one tick that fits has returned above.
    if parts[-1][0] == parts[-1][1] or firsts > allowed - allowed // 2:
        # Blocks of B of all N rows have N / B first ticks of S rows: together at least 2 sqrt(N S), with a margin of 2.
        rows = 4 * int(np.ceil(np.sqrt(float(starts[-1]) * float(starts[1]))))
        # All of them, if these are fewer, need no blocks.
        least = min(rows, int(starts[-1])) * row_bytes
        raise BudgetError(
            f"a trellis of {len(starts) - 1:,} steps for {starts[1]:,} sequences needs about {exact_bytes(least)}, "
            f"allowed are {exact_bytes(room.here)}: raise --memory (on a GPU, --device-memory)"
        )
    return blocks


def _cut(starts: Integers, rows: int) -> list[tuple[int, int]]:
    """Return first and last tick of blocks of at most `rows` rows; the list ends early if two ticks have more."""
    blocks: list[tuple[int, int]] = []
    first, end = 0, len(starts) - 2
    while True:
        last = min(int(np.searchsorted(starts, starts[first] + rows, side="right")) - 2, end)
        if last <= first:
            return [*blocks, (first, first)]
        blocks.append((first, last))
        if last == end:
            return blocks
        first = last


def _places(starts: Integers, blocks: Sequence[tuple[int, int]], row_bytes: int, room: TrellisMemory) -> list[Place]:
    left = {"host": room.host, "disk": room.disk}
    places: list[Place] = ["here"]
    # Blocks that the backward pass needs first come nearest.
    for first, last in reversed(blocks[:-1]):
        size = int(starts[last + 1] - starts[first]) * row_bytes
        place: Place = "host" if size <= left["host"] else "disk" if size <= left["disk"] else "again"
        # A smaller block may still fit where a larger one did not.
        if place != "again":
            left[place] -= size
        places.append(place)
    return places[::-1]


@dataclass(eq=False, slots=True)
class BlockStore:
    """The rows of stored blocks; `folder` is for files."""

    # Files have no name: nothing stays behind when a process dies.

    folder: Path
    _kept: dict[int, npt.NDArray[Any]] = field(default_factory=dict)

    def room(self, number: int, shape: tuple[int, ...], dtype: npt.DTypeLike, place: Place) -> npt.NDArray[Any]:
        """Return an empty array for the rows of a block; raises DiskError if a file cannot be made."""
        if place == "disk":
            self._kept[number] = mapped_file(self.folder, shape, dtype)
        else:
            self._kept[number] = np.empty(shape, dtype)
        return self._kept[number]

    def take(self, number: int) -> npt.NDArray[Any]:
        """Return the rows of a block, and drop them."""
        return self._kept.pop(number)


def fitting(
    batch: SequenceBatch, pending: Integers, together: int, company: int, row_bytes: int, room: TrellisMemory
) -> Iterator[Lockstep]:
    """Yield groups of sequences whose whole trellis fits the room.

    batch: of the sequences.
    pending: int64, sequences to group.
    together: sequences of a group at the most.
    company: size of groups that are not halved further as long as their trellis fits in blocks.
    row_bytes: bytes of a row.
    room: for the rows of a group.
    Raises BudgetError if the trellis of a single sequence does not fit.
    """
    for steps in locksteps(batch.lengths, pending, together):
        yield from _halved(steps, company, row_bytes, room)


def _halved(steps: Lockstep, company: int, row_bytes: int, room: TrellisMemory) -> Iterator[Lockstep]:
    count = len(steps.sequences)
    # Large groups are halved until their whole trellis fits; small ones rather go in blocks, as a group shares each
    # reading of the matrix.
    try:
        blocks = len(plan_blocks(steps.starts, row_bytes, room))
    except BudgetError:
        if count == 1:
            raise
        blocks = 0
    if blocks == 1 or (blocks and count <= company):
        yield steps
        return
    for half in steps.halves():
        yield from _halved(half, company, row_bytes, room)
