"""The flow on an embedded Prefect server, which takes a while to start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from helpers.files import ASIA
from helpers.stores import Bucket
from junctor.cli import prefect_server
from junctor.model.errors import EvidenceError, InputError, RunError
from junctor.model.query import Query
from junctor.runs.run import read_manifest, run
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.progress import Silence
from junctor.runtime.remote import location
from pyarrow import parquet

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    import junctor_flows  # noqa: F401 - sets what the embedded server needs, before Prefect is imported
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=180):
        yield


def make_job(folder: Path, **changes: object) -> Job:
    evidence = folder / "evidence.csv"
    evidence.write_text("smoke,xray\nyes,no\n,yes\nno,\nperhaps,\n" + "yes,yes\n" * 20)
    return Job(ASIA, str(evidence), str(folder / "out"), partition_rows=10, **changes)  # type: ignore[arg-type]


def test_the_flow_answers_as_the_plain_run_does(server: None, tmp_path: Path) -> None:
    from junctor_flows.batch import score_as_flow
    from prefect.client.orchestration import get_client

    job = make_job(tmp_path)
    manifest = score_as_flow(job, Resources(workers=2), Silence())
    assert manifest.statuses == {"ok": 23, "impossible": 0, "invalid": 1}
    plain = Job(job.network, job.evidence, str(tmp_path / "plain"), partition_rows=10)
    assert run(plain, Resources(workers=0)).parts == manifest.parts
    found, expected = (parquet.read_table(each.directory.path / "posteriors") for each in (job, plain))
    assert found.equals(expected)
    with get_client(sync_client=True) as client:
        artifacts = {artifact.key: artifact for artifact in client.read_latest_artifacts()}
        names = sorted(task.name.rpartition("-")[0] for task in client.read_task_runs())
    assert "24 rows" in str(artifacts["junctor-summary"].data)
    assert artifacts["junctor-progress"].data == 100.0
    assert names == ["finalise", "ingest evidence", "ingest network", "plan", "propagate"]
    assert score_as_flow(job, Resources(), Silence()).reused_parts == 3


def test_a_job_of_json_has_what_the_command_line_has() -> None:
    from pydantic import TypeAdapter

    record = {"network": "n.bif", "evidence": "e.csv", "output": "o", "keep": ["a", "b"], "layout": "columns"}
    job = TypeAdapter(Job).validate_python({**record, "output_format": "arrow", "part_bytes": 1024})
    assert job == Job("n.bif", "e.csv", "o", keep=("a", "b"), layout="columns", output_format="arrow", part_bytes=1024)


def test_a_nightly_flow_says_what_is_new(server: None, tmp_path: Path) -> None:
    from junctor_flows.batch import score_as_flow
    from junctor_flows.frame import summary

    evidence = tmp_path / "in" / "date=2026-11-22" / "a.csv"
    evidence.parent.mkdir(parents=True)
    evidence.write_text("smoke,xray\nyes,no\n")
    job = Job(ASIA, str(tmp_path / "in"), str(tmp_path / "out"), incremental=True)
    manifest = score_as_flow(job, Resources(workers=0), Silence())
    assert manifest == read_manifest(job.directory)
    assert "Increment 1: 1 rows\n\n- new: date=2026-11-22/a.csv, 1 rows\n" in summary("", "", manifest)
    assert "Nothing is new" in summary("", "", score_as_flow(job, Resources(workers=0), Silence()))


def test_a_users_error_is_ours_and_one_line(
    server: None, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    from junctor_flows.batch import score_as_flow

    with pytest.raises(EvidenceError, match="did you mean 'lung'"):
        score_as_flow(make_job(tmp_path, query=Query("posteriors", ("lungs",))), Resources(), Silence())
    with pytest.raises(EvidenceError, match="perhaps"):
        score_as_flow(make_job(tmp_path, strict=True), Resources(), Silence())
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file"):
        score_as_flow(Job(ASIA, ASIA, str(tmp_path / "file")), Resources(), Silence())
    assert "Traceback" not in "".join(capfd.readouterr()) + caplog.text


def test_the_embedded_server_keeps_its_files_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "DEBUG")
    prefect_server.embed(tmp_path)

    assert os.environ.pop("PREFECT_HOME") == str(tmp_path / ".prefect")
    assert os.environ["PREFECT_LOGGING_LEVEL"] == "DEBUG"


def test_an_embedded_server_of_a_run_in_a_store_keeps_its_files_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = prefect_server.embed(location("s3://bucket/out"))
    assert os.environ.pop("PREFECT_HOME") == str(home)
    assert home.is_dir()
    assert home.is_relative_to(tmp_path / "junctor" / "prefect")


def test_a_flow_reads_and_writes_a_store(server: None, bucket: Bucket, tmp_path: Path) -> None:
    from junctor_flows.batch import score_as_flow

    job = make_job(tmp_path)
    expected = run(job, Resources(workers=0)).parts
    bucket.put("asia.bif", Path(ASIA).read_bytes())
    bucket.put("evidence.csv", (tmp_path / "evidence.csv").read_bytes())
    places = {"network": bucket.url("asia.bif"), "evidence": bucket.url("evidence.csv"), "output": bucket.url("out")}
    there = replace(job, **places)  # type: ignore[arg-type]
    assert score_as_flow(there, Resources(workers=0), Silence()).parts == expected
    assert "out/manifest.json" in bucket.names("out")
    secret = replace(there, output=bucket.url("other").replace("s3://", "s3://AKIAEXAMPLE:s3cr3t@"))
    with pytest.raises(InputError, match="would keep them") as caught:
        score_as_flow(secret, Resources(workers=0), Silence())
    assert "s3cr3t" not in str(caught.value)
    assert not bucket.names("other")


def test_an_embedded_server_starts_from_a_database_that_is_ready_and_ends_with_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Set here, so that what the server sets is forgotten afterwards.
    monkeypatch.setenv("PREFECT_API_URL", "")
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "CRITICAL")
    kept = tmp_path / "cache" / "junctor" / f"prefect-{version('prefect')}.db"
    for name in ("first", "second"):
        monkeypatch.setenv("PREFECT_HOME", str(tmp_path / name))
        server = prefect_server.EmbeddedServer(prefect_server.embed(tmp_path))
        # Nobody has one ready for the first.
        assert kept.exists() == (name == "second")
        assert (tmp_path / name / "prefect.db").exists() == kept.exists()
        server.wait()
        assert os.environ["PREFECT_API_URL"].startswith("http://127.0.0.1:")
        assert kept.exists()
        # The server sees its standard input end, as it would if we were killed.
        assert server.stop() == 0
        assert (tmp_path / name / "server.log").read_text() == ""


def test_a_server_that_cannot_start_is_one_line(tmp_path: Path) -> None:
    # Prefect takes a server that ends while it starts for one whose port was taken, and would start another for ever.
    job = make_job(tmp_path)
    command = "from junctor.cli import main; main()"
    args = [sys.executable, "-c", command, "run", job.network, job.evidence, "-o", job.output, "--prefect", "-q"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment["PREFECT_API_DATABASE_CONNECTION_URL"] = f"sqlite+aiosqlite:///{tmp_path}/nowhere/prefect.db"
    done = subprocess.run(args, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 6
    assert done.stderr.splitlines()[-1].startswith("error: Prefect's server did not start (")
    assert "--no-prefect" in done.stderr


def test_the_flow_makes_scores(server: None, tmp_path: Path) -> None:
    from junctor_flows.batch import score_as_flow, score_batch

    query = Query(targets=("l*", "dysp"), answers="scores", top=2, probabilities=("tub=yes",))
    job = make_job(tmp_path, query=query)
    manifest = score_as_flow(job, Resources(workers=0), Silence())
    assert manifest.statuses["ok"] == 23
    plain = Job(job.network, job.evidence, str(tmp_path / "plain"), query, partition_rows=10)
    assert run(plain, Resources(workers=0)).parts == manifest.parts
    # As a deployment is called: with records.
    record = {"network": ASIA, "evidence": job.evidence, "output": str(tmp_path / "record")}
    asked = {"targets": ["lung"], "answers": "scores", "probabilities": ["tub=yes"]}
    assert score_batch({**record, "query": asked})["spec"]["probabilities"] == ("tub=yes",)
    assert parquet.read_table(tmp_path / "record" / "scores").column_names[4] == "tub=yes"
