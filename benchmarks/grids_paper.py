"""Tables and figures of Satish and Sundaram (Graphical Model Inference using GPUs); called by `papers.py satish`.

Twelve grids of binary variables with random potentials. *Theirs here* is their algorithm, the Hugin architecture in log
space (baselines/hugin_log.py), on one core and on our junction trees; *ours* are our contractions in log space. A flop
is an addition, 8 are an exponential or a logarithm, as they count. Times of a core are CPU times.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from baselines.hugin_log import EXP_FLOPS, LogTree, Update, log_tree
from common import Asked
from grids import ALGEBRAS, STAGES, Gpu, Planned, counts, on_cpu, planned
from junctor.generate import grid

# Rows and columns; flops and memory accesses of their Table 1.
TABLE_ONE = {
    (8, 8): (7.58e5, 3.28e4),
    (10, 10): (6.93e6, 2.11e5),
    (9, 9): (9.44e6, 2.48e5),
    (11, 11): (2.47e7, 6.79e5),
    (11, 13): (8.63e7, 2.02e6),
    (11, 16): (2.53e8, 5.45e6),
    (12, 12): (8.05e8, 1.53e7),
    (14, 14): (8.95e8, 1.85e7),
    (13, 13): (1.24e9, 2.31e7),
    (14, 16): (2.55e9, 4.56e7),
    (15, 15): (2.71e9, 5.36e7),
    (16, 16): (1.65e10, 2.85e8),
}
SMALL = ((3, 3), (3, 4))
# Of Figure 9: the grid, and flops of an update.
LARGE, THRESHOLDS = (15, 15), (1e3, 1e4, 1e5, 1e6, 1e7)
# Of the experiments with wrong answers: grids whose tables leave the caches.
EXPERIMENTS = ((12, 12), (14, 14), (15, 15), (16, 16))
REPEATS = 3


def sizes(asked: Asked, of: Iterable[tuple[int, int]] = TABLE_ONE) -> list[tuple[int, int]]:
    return list(SMALL if asked.small else of)


def head(*columns: str) -> None:
    print(" | ".join(columns))
    print("|".join(["---"] * len(columns)))


class Propagated(NamedTuple):
    """A propagation by their algorithm: its updates, and CPU seconds of the whole."""

    updates: list[Update]
    seconds: float

    @property
    def flops(self) -> int:
        return sum(update.flops for update in self.updates)

    @property
    def in_updates(self) -> float:
        return sum(update.s_seconds + update.w_seconds for update in self.updates)


def tree_of(size: tuple[int, int]) -> LogTree:
    return log_tree(grid(*size, seed=1))


def propagated(tree: LogTree, consecutive: bool = False, logs: bool = True) -> Propagated:
    """Return the fastest of some propagations."""
    found = []
    for _ in range(REPEATS + 1):
        fresh = LogTree(tree.scopes, copy.deepcopy(tree.tables), tree.edges)
        start = time.thread_time()
        updates = list(fresh.updates(consecutive, logs))
        found.append(Propagated(updates, time.thread_time() - start))
    return min(found[1:], key=lambda each: each.seconds)


def table_one(asked: Asked) -> None:
    """Flops and memory accesses: theirs as printed, their algorithm on our trees, and our contractions."""
    head("grid", "flops, printed", "accesses", "flops, theirs here", "accesses", "flops, ours", "accesses", "largest")
    for size in sizes(asked):
        tree = tree_of(size)
        updates = list(tree.updates())
        cells = [f"{number:.3g}" for number in TABLE_ONE.get(size, ())] or ["", ""]
        cells += [f"{sum(each.flops for each in updates):.3g}", f"{sum(each.accesses for each in updates):.3g}"]
        total = counts(planned(*size)[2])
        flops = total["operations"] + EXP_FLOPS * (total["exponentials"] + total["logarithms"])
        cells += [f"{flops:.3g}", f"{total['accesses']:.3g}"]
        largest = math.log2(max(table.size for table in tree.tables))
        print(f"{name(size)} | {' | '.join(cells)} | 2^{largest:.0f}", flush=True)


def name(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


def figure_seven(asked: Asked) -> None:
    """Speed-up of a GPU, and flops a second: their algorithm on a core, ours on a core and on a GPU."""
    head("grid", "theirs here ms", "10^6 flop/s", "ours, a core ms", "ours, GPU ms", "core / GPU", "with transfers")
    gpu = Gpu() if asked.gpu else None
    for size in sizes(asked):
        found, case = propagated(tree_of(size)), planned(*size)
        core = on_cpu(case, ALGEBRAS["log"], 1, REPEATS)[-1]
        cells = [f"{1e3 * found.seconds:.2f}", f"{found.flops / found.seconds / 1e6:.0f}", f"{core:.2f}"]
        print(f"{name(size)} | {' | '.join([*cells, *on_gpu(gpu, case, core)])}", flush=True)


def on_gpu(gpu: Gpu | None, case: Planned, core: float) -> list[str]:
    if gpu is None:
        return ["", "", ""]
    *_, whole, answered = gpu.measure(case, ALGEBRAS["log"], REPEATS)[0]
    return [f"{whole:.3f}", f"{core / whole:.0f}", f"{core / answered:.0f}"]


def figure_eight(asked: Asked) -> None:
    """Shares of stages: S-update, W-update and traversal of their algorithm; those of ours."""
    ours = [*STAGES, "the rest"]
    head("grid", "S-update", "W-update", "traversal", *ours, *(f"{stage}, GPU" for stage in (*STAGES, "transfers")))
    gpu = Gpu() if asked.gpu else None
    for size in sizes(asked):
        found, case = propagated(tree_of(size)), planned(*size)
        parts = [sum(update[part] for update in found.updates) / found.seconds for part in (0, 1)]
        cells = [*parts, 1 - sum(parts)]
        *stages, whole, _ = on_cpu(case, ALGEBRAS["log"], 1, REPEATS)[1:]
        cells += [stage / whole for stage in stages]
        cells.append(1 - sum(cells[-len(STAGES) :]))
        if gpu:
            *stages, whole, answered = gpu.measure(case, ALGEBRAS["log"], REPEATS)[0][1:]
            cells += [stage / answered for stage in stages] + [1 - whole / answered]
        shown = [f"{cell:.0%}" for cell in cells]
        print(f"{name(size)} | {' | '.join(shown + [''] * (11 - len(shown)))}", flush=True)


def figure_nine(asked: Asked) -> None:
    """Share of edges' updates, of flops and of time in updates of more flops than a threshold, by their algorithm."""
    head("grid", "flops of an update", "share of updates", "of flops", "of time")
    for size in sizes(asked, [LARGE]):
        found = propagated(tree_of(size))
        flops = np.array([update.flops for update in found.updates])
        seconds = np.array([update.s_seconds + update.w_seconds for update in found.updates])
        for threshold in THRESHOLDS:
            large = flops > threshold
            shares = [large.mean(), flops[large].sum() / flops.sum(), seconds[large].sum() / seconds.sum()]
            print(f"{name(size)} | {threshold:.0e} | {' | '.join(f'{share:.0%}' for share in shares)}", flush=True)


def consecutive(asked: Asked) -> None:
    """How much faster their algorithm is, with wrong answers, where all memory that it accesses is consecutive."""
    ratios(asked, consecutive=True)


def exponentials(asked: Asked) -> None:
    """How much faster their algorithm is, with wrong answers, without exponentials and logarithms."""
    ratios(asked, logs=False)


def ratios(asked: Asked, consecutive: bool = False, logs: bool = True) -> None:
    head("grid", "as it is ms", "changed ms", "ratio")
    found = []
    for size in sizes(asked, EXPERIMENTS):
        tree = tree_of(size)
        right, wrong = (each.in_updates for each in (propagated(tree), propagated(tree, consecutive, logs)))
        found.append(right / wrong)
        print(f"{name(size)} | {1e3 * right:.2f} | {1e3 * wrong:.2f} | {found[-1]:.2f}", flush=True)
    print(f"all | | | {statistics.geometric_mean(found):.2f}")
