"""Shared fixtures, options and Hypothesis profiles."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.files import SHARED
from helpers.signals import dask_cluster
from helpers.stores import Bucket, FlakyProxy, S3Server
from hypothesis import HealthCheck, settings

# Tests find nothing of other runs, and leave nothing; those of the cache have one of their own.
os.environ["JUNCTOR_CACHE"] = "off"
# Bytecode is kept, whatever is said elsewhere: two hundred processes would compile 600 modules each.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile(
    "default", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=15
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


@pytest.fixture(scope="session")
def scheduler() -> Iterator[str]:
    """Address of a Dask scheduler with two workers, in processes of their own, to which nothing happens."""
    with dask_cluster() as (_, address):
        yield address


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server in a process of its own."""
    if importlib.util.find_spec("moto") is None:
        pytest.skip("moto is not installed: no S3 server")
    server = S3Server(tmp_path_factory.mktemp("s3") / "server.log")
    yield server
    server.stop()


@pytest.fixture
def bucket(s3_server: S3Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket behind a proxy without faults yet; the environment of this process has its credentials."""
    proxy = FlakyProxy(s3_server.port)
    made = Bucket(s3_server, proxy, f"b{abs(hash(request.node.nodeid)):x}-{proxy.port}")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    yield made
    proxy.stop()
