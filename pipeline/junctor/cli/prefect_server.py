"""Whether the user has a Prefect server, and where the embedded one lives; without importing Prefect, which is slow."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path


def is_configured() -> bool:
    """Return whether PREFECT_API_URL is set, in the environment or in the active profile."""
    if os.environ.get("PREFECT_API_URL"):
        return True
    home = Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    path = Path(os.environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml").expanduser()
    try:
        profiles = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    active = os.environ.get("PREFECT_PROFILE") or profiles.get("active")
    profile = profiles.get("profiles", {}).get(active, {})
    return isinstance(profile, dict) and bool(profile.get("PREFECT_API_URL"))


def embed(directory: Path) -> None:
    """Let the embedded server keep its files below `directory`, and speak up only if something is wrong.

    To be called before Prefect is imported; sets environment variables that the user has not set.
    """
    os.environ.setdefault("PREFECT_HOME", str(directory / ".prefect"))
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
