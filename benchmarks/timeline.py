"""Where the time of a batch on a GPU goes: events around what each block does, beside clocks of the host."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
from junctor_kernels.gpu.blocks import CudaBlockDevice, LaunchList, Replay
from junctor_kernels.gpu.device import DeviceArray

# What a block does on the device, in this order; each has a stream.
STAGES = ("brought in", "computed", "taken out")


@dataclass
class Times:
    """One block: clocks of the host in seconds, and the first and last event of each of its stages."""

    began: float
    enqueued: float = 0.0
    back: float = 0.0
    events: dict[str, list[Any]] = field(default_factory=dict)


class TimedDevice(CudaBlockDevice):
    """A device that keeps the times of its blocks until `take` is called."""

    def __init__(self) -> None:
        super().__init__()
        self._here = threading.local()
        self._blocks: list[Times] = []
        self._started()

    def take(self) -> list[tuple[Times, dict[str, tuple[float, float]]]]:
        """Return the blocks since the last call: clocks, and when each stage began and ended, all in seconds."""
        self.synchronize_all()
        result = []
        for block in self._blocks:
            stages = {}
            for stage, (begin, end) in block.events.items():
                stages[stage] = (self.elapsed(self._base, begin), self.elapsed(self._base, end))
            for clock in ("began", "enqueued", "back"):
                setattr(block, clock, getattr(block, clock) - self.clock)
            result.append((block, stages))
        self._blocks = []
        self._started()
        return sorted(result, key=lambda each: each[0].began)

    def upload(self, host: npt.NDArray[Any], array: DeviceArray) -> None:
        if not hasattr(self._here, "block"):
            self._here.block = Times(time.perf_counter())
            self._note("brought in", self._in)
        super().upload(host, array)
        self._note("brought in", self._in)

    def replay(self, work: LaunchList) -> Replay:
        return _Timed(super().replay(work), self)

    def write_answers(self, work: LaunchList, kernel: str, blocks: int) -> None:
        self._out.wait_event(self._work.record())
        self._note("taken out", self._out)
        super().write_answers(work, kernel, blocks)

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

    def _started(self) -> None:
        with self.current():
            self._base = self._work.record()
            self._base.synchronize()
            self.clock = time.perf_counter()


class _Timed:
    def __init__(self, replay: Replay, device: TimedDevice) -> None:
        self._replay, self._device = replay, device

    def start(self) -> None:
        self._device.computed()
        self._replay.start()
        self._device.computed()


def show(blocks: list[tuple[Times, dict[str, tuple[float, float]]]], began: float, seconds: float) -> None:
    """Print the blocks of a batch that began at `began` on the clock of `take`, in milliseconds since then."""
    print("block | its evidence ready | enqueued | " + " | ".join(STAGES) + " | back on the host")
    print("|".join(["---"] * (4 + len(STAGES))))
    for number, (block, stages) in enumerate(blocks):
        spans = (f"{1e3 * (a - began):.2f} to {1e3 * (b - began):.2f}" for a, b in (stages[name] for name in STAGES))
        host = f"{1e3 * (block.began - began):.2f} | {1e3 * (block.enqueued - began):.2f}"
        print(f"{number} | {host} | {' | '.join(spans)} | {1e3 * (block.back - began):.2f}")
    shares = (sum(stages[name][1] - stages[name][0] for _, stages in blocks) / seconds for name in STAGES)
    summary = ", ".join(f"{name} {share:.0%}" for name, share in zip(STAGES, shares, strict=True))
    print(f"of {1e3 * seconds:.1f} ms: {summary}", flush=True)
