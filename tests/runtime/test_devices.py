"""Which device does the work, and what is said where that cannot be: no GPU here, so the driver is played."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
from emulation.blocks import EmulatedDevice
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from junctor import generate
from junctor.engine import engine
from junctor.evidence.batch import EvidenceBatch
from junctor.formats import read_network
from junctor.model.errors import DeviceError
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.planning.shape import Pattern
from junctor.runs import placement
from junctor.runs import run as steps
from junctor.runs.workload import Job
from junctor.runtime import devices
from junctor.runtime.dask_cluster import Resources, distribute
from junctor.strategies import facts
from junctor_kernels.gpu import blocks as gpu
from pyarrow import parquet


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "count_gpus", lambda: 0)


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is an emulated one."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++ to compile the GPU kernels for the CPU")
    monkeypatch.setattr(gpu, "FEW_THREADS", 32)
    monkeypatch.setattr(gpu, "MANY_THREADS", 64)
    opened = EmulatedDevice()
    for module in (facts, placement):
        monkeypatch.setattr(module, "has_gpu", lambda: True)
    monkeypatch.setattr(engine, "open_gpu", lambda memory: opened)
    monkeypatch.setattr("junctor.runtime.dask_cluster.check_device", lambda choice: None)
    for module in ("runs.placement", "runtime.local_cluster"):
        monkeypatch.setattr(f"junctor.{module}.count_gpus", lambda: 1)


def evidence_of(folder: Path, rows: int) -> Path:
    path = folder / "evidence.parquet"
    network = read_network(ASIA)
    table = generate.evidence_table(network, generate.sample(network, rows, seed=1), observed=["smoke", "xray"])
    parquet.write_table(table, path)
    return path


@pytest.mark.usefixtures("no_gpu")
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    result = junctor_cli(
        "run", str(ASIA), str(evidence_of(tmp_path, 3)), "-o", str(tmp_path / "out"), "--device", "gpu", "-q"
    )
    assert isinstance(result.exception, DeviceError) or result.exit_code == 5
    assert not (tmp_path / "out" / "posteriors").exists()


@pytest.mark.usefixtures("no_gpu")
def test_auto_takes_the_cpu_where_there_is_no_gpu(tmp_path: Path) -> None:
    job = Job(str(ASIA), str(evidence_of(tmp_path, 30)), str(tmp_path / "out"))
    assert steps.run(job, Resources()).statuses["ok"] == 30
    with pytest.raises(DeviceError, match="no NVIDIA GPU"):
        devices.check_device("gpu")


def test_a_gpu_without_cupy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "count_gpus", lambda: 1)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DeviceError, match=r"install junctor\[cuda12\] or junctor\[cuda13\]"):
        devices.check_device("gpu")
    assert not devices.has_gpu()


def cupy_with(monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    """Play a CuPy whose devices are made by `device`."""
    runtime, driver = SimpleNamespace(CUDARuntimeError=RuntimeError), SimpleNamespace(CUDADriverError=RuntimeError)
    cuda = SimpleNamespace(Device=device, runtime=runtime, driver=driver)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))


def test_a_gpu_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy_with(monkeypatch, lambda number: SimpleNamespace(compute_capability="70"))
    with pytest.raises(DeviceError, match=r"compute capability 7.0, expected 7.5"):
        devices.open_one(0, None)


def test_what_goes_wrong_where_a_gpu_is_opened_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(error: Exception) -> Any:
        def device(number: int) -> None:
            raise error

        return device

    cupy_with(monkeypatch, failing(RuntimeError("no such device")))
    with pytest.raises(DeviceError, match=r"cannot be used \(no such device\)"):
        devices.open_one(0, None)
    # Not even memory for the context.
    cupy_with(monkeypatch, failing(RuntimeError("cudaErrorMemoryAllocation: out of memory")))
    with pytest.raises(DeviceError, match=r"too little free memory \(cudaErrorMemoryAllocation"):
        devices.open_one(0, None)
    cupy_with(monkeypatch, failing(MemoryError("2 bytes")))
    with pytest.raises(DeviceError, match=r"too little free memory \(2 bytes\)"):
        devices.open_one(0, None)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match="CuPy cannot be loaded"):
        devices.open_one(0, None)


def test_several_gpus_without_dask_cuda_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("junctor.runtime.local_cluster.count_gpus", lambda: 2)
    monkeypatch.setitem(__import__("sys").modules, "dask_cuda", None)
    with pytest.raises(DeviceError, match="dask-cuda"):
        list(
            distribute(lambda task, memory: task, [1, 2, 3], Resources(workers=2, compute=ComputeOptions(device="gpu")))
        )


@pytest.mark.usefixtures("a_gpu")
def test_a_run_on_a_gpu_answers_as_one_on_the_cpu(tmp_path: Path) -> None:
    evidence = evidence_of(tmp_path, 700)
    tables = []
    for device in ("cpu", "gpu"):
        job = Job(str(ASIA), str(evidence), str(tmp_path / device), partition_rows=300)
        steps.run(job, Resources(workers=0, compute=ComputeOptions(device=device)))
        tables.append(parquet.read_table(tmp_path / device / "posteriors"))
    one, other = tables
    assert one.column_names == other.column_names
    np.testing.assert_allclose(one["log_evidence"], other["log_evidence"], atol=1e-12)
    for name in ("lung", "smoke", "xray"):
        mine, its = (table[name].combine_chunks().flatten().to_numpy() for table in tables)
        np.testing.assert_allclose(mine, its, atol=1e-12)


@pytest.mark.usefixtures("a_gpu")
def test_explanations_stay_on_the_cpu() -> None:
    network = read_network(ASIA)
    batch = EvidenceBatch(5, {network.index["smoke"]: np.zeros(5, dtype=np.int32)})
    on_gpu = engine.Engine(network, Query("mpe"), ComputeOptions(device="gpu", threads=1)).answer(batch)
    on_cpu = engine.Engine(network, Query("mpe")).answer(batch)
    assert all((on_gpu.states[v] == on_cpu.states[v]).all() for v in on_cpu.states)


def test_a_plan_for_a_gpu_is_searched_for_less_long() -> None:
    network = read_network(ASIA)
    seen = []
    for device in ("cpu", "gpu"):
        made = engine.Engine(network, Query(), ComputeOptions(device=device, threads=1))
        made.facts.plan(Pattern(frozenset(), frozenset()), 4096)
        seen.append(next(iter(made.facts.store.plans))[1])
    assert seen[1] < seen[0]


def test_a_gpu_is_opened_once_though_it_was_asked_for_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, opening = [], threading.Event()

    def open_one(number: int, memory: int | None) -> Opened:
        asked.append((number, memory, threading.current_thread().name))
        opening.set()
        time.sleep(0.05)
        return Opened(memory)

    monkeypatch.setattr(devices, "check_device", lambda choice: None)
    monkeypatch.setattr(devices, "open_one", open_one)
    devices._first_gpu.cache_clear()
    try:
        devices.open_gpu_ahead(5)
        assert opening.wait(10)
        assert devices.open_gpu(5) is devices.open_gpu(5)
    finally:
        devices._first_gpu.cache_clear()
    assert asked == [(0, 5, "junctor-gpu")]


@dataclass(eq=False)
class Opened:
    """A GPU with a limit; what holds itself goes only with the collector, as engines do."""

    limit: int | None
    itself: object = None


def test_a_gpu_is_opened_once_for_each_limit_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: WeakSet[Opened] = WeakSet()

    def open_one(number: int, memory: int | None) -> Opened:
        before = sorted(opened.limit or 0 for opened in alive)
        opened = Opened(memory)
        opened.itself = opened
        alive.add(opened)
        at_opening.append((memory, before))
        return opened

    at_opening: list[tuple[int | None, list[int]]] = []
    monkeypatch.setattr(devices, "check_device", lambda choice: None)
    monkeypatch.setattr(devices, "open_one", open_one)
    devices._first_gpu.cache_clear()
    try:
        held: Any = devices.open_gpu(5)
        devices.open_gpu(7)
        assert devices.open_gpu(5) is held
        # What nobody holds is gone before the next one takes memory.
        devices.open_gpu(9)
        assert devices.open_gpu(5) is held
        del held
        devices.open_gpu(None)
    finally:
        devices._first_gpu.cache_clear()
    assert at_opening == [(5, []), (7, [5]), (9, [5]), (None, [])]


@pytest.mark.usefixtures("no_gpu")
def test_errors_of_opening_ahead_are_told_by_who_needs_it() -> None:
    devices.open_gpu_ahead()
    with pytest.raises(DeviceError, match="no NVIDIA GPU"):
        devices.open_gpu()
