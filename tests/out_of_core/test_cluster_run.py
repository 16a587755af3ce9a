"""Chunks over worker processes: the bytes of one process, whatever happens to the workers."""

from __future__ import annotations

import gc
import math
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from junctor.backends.numpy import BlockOutcome, EvidenceBlock, Program
from junctor.generate import grid
from junctor.model.errors import RunError
from junctor.model.network import Network
from junctor.out_of_core.bound_plan import BoundPlan
from junctor.out_of_core.cluster import remote_tables as chunk_stock
from junctor.out_of_core.cluster import run as chunk_cluster
from junctor.out_of_core.cluster import scheduler as chunk_jobs
from junctor.out_of_core.cluster.run import IN_FLIGHT, ClusterRun
from junctor.out_of_core.cluster.tasks import PartOrigin, forget_shared, join
from junctor.out_of_core.pass_program import Contract, CpuTasks
from junctor.out_of_core.program import ChunkedProgram
from junctor.planning.chunks import ChunkPlan, chunk_plan
from junctor.planning.compile import compile_plan
from junctor.planning.shape import Pattern, shape_of
from junctor.runtime import dask_cluster as distribution
from junctor.runtime.local_cluster import local_client
from junctor_kernels.tables.axes import Contraction
from junctor_kernels.tables.reference import DOUBLE, LOG, MAX_SINGLE, SINGLE, Algebra

WORKERS = 2
NETWORK = grid(5, 5, states=(2, 3), seed=3)
PATTERN = Pattern(frozenset([3]), frozenset([9, 20]))


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A cluster of processes that gives up a task with the second worker that dies of it."""
    # Imported before, because what is not in the configuration yet would be taken out again at the end.
    import distributed  # noqa: F401

    with dask.config.set({"distributed.scheduler.allowed-failures": 1}), local_client(WORKERS, False) as it:
        yield it


def wait_for_all(client: Any) -> None:
    """Wait until every worker is there, and until Dask knows, which gives up one that dies before."""
    client.wait_for_workers(WORKERS, timeout=30)
    nannies = client.cluster.workers.values()
    deadline = time.monotonic() + 30
    while not all(nanny.process is not None and nanny.process.status.name == "running" for nanny in nannies):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def small_things(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send tables of these networks away as if they were large."""
    monkeypatch.setattr(chunk_cluster, "SMALL_TABLE", 2)
    monkeypatch.setattr(chunk_cluster, "SMALL_ENTRIES", 16)


def case(seed: int = 0) -> EvidenceBlock:
    rng = np.random.default_rng(seed)
    soft = {v: rng.uniform(size=(NETWORK.cardinalities[v], 1)) for v in PATTERN.weighted}
    return EvidenceBlock(1, {3: np.array([1])}, soft)


def cut(working: int, network: Network = NETWORK, pattern: Pattern = PATTERN) -> ChunkPlan:
    return chunk_plan(compile_plan(shape_of(network), pattern, rows=1), working, 1 << 40, 0)


def propagate(
    client: Any,
    chunks: ChunkPlan,
    network: Network,
    algebra: Algebra,
    block: EvidenceBlock,
    contract: Contract | None = None,
    in_flight: int = IN_FLIGHT,
) -> BlockOutcome:
    return ClusterRun(client, BoundPlan(chunks, network, algebra), contract, in_flight).outcome(block)


def assert_same(found: BlockOutcome, expected: BlockOutcome) -> None:
    assert found.log_value.tobytes() == expected.log_value.tobytes()
    assert found.doubtful.tolist() == expected.doubtful.tolist()
    assert {v: p.tobytes() for v, p in found.posteriors.items()} == {
        v: p.tobytes() for v, p in expected.posteriors.items()
    }


@dataclass(frozen=True)
class Dying:
    """Contracts; the worker that comes first to the contraction of number `at` in its process dies, `times` times."""

    marks: Path
    at: int
    times: int = 1

    def __call__(self, what: Contraction, operands: Sequence[Any]) -> Any:
        calls[self] = calls.get(self, 0) + 1
        if calls[self] == self.at and len(list(self.marks.iterdir())) < self.times:
            (self.marks / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return CpuTasks(DOUBLE)(what, operands)


calls: dict[Dying, int] = {}


def wait_until_forgotten(client: Any) -> int:
    """Return how many tasks the scheduler still knows after some time."""
    left = -1
    for _ in range(50):
        left = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
        if not left:
            break
        time.sleep(0.1)
    return left


@pytest.mark.parametrize("algebra", [DOUBLE, SINGLE, LOG, MAX_SINGLE], ids=lambda algebra: algebra.name)
def test_the_bytes_of_one_process(client: Any, algebra: Algebra) -> None:
    chunks = cut(60)
    assert max(len(each.fixed) for each in chunks.passes) > 1
    found = propagate(client, chunks, NETWORK, algebra, case())
    assert_same(found, ChunkedProgram(chunks, NETWORK, algebra).run(case()))
    whole, is_single = Program(chunks.plan, NETWORK, algebra).run(case()), algebra.dtype == np.float32
    for variable, posterior in whole.posteriors.items():
        np.testing.assert_allclose(found.posteriors[variable], posterior, atol=1e-5 if is_single else 1e-12)
    np.testing.assert_allclose(found.log_value, whole.log_value, rtol=1e-6 if is_single else 1e-12)


def test_compiled_contractions(client: Any) -> None:
    network, block = grid(12, 12, seed=1), EvidenceBlock(1, {}, {})
    chunks = cut(10_000, network, Pattern(frozenset(), frozenset()))
    assert chunks.tasks > len(chunks.passes)
    found = propagate(client, chunks, network, DOUBLE, block, CpuTasks(DOUBLE, threads=1))
    assert_same(found, ChunkedProgram(chunks, network, DOUBLE, entry_threads=1).run(block))


def test_sums_in_several_rounds(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_jobs, "MOST_ADDED", 2)
    monkeypatch.setattr(chunk_jobs, "AHEAD", 1)
    chunks = cut(40)
    assert max(chunks.plan.shape.entries(each.summed) for each in chunks.passes) > 4
    assert_same(
        propagate(client, chunks, NETWORK, DOUBLE, case(), in_flight=3),
        ChunkedProgram(chunks, NETWORK, DOUBLE).run(case()),
    )


def test_small_tables_come_here(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_cluster, "SMALL_TABLE", 1 << 10)
    chunks = cut(40)
    run = ClusterRun(client, BoundPlan(chunks, NETWORK, LOG))
    assert_same(run.outcome(case()), ChunkedProgram(chunks, NETWORK, LOG).run(case()))
    assert run.tables.bytes.total() == run.tables.transferred == 0


def test_impossible_evidence(client: Any) -> None:
    chunks = cut(60)
    impossible = EvidenceBlock(
        1, {3: np.array([1])}, {**case().likelihoods, 9: np.zeros((NETWORK.cardinalities[9], 1))}
    )
    found = propagate(client, chunks, NETWORK, DOUBLE, impossible)
    assert found.log_value.tolist() == [-np.inf]
    assert_same(found, ChunkedProgram(chunks, NETWORK, DOUBLE).run(impossible))


def test_small_passes_are_done_here(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = cut(1 << 20)
    expected = ChunkedProgram(chunks, NETWORK, DOUBLE).run(case())
    for entries, elsewhere in ((1 << 14, False), (1 << 6, True), (0, True)):
        monkeypatch.setattr(chunk_cluster, "SMALL_ENTRIES", entries)
        run = ClusterRun(client, BoundPlan(chunks, NETWORK, DOUBLE))
        assert_same(run.outcome(case()), expected)
        assert bool(run.tables.bytes) == elsewhere  # a counter with keys, all of them back to 0


def test_tables_go_where_there_is_room(client: Any) -> None:
    wait_for_all(client)
    # One task a pass, so that all tables would stay on the worker that made the first.
    chunks = cut(1 << 20)
    peaks: list[int] = []
    for share in (math.inf, 0.8):
        run = ClusterRun(client, BoundPlan(chunks, NETWORK, DOUBLE), room=share * max(peaks, default=1))
        held: list[int] = []
        keep = run.tables.keep

        def watched(each: Any, run: ClusterRun = run, held: list[int] = held, keep: Any = keep) -> None:
            keep(each)
            held.append(max(run.tables.bytes.values()))

        run.tables.keep = watched  # type: ignore[method-assign]
        assert_same(run.outcome(case()), ChunkedProgram(chunks, NETWORK, DOUBLE).run(case()))
        peaks.append(max(held))
    assert peaks[1] <= 0.8 * peaks[0]


@pytest.mark.parametrize("at", [pytest.param(10, marks=pytest.mark.slow), 40])
def test_a_worker_that_dies_in_the_middle(client: Any, tmp_path: Path, at: int) -> None:
    chunks = cut(60)
    assert_same(
        propagate(client, chunks, NETWORK, DOUBLE, case(), Dying(tmp_path, at)),
        ChunkedProgram(chunks, NETWORK, DOUBLE).run(case()),
    )
    assert len(list(tmp_path.iterdir())) == 1


def lose_one(marks: Path, kills: bool) -> None:
    """Let one reader of slices find no file, on this worker or on another; `kills`: because its owner dies before."""
    from junctor.out_of_core.cluster import shared_memory as sharing

    plain = sharing.opened

    def opened(name: Any) -> Any:
        if list(marks.iterdir()):
            return plain(name)
        (marks / "lost").touch()
        if not kills:
            raise FileNotFoundError("no such file")
        os.kill(name[0], signal.SIGKILL)
        while Path(f"/proc/{name[0]}/fd/{name[1]}").exists():
            time.sleep(0.01)
        return plain(name)

    sharing.opened = opened


@pytest.mark.parametrize("kills", [False, True])
def test_slices_that_are_not_found(client: Any, tmp_path: Path, kills: bool) -> None:
    wait_for_all(client)
    client.run(lose_one, tmp_path, kills)
    chunks = cut(60)
    run = ClusterRun(client, BoundPlan(chunks, NETWORK, DOUBLE))
    assert_same(run.outcome(case()), ChunkedProgram(chunks, NETWORK, DOUBLE).run(case()))
    assert len(set(map(str, run.tables.machines.values()))) == 1
    assert list(tmp_path.iterdir())


def test_workers_on_several_machines(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_all(client)
    client.run(forget_shared)
    with monkeypatch.context() as patch:
        patch.setattr(chunk_stock.RemoteTables, "look_around", lambda _: None)
        run = ClusterRun(client, BoundPlan(cut(60), NETWORK, DOUBLE))
        assert_same(run.outcome(case()), ChunkedProgram(cut(60), NETWORK, DOUBLE).run(case()))
    assert run.tables.transferred > 0
    assert not any(client.run(files_of_others).values())
    propagate(client, cut(60), NETWORK, DOUBLE, case())
    assert all(client.run(files_of_others).values())


def files_of_others() -> int:
    from junctor.out_of_core.cluster import shared_memory as sharing

    return len(sharing.others_files)


def test_a_bounded_number_under_way_and_nothing_left(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_all(client)
    under_way: list[int] = []
    passes: list[int] = []
    waiting: list[int] = []
    add = chunk_jobs.JobsInFlight.add

    def watched(self: chunk_jobs.JobsInFlight, pass_jobs: chunk_jobs.PassJobs, *job: Any) -> None:
        add(self, pass_jobs, *job)
        under_way.append(len(self))
        passes.append(len({other.number for other, _ in self.jobs.values()}))
        assert max(self.busy.values()) <= 2
        waiting.append(sum(len(sums.waiting) for sums in pass_jobs.sums.values()))

    monkeypatch.setattr(chunk_jobs.JobsInFlight, "add", watched)
    propagate(client, cut(60), NETWORK, DOUBLE, case(), in_flight=2)
    assert max(under_way) == 2 * WORKERS
    assert max(passes) == chunk_cluster.OPEN == 2
    assert 0 < max(waiting) <= chunk_jobs.AHEAD * 2 * WORKERS + chunk_jobs.MOST_ADDED
    gc.collect()
    left = wait_until_forgotten(client)
    assert left == 0


def test_tasks_that_always_kill(client: Any, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"workers of the cluster died of task \d+ of pass \d+, more than once"):
        propagate(client, cut(60), NETWORK, DOUBLE, case(), Dying(tmp_path, 1, times=9))


def test_no_worker_left(monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import Client, LocalCluster

    monkeypatch.setattr(distribution, "PATIENCE", 0.5)
    options = {
        "n_workers": 0,
        "processes": False,
        "protocol": "tcp",
        "host": "127.0.0.1",
        "dashboard_address": "127.0.0.1:0",
    }
    with LocalCluster(**options) as cluster, Client(cluster, set_as_default=False) as alone:
        with pytest.raises(RunError, match="has no workers"):
            propagate(alone, cut(60), NETWORK, DOUBLE, case())
        monkeypatch.setattr(alone, "wait_for_workers", lambda *_, **__: None)
        with pytest.raises(RunError, match="no other came"):
            propagate(alone, cut(60), NETWORK, DOUBLE, case())


def test_parts_are_joined() -> None:
    sizes = {0: 2, 1: 3, 2: 2}
    whole = np.arange(2 * 3 * 2 * 5.0).reshape(2, 3, 2, 5)
    sources = [PartOrigin(0, {0: a, 2: c}, sizes) for a in range(2) for c in range(2)]
    parts = [whole[each.states[0], :, each.states[2]].reshape(-1) for each in sources]
    for states in ({}, {1: 2}, {0: 1}, {0: 1, 1: 0, 2: 1}, {2: 0}):
        agree = [n for n, each in enumerate(sources) if all(states.get(v, s) == s for v, s in each.states.items())]
        found = join([(sources[n], sources[n].slice_of(parts[n], states)) for n in agree], states)
        expected = whole[tuple(states.get(v, slice(None)) for v in range(3))]
        np.testing.assert_array_equal(found.reshape(expected.shape), expected)
