"""Figure 7 of Zheng and Mengshoel (KDD 2013) on our hardware: milliseconds of a propagation, network by network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np


def draw(networks: Sequence[str], milliseconds: Mapping[str, Sequence[float]], path: Path) -> None:
    """Draw bars for every way to choose launch parameters, grouped by network, on a logarithmic axis."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(8, 1.6 * len(networks)), 5), layout="constrained")
    axes = figure.subplots()
    # More of them than colours of the usual cycle.
    axes.set_prop_cycle(color=colormaps["tab20"].resampled(20)(range(20)))
    width = 0.85 / len(milliseconds)
    for n, (name, values) in enumerate(milliseconds.items()):
        axes.bar(np.arange(len(networks)) + n * width, values, width, label=name)
    axes.set_xticks(np.arange(len(networks)) + 0.425 - width / 2, networks)
    axes.set_yscale("log")
    axes.set_ylabel("ms of a propagation")
    figure.legend(loc="outside upper center", fontsize="small", ncols=6)
    figure.savefig(path)
