"""One row's samples on a GPU: its importance function and samples stay there, sums come back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property, partial, reduce
from typing import Any

import numpy as np
from junctor_kernels.sampling import gpu as sampling_gpu
from junctor_kernels.sampling import loopy as beliefs
from junctor_kernels.sampling import loopy_gpu as beliefs_gpu
from junctor_kernels.sampling.gpu import SEVERAL, SUMMED, THREADS, WAVE_THREADS, SamplingDevice, SamplingJob
from junctor_kernels.sampling.layout import STATES, WEIGHED, Function, Sums, add, own_share
from junctor_kernels.sampling.philox import RandomStream

from junctor.model.errors import BudgetError
from junctor.model.query import Sampler
from junctor.planning.budget import exact_bytes
from junctor.runtime.devices import check_device, count_gpus, gpu_errors
from junctor.sampling.epis import SWEEPS, LoopyMessages
from junctor.sampling.estimate import pieces_of
from junctor.sampling.importance import least_of
from junctor.sampling.sampler import CpuSampling, Pending, RowSampler, SamplingRequest
from junctor.sampling.tables import SampledNetwork

# Samples of one launch: their states and weights stay on the device until they are summed.
CHUNK = 1 << 20
# Entries of tables from which messages are sent on the device: each step takes some microseconds there, and there are
# four for each level and sweep; measured, see docs/sampling.md.
DEVICE_ENTRIES = 1 << 16
# Samples up to which waves through the levels are faster than a thread a sample, where levels have so many nodes or
# more; measured, see docs/sampling.md.
WAVE_SAMPLES, WAVE_WIDTH = 1 << 17, 8
# Samples beyond which a thread takes several: what is read of a node then serves for all of them.
SEVERAL_SAMPLES = 1 << 17
# A block takes one sample of so many through the levels, within these bounds.
GROUP_SAMPLES, LEAST_GROUP, MOST_GROUP = 1024, 4, 32
# Samples of a row that are worth the start of several devices.
SPREAD_SAMPLES = 8 * CHUNK
# Blocks of a multiprocessor for samples, and blocks in y over which nodes are spread for scores.
BLOCKS_EACH, SCORE_BLOCKS = 8, 16
logger = logging.getLogger("junctor")


class GpuSampling:
    """A GPU with the tables of a network; keeps where importance functions begin, and room for one row's."""

    def __init__(self, network: SampledNetwork, device: SamplingDevice, starts: CpuSampling) -> None:
        self.network = network
        self.device = device
        self._starts = starts
        # Opens others on other devices, for the samples of a row that has many.
        self.open_others: Callable[[], list[GpuSampling]] = list
        put = device.put
        tables = network.tables
        self.own, self.own_order = put(_some(tables.thresholds)), put(_some(tables.order))
        self.tables = put(tables.probabilities)
        self._values: dict[bool, Any] = {}
        self.first: dict[tuple[Sampler, bool], Function] = {}
        self.way = way
        # Threads of a block that takes samples through the levels: a power of two, at least the samples.
        self.wave_threads = WAVE_THREADS
        self._rooms: dict[str, Any] = {}

    @cached_property
    def _others(self) -> list[GpuSampling]:
        return self.open_others()

    def row(self, ask: SamplingRequest) -> RowSampler:
        """Return the sampler of a row; its importance function takes the place of the one before."""
        # Other devices take seconds to open.
        if ask.samples >= SPREAD_SAMPLES and self._others:
            return SpreadRow([self._row(ask), *(other.row(ask) for other in self._others)])
        return self._row(ask)

    def _row(self, ask: SamplingRequest) -> RowSampler:
        try:
            row = GpuRow(self, ask)
        except MemoryError as error:
            logger.warning("the CPU takes over a row: %s", error)
            return self._starts.row(ask)
        if ask.beliefs is not None:
            row.believe(ask.beliefs)
        elif ask.sampler != "lw":
            row.begin(self._start(ask))
        return row

    def shared(self, logs: bool) -> dict[str, int]:
        """Return where tables lie that rows share; logs: those that weigh as logarithms."""
        if logs not in self._values:
            self._values[logs] = self.device.put(self.network.values(True)) if logs else self.tables
        arrays = {"own": self.own, "own_order": self.own_order, "tables": self.tables, "values": self._values[logs]}
        return {name: self.device.address(array) for name, array in arrays.items()}

    @cached_property
    def learned(self) -> Function:
        """Room for the importance function of a row."""
        tables, entries = self.network.tables, self.network.entries[-1]
        types = zip(CHANGING, (np.uint32, np.uint8, np.float64, np.float64), strict=True)
        sizes = {name: max(1, len(tables.thresholds) if name == "thresholds" else entries) for name in CHANGING}
        arrays = {name: self.device.empty((sizes[name],), dtype) for name, dtype in types}
        return Function(values=self.tables, logs=False, own=self.network.tables, **arrays)

    @cached_property
    def scores(self) -> Any:
        """Scores of all entries, zero between stages."""
        return self.device.put(np.zeros(self.network.entries[-1], dtype=np.int64))

    def room(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an array of a name, which keeps its memory as long as it is large enough."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if name not in self._rooms or self._rooms[name].nbytes < size:
            self._rooms[name] = self.device.empty((max(16, size),), np.uint8)
        return self._rooms[name]

    def _start(self, ask: SamplingRequest) -> Function:
        """Return the importance function that a row begins with, on the device."""
        key = ask.sampler, ask.logs
        if key not in self.first:
            host = self._starts.start(*key)
            self.first[key] = host._replace(**{name: self.device.put(_some(getattr(host, name))) for name in CHANGING})
        return self.first[key]


def way(count: int, nodes: int, levels: int) -> int:
    """Return the samples that a block takes through the levels together, 0 where a thread takes a sample.

    Few samples leave most of a GPU idle unless the nodes of a level share its threads; many fill it by themselves.
    """
    width = nodes / max(1, levels)
    if count > WAVE_SAMPLES * min(1.0, width / WAVE_WIDTH):
        return 0
    wanted = count // GROUP_SAMPLES
    return max(LEAST_GROUP, min(MOST_GROUP, 1 << max(0, wanted - 1).bit_length()))


# What learning changes.
CHANGING = ("thresholds", "order", "ratios", "chances")


class GpuRow:
    """Samples of one row."""

    def __init__(self, owner: GpuSampling, ask: SamplingRequest) -> None:
        self._owner = owner
        self._device = owner.device
        self._ask = ask
        self._case = case = ask.case
        pseudo = np.array([(-1, 0, 0, 0), (-1, 1, 0, 0)], dtype=np.int32)
        slots = np.concatenate([case.slots, pseudo])
        self._nodes, self._slots = len(case.slots), len(slots)
        weighed = np.flatnonzero(case.nodes[:, WEIGHED])
        starts = np.cumsum(case.nodes[weighed, STATES]) - case.nodes[weighed, STATES]
        self._weighed = np.stack([weighed, case.spans[weighed], starts, 0 * weighed], axis=1).astype(np.int32)
        arrays: dict[str, Any] = {name: getattr(case, name) for name in ("nodes", "parents", "factors", "levels")}
        arrays |= {"weighed": self._weighed, "slots": slots, "soft": case.likelihoods(ask.logs)}
        sizes = case.nodes[weighed, STATES].tolist()
        arrays["smallest"] = np.array([least_of(size) for size in sizes])
        if ask.beliefs is not None and ask.beliefs.entries < DEVICE_ENTRIES:
            links, own = ask.beliefs.of(case)
            arrays["said"] = beliefs.propagate(links, owner.network.tables.probabilities, own, SWEEPS)
        self._kept, places = _together(owner, arrays)
        kept = self._device.address(self._kept)
        self._job = SamplingJob(**{name: kept + start for name, start in places.items()}, **owner.shared(ask.logs))
        self._job.set(node_count=len(case.nodes), factor_count=len(case.factors), planes=case.planes)
        self._job.set(level_count=len(case.levels) - 1, slot_count=self._slots, weighed_count=len(self._weighed))
        # Raises MemoryError where the row does not fit: the CPU takes it over.
        self._simple()

    def begin(self, start: Function) -> None:
        """Set the importance function to where it begins."""
        owner = self._owner
        for name in CHANGING:
            self._device.copy(getattr(start, name), getattr(owner.learned, name))
        self._use_learned()
        self._job.set(scores=self._device.address(owner.scores))
        free = self._ask.free
        if free:
            network = owner.network
            tables = [
                (network.entries[v], network.cuts[v], network.network.cardinalities[v], network.rows(v)) for v in free
            ]
            freed = self._device.put(np.array(tables, dtype=np.int32))
            rows = max(count for *_, count in tables)
            self._launch("uniform", (_blocks(rows, THREADS), len(free)), THREADS, freed=self._device.address(freed))

    def believe(self, pattern: LoopyMessages) -> None:
        """Make the importance function of EPIS-BN; nodes that no evidence lies below have no part in it."""
        if pattern.entries >= DEVICE_ENTRIES:
            self.tell(pattern)
        self._use_learned()
        rows = int(self._weighed[:, 1].max())
        self._launch("shape", (min(64, _blocks(rows, THREADS)), len(self._weighed)), THREADS)

    def tell(self, pattern: LoopyMessages) -> None:
        """Enqueue the messages of the row, on the device."""
        owner, address = self._owner, self._device.address
        links, own = pattern.of(self._case)
        self._messages, places = _together(owner, beliefs_gpu.arrays(links, own))
        fields = {name: address(self._messages) + start for name, start in places.items()}
        room = owner.room("messages", (2 * links.messages + 3 * links.numbers + 1,), np.float64)
        ends = np.cumsum([links.messages, links.messages, links.numbers, links.numbers, links.numbers]).tolist()
        names = ("up", "down", "prior", "mine", "below", "barrier")
        fields |= {name: address(room) + 8 * start for name, start in zip(names, [0, *ends], strict=True)}
        fields |= {"probabilities": address(owner.tables), "sweeps": SWEEPS}
        fields |= {"level_count": len(links.levels) - 2, "messages": links.messages}
        self._device.clear(room)
        blocks = beliefs_gpu.blocks(links, self._device.processors)
        self._device.propagate(blocks, beliefs_gpu.THREADS, beliefs_gpu.record(fields))
        self._job.set(said=fields["below"])

    def _use_learned(self) -> None:
        for name in CHANGING:
            self._job.set(**{name: self._device.address(getattr(self._owner.learned, name))})

    def sums(self, stream: RandomStream, first: int, count: int, own: float) -> Pending:
        """Begin with samples from number `first` on, a multiple of BLOCK; returns a wait for their sums."""
        chunks = pieces_of(first, count, CHUNK)
        result = self._device.empty((len(chunks), self._slots + 1, 2), np.float64)
        for i, chunk in enumerate(chunks):
            self._draw(stream, *chunk, own)
            self._sum(chunk[1], result, i * (self._slots + 1) * 16)
        return partial(self._get, result, [count for _, count in chunks])

    def learn(self, stream: RandomStream, count: int, rate: float, sums: bool) -> Pending | None:
        """Begin to move the importance function by a share `rate` towards what `count` samples say."""
        self._draw(stream, 0, count, own_share(count))
        pending = None
        if sums:
            # Before the function changes: weights of these samples go by the old one.
            result = self._device.empty((1, self._slots + 1, 2), np.float64)
            self._sum(count, result, 0)
            pending = partial(self._get, result, [count])
        if len(self._weighed):
            self._launch(
                "score", (_blocks(count, THREADS), min(SCORE_BLOCKS, len(self._weighed))), THREADS, count=count
            )
            rows = int(self._weighed[:, 1].max())
            self._launch("update", (min(64, _blocks(rows, THREADS)), len(self._weighed)), THREADS, rate=rate)
        return pending

    def _get(self, result: Any, counts: Sequence[int]) -> Sums:
        numbers = self._device.get(result)
        return reduce(add, [self._read(chunk, count) for chunk, count in zip(numbers, counts, strict=True)])

    def _read(self, numbers: Any, count: int) -> Sums:
        shift = float(numbers[-1, 0]) if self._ask.logs else 0.0
        hits = round(float(numbers[self._nodes + 1, 0]))
        largest = float(numbers[-1, 0] if not self._ask.logs else hits > 0)
        return Sums(shift, numbers[: self._nodes].copy(), numbers[self._nodes].copy(), count, hits, largest)

    def _draw(self, stream: RandomStream, first: int, count: int, own: float) -> None:
        """Enqueue samples, whose states and weights are in the room then."""
        owner, groups = self._owner, SEVERAL * _blocks(count, 32 * SEVERAL)
        words = owner.room("words", (groups, self._case.planes), np.uint32)
        weights = owner.room("weights", (groups * 32,), np.float64)
        largest = owner.room("largest", (1,), np.uint64)
        self._device.clear(largest)
        address = self._device.address
        self._job.set(words=address(words), weights=address(weights), largest=address(largest))
        self._job.set(**dict(zip(("key0", "key1", "stage", "high", "row"), stream.record().tolist(), strict=False)))
        group = owner.way(count, len(self._case.nodes), len(self._case.levels) - 1)
        threads = owner.wave_threads
        wave_bytes = 16 * threads + len(self._case.nodes) * group
        if group and wave_bytes <= self._device.most_shared:
            if group < 32:
                self._device.clear(words)
            wide = _blocks(groups * 32, group), 1
            self._launch("wavefront", wide, threads, wave_bytes, first=first, count=count, group=group, share=own)
            return
        fits = SEVERAL * 4 * self._case.planes <= self._device.most_shared
        samples = SEVERAL if count > SEVERAL_SAMPLES and fits else 1
        warps, shared = self._simple(samples)
        blocks = min(_blocks(groups, samples * warps), BLOCKS_EACH * self._device.processors)
        kernel = "simple" if samples == 1 else "several"
        self._launch(kernel, (blocks, 1), 32 * warps, shared, first=first, count=count, share=own)

    def _sum(self, count: int, result: Any, start: int) -> None:
        """Enqueue the sums of the samples in the room."""
        owner, pieces = self._owner, _blocks(count, SUMMED)
        room = owner.room("pieces", (pieces, self._slots, 2), np.float64)
        address = self._device.address
        self._job.set(pieces=address(room), sums=address(result) + start, piece_count=pieces)
        tiles = _blocks(self._slots, THREADS)
        self._launch("sum", (tiles, pieces), THREADS, count=count)
        self._device.launch("gather", (tiles, 1), THREADS, self._job.words)

    def _launch(self, kernel: str, blocks: tuple[int, int], threads: int, shared: int = 0, **fields: float) -> None:
        name = f"{kernel}_{'logs' if self._ask.logs else 'plain'}"
        self._job.set(**fields)
        self._device.launch(name, blocks, threads, self._job.words, shared)

    def _simple(self, samples: int = 1) -> tuple[int, int]:
        """Return warps of a block with so many samples a lane, and its bytes of shared memory."""
        states = 4 * self._case.planes * samples
        # As many warps as fit: they hide the latency of each other's loads.
        for warps in (THREADS // 32, 4, 1):
            if warps * states <= self._device.most_shared:
                return warps, warps * states
        raise MemoryError(f"{self._case.planes:,} bits of a sample's states exceed the shared memory of a block")


class SpreadRow:
    """Samples of one row over several devices, chunk by chunk in turn; which of them draws a chunk changes no bit."""

    def __init__(self, rows: Sequence[RowSampler]) -> None:
        self._rows = rows

    def sums(self, stream: RandomStream, first: int, count: int, own: float) -> Pending:
        """Begin with samples from number `first` on, a multiple of BLOCK; returns a wait for their sums."""
        chunks = pieces_of(first, count, CHUNK)
        pending = [self._rows[i % len(self._rows)].sums(stream, *chunk, own) for i, chunk in enumerate(chunks)]
        # Added in the order of the chunks, whichever device is done first.
        return lambda: reduce(add, [wait() for wait in pending])

    def learn(self, stream: RandomStream, count: int, rate: float, sums: bool) -> Pending | None:
        """Learn the same on every device."""
        first, *others = self._rows
        pending = first.learn(stream, count, rate, sums)
        # The same samples and updates everywhere: sending functions between devices would take longer.
        for row in others:
            row.learn(stream, count, rate, False)
        return pending


def _together(owner: GpuSampling, arrays: dict[str, Any]) -> tuple[Any, dict[str, int]]:
    """Put small arrays on the device in one piece; returns it, and the offset of each array in bytes."""
    places, start = {}, 0
    for name, array in arrays.items():
        places[name] = start
        start += -(-array.nbytes // 16) * 16
    # One copy for all: a copy of some bytes takes as long as one of many.
    piece = np.zeros(max(16, start), dtype=np.uint8)
    for name, array in arrays.items():
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        piece[places[name] : places[name] + raw.nbytes] = raw
    return owner.device.put(piece), places


def _some(array: Any) -> Any:
    """Return an array with at least one number: no memory has no address."""
    return array if array.size else np.zeros(1, array.dtype)


def _blocks(count: int, size: int) -> int:
    return max(1, -(-count // size))


def gpu_sampling(starts: CpuSampling, memory: int | None = None, all_gpus: bool = False) -> GpuSampling:
    """Return this process's GPU for a network; raises DeviceError where there is none, BudgetError beyond `memory`.

    all_gpus: whether rows of many samples take all that the process sees.
    """
    check_device("gpu")
    first = _opened(0, starts, memory)
    if all_gpus:
        first.open_others = lambda: [_opened(number, starts, memory) for number in range(1, count_gpus())]
    return first


def _opened(number: int, starts: CpuSampling, memory: int | None) -> GpuSampling:
    network = starts.network
    with gpu_errors():
        device = sampling_gpu.CudaSampling(number)
        free = device.free()
    # Before anything is allocated: a device that is full half-way would fail row by row.
    allowed, needed = min(free, memory if memory is not None else free), device_bytes(network)
    if needed > allowed:
        raise BudgetError(
            f"sampling {network.network.name or 'the network'} takes {exact_bytes(needed)} of the GPU, "
            f"{exact_bytes(allowed)} are allowed: allow more with --device-memory, or use --device cpu"
        )
    return GpuSampling(network, device, starts)


def device_bytes(network: SampledNetwork) -> int:
    """Return what tables, two importance functions and the samples of a chunk take on a device."""
    planes = sum((card - 1).bit_length() for card in network.network.cardinalities)
    slots = sum(network.network.cardinalities) + 2
    return 96 * network.entries[-1] + CHUNK * (planes // 8 + 8) + 16 * slots * CHUNK // SUMMED
