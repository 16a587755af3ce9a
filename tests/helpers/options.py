"""The resources that most tests give."""

from __future__ import annotations

from typing import Any

from junctor.model.options import ComputeOptions


def on_cpu(memory: int | None = None, threads: int = 1, **more: Any) -> ComputeOptions:
    """Return options for the CPU, with one thread unless more are named."""
    return ComputeOptions(memory, threads, "cpu", **more)
