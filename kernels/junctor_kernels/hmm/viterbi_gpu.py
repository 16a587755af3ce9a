"""Most probable paths on a GPU: the source of the kernels, what they are told, and which of them does what."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from junctor_kernels.gpu.device import KernelModule
from junctor_kernels.hmm import device as hmm_gpu
from junctor_kernels.hmm.device import Chip, MatrixParts, SequenceKernels, SequenceLaunch, planned, stride_of

# Threads of a block, but for those that keep a product in registers.
THREADS = 1024
# Parts of a column that different warps take.
SEGMENTS = 4
# Transitions to a state, on average, from which on a warp shares them.
WIDE = 12
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


def shared_bytes(launch: SequenceLaunch, states: int, blocks: int, itemsize: int) -> int:
    """Return the bytes of shared memory that a block of a launch asks for."""
    if not launch.rows:
        return 0
    own = -(-states // blocks)
    rows = launch.rows * (stride_of(states) + own * SEGMENTS + THREADS // 32) * itemsize
    return rows + launch.kept * part_bytes(states, itemsize)


def launches(
    counts: npt.NDArray[np.int64], states: int, transitions: int | None, itemsize: int, chip: Chip
) -> Iterator[SequenceLaunch]:
    """Yield the launches for the rows of a block of ticks.

    counts: rows of each tick, int64 [ticks], descending.
    transitions: that are not zero, None for a dense matrix.
    itemsize: bytes of a number.
    """
    sparse = None
    if transitions is not None:
        sparse = "sparse_32" if transitions > WIDE * states else "sparse_1"
    size = part_bytes(states, itemsize)
    parts = MatrixParts(-(-states // chip.blocks) * SEGMENTS, size, size)
    shared = partial(shared_bytes, states=states, blocks=chip.blocks, itemsize=itemsize)
    return planned(counts, sparse, itemsize, parts, shared, chip)


PROGRAM = SequenceKernels(KernelModule(source), FIELDS, THREADS, shared_bytes)
