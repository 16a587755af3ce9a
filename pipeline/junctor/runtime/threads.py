"""Tasks over the threads of this process, for work that goes on without Python's lock."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

# Seconds until Ctrl-C is noticed, at the most, beside the task that each thread is at.
WAKE_SECONDS = 0.1


def in_threads(function: Callable[[Task, int], Result], tasks: Sequence[Task], threads: int) -> list[Result]:
    """Return `function(task, place)` for every task, in their order; place: number of the thread, below `threads`.

    A single one is the calling thread itself. An exception, Ctrl-C in the calling thread as well, is raised as soon as
    every thread is through with the task that it is at.
    """
    threads = min(threads, len(tasks))
    if threads < 2:
        return [function(task, 0) for task in tasks]
    waiting: queue.SimpleQueue[tuple[int, Task]] = queue.SimpleQueue()
    for numbered in enumerate(tasks):
        waiting.put(numbered)
    results: dict[int, Result] = {}
    stopped = threading.Event()

    def work(place: int) -> None:
        try:
            while not stopped.is_set():
                number, task = waiting.get_nowait()
                results[number] = function(task, place)
        except queue.Empty:
            pass
        except BaseException:
            stopped.set()
            raise

    with ThreadPoolExecutor(threads, thread_name_prefix="junctor") as pool:
        futures = [pool.submit(work, place) for place in range(threads)]
        try:
            # Now and then, because a signal that another thread received wakes nobody.
            while wait(futures, WAKE_SECONDS).not_done:
                pass
        finally:
            stopped.set()
    for future in futures:
        future.result()
    return [results[number] for number in range(len(tasks))]
