"""Settings of one machine from the environment (`JUNCTOR_*`) or a TOML file. Main function: `load_settings`."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from junctor_kernels.cpu.compilation import QUIET

from junctor.model.errors import InputError, JunctorError, Place, nearest
from junctor.model.option_table import (
    DeviceOptions,
    MemoryOptions,
    Option,
    PrefectOptions,
    RowResources,
    SchedulerOptions,
    SpillOptions,
    ThreadOptions,
    TimeOptions,
    WorkerOptions,
    options_for,
    options_of,
    type_of,
)
from junctor.model.options import ComputeOptions
from junctor.planning.budget import LEAST_LIMIT, parse_time_limit, parse_told_bytes
from junctor.runtime.cache import VARIABLE, cache_bytes
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.machine import compute_options

# Options of a command go before the environment, and the environment before junctor.toml, in the current directory or
# at JUNCTOR_CONFIG:
#     workers = 8
#     memory = "16GiB"
PREFIX = "JUNCTOR_"
CONFIG = "JUNCTOR_CONFIG"


# By what the table says that a text stands for: what returns its number, and the least that this may be.
_PARSE: dict[str | None, tuple[Callable[[str], float], float]] = {
    "size": (parse_told_bytes, 1),
    "time": (parse_time_limit, LEAST_LIMIT),
}
# The texts of settings that are true or false.
_ON, _OFF = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class Settings(
    WorkerOptions,
    ThreadOptions,
    MemoryOptions,
    SchedulerOptions,
    DeviceOptions,
    SpillOptions,
    TimeOptions,
    PrefectOptions,
    total=False,
):
    """What is set, under the users' names: sizes in bytes, times in seconds."""

    cache: Annotated[int | str, Option(None, "Most bytes of plans and bytecode that are kept.", least=0)]
    quiet: Annotated[bool, Option(False, "Say nothing of progress and compilation on stderr.")]


def compute_of(settings: Settings, options: Mapping[str, object]) -> ComputeOptions:
    """Return the resources of a computation: the options that are given, then the settings, then defaults.

    options: of a command, whichever resources it has.
    """
    given: Mapping[str, Any] = {**settings, **options}
    return compute_options(**options_for(RowResources, given))


def resources_of(settings: Settings, options: Mapping[str, object]) -> Resources:
    """Return the resources of a run, as `compute_of`."""
    given: Mapping[str, Any] = {**settings, **options}
    workers, scheduler = options_for(WorkerOptions, given), options_for(SchedulerOptions, given)
    return Resources(**workers, **scheduler, compute=compute_of(settings, options))


_ROWS = options_of(Settings)
_NAMES = tuple(_ROWS)


def load_settings() -> Settings:
    """Return the settings; raises InputError for unknown names, bad values and files that are not TOML."""
    _refuse_misspelt()
    given = _from_file() | _from_environment()
    settings = _checked(given) if given else Settings()
    if "cache" in settings:
        # For workers too: they read no settings.
        os.environ[VARIABLE] = str(settings["cache"])
    if "quiet" in settings:
        # Kernels read none either.
        os.environ[QUIET] = str(settings["quiet"])
    return settings


def _checked(given: dict[str, Any]) -> Settings:
    """Return the settings of a dictionary; raises InputError for bad values."""
    settings: Settings = {}
    wrong = []
    for name, found in given.items():
        try:
            settings[name] = _value(name, found)  # type: ignore[literal-required]
        except (ValueError, JunctorError) as error:
            wrong.append(_explain(name, found, error))
    if wrong:
        raise InputError("; ".join(wrong))
    return settings


def _value(name: str, found: object) -> object:
    """Return what a setting stands for; raises ValueError or JunctorError, in words, for what it cannot be."""
    row, kind = _ROWS[name], type_of(Settings, name)
    parse, least = (cache_bytes, 0) if name == "cache" else _PARSE.get(row.text, (_plain, row.least))
    if least is not None:
        return _number(found, parse, least, whole=row.text != "time")
    if bool in (kind, *get_args(kind)):
        return _switch(found)
    if not isinstance(found, str):
        raise ValueError("expected a text")
    if get_origin(kind) is Literal and found not in get_args(kind):
        raise ValueError(f"expected {' or '.join(get_args(kind))}")
    return found


def _switch(found: object) -> bool:
    # Also what TOML has for 1, and Python for a text of the environment.
    word = str(found).lower()
    if word not in (*_ON, *_OFF):
        raise ValueError("expected true or false")
    return word in _ON


def _number(found: object, parse: Callable[[str], float], least: float, whole: bool) -> float:
    value = parse(found) if isinstance(found, str) else found
    # To Python `true` is the number 1: one byte of memory.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("expected a number")
    if not value >= least:
        raise ValueError(f"expected {least} or more")
    if not whole:
        return float(value)
    # An infinite one has a remainder that is no number.
    if value % 1 != 0:
        raise ValueError("expected a whole number")
    return int(value)


def _plain(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("expected a number") from None


def _from_file() -> dict[str, Any]:
    path = Path(_file())
    if not os.environ.get(CONFIG) and not path.exists():
        return {}
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot read the settings: {error}", Place(str(path))) from error
    for name in settings:
        if name not in _NAMES:
            raise InputError(_unknown(name), Place(str(path)))
    return settings


def _file() -> str:
    # Without a text it is unset, as the others are.
    return os.environ.get(CONFIG) or "junctor.toml"


def _from_environment() -> dict[str, str]:
    """Return the settings that have a text in the environment; one without any is unset."""
    named = {name: os.environ.get(PREFIX + name.upper()) for name in _NAMES}
    return {name: text for name, text in named.items() if text}


def _refuse_misspelt() -> None:
    # Other programs may have variables with this prefix; one with nearly a name of ours is a slip of the user.
    names = [name[len(PREFIX) :].lower() for name in os.environ if name.startswith(PREFIX) and name != CONFIG]
    for name in names:
        if name not in _NAMES and nearest(name, _NAMES):
            raise InputError(f"environment variable {PREFIX}{name.upper()}: {_unknown(name)}")


def _unknown(name: str) -> str:
    return f"unknown setting {name!r}{nearest(name, _NAMES) or '.'} Known are {', '.join(_NAMES)}"


def _explain(name: str, found: object, error: Exception) -> str:
    variable = f"{PREFIX}{name.upper()}"
    where = variable if os.environ.get(variable) else _file()
    return f"setting {name!r} ({where}): found {found!r}: {error}"
