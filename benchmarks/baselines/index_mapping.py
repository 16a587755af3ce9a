"""Messages through index mapping tables: the NumPy reference, and how threads may be given to one (a baseline).

Zheng and Mengshoel (*Optimizing Parallel Belief Propagation in Junction Trees using Regression*, KDD 2013) keep for
each clique and separator a table of where the clique's entries lie that agree with an entry of the separator. A message
is a *reduction* of the one clique and a *scattering* into the other. Threads of a block go over entries of the
separator (element-wise parallelism) and share the terms of each (arithmetic parallelism). Nothing else uses this: our
own kernels have separable offsets, and no table of the size of a clique.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Threads that a block may have.
MOST_THREADS = 1024
# Their manual settings: for every message the same, or two of them on either side of a size of the mapping table.
MANUAL_THREADS, MANUAL_TOGETHER = 256, 16
THRESHOLD, FEW_TOGETHER, MANY_TOGETHER = 90, 4, 128


class Setting(NamedTuple):
    """Launch parameters of a message: threads of a block (K), and those that share an entry (p_a); p_e = K / p_a."""

    threads: int
    together: int

    @property
    def entries(self) -> int:
        """Entries of the separator that a block has."""
        return self.threads // self.together

    def blocks(self, entries: int) -> int:
        """Return the blocks that a separator of so many entries takes."""
        return -(-entries // self.entries)


def all_settings(threads: Sequence[int]) -> list[Setting]:
    """Return every setting with one of so many threads: p_a is a power of two up to K."""
    return [Setting(k, 1 << n) for k in threads for n in range(k.bit_length())]


def zero_threshold(terms: int) -> Setting:
    """Return their manual setting that is the same for all messages."""
    del terms
    return Setting(MANUAL_THREADS, MANUAL_TOGETHER)


def one_threshold(terms: int) -> Setting:
    """Return their manual setting with a threshold; terms: clique entries of an entry of the separator."""
    return Setting(MANUAL_THREADS, FEW_TOGETHER if terms <= THRESHOLD else MANY_TOGETHER)


def reduction_time(separator: int, clique: int, setting: Setting, blocks_at_once: int) -> int:
    """Return what a reduction takes by equation 5, as printed, in additions.

    It counts all entries of the clique table for each round of blocks, though a block has those of its separator
    entries alone, and multiplies by the halvings that follow the additions.

    separator, clique: entries of the tables.
    blocks_at_once: N_b, blocks that a device runs side by side.
    """
    return scattering_time(separator, clique, setting, blocks_at_once) * setting.together.bit_length()


def scattering_time(separator: int, clique: int, setting: Setting, blocks_at_once: int) -> int:
    """Return what a scattering takes by equation 6, as printed; parameters as of `reduction_time`."""
    return -(-setting.blocks(separator) // blocks_at_once) * -(-clique // setting.together)


def reduction_steps(entries: int, terms: int, setting: Setting, at_once: int) -> float:
    """Return how many steps a reduction takes by a model of our own: rounds of blocks, each of a thread's additions
    and then of halvings.

    terms: clique entries of an entry of the separator.
    at_once: threads that a device runs side by side.
    """
    rounds = math.ceil(entries * setting.together / at_once)
    return rounds * (math.ceil(terms / setting.together) + math.log2(setting.together))


def scattering_steps(entries: int, terms: int, setting: Setting, at_once: int) -> float:
    """Return how many steps a scattering takes by the same model: rounds of blocks, of a thread's multiplications."""
    return math.ceil(entries * setting.together / at_once) * math.ceil(terms / setting.together)


def index_mapping(scope: Sequence[int], separator: Sequence[int], sizes: Sequence[int], xp: Any = np) -> Array:
    """Return int32 [entries of the separator, terms]: where the entries of a table over `scope` (C order) lie.

    xp: NumPy, or CuPy for a mapping on a device.
    """
    strides = {v: math.prod(sizes[u] for u in scope[at + 1 :]) for at, v in enumerate(scope)}
    kept = _offsets([(sizes[v], strides[v]) for v in separator], xp)
    terms = _offsets([(sizes[v], strides[v]) for v in scope if v not in set(separator)], xp)
    mapping: Array = kept[:, None] + terms
    return mapping


def _offsets(axes: Sequence[tuple[int, int]], xp: Any) -> Any:
    found = xp.zeros(1, dtype=np.int32)
    for size, stride in axes:
        found = (found[:, None] + xp.arange(size, dtype=np.int32) * np.int32(stride)).ravel()
    return found


def reduce_mapped(clique: Array, mapping: Array, separator: Array, ratio: Array) -> None:
    """Sum a clique table (flat) for its separator [entries], in place, and write what that changes by (equation 1).

    0 / 0 = 0.
    """
    summed = clique[mapping].sum(axis=1)
    ratio[:] = np.divide(summed, separator, out=np.zeros_like(summed), where=separator > 0)
    separator[:] = summed


def scatter_mapped(clique: Array, mapping: Array, ratio: Array) -> None:
    """Multiply a clique table (flat) by what a separator has changed by, in place (equation 2)."""
    clique[mapping] *= ratio[:, None]


def source(dtype: np.dtype[Any]) -> str:
    """Return the CUDA C++ source of both kernels in a number format (float32 or float64)."""
    double = "#define DOUBLE\n" if dtype.itemsize == 8 else ""
    text = (Path(__file__).parent / "index_mapping.cu").read_text()
    return f"{double}enum {{ MOST_THREADS = {MOST_THREADS} }};\n{text}"
