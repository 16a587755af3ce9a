"""Propagation in chunks on a GPU against the same plan on the CPU; without a GPU, on a stand-in for one."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from junctor import chunk_places, chunk_slots, chunked_gpu
from junctor.chunk_places import pinned_places, resident_places, slot_bytes
from junctor.chunk_slots import ChunkGpu
from junctor.chunked import ChunkedProgram
from junctor.devices import open_gpu, open_other_gpus
from junctor.engine import shape_of
from junctor.formats import read_network
from junctor.generate import grid
from junctor.model import Network
from junctor.planning.chunks import ChunkPlan, chunk_plan
from junctor.planning.compile import compile_plan
from junctor.planning.shape import Pattern
from junctor.propagation import Block
from junctor_kernels import entries_gpu, reference
from junctor_kernels.reference import Algebra

ROOM = 1 << 28
Devices = Callable[[int], list[Any]]
BOTH = pytest.mark.parametrize("algebra", [reference.SINGLE, reference.DOUBLE], ids=lambda each: each.name)


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def devices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Devices]:
    """Return so many GPUs; of real ones as many as there are."""
    if request.param == "cuda":
        yield lambda count: [open_gpu(ROOM), *open_other_gpus(ROOM)][:count]
        return
    import emulated_cupy

    monkeypatch.setitem(sys.modules, "cupy", emulated_cupy)
    # Small blocks: each of their threads is one of the machine's here.
    monkeypatch.setattr(entries_gpu, "THREADS", 32)
    monkeypatch.setattr(entries_gpu, "TILE", 32 * entries_gpu.EACH)
    chunk_slots._module.cache_clear()
    yield lambda count: [emulated_cupy.Device(ROOM, n) for n in range(count)]
    chunk_slots._module.cache_clear()


def cut(network: Network, working: int) -> ChunkPlan:
    plan = compile_plan(shape_of(network), Pattern(frozenset(), frozenset()), rows=1)
    return chunk_plan(plan, working, 1 << 40, 0)


def check(network: Network, chunks: ChunkPlan, algebra: Algebra, found_on: list[Any]) -> ChunkGpu:
    block = Block(1, {}, {})
    wanted = ChunkedProgram(chunks, network, algebra).run(block)
    gpu = ChunkGpu(chunks, algebra.name, *found_on)
    found = ChunkedProgram(chunks, network, algebra, gpu=gpu).run(block)
    again = ChunkedProgram(chunks, network, algebra, gpu=gpu).run(block)
    tolerance = 1e-12 if algebra is reference.DOUBLE else 1e-5
    np.testing.assert_allclose(found.log_value, wanted.log_value, rtol=tolerance, atol=tolerance)
    assert found.doubtful == wanted.doubtful
    for variable, posterior in wanted.posteriors.items():
        np.testing.assert_allclose(found.posteriors[variable], posterior, atol=tolerance)
        # Whatever slots came first, the numbers are the same.
        np.testing.assert_array_equal(found.posteriors[variable], again.posteriors[variable])
    assert gpu.loaded >= 2 * chunks.loaded * algebra.dtype.itemsize
    assert gpu.stored >= 2 * chunks.stored * algebra.dtype.itemsize
    return gpu


@BOTH
@pytest.mark.parametrize("working", [16, 1 << 10])
def test_small_grids(devices: Devices, working: int, algebra: Algebra) -> None:
    network = grid(3, 4, seed=1)
    check(network, cut(network, working), algebra, devices(1))


@pytest.mark.parametrize("spread", [0, 1 << 26])
def test_tasks_that_are_added_up(devices: Devices, spread: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_places, "SPREAD_BYTES", spread)
    network = grid(3, 4, seed=2)
    chunks = cut(network, 16)
    assert any(each.summed for each in chunks.passes)
    check(network, chunks, reference.DOUBLE, devices(1))


def test_several_devices(devices: Devices) -> None:
    network = grid(3, 4, seed=3)
    chunks = cut(network, 16)
    gpu = check(network, chunks, reference.DOUBLE, devices(2))
    if len(gpu.each) > 1:
        assert all(sum(slot.loaded for slot in one.slots) for one in gpu.each)


def test_rows_of_pieces_from_where_they_are(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_gpu, "RUN_BYTES", 1)
    network = grid(3, 4, seed=4)
    check(network, cut(network, 16), reference.DOUBLE, devices(1))


@BOTH
@pytest.mark.parametrize("count", [1, 2])
def test_tables_stay_on_the_devices(
    devices: Devices, count: int, algebra: Algebra, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_places, "RESIDENT_PIECE", 1)
    network = grid(3, 4, seed=5)
    chunks = cut(network, 16)
    gpu = check(network, chunks, algebra, devices(count))
    assert len(gpu.resident) > len(chunks.passes) / 2
    assert {at for at, _ in gpu.resident.values()} == set(range(len(gpu.each)))


@pytest.mark.parametrize("room", [0, 1 << 10, 1 << 12, 1 << 20])
def test_what_lies_at_the_same_place_is_not_there_at_the_same_time(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_places, "RESIDENT_PIECE", 1)
    monkeypatch.setattr(chunk_places, "SPREAD_BYTES", 0)
    chunks = cut(grid(6, 6, seed=1), 64)
    lives = chunks.lifetimes()
    results = {*chunks.plan.totals, *(table for _, table in chunks.plan.marginals)}
    resident = resident_places(chunks, 8, [room, room])
    pinned, size = pinned_places(chunks, 8, resident)
    made = {table for table, (first, _) in lives.items() if first >= 0}
    assert resident.keys() | pinned.keys() == made
    assert not resident.keys() & (results | pinned.keys())
    assert bool(resident) == bool(room)
    for places, limit in (
        (pinned, size),
        *(({t: at for t, (g, at) in resident.items() if g == n}, room) for n in (0, 1)),
    ):
        ends = {table: at + chunks.plan.tables[table].entries * 8 for table, at in places.items()}
        assert max(ends.values(), default=0) <= limit
        for one, other in itertools.combinations(places, 2):
            together = lives[one][0] <= lives[other][1] and lives[other][0] <= lives[one][1]
            assert not (together and places[one] < ends[other] and places[other] < ends[one])


def test_a_task_that_fails_ends_the_pass(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    network = grid(3, 4, seed=1)
    chunks = cut(network, 16)
    gpu = ChunkGpu(chunks, "double", *devices(1))
    done: list[int] = []

    def fail(*_: Any) -> None:
        done.append(1)
        if len(done) > 5:
            raise MemoryError("for this test")

    monkeypatch.setattr(chunked_gpu.GpuWork, "_launch", fail)
    with pytest.raises((MemoryError, RuntimeError)):
        ChunkedProgram(chunks, network, reference.DOUBLE, gpu=gpu).run(Block(1, {}, {}))


def test_too_small_a_device_is_refused(devices: Devices) -> None:
    chunks = cut(grid(3, 4, seed=1), 16)
    (device,) = devices(1)
    device.room, room = slot_bytes(chunks, 8), device.room
    try:
        with pytest.raises(MemoryError, match="a task takes"):
            ChunkGpu(chunks, "double", device)
    finally:
        device.room = room


@pytest.mark.gpu
@BOTH
@pytest.mark.parametrize("working", [1 << 6, 1 << 10, 1 << 16])
def test_grids(working: int, algebra: Algebra) -> None:
    network = grid(8, 8, seed=1)
    check(network, cut(network, working), algebra, [open_gpu(ROOM)])


@pytest.mark.gpu
@BOTH
@pytest.mark.parametrize("name", ["alarm", "water", "mildew", "pigs"])
def test_networks(shared: Path, name: str, algebra: Algebra) -> None:
    (path,) = (shared / "networks/bnlearn").glob(f"{name}.bif*")
    network = read_network(path)
    check(network, cut(network, 1 << 13), algebra, [open_gpu(ROOM)])
