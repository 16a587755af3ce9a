"""Progress of runs, displayed by the command line and by flows. Main class: Progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

Count = Callable[[], int]


class Progress(Protocol):
    """A display of the stages of a run and of the rows done."""

    def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
        """Begin the stage `name` with `done` of `rows` (None: unknown) done already."""

    def advance(self, rows: int) -> None:
        """Count `rows` more."""

    def within(self, rows: Count) -> None:
        """Count rows of unfinished parts as well, as `rows` returns them whenever it is asked, by any thread."""

    def passes(self, done: int, of: int) -> None:
        """Show how far a single row is that takes many passes, `done` of them."""

    def part(self, name: str, seconds: float | None = None) -> None:
        """Be told of a part that begins, where that is known, and of one that is finished: seconds of work for it."""


class Silence:
    """No display."""

    def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
        """Ignore it."""

    def advance(self, rows: int) -> None:
        """Ignore it."""

    def within(self, rows: Count) -> None:
        """Ignore it."""

    def passes(self, done: int, of: int) -> None:
        """Ignore it."""

    def part(self, name: str, seconds: float | None = None) -> None:
        """Ignore it."""


class _PartRows:
    """Rows of parts in progress, as whoever answers them counts; each count with rows of a part for each of its own."""

    def __init__(self) -> None:
        self.counts: list[tuple[Count, float]] = []

    def __call__(self) -> int:
        """Return the rows that are done."""
        return int(sum(share * count() for count, share in tuple(self.counts)))


# Rows and passes are far below the steps of a run: the display is not handed down to them.
_display: ContextVar[Progress] = ContextVar("display", default=Silence())  # noqa: B039
_part: ContextVar[_PartRows | None] = ContextVar("part", default=None)


@contextmanager
def shows_work(progress: Progress) -> Iterator[None]:
    """Context manager: `counts_rows` and `pass_done` in this thread tell `progress`."""
    part = _PartRows()
    tokens = _display.set(progress), _part.set(part)
    progress.within(part)
    try:
        yield
    finally:
        _display.reset(tokens[0])
        _part.reset(tokens[1])


@contextmanager
def counts_rows(count: Count, share: float | None = None) -> Iterator[None]:
    """Context manager: meanwhile `count` says how many rows are answered, beside those of other counts.

    count: called by another thread, at any time.
    share: rows of the part for each row that is counted; None for that of a count around this one.
    """
    part = _part.get()
    if part is None:
        yield
        return
    its_share = part.counts[-1][1] if share is None else share
    part.counts.append((count, its_share))
    try:
        yield
    finally:
        part.counts.pop()


def part_begins(name: str) -> None:
    """Tell the display of the run, if there is one, that a part begins."""
    _display.get().part(name)


def pass_done(done: int, of: int) -> None:
    """Tell the display of the run, if there is one, that `done` of all passes of a row are done."""
    _display.get().passes(done, of)
