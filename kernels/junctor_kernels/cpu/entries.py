"""Contractions of tables without a case axis, or with a short one: vectors and threads go over entries.

    out[s] = sum over r of  prod over k of  table_k[A_k[s] + R_k[r]]

The kept entries are cut into panels of at most some thousand. Offsets are kept for the entries of one panel and for a
fast and a slow part of the terms, never for a clique. Where the vectors of a panel read an operand several times, the
panel copies that part of it first, with the terms of a vector side by side (Goto and van de Geijn, Anatomy of
high-performance matrix multiplication, ACM TOMS 34(3), 2008).
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

# Entries of a panel, and the fewest that make one where there are several threads.
PANEL, LEAST_PANEL = 4096, 256
# Terms of the fast part, of the slow part, and so of one call.
NEAR, FAR = 64, 4096
# Where fewer entries are kept, some of the terms are kept at first, and summed when they are few.
LEAST_KEPT, MOST_KEPT = 4096, 1 << 16
# A panel copies what it reads so many times, if that takes no more bytes than these for all operands together.
COPY_FROM, COPY_BYTES = 4, 1 << 22
# Operations that are worth the start of a thread, and from which the preparation is worth it.
THREADED, PREPARED = 1 << 20, 1 << 13
# Bytes of walks that are remembered.
REMEMBERED_BYTES = 1 << 23
ALGEBRAS = {algebra.name: algebra for algebra in (reference.DOUBLE, reference.SINGLE, reference.LOG)}


def reduce(what: Contraction, operands: Sequence[Array], algebra: Algebra, threads: int = 1) -> Array:
    """Contract `operands` to a table [kept entries, cases], as `reference.reduce` does.

    operands: arrays [entries, cases] or [entries, 1] in the order of `what.operands`. Cases are an axis like others.
    """
    cases = max((operand.shape[1] for operand in operands), default=1)
    operations = what.kept_entries * what.eliminated_entries * cases * len(operands)
    if operations < PREPARED or algebra.name not in ALGEBRAS:
        return reference.reduce(what, operands, algebra)
    # Behind an axis of one case vectors would run across the ends of the one before, and gather what lies side by side.
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
    """Contract operands into `out` and return it: sums of products, or logarithms of sums of exponentials of sums.

    sizes: of all axes, the `kept` kept ones first, then those that are eliminated. operands: tables, each C-contiguous,
    with a stride in entries for every axis, 0 along those that it does not have. out: C-contiguous, of all kept
    entries. algebra: "double", "single" or "log"; all tables have its dtype. accumulate: `out` is added to rather
    than written. Whatever the number of threads, the numbers are the same. Raises ValueError where a table is of
    another dtype or not contiguous.
    """
    semiring = ALGEBRAS[algebra]
    for table in (out, *(table for table, _ in operands)):
        if table.dtype != semiring.dtype or not table.flags.c_contiguous:
            raise ValueError(f"expected contiguous tables of {semiring.dtype}, found {table.dtype} {table.strides}")
    flat = [table.reshape(-1) for table, _ in operands]
    strides = [tuple(each) for _, each in operands]
    used = [axis for axis in range(kept, len(sizes)) if any(each[axis] for each in strides)]
    absent = math.prod(sizes[axis] for axis in range(kept, len(sizes)) if axis not in used)
    if absent != 1 or not operands:
        flat.append(semiring.repeat(np.full(1, semiring.one, semiring.dtype), absent))
        strides.append((0,) * len(sizes))
    axes = [*range(kept), *used]
    shape = [sizes[axis] for axis in axes]
    walks = [[each[axis] for axis in axes] for each in strides]
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
            for each in strides:
                each[axis : axis + 1] = [each[axis] * part, each[axis]]
        # What is left of the axis may still be long.
        axis += size <= NEAR or part == 1


@dataclass(frozen=True, slots=True)
class _Task:
    """Axes of a contraction, all of them in some operand, and what to do it with."""

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
    strides = tuple(tuple(each[axis] for axis in axes) for each in task.strides)
    first = _Task(sizes, task.kept + len(more), strides, task.algebra, task.threads)
    wide = np.empty(first.entries, task.algebra.dtype)
    _reduce(first, tables, wide, False)
    terms = np.ascontiguousarray(wide.reshape(task.entries, -1).T)
    task.algebra.gather(terms, out) if accumulate else np.copyto(out, task.algebra.gather(terms, None))


def _reduce_few(task: _Task, tables: list[Array], out: Array, accumulate: bool) -> None:
    operands = tuple(Strides(each[: task.kept], each[task.kept :]) for each in task.strides)
    what = Contraction(task.sizes[: task.kept], task.sizes[task.kept :], operands)
    found = reference.reduce(what, [table[:, None] for table in tables], task.algebra)[:, 0]
    task.algebra.gather(found[None], out) if accumulate else np.copyto(out, found)


def _slowest(task: _Task) -> Iterator[tuple[tuple[int, ...], _Task]]:
    """Cut the slowest eliminated axes until the tables of the terms are small: offsets of operands, what is left."""
    axis = task.kept
    while axis < len(task.sizes) - 1 and math.prod(task.sizes[axis:]) > NEAR * FAR:
        axis += 1
    cut, left = slice(task.kept, axis), [*range(task.kept), *range(axis, len(task.sizes))]
    strides = tuple(tuple(each[n] for n in left) for each in task.strides)
    part = _Task(tuple(task.sizes[n] for n in left), task.kept, strides, task.algebra, task.threads)
    for at in product(*(range(size) for size in task.sizes[cut])):
        yield tuple(sum(map(mul, at, each[cut])) for each in task.strides), part


def _reduce_part(task: _Task, tables: Sequence[Array], out: Array, accumulate: bool) -> None:
    walk, panels = _REMEMBERED.walk(task.sizes, task.kept, task.strides, task.algebra.dtype.itemsize, task.threads)
    places = np.array([table.ctypes.data for table in tables], dtype=np.int64)
    logs = True if task.algebra is reference.LOG else None

    def work(first: int, last: int) -> None:
        room = np.empty(int(walk.copies.sum()) + BYTES, dtype=np.uint8)
        begin = room.ctypes.data + -room.ctypes.data % BYTES
        copies = begin + np.cumsum(walk.copies) - walk.copies
        reduce_panels(walk, first, last, places, copies, out, logs, accumulate)

    threads = max(1, min(task.threads, panels, task.entries * task.terms * len(tables) // THREADED))
    ends = [panels * n // threads for n in range(threads + 1)]
    if threads == 1:
        work(0, panels)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, ends[:-1], ends[1:]))


class _Remembered:
    """Walks by what they are made of: the next block of cases, or the next network like this one, has them again."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._walks: dict[tuple[Any, ...], tuple[PanelWalk, int]] = {}
        self._bytes = 0

    def walk(self, *of: Any) -> tuple[PanelWalk, int]:
        """Return a walk and its panels."""
        found = self._walks.get(of)
        if found is None:
            found = panel_walk(*of)
            taken = sum(array.nbytes for array in found[0])
            if self._bytes + taken > REMEMBERED_BYTES:
                self.forget()
            self._walks[of] = found
            self._bytes += taken
        return found


_REMEMBERED = _Remembered()


def forget() -> None:
    """Forget how contractions are walked through: the next ones are prepared as if they were the first."""
    _REMEMBERED.forget()


def panel_walk(
    sizes: tuple[int, ...], kept: int, strides: tuple[tuple[int, ...], ...], itemsize: int, threads: int
) -> tuple[PanelWalk, int]:
    """Return how a contraction is walked through, and how many panels it has."""
    line, within, part = _cut(sizes[:kept], threads)
    size = sizes[line] if line < kept else 1
    panels = -(-size // part)
    width, steps = BYTES // itemsize, [np.array(each, dtype=np.int64) * itemsize for each in strides]
    panel = (part, *sizes[line + 1 : kept])
    starts = _starts(panel, width)
    lanes = [_offsets(panel, each[line:kept])[starts[:, None] + np.arange(width)] for each in steps]
    split = _fast(sizes, kept)
    far = [_offsets(sizes[kept:split], each[kept:split]) for each in steps]
    near = [_offsets(sizes[split:], each[split:]) for each in steps]
    room = COPY_BYTES // len(steps)
    reads = [_read(*each, itemsize, room) for each in zip(lanes, far, near, strict=True)]
    walk = PanelWalk(
        np.array(sizes[:line], dtype=np.int64),
        np.array([each[:line] for each in steps]).reshape(len(steps), line),
        np.array([size, part, panels, within]),
        np.array([each[line] if line < kept else 0 for each in steps], dtype=np.int64),
        starts,
        np.array([each.operand for each in reads], dtype=np.int64),
        np.array(lanes) if any(each.operand[0] == ANYWHERE for each in reads) else np.array(lanes)[:, :, :1].copy(),
        np.array(far),
        np.array(near),
        np.array([each.vectors for each in reads]),
        np.array([each.far for each in reads]),
        np.array([each.near for each in reads]),
        np.array([np.resize(each.samples, len(starts)) for each in reads]),
        np.array([each.bytes for each in reads], dtype=np.int64),
    )
    return walk, math.prod(sizes[:line]) * panels


def _cut(sizes: Sequence[int], threads: int) -> tuple[int, int, int]:
    """Return the axis along which panels are cut, the entries within one step of it, and the steps of a panel."""
    most = min(PANEL, max(LEAST_PANEL, math.prod(sizes) // (4 * threads)))
    line, within = len(sizes), 1
    while line > 0 and within * sizes[line - 1] <= most:
        line -= 1
        within *= sizes[line]
    if line == 0:
        return 0, within // sizes[0], sizes[0]
    line -= 1
    return line, within, max(1, most // within)


def _starts(panel: Sequence[int], width: int) -> Integers:
    """Return where the vectors of a panel begin: along a long last axis none belongs to two rows."""
    entries = math.prod(panel)
    row = panel[-1] if panel[-1] >= 2 * width else entries
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
    """How a panel reads an operand: a row of each of the arrays of a `PanelWalk`."""

    operand: tuple[int, int, int, int]
    vectors: Integers
    far: Integers
    near: Integers
    samples: Integers
    bytes: int


def _read(lanes: Integers, far: Integers, near: Integers, itemsize: int, most: int) -> _Read:
    """Settle how an operand is read; lanes: int64 [vectors, lanes]. most: bytes of a copy."""
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
    """Return the first of equal rows, and for every row which of those it equals.

    alike: whether rows differ by where they begin only.
    """
    # Sums are sorted several times as fast as rows; rows that differ may have the same one by accident.
    sums = lanes[:, 0] if alike else lanes @ (2 * np.arange(lanes.shape[1], dtype=np.int64) + 1) ** 5
    _, samples, slots = np.unique(sums, return_index=True, return_inverse=True)
    if not alike and (lanes[samples[slots]] != lanes).any():
        _, samples, slots = np.unique(lanes, axis=0, return_index=True, return_inverse=True)
    return samples, slots.reshape(-1)
