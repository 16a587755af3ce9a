"""Captures and waits of a device: one after the other, and what finalizers leave comes behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
from junctor_kernels.gpu.captures import Captures, captures_of


def test_what_comes_later_is_done_at_once_where_nothing_goes_on() -> None:
    captures, done = Captures(), list[int]()
    captures.later(lambda: done.append(1))
    assert done == [1]


def test_what_comes_during_a_capture_is_done_behind_it_in_order() -> None:
    captures, done = Captures(), list[int]()

    def capture() -> None:
        with captures.apart():
            for n in range(3):
                captures.later(partial(done.append, n))
            assert not done
            raise RuntimeError

    with pytest.raises(RuntimeError):
        capture()
    assert done == [0, 1, 2]


def test_what_comes_while_something_left_is_done_comes_behind_it() -> None:
    captures, done = Captures(), list[str]()

    def first() -> None:
        # A collection in the middle of what a collection has left.
        captures.later(lambda: done.append("inner"))
        done.append("outer")

    captures.later(first)
    assert done == ["outer", "inner"]


def test_a_failure_leaves_the_others_to_the_next() -> None:
    captures, done = Captures(), list[int]()

    def fail() -> None:
        raise RuntimeError("the device has failed")

    def capture() -> None:
        with captures.apart():
            captures.later(fail)
            captures.later(partial(done.append, 1))

    with pytest.raises(RuntimeError, match="failed"):
        capture()
    with captures.apart():
        pass
    assert done == [1]


def test_threads_are_kept_apart_and_nothing_is_forgotten() -> None:
    captures, inside, done = captures_of(12345), list[int](), list[int]()
    most = 0

    def wait() -> None:
        nonlocal most
        inside.append(1)
        most = max(most, len(inside))
        inside.pop()

    def work(n: int) -> Callable[[], None]:
        def left() -> None:
            wait()
            done.append(n)

        return left

    def run(thread: int) -> None:
        for n in range(500):
            captures_of(12345).later(work(1000 * thread + n))
            with captures.apart():
                wait()
                captures.later(work(1000 * thread + n))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert sorted(done) == sorted(2 * [1000 * thread + n for thread in range(4) for n in range(500)])
