"""What the user sees of a run: its progress on stderr, its summary on stdout."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer
from junctor_kernels.cpu.compilation import compilation

from junctor.planning.budget import format_bytes
from junctor.runs.storage import FORMAT_VERSION, Directory
from junctor.runtime.progress import Progress, Silence

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from junctor.runs.run import Manifest

# Seconds between two lines of progress where there is no terminal.
LINE_SECONDS = 5.0
# Thirty years: nobody waits for more.
FAR_TOO_LONG = 1e9


@contextmanager
def progress_display(quiet: bool = False) -> Iterator[Progress]:
    """Show progress while the body runs: bars on a terminal, else a line now and then, or nothing."""
    _log_to_stderr()
    compilation.listener = None if quiet else _tell_compilation
    if quiet:
        yield Silence()
    # Bars overwrite themselves, which makes a mess of a log file.
    elif sys.stderr.isatty():
        with _bars() as bars:
            yield _BarProgress(bars)
    else:
        yield LineProgress()


def _tell_compilation() -> None:
    typer.echo("compiling for this machine, once (`junctor warmup` does it beforehand)", err=True)


def _clock() -> float:
    """Return seconds without those of compilation, which no rate is about."""
    return time.monotonic() - compilation.seconds


def _log_to_stderr() -> None:
    # Ours alone: a handler of the root logger would bring out everything that Dask says.
    logger = logging.getLogger("junctor")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        logger.addHandler(handler)


def show_manifest(directory: Directory[Any], manifest: Manifest, as_json: bool) -> None:
    """Print what a finished run did: for programs, or for people."""
    # On stdout, unlike progress: a program may read it.
    if as_json:
        record = {"directory": str(directory.path), "format_version": FORMAT_VERSION, **asdict(manifest)}
        typer.echo(json.dumps(record, indent=2))
        return
    statuses = ", ".join(f"{count:,} {name}" for name, count in manifest.statuses.items() if count or name == "ok")
    size = format_bytes(sum(part.bytes for part in manifest.parts))
    typer.echo(f"{manifest.rows:,} rows in {manifest.seconds:.1f} s: {statuses}")
    there = f", {manifest.reused_parts:,} of them there already" if manifest.reused_parts else ""
    parts = f"{len(manifest.parts):,} part{'s' * (len(manifest.parts) != 1)}"
    typer.echo(f"{directory.path / manifest.spec.query}: {parts}{there}, {size}")


def duration(seconds: float | None) -> str:
    """Return what people read for a forecast; None for one that no number holds."""
    return "far too long" if seconds is None or seconds > FAR_TOO_LONG else f"about {seconds:.2g} s"


class _BarProgress:
    """A bar for each stage."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars
        self.current: TaskID | None = None

    def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
        """Finish the last bar and begin one."""
        if self.current is not None:
            # A stage without a known number of rows ends full, not pulsing.
            finished = self.bars.tasks[self.current].completed
            self.bars.update(self.current, total=finished or 1, completed=finished or 1)
        self.current = self.bars.add_task(name, total=rows, completed=done)

    def advance(self, rows: int) -> None:
        """Move the bar."""
        if self.current is not None:
            self.bars.advance(self.current, rows)


class LineProgress:
    """A line for each stage, and one every few seconds within it."""

    def __init__(self) -> None:
        self.name = ""
        self.done = 0
        self.at_start = 0
        self.rows: int | None = None
        self.started = self.shown = _clock()

    def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
        """Say what begins."""
        self.name, self.rows, self.done, self.at_start = name, rows, done, done
        self.started = self.shown = _clock()
        of = f" {rows:,} rows" if rows is not None else ""
        there = f", {done:,} done already" if done else ""
        typer.echo(f"{name}{of}{there}", err=True)

    def advance(self, rows: int) -> None:
        """Say how far it is, if it is time."""
        self.done += rows
        now = _clock()
        if now - self.shown < LINE_SECONDS:
            return
        self.shown = now
        # Rows that an earlier run answered took no time in this one.
        rate = (self.done - self.at_start) / (now - self.started)
        far = f"{self.done:,} rows"
        if self.rows:
            left = (self.rows - self.done) / rate
            far = f"{self.done:,} of {self.rows:,} rows ({self.done / self.rows:.0%}), {left:,.0f} s left"
        typer.echo(f"{self.name}: {far}, {rate:,.0f} rows/s", err=True)


def _bars() -> Bars:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Bars(SpinnerColumn(), *columns, console=Console(stderr=True))
