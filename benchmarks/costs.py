"""The cost model: measure plans of many networks, and see how good forecasts are on networks held out.

    uv run python benchmarks/costs.py prepare NETWORK ... --output cases.pickle     plans, on any machine
    python benchmarks/costs.py measure cases.pickle --output FILE.parquet [--gpu]    seconds and counts of work
    uv run python benchmarks/costs.py check FILE.parquet ...                         forecasts, network by network
    uv run python benchmarks/costs.py merge FILE.parquet ... --output FILE.parquet   of one device, for the package

`measure --gpu` lowers plans in several processes, which take turns on the device. A forecast of a network is made with
coefficients fitted to all others. `check` prints for every backend how many forecasts are within 25 % of what was
measured, of plans with their numbers and of plans alone, and the error that nine of ten stay below. Where several
launch parameters were measured of the same blocks it prints how those that the model chooses do against the best of
each block and against those that are best for all blocks together. `check --by OTHER.parquet` learns prices from the
networks of another file instead.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from common import need_gpu
from junctor.calibration import blocks as tuning
from junctor.calibration.blocks import CalibrationCase, case_of, measure_cpu, measure_gpu
from junctor.calibration.harness import fewest, local_device, save
from junctor.cost.dataset import Measured, MeasuredDevice, device_of, read
from junctor.cost.model import fitted_cost_model
from junctor.formats import read_network
from junctor_kernels.tables.reference import DOUBLE, LOG, SINGLE

# Entry operations of plans: those with more are left out, and not measured in log space.
MOST_OPERATIONS, MOST_LOG = 1.2e8, 5e6
# Bytes of a GPU for each process.
ROOM = 4 << 30
WITHIN = 0.25


def prepare(paths: Sequence[str], output: Path, most: float) -> None:
    cases = []
    for path in paths:
        network, name = read_network(path), Path(path).name.split(".")[0]
        for pattern in tuning.PATTERNS:
            case = case_of(name, network, *pattern)
            kept = case.plan.case_operations <= most
            print(
                f"{name} {case.label}: {case.plan.case_operations:,} operations{'' if kept else ', left out'}",
                flush=True,
            )
            cases += [case] * kept
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(pickle.dumps(cases))


opened: Any = None
_deadline = 0.0


def begin(turn: Any, deadline: float) -> None:
    """Open the device in a process of its own; what is timed takes turns."""
    global opened, _deadline
    from junctor_kernels.gpu.blocks import CudaBlockDevice, Replay

    class InTurn(CudaBlockDevice):
        def seconds(self, replay: Replay, repeats: int) -> float:
            with turn:
                return super().seconds(replay, repeats)

    opened, _deadline = InTurn(0, ROOM), deadline


def _on_gpu(case: CalibrationCase) -> tuple[str, list[Measured]]:
    if time.time() > _deadline:
        return f"{case.name} {case.label}: no time left", []
    started = time.perf_counter()
    algebras = [SINGLE, DOUBLE, *[LOG] * (case.plan.case_operations < MOST_LOG)]
    try:
        found = measure_gpu(case, opened, algebras)
    except Exception as error:
        return f"{case.name} {case.label}: {type(error).__name__}: {error}", []
    return f"{case.name} {case.label}: {len(found)} in {time.perf_counter() - started:.1f} s", found


def _gpu_measurements(
    cases: Sequence[CalibrationCase], processes: int, limit: float
) -> Iterator[tuple[str, list[Measured]]]:
    fork = multiprocessing.get_context("fork")
    # What takes longest goes first, so that none is left at the end.
    order = sorted(cases, key=lambda case: -case.plan.case_operations)
    with fork.Pool(processes, begin, (fork.Lock(), time.time() + limit)) as pool:
        yield from pool.imap_unordered(_on_gpu, order)


def _cpu_measurements(
    cases: Sequence[CalibrationCase], limit: float, passes: int
) -> Iterator[tuple[str, list[Measured]]]:
    """Measure everything so often and keep the fewest seconds: what else runs on the machine comes and goes."""
    started = time.time()
    kept: list[Measured] = []
    for number in range(passes):
        for case in cases:
            if time.time() - started < limit and case.plan.case_operations <= tuning.MOST_OPERATIONS:
                kept += measure_cpu(case)
        seconds = [row.seconds for row in fewest(kept)]
        again = [row.seconds for row in fewest(kept[-len(seconds) :])]
        spread = np.quantile(np.array(again) / np.array(seconds) - 1, (0.5, 0.9))
        print(
            f"pass {number + 1}: slower than the fewest by {spread[0]:.1%}, one in ten by {spread[1]:.1%}", flush=True
        )
    yield f"{len(seconds)} plans", fewest(kept)


def measure(
    path: Path, output: Path, gpu: bool, processes: int, limit: float, passes: int, most: float, rows: int
) -> None:
    cases = [case for case in pickle.loads(path.read_bytes()) if case.plan.case_operations <= most]
    tuning.MANY_ROWS = tuple(size for size in tuning.MANY_ROWS if size <= rows)
    found = _gpu_measurements(cases, processes, limit) if gpu else _cpu_measurements(cases, limit, passes)
    device = gpu_at_hand() if gpu else local_device("cpu")
    kept: list[Measured] = []
    for line, measured in found:
        print(line, flush=True)
        kept += measured
        save(device, kept, output)
    print(f"{len(kept):,} measurements of {device.name}", flush=True)


def gpu_at_hand() -> MeasuredDevice:
    """Return the name and the figures of the GPU, seen by a process of its own: whoever forks must not open it."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_seen)


def _seen() -> MeasuredDevice:
    from junctor_kernels.gpu.blocks import CudaBlockDevice

    device = CudaBlockDevice(0, 1 << 20)
    return MeasuredDevice(device.name, device.figures)


def check(paths: Sequence[Path], table: bool, by: Path | None) -> None:
    for path in paths:
        device, measured = device_of(path), read(path)
        if by is not None:
            told_by(device, measured, read(by))
            continue
        print(f"\n{device.name}: {len(measured):,} measurements\n")
        print("backend | measurements | with numbers: within 25 % | nine of ten | plan alone | nine of ten")
        print("|".join(["---"] * 6))
        for backend in sorted({row.backend for row in measured}):
            rows = [row for row in measured if row.backend == backend]
            if len({row.network for row in rows}) < 2:
                print(f"{backend} | {len(rows)} | nothing to learn from but the network itself")
                continue
            off = errors(device, rows)
            cells = [f"{(each <= WITHIN).mean():.1%} | {np.quantile(each, 0.9):.1%}" for each in off.values()]
            print(f"{backend} | {len(rows)} | {' | '.join(cells)}")
            if told := compared(device, rows):
                print(told)
            for name in sorted({row.network for row in rows}) if table else ():
                own = np.array([row.network == name for row in rows])
                print(f"   {name}: {(off['work'][own] <= WITHIN).mean():.0%}, worst {off['work'][own].max():.0%}")
        if told := few_or_many(device, measured):
            print(told)


def told_by(device: MeasuredDevice, measured: Sequence[Measured], known: Sequence[Measured]) -> None:
    """Print how far forecasts are off by the prices of other measurements, those of the same networks left out."""
    names = {row.network for row in measured}
    prices = fitted_cost_model(device, [row for row in known if row.network not in names]).coefficients
    print("backend | networks | measurements | within 25 % | nine of ten")
    print("|".join(["---"] * 5))
    for backend in sorted({row.backend for row in measured}):
        rows = [row for row in measured if row.backend == backend]
        off = np.array([abs(prices[backend].of_work(row.work) / row.seconds - 1) for row in rows])
        count = len({row.network for row in rows})
        print(f"{backend} | {count} | {len(rows)} | {(off <= WITHIN).mean():.1%} | {np.quantile(off, 0.9):.1%}")


def compared(device: MeasuredDevice, rows: Sequence[Measured]) -> str | None:
    """Say how the launch parameters do that the model would choose, with prices learned from all other networks."""
    blocks: dict[tuple[str, str, int], dict[str, Measured]] = {}
    for row in rows:
        label, setting = _label(row)
        blocks.setdefault((row.network, label, row.rows), {})[setting] = row
    several = {name: tried for name, tried in blocks.items() if len(tried) > 1}
    if not several:
        return None
    backend, settings = rows[0].backend, sorted({setting for tried in several.values() for setting in tried})
    prices = {
        name: fitted_cost_model(device, [row for row in rows if row.network != name]).coefficients[backend]
        for name in {row.network for row in rows}
    }
    chosen = [min(tried.values(), key=lambda row: prices[row.network].of_work(row.work)) for tried in several.values()]
    best = np.array([min(row.seconds for row in tried.values()) for tried in several.values()])
    model = np.array([row.seconds for row in chosen])
    times = np.array([[tried[setting].seconds for setting in settings] for tried in several.values()])
    single = np.log(times).mean(axis=0).argmin()
    gain = times[:, single] / model
    return (
        f"   {len(several)} blocks, {len(settings)} settings: chosen {model.sum() / best.sum() - 1:.1%} over the best, "
        f"{(model / best).max() - 1:.1%} at the worst; {settings[single]} for all takes {gain_of(gain)}"
    )


def few_or_many(device: MeasuredDevice, rows: Sequence[Measured]) -> str | None:
    """Say how often the model is right about few cases or many, from plans alone and prices of other networks."""
    right, ratios = 0, []
    for name in sorted({row.network for row in rows}):
        prices = fitted_cost_model(device, [row for row in rows if row.network != name]).coefficients
        fastest: dict[tuple[str, str, int], Measured] = {}
        for row in sorted((row for row in rows if row.network == name), key=lambda row: -row.seconds):
            fastest[row.backend, _label(row)[0], row.rows] = row
        for (backend, label, cases), few in fastest.items():
            algebra = backend.removeprefix("few-")
            chunk = {"single": 128, "double": 64}.get(algebra, 0)
            many = [fastest.get((f"many-{algebra}", label, size)) for size in (chunk, 128)]
            other = next((row for row in many if row is not None), None)
            if backend.startswith("few") and cases <= chunk and other is not None:
                takes_few = prices[backend].of_plan(few.plan) < prices[f"many-{algebra}"].of_plan(other.plan)
                chosen, left = (few, other) if takes_few else (other, few)
                right += chosen.seconds <= left.seconds
                ratios.append(chosen.seconds / min(few.seconds, other.seconds))
    if not ratios:
        return None
    return f"few or many: right for {right} of {len(ratios)}, at the worst {max(ratios) - 1:.0%} over the best"


def _label(row: Measured) -> list[str]:
    """Return what a measurement was of, and its launch parameters."""
    return re.split(r", (?=Few|Many|$)", f"{row.label}, ")[:2]


def gain_of(ratios: npt.NDArray[np.float64]) -> str:
    return f"{np.exp(np.log(ratios).mean()) - 1:+.1%} (geometric mean; at the least {ratios.min() - 1:+.1%})"


def errors(device: MeasuredDevice, rows: Sequence[Measured]) -> dict[str, npt.NDArray[np.float64]]:
    """Return how far the forecast of each measurement is off, from prices learned from all other networks."""
    names = sorted({row.network for row in rows})
    off = {"work": np.zeros(len(rows)), "plan": np.zeros(len(rows))}
    for name in names:
        others = fitted_cost_model(device, [row for row in rows if row.network != name])
        prices = others.coefficients[rows[0].backend]
        for at, row in enumerate(rows):
            if row.network == name:
                off["work"][at] = abs(prices.of_work(row.work) / row.seconds - 1)
                off["plan"][at] = abs(prices.of_plan(row.plan) / row.seconds - 1)
    return off


def merge(paths: Sequence[Path], output: Path) -> None:
    """Write the measurements of several files, the fewest seconds of equal ones."""
    devices = {device_of(path).name: device_of(path) for path in paths}
    if len(devices) > 1:
        raise SystemExit(f"measurements of {' and '.join(devices)} in one file")
    rows = fewest(row for path in paths for row in read(path))
    (device,) = devices.values()
    save(device, rows, output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(dest="action", required=True)
    plans = actions.add_parser("prepare")
    plans.add_argument("networks", nargs="+")
    plans.add_argument("--output", type=Path, required=True)
    plans.add_argument("--most", type=float, default=MOST_OPERATIONS, help="entry operations of a case")
    measures = actions.add_parser("measure")
    measures.add_argument("cases", type=Path)
    measures.add_argument("--output", type=Path, required=True)
    measures.add_argument("--gpu", action="store_true")
    measures.add_argument("--processes", type=int, default=12, help="that lower plans for a GPU")
    measures.add_argument("--passes", type=int, default=3, help="over all plans, on a CPU")
    measures.add_argument("--most", type=float, default=MOST_OPERATIONS, help="entry operations of a case")
    measures.add_argument("--rows", type=int, default=max(tuning.MANY_ROWS), help="of a block on a GPU, at the most")
    measures.add_argument("--limit", type=float, default=600.0, help="seconds after which none is begun")
    checks = actions.add_parser("check")
    checks.add_argument("files", nargs="+", type=Path)
    checks.add_argument("--table", action="store_true", help="every network as well")
    checks.add_argument("--by", type=Path, help="measurements of other networks that prices are learned from")
    merges = actions.add_parser("merge")
    merges.add_argument("files", nargs="+", type=Path)
    merges.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    if options.action == "merge":
        merge(options.files, options.output)
    elif options.action == "prepare":
        prepare(options.networks, options.output, options.most)
    elif options.action == "measure":
        if options.gpu:
            need_gpu("costs.py measure --gpu")
        limits = options.limit, options.passes, options.most, options.rows
        measure(options.cases, options.output, options.gpu, options.processes, *limits)
    else:
        check(options.files, options.table, options.by)


if __name__ == "__main__":
    main()
