"""The cost model in chunks: measure cut plans of many networks, and see what its choices are worth.

    uv run python benchmarks/chunk_costs.py prepare WHAT ... --output cases.pickle [--gpu]     plans, on any machine
    python benchmarks/chunk_costs.py measure cases.pickle --output FILE.parquet [--gpu]        seconds, counts of work
    uv run python benchmarks/chunk_costs.py ways WHAT ... --memory 1GiB --output ways.pickle [--gpu]
    python benchmarks/chunk_costs.py compare ways.pickle [--gpu]                               every way, and the chosen

WHAT is a network file, ROWSxCOLUMNS or ROWSxCOLUMNSxSTATES of a grid, or the variables of a complete graph.
`benchmarks/costs.py check FILE.parquet` says how good forecasts are on networks held out. `ways` cuts the chosen order
for every share of the memory; `compare` runs each of them with every number of slots.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from costs import gpu_at_hand
from junctor.calibration import chunked as chunk_tuning
from junctor.calibration.chunked import ChunkCase, cpu_cases, fewest_seconds, gpu_cases, measure_on_cpu, measure_on_gpu
from junctor.calibration.harness import Repeats, fewest, local_device, save
from junctor.cost.dataset import Measured
from junctor.cost.model import cpu_name, local_cost_models
from junctor.formats import read_network
from junctor.generate import grid
from junctor.model.network import Network
from junctor.out_of_core.gpu.devices import DeviceGroup
from junctor.out_of_core.gpu.run import ChunkedGpuProgram
from junctor.out_of_core.memory_splits import SLOTS, CpuSplit, CpuSplits, GpuSplits, MemoryLimits
from junctor.out_of_core.program import ChunkedProgram
from junctor.out_of_core.programs import cut
from junctor.planning.budget import format_bytes, parse_bytes
from junctor.planning.chunks import ChunkPlan, TooSmallError, chunk_plan
from junctor.planning.compile import Problem
from junctor.planning.shape import Pattern, shape_of
from junctor_kernels.tables.reference import DOUBLE, SINGLE
from oversize import NOT_HERE, complete

ALGEBRAS = {algebra.name: algebra for algebra in (DOUBLE, SINGLE)}
# Bytes of a GPU for each process that measures.
ROOM = 5 << 30


def network_of(what: str) -> tuple[str, Network]:
    """Return a network and its name."""
    if Path(what).exists():
        return Path(what).name.split(".")[0], read_network(what)
    sizes = [int(size) for size in what.split("x")]
    if len(sizes) == 1:
        return f"complete {what}", complete(sizes[0])
    rows, columns, states = (*sizes, 2)[:3]
    return f"grid {rows} x {columns}, {states} states", grid(rows, columns, states, seed=rows)


def prepare(options: argparse.Namespace) -> None:
    """Cut plans of all networks."""
    chunk_tuning.MOST_OPERATIONS = chunk_tuning.GPU_OPERATIONS = options.most
    chunk_tuning.MOST_CONTRACTIONS, chunk_tuning.ORDERS = options.contractions, options.orders
    cases: list[ChunkCase] = []
    for what in options.what:
        found = list((gpu_cases if options.gpu else cpu_cases)([network_of(what)]))
        print(f"{what}: {len(found)} plans", flush=True)
        cases += found
    options.output.write_bytes(pickle.dumps(cases))


def measure(options: argparse.Namespace) -> None:
    """Measure cases in an order that mixes networks, as many as there is time for."""
    cases: list[ChunkCase] = pickle.loads(options.cases.read_bytes())
    device = gpu_at_hand() if options.gpu else local_device("cpu")
    rows: list[Measured] = []
    for number in range(options.passes):
        random.Random(number).shuffle(cases)
        for line, found in (_on_gpu if options.gpu else _on_cpu)(cases, options):
            rows += found
            print(line, flush=True)
    save(device, fewest(rows), options.output)
    print(f"{len(fewest(rows)):,} measurements of {device.name}")


def _on_cpu(cases: Sequence[ChunkCase], options: argparse.Namespace) -> Iterator[tuple[str, list[Measured]]]:
    started = time.monotonic()
    for case in cases:
        if time.monotonic() - started < options.limit:
            found = measure_on_cpu(case)
            yield _line(case, found), found


def _line(case: ChunkCase, found: Sequence[Measured]) -> str:
    return f"{case.name}, {case.label}, {case.algebra.name}: " + " ".join(f"{row.seconds:.4f}" for row in found)


_device: Any = None
_deadline = 0.0
_settings = 0


def _begin(turn: Any, deadline: float, settings: int) -> None:
    """Open the device in a process of its own; what is timed takes turns."""
    global _device, _deadline, _settings
    from junctor_kernels.gpu.blocks import CudaBlockDevice

    alone = fewest_seconds

    def in_turn(*given: Any) -> float:
        with turn:
            return alone(*given)

    chunk_tuning.fewest_seconds = in_turn
    chunk_tuning.REPEATS = Repeats(1, 2, 0.5)
    _device, _deadline, _settings = CudaBlockDevice(0, ROOM), deadline, settings


def _in_process(numbered: tuple[int, ChunkCase]) -> tuple[str, list[Measured]]:
    number, case = numbered
    if time.time() > _deadline:
        return f"{case.name}, {case.label}: no time left", []
    every = chunk_tuning.GPU_SETTINGS
    try:
        chunk_tuning.GPU_SETTINGS = tuple(every[(_settings * number + n) % len(every)] for n in range(_settings))
        found = measure_on_gpu(case, _device)
    except Exception as error:
        return f"{case.name}, {case.label}: {type(error).__name__}: {error}", []
    finally:
        chunk_tuning.GPU_SETTINGS = every
    return _line(case, found), found


def _on_gpu(cases: Sequence[ChunkCase], options: argparse.Namespace) -> Iterator[tuple[str, list[Measured]]]:
    fork = multiprocessing.get_context("fork")
    given = fork.Lock(), time.time() + options.limit, options.settings
    with fork.Pool(options.processes, _begin, given) as pool:
        yield from pool.imap_unordered(_in_process, enumerate(cases))


class Way(NamedTuple):
    """A plan cut for a share of the memory, with what the model says for it; slots: as many as it was told."""

    share: str
    chunks: ChunkPlan
    scratch: int
    threads: int
    slots: int
    forecast: float
    chosen: bool


def ways(options: argparse.Namespace) -> None:
    """Cut the chosen order for every share of the memory."""
    found = []
    models = local_cost_models(own=False)
    costs = models.gpu(NOT_HERE) if options.gpu else models.cpu(cpu_name())
    algebra, memory = ALGEBRAS[options.precision], parse_bytes(options.memory)
    task = parse_bytes(options.device_memory) if options.device_memory else None
    limits = MemoryLimits(memory, task, 1 << 50, Path("/tmp"), 1, options.gpu)
    for what in options.what:
        name, network = network_of(what)
        started = time.perf_counter()
        chosen = cut(Problem(shape_of(network), Pattern(frozenset(), frozenset())), algebra, limits, costs)
        print(f"{name}: planned in {time.perf_counter() - started:.1f} s, forecast {chosen.seconds:.3g} s", flush=True)
        rooms = (GpuSplits if options.gpu else CpuSplits)(limits, algebra, costs, 1)
        every: list[Way] = []
        for room in rooms.splits(chosen.chunks.plan):
            try:
                sizes = (each // algebra.dtype.itemsize for each in (room.working, room.memory, room.disk))
                chunks = chunk_plan(chosen.chunks.plan, *sizes)
            except TooSmallError:
                continue
            each, share = rooms.chunking(chunks, room), format_bytes(room.working)
            if not isinstance(rooms, GpuSplits):
                assert isinstance(room, CpuSplit)
                share += "" if room.arithmetic.compiled else ", NumPy"
            for slots in SLOTS if isinstance(rooms, GpuSplits) else (0,):
                known = [way for way in every if _same(way.chunks, chunks)]
                if any((way.threads, way.slots) == (each.entry_threads, slots) for way in known):
                    continue
                same = _same(chunks, chosen.chunks) and each.entry_threads == chosen.entry_threads
                is_chosen = same and slots == chosen.slots
                if isinstance(rooms, GpuSplits) and slots > rooms.most_slots(chunks):
                    continue
                seconds = rooms.seconds_with(chunks, slots) if isinstance(rooms, GpuSplits) else each.seconds
                every.append(Way(share, chunks, each.scratch, each.entry_threads, slots, seconds, is_chosen))
        found.append((name, network, options.precision, task, every))
    options.output.write_bytes(pickle.dumps(found))


def _same(one: ChunkPlan, other: ChunkPlan) -> bool:
    return (one.passes, one.on_disk) == (other.passes, other.on_disk)


def compare(options: argparse.Namespace) -> None:
    """Run every way and print how far the chosen one is from the best."""
    print("network | tasks have | slots | tasks | passes | forecast, s | seconds | chosen")
    print("|".join(["---"] * 8))
    for name, network, precision, task, every in pickle.loads(options.ways.read_bytes()):
        seconds: list[float] = []
        for way in every:
            seconds.append(_seconds_of(way, network, ALGEBRAS[precision], task, options.gpu))
            passes, mark = len(way.chunks.passes), "chosen" if way.chosen else ""
            print(
                f"{name} | {way.share} | {way.slots or ''} | {way.chunks.tasks:,} | {passes} | {way.forecast:.3g} | "
                f"{seconds[-1]:.3g} | {mark}",
                flush=True,
            )
        best = min(seconds)
        chosen = next(taken for way, taken in zip(every, seconds, strict=True) if way.chosen)
        print(f"{name}: chosen {chosen:.3g} s, best {best:.3g} s, {chosen / best - 1:.1%} over it", flush=True)


def _seconds_of(way: Way, network: Network, algebra: Any, task: int | None, on_gpu: bool) -> float:
    folder = Path("/tmp")
    if on_gpu:
        from junctor_kernels.gpu.blocks import CudaBlockDevice

        gpu = DeviceGroup(way.chunks, algebra, CudaBlockDevice(0, task), slots=way.slots)
        return fewest_seconds(ChunkedGpuProgram(way.chunks, network, algebra, gpu, folder), time.perf_counter)
    program = ChunkedProgram(way.chunks, network, algebra, way.scratch, folder, entry_threads=way.threads)
    return fewest_seconds(program, time.process_time)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    planning = commands.add_parser("prepare")
    planning.add_argument("what", nargs="+")
    planning.add_argument("--most", type=float, default=1e9, help="entry operations of a case")
    planning.add_argument("--contractions", type=int, default=20_000, help="of all tasks of a case, at most")
    planning.add_argument("--orders", type=int, default=2, help="of each network")
    planning.set_defaults(command=prepare)
    measuring = commands.add_parser("measure")
    measuring.add_argument("cases", type=Path)
    measuring.add_argument("--passes", type=int, default=1)
    measuring.add_argument("--limit", type=float, default=600.0, help="seconds after which none is begun")
    measuring.add_argument("--processes", type=int, default=10, help="that prepare what a GPU does in turns")
    measuring.add_argument("--settings", type=int, default=2, help="slots and tables on a GPU, in turns, for each plan")
    measuring.set_defaults(command=measure)
    cutting = commands.add_parser("ways")
    cutting.add_argument("what", nargs="+")
    cutting.add_argument("--memory", default="4GiB")
    cutting.add_argument("--device-memory")
    cutting.add_argument("--precision", choices=list(ALGEBRAS), default="single")
    cutting.set_defaults(command=ways)
    comparing = commands.add_parser("compare")
    comparing.add_argument("ways", type=Path)
    comparing.set_defaults(command=compare)
    for command in (planning, measuring, cutting):
        command.add_argument("--output", type=Path, required=True)
    for command in (planning, measuring, cutting, comparing):
        command.add_argument("--gpu", action="store_true")
    options = parser.parse_args()
    options.command(options)


if __name__ == "__main__":
    main()
