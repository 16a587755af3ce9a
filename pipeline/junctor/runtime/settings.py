"""Settings of one machine from the environment (`JUNCTOR_*`) or a TOML file. Main function: `load_settings`."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any

# Not pydantic-settings: it loads what reads secrets of clouds, which takes a tenth of a second of each command.
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from junctor.model.errors import InputError, JunctorError, Place, nearest
from junctor.model.options import ComputeOptions, DeviceChoice
from junctor.planning.budget import parse_bytes
from junctor.runtime.cache import VARIABLE, cache_bytes
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.machine import compute_options

# Options of a command go before the environment, and the environment before junctor.toml, in the current directory or
# at JUNCTOR_CONFIG:
#     workers = 8
#     memory = "16GiB"
PREFIX = "JUNCTOR_"
CONFIG = "JUNCTOR_CONFIG"


def _bytes(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return parse_bytes(value)
    except JunctorError as error:
        raise ValueError(str(error)) from None


def _cache_bytes(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return cache_bytes(value)
    except JunctorError as error:
        raise ValueError(str(error)) from None


class Settings(BaseModel):
    """Resources under the users' names; None for unset."""

    model_config = ConfigDict(extra="forbid")

    workers: Annotated[int, Field(ge=0)] | None = None
    threads: Annotated[int, Field(ge=1)] | None = None
    memory: Annotated[int, BeforeValidator(_bytes), Field(gt=0)] | None = None
    scheduler: str | None = None
    insecure_scheduler: bool = False
    device: DeviceChoice | None = None
    device_memory: Annotated[int, BeforeValidator(_bytes), Field(gt=0)] | None = None
    spill: str | None = None
    disk: Annotated[int, BeforeValidator(_bytes), Field(gt=0)] | None = None
    prefect: bool | None = None
    cache: Annotated[int, BeforeValidator(_cache_bytes), Field(ge=0)] | None = None

    @property
    def compute(self) -> ComputeOptions:
        """Resources of a computation without options."""
        device = self.device or "auto"
        return compute_options(self.memory, self.threads, device, self.device_memory, self.spill, self.disk)

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


def load_settings() -> Settings:
    """Return the settings; raises InputError for unknown names, bad values and files that are not TOML."""
    _refuse_misspelt()
    try:
        settings = Settings(**_from_file() | _from_environment())
    except ValidationError as error:
        raise InputError("; ".join(_explain(item) for item in error.errors())) from None
    if settings.cache is not None:
        # For workers too: they read no settings.
        os.environ[VARIABLE] = str(settings.cache)
    return settings


def _from_file() -> dict[str, Any]:
    path = Path(os.environ.get(CONFIG) or "junctor.toml")
    if CONFIG not in os.environ and not path.exists():
        return {}
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot read the settings: {error}", Place(str(path))) from error
    for name in settings:
        if name not in Settings.model_fields:
            raise InputError(_unknown(name), Place(str(path)))
    return settings


def _from_environment() -> dict[str, str]:
    """Return the settings that have a text in the environment; one without any is unset."""
    named = {name: os.environ.get(PREFIX + name.upper()) for name in Settings.model_fields}
    return {name: text for name, text in named.items() if text}


def _refuse_misspelt() -> None:
    # Other programs may have variables with this prefix; one with nearly a name of ours is a slip of the user.
    names = [name[len(PREFIX) :].lower() for name in os.environ if name.startswith(PREFIX) and name != CONFIG]
    for name in names:
        if name not in Settings.model_fields and nearest(name, Settings.model_fields):
            raise InputError(f"environment variable {PREFIX}{name.upper()}: {_unknown(name)}")


def _unknown(name: str) -> str:
    known = Settings.model_fields
    return f"unknown setting {name!r}{nearest(name, known) or '.'} Known are {', '.join(known)}"


def _explain(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"][:1])
    return f"setting {name!r} ({PREFIX}{name.upper()}): found {error['input']!r}: {error['msg']}"
