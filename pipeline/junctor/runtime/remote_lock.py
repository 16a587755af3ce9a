"""One run at a time in a folder of a store: an object that names its owner, is renewed, and expires.

Main class: RemoteLock, for run directories. Stores have no locks: `docs/storage.md` says what this one cannot promise.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from junctor.model.errors import RunError
from junctor.runtime.remote import AnyPath, RemotePath

# Seconds between renewals, and after the last one until others may take the lock; clocks of hosts have to agree to
# less than the difference.
RENEWAL = 10.0
EXPIRY = 60.0
# Seconds from writing to looking who wrote last.
SETTLING = 0.5

logger = logging.getLogger("junctor")


class RemoteLock:
    """Exclusive use of a folder, by an object in it."""

    def __init__(self, path: RemotePath) -> None:
        self._path = path
        self._owner = uuid.uuid4().hex
        self._ended = threading.Event()
        self._lost_to: str | None = None

    def acquire(self) -> None:
        """Take it; raises RunError while another one has it."""
        self._refuse_others()
        started = time.monotonic()
        try:
            self._write()
            # Two that found nobody at once: the last writer has it. Whoever is slower than this wait is not seen.
            time.sleep(SETTLING + 2 * (time.monotonic() - started))
            self._refuse_others()
        except BaseException:
            self._empty()
            raise
        self._renewing = threading.Thread(target=self._renew, name="junctor-lock", daemon=True)
        self._renewing.start()
        _held[self._path.parent] = self

    def release(self) -> None:
        """Let it go, and stop renewing it."""
        _held.pop(self._path.parent, None)
        self._ended.set()
        self._renewing.join()
        if self._lost_to is None:
            self._empty()

    def _empty(self) -> None:
        # Emptied, not removed; it would expire anyway.
        with suppress(OSError):
            if self._is_ours(self._read()):
                self._path.write_bytes(b"")

    def check(self) -> None:
        """Raise RunError if another one has taken the lock meanwhile."""
        if self._lost_to is not None:
            raise RunError(
                f"{self._path.parent}: taken over by another junctor ({self._lost_to}): run again when it ended"
            )

    def _refuse_others(self) -> None:
        holder = self._read()
        if holder is None or self._is_ours(holder) or _is_dead(holder):
            return
        left = EXPIRY - (time.time() - holder["time"])
        if left > 0:
            raise RunError(
                f"{self._path.parent} is in use by another junctor ({_named(holder)}); if that one was killed, run "
                f"again in {left:.0f} s"
            )

    def _renew(self) -> None:
        while not self._ended.wait(RENEWAL):
            # The next renewal may do; until then the lock is as good as its last one.
            with suppress(OSError):
                holder = self._read()
                if holder is not None and not self._is_ours(holder):
                    self._lost_to = _named(holder)
                    logger.warning("%s: another junctor has taken the lock (%s)", self._path.parent, self._lost_to)
                    return
                self._write()

    def _is_ours(self, holder: dict[str, Any] | None) -> bool:
        return holder is not None and holder["owner"] == self._owner

    def _read(self) -> dict[str, Any] | None:
        try:
            record = json.loads(self._path.read_bytes() or b"null")
        except FileNotFoundError:
            return None
        except ValueError:
            record = None
        known = isinstance(record, dict) and {"owner", "process", "host", "place", "time"} <= record.keys()
        return record if known else None

    def _write(self) -> None:
        process, host = os.getpid(), socket.gethostname()
        record = {"owner": self._owner, "process": process, "host": host, "place": _place(), "time": time.time()}
        self._path.write_text(json.dumps(record))


_held: dict[RemotePath, RemoteLock] = {}


def check_lock(folder: AnyPath) -> None:
    """Raise RunError if this process had the lock of a folder and lost it."""
    lock = _held.get(folder) if isinstance(folder, RemotePath) else None
    if lock is not None:
        lock.check()


def _named(holder: dict[str, Any]) -> str:
    return f"process {holder['process']} on {holder['host']}, seen {max(0.0, time.time() - holder['time']):.0f} s ago"


def _is_dead(holder: dict[str, Any]) -> bool:
    """Return True if the owner was a process of this machine that has ended."""
    if holder["place"] != _place():
        return False
    try:
        os.kill(int(holder["process"]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _place() -> str:
    """Where numbers of processes mean the same: a host since its start, and in it a container."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return " ".join(parts)
