"""Progress of runs, displayed by the command line and by flows. Main class: Progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Progress(Protocol):
    """A display of the stages of a run and of the rows done."""

    def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
        """Begin the stage `name` with `done` of `rows` (None: unknown) done already."""

    def advance(self, rows: int) -> None:
        """Count `rows` more."""

    def passes(self, done: int, of: int) -> None:
        """Show how far a single row is that takes many passes, `done` of them."""


class Silence:
    """No display."""

    def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
        """Ignore it."""

    def advance(self, rows: int) -> None:
        """Ignore it."""

    def passes(self, done: int, of: int) -> None:
        """Ignore it."""


# Passes are far below the steps of a run, and hardly any row has them: the display is not handed down to them.
_display: ContextVar[Progress] = ContextVar("passes", default=Silence())  # noqa: B039


@contextmanager
def shows_passes(progress: Progress) -> Iterator[None]:
    """Context manager: `pass_done` in this thread tells `progress`."""
    token = _display.set(progress)
    try:
        yield
    finally:
        _display.reset(token)


def pass_done(done: int, of: int) -> None:
    """Tell the display of the run, if there is one, that `done` of all passes of a row are done."""
    _display.get().passes(done, of)
