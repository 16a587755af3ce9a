"""Runs whose rows in chunks go over all workers: the same files with any number of them, whatever happens to one."""

from __future__ import annotations

import hashlib
import os
import re
import signal
from pathlib import Path
from typing import Any

import junctor
import numpy as np
import pytest
from helpers.command_line import junctor_cli
from helpers.figures import set_figures
from helpers.options import on_cpu
from junctor.engine.engine import Engine
from junctor.generate import grid
from junctor.model.errors import BudgetError
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.out_of_core.cluster import scheduler as chunk_jobs
from junctor.out_of_core.cluster import workers
from junctor.out_of_core.cluster.workers import WorkerPool
from junctor.out_of_core.memory_splits import ChunkRoute
from junctor.planning.budget import parse_bytes
from junctor.planning.shape import Pattern
from junctor.runs.run import run
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.local_cluster import silent_dask
from junctor.strategies.chunk_cuts import ChunkCuts
from junctor_kernels.tables.reference import DOUBLE, SINGLE
from pyarrow import parquet

TASK = 1 << 13
NETWORK = grid(10, 10, seed=1)
NOTHING = Pattern(frozenset(), frozenset())


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("PREFECT_API_URL", "JUNCTOR_WORKERS", "JUNCTOR_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    # Send tables of this network away as if they were large, and as if that took no time.
    monkeypatch.setattr("junctor.out_of_core.cluster.run.SMALL_ENTRIES", 1 << 10)
    set_figures(monkeypatch, workers, workers={"task": 0.0})
    junctor.write_network(NETWORK, tmp_path / "grid.uai")
    (tmp_path / "evidence.csv").write_text("0,5\n,\n0,1\n")
    return tmp_path


def job(output: str) -> Job:
    return Job("grid.uai", "evidence.csv", output)


def digest(output: str) -> list[str]:
    parts = sorted(Path(output, "posteriors").iterdir())
    return [hashlib.sha256(part.read_bytes()).hexdigest() for part in parts]


def numbers(output: str) -> np.ndarray[Any, Any]:
    table = parquet.read_table(Path(output, "posteriors"))
    names = [name for name in table.column_names if name.startswith("x") or name.isdigit()]
    assert len(names) == len(NETWORK.variables)
    return np.array([table[name].combine_chunks().flatten() for name in names])


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The workers of all tasks that are started."""
    started: list[str] = []
    add = chunk_jobs.JobsInFlight.add

    def watched(self: chunk_jobs.JobsInFlight, pass_jobs: Any, job: Any, report: Any) -> None:
        started.append(job.worker)
        add(self, pass_jobs, job, report)

    monkeypatch.setattr(chunk_jobs.JobsInFlight, "add", watched)
    return started


def refuse(*_: Any) -> None:
    raise BudgetError("rows do not fit one worker")


def test_any_number_of_workers_and_one_that_is_killed(
    files: Path, spread: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import LocalCluster

    options = {"processes": False, "protocol": "tcp", "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with silent_dask(), LocalCluster(n_workers=2, threads_per_worker=1, memory_limit="4GiB", **options) as cluster:
        resources = Resources(
            scheduler=cluster.scheduler_address, compute=ComputeOptions(device="cpu", device_memory=TASK)
        )
        run(job("two"), resources)
        assert len(set(spread)) == 2
        at = len(spread) // 2
        spread.clear()
        # As many partitions as workers: each answers one alone.
        run(Job("grid.uai", "evidence.csv", "alone", partition_rows=1), resources)
        assert not spread
        with monkeypatch.context() as patch:
            patch.setattr("junctor.runs.estimate.survey", refuse)
            run(Job("grid.uai", "evidence.csv", "together", partition_rows=1), resources)
        assert len(set(spread)) == 2
    np.testing.assert_allclose(numbers("two"), numbers("alone"), atol=1e-12)
    np.testing.assert_array_equal(numbers("two"), numbers("together"))
    add, killed = chunk_jobs.JobsInFlight.add, list[int]()

    def kill(self: chunk_jobs.JobsInFlight, *job: Any) -> None:
        add(self, *job)
        if len(spread) > at and not killed:
            killed.append(next(iter(self.client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr(chunk_jobs.JobsInFlight, "add", kill)
    asked = ["--workers", "2", "--memory", "1GiB", "--device-memory", "8KiB", "--device", "cpu", "--no-prefect"]
    result = junctor_cli("run", "grid.uai", "evidence.csv", "-o", "local", *asked)
    assert result.exit_code == 0, result.output
    assert killed
    assert digest("local") == digest("two")


def test_what_one_worker_cannot_hold_all_of_them_may(monkeypatch: pytest.MonkeyPatch) -> None:
    options = on_cpu(1 << 30, device_memory=TASK)

    def route_over(*workers: int) -> ChunkRoute:
        engine = Engine(NETWORK, Query(), options, workers=WorkerPool(*workers))
        return ChunkCuts(engine.facts).chunk_route(NOTHING, 1, DOUBLE, 1 << 30)

    sizes = {workers: route_over(workers, 1 << 30) for workers in (1, 2, 8)}
    assert sizes[2].chunks.passes == sizes[8].chunks.passes
    assert [each.workers for each in sizes.values()] == [1, 2, 8]
    assert sizes[8].seconds < sizes[2].seconds
    # Too little for both, so this process does it.
    assert route_over(2, 1000).workers == 0
    problem_of: list[Any] = []
    monkeypatch.setattr(WorkerPool, "cut", lambda self, problem, *_: problem_of.append(problem) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        route_over(3, 1 << 30)
    monkeypatch.undo()
    for memory in (1000, 2_000_000):
        with pytest.raises(BudgetError, match=r"over 2 workers needs about .* more workers") as refused:
            WorkerPool(2, memory).cut(problem_of[0], DOUBLE, sizes[2].limits, 1)
        # What is needed is more than what is there.
        found = re.search(r"\(([\d,]+) bytes\).*, (.*) are there", str(refused.value))
        assert found is not None
        assert int(found[1].replace(",", "")) > (parse_bytes(found[2]) if found[2] != "0 B" else 0)


def test_tasks_on_gpus_of_workers_are_planned_without_one() -> None:
    options = on_cpu(1 << 34)
    workers = WorkerPool(4, 1 << 34, room=1 << 27)
    facts = Engine(grid(16, 16, seed=1), Query(precision="single"), options, workers=workers).facts
    cuts = ChunkCuts(facts)
    found = cuts.chosen_chunks(NOTHING, 1, SINGLE, 1 << 34, None)
    assert found.limits.on_gpu
    assert found.workers == 4
    assert found.working <= 1 << 27


def test_inspect_says_how_many_workers_share_a_row(files: Path) -> None:
    options = ["--memory", "1GiB", "--device-memory", "8KiB", "--device", "cpu", "--workers", "3"]
    result = junctor_cli("inspect", "grid.uai", *options)
    assert result.exit_code == 0, result.output
    assert "over 3 workers" in result.output


def test_inspect_says_how_many_gpus_a_worker_leads(files: Path) -> None:
    options = ["--memory", "1GiB", "--device-memory", "80MiB", "--device", "gpu", "--workers", "4"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("junctor.strategies.chunk_cuts.ChunkCuts.in_chunks", lambda *_: True)
        patch.setattr("junctor.strategies.facts.Facts.are_few", lambda *_: False)
        result = junctor_cli("inspect", "grid.uai", *options)
    assert result.exit_code == 0, result.output
    assert re.search(r"over 4 workers, each row by one with [124] GPU", result.output), result.output
