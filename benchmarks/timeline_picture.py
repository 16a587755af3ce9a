"""A picture of a propagation in chunks: a lane for each stream of each GPU, and one for the thread of the host.

    python benchmarks/timeline_picture.py trace.json picture.svg

`oversize.py run --timeline` makes both; this draws a trace again, in any format that the ending names.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from timeline import (
    ADDS_UP,
    ENQUEUES,
    EXCHANGED,
    HELD_UP,
    HOST,
    IN,
    KERNELS,
    MOVED,
    OUT,
    WAITS,
    WAITS_FOR_DEVICES,
    Bar,
    ends_of,
    read_trace,
    shares,
)

# Colours of Okabe and Ito, which colour-blind readers tell apart; greys where nothing is done.
COLOURS = {
    KERNELS: "#0072B2",
    IN: "#E69F00",
    OUT: "#009E73",
    EXCHANGED: "#D55E00",
    MOVED: "#56B4E9",
    WAITS: "#dcdcdc",
    ENQUEUES: "#444444",
    HELD_UP: "#F0E442",
    ADDS_UP: "#CC79A7",
    WAITS_FOR_DEVICES: "#dcdcdc",
}
# Inches of the picture, of a lane, and of what is above and below lanes.
WIDTH, LANE, MARGINS = 10.0, 0.24, (0.75, 0.5)
# Kinds that fit a line of the legend in letters of the usual size.
ROOMY_KINDS = 7
# Stretches of time, each drawn as what took most of it, and the share of all from which a pass has a name.
COLUMNS, NAMED = 1200, 0.045


def stretches(bars: Sequence[Bar], seconds: float) -> list[tuple[str, float, float]]:
    """Return kinds with beginnings and ends in a lane, as what takes most of each of COLUMNS stretches of time."""
    kinds = list(COLOURS)
    taken, edges = np.zeros((len(kinds), COLUMNS)), np.linspace(0, seconds, COLUMNS + 1)
    for bar in bars:
        first, last = np.searchsorted(edges, (bar.begin, bar.end), side="right") - 1
        here = slice(max(0, first), min(COLUMNS, last + 1))
        begins, ends = np.maximum(edges[:-1][here], bar.begin), np.minimum(edges[1:][here], bar.end)
        taken[kinds.index(bar.kind), here] += np.maximum(0, ends - begins)
    # What is done, however short, is seen beside waits.
    idle = [kinds.index(kind) for kind in (WAITS, WAITS_FOR_DEVICES)]
    nothing = seconds / COLUMNS - taken.sum(axis=0)
    busy = np.delete(taken, idle, axis=0).sum(axis=0)
    taken[idle] *= (busy < seconds / COLUMNS / 4)[None, :]
    most = np.where(nothing < seconds / COLUMNS * 3 / 4, taken.argmax(axis=0), -1)
    found, column = [], 0
    for kind, group in itertools.groupby(most.tolist()):
        width = len(list(group))
        if kind >= 0:
            found.append((kinds[kind], edges[column], edges[column + width]))
        column += width
    return found


def draw(bars: Sequence[Bar], seconds: float, title: str, path: Path) -> None:
    """Draw lanes over time, in the format that the ending of a path names."""
    import matplotlib
    from junctor.runs.report.pictures import SETTINGS
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    order = [*sorted({bar.lane for bar in bars} - {HOST}, key=lambda lane: (lane.split(",")[0], lane)), HOST]
    drawn = {lane: stretches([bar for bar in bars if bar.lane == lane], seconds) for lane in order}
    # Streams on which too little happens to be seen have no lane.
    lanes = [lane for lane in order if any(kind not in (WAITS, WAITS_FOR_DEVICES) for kind, _, _ in drawn[lane])]
    height = LANE * len(lanes) + sum(MARGINS)
    with matplotlib.rc_context({**SETTINGS, "font.family": "sans-serif"}):
        figure = Figure(figsize=(WIDTH, height), facecolor="white")
        axes = figure.add_axes((0.13, MARGINS[1] / height, 0.85, LANE * len(lanes) / height))
        for line, lane in enumerate(lanes):
            for kind in dict.fromkeys(kind for kind, _, _ in drawn[lane]):
                spans = [(1e3 * begin, 1e3 * (end - begin)) for each, begin, end in drawn[lane] if each == kind]
                thin = kind in (WAITS, WAITS_FOR_DEVICES)
                at, width = (line - 0.08, 0.16) if thin else (line - 0.4, 0.8)
                axes.broken_barh(spans, (at, width), facecolor=COLOURS[kind], linewidth=0)
        name_passes(axes, ends_of(bars), seconds)
        axes.set_xlim(0, 1e3 * seconds)
        axes.set_ylim(len(lanes) - 0.5, -0.5)
        axes.set_yticks(range(len(lanes)), lanes)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("milliseconds")
        there = [kind for kind in COLOURS if any(bar.kind == kind for bar in bars) and kind != WAITS_FOR_DEVICES]
        marks = [Patch(color=COLOURS[kind], label="waits" if kind == WAITS else kind) for kind in there]
        # As many kinds as fit a line: runs on several GPUs have the most of them.
        size, spacing = (8, 1.2) if len(marks) <= ROOMY_KINDS else (6.5, 0.9)
        legend = {
            "ncols": len(marks),
            "frameon": False,
            "fontsize": size,
            "columnspacing": spacing,
            "handlelength": 1.4,
        }
        legend["bbox_to_anchor"] = (0.12, 1 - 0.22 / height)
        figure.legend(handles=marks, loc="upper left", **legend)
        figure.suptitle(title, x=0.13, y=1 - 0.06 / height, ha="left", va="top", fontsize=10, fontweight="bold")
        figure.savefig(path, dpi=150, metadata=dict.fromkeys(("Creator", "Date")) if path.suffix == ".svg" else None)


def name_passes(axes: Any, ends: Sequence[float], seconds: float) -> None:
    """Write the numbers of long passes above the lanes, between the ends of all before them and their own."""
    latest = 0.0
    for pass_, end in enumerate(ends):
        if end - latest > NAMED * seconds:
            axes.axvline(1e3 * end, color="#8a8a8a", linewidth=0.5, zorder=0)
            axes.text(500 * (latest + end), -0.6, f"pass {pass_}", ha="center", va="bottom", fontsize=7)
        latest = max(latest, end)


def main() -> None:
    """Draw a trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--title", help="above the picture (the name of the trace)")
    arguments = parser.parse_args()
    bars = read_trace(arguments.trace)
    seconds = max(bar.end for bar in bars)
    print("\n".join(shares(bars, seconds)))
    draw(bars, seconds, arguments.title or arguments.trace.stem, arguments.picture)


if __name__ == "__main__":
    main()
