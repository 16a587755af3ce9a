"""Deployments on real Prefect servers: schedules, overlaps, retries, limits of time, cancellation."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers.command_line import junctor_cli
from helpers.files import ASIA, ROOT
from helpers.prefect_servers import BIN, PrefectServer
from junctor.cli.deployed import checking
from junctor.model.errors import counted
from pyarrow import parquet

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(600)]
UV = shutil.which("uv")
POSTGRES = shutil.which("postgres")


def write_rows(path: Path, rows: int) -> None:
    path.write_text("smoke,xray\n" + "yes,no\n" * rows)


def deployed(server: PrefectServer, folder: Path, *args: str, program: Path = BIN / "junctor") -> None:
    done = server.junctor("deploy", *args, cwd=folder, program=program)
    assert done.returncode == 0, done.stderr
    assert "deployed junctor-score-batch/" in done.stdout


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("posteriors/part-*.parquet"))


def nights(server: PrefectServer, folder: Path, last: int, program: Path = BIN / "junctor") -> None:
    """Runs on schedule, each on new data."""
    evidence = folder / "patients"
    evidence.mkdir()
    write_rows(evidence / "1.csv", 1)
    options = (
        "-o",
        "answers",
        "--incremental",
        "--memory",
        "1GiB",
        "--cron",
        "0 5 * * *",
        "--timezone",
        "Europe/Berlin",
    )
    deployed(server, folder, ASIA, "patients", *options, "--name", "nightly", program=program)
    schedule = server.deployment("nightly")["schedules"][0]["schedule"]
    assert schedule["cron"] == "0 5 * * *"
    assert schedule["timezone"] == "Europe/Berlin"
    server.every("nightly", 4.0)
    with server.serve(folder, "nightly", program=program):
        for night in range(1, last + 1):
            said = f"; {counted(night, 'row')} in all: {night} ok"
            # Runs may be faster than nights: one in between finds nothing new.
            found = server.until(
                lambda said=said: [
                    run for run in server.runs("nightly", "COMPLETED") if said in run["state"]["message"]
                ],
                120,
            )
            assert parquet.read_table(folder / "answers" / "posteriors").num_rows == night
            write_rows(evidence / f"{night + 1}.csv", 1)
    run = found[0]
    assert run["name"].startswith("patients on asia.bif, 20")
    assert run["parameters"]["evidence"] == str(evidence)
    assert run["parameters"]["memory"] == "1GiB"
    assert "propagating: patients on asia.bif" in [task["name"] for task in server.tasks(run["id"])]
    assert {task["state"]["type"] for task in server.tasks(run["id"])} == {"COMPLETED"}
    assert "propagating 1 row: patients on asia.bif" in server.lines(run["id"])
    artifacts = server.artifacts(run["id"])
    assert artifacts["nightly-progress"] == 100.0
    assert f"| ok | {last} |" in artifacts["nightly-summary"]
    assert f"Increment {last}: 1 row\n\n- new: {last}.csv, 1 row" in artifacts["nightly-summary"]
    server.delete("nightly")


def test_schedules_make_runs(server: PrefectServer, tmp_path: Path) -> None:
    nights(server, tmp_path, 1)
    # SQLAlchemy 2.1 let every pass of the scheduler fail, and only the server's log said so.
    assert "InvalidRequestError" not in (server.home / "server.log").read_text()


def test_the_tutorial_shows_what_deploy_says(
    server: PrefectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "tutorials" / "schedule_it.md").read_text()
    (command,) = [line for line in text.splitlines() if line.startswith("junctor deploy")]
    shown = text.partition(command)[2].partition("```text\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "data", "data")
    Path("inbox").mkdir()
    assert server.junctor_here(*shlex.split(command)[1:]).stdout == shown
    server.delete("asia-inbox")


@pytest.mark.slow
def test_an_overlapping_run_is_skipped_or_waits(server: PrefectServer, tmp_path: Path, long: list[str]) -> None:
    deployed(server, tmp_path, *long, "-o", "skipped", "--name", "skips")
    deployed(server, tmp_path, *long, "-o", "queued", "--name", "queues", "--on-overlap", "queue")
    with server.serve(tmp_path, "skips"):
        first = server.begin("skips")
        server.until(lambda: parts(tmp_path / "skipped"))
        second = server.ended(server.begin("skips"))
        assert second["state"]["type"] == "CANCELLED"
        assert "concurrency limit" in second["state"]["message"]
        assert server.ended(first)["state"]["type"] == "COMPLETED"
        server.delete("skips")
    with server.serve(tmp_path, "queues"):
        first = server.begin("queues")
        server.until(lambda: parts(tmp_path / "queued"))
        second = server.begin("queues")
        server.until(lambda: server.run(second)["state"]["name"] == "AwaitingConcurrencySlot")
        # Cancelled while it runs: what is done stays, and the next run goes on.
        server.ask(f"/flow_runs/{first}/set_state", {"state": {"type": "CANCELLING"}, "force": True})
        assert server.ended(first)["state"]["type"] == "CANCELLED"
        kept = parts(tmp_path / "queued")
        assert kept
        assert not (tmp_path / "queued" / "manifest.json").exists()
        assert server.ended(second)["state"]["type"] == "COMPLETED"
    assert json.loads((tmp_path / "queued" / "manifest.json").read_text())["reused_parts"] >= len(kept)


@pytest.mark.slow
def test_a_run_that_is_due_when_the_one_before_has_ended_is_not_skipped(server: PrefectServer, tmp_path: Path) -> None:
    """Prefect compares up to ten seconds before."""
    write_rows(tmp_path / "rows.csv", 2)
    deployed(server, tmp_path, ASIA, "rows.csv", "-o", "answers", "--overwrite", "--name", "due")
    with server.serve(tmp_path, "due") as served:
        first = server.begin("due")
        process = process_of(server, served, first)
        server.until(lambda: server.run(first)["state"]["type"] == "RUNNING")
        process.suspend()
        due = datetime.now(UTC) + timedelta(seconds=20)
        second = server.begin_at("due", due)
        time.sleep(12.0)
        assert server.run(second)["state"]["type"] == "SCHEDULED"
        # The quickest end.
        process.kill()
        server.until(lambda: server.run(first)["state"]["type"] == "CRASHED")
        assert datetime.now(UTC) < due
        assert server.ended(second)["state"]["type"] == "COMPLETED"
        begun = [each["timestamp"] for each in states_of(server, second) if each["type"] != "SCHEDULED"]
        assert due <= datetime.fromisoformat(begun[0])
        # One that is cancelled before its time does not begin.
        third = server.begin_at("due", datetime.now(UTC) + timedelta(seconds=6))
        time.sleep(2.0)
        server.ask(f"/flow_runs/{third}/set_state", {"state": {"type": "CANCELLED"}})
        time.sleep(6.0)
        assert server.run(third)["state"]["type"] == "CANCELLED"
        assert server.run(third)["run_count"] == 0


@pytest.mark.slow
def test_a_failed_run_is_tried_again(server: PrefectServer, tmp_path: Path) -> None:
    options = ("-o", "answers", "--retries", "2", "--retry-delay", "3s", "--name", "late")
    deployed(server, tmp_path, ASIA, "late.csv", *options)
    with server.serve(tmp_path, "late"):
        id = server.begin("late")
        server.until(lambda: server.run(id)["state"]["name"] == "AwaitingRetry")
        write_rows(tmp_path / "late.csv", 5)
        run = server.ended(id)
        assert run["state"]["message"].startswith("5 rows")
        assert run["run_count"] == 2
        lines = server.lines(id)
        assert any("late.csv" in line and "no such file" in line.lower() for line in lines), lines
        assert not any("Traceback" in line for line in lines)
        # Without the file both further attempts fail as well.
        (tmp_path / "late.csv").unlink()
        failed = server.ended(server.begin("late"))
    assert failed["state"]["type"] == "FAILED"
    assert failed["run_count"] == 3


def process_of(server: PrefectServer, served: subprocess.Popen[bytes], id: str) -> psutil.Process:
    """Return the process of a flow run, of those that `junctor serve` or a worker has started, once it is there."""

    def found() -> psutil.Process | None:
        # The innermost: a worker has a process of its own for each run.
        for child in reversed(psutil.Process(served.pid).children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if child.environ().get("PREFECT__FLOW_RUN_ID") == id:
                    return child
        return None

    process: psutil.Process = server.until(found)
    return process


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 5])
def test_a_killed_run_is_tried_again(server: PrefectServer, tmp_path: Path, long: list[str], kills: int) -> None:
    """As where memory runs out: the process that Prefect leaves its retries to is gone."""
    name = f"killed-{kills}"
    options = ("-o", "answers", "--retries", str(kills), "--retry-delay", "2s", "--name", name)
    deployed(server, tmp_path, *long, *options)
    with server.serve(tmp_path, name) as served:
        id = server.begin(name)
        for attempt in range(1, kills + 1):
            server.until(lambda attempt=attempt: len(parts(tmp_path / "answers")) >= attempt)
            process_of(server, served, id).kill()
            retry = server.until(lambda attempt=attempt: retries_of(server, id)[attempt - 1 :])[0]
            at = datetime.fromisoformat(retry["state_details"]["scheduled_time"])
            assert 1.5 < (at - datetime.fromisoformat(retry["timestamp"])).total_seconds() < 2.5
            assert "code: -9" in retry["message"]
            server.until(lambda attempt=attempt: server.run(id)["run_count"] == attempt + 1)
            begun = [datetime.fromisoformat(each["timestamp"]) for each in states_of(server, id)]
            assert not [each for each in begun if datetime.fromisoformat(retry["timestamp"]) < each < at]
        run = server.ended(id)
    assert run["state"]["message"].startswith("16,000 rows")
    assert run["run_count"] == kills + 1
    assert len(server.runs(name)) == 1
    assert json.loads((tmp_path / "answers" / "manifest.json").read_text())["reused_parts"] >= kills


@pytest.mark.slow
def test_a_killed_run_of_a_process_pool_is_tried_again(server: PrefectServer, tmp_path: Path, long: list[str]) -> None:
    prefect = [str(BIN / "prefect"), "--no-prompt"]
    create = [*prefect, "work-pool", "create", "killing", "--type", "process"]
    subprocess.run(create, env=server.environment, check=True, capture_output=True, timeout=100)
    options = ("-o", "answers", "--retries", "1", "--retry-delay", "1s", "--name", "pooled-kill")
    deployed(server, tmp_path, *long, *options, "--work-pool", "killing")
    with server.process_of(*prefect, "worker", "start", "--pool", "killing", cwd=tmp_path) as worker:
        id = server.begin("pooled-kill")
        server.until(lambda: parts(tmp_path / "answers"))
        process_of(server, worker, id).kill()
        server.until(lambda: server.run(id)["run_count"] == 2)
        assert server.ended(id)["state"]["message"].startswith("16,000 rows")


@pytest.mark.slow
def test_a_run_is_tried_again_no_more_often_than_was_asked_for(
    server: PrefectServer, tmp_path: Path, long: list[str]
) -> None:
    deployed(server, tmp_path, *long, "-o", "answers", "--retries", "1", "--retry-delay", "1s", "--name", "dies")
    with server.serve(tmp_path, "dies") as served:
        id = server.begin("dies")
        for attempt in (1, 2):
            server.until(lambda attempt=attempt: server.run(id)["run_count"] == attempt)
            process_of(server, served, id).kill()
            server.until(lambda attempt=attempt: count_of(server, id, "CRASHED") == attempt)
        # Longer than the pause.
        time.sleep(5.0)
        assert server.run(id)["state"]["type"] == "CRASHED"
    assert len(server.runs("dies")) == 1


@pytest.mark.slow
def test_a_run_that_begins_while_the_server_is_away_is_tried_again(mortal: PrefectServer, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.csv", 3)
    # Else it asks for a minute, and the server is back.
    mortal.environment["PREFECT_CLIENT_MAX_RETRIES"] = "0"
    options = ("-o", "answers", "--retries", "1", "--retry-delay", "1s", "--name", "early")
    deployed(mortal, tmp_path, ASIA, "rows.csv", *options)
    with mortal.serve(tmp_path, "early") as served:
        id = mortal.begin("early")
        process_of(mortal, served, id).suspend()
        mortal.kill()
        process_of(mortal, served, id).resume()
        psutil.wait_procs([process_of(mortal, served, id)], 60)
        time.sleep(3.0)
        mortal.start()
        assert mortal.ended(id, 120)["state"]["type"] == "CRASHED"
        mortal.until(lambda: mortal.run(id)["state"]["type"] == "COMPLETED", 60)
    assert count_of(mortal, id, "CRASHED") == 1


def states_of(server: PrefectServer, id: str) -> list[Any]:
    """Return the states that a flow run has had, in their order."""
    return sorted(server.ask(f"/flow_run_states/?flow_run_id={id}", method="GET"), key=lambda each: each["timestamp"])


def count_of(server: PrefectServer, id: str, kind: str) -> int:
    return sum(each["type"] == kind for each in states_of(server, id))


def retries_of(server: PrefectServer, id: str) -> list[Any]:
    return [each for each in states_of(server, id) if each["name"] == "AwaitingRetry"]


@pytest.mark.slow
def test_a_run_that_takes_too_long_is_ended(server: PrefectServer, tmp_path: Path, long: list[str]) -> None:
    deployed(server, tmp_path, *long, "-o", "answers", "--timeout", "4s", "--name", "slow")
    with server.serve(tmp_path, "slow"):
        run = server.ended(server.begin("slow"))
    assert run["state"]["name"] == "TimedOut"
    assert "longer than 4s" in run["state"]["message"]
    assert not (tmp_path / "answers" / "manifest.json").exists()


def test_parameters_are_checked_by_the_server(
    server: PrefectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "patients.csv", 1)
    words = ("deploy", ASIA, "patients.csv", "-o", "answers", "--name", "checked")
    assert "deployed junctor-score-batch/checked" in server.junctor_here(*words).stdout
    form = server.deployment("checked")["parameter_openapi_schema"]["properties"]
    assert form["query"]["enum"] == ["posteriors", "mpe"]
    assert form["network"]["description"].startswith("BIF, XMLBIF")
    with pytest.raises(AssertionError, match="'nonsense' is not one of"):
        server.begin("checked", query="nonsense")
    # The same name again is an update.
    assert server.junctor_here(*words, "--query", "mpe", "--paused").exit_code == 0
    again = server.deployment("checked")
    assert again["parameters"]["query"] == "mpe"
    assert again["paused"]
    assert again["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--cron", "at five"], 3, ["found the schedule 'at five' in UTC: Invalid cron string: \"at five\"\n"]),
        (["--cron", "30 2 30 2 *"], 3, ["found the schedule '30 2 30 2 *' in UTC: it never comes, because no month"]),
        (["--cron", "0 5 31 4,6 *", "--timezone", "Europe/Berlin"], 3, ["in Europe/Berlin: it never comes"]),
        (["--cron", "0 5 * * *", "--timezone", "Berlin"], 3, ["Invalid timezone", "example, America/New_York)\n"]),
        (["--cron", "0 5 * * *", "--timezone", ""], 2, ["--timezone", "it is empty"]),
        (["--name", ""], 2, ["--name", "it is empty"]),
        (["--timezone", "UTC"], 2, ["--timezone", "it belongs to --cron"]),
        (["--part", "1/2"], 2, ["--part", "array job"]),
        (["--memory", "much"], 2, ["'much'"]),
        (["--timeout", "long"], 2, ["--timeout", "'long'"]),
        (["--samples", "1000"], 2, ["--method", "sampling"]),
        (["-o", ""], 2, ["--output", "it is empty"]),
        (["--rejects", "patients.csv"], 3, ["--rejects patients.csv", "name another file"]),
        (["--name", "a/b"], 2, ["--name", "found 'a/b'"]),
        (["--work-pool", "nobodys"], 6, ["'nobodys'", "prefect work-pool create"]),
    ],
)
def test_what_a_run_would_refuse_is_refused_at_once(
    server: PrefectServer, args: list[str], code: int, words: list[str]
) -> None:
    done = server.junctor_here("deploy", ASIA, "patients.csv", "-o", "answers", "--name", "refused", *args)
    assert done.exit_code == code, done.stderr
    assert all(word in done.stderr for word in words)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "output", "condition", "word"),
    [
        (("run", ASIA, "--query", "mpe"), "out", "mean(log_evidence) < 0", "expected mean(log_probability)"),
        (("run", ASIA), "out", "missed > 1%", "rows of this run are never missed"),
        (("viterbi", "model.json", "--posteriors"), "out", "mean(log_probability) < 0", "expected mean(log_"),
        (("learn", ASIA), "fit.bif", "mean(log_evidence) < 0", "expected mean(log_likelihood)"),
        (("learn-chain", "model.json"), "fit.json", "drift(x) > 0.1", "a fit has no drift"),
    ],
)
def test_conditions_on_what_answers_never_have_are_not_deployed(
    command: tuple[str, ...], output: str, condition: str, word: str
) -> None:
    # Neither model nor rows need to be there yet.
    words = (*command[:2], "rows", *command[2:], "-o", output)
    with checking():
        assert junctor_cli(*words, "--fail-if", "invalid > 1%").exit_code == 0
        done = junctor_cli(*words, "--fail-if", condition)
    assert (done.exit_code, word in done.stderr) == (3, True), done.stderr


def test_standard_input_is_not_deployed() -> None:
    for words in ((ASIA, "-"), ("learn", ASIA, "/dev/stdin"), ("viterbi", "model.json", "-")):
        done = junctor_cli("deploy", *words, "-o", "out.bif")
        assert done.exit_code == 2, done.stderr
        assert "found standard input" in done.stderr


@pytest.mark.slow
def test_a_run_has_what_it_can_have_and_keeps_its_last_state(server: PrefectServer, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.csv", 7)
    deployed(server, tmp_path, ASIA, "rows.csv", "-o", "answers", "--name", "formed")
    with server.serve(tmp_path, "formed"):
        # The form on the page has more than `junctor deploy` takes.
        for parameters, words in (({"evidence": "-"}, "standard input"), ({"part": "1/2"}, "array job")):
            run = server.ended(server.begin("formed", **parameters))
            assert (run["state"]["type"], words in run["state"]["message"]) == ("FAILED", True), run["state"]
        last = server.begin("formed")
        server.until(lambda: server.run(last)["state"]["type"] == "COMPLETED", 120)
        # Its process has not ended yet.
    assert server.run(last)["state"]["type"] == "COMPLETED"


def test_fits_and_sequences_are_deployed(
    server: PrefectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fit = ("deploy", "learn", ASIA, "patients.csv", "-o", "fitted.bif")
    options = ("--prior", "dirichlet:counts.csv@5", "--workers", "2", "--retries", "2", "--cron", "0 4 * * *")
    done = server.junctor_here(*fit, *options)
    assert "deployed junctor-learn-network/asia-patients-learn" in done.stdout, done.stderr
    found = server.deployment("asia-patients-learn", "junctor-learn-network")
    assert found["entrypoint"] == "junctor_flows.learning.learn_network"
    assert found["schedules"][0]["schedule"]["cron"] == "0 4 * * *"
    assert found["parameters"] == {
        "network": str(Path(ASIA).absolute()),
        "evidence": str(tmp_path / "patients.csv"),
        "output": str(tmp_path / "fitted.bif"),
        "prior": f"dirichlet:{tmp_path}/counts.csv@5",
        "workers": 2,
        "retries": 2,
    }
    assert found["parameter_openapi_schema"]["properties"]["start"]["enum"] == ["network", "random", "uniform"]
    for wrong, code, words in (
        (("--holdout", "200%"), 2, "a share such as 10%"),
        (("--restarts", "3"), 3, "add --start random"),
        (("--mapping", "s3://key:secret@bucket/map.toml"), 3, "has credentials"),
        (("--prior", "dirichlet:s3://key:secret@bucket/counts.csv"), 3, "has credentials"),
    ):
        refused = server.junctor_here(*fit, *wrong)
        assert refused.exit_code == code, refused.output
        assert words in refused.stderr
    # Names of commands are found anywhere but in other words.
    for words, full in (
        (("viterbi", "model.json", "words.parquet"), "junctor-decode-sequences/model-words-viterbi"),
        (("run", ASIA, "patients.csv"), "junctor-score-batch/asia-patients"),
        (("--paused", "learn.bif", "run"), "junctor-score-batch/learn-run"),
        (("in&out.bif", "<50%>"), "junctor-score-batch/inout-50"),
        (("ingest", ASIA, "patients.csv", "more/*.csv"), "junctor-ingest/asia-patients-ingest"),
        (("run", "set"), "junctor-score-batch/set"),
        (
            ("learn-chain", "model.json", "words.parquet", "--prior", "emission=1"),
            "junctor-learn-chain/model-words-learn-chain",
        ),
    ):
        done = server.junctor_here("deploy", *words, "-o", "out.json")
        assert f"deployed {full}" in done.stdout, done.stderr
    found = server.deployment("asia-patients-ingest", "junctor-ingest")
    assert found["entrypoint"] == "junctor_flows.ingesting.ingest_evidence"
    assert found["parameters"]["evidence"] == [str(tmp_path / "patients.csv"), str(tmp_path / "more/*.csv")]
    assert server.deployment("set")["parameters"] == {
        "network": str(tmp_path / "set"),
        "output": str(tmp_path / "out.json"),
    }
    for words, why in (
        (("ingest", ASIA, "patients.csv", "-"), "found standard input"),
        ((ASIA,), "would have to be a dataset"),
    ):
        refused = server.junctor_here("deploy", *words, "-o", "set")
        assert refused.exit_code == 2
        assert why in " ".join(refused.stderr.replace("│", " ").split())


@pytest.mark.slow
def test_a_refit_every_night_beside_a_run_of_the_same_name(server: PrefectServer, tmp_path: Path) -> None:
    rows, flow = tmp_path / "patients.csv", "junctor-learn-network"
    write_rows(rows, 3)
    deployed(server, tmp_path, ASIA, "patients.csv", "-o", "answers", "--name", "both")
    refit = ("deploy", "learn", ASIA, "patients.csv", "-o", "fitted.bif", "--overwrite", "--retries", "1")
    done = server.junctor(*refit, "--retry-delay", "1s", "--name", "both", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # Of an attempt that was killed, on the rows of the night before.
    (tmp_path / "fitted.bif.checkpoint").write_bytes(b"of other rows")
    with server.serve(tmp_path, "both"):
        first = server.ended(server.begin("both", flow))
        assert first["state"]["type"] == "COMPLETED"
        assert first["state"]["message"].startswith("3 ok; log-likelihood ")
        assert first["name"].startswith("patients.csv on asia.bif, 20")
        fitted = (tmp_path / "fitted.bif").read_bytes()
        rows.write_text(rows.read_text() + "no,no\n")
        again = server.ended(server.begin("both", flow))
        assert again["state"]["message"].startswith("4 ok; ")
        assert (tmp_path / "fitted.bif").read_bytes() != fitted
        assert server.ended(server.begin("both"))["state"]["message"].startswith("4 rows")
        rows.unlink()
        failed = server.ended(server.begin("both", flow))
    assert failed["state"]["type"] == "FAILED"
    assert failed["run_count"] == 2


def test_serve_names_what_there_is(server: PrefectServer) -> None:
    done = server.junctor_here("serve", "unknown")
    assert done.exit_code == 6
    assert "no deployment 'unknown'" in done.stderr


@pytest.mark.slow
def test_a_process_work_pool_and_prefect_yaml(server: PrefectServer, tmp_path: Path) -> None:
    prefect = [str(BIN / "prefect"), "--no-prompt"]
    create = [*prefect, "work-pool", "create", "junctor", "--type", "process"]
    subprocess.run(create, env=server.environment, check=True, capture_output=True, timeout=100)
    write_rows(tmp_path / "patients.csv", 2)
    deployed(server, tmp_path, ASIA, "patients.csv", "-o", "answers", "--name", "pooled", "--work-pool", "junctor")
    # The file as it is shipped, in a folder that knows nothing of the source.
    shutil.copyfile(ROOT / "docs" / "scheduling" / "prefect.yaml", tmp_path / "prefect.yaml")
    deploy = subprocess.run(
        [*prefect, "deploy", "--all"], env=server.environment, cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert deploy.returncode == 0, deploy.stdout + deploy.stderr
    worker = (*prefect, "worker", "start", "--pool", "junctor")
    with server.process_of(*worker, cwd=tmp_path):
        given = {"network": ASIA, "evidence": str(tmp_path / "patients.csv"), "output": str(tmp_path / "yaml")}
        ids = [server.begin("pooled"), server.begin("asia-nightly", **given)]
        for id in ids:
            run = server.ended(id)
            assert run["state"]["message"].startswith("2 rows"), run["state"]
    assert parquet.read_table(tmp_path / "answers" / "posteriors").num_rows == 2


@pytest.fixture
def received() -> Iterator[tuple[str, list[Any]]]:
    """Address of a local web server, and what it was sent."""
    bodies: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}/alert", bodies
        http.shutdown()


@pytest.mark.slow
def test_the_webhook_of_the_page_is_called_when_a_run_fails(
    server: PrefectServer, tmp_path: Path, received: tuple[str, list[Any]]
) -> None:
    url, bodies = received
    text = (ROOT / "docs" / "scheduling.md").read_text()
    code = text.partition("<!-- webhook -->")[2].partition("```python\n")[2].partition("```")[0]
    code = code.replace("https://alerts.example.org/junctor", url)
    subprocess.run([sys.executable, "-c", code], env=server.environment, check=True, timeout=100, cwd=tmp_path)
    deployed(server, tmp_path, ASIA, "nothing.csv", "-o", "answers", "--name", "fails")
    with server.serve(tmp_path, "fails"):
        assert server.ended(server.begin("fails"))["state"]["type"] == "FAILED"
        server.until(lambda: bodies, 60)
    assert "nothing.csv" in bodies[0]["message"]
    assert bodies[0]["run"].startswith("nothing.csv on asia.bif")


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`junctor` of a wheel, in an environment whose other packages are those of the tests."""
    if UV is None:
        pytest.skip("uv builds the wheel, and is not here")
    folder = tmp_path_factory.mktemp("installed")
    build = [UV, "build", "--wheel", "-q", "-o", str(folder), str(ROOT)]
    subprocess.run(build, check=True, timeout=200)
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, str(folder / "venv")], check=True, timeout=100)
    python = folder / "venv" / "bin" / "python"
    install = [UV, "pip", "install", "-q", "--no-deps", "--python", str(python), *map(str, folder.glob("*.whl"))]
    subprocess.run(install, check=True, timeout=100)
    # Their folder, without what its own .pth files add: the source of Junctor.
    here = next(path for path in sys.path if path.endswith("site-packages"))
    there = next((folder / "venv" / "lib").glob("python*/site-packages"))
    (there / "others.pth").write_text(here + "\n")
    where = subprocess.run(
        [str(python), "-c", "import junctor_flows; print(junctor_flows.__file__)"],
        check=True, capture_output=True, text=True, cwd=folder, timeout=60,
    )  # fmt: skip
    assert where.stdout.startswith(str(folder))
    return folder / "venv" / "bin" / "junctor"


@pytest.mark.slow
def test_schedules_of_an_installed_wheel(server: PrefectServer, tmp_path: Path, installed: Path) -> None:
    nights(server, tmp_path, 3, installed)


@pytest.mark.slow
def test_schedules_on_postgresql(tmp_path: Path) -> None:
    if POSTGRES is None:
        pytest.skip("no PostgreSQL: `postgres` is not on the path")
    # Beside the program itself: Debian has no link to the others.
    programs = Path(POSTGRES).resolve().parent
    # PostgreSQL refuses to run as root.
    user = "nobody" if os.getuid() == 0 else None
    data = Path("/tmp") / f"junctor-postgres-{os.getpid()}"
    data.mkdir()
    if user is not None:
        shutil.chown(data, user)
    server = PrefectServer(tmp_path / "prefect")
    port = server.port + 1 if server.port < 65_000 else server.port - 1
    try:
        initdb = [programs / "initdb", "-D", str(data / "db"), "-U", "junctor", "--auth=trust"]
        subprocess.run(initdb, check=True, user=user, capture_output=True, timeout=100, cwd=data)
        start = [programs / "postgres", "-D", str(data / "db"), "-p", str(port), "-k", str(data), "-h", "127.0.0.1"]
        with subprocess.Popen(start, user=user, cwd=data, stderr=subprocess.DEVNULL) as postgres:
            url = f"postgresql+asyncpg://junctor@127.0.0.1:{port}/postgres"
            server.environment["PREFECT_API_DATABASE_CONNECTION_URL"] = url
            try:
                server.start()
                nights(server, tmp_path, 3)
                server.kill()
            finally:
                postgres.terminate()
    finally:
        shutil.rmtree(data, ignore_errors=True)
