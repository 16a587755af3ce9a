"""Seconds of compilation: counted once, told once."""

from __future__ import annotations

import threading
import time

import pytest
from junctor_kernels.cpu import compilation as module
from junctor_kernels.cpu.compilation import Compilation


def test_what_is_nested_counts_once_and_is_told_once() -> None:
    counted, told = Compilation(), []
    counted.listener = lambda: told.append(1)
    assert counted.seconds == counted.functions == 0
    counted.begin()
    counted.begin()
    time.sleep(0.01)
    counted.end()
    assert counted.seconds > 0.0
    counted.end()
    assert (counted.functions, told) == (2, [1])
    before = counted.seconds
    time.sleep(0.01)
    assert counted.seconds == before


def test_threads_at_once_count_once() -> None:
    counted, started = Compilation(), time.monotonic()

    def work() -> None:
        for _ in range(50):
            counted.begin()
            counted.end()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted.functions == 200
    assert 0 <= counted.seconds <= time.monotonic() - started


def said(counted: Compilation, capsys: pytest.CaptureFixture[str]) -> str:
    for _ in range(2):
        counted.begin()
        counted.end()
    told = capsys.readouterr()
    assert not told.out
    return told.err


def test_a_line_on_stderr_says_so_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUNCTOR_QUIET", raising=False)
    line = said(Compilation(), capsys)
    assert line.startswith("junctor: compiling for this machine, once")
    assert line.count("\n") == 1
    # Whatever else tells takes its place.
    counted = Compilation()
    counted.listener = None
    assert not said(counted, capsys)


@pytest.mark.parametrize(("text", "is_said"), [("true", False), ("1", False), ("", True), ("off", True), ("No", True)])
def test_a_setting_leaves_the_line_out(
    text: str, is_said: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUNCTOR_QUIET", text)
    assert bool(said(Compilation(), capsys)) is is_said


def test_workers_say_nothing_nor_does_a_process_without_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "parent_process", object)
        assert not said(Compilation(), capsys)
    with monkeypatch.context() as patch:
        patch.setattr("sys.stderr", None)
        Compilation().begin()
    assert not capsys.readouterr().err
