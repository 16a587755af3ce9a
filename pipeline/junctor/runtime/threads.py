"""Tasks over the threads of this process, for work without Python's lock.

Main functions: `in_threads`, `stretches`, `ahead`; main classes: `Threads`, `Turns`.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, thread, wait
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import pairwise
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

# Most seconds until Ctrl-C is noticed, in addition to the current task of each thread.
WAKE_SECONDS = 0.1
# Seconds after which a thread that is in Python gives way to others; Python's own are a hundred times as many.
TURN_SECONDS = 5e-5
# Pools of threads that wait for work: one for each call at a time, and for each call within another.
IDLE_POOLS = 4


class _ShortTurns:
    """How many ask for short turns at a time, and the turn that there was before them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = 0
        self._before = 0.0

    def begin(self) -> None:
        with self._lock:
            if not self._asked:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, TURN_SECONDS))
            self._asked += 1

    def end(self) -> None:
        with self._lock:
            self._asked -= 1
            if not self._asked:
                sys.setswitchinterval(self._before)


_short_turns = _ShortTurns()


@contextmanager
def short_gil_switches() -> Iterator[None]:
    """Context manager, or decorator: threads of this process that wait for Python's lock get it soon.

    A thread that leaves the lock for a short while, as each call of NumPy or Arrow does, waits for a whole turn of
    another one to get it back: with sixteen threads that write, a GPU waited for half of the time.
    """
    _short_turns.begin()
    try:
        yield
    finally:
        _short_turns.end()


class Threads(ThreadPoolExecutor):
    """Threads that do what is submitted. Once the main thread has ended Python gives none, and the caller does it."""

    def submit(self, function: Callable[..., Result], /, *args: Any, **named: Any) -> Future[Result]:
        """Return what will have the result of `function(*args, **named)`."""
        try:
            return super().submit(function, *args, **named)
        except RuntimeError:
            if not thread._shutdown:
                raise
        done: Future[Result] = Future()
        try:
            done.set_result(function(*args, **named))
        except BaseException as error:
            done.set_exception(error)
        return done


class _Pools:
    """Pools of threads at rest: to start sixteen threads takes as long as a block of cases."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[int, Threads]] = []

    @contextmanager
    def lend(self, threads: int) -> Iterator[Threads]:
        """Context manager: a pool of at least so many threads, of which none does anything else."""
        with self._lock:
            fitting = [each for each in self._idle if each[0] >= threads]
            pool = min(fitting, key=lambda each: each[0]) if fitting else None
            if pool is not None:
                self._idle.remove(pool)
        if pool is None:
            pool = threads, Threads(threads, thread_name_prefix="junctor")
        try:
            yield pool[1]
        except BaseException:
            # Some of its threads may be at work.
            pool[1].shutdown()
            raise
        with self._lock:
            self._idle.append(pool)
            left = self._idle.pop(0) if len(self._idle) > IDLE_POOLS else None
        if left is not None:
            left[1].shutdown(wait=False)

    def forget(self) -> None:
        """Forget all pools: a process that was forked has none of their threads, and no thread to free the lock."""
        self._lock, self._idle = threading.Lock(), []


_pools = _Pools()
os.register_at_fork(after_in_child=_pools.forget)


class Turns:
    """A lock that threads get in the order in which they ask for it; one of Python's goes to whoever is quickest.

    For work that holds Python's lock and leaves it for short whiles very often: threads that are all at it at once
    spend most of their time on getting the lock back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_taken = False
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                return
            mine = threading.Event()
            self._waiting.append(mine)
        # Whoever sets it hands the lock over.
        mine.wait()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._is_taken = False

    def give_way(self) -> None:
        """Let all threads that wait for the lock have it before this one, which has it, goes on."""
        if self._waiting:
            with self.left():
                pass

    @contextmanager
    def left(self) -> Iterator[None]:
        """Context manager: meanwhile others may have the lock that this thread has."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()


def stretches(count: int, parts: int, most: int = sys.maxsize) -> list[slice]:
    """Return consecutive parts of so many items, of about one size.

    count: of the items.
    parts: how many parts, if there are as many items; at least one.
    most: items of a part, at least one; there are more parts then.
    """
    parts = max(1, min(parts, count), -(-count // max(1, most)))
    bounds = [count * n // parts for n in range(parts + 1)]
    return [slice(first, last) for first, last in pairwise(bounds)] if count else []


def in_threads(
    function: Callable[[Task, int], Result],
    tasks: Sequence[Task],
    threads: int,
    stop: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Return `function(task, place)` for every task, in their order.

    function: called with a task and the number of its thread, below `threads`.
    tasks: taken in their order.
    threads: 1 for the calling thread itself.
    stop: called once no other task is to begin, for tasks that look whether they should end.
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
            stop()
            raise

    with _pools.lend(threads) as pool:
        futures = [pool.submit(work, place) for place in range(threads)]
        try:
            # In short waits, because a signal to another thread does not end this one.
            while wait(futures, WAKE_SECONDS).not_done:
                pass
        finally:
            stopped.set()
            stop()
    for future in futures:
        future.result()
    return [results[number] for number in range(len(tasks))]


def ahead(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    threads: int,
    weigh: Callable[[Task], int] = lambda task: 0,
    most: int = 0,
) -> Generator[Result, None, None]:
    """Yield `function(task)` for every task, in their order; threads are ahead of the caller, who makes the tasks.

    function: called with a task.
    tasks: taken in their order, one more than there are threads at a time.
    threads: 1 for the calling thread itself, never ahead.
    weigh: bytes of a task.
    most: bytes of all tasks at a time, unless it is a single one.
    An exception of the tasks or of one of them is raised after the results before it.
    """
    if threads < 2:
        yield from map(function, tasks)
        return
    under_way: deque[tuple[int, Future[Result]]] = deque()
    remaining = iter(tasks)
    with Threads(threads, thread_name_prefix="junctor") as pool:
        try:
            while (task := _next(remaining)) is not None:
                # What went wrong here is told when its turn comes.
                if isinstance(task, Future):
                    under_way.append((0, task))
                    break
                bytes_of_task = weigh(task[0])
                while under_way and (
                    len(under_way) > threads or sum(size for size, _ in under_way) + bytes_of_task > most
                ):
                    yield under_way.popleft()[1].result()
                under_way.append((bytes_of_task, pool.submit(function, task[0])))
            while under_way:
                yield under_way.popleft()[1].result()
        finally:
            for _, future in under_way:
                future.cancel()


def import_ahead(module: str) -> None:
    """Begin to import a module in another thread, for a time when this one waits for files; errors are left to that."""

    def import_it() -> None:
        with suppress(ImportError):
            import_module(module)

    threading.Thread(target=import_it, name="junctor-import", daemon=True).start()


def _next(tasks: Iterator[Task]) -> tuple[Task] | Future[Any] | None:
    """Return the next task, None after the last one, or a future with the exception of making it."""
    try:
        return (next(tasks),)
    except StopIteration:
        return None
    except Exception as error:
        failed: Future[Any] = Future()
        failed.set_exception(error)
        return failed
