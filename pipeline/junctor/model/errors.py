"""Errors that Junctor raises on purpose, and places in the input that they refer to. Base class: JunctorError."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A position in the input: file, line and column as far as they are known (from 1)."""

    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        parts = [self.file or "<input>"]
        if self.line is not None:
            parts.append(str(self.line))
            if self.column is not None:
                parts.append(str(self.column))
        return ":".join(parts)


class JunctorError(Exception):
    """Base of all errors that a user can resolve; `exit_code` is what the command line returns."""

    # Codes stand in docs and scripts: they never change. 2 is taken by wrong usage of the command line.
    exit_code = 1


class InputError(JunctorError):
    """Input that cannot be used. The message says what was found, what was expected and where."""

    exit_code = 3

    def __init__(self, message: str, place: Place | None = None) -> None:
        self.place = place
        self.message = message
        super().__init__(f"{place}: {message}" if place is not None else message)

    def __reduce__(self) -> tuple[type[InputError], tuple[str, Place | None]]:
        # Exceptions pickle by `args`, which is the joined text; Dask workers and Prefect would lose the place.
        return type(self), (self.message, self.place)


class ModelError(InputError):
    """A network file that cannot be read, or a network that is not one."""


class EvidenceError(InputError):
    """An evidence table or query that does not fit the network."""


class BudgetError(JunctorError):
    """The work does not fit the memory or time that is allowed; says needed, allowed, where, and the next move."""

    exit_code = 5


class DiskError(JunctorError):
    """Files for tables that exceed the memory cannot be written, though there seemed to be room for them."""

    exit_code = 5


class DeviceError(JunctorError):
    """A GPU that was asked for and cannot be used."""

    exit_code = 5


class RunError(JunctorError):
    """A run directory that cannot be used or continued."""

    exit_code = 6


class RefusedError(RunError):
    """A file that the system or a store does not let be read or written: what is in it is not known."""


class ThresholdError(JunctorError):
    """A finished run or fit that crosses a threshold of its user; answers of a run are kept."""

    exit_code = 7


class AllInvalidError(JunctorError):
    """A finished run or count all of whose rows are invalid: columns or names are not those of the network."""

    exit_code = 4


def counted(value: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun; plural: of it, where that is more than an s."""
    return f"{value:,} {noun if value == 1 else plural or f'{noun}s'}"


def nearest(name: object, known: Iterable[str]) -> str:
    """Return ", did you mean 'x' or 'y'?" for the known names nearest to `name`, or an empty string."""
    # Names that users give may be numbers.
    name = str(name)
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    if not close:
        # `Yes` for `YES` shares too few characters; only a second search without case finds it.
        lowered = {candidate.lower(): candidate for candidate in known}
        close = [lowered[match] for match in difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.6)]
    return f", did you mean {' or '.join(repr(match) for match in close)}?" if close else ""
