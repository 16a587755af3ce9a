"""Values of JSON by the types that they should have. Main function: `typed`, called where records of a run are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from junctor.model.errors import RunError

Value = TypeVar("Value")
# Whole numbers beyond are of no file, and no array holds them.
_MOST = 2**63
_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false", NoneType: "null"}


@overload
def typed(kind: type[Value], value: Any, name: str = "") -> Value: ...
@overload
def typed(kind: Any, value: Any, name: str = "") -> Any: ...
def typed(kind: Any, value: Any, name: str = "") -> Any:
    """Return a value of JSON as a type has it: lists as tuples, objects as dataclasses.

    kind: int, float, str, bool, a literal or union of such, dict, tuple, or a dataclass of them, whose own instances
        are looked through as well.
    value: of JSON.
    name: of the value, for the error.
    Raises TypeError, with name, found and expected, for anything else.
    """
    origin, inner, prefix = get_origin(kind), get_args(kind), f"{name}." if name else ""
    if kind is Any:
        return value
    if is_dataclass(kind) and isinstance(kind, type):
        return _instance(kind, value, name)
    if origin in (Union, UnionType):
        return _one_of(inner, value, name)
    if origin is Literal and isinstance(value, str) and value in inner:
        return value
    if origin is dict and isinstance(value, Mapping):
        return {typed(inner[0], key, name): typed(inner[1], each, f"{prefix}{key}") for key, each in value.items()}
    if origin is tuple and isinstance(value, list | tuple) and (inner[-1] is ... or len(inner) == len(value)):
        kinds = inner if inner[-1] is not ... else inner[:1] * len(value)
        return tuple(typed(each, cell, f"{name}[{i}]") for i, (each, cell) in enumerate(zip(kinds, value, strict=True)))
    if origin is None and _is_plain(kind, value):
        return value
    raise _other(value, name, _NAMES.get(kind, str(kind)))


def told(error: Exception) -> str:
    """Return what is wrong with a record in brackets, behind a blank; nothing where that names the file itself."""
    if isinstance(error, RunError):
        return ""
    return f" ({error.args[0]!r} is missing)" if isinstance(error, KeyError) else f" ({error})"


def _is_plain(kind: Any, value: Any) -> bool:
    if kind is float:
        return type(value) is float or (type(value) is int and abs(value) < _MOST)
    if kind is str and type(value) is str:
        # Names of files may have bytes of no text; other halves of characters cannot be written.
        return not any("\ud800" <= sign < "\udc80" or "\udcff" < sign <= "\udfff" for sign in value)
    return type(value) is kind and (kind is not int or abs(value) < _MOST)


def _one_of(kinds: tuple[Any, ...], value: Any, name: str) -> Any:
    error: TypeError | None = None
    for kind in kinds:
        try:
            return typed(kind, value, name)
        except TypeError as found:
            # The most that can be said of a value that is there is what the first kind lacks.
            error = error or found
    assert error is not None
    raise error


def _instance(kind: Any, value: Any, name: str) -> Any:
    if isinstance(value, kind):
        value = {each.name: getattr(value, each.name) for each in fields(kind)}
    if not isinstance(value, Mapping):
        raise _other(value, name, f"an object with {', '.join(_hints(kind))}")
    prefix, known = f"{name}." if name else "", {each.name: each for each in fields(kind)}
    if unknown := [key for key in value if key not in known]:
        raise TypeError(f"{prefix}{unknown[0]}: found an unknown key")
    for each in known.values():
        if each.name not in value and each.default is MISSING and each.default_factory is MISSING:
            raise TypeError(f"{prefix}{each.name} is missing")
    hints = _hints(kind)
    return kind(**{key: typed(hints[key], each, f"{prefix}{key}") for key, each in value.items()})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _other(value: Any, name: str, expected: str) -> TypeError:
    return TypeError(f"{name or 'it'}: found {repr(value)[:60]}, expected {expected}")
