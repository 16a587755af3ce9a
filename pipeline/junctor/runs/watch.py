"""Who watches a run besides its display: the page of a Prefect server, metrics.

Main class: Watch, made by the command line; `Watcher` is what it tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from junctor.runs.manifest import Manifest
from junctor.runs.workload import Workload
from junctor.runtime.progress import Count, Progress


class Watcher(Progress, Protocol):
    """Is told of a run from its beginning to its end; raises nothing, and lets nothing wait."""

    def begin(self, job: Workload) -> None:
        """Be told what begins."""

    def end(self, manifest: Manifest | None, error: BaseException | None) -> None:
        """Be told how it ended; one of both is None."""


class Watch:
    """The progress of a run, told to a display and to watchers.

    manifest: of the run, to be set when it is finished.
    """

    def __init__(self, display: Progress, watchers: Sequence[Watcher]) -> None:
        self.manifest: Manifest | None = None
        self._watchers = watchers
        self._all: tuple[Progress, ...] = (display, *watchers)

    def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
        """Tell all."""
        for each in self._all:
            each.stage(name, rows, done)

    def advance(self, rows: int) -> None:
        """Tell all."""
        for each in self._all:
            each.advance(rows)

    def within(self, rows: Count) -> None:
        """Tell all."""
        for each in self._all:
            each.within(rows)

    def passes(self, done: int, of: int) -> None:
        """Tell all."""
        for each in self._all:
            each.passes(done, of)

    def part(self, name: str, seconds: float | None = None) -> None:
        """Tell all."""
        for each in self._all:
            each.part(name, seconds)


@contextmanager
def watched(job: Workload, display: Progress, watchers: Sequence[Watcher]) -> Iterator[Watch]:
    """Context manager: the watch of a run; how the body ends is told to all watchers.

    job: what runs.
    display: of the terminal, told of progress alone.
    watchers: any number of them.
    """
    watch = Watch(display, watchers)
    for each in watchers:
        each.begin(job)
    error: BaseException | None = None
    try:
        yield watch
    except BaseException as raised:
        error = raised
        raise
    finally:
        for each in watchers:
            each.end(watch.manifest if error is None else None, error)
