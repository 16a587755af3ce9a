"""Every benchmark can be started: it prints its help, and what it imports is there."""

from __future__ import annotations

import ast
import importlib
import runpy
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.files import ROOT

FILES = sorted((ROOT / "benchmarks").glob("*.py"))
# Peers and their environments, and what needs a GPU: no dependencies of the project.
ELSEWHERE = ("cupy", "hmmlearn", "pyagrum", "sklearn")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_starts(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [path.name, "--help"])
    try:
        if '__name__ == "__main__"' not in path.read_text():
            importlib.import_module(path.stem)
            return
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(path), run_name="__main__")
    except ModuleNotFoundError as error:
        if error.name not in ELSEWHERE:
            raise
        pytest.skip(f"needs {error.name}")
    assert not ended.value.code
    assert capsys.readouterr().out.startswith("usage:")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_it_imports_later_is_there(path: Path) -> None:
    for module, name in imported(path):
        there = hasattr(importlib.import_module(module), name) or find_spec(f"{module}.{name}") is not None
        assert there, f"{path.name}: {module} has no {name}"


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Yield what a benchmark takes from modules of the project: module and name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("junctor"):
            yield from ((str(node.module), name.name) for name in node.names)
