"""A run on the page of a Prefect server: its stages as task runs, its progress and summary as artifacts, its log.

Main class: Reporter. The command line makes one for a flow run of its own, a deployed flow for that of Prefect.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from junctor.cli.display import show_statuses
from junctor.evidence.files import DATASET_EVIDENCE
from junctor.model.errors import JunctorError, counted
from junctor.runs.increments import lines_of
from junctor.runs.manifest import Manifest
from junctor.runs.workload import Workload
from junctor.runtime.progress import Count, Silence
from junctor.runtime.remote import AnyPath, RemotePath

# Nothing here makes a run wait or fail: whatever is told goes to a queue, which a thread sends on. While the server
# does not answer the queue stays, and is sent when it does.

# Seconds that the end of a run waits for a server that is away: of a command, of a deployed flow (whose own last words
# would be lost otherwise), and of what was interrupted.
COMMAND_PATIENCE = 10.0
DEPLOYED_PATIENCE = 900.0
INTERRUPTED_PATIENCE = 3.0
# Seconds for a request, and between two attempts at one.
REQUEST_SECONDS = 10.0
RETRY_SECONDS = 1.0
# Lines of the log that wait for a server, and lines in one request.
MOST_LINES = 10_000
LINES_AT_ONCE = 200
# Inputs of an increment that a summary names.
MOST_INPUTS = 100
# Parts that have task runs of their own: of more of them nobody looks at each, and the server takes its time for each.
MOST_PARTS = 500

logger = logging.getLogger("junctor")

Send = Callable[[str, str, Any], Any]


class Reporter(Silence):
    """Tells a Prefect server of a run, as far as it answers.

    flow_name: of the flow.
    patience: seconds that the end waits for a server that is away.
    flow_run: id of the flow run where Prefect made it, whose states are left to Prefect; None for one of its own.
    key: first part of the keys of artifacts; None for one by model and inputs.
    ready: waits for a server that starts, and raises where it does not; None for one that is there.
    message: of the last state, at the end.
    """

    message = ""

    def __init__(
        self,
        flow_name: str,
        patience: float = COMMAND_PATIENCE,
        flow_run: str | None = None,
        key: str | None = None,
        ready: Callable[[], None] | None = None,
    ) -> None:
        self._ready, self._is_ready = ready, threading.Event()
        self._flow_name, self._patience = flow_name, patience
        self._owns, self._key = flow_run is None, key or ""
        # Ids that the server gave; written and read by the thread alone.
        self._ids: dict[str, str] = {} if flow_run is None else {"flow run": flow_run}
        self._queue: deque[Callable[[Send], None]] = deque()
        self._lines: deque[dict[str, Any]] = deque(maxlen=MOST_LINES)
        self._handler = _Lines(self._log)
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._is_away = self._was_away = False
        self._label = ""
        self._stage = self._artifact = ""
        self._stages = 0
        self._rows = self._done = 0
        self._within: Count = int
        self._shown = 100.0
        self._title = self._folder = ""
        self._page: str | None = None
        # Parts with a task run, and those of them that are not finished, with the ids of these.
        self._parts = 0
        self._open: dict[str, str] = {}
        self._gave_up = self._has_ended = False
        # Of a flow run that is tried again, each attempt has task runs of its own.
        self._attempt = uuid4().hex[:8]
        # A copy: settings of Prefect may be those of a context.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._work,), name="junctor-reporter", daemon=True
        )

    def begin(self, job: Workload) -> None:
        """Start the thread, and the flow run."""
        self._label, self._title = job.label, job.title
        self._key = slug(self._key or self._label)
        self._folder = str(job.directory.path)
        if job.options["report"] is not False:
            self._page = _link(job.directory.report)
        logger.addHandler(self._handler)
        if self._owns:
            run = {"name": self._label, "parameters": job.facts, "idempotency_key": str(uuid4())}
            self._tell(lambda send: self._start(send, run))
        self._thread.start()

    def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
        """Begin a task run, and an artifact of its progress where its rows are known."""
        self._end_stage("COMPLETED")
        self._stages += 1
        # Stages of one name are tasks of one name.
        stage, number = f"stage {self._stages}", self._stages
        self._stage = stage
        of = "" if rows is None else f" {counted(rows, 'row')}"
        self._log(logging.INFO, f"{name}{of}: {self._label}")
        begun = {
            "task_key": f"junctor-{slug(name)}",
            "dynamic_key": f"{self._attempt}-{number}",
            "name": f"{name}: {self._label}",
        }
        self._tell(lambda send: self._begin_stage(send, stage, begun))
        if rows is not None:
            self._artifact, self._rows, self._done, self._shown = f"artifact {number}", rows, done, -1.0
            self._within = int
            artifact = {"key": f"{self._key}-progress", "type": "progress", "description": f"{name}: {self._label}"}
            self._tell(lambda send: self._begin_artifact(send, stage, {**artifact, "data": 0.0}))

    def advance(self, rows: int) -> None:
        """Count rows."""
        self._done += rows

    def within(self, rows: Count) -> None:
        """Count rows of unfinished parts as well."""
        self._within = rows

    def part(self, name: str, seconds: float | None = None) -> None:
        """Begin a task run for a part, or end that of one that is finished."""
        if seconds is None and name in self._open:
            self._end_part(name, "FAILED", "tried again alone")
        if name not in self._open:
            if self._parts == MOST_PARTS:
                return
            self._parts += 1
            self._open[name] = task = f"part {self._parts}"
            begun = {"task_key": "junctor-part", "dynamic_key": f"{self._attempt}-{task}", "name": name}
            self._tell(lambda send: self._begin_stage(send, task, begun))
        if seconds is not None:
            # Of all threads and processes together, and of one that others made while this one failed not known.
            self._end_part(name, "COMPLETED", f"{seconds:.3g} s of work" if seconds else "")

    def _end_part(self, name: str, kind: str, message: str) -> None:
        task, state = self._open.pop(name), {"type": kind, "message": message}
        self._tell(lambda send: self._set_state(send, "task", self._ids[task], state))

    def end(self, manifest: Manifest | None, error: BaseException | None) -> None:
        """Report the end, and wait for the thread to have sent all, as long as there is patience."""
        logger.removeHandler(self._handler)
        kind, message = _outcome(manifest, error)
        self.message = message
        self._log(logging.INFO if error is None else logging.ERROR, message)
        self._end_stage(kind, message)
        for name in list(self._open):
            self._end_part(name, kind, message)
        if manifest is not None:
            # Browsers open no files of this machine for a server's page: whoever reads it sees where it is.
            page = f"\nPage of the run: [{unquote(self._page)}]({self._page})\n" if self._page else ""
            text = summary(self._title, f"{self._folder}/{manifest.spec.folder}", manifest) + page
            self._add_artifact("summary", "markdown", "What the run did", text)
            rows = json.dumps([{"status": name, "rows": count} for name, count in manifest.statuses.items()])
            self._add_artifact("statuses", "table", "Rows of each status", rows)
        if self._owns:
            state = {"type": kind, "message": message}
            self._tell(lambda send: self._set_state(send, "flow", self._ids["flow run"], state))
        is_interrupted = error is not None and not isinstance(error, Exception)
        try:
            self._wait(is_interrupted)
        finally:
            with self._changed:
                self._has_ended = True
        # Of a server that did not start in time nothing has an end.
        if self._queue and self._is_ready.is_set():
            logger.warning("Prefect's server was not told of the end of this run")

    def _add_artifact(self, name: str, kind: str, description: str, data: str) -> None:
        artifact = {"key": f"{self._key}-{name}", "type": kind, "description": description, "data": data}
        self._tell(lambda send: self._send_artifact(send, artifact))

    def _wait(self, is_interrupted: bool) -> None:
        """Wait for the thread to have sent all, as long as there is patience."""
        if not is_interrupted:
            # A server that starts is not away.
            self._is_ready.wait()
        patience = INTERRUPTED_PATIENCE if is_interrupted else self._patience
        if not self._is_ready.is_set():
            patience = 0.0
        with self._changed:
            self._deadline = time.monotonic() + patience
            self._changed.notify()
        # A request may be under way when patience ends.
        self._thread.join(patience if is_interrupted else patience + REQUEST_SECONDS)

    def _tell(self, call: Callable[[Send], None]) -> None:
        with self._changed:
            if not self._gave_up:
                self._queue.append(call)
                self._changed.notify()

    def _log(self, level: int, message: str) -> None:
        now = datetime.now(UTC).isoformat()
        self._lines.append({"name": "junctor", "level": level, "message": message, "timestamp": now})

    def _end_stage(self, kind: str, message: str = "") -> None:
        stage, artifact = self._stage, self._artifact
        if artifact:
            done = self._percent()
            self._tell(lambda send: self._update(send, artifact, done))
        if stage:
            state = {"type": kind, "message": message}
            self._tell(lambda send: self._set_state(send, "task", self._ids[stage], state))
        self._stage = self._artifact = ""

    def _percent(self) -> float:
        # Rows of a part that is answered count as rows of it no more before they count as those of a finished one.
        done = min(self._rows, self._done + self._within())
        return max(self._shown, 100.0 * done / self._rows) if self._rows else 100.0

    # What follows runs in the thread.

    def _work(self) -> None:
        try:
            try:
                load_prefect()
                if self._ready is not None:
                    self._ready()
            finally:
                self._is_ready.set()
            from prefect.client.orchestration import get_client
            from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

            # Tried again here, so that what happens is known and nobody waits for minutes.
            with (
                temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
                get_client(sync_client=True, httpx_settings={"timeout": REQUEST_SECONDS}) as client,
            ):

                def send(method: Any, path: Any, record: Any) -> Any:
                    response = client.request(method, path, json=record)
                    return response.json() if response.content else None

                while self._take(send):
                    pass
        except Exception as error:
            with self._changed:
                # No server is worth a run: one that is misconfigured neither. What comes after the end is told there.
                if not self._has_ended:
                    logger.warning("Prefect cannot be told of this run (%s): it goes on without", error)
                self._gave_up = True
                self._queue.clear()

    def _take(self, send: Send) -> bool:
        """Send what comes next; returns False at the end."""
        with self._changed:
            if not self._queue and self._deadline is None:
                self._changed.wait(1.0)
            call = self._queue[0] if self._queue else None
        if call is not None:
            if not self._persist(lambda: call(send)):
                return False
            self._queue.popleft()
            return True
        is_known = "flow run" in self._ids
        if is_known and not self._persist(lambda: self._send_news(send)):
            return False
        # What was told in the meantime is next.
        return self._deadline is None or bool(self._queue) or (is_known and bool(self._lines))

    def _persist(self, call: Callable[[], None]) -> bool:
        """Make a request until the server has answered it; returns False when patience is at its end."""
        failures = 0
        while True:
            try:
                call()
            except Exception as error:
                if not _is_away(error):
                    # A server that was given another database does not know this run: nothing to insist on.
                    logger.debug("Prefect's server refused a request: %s", error)
                    return True
                failures += 1
                # Connections that were kept open too long fail once.
                if failures > 1:
                    self._say_away(error)
                if self._deadline is not None and time.monotonic() > self._deadline:
                    return False
                time.sleep(RETRY_SECONDS if failures > 1 else 0.0)
            else:
                self._say_back()
                return True

    def _say_away(self, error: Exception) -> None:
        if not self._was_away:
            logger.warning("Prefect's server does not answer (%s): the run goes on without it", error)
        self._is_away = self._was_away = True

    def _say_back(self) -> None:
        if self._is_away:
            self._is_away = False
            logger.warning("Prefect's server answers again: the run is reported there")

    def _start(self, send: Send, run: dict[str, Any]) -> None:
        flow = send("POST", "/flows/", {"name": self._flow_name})
        self._ids["flow run"] = send("POST", "/flow_runs/", {"flow_id": flow["id"], **run})["id"]
        self._set_state(send, "flow", self._ids["flow run"], {"type": "RUNNING"})

    def _begin_stage(self, send: Send, stage: str, record: dict[str, Any]) -> None:
        # The server finds a task run again by its keys: a request that is repeated makes no second one.
        task = send("POST", "/task_runs/", {**record, "flow_run_id": self._ids["flow run"]})
        self._ids[stage] = task["id"]
        self._set_state(send, "task", task["id"], {"type": "RUNNING"})

    def _begin_artifact(self, send: Send, stage: str, record: dict[str, Any]) -> None:
        made = self._send_artifact(send, {**record, "task_run_id": self._ids[stage]})
        self._ids[f"artifact {stage.rpartition(' ')[2]}"] = made["id"]

    def _send_artifact(self, send: Send, record: dict[str, Any]) -> Any:
        return send("POST", "/artifacts/", {**record, "flow_run_id": self._ids["flow run"]})

    def _update(self, send: Send, artifact: str, percent: float) -> None:
        send("PATCH", f"/artifacts/{self._ids[artifact]}", {"data": percent})

    def _set_state(self, send: Send, kind: str, id: str, state: dict[str, Any]) -> None:
        # Forced: orchestration is for runs that ask before they go on.
        send("POST", f"/{kind}_runs/{id}/set_state", {"state": state, "force": True})

    def _send_news(self, send: Send) -> None:
        """Send the log, and the progress if it moved: at most once a second."""
        lines = list(self._lines)[:LINES_AT_ONCE]
        if lines:
            send("POST", "/logs/", [{**line, "flow_run_id": self._ids["flow run"]} for line in lines])
            for _ in lines:
                self._lines.popleft()
        artifact, percent = self._artifact, self._percent()
        if artifact in self._ids and percent != self._shown:
            self._update(send, artifact, percent)
            self._shown = percent


class _Lines(logging.Handler):
    """Hands the lines of Junctor's log on."""

    def __init__(self, log: Callable[[int, str], None]) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Hand on a line."""
        self._log(record.levelno, record.getMessage())


def _link(page: AnyPath) -> str:
    return page.url if isinstance(page, RemotePath) else page.absolute().as_uri()


def load_prefect() -> None:
    """Import what reports need of Prefect, which takes a second or more."""
    import prefect.client.orchestration  # noqa: F401


def _is_away(error: Exception) -> bool:
    """Return True if a request failed because the server does not answer, or cannot at the moment."""
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= 500 or error.response.status_code in (408, 429)
    return isinstance(error, httpx.TransportError)


def _outcome(manifest: Manifest | None, error: BaseException | None) -> tuple[str, str]:
    """Return type and message of the last state."""
    if error is None:
        return "COMPLETED", "" if manifest is None else statuses(manifest)
    if isinstance(error, JunctorError):
        return "FAILED", str(error)
    if isinstance(error, Exception):
        return "FAILED", f"{type(error).__name__}: {error}"
    return "CANCELLED", "interrupted: run it again to go on"


def statuses(manifest: Manifest) -> str:
    """Return a line on the rows of a run."""
    return f"{_rows(manifest)}: {show_statuses(manifest.statuses)}"


def _rows(manifest: Manifest) -> str:
    """Return the rows that a run answered, and of evidence that grows those of all its runs."""
    if not manifest.increments:
        return f"{counted(manifest.rows, 'row')} in {manifest.seconds:.1f} s"
    rows = "nothing is new" if manifest.increment is None else counted(manifest.increments[-1].rows, "row")
    return f"{rows} in {manifest.seconds:.1f} s; {counted(manifest.rows, 'row')} in all"


def slug(text: str) -> str:
    """Return a text as a key of Prefect's: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:200] or "junctor"


def summary(inputs: str, output: str, manifest: Manifest) -> str:
    """Return the summary of a run, in Markdown.

    inputs: title of the job.
    output: folder of the answers.
    manifest: of the run.
    """
    title, spec = _rows(manifest), manifest.spec
    rows = "\n".join(f"| {name} | {count:,} |" for name, count in manifest.statuses.items())
    answers = "encoded" if spec.folder == DATASET_EVIDENCE else f"{spec.folder} in {spec.precision} precision"
    return (
        f"# {title[0].upper()}{title[1:]}\n\n"
        f"{inputs}, {answers}\n\n"
        f"| status | rows |\n|---|---:|\n{rows}\n\n"
        f"{counted(len(manifest.parts), 'part')} ({manifest.reused_parts} were there already) in "
        f"`{output}`\n" + _news(manifest)
    )


def _news(manifest: Manifest) -> str:
    """Return what is new of evidence that grows."""
    if not manifest.increments:
        return ""
    if manifest.increment is None:
        return "\nNothing is new.\n"
    last = manifest.increments[-1]
    lines = lines_of(last, manifest.inputs)
    more = [f"and {len(lines) - MOST_INPUTS:,} more"] if len(lines) > MOST_INPUTS else []
    listed = "\n".join(f"- {line}" for line in [*lines[:MOST_INPUTS], *more])
    return f"\nIncrement {last.number}: {counted(last.rows, 'row')}\n\n{listed}\n"
