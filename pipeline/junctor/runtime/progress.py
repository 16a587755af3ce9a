"""Progress of runs, displayed by the command line and by flows. Main class: Progress."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A display of the stages of a run and of the rows done."""

    def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
        """Begin the stage `name` with `done` of `rows` (None: unknown) done already."""

    def advance(self, rows: int) -> None:
        """Count `rows` more."""


class Silence:
    """No display."""

    def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
        """Ignore it."""

    def advance(self, rows: int) -> None:
        """Ignore it."""
