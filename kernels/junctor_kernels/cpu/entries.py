"""Contractions of tables without a case axis, or with a short one: vectors and threads go over entries.

    out[s] = sum over r of  prod over k of  table_k[A_k[s] + R_k[r]]

Main functions: `reduce` and `reduce_entries`, called by the NumPy backend and the out-of-core tasks; `panels` has the
loops. Packing as in Goto and van de Geijn, Anatomy of high-performance matrix multiplication, ACM TOMS 34(3), 2008.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from operator import mul
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.panels import ANYWHERE, NEIGHBOURS, SAME, PanelWalk, reduce_panels
from junctor_kernels.cpu.vectors import BYTES
from junctor_kernels.tables import reference
from junctor_kernels.tables.axes import Contraction, Strides
from junctor_kernels.tables.reference import Algebra

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]

# The kept entries are cut into panels. Offsets are tabulated for the entries of one panel and for a fast (near) and a
# slow (far) part of the terms, never for a clique.
# Most entries of a panel: 32 KiB of doubles, about a first-level cache.
PANEL = 4096
# Least entries of a panel where several threads share the work.
LEAST_PANEL = 256
# Most terms of the fast part, and of the slow part.
NEAR = 64
FAR = 4096
# Where fewer than LEAST_KEPT entries are kept, some eliminated axes are kept at first, up to MOST_KEPT entries, and
# summed afterwards: otherwise vectors and threads would be idle.
LEAST_KEPT = 4096
MOST_KEPT = 1 << 16
# A panel copies (packs) the part of an operand that its vectors read so many times or more ...
COPY_FROM = 4
# ... unless the copies of all operands take more bytes than this.
COPY_BYTES = 1 << 22
# Multiply-adds that pay for the start of a thread.
THREADED = 1 << 20
# Multiply-adds below which NumPy is faster than the preparation of a walk.
PREPARED = 1 << 13
# Bytes of cached walks.
REMEMBERED_BYTES = 1 << 23


def reduce(what: Contraction, operands: Sequence[Array], algebra: Algebra, threads: int = 1) -> Array:
    """Contract `operands` to a table [kept entries, cases], as `reference.reduce` does.

    what: the contraction.
    operands: arrays [entries, cases] or [entries, 1] in the order of `what.operands`; cases are an axis like others.
    algebra: semiring and number format.
    threads: number of threads.
    """
    cases = max((operand.shape[1] for operand in operands), default=1)
    operations = what.kept_entries * what.eliminated_entries * cases * len(operands)
    if operations < PREPARED:
        return reference.reduce(what, operands, algebra)
    # An axis of one case would become the innermost one, and vectors would gather neighbouring entries one by one.
    axis = (cases,) if cases > 1 else ()
    tables = [
        (
            np.ascontiguousarray(operand),
            (
                *(stride * width for stride in strides.kept),
                *(int(width > 1) for _ in axis),
                *(stride * width for stride in strides.eliminated),
            ),
        )
        for operand, strides in zip(operands, what.operands, strict=True)
        for width in operand.shape[1:]
    ]
    sizes = (*what.kept, *axis, *what.eliminated)
    out = np.empty((what.kept_entries, cases), algebra.dtype)
    return reduce_entries(sizes, len(what.kept) + len(axis), tables, out, algebra.name, threads)


def reduce_entries(
    sizes: Sequence[int],
    kept: int,
    operands: Sequence[tuple[Array, Sequence[int]]],
    out: Array,
    algebra: str,
    threads: int = 1,
    accumulate: bool = False,
) -> Array:
    """Contract operands into `out` and return it: sums or maxima of products, or of exponentials of sums.

    sizes: of all axes, the kept ones first.
    kept: number of kept axes.
    operands: tables, each C-contiguous, with a stride in entries for every axis, 0 along axes that it does not have.
    out: C-contiguous, of all kept entries.
    algebra: its name; all tables have its dtype.
    threads: number of threads; results do not depend on it.
    accumulate: whether results are added to `out`.
    Raises ValueError where a table has another dtype or is not contiguous.
    """
    semiring = reference.ALGEBRAS[algebra]
    for table in (out, *(table for table, _ in operands)):
        if table.dtype != semiring.dtype or not table.flags.c_contiguous:
            raise ValueError(f"expected contiguous tables of {semiring.dtype}, found {table.dtype} {table.strides}")
    flat = [table.reshape(-1) for table, _ in operands]
    strides = [tuple(steps) for _, steps in operands]
    # Axes that no operand has only repeat each term.
    used = [axis for axis in range(kept, len(sizes)) if any(steps[axis] for steps in strides)]
    absent = math.prod(sizes[axis] for axis in range(kept, len(sizes)) if axis not in used)
    if absent != 1 or not operands:
        flat.append(semiring.repeat(np.full(1, semiring.one, semiring.dtype), absent))
        strides.append((0,) * len(sizes))
    axes = [*range(kept), *used]
    shape = [sizes[axis] for axis in axes]
    walks = [[steps[axis] for axis in axes] for steps in strides]
    _split_long(shape, kept, walks)
    task = _Task(tuple(shape), kept, tuple(map(tuple, walks)), semiring, threads)
    _reduce(task, flat, out.reshape(-1), accumulate)
    return out


def _split_long(sizes: list[int], kept: int, strides: list[list[int]]) -> None:
    """Split eliminated axes that are longer than the fast part of the terms, in place, where they have divisors."""
    axis = kept
    while axis < len(sizes):
        size = sizes[axis]
        part = next((part for part in range(NEAR, 1, -1) if size % part == 0), 1) if size > NEAR else 1
        if part > 1:
            sizes[axis : axis + 1] = [size // part, part]
            for steps in strides:
                steps[axis : axis + 1] = [steps[axis] * part, steps[axis]]
        # The rest of the axis may still be long.
        axis += size <= NEAR or part == 1


@dataclass(frozen=True, slots=True)
class _Task:
    """A contraction over entries.

    sizes: of all axes, each of them in some operand, the kept ones first.
    kept: number of kept axes.
    strides: in entries, of every operand.
    algebra: semiring and number format.
    threads: number of threads.
    """

    sizes: tuple[int, ...]
    kept: int
    strides: tuple[tuple[int, ...], ...]
    algebra: Algebra
    threads: int

    @property
    def entries(self) -> int:
        return math.prod(self.sizes[: self.kept])

    @property
    def terms(self) -> int:
        return math.prod(self.sizes[self.kept :])


def _reduce(task: _Task, tables: list[Array], out: Array, accumulate: bool) -> None:
    more = _also_kept(task)
    if more:
        _reduce_twice(task, more, tables, out, accumulate)
    elif task.entries < BYTES // task.algebra.dtype.itemsize:
        _reduce_few(task, tables, out, accumulate)
    else:
        for offsets, part in _slowest(task):
            _reduce_part(part, [table[at:] for table, at in zip(tables, offsets, strict=True)], out, accumulate)
            accumulate = True


def _also_kept(task: _Task) -> list[int]:
    """Return the eliminated axes, the fastest first, that make enough entries for vectors and threads."""
    entries, axes = task.entries, []
    for axis in range(len(task.sizes) - 1, task.kept - 1, -1):
        if entries < LEAST_KEPT and entries * task.sizes[axis] <= MOST_KEPT:
            entries *= task.sizes[axis]
            axes.append(axis)
    return axes[::-1]


def _reduce_twice(task: _Task, more: list[int], tables: list[Array], out: Array, accumulate: bool) -> None:
    """Keep some more axes at first, then sum over them."""
    axes = [*range(task.kept), *more]
    axes += [axis for axis in range(len(task.sizes)) if axis not in axes]
    sizes = tuple(task.sizes[axis] for axis in axes)
    strides = tuple(tuple(steps[axis] for axis in axes) for steps in task.strides)
    first = _Task(sizes, task.kept + len(more), strides, task.algebra, task.threads)
    wide = np.empty(first.entries, task.algebra.dtype)
    _reduce(first, tables, wide, False)
    # `gather` sums over the first axis.
    terms = np.ascontiguousarray(wide.reshape(task.entries, -1).T)
    task.algebra.gather(terms, out) if accumulate else np.copyto(out, task.algebra.gather(terms, None))


def _reduce_few(task: _Task, tables: list[Array], out: Array, accumulate: bool) -> None:
    # Fewer entries than lanes of a vector: NumPy.
    operands = tuple(Strides(steps[: task.kept], steps[task.kept :]) for steps in task.strides)
    what = Contraction(task.sizes[: task.kept], task.sizes[task.kept :], operands)
    sums = reference.reduce(what, [table[:, None] for table in tables], task.algebra)[:, 0]
    task.algebra.gather(sums[None], out) if accumulate else np.copyto(out, sums)


def _slowest(task: _Task) -> Iterator[tuple[tuple[int, ...], _Task]]:
    """Cut the slowest eliminated axes until tables of offsets are small; yields offsets of operands and the rest."""
    axis = task.kept
    while axis < len(task.sizes) - 1 and math.prod(task.sizes[axis:]) > NEAR * FAR:
        axis += 1
    cut, left = slice(task.kept, axis), [*range(task.kept), *range(axis, len(task.sizes))]
    strides = tuple(tuple(steps[n] for n in left) for steps in task.strides)
    part = _Task(tuple(task.sizes[n] for n in left), task.kept, strides, task.algebra, task.threads)
    for at in product(*(range(size) for size in task.sizes[cut])):
        yield tuple(sum(map(mul, at, steps[cut])) for steps in task.strides), part


def _reduce_part(task: _Task, tables: Sequence[Array], out: Array, accumulate: bool) -> None:
    walk, panels = _WALKS.walk(task.sizes, task.kept, task.strides, task.algebra.dtype.itemsize, task.threads)
    places = np.array([table.ctypes.data for table in tables], dtype=np.int64)
    logs = True if task.algebra.logs else None
    maxima = True if task.algebra.join is np.maximum else None

    # Whole panels for each thread, so that no sum depends on the number of threads.
    def work(first: int, last: int) -> None:
        room = np.empty(int(walk.copies.sum()) + BYTES, dtype=np.uint8)
        begin = room.ctypes.data + -room.ctypes.data % BYTES
        copies = begin + np.cumsum(walk.copies) - walk.copies
        reduce_panels(walk, first, last, places, copies, out, logs, maxima, accumulate)

    threads = max(1, min(task.threads, panels, task.entries * task.terms * len(tables) // THREADED))
    ends = [panels * n // threads for n in range(threads + 1)]
    # In the calling thread: no pool to start.
    if threads == 1:
        work(0, panels)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, ends[:-1], ends[1:]))


class _WalkCache:
    """Walks by their arguments: the next block of cases, or a similar network, needs them again."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._walks: dict[tuple[Any, ...], tuple[PanelWalk, int]] = {}
        self._bytes = 0

    def walk(self, *of: Any) -> tuple[PanelWalk, int]:
        """Return a walk and its panels."""
        entry = self._walks.get(of)
        if entry is None:
            entry = panel_walk(*of)
            taken = sum(array.nbytes for array in entry[0])
            if self._bytes + taken > REMEMBERED_BYTES:
                self.forget()
            self._walks[of] = entry
            self._bytes += taken
        return entry


_WALKS = _WalkCache()


def forget() -> None:
    """Empty the cache of walks: the next contractions are prepared as if they were the first (for measurements)."""
    _WALKS.forget()


def panel_walk(
    sizes: tuple[int, ...], kept: int, strides: tuple[tuple[int, ...], ...], itemsize: int, threads: int
) -> tuple[PanelWalk, int]:
    """Return the walk of a contraction and its number of panels.

    sizes, kept, strides: as in `_Task`.
    itemsize: bytes of a number.
    threads: number of threads, for the size of panels.
    """
    line, within, part = _cut(sizes[:kept], threads)
    size = sizes[line] if line < kept else 1
    panels = -(-size // part)
    width, steps = BYTES // itemsize, [np.array(entries, dtype=np.int64) * itemsize for entries in strides]
    panel = (part, *sizes[line + 1 : kept])
    starts = _starts(panel, width)
    lanes = [_offsets(panel, step[line:kept])[starts[:, None] + np.arange(width)] for step in steps]
    split = _fast(sizes, kept)
    far = [_offsets(sizes[kept:split], step[kept:split]) for step in steps]
    near = [_offsets(sizes[split:], step[split:]) for step in steps]
    room = COPY_BYTES // len(steps)
    reads = [_read(*parts, itemsize, room) for parts in zip(lanes, far, near, strict=True)]
    walk = PanelWalk(
        np.array(sizes[:line], dtype=np.int64),
        np.array([step[:line] for step in steps]).reshape(len(steps), line),
        np.array([size, part, panels, within]),
        np.array([step[line] if line < kept else 0 for step in steps], dtype=np.int64),
        starts,
        np.array([read.operand for read in reads], dtype=np.int64),
        np.array(lanes) if any(read.operand[0] == ANYWHERE for read in reads) else np.array(lanes)[:, :, :1].copy(),
        np.array(far),
        np.array(near),
        np.array([read.vectors for read in reads]),
        np.array([read.far for read in reads]),
        np.array([read.near for read in reads]),
        np.array([np.resize(read.samples, len(starts)) for read in reads]),
        np.array([read.bytes for read in reads], dtype=np.int64),
    )
    return walk, math.prod(sizes[:line]) * panels


def _cut(sizes: Sequence[int], threads: int) -> tuple[int, int, int]:
    """Return the axis along which panels are cut, the entries within one step of it, and the steps of a panel."""
    # Four panels a thread at least, so that no thread waits long for the last one.
    most = min(PANEL, max(LEAST_PANEL, math.prod(sizes) // (4 * threads)))
    line, within = len(sizes), 1
    while line > 0 and within * sizes[line - 1] <= most:
        line -= 1
        within *= sizes[line]
    # All entries fit one panel.
    if line == 0:
        return 0, within // sizes[0], sizes[0]
    line -= 1
    return line, within, max(1, most // within)


def _starts(panel: Sequence[int], width: int) -> Integers:
    """Return the first entry of each vector of a panel; along a long last axis no vector crosses the end of a row."""
    entries = math.prod(panel)
    row = panel[-1] if panel[-1] >= 2 * width else entries
    # The last vector of a row overlaps the one before it instead of crossing the end.
    along = np.minimum(np.arange(-(-row // width)) * width, row - width)
    return (np.arange(entries // row)[:, None] * row + along).reshape(-1)


def _fast(sizes: Sequence[int], kept: int) -> int:
    """Return the first axis of the fast part of the terms."""
    axis = max(kept, len(sizes) - 1)
    while axis > kept and math.prod(sizes[axis - 1 :]) <= NEAR:
        axis -= 1
    return axis


def _offsets(sizes: Sequence[int], strides: Integers) -> Integers:
    """Return the offsets of all entries of some axes, in C order."""
    offsets = np.zeros(1, dtype=np.int64)
    for size, stride in zip(sizes, strides, strict=True):
        offsets = (offsets[:, None] + np.arange(size) * stride).reshape(-1)
    return offsets


@dataclass(frozen=True, slots=True)
class _Read:
    """How a panel reads an operand: one row of each array of a `PanelWalk`."""

    operand: tuple[int, int, int, int]
    vectors: Integers
    far: Integers
    near: Integers
    samples: Integers
    bytes: int


def _read(lanes: Integers, far: Integers, near: Integers, itemsize: int, most: int) -> _Read:
    """Choose how an operand is read.

    lanes: int64 [vectors, lanes], byte offsets.
    far, near: int64 [terms], byte offsets of the slow and the fast part.
    itemsize: bytes of a number.
    most: largest copy in bytes.
    """
    vectors, width = lanes.shape
    apart = lanes - lanes[:, :1]
    together = not apart.any()
    mode = SAME if together else NEIGHBOURS if (apart == np.arange(width) * itemsize).all() else ANYWHERE
    samples, slots = equal_rows(lanes, alike=bool((apart == apart[:1]).all()))
    terms, unit = len(far) * len(near), itemsize if together else itemsize * width
    taken = len(samples) * terms * unit
    if terms < COPY_FROM or taken > most or COPY_FROM * taken > vectors * width * terms * itemsize:
        return _Read((mode, 0, mode, 0), lanes[:, 0].copy(), far, near, samples, 0)
    far_read, near_read = np.arange(len(far)) * len(near) * unit, np.arange(len(near)) * unit
    read = SAME if together else NEIGHBOURS
    room = -(-taken // BYTES) * BYTES + BYTES
    return _Read((mode, 1, read, len(samples)), slots * terms * unit, far_read, near_read, samples, room)


def equal_rows(lanes: Integers, alike: bool) -> tuple[Integers, Integers]:
    """Return the distinct rows (index of the first of each), and the index of every row among them.

    alike: whether rows differ by their first offset only.
    """
    # Hashes sort several times as fast as rows; where different rows collide, the rows are sorted after all.
    sums = lanes[:, 0] if alike else lanes @ (2 * np.arange(lanes.shape[1], dtype=np.int64) + 1) ** 5
    _, samples, slots = np.unique(sums, return_index=True, return_inverse=True)
    if not alike and (lanes[samples[slots]] != lanes).any():
        _, samples, slots = np.unique(lanes, axis=0, return_index=True, return_inverse=True)
    return samples, slots.reshape(-1)
