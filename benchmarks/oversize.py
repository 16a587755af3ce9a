"""Tables larger than a device: grids whose messages travel in chunks, and a clique that no memory would hold.

    python benchmarks/oversize.py prepare WHAT ... --device-memory 8GiB [--gpus 4] --output plans.pickle
    python benchmarks/oversize.py run plans.pickle [--device gpu|cpu] [--gpus 4] [--repeat 2] [--timeline picture.svg]
    python benchmarks/oversize.py workers plans.pickle [--gpus 4]
    python benchmarks/oversize.py enqueue plans.pickle [--gpus 4]
    python benchmarks/oversize.py command WHAT ... [--repeat 3] [-- --device gpu --precision single]

WHAT is a grid, ROWSxCOLUMNS, also of mixed cardinalities (24x24:2-4), or the variables of a complete graph. With
`--query mpe` max-marginals are measured, and how many variables are ambiguous. `prepare` needs no GPU, `run` no
compiled CPU code; with more `--gpus` than there are, some have several of the rooms. The bound is what the slowest of
four takes alone, of the device that has most: bytes over the bus in either direction, bytes from other devices, and
bytes that the kernels read and write, each at the rate of a copy in the same run.

`--timeline` records one more propagation: what streams and the thread of the host do when, as a picture, as a trace
beside it (picture.json, for https://ui.perfetto.dev) and as shares of the time. `workers` starts Dask-CUDA workers, one
for each GPU: one of them leads all GPUs for a row, then all answer rows side by side. `enqueue` counts what the host
asks of devices, and the seconds it takes where these do nothing, the driver left out; it needs no GPU. `command` is
what a user types: `junctor run` of a file and one row, each time in a process of its own; the first one plans.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from idle_devices import IdleDevice, idle_devices
from junctor.backends.number_formats import chunk_ladder_of
from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.cost.dataset import MeasuredDevice
from junctor.cost.model import local_cost_models
from junctor.formats import write_network
from junctor.generate import grid
from junctor.model.errors import Place
from junctor.model.network import DraftTable, DraftVariable, Network, build_network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.out_of_core.cluster.workers import open_workers
from junctor.out_of_core.explanations import log_probability, read_max_marginals, rounding_of
from junctor.out_of_core.gpu.devices import DeviceGroup
from junctor.out_of_core.gpu.in_flight import PassInFlight
from junctor.out_of_core.gpu.run import ChunkedGpuProgram, GpuRun
from junctor.out_of_core.gpu.slots import StreamMark
from junctor.out_of_core.memory_splits import ChunkRoute, MemoryLimits, SideBySide
from junctor.out_of_core.program import ChunkedProgram
from junctor.out_of_core.programs import SingleCaseProgram, cut
from junctor.out_of_core.store import ChunkStore
from junctor.placement.fusion import touched_entries
from junctor.placement.placement import crosses_bus
from junctor.placement.sharding import agreement
from junctor.planning.budget import format_bytes, parse_bytes
from junctor.planning.chunks import ChunkPlan, loaded_entries
from junctor.planning.compile import Problem
from junctor.planning.shape import Pattern, shape_of
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.devices import count_gpus
from junctor.runtime.threads import in_threads
from junctor_kernels.gpu.device import CudaDevice
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra
from pyarrow import parquet
from timeline import DeviceClock, recorded, shares, write_trace
from timeline_picture import draw

COPY_BYTES = 1 << 30
# The command line, wherever it is installed.
JUNCTOR = "from junctor.cli import main; main()"
# Rows that each of several side by side answers.
ROWS_EACH = 4
# A GPU that is elsewhere: prices are those of the one that was measured.
NOT_HERE = MeasuredDevice("NVIDIA H100 80GB HBM3", {})


def complete(variables: int, seed: int = 0) -> Network:
    """Return binary variables with a potential on every pair: a single clique."""
    rng, place = np.random.default_rng(seed), Place("complete")
    names = [f"x{i}" for i in range(variables)]
    tables = [DraftTable(pair, rng.uniform(0.8, 1.2, (2, 2)), place) for pair in itertools.combinations(names, 2)]
    return build_network("complete", "markov", [DraftVariable(name, ["0", "1"], place) for name in names], tables)


def network_of(text: str) -> Network:
    """Return a grid, "28x28" or with cardinalities "24x24:2-4", or a complete graph, "36"."""
    form, _, states = text.partition(":")
    sizes = [int(size) for size in form.split("x")]
    if len(sizes) == 1:
        return complete(*sizes)
    least, _, most = (states or "2").partition("-")
    return grid(*sizes, states=(int(least), int(most or least)))


def prepare(arguments: argparse.Namespace) -> None:
    """Plan all problems for a device."""
    algebra = chunk_ladder_of(Query(arguments.query, precision=arguments.precision))[0]
    on_gpu = parse_bytes(arguments.device_memory)
    limits = MemoryLimits(parse_bytes(arguments.memory), on_gpu, 0, Path(), on_gpu=True)
    costs, plans = local_cost_models(own=False).gpu(NOT_HERE), []
    for text in arguments.sizes:
        problem = Problem(shape_of(network_of(text)), Pattern(frozenset(), frozenset()))
        started = time.perf_counter()
        chunking = cut(problem, algebra, limits, costs, gpus=arguments.gpus)
        describe(text, chunking.chunks, algebra.dtype.itemsize, time.perf_counter() - started)
        print(f"  forecast {chunking.seconds:.2f} s")
        plans.append((text, algebra.name, on_gpu, chunking.chunks, chunking.slots))
    Path(arguments.output).write_bytes(pickle.dumps(plans))


def describe(name: str, chunks: ChunkPlan, itemsize: int, seconds: float) -> None:
    """Print what a plan does."""
    plan = chunks.plan
    print(
        f"{name}: {plan.criterion}, planned in {seconds:.1f} s, {plan.shared_operations:.3g} operations, "
        f"{len(chunks.passes)} passes, {chunks.tasks} tasks of {format_bytes(chunks.working * itemsize)}, "
        f"in {format_bytes(chunks.loaded * itemsize)}, out {format_bytes(chunks.stored * itemsize)}, "
        f"stored at most {format_bytes(chunks.peak(on_disk=False) * itemsize)}, largest table "
        f"{format_bytes(max(table.entries for table in plan.tables) * itemsize)}, all tables "
        f"{format_bytes(sum(table.entries for table in plan.tables) * itemsize)}"
    )


def moved(chunks: ChunkPlan, n: int, itemsize: int, gpu: DeviceGroup | None) -> tuple[float, ...]:
    """Return the entries of a pass that the busiest device takes from the host, takes from others, brings out, touches.

    Tasks use tables that stay on a device where these are, or copy what other devices have made.
    itemsize: bytes of an entry.
    """
    plan, each = chunks.plan, chunks.passes[n]
    touched = plan.shape.entries(each.fixed) * touched_entries(chunks, each, itemsize)
    resident = gpu.resident if gpu else {}
    loads = {table: loaded_entries(plan, each, [table]) for table in each.loads}
    stored = sum(plan.tables[table].entries for table in each.stores if crosses_bus(resident, table, n))
    if gpu is None:
        return sum(loads.values()), 0.0, stored, touched
    deal = gpu.shardings.passes[n]
    there = [table for table in loads if not crosses_bus(resident, table, n)]
    over_bus = sum(loads.values()) - sum(loads[table] for table in there)
    exchanged = sum(loads[t] * (1 - agreement(resident[t].sharding, deal)) for t in there)
    share = deal.most / deal.count
    return over_bus * share, exchanged * share, stored * share, touched * share


def ceilings(gpus: int) -> tuple[float, ...]:
    """Measure bytes a second: into the device, from another one, out of it, and read and written by a copy on it."""
    import cupy

    memory = cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(COPY_BYTES), 0)
    host = np.ndarray((COPY_BYTES,), np.uint8, memory)
    one, other = cupy.empty(COPY_BYTES, np.uint8), cupy.empty(COPY_BYTES, np.uint8)
    with cupy.cuda.Device(min(gpus, count_gpus()) - 1):
        far = cupy.empty(COPY_BYTES, np.uint8)

    def rate(copy: Any, moved: int) -> float:
        copy()
        cupy.cuda.Device().synchronize()
        started = time.perf_counter()
        for _ in range(4):
            copy()
        cupy.cuda.Device().synchronize()
        return 4 * moved / (time.perf_counter() - started)

    return (
        rate(lambda: one.data.copy_from_host(host.ctypes.data, COPY_BYTES), COPY_BYTES),
        rate(lambda: other.data.copy_from_device(far.data, COPY_BYTES), COPY_BYTES),
        rate(lambda: one.data.copy_to_host(host.ctypes.data, COPY_BYTES), COPY_BYTES),
        rate(lambda: other.data.copy_from_device(one.data, COPY_BYTES), 2 * COPY_BYTES),
    )


def run(arguments: argparse.Namespace) -> None:
    """Propagate and print times beside the bound."""
    on_gpu = arguments.device == "gpu"
    rates = ceilings(arguments.gpus) if on_gpu else None
    if rates:
        print(
            "measured bytes/s: in {:.3g}, from another device {:.3g}, out {:.3g}, on the device {:.3g}".format(*rates)
        )
    plans = pickle.loads(Path(arguments.plans).read_bytes())
    for text, name, room, chunks, slots in plans:
        algebra, network = reference.ALGEBRAS[name], network_of(text)
        itemsize = algebra.dtype.itemsize
        describe(f"{text} ({name})", chunks, itemsize, 0.0)
        started = time.perf_counter()
        gpu = None
        program: SingleCaseProgram
        if on_gpu:
            from junctor_kernels.gpu.blocks import CudaBlockDevice

            devices = [CudaBlockDevice(n % count_gpus(), room) for n in range(arguments.gpus)]
            gpu = DeviceGroup(chunks, algebra, *devices, slots=slots)
            program = ChunkedGpuProgram(chunks, network, algebra, gpu)
            print(
                f"  {len(gpu.slots)} slots, {len(gpu.resident)} tables stay on devices, "
                f"prepared in {time.perf_counter() - started:.2f} s"
            )
        else:
            program = ChunkedProgram(chunks, network, algebra, entry_threads=arguments.threads)
        for _ in range(arguments.repeat):
            outcome = timed(program, chunks, gpu, rates, itemsize, arguments.slowest)
        if algebra.join is np.maximum:
            show_explanation(chunks, network, algebra, outcome)
        if gpu and arguments.abreast > 1:
            show_rows(chunks, network, algebra, room, slots, arguments.abreast)
        if gpu and arguments.timeline:
            kind = f"{min(len(devices), count_gpus())} x {devices[0].name}"
            title = f"{text}, {name}, {len(devices)} x {format_bytes(room)} of {kind}"
            path = arguments.timeline
            show_timeline(program, gpu, title, path if len(plans) == 1 else path.with_stem(f"{path.stem}-{text}"))


def command(arguments: argparse.Namespace) -> None:
    """Answer one row without evidence by `junctor run`, again and again; print what each of them took."""
    for text in arguments.sizes:
        with tempfile.TemporaryDirectory() as folder:
            network, evidence = Path(folder, "network.uai"), Path(folder, "evidence.csv")
            write_network(network_of(text), network)
            evidence.write_text("case_id\n1\n")
            for number in range(arguments.repeat):
                output = Path(folder, f"out-{number}")
                words = ["run", network, evidence, "-o", output, "--no-prefect", *arguments.options]
                started = time.perf_counter()
                done = subprocess.run([sys.executable, "-c", JUNCTOR, *words], capture_output=True, text=True)
                seconds = time.perf_counter() - started
                print(f"{text}, {'again' if number else 'first'}: {seconds:.2f} s", end="", flush=True)
                if done.returncode:
                    print(f", refused: {done.stderr.strip().splitlines()[-1]}", flush=True)
                    break
                made = json.loads((output / "manifest.json").read_text())
                choice, host = made["choices"][0], made["peak_bytes"]
                found = parquet.read_table(output / "posteriors")["log_evidence"][0].as_py()
                print(
                    f", propagation {made['stages']['propagating']:.2f} s, forecast {choice['forecast']:.2f} s, "
                    f"{choice['reason']}, host {format_bytes(host[0])}, log P(e) {found:.6f}",
                    flush=True,
                )


def enqueue(arguments: argparse.Namespace) -> None:
    """Enqueue propagations for devices that do nothing; print the seconds of the host and the calls."""
    for text, name, room, chunks, slots in pickle.loads(Path(arguments.plans).read_bytes()):
        algebra, block = reference.ALGEBRAS[name], EvidenceBlock(1, {}, {})
        with idle_devices() as calls:
            gpu = DeviceGroup(chunks, algebra, *(IdleDevice(n, room) for n in range(arguments.gpus)), slots=slots)
            program, seconds = ChunkedGpuProgram(chunks, network_of(text), algebra, gpu), list[float]()
            bound = program._bound
            for _ in range(arguments.repeat):
                store = ChunkStore(chunks, algebra.dtype, None, gpu.allocate)
                stats = bound.begin(block, store)
                calls.clear()
                started = time.perf_counter()
                GpuRun(program.launches, store, stats, partial(bound.update, stats)).run(program._dead)
                seconds.append(time.perf_counter() - started)
        print(f"{text} ({name}), {arguments.gpus} devices that do nothing: {min(seconds):.4f} s of the host")
        print("  " + ", ".join(f"{count:,} {name}" for name, count in sorted(calls.items())))


def over_workers(arguments: argparse.Namespace) -> None:
    """Answer rows by Dask-CUDA workers: all GPUs for each, then one GPU for each of several."""
    gpus, rows = arguments.gpus, ROWS_EACH * arguments.gpus
    for text, name, room, chunks, slots in pickle.loads(Path(arguments.plans).read_bytes()):
        algebra, network = reference.ALGEBRAS[name], network_of(text)
        limits = MemoryLimits(0, room, 0, Path(), on_gpu=True)
        route = ChunkRoute(chunks, limits, algebra.dtype.itemsize, 0, 0, 1.0, slots=slots, workers=gpus)
        resources = Resources(workers=gpus, compute=ComputeOptions(device="gpu", device_memory=room))
        with open_workers(resources, None) as pool:
            for abreast in dict.fromkeys((1, gpus)):
                way = SideBySide(gpus, abreast, dict.fromkeys(range(1, gpus + 1), 1.0), 0.0, 0.0)
                ((_, programs),) = pool.rounds_of(replace(route, side=way), network, algebra, np.arange(rows))
                for _ in range(arguments.repeat):
                    seconds = timed_rows(programs, rows)
                    print(f"{text} ({name}), {gpus} workers, {abreast} rows at a time: {seconds / rows:.3f} s a row")


def timed_rows(programs: Sequence[SingleCaseProgram], rows: int) -> float:
    """Return the seconds of some rows, as many at a time as there are programs."""
    started = time.perf_counter()
    in_threads(lambda _, place: programs[place].run(EvidenceBlock(1, {}, {})), range(rows), len(programs))
    return time.perf_counter() - started


def show_rows(chunks: ChunkPlan, network: Network, algebra: Algebra, room: int, slots: int, most: int) -> None:
    """Print the seconds of a row where several go side by side, each on one of the GPUs."""
    from junctor_kernels.gpu.blocks import CudaBlockDevice

    programs = [
        ChunkedGpuProgram(chunks, network, algebra, DeviceGroup(chunks, algebra, device, slots=slots))
        for device in (CudaBlockDevice(n % count_gpus(), room) for n in range(most))
    ]
    for abreast in range(1, most + 1):
        # The first rows prepare launches.
        for rows in (most, ROWS_EACH * abreast):
            seconds = timed_rows(programs[:abreast], rows)
        print(f"  {abreast} rows side by side: {seconds / rows:.3f} s a row")


def show_timeline(program: SingleCaseProgram, gpu: DeviceGroup, title: str, path: Path) -> None:
    """Propagate once more, and draw what streams and the host do."""
    with recorded(gpu) as bars:
        started = time.perf_counter()
        program.run(EvidenceBlock(1, {}, {}))
        seconds = time.perf_counter() - started
    print(f"  recorded, {seconds:.3f} s:", *shares(bars, seconds), sep="\n    ")
    write_trace(bars, path.with_suffix(".json"))
    draw(bars, seconds, f"{title}: {seconds:.2f} s", path)


def show_explanation(chunks: ChunkPlan, network: Network, algebra: Algebra, outcome: BlockOutcome) -> None:
    """Print how many variables are unambiguous, and what the explanation itself has if these are all."""
    block, value = EvidenceBlock(1, {}, {}), float(outcome.log_value[0])
    rounding = rounding_of(chunks.plan, network, block, value, algebra)
    found = read_max_marginals(outcome, block, rounding)
    own = log_probability(network, found.unambiguous | found.ambiguous, block)
    print(
        f"  {len(found.unambiguous)} variables unambiguous by more than {rounding:.1e}, "
        f"{len(found.ambiguous)} ambiguous; the best states of all have ln P {own:.10f}"
    )


def timed(
    program: SingleCaseProgram,
    chunks: ChunkPlan,
    gpu: DeviceGroup | None,
    rates: tuple[float, ...] | None,
    itemsize: int,
    slowest: int,
) -> BlockOutcome:
    """Propagate once, with the time of every pass."""
    with watched_gpu(gpu) if gpu else watched_cpu() as ends:
        started = time.perf_counter()
        outcome = program.run(EvidenceBlock(1, {}, {}))
        seconds = time.perf_counter() - started
    text = f"  {seconds:.3f} s, ln Z {outcome.log_value[0]:.8f}, doubtful {bool(outcome.doubtful[0])}"
    text += f", {chunks.plan.shared_operations / seconds:.3g} operations/s"
    ways = [moved(chunks, n, itemsize, gpu) for n in range(len(chunks.passes))]
    if rates:
        bounds = [sum(way) * itemsize / rate for way, rate in zip(zip(*ways, strict=True), rates, strict=True)]
        text += ", bounds: in {:.3f} s, from others {:.3f} s, out {:.3f} s, on the device {:.3f} s".format(*bounds)
        text += f": {seconds / max(bounds):.2f} x the largest"
    print(text, flush=True)
    # Of passes that overlap, how much later one ended than those before it.
    latest = [0.0, *itertools.accumulate(ends, max)]
    spent = [(after - before, n) for n, (before, after) in enumerate(itertools.pairwise(latest))]
    for each, n in sorted((each for each in spent if each[0] > 0), reverse=True)[:slowest]:
        this = chunks.passes[n]
        tasks = chunks.plan.shape.entries(this.fixed)
        work = sum(chunks.plan.work(step) for step in this.steps)
        text = f"    pass {n}: {each:.4f} s, {len(this.steps)} steps, {tasks} tasks, {work / each:.3g} operations/s"
        if rates:
            bounds = [entries * itemsize / rate for entries, rate in zip(ways[n], rates, strict=True)]
            text += ", bounds {:.4f}, {:.4f}, {:.4f}, {:.4f}".format(*bounds)
        print(text)
    return outcome


@contextmanager
def watched_cpu() -> Iterator[list[float]]:
    """Context manager: the ends of all passes, in seconds."""
    begin, ends = time.perf_counter(), list[float]()

    with patch("junctor.out_of_core.program.pass_done", lambda *_: ends.append(time.perf_counter() - begin)):
        yield ends


@contextmanager
def watched_gpu(gpu: DeviceGroup) -> Iterator[list[float]]:
    """The same by events of the devices."""
    event, ends, saved = CudaDevice.event, list[float](), dict[int, list[StreamMark]]()
    clocks = {device: DeviceClock(device.cuda) for device in gpu.devices}
    owners = {slot.number: slot.device for slot in gpu.slots}

    class Watched(GpuRun):
        def _close(self, work: PassInFlight) -> None:
            saved[work.number] = list(work.saved.values())
            super()._close(work)

    with (
        patch("junctor.out_of_core.gpu.run.GpuRun", Watched),
        patch.object(CudaDevice, "event", lambda device: event(device, timing=True)),
    ):
        began = time.perf_counter()
        yield ends
    ends += [
        max(clocks[owners[mark.slot]].at(mark.event) for mark in marks) - began for _, marks in sorted(saved.items())
    ]


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    planning = commands.add_parser("prepare")
    planning.add_argument("sizes", nargs="+", metavar="WHAT", help="28x28, 24x24:2-4, or variables of a complete graph")
    planning.add_argument("--query", choices=["posteriors", "mpe"], default="posteriors")
    planning.add_argument("--device-memory", default="8GiB")
    planning.add_argument("--memory", default="100GiB")
    planning.add_argument("--precision", choices=["single", "double", "log"], default="single")
    planning.add_argument("--gpus", type=int, default=1)
    planning.add_argument("--output", required=True)
    planning.set_defaults(command=prepare)
    running = commands.add_parser("run")
    running.add_argument("plans")
    running.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    running.add_argument("--gpus", type=int, default=1)
    running.add_argument("--threads", type=int, default=2)
    running.add_argument("--repeat", type=int, default=2)
    running.add_argument("--slowest", type=int, default=3, help="passes that are shown")
    running.add_argument("--abreast", type=int, default=1, metavar="ROWS", help="so many rows side by side as well")
    running.add_argument("--timeline", type=Path, metavar="FILE", help="picture of what a GPU and the host do when")
    running.set_defaults(command=run)
    working = commands.add_parser("workers")
    working.add_argument("plans")
    working.add_argument("--gpus", type=int, default=1)
    working.add_argument("--repeat", type=int, default=2, help="the first time prepares")
    working.set_defaults(command=over_workers)
    enqueuing = commands.add_parser("enqueue")
    enqueuing.add_argument("plans")
    enqueuing.add_argument("--gpus", type=int, default=1)
    enqueuing.add_argument("--repeat", type=int, default=5)
    enqueuing.set_defaults(command=enqueue)
    whole = commands.add_parser("command")
    whole.add_argument("sizes", nargs="+", metavar="WHAT")
    whole.add_argument("--repeat", type=int, default=3, help="the first time plans")
    whole.set_defaults(command=command, options=[])
    given = sys.argv[1:]
    # What follows is for `junctor run`.
    cut_at = given.index("--") if "--" in given else len(given)
    arguments = parser.parse_args(given[:cut_at])
    if arguments.command is command:
        arguments.options = given[cut_at + 1 :] or ["--device", "gpu", "--precision", "single"]
    if getattr(arguments, "timeline", None) and arguments.device == "cpu":
        parser.error("--timeline shows streams of GPUs: it needs --device gpu")
    arguments.command(arguments)


if __name__ == "__main__":
    main()
