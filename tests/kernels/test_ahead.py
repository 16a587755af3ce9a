"""The process that compiles ahead: what it compiles, when it is started, and that it harms nobody."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.compiling import held, start
from junctor import generate
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch
from junctor.model.options import ComputeOptions
from junctor.model.pumping_station import SENSORS, plant
from junctor.model.query import Precision, Query
from junctor_kernels.row_trees import ahead

# One function of the module instead of the kernels.
MAIN = """
from module import *
from junctor_kernels.row_trees import ahead
ahead.calls = lambda dtype: [(outer, (1.0,))]
ahead.main("float64")
print(compilation.functions)
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands of processes that would be started."""
    commands: list[list[str]] = []

    def refuse(command: list[str], **_: Any) -> None:
        commands.append(command)
        raise OSError("no more processes")

    monkeypatch.setattr(ahead, "_started", [])
    monkeypatch.setattr(ahead, "_complete", set())
    monkeypatch.setattr(subprocess, "Popen", refuse)
    return commands


def answer(precision: Precision, threads: int = 2) -> None:
    network = plant()
    table = next(generate.evidence_batches(network, 2_000, observed=list(SENSORS), pattern="missing"))
    states = {}
    for variable in (network.index[name] for name in SENSORS):
        numbers = {None: -1} | {state: i for i, state in enumerate(network.variables[variable].states)}
        cells = table[network.variables[variable].name].to_pylist()
        states[variable] = np.array([numbers[cell] for cell in cells], dtype=np.int32)
    options = ComputeOptions(threads=threads, device="cpu")
    engine = Engine(network, Query(precision=precision), options, expected_rows=200_000)
    engine.answer(EvidenceBatch(2_000, states))


@pytest.mark.parametrize(("precision", "dtype"), [("double", "float64"), ("single", "float32")])
def test_types_are_those_of_a_run(precision: Precision, dtype: str) -> None:
    answer(precision)
    for function, arguments in ahead.calls(dtype):
        assert ahead._types(arguments) in function.overloads, function.__name__


def test_nothing_is_started_where_all_is_there(started: list[list[str]]) -> None:
    answer("double")
    assert started == []


def test_what_is_there_is_not_looked_for_again(started: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr(ahead, "_is_missing", lambda function, _: bool(looked.append(function)))
    ahead.start("float64")
    assert looked
    looked.clear()
    ahead.start("float64")
    assert not looked
    ahead.start("float32")
    assert looked


def test_a_process_that_cannot_be_started_is_none(started: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_is_missing", lambda *_: True)
    answer("single")
    assert started
    assert all(command == [sys.executable, "-m", ahead.__name__, "float32"] for command in started)


def test_a_run_on_one_thread_starts_none(started: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_is_missing", lambda *_: True)
    answer("double", threads=1)
    assert started == []


def test_workers_start_none(started: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_is_missing", lambda *_: True)
    monkeypatch.setattr(ahead, "parent_process", object)
    ahead.start("float64")
    assert started == []


def compiled(folder: Path) -> int:
    """Return how many functions a process has compiled whose parent lives on."""
    process = start(folder, MAIN)
    assert process.stdout is not None
    said = process.stdout.read()
    assert process.wait(timeout=50) == 0
    return int(said)


def test_it_compiles_what_is_missing(tmp_path: Path) -> None:
    assert compiled(tmp_path) == 2
    assert compiled(tmp_path) == 0


@pytest.mark.slow
def test_it_leaves_what_others_compile(tmp_path: Path) -> None:
    assert compiled(tmp_path) == 2
    for path in (tmp_path / "cache").rglob("*.nb?"):
        path.unlink()
    with held(tmp_path, next((tmp_path / "cache").rglob("module.outer*.lock"))):
        assert compiled(tmp_path) == 0


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    slow = MAIN.replace("ahead.main", "ahead._is_missing = lambda *_: time.sleep(100)\nahead.main")
    process = start(tmp_path, slow)
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    assert process.wait(timeout=50) == 0
    assert process.stdout is not None
    assert process.stdout.read() == ""
