"""What a command has to know where a deployed flow, or `junctor deploy`, calls it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from junctor.runs.watch import Watcher

# The reporter of the flow run that a command is part of.
deployed: ContextVar[Watcher | None] = ContextVar("deployed", default=None)
# What a command says of its end where it has no reporter.
_conclusion: ContextVar[str] = ContextVar("conclusion", default="")
_is_check: ContextVar[bool] = ContextVar("check", default=False)


def conclude(message: str) -> None:
    """Say what came of a command, in a line."""
    _conclusion.set(message)


def conclusion() -> str:
    """Return what the command has said of its end."""
    return _conclusion.get()


@contextmanager
def checking() -> Iterator[None]:
    """Context manager: commands check their options, and do nothing."""
    token = _is_check.set(True)
    try:
        yield
    finally:
        _is_check.reset(token)


def is_check() -> bool:
    """Return True where a command is only to check its options."""
    return _is_check.get()


def is_recorded() -> bool:
    """Return True where a Prefect server keeps, or is to keep, the options of a command."""
    return is_check() or deployed.get() is not None
