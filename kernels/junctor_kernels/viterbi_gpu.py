"""Most probable paths on a GPU: the source of the kernels, what they are told, and which of them does what."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from junctor_kernels import hmm_gpu
from junctor_kernels.hmm_gpu import FEW, MANY, Chip, Launch, Program, stride_of

# Threads of a block, but for those that keep a product in registers.
THREADS = 1024
# Parts of a column that different warps take.
SEGMENTS = 4
# Transitions to a state, on average, from which on a warp shares them.
WIDE = 12
# Of the cache of the device, what parts of a matrix shall take; the rest passes through.
CACHE_SHARE = 0.6
# The files of the source in their order, and the fields of the struct `Work` in theirs.
FILES = ("hmm.cu", "viterbi.cu", "viterbi_few.cu")
FIELDS = (
    *("columns", "begins", "froms", "numbers", "start", "emissions", "which", "starts"),
    *("trellis", "maxima", "path", "barrier", "states", "stride", "first", "last", "ticks", "going_on"),
    *("kept", "cached"),
)


def source(dtype: npt.DTypeLike, threads: int = THREADS, side: int | None = None) -> str:
    """Return the CUDA C++ source of all kernels in a number format."""
    constants = {"THREADS": threads, "SIDE": side or hmm_gpu.SIDE, "SEGMENTS": SEGMENTS}
    return hmm_gpu.joined_source(FILES, constants, dtype)


def part_bytes(states: int, itemsize: int) -> int:
    """Return the bytes of a part of a column."""
    return stride_of(states) // SEGMENTS * itemsize


def shared_bytes(launch: Launch, states: int, blocks: int, itemsize: int) -> int:
    """Return the bytes of shared memory that a block of a launch asks for."""
    if not launch.rows:
        return 0
    own = -(-states // blocks)
    rows = launch.rows * (stride_of(states) + own * SEGMENTS + THREADS // 32) * itemsize
    return rows + launch.kept * part_bytes(states, itemsize)


def launches(
    counts: npt.NDArray[np.int64], states: int, transitions: int | None, itemsize: int, chip: Chip
) -> Iterator[Launch]:
    """Yield what computes the rows of a block from those of its first tick.

    counts: rows of each tick, descending. transitions: that are not zero, None for a dense matrix.
    """
    first, end = 0, len(counts) - 1
    while first < end:
        kernel, rows, least = _kernel(int(counts[first + 1]), states, transitions, itemsize, chip)
        # As far as there are more rows than the next smaller kernel takes.
        last = int(np.searchsorted(-counts, -least, side="right")) - 1
        last = min(last, end)
        near = _near(rows, states, itemsize, chip) if rows else (0, 0)
        yield Launch(kernel, first, last, rows, *near)
        first = last


def _near(rows: int, states: int, itemsize: int, chip: Chip) -> tuple[int, int]:
    """Return the parts of columns that each block keeps in shared memory and in the cache."""
    parts, size = -(-states // chip.blocks) * SEGMENTS, part_bytes(states, itemsize)
    room = chip.shared - shared_bytes(Launch("", 0, 0, rows), states, chip.blocks, itemsize)
    kept = min(parts, room // size)
    return kept, min(parts - kept, int(CACHE_SHARE * chip.cache) // (chip.blocks * size))


def _kernel(count: int, states: int, transitions: int | None, itemsize: int, chip: Chip) -> tuple[str, int, int]:
    """Return the kernel for so many rows, how many it keeps in shared memory, and the fewest rows that it is for."""
    if transitions is not None:
        return ("sparse_32" if transitions > WIDE * states else "sparse_1"), 0, 1
    below = 0
    for rows in FEW:
        if shared_bytes(Launch("", 0, 0, rows), states, chip.blocks, itemsize) > chip.shared:
            break
        if count <= rows:
            return f"few_{rows}", rows, below + 1
        below = rows
    for each in MANY[itemsize]:
        if count <= hmm_gpu.SIDE * each or each == MANY[itemsize][-1]:
            return f"many_{each}", 0, below + 1
        below = hmm_gpu.SIDE * each
    raise AssertionError("unreachable")


PROGRAM = Program(source, FIELDS, THREADS, shared_bytes)
