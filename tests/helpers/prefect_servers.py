"""Prefect servers as processes of their own, and what they say of runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from typer.testing import Result

from helpers.command_line import junctor_cli

BIN = Path(sys.executable).parent
START_SECONDS = 120
# Of Prefect's services, which look for work every minute or so.
_QUICK = {
    "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "1",
    "PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "1",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "1",
    "PREFECT_RUNNER_POLL_FREQUENCY": "1",
    "PREFECT_WORKER_QUERY_SECONDS": "1",
}


class PrefectServer:
    """`prefect server start` on a port of its own, with its files in a folder.

    database: a file to begin with; a new database takes half of the start.
    """

    def __init__(self, home: Path, database: Path | None = None, url: str | None = None) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        if database is not None:
            shutil.copyfile(database, home / "prefect.db")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.api = f"http://127.0.0.1:{self.port}/api"
        given = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        self.environment = {
            **given,
            **_QUICK,
            "PREFECT_HOME": str(home),
            "PREFECT_API_URL": self.api,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            # Nobody needs forms for credentials, which take seconds to register.
            "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
            "DO_NOT_TRACK": "1",
            **({} if url is None else {"PREFECT_API_DATABASE_CONNECTION_URL": url}),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self.home / "server.log", "ab") as log:
            command = [str(BIN / "prefect"), "server", "start", "--port", str(self.port)]
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )
        self.until(self._answers, START_SECONDS)

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, number)
        self.process.wait(30)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.home / "server.log").read_text()[-2000:]
        try:
            self.ask("/health", method="GET")
        except (URLError, OSError):
            return False
        return True

    def ask(self, path: str, record: Any = None, method: str = "POST") -> Any:
        data = None if method == "GET" else json.dumps(record or {}).encode()
        request = Request(self.api + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urlopen(request, timeout=20) as response:
                text = response.read()
        except HTTPError as error:
            if error.code == 503:
                # SQLite is busy with something else.
                time.sleep(1.0)
                return self.ask(path, record, method)
            raise AssertionError(f"{path}: {error.read().decode()}") from error
        return json.loads(text) if text else None

    @staticmethod
    def until(wanted: Callable[[], Any], seconds: float = 60.0) -> Any:
        """Return what is wanted as soon as it is there."""
        end = time.monotonic() + seconds
        while not (found := wanted()):
            assert time.monotonic() < end, "waited too long"
            time.sleep(0.2)
        return found

    def junctor(self, *args: str, cwd: Path, program: Path = BIN / "junctor") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(program), *args], env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=250
        )

    def junctor_here(self, *args: str) -> Result:
        """The same within this process, where Prefect is imported once."""
        from prefect.settings import PREFECT_API_URL, temporary_settings

        with patch.dict(os.environ, PREFECT_API_URL=self.api), temporary_settings({PREFECT_API_URL: self.api}):
            return junctor_cli(*args)

    @contextmanager
    def process_of(self, *command: str, cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
        """A process beside the test, with its lines in `process.log`; ended with SIGTERM."""
        with open(cwd / "process.log", "ab") as log:
            process = subprocess.Popen(
                command, env=self.environment, cwd=cwd, stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def serve(self, cwd: Path, *names: str, program: Path = BIN / "junctor") -> Any:
        return self.process_of(str(program), "serve", *names, cwd=cwd)

    def deployment(self, name: str, flow: str = "junctor-score-batch") -> Any:
        return self.ask(f"/deployments/name/{flow}/{name}", method="GET")

    def every(self, name: str, seconds: float) -> None:
        """Replace the schedule of a deployment by one in seconds, which `--cron` has not."""
        deployment = self.deployment(name)
        for each in deployment["schedules"]:
            self.ask(f"/deployments/{deployment['id']}/schedules/{each['id']}", method="DELETE")
        schedule = {"schedule": {"interval": seconds}, "active": True}
        self.ask(f"/deployments/{deployment['id']}/schedules", [schedule])

    def delete(self, name: str) -> None:
        """Remove a deployment, whose schedule would keep the server busy."""
        self.ask(f"/deployments/{self.deployment(name)['id']}", method="DELETE")

    def begin(self, name: str, flow: str = "junctor-score-batch", **parameters: Any) -> str:
        """Ask for a run of a deployment; returns its id."""
        path = f"/deployments/{self.deployment(name, flow)['id']}/create_flow_run"
        made = self.ask(path, {"state": {"type": "SCHEDULED"}, "parameters": parameters})
        return str(made["id"])

    def begin_at(self, name: str, at: datetime) -> str:
        """Ask for a run of a deployment at a time; returns its id."""
        state = {"type": "SCHEDULED", "state_details": {"scheduled_time": at.isoformat()}}
        return str(self.ask(f"/deployments/{self.deployment(name)['id']}/create_flow_run", {"state": state})["id"])

    def runs(self, name: str | None = None, *kinds: str) -> list[Any]:
        """Return the flow runs of a deployment, or all, in states of some kinds, or all; the oldest first."""
        asked: dict[str, Any] = {"sort": "EXPECTED_START_TIME_ASC", "limit": 200}
        if name is not None:
            asked["deployments"] = {"name": {"any_": [name]}}
        found = self.ask("/flow_runs/filter", asked)
        return [run for run in found if not kinds or run["state"]["type"] in kinds]

    def run(self, id: str) -> Any:
        return self.ask(f"/flow_runs/{id}", method="GET")

    def ended(self, id: str, seconds: float = 90.0) -> Any:
        """Return a flow run when it has ended."""
        final = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")

        def found() -> Any:
            run = self.run(id)
            return run if run["state"]["type"] in final else None

        return self.until(found, seconds)

    def tasks(self, id: str) -> list[Any]:
        found = self.ask("/task_runs/filter", {"flow_runs": {"id": {"any_": [id]}}, "sort": "EXPECTED_START_TIME_ASC"})
        return list(found)

    def lines(self, id: str) -> list[str]:
        found = self.ask("/logs/filter", {"logs": {"flow_run_id": {"any_": [id]}}, "sort": "TIMESTAMP_ASC"})
        return [line["message"] for line in found]

    def artifacts(self, id: str) -> dict[str, Any]:
        found = self.ask("/artifacts/filter", {"flow_runs": {"id": {"any_": [id]}}})
        return {artifact["key"]: artifact["data"] for artifact in found}
