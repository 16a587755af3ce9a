"""What the package and the command line load before there is work to do: a start takes a tenth of a second."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=lambda command: "".join(command))
def test_help_loads_nothing_heavy(command: list[str]) -> None:
    found = loaded(f"sys.argv = {['junctor', *command, '--help']}\nfrom junctor.cli import main\nmain()")
    assert "typer" in found
    assert not found & (HEAVY | {"junctor_kernels", "junctor_flows"})


def test_errors_of_the_package_load_nothing_heavy() -> None:
    assert not loaded("from junctor import BudgetError, EvidenceError, JunctorError, ModelError, RunError") & HEAVY
