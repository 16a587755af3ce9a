"""Equations, tables and figures of Zheng and Mengshoel (KDD 2013): what `papers.py` shows of them.

What is measured, on a GPU, is kept in `--folder`: trees.pickle, launch.parquet, choices.json.
"""

from __future__ import annotations

import json
import math
import pickle
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
from baselines.index_mapping import Setting, all_settings, index_mapping
from common import Asked, need_gpu
from junctor.planning.cliques import StoredPlan
from launch import (
    AT_ONCE,
    NAMES,
    THEIRS,
    THREADS,
    Message,
    Trees,
    by_equations,
    by_steps,
    equation,
    fit,
    grids_of,
    measure,
    run,
    sizes_of,
    table_four,
    table_three,
)
from mapped_tree import Gpu, Size
from stored import prepare, trees_of

# Of their figures 2 and 4 to 6: entries of a separator and of a clique.
EXAMPLES = (Size(14, 219_520), Size(24_500, 784_000), Size(320, 32_000))


def formulas(asked: Asked) -> None:
    """Print how often the setting by equations 5 and 6 is another one than by our own model, and both medians."""
    trees = trees_of(asked.files(THEIRS))
    print(f"K of {THREADS}, {AT_ONCE:,} threads at once; ours: rounds * (terms / p_a + log2 p_a)")
    print("network | operation | how many | other setting | median p_a by the equations | by ours")
    print("|".join(["---"] * 6))
    for network, _, plan in trees:
        for operation in NAMES:
            sizes = [size for name, size in sizes_of(plan) if name == operation]
            theirs, ours = ([choose(operation, size) for size in sizes] for choose in (by_equations, by_steps))
            medians = (statistics.median(way.together for way in ways) for ways in (theirs, ours))
            other = sum(one != another for one, another in zip(theirs, ours, strict=True))
            print(f"{network} | {operation} | {len(sizes)} | {other} | {' | '.join(f'{each:g}' for each in medians)}")


def surface(of: Callable[[Setting], float]) -> None:
    """Print a number for each setting, a line for each K, a column for each p_a; the least has a star."""
    found = {setting: of(setting) for setting in all_settings(THREADS)}
    least = min(found, key=lambda setting: found[setting])
    print("K \\ p_a | " + " | ".join(str(1 << n) for n in range(max(THREADS).bit_length())))
    for threads in THREADS:
        cells = [f"{found[way]:,.6g}{'*' * (way == least)}" for way in found if way.threads == threads]
        print(f"{threads} | {' | '.join(cells)}")


def figure_two(asked: Asked) -> None:
    """Print three surfaces of a reduction: by equation 5 and, with a GPU, measured."""
    for size in EXAMPLES:
        print(f"\n{size.clique:,} entries of the clique, {size.separator:,} of the separator; equation 5, additions")
        surface(lambda way, size=size: equation("reduce", size, way))
        if asked.gpu:
            print("microseconds")
            surface(microseconds_of(size))


def microseconds_of(size: Size) -> Callable[[Setting], float]:
    """Return a function that measures a reduction on the GPU: its terms lie one behind the other."""
    gpu = Gpu(np.dtype(np.float32))
    message = Message(gpu, index_mapping((0, 1), (0,), (size.separator, size.terms), gpu.cupy))
    return lambda way: 1e6 * message.seconds("reduce", way)


def figures_four_to_six(asked: Asked) -> None:
    """Print the surfaces of their models, which learned from the messages of all networks, and measured ones."""
    from launch_models import MODELS, features

    grid = grids_of(*measurements(asked))[2]["reduce"]
    models = {name: MODELS[name]().fit(*grid.rows()) for name in ("SVR", "Lasso, lambda min")}
    for size in EXAMPLES:
        print(f"\n{size.clique:,} entries of the clique, {size.separator:,} of the separator; microseconds")
        for name, model in models.items():
            print(name)
            surface(lambda way, model=model, size=size: model.predict(features([size], [way], [[0.0] * 3]))[0])
        if asked.gpu:
            print("measured")
            surface(microseconds_of(size))


def measurements(asked: Asked) -> tuple[Trees, Path]:
    """Return trees and the file of what every message takes with every setting: kept ones, or made on the GPU."""
    kept, measured = asked.folder / "trees.pickle", asked.folder / "launch.parquet"
    if not measured.exists() and not asked.gpu:
        need_gpu(f"zheng, where {measured} of an earlier run is not there,")
    if not kept.exists():
        prepare(asked.files(THEIRS), kept)
    trees: Trees = pickle.loads(kept.read_bytes())
    if not measured.exists():
        measure(trees, measured, limit=60.0 if asked.small else math.inf)
    return trees, measured


def table_three_of(asked: Asked) -> None:
    table_three(*measurements(asked))


def table_four_of(asked: Asked) -> None:
    """Print their Table 4 beside the trees of ours, and with a GPU all of it measured."""
    if asked.gpu:
        return propagated(asked, None)
    trees = trees_of(asked.files(THEIRS))
    print("network | nodes | clique, average | separator, average\n---|---|---|---")
    for network, _, plan in trees:
        print(f"{network} | {len(plan.cliques)} | {' | '.join(f'{each:,.0f}' for each in averages(plan))}")
    return table_four([network for network, _, _ in trees if network in THEIRS] or list(THEIRS))


def averages(plan: StoredPlan) -> tuple[float, float]:
    """Return the average entries of cliques and of separators."""
    edges = [plan.separator_entries(i) for i, clique in enumerate(plan.cliques) if clique.parent is not None]
    return plan.total_entries() / len(plan.cliques), statistics.mean(edges or [1])


def propagated(asked: Asked, plot: Path | None) -> None:
    trees, measured = measurements(asked)
    choices = asked.folder / "choices.json"
    if not choices.exists():
        fit(trees, measured, choices)
    run(trees, json.loads(choices.read_text()), cpu=True, rounds=1 if asked.small else 5, plot=plot)


def figure_seven(asked: Asked) -> None:
    """Draw their figure 7 and, with a GPU, ours."""
    from launch_plot import draw

    ways = {"0-threshold": 3, "1-threshold": 4, "SVR": 5, "Lasso, lambda 0": 6, "Lasso, lambda 1se": 7}
    drawn = asked.folder / "zheng-figure7.svg"
    draw(list(THEIRS), {name: [column[at] for column in THEIRS.values()] for name, at in ways.items()}, drawn)
    print(f"theirs: {drawn}")
    if asked.gpu:
        propagated(asked, asked.folder / "figure7.svg")
        print(f"ours: {asked.folder / 'figure7.svg'}")
    table_four(list(THEIRS))


def means(asked: Asked) -> None:
    """Print the means of speed-ups over networks that their abstract states, of their own Table 4."""
    del asked
    print("CPU over | arithmetic mean | geometric mean | printed\n---|---|---|---")
    for name, at, printed in (("SVR", 5, "10.70, 8.68"), ("earlier GPU", 8, "3.43, 2.44")):
        ratios = [column.cpu / column[at] for column in THEIRS.values()]
        print(f"{name} | {statistics.mean(ratios):.2f} | {statistics.geometric_mean(ratios):.2f} | {printed}")
    best = sum(min(column[3:8]) == column.svr for column in THEIRS.values())
    print(f"SVR is the best of five settings for {best} of {len(THEIRS)} networks")
