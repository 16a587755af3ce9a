"""The user's Prefect server, or an embedded one where there is none; Prefect, which is slow, is not imported."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from junctor.model.errors import RunError
from junctor.planning.budget import format_bytes
from junctor.runtime.files import io_errors_for, written_atomically
from junctor.runtime.installed import require_extra
from junctor.runtime.machine import expanded, user_folder
from junctor.runtime.remote import AnyPath, RemotePath

# What the embedded server's database may come to. Without it the server would not start, time and again.
LEAST_SPACE = 64 << 20
# Seconds that it gets to start, which is more than a slow disk and a new database take, and to end.
START_SECONDS = 180
STOP_SECONDS = 5

# A server that lives for one run needs no forms for credentials, which take half a second to register.
_SETTINGS = {"PREFECT_API_BLOCKS_REGISTER_ON_START": "false"}


def is_configured() -> bool:
    """Return True if PREFECT_API_URL is set, in the environment or in the active profile."""
    if os.environ.get("PREFECT_API_URL"):
        return True
    home = expanded(os.environ.get("PREFECT_HOME") or "~/.prefect")
    path = expanded(os.environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml")
    # Read as Prefect would, because importing it takes seconds.
    try:
        profiles = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    active = os.environ.get("PREFECT_PROFILE") or profiles.get("active")
    profile = profiles.get("profiles", {}).get(active, {})
    return isinstance(profile, dict) and bool(profile.get("PREFECT_API_URL"))


def configured_server() -> None:
    """Raise RunError unless a Prefect server is configured, InputError without Prefect."""
    require_extra("flow", "a deployment")
    if not is_configured():
        raise RunError(
            "no Prefect server is configured: start one with `prefect server start`, and name it with "
            "PREFECT_API_URL=http://127.0.0.1:4200/api, or with `prefect config set`"
        )


def embed(directory: AnyPath) -> Path:
    """Let the embedded server keep its files below `directory`, and leave the talking to us: errors are raised anyway.

    Below the user's cache directory where `directory` is in a store. To be called before Prefect is imported; sets
    environment variables that the user has not set. Returns the folder; raises RunError where it cannot be made, or has
    no space for a database.
    """
    if isinstance(directory, RemotePath):
        # SQLite needs a disk: one folder for each output, which a later run of it finds again.
        directory = user_folder() / "prefect" / hashlib.sha256(str(directory).encode()).hexdigest()[:16]
    home = expanded(os.environ.get("PREFECT_HOME") or directory / ".prefect")
    # Prefect makes the folder, but not the one that it lies in.
    with io_errors_for(home):
        home.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(home).free
    if free < LEAST_SPACE:
        raise RunError(
            f"{home}: {format_bytes(free)} are free, but Prefect's server needs {format_bytes(LEAST_SPACE)} for its "
            "database: free some, or use --no-prefect"
        )
    os.environ["PREFECT_HOME"] = str(home)
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    return home


class EmbeddedServer:
    """A Prefect server with its files in `home`, for this process and as long as it lives.

    It starts in a process of its own while Prefect is imported here, which finds its address in PREFECT_API_URL;
    `wait` for it before use.
    """

    def __init__(self, home: Path) -> None:
        self._log = home / "server.log"
        self._database = home / "prefect.db"
        self._is_new = not self._database.exists()
        self._has_answered = False
        self._seed()
        with (
            io_errors_for(self._log),
            open(self._log, "wb") as log,
            socket.create_server(("127.0.0.1", 0)) as listening,
        ):
            self._port = listening.getsockname()[1]
            # A session of its own: a terminal interrupts all processes of a command, but this one has to hear how the
            # flow ended.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "junctor_flows.server", str(listening.fileno())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[listening.fileno()],
                start_new_session=True,
                env={**_SETTINGS, **os.environ},
            )
        os.environ["PREFECT_API_URL"] = f"http://127.0.0.1:{self._port}/api"
        # Before Prefect is imported, so that what Prefect does at the end still finds its server.
        atexit.register(self.stop)

    def wait(self) -> None:
        """Wait until it answers; raises RunError where it ended instead."""
        # Imported where a server is embedded, as SQLite is: each run asks whether one is configured.
        from http.client import HTTPConnection, HTTPException

        # The socket listens already: the request waits in its queue until the server is there, without polling.
        connection = HTTPConnection("127.0.0.1", self._port, timeout=START_SECONDS)
        try:
            connection.request("GET", "/api/health")
            connection.getresponse().read()
        except (OSError, HTTPException) as error:
            os.environ.pop("PREFECT_API_URL", None)
            said = self._log.read_text(errors="replace").split("\n") if self._log.exists() else []
            # The last line that says anything is the error of a traceback.
            why = next((line for line in reversed(said) if line.strip()), str(error))
            raise RunError(f"Prefect's server did not start ({why}): see {self._log}, or use --no-prefect") from error
        finally:
            connection.close()
        self._has_answered = True
        if self._is_new:
            self._keep()

    def stop(self) -> int:
        """End it and return its exit status; what was sent to it before is kept."""
        if not self._has_answered:
            # While it starts it does not listen, and nothing was sent to it.
            self._process.kill()
        # It ends when its standard input does, also where this process is killed.
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _seed(self) -> None:
        # An empty database goes through all versions that there ever were of it, which takes half of the start. One
        # that did is kept for the next run.
        with suppress(OSError, RunError):
            if self._is_new and _empty_database().exists():
                with written_atomically(self._database) as temporary:
                    shutil.copyfile(_empty_database(), temporary)

    def _keep(self) -> None:
        import sqlite3

        with suppress(OSError, RunError, sqlite3.Error):
            if self._database.exists() and not _empty_database().exists():
                # SQLite's own backup: a copy of the file could miss what is still in its journal.
                with written_atomically(_empty_database()) as temporary:
                    source, copy = sqlite3.connect(self._database), sqlite3.connect(temporary)
                    source.backup(copy)
                    source.close()
                    copy.close()


def _empty_database() -> Path:
    cache = expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    # Another version of Prefect has other tables.
    return cache / "junctor" / f"prefect-{version('prefect')}.db"
