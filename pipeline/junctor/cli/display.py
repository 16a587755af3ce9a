"""What the user sees of a run: its progress on stderr, its summary on stdout."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from junctor_kernels.cpu.compilation import compilation

from junctor.cli.deployed import deployed
from junctor.cli.lines import LineFormatter, is_json, say
from junctor.model.errors import counted
from junctor.planning.budget import format_bytes
from junctor.runs.storage import FORMAT_VERSION, Directory
from junctor.runtime.progress import Progress, Silence

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import Task, TaskID
    from rich.text import Text

    from junctor.runs.run import Manifest

# Seconds between two lines of progress where there is no terminal.
LINE_SECONDS = 5.0
# Thirty years: nobody waits for more.
FAR_TOO_LONG = 1e9
# Inputs of an increment that are named one by one.
MOST_LINES = 20


@contextmanager
def progress_display(quiet: bool = False) -> Iterator[Progress]:
    """Show progress while the body runs: bars on a terminal, else a line now and then, or nothing."""
    # Prefect shows the log of a deployed run.
    if deployed.get() is None:
        _log_to_stderr()
    compilation.listener = None if quiet else _tell_compilation
    if quiet:
        yield Silence()
    # Bars overwrite themselves, which makes a mess of a log file.
    elif sys.stderr.isatty() and not is_json():
        with _bars() as bars:
            progress = _BarProgress(bars)
            yield progress
            # What failed stays as it was.
            progress.end()
    else:
        lines = LineProgress()
        with _ticking(lines):
            yield lines


def _tell_compilation() -> None:
    say("compilation", "compiling for this machine, once (`junctor warmup` does it beforehand)")


def _clock() -> float:
    """Return seconds without those of compilation, which no rate is about."""
    return time.monotonic() - compilation.seconds


def _log_to_stderr() -> None:
    # Ours alone: a handler of the root logger would bring out everything that Dask says.
    logger = logging.getLogger("junctor")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(LineFormatter())
        logger.addHandler(handler)
    # Without a home to write to it warns of its temporary folder, which no reader of lines in JSON expects.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)


def show_what_is_done(directory: Directory[Any], work: Callable[[], Manifest], as_json: bool) -> None:
    """Do the work of a run, and print what was done, also where a threshold is crossed or all rows are invalid.

    work: returns the manifest; raises ThresholdError after it is written.
    """
    from junctor.cli.failures import all_invalid
    from junctor.model.errors import ThresholdError

    try:
        manifest = work()
    except ThresholdError:
        from junctor.runs.run import read_manifest

        # The answers are whole, and what was done is of interest now more than ever.
        show_manifest(directory, read_manifest(directory), as_json)
        raise
    show_manifest(directory, manifest, as_json)
    if 0 < manifest.rows == manifest.statuses["invalid"]:
        raise all_invalid(manifest.rows)


def show_manifest(directory: Directory[Any], manifest: Manifest, as_json: bool) -> None:
    """Print what a finished run did: for programs, or for people."""
    # On stdout, unlike progress: a program may read it.
    if as_json:
        record = {"directory": str(directory.path), "format_version": FORMAT_VERSION, **manifest.to_record()}
        typer.echo(json.dumps(record, indent=2))
        return
    if manifest.increments:
        _show_increment(manifest)
    else:
        typer.echo(f"{counted(manifest.rows, 'row')} in {manifest.seconds:.1f} s: {show_statuses(manifest.statuses)}")
    size = format_bytes(sum(part.bytes for part in manifest.parts))
    there = f", {manifest.reused_parts:,} of them there already" if manifest.reused_parts else ""
    typer.echo(f"{directory.path / manifest.spec.folder}: {counted(len(manifest.parts), 'part')}{there}, {size}")
    peak, of_workers = map(format_bytes, manifest.peak_bytes)
    workers = f", {of_workers} in its largest worker" if manifest.peak_bytes[1] else ""
    typer.echo(f"memory at the most: {peak} in this process{workers}, libraries and files included")


def _show_increment(manifest: Manifest) -> None:
    rows = f"{counted(manifest.rows, 'row')} of {counted(len(manifest.inputs), 'input')} in all"
    if manifest.increment is None:
        typer.echo(f"nothing is new ({manifest.seconds:.1f} s); {rows}")
        return
    from junctor.runs.increments import lines_of

    last = manifest.increments[-1]
    answered = [each for each in manifest.inputs if each.increment == last.number]
    told = f": {show_statuses(last.statuses)}" if answered else ""
    what = f"{counted(last.rows, 'row')} of {counted(len(answered), 'input')}"
    typer.echo(f"{what} in {manifest.seconds:.1f} s{told}")
    lines = lines_of(last, manifest.inputs)
    for line in lines[:MOST_LINES]:
        typer.echo(f"  {line}")
    if len(lines) > MOST_LINES:
        typer.echo(f"  and {len(lines) - MOST_LINES:,} more: see `junctor status --all`")
    typer.echo(rows)


def show_statuses(statuses: Mapping[str, int]) -> str:
    """Return the rows of each status in words, without those of no rows."""
    return ", ".join(f"{count:,} {name}" for name, count in statuses.items() if count or name == "ok") or "none"


def duration(seconds: float | None) -> str:
    """Return what people read for a forecast; None for one that no number holds."""
    return "far too long" if seconds is None or seconds > FAR_TOO_LONG else f"about {seconds:.2g} s"


class Rate:
    """Rows a second of a stage, from the end of its first part on: before it plans are made and code is compiled, once.

    clock: gives seconds, without those of compilation.
    done: rows before the stage.
    """

    def __init__(self, clock: Callable[[], float], done: int) -> None:
        self._clock = clock
        self._done = done
        self._first: tuple[float, int] | None = None

    def advance(self, rows: int) -> None:
        """Count rows."""
        self._done += rows
        self._first = self._first or (self._clock(), self._done)

    def rows_a_second(self) -> float | None:
        """Return the rate until now, None where nothing tells it."""
        now = self._clock()
        since, before = self._first or (now, self._done)
        return None if self._done == before or now == since else (self._done - before) / (now - since)


class _BarProgress:
    """A bar for each stage."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars
        self.rate: Rate | None = None
        self.current: TaskID | None = None
        self.name = ""

    def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
        """Finish the last bar and begin one."""
        self.end()
        self.name = name
        self.rate = Rate(_clock, done)
        self.current = self.bars.add_task(name, total=rows, completed=done, rate=self.rate)

    def end(self) -> None:
        """Finish the last bar."""
        if self.current is not None:
            # A stage without a known number of rows ends full, not pulsing.
            finished = self.bars.tasks[self.current].completed
            self.bars.update(self.current, description=self.name, total=finished or 1, completed=finished or 1)

    def advance(self, rows: int) -> None:
        """Move the bar."""
        if self.current is not None and self.rate is not None:
            self.rate.advance(rows)
            self.bars.update(self.current, description=self.name, advance=rows)

    def passes(self, done: int, of: int) -> None:
        """Show the passes beside the bar."""
        if self.current is not None:
            self.bars.update(self.current, description=f"{self.name} (pass {done:,} of {of:,} of a row)")


class LineProgress:
    """A line for each stage, and one every few seconds within it.

    clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = _clock) -> None:
        self._clock = clock
        self._name = ""
        self._rows: int | None = None
        self._done = 0
        self._passes = ""
        self._rate = Rate(clock, 0)
        self._started = self._shown = clock()

    def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
        """Say what begins."""
        self._name, self._rows, self._done, self._passes = name, rows, done, ""
        self._rate = Rate(self._clock, done)
        self._started = self._shown = self._clock()
        of = f" {counted(rows, 'row')}" if rows is not None else ""
        there = f", {done:,} done already" if done else ""
        say("stage", f"{name}{of}{there}", stage=name, rows=rows, done=done)

    def advance(self, rows: int) -> None:
        """Count rows, and say how far it is, if it is time."""
        self._done, self._passes = self._done + rows, ""
        self._rate.advance(rows)
        self.tick()

    def passes(self, done: int, of: int) -> None:
        """Say how far a row is, if it is time."""
        self._passes = f", pass {done:,} of {of:,} of a row"
        self.tick()

    def tick(self) -> None:
        """Say how far it is, if it is time; called every second, because a plan or a part may take minutes."""
        now = self._clock()
        if not self._name or now - self._shown < LINE_SECONDS:
            return
        self._shown = now
        far = f"{counted(self._done, 'row')}, " if self._done else ""
        if self._rows:
            far = f"{self._done:,} of {self._rows:,} rows ({self._done / self._rows:.0%}), "
        message = f"{self._name}: {far}{self._speed(now)}{self._passes}"
        say("progress", message, stage=self._name, rows=self._rows, done=self._done)

    def _speed(self, now: float) -> str:
        """Return seconds left and rows a second, or only the seconds so far where nothing tells."""
        rate = self._rate.rows_a_second()
        if rate is None:
            return f"{now - self._started:,.0f} s so far"
        left = f"{(self._rows - self._done) / rate:,.0f} s left, " if self._rows else ""
        return f"{left}{rate:,.0f} rows/s"


@contextmanager
def _ticking(lines: LineProgress) -> Iterator[None]:
    """Context manager: `lines.tick` every second, in another thread."""
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(1.0):
            lines.tick()

    thread = threading.Thread(target=tick, name="junctor-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _bars() -> Bars:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        ProgressColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.progress import Progress as Bars
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        """Time until the end of the stage; that of Rich takes compilation for work."""

        def render(self, task: Task) -> Text:
            rate: float | None = task.fields["rate"].rows_a_second()
            return Text(time_left(task.remaining, rate), style="progress.remaining")

    # Seconds so far, because planning knows no others; those left are counted from the end of the first part.
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    return Bars(SpinnerColumn(), *columns, TimeElapsedColumn(), TimeLeft(), console=Console(stderr=True))


def time_left(rows: float | None, rate: float | None) -> str:
    """Return hours, minutes and seconds that some rows take at a rate; dashes where one of them is not known."""
    if rows is None or rate is None:
        return "-:--:--"
    minutes, seconds = divmod(int(rows / rate), 60)
    return f"{minutes // 60:d}:{minutes % 60:02d}:{seconds:02d}"
