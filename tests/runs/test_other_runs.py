"""Parts of another run that a worker writes to a directory after its client has died."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import junctor
import pytest
from helpers.signals import COMMAND, dask_cluster
from helpers.stores import Bucket
from junctor.generate import evidence_table, random_network, sample
from junctor.model.errors import RunError
from junctor.model.options import ComputeOptions
from junctor.model.query import Query, Sampling
from junctor.runs import run as steps
from junctor.runs.integrity import verify
from junctor.runs.outcome import outcome_of
from junctor.runs.partition import PartTask, propagate_partition
from junctor.runs.results import PART_KEY
from junctor.runs.run import ingest_inputs, ingest_model, run
from junctor.runs.share import finish
from junctor.runs.storage import RunDirectory, run_digest
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.progress import Silence
from pyarrow import csv, parquet

HERE = Resources(workers=0)
ROWS, PART = 120, 40
STALE = "posteriors/part-00001.parquet"


def make_jobs(folder: Path, output: str) -> tuple[Job, Job]:
    """Two runs for the same directory, which differ in a seed."""
    network = random_network(8, seed=3)
    junctor.write_network(network, folder / "net.bif")
    rows = sample(network, ROWS)
    parquet.write_table(evidence_table(network, rows, observed=0.4, pattern="missing"), folder / "rows.parquet")
    queries = (Query(method="sampling", sampling=Sampling(samples=200, seed=seed)) for seed in (1, 2))
    paths = str(folder / "net.bif"), str(folder / "rows.parquet"), output
    first, second = (Job(*paths, query, partition_rows=PART, overwrite=True) for query in queries)
    return first, second


@pytest.fixture
def jobs(tmp_path: Path) -> tuple[Job, Job]:
    return make_jobs(tmp_path, str(tmp_path / "out"))


def contents(job: Job, output: Path) -> dict[str, bytes]:
    """Parts and statistics of a whole run elsewhere."""
    run(job.but(output=str(output)), HERE)
    return parts_in(output)


def parts_in(output: Path) -> dict[str, bytes]:
    folders = (output / name for name in ("posteriors", "statistics"))
    return {str(path.relative_to(output)): path.read_bytes() for folder in folders for path in folder.iterdir()}


def claimed(job: Job) -> None:
    with job.directory.locked():
        ingest_model(job, Silence())
        ingest_inputs(job, Silence())


def task_of(job: Job) -> PartTask:
    spec, counts = job.directory.read_spec(), job.directory.counts()
    return PartTask(job.directory.path, 1, spec, counts, ComputeOptions(memory=1 << 28, threads=1))


def late(task: PartTask, job: Job, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """Answer the task of a dead client; `job` claims the directory at a moment of it."""
    real = getattr(PartTask, moment)

    def then_claimed(*args: Any) -> Any:
        found = real(*args)
        claimed(job)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(PartTask, moment, then_claimed)
        propagate_partition(task, 1 << 28)


@pytest.mark.parametrize("moment", ["read", "answer", "write"])
def test_no_part_is_written_to_the_directory_of_another_run(
    jobs: tuple[Job, Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moment: str
) -> None:
    first, second = jobs
    claimed(first)
    # The other run has removed the unfinished file, too.
    with pytest.raises(RunError, match=r"another run has taken it|\.tmp: No such file"):
        late(task_of(first), second, monkeypatch, moment)
    out = Path(second.output)
    assert [path.name for folder in ("posteriors", "statistics") for path in (out / folder).glob("*")] == []
    run(second, HERE)
    assert parts_in(out) == contents(second, tmp_path / "whole")


def test_no_part_is_put_into_the_folder_of_another_run(bucket: Bucket, tmp_path: Path) -> None:
    first, second = make_jobs(tmp_path, bucket.url("out"))
    claimed(first)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RunError, match="another run has taken it"):
        late(task_of(first), second, patch, "write")
    assert not [name for name in bucket.objects("out") if name.startswith("out/posteriors/")]


def foreign(jobs: tuple[Job, Job], folder: Path) -> dict[str, bytes]:
    """What the first job writes."""
    return contents(jobs[0], folder / "foreign")


def put(output: str, files: dict[str, bytes], *names: str) -> None:
    for name in names:
        (Path(output) / name).parent.mkdir(exist_ok=True)
        (Path(output) / name).write_bytes(files[name])


STATISTICS = "statistics/part-00001.json"


@pytest.mark.parametrize("names", [(STALE,), (STATISTICS,), (STALE, STATISTICS)], ids=["part", "statistics", "both"])
def test_what_is_there_of_another_run_is_not_taken(
    jobs: tuple[Job, Job], tmp_path: Path, caplog: pytest.LogCaptureFixture, names: tuple[str, ...]
) -> None:
    second, its = jobs[1], foreign(jobs, tmp_path)
    whole = contents(second, tmp_path / "whole")
    run(second, HERE)
    second.directory.manifest.unlink()
    put(second.output, its, *names)
    assert [(fault.kind, fault.file) for fault in verify(second.directory).faults if "manifest" not in fault.file] == [
        ("damaged", STALE)
    ]
    with caplog.at_level(logging.WARNING, logger="junctor"):
        manifest = run(second, HERE)
    assert "part-00001.parquet: damaged (of another run): made again" in caplog.text
    assert manifest.reused_parts == 2
    assert parts_in(Path(second.output)) == whole
    assert verify(second.directory).faults == ()


@pytest.mark.parametrize("names", [(STALE,), (STATISTICS,)], ids=["part", "statistics"])
@pytest.mark.parametrize("reused", [False, True])
def test_a_part_that_is_replaced_before_the_end_is_not_in_the_manifest(
    jobs: tuple[Job, Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], reused: bool
) -> None:
    second, its = jobs[1], foreign(jobs, tmp_path)
    whole = contents(second, tmp_path / "whole")
    if reused:
        run(second, HERE)
        second.directory.manifest.unlink()
        (Path(second.output) / "posteriors/part-00002.parquet").unlink()
    real = steps.finalise

    def then_replaced(*args: Any) -> Any:
        put(second.output, its, *names)
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(steps, "finalise", then_replaced)
        with pytest.raises(RunError, match=r"part-00001.parquet: of another run.*run the same command again"):
            run(second, HERE)
    assert not second.directory.manifest.exists()
    assert run(second, HERE).reused_parts == 2
    assert parts_in(Path(second.output)) == whole


def test_an_array_does_not_end_with_a_part_of_another_run(jobs: tuple[Job, Job], tmp_path: Path) -> None:
    second, its = jobs[1], foreign(jobs, tmp_path)
    run(second, HERE)
    second.directory.manifest.unlink()
    put(second.output, its, STALE)
    with pytest.raises(RunError, match=r"1 of 3 parts are damaged: part-00001 \(of another run\)"):
        finish(second.directory, Silence())


def test_parts_of_an_earlier_version_stay(jobs: tuple[Job, Job]) -> None:
    second = jobs[1]
    run(second, HERE)
    path = Path(second.output) / STALE
    table = parquet.read_table(path)
    metadata = table.schema.metadata
    part = json.loads(metadata[PART_KEY])
    assert part.pop("run") == run_digest(second.directory.read_spec())
    parquet.write_table(table.replace_schema_metadata({**metadata, PART_KEY: json.dumps(part).encode()}), path)
    statistics = second.directory.statistics(path)
    record = json.loads(statistics.read_bytes())
    assert record.pop("run")
    statistics.write_text(json.dumps(record))
    # They name no run.
    before = path.read_bytes()
    second.directory.manifest.unlink()
    assert run(second, HERE).reused_parts == 3
    assert path.read_bytes() == before


def test_statistics_of_another_run_are_left_out(jobs: tuple[Job, Job], tmp_path: Path) -> None:
    second, its = jobs[1], foreign(jobs, tmp_path)
    manifest = run(second, HERE)
    put(second.output, its, STATISTICS)
    assert outcome_of(second.directory, manifest).counted == 2


def test_runs_differ_by_all_but_the_version(jobs: tuple[Job, Job]) -> None:
    claimed(jobs[0])
    spec = jobs[0].directory.read_spec()
    assert run_digest(replace(spec, junctor_version="0.0.1")) == run_digest(spec)
    others = [replace(spec, seed=7), replace(spec, evidence_digest=""), replace(spec, keep=("a",))]
    assert len({run_digest(each) for each in (spec, *others)}) == 4


@pytest.mark.slow
def test_a_worker_that_outlives_its_client(tmp_path: Path) -> None:
    network = random_network(37, seed=5)
    junctor.write_network(network, tmp_path / "net.bif")
    table = evidence_table(network, sample(network, 600), observed=0.3, pattern="missing")
    csv.write_csv(table, tmp_path / "rows.csv")

    def command(out: Path, samples: int, seed: int, *more: str) -> list[str]:
        words = ["run", str(tmp_path / "net.bif"), str(tmp_path / "rows.csv"), "-o", str(out), "--case-id", "case_id"]
        numbers = ["--samples", str(samples), "--seed", str(seed), "--partition-rows", "100"]
        return [*COMMAND, *words, "--method", "sampling", *numbers, "--no-prefect", "-q", *more]

    out, whole = tmp_path / "out", tmp_path / "whole"
    subprocess.run(command(whole, 2000, 2), check=True)
    with dask_cluster() as (_, address):
        with subprocess.Popen(command(out, 200_000, 1, "--scheduler", address)) as client:
            while not list(out.glob("posteriors/part-*")):
                assert client.poll() is None
                time.sleep(0.02)
            client.send_signal(signal.SIGKILL)
        subprocess.run(command(out, 2000, 2, "--overwrite"), check=True)
        assert parts_in(out) == parts_in(whole)
        # The worker ends its task.
        time.sleep(30)
    assert parts_in(out) == parts_in(whole)
    assert verify(RunDirectory(out)).faults == ()
