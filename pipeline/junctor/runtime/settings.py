"""Settings of one machine from the environment (`JUNCTOR_*`) or a TOML file. Main function: `load_settings`."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from junctor.model.errors import InputError, JunctorError, Place, nearest
from junctor.model.options import ComputeOptions, DeviceChoice
from junctor.planning.budget import LEAST_LIMIT, parse_bytes, parse_time_limit
from junctor.runtime.cache import VARIABLE, cache_bytes
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.machine import compute_options

# Options of a command go before the environment, and the environment before junctor.toml, in the current directory or
# at JUNCTOR_CONFIG:
#     workers = 8
#     memory = "16GiB"
PREFIX = "JUNCTOR_"
CONFIG = "JUNCTOR_CONFIG"


# What numbers may be at the least, and what returns the number that a text stands for.
_LEAST = {"workers": 0, "threads": 1, "memory": 1, "device_memory": 1, "disk": 1, "cache": 0, "time_limit": LEAST_LIMIT}
_PARSE: dict[str, Callable[[str], float]] = {
    "memory": parse_bytes,
    "device_memory": parse_bytes,
    "disk": parse_bytes,
    "cache": cache_bytes,
    "time_limit": parse_time_limit,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Resources under the users' names; None for unset."""

    workers: int | None = None
    threads: int | None = None
    memory: int | None = None
    scheduler: str | None = None
    insecure_scheduler: bool = False
    device: DeviceChoice | None = None
    device_memory: int | None = None
    spill: str | None = None
    disk: int | None = None
    time_limit: float | None = None
    prefect: bool | None = None
    cache: int | None = None

    @property
    def compute(self) -> ComputeOptions:
        """Resources of a computation without options."""
        device = self.device or "auto"
        sizes = self.memory, self.threads, device, self.device_memory, self.spill, self.disk
        return compute_options(*sizes, self.time_limit)

    def resources_with(
        self, compute: ComputeOptions, workers: int | None, scheduler: str | None, insecure_scheduler: bool
    ) -> Resources:
        """Return the resources of a run; for options that are None, those of the settings."""
        return Resources(
            self.workers if workers is None else workers,
            self.scheduler if scheduler is None else scheduler,
            self.insecure_scheduler or insecure_scheduler,
            compute,
        )


_NAMES = tuple(each.name for each in fields(Settings))


def load_settings() -> Settings:
    """Return the settings; raises InputError for unknown names, bad values and files that are not TOML."""
    _refuse_misspelt()
    given = _from_file() | _from_environment()
    settings = _checked(given) if given else Settings()
    if settings.cache is not None:
        # For workers too: they read no settings.
        os.environ[VARIABLE] = str(settings.cache)
    return settings


def _checked(given: dict[str, Any]) -> Settings:
    """Return the settings of a dictionary; raises InputError for bad values."""
    # Imported where something is set: it takes a tenth of a second of each command. Not pydantic-settings, which loads
    # what reads secrets of clouds, for as long again.
    from pydantic import BeforeValidator, Field, ValidationError, create_model

    types = get_type_hints(Settings)
    checks: dict[str, Any] = {}
    for each in fields(Settings):
        kind = types[each.name]
        if each.name in _LEAST:
            kind = Annotated[kind, Field(ge=_LEAST[each.name]), BeforeValidator(_no_truth)]
        if each.name in _PARSE:
            kind = Annotated[kind, BeforeValidator(_parsing(_PARSE[each.name]))]
        checks[each.name] = (kind, each.default)
    try:
        return Settings(**create_model("Settings", **checks)(**given).model_dump())
    except ValidationError as error:
        raise InputError("; ".join(_explain(item) for item in error.errors())) from None


def _no_truth(value: object) -> object:
    # To Python `true` is the number 1: one byte of memory.
    if isinstance(value, bool):
        raise ValueError("Input should be a number")
    return value


def _parsing(parse: Callable[[str], float]) -> Callable[[object], object]:
    """Return what parses texts and leaves the rest to the check of the type."""

    def parsed(value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except JunctorError as error:
            raise ValueError(str(error)) from None

    return parsed


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


def _explain(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"][:1])
    variable = f"{PREFIX}{name.upper()}"
    where = variable if os.environ.get(variable) else _file()
    return f"setting {name!r} ({where}): found {error['input']!r}: {error['msg'].removeprefix('Value error, ')}"
