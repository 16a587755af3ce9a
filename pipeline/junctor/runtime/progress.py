"""How a run tells what it does; the command line and the flow show it in their own ways."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Hears of each stage of a run and of the rows done in it."""

    def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
        """Begin `name`: of `rows` (None: not known yet) `done` are there already."""

    def advance(self, rows: int) -> None:
        """Count `rows` more."""


class Silence:
    """A progress that nobody watches."""

    def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
        """Ignore it."""

    def advance(self, rows: int) -> None:
        """Ignore it."""
