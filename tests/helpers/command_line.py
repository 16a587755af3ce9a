"""The command line within the process of a test."""

from __future__ import annotations

from junctor.cli import app_for
from typer.testing import CliRunner, Result


def junctor_cli(*args: str) -> Result:
    """Run a command as `junctor` does, with its own options alone: those of all commands take most of a call."""
    return CliRunner().invoke(app_for(args[0] if args else ""), list(args))
