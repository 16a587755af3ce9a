"""Where the time goes on GPUs: events around what devices do, beside clocks of the host.

`TimedDevice` is for the blocks of a batch, `recorded` for a propagation in chunks: a bar for each piece of work, in a
lane for each stream and one for the thread of the host. `timeline_picture.py` draws them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy.typing as npt
from junctor.out_of_core.gpu.devices import DeviceGroup
from junctor.out_of_core.gpu.in_flight import PassInFlight
from junctor.out_of_core.gpu.run import GpuRun
from junctor.out_of_core.gpu.slots import DeviceSlots
from junctor_kernels.gpu import entries
from junctor_kernels.gpu.blocks import CudaBlockDevice, LaunchList, Replay
from junctor_kernels.gpu.device import CudaDevice, DeviceArray, address_of

# What a block does on the device, in this order; each has a stream.
STAGES = ("brought in", "computed", "taken out")


@dataclass
class Times:
    """One block: clocks of the host in seconds, and the first and last event of each of its stages."""

    began: float
    enqueued: float = 0.0
    back: float = 0.0
    events: dict[str, list[Any]] = field(default_factory=dict)


class DeviceClock:
    """When a device came by an event, on the clock of the host: it saw one event when that happened."""

    def __init__(self, device: CudaDevice) -> None:
        self._device, stream = device, device.stream()
        device.synchronize_all()
        with device.current():
            self._seen = device.event(timing=True)
            before = time.perf_counter()
            self._seen.record(stream)
            self._seen.synchronize()
        self.began = (before + time.perf_counter()) / 2

    def at(self, event: Any) -> float:
        """Return the seconds of an event with timing."""
        return self.began + self._device.elapsed(self._seen, event)


class TimedDevice(CudaBlockDevice):
    """A device that keeps the times of its blocks until `take` is called."""

    def __init__(self) -> None:
        super().__init__()
        self._here = threading.local()
        self._blocks: list[Times] = []
        self._clock = DeviceClock(self)

    def take(self) -> list[tuple[Times, dict[str, tuple[float, float]]]]:
        """Return the blocks since the last call, and when each stage began and ended, on the clock of the host."""
        self.synchronize_all()
        at = self._clock.at
        result = [
            (block, {stage: (at(begin), at(end)) for stage, (begin, end) in block.events.items()})
            for block in self._blocks
        ]
        self._blocks = []
        self._clock = DeviceClock(self)
        return sorted(result, key=lambda each: each[0].began)

    def upload(self, *copies: tuple[npt.NDArray[Any], DeviceArray]) -> None:
        self._here.block = Times(time.perf_counter())
        self._note("brought in", self._in)
        super().upload(*copies)
        self._note("brought in", self._in)

    def replay(self, work: LaunchList) -> Replay:
        return _Timed(super().replay(work), self)

    def write_answers(self, work: LaunchList, *how: Any) -> None:
        self._out.wait_event(self._work.record())
        self._note("taken out", self._out)
        super().write_answers(work, *how)

    def mark(self) -> Any:
        self._note("taken out", self._out)
        mark = super().mark()
        self._here.block.enqueued = time.perf_counter()
        return mark

    def wait(self, mark: Any) -> None:
        super().wait(mark)
        self._here.block.back = time.perf_counter()
        self._blocks.append(self._here.block)
        del self._here.block

    def computed(self) -> None:
        """Note the beginning or the end of what is computed."""
        self._note("computed", self._work)

    def _note(self, stage: str, stream: Any) -> None:
        events = self._here.block.events.setdefault(stage, [])
        del events[1:]
        events.append(stream.record())


class _Timed:
    def __init__(self, replay: Replay, device: TimedDevice) -> None:
        self._replay, self._device = replay, device

    def start(self) -> None:
        self._device.computed()
        self._replay.start()
        self._device.computed()


def show(blocks: list[tuple[Times, dict[str, tuple[float, float]]]], began: float, seconds: float) -> None:
    """Print the blocks of a batch, in milliseconds since it began."""
    print("block | its evidence ready | enqueued | " + " | ".join(STAGES) + " | back on the host")
    print("|".join(["---"] * (4 + len(STAGES))))
    for number, (block, stages) in enumerate(blocks):
        spans = (f"{1e3 * (a - began):.2f} to {1e3 * (b - began):.2f}" for a, b in (stages[name] for name in STAGES))
        host = f"{1e3 * (block.began - began):.2f} | {1e3 * (block.enqueued - began):.2f}"
        print(f"{number} | {host} | {' | '.join(spans)} | {1e3 * (block.back - began):.2f}")
    shares = (sum(stages[name][1] - stages[name][0] for _, stages in blocks) / seconds for name in STAGES)
    summary = ", ".join(f"{name} {share:.0%}" for name, share in zip(STAGES, shares, strict=True))
    print(f"of {1e3 * seconds:.1f} ms: {summary}", flush=True)


# What is done by devices, and by the thread of the host.
KERNELS, IN, OUT, EXCHANGED, MOVED, WAITS = (
    *("kernels", "copies in", "copies out"),
    *("exchanges between devices", "copies on a device", "waits for events"),
)
ENQUEUES, HELD_UP, WAITS_FOR_DEVICES, ADDS_UP = (
    "enqueues",
    "held up by the driver",
    "waits for devices",
    "adds up, stores",
)
HOST = "host"
ENTRIES = entries.FIELDS.index("entries")
# Seconds from which a call of the driver did not only enqueue: it waited for room in a queue, or for the device.
HELD_UP_SECONDS = 2e-4


class Bar(NamedTuple):
    """Something that was done.

    lane: GPU and stream, or HOST.
    kind: what it was, KERNELS to WAITS or ENQUEUES to ADDS_UP.
    begin, end: seconds since the propagation began.
    pass_: its number.
    nbytes: that were copied.
    """

    lane: str
    kind: str
    begin: float
    end: float
    pass_: int
    nbytes: int = 0


class _Work(NamedTuple):
    """What was enqueued in a stream, when, and the events in front of it, where the stream waited, and behind it."""

    kind: str
    pass_: int
    nbytes: int
    waited: float
    enqueued: float
    released: Any
    ended: Any


class _RecordedStream:
    """A stream of CuPy that keeps what is enqueued in it."""

    def __init__(self, recording: _Recording, device: CudaDevice, stream: Any) -> None:
        self._recording, self._device, self.stream = recording, device, stream
        self.ptr = stream.ptr
        self._waits_since = 0.0
        self._work: list[_Work] = []

    def __enter__(self) -> None:
        self._recording.current.append(self)
        self.stream.__enter__()

    def __exit__(self, *error: object) -> None:
        self.stream.__exit__(*error)
        self._recording.current.pop()

    def wait_event(self, event: Any) -> None:
        self._waits_since = self._waits_since or time.perf_counter()
        self.stream.wait_event(event)

    def synchronize(self) -> None:
        self.stream.synchronize()

    @contextmanager
    def doing(self, kind: str, nbytes: int = 0) -> Iterator[None]:
        """Context manager: what is enqueued is one bar."""
        waited, released, enqueued = self._waits_since, None, time.perf_counter()
        if waited:
            released, self._waits_since = self._mark(), 0.0
        before = time.perf_counter()
        yield
        self._recording.called(before, time.perf_counter())
        self._work.append(_Work(kind, self._recording.pass_, nbytes, waited, enqueued, released, self._mark()))

    def _mark(self) -> Any:
        event = self._device.event(timing=True)
        event.record(self.stream)
        return event

    def bars(self, lane: str, clock: DeviceClock) -> Iterator[Bar]:
        """Yield what was done, on the clock of the host; everything has to be done."""
        last = 0.0
        for work in self._work:
            ended, begin = clock.at(work.ended), max(last, work.enqueued)
            if work.released is not None:
                # Idle before the host asked for the wait is nobody's.
                released = min(clock.at(work.released), ended)
                waited = max(last, work.waited)
                if released > waited:
                    yield Bar(lane, WAITS, waited, released, work.pass_)
                begin = max(begin, released)
            # Clocks of the host and of a device differ by some microseconds.
            last = max(ended, last)
            yield Bar(lane, work.kind, min(begin, last), last, work.pass_, work.nbytes)


class _Recording:
    """Everything that is enqueued on the devices of a group, and what the thread that does it is busy with."""

    def __init__(self, gpu: DeviceGroup) -> None:
        self.gpu = gpu
        self.pass_ = -1
        self.current: list[_RecordedStream] = []
        self.lanes: dict[tuple[DeviceSlots, str], _RecordedStream] = {}
        self.host: list[Bar] = []
        self._doing: list[tuple[str, int]] = []
        self._since = 0.0
        # Slots and tables of each device, and the words that it reports.
        memories = [(n, memory) for n, each in enumerate(gpu.devices) for memory in (each._memory, each._words)]
        self._rooms = [(address_of(memory), memory.nbytes, n) for n, memory in memories]

    @contextmanager
    def streams(self) -> Iterator[None]:
        """Context manager: the streams of all slots and devices keep what is enqueued."""
        owners: list[tuple[Any, str, DeviceSlots, str]] = []
        for slot in self.gpu.slots:
            number = slot.number % slot.device.count + 1
            owners += [(slot, "stream", slot.device, f"stream {number}")]
            owners += [(slot, "ahead", slot.device, f"links {number}")]
        for device in self.gpu.devices:
            owners += [(device, "upload", device, "offsets"), (device, "download", device, "reports")]
        with ExitStack() as patches:
            for owner, name, device, lane in owners:
                key = device, f"GPU {self.gpu.devices.index(device)}, {lane}"
                self.lanes[key] = _RecordedStream(self, device.cuda, getattr(owner, name))
                patches.enter_context(patch.object(owner, name, self.lanes[key]))
            yield

    @contextmanager
    def busy(self, kind: str, pass_: int) -> Iterator[None]:
        """Context manager: what the host does; what it does within that is not counted twice."""
        self._turn()
        self._doing.append((kind, pass_))
        try:
            yield
        finally:
            self._turn()
            self._doing.pop()

    def called(self, begin: float, end: float) -> None:
        """Note a call of the driver."""
        if end - begin > HELD_UP_SECONDS:
            self._turn(begin)
            self.host.append(Bar(HOST, HELD_UP, begin, end, self.pass_))
            self._since = end

    def _turn(self, now: float | None = None) -> None:
        now = now or time.perf_counter()
        if self._doing:
            self.host.append(Bar(HOST, self._doing[-1][0], self._since, now, self._doing[-1][1]))
        self._since = now

    def between(self, target: int, source: int) -> str:
        """Return what a copy from one address to another is."""
        to, of = self._owner(target), self._owner(source)
        if to is None:
            # Offsets come to memory of CuPy's pool, from the host.
            return IN if of is None else OUT
        if of is None:
            return IN
        return MOVED if to == of else EXCHANGED

    def launch_kind(self, device: DeviceSlots, kernel: Any, words: Any) -> tuple[str, int]:
        """Return what a launch is, and the bytes that it copies."""
        if kernel is device.kernel("carry"):
            ends = (int(words[place]) for place in (entries.OUT, entries.TABLES[0]))
            return self.between(*ends), int(words[ENTRIES]) * device.dtype.itemsize
        if any(kernel is device.kernel(name) for name in ("exchange", "exchange_runs")):
            kinds = {self.between(*ends) for ends in entries.exchanged_shares(words)}
            return EXCHANGED if EXCHANGED in kinds else MOVED, entries.exchanged_bytes(words)
        # Words with what pilot tasks and devices have found.
        is_told = any(kernel is device.kernel(name) for name in ("relay", "gather"))
        return EXCHANGED if is_told else KERNELS, 0

    def _owner(self, address: int) -> int | None:
        return next((n for begin, size, n in self._rooms if begin <= address < begin + size), None)

    def bars(self, clocks: Mapping[DeviceSlots, DeviceClock], began: float) -> list[Bar]:
        """Return all bars in order, from the beginning of the propagation on; devices are through with everything."""
        found = list(self.host)
        for (device, lane), stream in self.lanes.items():
            found += stream.bars(lane, clocks[device])
        found = [bar._replace(begin=bar.begin - began, end=bar.end - began) for bar in found]
        return sorted(found, key=lambda bar: (bar.lane, bar.begin, bar.end))


@contextmanager
def recorded(gpu: DeviceGroup) -> Iterator[list[Bar]]:
    """Context manager: what a propagation does, of which there is one; the list is filled when it has ended.

    Every launch and every copy has an event behind it, which takes the host some microseconds more each.
    """
    recording, bars = _Recording(gpu), list[Bar]()
    copy_bytes, copy_rows, launch = CudaDevice.copy_bytes, CudaDevice.copy_rows, DeviceSlots.launch
    wait = PassInFlight.wait

    class Recorded(GpuRun):
        def _begin(self, n: int, *span: float) -> None:
            recording.pass_ = n
            with recording.busy(ENQUEUES, n):
                super()._begin(n, *span)

        def _group(self, work: PassInFlight, *of: Any) -> None:
            recording.pass_ = work.number
            with recording.busy(ENQUEUES, work.number):
                super()._group(work, *of)

        def _close(self, work: PassInFlight) -> None:
            with recording.busy(ADDS_UP, work.number):
                super()._close(work)

    def waited(work: PassInFlight) -> None:
        with recording.busy(WAITS_FOR_DEVICES, work.number):
            wait(work)

    def copied(device: CudaDevice, target: int, source: int, size: int, stream: Any, *more: Any) -> None:
        with stream.doing(recording.between(target, source), size):
            copy_bytes(device, target, source, size, stream, *more)

    def copied_rows(device: CudaDevice, target: int, *of: Any) -> None:
        _, source, _, width, rows, stream = of
        with stream.doing(recording.between(target, source), width * rows):
            copy_rows(device, target, *of)

    def launched(device: DeviceSlots, kernel: Any, blocks: int, words: Any, *threads: int) -> None:
        kind, size = recording.launch_kind(device, kernel, words)
        with recording.current[-1].doing(kind, size):
            launch(device, kernel, blocks, words, *threads)

    clocks = {device: DeviceClock(device.cuda) for device in gpu.devices}
    with (
        recording.streams(),
        patch("junctor.out_of_core.gpu.run.GpuRun", Recorded),
        patch.object(PassInFlight, "wait", waited),
        patch.object(CudaDevice, "copy_bytes", copied),
        patch.object(CudaDevice, "copy_rows", copied_rows),
        patch.object(DeviceSlots, "launch", launched),
    ):
        began = time.perf_counter()
        yield bars
    bars += recording.bars(clocks, began)


def ends_of(bars: Iterable[Bar]) -> list[float]:
    """Return when devices were through with each pass."""
    ends: dict[int, float] = {}
    for bar in bars:
        if bar.lane != HOST and bar.pass_ >= 0:
            ends[bar.pass_] = max(ends.get(bar.pass_, 0.0), bar.end)
    return [ends[pass_] for pass_ in sorted(ends)]


def shares(bars: Sequence[Bar], seconds: float) -> Iterator[str]:
    """Yield a line for each GPU and one for the host: the share of the time in which any of its lanes does a thing."""
    owners = dict.fromkeys(bar.lane.split(",")[0] for bar in bars if bar.lane != HOST)
    for owner in (*sorted(owners), HOST):
        own = [bar for bar in bars if bar.lane.split(",")[0] == owner]
        kinds = (
            (ENQUEUES, HELD_UP, WAITS_FOR_DEVICES, ADDS_UP) if owner == HOST else (KERNELS, IN, OUT, EXCHANGED, MOVED)
        )
        texts = [_share(kind, [bar for bar in own if bar.kind == kind], seconds) for kind in kinds]
        if owner != HOST:
            busy = covered(bar for bar in own if bar.kind != WAITS)
            kernels, others = (
                covered(bar for bar in own if (bar.kind == KERNELS) == which and bar.kind != WAITS)
                for which in (True, False)
            )
            texts.append(
                f"kernels alone {(busy - others) / seconds:.0%}, copies alone {(busy - kernels) / seconds:.0%}"
            )
            texts.append(f"nothing {1 - busy / seconds:.0%}")
        yield f"{owner}: {', '.join(filter(None, texts))}"


def _share(kind: str, bars: Sequence[Bar], seconds: float) -> str:
    if not bars:
        return ""
    taken, moved = covered(bars), sum(bar.nbytes for bar in bars)
    rate = f" ({moved / 2**30:.3g} GiB, {moved / taken:.2g} bytes/s)" if moved and taken else ""
    return f"{kind} {taken / seconds:.0%}{rate}"


def covered(bars: Iterable[Bar]) -> float:
    """Return the seconds in which there is at least one of some bars."""
    total = last = 0.0
    for bar in sorted(bars, key=lambda bar: bar.begin):
        total += max(0.0, bar.end - max(bar.begin, last))
        last = max(last, bar.end)
    return total


def write_trace(bars: Iterable[Bar], path: Path) -> None:
    """Write bars in the Trace Event Format, which Perfetto and Chromium show."""
    numbers: dict[str, int] = {}
    events: list[dict[str, Any]] = []
    for bar in bars:
        lane = numbers.setdefault(bar.lane, len(numbers))
        given = {"pass": bar.pass_, "bytes": bar.nbytes}
        times = {"ts": round(1e6 * bar.begin, 3), "dur": round(1e6 * (bar.end - bar.begin), 3)}
        events.append({"ph": "X", "pid": 0, "tid": lane, "name": bar.kind, **times, "args": given})
    names = [
        {"ph": "M", "pid": 0, "tid": lane, "name": "thread_name", "args": {"name": name}}
        for name, lane in numbers.items()
    ]
    path.write_text(json.dumps({"traceEvents": [*names, *events]}))


def read_trace(path: Path) -> list[Bar]:
    """Return the bars of a file of `write_trace`."""
    events = json.loads(path.read_text())["traceEvents"]
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    return [
        Bar(
            *(lanes[event["tid"]], event["name"], 1e-6 * event["ts"], 1e-6 * (event["ts"] + event["dur"])),
            *(event["args"]["pass"], event["args"]["bytes"]),
        )
        for event in events
        if event["ph"] == "X"
    ]
