"""Features of one contraction of a task on a CPU: the loops of NumPy or compiled code, counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from junctor_kernels.tables.axes import Contraction

# As in `junctor_kernels.entries`, which loads a compiler: entries below which some terms are kept at first and those
# that this makes at the most, entries of a panel, how often it reads what it copies first, bytes of those copies, terms
# of a call. Bytes of a vector.
LEAST_KEPT, MOST_KEPT, PANEL, COPY_FROM, COPY_BYTES, MOST_TERMS = 4096, 1 << 16, 4096, 4, 1 << 22, 1 << 18
VECTOR_BYTES = 64
NUMPY_WORK = (
    # Blocks, and products of two tables in all of them; inner loops of those.
    *("blocks", "products", "runs"),
    # Entries that are sums of one term; terms of others, those that are copied first, and inner loops of their sums;
    # entries whose terms lie side by side, which inner loops go along.
    *("taken", "summed", "copied", "lines", "folded"),
)
COMPILED_WORK = (
    # Calls, those that nothing was prepared for, and entries whose places are tabulated then.
    *("calls", "prepared", "tabulated"),
    # Entries with terms that are kept at first; terms of operands that lie in one place, side by side, or anywhere.
    *("wide", "same", "near", "apart"),
)


def numpy_work(what: Contraction, scratch: int) -> dict[str, int]:
    """Return NUMPY_WORK of a contraction in blocks of `scratch` entries, as `junctor_kernels.reference` does it."""
    kept, boxes = _box(what.kept, scratch)
    used = _used(what)
    eliminated, more = _box([what.eliminated[n] for n in used], max(1, scratch // math.prod(kept)))
    sizes, blocks = (*eliminated, *kept), boxes * more
    axes = [axis for axis, size in enumerate(sizes) if size > 1]
    tables = [(*(operand.eliminated[n] for n in used), *operand.kept) for operand in what.operands]
    runs, made = 0, tables[0] if tables else (0,) * len(sizes)
    order = sorted((axis for axis in axes if made[axis]), key=lambda axis: -made[axis])
    for table in tables[1:]:
        order = _laid_out([axis for axis in axes if made[axis] or table[axis]], (made, table))
        runs += _entries(sizes, order) // _run(sizes, order, (made, table))
        made = _strides(sizes, order)
    order = [*(axis for axis in axes if axis not in order), *order]
    products = max(0, len(tables) - 1)
    counts = {"blocks": 1, "products": products, "runs": runs, **_sum_work(sizes, order, len(eliminated))}
    return {name: blocks * count for name, count in counts.items()}


def _box(sizes: Sequence[int], most: int) -> tuple[tuple[int, ...], int]:
    """Return the sizes of the boxes of at most so many entries that an index space is cut into, and their number."""
    axis, within = len(sizes), 1
    while axis > 0 and within * sizes[axis - 1] <= most:
        axis -= 1
        within *= sizes[axis]
    if axis == 0:
        return tuple(sizes), 1
    step = min(sizes[axis - 1], max(1, most // within))
    number = math.prod(sizes[: axis - 1]) * -(-sizes[axis - 1] // step)
    return (*(1,) * (axis - 1), step, *sizes[axis:]), number


def _used(what: Contraction) -> list[int]:
    """Return the eliminated axes that some operand has."""
    return [n for n in range(len(what.eliminated)) if any(operand.eliminated[n] for operand in what.operands)]


def _laid_out(axes: Sequence[int], tables: Sequence[Sequence[int]]) -> list[int]:
    """Return the axes in the order in which NumPy lays out a product: in theirs, unless all tables have it otherwise.

    tables: a stride for every axis, 0 for those that a table does not have.
    """
    order: list[int] = []
    for axis in reversed(axes):
        place = len(order)
        for at in reversed(range(len(order))):
            both = [(table[axis], table[order[at]]) for table in tables if table[axis] and table[order[at]]]
            if any(slow >= fast for slow, fast in both):
                break
            place = at if both else place
        order.insert(place, axis)
    return order[::-1]


def _run(sizes: Sequence[int], order: Sequence[int], tables: Sequence[Sequence[int]]) -> int:
    """Return the entries that an inner loop goes along: of the fastest axes that every table walks through as one."""
    run, steps = 1, [table[order[-1]] if order else 0 for table in tables]
    for axis in reversed(order):
        if any(table[axis] != step * run for table, step in zip(tables, steps, strict=True)):
            break
        run *= sizes[axis]
    return run


def _strides(sizes: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    strides, step = [0] * len(sizes), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= sizes[axis]
    return tuple(strides)


def _sum_work(sizes: Sequence[int], order: Sequence[int], eliminated: int) -> dict[str, int]:
    """Return what summing a block over its first `eliminated` axes takes; order: in which the block lies."""
    counts = dict.fromkeys(("taken", "summed", "copied", "lines", "folded"), 0)
    entries, kept = math.prod(sizes), math.prod(sizes[eliminated:])
    if entries == kept:
        return counts | {"taken": kept}
    places = [order.index(axis) for axis in sorted(order) if axis < eliminated]
    within = _entries(sizes, order[places[-1] + 1 :])
    if any(after != before + 1 for before, after in pairwise(places)):
        counts["copied"], within = entries, kept
    kind, count = ("folded", kept) if within == 1 else ("lines", entries // within)
    return counts | {"summed": entries, kind: count}


def _entries(sizes: Sequence[int], axes: Sequence[int]) -> int:
    return math.prod(sizes[axis] for axis in axes)


def compiled_work(what: Contraction, itemsize: int) -> dict[str, int]:
    """Return COMPILED_WORK of a contraction, as `junctor_kernels.entries` does it."""
    kept, panel, _, terms = _panels(what)
    counts = dict.fromkeys(COMPILED_WORK, 0)
    counts["calls"] = counts["prepared"] = 1
    counts["tabulated"] = math.prod(panel) * len(what.operands)
    counts["wide"] = kept if kept > what.kept_entries else 0
    for kind in reads(what, itemsize):
        counts[kind] += kept * terms
    return counts


def _panels(what: Contraction) -> tuple[int, tuple[int, ...], list[tuple[int, ...]], int]:
    """Return the entries that are kept at first, the axes of a panel, strides along those, the terms of an entry."""
    more, kept, terms = list[int](), what.kept_entries, 1
    for n in reversed(_used(what)):
        if kept < LEAST_KEPT and kept * what.eliminated[n] <= MOST_KEPT:
            kept *= what.eliminated[n]
            more.insert(0, n)
        else:
            terms *= what.eliminated[n]
    # One axis more, so that there is one where nothing is kept.
    sizes = (1, *what.kept, *(what.eliminated[n] for n in more))
    tables = [(0, *operand.kept, *(operand.eliminated[n] for n in more)) for operand in what.operands]
    box, _ = _box(sizes, PANEL)
    line = next((axis for axis, size in enumerate(box) if size > 1), len(box) - 1)
    return kept, box[line:], [table[line:] for table in tables], terms


def reads(what: Contraction, itemsize: int) -> list[str]:
    """Return how the vectors of a panel find each operand: "same", "near" or "apart"; what is copied first is near."""
    _, panel, tables, terms = _panels(what)
    width, entries, terms = VECTOR_BYTES // itemsize, math.prod(panel), min(terms, MOST_TERMS)
    row = panel[-1] if panel[-1] >= 2 * width else entries
    room = COPY_BYTES // (max(1, len(tables)) * itemsize)
    kinds = []
    for strides in tables:
        kind, distinct = _lies(panel, strides, width, row)
        copied = terms >= COPY_FROM and COPY_FROM * distinct <= entries and distinct * terms <= room
        kinds.append("near" if kind == "apart" and copied else kind)
    return kinds


def _lies(panel: Sequence[int], strides: Sequence[int], width: int, row: int) -> tuple[str, int]:
    """Return how vectors find an operand where it lies, and the entries of those that differ.

    width: entries of a vector. row: entries at whose end a vector ends, too.
    """
    absent = together = distinct = within = 1
    for size, step in zip(reversed(panel), reversed(strides), strict=True):
        absent *= size if absent == within and not step else 1
        together *= size if together == within and step == within else 1
        distinct *= size if step or (within % width and within < row) else 1
        within *= size
    if absent % width == 0 or absent >= row:
        return "same", distinct
    return "near" if together % width == 0 or together >= row else "apart", distinct
