"""Rows in chunks that workers answer whole, alone or with other GPUs of their machine: the bytes of one process."""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import junctor
import numpy as np
import pytest
from digests.stand_in import chunk_gpus
from helpers.gpu_workers import ROOM, StandInGpus, rows_in
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends.numpy import BlockOutcome
from junctor.evidence.batch import EvidenceBatch
from junctor.generate import grid
from junctor.model.errors import BudgetError
from junctor.model.options import ComputeOptions
from junctor.out_of_core import programs
from junctor.out_of_core.cluster import machine_gpus
from junctor.out_of_core.cluster import workers as cluster_workers
from junctor.out_of_core.cluster.machine_gpus import WorkerGpus, machines_of, turn_on
from junctor.out_of_core.cluster.rows import RowOutcome
from junctor.out_of_core.cluster.workers import WorkerPool, pool_here, pool_of
from junctor.out_of_core.gpu.devices import DeviceGroup
from junctor.out_of_core.gpu.run import ChunkedGpuProgram
from junctor.out_of_core.memory_splits import OFFSET_BYTES, ChunkRoute, GpuGroup, MemoryLimits, SideBySide
from junctor.out_of_core.programs import case_by_case
from junctor.planning.compile import Problem
from junctor.planning.shape import Pattern, shape_of
from junctor.runs import estimate, placement
from junctor.runs.run import run
from junctor.runs.workload import Job
from junctor.runtime import dask_cluster, local_cluster
from junctor.runtime.dask_cluster import Resources, workers_of
from junctor.runtime.local_cluster import local_client
from junctor.strategies import chunk_cuts
from junctor.strategies.chunk_cuts import ChunkCuts
from junctor.strategies.facts import Facts
from junctor_kernels.gpu.blocks import CudaBlockDevice
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra
from pyarrow import parquet
from test_side_by_side import costs

NETWORK = grid(3, 4, seed=3)
PATTERN = Pattern(frozenset((0, 3, 8, 11)), frozenset())
# A row of one GPU takes a second, of two 0.7.
SECONDS = {1: 1.0, 2: 0.7}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpus")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Any]:
    """Two workers, processes of a machine with two GPUs that stand in."""
    with dask.config.set({"distributed.scheduler.allowed-failures": 2}), local_client(2, gpus=False) as it:
        it.register_plugin(StandInGpus(folder, 2))
        yield it


@pytest.fixture
def pool(client: Any) -> WorkerPool:
    return pool_of(client, Resources(scheduler="tcp://127.0.0.1:1", compute=ComputeOptions(1 << 32)), None)


def evidence(rows: int) -> EvidenceBatch:
    states = np.array(list(itertools.product(range(2), repeat=4)), np.int32).T[:, :rows]
    return EvidenceBatch(rows, dict(zip((0, 3, 8, 11), states, strict=True)))


def route_of(algebra: Algebra, side: SideBySide) -> ChunkRoute:
    room = MemoryLimits(1 << 32, OFFSET_BYTES + (13 << 20), 0, Path(), on_gpu=True)
    found = programs.cut(Problem(shape_of(NETWORK), PATTERN), algebra, room, costs(), 1)
    return replace(found, slots=2, workers=2, side=side)


def side(seconds: dict[int, float] = SECONDS, rows: int = 2) -> SideBySide:
    return SideBySide(2, rows, seconds, 0.0, 0.0)


def answered(pool: WorkerPool, route: ChunkRoute, algebra: Algebra, batch: EvidenceBatch) -> list[BlockOutcome]:
    found: list[BlockOutcome] = []
    for rows, made in pool.rounds_of(route, NETWORK, algebra, np.arange(batch.rows)):
        found += [outcome for _, _, outcome in case_by_case(made, route, batch, rows)]
    return found


def here(
    route: ChunkRoute, algebra: Algebra, batch: EvidenceBatch, gpus: int = 1, emulated: bool = True
) -> list[BlockOutcome]:
    """Return what one process finds."""
    with chunk_gpus() if emulated else nullcontext() as cupy:
        devices: list[Any] = [cupy.Device(ROOM, n) for n in range(gpus)] if cupy else [CudaBlockDevice(0, ROOM)]
        group = DeviceGroup(route.chunks, algebra, *devices, slots=2)
        program = ChunkedGpuProgram(route.chunks, NETWORK, algebra, group)
        cases = case_by_case([program], route, batch, np.arange(batch.rows))
        return [outcome for _, _, outcome in cases]


def assert_same(found: list[BlockOutcome], expected: list[BlockOutcome]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.log_value.tobytes() == other.log_value.tobytes()
        assert one.doubtful.tolist() == other.doubtful.tolist()
        for variable, posterior in other.posteriors.items():
            assert one.posteriors[variable].tobytes() == posterior.tobytes()


def test_rows_side_by_side_and_what_is_left_by_a_leader(pool: WorkerPool, folder: Path) -> None:
    assert pool.gpus == GpuGroup(2, processes=True, most=None)
    assert pool.room == int(cluster_workers.gpu_room(pool.device, None))  # type: ignore[arg-type]
    batch, algebra = evidence(5), reference.SINGLE
    route = route_of(algebra, side())
    rows_in(folder)
    found = answered(pool, route, algebra, batch)
    answers = rows_in(folder)
    # Four rows by either worker, and one by both GPUs: the others have given their memory back.
    assert set(answers[:4]) == {"0", "1"}
    assert [sorted(led) for led in answers[4:]] == [["0", "1"]]
    assert_same(found, here(route, algebra, batch))
    assert_same(found, here(route, algebra, batch, 2))
    # And back again, in one program for all rows of a plan.
    assert_same(answered(pool, route, algebra, evidence(2)), found[:2])
    assert len(pool.sent) == 1


def test_a_leader_that_is_killed(pool: WorkerPool, folder: Path) -> None:
    batch, algebra = evidence(1), reference.DOUBLE
    route = route_of(algebra, side(rows=1))
    pids = set(pool.client.run(os.getpid).values())  # type: ignore[union-attr]
    (folder / "kill").touch()
    assert_same(answered(pool, route, algebra, batch), here(route, algebra, batch))
    assert not (folder / "kill").exists()
    pool.client.wait_for_workers(2)  # type: ignore[union-attr]
    assert set(pool.client.run(os.getpid).values()) != pids  # type: ignore[union-attr]
    # Rows for the worker that is gone go to others.
    six = route_of(algebra, side())
    assert_same(answered(pool, six, algebra, evidence(6)), here(six, algebra, evidence(6)))


def test_a_worker_that_dies_beside_a_leader(pool: WorkerPool, folder: Path) -> None:
    batch, algebra = evidence(4), reference.SINGLE
    route = route_of(algebra, side({1: 1.0, 2: 0.1}, rows=1))
    (there,), client = pool.machines, pool.client
    assert client is not None
    beside = client.run(os.getpid)[there.workers[1]]
    rows_in(folder)

    def kill_beside() -> None:
        while not (folder / "rows").exists():
            time.sleep(0.001)
        os.kill(beside, signal.SIGKILL)

    thread = threading.Thread(target=kill_beside)
    thread.start()
    found = answered(pool, route, algebra, batch)
    thread.join()
    # Nothing of the row was there.
    assert [sorted(led) for led in rows_in(folder)] == [["0", "1"]] * 4
    assert_same(found, here(route, algebra, batch))
    wait_for_another(client, beside)


def wait_for_another(client: Any, dead: int) -> None:
    """Wait until a worker has taken the place of a dead one."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        workers = client.run(os.getpid, on_error="ignore").values()
        if len(workers) == 2 and dead not in workers:
            return
        time.sleep(0.05)
    raise AssertionError("no worker came")


def test_a_row_that_kills_whoever_takes_it(pool: WorkerPool, folder: Path) -> None:
    stop = threading.Event()

    def kill_again() -> None:
        while not stop.wait(0.02):
            (folder / "kill").touch()

    thread = threading.Thread(target=kill_again)
    thread.start()
    try:
        with pytest.raises(junctor.JunctorError, match="died of a row in chunks, more than once"):
            answered(pool, route_of(reference.SINGLE, side(rows=1)), reference.SINGLE, evidence(1))
    finally:
        stop.set()
        thread.join()
        (folder / "kill").unlink(missing_ok=True)
        pool.client.wait_for_workers(2)  # type: ignore[union-attr]


def test_two_runs_at_once(client: Any, pool: WorkerPool, folder: Path) -> None:
    """One with rows side by side, one that leads all GPUs: the devices that stand in have one owner at a time."""
    kinds = ((reference.SINGLE, side({1: 1.0, 2: 0.9})), (reference.DOUBLE, side({1: 1.0, 2: 0.1}, rows=1)))
    plans = [route_of(algebra, way) for algebra, way in kinds]
    batch, found = evidence(6), dict[int, list[BlockOutcome]]()

    def run_one(number: int) -> None:
        other = replace(pool, sent={})
        found[number] = answered(other, plans[number], kinds[number][0], batch)

    threads = [threading.Thread(target=run_one, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, (algebra, _) in enumerate(kinds):
        assert_same(found[n], here(plans[n], algebra, batch))


def test_a_run_whose_rows_go_to_workers(
    client: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def cluster_client(_: Resources) -> Iterator[Any]:
        yield client

    for module in (cluster_workers, estimate):
        monkeypatch.setattr(module, "cluster_client", cluster_client)
    monkeypatch.setattr(ChunkCuts, "in_chunks", lambda *_: True)
    monkeypatch.setattr(Facts, "are_few", lambda *_: False)
    junctor.write_network(NETWORK, tmp_path / "grid.uai")
    (tmp_path / "evidence.csv").write_text("0,5\n0,0\n0,1\n1,0\n")
    job = Job(str(tmp_path / "grid.uai"), str(tmp_path / "evidence.csv"), str(tmp_path / "out"))
    resources = Resources(scheduler="tcp://127.0.0.1:1", compute=ComputeOptions(1 << 32))
    rows_in(folder)
    run(job, resources)
    assert len(rows_in(folder)) == 3
    # What a run kept on GPUs it has given back.
    assert not any(client.run(held).values())
    found = parquet.read_table(tmp_path / "out" / "posteriors")
    rows = [{"0": first, "5": second} for first, second in ((0, 0), (0, 1), (1, 0))]
    expected = junctor.posteriors(tmp_path / "grid.uai", rows, device="cpu")
    for name in map(str, range(len(NETWORK.variables))):
        one, other = (np.array(table[name].combine_chunks().flatten()) for table in (found, expected))
        np.testing.assert_allclose(one, other, atol=1e-12)


def held() -> set[str]:
    return machine_gpus.held


@pytest.mark.gpu
@pytest.mark.parametrize("gpus", [True, False], ids=["dask-cuda", "two workers of one GPU"])
def test_rows_on_a_real_gpu(gpus: bool) -> None:
    """Also by turns of two workers, each of which needs most of its memory."""
    algebra, batch = reference.SINGLE, evidence(4)
    with local_client(1 if gpus else 2, gpus) as client:
        resources = Resources(scheduler="tcp://127.0.0.1:1", compute=ComputeOptions(1 << 32, device="gpu"))
        pool = pool_of(client, resources, None)
        # Others of this machine belong to nobody here.
        assert pool.gpus == GpuGroup(1, processes=True)
        route = route_of(algebra, SideBySide(1, 1, {1: 1.0}, 0.0, 0.0))
        expected = here(route, algebra, batch, emulated=False)
        route = replace(route, limits=replace(route.limits, task=pool.room))
        (there,) = pool.machines
        for worker in sorted(workers_of(client)) * 2:
            turn = replace(pool, machines=(replace(there, workers=(worker,)),), sent={})
            assert_same(answered(turn, route, algebra, batch), expected)
            assert client.run(held, workers=[worker]) == {worker: set(there.gpus)}


def test_memory_of_a_program_goes_without_the_collector() -> None:
    algebra, batch = reference.SINGLE, evidence(1)
    route = route_of(algebra, side())
    with chunk_gpus() as cupy:
        device = cupy.Device(ROOM, 0)
        program = programs.program_of(route, NETWORK, algebra, device)
        case_by_case([program], route, batch, np.arange(1))
        there, collects = weakref.ref(device), gc.isenabled()
        gc.disable()
        try:
            del program, device
            assert there() is None
        finally:
            if collects:
                gc.enable()


@given(
    st.dictionaries(st.integers(0, 99), st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=5),
    st.sampled_from([np.float32, np.float64]),
)
def test_answers_travel_in_one_array(shapes: dict[int, tuple[int, ...]], dtype: Any) -> None:
    rng = np.random.default_rng(len(shapes))
    posteriors = {v: rng.random(shape).astype(dtype) for v, shape in shapes.items()}
    outcome = BlockOutcome(np.array([-1.5]), posteriors, {3: np.array([1])}, np.array([False]))
    sent = pickle.loads(pickle.dumps(RowOutcome.packed(outcome)))
    assert_same([sent.unpacked()], [outcome])
    assert sent.unpacked().posteriors.keys() == posteriors.keys()
    assert all(sent.unpacked().posteriors[v].dtype == dtype for v in posteriors)
    assert sent.unpacked().states == outcome.states


def test_a_turn_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    at_work, most = 0, 0

    def work(gpus: tuple[str, ...]) -> None:
        nonlocal at_work, most
        for _ in range(5):
            with turn_on(gpus):
                at_work += 1
                most = max(most, at_work)
                time.sleep(0.001)
                at_work -= 1

    threads = [threading.Thread(target=work, args=(gpus,)) for gpus in (("a", "b"), ("b", "a"), ("b",), ("c", "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert most == 1
    (tmp_path / f"junctor-gpu-{os.getuid()}-d.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(junctor.JunctorError, match=r"junctor-gpu-.*-d\.lock"), turn_on(["d"]):
        pass


def rotated(gpus: str, count: int | None = None) -> dict[str, WorkerGpus]:
    """Return the workers of a machine as Dask-CUDA starts them."""
    turns = {f"w{gpu}": gpus[n:] + gpus[:n] for n, gpu in enumerate(gpus[:count])}
    return {worker: WorkerGpus(tuple(seen)) for worker, seen in turns.items()}


@pytest.mark.parametrize(
    ("found", "groups"),
    [
        (rotated("abcd"), ["abcd"]),
        # Two workers on a machine with four GPUs: the others belong to somebody else.
        (rotated("abcd", 2), ["ab"]),
        (rotated("abcd") | rotated("efgh"), ["abcd", "efgh"]),
        # Workers that see their own GPU alone.
        ({f"w{gpu}": WorkerGpus((gpu,)) for gpu in "abc"}, ["a", "b", "c"]),
        # Machines that differ: groups of one size.
        (rotated("abcd") | rotated("ef"), ["ab", "cd", "ef"]),
        # Two workers of one GPU.
        (rotated("ab") | {"x": WorkerGpus(("a", "b"))}, ["ab"]),
        ({}, []),
    ],
)
def test_who_shares_rows(found: dict[str, WorkerGpus], groups: list[str]) -> None:
    machines = machines_of(found)
    assert ["".join(each.gpus) for each in machines] == groups
    assert all(worker == f"w{gpu}" for each in machines for gpu, worker in zip(each.gpus, each.workers, strict=True))


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 30), st.data())
def test_rounds_over_machines(each: int, machines: int, rows: int, data: st.DataObject) -> None:
    seconds = {each // n: data.draw(st.floats(0.01, 1)) for n in range(1, each + 1)}
    of = SideBySide(each, each * machines, seconds, 0.0, data.draw(st.floats(0, 1)), machines)
    pool = replace(pool_here(1, ROOM), machines=tuple(machine_gpus_of(each, n) for n in range(machines)))
    for count, abreast in of.rounds(rows):
        assert 0 < abreast <= count
        share = of.share(abreast)
        taken = [pool._leader(n, share) for n in range(abreast)]
        gpus = [gpu for _, own in taken for gpu in own]
        # No GPU twice, and the leader's own is among its GPUs.
        assert len(set(gpus)) == len(gpus) == share * abreast
        assert all(leader == own[0] for leader, own in taken)
    assert sum(count for count, _ in of.rounds(rows)) == rows


def machine_gpus_of(each: int, machine: int) -> machine_gpus.MachineGpus:
    names = tuple(f"{machine}.{n}" for n in range(each))
    return machine_gpus.MachineGpus(names, names)


def problem() -> Problem:
    return Problem(shape_of(grid(12, 12, states=2, seed=1)), Pattern(frozenset(), frozenset()))


def chosen(memory: int, rows: int, most: int | None = None, room: int = OFFSET_BYTES + 5_700_000) -> ChunkRoute:
    """Return how rows go over a machine with four GPUs, whose workers have some memory together, and each a room."""
    pool = replace(pool_here(4, room), gpus=GpuGroup(4, processes=True, most=most))
    limits = MemoryLimits(memory, room, 0, Path(), on_gpu=True)
    return pool.cut(problem(), reference.SINGLE, limits, rows, costs(busiest=1.0, cases=1.0))


def test_forecasts_choose_who_answers_rows() -> None:
    plenty = 1 << 32
    many, one = chosen(plenty, 16), chosen(plenty, 1)
    assert many.side is not None
    assert one.side is not None
    # A GPU for each of four rows; all GPUs for a row alone.
    assert many.side.rounds(16) == [(16, 4)]
    assert many.side.share(4) == 1
    assert (one.side.rounds(1), one.side.share(1)) == ([(1, 1)], 4)
    # No threads that wait for each other.
    assert many.side.host == 0
    alone = programs.cut(problem(), reference.SINGLE, replace(many.limits), costs(busiest=1.0, cases=1.0), 16)
    assert many.chunks.passes == alone.chunks.passes
    # With memory for one row at a time a worker leads, whatever the number of rows.
    of_row = one.memory
    led = chosen(int(1.2 * of_row), 16)
    assert led.side is not None
    assert led.side.rounds(16) == [(16, 1)]
    assert led.side.share(1) == 4
    # What a nanny grants a worker is all that it may take, also for a row that it leads.
    for memory, most in ((plenty, of_row // 8), (1000, None)):
        with pytest.raises(BudgetError, match="needs more than"):
            chosen(memory, 1, most=most)


def test_a_run_that_starts_workers_with_gpus_and_one_that_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import LocalCluster

    def with_gpus(client: Any, *of: Any) -> WorkerPool:
        client.register_plugin(StandInGpus(tmp_path, 4))
        return pool_of(client, *of)

    start = local_cluster.start_fork_server
    for module in (local_cluster, dask_cluster):
        monkeypatch.setattr(module, "start_fork_server", lambda gpus: start(False))
    monkeypatch.setattr(local_cluster, "_cluster_class", lambda gpus: LocalCluster)
    monkeypatch.setattr(dask_cluster, "check_device", lambda choice: None)
    for module in (local_cluster, placement, chunk_cuts):
        monkeypatch.setattr(module, "count_gpus", lambda: 4)
    monkeypatch.setattr(placement, "has_gpu", lambda: True)
    monkeypatch.setattr(cluster_workers, "pool_of", with_gpus)
    monkeypatch.setattr(estimate.PlannedRun, "_by_processes", lambda _, found, *__: replace(found, by_parts=1.0))
    monkeypatch.setattr(ChunkCuts, "in_chunks", lambda *_: True)
    monkeypatch.setattr(Facts, "are_few", lambda *_: False)
    junctor.write_network(NETWORK, tmp_path / "grid.uai")
    rows = ["0,3,8,11", *(",".join(map(str, states)) for states in itertools.product(range(2), repeat=4))]
    (tmp_path / "evidence.csv").write_text("\n".join(rows))
    found: list[bytes] = []
    for output in ("whole", "killed"):
        if output == "killed":
            (tmp_path / "kill").touch()
        job = Job(*(str(tmp_path / name) for name in ("grid.uai", "evidence.csv", output)))
        manifest = run(job, Resources(workers=2, compute=ComputeOptions(1 << 32, device="gpu", device_memory=ROOM)))
        assert manifest.statuses["ok"] == 16
        # Rows for the worker that died may all go to the other one.
        assert set(rows_in(tmp_path)) in ({"0", "1"}, *([{"0"}, {"1"}] if output == "killed" else []))
        found.append((tmp_path / output / "posteriors" / "part-00000.parquet").read_bytes())
    assert not (tmp_path / "kill").exists()
    assert found[0] == found[1]
