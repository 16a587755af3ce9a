"""Forward and backward rows on a GPU: the source of the kernels, what they are told, and which of them does what."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor_kernels.gpu.device import KernelModule
from junctor_kernels.hmm import device as hmm_gpu
from junctor_kernels.hmm import products_cpu as hmm_cpu
from junctor_kernels.hmm.device import LINE, Chip, MatrixParts, SequenceKernels, SequenceLaunch, planned, stride_of

# Threads of a block, but for those that keep a product in registers.
THREADS = 512
# Columns of a panel. Terms that are added up before they join the rest: as on the CPU, so that sums are the same.
PANEL, RUN = 16, hmm_cpu.DEPTH
# Numbers that a run begins further on in shared memory.
SKEW = 4
# The files of the source in their order, and the fields of the struct `Work` in theirs.
FILES = ("hmm.cu", "forward_backward.cu", "forward_backward_few.cu")
FIELDS = (
    *("panels", "begins", "froms", "numbers", "start", "emissions", "leasts", "least", "which", "starts"),
    *("trellis", "sums", "parts", "scaled", "powers", "lost", "totals", "barrier"),
    *("states", "stride", "most", "levels", "first", "last", "ticks", "before", "going_on", "kept", "cached"),
)


def source(dtype: npt.DTypeLike, threads: int = THREADS, side: int | None = None) -> str:
    """Return the CUDA C++ source of all kernels in a number format."""
    constants = {"THREADS": threads, "SIDE": side or hmm_gpu.SIDE, "PANEL": PANEL, "RUN": RUN, "SKEW": SKEW}
    return hmm_gpu.joined_source(FILES, constants, dtype, before="#define SUMS\n")


def runs_of(states: int) -> int:
    """Return the runs of terms of a sum."""
    return -(-stride_of(states) // RUN)


def panels_of(matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a dense matrix [terms, results] in panels, flat, filled with zeros."""
    assert LINE % PANEL == 0
    size, stride = len(matrix), stride_of(len(matrix))
    wide = np.zeros((stride, stride // PANEL, PANEL), matrix.dtype)
    wide.reshape(stride, stride)[:size, :size] = matrix
    return np.ascontiguousarray(wide.transpose(1, 0, 2)).reshape(-1)


def shared_bytes(launch: SequenceLaunch, states: int, blocks: int, itemsize: int) -> int:
    """Return the bytes of shared memory that a block of a launch asks for."""
    if not launch.rows:
        return 0
    stride, runs = stride_of(states), runs_of(states)
    own = -(-(stride // PANEL) // blocks)
    rows = launch.rows * (stride + runs * SKEW + THREADS // 32 + own * runs * PANEL)
    return (rows + launch.kept * (RUN + 1) * PANEL) * itemsize


def launches(
    counts: npt.NDArray[np.int64], states: int, sparse: bool, itemsize: int, chip: Chip
) -> Iterator[SequenceLaunch]:
    """Yield the launches for the rows of a block of ticks; the backward pass takes them in reverse.

    Names of kernels lack their prefix, `forward_` or `backward_`.

    counts: rows of each tick, int64 [ticks], descending.
    sparse: whether the matrix is.
    itemsize: bytes of a number.
    """
    units, size = -(-(stride_of(states) // PANEL) // chip.blocks) * runs_of(states), RUN * PANEL * itemsize
    # In shared memory a run has one line more, as in `shared_bytes`.
    parts = MatrixParts(units, size + PANEL * itemsize, size)
    shared = partial(shared_bytes, states=states, blocks=chip.blocks, itemsize=itemsize)
    return planned(counts, "sparse" if sparse else None, itemsize, parts, shared, chip)


PROGRAM = SequenceKernels(KernelModule(source), FIELDS, THREADS, shared_bytes)
