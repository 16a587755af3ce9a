"""Rows read by workers: the same numbers as in this process, whatever becomes of a worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import junctor
import numpy as np
import psutil
import pyarrow as pa
import pytest
from helpers.files import ASIA
from helpers.signals import forks_of
from junctor import generate
from junctor.evidence.delimited import DelimitedTable
from junctor.learning import pieces
from junctor.learning.learn import LearnOptions, learn_rows
from junctor.learning.observations import values_of
from junctor.learning.pieces import read_rows
from junctor.learning.rows import open_rows, row_options
from junctor.model.errors import EvidenceError, RunError
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.progress import Silence
from pyarrow import csv, parquet

ROWS, PIECE = 4_000, 150
OPTIONS = row_options({"weight": "weight", "case_id": "id", "ignore_extra": True})


@pytest.fixture(scope="module")
def network() -> Network:
    return junctor.read_network(ASIA)


@pytest.fixture(scope="module")
def rows(network: Network) -> pa.Table:
    """Samples with gaps, weights, likelihoods, invalid rows, and rows that are impossible."""
    cells, random = generate.sample(network, ROWS, 1), np.random.default_rng(2)
    cells[random.random(cells.shape) < 0.2] = -1
    columns: dict[str, Any] = {
        own.name: [None if state < 0 else own.states[state] for state in cells[:, v].tolist()]
        for v, own in enumerate(network.variables)
    }
    del columns["xray"]
    columns["xray=yes"] = [None if row % 5 else 0.25 * (row % 3 + 1) for row in range(ROWS)]
    columns["xray=no"] = [None if row % 5 else 0.5 for row in range(ROWS)]
    columns["smoke"][::97] = ["maybe"] * len(columns["smoke"][::97])
    for row in range(0, ROWS, 211):
        columns["tub"][row], columns["either"][row] = "yes", "no"
    return pa.table({**columns, "weight": random.integers(0, 3, ROWS), "id": range(ROWS), "note": ["x"] * ROWS})


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many pieces of few rows."""
    monkeypatch.setattr(pieces, "MOST_ROWS", PIECE)


WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    "parquet": lambda table, path: parquet.write_table(table, path, row_group_size=60),
    "csv": csv.write_csv,
}


@pytest.fixture
def file(rows: pa.Table, tmp_path: Path) -> str:
    WRITERS["parquet"](rows, tmp_path / "rows.parquet")
    return str(tmp_path / "rows.parquet")


def using(scheduler: str | None = None, workers: int = 0, threads: int | None = None) -> Resources:
    return Resources(workers, scheduler, compute=ComputeOptions(memory=1 << 30, threads=threads, device="cpu"))


class Told(Silence):
    """Keeps the rows that it is told of."""

    def __init__(self) -> None:
        self.rows = 0

    def advance(self, rows: int) -> None:
        self.rows += rows


def record_of(table: Any, network: Network, resources: Resources, told: Silence | None = None) -> tuple[Any, ...]:
    """Return all that comes of reading rows, as values that can be compared."""
    source = open_rows(table, network, OPTIONS, resources)
    found, reading = read_rows(source, network, resources, 0.2, 7, told or Told())
    expected = found.expect(values_of(network))
    held_out = [
        (each.batch.rows, each.weights.tobytes(), *((v, c.dtype, c.tobytes()) for v, c in each.batch.states.items()))
        for each in reading.held_out
    ]
    counts = reading.rows, reading.invalid, reading.read, reading.observed, reading.soft, reading.is_complete
    return (
        *(expected.counts.tobytes(), expected.log_likelihood, found.weight, found.rows, found.impossible),
        *(held_out, counts, list(reading.reasons.items())),
    )


@pytest.mark.parametrize("form", list(WRITERS))
def test_workers_read_the_same(
    rows: pa.Table,
    network: Network,
    tmp_path: Path,
    form: str,
    scheduler: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number, first in enumerate((0, 1700, 1750)):
        (tmp_path / "rows").mkdir(exist_ok=True)
        end = (1700, 1750, ROWS)[number]
        WRITERS[form](rows.slice(first, end - first), tmp_path / "rows" / f"{number}.{form}")
    monkeypatch.chdir(tmp_path)
    # Workers are told where the lines are.
    monkeypatch.setattr(DelimitedTable, "_bytes_at_once", lambda self: 10_000)
    here, told = record_of("rows", network, using(threads=1)), Told()
    assert record_of("rows", network, using(scheduler), told) == here
    assert told.rows == ROWS
    assert "without workers" not in caplog.text
    assert record_of("rows", network, using(scheduler, threads=2)) == here == record_of(rows, network, using(threads=3))
    assert here[4], "impossible rows"
    assert len(here[-1]) == pieces.MOST_REASONS


def test_a_table_in_memory_stays_here(rows: pa.Table, network: Network, caplog: pytest.LogCaptureFixture) -> None:
    # No such scheduler is asked.
    found = record_of(rows, network, using("tcp://127.0.0.1:9"))
    assert found == record_of(rows, network, using())
    assert "without workers: they can only be read from the start" in caplog.text


class Killing(Told):
    """Kills a worker once there are first rows."""

    def advance(self, rows: int) -> None:
        if not self.rows:
            forks_of(psutil.Process())[-1].send_signal(signal.SIGKILL)
        super().advance(rows)


@pytest.mark.slow
def test_the_rows_of_a_worker_that_dies_are_read_by_another(
    file: str, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So many tasks that it has some left.
    monkeypatch.setattr(pieces, "MOST_ROWS", 20)
    told = Killing()
    assert record_of(file, network, using(workers=2), told) == record_of(file, network, using())
    assert told.rows == ROWS
    assert not forks_of(psutil.Process())


class Interrupting(Told):
    """Presses Ctrl-C once there are first rows."""

    def advance(self, rows: int) -> None:
        raise KeyboardInterrupt


def test_ctrl_c_leaves_the_scheduler_to_others(file: str, network: Network, scheduler: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        record_of(file, network, using(scheduler), Interrupting())
    assert record_of(file, network, using(scheduler)) == record_of(file, network, using())


def test_errors_are_those_of_this_process(
    rows: pa.Table, network: Network, tmp_path: Path, scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = rows["weight"].to_pylist()
    weights[3000], weights[2000] = -1, -2
    table = rows.set_column(rows.column_names.index("weight"), "weight", pa.array(weights))
    WRITERS["parquet"](table, tmp_path / "rows.parquet")
    said = set()
    for resources in (using(), using(scheduler)):
        with pytest.raises(EvidenceError) as refused:
            record_of(tmp_path / "rows.parquet", network, resources)
        said.add(str(refused.value))
    assert said == {"row 2,001: column 'weight': found -2.0, expected a weight of 0, or from 1e-100 to 1e100"}
    monkeypatch.setattr(pieces, "version", lambda _: "0.0.1")
    with pytest.raises(RunError, match=r"a worker has junctor .*, this run needs 0\.0\.1"):
        record_of(tmp_path / "rows.parquet", network, using(scheduler))


def test_a_file_that_a_worker_does_not_see(file: str, network: Network) -> None:
    resources = using("tls://elsewhere:8786")
    source = open_rows(file, network, OPTIONS, resources)
    assert isinstance(source, pieces.TableSource)
    maker, part = pieces.PieceMaker(network, PIECE, 0.0, 0), source.part(range(PIECE))
    os.unlink(file)
    with pytest.raises(RunError, match=r"rows\.parquet is not there for this worker"):
        pieces._pieces_of_part((maker, part), resources.compute)


def test_fits_and_new_states_by_workers(file: str, network: Network, scheduler: str) -> None:
    options = LearnOptions(prior="bdeu:1", impossible="skip", new_states=True, holdout=0.1)
    here, there = (learn_rows(network, file, options, OPTIONS, each) for each in (using(), using(scheduler)))
    smoke = network.index["smoke"]
    assert there.network.variables[smoke].states == here.network.variables[smoke].states == ("yes", "no", "maybe")
    assert there.network.digest == here.network.digest
    assert there.to_record() | {"trace": None} == here.to_record() | {"trace": None}
