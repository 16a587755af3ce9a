"""Pictures of the page of a fit. Main functions: `objectives`, `steps`, `changes` and `reliability`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from junctor.runs.report.pictures import (
    BLUE,
    DARK,
    GREY,
    ORANGE,
    Group,
    drawing,
    in_lines,
    marked,
    pages,
    percent,
    svg,
    whole_numbers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from junctor.learning.check import ReliabilityBin

HEIGHT = 2.5
# What whiskers are long, in standard errors.
WHISKER = 2.0


def objectives(traces: Sequence[npt.NDArray[np.float64]], best: int, row: str) -> str:
    """Return the objective by iteration.

    traces: float64 [iterations + 1] of each start, of a row.
    best: number of the start that is kept, drawn last.
    row: what a row is called.
    """
    with drawing(HEIGHT) as figure:
        axes = figure.add_axes((0.21, 0.18, 0.75, 0.76))
        for number, trace in enumerate(traces):
            if number != best:
                axes.plot(trace, color=GREY, linewidth=0.8)
        axes.plot(traces[best], color=BLUE, linewidth=1.6, marker="o", markersize=2.5 if len(traces[best]) < 60 else 0)
        axes.set_xlabel("iteration")
        axes.set_ylabel(f"objective of a {row}")
        whole_numbers(axes.xaxis, 5)
        axes.ticklabel_format(axis="y", useOffset=False, style="plain")
        axes.grid(axis="y", color="#e3e3e3", linewidth=0.5)
        axes.set_axisbelow(True)
        return svg(figure, "Objective by iteration")


def steps(changes: Sequence[float], tolerance: float) -> str | None:
    """Return the change of the objective by iteration on a logarithmic axis; None where there was none.

    changes: of iterations 1, 2 and so on.
    tolerance: a line; 0 has none.
    """
    shown = [(number, change) for number, change in enumerate(changes, 1) if change > 0]
    if not shown:
        return None
    with drawing(HEIGHT) as figure:
        axes = figure.add_axes((0.21, 0.18, 0.75, 0.76))
        numbers, values = zip(*shown, strict=True)
        axes.plot(numbers, values, color=BLUE, linewidth=1.2, marker="o", markersize=2.5 if len(shown) < 60 else 0)
        axes.set_yscale("log")
        if tolerance:
            axes.axhline(tolerance, color=ORANGE, linewidth=1.2, linestyle="--")
            axes.annotate(
                "tolerance",
                (0, tolerance),
                (4, 3),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                color=ORANGE,
                fontsize=8.5,
            )
        axes.set_xlabel("iteration")
        axes.set_ylabel("change")
        whole_numbers(axes.xaxis, 5)
        axes.yaxis.set_major_formatter(_scientific)
        axes.yaxis.set_minor_formatter("")
        axes.grid(axis="y", color="#e3e3e3", linewidth=0.5)
        axes.set_axisbelow(True)
        return svg(figure, "Change of the objective by iteration")


def changes(groups: Sequence[Group]) -> list[str]:
    """Return bars of probabilities: values are those after, with errors, and marks those before."""

    def draw(axes: Axes, group: Group, lines: npt.NDArray[np.float64]) -> None:
        axes.barh(lines, group.values, height=0.62, color=BLUE)
        if group.errors is not None:
            length = np.where(np.isfinite(group.errors), WHISKER * group.errors, 1.0)
            low, high = np.minimum(length, group.values), np.minimum(length, np.maximum(1.0 - group.values, 0.0))
            axes.errorbar(
                group.values, lines, xerr=[low, high], linestyle="none", color=DARK, linewidth=1.0, capsize=2.0
            )
        marked(axes, group, lines)

    return [in_lines(part, draw, "probability", "Parameters before and after") for part in pages(groups)]


def reliability(before: Sequence[ReliabilityBin], after: Sequence[ReliabilityBin]) -> str:
    """Return what is seen by what is predicted."""
    with drawing(3.4) as figure:
        axes = figure.add_axes((0.2, 0.14, 0.76, 0.83))
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8)
        axes.plot(
            [each.predicted for each in before],
            [each.seen for each in before],
            linestyle="none",
            marker="o",
            markersize=7,
            markerfacecolor="none",
            markeredgewidth=1.3,
            color=ORANGE,
        )
        axes.errorbar(
            [each.predicted for each in after],
            [each.seen for each in after],
            yerr=[WHISKER * each.by_chance for each in after],
            linestyle="none",
            marker="o",
            markersize=4.5,
            linewidth=1.0,
            color=BLUE,
        )
        for axis, label in ((axes.xaxis, "predicted probability"), (axes.yaxis, "share seen")):
            axis.set_major_formatter(percent)
            axis.set_label_text(label)
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        axes.grid(color="#e3e3e3", linewidth=0.5)
        axes.set_axisbelow(True)
        return svg(figure, "Probabilities of held-out cells: predicted and seen")


def _scientific(value: float, _position: float | None = None) -> str:
    return f"{value:g}".replace("e-0", "e-")
