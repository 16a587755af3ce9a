"""The command line within the process of a test."""

from __future__ import annotations

from junctor.cli import app_for
from typer.testing import CliRunner, Result


def junctor_cli(*args: str) -> Result:
    return CliRunner().invoke(app_for(), list(args))
