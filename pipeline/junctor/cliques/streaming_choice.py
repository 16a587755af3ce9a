"""How stored tables that exceed a GPU go through it: which pipeline, how large chunks are, how many are under way.

Nothing was measured to fit, so rates stand for coefficients (`cost.constants`). Large chunks keep
the host out of the way; small ones leave less that nothing else is done beside: the first of a table on its way in, and
the last one on its way out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from junctor.cliques.streamed import PIPELINES, PipelineName
from junctor.cost.constants import GPU
from junctor.planning.cliques import CliquePass, StoredPlan, passes

# Chunks under way that are tried, and how often the largest chunk is halved.
UNDER_WAY, HALVINGS = (1, 2, 3, 4, 6, 8), 8
# Launches of a chunk: it is multiplied, it is summed.
LAUNCHES = 2


@dataclass(frozen=True, slots=True)
class Streaming:
    """A way through the device: entries of a chunk at the most, chunks under way at the most."""

    pipeline: PipelineName
    in_flight: int
    chunk: int


def streamings(
    plan: StoredPlan,
    itemsize: int,
    allowed: int,
    engines: int,
    pipeline: PipelineName | None = None,
    in_flight: int | None = None,
    chunk: int | None = None,
) -> list[Streaming]:
    """Return ways through `allowed` bytes of a device with so many copy engines, the fastest first.

    pipeline, in_flight, chunk (entries): as the caller wants them, None for what the rates say.
    """
    known = (pipeline,) if pipeline else tuple(name for name in PIPELINES if engines > 1 or name != "two-engines")
    found = {
        Streaming(name, count, size)
        for name, count in product(known, (in_flight,) if in_flight else UNDER_WAY)
        for size in _sizes(plan, itemsize, allowed // count, chunk)
    }
    times = {way: stream_seconds(plan, itemsize, way) for way in found}
    return sorted(found, key=lambda way: (times[way], way.in_flight, -way.chunk, -PIPELINES.index(way.pipeline)))


def _sizes(plan: StoredPlan, itemsize: int, slot: int, chunk: int | None) -> Iterator[int]:
    """Yield sizes of chunks that a slot of so many bytes may have."""
    largest = max(plan.entries(i) for i in range(len(plan.cliques)))
    most = max(1, min(largest, slot // itemsize, chunk or largest))
    yield from (most,) if chunk else sorted({max(1, most >> n) for n in range(HALVINGS + 1)})


def stream_seconds(plan: StoredPlan, itemsize: int, way: Streaming) -> float:
    """Return about what a case without evidence takes, its tables streamed through a device."""
    work = (each for stage in passes(plan, frozenset()) for each in stage)
    return sum(pass_seconds(plan.entries(each.clique) * itemsize, each, way, itemsize) for each in work)


def pass_seconds(size: int, each: CliquePass, way: Streaming, itemsize: int) -> float:
    """Return what a pass over a table of `size` bytes takes, in chunks as `way` has them."""
    chunks = -(-size // (way.chunk * itemsize))
    # What is only summed need not go back, unless it is the first time: then it becomes the calibrated table.
    stores = each.first or bool(each.factors)
    there = size / chunks / GPU.bus_rate
    back = there if stores else 0.0
    work = size / chunks * (2 if stores else 1) / GPU.kernel_rate
    host = (1 + stores) * GPU.stream_copy + LAUNCHES * GPU.stream_launch
    alone = there + work + back
    if way.pipeline == "synchronous":
        return chunks * (alone + host)
    together = max(there, back, size / chunks * 2 / GPU.bus_rate_both_ways if stores else 0.0)
    copies = there + back if way.pipeline == "one-engine" else together
    # A slot is free again when its chunk is through.
    return alone + (chunks - 1) * max(copies, work, host, alone / way.in_flight) + host
