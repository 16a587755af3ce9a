"""Where the parts of a run are answered: a table of estimates, and one of jobs from files to the call that hands in."""

from __future__ import annotations

import itertools
import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import junctor
import pytest
from helpers.figures import figures, set_figures
from helpers.gpu_workers import ROOM
from helpers.hmm_models import random_model
from junctor.cost.figures import shipped_figures
from junctor.generate import evidence_table, grid, random_network, sample
from junctor.hmm import run as hmm_run
from junctor.hmm import write_model
from junctor.hmm.run import SequenceJob
from junctor.model.errors import BudgetError
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.out_of_core import memory_splits, programs
from junctor.out_of_core.cluster import workers as cluster_workers
from junctor.out_of_core.cluster.workers import WorkerPool, pool_here
from junctor.runs import estimate as estimates
from junctor.runs import part_sizes, placement
from junctor.runs import run as steps
from junctor.runs.partition import engine_of
from junctor.runs.placement import Machine, RunEstimate, place
from junctor.runs.workload import Job, Workload
from junctor.runtime.dask_cluster import Resources
from junctor.strategies import chunk_cuts
from junctor.strategies.chunk_cuts import ChunkCuts
from junctor.strategies.facts import Facts
from pyarrow import parquet, table

CPUS, AUTO = Machine("cpu", cores=64, memory=10**9), Machine("auto", cores=16, gpus=1, memory=10**9)
GPUS, REMOTE = Machine("gpu", cores=64, gpus=4, memory=10**9), Machine("auto", is_remote=True)
LONG, CHUNKED = RunEstimate(100, 1000.0), RunEstimate(100, 22.0, in_chunks=20.0)
BY_ROWS = replace(CHUNKED, by_parts=9.0, by_rows=4.5)
# 100,000 rows of munin2 with gaps, which an H100 took 5.3 to 6.9 s for and the 16 cores beside it 9.7 to 10.2.
GAPS = RunEstimate(0, 45.3, 1.69)


def known(gpu_seconds: float | None) -> RunEstimate:
    return RunEstimate(seconds=500.0, gpu_seconds=gpu_seconds)


@pytest.mark.parametrize(
    ("estimate", "machine", "partitions", "expected"),
    [
        # Processes that are asked for, as far as there is memory and work for them.
        (LONG, replace(CPUS, workers=8, memory=1000), 9, "cpu 8"),
        (LONG, replace(CPUS, workers=8, memory=399), 9, "cpu 3"),
        (LONG, replace(CPUS, workers=8, memory=99), 9, "cpu 1"),
        (LONG, replace(CPUS, workers=8), 5, "cpu 5"),
        (LONG, replace(CPUS, workers=0), 9, "cpu 1"),
        # One process has threads enough for all cores of most machines.
        (LONG, replace(CPUS, cores=16), 99, "cpu 1"),
        (LONG, replace(CPUS, cores=17), 99, "cpu 4"),
        (LONG, CPUS, 99, "cpu 16"),
        (RunEstimate(100, 14.0), CPUS, 99, "cpu 2"),
        (RunEstimate(100, 1.0), CPUS, 99, "cpu 1"),
        (RunEstimate(), CPUS, 0, "cpu 1"),
        (LONG, replace(CPUS, has_cluster=False), 99, "cpu 1"),
        # A GPU that is worth it.
        (RunEstimate(0, 1e4, 10.0), AUTO, 9, "gpu 1"),
        (RunEstimate(0, 0.1, 0.01), AUTO, 9, "cpu 1"),
        (RunEstimate(0, 1e4, 2e4), AUTO, 9, "cpu 1"),
        (RunEstimate(0, 1e4, 10.0), replace(AUTO, gpus=0), 9, "cpu 1"),
        (GAPS, AUTO, 9, "gpu 1"),
        (replace(GAPS, gpu_seconds=4.0), AUTO, 9, "gpu 1"),
        (GAPS, replace(AUTO, cores=64), 9, "cpu 9"),
        (RunEstimate(0, 0.1, 0.01), GPUS, 9, "gpu 1"),
        # What takes seconds on one GPU is done before others are open.
        (RunEstimate(seconds=4.0), GPUS, 9, "gpu 1"),
        (RunEstimate(seconds=12.0), GPUS, 9, "gpu 2"),
        # Where the device was chosen, seconds are those of a core; without a choice there are none of a GPU.
        (known(4.0), replace(AUTO, gpus=4), 9, "gpu 1"),
        (known(12.0), replace(AUTO, gpus=4), 9, "gpu 2"),
        (known(None), replace(AUTO, gpus=4), 9, "gpu 4"),
        (known(math.inf), GPUS, 9, "gpu 4"),
        # Few partitions of rows in chunks take all GPUs of one process; whoever asks for workers gets them.
        (CHUNKED, GPUS, 3, "gpu 1"),
        (CHUNKED, GPUS, 4, "gpu 4"),
        (replace(CHUNKED, in_chunks=0.0), GPUS, 3, "gpu 3"),
        (CHUNKED, replace(GPUS, workers=3), 2, "gpu 2"),
        # Rows one by one, where that pays: also for the start of the processes, unless they are asked for.
        (BY_ROWS, GPUS, 2, "gpu 4 by rows"),
        (replace(BY_ROWS, by_rows=5.5), GPUS, 2, "gpu 1"),
        (replace(BY_ROWS, by_rows=5.5), replace(GPUS, workers=2), 1, "gpu 2 by rows"),
        (replace(BY_ROWS, by_rows=9.0), replace(GPUS, workers=2), 1, "gpu 1"),
        (BY_ROWS, replace(CPUS, workers=2), 1, "cpu 2 by rows"),
        # It was for CPUs that workers were found to be faster.
        (replace(BY_ROWS, gpu_seconds=0.1), replace(AUTO, workers=2), 1, "gpu 1"),
        # Workers of a scheduler choose for themselves.
        (LONG, REMOTE, 9, "auto 1"),
        (LONG, replace(REMOTE, device="gpu"), 9, "gpu 1"),
        (BY_ROWS, REMOTE, 9, "auto 1 by rows"),
    ],
)
def test_estimate_and_machine_say_where_parts_go(
    estimate: RunEstimate, machine: Machine, partitions: int, expected: str
) -> None:
    placed = place(estimate, machine, partitions)
    assert f"{placed.device} {placed.workers}{' by rows' * placed.spread}" == expected
    assert placed.reason.startswith(f"device {placed.device}: ")
    assert ("processes: " in placed.reason) == (placed.workers > 1)


def test_seconds_are_those_of_the_device_and_rows_abreast_those_of_its_processes() -> None:
    seconds = {0.0: (known(None), AUTO), 10.0: (RunEstimate(0, 1e4, 10.0), AUTO), 22.0: (CHUNKED, CPUS)}
    seconds |= {1000.0: (LONG, REMOTE), 500.0: (known(math.inf), GPUS)}
    assert {each: place(*given, 9).seconds for each, given in seconds.items()} == {each: each for each in seconds}
    # Unknown, or those of rows that all workers share.
    assert [place(*of, 9).seconds for of in ((RunEstimate(0, math.inf), CPUS), (BY_ROWS, REMOTE))] == [0.0, 0.0]
    abreast = [(LONG, GPUS), (CHUNKED, GPUS), (CHUNKED, CPUS), (CHUNKED, replace(CPUS, workers=8)), (CHUNKED, REMOTE)]
    assert [place(*of, 9).abreast for of in abreast] == [1, 4, 1, 8, 1]


def test_what_more_processes_lack_is_told() -> None:
    assert place(LONG, replace(CPUS, has_cluster=False), 99).warnings == (
        'one process answers, 16 would be faster: pip install "junctor[cluster]"',
    )
    assert place(LONG, replace(CPUS, workers=8, memory=399), 9).warnings == (
        "memory for 3 of 8 workers: 399 B are allowed, a plan needs 100 B",
    )
    assert not place(LONG, CPUS, 99).warnings


def test_machines_are_planned_for_what_is_asked_for() -> None:
    one, remote = replace(GPUS, gpus=1), replace(GPUS, gpus=1, is_remote=True)
    machines = (GPUS, one, replace(GPUS, workers=1), replace(GPUS, workers=2), AUTO, remote, CPUS)
    assert [each.is_one_gpu for each in machines] == [False, True, True, False, False, False, False]
    assert [each.has_choice for each in (*machines, replace(AUTO, gpus=0))] == 4 * [False] + [True] + 3 * [False]
    assert [each.takes_all_gpus(3) for each in (*machines, replace(GPUS, gpus=3))] == [
        *(True, False, True, True),
        *(False, False, False, False),
    ]
    # No worker can answer a row alone: all together may, and each with a GPU has files.
    pools = (replace(REMOTE, workers=4), replace(REMOTE, workers=1), replace(REMOTE, workers=4, gpus=4))
    assert [each.may_spread(None, 9) for each in pools] == [True, False, False]


@pytest.mark.parametrize(
    ("machine", "partitions", "expected"),
    [
        (CPUS, 1, False),
        (replace(CPUS, workers=1), 1, False),
        (replace(CPUS, workers=2), 9, True),
        (AUTO, 1, False),
        (GPUS, 3, True),
        # A partition for each GPU; whoever asks for workers is told what they lack.
        (GPUS, 4, False),
        (replace(GPUS, has_gpu_cluster=False), 3, False),
        (replace(GPUS, has_gpu_cluster=False, workers=9), 3, True),
        (replace(GPUS, workers=2), 2, False),
        (replace(REMOTE, workers=4), 3, True),
        (replace(REMOTE, workers=4), 4, False),
        (replace(REMOTE, workers=4, gpus=4), 9, True),
    ],
)
def test_rows_one_by_one_are_forecast_where_that_may_pay(machine: Machine, partitions: int, expected: bool) -> None:
    assert machine.may_spread(CHUNKED, partitions) is expected
    # Rows in chunks have to be most of the work.
    assert not machine.may_spread(replace(CHUNKED, in_chunks=11.0), partitions)
    assert not machine.may_spread(RunEstimate(), partitions)


@dataclass(frozen=True)
class Asked:
    """A job and what there is for it.

    kind: of its rows: few and small, in chunks on CPUs or on GPUs, sampled, or sequences.
    parts: rows of a part.
    longer: times as long as forecast.
    task, held, start: seconds of a task of workers, of Python's lock, and until a worker is there.
    """

    kind: str = "rows"
    parts: int | None = 10
    device: Any = "cpu"
    workers: int | None = None
    pool: WorkerPool | None = None
    cores: int = 4
    gpus: int = 0
    longer: float = 1.0
    task: float = 0.0
    held: float = 1000.0
    start: float = 0.1
    searched: int = programs.SEARCHED_CUTS
    refused: bool = False
    extras: bool = True


GPU_POOL = replace(pool_here(4, ROOM), memory=1 << 30)
CHUNKS, POOL, ON_GPUS = Asked("chunks"), WorkerPool(4, 1 << 30), Asked("gpus", 16, "gpu", gpus=4)
JOBS = {
    Asked(): "cpu, 1: 10 of 10",
    Asked(workers=2): "cpu, 2: 10 of 10",
    Asked(longer=1e7, cores=64): "cpu, 10: 10 of 10",
    Asked(longer=1e7, cores=64, extras=False): "cpu, 1: 10 of 10",
    Asked(longer=1e5, parts=None): "cpu, 1: 3 of 32",
    Asked(device="auto", gpus=1): "cpu, 1: 10 of 10",
    Asked(device="auto", gpus=1, longer=1e7): "gpu, 1: 10 of 10",
    Asked(device="gpu", gpus=4, longer=1e7): "gpu, 4: 10 of 10",
    CHUNKS: "cpu, 1: 1 of 10",
    replace(CHUNKS, workers=2): "cpu, 2 by rows: 1 of 10",
    replace(CHUNKS, workers=2, task=1.0): "cpu, 1: 1 of 10",
    replace(CHUNKS, workers=2, device="auto", gpus=1, longer=1e5): "gpu, 1: 1 of 10",
    ON_GPUS: "gpu, 4 by rows: 1 of 16",
    replace(ON_GPUS, start=1e6): "gpu, 1: 1 of 16",
    replace(ON_GPUS, held=0.0): "gpu, 1: 1 of 16",
    replace(ON_GPUS, start=1e6, workers=4): "gpu, 4 by rows: 1 of 16",
    replace(ON_GPUS, extras=False): "gpu, 1: 1 of 16",
    replace(ON_GPUS, parts=4): "gpu, 1: 4 of 4",
    replace(ON_GPUS, parts=None, longer=1e6): "gpu, 4 by rows: 4 of 4",
    Asked(pool=POOL, parts=None, longer=1e5): "cpu, 1: 3 of 32",
    Asked(pool=POOL, device="auto", gpus=2): "auto, 1: 10 of 10",
    replace(CHUNKS, pool=POOL): "cpu, 1 by rows: 1 of 10",
    replace(CHUNKS, pool=replace(POOL, workers=3), parts=1): "cpu, 1: 3 of 1",
    replace(CHUNKS, pool=POOL, task=10.0): "cpu, 1: 1 of 10",
    Asked(pool=POOL, refused=True): "cpu, 1 by rows: 10 of 10",
    Asked(pool=replace(POOL, workers=1), refused=True): "cpu, 1: 10 of 10",
    # Partitions of a few rows for all: each worker would search for the plan again, unless that takes no time.
    Asked("gpus", 16, "auto", pool=GPU_POOL): "auto, 1 by rows: 1 of 16",
    Asked("gpus", 4, "auto", pool=GPU_POOL): "auto, 1 by rows: 4 of 4",
    Asked("gpus", 16, "auto", pool=GPU_POOL, searched=0): "auto, 1 by rows: 1 of 16",
    Asked("gpus", 4, "auto", pool=GPU_POOL, searched=0): "auto, 1: 4 of 4",
    # A row that takes more than a worker has for itself is led by one.
    Asked("gpus", 4, "auto", pool=replace(GPU_POOL, memory=17 << 20), searched=0): "auto, 1 by rows: 4 of 4",
    Asked("gpus", device="auto", pool=GPU_POOL, refused=True): "auto, 1: 2 of 10",
    Asked("sampling", device="auto"): "cpu, 1: 10 of 10",
    Asked("auto", device="auto", gpus=1): "cpu, 1: 10 of 10",
    Asked("sequences", longer=1e15, cores=64): "cpu, 3: 3 of 10",
    Asked("sequences", None, longer=1e13, cores=64): "cpu, 16: 25 of 1",
    Asked("sequences", None, "auto", longer=1e13, gpus=1): "gpu, 1: 1 of 65536",
}


def job_of(asked: Asked, folder: Path) -> Workload:
    """Return a job of few rows, or sequences."""
    net, rows, out = (str(folder / name) for name in ("net.parquet", "rows.parquet", "out"))
    if asked.kind == "sequences":
        write_model(random_model(6, 3, 1), Path(net))
        parquet.write_table(table({"symbols": [[0, 1] * 9] * 25}), rows)
        return SequenceJob(net, rows, out, partition_rows=asked.parts)
    query = Query(method=asked.kind if asked.kind in ("sampling", "auto") else "exact")  # type: ignore[arg-type]
    network = grid(10, 10, seed=1) if asked.kind == "chunks" else grid(3, 4, seed=3)
    evidence = table({name: [0, None, 0] for name in ("x_0_0", "x_0_5")})
    if asked.kind == "gpus":
        states = zip(*itertools.product(range(2), repeat=4), strict=True)
        evidence = table(dict(zip(("x_0_0", "x_0_3", "x_2_0", "x_2_3"), map(list, states), strict=True)))
    elif asked.kind != "chunks":
        network = random_network(12, seed=5)
        evidence = evidence_table(network, sample(network, 95, seed=1), observed=0.4, pattern="random")
    junctor.write_network(network, net)
    parquet.write_table(evidence, rows)
    return Job(net, rows, out, query, partition_rows=asked.parts)


class HandedIn(Exception):
    """The end of a run, where its parts are handed in."""


@pytest.mark.parametrize("asked", JOBS, ids=lambda asked: JOBS[asked])
def test_jobs_go_where_they_are_placed(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def hand_in(how: str, tasks: Any, resources: Resources) -> Any:
        parts = f"{len(tasks)} of {tasks[0].spec.partition_rows}"
        raise HandedIn(f"{resources.compute.device}, {resources.workers}{how}: {parts}")

    def longer(*args: Any) -> Any:
        if asked.refused:
            raise BudgetError("rows do not fit one worker")
        found = survey(*args)
        return replace(
            found, seconds=found.seconds * asked.longer, chunked_seconds=found.chunked_seconds * asked.longer
        )

    survey, patch = estimates.survey, monkeypatch.setattr
    engine_of.cache_clear()
    patch(steps, "distribute", lambda _, tasks, resources, here: hand_in("", tasks, resources))
    patch(steps, "propagate_over", lambda tasks, resources, _: hand_in(" by rows", tasks, resources))
    patch(steps, "check_resources", lambda _: None)
    patch(steps, "workers_ahead", lambda _: nullcontext(lambda parts: None))
    patch(steps, "open_gpu_ahead", lambda _: None)
    patch(estimates, "survey", longer)
    patch(estimates, "cluster_client", lambda _: nullcontext())
    walk = shipped_figures().walks.transition * asked.longer
    changed = {"workers": {"task": asked.task}, "walks": {"transition": walk}, "gpu_host": {"held": asked.held}}
    set_figures(monkeypatch, hmm_run, memory_splits, programs, **changed)
    patch(part_sizes, "MOST_SHARED", math.inf)
    patch(programs, "SEARCHED_CUTS", asked.searched)
    patch(cluster_workers, "pool_of", lambda *_: asked.pool)
    patch(placement, "shipped_figures", lambda: figures(gpu_host={"start": asked.start}))
    patch(placement, "usable_cores", lambda: asked.cores)
    patch(placement, "has_gpu", lambda: asked.gpus > 0)
    patch(placement, "has_extra", lambda _: asked.extras)
    patch(placement, "find_spec", lambda _: asked.extras or None)
    for module in (placement, chunk_cuts):
        patch(module, "count_gpus", lambda: asked.gpus)
    if asked.kind == "gpus":
        patch(ChunkCuts, "in_chunks", lambda *_: True)
        patch(Facts, "are_few", lambda *_: False)
    room = {"chunks": 1 << 13, "gpus": ROOM}.get(asked.kind)
    compute = ComputeOptions(1 << (30 if asked.kind == "chunks" else 32), device=asked.device, device_memory=room)
    scheduler = None if asked.pool is None else "tcp://127.0.0.1:1"
    with pytest.raises(HandedIn) as found:
        steps.run(job_of(asked, tmp_path), Resources(asked.workers, scheduler, compute=compute))
    assert str(found.value) == JOBS[asked]
    assert ("16 would be faster" in caplog.text) == (asked.longer > 1 and not asked.extras)
