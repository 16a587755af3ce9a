"""Shared fixtures, options and Hypothesis profiles."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.files import SHARED
from helpers.signals import dask_cluster
from helpers.stores import ENVIRONMENT, Bucket, MemoryStore, Store
from hypothesis import HealthCheck, settings
from junctor.cli import COLLECTED_OBJECTS
from junctor.runtime import remote, remote_lock
from junctor.runtime.machine import usable_cores

# Tests find nothing of other runs, and leave nothing; those of the cache have one of their own.
os.environ["JUNCTOR_CACHE"] = "off"
# Bytecode is kept, whatever is said elsewhere: two hundred processes would compile 600 modules each.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# As the command line does: to look for garbage every 700 objects, among all tests, takes a sixth of the time.
gc.set_threshold(COLLECTED_OBJECTS)
# Workers that are there for all tests can ask the stores of tests.
os.environ.update(ENVIRONMENT)

# Fixtures of a function may be shared by its examples, which all write the same files.
LEFT = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("default", derandomize=True, deadline=None, suppress_health_check=LEFT, max_examples=15)
settings.register_profile("long", parent=settings.get_profile("default"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests that take minutes")
    parser.addoption("--gpu", action="store_true", help="also run the tests that need a GPU")


def pytest_collection_finish() -> None:
    """Search the tests themselves for garbage no more."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for name in ("slow", "gpu"):
        if not config.getoption(f"--{name}"):
            for item in items:
                if name in item.keywords:
                    item.add_marker(pytest.mark.skip(reason=f"run with --{name}"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than cores: some tests wait for servers, stores and workers that were killed."""
    return usable_cores() + 1


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of benchmark networks and reference answers, which is not part of the project."""
    if not (SHARED / "networks").is_dir():
        pytest.skip(f"benchmark networks not found at {SHARED} (set BENCHMARK_NETWORKS)")
    return SHARED


@pytest.fixture(scope="session")
def scheduler() -> Iterator[str]:
    """Address of a Dask scheduler with two workers, in processes of their own, to which nothing happens."""
    with dask_cluster() as (_, address):
        yield address


@pytest.fixture
def store() -> Store:
    """The store that `bucket` is in."""
    return MemoryStore()


@pytest.fixture
def bucket(store: Store, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket behind a proxy without faults yet; the environment of this process has its credentials.

    What waits for a store does not: tries follow each other at once, and nobody else takes a lock.
    """
    made = Bucket(store, f"b{abs(hash(request.node.nodeid)):x}")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(remote, "WAITS", (0.0,) * 8)
    monkeypatch.setattr(remote_lock, "SETTLING", 0.0)
    yield made
    made.proxy.stop()
