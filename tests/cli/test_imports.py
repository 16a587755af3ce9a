"""What the package and the command line load before there is work to do: a start takes a tenth of a second."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from helpers.files import ROOT
from junctor.cli import app_for
from pyarrow import parquet
from typer.main import get_command
from typer.testing import CliRunner

HEAVY = {
    "numpy",
    "numba",
    "pyarrow",
    "cupy",
    "dask",
    "distributed",
    "prefect",
    "pandas",
    "matplotlib",
    "jinja2",
    "lark",
    "psutil",
}
COMMANDS = (
    *("run", "inspect", "convert", "validate", "calibrate", "ask", "joint", "viterbi"),
    *("learn", "counts", "learn-chain"),
    *("tune", "warmup", "cache", "status", "demo", "deploy", "serve", "report"),
)


def loaded(code: str) -> set[str]:
    """The packages that a fresh interpreter loads for `code`."""
    told = "import atexit, json, sys\natexit.register(lambda: print('\\n' + json.dumps([*sys.modules])))\n"
    answer = subprocess.run([sys.executable, "-c", told + code], capture_output=True, text=True, check=True).stdout
    return {name.partition(".")[0] for name in json.loads(answer.splitlines()[-1])}


def test_the_package_loads_nothing_heavy() -> None:
    found = loaded("import junctor")
    assert "junctor" in found
    assert not found & (HEAVY | {"typer", "rich", "junctor_kernels", "junctor_flows"})


def test_help_loads_nothing_heavy() -> None:
    # One after the other in a single interpreter, each with what is loaded by then.
    unwanted = HEAVY | {"junctor_kernels", "junctor_flows"}
    code = (
        "import contextlib, io\nfrom junctor.cli import app_for\n"
        f"for command in {[*([name] for name in COMMANDS), []]}:\n"
        "    said = io.StringIO()\n"
        "    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):\n"
        "        app_for(*command)([*command, '--help'])\n"
        "    assert 'Usage' in said.getvalue(), command\n"
        f"    found = {{name.partition('.')[0] for name in sys.modules}} & {unwanted}\n"
        "    assert not found, (command, found)\n"
    )
    assert "typer" in loaded(code)


def test_errors_of_the_package_load_nothing_heavy() -> None:
    assert not loaded("from junctor import BudgetError, EvidenceError, JunctorError, ModelError, RunError") & HEAVY


def test_a_command_line_is_understood_by_its_command_alone() -> None:
    commands = get_command(app_for()).commands  # type: ignore[attr-defined]
    assert set(COMMANDS) <= commands.keys()
    for name in commands:
        assert [*get_command(app_for(name)).commands] == [name]  # type: ignore[attr-defined]


def test_a_command_loads_no_other_one() -> None:
    code = "import sys\nfrom junctor.cli import app_for\napp_for('run')\nprint('junctor.cli.learn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("words", [["run", "--help"], ["map"], ["deploy", "learn", "--help"], ["rnu"], ["--help"], []])
def test_it_says_what_all_commands_together_say(words: list[str]) -> None:
    alone, together = (CliRunner().invoke(each, words) for each in (app_for(words[0] if words else ""), app_for()))
    assert (alone.exit_code, alone.output) == (together.exit_code, together.output)


def test_a_run_of_scores_does_without_what_arrow_loads(tmp_path: Path) -> None:
    # Pandas alone is a quarter of a second, and Arrow loads it for `to_numpy`.
    parquet.write_table(pa.table({"smoke": ["yes", "no"]}), tmp_path / "in.parquet")
    words = ["run", str(ROOT / "data" / "asia.bif"), str(tmp_path / "in.parquet"), "--output", str(tmp_path / "out")]
    words += ["--answers", "scores", "--no-prefect", "--quiet"]
    found = loaded(f"import sys\nfrom junctor.cli import main\nsys.argv = {['junctor', *words]}\nmain()\n")
    assert "pyarrow" in found
    assert not found & {"pandas", "prefect", "distributed", "matplotlib"}
