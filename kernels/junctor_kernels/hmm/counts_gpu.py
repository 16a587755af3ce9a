"""Expected counts on a GPU: the source of the kernels, behind those of `forward_backward_gpu`, and their fields."""

from __future__ import annotations

import numpy.typing as npt

from junctor_kernels.gpu.device import KernelModule
from junctor_kernels.hmm import device as hmm_gpu
from junctor_kernels.hmm.counts_cpu import RUN
from junctor_kernels.hmm.device import SequenceKernels, SequenceLaunch

# Threads of a block, but for those that keep a product in registers.
THREADS = 256
FILES = ("sums.cu", "counts.cu")
# The fields of the struct `Work` in their order.
FIELDS = (
    *("trellis", "sums", "emissions", "weights"),
    *("which", "tick", "slot", "before", "behind", "order", "entry_rows", "entry_columns", "begins"),
    *("left", "right", "gains", "totals", "pair_sums", "step_sums", "barrier"),
    *("states", "stride", "most", "rows", "pairs", "bins", "entry_count", "first", "last", "kept", "cached"),
)


def source(dtype: npt.DTypeLike, threads: int = THREADS, side: int | None = None) -> str:
    """Return the CUDA C++ source of all kernels; only for double precision."""
    constants = {"THREADS": threads, "SIDE": side or hmm_gpu.SIDE, "RUN": RUN}
    return hmm_gpu.joined_source(FILES, constants, dtype, before="#define COUNTS\n")


def shared_bytes(launch: SequenceLaunch, states: int, blocks: int, itemsize: int) -> int:
    """Return the bytes of shared memory that a block of a launch asks for, beside those of its own."""
    return 0


PROGRAM = SequenceKernels(KernelModule(source), FIELDS, THREADS, shared_bytes)
