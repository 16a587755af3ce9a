"""The timeline of a propagation in chunks: everything that is enqueued is a bar, and answers stay what they are."""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from digests.stand_in import cut
from emulation import cupy_memory
from junctor.backends.numpy import EvidenceBlock
from junctor.generate import grid
from junctor.out_of_core.gpu.devices import DeviceGroup
from junctor.out_of_core.gpu.run import ChunkedGpuProgram
from junctor.placement import residency
from junctor_kernels.tables.reference import DOUBLE


@pytest.fixture
def timeline(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    cupy_memory.stand_in(monkeypatch)
    return importlib.import_module("timeline")


@pytest.mark.parametrize("count", [1, 2])
def test_everything_that_is_enqueued_is_a_bar(
    timeline: Any, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency, "RESIDENT_PIECE", 1)
    # All that leaves a device is copied: what kernels write to the host is no bar of its own.
    monkeypatch.setattr(DeviceGroup, "on_host", lambda *_: None)
    network, block = grid(3, 4, seed=3), EvidenceBlock(1, {}, {})
    chunks = cut(network)
    gpu = DeviceGroup(chunks, DOUBLE, *(cupy_memory.Device(1 << 28, n) for n in range(count)))
    program = ChunkedGpuProgram(chunks, network, DOUBLE, gpu)
    wanted = program.run(block)
    before = sum(slot.loaded + slot.stored for slot in gpu.slots)
    with timeline.recorded(gpu) as bars:
        found = program.run(block)
    for variable, posterior in wanted.posteriors.items():
        np.testing.assert_array_equal(found.posteriors[variable], posterior)

    lanes = {lane: [bar for bar in bars if bar.lane == lane] for lane in {bar.lane for bar in bars}}
    assert {lane.split(",")[0] for lane in lanes} == {timeline.HOST, *(f"GPU {n}" for n in range(count))}
    for own in lanes.values():
        assert all(bar.begin <= bar.end for bar in own)
        assert all(one.end <= other.begin + 1e-9 for one, other in itertools.pairwise(own))
    # Slots count what their tasks move; offsets and reports go on streams of their own.
    moved = sum(bar.nbytes for bar in bars if "stream" in bar.lane)
    assert moved == sum(slot.loaded + slot.stored for slot in gpu.slots) - before
    kinds = {bar.kind for bar in bars}
    assert {timeline.KERNELS, timeline.OUT, timeline.ENQUEUES} <= kinds
    assert (timeline.EXCHANGED in kinds) == (count > 1)
    assert {bar.pass_ for bar in bars if bar.kind == timeline.KERNELS} == set(range(len(chunks.passes)))

    seconds = max(bar.end for bar in bars)
    assert len(timeline.ends_of(bars)) == len(chunks.passes)
    lines = list(timeline.shares(bars, seconds))
    assert [line.split(":")[0] for line in lines] == [*(f"GPU {n}" for n in range(count)), timeline.HOST]
    assert all(timeline.covered(own) <= seconds for own in lanes.values())
    picture = importlib.import_module("timeline_picture")
    timeline.write_trace(bars, tmp_path / "trace.json")
    again = timeline.read_trace(tmp_path / "trace.json")
    np.testing.assert_allclose([bar[2:] for bar in again], [bar[2:] for bar in bars], atol=1e-8)
    picture.draw(again, seconds, "a title", tmp_path / "picture.svg")
    drawn = (tmp_path / "picture.svg").read_text()
    # Streams of slots at least; offsets and reports take too little to be seen.
    shown = [lane for lane in lanes if "stream" in lane]
    assert all(text in drawn for text in (*shown, timeline.HOST, "a title", timeline.KERNELS))


def test_what_was_recorded_once_is_not_recorded_after(timeline: Any) -> None:
    network = grid(3, 3, seed=1)
    chunks = cut(network)
    gpu = DeviceGroup(chunks, DOUBLE, cupy_memory.Device(1 << 28))
    program = ChunkedGpuProgram(chunks, network, DOUBLE, gpu)
    with timeline.recorded(gpu) as bars:
        program.run(EvidenceBlock(1, {}, {}))
    count = len(bars)
    program.run(EvidenceBlock(1, {}, {}))
    assert len(bars) == count
    assert all(isinstance(slot.stream, cupy_memory.Stream) for slot in gpu.slots)


def test_stretches_are_what_takes_most_of_them(timeline: Any) -> None:
    picture = importlib.import_module("timeline_picture")
    lane, end = "GPU 0, stream 1", 1.2
    bars = [
        timeline.Bar(lane, timeline.WAITS, 0.0, 0.3, 0),
        timeline.Bar(lane, timeline.KERNELS, 0.3, 0.6, 0),
        *(timeline.Bar(lane, timeline.IN, 0.6 + n / 1e4, 0.6 + (n + 0.9) / 1e4, 0) for n in range(3000)),
    ]
    found = picture.stretches(bars, end)
    assert [kind for kind, _, _ in found] == [timeline.WAITS, timeline.KERNELS, timeline.IN]
    np.testing.assert_allclose([span for _, *span in found], [(0, 0.3), (0.3, 0.6), (0.6, 0.9)], atol=end / 1200)
