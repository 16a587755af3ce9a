"""Tasks over the threads of this process, for work without Python's lock. Main function: `in_threads`."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

# Most seconds until Ctrl-C is noticed, in addition to the current task of each thread.
WAKE_SECONDS = 0.1


def in_threads(function: Callable[[Task, int], Result], tasks: Sequence[Task], threads: int) -> list[Result]:
    """Return `function(task, place)` for every task, in their order.

    function: called with a task and the number of its thread, below `threads`.
    tasks: taken in their order.
    threads: 1 for the calling thread itself.
    An exception, or Ctrl-C in the calling thread, is raised after the current task of every thread.
    """
    threads = min(threads, len(tasks))
    # Without a pool: tracebacks are shorter, and small work does not pay for threads.
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
            # In short waits, because a signal to another thread does not end this one.
            while wait(futures, WAKE_SECONDS).not_done:
                pass
        finally:
            stopped.set()
    for future in futures:
        future.result()
    return [results[number] for number in range(len(tasks))]
