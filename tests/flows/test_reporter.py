"""Reports to a server of the test's own, which fails as it is told."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import junctor_flows.reporter as module
import pytest
from junctor.model.errors import EvidenceError
from junctor.runs.watch import watched
from junctor.runs.workload import Job
from junctor.runtime.progress import Silence
from junctor_flows.reporter import Reporter, slug

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(200)]
JOB = Job("models/asia.bif", "s3://bucket/patients.csv", "out")


class Server(ThreadingHTTPServer):
    """Answers every request with an id, unless it is to fail."""

    def __init__(self) -> None:
        self.failing = 0
        self.hangs = threading.Event()
        self.status = 503
        self.asked: list[tuple[str, str, Any]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    def paths(self) -> list[str]:
        return [path for _, path, _ in self.asked if path != "/api/logs/"]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.hangs.is_set():
            time.sleep(3.0)
        if self.server.failing:
            self.server.failing -= 1
            self.send_response(self.server.status)
            # Prefect's client sleeps two seconds after each, unless it is told otherwise.
            self.send_header("Retry-After", "0.05")
            self.end_headers()
            return
        self.server.asked.append((self.command, self.path, body))
        answer = json.dumps({"id": f"id-{len(self.server.asked)}"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_PATCH = do_POST

    def do_GET(self) -> None:
        # Tokens against forged requests: this server asks for none.
        answer = b'{"exception_message": "CSRF protection is disabled."}'
        self.send_response(422)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    monkeypatch.setattr(module, "RETRY_SECONDS", 0.05)
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{server.server_port}/api"}):
            yield server
        server.shutdown()


def tell(reporter: Reporter) -> None:
    with watched(JOB, Silence(), [reporter]) as watch:
        watch.stage("reading")
        watch.stage("propagating", 10)
        watch.advance(10)


WANTED = [
    *("/api/flows/", "/api/flow_runs/", "/api/flow_runs/id-2/set_state"),
    *("/api/task_runs/", "/api/task_runs/id-4/set_state"),
    *("/api/task_runs/id-4/set_state", "/api/task_runs/", "/api/task_runs/id-7/set_state", "/api/artifacts/"),
    *("/api/artifacts/id-9", "/api/task_runs/id-7/set_state", "/api/flow_runs/id-2/set_state"),
]


def test_requests_come_in_order(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    tell(Reporter("flow", 30.0))
    assert server.paths() == WANTED
    records = {path: body for _, path, body in server.asked}
    assert records["/api/flow_runs/"]["name"] == "patients.csv on asia.bif"
    assert records["/api/artifacts/"]["key"] == "patients-csv-on-asia-bif-progress"
    assert records["/api/artifacts/id-9"]["data"] == 100.0
    assert records["/api/flow_runs/id-2/set_state"] == {"state": {"type": "COMPLETED", "message": ""}, "force": True}
    assert [line["message"] for line in records["/api/logs/"]][-1] == ""
    assert not caplog.records


def test_parts_have_task_runs_as_far_as_anybody_looks(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PARTS", 2)
    reporter = Reporter("flow", 30.0)
    reporter.begin(JOB)
    for name, seconds in (("a", None), ("b", None), ("c", None), ("b", 0.5), ("c", 0.5)):
        reporter.part(name, seconds)
    reporter.end(None, RuntimeError("the disk went"))
    tasks = {path: body for _, path, body in server.asked if path.startswith("/api/task_runs/")}
    begun = [body["name"] for _, path, body in server.asked if path == "/api/task_runs/"]
    assert begun == ["a", "b"]
    ended = [body["state"] for path, body in tasks.items() if path.endswith("set_state")]
    assert ended == [
        {"type": "FAILED", "message": "RuntimeError: the disk went"},
        {"type": "COMPLETED", "message": "0.5 s of work"},
    ]


def test_states_of_a_deployed_run_are_left_to_prefect(server: Server) -> None:
    tell(Reporter("", 30.0, flow_run="given", key="Nightly run"))
    assert not any(path.startswith(("/api/flows", "/api/flow_runs")) for path in server.paths())
    artifact = next(body for _, path, body in server.asked if path == "/api/artifacts/")
    assert artifact["key"] == "nightly-run-progress"
    assert artifact["flow_run_id"] == "given"


@pytest.mark.parametrize("failing", [2, 9])
def test_a_server_that_fails_for_a_while_hears_all(
    server: Server, caplog: pytest.LogCaptureFixture, failing: int
) -> None:
    server.failing = failing
    tell(Reporter("flow", 30.0))
    # What is asked for again may be asked for twice, where more than one request belongs together.
    assert [path for path in server.paths() if path.startswith("/api/flow_runs/id")][-1].endswith("set_state")
    assert server.paths()[-len(WANTED) + 1 :][-6:] == WANTED[-6:]
    said = [record.getMessage() for record in caplog.records]
    assert sum("does not answer" in line for line in said) == 1
    assert sum("answers again" in line for line in said) == 1


def test_one_request_that_fails_is_not_worth_a_line(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.failing = 1
    tell(Reporter("flow", 30.0))
    assert server.paths() == WANTED
    assert not caplog.records


def test_what_is_refused_is_passed_over(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.status, server.failing = 404, 1
    tell(Reporter("flow", 5.0))
    # Without its flow run nothing else makes sense, and nothing waits.
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_server_that_hangs_delays_the_end_only(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module.load_prefect()
    monkeypatch.setattr(module, "REQUEST_SECONDS", 0.3)
    server.hangs.set()
    reporter = Reporter("flow", 1.0)
    started = time.monotonic()
    reporter.begin(JOB)
    for number in range(1000):
        reporter.stage(f"stage {number}", 10)
        reporter.advance(10)
    assert time.monotonic() - started < 2.0
    reporter.end(None, EvidenceError("wrong"))
    assert time.monotonic() - started < 10.0
    assert caplog.records[-1].getMessage().startswith("Prefect's server was not told")


def test_what_prefect_itself_refuses_ends_no_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise ValueError("profile is broken")

    monkeypatch.setattr(module, "load_prefect", refuse)
    reporter = Reporter("flow", 5.0)
    reporter.begin(JOB)
    reporter._thread.join(10)
    # Told after the thread has ended.
    reporter.stage("propagating", 10)
    reporter.end(None, None)
    assert ["profile is broken" in record.getMessage() for record in caplog.records] == [True]


def test_keys_are_what_prefect_takes() -> None:
    names = ("Nächtlich: asia.bif", "a_b", "---", "", "x" * 300)
    assert [slug(name) for name in names] == ["n-chtlich-asia-bif", "a-b", "junctor", "junctor", "x" * 200]
