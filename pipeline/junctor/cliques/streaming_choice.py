"""How stored tables that exceed a GPU go through it: which pipeline, how large chunks are, how many are in flight.

Nothing was measured to fit, so rates stand for coefficients (`cost.figures`). Large chunks cost the host fewer
launches. Of small ones less overlaps with nothing: the first chunk of a table on its way in, and the last one on its
way out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, product

from junctor_kernels.gpu.stored import CliqueDevice
from junctor_kernels.tables.reference import Algebra

from junctor.cliques.streamed import StreamLayout, lay_out
from junctor.cost.figures import shipped_figures
from junctor.model.errors import BudgetError
from junctor.model.options import PIPELINES, PipelineName
from junctor.planning.cliques import CliquePass, StoredPlan, passes

# Chunks in flight that are tried, and how often the largest chunk is halved.
IN_FLIGHT, HALVINGS = (1, 2, 3, 4, 6, 8), 8
# Launches of a chunk: it is multiplied, it is summed.
LAUNCHES = 2


@dataclass(frozen=True, slots=True)
class Streaming:
    """A way through the device: pipeline, chunks in flight at the most, entries of a chunk at the most."""

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
    # With one copy engine, two queues are no faster than one.
    known = (pipeline,) if pipeline else tuple(name for name in PIPELINES if engines > 1 or name != "two")
    ways = {
        Streaming(name, count, size)
        for name, count in product(known, (in_flight,) if in_flight else IN_FLIGHT)
        for size in _sizes(plan, itemsize, allowed // count, chunk)
    }
    times = {way: stream_seconds(plan, itemsize, way) for way in ways}
    # Ties by fewer and larger chunks, so that the choice does not depend on the order of a set.
    return sorted(ways, key=lambda way: (times[way], way.in_flight, -way.chunk, -PIPELINES.index(way.pipeline)))


def fastest_layout(
    plan: StoredPlan,
    algebra: Algebra,
    allowed: int,
    device: CliqueDevice,
    pipeline: PipelineName | None = None,
    in_flight: int | None = None,
    chunk: int | None = None,
) -> tuple[StreamLayout, PipelineName]:
    """Return the fastest way through a device that fits the bytes allowed; arguments as above, raises BudgetError."""
    item, engines = algebra.dtype.itemsize, device.copy_engines()
    # A layout takes long to find: only the fastest way of each number of chunks in flight is laid out.
    fastest: dict[int, Streaming] = {}
    for way in streamings(plan, item, allowed, engines, pipeline, in_flight, chunk):
        fastest.setdefault(way.in_flight, way)
    refused: dict[int, BudgetError] = {}
    for count, way in fastest.items():
        try:
            return lay_out(plan, algebra, allowed, count, way.chunk), way.pipeline
        except BudgetError as error:
            refused[count] = error
    # Fewest chunks in flight need least: their refusal says how much memory would do.
    raise refused[min(refused)]


def _sizes(plan: StoredPlan, itemsize: int, slot: int, chunk: int | None) -> Iterator[int]:
    """Yield sizes of chunks that a slot of so many bytes may have."""
    # No chunk is larger than a table.
    largest = max(plan.entries(i) for i in range(len(plan.cliques)))
    most = max(1, min(largest, slot // itemsize, chunk or largest))
    # A size that the caller chose is not halved.
    yield from (most,) if chunk else sorted({max(1, most >> n) for n in range(HALVINGS + 1)})


def stream_seconds(plan: StoredPlan, itemsize: int, way: Streaming) -> float:
    """Return the forecast of a case without evidence, its tables streamed through a device, in seconds."""
    work = chain.from_iterable(passes(plan, frozenset()))
    return sum(pass_seconds(plan.entries(pass_.clique) * itemsize, pass_, way, itemsize) for pass_ in work)


def pass_seconds(size: int, pass_: CliquePass, way: Streaming, itemsize: int) -> float:
    """Return the seconds of a pass over a table of `size` bytes, in chunks of a streaming."""
    chunks = -(-size // (way.chunk * itemsize))
    # What is only summed need not go back, unless it is the first time: then it becomes the calibrated table.
    stores = pass_.first or bool(pass_.factors)
    of_host, rates = shipped_figures().gpu_host, shipped_figures().gpu_rates
    upload = size / chunks / rates.bus
    download = upload if stores else 0.0
    work = size / chunks * (2 if stores else 1) / rates.kernel
    host = (1 + stores) * of_host.stream_copy + LAUNCHES * of_host.stream_launch
    latency = upload + work + download
    if way.pipeline == "none":
        return chunks * (latency + host)
    # Both ways at once the bus is slower than twice one way.
    together = max(upload, download, size / chunks * 2 / rates.bus_both_ways if stores else 0.0)
    copies = upload + download if way.pipeline == "one" else together
    # A slot is free again when its chunk is through.
    return latency + (chunks - 1) * max(copies, work, host, latency / way.in_flight) + host
