"""What a user sees of a run: lines by a clock of the test's own, bars on a terminal of Python's."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.files import ASIA
from junctor.cli.display import LineProgress, Rate, _BarProgress, _bars, _clock, time_left
from junctor_kernels.cpu.compilation import compilation
from rich.console import Console


class Clock:
    """Seconds that pass when the test says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    shown = capsys.readouterr()
    assert not shown.out
    return shown.err.splitlines()


def test_seconds_of_planning_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    lines = LineProgress(clock)
    lines.tick()
    lines.stage("planning")
    for _ in range(12):
        clock.now += 1
        lines.tick()
    assert lines_of(capsys) == ["planning", "planning: 5 s so far", "planning: 10 s so far"]


def test_rate_and_seconds_left_begin_with_the_first_part(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    lines = LineProgress(clock)
    lines.stage("propagating", 5000, 1000)
    # Plans are made and code is compiled.
    clock.now += 30
    lines.tick()
    lines.advance(1000)
    for _ in range(2):
        clock.now += 5
        lines.advance(1000)
    clock.now += 1
    lines.advance(1000)
    assert lines_of(capsys) == [
        "propagating 5,000 rows, 1,000 done already",
        "propagating: 1,000 of 5,000 rows (20%), 30 s so far",
        "propagating: 3,000 of 5,000 rows (60%), 10 s left, 200 rows/s",
        "propagating: 4,000 of 5,000 rows (80%), 5 s left, 200 rows/s",
    ]


def test_rows_within_a_part_have_a_rate_and_seconds_left(capsys: pytest.CaptureFixture[str]) -> None:
    clock, inside = Clock(), [0]
    lines = LineProgress(clock)
    lines.stage("propagating", 2000)
    lines.within(lambda: inside[0])
    for done in (0, 0, 100, 200, 300, 400):
        inside[0] = done
        clock.now += 1
        lines.tick()
    # The first part is there, of which the count knows nothing any more; rows are not counted twice, nor back.
    inside[0] = 0
    clock.now += 2
    lines.tick()
    lines.advance(1000)
    clock.now += 2
    inside[0] = 50
    lines.tick()
    assert lines_of(capsys) == [
        "propagating 2,000 rows",
        "propagating: 300 of 2,000 rows (15%), 17 s left, 100 rows/s",
        "propagating: 1,050 of 2,000 rows (52%), 7 s left, 136 rows/s",
    ]


def test_a_narrow_terminal_shows_the_seconds_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (24, 40, 64, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        with _bars() as bars:
            rate = Rate(Clock(), 0)
            for name in ("reading the evidence", "propagating (pass 1,000 of 2,000 of a row)"):
                task = bars.add_task(name, total=12_000_000, completed=1_200_000, rate=rate)
            monkeypatch.setattr(rate, "rows_a_second", lambda: 100.0)
            screen = Console(file=io.StringIO(), width=width)
            screen.print(bars.make_tasks_table(bars.tasks))
            lines = screen.file.getvalue().splitlines()
            bars.remove_task(task)
        assert all("30:00:00" in line and len(line) <= width for line in lines), lines
        assert ("10%" in lines[0]) == (width < 64), lines
        assert ("1200000/12000000" in lines[0]) == (width >= 64), lines


def test_rows_of_unknown_number_have_a_rate(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    lines = LineProgress(clock)
    lines.stage("reading the evidence")
    for _ in range(3):
        clock.now += 4
        lines.advance(100)
    assert lines_of(capsys) == ["reading the evidence", "reading the evidence: 200 rows, 25 rows/s"]


def test_passes_of_a_long_row_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    lines = LineProgress(clock)
    lines.stage("propagating", 2)
    for done in range(1, 4):
        clock.now += 60
        lines.passes(done, 1200)
    lines.advance(1)
    clock.now += 60
    lines.tick()
    assert lines_of(capsys) == [
        "propagating 2 rows",
        "propagating: 0 of 2 rows (0%), 60 s so far, pass 1 of 1,200 of a row",
        "propagating: 0 of 2 rows (0%), 120 s so far, pass 2 of 1,200 of a row",
        "propagating: 0 of 2 rows (0%), 180 s so far, pass 3 of 1,200 of a row",
        "propagating: 1 of 2 rows (50%), 240 s so far",
    ]


def test_a_terminal_has_bars_with_seconds(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("smoke\nyes\n\nno\n")
    command = [sys.executable, "-c", "from junctor.cli import main; main()", "run", ASIA, "e.csv"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*command, "-o", "out", "--no-prefect"], cwd=tmp_path, stderr=theirs, stdout=subprocess.PIPE
    ) as child:
        os.close(theirs)
        shown = b""
        # Linux ends a terminal that nobody holds any more with an error.
        while data := _read(ours):
            shown += data
        assert child.stdout is not None
        printed = child.stdout.read()
    os.close(ours)
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown).decode()
    for stage in ("reading the network", "reading the evidence", "planning", "propagating"):
        assert re.search(rf"{stage} +\S+ +\d+/\d+ +0:00:0\d", text), text
    assert b"3 rows in" in printed


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


def test_compilation_is_no_rate_of_a_bar() -> None:
    # What the first parts compile counts for no row; that of Rich would see 500 rows in 110 seconds.
    clock = Clock()
    rate = Rate(clock, 0)
    clock.now += 100
    rate.reach(100)
    assert time_left(900.0, rate.rows_a_second()) == "-:--:--"
    clock.now += 10
    rate.reach(500)
    assert time_left(500.0, rate.rows_a_second()) == "0:00:12"
    assert time_left(40.0 * 7300, 40.0) == "2:01:40"
    with _bars() as bars:
        task = bars.add_task("propagating", total=1000, rate=rate)
        bars.advance(task, 500)
        assert "0:00:12" in str(bars.columns[-1].render(bars.tasks[0]))


def test_the_clock_of_rates_stands_still_while_something_compiles() -> None:
    before = _clock()
    compilation.begin()
    try:
        time.sleep(0.2)
        assert _clock() - before < 0.1
    finally:
        compilation.end()


def test_the_last_bar_ends_full() -> None:
    with _bars() as bars:
        progress = _BarProgress(bars)
        progress.stage("propagating", 3)
        progress.advance(3)
        progress.stage("finishing")
        assert not bars.finished
        progress.end()
        assert [task.total for task in bars.tasks] == [3, 1]
        assert bars.finished
