"""Runs whose rows in chunks go to workers on CPUs: the same files with any number of them, whatever happens to one."""

from __future__ import annotations

import hashlib
import os
import re
import signal
from pathlib import Path
from threading import Lock
from typing import Any

import junctor
import numpy as np
import pytest
from helpers.command_line import junctor_cli
from helpers.figures import set_figures
from helpers.options import on_cpu
from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.engine.engine import Engine
from junctor.generate import grid
from junctor.model.errors import BudgetError
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.out_of_core import memory_splits
from junctor.out_of_core.cluster.rows import RowProgram
from junctor.out_of_core.cluster.workers import WorkerPool
from junctor.out_of_core.memory_splits import ChunkRoute
from junctor.planning.shape import Pattern
from junctor.runs.run import run
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.local_cluster import silent_dask
from junctor.strategies.chunk_cuts import ChunkCuts
from junctor_kernels.tables.reference import DOUBLE
from pyarrow import parquet

TASK = 1 << 13
NETWORK = grid(10, 10, seed=1)
NOTHING = Pattern(frozenset(), frozenset())
# A network whose tables take more than its records, and too little for them in one propagation.
WIDE, LITTLE = grid(7, 7, states=4, seed=1), 2_000_000


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("PREFECT_API_URL", "JUNCTOR_WORKERS", "JUNCTOR_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    # Send rows of this network away as if that took no time.
    set_figures(monkeypatch, memory_splits, workers={"task": 0.0})
    junctor.write_network(NETWORK, tmp_path / "grid.uai")
    (tmp_path / "evidence.csv").write_text("0,5\n1,0\n0,1\n")
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
    """The workers that rows and slices are sent to."""
    sent: list[str] = []
    send = RowProgram.run

    def watched(self: RowProgram, block: EvidenceBlock) -> BlockOutcome:
        sent.append(self._worker)
        return send(self, block)

    monkeypatch.setattr(RowProgram, "run", watched)
    return sent


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
        assert len(spread) == 2
        spread.clear()
        # As many partitions as workers: each answers one alone.
        run(Job("grid.uai", "evidence.csv", "alone", partition_rows=1), resources)
        assert not spread
        with monkeypatch.context() as patch:
            patch.setattr("junctor.runs.estimate.survey", refuse)
            run(Job("grid.uai", "evidence.csv", "together", partition_rows=1), resources)
        assert len(spread) == 2
    np.testing.assert_allclose(numbers("two"), numbers("alone"), atol=1e-12)
    np.testing.assert_array_equal(numbers("two"), numbers("together"))
    watched, killed, once = RowProgram.run, list[int](), Lock()

    def kill(self: RowProgram, block: EvidenceBlock) -> BlockOutcome:
        with once:
            if not killed:
                killed.append(self._client.run(os.getpid)[self._worker])
                os.kill(killed[0], signal.SIGKILL)
        return watched(self, block)

    monkeypatch.setattr(RowProgram, "run", kill)
    asked = ["--workers", "2", "--memory", "8GiB", "--device-memory", "8KiB", "--device", "cpu", "--no-prefect"]
    result = junctor_cli("run", "grid.uai", "evidence.csv", "-o", "local", *asked)
    assert result.exit_code == 0, result.output
    assert killed
    assert digest("local") == digest("two")


def test_slices_of_a_row_go_to_all_workers(files: Path, spread: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import LocalCluster

    monkeypatch.setattr("junctor.runs.estimate.survey", refuse)

    options = {"processes": False, "protocol": "tcp", "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    junctor.write_network(WIDE, files / "wide.uai")
    (files / "evidence.csv").write_text("0,1\n0,1\n")
    with silent_dask(), LocalCluster(n_workers=2, threads_per_worker=1, memory_limit=0, **options) as cluster:
        # They share it.
        compute = ComputeOptions(2 * LITTLE, device="cpu", device_memory=1 << 16)
        run(Job("wide.uai", "evidence.csv", "sliced"), Resources(scheduler=cluster.scheduler_address, compute=compute))
    assert len(spread) > 2
    assert len(set(spread)) == 2
    found, expected = parquet.read_table("sliced/posteriors"), junctor.posteriors("wide.uai", [{"0": "0", "1": "1"}])
    for name in map(str, range(49)):
        one, other = (np.array(table[name].combine_chunks().flatten()) for table in (found, expected))
        np.testing.assert_allclose(one, other, atol=1e-12)


def test_workers_of_the_same_memory_cut_a_row_alike() -> None:
    options = on_cpu(1 << 30, device_memory=TASK)

    def route_over(count: int, memory: int, uses: int = 1, network: Network = NETWORK) -> ChunkRoute:
        engine = Engine(network, Query(), options, workers=WorkerPool(count, memory))
        return ChunkCuts(engine.facts).chunk_route(NOTHING, uses, DOUBLE, 1 << 30)

    sizes = {count: route_over(count, 1 << 30) for count in (1, 2, 8)}
    assert sizes[2].chunks.passes == sizes[8].chunks.passes
    assert [each.workers for each in sizes.values()] == [1, 2, 8]
    assert route_over(8, 1 << 30, 8).rounds(8) == [(8, 8)]
    assert not sizes[8].slices
    # With less, slices of a row go side by side.
    sliced = route_over(8, LITTLE, network=WIDE)
    assert sliced.slices
    assert sliced.rounds(1) == [(1, 8)]
    assert sliced.seconds < route_over(1, LITTLE, network=WIDE).seconds
    # Too little for the records, so this process does it.
    assert route_over(2, 1000).workers == 0


def test_inspect_says_how_many_workers_answer_rows(files: Path) -> None:
    options = ["--memory", "1GiB", "--device-memory", "8KiB", "--device", "cpu", "--workers", "3"]
    result = junctor_cli("inspect", "grid.uai", *options)
    assert result.exit_code == 0, result.output
    assert "over 3 workers" in result.output
    assert "GPU" not in re.sub(r"there is no GPU[^.]*", "", result.output)
    assert re.search(r"each of 3 workers holds [\d.]+ MiB\s+of\s+memory", result.output), result.output


def test_inspect_says_how_many_gpus_a_worker_leads(files: Path) -> None:
    options = ["--memory", "1GiB", "--device-memory", "80MiB", "--device", "gpu", "--workers", "4"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("junctor.strategies.chunk_cuts.ChunkCuts.in_chunks", lambda *_: True)
        patch.setattr("junctor.strategies.facts.Facts.are_few", lambda *_: False)
        result = junctor_cli("inspect", "grid.uai", *options)
    assert result.exit_code == 0, result.output
    assert re.search(r"over 4 workers, each row by one with [124] GPU", result.output), result.output
