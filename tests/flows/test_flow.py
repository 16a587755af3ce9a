"""The flow on an embedded Prefect server, which takes a while to start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from helpers.files import ASIA
from junctor.cli import prefect_server
from junctor.model.errors import EvidenceError, RunError, ThresholdError
from junctor.model.query import Query
from junctor.runs.run import run
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.progress import Silence
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


def test_a_flow_writes_its_page_and_fails_by_a_threshold(server: None, tmp_path: Path) -> None:
    from junctor_flows.batch import score_as_flow, score_batch

    job = make_job(tmp_path, fail_if=("invalid > 0",), rejects=str(tmp_path / "bad.csv"))
    with pytest.raises(ThresholdError, match=r"invalid > 0: found 1 of 24 rows, 4\.17% \(row 4\)"):
        score_as_flow(job, Resources(workers=0), Silence())
    assert "1 threshold crossed" in job.directory.report.read_text()
    assert len((tmp_path / "bad.csv").read_text().splitlines()) == 2
    # The answers are there: the same flow with another threshold is done at once.
    other = make_job(tmp_path, fail_if=("invalid > 1",), report=False)
    job.directory.report.unlink()
    state = score_batch(other, Resources(workers=0), return_state=True)
    assert state.is_completed()
    assert not job.directory.report.exists()
    state = score_batch(job, Resources(workers=0), return_state=True)
    assert state.is_failed()
    assert "invalid > 0: found 1 of 24 rows" in state.message


def test_a_job_of_json_has_what_the_command_line_has() -> None:
    from pydantic import TypeAdapter

    record = {"network": "n.bif", "evidence": "e.csv", "output": "o", "keep": ["a", "b"], "layout": "columns"}
    job = TypeAdapter(Job).validate_python({**record, "output_format": "arrow", "part_bytes": 1024})
    assert job == Job("n.bif", "e.csv", "o", keep=("a", "b"), layout="columns", output_format="arrow", part_bytes=1024)


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
