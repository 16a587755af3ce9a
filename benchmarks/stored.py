"""Stored clique tables: the tables of Bistaffa, Farinelli and Bombieri (2014) on this machine, and larger ones.

    uv run python benchmarks/stored.py prepare NETWORK ... --output FILE    trees with a searched order, on any machine
    python benchmarks/stored.py tables FILE|NETWORK ... [--cpu]            their Tables I and II; a GPU unless --cpu
    python benchmarks/stored.py stream [--size 96GiB]                       one table, streamed through a GPU
    python benchmarks/stored.py costs NETWORK ... --output FILE.parquet     counts and seconds on a CPU, for prices

`tables` prints the cliques of each tree (greedy orders for network files), then: milliseconds to bring all separators
to the front (preprocessing), to copy all tables to the device and back (transfers), of one propagation on all cores of
the CPU, of one on the GPU (its kernels, by events: collect and distribute over the whole tree, no evidence), and the
largest difference between both in any calibrated table (scaled to a sum of 1). `stream` measures what copies can reach
either way and both ways at once, then passes over a table in pinned host memory: sums only, products only, both in one
pass; with each pipeline; every result is checked against what the numbers were made from.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import Asked, need_gpu
from junctor.calibration.cliques import built_in, calibrate_cliques
from junctor.calibration.harness import local_device, save
from junctor.cliques.device import ResidentExecutor
from junctor.cliques.host import HostExecutor, Initial, Kernels, in_layout, kernels_for, natural_table
from junctor.cost.dataset import Measured
from junctor.formats import read_network
from junctor.model.network import Network
from junctor.planning.cliques import StoredPlan, plan_stored
from junctor.planning.shape import Shape
from junctor_kernels.gpu.stored import CudaCliqueDevice, upload_batch
from junctor_kernels.tables.reference import DOUBLE, SINGLE, Algebra
from stored_streams import stream

ALGEBRAS = {"single": SINGLE, "double": DOUBLE}


class Theirs(NamedTuple):
    """A column of their Tables I and II: nodes, entries of clique and of separator tables, milliseconds on a GTX 780
    and one core.

    zheng: of Zheng and Mengshoel, the speed-up that they compare with; none of munin1.
    """

    nodes: int
    cliques: tuple[int, int, int]
    separators: tuple[int, int, int]
    preprocessing: int
    transfers: int
    cpu: int
    kernels: int
    zheng: float | None

    @property
    def speedup(self) -> float:
        return self.cpu / self.kernels


THEIRS = {
    "mildew": Theirs(28, (4_372_480, 336, 341_651), (71_680, 72, 9_273), 40, 12, 355, 3, 19.90),
    "diabetes": Theirs(337, (190_080, 495, 32_443), (11_880, 16, 1_845), 112, 57, 420, 12, 12.36),
    "barley": Theirs(36, (7_257_600, 216, 512_044), (907_200, 7, 39_318), 444, 110, 974, 29, 21.19),
    "munin1": Theirs(162, (38_400_000, 4, 516_887), (2_400_000, 2, 44_058), 4518, 1521, 7490, 216, None),
    "munin2": Theirs(860, (504_000, 4, 5_653), (72_000, 2, 713), 50, 16, 210, 8, 4.80),
    "munin3": Theirs(904, (156_800, 4, 3_443), (22_400, 2, 553), 99, 39, 137, 14, 3.89),
    "munin4": Theirs(872, (784_000, 4, 16_444), (112_000, 2, 2_099), 268, 45, 473, 29, 7.04),
    "water": Theirs(20, (995_328, 9, 173_297), (147_456, 3, 26_065), 10, 15, 120, 11, 12.67),
}
CASES = 10**6


def shape_of(network: Network) -> Shape:
    return Shape(network.cardinalities, tuple(factor.scope for factor in network.factors), network.kind == "bayes")


def name_of(path: str | Path) -> str:
    return Path(path).name.split(".")[0]


def prepare(paths: Sequence[str | Path], output: Path) -> None:
    trees = []
    for path in paths:
        network = read_network(path)
        plan = plan_stored(shape_of(network), CASES)
        trees.append((name_of(path), network, plan))
        print(f"{name_of(path)}: {plan.total_entries():,} entries", flush=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(pickle.dumps(trees))


def trees_of(paths: Sequence[str | Path]) -> list[tuple[str, Network, StoredPlan]]:
    trees = []
    for path in paths:
        if Path(path).suffix == ".pickle":
            trees += pickle.loads(Path(path).read_bytes())
        else:
            network = read_network(path)
            trees.append((name_of(path), network, plan_stored(shape_of(network))))
    return trees


def table_one(trees: Sequence[tuple[str, Network, StoredPlan]]) -> None:
    print("network | nodes | clique max | min | average | separator max | min | average | entries")
    print("|".join(["---"] * 9))
    for name, _, plan in trees:
        numbers = range(len(plan.cliques))
        cliques = [plan.entries(i) for i in numbers]
        separators = [plan.separator_entries(i) for i in numbers if plan.cliques[i].parent is not None] or [1]
        cells = [f"{f(sizes):,.0f}" for sizes in (cliques, separators) for f in (max, min, statistics.mean)]
        print(f"{name} | {len(cliques)} | {' | '.join(cells)} | {sum(cliques):,}", flush=True)
        if theirs := THEIRS.get(name):
            cells = [f"{size:,}" for size in (*theirs.cliques, *theirs.separators)]
            entries = theirs.nodes * theirs.cliques[2]
            print(f"theirs | {theirs.nodes} | {' | '.join(cells)} | {entries:,}")
    mean = statistics.mean(each.cliques[2] / each.separators[2] for each in THEIRS.values())
    print(f"average clique over average separator, mean of their networks: {mean:.1f} (they say that blocks reduce 14)")


def median_ms(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


class OnDevice:
    """A tree on the GPU, and how long its parts take."""

    def __init__(
        self, plan: StoredPlan, natural: Sequence[Initial], algebra: Algebra, device: CudaCliqueDevice
    ) -> None:
        self.device, self.algebra = device, algebra
        self.executor = ResidentExecutor(plan, natural.__getitem__, algebra, device, int(0.9 * device.free()))
        self.executor.propagate({})

    def events_ms(self, enqueue: Callable[[], object], repeats: int) -> float:
        stream, times = self.executor._stream, []
        for n in range(repeats + 2):
            begin, end = self.device.event(timing=True), self.device.event(timing=True)
            begin.record(stream)
            enqueue()
            end.record(stream)
            end.synchronize()
            if n >= 2:
                times.append(1e3 * self.device.elapsed(begin, end))
        return statistics.median(times)

    def kernels_ms(self, repeats: int) -> float:
        return self.events_ms(self.executor._ready_for(frozenset()), repeats)

    def by_kernel(self) -> str:
        """Milliseconds of each kernel, its launches one by one, and how many there are."""
        executor, total, count = self.executor, dict[str, float](), dict[str, int]()
        batch, _ = executor._tasks(frozenset(), executor._base + executor._parts)
        launches, placed, _ = upload_batch(self.device, batch, executor._base + executor._batch, executor._stream)
        for work in launches:
            total[work.kernel] = total.get(work.kernel, 0) + self.events_ms(
                partial(executor._launch, [work], placed), 3
            )
            count[work.kernel] = count.get(work.kernel, 0) + 1
        return ", ".join(f"{kernel} {total[kernel]:.2f}/{count[kernel]}" for kernel in total)

    def preprocess_ms(self) -> float:
        """Milliseconds of the kernel that brings separators to the front; spoils the tables."""
        executor = self.executor
        batch, swaps = executor._permutations()
        at = executor._base + executor._batch
        host = self.device.host(len(swaps), swaps.dtype)
        host[:] = swaps
        self.device.upload(host, at, executor._stream)
        launches, placed, _ = upload_batch(self.device, batch, at + swaps.nbytes, executor._stream)
        return self.events_ms(partial(executor._launch, launches, placed), 5)


def transfers_ms(device: CudaCliqueDevice, plan: StoredPlan, algebra: Algebra) -> float:
    """Milliseconds to copy as many bytes as all tables have to the device, and back, from pinned memory."""
    size = plan.total_entries()
    host, block, stream = (
        device.host(size, algebra.dtype),
        device.allocate(size * algebra.dtype.itemsize),
        device.stream(),
    )
    times = []
    for _ in range(4):
        begin, end = device.event(timing=True), device.event(timing=True)
        begin.record(stream)
        device.upload(host, block.ptr, stream)
        device.download(block.ptr, host, stream)
        end.record(stream)
        end.synchronize()
        times.append(1e3 * device.elapsed(begin, end))
    return statistics.median(times[1:])


def host_kernels(algebra: Algebra, entries: int) -> Kernels:
    """Compiled kernels where Numba is installed, those of NumPy elsewhere."""
    return kernels_for(algebra, entries if find_spec("numba") else 0)


def largest_difference(device: ResidentExecutor, host: HostExecutor, cliques: int) -> float:
    worst = 0.0
    for i in range(cliques):
        a, b = (table.astype(np.float64) / table.sum(dtype=np.float64) for table in (device.table(i), host.table(i)))
        worst = max(worst, float(np.abs(a - b).max()))
    return worst


def table_two(trees: Sequence[tuple[str, Network, StoredPlan]], options: argparse.Namespace) -> None:
    device = None if options.cpu else CudaCliqueDevice()
    print(
        f"compiled CPU kernels: {bool(find_spec('numba'))}; all times in ms; theirs: a GTX 780 and one core at 3.4 GHz"
    )
    print(
        "network | precision | entries | preprocessing CPU | GPU | transfers | CPU | GPU kernels | "
        "CPU/GPU | with transfers | difference | lost"
    )
    print("|".join(["---"] * 12), flush=True)
    for name, network, plan in trees:
        for algebra in [ALGEBRAS[each] for each in options.precision]:
            measure(name, network, plan, algebra, device, options)
        if theirs := THEIRS.get(name):
            times = f"{theirs.preprocessing} | - | {theirs.transfers} | {theirs.cpu} | {theirs.kernels}"
            gains = f"{theirs.speedup:.2f} | {theirs.cpu / (theirs.kernels + theirs.transfers):.1f}"
            print(f"theirs | single | {theirs.nodes * theirs.cliques[2]:,} | {times} | {gains} | - | -", flush=True)


def measure(
    name: str,
    network: Network,
    plan: StoredPlan,
    algebra: Algebra,
    device: CudaCliqueDevice | None,
    options: argparse.Namespace,
) -> None:
    kernels, numbers = host_kernels(algebra, plan.total_entries()), range(len(plan.cliques))
    natural = [natural_table(plan, network, i, algebra, kernels) for i in numbers]

    def order(i: int) -> Initial:
        return natural[i]._replace(table=in_layout(natural[i].table, plan.cliques[i], plan.sizes))

    # NumPy takes long over the largest trees.
    repeats = options.repeats if find_spec("numba") else 1
    preprocessing = median_ms(lambda: [order(i) for i in numbers], repeats)
    host = HostExecutor(plan, [order(i) for i in numbers], algebra, kernels)
    lost = host.propagate({}).lost
    cpu = median_ms(lambda: host.propagate({}), repeats)
    start = f"{name} | {algebra.name} | {plan.total_entries():,} | {preprocessing:.1f}"
    if device is None:
        print(f"{start} | - | - | {cpu:.1f} | - | - | - | - | {lost}", flush=True)
        return
    gpu = OnDevice(plan, natural, algebra, device)
    worst = largest_difference(gpu.executor, host, len(numbers))
    transfers, alone = transfers_ms(device, plan, algebra), gpu.kernels_ms(20)
    parts = gpu.by_kernel() if options.kernels else ""
    permuting = gpu.preprocess_ms()
    gains = f"{cpu / alone:.1f} | {cpu / (alone + transfers):.1f}"
    gpu_times = f"{permuting:.2f} | {transfers:.2f} | {cpu:.1f} | {alone:.3f}"
    print(f"{start} | {gpu_times} | {gains} | {worst:.1e} | {lost}")
    if parts:
        print(f"   ms/launches: {parts}")
    print(end="", flush=True)


def costs(paths: list[str], output: Path) -> None:
    """Measure networks and those that are made here; `costs.py check` says how good forecasts are."""
    rows: list[Measured] = []
    for name, found in calibrate_cliques([*((name_of(path), read_network(path)) for path in paths), *built_in()]):
        print(name, " ".join(f"{row.seconds:.3f}" for row in found), flush=True)
        rows += found
    save(local_device("cpu"), rows, output)


def paper_table_one(asked: Asked) -> None:
    table_one(trees_of(asked.files(THEIRS)))


def paper_table_two(asked: Asked) -> None:
    trees = trees_of(asked.files(THEIRS))
    table_two(trees, argparse.Namespace(cpu=not asked.gpu, precision=["single"], repeats=3, kernels=False))


def paper_gains(asked: Asked) -> None:
    """Print their speed-ups beside those of Zheng and Mengshoel, whose CPU times they take."""
    del asked
    print("network | theirs | Zheng's | one over the other | gain\n---|---|---|---|---")
    for name, theirs in THEIRS.items():
        if theirs.zheng is not None:
            ratio = theirs.speedup / theirs.zheng
            print(f"{name} | {theirs.speedup:.2f} | {theirs.zheng} | {ratio:.2f} | {ratio - 1:+.0%}")


def paper_pipelines(asked: Asked) -> None:
    size = "1GiB" if asked.small else "96GiB"
    stream(argparse.Namespace(size=size, run=1 << 18, chunk="128MiB", in_flight=4, repeats=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(dest="action", required=True)
    plans = actions.add_parser("prepare")
    plans.add_argument("networks", nargs="+")
    plans.add_argument("--output", type=Path, required=True)
    tables = actions.add_parser("tables")
    tables.add_argument("networks", nargs="+", help="network files, or what `prepare` wrote (.pickle)")
    tables.add_argument("--cpu", action="store_true", help="without a GPU")
    tables.add_argument("--kernels", action="store_true", help="milliseconds of each kernel as well")
    tables.add_argument("--precision", nargs="+", choices=sorted(ALGEBRAS), default=["single"])
    tables.add_argument("--repeats", type=int, default=3)
    prices = actions.add_parser("costs")
    prices.add_argument("networks", nargs="+")
    prices.add_argument("--output", type=Path, required=True)
    streams = actions.add_parser("stream")
    streams.add_argument("--size", default="96GiB")
    streams.add_argument("--run", type=int, default=1 << 18, help="entries of a run")
    streams.add_argument("--chunk", default="128MiB")
    streams.add_argument("--in-flight", type=int, default=4)
    streams.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    if options.action == "prepare":
        prepare(options.networks, options.output)
    elif options.action == "tables":
        if not options.cpu:
            need_gpu("without --cpu, stored.py tables")
        trees = trees_of(options.networks)
        table_one(trees)
        table_two(trees, options)
    elif options.action == "costs":
        costs(options.networks, options.output)
    else:
        need_gpu("stored.py stream")
        stream(options)


if __name__ == "__main__":
    main()
