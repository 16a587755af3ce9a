"""Several processes that need the same function: one of them compiles it, whatever happens to the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.compiling import held, said, start
from junctor_kernels.cpu.turns import Turn

CALL = "from module import *\nprint(outer(1.0), compilation.functions, compilation.seconds > 0)"


def test_a_function_is_compiled_once(tmp_path: Path) -> None:
    results = [said(each) for each in [start(tmp_path, CALL) for _ in range(3)]]
    assert [result[0] for result in results] == ["3.0"] * 3
    # Two functions, each by whoever came first; who waits has time that no rate is about.
    assert sum(int(result[1]) for result in results) == 2
    assert [result[2] for result in results] == ["True"] * 3
    assert said(start(tmp_path, CALL)) == ["3.0", "0", "False"]


def test_the_turn_of_a_killed_process_is_free(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    with held(tmp_path, lock) as process:
        assert not Turn(str(lock)).take(0.1)
        process.kill()
        assert Turn(str(lock)).take(50.0)


@pytest.mark.slow
def test_waiting_has_an_end(tmp_path: Path) -> None:
    assert said(start(tmp_path, CALL)) == ["3.0", "2", "True"]
    kept = sorted((tmp_path / "cache").rglob("*.nb?"))
    for path in kept:
        path.unlink()
    lock = next((tmp_path / "cache").rglob("module.outer*.lock"))
    impatient = f"from junctor_kernels.cpu import turns\nturns.Turn.take.__defaults__ = (0.2,)\n{CALL}"
    with held(tmp_path, lock):
        assert said(start(tmp_path, impatient)) == ["3.0", "2", "True"]
    assert sorted((tmp_path / "cache").rglob("*.nb?")) == kept


@pytest.mark.slow
def test_without_locks_everyone_compiles(tmp_path: Path) -> None:
    assert said(start(tmp_path, CALL)) == ["3.0", "2", "True"]
    for path in (tmp_path / "cache").rglob("*.nb?"):
        path.unlink()
    # Files that cannot be opened for writing, whoever runs the tests.
    for path in (tmp_path / "cache").rglob("*.lock"):
        path.unlink()
        path.mkdir()
    assert said(start(tmp_path, CALL)) == ["3.0", "2", "True"]
    assert said(start(tmp_path, CALL)) == ["3.0", "0", "False"]


def test_file_systems_without_locks_have_no_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.lockf", refuse)
    assert Turn(str(tmp_path / "a.lock")).take(0.0)
    assert Turn(str(tmp_path / "nowhere" / "a.lock")).take(0.0)


def test_a_turn_ends_where_compiling_fails(tmp_path: Path) -> None:
    code = """
from module import *
from glob import glob
from subprocess import check_output
from numba import TypingError

try:
    wrong(1.0)
except TypingError:
    ended = compilation.seconds
    time.sleep(0.01)
    assert compilation.seconds == ended > 0
    locks = glob(sys.argv[1] + "/cache/**/*wrong*.lock", recursive=True)
    take = "import sys; from junctor_kernels.cpu.turns import Turn; print(*(Turn(p).take(0.0) for p in sys.argv[1:]))"
    print(check_output([sys.executable, "-c", take, *locks], text=True))
"""
    assert said(start(tmp_path, code, str(tmp_path))) == ["True"]
