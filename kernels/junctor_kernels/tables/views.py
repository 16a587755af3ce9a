"""Strides of a chunk of a stored table in a separator: plain integers that every backend turns into its own loops.

Main class: View; called by `junctor.cliques`. A chunk is a contiguous box of the table: its leading variables are
fixed, one has a range of states, the rest have all states.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from junctor_kernels.tables.axes import row_major

Box = tuple[tuple[int, int], ...]


# The offset of an entry in a separator is a sum of (digit * step) over the axes of the chunk, with step 0 along
# variables that the separator does not have. Neighbouring axes that act as one are merged.
class Axis(NamedTuple):
    """Entries along an axis, and the offset of one step in the separator."""

    size: int
    step: int


class View(NamedTuple):
    """Offset of a chunk in a separator, and its axes there, at least one, the innermost first."""

    base: int
    axes: tuple[Axis, ...]

    @property
    def entries(self) -> int:
        """Entries of the chunk."""
        return math.prod(axis.size for axis in self.axes)

    def kept(self) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
        """Return the axes that the separator has, by their steps in the table and by those in the separator."""
        pairs = [(axis, step) for axis, step in zip(self.axes, self._table_steps(), strict=True) if axis.step]
        return tuple(Axis(axis.size, step) for axis, step in pairs), tuple(axis for axis, _ in pairs)

    def eliminated(self) -> tuple[Axis, ...]:
        """Return the axes that the separator does not have, by their steps in the table."""
        steps = self._table_steps()
        return tuple(Axis(axis.size, step) for axis, step in zip(self.axes, steps, strict=True) if not axis.step)

    def run(self) -> int:
        """Return the number of neighbouring entries that share a separator entry; 0 unless they form runs."""
        # Runs exist where the separator's variables are the most significant ones, in its order.
        if len(self.axes) == 1:
            size, step = self.axes[0]
            return {0: size, 1: 1}.get(step, 0)
        return self.axes[0].size if len(self.axes) == 2 and self.axes[0].step == 0 and self.axes[1].step == 1 else 0

    def _table_steps(self) -> list[int]:
        steps = [1]
        for axis in self.axes[:-1]:
            steps.append(steps[-1] * axis.size)
        return steps


def whole(shape: Sequence[int]) -> Box:
    """Return the box that is a whole table."""
    return tuple((0, size) for size in shape)


def boxes(shape: Sequence[int], most: int) -> Iterator[Box]:
    """Yield boxes of at most `most` entries (at least 1) that make up a table, in the order of memory."""
    # As many whole inner axes as fit, then a range of the next one: boxes are contiguous.
    inner, axis = 1, len(shape)
    while axis and inner * shape[axis - 1] <= most:
        axis -= 1
        inner *= shape[axis]
    if not axis:
        yield whole(shape)
        return
    # `most` is at least `inner` here, since the loop above stopped at the next axis.
    step = most // inner
    rest = whole(shape[axis:])
    for outer in product(*(range(size) for size in shape[: axis - 1])):
        fixed = tuple((at, at + 1) for at in outer)
        for first in range(0, shape[axis - 1], step):
            yield (*fixed, (first, min(first + step, shape[axis - 1])), *rest)


def place(shape: Sequence[int], box: Box) -> tuple[int, int]:
    """Return offset and number of entries of a box in its table."""
    start = 0
    for size, (first, _) in zip(shape, box, strict=True):
        start = start * size + first
    return start, math.prod(last - first for first, last in box)


def view(layout: Sequence[int], box: Box, separator: Sequence[int], sizes: Sequence[int]) -> View:
    """Return the view of a box of a table in a separator.

    layout: variables of the table, the most significant first.
    box: range of states of each.
    separator: variables of the separator, the most significant first.
    sizes: variable -> number of states.
    """
    steps = row_major(separator, sizes)
    base, axes = 0, [Axis(1, 0)]
    for v, (first, last) in zip(reversed(layout), reversed(box), strict=True):
        step = steps.get(v, 0)
        base += first * step
        inner = axes[-1]
        # A fixed variable only moves the base.
        if last - first == 1:
            continue
        if inner.size == 1 or step == inner.step * inner.size:
            axes[-1] = Axis(inner.size * (last - first), inner.step if inner.size > 1 else step)
        else:
            axes.append(Axis(last - first, step))
    return View(base, tuple(axes))
