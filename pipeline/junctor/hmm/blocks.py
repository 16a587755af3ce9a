"""How a trellis that exceeds the memory is cut: into blocks of ticks that are kept, stored, or computed a second time.

A block begins with the last tick of the one before, so with rows that are there already. On the way back its rows are
needed again: the last block is still where it was computed; others were stored in memory of the host or in files; of
those that nobody stored the first tick was kept, and the rest is computed again.
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
from junctor.planning.budget import format_bytes

Place = Literal["here", "host", "disk", "again"]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TrellisMemory:
    """Bytes for a trellis: where it is computed (`here`), beside that in memory of the host, and in files."""

    here: int
    host: int = 0
    disk: int = 0


@dataclass(frozen=True, slots=True)
class TickBlock:
    """The ticks from `first`, whose rows are given (but for tick 0), to `last`; where they are until the way back."""

    first: int
    last: int
    place: Place


def plan_blocks(starts: Integers, row_bytes: int, room: TrellisMemory) -> tuple[TickBlock, ...]:
    """Cut the ticks of a batch into blocks, as few and as near as the room allows.

    starts: int64 [ticks + 1], where the rows of each tick begin. Raises BudgetError where not even blocks that are
    computed again fit, which take about the square root of the ticks.
    """
    if starts[-1] * row_bytes <= room.here:
        return (TickBlock(0, len(starts) - 2, "here"),)
    allowed = room.here // row_bytes
    # Half for the block, half for the first ticks of blocks that are computed again.
    parts = _cut(starts, int(allowed // 2))
    places = _places(starts, parts, row_bytes, room)
    blocks = tuple(TickBlock(first, last, place) for (first, last), place in zip(parts, places, strict=True))
    firsts = sum(int(starts[each.first + 1] - starts[each.first]) for each in blocks if each.place == "again")
    if parts[-1][1] != len(starts) - 2 or firsts > allowed - allowed // 2:
        least = 4 * int(np.ceil(np.sqrt(float(starts[-1]) * float(starts[1])))) * row_bytes
        raise BudgetError(
            f"a trellis of {len(starts) - 1:,} steps for {starts[1]:,} sequences needs about {format_bytes(least)}, "
            f"allowed are {format_bytes(room.here)}: raise --memory (on a GPU, --device-memory)"
        )
    return blocks


def _cut(starts: Integers, rows: int) -> list[tuple[int, int]]:
    """Return first and last tick of blocks of at most so many rows; stops where two ticks are more than that."""
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
    # What is needed first on the way back comes nearest.
    for first, last in reversed(blocks[:-1]):
        size = int(starts[last + 1] - starts[first]) * row_bytes
        place: Place = "host" if size <= left["host"] else "disk" if size <= left["disk"] else "again"
        if place != "again":
            left[place] -= size
        places.append(place)
    return places[::-1]


@dataclass(eq=False, slots=True)
class BlockStore:
    """The rows of blocks that were stored. folder: for files, which have no name: nothing stays when a process dies."""

    folder: Path
    _kept: dict[int, npt.NDArray[Any]] = field(default_factory=dict)

    def room(self, number: int, shape: tuple[int, ...], dtype: npt.DTypeLike, place: Place) -> npt.NDArray[Any]:
        """Return an array for a block, to be filled; raises DiskError where a file cannot be made."""
        if place == "disk":
            self._kept[number] = mapped_file(self.folder, shape, dtype)
        else:
            self._kept[number] = np.empty(shape, dtype)
        return self._kept[number]

    def take(self, number: int) -> npt.NDArray[Any]:
        """Return what was stored, and forget it."""
        return self._kept.pop(number)


def fitting(
    batch: SequenceBatch, found: npt.NDArray[np.int64], together: int, company: int, row_bytes: int, room: TrellisMemory
) -> Iterator[Lockstep]:
    """Yield sequences that go side by side: `together`, or as many as have a whole trellis in the room.

    company: that stay together all the same where their trellis fits in blocks. Raises BudgetError where that of a
    single one does not.
    """
    for steps in locksteps(batch.lengths, found, together):
        yield from _halved(steps, company, row_bytes, room)


def _halved(steps: Lockstep, company: int, row_bytes: int, room: TrellisMemory) -> Iterator[Lockstep]:
    count = len(steps.sequences)
    try:
        blocks = len(plan_blocks(steps.starts, row_bytes, room))
    except BudgetError:
        if count == 1:
            raise
        blocks = 0
    if blocks == 1 or (blocks and count <= company):
        yield steps
        return
    half = -(-count // 2)
    for part in (slice(0, half), slice(half, count)):
        yield from _halved(Lockstep(steps.sequences[part], steps.lengths[part]), company, row_bytes, room)
