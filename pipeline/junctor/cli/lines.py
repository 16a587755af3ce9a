"""Lines on stderr: text for people, or a JSON document each for programs (`--log-format json`). And what becomes of
lines that cannot be written, there and on stdout.
"""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import typer

from junctor.model.errors import RunError

LogFormat = Literal["text", "json"]

# As shells have it where a tool is ended by SIGPIPE.
CLOSED = 128 + signal.SIGPIPE

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


def warn_no_rows(where: str) -> None:
    """Say that a table has a header or a schema, and no more: what is made of it is as empty."""
    say("no rows", f"warning: {where}: found no row beneath the names of the columns", level="warning")


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


def _nowhere(mode: Literal["r", "w"] = "w") -> TextIO:
    """Return what stands for a stream that was closed before the start: what writes there has a file all the same."""
    return open(os.devnull, mode)


def have_input() -> None:
    """Let standard input be empty where it was closed: the next pipe of ours would have its number, and be read."""
    if sys.stdin is None:
        sys.stdin = _nowhere("r")


def drop_lost_lines() -> None:
    """Replace stderr by one that drops lines that cannot be written: a full disk or a closed pipe ends no work."""
    sys.stderr = _dropping(sys.stderr)


def drop_lost_output() -> None:
    """Replace stdout by one that drops what cannot be written, where nobody has asked for it."""
    sys.stdout = _dropping(sys.stdout)


def _dropping(stream: TextIO | None) -> TextIO:
    if stream is None:
        return _nowhere()
    dropping = io.BufferedWriter(_Dropping(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(dropping, stream.encoding, stream.errors, line_buffering=True)


class _Output(io.FileIO):
    """Standard output, which ends the command where it cannot be written."""

    def write(self, data: Any) -> int:
        """Write bytes, or raise what ends the command."""
        try:
            return super().write(data)
        except BrokenPipeError:
            # Whoever read it has seen enough. Not an OSError: Rich and Click would end with 1, as of a fault.
            raise SystemExit(CLOSED) from None
        except OSError as error:
            raise RunError(f"standard output: {error.strerror or error}") from None


class _OutputText(io.TextIOWrapper):
    """Text of standard output, which ends the command at a character that its encoding does not have."""

    def write(self, text: str) -> int:
        """Write text, or raise what ends the command."""
        try:
            return super().write(text)
        except UnicodeEncodeError as error:
            found = ascii(text[error.start : error.end])
            raise RunError(
                f"standard output: {found} cannot be written in {self.encoding}: set PYTHONIOENCODING=utf-8, or =ascii:"
                "backslashreplace to see it as here"
            ) from None


def end_on_lost_output() -> None:
    """Replace stdout by one that ends the command where it cannot be written: quietly if its reader has gone."""
    if sys.stdout is None:
        sys.stdout = _nowhere()
        return
    output = io.BufferedWriter(_Output(sys.stdout.fileno(), "w", closefd=False))
    # Each line at once for a terminal, and for whoever asks Python for that.
    by_line = output.isatty() or getattr(sys.stdout, "write_through", False)
    sys.stdout = _OutputText(output, sys.stdout.encoding, sys.stdout.errors, line_buffering=by_line)


def print_document(record: Mapping[str, Any]) -> None:
    """Print the JSON document of a command."""
    typer.echo(json.dumps(record, indent=2))


class LineFormatter(logging.Formatter):
    """Records of Junctor's log as such lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        if not is_json():
            return f"{record.levelname.lower()}: {super().format(record)}"
        return document("log", record.getMessage(), record.levelname.lower(), logger=record.name)
