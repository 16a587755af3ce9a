"""Lines on stderr: text for people, or a JSON document each for programs (`--log-format json`)."""

from __future__ import annotations

import io
import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

import typer

LogFormat = Literal["text", "json"]

_format: ContextVar[LogFormat] = ContextVar("log format", default="text")


def set_log_format(value: LogFormat) -> LogFormat:
    """Choose the format from here on; returns it, as Typer wants of a callback."""
    _format.set(value)
    return value


def is_json() -> bool:
    """Return True if lines are JSON."""
    return _format.get() == "json"


def say(event: str, message: str, level: str = "info", **facts: Any) -> None:
    """Print a line: the message, or a document of it.

    event: kind of the line.
    message: for people.
    level: as of logs, in lower case.
    facts: further keys of the document; those that are None are left out.
    """
    typer.echo(document(event, message, level, **facts) if is_json() else message, err=True)


def document(event: str, message: str, level: str, **facts: Any) -> str:
    """Return a line of JSON; arguments as of `say`."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    known = {name: value for name, value in facts.items() if value is not None}
    return json.dumps({"time": now, "level": level, "event": event, "message": message, **known})


class _Dropping(io.FileIO):
    """A file that drops what it cannot take."""

    def write(self, data: Any) -> int:
        """Write bytes, or drop them."""
        try:
            return super().write(data)
        except OSError:
            return len(data)


def drop_lost_lines() -> None:
    """Replace stderr by one that drops lines that cannot be written: a full disk or a closed pipe ends no work."""
    if sys.stderr is None:
        return
    dropping = io.BufferedWriter(_Dropping(sys.stderr.fileno(), "w", closefd=False))
    sys.stderr = io.TextIOWrapper(dropping, sys.stderr.encoding, sys.stderr.errors, line_buffering=True)


class LineFormatter(logging.Formatter):
    """Records of Junctor's log as such lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        if not is_json():
            return super().format(record)
        return document("log", record.getMessage(), record.levelname.lower(), logger=record.name)
