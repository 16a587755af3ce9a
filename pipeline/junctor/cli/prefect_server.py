"""Whether the user has a Prefect server, and where the embedded one lives; without importing Prefect, which is slow."""

from __future__ import annotations

import os
import shutil
import tomllib
from pathlib import Path

from junctor.errors import RunError
from junctor.planning.budget import format_bytes
from junctor.storage import explained

# What the embedded server's database may come to. Without it the server would not start, time and again.
LEAST_SPACE = 64 << 20


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
    """Let the embedded server keep its files below `directory`, and leave the talking to us: errors are raised anyway.

    To be called before Prefect is imported; sets environment variables that the user has not set. Raises RunError
    where the folder cannot be made, or has no space for a database.
    """
    home = Path(os.environ.get("PREFECT_HOME") or directory / ".prefect").expanduser()
    # Prefect makes the folder, but not the one that it lies in.
    with explained(home):
        home.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(home).free
    if free < LEAST_SPACE:
        raise RunError(
            f"{home}: {format_bytes(free)} are free, but Prefect's server needs {format_bytes(LEAST_SPACE)} for its "
            "database: free some, or use --no-prefect"
        )
    os.environ["PREFECT_HOME"] = str(home)
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
