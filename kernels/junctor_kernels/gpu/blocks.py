"""Kernels for blocks of cases: their source in an algebra, what they read (`Run`), and the devices that run them.

Called by `junctor.backends.gpu`, which lays out a block and lists its launches; `CudaBlockDevice` performs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu import bytecode as layout
from junctor_kernels.gpu.device import (
    ON_DEVICE,
    TO_DEVICE,
    TO_HOST,
    CudaDevice,
    DeviceArray,
    Event,
    Graph,
    KernelModule,
    Stream,
    cuda_errors,
    cuda_source,
    register_host,
)
from junctor_kernels.tables import scores

# What an item of work is: rows of a slice or a likelihood, entries of a contraction, the bounds of a step, a posterior,
# a part of log P(e) and of the bounds of the whole plan, their sum, and the bounds of a table that no case changes.
MAKE, CONTRACT, BOUND, MARGINAL, FIND, FINISH, FIXED_TABLE, NOTHING = range(8)
# Columns of `items`: what, step, first and last entry (or tile), threads (or warps) that share the terms of an entry,
# whether neighbouring threads have neighbouring terms, where the operands begin, how many there are. In the third a
# MARGINAL has the row of its posterior, a FIND the number of its part; a FIXED_TABLE has its slot in the second, and
# where its bounds lie in the third.
ITEM_COLUMNS = 8
# Columns of `closing`, totals first: whether the table is a result, its slot and entries, and for the message down an
# edge the slots of the message up and of the total.
CLOSING_COLUMNS = 5
# Columns of `targets`: where a posterior comes from (the block, the state that is observed, what no case changes), its
# row there, its states, and those of all targets before.
TARGET_COLUMNS = 4
FOUND, OBSERVED_STATE, SETTLED = range(3)
# Kernels that trace explanations back, of many cases, of some and of few.
TRACE_MANY, TRACE_SOME, TRACE_FEW = "trace_many", "trace_some", "trace_few"
# Parts in which the results of many cases are found.
PARTS = 16
# Terms that are added up before they join the sum: rounding grows with this plus R over this, not with R.
RUN = 32
# Threads of a block for many cases and for few, and blocks of the former that a multiprocessor shall have room for:
# contractions need registers, the rest needs many warps at once.
MANY_THREADS, FEW_THREADS = 128, 256
MANY_BLOCKS, REST_BLOCKS = 4, 8
# Blocks and threads that write answers to the host: as few as go at three quarters of what the bus does, because from
# there on whatever is computed beside them waits as well. How many would fill a multiprocessor, so that one takes the
# room of one that contracts; cases of a target that it writes at a time.
WRITE_BLOCKS, WRITE_THREADS, WRITE_SHARE, WRITE_CASES = 16, 512, 4, 2048
# Threads of a block that trace explanations back: with few to a block, more of them are under way in all places.
TRACE_THREADS = 64
# Threads of a case where some are traced back: its neighbours fill a sector of 32 bytes with it.
TRACE_LANES = 8
# Scores are logarithms more than they are bytes. Places of most probable states for each thread, and those of a case
# that are gathered at a time.
SCORE_BLOCKS, SCORE_SHARE, SCORE_PLACES, MOST_PLACES = 32, 2, 8, 64
WARP = 32
_TRACED_BY = {TRACE_MANY: 1, TRACE_SOME: TRACE_LANES, TRACE_FEW: WARP}
# Operands that a contraction may have.
MOST_OPERANDS = 32
# Tiles that contractions of many cases may have: lines, and entries of a line. Larger ones read fewer rows, and take no
# less time: a warp is through with a small one sooner, and there are more of them. They take longer to compile.
TILE_SHAPES = ((1, 2), (2, 2))
# Cases that a warp takes at once: 16 bytes for each of its lanes.
LANE_BYTES = 16
# Share of the memory of a device that work may take by default, and of what is free at the most: the driver and lowered
# plans need some beside it.
DEVICE_SHARE, FREE_SHARE = 0.85, 0.9
# Bytes of answers from which on pages that threads map are there sooner than those that CUDA allocates.
MAPPED_BYTES = 1 << 22
# Bytes for blocks below which a device is not opened.
LEAST_ROOM = 1 << 26
# The fields of the struct `Run`, in its order.
FIELDS = (
    *("steps", "parents", "operands", "offsets", "span", "terms", "observed", "closing", "items"),
    *("columns", "shared", "scales", "leasts", "growth", "states", "likelihoods", "rows", "targets", "settled"),
    *("arena", "lost", "open", "least", "scale", "largest", "smallest", "lossy"),
    *("posteriors", "parts", "found", "fixed", "answers"),
    *("choices", "best", "probabilities", "entropies", "chosen"),
    *("trace", "traced", "variables", "seen", "explained"),
    *("cases", "totals", "closings", "filled", "asked", "answered", "top", "choosing", "arena_rows"),
    *("trace_count", "seen_count"),
)
_NAMES = (
    *("SLICE", "LIKELIHOOD", "REDUCE", "FIXED", "CLOSED", "OPEN", "CONSTANT", "LINES", "PAIRS", "PRODUCTS"),
    *("KIND", "SLOT", "ROW", "ENTRIES", "TERMS", "FIRST_PARENT", "PARENTS", "FIRST", "COUNT", "HOW", "TILES", "OUT"),
    *(
        "SPAN",
        "STRIDE",
        "SIZE",
        "LINES_OF_TILE",
        "COLUMNS",
        "OBSERVED",
        "VARIABLES",
        "PLACE",
        "FACTS",
        "STEP_COLUMNS",
        "GIVEN",
        "NUMBER",
        "POWER",
        "MOVED",
        "LEFT",
        "SUMS",
    ),
)
_HERE = (
    *("MAKE", "CONTRACT", "BOUND", "MARGINAL", "FIND", "FINISH", "FIXED_TABLE", "NOTHING"),
    *("ITEM_COLUMNS", "CLOSING_COLUMNS", "TARGET_COLUMNS", "FOUND", "OBSERVED_STATE", "SETTLED"),
    *("PARTS", "RUN", "MOST_OPERANDS", "MANY_THREADS", "FEW_THREADS", "MANY_BLOCKS", "REST_BLOCKS"),
    *("WRITE_THREADS", "WRITE_SHARE", "WRITE_CASES", "SCORE_SHARE", "SCORE_PLACES", "MOST_PLACES"),
    *("TRACE_THREADS", "TRACE_LANES"),
)


def few_source(algebra: str) -> str:
    """Return the CUDA C++ source of what propagates few cases, in an algebra: "single", "double", "log" or "max".

    The last is for explanations: the largest sum of logarithms. Both kinds of logarithms are in double precision.
    """
    return _propagation(algebra, "few.cu")


def many_source(algebra: str, shapes: Sequence[tuple[int, int]] = TILE_SHAPES) -> str:
    """Return the source of what propagates many cases, in an algebra of `few_source`; shapes: of tiles."""
    tiles = " ".join(f"TILES({lines}, {entries})" for lines, entries in shapes)
    return _propagation(algebra, "many.cu", f"#define EVERY_TILE {tiles}")


def answers_source(algebra: str) -> str:
    """Return the source of what writes posteriors, or explanations in "max"."""
    return _source(algebra, *(["states.cu"] if algebra == "max" else ["posterior.cu", "answers.cu"]))


def scores_source(algebra: str) -> str:
    """Return the source of what writes scores."""
    return _source(algebra, "posterior.cu", "scores.cu", macros=_score_constants())


def _propagation(algebra: str, kernels: str, *macros: str) -> str:
    """Return the source of kernels for few cases or many, behind what both have."""
    logs, explains = algebra in ("log", "max"), algebra == "max"
    files = ("algebra.cu", "scales.cu", "tables.cu", *["traceback.cu"] * explains, kernels)
    return _source(algebra, *files, macros=["#define LOGS"] * logs + ["#define MAXIMA"] * explains + [*macros])


def _source(algebra: str, *files: str, macros: Sequence[str] = ()) -> str:
    constants = {name: getattr(layout, name) for name in _NAMES}
    constants |= {name: globals()[name] for name in _HERE} | {"NO_STATE": scores.NO_STATE}
    files = ("numbers.cu", "common.cu", *files)
    return cuda_source(files, constants, double=algebra != "single", before="\n".join(macros))


def _score_constants() -> list[str]:
    """Return the numbers of `tables.scores` as macros, to the last bit."""
    numbers = {"LEAST_TERM": scores.LEAST, "EXPONENT_ZERO": scores.EXPONENT_ZERO}
    numbers |= {"LOG_2_HIGH": scores.LOG_2_HIGH, "LOG_2_LOW": scores.LOG_2_LOW}
    numbers |= {"EQUAL_DOUBLE": scores.EQUAL_DOUBLE, "EQUAL_SINGLE": scores.EQUAL_SINGLE}
    numbers |= {f"SERIES_{len(scores.SERIES) - n}": number for n, number in enumerate(scores.SERIES)}
    integers = {"SHIFTED": scores.SHIFTED, "LARGE": scores.LARGE}
    return [f"#define {name} {number.hex()}" for name, number in numbers.items()] + [
        f"#define {name} {number:#x}ll" for name, number in integers.items()
    ]


# What a run compiles when it needs it. What propagates a block is in one of the first two: each has its own `run`.
FEW_CASES, MANY_CASES = KernelModule(few_source), KernelModule(many_source)
ANSWERS, SCORES = KernelModule(answers_source), KernelModule(scores_source)
# All of them, those first that take the longest.
MODULES = (MANY_CASES, FEW_CASES, SCORES, ANSWERS)


class Writer(NamedTuple):
    """A kernel that writes answers, and those that it is compiled with."""

    kernels: KernelModule
    name: str


# By the bytes of a number: posteriors, or scores made of them; and explanations.
WRITERS = {4: Writer(ANSWERS, "write_single"), 8: Writer(ANSWERS, "write_double")}
SCORERS = {4: Writer(SCORES, "score_single"), 8: Writer(SCORES, "score_double")}
WRITE_STATES = Writer(ANSWERS, "write_states")


def run_record(fields: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """Return the struct `Run`: addresses of its arrays, then its numbers; raises KeyError where one is missing."""
    return np.array([fields[name] for name in FIELDS], dtype=np.int64)


# Returns so many bytes of the host.
Mapped = Callable[[int], npt.NDArray[np.uint8]]


class BlockLaunch(NamedTuple):
    """A kernel over so many items from the `first` on."""

    kernel: str
    first: int
    items: int


Stage = Sequence[BlockLaunch]


class LaunchList(NamedTuple):
    """The work of a plan on a block of cases, as often as wanted.

    run: bytes of the struct `Run`. cleared: an array that is set to zero first, if one is. stages: one after the other.
    chunks: of cases, as many as a warp takes at once. kernels: that are launched; they are one module, as they read one
    `run`.
    """

    algebra: str
    run: DeviceArray
    cleared: DeviceArray | None
    stages: Sequence[Stage]
    chunks: int
    kernels: KernelModule


class Replay(Protocol):
    """Work on a device that is ready to be started, as often as wanted."""

    def start(self) -> None:
        """Enqueue the work."""


class BlockDevice(Protocol):
    """Memory and launches of a device; arrays are its own, and work is done in the order in which it is enqueued.

    room: bytes that all work shares, one after the other.
    """

    room: int

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def figures(self) -> dict[str, float]:
        """Numbers by which it is like other devices or not."""

    @property
    def queue(self) -> AbstractContextManager[Any]:
        """A lock: who enqueues things that belong together holds it."""

    def place(self, start: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Return an array in the room that all work shares, from a byte on; raises MemoryError."""

    def put(self, array: npt.NDArray[Any]) -> DeviceArray:
        """Return a copy of a NumPy array on the device."""

    def host(self, size: int, mapped: Mapped | None = None) -> npt.NDArray[np.uint8]:
        """Return bytes of the host, not cleared, that the device finds at the same address.

        mapped: makes them, in pages of their own; None for what the device has for few bytes.
        Raises MemoryError.
        """

    def address(self, array: DeviceArray) -> int:
        """Return where an array of the device begins."""

    def replay(self, work: LaunchList) -> Replay:
        """Return the work of a plan, ready to be started; raises MemoryError."""

    def upload(self, *copies: tuple[npt.NDArray[Any], DeviceArray]) -> None:
        """Enqueue copies from the host to the beginnings of arrays."""

    def write_answers(
        self, work: LaunchList, writer: Writer, blocks: int, array: DeviceArray, host: npt.NDArray[Any]
    ) -> None:
        """Enqueue the kernel that writes a block's posteriors to the answers, or scores made of them, and a copy.

        work: with the struct `Run`, which tells where they are.
        writer: of WRITERS or SCORERS, or WRITE_STATES.
        blocks: of threads.
        array, host: the beginning of an array is copied to the host.
        """

    def mark(self) -> Event:
        """Return a mark behind everything that is enqueued so far."""

    def wait(self, mark: Event) -> None:
        """Wait until the device has come to a mark."""

    def seconds(self, replay: Replay, repeats: int) -> float:
        """Return the fewest seconds of some repetitions of a work, after a first time."""


def grid(launch: BlockLaunch, chunks: int) -> tuple[tuple[int, int], int]:
    """Return blocks in x and y, and threads of a block, for a launch."""
    if launch.kernel == "propagate_few":
        return (launch.items, 1), FEW_THREADS
    if launch.kernel in _TRACED_BY:
        # Items are cases.
        threads = launch.items * _TRACED_BY[launch.kernel]
        return (-(-threads // TRACE_THREADS), 1), TRACE_THREADS
    return (launch.items * WARP // MANY_THREADS, chunks), MANY_THREADS


def room_of(memory: float, allowed: int | None, free: float = math.inf) -> int:
    """Return the bytes of a device that work may take.

    memory: bytes that it has.
    allowed: by the user, None for a share of it.
    free: bytes that nobody has now, where that is known.
    """
    return int(min(allowed or DEVICE_SHARE * memory, FREE_SHARE * min(memory, free)))


class CudaBlockDevice(CudaDevice):
    """A CUDA device for blocks of cases. What comes in, kernels and what goes out have a stream each: they overlap.

    number: of the device.
    allowed: bytes for blocks under way; None for a share of all.
    Raises ImportError without CuPy, and what CuPy raises without such a device.
    """

    def __init__(self, number: int = 0, allowed: int | None = None) -> None:
        super().__init__(number)
        # Of an idle device it is known before that is opened, so that plans made ahead are the right ones.
        free = self.free()
        if int(FREE_SHARE * free) < LEAST_ROOM:
            # The driver takes memory of its own for streams and graphs, and may not outlive that there is none.
            raise MemoryError(f"{free:,} bytes of device memory are free")
        self.room = room_of(self.figures["memory"], allowed, free)
        self._in, self._work, self._out = _streams_of(self._cupy, number)
        # Graphs are recorded in streams that nobody launches in: what another thread enqueues would become a part.
        self._recorded, self._beside = self.stream(), self.stream()
        self._memory = self.reserve(self.room)

    def place(self, start: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Return an array in the room that all work shares, from a byte on; raises MemoryError."""
        return self.array_at(self._memory, start, shape, dtype)

    def enable_peer(self, other: CudaDevice) -> bool:
        """Let kernels and copies of this device use the memory of another one; returns False where it cannot."""
        reaches = super().enable_peer(other)
        if reaches and isinstance(other, CudaBlockDevice):
            other._memory.open_to(self.number)
        return reaches

    def host(self, size: int, mapped: Mapped | None = None) -> npt.NDArray[np.uint8]:
        """Return bytes of pinned memory, not cleared, which have the same address on the device."""
        if mapped is None or size < MAPPED_BYTES:
            # Not from CuPy's pool, which keeps what was ever used.
            return self.pinned(size)
        memory = mapped(size)
        with self.current():
            register_host(memory)
        return memory

    def replay(self, work: LaunchList) -> Replay:
        """Return the work of a plan as a CUDA graph; raises MemoryError."""
        # What the graph reads has arrived by then: copies of `put` are in another stream.
        self.synchronize_all()
        with self.current(), cuda_errors():
            return BlockGraph(self.capture(self._recorded, partial(self._record, work)), self._work)

    def _record(self, work: LaunchList) -> None:
        """Enqueue the work of a plan to be recorded; launches of a stage run concurrently."""
        stream, beside = self._recorded, self._beside
        run = work.kernels.address(self, "run", work.algebra)
        self.copy_bytes(run, self.address(work.run), work.run.nbytes, stream, ON_DEVICE)
        if work.cleared is not None:
            # Kernels only raise these words, so they begin at zero (`common.cu`).
            self.fill(self.address(work.cleared), 0, work.cleared.nbytes, stream)
        for number, stage in enumerate(work.stages):
            if len(stage) > 1:
                beside.wait_event(stream.record())
            for launch, where in zip(stage, (stream, beside), strict=False):
                self._launch(work, launch, where, is_first=number == 0)
            if len(stage) > 1:
                # Also what a capture needs: the second stream has to come back to the one that began it.
                stream.wait_event(beside.record())

    def _launch(self, work: LaunchList, launch: BlockLaunch, stream: Stream, is_first: bool) -> None:
        kernel = work.kernels.function(self, launch.kernel, work.algebra)
        blocks, threads = grid(launch, work.chunks)
        # Only `few.cu` waits for the stage before by itself; ahead of the first stage are a copy and zeros, no kernel.
        if self.overlaps_launches and not is_first and launch.kernel == "propagate_few":
            self.launch_early(kernel, blocks, threads, launch.first, stream)
        else:
            self.launch_kernel(kernel, blocks, threads, (np.int32(launch.first),), stream)

    def upload(self, *copies: tuple[npt.NDArray[Any], DeviceArray]) -> None:
        """Enqueue copies to the beginnings of arrays; kernels enqueued later wait for them."""
        for host, array in copies:
            self.copy_bytes(self.address(array), host.ctypes.data, host.nbytes, self._in, TO_DEVICE)
        self._work.wait_event(self._in.record(self.event()))

    def write_answers(
        self, work: LaunchList, writer: Writer, blocks: int, array: DeviceArray, host: npt.NDArray[Any]
    ) -> None:
        """Enqueue the kernel that writes a block's answers, and a copy, behind the kernels enqueued so far."""
        self._out.wait_event(self._work.record(self.event()))
        function = writer.kernels.function(self, writer.name, work.algebra)
        self.launch_kernel(function, (blocks,), WRITE_THREADS, (work.run,), self._out)
        self.copy_bytes(host.ctypes.data, self.address(array), host.nbytes, self._out, TO_HOST)

    def mark(self) -> Event:
        """Return a mark behind what is enqueued to go out so far."""
        # Whoever waits for it sleeps: the cores have answers to write.
        return self._out.record(self.event(block=True))

    def wait(self, mark: Event) -> None:
        """Wait until the device has come to a mark."""
        mark.synchronize()

    def seconds(self, replay: Replay, repeats: int) -> float:
        """Return the fewest seconds of the device for some repetitions of a work, after a first time."""
        fewest = float("inf")
        with self.queue:
            replay.start()
            for _ in range(repeats):
                begin, end = self.event(timing=True), self.event(timing=True)
                begin.record(self._work)
                replay.start()
                end.record(self._work)
                end.synchronize()
                fewest = min(fewest, self.elapsed(begin, end))
        return fewest


@cache
def _streams_of(cupy: Any, number: int) -> tuple[Stream, Stream, Stream]:
    """Return the streams of a GPU for what comes in, kernels, and what goes out."""
    # The same for all objects of a GPU, so that blocks go one after the other: kernels find the struct `Run` of a block
    # in one place of the GPU. CuPy is part of the key, as for kernels.
    device = CudaDevice(number)
    # Few blocks of threads go out, before those that compute: the bus is the narrowest way.
    return device.stream(), device.stream(), device.stream(priority=-1)


class BlockGraph:
    """Launches over a block as a CUDA graph, for one stream."""

    def __init__(self, graph: Graph, stream: Stream) -> None:
        self._graph = graph
        self._stream = stream

    def start(self) -> None:
        """Enqueue the launches."""
        self._graph.launch(self._stream)
