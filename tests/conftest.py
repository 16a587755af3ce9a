"""Shared fixtures, options and Hypothesis profiles."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers.files import SHARED
from hypothesis import HealthCheck, settings

# Tests find nothing of other runs, and leave nothing; those of the cache have one of their own.
os.environ["JUNCTOR_CACHE"] = "off"

settings.register_profile(
    "default", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=100
)
settings.register_profile("long", parent=settings.get_profile("default"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests that take minutes")
    parser.addoption("--gpu", action="store_true", help="also run the tests that need a GPU")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for name in ("slow", "gpu"):
        if not config.getoption(f"--{name}"):
            for item in items:
                if name in item.keywords:
                    item.add_marker(pytest.mark.skip(reason=f"run with --{name}"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of benchmark networks and reference answers, which is not part of the project."""
    if not (SHARED / "networks").is_dir():
        pytest.skip(f"benchmark networks not found at {SHARED} (set BENCHMARK_NETWORKS)")
    return SHARED
