"""A Prefect server for all tests of flows, and a database that others begin with."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import junctor
import pyarrow as pa
import pytest
from helpers.prefect_servers import PrefectServer
from junctor.generate import evidence_batches, grid
from pyarrow import parquet


# Of this folder, not of the session: a server that nobody asks is busy all the same.
@pytest.fixture(scope="package")
def servers(tmp_path_factory: pytest.TempPathFactory) -> tuple[PrefectServer, Path]:
    """A server that runs, and the database that it began with."""
    folder = tmp_path_factory.mktemp("prefect")
    server = PrefectServer(folder / "server")
    server.start()
    # SQLite's own copy: the file alone could miss what is in its journal.
    source, copy = sqlite3.connect(server.home / "prefect.db"), sqlite3.connect(folder / "empty.db")
    source.backup(copy)
    source.close()
    copy.close()
    return server, folder / "empty.db"


@pytest.fixture(scope="package")
def server(servers: tuple[PrefectServer, Path]) -> Iterator[PrefectServer]:
    yield servers[0]
    servers[0].kill(signal.SIGTERM)


@pytest.fixture
def mortal(servers: tuple[PrefectServer, Path], server: PrefectServer, tmp_path: Path) -> Iterator[PrefectServer]:
    """A server that a test may kill."""
    mortal = PrefectServer(tmp_path / "prefect", servers[1])
    mortal.start()
    yield mortal
    if mortal.process is not None and mortal.process.poll() is None:
        mortal.kill()


# Rows of evidence that one thread answers in ten seconds or more, in parts of which some are there at once.
LONG = ["--threads", "1", "--workers", "0", "--device", "cpu", "--targets", "x_0_0", "--partition-rows", "500"]


@pytest.fixture(scope="session")
def long(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Arguments and options of a run that takes a while."""
    folder = tmp_path_factory.mktemp("long")
    network = grid(12, 12, seed=3)
    junctor.write_network(network, folder / "grid.parquet")
    first = next(evidence_batches(network, 16_000, observed=0.2, pattern="random"))
    parquet.write_table(pa.Table.from_batches([first]), folder / "many.parquet")
    return [str(folder / "grid.parquet"), str(folder / "many.parquet"), *LONG]
