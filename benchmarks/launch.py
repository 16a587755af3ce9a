"""Launch parameters by regression: Zheng and Mengshoel (KDD 2013), whole, on a GPU.

    uv run python benchmarks/launch.py prepare NETWORK ... --output trees.pickle   trees with a searched order, anywhere
    python benchmarks/launch.py measure trees.pickle --output launch.parquet       seconds of every message and setting
    uv run python benchmarks/launch.py fit trees.pickle launch.parquet --output choices.json    models, their Table 3
    python benchmarks/launch.py run trees.pickle choices.json [--plot FILE]        their Table 4 and figure 7
    python benchmarks/launch.py tables NETWORK ... --folder DIR                    all of it, on a machine with a GPU

`measure` takes one message of each size (entries of separator and clique) of the trees, with every block size K and
arithmetic threads p_a of a grid; settings where a thread would have more than 16,384 terms are left out. `fit` learns
from all sizes, for their measures of what was learned (equations 13 and 14), then from all that do not occur in a
network, and chooses for that network. `run` propagates without evidence: the manual settings, what each model chose,
the fastest setting that is one for all, the fastest of every message, the CPU (all cores, stored tables), and our own
kernels on the same trees.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from baselines.index_mapping import (
    Setting,
    all_settings,
    one_threshold,
    reduction_steps,
    reduction_time,
    scattering_steps,
    scattering_time,
    zero_threshold,
)
from common import need_gpu
from junctor.cliques.host import HostExecutor, in_layout, kernels_for, natural_table
from junctor.model.network import Network
from junctor.planning.cliques import StoredPlan
from mapped_tree import (
    Chooser,
    Gpu,
    MappedTree,
    Operation,
    Size,
    mapping_of,
    operations_of,
    propagation_seconds,
    size_of,
)
from stored import ALGEBRAS, OnDevice, host_kernels, median_ms, prepare

THREADS = (64, 128, 256, 512)
NAMES = ("reduce", "scatter")
# Launches of a graph that is timed, and how often.
LAUNCHES, REPEATS = 12, 3
# Terms that a thread may have in a measurement.
MOST_TERMS = 1 << 14
# Threads that run side by side, for the analytical model: 2,048 on each of 132 multiprocessors.
AT_ONCE = 132 * 2048
# What the sum of a table in single precision may be off from one after a propagation.
MOST_OFF = 1e-4


class Theirs(NamedTuple):
    """A column of their Table 4: nodes, average entries of cliques and separators, milliseconds on a GTX 460 and a
    Core 2 Quad.

    gpu, cpu, smile: earlier work of theirs, and SMILE.
    """

    nodes: int
    clique: int
    separator: int
    zero_threshold: float
    one_threshold: float
    svr: float
    lasso: float
    lasso_1se: float
    gpu: float
    cpu: float
    smile: float


# RSS, SD and MR of their Table 3; without units.
TABLE_THREE = {
    ("reduce", "Lasso, lambda 0"): "12.3e5 | 20.84 | 12.73%",
    ("reduce", "Lasso, lambda 1se"): "14.9e5 | 11.3e3 | 23.62%",
    ("reduce", "SVR"): "13.6e5 | 1.78 | 18.58%",
    ("scatter", "Lasso, lambda 0"): "1.31e3 | 0.92 | 1.84%",
    ("scatter", "Lasso, lambda 1se"): "1.57e3 | 0.46 | 2.01%",
    ("scatter", "SVR"): "2.69e3 | 0.72 | 2.18%",
}
THEIRS = {
    "pigs": Theirs(368, 1_972, 339, 39.29, 26.06, 13.70, 19.8, 131.8, 75, 51, 130),
    "water": Theirs(20, 173_297, 713, 29.97, 18.21, 9.47, 14.48, 49.13, 52, 120, 160),
    "munin2": Theirs(860, 5_653, 533, 205.8, 86.4, 43.73, 72.28, 151.71, 125, 210, 140),
    "munin3": Theirs(904, 3_443, 2_099, 57.65, 48.17, 35.18, 59.01, 167.8, 104, 137, 120),
    "munin4": Theirs(872, 16_444, 9_273, 146.64, 104.44, 67.15, 101.41, 387.54, 342, 473, 430),
    "mildew": Theirs(28, 341_651, 26_065, 44.16, 34.56, 17.84, 23.85, 51.72, 53, 355, 280),
    "barley": Theirs(36, 512_044, 39_318, 103.38, 90.18, 45.96, 58.63, 136.41, 106, 974, 780),
    "diabetes": Theirs(337, 32_443, 1_845, 58.30, 48.63, 33.98, 62.32, 110.72, 94, 420, 240),
}

Trees = Sequence[tuple[str, Network, StoredPlan]]
Seconds = dict[str, npt.NDArray[np.float64]]


def sizes_of(plan: StoredPlan) -> list[tuple[str, Size]]:
    return [(each.name, size_of(plan, each)) for each in operations_of(plan)]


def examples_of(trees: Trees) -> dict[Size, tuple[StoredPlan, Operation]]:
    """Return a message of each size."""
    return {size_of(plan, each): (plan, each) for _, _, plan in trees for each in operations_of(plan)}


def _layout(plan: StoredPlan, operation: Operation) -> tuple[float, float, float]:
    from launch_models import layout_of

    return layout_of(plan.cliques[operation.clique].natural, plan.cliques[operation.edge].separator, plan.sizes)


def measure(trees: Trees, output: Path, limit: float) -> None:
    """Time one message of every size with every setting; in a random order, so that a limit leaves a sample."""
    gpu, settings, examples = Gpu(np.dtype(np.float32)), all_settings(THREADS), examples_of(trees)
    rows: list[tuple[int, int, int, int, str, float]] = []
    started = time.perf_counter()
    order = np.random.default_rng(0).permutation(len(examples))
    for done, (size, (plan, operation)) in enumerate(list(examples.items())[i] for i in order):
        if time.perf_counter() - started > limit:
            print(f"{done} of {len(examples)} sizes within {limit} s", flush=True)
            break
        message = Message(gpu, mapping_of(plan, operation, gpu.cupy))
        for setting in settings:
            if size.terms / setting.together > MOST_TERMS:
                continue
            for name in NAMES:
                rows.append((*size, *setting, name, message.seconds(name, setting)))
    _write(rows, gpu.name, output)
    print(f"{len(rows):,} measurements in {time.perf_counter() - started:.0f} s on {gpu.name}", flush=True)


class Message:
    """The tables of a message on a GPU, whose halves are timed.

    mapping: its mapping table, on the device.
    """

    def __init__(self, gpu: Gpu, mapping: Any) -> None:
        self._gpu, self._mapping, entries = gpu, mapping, len(mapping)
        self._table = gpu.cupy.random.random(mapping.size, dtype=gpu.dtype) + gpu.dtype.type(0.5)
        self._separator, self._ratio = (gpu.cupy.ones(entries, gpu.dtype) for _ in range(2))
        gpu.cupy.cuda.runtime.deviceSynchronize()

    def seconds(self, name: str, setting: Setting) -> float:
        if name == "scatter":
            # Numbers that do not change: as often as wanted.
            self._ratio[...] = 1
            self._gpu.cupy.cuda.runtime.deviceSynchronize()
        arrays = (self._table, self._separator, self._ratio) if name == "reduce" else (self._table, self._ratio)

        def enqueue() -> None:
            for _ in range(LAUNCHES):
                self._gpu.launch(name, setting, self._mapping, *arrays)

        return self._gpu.seconds(enqueue, REPEATS) / LAUNCHES


def _write(rows: list[tuple[int, int, int, int, str, float]], device: str, output: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ("separator", "clique", "threads", "together", "operation", "seconds")
    table = pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))
    table = table.append_column("device", pa.array([device] * len(rows)).dictionary_encode())
    output.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata({"device": device, "date": str(date.today())}), output)


def read(path: Path) -> tuple[str, list[Size], list[Setting], Seconds]:
    """Return the device, sizes, settings, and for either operation seconds [sizes, settings], NaN if not measured."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    columns = {name: table[name].to_numpy() for name in ("separator", "clique", "threads", "together", "seconds")}
    names = np.array(table["operation"].to_pylist())
    keys = list(map(Size, columns["separator"].tolist(), columns["clique"].tolist()))
    settings = list(map(Setting, columns["threads"].tolist(), columns["together"].tolist()))
    sizes, ways = sorted(set(keys)), sorted(set(settings))
    at_size, at_way = {each: n for n, each in enumerate(sizes)}, {each: n for n, each in enumerate(ways)}
    seconds = {name: np.full((len(sizes), len(ways)), np.nan) for name in NAMES}
    for key, setting, name, value in zip(keys, settings, names, columns["seconds"], strict=True):
        seconds[name][at_size[key], at_way[setting]] = value
    return table["device"][0].as_py(), sizes, ways, seconds


def grids_of(trees: Trees, path: Path) -> tuple[str, list[Setting], dict[str, Any]]:
    """Return the device, the settings, and what was measured of either operation, a `Grid`."""
    from launch_models import Grid

    device, sizes, settings, seconds = read(path)
    examples = examples_of(trees)
    layouts = [_layout(*examples[size]) for size in sizes]
    grids = {name: Grid(np.array(sizes), np.array(settings), seconds[name], np.array(layouts)) for name in NAMES}
    return device, settings, grids


def table_three(trees: Trees, path: Path) -> None:
    """Print their Table 3: how well every model fits what was measured, all of which it has learned from."""
    from launch_models import MODELS, quality

    device, settings, grids = grids_of(trees, path)
    print(f"{device}, {len(grids['reduce'].messages)} sizes, {len(settings)} settings; of what was learned\n")
    print("operation | model | RSS (us^2) | SD (us^2) | MR | theirs: RSS | SD | MR\n" + "|".join(["---"] * 8))
    for model, make in MODELS.items():
        for name in NAMES:
            found = quality(grids[name], make().fit(*grids[name].rows()))
            cells = f"{found.rss:.4g} | {found.deviance:.4g} | {found.missed:.2%}"
            print(f"{name} | {model} | {cells} | {TABLE_THREE.get((name, model), ' | | ')}", flush=True)


def fit(trees: Trees, path: Path, output: Path) -> None:
    """Print the quality of every model on networks held out, and the sums of what was measured; write what they chose.

    Means over the networks of: squared residuals of log2 seconds a measurement, squared deviances a message, MR.
    """
    from launch_models import MODELS, Grid, choices, quality

    device, settings, grids = grids_of(trees, path)
    _, sizes, _, seconds = read(path)
    inside = {network: np.isin(range(len(sizes)), _numbers(plan, sizes)) for network, _, plan in trees}
    print(f"{device}, {len(sizes)} sizes, {len(settings)} settings; networks held out\n")
    print("model | operation | RSS (log2 s) | SD (us^2) | MR\n" + "|".join(["---"] * 5))
    chosen: dict[str, dict[str, dict[str, list[Any]]]] = {network: {} for network in inside}
    for model, make in MODELS.items():
        for name in NAMES:

            def held_out(network: str, grid: Grid = grids[name], make: Any = make) -> tuple[Any, list[Any]]:
                trained, own = make().fit(*grid.part(~inside[network]).rows()), grid.part(inside[network])
                ways = [settings[n] for n in choices(own, trained)]
                return quality(own, trained), list(zip(own.messages.tolist(), ways, strict=True))

            # Most of the time of a support vector machine is compiled, on one core.
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                found = dict(zip(inside, pool.map(held_out, inside), strict=True))
            for network, (_, ways) in found.items():
                chosen[network].setdefault(model, {})[name] = [(*size, *way) for size, way in ways]
            measures = [(each.logarithmic, each.deviance / len(ways), each.missed) for each, ways in found.values()]
            rss, deviance, missed = np.mean(measures, axis=0)
            print(f"{model} | {name} | {rss:.4f} | {deviance:.3f} | {missed:.2f}", flush=True)
    best, single = _best(trees, sizes, settings, seconds)
    output.write_text(json.dumps({"device": device, "chosen": chosen, "best": best, "single": single}))
    _sums(trees, {"device": device, "chosen": chosen, "best": best, "single": single}, sizes, settings, seconds)


def _numbers(plan: StoredPlan, sizes: list[Size]) -> list[int]:
    """Return which of some sizes occur in a tree."""
    own = {size for _, size in sizes_of(plan)}
    return [n for n, size in enumerate(sizes) if size in own]


def _best(trees: Trees, sizes: list[Size], settings: list[Setting], seconds: Seconds) -> tuple[Any, Any]:
    """Return the fastest setting of every size, and the one that is fastest for all messages of all trees together."""
    at, total = {size: n for n, size in enumerate(sizes)}, np.zeros(len(settings))
    for _, _, plan in trees:
        sums = sum(seconds[name][at[size]] for name, size in sizes_of(plan) if size in at)
        total += np.nan_to_num(sums / np.nanmin(sums), nan=np.inf)
    ways = {name: np.nanargmin(seconds[name], axis=1) for name in NAMES}
    best = {name: [(*size, *settings[n]) for size, n in zip(sizes, ways[name], strict=True)] for name in NAMES}
    return best, settings[int(total.argmin())]


def by_equations(name: str, size: Size) -> Setting:
    """Return the setting with the least time by their equations 5 and 6."""
    return min(all_settings(THREADS), key=lambda each: (equation(name, size, each), each))


def equation(name: str, size: Size, setting: Setting) -> int:
    """Return what an operation takes by their equation 5 or 6 on a device with `AT_ONCE` threads."""
    time = reduction_time if name == "reduce" else scattering_time
    return time(size.separator, size.clique, setting, AT_ONCE // setting.threads)


def by_steps(name: str, size: Size) -> Setting:
    """Return the setting with the least steps by our own model."""
    steps = reduction_steps if name == "reduce" else scattering_steps
    return min(all_settings(THREADS), key=lambda each: (steps(size.separator, size.terms, each, AT_ONCE), each))


def choosers(record: dict[str, Any], network: str) -> dict[str, Chooser]:
    """Return every way to choose a setting, by name."""

    def listed(table: dict[str, list[list[int]]]) -> Chooser:
        known = {name: {Size(*row[:2]): Setting(*row[2:]) for row in rows} for name, rows in table.items()}

        @cache
        def nearest(name: str, size: Size) -> Setting:
            # A limit on measuring may have left sizes out.
            if size in known[name]:
                return known[name][size]
            return known[name][min(known[name], key=lambda each: np.abs(np.log(each) - np.log(size)).sum())]

        return nearest

    single = Setting(*record["single"])
    return {
        "0-threshold": lambda _, size: zero_threshold(size.terms),
        "1-threshold": lambda _, size: one_threshold(size.terms),
        "equations 5 and 6": by_equations,
        "analytical": by_steps,
        **{model: listed(tables) for model, tables in record["chosen"][network].items()},
        f"best single ({single.threads}, {single.together})": lambda _, size: single,
        "best of each": listed(record["best"]),
    }


def _sums(trees: Trees, record: dict[str, Any], sizes: list[Size], settings: list[Setting], seconds: Seconds) -> None:
    """Print the milliseconds of a propagation as the sum of measured messages."""
    at = {size: n for n, size in enumerate(sizes)}
    way = {setting: n for n, setting in enumerate(settings)}
    print("\nsums of measured messages, ms: " + " | ".join(choosers(record, trees[0][0])))
    totals = []
    for network, _, plan in trees:
        parts = [(name, size) for name, size in sizes_of(plan) if size in at]
        totals.append(
            [
                sum(seconds[name][at[size], way[choose(name, size)]] for name, size in parts)
                for choose in choosers(record, network).values()
            ]
        )
        print(f"{network} | {' | '.join(f'{1e3 * total:.3f}' for total in totals[-1])}")
    times = np.array(totals)
    gains = np.exp(np.log(times[:, -2:-1] / times).mean(axis=0))
    print(f"geometric mean: gain over the best single setting | {' | '.join(f'{gain:.2f}' for gain in gains)}")
    print(f"worst against the best of each | {' | '.join(f'{n:.2f}' for n in (times / times[:, -1:]).max(axis=0))}")
    print(f"all together against it | {' | '.join(f'{n:.3f}' for n in times.sum(axis=0) / times[:, -1].sum())}")


def run(trees: Trees, record: dict[str, Any], cpu: bool, rounds: int, plot: Path | None = None) -> None:
    """Print their Table 4: milliseconds of a propagation without evidence with every way to choose, and ours."""
    gpu = Gpu(np.dtype(np.float32))
    names = list(choosers(record, trees[0][0]))
    print(f"{gpu.name}, {date.today()}, single precision, ms of a propagation without evidence\n")
    print(" | ".join(["network", "operations", *names, "CPU", "our kernels", "slower than ours", "sums off by"]))
    print("|".join(["---"] * (len(names) + 6)), flush=True)
    totals: dict[str, list[float]] = {name: [] for name in names}
    beside: dict[str, list[float]] = {"CPU": [], "our kernels": []}
    for network, model, plan in trees:
        tree = MappedTree(plan, model, np.dtype(np.float32), gpu.cupy)
        choices = choosers(record, network)
        seconds = propagation_seconds(tree, gpu, choices, rounds)
        off = max(tree.worst_sum(gpu, choose) for choose in choices.values())
        if not off <= MOST_OFF:
            raise ArithmeticError(f"{network}: after a propagation the sum of a table is off from one by {off:.0e}")
        del tree
        ours, cpu_ms = times_of_ours(plan, model, cpu)
        beside["CPU"].append(cpu_ms)
        beside["our kernels"].append(ours)
        for name in names:
            totals[name].append(seconds[name])
        cells = [f"{1e3 * seconds[name]:.3f}" for name in names]
        gain = 1e3 * seconds["best of each"] / ours - 1
        print(
            f"{network} | {len(sizes_of(plan)):,} | {' | '.join(cells)} | {cpu_ms:.1f} | {ours:.3f} | {gain:+.0%} | "
            f"{off:.0e}",
            flush=True,
        )
    table_four([network for network, _, _ in trees])
    print("\ngeometric mean of gains over 0-threshold | 1-threshold | best single | best of each | worst against that")
    for name in names:
        others = [totals[each] for each in (*names[:2], *names[-2:])]
        gains = [statistics.geometric_mean(np.array(other) / totals[name]) for other in others]
        worst = max(np.array(totals[name]) / others[-1])
        print(f"{name} | {' | '.join(f'{gain:.3f}' for gain in gains)} | {worst:.3f}")
    if plot is not None:
        from launch_plot import draw

        bars = {name: [1e3 * each for each in times] for name, times in totals.items()}
        draw([network for network, _, _ in trees], {**bars, **beside}, plot)


def table_four(networks: Sequence[str]) -> None:
    """Print the columns of their Table 4 for some networks."""
    names = "0-threshold | 1-threshold | SVR | Lasso, lambda 0 | Lasso, lambda 1se | earlier GPU | CPU | SMILE"
    print(f"\ntheirs, ms on a GTX 460: network | nodes | clique, average | separator, average | {names} | CPU / SVR")
    for network in networks:
        if column := THEIRS.get(network):
            print(f"{network} | {' | '.join(f'{each:,}' for each in column)} | {column.cpu / column.svr:.2f}")


def times_of_ours(plan: StoredPlan, network: Network, cpu: bool) -> tuple[float, float]:
    """Return the milliseconds of our kernels for stored tables, and of all cores (NaN without)."""
    from junctor_kernels.gpu.stored import CudaCliqueDevice

    algebra = ALGEBRAS["single"]
    kernels = host_kernels(algebra, plan.total_entries()) if cpu else kernels_for(algebra, 0)
    natural = [natural_table(plan, network, i, algebra, kernels) for i in range(len(plan.cliques))]
    ours = OnDevice(plan, natural, algebra, CudaCliqueDevice()).kernels_ms(20)
    if not cpu:
        return ours, float("nan")
    ordered = [
        each._replace(table=in_layout(each.table, clique, plan.sizes))
        for each, clique in zip(natural, plan.cliques, strict=True)
    ]
    host = HostExecutor(plan, ordered, algebra, kernels)
    host.propagate({})
    return ours, median_ms(lambda: host.propagate({}), 3)


def tables(networks: list[str], folder: Path) -> None:
    """Do everything: trees, measurements, models, their tables and the figure."""
    prepare(networks, folder / "trees.pickle")
    trees: Trees = pickle.loads((folder / "trees.pickle").read_bytes())
    measure(trees, folder / "launch.parquet", limit=float("inf"))
    table_three(trees, folder / "launch.parquet")
    fit(trees, folder / "launch.parquet", folder / "choices.json")
    run(trees, json.loads((folder / "choices.json").read_text()), cpu=True, rounds=5, plot=folder / "figure7.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(dest="action", required=True)
    trees = actions.add_parser("prepare")
    trees.add_argument("networks", nargs="+")
    trees.add_argument("--output", type=Path, required=True)
    measures = actions.add_parser("measure")
    measures.add_argument("trees", type=Path)
    measures.add_argument("--output", type=Path, required=True)
    measures.add_argument("--limit", type=float, default=300.0, help="seconds")
    fits = actions.add_parser("fit")
    fits.add_argument("trees", type=Path)
    fits.add_argument("measured", type=Path)
    fits.add_argument("--output", type=Path, required=True)
    runs = actions.add_parser("run")
    runs.add_argument("trees", type=Path)
    runs.add_argument("choices", type=Path)
    runs.add_argument("--networks", nargs="+", help="only these")
    runs.add_argument("--cpu", action="store_true", help="the CPU as well")
    runs.add_argument("--rounds", type=int, default=5)
    runs.add_argument("--plot", type=Path, help="figure 7: .png, .svg or .pdf")
    whole = actions.add_parser("tables")
    whole.add_argument("networks", nargs="+")
    whole.add_argument("--folder", type=Path, required=True, help="for trees, measurements, choices and the figure")
    options = parser.parse_args()
    if options.action == "prepare":
        return prepare(options.networks, options.output)
    if options.action != "fit":
        need_gpu(f"launch.py {options.action}")
    if options.action == "tables":
        return tables(options.networks, options.folder)
    loaded: Trees = pickle.loads(options.trees.read_bytes())
    if options.action == "measure":
        return measure(loaded, options.output, options.limit)
    if options.action == "fit":
        table_three(loaded, options.measured)
        return fit(loaded, options.measured, options.output)
    loaded = [each for each in loaded if not options.networks or each[0] in options.networks]
    return run(loaded, json.loads(options.choices.read_text()), options.cpu, options.rounds, options.plot)


if __name__ == "__main__":
    main()
