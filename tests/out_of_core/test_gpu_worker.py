"""Chunks on the GPUs of Dask workers: the bytes of one process on a GPU; without a GPU, on a stand-in for one."""

from __future__ import annotations

import ctypes
import gc
import pickle
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import junctor
import numpy as np
import pytest
from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.generate import grid
from junctor.model.errors import BudgetError, DeviceError
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.out_of_core.bound_plan import BoundPlan
from junctor.out_of_core.cluster import gpu_worker as worker_gpu
from junctor.out_of_core.cluster import run as chunk_cluster
from junctor.out_of_core.cluster import shared_memory as sharing
from junctor.out_of_core.cluster import workers as chunk_crew
from junctor.out_of_core.cluster.machine_gpus import WorkerGpus
from junctor.out_of_core.cluster.run import ClusterRun
from junctor.out_of_core.cluster.tasks import GpuTasks
from junctor.out_of_core.gpu import copies as device_copies
from junctor.out_of_core.gpu import slots as chunk_slots
from junctor.out_of_core.gpu.copies import copies
from junctor.out_of_core.gpu.devices import DeviceGroup
from junctor.out_of_core.gpu.run import ChunkedGpuProgram
from junctor.out_of_core.memory_splits import OFFSET_BYTES
from junctor.out_of_core.program import ChunkedProgram
from junctor.placement import placement as chunk_places
from junctor.placement.fusion import single_steps
from junctor.placement.placement import slot_bytes
from junctor.planning.chunks import ChunkPlan, chunk_plan
from junctor.planning.compile import compile_plan
from junctor.planning.shape import Pattern, shape_of
from junctor.runs.run import run
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.local_cluster import silent_dask
from junctor.strategies.chunk_cuts import ChunkCuts
from junctor.strategies.facts import Facts
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra
from pyarrow import parquet

ROOM = 1 << 28


def refuse(*_: Any) -> None:
    raise BudgetError("too large")


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what opens a device with so much room; workers are threads of this process, and find the same."""
    monkeypatch.setattr(worker_gpu, "opened", None)
    if request.param == "emulated":
        from emulation import cupy_memory as emulated_cupy

        emulated_cupy.stand_in(monkeypatch)
        opened = lru_cache(maxsize=1)(lambda room: emulated_cupy.Device(room or ROOM))
        monkeypatch.setattr(worker_gpu, "open_device", opened)
    return lambda room: worker_gpu.open_device(room)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Workers that are threads of this process, yet speak to each other as processes do."""
    from distributed import Client, LocalCluster

    options = {"processes": False, "protocol": "tcp", "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with (
        silent_dask(),
        LocalCluster(n_workers=2, threads_per_worker=2, memory_limit=0, **options) as cluster,
        Client(cluster, set_as_default=False) as it,
    ):
        yield it


@pytest.fixture(autouse=True)
def small_things(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send tables of these networks away as if they were large."""
    monkeypatch.setattr(chunk_cluster, "SMALL_TABLE", 0)
    monkeypatch.setattr(chunk_cluster, "SMALL_ENTRIES", 0)
    monkeypatch.setattr(chunk_cluster, "SMALL_WORK", -1)


def cut(network: Network, working: int) -> ChunkPlan:
    plan = compile_plan(shape_of(network), Pattern(frozenset(), frozenset()), rows=1)
    return chunk_plan(plan, working, 1 << 40, 0)


def over_workers(client: Any, network: Network, chunks: ChunkPlan, algebra: Algebra, room: int) -> ClusterRun:
    gpu = GpuTasks(algebra, slot_bytes(chunks, algebra.dtype.itemsize, single_steps), room)
    return ClusterRun(client, BoundPlan(chunks, network, algebra, as_summed=True), gpu=gpu)


def assert_same(found: BlockOutcome, expected: BlockOutcome) -> None:
    assert found.log_value.tobytes() == expected.log_value.tobytes()
    assert found.doubtful.tolist() == expected.doubtful.tolist()
    for variable, posterior in expected.posteriors.items():
        assert found.posteriors[variable].tobytes() == posterior.tobytes()


@pytest.mark.parametrize(
    ("algebra", "spread"),
    [
        (reference.SINGLE, 0),
        (reference.DOUBLE, 1 << 26),
        (reference.LOG, 0),
        (reference.LOG, 1 << 26),
        (reference.MAX_LOG, 0),
    ],
)
def test_the_bytes_of_one_process(
    client: Any, device: Any, algebra: Algebra, spread: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where results are added up on the host."""
    monkeypatch.setattr(chunk_places, "SPREAD_BYTES", spread)
    network, block = grid(3, 4, seed=3), EvidenceBlock(1, {}, {})
    chunks = cut(network, 16)
    assert any(each.summed for each in chunks.passes)
    one = DeviceGroup(chunks, algebra, device(ROOM))
    expected = ChunkedGpuProgram(chunks, network, algebra, one).run(block)
    run = over_workers(client, network, chunks, algebra, ROOM)
    reached: list[Any] = []
    monkeypatch.setattr(worker_gpu, "register_host", reached.append)
    sharing.forget()
    assert_same(run.outcome(block), expected)
    assert run.tables.transferred > 0
    # The workers' files, and those that they have mapped.
    assert len(reached) > len(sharing.own_files) > 0
    plain = ChunkedProgram(chunks, network, algebra).run(block)
    tolerance = 1e-5 if algebra.dtype == np.float32 else 1e-12
    for variable, posterior in plain.posteriors.items():
        np.testing.assert_allclose(expected.posteriors[variable], posterior, atol=tolerance)
    del run
    gc.collect()
    assert worker_gpu.opened is not None
    assert worker_gpu.opened[1].is_empty(patience=5)


def test_parts_without_room_lie_on_the_host(client: Any, device: Any) -> None:
    network, block = grid(3, 4, seed=3), EvidenceBlock(1, {}, {})
    chunks = cut(network, 16)
    expected = over_workers(client, network, chunks, reference.DOUBLE, ROOM).outcome(block)
    gc.collect()
    # For one part, at the most.
    room = slot_bytes(chunks, 8, single_steps) + OFFSET_BYTES + 300
    run = over_workers(client, network, chunks, reference.DOUBLE, room)
    assert_same(run.outcome(block), expected)
    assert worker_gpu.opened is not None
    assert worker_gpu.opened[1].free.qsize() == 1


def test_offsets_that_take_too_much_are_made_again(client: Any, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    network, block = grid(3, 4, seed=5), EvidenceBlock(1, {}, {})
    chunks = cut(network, 16)
    expected = over_workers(client, network, chunks, reference.DOUBLE, ROOM).outcome(block)
    gc.collect()
    made: list[Any] = []
    lowered = worker_gpu.LoweredPass
    monkeypatch.setattr(worker_gpu, "LoweredPass", lambda *of: made.append(of[1]) or lowered(*of))
    monkeypatch.setattr(chunk_slots, "OFFSET_BYTES", 0)
    monkeypatch.setattr(worker_gpu, "opened", None)
    assert_same(over_workers(client, network, chunks, reference.DOUBLE, ROOM).outcome(block), expected)
    # A pass that had lost its offsets to another one.
    assert len(made) > len(set(map(id, made)))


def test_a_second_run_waits_for_the_parts_of_the_first(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_gpu, "PATIENCE", 0.1)
    chunks = cut(grid(3, 4, seed=1), 16)
    both = (reference.SINGLE, reference.DOUBLE)
    one, other = (GpuTasks(algebra, slot_bytes(chunks, 8, single_steps), ROOM) for algebra in both)
    gpu = worker_gpu.worker_gpu(one)
    slot = gpu.free.get()
    part = gpu.keep(slot, slot.address, 10)
    slot.stream.synchronize()
    copy = pickle.loads(pickle.dumps(part))
    assert type(copy) is np.ndarray
    assert copy.tobytes() == part.host(part.array).tobytes()
    with pytest.raises(DeviceError, match="tables of another run"):
        worker_gpu.worker_gpu(other)
    del part
    assert worker_gpu.worker_gpu(other) is not gpu


def test_a_run_over_workers_with_gpus(
    client: Any, device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, room = grid(3, 4, seed=4), OFFSET_BYTES + (1 << 27)
    junctor.write_network(network, tmp_path / "grid.uai")
    (tmp_path / "evidence.csv").write_text("0,5\n,\n0,1\n")
    job = Job(str(tmp_path / "grid.uai"), str(tmp_path / "evidence.csv"), str(tmp_path / "out"))
    seen = WorkerGpus(("g",), "g", {"memory": float(2 * room)})
    monkeypatch.setattr(chunk_crew, "gpus_here", lambda *_: seen)
    # No machine has the memory, all workers together have.
    monkeypatch.setattr(chunk_crew.WorkerPool, "_cut_for_machines", refuse)
    monkeypatch.setattr(ChunkCuts, "in_chunks", lambda *_: True)
    monkeypatch.setattr(Facts, "are_few", lambda *_: False)
    on_gpu: list[bool] = []
    functions = chunk_cluster.TaskFunctions
    monkeypatch.setattr(chunk_cluster, "TaskFunctions", lambda *given: on_gpu.append(bool(given)) or functions(*given))
    run(job, Resources(scheduler=client.scheduler.address, compute=ComputeOptions(1 << 33, device_memory=room)))
    assert on_gpu
    assert all(on_gpu)
    # What workers have taken of the GPU they have given back.
    assert worker_gpu.opened is None
    assert not sharing.own_files
    assert not sharing.others_files
    found = parquet.read_table(tmp_path / "out" / "posteriors")
    rows = [{"0": None, "5": None}, {"0": "0", "5": "1"}]
    expected = junctor.posteriors(tmp_path / "grid.uai", rows, device="cpu")
    for name in map(str, range(len(network.variables))):
        one, other = (np.array(table[name].combine_chunks().flatten()) for table in (found, expected))
        np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("most_pitch", [1 << 31, 100])
@pytest.mark.parametrize("at", [(), (1,), (slice(None), 1), (slice(None), slice(None), 2), (0, slice(None), 1)])
def test_copies_between_slices(at: tuple[Any, ...], most_pitch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_copies, "MOST_PITCH", most_pitch)
    whole = np.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    for source, target in ((whole[at], np.zeros_like(whole[at])), (whole[at].copy(), np.zeros_like(whole)[at])):
        each = list(copies(target, source))
        for to, pitch, of, other_pitch, width, rows in each:
            for row in range(rows):
                ctypes.memmove(to + row * pitch, of + row * other_pitch, width)
        np.testing.assert_array_equal(target, source)
        if most_pitch > 100:
            assert len(each) == 1
