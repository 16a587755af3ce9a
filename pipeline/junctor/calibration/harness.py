"""What all calibrations share: networks, time limits, repeats, the measured device, writing the dataset.

`blocks`, `chunked` and `cliques` measure by it; `junctor tune` and the benchmarks run them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Literal, TypeVar

from junctor.cost.dataset import Measured, MeasuredDevice, write
from junctor.cost.features.registry import BACKENDS, ordered
from junctor.cost.model import cpu_name
from junctor.generate import States, grid, layered
from junctor.model.network import Network
from junctor.runtime.devices import gpu_at_hand
from junctor.runtime.machine import last_cache_bytes

Case = TypeVar("Case")
Named = tuple[str, Network]


@dataclass(frozen=True, slots=True)
class Repeats:
    """Runs of which a measurement takes the fewest seconds.

    least, most: number of runs.
    seconds: in all; beyond them no run begins but the least.
    """

    least: int
    most: int
    seconds: float


def fewest_seconds(
    run: Callable[[], object],
    repeats: Repeats,
    clock: Callable[[], float] = time.perf_counter,
    before: Callable[[], object] | None = None,
) -> float:
    """Return the fewest seconds of several runs.

    run: what is measured.
    repeats: number of runs.
    clock: seconds of the wall, or of this process alone where other processes run at the same time.
    before: called before each run, not measured.
    """
    # The fewest, not the mean: what else the machine does only ever adds seconds.
    times: list[float] = []
    while len(times) < repeats.least or (len(times) < repeats.most and sum(times) < repeats.seconds):
        if before is not None:
            before()
        started = clock()
        run()
        times.append(clock() - started)
    return min(times)


def within(seconds: float, cases: Iterable[Case]) -> Iterator[Case]:
    """Yield cases until so many seconds are over."""
    started = time.monotonic()
    for case in cases:
        # Before a measurement, not within: one that is cut short is worth nothing.
        if time.monotonic() - started > seconds:
            return
        yield case


def grids(sizes: Iterable[tuple[int, int, int]], seeded: bool = True) -> Iterator[Named]:
    """Yield grids of so many rows, columns and states; seeded: by their rows, otherwise all by the same."""
    for rows, columns, states in sizes:
        yield f"grid {rows} x {columns}, {states} states", grid(rows, columns, states, rows if seeded else 0)


def layered_networks(sizes: Iterable[tuple[int, int, States, int]], zeros: Sequence[float] = ()) -> Iterator[Named]:
    """Yield networks of so many layers, variables a layer, states and parents; zeros: share of zeros in each."""
    for number, (layers, width, states, parents) in enumerate(sizes):
        share = zeros[number] if zeros else 0.0
        name = f"layered {layers} x {width}, {states} states, {parents} parents"
        yield name, layered(layers, width, states, parents, seed=layers, zeros=share)


def measurement(
    backend: str,
    network: str,
    label: str,
    rows: int,
    seconds: float,
    work: Mapping[str, float],
    plan: Mapping[str, float],
    tree: tuple[float, float],
) -> Measured:
    """Return a row of the dataset, its features in the order of the registry; arguments as of `Measured`."""
    features = BACKENDS[backend]
    counts = ordered(features.work, work), ordered(features.plan, plan)
    return Measured(backend, network, label, rows, seconds, *counts, tree)


def fewest(rows: Iterable[Measured]) -> list[Measured]:
    """Return the measurement with the fewest seconds of each set of equal ones."""
    best: dict[tuple[str, str, str, int], Measured] = {}
    for row in rows:
        key = row.backend, row.network, row.label, row.rows
        if key not in best or row.seconds < best[key].seconds:
            best[key] = row
    return list(best.values())


def local_device(kind: Literal["cpu", "gpu"]) -> MeasuredDevice:
    """Return the device of this machine."""
    # Figures of the device: machines with another kind use those of the nearest one.
    if kind == "gpu":
        return MeasuredDevice(*gpu_at_hand())
    size = last_cache_bytes()
    return MeasuredDevice(cpu_name(), {} if size is None else {"cache": float(size)})


def save(device: MeasuredDevice, rows: Sequence[Measured], path: Path) -> None:
    """Write the measurements of a device, dated today."""
    write(device, str(date.today()), rows, path)
