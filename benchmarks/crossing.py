"""Slices of tables that go from one worker to another one of the same machine: in memory files, and as bytes.

    python benchmarks/crossing.py --sizes 1MiB 16MiB 64MiB

A part lies on one worker; tasks on another one read slices of it, two at a time, and touch every page of them. Seconds
are those of all tasks, both ways by turns; a round before is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from junctor.out_of_core.cluster.tasks import PartOrigin, arrived, machine, slices_of
from junctor.planning.budget import format_bytes, parse_bytes
from junctor.runtime.local_cluster import local_client

if TYPE_CHECKING:
    from distributed import Client, Future

# Slices of a round; memory files that wait take at most so many times a slice. Bytes of a page.
SLICES, KEPT, PAGE = 8, 4, 4096
# Of the chunk variable that cuts the part.
STATES = 2


def made(size: int) -> Any:
    return np.ones(size * STATES, np.uint8)


def read(state: int, sources: Sequence[PartOrigin], slices: Any) -> int:
    """Touch the pages of what came; returns their number."""
    ((_, found),) = arrived({0: state}, [], sources, [slices])[0]
    return int(found.reshape(-1)[::PAGE].sum())


def round_seconds(client: Client, part: Future, size: int, kept: int | None) -> float:
    """Return what all slices take, one way. kept: None for bytes."""
    owner, reader = list(client.scheduler_info()["workers"])
    sources, tasks = [PartOrigin(0, {}, {0: STATES})], list[Any]()
    start = time.perf_counter()
    for n in range(SLICES):
        slices = client.submit(slices_of, {0: n % STATES}, sources, kept, part, workers=[owner], pure=False)
        tasks.append(client.submit(read, n % STATES, sources, slices, workers=[reader], pure=False))
        if n:
            tasks[n - 1].result()
    assert tasks[-1].result() == -(-size // PAGE)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=parse_bytes, nargs="+", default=[1 << 20, 1 << 24, 1 << 26], help="of a slice")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with local_client(2, False) as client:
        client.wait_for_workers(2)
        if len(set(client.run(machine).values()) | {None}) != 2:
            raise SystemExit("workers of this machine cannot read each other's memory files")
        for size in options.sizes:
            part = client.submit(made, size, workers=[next(iter(client.scheduler_info()["workers"]))], pure=False)
            ways: dict[str, int | None] = {"in memory files": KEPT * size, "as bytes": None}
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(1 + options.repeats):
                for way, kept in ways.items():
                    seconds[way].append(round_seconds(client, part, size, kept))
            for way, found in seconds.items():
                median = statistics.median(found[1:])
                print(f"{SLICES} slices of {format_bytes(size)} {way}: {1e3 * median / SLICES:.1f} ms each, ", end="")
                print(f"{SLICES * size / median / 1e9:.2f} GB/s", flush=True)


if __name__ == "__main__":
    main()
