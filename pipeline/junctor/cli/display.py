"""What the user sees of a run: its progress on stderr, its summary on stdout."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer
from junctor_kernels.cpu.compilation import MESSAGE, compilation, is_quiet

from junctor.cli.deployed import deployed
from junctor.cli.lines import LineFormatter, is_json, print_document, say, warn_no_rows
from junctor.model.errors import counted
from junctor.planning.budget import format_bytes
from junctor.runs.storage import FORMAT_VERSION, Directory, RunSpec
from junctor.runtime.progress import Count, Progress, Silence

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import Task, TaskID
    from rich.text import Text

    from junctor.runs.manifest import Manifest
    from junctor.runs.partition import Part
    from junctor.runs.statistics import Reason

logger = logging.getLogger("junctor")

# Seconds between two lines of progress where there is no terminal.
LINE_SECONDS = 5.0
# Columns of a terminal from which there is room for a bar and all numbers beside the seconds that are left.
WIDE = 64
# Thirty years: nobody waits for more.
FAR_TOO_LONG = 1e9
# Inputs of an increment that are named one by one.
MOST_LINES = 20
# Letters of a reason.
MOST_LETTERS = 300


@contextmanager
def progress_display(quiet: bool = False) -> Iterator[Progress]:
    """Show progress while the body runs: bars on a terminal, else a line now and then, or nothing."""
    # Prefect shows the log of a deployed run.
    if deployed.get() is None:
        _log_to_stderr()
    quiet = quiet or is_quiet()
    compilation.listener = None if quiet else _tell_compilation
    if quiet:
        yield Silence()
    # Bars overwrite themselves, which makes a mess of a log file.
    elif sys.stderr.isatty() and not is_json():
        with _bars() as bars:
            progress = _BarProgress(bars)
            with _ticking(progress.tick):
                yield progress
            # What failed stays as it was.
            progress.end()
    else:
        lines = LineProgress()
        with _ticking(lines.tick):
            yield lines


def _tell_compilation() -> None:
    say("compilation", MESSAGE)


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
        from junctor.runs.manifest import read_manifest

        # The answers are whole, and what was done is of interest now more than ever.
        show_manifest(directory, read_manifest(directory), as_json)
        raise
    reasons = show_manifest(directory, manifest, as_json)
    if 0 < manifest.rows == manifest.statuses.get("invalid"):
        raise all_invalid(manifest.rows, "; ".join(reasons) or None)


def show_manifest(directory: Directory[Any], manifest: Manifest, as_json: bool) -> list[str]:
    """Print what a finished run did: for programs, or for people; return the most frequent reasons of invalid rows."""
    from junctor.runs.outcome import most_frequent
    from junctor.runs.statistics import observed_lines

    reasons = most_frequent(directory, _parts_of_call(manifest))
    told = [_line_of(kind, reason) for kind, reason in reasons if reason.status == "invalid"]
    # On stdout, unlike progress: a program may read it.
    if as_json:
        record = {"directory": str(directory.path), "format_version": FORMAT_VERSION, **manifest.to_record()}
        record["reasons"] = [{"kind": kind, **asdict(reason)} for kind, reason in reasons]
        print_document(record)
    else:
        _show(directory, manifest)
        for kind, reason in reasons:
            # Reasons of impossible rows begin with that word.
            typer.echo(f"  {reason.status}: {_line_of(kind, reason).removeprefix(f'{reason.status}: ')}")
    if not manifest.rows:
        warn_no_rows(f"the {directory.inputs}")
    rows = sum(part.rows for part in _parts_of_call(manifest))
    invalid = sum(part.statuses.get("invalid", 0) for part in _parts_of_call(manifest))
    if told and invalid > rows / 2:
        advice = _next_move(directory, [reason for _, reason in reasons if reason.status == "invalid"])
        logger.warning("%s of %s are invalid: %s", f"{invalid:,}", counted(rows, "row"), advice)
    observed = observed_lines(manifest.observed_targets, manifest.statuses)
    for line in observed:
        logger.warning("%s", line)
    if observed:
        logger.warning("--hide-targets takes targets as unobserved")
    return told


def _parts_of_call(manifest: Manifest) -> tuple[Part, ...]:
    """Return the parts that a call is about: of an increment its own."""
    if not manifest.increments:
        return manifest.parts
    answered = (each for each in manifest.inputs if each.increment == manifest.increment)
    files = {file for each in answered for file in each.parts}
    return tuple(part for part in manifest.parts if part.file in files)


def _line_of(kind: str, reason: Reason) -> str:
    """Return a reason with its rows: that of the first one stands for all of its kind."""
    text = " ".join((reason.text or kind).split())
    text = text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"
    alike = "" if reason.text in ("", kind) or reason.rows == 1 else " like that"
    return f"{text} ({counted(reason.rows, 'row')}{alike}, first {reason.examples[0]})"


def _next_move(directory: Directory[Any], reasons: Sequence[Reason]) -> str:
    """Return what to do about invalid rows, by the most frequent reasons."""
    if not isinstance(directory.read_spec(), RunSpec):
        return "look at the symbols that the model knows, and at the column of the sequences"
    if not any("unknown state" in (reason.text or "unknown state") for reason in reasons):
        return "correct what the reasons name, or leave the column out with `--ignore-extra` or a mapping file"
    if directory.read_spec().mapping_digest is not None:
        return "say in the mapping file (`[variables.NAME]`, `states` or `missing`) what these cells mean"
    return (
        "`junctor map NETWORK EVIDENCE` proposes a file for `--mapping` that says what these cells mean; "
        "`--missing TEXT` takes a text as no observation"
    )


def _show(directory: Directory[Any], manifest: Manifest) -> None:
    """Print what a finished run did, for people."""
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
    """Rows a second of a stage, from its first rows on: before them plans are made and code is compiled, once.

    clock: gives seconds, without those of compilation.
    done: rows before the stage.
    """

    def __init__(self, clock: Callable[[], float], done: int) -> None:
        self._clock = clock
        self._done = done
        self._first: tuple[float, int] | None = None

    def reach(self, rows: int) -> None:
        """Count so many rows in all."""
        if rows > self._done:
            self._done = rows
            self._first = self._first or (self._clock(), rows)

    def rows_a_second(self) -> float | None:
        """Return the rate until now, None where nothing tells it."""
        now = self._clock()
        since, before = self._first or (now, self._done)
        return None if self._done == before or now == since else (self._done - before) / (now - since)


class StageRows:
    """Rows of a stage, those of unfinished parts among them.

    clock: as of `Rate`.
    rows: of the stage, None where that is not known.
    done: before it.
    """

    def __init__(self, clock: Callable[[], float], rows: int | None = None, done: int = 0) -> None:
        self.rate = Rate(clock, done)
        self.within: Count = int
        self._rows, self._finished, self._seen = rows, done, done

    def advance(self, rows: int) -> None:
        """Count rows of finished parts."""
        self._finished += rows
        self.rate.reach(self.done)

    @property
    def done(self) -> int:
        """How many rows are done."""
        # Those of a part that is answered count as rows of it no more before they count as those of a finished one.
        done = max(self._seen, self._finished + self.within())
        self._seen = done if self._rows is None else min(done, self._rows)
        return self._seen


class _BarProgress(Silence):
    """A bar for each stage."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars
        self.rows = StageRows(_clock)
        self.current: TaskID | None = None
        self.name = ""

    def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
        """Finish the last bar and begin one."""
        self.end()
        self.name = name
        self.rows = StageRows(_clock, rows, done)
        self.current = self.bars.add_task(name, total=rows, completed=done, rate=self.rows.rate)

    def end(self) -> None:
        """Finish the last bar."""
        if self.current is not None:
            # A stage without a known number of rows ends full, not pulsing.
            finished = self.bars.tasks[self.current].completed
            self.bars.update(self.current, description=self.name, total=finished or 1, completed=finished or 1)

    def advance(self, rows: int) -> None:
        """Move the bar."""
        if self.current is not None:
            self.rows.advance(rows)
            self.bars.update(self.current, description=self.name, completed=self.rows.done)

    def within(self, rows: Count) -> None:
        """Let the bar move with rows of unfinished parts."""
        self.rows.within = rows

    def passes(self, done: int, of: int) -> None:
        """Show the passes beside the bar."""
        if self.current is not None:
            self.bars.update(self.current, description=f"{self.name} (pass {done:,} of {of:,} of a row)")

    def tick(self) -> None:
        """Move the bar, as `LineProgress.tick`."""
        if self.current is not None:
            done = self.rows.done
            self.rows.rate.reach(done)
            self.bars.update(self.current, completed=done)


class LineProgress(Silence):
    """A line for each stage, and one every few seconds within it.

    clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = _clock) -> None:
        self._clock = clock
        self._name = ""
        self._total: int | None = None
        self._passes = ""
        self._rows = StageRows(clock)
        self._started = self._shown = clock()

    def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
        """Say what begins."""
        self._name, self._total, self._passes = name, rows, ""
        self._rows = StageRows(self._clock, rows, done)
        self._started = self._shown = self._clock()
        of = f" {counted(rows, 'row')}" if rows is not None else ""
        there = f", {done:,} done already" if done else ""
        say("stage", f"{name}{of}{there}", stage=name, rows=rows, done=done)

    def advance(self, rows: int) -> None:
        """Count rows, and say how far it is, if it is time."""
        self._passes = ""
        self._rows.advance(rows)
        self.tick()

    def within(self, rows: Count) -> None:
        """Count rows of unfinished parts as well."""
        self._rows.within = rows

    def passes(self, done: int, of: int) -> None:
        """Say how far a row is, if it is time."""
        self._passes = f", pass {done:,} of {of:,} of a row"
        self.tick()

    def tick(self) -> None:
        """Say how far it is, if it is time; called every second, because a plan or a part may take minutes."""
        now, done = self._clock(), self._rows.done
        self._rows.rate.reach(done)
        if not self._name or now - self._shown < LINE_SECONDS:
            return
        self._shown = now
        far = f"{counted(done, 'row')}, " if done else ""
        if self._total:
            far = f"{done:,} of {self._total:,} rows ({done / self._total:.0%}), "
        message = f"{self._name}: {far}{self._speed(now, done)}{self._passes}"
        say("progress", message, stage=self._name, rows=self._total, done=done)

    def _speed(self, now: float, done: int) -> str:
        """Return seconds left and rows a second, or only the seconds so far where nothing tells."""
        rate = self._rows.rate.rows_a_second()
        if rate is None:
            return f"{now - self._started:,.0f} s so far"
        left = f"{(self._total - done) / rate:,.0f} s left, " if self._total else ""
        return f"{left}{rate:,.0f} rows/s"


@contextmanager
def _ticking(tick_once: Callable[[], None]) -> Iterator[None]:
    """Context manager: call it every second, in another thread."""
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(1.0):
            tick_once()

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
        TimeElapsedColumn,
    )
    from rich.progress import Progress as Bars
    from rich.table import Column
    from rich.text import Text

    class Stage(ProgressColumn):
        """Name of the stage, which gives way to the others: Rich shortens all that may wrap, and this wraps nowhere."""

        def render(self, task: Task) -> Text:
            return Text(task.description, no_wrap=True, overflow="ellipsis")

    class Share(ProgressColumn):
        """Share of the rows that is done, or their number."""

        def render(self, task: Task) -> Text:
            return Text(f"{task.completed:,.0f}" if task.total is None else f"{task.percentage:.0f}%")

    class TimeLeft(ProgressColumn):
        """Time until the end of the stage; that of Rich takes compilation for work."""

        def render(self, task: Task) -> Text:
            rate: float | None = task.fields["rate"].rows_a_second()
            return Text(time_left(task.remaining, rate), style="progress.remaining")

    def whole() -> Column:
        return Column(no_wrap=True)

    console = Console(stderr=True)
    if console.width < WIDE:
        return Bars(Stage(), Share(whole()), TimeLeft(whole()), console=console)
    # Seconds so far, because planning knows no others; those left are counted from the first rows on.
    columns = Stage(), BarColumn(), MofNCompleteColumn(table_column=whole()), TimeElapsedColumn(whole())
    return Bars(SpinnerColumn(), *columns, TimeLeft(whole()), console=console)


def time_left(rows: float | None, rate: float | None) -> str:
    """Return hours, minutes and seconds that some rows take at a rate; dashes where one of them is not known."""
    if rows is None or rate is None:
        return "-:--:--"
    minutes, seconds = divmod(int(rows / rate), 60)
    return f"{minutes // 60:d}:{minutes % 60:02d}:{seconds:02d}"
