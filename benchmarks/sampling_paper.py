"""Tables and figures of Yu and van Engelen (A parallel irregular wavefront algorithm for importance sampling of
probabilistic networks on GPU), as they define them; called by `papers.py yu`.

50 cases for each network, with as many variables observed as theirs, any of them, in states drawn uniformly among those
that are possible. 120,000 samples, of which half teach. Variants named `exp` weigh with logarithms, as theirs do.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from common import Asked
from junctor.formats import read_network
from junctor.model.network import Network
from junctor.model.query import Sampler
from junctor.sampling import engine as engines
from junctor.sampling.engine import SamplingEngine
from junctor.sampling.rows import Evidence
from junctor_kernels.sampling import layout as layouts
from junctor_kernels.sampling import reference
from junctor_kernels.sampling.philox import RandomStream
from sampling import CASES, NETWORKS, SAMPLES, Prepared, Tables, ask, draws, engine_for, evidence, exact, squared

# Variables, arcs and observed variables of Table I.
TABLE_ONE = {"andes": (223, 338, 25), "cpcs360b": (360, 729, 20), "cpcs422b": (422, 867, 50), "cpcs179": (179, 239, 10)}
# Seconds of Table III by variant: AMD Athlon, Intel Core 2, simple and wavefront on an ATI HD 5800.
TABLE_THREE = {
    ("cpcs422b", "ais-bn, exp"): (203.38, 120.15, 6.53, 2.78),
    ("cpcs422b", "ais-bn"): (135.58, 82.44, 6.49, 2.79),
    ("cpcs422b", "sis, exp"): (219.04, 128.95, 6.54, 2.79),
    ("cpcs422b", "sis"): (150.76, 90.85, 6.52, 2.79),
    ("cpcs360b", "ais-bn, exp"): (170.74, 100.66, 4.96, 1.79),
    ("cpcs360b", "ais-bn"): (119.41, 72.49, 4.94, 1.79),
    ("cpcs360b", "sis, exp"): (185.09, 108.27, 4.95, 1.79),
    ("cpcs360b", "sis"): (131.80, 79.78, 4.93, 1.79),
    ("cpcs179", "ais-bn, exp"): (72.03, 43.41, 2.03, 1.22),
    ("cpcs179", "ais-bn"): (47.02, 29.96, 2.01, 1.22),
    ("cpcs179", "sis, exp"): (80.00, 47.92, 2.02, 1.21),
    ("cpcs179", "sis"): (54.49, 34.15, 2.00, 1.21),
    ("andes", "ais-bn, exp"): (98.94, 60.12, 2.89, 2.09),
    ("andes", "ais-bn"): (55.59, 36.90, 2.90, 2.04),
    ("andes", "sis, exp"): (110.25, 66.98, 2.89, 2.09),
    ("andes", "sis"): (65.31, 42.35, 2.90, 2.04),
}
# Percent of the fetches that order saves, of Table V.
TABLE_FIVE = {"cpcs422b": 34.03, "cpcs360b": 40.76, "cpcs179": 2.51, "andes": 2.81}
WAVE_THREADS = (64, 128, 256)
# Cases whose seconds count; cases and samples of a trial.
TIMED, FEW, FEW_SAMPLES = 5, 2, 2_000


class Variant(NamedTuple):
    """A sampler, and whether its weights are sums of logarithms."""

    sampler: Sampler
    logs: bool

    @property
    def name(self) -> str:
        """As in TABLE_THREE."""
        return f"{self.sampler}{', exp' * self.logs}"

    @contextmanager
    def engine(self, each: Prepared, samples: int, device: str, threads: int = 1) -> Iterator[SamplingEngine]:
        """Make an engine; its last stage alone counts, as theirs."""
        limit = engines.PLAIN_LIMIT
        # Weights are logarithms where a bound on them is beyond the limit: on either side of all bounds.
        engines.PLAIN_LIMIT = -1.0 if self.logs else 1e9
        try:
            options = argparse.Namespace(seed=1, threads=threads, device=device)
            yield engine_for(each, self.sampler, options, samples=samples)
        finally:
            engines.PLAIN_LIMIT = limit


def variants(*samplers: Sampler) -> list[Variant]:
    return [Variant(sampler, logs) for sampler in samplers for logs in (True, False)]


def prepared(asked: Asked, cases: int = CASES) -> Iterator[Prepared]:
    """Return networks with cases and their exact posteriors, each once it is asked for."""
    return (with_cases(path, FEW if asked.small else cases) for path in asked.files(TABLE_ONE))


def with_cases(path: Path, cases: int) -> Prepared:
    network, name = read_network(str(path)), path.name.split(".")[0]
    rows = list(islice(evidence(network, "unlikely", observed(name, network), 1, True), cases))
    answers = exact(network, rows)
    tables, logs = [tables for tables, _ in answers], [log for _, log in answers]
    return Prepared(name, network, {"unlikely": rows}, {"unlikely": tables}, {"unlikely": logs})


def observed(name: str, network: Network) -> int:
    return NETWORKS[name][1] if name in NETWORKS else max(1, len(network.variables) // 10)


def table_one(asked: Asked) -> None:
    """Variables, arcs and observed variables, theirs behind."""
    files = asked.files(TABLE_ONE)
    print("network | variables | arcs | observed | theirs\n---|---|---|---|---")
    for path in files:
        network, name = read_network(str(path)), path.name.split(".")[0]
        arcs = sum(len(factor.scope) - 1 for factor in network.factors)
        theirs = ", ".join(map(str, TABLE_ONE[name])) if name in TABLE_ONE else ""
        print(f"{name} | {len(network.variables)} | {arcs} | {observed(name, network)} | {theirs}")


def figure_five(asked: Asked) -> None:
    """Average MSE of AIS-BN."""
    errors(asked, "ais-bn")


def figure_six(asked: Asked) -> None:
    """Average MSE of SIS."""
    errors(asked, "sis")


def errors(asked: Asked, sampler: Sampler) -> None:
    """Means over cases of their MSE, which has a square root; with logarithms and without, CPU and GPU."""
    works = prepared(asked)
    devices = ["cpu", *["gpu"] * asked.gpu]
    columns = [(variant, device) for device in devices for variant in variants(sampler)]
    print("network | cases | " + " | ".join(f"{variant.name}, {device}" for variant, device in columns) + " | missed")
    print("|".join(["---"] * (3 + len(columns))))
    for each in works:
        found = [mses(variant, each, device, FEW_SAMPLES if asked.small else SAMPLES) for variant, device in columns]
        means = " | ".join(f"{statistics.mean(values):.2e}" if values else "none" for values in found)
        cases = len(each.cases["unlikely"])
        print(f"{each.name} | {cases} | {means} | {cases - min(map(len, found))}", flush=True)


def mses(variant: Variant, each: Prepared, device: str, samples: int) -> list[float]:
    """Return the MSE of each case in which some sample has a weight."""
    found = []
    with variant.engine(each, samples, device, 2) as engine:
        for row, (case, truth) in enumerate(zip(each.cases["unlikely"], each.exact["unlikely"], strict=True)):
            posteriors, estimate = ask(engine, case, row)
            if estimate is not None:
                found.append(mse(posteriors, truth))
    return found


def mse(found: Tables, truth: Tables) -> float:
    """Return the root of the mean squared difference over all states of all variables."""
    return squared(found, truth) ** 0.5


def table_three(asked: Asked) -> None:
    """Seconds of a case on a core, and on a GPU by either kernel; ratios as theirs."""
    works = prepared(asked, TIMED)
    print("network | variant | a core s | simple s | wavefront s | core / wavefront | simple / wavefront | theirs")
    print("|".join(["---"] * 8))
    for each in works:
        for variant in variants("ais-bn", "sis"):
            seconds = [f"{taken(variant, each, 'cpu', None, asked.small):.4f}", "", "", "", ""]
            if asked.gpu:
                times = [float(seconds[0]), *(taken(variant, each, "gpu", group, asked.small) for group in (0, 32))]
                seconds = [*(f"{time:.4f}" for time in times), *(f"{time / times[2]:.1f}" for time in times[:2])]
            print(
                f"{each.name} | {variant.name} | {' | '.join(seconds)} | {theirs(each.name, variant.name)}", flush=True
            )


def theirs(network: str, variant: str) -> str:
    """Return seconds on their Intel CPU, simple and wavefront on their GPU, and both ratios."""
    if (network, variant) not in TABLE_THREE:
        return ""
    _, core, simple, wave = TABLE_THREE[network, variant]
    return f"{core}, {simple}, {wave}; {core / wave:.1f}, {simple / wave:.2f}"


def taken(variant: Variant, each: Prepared, device: str, group: int | None, small: bool) -> float:
    """Return the mean of the seconds of some cases, whose patterns are known."""
    with variant.engine(each, FEW_SAMPLES if small else SAMPLES, device) as engine:
        if group is not None:
            gpu: Any = engine.gpu
            gpu.way = lambda *_: group
        found = []
        for row, case in enumerate(each.cases["unlikely"]):
            ask(engine, case, row)
            start = time.process_time() if device == "cpu" else time.perf_counter()
            ask(engine, case, row)
            found.append((time.process_time() if device == "cpu" else time.perf_counter()) - start)
    return statistics.mean(found)


def figure_seven(asked: Asked) -> None:
    """Milliseconds of AIS-BN's draws with logarithms by the samples of a block, 256 threads each."""
    by_blocks(asked, [(group, 256) for group in (1, 2, 4, 8, 16, 32)])


def figure_eight(asked: Asked) -> None:
    """Milliseconds of AIS-BN's draws with logarithms by the threads of a block, 16 samples each."""
    by_blocks(asked, [(16, threads) for threads in WAVE_THREADS])


def by_blocks(asked: Asked, blocks: Sequence[tuple[int, int]]) -> None:
    works, samples = prepared(asked, 1), 128 if asked.small else SAMPLES
    print("network | " + " | ".join(f"{group} samples, {threads} threads" for group, threads in blocks))
    print("|".join(["---"] * (1 + len(blocks))))
    for each in works:
        with Variant("ais-bn", True).engine(each, samples, "gpu") as engine:
            gpu: Any = engine.gpu
            cells = []
            for group, threads in blocks:
                gpu.wave_threads = threads
                cells.append(f"{draws(engine, each, group, samples):.4f}")
        print(f"{each.name} | {' | '.join(cells)}", flush=True)


def table_four(asked: Asked) -> None:
    """Milliseconds of a case of AIS-BN with logarithms: kernels, transfers, their share, and the whole call.

    By the profiler of PyTorch, which sees all that a process does on a GPU; `ncu` has what these kernels wait for.
    """
    # Before CuPy opens the GPU: the other way round both free the same memory when the process ends.
    importlib.import_module("torch.profiler")
    print("network | kernels ms | transfers ms | share of transfers | most of it | call ms\n" + "|".join(["---"] * 6))
    for each in prepared(asked, 1):
        with Variant("ais-bn", True).engine(each, FEW_SAMPLES if asked.small else SAMPLES, "gpu") as engine:
            case = each.cases["unlikely"][0]
            ask(engine, case, 0)
            spent, whole = profiled(lambda engine=engine, case=case: ask(engine, case, 0))
        # Copies and zeros are named so by CUDA.
        copies = sum(part for name, part in spent.items() if name.startswith("Mem"))
        kernels = spent.total() - copies
        ((most, longest),) = spent.most_common(1)
        cells = [f"{kernels:.3f}", f"{copies:.3f}", f"{copies / spent.total():.1%}"]
        print(f"{each.name} | {' | '.join(cells)} | {most}, {longest / spent.total():.0%} | {whole:.2f}", flush=True)


def profiled(work: Callable[[], object]) -> tuple[Counter[str], float]:
    """Return the milliseconds of the GPU by kernel or kind of copy, and those of the whole."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as made:
        start = time.perf_counter()
        work()
        whole = 1e3 * (time.perf_counter() - start)
    spent = Counter[str]()
    for event in made.events() or ():
        if event.device_type == DeviceType.CUDA:
            spent[event.name] += event.time_range.elapsed_us() / 1e3
    return spent, whole


def table_five(asked: Asked) -> None:
    """Entries of F that procedure Sample reads for a draw, and the share that an order of the states saves.

    By exact posteriors, in the order of the file and of a variable's posterior (their beta_V); then counted in samples
    of the network, also by each row of F itself; last thresholds that our draws compare with, one fewer a row.
    """
    works = prepared(asked, 4)
    print("network | expected reads | by posterior | less | counted reads | by posterior | by row | ours | theirs less")
    print("|".join(["---"] * 9))
    for each in works:
        plain, ordered = (sum(parts) for parts in zip(*map(expected_reads, each.exact["unlikely"]), strict=True))
        draws_made = sum(map(len, each.exact["unlikely"]))
        counted = np.sum(
            [counted_reads(each, row, 1 << (10 if asked.small else 14)) for row in range(len(each.cases["unlikely"]))],
            axis=0,
        )
        cells = [f"{plain / draws_made:.3f}", f"{ordered / draws_made:.3f}", f"{1 - ordered / plain:.1%}"]
        cells += [f"{counted[0] / counted[-1]:.3f}", *(f"{number / counted[0] - 1:.1%}" for number in counted[1:-1])]
        print(f"{each.name} | {' | '.join(cells)} | {TABLE_FIVE.get(each.name, '')}", flush=True)


def expected_reads(exact_tables: Tables) -> tuple[float, float]:
    """Return the entries that a sample of all variables reads, in the order of the file and from the likeliest on."""
    places = [np.arange(1, len(table) + 1) for table in exact_tables.values()]
    tables = exact_tables.values()
    plain = sum(float(table @ place) for table, place in zip(tables, places, strict=True))
    return plain, sum(float(np.sort(table)[::-1] @ place) for table, place in zip(tables, places, strict=True))


def counted_reads(each: Prepared, row: int, samples: int) -> npt.NDArray[np.float64]:
    """Return entries read in samples: by the file, by the posterior, by row of F, thresholds of ours; and the draws."""
    case, truth = each.cases["unlikely"][row], each.exact["unlikely"][row]
    engine = engine_for(each, "lw", argparse.Namespace(seed=1, threads=1, device="cpu"))
    layout = engine._layout(Evidence(frozenset(case), frozenset()))
    what, tables = layout.case(case, {}, False), engine.sampled.tables
    states = reference.draw(tables, what, RandomStream(1, row, 0), 0, samples)
    found = np.zeros(5)
    for n, node in enumerate(what.nodes):
        size = int(node[layouts.STATES])
        rows = reference._offsets(states, what.parents, node[layouts.PARENTS], node[layouts.COUNT])
        chances = tables.probabilities[(node[layouts.ENTRY] + rows * size)[:, None] + np.arange(size)]
        own = (np.argsort(-chances, axis=1, kind="stable") == states[n][:, None]).argmax(axis=1)
        by_posterior = np.argsort(np.argsort(-truth[layout.drawn[n]], kind="stable"), kind="stable")[states[n]]
        found[:3] += [part.sum() + samples for part in (states[n].astype(np.int64), by_posterior, own)]
    found[3:] = reference.entries_read(tables, what, states), states.size
    return found
