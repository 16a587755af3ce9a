"""Tables of probabilities as pictures, of any size. Main function: `before_and_after`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from junctor.hmm.model import SparseMatrix
from junctor.runs.report.pictures import WIDTH, blues, drawing, percent, short, svg, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import PowerNorm

Floats = npt.NDArray[np.float64]
Names = Sequence[str] | None
# Cells of a picture on each side, and rows or columns that have labels of their own, of so many letters.
MOST_CELLS, MOST_LABELS, LETTERS = 128, 12, 8
# Inches: of a panel, its height at the least and the most; of a line and of a letter of labels; around panels.
PANEL, LEAST, MOST, LINE, LETTER = 1.15, 0.3, 2.0, 0.17, 0.075
ABOVE, BELOW, LEFT, GAP, BAR = 0.42, 0.42, 0.72, 0.14, 0.07


def before_and_after(
    title: str,
    tables: tuple[Floats | SparseMatrix, Floats | SparseMatrix],
    rows: Names,
    columns: Names,
    what: str,
) -> str:
    """Return two tables of probabilities side by side; the darker, the larger. Zeros are white.

    title: above both.
    tables: before and after, [rows, columns]; of large ones a cell has the largest probability of several.
    rows, columns: their names; None for numbers.
    what: what columns are.
    """
    from matplotlib.colors import PowerNorm

    before, after = (coarse(table) for table in tables)
    largest = max(float(before.max(initial=0.0)), float(after.max(initial=0.0))) or 1.0
    # Roots: hundredths of the largest probability are seen as well.
    norm = PowerNorm(0.5, 0.0, largest)
    shape = tables[0].shape
    height = min(MOST, max(LEAST, PANEL * shape[0] / shape[1], LINE * shape[0] * (1 < shape[0] <= MOST_LABELS)))
    low = BELOW + LETTER * max((len(each) for each in _labels(shape[1], columns)), default=0)
    whole = height + ABOVE + low
    with drawing(whole) as figure:
        figure.text(0.02, 1 - 0.14 / whole, title, fontweight="bold", va="center")
        for number, (name, table) in enumerate((("before", before), ("after", after))):
            left = LEFT + number * (PANEL + GAP)
            axes = figure.add_axes((left / WIDTH, low / whole, PANEL / WIDTH, height / whole))
            _draw(axes, table, shape, norm)
            axes.set_title(name, fontsize=9, pad=3)
            axes.set_xlabel(what, fontsize=8.5)
            _label(axes.xaxis, shape[1], columns, 90)
            _label(axes.yaxis, shape[0], rows, 0)
            if number:
                axes.tick_params(axis="y", labelleft=False)
        bar = figure.add_axes(((LEFT + 2 * PANEL + 1.7 * GAP) / WIDTH, low / whole, BAR / WIDTH, height / whole))
        _scale(bar, norm, largest)
        return svg(figure, f"{title}: before and after")


def coarse(table: Floats | SparseMatrix) -> Floats:
    """Return a table of at most MOST_CELLS rows and columns, each entry the largest of a block."""
    steps = [-(-size // MOST_CELLS) for size in table.shape]
    if isinstance(table, SparseMatrix):
        found = np.zeros([-(-size // step) for size, step in zip(table.shape, steps, strict=True)])
        np.maximum.at(found, (table.rows // steps[0], table.columns // steps[1]), table.values)
        return found
    for axis, step in enumerate(steps):
        table = np.maximum.reduceat(table, np.arange(0, table.shape[axis], step), axis=axis)
    return table


def _draw(axes: Axes, table: Floats, shape: tuple[int, ...], norm: PowerNorm) -> None:
    steps = [-(-size // MOST_CELLS) for size in shape]
    # Blocks at the ends may be cut: the picture goes on behind the edge.
    right, bottom = (len_ * step - 0.5 for len_, step in zip(table.shape[::-1], steps[::-1], strict=True))
    cells = np.ma.masked_equal(table, 0.0)
    extent = (-0.5, right, bottom, -0.5)
    axes.imshow(cells, cmap=blues(), norm=norm, extent=extent, aspect="auto", interpolation="none")
    axes.set_xlim(-0.5, shape[1] - 0.5)
    axes.set_ylim(shape[0] - 0.5, -0.5)
    for side in axes.spines.values():
        side.set_visible(True)


def _labels(size: int, names: Names) -> list[str]:
    """Return the labels of rows or columns, none for numbers and of too many."""
    return [short(name, LETTERS) for name in names] if names is not None and size <= MOST_LABELS else []


def _label(axis: Axis, size: int, names: Names, rotation: float) -> None:
    labels = _labels(size, names)
    axis.set_tick_params(length=0 if labels else 2, labelsize=8)
    if labels:
        axis.set_ticks(range(size), labels, rotation=rotation)
    elif size == 1:
        axis.set_ticks([])
    else:
        whole_numbers(axis, 4)


def _scale(axes: Axes, norm: PowerNorm, largest: float) -> None:
    values = np.linspace(0.0, largest, 65)[1:, None]
    axes.imshow(values, cmap=blues(), norm=norm, extent=(0, 1, 0, largest), aspect="auto", origin="lower")
    axes.set_xticks([])
    axes.yaxis.tick_right()
    axes.set_yticks([0.0, largest], ["0", percent(float(f"{largest:.2g}"))], fontsize=8)
    axes.tick_params(axis="y", length=0, pad=2)
    for side in axes.spines.values():
        side.set_visible(False)
