"""Lines on stderr as JSON documents."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from helpers.signals import COMMAND
from junctor.cli.lines import LineFormatter, set_log_format


@pytest.fixture(autouse=True)
def as_text() -> Iterator[None]:
    yield
    set_log_format("text")


def documents(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def run(folder: Path, *args: str) -> tuple[int, list[dict[str, object]]]:
    (folder / "rows.csv").write_text("smoke,xray\nyes,no\n,yes\n")
    given = (ASIA, str(folder / "rows.csv"), "-o", str(folder / "out"), "--no-prefect", "--log-format", "json")
    result = junctor_cli("run", *given, *args)
    return result.exit_code, documents(result.stderr)


def test_stages_are_documents(tmp_path: Path) -> None:
    code, lines = run(tmp_path)
    assert code == 0
    stages = [line for line in lines if line["event"] == "stage"]
    assert [line["stage"] for line in stages][:2] == ["reading the network", "reading the evidence"]
    propagating = next(line for line in stages if line["stage"] == "propagating")
    assert (propagating["rows"], propagating["done"], propagating["level"]) == (2, 0, "info")
    assert all(line["time"] for line in lines)


def test_errors_are_documents(tmp_path: Path) -> None:
    code, lines = run(tmp_path, "--targets", "lungs", "--quiet")
    assert code == 3
    assert len(lines) == 1
    assert (lines[0]["event"], lines[0]["level"], lines[0]["exit_code"]) == ("error", "error", 3)
    assert "did you mean 'lung'" in str(lines[0]["message"])


@pytest.mark.parametrize("format", ["text", "json"])
def test_lines_that_cannot_be_written_end_no_work(tmp_path: Path, format: str) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("smoke,xray\nyes,no\n")
    words = (ASIA, str(rows), "-o", str(tmp_path / "out"), "--no-prefect", "--log-format", format)
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "run", *words], stdout=subprocess.PIPE, stderr=full, text=True)
        assert (done.returncode, "1 row in" in done.stdout) == (0, True)
        # Nor does an error lose its code.
        for option, code in (("--strict", 6), ("--targets=lungs", 3), ("--nonsense", 2)):
            assert subprocess.run([*COMMAND, "run", *words, option], stderr=full).returncode == code


@pytest.mark.parametrize(("network", "code"), [(ASIA, 0), ("nosuch.bif", 3)])
def test_commands_without_stderr_keep_their_codes(network: object, code: int) -> None:
    command = "from junctor.cli import main; main()"
    line = 'exec "$0" -c "$1" validate "$2" 2>&-'
    ended = subprocess.run(["sh", "-c", line, sys.executable, command, str(network)], capture_output=True, check=False)
    assert ended.returncode == code


@pytest.mark.parametrize("closed", ["<&-", "<&- >&-", "<&- 2>&-"])
def test_a_closed_input_is_empty(closed: str, tmp_path: Path) -> None:
    """The pipe that a signal is told by had its number: whoever read it waited for ever."""
    line = f'exec "$0" -c "$1" run "$2" - -o "$3" --no-prefect -q {closed}'
    words = ["sh", "-c", line, sys.executable, COMMAND[2], ASIA, str(tmp_path / "out")]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 3
    assert "2>&-" in closed or "standard input: it is empty" in ended.stderr


def test_a_page_without_a_home_adds_no_lines(tmp_path: Path) -> None:
    rows, temporary = tmp_path / "rows.csv", tmp_path / "temporary"
    rows.write_text("smoke,xray\nyes,no\n")
    temporary.mkdir()
    environment = {**os.environ, "MPLCONFIGDIR": str(rows / "folder"), "TMPDIR": str(temporary)}
    words = (ASIA, str(rows), "-o", str(tmp_path / "out"), "--no-prefect", "--report", "--log-format", "json")
    done = subprocess.run([*COMMAND, "run", *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert documents(done.stderr)[-1]["stage"] == "writing the report"
    assert not list(temporary.iterdir())


def test_records_of_the_log_are_documents() -> None:
    record = logging.LogRecord("junctor", logging.WARNING, "", 0, "%d of %d", (1, 2), None)
    formatter = LineFormatter()
    assert formatter.format(record) == "warning: 1 of 2"
    set_log_format("json")
    assert json.loads(formatter.format(record))["message"] == "1 of 2"


def test_an_unknown_format_is_refused() -> None:
    assert junctor_cli("run", ASIA, "rows.csv", "-o", "out", "--log-format", "xml").exit_code == 2


def test_names_that_standard_output_cannot_hold_are_named(tmp_path: Path) -> None:
    (tmp_path / "net.bif").write_text(
        'network x {}\nvariable "caf\u00e9" { type discrete [ 2 ] { a, b }; }\n'
        'probability ( "caf\u00e9" ) { table 0.3, 0.7; }\n',
        encoding="utf-8",
    )
    words = [*COMMAND, "joint", str(tmp_path / "net.bif"), "caf\u00e9"]
    for encoding, code, out, err in (
        ("ascii", 6, "", r"error: standard output: '\xe9' cannot be written in ascii: set PYTHONIOENCODING=utf-8"),
        ("ascii:backslashreplace", 0, "caf\\xe9,probability\na,0.3\nb,0.7\n", ""),
    ):
        environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
        assert (done.returncode, done.stdout) == (code, out)
        assert err in done.stderr
