"""Pictures of a report as inline SVG, drawn by matplotlib.

Main functions: `logarithms`, `columns` and `posteriors`. Every picture is as wide as a phone; the page puts several
side by side. Colours are those of Okabe and Ito, which colour-blind readers tell apart.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from junctor.runs.statistics import BINS, Spread, edges_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Inches; SVG has 72 points an inch, and the page scales pictures to its width.
WIDTH, LINE, MARGIN = 3.8, 0.21, 0.62
# Lines of a picture, from which the next group begins another one.
MOST_LINES = 18
# States of a variable that are shown, and characters of a name.
MOST_STATES, MOST_LETTERS = 10, 16
LOG_BINS = 40
BLUE, ORANGE, GREY, DARK = "#0072B2", "#D55E00", "#8a8a8a", "#1a1a1a"

SETTINGS = {
    # Text stays text: small files, and readers find it.
    "svg.fonttype": "none",
    # Ids of clips must not differ from one making to the next.
    "svg.hashsalt": "junctor",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": DARK,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.labelcolor": DARK,
    "xtick.color": DARK,
    "ytick.color": DARK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    # Names may have dollars, which are no formulas.
    "text.parse_math": False,
}
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_GROUP_ID = re.compile(r'<g id="[^"]*">')
_FONTS = re.compile(r"font-family: [^;\"]*; ")


@dataclass(frozen=True, eq=False, slots=True)
class Group:
    """Lines of a picture that belong together.

    title: above them.
    labels: of the lines.
    values: float64 [lines] or [lines, BINS], of what is drawn.
    marks: float64 [lines], a second value of each line; None for none.
    errors: float64 [lines], standard errors of the values; None for none.
    """

    title: str
    labels: Sequence[str]
    values: npt.NDArray[np.float64]
    marks: npt.NDArray[np.float64] | None = None
    errors: npt.NDArray[np.float64] | None = None


@contextmanager
def drawing(height: float) -> Iterator[Figure]:
    """Context manager: an empty figure as wide as all others, with their settings; height: in inches."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        yield Figure(figsize=(WIDTH, height))


def whole_numbers(axis: Axis, most: int) -> None:
    """Put the ticks of an axis at whole numbers; most: intervals between them."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(most, integer=True))


def logarithms(spreads: Sequence[tuple[str, Spread]], label: str) -> str:
    """Return how natural logarithms are spread, for one run or two.

    spreads: name and counts of each run, not empty; the first is filled.
    label: of the axis.
    """
    with drawing(2.3) as figure:
        axes = figure.add_axes((0.17, 0.2, 0.8, 0.76))
        ends = [edge for _, spread in spreads for key in spread.counts for edge in edges_of(key)]
        low, high = min(ends), max(ends)
        # One value alone: a bin around it.
        low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
        edges = np.linspace(low, high, LOG_BINS + 1)
        for (name, spread), colour, filled in zip(spreads, (BLUE, ORANGE), (True, False), strict=False):
            shares = rebinned(spread, edges) / spread.rows
            axes.stairs(shares, edges, fill=filled, color=colour, linewidth=1.4, label=name)
        axes.set_xlabel(label)
        axes.set_ylabel("share of rows")
        axes.yaxis.set_major_formatter(percent)
        axes.set_ylim(bottom=0)
        if len(spreads) > 1:
            axes.legend(frameon=False, loc="upper left")
        return svg(figure, f"{label}: how rows are spread")


def rebinned(spread: Spread, edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the counts between other edges [n + 1], float64 [n]; a bin that crosses one is divided evenly."""
    result = np.zeros(len(edges) - 1)
    for key, count in spread.counts.items():
        low, high = edges_of(key)
        if high > low:
            shares = np.clip(np.minimum(edges[1:], high) - np.maximum(edges[:-1], low), 0, None) / (high - low)
            result += count * shares
        else:
            result[min(int(np.searchsorted(edges, low, side="right")) - 1, len(result) - 1)] += count
    return result


def columns(groups: Sequence[Group]) -> list[str]:
    """Return bars of states: values are shares that were seen, marks those that were expected."""

    def draw(axes: Axes, group: Group, lines: npt.NDArray[np.float64]) -> None:
        axes.barh(lines, group.values, height=0.62, color=BLUE)
        marked(axes, group, lines)

    return [in_lines(part, draw, "share of the observed cells", "States seen and expected") for part in pages(groups)]


def posteriors(groups: Sequence[Group], label: str) -> list[str]:
    """Return strips of posteriors: values are rows by bins of a probability; the darker, the more of the rows.

    groups: marks are means, written beside the strips.
    label: of the axis.
    """

    def draw(axes: Axes, group: Group, lines: npt.NDArray[np.float64]) -> None:
        total = max(1.0, float(group.values.sum(axis=1).max()))
        # Lines with gaps between them. A square root: bins with a hundredth of the rows are seen as well.
        shares = np.zeros((2 * len(lines) - 1, BINS))
        shares[::2] = np.sqrt(group.values / total)
        sides = np.stack([lines - 0.36, lines + 0.36], axis=1).reshape(-1)
        edges = np.linspace(0, 1, BINS + 1)
        axes.pcolormesh(edges, sides, np.ma.masked_equal(shares, 0), cmap=blues(), vmin=0, vmax=1, linewidth=0)
        if group.marks is not None:
            for line, value in zip(lines, group.marks, strict=True):
                beside(axes, line, value)

    return [in_lines(part, draw, label, "Posteriors of targets") for part in pages(groups)]


@cache
def blues() -> Any:
    """Return the colours of shares: the darker, the larger."""
    from matplotlib.colors import LinearSegmentedColormap

    # Even the lightest is seen on white.
    return LinearSegmentedColormap.from_list("junctor", ["#d9e8f3", BLUE, "#00304d"])


def pages(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Yield groups that share a picture; pictures have about as many lines each."""
    sizes = [1 + len(group.labels) for group in groups]
    count = -(-sum(sizes) // MOST_LINES)
    ends = np.cumsum(sizes)
    # A group belongs where its middle is.
    numbers = ((ends - np.array(sizes) / 2) * count // max(1, sum(sizes))).tolist()
    for _, members in groupby(zip(numbers, groups, strict=True), key=lambda pair: pair[0]):
        yield [group for _, group in members]


def in_lines(groups: Sequence[Group], draw: Any, label: str, title: str) -> str:
    """Return a picture with a line for each label, a title above each group.

    draw: draws a group, given axes and the places of its lines.
    label: of the axis.
    title: for readers that do not see it.
    """
    # Half a line between groups.
    count = sum(1.5 + len(group.labels) for group in groups)
    height = LINE * count + MARGIN
    with drawing(height) as figure:
        axes = figure.add_axes((0.30, 0.48 / height, 0.58, LINE * count / height))
        ticks: list[float] = []
        labels: list[str] = []
        place = 0.0
        for group in groups:
            axes.text(-0.5, place + 0.1, short(group.title, 44), va="center", fontweight="bold", clip_on=False)
            lines = place + 1.0 + np.arange(len(group.labels))
            draw(axes, group, lines)
            ticks.extend(lines.tolist())
            labels.extend(short(name) for name in group.labels)
            place += len(group.labels) + 1.5
        axes.set_xlim(0, 1)
        axes.set_ylim(count - 0.75, -0.75)
        axes.set_yticks(ticks, labels)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0])
        axes.xaxis.set_major_formatter(percent)
        axes.set_xlabel(label)
        axes.grid(axis="x", color="#e3e3e3", linewidth=0.5)
        axes.set_axisbelow(True)
        return svg(figure, title)


def marked(axes: Axes, group: Group, lines: npt.NDArray[np.float64]) -> None:
    """Draw the marks of a group on its bars, and write the values beside these."""
    if group.marks is not None:
        axes.plot(group.marks, lines, linestyle="none", marker="|", markersize=11, markeredgewidth=2.2, color=ORANGE)
    for line, value in zip(lines, group.values, strict=True):
        beside(axes, line, value)


def beside(axes: Axes, line: float, value: float) -> None:
    """Write a share at the right of a line, digits below digits."""
    text = f"{100 * value:.1f} %" if value >= 0.0005 or value == 0 else "<0.1 %"
    # There is no room for another decimal beside a full bar.
    text = "100 %" if text == "100.0 %" else text
    axes.text(1.2, line, text, va="center", ha="right", fontsize=8.5, clip_on=False)


def short(name: str, letters: int = MOST_LETTERS) -> str:
    """Return a name of a bounded length, in one line."""
    name = " ".join(name.split()) or "(empty)"
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


def percent(value: float, _position: float | None = None) -> str:
    """Return a share as the label of a tick."""
    return f"{100 * value:.3g} %"


def svg(figure: Figure, title: str) -> str:
    """Return a figure as SVG; the title is for readers that do not see it."""
    file = io.StringIO()
    with warnings.catch_warnings():
        # Texts stay texts: a browser has fonts for letters that the fonts of Matplotlib lack.
        warnings.filterwarnings("ignore", "Glyph ")
        figure.savefig(file, format="svg", metadata=_NO_METADATA, transparent=True)
    text = file.getvalue()
    # No ids of groups, because pictures share a page, and its fonts. Names in texts have no angle brackets left.
    text = _FONTS.sub("", _GROUP_ID.sub("<g>", text[text.index("<svg") :]))
    return text.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
