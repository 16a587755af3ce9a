"""Contractions of one case on a GPU: what a launch reads, and how a large sum becomes several launches.

    out[s] = sum over r of  prod over k of  scale_k table_k[A_k[s] + R_k[r]]

An entry s lies in a panel and at a place inside it, a term r in a far and a near part; each has its own table of
offsets, so that none grows with a clique.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor_kernels.axes import Contraction, Strides

# Threads of a block, entries that each of them takes, and so entries of a block.
THREADS, EACH = 256, 4
TILE = THREADS * EACH
# Operands of a launch; more are contracted in several.
MOST_OPERANDS = 16
# Blocks that keep a device busy; where there is more to do, each does several rounds.
MOST_BLOCKS = 1 << 12
# Entries that are looked at to find out about how large they are.
SAMPLED_ENTRIES = 1 << 18
# Numbers of operands that have a kernel of their own.
MOST_COMPILED = 6
# Entries of a panel, and near terms, at the most.
PANEL, NEAR = 4096, 32
# Kept entries from which a thread takes an entry; with fewer, a block takes one, or some terms are kept at first.
MANY_ENTRIES = 1 << 15
# Terms that a block sums for an entry.
BLOCK_TERMS = 1 << 14
# Entries that are made of terms which are kept at first.
PARTIAL_ENTRIES = 1 << 18
# Terms of each of them that are worth it.
EACH_PARTIAL = 8
# The fields of the struct `Reduction`, in its order, and those of an operand.
FIELDS = ("out", "extremes", "entries", "panel", "near_terms", "far_terms", "operands", "power", "adds")
OPERAND_FIELDS = ("table", "panels", "places", "far", "near", "scale")

Integers = npt.NDArray[Any]
# Size, and the stride of every operand.
Axis = tuple[int, ...]


def source(algebra: str) -> str:
    """Return the CUDA C++ source of the kernels in "single" or "double"."""
    values = {"THREADS": THREADS, "EACH": EACH, "TILE": TILE, "MOST_OPERANDS": MOST_OPERANDS}
    constants = ", ".join(f"{name} = {value}" for name, value in values.items())
    defined = "#define DOUBLE\n" if algebra == "double" else ""
    text = (Path(__file__).parent / "cuda" / "entries.cu").read_text()
    return f"{defined}enum {{ {constants} }};\n{text}"


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where the entries and terms of an operand lie: int64 panels and far parts, int32 places and near parts."""

    panels: Integers
    places: Integers
    far: Integers
    near: Integers


@dataclass(frozen=True, slots=True)
class Launch:
    """A contraction for a kernel whose threads go over entries, or over the terms of an entry.

    offsets: of each operand. Its result has `entries` entries.
    """

    over_entries: bool
    entries: int
    panel: int
    near_terms: int
    far_terms: int
    offsets: tuple[Offsets, ...]

    @property
    def name(self) -> str:
        """The kernel, of those over entries the one for so many operands."""
        if not self.over_entries:
            return "reduce_terms"
        return f"reduce_entries_{len(self.offsets) if len(self.offsets) <= MOST_COMPILED else 0}"

    @property
    def blocks(self) -> int:
        """Thread blocks."""
        if not self.over_entries:
            return self.entries
        tiles = -(-self.panel // TILE)
        return tiles * min(self.entries // self.panel, -(-MOST_BLOCKS // tiles))

    def beginning(self) -> Launch:
        """Return the same for the first panels alone, as many as keep a device busy for a moment."""
        return replace(self, entries=min(self.entries, self.panel * max(1, SAMPLED_ENTRIES // self.panel)))

    @property
    def nbytes(self) -> int:
        """Bytes of all offsets."""
        return sum(part.nbytes for each in self.offsets for part in (each.panels, each.places, each.far, each.near))


@lru_cache(maxsize=256)
def launches_of(what: Contraction) -> tuple[Launch, ...]:
    """Return the launches of a contraction: one, or several of which each reads what the one before made.

    Where few entries have many terms, the fastest terms are kept at first, so that there are threads enough. Raises
    OverflowError for more operands than a launch takes.
    """
    if len(what.operands) > MOST_OPERANDS:
        raise OverflowError(f"a product of {len(what.operands)} tables, the GPU takes {MOST_OPERANDS}")
    kept = list(zip(what.kept, *(each.kept for each in what.operands), strict=True))
    eliminated = list(zip(what.eliminated, *(each.eliminated for each in what.operands), strict=True))
    entries, terms, operands = what.kept_entries, what.eliminated_entries, len(what.operands)
    if entries >= MANY_ENTRIES or terms <= max(NEAR, entries):
        return (_launch(True, kept, eliminated, operands),)
    if terms <= BLOCK_TERMS:
        return (_launch(False, kept, eliminated, operands),)
    most = PARTIAL_ENTRIES // entries
    left, more = _cut(eliminated, most if terms >= EACH_PARTIAL * most else BLOCK_TERMS)
    parts = _entries(more)
    if parts == 1:
        return (_launch(False, kept, eliminated, operands),)
    first = _launch(True, [*kept, *more], left, operands)
    return (first, *launches_of(Contraction((entries,), (parts,), (Strides((parts,), (1,)),))))


def _entries(axes: Sequence[Axis]) -> int:
    return math.prod(axis[0] for axis in axes)


def _cut(axes: Sequence[Axis], most: int) -> tuple[list[Axis], list[Axis]]:
    """Cut axes (size, strides of the operands) into slow and fast ones; the fast have at most so many entries."""
    slow, fast, entries = list(axes), list[Axis](), 1
    while slow:
        size, *strides = slow.pop()
        part = next(part for part in range(min(size, most // entries), 0, -1) if size % part == 0)
        fast.insert(0, (part, *strides))
        entries *= part
        if part < size:
            slow.append((size // part, *(stride * part for stride in strides)))
            break
    return slow, fast


def _launch(over_entries: bool, kept: Sequence[Axis], eliminated: Sequence[Axis], operands: int) -> Launch:
    (panels, places), (far, near) = _cut(kept, PANEL), _cut(eliminated, NEAR)
    offsets = tuple(
        Offsets(_walk(panels, k), _narrow(_walk(places, k)), _walk(far, k), _narrow(_walk(near, k)))
        for k in range(1, operands + 1)
    )
    return Launch(over_entries, _entries(kept), _entries(places), _entries(near), _entries(far), offsets)


def _walk(axes: Sequence[Axis], k: int) -> Integers:
    at = np.zeros(1, dtype=np.int64)
    for axis in axes:
        at = (at[:, None] + axis[k] * np.arange(axis[0])[None, :]).reshape(-1)
    return at


def _narrow(offsets: Integers) -> Integers:
    if offsets.size and int(offsets.max()) > np.iinfo(np.int32).max:
        raise OverflowError(f"found an offset of {int(offsets.max()):,} inside a panel, the GPU counts to 2^31")
    return offsets.astype(np.int32)


def record(
    launch: Launch, out: int, extremes: int, power: float, adds: bool, operands: Sequence[tuple[int, ...]]
) -> npt.NDArray[np.int64]:
    """Return the struct `Reduction`.

    extremes: address of the two words that are raised, 0 for none. operands: addresses of table, panels, places, far
    and near, and the bits of its scale.
    """
    words = np.zeros(len(FIELDS) + MOST_OPERANDS * len(OPERAND_FIELDS), dtype=np.int64)
    numbers = (out, extremes, launch.entries, launch.panel, launch.near_terms, launch.far_terms, len(operands))
    words[: len(numbers)] = numbers
    words[len(numbers)] = bits_of(power)
    words[len(numbers) + 1] = int(adds)
    for k, fields in enumerate(operands):
        start = len(FIELDS) + k * len(OPERAND_FIELDS)
        words[start : start + len(OPERAND_FIELDS)] = fields
    return words


def bits_of(number: float) -> int:
    """Return the bits of a double as an integer."""
    return int(np.float64(number).view(np.int64))
