"""Seconds of compilation: counted once, told once."""

from __future__ import annotations

import threading
import time

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
