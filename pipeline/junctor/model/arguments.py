"""Types of the arguments that users give to functions: what is of another type is refused in words, at the entry.

Main functions: `texts`, `whole` and `real`; called by the API. What they return is of one type whatever was given, so
that it may be compared, kept and written.
"""

from __future__ import annotations

import operator
from contextlib import suppress
from numbers import Real
from typing import Any

from junctor.model.errors import EvidenceError, JunctorError


def texts(what: str, found: Any, numbers: bool = False) -> tuple[str, ...]:
    """Return an argument of names as a tuple: of a sequence, or of one name; none for None.

    what: name of the argument.
    found: its value; Arrow arrays are sequences, too.
    numbers: whether whole numbers are taken, as their texts.
    Raises EvidenceError for anything else.
    """
    if found is None or (type(found) is tuple and not found):
        return ()
    # A name alone would otherwise pass for a sequence of letters.
    if isinstance(found, str):
        return (found,)
    with suppress(TypeError):
        if isinstance(found, bytes):
            raise TypeError
        names = found.to_pylist() if hasattr(found, "to_pylist") else tuple(found)
        return tuple(name if isinstance(name, str) else _text(what, name, numbers) for name in names)
    raise EvidenceError(f"found {what} {_shown(found)}, expected a list of texts{' or whole numbers' * numbers}")


def _text(what: str, found: Any, numbers: bool) -> str:
    if not numbers:
        raise EvidenceError(f"found {_shown(found)} in {what}, expected texts")
    return str(_index(found, f"found {_shown(found)} in {what}, expected texts or whole numbers", EvidenceError))


def text(what: str, found: Any, refused: type[JunctorError] = EvidenceError) -> Any:
    """Return an argument that is a text or None; raises `refused` for anything else."""
    if found is None or isinstance(found, str):
        return found
    raise refused(f"found {what} {_shown(found)}, expected a text")


def whole(what: str, found: Any, refused: type[JunctorError] = EvidenceError) -> int:
    """Return an argument that is a whole number, of NumPy as well, as an int; raises `refused` for anything else."""
    if type(found) is int:
        return found
    return _index(found, f"found {what} {_shown(found)}, expected a whole number", refused)


def _index(found: Any, message: str, refused: type[JunctorError]) -> int:
    if not isinstance(found, bool):
        with suppress(TypeError):
            return operator.index(found)
    raise refused(message)


def real(what: str, found: Any, refused: type[JunctorError] = EvidenceError) -> float:
    """Return an argument that is a number, of NumPy as well, as a float; raises `refused` for anything else."""
    if isinstance(found, Real) and not isinstance(found, bool):
        with suppress(OverflowError):
            return float(found)
    raise refused(f"found {what} {_shown(found)}, expected a number")


def _shown(found: Any) -> str:
    shown = repr(found)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."
